//! The files that programs have mapped, by what is in them. A file is hashed as it is
//! mapped, not as some path names it now, and while a read lease is held on it: who wants
//! to write to it waits until everything that was concluded from it is taken back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use weir_bpf::{lease::Lease, loop_device::loop_image};
use weir_identity::{
    Digest,
    hash::{self, FileKey, HashError, Limits, Reading},
};

pub use super::no_digest::NoDigest;
use super::{
    below,
    mounts::{RemoteMounts, memory_device},
    take_if,
    way::reach,
};

/// Files that leases are held on: a descriptor each. Of more only those have a digest that root
/// alone can write to: of them it is asked at each look at a program that has them mapped who has
/// them open to write, and the time of change is compared. Of what others can write neither says
/// enough: a store into a page that is mapped shared leaves no time stamp on tmpfs.
pub const MAX_LEASES: usize = 4096;
/// The part of the leases that files of one owner may have, so that who makes many leaves some to
/// others. Root's may have all, and make room for others.
const OWNERS: usize = 4;
/// Files whose digests are remembered.
pub const MAX_KNOWN: usize = 16_384;
/// Files that are known to have no digest, however often they are asked for.
const MAX_FAILED: usize = 1024;
/// Files that were read in part, for want of time: of more the one that nobody has asked for
/// longest is begun anew.
const MAX_READINGS: usize = 16;
/// One that nobody has asked for so long is begun anew.
const FORGET: Duration = Duration::from_secs(60);
/// Files that are known to be written, for want of a second look at them; of more the one goes that
/// is asked about again first.
const MAX_WRITTEN: usize = 1024;
/// What was found to be written is not asked about for so many times as long as that has taken, and
/// for so long at most: in a file with many pages all of them are gone through.
const WRITTEN_SHARE: u32 = 20;
const WRITTEN_AGAIN: Duration = Duration::from_secs(2);
/// What takes less is asked about each time.
const CHEAP: Duration = Duration::from_millis(1);
/// Block devices that are files, and partitions of any devices (linux/major.h).
const LOOP_MAJOR: u32 = 7;
const PARTITION_MAJOR: u32 = 259;
/// What sysfs says of a partition's device holds for the files of a look: it is asked once for all.
const DEVICE_HOLDS: Duration = Duration::from_secs(1);
/// What sysfs has of a device that is one, and of a partition, above it.
const LOOPS: [&str; 2] = ["loop", "../loop"];
/// A file without a lease has not changed for so long: whoever changes it then gives it another
/// time, however coarse the kernel's clock is.
const STANDS: Duration = Duration::from_secs(1);

/// Which file systems are mounted here. Another one may have the device of one that was unmounted,
/// and who has made that one gives a file in it all numbers and times of a known one.
#[derive(Debug)]
struct Mounted {
    now: Arc<RemoteMounts>,
    /// The devices of what nobody unmounts while the daemon runs.
    lasting: BTreeSet<u64>,
}

impl Mounted {
    fn new() -> Self {
        let device = |path| fs::metadata(path).ok().map(|about| about.dev());
        let own = ["/", "/proc/self/exe"].map(device);
        Self {
            now: RemoteMounts::here(),
            lasting: own.into_iter().chain([memory_device()]).flatten().collect(),
        }
    }

    /// Have the mounts changed since this was asked last? Also if nobody can say.
    fn follow(&mut self) -> bool {
        let now = RemoteMounts::here();
        let has_changed = !Arc::ptr_eq(&now, &self.now);
        self.now = now;
        has_changed
    }

    /// Is it told when a file system of this device is unmounted, or is it never?
    fn tells_of(&self, device: u64) -> bool {
        self.lasting.contains(&device) || self.now.has_device(device)
    }
}

/// The writers that a file may have.
#[derive(Debug, Clone, Copy)]
struct Writers {
    owner: u32,
    /// Nobody but root can.
    is_root_alone: bool,
}

impl Writers {
    fn of(about: &fs::Metadata) -> Self {
        let owner = about.uid();
        Self {
            owner,
            is_root_alone: owner == 0 && about.mode() & 0o022 == 0,
        }
    }
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    lease: Option<Lease>,
    writers: Writers,
}

impl Known {
    /// Is it a file whose lease may go to another one?
    fn is_leased_of_root(&self) -> bool {
        self.lease.is_some() && self.writers.is_root_alone
    }
}

/// Digests by files.
#[derive(Debug)]
pub struct Objects {
    known: BTreeMap<FileKey, Known>,
    leases: usize,
    /// How many of them are on files of each owner that others than root can write to.
    by_owner: BTreeMap<u32, usize>,
    /// How often a file had no digest because there was no room for a lease.
    refused: u64,
    /// As [`MAX_LEASES`], but in tests.
    most_leases: usize,
    /// Those that are too large, or too slow to read. One that is changed is another file.
    failed: BTreeMap<FileKey, NoDigest>,
    /// Those that were found to be written, which took a while, and until when they are not asked
    /// about again.
    written: BTreeMap<FileKey, Instant>,
    /// Files that were read in part.
    readings: BTreeMap<FileKey, Begun>,
    until: Option<Instant>,
    /// Files that had a digest, and have none any more, since this was asked last.
    lost: BTreeSet<FileKey>,
    /// So long files were read, and their pages gone through, so far.
    spent: Duration,
    /// The MD5 is asked for beside, and that of the file that was read last.
    wants_md5: bool,
    md5: Option<[u8; 16]>,
    /// The device that was asked about last, whether it is a loop device, and when.
    device: Option<(u64, bool, Instant)>,
    mounted: Mounted,
}

