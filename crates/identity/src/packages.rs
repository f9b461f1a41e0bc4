//! Which package an executable belongs to, by dpkg's record of its files
//! (`/var/lib/dpkg/info/PACKAGE.md5sums`) or rpm's, and whether it is still what was installed.
//!
//! dpkg's record is MD5, and both are files that root can write: agreement says that an
//! upgrade of the package put this file here, or somebody who could have replaced both.
//! It is no proof against an attacker with root's rights, and MD5 is none against one who
//! made the package; it tells an upgrade from a file that somebody has put in its place.

pub mod rpm;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use md5::{Digest as _, Md5};
use sha2::Sha256;

/// Where dpkg keeps its records.
pub const DPKG_INFO: &str = "/var/lib/dpkg/info";
/// So many packages are read.
const MAX_PACKAGES: usize = 100_000;
/// So long may a record be: the longest of Debian 12 has a few MiB.
const MAX_RECORD: u64 = 64 << 20;
/// The longest file whose content is compared.
const MAX_FILE: u64 = 4 << 30;

/// The digest of a file as it was packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedDigest {
    /// As dpkg has it, and rpm of old packages.
    Md5([u8; 16]),
    /// As rpm has it.
    Sha256([u8; 32]),
}

/// What is on record of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The package, without its architecture.
    pub package: String,
    /// Of the file as it was packed.
    pub digest: PackedDigest,
}

/// The records of this host's package managers.
#[derive(Debug, Clone)]
pub struct Records {
    dpkg: PathBuf,
    rpm: Vec<PathBuf>,
}

impl Recorded {
    /// Is this the file on record, which has these two digests?
    pub fn is_of(&self, sha256: crate::Digest, md5: [u8; 16]) -> bool {
        match self.digest {
            PackedDigest::Md5(packed) => packed == md5,
            PackedDigest::Sha256(packed) => packed == sha256.0,
        }
    }

    /// By which digest the record tells.
    pub fn kind(&self) -> &'static str {
        match self.digest {
            PackedDigest::Md5(_) => "MD5",
            PackedDigest::Sha256(_) => "SHA-256",
        }
    }
}

/// When something was changed last: seconds and nanoseconds.
type Changed = Option<(i64, i64)>;

/// When the records were written last; of other ones it is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written(Vec<Changed>);

impl Default for Records {
    fn default() -> Self {
        Self {
            dpkg: DPKG_INFO.into(),
            rpm: rpm::DATABASES.map(PathBuf::from).to_vec(),
        }
    }
}

impl Records {
    /// dpkg's alone, elsewhere.
    pub fn of_dpkg(info: &Path) -> Self {
        Self {
            dpkg: info.to_owned(),
            rpm: Vec::new(),
        }
    }

    /// The names of all packages whose files are on record, and why some could not be read.
    pub fn names(&self) -> (BTreeSet<String>, Option<io::Error>) {
        let (mut names, mut error) = match names_of_dpkg(&self.dpkg) {
            Ok(names) => (names, None),
            Err(error) => (BTreeSet::new(), Some(error)),
        };
        // A host may have none, or that of another distribution's.
        error = error.filter(|error| error.kind() != io::ErrorKind::NotFound);
        for database in self.rpm.iter().filter(|database| rpm::is_there(database)) {
            match rpm::names(database) {
                Ok(more) => names.extend(more),
                Err(of_rpm) => error = Some(of_rpm),
            }
        }
        (names, error)
    }

    /// The times when the records were written last. dpkg puts each in its place by a rename.
    pub fn written(&self) -> Written {
        use std::os::unix::fs::MetadataExt;
        let files = self
            .rpm
            .iter()
            .flat_map(|database| rpm::written_to(database));
        let files = std::iter::once(self.dpkg.clone()).chain(files);
        let when = |path: PathBuf| {
            let about = fs::metadata(path).ok()?;
            Some((about.mtime(), about.mtime_nsec()))
        };
        Written(files.map(when).collect())
    }

