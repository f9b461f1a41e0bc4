//! What happens when somebody cuts a mapped file short: touching the missing
//! pages is SIGBUS, which would end the process. A file that is sealed cannot
//! be cut; for the others, this handler puts zero pages in their place and
//! notes it, and the segment is marked bad at the next look. SIGBUS from
//! anywhere else goes to whoever handled it before.
//!
//! [`set_enabled`] turns it off for a program that handles SIGBUS itself.

use std::sync::Once;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};

use crate::error::{Error, ErrorKind, Result};

/// Mappings guarded at the same time, some rings with all the segments that a
/// set may have. One more is refused: it could end the process.
const PLACES: usize = 8192;

/// The handler may look at a place while another thread hands it on: `version`
/// is odd meanwhile, and a range counts only if it was the same, and even,
/// before and after it was read.
struct GuardSlot {
    version: AtomicUsize,
    start: AtomicUsize,
    length: AtomicUsize,
    hit: AtomicBool,
    taken: AtomicBool,
}

impl GuardSlot {
    /// By the one who has taken it.
    fn set(&self, start: usize, length: usize) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        self.start.store(start, Relaxed);
        self.length.store(length, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Start and length, if they belong together. The range of a thread that is
    /// using it does not change, so that thread's handler always gets it.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Acquire);
        let (start, length) = (self.start.load(Relaxed), self.length.load(Relaxed));
        fence(Acquire);
        let same = self.version.load(Relaxed) == before && before.is_multiple_of(2);
        (same && length > 0).then_some((start, length))
    }
}

static TABLE: [GuardSlot; PLACES] = [const {
    GuardSlot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
        taken: AtomicBool::new(false),
    }
}; PLACES];

static ENABLED: AtomicBool = AtomicBool::new(true);
static INSTALL: Once = Once::new();
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Whether segments opened from now on are guarded by a SIGBUS handler (they
/// are unless this says no). For programs with a handler of their own.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Relaxed);
}

/// A guarded range, until dropped.
pub(crate) struct Guard {
    place: Option<&'static GuardSlot>,
}

impl Guard {
    /// For a mapping that nobody can cut.
    pub(crate) fn none() -> Guard {
        Guard { place: None }
    }

    pub(crate) fn new(start: usize, length: usize) -> Result<Guard> {
        if !ENABLED.load(Relaxed) {
            return Ok(Guard::none());
        }
        INSTALL.call_once(install);
        let free =
            |place: &&GuardSlot| !place.taken.load(Relaxed) && !place.taken.swap(true, AcqRel);
        let Some(place) = TABLE.iter().find(free) else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "this process has {PLACES} segments mapped: no more are guarded against being cut short"
                ),
            ));
        };
        place.hit.store(false, Relaxed);
        place.set(start, length);
        Ok(Guard { place: Some(place) })
    }

    /// Whether pages were missing.
    pub(crate) fn hit(&self) -> bool {
        self.place.is_some_and(|place| place.hit.load(Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.set(0, 0);
            place.taken.store(false, Release);
        }
    }
}

fn install() {
    // SAFETY: all-zero is a valid `sigaction`; the handler below calls only
    // async-signal-safe functions. The old action is leaked on purpose: the
    // handler may need it until the process ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut old);
        PREVIOUS.store(Box::into_raw(Box::new(old)), Release);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo` to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in &TABLE {
        let Some((start, length)) = place.range() else {
            continue;
        };
        if address.wrapping_sub(start) >= length {
            continue;
        }
        // SAFETY: replaces a mapping that is ours, whose file is gone from
        // under it, by zero pages; mmap is a plain system call. errno is
        // what the interrupted code may be looking at.
        unsafe {
            let errno = *libc::__errno_location();
            let pages = libc::mmap(
                start as *mut libc::c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            );
            *libc::__errno_location() = errno;
            if pages == libc::MAP_FAILED {
                break;
            }
        }
        place.hit.store(true, Release);
        return;
    }
    pass_on(signal, info, context);
}

/// Passes a fault that is not ours on to the handler before.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.load(Acquire);
    // SAFETY: `previous` is null or was leaked by `install`; its handler has
    // the signature that its flags state. Restoring the default and returning
    // repeats the faulting access, which then ends the process as it should.
    unsafe {
        let handler = if previous.is_null() {
            libc::SIG_DFL
        } else {
            (*previous).sa_sigaction
        };
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
        } else if (*previous).sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 13, 25: a length of one range with the start of another would have
    /// the handler wipe what is none of it.
    #[test]
    fn a_range_is_never_read_torn() {
        static PLACE: GuardSlot = GuardSlot {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            hit: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..200_000 {
                    PLACE.set(n, n * 3);
                }
                done.store(true, Release);
            });
            let mut seen = 0;
            while !done.load(Acquire) {
                if let Some((start, length)) = PLACE.range() {
                    assert_eq!(length, start * 3);
                    seen += 1;
                }
            }
            println!("{seen} ranges seen");
        });
        assert_eq!(PLACE.range(), Some((199_999, 599_997)));
    }

    #[test]
    fn what_cannot_be_guarded_is_refused() {
        let mut guards: Vec<_> = (1..)
            .map_while(|n| Guard::new(n << 20, 4096).ok())
            .collect();
        assert!(guards.len() > 4 * 1024, "{}", guards.len());
        let refused = Guard::new(1, 1).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        guards.pop();
        assert!(Guard::new(1, 1).is_ok());
    }
}
