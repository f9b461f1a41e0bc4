//! Messages of nf_tables: written into a batch, which the kernel carries out whole or not
//! at all, or as a question. The form of netlink is weir-netlink's, what our table looks
//! like is not known here.

pub(super) use weir_netlink::Attributes;
use weir_netlink::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_NONREC, NLM_F_REQUEST, Writer};

/// linux/netfilter/nfnetlink.h
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// Bytes of either.
const CONTROL: usize = 20;
/// Bytes of `struct nfgenmsg`: the fixed header of every message.
pub(super) const NFGENMSG: usize = 4;
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
            Self::NewTable | Self::NewChain | Self::NewSet => NLM_F_CREATE,
            Self::NewElements | Self::NewObject => NLM_F_CREATE,
            Self::NewRule => NLM_F_CREATE | NLM_F_APPEND,
            _ => 0,
        }
    }
}

/// Messages in one transaction, or a single question.
pub(super) struct Batch {
    messages: Writer,
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
        self.message(kind, NLM_F_REQUEST | NLM_F_NONREC, fill);
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
        batch.message(kind, NLM_F_REQUEST | flags, fill);
        batch.messages.into_bytes()
    }

    fn empty(transaction: bool) -> Self {
        Self {
            messages: Writer::default(),
            last: 0,
            sequence: 0,
            transaction,
            family: INET,
        }
    }

    /// Adds what another transaction has.
    pub(super) fn append(&mut self, other: &Self) {
        if !other.is_empty() {
            self.last = self.messages.bytes().len() + other.last - CONTROL;
            self.messages.append(&other.messages.bytes()[CONTROL..]);
        }
    }

    /// Is there nothing to carry out?
    pub(super) fn is_empty(&self) -> bool {
        self.last == 0
    }

    fn begin(&mut self, kind: u16, flags: u16, family: u8, resource: u16) -> usize {
        // The version is 0.
        let [high, low] = resource.to_be_bytes();
        let fixed: [u8; NFGENMSG] = [family, 0, high, low];
        let begin = self.messages.begin(kind, flags, self.sequence, &fixed);
        self.sequence += 1;
        begin
    }

    fn control(&mut self, kind: u16) {
        let begin = self.begin(kind, NLM_F_REQUEST, 0, SUBSYSTEM);
        self.messages.end(begin);
    }

    fn message(&mut self, kind: MessageKind, flags: u16, fill: impl FnOnce(&mut Self)) {
        let begin = self.begin(SUBSYSTEM << 8 | kind as u16, flags, self.family, 0);
        fill(self);
        self.messages.end(begin);
        self.last = begin;
    }

    /// Adds a message; `fill` writes its attributes.
    pub(super) fn add(&mut self, kind: MessageKind, fill: impl FnOnce(&mut Self)) {
        self.message(kind, NLM_F_REQUEST | kind.flags(), fill);
    }

    /// The bytes to send; the last message will be answered.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.transaction {
            self.messages.add_flags(self.last, NLM_F_ACK);
            self.control(BATCH_END);
        }
        self.messages.into_bytes()
    }

    /// An attribute of bytes.
    pub(super) fn bytes(&mut self, number: u16, value: &[u8]) {
        self.messages.attribute(number, value);
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
        let begin = self.messages.begin_nest();
        fill(self);
        self.messages.end_nest(begin, number);
    }
}

#[cfg(test)]
mod tests {
    use weir_netlink::{Messages, NLM_F_DUMP};

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Batch::question(INET, MessageKind::GetSet, NLM_F_DUMP, |m| {
            m.text(1, "table");
            m.nest(3, |m| {
                m.number(2, 7);
                m.long(4, 9);
            });
        });
        assert_eq!(bytes.len() % 4, 0);
        let message = Messages::of(&bytes).next().expect("a message");
        assert_eq!(message.kind, SUBSYSTEM << 8 | MessageKind::GetSet as u16);
        let found = Attributes::behind(message.body, NFGENMSG);
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
}
