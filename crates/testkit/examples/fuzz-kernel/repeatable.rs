//! Which programs must do the same wherever they run.

use xway_abi::MapType;
use xway_object::Object;
use xway_verifier::{Region, Verified};

/// Helpers whose result depends on packet and maps alone.
const REPEATABLE: [u32; 31] = [
    1, 2, 3, 10, 12, 23, 28, 44, 51, 54, 65, 87, 88, 89, 93, 94, 164, 165, 169, 170, 171, 172, 181, 182, 188, 189, 190,
    197, 201, 202, 203,
];
/// The same of kernel functions.
const REPEATABLE_KFUNCS: [&str; 8] = [
    "bpf_iter_num_new",
    "bpf_iter_num_next",
    "bpf_iter_num_destroy",
    "bpf_dynptr_from_xdp",
    "bpf_dynptr_slice",
    "bpf_dynptr_slice_rdwr",
    "bpf_dynptr_clone",
    "bpf_dynptr_adjust",
];

/// Clocks and chance.
const CHANGING: [u32; 5] = [5, 7, 125, 160, 208];

/// True when two runs here, in whatever engine, must agree on what the program does.
pub fn settled(proof: &Verified, object: &Object) -> bool {
    let facts = proof.facts();
    // The order in which a hash is gone through is each map's own.
    let ordered = !facts.helpers.contains(&164)
        || facts.maps.iter().all(|i| {
            let kind = object.maps[*i as usize].spec.map_type;
            !matches!(kind, MapType::Hash | MapType::LruHash | MapType::PercpuHash | MapType::LruPercpuHash)
        });
    // Where memory lies is each engine's own, and what unwritten memory holds.
    ordered && !facts.addresses && !facts.unwritten_stack && !facts.helpers.iter().any(|h| CHANGING.contains(h))
}

/// True when two machines must agree on what the program does.
pub fn repeatable(proof: &Verified, object: &Object) -> bool {
    let facts = proof.facts();
    let map = |i: &u32| {
        let spec = &object.maps[*i as usize].spec;
        match spec.map_type {
            MapType::Array | MapType::PercpuArray => spec.max_entries <= 64,
            MapType::Hash | MapType::PercpuHash | MapType::LpmTrie => true,
            MapType::ProgArray | MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::Queue | MapType::Stack => true,
            MapType::Devmap | MapType::DevmapHash | MapType::Cpumap | MapType::Xskmap => true,
            _ => false,
        }
    };
    // Linux copies between a slice and the packet that it is part of in whichever order is fast.
    let overlaps = facts.kfuncs.iter().any(|k| k.starts_with("bpf_dynptr_slice"))
        && facts.helpers.iter().any(|h| matches!(h, 189 | 190 | 201 | 202));
    settled(proof, object)
        && !overlaps
        && !fetches_from_stack(proof)
        && !may_leave_unwritten(proof)
        && facts.helpers.iter().all(|h| REPEATABLE.contains(h))
        && facts.kfuncs.iter().all(|k| REPEATABLE_KFUNCS.contains(&k.as_str()))
        && facts.maps.iter().all(map)
}

/// Whether a call may fail that was to fill stack memory which nobody has written yet. It counts as written all the same
/// (`Facts::unwritten_stack`), and in Linux holds what was left there.
fn may_leave_unwritten(proof: &Verified) -> bool {
    use xway_isa::Insn;
    /// `bpf_xdp_load_bytes` and `bpf_dynptr_read`, with the arguments that are buffer and length.
    const FILL: [(u32, usize, usize); 2] = [(189, 2, 3), (201, 0, 1)];
    let facts = proof.facts();
    let writes = |at: usize| match xway_isa::decode_at(proof.insns(), at) {
        Ok(Insn::Store { size, .. }) => i64::from(size.bytes()),
        _ => 0,
    };
    let stores: Vec<(usize, i64, i64)> = facts
        .accesses
        .iter()
        .filter(|a| a.place.region == Region::Stack)
        .filter_map(|a| Some((a.insn, i64::from(a.place.off?), writes(a.insn))))
        .collect();
    facts.calls.iter().any(|call| {
        let Some((_, buffer, length)) = FILL.iter().find(|fill| fill.0 == call.helper) else { return false };
        let args = facts.args.iter().find(|args| args.insn == call.insn);
        let Some(place) = args.and_then(|args| args.args[*buffer]) else { return true };
        if matches!(place.region, Region::MapValue(_) | Region::InnerMapValue(_) | Region::Record | Region::Packet) {
            return false;
        }
        let (Region::Stack, Some(off), Some((_, most))) = (place.region, place.off, call.sizes[*length]) else {
            return true;
        };
        let written = |byte: i64| stores.iter().any(|s| s.0 < call.insn && (s.1..s.1 + s.2).contains(&byte));
        !(i64::from(off)..i64::from(off) + most.min(512) as i64).all(written)
    })
}

/// Whether an atomic operation gives back what was on the stack. Linux 6.18 does not count that as relied on when it compares ways, and
/// cuts off what it then believes nothing reaches (docs/verifier-differences.md).
fn fetches_from_stack(proof: &Verified) -> bool {
    use xway_isa::{AtomicOp, Insn};
    let fetches = |at: usize| {
        let Ok(Insn::Atomic { op, .. }) = xway_isa::decode_at(proof.insns(), at) else { return false };
        let alone = [AtomicOp::Add { fetch: false }, AtomicOp::Or { fetch: false }, AtomicOp::And { fetch: false }];
        !alone.contains(&op) && op != AtomicOp::Xor { fetch: false }
    };
    let stack = |r: Region| matches!(r, Region::Stack | Region::OuterStack | Region::Mixed | Region::Other);
    proof.facts().accesses.iter().any(|a| stack(a.place.region) && fetches(a.insn))
}
