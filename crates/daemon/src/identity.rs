//! Application identity (`[app]`): which program may talk to whom. The kernel decides, at
//! each connection and again when another program sends on it (`weir_bpf::identity`);
//! here rules are put into force, and it is said who a program is that the kernel does not
//! know: what files it has mapped, by their content.
//!
//! Without a daemon everything stays as it is: programs that are known have their rules,
//! and others have the fate that `unknown` says.

mod asked_socket;
mod asking;
mod below;
mod containers;
mod cut;
mod executables;
mod facts;
mod group;
mod kept;
mod learning;
mod login;
mod mounts;
mod names;
mod namespaces;
mod never_runs;
mod no_digest;
mod objects;
mod packages;
mod pins;
mod process;
mod programs;
mod prompt;
mod queue;
mod replaced;
mod restless;
mod review;
mod round;
mod share;
mod short_lived;
mod signers;
mod state;
mod status;
mod taking_back;
mod told;
mod turns;
mod way;
mod why;
mod why_socket;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
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
    fault,
    identity::{self as kernel, CgroupAt, Identity, IdentityEvent, IdentityEventKind, Loaded},
    lease,
};
use weir_core::{Prefix, geo::GeoTable};
use weir_events::{Event, Events, Kind, alerts::Alerts};
use weir_identity::{
    Digest, Level, MAX_RULES, Rule, Upgrades,
    policy::{Policy, Resolve},
};

use crate::{
    access::{
        geo::GeoService,
        lists::{CurrentList, Lists},
    },
    store::{SaveError, Store},
    threads::Pulse,
};
pub use asked_socket::{AskedSocket, NoSocketName};
use asking::Asked;
use containers::Containers;
pub use containers::{ContainerRuntime, ContainerStatus, Inspected, NoLabels, labels_in_config};
use cut::Cuts;
use executables::Executables;
pub use facts::{HostFiles, digest_of};
pub(crate) use group::GroupTable;
use learning::Learning;
pub use learning::LearningStatus;
pub use login::{SshLogin, shuts_out};
pub use names::KeptName;
use names::{Addresses, Names};
use namespaces::NamedNamespaces;
pub use never_runs::never_runs;
use objects::{MAX_LEASES, Objects};
pub use packages::PackageStatus;
use packages::Packages;
pub use pins::{Pin, PinnedPath};
use pins::{Pins, Plan, Vouched};
use programs::Programs;
use prompt::Prompts;
pub use prompt::{AnswerError, AnswerScope, PromptStatus, Question};
use queue::QueueLevel;
use replaced::{MAX_WATCHED, NamedFiles};
pub use replaced::{PackageRecord, Replaced};
use restless::{Restless, Whose};
pub use review::{LearnedRules, Review, ReviewedFlow, ReviewedProgram};
use round::Round;
pub use short_lived::ShortLived;
use short_lived::ShortLivedPrograms;
pub use signers::KnownSince;
use state::{
    Identified, LOOK_AT_ALL, LOOK_AT_SOME, Retry, State, asks_container, asks_package, policy_of,
    tells_apart_by,
};
pub use status::{AppStatus, ProgramStatus, RuleStatus};
use taking_back::TakingBack;
use turns::Turns;
pub use weir_identity::{
    AppConfig, Verdict,
    rules_text::{MADE_BY, Narrow, Shape},
};
pub use why::{NoProgram, RuleAbout, WhyProgram};
pub use why_socket::{
    HoldingProcess, NetworkNamespace, RuleForPeers, SocketHolder, SocketVerdict, WhyFlow,
    WhySocket, WhySockets,
};

/// The longest wait for an event: a reload and the end are seen then.
const WAIT: Duration = Duration::from_millis(100);
/// How often it is looked whether lists or the database of countries are other ones.
const FOLLOW: Duration = Duration::from_secs(1);
/// How often holders of sockets are looked for that have not sent anything.
const SWEEP: Duration = Duration::from_secs(10);
/// So long after the last program that the kernel was not told of, that is an alert: TCP sends
/// again less and less often.
const REFUSED: Duration = Duration::from_secs(60);

/// So long files are read while a file is accepted: everybody waits until it is.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(2);

const ABOUT_RULES: &str = "app:rules";
const ABOUT_EVENTS: &str = "app:events";
const ABOUT_FILES: &str = "app:files";
const ABOUT_LEASES: &str = "app:leases";
const ABOUT_ROOM: &str = "app:room";
const ABOUT_REPLACED: &str = "app:replaced";
const ABOUT_PINS: &str = "app:pins";
const ABOUT_CONTAINERS: &str = "app:containers";
const ABOUT_NAMES: &str = "app:names";
const ABOUT_CUT: &str = "app:cut";
const ABOUT_QUESTIONS: &str = "app:questions";
const ABOUT_UNTOLD: &str = "app:untold";
const ABOUT_REFUSED: &str = "app:refused";
const ABOUT_GROUP: &str = "app:cgroup";
const ABOUT_RESTLESS: &str = "app:restless";
const GROUP: GroupTable = GroupTable {
    name: "[app]",
    about: ABOUT_GROUP,
    meanwhile: "no program is judged",
};
const ABOUT_QUEUE: &str = "app:queue";
/// What only the kernel's programs and tables give cause to: at level `nfqueue` nobody would
/// look whether it is over.
const OF_THE_KERNEL: [&str; 10] = [
    ABOUT_EVENTS,
    ABOUT_LEASES,
    ABOUT_ROOM,
    ABOUT_CONTAINERS,
    ABOUT_CUT,
    ABOUT_QUESTIONS,
    ABOUT_UNTOLD,
    ABOUT_REFUSED,
    ABOUT_GROUP,
    ABOUT_RESTLESS,
];
const OF_EACH_LEVEL: [&str; 5] = [
    ABOUT_RULES,
    ABOUT_FILES,
    ABOUT_REPLACED,
    ABOUT_PINS,
    ABOUT_NAMES,
];

