//! Load balancing in the kernel: which address and port is whose, which real a new flow
//! goes to, and what was sent (`bpf/balance/balance.h`). The maps are the instance's; the
//! program that forwards is the business of `answers`.

mod acl;
mod loads;
mod quic;
mod service_table;

pub use acl::MAX_NETWORKS;
pub use loads::{CountedReal, LiveFlows};
pub use quic::QuicServer;

use std::{
    collections::HashMap, mem::offset_of, net::IpAddr, ops::RangeInclusive, sync::Arc,
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{Protocol, balance::acl::Exceptions};

use crate::{
    abi,
    error::{Context, Error, Result},
    fault,
    memory::Words,
    skeleton::answer::types::{
        balance_bucket, balance_load, balance_real, balance_real_counter, balance_ring,
        balance_rules, balance_service, balance_service_counter, balance_services, balance_tunnel,
    },
};

/// Slots of a pool's ring.
pub const SLOTS: usize = abi::BALANCE_SLOTS as usize;
/// Pools of a configuration.
pub const MAX_POOLS: usize = abi::BALANCE_POOLS as usize;
/// Reals of all pools together.
pub const MAX_REALS: usize = abi::BALANCE_REALS as usize;
/// Virtual addresses times ports, of all pools together.
pub const MAX_SERVICES: usize = abi::BALANCE_SERVICES as usize;
/// Flows that find room if nothing else is said.
pub const DEFAULT_FLOWS: u32 = abi::BALANCE_FLOWS;
/// Flows that may be asked for.
pub const FLOWS: RangeInclusive<u32> = 1024..=1 << 22;
/// What one of these takes of the kernel's memory, in bytes.
pub const FLOW_BYTES: u32 = size_of::<balance_bucket>() as u32 * 2 / abi::BALANCE_BUCKET;

/// The flows that find room where so many are asked for: the next power of two.
pub fn table_for(flows: u32) -> u32 {
    let bounded = flows.clamp(*FLOWS.start(), *FLOWS.end());
    bounded.next_power_of_two()
}

/// Buckets of a table for so many flows.
pub(crate) fn buckets_for(flows: u32) -> u32 {
    2 * table_for(flows) / abi::BALANCE_BUCKET
}

use service_table::ServiceTable;
pub use service_table::VirtualService;

const PORT_WORDS: usize = 2 * abi::PORT_FEATURE_WORDS as usize;
const PORTS_A_WORD: usize = abi::PORTS_A_WORD as usize;

/// How a new flow finds its slot in the ring of its pool.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotBy {
    /// By a hash of both addresses and ports.
    #[default]
    Flow = abi::BALANCE_BY_FLOW,
    /// By turns: the next slot, counted on each CPU.
    Turn = abi::BALANCE_BY_TURN,
    /// By a hash of the client's address.
    Source = abi::BALANCE_BY_SOURCE,
    /// By a hash of the client's address and port.
    SourcePort = abi::BALANCE_BY_SOURCE_PORT,
    /// Of two slots, by the flow's keyed hash, that whose real has fewer live flows for its
    /// weight.
    Least = abi::BALANCE_BY_LEAST,
}

/// Rules of a pool, which hold for all its services.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PoolRules {
    /// How flows find their slot.
    pub slot_by: SlotBy,
    /// The access list; `None`: every client is allowed.
    pub acl: Option<Arc<Exceptions>>,
    /// Whether a real drains that may have flows of this pool ([`Real::drains`]): packets
    /// of other pools are not asked what they begin.
    pub any_drains: bool,
    /// After so long without a packet a flow of UDP leaves a real that drains, for nothing
    /// else says that it has ended; `None`: never.
    pub udp_silence: Option<Duration>,
    /// The reals whose QUIC connections are known by their connection IDs; the server IDs
    /// are of one length, and each is of one real.
    pub quic_servers: Vec<QuicServer>,
    /// With [`SlotBy::Least`]: the numbers of the reals in the ring, and their weights.
    pub weights: Vec<(u32, u32)>,
}

impl PoolRules {
    /// `udp_silence` as the kernel counts it, with `hz` timer ticks a second: one more than
    /// begins in that time, of which the first may be nearly over; less than half of what
    /// can be told from a wrapped count.
    fn silent_windows(&self, hz: u64) -> u16 {
        let windows = |time: Duration| {
            let ticks = time.as_secs().saturating_mul(hz);
            ((ticks >> abi::EVENT_WINDOW_SHIFT) + 1).min(0x7fff) as u16
        };
        self.udp_silence.map_or(0, windows)
    }
}

