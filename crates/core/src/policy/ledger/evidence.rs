//! The lines that led to what is counted, as far as there is room for them.

use std::borrow::Cow;

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

/// At most [`MAX_EVIDENCE`] bytes of a line, valid UTF-8.
pub(super) fn clip(line: &[u8]) -> Cow<'_, str> {
    let line = &line[..line.len().min(MAX_EVIDENCE)];
    // Nearly every line is UTF-8, and to see that costs a quarter of reading it so.
    if let Ok(text) = str::from_utf8(line) {
        return Cow::Borrowed(text);
    }
    let mut text = String::from_utf8_lossy(line);
    while text.len() > MAX_EVIDENCE {
        text.to_mut().pop();
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
        String::from_utf8_lossy(line.unwrap_or_default()).into_owned()
    }
}
