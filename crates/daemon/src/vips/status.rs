//! Virtual addresses, interfaces and virtual routers as they are shown.

use std::{collections::BTreeMap, net::IpAddr};

use serde::Serialize;
use weir_core::neighbour::claim::{Claim, Standing};

use super::{
    Vips,
    address::Keeps,
    vrrp::{Group, VrrpStatus},
};
use crate::host::mac_text;

/// A virtual address as shown.
#[derive(Debug, Clone, Serialize)]
pub struct VipStatus {
    /// The virtual address itself.
    pub address: IpAddr,
    /// The interface that has the address, or is to have it.
    pub interface: String,
    /// `held`, `probing` (it is asked whether somebody has it), `refused` (somebody has),
    /// `contested` (it is held, and somebody says that he has it), `unmanaged` (an
    /// administrator has added it), `standby` (the virtual router is another host's) or
    /// `absent` (its interface is not there or down).
    pub state: &'static str,
    /// The link-layer address of somebody else who has it.
    pub other: Option<String>,
    /// How often others said that they have it.
    pub conflicts: u64,
}

/// An interface with virtual addresses, as counted.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    /// The interface's name in the configuration.
    pub interface: String,
    /// ARP and neighbour discovery that was not as its RFC has it.
    pub malformed: u64,
    /// Advertisements of virtual routers that were refused, by the reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Vips {
    /// The state of all virtual routers, as shown.
    pub fn routers(&self) -> Vec<VrrpStatus> {
        self.state().groups.iter().map(Group::status).collect()
    }

    /// The addresses as they are.
    pub fn status(&self) -> Vec<VipStatus> {
        let state = self.state();
        let status = state.vips.iter().map(|(address, vip)| {
            let claim = match &vip.keeps {
                Keeps::Weir(claim) | Keeps::Router(claim, _) => claim.as_ref(),
                Keeps::Administrator => None,
            };
            let (shown, other) = match (&vip.keeps, claim.map(Claim::standing)) {
                (Keeps::Administrator, _) => ("unmanaged", None),
                (Keeps::Router(..), None) => ("standby", None),
                (_, None) => ("absent", None),
                (_, Some(Standing::Probing)) => ("probing", None),
                (_, Some(Standing::Held)) => ("held", None),
                (_, Some(Standing::Refused(mac))) => ("refused", Some(mac_text(mac))),
                (_, Some(Standing::Contested(mac))) => ("contested", Some(mac_text(mac))),
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

    /// The interfaces of the virtual addresses, as counted since the daemon's start.
    pub fn segments(&self) -> Vec<SegmentStatus> {
        let state = self.state();
        let segments = state.segments.iter().map(|(name, watched)| {
            let mut counts = watched.before.clone();
            watched
                .open
                .iter()
                .for_each(|open| counts.add(&open.counts));
            SegmentStatus {
                interface: name.clone(),
                malformed: counts.malformed,
                refused: counts.refused,
            }
        });
        segments.collect()
    }
}
