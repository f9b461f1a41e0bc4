//! Which file a process has mapped, and who can write to it: of a file of an overlay the one in
//! the layer below, of which the overlay's own file tells nothing.

use std::{
    fmt,
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    thread,
    time::Duration,
};

use libbpf_rs::{
    ErrorKind, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{
    error::{Error, Result},
    prog_test_run,
    skeleton::writers::{OpenWritersSkel, WritersSkelBuilder, types::ident_writers},
};

/// A page, as long as the least part of a file that is mapped.
const PAGE: usize = 4096;
/// So often it is tried to look at an address space that somebody changes, and waited between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_micros(50);

/// A file that is mapped, as the kernel knows it: not that of an overlay, but the one in the
/// layer below.
#[derive(Debug, PartialEq, Eq)]
pub struct MappedFile {
    inode: u64,
    /// Somebody has it open to write, or mapped so that it can be written.
    pub is_written: bool,
    /// What its file system is, as statfs(2) has it (linux/magic.h).
    pub magic: u32,
    /// The device of that, as stat(2) has it.
    pub device: u64,
}

/// The programs that ask.
#[derive(Debug)]
pub struct Writers {
    own: OwnedFd,
    pinned: OwnedFd,
    /// None: this kernel cannot tell what others have mapped.
    other: Option<OwnedFd>,
}

/// Why the programs that ask are not there.
#[derive(Debug)]
pub struct NotLoaded {
    /// The kernel lacks memory or descriptors for them, and not what they need. Else it is older
    /// than Linux 5.17, or this process may not.
    pub is_for_now: bool,
    error: Error,
}

impl NotLoaded {
    fn of(error: libbpf_rs::Error) -> Self {
        // What the kernel lacks has many numbers, and one of them is that of no more descriptors:
        // that is seen by opening something.
        let is_for_now = match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::WouldBlock | ErrorKind::Interrupted => true,
            ErrorKind::Other => File::open("/dev/null").is_err(),
            _ => false,
        };
        Self {
            is_for_now,
            error: Error::bpf("load the program that asks who writes to a file", error),
        }
    }
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(out)
    }
}

impl std::error::Error for NotLoaded {}

/// The first page of a file, which nobody reads, to be asked about.
#[derive(Debug)]
pub struct OwnMapping(NonNull<std::ffi::c_void>);

impl OwnMapping {
    /// Maps it; the file is open for reading.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice, which nobody
        // reads or writes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }?;
        Ok(Self(
            NonNull::new(start).expect("mmap returns no null page"),
        ))
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `of`, which nobody else knows.
        let _ = unsafe { munmap(self.0.as_ptr(), PAGE) };
    }
}

impl MappedFile {
    fn of(seen: &ident_writers) -> Self {
        Self {
            inode: seen.inode,
            is_written: seen.writers > 0 || seen.shared > 0,
            magic: seen.magic,
            device: rustix::fs::makedev(seen.device >> 20, seen.device & 0xf_ffff),
        }
    }
}

impl Writers {
    /// Loads the programs.
    ///
    /// # Errors
    /// See [`NotLoaded`].
    pub fn load() -> std::result::Result<Self, NotLoaded> {
        // Whether such a program may ask about other processes no file of the kernel's says:
        // it is tried, and nobody is to read in the log of what libbpf has to say of that.
        let print = libbpf_rs::set_print(None);
        // What fails for a moment is to be tried again with all of them.
        let loaded = Self::load_with(true).or_else(|error| match error.is_for_now {
            true => Err(error),
            false => Self::load_with(false),
        });
        libbpf_rs::set_print(print);
        loaded
    }

