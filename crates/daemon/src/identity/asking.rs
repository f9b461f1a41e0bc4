//! Questions of the prompt mode, as they come from the kernel's events and are answered over
//! the API.

use std::time::Instant;

use jiff::Timestamp;
use weir_bpf::identity::IdentityEvent;
use weir_identity::{MAX_RULES, Protocols, Verdict, decision::Flow};

use super::{
    AppError, Apps, process,
    prompt::{AnswerError, AnswerScope, Question, is_decided, started},
    state::State,
    told::{protocol_name, waits},
};
use crate::host::cgroup_of;

/// Whether somebody is asked about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// There is a new question.
    New,
    /// The question is open, or it was counted that there is no room for it, or rules decide
    /// that came into force since the kernel told of it.
    Before,
    /// The event is about something else, or nobody can be asked: the program is gone, or
    /// has no SHA-256 that counts.
    No,
}

impl State {
    /// Asks about a connection that no rule is about, if somebody is to be asked.
    pub(super) fn question(&mut self, event: &IdentityEvent) -> Asked {
        let timeout = match self.config.prompt_timeout {
            Some(timeout) if waits(event) && !self.observe => timeout,
            _ => return Asked::No,
        };
        // Who is gone waits for nothing; what it has closed may still have packets.
        let Some(started) = started(event.pid) else {
            return Asked::No;
        };
        let known = event.holders.iter().flatten();
        let known = known.filter_map(|handle| self.programs.by_handle(*handle));
        let pending = match event.key.set {
            [0, 0] => None,
            _ => self.programs.by_key(&event.key),
        };
        let (mut programs, mut handles) = (Vec::new(), Vec::new());
        for holder in known.chain(pending) {
            // Nobody can be allowed by a file that has no SHA-256 that counts.
            let exe = holder.read.program.exe.clone();
            let Some(exe) = exe.filter(|exe| exe.digest.is_some()) else {
                return Asked::No;
            };
            handles.push(holder.handle());
            if !programs.contains(&exe) {
                programs.push(exe);
            }
        }
        if programs.is_empty() {
            return Asked::No;
        }
        let peer = event.peer.to_canonical();
        let flow = Flow {
            is_outward: event.is_out,
            protocol: Protocols(event.protocol),
            peer,
            port: (event.port != 0).then_some(event.port),
            netns: event.netns,
        };
        // The kernel may have told of it before an answer was in force that is about it: by that
        // it judges what is sent next. Who is not known might have been asked about.
        let holders = event.holders.iter().flatten().count();
        let is_whole = handles.len() == holders + usize::from(event.key.set != [0, 0]);
        if is_whole && is_decided(&self.policy, &self.programs, &handles, &flow) {
            return Asked::Before;
        }
        let (now, asked) = (Instant::now(), Timestamp::now());
        let question = Question {
            id: 0,
            asked,
            ends: asked + timeout,
            programs,
            pid: event.pid,
            uid: event.uid,
            cgroup: cgroup_of(event.pid).unwrap_or_default(),
            parents: process::parents(event.pid)
                .into_iter()
                .map(|(pid, path)| format!("{pid} {path}"))
                .collect(),
            direction: if event.is_out { "out" } else { "in" },
            protocol: protocol_name(event.protocol),
            peer,
            port: event.port,
            flow,
            handles,
            started: Some(started),
            deadline: now + timeout,
        };
        let room = MAX_RULES.saturating_sub(self.policy.places.len());
        match self.prompts.open(question, room) {
            true => Asked::New,
            false => Asked::Before,
        }
    }
}

impl Apps {
    /// The questions that are open, the oldest first.
    ///
    /// # Errors
    /// Nobody is asked.
    pub fn questions(&self) -> Result<Vec<Question>, AnswerError> {
        let guard = self.state();
        let asks = |state: &&State| state.config.prompt_timeout.is_some();
        let state = guard.as_ref().filter(asks).ok_or(AnswerError::NoPrompt)?;
        Ok(state.prompts.questions().to_vec())
    }

    /// Answers a question: the program may, or may not. `asked`: when the question was
    /// asked that is meant, for numbers begin anew with each daemon; `None`: whichever it is.
    ///
    /// # Errors
    /// The question is not open, or the kernel refuses the answer.
    pub fn answer(
        &self,
        id: u64,
        asked: Option<Timestamp>,
        allow: bool,
        scope: AnswerScope,
    ) -> Result<(), AnswerError> {
        let mut guard = self.state();
        let state = guard.as_mut().ok_or(AnswerError::NoPrompt)?;
        if state.config.prompt_timeout.is_none() {
            return Err(AnswerError::NoPrompt);
        }
        let verdict = match allow {
            true => Verdict::Allow,
            false => Verdict::Reject,
        };
        if !state.prompts.answer(id, asked, verdict, scope) {
            return Err(AnswerError::NoQuestion(id));
        }
        Ok(self.put_answers(state)?)
    }

    fn put_answers(&self, state: &mut State) -> Result<(), AppError> {
        let compiled = self.compile(&state.config, state.prompts.rules());
        let (policy, made_of) =
            compiled.inspect_err(|error| state.retry.refused(Instant::now(), error))?;
        state.put(policy, made_of)?;
        state.prompts.is_pending = false;
        self.alert_unresolved(&state.policy);
        self.cut_revoked(state);
        Ok(())
    }

    /// Ends questions and answers whose time is over. An answer that the kernel refuses is
    /// an alert, and tried again after a while.
    pub(super) fn tend_prompts(&self, state: &mut State) -> Result<(), AppError> {
        let is_there = |pid, since: Option<u64>| since.is_some() && started(pid) == since;
        let default = state.config.default;
        let ended = state.prompts.expire(Instant::now(), default, is_there);
        let mut trouble = state.prompts.trouble();
        // Also what the kernel has refused before.
        if state.prompts.is_pending && state.retry.is_due(Instant::now()) {
            // What is refused stays pending.
            let _ = self.put_answers(state);
        } else if ended.questions {
            state.identity.judge_anew()?;
        }
        if state.prompts.is_pending {
            let why = state.retry.why();
            trouble = Some(format!("answers are not in force: {why}"));
        }
        match trouble {
            Some(trouble) => self.alerts.raise(super::ABOUT_QUESTIONS, trouble),
            None => self.alerts.clear(super::ABOUT_QUESTIONS),
        }
        Ok(())
    }
}
