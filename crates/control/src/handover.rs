//! What goes from one executable to the next one in the same process beside the listening socket: the descriptors of ports, and the
//! place where counters are asked for.
//!
//! ```text
//! old executable                                                new executable
//! ports are closed ─> descriptors, SCM_RIGHTS ─> one end of a   standard input ─> descriptors ─> ports that go on;
//!                                                socket pair                      nothing is received before every
//!                                                   │                             program is in its place again
//!                                                   └── exec ──> standard input
//! ```
//!
//! The kernel holds what waits meanwhile: packets in the queues of a TAP, packets in the rings of packet sockets. Standard input
//! is the way because it is the one descriptor that a process may take by a name; a service reads nothing else from it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use xway_port_packet::{Kept, Place};

use crate::{share, wire};

/// Says that standard input is the parcel.
pub(crate) const VARIABLE: &str = "XWAY_PARCEL";
/// Kinds of ports that go on in the next executable, and `metrics`: what an executable says that it takes.
pub const TAKES: [&str; 4] = ["tap", "packet", "afxdp", "metrics"];
/// How long the parcel may take to be packed or unpacked; it lies in the kernel's memory, so it takes none.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest description of one piece, bytes.
const PIECE_MAX: usize = 64 << 10;

/// What is kept of a port while it is open, for the next executable: its queues once more.
#[derive(Debug)]
pub(crate) enum Keeps {
    /// Descriptors of a TAP device.
    Tap(Vec<OwnedFd>),
    /// Packet sockets with their rings.
    Packet(Kept),
    /// The program on an interface, which lets nothing pass to the host meanwhile.
    AfXdp(xway_port_afxdp::Kept),
}

impl Keeps {
    pub fn queues(&self) -> usize {
        match self {
            Keeps::Tap(queues) => queues.len(),
            Keeps::Packet(kept) => kept.queues().count(),
            Keeps::AfXdp(kept) => kept.queues() as usize,
        }
    }
}

/// One piece: so many descriptors come behind it.
#[derive(Serialize, Deserialize)]
struct Piece {
    /// A port's kind, or `metrics`; nothing: that was all.
    kind: String,
    /// The port.
    port: String,
    descriptors: usize,
    /// Where the rings of packet sockets go on, queue by queue; the numbers of a program on an interface.
    places: Vec<[u32; 5]>,
}

/// Packet sockets, and where their rings go on.
type Sockets = Vec<(OwnedFd, Place)>;

/// What an executable was handed.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    ports: BTreeMap<String, (Vec<OwnedFd>, Vec<[u32; 5]>)>,
    metrics: Option<TcpListener>,
}

impl Handed {
    /// What this process was started with: empty where no other executable ran in it before.
    ///
    /// # Errors
    /// Something was announced, and is damaged. What came before it is lost, and with it the interfaces that hang on it.
    pub fn receive() -> Result<Handed, String> {
        if std::env::var_os(VARIABLE).is_none_or(|is| is.is_empty()) {
            return Ok(Handed::default());
        }
        let failed = |what: &str, e: &dyn std::fmt::Display| format!("what was handed over: {what}: {e}");
        let own = fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3).map_err(|e| failed("standard input", &e))?;
        Handed::unpack(&mut UnixStream::from(own)).map_err(|e| failed("a piece", &e))
    }

    fn unpack(parcel: &mut UnixStream) -> std::io::Result<Handed> {
        parcel.set_read_timeout(Some(PATIENCE))?;
        let mut handed = Handed::default();
        loop {
            let bytes = wire::receive(parcel, PIECE_MAX, Some(PATIENCE), PATIENCE).map_err(std::io::Error::other)?;
            let piece: Piece = serde_json::from_slice(&bytes).map_err(std::io::Error::other)?;
            let fds = (0..piece.descriptors).map(|_| share::receive(parcel)).collect::<Result<Vec<_>, _>>()?;
            match (piece.kind.as_str(), fds) {
                ("", _) => return Ok(handed),
                ("metrics", mut fds) => handed.metrics = fds.pop().map(TcpListener::from),
                (_, fds) => drop(handed.ports.insert(piece.port, (fds, piece.places))),
            }
        }
    }

    /// The queues of a TAP device.
    pub fn tap(&mut self, port: &str) -> Option<Vec<OwnedFd>> {
        self.ports.remove(port).map(|(fds, _)| fds)
    }

    /// The sockets of a packet port with where their rings go on.
    pub fn packet(&mut self, port: &str) -> Option<Sockets> {
        let (fds, places) = self.ports.remove(port)?;
        Some(fds.into_iter().zip(places.into_iter().map(Place)).collect())
    }

    /// The program on the interface of an AF_XDP port.
    pub fn afxdp(&mut self, port: &str) -> Option<(Vec<OwnedFd>, Vec<[u32; 5]>)> {
        self.ports.remove(port)
    }

    /// The place where counters are asked for, when it is this one.
    pub fn metrics(&mut self, at: std::net::SocketAddr) -> Option<TcpListener> {
        self.metrics.take().filter(|listener| listener.local_addr().is_ok_and(|has| has == at))
    }

    /// Everything is in its place: what nobody took is closed.
    pub fn close(&mut self) {
        self.ports.clear();
        self.metrics = None;
    }
}

