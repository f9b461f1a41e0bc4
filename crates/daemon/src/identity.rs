//! Application identity (`[app]`): which program may talk to whom. The kernel decides, at
//! each connection and again when another program sends on it (`weir_bpf::identity`);
//! here rules are put into force, and it is said who a program is that the kernel does not
//! know: what files it has mapped, by their content.
//!
//! Without a daemon everything stays as it is: programs that are known have their rules,
//! and others have the fate that `unknown` says.

mod facts;
mod objects;
mod process;
mod programs;
mod status;

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_bpf::{
    identity::{
        self as kernel, CgroupAt, DecidedBy, Hits, Identity, IdentityEvent, IdentityEventKind,
    },
    lease,
};
use weir_core::{Prefix, geo::GeoTable, geofence::Direction};
use weir_events::{Actor, Event, Events, Kind, alerts::Alerts};
use weir_identity::{
    Protocols, Rule, Unknown, Verdict,
    config::AppConfig,
    decision::Flow,
    policy::{Place, Policy, Resolve},
};

use crate::{
    access::{
        geo::GeoService,
        lists::{CurrentList, Lists},
    },
    threads::Pulse,
};
pub use facts::{HostFiles, digest_of};
use objects::{NoDigest, Objects};
use process::ReadProgram;
use programs::Programs;
pub use status::{AppStatus, ProgramStatus, RuleStatus, WhyProgram};

/// The longest wait for an event: a reload and the end are seen then.
const WAIT: Duration = Duration::from_millis(100);
/// How often it is looked whether lists or the database of countries are other ones.
const FOLLOW: Duration = Duration::from_secs(1);
/// How often holders of sockets are looked for that have not sent anything.
const SWEEP: Duration = Duration::from_secs(10);
/// A process that changes its mappings while it is looked at is looked at again.
const TRIES: usize = 8;
/// A program with a file that was being written is looked at again after this time.
const AGAIN: Duration = Duration::from_secs(2);

const ABOUT_RULES: &str = "app:rules";
const ABOUT_EVENTS: &str = "app:events";
const ABOUT_FILES: &str = "app:files";
const ABOUT_ROOM: &str = "app:room";

/// Why rules about programs are not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// This kernel cannot.
    #[error(
        "[app] needs {0}, which this kernel lacks (Linux 6.16 or newer with BTF has it); remove [app]"
    )]
    Lacks(String),
    /// The kernel refuses something.
    #[error("[app]: {0}")]
    Kernel(#[from] weir_bpf::Error),
    /// There is more than fits into the kernel.
    #[error(transparent)]
    TooMany(#[from] weir_identity::policy::TooMany),
}

/// Where the pins are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinPlace {
    /// The directory of all instances.
    pub root: PathBuf,
    /// The name of this one.
    pub instance: String,
}

/// The rules about programs of a daemon.
pub struct Apps {
    place: PinPlace,
    alerts: Arc<Alerts>,
    events: Arc<Events>,
    geography: Arc<GeoService>,
    lists: Lists,
    state: Mutex<Option<State>>,
}

struct State {
    identity: Arc<Identity>,
    config: AppConfig,
    cgroup: CgroupAt,
    observe: bool,
    policy: Policy,
    /// What the policy was made of.
    made_of: (u64, Arc<Vec<CurrentList>>),
    objects: Objects,
    programs: Programs,
    /// What rules before have decided, by name.
    before: BTreeMap<Arc<str>, Hits>,
    swept: Instant,
    followed: Instant,
    /// Events were lost so often, as last seen.
    lost: u64,
}

struct Known<'a> {
    table: Option<Arc<GeoTable>>,
    nothing: &'a GeoTable,
    lists: &'a [CurrentList],
}

impl Resolve for Known<'_> {
    fn places(&self) -> &GeoTable {
        self.table.as_deref().unwrap_or(self.nothing)
    }

    fn list(&self, name: &str) -> Option<&[Prefix]> {
        let list = self.lists.iter().find(|list| list.name == name)?;
        Some(&list.prefixes)
    }

    fn addresses(&self, _name: &str) -> Option<&[IpAddr]> {
        None
    }

    fn netns(&self, file: &Path) -> Option<u64> {
        fs::metadata(file).ok().map(|about| about.ino())
    }
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

