//! Frames, layer by layer.

use super::internet_checksum;

/// TCP flag bits (RFC 9293 section 3.1).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// Acknowledgement.
    pub const ACK: u8 = 0x10;
}

#[derive(Clone, Debug)]
enum Layer {
    Eth { dst: [u8; 6], src: [u8; 6], ethertype: Option<u16> },
    Vlan { tpid: u16, tci: u16, ethertype: Option<u16> },
    Arp { op: u16, sender: [u8; 4], target: [u8; 4] },
    Ipv4(Ipv4),
    Ipv6 { src: [u8; 16], dst: [u8; 16], hop_limit: u8, next: Option<u8>, payload_len: Option<u16> },
    Ext6 { own: u8, next: Option<u8>, body: Vec<u8> },
    Fragment6 { offset: u16, more: bool, id: u32, next: Option<u8> },
    Tcp { sport: u16, dport: u16, flags: u8, options: Vec<u8>, data_offset: Option<u8> },
    Udp { sport: u16, dport: u16, length: Option<u16>, checksum: Option<u16> },
    Icmp { own: u8, kind: u8, code: u8, rest: [u8; 4] },
    Gre { key: Option<u32> },
    Payload(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Ipv4 {
    src: [u8; 4],
    dst: [u8; 4],
    ttl: u8,
    tos: u8,
    id: u16,
    fragment: u16,
    options: Vec<u8>,
    protocol: Option<u8>,
    total_len: Option<u16>,
    ihl: Option<u8>,
    checksum: Option<u16>,
}

/// A frame under construction. Methods add the next inner layer; those named `with_…` change the layer added last and do
/// nothing to a layer of another kind.
#[derive(Clone, Debug)]
pub struct Packet {
    layers: Vec<Layer>,
    cut: Option<usize>,
    pad: usize,
}

impl Packet {
    /// Ethernet between two fixed, locally administered addresses.
    pub fn eth() -> Packet {
        Packet::eth_from([0x02, 0, 0, 0, 0, 0x01], [0x02, 0, 0, 0, 0, 0x02])
    }

    /// Ethernet from `src` to `dst`.
    pub fn eth_from(src: [u8; 6], dst: [u8; 6]) -> Packet {
        Packet { layers: vec![Layer::Eth { dst, src, ethertype: None }], cut: None, pad: 0 }
    }

    /// No link layer: the frame starts with the next layer.
    pub fn bare() -> Packet {
        Packet { layers: Vec::new(), cut: None, pad: 0 }
    }

    fn push(mut self, layer: Layer) -> Packet {
        self.layers.push(layer);
        self
    }

    /// 802.1Q tag with this TCI (VLAN id in the low twelve bits).
    pub fn vlan(self, tci: u16) -> Packet {
        self.push(Layer::Vlan { tpid: 0x8100, tci, ethertype: None })
    }

    /// 802.1ad service tag.
    pub fn qinq(self, tci: u16) -> Packet {
        self.push(Layer::Vlan { tpid: 0x88a8, tci, ethertype: None })
    }

    /// ARP for IPv4 over Ethernet; `op` 1 asks, 2 answers.
    pub fn arp(self, op: u16, sender: [u8; 4], target: [u8; 4]) -> Packet {
        self.push(Layer::Arp { op, sender, target })
    }

    /// IPv4 with TTL 64.
    pub fn ipv4(self, src: [u8; 4], dst: [u8; 4]) -> Packet {
        let (ttl, tos, id, fragment) = (64, 0, 0x1234, 0);
        let (options, protocol, total_len, ihl, checksum) = (Vec::new(), None, None, None, None);
        self.push(Layer::Ipv4(Ipv4 { src, dst, ttl, tos, id, fragment, options, protocol, total_len, ihl, checksum }))
    }

    /// IPv6 with hop limit 64.
    pub fn ipv6(self, src: [u8; 16], dst: [u8; 16]) -> Packet {
        self.push(Layer::Ipv6 { src, dst, hop_limit: 64, next: None, payload_len: None })
    }

    /// IPv6 extension header `own` (0 hop-by-hop, 43 routing, 60 destination options); `body` is what follows its next
    /// header and length bytes and is padded to a multiple of eight bytes in all (RFC 8200 section 4).
    pub fn ext6(self, own: u8, body: &[u8]) -> Packet {
        self.push(Layer::Ext6 { own, next: None, body: body.to_vec() })
    }

    /// IPv6 fragment header; `offset` in units of eight bytes.
    pub fn fragment6(self, offset: u16, more: bool, id: u32) -> Packet {
        self.push(Layer::Fragment6 { offset, more, id, next: None })
    }

    /// TCP segment.
    pub fn tcp(self, sport: u16, dport: u16, flags: u8) -> Packet {
        self.push(Layer::Tcp { sport, dport, flags, options: Vec::new(), data_offset: None })
    }

    /// UDP datagram.
    pub fn udp(self, sport: u16, dport: u16) -> Packet {
        self.push(Layer::Udp { sport, dport, length: None, checksum: None })
    }

    /// ICMP for IPv4. `rest` is the second word of the header (identifier and sequence, MTU, …).
    pub fn icmp(self, kind: u8, code: u8, rest: [u8; 4]) -> Packet {
        self.push(Layer::Icmp { own: 1, kind, code, rest })
    }

    /// ICMP for IPv6.
    pub fn icmp6(self, kind: u8, code: u8, rest: [u8; 4]) -> Packet {
        self.push(Layer::Icmp { own: 58, kind, code, rest })
    }

    /// GRE (RFC 2784), with a key (RFC 2890) on request.
    pub fn gre(self, key: Option<u32>) -> Packet {
        self.push(Layer::Gre { key })
    }

    /// Bytes as they are.
    pub fn payload(self, bytes: &[u8]) -> Packet {
        self.push(Layer::Payload(bytes.to_vec()))
    }

    /// `len` bytes of a counting pattern.
    pub fn pattern(self, len: usize) -> Packet {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        self.payload(&bytes)
    }

    /// EtherType of the last Ethernet or VLAN layer.
    pub fn with_ethertype(mut self, value: u16) -> Packet {
        if let Some(Layer::Eth { ethertype, .. } | Layer::Vlan { ethertype, .. }) = self.layers.last_mut() {
            *ethertype = Some(value);
        }
        self
    }

    fn ip4(mut self, change: impl FnOnce(&mut Ipv4)) -> Packet {
        if let Some(Layer::Ipv4(ip)) = self.layers.last_mut() {
            change(ip);
        }
        self
    }

    /// TTL of the last IPv4 layer or hop limit of the last IPv6 layer.
    pub fn with_ttl(mut self, value: u8) -> Packet {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => ip.ttl = value,
            Some(Layer::Ipv6 { hop_limit, .. }) => *hop_limit = value,
            _ => {}
        }
        self
    }

    /// Type of service of the last IPv4 layer.
    pub fn with_tos(self, tos: u8) -> Packet {
        self.ip4(|ip| ip.tos = tos)
    }

    /// Options of the last IPv4 layer, padded with end-of-list to a multiple of four; at most 40 bytes are kept.
    pub fn with_options(self, options: &[u8]) -> Packet {
        self.ip4(|ip| {
            ip.options = options[..options.len().min(40)].to_vec();
            ip.options.resize(ip.options.len().next_multiple_of(4), 0);
        })
    }

    /// Makes the last IPv4 layer a fragment; `offset` in units of eight bytes.
    pub fn with_fragment(self, offset: u16, more: bool) -> Packet {
        self.ip4(|ip| ip.fragment = (offset & 0x1fff) | u16::from(more) << 13)
    }

    /// Sets the don't-fragment bit of the last IPv4 layer.
    pub fn with_df(self) -> Packet {
        self.ip4(|ip| ip.fragment |= 0x4000)
    }

    /// A wrong header checksum for the last IPv4 layer, or a chosen one for the last UDP layer (0: not used).
    pub fn with_checksum(mut self, value: u16) -> Packet {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => ip.checksum = Some(value),
            Some(Layer::Udp { checksum, .. }) => *checksum = Some(value),
            _ => {}
        }
        self
    }

