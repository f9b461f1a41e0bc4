//! Files that no process ever has as its executable, though somebody may start them: scripts,
//! which their interpreter runs, and files that the kernel cannot start.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use weir_identity::hash;

/// Bytes of a script's first line that the kernel reads.
const MAX_FIRST_LINE: u64 = 256;
/// Where `env` mostly finds interpreters.
const PATH: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// The program that a first line such as `#!/usr/bin/env python3` names.
fn interpreter(line: &str) -> Option<PathBuf> {
    let mut words = line.strip_prefix("#!")?.split_ascii_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name()? != "env" {
        return Some(first);
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    if name.contains('/') {
        return Some(name.into());
    }
    let mut places = PATH.iter().map(|place| Path::new(place).join(name));
    places.find(|path| path.is_file())
}

/// Why no process has the file at this path as its executable, and what to write in a rule
/// instead; `None`: a process may, or the file cannot be read.
pub fn never_runs(path: &Path) -> Option<String> {
    let file = hash::open(path).ok()?;
    let mode = file.metadata().ok()?.permissions().mode();
    let mut begin = Vec::new();
    let first = <File as Read>::take(file, MAX_FIRST_LINE);
    { first }.read_to_end(&mut begin).ok()?;
    if begin.starts_with(b"#!") {
        let line = String::from_utf8_lossy(&begin).into_owned();
        let line = line.lines().next().unwrap_or_default();
        let path = path.display();
        let (runs, instead) = match interpreter(line) {
            Some(interpreter) => (
                interpreter.display().to_string(),
                format!(
                    "path = \"{}\" with script = \"{path}\"",
                    interpreter.display()
                ),
            ),
            None => (
                line.trim_start_matches("#!").trim().to_owned(),
                format!("the path of its interpreter with script = \"{path}\""),
            ),
        };
        return Some(format!(
            "it is a script, and what runs is {runs}; write {instead}, or, if the script only starts another program (as the shims of pyenv do), that program's path, which weir app why shows"
        ));
    }
    if mode & 0o111 == 0 {
        return Some(
            "nobody may execute it; of a library write its SHA-256 as object (weir app hash)"
                .to_owned(),
        );
    }
    if !begin.starts_with(b"\x7fELF") {
        return Some(
            "it is neither a program (ELF) nor a script that names its interpreter (#!), so that a shell runs it; write the path of the program that it starts"
                .to_owned(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_program_is_told_with_what_to_write() {
        let dir = tempfile::tempdir().unwrap();
        let why = |name: &str, text: &[u8], mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            never_runs(&path)
        };
        let told = why("a", b"#!/bin/sh -e\necho\n", 0o755).unwrap();
        assert!(told.contains("what runs is /bin/sh;"), "{told}");
        let instead = format!(
            "path = \"/bin/sh\" with script = \"{}/a\"",
            dir.path().display()
        );
        assert!(told.contains(&instead), "{told}");
        let told = why("b", b"#! /usr/bin/env -S A=1 sh -x\n", 0o755).unwrap();
        assert!(
            told.contains("bin/sh with") || told.contains("bin/sh\" with"),
            "{told}"
        );
        let told = why("c", b"#!/usr/bin/env no-such-interpreter", 0o755).unwrap();
        assert!(told.contains("the path of its interpreter"), "{told}");
        let told = why("d", b"\x7fELF...", 0o644).unwrap();
        assert!(told.contains("as object"), "{told}");
        let told = why("e", b"echo hello\n", 0o755).unwrap();
        assert!(told.contains("neither"), "{told}");
        assert_eq!(why("f", b"\x7fELF...", 0o755), None);
        assert_eq!(never_runs(Path::new("/none")), None);
        assert_eq!(never_runs(Path::new("/bin/ls")), None);
    }
}
