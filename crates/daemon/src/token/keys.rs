//! The directory of keys: a file `ID.key` for each. Who may read a key can sign as any
//! program, so files that others may read are refused, and none is written so.

use std::{
    collections::BTreeSet,
    fs, io,
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::{
    fs::{CWD, FlockOperation, OFlags, RenameFlags},
    io::Errno,
    process::DumpableBehavior,
};
use weir_token::{
    KeyId, Secret,
    daf::{self, DafKey},
    key_file::{Key, KeyFileError, KeyState, MAX_BYTES},
    key_ring::{KeyRing, TwoKeys},
};

/// So long a change waits for another one to end.
const WAIT: Duration = Duration::from_secs(10);
/// The file in the directory that a change locks. The directory itself would not do: whoever may
/// list it could lock it, and keep everybody from changing keys.
const LOCK: &str = ".lock";

/// Why keys cannot be read or changed. No message has a secret in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The directory is not there.
    #[error(
        "cannot read the directory of keys {}: it is not there; weir token key new makes it with a key in it, or copy that of the other hosts (scp -rp)",
        .0.display()
    )]
    NoDirectory(PathBuf),
    /// The system refuses something.
    #[error("{what} {}: {error}", path.display())]
    System {
        /// The step that failed, such as `cannot write`.
        what: &'static str,
        /// The key file, or the directory of them.
        path: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// Somebody else could read or change it.
    #[error("{}: {why}; allowed: {allowed}{mend}", path.display())]
    Unsafe {
        /// The key file, or the directory of them.
        path: PathBuf,
        /// The owner or the mode by which others could, or what kind of file it is.
        why: String,
        /// The owner, mode or size that a key file may have.
        allowed: &'static str,
        /// What to do about it; empty where that is plain.
        mend: String,
    },
    /// The text of a key file is wrong.
    #[error(
        "{}: {error}; copy it again from another host, or move it away: weir token key new makes another key",
        path.display()
    )]
    File {
        /// The key file, or the directory of them.
        path: PathBuf,
        /// The mistake, without the text of the file.
        error: KeyFileError,
    },
    /// Its name is not that of its id.
    #[error(
        "{}: it has the id {id}, and would be {id}.key: give it that name, or remove it if it is a copy; weir token key new makes another key, with an id of its own",
        path.display()
    )]
    Name {
        /// The key file, or the directory of them.
        path: PathBuf,
        /// The id in it.
        id: KeyId,
    },
    /// Two have one id.
    #[error(transparent)]
    TwoKeys(#[from] TwoKeys),
    /// All ids are used up.
    #[error("{}: all ids from 1 to 255 are used; remove files of keys that were retired long ago", .0.display())]
    Full(PathBuf),
    /// The new key would sign at no time.
    #[error(
        "a key that signs from {wanted} on never does: key {id} signs, and has since {since}, and of several the one does that began last; allowed: a later time, without --sign-from now"
    )]
    Never {
        /// When the new one would begin.
        wanted: Timestamp,
        /// The key that signs.
        id: KeyId,
        /// When that one began.
        since: Timestamp,
    },
    /// Somebody else changes the keys, and does not end.
    #[error(
        "{}: another process has changed keys for {} seconds and goes on: wait for its end (fuser {} names it)",
        dir.display(), waited.as_secs(), lock.display()
    )]
    Busy {
        /// The directory of keys.
        dir: PathBuf,
        /// The file that is locked.
        lock: PathBuf,
        /// So long this one has waited.
        waited: Duration,
    },
    /// There is no such key.
    #[error("{}: there is no key {id}", path.display())]
    Missing {
        /// The directory of keys that was looked through.
        path: PathBuf,
        /// The id that was asked for.
        id: KeyId,
    },
    /// It is the last that could sign.
    #[error(
        "key {0} signs, and no other may: make another one first (weir token key new), and copy it to all hosts"
    )]
    LastKey(KeyId),
}