    /// Total length of the last IPv4 layer, payload length of the last IPv6 layer or length of the last UDP layer.
    pub fn with_length(mut self, value: u16) -> Packet {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => ip.total_len = Some(value),
            Some(Layer::Ipv6 { payload_len, .. }) => *payload_len = Some(value),
            Some(Layer::Udp { length, .. }) => *length = Some(value),
            _ => {}
        }
        self
    }

    /// Header length in words of the last IPv4 or TCP layer, whatever its real one.
    pub fn with_header_words(mut self, words: u8) -> Packet {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => ip.ihl = Some(words),
            Some(Layer::Tcp { data_offset, .. }) => *data_offset = Some(words),
            _ => {}
        }
        self
    }

    /// Protocol number of the last IPv4 layer or next header of the last IPv6 layer or extension header.
    pub fn with_protocol(mut self, value: u8) -> Packet {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => ip.protocol = Some(value),
            Some(Layer::Ipv6 { next, .. } | Layer::Ext6 { next, .. } | Layer::Fragment6 { next, .. }) => {
                *next = Some(value);
            }
            _ => {}
        }
        self
    }

    /// Options of the last TCP layer, padded to a multiple of four; at most 40 bytes are kept.
    pub fn with_tcp_options(mut self, bytes: &[u8]) -> Packet {
        if let Some(Layer::Tcp { options, .. }) = self.layers.last_mut() {
            *options = bytes[..bytes.len().min(40)].to_vec();
            options.resize(options.len().next_multiple_of(4), 0);
        }
        self
    }

    /// Cuts the finished frame to at most `len` bytes.
    pub fn cut(mut self, len: usize) -> Packet {
        self.cut = Some(len);
        self
    }

    /// Pads the finished frame with zeros to at least `len` bytes.
    pub fn pad_to(mut self, len: usize) -> Packet {
        self.pad = len;
        self
    }

    /// The frame's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for at in (0..self.layers.len()).rev() {
            body = self.layer(at, body);
        }
        if body.len() < self.pad {
            body.resize(self.pad, 0);
        }
        body.truncate(self.cut.unwrap_or(usize::MAX));
        body
    }

    /// One layer around what it carries.
    fn layer(&self, at: usize, body: Vec<u8>) -> Vec<u8> {
        let inner = self.layers.get(at + 1);
        let mut out = Vec::with_capacity(body.len() + 60);
        match &self.layers[at] {
            Layer::Eth { dst, src, ethertype } => {
                out.extend(dst);
                out.extend(src);
                out.extend(ethertype.unwrap_or(ethertype_of(inner)).to_be_bytes());
            }
            Layer::Vlan { tci, ethertype, .. } => {
                out.extend(tci.to_be_bytes());
                out.extend(ethertype.unwrap_or(ethertype_of(inner)).to_be_bytes());
            }
            Layer::Arp { op, sender, target } => {
                out.extend([0, 1, 0x08, 0, 6, 4]);
                out.extend(op.to_be_bytes());
                out.extend([0x02, 0, 0, 0, 0, 0x01]);
                out.extend(sender);
                out.extend([0; 6]);
                out.extend(target);
            }
            Layer::Ipv4(ip) => out = ip.header(body.len(), protocol_of(inner)),
            Layer::Ipv6 { src, dst, hop_limit, next, payload_len } => {
                out.extend([0x60, 0, 0, 0]);
                out.extend(payload_len.unwrap_or(body.len() as u16).to_be_bytes());
                out.extend([next.unwrap_or(protocol_of(inner)), *hop_limit]);
                out.extend(src);
                out.extend(dst);
            }
            Layer::Ext6 { next, body: own_body, .. } => {
                let len = (own_body.len() + 2).next_multiple_of(8);
                out.extend([next.unwrap_or(protocol_of(inner)), (len / 8 - 1) as u8]);
                out.extend(own_body);
                out.resize(len, 0);
            }
            Layer::Fragment6 { offset, more, id, next } => {
                out.extend([next.unwrap_or(protocol_of(inner)), 0]);
                out.extend((offset << 3 | u16::from(*more)).to_be_bytes());
                out.extend(id.to_be_bytes());
            }
            Layer::Tcp { sport, dport, flags, options, data_offset } => {
                out.extend(sport.to_be_bytes());
                out.extend(dport.to_be_bytes());
                out.extend([0, 0, 0, 1, 0, 0, 0, 0]);
                let words = data_offset.unwrap_or(5 + (options.len() / 4) as u8);
                out.extend([words << 4, *flags, 0xff, 0xff, 0, 0, 0, 0]);
                out.extend(options);
                let sum = self.transport_checksum(at, 6, &out, &body);
                out[16..18].copy_from_slice(&sum.to_be_bytes());
            }
            Layer::Udp { sport, dport, length, checksum } => {
                out.extend(sport.to_be_bytes());
                out.extend(dport.to_be_bytes());
                out.extend(length.unwrap_or(8 + body.len() as u16).to_be_bytes());
                out.extend([0, 0]);
                // A sum of zero is sent as all ones (RFC 768).
                let sum = match self.transport_checksum(at, 17, &out, &body) {
                    0 => 0xffff,
                    sum => sum,
                };
                out[6..8].copy_from_slice(&checksum.unwrap_or(sum).to_be_bytes());
            }
            Layer::Icmp { own, kind, code, rest } => {
                out.extend([*kind, *code, 0, 0]);
                out.extend(rest);
                let sum = match own {
                    1 => internet_checksum(&[&out, &body]),
                    _ => self.transport_checksum(at, *own, &out, &body),
                };
                out[2..4].copy_from_slice(&sum.to_be_bytes());
            }
            Layer::Gre { key } => {
                out.extend([if key.is_some() { 0x20 } else { 0 }, 0]);
                out.extend(ethertype_of(inner).to_be_bytes());
                out.extend(key.iter().flat_map(|key| key.to_be_bytes()));
            }
            Layer::Payload(bytes) => out.extend(bytes),
        }
        out.extend(body);
        out
    }

    /// Checksum of a transport header and its body with the pseudo header of the nearest IP layer outside it.
    fn transport_checksum(&self, at: usize, protocol: u8, header: &[u8], body: &[u8]) -> u16 {
        let len = (header.len() + body.len()) as u32;
        let mut pseudo = Vec::new();
        match self.layers[..at].iter().rfind(|l| matches!(l, Layer::Ipv4(_) | Layer::Ipv6 { .. })) {
            Some(Layer::Ipv4(ip)) => {
                pseudo.extend(ip.src);
                pseudo.extend(ip.dst);
            }
            Some(Layer::Ipv6 { src, dst, .. }) => {
                pseudo.extend(src);
                pseudo.extend(dst);
            }
            _ => {}
        }
        pseudo.extend(len.to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        internet_checksum(&[&pseudo, header, body])
    }
}

