//! What answers, bans that reject and decoy ports, as far as the kernel loads it.
//! Where it does not, packets are judged all the same, a limit says so, and maintenance
//! asks again.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_bpf::{Answer, fault, link::Hook};
use weir_core::Action;

use super::{Kernel, maintenance::Maintenance};
use crate::{Entry, Error};

/// Where the kernel refused to load what answers, it is asked again after this.
const AGAIN: Duration = Duration::from_secs(600);

/// When the kernel was last asked in vain.
#[derive(Default)]
pub(super) struct RefusedAnswers(Mutex<[Option<Instant>; Answer::ALL.len()]>);

impl RefusedAnswers {
    fn times(&self) -> MutexGuard<'_, [Option<Instant>; Answer::ALL.len()]> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn is_due(&self, answer: Answer) -> bool {
        let refused = self.times()[answer as usize];
        refused.is_none_or(|at| at.elapsed() >= fault::sooner(AGAIN))
    }

    fn note(&self, answer: Answer, refused: bool) {
        self.times()[answer as usize] = refused.then(Instant::now);
    }
}

impl Kernel {
    /// Sees to what answers, before the first ban that asks for it. Where the kernel
    /// cannot, or will not load it, the ban drops without a word: a limit says so.
    pub(super) fn prepare_answers(&self, entries: &[Entry]) {
        let rejects = |entry: &Entry| entry.policy.action == Action::Reject;
        if !entries.iter().any(rejects) || self.tables().current.wants(Answer::Reject) {
            return;
        }
        let maintenance = self.maintenance.lock();
        self.answer(&maintenance, Answer::Reject);
    }

    /// Answers from now on, at the hooks in use and at others when they are.
    pub(super) fn answer(&self, _: &Maintenance<'_>, answer: Answer) {
        let current = {
            let tables = self.tables();
            if answer == Answer::Reject {
                for generation in tables.generations() {
                    generation.table.set_rejects();
                }
            }
            tables.current.clone()
        };
        let answered = current.answer(answer);
        self.refused.note(answer, answered.is_err());
        if let Err(error) = answered {
            tracing::warn!("{}: {error}", consequence(answer));
        }
    }

    /// Has what an earlier daemon left answered as it was.
    pub(super) fn answer_as_before(&self) {
        let maintenance = self.maintenance.lock();
        if self.policies.any_rejects() {
            self.answer(&maintenance, Answer::Reject);
        }
        if self.tables().current.decoys.are_there() {
            self.answer(&maintenance, Answer::Decoy);
        }
    }

    /// Asks the kernel again for what it refused, when that is due.
    ///
    /// # Errors
    /// Decoy ports do not answer still. (Bans that reject are in force without.)
    pub(super) fn ask_for_answers(&self, maintenance: &Maintenance<'_>) -> Result<(), Error> {
        for answer in Answer::ALL {
            let may_be = answer.is_supported() && self.refused.is_due(answer);
            if may_be && self.lacking(answer).is_some() {
                self.answer(maintenance, answer);
            }
        }
        match self.lacking(Answer::Decoy) {
            None => Ok(()),
            Some(why) => Err(Error::Unsupported(format!(
                "{}: {why}; tried again within ten minutes",
                consequence(Answer::Decoy)
            ))),
        }
    }

    /// Is it to be answered, and is not?
    pub(super) fn lacks(&self, answer: Answer) -> bool {
        let wanted = self.tables().current.wants(answer);
        wanted && (!answer.is_supported() || self.lacking(answer).is_some())
    }

    /// See [`weir_bpf::Generation::lacks`], of the hooks that interfaces have, or, where
    /// none has one, of all. Without the tables, for it waits while a program is loaded.
    fn lacking(&self, answer: Answer) -> Option<String> {
        let mut hooks = self.hooks.of_interfaces();
        if hooks.is_empty() {
            hooks.extend(Hook::ALL);
        }
        let current = self.tables().current.clone();
        current.lacks(answer, &hooks)
    }
}

fn consequence(answer: Answer) -> &'static str {
    match answer {
        Answer::Decoy => "decoy ports do not answer, for their program cannot be loaded",
        Answer::Reject => {
            "bans that reject drop without an answer, for what answers cannot be loaded"
        }
    }
}
