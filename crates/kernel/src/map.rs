//! Maps in the kernel: the system call side, one method per command.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use xway_abi::{Errno, MapSpec, MapType, map_flags};

use crate::KernelError;
use crate::ids::{self, Fields, ObjectKind, info_by_fd};
use crate::sys::{Attr, Cmd, bpf, bpf_fd};

/// Types of a map's keys and values, for commands that print them and for values with special fields.
#[derive(Clone, Copy, Debug)]
pub struct MapBtf<'a> {
    /// Loaded type information.
    pub btf: BorrowedFd<'a>,
    /// Type of the key, 0 for none.
    pub key_type: u32,
    /// Type of the value, 0 for none.
    pub value_type: u32,
}

/// What a map is, as the kernel reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapInfo {
    /// Number of the type.
    pub map_type: u32,
    /// Id of the map.
    pub id: u32,
    /// Key length in bytes.
    pub key_size: u32,
    /// Value length in bytes.
    pub value_size: u32,
    /// Largest number of entries.
    pub max_entries: u32,
    /// Creation flags that are kept.
    pub flags: u32,
    /// Name, at most 15 characters.
    pub name: String,
    /// Type information, 0 for none.
    pub btf_id: u32,
    /// Type of the key in it, 0 for none.
    pub key_type: u32,
    /// Type of the value in it, 0 for none.
    pub value_type: u32,
    /// Further attribute of some types (hash functions of a bloom filter).
    pub map_extra: u64,
}

/// Arguments of the batch commands.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Where to go on; `None` begins at the beginning.
    pub in_batch: Option<&'a [u8]>,
    /// Filled with where the next call goes on.
    pub out_batch: &'a mut [u8],
    /// `count` keys.
    pub keys: &'a mut [u8],
    /// `count` values.
    pub values: &'a mut [u8],
    /// Elements.
    pub count: u32,
    /// Flags of each element.
    pub elem_flags: u64,
    /// Flags of the command.
    pub flags: u64,
}

/// A map in the kernel. It lives as long as this descriptor or something else that holds it.
#[derive(Debug)]
pub struct KernelMap {
    fd: OwnedFd,
    spec: MapSpec,
}

impl KernelMap {
    /// Creates a map (`BPF_MAP_CREATE`); a map of maps with a template made from [`MapSpec::inner`]. The errno is the
    /// kernel's.
    pub fn create(name: &str, spec: &MapSpec) -> Result<KernelMap, Errno> {
        KernelMap::create_typed(name, spec, None)
    }

    /// As [`KernelMap::create`], with types.
    pub fn create_typed(name: &str, spec: &MapSpec, btf: Option<MapBtf<'_>>) -> Result<KernelMap, Errno> {
        KernelMap::create_in(0, name, spec, btf)
    }

    /// As [`KernelMap::create_typed`], in the device of the interface with this number (`map_ifindex`); 0: in the machine's memory.
    /// What a program in a device looks up lies there.
    pub fn create_in(device: u32, name: &str, spec: &MapSpec, btf: Option<MapBtf<'_>>) -> Result<KernelMap, Errno> {
        let template = spec.inner.as_deref().map(|inner| KernelMap::create("", inner)).transpose()?;
        KernelMap::create_like(device, name, spec, btf, template.as_ref())
    }

    /// As [`KernelMap::create_in`], with a template that is there already: inner maps must have its fields of the runtime, which the kernel
    /// knows from types.
    pub fn create_like(
        device: u32,
        name: &str,
        spec: &MapSpec,
        btf: Option<MapBtf<'_>>,
        template: Option<&KernelMap>,
    ) -> Result<KernelMap, Errno> {
        // Maps of maps must have a template: without one, a number that is no descriptor (0 is one, of something else).
        let of_maps = matches!(spec.map_type, MapType::ArrayOfMaps | MapType::HashOfMaps);
        let no_template = if of_maps { u32::MAX } else { 0 };
        let mut attr = Attr::new();
        attr.u32(0, spec.map_type as u32)
            .u32(4, spec.key_size)
            .u32(8, spec.value_size)
            .u32(12, spec.max_entries)
            .u32(16, spec.flags)
            .u32(20, template.map_or(no_template, |m| m.fd.as_raw_fd() as u32))
            .u32(24, spec.numa_node)
            .name(28, name)
            .u32(44, device);
        if let Some(MapBtf { btf, key_type, value_type }) = btf {
            attr.u32(48, btf.as_raw_fd() as u32).u32(52, key_type).u32(56, value_type);
        }
        if spec.map_extra != 0 {
            attr.u64(64, spec.map_extra);
        }
        // SAFETY: the command takes no addresses.
        let fd = unsafe { bpf_fd(Cmd::MapCreate, &mut attr) }?;
        Ok(KernelMap { fd, spec: spec.clone() })
    }

