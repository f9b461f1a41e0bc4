//! `[app]` at level `nfqueue`, for kernels that can load none of the programs that see who sends:
//! the first packet of each connection waits until the daemon has found its socket, who holds
//! that, and who they are. What may pass has a mark in the kernel's table of connections, and
//! waits no more until the rules are others.
//!
//! Nothing is kept of a look but digests of files: each answer is of a look that has begun after
//! its packet came. Packets that wait at the same time share one look.

mod holders;
mod packet;
mod sockets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_bpf::{
    identity::{CgroupAt, Hits, IdentityCounts},
    lease,
};
use weir_core::Prefix;
use weir_enforce::app_queue::{self, MARK_IN, MARK_OUT};
use weir_events::{Actor, Event, Kind};
use weir_identity::{
    AppConfig, Level, Program, Protocols, Upgrades, Verdict,
    decision::{DecidedBy, Decision, Flow, Holder},
    policy::Policy,
};
use weir_netlink::{
    Protocol, Socket, Writer,
    conntrack::{Conntrack, Tuple},
    diag::{self, ALL_STATES, LISTENING, Listed, SocketId},
    queue::{Queue, Room, verdict},
};

use super::{
    ABOUT_FILES, ABOUT_QUEUE, AppError, Apps, FOLLOW, MadeOf, REFUSED, SWEEP,
    containers::Containers,
    namespaces,
    objects::{NoDigest, Objects},
    packages::Packages,
    process::{self, ReadProgram},
    replaced::NamedFiles,
    state::{asks_container, asks_package},
    status::{AppStatus, MISSES_BY_PROGRAMS, ProgramStatus, RuleStatus},
    told::protocol_name,
};
use packet::{Asked, TCP, UDP};
use sockets::{Owners, Sockets};

/// The first numbers that are tried for the two queues.
const FIRST: u16 = 5370;
const NUMBERS: usize = 16;
/// So many packets wait in a queue; of more each is dropped, unless the policy denies nothing.
const ROOM: Room = Room {
    packets: 1024,
    fails_open: false,
    copied: 256,
    bytes: 4 << 20,
    whole: true,
    tells_overflow: false,
};
/// Packets that share one look.
const BATCH: usize = 64;
/// Packets that are judged in a second; of more each is dropped, unless the policy denies nothing.
const MOST: u32 = 20_000;
/// A look at who holds sockets takes so long at most: who is not found by then is not known.
const LOOK: Duration = Duration::from_millis(500);
/// So long files are read for the packets of one look.
const READ: Duration = Duration::from_secs(2);
/// So long files are read of whoever runs at the start.
const READ_AT_START: Duration = Duration::from_secs(20);
/// A process that changes its mappings while it is looked at is looked at again.
const TRIES: usize = 8;
/// Programs that are shown.
const MAX_SHOWN: usize = 256;
/// What was told is told again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(60);
const MAX_TOLD: usize = 1024;
/// Sockets that are gone through when rules change.
const MAX_CONNECTIONS: usize = 65_536;
/// The longest datagram of a queue.
const DATAGRAM: usize = 1 << 16;
/// `TCP_SYN_SENT` of net/tcp_states.h: nothing has come back yet.
const SYN_SENT: u8 = 2;
/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];

/// What this level does not see, beside what none does.
const MISSES: [&str; 7] = [
    "what happens on a connection after its first packet: who comes to hold it, or to be another program, is met within 10 s by TCP and connected UDP, and elsewhere at the next flow",
    "network namespaces other than the daemon's, those of containers for instance, and what this host forwards",
    "that code was changed in memory (rules with altered are refused), and programs that have ended before their packet is looked at",
    "descriptors that io_uring alone holds, and those of single threads, where another process has one, too",
    "what comes in but TCP and UDP, and what programs send as ICMP errors, echo replies, neighbour discovery or group membership",
    "which one of several raw sockets, or of datagram sockets at one port, has sent: the rules are asked about the holders of all",
    "without the daemon: connections that were allowed go on, new ones are dropped whatever the rules say, unless nothing can be denied",
];

/// So long what has just passed is remembered here as well: its answer may come before the mark.
const JUST: Duration = Duration::from_secs(1);
const MAX_PASSED: usize = 4096;

