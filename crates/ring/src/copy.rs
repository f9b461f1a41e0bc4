//! Bytes into shared memory and out of it, where the other side may store or
//! load the same words at the same moment. Nothing depends on such bytes: what
//! was overwritten meanwhile is thrown away, by the floor (`protocol`).
//!
//! x86-64 moves 16 bytes at a time, in assembly, which may race with whatever
//! it likes; elsewhere, words are loaded and stored one by one, relaxed. The
//! order towards the indices is the same: x86 keeps loads and stores in
//! program order, and assembly that touches memory is not moved by the
//! compiler across an atomic of the order needed.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Ahead of what is being copied out: the other core's lines are on their way
/// then, over the ends of pages as well, where processors stop by themselves.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 512;

/// From so many bytes on payloads are stored 16 bytes at a time. Shorter ones
/// gain nothing by it: 64 bytes went 12 % slower on a Zen 4.
const WIDE: usize = 128;

/// Stores a header and a payload, its last word filled up with zeros.
///
/// # Safety
/// `to` is aligned, and so many words from it on are mapped, and nothing but
/// shared words.
#[inline]
pub(crate) unsafe fn store(to: *const AtomicU64, header: [u64; 2], payload: &[u8]) {
    // SAFETY: as the caller promises; the parts follow each other and are as
    // long together as header and payload are.
    unsafe {
        let (mut to, mut rest) = (to, payload);
        if payload.len() >= WIDE {
            store_pair(to, header);
            to = to.add(2);
            let (lines, short) = payload.as_chunks::<64>();
            for line in lines {
                store_line(to, line);
                to = to.add(8);
            }
            rest = short;
        } else {
            (*to).store(header[0], Relaxed);
            (*to.add(1)).store(header[1], Relaxed);
            to = to.add(2);
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            (*to).store(u64::from_ne_bytes(*word), Relaxed);
            to = to.add(1);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            (*to).store(u64::from_ne_bytes(word), Relaxed);
        }
    }
}

/// Loads words.
///
/// # Safety
/// `from` is aligned, and as many words from it on are mapped, and nothing but
/// shared words.
#[inline]
pub(crate) unsafe fn load(from: *const AtomicU64, words: &mut [u64]) {
    let (lines, rest) = words.as_chunks_mut::<8>();
    // SAFETY: as the caller promises.
    unsafe {
        load_lines(from, lines);
        let from = from.add(lines.len() * 8);
        for (index, word) in rest.iter_mut().enumerate() {
            *word = (*from.add(index)).load(Relaxed);
        }
    }
}

/// # Safety
/// As [`store`], of two words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_pair(to: *const AtomicU64, pair: [u64; 2]) {
    use std::arch::x86_64::_mm_set_epi64x;
    // SAFETY: as the caller promises.
    unsafe {
        std::arch::asm!(
            "movups [{to}], {pair}",
            to = in(reg) to,
            pair = in(xmm_reg) _mm_set_epi64x(pair[1] as i64, pair[0] as i64),
            options(nostack, preserves_flags)
        );
    }
}

/// Half as many stores as by words, so that twice as many records wait in the
/// processor for lines that the other core still has. But loads of 8 bytes: a
/// record has mostly been put together a moment ago, by stores shorter than
/// that, and a load that spans several of them waits until they are in the
/// cache - behind all stores into the ring before them. A `memcpy` does.
///
/// # Safety
/// As [`store`], of eight words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_line(to: *const AtomicU64, line: &[u8; 64]) {
    use std::arch::x86_64::{__m128i, _mm_castpd_si128, _mm_castsi128_pd};
    use std::arch::x86_64::{_mm_loadh_pd, _mm_loadl_epi64};
    let two = |at: usize| -> __m128i {
        let from = line[at..at + 16].as_ptr();
        // SAFETY: both halves lie in the line; these loads need no alignment.
        unsafe {
            let low = _mm_castsi128_pd(_mm_loadl_epi64(from.cast()));
            _mm_castpd_si128(_mm_loadh_pd(low, from.add(8).cast()))
        }
    };
    // SAFETY: as the caller promises.
    unsafe {
        std::arch::asm!(
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            to = in(reg) to,
            a = in(xmm_reg) two(0),
            b = in(xmm_reg) two(16),
            c = in(xmm_reg) two(32),
            d = in(xmm_reg) two(48),
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As [`load`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn load_lines(from: *const AtomicU64, lines: &mut [[u64; 8]]) {
    if lines.is_empty() {
        return;
    }
    // SAFETY: as the caller promises; a prefetch of what is not mapped does
    // nothing.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetcht0 [{from} + {ahead}]",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {left}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) lines.as_mut_ptr() => _,
            left = inout(reg) lines.len() => _,
            ahead = const AHEAD,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// # Safety
/// As [`store`], of two words.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn store_pair(to: *const AtomicU64, pair: [u64; 2]) {
    for (index, word) in pair.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { (*to.add(index)).store(word, Relaxed) };
    }
}

/// # Safety
/// As [`store`], of eight words.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn store_line(to: *const AtomicU64, line: &[u8; 64]) {
    let (words, _) = line.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { (*to.add(index)).store(u64::from_ne_bytes(*word), Relaxed) };
    }
}

/// # Safety
/// As [`load`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn load_lines(from: *const AtomicU64, lines: &mut [[u64; 8]]) {
    for (index, word) in lines.as_flattened_mut().iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        *word = unsafe { (*from.add(index)).load(Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_place_comes_back_and_nothing_beside_it() {
        let bytes: Vec<u8> = (0..400_u32).map(|byte| (byte * 7 + 1) as u8).collect();
        for length in 0..300 {
            for place in 0..8 {
                let shared: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(u64::MAX)).collect();
                let payload = &bytes[place..place + length];
                let words = length.div_ceil(8);
                // SAFETY: 8 + 2 + 38 words are at most touched, of 64.
                let copied = unsafe {
                    store(shared[place..].as_ptr(), [1, 2], payload);
                    let mut copied = vec![0; 2 + words];
                    load(shared[place..].as_ptr(), &mut copied);
                    copied
                };
                assert_eq!(copied[..2], [1, 2]);
                let read: Vec<u8> = copied[2..].iter().flat_map(|w| w.to_ne_bytes()).collect();
                assert_eq!(&read[..length], payload, "{length} at {place}");
                assert!(read[length..].iter().all(|&byte| byte == 0));
                let beside = |word: &AtomicU64| word.load(Relaxed) == u64::MAX;
                assert!(shared[..place].iter().all(beside));
                assert!(shared[place + 2 + words..].iter().all(beside));
            }
        }
    }
}