    /// The map with this id.
    pub fn by_id(id: u32) -> Result<KernelMap, KernelError> {
        KernelMap::adopt(ids::open(ObjectKind::Map, id)?)
    }

    /// The map that is pinned at `path`.
    pub fn pinned(path: &Path) -> Result<KernelMap, KernelError> {
        let fd = ids::pinned(path)?;
        if !ids::is_kind(fd.as_fd(), "bpf-map") {
            let path = path.display().to_string();
            return Err(KernelError::Path { step: "opening as a map", path, errno: Errno::EINVAL });
        }
        KernelMap::adopt(fd)
    }

    /// A map that somebody else created, by a descriptor of it. Its attributes are asked of the kernel; inner maps' are not known.
    ///
    /// Errors: `EINVAL` when the descriptor is no map's, or of a map whose type is not known.
    pub fn adopt(fd: OwnedFd) -> Result<KernelMap, KernelError> {
        let info = info(fd.as_fd())?;
        let Some(map_type) = MapType::from_u32(info.map_type) else {
            return Err(KernelError::Call { step: "opening a map of a type that is not known", errno: Errno::EINVAL });
        };
        let mut spec = MapSpec::new(map_type, info.key_size, info.value_size, info.max_entries);
        spec.flags = info.flags;
        spec.map_extra = info.map_extra;
        Ok(KernelMap { fd, spec })
    }

    /// What it was created from.
    pub fn spec(&self) -> &MapSpec {
        &self.spec
    }

    /// Bytes that look-up and update move: the value size, or for per-CPU maps the value size rounded up to 8, once for
    /// each possible CPU; four for types whose values are descriptors on the way in and ids on the way out.
    pub fn user_value_size(&self) -> usize {
        use MapType::{
            ArrayOfMaps, CgroupArray, HashOfMaps, LruPercpuHash, PercpuArray, PercpuCgroupStorage, PercpuHash,
            PerfEventArray, ProgArray,
        };
        let size = self.spec.value_size as usize;
        match self.spec.map_type {
            PercpuHash | PercpuArray | LruPercpuHash | PercpuCgroupStorage => {
                size.next_multiple_of(8) * possible_cpus() as usize
            }
            ArrayOfMaps | HashOfMaps | ProgArray | PerfEventArray | CgroupArray => 4,
            _ => size,
        }
    }

    fn key_size(&self) -> usize {
        self.spec.key_size as usize
    }

    /// A key of the right length: [`Errno::EFAULT`] when it is shorter, as when the kernel reads past a mapping.
    /// Where there are no keys, whatever is given goes to the kernel, which wants a null pointer.
    fn key<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Errno> {
        if self.key_size() == 0 {
            return Ok(key);
        }
        key.get(..self.key_size()).ok_or(Errno::EFAULT)
    }

