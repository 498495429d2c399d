//! Messages on a socket: a header and one JSON object, in both directions.
//!
//! ```text
//!  0        4      6      8
//!  | length | vers | zero | JSON object of `length` bytes |      numbers little-endian
//! ```
//!
//! Reading is bounded in size and in time: a peer that sends nothing, sends slowly or lies about a length costs one thread for
//! at most the deadline, and never more memory than the limit.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use xway_door::Pulse;

/// The version that is spoken.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER: usize = 8;
/// Longest message unless told otherwise, bytes.
pub const MESSAGE_MAX: usize = 64 << 20;
/// Depth of the JSON that is taken; objects of messages have five.
const DEPTH_MAX: usize = 32;

/// Why a message was not understood.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other end has closed the socket between two messages.
    #[error("the other end has closed the connection")]
    Closed,
    /// The socket failed, or the message ended too early.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// It took too long.
    #[error("a message was not complete within {0:?}")]
    Slow(Duration),
    /// The header is none.
    #[error("field {field}: {why}")]
    Header {
        /// Its field.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The body is no JSON, or not the object that was expected.
    #[error("{0}")]
    Body(String),
}

/// Writes one message.
pub fn send(socket: &mut impl Write, body: &impl Serialize) -> Result<(), WireError> {
    let body = serde_json::to_vec(body).map_err(|e| WireError::Body(e.to_string()))?;
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&body);
    Ok(socket.write_all(&out)?)
}

/// Reads one message: waits up to `idle` for its first byte and up to `most` for the rest.
pub fn receive(socket: &UnixStream, max: usize, idle: Option<Duration>, most: Duration) -> Result<Vec<u8>, WireError> {
    receive_from_others(socket, max, idle, most, None)
}

/// The same of somebody who may send descriptors along, which makes receiving last: meanwhile the pulse is exposed.
pub(crate) fn receive_from_others(
    socket: &UnixStream,
    max: usize,
    idle: Option<Duration>,
    most: Duration,
    pulse: Option<&Pulse>,
) -> Result<Vec<u8>, WireError> {
    let mut header = [0; HEADER];
    let idle = idle.map(|idle| (Instant::now() + idle, idle));
    let first = match read(socket, &mut header, idle, pulse)? {
        0 => return Err(WireError::Closed),
        len => len,
    };
    let deadline = (Instant::now() + most, most);
    fill(socket, &mut header[first..], deadline, pulse)?;
    let len = length(&header, max)?;
    // Memory grows with what has come, not with what was announced.
    let mut body = Vec::new();
    while body.len() < len {
        let at = body.len();
        body.resize(len.min(at + (1 << 20)), 0);
        fill(socket, &mut body[at..], deadline, pulse)?;
    }
    Ok(body)
}

/// When something must be there, and how long that was at the beginning.
type Deadline = (Instant, Duration);

/// The length that a header announces, if it is one that is understood.
pub fn length(header: &[u8; HEADER], max: usize) -> Result<usize, WireError> {
    let [a, b, c, d, v, w, x, y] = *header;
    let (len, version) = (u32::from_le_bytes([a, b, c, d]) as usize, u16::from_le_bytes([v, w]));
    let refuse = |field, why| Err(WireError::Header { field, why });
    match (version, [x, y]) {
        (VERSION, [0, 0]) if len <= max => Ok(len),
        (VERSION, [0, 0]) => refuse("length", format!("{len} bytes; at most {max} are taken")),
        (VERSION, _) => refuse("reserved", "it is not zero".into()),
        _ => refuse("version", format!("{version}; this end speaks {VERSION}")),
    }
}

fn fill(socket: &UnixStream, mut out: &mut [u8], deadline: Deadline, pulse: Option<&Pulse>) -> Result<(), WireError> {
    while !out.is_empty() {
        match read(socket, out, Some(deadline), pulse)? {
            0 => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            len => out = &mut out[len..],
        }
    }
    Ok(())
}

/// Waits for bytes, and takes what is there; 0: the end.
fn read(
    socket: &UnixStream,
    out: &mut [u8],
    deadline: Option<Deadline>,
    pulse: Option<&Pulse>,
) -> Result<usize, WireError> {
    use rustix::io::Errno;
    loop {
        pulse.inspect(|pulse| pulse.expose());
        let got = recv(socket, &mut *out, RecvFlags::DONTWAIT);
        pulse.inspect(|pulse| pulse.cover());
        match got {
            Ok((len, _)) => return Ok(len),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {}
            Err(e) => return Err(WireError::Io(e.into())),
        }
        let left = deadline.map(|(until, most)| (until.saturating_duration_since(Instant::now()), most));
        if let Some((_, most)) = left.filter(|(left, _)| left.is_zero()) {
            return Err(WireError::Slow(most));
        }
        let left = left.and_then(|(left, _)| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(WireError::Io(e.into())),
        }
    }
}

