//! The two worlds in which map tests run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::net::{AddressFamily, SocketType};
use xway_abi::{Errno, MapSpec, MapType};
use xway_kernel::{Batch, KernelMap, KernelProg, ProgSpec, consts, possible_cpus};
use xway_maps::{BatchRead, Env, Handles, Map, ProgramObject, ProgramUse, Shape, SocketObject, Window};
use xway_testkit::Needs;

/// Result of a call without a value.
pub type Done = Result<(), Errno>;

/// Key and value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What a batch command left: the count, the result, keys, values and token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchSeen {
    pub count: u32,
    pub result: Done,
    pub keys: Vec<Vec<u8>>,
    pub values: Vec<Vec<u8>>,
    pub token: Vec<u8>,
}

/// A map under test: the commands of `bpf(2)`, the same for ours and the kernel's.
pub trait MapUnderTest {
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done;
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Done;
    fn delete(&self, key: &[u8]) -> Done;
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Done;
    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done;
    fn freeze(&self) -> Done;
    /// What mmap(2) does with the whole of it.
    fn window(&self, write: bool) -> Result<Window, Errno>;
    fn lookup_batch(&self, from: Option<&[u8]>, count: u32, elem_flags: u64, flags: u64, delete: bool) -> BatchSeen;
    fn update_batch(&self, keys: &[u8], values: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done);
    fn delete_batch(&self, keys: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done);
    fn user_value_size(&self) -> usize;
    fn key_size(&self) -> usize;
    /// `max_entries` and flags as the map reports them.
    fn kept(&self) -> (u32, u32);
    /// The number by which this map can be stored in a map of maps.
    fn handle(&self) -> i32;
    /// The id that a look-up in a map of maps gives.
    fn id(&self) -> u32;

    /// A look-up into a buffer of its own.
    fn get(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut out = vec![0xa5; self.user_value_size()];
        self.lookup(key, &mut out, 0).map(|()| out)
    }

    /// Every key, in order.
    fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut next = vec![0; self.key_size()];
        loop {
            match self.next_key(keys.last().map(Vec::as_slice), &mut next) {
                Ok(()) => keys.push(next.clone()),
                Err(Errno::ENOENT) => return Ok(keys),
                Err(errno) => return Err(errno),
            }
            assert!(keys.len() < 1 << 20, "a walk that does not end");
        }
    }

    /// Every key and value, sorted.
    fn contents(&self) -> Result<Vec<Pair>, Errno> {
        let mut all: Vec<_> = self
            .keys()?
            .into_iter()
            .map(|key| {
                let value = self.get(&key)?;
                Ok((key, value))
            })
            .collect::<Result<_, Errno>>()?;
        all.sort();
        Ok(all)
    }
}

/// Where maps are made.
pub trait World {
    fn create(&self, spec: &MapSpec) -> Result<Box<dyn MapUnderTest>, Errno>;
    /// A descriptor of a fresh program of this use, and the program's id.
    fn program(&self, program_use: ProgramUse, frags: bool) -> (i32, u32);
    /// A descriptor of a fresh AF_XDP socket.
    fn socket(&self) -> i32;
    /// An index of a device that exists.
    fn device(&self) -> u32 {
        1
    }
    /// An index that no device has.
    fn no_device(&self) -> u32 {
        0x7fff_fff0
    }
}

/// Runs the body on ours and, where the machine allows it, on the kernel's.
pub fn on_both(name: &str, body: impl Fn(&dyn World)) {
    body(&Ours::new());
    if kernel_maps(name) {
        body(&Kernels::default());
    }
}

/// Runs the body on both and compares what it saw, line by line.
pub fn same_on_both(name: &str, body: impl Fn(&dyn World) -> Vec<String>) {
    let ours = body(&Ours::new());
    assert!(!ours.is_empty());
    if !kernel_maps(name) {
        return;
    }
    let kernels = body(&Kernels::default());
    let mut differences = Vec::new();
    for (ours, kernels) in ours.iter().zip(&kernels) {
        if ours != kernels {
            differences.push(format!("ours:   {ours}\nkernel: {kernels}"));
        }
    }
    let shown = differences.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {} lines differ\n{shown}", differences.len(), ours.len());
    assert_eq!(ours.len(), kernels.len());
}

