//! AF_XDP-style sockets that an engine serves, for C programs.
//!
//! A packet in a C program's hands is an entry of a table here and a number there; what C says about a number is looked up, so a wrong
//! one is an errno and never a packet of somebody else's.
#![allow(unsafe_code)] // pointers from C

use std::ffi::{c_char, c_int};
use std::time::Duration;

use xway_abi::Errno;
use xway_xsk_client as client;
use xway_xsk_client::{ClientError, Connection, Packet, TxRequest, Umem};

use crate::{fail, guarded, string};

/// A socket on a queue, over a connection and packet memory of its own. One thread uses it at a time.
pub struct Xsk {
    connection: Connection,
    socket: client::Socket,
    /// Packets in the program's hands, by number; none where the number is free.
    out: Vec<Option<Packet>>,
    free: Vec<u32>,
    room: u32,
    _umem: Umem,
}

/// How a socket is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct XskOptions {
    /// Interface or port, as the server calls it.
    pub interface: *const c_char,
    /// Queue.
    pub queue: u32,
    /// XDP_SHARED_UMEM, XDP_COPY, XDP_ZEROCOPY, XDP_USE_NEED_WAKEUP of linux/if_xdp.h.
    pub flags: u16,
    /// Not 0: everything that arrives on the queue comes to this socket, past all programs.
    pub direct: u16,
    /// Entries of each ring, a power of two; 0 is 2048.
    pub entries: u32,
    /// Chunks of packet memory; 0 is 4096. Each has 2048 bytes.
    pub chunks: u32,
    /// Share of the queue's sending in relation to other sockets; 0 is 1.
    pub weight: u32,
}

/// A packet in the program's hands, until it is given to xway_xsk_send or xway_xsk_release.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct XskPacket {
    /// Its bytes.
    pub data: *mut u8,
    /// How many. A program may write another length before it sends the packet, up to `room`.
    pub len: u32,
    /// Bytes from `data` to the end of the chunk.
    pub room: u32,
    /// What the library knows it by.
    pub number: u32,
    /// XWAY_XSK_CHECKSUM, or 0: read by xway_xsk_send.
    pub requests: u32,
    /// Where the bytes start that a checksum covers, and where it stands, counted from there.
    pub csum_start: u16,
    /// See `csum_start`.
    pub csum_offset: u16,
}

/// Complete the checksum of a packet that is sent: the field holds the sum of the pseudo header.
pub const XWAY_XSK_CHECKSUM: u32 = 1;

/// What a socket counted: `struct xdp_statistics` of linux/if_xdp.h, and two numbers more.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct XskStatistics {
    /// Packets that do not fit a chunk.
    pub rx_dropped: u64,
    /// Addresses in FILL that cannot be.
    pub rx_invalid_descs: u64,
    /// Descriptors in TX that cannot be.
    pub tx_invalid_descs: u64,
    /// Packets dropped because RX was full.
    pub rx_ring_full: u64,
    /// Packets dropped because FILL was empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Looks at an empty TX ring.
    pub tx_ring_empty_descs: u64,
    /// Indices that were published and cannot be.
    pub refused_indices: u64,
    /// Packets that asked for what cannot be done.
    pub tx_unsupported: u64,
}

const CHUNK: u32 = 2048;
const TX_METADATA: u32 = 24;

fn refused(error: ClientError) -> c_int {
    let errno = match &error {
        ClientError::Refused { errno, .. } => *errno,
        _ => Errno::EIO,
    };
    fail(errno, &error.to_string())
}

/// Connects to the server at `path` and opens a socket. Half of its chunks wait for packets at once. NULL on failure: see xway_error.
///
/// # Safety
/// `path` is a string; `options` points to options whose interface is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_open(path: *const c_char, options: *const XskOptions) -> *mut Xsk {
    guarded(
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller vouches for them.
            let (path, options) = unsafe { (string(path)?, options.as_ref()) };
            let (Some(path), Some(options)) = (path, options) else {
                return Err(fail(Errno::EFAULT, "no path or options"));
            };
            // SAFETY: as above.
            let interface = unsafe { string(options.interface)? };
            let interface = interface.ok_or_else(|| fail(Errno::EFAULT, "no interface"))?;
            let or = |number: u32, usual| if number == 0 { usual } else { number };
            let (entries, chunks) = (or(options.entries, 2048), or(options.chunks, 4096));
            let mut connection = Connection::open(path).map_err(refused)?;
            let umem = connection.umem_with(chunks, CHUNK, 0, TX_METADATA).map_err(refused)?;
            let sizes = client::rings::Sizes { fill: entries, completion: entries, rx: entries, tx: entries };
            let bind = client::Bind {
                flags: options.flags,
                direct: options.direct != 0,
                sizes,
                chunks,
                weight: or(options.weight, 1),
                ..client::Bind::new(interface, options.queue)
            };
            let mut socket = connection.bind(&umem, &bind).map_err(refused)?;
            socket.fill(chunks / 2);
            let (out, free) = (Vec::new(), Vec::new());
            Ok(Box::into_raw(Box::new(Xsk { connection, socket, out, free, room: chunks / 2, _umem: umem })))
        },
    )
}

