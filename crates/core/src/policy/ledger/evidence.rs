//! The lines that led to what is counted, as far as there is room for them.

use jiff::Timestamp;

use super::Failure;
use crate::policy::MAX_EVIDENCE;

/// Evidence per shard, in bytes: 16 MiB in all, when it is full.
pub(super) const EVIDENCE: usize = 1 << 20;

/// A failure; its line is a part of the shard's evidence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub time: Timestamp,
    pub attempts: u32,
    pub len: u16,
    pub at: u64,
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

/// Lines in a ring: the newest overwrite the oldest, so that a flood of
/// addresses costs no more memory than this.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub ring: Vec<u8>,
    /// Bytes ever written, with those skipped at the ring's end.
    written: u64,
}

impl Evidence {
    pub fn push(&mut self, line: &[u8]) -> u64 {
        let mut start = (self.written % EVIDENCE as u64) as usize;
        if start + line.len() > EVIDENCE {
            self.written += (EVIDENCE - start) as u64;
            start = 0;
        }
        let end = start + line.len();
        if self.ring.len() < end {
            self.ring.resize(end, 0);
        }
        self.ring[start..end].copy_from_slice(line);
        let at = self.written;
        self.written += line.len() as u64;
        at
    }

    pub fn failures<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Vec<Failure> {
        entries
            .map(|entry| Failure {
                time: entry.time,
                attempts: entry.attempts,
                line: self.line(entry),
            })
            .collect()
    }

    pub fn line(&self, entry: &Entry) -> String {
        if self.written - entry.at > EVIDENCE as u64 {
            return "(line no longer kept)".into();
        }
        let start = (entry.at % EVIDENCE as u64) as usize;
        let line = self.ring.get(start..start + usize::from(entry.len));
        text(line.unwrap_or_default())
    }
}
