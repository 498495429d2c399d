//! The file that `perf inject --jit` reads: machine code with its names, and which source line each address came from.
//!
//! The format is that of the Linux sources' `tools/perf/Documentation/jitdump-specification.txt`, version 1. `perf record` notes
//! the file when it is mapped executable, which is why it has to be; the clock is the monotonic one (`perf record -k 1`).
//!
//! ```text
//! perf record -k 1 xway run prog.o -i big.pcap --jitdump DIR
//! perf inject --jit -i perf.data -o jitted.data && perf report -i jitted.data
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use xway_vm::Program;

use crate::Compiled;

const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
const HEADER_LEN: u32 = 40;
/// `EM_X86_64`, `EM_AARCH64`
const MACHINE: u32 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const CODE_LOAD: u32 = 0;
const CODE_DEBUG_INFO: u32 = 2;

/// Writes `jit-PID.dump` into a directory and gives its path. `programs` are what was compiled: one, or the links of a chain.
///
/// # Errors
/// Those of the file system, and of mapping the file.
pub fn publish(dir: &Path, code: &Compiled, programs: &[&Program]) -> io::Result<PathBuf> {
    let pid = std::process::id();
    let path = dir.join(format!("jit-{pid}.dump"));
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    file.write_all(&contents(code, programs, pid, now()))?;
    crate::code::mark(&file)?;
    Ok(path)
}

fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

fn contents(code: &Compiled, programs: &[&Program], pid: u32, time: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [MAGIC, VERSION, HEADER_LEN, MACHINE, 0, pid] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(time.to_ne_bytes());
    out.extend(0u64.to_ne_bytes());
    let targets = code.targets();
    let programs: Vec<&Program> = programs.iter().copied().chain(targets.iter().map(|t| &**t)).collect();
    for (index, f) in code.functions().iter().enumerate() {
        let address = code.address() + f.offset as u64;
        let mut lines = vec![];
        for (at, origin) in &f.lines {
            let Some(info) = origin.and_then(|o| programs.get(o.unit)?.line(o.insn)) else { continue };
            lines.extend((address + u64::from(*at)).to_ne_bytes());
            lines.extend(info.line.to_ne_bytes());
            lines.extend(0u32.to_ne_bytes());
            lines.extend(info.file.as_bytes());
            lines.push(0);
        }
        let count = f.lines.iter().filter(|l| l.1.is_some_and(|o| lined(&programs, o))).count() as u64;
        if count > 0 {
            let mut body = vec![];
            body.extend(address.to_ne_bytes());
            body.extend(count.to_ne_bytes());
            body.extend(lines);
            record(&mut out, CODE_DEBUG_INFO, time, &body);
        }
        let mut body = vec![];
        body.extend(pid.to_ne_bytes());
        body.extend(pid.to_ne_bytes());
        for number in [address, address, f.len as u64, index as u64] {
            body.extend(number.to_ne_bytes());
        }
        body.extend(format!("xway:{}:{}\0", code.name(), f.name).bytes());
        body.extend_from_slice(&code.code()[f.offset..f.offset + f.len]);
        record(&mut out, CODE_LOAD, time, &body);
    }
    out
}

fn lined(programs: &[&Program], origin: crate::Origin) -> bool {
    programs.get(origin.unit).is_some_and(|p| p.line(origin.insn).is_some())
}

/// Number, length of the whole record, time, and what belongs to it.
fn record(out: &mut Vec<u8>, id: u32, time: u64, body: &[u8]) {
    out.extend(id.to_ne_bytes());
    out.extend((16 + body.len() as u32).to_ne_bytes());
    out.extend(time.to_ne_bytes());
    out.extend_from_slice(body);
}
