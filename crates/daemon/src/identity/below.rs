//! Files of overlays: who has one open or mapped has the file of a layer below, of which the
//! overlay's own file tells nothing. The kernel is asked about that one.

use std::{fs::File, os::fd::AsRawFd, sync::OnceLock};

use weir_bpf::writers::{MappedFile, OwnMapping, Writers};

use super::objects::NoDigest;

/// `None`: this kernel does not say (before Linux 5.17).
fn writers() -> Option<&'static Writers> {
    static WRITERS: OnceLock<Option<Writers>> = OnceLock::new();
    let load = || {
        let loaded = Writers::load();
        loaded
            .inspect_err(|error| tracing::warn!("files of containers have no SHA-256: {error}"))
            .ok()
    };
    WRITERS.get_or_init(load).as_ref()
}

/// The file below that is read through this one from now on, as long as a lease is held on it.
/// One that was opened before may have been that of a lower layer, and another one be written.
fn below(writers: &Writers, file: &File) -> Result<(OwnMapping, MappedFile), NoDigest> {
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mapping = again.and_then(|file| OwnMapping::of(&file));
    let mapping = mapping.map_err(|_| NoDigest::Unreadable)?;
    match writers.own(&mapping) {
        Ok(Some(below)) => Ok((mapping, below)),
        Ok(None) => Err(NoDigest::Later),
        Err(_) => Err(NoDigest::Unleased),
    }
}

/// Refuses a file of an overlay that somebody writes to in the layer below, as by a mapping from
/// before the lease. To be asked while the lease is held.
pub fn refuse_written(file: &File) -> Result<(), NoDigest> {
    let writers = writers().ok_or(NoDigest::Unleased)?;
    match below(writers, file)?.1.is_written {
        true => Err(NoDigest::Written),
        false => Ok(()),
    }
}

/// Refuses a file of an overlay, of which a digest was found, if what this thread's process has
/// mapped at one of these addresses is another one: that of a lower layer, say, where somebody
/// has written a file of the upper one since. Where the kernel cannot tell what others have
/// mapped (before Linux 6.10) none is refused.
pub fn refuse_other(file: &File, thread: u32, starts: &[u64]) -> Result<(), NoDigest> {
    let writers = writers().ok_or(NoDigest::Unleased)?;
    if !writers.sees_others() {
        return Ok(());
    }
    let (_mapping, below) = below(writers, file)?;
    for start in starts {
        match writers.has_mapped(thread, *start, &below) {
            Ok(Some(true)) => {}
            Ok(Some(false)) => return Err(NoDigest::Replaced),
            // It is gone, or changes its mappings without a pause.
            Ok(None) => return Err(NoDigest::Later),
            Err(_) => return Err(NoDigest::Unleased),
        }
    }
    Ok(())
}