/// So long names of rules are waited for before the rules come into force: until there is an
/// answer they hold for nobody.
const FIRST_ANSWERS: Duration = Duration::from_secs(3);

/// Why rules about programs are not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// This kernel cannot.
    #[error(
        "[app] needs {0}, which this kernel lacks: it takes Linux 6.1 with fentry (Debian 12), or 6.16, and BTF; remove [app]"
    )]
    Lacks(String),
    /// The level at which packets wait for the daemon cannot do what is asked.
    #[error("level nfqueue in [app] cannot do: {0}")]
    NotAtLevel(String),
    /// Packets cannot be had wait for the daemon.
    #[error("level nfqueue in [app]: {0}")]
    Queue(String),
    /// This kernel cannot at the level that is asked for.
    #[error("level = {level:?} in [app] needs {lacks}, which this kernel lacks: {instead}")]
    LacksLevel {
        /// By the configuration's word.
        level: &'static str,
        /// What the kernel lacks, by name.
        lacks: String,
        /// What to write.
        instead: String,
    },
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
    learning: Learning,
    names: Arc<Names>,
    pins: Pins,
    /// At the levels of the kernel's programs.
    state: Mutex<Option<State>>,
    /// At level `nfqueue`; never at the same time as the other one, but while one takes over.
    queue: Mutex<Option<QueueLevel>>,
}

/// Why nothing can be learned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// Nobody looks at programs.
    #[error(
        "there is no [app] in the configuration, so that no program is looked at: add the line [app] and restart weir (its level nfqueue records nothing)"
    )]
    NoRules,
    /// The kernel refuses it.
    #[error(transparent)]
    Kernel(#[from] weir_bpf::Error),
}

/// Why a file is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// There are no rules.
    #[error("there is no [app] in the configuration")]
    NoRules,
    /// The file at a path is taken as it is whenever the configuration is read.
    #[error(
        "packages in [app] is \"tell\": weir reload takes each file in path as it is then; with packages = \"follow\" they are accepted one by one"
    )]
    Tells,
    /// No rule has this path.
    #[error("no rule of [app] has path = {0:?}")]
    NotNamed(PathBuf),
    /// It cannot be told what is in it.
    #[error("{file}: {1}", file = .0.display())]
    NoDigest(PathBuf, String),
    /// The rules cannot be put into force.
    #[error(transparent)]
    App(#[from] AppError),
    /// The kernel refuses something.
    #[error(transparent)]
    Kernel(#[from] weir_bpf::Error),
}

/// The first error of steps, all of which are done.
#[derive(Default)]
struct FirstError(Option<AppError>);

impl FirstError {
    /// What a step has come to; `None`: it has failed.
    fn of<T>(&mut self, done: Result<T, impl Into<AppError>>) -> Option<T> {
        done.map_err(|error| _ = self.0.get_or_insert_with(|| error.into()))
            .ok()
    }

    fn result(self) -> Result<(), AppError> {
        self.0.map_or(Ok(()), Err)
    }
}

struct Known<'a> {
    table: Option<Arc<GeoTable>>,
    nothing: &'a GeoTable,
    lists: &'a [CurrentList],
    names: &'a Addresses,
    namespaces: &'a NamedNamespaces,
}

/// What a policy was made of beside the configuration, to see when that is another one.
#[derive(Debug, Clone)]
pub(crate) struct MadeOf {
    geography: u64,
    lists: Arc<Vec<CurrentList>>,
    names: u64,
    namespaces: NamedNamespaces,
}

impl Resolve for Known<'_> {
    fn places(&self) -> &GeoTable {
        self.table.as_deref().unwrap_or(self.nothing)
    }

    fn list(&self, name: &str) -> Option<&[Prefix]> {
        let list = self.lists.iter().find(|list| list.name == name)?;
        Some(&list.prefixes)
    }

    fn addresses(&self, name: &str) -> Option<&[IpAddr]> {
        self.names.get(name).map(Vec::as_slice)
    }

    fn netns(&self, file: &Path) -> Option<u64> {
        self.namespaces.get(file).copied().flatten()
    }
}

/// The judge of packets: the kernel, or the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The kernel's programs.
    Kernel(kernel::Level),
    /// The daemon, which packets wait for.
    Queue,
}

impl Judge {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel(level) => level.name(),
            Self::Queue => Level::Nfqueue.name(),
        }
    }
}

