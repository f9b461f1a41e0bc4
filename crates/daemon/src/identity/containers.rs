//! The labels of containers, as their runtimes have them: Docker, and Podman, which has the
//! same API; and those of Kubernetes, whose runtimes keep them in files (`bundles`). A runtime
//! may take its time, so it is asked by a thread of its own, and what it says is remembered.
//! Until then a program is one that is not known.
//!
//! A process says by the path of its control group in which container it is. Users who may make
//! control groups can give one that name, so the runtime's word for the container's first
//! process decides: it has to be in the same group.

mod bundles;

pub use bundles::{Runtime as ContainerRuntime, labels_in as labels_in_config};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use weir_bpf::identity::CgroupAt;
use weir_identity::{AppConfig, Container};

use super::share::{self, OWNERS, owner_of};
use crate::{host::cgroup_of, threads};

/// Digits of a container's number.
const ID_DIGITS: usize = 64;
/// Containers that are remembered: of more the one that was asked for longest ago goes. Who may
/// make control groups gives them names of containers as he likes: those of one user have a share,
/// here and of those that wait.
const MAX_KNOWN: usize = 1024;
/// Containers that wait at a time; of more the labels are asked for when a process of theirs
/// sends again.
const MAX_WAITING: usize = 256;
/// Processes of one container that are told of when its labels are known.
const MAX_PROCESSES: usize = 64;
/// So long an answer about a container holds.
const HOLDS: Duration = Duration::from_secs(600);
/// So long one that has none: then it is asked for again. So long a runtime is not asked that
/// has not answered in time.
const AGAIN: Duration = Duration::from_secs(30);
/// So long one runtime may take.
const PER_QUESTION: Duration = Duration::from_secs(2);
/// So long runtimes are asked before rules come into force, while nobody is judged by them.
const LOOK_UP: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read, and of the labels in it that are kept.
const MAX_ANSWER: u64 = 1 << 20;
const MAX_LABELS: usize = 64 << 10;

/// What is remembered of containers, and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ContainerStatus {
    /// Containers whose labels are known.
    pub known: usize,
    /// Containers whose labels could not be had.
    pub unknown: usize,
    /// Containers that are being asked for.
    pub waiting: usize,
    /// How often a container was left for later because too many waited.
    pub put_off: u64,
}

/// Why the labels of a container are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoLabels(String);

impl fmt::Display for NoLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of the container of a process.
pub(super) type Labelled = (Container, Option<NoLabels>);

struct Known {
    labels: Result<BTreeMap<String, String>, NoLabels>,
    at: Instant,
    /// A runtime has said so; without labels else nobody could be asked.
    is_said: bool,
    /// The user who can make such control groups.
    owner: u32,
}

impl Known {
    fn holds(&self) -> bool {
        let time = if self.labels.is_ok() { HOLDS } else { AGAIN };
        self.at.elapsed() < time
    }

    fn labelled(&self) -> Labelled {
        match &self.labels {
            Ok(labels) => (Container::Labels(labels.clone()), None),
            Err(why) => (Container::Unknown, Some(why.clone())),
        }
    }
}

/// Container runtimes that are asked for labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sources {
    /// Sockets of those with Docker's API.
    sockets: Vec<PathBuf>,
    /// Where those of Kubernetes keep their containers.
    bundles: Vec<PathBuf>,
}

/// A container that is asked for.
#[derive(Default)]
struct Waiting {
    processes: BTreeSet<u32>,
    /// The user who can make such control groups.
    owner: u32,
}

/// Both by the paths of control groups.
#[derive(Default)]
struct Table {
    sources: Sources,
    /// When one of them has not answered in time.
    mute: BTreeMap<PathBuf, Instant>,
    known: BTreeMap<String, Known>,
    waiting: BTreeMap<String, Waiting>,
    /// Those that wait, in the order in which they came.
    order: VecDeque<String>,
    answered: BTreeSet<u32>,
    put_off: u64,
    is_started: bool,
}

impl Table {
    fn note(&mut self, group: String, known: Known) {
        // They do not change: that nobody can be asked says nothing against them.
        if !known.is_said
            && let Some(before) = self.known.get_mut(&group)
            && before.labels.is_ok()
        {
            let asked_again = HOLDS - AGAIN;
            before.at = known.at.checked_sub(asked_again).unwrap_or(known.at);
            return;
        }
        if !self.known.contains_key(&group) {
            let (owner, share) = (known.owner, MAX_KNOWN / OWNERS);
            if owner != 0 {
                self.make_room(share, |is| is == owner);
                self.make_room(MAX_KNOWN - share, |is| is != 0);
            }
            self.make_room(MAX_KNOWN, |_| true);
        }
        self.known.insert(group, known);
    }

