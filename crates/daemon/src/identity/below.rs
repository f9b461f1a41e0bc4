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

/// The programs that ask; an error says whether the kernel could load them at another time, or
/// does not say (before Linux 5.17).
fn writers() -> Result<Arc<Writers>, bool> {
    type Loaded = Result<Arc<Writers>, (Instant, bool)>;
    static WRITERS: Mutex<Option<Loaded>> = Mutex::new(None);
    let mut loaded = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (is_due, was_for_now) = match &*loaded {
        None => (true, None),
        Some(Ok(_)) => (false, None),
        Some(Err((at, is_for_now))) => (at.elapsed() > AGAIN, Some(*is_for_now)),
    };
    if is_due {
        let now = Writers::load().map(Arc::new).map_err(|error| {
            let is_news = was_for_now != Some(error.is_for_now);
            match error.is_for_now {
                true if is_news => {
                    tracing::warn!(
                        "files have no SHA-256 until it can be asked who writes to them, which is tried again: {error}"
                    );
                }
                false if is_news => tracing::warn!("files of overlays have no SHA-256: {error}"),
                _ => (),
            }
            (Instant::now(), error.is_for_now)
        });
        if now.is_ok() && was_for_now.is_some() {
            tracing::info!("it can be asked who writes to files");
        }
        *loaded = Some(now);
    }
    match loaded.as_ref() {
        Some(Ok(writers)) => Ok(writers.clone()),
        Some(Err((_, is_for_now))) => Err(*is_for_now),
        None => Err(true),
    }
}

/// Maps the file below that is read through this one from now on, as long as a lease is held on
/// it. One that was opened before may have been that of a lower layer, and another one be written.
fn map(file: &File) -> Result<OwnMapping, NoDigest> {
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mapping = again.and_then(|file| OwnMapping::of(&file));
    mapping.map_err(|_| NoDigest::Unreadable)
}

/// What the kernel has said; without an answer the mappings change without a pause, or nobody is
/// there any more.
fn said<T>(answer: Result<Option<T>, weir_bpf::Error>) -> Result<T, NoDigest> {
    answer
        .map_err(|_| NoDigest::Unleased)?
        .ok_or(NoDigest::Later)
}

/// The file below one of an overlay. To be asked while a lease is held: whoever writes to the file
/// below then has done so before, as by a mapping, and is seen.
pub fn of(file: &File) -> Result<MappedFile, NoDigest> {
    let writers = writers().map_err(|_| NoDigest::Unleased)?;
    said(writers.own(&map(file)?))
}

/// Refuses a file of which pages may be written past any mapping. To be asked while a lease is
/// held, and after it was seen that nobody has it mapped to write: who could pin a page has done
/// so by then. Where this kernel does not say (before Linux 5.17) none is refused.
pub fn refuse_pinned(file: &File) -> Result<(), NoDigest> {
    let writers = match writers() {
        Ok(writers) => writers,
        Err(false) => return Ok(()),
        // What it would say is asked for later.
        Err(true) => return Err(NoDigest::Unleased),
    };
    match said(writers.may_be_pinned(&map(file)?))? {
        true => Err(NoDigest::Written),
        false => Ok(()),
    }
}

/// Refuses a file of an overlay, of which a digest was found, if what this thread's process has
/// mapped at one of these addresses is another one: that of a lower layer, say, where somebody
/// has written a file of the upper one since. Where the kernel cannot tell what others have
/// mapped (before Linux 6.10) none is refused.
pub fn refuse_other(file: &File, thread: u32, starts: &[u64]) -> Result<(), NoDigest> {
    let writers = writers().map_err(|_| NoDigest::Unleased)?;
    if !writers.sees_others() {
        return Ok(());
    }
    // Held while it is compared, so that its place is no other file's.
    let mapping = map(file)?;
    let below = said(writers.own(&mapping))?;
    for start in starts {
        if !said(writers.has_mapped(thread, *start, &below))? {
            return Err(NoDigest::Replaced);
        }
    }
    Ok(())
}
