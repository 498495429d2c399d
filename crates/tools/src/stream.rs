//! One TCP stream, opened by an ordinary socket and then filled in the kernel, as fast as the receiver's window allows.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use xway_abi::Errno;
use xway_kernel::{Device, KernelError, KernelObject, XdpLink, XdpMode};
use xway_object::Object;

use crate::packets::{Mac, checksum};
use crate::watch::{Counts, Scope, Watch};
use crate::{ToolError, objects};

/// Bytes of a segment's content: what fits the usual link with its headers.
const CONTENT: usize = 1400;
/// Segments that the kernel makes in one call: few, because a full window makes it spin.
const CHUNK: u32 = 256;
const BATCH: u32 = 16;
const ETHERNET: usize = 14;
const IPV6: usize = 40;
const TCP: usize = 20;

/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(20);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Interface that leads to the receiver.
    pub device: Device,
    /// Where the program runs that takes the receiver's answers.
    pub mode: XdpMode,
    /// The receiver.
    pub to: SocketAddrV6,
    /// Longest wait for the connection.
    pub patience: Duration,
}

/// How the stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Segments that were made.
    pub sent: u64,
    /// How often what was behind the last acknowledged byte went out once more.
    pub again: u64,
    /// Bytes that the receiver has acknowledged, counted modulo 2^32.
    pub acked: u32,
    /// The receiver has closed the connection.
    pub over: bool,
}

/// A stream that lives until this is dropped.
#[derive(Debug)]
pub struct Stream {
    object: Object,
    kernel: KernelObject,
    packet: Vec<u8>,
    own: (Ipv6Addr, u16),
    watch: Watch,
    first: u32,
    _link: XdpLink,
    _socket: OwnedFd,
}

/// `struct state` of bpf/tools/stream.bpf.c, as bytes.
struct Raw(Vec<u8>);

impl Raw {
    const BYTES: usize = 144;
    const PHASE: usize = 0;
    const OWN_PORT: usize = 4;
    const NEXT: usize = 8;
    const ACKED: usize = 12;
    const THEIRS: usize = 16;
    const SENT: usize = 40;
    const AGAIN: usize = 48;
    const TO: usize = 56;
    const FROM: usize = 62;
    const PEER: usize = 68;
    const OWN: usize = 84;
    const SCALE: usize = 24;
    const OPTION_BYTES: usize = 100;
    const OPTIONS: usize = 104;

    fn word(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
    }

    fn long(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N])
    }
}

impl Stream {
    /// Connects, and learns what a segment needs.
    ///
    /// # Errors
    /// Built without clang; what the kernel refuses; nobody answers at the other end in time.
    pub fn open(setup: &Setup) -> Result<Stream, ToolError> {
        let port = u32::from(setup.to.port().to_be());
        let object = objects::object("stream", &[setup.device.ifindex, CONTENT as u32, port])?;
        let kernel = KernelObject::load(&object)?;
        let refused = |errno| KernelError::Map { name: "stream".into(), step: "writing what is known", errno };
        let map = objects::map(&kernel, &object, "stream")?;
        let program = objects::program(&kernel, &object, "stream_in")?;
        let link = XdpLink::attach(program, setup.device.ifindex, setup.mode)?;
        let (socket, own_port) = connect(setup, |own_port| {
            let mut raw = vec![0; Raw::BYTES];
            raw[Raw::OWN_PORT..][..4].copy_from_slice(&u32::from(own_port.to_be()).to_ne_bytes());
            raw[Raw::PEER..][..16].copy_from_slice(&setup.to.ip().octets());
            map.update(&[0; 4], &raw, 0).map_err(refused)
        })?;
        let raw = Raw(map.get(&[0; 4]).map_err(refused)?);
        if raw.word(Raw::PHASE) != 1 {
            let message = format!("the connection does not come in on {}", setup.device.name);
            return Err(ToolError::Request(message));
        }
        let own = (Ipv6Addr::from(raw.bytes::<16>(Raw::OWN)), own_port);
        let packet = segment(&raw, setup, own);
        let first = raw.word(Raw::ACKED);
        let known = raw.0.get(Raw::OPTIONS..Raw::OPTIONS + raw.word(Raw::OPTION_BYTES) as usize).unwrap_or_default();
        let scale = window_scale(known);
        let mut started = raw.0;
        started[Raw::SCALE..][..4].copy_from_slice(&scale.to_ne_bytes());
        started[Raw::PHASE..][..4].copy_from_slice(&2u32.to_ne_bytes());
        map.update(&[0; 4], &started, 0).map_err(refused)?;
        let watch = Watch::open(&Scope { devices: vec![setup.device.ifindex], ..Scope::default() })?;
        Ok(Stream { object, kernel, packet, own, watch, first, _link: link, _socket: socket })
    }

    /// This end.
    pub fn own(&self) -> (Ipv6Addr, u16) {
        self.own
    }

    /// Sends until `count` segments are made, the receiver gives up, or `stop` says so.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn send(&self, count: Option<u64>, stop: &dyn Fn() -> bool) -> Result<(), ToolError> {
        let program = objects::program(&self.kernel, &self.object, "stream_out")?;
        let mut before = self.state()?.sent;
        while !stop() {
            let left = count.map_or(u64::from(CHUNK), |count| count.saturating_sub(before));
            if left == 0 {
                break;
            }
            let now = left.min(CHUNK.into()) as u32;
            match program.live_run(&self.packet, now, BATCH.min(now), 0) {
                Ok(()) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(KernelError::Call { step: "making segments", errno }.into()),
            }
            let state = self.state()?;
            if state.over {
                break;
            }
            if state.sent == before {
                // The window is full: the answers take a moment.
                std::thread::sleep(Duration::from_millis(1));
            }
            before = state.sent;
        }
        Ok(())
    }

    /// How it is.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn state(&self) -> Result<State, ToolError> {
        let map = objects::map(&self.kernel, &self.object, "stream")?;
        let refused = |errno| KernelError::Map { name: "stream".into(), step: "reading it", errno };
        let raw = Raw(map.get(&[0; 4]).map_err(refused)?);
        Ok(State {
            sent: raw.long(Raw::SENT),
            again: raw.long(Raw::AGAIN),
            acked: raw.word(Raw::ACKED).wrapping_sub(self.first),
            over: raw.word(Raw::PHASE) == 3,
        })
    }

    /// What became of the segments.
    ///
    /// # Errors
    /// As [`Watch::read`].
    pub fn counts(&self) -> Result<Counts, ToolError> {
        self.watch.read()
    }
}

