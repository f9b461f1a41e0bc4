//! Which descriptors are log files to divert, and the lines begun on them.
//!
//! Fixed tables of atomics: looking a descriptor up is one load, there is no
//! lock that a fork or a signal could leave taken for good, and nothing is
//! allocated.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize};

use libc::c_int;

/// Descriptors above this are left alone.
const DESCRIPTORS: usize = 1 << 16;
/// Files open at the same time; further ones are left alone.
const FILES: usize = 64;
/// A line that comes in parts is kept up to this length, then cut.
pub(crate) const PARTIAL: usize = 8192;
/// So often another thread's hold on a partial line is waited for.
const PATIENCE: u32 = 1000;

/// The mark of a segment's own descriptor.
const RESERVED: u8 = u8::MAX;

/// 0, the number of the file plus one, or [`RESERVED`].
static DESCRIPTOR: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];
static FILE: [File; FILES] = [const { File::new() }; FILES];
/// Files that are open now.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// A file that is diverted: what all descriptors of one `open` share.
pub(crate) struct File {
    /// Descriptors plus one; 0 is free, 1 about to be.
    users: AtomicU32,
    /// Held while the begun line is looked at.
    locked: AtomicBool,
    length: AtomicUsize,
    line: UnsafeCell<[u8; PARTIAL]>,
    /// The stream that `fopen` made of it, and its descriptor.
    stream: AtomicPtr<libc::FILE>,
    descriptor: AtomicU32,
}

// SAFETY: `line` is touched only by who took `locked`.
unsafe impl Sync for File {}

impl File {
    const fn new() -> File {
        File {
            users: AtomicU32::new(0),
            locked: AtomicBool::new(false),
            length: AtomicUsize::new(0),
            line: UnsafeCell::new([0; PARTIAL]),
            stream: AtomicPtr::new(std::ptr::null_mut()),
            descriptor: AtomicU32::new(0),
        }
    }

    /// Splits what is written into lines. What follows the last line break
    /// stays here until its own comes.
    pub(crate) fn split(&self, mut text: &[u8], mut emit: impl FnMut(&[u8])) {
        if self.length.load(Relaxed) == 0 {
            text = emit_lines(text, &mut emit);
            if text.is_empty() {
                return;
            }
        }
        if !self.lock() {
            // A signal handler, or a thread stopped at the wrong moment. To
            // wait could be for ever; a line in two records is the lesser evil.
            let rest = emit_lines(text, &mut emit);
            if !rest.is_empty() {
                emit(rest);
            }
            return;
        }
        // SAFETY: we hold `locked`.
        let line = unsafe { &mut *self.line.get() };
        let mut length = self.length.load(Relaxed);
        while !text.is_empty() {
            let end = memchr::memchr(b'\n', text);
            let part = &text[..end.unwrap_or(text.len())];
            let taken = part.len().min(PARTIAL - length);
            line[length..length + taken].copy_from_slice(&part[..taken]);
            length += taken;
            if taken < part.len() {
                emit(&line[..length]);
                length = 0;
                text = &text[taken..];
            } else if let Some(end) = end {
                emit(&line[..length]);
                length = 0;
                text = emit_lines(&text[end + 1..], &mut emit);
            } else {
                text = &[];
            }
        }
        self.length.store(length, Relaxed);
        self.locked.store(false, Release);
    }

    /// Hands out the line that was begun, if any: nothing more will come.
    pub(crate) fn finish(&self, emit: impl FnOnce(&[u8])) {
        if self.length.load(Relaxed) > 0 && self.lock() {
            let length = self.length.swap(0, Relaxed);
            // SAFETY: we hold `locked`.
            emit(unsafe { &(&*self.line.get())[..length] });
            self.locked.store(false, Release);
        }
    }

    fn lock(&self) -> bool {
        (0..PATIENCE).any(|_| {
            let taken = !self.locked.swap(true, Acquire);
            if !taken {
                std::hint::spin_loop();
            }
            taken
        })
    }
}

fn emit_lines<'a>(mut text: &'a [u8], emit: &mut impl FnMut(&[u8])) -> &'a [u8] {
    while let Some(end) = memchr::memchr(b'\n', text) {
        emit(&text[..end]);
        text = &text[end + 1..];
    }
    text
}

fn place(descriptor: c_int) -> Option<&'static AtomicU8> {
    DESCRIPTOR.get(usize::try_from(descriptor).ok()?)
}

/// The file behind a descriptor, if it is diverted.
#[inline]
pub(crate) fn of(descriptor: c_int) -> Option<&'static File> {
    match place(descriptor)?.load(Relaxed) {
        0 => None,
        number => FILE.get(usize::from(number) - 1),
    }
}

/// Marks a descriptor as one of ours, of which the program knows nothing and
/// which it must not close, or unmarks it.
pub(crate) fn reserve(descriptor: c_int, ours: bool) {
    if let Some(place) = place(descriptor) {
        place.store(if ours { RESERVED } else { 0 }, Release);
    }
}

