//! Loads the programs that answer packets (reject, decoy port, pool). If the kernel
//! refuses one, the firewall still judges packets, a limit reports it, and maintenance
//! tries again.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_bpf::{AnswerProgram, attachment::Hook, fault};
use weir_core::Action;

use super::{Kernel, maintenance::Maintenance};
use crate::{Entry, Error};

/// Where the kernel refused to load what answers, it is asked again after this.
const AGAIN: Duration = Duration::from_secs(600);

/// When the kernel was last asked in vain.
#[derive(Default)]
pub(super) struct RefusedAnswers(Mutex<[Option<Instant>; AnswerProgram::ALL.len()]>);

impl RefusedAnswers {
    fn times(&self) -> MutexGuard<'_, [Option<Instant>; AnswerProgram::ALL.len()]> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn is_due(&self, answer: AnswerProgram) -> bool {
        let refused = self.times()[answer as usize];
        refused.is_none_or(|at| at.elapsed() >= fault::sooner(AGAIN))
    }

    fn note(&self, answer: AnswerProgram, refused: bool) {
        self.times()[answer as usize] = refused.then(Instant::now);
    }
}

impl Kernel {
    /// Sees to what answers, before the first ban that asks for it. Where the kernel
    /// cannot, or will not load it, the ban drops without a word: a limit says so.
    pub(super) fn prepare_answers(&self, entries: &[Entry]) {
        let rejects = |entry: &Entry| entry.policy.action == Action::Reject;
        if !entries.iter().any(rejects) || self.tables().current.wants(AnswerProgram::Reject) {
            return;
        }
        let maintenance = self.maintenance.lock();
        self.answer(&maintenance, AnswerProgram::Reject);
    }

    /// Answers from now on, at the hooks in use and at others when they are.
    pub(super) fn answer(&self, _: &Maintenance<'_>, answer: AnswerProgram) {
        let current = {
            let tables = self.tables();
            if answer == AnswerProgram::Reject {
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
            self.answer(&maintenance, AnswerProgram::Reject);
        }
        if self.tables().current.decoys.are_there() {
            self.answer(&maintenance, AnswerProgram::Decoy);
        }
        if self.tables().current.balancer.is_there() {
            self.answer(&maintenance, AnswerProgram::Balance);
        }
        if self.tables().current.decoys.are_tarpits_there() {
            self.answer(&maintenance, AnswerProgram::Tarpit);
        }
    }

    /// Asks the kernel again for what it refused, when that is due.
    ///
    /// # Errors
    /// Decoy ports, tarpit ports or pools do not answer still. (Bans that reject are in
    /// force without.)
    pub(super) fn ask_for_answers(&self, maintenance: &Maintenance<'_>) -> Result<(), Error> {
        for answer in AnswerProgram::ALL {
            let may_be = answer.is_supported() && self.refused.is_due(answer);
            if may_be && self.lacking(answer).is_some() {
                self.answer(maintenance, answer);
            }
        }
        for answer in [
            AnswerProgram::Decoy,
            AnswerProgram::Balance,
            AnswerProgram::Tarpit,
        ] {
            if let Some(why) = self.lacking(answer) {
                return Err(Error::Unsupported(format!(
                    "{}: {why}; tried again within ten minutes",
                    consequence(answer)
                )));
            }
        }
        Ok(())
    }

    /// Whether the program is to answer, and does not.
    pub(super) fn lacks(&self, answer: AnswerProgram) -> bool {
        let wanted = self.tables().current.wants(answer);
        wanted && (!answer.is_supported() || self.lacking(answer).is_some())
    }

    /// See [`weir_bpf::Generation::lacks`], of the hooks that interfaces have, or, where
    /// none has one, of all. Without the tables, for it waits while a program is loaded.
    fn lacking(&self, answer: AnswerProgram) -> Option<String> {
        let mut hooks = self.hooks.of_interfaces();
        if hooks.is_empty() {
            hooks.extend(Hook::ALL);
        }
        let current = self.tables().current.clone();
        current.lacks(answer, &hooks)
    }
}

fn consequence(answer: AnswerProgram) -> &'static str {
    match answer {
        AnswerProgram::Decoy => "decoy ports do not answer, for their program cannot be loaded",
        AnswerProgram::Balance => {
            "pools are not served, for what forwards to their reals cannot be loaded"
        }
        AnswerProgram::Tarpit => "tarpit ports do not answer, for their program cannot be loaded",
        AnswerProgram::Reject => {
            "bans that reject drop without an answer, for what answers cannot be loaded"
        }
    }
}
