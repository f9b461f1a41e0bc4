//! The digest of a file, from its descriptor: bounded in bytes and time, and only if the
//! file was the same all the while.
//!
//! It is the descriptor that counts, not a path: `/proc/PID/map_files/RANGE` and
//! `/proc/PID/exe` give the inode that is mapped, whatever lies at its path now. What
//! cannot be seen here is a writer who has the file mapped shared: a store to a page that
//! is dirty already leaves no time stamp. Who keeps digests takes a read lease (or marks
//! the inode) before, and hashes then.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use md5::Md5;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use crate::Digest;

/// How much is read for one digest.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The length of the file, holes included.
    pub bytes: u64,
    /// From the first byte to the last.
    pub time: Duration,
}

impl Default for Limits {
    /// 4 GiB, and half a minute.
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            time: Duration::from_secs(30),
        }
    }
}

/// A file at one moment, by its inode. Two that are equal have the same content, but for
/// writers that leave no trace (see above).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The device, as `st_dev`.
    pub dev: u64,
    /// The inode's number, as `st_ino`.
    pub ino: u64,
    /// The inode's generation, where the kernel tells it; else 0.
    pub generation: u32,
    /// When the inode was last changed: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// The length of the file in bytes.
    pub size: u64,
}

impl FileKey {
    /// Of an open file, without a generation.
    pub fn of(stat: &fs::Metadata) -> Self {
        Self {
            dev: stat.dev(),
            ino: stat.ino(),
            generation: 0,
            ctime: (stat.ctime(), stat.ctime_nsec() as u32),
            size: stat.size(),
        }
    }
}

/// The digest of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    /// The SHA-256 of the content.
    pub digest: Digest,
    /// The file whose content it is.
    pub file: FileKey,
    /// The kind of its file system, if that may answer otherwise at each read: then the
    /// digest says what was read, and nothing about what runs.
    pub mutable: Option<&'static str>,
}

impl Hashed {
    /// The digest, if rules may rely on it.
    pub fn trusted(&self) -> Option<Digest> {
        self.mutable.is_none().then_some(self.digest)
    }
}

/// Why a file has no digest.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// The file cannot be opened or read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A directory, a device, a pipe or a socket.
    #[error("it is no regular file")]
    NoFile,
    /// The file is longer than [`Limits::bytes`].
    #[error("it has {0} bytes, and files of more than {1} are not read")]
    TooLarge(u64, u64),
    /// Reading takes longer than [`Limits::time`].
    #[error("it cannot be read within {0:?}")]
    TooSlow(Duration),
    /// It was written, cut or replaced meanwhile.
    #[error("it changed while it was read")]
    Changed,
}

