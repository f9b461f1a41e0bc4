//! The system calls, each in one safe function: locks, mapping, sealing,
//! futexes, membarrier, time. No policy here.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn lock_of(kind: libc::c_int, byte: u64) -> libc::flock {
    // SAFETY: all-zero is a valid `flock`; its padding matters to nobody.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Takes the lock on one byte for this open file description: the kernel
/// gives it back when the last process that has it open dies. False: taken.
pub(crate) fn lock(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = lock_of(libc::F_WRLCK, byte);
    // SAFETY: `lock` is a valid `flock` for the whole call.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) }) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Gives it back.
pub(crate) fn unlock(file: &File, byte: u64) {
    let mut lock = lock_of(libc::F_UNLCK, byte);
    // SAFETY: as in `lock`. It cannot fail for a lock that we hold.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
}

/// Whether anybody else holds it.
pub(crate) fn locked_by_other(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = lock_of(libc::F_WRLCK, byte);
    // SAFETY: as in `lock`.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Room in the file system now, so that a full one is an error here and not
/// a SIGBUS at some record.
pub(crate) fn allocate(file: &File, offset: u64, length: u64) -> io::Result<()> {
    loop {
        // SAFETY: no memory is passed.
        let result = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                0,
                offset as libc::off_t,
                length as libc::off_t,
            )
        };
        match check(result) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// A file in memory without a name.
pub(crate) fn memfd(name: &str, huge: bool) -> io::Result<File> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let huge = if huge {
        libc::MFD_HUGETLB | libc::MFD_HUGE_2MB
    } else {
        0
    };
    // SAFETY: `name` is a C string that lives through the call.
    let fd = check(unsafe {
        libc::memfd_create(
            name.as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge,
        )
    })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// From now on nobody can change its length.
pub(crate) fn seal_size(file: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SIZE_SEALS) }).map(drop)
}

pub(crate) fn is_sealed(file: &File) -> bool {
    // SAFETY: no memory is passed.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Another open file description of the same file, with locks of its own.
pub(crate) fn reopen(file: &File) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

pub(crate) fn own_uid() -> u32 {
    // SAFETY: cannot fail, touches no memory.
    unsafe { libc::geteuid() }
}

pub(crate) fn own_gid() -> u32 {
    // SAFETY: as above.
    unsafe { libc::getegid() }
}

/// Whether the file's pages are huge ones of hugetlbfs.
pub(crate) fn on_hugetlbfs(file: &File) -> bool {
    // SAFETY: all-zero is a valid `statfs`, written by the call.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &mut stat) == 0 && stat.f_type == libc::HUGETLBFS_MAGIC
    }
}

/// Wall clock of the last timer tick, nanoseconds since 1970. Some 5 ns: no
/// hardware counter is read.
#[inline]
pub(crate) fn coarse_time() -> u64 {
    time_of(libc::CLOCK_REALTIME_COARSE)
}

/// Nanoseconds of a coarse clock that nobody sets back: for intervals.
pub(crate) fn coarse_interval() -> u64 {
    time_of(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn time_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid `timespec`; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A futex word: the half of a 64-bit word that holds the low 32 bits.
fn futex_half(word: &std::sync::atomic::AtomicU64) -> *mut u32 {
    let half = usize::from(cfg!(target_endian = "big"));
    word.as_ptr().cast::<u32>().wrapping_add(half)
}

/// Sleeps while the word is `value`, not longer than `timeout`. Returns early
/// for signals.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU64, value: u32, timeout: Duration) {
    let timeout = timespec(timeout);
    // SAFETY: the address is that of a living atomic; the kernel reads it only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex_half(word),
            libc::FUTEX_WAIT,
            value,
            &timeout as *const libc::timespec,
        );
    }
}

pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU64) {
    // SAFETY: as above.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex_half(word),
            libc::FUTEX_WAKE,
            libc::c_int::MAX,
        );
    }
}

/// As many words as one call can wait for.
pub(crate) const WAITV_MAX: usize = 128;

#[repr(C)]
struct Waitv {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Sleeps until one of the words is not its value any more. False: this
/// kernel cannot (before 5.16).
pub(crate) fn futex_waitv(
    words: &[(&std::sync::atomic::AtomicU64, u32)],
    timeout: Duration,
) -> bool {
    const SIZE_U32: u32 = 2;
    let waiters: Vec<Waitv> = words
        .iter()
        .take(WAITV_MAX)
        .map(|(word, value)| Waitv {
            value: u64::from(*value),
            address: futex_half(word) as u64,
            flags: SIZE_U32,
            reserved: 0,
        })
        .collect();
    // The timeout is a point in time here, not a length.
    let now = Duration::from_nanos(time_of(libc::CLOCK_MONOTONIC));
    let until = timespec(now.saturating_add(timeout));
    // SAFETY: `waiters` holds that many entries in the kernel's layout, with
    // addresses of living atomics.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len() as libc::c_uint,
            0,
            &until as *const libc::timespec,
            libc::CLOCK_MONOTONIC,
        )
    };
    result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// This process may be fenced by others from now on. False: not here.
pub(crate) fn membarrier_register() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// A full fence on every running thread of every registered process.
pub(crate) fn membarrier_global() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
