//! The built-in cases: `bpf/bench`, compiled when this crate is built and embedded in it.

use xway_abi::MapType;
use xway_object::{MapDef, Object};

use crate::fill::Fill;
use crate::flows::{Pattern, Space};
use crate::given::Given;
use crate::user::BURST;

pub mod helpers;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}

/// The object file of this name (`hash` of `bpf/bench/hash.bpf.c`), of either suite.
pub fn object(name: &str) -> Option<&'static [u8]> {
    embedded().find(|(n, _)| *n == name).map(|(_, bytes)| bytes)
}

fn embedded() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    embedded::OBJECTS.iter().map(|(name, bytes)| (*name, *bytes))
}

/// All object files but those of [`helpers`]: name and bytes.
pub fn objects() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    embedded().filter(|(name, _)| !helpers::OBJECTS.contains(name))
}

/// Why there are no built-in programs, when there are none.
pub fn missing() -> Option<&'static str> {
    embedded::MISSING
}

/// What is measured: a program, its maps' sizes and contents, and the packets.
#[derive(Clone, Debug)]
pub struct Case {
    /// In tables: `hash hit, 1 M`.
    pub name: String,
    /// Object of the suite, or a path for those that a user names.
    pub object: String,
    /// Function.
    pub program: String,
    /// Flows that packets belong to.
    pub flows: u32,
    /// Order of flows.
    pub pattern: Pattern,
    /// How a flow becomes addresses.
    pub space: Space,
    /// A map whose size is the case's business, and that size.
    pub table: Option<(String, u32)>,
    /// Sizes of further maps.
    pub sizes: Vec<(String, u32)>,
    /// What maps hold before the first packet.
    pub fill: Fill,
    /// What a user wants them to hold besides.
    pub given: Vec<Given>,
    /// Bytes of a packet, at least 64.
    pub packet_len: u16,
    /// Frames on our side. With more than a burst has, packets are made once and stay where they lie, a frame for each, in no order:
    /// their memory is cold when its turn comes. The kernel's loop has one packet, which is always warm: it is not measured.
    pub frames: u32,
    /// Runs inside one test-run of the kernel.
    pub runs: u32,
    /// How many times as fast as the kernel it is meant to be, net; none for what a user names.
    pub wanted: Option<f64>,
}

/// Cases that are meant to be more than not slower than the kernel.
const WANTED: [(&str, f64); 13] = [
    ("parse + counter", 1.5),
    ("10 array look-ups, constant keys", 3.0),
    ("10 array look-ups, packet's keys", 3.0),
    ("clock read", 2.5),
    ("encapsulation", 3.0),
    ("hash hit, 10 k", 6.0),
    ("hash hit, 1 M", 15.0),
    ("5-tuple table, 4 M", 10.0),
    ("LRU hit, 1 M flows", 7.0),
    ("LRU churn, 1 M entries", 8.0),
    ("LPM, 100 k prefixes", 25.0),
    ("load balancer, 1 flow", 3.0),
    ("load balancer, 1 M flows", 7.0),
];

impl Case {
    /// A case without maps that need filling: one flow in 64, drawn at random.
    pub fn new(name: &str, object: &str, program: &str) -> Case {
        Case {
            name: name.to_owned(),
            object: object.to_owned(),
            program: program.to_owned(),
            flows: 1 << 16,
            pattern: Pattern::Uniform,
            space: Space::Sources,
            table: None,
            sizes: Vec::new(),
            fill: Fill::None,
            given: Vec::new(),
            packet_len: 64,
            frames: BURST as u32,
            runs: 64,
            wanted: None,
        }
    }

    /// Whether an LRU map of the object must let go of elements while the case runs. Which ones is not Linux's promise, so both
    /// sides agree nearly and not exactly then. Linux evicts before a map is full, and not while half of it is empty.
    pub fn evicts(&self, object: &Object) -> bool {
        let lru = |map: &&MapDef| matches!(map.spec.map_type, MapType::LruHash | MapType::LruPercpuHash);
        let tight = |map: &MapDef| {
            let given = self.given.iter().filter(|given| given.map() == map.name);
            // Flows that it is filled with are those that come.
            let more = given.filter(|given| matches!(given, Given::Elements(_))).map(|given| given.at_most(self.flows));
            let all = more.fold(self.flows, u32::saturating_add);
            map.spec.max_entries < all.saturating_mul(2)
        };
        // A balancer without connections never touches its table.
        self.fill != Fill::Services { stateless: true } && object.maps.iter().filter(lru).any(tight)
    }

    fn flows(self, flows: u32) -> Case {
        Case { flows, ..self }
    }

    fn pattern(self, pattern: Pattern) -> Case {
        Case { pattern, ..self }
    }

    fn table(self, map: &str, entries: u32) -> Case {
        Case { table: Some((map.to_owned(), entries)), ..self }
    }

    fn fill(self, fill: Fill) -> Case {
        Case { fill, ..self }
    }
}

