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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bond {
    /// It counts, and what completes this tells of the same attempt.
    pub announces: u8,
    pub completes: u8,
    /// It counts only where nothing has counted before.
    pub unless_counted: bool,
}

/// What a message says of its connection. A client can use a port again within
/// minutes: another process serves it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    pub addr: IpAddr,
    /// 0: the message names none.
    pub port: u16,
    /// The process that wrote the message; 0: nobody knows.
    pub pid: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    slots: Vec<Option<Counted>>,
    hash: RandomState,
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
        let mut known = false;
        // The second look is for an announcement that names no port.
        let without_port = Connection {
            port: 0,
            ..connection
        };
        let looks = [connection, without_port];
        for look in &looks[..if connection.port == 0 { 1 } else { 2 }] {
            if let Some(counted) = self.find(look, time) {
                known |= *look == connection;
                if counted.announced & bond.completes != 0 {
                    counted.announced &= !bond.completes;
                    // One of them was announced, and has counted.
                    attempts -= 1;
                    if attempts == 0 {
                        return 0;
                    }
                    break;
                }
            }
        }
        if bond.unless_counted {
            if known {
                return 0;
            }
            attempts = 1;
        }
        let announced = match self.find(&connection, time) {
            Some(counted) => counted.announced,
            None => 0,
        };
        let slot = self.slot(&connection);
        self.slots[slot] = Some(Counted {
            connection,
            announced: announced | bond.announces,
            since: time,
        });
        attempts
    }

    fn slot(&self, connection: &Connection) -> usize {
        self.hash.hash_one(connection) as usize % CONNECTIONS
    }

    fn find(&mut self, connection: &Connection, time: Timestamp) -> Option<&mut Counted> {
        let slot = self.slot(connection);
        self.slots[slot].as_mut().filter(|c| {
            c.connection == *connection
                && (time.as_second() - c.since.as_second()).abs() <= CONNECTION_SECONDS
        })
    }
}
