//! What is in force in the kernel: a policy, and the programs that are known by their
//! numbers there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use weir_bpf::identity::{self as kernel, CgroupAt, DecidedBy, Hits, Identity, Loaded};
use weir_core::geofence::Direction;
use weir_identity::{
    Digest, Object, Program, Rule, Unknown, Verdict,
    config::AppConfig,
    hash::FileKey,
    policy::{Place, Policy},
};

use super::{
    AppError, MadeOf,
    containers::{Containers, group_of},
    cut::Cuts,
    executables::Executables,
    learning::Learning,
    mounts::RemoteMounts,
    objects::{NoDigest, Objects},
    packages::Packages,
    process::{self, ReadProgram},
    programs::Programs,
    prompt::{Prompts, started},
    replaced::NamedFiles,
    restless::{Restless, Whose},
    round::Round,
    short_lived::ShortLivedPrograms,
    taking_back::TakingBack,
    way::reach,
};
use crate::host::cgroup_of;

/// A process that changes its mappings while it is looked at is looked at again.
const TRIES: usize = 8;
/// No look is begun so long after the first one, but for the time in which files are read: who has
/// very many mappings takes much longer for each.
const ALL_TRIES: Duration = Duration::from_millis(200);
/// So long files are read for one process: of the rest the digests are found, and what was begun is
/// read on, when it is asked about again. Meanwhile leases are given back, control groups followed
/// and others identified.
const LOOK: Duration = Duration::from_secs(1);
/// The same of one of those that run when rules come into force, and of all of them.
const LOOK_AT_ONE: Duration = Duration::from_secs(10);
pub(super) const LOOK_AT_ALL: Duration = Duration::from_secs(40);
/// The same while rules are in force already, of those in a control group that was made anew, or of
/// which events were lost: the others are asked about when they send.
pub(super) const LOOK_AT_SOME: Duration = Duration::from_secs(2);
/// So long files are read that were put in the places of others: of the rest later.
const LOOK_AT_FRESH: Duration = Duration::from_millis(500);
/// A program with a file that was being written is looked at again after this time.
const AGAIN: Duration = Duration::from_secs(2);

/// A policy that the kernel refuses is put again after the one time at first, and after the
/// other one at last: a large one takes seconds.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);

/// Rules in force, and who is known.
pub(super) struct State {
    pub(super) identity: Arc<Identity>,
    /// The kernel's programs, for a control group that is made anew.
    pub(super) loaded: Loaded,
    pub(super) config: AppConfig,
    pub(super) cgroup: CgroupAt,
    pub(super) observe: bool,
    /// A change to another level, or to another control group, has failed after its first
    /// step: some of its programs are attached.
    pub(super) is_torn: bool,
    /// What programs do is recorded.
    pub(super) learns: bool,
    pub(super) policy: Policy,
    /// What the policy was made of.
    pub(super) made_of: MadeOf,
    pub(super) objects: Objects,
    /// Files of which the kernel has not taken back yet what was concluded.
    pub(super) taking_back: TakingBack,
    pub(super) programs: Programs,
    pub(super) executables: Executables,
    pub(super) short_lived: ShortLivedPrograms,
    pub(super) files: NamedFiles,
    /// What rules before have decided, by name.
    pub(super) before: BTreeMap<Arc<str>, Hits>,
    /// What is asked, where no rule is about a connection.
    pub(super) prompts: Prompts,
    /// Connections that the rules allow no longer.
    pub(super) cuts: Cuts,
    /// Processes that did not stand still.
    pub(super) restless: Restless,
    /// The processes that are gone through for programs that nobody runs any more.
    pub(super) round: Round,
    pub(super) swept: Instant,
    pub(super) followed: Instant,
    /// When it was looked last whether the control group is still the one.
    pub(super) looked: Instant,
    /// Events were lost so often, as last seen.
    pub(super) lost: u64,
    pub(super) untold: u64,
    /// By what the kernel tells them apart, which a policy that was refused may have changed.
    pub(super) told_by: [bool; 3],
    /// When more events were counted and not told.
    pub(super) untold_at: Option<Instant>,
    /// How often a file had no lease, as last seen, and when that was more.
    pub(super) refused_leases: u64,
    pub(super) refused_leases_at: Option<Instant>,
    /// When the kernel was last not told of a program, because it refuses that.
    pub(super) refused_at: Option<Instant>,
    /// When a policy that the kernel has refused is put again.
    pub(super) retry: Retry,
    /// Until when files are read for all that run, while these are gone through.
    pub(super) look_until: Option<Instant>,
    /// Until when anything is read, while somebody waits for an answer.
    pub(super) hurry: Option<Instant>,
    /// Programs are read with the packages of their files.
    pub(super) reads_packages: bool,
    pub(super) packages: Packages,
    /// Programs are read with the labels of their containers.
    pub(super) reads_containers: bool,
    pub(super) containers: Containers,
}