impl KeysError {
    /// Whether the system keeps this user from looking, who is to ask as another one.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::System { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeysError {
    let path = path.to_owned();
    move |error| KeysError::System { what, path, error }
}

const READ_BY_OTHERS: &str = "if others may have read it, weir token key new makes another key, and weir token key retire ends this one";
const PUT_BY_OTHERS: &str = "weir token key list shows whether others have put keys there";

/// Is it this user's, or root's, and nobody else's to change?
fn check(
    path: &Path,
    about: &fs::Metadata,
    mask: u32,
    allowed: &'static str,
    mistrust: &str,
) -> Result<(), KeysError> {
    let own = rustix::process::geteuid().as_raw();
    let (why, command) = if about.uid() != 0 && about.uid() != own {
        let why = format!("it belongs to the user {}", about.uid());
        (why, format!("chown root {}", path.display()))
    } else if about.mode() & mask != 0 {
        let why = format!("its mode is {:04o}", about.mode() & 0o7777);
        let whose = if mask & 0o044 == 0 { "go-w" } else { "go-rwx" };
        (why, format!("chmod {whose} {}", path.display()))
    } else {
        return Ok(());
    };
    Err(KeysError::Unsafe {
        path: path.to_owned(),
        why,
        allowed,
        mend: format!(" ({command}; {mistrust})"),
    })
}

fn check_directory(dir: &Path, about: &fs::Metadata) -> Result<(), KeysError> {
    let allowed = "root's, and writable for nobody else";
    check(dir, about, 0o022, allowed, PUT_BY_OTHERS)
}

/// Keeps this process out of core dumps from now on, whatever its limits and the system's
/// `core_pattern` are: copies of a key are in more places than those that are wiped. It is so until
/// the process executes another program.
fn refuse_core_dumps(path: &Path) -> Result<(), KeysError> {
    let set = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    set.map_err(|error| system("cannot keep core dumps from", path)(error.into()))
}

/// The bytes of a file that nobody else can read or change, at most `most` of them.
fn read_private(path: &Path, most: usize, mistrust: &str) -> Result<Vec<u8>, KeysError> {
    refuse_core_dumps(path)?;
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path);
    let file = file.map_err(system("cannot read", path))?;
    let about = file.metadata().map_err(system("cannot read", path))?;
    if !about.is_file() {
        return Err(KeysError::Unsafe {
            path: path.to_owned(),
            why: "it is no file".to_owned(),
            allowed: "a file of mode 0600",
            mend: String::new(),
        });
    }
    check(path, &about, 0o077, "root's, of mode 0600", mistrust)?;
    let mut bytes = Vec::new();
    let mut bounded = file.take(most as u64 + 1);
    let read = bounded.read_to_end(&mut bytes);
    read.map_err(system("cannot read", path))?;
    if bytes.len() > most {
        return Err(KeysError::Unsafe {
            path: path.to_owned(),
            why: "it is too long for a key".to_owned(),
            allowed: "at most 4096 bytes",
            mend: String::new(),
        });
    }
    Ok(bytes)
}

/// The key that hosts with DAF share: a file of any bytes, which its `-s` names.
///
/// # Errors
/// The file cannot be read, others can read it, or it has no bytes or too many.
pub fn read_daf(path: &Path) -> Result<DafKey, KeysError> {
    let mistrust = "if others may have read it, it takes another one, on all hosts";
    let bytes = read_private(path, daf::MAX_KEY, mistrust)?;
    DafKey::new(&bytes).ok_or_else(|| KeysError::Unsafe {
        path: path.to_owned(),
        why: "it has no bytes".to_owned(),
        allowed: "1 to 4096 bytes",
        mend: String::new(),
    })
}

fn read_file(path: &Path) -> Result<Key, KeysError> {
    let text = String::from_utf8(read_private(path, MAX_BYTES, READ_BY_OTHERS)?);
    let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    let text = text.map_err(system("cannot read", path))?;
    let key = Key::parse(&text).map_err(|error| KeysError::File {
        path: path.to_owned(),
        error,
    })?;
    match path.file_name() == Some(file_name(key.id).as_ref()) {
        true => Ok(key),
        false => Err(KeysError::Name {
            path: path.to_owned(),
            id: key.id,
        }),
    }
}

