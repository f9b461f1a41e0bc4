//! The functions that stand in for libc's.
//!
//! Each passes through to the real one unless a file named by the
//! environment is concerned. None unwinds, none waits, each leaves `errno`
//! as the real one left it.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, off64_t, size_t, ssize_t};

use crate::config::{self, Config};
use crate::{files, process, real, rings};

/// Closes nothing now.
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// `Some(None)`: read, and nothing is asked for.
static CONFIG: OnceLock<Option<Config>> = OnceLock::new();

fn config() -> Option<&'static Config> {
    CONFIG.get()?.as_ref()
}

/// Puts `errno` back when dropped.
struct Errno(c_int);

impl Errno {
    fn keep() -> Errno {
        // SAFETY: the address is this thread's own.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

fn set_errno(value: c_int) {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = value };
}

/// Runs when the library is loaded, before the program.
extern "C" fn start() {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    real::find_all();
    // SAFETY: set by libc before any constructor runs, never null.
    let program = unsafe { CStr::from_ptr(program_invocation_short_name) };
    let read = Config::read(|name| std::env::var_os(name), &program.to_string_lossy());
    let config = read.unwrap_or_else(|error| {
        real::tell(&format!("{error}; doing nothing"));
        None
    });
    if config.is_some() {
        process::note();
        // SAFETY: the handler is a function of this library, which is never
        // unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    let _ = CONFIG.set(config);
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Not at the child's first line: a server that forks as root and then lets
/// go of its privileges could not make a segment any more.
extern "C" fn after_fork() {
    let _errno = Errno::keep();
    process::note();
    files::after_fork();
    rings::after_fork();
    if let Some(config) = config().filter(|_| files::any()) {
        rings::prepare(config);
    }
}

/// Whether a file that is opened this way is to be diverted.
fn wanted(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    let Some(config) = config() else {
        return false;
    };
    if path.is_null() || flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_PATH != 0 {
        return false;
    }
    let _errno = Errno::keep();
    // SAFETY: not null, and a C string by open's contract.
    let path = unsafe { CStr::from_ptr(path) };
    std::panic::catch_unwind(|| {
        config::absolute(directory, path).is_some_and(|path| config.names(&path))
    })
    .unwrap_or(false)
}

/// Takes note of a descriptor that was just opened.
fn opened(descriptor: c_int, wanted: bool) -> c_int {
    if descriptor >= 0 && (wanted || files::of(descriptor).is_some()) {
        let _errno = Errno::keep();
        closing(descriptor);
        if process::is_borrowed() {
            return descriptor;
        }
        if let Some(config) = config().filter(|_| wanted && files::track(descriptor)) {
            rings::prepare(config);
        }
    }
    descriptor
}

/// Forgets a descriptor; what is left of its last line goes to the ring.
fn closing(descriptor: c_int) {
    if files::of(descriptor).is_none() {
        return;
    }
    let _errno = Errno::keep();
    // What a child closes between vfork and exec stays open in the parent.
    if process::is_borrowed() {
        return;
    }
    if let (Some(file), Some(config)) = (files::forget(descriptor), config()) {
        rings::finish(config, file);
        files::free(file);
    }
}

/// Takes note of a descriptor that was made from another.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        closing(new);
        if files::of(old).is_some() && !process::is_borrowed() {
            files::share(old, new);
        }
    }
    new
}

fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let wanted = wanted(directory, path, flags);
    // SAFETY: the caller's arguments, as they are.
    opened(
        unsafe { real::OPENAT.get()(directory, path, flags, mode) },
        wanted,
    )
}

fn open_here(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let wanted = wanted(libc::AT_FDCWD, path, flags);
    // SAFETY: the caller's arguments, as they are.
    opened(unsafe { real::OPEN.get()(path, flags, mode) }, wanted)
}

/// Writes to a ring, with `tee` to the file as well; returns the result for the caller of
/// write(2).
fn divert<'a>(
    descriptor: c_int,
    length: usize,
    parts: impl Iterator<Item = &'a [u8]>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let (Some(file), Some(config)) = (files::of(descriptor), config()) else {
        return real();
    };
    if config.tee {
        let written = real();
        let errno = Errno::keep();
        // Written in part, the rest will be written again. If not at all,
        // the file system is full, and the ring is not.
        let again = matches!(errno.0, libc::EINTR | libc::EAGAIN);
        let mut left = match usize::try_from(written) {
            Ok(written) => written,
            Err(_) if again => 0,
            Err(_) => length,
        };
        let parts = parts.map(|part| {
            let taken = left.min(part.len());
            left -= taken;
            &part[..taken]
        });
        rings::write(config, file, parts);
        return written;
    }
    let errno = Errno::keep();
    if rings::write(config, file, parts) {
        return length as ssize_t;
    }
    drop(errno);
    real()
}

