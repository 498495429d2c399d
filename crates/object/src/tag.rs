//! Program tags: the eight bytes by which `bpftool prog` and traces name a program.

use sha1::Digest as _;
use xway_isa::{Slot, op, slots_to_bytes};

use crate::Program;

impl Program {
    /// The tag that Linux 6.18 gives this program: the first eight bytes of SHA-256 over its slots, with map references
    /// reduced to their kind. Equal to what `bpftool prog` shows when a libbpf loader has loaded the same object, unless the
    /// program calls kernel functions, whose BTF ids are the kernel's own.
    pub fn tag(&self) -> [u8; 8] {
        first_eight(&sha2::Sha256::digest(self.hashed_bytes()))
    }

    /// The tag that kernels before 6.18 give: the same bytes under SHA-1.
    pub fn tag_sha1(&self) -> [u8; 8] {
        first_eight(&sha1::Sha1::digest(self.hashed_bytes()))
    }

    /// The slots with each map reference replaced by what `of` gives for its index: the two-slot form that names maps by
    /// file descriptor (`BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`), as kernels before 5.14 want it. Indices for which
    /// `of` has nothing are left alone.
    pub fn with_map_fds(&self, of: impl Fn(usize) -> Option<i32>) -> Vec<Slot> {
        let mut slots = self.insns.clone();
        let mut at = 0;
        while at < slots.len() {
            let slot = &mut slots[at];
            let wide = slot.is_wide();
            if wide
                && matches!(slot.src, 5 | 6)
                && let Some(fd) = usize::try_from(slot.imm).ok().and_then(&of)
            {
                slot.imm = fd;
                slot.src = if slot.src == 5 { 1 } else { 2 };
            }
            at += 1 + usize::from(wide);
        }
        slots
    }

    fn hashed_bytes(&self) -> Vec<u8> {
        let mut slots = self.with_map_fds(|_| Some(0));
        let mut at = 0;
        while at < slots.len() {
            let map = slots[at].opcode == op::LD_IMM64 && matches!(slots[at].src, 1 | 2);
            if map {
                slots[at].imm = 0;
                if let Some(second) = slots.get_mut(at + 1) {
                    second.imm = 0;
                }
            }
            at += 1 + usize::from(slots[at].is_wide());
        }
        slots_to_bytes(&slots)
    }
}

fn first_eight(digest: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| digest[i])
}
