//! Sums of many words of memory that others write at the same time.
#![allow(unsafe_code)]
// Why unsafe: loads by instructions of this machine, which are wider than an atomic is. Another thread or process may write what they
// read: they are not loads of the language, which would promise that nobody does.

use std::arch::asm;

/// What is added up at once; fewer bytes are not worth the beginning and the end.
pub(crate) const BLOCK: usize = 64;
/// Bytes from which on vectors are worth their beginning and end.
const VECTORS_MIN: usize = 256;
/// Bytes of a word.
const WORD: usize = 4;
/// From place `8 - n` on: of eight words `n` that are loaded, and those that are not.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The sum of `len` bytes as words of 32 bits in the machine's order, the last one filled up with zeros: some number with the same
/// remainder by 2^32 - 1, of 33 bits at most, and zero only where all bytes are. Each byte is read once, at any address.
///
/// # Safety
/// The bytes are mapped and stay so.
#[inline]
pub(crate) unsafe fn of_bytes(at: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise, for the front and what is left behind it; the processor was asked for what vectors take.
    let sum = unsafe {
        if len >= VECTORS_MIN && std::is_x86_feature_detected!("avx2") {
            let whole = len / WORD * WORD;
            let sum = by_vectors(at, len / WORD);
            if whole == len { sum } else { of_rest(at.add(whole), len - whole, sum) }
        } else {
            let whole = len / BLOCK * BLOCK;
            of_rest(at.add(whole), len - whole, by_carries(at, len / BLOCK))
        }
    };
    (sum & 0xffff_ffff) + (sum >> 32)
}

/// Adds fewer bytes than a block.
///
/// # Safety
/// As [`of_bytes`].
#[inline]
unsafe fn of_rest(mut at: *const u8, mut left: usize, mut sum: u64) -> u64 {
    let add = |sum: u64, more: u64| {
        let (low, carry) = sum.overflowing_add(more);
        low + u64::from(carry)
    };
    macro_rules! read {
        ($load:literal) => {{
            let v: u64;
            // SAFETY: reads as many bytes as the condition around it says are left from `at` on, and changes nothing but a register.
            unsafe { asm!($load, v = out(reg) v, at = in(reg) at, options(nostack, readonly, preserves_flags)) };
            v
        }};
    }
    // Lower and upper halves apart: no addition waits for a carry.
    let (mut low, mut high) = (0, 0);
    while left >= 8 {
        let word = read!("mov {v}, [{at}]");
        low += word & 0xffff_ffff;
        high += word >> 32;
        (at, left) = (at.wrapping_add(8), left - 8);
    }
    sum = add(sum, low + high);
    if left >= 4 {
        sum = add(sum, read!("mov {v:e}, [{at}]"));
        (at, left) = (at.wrapping_add(4), left - 4);
    }
    let mut last = 0;
    if left >= 2 {
        last = read!("movzx {v:e}, word ptr [{at}]");
        at = at.wrapping_add(2);
    }
    if left % 2 == 1 {
        last |= read!("movzx {v:e}, byte ptr [{at}]") << (8 * (left - 1));
    }
    add(sum, last)
}

/// The sum of `blocks` times [`BLOCK`] bytes as [`of_bytes`] has it, but of 64 bits. Two chains of additions, each with the carry of the one
/// before: as numbers of 64 bits words have the same remainder.
///
/// # Safety
/// As [`of_bytes`].
unsafe fn by_carries(at: *const u8, blocks: usize) -> u64 {
    let (mut one, mut two) = (0u64, 0u64);
    if blocks == 0 {
        return 0;
    }
    // SAFETY: reads the caller's bytes and writes nothing but registers. A sum that has a carry is not all ones, so that the
    // addition of the last carry of a chain has none.
    unsafe {
        asm!(
            // Where a jump crosses the end of 32 bytes of code, some processors keep nothing decoded of them (Intel's JCC erratum): the
            // loop took half as long again by where it came to lie. From such a boundary on no jump of it does.
            ".p2align 5",
            "2:",
            "add {one}, [{at}]",
            "adc {one}, [{at} + 8]",
            "adc {one}, [{at} + 16]",
            "adc {one}, [{at} + 24]",
            "adc {one}, 0",
            "add {two}, [{at} + 32]",
            "adc {two}, [{at} + 40]",
            "adc {two}, [{at} + 48]",
            "adc {two}, [{at} + 56]",
            "adc {two}, 0",
            "add {at}, 64",
            "dec {blocks}",
            "jnz 2b",
            one = inout(reg) one,
            two = inout(reg) two,
            at = inout(reg) at => _,
            blocks = inout(reg) blocks => _,
            options(nostack, readonly),
        );
    }
    let (sum, carry) = one.overflowing_add(two);
    sum + u64::from(carry)
}

