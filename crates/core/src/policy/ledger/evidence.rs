//! The lines that led to what is counted, as far as there is room for them.

use jiff::Timestamp;

use super::Failure;
use crate::policy::MAX_EVIDENCE;

/// Evidence per shard, in bytes: 16 MiB in all, when it is full.
pub(super) const EVIDENCE: usize = 1 << 20;

/// A moment as entries keep it: [`Timestamp`] has four bytes more, of nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment {
    seconds: i64,
    nanos: i32,
}

impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.as_second(),
            nanos: time.subsec_nanosecond(),
        }
    }
}

/// A failure; its line is a part of the shard's evidence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    seconds: i64,
    nanos: i32,
    pub attempts: u32,
    /// The position of the line in the evidence.
    at: u64,
}

impl Entry {
    /// `at`: what [`Evidence::push`] has said of its line.
    pub fn new(moment: Moment, attempts: u32, at: u64) -> Self {
        let Moment { seconds, nanos } = moment;
        Self {
            seconds,
            nanos,
            attempts,
            at,
        }
    }

    pub fn moment(&self) -> Moment {
        Moment {
            seconds: self.seconds,
            nanos: self.nanos,
        }
    }

    pub fn time(&self) -> Timestamp {
        Timestamp::new(self.seconds, self.nanos).expect("it was one")
    }

    /// Moves the failure to this moment if it is later.
    pub fn not_after(&mut self, latest: Moment) {
        let Moment { seconds, nanos } = self.moment().min(latest);
        (self.seconds, self.nanos) = (seconds, nanos);
    }
}

/// As much of a line as is kept.
pub(super) fn clip(line: &[u8]) -> &[u8] {
    &line[..line.len().min(MAX_EVIDENCE)]
}

/// What is kept of a line, as text of at most [`MAX_EVIDENCE`] bytes: few lines are
/// asked for, so it is made of those.
pub(super) fn text(kept: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(kept).into_owned();
    while text.len() > MAX_EVIDENCE {
        text.pop();
    }
    text
}

/// The length of a line stands before it.
const LENGTH: usize = size_of::<u16>();

/// Lines in a ring: the newest overwrite the oldest, so that a flood of
/// addresses costs no more memory than this.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub ring: Vec<u8>,
    /// Bytes ever written, with those skipped at the ring's end.
    written: u64,
}

impl Evidence {
    /// Keeps what [`clip`] leaves of a line; returns where it stands.
    pub fn push(&mut self, line: &[u8]) -> u64 {
        let line = clip(line);
        let length = LENGTH + line.len();
        let mut start = (self.written % EVIDENCE as u64) as usize;
        if start + length > EVIDENCE {
            self.written += (EVIDENCE - start) as u64;
            start = 0;
        }
        if self.ring.len() < start + length {
            self.ring.resize(start + length, 0);
        }
        let (before, text) = self.ring[start..start + length].split_at_mut(LENGTH);
        before.copy_from_slice(&(line.len() as u16).to_ne_bytes());
        text.copy_from_slice(line);
        let at = self.written;
        self.written += length as u64;
        at
    }

    pub fn failures<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Vec<Failure> {
        entries
            .map(|entry| Failure {
                time: entry.time(),
                attempts: entry.attempts,
                line: self.line(entry),
            })
            .collect()
    }

    pub fn line(&self, entry: &Entry) -> String {
        if self.written - entry.at > EVIDENCE as u64 {
            return "(line no longer kept)".into();
        }
        let kept = || {
            let start = (entry.at % EVIDENCE as u64) as usize;
            let (length, rest) = self.ring.get(start..)?.split_first_chunk()?;
            rest.get(..u16::from_ne_bytes(*length).into())
        };
        text(kept().unwrap_or_default())
    }
}