/// A parcel in the making.
#[derive(Debug)]
pub(crate) struct Parcel {
    near: UnixStream,
    far: UnixStream,
}

impl Parcel {
    pub fn new() -> std::io::Result<Parcel> {
        let (near, far) = UnixStream::pair()?;
        // As much as the system lets it have: a descriptor costs several hundred bytes there.
        let _ = sockopt::set_socket_send_buffer_size(&near, 4 << 20);
        near.set_write_timeout(Some(PATIENCE))?;
        Ok(Parcel { near, far })
    }

    /// Puts in what is kept of a port that is closed now.
    pub fn port(&mut self, name: &str, keeps: &Keeps) -> std::io::Result<()> {
        let parts = match keeps {
            Keeps::AfXdp(kept) => kept.parts()?.ok_or_else(|| std::io::Error::other("its program does not stay"))?,
            _ => Default::default(),
        };
        let (kind, fds, places): (_, Vec<&OwnedFd>, _) = match keeps {
            Keeps::AfXdp(_) => ("afxdp", parts.0.iter().collect(), parts.1.clone()),
            Keeps::Tap(queues) => ("tap", queues.iter().collect(), Vec::new()),
            Keeps::Packet(kept) => {
                let (fds, places): (Vec<_>, Vec<_>) = kept.queues().unzip();
                ("packet", fds, places.into_iter().map(|Place(place)| place).collect())
            }
        };
        self.put(Piece { kind: kind.into(), port: name.into(), descriptors: fds.len(), places }, &fds)
    }

    pub fn metrics(&mut self, listener: &TcpListener) -> std::io::Result<()> {
        let own = OwnedFd::from(listener.try_clone()?);
        self.put(Piece { kind: "metrics".into(), port: String::new(), descriptors: 1, places: Vec::new() }, &[&own])
    }

    fn put(&mut self, piece: Piece, fds: &[&OwnedFd]) -> std::io::Result<()> {
        wire::send(&mut self.near, &piece).map_err(std::io::Error::other)?;
        fds.iter().try_for_each(|fd| share::send(&self.near, fd.as_fd()))
    }

    /// What becomes the next executable's standard input.
    pub fn close(mut self) -> std::io::Result<OwnedFd> {
        self.put(Piece { kind: String::new(), port: String::new(), descriptors: 0, places: Vec::new() }, &[])?;
        Ok(self.far.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_parcel_arrives_whole() {
        let mut parcel = Parcel::new().unwrap();
        let pairs: Vec<_> = (0..64).map(|_| UnixDatagram::pair().unwrap()).collect();
        let queues = pairs.iter().map(|(_, far)| OwnedFd::from(far.try_clone().unwrap())).collect();
        parcel.port("tap:a", &Keeps::Tap(queues)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        parcel.metrics(&listener).unwrap();
        drop(listener);
        // The sender's end is gone before anybody reads, as behind an exec.
        let far = parcel.close().unwrap();
        let mut handed = Handed::unpack(&mut UnixStream::from(far)).unwrap();
        assert!(handed.tap("tap:b").is_none());
        let queues = handed.tap("tap:a").unwrap();
        assert_eq!(queues.len(), 64);
        for (n, (fd, (near, _))) in queues.into_iter().zip(&pairs).enumerate() {
            near.send(&[n as u8]).unwrap();
            let mut byte = [0];
            UnixDatagram::from(fd).recv(&mut byte).unwrap();
            assert_eq!(byte, [n as u8]);
        }
        assert!(handed.metrics("127.0.0.1:1".parse().unwrap()).is_none());
        handed.close();
        // Nobody took it.
        assert!(std::net::TcpStream::connect(at).is_err());
    }

    #[test]
    fn half_a_parcel_is_told() {
        let mut parcel = Parcel::new().unwrap();
        let fd = OwnedFd::from(UnixDatagram::pair().unwrap().0);
        let piece = Piece { kind: "tap".into(), port: "tap:a".into(), descriptors: 2, places: Vec::new() };
        parcel.put(piece, &[&fd]).unwrap();
        let Parcel { near, mut far } = parcel;
        drop(near);
        assert!(Handed::unpack(&mut far).is_err());
    }
}
