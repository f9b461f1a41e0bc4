//! One segment: its file, created whole or not at all, and its mapping, with
//! the data twice in a row so that every record is contiguous.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Relaxed};

use crate::copy;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::layout::{CONTROL_BYTES, Control, HUGE_PAGE, Header, Policy, SLOTS, Slot};
use crate::protocol::{Memory, Word};
use crate::sys;

/// A mapped segment.
pub(crate) struct Segment {
    file: File,
    header: Header,
    policy: Policy,
    guard: Guard,
    base: NonNull<u8>,
    data: NonNull<u8>,
    reserved: usize,
    /// The publisher orders its stores by itself.
    pub(crate) fences: bool,
}

// SAFETY: the memory is shared with other processes anyway; everything in it
// is accessed through atomics and `copy`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// What `stat` counts a file's room in.
const BLOCK: u64 = 512;

/// The byte whose lock says that a writer is attached.
pub(crate) const WRITER_LOCK: u64 = std::mem::offset_of!(Control, writer) as u64;

/// The byte whose lock says that this slot's reader lives.
pub(crate) fn slot_lock(slot: usize) -> u64 {
    (std::mem::offset_of!(Control, slots) + slot * size_of::<Slot>()) as u64
}

/// The users whose files a reader opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Our own and root's.
    #[default]
    Trusted,
    /// Our own files, root's, and those of this user.
    User(u32),
    /// Files of any user.
    Anyone,
}

impl Owner {
    pub(crate) fn check(self, uid: u32) -> Result<()> {
        let allowed = uid == 0
            || uid == sys::own_uid()
            || match self {
                Owner::Trusted => false,
                Owner::User(user) => uid == user,
                Owner::Anyone => true,
            };
        if allowed {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Owner,
            format!("belongs to user {uid}, who was not allowed"),
        ))
    }
}

/// Opens what is at `path`, if it is a plain file of an allowed owner.
pub(crate) fn open(path: &Path, owner: Owner) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        // Neither a link to elsewhere nor a fifo that blocks.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| Error::system(format!("cannot open {}", path.display()), error))?;
    let meta = file
        .metadata()
        .map_err(|error| Error::system(format!("cannot examine {}", path.display()), error))?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::NotARing, "not a plain file").at(path));
    }
    owner.check(meta.uid()).map_err(|error| error.at(path))?;
    Ok(file)
}

/// Makes a file into an empty segment.
pub(crate) fn format(file: &File, data_size: u64, policy: Policy) -> Result<()> {
    let header = Header::new(data_size, policy, sys::coarse_time())?;
    if sys::on_hugetlbfs(file) && header.data_offset < HUGE_PAGE {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a segment of huge pages takes at least 2 MiB",
        ));
    }
    let space = |error| {
        let what = format!("no room for {} bytes", header.file_size());
        Error::system(what, error)
    };
    file.set_len(header.file_size()).map_err(space)?;
    let control = if sys::on_hugetlbfs(file) {
        HUGE_PAGE
    } else {
        CONTROL_BYTES as u64
    };
    sys::allocate(file, 0, control).map_err(space)?;
    sys::allocate(file, header.data_offset, header.data_size).map_err(space)?;
    let map = Map::of(file, None)?;
    map.store_header(&header);
    Ok(())
}

/// A mapping while its size is not known yet: the control area only.
struct Map {
    base: NonNull<u8>,
    length: usize,
}