/// Opens the file of a path, whatever it is, without waiting; not one that is no regular
/// file.
///
/// # Errors
/// See [`HashError::Io`] and [`HashError::NoFile`].
pub fn open(path: &Path) -> Result<File, HashError> {
    // Opening a device may have an effect.
    if !fs::metadata(path)?.is_file() {
        return Err(HashError::NoFile);
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    Ok(OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?)
}

/// The digest of the file that a path names now.
///
/// # Errors
/// See [`HashError`].
pub fn path(path: &Path, limits: Limits) -> Result<Hashed, HashError> {
    file(&open(path)?, limits)
}

/// The digest of an open file, whatever its position.
///
/// # Errors
/// See [`HashError`].
pub fn file(file: &File, limits: Limits) -> Result<Hashed, HashError> {
    read(file, Reading::begin(file, limits.bytes)?, limits.time).map(|(hashed, _)| hashed)
}

/// The same, and the MD5 of what was read, as records of packages have it: of one pass, so that
/// both are of one content.
///
/// # Errors
/// See [`HashError`].
pub fn file_with_md5(file: &File, limits: Limits) -> Result<(Hashed, [u8; 16]), HashError> {
    let reading = Reading::begin(file, limits.bytes)?.with_md5();
    let (hashed, reading) = read(file, reading, limits.time)?;
    Ok((hashed, reading.md5().unwrap_or_default()))
}

fn read(file: &File, mut reading: Reading, time: Duration) -> Result<(Hashed, Reading), HashError> {
    let hashed = reading.go_on(file, time)?;
    let hashed = hashed.ok_or(HashError::TooSlow(time))?;
    Ok((hashed, reading))
}

/// A file that is read for its digest a while at a time, as one that is large.
#[derive(Debug)]
pub struct Reading {
    stat: fs::Metadata,
    mutable: Option<&'static str>,
    hasher: Sha256,
    md5: Option<Md5>,
    at: u64,
    spent: Duration,
}

impl Reading {
    /// Of a file of so many bytes at most.
    ///
    /// # Errors
    /// [`HashError::Io`], [`HashError::NoFile`] and [`HashError::TooLarge`].
    pub fn begin(file: &File, most: u64) -> Result<Self, HashError> {
        let stat = file.metadata()?;
        if !stat.is_file() {
            return Err(HashError::NoFile);
        }
        if stat.size() > most {
            return Err(HashError::TooLarge(stat.size(), most));
        }
        Ok(Self {
            mutable: mutable_kind(file),
            hasher: Sha256::new(),
            md5: None,
            at: 0,
            spent: Duration::ZERO,
            stat,
        })
    }

    /// The same, which has not been read on yet, with the MD5 beside.
    pub fn with_md5(self) -> Self {
        let md5 = Some(Md5::new());
        Self { md5, ..self }
    }

    /// The file, as it was when this began.
    pub fn file(&self) -> FileKey {
        FileKey::of(&self.stat)
    }

    /// Whether the MD5 is computed beside.
    pub fn has_md5(&self) -> bool {
        self.md5.is_some()
    }

    /// The MD5 of what was read so far, if it was asked for: of the same bytes as the digest.
    pub fn md5(&self) -> Option<[u8; 16]> {
        let md5 = self.md5.clone()?;
        Some(md5.finalize().into())
    }

    /// How long was read so far.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Reads on for so long, of the same file; `None`: that was not enough.
    ///
    /// # Errors
    /// [`HashError::Io`] and [`HashError::Changed`].
    pub fn go_on(&mut self, file: &File, time: Duration) -> Result<Option<Hashed>, HashError> {
        const PORTION: usize = 256 << 10;
        let begin = Instant::now();
        let mut portion = vec![0; PORTION];
        loop {
            let read = match file.read_at(&mut portion, self.at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                break;
            }
            self.at += read as u64;
            if self.at > self.stat.size() {
                return Err(HashError::Changed);
            }
            self.hasher.update(&portion[..read]);
            if let Some(md5) = &mut self.md5 {
                md5.update(&portion[..read]);
            }
            if begin.elapsed() > time {
                self.spent += begin.elapsed();
                return Ok(None);
            }
        }
        let after = file.metadata()?;
        let times = |stat: &fs::Metadata| (stat.mtime(), stat.mtime_nsec());
        if self.at != self.stat.size()
            || FileKey::of(&after) != FileKey::of(&self.stat)
            || times(&after) != times(&self.stat)
        {
            return Err(HashError::Changed);
        }
        Ok(Some(Hashed {
            digest: Digest(self.hasher.clone().finalize().into()),
            file: FileKey::of(&self.stat),
            mutable: self.mutable,
        }))
    }
}

/// The kind of a file's file system, if others hold its content: what is read is what they
/// say at that moment.
///
/// By FUSE and NFS whoever holds it is asked, and waited for.
pub fn mutable_kind(file: &File) -> Option<&'static str> {
    match rustix::fs::fstatfs(file) {
        Ok(stat) => kind_of(stat.f_type as u32),
        // Whoever holds it is asked by FUSE, and may refuse to say.
        Err(_) => Some("a file system that does not say what it is"),
    }
}

/// Could a file system of this type, as lists of mounts name it, be one of those that
/// [`mutable_kind`] tells? FUSE has subtypes: `fuse.sshfs`.
pub fn is_mutable_type(name: &[u8]) -> bool {
    let name = name.split(|byte| *byte == b'.').next().unwrap_or(name);
    let mut names = MUTABLE.iter().flat_map(|(_, _, names)| *names);
    names.any(|one| one.as_bytes() == name)
}

/// `OVERLAYFS_SUPER_MAGIC` of linux/magic.h.
pub const OVERLAYFS: u32 = 0x794c_7630;

/// Is it a file of an overlay, whose content is in files of other file systems?
pub fn is_overlay(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type as u32 == OVERLAYFS)
}

/// File systems whose content others hold: what people call them, their magic numbers
/// (linux/magic.h, and their own headers), and their types in lists of mounts.
const MUTABLE: [(&str, &[u32], &[&str]); 12] = [
    ("FUSE", &[0x6573_5546], &["fuse", "fuseblk"]),
    ("NFS", &[0x0000_6969], &["nfs", "nfs4"]),
    (
        "SMB",
        &[0xff53_4d42, 0xfe53_4d42, 0x0000_517b],
        &["cifs", "smb3"],
    ),
    ("9p", &[0x0102_1997], &["9p"]),
    ("Ceph", &[0x00c3_6400], &["ceph"]),
    ("AFS", &[0x5346_414f, 0x6b41_4653], &["afs"]),
    ("Coda", &[0x7375_7245], &["coda"]),
    ("a VirtualBox share", &[0x786f_4256], &["vboxsf"]),
    ("Lustre", &[0x0bd0_0bd0], &["lustre"]),
    ("GFS2", &[0x0116_1970], &["gfs2"]),
    ("OCFS2", &[0x7461_636f], &["ocfs2"]),
    ("OrangeFS", &[0x2003_0528], &["pvfs2"]),
];