/// The key of what was told: program, peer, port, and what of it.
type ToldKey = (String, SocketAddr, &'static str);

/// The queues, which are waited for without a lock.
#[derive(Debug)]
pub(super) struct Waiting {
    outward: Queue,
    inward: Queue,
}

impl Waiting {
    fn take() -> io::Result<Self> {
        let mut refused = None;
        for number in (FIRST..).step_by(2).take(NUMBERS) {
            let both = Queue::take(number, ROOM)
                .and_then(|outward| Ok((outward, Queue::take(number + 1, ROOM)?)));
            match both {
                Ok((outward, inward)) => return Ok(Self { outward, inward }),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.expect("some numbers were tried"))
    }

    /// Waits until a packet is there, or for this long.
    pub fn wait(&self, at_most: Duration) {
        let mut both = [
            PollFd::new(&self.outward, PollFlags::IN),
            PollFd::new(&self.inward, PollFlags::IN),
        ];
        let at_most = Timespec::try_from(at_most).ok();
        // An interruption is a reason to look, too.
        let _ = poll(&mut both, at_most.as_ref());
    }
}

/// A packet that waits, and what it is about.
struct Question {
    is_sent: bool,
    id: u32,
    asked: Asked,
    is_outward: bool,
    owners: Owners,
}

impl Question {
    /// The ends, the own one first.
    fn ends(&self) -> (SocketAddr, SocketAddr) {
        let Tuple { from, to, .. } = self.asked.tuple;
        match self.is_sent {
            true => (from, to),
            false => (to, from),
        }
    }
}

/// Who holds a socket, as far as that is found.
#[derive(Default)]
struct Found {
    holders: Vec<Holder>,
    programs: Vec<(u32, Program)>,
}

/// Rules in force at this level.
pub(super) struct QueueLevel {
    instance: String,
    pub(super) config: AppConfig,
    observe: bool,
    policy: Policy,
    made_of: MadeOf,
    waiting: Arc<Waiting>,
    queues: app_queue::Queues,
    diag: Socket,
    conntrack: Conntrack,
    netns: u64,
    objects: Objects,
    packages: Packages,
    containers: Containers,
    files: NamedFiles,
    hits: BTreeMap<Arc<str>, Hits>,
    counts: IdentityCounts,
    shown: BTreeMap<(String, String), Program>,
    without: Option<(Instant, String, String, NoDigest)>,
    told: BTreeMap<ToldKey, Instant>,
    /// By the packet that has begun it, and the mark that it has.
    passed: BTreeMap<(Tuple, u32), Instant>,
    second: (Instant, u32),
    beyond: u64,
    dropped: u64,
    followed: Instant,
    swept: Instant,
    full_at: Option<Instant>,
    trouble: Option<(Instant, String)>,
}

/// What of a configuration this level cannot do, with what to write instead.
pub(super) fn refusals(config: &AppConfig) -> Vec<String> {
    let mut found = Vec::new();
    if config.prompt_timeout.is_some() {
        found.push("prompt_timeout in [app]: nobody is asked about a packet that waits".to_owned());
    }
    if config.cgroup.is_some() {
        found.push("cgroup in [app]: all of the daemon's network namespace is judged".to_owned());
    }
    if config.upgrades == Upgrades::Follow {
        found.push("packages = \"follow\" in [app]; allowed: \"tell\"".to_owned());
    }
    for rule in &config.rules {
        if rule.asks_altered() {
            found.push(format!(
                "altered in [app.rules.{}]: nobody sees that code was changed in memory",
                rule.name
            ));
        }
        if !rule.peer.is_empty() {
            found.push(format!(
                "peer in [app.rules.{}]: tokens are read by the kernel's programs",
                rule.name
            ));
        }
    }
    found
}

/// What this host lacks for the level; `None`: nothing that could be told without rights.
pub(super) fn missing() -> Option<String> {
    if let Err(error) = Conntrack::open()
        && error.kind() != io::ErrorKind::PermissionDenied
    {
        return Some(format!(
            "the table of connections, nf_conntrack_netlink ({error})"
        ));
    }
    app_queue::missing()
}

/// Can this policy deny anything that goes that way?
fn denies(policy: &Policy, is_outward: bool) -> bool {
    use weir_core::geofence::Direction::{In, Out};
    let other = if is_outward { In } else { Out };
    policy.default != Verdict::Allow
        || policy.unknown == weir_identity::Unknown::Drop
        || policy.places.iter().any(|place| {
            place.direction != other && !matches!(place.verdict, Verdict::Allow | Verdict::Log)
        })
}

/// Is it of interest what comes in at all?
fn looks_at_inward(policy: &Policy) -> bool {
    use weir_core::geofence::Direction::Out;
    denies(policy, false) || policy.logs.iter().any(|place| place.direction != Out)
}

impl QueueLevel {
    /// Has packets wait from now on.
    ///
    /// # Errors
    /// The kernel or iptables refuses it: then none waits.
    pub fn start(
        instance: &str,
        config: &AppConfig,
        observe: bool,
        (policy, made_of): (Policy, MadeOf),
    ) -> Result<Self, AppError> {
        lease::ignore_signals();
        let refused = |what: &'static str| {
            move |error: io::Error| AppError::Queue(format!("{what}: {error}"))
        };
        let waiting = Waiting::take().map_err(refused("take a queue of NFQUEUE"))?;
        let now = Instant::now();
        let mut level = Self {
            instance: instance.to_owned(),
            config: config.clone(),
            observe,
            queues: app_queue::Queues {
                outward: waiting.outward.number(),
                inward: None,
                bypass: false,
            },
            waiting: Arc::new(waiting),
            diag: Socket::open(Protocol::SockDiag).map_err(refused("open sock_diag"))?,
            conntrack: Conntrack::open().map_err(refused("open nf_conntrack_netlink"))?,
            netns: namespaces::own().unwrap_or_default(),
            objects: Objects::default(),
            packages: Packages::default(),
            containers: Containers::default(),
            files: NamedFiles::new(now),
            hits: BTreeMap::new(),
            counts: IdentityCounts::default(),
            shown: BTreeMap::new(),
            without: None,
            told: BTreeMap::new(),
            passed: BTreeMap::new(),
            second: (now, 0),
            beyond: 0,
            dropped: 0,
            followed: now,
            swept: now,
            full_at: None,
            trouble: None,
            policy,
            made_of,
        };
        level.containers.ask_at(config);
        level.read_running();
        // What a daemon before has left denies, and goes on denying.
        let was_there = app_queue::is_there(instance);
        let program = match level.come_into_force() {
            Ok(program) => program,
            Err(error) => {
                if !was_there {
                    let _ = app_queue::detach(instance);
                }
                return Err(error);
            }
        };
        tracing::info!(
            "[app]: level nfqueue by {program}, queues {} and {}, {} rules, {} programs read in {} ms",
            level.waiting.outward.number(),
            level.waiting.inward.number(),
            config.rules.len(),
            level.shown.len(),
            now.elapsed().as_millis()
        );
        Ok(level)
    }

    /// Puts other rules into force: each connection is judged anew, and those end that are not
    /// allowed any more.
    ///
    /// # Errors
    /// The kernel or iptables refuses it: the rules before stay.
    pub fn put(
        &mut self,
        config: &AppConfig,
        observe: bool,
        (policy, made_of): (Policy, MadeOf),
    ) -> Result<Vec<Event>, AppError> {
        self.containers.ask_at(config);
        let before = (
            std::mem::replace(&mut self.policy, policy),
            std::mem::replace(&mut self.observe, observe),
        );
        let queues = self.queues;
        if let Err(error) = self.come_into_force() {
            (self.policy, self.observe) = before;
            self.queues = queues;
            let _ = app_queue::put(&self.instance, &queues).map(|_| self.follow_bypass());
            return Err(error);
        }
        self.config = config.clone();
        self.made_of = made_of;
        let policy = &self.policy;
        let is_rule = |name: &Arc<str>| policy.rules.iter().any(|rule| rule.name == *name);
        self.hits
            .retain(|name, _| is_rule(name) || ["default", "unknown"].contains(&&**name));
        self.told.clear();
        Ok(self.cut_revoked())
    }

    /// Rules of iptables and marks are as the policy has it.
    fn come_into_force(&mut self) -> Result<String, AppError> {
        self.files.follow(&self.policy.rules);
        let denies_any =
            !self.observe && (denies(&self.policy, true) || denies(&self.policy, false));
        let inward = looks_at_inward(&self.policy).then(|| self.waiting.inward.number());
        self.queues = app_queue::Queues {
            outward: self.waiting.outward.number(),
            inward,
            bypass: !denies_any,
        };
        let program = app_queue::put(&self.instance, &self.queues)
            .map_err(|error| AppError::Queue(error.to_string()))?;
        self.unmark()?;
        self.follow_bypass();
        Ok(program)
    }

    /// Packets for which there is no room pass where nothing can be denied.
    fn follow_bypass(&mut self) {
        for queue in [&self.waiting.outward, &self.waiting.inward] {
            if let Err(error) = queue.set_fail_open(self.queues.bypass) {
                let what = format!("a queue cannot be told what to do with an overflow: {error}");
                self.trouble = Some((Instant::now(), what));
            }
        }
    }

    fn unmark(&mut self) -> Result<(), AppError> {
        self.passed.clear();
        let unmarked = self.conntrack.unmark(MARK_OUT | MARK_IN);
        let refused = |error| AppError::Queue(format!("take marks of connections back: {error}"));
        unmarked.map(drop).map_err(refused)
    }

    /// The queues, to wait for.
    pub fn waiting(&self) -> Arc<Waiting> {
        self.waiting.clone()
    }

    /// Reads the files of all programs of this namespace, so that the first packets wait for none.
    fn read_running(&mut self) {
        let until = Instant::now() + READ_AT_START;
        self.objects.bound(Some(until));
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        for pid in numbers {
            if Instant::now() > until {
                break;
            }
            if namespaces::of(pid) == Some(self.netns) {
                self.read(pid);
            }
        }
        self.objects.bound(None);
    }

    /// Who a process is, that stands still while it is read; `None`: it is gone, or it is looked
    /// up of which package or in which container it is.
    fn read(&mut self, pid: u32) -> Option<Program> {
        let thread = match process::look(pid) {
            Some(_) => pid,
            None => process::threads_of_ended(pid)
                .into_iter()
                .find(|thread| process::look(*thread).is_some())?,
        };
        let packages = asks_package(&self.policy).then_some(&self.packages);
        let containers = asks_container(&self.policy).then_some(&self.containers);
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let (seen, before) = process::look(thread)?;
            let objects = &mut self.objects;
            let mut read = process::read((pid, thread), &seen, objects, packages, containers)?;
            if !process::read_arguments(thread, &mut read.program) {
                return None;
            }
            let (_, after) = process::look(thread)?;
            let is_torn = matches!(read.without, Some((_, NoDigest::Unreadable)));
            if after == before && (!is_torn || last) {
                return self.noted(read);
            }
        }
        None
    }

    fn noted(&mut self, read: ReadProgram) -> Option<Program> {
        let is_unread = matches!(read.without, Some((_, NoDigest::Later)));
        if read.is_looked_up || is_unread {
            return None;
        }
        if read.is_at_path {
            self.files.note(&read.program, &self.policy.rules);
        }
        let program = read.program;
        let exe = program.exe.as_ref()?;
        let path = exe.path.to_string_lossy().into_owned();
        if let Some((file, why)) = read.without {
            let file = file.to_string_lossy().into_owned();
            self.without = Some((Instant::now(), path.clone(), file, why));
        }
        let whole = program.aggregate().map(|digest| digest.to_string());
        if self.shown.len() >= MAX_SHOWN {
            self.shown.pop_first();
        }
        self.shown
            .insert((path, whole.unwrap_or_default()), program.clone());
        Some(program)
    }

    /// Takes packets that wait, up to [`BATCH`]: those that this host sends first.
    fn take(&mut self, buffer: &mut [u8]) -> Vec<(bool, u32, u32, Option<Asked>)> {
        let mut taken = Vec::new();
        let waiting = self.waiting.clone();
        for (is_sent, queue) in [(true, &waiting.outward), (false, &waiting.inward)] {
            while taken.len() < BATCH {
                let more = queue.receive_now(buffer, |packet| {
                    let asked = Asked::read(packet.bytes);
                    taken.push((is_sent, packet.id, packet.interface, asked));
                });
                match more {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.trouble = Some((
                            Instant::now(),
                            format!("packets that wait cannot be read: {error}"),
                        ));
                        break;
                    }
                }
            }
        }
        taken
    }

    /// Who has begun what a packet belongs to: this host?
    fn is_outward(&self, is_sent: bool, asked: &Asked, sockets: &mut Sockets<'_>) -> bool {
        let tuple = &asked.tuple;
        if asked.is_syn {
            return is_sent;
        }
        if let Ok(Some(has_begun)) = self.conntrack.has_begun(tuple) {
            return has_begun == is_sent;
        }
        if tuple.protocol != TCP {
            return is_sent;
        }
        // Of a connection that the kernel's table does not have.
        let here = if is_sent { tuple.from } else { tuple.to };
        !sockets.has_listener(here).unwrap_or(false)
    }

    /// Is the packet one of what has just passed, so that it needs no look of its own? One that
    /// begins a connection does.
    fn has_just_passed(&self, is_sent: bool, asked: &Asked) -> bool {
        let (begun, answered) = match is_sent {
            true => (MARK_OUT, MARK_IN),
            false => (MARK_IN, MARK_OUT),
        };
        let both = [(asked.tuple, begun), (inverse(&asked.tuple), answered)];
        let mut at = both.iter().filter_map(|key| self.passed.get(key));
        !asked.is_syn && at.any(|at| at.elapsed() < JUST)
    }

    /// Judges the packets that wait; returns what is to be told, and whether there were any.
    pub fn serve(&mut self) -> (Vec<Event>, bool) {
        let mut buffer = vec![0; DATAGRAM];
        let taken = self.take(&mut buffer);
        if taken.is_empty() {
            return (Vec::new(), false);
        }
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            self.second = (Instant::now(), 0);
        }
        let mut verdicts = [Writer::default(), Writer::default()];
        let numbers = [self.waiting.inward.number(), self.waiting.outward.number()];
        let mut give = |is_sent: bool, id: u32, passes: bool| {
            let side = usize::from(is_sent);
            verdict(&mut verdicts[side], numbers[side], id, passes, None);
        };
        let mut questions = Vec::new();
        {
            let diag = Socket::open(Protocol::SockDiag);
            let mut sockets = Sockets::now(diag.as_ref().unwrap_or(&self.diag));
            for (is_sent, id, interface, asked) in taken {
                self.second.1 += 1;
                let is_beyond = self.second.1 > MOST;
                self.beyond += u64::from(is_beyond);
                // What is cut, or no IP, is nobody's who could be asked about.
                let Some(asked) = asked.filter(|_| !is_beyond) else {
                    give(is_sent, id, self.queues.bypass);
                    continue;
                };
                if self.has_just_passed(is_sent, &asked) {
                    give(is_sent, id, true);
                    continue;
                }
                let is_outward = self.is_outward(is_sent, &asked, &mut sockets);
                let Tuple { protocol, from, to } = asked.tuple;
                let ends = if is_sent { (from, to) } else { (to, from) };
                let owners = match sockets.of(protocol, ends, interface, is_outward) {
                    Ok(owners) => owners,
                    Err(error) => {
                        self.trouble = Some((
                            Instant::now(),
                            format!("sockets cannot be looked for: {error}"),
                        ));
                        Owners::Sockets(kind_of(protocol), Vec::new())
                    }
                };
                // A socket that is ended tells its peer so when nobody holds it any more.
                let is_last = asked.is_reset
                    && matches!(&owners, Owners::Sockets(kind, _) if *kind != Protocols::RAW);
                if owners == Owners::Kernel || is_last {
                    give(is_sent, id, true);
                    continue;
                }
                questions.push(Question {
                    is_sent,
                    id,
                    asked,
                    is_outward,
                    owners,
                });
            }
        }
        let found = self.find_all(questions.iter().map(|question| &question.owners));
        let mut events = Vec::new();
        let (mut marks, mut ended) = (Vec::new(), Vec::new());
        for question in &questions {
            let Owners::Sockets(kind, inodes) = &question.owners else {
                continue;
            };
            let ends = question.ends();
            let flow = self.flow(*kind, ends, question.is_outward);
            let (decision, of) = self.decide(inodes, &found, &flow);
            let is_denied = matches!(decision.verdict, Verdict::Drop | Verdict::Reject);
            let passes = !is_denied || self.observe;
            give(question.is_sent, question.id, passes);
            self.count(&decision, is_denied, question.is_sent);
            // Who is not known is looked at again at the next packet.
            if passes && decision.by != DecidedBy::Unknown {
                let mark = if question.is_outward {
                    MARK_OUT
                } else {
                    MARK_IN
                };
                marks.push((question.asked.tuple, mark));
                let begun = match question.is_outward == question.is_sent {
                    true => question.asked.tuple,
                    false => inverse(&question.asked.tuple),
                };
                if self.passed.len() >= MAX_PASSED {
                    self.passed.clear();
                }
                self.passed.insert((begun, mark), Instant::now());
            }
            if is_denied && decision.verdict == Verdict::Reject && !self.observe && question.is_sent
            {
                let protocol = question.asked.tuple.protocol;
                if [TCP, UDP].contains(&protocol) {
                    ended.push(SocketId::of_ends(protocol, ends.0, ends.1, 0));
                }
            }
            events.extend(self.tell(&decision, &of, &flow, ends.1, is_denied, false));
        }
        for (side, queue) in [(1, &self.waiting.outward), (0, &self.waiting.inward)] {
            if !verdicts[side].bytes().is_empty()
                && let Err(error) = queue.send(&verdicts[side])
            {
                self.trouble = Some((Instant::now(), format!("verdicts are not taken: {error}")));
            }
        }
        for (tuple, mark) in marks {
            // None: it has gone elsewhere on its way. The next packet is judged as this one.
            if let Err(error) = self.conntrack.mark(&tuple, mark, mark) {
                self.trouble = Some((
                    Instant::now(),
                    format!("connections cannot be marked: {error}"),
                ));
            }
        }
        for id in ended {
            // A socket without a peer is not ended: its program has no error, and sends nothing.
            let _ = diag::end(&self.diag, &id);
        }
        (events, true)
    }

    fn flow(
        &self,
        kind: Protocols,
        (own, peer): (SocketAddr, SocketAddr),
        is_outward: bool,
    ) -> Flow {
        let has_port = Protocols::TCP.and(Protocols::UDP).has(kind);
        let port = if is_outward { peer.port() } else { own.port() };
        Flow {
            is_outward,
            protocol: kind,
            peer: peer.ip().to_canonical(),
            port: has_port.then_some(port),
            netns: self.netns,
        }
    }

    /// Finds all who hold these sockets.
    fn find_all<'o>(&mut self, owners: impl Iterator<Item = &'o Owners>) -> BTreeMap<u64, Found> {
        let inodes = owners.flat_map(|owners| match owners {
            Owners::Kernel => &[][..],
            Owners::Sockets(_, inodes) => inodes,
        });
        let inodes: BTreeSet<u64> = inodes.copied().collect();
        let held = holders::Holders::find(&inodes, Instant::now() + LOOK);
        if held.is_cut {
            let (pid, count) = held.largest;
            let what = format!(
                "the descriptors of all processes are more than can be looked through in {} ms, \
                 and whoever opens a connection is unknown: process {pid} has at least {count}",
                LOOK.as_millis()
            );
            self.trouble = Some((Instant::now(), what));
        }
        self.objects.bound(Some(Instant::now() + READ));
        let mut programs: BTreeMap<u32, Option<Program>> = BTreeMap::new();
        let mut all = BTreeMap::new();
        for inode in inodes {
            let mut found = Found::default();
            for pid in held.holding(inode) {
                let program = match programs.get(pid) {
                    Some(program) => program.clone(),
                    None => {
                        let program = self.read(*pid);
                        programs.insert(*pid, program.clone());
                        program
                    }
                };
                found.holders.push(match &program {
                    Some(program) => Holder::Known(self.policy.met_by(program)),
                    None => Holder::Unknown,
                });
                found
                    .programs
                    .extend(program.map(|program| (*pid, program)));
            }
            if held.may_be_more(inode) || found.holders.is_empty() {
                found.holders.push(Holder::Unknown);
            }
            all.insert(inode, found);
        }
        self.objects.bound(None);
        all
    }

    fn decide<'f>(
        &self,
        inodes: &[u64],
        found: &'f BTreeMap<u64, Found>,
        flow: &Flow,
    ) -> (Decision, Vec<&'f (u32, Program)>) {
        let of = || inodes.iter().filter_map(|inode| found.get(inode));
        let holders: Vec<Holder> = of().flat_map(|found| &found.holders).copied().collect();
        let programs = of().flat_map(|found| &found.programs).collect();
        (self.policy.decide(&holders, flow), programs)
    }

    fn rule_of(&self, by: DecidedBy) -> Arc<str> {
        match by {
            DecidedBy::Place(number) => {
                let place = &self.policy.places[number];
                self.policy.rules[place.rule].name.clone()
            }
            DecidedBy::Default => "default".into(),
            DecidedBy::Unknown => "unknown".into(),
        }
    }

    fn count(&mut self, decision: &Decision, is_denied: bool, is_sent: bool) {
        let hits = self.hits.entry(self.rule_of(decision.by)).or_default();
        hits.judged += 1;
        hits.dropped += u64::from(is_denied);
        let counts = &mut self.counts;
        counts.judged += 1;
        counts.unknown += u64::from(decision.by == DecidedBy::Unknown);
        let dropped = if is_sent {
            &mut counts.dropped_out
        } else {
            &mut counts.dropped_in
        };
        *dropped += u64::from(is_denied && !self.observe);
    }

    /// What is to be told of a decision; none: nobody wants to know, or has just been told.
    fn tell(
        &mut self,
        decision: &Decision,
        of: &[&(u32, Program)],
        flow: &Flow,
        peer: SocketAddr,
        is_denied: bool,
        is_cut: bool,
    ) -> Option<Event> {
        let programs: Vec<Program> = of.iter().map(|(_, program)| program.clone()).collect();
        let logged = self.policy.logged(&programs, flow).next();
        let rule = match logged {
            Some(log) if !is_denied => log.name.to_string(),
            None if !is_denied && !decision.is_learned => return None,
            _ => self.rule_of(decision.by).to_string(),
        };
        let done = match (is_denied, self.observe, logged.is_some()) {
            (true, ..) if is_cut => "cut off",
            (true, false, _) => "denied",
            (true, true, _) => "would be denied",
            (false, _, true) => "logged",
            (false, ..) => "learned",
        };
        let first = of.first();
        let exe = first.and_then(|(_, program)| program.exe.as_ref());
        let path = exe.map_or_else(
            || "a program that is not known".to_owned(),
            |exe| exe.path.to_string_lossy().into_owned(),
        );
        let about = SocketAddr::new(flow.peer, flow.port.unwrap_or(0));
        let key = (path.clone(), about, done);
        let is_news = self
            .told
            .get(&key)
            .is_none_or(|at| at.elapsed() > TELL_AGAIN);
        if !is_news {
            return None;
        }
        if self.told.len() >= MAX_TOLD {
            self.told.clear();
        }
        self.told.insert(key, Instant::now());
        let pid = first.map_or(0, |(pid, _)| *pid);
        let port = flow
            .port
            .map_or_else(String::new, |port| format!(" port {port}"));
        let way = if is_cut || !flow.is_outward {
            "from"
        } else {
            "to"
        };
        let peer = peer.ip().to_canonical();
        let told = format!("{path} (pid {pid}) {done} {way} {peer}{port}, {rule}");
        let mut out = Event::new(Kind::App, Timestamp::now(), told).about(Prefix::host(peer));
        out.actor = Some(Actor {
            sha256: exe
                .and_then(|exe| exe.digest)
                .map(|digest| digest.to_string()),
            path,
            aggregate: first
                .and_then(|(_, program)| program.aggregate())
                .map(|digest| digest.to_string()),
            pid,
            uid: first.map_or(0, |(_, program)| program.uid),
            parents: match first {
                Some((pid, _)) => process::parents(*pid)
                    .into_iter()
                    .map(|(pid, path)| format!("{pid} {path}"))
                    .collect(),
                None => Vec::new(),
            },
            cgroup: first.map_or_else(String::new, |(_, program)| program.cgroup.clone()),
            rule,
            verdict: match (is_denied && !self.observe, is_cut) {
                (false, _) => "allow",
                (true, true) => "cut",
                (true, false) => "deny",
            },
            direction: if flow.is_outward { "out" } else { "in" },
            protocol: protocol_name(flow.protocol.0),
            port: flow.port.unwrap_or(0),
        });
        Some(out)
    }

    /// Ends connections of TCP, and of UDP sockets with a peer, that the rules do not allow as
    /// their holders are now.
    fn cut_revoked(&mut self) -> Vec<Event> {
        if self.observe || !(denies(&self.policy, true) || denies(&self.policy, false)) {
            return Vec::new();
        }
        let mut all: Vec<Listed> = Vec::new();
        for (protocol, states) in [(TCP, ALL_STATES & !LISTENING), (UDP, ALL_STATES)] {
            for family in FAMILIES {
                match diag::list(&self.diag, family, protocol, states) {
                    Ok(found) => all.extend(found),
                    Err(error) => {
                        self.trouble = Some((
                            Instant::now(),
                            format!("connections cannot be listed: {error}"),
                        ));
                    }
                }
            }
        }
        all.retain(|one| one.peer.port() != 0 && one.inode != 0 && one.state != SYN_SENT);
        if all.len() > MAX_CONNECTIONS {
            let what = format!(
                "{} connections are open, and only {MAX_CONNECTIONS} of them are ended where rules do not allow them any more",
                all.len()
            );
            self.trouble = Some((Instant::now(), what));
            all.truncate(MAX_CONNECTIONS);
        }
        // Of flows that were never allowed the kernel knows none: they go on to be dropped.
        all.retain(|one| {
            let known = || self.conntrack.has_begun(&tuple_of(one));
            one.id.protocol == TCP || known().is_ok_and(|known| known.is_some())
        });
        let owners: Vec<_> = all
            .iter()
            .map(|one| {
                let is_tcp = one.id.protocol == TCP;
                let kind = if is_tcp {
                    Protocols::TCP
                } else {
                    Protocols::UDP
                };
                Owners::Sockets(kind, vec![one.inode.into()])
            })
            .collect();
        let mut sockets = Sockets::now(&self.diag);
        let ways: Vec<bool> = all
            .iter()
            .map(|one| {
                let asked = Asked {
                    tuple: tuple_of(one),
                    is_syn: false,
                    is_reset: false,
                };
                self.is_outward(true, &asked, &mut sockets)
            })
            .collect();
        let found = self.find_all(owners.iter());
        let mut events = Vec::new();
        for ((one, owners), is_outward) in all.iter().zip(&owners).zip(ways) {
            let Owners::Sockets(kind, inodes) = owners else {
                continue;
            };
            let flow = self.flow(*kind, (one.own, one.peer), is_outward);
            let (decision, of) = self.decide(inodes, &found, &flow);
            // Of whom not all is known now, the next packet may tell more.
            let is_whole = |program: &Program| program.objects.iter().all(|o| o.digest.is_some());
            if !matches!(decision.verdict, Verdict::Drop | Verdict::Reject)
                || decision.by == DecidedBy::Unknown
                || !of.iter().all(|(_, program)| is_whole(program))
            {
                continue;
            }
            match diag::end(&self.diag, &one.id) {
                Ok(()) => {
                    self.counts.cut += 1;
                    events.extend(self.tell(&decision, &of, &flow, one.peer, true, true));
                }
                // It has ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.trouble = Some((
                        Instant::now(),
                        format!(
                            "connections that are no longer allowed carry nothing, and are not ended: {error}"
                        ),
                    ));
                }
            }
        }
        events
    }

    /// What each rule has decided, by name.
    pub fn hits(&self) -> &BTreeMap<Arc<str>, Hits> {
        &self.hits
    }

    /// Programs that were seen last.
    pub fn programs(&self) -> impl Iterator<Item = ProgramStatus> {
        let shown = self.shown.values();
        shown.map(|program| ProgramStatus::of(program, &self.policy))
    }

    /// The status of what is in force.
    pub fn status(&self, apps: &Apps) -> AppStatus {
        let of = |name: &str| self.hits.get(name).copied().unwrap_or_default();
        let row = |name: &str, verdict, programs, hits: Hits| RuleStatus {
            name: name.to_owned(),
            verdict,
            programs,
            judged: hits.judged,
            dropped: hits.dropped,
        };
        let policy = &self.policy;
        let about = policy.rules.iter().map(|rule| {
            let known = self.shown.values().filter(|program| rule.is_about(program));
            row(
                &rule.name,
                rule.verdict.name(),
                known.count(),
                of(&rule.name),
            )
        });
        let mut rules: Vec<_> = about.collect();
        for (name, verdict) in [
            ("unknown", policy.unknown.name()),
            ("default", policy.default.name()),
        ] {
            rules.push(row(name, verdict, self.shown.len(), of(name)));
        }
        let (files, leases) = self.objects.counts();
        AppStatus {
            level: Level::Nfqueue.name(),
            misses: MISSES
                .into_iter()
                .chain(MISSES_BY_PROGRAMS.iter().copied())
                .collect(),
            cgroup: CgroupAt::mount_point().unwrap_or_else(|| "/".into()),
            observe: self.observe,
            default: policy.default.name(),
            unknown: policy.unknown.name(),
            rules,
            programs: self.shown.len(),
            files,
            leases,
            refused_leases: self.objects.refused(),
            prompt: None,
            cut: self.counts.cut,
            queue_dropped: Some(self.dropped + self.beyond),
            counts: self.counts,
            executables: 0,
            short_lived: 0,
            evicted: 0,
            learning: apps.learning.status(),
            replaced: self.files.replaced().cloned().collect(),
            pins: apps.pins.all(),
            kept_names: apps.names.kept(),
            packages: asks_package(policy).then(|| self.packages.status()),
            containers: asks_container(policy).then(|| self.containers.status()),
        }
    }
}