/// When something that was refused is tried again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    wait: Duration,
    at: Option<Instant>,
    why: String,
}

impl Retry {
    /// Nothing was refused, or that was long enough ago.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// An attempt has ended now, and was refused: each time it is waited twice as long.
    pub(super) fn refused(&mut self, now: Instant, error: &AppError) {
        self.wait = (self.wait * 2).clamp(RETRY_FIRST, RETRY_LAST);
        self.at = Some(now + self.wait);
        self.why = error.to_string();
    }

    /// Why the last attempt was refused.
    pub(super) fn why(&self) -> &str {
        &self.why
    }
}

/// What has become of a process that was to be identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identified {
    Known,
    /// It is gone, or does not stand still.
    Gone,
    /// It is looked up of which package, or in which container, it is: until then it is one
    /// that is not known.
    Later,
    /// It did not stand still a short while ago, and is not looked at before some time is over.
    PutOff,
}

fn verdict_of(verdict: Verdict) -> kernel::Verdict {
    match verdict {
        Verdict::Allow | Verdict::Log => kernel::Verdict::Allow,
        Verdict::Drop => kernel::Verdict::Drop,
        Verdict::Reject => kernel::Verdict::Reject,
    }
}

fn rule_of(place: &Place) -> kernel::Rule {
    let networks = |networks: &Option<weir_identity::policy::Networks>| {
        networks.as_ref().map(|networks| kernel::Networks {
            prefixes: networks.prefixes.clone(),
            outside: networks.outside,
        })
    };
    kernel::Rule {
        verdict: verdict_of(place.verdict),
        has_who: place.has_who,
        is_out: place.direction != Direction::In,
        is_in: place.direction != Direction::Out,
        protocols: place.protocols.0,
        ports: place.ports.clone(),
        outward: networks(&place.to),
        inward: networks(&place.from),
        netns: place.netns.unwrap_or(0),
    }
}

/// As the kernel takes it.
pub(super) fn policy_of(policy: &Policy, observe: bool, learns: bool) -> kernel::Policy {
    let asks = |asks: fn(&Rule) -> bool| policy.rules.iter().any(asks);
    kernel::Policy {
        rules: policy.places.iter().map(rule_of).collect(),
        default: verdict_of(policy.default),
        unknown: match policy.unknown {
            Unknown::Learn => kernel::Unknown::Learn,
            Unknown::Allow => kernel::Unknown::Allow,
            Unknown::Drop => kernel::Unknown::Drop,
        },
        by_uid: asks(Rule::asks_user),
        by_cgroup: asks(Rule::asks_cgroup),
        by_process: asks(Rule::asks_script),
        observe,
        asks: policy.asks,
        tell_all: learns || policy.unknown == Unknown::Learn || !policy.logs.is_empty(),
    }
}

