//! Prompt mode (`prompt_timeout` in `[app]`): connections that no rule is about wait until
//! somebody says whether they may. A question is open for a time; then `default` decides.
//! Each question is about one program and one destination, and none waits for another.
//!
//! An answer is a rule behind those of the configuration, about the executables by their
//! SHA-256, for as long as the process runs that has asked, and a minute more. What is to
//! last stands in the configuration: `weir app prompt` writes it there.

use std::{
    collections::VecDeque,
    fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_bpf::identity::Handle;
use weir_core::{PortRange, Prefix, Protocol, balance::acl::Who, geofence::Direction};
use weir_identity::{
    Condition, Criterion, Digest, Object, Peer, Peers, Protocols, Rule, Verdict, Where,
    decision::{self, Flow, Holder},
    policy::Policy,
};

use super::{AppError, programs::Programs};

/// Questions that are open at a time.
pub const MAX_QUESTIONS: usize = 64;
/// Questions of one program that are open at a time, so that others find room.
pub const MAX_OF_PROGRAM: usize = 8;
/// Questions about processes of one user: who copies a program to many files, each with a
/// SHA-256 of its own, leaves room for others as well.
pub const MAX_OF_USER: usize = 32;
/// Answers that hold at a time: for another one the oldest goes.
pub const MAX_ANSWERS: usize = 128;
/// Where nobody has answered, and `default` denies, the same is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// So long an answer holds after its process has ended: the kernel still sends then what
/// the process has written.
const LINGER: Duration = Duration::from_secs(60);

/// How names of answers begin, as those of rules in the configuration cannot.
pub(super) const ANSWER: &str = "prompt:";

/// For what an answer holds, while the process runs that has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerScope {
    /// This peer and port.
    Once,
    /// This port, any peer.
    Run,
}

/// Whether a program may send to a peer, or receive from it.
#[derive(Debug, Clone, Serialize)]
pub struct Question {
    /// The number of the question, by which it is answered.
    pub id: u64,
    /// When the question was asked.
    pub asked: Timestamp,
    /// When `default` decides.
    pub ends: Timestamp,
    /// The executables of the programs that hold the socket.
    pub programs: Vec<Object>,
    /// The process that used the socket last.
    pub pid: u32,
    /// The effective user of that process.
    pub uid: u32,
    /// The control group of that process, which names its unit.
    pub cgroup: String,
    /// The processes that have started it, the nearest first, with number and executable.
    pub parents: Vec<String>,
    /// `out`: the program begins it.
    pub direction: &'static str,
    /// `tcp`, `udp` and so on.
    pub protocol: &'static str,
    /// The other side.
    pub peer: IpAddr,
    /// The port of the peer; of what comes in, the program's own; 0: there is none.
    pub port: u16,
    #[serde(skip)]
    pub(super) flow: Flow,
    #[serde(skip)]
    pub(super) handles: Vec<Handle>,
    #[serde(skip)]
    pub(super) started: Option<u64>,
    #[serde(skip)]
    pub(super) deadline: Instant,
}

/// Questions, in numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PromptStatus {
    /// For how many seconds a question is open.
    pub timeout: u64,
    /// Questions that are open.
    pub open: usize,
    /// Questions that were ever open.
    pub asked: u64,
    /// Questions that somebody has answered.
    pub answered: u64,
    /// Questions that `default` has answered.
    pub timed_out: u64,
    /// Connections that were dropped without a question, because too many were open.
    pub unasked: u64,
    /// Answers that made room for others.
    pub forgotten: u64,
}

/// Why a question is not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// It was answered, its time is over, or its process is gone.
    #[error("no question {0} is open: it was answered, its time is over, or its process has ended")]
    NoQuestion(u64),
    /// Nobody is asked anything.
    #[error("nobody is asked: [app] has no prompt_timeout")]
    NoPrompt,
    /// The answer cannot be put into force.
    #[error(transparent)]
    App(#[from] AppError),
}

struct Answer {
    rule: Rule,
    pid: u32,
    started: Option<u64>,
    until: Option<Instant>,
    /// Nobody has answered in time.
    is_by_default: bool,
    /// The process has ended.
    is_left: bool,
}

