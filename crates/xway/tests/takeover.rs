//! A service manager opens the socket; what is said in the log.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use common::{Dir, xway};
use serde_json::{Value, json};
use xway_control::Service;

#[test]
fn a_service_manager_opens_the_socket() {
    let dir = Dir::new();
    let socket = dir.path("managed.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // Somebody connects before there is a service, and waits.
    let early = {
        let socket = socket.clone();
        std::thread::spawn(move || Service::connect(&socket).unwrap().ports().unwrap())
    };
    let binary = env!("CARGO_BIN_EXE_xway");
    let script = format!("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {binary} up --log json");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening at {}\n", socket.display()));
    assert_eq!(early.join().unwrap(), [""; 0]);
    let at = ["--socket", socket.to_str().unwrap()];
    xway(&[&["unload", "nowhere", "-a", "--hook", "user"], &at[..]].concat()).exits(1);
    xway(&[&["down"], &at[..]].concat());
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success());
    // A line for each thing that happened, each a document.
    let said: Vec<Value> =
        String::from_utf8(done.stderr).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let events: Vec<&str> = said.iter().map(|v| v["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "refused", "done", "ended"], "{said:?}");
    assert_eq!((&said[1]["request"], &said[1]["level"]), (&json!("detach"), &json!("warning")));
    assert!(said.iter().all(|v| v["time"].as_f64().is_some_and(|t| t > 1e9)), "{said:?}");
    // The file is the manager's.
    assert!(socket.exists());
}

#[test]
fn a_descriptor_that_is_no_socket_is_told() {
    let script = format!("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {} up", env!("CARGO_BIN_EXE_xway"));
    let done = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("LISTEN_FDS: descriptor 3 is not a UNIX socket"), "{said}");
    assert_eq!(done.status.code(), Some(3));
}

#[test]
fn the_units_of_systemd_start_what_there_is() {
    let unit = |name: &str| {
        std::fs::read_to_string(xway_testkit::clang::repository().join("packaging/systemd").join(name)).unwrap()
    };
    let (service, socket) = (unit("xway.service"), unit("xway.socket"));
    let line = service.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/bin/xway ")).expect("what is started");
    let help = xway(&["up", "--help"]).exits(0).out;
    assert!(line.starts_with("up "), "{line}");
    for flag in line.split_whitespace().filter(|w| w.starts_with('-')) {
        assert!(help.contains(flag), "{flag} is no option of xway up");
    }
    assert!(service.contains("Type=notify"));
    assert!(socket.contains(&format!("ListenStream={}", xway_control::SOCKET)) && socket.contains("SocketMode=0660"));
    let reload = service.lines().find_map(|l| l.strip_prefix("ExecReload=/usr/bin/xway ")).expect("what reloads");
    assert!(reload.starts_with("apply "), "{reload}");
}
