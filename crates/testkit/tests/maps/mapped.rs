//! mmap(2) on arrays: who may map what, for how long nobody may freeze, and what both sides see.

use xway_abi::map_flags::{self, MMAPABLE, RDONLY, RDONLY_PROG, WRONLY, WRONLY_PROG};
use xway_abi::{Errno, MapSpec, MapType, SpecialField, SpecialKind};
use xway_maps::{Map, Shape, Window};

use crate::create::{supported, valid};
use crate::subject::{Ours, on_both, same_on_both};

/// Every type, each flag that says who may do what, frozen or not: the same errno for each mapping.
#[test]
fn the_same_mappings_are_refused_with_the_same_errno() {
    same_on_both("the_same_mappings_are_refused_with_the_same_errno", |world| {
        let mut log = Vec::new();
        // (Rings have a memory of their own, for their readers.)
        let ring = |t: &MapType| matches!(t, MapType::Ringbuf | MapType::UserRingbuf);
        let mut specs: Vec<MapSpec> = supported().filter(|t| !ring(t)).map(valid).collect();
        for access in [0, RDONLY, WRONLY, RDONLY_PROG, WRONLY_PROG, RDONLY | RDONLY_PROG, WRONLY | WRONLY_PROG] {
            specs.push(valid(MapType::Array).with_flags(access));
            specs.push(valid(MapType::Array).with_flags(access | MMAPABLE));
        }
        for spec in specs {
            let map = world.create(&spec).unwrap();
            let title = format!("{} {:#x}", spec.map_type.name(), spec.flags);
            for round in ["new", "frozen"] {
                for write in [false, true] {
                    let window = map.window(write).map(|w| w.is_writable());
                    log.push(format!("{title} {round}: for writing {write}: {window:?}"));
                }
                log.push(format!("{title} {round}: freeze {:?}", map.freeze()));
            }
        }
        log
    });
}

/// Both sides see what the other writes, at the places that the shape says.
#[test]
fn values_are_one_memory() {
    on_both("values_are_one_memory", |world| {
        for (value_size, max_entries) in [(1, 1), (4, 3), (12, 700), (4096, 2), (5000, 3)] {
            let spec = MapSpec { value_size, max_entries, ..MapSpec::new(MapType::Array, 4, 4, 1) };
            let map = world.create(&spec.with_flags(MMAPABLE)).unwrap();
            let (read, write) = (map.window(false).unwrap(), map.window(true).unwrap());
            let mut out = vec![0xee; value_size as usize];
            for index in [0, max_entries / 2, max_entries - 1] {
                read.lookup(index, &mut out).unwrap();
                assert_eq!(out, vec![0; value_size as usize], "zeroed");
                let value: Vec<u8> = (0..value_size).map(|n| (n ^ index) as u8 | 1).collect();
                map.update(&index.to_ne_bytes(), &value, 0).unwrap();
                read.lookup(index, &mut out).unwrap();
                assert_eq!(out, value);
                write.update(index, &vec![7; value_size as usize]).unwrap();
                assert_eq!(map.get(&index.to_ne_bytes()), Ok(vec![7; value_size as usize]));
                map.update(&index.to_ne_bytes(), &vec![0; value_size as usize], 0).unwrap();
            }
            assert_eq!(read.lookup(max_entries, &mut out), Err(Errno::ENOENT));
            assert_eq!(write.update(max_entries, &out), Err(Errno::E2BIG));
            assert_eq!(read.update(0, &out), Err(Errno::EACCES));
            assert_eq!(read.store(0, 0, 1, 1), Err(Errno::EACCES));
            assert_eq!(read.fetch_add(0, 0, 4, 1), Err(Errno::EACCES));
            assert_eq!(write.store(0, value_size as usize, 1, 1), Err(Errno::EINVAL));
            if value_size >= 8 {
                assert_eq!((write.fetch_add(0, 0, 8, 5), write.fetch_add(0, 0, 8, 5)), (Ok(0), Ok(5)));
                assert_eq!(read.load(0, 0, 8), Ok(10));
            }
        }
    });
}

