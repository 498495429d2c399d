//! What a program refers to, and what it takes to run it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xway_isa::{CallTarget, Imm64, Insn};
use xway_object::{Object, Program};
use xway_verifier::Facts;

/// What stands in a program's instructions, reached or not.
pub struct Uses {
    /// Maps, by index in the object.
    pub maps: Vec<usize>,
    /// Helpers by number, with the number of calls.
    pub helpers: BTreeMap<u32, u32>,
    /// Kernel functions by name.
    pub kfuncs: Vec<String>,
    /// Jumps go backwards.
    loops_back: bool,
}

impl Uses {
    /// Looks through the instructions.
    pub fn of(program: &Program) -> Uses {
        let mut uses = Uses { maps: vec![], helpers: BTreeMap::new(), kfuncs: vec![], loops_back: false };
        let insns = xway_isa::decode(&program.insns).unwrap_or_default();
        for insn in insns.iter().flatten() {
            match *insn {
                Insn::LoadImm64 { imm: Imm64::MapIdx(i) | Imm64::MapIdxValue { idx: i, .. }, .. } => {
                    uses.maps.extend(usize::try_from(i));
                }
                Insn::Call(CallTarget::Helper(id)) => *uses.helpers.entry(id).or_default() += 1,
                Insn::Call(CallTarget::Kfunc { id, .. }) => {
                    uses.kfuncs
                        .extend(usize::try_from(id).ok().and_then(|i| program.kfuncs.get(i)).map(|k| k.name.clone()));
                }
                Insn::Jump { off, .. } if off < 0 => uses.loops_back = true,
                Insn::Branch { off, .. } | Insn::MayGoto { off } if off < 0 => uses.loops_back = true,
                _ => {}
            }
        }
        uses.maps.sort_unstable();
        uses.maps.dedup();
        uses.kfuncs.sort_unstable();
        uses.kfuncs.dedup();
        uses
    }

    /// Names of the helpers.
    pub fn helper_names(&self) -> Vec<String> {
        self.helpers.keys().map(|id| helper_name(*id)).collect()
    }

    /// What must be there for the program to do its work. With the facts of a proof it is what some run can need; without,
    /// what stands in the instructions, and what only a proof can say is null.
    pub fn needs(&self, object: &Object, program: &Program, facts: Option<&Facts>) -> Value {
        let helpers: Vec<u32> = facts.map_or_else(|| self.helpers.keys().copied().collect(), |f| f.helpers.clone());
        let kfuncs = facts.map_or(&self.kfuncs, |f| &f.kfuncs);
        let maps: Vec<usize> =
            facts.map_or_else(|| self.maps.clone(), |f| f.maps.iter().map(|m| *m as usize).collect());
        let any =
            |is: fn(&xway_abi::HelperProto) -> bool| helpers.iter().any(|id| xway_abi::helper(*id).is_some_and(is));
        let named = |fits: fn(Option<&xway_abi::HelperProto>) -> bool| -> Vec<String> {
            helpers.iter().filter(|id| fits(xway_abi::helper(**id))).map(|id| helper_name(*id)).collect()
        };
        let maps: Vec<(&str, &str)> = maps
            .iter()
            .filter_map(|i| object.maps.get(*i))
            .map(|m| (m.name.as_str(), m.spec.map_type.name()))
            .collect();
        let mut map_types: Vec<&str> = maps.iter().map(|m| m.1).collect();
        map_types.sort_unstable();
        map_types.dedup();
        json!({
            "proved": facts.is_some(),
            "helpers": helpers.iter().map(|id| helper_name(*id)).collect::<Vec<_>>(),
            "kfuncs": kfuncs,
            "kernel_objects": facts.map(|f| &f.kernel_objects),
            "maps": maps.iter().map(|(name, t)| json!({ "name": name, "type": t })).collect::<Vec<_>>(),
            "map_types": map_types,
            "verdicts": facts.and_then(|f| f.verdicts.as_ref()).map(|v| v.iter().map(|v| v.name()).collect::<Vec<_>>()),
            "packet_bytes": facts.map(|f| f.packet_bytes),
            "writes_packet": facts.map(|f| f.packet_written),
            "moves_packet": facts.map_or_else(|| any(|h| h.changes_packet), |f| f.packet_moved),
            "metadata": facts.map(|f| f.meta_used),
            "writes_metadata": facts.map(|f| f.meta_written),
            "frags": program.kind.frags(),
            "redirect": any(xway_abi::HelperProto::redirects),
            "tail_calls": facts.map_or_else(|| any(xway_abi::HelperProto::is_tail_call), |f| f.tail_calls),
            "routes": any(|h| h.name == "bpf_fib_lookup"),
            "loops": self.loops_back || any(xway_abi::HelperProto::calls_back),
            "stack": facts.map(|f| f.stack_chain),
            "gpl_helpers": named(|h| h.is_some_and(|h| h.gpl_only)),
            "refused_helpers": named(|h| h.is_none_or(|h| !h.xdp)),
        })
    }
}

/// The name of a helper.
pub fn helper_name(id: u32) -> String {
    xway_abi::helper(id).map_or_else(|| format!("helper {id} (unknown)"), |h| h.name.to_owned())
}
