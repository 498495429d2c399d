//! A second process that gives an attached program its place back when the tool that stands in front of it is killed.
//!
//! It holds the program, so that it lives, and waits for the end of a pipe whose other end only the tool has.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use xway_hook::{AttachRequest, Hook, Kernel, Mode, ProgId, Replace};
use xway_kernel::{Device, KernelProg, XdpMode, device_by_name};

/// The word by which a tool calls itself for this.
pub const WORD: &str = "--put-back-when-killed";

/// It waits as long as this lives. Drop it when the program has its place back.
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it: `old` gets its place on the interface back from `ours`.
    ///
    /// # Errors
    /// No process could be started, or it could not hold the program.
    pub fn start(on: &Device, ours: u32, old: u32) -> std::io::Result<Guard> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("xdpdump")
            .args([WORD, &on.name, &ours.to_string(), &old.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the tool.
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let guard = Guard { child };
        match line.as_str() {
            "ready\n" => Ok(guard),
            _ => Err(std::io::Error::other("it did not start")),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The second process: interface, number of the program in front, number of the one behind it.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().filter_map(|a| a.to_str()).collect();
    let [interface, ours, old] = words[..] else { return ExitCode::FAILURE };
    let (Ok(ours), Ok(old)) = (ours.parse(), old.parse()) else { return ExitCode::FAILURE };
    let Ok(_held) = KernelProg::by_id(old) else { return ExitCode::FAILURE };
    println!("ready");
    // The tool writes nothing: this ends when the tool does.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let there = device_by_name(interface).ok();
    let found = there.as_ref().and_then(|d| d.attached().find(|(_, id)| *id == ours));
    // It has put everything back itself, or somebody else has changed what is there.
    let Some((mode, _)) = found else { return ExitCode::SUCCESS };
    let mode = if mode == XdpMode::Generic { Mode::Generic } else { Mode::Native };
    let request = AttachRequest { mode, replace: Replace::Id(ours), ..AttachRequest::new(interface, ProgId(old)) };
    match Kernel::new().attach(&request) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
