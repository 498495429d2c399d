//! Look-ups in tries with addresses of one word, without a call: the steps are those of `xway_maps::native`.
//!
//! Three blocks go round: an entry is a value, nothing, a table or a list; a table leads to the next entry; a list is walked.
//! Keys with a shorter prefix length than the address has bits, which seldom a packet asks for, are left to the call.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value};
use xway_isa::Reg;
use xway_maps::native::{self, LpmLayout};

use super::Body;
use super::lookup::Then;
use crate::calls::Entry;
use crate::plan::Call;

/// Bytes of an address that is one word.
pub(super) const WIDTH: u32 = 4;

impl Body<'_, '_> {
    /// `slow_way`: the call for keys that are no whole address.
    pub(super) fn trie(&mut self, call: &Call, trie: &LpmLayout, then: Then, slow_way: (Entry, &'static [Reg])) {
        let shared = MemFlagsData::new().with_notrap();
        let [key] = self.key_words(call, 4 + WIDTH as usize)[..] else { unreachable!("eight bytes are one word") };
        let [whole, slow, walk, inner, node, list, each, table, on, value, done, hit, none] =
            std::array::from_fn(|_| self.b.create_block());
        let entry = self.b.append_block_param(walk, I32);
        let best = self.b.append_block_param(walk, I32);
        let found = self.b.append_block_param(done, I32);
        let prefix = self.b.append_block_param(each, I64);
        let len = self.b.ins().ireduce(I32, key);
        let is_whole = self.b.ins().icmp_imm_s(IntCC::Equal, len, 8 * i64::from(WIDTH));
        self.b.ins().brif(is_whole, whole, &[], slow, &[]);

        self.b.switch_to_block(whole);
        let bits = self.b.ins().ushr_imm_u(key, 32);
        let bits = self.b.ins().ireduce(I32, bits);
        let bits = self.b.ins().bswap(bits);
        let root = self.b.ins().iconst(I64, trie.root as i64);
        let first = self.b.ins().atomic_load(I32, shared, root);
        let nothing = self.b.ins().iconst(I32, 0);
        self.b.ins().jump(walk, &[BlockArg::Value(first), BlockArg::Value(nothing)]);

        self.b.switch_to_block(walk);
        let is_value = self.b.ins().band_imm_s(entry, 1);
        self.b.ins().brif(is_value, value, &[], inner, &[]);
        self.b.switch_to_block(inner);
        self.b.ins().brif(entry, node, &[], done, &[BlockArg::Value(best)]);

        self.b.switch_to_block(node);
        let number = self.b.ins().ushr_imm_u(entry, 2);
        let number = self.b.ins().uextend(I64, number);
        let number = self.times(number, 8);
        let nodes = self.b.ins().iconst(I64, trie.nodes as i64);
        let at = self.b.ins().iadd(nodes, number);
        let above = self.b.ins().atomic_load(I32, shared, at);
        let own = self.b.ins().band_imm_s(above, i64::from(native::TRIE_BEST));
        let best = self.b.ins().select(own, own, best);
        let is_list = self.b.ins().band_imm_s(entry, 2);
        self.b.ins().brif(is_list, list, &[], table, &[]);

        self.b.switch_to_block(list);
        let start = self.b.ins().iadd_imm_s(at, 4);
        let count = self.b.ins().ushr_imm_u(above, i64::from(native::TRIE_COUNT_SHIFT));
        let count = self.b.ins().uextend(I64, count);
        let bytes = self.times(count, 8);
        let end = self.b.ins().iadd(start, bytes);
        let some = self.b.ins().icmp(IntCC::NotEqual, start, end);
        self.b.ins().brif(some, each, &[BlockArg::Value(start)], done, &[BlockArg::Value(best)]);
        self.b.switch_to_block(each);
        let word = self.b.ins().atomic_load(I32, shared, prefix);
        let theirs = self.b.ins().load(I32, shared, prefix, 4);
        let length = self.b.ins().ushr_imm_u(word, i64::from(native::TRIE_LENGTH_SHIFT));
        let number = self.b.ins().band_imm_s(word, (1 << native::TRIE_LENGTH_SHIFT) - 1);
        let differs = self.differs(theirs, bits, length);
        let next = self.b.create_block();
        self.b.ins().brif(differs, next, &[], done, &[BlockArg::Value(number)]);
        self.b.switch_to_block(next);
        let prefix = self.b.ins().iadd_imm_s(prefix, 8);
        let more = self.b.ins().icmp(IntCC::NotEqual, prefix, end);
        self.b.ins().brif(more, each, &[BlockArg::Value(prefix)], done, &[BlockArg::Value(best)]);

        self.b.switch_to_block(table);
        let [size, depth, own, path] = native::TRIE_TABLE.map(|off| off as i32);
        let size = self.b.ins().load(I32, shared, at, size);
        let depth = self.b.ins().load(I32, shared, at, depth);
        let theirs = self.b.ins().load(I32, shared, at, path);
        let differs = self.differs(theirs, bits, depth);
        self.b.ins().brif(differs, done, &[BlockArg::Value(best)], on, &[]);
        self.b.switch_to_block(on);
        let own_at = self.b.ins().iadd_imm_s(at, i64::from(own));
        let own = self.b.ins().atomic_load(I32, shared, own_at);
        let best = self.b.ins().select(own, own, best);
        // The bits behind the path: those above are shifted out of 64, so that a table of no bits has one entry.
        let all = self.b.ins().uextend(I64, bits);
        let behind = self.b.ins().iadd(depth, size);
        let last = self.without(behind);
        let index = self.b.ins().ushr(all, last);
        let one = self.b.ins().iconst(I64, 1);
        let entries = self.b.ins().ishl(one, size);
        let mask = self.b.ins().iadd_imm_s(entries, -1);
        let index = self.b.ins().band(index, mask);
        let index = self.times(index, 4);
        let to = self.b.ins().iadd(at, index);
        let to = self.b.ins().iadd_imm_s(to, i64::from(path) + 4 * i64::from(trie.path_words));
        let below = self.b.ins().atomic_load(I32, shared, to);
        self.b.ins().jump(walk, &[BlockArg::Value(below), BlockArg::Value(best)]);

        // As the best of a node has it: one more.
        self.b.switch_to_block(value);
        let number = self.b.ins().ushr_imm_u(entry, 1);
        let number = self.b.ins().iadd_imm_s(number, 1);
        self.b.ins().jump(done, &[BlockArg::Value(number)]);

        self.b.switch_to_block(done);
        self.b.ins().brif(found, hit, &[], none, &[]);
        self.b.switch_to_block(hit);
        let number = self.b.ins().uextend(I64, found);
        let off = self.times(number, trie.stride);
        let values = self.b.ins().iconst(I64, (trie.values - trie.stride) as i64);
        let address = self.b.ins().iadd(values, off);
        self.found(address, then);
        self.b.switch_to_block(none);
        self.missed(then);

        self.left_to_map(slow, call, then, slow_way);
    }

    /// The first so many bits in which two words differ: none of 32, when there are none. As numbers of 64 bits, because a shift
    /// by 32 leaves nothing of those.
    fn differs(&mut self, a: Value, b: Value, bits: Value) -> Value {
        let differ = self.b.ins().bxor(a, b);
        let differ = self.b.ins().uextend(I64, differ);
        let rest = self.without(bits);
        self.b.ins().ushr(differ, rest)
    }

    /// The bits of an address but so many.
    fn without(&mut self, bits: Value) -> Value {
        let all = self.b.ins().iconst(I32, 8 * i64::from(WIDTH));
        self.b.ins().isub(all, bits)
    }
}
