//! The threads beside the workers and the tick: one has the classes follow their
//! inputs, one tells what the packet path tells.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use jiff::Timestamp;
use weir_core::{Prefix, Reason};
use weir_enforce::Backend;
use weir_events::{Event, Events, Kind, Packet, alerts::Alerts};

use super::TICK;
use crate::{
    access::{classes::ClassSync, exemptions::Exempt, geo::GeoService, lists::Lists},
    bans::Bans,
    config::Config,
    current::Current,
    decoy::Decoy,
    service::Service,
    threads::Pulse,
};

/// How long the packet-event thread waits before it looks whether to stop.
const EVENT_WAIT: Duration = Duration::from_millis(250);
/// How long the look at the other inputs of the classes may wait for news of a list.
const LISTS_WAIT: Duration = Duration::from_secs(1);

/// Has lists and geofence follow what they are made of; on a thread of its own: a
/// rebuild of everything takes a good part of a second.
pub(super) struct ClassKeeper {
    config: Arc<Current<Config>>,
    lists: Lists,
    classes: Arc<ClassSync>,
    alerts: Arc<Alerts>,
    stopping: Arc<AtomicBool>,
}

impl ClassKeeper {
    pub fn of(service: &Service) -> Self {
        Self {
            config: service.config.clone(),
            lists: service.lists.clone(),
            classes: service.classes.clone(),
            alerts: service.alerts.clone(),
            stopping: service.stopping.clone(),
        }
    }

    pub fn run(self, pulse: &Pulse) {
        let mut seen = self.lists.changes();
        while !self.stopping.load(Ordering::Relaxed) {
            pulse.beat();
            match self.classes.follow(|| self.config.get().fences()) {
                Ok(()) => self.alerts.clear("classes"),
                Err(error) => self.alerts.raise("classes", error.to_string()),
            }
            seen = self.lists.wait_for_change(seen, LISTS_WAIT);
        }
    }
}

/// Tells packets that were dropped, and has those at decoy ports judged.
pub(super) struct PacketTeller {
    backend: Arc<dyn Backend>,
    decoy: Arc<Decoy>,
    exempt: Arc<Exempt>,
    bans: Arc<Bans>,
    geography: Arc<GeoService>,
    events: Arc<Events>,
    alerts: Arc<Alerts>,
    stopping: Arc<AtomicBool>,
}

impl PacketTeller {
    pub fn of(service: &Service) -> Self {
        Self {
            backend: service.backend.clone(),
            decoy: service.decoy.clone(),
            exempt: service.exempt.clone(),
            bans: service.bans.clone(),
            geography: service.geography.clone(),
            events: service.events.clone(),
            alerts: service.alerts.clone(),
            stopping: service.stopping.clone(),
        }
    }

    pub fn run(self, pulse: &Pulse) {
        let Some(events) = self.backend.packet_events() else {
            return;
        };
        while !self.stopping.load(Ordering::Relaxed) {
            pulse.beat();
            let polled = events.poll_events(EVENT_WAIT, &mut |packet| {
                let (exempt, events) = (&self.exempt, &self.events);
                if let Some(ban) = self.decoy.packet(&packet, exempt, events) {
                    self.bans.enforce(vec![ban]);
                }
                let dropped = packet.reason.is_drop() || packet.reason == Reason::Observed;
                if !dropped || !self.events.has_readers() {
                    return;
                }
                let port = match packet.port {
                    0 => String::new(),
                    port => format!(" to port {port}"),
                };
                // It may have gone since.
                let interface = nix::net::if_::if_indextoname(packet.ifindex).ok();
                let interface = interface.map(|name| name.to_string_lossy().into_owned());
                let mut event = Event::new(
                    Kind::Drop,
                    Timestamp::now(),
                    format!(
                        "{}: protocol {}{port}, interface {}",
                        packet.reason,
                        packet.protocol,
                        interface
                            .clone()
                            .unwrap_or_else(|| packet.ifindex.to_string())
                    ),
                );
                event.interface = interface;
                event.subject = Some(Prefix::host(packet.source));
                event.packet = Some(Packet {
                    reason: packet.reason,
                    protocol: packet.protocol,
                    port: packet.port,
                    interface: packet.ifindex,
                });
                self.events.tell(&self.geography.placed(event));
            });
            match polled {
                Ok(_) => self.alerts.clear("packet-events"),
                Err(error) => {
                    self.alerts.raise("packet-events", error.to_string());
                    thread::sleep(TICK);
                }
            }
        }
    }
}
