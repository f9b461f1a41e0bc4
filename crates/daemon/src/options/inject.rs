//! Options on the packets that leave an interface, by a program of the kernel's or by
//! netfilter's queue, or on the connections of a control group, until the value goes.

use std::{io, path::Path};

use caps::{CapSet, Capability};
pub use weir_bpf::inject::{InjectConfig, InjectCounts, MAX_NETWORKS};
use weir_bpf::{
    attachment::Link,
    device::Device,
    identity::CgroupAt,
    inject::{ConnectionConfig, ConnectionInjector, Injector},
};
pub use weir_options::FlowSelector;
use weir_options::Sections;

pub use super::queue::QueueError;
use super::queue::QueueInjection;

/// Kinds of interface whose packets have no link-layer header (`ARPHRD_*`): tunnels, WireGuard,
/// PPP, raw IP.
const WITHOUT_HEADER: [u16; 7] = [65534, 768, 769, 776, 778, 823, 519];

/// Why no options are put on packets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InjectError {
    /// The interface is not there, or cannot be asked.
    #[error("interface {name}: {error}")]
    Interface {
        /// The name that was given.
        name: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The interface has another link-layer header than Ethernet's.
    #[error("interface {name} has link-layer headers of kind {kind}; allowed: Ethernet, or none")]
    Kind {
        /// The name that was given.
        name: String,
        /// `ARPHRD_*`.
        kind: u16,
    },
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] weir_bpf::Error),
    /// The queue, or the rules that lead to it, cannot be had.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The right that this process lacks to put options on packets; `None`: it has them.
pub fn missing_right() -> Option<Capability> {
    let has = |right| caps::has_cap(None, CapSet::Effective, right).unwrap_or(true);
    let rights = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];
    let mut missing = rights.into_iter().filter(|right| !has(*right));
    // Root of before Linux 5.8.
    missing.next().filter(|_| !has(Capability::CAP_SYS_ADMIN))
}

fn find(interface: &str) -> Result<Device, InjectError> {
    Device::find(interface).map_err(|error| InjectError::Interface {
        name: interface.to_owned(),
        error,
    })
}

/// What gets options, for as long as this lives.
pub struct Injection(Place);

enum Place {
    /// What leaves an interface.
    Interface { injector: Injector, link: Link },
    /// The same, by way of a queue.
    Queue {
        injection: QueueInjection,
        interface: String,
    },
    /// The TCP connections of a control group.
    Cgroup(ConnectionInjector),
}

impl Injection {
    /// Begins to put these sections on packets that leave the interface of this network
    /// namespace.
    ///
    /// # Errors
    /// There is no such interface, it is of another kind, or the kernel refuses.
    pub fn begin(
        interface: &str,
        sections: &Sections,
        flows: &FlowSelector,
    ) -> Result<Self, InjectError> {
        let device = find(interface)?;
        let name = interface.to_owned();
        if !device.is_ethernet() && !WITHOUT_HEADER.contains(&device.kind) {
            let kind = device.kind;
            return Err(InjectError::Kind { name, kind });
        }
        let injector = Injector::load(&InjectConfig {
            is_ethernet: device.is_ethernet(),
            networks: flows.networks.clone(),
            protocol: flows.protocol,
            source_port: flows.source_port,
            dest_port: flows.dest_port,
            syn_only: flows.syn_only,
            ip: sections.ip.clone(),
            tcp: sections.tcp.clone(),
            udp_even: sections.udp_even.clone(),
            udp_odd: sections.udp_odd.clone(),
            extensions: sections.extensions.bytes.clone(),
            may_be_segmented: sections.extensions.may_be_segmented(),
            first_extension: sections.extensions.first,
            last_extension: sections.extensions.last as u32,
        })?;
        let link = injector.attach(device.index)?;
        Ok(Self(Place::Interface { injector, link }))
    }

    /// The same by way of a queue of netfilter's with this number: superpackets are cut first, so
    /// that each segment has the options, and packets pass as they are if weir is killed.
    ///
    /// # Errors
    /// There is no such interface, another program has the queue, or there is no iptables that
    /// leads packets to it.
    pub fn begin_by_queue(
        interface: &str,
        number: u16,
        sections: &Sections,
        flows: &FlowSelector,
    ) -> Result<Self, InjectError> {
        find(interface)?;
        Ok(Self(Place::Queue {
            injection: QueueInjection::begin(interface, number, sections, flows)?,
            interface: interface.to_owned(),
        }))
    }

    /// Has the kernel write these TCP options (each from its kind and length on) on the
    /// connections of a control group that begin from now on, in any network namespace. The
    /// protocol of `flows` is TCP.
    ///
    /// # Errors
    /// There is no such control group, or the kernel refuses.
    pub fn begin_on_connections(
        cgroup: &Path,
        options: Vec<Vec<u8>>,
        flows: &FlowSelector,
    ) -> Result<Self, InjectError> {
        let config = ConnectionConfig {
            options,
            networks: flows.networks.clone(),
            local_port: flows.source_port,
            remote_port: flows.dest_port,
            syn_only: flows.syn_only,
        };
        let cgroup = CgroupAt::open(Some(cgroup))?;
        Ok(Self(Place::Cgroup(ConnectionInjector::begin(
            &cgroup, &config,
        )?)))
    }

    /// Packets so far, by what became of them.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&self) -> Result<InjectCounts, InjectError> {
        Ok(match &self.0 {
            Place::Interface { injector, .. } => injector.counts()?,
            Place::Queue { injection, .. } => injection.counts(),
            Place::Cgroup(injector) => injector.counts()?,
        })
    }

    /// Whether what gets options is there, and has the program.
    pub fn is_there(&self) -> bool {
        match &self.0 {
            Place::Interface { link, .. } => link.target().is_ok_and(|(index, _)| index != 0),
            Place::Queue {
                injection,
                interface,
            } => injection.is_there(interface),
            Place::Cgroup(injector) => injector.is_there(),
        }
    }

    /// Ends it: packets that leave from now on are as they were made.
    pub fn end(self) {
        match self.0 {
            Place::Interface { link, .. } => link.detach(),
            Place::Queue { injection, .. } => drop(injection),
            Place::Cgroup(injector) => injector.end(),
        }
    }
}
