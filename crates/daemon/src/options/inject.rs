//! Options on the packets that leave an interface, or on the connections of a control group,
//! until the value goes.

use std::{io, net::IpAddr, path::Path};

use caps::{CapSet, Capability};
pub use weir_bpf::inject::{InjectConfig, InjectCounts, MAX_NETWORKS};
use weir_bpf::{
    attachment::Link,
    device::Device,
    identity::CgroupAt,
    inject::{ConnectionConfig, ConnectionInjector, Injector},
};
use weir_options::Sections;

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
}

/// The right that this process lacks to put options on packets; `None`: it has them.
pub fn missing_right() -> Option<Capability> {
    let has = |right| caps::has_cap(None, CapSet::Effective, right).unwrap_or(true);
    let rights = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];
    let mut missing = rights.into_iter().filter(|right| !has(*right));
    // Root of before Linux 5.8.
    missing.next().filter(|_| !has(Capability::CAP_SYS_ADMIN))
}

/// The packets that get options.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FlowSelector {
    /// Destinations, by address and prefix length; empty: all.
    pub networks: Vec<(IpAddr, u8)>,
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub dest_port: Option<u16>,
    /// Whether of TCP only SYN and SYN-ACK are meant.
    pub syn_only: bool,
}

/// What gets options, for as long as this lives.
pub struct Injection(Place);

enum Place {
    /// What leaves an interface.
    Interface { injector: Injector, link: Link },
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
        let name = interface.to_owned();
        let device = match Device::find(interface) {
            Ok(device) => device,
            Err(error) => return Err(InjectError::Interface { name, error }),
        };
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
            Place::Cgroup(injector) => injector.counts()?,
        })
    }

    /// Whether what gets options is there, and has the program.
    pub fn is_there(&self) -> bool {
        match &self.0 {
            Place::Interface { link, .. } => link.target().is_ok_and(|(index, _)| index != 0),
            Place::Cgroup(injector) => injector.is_there(),
        }
    }

    /// Ends it: packets that leave from now on are as they were made.
    pub fn end(self) {
        match self.0 {
            Place::Interface { link, .. } => link.detach(),
            Place::Cgroup(injector) => injector.end(),
        }
    }
}
