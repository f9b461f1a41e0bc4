//! What virtual routers (`vrrp`) do to the addresses of a daemon, and what it tells of them.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use jiff::Timestamp;
use weir_core::neighbour::claim::Claim;
use weir_events::{Event, Kind};
use weir_vrrp::packet::ReceivedAdvertisement;

use super::{
    State, Vips,
    address::{Keeps, Vip, about},
    config::VipsConfig,
    segment::LinkListener,
    vrrp::{self, Group},
};

impl Vips {
    /// Takes part in the virtual routers of a configuration, and in no other any more.
    pub(super) fn replace_groups(&self, state: &mut State, config: &VipsConfig) {
        let mut before = std::mem::take(&mut state.groups);
        for router in &config.routers {
            for is_v6 in [false, true] {
                let Some(fresh) = Group::new(router, is_v6) else {
                    continue;
                };
                let is_it = |known: &Group| known.is_v6 == is_v6 && known.is_of(router);
                let group = match before.iter().position(is_it) {
                    None => fresh,
                    Some(at) => {
                        let mut known = before.swap_remove(at);
                        known.config = router.clone();
                        known
                    }
                };
                state.groups.push(group);
            }
        }
        for group in &mut before {
            self.leave(state, group);
            group.forget_alerts(&self.alerts);
        }
    }

    /// Takes no part in a virtual router any more, and says so.
    pub(super) fn leave(&self, state: &mut State, group: &mut Group) {
        let actions = group.router.stop();
        let watched = state.segments.get(&group.config.interface);
        if let Some(open) = watched.and_then(|watched| watched.open.as_ref()) {
            self.carry_out(self.now(), group, open, &mut state.vips, actions);
        }
    }

    /// An advertisement has come that is about this virtual router, or about none here.
    pub(super) fn hear(
        &self,
        now: Duration,
        received: &ReceivedAdvertisement,
        group: Option<&mut Group>,
        open: &mut LinkListener,
        vips: &mut BTreeMap<IpAddr, Vip>,
    ) {
        let Some(group) = group else {
            return open.refuse("unknown-id");
        };
        if let Some(why) = group.refusal(received.from) {
            return open.refuse(why);
        }
        let actions = group.hear(now, received, &self.alerts);
        self.carry_out(now, group, open, vips, actions);
    }

    pub(super) fn carry_out(
        &self,
        now: Duration,
        group: &mut Group,
        open: &LinkListener,
        vips: &mut BTreeMap<IpAddr, Vip>,
        actions: Vec<vrrp::Action>,
    ) {
        for action in actions {
            if let vrrp::Action::Advertise(priority) = action {
                group.advertise(open, priority, &self.alerts);
                continue;
            }
            for address in group.vips() {
                let Some(vip) = vips.get_mut(&address) else {
                    continue;
                };
                let Keeps::Router(claim, seconds) = &mut vip.keeps else {
                    continue;
                };
                match action {
                    vrrp::Action::Take => {
                        let (index, seconds) = (open.interface.index, Some(*seconds));
                        if self.take(index, address, &vip.interface, seconds) {
                            *claim = Some(Claim::held(now));
                            // Without a wait: who has sent to another host sends here.
                            self.look_after(now, address, vip, open);
                        }
                    }
                    vrrp::Action::Release => {
                        *claim = None;
                        self.remove(&vip.interface, address);
                        self.alerts.clear(&about(address));
                    }
                    vrrp::Action::Announce => {
                        if let Some(claim) = claim {
                            claim.announce(now);
                        }
                    }
                    vrrp::Action::Advertise(_) => (),
                }
            }
            if matches!(action, vrrp::Action::Take | vrrp::Action::Release) {
                self.tell_of(group);
            }
        }
    }

    /// Tells that the state of a virtual router has changed.
    pub(super) fn tell_of(&self, group: &mut Group) {
        let message = group.changed();
        tracing::warn!("{message}");
        let mut event = Event::new(Kind::Failover, Timestamp::now(), message);
        event.interface = Some(group.config.interface.clone());
        self.events.tell(&event);
    }
}
