//! The objects of our table: sets, maps, chains, counters, and their elements.
//! Each function writes one message; names and rules are the caller's.

use super::{
    rule::{Rule, Verdict},
    wire::{Attributes, Batch, MessageKind},
};

/// Elements to a message: its length has 16 bits.
const PORTION: usize = 700;
const LIST_ELEMENT: u16 = 1;
/// `enum nft_set_flags`
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const TIMEOUT: u32 = 0x10;
const DYNAMIC: u32 = 0x20;
const CONCAT: u32 = 0x80;
/// Ended elements are collected this often. The kernel walks the whole set each
/// time, every second by default.
const COLLECT_MS: u32 = 10_000;
/// nft's own numbers for types: how `nft list` prints a key.
const TYPE_ADDRESS: [u32; 2] = [7, 8];
const TYPE_PROTOCOL: u32 = 12;
const TYPE_PORT: u32 = 13;
const TYPE_INDEX: u32 = 20;
const TYPE_NAME: u32 = 41;
const VERDICTS: u32 = 0xffff_ff00;

/// nft's own notes on the byte order of keys, for `nft list`.
const HOST: u32 = 1;
const NETWORK: u32 = 2;

/// Lengths of addresses, by family.
pub(super) const ADDRESS: [u32; 2] = [4, 16];

/// The keys and data of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// Names of interfaces.
    Names,
    /// The numbers of interfaces.
    Indexes,
    /// Numbers of protocols.
    Protocols,
    /// Addresses of this family.
    Addresses(usize),
    /// Ranges of addresses, each with a verdict.
    RangeVerdicts(usize),
    /// Addresses with an end.
    Bans(usize),
    /// Flows with an address of this family: so many at most, for so long.
    Flows(usize, u32, u64),
}

/// The hook of a chain: `enum nf_inet_hooks`, with the priority there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hook<'a> {
    Prerouting(i32),
    Postrouting(i32),
    /// The ingress hook of the device with this name.
    Ingress(&'a str, i32),
    /// The ingress hook of this device in a table of the family netdev, which sees frames
    /// of all types.
    Frames(&'a str, i32),
}

/// A table of ours by its name.
#[derive(Clone, Debug)]
pub(super) struct Table(pub(super) String);

/// An element to be put into a set or taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    pub(super) key: &'a [u8],
    /// The chain that a map jumps to.
    pub(super) jump: Option<&'a str>,
    /// The comment that `nft list` prints beside the element.
    pub(super) comment: Option<&'a str>,
    /// Milliseconds; `None` for ever.
    pub(super) timeout: Option<u64>,
    /// The first address behind a range.
    pub(super) ends_range: bool,
}

impl<'a> Element<'a> {
    pub(super) fn key(key: &'a [u8]) -> Self {
        Self {
            key,
            jump: None,
            comment: None,
            timeout: None,
            ends_range: false,
        }
    }
}

impl Table {
    /// Another table of the same instance. No instance has a dot in its name.
    pub(super) fn beside(&self, what: &str) -> Self {
        Self(format!("{}.{what}", self.0))
    }

    /// Makes the table, if it is not there.
    pub(super) fn create(&self, to: &mut Batch) {
        to.add(MessageKind::NewTable, |to| {
            to.text(1, &self.0);
            to.number(2, 0);
        });
    }

    /// Takes it away with all that is in it.
    pub(super) fn delete(&self, to: &mut Batch) {
        to.add(MessageKind::DelTable, |to| to.text(1, &self.0));
    }

    /// A counter that begins with these packets and bytes, unless it is there.
    pub(super) fn counter(&self, to: &mut Batch, name: &str, (packets, bytes): (u64, u64)) {
        to.add(MessageKind::NewObject, |to| {
            to.text(1, &self.0);
            to.text(2, name);
            to.number(3, 1);
            to.nest(4, |to| {
                to.long(1, bytes);
                to.long(2, packets);
            });
        });
    }

    /// A set or map. `id`: any number that no other set of the transaction has.
    pub(super) fn set(&self, to: &mut Batch, name: &str, id: u32, shape: Shape) {
        let (flags, kind, length) = match shape {
            Shape::Names => (0, TYPE_NAME, 16),
            Shape::Indexes => (0, TYPE_INDEX, 4),
            Shape::Protocols => (0, TYPE_PROTOCOL, 1),
            Shape::Addresses(family) => (0, TYPE_ADDRESS[family], ADDRESS[family]),
            Shape::RangeVerdicts(family) => (INTERVAL | MAP, TYPE_ADDRESS[family], ADDRESS[family]),
            Shape::Bans(family) => (TIMEOUT, TYPE_ADDRESS[family], ADDRESS[family]),
            Shape::Flows(family, ..) => (
                TIMEOUT | DYNAMIC | CONCAT,
                [TYPE_PROTOCOL, TYPE_ADDRESS[family], TYPE_PORT, TYPE_PORT]
                    .iter()
                    .fold(0, |all, kind| all << 6 | kind),
                12 + ADDRESS[family],
            ),
        };
        to.add(MessageKind::NewSet, |to| {
            to.text(1, &self.0);
            to.text(2, name);
            to.number(3, flags);
            to.number(4, kind);
            to.number(5, length);
            if flags & MAP != 0 {
                to.number(6, VERDICTS);
                to.number(7, 4);
            }
            if let Shape::Flows(family, most, _) = shape {
                to.nest(9, |to| {
                    to.number(1, most);
                    to.nest(2, |to| {
                        for length in [1, ADDRESS[family], 2, 2] {
                            to.nest(LIST_ELEMENT, |to| to.number(1, length));
                        }
                    });
                });
            }
            to.number(10, id);
            if let Shape::Flows(_, _, milliseconds) = shape {
                to.long(11, milliseconds);
            }
            if flags & TIMEOUT != 0 {
                to.number(12, COLLECT_MS);
            }
            let order = match shape {
                Shape::Names | Shape::Indexes => HOST,
                _ => NETWORK,
            };
            to.bytes(13, &[&[0, 4][..], &order.to_ne_bytes()].concat());
        });
    }

