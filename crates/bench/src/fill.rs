//! What maps hold before the first packet, the same on both sides.

use std::collections::BTreeMap;

use xway_abi::Errno;
use xway_object::Object;

use crate::flows::{Fields, SERVICE, SERVICE_PORT, Space, mix32, prefix};
use crate::packet::PROTOCOL;

/// Contents, by the suite's programs that need them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// As the object says.
    None,
    /// `numbers`: 64 numbers.
    Numbers,
    /// What `bpf/bench/map_helpers.bpf.c` looks at: `numbers` and `numbers_by_cpu`, 16 numbers each, one in `table_by_cpu` behind 7, and
    /// bytes that count up in `block`.
    Few,
    /// `ports`: the loop-back interface at every odd number.
    Ports,
    /// `tunnels`: one.
    Tunnels,
    /// `sources`: as many source addresses as fit, those of the flows from `first` on.
    Sources {
        /// First flow.
        first: u32,
    },
    /// `flows`: as many connections as fit, from flow 0.
    Tuples,
    /// `sources_N`: the same with keys of so many words, each the address and a number, see `LONG_KEYS` of `bpf/bench/hash.bpf.c`.
    LongSources {
        /// Words of four bytes.
        words: u32,
    },
    /// `routes`: as many prefixes as fit, from number 0.
    Prefixes,
    /// `routes6`: the same behind 2001:db8::/32.
    Prefixes6,
    /// The balancer's services, ring and servers.
    Services {
        /// Connections are hashed, each packet anew, and not remembered.
        stateless: bool,
    },
}

/// The servers that the balancer shares the ring out among.
const SERVERS: u32 = 256;
/// Places of a service on the ring (`RING` in `bpf/bench/balancer.bpf.c`).
const PLACES: u32 = 4096;

/// What the values of a [`Content`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// One value, which every CPU has of a per-CPU map.
    #[default]
    Value,
    /// A value for each CPU, each as long as eight bytes make it.
    EachCpu,
    /// The object's map of this index, four bytes.
    Maps,
    /// The object's program of this index, four bytes.
    Programs,
}

/// Keys and values of one map, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// Name of the map.
    pub map: String,
    /// Keys.
    pub keys: Vec<u8>,
    /// Values.
    pub values: Vec<u8>,
    /// How many.
    pub count: u32,
    /// What values are.
    pub form: Form,
    /// Whether there are flows whose keys had no room.
    pub cut: bool,
}

impl Content {
    fn new(map: &str) -> Content {
        Content { map: map.to_owned(), ..Content::default() }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        self.count += 1;
    }

    /// Each key with its value; maps without keys have values only.
    pub fn elements(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let count = self.count.max(1) as usize;
        let (key, value) = (self.keys.len() / count, self.values.len() / count);
        (0..self.count as usize).map(move |n| (&self.keys[n * key..][..key], &self.values[n * value..][..value]))
    }
}

/// An element that a map did not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untaken {
    /// Its place among those that were to go in.
    pub at: usize,
    /// Why.
    pub errno: Errno,
}

/// A side whose maps can be filled and read.
pub trait Maps {
    /// In errors: `ours`, `the kernel's`.
    fn whose(&self) -> &'static str;
    /// Puts in elements, all of them or an error.
    fn put(&self, map: usize, content: &Content) -> Result<(), Untaken>;
    /// The value of a key; of a per-CPU map the one of the CPU that is measured.
    fn get(&self, map: usize, key: &[u8]) -> Option<Vec<u8>>;
    /// Every element of a small map; see [`Maps::get`] for values.
    fn all(&self, map: usize) -> BTreeMap<Vec<u8>, Vec<u8>>;
}

/// The verdict that tables hold for the `n`th element: DROP and TX in turns.
fn verdict(n: u32) -> [u8; 8] {
    (1 + 2 * u64::from(n & 1)).to_ne_bytes()
}

