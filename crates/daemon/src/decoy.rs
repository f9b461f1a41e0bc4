//! Decoy ports: tells the backend which they are (less those that somebody has
//! begun to serve), and turns what comes back into bans. A ban needs proof
//! that the source is real, a completed handshake; what anybody can send in
//! anybody's name makes a `found` event and no more, unless the configuration
//! says `proof = "none"`. Answering and checking cookies is the packet path's
//! (bpf/answer/decoy.h). The tarpit ports go the same way to the backend; who completes
//! handshakes there makes `found` events, and is banned for them where `[tarpit]` says so.

pub mod config;
mod segment;
pub mod tarpit;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{
    Action, Ban, BanSource, PortSet, Prefix, PrefixSet, Protocol, Reason,
    decoy::DecoyPorts,
    detect::{Clock, Finding},
    policy::{Jail, JailLimits, Ledger, Outcome},
};
use weir_enforce::{Backend, Decoys, Error, PacketEvent};
use weir_events::{Event, Events, Kind, alerts::Alerts};
use weir_metrics::Counter;

use crate::{
    access::exemptions::Exempt,
    host,
    judge::{Judge, Judgement, Offence, Suspect},
    metrics::DecoyMetrics,
    store::{Store, clock::Now},
};
use config::{DecoyConfig, Proof};
use tarpit::{TarpitConfig, TarpitStatus};

/// How often the host is asked whether somebody serves a decoy port by now.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// Packets on their way while a ban comes into force belong to the offence that
/// it is for.
const SAME_OFFENCE: Duration = Duration::from_secs(1);
/// Alerts about served decoy ports have this subject.
const SERVED: &str = "decoy-ports";
/// Alerts about served tarpit ports have this subject.
const SERVED_TARPITS: &str = "tarpit-ports";

/// The decoy ports of a daemon.
pub struct Decoy {
    backend: Arc<dyn Backend>,
    alerts: Arc<Alerts>,
    active: Mutex<Option<Arc<Active>>>,
    /// The ledger of the tarpit ports, where they ban.
    tarpit: Mutex<Option<Arc<Ledger>>>,
    /// Held while the backend is told, so that older ports never follow newer.
    changing: Mutex<()>,
    told: Mutex<DecoyState>,
    proofs: Counter,
    bans: Counter,
    strikes: Counter,
    tarpit_handshakes: Counter,
}

struct Active {
    config: DecoyConfig,
    /// A ledger whose only jail is the decoy ports.
    ledger: Ledger,
}

/// What the backend knows, and what it was made from.
#[derive(Default)]
struct DecoyState {
    decoys: Option<Decoys>,
    served: BTreeSet<(Protocol, u16)>,
    looked: Option<Instant>,
}

/// Decoy ports as shown.
#[derive(Debug, Clone, Serialize)]
pub struct DecoyStatus {
    /// The ports as the administrator has typed them.
    pub ports: Vec<String>,
    /// How many ports that is, less those that are served.
    pub open: usize,
    /// Decoy ports that somebody serves by now: not judged.
    pub served: Vec<String>,
    /// `handshake` or `none`.
    pub proof: &'static str,
    /// SYNs answered with a cookie since the tables were made.
    pub answered: u64,
    /// SYNs above the limit, dropped without an answer.
    pub unanswered: u64,
    /// Cookies that came back wrong: guesses, most likely.
    pub wrong_cookies: u64,
    /// Handshakes completed since the daemon's start.
    pub proofs: u64,
    /// Bans made since then.
    pub bans: u64,
    /// Bans in force.
    pub bans_in_force: u64,
    /// Visits without proof that were told since then (rate-limited).
    pub strikes: u64,
}

impl Decoy {
    /// No ports yet, for this backend.
    pub fn new(backend: Arc<dyn Backend>, alerts: Arc<Alerts>, metrics: &DecoyMetrics) -> Self {
        Self {
            backend,
            alerts,
            active: Mutex::default(),
            tarpit: Mutex::default(),
            changing: Mutex::default(),
            told: Mutex::default(),
            proofs: metrics.proofs.clone(),
            bans: metrics.bans.clone(),
            strikes: metrics.strikes.clone(),
            tarpit_handshakes: metrics.tarpit_handshakes.clone(),
        }
    }

