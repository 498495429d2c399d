//! The kernel's tracepoints about XDP: exceptions, redirects that failed, what maps and devices refused.
//!
//! A tracepoint is described by a file of tracefs, which says where its fields lie; its events come through perf rings, one for
//! each CPU, shared by all tracepoints that are read together. Nobody listens: a tracepoint costs the kernel nothing. Somebody
//! listens: an event that finds no room in the ring is counted by the kernel, and nobody waits for the reader.
//!
//! Successes are far too many to be read one by one: [`KernelTally`] only counts them, in the kernel.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xway_abi::Errno;

use crate::perf::{self, PerfEvent, Ring, Source};
use crate::possible_cpus;

/// Where tracefs can lie.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Why a tracepoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is no tracefs, or it may not be read.
    #[error("the kernel's tracepoints cannot be read: {path}: {cause}", path = path.display())]
    Tracefs {
        /// What was to be read.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The kernel has no such tracepoint.
    #[error("this kernel has no tracepoint {0}")]
    Unknown(String),
    /// Its description is not understood.
    #[error("the description of tracepoint {0} is not understood")]
    Format(String),
    /// The kernel does not let us listen.
    #[error("listening to tracepoint {name}: {errno}")]
    Refused {
        /// The tracepoint.
        name: String,
        /// What the kernel said.
        errno: Errno,
    },
}

/// One field of a tracepoint.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    name: Arc<str>,
    offset: usize,
    size: usize,
    signed: bool,
}

/// A tracepoint as tracefs describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Format {
    id: u32,
    name: Arc<str>,
    fields: Vec<Field>,
}

/// Something that happened in the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// The CPU it happened on.
    pub cpu: u32,
    /// The tracepoint: `xdp_exception`, `xdp_redirect_err`, …
    pub name: Arc<str>,
    /// Its numbers, by the names that the kernel gives them.
    pub fields: Vec<(Arc<str>, i64)>,
}

impl TraceEvent {
    /// The field with this name; `None` where this kernel has none.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.fields.iter().find(|(known, _)| **known == *name).map(|(_, value)| *value)
    }
}

/// Tracepoints that are listened to until this is dropped.
#[derive(Debug)]
pub struct KernelTrace {
    rings: Vec<Ring>,
    formats: Vec<Format>,
    // Their samples go into the rings; closing them ends that.
    _others: Vec<OwnedFd>,
}

/// The directory of a subsystem's tracepoints.
fn directory(subsystem: &str) -> Result<PathBuf, TraceError> {
    let mut refused = None;
    for root in TRACEFS {
        let path = Path::new(root).join("events").join(subsystem);
        match std::fs::metadata(&path) {
            Ok(_) => return Ok(path),
            Err(cause) => refused = refused.or(Some(TraceError::Tracefs { path, cause })),
        }
    }
    Err(refused.unwrap_or_else(|| TraceError::Unknown(subsystem.to_owned())))
}

/// Reads the description of a tracepoint.
fn format(directory: &Path, name: &str) -> Result<Format, TraceError> {
    let path = directory.join(name).join("format");
    let text = std::fs::read_to_string(&path).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => TraceError::Unknown(name.to_owned()),
        _ => TraceError::Tracefs { path, cause },
    })?;
    parse(name, &text).ok_or_else(|| TraceError::Format(name.to_owned()))
}

/// The description's number and its numeric fields; fields of other sizes (strings) are left out.
fn parse(name: &str, text: &str) -> Option<Format> {
    let id = text.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
    let mut fields = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| line.starts_with("field:")) {
        let part = |key: &str| line.split(';').find_map(|part| part.trim().strip_prefix(key));
        let number = |key: &str| part(key)?.parse::<usize>().ok();
        let (offset, size) = (number("offset:")?, number("size:")?);
        let field = part("field:")?.rsplit([' ', '*']).next()?;
        if matches!(size, 1 | 2 | 4 | 8) && !part("field:")?.contains("__data_loc") && !field.contains('[') {
            fields.push(Field { name: field.into(), offset, size, signed: number("signed:")? == 1 });
        }
    }
    Some(Format { id, name: name.into(), fields })
}

impl Format {
    fn read(&self, event: &PerfEvent) -> TraceEvent {
        let value = |field: &Field| {
            let bytes = event.data.get(field.offset..field.offset + field.size)?;
            let mut wide = [0; 8];
            // Numbers are the machine's; on a big-endian one they end where the wide one ends.
            let from = if cfg!(target_endian = "big") { 8 - field.size } else { 0 };
            wide[from..from + field.size].copy_from_slice(bytes);
            let (raw, unused) = (i64::from_ne_bytes(wide), 64 - 8 * field.size as u32);
            Some((field.name.clone(), if field.signed { raw << unused >> unused } else { raw }))
        };
        TraceEvent { cpu: event.cpu, name: self.name.clone(), fields: self.fields.iter().filter_map(value).collect() }
    }
}

