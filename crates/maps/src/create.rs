//! Which maps can be created: the size and flag rules of each type, with Linux's errno for each refusal.
//!
//! The checks stand in the order in which Linux makes them, because the first that fails names the errno. Facts: the
//! running kernel, asked attribute by attribute by the tests in `testkit/tests/maps_create.rs`.

use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec, MapType};

use crate::Env;

/// Why a map could not be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot create a {} map: {reason} ({errno}: {})", map_type.name(), errno.text())]
pub struct CreateError {
    /// What Linux's `BPF_MAP_CREATE` returns for it.
    pub errno: Errno,
    /// The type asked for.
    pub map_type: MapType,
    /// Which rule was broken.
    pub reason: &'static str,
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Errno {
        error.errno
    }
}

/// Whether this crate has the type. The others are refused with `EINVAL`, as a kernel does that was built without them.
pub fn is_supported(map_type: MapType) -> bool {
    use MapType::*;
    !matches!(
        map_type,
        Sockmap
            | Sockhash
            | CgroupStorage
            | ReuseportSockarray
            | PercpuCgroupStorage
            | SkStorage
            | StructOps
            | InodeStorage
            | TaskStorage
            | CgrpStorage
            | Arena
    )
}

/// Largest allocation of the kernel's general allocator: bound of key and value sizes.
const KMALLOC_MAX: u64 = 4 << 20;
/// Bytes of a hash element before its key, of an LPM node and a queue's header in the kernel, which count in the bounds.
const HASH_ELEMENT: u64 = 48;
const LPM_NODE: u64 = 40;
/// Smallest per-CPU allocation unit: bound of a per-CPU value.
const PERCPU_MAX: u64 = 32 << 10;
/// Most frames of a stack trace (`kernel.perf_event_max_stack`).
const STACK_FRAMES_MAX: u32 = 127;

const ACCESS: u32 = f::RDONLY | f::WRONLY | f::RDONLY_PROG | f::WRONLY_PROG;

/// The spec as Linux keeps it: the places where it does not take the creator's word.
pub(crate) fn adjusted(spec: &MapSpec, env: &Env) -> MapSpec {
    let mut spec = spec.clone();
    if matches!(spec.map_type, MapType::Devmap | MapType::DevmapHash) {
        spec.flags |= f::RDONLY_PROG;
    }
    if spec.flags & f::NO_COMMON_LRU != 0 {
        // Every CPU's list has the same length.
        let whole = spec.max_entries.next_multiple_of(env.cpus);
        spec.max_entries = whole.max(env.cpus);
    }
    spec
}

/// The description with what a loader fills in: as with libbpf, a perf event array without a size has a slot for each CPU.
pub fn completed(spec: &MapSpec, env: &Env) -> MapSpec {
    let mut spec = spec.clone();
    if spec.map_type == MapType::PerfEventArray && spec.max_entries == 0 {
        spec.max_entries = env.cpus;
    }
    spec
}

