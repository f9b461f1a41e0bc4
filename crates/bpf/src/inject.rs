//! The programs that put options on packets which leave an interface
//! (`bpf/options/inject.bpf.c`), or on the TCP segments of a control group's connections
//! (`bpf/options/connections.bpf.c`). Nothing of them is pinned: they end with whoever attached
//! them.

mod connections;

pub use connections::{ConnectionConfig, ConnectionInjector, MAX_TCP_OPTIONS};

use std::{
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi,
    attachment::{Hook, Link},
    balance::mapped,
    error::{Context, Error, Result},
    skeleton::inject::InjectSkelBuilder,
    small_maps::sum_of,
};

/// Destination networks that may be named at most.
pub const MAX_NETWORKS: usize = abi::INJECT_NETWORKS as usize - 1;

/// The bytes that packets get, and which packets get them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct InjectConfig {
    /// Whether frames of the interface begin with an Ethernet header.
    pub is_ethernet: bool,
    /// Destinations (address and prefix length) whose packets are meant; empty: all.
    pub networks: Vec<(IpAddr, u8)>,
    /// The IP protocol of packets that are meant.
    pub protocol: Option<u8>,
    /// The source port of packets that are meant.
    pub source_port: Option<u16>,
    /// The destination port of packets that are meant.
    pub dest_port: Option<u16>,
    /// Of TCP, only SYN and SYN-ACK are meant.
    pub syn_only: bool,
    /// Options of IPv4 headers, of a multiple of four bytes.
    pub ip: Vec<u8>,
    /// Options of TCP headers, of a multiple of four bytes.
    pub tcp: Vec<u8>,
    /// What goes behind UDP datagrams of an even length; with its length it sums up to zero.
    pub udp_even: Vec<u8>,
    /// What goes behind UDP datagrams of an odd length, one byte more.
    pub udp_odd: Vec<u8>,
    /// IPv6 extension headers, of a multiple of eight bytes.
    pub extensions: Vec<u8>,
    /// The protocol number of the first extension header.
    pub first_extension: u8,
    /// Whether the kernel cuts segments behind all of the extension headers.
    pub may_be_segmented: bool,
    /// Offset of the last extension header, in which the number of what follows is written.
    pub last_extension: u32,
}

/// Packets of the chosen flows, by what became of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct InjectCounts {
    /// Packets that left with the options.
    pub changed: u64,
    /// Left as they were: with the options they would exceed the interface's MTU.
    pub too_big: u64,
    /// Left as they were: several segments in one packet (GSO).
    pub gso: u64,
    /// Left as they were: fragments.
    pub fragment: u64,
    /// Left as they were: the header has no room for the options.
    pub no_room: u64,
    /// Left as they were: they have extension headers or a surplus area already, or, of a
    /// connection, such an option.
    pub other: u64,
    /// Left as they were: their lengths contradict each other.
    pub malformed: u64,
    /// Left as they were: the kernel made no room.
    pub refused: u64,
    /// Dropped: the kernel failed after a part of the packet was changed.
    pub broken: u64,
}

/// The program with its tables.
pub struct Injector {
    program: OwnedFd,
    counters: MapHandle,
}

/// Copies bytes into a field that the program has for them.
fn fill(what: &str, field: &mut [u8], bytes: &[u8]) -> Result<u32> {
    let room = field.len();
    match field.get_mut(..bytes.len()) {
        Some(field) => field.copy_from_slice(bytes),
        None => {
            return Err(Error::refused(
                format!("put {what} on packets"),
                format!("they have {} bytes; allowed: up to {room}", bytes.len()),
            ));
        }
    }
    Ok(bytes.len() as u32)
}