/// A real that takes packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Real {
    /// A hash of the real's name: see [`real_id`].
    pub id: u64,
    /// The link-layer address of the real, or of the router before it.
    pub dest: [u8; 6],
    /// The link-layer address of the interface through which the real is reached.
    pub source: [u8; 6],
    /// The index of that interface.
    pub ifindex: u32,
    /// The VLAN of the frames that it takes, which keep their tag; 0: those without one.
    pub vlan: u16,
    /// How packets reach it beyond a router, which `dest` is then; `None`: as they are.
    pub tunnel: Option<Tunnel>,
    /// Whether the real takes no new flows and keeps those that it has: a TCP connection
    /// that is opened from the port of an earlier one is a new flow.
    pub drains: bool,
}

/// The outer header of what goes to a real beyond a router; both addresses are of one
/// family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The source of the outer header: an address of this host.
    pub source: IpAddr,
    /// The destination of the outer header: the real's own address.
    pub dest: IpAddr,
    /// The largest packet on the way, in bytes, outer header included.
    pub mtu: u32,
    /// The port of GUE; `None`: IP in IP.
    pub gue_port: Option<u16>,
}

impl Tunnel {
    /// Bytes of the outer header.
    pub fn overhead(&self) -> u32 {
        let ip = if self.dest.is_ipv4() { 20 } else { 40 };
        ip + self.gue_port.map_or(0, |_| 8)
    }
}

/// Packets, bytes and flows sent to one real.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RealCount {
    /// Packets that left for it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Flows that were new.
    pub flows: u64,
}

/// What came for one virtual address and port.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ServiceCount {
    /// Packets that were sent to a real.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets that were dropped because there was no real.
    pub unserved: u64,
    /// Packets of flows that were not remembered: more were new than are in one second.
    pub unremembered: u64,
    /// Packets that were dropped because the access list denies their client.
    pub denied: u64,
    /// Flows that had several packets, the last one lately, and were forgotten for new ones
    /// of this service: there is no room for more.
    pub displaced: u64,
    /// Packets whose QUIC connection ID says their real.
    pub quic_placed: u64,
    /// Packets with the server ID of no real that is there, in their QUIC connection ID.
    pub quic_unknown: u64,
    /// Flows that were new, and are remembered.
    pub flows: u64,
}

/// The number by which flows know a real again: FNV-1a of its pool and address, of 63
/// bits, never 0.
pub fn real_id(pool: &str, addr: IpAddr) -> u64 {
    let text = format!("{pool}\n{addr}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash & !abi::BALANCE_DRAINS).max(1)
}

/// A real as the kernel has it from an earlier daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownReal {
    /// The real's number: flows know their real by it and its [`real_id`].
    pub number: u32,
    /// The link-layer address to which packets for the real go: its own, or its router's.
    pub dest: [u8; 6],
    /// The index of the interface by which they leave.
    pub ifindex: u32,
    /// The VLAN of the frames; 0: those without one, and those in a tunnel.
    pub vlan: u16,
    /// Whether they go in an outer packet, to a router.
    pub is_tunneled: bool,
}

/// A real of this number, and its [`real_id`], from its value in the map; `None`: nobody's.
fn known_real(number: u32, value: &[u8]) -> Option<(u64, KnownReal)> {
    let id = id_of(value).filter(|id| *id != 0)?;
    let dest = value.get(offset_of!(balance_real, dest)..)?.first_chunk()?;
    let ifindex = value.get(offset_of!(balance_real, ifindex)..)?;
    let vlan = value.get(offset_of!(balance_real, vlan)..)?;
    let vlan = u16::from_ne_bytes(*vlan.first_chunk()?);
    let is_tunneled = vlan == abi::BALANCE_TUNNELED as u16;
    let known = KnownReal {
        number,
        dest: *dest,
        ifindex: u32::from_ne_bytes(*ifindex.first_chunk()?),
        vlan: if is_tunneled { 0 } else { vlan },
        is_tunneled,
    };
    Some((id, known))
}

/// Whose real this value of the map is, whether it drains or not.
fn id_of(real: &[u8]) -> Option<u64> {
    let bytes = real.get(offset_of!(balance_real, id)..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes) & !abi::BALANCE_DRAINS)
}

