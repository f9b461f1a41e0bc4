//! Taking packets of clients out of what a balancer sends to a real beyond a router: which
//! interfaces have the program for it, and what it is told. The program is the business of
//! `weir_bpf::decap`.

use std::{collections::BTreeSet, fs, io, net::IpAddr};

use serde::{Deserialize, Serialize};
use weir_bpf::decap::{Attachment, DecapConfig, DecapCounts};

use super::{Addresses, Error, Outcome, Result, Step, refused};
use crate::host;

/// What is asked for, and then in the record.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecapSettings {
    /// Whether packets are taken out of IP in IP.
    pub ipip: bool,
    /// The UDP port at which packets are taken out of GUE; `None`: no GUE.
    pub gue_port: Option<u16>,
    /// Senders whose packets are taken out; empty: any sender.
    pub from: BTreeSet<IpAddr>,
    /// Interfaces on which packets are taken out; empty in a request: those with a default
    /// route.
    pub interfaces: BTreeSet<String>,
    /// Virtual addresses for which packets are taken out, known from those that the real
    /// has.
    #[serde(default)]
    pub(super) vips: BTreeSet<IpAddr>,
}

/// Between whom packets are taken out of tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TunnelEnds {
    /// Senders whose packets are taken out; empty: any sender.
    pub from: BTreeSet<IpAddr>,
    /// Virtual addresses for which packets are taken out.
    pub vips: BTreeSet<IpAddr>,
    /// Whether the kernel drops IPv4 packets of clients to whom routes lead by another
    /// interface (rp_filter, RFC 3704 2.2).
    pub is_strict: bool,
}

/// Whether reverse path filtering is strict on an interface by which no default route leads.
fn is_strict(interface: &str) -> bool {
    let of = |name: &str| {
        let set = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        set.ok()
            .and_then(|text| text.trim().parse::<u8>().ok())
            .unwrap_or(0)
    };
    let is_default = host::with_default_route()
        .iter()
        .any(|name| name == interface);
    of("all").max(of(interface)) == 1 && !is_default
}

/// Packets in tunnels, by their fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Taken out, for the host's stack.
    pub taken: u64,
    /// Left as they were: from nobody of `from`.
    pub stranger: u64,
    /// Left as they were: for no virtual address.
    pub other: u64,
    /// Left as they were: outer packets in fragments.
    pub fragment: u64,
    /// Dropped: a header is cut or contradicts itself.
    pub malformed: u64,
    /// Dropped: the kernel did not take the outer header off.
    pub refused: u64,
}

impl From<DecapCounts> for Packets {
    fn from(counts: DecapCounts) -> Self {
        let DecapCounts {
            taken,
            stranger,
            other,
            fragment,
            malformed,
            refused,
        } = counts;
        Self {
            taken,
            stranger,
            other,
            fragment,
            malformed,
            refused,
        }
    }
}

impl DecapSettings {
    /// See the fields.
    pub fn new(
        ipip: bool,
        gue_port: Option<u16>,
        from: BTreeSet<IpAddr>,
        interfaces: BTreeSet<String>,
    ) -> Self {
        Self {
            ipip,
            gue_port,
            from,
            interfaces,
            vips: BTreeSet::new(),
        }
    }

    /// The settings with interfaces that exist, and where none are named those with a
    /// default route. No balancer may have a virtual address.
    pub(super) fn checked(mut self) -> Result<Self> {
        if self.interfaces.is_empty() {
            self.interfaces = host::with_default_route().into_iter().collect();
        }
        if self.interfaces.is_empty() {
            return refused(
                "no interface has a default route: name those on which the balancer's packets come in (--interface eth0)",
            );
        }
        for name in &self.interfaces {
            index(name)?;
        }
        if let Some(both) = self.vips.iter().find(|vip| self.from.contains(*vip)) {
            return refused(format!(
                "{both} is a virtual address and the address of a balancer (--from); allowed: the balancer's own address, from which its outer packets come"
            ));
        }
        if self.vips.is_empty() {
            return refused("--decap names no virtual address, and none was added before");
        }
        Ok(self)
    }

    fn words(&self) -> String {
        let ipip = self.ipip.then(|| "IP in IP".to_owned());
        let gue = self.gue_port.map(|port| format!("GUE at port {port}"));
        let kinds: Vec<_> = ipip.into_iter().chain(gue).collect();
        kinds.join(", ")
    }

    pub(super) fn step(&self, interface: &str, outcome: Outcome) -> Step {
        Step {
            kind: "decap",
            name: format!("{} on {interface}", self.words()),
            outcome,
            value: None,
            ends: matches!(outcome, Outcome::Set | Outcome::Kept).then(|| TunnelEnds {
                from: self.from.clone(),
                vips: self.vips.clone(),
                is_strict: self.vips.iter().any(IpAddr::is_ipv4) && is_strict(interface),
            }),
            packets: None,
        }
    }

    /// Has the program on these interfaces do as is said here.
    pub(super) fn attach(&self, namespace: u64, there: &Addresses) -> Result<()> {
        let is_own = |(index, addr): &&(u32, IpAddr)| {
            *index != there.loopback && !addr.is_loopback() && !self.vips.contains(addr)
        };
        let own: BTreeSet<_> = there.all.iter().filter(is_own).map(|(_, a)| *a).collect();
        let is_reached = |addr: &&IpAddr| match addr {
            IpAddr::V4(_) => true,
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        let has = |is_v4: bool| own.iter().filter(is_reached).any(|a| a.is_ipv4() == is_v4);
        let is_sent = |is_v4: bool| match self.from.is_empty() {
            true => !has(!is_v4),
            false => self.from.iter().any(|addr| addr.is_ipv4() == is_v4),
        };
        let families = [("IPv4", true), ("IPv6", false)];
        let lacking = { families.iter() }.find(|(_, is_v4)| is_sent(*is_v4) && !has(*is_v4));
        if let Some((family, _)) = lacking {
            return refused(format!(
                "this host has no {family} address of its own yet, to which balancers of that family (--from) send outer packets"
            ));
        }
        let config = DecapConfig {
            ipip: self.ipip,
            gue_port: self.gue_port,
            own: own.into_iter().collect(),
            vips: self.vips.iter().copied().collect(),
            balancers: self.from.iter().copied().collect(),
        };
        for name in &self.interfaces {
            let attached = Attachment::of(namespace, name).attach(&config, index(name)?);
            attached.map_err(bpf(format!("take packets out of tunnels on {name}")))?;
        }
        Ok(())
    }
}

/// Whether the program is attached to this interface.
pub(super) fn is_on(namespace: u64, interface: &str) -> bool {
    index(interface).is_ok_and(|index| Attachment::of(namespace, interface).is_on(index))
}

/// Packets that the program on this interface has counted.
pub(super) fn packets(namespace: u64, interface: &str) -> Option<Packets> {
    let counts = Attachment::of(namespace, interface).counts();
    counts.ok().map(Packets::from)
}

/// Takes it away there; false: it was gone.
pub(super) fn detach(namespace: u64, interface: &str) -> Result<bool> {
    let detached = Attachment::of(namespace, interface).detach();
    detached.map_err(bpf(format!("take the program away from {interface}")))
}

fn index(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name)
        .map_err(|_| Error::Refused(format!("this host has no interface {name:?}")))
}

fn bpf(what: String) -> impl FnOnce(weir_bpf::Error) -> Error {
    move |error| Error::System {
        what,
        error: io::Error::other(error),
    }
}
