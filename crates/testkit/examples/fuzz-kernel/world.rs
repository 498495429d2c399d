//! What generated programs live in: maps of many kinds and the types of their functions, the same on both sides.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, SpecialField, SpecialKind, map_flags};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};
use xway_object::{Initial, KfuncRef, MapDef, Object, Program, ProgramKind, SlotRef, Subprog};

/// Kernel functions, by the index that calls name.
pub const KFUNCS: [&str; 9] = [
    "bpf_iter_num_new",
    "bpf_iter_num_next",
    "bpf_iter_num_destroy",
    "bpf_dynptr_from_xdp",
    "bpf_dynptr_slice",
    "bpf_xdp_metadata_rx_hash",
    "bpf_dynptr_slice_rdwr",
    "bpf_dynptr_clone",
    "bpf_dynptr_adjust",
];

/// What a function of a generated program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Static, walked through at each call.
    Static,
    /// Static and leaves by a tail call, for which the kernel wants types.
    Tail,
    /// Callback of `bpf_loop`.
    Loop,
    /// Callback of `bpf_for_each_map_elem`.
    Element,
    /// Callback of a timer.
    Timer,
    /// Global, of two numbers.
    Numbers,
    /// Global, of 16 bytes of memory and a number.
    Memory,
    /// Global, of the context.
    Context,
}

impl Role {
    fn global(self) -> bool {
        matches!(self, Role::Numbers | Role::Memory | Role::Context)
    }
}

/// The surroundings as an object without programs.
pub struct World {
    /// Maps and types.
    pub object: Arc<Object>,
    main: u32,
    roles: Vec<(Role, u32)>,
}

impl Default for World {
    /// Describes it.
    fn default() -> World {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let word = b.int("unsigned int", 4, IntEncoding::Unsigned);
        let long = b.int("unsigned long", 8, IntEncoding::Unsigned);
        let signed = b.int("long", 8, IntEncoding::Signed);
        let void = b.ptr(0);
        let md = b.structure("xdp_md", 24, &[("data", word, 0), ("data_end", word, 32), ("data_meta", word, 64)]);
        let ctx = b.ptr(md);
        let pair = b.structure("pair", 16, &[("a", long, 0), ("b", long, 64)]);
        let pair = b.ptr(pair);
        let lock = b.structure("bpf_spin_lock", 4, &[("val", word, 0)]);
        let locked =
            b.structure("locked", 24, &[("lock", lock, 0), ("n", word, 32), ("a", long, 64), ("b", long, 128)]);
        let opaque = b.array(long, word, 2);
        let timer = b.structure("bpf_timer", 16, &[("__opaque", opaque, 0)]);
        let timed = b.structure("timed", 24, &[("timer", timer, 0), ("x", long, 128)]);

        let mut func = |name: &str, ret, params: &[(&str, u32)], linkage| {
            let proto = b.prototype(ret, params);
            b.func(name, proto, linkage)
        };
        let main = func("fuzz", int, &[("ctx", ctx)], FuncLinkage::Global);
        let callback = [("map", void), ("key", void), ("value", void), ("ctx", void)];
        let roles = vec![
            (Role::Static, func("inner", long, &[("a", long), ("b", long), ("p", void)], FuncLinkage::Static)),
            (Role::Tail, func("leave", int, &[("ctx", ctx)], FuncLinkage::Static)),
            (Role::Loop, func("turn", signed, &[("i", long), ("ctx", void)], FuncLinkage::Static)),
            (Role::Element, func("element", signed, &callback, FuncLinkage::Static)),
            (Role::Timer, func("due", int, &callback[..3], FuncLinkage::Static)),
            (Role::Numbers, func("numbers", int, &[("a", word), ("b", long)], FuncLinkage::Global)),
            (Role::Memory, func("memory", int, &[("p", pair), ("n", long)], FuncLinkage::Global)),
            (Role::Context, func("context", int, &[("ctx", ctx)], FuncLinkage::Global)),
        ];
        let special = |kind| vec![SpecialField { offset: 0, kind }];
        let typed = |def: MapDef, value_type| MapDef { key_type: word, value_type, ..def };
        let def =
            |name: &str, map_type, key, value, entries| MapDef::new(name, MapSpec::new(map_type, key, value, entries));
        let with = |mut def: MapDef, kind| {
            def.spec.special = special(kind);
            def
        };
        let inner = MapSpec::new(MapType::Array, 4, 16, 2);
        let mut outer = def("outer", MapType::ArrayOfMaps, 4, 4, 2);
        outer.spec.inner = Some(Box::new(inner.clone()));
        outer.initial = Initial::Slots(vec![(0, SlotRef::Map(12))]);
        let inner_hash = MapSpec::new(MapType::Hash, 4, 16, 4);
        let of_maps = |name: &str, map_type, template: &MapSpec, held: &[(u32, usize)]| {
            let mut outer = def(name, map_type, 4, 4, 4);
            outer.spec.inner = Some(Box::new(template.clone()));
            outer.initial = Initial::Slots(held.iter().map(|(key, map)| (*key, SlotRef::Map(*map))).collect());
            outer
        };
        let trie = |name: &str, address: u32, value| {
            let spec = MapSpec::new(MapType::LpmTrie, 4 + address, value, 64);
            MapDef::new(name, spec.with_flags(map_flags::NO_PREALLOC))
        };
        let mut rodata =
            MapDef::new("rodata", MapSpec::new(MapType::Array, 4, 32, 1).with_flags(map_flags::RDONLY_PROG));
        rodata.initial = Initial::Data((0..32u8).map(|i| if i < 8 { i / 4 * 5 } else { i.wrapping_mul(41) }).collect());
        rodata.frozen = true;
        // Small, so that it is often wrong, and wrong in the same way wherever it is.
        let spec = MapSpec { map_extra: 3, ..MapSpec::new(MapType::BloomFilter, 0, 8, 8) };
        let filter = MapDef::new("filter", spec.with_flags(map_flags::ZERO_SEED));
        let maps = vec![
            def("array", MapType::Array, 4, 64, 4),
            def("hash", MapType::Hash, 8, 48, 8),
            def("ring", MapType::Ringbuf, 0, 0, 4096),
            def("percpu", MapType::PercpuArray, 4, 16, 2),
            def("lru", MapType::LruHash, 4, 16, 16),
            typed(with(def("locked", MapType::Array, 4, 24, 2), SpecialKind::SpinLock), locked),
            typed(with(def("timers", MapType::Array, 4, 24, 2), SpecialKind::Timer), timed),
            def("programs", MapType::ProgArray, 4, 4, 2),
            outer,
            def("data", MapType::Array, 4, 64, 1),
            rodata,
            def("queue", MapType::Queue, 0, 8, 4),
            MapDef::new("inner", inner.clone()),
            MapDef::new("sink", MapSpec::new(MapType::Array, 4, 16, 2).with_flags(map_flags::WRONLY_PROG)),
            def("own", MapType::PercpuHash, 8, 16, 8),
            // Room for whatever keys packets have: which one leaves a full one is chosen by each map for itself.
            def("own_lru", MapType::LruPercpuHash, 4, 16, 2048),
            trie("short_prefixes", 4, 16),
            trie("odd_prefixes", 6, 8),
            trie("long_prefixes", 16, 8),
            of_maps("hash_of_arrays", MapType::HashOfMaps, &inner, &[(0, 12), (2, 12)]),
            of_maps("array_of_hashes", MapType::ArrayOfMaps, &inner_hash, &[(0, 22), (3, 22)]),
            of_maps("hash_of_hashes", MapType::HashOfMaps, &inner_hash, &[(1, 22), (2, 22)]),
            MapDef::new("inner_hash", inner_hash.clone()),
            def("devices", MapType::Devmap, 4, 8, 4),
            def("devices_by_key", MapType::DevmapHash, 4, 4, 4),
            def("cpus", MapType::Cpumap, 4, 4, 2),
            def("sockets", MapType::Xskmap, 4, 4, 4),
            filter,
            def("stack", MapType::Stack, 0, 8, 4),
            def("programs_of_frags", MapType::ProgArray, 4, 4, 2),
            def("devices_of_frags", MapType::Devmap, 4, 4, 4),
            typed(with(def("timed", MapType::Hash, 4, 24, 4), SpecialKind::Timer), timed),
            def("cpus_of_frags", MapType::Cpumap, 4, 4, 2),
        ];
        let object = Object { maps, btf: Some(Arc::new(b.finish())), license: Some("GPL".into()), ..Object::default() };
        World { object: Arc::new(object), main, roles }
    }
}

