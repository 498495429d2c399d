//! Addresses of tries as values: their first bits beside those of a prefix in memory, and some bits out of their middle.
//!
//! In a trie an address is words of 32 bits, the first bit of each on top. One word is a value of 32 bits here; longer ones are one or two of
//! 64, the first bit on top again. A shift by as many bits as a value has leaves it as it is, so none is made where it could matter.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};

use super::Body;

/// An address that is looked for.
#[derive(Clone, Copy)]
pub(super) enum Address {
    /// 32 bits.
    Word(Value),
    /// Up to 64.
    Long(Value),
    /// Up to 128: the first 64, the others, and the words that these are in memory.
    Longest(Value, Value, u32),
}

impl Address {
    /// Bytes of the longest.
    pub const WIDTH_MAX: u32 = 16;
}

/// How many bits are taken.
#[derive(Clone, Copy)]
pub(super) enum Bits {
    /// As many, at most 32; of none 0 is left.
    Count(Value),
    Word,
}

impl Body<'_, '_> {
    /// The address of a key of so many words behind its prefix length, given in words of eight bytes.
    pub(super) fn trie_address(&mut self, key: &[Value], words: u32) -> Address {
        let mut part = |n: usize| {
            let own = self.b.ins().ushr_imm_u(key[n], 32);
            let both = match key.get(n + 1) {
                Some(next) => {
                    let next = self.b.ins().ishl_imm_s(*next, 32);
                    self.b.ins().bor(own, next)
                }
                None => own,
            };
            self.b.ins().bswap(both)
        };
        match words {
            1 => {
                let bits = self.b.ins().ushr_imm_u(key[0], 32);
                let bits = self.b.ins().ireduce(I32, bits);
                Address::Word(self.b.ins().bswap(bits))
            }
            2 => Address::Long(part(0)),
            _ => Address::Longest(part(0), part(1), words - 2),
        }
    }

    /// The first so many bits (at most all of the address) in which an address and the words at a place differ: a number that is 0 when
    /// there are none.
    pub(super) fn differs(&mut self, address: Address, (at, off): (Value, i32), bits: Value) -> Value {
        let flags = MemFlagsData::new().with_notrap();
        let (first, more) = match address {
            Address::Word(own) => {
                let theirs = self.b.ins().load(I32, flags, at, off);
                return self.differs_in_word(theirs, own, bits);
            }
            Address::Long(first) => (first, None),
            Address::Longest(first, second, words) => (first, Some((second, words))),
        };
        // Of 64 bits and more all; of fewer those above the rest, of which one goes first, as 64 at once would be none.
        let theirs = self.two_words(at, off);
        let differ = self.b.ins().bxor(theirs, first);
        let wide = self.b.ins().uextend(I64, bits);
        let rest = self.b.ins().ushr_imm_u(differ, 1);
        let last = self.b.ins().iconst(I64, 63);
        let shift = self.b.ins().isub(last, wide);
        let rest = self.b.ins().ushr(rest, shift);
        let whole = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, bits, 64);
        let front = self.b.ins().select(whole, differ, rest);
        let Some((second, words)) = more else { return front };
        let theirs = match words {
            1 => {
                let theirs = self.b.ins().uload32(flags, at, off + 8);
                self.b.ins().ishl_imm_s(theirs, 32)
            }
            _ => self.two_words(at, off + 8),
        };
        let differ = self.b.ins().bxor(theirs, second);
        // 65 to 128 bits: all but 63 to none.
        let all = self.b.ins().iconst(I64, 128);
        let shift = self.b.ins().isub(all, wide);
        let rest = self.b.ins().ushr(differ, shift);
        let beyond = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, bits, 64);
        let none = self.b.ins().iconst(I64, 0);
        let back = self.b.ins().select(beyond, rest, none);
        self.b.ins().bor(front, back)
    }

    /// The bits in which a prefix of a length and an address differ, within the 32 that follow those that led there: 0 when there are none.
    pub(super) fn differs_behind(&mut self, address: Address, below: Value, theirs: Value, length: Value) -> Value {
        let window = self.bits_of(address, below, Bits::Word);
        let window = self.b.ins().ireduce(I32, window);
        let behind = self.b.ins().isub(length, below);
        let word = self.b.ins().iconst(I32, 32);
        let within = self.b.ins().umin(behind, word);
        self.differs_in_word(theirs, window, within)
    }

    /// Bits of an address behind so many (at most all of it), as a number of 64 bits.
    pub(super) fn bits_of(&mut self, address: Address, behind: Value, bits: Bits) -> Value {
        let top = match address {
            Address::Word(word) => {
                let Bits::Count(count) = bits else { unreachable!("of one word none is taken whole") };
                // Those above are shifted out of 64, so that a table of no bits has one entry.
                let all = self.b.ins().uextend(I64, word);
                let taken = self.b.ins().iadd(behind, count);
                let last = self.rest_of_word(taken);
                let index = self.b.ins().ushr(all, last);
                let one = self.b.ins().iconst(I64, 1);
                let entries = self.b.ins().ishl(one, count);
                let mask = self.b.ins().iadd_imm_s(entries, -1);
                return self.b.ins().band(index, mask);
            }
            // Behind all of them no bit is asked for.
            Address::Long(first) => self.b.ins().ishl(first, behind),
            Address::Longest(first, second, _) => {
                let over = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, behind, 64);
                let none = self.b.ins().iconst(I64, 0);
                let here = self.b.ins().select(over, second, first);
                let next = self.b.ins().select(over, none, second);
                let here = self.b.ins().ishl(here, behind);
                let next = self.b.ins().ushr_imm_u(next, 1);
                let last = self.b.ins().iconst(I32, 63);
                let shift = self.b.ins().isub(last, behind);
                let next = self.b.ins().ushr(next, shift);
                self.b.ins().bor(here, next)
            }
        };
        match bits {
            Bits::Word => self.b.ins().ushr_imm_u(top, 32),
            Bits::Count(count) => {
                let top = self.b.ins().ushr_imm_u(top, 1);
                let last = self.b.ins().iconst(I32, 63);
                let shift = self.b.ins().isub(last, count);
                self.b.ins().ushr(top, shift)
            }
        }
    }

    /// Two words of a prefix, the first on top.
    fn two_words(&mut self, at: Value, off: i32) -> Value {
        let both = self.b.ins().load(I64, MemFlagsData::new().with_notrap(), at, off);
        self.b.ins().rotl_imm_s(both, 32)
    }

    /// The first so many bits in which two words differ: none of 32, when there are none. As numbers of 64 bits, because a shift
    /// by 32 leaves nothing of those.
    fn differs_in_word(&mut self, a: Value, b: Value, bits: Value) -> Value {
        let differ = self.b.ins().bxor(a, b);
        let differ = self.b.ins().uextend(I64, differ);
        let rest = self.rest_of_word(bits);
        self.b.ins().ushr(differ, rest)
    }

    /// The bits of a word but so many.
    fn rest_of_word(&mut self, bits: Value) -> Value {
        let all = self.b.ins().iconst(I32, 32);
        self.b.ins().isub(all, bits)
    }
}
