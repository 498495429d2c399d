//! What a map needs to know of the world around it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use xway_abi::Errno;
use xway_numa::Nodes as NumaNodes;

use crate::Map;

/// The surroundings of a map: how many CPUs there are, and who resolves the descriptors that user space writes into maps.
#[derive(Clone)]
pub struct Env {
    /// Possible CPUs (the engine: workers), at least 1. Per-CPU maps have this many values for each element.
    pub cpus: u32,
    /// Largest number of CPUs that the build knows (Linux: `CONFIG_NR_CPUS`): bound of a CPUMAP's `max_entries`.
    pub nr_cpus: u32,
    /// Bytes in a page: ring buffers are whole pages.
    pub page_size: u32,
    /// Huge pages for the memory of preallocated maps. What a map got is in [`Memory`](crate::Memory).
    pub huge_pages: HugePages,
    /// The NUMA nodes that a map may name.
    pub numa_nodes: NumaNodes,
    /// Arrays that can be mapped (`BPF_F_MMAPABLE`) lie in memory files, so that others can be given their values
    /// ([`Map::memory_fd`]). It costs a descriptor and whole pages for each. What finds no file lies in memory as any other array.
    pub map_memory: bool,
    /// Resolves descriptors.
    pub handles: Arc<dyn Handles>,
}

/// Whether maps lie on huge pages: random access to large ones is twice as fast, because the CPU's page tables suffice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HugePages {
    /// Pages of the usual size.
    Never,
    /// The kernel is asked to use huge pages where it has some (`MADV_HUGEPAGE`).
    #[default]
    Transparent,
    /// Pages from the reserved pool (`MAP_HUGETLB`); transparent ones when the pool has too few.
    Explicit,
}

impl Env {
    /// The default surroundings with this many CPUs.
    pub fn with_cpus(cpus: u32) -> Env {
        Env {
            cpus: cpus.max(1),
            nr_cpus: 8192,
            page_size: 4096,
            huge_pages: HugePages::default(),
            numa_nodes: NumaNodes::online(),
            map_memory: false,
            handles: Arc::new(NoHandles),
        }
    }
}

impl Default for Env {
    /// One value per hardware thread, at most 8192 CPUs, pages of 4 KiB, no descriptors.
    fn default() -> Env {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Env::with_cpus(cpus)
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").field("cpus", &self.cpus).field("nr_cpus", &self.nr_cpus).finish_non_exhaustive()
    }
}

/// Turns the numbers that user space writes into maps of objects into the objects.
///
/// Implemented by whoever keeps the descriptors: the engine, the test-run, a test. What is left out is not there: no descriptor is
/// known, and every number is a device, because which ones there are is known when a frame is redirected, not before.
pub trait Handles: Send + Sync {
    /// The map with this descriptor.
    fn map(&self, fd: i32) -> Result<Arc<Map>, Errno> {
        let _ = fd;
        Err(Errno::EBADF)
    }
    /// The program with this descriptor.
    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        let _ = fd;
        Err(Errno::EBADF)
    }
    /// The AF_XDP-style socket with this descriptor: `EBADF`, `ENOTSOCK`, or `EOPNOTSUPP` for a socket of another kind.
    fn socket(&self, fd: i32) -> Result<Arc<dyn SocketObject>, Errno> {
        let _ = fd;
        Err(Errno::EBADF)
    }
    /// The control group with this descriptor.
    fn cgroup(&self, fd: i32) -> Result<(), Errno> {
        let _ = fd;
        Err(Errno::EBADF)
    }
    /// Whether a device has this index.
    fn device(&self, ifindex: u32) -> bool {
        let _ = ifindex;
        true
    }
}

/// No descriptor is known, every device is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHandles;

impl Handles for NoHandles {}

/// What a program was loaded for, as far as maps care (`enum bpf_attach_type` of XDP programs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProgramUse {
    /// Attached to a device; tail-callable from the like.
    Xdp,
    /// Run for each frame that leaves through a DEVMAP entry.
    XdpDevmap,
    /// Run for each frame that arrives at a CPUMAP entry.
    XdpCpumap,
    /// Something else (raw programs of the conformance suite).
    Other(u32),
}

/// A program as maps see it.
pub trait ProgramObject: Send + Sync {
    /// The program's id: what user space reads back from a PROG_ARRAY.
    fn id(&self) -> u32;
    /// What it was loaded for.
    fn program_use(&self) -> ProgramUse;
    /// Whether it handles frames of several buffers (`xdp.frags`); programs that differ in this do not share a PROG_ARRAY.
    fn frags(&self) -> bool {
        false
    }
    /// Where a tail call from generated code jumps: a cell with the address of the program's code, 0 while there is none.
    /// `None`: never. Whoever stores an address vouches for the code behind it.
    fn entry(&self) -> Option<&AtomicUsize> {
        None
    }
    /// It is about to be put into a PROG_ARRAY: whoever makes code of it when it is needed does so now.
    fn before_tail_calls(&self) {}
    /// The program itself, for the crate that made it.
    fn as_any(&self) -> &dyn Any;
}

/// An AF_XDP-style socket as maps see it.
pub trait SocketObject: Send + Sync {
    /// A number that names the socket.
    fn id(&self) -> u64;
    /// The queue that it is bound to: what programs see of a socket that they look up.
    fn queue(&self) -> u32 {
        0
    }
    /// The socket itself, for the crate that made it.
    fn as_any(&self) -> &dyn Any;
}
