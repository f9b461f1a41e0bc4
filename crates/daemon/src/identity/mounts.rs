//! Which files are held by somebody else, such as a server: known by their mounts, before
//! anything is asked of a file, for a server that has stopped answers nothing, and whoever
//! asks it waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{
        AtFlags, CWD, MemfdFlags, Mode, OFlags, StatxFlags, major, makedev, memfd_create, minor,
        openat, statx,
    },
};
use weir_identity::hash::{self, HashError, is_mutable_type};

use super::no_digest::NoDigest;

/// Bytes of a list of mounts that are read, some ten thousand mounts: any user may have such a
/// list who has a user namespace.
const MAX_LIST: u64 = 4 << 20;
/// The same of the daemon's own namespace, where nobody mounts but root.
const MAX_OWN_LIST: u64 = 64 << 20;
/// File systems in which a name leads to files of others: to what a process has, or to what is
/// mounted when somebody asks for it.
const LEADING: [&[u8]; 2] = [b"proc", b"autofs"];

/// A file that was found and not asked for anything (`O_PATH`), of a file system that others do not
/// hold. Its mount stays as long as this.
#[derive(Debug)]
pub struct Found(pub(super) File);

impl Found {
    /// Leads to this very file, whatever comes to its path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// What is known of the file, as stat(2) has it.
    ///
    /// # Errors
    /// Those of its file system.
    pub fn about(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Opens it to be read, as [`hash::open`] does.
    ///
    /// # Errors
    /// See [`hash::open`].
    pub fn open(&self) -> Result<File, HashError> {
        hash::open(&self.path())
    }
}

/// Why a file is not asked for anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unasked {
    /// There is none.
    Gone,
    /// Others hold it.
    Others,
    /// The mounts of its process have changed since they were read: another one may have the
    /// number of one that was there.
    Changing,
}

impl From<Unasked> for NoDigest {
    fn from(why: Unasked) -> Self {
        match why {
            Unasked::Gone => Self::Unreadable,
            Unasked::Others => Self::Untrusted,
            Unasked::Changing => Self::Later,
        }
    }
}

/// The mounts of a process that others hold (proc_pid_mountinfo(5)).
#[derive(Debug, Default)]
pub struct RemoteMounts {
    /// Devices of these file systems: major and minor number.
    devices: BTreeSet<(u32, u32)>,
    /// Devices of the others.
    local: BTreeSet<(u32, u32)>,
    /// There may be more than were read: what is not known to be here counts as held by others.
    is_cut: bool,
    /// Where each is mounted, and where others are: the longest one holds a path.
    points: Vec<(PathBuf, bool)>,
    /// The mounts by their numbers: do others hold what is there?
    numbers: BTreeMap<u64, bool>,
    /// The overlays, by the number of the mount: the device of each.
    overlays: BTreeMap<u64, (u32, u32)>,
    /// Mounts in which a name leads to files of others.
    leading: BTreeSet<u64>,
    /// Only somebody who may mount anything on this host can have mounted them.
    is_by_root: bool,
    /// They are those of the daemon's own namespace.
    is_here: bool,
    /// The list as it is open, which tells when it is another one; and has it told so?
    list: Option<File>,
    has_changed: AtomicBool,
}

impl RemoteMounts {
    /// The mounts of the daemon's own mount namespace. They are read again when the kernel says
    /// that they have changed (proc_pid_mounts(5)).
    pub fn here() -> Arc<Self> {
        static HERE: Mutex<Option<(File, Arc<RemoteMounts>)>> = Mutex::new(None);
        let mut here = HERE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((list, mounts)) = &*here
            && !has_changed(list)
        {
            return mounts.clone();
        }
        let Ok(list) = File::open("/proc/self/mountinfo") else {
            return Self::unread();
        };
        let mounts = Arc::new(Self {
            is_here: true,
            ..Self::read(&list, true, MAX_OWN_LIST)
        });
        *here = Some((list, mounts.clone()));
        mounts
    }

