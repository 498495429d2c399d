//! The bytes of the records that are written: pcap (nanoseconds) and pcapng, little-endian.
//!
//! pcapng: draft-ietf-opsawg-pcapng, sections 4.1 to 4.3.

use crate::Written;

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;
/// Longest packet that a reader may expect, bytes.
const SNAPLEN: u32 = 262_144;
/// Kind of verdict: an eBPF XDP program's return value, eight bytes.
const VERDICT_XDP: u8 = 2;

const BLOCK_SECTION: u32 = 0x0a0d_0d0a;
const BLOCK_INTERFACE: u32 = 1;
const BLOCK_ENHANCED_PACKET: u32 = 6;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_PACKETID: u16 = 5;
const EPB_QUEUE: u16 = 6;
const EPB_VERDICT: u16 = 7;

/// Flags of a packet that came in, and that is complete or not as its lengths say.
const INBOUND: u32 = 1;

/// Longest text of an option; longer ones are cut (an option's length has 16 bits).
const TEXT_MAX: usize = 1024;

/// Appends the file header of a pcap with nanosecond timestamps.
pub(crate) fn pcap_header(out: &mut Vec<u8>) {
    u32s(out, &[0xa1b2_3c4d]);
    u16s(out, &[2, 4]);
    u32s(out, &[0, 0, SNAPLEN, ETHERNET.into()]);
}

/// Appends one pcap record. Seconds wrap in 2106, as the format does.
pub(crate) fn pcap_record(out: &mut Vec<u8>, p: &Written<'_>) {
    let (sec, ns) = (p.timestamp_ns / 1_000_000_000, p.timestamp_ns % 1_000_000_000);
    u32s(out, &[sec as u32, ns as u32, p.data.len() as u32, p.original_len]);
    out.extend_from_slice(p.data);
}

/// Appends a section header block.
pub(crate) fn section(out: &mut Vec<u8>, application: &str) {
    block(out, BLOCK_SECTION, |out| {
        u32s(out, &[0x1a2b_3c4d]);
        u16s(out, &[1, 0]);
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, text(application));
        option(out, OPT_END, &[]);
    });
}

/// Appends an interface description block.
pub(crate) fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, BLOCK_INTERFACE, |out| {
        u16s(out, &[ETHERNET, 0]);
        u32s(out, &[SNAPLEN]);
        option(out, IF_NAME, text(name));
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

/// Appends an enhanced packet block with packet id, queue and verdict.
pub(crate) fn enhanced_packet(out: &mut Vec<u8>, p: &Written<'_>) {
    block(out, BLOCK_ENHANCED_PACKET, |out| {
        let (high, low) = ((p.timestamp_ns >> 32) as u32, p.timestamp_ns as u32);
        u32s(out, &[p.interface, high, low, p.data.len() as u32, p.original_len]);
        padded(out, p.data);
        if let Some(comment) = p.comment {
            option(out, OPT_COMMENT, text(comment));
        }
        if p.inbound {
            option(out, EPB_FLAGS, &INBOUND.to_le_bytes());
        }
        option(out, EPB_PACKETID, &p.packet_id.to_le_bytes());
        option(out, EPB_QUEUE, &p.queue.to_le_bytes());
        if let Some(code) = p.verdict {
            let mut verdict = [VERDICT_XDP, 0, 0, 0, 0, 0, 0, 0, 0];
            verdict[1..5].copy_from_slice(&code.to_le_bytes());
            option(out, EPB_VERDICT, &verdict);
        }
        option(out, OPT_END, &[]);
    });
}

/// A block: type, length, body, length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    u32s(out, &[kind, 0]);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    u32s(out, &[len]);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    u16s(out, &[code, value.len() as u16]);
    padded(out, value);
}

fn text(s: &str) -> &[u8] {
    &s.as_bytes()[..s.floor_char_boundary(TEXT_MAX)]
}

/// Bytes, then zeros up to a multiple of four.
fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + (4 - bytes.len() % 4) % 4, 0);
}

fn u16s(out: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}

fn u32s(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}
