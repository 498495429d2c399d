//! Maps of maps: what fits the template, ids, replacement.

use xway_abi::{MapSpec, MapType, map_flags};

use crate::create::{supported, valid};
use crate::subject::same_on_both;

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
