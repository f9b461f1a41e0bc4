//! A virtual router of one family as this host takes part in it: what it hears and sends
//! beside what `weir_vrrp` decides, and what is told of it.

use std::{io, net::IpAddr, time::Duration};

use jiff::Timestamp;
use serde::Serialize;
use weir_events::alerts::Alerts;
pub(super) use weir_vrrp::Action;
use weir_vrrp::{
    Advertisement, GROUP_V4, GROUP_V6, Router, Settings, State, packet::ReceivedAdvertisement,
};

use super::{
    config::{VrrpConfig, of_family},
    segment::LinkListener,
};

/// So many advertisements of another active router are no passing thing.
const RIVAL: u32 = 3;

/// After so many seconds the kernel removes an address that nobody renews: others take it
/// over from a daemon that is no more a little before.
pub(super) fn lifetime(settings: Settings) -> u32 {
    Router::new(settings).active_down().as_secs() as u32 + 2
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// A virtual router of one family.
pub(super) struct Group {
    pub config: VrrpConfig,
    pub is_v6: bool,
    pub router: Router,
    /// The address that this host sends from, if its interface has one.
    pub own: Option<IpAddr>,
    since: Timestamp,
    transitions: u64,
    /// The address and priority that were heard last of an active host.
    active: Option<(IpAddr, u8)>,
    /// Advertisements in a row of another one while this is active, and the last.
    rivals: u32,
    rival_at: Duration,
}

/// A virtual router as shown.
#[derive(Debug, Clone, Serialize)]
pub struct VrrpStatus {
    /// The name in the configuration.
    pub name: String,
    /// `ipv4` or `ipv6`: each is a virtual router of its own.
    pub family: &'static str,
    /// The interface on which the hosts agree.
    pub interface: String,
    /// The virtual router's id.
    pub id: u8,
    /// `active`, `backup`, or `initialize` (it takes no part: its interface is down).
    pub state: &'static str,
    /// The priority now: lower than configured while a pool has no live real.
    pub priority: u8,
    /// The time of the last change of state.
    pub since: Timestamp,
    /// How often it has become active or ceased to be.
    pub transitions: u64,
    /// The other host that was heard last as active.
    pub active: Option<IpAddr>,
    /// The priority of that host.
    pub active_priority: Option<u8>,
    /// The virtual addresses.
    pub addresses: Vec<IpAddr>,
}

impl Group {
    /// One that takes no part yet, if the configuration has addresses of the family.
    pub fn new(config: &VrrpConfig, is_v6: bool) -> Option<Self> {
        of_family(&config.vips, is_v6).next()?;
        Some(Self {
            config: config.clone(),
            is_v6,
            router: Router::new(config.settings),
            own: None,
            since: Timestamp::now(),
            transitions: 0,
            active: None,
            rivals: 0,
            rival_at: Duration::ZERO,
        })
    }

    /// Whether it is the same virtual router, so that its state stays.
    pub fn is_of(&self, config: &VrrpConfig) -> bool {
        let of = |config: &VrrpConfig| (config.name.clone(), config.interface.clone(), config.id);
        of(&self.config) == of(config)
    }

    /// The virtual addresses of the family.
    pub fn vips(&self) -> Vec<IpAddr> {
        of_family(&self.config.vips, self.is_v6).collect()
    }

    pub fn family(&self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    pub fn is_active(&self) -> bool {
        self.router.state() == State::Active
    }

    /// The subject of an alert about the virtual router.
    fn about(&self, what: &str) -> String {
        let family = self.family().to_ascii_lowercase();
        format!("vrrp-{}:{family}{what}", self.config.name)
    }

    /// Takes part if its interface has an address to send from, and is to be given up if
    /// it has none (`own`).
    pub fn follow(
        &mut self,
        now: Duration,
        addresses: &[IpAddr],
        is_vip: impl Fn(IpAddr) -> bool,
        alerts: &Alerts,
    ) {
        let mut peers = of_family(&self.config.peers, self.is_v6);
        // A peer beyond the link-local addresses is told from one that it can answer to.
        let global = self.config.unicast && peers.any(|peer| !is_link_local(peer));
        let own = of_family(addresses, self.is_v6)
            .filter(|address| !is_vip(*address))
            .find(|address| address.is_ipv4() || is_link_local(*address) != global);
        self.own = own;
        match own {
            Some(_) => {
                self.router.start(now);
                alerts.clear(&self.about(":source"));
            }
            None => {
                let message = format!(
                    "vrrp {} ({}): {} has no address to send from: it takes no part",
                    self.config.name,
                    self.family(),
                    self.config.interface
                );
                alerts.raise(&self.about(":source"), message);
            }
        }
    }

    /// Whether the advertisement is about this virtual router.
    pub fn is_meant(&self, received: &ReceivedAdvertisement, interface: &str) -> bool {
        self.config.id == received.advertisement.id
            && self.is_v6 == received.from.is_ipv6()
            && self.config.interface == interface
    }

    /// Why an advertisement of this sender is not taken.
    pub fn refusal(&self, from: IpAddr) -> Option<&'static str> {
        if self.own == Some(from) {
            return Some("own-address");
        }
        let is_peer = self.config.peers.is_empty() || self.config.peers.contains(&from);
        (!is_peer).then_some("stranger")
    }

    /// Goes by the configuration, and by whether its pools have live reals.
    pub fn follow_pools(&mut self, has_live: impl Fn(&str) -> bool) {
        let configured = self.config.settings;
        let is_served = self.config.pools.iter().all(|pool| has_live(pool));
        let lowered = configured.priority.saturating_sub(self.config.track).max(1);
        let priority = if is_served {
            configured.priority
        } else {
            lowered
        };
        let settings = Settings {
            priority,
            ..configured
        };
        if self.router.settings() != settings {
            if self.router.settings().priority != priority {
                tracing::info!(
                    "vrrp {} ({}): priority {priority} from now on{}",
                    self.config.name,
                    self.family(),
                    if is_served {
                        ""
                    } else {
                        ": a pool has no live real"
                    }
                );
            }
            self.router.set(settings);
        }
    }

    /// Another host has told of itself.
    pub fn hear(
        &mut self,
        now: Duration,
        heard: &ReceivedAdvertisement,
        alerts: &Alerts,
    ) -> Vec<Action> {
        let Some(own) = self.own else {
            return vec![];
        };
        let said = &heard.advertisement;
        self.active = (said.priority > 0).then_some((heard.from, said.priority));
        let mut theirs = said.addresses.clone();
        let mut ours = self.vips();
        theirs.sort();
        ours.sort();
        match theirs == ours {
            true => alerts.clear(&self.about(":addresses")),
            false => {
                let message = format!(
                    "vrrp {} ({}): {} tells of other virtual addresses than are configured here",
                    self.config.name,
                    self.family(),
                    heard.from
                );
                alerts.raise(&self.about(":addresses"), message);
            }
        }
        let actions = self.router.hear(now, heard.from, own, said);
        if self.is_active() && said.priority > 0 {
            self.rivals += 1;
            self.rival_at = now;
            if self.rivals >= RIVAL {
                let message = format!(
                    "vrrp {} ({}): two hosts are active, this one (priority {}) and {} (priority {}), which does not give up",
                    self.config.name,
                    self.family(),
                    self.router.settings().priority,
                    heard.from,
                    said.priority
                );
                alerts.raise(&self.about(""), message);
            }
        }
        actions
    }

    /// Forgets another active one that is no more.
    pub fn forget_rival(&mut self, now: Duration, alerts: &Alerts) {
        let is_over = !self.is_active() || now > self.rival_at + self.router.active_down();
        if self.rivals > 0 && is_over {
            self.rivals = 0;
            alerts.clear(&self.about(""));
        }
    }

    /// Nothing is said of it any more.
    pub fn forget_alerts(&self, alerts: &Alerts) {
        for what in ["", ":addresses", ":send", ":source"] {
            alerts.clear(&self.about(what));
        }
    }

    /// A message about the change of state.
    pub fn changed(&mut self) -> String {
        self.since = Timestamp::now();
        self.transitions += 1;
        let (name, family) = (&self.config.name, self.family());
        let priority = self.router.settings().priority;
        match (self.router.state(), self.active) {
            (State::Active, _) => format!("vrrp {name} ({family}): active (priority {priority})"),
            (State::Backup, Some((from, theirs))) => {
                format!("vrrp {name} ({family}): backup, {from} is active (priority {theirs})")
            }
            (State::Backup, None) => format!("vrrp {name} ({family}): backup"),
            (State::Initialize, _) => format!("vrrp {name} ({family}): takes no part any more"),
        }
    }

    /// Tells the others of itself.
    pub fn advertise(&self, open: &LinkListener, priority: u8, alerts: &Alerts) {
        match self.send(open, priority) {
            Ok(()) => alerts.clear(&self.about(":send")),
            Err(error) => {
                let message = format!(
                    "vrrp {} ({}): cannot send advertisements on {}: {error}",
                    self.config.name,
                    self.family(),
                    self.config.interface
                );
                alerts.raise(&self.about(":send"), message);
            }
        }
    }

    fn send(&self, open: &LinkListener, priority: u8) -> io::Result<()> {
        let own = self.own.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let advertisement = Advertisement {
            id: self.config.id,
            priority,
            interval: self.config.settings.interval,
            addresses: self.vips(),
        };
        let group: IpAddr = match self.is_v6 {
            false => GROUP_V4.into(),
            true => GROUP_V6.into(),
        };
        let to = match self.config.unicast {
            false => vec![group],
            true => of_family(&self.config.peers, self.is_v6).collect(),
        };
        let mut sent = Ok(());
        for to in to {
            let message = advertisement.write(own, to, self.config.checksum);
            // One that cannot be reached keeps no other from being told.
            sent = sent.and(open.send_vrrp(&self.config.interface, own, to, &message));
        }
        sent
    }

    /// The state of the virtual router, as shown.
    pub fn status(&self) -> VrrpStatus {
        let active = self.active.filter(|_| !self.is_active());
        VrrpStatus {
            name: self.config.name.clone(),
            family: if self.is_v6 { "ipv6" } else { "ipv4" },
            interface: self.config.interface.clone(),
            id: self.config.id,
            state: match self.router.state() {
                State::Initialize => "initialize",
                State::Backup => "backup",
                State::Active => "active",
            },
            priority: self.router.settings().priority,
            since: self.since,
            transitions: self.transitions,
            active: active.map(|(from, _)| from),
            active_priority: active.map(|(_, priority)| priority),
            addresses: self.vips(),
        }
    }
}
