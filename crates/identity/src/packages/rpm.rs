//! What rpm has on record: it is asked itself, for there are three kinds of databases, and
//! nobody else reads all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{PackedDigest, Recorded, hex};

/// Where rpm keeps its databases, by age of the distribution.
pub const DATABASES: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];
/// What one of them is: of SQLite, of SUSE's own kind, of Berkeley DB.
const FILES: [&str; 3] = ["rpmdb.sqlite", "Packages.db", "Packages"];
/// What SQLite writes to first.
const LOG: &str = "rpmdb.sqlite-wal";
const PROGRAM: &str = "/usr/bin/rpm";
/// Files that are asked for at a time.
const AT_ONCE: usize = 256;
/// So much is read of what rpm prints: a package of 100,000 files has some 15 MiB.
const MAX_PRINTED: u64 = 256 << 20;
/// So long rpm may take.
const WITHIN: Duration = Duration::from_secs(30);
/// PGPHASHALGO_* of rpm (RFC 9580 9.5); of old packages nothing is said, and it is MD5.
const SHA256: &[u8] = b"8";
const MD5: [&[u8]; 2] = [b"1", b"(none)"];

/// Is there a database, and rpm to read it?
pub fn is_there(database: &Path) -> bool {
    Path::new(PROGRAM).exists() && FILES.iter().any(|file| database.join(file).exists())
}

/// The files that rpm writes to.
pub fn written_to(database: &Path) -> impl Iterator<Item = PathBuf> {
    let files = FILES.into_iter().chain([LOG]);
    files.map(|file| database.join(file))
}

/// The records of these files, for those that a package has.
///
/// # Errors
/// rpm cannot be run, or does not end in time.
pub fn recorded(database: &Path, paths: &[&Path]) -> io::Result<BTreeMap<PathBuf, Recorded>> {
    let mut found = BTreeMap::new();
    // It would take anything else for an option, or for a file in a directory of ours.
    let absolute: Vec<_> = paths.iter().filter(|path| path.is_absolute()).collect();
    for some in absolute.chunks(AT_ONCE) {
        let printed = run(database, &["-qf", "--qf", FORMAT, "--"], some)?;
        for (path, recorded) in records(&printed) {
            // rpm knows a path also where a directory of it is a link now.
            let is = |one: &&&&Path| {
                one.file_name() == path.file_name()
                    && (***one == path || fs::canonicalize(&path).is_ok_and(|real| real == ***one))
            };
            if let Some(wanted) = some.iter().find(is) {
                found.insert(wanted.to_path_buf(), recorded);
            }
        }
    }
    Ok(found)
}

/// The names of all packages.
///
/// # Errors
/// rpm cannot be run, or does not end in time.
pub fn names(database: &Path) -> io::Result<BTreeSet<String>> {
    let printed = run(database, &["-qa", "--qf", "%{NAME}\\n"], &[])?;
    let names = String::from_utf8_lossy(&printed);
    Ok(names.lines().map(str::to_owned).collect())
}

/// All files of the packages that have some.
const FORMAT: &str =
    "[%{=NAME}\\t%{=FILEDIGESTALGO}\\t%{FILEDIGESTS}\\t%{FILEMODES:octal}\\t%{FILENAMES}\\n]";

/// What rpm prints, asked like this about these files.
fn run(database: &Path, question: &[&str], paths: &[&&Path]) -> io::Result<Vec<u8>> {
    let mut child = Command::new(PROGRAM)
        .arg("--dbpath")
        .arg(database)
        .args(question)
        .args(paths)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("HOME", "/")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Of each file that no package has.
        .stderr(Stdio::null())
        .spawn()?;
    let out = child.stdout.take().expect("it is a pipe");
    let reader = thread::spawn(move || {
        let mut printed = Vec::new();
        out.take(MAX_PRINTED)
            .read_to_end(&mut printed)
            .map(|_| printed)
    });
    let begun = Instant::now();
    while !reader.is_finished() {
        if begun.elapsed() >= WITHIN {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(2));
    }
    // It may have more to say.
    let _ = child.kill();
    child.wait()?;
    let printed = reader.join();
    printed.unwrap_or_else(|_| Err(io::Error::other("its output was not read")))
}

/// The records in what rpm prints of files; a line that is none is left out.
pub fn records(printed: &[u8]) -> impl Iterator<Item = (PathBuf, Recorded)> {
    printed.split(|byte| *byte == b'\n').filter_map(record)
}

