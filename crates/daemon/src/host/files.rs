//! What the check of a configuration asks file systems, which may not answer.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use crate::threads;

/// The file system of a log has this long to answer: a reload does not wait for
/// one that never does.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Questions that wait for an answer at most; each has a thread.
const MAX_WAITING: usize = 16;

/// So many files of a pattern are asked about.
const MAX_FILES: usize = 10_000;

/// Asks a file system, on a thread that may wait for ever; `None`: no answer yet.
fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    if WAITING.fetch_add(1, Relaxed) >= MAX_WAITING {
        WAITING.fetch_sub(1, Relaxed);
        return None;
    }
    let (tell, answer) = mpsc::channel();
    let asked = threads::spawn("weir-ask-file", move || {
        // Nobody may be waiting any more.
        let _ = tell.send(question());
        WAITING.fetch_sub(1, Relaxed);
    });
    if asked.is_err() {
        WAITING.fetch_sub(1, Relaxed);
        return None;
    }
    answer.recv_timeout(ANSWER_WITHIN).ok()
}

/// Whether there is a file of this path. One whose file system does not answer may be.
pub(super) fn exists(path: &Path) -> bool {
    let path = path.to_owned();
    ask(move || path.exists()).unwrap_or(true)
}

/// Is there a file that fits the pattern? There may be one where nobody answers.
pub(super) fn has_match(pattern: &str) -> bool {
    let pattern = pattern.to_owned();
    let found = move || glob::glob(&pattern).is_ok_and(|mut found| found.next().is_some());
    ask(found).unwrap_or(true)
}

/// Can one of the files that fit the pattern be read? It may be where nobody answers.
pub(super) fn can_read(pattern: &str) -> bool {
    let pattern = pattern.to_owned();
    // Of a file that is not there, too, no name with `[` in it is taken for a pattern.
    let is_readable = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok()
    };
    let found = move || {
        is_readable(Path::new(&pattern))
            || glob::glob(&pattern)
                .is_ok_and(|found| found.flatten().take(MAX_FILES).any(|p| is_readable(&p)))
    };
    ask(found).unwrap_or(true)
}

/// The last lines of a log.
pub(super) fn log_end(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    ask(move || read_log_end(&path)).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

fn read_log_end(path: &Path) -> io::Result<Vec<u8>> {
    const ENOUGH: u64 = 8 << 10;
    // A FIFO is not waited for.
    if !fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(ENOUGH)))?;
    let mut end = Vec::new();
    file.take(ENOUGH).read_to_end(&mut end)?;
    if len > ENOUGH {
        let whole = end
            .iter()
            .position(|b| *b == b'\n')
            .map_or(end.len(), |at| at + 1);
        end.drain(..whole);
    }
    Ok(end)
}