fn write_to(descriptor: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's arguments, as they are.
    let real = || unsafe { real::WRITE.get()(descriptor, buffer, length) };
    if files::of(descriptor).is_none() || buffer.is_null() || length > isize::MAX as usize {
        return real();
    }
    // SAFETY: not null, and by write's contract so many bytes can be read.
    let text = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    divert(descriptor, length, std::iter::once(text), real)
}

fn writev_to(descriptor: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's arguments, as they are.
    let real = || unsafe { real::WRITEV.get()(descriptor, parts, count) };
    let countable = usize::try_from(count).ok().filter(|&count| count <= 1024);
    let (Some(_), Some(count), false) = (files::of(descriptor), countable, parts.is_null()) else {
        return real();
    };
    // SAFETY: not null, and by writev's contract so many parts.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let length: usize = parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.iov_len));
    if length > isize::MAX as usize {
        return real();
    }
    let parts = parts
        .iter()
        .filter(|part| !part.iov_base.is_null())
        // SAFETY: by writev's contract so many bytes can be read there.
        .map(|part| unsafe {
            std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
        });
    divert(descriptor, length, parts, real)
}

fn close_it(descriptor: c_int) -> c_int {
    if files::is_reserved(descriptor) {
        set_errno(libc::EBADF);
        return -1;
    }
    closing(descriptor);
    // SAFETY: the caller's argument, as it is.
    unsafe { real::CLOSE.get()(descriptor) }
}

/// Closes a range but for the segments' own descriptors: with theirs, the
/// lock would go by which readers know that the writer lives.
fn close_some(mut first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments, or a part of its range.
    let real = |first, last| unsafe { real::CLOSE_RANGE.get()(first, last, flags) };
    if first > last || flags & CLOSE_RANGE_CLOEXEC != 0 {
        return real(first, last);
    }
    for descriptor in files::between(first, last) {
        closing(descriptor);
        if files::is_reserved(descriptor) {
            let ours = descriptor as c_uint;
            if ours > first {
                let result = real(first, ours - 1);
                if result != 0 {
                    return result;
                }
            }
            first = ours + 1;
        }
    }
    if first > last { 0 } else { real(first, last) }
}

// ---- Streams ---------------------------------------------------------------
// libc's streams write with a function of libc's own that nobody can stand
// in for. So a named file's stream is one of fopencookie's, over ours.

#[repr(C)]
#[derive(Clone, Copy)]
struct CookieFunctions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

/// The cookie is the descriptor itself.
fn descriptor_in(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

extern "C" fn cookie_read(cookie: *mut c_void, buffer: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: stdio passes a buffer of so many bytes.
    unsafe { real::READ.get()(descriptor_in(cookie), buffer.cast(), length) }
}

/// Returns 0 for an error, never less: stdio asks for that.
extern "C" fn cookie_write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: stays within the buffer that stdio passed.
        let rest = unsafe { buffer.add(done) };
        match usize::try_from(write_to(descriptor_in(cookie), rest.cast(), length - done)) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done as ssize_t
}

extern "C" fn cookie_seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: stdio passes a valid offset to read and to set.
    unsafe {
        let at = libc::lseek64(descriptor_in(cookie), *offset, whence);
        if at < 0 {
            return -1;
        }
        *offset = at;
    }
    0
}

extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    close_it(descriptor_in(cookie))
}

