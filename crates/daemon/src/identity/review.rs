//! What programs were seen doing, as an administrator reviews it: what is new since the
//! last time, what the rules in force say of it, and the rules that it makes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use weir_identity::{
    Digest, Object, Program, Verdict,
    decision::{DecidedBy, Decision, Flow, Holder},
    learn::{FlowKey, LearnedProgram, ProgramKey},
    policy::{Policy, RuleBits},
    rules_text::{self, RulesText, Shape},
};

use super::{
    Apps,
    learning::{LearningStatus, moment},
};

/// All that was learned.
#[derive(Debug, Clone, Serialize)]
pub struct Review {
    /// Whether it goes on.
    pub learning: LearningStatus,
    /// When this was made: what to say when it has been reviewed.
    pub as_of: Timestamp,
    /// By their paths.
    pub programs: Vec<ReviewedProgram>,
}

/// What one program has done.
#[derive(Debug, Clone, Serialize)]
pub struct ReviewedProgram {
    /// Which one it is.
    #[serde(flatten)]
    pub program: ProgramKey,
    /// When the first connection was seen.
    pub first: Timestamp,
    /// When the last connection was seen.
    pub last: Timestamp,
    /// Nobody has reviewed anything of the program.
    pub is_new: bool,
    /// The path leads to this very file on the host.
    pub is_at_path: bool,
    /// Other executables that were seen at this path, by their SHA-256.
    pub others: Vec<Digest>,
    /// The SHA-256 of the whole, in each form that was seen.
    pub aggregates: BTreeSet<Digest>,
    /// Executables of parents, a chain each.
    pub parents: BTreeSet<String>,
    /// Control groups in which it ran.
    pub cgroups: BTreeSet<String>,
    /// Users as which it ran, by number.
    pub uids: BTreeSet<u32>,
    /// The kinds of connections that were seen.
    pub flows: Vec<ReviewedFlow>,
}

/// A kind of connections.
#[derive(Debug, Clone, Serialize)]
pub struct ReviewedFlow {
    /// Which way they begin, the protocol, the port and the peer.
    #[serde(flatten)]
    pub key: FlowKey,
    /// When the first connection was seen.
    pub first: Timestamp,
    /// When the last connection was seen.
    pub last: Timestamp,
    /// Connections, and first datagrams of flows.
    pub count: u64,
    /// How many of those were refused or dropped.
    pub denied: u64,
    /// Nobody has reviewed this kind.
    pub is_new: bool,
    /// What the rules in force say of it.
    pub verdict: &'static str,
    /// The rule that says so; `default`: none does.
    pub rule: String,
    /// It is denied, or would be if the default were "drop".
    pub needs_rule: bool,
}

/// Rules made of what was learned.
#[derive(Debug, Clone, Serialize)]
pub struct LearnedRules {
    /// A file for conf.d.
    pub text: String,
    /// How many there are.
    pub rules: usize,
    /// Programs that have no digest to be trusted.
    pub left_out: usize,
    /// Kinds of connections that were left out because nobody has reviewed them.
    pub unreviewed: usize,
    /// Kinds of connections that were left out because a rule denies them.
    pub denied: usize,
}

/// Programs as the rules see them: those that are known now as they are, others by what
/// was learned of them.
struct Judge {
    policy: Policy,
    running: BTreeMap<(String, Option<Digest>), Program>,
}

impl Judge {
    fn program(&self, learned: &LearnedProgram) -> Program {
        let key = &learned.program;
        if let Some(known) = self.running.get(&(key.path.clone(), key.digest)) {
            return Program {
                script: key.script.clone().map(Into::into),
                ..known.clone()
            };
        }
        let exe = Object {
            path: key.path.clone().into(),
            digest: key.digest,
        };
        Program {
            objects: vec![exe.clone()],
            exe: Some(exe),
            // Its libraries are not known.
            truncated: true,
            uid: learned.uids.iter().next().copied().unwrap_or_default(),
            cgroup: learned.cgroups.iter().next().cloned().unwrap_or_default(),
            script: key.script.clone().map(Into::into),
            package: learned.package.clone(),
            ..Program::default()
        }
    }