/// What has come to an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Answers have come or gone.
    pub answers: bool,
    /// Questions are over which nobody has answered, with the processes that had asked. Of
    /// other processes that wait for the same answer the kernel tells again.
    pub questions: bool,
}

/// What is asked, and what was answered.
#[derive(Default)]
pub(super) struct Prompts {
    questions: Vec<Question>,
    answers: VecDeque<Answer>,
    next: u64,
    asked: u64,
    answered: u64,
    timed_out: u64,
    unasked: u64,
    last_unasked: Option<Instant>,
    forgotten: u64,
    /// The kernel does not have the answers yet.
    pub(super) is_pending: bool,
}

/// When a process was started, in clock ticks since the boot; `None`: it is gone, or has
/// ended and its parent has not asked how.
pub(super) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().take(20).collect();
    // A first thread that has ended leaves a process to its others.
    let threads: u32 = fields.get(17)?.parse().ok()?;
    let has_ended = matches!(fields[0], "Z" | "X") && threads <= 1;
    match has_ended {
        true => None,
        false => fields.get(19)?.parse().ok(),
    }
}

impl Question {
    fn is_same(&self, flow: &Flow, programs: &[Object]) -> bool {
        // Of what comes in the peers are many, and the question is about the port.
        let is_peer = !flow.is_outward || self.flow.peer == flow.peer;
        (self.flow.is_outward, self.flow.protocol, self.flow.port)
            == (flow.is_outward, flow.protocol, flow.port)
            && is_peer
            && self.programs == programs
    }

    fn digests(&self) -> Vec<Digest> {
        self.programs.iter().filter_map(|exe| exe.digest).collect()
    }

    fn answer(&self, verdict: Verdict, scope: AnswerScope, until: Option<Instant>) -> Answer {
        let protocol = match self.flow.protocol {
            Protocols::TCP => Some(Protocol::Tcp),
            Protocols::UDP => Some(Protocol::Udp),
            _ => None,
        };
        let ports = self.flow.port.zip(protocol);
        // A raw socket may send to anybody, and the question was not about one peer.
        let is_anybody = self.flow.protocol == Protocols::RAW && self.peer.is_unspecified();
        let is_any = scope == AnswerScope::Run || is_anybody;
        let peers = (!is_any).then(|| Peers {
            is_negated: false,
            entries: vec![Peer::Known(Who::Prefix(Prefix::host(self.peer)))],
        });
        let (to, from) = match self.flow.is_outward {
            true => (peers, None),
            false => (None, peers),
        };
        let rule = Rule {
            name: format!("{ANSWER}{}", self.id).into(),
            verdict,
            who: vec![Condition {
                is_negated: false,
                criterion: Criterion::Exe(self.digests()),
            }],
            place: Where {
                direction: match self.flow.is_outward {
                    true => Direction::Out,
                    false => Direction::In,
                },
                protocols: self.flow.protocol,
                ports: ports
                    .map(|(port, protocol)| PortRange::one(protocol, port))
                    .into_iter()
                    .collect(),
                to,
                from,
                netns: None,
            },
            peer: Vec::new(),
        };
        Answer {
            rule,
            pid: self.pid,
            started: self.started,
            until,
            is_by_default: false,
            is_left: false,
        }
    }
}

impl Prompts {
    /// The answers that hold, as rules.
    pub(super) fn rules(&self) -> Vec<Rule> {
        self.answers.iter().map(|one| one.rule.clone()).collect()
    }

    pub(super) fn questions(&self) -> &[Question] {
        &self.questions
    }

    pub(super) fn status(&self, timeout: Duration) -> PromptStatus {
        PromptStatus {
            timeout: timeout.as_secs(),
            open: self.questions.len(),
            asked: self.asked,
            answered: self.answered,
            timed_out: self.timed_out,
            unasked: self.unasked,
            forgotten: self.forgotten,
        }
    }