/// A file that was read in part, and its lease all the while.
#[derive(Debug)]
struct Begun {
    reading: Reading,
    lease: Option<Lease>,
    asked: Instant,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            leases: 0,
            by_owner: BTreeMap::new(),
            refused: 0,
            most_leases: MAX_LEASES,
            failed: BTreeMap::new(),
            written: BTreeMap::new(),
            readings: BTreeMap::new(),
            until: None,
            lost: BTreeSet::new(),
            spent: Duration::ZERO,
            wants_md5: false,
            md5: None,
            device: None,
            mounted: Mounted::new(),
        }
    }
}

impl Objects {
    /// The digest of what `path` leads to.
    pub fn digest(&mut self, path: &Path) -> Result<(FileKey, Digest), NoDigest> {
        self.digest_of(hash::open(path)?)
    }

    /// Until when files may be read: of those that are left then the digests are found later, and
    /// one that was begun is read on when it is asked for again. `None`: as long as each takes.
    pub fn bound(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// How long files were read, and their pages gone through, so far.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// The digest of what `path` leads to, and the MD5 of the same bytes, as records of packages
    /// have it; `None`: the digest was known, and nothing was read.
    pub fn digest_and_md5(
        &mut self,
        path: &Path,
    ) -> Result<(FileKey, Digest, Option<[u8; 16]>), NoDigest> {
        self.wants_md5 = true;
        let found = self.digest(path);
        self.wants_md5 = false;
        let md5 = self.md5.take();
        found.map(|(file, digest)| (file, digest, md5))
    }

    /// The digest of a file that is open, of `/proc/PID/map_files/…` or `/proc/PID/exe`.
    pub fn digest_of(&mut self, file: File) -> Result<(FileKey, Digest), NoDigest> {
        let about = file.metadata().map_err(|_| NoDigest::Unreadable)?;
        let id = FileKey::of(&about);
        let begun = Instant::now();
        if self.written.get(&id).is_some_and(|until| begun < *until) {
            return Err(NoDigest::Written);
        }
        let found = self.digest_at(id, &about, file);
        match found {
            Err(NoDigest::Written) => self.note_written(id, begun.elapsed()),
            _ => drop(self.written.remove(&id)),
        }
        found
    }

    /// It is being written, and to find that out took so long.
    fn note_written(&mut self, id: FileKey, took: Duration) {
        if took < CHEAP {
            return;
        }
        let until = Instant::now() + (took * WRITTEN_SHARE).min(WRITTEN_AGAIN);
        self.written.insert(id, until);
        if self.written.len() > MAX_WRITTEN {
            let first = self.written.iter().min_by_key(|(_, until)| **until);
            if let Some(id) = first.map(|(id, _)| *id) {
                self.written.remove(&id);
            }
        }
    }

    fn digest_at(
        &mut self,
        id: FileKey,
        about: &fs::Metadata,
        file: File,
    ) -> Result<(FileKey, Digest), NoDigest> {
        if is_unsealed_memory(&file) {
            return Err(NoDigest::Memory);
        }
        // What is sealed is written by nobody.
        let is_sealed = is_memory(&file, about);
        let mut writers = Writers::of(about);
        let magic = fstatfs(&file).map(|stat| stat.f_type as u32);
        let is_overlay = magic == Ok(hash::OVERLAYFS);
        // Of who writes to the file below nobody is told.
        if is_overlay && !writers.is_root_alone {
            return Err(NoDigest::Unleased);
        }
        // Root of a container is root by number, and a store through a mapping leaves no time stamp
        // on tmpfs, which may be below an overlay.
        if is_overlay || magic == Ok(TMPFS) {
            writers.is_root_alone = false;
        }
        if self.is_on_loop(about) {
            if is_image_of_others(about.dev()) {
                return Err(NoDigest::Untrusted);
            }
            // The device has another image next, and who has made that one gives a file in it all
            // numbers and times of a known one. The lease holds the device; what is known of the
            // file goes with it.
            writers.is_root_alone = false;
        }
        // The same of any device, if nobody tells when it is unmounted.
        self.follow_mounts();
        if !self.mounted.tells_of(about.dev()) {
            writers.is_root_alone = false;
        }
        if let Some(known) = self.known.get(&id) {
            let digest = known.digest;
            if known.lease.is_none() && !is_sealed {
                self.ask_again(id, &file, writers)?;
            }
            return Ok((id, digest));
        }
        if let Some(why) = self.failed.get(&id) {
            return Err(*why);
        }
        let limits = Limits::default();
        // Before its pages are gone through.
        if about.is_file() && about.size() > limits.bytes {
            return Err(self.fail(id, HashError::TooLarge(about.size(), limits.bytes)));
        }
        // Before a byte is asked for, which may never come.
        if hash::mutable_kind(&file).is_some() {
            return Err(NoDigest::Untrusted);
        }
        if self.is_over() {
            return Err(NoDigest::Later);
        }
        let before = self.readings.remove(&id);
        let wants_md5 = self.wants_md5;
        let before =
            before.filter(|begun| !begun.is_broken() && (!wants_md5 || begun.reading.has_md5()));
        let (mut reading, lease) = match before {
            Some(begun) => (begun.reading, begun.lease),
            // Also where there is no room to keep it: nothing else tells of a writer who has the
            // file mapped already.
            None => {
                let lease = match is_sealed {
                    true => None,
                    false => self.lease_of(&file, writers)?,
                };
                let reading = Reading::begin(&file, limits.bytes);
                let reading = reading.map_err(|error| self.fail(id, error))?;
                match wants_md5 {
                    true => (reading.with_md5(), lease),
                    false => (reading, lease),
                }
            }
        };
        let now = Instant::now();
        let rest = limits.time.saturating_sub(reading.spent());
        let left = self.until.map(|until| until.saturating_duration_since(now));
        let time = left.map_or(rest, |left| left.min(rest));
        let hashed = reading.go_on(&file, time);
        self.spent += now.elapsed();
        let hashed = match hashed {
            Ok(Some(hashed)) => hashed,
            Ok(None) if reading.spent() < limits.time => {
                self.keep_begun(id, reading, lease);
                return Err(NoDigest::Later);
            }
            Ok(None) => return Err(self.fail(id, HashError::TooSlow(limits.time))),
            Err(error) => return Err(self.fail(id, error)),
        };
        if wants_md5 {
            self.md5 = reading.md5();
        }
        let digest = hashed.trusted().ok_or(NoDigest::Untrusted)?;
        if hashed.file != id || lease.as_ref().is_some_and(Lease::is_broken) {
            return Err(NoDigest::Written);
        }
        let lease = lease.filter(|_| self.make_room(writers));
        if lease.is_none() && !is_sealed && !stands(&id) {
            return Err(NoDigest::Written);
        }
        if self.known.len() >= MAX_KNOWN {
            // The digest of one is found again when it is asked for.
            let without = self.known.iter().find(|(_, known)| known.lease.is_none());
            let gone = without
                .or_else(|| self.known.iter().next())
                .map(|(id, _)| *id);
            if let Some((id, known)) = gone.and_then(|gone| self.known.remove_entry(&gone)) {
                self.count_gone(&known);
                // Nobody would take it back when its device has another file system.
                if !self.mounted.lasting.contains(&id.dev) {
                    self.lost.insert(id);
                }
            }
        }
        if lease.is_some() {
            self.count(writers);
        }
        let known = Known {
            digest,
            lease,
            writers,
        };
        self.known.insert(id, known);
        Ok((id, digest))
    }

    /// Why a file has no digest, which is remembered of one that is too large, or too slow.
    fn fail(&mut self, id: FileKey, error: HashError) -> NoDigest {
        let is_lasting = matches!(error, HashError::TooLarge(..) | HashError::TooSlow(_));
        let why = NoDigest::from(error);
        if is_lasting {
            if self.failed.len() >= MAX_FAILED {
                self.failed.pop_first();
            }
            self.failed.insert(id, why);
        }
        why
    }

    /// Keeps a file that is to be read on.
    fn keep_begun(&mut self, id: FileKey, reading: Reading, lease: Option<Lease>) {
        if self.readings.len() >= MAX_READINGS {
            let oldest = self.readings.iter().min_by_key(|(_, begun)| begun.asked);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.readings.remove(&oldest);
            }
        }
        let asked = Instant::now();
        let begun = Begun {
            reading,
            lease,
            asked,
        };
        self.readings.insert(id, begun);
    }

