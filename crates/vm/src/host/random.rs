//! The generator behind `bpf_get_prandom_u32`.

use std::cell::Cell;

/// A generator of pseudo-random numbers with 64 bits of state (SplitMix64): good enough to spread load, not for secrets.
///
/// Generated code goes on from its state by itself ([`Random::state`]), so the state is all there is.
#[derive(Debug)]
#[repr(transparent)]
pub struct Random(Cell<u64>);

impl Random {
    /// What the state grows by for each number.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    /// What the state is mixed with: twice a shift to the right, exclusive-or and a product, then the last shift.
    pub const MIX: [(u32, u64); 2] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
    /// The last shift.
    pub const LAST: u32 = 31;

    /// A generator whose numbers follow from `seed`.
    pub const fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    /// The next number: the low half of what is mixed.
    pub fn next_u32(&self) -> u32 {
        let mut state = self.0.get();
        let out = splitmix(&mut state);
        self.0.set(state);
        out as u32
    }

    /// Where the state lies, for code that makes the numbers itself, on the thread that owns the generator.
    pub fn state(&self) -> *mut u64 {
        self.0.as_ptr()
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(super) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(Random::STEP);
    let mut z = *state;
    for (shift, factor) in Random::MIX {
        z = (z ^ (z >> shift)).wrapping_mul(factor);
    }
    z ^ (z >> Random::LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first ones of the public reference implementation for the seed 1234567.
        let mut state = 1_234_567;
        let first: [u64; 3] = std::array::from_fn(|_| splitmix(&mut state));
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let random = Random::new(1_234_567);
        assert_eq!([random.next_u32(), random.next_u32()], [first[0] as u32, first[1] as u32]);
    }
}