impl Map {
    /// The control area by itself, or that and the data twice.
    fn of(file: &File, header: Option<&Header>) -> Result<Map> {
        let huge = sys::on_hugetlbfs(file);
        let control = if huge {
            HUGE_PAGE as usize
        } else {
            CONTROL_BYTES
        };
        let offset = header.map_or(control, |header| header.data_offset as usize);
        let data = header.map_or(0, |header| header.data_size as usize);
        let fail = |error| Error::system("cannot map the segment", error);
        // Huge pages want addresses that are multiples of their size.
        let length = offset + 2 * data + HUGE_PAGE as usize;
        // SAFETY: reserves address space where the kernel finds some; nothing
        // that exists is touched.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error()));
        }
        let aligned = (reserved as usize).next_multiple_of(HUGE_PAGE as usize);
        let before = aligned - reserved as usize;
        // SAFETY: gives back what lies before the aligned start.
        unsafe {
            if before > 0 {
                libc::munmap(reserved, before);
            }
        }
        let map = Map {
            base: NonNull::new(aligned as *mut u8).expect("mmap does not return null"),
            length: length - before,
        };
        for (at, from, size) in [
            (0, 0, control),
            (offset, offset, data),
            (offset + data, offset, data),
        ] {
            if size == 0 {
                continue;
            }
            // SAFETY: within the reservation above, which is ours.
            let mapped = unsafe {
                libc::mmap(
                    (aligned + at) as *mut libc::c_void,
                    size,
                    libc::PROT_READ | libc::PROT_WRITE,
                    // Page faults now, not one by one at the first records.
                    libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE,
                    file.as_raw_fd(),
                    from as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(fail(std::io::Error::last_os_error()));
            }
            if size >= HUGE_PAGE as usize && !huge {
                // Advice: where the system gives no huge pages to shared
                // memory, nothing changes.
                // SAFETY: the range was mapped a moment ago.
                unsafe { libc::madvise(mapped, size, libc::MADV_HUGEPAGE) };
            }
        }
        Ok(map)
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping holds at least CONTROL_BYTES, aligned to a
        // page; `Control` is atomics and padding, so any bytes are valid and
        // may change at any time.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    fn store_header(&self, header: &Header) {
        let words = [
            header.magic,
            header.version,
            header.data_offset,
            header.data_size,
            header.slots,
            header.policy,
            header.max_record,
            header.created,
            header.checksum,
        ];
        for (word, value) in self.control().header.iter().zip(words) {
            word.store(value, Relaxed);
        }
    }

    fn load_header(&self) -> Header {
        let word = |index: usize| self.control().header[index].load(Relaxed);
        Header {
            magic: word(0),
            version: word(1),
            data_offset: word(2),
            data_size: word(3),
            slots: word(4),
            policy: word(5),
            max_record: word(6),
            created: word(7),
            checksum: word(8),
        }
    }
}

/// The control area of a segment by itself, to look at: nothing of the data
/// is mapped, however large the header says it is.
pub(crate) struct Glimpse {
    pub file: File,
    pub header: Header,
    pub policy: Policy,
    // Before the mapping that it guards.
    _guard: Guard,
    map: Map,
}

impl Glimpse {
    pub(crate) fn of(file: File) -> Result<Glimpse> {
        let length = file
            .metadata()
            .map_err(|error| Error::system("cannot examine the segment", error))?
            .len();
        if length < CONTROL_BYTES as u64 {
            return Err(too_short(length));
        }
        let map = Map::of(&file, None)?;
        let guard = Guard::new(map.base.as_ptr() as usize, map.length)?;
        let header = map.load_header();
        let policy = header.check(length)?;
        Ok(Glimpse {
            file,
            header,
            policy,
            _guard: guard,
            map,
        })
    }

    pub(crate) fn control(&self) -> &Control {
        self.map.control()
    }
}

fn too_short(length: u64) -> Error {
    Error::new(
        ErrorKind::Truncated,
        format!("file of {length} bytes is too short for a ring segment"),
    )
}

