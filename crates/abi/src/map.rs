//! Map types, creation flags and what a map is created from (`enum bpf_map_type`, `union bpf_attr`).

macro_rules! map_types {
    ($($variant:ident = $num:literal, $name:literal;)*) => {
        /// Map types of Linux 6.18, by the kernel's numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u32)]
        pub enum MapType { $(#[doc = $name] $variant = $num,)* }

        impl MapType {
            /// Every type, in numerical order.
            pub const ALL: &[MapType] = &[$(MapType::$variant,)*];

            /// The type with this number.
            pub const fn from_u32(n: u32) -> Option<MapType> {
                match n { $($num => Some(MapType::$variant),)* _ => None }
            }

            /// Its name as bpftool prints it.
            pub const fn name(self) -> &'static str {
                match self { $(MapType::$variant => $name,)* }
            }

            /// The type with this bpftool name.
            pub fn from_name(name: &str) -> Option<MapType> {
                match name { $($name => Some(MapType::$variant),)* _ => None }
            }
        }
    };
}

map_types! {
    Hash = 1, "hash";
    Array = 2, "array";
    ProgArray = 3, "prog_array";
    PerfEventArray = 4, "perf_event_array";
    PercpuHash = 5, "percpu_hash";
    PercpuArray = 6, "percpu_array";
    StackTrace = 7, "stack_trace";
    CgroupArray = 8, "cgroup_array";
    LruHash = 9, "lru_hash";
    LruPercpuHash = 10, "lru_percpu_hash";
    LpmTrie = 11, "lpm_trie";
    ArrayOfMaps = 12, "array_of_maps";
    HashOfMaps = 13, "hash_of_maps";
    Devmap = 14, "devmap";
    Sockmap = 15, "sockmap";
    Cpumap = 16, "cpumap";
    Xskmap = 17, "xskmap";
    Sockhash = 18, "sockhash";
    CgroupStorage = 19, "cgroup_storage";
    ReuseportSockarray = 20, "reuseport_sockarray";
    PercpuCgroupStorage = 21, "percpu_cgroup_storage";
    Queue = 22, "queue";
    Stack = 23, "stack";
    SkStorage = 24, "sk_storage";
    DevmapHash = 25, "devmap_hash";
    StructOps = 26, "struct_ops";
    Ringbuf = 27, "ringbuf";
    InodeStorage = 28, "inode_storage";
    TaskStorage = 29, "task_storage";
    BloomFilter = 30, "bloom_filter";
    UserRingbuf = 31, "user_ringbuf";
    CgrpStorage = 32, "cgrp_storage";
    Arena = 33, "arena";
}

impl MapType {
    /// The structure that a kernel keeps such a map in. Programs may read its fields (`map_btf_id` of the map's operations).
    pub const fn kernel_struct(self) -> &'static str {
        match self {
            MapType::Array | MapType::PercpuArray | MapType::ProgArray | MapType::PerfEventArray => "bpf_array",
            MapType::CgroupArray | MapType::ArrayOfMaps => "bpf_array",
            MapType::Hash | MapType::PercpuHash | MapType::LruHash | MapType::LruPercpuHash => "bpf_htab",
            MapType::HashOfMaps => "bpf_htab",
            MapType::StackTrace => "bpf_stack_map",
            MapType::LpmTrie => "lpm_trie",
            MapType::Devmap | MapType::DevmapHash => "bpf_dtab",
            MapType::Sockmap => "bpf_stab",
            MapType::Sockhash => "bpf_shtab",
            MapType::Cpumap => "bpf_cpu_map",
            MapType::Xskmap => "xsk_map",
            MapType::CgroupStorage | MapType::PercpuCgroupStorage => "bpf_cgroup_storage_map",
            MapType::ReuseportSockarray => "reuseport_array",
            MapType::Queue | MapType::Stack => "bpf_queue_stack",
            MapType::SkStorage | MapType::InodeStorage | MapType::TaskStorage | MapType::CgrpStorage => {
                "bpf_local_storage_map"
            }
            MapType::StructOps => "bpf_struct_ops_map",
            MapType::Ringbuf | MapType::UserRingbuf => "bpf_ringbuf_map",
            MapType::BloomFilter => "bpf_bloom_filter",
            MapType::Arena => "bpf_arena",
        }
    }
}

