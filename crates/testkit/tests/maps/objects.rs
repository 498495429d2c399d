//! Maps of objects: what fits, ids, replacement.

use xway_abi::{MapSpec, MapType, map_flags};

use xway_maps::ProgramUse;

use crate::create::{supported, valid};
use crate::subject::{World, same_on_both};

/// One program of each kind: what it is, its descriptor and its id.
fn programs(world: &dyn World) -> Vec<(String, i32, u32)> {
    let mut all = Vec::new();
    for program_use in [ProgramUse::Xdp, ProgramUse::XdpDevmap, ProgramUse::XdpCpumap] {
        for frags in [false, true] {
            for n in 0..2 {
                let (fd, id) = world.program(program_use, frags);
                all.push((format!("{program_use:?} {frags} {n}"), fd, id));
            }
        }
    }
    all
}

/// A value with ids replaced by what they name.
fn named(value: Result<Vec<u8>, xway_abi::Errno>, at: usize, programs: &[(String, i32, u32)]) -> String {
    let Ok(mut value) = value else { return format!("{value:?}") };
    let mut name = "nothing";
    if let Some(place) = value.get_mut(at..at + 4)
        && let Some((found, ..)) = programs.iter().find(|(.., id)| id.to_ne_bytes() == place[..])
    {
        name = found;
        place.fill(0xee);
    }
    format!("{value:?} {name}")
}

#[test]
fn programs_in_program_arrays() {
    same_on_both("programs_in_program_arrays", |world| {
        let mut log = Vec::new();
        let programs = programs(world);
        // The first program decides what the array is for.
        for (first, fd, _) in &programs {
            let map = world.create(&valid(MapType::ProgArray)).unwrap();
            log.push(format!("{first} first: {:?}", map.update(&[0; 4], &fd.to_ne_bytes(), 0)));
            for (n, (name, fd, _)) in programs.iter().enumerate() {
                let key = (n as u32 % 5).to_ne_bytes();
                for flags in [0, 1, 2] {
                    log.push(format!("then {name} {flags}: {:?}", map.update(&key, &fd.to_ne_bytes(), flags)));
                }
                log.push(format!("now {}", named(map.get(&key), 0, &programs)));
            }
            for key in 0..5u32 {
                log.push(format!("delete {:?} {:?}", map.delete(&key.to_ne_bytes()), map.delete(&key.to_ne_bytes())));
            }
            log.push(format!("not a program: {:?}", map.update(&[0; 4], &map.handle().to_ne_bytes(), 0).is_err()));
        }
        log
    });
}

#[test]
fn programs_of_redirect_entries() {
    same_on_both("programs_of_redirect_entries", |world| {
        let mut log = Vec::new();
        let programs = programs(world);
        for map_type in [MapType::Devmap, MapType::DevmapHash, MapType::Cpumap] {
            let first = if map_type == MapType::Cpumap { 192 } else { world.device() };
            for (name, fd, _) in &programs {
                let map = world.create(&valid(map_type)).unwrap();
                for word in [first, 0] {
                    let value = [word.to_ne_bytes(), fd.to_ne_bytes()].concat();
                    log.push(format!("{} {word} {name}: {:?}", map_type.name(), map.update(&[0; 4], &value, 0)));
                    log.push(format!("now {}", named(map.get(&[0; 4]), 4, &programs)));
                }
                let plain = [first.to_ne_bytes(), [0; 4]].concat();
                log.push(format!("plain: {:?}", map.update(&[0; 4], &plain, 2)));
                log.push(format!("now {}", named(map.get(&[0; 4]), 4, &programs)));
            }
        }
        log
    });
}

#[test]
fn inner_maps_must_match_the_template() {
    same_on_both("inner_maps_must_match_the_template", |world| {
        let mut log = Vec::new();
        for outer in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
            for template in supported().map(valid).chain([valid(MapType::Array).with_flags(map_flags::INNER_MAP)]) {
                let spec = MapSpec { inner: Some(Box::new(template.clone())), ..valid(outer) };
                let Ok(map) = world.create(&spec) else { continue };
                let mut candidates = vec![template.clone()];
                candidates.push(MapSpec { max_entries: template.max_entries * 2, ..template.clone() });
                candidates.push(MapSpec { key_size: template.key_size + 4, ..template.clone() });
                candidates.push(MapSpec { value_size: template.value_size + 8, ..template.clone() });
                for bit in 0..13 {
                    candidates.push(MapSpec { flags: template.flags ^ 1 << bit, ..template.clone() });
                }
                candidates.push(valid(MapType::Hash));
                candidates.push(valid(MapType::Array));
                candidates.push(valid(outer));
                for candidate in candidates {
                    let Ok(inner) = world.create(&candidate) else { continue };
                    let result = map.update(&[0; 4], &inner.handle().to_ne_bytes(), 0);
                    let what = format!("{} of {} {:#x}", outer.name(), template.map_type.name(), template.flags);
                    log.push(format!("{what} takes {candidate:?}: {result:?}"));
                }
            }
        }
        log
    });
}

