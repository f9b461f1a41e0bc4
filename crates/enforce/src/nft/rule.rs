//! A rule as nf_tables runs it: loads into registers, comparisons and
//! look-ups, each of which may end the rule, then what follows. A load that the
//! packet is too short for ends the rule as well.

use super::wire::{Attributes, Batch};

/// linux/netfilter/nf_tables.h: attribute numbers.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// A register of four bytes; longer values take the ones behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Register(pub(super) u32);

/// Registers by what our rules keep there: a key of up to 28 bytes in the
/// first ones.
pub(super) const KEY: Register = Register(8);
/// For what is looked at and forgotten.
pub(super) const SCRATCH: Register = Register(18);
/// Where a look-up leaves a verdict.
const VERDICT: Register = Register(0);

impl Register {
    /// The register that is this many further.
    pub(super) fn plus(self, registers: u32) -> Self {
        Self(self.0 + registers)
    }
}

/// What can be asked about a packet beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Meta {
    /// The type of what the frame carries, in network order.
    FrameType = 1,
    InIndex = 4,
    InName = 6,
    OutName = 7,
    Family = 15,
    Protocol = 16,
    /// 0: to this host, by its frame.
    PacketType = 19,
}

/// The header from which on an offset counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum From {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// What a rejected packet is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RejectReply {
    /// A TCP segment with RST.
    Reset,
    /// ICMP or ICMPv6: administratively prohibited.
    Prohibited,
}

/// The verdict of a rule on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict<'a> {
    Drop,
    /// The packet passes for weir; other tables are asked as well.
    Accept,
    /// On with the chain that jumped here.
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

impl Verdict<'_> {
    /// As data of a map's element or of an expression.
    pub(super) fn write(self, to: &mut Batch, number: u16) {
        let (code, chain) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Return => (-5i32, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
        };
        to.nest(number, |to| {
            to.nest(DATA_VERDICT, |to| {
                to.number(VERDICT_CODE, code as u32);
                if let Some(chain) = chain {
                    to.text(VERDICT_CHAIN, chain);
                }
            });
        });
    }
}

/// Writes the expressions of one rule.
pub(super) struct Rule<'a> {
    to: &'a mut Batch,
}

impl<'a> Rule<'a> {
    pub(super) fn new(to: &'a mut Batch) -> Self {
        Self { to }
    }

    fn expression(self, name: &str, fill: impl FnOnce(&mut Batch)) -> Self {
        self.to.nest(LIST_ELEMENT, |to| {
            to.text(EXPRESSION_NAME, name);
            to.nest(EXPRESSION_DATA, fill);
        });
        self
    }

    /// Loads what is known beside the packet's bytes.
    pub(super) fn meta(self, key: Meta, into: Register) -> Self {
        self.expression("meta", |to| {
            to.number(1, into.0);
            to.number(2, key as u32);
        })
    }

    /// Loads bytes of the packet.
    pub(super) fn load(self, from: From, offset: u32, length: u32, into: Register) -> Self {
        self.expression("payload", |to| {
            to.number(1, into.0);
            to.number(2, from as u32);
            to.number(3, offset);
            to.number(4, length);
        })
    }

    /// Loads bytes of an IPv6 fragment header, if there is one.
    pub(super) fn fragment(self, offset: u32, length: u32, into: Register) -> Self {
        self.expression("exthdr", |to| {
            to.number(1, into.0);
            to.bytes(2, &[44]);
            to.number(3, offset);
            to.number(4, length);
        })
    }

    /// Loads 1 if there is an IPv6 fragment header, else 0.
    pub(super) fn has_fragment_header(self, into: Register) -> Self {
        self.expression("exthdr", |to| {
            to.number(1, into.0);
            to.bytes(2, &[44]);
            to.number(3, 0);
            to.number(4, 1);
            to.number(5, 1);
        })
    }

    /// Loads a constant; what is behind it in the register is zero.
    pub(super) fn constant(self, value: u16, into: Register) -> Self {
        self.expression("immediate", |to| {
            to.number(1, into.0);
            to.nest(2, |to| to.bytes(DATA_VALUE, &value.to_be_bytes()));
        })
    }

