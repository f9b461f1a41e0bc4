//! Which sockets have something to do, and what the kernel's word for each is.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
};

/// The owner of an event: a kind, a place in the table of that kind, and how often the
/// place was given out before, so that an event of a closed socket finds nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: Kind,
    pub place: u32,
    pub turn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Wake,
    Listener,
    Client,
    Real,
    Datagrams,
}

const KINDS: [Kind; 5] = [
    Kind::Wake,
    Kind::Listener,
    Kind::Client,
    Kind::Real,
    Kind::Datagrams,
];
/// Turns are counted so far, and begin again.
pub(crate) const TURNS: u32 = 1 << 29;

impl Token {
    fn data(self) -> EventData {
        let kind = self.kind as u64;
        EventData::new_u64(kind << 61 | u64::from(self.turn) << 32 | u64::from(self.place))
    }

    fn of(data: EventData) -> Self {
        let word = data.u64();
        Self {
            kind: KINDS[(word >> 61) as usize],
            turn: (word >> 32) as u32 & (TURNS - 1),
            place: word as u32,
        }
    }
}

/// The events of a socket that are told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Interest {
    /// As long as there is something to read.
    Level,
    /// Once, when there is more to read.
    Read,
    /// Also when there is room to write.
    ReadAndWrite,
    /// No events for now.
    Nothing,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let read = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        match self {
            Self::Level => EventFlags::IN,
            Self::Read => read,
            Self::ReadAndWrite => read | EventFlags::OUT,
            Self::Nothing => EventFlags::empty(),
        }
    }
}

/// An epoll instance.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    pub fn add(&self, socket: impl AsFd, token: Token, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.0, socket, token.data(), interest.flags())
    }

    pub fn change(&self, socket: impl AsFd, token: Token, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.0, socket, token.data(), interest.flags())
    }

    /// Waits for so many nanoseconds at most; what has happened is in `events`.
    pub fn wait(&self, events: &mut Vec<Event>, nanoseconds: u32) {
        let time = Timespec {
            tv_sec: (nanoseconds / 1_000_000_000).into(),
            tv_nsec: (nanoseconds % 1_000_000_000).into(),
        };
        events.clear();
        // Interrupted: nothing has happened.
        let _ = epoll::wait(&self.0, rustix::buffer::spare_capacity(events), Some(&time));
    }
}

/// Reads the token and the flags of an event.
pub(crate) fn read(event: &Event) -> (Token, Happened) {
    let (data, flags) = (event.data, event.flags);
    let happened = Happened {
        readable: flags
            .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
        writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
        ended: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
        failed: flags.contains(EventFlags::ERR),
    };
    (Token::of(data), happened)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Happened {
    pub readable: bool,
    pub writable: bool,
    /// Nothing comes behind what can be read now.
    pub ended: bool,
    /// The socket has an error, such as a reset.
    pub failed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_went() {
        for kind in KINDS {
            for (place, turn) in [(0, 0), (u32::MAX, TURNS - 1), (7, 1)] {
                let token = Token { kind, place, turn };
                assert_eq!(Token::of(token.data()), token);
            }
        }
    }
}
