//! Profilers are told of machine code as it is made: its names, or code and source lines.
//!
//! `perf` looks for names in `/tmp/perf-PID.map`, which it opens by the process's number, and for code with lines in a jitdump. Both
//! are files of the process, not of a program: whoever asks once ([`tell`]) gets every program that is compiled from then on, chains
//! and programs behind tail calls too, until the process ends. A process that asked for nothing pays one load for each program.
//!
//! A jitdump has the format of the Linux sources' `tools/perf/Documentation/jitdump-specification.txt`, version 1. `perf record` notes
//! the file when it is mapped executable, which is why it has to be; the clock is the monotonic one (`perf record -k 1`). Code that
//! comes to lie where other code was is told apart by its time there; a map file has no times, and the later line counts.
//!
//! ```text
//! perf record -k 1 xway run prog.o -i big.pcap --jitdump DIR
//! perf inject --jit -i perf.data -o jitted.data && perf report -i jitted.data
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xway_vm::Program;

use crate::Compiled;

const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
const HEADER_LEN: u32 = 40;
/// `EM_X86_64`, `EM_AARCH64`
const MACHINE: u32 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const CODE_LOAD: u32 = 0;
const CODE_DEBUG_INFO: u32 = 2;

/// What profilers are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profilers {
    /// Names, in `/tmp/perf-PID.map`.
    pub perf_map: bool,
    /// Code and source lines, in `jit-PID.dump` of this directory.
    pub jitdump: Option<PathBuf>,
}

/// What could not be written, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct Trouble {
    /// The file.
    pub file: PathBuf,
    /// Of which the directory was named ([`Profilers::jitdump`]); else it is the list of names.
    pub is_dump: bool,
    /// What kind of error it was.
    pub kind: io::ErrorKind,
    /// What the system said.
    pub why: String,
}

impl Trouble {
    fn new(file: &Path, is_dump: bool, error: &io::Error) -> Trouble {
        Trouble { file: file.to_owned(), is_dump, kind: error.kind(), why: error.to_string() }
    }
}

/// The files, once they are wanted.
struct Told {
    map: Option<(PathBuf, File)>,
    dump: Option<(PathBuf, File)>,
    /// Functions in the dump: each has a number of its own.
    functions: u64,
    /// The first thing that went wrong since; nothing is written from then on.
    trouble: Option<Trouble>,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);

fn told() -> MutexGuard<'static, Told> {
    static TOLD: Mutex<Told> = Mutex::new(Told { map: None, dump: None, functions: 0, trouble: None });
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells profilers of all code that this process compiles from now on, and gives the files that it is written to. Asked again, it
/// goes on with the files that it has.
///
/// # Errors
/// Those of the file system, of a dump that already goes into another directory, and of a symbolic link in the place of a
/// file: names in `/tmp` can be guessed.
pub fn tell(wanted: &Profilers) -> Result<Vec<PathBuf>, Trouble> {
    let pid = std::process::id();
    let (mut told, mut files) = (told(), vec![]);
    if wanted.perf_map {
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        if told.map.is_none() {
            let file = create(&path).map_err(|e| Trouble::new(&path, false, &e))?;
            told.map = Some((path.clone(), file));
        }
        files.push(path);
    }
    if let Some(dir) = &wanted.jitdump {
        let path = dir.join(format!("jit-{pid}.dump"));
        match &told.dump {
            Some((there, _)) if *there != path => {
                let error = io::Error::other(format!("{} is being written already", there.display()));
                return Err(Trouble::new(&path, true, &error));
            }
            Some(_) => {}
            None => {
                let begun = create(&path).and_then(|mut file| {
                    file.write_all(&header(pid, now()))?;
                    crate::code::mark(&file)?;
                    Ok(file)
                });
                told.dump = Some((path.clone(), begun.map_err(|e| Trouble::new(&path, true, &e))?));
            }
        }
        files.push(path);
    }
    ACTIVE.store(told.map.is_some() || told.dump.is_some(), Ordering::Release);
    Ok(files)
}

/// Why profilers are told nothing any more, when a file could not be written.
pub fn trouble() -> Option<Trouble> {
    told().trouble.clone()
}

/// A program was compiled. `programs` are what it was made of: one, or the links of a chain.
pub(crate) fn made(code: &Compiled, programs: &[&Program]) {
    if !ACTIVE.load(Ordering::Acquire) {
        return;
    }
    let mut told = told();
    let told = &mut *told;
    if told.trouble.is_some() {
        return;
    }
    // One write for each, so that who reads meanwhile sees whole lines and records.
    let title = title(programs);
    let map = told.map.as_mut().map_or(Ok(()), |(path, file)| {
        let written = file.write_all(names(code, &title).as_bytes());
        written.map_err(|e| Trouble::new(path, false, &e))
    });
    let dump = told.dump.as_mut().map_or(Ok(()), |(path, file)| {
        let pid = std::process::id();
        let written = file.write_all(&contents(code, &title, programs, pid, now(), &mut told.functions));
        written.map_err(|e| Trouble::new(path, true, &e))
    });
    told.trouble = map.and(dump).err();
}

/// A new file, or an empty one in place of what an earlier process of this number has left.
fn create(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).custom_flags(no_link).open(path)
}

fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// What code is of: each program's name, and its tag, which tells it from others of that name and from what it was before it was replaced.
fn title(programs: &[&Program]) -> String {
    let of = |program: &&Program| {
        let tag: String = program.tag().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}_{tag}", program.name())
    };
    programs.iter().map(of).collect::<Vec<_>>().join("+")
}

/// A function's name, as profilers show it.
fn symbol(title: &str, function: &str) -> String {
    format!("xway:{title}:{function}")
}

/// Lines of a map file: address, length, and a name that says program and function.
fn names(code: &Compiled, title: &str) -> String {
    let mut lines = String::new();
    for f in code.functions() {
        let _ = writeln!(lines, "{:x} {:x} {}", code.address() + f.offset as u64, f.len, symbol(title, &f.name));
    }
    lines
}

fn header(pid: u32, time: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [MAGIC, VERSION, HEADER_LEN, MACHINE, 0, pid] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(time.to_ne_bytes());
    out.extend(0u64.to_ne_bytes());
    out
}

/// Records of a dump; functions are counted on from `functions`.
fn contents(code: &Compiled, title: &str, programs: &[&Program], pid: u32, time: u64, functions: &mut u64) -> Vec<u8> {
    let mut out = Vec::new();
    let targets = code.targets();
    let programs: Vec<&Program> = programs.iter().copied().chain(targets.iter().map(|t| &**t)).collect();
    for f in code.functions() {
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
        for number in [address, address, f.len as u64, *functions] {
            body.extend(number.to_ne_bytes());
        }
        body.extend(symbol(title, &f.name).bytes());
        body.push(0);
        body.extend_from_slice(&code.code()[f.offset..f.offset + f.len]);
        record(&mut out, CODE_LOAD, time, &body);
        *functions += 1;
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
