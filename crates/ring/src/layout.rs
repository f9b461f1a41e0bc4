//! How a segment lies in memory: the header that never changes, the writer's
//! words, the readers' slots, the data. Sizes and checks only; who writes
//! which word when is in `protocol`.
//!
//! ```text
//! 0       header: magic, version, geometry, policy, checksum (immutable)
//! 4096    writer: head, next number | floor | sleepers | slots | about it
//! 8192    64 reader slots, 128 bytes each
//! 16384   data, or at 2 MiB where the data is large enough for huge pages
//! ```
//!
//! All words are 64 bits wide and in the machine's byte order: both sides run
//! on one machine, and the magic number does not match in the other order.

use std::sync::atomic::AtomicU64;

use crate::error::{Error, ErrorKind, Result};

/// "WEIRRING" read as a little-endian word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"WEIRRING");
/// Raised with every change of layout or protocol.
pub(crate) const VERSION: u64 = 1;
/// Readers of one segment.
pub const SLOTS: usize = 64;
/// Smallest and largest data area. The upper bound keeps a sequence number's
/// 40 bits far from ambiguous within one ring.
pub const MIN_SIZE: u64 = 4096;
/// See [`MIN_SIZE`].
pub const MAX_SIZE: u64 = 1 << 34;
/// Bytes mapped before the data.
pub(crate) const CONTROL_BYTES: usize = 16384;
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
/// The longest payload that a record header can state (24 bits).
pub(crate) const LENGTH_LIMIT: u64 = (1 << 24) - 1;
/// A record's header: length and number in one word, time in the other.
pub(crate) const RECORD_HEADER: u64 = 16;

/// What a writer does when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Policy {
    /// The record is dropped and counted; readers never lose what they have
    /// not read. For readers that must see everything they can.
    DropNewest = 1,
    /// The oldest records go, read or not; readers count what they lost. For
    /// a writer that must never be hindered, nor its newest records.
    OverwriteOldest = 2,
}

/// The immutable first page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub magic: u64,
    pub version: u64,
    pub data_offset: u64,
    pub data_size: u64,
    pub slots: u64,
    pub policy: u64,
    pub max_record: u64,
    /// The time of creation: tells a replaced segment from the one before.
    pub created: u64,
    pub checksum: u64,
}

impl Header {
    pub(crate) fn new(data_size: u64, policy: Policy, created: u64) -> Result<Header> {
        if !data_size.is_power_of_two() || !(MIN_SIZE..=MAX_SIZE).contains(&data_size) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a segment of {data_size} bytes: want a power of two from {MIN_SIZE} to {MAX_SIZE}"
                ),
            ));
        }
        let mut header = Header {
            magic: MAGIC,
            version: VERSION,
            data_offset: if data_size >= HUGE_PAGE {
                HUGE_PAGE
            } else {
                CONTROL_BYTES as u64
            },
            data_size,
            slots: SLOTS as u64,
            policy: policy as u64,
            max_record: max_record(data_size),
            created,
            checksum: 0,
        };
        header.checksum = header.sum();
        Ok(header)
    }

    /// FNV-1a over every field but the checksum: against a half-written or
    /// overwritten header, not against malice, which the checks below are for.
    fn sum(&self) -> u64 {
        let fields = [
            self.magic,
            self.version,
            self.data_offset,
            self.data_size,
            self.slots,
            self.policy,
            self.max_record,
            self.created,
        ];
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in fields.iter().flat_map(|field| field.to_ne_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash
    }

    /// What a stranger's header may make us believe: nothing that this
    /// version would not have written, in a file of exactly that length.
    pub(crate) fn check(&self, file_size: u64) -> Result<Policy> {
        let refuse = |kind, what: String| Err(Error::new(kind, what));
        if self.magic != MAGIC {
            return refuse(
                ErrorKind::NotARing,
                "not a ring segment (magic number)".into(),
            );
        }
        if self.version != VERSION {
            return refuse(
                ErrorKind::Version,
                format!(
                    "segment of layout version {}, this library has {VERSION}",
                    self.version
                ),
            );
        }
        if self.checksum != self.sum() {
            return refuse(ErrorKind::Corrupt, "header checksum does not match".into());
        }
        let policy = match self.policy {
            1 => Policy::DropNewest,
            2 => Policy::OverwriteOldest,
            other => return refuse(ErrorKind::Corrupt, format!("unknown policy {other}")),
        };
        let ours = Header::new(self.data_size, policy, self.created)
            .map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))?;
        if ours != *self {
            return refuse(
                ErrorKind::Corrupt,
                "geometry is not one that a writer makes".into(),
            );
        }
        if file_size != self.file_size() {
            return refuse(
                ErrorKind::Truncated,
                format!(
                    "file of {file_size} bytes, its header wants {}",
                    self.file_size()
                ),
            );
        }
        Ok(policy)
    }

    pub(crate) fn file_size(&self) -> u64 {
        self.data_offset + self.data_size
    }
}

/// The longest payload in a ring of that size: a quarter, so that a reader
/// who lags by one record does not stop the writer.
pub(crate) fn max_record(data_size: u64) -> u64 {
    (data_size / 4 - RECORD_HEADER).min(LENGTH_LIMIT)
}

/// What the writer stores with every record: 128 bytes to itself, since
/// processors prefetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct Published {
    pub head: AtomicU64,
    pub next_seq: AtomicU64,
}

#[repr(C, align(128))]
pub(crate) struct Floor {
    pub floor: AtomicU64,
}

/// Written by readers that go to sleep, read by the writer after publishing.
#[repr(C, align(128))]
pub(crate) struct Sleepers {
    pub asleep: AtomicU64,
    pub bell: AtomicU64,
}

#[repr(C, align(128))]
pub(crate) struct Registry {
    /// No slot from here on has ever been used.
    pub used: AtomicU64,
}

#[repr(C, align(128))]
pub(crate) struct WriterInfo {
    /// Odd while a writer is attached; even after it closed in good order.
    pub state: AtomicU64,
    pub pid: AtomicU64,
    /// 1: the writer registered for membarrier; 0: it fences by itself.
    pub membarrier: AtomicU64,
    pub dropped: AtomicU64,
    /// Bytes that the dropped records would have taken in the ring.
    pub dropped_bytes: AtomicU64,
}

#[repr(C, align(128))]
pub(crate) struct Slot {
    /// Odd while attached; each attachment adds 2.
    pub state: AtomicU64,
    pub tail: AtomicU64,
    /// The record number expected at `tail`.
    pub seen: AtomicU64,
    /// Under which name a restarted reader finds its place again; 0: none.
    pub id: AtomicU64,
    pub pid: AtomicU64,
    /// Records that this attachment lost, for whoever looks.
    pub lost: AtomicU64,
}

#[repr(C, align(4096))]
pub(crate) struct Control {
    pub header: [AtomicU64; 512],
    pub published: Published,
    pub floor: Floor,
    pub sleepers: Sleepers,
    pub registry: Registry,
    pub writer: WriterInfo,
    _rest: [u8; 4096 - 5 * 128],
    pub slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Control>() == CONTROL_BYTES);
const _: () = assert!(std::mem::offset_of!(Control, published) == 4096);
const _: () = assert!(std::mem::offset_of!(Control, slots) == 8192);
const _: () = assert!(size_of::<Header>() == 72);
// 40-bit numbers stay unambiguous within one ring.
const _: () = assert!(MAX_SIZE / RECORD_HEADER < 1 << 39);
