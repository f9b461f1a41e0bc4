//! Virtual addresses that weir holds itself: each is asked for before it is taken, added
//! to its interface, announced, and watched for others that say they have it. When and
//! how often is `weir_core::neighbour::claim`'s; packets for them are the packet path's.
//! Those of a virtual router (`vrrp`) are held while this host is its active one.
//!
//! They are addresses of the interface, as an administrator would add them: the kernel
//! answers ARP, neighbour discovery and echo requests for them, also while no daemon
//! runs. (Those of a virtual router have a lifetime, which the daemon renews: without it
//! they are gone when another host has them.)

mod address;
pub mod config;
mod record;
mod routers;
mod segment;
mod status;
mod vrrp;

use std::{
    collections::{BTreeMap, BTreeSet},
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
use weir_events::{Events, alerts::Alerts};

use crate::{
    balance::Balancer,
    host::{self, addresses},
    threads::{self, Pulse},
};
use address::{Keeps, Vip, about};
use config::VipsConfig;
use record::HeldAddresses;
use segment::{Counts, LinkListener, OtherVersion};
use vrrp::Group;

pub use record::take_away;
pub use status::{SegmentStatus, VipStatus};
pub use vrrp::VrrpStatus;

/// The longest wait for a frame: a reload and the end are seen then.
const WAIT: Duration = Duration::from_millis(250);
/// How long is waited after frames were read: a flood of them has no more of a processor.
const PAUSE: Duration = Duration::from_millis(5);
/// How often interfaces and addresses are looked at.
const FOLLOW: Duration = Duration::from_secs(1);
/// What the alert about the file of added addresses is about.
const ABOUT_RECORD: &str = "vips:record";

/// The virtual addresses of a daemon.
pub struct Vips {
    alerts: Arc<Alerts>,
    events: Arc<Events>,
    balancer: Arc<Balancer>,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    record: HeldAddresses,
    segments: BTreeMap<String, Watched>,
    vips: BTreeMap<IpAddr, Vip>,
    groups: Vec<Group>,
    followed: Option<Duration>,
}

/// An interface with virtual addresses, if it is there and up.
#[derive(Default)]
struct Watched {
    open: Option<LinkListener>,
    /// What was counted of it before it was opened anew.
    before: Counts,
}

/// After so long without one, no host speaks another version of VRRP any more.
const FORGOTTEN: Duration = Duration::from_secs(10);

fn about_segment(name: &str) -> String {
    format!("vips:{name}")
}

fn about_version(name: &str) -> String {
    format!("vips:{name}:version")
}

impl Vips {
    /// No virtual addresses yet. Addresses that an earlier daemon has added are kept in the
    /// state directory.
    pub fn new(
        alerts: Arc<Alerts>,
        events: Arc<Events>,
        balancer: Arc<Balancer>,
        state_dir: &Path,
    ) -> Self {
        let (record, read) = HeldAddresses::read(state_dir);
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
            events,
            balancer,
            begun: Instant::now(),
            state: Mutex::new(State {
                record,
                segments: BTreeMap::new(),
                vips: BTreeMap::new(),
                groups: Vec::new(),
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

    /// Holds the addresses of a configuration, each on its interface, and no others.
    pub fn apply(&self, config: &VipsConfig) {
        let there: BTreeSet<IpAddr> = match addresses::all() {
            Ok(all) => all.into_iter().map(|(_, address)| address).collect(),
            Err(error) => {
                tracing::error!("cannot read the addresses of this host: {error}");
                BTreeSet::new()
            }
        };
        let wanted = Wanted::of(config);
        let mut record = self.state().record.clone();
        let before = record.added.clone();
        for (address, (interface, _)) in &wanted.0 {
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
        self.replace_groups(&mut state, config);
        let mut vips = std::mem::take(&mut state.vips);
        for (address, (interface, lifetime)) in &wanted.0 {
            let is_added = state.record.added.contains(&(interface.clone(), *address));
            let known = vips.remove(address).filter(|vip| {
                let is_same = match vip.keeps {
                    Keeps::Administrator => !is_added,
                    Keeps::Weir(_) => lifetime.is_none(),
                    Keeps::Router(_, seconds) => *lifetime == Some(seconds),
                };
                is_same && vip.interface == *interface
            });
            let vip = known.unwrap_or_else(|| Vip {
                interface: interface.clone(),
                keeps: match (is_added, lifetime) {
                    (false, _) => Keeps::Administrator,
                    (true, None) => Keeps::Weir(None),
                    (true, Some(seconds)) => Keeps::Router(None, *seconds),
                },
            });
            state.vips.insert(*address, vip);
        }
        for address in vips.keys() {
            self.alerts.clear(&about(*address));
        }
        let is_wanted = |(interface, address): &(String, IpAddr)| {
            let wanted = wanted.0.get(address);
            wanted.is_some_and(|(known, _)| known == interface)
        };
        let added = state.record.added.iter();
        let unwanted: Vec<_> = added.filter(|one| !is_wanted(one)).cloned().collect();
        for (interface, address) in unwanted {
            if self.remove(&interface, address) {
                state.record.added.remove(&(interface, address));
            }
        }
        let names: BTreeSet<_> = wanted.0.into_values().map(|(name, _)| name).collect();
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

    fn save(&self, record: &HeldAddresses) {
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

    /// Looks at the interfaces: one that has come is listened to, and an address that
    /// somebody took from it is put back.
    fn follow(&self, state: &mut State) {
        let now = self.now();
        state.followed = Some(now);
        let State {
            segments,
            vips,
            groups,
            ..
        } = state;
        for (name, watched) in segments {
            let there = match host::interface(name) {
                Ok(there) => there.filter(|there| there.is_running),
                Err(error) => {
                    self.alerts
                        .raise(&about_segment(name), format!("cannot read {name}: {error}"));
                    continue;
                }
            };
            let Some(there) = there else {
                watched.close();
                self.lose(name, groups, vips);
                let message =
                    format!("{name} is not there or is down: its virtual addresses are not held");
                self.alerts.raise(&about_segment(name), message);
                continue;
            };
            let routes = [false, true].map(|is_v6| {
                let mut groups = groups.iter();
                groups.any(|group| group.is_v6 == is_v6 && group.config.interface == *name)
            });
            let open = watched.open.as_ref();
            if open.is_none_or(|open| !open.is_of(&there, routes)) {
                watched.close();
                match LinkListener::open(there.clone(), name, routes) {
                    Ok(open) => watched.open = Some(open),
                    Err(error) => {
                        self.lose(name, groups, vips);
                        let message = format!(
                            "cannot listen on {name} for who has its virtual addresses ({error}): they are not taken"
                        );
                        self.alerts.raise(&about_segment(name), message);
                        continue;
                    }
                }
            }
            self.alerts.clear(&about_segment(name));
            let open = watched.open.as_ref();
            self.tell_of_version(name, open.and_then(|open| open.other_version), groups);
            let its = groups.iter_mut().filter(|g| g.config.interface == *name);
            let (mut routed, mut active) = (BTreeSet::new(), BTreeSet::new());
            for group in its {
                group.follow_pools(|pool| self.balancer.has_live_real(pool));
                let is_vip = |address: IpAddr| vips.contains_key(&address);
                group.follow(now, &there.addresses, is_vip, &self.alerts);
                if group.own.is_none()
                    && let Some(open) = &watched.open
                {
                    let actions = group.router.stop();
                    self.carry_out(now, group, open, vips, actions);
                }
                if group.is_active() {
                    active.extend(group.vips());
                }
                routed.extend(group.vips());
            }
            for (address, vip) in vips.iter_mut().filter(|(_, vip)| vip.interface == *name) {
                if matches!(vip.keeps, Keeps::Administrator) && routed.contains(address) {
                    let message = format!(
                        "{address} is on this host, and not by weir: it is answered for here although another host may have it; remove it (ip addr del) and reload"
                    );
                    self.alerts.raise(&about(*address), message);
                }
                let is_there = there.addresses.contains(address);
                self.follow_vip(
                    now,
                    *address,
                    vip,
                    &there,
                    is_there,
                    active.contains(address),
                );
            }
        }
    }

    /// A host that speaks another version than 3 about a virtual router of ours is not heard,
    /// and hears nobody: both are active.
    fn tell_of_version(&self, name: &str, last: Option<OtherVersion>, groups: &[Group]) {
        let is_ours = |other: &OtherVersion| {
            let mut all = groups.iter().map(|group| &group.config);
            other.at.elapsed() < FORGOTTEN
                && all.any(|config| config.interface == name && config.id == other.id)
        };
        match last.filter(is_ours) {
            None => self.alerts.clear(&about_version(name)),
            Some(other) => {
                let message = format!(
                    "{} on {name} speaks another version of VRRP than 3 about id {}: neither hears the other, and both are active; set it to version 3 there (keepalived: vrrp_version 3)",
                    other.from, other.id
                );
                self.alerts.raise(&about_version(name), message);
            }
        }
    }

    /// An interface is gone: nothing is held there, and no part is taken.
    fn lose(&self, name: &str, groups: &mut [Group], vips: &mut BTreeMap<IpAddr, Vip>) {
        for vip in vips.values_mut().filter(|vip| vip.interface == name) {
            if let Keeps::Weir(claim) | Keeps::Router(claim, _) = &mut vip.keeps {
                *claim = None;
            }
        }
        for group in groups.iter_mut().filter(|g| g.config.interface == name) {
            if !group.router.stop().is_empty() {
                self.tell_of(group);
            }
        }
    }

    /// Hears what others say, and does what is due. Returns how long the next may wait.
    fn step(&self, state: &mut State) -> Duration {
        let now = self.now();
        let State {
            segments,
            vips,
            groups,
            ..
        } = state;
        for (name, watched) in segments.iter_mut() {
            let Some(open) = &mut watched.open else {
                continue;
            };
            // Another host that takes over says so before it announces the addresses. So
            // announcements are read first, and looked at when it is known who is active.
            let messages = open.read();
            for received in open.read_vrrp() {
                let is_it = |group: &&mut Group| group.is_meant(&received, name);
                let group = groups.iter_mut().find(is_it);
                self.hear(now, &received, group, open, vips);
            }
            for message in messages {
                if let Some(vip) = vips.get_mut(&message.address)
                    && vip.interface == *name
                    && let Some(claim) = vip.keeps.claim()
                {
                    claim.hear(now, message.sender, message.says);
                    self.tell(message.address, name, claim.standing());
                }
            }
        }
        let open = |name: &str| segments.get(name).and_then(|watched| watched.open.as_ref());
        let mut next = now + WAIT;
        for group in groups {
            if let Some(open) = open(&group.config.interface) {
                let actions = group.router.tick(now);
                self.carry_out(now, group, open, vips, actions);
                group.forget_rival(now, &self.alerts);
                next = group.router.next().map_or(next, |at| next.min(at));
            }
        }
        for (address, vip) in vips {
            if let Some(open) = open(&vip.interface) {
                next = self
                    .look_after(now, *address, vip, open)
                    .map_or(next, |at| next.min(at));
            }
        }
        next.saturating_sub(now)
    }

    /// Holds them until the daemon stops. Those that it holds always stay then: what is
    /// pinned goes on to send their packets to reals. Virtual routers are given up.
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
            let time = self.step(&mut state);
            let sockets: Vec<_> = state.sockets().collect();
            drop(state);
            match sockets.is_empty() {
                true => threads::wait(WAIT, stopping),
                false if wait_for(&sockets, time) => thread::sleep(PAUSE),
                false => (),
            }
        }
        let mut state = self.state();
        let mut groups = std::mem::take(&mut state.groups);
        for group in &mut groups {
            self.leave(&mut state, group);
        }
        // What is not there any more may be an administrator's the next time.
        let State { record, vips, .. } = &mut *state;
        let is_released = |(_, address): &(String, IpAddr)| {
            let vip = vips.get(address);
            vip.is_some_and(|vip| matches!(vip.keeps, Keeps::Router(None, _)))
        };
        let before = record.added.len();
        record.added.retain(|one| !is_released(one));
        let (record, has_changed) = (record.clone(), record.added.len() != before);
        drop(state);
        if has_changed {
            self.save(&record);
        }
    }
}

impl State {
    fn sockets(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        let open = self.segments.values().filter_map(|one| one.open.as_ref());
        open.flat_map(LinkListener::sockets)
    }
}

impl Watched {
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.before.add(&open.counts);
        }
    }
}

/// Each address with its interface; those of virtual routers with a lifetime.
struct Wanted(BTreeMap<IpAddr, (String, Option<u32>)>);

impl Wanted {
    fn of(config: &VipsConfig) -> Self {
        let held = config.held.iter();
        let held = held.map(|(vip, interface)| (*vip, (interface.clone(), None)));
        let routed = config.routers.iter().flat_map(|router| {
            let lifetime = Some(vrrp::lifetime(router.settings));
            let vips = router.vips.iter();
            vips.map(move |vip| (*vip, (router.interface.clone(), lifetime)))
        });
        Self(held.chain(routed).collect())
    }
}

/// Until one of them has something to read, which is answered, or so long.
fn wait_for(sockets: &[Arc<OwnedFd>], time: Duration) -> bool {
    let mut all: Vec<_> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    let time = Timespec::try_from(time.min(WAIT)).expect("a quarter of a second fits");
    // Interrupted, or an interface that went: the next round finds out.
    poll(&mut all, Some(&time)).is_ok_and(|ready| ready > 0)
}