impl Fill {
    /// What goes in.
    pub fn contents(self, object: &Object) -> Vec<Content> {
        let room = |map: &str| object.map_index(map).map_or(0, |i| object.maps[i].spec.max_entries);
        match self {
            Fill::None => Vec::new(),
            Fill::Numbers => {
                let mut numbers = Content::new("numbers");
                (0..64).for_each(|n| numbers.push(&n32(n), &u64::from(mix32(n)).to_ne_bytes()));
                vec![numbers]
            }
            Fill::Few => {
                let number = |n: u32| u64::from(mix32(n)).to_ne_bytes();
                let of_array = |map: &str| {
                    let mut numbers = Content::new(map);
                    (0..16).for_each(|n| numbers.push(&n32(n), &number(n)));
                    numbers
                };
                let (mut table, mut block) = (Content::new("table_by_cpu"), Content::new("block"));
                table.push(&7u64.to_ne_bytes(), &number(7));
                block.push(&n32(0), &(0..=255).collect::<Vec<u8>>());
                vec![of_array("numbers"), of_array("numbers_by_cpu"), table, block]
            }
            Fill::Ports => {
                let mut ports = Content::new("ports");
                (1..room("ports")).step_by(2).for_each(|n| ports.push(&n32(n), &n32(1)));
                vec![ports]
            }
            Fill::Tunnels => {
                let mut tunnels = Content::new("tunnels");
                tunnels.push(&n32(0), &tunnel(1));
                vec![tunnels]
            }
            Fill::Sources { first } => {
                let mut sources = Content::new("sources");
                let last = first.saturating_add(room("sources"));
                (first..last).for_each(|f| sources.push(&Fields::of(f, Space::Sources).source, &verdict(f)));
                vec![sources]
            }
            Fill::Tuples => {
                let mut flows = Content::new("flows");
                (0..room("flows"))
                    .for_each(|f| flows.push(&Fields::of(f, Space::Sources).tuple(PROTOCOL), &verdict(f)));
                vec![flows]
            }
            Fill::LongSources { words } => {
                let name = format!("sources_{}", 4 * words);
                let mut sources = Content::new(&name);
                (0..room(&name)).for_each(|f| {
                    let source = u32::from_ne_bytes(Fields::of(f, Space::Sources).source);
                    let word = |n: u32| source.wrapping_add(n.wrapping_mul(0x9e37_79b9)).to_ne_bytes();
                    sources.push(&(0..words).flat_map(word).collect::<Vec<u8>>(), &verdict(f));
                });
                vec![sources]
            }
            Fill::Prefixes => vec![routes("routes", 0, 8, room("routes"))],
            Fill::Prefixes6 => vec![routes("routes6", 32, 20, room("routes6"))],
            Fill::Services { stateless } => services(stateless),
        }
    }
}

/// Prefixes behind one of `above` bits, 0 or those of 2001:db8::/32, in keys of so many bytes.
fn routes(map: &str, above: u32, key_len: usize, count: u32) -> Content {
    let mut routes = Content::new(map);
    let mut seen = std::collections::HashSet::new();
    for number in 0..count {
        let (length, address) = prefix(number);
        if seen.insert((length, address)) {
            let mut key = vec![0; key_len];
            key[..4].copy_from_slice(&(above + length).to_ne_bytes());
            key[4..8].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
            key[4 + above as usize / 8..][..4].copy_from_slice(&address);
            routes.push(&key, &verdict(number));
        }
    }
    routes
}

fn services(stateless: bool) -> Vec<Content> {
    let (mut services, mut ring, mut servers) =
        (Content::new("services"), Content::new("ring"), Content::new("servers"));
    let mut key = [0; 8];
    key[..4].copy_from_slice(&SERVICE);
    key[4..6].copy_from_slice(&SERVICE_PORT.to_be_bytes());
    key[6..].copy_from_slice(&u16::from(PROTOCOL).to_ne_bytes());
    // `struct service`: its part of the ring, and `SERVICE_STATELESS`.
    services.push(&key, &[n32(0), n32(stateless.into())].concat());
    (0..PLACES).for_each(|place| ring.push(&n32(place), &n32(mix32(place) % SERVERS)));
    (0..SERVERS).for_each(|server| servers.push(&n32(server), &tunnel(server)));
    vec![services, ring, servers]
}

/// `struct tunnel` of `bpf/bench/tunnel.h`.
fn tunnel(server: u32) -> [u8; 12] {
    let [.., a, b] = server.to_be_bytes();
    [198, 19, a, b, 2, 0, 0, 1, a, b, 0, 0]
}

fn n32(n: u32) -> [u8; 4] {
    n.to_ne_bytes()
}
