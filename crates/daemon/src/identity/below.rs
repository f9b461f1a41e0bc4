//! Files of overlays: who has one open or mapped has the file of a layer below, of which the
//! overlay's own file tells nothing. The kernel is asked about that one.

use std::{
    fs::File,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use weir_bpf::writers::{MappedFile, OwnMapping, Writers};

use super::no_digest::NoDigest;

/// A load that failed is tried again after this time: there may have been no memory for it.
const AGAIN: Duration = Duration::from_secs(10);

/// `None`: this kernel does not say (before Linux 5.17).
fn writers() -> Option<Arc<Writers>> {
    type Loaded = Result<Arc<Writers>, Instant>;
    static WRITERS: Mutex<Option<Loaded>> = Mutex::new(None);
    let mut loaded = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = match &*loaded {
        None => true,
        Some(Ok(_)) => false,
        Some(Err(at)) => at.elapsed() > AGAIN,
    };
    if is_due {
        let now = Writers::load().inspect_err(|error| {
            if loaded.is_none() {
                tracing::warn!("files of overlays have no SHA-256: {error}");
            }
        });
        *loaded = Some(now.map(Arc::new).map_err(|_| Instant::now()));
    }
    loaded.as_ref()?.as_ref().ok().cloned()
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

/// The file below one of an overlay. To be asked while a lease is held: whoever writes to the file
/// below then has done so before, as by a mapping, and is seen.
pub fn of(file: &File) -> Result<MappedFile, NoDigest> {
    let writers = writers().ok_or(NoDigest::Unleased)?;
    Ok(below(&writers, file)?.1)
}

/// Refuses a file of which pages may be written past any mapping. To be asked while a lease is
/// held, and after it was seen that nobody has it mapped to write: who could pin a page has done
/// so by then. Where this kernel does not say (before Linux 5.17) none is refused.
pub fn refuse_pinned(file: &File) -> Result<(), NoDigest> {
    let Some(writers) = writers() else {
        return Ok(());
    };
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mapping = again.and_then(|file| OwnMapping::of(&file));
    let mapping = mapping.map_err(|_| NoDigest::Unreadable)?;
    match writers.may_be_pinned(&mapping) {
        Ok(Some(false)) => Ok(()),
        Ok(Some(true)) => Err(NoDigest::Written),
        Ok(None) => Err(NoDigest::Later),
        Err(_) => Err(NoDigest::Unleased),
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
    let (_mapping, below) = below(&writers, file)?;
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
