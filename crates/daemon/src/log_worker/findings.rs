//! What a thread has found in the lines of a batch and not judged yet: findings
//! are judged many at a time, which costs a half of judging each for itself
//! ([`weir_core::policy::Ledger::record_batch`]).

use std::ops::Range;

use jiff::Timestamp;
use weir_core::{
    Ban,
    detect::Finding,
    policy::{Accusation, Ledger, MAX_EVIDENCE},
};
use weir_events::Events;

use super::running::Running;
use crate::{access::exemptions::Exempt, judge::Judge};

/// So many are judged at once: more gain nothing, and their lines would not stay
/// in the processor's cache.
const MANY: usize = 512;

/// Findings of one batch, in their order.
#[derive(Default)]
pub(super) struct Findings {
    found: Vec<Found>,
    /// As much of their lines as is kept as evidence.
    lines: Vec<u8>,
}

struct Found {
    /// The jail's index among the jails of the thread.
    jail: usize,
    finding: Finding,
    line: Range<usize>,
    /// The time when the line was read.
    now: Timestamp,
}

impl Findings {
    /// Adds one; true if they are to be judged before the next.
    pub fn add(&mut self, jail: usize, finding: Finding, line: &[u8], now: Timestamp) -> bool {
        let begin = self.lines.len();
        let kept = &line[..line.len().min(MAX_EVIDENCE)];
        self.lines.extend_from_slice(kept);
        self.found.push(Found {
            jail,
            finding,
            line: begin..self.lines.len(),
            now,
        });
        self.found.len() >= MANY
    }

    /// Judges and forgets them; returns the bans.
    pub fn judge(
        &mut self,
        jails: &[Running],
        exempt: &Exempt,
        events: &Events,
        ledger: &Ledger,
    ) -> Vec<Ban> {
        let mut bans = vec![];
        // The clock is read once for a batch.
        let Some(now) = self.found.last().map(|found| found.now) else {
            return bans;
        };
        let accusations: Vec<_> = self
            .found
            .iter()
            .map(|found| {
                let line = &self.lines[found.line.clone()];
                Accusation::new(jails[found.jail].number, &found.finding, line)
            })
            .collect();
        let mut judge = Judge::new(exempt);
        let judgements = judge.judge_all(ledger, &accusations, now);
        for (Found { jail, finding, .. }, judgement) in self.found.iter().zip(judgements) {
            bans.extend(jails[*jail].conclude(events, finding, judgement));
        }
        self.found.clear();
        self.lines.clear();
        bans
    }
}