/// Every built-in case but those of [`helpers`], in the order of the table.
pub fn cases() -> Vec<Case> {
    let mut all = plain();
    all.extend(hashes());
    all.extend(connections());
    all.extend(rest());
    for case in &mut all {
        let more = WANTED.iter().find(|(name, _)| *name == case.name);
        case.wanted = Some(more.map_or(1.0, |(_, times)| *times));
    }
    all
}

fn plain() -> Vec<Case> {
    let simple = |name, program| Case::new(name, "simple", program);
    let mut all = vec![
        simple("empty", "empty"),
        simple("drop after reading", "read_drop"),
        simple("MAC swap", "mac_swap"),
        Case::new("parse + counter", "parse", "parse_count"),
        Case::new("10 array look-ups, constant keys", "array", "array_constant").fill(Fill::Numbers),
        Case::new("10 array look-ups, packet's keys", "array", "array_packet").fill(Fill::Numbers),
        Case::new("array update, packet's key", "array", "array_update").fill(Fill::Numbers),
        simple("clock read", "clock_read"),
        simple("clock read, coarse", "clock_coarse"),
        simple("clock read, ticks", "clock_jiffies"),
        simple("clock read, since boot", "clock_boot"),
        simple("load by helper, 20 bytes", "load_20"),
        simple("store by helper, 12 bytes", "store_12"),
        simple("checksum, 64 bytes", "checksum_64"),
        simple("checksum by helper, 64 bytes", "csum_diff_64"),
        Case { packet_len: 1400, ..simple("checksum, 1,400 bytes", "checksum_1400") },
        Case { packet_len: 1400, ..simple("checksum by helper, 1,400 bytes", "csum_diff_1400") },
        simple("loop of 64 steps", "loop_64"),
        simple("loop of 64 steps by helper", "bpf_loop_64"),
        simple("8 BPF-to-BPF calls", "calls_8"),
        // The limit of 33 tail calls holds for a whole test-run: four runs of eight.
        Case { runs: 4, ..Case::new("8 tail calls", "tail", "tail_8") },
        Case::new("encapsulation", "encap", "encap").fill(Fill::Tunnels),
        Case::new("filter, settings in .rodata", "settings", "filter"),
        Case::new("metadata", "room", "mark"),
        Case::new("trailer taken off", "room", "trim"),
        Case::new("random number", "steer", "by_chance"),
        Case::new("redirect", "steer", "to_port"),
        Case::new("redirect by a map", "steer", "by_map").fill(Fill::Ports),
        Case::new("array in an array of maps", "nested", "nested").fill(Fill::Numbers),
        Case::new("array in a hash of maps", "nested", "nested_by_key").fill(Fill::Numbers),
    ];
    for (name, run) in [("1 drop, 1 pass", 1), ("8 drop, 8 pass", 8), ("32 drop, 32 pass", 32), ("drop or pass", 0)] {
        all.push(simple(name, "by_port").pattern(Pattern::Runs(run)));
    }
    // 50 MiB of first lines and descriptors.
    let cold = |case: Case| Case { frames: 1 << 18, ..case };
    all.push(cold(simple("drop after reading, cold packets", "read_drop")));
    all.push(cold(Case::new("parse + counter, cold packets", "parse", "parse_count")));
    all
}

fn hashes() -> Vec<Case> {
    let mut all = Vec::new();
    for (size, words) in [(10_000, "10 k"), (1_000_000, "1 M"), (4_000_000, "4 M")] {
        let case = |name: String| Case::new(&name, "hash", "hash_source").flows(size).table("sources", size);
        all.push(case(format!("hash hit, {words}")).fill(Fill::Sources { first: 0 }));
        all.push(case(format!("hash miss, {words}")).fill(Fill::Sources { first: size }));
        if size < 4_000_000 {
            let update = Case { program: "hash_update".into(), ..case(format!("hash update, {words}")) };
            all.push(update.fill(Fill::Sources { first: 0 }));
        }
    }
    let called = Case::new("hash hit, 1 M, in functions", "hash", "hash_called").flows(1_000_000);
    all.push(called.table("sources", 1_000_000).fill(Fill::Sources { first: 0 }));
    let summed = Case::new("hash hit, 1 M, behind a loop", "hash", "hash_summed").flows(1_000_000);
    all.push(summed.table("sources", 1_000_000).fill(Fill::Sources { first: 0 }));
    let by_cpu = Case::new("hash hit, 1 M, table by CPU", "nested", "nested_by_cpu").flows(1_000_000);
    all.push(by_cpu.table("sources", 1_000_000).fill(Fill::Sources { first: 0 }));
    for words in [5, 10] {
        let bytes = 4 * words;
        let case = Case::new(&format!("hash hit, 10 k, key of {bytes} bytes"), "hash", &format!("hash_{bytes}"));
        all.push(case.flows(10_000).table(&format!("sources_{bytes}"), 10_000).fill(Fill::LongSources { words }));
    }
    all.push(
        Case::new("5-tuple table, 4 M", "tuple", "tuple_lookup")
            .flows(4_000_000)
            .table("flows", 4_000_000)
            .fill(Fill::Tuples),
    );
    all
}

