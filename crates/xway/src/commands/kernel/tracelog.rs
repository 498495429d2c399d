//! `xway prog tracelog`: the kernel's trace log, where `bpf_printk` writes; of the service, what its programs print.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use serde_json::json;

use super::failure;
use super::watch::Watch;
use crate::args_kernel::{HookRest as Rest, Place};
use crate::commands::service;
use crate::failure::Failure;
use crate::print;

/// Where the log can lie.
const PATHS: [&str; 2] = ["/sys/kernel/tracing/trace_pipe", "/sys/kernel/debug/tracing/trace_pipe"];

/// Runs the command. What is read here is taken out of the log.
pub fn run(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    if rest.place.hook == Some(Place::User) {
        return of_service(rest, as_json);
    }
    let mut watch = Watch::parse(&rest.words)?;
    let mut log = open()?;
    let (mut lines, mut part, mut buffer) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
    while let Some(time) = watch.next() {
        let len = match log.read(&mut buffer) {
            Ok(len) => len,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::file("the trace log", &e)),
        };
        if len == 0 {
            // The pipe cannot be waited for together with a clock.
            std::thread::sleep(time.min(std::time::Duration::from_millis(20)));
            continue;
        }
        part.extend_from_slice(&buffer[..len]);
        while let Some(end) = part.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = part.drain(..=end).collect();
            if !watch.take() {
                break;
            }
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            match as_json {
                true => lines.push(line),
                false => print::text(&format!("{line}\n")),
            }
        }
    }
    if as_json {
        print::json(&print::document("prog tracelog", json!({ "lines": lines })));
    }
    Ok(())
}

/// What programs of the service print. Its log has the lines as well: nothing is taken away by reading here.
fn of_service(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let mut watch = Watch::parse(&rest.words)?;
    let mut service = service::connect(&rest.place.socket)?;
    let (mut all, mut lost) = (Vec::new(), 0);
    while let Some(time) = watch.next() {
        let came = service.trace_log(time).map_err(failure)?;
        // (Words of trace_pipe.)
        let note = (came.lost > 0).then(|| format!("[LOST {} EVENTS]", came.lost));
        lost += came.lost;
        let mut shown: Vec<String> = came.lines.into_iter().take_while(|_| watch.take()).collect();
        match as_json {
            true => all.append(&mut shown),
            false => shown.into_iter().chain(note).for_each(|line| print::text(&format!("{line}\n"))),
        }
    }
    if as_json {
        print::json(&print::document("prog tracelog", json!({ "lines": all, "lost": lost })));
    }
    Ok(())
}

fn open() -> Result<File, Failure> {
    let mut refused = None;
    for path in PATHS {
        match OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path) {
            Ok(file) => return Ok(file),
            // It is the machine that lacks a file system, not the command line that names a wrong file.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => refused = refused.or(Some(Failure::file(path, &e))),
        }
    }
    let failure = refused.unwrap_or_else(|| Failure::needs(format!("{}: no tracefs is mounted", PATHS[0])));
    Err(failure.hint("as root: mount -t tracefs nodev /sys/kernel/tracing"))
}
