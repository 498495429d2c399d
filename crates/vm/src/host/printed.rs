//! What programs print goes to standard error, and nobody waits for who reads it.
//!
//! The kernel's trace buffer overwrites what nobody has read. Here a worker that prints into a full pipe would stand still, with its
//! queues, because a terminal is stopped or a log is slow; so a line is written only when there is room, and those that were lost are
//! counted in the next one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2, write};
use rustix::time::{ClockId, clock_gettime};

/// Lines for standard error that wait for nobody.
#[derive(Debug, Default)]
pub struct Printer {
    /// Lines that found no room since the last one that did.
    lost: AtomicU64,
}

/// What programs print.
static PROGRAMS: Printer = Printer::new();

fn note(lost: u64) -> String {
    format!("bpf_trace_printk: {lost} lines before this one were lost: standard error had no room\n")
}

/// Tells of lines that were lost last, which no later line has told of: for the end of whoever runs programs.
pub fn told_of_lost_lines() {
    PROGRAMS.rest(std::io::stderr().as_fd(), note);
}

/// Prints what a program says. Costs two system calls; a closed standard error is as a full one.
pub(super) fn line(text: &str) {
    PROGRAMS.print(|lost| {
        let note = if lost == 0 { String::new() } else { note(lost) };
        format!("{note}bpf_trace_printk: {}\n", text.trim_end_matches('\n'))
    });
    if HEARD.load(Ordering::Acquire) {
        tell(text.trim_end_matches('\n'));
    }
}

/// Whether anybody listens: nothing else is asked for a line where nobody does.
static HEARD: AtomicBool = AtomicBool::new(false);
static LISTENERS: Mutex<Vec<Ear>> = Mutex::new(Vec::new());
/// Lines that wait for one listener at most.
const WAITING: usize = 1024;

/// Where a line goes.
struct Ear {
    lines: SyncSender<String>,
    lost: Arc<AtomicU64>,
}

/// Hears what programs of this process print, beside standard error, from now on: as lines of the kernel's trace log, with who printed, on
/// which CPU and when. Who does not listen fast enough loses lines, and is told how many.
#[derive(Debug)]
pub struct Listener {
    lines: Receiver<String>,
    lost: Arc<AtomicU64>,
}

impl Listener {
    /// Begins to listen; it ends when this is dropped.
    pub fn new() -> Listener {
        let (sender, lines) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let mut all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Ear { lines: sender, lost: lost.clone() });
        HEARD.store(true, Ordering::Release);
        Listener { lines, lost }
    }

    /// What came since the last time, waiting for the first line at most this long, and how many lines were lost.
    pub fn next(&mut self, wait: Duration) -> (Vec<String>, u64) {
        let first = self.lines.recv_timeout(wait).ok();
        let lines = first.into_iter().chain(self.lines.try_iter().take(WAITING)).collect();
        (lines, self.lost.swap(0, Ordering::Relaxed))
    }
}

impl Default for Listener {
    fn default() -> Listener {
        Listener::new()
    }
}

/// Gives a line to everybody who listens, and forgets those who do no more.
fn tell(text: &str) {
    let line = traced(text);
    let mut all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|ear| match ear.lines.try_send(line.clone()) {
        Ok(()) => true,
        Err(TrySendError::Full(_)) => {
            ear.lost.fetch_add(1, Ordering::Relaxed);
            true
        }
        Err(TrySendError::Disconnected(_)) => false,
    });
    HEARD.store(!all.is_empty(), Ordering::Release);
}

/// A line as the kernel's trace log has it: task, CPU, flags (there are none here), seconds since the machine started, function, text.
fn traced(text: &str) -> String {
    let thread = std::thread::current();
    let now = clock_gettime(ClockId::Boottime);
    let (name, number) = (thread.name().unwrap_or("xway"), rustix::thread::gettid());
    let micros = now.tv_nsec / 1000;
    let cpu = rustix::thread::sched_getcpu();
    format!("{name:>16}-{number:<7} [{cpu:03}] ..... {:5}.{micros:06}: bpf_trace_printk: {text}", now.tv_sec)
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

    /// Writes what `make` gives of those that were lost since the last line, if there are some.
    fn rest(&self, to: BorrowedFd<'_>, make: impl FnOnce(u64) -> String) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && written(to, make(lost).as_bytes()).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn put(&self, to: BorrowedFd<'_>, make: impl FnOnce(u64) -> String) {
        let before = self.lost.swap(0, Ordering::Relaxed);
        if written(to, make(before).as_bytes()).is_err() {
            self.lost.fetch_add(before + 1, Ordering::Relaxed);
        }
    }
}

