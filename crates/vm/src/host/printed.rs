//! What programs print goes to standard error, and nobody waits for who reads it.
//!
//! The kernel's trace buffer overwrites what nobody has read. Here a worker that prints into a full pipe would stand still, with its
//! queues, because a terminal is stopped or a log is slow; so a line is written only when there is room, and those that were lost are
//! counted in the next one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2, write};

/// Lines for standard error that wait for nobody.
#[derive(Debug, Default)]
pub struct Printer {
    /// Lines that found no room since the last one that did.
    lost: AtomicU64,
}

/// What programs print.
static PROGRAMS: Printer = Printer::new();

/// Prints what a program says. Costs two system calls; a closed standard error is as a full one.
pub(super) fn line(text: &str) {
    PROGRAMS.print(|lost| {
        let note = match lost {
            0 => String::new(),
            n => format!("bpf_trace_printk: {n} lines before this one were lost: standard error had no room\n"),
        };
        format!("{note}bpf_trace_printk: {}\n", text.trim_end_matches('\n'))
    });
}

impl Printer {
    /// One that has lost nothing.
    pub const fn new() -> Printer {
        Printer { lost: AtomicU64::new(0) }
    }

    /// Writes what `make` gives, whole lines of 4,096 bytes at most, if standard error has room for it, and counts it as lost
    /// otherwise. `make` is told how many were lost since the last time that there was room.
    pub fn print(&self, make: impl FnOnce(u64) -> String) {
        self.put(std::io::stderr().as_fd(), make);
    }

    fn put(&self, to: BorrowedFd<'_>, make: impl FnOnce(u64) -> String) {
        let before = self.lost.swap(0, Ordering::Relaxed);
        if written(to, make(before).as_bytes()).is_err() {
            self.lost.fetch_add(before + 1, Ordering::Relaxed);
        }
    }
}

/// Writes a short line in one piece, or nothing.
fn written(to: BorrowedFd<'_>, line: &[u8]) -> Result<(), Errno> {
    let mut asked = [PollFd::new(&to, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut asked, Some(&now))? == 0 || !asked[0].revents().contains(PollFlags::OUT) {
        return Err(Errno::AGAIN);
    }
    // Another writer may have taken the room of a pipe since: the kernel is told not to wait, where it knows how (not on terminals
    // and not on every file system, where nobody takes room away either).
    match pwritev2(to, &[IoSlice::new(line)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write(to, line).map(drop),
        // A file that would have to allocate a block says so as a pipe does; its room is its own.
        Err(Errno::AGAIN) if !is_pipe(to) => write(to, line).map(drop),
        other => other.map(drop),
    }
}

fn is_pipe(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_full_pipe_loses_lines_and_stops_nobody() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let printer = Printer::new();
        let put = |text: &'static str| printer.put(writer.as_fd(), |lost| format!("{lost} {text}\n"));
        put("first");
        // Filled to the last byte, without waiting.
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while (&writer).write(&[b'.'; 512]).is_ok() {}
        while (&writer).write(b".").is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        for _ in 0..3 {
            put("nobody reads this");
        }
        assert_eq!(printer.lost.load(Ordering::Relaxed), 3);
        let mut text = vec![0; 8192];
        let mut got = reader.read(&mut text).unwrap();
        assert!(text.starts_with(b"0 first\n."));
        while got < 16_384 {
            got += reader.read(&mut text).unwrap();
        }
        put("last");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.trim_start_matches('.'), "3 last\n");
    }
}