/// The kernel's side of it.
pub struct Balancer {
    /// Ports, services, rings, reals, counters of reals and of services, access lists,
    /// rules of pools, tunnels, server IDs of QUIC, the table of flows, loads of reals.
    maps: [MapHandle; 12],
    ports: Words,
    services: ServiceTable,
    acls: acl::Written,
    flows: u32,
    loads: loads::Loads,
}

const BITS: u64 = {
    let (mut bits, mut port) = (0, 0);
    while port < abi::PORTS_A_WORD {
        bits |= (abi::PORT_BALANCE as u64) << (port * abi::PORT_FEATURE_BITS);
        port += 1;
    }
    bits
};

impl Balancer {
    /// Over the maps of a generation, in the order that `maps` has. `buckets`: those of the
    /// table of flows.
    pub(crate) fn map(buckets: u32, maps: [MapHandle; 12]) -> Result<Self> {
        let ports = Words::map(&maps[0], PORT_WORDS, "the ports of pools")?;
        let services = ServiceTable::map(&maps[1])?;
        let loads = loads::Loads::map(&maps[11])?;
        Ok(Self {
            maps,
            ports,
            services,
            acls: acl::Written::default(),
            flows: buckets / 2 * abi::BALANCE_BUCKET,
            loads,
        })
    }

    /// The flows that find room.
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// The flows in the kernel's table, to be counted; the memory of the table is mapped at
    /// the first time.
    ///
    /// # Errors
    /// The kernel does not hand its memory out.
    pub fn live_flows(&self) -> Result<Arc<LiveFlows>> {
        self.loads.live_flows(&self.maps[10])
    }

    /// The flows that live of the real of a number, as far as is known: [`LiveFlows::correct`].
    pub fn active_flows(&self, number: u32) -> u64 {
        self.loads.flows(number)
    }

    /// Whether any port belongs to a pool.
    pub fn is_there(&self) -> bool {
        (0..PORT_WORDS).any(|n| self.ports.load(n) & BITS != 0)
    }

    /// Makes these the services, for everybody; see [`Self::write_services_for`].
    pub fn write_services(&self, services: &[VirtualService]) -> Result<()> {
        self.write_services_for(services, &[], 1)
    }

    /// Makes these the services, numbered as they come, and says which ports are
    /// looked up at all; see also [`crate::BanTable::set_port_features`]. Their rings are
    /// to be there. `pools`: what holds for them, by their numbers. A packet is judged by
    /// an old access list or by the new one. `hz`: timer ticks a second.
    pub fn write_services_for(
        &self,
        services: &[VirtualService],
        pools: &[PoolRules],
        hz: u64,
    ) -> Result<()> {
        if services.len() > MAX_SERVICES {
            return Err(Error::refused(
                "tell the kernel the virtual addresses",
                format!(
                    "there are {} with their ports: at most {MAX_SERVICES}",
                    services.len()
                ),
            ));
        }
        fault::refuse(&format!("services-{}", services.len()))
            .context(|| "tell the kernel the virtual addresses".into())?;
        let map = &self.maps[7];
        let numbers = 0..MAX_POOLS as u32;
        let before = numbers
            .clone()
            .map(|pool| {
                let value = map.lookup(&pool.to_ne_bytes(), MapFlags::ANY);
                let value = value.context(|| "read who may use a pool".into())?;
                let word = value.as_deref().and_then(|value| value.get(..4));
                let word = word.and_then(|word| word.try_into().ok());
                Ok(word.map_or(0, u32::from_ne_bytes))
            })
            .collect::<Result<Vec<_>>>()?;
        let acls = self.acls.write(&self.maps[6], pools, &before)?;
        quic::write(&self.maps[9], pools)?;
        let rules_of = |pool: u32| balance_rules {
            acl: acls.get(pool as usize).copied().unwrap_or(0),
            method: pools
                .get(pool as usize)
                .map_or(SlotBy::Flow, |pool| pool.slot_by) as u8,
            quic_server_id: pools
                .get(pool as usize)
                .and_then(|pool| pool.quic_servers.first())
                .map_or(0, |server| server.server_id.bytes().len() as u8),
            udp_silence: pools
                .get(pool as usize)
                .map_or(0, |pool| pool.silent_windows(hz)),
        };
        let has_rules = |pool: u32| {
            let rules = rules_of(pool);
            let drains = pools.get(pool as usize).is_some_and(|pool| pool.any_drains);
            rules.acl != 0 || rules.method != 0 || rules.quic_server_id != 0 || drains
        };
        let write_rules = |of_those_with: bool| {
            for pool in numbers
                .clone()
                .filter(|pool| has_rules(*pool) == of_those_with)
            {
                let value = bytes_of(&rules_of(pool));
                map.update(&pool.to_ne_bytes(), &value, MapFlags::ANY)
                    .context(|| "tell the kernel the rules of a pool".into())?;
            }
            Ok::<_, Error>(())
        };
        for (number, weight) in pools.iter().flat_map(|pool| &pool.weights) {
            self.loads.set_weight(*number, *weight);
        }
        // What services refer to comes first, and what none refers to any more goes last.
        write_rules(true)?;
        let placed: Vec<_> = services
            .iter()
            .map(|service| {
                let flag = u32::from(has_rules(service.pool)) * abi::BALANCE_HAS_RULES;
                VirtualService {
                    pool: service.pool | flag,
                    ..service.clone()
                }
            })
            .collect();
        self.services.write(&placed)?;
        write_rules(false)?;
        self.acls.forget_others(&self.maps[6], &acls)?;
        quic::forget_others(&self.maps[9], pools)?;
        let mut words = vec![0u64; PORT_WORDS];
        for service in services {
            let half = usize::from(service.protocol == Protocol::Udp) * PORT_WORDS / 2;
            let Some(port) = service.port.map(usize::from) else {
                words[half..half + PORT_WORDS / 2].fill(BITS);
                continue;
            };
            words[half + port / PORTS_A_WORD] |= u64::from(abi::PORT_BALANCE)
                << (port % PORTS_A_WORD * abi::PORT_FEATURE_BITS as usize);
        }
        for (n, bits) in words.into_iter().enumerate() {
            self.ports.set_masked(n, BITS, bits);
        }
        Ok(())
    }

