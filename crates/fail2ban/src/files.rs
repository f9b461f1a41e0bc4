//! The files that a configuration consists of, without a disk.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Reads files for this crate. A test implements it with a map.
pub trait Files {
    /// The bytes of a file; of one beyond a size that its implementation sets, an error.
    ///
    /// # Errors
    /// As of the system; `NotFound` means that there is no such file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The files in a directory, by full paths, in any order. A directory that is
    /// missing has none.
    ///
    /// # Errors
    /// As of the system.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
}