/// The level of the kernel's programs that is asked for; `None`: the best one.
fn wanted(config: &AppConfig) -> Option<kernel::Level> {
    match config.level {
        Level::Auto | Level::Nfqueue => None,
        Level::Tracepoint => Some(kernel::Level::Tracepoint),
        Level::Fentry => Some(kernel::Level::Fentry),
        Level::Push => Some(kernel::Level::Push),
    }
}

/// How this kernel lets it be seen who sends.
///
/// # Errors
/// It does not, or not in the way that is asked for.
fn level_of(config: &AppConfig) -> Result<Judge, AppError> {
    let lacks_level = |level: &'static str, lacks: String| AppError::LacksLevel {
        level,
        lacks,
        instead: match kernel::level(None) {
            Ok(best) => format!("it has {:?}, which level = \"auto\" takes", best.name()),
            Err(_) if level != Level::Nfqueue.name() && queue::missing().is_none() => {
                "it has \"nfqueue\", which level = \"auto\" takes".to_owned()
            }
            Err(_) => "nor has it any other level; remove [app]".to_owned(),
        },
    };
    if config.level == Level::Nfqueue {
        return match queue::missing() {
            None => Ok(Judge::Queue),
            Some(lacks) => Err(lacks_level(Level::Nfqueue.name(), lacks)),
        };
    }
    let wanted = wanted(config);
    let lacks = match kernel::level(wanted) {
        Ok(level) => return Ok(Judge::Kernel(level)),
        Err(lacks) => lacks.join(", "),
    };
    match wanted {
        Some(level) => Err(lacks_level(level.name(), lacks)),
        None => match queue::missing() {
            None => Ok(Judge::Queue),
            Some(more) => Err(AppError::Lacks(format!(
                "{lacks} (or, for level nfqueue, {more})"
            ))),
        },
    }
}

/// How this kernel lets it be seen who sends, as `weir status` names it; `None`: not at all,
/// or not in the way that is asked for.
pub fn level(config: &AppConfig) -> Option<&'static str> {
    level_of(config).ok().map(Judge::name)
}

/// Will packets wait for the daemon, because the kernel's programs do not judge them?
pub fn is_queued(config: &AppConfig) -> bool {
    level_of(config).is_ok_and(|judge| judge == Judge::Queue)
}

/// What of these rules this host cannot do.
pub fn complaints(config: &AppConfig) -> Vec<String> {
    let mut found = Vec::new();
    match level_of(config) {
        Err(error) => found.push(error.to_string()),
        Ok(Judge::Queue) => {
            let refusals = queue::refusals(config).into_iter();
            found.extend(refusals.map(|refusal| AppError::NotAtLevel(refusal).to_string()));
        }
        Ok(Judge::Kernel(_)) => (),
    }
    if let Err(error) = CgroupAt::open(config.cgroup.as_deref()) {
        found.push(format!("[app]: {error}"));
    }
    for rule in &config.rules {
        if let Some(file) = &rule.place.netns
            && namespaces::namespace_at(file).is_none()
        {
            found.push(format!(
                "[app.rules.{}]: there is no network namespace {}: the rule holds for nobody",
                rule.name,
                file.display()
            ));
        }
    }
    found
}

