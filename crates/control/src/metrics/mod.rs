//! Counters for Prometheus: one page of text over HTTP, off unless an address is given.
//!
//! Only `GET /metrics` is answered; a request is bounded in size and time, and answered one after the other: a scraper asks every
//! few seconds. Format: the Prometheus text exposition format, version 0.0.4.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod page;

use crate::server::Shared;

pub use page::METRICS;
pub(crate) use page::page;

/// Answers until the service ends.
pub(crate) fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stop.asked() {
        match listener.accept() {
            // A scraper that misbehaves gets no page.
            Ok((mut socket, _)) => drop(answer(&mut socket, shared)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answer(socket: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    const MOST: Duration = Duration::from_secs(2);
    const REQUEST_MAX: usize = 8 << 10;
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(MOST))?;
    let until = Instant::now() + MOST;
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match socket.read(&mut part)? {
            0 => return Ok(()),
            len => request.extend_from_slice(&part[..len]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", shared.state().metrics()),
        false => ("404 Not Found", "only GET /metrics is answered\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    socket.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}
