//! From a slot of the ring to a frame: the packet as it was on the wire.

use xway_packet::offload::{VnetHeader, complete_checksum};
use xway_packet::{Frame, RxMeta};

use crate::ring::Slot;

/// Why a packet was not received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Longer than a frame.
    Oversize,
    /// Not segmented by a sender on this machine.
    Gso,
    /// Less than an Ethernet header.
    Runt,
    /// Sent by this host, not received: no loss at all.
    Outgoing,
    /// Came while the socket was joining its group, and only that it came is known.
    Joining,
}

/// Length of the two addresses in front of a VLAN tag.
const ADDRESSES: usize = 12;
const TAG: usize = 4;

/// Fills the frame.
pub(crate) fn receive(slot: &Slot<'_>, frame: &mut Frame) -> Result<(), Loss> {
    let header = slot.header();
    // Older kernels hand over what the host itself sends to members of a fanout group.
    if header.outgoing {
        return Err(Loss::Outgoing);
    }
    if header.is_mark() {
        return Err(Loss::Joining);
    }
    let tag = vlan_tag(header.status, header.vlan_tci, header.vlan_tpid);
    let vnet = slot.vnet_header().map(VnetHeader::parse).unwrap_or_default();
    if vnet.is_long() {
        return Err(Loss::Gso);
    }
    fill(frame, slot.packet(), header.len, tag, vnet)?;
    let nanoseconds = u64::from(header.seconds) * 1_000_000_000 + u64::from(header.nanoseconds);
    frame.set_rx_meta(RxMeta { timestamp: Some(nanoseconds), ..RxMeta::default() });
    Ok(())
}

fn fill(
    frame: &mut Frame,
    packet: &[u8],
    wire_len: usize,
    tag: Option<[u8; TAG]>,
    vnet: VnetHeader,
) -> Result<(), Loss> {
    if packet.len() < wire_len {
        return Err(Loss::Oversize);
    }
    if packet.len() < xway_packet::ETH_HLEN as usize {
        return Err(Loss::Runt);
    }
    let tag_len = tag.map_or(0, |tag| tag.len());
    frame.set_len(packet.len() + tag_len).map_err(|_| Loss::Oversize)?;
    let to = frame.packet_mut();
    to[..ADDRESSES].copy_from_slice(&packet[..ADDRESSES]);
    if let Some(tag) = tag {
        to[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
    }
    to[ADDRESSES + tag_len..].copy_from_slice(&packet[ADDRESSES..]);
    if vnet.needs_checksum() {
        // Positions count without the tag.
        complete_checksum(to, usize::from(vnet.csum_start) + tag_len, usize::from(vnet.csum_offset));
    }
    Ok(())
}

fn vlan_tag(status: u32, tci: u16, tpid: u16) -> Option<[u8; TAG]> {
    const ETH_P_8021Q: u16 = 0x8100;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { ETH_P_8021Q };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_packet::{Pool, PoolConfig};
    use xway_testkit::packets::Packet;

    fn frame() -> Frame {
        Pool::new(PoolConfig::new(1)).unwrap().alloc().unwrap()
    }

    #[test]
    fn a_tag_is_put_back_where_it_was() {
        let mut frame = frame();
        let packet: Vec<u8> = (0..60).collect();
        let tag = vlan_tag(libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID, 0x2005, 0x88a8);
        fill(&mut frame, &packet, 60, tag, VnetHeader::default()).unwrap();
        assert_eq!(frame.packet()[..12], packet[..12]);
        assert_eq!(frame.packet()[12..16], [0x88, 0xa8, 0x20, 0x05]);
        assert_eq!(frame.packet()[16..], packet[12..]);
        assert_eq!(vlan_tag(libc::TP_STATUS_VLAN_VALID, 7, 0), Some([0x81, 0, 0, 7]));
        assert_eq!(vlan_tag(libc::TP_STATUS_USER, 7, 0x8100), None);
    }

    #[test]
    fn a_checksum_left_to_hardware_is_completed_behind_a_tag_too() {
        let whole = Packet::eth().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).pattern(33).build();
        // What a sender leaves in the field: the folded sum of the pseudo header.
        let udp_len = 8 + 33u32;
        let pseudo = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + udp_len;
        let mut partial = whole.clone();
        partial[40..42].copy_from_slice(&(pseudo as u16).to_be_bytes());
        let vnet =
            VnetHeader { flags: VnetHeader::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..VnetHeader::default() };
        let mut frame = frame();
        fill(&mut frame, &partial, partial.len(), None, vnet).unwrap();
        assert_eq!(frame.packet(), whole);
        fill(&mut frame, &partial, partial.len(), Some([0x81, 0, 0, 5]), vnet).unwrap();
        assert_eq!(frame.packet()[16..], whole[12..]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let mut frame = frame();
        assert_eq!(fill(&mut frame, &[0; 100], 101, None, VnetHeader::default()), Err(Loss::Oversize));
        assert_eq!(fill(&mut frame, &[0; 3521], 3521, None, VnetHeader::default()), Err(Loss::Oversize));
        assert_eq!(fill(&mut frame, &[0; 3518], 3518, Some([0; 4]), VnetHeader::default()), Err(Loss::Oversize));
        assert_eq!(fill(&mut frame, &[0; 13], 13, None, VnetHeader::default()), Err(Loss::Runt));
        assert_eq!(fill(&mut frame, &[0; 3520], 3520, None, VnetHeader::default()), Ok(()));
    }
}