/// A map whose values somebody can write is not frozen, and one that is frozen is not mapped for writing.
#[test]
fn a_mapping_for_writing_and_a_frozen_map_exclude_each_other() {
    on_both("a_mapping_for_writing_and_a_frozen_map_exclude_each_other", |world| {
        let map = world.create(&valid(MapType::Array).with_flags(MMAPABLE)).unwrap();
        let (read, first, second) = (map.window(false).unwrap(), map.window(true).unwrap(), map.window(true).unwrap());
        assert_eq!(map.freeze(), Err(Errno::EBUSY));
        drop(first);
        assert_eq!(map.freeze(), Err(Errno::EBUSY));
        map.update(&[0; 4], &vec![1; map.user_value_size()], 0).unwrap();
        drop(second);
        assert_eq!(map.freeze(), Ok(()));
        assert_eq!(map.window(true).map(drop), Err(Errno::EPERM));
        assert_eq!(map.freeze(), Err(Errno::EPERM));
        let mut out = vec![0; map.user_value_size()];
        for window in [read, map.window(false).unwrap()] {
            window.lookup(0, &mut out).unwrap();
            assert_eq!(out, vec![1; out.len()]);
        }
    });
}

/// What holds here alone, because memory is given away where Linux maps a descriptor of the map: the descriptors themselves.
#[test]
fn descriptors_of_the_memory_give_no_more_than_they_say() {
    use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate};
    use std::os::fd::{AsFd, AsRawFd};

    let env = Ours::new().env;
    let plain = valid(MapType::Array).with_flags(MMAPABLE);
    let map = Map::create_named("given", &plain, &env).unwrap();
    let bytes = Shape::of(&plain).bytes().unwrap();
    let (read, write) = (map.memory_fd(false).unwrap(), map.memory_fd(true).unwrap());
    for fd in [&read, &write] {
        let seals = fcntl_get_seals(fd).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 2 * bytes as u64).is_err());
        assert!(fcntl_add_seals(fd, SealFlags::FUTURE_WRITE).is_err());
        assert_eq!(std::fs::read(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap(), vec![0; bytes]);
    }
    let mode = rustix::fs::fstat(&read).unwrap().st_mode & 0o777;
    assert_eq!(mode, 0o600, "another user does not open it again for writing");
    assert_eq!(Window::of_memory(read.as_fd(), Shape::of(&plain), true).map(drop), Err(Errno::EACCES));
    // A descriptor alone can become a mapping at any time.
    assert_eq!(map.freeze(), Err(Errno::EBUSY));
    drop(write);
    assert_eq!(map.freeze(), Ok(()));

    // What programs only read may become a constant of their code: nobody ever writes it, not even who opens the file again.
    let constant = valid(MapType::Array).with_flags(MMAPABLE | RDONLY_PROG);
    let map = Map::create_named("constant", &constant, &env).unwrap();
    map.update(&[0; 4], &vec![3; map.user_value_size()], 0).unwrap();
    let read = map.memory_fd(false).unwrap();
    let again = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", read.as_raw_fd()));
    let again = again.unwrap();
    assert!(std::os::unix::fs::FileExt::write_at(&again, &[1], 0).is_err());
    assert_eq!(Window::of_memory(again.as_fd(), Shape::of(&constant), true).map(drop), Err(Errno::EPERM));
    // What is no such file, or shorter than it is said to be, is not mapped: its pages could go.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(Window::of_memory(file.as_fd(), Shape::of(&plain), false).map(drop), Err(Errno::EINVAL));
    let longer = Shape { entries: 1 << 20, ..Shape::of(&plain) };
    assert_eq!(Window::of_memory(read.as_fd(), longer, false).map(drop), Err(Errno::EINVAL));
    map.freeze().unwrap();

    // Values with a lock are not mapped (Linux: ENOTSUPP), so no other process holds a program up by it.
    let lock = SpecialField { kind: SpecialKind::SpinLock, offset: 0 };
    let locked = MapSpec { special: vec![lock], ..plain.clone() };
    let map = Map::create_named("locked", &locked, &env).unwrap();
    assert!(!map.has_memory_file());
    assert_eq!(map.memory_fd(false).map(drop), Err(Errno::ENOTSUPP));
    // Without a file to be had the map works, and says that it has none.
    let alone = Map::create_named("alone", &plain, &xway_maps::Env { map_memory: false, ..env }).unwrap();
    alone.update(&[0; 4], &vec![3; alone.user_value_size()], map_flags::ANY).unwrap();
    assert_eq!(alone.memory_fd(true).map(drop), Err(Errno::ENODEV));
}