/// The same of so many words of 32 bits. Sums of four words of 64 bits in each of two vectors, which may overflow, and those of their upper
/// halves, which do not: what is left of the first without the second are the lower halves.
///
/// # Safety
/// As [`of_bytes`], and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn by_vectors(at: *const u8, words: usize) -> u64 {
    let (mut all, mut upper) = (0u64, 0u64);
    let (blocks, rest) = (words / (BLOCK / WORD), words % (BLOCK / WORD));
    if blocks == 0 {
        return 0;
    }
    // Of the last block only the words that there are, in its first half and in its second.
    let mask = |words: usize| MASKS[8 - words..][..8].as_ptr();
    let (first, second) = (mask(rest.min(8)), mask(rest.saturating_sub(8)));
    // SAFETY: reads the caller's bytes and the masks, and writes nothing but registers, with instructions that the processor has.
    unsafe {
        asm!(
            "vpxor {a:x}, {a:x}, {a:x}",
            "vpxor {b:x}, {b:x}, {b:x}",
            "vpxor {c:x}, {c:x}, {c:x}",
            "vpxor {d:x}, {d:x}, {d:x}",
            // As in `by_carries`.
            ".p2align 5",
            "2:",
            "vmovdqu {x:y}, [{at}]",
            "vmovdqu {y:y}, [{at} + 32]",
            "vpaddq {a:y}, {a:y}, {x:y}",
            "vpaddq {b:y}, {b:y}, {y:y}",
            "vpsrlq {x:y}, {x:y}, 32",
            "vpsrlq {y:y}, {y:y}, 32",
            "vpaddq {c:y}, {c:y}, {x:y}",
            "vpaddq {d:y}, {d:y}, {y:y}",
            "add {at}, 64",
            "dec {blocks}",
            "jnz 2b",
            "vmovdqu {x:y}, [{first}]",
            "vmovdqu {y:y}, [{second}]",
            "vpmaskmovd {x:y}, {x:y}, [{at}]",
            "vpmaskmovd {y:y}, {y:y}, [{at} + 32]",
            "vpaddq {a:y}, {a:y}, {x:y}",
            "vpaddq {b:y}, {b:y}, {y:y}",
            "vpsrlq {x:y}, {x:y}, 32",
            "vpsrlq {y:y}, {y:y}, 32",
            "vpaddq {c:y}, {c:y}, {x:y}",
            "vpaddq {d:y}, {d:y}, {y:y}",
            "vpaddq {a:y}, {a:y}, {b:y}",
            "vpaddq {c:y}, {c:y}, {d:y}",
            "vextracti128 {x:x}, {a:y}, 1",
            "vextracti128 {y:x}, {c:y}, 1",
            "vpaddq {a:x}, {a:x}, {x:x}",
            "vpaddq {c:x}, {c:x}, {y:x}",
            "vpshufd {x:x}, {a:x}, 78",
            "vpshufd {y:x}, {c:x}, 78",
            "vpaddq {a:x}, {a:x}, {x:x}",
            "vpaddq {c:x}, {c:x}, {y:x}",
            "vmovq {all}, {a:x}",
            "vmovq {upper}, {c:x}",
            // What follows has instructions of the older form, which would wait for the upper halves of registers: of all, which is
            // why all are named below.
            "vzeroupper",
            at = inout(reg) at => _,
            blocks = inout(reg) blocks => _,
            first = in(reg) first,
            second = in(reg) second,
            all = inlateout(reg) all,
            upper = inlateout(reg) upper,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _,
            out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack, readonly),
        );
    }
    all.wrapping_sub(upper << 32).wrapping_add(upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_add_up_the_same_words() {
        let canonical = |sum: u64| if sum == 0 { 0 } else { (sum - 1) % 0xffff_ffff + 1 };
        let patterns: [fn(usize) -> u8; 5] = [
            |n| (n * 37 + n / 7) as u8,
            |_| 0xff,
            |_| 0,
            |n| u8::from(n % 4 == 2),
            |n| 0u8.wrapping_sub(u8::from(n % 8 < 7)),
        ];
        for pattern in patterns {
            let bytes: Vec<u8> = (0..40 * BLOCK).map(pattern).collect();
            for (from, blocks) in (0..9).flat_map(|from| (0..36).map(move |blocks| (from, blocks))) {
                let part = &bytes[from..from + blocks * BLOCK];
                let words: u64 = part.as_chunks::<4>().0.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
                // SAFETY: the slice's bytes; the processor is asked for what the last one takes.
                unsafe {
                    for less in 0..BLOCK.min(part.len()) {
                        let part = &part[..part.len() - less];
                        let mut last = [0; 4];
                        last[..part.len() % 4].copy_from_slice(part.as_chunks::<4>().1);
                        let words =
                            part.as_chunks::<4>().0.iter().chain([&last]).map(|w| u64::from(u32::from_ne_bytes(*w)));
                        assert_eq!(canonical(of_bytes(part.as_ptr(), part.len())), canonical(words.sum()));
                    }
                    assert_eq!(canonical(by_carries(part.as_ptr(), blocks)), canonical(words));
                    for less in (0..BLOCK.min(part.len()) / WORD)
                        .filter(|_| std::is_x86_feature_detected!("avx2") && blocks > 1)
                    {
                        let part = &part[..part.len() - less * WORD];
                        let words: u64 =
                            part.as_chunks::<4>().0.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
                        assert_eq!(canonical(by_vectors(part.as_ptr(), part.len() / WORD)), canonical(words));
                    }
                }
            }
        }
    }
}
