//! Options that the kernel puts on the TCP segments of a control group's connections
//! (`bpf/options/connections.bpf.c`).

use std::{
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
};

use libbpf_rs::{
    MapHandle, libbpf_sys as sys,
    skel::{OpenSkel, SkelBuilder},
};

use super::{InjectCounts, put_networks, read_counts};
use crate::{
    abi,
    error::{Context, Error, Result},
    group_link::ControlGroup,
    identity::CgroupAt,
    object,
    skeleton::connections::ConnectionsSkelBuilder,
};

/// Options that segments may get at most.
pub const MAX_TCP_OPTIONS: usize = abi::INJECT_TCP_OPTIONS as usize;

/// The options that segments get, and which segments get them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Each option, from its kind and length on.
    pub options: Vec<Vec<u8>>,
    /// Peers (address and prefix length) that are meant; empty: all.
    pub networks: Vec<(IpAddr, u8)>,
    /// The port of this host.
    pub local_port: Option<u16>,
    /// The port of the peer.
    pub remote_port: Option<u16>,
    /// Only SYN and SYN-ACK are meant.
    pub syn_only: bool,
}

/// A control group whose connections get options, for as long as this lives.
pub struct ConnectionInjector {
    link: OwnedFd,
    counters: MapHandle,
    cgroup: CgroupAt,
}

impl ConnectionInjector {
    /// Has connections of this control group, and of those in it, get these options from when
    /// they begin.
    ///
    /// # Errors
    /// There are too many options or networks, or the kernel refuses (Linux 5.10 has it).
    pub fn begin(cgroup: &CgroupAt, config: &ConnectionConfig) -> Result<Self> {
        let what = || {
            "load the program that puts options on connections (Linux 5.10 has what it takes)"
                .to_owned()
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = ConnectionsSkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        let inject = &mut rodata.expect("the object has rodata").inject;
        if config.options.len() > MAX_TCP_OPTIONS {
            let why = format!(
                "there are {} options: at most {MAX_TCP_OPTIONS}",
                config.options.len()
            );
            return Err(Error::refused("put options on connections", why));
        }
        for (place, option) in inject.options.iter_mut().zip(&config.options) {
            inject.bytes += super::fill("a TCP option", &mut place.bytes, option)?;
        }
        inject.number = config.options.len() as u32;
        inject.syn_only = config.syn_only.into();
        inject.local_port = config.local_port.unwrap_or(0).into();
        inject.remote_port = config.remote_port.unwrap_or(0).into();
        let skel = open.load().context(what)?;
        put_networks(&skel.maps.inject_networks, &config.networks)?;
        let what_link = || format!("put options on connections of {}", cgroup.path().display());
        let group = ControlGroup::open(cgroup.path())?;
        let group = group.ok_or_else(|| Error::refused(what_link(), "it is gone"))?;
        let program = skel.progs.weir_inject_connections.as_fd();
        let link = group.link(program, sys::BPF_CGROUP_SOCK_OPS, &what_link)?;
        Ok(Self {
            link,
            counters: MapHandle::try_from(&skel.maps.inject_counters).context(what)?,
            cgroup: cgroup.clone(),
        })
    }

    /// Whether the control group is there.
    pub fn is_there(&self) -> bool {
        self.cgroup.is_at(self.cgroup.path())
    }

    /// Segments so far, by what became of them.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&self) -> Result<InjectCounts> {
        read_counts(&self.counters)
    }

    /// Ends it: segments that leave from now on are as they were made.
    pub fn end(self) {
        object::end_link(&self.link);
    }
}