    /// Makes these the ring of a pool: numbers of reals, or `None` where no real is
    /// alive. While it is written, each slot has its old real or its new one.
    pub fn write_ring(&self, pool: u32, ring: &[Option<u16>]) -> Result<()> {
        assert_eq!(
            ring.len(),
            SLOTS,
            "a ring has as many slots as the kernel's"
        );
        // SAFETY: numbers only.
        let mut value: balance_ring = unsafe { std::mem::zeroed() };
        value.reals.fill(abi::BALANCE_NOBODY as u16);
        for (slot, real) in value.reals.iter_mut().zip(ring) {
            *slot = real.unwrap_or(abi::BALANCE_NOBODY as u16);
        }
        self.maps[2]
            .update(&pool.to_ne_bytes(), &bytes_of(&value), MapFlags::ANY)
            .context(|| "tell the kernel which real is for which flow".into())
    }

    /// The reals that an earlier daemon has written, by [`real_id`].
    ///
    /// # Errors
    /// The kernel does not hand the map out.
    pub fn known_reals(&self) -> Result<HashMap<u64, KnownReal>> {
        let mut known = HashMap::new();
        for number in 0..MAX_REALS as u32 {
            let what = || "read which reals the kernel has".into();
            let found = self.maps[3]
                .lookup(&number.to_ne_bytes(), MapFlags::ANY)
                .context(what)?;
            let found = found.as_deref();
            known.extend(found.and_then(|value| known_real(number, value)));
        }
        Ok(known)
    }

    /// Makes this the real of a number; `None`: it takes nothing, and flows that were its
    /// go where the ring says.
    pub fn write_real(&self, number: u32, real: Option<Real>) -> Result<()> {
        let value = |real: Real| balance_real {
            id: real.id | if real.drains { abi::BALANCE_DRAINS } else { 0 },
            dest: real.dest,
            source: real.source,
            ifindex: real.ifindex,
            here: real.source,
            vlan: match real.tunnel {
                Some(_) => abi::BALANCE_TUNNELED as u16,
                None => real.vlan,
            },
        };
        let nobody = Real {
            id: 0,
            dest: [0; 6],
            source: [0; 6],
            ifindex: 0,
            vlan: 0,
            tunnel: None,
            drains: false,
        };
        let map = &self.maps[3];
        let next = bytes_of(&value(real.unwrap_or(nobody)));
        let what = || "tell the kernel about a real".into();
        let before = map
            .lookup(&number.to_ne_bytes(), MapFlags::ANY)
            .context(what)?;
        let tunnel = real
            .and_then(|real| real.tunnel)
            .map(|t| bytes_of(&outer(&t)));
        let tunnels = &self.maps[8];
        let is_same = match &tunnel {
            Some(tunnel) => {
                let before = tunnels.lookup(&number.to_ne_bytes(), MapFlags::ANY);
                before.context(what)?.as_ref() == Some(tunnel)
            }
            None => true,
        };
        if is_same && before.as_ref() == Some(&next) {
            return Ok(());
        }
        // The kernel copies word by word, so a packet may find one half of each: of
        // another real, or of a tunnel, it must not. One real's new link-layer address, or
        // that it drains, is told without a moment in which its flows would find nobody and
        // go elsewhere; a packet with half of it is lost at worst, and sent again.
        let vlan = offset_of!(balance_real, vlan);
        let stays = tunnel.is_none()
            && before.as_deref().is_some_and(|before| {
                id_of(before) == id_of(&next) && before.get(vlan..) == next.get(vlan..)
            });
        if !stays {
            map.update(
                &number.to_ne_bytes(),
                &bytes_of(&value(nobody)),
                MapFlags::ANY,
            )
            .context(what)?;
        }
        if let Some(tunnel) = tunnel {
            let written = tunnels.update(&number.to_ne_bytes(), &tunnel, MapFlags::ANY);
            written.context(what)?;
        }
        map.update(&number.to_ne_bytes(), &next, MapFlags::ANY)
            .context(what)
    }

