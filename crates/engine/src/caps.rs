//! What a port can do, verdict by verdict and feature by feature.

use xway_abi::{MapType, Verdict};

/// Whether a verdict works on a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// As on a Linux driver.
    Full,
    /// On the port's own copy of the packet only: another copy goes its way whatever the program says.
    CopyOnly,
    /// Not at all; the frame is dropped and counted.
    None,
}

/// Whose memory the frames are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryModel {
    /// Packets are copied into frames of the engine's pool.
    Copy,
    /// The device writes into the pool's memory.
    Shared,
}

impl MemoryModel {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryModel::Copy => "copied",
            MemoryModel::Shared => "shared with the device",
        }
    }
}

/// What a port can do. A program's needs are compared with this before it is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// DROP and ABORTED.
    pub drop: Support,
    /// PASS.
    pub pass: Support,
    /// TX.
    pub tx: Support,
    /// REDIRECT of a frame that came in here.
    pub redirect_from: Support,
    /// REDIRECT of a frame of any port to this one.
    pub redirect_to: Support,
    /// Bytes in front of a received packet; `u32::MAX` for whatever the pool gives.
    pub headroom: u32,
    /// Bytes behind a received packet; `u32::MAX` for whatever the pool gives.
    pub tailroom: u32,
    /// Metadata area in front of the packet (`bpf_xdp_adjust_meta`).
    pub metadata: bool,
    /// Receive hash.
    pub rx_hash: bool,
    /// Receive time stamp.
    pub rx_timestamp: bool,
    /// VLAN tags that the device takes out are told.
    pub rx_vlan: bool,
    /// Frames of several buffers may come in: programs must be made for them (section `xdp.frags`), as Linux asks of an interface
    /// whose packets may not fit a page.
    pub multi_buffer: bool,
    /// Takes frames of several buffers to send.
    pub multi_buffer_tx: bool,
    /// Packets reach programs without a copy.
    pub zero_copy: bool,
    /// Programs may change packets. A port that was opened read-only takes only programs that are proved not to.
    pub writable: bool,
    /// Whose memory the frames are.
    pub memory: MemoryModel,
}

impl Capabilities {
    /// A port that copies packets into pool frames and can do nothing with them but drop.
    pub const fn copying() -> Capabilities {
        Capabilities {
            drop: Support::Full,
            pass: Support::None,
            tx: Support::None,
            redirect_from: Support::Full,
            redirect_to: Support::None,
            headroom: u32::MAX,
            tailroom: u32::MAX,
            metadata: true,
            rx_hash: false,
            rx_timestamp: false,
            rx_vlan: false,
            multi_buffer: false,
            multi_buffer_tx: false,
            zero_copy: false,
            writable: true,
            memory: MemoryModel::Copy,
        }
    }

    /// Whether a verdict works for frames that came in here.
    pub const fn verdict(&self, verdict: Verdict) -> Support {
        match verdict {
            Verdict::Aborted | Verdict::Drop => self.drop,
            Verdict::Pass => self.pass,
            Verdict::Tx => self.tx,
            Verdict::Redirect => self.redirect_from,
        }
    }
}

/// What a program needs of the port that it is attached to, from its verified instructions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Verdicts that it can return.
    pub verdicts: Vec<Verdict>,
    /// It uses the metadata area in front of the packet.
    pub metadata: bool,
    /// It asks for the receive hash. Not having one is not refused: the kfunc says `ENODATA`, as on Linux.
    pub rx_hash: bool,
    /// It asks for the receive time, likewise.
    pub rx_timestamp: bool,
    /// It asks for the VLAN tag that the device took out, likewise.
    pub rx_vlan: bool,
    /// It is made for packets of several buffers: the only kind of program for a port where such packets come in.
    pub frags: bool,
    /// Why it cannot be had where packets are read-only: what it, or somebody whom it hands packets on to, may do to them.
    pub writes: Option<&'static str>,
}

impl Needs {
    /// Of a linked program: what the verifier found, or nothing where there is no proof, and whether its section says `.frags`.
    pub fn of_program(program: &xway_vm::Program) -> Needs {
        let facts = program.proof().map_or_else(Needs::default, |proof| Needs::of(proof.facts()));
        Needs { frags: program.kind().frags(), writes: may_write(program), ..facts }
    }

    /// From what the verifier found.
    pub fn of(facts: &xway_verifier::Facts) -> Needs {
        let kfunc = |name: &str| facts.kfuncs.iter().any(|known| known == name);
        Needs {
            verdicts: facts.verdicts.clone().unwrap_or_default(),
            metadata: facts.meta_used,
            rx_hash: kfunc("bpf_xdp_metadata_rx_hash"),
            rx_timestamp: kfunc("bpf_xdp_metadata_rx_timestamp"),
            rx_vlan: kfunc("bpf_xdp_metadata_rx_vlan_tag"),
            frags: false,
            writes: changes_packets(facts),
        }
    }