impl Apps {
    /// No rules yet.
    pub fn new(
        place: PinPlace,
        alerts: Arc<Alerts>,
        events: Arc<Events>,
        (geography, lists): (Arc<GeoService>, Lists),
        store: Arc<Store>,
    ) -> Self {
        Self {
            place,
            alerts,
            events,
            geography,
            lists,
            names: Arc::new(Names::over(store.clone())),
            pins: Pins::over(store.clone()),
            learning: Learning::of(store),
            state: Mutex::default(),
            queue: Mutex::default(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Option<QueueLevel>> {
        self.queue.lock().expect("no holder of this lock panics")
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Puts these rules into force, in one step; none: everything is taken away.
    ///
    /// # Errors
    /// The kernel lacks something or refuses it: then what was in force stays.
    pub fn apply(&self, read: Option<&AppConfig>, observe: bool) -> Result<(), AppError> {
        // Before anything is locked: a name server may take its time.
        let mut planned = None;
        if let Some(config) = read {
            self.names.follow(config.names(), &config.private_names);
            self.names.wait(FIRST_ANSWERS);
            let mut config = config.clone();
            let plan = self.pins.plan(&mut config);
            planned = Some((config, plan));
        }
        let judge = match &planned {
            Some((config, _)) => Some(level_of(config)?),
            None => None,
        };
        if judge == Some(Judge::Queue)
            && let Some((config, plan)) = planned
        {
            self.apply_queued(&config, observe)?;
            if self.state().take().is_some()
                || kernel::is_attached(&self.place.root, &self.place.instance)
            {
                kernel::detach(&self.place.root, &self.place.instance)?;
            }
            for about in OF_THE_KERNEL {
                self.alerts.clear(about);
            }
            self.keep(plan);
            self.tell_untaken();
            return Ok(());
        }
        let mut state = self.state();
        // What was accepted while the plan was made is not to be lost.
        if let Some((config, plan)) = &mut planned
            && let Some(read) = read
            && !self.pins.is_current(plan)
        {
            *config = read.clone();
            *plan = self.pins.plan(config);
        }
        let Some((config, _)) = &planned else {
            self.names.follow(std::iter::empty(), &[]);
            self.end_queue()?;
            if state.take().is_some() || kernel::is_attached(&self.place.root, &self.place.instance)
            {
                kernel::detach(&self.place.root, &self.place.instance)?;
            }
            for about in OF_THE_KERNEL.into_iter().chain(OF_EACH_LEVEL) {
                self.alerts.clear(about);
            }
            self.alerts.clear(ABOUT_QUEUE);
            return Ok(());
        };
        let Some(Judge::Kernel(level)) = judge else {
            return Ok(());
        };
        let cgroup = match &mut *state {
            Some(state) if state.config.cgroup == config.cgroup => {
                self.follow_group(state);
                state.cgroup.clone()
            }
            _ => CgroupAt::open_or_await(config.cgroup.as_deref())?,
        };
        let asks = config.prompt_timeout.is_some();
        let answers = match &*state {
            Some(state) if state.is_at(&cgroup, level) && asks => state.prompts.rules(),
            _ => Vec::new(),
        };
        let (policy, made_of) = self.compile(config, answers)?;
        match &mut *state {
            Some(state) if state.is_at(&cgroup, level) => {
                state.config = config.clone();
                state.observe = observe;
                state.put_anew(policy, made_of)?;
                if !asks {
                    state.prompts = Prompts::default();
                }
            }
            _ => {
                lease::ignore_signals();
                let begun = Instant::now();
                let loaded = Identity::load_at(
                    &self.place.root,
                    &self.place.instance,
                    &cgroup,
                    wanted(config),
                )?;
                let fresh = self.start(config, cgroup, observe, (policy, made_of), loaded, begun);
                if let (Err(_), Some(before)) = (&fresh, &mut *state) {
                    before.is_torn = true;
                }
                *state = Some(fresh?);
                // Whom it was about is asked about anew.
                self.alerts.clear(ABOUT_REFUSED);
            }
        }
        if let Some(state) = &mut *state {
            self.alert_unresolved(&state.policy);
            state.watch_learned(&self.learning);
            state.note_named()?;
            self.cut_revoked(state);
            self.follow_group(state);
        }
        // While nobody can accept another file.
        if let Some((_, plan)) = planned {
            self.keep(plan);
        }
        drop(state);
        // Only now: nothing goes unjudged between the two.
        self.end_queue()?;
        self.tell_untaken();
        Ok(())
    }

    /// Raises an alert of files whose records could not be taken up, or clears it.
    fn tell_untaken(&self) {
        match &self.pins.take_untaken()[..] {
            [] => self.alerts.clear(ABOUT_PINS),
            all => self.alerts.raise(ABOUT_PINS, all.join("; ")),
        }
    }

    /// The rules of this plan are in force.
    fn keep(&self, plan: Plan) {
        for followed in &plan.followed {
            let event = Event::new(Kind::App, Timestamp::now(), followed.words());
            self.events.tell(&event);
        }
        self.pins.keep(plan);
    }

    /// Has rules by path follow what package managers have put in the place of their files, and
    /// forget files that nobody runs any more.
    fn follow_upgrades(&self, state: &mut State) {
        let others = state.files.replaced().filter_map(|replaced| {
            let PackageRecord::Agrees(package) = &replaced.record else {
                return None;
            };
            let found = Vouched {
                digest: replaced.is?,
                package: package.clone(),
                by: replaced.by?,
            };
            let is_kept = self.pins.has(&replaced.path);
            is_kept.then(|| (replaced.path.clone(), found))
        });
        let others: BTreeMap<_, _> = others.collect();
        let mut config = state.config.clone();
        let plan = match others.is_empty() {
            true => {
                let State {
                    programs,
                    objects,
                    round,
                    ..
                } = &mut *state;
                let plan = self.pins.plan_without_previous(&mut config, |paths| {
                    let mut run = pins::executables_run(paths, objects)?;
                    let known: BTreeSet<_> = programs.executables_in_use().collect();
                    // From another path, or they have ended since the last round.
                    let previous = self.pins.previous();
                    if previous.difference(&run).any(|is| known.contains(is)) {
                        round.hasten(Instant::now());
                    }
                    run.extend(known);
                    Ok(run)
                });
                plan.unwrap_or_else(|error| {
                    tracing::warn!(
                        "[app]: rules stay about files of before upgrades, for nobody can say yet whether somebody runs them: {error}"
                    );
                    None
                })
            }
            false => Some(self.pins.plan_for(&mut config, others)),
        };
        if let Some(plan) = plan
            && let Err(error) = self.put_plan(state, config, plan)
        {
            self.alerts.raise(
                ABOUT_RULES,
                format!("{error}: the rules before stay in force"),
            );
        }
    }

    fn put_plan(&self, state: &mut State, config: AppConfig, plan: Plan) -> Result<(), AppError> {
        if config != state.config {
            let (policy, made_of) = self.compile(&config, state.prompts.rules())?;
            state.put(policy, made_of)?;
            state.config = config;
        }
        self.keep(plan);
        Ok(())
    }

    /// Has the rules by this path be about the file that is there now, whoever has put it there.
    ///
    /// # Errors
    /// No rule names it, it has no SHA-256, or the kernel refuses the rules: then those before
    /// stay in force.
    pub fn accept(&self, path: &Path) -> Result<PinnedPath, AcceptError> {
        let digest = digest_of(path).map_err(|why| AcceptError::NoDigest(path.to_owned(), why))?;
        let mut guard = self.state();
        let state = guard.as_mut().ok_or(AcceptError::NoRules)?;
        let mut config = state.config.clone();
        let plan = match self.pins.plan_to_accept(&mut config, path, digest) {
            Some(plan) if config.upgrades == Upgrades::Follow => plan,
            _ if config.upgrades == Upgrades::Tell => return Err(AcceptError::Tells),
            _ => return Err(AcceptError::NotNamed(path.to_owned())),
        };
        // Files that there is no time for are noted later.
        state.within(ACCEPTS_WITHIN, |state| {
            self.put_plan(state, config, plan)?;
            state.note_named()?;
            Ok::<_, AcceptError>(())
        })?;
        self.alert_replaced(&state.files);
        drop(guard);
        let mut all = self.pins.all().into_iter();
        let accepted = all.find(|pinned| pinned.path == path);
        accepted.ok_or_else(|| AcceptError::NotNamed(path.to_owned()))
    }

    /// `answers`: rules behind those of the configuration.
    fn compile(
        &self,
        config: &AppConfig,
        answers: Vec<Rule>,
    ) -> Result<(Policy, MadeOf), AppError> {
        // The number before what it counts: news in between is seen next time.
        let geography = self.geography.changes();
        let lists = self.lists.current();
        let (addresses, names) = self.names.addresses();
        let namespaces = namespaces::named(config);
        let nothing = GeoTable::default();
        let known = Known {
            table: self.geography.geo_table(),
            nothing: &nothing,
            lists: &lists,
            names: &addresses,
            namespaces: &namespaces,
        };
        let mut config = config.clone();
        let deciding = config
            .rules
            .iter()
            .filter(|rule| rule.verdict != Verdict::Log);
        let places: usize = deciding.map(|rule| rule.place.by_protocol().len()).sum();
        // The configuration comes first where both do not fit.
        let room = MAX_RULES.saturating_sub(places.max(config.rules.len()));
        config.rules.extend(answers.into_iter().take(room));
        let policy = Policy::compile(&config, &known)?;
        let made_of = MadeOf {
            geography,
            lists: lists.clone(),
            names,
            namespaces,
        };
        Ok((policy, made_of))
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

    fn alert_refused(&self, state: &mut State, error: &weir_bpf::Error) {
        state.refused_at = Some(Instant::now());
        self.alerts.raise(
            ABOUT_REFUSED,
            format!(
                "the kernel cannot be told of a program, which stays unknown (unknown = {:?} decides) and is tried again when it sends: {error}",
                state.policy.unknown.name()
            ),
        );
    }

    fn alert_names(&self) {
        let troubles = self.names.troubles();
        match &troubles[..] {
            [] => self.alerts.clear(ABOUT_NAMES),
            [first] => self.alerts.raise(ABOUT_NAMES, first.clone()),
            [first, rest @ ..] => {
                let more = rest.len();
                self.alerts
                    .raise(ABOUT_NAMES, format!("{first}; and {more} more"));
            }
        }
    }

    fn alert_replaced(&self, files: &NamedFiles) {
        let mut replaced = files.replaced();
        let Some(first) = replaced.next() else {
            self.alerts.clear(ABOUT_REPLACED);
            return;
        };
        let more = match replaced.count() {
            0 => String::new(),
            more => format!("; and {more} more files (weir app list --json)"),
        };
        let is = match first.is {
            Some(is) => format!("its SHA-256 is {is}"),
            None => "it has no SHA-256 that counts".to_owned(),
        };
        if first.was == Digest::NONE {
            let (path, rule) = (first.path.display(), &first.rule);
            let what = format!(
                "{path} is there by now, and [app.rules.{rule}] is not about it before weir is reloaded: {is}; {}{more}",
                first.record.words()
            );
            self.alerts.raise(ABOUT_REPLACED, what);
            return;
        }
        self.alerts.raise(
            ABOUT_REPLACED,
            format!(
                "{} is another file than [app.rules.{}] names ({}), and meets it no more: {is}; {}{more}",
                first.path.display(),
                first.rule,
                first.was,
                first.record.words()
            ),
        );
    }

    /// Fills first what is loaded, and attaches last.
    fn start(
        &self,
        config: &AppConfig,
        cgroup: CgroupAt,
        observe: bool,
        (policy, made_of): (Policy, MadeOf),
        (identity, loaded): (Identity, Loaded),
        begun: Instant,
    ) -> Result<State, AppError> {
        let identity = Arc::new(identity);
        let programs = Programs::over(&identity);
        let mut state = State {
            identity,
            loaded,
            config: config.clone(),
            cgroup,
            observe,
            is_torn: false,
            learns: self.learning.is_on(),
            policy: policy.clone(),
            made_of: made_of.clone(),
            objects: Objects::default(),
            taking_back: TakingBack::default(),
            programs,
            executables: Executables::default(),
            short_lived: ShortLivedPrograms::default(),
            files: NamedFiles::new(begun),
            before: BTreeMap::new(),
            prompts: Prompts::default(),
            cuts: Cuts::default(),
            restless: Restless::default(),
            round: Round::new(begun),
            swept: begun,
            followed: begun,
            looked: begun,
            lost: 0,
            untold: 0,
            untold_at: None,
            refused_leases: 0,
            refused_leases_at: None,
            refused_at: None,
            retry: Retry::default(),
            told_by: tells_apart_by(&policy),
            look_until: None,
            hurry: None,
            reads_packages: asks_package(&policy),
            packages: Packages::default(),
            reads_containers: asks_container(&policy),
            containers: Containers::default(),
        };
        // What the kernel tells them apart by is the policy's: so that twice. Between the
        // two whoever is not known is what `unknown` says.
        state.containers.ask_at(config);
        let flags = policy_of(&policy, observe, state.learns);
        state.identity.put_flags(&flags)?;
        let running = state.identify_running(false, LOOK_AT_ALL);
        state.put(policy, made_of)?;
        state.programs.name_all(&state.identity)?;
        state.loaded.attach_noting()?;
        state.identity.adopt_sockets()?;
        state.loaded.attach_judging()?;
        tracing::info!(
            "[app]: level {} in {}, {} rules, {running} processes identified in {} ms",
            state.identity.level().name(),
            state.cgroup.path().display(),
            config.rules.len(),
            begun.elapsed().as_millis()
        );
        let counts = state.identity.counts()?;
        (state.lost, state.untold) = (counts.lost, counts.untold);
        Ok(state)
    }

    /// Listens to the kernel until the daemon ends.
    pub fn run(&self, stopping: &AtomicBool, pulse: &Pulse) {
        let mut events = None;
        let mut turns = Turns::default();
        let mut of: Option<Arc<Identity>> = None;
        while !stopping.load(Ordering::Relaxed) {
            pulse.beat();
            let waiting = self.queue().as_ref().map(QueueLevel::waiting);
            if let Some(waiting) = waiting {
                waiting.wait(WAIT);
                while self.serve_queue() && !stopping.load(Ordering::Relaxed) {
                    pulse.beat();
                }
                continue;
            }
            let identity = self.state().as_ref().map(|state| state.identity.clone());
            let Some(identity) = identity else {
                (events, of, turns) = (None, None, Turns::default());
                thread::sleep(WAIT);
                continue;
            };
            if !of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &identity)) {
                (events, turns) = (None, Turns::default());
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
            let wait = if turns.is_empty() {
                WAIT
            } else {
                Duration::ZERO
            };
            match reader.read(wait) {
                Ok(read) => {
                    if read.is_empty() {
                        turns.rest();
                    }
                    let mut tended = Instant::now();
                    for event in read {
                        pulse.beat();
                        fault::point("app-hear");
                        if let Some(event) = turns.add(event, owner) {
                            self.hear(&event);
                        }
                        // The kernel takes leases by force after lease-break-time.
                        if tended.elapsed() > WAIT {
                            self.tend_and_alert();
                            tended = Instant::now();
                        }
                    }
                }
                Err(error) => {
                    self.alerts.raise(ABOUT_EVENTS, error.to_string());
                    thread::sleep(FOLLOW);
                }
            }
            self.hear_in_turn(&mut turns, pulse);
            self.tend_and_alert();
        }
        self.names.finish();
        self.learning.save_rest();
    }

    /// Hears what waits, for a while: who comes meanwhile gets his turn.
    fn hear_in_turn(&self, turns: &mut Turns, pulse: &Pulse) {
        let begun = Instant::now();
        while begun.elapsed() < WAIT
            && let Some((whose, event)) = turns.next()
        {
            pulse.beat();
            let at = Instant::now();
            self.hear(&event);
            turns.spend(whose, at.elapsed());
        }
    }

    fn tend_and_alert(&self) {
        if let Err(error) = self.tend() {
            self.alerts.raise(ABOUT_EVENTS, error.to_string());
        }
    }

    /// Records what programs do from now on, for this time or until it is stopped.
    ///
    /// # Errors
    /// There is no `[app]`, or the kernel refuses it. The other answer says whether it is
    /// on disk.
    pub fn learn(&self, length: Option<Duration>) -> Result<Result<(), SaveError>, LearnError> {
        let mut guard = self.state();
        let state = guard.as_mut().ok_or(LearnError::NoRules)?;
        let saved = self.learning.start(length);
        state.set_learns(true)?;
        Ok(saved)
    }

    /// Records nothing more; what was recorded stays.
    ///
    /// # Errors
    /// As of [`Self::learn`], but that it ends also without `[app]`.
    pub fn stop_learning(&self) -> Result<Result<(), SaveError>, LearnError> {
        let mut guard = self.state();
        let saved = self.learning.stop();
        if let Some(state) = guard.as_mut() {
            state.set_learns(false)?;
        }
        Ok(saved)
    }

    /// Forgets what was learned.
    ///
    /// # Errors
    /// It is not on disk yet.
    pub fn forget_learned(&self) -> Result<(), SaveError> {
        self.learning.forget()
    }

    /// What was learned until then has been reviewed.
    ///
    /// # Errors
    /// It is not on disk yet.
    pub fn set_reviewed(&self, at: jiff::Timestamp) -> Result<(), SaveError> {
        self.learning.set_reviewed(at)
    }

    /// Whether it is recorded what programs do.
    pub fn learning(&self) -> LearningStatus {
        self.learning.status()
    }

    fn hear(&self, event: &IdentityEvent) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        match event.kind {
            IdentityEventKind::Unknown => match state.identify(event.pid, Some(&event.key), true) {
                // Nobody may say that the wait of this one is over: too many files had waited.
                Ok(Identified::Known | Identified::PutOff) => {
                    state
                        .short_lived
                        .end_wait(event.pid, false, &state.executables);
                }
                // It is identified once its package is known.
                Ok(Identified::Later) => state.short_lived.wait(event),
                Ok(Identified::Gone) => {
                    state.short_lived.note(event, &state.executables);
                    state
                        .short_lived
                        .end_wait(event.pid, false, &state.executables);
                }
                Err(error) => self.alert_refused(state, &error),
            },
            IdentityEventKind::Denied | IdentityEventKind::Judged | IdentityEventKind::Cut => {
                if state.learns {
                    let is_new = |program: &_| self.learning.is_new(program);
                    self.learning.add(state.observe(event, is_new));
                }
                // It is told once that somebody is asked.
                let told = match state.question(event) {
                    Asked::Before => None,
                    asked => state.describe(event, asked == Asked::New),
                };
                drop(guard);
                if let Some(told) = told {
                    self.events.tell(&told);
                }
            }
        }
    }

    /// What is looked after now and then.
    ///
    /// # Errors
    /// The first one: what comes behind it is done all the same.
    fn tend(&self) -> Result<(), AppError> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else {
            return Ok(());
        };
        let mut first = FirstError::default();
        first.of(state.take_back_broken());
        if state.looked.elapsed() >= WAIT {
            state.looked = Instant::now();
            self.follow_group(state);
            // Whoever has just begun in a namespace that was made anew is met at once.
            let is_due = state.retry.is_due(state.looked);
            if is_due && state.made_of.namespaces != namespaces::named(&state.config) {
                first.of(self.follow_sources(state));
            }
        }
        if let Err(error) = state.identify_answered() {
            self.alert_refused(state, &error);
        }
        if state.followed.elapsed() < FOLLOW {
            return first.result();
        }
        state.followed = Instant::now();
        first.of(state.look_again());
        first.of(state.go_round());
        if state.round.take_news() {
            self.pins.look_soon();
        }
        if self.learning.end_in_time() {
            first.of(state.set_learns(false));
        }
        self.learning.save_sometimes();
        self.alert_names();
        let follows = state.config.upgrades == Upgrades::Follow;
        if state.files.look(
            state.followed,
            follows,
            &state.policy.rules,
            &mut state.objects,
        ) {
            if follows {
                self.follow_upgrades(state);
            }
            self.alert_replaced(&state.files);
            first.of(state.note_fresh());
        }
        let made_of = &state.made_of;
        let is_current = made_of.geography == self.geography.changes()
            && made_of.names == self.names.changes()
            && Arc::ptr_eq(&made_of.lists, &self.lists.current());
        if !is_current && state.retry.is_due(Instant::now()) {
            first.of(self.follow_sources(state));
        }
        if state.refused_at.is_some_and(|at| at.elapsed() > REFUSED) {
            state.refused_at = None;
            self.alerts.clear(ABOUT_REFUSED);
        }
        if let Some(counts) = first.of(state.identity.counts()) {
            self.follow_counts(state, counts, &mut first);
        }
        let mut no_room = Vec::new();
        let evicted = state.programs.evicted();
        if evicted > 0 {
            no_room.push(format!(
                "{evicted} programs were forgotten, for {} are known at a time: they are identified anew when they send",
                kernel::MAX_IDENTITIES
            ));
        }
        let unwatched = state.files.unwatched();
        if unwatched > 0 {
            no_room.push(format!(
                "files of programs that rules name were not watched {unwatched} times, for {MAX_WATCHED} are, those of one user a quarter of them: nobody is told when others are put in their places"
            ));
        }
        match no_room.is_empty() {
            true => self.alerts.clear(ABOUT_ROOM),
            false => self.alerts.raise(ABOUT_ROOM, no_room.join("; ")),
        }
        let refused = state.objects.refused();
        if refused != state.refused_leases {
            (state.refused_leases, state.refused_leases_at) = (refused, Some(Instant::now()));
        }
        let is_recent = |at: Instant| at.elapsed() <= REFUSED;
        if state.refused_leases_at.is_some_and(is_recent) {
            self.alerts.raise(
                ABOUT_LEASES,
                format!(
                    "files had no SHA-256 {refused} times because there is no room to be told of their writers: {MAX_LEASES} files have some, those of one owner other than root a quarter of them; rules that ask for it do not allow programs that have others mapped"
                ),
            );
        } else if state.objects.is_full() {
            self.alerts.raise(
                ABOUT_LEASES,
                format!(
                    "programs have {MAX_LEASES} files mapped, and of more nobody says when they are written: of those that root alone can write to it is seen when a program that has them mapped is looked at; others have no SHA-256"
                ),
            );
        } else {
            self.alerts.clear(ABOUT_LEASES);
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
        match state.restless.words(Instant::now()) {
            None => self.alerts.clear(ABOUT_RESTLESS),
            Some(words) => self.alerts.raise(
                ABOUT_RESTLESS,
                format!(
                    "{words}; unknown = {:?} decides",
                    state.policy.unknown.name()
                ),
            ),
        }
        match state.programs.without_labels() {
            (groups, Some((group, why))) if state.reads_containers => self.alerts.raise(
                ABOUT_CONTAINERS,
                format!(
                    "the labels of {} containers are not known, of {group} for one: {why}; rules that ask for them do not allow their programs",
                    groups.len()
                ),
            ),
            _ => self.alerts.clear(ABOUT_CONTAINERS),
        }
        first.of(self.tend_prompts(state));
        self.cut_revoked(state);
        first.result()
    }

    /// What the kernel has counted, and what follows from that.
    fn follow_counts(
        &self,
        state: &mut State,
        counts: kernel::IdentityCounts,
        first: &mut FirstError,
    ) {
        if counts.untold != state.untold {
            (state.untold, state.untold_at) = (counts.untold, Some(Instant::now()));
            self.alerts.raise(
                ABOUT_UNTOLD,
                "events about incoming connections are counted and not told: more come in than can be told one by one".to_owned(),
            );
        } else if state.untold_at.is_some_and(|at| at.elapsed() > SWEEP) {
            state.untold_at = None;
            self.alerts.clear(ABOUT_UNTOLD);
            // Whom nobody was asked about is asked about now.
            if state.config.prompt_timeout.is_some() {
                first.of(state.identity.judge_anew());
            }
        }
        let lost = counts.lost;
        if lost != state.lost {
            // Whom an event would have been about is asked about again, or found here.
            state.lost = lost;
            state.swept = Instant::now();
            state.identify_running(true, LOOK_AT_SOME);
            first.of(state.identity.adopt_sockets());
            if state.config.prompt_timeout.is_some() {
                first.of(state.identity.judge_anew());
            }
            self.alerts.raise(
                ABOUT_EVENTS,
                format!(
                    "{lost} events about programs found no room: all processes were looked at anew"
                ),
            );
        } else if state.swept.elapsed() > SWEEP {
            state.swept = Instant::now();
            first.of(state.identity.adopt_sockets());
            if first.0.is_none() {
                self.alerts.clear(ABOUT_EVENTS);
            }
        }
    }

    /// Has the rules hold for the control group that is at its path now: one that was removed and
    /// made anew is another one, and one may come later than the daemon.
    fn follow_group(&self, state: &mut State) {
        let Some(path) = state.config.cgroup.clone().filter(|_| !state.is_torn) else {
            return;
        };
        let is_there = state.cgroup.is_at(&path);
        GROUP.follow(&self.alerts, &path, is_there, |cgroup| {
            state.move_to(cgroup)
        });
    }

    /// Puts the rules into force as lists, countries and names are now. What is more than there
    /// is room for is told and not tried again until these change: the rules before stay.
    fn follow_sources(&self, state: &mut State) -> Result<(), AppError> {
        let now = MadeOf {
            geography: self.geography.changes(),
            lists: self.lists.current(),
            names: self.names.changes(),
            namespaces: namespaces::named(&state.config),
        };
        match self.compile(&state.config, state.prompts.rules()) {
            Ok((policy, made_of)) => {
                if policy == state.policy {
                    state.made_of = made_of;
                    if !state.prompts.is_pending {
                        state.retry = Retry::default();
                    }
                } else if let Err(error) = state.put(policy, made_of) {
                    // It is tried again after a while, for the kernel may have memory by then.
                    self.alerts.raise(
                        ABOUT_RULES,
                        format!("{error}: the rules before stay in force"),
                    );
                    return Ok(());
                }
                self.alert_unresolved(&state.policy);
            }
            Err(error) => {
                self.alerts.raise(
                    ABOUT_RULES,
                    format!("{error}: the rules before stay in force"),
                );
                state.made_of = now;
            }
        }
        Ok(())
    }

    /// Ends connections that the rules, which are in force, allow no longer.
    fn cut_revoked(&self, state: &mut State) {
        // Rules with a name may allow them as soon as its addresses are known.
        if self.names.has_unanswered() && state.cuts.put_off() {
            return;
        }
        match state.cuts.cut_revoked(&state.identity) {
            None => (),
            Some(Ok(())) => self.alerts.clear(ABOUT_CUT),
            Some(Err(error)) => self.alerts.raise(
                ABOUT_CUT,
                format!(
                    "connections that are no longer allowed carry nothing, and are not ended: {error}"
                ),
            ),
        }
    }
}

/// Whose the process is that an event is about; of one that is gone, as whom it has run.
fn owner(event: &IdentityEvent) -> Whose {
    Whose::of(event.pid).unwrap_or(Whose::User(event.uid))
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