    /// Forgets the one of these owners' that was asked for longest ago, if they have so many.
    fn make_room(&mut self, most: usize, is_theirs: impl Fn(u32) -> bool) {
        let theirs = self.known.iter().filter(|(_, one)| is_theirs(one.owner));
        let theirs: Vec<_> = theirs.map(|(group, one)| (one.at, group)).collect();
        if theirs.len() < most {
            return;
        }
        if let Some((_, oldest)) = theirs.into_iter().min() {
            let oldest = oldest.clone();
            self.known.remove(&oldest);
        }
    }

    /// Nobody waits for these any more, and who has waited asks again.
    fn release_all(&mut self) {
        self.order.clear();
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.answered.extend(waiting.processes);
        }
    }
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    work: Condvar,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one runtime behind the other for a container.
    fn ask(&self, sources: &Sources, group: &str, id: &str, until: Instant) -> Known {
        let Sources { sockets, bundles } = sources;
        let bundles: &[PathBuf] = match bundles::is_kubernetes(group) {
            true => bundles,
            false => &[],
        };
        let (mut labels, mut is_asked) = (bundles::labels(bundles, group, id), false);
        let mut first_error = None;
        if let Some(Err(why)) = labels.take_if(|labels| labels.is_err()) {
            first_error = Some(why);
        }
        let sockets: &[PathBuf] = if labels.is_some() { &[] } else { sockets };
        let mut failed = |socket: &Path, why: &dyn fmt::Display| {
            first_error.get_or_insert(NoLabels(format!("{}: {why}", socket.display())));
        };
        for socket in sockets {
            let mute = self.table().mute.get(socket).copied();
            if mute.is_some_and(|since| since.elapsed() < AGAIN) {
                failed(socket, &"it has not answered in time");
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                failed(socket, &"there was no time left to ask it");
                break;
            }
            match inspect(socket, id, left.min(PER_QUESTION)) {
                Ok(Some(found)) => {
                    let first = cgroup_of(found.state.pid).unwrap_or_default();
                    labels = Some(found.labels_at(&first, group));
                    break;
                }
                Ok(None) => is_asked = true,
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                Err(error) => {
                    if error.kind() == ErrorKind::TimedOut && left >= PER_QUESTION {
                        self.table().mute.insert(socket.clone(), Instant::now());
                    }
                    failed(socket, &error);
                }
            }
        }
        let is_said = labels.is_some() || is_asked && first_error.is_none();
        let nobody = || {
            let all = sockets.iter().chain(bundles);
            let all: Vec<_> = all.map(|path| path.display().to_string()).collect();
            let all = all.join(", ");
            NoLabels(match is_asked {
                true => format!("no container runtime knows it, of {all}"),
                false => format!("no container runtime is there, of {all}"),
            })
        };
        Known {
            labels: labels.unwrap_or_else(|| Err(first_error.unwrap_or_else(nobody))),
            at: Instant::now(),
            is_said,
            owner: owner_of_group(group),
        }
    }
}

/// The containers of this host that programs are in.
#[derive(Default)]
pub(super) struct Containers(Arc<Shared>);

/// The control group of the container in which a process of this one is, and its number:
/// docker-ID.scope, libpod-ID.scope, /docker/ID. Podman's pods have numbers as well, around
/// those of their containers, and so has the monitor beside each container.
pub(super) fn group_of(cgroup: &str) -> Option<(&str, &str)> {
    let (mut begin, mut before) = (0, "");
    for part in cgroup.split('/') {
        let end = begin + part.len();
        let is_pod =
            part.contains("libpod_pod_") || before == "libpod_parent" && part.len() == ID_DIGITS;
        let is_monitor = ["libpod-conmon-", "crio-conmon-"]
            .iter()
            .any(|name| part.starts_with(name));
        before = part;
        if is_pod || is_monitor {
            begin = end + 1;
            continue;
        }
        let words = part.split(|c: char| !c.is_ascii_alphanumeric());
        let is_id = |word: &&str| {
            let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            word.len() == ID_DIGITS && word.bytes().all(digits)
        };
        if let Some(id) = words.rev().find(is_id) {
            return Some((&cgroup[..end], id));
        }
        begin = end + 1;
    }
    None
}

/// Who can make control groups by this name: it may be gone, and what it was in is there.
fn owner_of_group(group: &str) -> u32 {
    static MOUNTED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let mounted = MOUNTED.get_or_init(CgroupAt::mount_point).as_ref();
    mounted.map_or(0, |root| {
        owner_of(&root.join(group.trim_start_matches('/')))
    })
}