fn system(step: &'static str) -> impl Fn(rustix::io::Errno) -> ToolError {
    move |e| KernelError::Call { step, errno: Errno(e.raw_os_error()) }.into()
}

/// A socket with a port of its own.
fn new_socket() -> Result<OwnedFd, ToolError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None);
    let socket = socket.map_err(system("making a socket"))?;
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
    rustix::net::bind(&socket, &any).map_err(system("binding a socket"))?;
    Ok(socket)
}

fn local(socket: &OwnedFd) -> Result<SocketAddrV6, ToolError> {
    let name = rustix::net::getsockname(socket).map_err(system("asking for a socket's address"))?;
    SocketAddrV6::try_from(name).map_err(system("asking for a socket's address"))
}

/// Waits for the connection; `known` hears the own port before it is used. A receiver that does not listen yet refuses: it is asked
/// again, from another port, while there is patience.
fn connect(setup: &Setup, known: impl Fn(u16) -> Result<(), KernelError>) -> Result<(OwnedFd, u16), ToolError> {
    // An address that is valid on one link only needs to know which.
    let scope = if setup.to.ip().is_unicast_link_local() { setup.device.ifindex } else { setup.to.scope_id() };
    let to = SocketAddrV6::new(*setup.to.ip(), setup.to.port(), 0, scope);
    let end = Instant::now() + setup.patience;
    loop {
        let socket = new_socket()?;
        let own = local(&socket)?.port();
        known(own)?;
        match attempt(&socket, &to, end.saturating_duration_since(Instant::now()))? {
            Ok(()) => return Ok((socket, own)),
            Err(Errno::ECONNREFUSED) if Instant::now() + AGAIN < end => std::thread::sleep(AGAIN),
            Err(errno) => {
                let (ip, port) = (to.ip(), to.port());
                return Err(ToolError::Request(format!("Connect to {ip} port {port} failed: {}", errno.text())));
            }
        }
    }
}

/// One handshake, and how it ended.
fn attempt(socket: &OwnedFd, to: &SocketAddrV6, patience: Duration) -> Result<Result<(), Errno>, ToolError> {
    match rustix::net::connect(socket, to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(e) => return Ok(Err(Errno(e.raw_os_error()))),
    }
    let most = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let ready =
        poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&most)).map_err(system("waiting for a connection"))?;
    if ready == 0 {
        return Ok(Err(Errno::ETIMEDOUT));
    }
    let end = sockopt::socket_error(socket).map_err(system("asking for a socket's error"))?;
    Ok(end.map_err(|e| Errno(e.raw_os_error())))
}

/// The segment that is sent again and again; its sequence number changes on the way.
fn segment(raw: &Raw, setup: &Setup, own: (Ipv6Addr, u16)) -> Vec<u8> {
    let (to, from) = (Mac(raw.bytes(Raw::TO)), Mac(raw.bytes(Raw::FROM)));
    let length = ((TCP + CONTENT) as u16).to_be_bytes();
    let mut out = Vec::with_capacity(ETHERNET + IPV6 + TCP + CONTENT);
    out.extend(to.0);
    out.extend(from.0);
    out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    out.extend(length);
    out.extend([6, 64]);
    out.extend(own.0.octets());
    out.extend(setup.to.ip().octets());
    let start = out.len();
    out.extend(own.1.to_be_bytes());
    out.extend(setup.to.port().to_be_bytes());
    out.extend(raw.word(Raw::NEXT).to_be_bytes());
    out.extend(raw.word(Raw::THEIRS).to_be_bytes());
    // Five words of header; PSH and ACK; a window; no urgent data.
    out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    out.resize(start + TCP + CONTENT, 0);
    let pseudo = [&own.0.octets()[..], &setup.to.ip().octets(), &[0, 6], &length].concat();
    let sum = checksum(&[&pseudo, &out[start..]]);
    out[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    out
}

/// By how many bits a receiver's windows are shifted, from the options of its SYN (RFC 7323); without the option by none.
fn window_scale(mut options: &[u8]) -> u32 {
    while let Some((kind, rest)) = options.split_first() {
        match (kind, rest.first().copied().map(usize::from)) {
            (0, _) => break,
            (1, _) => options = rest,
            (3, Some(3)) => return rest.get(1).map_or(0, |shift| u32::from(*shift).min(14)),
            (_, Some(len)) if len >= 2 => options = rest.get(len - 1..).unwrap_or_default(),
            _ => break,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_is_found_among_options() {
        let usual = [2, 4, 5, 160, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7];
        assert_eq!(window_scale(&usual), 7);
        assert_eq!(window_scale(&[1, 1, 3, 3, 99]), 14, "no more than the standard allows");
        for without in [&[][..], &[0, 3, 3, 7], &[2, 4, 5, 160], &[3], &[8, 0, 3, 3, 7], &[8, 200]] {
            assert_eq!(window_scale(without), 0, "{without:?}");
        }
    }
}
