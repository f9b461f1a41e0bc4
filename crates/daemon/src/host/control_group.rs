//! In which control group a process is.

use std::fs;

/// The path of a process's control group in the hierarchy of version 2.
pub(crate) fn cgroup_of(pid: u32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.to_owned())
}
