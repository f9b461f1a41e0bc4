//! The segments of this process: one for each thread that writes, taken at
//! its first line and handed on when the thread ends.
//!
//! Names are the program's and the first number that no living writer has,
//! so that a restart goes on in the segments of the last run, and their
//! number is that of the threads that ever wrote at the same time.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32};

use weir_ring::{ErrorKind, Options, WriteError, Writer};

use crate::config::Config;
use crate::files::{self, File};
use crate::{process, real};

/// Segments of a process, and the highest number of one, plus one.
const SEGMENTS: usize = 256;

struct Segment {
    taken: AtomicBool,
    /// The descriptor of the segment's file, -1 if there is none: not the program's to
    /// close.
    descriptor: AtomicI32,
    writer: UnsafeCell<Option<Writer>>,
}

// SAFETY: `writer` is touched only by the thread that took `taken`.
unsafe impl Sync for Segment {}

static SEGMENT: [Segment; SEGMENTS] = [const {
    Segment {
        taken: AtomicBool::new(false),
        descriptor: AtomicI32::new(-1),
        writer: UnsafeCell::new(None),
    }
}; SEGMENTS];

/// Whether no segment could be had; that is not tried again until a file is opened.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Whether the failure was told, which is done once.
static TOLD: AtomicBool = AtomicBool::new(false);

/// A thread's place.
struct Seat {
    segment: Cell<Option<&'static Segment>>,
    /// A line is being written: whoever finds it set interrupted that.
    busy: Cell<bool>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            segment.taken.store(false, Release);
        }
    }
}

thread_local! {
    static SEAT: Seat = const {
        Seat {
            segment: Cell::new(None),
            busy: Cell::new(false),
        }
    };
}

/// Runs `work` with this thread's writer. `None`: there is none, or the
/// thread is in the middle of a write that a signal interrupted.
fn with_writer<R>(config: &Config, work: impl FnOnce(&mut Writer) -> R) -> Option<R> {
    if process::is_new() {
        // Made by a system call of its own: fork handlers did not run.
        process::note();
        files::after_fork();
        after_fork();
    }
    SEAT.try_with(|seat| {
        if seat.busy.replace(true) {
            return None;
        }
        // A panic is a bug here; it must not become the server's.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let segment = match seat.segment.get() {
                Some(segment) => segment,
                None => {
                    let segment = take(config)?;
                    seat.segment.set(Some(segment));
                    segment
                }
            };
            // SAFETY: this thread took `taken`, and `busy` keeps its own
            // signal handlers out.
            let writer = unsafe { &mut *segment.writer.get() };
            writer.as_mut().map(work)
        }));
        seat.busy.set(false);
        result.ok().flatten()
    })
    .ok()
    .flatten()
}

/// Writes the lines of what was to go into a file. False: they did not go
/// into a ring, and must go into the file. A full ring is no reason for
/// that: what it drops, it counts.
pub(crate) fn write<'a>(
    config: &Config,
    file: &File,
    text: impl Iterator<Item = &'a [u8]>,
) -> bool {
    if FAILED.load(Relaxed) {
        return false;
    }
    with_writer(config, |writer| {
        let mut gone = false;
        for part in text {
            file.split(part, |line| {
                gone |= writer.write(line) == Err(WriteError::Gone);
            });
        }
        if gone {
            fail("the segment was cut short");
        }
        !gone
    })
    .unwrap_or(false)
}

/// Writes the last line of a file that is closed, which had no line break.
pub(crate) fn finish(config: &Config, file: &File) {
    if !FAILED.load(Relaxed) {
        with_writer(config, |writer| {
            file.finish(|line| {
                let _ = writer.write(line);
            });
        });
    }
}

/// Makes this thread's segment now: at the first line it may be too late,
/// since the privileges are gone or it is a signal handler that writes it.
pub(crate) fn prepare(config: &Config) {
    FAILED.store(false, Relaxed);
    with_writer(config, |_| ());
}

/// In a child: the parent goes on with its segments, whatever their threads
/// were doing; the child gets one of its own.
pub(crate) fn after_fork() {
    let _ = catch_unwind(|| {
        for segment in &SEGMENT {
            let descriptor = segment.descriptor.swap(-1, AcqRel);
            if descriptor >= 0 {
                // Before the writer closes it, or that would be refused.
                files::reserve(descriptor, false);
                // SAFETY: the forking thread is the only one here, and not
                // within `with_writer`, which never forks. Another thread of
                // the parent may have been, but it changed shared memory, in
                // which `abandon` touches nothing.
                if let Some(writer) = unsafe { (*segment.writer.get()).take() } {
                    writer.abandon();
                }
            }
            segment.taken.store(false, Relaxed);
        }
        let _ = SEAT.try_with(|seat| seat.segment.set(None));
    });
}

fn take(config: &Config) -> Option<&'static Segment> {
    let free = |segment: &&Segment| !segment.taken.swap(true, Acquire);
    // First those that a thread left behind.
    let left = SEGMENT
        .iter()
        .filter(|segment| segment.descriptor.load(Acquire) >= 0)
        .find(free);
    if left.is_some() {
        return left;
    }
    let Some(segment) = SEGMENT
        .iter()
        .filter(|segment| segment.descriptor.load(Acquire) < 0)
        .find(free)
    else {
        fail("256 threads write already");
        return None;
    };
    match make(config) {
        Ok(writer) => {
            use std::os::fd::AsRawFd;
            let descriptor = writer.as_fd().as_raw_fd();
            // SAFETY: we took `taken`.
            unsafe { *segment.writer.get() = Some(writer) };
            files::reserve(descriptor, true);
            segment.descriptor.store(descriptor, Release);
            Some(segment)
        }
        Err(error) => {
            segment.taken.store(false, Release);
            fail(&error);
            None
        }
    }
}

fn make(config: &Config) -> Result<Writer, String> {
    let options = Options::new()
        .size(config.size)
        .mode(config.mode)
        .replace(true);
    for number in 0..SEGMENTS {
        let path = config
            .directory
            .join(format!("{}-{number}", config.program));
        match Writer::create(&path, &options) {
            Ok(writer) => return Ok(writer),
            // Somebody else's; the next number may be ours.
            Err(error)
                if matches!(error.kind(), ErrorKind::WriterActive | ErrorKind::Owner)
                    || (error.os_error() == Some(libc::EACCES)
                        && path.symlink_metadata().is_ok()) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!(
        "{SEGMENTS} segments in {} are other writers'",
        config.directory.display()
    ))
}

fn fail(why: &str) {
    FAILED.store(true, Relaxed);
    if !TOLD.swap(true, Relaxed) {
        real::tell(&format!("{why}; logging to files instead"));
    }
}
