//! What dpkg and rpm have on record: dpkg's files as they are read, and what rpm prints.
#![no_main]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use weir_identity::packages::{PackedDigest, Records, rpm};

#[derive(Debug, Arbitrary)]
struct Input {
    md5sums: Vec<u8>,
    printed: Vec<u8>,
    path: String,
    digest: [u8; 16],
}

static DIR: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a directory"));

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fuzz_target!(|input: Input| {
    let path = PathBuf::from(format!("/{}", input.path.replace(['\n', '\0'], "")));
    let record = DIR.path().join("tool:amd64.md5sums");
    let name = &path.to_str().expect("it is made of text")[1..];
    let line = format!("{}  {name}\n", hex(&input.digest));
    // A line of its own stands whatever is before it, and behind.
    let text = [&input.md5sums[..], b"\n", line.as_bytes()].concat();
    fs::write(&record, &text).expect("a file");
    let records = Records::of_dpkg(DIR.path());
    let asked = [path.as_path(), Path::new("/usr/bin/curl")];
    let (found, error) = records.of(&asked);
    assert!(error.is_none(), "{error:?}");
    for (path, recorded) in &found {
        assert!(asked.contains(&path.as_path()));
        assert_eq!(recorded.package, "tool");
        assert!(matches!(recorded.digest, PackedDigest::Md5(_)));
    }
    // Where /bin is a link, the other one that is asked for is the same file.
    let is_other = path == Path::new("/bin/curl");
    if !name.is_empty() && !name.starts_with("./") && !is_other {
        let own = found.get(&path).expect("it is on record");
        assert_eq!(own.digest, PackedDigest::Md5(input.digest));
    }
    let (names, error) = records.names();
    assert!(error.is_none() && names.len() == 1 && names.contains("tool"));

    let line = format!(
        "tool\t1\t{}\t0100755\t{}",
        hex(&input.digest),
        path.display()
    );
    let printed = [&input.printed[..], b"\n", line.as_bytes()].concat();
    let all: Vec<_> = rpm::records(&printed).collect();
    let (last, recorded) = all.last().expect("its own is the last one");
    assert_eq!((last, &*recorded.package), (&path, "tool"));
    assert_eq!(recorded.digest, PackedDigest::Md5(input.digest));
    for (_, recorded) in &all {
        assert!(!recorded.package.contains(['\t', '\n']));
    }
});