    /// Keeps only these bits.
    pub(super) fn mask(self, register: Register, mask: &[u8]) -> Self {
        self.expression("bitwise", |to| {
            to.number(1, register.0);
            to.number(2, register.0);
            to.number(3, mask.len() as u32);
            to.nest(4, |to| to.bytes(DATA_VALUE, mask));
            to.nest(5, |to| to.bytes(DATA_VALUE, &vec![0; mask.len()]));
        })
    }

    fn compare(self, register: Register, how: u32, value: &[u8]) -> Self {
        self.expression("cmp", |to| {
            to.number(1, register.0);
            to.number(2, how);
            to.nest(3, |to| to.bytes(DATA_VALUE, value));
        })
    }

    /// Goes on if these are the bytes.
    pub(super) fn equals(self, register: Register, value: &[u8]) -> Self {
        self.compare(register, 0, value)
    }

    /// Goes on if they are others.
    pub(super) fn differs(self, register: Register, value: &[u8]) -> Self {
        self.compare(register, 1, value)
    }

    /// Goes on if the bytes lie between these, both included.
    pub(super) fn within(self, register: Register, first: &[u8], last: &[u8]) -> Self {
        self.compare(register, 5, first).compare(register, 3, last)
    }

    fn lookup(self, set: &str, key: Register, into: Option<Register>, inverted: bool) -> Self {
        self.expression("lookup", |to| {
            to.text(1, set);
            to.number(2, key.0);
            if let Some(into) = into {
                to.number(3, into.0);
            }
            if inverted {
                to.number(5, 1);
            }
        })
    }

    /// Goes on if the set has the key.
    pub(super) fn in_set(self, set: &str, key: Register) -> Self {
        self.lookup(set, key, None, false)
    }

    /// Goes on if the set has it not.
    pub(super) fn outside(self, set: &str, key: Register) -> Self {
        self.lookup(set, key, None, true)
    }

    /// Ends with the verdict that the map has for the key, if it has the key.
    pub(super) fn verdict_of(self, map: &str, key: Register) {
        self.lookup(map, key, Some(VERDICT), false);
    }

    /// Puts the key into a set with timeouts, for as long as the set says.
    pub(super) fn stamp(self, set: &str, key: Register) {
        self.expression("dynset", |to| {
            to.text(1, set);
            to.number(3, 1);
            to.number(4, key.0);
        });
    }

    /// Counts the packet in the rule itself: a named counter costs a call more.
    pub(super) fn count_here(self) -> Self {
        self.expression("counter", |_| {})
    }

    /// Counts the packet.
    pub(super) fn count(self, counter: &str) -> Self {
        self.expression("objref", |to| {
            to.number(1, 1);
            to.text(2, counter);
        })
    }

    /// Goes on with what is above this many packets a second.
    pub(super) fn above(self, a_second: u64, at_once: u32) -> Self {
        self.expression("limit", |to| {
            to.long(1, a_second);
            to.long(2, 1);
            to.number(3, at_once);
            to.number(4, 0);
            to.number(5, 1);
        })
    }

    /// Drops the packet and says so to its sender.
    pub(super) fn reject(self, answer: RejectReply) {
        let (kind, code) = match answer {
            RejectReply::Reset => (1, None),
            RejectReply::Prohibited => (2, Some(3)),
        };
        self.expression("reject", |to| {
            to.number(1, kind);
            if let Some(code) = code {
                to.bytes(2, &[code]);
            }
        });
    }

    /// Ends the rule.
    pub(super) fn verdict(self, verdict: Verdict<'_>) {
        self.expression("immediate", |to| {
            to.number(1, VERDICT.0);
            verdict.write(to, 2);
        });
    }
}

/// Packets and bytes that a rule's own counter has, as the kernel writes it.
pub(super) fn read_counter(rule: Attributes<'_>) -> Option<(u64, u64)> {
    let expressions = rule.nested(4);
    let mut counters = expressions
        .iter()
        .map(|(_, expression)| Attributes::of(expression))
        .filter(|expression| expression.text(EXPRESSION_NAME) == Some("counter"));
    let counter = counters.next()?.nested(EXPRESSION_DATA);
    Some((counter.long(2)?, counter.long(1)?))
}