    fn active(&self) -> Option<Arc<Active>> {
        self.lock_active().clone()
    }

    fn lock_active(&self) -> MutexGuard<'_, Option<Arc<Active>>> {
        self.active.lock().expect("no holder of this lock panics")
    }

    fn tarpit_ledger(&self) -> MutexGuard<'_, Option<Arc<Ledger>>> {
        self.tarpit.lock().expect("no holder of this lock panics")
    }

    fn told(&self) -> MutexGuard<'_, DecoyState> {
        self.told.lock().expect("no holder of this lock panics")
    }

    /// Takes a configuration on; who offended before is remembered. `own` are the
    /// addresses of this host.
    pub fn configure(
        &self,
        config: Option<&DecoyConfig>,
        tarpit: Option<&TarpitConfig>,
        own: &[IpAddr],
        store: &Store,
    ) {
        let mut active = self.lock_active();
        *active = config.cloned().map(|config| {
            let ledger = ledger(&BanSource::Decoy, &config.limits);
            ledger.set_own(own);
            ledger.restore_history(match active.take() {
                Some(before) => before.ledger.history(),
                None => store.history_of(&BanSource::Decoy),
            });
            Arc::new(Active { config, ledger })
        });
        let mut tarpits = self.tarpit_ledger();
        let limits = tarpit.and_then(|tarpit| tarpit.limits.as_ref());
        // With the same limits it goes on, and so do the handshakes counted so far.
        let before = tarpits.take();
        *tarpits = limits.map(|limits| match before {
            Some(before) if before.jails()[0].limits == *limits => before,
            before => {
                let ledger = ledger(&BanSource::Tarpit, limits);
                ledger.set_own(own);
                ledger.restore_history(match before {
                    Some(before) => before.history(),
                    None => store.history_of(&BanSource::Tarpit),
                });
                Arc::new(ledger)
            }
        });
    }

    /// The lock for a change of configuration: nobody else tells the backend meanwhile.
    pub fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().expect("no holder of this lock panics")
    }

    /// Tells the backend the ports and this host's addresses when they are
    /// others than before; cheap enough for each second.
    /// The configuration and the addresses are asked for when no others can come
    /// any more.
    pub fn follow(
        &self,
        now: impl FnOnce() -> (Option<DecoyConfig>, Option<TarpitConfig>, Vec<IpAddr>),
    ) -> Result<(), weir_enforce::Error> {
        let alone = self.change();
        let (config, tarpit, own) = now();
        self.apply(&alone, config.as_ref(), tarpit.as_ref(), &own)
    }

    /// Puts the ports of a configuration into force that is not in force yet.
    pub fn apply(
        &self,
        _alone: &MutexGuard<'_, ()>,
        config: Option<&DecoyConfig>,
        tarpit: Option<&TarpitConfig>,
        own: &[IpAddr],
    ) -> Result<(), weir_enforce::Error> {
        let mut told = self.told();
        let mut decoys = Decoys::default();
        let (mut served, mut served_tarpits) = (Vec::new(), Vec::new());
        if config.is_some() || tarpit.is_some() {
            if told.looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL) {
                told.served = host::listeners();
                told.looked = Some(Instant::now());
            }
            decoys.ports = config.map_or_else(Default::default, |c| c.ports.clone());
            decoys.tarpit = tarpit.map_or_else(Default::default, |c| c.ports.clone());
            served = remove_served(&mut decoys.ports, &told.served);
            served_tarpits = remove_served(&mut decoys.tarpit, &told.served);
            if let Some(tarpit) = tarpit {
                decoys.addresses = tarpit.addresses.clone();
                if !tarpit.dark.is_empty() {
                    let addresses = host::interface_addresses();
                    decoys.dark = segment::within_networks(&tarpit.dark, &addresses);
                }
                decoys.dark_after = tarpit.dark_after.as_secs() as u32;
            }
            let own: BTreeSet<IpAddr> = own.iter().map(IpAddr::to_canonical).collect();
            decoys.own = own.into_iter().collect();
            // Who shares a network with this host is banned alone.
            if let Some(active) = self.active() {
                active.ledger.set_own(&decoys.own);
            }
            if let Some(ledger) = &*self.tarpit_ledger() {
                ledger.set_own(&decoys.own);
            }
        }
        self.alert_served(SERVED, "decoy", &served);
        self.alert_served(SERVED_TARPITS, "tarpit", &served_tarpits);
        let (addresses, dark) = (decoys.addresses.clone(), decoys.dark.clone());
        if told.decoys.as_ref() != Some(&decoys) {
            weir_enforce::set_decoys(&*self.backend, &decoys)?;
            told.decoys = Some(decoys);
        }
        if let Some(responder) = self.backend.decoys()
            && !(addresses.is_empty() && dark.is_empty())
        {
            let segment = segment::look(&addresses, &dark).map_err(|source| Error::System {
                what: "read the neighbours of this host".into(),
                source,
            })?;
            responder.set_segment(&segment)?;
        }
        Ok(())
    }

    fn alert_served(&self, about: &'static str, section: &str, served: &[String]) {
        if served.is_empty() {
            self.alerts.clear(about);
        } else {
            self.alerts.raise(
                about,
                format!(
                    "somebody serves the {section} port {}: it is none while that lasts; leave it out of ports in [{section}], or look who that is",
                    served.join(", ")
                ),
            );
        }
    }

    /// A packet that the packet path told of; the ban that follows from it.
    #[must_use]
    pub fn packet(&self, packet: &PacketEvent, exempt: &Exempt, events: &Events) -> Option<Ban> {
        if packet.reason == Reason::TarpitHandshake {
            self.tarpit_handshakes.inc();
            let port = port_text(packet.protocol, packet.port);
            let why = format!("completed a handshake with tarpit port {port}");
            events.tell(
                &Event::new(
                    Kind::Found,
                    wall(packet, &Now::read()),
                    format!("{why}, and is held there"),
                )
                .about(Prefix::host(packet.source))
                .by(&BanSource::Tarpit),
            );
            let ledger = self.tarpit_ledger().clone()?;
            return offence(&ledger, &BanSource::Tarpit, packet, why, exempt, events);
        }
        let active = self.active()?;
        match packet.reason {
            Reason::DecoyHandshake => {
                self.proofs.inc();
                let port = port_text(packet.protocol, packet.port);
                let why = format!("completed a handshake with decoy port {port}");
                self.decoy_offence(&active, packet, why, exempt, events)
            }
            Reason::Decoy => self.strike(&active, packet, exempt, events),
            _ => None,
        }
    }

    fn strike(
        &self,
        active: &Active,
        packet: &PacketEvent,
        exempt: &Exempt,
        events: &Events,
    ) -> Option<Ban> {
        self.strikes.inc();
        let port = port_text(packet.protocol, packet.port);
        let sent = packet.scanner.map_or(String::new(), |s| format!(" ({s})"));
        let why = format!("asked decoy port {port}{sent}");
        if active.config.proof == Proof::None {
            let why = format!("{why}, without proof of its address");
            return self.decoy_offence(active, packet, why, exempt, events);
        }
        if events.has_readers() || tracing::enabled!(tracing::Level::DEBUG) {
            events.tell(
                &Event::new(Kind::Found, wall(packet, &Now::read()), why)
                    .about(Prefix::host(packet.source))
                    .by(&BanSource::Decoy),
            );
        }
        None
    }

    fn decoy_offence(
        &self,
        active: &Active,
        packet: &PacketEvent,
        why: String,
        exempt: &Exempt,
        events: &Events,
    ) -> Option<Ban> {
        let ban = offence(
            &active.ledger,
            &BanSource::Decoy,
            packet,
            why,
            exempt,
            events,
        )?;
        self.bans.inc();
        Some(ban)
    }

    /// The whole picture, if there are decoy ports; `in_force`: how many bans there
    /// are, by producer.
    pub fn status(
        &self,
        in_force: &BTreeMap<BanSource, u64>,
    ) -> Result<Option<DecoyStatus>, weir_enforce::Error> {
        let Some(active) = self.active() else {
            return Ok(None);
        };
        let responder = self.backend.decoys();
        let counts = responder.map_or_else(|| Ok(Default::default()), |r| r.decoy_counts())?;
        let told = self.told();
        let open = told.decoys.as_ref().map_or(0, |d| d.ports.len());
        let ports = &active.config.ports;
        let served = told.served.iter().filter(|(p, n)| ports.contains(*p, *n));
        Ok(Some(DecoyStatus {
            ports: active.config.typed.clone(),
            open,
            served: served.map(|(p, n)| port_text(p.number(), *n)).collect(),
            proof: active.config.proof.name(),
            answered: counts.answered,
            unanswered: counts.silent,
            wrong_cookies: counts.wrong,
            proofs: self.proofs.get(),
            bans: self.bans.get(),
            bans_in_force: in_force.get(&BanSource::Decoy).copied().unwrap_or(0),
            strikes: self.strikes.get(),
        }))
    }

    /// The tarpit ports of the configuration in force, if there are any.
    pub fn tarpit_status(
        &self,
        config: Option<&TarpitConfig>,
    ) -> Result<Option<TarpitStatus>, weir_enforce::Error> {
        let Some(config) = config else {
            return Ok(None);
        };
        let responder = self.backend.decoys();
        let counts = responder.map_or_else(|| Ok(Default::default()), |r| r.tarpit_counts())?;
        let told = self.told();
        let open = told.decoys.as_ref().map_or(0, |d| d.tarpit.len());
        let served = remove_served(&mut config.ports.clone(), &told.served);
        Ok(Some(TarpitStatus {
            ports: config.typed.clone(),
            addresses: config.addresses.iter().map(|p| p.to_string()).collect(),
            dark: config.dark.iter().map(|p| p.to_string()).collect(),
            open,
            served,
            resolved: counts.resolved,
            asked: counts.asked,
            crowded: counts.crowded,
            answered: counts.answered,
            held: counts.held,
            unanswered: counts.silent,
            handshakes: self.tarpit_handshakes.get(),
        }))
    }
}

