//! Bytes as a program: decoded, linked, verified, run by the checked interpreter. What the verifier accepts must not trap.

use std::sync::Arc;

use xway_isa::{CallTarget, Imm64, Insn, Slot, decode, slots_from_bytes};
use xway_maps::{Env as MapEnv, Guard, Map};
use xway_object::{MapDef, ProgramKind};
use xway_verifier::{Config, MapsView, Verified, verify};
use xway_vm::{Env, FaultKind, FixedHost, Program, TestRun, test_run};

use crate::program::{map_specs, shape};

/// Instructions of one run.
const BUDGET: u64 = 4096;
/// Instructions that one analysis may visit.
const VERIFIER_BUDGET: u64 = 20_000;

/// The bytes as slots, for what decoders and linkers make of them, and shaped into a program that gets further.
pub fn run(data: &[u8]) {
    let whole = &data[..data.len() / 8 * 8];
    let slots = slots_from_bytes(whole).expect("a multiple of eight");
    let packet: Vec<u8> = (0..64).map(|i| data.get(i).copied().unwrap_or(0)).collect();
    execute(&slots, &packet);
    let shaped = shape(data);
    execute(&shaped.slots, &shaped.packet);
}

fn execute(slots: &[Slot], packet: &[u8]) {
    let kind = ProgramKind::Xdp { frags: false };
    let image = xway_object::Program { name: "fuzz".to_owned(), kind, insns: slots.to_vec(), ..Default::default() };
    let proof = proof(&image);
    let Some(maps) = maps_of(slots) else { return };
    let program = match Program::link(&image, &maps) {
        Ok(program) => program,
        Err(e) => {
            assert!(proof.is_none(), "accepted, but it cannot be linked: {e}");
            return;
        }
    };
    let (host, guard) = (FixedHost::new(1), Guard::pin());
    let mut env = Env::new(&guard, &host, 0).with_budget(BUDGET);
    let result = test_run(&program, &TestRun::new(packet), &mut env).expect("the packet is fit for a test run");
    assert!(result.insns <= BUDGET, "{} instructions", result.insns);
    let Some(fault) = result.fault else { return };
    assert_eq!(result.retval, 0, "a fault that returns something");
    // Long loops are no crime.
    let trapped = !matches!(fault.kind, FaultKind::Budget(_));
    assert!(!(trapped && proof.is_some()), "accepted, but it traps: {fault}\n{}", text(slots));
}

fn proof(image: &xway_object::Program) -> Option<Verified> {
    let maps: Vec<MapDef> = map_specs().into_iter().map(|spec| MapDef::new("m", spec)).collect();
    let view = MapsView { maps: &maps, btf: None, kernel: None, license: Some("GPL") };
    let config = Config { budget: VERIFIER_BUDGET, memory: 64 << 20, ..Config::default() };
    verify(image, &view, &config).ok()
}

fn text(slots: &[Slot]) -> String {
    xway_isa::listing(slots, &xway_isa::NoNames).unwrap_or_default()
}

/// The maps that the program names, the others being whatever is cheapest; `None` when it names what is not there.
fn maps_of(slots: &[Slot]) -> Option<Vec<Arc<Map>>> {
    let specs = map_specs();
    let mut used = [false; 9];
    for insn in decode(slots).ok()?.into_iter().flatten() {
        match insn {
            Insn::LoadImm64 { imm: Imm64::MapIdx(idx) | Imm64::MapIdxValue { idx, .. }, .. } => {
                *used.get_mut(usize::try_from(idx).ok()?)? = true;
            }
            // Kernel functions come with a list of names that there is none of here.
            Insn::Call(CallTarget::Kfunc { .. }) => return None,
            _ => {}
        }
    }
    let env = MapEnv::with_cpus(2);
    let spec = |(i, spec)| if used[i] { spec } else { &specs[0] };
    Some(specs.iter().enumerate().map(spec).map(|s| Map::create(s, &env).expect("small maps can be made")).collect())
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = super::isa::seeds();
    // Shaped: a look-up in the array with a key on the stack, and a packet access.
    let lookup = [
        [58, 2, 0, 0, 0, 0, 0, 0],
        [0, 2, 0, 0, 0xf0, 0xff, 0xff, 0xff],
        [23, 1, 0, 0, 0, 0, 0, 0],
        [63, 0, 0, 0, 0, 0, 0, 0],
        [45, 0, 8, 0, 0, 0, 0, 0],
        [26, 0x03, 0, 3, 0, 0, 0, 0],
        [34, 0x00, 0, 3, 7, 0, 0, 0],
        [26, 0x74, 12, 1, 0, 0, 0, 0],
    ];
    out.push([vec![1, 60], lookup.concat()].concat());
    out
}
