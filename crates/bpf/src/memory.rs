//! A BPF map's memory as 64-bit words that this process and the kernel share.

use std::{
    os::fd::AsFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Context, Result};

/// The mapped value area of a `BPF_F_MMAPABLE` array.
pub(crate) struct Words {
    start: NonNull<AtomicU64>,
    len: usize,
    bytes: usize,
}

// SAFETY: all access goes through `AtomicU64`.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps `words` 64-bit words of the array behind `fd`.
    pub(crate) fn map(fd: impl AsFd, words: usize, what: &str) -> Result<Self> {
        let bytes = (words * 8).next_multiple_of(4096);
        // SAFETY: a fresh shared mapping at an address of the kernel's choice,
        // its pages present (else each would fault at its first insertion);
        // the kernel keeps the map alive as long as it is mapped.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                0,
            )
        }
        .context(|| format!("map the memory of {what}"))?;
        let start = NonNull::new(start.cast()).expect("mmap returns no null page");
        Ok(Self {
            start,
            len: words,
            bytes,
        })
    }

    /// The number of words in the mapping.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One word. Panics when `index` is out of range, as a slice does.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len);
        // SAFETY: inside the mapping (just checked), aligned to 8 (page start
        // plus a multiple of 8), valid until drop, and only accessed atomically.
        unsafe { self.start.add(index).as_ref() }
    }

    /// Begins to bring a word into the cache. Where there is an instruction
    /// for that, the processor does not wait for it, as it does for loads once
    /// its window of instructions is full of them.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let word: *const AtomicU64 = self.at(index);
            // SAFETY: a hint, which reads nothing; part of every x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(self.at(index).load(Ordering::Relaxed));
    }

    /// The value of one word.
    #[inline]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.at(index).load(Ordering::Acquire)
    }

    /// Sets one word.
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.at(index).store(value, Ordering::SeqCst);
    }

    /// Sets bits of one word, and leaves the others.
    pub(crate) fn set_bits(&self, index: usize, bits: u64) {
        self.at(index).fetch_or(bits, Ordering::SeqCst);
    }

    /// Clears bits of one word, and leaves the others.
    pub(crate) fn clear_bits(&self, index: usize, bits: u64) {
        self.at(index).fetch_and(!bits, Ordering::SeqCst);
    }

    /// Adds to one word, whoever else does meanwhile; beyond the last number it goes on at 0.
    pub(crate) fn add(&self, index: usize, more: u64) {
        self.at(index).fetch_add(more, Ordering::SeqCst);
    }

    /// Gives the bits of `mask` this value, and leaves the others, whoever writes
    /// those meanwhile.
    pub(crate) fn set_masked(&self, index: usize, mask: u64, value: u64) {
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        self.at(index)
            .fetch_update(set, get, |word| Some(word & !mask | value & mask))
            .expect("it always has a value");
    }

    /// Replaces `old` by `new`, or says that somebody else was there.
    #[inline]
    pub(crate) fn replace(&self, index: usize, old: u64, new: u64) -> bool {
        self.at(index)
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and no reference outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// Two writers of one word, as of `control.bloom_base` and `control.observe`, lose
    /// nothing.
    #[test]
    fn two_writers_of_one_word_lose_nothing() {
        let file = memfd_create("words", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 4096).expect("a page");
        let words = Words::map(&file, 1, "a test").expect("it maps");
        let (low, high) = (0xffff_ffff, !0xffff_ffff);
        std::thread::scope(|scope| {
            for (mask, shift) in [(low, 0), (high, 32)] {
                let words = &words;
                scope.spawn(move || {
                    for n in 1..=200_000_u64 {
                        words.set_masked(0, mask, n << shift);
                        assert_eq!(words.load(0) & mask, n << shift, "overwritten");
                    }
                });
            }
        });
        assert_eq!(words.load(0), 200_000 << 32 | 200_000);
    }
}
