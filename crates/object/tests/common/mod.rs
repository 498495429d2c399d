//! libbpf as a second opinion: objects loaded into the running kernel by bpftool.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use xway_object::Program;

/// An object that libbpf has loaded. Its programs are pinned while this lives.
pub struct Loaded(PathBuf);

impl Loaded {
    /// Loads all programs of a file; what libbpf says when it refuses.
    pub fn file(path: &Path) -> Result<Loaded, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let pins = Loaded(PathBuf::from(format!("/sys/fs/bpf/xway-object-{}-{n}", std::process::id())));
        let run = Command::new("bpftool").args(["-d", "prog", "loadall"]).arg(path).arg(&pins.0).output().unwrap();
        let log = String::from_utf8_lossy(&run.stderr);
        if run.status.success() { Ok(pins) } else { Err(log[log.len().saturating_sub(4000)..].to_owned()) }
    }

    /// What the kernel says of a program, as JSON. The kernel's tag covers every instruction after linking; it must be ours.
    pub fn program(&self, p: &Program) -> String {
        let shown = show(&["prog", "show", "pinned", &self.0.join(&p.name).to_string_lossy()]);
        let hex = |tag: [u8; 8]| tag.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let tag = text_field(&shown, "tag").unwrap_or_else(|| panic!("{}: {shown}", p.name));
        let (ours, before) = (hex(p.tag()), hex(p.tag_sha1()));
        assert!(tag == ours || tag == before, "{} has tag {ours}, through libbpf {tag}", p.name);
        shown
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What bpftool prints, as JSON.
pub fn show(args: &[&str]) -> String {
    let out = Command::new("bpftool").arg("-j").args(args).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// A text in a flat JSON object.
pub fn text_field(json: &str, name: &str) -> Option<String> {
    let rest = json.split_once(&format!("\"{name}\":\""))?.1;
    Some(rest.split('"').next()?.to_owned())
}