impl Ipv4 {
    fn header(&self, body_len: usize, inner: u8) -> Vec<u8> {
        let len = 20 + self.options.len();
        let mut out = Vec::with_capacity(len + body_len);
        out.extend([0x40 | self.ihl.unwrap_or((len / 4) as u8) & 0x0f, self.tos]);
        out.extend(self.total_len.unwrap_or((len + body_len) as u16).to_be_bytes());
        out.extend(self.id.to_be_bytes());
        out.extend(self.fragment.to_be_bytes());
        out.extend([self.ttl, self.protocol.unwrap_or(inner), 0, 0]);
        out.extend(self.src);
        out.extend(self.dst);
        out.extend(&self.options);
        let sum = self.checksum.unwrap_or(internet_checksum(&[&out]));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out
    }
}

fn ethertype_of(inner: Option<&Layer>) -> u16 {
    match inner {
        Some(Layer::Vlan { tpid, .. }) => *tpid,
        Some(Layer::Arp { .. }) => 0x0806,
        Some(Layer::Ipv4(_)) => 0x0800,
        Some(Layer::Ipv6 { .. }) => 0x86dd,
        Some(Layer::Eth { .. }) => 0x6558,
        // Reserved for experiments (IEEE 802).
        _ => 0x88b5,
    }
}