fn file_name(id: KeyId) -> String {
    format!("{id}.key")
}

/// The keys of a directory: its files `*.key`.
///
/// # Errors
/// One of them is none, or could be read by others; the directory could be written by
/// others, or is not there.
pub fn read(dir: &Path) -> Result<KeyRing, KeysError> {
    let about = fs::metadata(dir).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => KeysError::NoDirectory(dir.to_owned()),
        _ => system("cannot read the directory of keys", dir)(error),
    })?;
    check_directory(dir, &about)?;
    // A file that is replaced meanwhile may be listed twice.
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(system("cannot read the directory of keys", dir))? {
        let path = entry
            .map_err(system("cannot read the directory of keys", dir))?
            .path();
        if path.extension().is_some_and(|extension| extension == "key") {
            paths.insert(path);
        }
    }
    let keys: Result<Vec<Key>, KeysError> = paths.iter().map(|path| read_file(path)).collect();
    Ok(KeyRing::new(keys?)?)
}

/// Keys that nobody else changes for as long. Readers need none of it: a file is there whole or
/// not at all.
struct Locked<'d> {
    dir: &'d Path,
    _lock: fs::File,
}

impl<'d> Locked<'d> {
    /// Waits, at most so long, until no other process changes the keys of a directory, and removes
    /// what one that was killed has left of a key: it has the secret.
    fn new(dir: &'d Path, wait: Duration) -> Result<Self, KeysError> {
        let about = fs::metadata(dir).map_err(system("cannot read the directory of keys", dir))?;
        check_directory(dir, &about)?;
        let path = dir.join(LOCK);
        let lock = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&path)
            .map_err(system("cannot open", &path))?;
        let began = Instant::now();
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if began.elapsed() < wait => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(KeysError::Busy {
                        dir: dir.to_owned(),
                        lock: path,
                        waited: began.elapsed(),
                    });
                }
                Err(error) => return Err(system("cannot lock", &path)(error.into())),
            }
        }
        let locked = Self { dir, _lock: lock };
        locked.remove_leftovers()?;
        Ok(locked)
    }

    fn remove_leftovers(&self) -> Result<(), KeysError> {
        let unread = "cannot read the directory of keys";
        for entry in fs::read_dir(self.dir).map_err(system(unread, self.dir))? {
            let entry = entry.map_err(system(unread, self.dir))?;
            if entry.file_name().to_str().is_some_and(is_aside) {
                let path = entry.path();
                fs::remove_file(&path).map_err(system("cannot remove", &path))?;
            }
        }
        Ok(())
    }

    /// Writes a key, in one step: nobody reads half of it. A new one replaces none.
    fn write(&self, key: &Key, is_new: bool) -> Result<(), KeysError> {
        let path = self.dir.join(file_name(key.id));
        let aside = self.dir.join(aside_name(key.id));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|mut file| {
                file.write_all(key.text().as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| match is_new {
                true => rename_new(&aside, &path),
                false => fs::rename(&aside, &path),
            })
            .and_then(|()| fs::File::open(self.dir)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written.map_err(system("cannot write", &path))
    }
}

/// The name of a key file until it is whole.
fn aside_name(id: KeyId) -> String {
    format!(".{}.{}", file_name(id), std::process::id())
}

/// Whether a file is one that has such a name.
fn is_aside(name: &str) -> bool {
    let parts: Vec<_> = name.split('.').collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    matches!(parts[..], ["", id, "key", process] if is_number(id) && is_number(process))
}

/// Gives a file another name that nothing has.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system without it.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => renamed.map_err(io::Error::from),
    }
}

