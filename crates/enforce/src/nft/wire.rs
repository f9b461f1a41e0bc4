//! Netlink messages of nf_tables as bytes: written into a batch, which the
//! kernel carries out whole or not at all, and read from its answers. Knows the
//! form, not what our table looks like.

use std::io;

/// linux/netfilter/nfnetlink.h
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// Bytes of either.
const CONTROL: usize = 20;
/// linux/netlink.h
pub(super) const REQUEST: u16 = 1;
pub(super) const ACK: u16 = 4;
pub(super) const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// The flag of a deletion that refuses what is still in use.
const NOT_RECURSIVE: u16 = 0x100;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// linux/netfilter.h: rules for both families.
pub(super) const INET: u8 = 1;
/// Rules for the frames of a device.
pub(super) const NETDEV: u8 = 5;

/// The kind of a message: `enum nf_tables_msg_types`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum MessageKind {
    NewTable = 0,
    GetTable = 1,
    DelTable = 2,
    NewChain = 3,
    GetChain = 4,
    NewRule = 6,
    GetRule = 7,
    DelRule = 8,
    NewSet = 9,
    GetSet = 10,
    DelSet = 11,
    NewElements = 12,
    GetElements = 13,
    DelElements = 14,
    GetGeneration = 16,
    NewObject = 18,
    GetObject = 19,
    DelChain = 5,
    /// Linux 6.3: as `DelElements`, but what is not there is no error.
    DestroyElements = 30,
}

impl MessageKind {
    /// Flags of messages that make something, whether it is there or not.
    fn flags(self) -> u16 {
        match self {
            Self::NewTable | Self::NewChain | Self::NewSet => CREATE,
            Self::NewElements | Self::NewObject => CREATE,
            Self::NewRule => CREATE | APPEND,
            _ => 0,
        }
    }
}

/// Messages in one transaction, or a single question.
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// The position at which the last message begins; 0: there is none yet.
    last: usize,
    sequence: u32,
    transaction: bool,
    family: u8,
}

impl Batch {
    /// Begins a transaction: all of it happens, or nothing.
    pub(super) fn new() -> Self {
        let mut batch = Self::empty(true);
        batch.control(BATCH_BEGIN);
        batch.last = 0;
        batch
    }

    /// Begins a transaction about tables of this family.
    pub(super) fn of_family(family: u8) -> Self {
        Self {
            family,
            ..Self::new()
        }
    }

    /// Adds a deletion that fails where something is in the way.
    pub(super) fn delete_empty(&mut self, kind: MessageKind, fill: impl FnOnce(&mut Self)) {
        self.message(kind, REQUEST | NOT_RECURSIVE, fill);
    }

    /// A question of one message.
    pub(super) fn question(
        family: u8,
        kind: MessageKind,
        flags: u16,
        fill: impl FnOnce(&mut Self),
    ) -> Vec<u8> {
        let mut batch = Self {
            family,
            ..Self::empty(false)
        };
        batch.message(kind, REQUEST | flags, fill);
        batch.bytes
    }

    fn empty(transaction: bool) -> Self {
        Self {
            bytes: Vec::new(),
            last: 0,
            sequence: 0,
            transaction,
            family: INET,
        }
    }

    /// Adds what another transaction has.
    pub(super) fn append(&mut self, other: &Self) {
        if !other.is_empty() {
            self.last = self.bytes.len() + other.last - CONTROL;
            self.bytes.extend(&other.bytes[CONTROL..]);
        }
    }

    /// Is there nothing to carry out?
    pub(super) fn is_empty(&self) -> bool {
        self.last == 0
    }

    fn header(&mut self, kind: u16, flags: u16, family: u8, resource: u16) -> usize {
        let begin = self.bytes.len();
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.sequence += 1;
        begin
    }

    fn end(&mut self, begin: usize) {
        let length = (self.bytes.len() - begin) as u32;
        self.bytes[begin..begin + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn control(&mut self, kind: u16) {
        let begin = self.header(kind, REQUEST, 0, SUBSYSTEM);
        self.end(begin);
    }

    fn message(&mut self, kind: MessageKind, flags: u16, fill: impl FnOnce(&mut Self)) {
        let begin = self.header(SUBSYSTEM << 8 | kind as u16, flags, self.family, 0);
        fill(self);
        self.end(begin);
        self.last = begin;
    }

    /// Adds a message; `fill` writes its attributes.
    pub(super) fn add(&mut self, kind: MessageKind, fill: impl FnOnce(&mut Self)) {
        self.message(kind, REQUEST | kind.flags(), fill);
    }

    /// The bytes to send; the last message will be answered.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.transaction {
            let at = self.last + 6;
            let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | ACK;
            self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
            self.control(BATCH_END);
        }
        self.bytes
    }