/// Reads an object of a known shape. What the shape does not have is refused by its path, unless it is zero (`0`, `false`,
/// `null`, empty).
pub fn decode<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, WireError> {
    let given: Value = serde_json::from_slice(bytes).map_err(|e| WireError::Body(format!("not JSON: {e}")))?;
    if depth(&given) > DEPTH_MAX {
        return Err(WireError::Body(format!("nested deeper than {DEPTH_MAX}")));
    }
    let read: T = T::deserialize(&given).map_err(|e| WireError::Body(e.to_string()))?;
    let known = serde_json::to_value(&read).map_err(|e| WireError::Body(e.to_string()))?;
    match unknown(&given, &known, &mut Vec::new()) {
        None => Ok(read),
        Some(path) => Err(WireError::Body(format!("unknown field {path}: it is not zero, so it asks for something"))),
    }
}

fn depth(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => all.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Path of the first field that is given, not known and not zero.
fn unknown(given: &Value, known: &Value, path: &mut Vec<String>) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            path.push(name.clone());
            let found = match known.get(name) {
                Some(known) => unknown(value, known, path),
                None if zero(value) => None,
                None => Some(path.join(".")),
            };
            path.pop();
            found
        }),
        (Value::Array(given), Value::Array(known)) => given.iter().zip(known).enumerate().find_map(|(at, (g, k))| {
            path.push(at.to_string());
            let found = unknown(g, k, path);
            path.pop();
            found
        }),
        _ => None,
    }
}

fn zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.values().all(zero),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Shape {
        id: u32,
        #[serde(default)]
        name: Option<String>,
        parts: Vec<Part>,
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Part {
        size: u32,
    }

    #[test]
    fn an_unknown_tail_must_be_zero() {
        let read = |v: Value| decode::<Shape>(v.to_string().as_bytes()).map_err(|e| e.to_string());
        let plain = json!({"id": 1, "parts": [{"size": 2}]});
        assert_eq!(read(plain), Ok(Shape { id: 1, name: None, parts: vec![Part { size: 2 }] }));
        for harmless in [json!(0), json!(null), json!(""), json!([]), json!({"a": 0})] {
            assert!(read(json!({"id": 1, "parts": [], "later": harmless})).is_ok());
        }
        let refused = read(json!({"id": 1, "parts": [], "later": 1})).unwrap_err();
        assert!(refused.contains("unknown field later"), "{refused}");
        let refused = read(json!({"id": 1, "parts": [{"size": 1}, {"size": 1, "colour": "red"}]})).unwrap_err();
        assert!(refused.contains("unknown field parts.1.colour"), "{refused}");
        assert!(read(json!({"parts": []})).unwrap_err().contains("id"));
        assert!(decode::<Shape>(b"{").is_err() && decode::<Shape>(&[0xff; 9]).is_err());
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(decode::<Value>(deep.as_bytes()).is_err());
    }

    #[test]
    fn headers_are_checked_field_by_field() {
        let header = |len: u32, version: u16, rest: u16| {
            let mut out = [0; HEADER];
            out[..4].copy_from_slice(&len.to_le_bytes());
            out[4..6].copy_from_slice(&version.to_le_bytes());
            out[6..].copy_from_slice(&rest.to_le_bytes());
            out
        };
        assert_eq!(length(&header(5, VERSION, 0), 10).unwrap(), 5);
        for (bytes, field) in
            [(header(11, VERSION, 0), "length"), (header(1, 9, 0), "version"), (header(1, VERSION, 1), "reserved")]
        {
            assert!(length(&bytes, 10).unwrap_err().to_string().contains(field));
        }
    }

    #[test]
    fn a_peer_that_stops_in_the_middle_costs_the_deadline() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[4, 0, 0, 0, 1, 0, 0, 0, b'{']).unwrap();
        let most = Duration::from_millis(30);
        assert!(matches!(receive(&near, 100, None, most), Err(WireError::Slow(_))));
        drop(far);
        assert!(matches!(receive(&near, 100, None, most), Err(WireError::Closed)));
    }
}
