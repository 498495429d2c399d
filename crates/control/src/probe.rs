//! Asking another executable something: bounded in time and in words, and with none of this process's descriptors.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// Most that is read of what an executable says, bytes; the rest is thrown away.
const WORDS_MAX: usize = 8 << 10;
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// What this process was told by whoever started it, and by the executable before it: it is not for others.
const OWN: [&str; 7] = [
    crate::handover::VARIABLE,
    crate::activate::HANDED,
    crate::upgrade::VARIABLE,
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
];

/// What an executable has answered.
#[derive(Debug)]
pub(crate) struct Said {
    /// It ended with 0.
    pub success: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// How it ended, in words.
    pub end: String,
}

impl Said {
    /// Why it refuses: its own words in one line, or how it ended when it said nothing.
    pub fn why(&self) -> String {
        let words = [&self.err, &self.out].into_iter().find(|text| !text.trim().is_empty());
        let lines = words.into_iter().flat_map(|text| text.lines()).map(str::trim).filter(|line| !line.is_empty());
        match lines.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => self.end.clone(),
            words => format!("{words} ({})", self.end),
        }
    }
}

/// What an executable says to these words. When it takes longer than `patience` it is killed, with what it has started.
///
/// # Errors
/// It cannot be run, or does not end in time.
pub(crate) fn ask<W: AsRef<OsStr>>(executable: &Path, words: &[W], patience: Duration) -> Result<Said, String> {
    let mut command = Command::new(executable);
    for name in OWN {
        command.env_remove(name);
    }
    let started = command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, which can be ended as a whole.
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|e| format!("it cannot be run: {e}"))?;
    listen(&mut child, Instant::now() + patience).map_err(|e| {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        let asked: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        format!("asked for {}: {}", asked.join(" "), e.unwrap_or_else(|| format!("no answer within {patience:?}")))
    })
}

/// What it says until it ends; `None` as an error: it did not end in time.
fn listen(child: &mut Child, until: Instant) -> Result<Said, Option<String>> {
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut said = [Vec::new(), Vec::new()];
    loop {
        // In this order: what it wrote before its end is in the pipes when the end is seen.
        let ended = child.try_wait().map_err(|e| Some(e.to_string()))?;
        let mut more = read(&mut out, &mut said[0]);
        more |= read(&mut err, &mut said[1]);
        match ended {
            _ if Instant::now() >= until => return Err(None),
            // (Somebody else may still hold the pipes: that one is not waited for.)
            Some(status) if !more => {
                let [out, err] = said.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                return Ok(Said { success: status.success(), out, err, end: status.to_string() });
            }
            None if !more => std::thread::sleep(LOOK),
            _ => {}
        }
    }
}

/// Reads what is there, without waiting; whether there was something.
fn read<P: Read + AsFd>(pipe: &mut Option<P>, said: &mut Vec<u8>) -> bool {
    let Some(open) = pipe else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if !matches!(poll(&mut [PollFd::new(&*open, PollFlags::IN)], Some(&now)), Ok(1..)) {
        return false;
    }
    let mut bytes = [0; 1024];
    match open.read(&mut bytes) {
        Ok(0) | Err(_) => {
            *pipe = None;
            false
        }
        Ok(len) => {
            let room = WORDS_MAX.saturating_sub(said.len());
            said.extend_from_slice(&bytes[..len.min(room)]);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: &str = "/bin/sh";
    const LONG: Duration = Duration::from_secs(120);

    fn shell(script: &str, patience: Duration) -> Result<Said, String> {
        ask(Path::new(SHELL), &["-c", script], patience)
    }

    #[test]
    fn an_answer_is_its_words_and_its_end() {
        let said = shell("echo yes; echo no >&2", LONG).unwrap();
        assert_eq!((said.success, said.out.as_str(), said.err.as_str()), (true, "yes\n", "no\n"));
        let said = shell("echo line 1 >&2; echo '  line 2' >&2; exit 7", LONG).unwrap();
        assert_eq!((said.success, said.why()), (false, "line 1; line 2 (exit status: 7)".to_owned()));
        assert_eq!(shell("exit 7", LONG).unwrap().why(), "exit status: 7");
        // More than a pipe holds, and more than is kept.
        let said = shell("head -c 300000 /dev/zero; echo end >&2", LONG).unwrap();
        assert_eq!((said.out.len(), said.err.as_str()), (WORDS_MAX, "end\n"));
        assert!(ask(Path::new("/no/such/file"), &["x"], LONG).unwrap_err().contains("cannot be run"));
    }

    #[test]
    fn who_does_not_end_is_ended_with_what_it_started() {
        let file = std::env::temp_dir().join(format!("xway-probe-{}", std::process::id()));
        let script = format!("sleep 1000 & echo $! >{}; wait", file.display());
        // Long enough for the shell to write its child's number.
        let mut patience = Duration::from_millis(200);
        let child = loop {
            let why = shell(&script, patience).unwrap_err();
            assert!(why.contains("no answer within"), "{why}");
            match std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
                Some(number) => break number,
                None => patience *= 2,
            }
        };
        std::fs::remove_file(file).unwrap();
        // Gone, or dead and not yet taken away by its new parent.
        let lives = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
        };
        let until = Instant::now() + LONG;
        while lives() {
            assert!(Instant::now() < until, "process {child} goes on");
            std::thread::sleep(LOOK);
        }
        // One that ends and leaves somebody behind at its pipes is not waited for.
        let said = shell("sleep 30 & echo $!", LONG).unwrap();
        let left = said.out.trim().parse::<i32>().ok().and_then(Pid::from_raw).unwrap();
        assert!(said.success);
        rustix::process::kill_process(left, Signal::KILL).unwrap();
    }
}