/// As [`mutable_kind`] of a file system with this magic number.
pub fn kind_of(magic: u32) -> Option<&'static str> {
    let found = MUTABLE
        .iter()
        .find(|(_, magics, _)| magics.contains(&magic));
    found.map(|(kind, ..)| *kind)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn written(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn a_digest_is_that_of_the_content() {
        // FIPS 180-2, appendix B.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let of = |content: &[u8]| path(written(content).path(), Limits::default()).unwrap();
        assert_eq!(of(b"abc").digest.to_string(), abc);
        assert_eq!(of(b"").digest.to_string(), EMPTY);
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        let all = of(&vec![b'a'; 1_000_000]);
        assert_eq!(
            (all.digest.to_string(), all.file.size),
            (million.to_owned(), 1_000_000)
        );
        assert_eq!(all.trusted(), Some(all.digest));
    }

    #[test]
    fn both_digests_of_a_file_are_found_a_while_at_a_time() {
        let file = written(&vec![b'a'; 1_000_000]);
        let mut reading = Reading::begin(file.as_file(), 1_000_000)
            .unwrap()
            .with_md5();
        let mut whiles = 0;
        let hashed = loop {
            whiles += 1;
            let read = reading.go_on(file.as_file(), Duration::ZERO).unwrap();
            if let Some(hashed) = read {
                break hashed;
            }
        };
        assert!(whiles > 3, "{whiles}");
        assert_eq!(hashed, path(file.path(), Limits::default()).unwrap());
        // md5sum of the same.
        let md5 = 0x7707_d6ae_4e02_7c70_eea2_a935_c229_6f21_u128.to_be_bytes();
        assert_eq!(reading.md5(), Some(md5));
        assert_eq!(reading.file(), hashed.file);
        let whole = file_with_md5(file.as_file(), Limits::default()).unwrap();
        assert_eq!(whole, (hashed, md5));
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [dir.path(), Path::new("/dev/zero"), &fifo] {
            let error = super::path(path, Limits::default()).unwrap_err();
            assert!(matches!(error, HashError::NoFile), "{path:?}: {error}");
        }
        let error = path(&dir.path().join("none"), Limits::default()).unwrap_err();
        assert!(matches!(error, HashError::Io(_)), "{error}");
    }

    #[test]
    fn a_file_is_read_up_to_its_limit_and_no_further() {
        let file = written(b"");
        // A hole: it takes no room, and counts whole.
        file.as_file().set_len(1 << 20).unwrap();
        let limits = |bytes| Limits {
            bytes,
            ..Limits::default()
        };
        let digest = path(file.path(), limits(1 << 20)).unwrap();
        let zeros = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58";
        assert_eq!(digest.digest.to_string(), zeros);
        let error = path(file.path(), limits((1 << 20) - 1)).unwrap_err();
        assert!(
            matches!(error, HashError::TooLarge(1_048_576, 1_048_575)),
            "{error}"
        );
        file.as_file().set_len((4 << 30) + 1).unwrap();
        let error = path(file.path(), Limits::default()).unwrap_err();
        assert!(matches!(error, HashError::TooLarge(..)), "{error}");
        file.as_file().set_len(4 << 30).unwrap();
        let time = Duration::from_millis(1);
        let error = path(
            file.path(),
            Limits {
                time,
                ..Limits::default()
            },
        )
        .unwrap_err();
        assert!(matches!(error, HashError::TooSlow(_)), "{error}");
    }

    #[test]
    fn a_file_that_changes_meanwhile_has_no_digest() {
        let file = written(&vec![1; 64 << 20]);
        let done = AtomicBool::new(false);
        let begun = std::sync::Barrier::new(2);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                while !done.load(Ordering::Relaxed) {
                    file.as_file().write_all_at(b"x", 7).unwrap();
                }
            });
            begun.wait();
            let result = super::file(file.as_file(), Limits::default());
            done.store(true, Ordering::Relaxed);
            result
        });
        assert!(matches!(result, Err(HashError::Changed)), "{result:?}");
    }

    #[test]
    fn file_systems_of_others_are_known() {
        assert_eq!(kind_of(0x6969), Some("NFS"));
        for (name, is) in [
            ("fuse", true),
            ("fuse.sshfs", true),
            ("fuseblk", true),
            ("nfs4", true),
            ("pvfs2", true),
            ("fusectl", false),
            ("nfsd", false),
            ("ext4", false),
            ("", false),
        ] {
            assert_eq!(is_mutable_type(name.as_bytes()), is, "{name}");
        }
        assert_eq!(kind_of(0x6573_5546), Some("FUSE"));
        // ext4, tmpfs, overlayfs, btrfs
        for own in [0xef53, 0x0102_1994, 0x794c_7630, 0x9123_683e] {
            assert_eq!(kind_of(own), None, "{own:x}");
        }
    }
}
