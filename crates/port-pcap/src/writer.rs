//! Captures out: pcapng with verdicts, or the plain pcap of what would leave.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::CaptureError;
use crate::format;

/// One packet to be written.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Bytes.
    pub data: &'a [u8],
    /// Length on the wire.
    pub original_len: u32,
    /// Index of the interface, in the order of [`CaptureWriter::create`]'s list.
    pub interface: u32,
    /// RX queue.
    pub queue: u32,
    /// Number of the packet in its input: before and after share it.
    pub packet_id: u64,
    /// The program's return value; `None` for a packet that no program has seen.
    pub verdict: Option<u32>,
    /// A remark for the person who reads the capture.
    pub comment: Option<&'a str>,
    /// Say that it came in: where both directions could be meant.
    pub inbound: bool,
}

/// A capture file that appears under its name only when it is complete.
///
/// Until [`CaptureWriter::finish`] the bytes lie in a file beside it whose name ends in `.part`; a writer that is dropped
/// unfinished removes that file. Only where the name is already that of something else than a file (a pipe, a device) is it
/// written to directly.
pub struct CaptureWriter {
    file: BufWriter<Box<dyn Write + Send>>,
    interfaces: u32,
    plain: bool,
    part: Option<PathBuf>,
    path: PathBuf,
    written: u64,
    /// The record under construction; kept for its memory.
    record: Vec<u8>,
}

impl CaptureWriter {
    /// Begins a file: plain pcap with nanoseconds when the name ends in `.pcap`, else pcapng. `interfaces` are the names
    /// of the ports that packets come from; pcapng records them.
    ///
    /// # Errors
    /// [`CaptureError::Write`] when the file cannot be made.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<CaptureWriter, CaptureError> {
        let fail = |source| CaptureError::Write { path: path.display().to_string(), source };
        let part = part_of(path);
        let file = File::create(part.as_deref().unwrap_or(path)).map_err(fail)?;
        let plain = path.extension().is_some_and(|e| e == "pcap");
        CaptureWriter::begin(Box::new(file), plain, part, path, interfaces)
    }

    /// Begins a pcapng stream, for a pipe; `name` is what errors call it. Nothing is renamed at its end.
    ///
    /// # Errors
    /// [`CaptureError::Write`] when nobody reads it.
    pub fn stream(out: Box<dyn Write + Send>, name: &str, interfaces: &[&str]) -> Result<CaptureWriter, CaptureError> {
        CaptureWriter::begin(out, false, None, Path::new(name), interfaces)
    }

    /// As [`CaptureWriter::stream`], in plain pcap.
    ///
    /// # Errors
    /// [`CaptureError::Write`] when nobody reads it.
    pub fn stream_plain(out: Box<dyn Write + Send>, name: &str) -> Result<CaptureWriter, CaptureError> {
        CaptureWriter::begin(out, true, None, Path::new(name), &[])
    }

    fn begin(
        out: Box<dyn Write + Send>,
        plain: bool,
        part: Option<PathBuf>,
        path: &Path,
        interfaces: &[&str],
    ) -> Result<CaptureWriter, CaptureError> {
        let fail = |source| CaptureError::Write { path: path.display().to_string(), source };
        let mut file = BufWriter::with_capacity(1 << 16, out);
        let mut record = Vec::new();
        if plain {
            format::pcap_header(&mut record);
        } else {
            format::section(&mut record, "xway");
            for name in interfaces {
                format::interface(&mut record, name);
            }
        }
        file.write_all(&record).map_err(fail)?;
        let interfaces = interfaces.len() as u32;
        Ok(CaptureWriter { file, interfaces, plain, part, path: path.to_owned(), written: 0, record })
    }

    /// Adds an interface and gives its index; plain pcap knows none.
    ///
    /// # Errors
    /// [`CaptureError::Write`].
    pub fn add_interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        if self.plain {
            return Ok(0);
        }
        self.record.clear();
        format::interface(&mut self.record, name);
        self.file.write_all(&self.record).map_err(|e| self.fail(e))?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Hands on what was written so far: who reads a pipe sees it now.
    ///
    /// # Errors
    /// [`CaptureError::Write`].
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.file.flush().map_err(|e| self.fail(e))
    }

    /// True for plain pcap, which has no place for verdicts: write to it only what would leave.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Number of packets written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Appends a packet.
    ///
    /// # Errors
    /// [`CaptureError::Write`], for example when the disk is full.
    pub fn write(&mut self, p: &Written<'_>) -> Result<(), CaptureError> {
        self.record.clear();
        if self.plain {
            format::pcap_record(&mut self.record, p);
        } else {
            format::enhanced_packet(&mut self.record, p);
        }
        self.file.write_all(&self.record).map_err(|e| self.fail(e))?;
        self.written += 1;
        Ok(())
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// [`CaptureError::Write`]; the file is then not there.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        self.file.flush().map_err(|e| self.fail(e))?;
        if let Some(part) = &self.part {
            std::fs::rename(part, &self.path).map_err(|e| self.fail(e))?;
        }
        self.part = None;
        Ok(())
    }

    fn fail(&self, source: io::Error) -> CaptureError {
        CaptureError::Write { path: self.path.display().to_string(), source }
    }
}

/// Where the bytes lie until they are complete; `None` for what must not be replaced by a file.
fn part_of(path: &Path) -> Option<PathBuf> {
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return None;
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    Some(part.into())
}

impl Drop for CaptureWriter {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // Nothing better can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(part);
        }
    }
}