    /// What was sent to the real of a number.
    pub fn real_count(&self, number: u32) -> Result<RealCount> {
        let [packets, bytes, flows] = sum(&self.maps[4], number)?;
        Ok(RealCount {
            packets,
            bytes,
            flows,
        })
    }

    /// What came for the service of a number.
    pub fn service_count(&self, number: u32) -> Result<ServiceCount> {
        let [
            packets,
            bytes,
            unserved,
            unremembered,
            denied,
            displaced,
            quic_placed,
            quic_unknown,
            flows,
        ] = sum(&self.maps[5], number)?;
        Ok(ServiceCount {
            packets,
            bytes,
            unserved,
            unremembered,
            denied,
            displaced,
            quic_placed,
            quic_unknown,
            flows,
        })
    }

    /// Begins to count anew what is sent to the real of a number: another has it now.
    pub fn forget_real_count(&self, number: u32) -> Result<()> {
        forget(&self.maps[4], number, REAL_COUNTER)
    }

    /// Begins to count a service's packets anew.
    pub fn forget_service_count(&self, number: u32) -> Result<()> {
        forget(&self.maps[5], number, SERVICE_COUNTER)
    }
}

fn forget(map: &MapHandle, number: u32, bytes: usize) -> Result<()> {
    let cpus = libbpf_rs::num_possible_cpus().context(|| "count the CPUs".into())?;
    map.update_percpu(
        &number.to_ne_bytes(),
        &vec![vec![0; bytes]; cpus],
        MapFlags::ANY,
    )
    .context(|| "begin a counter of the balancer anew".into())
}

const REAL_COUNTER: usize = size_of::<balance_real_counter>();
const SERVICE_COUNTER: usize = size_of::<balance_service_counter>();

/// A counter of `N` numbers, summed over all CPUs.
fn sum<const N: usize>(map: &MapHandle, number: u32) -> Result<[u64; N]> {
    let cpus = map
        .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
        .context(|| "read the counters of the balancer".into())?
        .unwrap_or_default();
    let mut sum = [0; N];
    for cpu in cpus {
        for (total, part) in sum.iter_mut().zip(cpu.chunks_exact(8)) {
            *total += u64::from_ne_bytes(part.try_into().expect("eight bytes"));
        }
    }
    Ok(sum)
}

/// Sixteen bytes for either family.
pub(crate) fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn outer(tunnel: &Tunnel) -> balance_tunnel {
    balance_tunnel {
        source: mapped(tunnel.source),
        dest: mapped(tunnel.dest),
        mtu: tunnel.mtu,
        port: tunnel.gue_port.unwrap_or(0).to_be(),
        v4: tunnel.dest.is_ipv4().into(),
        pad: 0,
    }
}

/// The bytes of a type of the ABI.
fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: types of `bpf/abi/balance.h`, numbers without padding between them; what
    // is behind the last one is zero, as whoever makes one sees to.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
        .to_vec()
}

const _: () = assert!(
    size_of::<balance_service>() == 8 * ServiceTable::SLOT_WORDS
        && size_of::<balance_services>() == size_of::<balance_service>() * ServiceTable::SLOTS + 8
        && size_of::<balance_rules>() == 8
        && size_of::<balance_ring>() == 131_080
        && size_of::<balance_real>() == 32
        && size_of::<balance_tunnel>() == 40
        && size_of::<balance_load>() == 8 * loads::WORDS
);