impl Containers {
    /// Asks these runtimes from now on; false: the same as before.
    pub fn ask_at(&self, config: &AppConfig) -> bool {
        self.ask_these(Sources {
            sockets: config.container_sockets.clone(),
            bundles: config.container_bundles.clone(),
        })
    }

    fn ask_these(&self, sources: Sources) -> bool {
        let mut table = self.0.table();
        let is_other = table.sources != sources;
        if is_other {
            table.sources = sources;
            table.known.clear();
            table.mute.clear();
        }
        is_other
    }

    /// The container of a process of this control group. `None`: its runtime is asked, and the
    /// process is among [`Self::take_answered`] once that is done.
    pub fn of(&self, cgroup: &str, pid: u32) -> Option<Labelled> {
        let Some((group, _)) = group_of(cgroup) else {
            return Some((Container::None, None));
        };
        let mut table = self.0.table();
        if let Some(known) = table.known.get(group).filter(|known| known.holds()) {
            return Some(known.labelled());
        }
        if self.wait_for(&mut table, group, || owner_of_group(group))
            && let Some(waiting) = table.waiting.get_mut(group)
            && waiting.processes.len() < MAX_PROCESSES
        {
            waiting.processes.insert(pid);
        }
        drop(table);
        self.start();
        None
    }

    /// Has the thread ask for a container; false: too many wait.
    fn wait_for(&self, table: &mut Table, group: &str, owner: impl FnOnce() -> u32) -> bool {
        if !table.waiting.contains_key(group) {
            let owner = owner();
            let owners = table.waiting.values().map(|waiting| waiting.owner);
            if !share::has_room(MAX_WAITING, owners, owner) {
                table.put_off += 1;
                return false;
            }
            let waiting = Waiting {
                owner,
                ..Waiting::default()
            };
            table.waiting.insert(group.to_owned(), waiting);
            table.order.push_back(group.to_owned());
        }
        self.0.work.notify_one();
        true
    }

    fn start(&self) {
        if std::mem::replace(&mut self.0.table().is_started, true) {
            return;
        }
        let shared = Arc::downgrade(&self.0);
        if let Err(error) = threads::spawn("weir-app-containers", move || ask_runtimes(&shared)) {
            tracing::error!("containers in [app.rules] are not asked for: {error}");
            let mut table = self.0.table();
            table.is_started = false;
            table.release_all();
        }
    }

    /// Asks for these now, as far as there is time: before rules come into force nobody waits,
    /// and everybody is asked about.
    pub fn look_up<'g>(&self, cgroups: impl Iterator<Item = &'g str>, until: Instant) {
        let until = until.min(Instant::now() + LOOK_UP);
        let groups: BTreeSet<_> = cgroups.filter_map(group_of).collect();
        for (group, id) in groups.into_iter().take(MAX_KNOWN) {
            let sources = {
                let table = self.0.table();
                if table.known.get(group).is_some_and(Known::holds) {
                    continue;
                }
                table.sources.clone()
            };
            if Instant::now() >= until {
                return;
            }
            let known = self.0.ask(&sources, group, id, until);
            self.0.table().note(group.to_owned(), known);
        }
    }

    /// Of control groups whose containers had no labels those that have some now; the others
    /// are asked for again after a while.
    pub fn found_again<'g>(&self, groups: impl Iterator<Item = &'g str>) -> BTreeSet<String> {
        let (mut found, mut waits) = (BTreeSet::new(), false);
        let mut table = self.0.table();
        for group in groups {
            match table.known.get(group) {
                Some(known) if known.labels.is_ok() => _ = found.insert(group.to_owned()),
                Some(known) if known.holds() => (),
                _ => waits |= self.wait_for(&mut table, group, || owner_of_group(group)),
            }
        }
        drop(table);
        if waits {
            self.start();
        }
        found
    }

    /// Processes that have waited, and whose container is known now.
    pub fn take_answered(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.0.table().answered)
    }

    /// How much is remembered, and how much waits.
    pub fn status(&self) -> ContainerStatus {
        let table = self.0.table();
        let known = table.known.values().filter(|k| k.labels.is_ok()).count();
        ContainerStatus {
            known,
            unknown: table.known.len() - known,
            waiting: table.waiting.len(),
            put_off: table.put_off,
        }
    }
}

/// The thread ends, be it by a panic: the next one who asks makes another.
struct Leaving<'a>(&'a Weak<Shared>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            let mut table = shared.table();
            table.is_started = false;
            table.release_all();
        }
    }
}