/// Says to whom packets go that are meant: by address and prefix length; none: all.
fn put_networks(map: &impl MapCore, networks: &[(IpAddr, u8)]) -> Result<()> {
    let what = || "put options on packets".to_owned();
    if networks.len() > MAX_NETWORKS {
        let why = format!(
            "there are {} destinations: at most {MAX_NETWORKS}",
            networks.len()
        );
        return Err(Error::refused(what(), why));
    }
    let put = |addr: IpAddr, length: u8, is_meant: u32| {
        let bits = u32::from(length) + if addr.is_ipv4() { 96 } else { 0 };
        let key = [&bits.to_ne_bytes()[..], &mapped(addr)].concat();
        map.update(&key, &is_meant.to_ne_bytes(), MapFlags::ANY)
            .context(what)
    };
    if networks.is_empty() {
        return put([0u8; 16].into(), 0, 1);
    }
    // IPv4 is no part of ::/0.
    put([0u8; 4].into(), 0, 0)?;
    networks
        .iter()
        .try_for_each(|(addr, length)| put(*addr, *length, 1))
}

/// The counters of a program, summed over all CPUs.
fn read_counts(counters: &MapHandle) -> Result<InjectCounts> {
    let read = |number| sum_of(counters, number, "packets with options");
    Ok(InjectCounts {
        changed: read(abi::INJECT_CHANGED)?,
        too_big: read(abi::INJECT_TOO_BIG)?,
        gso: read(abi::INJECT_GSO)?,
        fragment: read(abi::INJECT_FRAGMENT)?,
        no_room: read(abi::INJECT_NO_ROOM)?,
        other: read(abi::INJECT_OTHER)?,
        malformed: read(abi::INJECT_MALFORMED)?,
        refused: read(abi::INJECT_REFUSED)?,
        broken: read(abi::INJECT_BROKEN)?,
    })
}

impl Injector {
    /// Loads the program for this configuration.
    ///
    /// # Errors
    /// Options are too long, networks too many, or the kernel refuses the program.
    pub fn load(config: &InjectConfig) -> Result<Self> {
        let what = || "load the program that puts options on packets".into();
        let mut storage = MaybeUninit::uninit();
        let mut open = InjectSkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        let inject = &mut rodata.expect("the object has rodata").inject;
        inject.l2 = if config.is_ethernet { 14 } else { 0 };
        inject.protocol = config.protocol.map_or(256, u16::from);
        inject.syn_only = config.syn_only.into();
        inject.source_port = config.source_port.unwrap_or(0).to_be();
        inject.dest_port = config.dest_port.unwrap_or(0).to_be();
        inject.ip_len = fill("IPv4 options", &mut inject.ip, &config.ip)?;
        inject.tcp_len = fill("TCP options", &mut inject.tcp, &config.tcp)?;
        inject.even_len = fill("UDP options", &mut inject.even, &config.udp_even)?;
        inject.odd_len = fill("UDP options", &mut inject.odd, &config.udp_odd)?;
        inject.ext_len = fill("extension headers", &mut inject.ext, &config.extensions)?;
        inject.ext_first = config.first_extension.into();
        inject.ext_last = config.last_extension;
        inject.ext_single = (!config.may_be_segmented).into();
        let skel = open.load().context(what)?;
        put_networks(&skel.maps.inject_networks, &config.networks)?;
        let program = skel.progs.weir_inject.as_fd().try_clone_to_owned();
        Ok(Self {
            program: program.context(what)?,
            counters: MapHandle::try_from(&skel.maps.inject_counters).context(what)?,
        })
    }

    /// The loaded program, for BPF_PROG_RUN.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Puts options on what leaves the interface, for as long as the link lives: it ends
    /// with the process at the latest.
    ///
    /// # Errors
    /// The kernel refuses, or has no tcx (Linux 6.6).
    pub fn attach(&self, ifindex: u32) -> Result<Link> {
        Link::attach(self.program(), ifindex, Hook::Egress)
            .context(|| "attach at tcx egress (Linux 6.6 has it)".into())
    }

    /// The program's counters, summed over all CPUs.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&self) -> Result<InjectCounts> {
        read_counts(&self.counters)
    }
}