    fn element<'a>(&self, key: &'a [u8], flags: u64) -> Attr<'a> {
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32).input(8, key).u64(24, flags);
        attr
    }

    /// `BPF_MAP_LOOKUP_ELEM`. A bloom filter takes the value in `out`.
    pub fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let key = self.key(key)?;
        let out = out.get_mut(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        let mut attr = self.element(key, flags);
        attr.output(16, out);
        // SAFETY: key and value buffers have the sizes that the kernel goes by (see `user_value_size`).
        unsafe { bpf(Cmd::MapLookupElem, &mut attr) }.map(drop)
    }

    /// As [`KernelMap::lookup`], into a new buffer.
    pub fn get(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut out = vec![0; self.user_value_size()];
        self.lookup(key, &mut out, 0)?;
        Ok(out)
    }

    /// `BPF_MAP_UPDATE_ELEM`.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let key = self.key(key)?;
        let value = value.get(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        let mut attr = self.element(key, flags);
        attr.input(16, value);
        // SAFETY: as in `lookup`.
        unsafe { bpf(Cmd::MapUpdateElem, &mut attr) }.map(drop)
    }

    /// Stores a descriptor: of an inner map, a program, an AF_XDP socket.
    pub fn update_fd(&self, key: &[u8], value: BorrowedFd<'_>, flags: u64) -> Result<(), Errno> {
        self.update(key, &value.as_raw_fd().to_ne_bytes(), flags)
    }

    /// `BPF_MAP_DELETE_ELEM`.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let mut attr = self.element(self.key(key)?, 0);
        // SAFETY: the key has the size that the kernel goes by.
        unsafe { bpf(Cmd::MapDeleteElem, &mut attr) }.map(drop)
    }

    /// `BPF_MAP_GET_NEXT_KEY`.
    pub fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let key = key.map(|k| self.key(k)).transpose()?.unwrap_or(&[]);
        let out = out.get_mut(..self.key_size()).ok_or(Errno::EFAULT)?;
        let mut attr = self.element(key, 0);
        attr.output(16, out);
        // SAFETY: both keys have the size that the kernel goes by; no key is a null pointer, which it takes for "none".
        unsafe { bpf(Cmd::MapGetNextKey, &mut attr) }.map(drop)
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    pub fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let key = self.key(key)?;
        let out = out.get_mut(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        let mut attr = self.element(key, flags);
        attr.output(16, out);
        // SAFETY: as in `lookup`.
        unsafe { bpf(Cmd::MapLookupAndDeleteElem, &mut attr) }.map(drop)
    }

    /// `BPF_MAP_FREEZE`.
    pub fn freeze(&self) -> Result<(), Errno> {
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32);
        // SAFETY: the command takes no addresses.
        unsafe { bpf(Cmd::MapFreeze, &mut attr) }.map(drop)
    }

    /// `BPF_MAP_LOOKUP_BATCH`: count and errno as the kernel leaves them. `keys` and `values` have room for `count`
    /// elements, tokens for [`KernelMap::batch_token_size`] bytes; else `EFAULT`.
    pub fn lookup_batch(&self, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
        self.batch(Cmd::MapLookupBatch, batch)
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_BATCH`.
    pub fn lookup_and_delete_batch(&self, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
        self.batch(Cmd::MapLookupAndDeleteBatch, batch)
    }

    /// `BPF_MAP_UPDATE_BATCH`; the tokens are not used.
    pub fn update_batch(&self, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
        self.batch(Cmd::MapUpdateBatch, batch)
    }

    /// `BPF_MAP_DELETE_BATCH`; tokens and values are not used.
    pub fn delete_batch(&self, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
        self.batch(Cmd::MapDeleteBatch, batch)
    }

    /// Bytes of a batch token: a bucket number or a key.
    pub fn batch_token_size(&self) -> usize {
        self.key_size().max(4)
    }

    fn batch(&self, cmd: Cmd, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
        let Batch { in_batch, out_batch, keys, values, count, elem_flags, flags } = batch;
        let reads = matches!(cmd, Cmd::MapLookupBatch | Cmd::MapLookupAndDeleteBatch);
        let token = self.batch_token_size();
        let need = |size: usize| size.saturating_mul(count as usize);
        let short = keys.len() < need(self.key_size())
            || (cmd != Cmd::MapDeleteBatch && values.len() < need(self.user_value_size()))
            || (reads && (out_batch.len() < token || in_batch.is_some_and(|b| b.len() < token)));
        if short {
            return (count, Err(Errno::EFAULT));
        }
        let mut attr = Attr::new();
        attr.input(0, in_batch.unwrap_or(&[]))
            .output(8, out_batch)
            .output(16, keys)
            .output(24, values)
            .u32(32, count)
            .u32(36, self.fd.as_raw_fd() as u32)
            .u64(40, elem_flags)
            .u64(48, flags);
        // SAFETY: keys and values hold `count` elements of the sizes that the kernel goes by, tokens are as long as the
        // longer of a bucket number and a key (checked above); commands that use less of them use less.
        let result = unsafe { bpf(cmd, &mut attr) }.map(drop);
        (attr.get_u32(32), result)
    }

    /// What the kernel says of the map now (`BPF_OBJ_GET_INFO_BY_FD`): some attributes are not as they were asked for.
    pub fn info(&self) -> Result<MapInfo, Errno> {
        info(self.fd.as_fd()).map_err(|e| e.errno().unwrap_or(Errno::EIO))
    }

    /// Every key, at most `max_entries` and some of them if the map changes meanwhile.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut next = vec![0; self.key_size()];
        while keys.len() <= self.spec.max_entries as usize {
            match self.next_key(keys.last().map(Vec::as_slice), &mut next) {
                Ok(()) => keys.push(next.clone()),
                Err(Errno::ENOENT) => return Ok(keys),
                Err(errno) => return Err(errno),
            }
        }
        Ok(keys)
    }

    /// True when the system call side may write (`BPF_F_RDONLY` is not set).
    pub fn writable(&self) -> bool {
        self.spec.flags & map_flags::RDONLY == 0
    }
}

impl AsFd for KernelMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn info(fd: BorrowedFd<'_>) -> Result<MapInfo, KernelError> {
    let mut out = [0u8; 88];
    // SAFETY: the structure has no address fields.
    unsafe { info_by_fd(fd, &mut out, "asking about a map") }?;
    let of = Fields(&out);
    Ok(MapInfo {
        map_type: of.u32(0),
        id: of.u32(4),
        key_size: of.u32(8),
        value_size: of.u32(12),
        max_entries: of.u32(16),
        flags: of.u32(20),
        name: of.name(24),
        btf_id: of.u32(64),
        key_type: of.u32(68),
        value_type: of.u32(72),
        map_extra: of.u64(80),
    })
}

/// Possible CPUs of this machine: the number of values that an element of a per-CPU map has. 1 where it cannot be read.
pub fn possible_cpus() -> u32 {
    static CPUS: OnceLock<u32> = OnceLock::new();
    *CPUS.get_or_init(|| {
        // Ranges such as `0-3,8`; the kernel numbers from 0, so the last number tells.
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
        last.map_or(1, |n| n + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_and_go() {
        if !xway_testkit::Needs::of("kernel::map::elements_come_and_go").root().met() {
            return;
        }
        let map = KernelMap::create("t", &MapSpec::new(MapType::Hash, 4, 8, 2)).unwrap();
        assert_eq!(map.get(&[1, 0, 0, 0]), Err(Errno::ENOENT));
        map.update(&[1, 0, 0, 0], &[7; 8], 0).unwrap();
        assert_eq!(map.get(&[1, 0, 0, 0]), Ok(vec![7; 8]));
        assert_eq!(map.keys(), Ok(vec![vec![1, 0, 0, 0]]));
        map.delete(&[1, 0, 0, 0]).unwrap();
        assert_eq!(map.keys(), Ok(vec![]));
        assert_eq!(KernelMap::create("t", &MapSpec::new(MapType::Hash, 0, 8, 2)).map(drop), Err(Errno::EINVAL));
    }

    #[test]
    fn short_buffers_are_refused_here() {
        if !xway_testkit::Needs::of("kernel::map::short_buffers_are_refused_here").root().met() {
            return;
        }
        let map = KernelMap::create("t", &MapSpec::new(MapType::PercpuArray, 4, 4, 1)).unwrap();
        assert_eq!(map.lookup(&[0; 4], &mut [0; 4], 0), Err(Errno::EFAULT));
        assert_eq!(map.get(&[0; 4]).map(|v| v.len()), Ok(8 * possible_cpus() as usize));
    }
}
