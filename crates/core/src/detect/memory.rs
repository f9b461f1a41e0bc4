//! Connections of the last minutes, and which of their attempts have counted:
//! a program writes several lines about one.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hash, Hasher},
    net::IpAddr,
};

use jiff::Timestamp;

/// How many connections are remembered. One that is forgotten (two shared a
/// slot) may have one attempt counted twice, never too few.
const CONNECTIONS: usize = 4096;

/// How long messages of one connection belong together: sshd's login grace
/// time is 2 minutes by default.
const CONNECTION_SECONDS: i64 = 600;

/// How a pattern's messages belong to others of their connection; labels are
/// bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bond {
    /// It counts, and what completes this tells of the same attempt.
    pub announces: u8,
    pub completes: u8,
    /// It counts only where nothing has counted before.
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
}

impl Hash for Connection {
    /// All at once: one is computed for each failure.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let addr = match self.addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&addr.octets());
        bytes[16..20].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.port.to_ne_bytes());
        state.write(&bytes);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    slots: Vec<Option<Counted>>,
    hash: RandomState,
    /// Something was announced of a connection whose port nobody named.
    without_port: bool,
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

    fn slot(&self, connection: &Connection) -> usize {
        self.hash.hash_one(connection) as usize % CONNECTIONS
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
        }
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
