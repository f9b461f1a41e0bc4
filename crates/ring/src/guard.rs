//! What happens when somebody cuts a mapped file short: touching the missing
//! pages is SIGBUS, which would end the process. A file that is sealed cannot
//! be cut; for the others, this handler puts zero pages in their place and
//! notes it, and the segment is marked bad at the next look. SIGBUS from
//! anywhere else goes to whoever handled it before.
//!
//! [`set_enabled`] turns it off for a program that handles SIGBUS itself.

use std::sync::Once;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// Mappings guarded at the same time. More are mapped without.
const PLACES: usize = 1024;

struct Place {
    start: AtomicUsize,
    length: AtomicUsize,
    hit: AtomicBool,
    taken: AtomicBool,
}

static TABLE: [Place; PLACES] = [const {
    Place {
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
    place: Option<&'static Place>,
}

impl Guard {
    /// For a mapping that nobody can cut.
    pub(crate) fn none() -> Guard {
        Guard { place: None }
    }

    pub(crate) fn new(start: usize, length: usize) -> Guard {
        if !ENABLED.load(Relaxed) {
            return Guard::none();
        }
        INSTALL.call_once(install);
        let place = TABLE.iter().find(|place| !place.taken.swap(true, AcqRel));
        if let Some(place) = place {
            place.hit.store(false, Relaxed);
            place.start.store(start, Relaxed);
            place.length.store(length, Release);
        }
        Guard { place }
    }

    /// Whether pages were missing.
    pub(crate) fn hit(&self) -> bool {
        self.place.is_some_and(|place| place.hit.load(Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.length.store(0, Release);
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
        let length = place.length.load(Acquire);
        let start = place.start.load(Relaxed);
        if length == 0 || address.wrapping_sub(start) >= length {
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

/// Not ours: as if we were not here.
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
