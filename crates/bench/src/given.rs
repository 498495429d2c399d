//! What a user's maps are to hold before the first packet: elements that are named, or a key for each flow of the packets.
//!
//! A key is made from a flow as the key's type says: members of a struct by their names and lengths (`saddr`, `dport`, `proto` and their
//! kin), everything else by its length alone, as the suite's own programs have it.

use std::collections::HashSet;
use std::sync::Arc;

use xway_abi::MapType;
use xway_object::btf::Kind;
use xway_object::{Btf, MapDef, Object};

use crate::fill::{Content, Form};
use crate::flows::{Fields, Space};
use crate::packet::PROTOCOL;

/// What goes into one map.
#[derive(Clone, Debug)]
pub enum Given {
    /// These elements.
    Elements(Arc<Content>),
    /// A key for each flow, as many as fit.
    Flows {
        /// Name of the map.
        map: String,
        /// The value of each.
        value: Vec<u8>,
    },
}

impl Given {
    /// The map that it is for.
    pub fn map(&self) -> &str {
        match self {
            Given::Elements(content) => &content.map,
            Given::Flows { map, .. } => map,
        }
    }

    /// How many elements it may come to.
    pub fn at_most(&self, flows: u32) -> u32 {
        match self {
            Given::Elements(content) => content.count,
            Given::Flows { .. } => flows,
        }
    }

    /// The elements, for packets of so many flows.
    ///
    /// # Errors
    /// In words why no key can be made from a flow.
    pub fn content(&self, object: &Object, flows: u32, space: Space) -> Result<Arc<Content>, String> {
        let Given::Flows { map, value } = self else { return Ok(self.elements()) };
        let def = object.map_index(map).map(|index| &object.maps[index]).ok_or("there is no such map")?;
        let key = FlowKey::of(object, def)?;
        let mut content = Content { map: map.clone(), ..Content::default() };
        // Of the service's own address there is one key, however many flows.
        let mut seen = HashSet::new();
        for flow in 0..flows {
            let key = key.bytes(&Fields::of(flow, space));
            if seen.contains(&key) {
                continue;
            }
            if content.count == def.spec.max_entries {
                content.cut = true;
                break;
            }
            content.push(&key, value);
            seen.insert(key);
        }
        Ok(Arc::new(content))
    }

    fn elements(&self) -> Arc<Content> {
        match self {
            Given::Elements(content) => content.clone(),
            Given::Flows { .. } => Arc::default(),
        }
    }
}

impl Content {
    /// Elements for the map of this name.
    ///
    /// `elements` are keys and values of its lengths; of `form` says what values are.
    pub fn of(map: &str, form: Form, elements: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Content {
        let mut content = Content { map: map.to_owned(), form, ..Content::default() };
        elements.into_iter().for_each(|(key, value)| content.push(&key, &value));
        content
    }
}

/// What a flow has for a place in a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    /// Source port, destination port.
    Ports,
    /// In the machine's order where it is longer than a byte.
    Protocol,
    /// Of a trie: all of the key behind it.
    PrefixLength,
    /// Nothing; zeros.
    Padding,
}

/// A piece of a key: what, where, how long.
type Piece = (Part, usize, usize);

/// How a key is made from a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowKey {
    pieces: Vec<Piece>,
    len: usize,
}

/// What is said where a key has another length or other members.
const KNOWN: &str = "the source address (4 bytes), both addresses (8), these and the ports (12), and the protocol (13, 16), \
                     or members named like saddr, daddr, sport, dport and proto";

