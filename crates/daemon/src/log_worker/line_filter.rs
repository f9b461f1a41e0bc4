//! What reads a jail's lines: a filter of weir's own or one of Fail2ban's.

use std::sync::Arc;

use weir_core::detect::{Context, Finding, JournalMatch, Line, Notices, Program, ProgramState};

use super::{WorkerError, filter};
use crate::{
    config::Config,
    fail2ban_filter::{Fail2banFilter, FilterState, GivenUp},
    jails::JailConfig,
};

/// A compiled filter of either kind.
#[derive(Clone)]
pub(super) enum LineFilter {
    Weir(Box<Program>),
    Fail2ban(Arc<Fail2banFilter>),
}

/// What a filter remembers from line to line.
pub(super) enum LineState {
    Weir(Box<ProgramState>),
    Fail2ban(Box<FilterState>),
}

impl LineFilter {
    /// The jail's, with what the jail says of whose entries it reads.
    pub fn of(config: &Config, jail: &JailConfig) -> Result<Self, WorkerError> {
        if let Some(filter) = &jail.fail2ban {
            return Ok(Self::Fail2ban(filter.clone()));
        }
        let program = filter(config, &jail.filter)?;
        let program = match jail.journal_match.users().next() {
            Some(_) => program.of_named_users(),
            None => program,
        };
        Ok(Self::Weir(Box::new(program)))
    }

    /// The state of a filter before it has read a line.
    pub fn state(&self) -> LineState {
        match self {
            Self::Weir(_) => LineState::Weir(Box::default()),
            Self::Fail2ban(filter) => LineState::Fail2ban(Box::new(filter.state())),
        }
    }

    /// What one record tells, with a state that this filter made.
    pub fn read_line(
        &self,
        state: &mut LineState,
        line: &Line<'_>,
        context: &Context<'_>,
    ) -> Option<Finding> {
        match (self, state) {
            (Self::Weir(program), LineState::Weir(state)) => {
                program.read_line(state, line, context)
            }
            (Self::Fail2ban(filter), LineState::Fail2ban(state)) => {
                filter.read_line(state, line, context)
            }
            // Another kind's, of before a reload.
            (filter, state) => {
                *state = filter.state();
                filter.read_line(state, line, context)
            }
        }
    }

    /// Are lines the same text to both, as filters of Fail2ban's read it?
    pub fn decodes_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fail2ban(own), Self::Fail2ban(other)) => own.decodes_as(other),
            _ => false,
        }
    }

    /// Can a finding name a host?
    pub fn names_hosts(&self) -> bool {
        match self {
            Self::Weir(program) => program.names_hosts(),
            Self::Fail2ban(filter) => filter.names_hosts(),
        }
    }

    /// Can a finding name a prefix?
    pub fn names_prefixes(&self) -> bool {
        match self {
            Self::Weir(program) => program.names_prefixes(),
            Self::Fail2ban(filter) => filter.names_prefixes(),
        }
    }

    /// The syslog tags of its programs; none: others say whose entries it reads.
    pub fn identifiers(&self) -> Vec<String> {
        match self {
            Self::Weir(program) => program.identifiers().map(str::to_owned).collect(),
            Self::Fail2ban(_) => Vec::new(),
        }
    }

    /// The fields of its entries of the journal, where the jail says nothing.
    pub fn journal_match(&self) -> JournalMatch {
        match self {
            Self::Weir(program) => program.journal_match().clone(),
            Self::Fail2ban(_) => JournalMatch::default(),
        }
    }
}

impl LineState {
    /// What the filter has captured of the failure that it has found last, by its names.
    pub fn take_captured(&mut self) -> Vec<(Arc<str>, String)> {
        match self {
            Self::Weir(_) => Vec::new(),
            Self::Fail2ban(state) => state.take_captured(),
        }
    }

    /// Finds dates together with a filter that reads the same lines, if both are Fail2ban's and
    /// find the same by it.
    pub fn share_dates(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fail2ban(own), Self::Fail2ban(other)) => own.share_dates(other),
            _ => false,
        }
    }

    /// The state for another thread that reads the log on.
    pub fn reopened(&self) -> Self {
        match self {
            Self::Weir(state) => Self::Weir(Box::new(state.reopened())),
            Self::Fail2ban(state) => Self::Fail2ban(state.clone()),
        }
    }

    /// What was noticed since the last call.
    pub fn take_notices(&mut self) -> Notices {
        match self {
            Self::Weir(state) => state.take_notices(),
            Self::Fail2ban(_) => Notices::default(),
        }
    }

    /// Lines that were given up since the last call: weir's own filters give none up.
    pub fn take_given_up(&mut self) -> GivenUp {
        match self {
            Self::Weir(_) => GivenUp::default(),
            Self::Fail2ban(state) => state.take_given_up(),
        }
    }
}