    fn load_with(other: bool) -> std::result::Result<Self, NotLoaded> {
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let open = WritersSkelBuilder::default().open(&mut storage);
        let mut open: OpenWritersSkel<'_> = open.map_err(NotLoaded::of)?;
        open.progs.weir_app_mapped.set_autoload(other);
        let skel = open.load().map_err(NotLoaded::of)?;
        let keep = |fd: BorrowedFd<'_>| {
            let kept = fd.try_clone_to_owned();
            kept.map_err(|error| NotLoaded::of(error.into()))
        };
        Ok(Self {
            own: keep(skel.progs.weir_app_writers.as_fd())?,
            pinned: keep(skel.progs.weir_app_pinned.as_fd())?,
            other: match other {
                true => Some(keep(skel.progs.weir_app_mapped.as_fd())?),
                false => None,
            },
        })
    }

    /// Which file this process has mapped there. Who asks holds the mapping, so that no other
    /// file becomes what it is compared with. `None`: the kernel does not say.
    ///
    /// # Errors
    /// The kernel refuses to run the program that asks.
    pub fn own(&self, mapping: &OwnMapping) -> Result<Option<MappedFile>> {
        let address = mapping.0.as_ptr() as u64;
        let seen = ask(self.own.as_fd(), 0, address)?;
        Ok(seen.map(|seen| MappedFile::of(&seen)))
    }

    /// May somebody write to pages of that file by a mapping, or past any, as by a buffer he has
    /// registered (io_uring(7)) or that another system call of his has pinned? Also where there
    /// are more pages than are gone through. Before Linux 6.4 not all who do so are seen. `None`:
    /// the kernel does not say.
    ///
    /// # Errors
    /// The kernel refuses to run the program that asks.
    pub fn may_be_pinned(&self, mapping: &OwnMapping) -> Result<Option<bool>> {
        let address = mapping.0.as_ptr() as u64;
        let seen = ask(self.pinned.as_fd(), 0, address)?;
        Ok(seen.map(|seen| seen.pinned != 0 || seen.shared > 0))
    }

    /// Has this thread's process mapped that file at this address? `None`: the kernel does not
    /// say.
    ///
    /// # Errors
    /// The kernel refuses to run the program that asks.
    pub fn has_mapped(&self, thread: u32, address: u64, file: &MappedFile) -> Result<Option<bool>> {
        let Some(other) = &self.other else {
            return Ok(None);
        };
        let seen = ask(other.as_fd(), thread, address)?;
        Ok(seen.map(|seen| seen.inode == file.inode))
    }

    /// Can it be asked what other processes have mapped?
    pub fn sees_others(&self) -> bool {
        self.other.is_some()
    }
}

