//! What hostile processes send along.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long what [`lingering`] makes takes to close: longer than anything that does not wait for it.
pub const LINGERS: Duration = Duration::from_secs(60);

/// A descriptor that takes [`LINGERS`] to close for whoever closes it last: a connection with `SO_LINGER` whose other end, which comes with
/// it, reads nothing.
///
/// # Panics
/// The machine has no loopback.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback");
    let mut near = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (far, _) = listener.accept().expect("its other end");
    near.set_nonblocking(true).expect("no waiting");
    while near.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGERS)).expect("SO_LINGER");
    (near.into(), far)
}
