//! The Internet checksum (RFC 1071).

/// Ones' complement sum of 16-bit big-endian words, not yet folded; an odd last byte counts as the high half.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum();
    sum + rest.first().map_or(0, |b| u64::from(*b) << 8)
}

/// Folds a sum of 16-bit words to 16 bits with end-around carry.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum over several parts, each of which but the last must have an even length.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().map(|p| sum(p)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(&[&bytes]), !0xddf2);
        assert_eq!(internet_checksum(&[&bytes[..2], &bytes[2..]]), !0xddf2);
    }

    #[test]
    fn an_odd_byte_is_padded_with_zero() {
        assert_eq!(internet_checksum(&[&[0x12]]), internet_checksum(&[&[0x12, 0x00]]));
    }
}
