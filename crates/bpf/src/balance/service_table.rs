//! Which address and port is a service's, as the kernel looks it up
//! (`bpf/balance/pools.h`): a table with open addressing in shared memory. A service that
//! stays is not moved, so no packet of its misses it while others come and go.

use std::{collections::HashSet, net::IpAddr, os::fd::AsFd};

use weir_core::Protocol;

use crate::{
    abi,
    error::{Error, Result},
    memory::Words,
};

/// A virtual address with a port, and the pool that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualService {
    /// The virtual address.
    pub addr: IpAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The service's port, as the client asks for it; `None`: all of the address and
    /// protocol that no other service names.
    pub port: Option<u16>,
    /// The number of its pool.
    pub pool: u32,
}

pub(super) struct ServiceTable(Words);

/// The first three words of a slot: address, address, port and protocol.
type Key = [u64; 3];

impl ServiceTable {
    pub(super) const SLOTS: usize = abi::BALANCE_SERVICE_SLOTS as usize;
    pub(super) const SLOT_WORDS: usize = 4;
    /// Behind the slots: whether there are services of all ports.
    const ALL_PORTS: usize = Self::SLOTS * Self::SLOT_WORDS;

    pub(super) fn map(fd: impl AsFd) -> Result<Self> {
        let words = Self::ALL_PORTS + 1;
        Ok(Self(Words::map(fd, words, "virtual addresses")?))
    }

    /// Makes these the services.
    ///
    /// # Errors
    /// One of them finds no slot, which takes more services with one hash than chance has.
    pub(super) fn write(&self, services: &[VirtualService]) -> Result<()> {
        let has_all_ports = services.iter().any(|service| service.port.is_none());
        if has_all_ports {
            self.0.store(Self::ALL_PORTS, 1);
        }
        let keys: Vec<_> = services.iter().map(key).collect();
        let kept: HashSet<_> = keys.iter().collect();
        let clear = |of_all_ports: bool| {
            for slot in (0..Self::SLOTS).filter(|slot| self.place(*slot) != 0) {
                let key = self.key(slot);
                if is_of_all_ports(key) == of_all_ports && !kept.contains(&key) {
                    self.0.store(slot * Self::SLOT_WORDS + 3, 0);
                }
            }
        };
        let put = |of_all_ports: bool| {
            let places = (1u64..).zip(services).zip(&keys);
            places
                .filter(|((_, service), _)| service.port.is_none() == of_all_ports)
                .try_for_each(|((number, service), key)| self.put(*key, number, service))
        };
        // In this order a port that comes to be named, or is no more, is always served. Where
        // there is no room for that, those that are gone go first.
        if put(true).is_err() {
            clear(true);
            clear(false);
            put(true)?;
        }
        clear(false);
        if put(false).is_err() {
            clear(true);
            put(false)?;
        }
        clear(true);
        if !has_all_ports {
            self.0.store(Self::ALL_PORTS, 0);
        }
        Ok(())
    }

    /// Gives a service its place in the order of counters, where it stands or in a free slot.
    fn put(&self, key: Key, number: u64, service: &VirtualService) -> Result<()> {
        let is_there = |slot: &usize| self.place(*slot) != 0 && self.key(*slot) == key;
        let is_free = |slot: &usize| self.place(*slot) == 0;
        let mut slots = slots_of(key);
        let slot = slots.clone().find(is_there).or_else(|| slots.find(is_free));
        let Some(slot) = slot else {
            let port = service.port.map(|port| port.to_string());
            let (addr, port) = (service.addr, port.as_deref().unwrap_or("all"));
            return Err(Error::refused(
                "tell the kernel a virtual address",
                format!("{addr} port {port}: there is no room for it"),
            ));
        };
        let at = slot * Self::SLOT_WORDS;
        for (n, word) in key.into_iter().enumerate() {
            self.0.store(at + n, word);
        }
        self.0.store(at + 3, number | u64::from(service.pool) << 32);
        Ok(())
    }

    fn key(&self, slot: usize) -> Key {
        [0, 1, 2].map(|n| self.0.load(slot * Self::SLOT_WORDS + n))
    }

    fn place(&self, slot: usize) -> u64 {
        self.0.load(slot * Self::SLOT_WORDS + 3)
    }
}

/// The slots in which a service may stand, from the hash of its key on.
fn slots_of(key: Key) -> impl Iterator<Item = usize> + Clone {
    let first = hash(key);
    let probes = abi::BALANCE_PROBES as usize;
    (0..probes).map(move |n| (first as usize + n) % ServiceTable::SLOTS)
}

