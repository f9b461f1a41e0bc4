//! The threads beside the workers and the tick: one has the classes follow their
//! inputs, one tells what the packet path tells.

use std::{sync::atomic::Ordering, thread, time::Duration};

use jiff::Timestamp;
use weir_core::{Prefix, Reason};
use weir_events::{Event, Kind, Packet};

use super::TICK;
use crate::{service::Service, threads::Pulse};

/// How long the packet-event thread waits before it looks whether to stop.
const EVENT_WAIT: Duration = Duration::from_millis(250);
/// How long the look at the other inputs of the classes may wait for news of a list.
const LISTS_WAIT: Duration = Duration::from_secs(1);

/// Has lists and geofence follow what they are made of; on a thread of its own: a
/// rebuild of everything takes a good part of a second.
pub(super) fn keep_classes(service: &Service, pulse: &Pulse) {
    let mut seen = service.lists.changes();
    while !service.stopping.load(Ordering::Relaxed) {
        pulse.beat();
        match service.classes.follow(|| service.config().fences()) {
            Ok(()) => service.alerts.clear("classes"),
            Err(error) => service.alerts.raise("classes", error.to_string()),
        }
        seen = service.lists.wait_for_change(seen, LISTS_WAIT);
    }
}

/// Tells packets that were dropped, and has those at decoy ports judged.
pub(super) fn tell_packets(service: &Service, pulse: &Pulse) {
    let Some(events) = service.backend.packet_events() else {
        return;
    };
    while !service.stopping.load(Ordering::Relaxed) {
        pulse.beat();
        let polled = events.poll_events(EVENT_WAIT, &mut |packet| {
            let (exempt, events) = (&service.exempt, &service.events);
            if let Some(ban) = service.decoy.packet(&packet, exempt, events) {
                service.enforce(vec![ban]);
            }
            let dropped = packet.reason.is_drop() || packet.reason == Reason::Observed;
            if !dropped || !service.events.has_readers() {
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
            service.events.tell(&service.geography.placed(event));
        });
        match polled {
            Ok(_) => service.alerts.clear("packet-events"),
            Err(error) => {
                service.alerts.raise("packet-events", error.to_string());
                thread::sleep(TICK);
            }
        }
    }
}
