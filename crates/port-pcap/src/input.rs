//! The bytes of a capture, wherever they come from and however they are packed.

use std::fs::File;
use std::io::{self, Chain, Cursor, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::CaptureError;

/// Largest window that a zstd stream may ask for, bytes: it is what the decoder must keep in memory.
const ZSTD_WINDOW_MAX: u64 = 64 << 20;

/// Any source of bytes.
pub(crate) type Bytes = Box<dyn Read + Send>;

/// How much of a file has been read.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    read: Arc<AtomicU64>,
    /// Length of the file, bytes; 0 for what is no regular file.
    len: u64,
}

impl Progress {
    /// Bytes read and bytes in all, as they lie in the file (packed or not); `None` for an input without a known length.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        (self.len > 0).then(|| (self.read.load(Ordering::Relaxed).min(self.len), self.len))
    }
}

/// Opens a file and unpacks it when its first bytes say gzip or zstd; the name plays no part. `-` is standard input.
pub(crate) fn open(path: &Path) -> Result<(Bytes, Progress), CaptureError> {
    if path.as_os_str() == "-" {
        return unpacked(path, Box::new(io::stdin()), Progress::default());
    }
    let file = File::open(path).map_err(|source| failed(path, source))?;
    if file.metadata().map_err(|source| failed(path, source))?.is_dir() {
        return Err(failed(path, io::ErrorKind::IsADirectory.into()));
    }
    counted(path, file)
}

/// The same for a regular file and nothing else, which is opened without waiting.
pub(crate) fn open_file(path: &Path) -> Result<(Bytes, Progress), CaptureError> {
    counted(path, xway_door::open(path).map_err(|e| failed(path, e.into()))?)
}

fn failed(path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Open { path: path.display().to_string(), source }
}

fn counted(path: &Path, file: File) -> Result<(Bytes, Progress), CaptureError> {
    let about = file.metadata().map_err(|source| failed(path, source))?;
    let progress = Progress { len: if about.is_file() { about.len() } else { 0 }, ..Progress::default() };
    let raw = Counted { inner: file, read: Arc::clone(&progress.read) };
    unpacked(path, Box::new(raw), progress)
}

fn unpacked(path: &Path, raw: Bytes, progress: Progress) -> Result<(Bytes, Progress), CaptureError> {
    let name = path.display().to_string();
    let bytes = unpack(raw).map_err(|source| CaptureError::Read { name, packets: 0, source })?;
    Ok((bytes, progress))
}

/// Counts what is read from a file, below any decompressor.
struct Counted {
    inner: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Looks at the first four bytes and puts a decompressor in front where they ask for one.
pub(crate) fn unpack(mut raw: Bytes) -> io::Result<Bytes> {
    let head = read_up_to(&mut raw, 4)?;
    let whole: Chain<Cursor<Vec<u8>>, Bytes> = Cursor::new(head.clone()).chain(raw);
    Ok(match head[..] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Zstd::new(Box::new(whole))?),
        _ => Box::new(whole),
    })
}

/// Reads `n` bytes, fewer only at the end of the input.
pub(crate) fn read_up_to(from: &mut dyn Read, n: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    from.take(n as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// A zstd decoder that reads frame after frame, as concatenated files have them.
struct Zstd {
    /// `None` only while one frame gives way to the next, and at the end.
    decoder: Option<StreamingDecoder<Peeked, FrameDecoder>>,
}

impl Zstd {
    fn new(input: Bytes) -> io::Result<Zstd> {
        let input = Peeked { inner: input, first: None };
        Ok(Zstd { decoder: Some(new_decoder(input)?) })
    }
}

fn new_decoder(input: Peeked) -> io::Result<StreamingDecoder<Peeked, FrameDecoder>> {
    StreamingDecoder::new_with_max_window_size(input, ZSTD_WINDOW_MAX).map_err(io::Error::other)
}

impl Read for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let n = decoder.read(out)?;
            if n > 0 || out.is_empty() {
                return Ok(n);
            }
            // This frame is over; another may follow.
            let mut rest = self.decoder.take().map(StreamingDecoder::into_inner).ok_or(io::ErrorKind::Other)?;
            if rest.more()? {
                self.decoder = Some(new_decoder(rest)?);
            }
        }
        Ok(0)
    }
}

/// An input that can be asked whether it is at its end.
struct Peeked {
    inner: Bytes,
    first: Option<u8>,
}

impl Peeked {
    fn more(&mut self) -> io::Result<bool> {
        self.first = read_up_to(&mut *self.inner, 1)?.first().copied();
        Ok(self.first.is_some())
    }
}

impl Read for Peeked {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match (self.first, out.first_mut()) {
            (Some(byte), Some(slot)) => {
                *slot = byte;
                self.first = None;
                Ok(1)
            }
            _ => self.inner.read(out),
        }
    }
}

/// Hands an input on and keeps the error that stopped it, which the parser's own error type has no place for.
pub(crate) struct Watched {
    inner: Bytes,
    error: Arc<Mutex<Option<io::Error>>>,
}

/// Where the error of a [`Watched`] input lies.
#[derive(Clone)]
pub(crate) struct ErrorSlot(Arc<Mutex<Option<io::Error>>>);

impl ErrorSlot {
    /// The error, if there was one; a generic one else.
    pub(crate) fn take(&self) -> io::Error {
        let stored = self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
        stored.unwrap_or_else(|| io::ErrorKind::Other.into())
    }
}

impl Watched {
    pub(crate) fn new(inner: Bytes) -> (Watched, ErrorSlot) {
        let error = Arc::new(Mutex::new(None));
        (Watched { inner, error: Arc::clone(&error) }, ErrorSlot(error))
    }
}

impl Read for Watched {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(out) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let kind = e.kind();
                    *self.error.lock().unwrap_or_else(|e| e.into_inner()) = Some(e);
                    return Err(kind.into());
                }
                ok => return ok,
            }
        }
    }
}
