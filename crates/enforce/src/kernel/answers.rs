//! What answers, bans that reject and decoy ports, as far as the kernel loads it.
//! Where it does not, all else goes on without, a limit says so, and maintenance asks
//! again.

use std::{
    sync::{MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use weir_bpf::{fault, programs::rejects_supported};
use weir_core::Action;

use super::{Kernel, maintenance::Maintenance};
use crate::{Entry, Error};

/// Where the kernel refused to load what answers, it is asked again after this.
const AGAIN: Duration = Duration::from_secs(600);

/// When the kernel refused a program because of what it answers, and its words.
#[derive(Default)]
pub(super) struct RefusedAnswers {
    reject: Option<Instant>,
    decoys: Option<(Instant, String)>,
}

fn is_due(refused: Instant) -> bool {
    refused.elapsed() >= fault::sooner(AGAIN)
}

impl Kernel {
    fn refused(&self) -> MutexGuard<'_, RefusedAnswers> {
        self.refused.lock().expect("no holder of this lock panics")
    }

    /// Sees to a generation that answers, before the first ban that asks for it.
    /// Where the kernel cannot, or will not load it, the ban drops without a
    /// word: a limit says so.
    pub(super) fn prepare_answers(&self, entries: &[Entry]) {
        let rejects = |entry: &Entry| entry.policy.action == Action::Reject;
        if !entries.iter().any(rejects) || self.tables().current.has_reject {
            return;
        }
        let mut maintenance = self.maintenance.lock();
        self.answers.store(true, Ordering::Relaxed);
        let geometry = {
            let tables = self.tables();
            if tables.current.has_reject || !self.may_reject() {
                return;
            }
            tables.current.table.geometry()
        };
        if let Err(error) = self.next_generation(&mut maintenance, geometry) {
            self.refuse_answers(true, false, &error);
        }
    }

    /// Is there a point in asking the kernel for a generation that rejects?
    pub(super) fn may_reject(&self) -> bool {
        self.refused().reject.is_none_or(is_due) && rejects_supported()
    }

    /// And for one with decoy ports?
    pub(super) fn may_have_decoys(&self) -> bool {
        let refused = self.refused();
        refused.decoys.as_ref().is_none_or(|(at, _)| is_due(*at))
    }

    /// The kernel refused a program with these, and may take one without.
    pub(super) fn refuse_answers(&self, reject: bool, decoys: bool, error: &Error) {
        let mut refused = self.refused();
        if reject {
            refused.reject = Some(Instant::now());
            tracing::warn!(
                "bans that reject drop without an answer, for the packet path with answers cannot be loaded: {error}"
            );
        }
        if decoys {
            refused.decoys = Some((Instant::now(), error.to_string()));
        }
    }

    /// Are there bans that reject, and nothing that answers?
    pub(super) fn lacks_answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed) && !self.tables().current.has_reject
    }

    /// Are there decoy ports, and nobody who looks at them?
    pub(super) fn lacks_decoys(&self) -> bool {
        let tables = self.tables();
        !tables.current.has_decoys && tables.current.decoys.are_there()
    }

    /// Attaches; if a program cannot be loaded for it, without what answers.
    pub(super) fn or_without_answers(
        &self,
        attach: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (number, before) = {
            let current = &self.tables().current;
            (current.number, current.refusals())
        };
        let outcome = attach();
        let (reject, decoys, geometry) = {
            let current = &self.tables().current;
            // Now, not some time: an unrelated change must not cost answers.
            let earlier = if current.number == number { before } else { 0 };
            if current.refusals() == earlier {
                return outcome;
            }
            let geometry = current.table.geometry();
            (current.has_reject, current.has_decoys, geometry)
        };
        if !reject && !decoys {
            return outcome;
        }
        let error = match &outcome {
            Err(error) => error.to_string(),
            Ok(()) => "the hook that was tried first has no program with answers".to_owned(),
        };
        self.refuse_answers(reject, decoys, &Error::Unsupported(error));
        match self.next_generation(&mut self.maintenance.lock(), geometry) {
            Ok(()) => attach(),
            // What is attached stays.
            Err(error) => {
                outcome.map(|()| tracing::warn!("bans and answers stay as they are: {error}"))
            }
        }
    }

    /// Asks the kernel again for decoy ports that it refused, when that is due.
    ///
    /// # Errors
    /// There are none still.
    pub(super) fn ask_for_decoys(&self, maintenance: &mut Maintenance<'_>) -> Result<(), Error> {
        if !self.lacks_decoys() {
            return Ok(());
        }
        if self.may_have_decoys() {
            let geometry = self.tables().current.table.geometry();
            if let Err(error) = self.next_generation(maintenance, geometry) {
                // Whatever it was, not each second.
                self.refuse_answers(false, true, &error);
            }
        }
        if !self.lacks_decoys() {
            return Ok(());
        }
        let refused = self.refused();
        let why = refused.decoys.as_ref().map_or("", |(_, why)| why);
        Err(Error::Unsupported(format!(
            "decoy ports do not answer, for the program with them cannot be loaded: {why}; tried again within ten minutes"
        )))
    }
}
