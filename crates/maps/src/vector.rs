//! Comparing the tags of a bucket all at once.
#![allow(unsafe_code)]
// Why unsafe: the compiler asks for a promise that the machine has SSE2, which every x86-64 has.

/// The bytes that are `tag`, as bits: 0 to 7 of `low`, 8 to 15 of `high`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn equal_bytes(low: u64, high: u64, tag: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of the x86-64 baseline; the operations work on values and touch no memory.
    unsafe {
        let line = _mm_set_epi64x(high as i64, low as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(line, _mm_set1_epi8(tag as i8))) as u32
    }
}

/// The same with plain words.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(crate) fn equal_bytes(low: u64, high: u64, tag: u8) -> u32 {
    equal_in_word(low, tag) | equal_in_word(high, tag) << 8
}

/// The bytes of one word that are `tag`.
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
fn equal_in_word(word: u64, tag: u8) -> u32 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let differ = word ^ (LOW * u64::from(tag));
    // Exact for every byte: adding 0x7f to seven bits never carries into the next byte.
    let zero = !(((differ & !HIGH) + !HIGH) | differ) & HIGH;
    // The top bits of the bytes, gathered.
    ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_with_and_without_vectors() {
        let words = [0, u64::MAX, 0x0101_0101_0101_0101, !0x7f, 0x0100_ff80_7f01_0001, 0x8081_0102_0000_0100];
        for &a in &words {
            for &b in &words {
                for tag in [0, 1, 2, 0x7f, 0x80, 0x81, 0xff] {
                    let bytes = a.to_le_bytes().into_iter().chain(b.to_le_bytes());
                    let expected = bytes.enumerate().filter(|(_, byte)| *byte == tag).map(|(at, _)| 1 << at).sum();
                    assert_eq!(equal_bytes(a, b, tag), expected);
                    assert_eq!(equal_in_word(a, tag) | equal_in_word(b, tag) << 8, expected);
                }
            }
        }
    }
}