fn protocol_of(inner: Option<&Layer>) -> u8 {
    match inner {
        Some(Layer::Ipv4(_)) => 4,
        Some(Layer::Ipv6 { .. }) => 41,
        Some(Layer::Ext6 { own, .. } | Layer::Icmp { own, .. }) => *own,
        Some(Layer::Fragment6 { .. }) => 44,
        Some(Layer::Tcp { .. }) => 6,
        Some(Layer::Udp { .. }) => 17,
        Some(Layer::Gre { .. }) => 47,
        // Reserved for experiments (RFC 3692); IPv6's "no next header" when nothing follows.
        Some(_) => 253,
        None => 59,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_filled_in() {
        let frame = Packet::eth().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).payload(b"abc").build();
        assert_eq!(&frame[12..14], [0x08, 0x00]);
        assert_eq!(&frame[16..18], [0, 31], "total length");
        assert_eq!(frame[23], 17);
        assert_eq!(internet_checksum(&[&frame[14..34]]), 0, "a header with its checksum sums to zero");
        let pseudo = [&frame[26..34], &[0, 17, 0, 11]].concat();
        assert_eq!(internet_checksum(&[&pseudo, &frame[34..]]), 0);
    }

    #[test]
    fn tunnels_take_the_pseudo_header_of_the_inner_layer() {
        let inner = Packet::bare().ipv4([1; 4], [2; 4]).tcp(1, 2, tcp_flags::SYN).build();
        let frame = Packet::eth().ipv4([9; 4], [8; 4]).ipv4([1; 4], [2; 4]).tcp(1, 2, tcp_flags::SYN).build();
        assert_eq!(frame[23], 4);
        assert_eq!(&frame[34..], inner);
    }

    #[test]
    fn what_a_test_sets_stays() {
        let ip = Packet::bare().ipv4([1; 4], [2; 4]).with_header_words(3).with_length(9).with_checksum(7).build();
        assert_eq!((ip[0], ip[3], ip[11]), (0x43, 9, 7));
        assert_eq!(Packet::eth().pattern(50).cut(20).build().len(), 20);
        assert_eq!(Packet::eth().pad_to(60).build().len(), 60);
        let ext = Packet::bare().ipv6([0; 16], [1; 16]).ext6(60, &[1, 4]).udp(1, 2).build();
        assert_eq!((ext[6], ext[40], ext[41], ext.len()), (60, 17, 0, 56));
    }
}