/// Whether the kernel half of a test can run; says so if not.
pub fn kernel_maps(name: &str) -> bool {
    let works = || KernelMap::create("probe", &MapSpec::new(MapType::Array, 4, 4, 1)).is_ok();
    Needs::of(&format!("maps::{name} on the kernel")).root().that(works(), "bpf(2)").kernel(6, 18).met()
}

/// Our maps, with descriptors of their own.
pub struct Ours {
    pub env: Env,
    pub handles: Arc<TestHandles>,
}

impl Ours {
    pub fn new() -> Ours {
        let handles = Arc::new(TestHandles::default());
        let (cpus, nr_cpus) = (possible_cpus(), kernel_nr_cpus());
        let env = Env { cpus, nr_cpus, handles: handles.clone(), map_memory: true, ..Env::default() };
        Ours { env, handles }
    }
}

impl World for Ours {
    fn create(&self, spec: &MapSpec) -> Result<Box<dyn MapUnderTest>, Errno> {
        let map = Map::create_named("test", spec, &self.env).map_err(|error| error.errno)?;
        Ok(Box::new(OurMap { map, handles: self.handles.clone() }))
    }

    fn program(&self, program_use: ProgramUse, frags: bool) -> (i32, u32) {
        let mut programs = self.handles.programs.lock().unwrap();
        let id = programs.len() as u32 + 1;
        programs.push(Arc::new(OurProgram { id, program_use, frags }));
        (FIRST_PROGRAM + programs.len() as i32 - 1, id)
    }

