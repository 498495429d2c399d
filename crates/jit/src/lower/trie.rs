//! Look-ups in tries with addresses of up to sixteen bytes, without a call: the steps are those of `xway_maps::native`.
//!
//! Three blocks go round: an entry is a value, nothing, a table or a list; a table leads to the next entry; a list is walked.
//! Keys with a shorter prefix length than the address has bits, which seldom a packet asks for, are left to the call.
//! What differs between addresses of one word and longer ones, the comparison of their first bits and the choice of some, is
//! `address.rs`.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{self, BlockArg, InstBuilder, MemFlagsData, Value};
use xway_isa::Reg;
use xway_maps::native::{self, LpmLayout};

use super::Body;
use super::address::{Address, Bits};
use super::lookup::Then;
use crate::calls::Entry;
use crate::plan::Call;

/// Whether look-ups in a trie can be code. Addresses of less than a word are of nothing that a network has.
pub(super) fn can_inline(trie: &LpmLayout) -> bool {
    (4..=Address::WIDTH_MAX).contains(&trie.width)
}

impl Body<'_, '_> {
    /// `slow_way`: the call for keys that are no whole address.
    pub(super) fn trie(&mut self, call: &Call, trie: &LpmLayout, then: Then, slow_way: (Entry, &'static [Reg])) {
        let shared = MemFlagsData::new().with_notrap();
        let key = self.key_words(call, 4 + trie.width as usize);
        let [whole, slow, walk, inner, node, list, table, on, value, done, hit, none] =
            std::array::from_fn(|_| self.b.create_block());
        let entry = self.b.append_block_param(walk, I32);
        let best = self.b.append_block_param(walk, I32);
        let found = self.b.append_block_param(done, I32);
        // The bits that led to an entry. Lists of short addresses do not ask for them.
        let below = (trie.path_words > 1).then(|| self.b.append_block_param(walk, I32));
        let len = self.b.ins().ireduce(I32, key[0]);
        let is_whole = self.b.ins().icmp_imm_s(IntCC::Equal, len, 8 * i64::from(trie.width));
        self.b.ins().brif(is_whole, whole, &[], slow, &[]);

        self.open(whole);
        let address = self.trie_address(&key, trie.path_words);
        let root = self.b.ins().iconst(I64, trie.root as i64);
        let first = self.b.ins().atomic_load(I32, shared, root);
        let nothing = self.b.ins().iconst(I32, 0);
        let start = [first, nothing, nothing].map(BlockArg::Value);
        self.b.ins().jump(walk, &start[..2 + usize::from(below.is_some())]);

        self.b.switch_to_block(walk);
        let is_value = self.b.ins().band_imm_s(entry, 1);
        self.b.ins().brif(is_value, value, &[], inner, &[]);
        self.open(inner);
        self.b.ins().brif(entry, node, &[], done, &[BlockArg::Value(best)]);

        self.open(node);
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

        self.open(list);
        let start = self.b.ins().iadd_imm_s(at, 4);
        let count = self.b.ins().ushr_imm_u(above, i64::from(native::TRIE_COUNT_SHIFT));
        let count = self.b.ins().uextend(I64, count);
        let nothing = BlockArg::Value(best);
        self.in_list(trie, address, (start, count, below), (done, nothing));

        self.open(table);
        let [size, depth, own, path] = native::TRIE_TABLE.map(|off| off as i32);
        let size = self.b.ins().load(I32, shared, at, size);
        let depth = self.b.ins().load(I32, shared, at, depth);
        let differs = self.differs(address, (at, path), depth);
        self.b.ins().brif(differs, done, &[BlockArg::Value(best)], on, &[]);
        self.open(on);
        let own_at = self.b.ins().iadd_imm_s(at, i64::from(own));
        let own = self.b.ins().atomic_load(I32, shared, own_at);
        let best = self.b.ins().select(own, own, best);
        let index = self.bits_of(address, depth, Bits::Count(size));
        let index = self.times(index, 4);
        let to = self.b.ins().iadd(at, index);
        let to = self.b.ins().iadd_imm_s(to, i64::from(path) + 4 * i64::from(trie.path_words));
        let next = self.b.ins().atomic_load(I32, shared, to);
        let mut next = vec![BlockArg::Value(next), BlockArg::Value(best)];
        if below.is_some() {
            next.push(BlockArg::Value(self.b.ins().iadd(depth, size)));
        }
        self.b.ins().jump(walk, &next);
        self.b.seal_block(walk);

        // As the best of a node has it: one more.
        self.open(value);
        let number = self.b.ins().ushr_imm_u(entry, 1);
        let number = self.b.ins().iadd_imm_s(number, 1);
        self.b.ins().jump(done, &[BlockArg::Value(number)]);

        self.open(done);
        self.b.ins().brif(found, hit, &[], none, &[]);
        self.open(hit);
        let number = self.b.ins().uextend(I64, found);
        let off = self.times(number, trie.stride);
        let values = self.b.ins().iconst(I64, (trie.values - trie.stride) as i64);
        let address = self.b.ins().iadd(values, off);
        self.found(address, then);
        self.open(none);
        self.missed(then);

        self.left_to_map(slow, call, then, slow_way);
    }

    /// Walks a list: where it begins, how many prefixes it has, and the bits that led to it. Goes on with the first that matches, or with
    /// nothing.
    fn in_list(
        &mut self,
        trie: &LpmLayout,
        address: Address,
        (start, count, below): (Value, Value, Option<Value>),
        (done, nothing): (ir::Block, BlockArg),
    ) {
        let shared = MemFlagsData::new().with_notrap();
        let [each, next] = std::array::from_fn(|_| self.b.create_block());
        let prefix = self.b.append_block_param(each, I64);
        let step = native::trie_list_step(trie.path_words);
        let bytes = self.times(count, step);
        let end = self.b.ins().iadd(start, bytes);
        let some = self.b.ins().icmp(IntCC::NotEqual, start, end);
        self.b.ins().brif(some, each, &[BlockArg::Value(start)], done, &[nothing]);

        self.b.switch_to_block(each);
        let word = self.b.ins().atomic_load(I32, shared, prefix);
        let (number, differs) = match below {
            None => {
                let length = self.b.ins().ushr_imm_u(word, i64::from(native::TRIE_LENGTH_SHIFT));
                let number = self.b.ins().band_imm_s(word, (1 << native::TRIE_LENGTH_SHIFT) - 1);
                (number, self.differs(address, (prefix, 4), length))
            }
            Some(below) => {
                let length = self.b.ins().load(I32, shared, prefix, 4);
                let theirs = self.b.ins().load(I32, shared, prefix, 8);
                let differs = self.differs_behind(address, below, theirs, length);
                let near = self.b.create_block();
                self.b.ins().brif(differs, next, &[], near, &[]);
                self.open(near);
                // The whole of it stands behind the value.
                let number = self.b.ins().uextend(I64, word);
                let off = self.times(number, trie.stride);
                let values = self.b.ins().iconst(I64, (trie.values - trie.stride) as i64);
                let whole = self.b.ins().iadd(values, off);
                (word, self.differs(address, (whole, trie.key_at as i32), length))
            }
        };
        self.b.ins().brif(differs, next, &[], done, &[BlockArg::Value(number)]);
        self.open(next);
        let prefix = self.b.ins().iadd_imm_s(prefix, step as i64);
        let more = self.b.ins().icmp(IntCC::NotEqual, prefix, end);
        self.b.ins().brif(more, each, &[BlockArg::Value(prefix)], done, &[nothing]);
        self.b.seal_block(each);
    }
}