impl FlowKey {
    /// For this map.
    ///
    /// # Errors
    /// In words why flows have no such key.
    pub fn of(object: &Object, def: &MapDef) -> Result<FlowKey, String> {
        use MapType::{Hash, LpmTrie, LruHash, LruPercpuHash, PercpuHash};
        let (kind, len) = (def.spec.map_type, def.spec.key_size as usize);
        if !matches!(kind, Hash | LpmTrie | LruHash | LruPercpuHash | PercpuHash) {
            return Err(format!("{} has no keys that could be flows: hash tables and tries have", kind.name()));
        }
        let front = if kind == LpmTrie { 4 } else { 0 };
        let typed = object.btf.as_deref().filter(|btf| def.key_type != 0 && is_struct(btf, def.key_type));
        let mut pieces = Vec::new();
        match typed {
            Some(btf) => {
                let mut leaves = Vec::new();
                flatten(btf, def.key_type, ("", 0), &mut leaves, 8)?;
                // The first member of a trie's key is its prefix length, whatever it is called.
                let (first, rest) = leaves.split_at(usize::from(front != 0).min(leaves.len()));
                if first.iter().all(|leaf| (leaf.at, leaf.len) == (0, 4)) {
                    pieces = named(rest).map_err(|member| {
                        format!("its key has a member {member:?}, of which flows have nothing: they have {KNOWN}")
                    })?;
                }
            }
            None => pieces.extend(by_length(len.saturating_sub(front)).iter().map(|(p, at, n)| (*p, at + front, *n))),
        }
        if pieces.iter().all(|(part, ..)| *part == Part::Padding) {
            return Err(format!("its key of {len} bytes cannot be made from a flow, which has {KNOWN}"));
        }
        pieces.extend((front != 0).then_some((Part::PrefixLength, 0, 4)));
        Ok(FlowKey { pieces, len })
    }

    /// The key of a flow.
    pub fn bytes(&self, fields: &Fields) -> Vec<u8> {
        let mut key = vec![0; self.len];
        for &(part, at, len) in &self.pieces {
            let number = |n: u32| n.to_ne_bytes();
            let bytes: &[u8] = match part {
                Part::Source => &fields.source,
                Part::Destination => &fields.destination,
                Part::SourcePort => &fields.ports[..2],
                Part::DestinationPort => &fields.ports[2..],
                Part::Ports => &fields.ports,
                Part::Protocol => match len {
                    1 => &[PROTOCOL],
                    2 => &u16::from(PROTOCOL).to_ne_bytes(),
                    _ => &number(PROTOCOL.into()),
                },
                Part::PrefixLength => &number((self.len as u32 - 4) * 8),
                Part::Padding => continue,
            };
            key[at..at + len].copy_from_slice(&bytes[..len]);
        }
        key
    }
}

fn is_struct(btf: &Btf, ty: u32) -> bool {
    btf.resolve(ty).is_ok_and(|(_, t)| matches!(t.kind, Kind::Struct(_) | Kind::Union(_)))
}

/// Keys without a struct: what the suite's tables have at these lengths (`struct flow` of `bpf/bench/flow.h` is the longest).
fn by_length(len: usize) -> &'static [Piece] {
    use Part::{Destination, Ports, Protocol, Source};
    const ALL: [Piece; 4] = [(Source, 0, 4), (Destination, 4, 4), (Ports, 8, 4), (Protocol, 12, 4)];
    match len {
        4 => &ALL[..1],
        8 => &ALL[..2],
        12 => &ALL[..3],
        13 => &[(Source, 0, 4), (Destination, 4, 4), (Ports, 8, 4), (Protocol, 12, 1)],
        16 => &ALL,
        _ => &[],
    }
}

/// A member that is no struct.
struct Leaf<'a> {
    name: &'a str,
    at: usize,
    len: usize,
}