    fn socket(&self) -> i32 {
        FIRST_SOCKET + self.handles.sockets.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

/// Descriptors of the test: numbers from 1000 on for maps, programs and sockets.
#[derive(Default)]
pub struct TestHandles {
    maps: Mutex<Vec<Arc<Map>>>,
    programs: Mutex<Vec<Arc<dyn ProgramObject>>>,
    sockets: std::sync::atomic::AtomicI32,
}

const FIRST_HANDLE: i32 = 1000;
const FIRST_PROGRAM: i32 = 1_000_000;
const FIRST_SOCKET: i32 = 2_000_000;

struct OurSocket(i32);

impl SocketObject for OurSocket {
    fn id(&self) -> u64 {
        self.0 as u64
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

struct OurProgram {
    id: u32,
    program_use: ProgramUse,
    frags: bool,
}

impl ProgramObject for OurProgram {
    fn id(&self) -> u32 {
        self.id
    }
    fn program_use(&self) -> ProgramUse {
        self.program_use
    }
    fn frags(&self) -> bool {
        self.frags
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Handles for TestHandles {
    fn map(&self, fd: i32) -> Result<Arc<Map>, Errno> {
        let maps = self.maps.lock().unwrap();
        usize::try_from(fd.wrapping_sub(FIRST_HANDLE)).ok().and_then(|n| maps.get(n).cloned()).ok_or(Errno::EBADF)
    }
    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        let programs = self.programs.lock().unwrap();
        usize::try_from(fd.wrapping_sub(FIRST_PROGRAM)).ok().and_then(|n| programs.get(n).cloned()).ok_or(Errno::EBADF)
    }
    fn socket(&self, fd: i32) -> Result<Arc<dyn SocketObject>, Errno> {
        let made = self.sockets.load(std::sync::atomic::Ordering::Relaxed);
        if (FIRST_SOCKET..FIRST_SOCKET + made).contains(&fd) {
            return Ok(Arc::new(OurSocket(fd)));
        }
        Err(if self.map(fd).is_ok() || self.program(fd).is_ok() { Errno::ENOTSOCK } else { Errno::EBADF })
    }
    fn device(&self, ifindex: u32) -> bool {
        ifindex == 1
    }
}

struct OurMap {
    map: Arc<Map>,
    handles: Arc<TestHandles>,
}

impl MapUnderTest for OurMap {
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done {
        self.map.lookup(key, out, flags)
    }
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Done {
        self.map.update(key, value, flags)
    }
    fn delete(&self, key: &[u8]) -> Done {
        self.map.delete(key)
    }
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Done {
        self.map.next_key(key, out)
    }
    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done {
        self.map.lookup_and_delete(key, out, flags)
    }
    fn freeze(&self) -> Done {
        self.map.freeze()
    }
    fn window(&self, write: bool) -> Result<Window, Errno> {
        let fd = self.map.memory_fd(write)?;
        Window::of_memory(fd.as_fd(), Shape::of(self.map.spec()), write)
    }
    fn lookup_batch(&self, from: Option<&[u8]>, count: u32, elem_flags: u64, flags: u64, delete: bool) -> BatchSeen {
        let room = Room::new(self, count);
        room.fill(|token, keys, values| {
            let batch = BatchRead { in_batch: from, out_batch: token, keys, values, count, elem_flags, flags };
            let done = if delete { self.map.lookup_and_delete_batch(batch) } else { self.map.lookup_batch(batch) };
            (done.count, done.result)
        })
    }
    fn update_batch(&self, keys: &[u8], values: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done) {
        let done = self.map.update_batch(keys, values, count, elem_flags, flags);
        (done.count, done.result)
    }
    fn delete_batch(&self, keys: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done) {
        let done = self.map.delete_batch(keys, count, elem_flags, flags);
        (done.count, done.result)
    }
    fn user_value_size(&self) -> usize {
        self.map.user_value_size()
    }
    fn key_size(&self) -> usize {
        self.map.key_size()
    }
    fn kept(&self) -> (u32, u32) {
        // Permissions of the creator's descriptor: Linux does not count them among the map's flags.
        let descriptor = xway_abi::map_flags::RDONLY | xway_abi::map_flags::WRONLY;
        (self.map.spec().max_entries, self.map.spec().flags & !descriptor)
    }
    fn handle(&self) -> i32 {
        let mut maps = self.handles.maps.lock().unwrap();
        maps.push(self.map.clone());
        FIRST_HANDLE + maps.len() as i32 - 1
    }
    fn id(&self) -> u32 {
        self.map.id()
    }
}

/// The kernel's maps.
#[derive(Default)]
pub struct Kernels {
    /// Kept so that their descriptors stay open.
    programs: RefCell<Vec<KernelProg>>,
    sockets: RefCell<Vec<OwnedFd>>,
}

impl World for Kernels {
    fn program(&self, program_use: ProgramUse, frags: bool) -> (i32, u32) {
        let insns = xway_isa::assemble("r0 = 2\n exit").unwrap();
        let attach_type = match program_use {
            ProgramUse::Xdp => consts::ATTACH_XDP,
            ProgramUse::XdpDevmap => consts::ATTACH_XDP_DEVMAP,
            ProgramUse::XdpCpumap => consts::ATTACH_XDP_CPUMAP,
            ProgramUse::Other(other) => panic!("{other}"),
        };
        let flags = if frags { consts::F_XDP_HAS_FRAGS } else { 0 };
        let program = KernelProg::load(&ProgSpec { attach_type, flags, ..ProgSpec::xdp("test", &insns) }).unwrap();
        let (fd, id) = (program.as_fd().as_raw_fd(), program.info().unwrap().id);
        self.programs.borrow_mut().push(program);
        (fd, id)
    }

    fn socket(&self) -> i32 {
        let socket = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        let fd = socket.as_raw_fd();
        self.sockets.borrow_mut().push(socket);
        fd
    }

    fn create(&self, spec: &MapSpec) -> Result<Box<dyn MapUnderTest>, Errno> {
        Ok(Box::new(KernelMap::create("test", spec)?))
    }
}

impl MapUnderTest for KernelMap {
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done {
        KernelMap::lookup(self, key, out, flags)
    }
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Done {
        KernelMap::update(self, key, value, flags)
    }
    fn delete(&self, key: &[u8]) -> Done {
        KernelMap::delete(self, key)
    }
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Done {
        KernelMap::next_key(self, key, out)
    }
    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Done {
        KernelMap::lookup_and_delete(self, key, out, flags)
    }
    fn freeze(&self) -> Done {
        KernelMap::freeze(self)
    }
    fn window(&self, write: bool) -> Result<Window, Errno> {
        let spec = self.spec();
        // (What has no values has none to map: anything that is as long as a page asks the same.)
        let shape = Shape { value_size: spec.value_size.max(1), entries: spec.max_entries };
        Window::of_kernel(self.as_fd(), shape, write)
    }
    fn lookup_batch(&self, from: Option<&[u8]>, count: u32, elem_flags: u64, flags: u64, delete: bool) -> BatchSeen {
        let room = Room::new(self, count);
        room.fill(|token, keys, values| {
            let batch = Batch { in_batch: from, out_batch: token, keys, values, count, elem_flags, flags };
            if delete { KernelMap::lookup_and_delete_batch(self, batch) } else { KernelMap::lookup_batch(self, batch) }
        })
    }
    fn update_batch(&self, keys: &[u8], values: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done) {
        let (mut keys, mut values) = (keys.to_vec(), values.to_vec());
        let (in_batch, out_batch) = (None, &mut [][..]);
        let batch = Batch { in_batch, out_batch, keys: &mut keys, values: &mut values, count, elem_flags, flags };
        KernelMap::update_batch(self, batch)
    }
    fn delete_batch(&self, keys: &[u8], count: u32, elem_flags: u64, flags: u64) -> (u32, Done) {
        let mut keys = keys.to_vec();
        let (in_batch, out_batch) = (None, &mut [][..]);
        let batch = Batch { in_batch, out_batch, keys: &mut keys, values: &mut [], count, elem_flags, flags };
        KernelMap::delete_batch(self, batch)
    }
    fn user_value_size(&self) -> usize {
        KernelMap::user_value_size(self)
    }
    fn key_size(&self) -> usize {
        self.spec().key_size as usize
    }
    fn kept(&self) -> (u32, u32) {
        let info = self.info().unwrap();
        (info.max_entries, info.flags)
    }
    fn handle(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }
    fn id(&self) -> u32 {
        self.info().unwrap().id
    }
}

/// Buffers of a reading batch.
struct Room {
    key_size: usize,
    value_size: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    token: Vec<u8>,
}

impl Room {
    fn new(map: &dyn MapUnderTest, count: u32) -> Room {
        let (key_size, value_size) = (map.key_size(), map.user_value_size());
        Room {
            key_size,
            value_size,
            keys: vec![0xee; key_size * count as usize],
            values: vec![0xee; value_size * count as usize],
            token: vec![0xee; key_size.max(4)],
        }
    }

    fn fill(mut self, call: impl FnOnce(&mut [u8], &mut [u8], &mut [u8]) -> (u32, Done)) -> BatchSeen {
        let (count, result) = call(&mut self.token, &mut self.keys, &mut self.values);
        let filled = if result.is_ok() || matches!(result, Err(Errno::ENOENT)) { count as usize } else { 0 };
        let pieces = |bytes: &[u8], size: usize| bytes.chunks(size.max(1)).take(filled).map(<[u8]>::to_vec).collect();
        BatchSeen {
            count,
            result,
            keys: pieces(&self.keys, self.key_size),
            values: pieces(&self.values, self.value_size),
            token: self.token,
        }
    }
}

/// `CONFIG_NR_CPUS` of the running kernel, found by asking: the largest `max_entries` that a CPUMAP may have. 8192 where
/// it cannot be asked.
pub fn kernel_nr_cpus() -> u32 {
    thread_local! { static KNOWN: RefCell<HashMap<(), u32>> = RefCell::default(); }
    KNOWN.with(|known| {
        *known.borrow_mut().entry(()).or_insert_with(|| {
            let fits = |n: u32| match KernelMap::create("probe", &MapSpec::new(MapType::Cpumap, 4, 4, n)) {
                Err(Errno::E2BIG) => Some(false),
                Ok(_) => Some(true),
                Err(_) => None,
            };
            let (mut low, mut high) = (1u32, 1 << 16);
            while low < high {
                let middle = (low + high).div_ceil(2);
                match fits(middle) {
                    Some(true) => low = middle,
                    Some(false) => high = middle - 1,
                    None => return 8192,
                }
            }
            low
        })
    })
}
