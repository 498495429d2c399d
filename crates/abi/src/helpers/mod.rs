//! The table of all helpers of Linux 6.18, numbers 1 to 211.
//!
//! Sources: numbers and names from `enum bpf_func_id` (`linux/bpf.h`); which of them XDP programs may call, and under which
//! licence, from loading a program with each of them into a 6.18 kernel; arguments from the helpers' descriptions in
//! `linux/bpf.h` and from what the kernel's verifier accepts and refuses when one argument at a time is varied.

mod events;
mod foreign;
mod general;
mod kernel;
mod maps;
mod packet;
pub(crate) mod row;
mod socket;

use crate::helper::HelperProto;

/// The largest helper number.
pub const HELPER_MAX: u32 = 211;

/// All helpers, in numerical order.
pub const fn helpers() -> &'static [HelperProto] {
    &TABLE
}

/// The helper with this number.
pub const fn helper(id: u32) -> Option<&'static HelperProto> {
    if id == 0 || id > HELPER_MAX { None } else { Some(&TABLE[id as usize - 1]) }
}

/// The helper with this name (`bpf_map_lookup_elem`). Linear in the size of the table.
pub fn helper_by_name(name: &str) -> Option<&'static HelperProto> {
    TABLE.iter().find(|h| h.name == name)
}

static TABLE: [HelperProto; HELPER_MAX as usize] = {
    let mut table = [row::foreign(0, ""); HELPER_MAX as usize];
    let mut i = 0;
    while i < foreign::NAMES.len() {
        let (id, name) = foreign::NAMES[i];
        table[id as usize - 1] = row::foreign(id, name);
        i += 1;
    }
    let subjects = [maps::ROWS, packet::ROWS, socket::ROWS, events::ROWS, general::ROWS, kernel::ROWS];
    let mut s = 0;
    while s < subjects.len() {
        let mut i = 0;
        while i < subjects[s].len() {
            let row = subjects[s][i];
            assert!(table[row.id as usize - 1].id == 0, "a helper stands in the table twice");
            table[row.id as usize - 1] = row;
            i += 1;
        }
        s += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgKind, MemSize};

    #[test]
    fn every_number_has_its_row() {
        for (row, id) in helpers().iter().zip(1..) {
            assert_eq!(row.id, id, "{}", row.name);
            assert!(row.name.starts_with("bpf_"), "{id}");
            assert_eq!(helper(id).unwrap().name, row.name);
            assert_eq!(helper_by_name(row.name).unwrap().id, id, "two helpers share a name");
        }
        assert!(helper(0).is_none() && helper(HELPER_MAX + 1).is_none());
    }

    #[test]
    fn linux_6_18_gives_104_helpers_to_xdp() {
        assert_eq!(helpers().iter().filter(|h| h.xdp).count(), 104);
    }

    #[test]
    fn prototypes_are_consistent() {
        for h in helpers() {
            assert!(h.args.len() <= 5, "{}", h.name);
            for (n, a) in h.args.iter().enumerate() {
                let sized = n > 0 && matches!(h.args[n - 1].kind, ArgKind::Mem(_, MemSize::NextArg));
                let is_size = matches!(a.kind, ArgKind::Size { .. });
                assert_eq!(sized, is_size, "{} argument {}", h.name, n + 1);
                // Memory that may be absent may have no length.
                if let ArgKind::Mem(_, MemSize::NextArg) = a.kind
                    && a.nullable
                {
                    assert_eq!(h.args[n + 1].kind, ArgKind::Size { zero_ok: true }, "{}", h.name);
                }
            }
        }
    }
}
