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

#[cfg(target_arch = "x86_64")]
use crate::layout::RECORD_HEADER;

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Bytes ahead of what is being copied out: the other core's lines are on their
/// way then, over the ends of pages as well, where processors stop by
/// themselves. 512 had been enough on a Zen 4; with 2048, records of 128 bytes
/// went 24 % faster on an Intel server processor with a mesh.
#[cfg(target_arch = "x86_64")]
const LOAD_AHEAD: usize = 2048;

/// Bytes ahead of what is being stored: the line is asked for as our own while
/// the records before it are written. Stores become visible in order, so that
/// one which has to fetch its line from the reader's core holds up all behind
/// it. On that processor, records of 64 bytes went 20 % faster, of 128 12 %.
#[cfg(target_arch = "x86_64")]
const STORE_AHEAD: usize = 768;

/// From so many bytes on the processor sees by itself where stores go, and
/// asking for lines only takes its time: at 512 bytes, 5 % of the rate.
#[cfg(target_arch = "x86_64")]
const STREAM: usize = 256;

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
        fetch_for_store(to, payload.len());
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

/// Asks for the lines that begin [`STORE_AHEAD`] of a record, as many as the
/// record reaches into: each line once.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch_for_store(to: *const AtomicU64, length: usize) {
    if length >= STREAM {
        return;
    }
    let begin = to.addr() + STORE_AHEAD;
    let end = begin + RECORD_HEADER as usize + length;
    let mut line = begin.next_multiple_of(LINE);
    while line < end {
        // SAFETY: it changes no memory; of what is not mapped it fetches
        // nothing, and processors that lack it do nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        line += LINE;
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

/// Fetches ahead, but never beyond what is copied: those lines are the writer's,
/// which is about to store into them.
///
/// # Safety
/// As [`load`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn load_lines(from: *const AtomicU64, lines: &mut [[u64; 8]]) {
    let near = lines.len().saturating_sub(LOAD_AHEAD / LINE);
    let (first, last) = lines.split_at_mut(near);
    // SAFETY: as the caller promises; `last` begins where `first` ends.
    unsafe {
        for line in 0..last.len() {
            std::arch::asm!(
                "prefetcht0 [{}]",
                in(reg) from.add(line * 8),
                options(nostack, preserves_flags)
            );
        }
        for (index, line) in first.iter_mut().enumerate() {
            let from = from.add(index * 8);
            std::arch::asm!(
                "prefetcht0 [{} + {ahead}]",
                in(reg) from,
                ahead = const LOAD_AHEAD,
                options(nostack, preserves_flags)
            );
            load_line(from, line);
        }
        let from = from.add(first.len() * 8);
        for (index, line) in last.iter_mut().enumerate() {
            load_line(from.add(index * 8), line);
        }
    }
}

/// # Safety
/// As [`load`], of eight words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load_line(from: *const AtomicU64, line: &mut [u64; 8]) {
    // SAFETY: as the caller promises.
    unsafe {
        std::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) line,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// Nothing measured speaks for it on other processors.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch_for_store(_: *const AtomicU64, _: usize) {}

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