/// What a socket sends.
fn tuple_of(socket: &Listed) -> Tuple {
    Tuple {
        protocol: socket.id.protocol,
        from: socket.own,
        to: socket.peer,
    }
}

/// The packet that answers.
fn inverse(tuple: &Tuple) -> Tuple {
    Tuple {
        protocol: tuple.protocol,
        from: tuple.to,
        to: tuple.from,
    }
}

fn kind_of(protocol: u8) -> Protocols {
    match protocol {
        TCP => Protocols::TCP,
        UDP => Protocols::UDP,
        _ => Protocols::OTHER,
    }
}

impl Apps {
    /// Puts rules into force at this level.
    ///
    /// # Errors
    /// The level cannot do what they ask, or the kernel refuses it: what was in force stays.
    pub(super) fn apply_queued(&self, config: &AppConfig, observe: bool) -> Result<(), AppError> {
        let refusals = refusals(config);
        if !refusals.is_empty() {
            return Err(AppError::NotAtLevel(refusals.join("; ")));
        }
        let (policy, made_of) = self.compile(config, Vec::new())?;
        let mut guard = self.queue();
        let events = match &mut *guard {
            Some(queue) => queue.put(config, observe, (policy, made_of))?,
            None => {
                let made = (policy, made_of);
                let mut started = QueueLevel::start(&self.place.instance, config, observe, made)?;
                let events = started.cut_revoked();
                *guard = Some(started);
                events
            }
        };
        if let Some(queue) = &*guard {
            self.alert_unresolved(&queue.policy);
        }
        drop(guard);
        events.iter().for_each(|event| self.events.tell(event));
        Ok(())
    }

