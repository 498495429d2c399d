//! Random programs in phases: each looks up, and between two look-ups the program itself changes the maps, as do the frames
//! that went before it in the same burst.
//!
//! Keys are few, so that a burst meets what it has just made, changed and taken away. Maps are of every kind that is looked up
//! ahead, those in maps included. No table evicts: which element goes is nobody's promise.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Env, Map};
use xway_object::MapDef;
use xway_testkit::Rng;
use xway_vm::Instance;

/// Keys of a table.
const KEYS: u64 = 16;
/// Room of tables that fill up.
const TIGHT: u32 = 9;

/// A program, as text, and its maps.
pub struct Case {
    pub text: String,
    pub maps: Vec<MapDef>,
}

/// A map of eight-byte values, by the way its keys are made.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    /// Eight bytes, of [`KEYS`] different ones.
    Wide,
    /// Four bytes, of [`KEYS`] different ones.
    Index,
    /// Prefix length and address.
    Prefix,
}

/// The maps by number. Elements of those from [`INNER`] on are maps.
const KINDS: [Keys; 10] = {
    use Keys::{Index, Prefix, Wide};
    [Wide, Wide, Prefix, Index, Wide, Index, Index, Index, Index, Index]
};
const INNER: usize = 5;
/// What the inner maps' keys are.
const INNER_KINDS: [Keys; 5] = [Keys::Wide, Keys::Index, Keys::Wide, Keys::Prefix, Keys::Wide];

fn maps(rng: &mut Rng) -> Vec<MapDef> {
    let room = if rng.one_in(2) { TIGHT } else { 64 };
    let trie = MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 64) };
    let of = |outer, inner| MapSpec { inner: Some(Box::new(inner)), ..MapSpec::new(outer, 4, 4, 4) };
    vec![
        MapDef::new("table", MapSpec::new(MapType::Hash, 8, 8, room)),
        // Far more room than keys: a set of an LRU table may fill up before the table.
        MapDef::new("recent", MapSpec::new(MapType::LruHash, 8, 8, 512)),
        MapDef::new("prefixes", trie),
        MapDef::new("array", MapSpec::new(MapType::Array, 4, 8, KEYS as u32)),
        MapDef::new("own", MapSpec::new(MapType::PercpuHash, 8, 8, room)),
        MapDef::new("tables", of(MapType::ArrayOfMaps, inner_spec(0))),
        MapDef::new("arrays", of(MapType::HashOfMaps, inner_spec(1))),
        MapDef::new("own_tables", of(MapType::ArrayOfMaps, inner_spec(2))),
        MapDef::new("tries", of(MapType::HashOfMaps, inner_spec(3))),
        MapDef::new("recent_ones", of(MapType::ArrayOfMaps, inner_spec(4))),
    ]
}

fn inner_spec(which: usize) -> MapSpec {
    match which {
        0 => MapSpec::new(MapType::Hash, 8, 8, TIGHT),
        1 => MapSpec::new(MapType::Array, 4, 8, KEYS as u32),
        2 => MapSpec::new(MapType::PercpuHash, 8, 8, TIGHT),
        3 => MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 64) },
        _ => MapSpec::new(MapType::LruHash, 8, 8, 512),
    }
}

/// What maps hold before the first frame: some of what will be asked for, and inner maps in three slots of four.
pub fn fill(instance: &Instance) {
    let maps = instance.maps();
    for key in [1u64, 4, 5, 11] {
        for map in [0, 1, 4] {
            let value = (key * 100).to_ne_bytes().repeat(maps[map].user_value_size() / 8);
            maps[map].update(&key.to_ne_bytes(), &value, 0).expect("room");
        }
    }
    for (n, len) in [8u32, 16, 30, 32].into_iter().enumerate() {
        let key = [len.to_ne_bytes(), [1, 2, 3, n as u8]].concat();
        maps[2].update(&key, &[n as u8 + 1; 8], 0).expect("room");
    }
    for which in 0..INNER_KINDS.len() {
        for slot in [0u32, 1, 3] {
            let map = Map::create(&inner_spec(which), &Env::with_cpus(2)).expect("a map");
            for key in (0..6u64).filter(|key| key % 3 != u64::from(slot) % 3) {
                let key = &key.to_ne_bytes()[..map.key_size()];
                map.update(key, &vec![7 + slot as u8; map.user_value_size()], 0).expect("room");
            }
            maps[INNER + which].set_inner(&slot.to_ne_bytes(), map).expect("it is like the template");
        }
    }
}

