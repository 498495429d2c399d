//! Writes `bpf/demo/mixed.pcapng`, or the file named as the only argument.

use std::process::ExitCode;

use xway_testkit::{capture, clang};

fn main() -> ExitCode {
    let path = std::env::args_os().nth(1).map_or_else(|| clang::repository().join("bpf/demo/mixed.pcapng"), Into::into);
    match std::fs::write(&path, capture::demo_capture()) {
        Ok(()) => {
            println!("{}: {} packets", path.display(), capture::demo_frames().len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::from(3)
        }
    }
}