    /// Is it the daemon that judges, and not the kernel's programs?
    pub fn is_queued(&self) -> bool {
        self.queue().is_some()
    }

    /// No packet waits any more.
    ///
    /// # Errors
    /// iptables refuses to take the rules away.
    pub(super) fn end_queue(&self) -> Result<(), AppError> {
        let mut guard = self.queue();
        // Who was killed has left them.
        app_queue::detach(&self.place.instance)
            .map_err(|error| AppError::Queue(error.to_string()))?;
        if let Some(mut queue) = guard.take() {
            queue.unmark()?;
        }
        self.alerts.clear(ABOUT_QUEUE);
        Ok(())
    }

    /// Judges what waits, and looks after the rest; false: no packet was there.
    pub(super) fn serve_queue(&self) -> bool {
        let mut guard = self.queue();
        let Some(queue) = &mut *guard else {
            return false;
        };
        let (mut events, were_any) = queue.serve();
        self.tend_queue(queue, &mut events);
        drop(guard);
        events.iter().for_each(|event| self.events.tell(event));
        were_any
    }

    fn tend_queue(&self, queue: &mut QueueLevel, events: &mut Vec<Event>) {
        // Nothing is concluded from them but when they are asked for: they may be written.
        drop(queue.objects.take_broken());
        if queue.followed.elapsed() < FOLLOW {
            return;
        }
        queue.followed = Instant::now();
        if queue.objects.is_full() {
            queue.objects.keep_leases_of(std::iter::empty());
        }
        // Who has waited for them is asked about at the next packet.
        drop(queue.packages.take_answered());
        drop(queue.containers.take_answered());
        self.alert_names();
        if queue.files.look(
            queue.followed,
            false,
            &queue.policy.rules,
            &mut queue.objects,
        ) {
            self.alert_replaced(&queue.files);
        }
        self.follow_queue_sources(queue, events);
        if queue.swept.elapsed() > SWEEP {
            queue.swept = Instant::now();
            events.extend(queue.cut_revoked());
            // Others may have taken our rules away with theirs.
            if !app_queue::is_whole(&queue.instance, &queue.queues) {
                let what = match app_queue::put(&queue.instance, &queue.queues) {
                    Ok(_) => "somebody had taken away or moved the rules by which packets wait, which are put again: what began meanwhile was not judged".to_owned(),
                    Err(error) => format!("no packet waits: {error}"),
                };
                queue.trouble = Some((Instant::now(), what));
            }
        }
        self.alert_queue(queue);
    }