/// A stream over a diverted descriptor. On failure it stays as it was.
fn stream_over(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE {
    let functions = CookieFunctions {
        read: cookie_read,
        write: cookie_write,
        seek: cookie_seek,
        close: cookie_close,
    };
    // SAFETY: the mode is the caller's C string; the functions never unwind.
    let stream = unsafe { fopencookie(descriptor as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        files::set_stream(descriptor, stream);
    }
    stream
}

/// The flags for `open` that a mode of `fopen` means. `None`: it only reads,
/// or asks for something that is stdio's own (`,ccs=`).
fn flags_of(mode: &CStr) -> Option<c_int> {
    let mode = mode.to_bytes();
    if mode.contains(&b',') {
        return None;
    }
    let both = mode.contains(&b'+');
    let begin = match (mode.first()?, both) {
        (b'a', _) => libc::O_CREAT | libc::O_APPEND,
        (b'w', _) => libc::O_CREAT | libc::O_TRUNC,
        (b'r', true) => 0,
        _ => return None,
    };
    let access = if both { libc::O_RDWR } else { libc::O_WRONLY };
    let once = if mode.contains(&b'x') {
        libc::O_EXCL
    } else {
        0
    };
    let exec = if mode.contains(&b'e') {
        libc::O_CLOEXEC
    } else {
        0
    };
    Some(begin | access | once | exec)
}

fn open_stream(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: by fopen's contract a C string, unless null.
    let flags = (!mode.is_null())
        .then(|| flags_of(unsafe { CStr::from_ptr(mode) }))
        .flatten()
        .filter(|&flags| wanted(libc::AT_FDCWD, path, flags));
    let Some(flags) = flags else {
        // SAFETY: the caller's arguments, as they are.
        return unsafe { real::FOPEN.get()(path, mode) };
    };
    let descriptor = open_here(path, flags, 0o666);
    if descriptor < 0 {
        return std::ptr::null_mut();
    }
    let stream = descriptor_stream(descriptor, mode);
    if stream.is_null() {
        let _errno = Errno::keep();
        close_it(descriptor);
    }
    stream
}

fn descriptor_stream(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE {
    if files::of(descriptor).is_some() && !mode.is_null() {
        return stream_over(descriptor, mode);
    }
    // SAFETY: the caller's arguments, as they are.
    unsafe { real::FDOPEN.get()(descriptor, mode) }
}

fn number_of(stream: *mut libc::FILE) -> c_int {
    match files::descriptor_of(stream) {
        Some(descriptor) => descriptor,
        // SAFETY: the caller's argument, as it is.
        None => unsafe { real::FILENO.get()(stream) },
    }
}

// ---- What the program calls ------------------------------------------------

/// The symbols. Not in the unit tests' own binary, which would call them.
#[cfg(not(test))]
mod exported {
    use super::*;

    macro_rules! exported {
        ($(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
            $(
                #[unsafe(no_mangle)]
                extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body
            )*
        };
    }

    // `mode` is optional in libc's declarations, and the registers of
    // variadic arguments are the same as of others on x86-64 and AArch64
    // Linux: read if it was not passed, it is not used.
    exported! {
        fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // Files of any size are 64-bit files here, without the flag.
            open_here(path, flags, mode)
        }
        fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_here(path, flags, mode)
        }
        fn __open_2(path: *const c_char, flags: c_int) -> c_int {
            open_here(path, flags, 0)
        }
        fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
            open_here(path, flags, 0)
        }
        fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_at(directory, path, flags, mode)
        }
        fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_at(directory, path, flags, mode)
        }
        fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
            open_at(directory, path, flags, 0)
        }
        fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
            open_at(directory, path, flags, 0)
        }
        fn creat(path: *const c_char, mode: mode_t) -> c_int {
            open_here(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
        }
        fn creat64(path: *const c_char, mode: mode_t) -> c_int {
            open_here(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
        }
        fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
            open_stream(path, mode)
        }
        fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
            open_stream(path, mode)
        }
        fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE {
            descriptor_stream(descriptor, mode)
        }
        fn fileno(stream: *mut libc::FILE) -> c_int {
            number_of(stream)
        }
        fn fileno_unlocked(stream: *mut libc::FILE) -> c_int {
            number_of(stream)
        }
        fn write(descriptor: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
            write_to(descriptor, buffer, length)
        }
        fn writev(descriptor: c_int, parts: *const iovec, count: c_int) -> ssize_t {
            writev_to(descriptor, parts, count)
        }
        fn close(descriptor: c_int) -> c_int {
            close_it(descriptor)
        }
        fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
            close_some(first, last, flags)
        }
        fn closefrom(first: c_int) {
            if close_some(first.max(0) as c_uint, c_uint::MAX, 0) != 0 {
                // A kernel without close_range: the real one knows another way.
                // SAFETY: the caller's argument, as it is.
                unsafe { real::CLOSEFROM.get()(first) }
            }
        }
        fn dup(old: c_int) -> c_int {
            // SAFETY: the caller's argument, as it is.
            duplicated(old, unsafe { real::DUP.get()(old) })
        }
        fn dup2(old: c_int, new: c_int) -> c_int {
            // SAFETY: the caller's arguments, as they are.
            duplicated(old, unsafe { real::DUP2.get()(old, new) })
        }
        fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments, as they are.
            duplicated(old, unsafe { real::DUP3.get()(old, new, flags) })
        }
        fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> c_int {
            control(descriptor, command, argument)
        }
        fn fcntl64(descriptor: c_int, command: c_int, argument: usize) -> c_int {
            control(descriptor, command, argument)
        }
    }

    fn control(descriptor: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the caller's arguments, as they are.
        let result = unsafe { real::FCNTL.get()(descriptor, command, argument) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(descriptor, result),
            _ => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_streams_are_the_flags_of_open() {
        let write = libc::O_WRONLY | libc::O_CREAT;
        for (mode, flags) in [
            (c"a", Some(write | libc::O_APPEND)),
            (c"w", Some(write | libc::O_TRUNC)),
            (
                c"wxe",
                Some(write | libc::O_TRUNC | libc::O_EXCL | libc::O_CLOEXEC),
            ),
            (c"ab+", Some(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND)),
            (c"r+", Some(libc::O_RDWR)),
            (c"r", None),
            (c"re", None),
            (c"w,ccs=UTF-8", None),
            (c"", None),
        ] {
            assert_eq!(flags_of(mode), flags, "{mode:?}");
        }
    }
}