impl KernelTrace {
    /// Listens to some tracepoints of a subsystem on all CPUs, as `open("xdp", &["xdp_exception"])`.
    ///
    /// # Errors
    /// No tracefs, an unknown tracepoint, or the kernel's refusal (`EACCES` or `EPERM` without `CAP_PERFMON`).
    pub fn open(subsystem: &str, names: &[&str]) -> Result<KernelTrace, TraceError> {
        let place = directory(subsystem)?;
        let formats = names.iter().map(|name| format(&place, name)).collect::<Result<Vec<_>, _>>()?;
        let Some((first, rest)) = formats.split_first() else {
            return Ok(KernelTrace { rings: Vec::new(), formats, _others: Vec::new() });
        };
        let refused = |name: &Arc<str>| {
            let name = name.to_string();
            move |errno| TraceError::Refused { name, errno }
        };
        let (mut rings, mut others) = (Vec::new(), Vec::new());
        for cpu in 0..possible_cpus() {
            let ring = match Ring::open(Source::tracepoint(first.id, true), cpu) {
                Ok(ring) => ring,
                // The CPU is possible, but not there.
                Err(Errno::ENODEV) => continue,
                Err(errno) => return Err(refused(&first.name)(errno)),
            };
            for other in rest {
                let event = Source::tracepoint(other.id, true).open(cpu).map_err(refused(&other.name))?;
                ring.share(&event).and_then(|()| perf::enable(&event)).map_err(refused(&other.name))?;
                others.push(event);
            }
            ring.enable().map_err(refused(&first.name))?;
            rings.push(ring);
        }
        Ok(KernelTrace { rings, formats, _others: others })
    }

    /// Waits until there is something to read. `false`: nothing came in this time.
    pub fn wait(&self, most: Duration) -> Result<bool, Errno> {
        let mut fds: Vec<_> = self.rings.iter().map(Ring::readable).collect();
        perf::wait(&mut fds, most)
    }

    /// Hands every event to `visit`, CPU by CPU, and frees it. Gives the number of events that found no room.
    pub fn drain(&mut self, visit: &mut dyn FnMut(TraceEvent)) -> u64 {
        let formats = &self.formats;
        let mut read = |event: PerfEvent| {
            // The tracepoint's number comes first in each record.
            let kind = event.data.first_chunk().map(|bytes| u32::from(u16::from_ne_bytes(*bytes)));
            if let Some(format) = formats.iter().find(|format| Some(format.id) == kind) {
                visit(format.read(&event));
            }
        };
        self.rings.iter().map(|ring| ring.drain(&mut read)).sum()
    }
}

/// How often a tracepoint was passed since this was opened; the kernel counts, nothing is copied.
#[derive(Debug)]
pub struct KernelTally {
    events: Vec<OwnedFd>,
}

impl KernelTally {
    /// Counts one tracepoint of a subsystem on all CPUs.
    ///
    /// # Errors
    /// As [`KernelTrace::open`].
    pub fn open(subsystem: &str, name: &str) -> Result<KernelTally, TraceError> {
        let format = format(&directory(subsystem)?, name)?;
        let refused = |errno| TraceError::Refused { name: name.to_owned(), errno };
        let mut events = Vec::new();
        for cpu in 0..possible_cpus() {
            match Source::tracepoint(format.id, false).open(cpu) {
                Ok(event) => {
                    perf::enable(&event).map_err(refused)?;
                    events.push(event);
                }
                Err(Errno::ENODEV) => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        Ok(KernelTally { events })
    }

    /// The number now, of all CPUs.
    pub fn count(&self) -> u64 {
        let one = |event: &OwnedFd| {
            let mut bytes = [0; 8];
            match rustix::io::read(event, &mut bytes) {
                Ok(8) => u64::from_ne_bytes(bytes),
                _ => 0,
            }
        };
        self.events.iter().map(one).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name: xdp_exception\nID: 584\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:int prog_id;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:u32 act;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:const void * allocator;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] msg;\toffset:16;\tsize:4;\tsigned:0;\n\nprint fmt: \"x\"\n";

    #[test]
    fn descriptions_say_where_fields_lie() {
        let format = parse("xdp_exception", TEXT).unwrap();
        assert_eq!(format.id, 584);
        let names: Vec<&str> = format.fields.iter().map(|f| &*f.name).collect();
        assert_eq!(names, ["common_type", "prog_id", "act", "allocator"]);
        let mut data = vec![0; 32];
        data[..2].copy_from_slice(&584u16.to_ne_bytes());
        data[8..12].copy_from_slice(&(-7i32).to_ne_bytes());
        data[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        let event = format.read(&PerfEvent { cpu: 1, data });
        assert_eq!((event.get("prog_id"), event.get("act")), (Some(-7), Some(i64::from(u32::MAX))));
        assert_eq!(event.get("ifindex"), None);
        // A record that is too short has the fields that are there.
        let event = format.read(&PerfEvent { cpu: 1, data: vec![0; 12] });
        assert_eq!((event.get("prog_id"), event.get("act")), (Some(0), None));
        assert_eq!(parse("x", "no number"), None);
    }
}
