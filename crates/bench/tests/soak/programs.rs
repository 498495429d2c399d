//! Programs that are exchanged for each other.

use std::sync::Arc;

use xway_abi::Verdict;
use xway_engine::{Linked, LoadedProgram};
use xway_maps::Map;
use xway_object::{Object, Select};
use xway_packet::{Frame, Redirect};
use xway_vm::{Instance, Owner};

use crate::wire::Rust;
use crate::yard::{PORTS, Random, WORKERS};

/// A program that does everything that can be done to a packet, by its bytes and a number of its own.
pub fn anything(seed: u64, maps: &[Arc<Map>; 3]) -> Arc<dyn LoadedProgram> {
    let [devices, cpus, sockets] = maps.each_ref().map(|map| map.id());
    Rust::with_maps(maps.to_vec(), move |_, frame: &mut Frame| {
        let sum = frame.packet().iter().fold(1u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut random = Random(seed ^ sum | 1);
        random.below(2);
        let target = match random.below(6) {
            0 => Redirect::None,
            1 => Redirect::Ifindex(8 + 2 * random.below(4) as u32),
            2 => Redirect::Device { map_id: devices, key: 0, ifindex: PORTS[1] },
            3 => Redirect::Broadcast { map_id: devices, exclude_ingress: true },
            4 => Redirect::Cpu { map_id: cpus, cpu: random.below(4) as u32 },
            _ => Redirect::Socket { map_id: sockets, key: frame.rx_queue() },
        };
        let verdict = random.below(7);
        frame.set_redirect(target);
        if random.below(5) == 0 {
            let _ = frame.adjust_head(if random.below(2) == 0 { -8 } else { 8 });
        }
        verdict
    })
}

/// A program that sends everything to one place.
pub fn always(target: Redirect, maps: &[Arc<Map>; 3]) -> Arc<dyn LoadedProgram> {
    Rust::with_maps(maps.to_vec(), move |_, frame: &mut Frame| {
        frame.set_redirect(target);
        Verdict::Redirect as u64
    })
}

/// One of the programs of `bpf/forward`, proved and compiled anew; `None` where no compiler made them.
pub fn compiled(random: &mut Random) -> Option<Arc<dyn LoadedProgram>> {
    const NAMES: [&str; 6] = [
        "drop_parse_ip",
        "pass_read_data",
        "tx_swap_macs",
        "redirect_map_swap_macs",
        "redirect_cpu_swap_macs",
        "redirect_multi_swap_macs",
    ];
    let object = Object::parse(xway_bench::forward::object()?, &Default::default()).unwrap();
    let name = NAMES[random.below(NAMES.len() as u64) as usize];
    let image = object.select(&Select::Name(name.into())).and_then(xway_object::Program::as_xdp).unwrap();
    let far = object.programs.iter().position(|program| program.name == "far_cpu").unwrap();
    let instance = Owner::new(Instance::verified(Arc::new(object), WORKERS as u32, Default::default()).unwrap());
    for (key, ifindex) in (0u32..).zip(PORTS) {
        let value = [ifindex.to_ne_bytes(), [0xff; 4]].concat();
        instance.map("ports").unwrap().update(&key.to_ne_bytes(), &value, 0).unwrap();
    }
    let far = if random.below(2) == 0 { instance.program_fd(far).unwrap() } else { 0 };
    let value = [64u32.to_ne_bytes(), far.to_ne_bytes()].concat();
    instance.map("cpus").unwrap().update(&[0; 4], &value, 0).unwrap();
    let linked = Linked::new(instance.link(&image).unwrap());
    assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
    Some(Arc::new(linked.owned_by(Arc::new(instance))))
}
