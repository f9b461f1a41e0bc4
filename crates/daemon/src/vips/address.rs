//! One virtual address: taken from and given to its interface, claimed, told of.

use std::{io, net::IpAddr, time::Duration};

use weir_core::neighbour::{
    self,
    claim::{self, Claim, Standing},
};

use super::{FOLLOW, Vips, segment::LinkListener};
use crate::host::{self, Interface, addresses, mac_text};

/// A virtual address of a configuration.
pub(super) struct Vip {
    pub(super) interface: String,
    pub(super) keeps: Keeps,
}

/// Who sees to it that a virtual address is on its interface.
pub(super) enum Keeps {
    /// The administrator: it was there before, and stays.
    Administrator,
    /// weir; none: its interface is not there.
    Weir(Option<Claim>),
    /// The active one of a virtual router; none: another host is. Whoever does not renew
    /// it within so many seconds has it no more.
    Router(Option<Claim>, u32),
}

impl Keeps {
    pub(super) fn claim(&mut self) -> Option<&mut Claim> {
        match self {
            Self::Administrator => None,
            Self::Weir(claim) | Self::Router(claim, _) => claim.as_mut(),
        }
    }
}

/// What the alert about an address is about.
pub(super) fn about(address: IpAddr) -> String {
    format!("vip-{address}")
}

impl Vips {
    /// Takes an address of weir's from its interface; true: it is not there.
    pub(super) fn remove(&self, interface: &str, address: IpAddr) -> bool {
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

    pub(super) fn follow_vip(
        &self,
        now: Duration,
        address: IpAddr,
        vip: &mut Vip,
        there: &Interface,
        is_there: bool,
        is_active: bool,
    ) {
        let name = &vip.interface;
        match &mut vip.keeps {
            Keeps::Administrator => (),
            Keeps::Weir(claim @ None) if is_there => *claim = Some(Claim::held(now)),
            Keeps::Weir(claim @ None) => *claim = Some(Claim::probing(now)),
            Keeps::Weir(Some(claim)) => {
                if claim.is_held() && !is_there && self.take(there.index, address, name, None) {
                    claim.announce(now);
                }
            }
            // Of an earlier daemon, or of before its interface went.
            Keeps::Router(None, _) if is_there && !is_active => {
                self.remove(name, address);
            }
            Keeps::Router(claim, seconds) if is_active => {
                let is_known = claim.is_some() && is_there;
                let renewed = match is_known {
                    true => addresses::hold(there.index, address, Some(*seconds)).is_ok(),
                    false => self.take(there.index, address, name, Some(*seconds)),
                };
                if !is_known && renewed {
                    *claim = Some(Claim::held(now));
                }
            }
            Keeps::Router(..) => (),
        }
    }

    pub(super) fn take(
        &self,
        index: u32,
        address: IpAddr,
        name: &str,
        seconds: Option<u32>,
    ) -> bool {
        match addresses::hold(index, address, seconds) {
            Ok(()) => {
                tracing::info!("holds {address} on {name}");
                self.alerts.clear(&about(address));
                true
            }
            Err(error) => {
                let message = format!("cannot add {address} to {name}: {error}");
                self.alerts.raise(&about(address), message);
                false
            }
        }
    }

    /// Does what is due for an address. Returns when the next thing is.
    pub(super) fn look_after(
        &self,
        now: Duration,
        address: IpAddr,
        vip: &mut Vip,
        open: &LinkListener,
    ) -> Option<Duration> {
        let (mac, name) = (open.interface.mac, &vip.interface);
        let claim = vip.keeps.claim()?;
        let before = claim.standing();
        while let Some(action) = claim.due(now) {
            let sent = match action {
                claim::Action::Probe => open.send(&neighbour::probe(mac, address)),
                claim::Action::Announce => open.send(&neighbour::announcement(mac, address)),
                claim::Action::Take => {
                    if !self.take(open.interface.index, address, name, None) {
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
            self.tell(address, name, claim.standing());
        }
        claim.next()
    }

    pub(super) fn tell(&self, address: IpAddr, name: &str, standing: Standing) {
        match standing {
            Standing::Probing => (),
            Standing::Held => self.alerts.clear(&about(address)),
            Standing::Refused(mac) => {
                let message = format!(
                    "{address} is not taken: {} on {name} has it; it is asked for again until that one is gone",
                    mac_text(mac)
                );
                self.alerts.raise(&about(address), message);
            }
            Standing::Contested(mac) => {
                let message = format!(
                    "{} on {name} says that it has {address}, which this host holds: who connects may reach the one or the other",
                    mac_text(mac)
                );
                self.alerts.raise(&about(address), message);
            }
        }
    }
}

/// Takes an address from an interface; one that is not there is none that stays.
pub(super) fn release(index: u32, address: IpAddr) -> io::Result<()> {
    match addresses::remove(index, address) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
        done => done,
    }
}