    fn decide(&self, bits: RuleBits, netns: u64, key: &FlowKey) -> Decision {
        let flow = Flow {
            is_outward: key.is_outward,
            protocol: key.protocol,
            // Anybody: a rule about some peers is not about all of them.
            peer: key
                .peer
                .unwrap_or_else(|| std::net::Ipv6Addr::UNSPECIFIED.into()),
            port: key.port.filter(|port| *port != 0),
            netns,
        };
        self.policy.decide(&[Holder::Known(bits)], &flow)
    }

    fn rule(&self, decision: &Decision) -> String {
        match decision.by {
            DecidedBy::Place(number) => {
                let place = &self.policy.places[number];
                self.policy.rules[place.rule].name.to_string()
            }
            DecidedBy::Default => "default".to_owned(),
            DecidedBy::Unknown => "unknown".to_owned(),
        }
    }
}

impl Apps {
    fn judge(&self) -> Option<Judge> {
        let guard = self.state();
        let state = guard.as_ref()?;
        let running = state.programs.iter().filter_map(|(_, known)| {
            let program = &known.read.program;
            let exe = program.exe.as_ref()?;
            let path = exe.path.to_string_lossy().into_owned();
            Some(((path, exe.digest), program.clone()))
        });
        Some(Judge {
            policy: state.policy.clone(),
            running: running.collect(),
        })
    }

    /// What was learned, beside what the rules in force say of it; `None`: there is no
    /// `[app]`.
    pub fn review(&self) -> Option<Review> {
        let as_of = Timestamp::now();
        let judge = self.judge()?;
        let (programs, reviewed) = self.learning.programs();
        let mut digests: BTreeMap<&str, BTreeSet<Digest>> = BTreeMap::new();
        for program in &programs {
            let of_path = digests.entry(&program.program.path).or_default();
            of_path.extend(program.program.digest);
        }
        let is_new = |since: i64| reviewed.is_none_or(|reviewed| since > reviewed);
        let review = |learned: &LearnedProgram| {
            let program = judge.program(learned);
            let bits = judge.policy.met_by(&program);
            let flows = learned.flows.iter().map(|(key, count)| {
                let decision = judge.decide(bits, program.netns, key);
                ReviewedFlow {
                    key: *key,
                    first: moment(count.first),
                    last: moment(count.last),
                    count: count.count,
                    denied: count.denied,
                    is_new: is_new(count.since),
                    verdict: decision.verdict.name(),
                    rule: judge.rule(&decision),
                    needs_rule: decision.verdict != Verdict::Allow
                        || decision.by == DecidedBy::Default,
                }
            });
            let others = digests.get(&*learned.program.path).into_iter().flatten();
            ReviewedProgram {
                program: learned.program.clone(),
                first: moment(learned.first),
                last: moment(learned.last),
                is_new: is_new(learned.first),
                is_at_path: learned.is_at_path,
                others: others
                    .filter(|digest| Some(**digest) != learned.program.digest)
                    .copied()
                    .collect(),
                aggregates: learned.aggregates.clone(),
                parents: learned.parents.clone(),
                cgroups: learned.cgroups.clone(),
                uids: learned.uids.clone(),
                flows: flows.collect(),
            }
        };
        Some(Review {
            learning: self.learning.status(),
            as_of,
            programs: programs.iter().map(review).collect(),
        })
    }

    /// Rules that allow what was learned and reviewed, and with `unreviewed` the rest of
    /// it; not what a rule denies. `None`: there is no `[app]`.
    pub fn learned_rules(&self, shape: Shape, unreviewed: bool) -> Option<LearnedRules> {
        let judge = self.judge()?;
        let (mut programs, reviewed) = self.learning.programs();
        let (mut new, mut denied) = (0, 0);
        for learned in &mut programs {
            let program = judge.program(learned);
            let bits = judge.policy.met_by(&program);
            learned.flows.retain(|key, count| {
                let decision = judge.decide(bits, program.netns, key);
                let is_denied = decision.verdict != Verdict::Allow
                    && matches!(decision.by, DecidedBy::Place(_));
                let is_new = reviewed.is_none_or(|reviewed| count.since > reviewed);
                denied += usize::from(is_denied);
                new += usize::from(is_new && !is_denied && !unreviewed);
                !is_denied && (unreviewed || !is_new)
            });
        }
        programs.retain(|program| !program.flows.is_empty());
        let RulesText {
            text,
            rules,
            left_out,
        } = rules_text::rules(&programs, shape);
        Some(LearnedRules {
            text,
            rules,
            left_out,
            unreviewed: new,
            denied,
        })
    }
}
