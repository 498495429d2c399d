//! Maps in the kernel: the system call side, one method per command.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use xway_abi::{Errno, MapSpec, MapType, map_flags};

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
        let inner = spec.inner.as_deref().map(|inner| KernelMap::create("", inner)).transpose()?;
        let mut attr = Attr::new();
        attr.u32(0, spec.map_type as u32)
            .u32(4, spec.key_size)
            .u32(8, spec.value_size)
            .u32(12, spec.max_entries)
            .u32(16, spec.flags)
            .u32(20, inner.as_ref().map_or(0, |m| m.fd.as_raw_fd() as u32))
            .u32(24, spec.numa_node)
            .name(28, name);
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
    fn key<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Errno> {
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
