//! Which other process has a file open: what is written into it may be lost on that one.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A process that has a file open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileUser {
    /// The process id.
    pub pid: u32,
    /// What the process calls itself (`/proc/PID/comm`): anybody's text.
    pub name: String,
}

/// The first other process that has the file open; `None` if there is none, or no such file.
/// Without the right to look into other users' processes only one's own are seen.
pub fn other_user_of(file: &Path) -> Option<FileUser> {
    let file = fs::metadata(file).ok()?;
    let is_it = |descriptor: PathBuf| {
        // Follows the link, also to a file that was renamed.
        fs::metadata(descriptor)
            .is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
    };
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let other = pids.filter(|pid| *pid != std::process::id());
    let mut users = other.filter(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        descriptors.flatten().any(|entry| is_it(entry.path()))
    });
    let pid = users.next()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(FileUser {
        pid,
        name: name.trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_named_as_long_as_it_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(other_user_of(&path), None);
        let open = fs::File::create(&path).unwrap();
        // This process does not count.
        assert_eq!(other_user_of(&path), None);
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(open)
            .spawn()
            .unwrap();
        let user = other_user_of(&path).expect("cat has it open");
        assert_eq!((user.pid, user.name.as_str()), (child.id(), "cat"));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(other_user_of(&path), None);
    }
}