fn policy_of(policy: &Policy, observe: bool) -> kernel::Policy {
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
        tell_all: policy.unknown == Unknown::Learn || !policy.logs.is_empty(),
    }
}

fn bits_of(policy: &Policy, read: &ReadProgram) -> kernel::RuleBits {
    policy.met_by(&read.program).iter().collect()
}

impl Apps {
    /// No rules yet.
    pub fn new(
        place: PinPlace,
        alerts: Arc<Alerts>,
        events: Arc<Events>,
        geography: Arc<GeoService>,
        lists: Lists,
    ) -> Self {
        Self {
            place,
            alerts,
            events,
            geography,
            lists,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Puts these rules into force, in one step; none: everything is taken away.
    ///
    /// # Errors
    /// The kernel lacks something or refuses it: then what was in force stays.
    pub fn apply(&self, config: Option<&AppConfig>, observe: bool) -> Result<(), AppError> {
        let mut state = self.state();
        let Some(config) = config else {
            if state.take().is_some() || kernel::is_attached(&self.place.root, &self.place.instance)
            {
                kernel::detach(&self.place.root, &self.place.instance)?;
            }
            for about in [ABOUT_RULES, ABOUT_EVENTS, ABOUT_FILES, ABOUT_ROOM] {
                self.alerts.clear(about);
            }
            return Ok(());
        };
        let missing = kernel::missing();
        if !missing.is_empty() {
            return Err(AppError::Lacks(missing.join(", ")));
        }
        let cgroup = CgroupAt::open(config.cgroup.as_deref())?;
        let (policy, made_of) = self.compile(config)?;
        match &mut *state {
            Some(state) if state.cgroup == cgroup => {
                state.config = config.clone();
                state.observe = observe;
                state.put(policy, made_of)?;
            }
            _ => {
                let fresh = self.start(config, cgroup, observe, policy, made_of)?;
                *state = Some(fresh);
            }
        }
        if let Some(state) = &*state {
            self.alert_unresolved(&state.policy);
        }
        Ok(())
    }

    #[allow(
        clippy::type_complexity,
        reason = "what a policy was made of has no other use"
    )]
    fn compile(
        &self,
        config: &AppConfig,
    ) -> Result<(Policy, (u64, Arc<Vec<CurrentList>>)), AppError> {
        // The number before what it counts: news in between is seen next time.
        let geography = self.geography.changes();
        let lists = self.lists.current();
        let nothing = GeoTable::default();
        let known = Known {
            table: self.geography.geo_table(),
            nothing: &nothing,
            lists: &lists,
        };
        Ok((Policy::compile(config, &known)?, (geography, lists.clone())))
    }

    fn alert_unresolved(&self, policy: &Policy) {
        match policy.unresolved.as_slice() {
            [] => self.alerts.clear(ABOUT_RULES),
            [first, rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                self.alerts.raise(
                    ABOUT_RULES,
                    format!("{first}{more}: it holds for nobody until it is"),
                );
            }
        }
    }

    /// Loads and fills first, attaches last.
    fn start(
        &self,
        config: &AppConfig,
        cgroup: CgroupAt,
        observe: bool,
        policy: Policy,
        made_of: (u64, Arc<Vec<CurrentList>>),
    ) -> Result<State, AppError> {
        lease::ignore_signals();
        let begun = Instant::now();
        let (identity, loaded) = Identity::load(&self.place.root, &self.place.instance, &cgroup)?;
        let identity = Arc::new(identity);
        let programs = Programs::over(&identity);
        let mut state = State {
            identity,
            config: config.clone(),
            cgroup,
            observe,
            policy: policy.clone(),
            made_of: made_of.clone(),
            objects: Objects::default(),
            programs,
            before: BTreeMap::new(),
            swept: begun,
            followed: begun,
            lost: 0,
        };
        // What the kernel tells them apart by is the policy's: so that twice. Between the
        // two whoever is not known is what `unknown` says.
        state.identity.put_flags(&policy_of(&policy, observe))?;
        let running = state.identify_running(false);
        state.put(policy, made_of)?;
        state.programs.name_all(&state.identity)?;
        loaded.attach_noting()?;
        state.identity.adopt_sockets()?;
        loaded.attach_judging()?;
        tracing::info!(
            "[app]: level strict in {}, {} rules, {running} processes identified in {} ms",
            state.cgroup.path().display(),
            config.rules.len(),
            begun.elapsed().as_millis()
        );
        state.lost = state.identity.counts()?.lost;
        Ok(state)
    }

