//! Sends every packet of a queue back with its MAC addresses swapped.
//!
//! `cargo run -p xway-xsk-client --example echo -- /run/xway/xsk.sock eth0 0`

use xway_xsk_client::{Bind, Connection, Fate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(interface)) = (args.next(), args.next()) else {
        return Err("usage: echo SOCKET INTERFACE [QUEUE]".into());
    };
    let queue = args.next().map_or(Ok(0), |text| text.parse())?;
    let mut connection = Connection::open(path)?;
    let umem = connection.umem(4096, 2048, 0)?;
    let mut socket = connection.bind(&umem, &Bind { direct: true, ..Bind::new(interface, queue) })?;
    eprintln!("socket {}: {}", socket.number(), if socket.zero_copy() { "zero-copy" } else { "copies" });
    loop {
        socket.fill(1024);
        socket.wait(None)?;
        let mut swap = |packet: &mut [u8]| {
            let Some((to, from)) = packet.split_at_mut_checked(6) else { return Fate::Free };
            let Some(from) = from.get_mut(..6) else { return Fate::Free };
            to.swap_with_slice(from);
            Fate::Send
        };
        while socket.process(64, &mut swap) > 0 {
            socket.flush();
        }
    }
}