/// The members of a struct, those of structs in it too. Of a union the first member that flows have something for.
fn flatten<'a>(
    btf: &'a Btf,
    ty: u32,
    (name, at): (&'a str, usize),
    leaves: &mut Vec<Leaf<'a>>,
    depth: usize,
) -> Result<(), String> {
    let len = btf.size_of(ty).map_err(|e| e.to_string())? as usize;
    let (_, resolved) = btf.resolve(ty).map_err(|e| e.to_string())?;
    let Some(depth) = depth.checked_sub(1) else { return Err("its key's type is nested too deeply".into()) };
    match resolved.kind {
        Kind::Struct(all) => {
            for m in all.members() {
                if m.bit_size != 0 {
                    return Err(format!("its key has a bit field {:?}, of which flows have nothing", m.name));
                }
                let name = if m.name.is_empty() { name } else { m.name };
                flatten(btf, m.ty, (name, at + m.bit_offset as usize / 8), leaves, depth)?;
            }
        }
        Kind::Union(all) => {
            for m in all.members().filter(|m| m.bit_size == 0) {
                let mut inner = Vec::new();
                let name = if m.name.is_empty() { name } else { m.name };
                flatten(btf, m.ty, (name, at), &mut inner, depth)?;
                if named(&inner).is_ok() {
                    leaves.extend(inner);
                    return Ok(());
                }
            }
            leaves.push(Leaf { name, at, len });
        }
        _ => leaves.push(Leaf { name, at, len }),
    }
    Ok(())
}

/// What members are by their names; the name of the first that is nothing known.
fn named<'a>(leaves: &[Leaf<'a>]) -> Result<Vec<Piece>, &'a str> {
    let mut pieces = leaves
        .iter()
        .map(|leaf| meaning(leaf.name, leaf.len).map(|part| (part, leaf.at, leaf.len)).ok_or(leaf.name))
        .collect::<Result<Vec<Piece>, &str>>()?;
    // An address that is only called so is a service's beside a port, and a sender's alone.
    let has = |pieces: &[Piece], part: Part| pieces.iter().any(|piece| piece.0 == part);
    let service = has(&pieces, Part::DestinationPort) && !has(&pieces, Part::Destination);
    for (piece, leaf) in pieces.iter_mut().zip(leaves) {
        if service && piece.0 == Part::Source && plain(leaf.name).is_empty() {
            piece.0 = Part::Destination;
        }
    }
    Ok(pieces)
}

/// A name without what says only that it is an address, or of which kind.
fn plain(name: &str) -> String {
    let mut name = name.to_ascii_lowercase().replace('_', "");
    for word in ["address", "addr", "ipv4", "ip4", "v4", "ip"] {
        name = name.replace(word, "");
    }
    name.trim_end_matches('4').to_owned()
}

