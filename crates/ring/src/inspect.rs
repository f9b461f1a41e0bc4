//! A look at a segment from outside: its geometry, how far the writer is, who
//! reads and how far. Takes no slot and hinders nobody. Everything said here
//! comes from shared memory and is as true as those who wrote it.

use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::error::Result;
use crate::layout::{Policy, SLOTS};
use crate::segment::{self, Glimpse, Owner, WRITER_LOCK, slot_lock};
use crate::sys;

/// A segment at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Bytes of data.
    pub size: u64,
    /// What the writer does when they are used up.
    pub policy: Policy,
    /// The longest payload.
    pub max_record: u64,
    /// The time of the segment's creation, nanoseconds since 1970.
    pub created: u64,
    /// The process that writes, if one does.
    pub writer: Option<u32>,
    /// Bytes written since it was created, record headers included.
    pub head: u64,
    /// Bytes of them that are still there, read or not.
    pub kept: u64,
    /// Records written or dropped since it was created.
    pub records: u64,
    /// Records of them that were dropped.
    pub dropped: u64,
    /// Bytes that the dropped records would have taken.
    pub dropped_bytes: u64,
    /// The readers that are attached.
    pub readers: Vec<ReaderInfo>,
}

/// A reader of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderInfo {
    /// The slot that it holds in the segment.
    pub slot: usize,
    /// The reader's process id, in that process's own numbering.
    pub pid: u32,
    /// The number that it resumes under; 0: none.
    pub name: u64,
    /// Whether it lives; a dead one's slot is freed when somebody needs it.
    pub alive: bool,
    /// Bytes that it has not read, as far as it has told.
    pub behind: u64,
    /// Records that it lost since it attached.
    pub lost: u64,
}

/// Looks at the segment `path`.
pub fn inspect(path: impl AsRef<Path>, owner: Owner) -> Result<Inspection> {
    let path = path.as_ref();
    let file = segment::open(path, owner)?;
    let seen = Glimpse::of(file).map_err(|error| error.at(path))?;
    let control = seen.control();
    let size = seen.header.data_size;
    let alive = |byte| sys::locked_by_other(&seen.file, byte).unwrap_or(true);
    let pid = |word: u64| u32::try_from(word).unwrap_or(0);
    let tails: Vec<_> = (0..SLOTS)
        .map(|slot| control.slots[slot].tail.load(Acquire))
        .collect();
    // After the tails: what is read between the two is behind nobody.
    let head = control.published.head.load(Acquire);
    let readers = (0..SLOTS).filter_map(|slot| {
        let info = &control.slots[slot];
        (info.state.load(Acquire) & 1 == 1).then(|| ReaderInfo {
            slot,
            pid: pid(info.pid.load(Relaxed)),
            name: info.id.load(Relaxed),
            alive: alive(slot_lock(slot)),
            behind: head.saturating_sub(tails[slot]).min(size),
            lost: info.lost.load(Relaxed),
        })
    });
    Ok(Inspection {
        size,
        policy: seen.policy,
        max_record: seen.header.max_record,
        created: seen.header.created,
        writer: alive(WRITER_LOCK).then(|| pid(control.writer.pid.load(Relaxed))),
        head,
        kept: head
            .saturating_sub(control.floor.floor.load(Acquire))
            .min(size),
        records: control.published.next_seq.load(Relaxed),
        dropped: control.writer.dropped.load(Relaxed),
        dropped_bytes: control.writer.dropped_bytes.load(Relaxed),
        readers: readers.collect(),
    })
}
