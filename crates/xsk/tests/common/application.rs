//! Applications in processes of their own, which can be killed: the test binary again, that runs one of its tests.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use xway_xsk_client::Socket;

/// Starts one: this binary's test `test`, which finds these words and the server's path with [`words`].
pub fn start(test: &str, path: &Path, words: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("XWAY_TEST_APPLICATION", words)
        .env("XWAY_TEST_SERVER", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// In such a process: what it was started with, and the server's path. `None` where the test is run with all the others.
pub fn words() -> Option<(String, PathBuf)> {
    let words = std::env::var("XWAY_TEST_APPLICATION").ok()?;
    Some((words, std::env::var_os("XWAY_TEST_SERVER")?.into()))
}

/// Ways of being an application.
pub const WAYS: [&str; 3] = ["works", "keeps", "stops"];

/// Is one, until then.
pub fn live(socket: &mut Socket, way: &str, until: Instant) {
    let mut kept = Vec::new();
    while Instant::now() < until {
        socket.fill(32);
        match way {
            // Is in the middle of everything.
            "works" => {
                while let Some(packet) = socket.receive() {
                    let _ = socket.send(packet);
                }
                socket.flush();
            }
            // Holds everything that it gets, and gives nothing back.
            "keeps" => kept.extend(socket.receive()),
            _ => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}