    fn unread() -> Arc<Self> {
        Arc::new(Self {
            is_cut: true,
            ..Self::default()
        })
    }

    /// The mounts of a process's mount namespace; none is known, if it is gone.
    pub fn of(pid: u32) -> Arc<Self> {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let of_process = namespace(&pid.to_string());
        if of_process.is_some() && of_process == namespace("self") {
            return Self::here();
        }
        let Ok(list) = File::open(format!("/proc/{pid}/mountinfo")) else {
            return Self::unread();
        };
        // A user namespace has mount namespaces in which its own root mounts. Asked behind the
        // list: who is in the daemon's by now has not been in one of his own before, from which
        // nobody comes back.
        let users = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let is_by_root = users(&pid.to_string()).is_some_and(|of| users("self") == Some(of));
        let mounts = Self::read(&list, is_by_root, MAX_LIST);
        Arc::new(Self {
            list: Some(list),
            ..mounts
        })
    }

    fn read(list: impl Read, is_by_root: bool, at_most: u64) -> Self {
        let mut text = Vec::new();
        // What came before an error holds.
        let read = list.take(at_most).read_to_end(&mut text);
        let is_cut = read.map_or(true, |bytes| bytes as u64 == at_most);
        if is_cut {
            // A line that is torn says nothing.
            let whole = text.iter().rposition(|byte| *byte == b'\n');
            text.truncate(whole.map_or(0, |end| end + 1));
        }
        // What somebody has mounted who has a user namespace may have a file system below that he
        // holds himself.
        let trusted = (!is_by_root).then(|| Self::here().overlays.values().copied().collect());
        let mounts = Self::parse(&text, trusted.as_ref());
        Self {
            is_by_root,
            is_cut,
            ..mounts
        }
    }

    /// `trusted`: the devices of overlays that count as others do; `None`: all of them.
    fn parse(list: &[u8], trusted: Option<&BTreeSet<(u32, u32)>>) -> Self {
        let mut mounts = Self::default();
        for line in list.split(|byte| *byte == b'\n') {
            // 36 35 98:0 /root /point options optional... - type source options
            let mut fields = line.split(|byte| *byte == b' ');
            let number = fields.next();
            let (device, point) = (fields.nth(1), fields.nth(1));
            let kind = fields.skip_while(|field| *field != b"-").nth(1);
            let (Some(device), Some(point), Some(kind)) = (device, point, kind) else {
                continue;
            };
            let mut is_remote = is_mutable_type(kind);
            if kind == b"overlay"
                && let (Some(number), Some(device)) = (whole(number), numbers(device, 10))
            {
                mounts.overlays.insert(number, device);
                is_remote = trusted.is_some_and(|trusted| !trusted.contains(&device));
            }
            if let Some(number) = whole(number) {
                mounts.numbers.insert(number, is_remote);
                if LEADING.contains(&kind) {
                    mounts.leading.insert(number);
                }
            }
            mounts.points.push((
                PathBuf::from(OsStr::from_bytes(&unescaped(point))),
                is_remote,
            ));
            if let Some(device) = numbers(device, 10) {
                match is_remote {
                    true => mounts.devices.insert(device),
                    false => mounts.local.insert(device),
                };
            }
        }
        if mounts.devices.is_empty() {
            mounts.points.clear();
        }
        mounts
    }

    /// Does the file of a line in a list of mappings lie there? `device`: as it is written there,
    /// such as `00:2d`.
    pub fn hold_device(&self, device: &[u8]) -> bool {
        numbers(device, 16).is_some_and(|device| {
            self.devices.contains(&device) || self.is_cut && !self.local.contains(&device)
        })
    }

    /// Is a file system of this device mounted, for sure? `device`: as `st_dev`.
    pub fn has_device(&self, device: u64) -> bool {
        let device = (major(device), minor(device));
        !self.is_cut && (self.devices.contains(&device) || self.local.contains(&device))
    }