    /// Takes a set away that no rule uses any more.
    pub(super) fn delete_set(&self, to: &mut Batch, name: &str) {
        to.add(MessageKind::DelSet, |to| {
            to.text(1, &self.0);
            to.text(2, name);
        });
    }

    /// Puts elements in or takes them out, as `kind` says.
    pub(super) fn elements(
        &self,
        to: &mut Batch,
        kind: MessageKind,
        set: &str,
        all: &[Element<'_>],
    ) {
        for portion in all.chunks(PORTION) {
            to.add(kind, |to| {
                to.text(1, &self.0);
                to.text(2, set);
                to.nest(3, |to| {
                    for element in portion {
                        to.nest(LIST_ELEMENT, |to| element.write(to));
                    }
                });
            });
        }
    }

    /// A chain that others jump to.
    pub(super) fn chain(&self, to: &mut Batch, name: &str) {
        to.add(MessageKind::NewChain, |to| {
            to.text(1, &self.0);
            to.text(3, name);
        });
    }

    /// A chain that the kernel enters at a hook of the IP stack, or of a device.
    pub(super) fn base_chain(&self, to: &mut Batch, name: &str, hook: Hook<'_>) {
        to.add(MessageKind::NewChain, |to| {
            to.text(1, &self.0);
            to.text(3, name);
            to.nest(4, |to| {
                let (number, priority) = match hook {
                    Hook::Prerouting(priority) => (0, priority),
                    Hook::Postrouting(priority) => (4, priority),
                    Hook::Ingress(_, priority) => (5, priority),
                    Hook::Frames(_, priority) => (0, priority),
                };
                to.number(1, number);
                to.number(2, priority as u32);
                if let Hook::Ingress(device, _) | Hook::Frames(device, _) = hook {
                    to.text(3, device);
                }
            });
            to.number(5, 1);
            to.text(7, "filter");
        });
    }

    /// Takes a chain away that nothing jumps to any more.
    pub(super) fn delete_chain(&self, to: &mut Batch, name: &str) {
        to.add(MessageKind::DelChain, |to| {
            to.text(1, &self.0);
            to.text(3, name);
        });
    }

    /// Takes all rules out of a chain.
    pub(super) fn empty_chain(&self, to: &mut Batch, name: &str) {
        to.add(MessageKind::DelRule, |to| {
            to.text(1, &self.0);
            to.text(2, name);
        });
    }

    /// Adds a rule at the end of a chain.
    pub(super) fn rule(&self, to: &mut Batch, chain: &str, fill: impl FnOnce(Rule<'_>)) {
        self.rule_about(to, chain, "", fill);
    }

    /// Adds a rule with a comment, which `nft list` shows.
    pub(super) fn rule_about(
        &self,
        to: &mut Batch,
        chain: &str,
        comment: &str,
        fill: impl FnOnce(Rule<'_>),
    ) {
        to.add(MessageKind::NewRule, |to| {
            to.text(1, &self.0);
            to.text(2, chain);
            to.nest(4, |to| fill(Rule::new(to)));
            if !comment.is_empty() {
                to.bytes(7, &user_data(comment));
            }
        });
    }
}

impl Element<'_> {
    fn write(&self, to: &mut Batch) {
        to.nest(1, |to| to.bytes(1, self.key));
        if let Some(chain) = self.jump {
            Verdict::Jump(chain).write(to, 2);
        }
        if self.ends_range {
            to.number(3, 1);
        }
        if let Some(timeout) = self.timeout {
            to.long(4, timeout);
        }
        if let Some(comment) = self.comment {
            to.bytes(6, &user_data(comment));
        }
    }
}

/// An element as the kernel has it: key, comment, milliseconds that are left.
pub(super) type Stored = (Vec<u8>, String, Option<u64>);

/// Reads the elements of a message.
pub(super) fn read_elements(message: Attributes<'_>, into: &mut Vec<Stored>) {
    for (number, element) in message.nested(3).iter() {
        let element = Attributes::of(element);
        let (LIST_ELEMENT, Some(key)) = (number, element.nested(1).get(1)) else {
            continue;
        };
        let comment = element.get(6).and_then(comment_of).unwrap_or_default();
        let left = element.long(4).map(|_| element.long(5).unwrap_or(0));
        into.push((key.to_vec(), comment.to_owned(), left));
    }
}

/// nft's form for a comment: type, length, text.
fn user_data(comment: &str) -> Vec<u8> {
    let text: Vec<u8> = comment.bytes().take(250).chain([0]).collect();
    [&[0, text.len() as u8][..], &text].concat()
}

/// The way back.
pub(super) fn comment_of(user_data: &[u8]) -> Option<&str> {
    let (head, rest) = user_data.split_at_checked(2)?;
    let text = rest.get(..usize::from(head[1]))?;
    (head[0] == 0)
        .then(|| std::str::from_utf8(text.strip_suffix(&[0])?).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_reads_as_it_is_written() {
        for text in ["", "jail:sshd 22/tcp", "manual all ports"] {
            assert_eq!(comment_of(&user_data(text)), Some(text));
        }
        for cut in [&[][..], &[0], &[0, 9, b'a'], &[1, 1, 0]] {
            assert_eq!(comment_of(cut), None);
        }
    }
}
