//! A service that runs while a test does, and messages to it without the client.
#![allow(dead_code)] // Each test file uses its part.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use xway_control::{Config, LogFormat, Server, Service, wire};
use xway_engine::Stop;
use xway_object::LoadOptions;

/// A running service in a directory of its own.
pub struct Running {
    pub dir: PathBuf,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn dir(label: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xway-service-{label}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    pub fn start(dir: &Path, text: &str) -> Running {
        Running::start_with(dir, text, |_| {})
    }

    /// With something that no file says.
    pub fn start_with(dir: &Path, text: &str, change: impl FnOnce(&mut Config)) -> Running {
        let mut config = Config::parse(text).unwrap();
        change(&mut config);
        config.service.socket = dir.join("control.sock");
        config.service.state = Some(dir.join("state"));
        config.service.log = LogFormat::Off;
        let stop = Stop::new().unwrap();
        let server = Server::start(&config, text, LoadOptions::default(), &stop).unwrap();
        assert_eq!(server.notes(), [""; 0]);
        let thread = std::thread::spawn(move || drop(server.run().unwrap()));
        Running { dir: dir.to_owned(), stop, thread: Some(thread) }
    }

    pub fn connect(&self) -> Service {
        Service::connect(&self.dir.join("control.sock")).unwrap()
    }

    pub fn raw(&self) -> UnixStream {
        let socket = UnixStream::connect(self.dir.join("control.sock")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    pub fn end(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The next answer.
pub fn answer(socket: &mut UnixStream) -> Value {
    let mut header = [0; wire::HEADER];
    socket.read_exact(&mut header).unwrap();
    let mut body = vec![0; wire::length(&header, wire::MESSAGE_MAX).unwrap()];
    socket.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// A request, and its answer.
pub fn ask(socket: &mut UnixStream, request: &Value) -> Value {
    wire::send(socket, request).unwrap();
    answer(socket)
}

/// A pipe that nobody has at its other end: who opens it waits.
pub fn pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
}

/// Waits until it is so.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