/// Takes the ports that are served out; which of them those are.
fn remove_served(ports: &mut DecoyPorts, served: &BTreeSet<(Protocol, u16)>) -> Vec<String> {
    let mut removed = Vec::new();
    for (protocol, port) in served {
        if ports.contains(*protocol, *port) {
            ports.remove(*protocol, *port);
            removed.push(port_text(protocol.number(), *port));
        }
    }
    removed
}

/// What the only jail of a ledger makes of a packet.
fn offence(
    ledger: &Ledger,
    producer: &BanSource,
    packet: &PacketEvent,
    why: String,
    exempt: &Exempt,
    events: &Events,
) -> Option<Ban> {
    let now = Now::read();
    let at = wall(packet, &now).checked_sub(SAME_OFFENCE);
    let finding = Finding {
        offender: packet.source.into(),
        time: at.unwrap_or(Timestamp::MIN),
        user: None,
        attempts: 1,
        pattern: 0,
        clock: Clock::Source,
    };
    let offence = Offence {
        jail: 0,
        suspect: Suspect::Found(&finding),
        line: &[],
    };
    let mut judge = Judge::new(exempt);
    match judge.judge(ledger, offence, now.wall) {
        Judgement::Judged(Outcome::Ban(mut ban)) => {
            ban.producer = producer.clone();
            ban.reason = why;
            ban.evidence.clear();
            Some(ban)
        }
        // The packet path passes those: this one was on its way.
        Judgement::Exempt(by) => {
            let why = format!("not banned ({why}): {}", by.reason);
            events.tell(
                &Event::new(Kind::Allow, now.wall, why)
                    .about(Prefix::host(packet.source))
                    .by(producer),
            );
            None
        }
        _ => None,
    }
}