/// Makes a key that may sign from then on, in a directory that is made if need be.
///
/// # Errors
/// The keys that are there cannot be read, one of them would always sign in the place of this
/// one, another process goes on changing keys, or this one cannot be written.
pub fn make(dir: &Path, sign_from: Timestamp) -> Result<Key, KeysError> {
    if !dir.exists() {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.map_err(system("cannot make the directory of keys", dir))?;
    }
    let locked = Locked::new(dir, WAIT)?;
    let ring = read(dir)?;
    let signing = ring.signing(Timestamp::now());
    if let Some(signing) = signing.and_then(|(id, _)| ring.get(id))
        && sign_from < signing.sign_from
    {
        return Err(KeysError::Never {
            wanted: sign_from,
            id: signing.id,
            since: signing.sign_from,
        });
    }
    let id = ring.free_id();
    let id = id.ok_or_else(|| KeysError::Full(dir.to_owned()))?;
    refuse_core_dumps(dir)?;
    let mut bytes = [0; 32];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags)
        .map_err(|error| system("cannot get random bytes for", dir)(error.into()))?;
    let key = Key {
        id,
        created: Timestamp::now()
            .round(jiff::Unit::Second)
            .unwrap_or(sign_from),
        sign_from,
        state: KeyState::Live(Secret::new(bytes)),
    };
    locked.write(&key, true)?;
    Ok(key)
}