    /// The file that a link of /proc leads to, such as `/proc/1/exe`, if others do not hold it: its
    /// file system is not asked. Of a mount that is in neither list, as one that was taken out of
    /// the tree, the device has to be in one.
    ///
    /// # Errors
    /// See [`Unasked`].
    pub fn find(&self, link: &Path) -> Result<Found, Unasked> {
        let file = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let file = File::from(file.map_err(|_| Unasked::Gone)?);
        // From here on no other mount has its number, and no other file system its device; so what
        // a list says of them that is as it was when it was read is about this one.
        let here = Self::here();
        if !self.is_here && self.has_changed() {
            return Err(Unasked::Changing);
        }
        let own = (!self.is_here).then_some(self);
        let lists = || own.into_iter().chain([&*here]);
        let number = mount_of(&file).ok_or(Unasked::Gone)?;
        let mut by_number = lists().filter_map(|list| list.numbers.get(&number));
        let is_remote = match by_number.next() {
            Some(is_remote) => *is_remote,
            None => {
                let (flags, mask) = (
                    AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
                    StatxFlags::empty(),
                );
                let about = statx(&file, "", flags, mask).map_err(|_| Unasked::Gone)?;
                let device = (about.stx_dev_major, about.stx_dev_minor);
                let is_memory = memory_device() == Some(makedev(device.0, device.1));
                let is_remote = lists().any(|list| list.devices.contains(&device));
                let is_local = is_memory || lists().any(|list| list.local.contains(&device));
                is_remote || !is_local
            }
        };
        match is_remote {
            true => Err(Unasked::Others),
            false => Ok(Found(file)),
        }
    }

    /// Have they changed since they were read? The kernel says so once.
    fn has_changed(&self) -> bool {
        if self.list.as_ref().is_some_and(has_changed) {
            self.has_changed.store(true, Relaxed);
        }
        self.has_changed.load(Relaxed)
    }

    /// May a name be looked up in this mount, so that nobody else is asked, nor leads elsewhere?
    /// `root`: the mount of the root directory, which a list of another root does not have.
    pub fn may_search(&self, mount: u64, root: u64) -> bool {
        let is_local = match self.numbers.get(&mount) {
            Some(is_remote) => !is_remote,
            None => mount == root && !self.is_cut,
        };
        is_local && !self.leading.contains(&mount)
    }

    /// Has a file of an overlay what root has put there? Whoever has a user namespace mounts an
    /// overlay over files of his own, and writes to these while nobody sees it who looks at the
    /// overlay's. Asked of the mounts of the process that has the file.
    pub fn trust_overlay(&self, file: &File) -> bool {
        // Of another namespace's nobody knows who has mounted it.
        let device = mount_of(file).and_then(|number| self.overlays.get(&number));
        device.is_some_and(|device| {
            self.is_by_root || Self::here().overlays.values().any(|here| here == device)
        })
    }

    /// Would a path lead there, by what is mounted now?
    pub fn hold_path(&self, path: &Path) -> bool {
        // Of two with one point the later one covers the other.
        let above = self
            .points
            .iter()
            .filter(|(point, _)| path.starts_with(point));
        let longest = above.max_by_key(|(point, _)| point.as_os_str().len());
        self.is_cut || longest.is_some_and(|(_, is_remote)| *is_remote)
    }
}

/// The device of memfd and shared memory, on a mount of the kernel's own.
pub fn memory_device() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let made = memfd_create(c"weir", MemfdFlags::CLOEXEC).map(File::from);
        made.ok()?.metadata().ok().map(|made| made.dev())
    })
}

/// The number of the mount by which a file is open, as the kernel knows it without the file system,
/// which statx(2) asks (proc_pid_fdinfo(5)).
pub fn mount_of(file: &File) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mut lines = about.lines();
    let number = lines.find_map(|line| line.strip_prefix("mnt_id:"))?;
    number.trim().parse().ok()
}