/// Counts offences by the rules of jails.
fn ledger(producer: &BanSource, limits: &JailLimits) -> Ledger {
    Ledger::new(vec![Jail {
        name: producer.to_string(),
        limits: limits.clone(),
        scope: PortSet::all(),
        action: Action::Drop,
        ignore: PrefixSet::default(),
        names_prefixes: false,
    }])
}

/// When the packet came, by the wall clock.
fn wall(packet: &PacketEvent, now: &Now) -> Timestamp {
    let ago = Duration::from_nanos(now.boottime.0.saturating_sub(packet.at.0));
    now.wall.checked_sub(ago).unwrap_or(now.wall)
}

fn port_text(protocol: u8, port: u16) -> String {
    match Protocol::from_number(protocol) {
        Some(Protocol::Tcp) => format!("{port}/tcp"),
        Some(Protocol::Udp) => format!("{port}/udp"),
        _ => port.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_core::{
        Until,
        policy::{self, Outcome},
    };

    use super::*;
    use crate::{config::Config, host::Host};

    /// As configured, at ports that no host serves.
    fn config(more: &str) -> DecoyConfig {
        let text = format!("backend = \"dry-run\"\n[decoy]\nports = [\"1/tcp\"]\n{more}");
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        config.decoy.unwrap()
    }

    fn offend(ledger: &Ledger, now: Timestamp) -> Option<Duration> {
        let finding = Finding {
            offender: IpAddr::from([198, 51, 100, 7]).into(),
            time: now - SAME_OFFENCE,
            user: None,
            attempts: 1,
            pattern: 0,
            clock: Clock::Source,
        };
        match ledger.record(0, &finding, &[], now) {
            Outcome::Ban(ban) => match ban.until {
                Until::At(end) => Some(end.duration_since(now).unsigned_abs()),
                Until::Never => panic!("it has an end"),
            },
            _ => None,
        }
    }

    /// G8: a million offences only grow, and stop at the cap; before and after
    /// they went through the database's form.
    #[test]
    fn a_million_offences_only_grow() {
        let ledger_of = |more| ledger(&BanSource::Decoy, &config(more).limits);
        let ledger = ledger_of("");
        let (week, step) = (Duration::from_secs(7 * 86_400), Duration::from_secs(60));
        let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut last = Duration::ZERO;
        for n in 0..1_000_000u32 {
            now += step;
            let time = offend(&ledger, now).expect("each one bans");
            assert!(time >= last && time <= week, "offence {n}: {time:?}");
            let doubled = (Duration::from_secs(900) * 2u32.pow(n.min(20))).min(week);
            assert_eq!(time, doubled, "offence {n}");
            last = time;
        }
        assert_eq!(last, week);

        let after = ledger_of("");
        after.restore_history(ledger.history());
        assert_eq!(offend(&after, now + step), Some(week));
        let most = policy::Offence {
            jail: "decoy".into(),
            subject: "198.51.100.7".parse().unwrap(),
            offences: u32::MAX,
            last: now,
        };
        let after = ledger_of("");
        after.restore_history([most]);
        for n in 1..4 {
            assert_eq!(offend(&after, now + step * n), Some(week));
        }
    }

    #[test]
    fn one_visit_is_one_offence() {
        let ledger = ledger(&BanSource::Decoy, &config("").limits);
        let now = Timestamp::now();
        assert!(offend(&ledger, now).is_some());
        // Of the same scan, on their way while the ban came into force.
        for ms in [0, 1, 500, 1000] {
            assert_eq!(offend(&ledger, now + Duration::from_millis(ms)), None);
        }
        let again = offend(&ledger, now + Duration::from_millis(1001));
        assert_eq!(again, Some(Duration::from_secs(1800)));
    }
}