fn ask(program: BorrowedFd<'_>, thread: u32, address: u64) -> Result<Option<ident_writers>> {
    for _ in 0..TRIES {
        let mut question = ident_writers {
            address,
            thread,
            ..ident_writers::default()
        };
        prog_test_run::syscall(program, &mut question)?;
        match question.found {
            1 => return Ok(Some(question)),
            2 => break,
            _ => thread::sleep(PAUSE),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, process::Command};

    use super::*;

    /// Maps a page of a file so that it can be written, which nobody does.
    fn map_shared(file: &File, page: usize) -> *mut std::ffi::c_void {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let shared = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                (page * PAGE) as u64,
            )
        };
        shared.unwrap()
    }

    /// A kernel that cannot is not asked again and again, and one that can is waited for.
    #[test]
    fn what_fails_for_a_moment_is_told_from_what_the_kernel_lacks() {
        for (number, is_for_now) in [
            (libc::ENOMEM, true),
            (libc::EAGAIN, true),
            (libc::EINVAL, false),
            (libc::EACCES, false),
            (libc::EPERM, false),
            (libc::E2BIG, false),
            (libc::ESRCH, false),
        ] {
            let error = libbpf_rs::Error::from_raw_os_error(number);
            let why = NotLoaded::of(error);
            assert_eq!(why.is_for_now, is_for_now, "{number}: {why}");
        }
    }

    #[test]
    fn root_who_writes_to_a_mapped_file_is_seen() {
        let writers = Writers::load().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [7; 5000]).unwrap();
        let file = File::open(&path).unwrap();
        let mapping = OwnMapping::of(&file).unwrap();
        let seen = |mapping| writers.own(mapping).unwrap().unwrap();
        // A child that another test starts holds a copy of each descriptor until it calls exec.
        let soon = |is_written| {
            (0..1000).any(|_| {
                let is = seen(&mapping).is_written == is_written;
                if !is {
                    thread::sleep(Duration::from_millis(10));
                }
                is
            })
        };
        assert!(soon(false));
        let mut writer = File::options().read(true).append(true).open(&path).unwrap();
        writer.write_all(b"8").unwrap();
        assert!(soon(true));
        let shared = map_shared(&writer, 0);
        drop(writer);
        assert!(seen(&mapping).is_written);
        // SAFETY: the mapping of before.
        unsafe { munmap(shared, PAGE) }.unwrap();
        assert!(soon(false));
    }

    /// The kernel writes into a buffer that is registered, whatever becomes of its mapping.
    #[test]
    fn root_a_page_that_is_pinned_is_seen() {
        let writers = Writers::load().unwrap();
        // tmpfs takes registered buffers of shared mappings, and others may not.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for pages in [1_usize, 70, 5000] {
            let path = dir.path().join("file");
            fs::write(&path, vec![7; pages * PAGE]).unwrap();
            let file = File::open(&path).unwrap();
            let mapping = OwnMapping::of(&file).unwrap();
            let is_pinned = || writers.may_be_pinned(&mapping).unwrap().unwrap();
            assert!(!is_pinned(), "{pages}");
            for place in [0, pages / 2, pages - 1] {
                let Some(ring) = pin_page(&path, place) else {
                    eprintln!("skipped: buffers of io_uring (probe: io_uring_register)");
                    return;
                };
                assert!(is_pinned(), "page {place} of {pages}");
                drop(ring);
                let is_free = (0..1000).any(|_| {
                    thread::sleep(Duration::from_millis(10));
                    !is_pinned()
                });
                assert!(is_free, "page {place} of {pages}");
            }
        }
    }

    /// Registers this page of a file as a buffer of a ring, and neither maps it nor has it open
    /// any more; `None`: the kernel refuses it.
    fn pin_page(path: &std::path::Path, page: usize) -> Option<OwnedFd> {
        use std::os::fd::{AsRawFd, FromRawFd};
        const REGISTER_BUFFERS: libc::c_uint = 0; // IORING_REGISTER_BUFFERS of linux/io_uring.h
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut params = [0_u64; 15];
        // SAFETY: a struct io_uring_params has 120 bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
        if ring < 0 {
            return None;
        }
        // SAFETY: a descriptor that nobody else has.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
        let shared = map_shared(&file, page);
        let buffer = [shared as usize, PAGE];
        // SAFETY: one struct iovec, which the kernel reads.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                REGISTER_BUFFERS,
                buffer.as_ptr(),
                1,
            )
        };
        // SAFETY: the mapping of before.
        unsafe { munmap(shared, PAGE) }.unwrap();
        (registered == 0).then_some(ring)
    }

    #[test]
    fn root_what_another_process_has_mapped_is_told_from_another_file() {
        let writers = Writers::load().unwrap();
        if !writers.sees_others() {
            eprintln!("skipped: programs of type syscall that call bpf_task_from_pid (Linux 6.10)");
            return;
        }
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let maps = || fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let mut address = None;
        // Until it has called exec.
        while address.is_none() {
            let text = maps();
            let line = text.lines().find(|line| line.ends_with("/sleep"));
            let start = line.and_then(|line| line.split('-').next());
            address = start.map(|start| u64::from_str_radix(start, 16).unwrap());
        }
        let address = address.unwrap();
        let file = |path: &str| {
            let mapping = OwnMapping::of(&File::open(path).unwrap()).unwrap();
            let file = writers.own(&mapping).unwrap().unwrap();
            (mapping, file)
        };
        let (_sleep, sleep) = file(&format!("/proc/{}/exe", child.id()));
        let (_other, other) = file("/proc/self/exe");
        let asked = |address, file| writers.has_mapped(child.id(), address, file).unwrap();
        assert_eq!(asked(address, &sleep), Some(true));
        assert_eq!(asked(address, &other), Some(false));
        assert_eq!(asked(0, &sleep), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            writers.has_mapped(child.id(), address, &sleep).unwrap(),
            None
        );
    }
}