/// Have the mounts changed since the list was opened? Also if nobody can say.
fn has_changed(list: &File) -> bool {
    let mut waited = [PollFd::new(list, PollFlags::PRI)];
    poll(&mut waited, Some(&Timespec::default())) != Ok(0)
}

fn numbers(device: &[u8], radix: u32) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, radix).ok();
    Some((number(major)?, number(minor)?))
}

fn whole(field: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

/// Blanks and backslashes stand there as `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten();
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Command, Stdio},
    };

    use weir_testkit::fuse::{FuseLog, missing};

    use super::*;

    /// Do others hold the file that a link of /proc leads to? `None`: there is none.
    fn held(mounts: &RemoteMounts, link: &Path) -> Option<bool> {
        match mounts.find(link) {
            Ok(_) => Some(false),
            Err(Unasked::Others | Unasked::Changing) => Some(true),
            Err(Unasked::Gone) => None,
        }
    }

    #[test]
    fn devices_are_those_of_the_list_of_mounts() {
        let list = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 0:25 / /run rw - nfs4 server:/ rw\ntorn 1\n";
        let mounts = RemoteMounts::read(&list[..], true, MAX_LIST);
        let has = |major, minor| mounts.has_device(makedev(major, minor));
        assert!(has(98, 0) && has(0, 25));
        assert!(!has(98, 1) && !has(1, 0));
        // Of more than is read nobody can say.
        let mounts = RemoteMounts::read(&list[..], true, list.len() as u64);
        assert!(!mounts.has_device(makedev(98, 0)));
    }

    #[test]
    fn mounts_that_others_hold_are_told_by_device_and_path() {
        let list = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            36 22 0:45 / /srv/remote\\040share rw shared:1 master:2 - nfs4 server:/ rw\n\
            37 36 0:46 / /srv/remote\\040share/local rw - tmpfs tmpfs rw\n\
            38 22 0:47 / /mnt rw - fuse.bindfs /usr rw\n\
            torn 22 0";
        let mounts = RemoteMounts::parse(list, None);
        for (device, is) in [
            ("00:2d", true),
            ("00:2f", true),
            ("00:2e", false),
            ("fe:00", false),
        ] {
            assert_eq!(mounts.hold_device(device.as_bytes()), is, "{device}");
        }
        for (path, is) in [
            ("/srv/remote share/bin/a", true),
            ("/srv/remote share/local/a", false),
            ("/mnt", true),
            ("/mnt/a (deleted)", true),
            ("/mntx/a", false),
            ("/usr/bin/curl", false),
        ] {
            assert_eq!(mounts.hold_path(Path::new(path)), is, "{path}");
        }
        let layers = b"50 22 0:61 / /merged rw - overlay overlay rw,lowerdir=a\n\
            51 50 0:62 / /x rw - tmpfs tmpfs rw\n";
        let layers = RemoteMounts::parse(layers, None);
        assert_eq!(layers.overlays, BTreeMap::from([(50, (0, 61))]));
        assert!(!layers.hold_device(b"00:3d") && !layers.hold_path(Path::new("/merged/a")));
        let own = b"50 22 0:61 / /merged rw - overlay overlay rw,lowerdir=a\n\
            51 22 0:62 / /other rw - overlay overlay rw,lowerdir=b\n";
        let own = RemoteMounts::parse(own, Some(&BTreeSet::from([(0, 62)])));
        assert!(own.hold_device(b"00:3d") && own.hold_path(Path::new("/merged/a")));
        assert!(!own.hold_device(b"00:3e") && !own.hold_path(Path::new("/other/a")));
        // Cut in the line of /mnt: what is behind it may be anywhere.
        let at_most = list.len() as u64 - 40;
        let cut = RemoteMounts::read(&list[..], true, at_most);
        for (device, is) in [
            ("00:2d", true),
            ("00:2e", false),
            ("fe:00", false),
            ("00:2f", true),
            ("00:99", true),
        ] {
            assert_eq!(cut.hold_device(device.as_bytes()), is, "{device}");
        }
        assert!(cut.hold_path(Path::new("/usr/bin/curl")));
        assert!(!RemoteMounts::read(&list[..], true, list.len() as u64 + 1).is_cut);
        assert!(RemoteMounts::of(u32::MAX).hold_device(b"fe:00"), "nobody's");
        let local = RemoteMounts::parse(b"22 1 254:0 / / rw - ext4 /dev/vda rw\n", None);
        assert!(!local.hold_path(Path::new("/")));
    }

    #[test]
    fn names_are_looked_up_in_mounts_that_are_known_and_lead_nowhere() {
        let list = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            36 22 0:45 / /srv rw - nfs4 server:/ rw\n\
            37 22 0:46 / /proc rw - proc proc rw\n\
            38 22 0:47 / /home rw - autofs auto.home rw\n";
        let mounts = RemoteMounts::parse(list, None);
        for (mount, root, may) in [
            (22, 22, true),
            (36, 22, false),
            (36, 36, false),
            (37, 22, false),
            (38, 22, false),
            (99, 22, false),
            (99, 99, true),
        ] {
            assert_eq!(mounts.may_search(mount, root), may, "{mount} of {root}");
        }
        let cut = RemoteMounts::read(&list[..], true, 60);
        assert!(cut.may_search(22, 22) && !cut.may_search(99, 99));
    }

    /// A mount may have the number of one that was in the list when it was read.
    #[test]
    fn root_a_list_of_mounts_that_is_not_as_it_was_says_nothing() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting takes root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let script = "echo begun; read line; mount -t tmpfs weir \"$0\" && echo done; read line";
        let mut process = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = process.stdin.take().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "begun");
        let exe = PathBuf::from(format!("/proc/{}/exe", process.id()));
        let mounts = RemoteMounts::of(process.id());
        let same = |found: Result<Found, Unasked>| {
            let about = found.unwrap().about().unwrap();
            assert_eq!(about.ino(), fs::metadata(&exe).unwrap().ino());
        };
        same(mounts.find(&exe));
        input.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "done");
        // The kernel tells of the change once.
        for _ in 0..2 {
            assert_eq!(mounts.find(&exe).unwrap_err(), Unasked::Changing);
            assert_eq!(held(&mounts, &exe), Some(true));
        }
        same(RemoteMounts::of(process.id()).find(&exe));
        same(RemoteMounts::here().find(&exe));
        drop(input);
        process.wait().unwrap();
    }

    /// The list is read again when something was mounted.
    #[test]
    fn root_a_change_of_the_mounts_is_seen() {
        let before = RemoteMounts::here();
        if let Some(missing) = missing() {
            eprintln!("skipped: {missing}");
            return;
        }
        let remote = FuseLog::mount().unwrap();
        let path = remote.path();
        assert!(!before.hold_path(&path));
        assert!(RemoteMounts::here().hold_path(&path));
        assert!(RemoteMounts::of(std::process::id()).hold_path(&path));
        // By the file itself, though it answers nothing and its mount is in no list any more.
        let file = File::open(&path).unwrap();
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert_eq!(held(&RemoteMounts::here(), &link), Some(true));
        let point = path.parent().unwrap();
        let detached = std::process::Command::new("umount")
            .args([Path::new("-l"), point])
            .status();
        assert!(detached.unwrap().success());
        remote.hang(true);
        assert_eq!(held(&RemoteMounts::here(), &link), Some(true));
        remote.hang(false);
        assert_eq!(held(&before, Path::new("/proc/self/exe")), Some(false));
        assert_eq!(held(&before, Path::new("/proc/self/fd/100000")), None);
        drop((file, remote));
        assert!(!RemoteMounts::here().hold_path(&path));
    }
}