/// A writer allocates every page that it maps (`format`). Where they are
/// missing, mapping the file would make them, of this process's memory.
fn all_allocated(allocated: u64, needed: u64) -> Result<()> {
    if allocated >= needed {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Truncated,
        format!("{allocated} of its {needed} bytes are allocated, a writer allocates them all"),
    ))
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Segment {
    /// Maps a file of at most `room` bytes after checking its header.
    pub(crate) fn map(file: File, room: u64) -> Result<Segment> {
        let examine = |file: &File| {
            file.metadata()
                .map_err(|error| Error::system("cannot examine the segment", error))
        };
        let about = examine(&file)?;
        let length = about.len();
        if length < CONTROL_BYTES as u64 {
            return Err(too_short(length));
        }
        if length > room {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("file of {length} bytes, {room} are allowed"),
            ));
        }
        let allocated = about.blocks().saturating_mul(BLOCK);
        all_allocated(allocated, CONTROL_BYTES as u64)?;
        let header = {
            let map = Map::of(&file, None)?;
            // Cut between here and there: the guard holds.
            let _guard = Guard::new(map.base.as_ptr() as usize, map.length)?;
            map.load_header()
        };
        let policy = header.check(length)?;
        all_allocated(allocated, CONTROL_BYTES as u64 + header.data_size)?;
        let map = Map::of(&file, Some(&header))?;
        let guard = if sys::is_sealed(&file) {
            Guard::none()
        } else {
            Guard::new(map.base.as_ptr() as usize, map.length)?
        };
        if map.load_header() != header || examine(&file)?.len() != length {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "changes while it is being opened",
            ));
        }
        let data = map.base.as_ptr().wrapping_add(header.data_offset as usize);
        let segment = Segment {
            file,
            header,
            policy,
            guard,
            base: map.base,
            data: NonNull::new(data).expect("follows the base"),
            reserved: map.length,
            fences: true,
        };
        std::mem::forget(map);
        Ok(segment)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether the file was cut short under the mapping.
    pub(crate) fn is_cut(&self) -> bool {
        self.guard.hit()
    }

    /// Whether its length cannot be changed any more.
    pub(crate) fn is_sealed(&self) -> bool {
        sys::is_sealed(&self.file)
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: as in `Map::control`; the mapping lives as long as `self`.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    /// Whether the writer orders its stores only when a sleeper makes it.
    pub(crate) fn wants_membarrier(&self) -> bool {
        self.control().writer.membarrier.load(Relaxed) == 1
    }

    #[inline]
    fn word(&self, position: u64) -> *const AtomicU64 {
        let offset = (position & (self.header.data_size - 1)) as usize;
        self.data.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.guard = Guard::none();
        // SAFETY: the mapping was taken over from `Map`; nothing refers to it
        // any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::AcqRel, Relaxed)
            .is_ok()
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }
}

impl Memory for Segment {
    type Word = AtomicU64;

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.control().published.head
    }
    #[inline]
    fn next_seq(&self) -> &AtomicU64 {
        &self.control().published.next_seq
    }
    fn floor(&self) -> &AtomicU64 {
        &self.control().floor.floor
    }
    fn used(&self) -> &AtomicU64 {
        &self.control().registry.used
    }
    #[inline]
    fn asleep(&self) -> &AtomicU64 {
        &self.control().sleepers.asleep
    }
    fn bell(&self) -> &AtomicU64 {
        &self.control().sleepers.bell
    }
    fn state(&self, slot: usize) -> &AtomicU64 {
        &self.control().slots[slot % SLOTS].state
    }
    fn tail(&self, slot: usize) -> &AtomicU64 {
        &self.control().slots[slot % SLOTS].tail
    }
    fn seen(&self, slot: usize) -> &AtomicU64 {
        &self.control().slots[slot % SLOTS].seen
    }
    fn capacity(&self) -> u64 {
        self.header.data_size
    }

    #[inline]
    fn put(&self, position: u64, header: [u64; 2], payload: &[u8]) {
        // SAFETY: aligned and within the data, because positions are multiples
        // of 8; the writer has checked that the record is at most a quarter of
        // the data long, so that it ends within the second mapping of the data
        // at the latest.
        unsafe { copy::store(self.word(position), header, payload) };
    }

    #[inline]
    fn get(&self, position: u64, words: &mut [u64]) {
        assert!(words.len() as u64 * 8 <= self.header.data_size);
        // SAFETY: the first is aligned and within the data's first mapping, and
        // no more than the data's length follows, which the second covers.
        unsafe { copy::load(self.word(position & !7), words) };
    }

    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }

    #[inline]
    fn publisher_fence(&self) {
        if self.fences {
            std::sync::atomic::fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
    }
}

/// Removes a name, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::system(
            format!("cannot remove {}", path.display()),
            error,
        )),
        _ => Ok(()),
    }
}
