//! Who owns an instance whole: the end of a ring that reference counts alone would keep for ever.

use std::ops::Deref;

use xway_maps::{Guard, Map};

use crate::{Instance, Timers};

/// An [`Instance`] whose maps belong to it alone.
///
/// A program keeps the maps of its object alive, and a PROG_ARRAY, DEVMAP or CPUMAP the programs in it, as a timer does its callback's:
/// once a map holds a program of its own object, neither would ever go. Linux empties an array, and ends timers, when nobody in user
/// space refers to the map any more; here that is the end of this owner, which stands above both. Programs that somebody still runs
/// then stay, and their tail calls miss, as in Linux; whoever redirects through a map of the instance keeps its owner for as long.
pub struct Owner(Option<Instance>);

impl Owner {
    /// Takes an instance over. Its maps must be shared with no other instance: those would be emptied too.
    pub fn new(instance: Instance) -> Owner {
        Owner(Some(instance))
    }
}

impl Deref for Owner {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        self.0.as_ref().expect("taken when the owner goes")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(instance) = self.0.take() else { return };
        let ours = |map: &Map| instance.maps().iter().any(|own| std::ptr::eq(&**own, map));
        Timers::shared().forget(ours);
        instance.maps().iter().for_each(|map| map.clear_programs());
        // In front of the collection: else the maps' memory goes when a thread that handles packets comes by, and holds it up.
        drop(instance);
        Guard::collect();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xway_abi::{MapSpec, MapType};
    use xway_object::{MapDef, Object, Program as Image, ProgramKind};

    use super::*;

    #[test]
    fn maps_and_the_programs_in_them_do_not_keep_each_other() {
        for (map_type, kind) in [
            (MapType::ProgArray, ProgramKind::Xdp { frags: false }),
            (MapType::Devmap, ProgramKind::XdpDevmap { frags: false }),
            (MapType::DevmapHash, ProgramKind::XdpDevmap { frags: false }),
            (MapType::Cpumap, ProgramKind::XdpCpumap { frags: false }),
        ] {
            let slot = |opcode, imm| xway_isa::Slot { opcode, dst: 0, src: 0, off: 0, imm };
            let value_size = if map_type == MapType::ProgArray { 4 } else { 8 };
            let map = MapDef::new("entries", MapSpec::new(map_type, 4, value_size, 1));
            let insns = vec![slot(0xb7, 2), slot(0x95, 0)];
            let program = Image { name: "p".into(), insns, kind, ..Image::default() };
            let object = Object { maps: vec![map], programs: vec![program], ..Object::default() };
            let owner = Owner::new(Instance::new(Arc::new(object), 1).unwrap());
            let fd = owner.program_fd(0).unwrap().to_ne_bytes();
            let value = [64u32.to_ne_bytes(), fd].concat();
            owner.maps()[0].update(&[0; 4], &value[8 - value_size as usize..], 0).unwrap();
            let (map, program) = (Arc::downgrade(&owner.maps()[0]), Arc::downgrade(&owner.program(0).unwrap()));
            drop(owner);
            // They go behind the guards of other tests.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while map.upgrade().is_some() || program.upgrade().is_some() {
                assert!(std::time::Instant::now() < deadline, "{map_type:?}");
                Guard::collect();
            }
        }
    }
}
