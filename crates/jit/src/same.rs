//! Whether two compilations gave the same code: bytes are compared but for the addresses that each compilation has of its own.

use std::ops::Range;

/// Addresses in machine code that are another compilation's no more than its memory is: where calls leave the code, which is counted
/// from where the code lies, and what was allocated for this code alone.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Place of each distance in the code, and the address that is called.
    outward: Vec<(usize, usize)>,
    /// Memory that belongs to the code.
    ranges: Vec<Range<u64>>,
}

impl Own {
    pub fn new(outward: Vec<(usize, usize)>) -> Own {
        Own { outward, ranges: vec![] }
    }

    /// Code may refer to any byte of this.
    pub fn add<T>(&mut self, memory: &[T]) {
        let range = memory.as_ptr_range();
        self.ranges.push(range.start as u64..range.end as u64);
    }

    /// Whether code with these addresses is what the other code is with its own. Never so by mistake; where addresses are not whole words
    /// of the code, as on aarch64, code that has some may be called different.
    pub fn same(&self, code: &[u8], other: &Own, others: &[u8]) -> bool {
        self.outward == other.outward
            && self.ranges.len() == other.ranges.len()
            && self.bare(code) == other.bare(others)
    }

    /// The code with what is written for an address depending on nothing but what it is the address of.
    fn bare(&self, code: &[u8]) -> Vec<u8> {
        let mut bare = code.to_vec();
        for (at, _) in &self.outward {
            bare[*at..*at + 4].fill(0);
        }
        let mut at = 0;
        while let Some(word) = code.get(at..at + 8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let Some(which) = self.ranges.iter().position(|range| range.contains(&word)) else {
                at += 1;
                continue;
            };
            // No address in use has such upper bytes.
            let name = (0xff00 + which as u64) << 48 | (word - self.ranges[which].start);
            bare[at..at + 8].copy_from_slice(&name.to_le_bytes());
            at += 8;
        }
        bare
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov rax, address` and a call: the same wherever memory and code lie, and not where another byte of the memory is meant, or another
    /// function is called.
    #[test]
    fn addresses_count_by_what_they_are_of() {
        let memory = [[0u64; 4], [0; 4]];
        let compiled = |memory: &[u64], byte: u64, distance: u8, called: usize| {
            let mut own = Own::new(vec![(11, called)]);
            own.add(memory);
            let address = memory.as_ptr() as u64 + byte;
            ([&[0x48, 0xb8][..], &address.to_le_bytes(), &[0xe8, distance, 0, 0, 0]].concat(), own)
        };
        let same = |(a, of_a): &(Vec<u8>, Own), (b, of_b): &(Vec<u8>, Own)| of_a.same(a, of_b, b);
        let one = compiled(&memory[0], 8, 1, 77);
        assert!(same(&one, &one) && same(&one, &compiled(&memory[1], 8, 2, 77)));
        assert!(!same(&one, &compiled(&memory[1], 16, 1, 77)), "another place in the memory");
        assert!(!same(&one, &compiled(&memory[1], 8, 1, 78)), "another function");
        let mut other = compiled(&memory[1], 8, 1, 77);
        other.0[1] = 0xb9;
        assert!(!same(&one, &other), "another register");
        other.0[1] = 0xb8;
        other.0.push(0xc3);
        assert!(!same(&one, &other), "more code");
    }
}
