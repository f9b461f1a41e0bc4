//! Who has started a process.

use std::fs;

/// The number of a process's parent; `None`: it has none, or is gone.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of a program may have blanks and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let parent = rest.split(' ').nth(1)?.parse().ok();
    parent.filter(|parent| *parent != 0)
}