    /// Forgets what is known without a lease of file systems that may have been unmounted since
    /// this was asked last. A lease keeps that of its file mounted, which is one that was there
    /// before: this is asked before each new one.
    fn follow_mounts(&mut self) {
        if !self.mounted.follow() {
            return;
        }
        let mut held = self.mounted.lasting.clone();
        let leased = self.known.iter().filter(|(_, known)| known.lease.is_some());
        held.extend(leased.map(|(id, _)| id.dev));
        let before = self.known.len();
        let lost = &mut self.lost;
        self.known.retain(|id, _| {
            let is_held = held.contains(&id.dev);
            if !is_held {
                lost.insert(*id);
            }
            is_held
        });
        self.readings
            .retain(|id, begun| begun.lease.is_some() || held.contains(&id.dev));
        if self.known.len() < before {
            tracing::debug!(
                "{} digests are forgotten: mounts have changed",
                before - self.known.len()
            );
        }
    }

    /// Is the time over within which files may be read?
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// A lease on a file; none: its file system has none, or there is no room to keep one, and
    /// root alone can write to it.
    fn lease_of(&mut self, file: &File, writers: Writers) -> Result<Option<Lease>, NoDigest> {
        let begun = Instant::now();
        let lease = self.take_lease(file, writers);
        self.spent += begun.elapsed();
        lease
    }

    fn take_lease(&mut self, file: &File, writers: Writers) -> Result<Option<Lease>, NoDigest> {
        let lease = leased(file)?;
        if hash::is_overlay(file) {
            let below = below::of(file)?;
            let is_image = is_on_loop(below.device) && is_image_of_others(below.device);
            if hash::kind_of(below.magic).is_some() || is_image {
                return Err(NoDigest::Untrusted);
            }
            if below.is_written {
                return Err(NoDigest::Written);
            }
        }
        // Root of a container is root by number on a volume of the host's, too: of his files it is
        // asked as of anybody's.
        below::refuse_pinned(file)?;
        match lease {
            _ if writers.is_root_alone => Ok(lease),
            None => Err(NoDigest::Unleased),
            Some(_) if !self.has_room(writers) => {
                self.refused += 1;
                Err(NoDigest::NoRoom)
            }
            lease => Ok(lease),
        }
    }

    /// Is there room for a lease on such a file, if need be in the place of one of root's?
    fn has_room(&self, writers: Writers) -> bool {
        if writers.is_root_alone {
            return !self.is_full();
        }
        // Of root's those that are of containers, mostly.
        let parts = if writers.owner == 0 { OWNERS - 1 } else { 1 };
        let share = (self.most_leases / OWNERS * parts).max(1);
        let has = self.by_owner.get(&writers.owner).copied().unwrap_or(0);
        let of_others: usize = self.by_owner.values().sum();
        has < share && (!self.is_full() || of_others < self.leases)
    }

    /// Makes it, if there is any.
    fn make_room(&mut self, writers: Writers) -> bool {
        if !self.has_room(writers) {
            return false;
        }
        if self.is_full() {
            let mut of_root = self.known.values_mut();
            let Some(known) = of_root.find(|known| known.is_leased_of_root()) else {
                return false;
            };
            known.lease = None;
            let writers = known.writers;
            self.discount(writers);
        }
        true
    }

