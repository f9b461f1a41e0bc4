//! A file of the state directory that a daemon keeps for the next one, as JSON.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// Reads what is kept there.
///
/// # Errors
/// There is no such file, it cannot be read, or it is none that weir writes: no plain file, one of
/// more than `most` bytes, or of another form.
pub(super) fn read<T: DeserializeOwned>(path: &Path, most: u64) -> io::Result<T> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() || meta.len() > most {
        return Err(io::Error::other("it is no file of weir's"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Puts it on disk: all of it, or the file is as it was.
///
/// # Errors
/// The file, or the one that takes its place, cannot be written.
pub(super) fn write<T: Serialize>(path: &Path, kept: &T) -> io::Result<()> {
    let next = path.with_extension("json.new");
    let mut file = File::create(&next)?;
    file.write_all(&serde_json::to_vec_pretty(kept)?)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