    /// An attribute of bytes.
    pub(super) fn bytes(&mut self, number: u16, value: &[u8]) {
        self.bytes.extend((4 + value.len() as u16).to_ne_bytes());
        self.bytes.extend(number.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An attribute of text.
    pub(super) fn text(&mut self, number: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(number, &bytes);
    }

    /// A number, in network order as nf_tables has all of them.
    pub(super) fn number(&mut self, number: u16, value: u32) {
        self.bytes(number, &value.to_be_bytes());
    }

    /// A long number.
    pub(super) fn long(&mut self, number: u16, value: u64) {
        self.bytes(number, &value.to_be_bytes());
    }

    /// An attribute of attributes.
    pub(super) fn nest(&mut self, number: u16, fill: impl FnOnce(&mut Self)) {
        let begin = self.bytes.len();
        self.bytes.extend([0; 4]);
        fill(self);
        let length = (self.bytes.len() - begin) as u16;
        self.bytes[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[begin + 2..begin + 4].copy_from_slice(&(number | NESTED).to_ne_bytes());
    }
}

/// One message of an answer.
pub(super) enum NetlinkReply<'a> {
    /// Attributes of what was asked for.
    Found(Attributes<'a>),
    /// A message was carried out, or not.
    Outcome(io::Result<()>),
    /// The end of the answer.
    Done,
}

/// The messages of one datagram.
pub(super) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkReply<'_>> {
    std::iter::from_fn(move || {
        let head = bytes.get(..16)?;
        let length = u32::from_ne_bytes(head[..4].try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(head[4..6].try_into().ok()?);
        let message = bytes.get(..length).filter(|m| m.len() >= 16)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(match kind {
            DONE => NetlinkReply::Done,
            ERROR => {
                let errno = message
                    .get(16..20)?
                    .try_into()
                    .ok()
                    .map(i32::from_ne_bytes)?;
                NetlinkReply::Outcome(match errno {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                })
            }
            _ => NetlinkReply::Found(Attributes(message.get(20..).unwrap_or(&[]))),
        })
    })
}

/// Did a dump meet a change, so that it may lack something? NLM_F_DUMP_INTR of
/// any message.
pub(super) fn interrupted(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(head) = rest.get(..16) {
        if head[6] & 0x10 != 0 {
            return true;
        }
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        rest = rest
            .get(length.max(16).next_multiple_of(4)..)
            .unwrap_or(&[]);
    }
    false
}

/// Attributes as they lie behind one another.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes, each with its number.
    pub(super) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut bytes = self.0;
        std::iter::from_fn(move || {
            let head = bytes.get(..4)?;
            let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let number = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
            let value = bytes.get(4..length)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            Some((number, value))
        })
    }

    /// The first with this number.
    pub(super) fn get(self, number: u16) -> Option<&'a [u8]> {
        self.iter().find(|(n, _)| *n == number).map(|(_, v)| v)
    }

    /// The value of this attribute as attributes of their own.
    pub(super) fn nested(self, number: u16) -> Attributes<'a> {
        Attributes(self.get(number).unwrap_or(&[]))
    }

    /// The value of this attribute as text; none if it is no UTF-8.
    pub(super) fn text(self, number: u16) -> Option<&'a str> {
        let bytes = self.get(number)?;
        std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
    }

    /// As a number of four bytes in network order.
    pub(super) fn number(self, number: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(number)?.try_into().ok()?))
    }

    /// As a number of eight bytes in network order.
    pub(super) fn long(self, number: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(number)?.try_into().ok()?))
    }

    /// The attributes in a value.
    pub(super) fn of(value: &'a [u8]) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Batch::question(INET, MessageKind::GetSet, DUMP, |m| {
            m.text(1, "table");
            m.nest(3, |m| {
                m.number(2, 7);
                m.long(4, 9);
            });
        });
        assert_eq!(bytes.len() % 4, 0);
        let Some(NetlinkReply::Found(found)) = answers(&bytes).next() else {
            panic!("no message in {bytes:?}");
        };
        assert_eq!(found.text(1), Some("table"));
        assert_eq!(found.nested(3).number(2), Some(7));
        assert_eq!(found.nested(3).long(4), Some(9));
        assert_eq!(found.get(2), None);
    }

    #[test]
    fn two_transactions_are_one() {
        let of = |names: &[&str]| {
            let mut batch = Batch::new();
            for name in names {
                batch.add(MessageKind::NewTable, |to| to.text(1, name));
            }
            batch
        };
        for (first, second) in [
            (&["a", "b"][..], &["c"][..]),
            (&["a", "b", "c"], &[]),
            (&[], &["a", "b", "c"]),
        ] {
            let mut joined = of(first);
            joined.append(&of(second));
            // But for the sequence numbers, which nobody asks for.
            let (joined, whole) = (joined.finish(), of(&["a", "b", "c"]).finish());
            assert_eq!(joined.len(), whole.len());
            let differ = joined.iter().zip(&whole).enumerate();
            let differ = differ.filter(|(_, (a, b))| a != b);
            let message = (whole.len() - 2 * CONTROL) / 3;
            for (at, _) in differ {
                let in_message = (at + message - CONTROL) % message;
                let of_sequence = 8..12;
                assert!(of_sequence.contains(&in_message), "byte {at}");
            }
        }
    }

    #[test]
    fn cut_answers_end_and_do_not_panic() {
        let bytes = Batch::question(INET, MessageKind::GetSet, DUMP, |m| {
            m.nest(3, |m| m.number(2, 7))
        });
        for n in 0..bytes.len() {
            for answer in answers(&bytes[..n]) {
                if let NetlinkReply::Found(found) = answer {
                    found.nested(3).iter().for_each(drop);
                }
            }
        }
        let mut wrong = bytes;
        for at in 0..wrong.len() {
            for value in [0, 1, 3, 255] {
                let before = std::mem::replace(&mut wrong[at], value);
                for answer in answers(&wrong).take(100) {
                    if let NetlinkReply::Found(found) = answer {
                        found.nested(3).iter().take(100).for_each(drop);
                    }
                }
                wrong[at] = before;
            }
        }
    }
}
