//! Programs that ask for more than their packet: they put elements into maps and take them out again, look up the host's routes, and ask
//! who runs them.
//!
//! What each of them may cost is said beside it.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_engine::Linked;
use xway_maps::{Env, Map};
use xway_object::MapDef;
use xway_verifier::{Config, MapsView};
use xway_vm::Program;

/// A program and what it may cost.
#[derive(Clone, Copy)]
pub struct Asking {
    pub name: &'static str,
    /// The type of its map, and its flags.
    map: Option<(MapType, u32)>,
    /// Between [`SOURCE`] and [`END`].
    text: &'static str,
    /// Calls of the allocator for a packet, at most.
    pub allocations: u64,
    /// System calls for a burst, at most, and what they may be.
    pub system_calls: (u64, &'static [&'static str]),
}

const fn writes(name: &'static str, map_type: MapType, flags: u32) -> Asking {
    Asking { name, map: Some((map_type, flags)), text: TOGGLES, allocations: 0, system_calls: (0, &[]) }
}

/// All of them.
pub const ASKING: [Asking; 9] = [
    writes("hash", MapType::Hash, 0),
    writes("hash that grows", MapType::Hash, map_flags::NO_PREALLOC),
    writes("per-CPU hash", MapType::PercpuHash, 0),
    writes("per-CPU hash that grows", MapType::PercpuHash, map_flags::NO_PREALLOC),
    writes("LRU hash", MapType::LruHash, 0),
    writes("per-CPU LRU hash", MapType::LruPercpuHash, 0),
    // Whether routes have changed is asked for once.
    Asking { name: "routes", map: None, text: ROUTES, allocations: 0, system_calls: (1, &["recvfrom"]) },
    // What may change of a thread is asked for once a second, some twenty calls and thirty pieces of memory.
    Asking { name: "who runs", map: None, text: WHO, allocations: 1, system_calls: (1, OF_FILES) },
    // The list or the table that the prefix comes into is made anew: some eleven pieces of memory are taken for it and given back, and
    // the allocator may ask for pages. The last one: what is out of the trie is freed when no guard sees it any more, by whoever is next.
    Asking {
        allocations: 26,
        system_calls: (1, &["mprotect", "brk", "mmap", "munmap", "madvise", "mremap"]),
        ..writes("trie", MapType::LpmTrie, map_flags::NO_PREALLOC)
    },
];

/// What reading the files takes in which a thread's name and its group are.
const OF_FILES: &[&str] = &[
    "openat",
    "read",
    "close",
    "statx",
    "fstat",
    "newfstatat",
    "lseek",
    "getdents64",
    "gettid",
    "getpid",
    "getuid",
    "getgid",
    "getcpu",
];

/// Where the packet's source address is, behind Ethernet; in r8.
const SOURCE: &str = "
    r9 = r1
    r6 = *(u32 *)(r1 +0)
    r7 = *(u32 *)(r1 +4)
    r2 = r6
    r2 += 34
    r0 = 0
    if r2 > r7 goto out
    r8 = *(u32 *)(r6 +26)";

/// An element for each source: put in when there is none, taken out when there is one. Aborts where either fails.
const TOGGLES: &str = "
    *(u32 *)(r10 -8) = 32
    *(u32 *)(r10 -4) = r8
    r2 = r10
    r2 += -8
    r1 = map[idx:0]
    call 1
    if r0 != 0 goto there
    *(u64 *)(r10 -16) = 1
    r2 = r10
    r2 += -8
    r3 = r10
    r3 += -16
    r4 = 0
    r1 = map[idx:0]
    call 2
    goto done
there:
    r2 = r10
    r2 += -8
    r1 = map[idx:0]
    call 3
done:
    if r0 != 0 goto failed";

/// A look-up of a route to the source, from the loopback interface. Aborts where it is refused.
const ROUTES: &str = "
    r1 = 0
    *(u64 *)(r10 -64) = r1
    *(u64 *)(r10 -56) = r1
    *(u64 *)(r10 -48) = r1
    *(u64 *)(r10 -40) = r1
    *(u64 *)(r10 -32) = r1
    *(u64 *)(r10 -24) = r1
    *(u64 *)(r10 -16) = r1
    *(u64 *)(r10 -8) = r1
    *(u8 *)(r10 -64) = 2
    *(u32 *)(r10 -56) = 1
    *(u32 *)(r10 -32) = r8
    r1 = r9
    r2 = r10
    r2 += -64
    r3 = 64
    r4 = 0
    call 69
    if r0 s< 0 goto failed";

/// Numbers of the thread, its name, its control group, its node. Aborts where the thread has no number or no name.
const WHO: &str = "
    call 14
    r7 = r0
    call 15
    call 42
    call 80
    r1 = r10
    r1 += -16
    r2 = 16
    call 16
    r1 = *(u8 *)(r10 -16)
    if r1 == 0 goto failed
    if r7 == 0 goto failed";

/// Behind all of them.
const END: &str = "
    r0 = 1
    exit
failed:
    r0 = 0
out:
    exit";

impl Asking {
    /// Proved and compiled, over a map of its own.
    pub fn linked(&self) -> Linked {
        // Room for every flow, and little more.
        let spec = |(map_type, flags)| MapSpec { flags, ..MapSpec::new(map_type, 8, 8, 256) };
        let specs: Vec<MapSpec> = self.map.map(spec).into_iter().collect();
        let maps: Vec<Arc<Map>> = specs.iter().map(|spec| Map::create(spec, &Env::default()).unwrap()).collect();
        let defs: Vec<MapDef> = specs.iter().map(|spec| MapDef::new("asked", spec.clone())).collect();
        let text = format!("{SOURCE}{}{END}", self.text);
        let insns = xway_isa::assemble(&text).unwrap();
        let image = xway_object::Program { name: "asking".into(), section: "xdp".into(), insns, ..Default::default() };
        let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
        let program = Program::verify(&image, &maps, &view, &Config::default()).unwrap_or_else(|e| panic!("{e}"));
        let linked = Linked::new(program);
        assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
        linked
    }
}