    fn count(&mut self, writers: Writers) {
        self.leases += 1;
        if !writers.is_root_alone {
            *self.by_owner.entry(writers.owner).or_default() += 1;
        }
    }

    fn discount(&mut self, writers: Writers) {
        self.leases -= 1;
        if writers.is_root_alone {
            return;
        }
        if let Some(has) = self.by_owner.get_mut(&writers.owner) {
            *has -= 1;
            if *has == 0 {
                self.by_owner.remove(&writers.owner);
            }
        }
    }

    fn count_gone(&mut self, known: &Known) {
        if known.lease.is_some() {
            self.discount(known.writers);
        }
    }

    /// Is a file still open to nobody who writes, that has a digest without a lease? With room,
    /// it has one from now on.
    fn ask_again(&mut self, id: FileKey, file: &File, writers: Writers) -> Result<(), NoDigest> {
        if self.is_over() {
            return Err(NoDigest::Later);
        }
        let lease = match self.lease_of(file, writers) {
            Ok(lease) => lease.filter(|_| self.make_room(writers)),
            Err(why) => {
                self.known.remove(&id);
                self.lost.insert(id);
                return Err(why);
            }
        };
        if let (Some(lease), Some(known)) = (lease, self.known.get_mut(&id)) {
            known.lease = Some(lease);
            self.count(writers);
        }
        Ok(())
    }

    /// How often a file had no digest because there was no room for a lease on it.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Is there no room for another lease?
    pub fn is_full(&self) -> bool {
        self.leases >= self.most_leases
    }

    /// Gives the leases back of files that are none of these. The digests of those are forgotten
    /// that others than root can write to, who are not seen from now on: which files they are.
    /// They are written to once the answer is dropped.
    pub fn keep_leases_of<'a>(&mut self, mut used: impl Iterator<Item = &'a FileKey>) -> Broken {
        let leased = self.known.iter().filter(|(_, known)| known.lease.is_some());
        let mut unused: BTreeSet<FileKey> = leased.map(|(id, _)| *id).collect();
        while !unused.is_empty()
            && let Some(file) = used.next()
        {
            unused.remove(file);
        }
        let mut given_back = Broken::default();
        for file in &unused {
            let Some(known) = self.known.get_mut(file) else {
                continue;
            };
            given_back._leases.extend(known.lease.take());
            let writers = known.writers;
            if !writers.is_root_alone {
                self.known.remove(file);
                given_back.files.insert(*file);
            }
            self.discount(writers);
        }
        given_back
    }

    /// Can root alone write to this file, of which a digest is known?
    pub fn is_root_alone(&self, file: &FileKey) -> bool {
        let known = self.known.get(file);
        known.is_some_and(|known| known.writers.is_root_alone)
    }

    /// Files that somebody waits to write to: their digests are forgotten here. He waits
    /// until the answer is dropped. With them those that have a digest no more for another reason.
    pub fn take_broken(&mut self) -> Broken {
        self.follow_mounts();
        // Nothing was concluded from them. Who is not asked for any more is let go as well.
        self.readings
            .retain(|_, begun| !begun.is_broken() && begun.asked.elapsed() < FORGET);
        let is_broken = |known: &Known| known.lease.as_ref().is_some_and(Lease::is_broken);
        let broken = take_if(&mut self.known, is_broken);
        for (_, known) in &broken {
            self.count_gone(known);
        }
        let mut files = std::mem::take(&mut self.lost);
        files.extend(broken.iter().map(|(id, _)| *id));
        Broken {
            files,
            _leases: broken
                .into_iter()
                .filter_map(|(_, known)| known.lease)
                .collect(),
        }
    }

    /// As [`is_on_loop`], asked once for many files of a device.
    fn is_on_loop(&mut self, about: &fs::Metadata) -> bool {
        match self.device {
            Some((device, is, at)) if device == about.dev() && at.elapsed() < DEVICE_HOLDS => is,
            _ => {
                let is = is_on_loop(about.dev());
                self.device = Some((about.dev(), is, Instant::now()));
                is
            }
        }
    }

    /// Digests and leases.
    pub fn counts(&self) -> (usize, usize) {
        (self.known.len(), self.leases)
    }
}

impl Begun {
    /// Does somebody wait to write to it?
    fn is_broken(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_broken)
    }
}