    /// Listens to the kernel until the daemon ends.
    pub fn run(&self, stopping: &AtomicBool, pulse: &Pulse) {
        let mut events = None;
        let mut of: Option<Arc<Identity>> = None;
        while !stopping.load(Ordering::Relaxed) {
            pulse.beat();
            let identity = self.state().as_ref().map(|state| state.identity.clone());
            let Some(identity) = identity else {
                (events, of) = (None, None);
                thread::sleep(WAIT);
                continue;
            };
            if !of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &identity)) {
                events = None;
            }
            of = Some(identity.clone());
            if events.is_none() {
                match identity.events() {
                    Ok(reader) => events = Some(reader),
                    Err(error) => {
                        self.alerts.raise(ABOUT_EVENTS, error.to_string());
                        thread::sleep(FOLLOW);
                    }
                }
            }
            let Some(reader) = &events else { continue };
            match reader.read(WAIT) {
                Ok(read) => read.iter().for_each(|event| self.hear(event)),
                Err(error) => {
                    self.alerts.raise(ABOUT_EVENTS, error.to_string());
                    thread::sleep(FOLLOW);
                }
            }
            if let Err(error) = self.tend() {
                self.alerts.raise(ABOUT_EVENTS, error.to_string());
            }
        }
    }

    fn hear(&self, event: &IdentityEvent) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        match event.kind {
            IdentityEventKind::Unknown => {
                if let Err(error) = state.identify(event.pid, true) {
                    self.alerts.raise(ABOUT_EVENTS, error.to_string());
                }
            }
            IdentityEventKind::Denied | IdentityEventKind::Judged => {
                let told = state.describe(event);
                drop(guard);
                if let Some(told) = told {
                    self.events.tell(&told);
                }
            }
        }
    }

    /// What is looked after now and then.
    fn tend(&self) -> Result<(), AppError> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else {
            return Ok(());
        };
        state.take_back_broken()?;
        if state.followed.elapsed() < FOLLOW {
            return Ok(());
        }
        state.followed = Instant::now();
        state.look_again()?;
        let is_current = state.made_of.0 == self.geography.changes()
            && Arc::ptr_eq(&state.made_of.1, &self.lists.current());
        if !is_current {
            let (policy, made_of) = self.compile(&state.config)?;
            match policy == state.policy {
                true => state.made_of = made_of,
                false => state.put(policy, made_of)?,
            }
            self.alert_unresolved(&state.policy);
        }
        let lost = state.identity.counts()?.lost;
        if lost != state.lost {
            // Whom an event would have been about is asked about again, or found here.
            state.lost = lost;
            state.swept = Instant::now();
            state.identify_running(true);
            state.identity.adopt_sockets()?;
            self.alerts.raise(
                ABOUT_EVENTS,
                format!(
                    "{lost} events about programs found no room: all processes were looked at anew"
                ),
            );
        } else if state.swept.elapsed() > SWEEP {
            state.swept = Instant::now();
            state.identity.adopt_sockets()?;
            self.alerts.clear(ABOUT_EVENTS);
        }
        match state.programs.evicted() {
            0 => self.alerts.clear(ABOUT_ROOM),
            evicted => self.alerts.raise(
                ABOUT_ROOM,
                format!(
                    "{evicted} programs were forgotten, for {} are known at a time: they are identified anew when they send",
                    kernel::MAX_IDENTITIES
                ),
            ),
        }
        match state.programs.without_digest() {
            None => self.alerts.clear(ABOUT_FILES),
            Some((program, file, why)) => {
                let why = why.why();
                self.alerts.raise(
                    ABOUT_FILES,
                    format!(
                        "{} of {}: {why}; rules that ask for its SHA-256 do not allow that program",
                        file.display(),
                        program.display()
                    ),
                );
            }
        }
        Ok(())
    }
}

