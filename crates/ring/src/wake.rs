//! Readers' sleep. The writer pays for waking only while somebody sleeps: the
//! sleeper raises a flag, makes every running writer's stores visible with
//! membarrier, and looks again before it sleeps, so the writer needs no fence
//! between publishing and looking at the flag.

use std::time::{Duration, Instant};

use crate::protocol::{self, Memory};
use crate::reader::Reader;
use crate::sys;

/// Where a wake-up may be missed - no membarrier, or more segments than one
/// call can wait for - sleep is cut into pieces of this length.
const UNSURE: Duration = Duration::from_millis(1);

impl Reader {
    /// Sleeps until there is something to read, not longer than `timeout`.
    /// True if there is; false may come early, as when a writer closes.
    pub fn sleep(&mut self, timeout: Duration) -> bool {
        sleep(std::iter::once(self), timeout)
    }
}

/// Sleeps until one of the readers has something. True if one has.
pub(crate) fn sleep<'a>(readers: impl Iterator<Item = &'a mut Reader>, timeout: Duration) -> bool {
    let begun = Instant::now();
    let mut readers: Vec<&mut Reader> = readers.filter(|reader| !reader.is_bad()).collect();
    loop {
        for reader in &mut readers {
            reader.release_all();
        }
        let bells: Vec<u32> = readers
            .iter()
            .map(|reader| protocol::announce_sleep(reader.segment()))
            .collect();
        let mut sure = readers.is_empty() || (readers.len() <= sys::WAITV_MAX && fence(&readers));
        if readers.iter_mut().any(|reader| reader.has_records()) {
            return true;
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return false;
        }
        let piece = if sure { left } else { left.min(UNSURE) };
        match readers.as_mut_slice() {
            [] => std::thread::sleep(piece),
            [reader] => sys::futex_wait(reader.segment().bell(), bells[0], piece),
            several => {
                let words: Vec<_> = several
                    .iter()
                    .zip(&bells)
                    .map(|(reader, &bell)| (reader.segment().bell(), bell))
                    .collect();
                if !sys::futex_waitv(&words, piece) {
                    sure = false;
                    std::thread::sleep(piece.min(UNSURE));
                }
            }
        }
        if sure {
            return readers.iter_mut().any(|reader| reader.has_records());
        }
    }
}

/// Orders our flags before our second look, in the eyes of every writer.
/// False: some writer relies on membarrier, which we may not call.
fn fence(readers: &[&mut Reader]) -> bool {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    !readers
        .iter()
        .any(|reader| reader.segment().wants_membarrier())
        || sys::membarrier_global()
}