/// The packet in r6, its first 42 bytes checked, the context in r9; r8 is what the program answers with in the end.
const HEAD: &str = "r9 = r1\nr6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 42\nr0 = 0\nif r2 > r7 goto out\n\
                    r8 = *(u8 *)(r6 +30)\n";

/// A random case of two to seven phases.
pub fn case(rng: &mut Rng) -> Case {
    let maps = maps(rng);
    let mut program = Text { rng, text: HEAD.to_owned(), functions: vec![], depth: 0, label: 0, calls: false };
    for _ in 0..2 + program.rng.below(6) {
        if program.rng.one_in(4) { program.phase_by_itself() } else { program.phase() }
    }
    program.text += "r0 = r8\nr0 &= 0xff\nout: exit\n";
    let functions = program.functions.concat();
    program.text += &functions;
    if program.calls {
        // Takes what it is told out of the first table, or puts it in.
        program.text += "change: *(u64 *)(r10 -8) = r1\n*(u64 *)(r10 -16) = r2\nif r2 & 1 goto put\n\
                         r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 3\nexit\n\
                         put: r2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:0]\ncall 2\nexit\n";
    }
    Case { text: program.text, maps }
}

struct Text<'a> {
    rng: &'a mut Rng,
    text: String,
    /// Its functions, `change` apart.
    functions: Vec<String>,
    /// How deep in them it is.
    depth: u32,
    label: u32,
    /// It calls its function.
    calls: bool,
}