/// Prefixes that a trie holds before each program, some within others.
#[allow(dead_code)] // Not where programs are only verified.
pub fn first_prefixes(spec: &MapSpec) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = spec.key_size as usize - 4;
    let most = 8 * bytes as u32;
    let prefix = |len: u32| {
        let key = [&len.to_ne_bytes()[..], &[1, 8, 0, 0x45].repeat(4)[..bytes]].concat();
        (key, (0..spec.value_size).map(|i| (i * 5 + len) as u8).collect())
    };
    [0, 8, 13, most / 2, most - 3, most].into_iter().map(prefix).collect()
}

impl World {
    /// A program from assembler text; `roles` are those of its functions, in order. Every function is called or its
    /// address is taken.
    pub fn program(&self, text: &str, roles: &[Role]) -> Program {
        use xway_isa::{CallTarget, Imm64, Insn};
        let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let decoded = xway_isa::decode(&insns).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let target = |(pc, insn): (usize, &Option<Insn>)| match insn {
            Some(Insn::Call(CallTarget::Local(rel)) | Insn::LoadImm64 { imm: Imm64::Func(rel), .. }) => {
                Some((pc as i64 + 1 + i64::from(*rel)) as usize)
            }
            _ => None,
        };
        let mut starts: Vec<usize> = decoded.iter().enumerate().filter_map(target).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), roles.len(), "{roles:?}\n{text}");
        // Types only where the kernel wants them: for callbacks and functions that are verified on their own.
        let typed = roles.iter().any(|r| *r != Role::Static);
        let ends = starts.iter().copied().chain([insns.len()]);
        let mut subprogs = Vec::new();
        if typed {
            let all = std::iter::once((0, None)).chain(starts.iter().copied().zip(roles.iter().copied().map(Some)));
            for ((start, role), end) in all.zip(ends) {
                let func_id = match role {
                    None => self.main,
                    Some(role) => self.roles.iter().find(|r| r.0 == role).map_or(0, |r| r.1),
                };
                let global = role.is_none_or(Role::global);
                subprogs.push(Subprog { name: format!("f{start}"), start, len: end - start, global, func_id });
            }
        }
        let kfunc = |name: &&str| KfuncRef { name: (*name).to_owned(), func_id: 0, weak: false };
        Program {
            name: "fuzz".into(),
            section: "xdp".into(),
            kind: ProgramKind::Xdp { frags: false },
            insns,
            subprogs,
            kfuncs: KFUNCS.iter().map(kfunc).collect(),
            ..Program::default()
        }
    }
}
