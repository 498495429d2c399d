//! The kernel maps that the probe programs name.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_kernel::{KernelMap, MapBtf, load_btf};

use crate::btf::{Types, VALUE_BYTES, types};

/// The maps of usual arguments.
pub struct Maps {
    /// Type information, loaded.
    pub btf: OwnedFd,
    /// The ids in it.
    pub types: Types,
    /// Its value begins with a timer, followed at 16 by a spin lock.
    timer: KernelMap,
    /// Read-only to programs, frozen, and holding a string.
    frozen: KernelMap,
    by_type: Vec<KernelMap>,
}

impl Maps {
    pub fn create() -> Result<Maps, Errno> {
        use MapType::*;
        let types = types();
        let btf = load_btf(&types.bytes).expect("type information");
        let mut by_type = vec![
            plain(Array, 4, 64, 1, 0)?,
            plain(ProgArray, 4, 4, 1, 0)?,
            plain(PerfEventArray, 4, 4, 1, 0)?,
            plain(PercpuArray, 4, 64, 1, 0)?,
            plain(CgroupArray, 4, 4, 1, 0)?,
            plain(Devmap, 4, 4, 1, 0)?,
            plain(Queue, 0, 64, 1, 0)?,
            plain(Ringbuf, 0, 0, 4096, 0)?,
            plain(UserRingbuf, 0, 0, 4096, 0)?,
        ];
        for storage in [TaskStorage, CgrpStorage] {
            by_type.push(typed(&btf, &types, storage, types.int, 4)?);
        }
        let timer = typed(&btf, &types, Array, types.value, VALUE_BYTES)?;
        let frozen = plain(Array, 4, 64, 1, map_flags::RDONLY_PROG)?;
        let mut text = [0; 64];
        text[..4].copy_from_slice(b"abc\0");
        frozen.update(&0u32.to_ne_bytes(), &text, map_flags::ANY)?;
        frozen.freeze()?;
        Ok(Maps { btf, types, timer, frozen, by_type })
    }

    pub fn of(&self, map_type: MapType) -> RawFd {
        let found = self.by_type.iter().find(|m| m.spec().map_type == map_type);
        found.unwrap_or_else(|| panic!("no map of type {}", map_type.name())).as_fd().as_raw_fd()
    }

    pub fn timer(&self) -> RawFd {
        self.timer.as_fd().as_raw_fd()
    }

    pub fn frozen(&self) -> RawFd {
        self.frozen.as_fd().as_raw_fd()
    }

    /// The map that this helper is called with.
    pub fn for_helper(&self, id: u32) -> RawFd {
        match id {
            169 => self.timer(),
            1..=3 | 164 => self.of(MapType::Array),
            195 => self.of(MapType::PercpuArray),
            87 | 89 => self.of(MapType::Queue),
            _ => self.of(xway_abi::helper_maps(id)[0]),
        }
    }
}

/// One map of every type that can be made from sizes, flags and this test's types; `struct_ops` and `arena` want more.
pub fn every_type() -> Vec<KernelMap> {
    use MapType::*;
    let types = types();
    let btf = load_btf(&types.bytes).expect("type information");
    let made = |map_type| match map_type {
        ArrayOfMaps | HashOfMaps => {
            let inner = MapSpec::new(Array, 4, 4, 1);
            let spec = MapSpec { inner: Some(Box::new(inner)), ..MapSpec::new(map_type, 4, 4, 1) };
            KernelMap::create("outer", &spec)
        }
        SkStorage | InodeStorage | TaskStorage | CgrpStorage => typed(&btf, &types, map_type, types.int, 4),
        LpmTrie => plain(map_type, 8, 4, 1, map_flags::NO_PREALLOC),
        StackTrace => plain(map_type, 4, 8, 1, 0),
        CgroupStorage | PercpuCgroupStorage => plain(map_type, 8, 4, 0, 0),
        Queue | Stack | BloomFilter => plain(map_type, 0, 4, 1, 0),
        Ringbuf | UserRingbuf => plain(map_type, 0, 0, 4096, 0),
        _ => plain(map_type, 4, 4, 1, 0),
    };
    let wanted = MapType::ALL.iter().copied().filter(|t| !matches!(t, StructOps | Arena));
    wanted.map(|t| made(t).unwrap_or_else(|e| panic!("map of type {}: {e}", t.name()))).collect()
}

fn plain(map_type: MapType, key: u32, value: u32, entries: u32, flags: u32) -> Result<KernelMap, Errno> {
    KernelMap::create("probe", &MapSpec::new(map_type, key, value, entries).with_flags(flags))
}

/// A map with keys of type `int` and values of the BTF type `value`; a local storage if it is none of the arrays.
fn typed(btf: &OwnedFd, types: &Types, map_type: MapType, value: u32, bytes: u32) -> Result<KernelMap, Errno> {
    let (entries, flags) = if map_type == MapType::Array { (1, 0) } else { (0, map_flags::NO_PREALLOC) };
    let spec = MapSpec::new(map_type, 4, bytes, entries).with_flags(flags);
    let btf = MapBtf { btf: btf.as_fd(), key_type: types.int, value_type: value };
    KernelMap::create_typed("probe", &spec, Some(btf))
}