/// `curl TAB 8 TAB SHA-256 TAB mode TAB /usr/bin/curl`
fn record(line: &[u8]) -> Option<(PathBuf, Recorded)> {
    let mut fields = line.splitn(5, |byte| *byte == b'\t');
    let mut field = || fields.next();
    let (package, kind, digest, _mode, path) = (field()?, field()?, field()?, field()?, field()?);
    let digest = match kind {
        SHA256 => PackedDigest::Sha256(hex(digest)?),
        kind if MD5.contains(&kind) => PackedDigest::Md5(hex(digest)?),
        _ => return None,
    };
    let package = std::str::from_utf8(package).ok()?.to_owned();
    let path = PathBuf::from(OsStr::from_bytes(path));
    Some((path, Recorded { package, digest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rpm_prints_is_read_whatever_a_path_has() {
        let digest = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
        let line = format!("tool\t8\t{digest}\t0100755\t/opt/a tool\twith a tab");
        let (path, recorded) = record(line.as_bytes()).unwrap();
        assert_eq!(path, Path::new("/opt/a tool\twith a tab"));
        assert_eq!(recorded.package, "tool");
        assert!(matches!(recorded.digest, PackedDigest::Sha256(sum) if sum[0] == 0x76));
        let old = b"tool\t(none)\tf97c5d29941bfb1b2fdab0874906ab82\t0100755\t/opt/x";
        assert!(matches!(
            record(old),
            Some((
                _,
                Recorded {
                    digest: PackedDigest::Md5(_),
                    ..
                }
            ))
        ));
        for line in [
            "file /opt/x is not owned by any package",
            "tool\t8\t\t040755\t/opt",
            "tool\t8\tf97c5d29941bfb1b2fdab0874906ab82\t0100755\t/opt/x",
            "tool\t2\tf97c5d29941bfb1b2fdab0874906ab82\t0100755\t/opt/x",
            "",
        ] {
            assert_eq!(record(line.as_bytes()), None, "{line:?}");
        }
    }

    const SPEC: &str = "Name: weir-test-tool
Version: 1
Release: 1
Summary: a tool
License: MIT
BuildArch: noarch
%description
A tool.
%install
mkdir -p %{buildroot}%{at}
printf one >%{buildroot}%{at}/tool
%files
%{at}/tool
";

    /// A package that is built and installed by the real rpm.
    #[test]
    fn a_file_is_of_the_package_that_rpm_has_on_record() {
        if !Path::new(PROGRAM).exists() || !Path::new("/usr/bin/rpmbuild").exists() {
            eprintln!("skipped: rpm and rpmbuild are not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [at, top, database] = ["at", "top", "database"].map(|name| dir.path().join(name));
        let spec = dir.path().join("tool.spec");
        fs::write(&spec, SPEC).unwrap();
        let done = |command: &mut Command| {
            let done = command.env("HOME", dir.path()).output().unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        for path in [&at, &database] {
            fs::create_dir(path).unwrap();
        }
        let define = |name: &str, path: &Path| format!("{name} {}", path.display());
        let build = ["-bb", "--quiet", "--define"];
        done(
            Command::new("rpmbuild")
                .args(build)
                .args([&define("_topdir", &top), "--define", &define("at", &at)])
                .arg(&spec),
        );
        let package = top.join("RPMS/noarch/weir-test-tool-1-1.noarch.rpm");
        assert!(!is_there(&database));
        done(
            Command::new(PROGRAM)
                .arg("--dbpath")
                .arg(&database)
                .args(["-i", "--justdb", "--nodeps"])
                .arg(&package),
        );
        assert!(is_there(&database));
        let (tool, none) = (at.join("tool"), at.join("none"));
        fs::write(&tool, "one").unwrap();
        let paths = [
            tool.as_path(),
            none.as_path(),
            Path::new("--eval"),
            Path::new(""),
        ];
        let names = names(&database).unwrap();
        assert_eq!(names, BTreeSet::from(["weir-test-tool".to_owned()]));
        let found = recorded(&database, &paths).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&tool]);
        let recorded = &found[&tool];
        assert_eq!(recorded.package, "weir-test-tool");
        let is = || {
            let file = fs::File::open(&tool).unwrap();
            super::super::is_as_recorded(&file, recorded, Duration::MAX).unwrap()
        };
        assert!(is());
        fs::write(&tool, "two").unwrap();
        assert!(!is());
        let written: Vec<_> = written_to(&database).filter(|file| file.exists()).collect();
        assert!(!written.is_empty());
    }
}