    /// Why more is not asked just now.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_recent = self.last_unasked?.elapsed() < ASK_AGAIN;
        is_recent.then(|| {
            format!(
                "{} connections were dropped and nobody was asked, because {MAX_QUESTIONS} questions, {MAX_OF_PROGRAM} of one program, or {MAX_OF_USER} of one user, are open at most: weir app prompt answers them",
                self.unasked
            )
        })
    }

    /// Opens a question unless it is open; true: it is new.
    pub(super) fn open(&mut self, mut question: Question, room: usize) -> bool {
        let is_open = |open: &Question| open.is_same(&question.flow, &question.programs);
        if self.questions.iter().any(is_open) {
            return false;
        }
        let of_program = |open: &&Question| open.programs == question.programs;
        let of_program = self.questions.iter().filter(of_program).count();
        let of_user = |open: &&Question| open.uid == question.uid;
        let of_user = self.questions.iter().filter(of_user).count();
        let is_full = self.questions.len() >= MAX_QUESTIONS.min(room);
        if is_full || of_program >= MAX_OF_PROGRAM || of_user >= MAX_OF_USER {
            self.unasked += 1;
            self.last_unasked = Some(Instant::now());
            return false;
        }
        self.next += 1;
        self.asked += 1;
        question.id = self.next;
        self.questions.push(question);
        true
    }

    /// What people have said makes no room for what nobody has answered.
    fn add(&mut self, answer: Answer) {
        self.is_pending = true;
        if self.answers.len() >= MAX_ANSWERS {
            self.forgotten += 1;
            let by_default = self.answers.iter().position(|one| one.is_by_default);
            match by_default {
                Some(place) => _ = self.answers.remove(place),
                None if answer.is_by_default => return,
                None => _ = self.answers.pop_front(),
            }
        }
        self.answers.push_back(answer);
    }

    /// Answers a question that was asked then, if that is known; false: it is not open.
    pub(super) fn answer(
        &mut self,
        id: u64,
        asked: Option<Timestamp>,
        verdict: Verdict,
        scope: AnswerScope,
    ) -> bool {
        let is_meant =
            |open: &Question| open.id == id && asked.is_none_or(|asked| asked == open.asked);
        let Some(place) = self.questions.iter().position(is_meant) else {
            return false;
        };
        let question = self.questions.remove(place);
        self.answered += 1;
        self.add(question.answer(verdict, scope, None));
        true
    }

    /// Ends what is over at this time. `is_there`: does the process run that was started then?
    pub(super) fn expire(
        &mut self,
        now: Instant,
        default: Verdict,
        is_there: impl Fn(u32, Option<u64>) -> bool,
    ) -> Ended {
        for one in self.answers.iter_mut().filter(|one| !one.is_left) {
            if !is_there(one.pid, one.started) {
                one.is_left = true;
                let end = now + LINGER;
                one.until = Some(one.until.map_or(end, |until| until.min(end)));
            }
        }
        let before = (self.answers.len(), self.questions.len());
        self.answers
            .retain(|one| one.until.is_none_or(|until| until > now));
        self.questions
            .retain(|open| is_there(open.pid, open.started));
        let mut ended = Ended {
            answers: self.answers.len() != before.0,
            questions: self.questions.len() != before.1,
        };
        let is_over = |open: &mut Question| open.deadline <= now;
        let over: Vec<_> = self.questions.extract_if(.., is_over).collect();
        for question in over {
            self.timed_out += 1;
            let until = (default != Verdict::Allow).then(|| now + ASK_AGAIN);
            self.add(Answer {
                is_by_default: true,
                ..question.answer(default, AnswerScope::Once, until)
            });
            ended.answers = true;
        }
        self.is_pending |= ended.answers;
        ended
    }

    /// Ends questions that rules decide now.
    pub(super) fn follow(&mut self, policy: &Policy, programs: &Programs) {
        self.questions
            .retain(|open| !is_decided(policy, programs, &open.handles, &open.flow));
    }
}

/// Whether a rule decides about this flow of these programs, so that nobody is asked; not where
/// one of them is known no more.
pub(super) fn is_decided(
    policy: &Policy,
    programs: &Programs,
    handles: &[Handle],
    flow: &Flow,
) -> bool {
    let known = handles.iter().map(|handle| programs.by_handle(*handle));
    let holders: Option<Vec<_>> = known
        .map(|known| Some(Holder::Known(policy.met_by(&known?.read.program))))
        .collect();
    holders.is_some_and(|holders| policy.decide(&holders, flow).by != decision::DecidedBy::Default)
}

#[cfg(test)]
mod tests;
