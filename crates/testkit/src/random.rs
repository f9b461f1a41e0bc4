//! Numbers that only look random: a run that fails is repeated by its seed.

/// xorshift64*: the same numbers for the same seed, which is not zero.
pub struct Random(pub u64);

impl Random {
    /// A number of 56 bits.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// A number below this one.
    pub fn below(&mut self, most: usize) -> usize {
        (self.number() % most as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Fills a buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(4) {
            let word = self.number().to_ne_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }
}
