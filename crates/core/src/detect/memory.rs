//! Connections of the last minutes, and which of their attempts have counted:
//! a program writes several lines about one.

use std::{collections::hash_map::RandomState, hash::BuildHasher, net::IpAddr};

use jiff::Timestamp;

/// How many connections are remembered. One that is forgotten (two shared a
/// slot) may have one attempt counted twice, never too few.
const CONNECTIONS: usize = 4096;

/// How long messages of one connection belong together: sshd's login grace
/// time is 2 minutes by default.
const CONNECTION_SECONDS: i64 = 600;

/// How a pattern's messages belong to others of their connection; labels are
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bond {
    /// Labels that a message announces: it counts, and what completes them tells of the
    /// same attempt.
    pub announces: u8,
    pub completes: u8,
    /// Whether the message counts only where nothing of its connection has counted before.
    pub unless_counted: bool,
}

impl Bond {
    /// Must be remembered, or asked, what has counted of a connection? (Nothing is
    /// completed that nothing announces.)
    pub fn is_for_others(&self) -> bool {
        self.announces != 0 || self.unless_counted
    }
}

/// What a message says of its connection. A client can use a port again within
/// minutes: another process serves it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub addr: IpAddr,
    /// 0: the message names none.
    pub port: u16,
    /// The process that wrote the message; 0: nobody knows.
    pub pid: u32,
    /// The host that wrote it ([`Connections::host`]): hosts that write to one log
    /// may each serve the same port of a client by a process of the same number.
    pub host: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    slots: Vec<Option<Counted>>,
    keys: Keys,
    /// The host that was named last, and its number.
    last_host: (Vec<u8>, u64),
    /// Something was announced of a connection whose port nobody named.
    without_port: bool,
}

/// Secret, or a client could choose ports whose connections share a slot.
#[derive(Clone, Debug)]
struct Keys {
    names: RandomState,
    slots: [u64; 4],
}

impl Default for Keys {
    fn default() -> Self {
        let names = RandomState::new();
        let slots = [0, 1, 2, 3].map(|n: u64| names.hash_one(n));
        Self { names, slots }
    }
}

/// A connection of which something has counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    connection: Connection,
    announced: u8,
    since: Timestamp,
}

impl Connections {
    /// How many of a message's attempts count, given what has counted of its
    /// connection.
    pub fn counts(
        &mut self,
        bond: &Bond,
        connection: Connection,
        mut attempts: u32,
        time: Timestamp,
    ) -> u32 {
        if self.slots.is_empty() {
            self.slots.resize(CONNECTIONS, None);
        }
        let slot = self.slot(&connection);
        let known = self.in_slot(slot, &connection, time).is_some();
        let mut completed = self.complete(slot, &connection, bond, time);
        if !completed && self.without_port && connection.port != 0 {
            let announced = Connection {
                port: 0,
                ..connection
            };
            completed = self.complete(self.slot(&announced), &announced, bond, time);
        }
        if completed {
            // One of them was announced, and has counted.
            attempts -= 1;
            if attempts == 0 {
                return 0;
            }
        }
        if bond.unless_counted {
            if known {
                return 0;
            }
            attempts = 1;
        }
        let before = self.in_slot(slot, &connection, time);
        let announced = before.map_or(0, |counted| counted.announced) | bond.announces;
        self.without_port |= connection.port == 0 && announced != 0;
        self.slots[slot] = Some(Counted {
            connection,
            announced,
            since: time,
        });
        attempts
    }

    /// Was what this message completes announced by another one? Once.
    fn complete(
        &mut self,
        slot: usize,
        connection: &Connection,
        bond: &Bond,
        time: Timestamp,
    ) -> bool {
        match self.in_slot(slot, connection, time) {
            Some(counted) if counted.announced & bond.completes != 0 => {
                counted.announced &= !bond.completes;
                true
            }
            _ => false,
        }
    }

    /// The number of the host of this name; 0 for one that nobody names.
    pub fn host(&mut self, name: Option<&[u8]>) -> u64 {
        let Some(name) = name else { return 0 };
        let (last, number) = &mut self.last_host;
        if last != name {
            last.clear();
            last.extend_from_slice(name);
            *number = self.keys.names.hash_one(name);
        }
        *number
    }