/// Closes a socket. Packets in the program's hands are its no more. NULL is allowed.
///
/// # Safety
/// `xsk` comes from this library and is not used again, nor are its packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_close(xsk: *mut Xsk) {
    if !xsk.is_null() {
        // SAFETY: made by `xway_xsk_open`; the caller gives it up.
        drop(unsafe { Box::from_raw(xsk) });
    }
}

/// Takes up to `count` packets that came, and says how many those are; a negative errno on failure.
///
/// # Safety
/// `xsk` comes from this library and is in use by this thread only; `packets` points to room for `count` packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_receive(xsk: *mut Xsk, packets: *mut XskPacket, count: u32) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (xsk, packets) = unsafe { (of(xsk)?, slice(packets, count)?) };
            let taken = xsk.hand_over(packets, client::Socket::receive);
            xsk.socket.fill(xsk.room);
            Ok(taken)
        },
    )
}

/// Takes up to `count` free chunks for packets that the program makes, and says how many those are; a negative errno on failure.
///
/// # Safety
/// As xway_xsk_receive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_make(xsk: *mut Xsk, packets: *mut XskPacket, count: u32) -> c_int {
    // Where received packets start, too.
    const OFFSET: u32 = 256;
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (xsk, packets) = unsafe { (of(xsk)?, slice(packets, count)?) };
            Ok(xsk.hand_over(packets, |socket| socket.chunk()?.into_packet(OFFSET, 0)))
        },
    )
}

/// Queues `count` packets to be sent and tells the server; says how many it took, fewer when the TX ring is full: the others stay in the
/// program's hands. A negative errno when the first one cannot be sent: EINVAL for a number that is not in the program's hands or a
/// length beyond `room`.
///
/// # Safety
/// As xway_xsk_receive; nobody uses the bytes of packets that were taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_send(xsk: *mut Xsk, packets: *const XskPacket, count: u32) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (xsk, packets) = unsafe { (of(xsk)?, slice(packets.cast_mut(), count)?) };
            let mut taken = 0;
            let mut wrong = None;
            for described in packets.iter() {
                match xsk.send(described) {
                    Ok(true) => taken += 1,
                    Ok(false) => break,
                    Err(errno) => {
                        wrong = Some(errno);
                        break;
                    }
                }
            }
            xsk.socket.flush();
            match wrong.filter(|_| taken == 0) {
                Some(errno) => Err(fail(errno, "no such packet in the program's hands, or longer than its chunk")),
                None => Ok(taken),
            }
        },
    )
}

/// Gives back `count` packets that are not wanted any more. 0, or EINVAL for a number that is not in the program's hands; those before
/// it are given back.
///
/// # Safety
/// As xway_xsk_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_release(xsk: *mut Xsk, packets: *const XskPacket, count: u32) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (xsk, packets) = unsafe { (of(xsk)?, slice(packets.cast_mut(), count)?) };
            for described in packets.iter() {
                let packet = xsk.take(described.number);
                let packet = packet.ok_or_else(|| fail(Errno::EINVAL, "no such packet in the program's hands"))?;
                xsk.socket.give_back(packet);
            }
            xsk.socket.fill(xsk.room);
            Ok(0)
        },
    )
}

/// Waits until a packet came, at most so many milliseconds (negative: without end). 1 when one is there, 0 when not, a negative errno
/// on failure.
///
/// # Safety
/// `xsk` comes from this library and is in use by this thread only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_wait(xsk: *mut Xsk, timeout_ms: c_int) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for it.
            let xsk = unsafe { of(xsk)? };
            let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
            xsk.socket.wait(timeout).map(c_int::from).map_err(refused)
        },
    )
}

