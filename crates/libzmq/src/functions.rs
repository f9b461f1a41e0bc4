//! The functions of libzmq that are called, by their names in the library.

use std::{
    ffi::{c_char, c_int, c_long, c_short, c_void},
    fmt,
    sync::Mutex,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The library's name for the dynamic linker: interface version 5, which is
/// that of all releases since 4.0.
pub const SONAME: &str = "libzmq.so.5";

/// Where the library is found, as the message about a missing one has it.
const PACKAGES: &str =
    "install libzmq (package libzmq5 on Debian, Ubuntu and openSUSE, zeromq on Fedora and Arch)";

/// Why libzmq cannot be used, in the dynamic linker's words, and what to do.
#[derive(Debug)]
pub struct LoadError(libloading::Error);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            libloading::Error::DlOpen { source } | libloading::Error::DlSym { source } => {
                write!(f, "{source}; {PACKAGES}")
            }
            other => write!(f, "{other}; {PACKAGES}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// `zmq_pollitem_t`.
#[repr(C)]
pub(crate) struct PollItem {
    pub socket: *mut c_void,
    pub fd: c_int,
    pub events: c_short,
    pub revents: c_short,
}

/// Declares the functions with their types in `zmq.h`, and how they are found.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of a libzmq that was opened at run time.
        pub struct Libzmq {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Libzmq {
            /// # Safety
            /// `library` is a libzmq and stays open for good.
            unsafe fn found_in(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: these are the functions' types in zmq.h, and they
                    // may be called at any time, as the library stays open.
                    $($name: unsafe { *library.get(stringify!($name))? },)*
                })
            }
        }
    };
}

functions! {
    zmq_ctx_new: fn() -> *mut c_void;
    zmq_ctx_term: fn(*mut c_void) -> c_int;
    zmq_socket: fn(*mut c_void, c_int) -> *mut c_void;
    zmq_close: fn(*mut c_void) -> c_int;
    zmq_setsockopt: fn(*mut c_void, c_int, *const c_void, usize) -> c_int;
    zmq_getsockopt: fn(*mut c_void, c_int, *mut c_void, *mut usize) -> c_int;
    zmq_bind: fn(*mut c_void, *const c_char) -> c_int;
    zmq_connect: fn(*mut c_void, *const c_char) -> c_int;
    zmq_send: fn(*mut c_void, *const c_void, usize, c_int) -> c_int;
    zmq_recv: fn(*mut c_void, *mut c_void, usize, c_int) -> c_int;
    zmq_poll: fn(*mut PollItem, c_int, c_long) -> c_int;
    zmq_errno: fn() -> c_int;
    zmq_strerror: fn(c_int) -> *const c_char;
    zmq_has: fn(*const c_char) -> c_int;
    zmq_curve_keypair: fn(*mut c_char, *mut c_char) -> c_int;
}

/// Never closed: libzmq has threads of its own while a socket is open.
static OPENED: Mutex<Option<&'static Libzmq>> = Mutex::new(None);

impl Libzmq {
    /// The system's libzmq. A failure is not remembered: a package that is
    /// installed meanwhile is found.
    pub fn get() -> Result<&'static Self, LoadError> {
        let mut opened = OPENED.lock().expect("no holder of this lock panics");
        if let Some(library) = *opened {
            return Ok(library);
        }
        let library: &'static Self = Box::leak(Box::new(Self::open(SONAME)?));
        *opened = Some(library);
        Ok(library)
    }

    /// Opens a libzmq of this name.
    fn open(name: &str) -> Result<Self, LoadError> {
        // SAFETY: as with every shared library of the system: it is found where
        // the dynamic linker looks, and libzmq has no constructors with effects.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(LoadError)?;
        // SAFETY: the name is libzmq's; it is never closed (below).
        let functions = unsafe { Self::found_in(&library) }.map_err(LoadError)?;
        std::mem::forget(library);
        Ok(functions)
    }

    /// Whether the library is built with CURVE.
    pub fn has_curve(&self) -> bool {
        // SAFETY: a string with its end.
        unsafe { (self.zmq_has)(c"curve".as_ptr()) == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error = Libzmq::open("libzmq.so.none").err().unwrap().to_string();
        assert!(error.contains("libzmq.so.none"), "{error}");
        assert!(error.contains("No such file"), "{error}");
        assert!(error.contains("package libzmq5 on Debian"), "{error}");
    }

    #[test]
    fn a_library_that_is_another_one_is_refused() {
        let error = Libzmq::open("libc.so.6").err().unwrap().to_string();
        assert!(error.contains("zmq_ctx_new"), "{error}");
    }
}