/// The directory of a device in sysfs.
fn path_of(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

/// Is it a loop device, or a partition of one, which has another number?
fn is_on_loop(device: u64) -> bool {
    match rustix::fs::major(device) {
        LOOP_MAJOR => true,
        PARTITION_MAJOR => {
            let at = path_of(device);
            LOOPS.iter().any(|below| at.join(below).exists())
        }
        _ => false,
    }
}

/// Is this loop device an image that others than root can write to? What they
/// write there changes it, and nobody is told.
///
/// By the kernel's word for the file of the image (loop(4)), and not by the name that sysfs has
/// of it, which whoever opened it may have chosen in mounts of his own.
fn is_image_of_others(device: u64) -> bool {
    let at = path_of(device);
    let name = LOOPS.iter().find_map(|below| {
        let loops = fs::canonicalize(at.join(below)).ok()?;
        Some(loops.parent()?.file_name()?.to_owned())
    });
    let Some(name) = name else { return true };
    let path = fs::read_to_string(
        Path::new("/sys/block")
            .join(&name)
            .join("loop/backing_file"),
    );
    // Whoever has made the device has said where its image is.
    let found = path.ok().and_then(|path| reach(Path::new(path.trim_end())));
    let image = found.and_then(|found| found.open().ok());
    let (Some(image), Ok(device)) = (image, File::open(Path::new("/dev").join(&name))) else {
        return true;
    };
    let Ok(about) = image.metadata() else {
        return true;
    };
    let is_this =
        loop_image(&device).is_some_and(|(dev, inode)| (dev, inode) == (about.dev(), about.ino()));
    !is_this
        || !Writers::of(&about).is_root_alone
        || is_on_loop(about.dev())
        || hash::is_overlay(&image)
}

/// A lease; none: its file system has none.
fn leased(file: &File) -> Result<Option<Lease>, NoDigest> {
    let second = file.try_clone().map_err(|_| NoDigest::Unleased)?;
    match Lease::take(second) {
        Ok(lease) => Ok(Some(lease)),
        Err((_, error)) => match error.kind() {
            io::ErrorKind::WouldBlock => Err(NoDigest::Written),
            io::ErrorKind::InvalidInput => Ok(None),
            _ => Err(NoDigest::Unleased),
        },
    }
}

/// Was it last changed some time ago?
fn stands(file: &FileKey) -> bool {
    let changed = Duration::new(file.ctime.0.max(0) as u64, file.ctime.1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.is_ok_and(|now| changed + STANDS <= now)
}

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u32 = 0x0102_1994;

/// Does the file lie in memory, on a mount of the kernel's own (memfd, shared memory of System V,
/// MAP_SHARED | MAP_ANONYMOUS)? Of these the kernel does not count who can write: it gives a read
/// lease beside a writer, and a store to a page that is dirty leaves no time stamp.
fn is_memory(file: &File, about: &fs::Metadata) -> bool {
    const HUGETLBFS: u32 = 0x9584_58f6; // linux/magic.h
    let device = memory_device();
    if device == Some(about.dev()) {
        return true;
    }
    // What has a name was opened by it, and its writers are counted.
    if about.nlink() != 0 {
        return false;
    }
    match fstatfs(file).map(|stat| stat.f_type as u32) {
        // Each size of pages has a mount of its own.
        Ok(HUGETLBFS) => true,
        Ok(TMPFS) => device.is_none(),
        _ => false,
    }
}

/// Does it lie there, and can somebody still change it? Seals are taken off by nobody.
pub fn is_unsealed_memory(file: &File) -> bool {
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    let is_sealed = || fcntl_get_seals(file).is_ok_and(|seals| seals.contains(all));
    let is_memory = file.metadata().is_ok_and(|about| is_memory(file, &about));
    is_memory && !is_sealed()
}

/// Files that may be written to once this is dropped.
#[derive(Default)]
pub struct Broken {
    /// Which files they are.
    pub files: BTreeSet<FileKey>,
    _leases: Vec<Lease>,
}

impl Broken {
    /// These may be written to as late as those. Of too many leases the first ones go, which the
    /// kernel has taken by force by then.
    pub fn join(&mut self, others: Self) {
        self.files.extend(others.files);
        self._leases.extend(others._leases);
        let over = self._leases.len().saturating_sub(MAX_LEASES);
        self._leases.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::{fd::AsRawFd, unix::fs::PermissionsExt},
        process::Command,
        thread,
    };

    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    /// [`Objects::digest`], once nobody has the file open to be written: a child that
    /// another test starts holds a copy of each descriptor until it calls exec.
    fn digest(objects: &mut Objects, path: &Path) -> Result<(FileKey, Digest), NoDigest> {
        for _ in 0..1000 {
            match objects.digest(path) {
                Err(NoDigest::Written) => thread::sleep(Duration::from_millis(10)),
                answer => return answer,
            }
        }
        panic!("{} stays open to be written", path.display());
    }

    #[test]
    fn a_file_that_is_to_be_written_is_forgotten_first() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let mut objects = Objects::default();
        let (id, first) = digest(&mut objects, &path).unwrap();
        // sha256sum of "one".
        assert_eq!(
            first.to_string(),
            "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
        );
        assert_eq!(objects.counts(), (1, 1));
        assert!(objects.take_broken().files.is_empty());
        let other = path.clone();
        let writes = thread::spawn(move || fs::write(other, "two").unwrap());
        let broken = loop {
            let broken = objects.take_broken();
            if !broken.files.is_empty() {
                break broken;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(broken.files, BTreeSet::from([id]));
        assert_eq!(objects.counts(), (0, 0));
        // It is not written while the lease is held.
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        drop(broken);
        writes.join().unwrap();
        assert_ne!(digest(&mut objects, &path).unwrap().1, first);
    }

    /// Stores into memory that is mapped writable and dirty leave no trace, and nobody is asked.
    #[test]
    fn a_memfd_that_can_be_written_has_no_digest() {
        weir_bpf::lease::ignore_signals();
        let made = |sealed: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let mut file = File::from(memfd_create(c"one", flags).unwrap());
            file.write_all(b"one").unwrap();
            fcntl_add_seals(&file, sealed).unwrap();
            file
        };
        let of = |file: File| {
            let objects = &mut Objects::default();
            let again = file.try_clone().unwrap();
            let digest = objects.digest_of(file).map(|(_, digest)| digest);
            assert_eq!(objects.digest_of(again).map(|(_, digest)| digest), digest);
            digest
        };
        let length = SealFlags::SHRINK | SealFlags::GROW;
        for sealed in [
            SealFlags::empty(),
            length,
            SealFlags::WRITE,
            length | SealFlags::FUTURE_WRITE,
        ] {
            assert_eq!(of(made(sealed)), Err(NoDigest::Memory), "{sealed:?}");
            // As its writer has it, and as map_files opens it.
            let writer = made(sealed);
            let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
            assert_eq!(of(File::open(path).unwrap()), Err(NoDigest::Memory));
        }
        let digest = of(made(length | SealFlags::WRITE)).unwrap();
        assert!(digest.to_string().starts_with("7692c3ad"), "{digest}");
        // A file on tmpfs that has no name any longer is no memfd.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("one");
        fs::write(&path, "one").unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let about = file.metadata().unwrap();
        assert_eq!(about.nlink(), 0);
        assert!(!is_memory(&file, &about));
    }

    /// Leases are anybody's: who has many files mapped leaves none to others.
    #[test]
    fn without_room_for_leases_a_file_that_is_open_to_be_written_has_no_digest() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["one", "two", "three"] {
            fs::write(path(name), name).unwrap();
        }
        let mut objects = Objects {
            most_leases: 1,
            ..Objects::default()
        };
        let (one, _) = digest(&mut objects, &path("one")).unwrap();
        // Written a moment ago: not before its time of change is another one at each change.
        assert_eq!(objects.digest(&path("two")), Err(NoDigest::Written));
        let (two, second) = digest(&mut objects, &path("two")).unwrap();
        assert_eq!(objects.counts(), (2, 1));
        // A writer who came before, and one who came behind.
        for name in ["three", "two"] {
            let writer = File::options().write(true).open(path(name)).unwrap();
            assert_eq!(
                objects.digest(&path(name)),
                Err(NoDigest::Written),
                "{name}"
            );
            drop(writer);
            digest(&mut objects, &path(name)).unwrap();
        }
        assert_eq!(objects.counts(), (3, 1));
        // What was concluded from the one that had a digest before is taken back.
        assert_eq!(objects.take_broken().files, BTreeSet::from([two]));
        assert!(objects.take_broken().files.is_empty());
        // Room is for the files that somebody has mapped.
        drop(objects.keep_leases_of([one, two].iter()));
        assert_eq!(objects.counts(), (3, 1));
        assert_eq!(digest(&mut objects, &path("two")), Ok((two, second)));
        assert!(objects.known[&two].lease.is_none());
        drop(objects.keep_leases_of([two].iter()));
        assert_eq!(objects.counts(), (3, 0));
        assert_eq!(digest(&mut objects, &path("two")), Ok((two, second)));
        assert!(objects.known[&two].lease.is_some());
        assert_eq!(objects.counts(), (3, 1));
    }

    /// A store into a page of tmpfs that is mapped shared leaves no time stamp, and its writer can
    /// be gone when the file is looked at again: so files that others than root can write to have a
    /// digest under a lease only.
    #[test]
    fn root_without_room_for_leases_files_of_others_have_no_digest() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = File::open(dir.path()).unwrap();
        let magic = fstatfs(&at).unwrap().f_type as u32;
        if [TMPFS, hash::OVERLAYFS].contains(&magic) {
            eprintln!("skipped: /var/tmp on a disk (probe: statfs)");
            return;
        }
        let path = |name: &str| dir.path().join(name);
        let make = |name: &str, owner: u32, mode: u32| {
            fs::write(path(name), name).unwrap();
            std::os::unix::fs::chown(path(name), Some(owner), None).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        for (name, owner, mode) in [
            ("one", 1000, 0o755),
            ("two", 1000, 0o755),
            ("open", 0, 0o775),
            ("other", 1001, 0o755),
            ("root-1", 0, 0o755),
            ("root-2", 0, 0o755),
            ("root-3", 0, 0o755),
            ("root-4", 0, 0o755),
        ] {
            make(name, owner, mode);
        }
        let mut objects = Objects {
            most_leases: 4,
            ..Objects::default()
        };
        for name in ["root-1", "root-2", "root-3", "root-4"] {
            digest(&mut objects, &path(name)).unwrap();
        }
        assert_eq!(objects.counts(), (4, 4));
        // A file of somebody else's gets the place of one of root's, which keeps its digest.
        let (one, _) = digest(&mut objects, &path("one")).unwrap();
        assert_eq!(objects.counts(), (5, 4));
        for name in ["root-1", "root-2", "root-3", "root-4"] {
            digest(&mut objects, &path(name)).unwrap();
        }
        // But no more than his share: whoever has it mapped shared is seen by nobody.
        let written = File::options()
            .read(true)
            .write(true)
            .open(path("two"))
            .unwrap();
        assert_eq!(objects.digest(&path("two")), Err(NoDigest::Written));
        drop(written);
        assert_eq!(objects.digest(&path("two")), Err(NoDigest::NoRoom));
        assert!(NoDigest::NoRoom.is_for_now());
        assert_eq!(objects.refused(), 1);
        // Of others there is room left.
        let (other, _) = digest(&mut objects, &path("other")).unwrap();
        let (open, _) = digest(&mut objects, &path("open")).unwrap();
        assert_eq!(objects.counts(), (7, 4));
        assert_eq!(objects.by_owner.values().sum::<usize>(), 3);
        // Without a lease nobody tells of a writer: what he could have changed is forgotten.
        let forgotten = objects.keep_leases_of([other].iter());
        assert_eq!(forgotten.files, BTreeSet::from([one, open]));
        drop(forgotten);
        assert_eq!(objects.counts(), (5, 1));
        digest(&mut objects, &path("two")).unwrap();
        assert_eq!(objects.counts(), (6, 2));
        assert_eq!(objects.by_owner, BTreeMap::from([(1000, 1), (1001, 1)]));
    }

    /// A mounted tmpfs, and `umount` with options for it.
    struct Tmpfs(tempfile::TempDir);

    impl Tmpfs {
        fn unmount(&self, options: &[&str]) -> bool {
            let mut umount = Command::new("umount");
            let done = umount.args(options).arg(self.0.path()).output();
            done.is_ok_and(|done| done.status.success())
        }
    }

    impl Drop for Tmpfs {
        fn drop(&mut self) {
            self.unmount(&["-l"]);
        }
    }

    /// What has ended keeps nobody from unmounting.
    #[test]
    fn root_a_file_system_is_not_kept_busy_by_leases() {
        weir_bpf::lease::ignore_signals();
        let tmpfs = Tmpfs(tempfile::tempdir().unwrap());
        let path = |name: &str| tmpfs.0.path().join(name);
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "weir"]).arg(tmpfs.0.path());
        if !mounted.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: no tmpfs can be mounted");
            return;
        }
        let mut objects = Objects::default();
        for (name, owner) in [("root", 0), ("other", 1000)] {
            fs::write(path(name), name).unwrap();
            std::os::unix::fs::chown(path(name), Some(owner), None).unwrap();
            digest(&mut objects, &path(name)).unwrap();
        }
        assert_eq!(objects.counts(), (2, 2));
        assert!(!tmpfs.unmount(&[]));
        drop(objects.keep_leases_of(std::iter::empty()));
        // On tmpfs root's are forgotten as well: root of a container may be who writes.
        assert_eq!(objects.counts(), (0, 0));
        // A child that another test starts has each descriptor until it calls exec.
        let unmounted = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(50));
            tmpfs.unmount(&[])
        });
        assert!(unmounted);
    }

    /// A block device, with what is mounted of it.
    struct Zram(String, Tmpfs);

    impl Zram {
        fn new() -> Option<Self> {
            let number = fs::read_to_string("/sys/class/zram-control/hot_add").ok()?;
            let made = Self(
                number.trim().to_owned(),
                Tmpfs(tempfile::tempdir().unwrap()),
            );
            fs::write(format!("/sys/block/zram{}/disksize", made.0), "16M").ok()?;
            Some(made)
        }

        fn device(&self) -> String {
            format!("/dev/zram{}", self.0)
        }

        /// Puts this onto the device, and mounts it.
        fn mount(&self, image: &[u8]) -> bool {
            let written = File::options().write(true).open(self.device());
            let written = written.and_then(|mut to| {
                to.write_all(image)?;
                to.sync_all()
            });
            let mut mount = Command::new("mount");
            let mount = mount.arg(self.device()).arg(self.1.0.path());
            written.is_ok() && mount.status().is_ok_and(|status| status.success())
        }
    }

    impl Drop for Zram {
        fn drop(&mut self) {
            // A child that another test starts has each descriptor until it calls exec.
            for _ in 0..100 {
                self.1.unmount(&[]);
                let reset = fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
                if reset.is_ok() && fs::write("/sys/class/zram-control/hot_remove", &self.0).is_ok()
                {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Two file systems that somebody has made, one after the other at one device: with files of
    /// one number, time of change and length, which belong to root.
    #[test]
    fn root_a_file_of_another_file_system_at_the_device_is_another_one() {
        weir_bpf::lease::ignore_signals();
        let tree = tempfile::tempdir().unwrap();
        let (files, image) = (tree.path().join("files"), tree.path().join("image"));
        fs::create_dir(&files).unwrap();
        fs::write(files.join("program"), "HHHHHHHH").unwrap();
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let mut make = Command::new("mkfs.ext4");
        let made = make
            .args(["-q", "-F", "-d"])
            .args([&files, &image])
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("skipped: no mkfs.ext4");
            return;
        }
        let first = fs::read(&image).unwrap();
        let mut second = first.clone();
        let place = first
            .windows(8)
            .position(|part| part == b"HHHHHHHH")
            .unwrap();
        second[place..place + 8].fill(b'E');
        let zram = Zram::new();
        let Some(zram) = zram.filter(|zram| zram.mount(&first)) else {
            eprintln!("skipped: no zram with ext4 (probe: /sys/class/zram-control)");
            return;
        };
        let path = zram.1.0.path().join("program");
        let mut objects = Objects::default();
        let (file, one) = digest(&mut objects, &path).unwrap();
        // Nobody runs it any more.
        drop(objects.keep_leases_of(std::iter::empty()));
        assert_eq!(objects.counts(), (1, 0));
        let change = || {
            // A child that another test starts has each descriptor until it calls exec.
            let unmounted = (0..100).any(|_| {
                thread::sleep(Duration::from_millis(50));
                zram.1.unmount(&[])
            });
            assert!(unmounted);
            assert!(zram.mount(&second));
            assert_eq!(FileKey::of(&fs::metadata(&path).unwrap()), file);
        };
        change();
        let (again, other) = digest(&mut objects, &path).unwrap();
        assert_eq!(again, file);
        assert_ne!(other, one);
        assert_eq!(objects.take_broken().files, BTreeSet::from([file]));
        // Also if nobody asks for it again.
        drop(objects.keep_leases_of(std::iter::empty()));
        change();
        assert_eq!(objects.take_broken().files, BTreeSet::from([file]));
        assert_eq!(objects.counts(), (0, 0));
        // A lease keeps its file system mounted: what is known of that stays.
        digest(&mut objects, &path).unwrap();
        fs::write(zram.1.0.path().join("other"), "other").unwrap();
        let (other, _) = digest(&mut objects, &zram.1.0.path().join("other")).unwrap();
        drop(objects.keep_leases_of([other].iter()));
        let tmpfs = Tmpfs(tempfile::tempdir().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "weir"]).arg(tmpfs.0.path());
        assert!(mount.status().unwrap().success());
        assert!(objects.take_broken().files.is_empty());
        assert_eq!(objects.counts(), (2, 1));
    }

    /// A holder that refuses to say of which kind its file system is (ENOSYS for FUSE_STATFS).
    #[test]
    fn root_a_file_system_that_does_not_say_what_it_is_has_no_digest() {
        if let Some(missing) = weir_testkit::fuse::missing() {
            eprintln!("skipped: {missing}");
            return;
        }
        let remote = weir_testkit::fuse::FuseLog::mount().unwrap();
        remote.append("one");
        let mut objects = Objects::default();
        assert_eq!(objects.digest(&remote.path()), Err(NoDigest::Untrusted));
    }

    /// A file that is read in part holds nobody up who wants to write to it, and is begun anew
    /// then; at the cap the one goes that nobody has asked for longest.
    #[test]
    fn files_that_were_read_in_part_are_few_and_hold_nobody_up() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let mut objects = Objects::default();
        let ask = |objects: &mut Objects, number: usize| {
            let path = dir.path().join(number.to_string());
            if !path.exists() {
                File::create(&path).unwrap().set_len(64 << 20).unwrap();
            }
            objects.bound(Some(Instant::now() + Duration::from_millis(1)));
            assert_eq!(digest(objects, &path), Err(NoDigest::Later));
            (FileKey::of(&fs::metadata(&path).unwrap()), path)
        };
        let (first, _) = ask(&mut objects, 0);
        for number in 1..=MAX_READINGS {
            ask(&mut objects, number);
        }
        assert_eq!(objects.readings.len(), MAX_READINGS);
        assert!(!objects.readings.contains_key(&first));
        let (last, path) = ask(&mut objects, MAX_READINGS);
        let writer = thread::spawn(move || File::options().write(true).open(path).unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        while !writer.is_finished() {
            assert!(Instant::now() < until, "he waits");
            assert!(objects.take_broken().files.is_empty());
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!objects.readings.contains_key(&last));
    }

    #[test]
    fn what_there_is_no_time_for_is_read_later_and_what_is_too_large_not_again() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let mut objects = Objects::default();
        objects.bound(Some(Instant::now()));
        assert_eq!(objects.digest(&path), Err(NoDigest::Later));
        // Behind another one, some of it can be read in this time.
        let long = dir.path().join("long");
        File::create(&long).unwrap().set_len(256 << 20).unwrap();
        objects.bound(Some(Instant::now() + Duration::from_secs(600)));
        digest(&mut objects, &path).unwrap();
        // A while at a time: the digest is that of one reading.
        let mut looks = 0;
        let digest_of_long = loop {
            looks += 1;
            objects.bound(Some(Instant::now() + Duration::from_millis(5)));
            match digest(&mut objects, &long) {
                Err(NoDigest::Later) => assert_eq!(objects.readings.len(), 1),
                read => break read.unwrap(),
            }
        };
        assert!(looks > 2, "{looks}");
        assert!(objects.readings.is_empty());
        let whole = hash::path(&long, Limits::default()).unwrap();
        assert_eq!(
            digest_of_long,
            (FileKey::of(&fs::metadata(&long).unwrap()), whole.digest)
        );
        objects.bound(None);
        let most = Limits::default().bytes;
        for number in 0..MAX_FAILED + 10 {
            let large = dir.path().join(number.to_string());
            File::create(&large).unwrap().set_len(most + 1).unwrap();
            assert_eq!(digest(&mut objects, &large), Err(NoDigest::TooLarge));
        }
        assert_eq!(objects.failed.len(), MAX_FAILED);
        // Shorter, it is another one.
        let last = dir.path().join(format!("{}", MAX_FAILED + 9));
        File::options()
            .write(true)
            .open(&last)
            .unwrap()
            .set_len(3)
            .unwrap();
        digest(&mut objects, &last).unwrap();
    }

    /// Who has it mapped may be many.
    #[test]
    fn what_is_written_is_asked_about_again_when_it_is_worth_the_time() {
        let mut objects = Objects::default();
        let file = |ino| FileKey {
            dev: 1,
            ino,
            generation: 0,
            ctime: (1, 0),
            size: 1,
        };
        objects.note_written(file(0), CHEAP - Duration::from_nanos(1));
        assert!(objects.written.is_empty());
        let before = Instant::now();
        objects.note_written(file(0), CHEAP);
        objects.note_written(file(1), Duration::from_secs(1));
        let (short, long) = (objects.written[&file(0)], objects.written[&file(1)]);
        assert!(short >= before + CHEAP * WRITTEN_SHARE && short < long);
        assert!(long <= Instant::now() + WRITTEN_AGAIN);
        for ino in 2..MAX_WRITTEN as u64 + 10 {
            objects.note_written(file(ino), Duration::from_secs(1));
        }
        assert_eq!(objects.written.len(), MAX_WRITTEN);
        assert!(!objects.written.contains_key(&file(0)));
        // Not a file that is asked about: it is closed by then.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let id = FileKey::of(&fs::metadata(&path).unwrap());
        objects.note_written(id, Duration::from_secs(1));
        assert_eq!(objects.digest(&path), Err(NoDigest::Written));
        weir_bpf::lease::ignore_signals();
        digest(&mut objects, &path).unwrap();
        assert!(!objects.written.contains_key(&id));
    }

    #[test]
    fn a_file_that_is_open_to_be_written_has_no_digest() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let writer = File::create(&path).unwrap();
        let mut objects = Objects::default();
        assert_eq!(objects.digest(&path), Err(NoDigest::Written));
        drop(writer);
        digest(&mut objects, &path).unwrap();
        // Sparse, and longer than anything that is read.
        let large = dir.path().join("large");
        let most = Limits::default().bytes;
        let writer = File::create(&large).unwrap();
        writer.set_len(most + 1).unwrap();
        // Nor are its pages gone through.
        assert_eq!(objects.digest(&large), Err(NoDigest::TooLarge));
        drop(writer);
        assert_eq!(digest(&mut objects, &large), Err(NoDigest::TooLarge));
        assert_eq!(
            objects.digest(Path::new("/proc/self/map_files/0-1")),
            Err(NoDigest::Unreadable)
        );
    }
}
