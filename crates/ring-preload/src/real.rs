//! The functions of libc that ours stand in for, found behind us.

use std::ffi::CStr;
use std::mem::transmute_copy;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, size_t, ssize_t};

/// A function of libc: its address is looked up once, at the latest when it is first
/// called.
pub(crate) struct Real<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: std::marker::PhantomData<F>,
}

// SAFETY: the address is atomic, and function pointers are free to share.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    /// # Safety
    ///
    /// `F` must be the function pointer type of libc's `name`.
    const unsafe fn new(name: &'static CStr) -> Real<F> {
        Real {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
            kind: std::marker::PhantomData,
        }
    }

    /// The function. Without it there is no way on: the process is linked
    /// against a libc that is not there.
    #[inline]
    pub(crate) fn get(&self) -> F {
        let mut address = self.address.load(Relaxed);
        if address.is_null() {
            // SAFETY: `name` is a C string.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if address.is_null() {
                // SAFETY: takes nothing, does not return.
                unsafe { libc::abort() };
            }
            self.address.store(address, Relaxed);
        }
        // SAFETY: by the promise given to `new`; both are one pointer wide.
        unsafe { transmute_copy(&address) }
    }
}

macro_rules! real {
    ($($name:ident: $kind:ty = $symbol:literal;)*) => {
        $(
            // SAFETY: the signature is that of the manual page. Arguments
            // that are optional there are passed always: in the calling
            // conventions of x86-64 and AArch64 Linux that is the same.
            pub(crate) static $name: Real<$kind> = unsafe { Real::new($symbol) };
        )*

        /// Looks all of them up. When the program runs, it may be a signal
        /// handler that calls one first, and must not look for it.
        pub(crate) fn find_all() {
            $( $name.get(); )*
        }
    };
}

type Open = unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, mode_t) -> c_int;

real! {
    OPEN: Open = c"open64";
    OPENAT: OpenAt = c"openat64";
    FOPEN: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE = c"fopen64";
    FDOPEN: unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE = c"fdopen";
    FILENO: unsafe extern "C" fn(*mut libc::FILE) -> c_int = c"fileno";
    READ: unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t = c"read";
    WRITE: unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t = c"write";
    WRITEV: unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t = c"writev";
    CLOSE: unsafe extern "C" fn(c_int) -> c_int = c"close";
    CLOSE_RANGE: unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int = c"close_range";
    CLOSEFROM: unsafe extern "C" fn(c_int) = c"closefrom";
    DUP: unsafe extern "C" fn(c_int) -> c_int = c"dup";
    DUP2: unsafe extern "C" fn(c_int, c_int) -> c_int = c"dup2";
    DUP3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int = c"dup3";
    FCNTL: unsafe extern "C" fn(c_int, c_int, usize) -> c_int = c"fcntl64";
}

/// Prints one line on standard error.
pub(crate) fn tell(what: &str) {
    let line = format!("weir-ring-preload: {what}\n");
    // SAFETY: the buffer lives through the call.
    unsafe { WRITE.get()(2, line.as_ptr().cast(), line.len()) };
}
