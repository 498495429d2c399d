//! `bpf_csum_diff`: Internet checksums (RFC 1071) that can be updated.

use xway_abi::Errno;

use crate::call::Call;

/// Ones' complement sum of `bytes` in 32-bit words, added to `seed`. What begins a multiple of four bytes further on may be added to
/// the result.
pub fn partial(bytes: &[u8], seed: u32) -> u32 {
    // Four sums of whole blocks, so that the compiler adds them with vectors.
    let (blocks, rest) = bytes.as_chunks::<16>();
    let mut sums = [u64::from(seed), 0, 0, 0];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
            *sum += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum: u64 = sums.iter().sum();
    let (words, rest) = rest.as_chunks::<4>();
    for w in words {
        sum += u64::from(u32::from_ne_bytes(*w));
    }
    let mut tail = [0; 4];
    tail[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(tail));
    folded(sum)
}

/// A sum of words in 32 bits: a number of the same remainder by 2^32 - 1, zero only for zero.
pub fn folded(sum: u64) -> u32 {
    // Each folding adds the carries back in; two are enough for 2^32 words.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

/// Folds 32 bits to 16 with end-around carry.
fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u32::from(carry)
}

/// `bpf_csum_diff(from, from_size, to, to_size, seed)`: what the checksum changes by when `from` becomes `to`.
///
/// Any length will do, as on Linux since 6.13; before that it had to be a multiple of four.
pub(crate) fn csum_diff(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(diff(call.bytes(0), call.bytes(2), call.num(4) as u32))
}

/// The helper over bytes that are seen as slices.
pub fn diff(from: &[u8], to: &[u8], seed: u32) -> u64 {
    diff_by((from, from.is_empty()), (to, to.is_empty()), seed, partial)
}

/// The helper over two pieces of memory, each with whether it is empty; `sum` adds up the words of one and a number, as
/// [`partial`] does.
pub fn diff_by<M>((from, no_from): (M, bool), (to, no_to): (M, bool), seed: u32, sum: impl Fn(M, u32) -> u32) -> u64 {
    let sum = match (no_from, no_to) {
        (false, false) => add(sum(to, seed), !sum(from, 0)),
        (true, false) => sum(to, seed),
        (false, true) => !sum(from, !seed),
        (true, true) => seed,
    };
    fold(sum).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_word_is_padded_with_zero() {
        assert_eq!(diff(&[], &[1, 2, 3], 9), diff(&[], &[1, 2, 3, 0], 9));
        assert_eq!(diff(&[1, 2, 3, 4, 5], &[], 9), diff(&[1, 2, 3, 4, 5, 0, 0, 0], &[], 9));
    }

    #[test]
    fn a_difference_moves_one_sum_to_the_other() {
        let (a, b) = ([1u8, 2, 3, 4, 250, 251, 252, 253], [9u8, 8, 7, 6, 255, 255, 255, 255]);
        let sum_a = diff(&[], &a, 0) as u32;
        let sum_b = diff(&[], &b, 0) as u32;
        assert_eq!(diff(&a, &b, sum_a) as u32, sum_b);
    }

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        let sum = diff(&[], &bytes, 0) as u16;
        assert_eq!(u16::from_be(sum), 0xddf2);
    }
}
