//! The capture that ships with the repository, and the few lines of pcapng that it takes to write one.

use crate::Rng;
use crate::packets::{Packet, mixed_set, tcp_flags as flag};

/// A pcapng file (draft-ietf-opsawg-pcapng) of Ethernet frames: one section, one interface, time in microseconds since
/// 1970. `step_us` lies between two frames.
pub fn pcapng(frames: &[Vec<u8>], start_us: u64, step_us: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // Section header: byte order magic, version 1.0, length unknown.
    block(&mut out, 0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes(), &[1, 0, 0, 0], &[0xff; 8]]);
    // Interface: link type 1 (Ethernet), no snap length.
    block(&mut out, 1, &[&[1, 0, 0, 0, 0, 0, 0, 0]]);
    for (frame, number) in frames.iter().zip(0u64..) {
        let time = start_us + number * step_us;
        let len = (frame.len() as u32).to_le_bytes();
        let (high, low) = (((time >> 32) as u32).to_le_bytes(), (time as u32).to_le_bytes());
        block(&mut out, 6, &[&[0; 4], &high, &low, &len, &len, frame]);
    }
    out
}

/// One block: type, length, body padded to four bytes, length again.
fn block(out: &mut Vec<u8>, kind: u32, body: &[&[u8]]) {
    let body_len: usize = body.iter().map(|part| part.len()).sum();
    let len = (12 + body_len.next_multiple_of(4)) as u32;
    out.extend(kind.to_le_bytes());
    out.extend(len.to_le_bytes());
    body.iter().for_each(|part| out.extend(*part));
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(len.to_le_bytes());
}

/// The frames of `bpf/demo/mixed.pcapng`: everyday traffic with the mixed set strewn in, always the same.
pub fn demo_frames() -> Vec<Vec<u8>> {
    let mut everyday = Vec::new();
    for client in 1..=8u8 {
        lookup(&mut everyday, client);
        download(&mut everyday, client, 4 + usize::from(client));
    }
    for sequence in 0..12u8 {
        let (client, server) = ([10, 1, 0, 9], [10, 1, 0, 254]);
        everyday.push(Packet::eth().ipv4(client, server).icmp(8, 0, [0, 9, 0, sequence]).pattern(56).build());
        everyday.push(Packet::eth().ipv4(server, client).icmp(0, 0, [0, 9, 0, sequence]).pattern(56).build());
    }
    let mut rng = Rng::new(2024);
    for odd in mixed_set() {
        let at = rng.index(everyday.len());
        everyday.insert(at, odd.bytes);
    }
    everyday
}

const RESOLVER: [u8; 4] = [10, 1, 0, 53];
const SERVER: [u8; 4] = [198, 51, 100, 7];

fn lookup(frames: &mut Vec<Vec<u8>>, client: u8) {
    let (host, port) = ([10, 1, 0, client], 40_000 + u16::from(client));
    frames.push(Packet::eth().ipv4(host, RESOLVER).udp(port, 53).pattern(34).build());
    frames.push(Packet::eth().ipv4(RESOLVER, host).udp(53, port).pattern(50).build());
}

/// One connection: hand-shake, request, `segments` of answer, each second one acknowledged, farewell.
fn download(frames: &mut Vec<Vec<u8>>, client: u8, segments: usize) {
    let port = 50_000 + u16::from(client);
    let up = |flags| Packet::eth().ipv4([10, 1, 0, client], SERVER).tcp(port, 443, flags);
    let down = |flags| Packet::eth().ipv4(SERVER, [10, 1, 0, client]).tcp(443, port, flags);
    frames.push(up(flag::SYN).with_tcp_options(&[2, 4, 5, 0xb4]).build());
    frames.push(down(flag::SYN | flag::ACK).with_tcp_options(&[2, 4, 5, 0xb4]).build());
    frames.push(up(flag::ACK).build());
    frames.push(up(flag::PSH | flag::ACK).pattern(120).build());
    for number in 0..segments {
        frames.push(down(flag::ACK).pattern(300).build());
        if number % 2 == 1 {
            frames.push(up(flag::ACK).build());
        }
    }
    frames.push(down(flag::FIN | flag::ACK).build());
    frames.push(up(flag::FIN | flag::ACK).build());
    frames.push(down(flag::ACK).build());
}

/// The whole file.
pub fn demo_capture() -> Vec<u8> {
    // 1 January 2025, a packet every 250 microseconds.
    pcapng(&demo_frames(), 1_735_689_600_000_000, 250)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_repository_is_the_generated_one() {
        let path = crate::clang::repository().join("bpf/demo/mixed.pcapng");
        let kept = std::fs::read(&path).unwrap();
        assert!(
            kept == demo_capture(),
            "{} is stale: cargo run -p xway-testkit --bin make-demo-capture",
            path.display()
        );
    }
}
