//! Virtual addresses that weir holds itself: each is asked for before it is taken, added
//! to its interface, announced, and watched for others that say they have it. When and
//! how often is `weir_core::neighbour::claim`'s; packets for them are the packet path's.
//!
//! They are addresses of the interface, as an administrator would add them: the kernel
//! answers ARP, neighbour discovery and echo requests for them, also while no daemon
//! runs.

mod record;
mod segment;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use weir_core::neighbour::{
    self, Mac,
    claim::{Action, Claim, Standing},
};
use weir_events::alerts::Alerts;

use crate::{
    host::{self, addresses},
    threads::{self, Pulse},
};
use record::Record;
use segment::Segment;

pub use record::take_away;

/// The longest wait for a frame: a reload and the end are seen then.
const WAIT: Duration = Duration::from_millis(250);
/// How long is waited after frames were read: a flood of them has no more of a processor.
const PAUSE: Duration = Duration::from_millis(2);
/// How often interfaces and addresses are looked at.
const FOLLOW: Duration = Duration::from_secs(1);
/// What the alert about the file of added addresses is about.
const ABOUT_RECORD: &str = "vips:record";

/// The virtual addresses of a daemon.
pub struct Vips {
    alerts: Arc<Alerts>,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    record: Record,
    segments: BTreeMap<String, Watched>,
    vips: BTreeMap<IpAddr, Vip>,
    followed: Option<Duration>,
}

/// An interface with virtual addresses, if it is there and up.
#[derive(Default)]
struct Watched {
    open: Option<Segment>,
    /// What was counted of it before it was opened anew.
    malformed: u64,
}

struct Vip {
    interface: String,
    keeps: Keeps,
}

enum Keeps {
    /// The administrator: it was there before, and stays.
    Administrator,
    /// weir; none: its interface is not there.
    Weir(Option<Claim>),
}

/// A virtual address as shown.
#[derive(Debug, Clone, Serialize)]
pub struct VipStatus {
    /// The virtual address itself.
    pub address: IpAddr,
    /// Where it is, or is to be.
    pub interface: String,
    /// `held`, `probing` (it is asked whether somebody has it), `refused` (somebody has),
    /// `contested` (it is held, and somebody says that he has it), `unmanaged` (an
    /// administrator has added it) or `absent` (its interface is not there or down).
    pub state: &'static str,
    /// The link-layer address of somebody else who has it.
    pub other: Option<String>,
    /// How often others said that they have it.
    pub conflicts: u64,
}

/// An interface with virtual addresses, as counted.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    /// Its name in the configuration.
    pub interface: String,
    /// ARP and neighbour discovery that was not as its RFC has it.
    pub malformed: u64,
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn about(address: IpAddr) -> String {
    format!("vip-{address}")
}

fn about_segment(name: &str) -> String {
    format!("vips:{name}")
}