    /// The records of these files, for those that a package has, and why some records could not be
    /// read. dpkg's go first.
    pub fn of(&self, paths: &[&Path]) -> (BTreeMap<PathBuf, Recorded>, Option<io::Error>) {
        let (mut found, mut error) = match recorded(&self.dpkg, paths) {
            Ok(found) => (found, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        for database in self.rpm.iter().filter(|database| rpm::is_there(database)) {
            let left = paths.iter().filter(|path| !found.contains_key(**path));
            let left: Vec<_> = left.copied().collect();
            match rpm::recorded(database, &left) {
                Ok(more) => {
                    found.extend(more);
                    // A host of rpm's has no dpkg.
                    error = error.filter(|error| error.kind() != io::ErrorKind::NotFound);
                }
                Err(of_rpm) => error = Some(of_rpm),
            }
        }
        (found, error)
    }
}

/// The package of a record of dpkg's, without its architecture; `None`: it is another file.
fn package_of(record: &Path) -> Option<&str> {
    let name = record.file_name()?.to_str()?;
    name.strip_suffix(".md5sums")?.split(':').next()
}

/// The packages that dpkg has records of.
fn names_of_dpkg(info: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(info)?.take(4 * MAX_PACKAGES) {
        names.extend(package_of(&entry?.path()).map(str::to_owned));
    }
    Ok(names)
}

/// The records of these files, for those that a package has. One pass over all records.
///
/// # Errors
/// The directory of records cannot be read.
fn recorded(info: &Path, paths: &[&Path]) -> io::Result<BTreeMap<PathBuf, Recorded>> {
    let mut wanted: BTreeMap<Vec<u8>, &Path> = BTreeMap::new();
    for path in paths {
        for name in names(path) {
            wanted.insert(name, path);
        }
    }
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(info)?.take(4 * MAX_PACKAGES) {
        let file = entry?.path();
        let Some(package) = package_of(&file) else {
            continue;
        };
        let mut text = Vec::new();
        // One that goes meanwhile was of a package that goes.
        let read = File::open(&file).and_then(|file| file.take(MAX_RECORD).read_to_end(&mut text));
        if read.is_err() {
            continue;
        }
        for line in text.split(|byte| *byte == b'\n') {
            let Some((digest, name)) = record(line) else {
                continue;
            };
            if let Some(path) = wanted.get(name) {
                let package = package.to_owned();
                found.insert(path.to_path_buf(), Recorded { package, digest });
            }
        }
    }
    Ok(found)
}

/// `d41d8cd98f00b204e9800998ecf8427e  usr/bin/curl`
fn record(line: &[u8]) -> Option<(PackedDigest, &[u8])> {
    let (digits, rest) = line.split_at_checked(32)?;
    let name = rest
        .strip_prefix(b"  ")
        .or_else(|| rest.strip_prefix(b" *"))?;
    let digest = PackedDigest::Md5(hex(digits)?);
    Some((digest, name.strip_prefix(b"./").unwrap_or(name)))
}

/// Bytes of as many pairs of hexadecimal digits, and no others.
fn hex<const LEN: usize>(digits: &[u8]) -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    if digits.len() != 2 * LEN {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

/// How a record may name a file: from the root, and where `/bin`, `/sbin` and `/lib` are
/// links into `/usr` also without that.
fn names(path: &Path) -> Vec<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let Some(name) = path.as_os_str().as_bytes().strip_prefix(b"/") else {
        return Vec::new();
    };
    let merged = name.strip_prefix(b"usr/").filter(|rest| {
        [&b"bin/"[..], b"sbin/", b"lib"]
            .iter()
            .any(|dir| rest.starts_with(dir))
    });
    let all = std::iter::once(name).chain(merged);
    all.map(<[u8]>::to_vec).collect()
}

/// Does this open file have the content that is on record? A file may be very long without
/// taking room on a disk: so it is read for so long at most.
///
/// # Errors
/// It cannot be read, or not in this time (`TimedOut`).
pub fn is_as_recorded(file: &File, recorded: &Recorded, within: Duration) -> io::Result<bool> {
    let until = Instant::now().checked_add(within);
    match recorded.digest {
        PackedDigest::Md5(packed) => {
            let mut hasher = Md5::new();
            let is_whole = read(file, until, |portion| hasher.update(portion))?;
            Ok(is_whole && hasher.finalize()[..] == packed)
        }
        PackedDigest::Sha256(packed) => {
            let mut hasher = Sha256::new();
            let is_whole = read(file, until, |portion| hasher.update(portion))?;
            Ok(is_whole && hasher.finalize()[..] == packed)
        }
    }
}

/// Gives a file away in portions; false: it is too long. `until`: or without end.
fn read(file: &File, until: Option<Instant>, mut give: impl FnMut(&[u8])) -> io::Result<bool> {
    if file.metadata()?.len() > MAX_FILE {
        return Ok(false);
    }
    let mut portion = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut portion, at)?;
        at += read as u64;
        if read == 0 {
            return Ok(true);
        }
        if at > MAX_FILE {
            return Ok(false);
        }
        give(&portion[..read]);
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// md5sum of "one" and of "two".
    const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";
    const TWO: &str = "b8a9f715dbb64fd5c56e7783c6820a61";

    /// The package that has this very file: on record, and unchanged.
    fn owner(info: &Path, path: &Path, file: &File) -> Option<String> {
        let mut recorded = recorded(info, &[path]).ok()?;
        let recorded = recorded.remove(path)?;
        is_as_recorded(file, &recorded, Duration::MAX)
            .ok()?
            .then_some(recorded.package)
    }

    #[test]
    fn a_file_is_of_the_package_that_has_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let info = dir.path().join("info");
        fs::create_dir(&info).unwrap();
        let program = dir.path().join("a tool");
        let name = program.to_str().unwrap().trim_start_matches('/');
        fs::write(&program, "one").unwrap();
        let record = |package: &str, md5: &str| {
            let lines = format!("{TWO}  usr/bin/other\nnonsense\n{md5}  {name}\n");
            fs::write(info.join(package), lines).unwrap();
        };
        let owner = || owner(&info, &program, &File::open(&program).unwrap());
        assert_eq!(owner(), None);
        record("tool:amd64.md5sums", ONE);
        fs::write(info.join("tool:amd64.list"), "x").unwrap();
        fs::write(info.join("gone.list"), "x").unwrap();
        let (names, error) = Records::of_dpkg(&info).names();
        assert_eq!(names, BTreeSet::from(["tool".to_owned()]));
        assert!(error.is_none(), "{error:?}");
        let (none, error) = Records::of_dpkg(&dir.path().join("none")).names();
        assert!(none.is_empty() && error.is_none(), "{error:?}");
        assert_eq!(owner().as_deref(), Some("tool"));
        // Replaced, and then replaced by an upgrade.
        fs::write(&program, "two").unwrap();
        assert_eq!(owner(), None);
        record("tool:amd64.md5sums", TWO);
        assert_eq!(owner().as_deref(), Some("tool"));
        // Longer than there is time for: it takes no room.
        let long = File::create(dir.path().join("long")).unwrap();
        long.set_len(MAX_FILE).unwrap();
        let long = File::open(dir.path().join("long")).unwrap();
        let of_record = recorded(&info, &[&program]).unwrap();
        let late = is_as_recorded(&long, &of_record[&program], Duration::from_millis(20));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let elsewhere = dir.path().join("none");
        assert!(recorded(&elsewhere, &[&program]).is_err());
    }

    #[test]
    fn records_name_files_with_and_without_usr() {
        let text = |path: &str| {
            let names = names(Path::new(path)).into_iter();
            names
                .map(|name| String::from_utf8(name).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(text("/usr/bin/ls"), ["usr/bin/ls", "bin/ls"]);
        assert_eq!(text("/usr/lib64/ld.so"), ["usr/lib64/ld.so", "lib64/ld.so"]);
        assert_eq!(text("/usr/share/x"), ["usr/share/x"]);
        assert_eq!(text("/opt/x"), ["opt/x"]);
        assert!(text("x").is_empty());
    }

    /// On a Debian host: the shell that ran this.
    #[test]
    fn this_hosts_programs_are_those_of_its_packages() {
        let info = Path::new(DPKG_INFO);
        let program = Path::new("/usr/bin/md5sum");
        if !info.join("coreutils.md5sums").exists() {
            eprintln!("skipped: no dpkg record of coreutils");
            return;
        }
        let file = File::open(program).unwrap();
        assert_eq!(owner(info, program, &file).as_deref(), Some("coreutils"));
    }
}