fn meaning(name: &str, len: usize) -> Option<Part> {
    let bare = name.to_ascii_lowercase().replace('_', "");
    let word = plain(name);
    let of = |word: &str| match word {
        "s" | "src" | "source" | "client" => Some(true),
        "d" | "dst" | "dest" | "destination" | "v" | "virtual" | "service" | "svc" => Some(false),
        _ => None,
    };
    if ["pad", "reserved", "unused", "zero", "res"].iter().any(|pad| bare.starts_with(pad)) {
        return Some(Part::Padding);
    }
    match len {
        1 | 2 | 4 if bare.contains("proto") || matches!(&bare[..], "nexthdr" | "l4") => Some(Part::Protocol),
        2 => match (of(word.trim_end_matches("port")), bare.ends_with("port")) {
            (Some(true), _) => Some(Part::SourcePort),
            (Some(false), _) => Some(Part::DestinationPort),
            (None, true) if bare == "port" => Some(Part::DestinationPort),
            _ => None,
        },
        4 if matches!(&bare[..], "ports" | "port" | "port16") => Some(Part::Ports),
        4 => match of(&word) {
            Some(true) => Some(Part::Source),
            Some(false) => Some(Part::Destination),
            None => word.is_empty().then_some(Part::Source),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_abi::MapSpec;
    use xway_object::btf::{BtfBuilder, IntEncoding};

    const FLOW: Fields = Fields { source: [10, 0, 0, 1], destination: [192, 0, 2, 9], ports: [4, 0, 0, 80] };

    /// The key of [`FLOW`] for a struct of members (name, bytes), at the end of `front` bytes of a trie's.
    fn key(map_type: MapType, members: &[(&str, usize)]) -> Result<Vec<u8>, String> {
        let mut btf = BtfBuilder::new();
        let ints = [1, 2, 4, 8].map(|n| (n as usize, btf.int("int", n, IntEncoding::Unsigned)));
        let (mut at, mut all) = (0, Vec::new());
        for (name, len) in members {
            let ty = ints.iter().find(|(n, _)| n == len).expect("a length").1;
            all.push((*name, ty, at * 8));
            at += *len as u32;
        }
        let key_type = btf.structure("key", at, &all);
        let mut def = MapDef::new("m", MapSpec::new(map_type, at, 8, 10));
        def.key_type = key_type;
        let object = Object { btf: Some(Arc::new(btf.finish())), maps: vec![def.clone()], ..Object::default() };
        FlowKey::of(&object, &def).map(|key| key.bytes(&FLOW))
    }

    fn untyped(map_type: MapType, len: u32) -> Result<Vec<u8>, String> {
        let def = MapDef::new("m", MapSpec::new(map_type, len, 8, 10));
        FlowKey::of(&Object::default(), &def).map(|key| key.bytes(&FLOW))
    }

    #[test]
    fn keys_without_types_go_by_their_length() {
        let all = [&FLOW.source[..], &FLOW.destination, &FLOW.ports, &u32::from(PROTOCOL).to_ne_bytes()].concat();
        for len in [4, 8, 12, 16] {
            assert_eq!(untyped(MapType::Hash, len).as_deref(), Ok(&all[..len as usize]));
        }
        assert_eq!(untyped(MapType::LruHash, 16).unwrap(), FLOW.tuple(PROTOCOL), "as the suite has it");
        assert_eq!(untyped(MapType::Hash, 13).unwrap()[12], PROTOCOL);
        assert_eq!(untyped(MapType::LpmTrie, 8).unwrap(), [&32u32.to_ne_bytes()[..], &FLOW.source].concat());
        assert!(untyped(MapType::Hash, 20).unwrap_err().contains("key of 20 bytes"));
        assert!(untyped(MapType::Array, 4).unwrap_err().starts_with("array has no keys"));
    }

    /// A key that all flows share leaves none out, nor do ports, of which several flows have the same.
    #[test]
    fn flows_without_room_are_noticed() {
        let filled = |members: &[(&str, usize)], room: u32| {
            let (mut btf, mut at, mut all) = (BtfBuilder::new(), 0, Vec::new());
            for (name, len) in members {
                all.push((*name, btf.int("int", *len as u32, IntEncoding::Unsigned), at * 8));
                at += *len as u32;
            }
            let mut def = MapDef::new("m", MapSpec::new(MapType::Hash, at, 1, room));
            def.key_type = btf.structure("key", at, &all);
            let object = Object { btf: Some(Arc::new(btf.finish())), maps: vec![def], ..Object::default() };
            let given = Given::Flows { map: "m".into(), value: vec![0] };
            let content = given.content(&object, 70_000, Space::Sources).expect("keys");
            (content.count, content.cut)
        };
        assert_eq!(filled(&[("vip", 4), ("port", 2)], 1), (1, false));
        assert_eq!(filled(&[("saddr", 4)], 70_000), (70_000, false));
        assert_eq!(filled(&[("saddr", 4)], 69_999), (69_999, true));
        let (ports, cut) = filled(&[("sport", 2)], 70_000);
        assert!(ports < 60_000 && !cut, "{ports}");
        assert_eq!(filled(&[("sport", 2)], ports), (ports, false));
        assert_eq!(filled(&[("sport", 2)], 16), (16, true));
    }

    #[test]
    fn members_are_known_by_their_names() {
        let five = [("proto", 1), ("pad", 1), ("dport", 2), ("src_ip", 4), ("dst_ip", 4), ("src_port", 2), ("zero", 2)];
        let expected = [&[PROTOCOL, 0, 0, 80][..], &FLOW.source, &FLOW.destination, &[4, 0, 0, 0]].concat();
        assert_eq!(key(MapType::Hash, &five).unwrap(), expected);
        let kinds =
            [("saddr", "daddr"), ("sip", "dip"), ("source", "dest"), ("ip_src", "ip_dst"), ("client_ip", "vip")];
        for (source, destination) in kinds {
            let both = key(MapType::LruHash, &[(destination, 4), (source, 4)]).unwrap();
            assert_eq!(both, [FLOW.destination, FLOW.source].concat(), "{source}, {destination}");
        }
        // An address and a port are a service; an address alone is who sends.
        let service = key(MapType::Hash, &[("address", 4), ("port", 2), ("protocol", 2)]).unwrap();
        assert_eq!(service, [&FLOW.destination[..], &[0, 80], &u16::from(PROTOCOL).to_ne_bytes()].concat());
        let trie = key(MapType::LpmTrie, &[("bits", 4), ("addr", 4)]).unwrap();
        assert_eq!(trie, [&32u32.to_ne_bytes()[..], &FLOW.source].concat());
        let zone = key(MapType::Hash, &[("saddr", 4), ("zone", 4)]).unwrap_err();
        assert!(zone.contains("a member \"zone\"") && zone.contains("saddr, daddr"), "{zone}");
        assert!(key(MapType::Hash, &[("pad", 4)]).unwrap_err().contains("key of 4 bytes"));
    }

    /// Katran's: addresses of both families in one place, ports as a word or as two.
    #[test]
    fn of_a_union_what_is_known_is_taken() {
        let mut btf = BtfBuilder::new();
        let [byte, half, word] = [1, 2, 4].map(|n| btf.int("int", n, IntEncoding::Unsigned));
        let (long, two) = (btf.array(word, word, 4), btf.array(half, word, 2));
        let either = |btf: &mut BtfBuilder, name: &str, short: u32, other: u32, len: u32| {
            let six = format!("{name}v6");
            btf.union("", len, &[(&six, other, 0), (name, short, 0)])
        };
        let (src, dst) = (either(&mut btf, "src", word, long, 16), either(&mut btf, "dst", word, long, 16));
        let ports = btf.union("", 4, &[("port16", two, 0), ("ports", word, 0)]);
        let members = [("", src, 0), ("", dst, 128), ("", ports, 256), ("proto", byte, 288)];
        let key_type = btf.structure("flow_key", 40, &members);
        let mut def = MapDef::new("m", MapSpec::new(MapType::LruHash, 40, 4, 10));
        def.key_type = key_type;
        let object = Object { btf: Some(Arc::new(btf.finish())), maps: vec![def.clone()], ..Object::default() };
        let key = FlowKey::of(&object, &def).unwrap().bytes(&FLOW);
        assert_eq!((&key[..4], &key[16..20]), (&FLOW.source[..], &FLOW.destination[..]));
        assert_eq!((&key[32..36], key[36], key.len()), (&FLOW.ports[..], PROTOCOL, 40));
    }

    #[test]
    fn there_are_as_many_as_fit_and_each_once() {
        let flows = |map_type, len, entries, flows| {
            let def = MapDef::new("m", MapSpec::new(map_type, len, 8, entries));
            let object = Object { maps: vec![def], ..Object::default() };
            let given = Given::Flows { map: "m".into(), value: vec![7; 8] };
            given.content(&object, flows, Space::Sources).unwrap()
        };
        let full = flows(MapType::Hash, 4, 100, 1000);
        assert_eq!((full.count, full.keys.len(), full.values.len()), (100, 400, 800));
        assert_eq!(flows(MapType::Hash, 4, 100, 30).count, 30);
        let given = Given::Flows { map: "other".into(), value: vec![] };
        assert!(given.content(&Object::default(), 1, Space::Sources).is_err());
    }
}