impl Text<'_> {
    fn add(&mut self, text: &str) {
        self.text += text;
        self.text.push('\n');
    }

    fn one(&mut self, of: &[&str]) {
        let n = self.rng.below(of.len() as u64) as usize;
        self.add(of[n]);
    }

    fn label(&mut self) -> u32 {
        self.label += 1;
        self.label
    }

    /// A function of which the text is what is added meanwhile. It goes out for itself.
    fn function(&mut self, name: &str, begins: &str, ends: &str, body: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.text, format!("{name}: {begins}\n"));
        body(self);
        let text = std::mem::replace(&mut self.text, outer).replace("goto out\n", &format!("goto {name}out\n"));
        self.functions.push(format!("{text}{ends}\n{name}out: exit\n"));
    }

    /// A phase in a function that is given the packet and r8, and gives what becomes of r8. Below its callers' stacks it has one of
    /// its own, where it begins with a key.
    fn phase_by_itself(&mut self) {
        let n = self.label();
        let deeper = self.depth < 3 && self.rng.one_in(3);
        self.depth += 1;
        let begins = "r6 = r1\nr8 = r2\n*(u64 *)(r10 -8) = r2";
        self.function(&format!("phase{n}"), begins, "r0 = r8", |program| {
            // What functions below it do with their registers is not its business.
            program.add("r9 = r8");
            program.phase();
            if deeper {
                program.phase_by_itself();
                program.phase();
            }
            program.add("r8 ^= r9");
        });
        self.depth -= 1;
        self.add(&format!("r1 = r6\nr2 = r8\ncall phase{n}\nr8 = r0"));
        if self.rng.one_in(3) {
            // What it gives decides.
            self.add("if r0 & 8 goto out");
        }
    }

    /// A look-up, and what comes of it. Not every packet comes to it.
    fn phase(&mut self) {
        let n = self.label();
        if self.rng.one_in(3) {
            let mask = 1 << self.rng.below(4);
            self.add(&format!("if r8 & {mask} goto end{n}"));
        }
        if self.rng.one_in(4) {
            self.turns(n);
        }
        let map = self.rng.below(KINDS.len() as u64) as usize;
        self.key(KINDS[map]);
        self.add(&format!("r2 = r10\nr2 += -8\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto miss{n}"));
        if map < INNER {
            self.hit(map, n);
        } else {
            let kind = INNER_KINDS[map - INNER];
            self.add("r7 = r0");
            self.key(kind);
            self.add(&format!("r2 = r10\nr2 += -8\nr1 = r7\ncall 1\nif r0 == 0 goto lost{n}"));
            self.value();
            self.add(&format!("goto end{n}\nlost{n}:"));
            if self.rng.one_in(2) {
                self.add("*(u64 *)(r10 -24) = r8\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -24\nr4 = 0\nr1 = r7\ncall 2\nr8 += r0");
            } else if kind == Keys::Wide {
                self.add("*(u64 *)(r10 -8) = 1\nr2 = r10\nr2 += -8\nr1 = r7\ncall 3\nr8 -= r0");
            } else {
                self.add("r8 += 3");
            }
        }
        self.add(&format!("goto end{n}\nmiss{n}:"));
        self.miss(map);
        self.add(&format!("end{n}:"));
        if self.rng.one_in(6) {
            self.calls = true;
            self.one(&["r1 = r8\nr1 &= 15", "r1 = *(u8 *)(r6 +26)\nr1 &= 15", "r1 = 4"]);
            self.add("r2 = r8\ncall change\nr8 += r0");
        }
        if self.rng.one_in(8) {
            self.add("*(u8 *)(r6 +31) = r8");
        }
    }

    /// A loop that makes something else of r8: for some packets of few turns and for some of many, with one way back or two, and now and
    /// then out of the phase. Or what a map holds is put into r8 in each turn: of a small one, or of one that is looked ahead for.
    fn turns(&mut self, n: u32) {
        let most = *self.rng.pick(&[2, 3, 9, 9, 40]);
        self.add(&format!("*(u64 *)(r10 -32) = 0\nturn{n}: r1 = *(u64 *)(r10 -32)"));
        self.one(&["r2 = *(u8 *)(r6 +27)\nr2 += 2", "r2 = *(u8 *)(r6 +30)", "r2 = r8\nr2 &= 63"]);
        self.add(&format!("if r1 > r2 goto turned{n}"));
        self.one(&["r8 *= 5\nr8 += r1", "r3 = *(u8 *)(r6 +28)\nr8 ^= r3\nr8 += r1", "r8 += 3\n*(u8 *)(r6 +31) = r8"]);
        if self.rng.one_in(4) {
            self.key(Keys::Index);
            let map = *self.rng.pick(&[3, 3, INNER + 1]);
            self.add(&format!("r2 = r10\nr2 += -8\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto none{n}"));
            if map < INNER {
                self.value();
            }
            self.add(&format!("none{n}: r8 += 1"));
        }
        self.add("r1 = *(u64 *)(r10 -32)\nr1 += 1\n*(u64 *)(r10 -32) = r1");
        match self.rng.below(4) {
            0 => self.add(&format!("if r8 & 256 goto end{n}")),
            1 => self.add(&format!("if r1 > {most} goto turned{n}\nif r8 & 1 goto turn{n}\nr8 += 1")),
            2 => self.add(&format!("may_goto turned{n}")),
            _ => {}
        }
        self.add(&format!("if r1 < {most} goto turn{n}\nturned{n}:"));
    }

    /// A key at fp-8, now and then by a function that is told where it lies.
    fn key(&mut self, kind: Keys) {
        if !self.rng.one_in(4) {
            return self.key_here(kind);
        }
        let n = self.label();
        self.function(&format!("key{n}"), "r6 = r1\nr8 = r2\n*(u64 *)(r10 -8) = r6", "r0 = r8", |program| {
            let mut outer = std::mem::take(&mut program.text);
            program.key_here(kind);
            outer += &program.text.replace("(r10 -8)", "(r3 +0)").replace("(r10 -4)", "(r3 +4)");
            program.text = outer;
        });
        self.add(&format!("r1 = r6\nr2 = r8\nr3 = r10\nr3 += -8\ncall key{n}"));
    }

    /// From the packet, from what was found before, or always the same.
    fn key_here(&mut self, kind: Keys) {
        match kind {
            Keys::Wide | Keys::Index => {
                self.one(&[
                    "r1 = *(u8 *)(r6 +26)",
                    "r1 = *(u16 *)(r6 +28)",
                    "r1 = r8",
                    "r1 = 5",
                    "r1 = *(u8 *)(r6 +31)\nr1 ^= r8",
                ]);
                self.add("r1 &= 15");
                if kind == Keys::Index {
                    self.add("*(u32 *)(r10 -8) = r1");
                } else {
                    // In pieces, as compilers write them.
                    self.one(&["*(u64 *)(r10 -8) = r1", "*(u32 *)(r10 -8) = r1\n*(u32 *)(r10 -4) = 0"]);
                }
            }
            Keys::Prefix => {
                self.one(&["r1 = 32", "r1 = r8\nr1 &= 31"]);
                self.add("*(u32 *)(r10 -8) = r1");
                self.one(&["r1 = *(u32 *)(r6 +26)", "r1 = *(u8 *)(r6 +27)\nr1 &= 3\nr1 <<= 24\nr1 |= 0x030201"]);
                self.add("*(u32 *)(r10 -4) = r1");
            }
        }
    }

    /// With the value's address in r0: reads it, and may write it.
    fn value(&mut self) {
        self.add("r1 = *(u64 *)(r0 +0)\nr8 += r1");
        self.one(&[
            "",
            "r1 += 1\n*(u64 *)(r0 +0) = r1",
            "r1 = 3\nlock *(u64 *)(r0 +0) += r1",
            "r1 = r8\n*(u32 *)(r0 +4) = r1",
        ]);
    }

    fn hit(&mut self, map: usize, n: u32) {
        self.value();
        match self.rng.below(6) {
            0 => self.delete(map),
            1 => self.update(map),
            2 => {
                // Found, changed, and looked for again with the same key.
                if self.rng.one_in(2) {
                    self.delete(map)
                } else {
                    self.update(map)
                }
                self.add(&format!("r2 = r10\nr2 += -8\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto gone{n}"));
                self.value();
                self.add(&format!("gone{n}: r8 += 1"));
            }
            3 if self.rng.one_in(3) => self.add("r0 = r8\nr0 &= 7\nif r8 & 8 goto out"),
            _ => {}
        }
    }

    fn miss(&mut self, map: usize) {
        self.add("r8 += 17");
        match self.rng.below(5) {
            0 if map < INNER => self.delete(map),
            1 | 2 if map < INNER => self.update(map),
            // Another table's element goes or comes where this one has none.
            3 => {
                self.key(Keys::Wide);
                if self.rng.one_in(2) { self.delete(0) } else { self.update(0) }
            }
            4 if self.rng.one_in(3) => self.add("r0 = 1\nif r8 & 4 goto out"),
            _ => {}
        }
    }

    /// With a key at fp-8.
    fn delete(&mut self, map: usize) {
        if KINDS[map] == Keys::Index {
            return self.update(map); // Elements of arrays do not go.
        }
        if KINDS[map] == Keys::Prefix {
            self.shorter();
        }
        self.add(&format!("r2 = r10\nr2 += -8\nr1 = map[idx:{map}]\ncall 3\nr8 ^= r0"));
    }

    fn update(&mut self, map: usize) {
        if KINDS[map] == Keys::Prefix {
            self.shorter();
        }
        // Whether it may be there already: it may, it must not, it must.
        let flags = if self.rng.one_in(2) { 0 } else { 1 + self.rng.below(2) };
        self.add(&format!(
            "*(u64 *)(r10 -16) = r8\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = {flags}\nr1 = map[idx:{map}]\ncall 2\nr8 ^= r0"
        ));
    }

    /// Another length for a prefix that is put in or taken out.
    fn shorter(&mut self) {
        if self.rng.one_in(2) {
            self.add("r1 = r8\nr1 &= 15\nr1 += 16\n*(u32 *)(r10 -8) = r1");
        }
    }
}

/// So many packets of a few flows, some of them too short.
pub fn packets(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let flows = 1 + rng.below(14);
    let one = |rng: &mut Rng| {
        let flow = rng.below(flows) as u8;
        let len = if rng.one_in(16) { 14 + rng.below(28) as usize } else { 42 + rng.below(40) as usize };
        let mut packet = vec![0u8; len];
        let bytes = [flow, flow & 3, 3 * flow, flow >> 1, flow.wrapping_mul(7), flow ^ 5];
        packet.iter_mut().skip(26).zip(bytes).for_each(|(to, byte)| *to = byte);
        packet
    };
    (0..count).map(|_| one(rng)).collect()
}

/// The object of a case.
pub fn object(case: &Case) -> Arc<xway_object::Object> {
    super::object(&case.text, case.maps.clone())
}