type Rule = Result<(), (Errno, &'static str)>;

fn ensure(holds: bool, errno: Errno, reason: &'static str) -> Rule {
    if holds { Ok(()) } else { Err((errno, reason)) }
}

/// Checks everything that can be said of a description before memory is allocated. What passes can still fail for want of
/// memory, or for the template of a map of maps.
///
/// # Errors
/// The first rule that is broken, in Linux's order.
pub fn check(spec: &MapSpec, env: &Env) -> Result<(), CreateError> {
    rules(spec, env).map_err(|(errno, reason)| CreateError { errno, map_type: spec.map_type, reason })
}

fn rules(spec: &MapSpec, env: &Env) -> Rule {
    use Errno as E;
    use MapType::*;
    ensure(
        matches!(spec.map_type, BloomFilter | Arena) || spec.map_extra == 0,
        E::EINVAL,
        "map_extra is for bloom filters",
    )?;
    ensure(
        spec.flags & f::RDONLY == 0 || spec.flags & f::WRONLY == 0,
        E::EINVAL,
        "read-only and write-only exclude each other",
    )?;
    ensure(
        spec.flags & f::NUMA_NODE == 0 || env.numa_nodes.has(spec.numa_node) || spec.numa_node == u32::MAX,
        E::EINVAL,
        "no such NUMA node",
    )?;
    ensure(is_supported(spec.map_type), E::EINVAL, "this type has no meaning outside the kernel")?;
    match spec.map_type {
        Array | PercpuArray => array(spec),
        ProgArray | PerfEventArray | CgroupArray | ArrayOfMaps => {
            ensure(spec.value_size == 4, E::EINVAL, "values are descriptors: value_size must be 4")?;
            ensure(spec.flags & (f::RDONLY_PROG | f::WRONLY_PROG) == 0, E::EINVAL, "programs' access is fixed")?;
            array(spec)
        }
        Hash | PercpuHash | LruHash | LruPercpuHash => hash(spec),
        HashOfMaps => {
            ensure(spec.value_size == 4, E::EINVAL, "values are descriptors: value_size must be 4")?;
            hash(spec)
        }
        LpmTrie => lpm(spec),
        Devmap | DevmapHash => {
            ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
            ensure(spec.key_size == 4, E::EINVAL, "key_size must be 4")?;
            ensure(matches!(spec.value_size, 4 | 8), E::EINVAL, "value_size must be 4 or 8")?;
            flags(spec, f::NUMA_NODE | f::RDONLY | f::WRONLY)?;
            ensure(spec.map_type == Devmap || spec.max_entries <= 1 << 31, E::EINVAL, "max_entries is above 2147483648")
        }
        Cpumap => {
            ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
            ensure(spec.key_size == 4, E::EINVAL, "key_size must be 4")?;
            ensure(matches!(spec.value_size, 4 | 8), E::EINVAL, "value_size must be 4 or 8")?;
            flags(spec, f::NUMA_NODE)?;
            ensure(spec.max_entries <= env.nr_cpus, E::E2BIG, "max_entries is above the number of CPUs ever possible")
        }
        Xskmap => {
            ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
            ensure(spec.key_size == 4, E::EINVAL, "key_size must be 4")?;
            ensure(spec.value_size == 4, E::EINVAL, "value_size must be 4")?;
            flags(spec, f::NUMA_NODE | f::RDONLY | f::WRONLY)
        }
        Queue | Stack => {
            ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
            ensure(spec.key_size == 0, E::EINVAL, "there are no keys: key_size must be 0")?;
            ensure(spec.value_size != 0, E::EINVAL, "value_size is 0")?;
            flags(spec, f::NUMA_NODE | ACCESS)?;
            program_access(spec)?;
            ensure(u64::from(spec.value_size) <= KMALLOC_MAX, E::E2BIG, "value_size is above 4 MiB")
        }
        BloomFilter => {
            ensure(u64::from(spec.value_size) <= KMALLOC_MAX, E::E2BIG, "value_size is above 4 MiB")?;
            ensure(spec.key_size == 0, E::EINVAL, "there are no keys: key_size must be 0")?;
            ensure(spec.value_size != 0, E::EINVAL, "value_size is 0")?;
            ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
            flags(spec, f::NUMA_NODE | f::ZERO_SEED | ACCESS)?;
            program_access(spec)?;
            ensure(spec.map_extra & !0xf == 0, E::EINVAL, "map_extra holds the number of hash functions, at most 15")
        }
        Ringbuf | UserRingbuf => {
            flags(spec, f::NUMA_NODE)?;
            ensure(spec.key_size == 0, E::EINVAL, "there are no keys: key_size must be 0")?;
            ensure(spec.value_size == 0, E::EINVAL, "records have their own length: value_size must be 0")?;
            ensure(
                spec.max_entries.is_power_of_two() && spec.max_entries.is_multiple_of(env.page_size),
                E::EINVAL,
                "max_entries is the size in bytes: a power of two, of whole pages",
            )
        }
        StackTrace => stack_trace(spec),
        _ => Err((E::EINVAL, "this type has no meaning outside the kernel")),
    }?;
    xway_abi::special_fields_fit(spec)
}

fn flags(spec: &MapSpec, allowed: u32) -> Rule {
    ensure(spec.flags & !allowed == 0, Errno::EINVAL, "a flag that this type does not have")
}

fn program_access(spec: &MapSpec) -> Rule {
    let both = f::RDONLY_PROG | f::WRONLY_PROG;
    ensure(spec.flags & both != both, Errno::EINVAL, "read-only and write-only for programs exclude each other")
}

fn array(spec: &MapSpec) -> Rule {
    use Errno as E;
    let percpu = spec.map_type == MapType::PercpuArray;
    ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
    ensure(spec.key_size == 4, E::EINVAL, "key_size must be 4")?;
    ensure(spec.value_size != 0, E::EINVAL, "value_size is 0")?;
    flags(spec, f::NUMA_NODE | f::MMAPABLE | f::PRESERVE_ELEMS | f::INNER_MAP | ACCESS)?;
    program_access(spec)?;
    ensure(!percpu || !has_node(spec), E::EINVAL, "per-CPU memory has no NUMA node")?;
    let plain = spec.map_type == MapType::Array;
    ensure(plain || spec.flags & (f::MMAPABLE | f::INNER_MAP) == 0, E::EINVAL, "a flag of plain arrays")?;
    let perf = spec.map_type == MapType::PerfEventArray;
    ensure(perf || spec.flags & f::PRESERVE_ELEMS == 0, E::EINVAL, "a flag of perf event arrays")?;
    ensure(spec.value_size <= i32::MAX as u32, E::E2BIG, "value_size is above 2 GiB")?;
    let rounded = u64::from(spec.value_size).next_multiple_of(8);
    ensure(!percpu || rounded <= PERCPU_MAX, E::E2BIG, "a per-CPU value is above 32 KiB")
}

fn hash(spec: &MapSpec) -> Rule {
    use Errno as E;
    let lru = matches!(spec.map_type, MapType::LruHash | MapType::LruPercpuHash);
    let percpu = matches!(spec.map_type, MapType::PercpuHash | MapType::LruPercpuHash);
    let percpu_lru = spec.flags & f::NO_COMMON_LRU != 0;
    flags(spec, f::NO_PREALLOC | f::NO_COMMON_LRU | f::NUMA_NODE | f::ZERO_SEED | ACCESS)?;
    program_access(spec)?;
    ensure(lru || !percpu_lru, E::EINVAL, "a flag of LRU maps")?;
    ensure(!lru || spec.flags & f::NO_PREALLOC == 0, E::ENOTSUPP, "LRU maps are always preallocated")?;
    ensure(!has_node(spec) || !(percpu || percpu_lru), E::EINVAL, "per-CPU memory has no NUMA node")?;
    ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
    ensure(spec.key_size != 0, E::EINVAL, "key_size is 0")?;
    ensure(spec.value_size != 0, E::EINVAL, "value_size is 0")?;
    let element = u64::from(spec.key_size) + u64::from(spec.value_size);
    ensure(element < KMALLOC_MAX - HASH_ELEMENT, E::E2BIG, "key and value together are above 4 MiB")?;
    let rounded = u64::from(spec.value_size).next_multiple_of(8);
    ensure(!percpu || rounded <= PERCPU_MAX, E::E2BIG, "a per-CPU value is above 32 KiB")?;
    ensure(spec.max_entries <= 1 << 27, E::E2BIG, "max_entries is above 134217728")
}

fn lpm(spec: &MapSpec) -> Rule {
    use Errno as E;
    ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
    ensure(spec.flags & f::NO_PREALLOC != 0, E::EINVAL, "tries need BPF_F_NO_PREALLOC")?;
    flags(spec, f::NO_PREALLOC | f::NUMA_NODE | ACCESS)?;
    program_access(spec)?;
    ensure((5..=260).contains(&spec.key_size), E::EINVAL, "key_size is a 4-byte prefix length and 1 to 256 bytes")?;
    let value_max = KMALLOC_MAX - 256 - LPM_NODE;
    ensure(
        (1..=value_max).contains(&u64::from(spec.value_size)),
        E::EINVAL,
        "value_size is 0 or above what a node can hold",
    )
}

fn stack_trace(spec: &MapSpec) -> Rule {
    use Errno as E;
    flags(spec, f::NUMA_NODE | f::RDONLY | f::WRONLY | f::STACK_BUILD_ID)?;
    ensure(spec.max_entries != 0, E::EINVAL, "max_entries is 0")?;
    ensure(spec.key_size == 4, E::EINVAL, "key_size must be 4")?;
    ensure(spec.value_size >= 8 && spec.value_size.is_multiple_of(8), E::EINVAL, "value_size must hold whole frames")?;
    let frame = if spec.flags & f::STACK_BUILD_ID != 0 { 32 } else { 8 };
    ensure(
        spec.value_size.is_multiple_of(frame) && spec.value_size / frame <= STACK_FRAMES_MAX,
        E::EINVAL,
        "value_size must hold at most 127 whole frames",
    )?;
    ensure(spec.max_entries <= 1 << 31, E::E2BIG, "max_entries is above 2147483648")
}

fn has_node(spec: &MapSpec) -> bool {
    wanted_node(spec).is_some()
}

/// The NUMA node that a map's creator named.
pub(crate) fn wanted_node(spec: &MapSpec) -> Option<u32> {
    (spec.flags & f::NUMA_NODE != 0 && spec.numa_node != u32::MAX).then_some(spec.numa_node)
}