/// The hash of a key, as `balance_service_slot` computes it.
fn hash([addr0, addr1, port]: Key) -> u32 {
    let hash = addr0
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(addr1.wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
        .wrapping_add(port.wrapping_mul(0x1656_67b1_9e37_79f9));
    ((hash ^ hash >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 32) as u32
}

fn key(service: &VirtualService) -> Key {
    let addr = match service.addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let octets = addr.octets();
    let (words, _) = octets.as_chunks();
    [
        u64::from_ne_bytes(words[0]),
        u64::from_ne_bytes(words[1]),
        u64::from(service.protocol.number()) << 16 | u64::from(service.port.unwrap_or(0).to_be()),
    ]
}

fn is_of_all_ports([.., port]: Key) -> bool {
    port & 0xffff == 0
}

#[cfg(test)]
mod tests {
    use std::{slice, thread};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const MAX_SERVICES: usize = abi::BALANCE_SERVICES as usize;

    fn table() -> ServiceTable {
        let file = memfd_create("services", MemfdFlags::CLOEXEC).expect("memory");
        let bytes = (8 * (ServiceTable::ALL_PORTS + 1)).next_multiple_of(4096);
        ftruncate(&file, bytes as u64).expect("its size");
        ServiceTable::map(&file).expect("it maps")
    }

    /// Finds a service as the kernel would: its counter's number plus one, and its pool's.
    fn find(table: &ServiceTable, service: &VirtualService) -> Option<(u64, u64)> {
        let of_all_ports = VirtualService {
            port: None,
            ..service.clone()
        };
        let asked = match table.0.load(ServiceTable::ALL_PORTS) {
            0 => vec![service],
            _ => vec![service, &of_all_ports],
        };
        asked.into_iter().find_map(|service| {
            let key = key(service);
            // One that never was a service's ends the search.
            let slots = slots_of(key).take_while(|slot| table.key(*slot)[2] != 0);
            let mut of_key = slots.filter(|slot| table.key(*slot) == key);
            let place = of_key.find_map(|slot| Some(table.place(slot)).filter(|n| *n != 0))?;
            Some((place & 0xffff_ffff, place >> 32))
        })
    }

    fn services(net: u8, count: usize) -> Vec<VirtualService> {
        (0..count)
            .map(|n| {
                let [_, _, high, low] = (n as u32 / 4).to_be_bytes();
                let addr = match n % 2 {
                    0 => IpAddr::from([10, net, high, low]),
                    _ => {
                        IpAddr::from([0x2001, 0xdb8, net.into(), 0, 0, 0, high.into(), low.into()])
                    }
                };
                VirtualService {
                    addr,
                    protocol: if n % 3 == 0 {
                        Protocol::Udp
                    } else {
                        Protocol::Tcp
                    },
                    port: Some(1 + (n as u16) % 4),
                    pool: n as u32 % 7,
                }
            })
            .collect()
    }

    #[test]
    fn as_many_as_there_may_be_find_room_however_often_they_change() {
        let table = table();
        let mut before = Vec::new();
        for net in 0..30 {
            // A part of the last ones stays, with other numbers.
            let mut now = services(net, MAX_SERVICES - before.len() / 2);
            now.extend(
                before
                    .drain(..)
                    .skip(MAX_SERVICES / 2)
                    .take(MAX_SERVICES / 2),
            );
            now.truncate(MAX_SERVICES);
            now.reverse();
            table.write(&now).unwrap();
            for (number, service) in (1..).zip(&now) {
                assert_eq!(find(&table, service), Some((number, service.pool.into())));
            }
            let used = (0..ServiceTable::SLOTS).filter(|slot| table.place(*slot) != 0);
            assert_eq!(used.count(), now.len());
            before = now;
        }
        table.write(&[]).unwrap();
        assert!(before.iter().all(|gone| find(&table, gone).is_none()));
    }

    #[test]
    fn a_service_of_a_port_goes_before_one_of_all_ports() {
        let table = table();
        for addr in ["192.0.2.80", "2001:db8::80"] {
            let service = |port, protocol, pool| VirtualService {
                addr: addr.parse().unwrap(),
                protocol,
                port,
                pool,
            };
            let tcp = |port, pool| service(port, Protocol::Tcp, pool);
            let (named, all) = (tcp(Some(80), 1), tcp(None, 2));
            let other = service(Some(80), Protocol::Udp, 0);
            for both in [[named.clone(), all.clone()], [all.clone(), named.clone()]] {
                table.write(&both).unwrap();
                let pool_of = |port| find(&table, &tcp(port, 0)).map(|(_, pool)| pool);
                assert_eq!(pool_of(Some(80)), Some(1));
                assert_eq!(
                    (pool_of(Some(81)), pool_of(Some(65535))),
                    (Some(2), Some(2))
                );
                assert_eq!(find(&table, &other), None, "of another protocol");
                table.write(&both[..1]).unwrap();
                let is_all = both[0].port.is_none();
                assert_eq!(pool_of(Some(80)), Some(if is_all { 2 } else { 1 }));
                assert_eq!(pool_of(Some(81)), is_all.then_some(2));
                assert_eq!(table.0.load(ServiceTable::ALL_PORTS), is_all.into());
            }
        }
    }

    #[test]
    fn a_port_that_comes_to_be_named_is_always_served() {
        let table = table();
        let service = |port| VirtualService {
            addr: "2001:db8::80".parse().unwrap(),
            protocol: Protocol::Tcp,
            port,
            pool: 0,
        };
        let (named, all) = (service(Some(80)), service(None));
        table.write(slice::from_ref(&all)).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..400 {
                    let now = if n % 2 == 0 { &named } else { &all };
                    table.write(slice::from_ref(now)).unwrap();
                }
            });
            while !writer.is_finished() {
                // Whoever looks does so twice at once: it may be stopped between two slots.
                let found = find(&table, &named).or_else(|| find(&table, &named));
                assert_eq!(found, Some((1, 0)));
            }
        });
    }

    #[test]
    fn one_that_stays_is_not_moved() {
        let table = table();
        let all = services(1, MAX_SERVICES);
        table.write(&all).unwrap();
        let slot = |service: &VirtualService| {
            let key = key(service);
            slots_of(key).find(|slot| table.key(*slot) == key)
        };
        let (gone, kept) = all.split_at(MAX_SERVICES / 2);
        let before: Vec<_> = kept.iter().map(slot).collect();
        table.write(kept).unwrap();
        assert_eq!(kept.iter().map(slot).collect::<Vec<_>>(), before);
        assert!(gone.iter().all(|gone| find(&table, gone).is_none()));
    }
}