/// Map creation flags (`BPF_F_*` of `union bpf_attr`'s `map_flags`) and update flags.
pub mod flags {
    /// Allocate elements one by one.
    pub const NO_PREALLOC: u32 = 1 << 0;
    /// One LRU list per CPU.
    pub const NO_COMMON_LRU: u32 = 1 << 1;
    /// `numa_node` is valid.
    pub const NUMA_NODE: u32 = 1 << 2;
    /// The system call side may only read.
    pub const RDONLY: u32 = 1 << 3;
    /// The system call side may only write.
    pub const WRONLY: u32 = 1 << 4;
    /// Stack traces hold build ids.
    pub const STACK_BUILD_ID: u32 = 1 << 5;
    /// The hash seed is zero.
    pub const ZERO_SEED: u32 = 1 << 6;
    /// Programs may only read.
    pub const RDONLY_PROG: u32 = 1 << 7;
    /// Programs may only write.
    pub const WRONLY_PROG: u32 = 1 << 8;
    /// Child sockets inherit.
    pub const CLONE: u32 = 1 << 9;
    /// Array values can be mapped.
    pub const MMAPABLE: u32 = 1 << 10;
    /// Perf events stay when the installing descriptor closes.
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    /// Array of maps: inner maps may differ in `max_entries`.
    pub const INNER_MAP: u32 = 1 << 12;

    /// Update: create or replace.
    pub const ANY: u64 = 0;
    /// Update: create only.
    pub const NOEXIST: u64 = 1;
    /// Update: replace only.
    pub const EXIST: u64 = 2;
    /// Look-up and update under the value's spin lock.
    pub const LOCK: u64 = 4;
}

/// What a map is created from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapSpec {
    /// Type.
    pub map_type: MapType,
    /// Key length, bytes.
    pub key_size: u32,
    /// Value length, bytes.
    pub value_size: u32,
    /// Largest number of entries (ring buffers: bytes).
    pub max_entries: u32,
    /// [`flags`] of creation.
    pub flags: u32,
    /// Node for the map's memory; used when `flags` has `NUMA_NODE`.
    pub numa_node: u32,
    /// Type-specific extra (bloom filter: number of hash functions).
    pub map_extra: u64,
    /// Template of the inner maps of a map of maps.
    pub inner: Option<Box<MapSpec>>,
    /// Fields of the value that plain copies must not touch, from the value's BTF; in order of offset.
    pub special: Vec<SpecialField>,
}

/// Kinds of value fields that belong to the runtime and not to whoever copies the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpecialKind {
    /// `struct bpf_spin_lock`.
    SpinLock,
    /// `struct bpf_timer`.
    Timer,
    /// `struct bpf_wq`.
    Workqueue,
    /// A pointer to a kernel object (`__kptr`, `__kptr_untrusted`, `__percpu_kptr`).
    Kptr,
    /// `struct bpf_list_head`, `bpf_list_node`, `bpf_rb_root`, `bpf_rb_node`, `bpf_refcount` and whatever else the kernel owns.
    Other(u32),
}

impl SpecialKind {
    /// Length in bytes.
    pub const fn size(self) -> u32 {
        match self {
            SpecialKind::SpinLock => 4,
            SpecialKind::Timer | SpecialKind::Workqueue => 16,
            SpecialKind::Kptr => 8,
            SpecialKind::Other(size) => size,
        }
    }
}

/// One special field of a map value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpecialField {
    /// What it is.
    pub kind: SpecialKind,
    /// Bytes from the start of the value.
    pub offset: u32,
}

impl MapSpec {
    /// A spec without flags or extras.
    pub const fn new(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> MapSpec {
        MapSpec {
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            numa_node: 0,
            map_extra: 0,
            inner: None,
            special: Vec::new(),
        }
    }

    /// The same spec with these creation flags.
    pub fn with_flags(mut self, flags: u32) -> MapSpec {
        self.flags = flags;
        self
    }
}