    fn follow_queue_sources(&self, queue: &mut QueueLevel, events: &mut Vec<Event>) {
        let made_of = &queue.made_of;
        let is_current = made_of.geography == self.geography.changes()
            && made_of.names == self.names.changes()
            && Arc::ptr_eq(&made_of.lists, &self.lists.current())
            && made_of.namespaces == namespaces::named(&queue.config);
        if is_current {
            return;
        }
        let config = queue.config.clone();
        let put = match self.compile(&config, Vec::new()) {
            Ok((policy, made_of)) if policy == queue.policy => {
                queue.made_of = made_of;
                Ok(())
            }
            Ok(made) => queue
                .put(&config, queue.observe, made)
                .map(|cut| events.extend(cut)),
            Err(error) => Err(error),
        };
        match put {
            Ok(()) => self.alert_unresolved(&queue.policy),
            Err(error) => self.alerts.raise(
                super::ABOUT_RULES,
                format!("{error}: the rules before stay in force"),
            ),
        }
    }

    fn alert_queue(&self, queue: &mut QueueLevel) {
        let text = fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue");
        let own = [
            queue.waiting.outward.number(),
            queue.waiting.inward.number(),
        ];
        let all = weir_netlink::queue::dropped(text.as_deref().unwrap_or_default());
        let dropped = all.filter(|(number, _)| own.contains(number));
        let dropped: u64 = dropped.map(|(_, dropped)| dropped).sum();
        let before = queue.dropped + queue.counts.lost;
        (queue.dropped, queue.counts.lost) = (dropped, queue.beyond);
        let all = queue.dropped + queue.beyond;
        if all != before {
            queue.full_at = Some(Instant::now());
        }
        let is_recent = |at: &Instant| at.elapsed() < REFUSED;
        queue.full_at = queue.full_at.filter(is_recent);
        queue.trouble = queue.trouble.take().filter(|(at, _)| is_recent(at));
        queue.without = queue.without.take().filter(|(at, ..)| is_recent(at));
        let trouble = queue.trouble.iter().map(|(_, trouble)| trouble.clone());
        let mut troubles: Vec<String> = trouble.collect();
        if queue.full_at.is_some() {
            troubles.push(format!(
                "packets were dropped unjudged, {all} since the start: more than {} waited, or more than {MOST} came in a second",
                ROOM.packets
            ));
        }
        let own = Some(queue.netns);
        let elsewhere = queue.made_of.namespaces.iter();
        let elsewhere = elsewhere.filter(|(_, inode)| inode.is_some() && **inode != own);
        if let Some((file, _)) = elsewhere.into_iter().next() {
            troubles.push(format!(
                "rules name the network namespace {}, and at level nfqueue only the daemon's own is judged: they hold for nobody",
                file.display()
            ));
        }
        match troubles.is_empty() {
            true => self.alerts.clear(ABOUT_QUEUE),
            false => self.alerts.raise(ABOUT_QUEUE, troubles.join("; ")),
        }
        match &queue.without {
            None => self.alerts.clear(ABOUT_FILES),
            Some((_, program, file, why)) => self.alerts.raise(
                ABOUT_FILES,
                format!(
                    "{file} of {program}: {}; rules that ask for its SHA-256 do not allow that program",
                    why.why()
                ),
            ),
        }
    }
}