/// Whether [`reserve`] marked it.
pub(crate) fn is_reserved(descriptor: c_int) -> bool {
    place(descriptor).is_some_and(|place| place.load(Relaxed) == RESERVED)
}

/// Whether any file is diverted now.
pub(crate) fn any() -> bool {
    OPEN.load(Relaxed) > 0
}

/// From now on this descriptor is diverted. False: the tables are full.
pub(crate) fn track(descriptor: c_int) -> bool {
    let Some(place) = place(descriptor) else {
        return false;
    };
    for (number, file) in (1..).zip(&FILE) {
        if file.users.compare_exchange(0, 2, AcqRel, Relaxed).is_ok() {
            file.length.store(0, Relaxed);
            OPEN.fetch_add(1, Relaxed);
            place.store(number, Release);
            return true;
        }
    }
    false
}

/// `new` is now another name of `old`.
pub(crate) fn share(old: c_int, new: c_int) {
    if let (Some(file), Some(from), Some(to)) = (of(old), place(old), place(new)) {
        file.users.fetch_add(1, AcqRel);
        to.store(from.load(Relaxed), Release);
    }
}

/// The descriptor is closed, or about to be. The file, if it was its last.
pub(crate) fn forget(descriptor: c_int) -> Option<&'static File> {
    of(descriptor)?;
    let number = place(descriptor)?.swap(0, AcqRel);
    let file = FILE.get(usize::from(number).checked_sub(1)?)?;
    (file.users.fetch_sub(1, AcqRel) == 2).then_some(file)
}

/// Frees what [`forget`] returned, once its last line is out.
pub(crate) fn free(file: &'static File) {
    file.stream.store(std::ptr::null_mut(), Relaxed);
    OPEN.fetch_sub(1, Relaxed);
    file.users.store(0, Release);
}

/// The descriptors from `first` to `last` that are diverted or reserved.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = (last as usize).saturating_add(1).min(DESCRIPTORS);
    let first = (first as usize).min(end);
    (first..end)
        .filter(|&descriptor| DESCRIPTOR[descriptor].load(Relaxed) != 0)
        .map(|descriptor| descriptor as c_int)
}

/// In a child: lines begun are the parent's, and so were the locks.
pub(crate) fn after_fork() {
    for file in &FILE {
        file.length.store(0, Relaxed);
        file.locked.store(false, Relaxed);
    }
}

/// Notes that a stream was made of a descriptor.
pub(crate) fn set_stream(descriptor: c_int, stream: *mut libc::FILE) {
    if let Some(file) = of(descriptor) {
        file.descriptor.store(descriptor as u32, Relaxed);
        file.stream.store(stream, Release);
    }
}

/// The descriptor under a stream that we made.
pub(crate) fn descriptor_of(stream: *mut libc::FILE) -> Option<c_int> {
    if !any() || stream.is_null() {
        return None;
    }
    FILE.iter()
        .find(|file| file.stream.load(Acquire) == stream)
        .map(|file| file.descriptor.load(Relaxed) as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_of(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let file = Box::new(File::new());
        let mut lines = Vec::new();
        for part in parts {
            file.split(part, |line| lines.push(line.to_vec()));
        }
        file.finish(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn every_way_to_cut_a_text_in_three_gives_the_same_lines() {
        let text = b"one\n\nthree\nfour";
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let parts = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(split_of(&parts), lines, "{first} {second}");
            }
        }
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let text = vec![b'x'; 3 * PARTIAL + 5];
        let lengths: Vec<usize> = split_of(&[&text, b"y\nz\n"]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [PARTIAL, PARTIAL, PARTIAL, 6, 1]);
    }

    #[test]
    fn a_held_line_is_not_waited_for() {
        let file = Box::new(File::new());
        file.split(b"begun", |_| panic!("no line yet"));
        file.locked.store(true, Relaxed);
        let mut lines = Vec::new();
        file.split(b"whole\npart", |line| lines.push(line.to_vec()));
        assert_eq!(lines, [b"whole".to_vec(), b"part".to_vec()]);
    }

    #[test]
    fn descriptors_share_a_file_until_the_last_is_closed() {
        assert!(track(60_000) && any());
        share(60_000, 60_001);
        share(60_002, 60_003);
        assert!(of(60_001).is_some() && of(60_003).is_none());
        assert_eq!(
            between(59_999, u32::MAX).collect::<Vec<_>>(),
            [60_000, 60_001]
        );
        assert!(forget(60_000).is_none());
        let file = forget(60_001).expect("the last one");
        free(file);
        assert!(of(60_001).is_none() && forget(60_001).is_none());
        assert!(of(-1).is_none() && !track(-1) && !track(1 << 20));
        reserve(60_004, true);
        assert!(is_reserved(60_004) && of(60_004).is_none() && forget(60_004).is_none());
        reserve(60_004, false);
        assert!(!is_reserved(60_004));
    }
}