/// Ends a key: its secret goes, and its id stays used.
///
/// # Errors
/// There is none, it is the last that signs, another process goes on changing keys, or the file
/// cannot be written.
pub fn retire(dir: &Path, id: KeyId) -> Result<Key, KeysError> {
    let locked = Locked::new(dir, WAIT)?;
    let now = Timestamp::now();
    let ring = read(dir)?;
    let key = ring.get(id).ok_or_else(|| KeysError::Missing {
        path: dir.to_owned(),
        id,
    })?;
    let others = ring.keys().iter().filter(|other| other.id != id);
    let without = KeyRing::new(others.cloned().collect())?;
    if ring.signing(now).is_some_and(|(signs, _)| signs == id) && without.signing(now).is_none() {
        return Err(KeysError::LastKey(id));
    }
    let retired = Key {
        state: match &key.state {
            KeyState::Live(_) => KeyState::Retired(now.round(jiff::Unit::Second).unwrap_or(now)),
            state @ KeyState::Retired(_) => state.clone(),
        },
        ..key.clone()
    };
    locked.write(&retired, false)?;
    Ok(retired)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn keys_are_made_listed_and_retired() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("keys");
        let now = Timestamp::now();
        let first = make(&dir, now).unwrap();
        assert_eq!(first.id, KeyId::MIN);
        let path = dir.join("1.key");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        let error = retire(&dir, first.id).unwrap_err().to_string();
        assert!(error.contains("key 1 signs, and no other may"), "{error}");
        // It would be accepted, and never sign.
        let earlier = now - jiff::SignedDuration::from_hours(1);
        let error = make(&dir, earlier).unwrap_err().to_string();
        assert!(error.contains("never does: key 1 signs"), "{error}");
        let second = make(&dir, now).unwrap();
        assert_eq!(second.id.number(), 2);
        assert_ne!(first.secret(), second.secret());
        retire(&dir, first.id).unwrap();
        let ring = read(&dir).unwrap();
        assert_eq!(ring.accepted().count(), 1);
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("retired") && !text.contains("secret ="),
            "{text}"
        );
        // Its number is not given again.
        assert_eq!(make(&dir, now).unwrap().id.number(), 3);
        let error = retire(&dir, KeyId::new(9).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains("there is no key 9"), "{error}");
        // Three keys and the lock.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 4);
    }

    #[test]
    fn changes_at_the_same_time_wait_for_each_other() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("keys");
        let now = Timestamp::now();
        let ids: BTreeSet<u8> = thread::scope(|scope| {
            let dir = &dir;
            let made: Vec<_> = (0..4)
                .map(|_| scope.spawn(move || make(dir, now).unwrap()))
                .collect();
            let made = made.into_iter().map(|one| one.join().unwrap().id.number());
            made.collect()
        });
        assert_eq!(ids, BTreeSet::from([1, 2, 3, 4]));
        // All but one can be retired, whichever is the last.
        let errors: Vec<_> = thread::scope(|scope| {
            let dir = &dir;
            let retired: Vec<_> = ids
                .iter()
                .map(|id| scope.spawn(move || retire(dir, KeyId::new(*id).unwrap())))
                .collect();
            let retired = retired.into_iter().map(|one| one.join().unwrap());
            retired.filter_map(Result::err).collect()
        });
        assert!(matches!(errors[..], [KeysError::LastKey(_)]), "{errors:?}");
        assert_eq!(read(&dir).unwrap().accepted().count(), 1);
    }

    #[test]
    fn a_change_that_does_not_end_is_an_error_and_a_new_key_replaces_none() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        set_mode(dir, 0o700);
        let key = make(dir, Timestamp::now()).unwrap();
        let locked = Locked::new(dir, WAIT).unwrap();
        let error = Locked::new(dir, Duration::from_millis(20)).err().unwrap();
        let error = error.to_string();
        assert!(
            error.contains("another process has changed keys for 0 seconds"),
            "{error}"
        );
        // Who reads them waits for nobody.
        assert_eq!(read(dir).unwrap().keys().len(), 1);
        let error = locked.write(&key, true).unwrap_err().to_string();
        assert!(
            error.contains("cannot write") && error.contains("1.key: File exists"),
            "{error}"
        );
    }

    #[test]
    fn what_a_killed_process_has_left_of_a_key_goes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        set_mode(dir, 0o700);
        make(dir, Timestamp::now()).unwrap();
        let left = [".2.key.4711", ".1.key.1"].map(|name| dir.join(name));
        let others = [".2.key.old", ".x.key.1", "2.key.1"].map(|name| dir.join(name));
        for path in left.iter().chain(&others) {
            fs::copy(dir.join("1.key"), path).unwrap();
        }
        // It is no key.
        assert_eq!(read(dir).unwrap().keys().len(), 1);
        make(dir, Timestamp::now()).unwrap();
        assert!(!left.iter().any(|path| path.exists()));
        assert!(others.iter().all(|path| path.exists()));
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        set_mode(dir, 0o700);
        let key = make(dir, Timestamp::now()).unwrap();
        let path = dir.join("1.key");
        for mode in [0o640, 0o604, 0o660] {
            set_mode(&path, mode);
            let error = read(dir).unwrap_err().to_string();
            assert!(
                error.contains(&format!(
                    "1.key: its mode is {mode:04o}; allowed: root's, of mode 0600"
                )),
                "{error}"
            );
        }
        set_mode(&path, 0o600);
        set_mode(dir, 0o770);
        let error = read(dir).unwrap_err().to_string();
        assert!(error.contains("its mode is 0770"), "{error}");
        set_mode(dir, 0o700);
        // Another name, a link, a text that is none, one that is too long.
        fs::copy(&path, dir.join("7.key")).unwrap();
        let error = read(dir).unwrap_err().to_string();
        assert!(
            error.contains("7.key: it has the id 1, and would be 1.key"),
            "{error}"
        );
        fs::remove_file(dir.join("7.key")).unwrap();
        std::os::unix::fs::symlink(&path, dir.join("8.key")).unwrap();
        let error = read(dir).unwrap_err().to_string();
        assert!(
            error.contains("cannot read") && error.contains("8.key"),
            "{error}"
        );
        fs::remove_file(dir.join("8.key")).unwrap();
        fs::write(&path, &key.text()[..60]).unwrap();
        let error = read(dir).unwrap_err().to_string();
        assert!(error.contains("1.key: "), "{error}");
        fs::write(&path, "#".repeat(MAX_BYTES + 1)).unwrap();
        let error = read(dir).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        let error = read(&dir.join("none")).unwrap_err().to_string();
        assert!(
            error.contains("cannot read the directory of keys"),
            "{error}"
        );
    }
}