/// How often a line is tried again that found no room though there was some a moment ago: others write at the same time.
const TRIES: usize = 16;

/// Writes a short line in one piece, or nothing.
fn written(to: BorrowedFd<'_>, line: &[u8]) -> Result<(), Errno> {
    let mut tries = 0;
    let mut left = line;
    while !left.is_empty() {
        match some_of(to, left) {
            Ok(count) => left = &left[count..],
            Err(Errno::INTR) => {}
            // The rest of a line that has begun is no other line's.
            Err(Errno::AGAIN) if left.len() < line.len() => left = &left[whole(write(to, left))?..],
            Err(Errno::AGAIN) if tries < TRIES && has_room(to)? => tries += 1,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What was written; nothing where a signal came first.
fn whole(written: Result<usize, Errno>) -> Result<usize, Errno> {
    if written == Err(Errno::INTR) { Ok(0) } else { written }
}

/// Whether something can be written now.
fn has_room(to: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut asked = [PollFd::new(&to, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut asked, Some(&now))? > 0 && asked[0].revents().contains(PollFlags::OUT))
}

fn some_of(to: BorrowedFd<'_>, line: &[u8]) -> Result<usize, Errno> {
    if !has_room(to)? {
        return Err(Errno::AGAIN);
    }
    // Another writer may have taken the room of a pipe since: the kernel is told not to wait, where it knows how (not on terminals
    // and not on every file system, where nobody takes room away either).
    match pwritev2(to, &[IoSlice::new(line)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write(to, line),
        // A file that would have to allocate a block says so as a pipe does; its room is its own.
        Err(Errno::AGAIN) if !is_pipe(to) => write(to, line),
        other => other,
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
    fn listeners_hear_whole_lines_and_what_they_lost() {
        tell("before anybody listens");
        let (mut first, mut slow) = (Listener::new(), Listener::new());
        line("hello 7\n");
        // (Other tests of this process may print as well.)
        let mine = |l: &&String| l.ends_with(": bpf_trace_printk: hello 7");
        let heard = loop {
            let (lines, lost) = first.next(Duration::from_secs(1));
            assert_eq!(lost, 0);
            if let Some(line) = lines.iter().find(mine) {
                break line.clone();
            }
        };
        let [cpu, flags, .., "hello", "7"] = heard.split_whitespace().collect::<Vec<_>>()[1..] else {
            panic!("{heard}")
        };
        assert!(cpu.starts_with('[') && flags == ".....", "{heard}");
        (0..WAITING).for_each(|n| tell(&format!("more {n}")));
        let (lines, lost) = slow.next(Duration::from_secs(20));
        assert!(
            lines.len() == WAITING && lines.iter().filter(mine).count() == 1 && lost >= 1,
            "{} {lost}",
            lines.len()
        );
        drop((first, slow));
        tell("nobody");
    }

    /// Several threads at one pipe: no line is broken, and each is there or counted.
    #[test]
    fn lines_of_many_threads_are_whole_and_all_there() {
        const EACH: u64 = 2000;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let printer = Printer::new();
        let reads = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text).unwrap()
        });
        std::thread::scope(|scope| {
            let writes = |who: u64| {
                let (printer, writer) = (&printer, &writer);
                move || {
                    for n in 0..EACH {
                        printer.put(writer.as_fd(), |lost| {
                            let note = if lost > 0 { format!("lost {lost}\n") } else { String::new() };
                            format!("{note}{who} {n} {}\n", "x".repeat(100))
                        });
                    }
                }
            };
            [1, 2, 3].map(|who| scope.spawn(writes(who))).into_iter().for_each(|thread| thread.join().unwrap());
        });
        printer.rest(writer.as_fd(), |lost| format!("lost {lost}\n"));
        let left = printer.lost.load(Ordering::Relaxed);
        drop(writer);
        let text = format!("{}lost {left}\n", reads.join().unwrap());
        let (lost, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("lost "));
        assert!(lines.iter().all(|line| line.ends_with(&"x".repeat(100)) && line.len() < 110), "a broken line");
        let lost: u64 = lost.iter().map(|line| line[5..].parse::<u64>().unwrap()).sum();
        assert_eq!(lines.len() as u64 + lost, 3 * EACH);
    }

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
        printer.rest(writer.as_fd(), |_| unreachable!("the last line has told of them"));
        printer.lost.store(2, Ordering::Relaxed);
        printer.rest(writer.as_fd(), |lost| format!("{lost} more\n"));
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.trim_start_matches('.'), "3 last\n2 more\n");
    }
}