fn connections() -> Vec<Case> {
    let sizes = [(1_000, "1 k"), (100_000, "100 k"), (1_000_000, "1 M")];
    let case = |name: String| Case::new(&name, "lru", "track");
    let mut all = Vec::new();
    // Twice as many entries as flows: Linux evicts before an LRU map is full.
    for (size, words) in sizes {
        all.push(case(format!("LRU hit, {words} flows")).flows(size).table("connections", 2 * size));
    }
    for (size, words) in sizes {
        // A power of two, as the ring: where it starts again, no flow is met that has just been there.
        let flows = (4 * size).next_power_of_two();
        let churn = case(format!("LRU churn, {words} entries")).flows(flows).table("connections", size);
        all.push(churn.pattern(Pattern::Scan));
    }
    all
}

fn rest() -> Vec<Case> {
    let mut all = Vec::new();
    for (size, words) in [(100_000, "100 k"), (1_000_000, "1 M")] {
        let case = Case::new(&format!("LPM, {words} prefixes"), "lpm", "route").flows(size).table("routes", size);
        all.push(Case { space: Space::Prefixes, ..case.fill(Fill::Prefixes) });
    }
    let six = Case::new("LPM for IPv6, 100 k prefixes", "lpm", "route6").flows(100_000).table("routes6", 100_000);
    all.push(Case { space: Space::Prefixes, ..six.fill(Fill::Prefixes6) });
    let case = |name: &str, flows: u32| {
        let case = Case::new(name, "balancer", "balance").flows(flows).table("connections", (2 * flows).max(10_000));
        case.fill(Fill::Services { stateless: false })
    };
    all.push(case("load balancer, 1 flow", 1).pattern(Pattern::Single));
    all.push(case("load balancer, 1 k flows", 1_000));
    all.push(case("load balancer, 1 M flows", 1_000_000));
    // Nothing but new connections, five times as many as the table holds.
    let flood = |name: &str| case(name, 1 << 19).pattern(Pattern::Scan).table("connections", 100_000);
    all.push(flood("load balancer, flood"));
    all.push(flood("load balancer, flood, stateless").fill(Fill::Services { stateless: true }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_that_are_too_small_evict() {
        if missing().is_some() {
            return;
        }
        let load = |case: &Case| {
            let mut object =
                Object::parse(object(&case.object).expect("an object"), &Default::default()).expect("it loads");
            let table = object.maps.iter_mut().find(|m| case.table.as_ref().is_some_and(|(name, _)| m.name == *name));
            if let (Some(map), Some((_, entries))) = (table, &case.table) {
                map.spec.max_entries = *entries;
            }
            object
        };
        let all = cases();
        let evicting: Vec<&str> = all.iter().filter(|c| c.evicts(&load(c))).map(|c| c.name.as_str()).collect();
        let churn = ["LRU churn, 1 k entries", "LRU churn, 100 k entries", "LRU churn, 1 M entries"];
        assert_eq!(evicting, [&churn[..], &["load balancer, flood"]].concat());
    }

    #[test]
    fn cases_name_what_exists_and_each_is_named_once() {
        let all = [cases(), helpers::cases()].concat();
        let mut names: Vec<_> = all.iter().map(|c| &c.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        let more = all.iter().filter(|case| case.wanted.is_some_and(|times| times > 1.0));
        assert_eq!(more.count(), WANTED.len(), "each line is a case's");
        if let Some(why) = missing() {
            assert!(object("hash").is_none());
            assert!(xway_testkit::clang::available().is_err(), "{why}");
            return;
        }
        for case in &all {
            let bytes = object(&case.object).unwrap_or_else(|| panic!("{}", case.object));
            let object = xway_object::Object::parse(bytes, &Default::default()).expect("the suite loads");
            assert!(object.program(&case.program).is_ok(), "{}: {}", case.name, case.program);
            for (map, _) in case.table.iter().chain(&case.sizes) {
                assert!(object.map_index(map).is_some(), "{}: {map}", case.name);
            }
        }
    }

    /// The two suites share no object, and each program of the helpers' is a case.
    #[test]
    fn suites_are_told_apart() {
        assert!(cases().iter().all(|case| !helpers::OBJECTS.contains(&case.object.as_str())));
        assert!(helpers::cases().iter().all(|case| helpers::OBJECTS.contains(&case.object.as_str())));
        if missing().is_some() {
            return;
        }
        assert_eq!(objects().count() + helpers::objects().count(), embedded().count());
        assert_eq!(helpers::objects().count(), helpers::OBJECTS.len());
        for (name, bytes) in helpers::objects() {
            let object = Object::parse(bytes, &Default::default()).expect("the suite loads");
            for program in object.programs.iter().filter(|program| program.kind.is_xdp()) {
                let is_it = |case: &Case| (&*case.object, &*case.program) == (name, &*program.name);
                assert_eq!(helpers::cases().iter().filter(|case| is_it(case)).count(), 1, "{name}: {}", program.name);
            }
        }
    }
}
