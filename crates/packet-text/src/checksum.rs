//! The Internet checksum (RFC 1071).

/// Ones' complement sum of the parts, folded and inverted. Each part but the last must have an even length.
pub fn internet(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        let (pairs, rest) = part.as_chunks::<2>();
        sum += pairs.iter().map(|p| u64::from(u16::from_be_bytes(*p))).sum::<u64>();
        if let [last] = rest {
            sum += u64::from(*last) << 8;
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn rfc_1071_section_3_example() {
        let sum = super::internet(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]);
        assert_eq!(!sum, 0xddf2);
        assert_eq!(super::internet(&[&[0, 1], &[0xff]]), !0xff01);
    }
}