impl State {
    /// Puts a policy into force, with whoever is known.
    fn put(
        &mut self,
        policy: Policy,
        made_of: (u64, Arc<Vec<CurrentList>>),
    ) -> Result<(), AppError> {
        for (name, hits) in self.hits()? {
            self.before.insert(name, hits);
        }
        let known: Vec<_> = self
            .programs
            .iter()
            .map(|(handle, program)| (handle, bits_of(&policy, &program.read)))
            .collect();
        self.identity
            .put_policy(&policy_of(&policy, self.observe), &known)?;
        let is_rule = |name: &Arc<str>| policy.rules.iter().any(|rule| rule.name == *name);
        self.before.retain(|name, _| is_rule(name));
        self.policy = policy;
        self.made_of = made_of;
        Ok(())
    }

    /// What each rule has decided, those of before counted in.
    fn hits(&self) -> Result<BTreeMap<Arc<str>, Hits>, weir_bpf::Error> {
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

    /// Whoever runs in the control group. `tell`: the kernel too, of the policy that is in
    /// force.
    fn identify_running(&mut self, tell: bool) -> usize {
        let mut count = 0;
        let below = self.cgroup.below_root();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let is_below = |path: String| {
                let rest = path.strip_prefix(&below);
                rest.is_some_and(|rest| below == "/" || rest.is_empty() || rest.starts_with('/'))
            };
            // Who is gone by now is identified no more.
            if process::cgroup_of(pid).is_some_and(is_below)
                && matches!(self.identify(pid, tell), Ok(true))
            {
                count += 1;
            }
        }
        count
    }