    /// What a port lacks that the program cannot do without, by name. PASS is never among it, because where PASS goes can be
    /// chosen; frames that it loses are counted.
    pub fn missing(&self, port: &Capabilities) -> Vec<&'static str> {
        let verdict =
            |verdict, name| (self.verdicts.contains(&verdict) && port.verdict(verdict) == Support::None, name);
        let all = [
            verdict(Verdict::Drop, "drop"),
            verdict(Verdict::Tx, "tx"),
            verdict(Verdict::Redirect, "redirect-from"),
            (self.metadata && !port.metadata, "metadata"),
            (self.writes.is_some() && !port.writable, self.writes.unwrap_or_default()),
        ];
        all.into_iter().filter(|(missing, _)| *missing).map(|(_, name)| name).collect()
    }

    /// What the program lacks that the port asks of its programs, by name: where packets of several buffers come in, one that is
    /// not made for them would see their first parts only.
    pub fn lacking(&self, port: &Capabilities) -> Vec<&'static str> {
        if port.multi_buffer && !self.frags { vec!["frags (section xdp.frags)"] } else { Vec::new() }
    }

    /// What a port lacks that the program can do without, by name: it gets an error where it asks.
    pub fn absent(&self, port: &Capabilities) -> Vec<&'static str> {
        let all = [
            (self.rx_hash && !port.rx_hash, "rx-hash"),
            (self.rx_timestamp && !port.rx_timestamp, "rx-timestamp"),
            (self.rx_vlan && !port.rx_vlan, "vlan-tag"),
        ];
        all.into_iter().filter(|(missing, _)| *missing).map(|(_, name)| name).collect()
    }
}

/// How a program changes packets, if some run of it does.
fn changes_packets(facts: &xway_verifier::Facts) -> Option<&'static str> {
    let stores = |id: &u32| xway_abi::helper(*id).is_some_and(|h| h.effect == xway_abi::Effect::StoresPacket);
    let slice = || facts.kfuncs.iter().any(|name| name == "bpf_dynptr_slice_rdwr" || name == "bpf_dynptr_from_xdp");
    let ways = [
        (facts.packet_written, "write access (it stores into packets)"),
        (facts.meta_written, "write access (it stores into metadata)"),
        (facts.packet_moved, "write access (it moves the ends of packets)"),
        (facts.helpers.iter().any(stores), "write access (its helpers store into packets)"),
        (slice(), "write access (dynptrs of packets)"),
        (facts.tail_calls, "write access (whatever its tail calls lead to may ask for it)"),
    ];
    ways.into_iter().find(|(does, _)| *does).map(|(_, how)| how)
}

/// The same of a linked program, with those that stand in its maps: what a redirect leads to runs over the packet too.
fn may_write(program: &xway_vm::Program) -> Option<&'static str> {
    let Some(proof) = program.proof() else { return Some("write access (it has no proof)") };
    let maps = proof.facts().maps.iter().filter_map(|at| program.maps().get(*at as usize));
    // An index alone, or an index and a program.
    let mut holds = maps.filter(|map| {
        matches!(map.map_type(), MapType::Devmap | MapType::DevmapHash | MapType::Cpumap) && map.value_size() > 4
    });
    let behind = holds.next().map(|_| "write access (programs in the map that it redirects through may ask for it)");
    changes_packets(proof.facts()).or(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_listed_by_name() {
        let port = Capabilities { metadata: false, ..Capabilities::copying() };
        let needs = Needs { verdicts: Verdict::ALL.to_vec(), metadata: true, rx_hash: true, ..Needs::default() };
        assert_eq!(needs.missing(&port), ["tx", "metadata"]);
        assert_eq!(needs.absent(&port), ["rx-hash"]);
        let able = Capabilities { tx: Support::CopyOnly, metadata: true, rx_hash: true, ..port };
        assert_eq!((needs.missing(&able), needs.absent(&able)), (vec![], vec![]));
        assert!(Needs::default().missing(&port).is_empty());
    }

    #[test]
    fn programs_that_change_packets_need_packets_that_can_be_changed() {
        let read_only = Capabilities { writable: false, ..Capabilities::copying() };
        let of = |facts: xway_verifier::Facts| Needs::of(&facts);
        let reads = of(xway_verifier::Facts { packet_bytes: 60, ..Default::default() });
        assert!(reads.missing(&read_only).is_empty());
        let store_bytes = xway_abi::helper_by_name("bpf_xdp_store_bytes").unwrap();
        for (facts, how) in [
            (xway_verifier::Facts { packet_written: true, ..Default::default() }, "stores into"),
            (xway_verifier::Facts { meta_written: true, ..Default::default() }, "stores into metadata"),
            (xway_verifier::Facts { packet_moved: true, ..Default::default() }, "moves the ends"),
            (xway_verifier::Facts { helpers: vec![store_bytes.id], ..Default::default() }, "helpers store"),
            (xway_verifier::Facts { kfuncs: vec!["bpf_dynptr_from_xdp".into()], ..Default::default() }, "dynptrs"),
            (xway_verifier::Facts { tail_calls: true, ..Default::default() }, "tail calls"),
        ] {
            let needs = of(facts);
            let missing = needs.missing(&read_only);
            assert!(missing.len() == 1 && missing[0].starts_with("write access (") && missing[0].contains(how));
            assert!(needs.missing(&Capabilities::copying()).is_empty());
        }
    }

    #[test]
    fn packets_of_several_buffers_ask_for_programs_that_know_them() {
        let port = Capabilities { multi_buffer: true, ..Capabilities::copying() };
        let frags = Needs { frags: true, ..Needs::default() };
        assert_eq!(Needs::default().lacking(&port), ["frags (section xdp.frags)"]);
        assert!(frags.lacking(&port).is_empty());
        assert!(Needs::default().lacking(&Capabilities::copying()).is_empty());
    }
}