/// Are these two looks at one program, whose mappings nobody has changed between them? An odd
/// sequence is that of changes that go on, and the next ones have the same: it is like no
/// other.
fn stood_still(before: &kernel::Seen, after: &kernel::Seen) -> bool {
    before.sequence & 1 == 0
        && (after.key, after.space, after.sequence) == (before.key, before.space, before.sequence)
}

/// The user of who was asked about, if that is a thread of the process that was looked at and
/// has another one than the first thread: what it runs is the same.
fn user_of_thread(asked: &kernel::Key, seen: &kernel::Key) -> Option<u32> {
    let uid = seen.uid;
    (asked.uid != uid && kernel::Key { uid, ..*asked } == *seen).then_some(asked.uid)
}

fn bits_of(policy: &Policy, read: &ReadProgram) -> kernel::RuleBits {
    policy.met_by(&read.program).iter().collect()
}

fn executable_bits(policy: &Policy, digest: Digest) -> kernel::ExecutableBits {
    let bits = policy.met_by_executable(digest);
    kernel::ExecutableBits {
        meets: bits.meets.iter().collect(),
        may: bits.may.iter().collect(),
    }
}

/// By what a policy has the kernel tell programs apart, beside what they have mapped.
pub(super) fn tells_apart_by(policy: &Policy) -> [bool; 3] {
    [Rule::asks_user, Rule::asks_cgroup, Rule::asks_script]
        .map(|asks| policy.rules.iter().any(asks))
}

/// Whether it matters of which package a program's files are.
pub(super) fn asks_package(policy: &Policy) -> bool {
    policy.rules.iter().any(Rule::asks_package)
}

/// Whether it matters in which container a program is.
pub(super) fn asks_container(policy: &Policy) -> bool {
    policy.rules.iter().any(Rule::asks_container)
}

impl State {
    /// Do the programs hold for this control group, at this level, and no others?
    pub(super) fn is_at(&self, cgroup: &CgroupAt, level: kernel::Level) -> bool {
        !self.is_torn && self.cgroup == *cgroup && self.identity.level() == level
    }

    /// Has all hold for this control group, which has come in the place of the one before. It is
    /// judged first: who is known is known there, too, and others are asked about.
    pub(super) fn move_to(&mut self, cgroup: CgroupAt) -> Result<(), weir_bpf::Error> {
        self.loaded.move_to(&self.identity, &cgroup)?;
        self.cgroup = cgroup;
        self.identity.adopt_sockets()?;
        self.identify_running(true, LOOK_AT_SOME);
        Ok(())
    }

    /// Puts a policy of another configuration into force. Where it tells programs apart by
    /// something else, such as their users, or is the first that asks for packages
    /// or containers, all are identified anew first: two that were one to the rules before have
    /// one handle, with the user of whoever was looked at last.
    pub(super) fn put_anew(&mut self, policy: Policy, made_of: MadeOf) -> Result<(), AppError> {
        let asks_package = asks_package(&policy);
        let asks_container = asks_container(&policy);
        let asks_others = self.containers.ask_at(&self.config);
        let told_by = tells_apart_by(&policy);
        let is_same = told_by == self.told_by
            && (self.reads_packages || !asks_package)
            && (!asks_container || self.reads_containers && !asks_others);
        (self.reads_packages, self.told_by) = (asks_package, told_by);
        self.reads_containers = asks_container;
        if is_same {
            return self.put(policy, made_of);
        }
        let begun = Instant::now();
        let flags = policy_of(&policy, self.observe, self.learns);
        self.identity.put_flags(&flags)?;
        self.identify_running(false, LOOK_AT_ALL);
        self.programs.unname_before(&self.identity, begun);
        self.programs.name_all(&self.identity)?;
        self.put(policy, made_of)?;
        // Sockets have the handles of before until somebody uses them.
        Ok(self.identity.adopt_sockets()?)
    }