/// The thread's work, until nobody asks any more.
fn ask_runtimes(shared: &Weak<Shared>) {
    let _leaving = Leaving(shared);
    while let Some(shared) = shared.upgrade() {
        let table = shared.table();
        let Some(group) = table.order.front().cloned() else {
            let waited = shared.work.wait_timeout(table, Duration::from_secs(1));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            continue;
        };
        let sources = table.sources.clone();
        drop(table);
        let id = group_of(&group).map(|(_, id)| id).unwrap_or_default();
        let until = Instant::now() + PER_QUESTION * sources.sockets.len() as u32;
        let known = shared.ask(&sources, &group, id, until);
        let mut table = shared.table();
        table.order.retain(|waiting| *waiting != group);
        let waited = table.waiting.remove(&group).unwrap_or_default();
        table.answered.extend(waited.processes);
        // Other runtimes may have been named meanwhile.
        if table.sources == sources {
            table.note(group, known);
        }
    }
}

/// A container as `GET /containers/ID/json` tells of it (Docker Engine API; asked without a
/// version, for old and new engines refuse each other's).
#[derive(Debug, Deserialize)]
pub struct Inspected {
    #[serde(rename = "State")]
    state: InspectedState,
    #[serde(rename = "Config")]
    config: InspectedConfig,
}

#[derive(Debug, Deserialize)]
struct InspectedState {
    #[serde(rename = "Pid")]
    pid: u32,
}

#[derive(Debug, Deserialize)]
struct InspectedConfig {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

impl Inspected {
    /// The container in a runtime's whole answer; `None`: the runtime has none of this number.
    ///
    /// # Errors
    /// The answer is none, or tells of a mistake.
    pub fn in_answer(answer: &[u8]) -> io::Result<Option<Self>> {
        let invalid = |why: String| io::Error::new(ErrorKind::InvalidData, why);
        let cut = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let cut = cut.ok_or_else(|| invalid("the answer is no HTTP".to_owned()))?;
        let head = String::from_utf8_lossy(&answer[..cut]);
        let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
        match status {
            "200" => (),
            "404" => return Ok(None),
            _ => {
                let line = head.lines().next().unwrap_or_default();
                let message = String::from_utf8_lossy(&answer[cut + 4..]);
                let told = format!("{line} {message}");
                let told: String = told.chars().take(200).collect();
                return Err(invalid(format!("the answer is {told:?}")));
            }
        }
        let found = serde_json::from_slice(&answer[cut + 4..]);
        found
            .map(Some)
            .map_err(|error| invalid(format!("the answer is not Docker's: {error}")))
    }

    /// The labels, if the first process, which is in the control group `first`, is in the
    /// container's.
    ///
    /// # Errors
    /// The first process is elsewhere, or the labels are too long.
    pub fn labels_at(self, first: &str, group: &str) -> Result<BTreeMap<String, String>, NoLabels> {
        if group_of(first).is_none_or(|(own, _)| own != group) {
            return Err(NoLabels(format!(
                "its first process ({}) is not in its control group",
                self.state.pid
            )));
        }
        bounded(self.config.labels.unwrap_or_default())
    }
}

/// Labels, if they are not too long.
fn bounded(labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, NoLabels> {
    let bytes: usize = labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    match bytes > MAX_LABELS {
        true => Err(NoLabels(format!(
            "its labels have {bytes} bytes; allowed: {MAX_LABELS}"
        ))),
        false => Ok(labels),
    }
}

/// Asks a runtime for a container; `None`: it has none of this number.
fn inspect(socket: &Path, id: &str, within: Duration) -> io::Result<Option<Inspected>> {
    let until = Instant::now() + within;
    let mut stream = connect(socket, within)?;
    // Version 1.0: the answer comes whole, and then the connection ends.
    write!(
        stream,
        "GET /containers/{id}/json HTTP/1.0\r\nHost: weir\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => answer.extend(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        if answer.len() as u64 > MAX_ANSWER {
            let why = format!("the answer has more than {MAX_ANSWER} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
    }
    Inspected::in_answer(&answer)
}

/// Connects to a runtime of root's.
fn connect(socket: &Path, within: Duration) -> io::Result<UnixStream> {
    let stream = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // One whose queue is full is waited for as long as it may write: never without an end,
    // which is what zero means.
    stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
    let connected = stream.connect(&socket2::SockAddr::unix(socket)?);
    connected.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    })?;
    let stream = UnixStream::from(stream);
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    let (uid, own) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    if uid != 0 && uid != own {
        let why = format!("it is served by the user {uid}; allowed: root");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests;
