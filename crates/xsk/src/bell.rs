//! Bells between a server and an application.
//!
//! An application may do everything to a descriptor that it was given: clear `O_NONBLOCK`, fill it up, close it, keep it. Flags belong
//! to the open file and not to the descriptor, so what both sides have is never read and never written by ours:
//!
//! - The application is woken through a pair of sockets. Our end is ours alone, each call on it says itself that it does not wait,
//!   and nothing can be sent to it: no descriptor of somebody else's lies in it when it is closed.
//! - The application wakes us through an event descriptor. Ours waits for its edges and never reads it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair, sockopt};

/// What wakes an application.
#[derive(Debug)]
pub(crate) struct Bell {
    near: OwnedFd,
}

impl Bell {
    /// One, and the application's end of it.
    pub(crate) fn pair() -> io::Result<(Bell, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // As little as the system has, some six rings: whoever looks late is not rung out of its sleep for each of many.
        sockopt::set_socket_send_buffer_size(&near, 0)?;
        shutdown(&near, Shutdown::Read)?;
        Ok((Bell { near }, far))
    }

    /// Rings. It never waits: when there is no room, the application was rung and has not looked yet.
    pub(crate) fn ring(&self) {
        let _ = send(&self.near, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// What an application wakes us with.
pub(crate) fn kick() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// What a thread waits for that serves one application.
pub(crate) struct Ears {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// What was heard.
#[derive(Default, Debug)]
pub(crate) struct Heard {
    /// A request, or the end of the connection.
    pub(crate) asked: bool,
    /// Sockets that were kicked.
    pub(crate) kicked: Vec<u64>,
}

const CONNECTION: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

impl Ears {
    /// Hears this connection, and this word to stop.
    pub(crate) fn new(connection: impl AsFd, stop: impl AsFd) -> io::Result<Ears> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, name) in [(connection.as_fd(), CONNECTION), (stop.as_fd(), STOP)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
        }
        Ok(Ears { epoll, events: Vec::with_capacity(32) })
    }

    /// Hears the kicks for a socket. Each write is one, whether or not anybody reads.
    pub(crate) fn add(&self, kick: impl AsFd, socket: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, kick, epoll::EventData::new_u64(socket), flags)?)
    }

    /// Hears them no more. The application may keep its descriptor, so that closing ours would not do.
    pub(crate) fn remove(&self, kick: impl AsFd) {
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Waits until there is something, for so long at most.
    pub(crate) fn listen(&mut self, most: Option<Duration>) -> Heard {
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        self.events.clear();
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), most.as_ref());
        let mut heard = Heard::default();
        for event in &self.events {
            match event.data.u64() {
                CONNECTION => heard.asked = true,
                STOP => {}
                socket => heard.kicked.push(socket),
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use rustix::io::{Errno, read, write};

    #[test]
    fn a_bell_never_waits_and_takes_nothing() {
        let (bell, far) = Bell::pair().unwrap();
        let flags = fcntl_getfl(&far).unwrap();
        fcntl_setfl(&far, flags - OFlags::NONBLOCK).unwrap();
        // Many more than there is room for: whoever waits here waits for ever.
        (0..100_000).for_each(|_| bell.ring());
        let mut bytes = [0; 64];
        let rung = read(&far, &mut bytes).unwrap();
        assert!((1..=16).contains(&rung), "{rung} rings wait");
        bell.ring();
        assert_eq!(read(&far, &mut bytes), Ok(1));
        let sent = send(&far, b"?", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        assert_eq!(sent, Err(Errno::PIPE));
        drop(bell);
        assert_eq!(read(&far, &mut bytes), Ok(0), "the end");
    }

    #[test]
    fn each_kick_is_heard_and_none_is_read() {
        let (connection, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (stop, bell) = (kick().unwrap(), kick().unwrap());
        let mut ears = Ears::new(&connection, &stop).unwrap();
        ears.add(&bell, 7).unwrap();
        let soon = Some(Duration::from_millis(1));
        for _ in 0..3 {
            write(&bell, &1u64.to_ne_bytes()).unwrap();
            assert_eq!(ears.listen(None).kicked, [7]);
            assert!(ears.listen(soon).kicked.is_empty());
        }
        let mut count = [0; 8];
        read(&bell, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 3);
        let again = bell.try_clone().unwrap();
        ears.remove(&bell);
        drop(bell);
        write(&again, &1u64.to_ne_bytes()).unwrap();
        assert!(ears.listen(soon).kicked.is_empty());
        write(&far, b"x").unwrap();
        assert!(ears.listen(None).asked);
    }
}