    /// Puts a policy into force, with whoever is known.
    pub(super) fn put(&mut self, policy: Policy, made_of: MadeOf) -> Result<(), AppError> {
        let put = self.put_once(policy, made_of);
        match &put {
            Ok(()) => self.retry = Retry::default(),
            Err(error) => self.retry.refused(Instant::now(), error),
        }
        put
    }

    fn put_once(&mut self, policy: Policy, made_of: MadeOf) -> Result<(), AppError> {
        // Before the kernel counts anew, and kept once it does: else they would count twice.
        let before = self.hits()?;
        // Before the rules are in force, so that they hold for these files from the start.
        for path in policy.rules.iter().flat_map(Rule::pinned) {
            if !self.note_file(&path.path, false)? {
                self.files.put_off(&path.path);
            }
        }
        let executables = self.executables.iter();
        let executables: Vec<_> = executables
            .map(|(key, digest)| (key, executable_bits(&policy, digest)))
            .collect();
        let known: Vec<_> = self
            .programs
            .iter()
            .map(|(handle, program)| (handle, bits_of(&policy, &program.read)))
            .collect();
        self.identity.put_policy(
            &policy_of(&policy, self.observe, self.learns),
            &known,
            &executables,
        )?;
        self.before = before;
        let is_rule = |name: &Arc<str>| policy.rules.iter().any(|rule| rule.name == *name);
        self.before.retain(|name, _| is_rule(name));
        self.cuts.begin();
        self.prompts.follow(&policy, &self.programs);
        self.policy = policy;
        self.made_of = made_of;
        self.files.follow(&self.policy.rules);
        for (_, program) in self.programs.iter() {
            if program.read.is_at_path {
                self.files.note(&program.read.program, &self.policy.rules);
            }
        }
        Ok(())
    }

    /// Notes the executable at a path, before a program runs it, if it has a digest; `tell`:
    /// the kernel too, of the policy that is in force. False: there was no time to read it.
    fn note_file(&mut self, path: &Path, tell: bool) -> Result<bool, weir_bpf::Error> {
        // Of a file that others hold no digest counts, and they may not answer.
        let file = reach(path).and_then(|found| found.open().ok());
        let Some(file) = file else {
            return Ok(true);
        };
        // The key first: with the time of change that the file has now. If it is written
        // after this, nobody who runs it has that key.
        let Some(key) = self.identity.executable_of(file.as_fd())? else {
            return Ok(true);
        };
        match self.objects.digest_of(file) {
            Ok((file, digest)) => {
                self.note_executable(key, path, file, digest, tell)?;
                Ok(true)
            }
            Err(why) => Ok(why != NoDigest::Later),
        }
    }

    fn note_executable(
        &mut self,
        key: kernel::Executable,
        path: &Path,
        file: FileKey,
        digest: Digest,
        tell: bool,
    ) -> Result<(), weir_bpf::Error> {
        let is_known = self.executables.has(key, digest);
        if let Some(gone) = self.executables.note(key, path, file, digest) {
            self.identity.forget_executable(gone);
        }
        match tell && !is_known {
            true => {
                let bits = executable_bits(&self.policy, digest);
                self.identity.put_executable(key, &bits)
            }
            false => Ok(()),
        }
    }

