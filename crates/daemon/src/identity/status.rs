//! What is shown of rules about programs, and of programs.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::Serialize;
use weir_bpf::identity::{DecidedBy, Hits, Identity, IdentityCounts, Level};
use weir_identity::{Digest, Object, Program, Rule, policy::Policy};

use super::{
    Apps, ContainerStatus, KeptName, LearningStatus, PackageStatus, PinnedPath, PromptStatus,
    Replaced, cut::Cuts, prompt::ANSWER,
};

/// `[app]` as it is in force.
#[derive(Debug, Clone, Serialize)]
pub struct AppStatus {
    /// How it is seen who sends on a connection: `tracepoint`, `fentry`, `push` or `nfqueue`.
    pub level: &'static str,
    /// What it does not see, or does not tell.
    pub misses: Vec<&'static str>,
    /// The control group in which it holds.
    pub cgroup: PathBuf,
    /// Denials are counted and nothing is dropped.
    pub observe: bool,
    /// Where no rule holds.
    pub default: &'static str,
    /// Of programs that are not known yet.
    pub unknown: &'static str,
    /// In the order in which they are asked, the default last.
    pub rules: Vec<RuleStatus>,
    /// Programs that are known.
    pub programs: usize,
    /// Files whose digests are known, and how many of them cannot be written meanwhile.
    pub files: usize,
    /// See `files`.
    pub leases: usize,
    /// Questions about connections that no rule is about; `None`: nobody is asked.
    pub prompt: Option<PromptStatus>,
    /// Connections that were ended because the rules allow them no longer.
    pub cut: u64,
    /// Packets that were dropped because too many waited for the daemon; `None`: none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_dropped: Option<u64>,
    /// The counters of the kernel's programs.
    #[serde(skip)]
    pub counts: IdentityCounts,
    /// Executables of which rules are known to be met, or not, before a program runs them.
    pub executables: usize,
    /// How often a program ended before weir could look at it.
    pub short_lived: u64,
    /// Programs that had to be forgotten for others.
    pub evicted: u64,
    /// How often a file had no SHA-256 because there was no room for a lease on it.
    pub refused_leases: u64,
    /// Whether it is recorded what programs do.
    pub learning: LearningStatus,
    /// Files that are others than rules name.
    pub replaced: Vec<Replaced>,
    /// The executables that rules by path are about, where they follow upgrades.
    pub pins: Vec<PinnedPath>,
    /// Names in rules whose addresses are those of before the start: nobody has answered.
    pub kept_names: Vec<KeptName>,
    /// What is remembered of the packages of programs; `None`: no rule asks for packages.
    pub packages: Option<PackageStatus>,
    /// Containers whose labels are remembered, and which are not known; `None`: no rule asks for
    /// labels.
    pub containers: Option<ContainerStatus>,
}

/// One rule, and what it has decided.
#[derive(Debug, Clone, Serialize)]
pub struct RuleStatus {
    /// The name of the rule; `default` and `unknown` stand for what decides where none does.
    pub name: String,
    /// The verdict of the rule, in the configuration's word.
    pub verdict: &'static str,
    /// How many known programs it is about.
    pub programs: usize,
    /// Connections and flows that it has decided.
    pub judged: u64,
    /// Packets that were dropped, and calls that were refused.
    pub dropped: u64,
}

impl RuleStatus {
    /// It is an answer of the prompt mode, and no rule of the configuration.
    pub fn is_answer(&self) -> bool {
        self.name.starts_with(ANSWER)
    }
}

/// One program that is known.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramStatus {
    /// The executable, with its SHA-256.
    pub exe: Option<Object>,
    /// The SHA-256 of the whole.
    pub aggregate: Option<Digest>,
    /// How many files it has mapped executable.
    pub objects: usize,
    /// It has executable memory of no file.
    pub anonymous: bool,
    /// Its code differs from its files, or another process has traced it.
    pub altered: bool,
    /// The user that the program runs as; of several the one that was identified first.
    pub uid: u32,
    /// The control group that the program runs in.
    pub cgroup: String,
    /// Rules that are about it.
    pub rules: Vec<Arc<str>>,
}

impl ProgramStatus {
    pub(super) fn of(program: &Program, policy: &Policy) -> Self {
        let about = policy.rules.iter().filter(|rule| rule.is_about(program));
        Self {
            exe: program.exe.clone(),
            aggregate: program.aggregate(),
            objects: program.objects.len(),
            anonymous: program.anonymous,
            altered: program.altered,
            uid: program.uid,
            cgroup: program.cgroup.clone(),
            rules: about.map(|rule| rule.name.clone()).collect(),
        }
    }
}

fn sorted(mut programs: Vec<ProgramStatus>) -> Vec<ProgramStatus> {
    programs.sort_by(|a, b| {
        let path = |status: &ProgramStatus| status.exe.as_ref().map(|exe| exe.path.clone());
        path(a).cmp(&path(b))
    });
    programs
}

/// What no level of the kernel's programs sees, beside what none does (docs/guide/app.md has the
/// same).
pub const MISSES: &[&str] = &[
    "code that is put into a process without a file: told as anonymous memory, or as an altered program within three seconds",
    "holders of a socket that never send: found within 10 s",
];