    /// Reads a process while it stays as it is.
    fn read(&mut self, pid: u32) -> Result<Option<(kernel::Seen, ReadProgram)>, weir_bpf::Error> {
        let asks_package = self.policy.rules.iter().any(Rule::asks_package);
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let Some(before) = self.identity.look_at(pid)? else {
                return Ok(None);
            };
            let Some(read) = process::read(pid, &before, &mut self.objects, asks_package) else {
                return Ok(None);
            };
            let after = self.identity.look_at(pid)?;
            let is_same = |after: &kernel::Seen| {
                (after.key, after.space, after.sequence)
                    == (before.key, before.space, before.sequence)
            };
            // A process that is ending, or becomes another program, has files that cannot
            // be read for a moment.
            let is_torn = matches!(read.without, Some((_, NoDigest::Unreadable)));
            if after.as_ref().is_some_and(is_same) && (!is_torn || last) {
                return Ok(Some((before, read)));
            }
        }
        Ok(None)
    }

    /// Says who a process is; false: it is gone, or does not stand still.
    fn identify(&mut self, pid: u32, tell: bool) -> Result<bool, weir_bpf::Error> {
        let Some((seen, read)) = self.read(pid)? else {
            return Ok(false);
        };
        let bits = bits_of(&self.policy, &read);
        let handle = self.programs.note(&seen.key, read);
        if tell {
            self.identity.put_identity(handle, &bits)?;
            self.identity.name(&seen.key, handle)?;
        }
        Ok(true)
    }

    /// Takes back what was concluded from files that somebody waits to write to.
    fn take_back_broken(&mut self) -> Result<(), weir_bpf::Error> {
        let broken = self.objects.take_broken();
        if broken.files.is_empty() {
            return Ok(());
        }
        self.programs.forget(&self.identity, |read| {
            read.files.iter().any(|file| broken.files.contains(file))
        })
        // Only now may they write.
    }

    /// Has programs asked about again of which a file was being written.
    fn look_again(&mut self) -> Result<(), weir_bpf::Error> {
        self.programs.forget_old(&self.identity, AGAIN, |read| {
            matches!(read.without, Some((_, NoDigest::Written)))
        })
    }

    fn rule_name(&self, event: &IdentityEvent) -> Option<Arc<str>> {
        let DecidedBy::Rule(number) = event.by else {
            return None;
        };
        let place = self.policy.places.get(usize::from(number))?;
        Some(self.policy.rules[place.rule].name.clone())
    }

    /// The event as everybody reads it; `None`: nobody wants to know.
    fn describe(&self, event: &IdentityEvent) -> Option<Event> {
        let rule = match event.by {
            DecidedBy::Rule(_) => self.rule_name(event)?.to_string(),
            DecidedBy::Default => "default".to_owned(),
            DecidedBy::Unknown => "unknown".to_owned(),
            DecidedBy::Kind => "kind of socket".to_owned(),
        };
        let is_denied = event.kind == IdentityEventKind::Denied;
        let program = event
            .holder
            .and_then(|handle| self.programs.by_handle(handle));
        let flow = Flow {
            is_outward: event.is_out,
            protocol: Protocols(event.protocol),
            peer: event.peer.to_canonical(),
            port: (event.port != 0).then_some(event.port),
            netns: event.netns,
        };
        let holders: Vec<_> = program
            .map(|program| program.read.program.clone())
            .into_iter()
            .collect();
        let logged = self.policy.logged(&holders, &flow).next();
        let is_learned =
            self.policy.unknown == Unknown::Learn && !matches!(event.by, DecidedBy::Rule(_));
        let rule = match logged {
            Some(log) if !is_denied => log.name.to_string(),
            None if !is_denied && !is_learned => return None,
            _ => rule,
        };
        let exe = program.and_then(|program| program.read.program.exe.clone());
        let path = match &exe {
            Some(exe) => exe.path.clone(),
            None => fs::read_link(format!("/proc/{}/exe", event.pid)).unwrap_or_default(),
        };
        let peer = event.peer.to_canonical();
        let port = match event.port {
            0 => String::new(),
            port => format!(" port {port}"),
        };
        let way = if event.is_out { "to" } else { "from" };
        let done = match (is_denied, self.observe, logged.is_some()) {
            (true, false, _) => "denied",
            (true, true, _) => "would be denied",
            (false, _, true) => "logged",
            (false, _, false) => "learned",
        };
        let told = format!(
            "{} (pid {}) {done} {way} {peer}{port}, {rule}",
            path.display(),
            event.pid
        );
        let mut out = Event::new(Kind::App, Timestamp::now(), told).about(Prefix::host(peer));
        out.actor = Some(Actor {
            path: path.to_string_lossy().into_owned(),
            sha256: exe
                .and_then(|exe| exe.digest)
                .map(|digest| digest.to_string()),
            aggregate: program
                .and_then(|program| program.read.program.aggregate())
                .map(|digest| digest.to_string()),
            pid: event.pid,
            uid: event.uid,
            parents: process::parents(event.pid)
                .into_iter()
                .map(|(pid, path)| format!("{pid} {path}"))
                .collect(),
            cgroup: process::cgroup_of(event.pid)
                .or_else(|| program.map(|program| program.read.program.cgroup.clone()))
                .unwrap_or_default(),
            rule,
            verdict: if event.passes { "allow" } else { "deny" },
            direction: if event.is_out { "out" } else { "in" },
            protocol: protocol_name(event.protocol),
            port: event.port,
        });
        Some(out)
    }
}

/// Takes those out of a map for which this holds.
fn take_if<K: Copy + Ord, V>(
    map: &mut BTreeMap<K, V>,
    is_wanted: impl Fn(&V) -> bool,
) -> Vec<(K, V)> {
    let wanted = map.iter().filter(|(_, value)| is_wanted(value));
    let keys: Vec<K> = wanted.map(|(key, _)| *key).collect();
    let taken = keys.into_iter();
    taken.filter_map(|key| map.remove_entry(&key)).collect()
}

fn protocol_name(protocol: u8) -> &'static str {
    let all = Protocols::ALL.into_iter();
    let mut fitting = all.filter(|(_, bit)| bit.0 == protocol);
    fitting.next().map_or("other", |(name, _)| name)
}
