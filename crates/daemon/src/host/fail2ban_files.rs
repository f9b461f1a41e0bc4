//! The files of a Fail2ban configuration, on the disk.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use weir_config::files;
use weir_fail2ban::Files;

/// Files that a directory may hold.
const MAX_FILES: usize = 10_000;

/// The disk. A FIFO is not waited for, and no file of more than 16 MiB is read.
pub(super) struct Fail2banFiles;

impl Files for Fail2banFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        files::bytes(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut all = Vec::new();
        for entry in entries {
            all.push(entry?.path());
            if all.len() > MAX_FILES {
                let why = format!("more than {MAX_FILES} files");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        Ok(all)
    }
}