    /// Two multiplications: one is computed for each failure, and the standard
    /// library's hash costs five times as much.
    fn slot(&self, connection: &Connection) -> usize {
        let addr = match connection.addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        let addr = addr.to_bits();
        let process = u64::from(connection.pid) << 16 | u64::from(connection.port);
        let [a, b, c, d] = self.keys.slots;
        let of_addr = folded((addr >> 64) as u64 ^ a, addr as u64 ^ b);
        folded(of_addr ^ process ^ c, connection.host ^ d) as usize % CONNECTIONS
    }

    fn in_slot(
        &mut self,
        slot: usize,
        connection: &Connection,
        time: Timestamp,
    ) -> Option<&mut Counted> {
        self.slots[slot].as_mut().filter(|c| {
            c.connection == *connection
                && (time.as_second() - c.since.as_second()).abs() <= CONNECTION_SECONDS
        })
    }
}

/// Both halves of a product, put together.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Bond = Bond {
        announces: 1,
        completes: 0,
        unless_counted: false,
    };
    const GONE: Bond = Bond {
        announces: 0,
        completes: 0,
        unless_counted: true,
    };

    fn connection(n: u16) -> Connection {
        Connection {
            addr: IpAddr::from([192, 0, 2, 7]),
            port: 1000 + n,
            pid: 0,
            host: 0,
        }
    }

    /// Whatever differs, in nearly all cases: four of a thousand pairs share one.
    #[test]
    fn connections_have_slots_of_their_own() {
        let all = Connections::default();
        let one = Connection {
            addr: IpAddr::from([192, 0, 2, 7]),
            port: 1000,
            pid: 77,
            host: 5,
        };
        let mut slots = std::collections::HashSet::new();
        for n in 1..=100u16 {
            let [.., high, low] = n.to_be_bytes();
            let others = [
                Connection {
                    port: 1000 + n,
                    ..one
                },
                Connection {
                    pid: 77 + u32::from(n),
                    ..one
                },
                Connection {
                    host: 5 + u64::from(n),
                    ..one
                },
                Connection {
                    addr: IpAddr::from([192, 1, high, low]),
                    ..one
                },
                Connection {
                    addr: IpAddr::from([0x2a00, 0, 0, n, 0, 0, 0, 1]),
                    ..one
                },
                Connection {
                    addr: IpAddr::from([0x2a00, 0, 0, 0, 0, 0, 0, n]),
                    ..one
                },
            ];
            slots.extend(others.map(|connection| all.slot(&connection)));
        }
        // 559 of 4096 by chance.
        assert!(slots.len() > 480, "{} of 600", slots.len());
    }

    #[test]
    fn a_host_is_another_one_by_its_name() {
        let mut all = Connections::default();
        let [a, b] = ["a", "b"].map(|name| all.host(Some(name.as_bytes())));
        assert_ne!(a, b);
        assert_eq!(
            [None, Some("a"), Some("b")].map(|name| all.host(name.map(str::as_bytes))),
            [0, a, b]
        );
    }

    /// Nearly all have a slot of their own; the hash is another one at each start.
    #[test]
    fn a_hundred_connections_are_remembered_beside_each_other() {
        let mut all = Connections::default();
        let time = Timestamp::UNIX_EPOCH;
        for n in 0..100 {
            assert_eq!(all.counts(&FAILED, connection(n), 1, time), 1);
        }
        let again = (0..100).filter(|n| all.counts(&GONE, connection(*n), 1, time) > 0);
        let forgotten = again.count();
        assert!(forgotten < 50, "{forgotten} of 100");
    }

    #[test]
    fn a_connection_is_forgotten_after_its_time() {
        let mut all = Connections::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let one = connection(0);
        assert_eq!(all.counts(&FAILED, one, 1, at(0)), 1);
        assert_eq!(all.counts(&GONE, one, 1, at(CONNECTION_SECONDS)), 0);
        assert_eq!(all.counts(&GONE, one, 1, at(CONNECTION_SECONDS + 1)), 1);
        // Lines are not always in order.
        assert_eq!(all.counts(&GONE, one, 1, at(1)), 0);
        assert_eq!(all.counts(&GONE, one, 1, at(0)), 1);
    }
}