impl Vips {
    /// None yet. Which addresses an earlier daemon has added is kept in the state
    /// directory.
    pub fn new(alerts: Arc<Alerts>, state_dir: &Path) -> Self {
        let (record, read) = Record::read(state_dir);
        if let Err(error) = read {
            let path = state_dir.join("addresses.json");
            let message = format!(
                "cannot read {}: {error}; virtual addresses that weir has added are taken for an administrator's",
                path.display()
            );
            alerts.raise(ABOUT_RECORD, message);
        }
        Self {
            alerts,
            begun: Instant::now(),
            state: Mutex::new(State {
                record,
                segments: BTreeMap::new(),
                vips: BTreeMap::new(),
                followed: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Holds these addresses, each on its interface, and no others.
    pub fn apply(&self, wanted: &BTreeMap<IpAddr, String>) {
        let there: BTreeSet<IpAddr> = match addresses::all() {
            Ok(all) => all.into_iter().map(|(_, address)| address).collect(),
            Err(error) => {
                tracing::error!("cannot read the addresses of this host: {error}");
                BTreeSet::new()
            }
        };
        let is_added = |record: &Record, interface: &str, address| {
            record.added.contains(&(interface.to_owned(), address))
        };
        let mut record = self.state().record.clone();
        let before = record.added.clone();
        for (address, interface) in wanted {
            if !there.contains(address) {
                record.added.insert((interface.clone(), *address));
            }
        }
        // On disk first, and not under the lock: a disk may be slow.
        if record.added != before {
            self.save(&record);
        }
        let mut state = self.state();
        state.record = record;
        let mut vips = std::mem::take(&mut state.vips);
        for (address, interface) in wanted {
            let known = vips.remove(address);
            let known = known.filter(|vip| vip.interface == *interface);
            let vip = known.unwrap_or_else(|| Vip {
                interface: interface.clone(),
                keeps: match is_added(&state.record, interface, *address) {
                    true => Keeps::Weir(None),
                    false => Keeps::Administrator,
                },
            });
            state.vips.insert(*address, vip);
        }
        vips.keys()
            .for_each(|address| self.alerts.clear(&about(*address)));
        let unwanted: Vec<_> = state
            .record
            .added
            .iter()
            .filter(|(interface, address)| wanted.get(address) != Some(interface))
            .cloned()
            .collect();
        for (interface, address) in unwanted {
            if self.remove(&interface, address) {
                state.record.added.remove(&(interface, address));
            }
        }
        let names: Vec<_> = wanted.values().cloned().collect();
        state.segments.retain(|name, _| {
            let is_wanted = names.contains(name);
            if !is_wanted {
                self.alerts.clear(&about_segment(name));
            }
            is_wanted
        });
        for name in names {
            state.segments.entry(name).or_default();
        }
        self.follow(&mut state);
        let record = state.record.clone();
        drop(state);
        if record.added != before {
            self.save(&record);
        }
    }

    fn save(&self, record: &Record) {
        match record.save() {
            Ok(()) => self.alerts.clear(ABOUT_RECORD),
            Err(error) => {
                let message = format!(
                    "cannot note which virtual addresses weir adds ({error}): after a crash they are taken for an administrator's"
                );
                self.alerts.raise(ABOUT_RECORD, message);
            }
        }
    }

    /// Takes an address of weir's from its interface; true: it is not there.
    fn remove(&self, interface: &str, address: IpAddr) -> bool {
        let removed = host::interface(interface).and_then(|there| match there {
            Some(there) => release(there.index, address),
            None => Ok(()),
        });
        match removed {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("cannot remove {address} from {interface}: {error}");
                false
            }
        }
    }

    /// Looks at the interfaces: one that has come is listened to, and an address that
    /// somebody took from it is put back.
    fn follow(&self, state: &mut State) {
        let now = self.now();
        state.followed = Some(now);
        let State { segments, vips, .. } = state;
        for (name, watched) in segments {
            let there = match host::interface(name) {
                Ok(there) => there.filter(|there| there.is_running),
                Err(error) => {
                    self.alerts
                        .raise(&about_segment(name), format!("cannot read {name}: {error}"));
                    continue;
                }
            };
            let its = vips.iter_mut().filter(|(_, vip)| vip.interface == *name);
            let Some(there) = there else {
                watched.close();
                its.for_each(|(_, vip)| vip.lose());
                let message =
                    format!("{name} is not there or is down: its virtual addresses are not held");
                self.alerts.raise(&about_segment(name), message);
                continue;
            };
            if watched.open.as_ref().is_none_or(|open| !open.is_of(&there)) {
                watched.close();
                match Segment::open(there.clone()) {
                    Ok(open) => watched.open = Some(open),
                    Err(error) => {
                        its.for_each(|(_, vip)| vip.lose());
                        let message = format!(
                            "cannot listen on {name} for who has its virtual addresses ({error}): they are not taken"
                        );
                        self.alerts.raise(&about_segment(name), message);
                        continue;
                    }
                }
            }
            self.alerts.clear(&about_segment(name));
            for (address, vip) in its {
                let is_there = there.addresses.contains(address);
                match &mut vip.keeps {
                    Keeps::Weir(claim @ None) if is_there => *claim = Some(Claim::held(now)),
                    Keeps::Weir(claim @ None) => *claim = Some(Claim::probing(now)),
                    Keeps::Weir(Some(claim)) if claim.is_held() && !is_there => {
                        if self.take(there.index, *address, name) {
                            claim.announce(now);
                        }
                    }
                    Keeps::Weir(Some(_)) | Keeps::Administrator => (),
                }
            }
        }
    }

    fn take(&self, index: u32, address: IpAddr, name: &str) -> bool {
        match addresses::hold(index, address, None) {
            Ok(()) => {
                tracing::info!("holds {address} on {name}");
                true
            }
            Err(error) => {
                let message = format!("cannot add {address} to {name}: {error}");
                self.alerts.raise(&about(address), message);
                false
            }
        }
    }

    /// Hears what others say, and does what is due. Returns how long that may wait, and
    /// whether something was heard.
    fn step(&self, state: &mut State) -> (Duration, bool) {
        let now = self.now();
        let mut has_heard = false;
        let State { segments, vips, .. } = state;
        for (name, watched) in segments.iter_mut() {
            for message in watched.open.iter_mut().flat_map(Segment::read) {
                has_heard = true;
                if let Some(vip) = vips.get_mut(&message.address)
                    && vip.interface == *name
                    && let Keeps::Weir(Some(claim)) = &mut vip.keeps
                {
                    claim.hear(now, message.sender, message.says);
                    self.tell(message.address, name, claim.standing());
                }
            }
        }
        let mut next = now + WAIT;
        for (address, vip) in vips {
            let watched = segments.get(&vip.interface);
            let Some(open) = watched.and_then(|watched| watched.open.as_ref()) else {
                continue;
            };
            let Keeps::Weir(Some(claim)) = &mut vip.keeps else {
                continue;
            };
            let (mac, name) = (open.interface.mac, &vip.interface);
            let before = claim.standing();
            while let Some(action) = claim.due(now) {
                let sent = match action {
                    Action::Probe => open.send(&neighbour::probe(mac, *address)),
                    Action::Announce => open.send(&neighbour::announcement(mac, *address)),
                    Action::Take => {
                        if !self.take(open.interface.index, *address, name) {
                            // It is asked for again.
                            *claim = Claim::probing(now + FOLLOW);
                            break;
                        }
                        Ok(())
                    }
                };
                if let Err(error) = sent {
                    tracing::debug!("cannot send a frame about {address} on {name}: {error}");
                }
            }
            if claim.standing() != before {
                self.tell(*address, name, claim.standing());
            }
            next = claim.next().map_or(next, |at| next.min(at));
        }
        (next.saturating_sub(now), has_heard)
    }

    fn tell(&self, address: IpAddr, name: &str, standing: Standing) {
        match standing {
            Standing::Probing => (),
            Standing::Held => self.alerts.clear(&about(address)),
            Standing::Refused(mac) => {
                let message = format!(
                    "{address} is not taken: {} on {name} has it; it is asked for again until that one is gone",
                    text(mac)
                );
                self.alerts.raise(&about(address), message);
            }
            Standing::Contested(mac) => {
                let message = format!(
                    "{} on {name} says that it has {address}, which this host holds: who connects may reach the one or the other",
                    text(mac)
                );
                self.alerts.raise(&about(address), message);
            }
        }
    }

    /// Holds them until the daemon stops. They stay then: what is pinned goes on to send
    /// their packets to reals.
    pub fn run(&self, stopping: &AtomicBool, pulse: &Pulse) {
        while !stopping.load(Ordering::Relaxed) {
            pulse.beat();
            let mut state = self.state();
            let is_due = state
                .followed
                .is_none_or(|last| self.now() >= last + FOLLOW);
            if is_due && !state.segments.is_empty() {
                self.follow(&mut state);
            }
            let (time, has_heard) = self.step(&mut state);
            let sockets: Vec<_> = state.sockets().collect();
            drop(state);
            if has_heard {
                thread::sleep(PAUSE);
            }
            match sockets.is_empty() {
                true => threads::wait(WAIT, stopping),
                false => wait_for(&sockets, time),
            }
        }
    }

    /// The addresses as they are.
    pub fn status(&self) -> Vec<VipStatus> {
        let state = self.state();
        let status = state.vips.iter().map(|(address, vip)| {
            let claim = match &vip.keeps {
                Keeps::Weir(claim) => claim.as_ref(),
                Keeps::Administrator => None,
            };
            let (shown, other) = match (&vip.keeps, claim.map(Claim::standing)) {
                (Keeps::Administrator, _) => ("unmanaged", None),
                (_, None) => ("absent", None),
                (_, Some(Standing::Probing)) => ("probing", None),
                (_, Some(Standing::Held)) => ("held", None),
                (_, Some(Standing::Refused(mac))) => ("refused", Some(text(mac))),
                (_, Some(Standing::Contested(mac))) => ("contested", Some(text(mac))),
            };
            VipStatus {
                address: *address,
                interface: vip.interface.clone(),
                state: shown,
                other,
                conflicts: claim.map_or(0, Claim::conflicts),
            }
        });
        status.collect()
    }

    /// Their interfaces, as counted since the daemon's start.
    pub fn segments(&self) -> Vec<SegmentStatus> {
        let state = self.state();
        let segments = state.segments.iter().map(|(name, watched)| SegmentStatus {
            interface: name.clone(),
            malformed: watched.malformed + watched.open.as_ref().map_or(0, |open| open.malformed),
        });
        segments.collect()
    }
}

impl State {
    fn sockets(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        let open = self.segments.values().filter_map(|one| one.open.as_ref());
        open.flat_map(Segment::sockets)
    }
}

impl Watched {
    fn close(&mut self) {
        self.malformed += self.open.take().map_or(0, |open| open.malformed);
    }
}

impl Vip {
    /// Its interface is not there.
    fn lose(&mut self) {
        if let Keeps::Weir(claim) = &mut self.keeps {
            *claim = None;
        }
    }
}

/// Takes an address from an interface; one that is not there is none that stays.
fn release(index: u32, address: IpAddr) -> io::Result<()> {
    match addresses::remove(index, address) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
        done => done,
    }
}

/// Until one of them has something to read, or so long.
fn wait_for(sockets: &[Arc<OwnedFd>], time: Duration) {
    let mut all: Vec<_> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    let time = Timespec::try_from(time.min(WAIT)).expect("a quarter of a second fits");
    // Interrupted, or an interface that went: the next round finds out.
    let _: io::Result<_> = poll(&mut all, Some(&time)).map_err(io::Error::from);
}
