//! Telling the service manager how things stand (`sd_notify(3)`): datagrams to the socket that it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state (`READY=1`, `STOPPING=1`, …). Without a service manager nothing is sent; a manager that does not listen is its
/// own business.
pub(crate) fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let _ = send(&path.to_string_lossy(), state);
}

/// Says that the configuration is read anew, and since when: a manager counts from there until `READY=1`.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000));
}

fn send(path: &str, state: &str) -> std::io::Result<()> {
    // A name that starts with @ is in the abstract namespace.
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_it_in_both_namespaces() {
        let name = format!("xway-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let in_files = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let in_names = UnixDatagram::bind_addr(&address).unwrap();
        let mut buffer = [0; 32];
        for (listener, to) in [(in_files, path.display().to_string()), (in_names, format!("@{name}"))] {
            send(&to, "READY=1").unwrap();
            let len = listener.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"READY=1");
        }
        std::fs::remove_file(path).unwrap();
    }
}
