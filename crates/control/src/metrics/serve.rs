//! The page over HTTP: one thread, many connections, none of which can hold up another.
//!
//! ```text
//! accepted ─> asking ──(the empty line)──> answering ──(all written)──> closed
//!                └───────────── 2 seconds, 8 KiB ────────────┘
//! ```
//!
//! Nothing waits for a peer: sockets are read and written as far as they go, and what has not come to its end in time is closed. When as
//! many are there as may be, the one that came first makes room.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a connection may take, from its beginning to its end.
const MOST: Duration = Duration::from_secs(2);
/// Longest request, bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Longest time between two looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// One connection.
struct Asker {
    socket: TcpStream,
    until: Instant,
    request: Vec<u8>,
    /// The answer, and how much of it has been written; `None`: the request is not complete.
    answer: Option<(Vec<u8>, usize)>,
}

/// Answers `GET /metrics` with the page until `over` says so.
pub(super) fn serve(listener: &TcpListener, mut page: impl FnMut() -> String, over: impl Fn() -> bool) {
    let mut askers: VecDeque<Asker> = VecDeque::new();
    while !over() {
        let until = askers.iter().map(|asker| asker.until).min();
        let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(askers.iter().map(|asker| PollFd::new(&asker.socket, asker.waits_for())));
        // (A millisecond more than none: not to look again and again until it is over.)
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) + 1_000_000 };
        if poll(&mut fds, Some(&time)).is_err() {
            // Interrupted, or the system has no memory for it now.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut turn = ready[1..].iter();
        let now = Instant::now();
        askers.retain_mut(|asker| {
            let goes_on = !turn.next().is_some_and(|ready| *ready) || asker.step(&mut page);
            goes_on && asker.until > now
        });
        if ready[0] {
            accept(listener, &mut askers);
        }
    }
}

fn accept(listener: &TcpListener, askers: &mut VecDeque<Asker>) {
    // As many as there is room for and no more: who is in gets its turn before others come.
    for _ in 0..CONNECTIONS {
        match listener.accept() {
            Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                if askers.len() == CONNECTIONS {
                    askers.pop_front();
                }
                askers.push_back(Asker { socket, until: Instant::now() + MOST, request: Vec::new(), answer: None });
            }
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(_) => {
                // Descriptors are short, or the peer has gone already.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
        }
    }
}

impl Asker {
    fn waits_for(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Goes as far as it goes without waiting; whether there is more to come.
    fn step(&mut self, page: &mut impl FnMut() -> String) -> bool {
        if self.answer.is_none() {
            match self.read() {
                Some(true) => self.answer = Some((answer(&self.request, page), 0)),
                Some(false) => return true,
                None => return false,
            }
        }
        let Some((bytes, written)) = &mut self.answer else { return true };
        loop {
            match self.socket.write(&bytes[*written..]) {
                Ok(0) => return false,
                Ok(len) => *written += len,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
            if *written == bytes.len() {
                return false;
            }
        }
    }

    /// Whether the request is complete; `None`: it never will be.
    fn read(&mut self) -> Option<bool> {
        let mut part = [0; 1024];
        loop {
            match self.socket.read(&mut part) {
                Ok(0) => return None,
                Ok(len) => {
                    // The line that ends it may have come in two parts.
                    let from = self.request.len().saturating_sub(3);
                    self.request.extend_from_slice(&part[..len]);
                    if self.request[from..].windows(4).any(|w| w == b"\r\n\r\n") {
                        return Some(true);
                    }
                    if self.request.len() > REQUEST_MAX {
                        return None;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

fn answer(request: &[u8], page: &mut impl FnMut() -> String) -> Vec<u8> {
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", page()),
        false => ("404 Not Found", "only GET /metrics is answered\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    format!("{head}Connection: close\r\n\r\n{body}").into_bytes()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A page longer than what a socket takes at once.
    const BODY: usize = 2 << 20;

    /// Ends the thread also when a test fails.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn served(test: impl FnOnce(SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (at, over) = (listener.local_addr().unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, || "x".repeat(BODY), || over.load(Ordering::SeqCst)));
            let _over = Over(&over);
            test(at);
        });
    }

    fn scrape(at: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        let _ = socket.read_to_string(&mut text);
        text
    }

    #[test]
    fn slow_ones_hold_nobody_up() {
        served(|at| {
            // Who says nothing, who says half of it, who never reads its answer: more of them than there are places.
            let mut slow: Vec<TcpStream> = (0..2 * CONNECTIONS).map(|_| TcpStream::connect(at).unwrap()).collect();
            for (n, socket) in slow.iter_mut().enumerate() {
                let _ = match n % 3 {
                    0 => Ok(()),
                    1 => socket.write_all(b"GET /metrics HTTP/1.1\r\n"),
                    _ => socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n"),
                };
            }
            let since = Instant::now();
            for _ in 0..3 {
                let text = scrape(at, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
                assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("xxx"), "{} bytes", text.len());
                assert_eq!(text.split_once("\r\n\r\n").unwrap().1.len(), BODY);
            }
            // One after the other the slow ones would take four minutes.
            assert!(since.elapsed() < 10 * MOST, "{:?}: nobody waits until a slow one is given up", since.elapsed());
        });
    }

    #[test]
    fn who_takes_too_long_or_asks_for_something_else_is_told_or_cut_off() {
        served(|at| {
            assert!(scrape(at, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
            assert!(scrape(at, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
            // Longer than a request may be, without an end.
            assert_eq!(scrape(at, &"x".repeat(REQUEST_MAX + 2048)), "");
            // In pieces, the end in two of them.
            let mut socket = TcpStream::connect(at).unwrap();
            for piece in ["GET /met", "rics HTTP/1.1\r\n\r", "\n"] {
                socket.write_all(piece.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut text = String::new();
            socket.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK"));
            // One that says nothing is closed.
            let mut silent = TcpStream::connect(at).unwrap();
            silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            // Not with one `read`: with a time limit it ends early when the process is stopped and goes on.
            assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0);
        });
    }
}