    /// As far as there is time to read them: the others later, and first those that were not begun.
    fn note_files(&mut self, paths: Vec<PathBuf>, time: Duration) -> Result<(), weir_bpf::Error> {
        let until = Instant::now() + time;
        let until = self.hurry.map_or(until, |end| end.min(until));
        let mut left = Vec::new();
        let mut result = Ok(());
        for path in paths {
            self.objects.bound(Some(until));
            match self.note_file(&path, true) {
                Ok(true) => (),
                Ok(false) => left.push(path),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.objects.bound(self.hurry);
        let begun = left.len().min(1);
        left.rotate_left(begun);
        for path in &left {
            self.files.put_off(path);
        }
        result
    }

    /// Notes the executables that rules name and whose paths are known: their own paths, and
    /// those of programs that were seen.
    pub(super) fn note_named(&mut self) -> Result<(), weir_bpf::Error> {
        self.note_files(self.files.paths(), LOOK_AT_SOME)
    }

    /// Notes files that have come to the paths of others since they were looked at last.
    pub(super) fn note_fresh(&mut self) -> Result<(), weir_bpf::Error> {
        let fresh = self.files.take_fresh();
        self.note_files(fresh, LOOK_AT_FRESH)
    }

    /// Has the kernel tell of each decision, or of no more than the rules need. Whatever is
    /// connected is judged anew, so that it is told as well.
    pub(super) fn set_learns(&mut self, learns: bool) -> Result<(), weir_bpf::Error> {
        self.learns = learns;
        let flags = policy_of(&self.policy, self.observe, learns);
        self.identity.put_flags(&flags)?;
        self.identity.judge_anew()
    }

    /// What rules name of what was learned before this daemon is watched, too.
    pub(super) fn watch_learned(&mut self, learning: &Learning) {
        let (learned, _) = learning.programs();
        for one in learned.iter().filter(|one| one.is_at_path) {
            let exe = Object {
                path: one.program.path.clone().into(),
                digest: one.program.digest,
            };
            let program = Program {
                objects: vec![exe.clone()],
                exe: Some(exe),
                ..Program::default()
            };
            self.files.note(&program, &self.policy.rules);
        }
    }

    /// What each rule has decided, those of before counted in.
    pub(super) fn hits(&self) -> Result<BTreeMap<Arc<str>, Hits>, weir_bpf::Error> {
        let mut all = self.before.clone();
        for (number, place) in self.policy.places.iter().enumerate() {
            let hits = self.identity.hits(DecidedBy::Rule(number as u16))?;
            let of = all
                .entry(self.policy.rules[place.rule].name.clone())
                .or_default();
            of.judged += hits.judged;
            of.dropped += hits.dropped;
        }
        Ok(all)
    }

    /// Whoever runs in the control group, with files read for so long. `tell`: the kernel too, of
    /// the policy that is in force.
    pub(super) fn identify_running(&mut self, tell: bool, time: Duration) -> usize {
        let until = Instant::now() + time;
        self.look_until = Some(until);
        let below = self.cgroup.below_root();
        let is_below = |path: String| {
            let rest = path.strip_prefix(&below);
            rest.is_some_and(|rest| below == "/" || rest.is_empty() || rest.starts_with('/'))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Who is gone by now is identified no more.
        let running: Vec<u32> = numbers
            .filter(|pid| cgroup_of(*pid).is_some_and(is_below))
            .collect();
        if self.reads_packages {
            let executables = running.iter().filter_map(|pid| {
                let exe = PathBuf::from(format!("/proc/{pid}/exe"));
                let found = RemoteMounts::of(*pid).find(&exe).ok()?;
                Some((fs::read_link(&exe).ok()?, found.open().ok()?))
            });
            self.packages.look_up(executables, until);
        }
        if self.reads_containers {
            let groups: BTreeSet<_> = running.iter().filter_map(|pid| cgroup_of(*pid)).collect();
            self.containers
                .look_up(groups.iter().map(String::as_str), until);
        }
        let known = running
            .into_iter()
            .filter(|pid| matches!(self.identify(*pid, None, tell), Ok(Identified::Known)))
            .count();
        self.look_until = None;
        known
    }

    /// Does something for which nothing is read for longer than this: others wait meanwhile.
    pub(super) fn within<T>(&mut self, time: Duration, work: impl FnOnce(&mut Self) -> T) -> T {
        let end = Instant::now() + time;
        self.hurry = Some(end);
        self.objects.bound(Some(end));
        let done = work(self);
        self.objects.bound(None);
        self.hurry = None;
        done
    }

    /// Is the time over within which somebody waits?
    pub(super) fn is_too_late(&self) -> bool {
        self.hurry.is_some_and(|end| Instant::now() >= end)
    }

    /// Looks at a process: at the first of its threads, which has its number, or where that has
    /// ended, and has no mappings any more, at another one.
    pub(super) fn look_at(&self, pid: u32) -> Result<Option<(u32, kernel::Seen)>, weir_bpf::Error> {
        if let Some(seen) = self.identity.look_at(pid)? {
            return Ok(Some((pid, seen)));
        }
        for thread in process::threads_of_ended(pid) {
            if let Some(seen) = self.identity.look_at(thread)? {
                return Ok(Some((thread, seen)));
            }
        }
        Ok(None)
    }

    /// Reads a process while it stays as it is.
    pub(super) fn read(
        &mut self,
        pid: u32,
    ) -> Result<Option<(kernel::Seen, ReadProgram)>, weir_bpf::Error> {
        let now = Instant::now();
        let until = self
            .look_until
            .map_or(now + LOOK, |all| all.min(now + LOOK_AT_ONE));
        let (begun, spent) = (Instant::now(), self.objects.spent());
        // Without the time in which files are read.
        let looking = |objects: &Objects| {
            let reading = objects.spent() - spent;
            begun.elapsed().saturating_sub(reading)
        };
        for number in 1..=TRIES {
            let Some((thread, before)) = self.look_at(pid)? else {
                break;
            };
            let end = self.hurry.map_or(until, |end| end.min(until));
            self.objects.bound(Some(end));
            let packages = self.reads_packages.then_some(&self.packages);
            let containers = self.reads_containers.then_some(&self.containers);
            let read = process::read(
                (pid, thread),
                &before,
                &mut self.objects,
                packages,
                containers,
            );
            self.objects.bound(None);
            let Some(mut read) = read else {
                return Ok(None);
            };
            let after = self.identity.look_at(thread)?;
            // Of that same run of a program: to rules that ask for scripts the key says so.
            if !process::read_arguments(thread, &mut read.program) {
                return Ok(None);
            }
            let last_look = self.identity.look_at(thread)?;
            let is_same =
                |look: &kernel::Seen| (look.key, look.space) == (before.key, before.space);
            // A process that is ending, or becomes another program, has files that cannot
            // be read for a moment.
            let is_torn = matches!(read.without, Some((_, NoDigest::Unreadable)));
            let has_stood_still = after.is_some_and(|after| stood_still(&before, &after))
                && last_look.as_ref().is_some_and(is_same);
            let is_last = number == TRIES || looking(&self.objects) > ALL_TRIES;
            if has_stood_still && (!is_torn || is_last) {
                self.restless.forget(pid);
                return Ok(Some((before, read)));
            }
            if self.is_too_late() {
                return Ok(None);
            }
            if is_last {
                break;
            }
        }
        // It is there, and is looked at later.
        if let Some(started) = started(pid) {
            let took = looking(&self.objects);
            let whose = Whose::of(pid);
            self.restless
                .note((pid, started), whose, took, Instant::now());
        }
        Ok(None)
    }

    /// Says who a process is, if that is known. A program whose package or container is
    /// not known yet would meet a rule that asks for another one: so nobody is told of it.
    /// `asked`: who was asked about, which may be a thread with a user of its own.
    pub(super) fn identify(
        &mut self,
        pid: u32,
        asked: Option<&kernel::Key>,
        tell: bool,
    ) -> Result<Identified, weir_bpf::Error> {
        let now = Instant::now();
        if self
            .restless
            .is_put_off(pid, || started(pid), || Whose::of(pid), now)
        {
            return Ok(Identified::PutOff);
        }
        let spent = self.objects.spent();
        let Some((mut seen, mut read)) = self.read(pid)? else {
            return Ok(Identified::Gone);
        };
        // Who has others wait for large files gets a part of the time.
        if matches!(read.without, Some((_, NoDigest::Later)))
            && let Some(whose) = Whose::of(pid)
        {
            let took = self.objects.spent() - spent;
            self.restless.spend(whose, took, Instant::now());
        }
        if let Some(user) = asked.and_then(|asked| user_of_thread(asked, &seen.key)) {
            (seen.key.uid, read.program.uid) = (user, user);
        }
        if read.is_looked_up {
            return Ok(Identified::Later);
        }
        let bits = bits_of(&self.policy, &read);
        if read.is_at_path {
            self.files.note(&read.program, &self.policy.rules);
        }
        let exe = read.program.exe.as_ref();
        let exe = exe.and_then(|exe| Some((exe.path.clone(), exe.digest?)));
        if let (Some(key), Some((path, digest)), Some(file)) =
            (seen.executable, exe, read.executable)
        {
            self.note_executable(key, &path, file, digest, tell)?;
        }
        let handle = self.programs.note(&seen.key, read);
        if tell {
            self.identity.put_identity(handle, &bits)?;
            self.identity.name(&seen.key, handle)?;
        }
        Ok(Identified::Known)
    }

    /// Identifies those whose packages or containers were looked up. Who is gone by now is listed
    /// as one that has ended too early; who does not stand still is asked about when it sends
    /// again.
    ///
    /// # Errors
    /// The first of those of the kernel: the others are identified all the same.
    pub(super) fn identify_answered(&mut self) -> Result<(), weir_bpf::Error> {
        let mut result = Ok(());
        let mut answered = self.packages.take_answered();
        answered.append(&mut self.containers.take_answered());
        for pid in answered {
            match self.identify(pid, None, true) {
                // It waits again: dpkg has written meanwhile.
                Ok(Identified::Later) => (),
                Ok(found) => {
                    let is_gone = found == Identified::Gone;
                    self.short_lived.end_wait(pid, is_gone, &self.executables);
                }
                Err(error) => {
                    self.short_lived.end_wait(pid, false, &self.executables);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Takes back what was concluded from files that somebody waits to write to.
    pub(super) fn take_back_broken(&mut self) -> Result<(), weir_bpf::Error> {
        let broken = self.objects.take_broken();
        let mut taking_back = mem::take(&mut self.taking_back);
        let done = taking_back.all(broken, |files| {
            let executables = self.forget_executables(files);
            let programs = self
                .programs
                .forget(&self.identity, |read| !read.files.is_disjoint(files));
            executables.and(programs)
        });
        self.taking_back = taking_back;
        done
    }

    /// Goes on with a round, or begins one if it is time; at its end the leases are given back of
    /// files that nobody has mapped any longer.
    ///
    /// # Errors
    /// The kernel refuses to look at a process, or to forget who it was.
    pub(super) fn go_round(&mut self) -> Result<(), weir_bpf::Error> {
        let now = Instant::now();
        if !self.round.is_open() {
            if !self.round.is_due(now) {
                return Ok(());
            }
            self.round.begin(self.programs.of_any_user(), now);
        }
        while let Some(pid) = self.round.next() {
            if let Some((_, seen)) = self.look_at(pid)?
                && self.round.meet(&seen.key)
            {
                // Its files have no lease any more.
                self.identify(pid, None, true)?;
            }
            if self.round.is_for_later(now) {
                return Ok(());
            }
        }
        let (begun, unmet) = self.round.end(Instant::now());
        let is_news = self.programs.end_round(begun, &unmet);
        self.round.note_news(is_news);
        self.give_back_leases()
    }

    /// Gives the leases back of files that no known program has mapped which somebody runs, and
    /// takes back what was concluded from those that others than root can write to. Of these the
    /// executables at paths that rules name keep theirs: so rules hold from the first packet on.
    pub(super) fn give_back_leases(&mut self) -> Result<(), weir_bpf::Error> {
        let pinned = self.policy.rules.iter().flat_map(Rule::pinned);
        let paths: BTreeSet<PathBuf> = pinned.map(|pinned| pinned.path.clone()).collect();
        let named = self.executables.files_at(&paths).copied();
        let named: Vec<FileKey> = named
            .filter(|file| !self.objects.is_root_alone(file))
            .collect();
        let used = self.programs.files_in_use().chain(&named);
        let given_back = self.objects.keep_leases_of(used);
        for key in self.programs.release_idle(&given_back.files) {
            self.identity.unname(&key);
        }
        let mut taking_back = mem::take(&mut self.taking_back);
        let done = taking_back.these(given_back, |files| self.forget_executables(files));
        self.taking_back = taking_back;
        done
    }

    /// Nothing is known of these executable files any longer.
    fn forget_executables(&mut self, files: &BTreeSet<FileKey>) -> Result<(), weir_bpf::Error> {
        let known = self.executables.of(files);
        if known.is_empty() {
            return Ok(());
        }
        for key in known {
            self.identity.forget_executable(key);
        }
        self.identity.judge_anew()?;
        // Only now: else nobody would try it again.
        self.executables.take(files);
        Ok(())
    }

    /// Has programs asked about again of which a file was being written, or not read yet, or
    /// whose container has labels now.
    ///
    /// # Errors
    /// The first of those of the kernel: the rest is done all the same.
    pub(super) fn look_again(&mut self) -> Result<(), weir_bpf::Error> {
        let given_back = match self.objects.is_full() {
            true => self.give_back_leases(),
            false => Ok(()),
        };
        let forgotten = self.programs.forget_old(
            &self.identity,
            AGAIN,
            |read| matches!(read.without, Some((_, why)) if why.is_for_now()),
        );
        let result = given_back.and(forgotten);
        if !self.reads_containers {
            return result;
        }
        let (groups, _) = self.programs.without_labels();
        let found = self.containers.found_again(groups.into_iter());
        if found.is_empty() {
            return result;
        }
        result.and(self.programs.forget(&self.identity, |read| {
            let group = group_of(&read.program.cgroup);
            read.without_labels.is_some() && group.is_some_and(|(group, _)| found.contains(group))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_looks_while_mappings_are_changed_are_not_of_one_program() {
        let seen = |space, sequence| kernel::Seen {
            key: kernel::Key {
                set: [1, 2],
                cgroup: 0,
                uid: 0,
                space: 0,
                anonymous: false,
                altered: false,
            },
            executable: None,
            space,
            sequence,
            uid: 0,
            cgroup: 0,
            walk_ns: 0,
        };
        assert!(stood_still(&seen(1, 4), &seen(1, 4)));
        assert!(!stood_still(&seen(1, 5), &seen(1, 5)), "changes go on");
        assert!(!stood_still(&seen(1, 4), &seen(1, 6)));
        assert!(!stood_still(&seen(1, 4), &seen(2, 4)));
        let mut other = seen(1, 4);
        other.key.set[0] = 3;
        assert!(!stood_still(&seen(1, 4), &other));
    }

    #[test]
    fn a_thread_differs_from_its_process_by_the_user_alone() {
        let key = kernel::Key {
            set: [1, 2],
            cgroup: 3,
            uid: 0,
            space: 4,
            anonymous: false,
            altered: false,
        };
        let of = |uid, cgroup| kernel::Key { uid, cgroup, ..key };
        assert_eq!(user_of_thread(&of(33, 3), &key), Some(33));
        assert_eq!(user_of_thread(&key, &of(33, 3)), Some(0));
        assert_eq!(user_of_thread(&key, &key), None);
        assert_eq!(user_of_thread(&of(33, 5), &key), None, "another group");
    }

    #[test]
    fn what_is_refused_again_and_again_is_tried_less_and_less_often() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        let error = AppError::Lacks("memory".into());
        assert!(retry.is_due(now));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            retry.refused(now, &error);
            let wait = Duration::from_secs(seconds);
            assert!(!retry.is_due(now + wait - Duration::from_millis(1)));
            assert!(retry.is_due(now + wait), "{seconds}");
        }
    }
}