/// What no level sees.
pub(super) const MISSES_BY_PROGRAMS: &[&str] = &[
    "data of a program that others change (ptrace, /proc/PID/mem), without a change of its code",
    "the text of scripts: an interpreter's files are what is looked at",
    "AF_PACKET and AF_XDP sockets, which need CAP_NET_RAW, AF_VSOCK, and AF_SMC where the module smc can be loaded",
    "a program that asks another one to send for it",
];

const IN_ONE_SEND: &str = "within one send, mappings that another thread changes before the kernel has taken all data or waits: the rest of this send passes as before; and with preempt=full, a send that begins while one on the same processor is looked at (the tracepoint tcp_sendmsg_locked, Linux 6.16, misses neither)";
const IN_ONE_UNLOCK: &str = "with preempt=full, a change of mappings that is made while another one is noted on the same processor: until the next change, or for three seconds, the program is taken for what it was (Linux 6.12 has level fentry, which does not miss it)";

const NEVER_STILL: &str = "who a program is whose threads change its mappings all the time, with less than a walk between, 10 µs for a small program and 10 ms for one of 50,000 mappings: unknown decides (level fentry has such a program wait)";

const TOO_MANY: &str = "who a program is that has more mappings than one walk looks at, which may be from about 140,000 on (vm.max_map_count allows 65,530 where nobody has raised it): unknown decides";
const EXCHANGED: &str = "before Linux 6.7, for up to three seconds, that a program has exchanged its executable file by prctl (PR_SET_MM, which takes CAP_SYS_RESOURCE, CAP_CHECKPOINT_RESTORE or a user namespace of its own): that takes no lock";

/// What a level does not see beside that.
fn misses_of(identity: &Identity) -> &'static [&'static str] {
    match (identity.level(), identity.is_by_function()) {
        (Level::Tracepoint, _) => &[],
        (Level::Fentry, _) => &[IN_ONE_SEND],
        (Level::Push, false) => &[NEVER_STILL, TOO_MANY, EXCHANGED],
        (Level::Push, true) => &[IN_ONE_SEND, IN_ONE_UNLOCK, NEVER_STILL, TOO_MANY, EXCHANGED],
    }
}

impl Apps {
    /// The rules in force, and what they have decided; `None`: there is no `[app]`.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn status(&self) -> Result<Option<AppStatus>, weir_bpf::Error> {
        if let Some(queue) = &*self.queue() {
            return Ok(Some(queue.status(self)));
        }
        let guard = self.state();
        let Some(state) = &*guard else {
            return Ok(None);
        };
        let hits = state.hits()?;
        let of = |name: &str| hits.get(name).copied().unwrap_or_default();
        let about = |rule: &Rule| {
            let known = state.programs.iter();
            known
                .filter(|(_, program)| rule.is_about(&program.read.program))
                .count()
        };
        let row = |name: &str, verdict, programs, hits: Hits| RuleStatus {
            name: name.to_owned(),
            verdict,
            programs,
            judged: hits.judged,
            dropped: hits.dropped,
        };
        let policy = &state.policy;
        let mut rules: Vec<_> = policy
            .rules
            .iter()
            .map(|rule| row(&rule.name, rule.verdict.name(), about(rule), of(&rule.name)))
            .collect();
        let programs = state.programs.iter().count();
        for (name, verdict, by) in [
            ("unknown", policy.unknown.name(), DecidedBy::Unknown),
            ("default", policy.default.name(), DecidedBy::Default),
        ] {
            rules.push(row(name, verdict, programs, state.identity.hits(by)?));
        }
        let (files, leases) = state.objects.counts();
        let counts = state.identity.counts()?;
        Ok(Some(AppStatus {
            level: state.identity.level().name(),
            misses: MISSES
                .iter()
                .chain(MISSES_BY_PROGRAMS)
                .copied()
                .chain(misses_of(&state.identity).iter().copied())
                .chain(Cuts::misses(&state.identity))
                .collect(),
            cgroup: state.cgroup.path().to_owned(),
            observe: state.observe,
            default: policy.default.name(),
            unknown: policy.unknown.name(),
            rules,
            programs,
            files,
            leases,
            prompt: state
                .config
                .prompt_timeout
                .map(|timeout| state.prompts.status(timeout)),
            cut: counts.cut,
            queue_dropped: None,
            counts,
            executables: state.executables.counts().0,
            short_lived: state.short_lived.total(),
            evicted: state.programs.evicted(),
            refused_leases: state.objects.refused(),
            learning: self.learning.status(),
            replaced: state.files.replaced().cloned().collect(),
            pins: self.pins.all(),
            kept_names: self.names.kept(),
            packages: state.reads_packages.then(|| state.packages.status()),
            containers: state.reads_containers.then(|| state.containers.status()),
        }))
    }

    /// The programs that are known, by their executables.
    pub fn programs(&self) -> Vec<ProgramStatus> {
        if let Some(queue) = &*self.queue() {
            return sorted(queue.programs().collect());
        }
        let guard = self.state();
        let Some(state) = &*guard else {
            return Vec::new();
        };
        let known = state.programs.iter();
        let known = known.map(|(_, known)| ProgramStatus::of(&known.read.program, &state.policy));
        sorted(known.collect())
    }

    /// What each rule has decided, by name.
    pub fn hits(&self) -> BTreeMap<Arc<str>, Hits> {
        if let Some(queue) = &*self.queue() {
            return queue.hits().clone();
        }
        let guard = self.state();
        let state = guard.as_ref();
        state
            .and_then(|state| state.hits().ok())
            .unwrap_or_default()
    }
}