/// Packets that were lost since the last call because the program does not keep up. Costs one load.
///
/// # Safety
/// `xsk` comes from this library and is in use by this thread only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_lost(xsk: *mut Xsk) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { xsk.as_mut() }.map_or(0, |xsk| xsk.socket.lost())
}

/// Packets that were given to send and that the server has not taken yet: a program that ends before it is 0 may lose them.
///
/// # Safety
/// `xsk` comes from this library and is in use by this thread only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_sending(xsk: *mut Xsk) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { xsk.as_mut() }.map_or(0, |xsk| xsk.socket.sending())
}

/// Asks the server for the socket's counters. 0 or a negative errno.
///
/// # Safety
/// `xsk` comes from this library and is in use by this thread only; `statistics` points to room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_xsk_statistics(xsk: *mut Xsk, statistics: *mut XskStatistics) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (xsk, place) = unsafe { (of(xsk)?, statistics.as_mut()) };
            let place = place.ok_or_else(|| fail(Errno::EFAULT, "nowhere to put the counters"))?;
            let now = xsk.connection.statistics(&xsk.socket).map_err(refused)?;
            *place = XskStatistics {
                rx_dropped: now.rx_dropped,
                rx_invalid_descs: now.rx_invalid_descs,
                tx_invalid_descs: now.tx_invalid_descs,
                rx_ring_full: now.rx_ring_full,
                rx_fill_ring_empty_descs: now.rx_fill_ring_empty_descs,
                tx_ring_empty_descs: now.tx_ring_empty_descs,
                refused_indices: now.refused_indices,
                tx_unsupported: now.tx_unsupported,
            };
            Ok(0)
        },
    )
}

impl Xsk {
    /// Puts packets into the program's hands while there are some and places for them, and says how many those are.
    fn hand_over(
        &mut self,
        places: &mut [XskPacket],
        mut next: impl FnMut(&mut client::Socket) -> Option<Packet>,
    ) -> c_int {
        let mut taken = 0;
        for place in places {
            let Some(packet) = next(&mut self.socket) else { break };
            *place = self.hand_out(packet);
            taken += 1;
        }
        taken
    }

    fn hand_out(&mut self, mut packet: Packet) -> XskPacket {
        let number = self.free.pop().unwrap_or_else(|| {
            self.out.push(None);
            self.out.len() as u32 - 1
        });
        let room = packet.room() as u32;
        let bytes = packet.bytes_mut();
        let (data, len) = (bytes.as_mut_ptr(), bytes.len() as u32);
        self.out[number as usize] = Some(packet);
        XskPacket { data, len, room, number, requests: 0, csum_start: 0, csum_offset: 0 }
    }

    fn take(&mut self, number: u32) -> Option<Packet> {
        let packet = self.out.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(packet)
    }

    /// Queues a packet; false when the ring has no room, and then it stays in the program's hands.
    fn send(&mut self, described: &XskPacket) -> Result<bool, Errno> {
        let there = self.out.get_mut(described.number as usize).and_then(Option::as_mut).ok_or(Errno::EINVAL)?;
        if described.requests & !XWAY_XSK_CHECKSUM != 0 || !there.set_len(described.len as usize) {
            return Err(Errno::EINVAL);
        }
        let packet = self.take(described.number).ok_or(Errno::EINVAL)?;
        let sent = match described.requests {
            0 => self.socket.send(packet),
            _ => {
                let checksum = Some((described.csum_start, described.csum_offset));
                self.socket.send_with(packet, &TxRequest { checksum, launch_time: None })
            }
        };
        let Err(packet) = sent else { return Ok(true) };
        // The number that was given up a moment ago is the next one to be given.
        self.hand_out(packet);
        Ok(false)
    }
}

/// # Safety
/// `xsk` is NULL or comes from this library and is in use by this thread only.
unsafe fn of<'a>(xsk: *mut Xsk) -> Result<&'a mut Xsk, c_int> {
    // SAFETY: the caller vouches for it.
    unsafe { xsk.as_mut() }.ok_or_else(|| fail(Errno::EFAULT, "no socket"))
}

/// # Safety
/// `packets` is NULL or points to `count` packets that only this call uses.
unsafe fn slice<'a>(packets: *mut XskPacket, count: u32) -> Result<&'a mut [XskPacket], c_int> {
    if count == 0 {
        return Ok(&mut []);
    }
    if packets.is_null() {
        return Err(fail(Errno::EFAULT, "no packets"));
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts_mut(packets, count as usize) })
}
