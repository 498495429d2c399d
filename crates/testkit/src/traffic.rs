//! Small clients and servers over ordinary sockets, to be used inside a [`Namespace`](crate::Namespace). Every wait is
//! bounded by [`WAIT`].

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};

use crate::packets::internet_checksum;

/// Longest wait for one answer.
pub const WAIT: Duration = Duration::from_secs(2);

type Result<T> = std::io::Result<T>;

/// Asks again where a signal came first. With a time limit even a process that is stopped and goes on is told so (`EINTR`), and what is
/// not an answer must not be taken for one.
pub fn patient<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match ask() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// Sends `count` echo requests one after the other and gives how many were answered. Needs root.
pub fn ping(to: Ipv4Addr, count: u16) -> Result<u16> {
    ping_within(to, count, WAIT)
}

/// The same with so long a wait for each answer: where one that is late must not be taken for one that is lost.
pub fn ping_within(to: Ipv4Addr, count: u16, wait: Duration) -> Result<u16> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
    // Short, so that the deadline below is kept.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_millis(50)))?;
    let address = SocketAddr::from((to, 0));
    let identifier = std::process::id() as u16;
    let mut answered = 0;
    for sequence in 0..count {
        let request = echo_request(identifier, sequence);
        rustix::net::sendto(&socket, &request, SendFlags::empty(), &address)?;
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline {
            let mut buffer = [0; 256];
            let Ok((len, _)) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()) else { continue };
            // A raw socket hands over the IP header (20 bytes without options) and sees everybody's ICMP.
            if len >= 28 && buffer[20] == 0 && buffer[24..28] == request[4..8] {
                answered += 1;
                break;
            }
        }
    }
    Ok(answered)
}

fn echo_request(identifier: u16, sequence: u16) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0];
    message.extend(identifier.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    message.extend(0u8..48);
    let sum = internet_checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// A TCP server for `connections` clients: sends back what each says until it closes. It is listening when this returns;
/// the thread ends with the last client or, without one, after [`WAIT`].
pub fn tcp_echo_server(at: SocketAddr, connections: usize) -> Result<std::thread::JoinHandle<Result<usize>>> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(std::thread::spawn(move || {
        let mut served = 0;
        let mut deadline = Instant::now() + 5 * WAIT;
        while served < connections && Instant::now() < deadline {
            match listener.accept() {
                Ok((stream, _)) => {
                    echo(stream)?;
                    served += 1;
                    deadline = Instant::now() + 5 * WAIT;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(served)
    }))
}

fn echo(mut stream: TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WAIT))?;
    let mut buffer = [0; 4096];
    loop {
        let len = patient(|| stream.read(&mut buffer))?;
        if len == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..len])?;
    }
}

/// Connects, sends `len` bytes, reads them back and closes; an error when they differ.
pub fn tcp_echo_client(to: SocketAddr, len: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    let (mut sent, mut back) = (0, 0);
    while back < len {
        // At most one piece is under way, so neither side can block the other.
        if sent == back {
            let piece: Vec<u8> = (sent..len.min(sent + 1000)).map(|i| i as u8).collect();
            stream.write_all(&piece)?;
            sent += piece.len();
        }
        let mut buffer = [0; 1000];
        let got = patient(|| stream.read(&mut buffer))?;
        let expected = (back..back + got).map(|i| i as u8);
        if got == 0 || !buffer[..got].iter().copied().eq(expected) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the echo differs"));
        }
        back += got;
    }
    Ok(())
}

/// Takes one connection and reads it to its end; the thread gives the number of bytes, or an error when they are not those
/// of [`tcp_bulk_client`].
pub fn tcp_bulk_server(at: SocketAddr) -> Result<std::thread::JoinHandle<Result<usize>>> {
    let listener = TcpListener::bind(at)?;
    Ok(std::thread::spawn(move || {
        let (mut stream, _) = patient(|| listener.accept())?;
        stream.set_read_timeout(Some(5 * WAIT))?;
        let (mut buffer, mut total) = (vec![0; 1 << 16], 0);
        loop {
            let got = patient(|| stream.read(&mut buffer))?;
            if got == 0 {
                return Ok(total);
            }
            if !buffer[..got].iter().copied().eq((total..total + got).map(bulk_byte)) {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the bytes differ"));
            }
            total += got;
        }
    }))
}

/// Connects and sends `len` bytes as fast as they go, so that the stack makes its longest packets.
pub fn tcp_bulk_client(to: SocketAddr, len: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT)?;
    stream.set_write_timeout(Some(5 * WAIT))?;
    stream.write_all(&(0..len).map(bulk_byte).collect::<Vec<_>>())
}

/// A pattern that does not repeat at the sizes of packets.
fn bulk_byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

/// A UDP socket that sends `count` datagrams back; the thread ends after the last one or after [`WAIT`] without any.
pub fn udp_echo_server(at: SocketAddr, count: usize) -> Result<std::thread::JoinHandle<Result<usize>>> {
    let socket = UdpSocket::bind(at)?;
    socket.set_read_timeout(Some(5 * WAIT))?;
    Ok(std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        for served in 0..count {
            let Ok((len, from)) = patient(|| socket.recv_from(&mut buffer)) else { return Ok(served) };
            socket.send_to(&buffer[..len], from)?;
        }
        Ok(count)
    }))
}

/// Sends `count` datagrams one after the other and gives how many came back unchanged.
pub fn udp_echo_client(to: SocketAddr, count: usize) -> Result<usize> {
    let local: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(local)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.connect(to)?;
    let mut back = 0;
    for number in 0..count {
        let message = [number as u8; 64];
        socket.send(&message)?;
        let mut buffer = [0; 2048];
        if let Ok(len) = patient(|| socket.recv(&mut buffer)) {
            back += usize::from(buffer[..len] == message);
        }
    }
    Ok(back)
}
