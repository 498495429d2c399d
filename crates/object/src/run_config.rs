//! What an object says about running beside others: `.xdp_run_config`, the ecosystem's section of priorities and verdicts.
//!
//! The numbers stand in the types alone: a variable `_NAME` for the program `NAME`, a structure whose members point to arrays
//! as long as the number. Source: `lib/libxdp/protocol.org` of xdp-tools.

use crate::Object;
use crate::btf::{Btf, Kind};

/// Priority and verdicts that a program's author chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunConfig {
    /// Smaller numbers run first.
    pub priority: Option<u32>,
    /// Verdicts (bit n for the verdict n) behind which the next program runs.
    pub chain_on: Option<u32>,
}

/// Members of the structure, by the verdict's number.
const VERDICTS: [&str; 5] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];

impl Object {
    /// What the object says about the program with this name; nothing where it says nothing.
    pub fn run_config(&self, program: &str) -> RunConfig {
        self.btf.as_ref().and_then(|btf| read(btf, &format!("_{program}"))).unwrap_or_default()
    }
}

fn read(btf: &Btf, variable: &str) -> Option<RunConfig> {
    let section = btf.find(".xdp_run_config", |t| matches!(t.kind, Kind::Datasec { .. }))?;
    let Kind::Datasec { vars, .. } = btf.ty(section).ok()?.kind else { return None };
    let of = vars.iter().filter_map(|v| btf.ty(v.ty).ok()).find(|t| t.name == variable)?;
    let Kind::Var(structure, _) = of.kind else { return None };
    let Kind::Struct(members) = btf.ty(structure).ok()?.kind else { return None };
    let mut found = RunConfig::default();
    for member in members.members() {
        let Some(number) = number(btf, member.ty) else { continue };
        if member.name == "priority" {
            found.priority = Some(number);
        } else if let Some(verdict) = VERDICTS.iter().position(|name| *name == member.name) {
            let set = found.chain_on.get_or_insert(0);
            *set |= u32::from(number != 0) << verdict;
        }
    }
    Some(found)
}

/// A pointer to an array: its length.
fn number(btf: &Btf, ty: u32) -> Option<u32> {
    let Kind::Ptr(to) = btf.ty(ty).ok()?.kind else { return None };
    match btf.ty(to).ok()?.kind {
        Kind::Array(array) => Some(array.len),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::{BtfBuilder, IntEncoding, VarLinkage};

    #[test]
    fn numbers_are_the_lengths_of_arrays() {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let mut number = |n| {
            let array = b.array(int, int, n);
            b.ptr(array)
        };
        let (ten, yes, no) = (number(10), number(1), number(0));
        let members = [("priority", ten, 0), ("XDP_PASS", yes, 64), ("XDP_DROP", yes, 128), ("XDP_TX", no, 192)];
        let structure = b.structure("", 32, &members);
        let silent = b.structure("", 8, &[("other", int, 0)]);
        let vars = [b.var("_first", structure, VarLinkage::Global), b.var("_second", silent, VarLinkage::Global)];
        b.datasec(".xdp_run_config", 40, &[(vars[0], 0, 32), (vars[1], 32, 8)]);
        let btf = b.finish();
        assert_eq!(read(&btf, "_first"), Some(RunConfig { priority: Some(10), chain_on: Some(0b110) }));
        assert_eq!(read(&btf, "_second"), Some(RunConfig::default()));
        assert_eq!(read(&btf, "_third"), None);
    }
}
