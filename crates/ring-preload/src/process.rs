//! Whose memory this is: the tables of this library belong to one process,
//! and a child may see them without having been told.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};

/// The process that the tables are for.
static PID: AtomicI32 = AtomicI32::new(0);
/// A word that the kernel sets to 0 in a child with memory of its own.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// From now on the tables are this process's.
pub(crate) fn note() {
    // SAFETY: takes nothing, cannot fail.
    PID.store(unsafe { libc::getpid() }, Release);
    if MARK.load(Relaxed).is_null() {
        MARK.store(page(), Relaxed);
    }
    if let Some(mark) = mark() {
        mark.store(1, Relaxed);
    }
}

/// Whether this is a child in which nobody called [`note`]: made by `_Fork`
/// or a bare `clone`, which run no fork handlers. One load.
#[inline]
pub(crate) fn is_new() -> bool {
    mark().is_some_and(|mark| mark.load(Relaxed) == 0)
}

/// Whether this is a child that runs in its parent's memory, between vfork
/// and exec: it has descriptors of its own, but the tables are the parent's.
pub(crate) fn is_borrowed() -> bool {
    // SAFETY: takes nothing, cannot fail.
    !is_new() && PID.load(Relaxed) != unsafe { libc::getpid() }
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page that is never unmapped.
    unsafe { MARK.load(Relaxed).as_ref() }
}

/// Null if the kernel cannot do that (before 4.14).
fn page() -> *mut AtomicU32 {
    const LENGTH: usize = 4096;
    // SAFETY: a new mapping of its own.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        if libc::madvise(page, LENGTH, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, LENGTH);
            return std::ptr::null_mut();
        }
        page.cast()
    }
}