#[test]
fn elements_are_ids() {
    same_on_both("elements_are_ids", |world| {
        let mut log = Vec::new();
        for outer in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
            for flags in [0, map_flags::NO_PREALLOC] {
                let Ok(map) = world.create(&MapSpec { max_entries: 3, ..valid(outer).with_flags(flags) }) else {
                    continue;
                };
                let inner: Vec<_> =
                    (0..3).map(|_| world.create(&MapSpec::new(MapType::Array, 4, 4, 1)).unwrap()).collect();
                let fds: Vec<[u8; 4]> = inner.iter().map(|inner| inner.handle().to_ne_bytes()).collect();
                // An id is shown as the number of the inner map.
                let which = |id: Result<Vec<u8>, _>| {
                    id.map(|id| inner.iter().position(|inner| inner.id().to_ne_bytes()[..] == id[..]))
                };
                for (n, key) in [0u32, 1, 2, 3, 4, 0, 1].iter().enumerate() {
                    for update_flags in [1, 0, 2, 3, 4] {
                        let result =
                            map.update(&key.to_ne_bytes(), &fds[(n + update_flags as usize) % 3], update_flags);
                        log.push(format!("{} {flags} update {key} {update_flags}: {result:?}", outer.name()));
                        log.push(format!("now {:?}", which(map.get(&key.to_ne_bytes()))));
                    }
                    let mut out = [0; 4];
                    log.push(format!("take {:?}", map.lookup_and_delete(&key.to_ne_bytes(), &mut out, 0)));
                    let seen = map.lookup_batch(None, 4, 0, 0, false);
                    let ids: std::collections::BTreeSet<_> =
                        seen.values.iter().map(|id| which(Ok(id.clone()))).collect();
                    log.push(format!("batch {} {:?} {ids:?}", seen.count, seen.result));
                }
                log.push(format!("delete {:?}", map.delete(&0u32.to_ne_bytes())));
                log.push(format!("delete {:?}", map.delete(&0u32.to_ne_bytes())));
                log.push(format!("delete {:?}", map.delete(&9u32.to_ne_bytes())));
                log.push(format!("bad {:?}", map.update(&1u32.to_ne_bytes(), &(-1i32).to_ne_bytes(), 0)));
                let seen = map.lookup_batch(None, 4, 0, 0, true);
                log.push(format!("take all {} {:?}", seen.count, seen.result));
                log.push(format!("update batch {:?}", map.update_batch(&[0; 4], &fds[0], 1, 0, 0)));
                log.push(format!("delete batch {:?}", map.delete_batch(&[0; 4], 1, 0, 0)));
            }
        }
        log
    });
}

#[test]
fn sockets_in_socket_maps() {
    same_on_both("sockets_in_socket_maps", |world| {
        let mut log = Vec::new();
        let map = world.create(&valid(MapType::Xskmap)).unwrap();
        let sockets = [world.socket(), world.socket()];
        let none = [("a map", map.handle()), ("nothing", -1)];
        for key in [0u32, 1, 3, 4, u32::MAX, 0] {
            for flags in [0, 1, 2, 3, 4, 1 << 40] {
                for (n, socket) in sockets.iter().enumerate() {
                    let result = map.update(&key.to_ne_bytes(), &socket.to_ne_bytes(), flags);
                    log.push(format!("socket {n} at {key} with {flags}: {result:?}"));
                }
            }
            for (what, fd) in none {
                log.push(format!("{what} at {key}: {:?}", map.update(&key.to_ne_bytes(), &fd.to_ne_bytes(), 0)));
            }
            // User space does not see which socket it is.
            log.push(format!("look-up of {key}: {:?}", map.get(&key.to_ne_bytes())));
            log.push(format!("keys: {:?}", map.keys()));
            log.push(format!("take: {:?}", map.lookup_and_delete(&key.to_ne_bytes(), &mut [0; 4], 0)));
            log.push(format!("delete {key}: {:?}", map.delete(&key.to_ne_bytes())));
            log.push(format!("delete {key}: {:?}", map.delete(&key.to_ne_bytes())));
            let seen = map.lookup_batch(None, 4, 0, 0, false);
            log.push(format!("batch {} {:?}", seen.count, seen.result));
        }
        log
    });
}
