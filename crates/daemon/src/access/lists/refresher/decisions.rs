//! CrowdSec's decisions: asked for, held, ended on time, and kept on disk for a
//! start without CrowdSec.

use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use weir_sources::list::{Decisions, Patience, Validators, crowdsec, fetch::read_file};

use super::{Backoff, Failure, RETRY, Refresher};
use crate::access::lists::{
    Shared,
    config::ListConfig,
    left_out::{self, LeftOut},
};

/// CrowdSec is asked for everything this often, in case a change got lost.
const EVERYTHING: Duration = Duration::from_secs(3600);
/// Its decisions are written to disk at this rate on average, bytes a second, so
/// that a flash card lives: what has changed is on disk within seconds if there
/// are few of them, …
const KEEP_RATE: u64 = 16 * 1024;
/// … and within this time at worst; at once when the daemon stops.
const KEEP_WITHIN: Duration = Duration::from_secs(300);
/// A key of CrowdSec's is not longer.
const MAX_KEY: usize = 4096;

impl Refresher {
    pub(super) fn follow_crowdsec(
        &self,
        shared: &Shared,
        config: &ListConfig,
        (url, key_file): (&str, &Path),
        backoff: &mut Backoff,
        force: bool,
    ) -> Result<(), Failure> {
        let key = read_file(key_file, MAX_KEY)?;
        let key = String::from_utf8_lossy(&key);
        let everything = force
            || backoff
                .whole
                .is_none_or(|when| when.elapsed() >= EVERYTHING);
        // If its answer gets lost, so has what it said.
        let whole = backoff.whole.take();
        let answer = crowdsec::ask(
            url,
            key.trim(),
            everything,
            config.limits.max_bytes,
            config.ca_file.as_deref(),
            Patience::default(),
        )?;
        let mut decisions = self.held().decisions.clone();
        decisions.apply(
            &answer,
            everything,
            SystemTime::now(),
            config.limits.max_entries,
        )?;
        backoff.whole = if everything {
            Some(Instant::now())
        } else {
            whole
        };
        if self.orders().stop {
            return Ok(());
        }
        left_out::tell(shared, config, left_out::malformed(&decisions));
        let text = decisions.print();
        let changed = text != self.held().decisions.print();
        self.take_decisions(decisions);
        let mut held = self.held();
        held.bytes = text.len();
        held.unkept |= changed;
        Ok(())
    }

    /// Has the copy on disk say what CrowdSec has decided; false when it does
    /// not.
    pub fn keep_decisions(&self, shared: &Shared) -> bool {
        let _alone = self.keeping.lock().expect("no holder of this lock panics");
        let text = {
            let mut held = self.held();
            if !std::mem::take(&mut held.unkept) {
                return true;
            }
            held.decisions.print()
        };
        let config = self.config();
        let kept = self.keep(shared, &config, text.as_bytes(), &Validators::default());
        self.held().unkept |= !kept;
        kept
    }

    /// Keeps the decisions on disk, once they may be written again.
    pub(super) fn keep_in_time(&self, shared: &Shared, backoff: &mut Backoff) {
        let (unkept, bytes) = {
            let held = self.held();
            (held.unkept, held.bytes as u64)
        };
        if !unkept || Instant::now() < backoff.keep {
            return;
        }
        self.keep_decisions(shared);
        let rest = Duration::from_secs(bytes / KEEP_RATE);
        backoff.keep = Instant::now() + rest.clamp(RETRY, KEEP_WITHIN);
    }

    /// True when its prefixes are others now.
    pub(super) fn take_decisions(&self, decisions: Decisions) -> bool {
        let prefixes = decisions.prefixes();
        let mut held = self.held();
        let changed = *held.prefixes != *prefixes;
        if changed {
            held.prefixes = prefixes.into();
        }
        held.entries = decisions.len();
        held.skipped = LeftOut {
            count: decisions.others,
            first: Vec::new(),
        };
        held.refused = decisions.refused.clone().into();
        held.malformed = decisions.malformed.clone().into();
        held.decisions = decisions;
        changed
    }

    /// Decisions end on time, whether CrowdSec answers or not.
    pub(super) fn expire(&self, shared: &Shared) {
        let now = SystemTime::now();
        let end = self.held().decisions.next_end();
        if end.is_none_or(|end| end > now) {
            return;
        }
        let mut decisions = self.held().decisions.clone();
        if decisions.expire(now) && self.take_decisions(decisions) {
            shared.publish();
        }
    }
}
