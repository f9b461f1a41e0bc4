//! Can a client's text be read as the address of a pattern? An optional part that
//! a message has not may fit the address itself, and the next one is then looked
//! for in what the client wrote: `rejected [<word> ]<addr>: <text>` reads
//! `rejected 192.0.2.7: 203.0.113.9: x` so. Or the client's text touches the
//! address and makes it longer.
//!
//! The pattern as a program writes messages and the pattern as a matcher reads
//! them go through all messages side by side, byte by byte, each as a finite
//! automaton. Where it matters, the reader's is true to the matcher: a field takes
//! all that it can. An optional part may be left out although it fits, which errs
//! towards refusing a pattern.

use std::collections::HashSet;

use super::{ADDRESS, AddrForm, Element};

/// A pattern that can be read in more ways than these is refused unjudged. Those of
/// sshd have some hundreds.
const MOST_STATES: usize = 100_000;

/// A set of bytes.
#[derive(Clone, Copy)]
struct Bytes([u128; 2]);

impl Bytes {
    const NONE: Self = Self([0; 2]);
    const ALL: Self = Self([u128::MAX; 2]);

    fn of(holds: impl Fn(u8) -> bool) -> Self {
        let mut bytes = Self::NONE;
        for byte in (0..=u8::MAX).filter(|byte| holds(*byte)) {
            bytes.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
        }
        bytes
    }

    fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    fn without(self, other: Self) -> Self {
        Self([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }

    fn is_empty(self) -> bool {
        self.0 == [0; 2]
    }
}

/// Whose bytes an edge takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Address,
    Client,
    Other,
}

#[derive(Clone, Copy)]
struct Edge {
    bytes: Bytes,
    field: Field,
    to: usize,
}

#[derive(Default)]
struct Node {
    edges: Vec<Edge>,
    /// Without a byte, to this node.
    skips: Vec<usize>,
    /// Where a reader leaves by `skips`, the next byte is none of these: the
    /// field would have taken it.
    taken: Option<Bytes>,
}

/// What stands on one side of a pattern's free text, as it is read.
struct Automaton {
    nodes: Vec<Node>,
    /// Where the free text begins, or the message has ended.
    end: usize,
    has_free: bool,
}

impl Automaton {
    fn new<'e>(elements: impl Iterator<Item = &'e Element>, backwards: bool) -> Self {
        let mut automaton = Self {
            nodes: vec![Node::default()],
            end: 0,
            has_free: false,
        };
        automaton.end = automaton.append(elements, 0, backwards);
        automaton
    }

    fn node(&mut self) -> usize {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }

    fn edge(&mut self, from: usize, to: usize, bytes: Bytes, field: Field) {
        self.nodes[from].edges.push(Edge { bytes, field, to });
    }

    /// One byte or more.
    fn run(&mut self, from: usize, bytes: Bytes, field: Field) -> usize {
        let within = self.node();
        self.edge(from, within, bytes, field);
        self.edge(within, within, bytes, field);
        within
    }

    fn leave(&mut self, from: usize, taken: Bytes) -> usize {
        let next = self.node();
        self.nodes[from].skips.push(next);
        self.nodes[from].taken = Some(taken);
        next
    }

    fn text(&mut self, from: usize, text: &[u8], backwards: bool) -> usize {
        let mut at = from;
        for n in 0..text.len() {
            let byte = text[if backwards { text.len() - 1 - n } else { n }];
            let next = self.node();
            self.edge(at, next, Bytes::of(|b| b == byte), Field::Other);
            at = next;
        }
        at
    }

    /// Adds elements in the order in which they are read; returns their end.
    fn append<'e>(
        &mut self,
        elements: impl Iterator<Item = &'e Element>,
        from: usize,
        backwards: bool,
    ) -> usize {
        let not_blank = Bytes::of(|b| !matches!(b, b' ' | b'\t'));
        let digit = Bytes::of(|b| b.is_ascii_digit());
        let mut at = from;
        for element in elements {
            at = match element {
                Element::Literal(text) => self.text(at, text, backwards),
                Element::Choice(texts) => {
                    let end = self.node();
                    for text in texts {
                        let last = self.text(at, text, backwards);
                        self.nodes[last].skips.push(end);
                    }
                    end
                }
                Element::Optional(part) => {
                    // A part may begin with a field, whose start is its own node.
                    let (start, end) = (self.node(), self.node());
                    self.nodes[at].skips.push(start);
                    let last = match backwards {
                        true => self.append(
                            &mut part.iter().rev() as &mut dyn Iterator<Item = _>,
                            start,
                            true,
                        ),
                        false => self.append(
                            &mut part.iter() as &mut dyn Iterator<Item = _>,
                            start,
                            false,
                        ),
                    };
                    self.nodes[last].skips.push(end);
                    self.nodes[start].skips.push(end);
                    end
                }
                Element::Addr {
                    form,
                    before,
                    behind,
                } => {
                    // With a neighbour of its own bytes it does not end as a run does.
                    let touches = if backwards { before } else { behind };
                    let all = Bytes::of(|b| form.class().has(b));
                    let taken = match touches {
                        Some(_) => Bytes::NONE,
                        None => all,
                    };
                    // A length may stand anywhere in a prefix, which errs as well.
                    let addr = Bytes::of(|b| {
                        b.is_ascii_hexdigit()
                            || matches!(b, b':' | b'.')
                            || *form == AddrForm::Prefix && b == b'/'
                    });
                    match form {
                        // Any run of what a name may stand among, which errs too.
                        AddrForm::Host => {
                            let within = self.run(at, all, Field::Address);
                            self.leave(within, taken)
                        }
                        _ => self.address(at, addr, taken, backwards),
                    }
                }
                Element::Port | Element::Number => {
                    let within = self.run(at, digit, Field::Other);
                    self.leave(within, digit)
                }
                Element::Word => {
                    let within = self.run(at, not_blank, Field::Other);
                    self.leave(within, not_blank)
                }
                Element::UserWord => {
                    let within = self.run(at, not_blank, Field::Client);
                    self.leave(within, not_blank)
                }
                Element::Free(_) => {
                    self.edge(at, at, Bytes::ALL, Field::Client);
                    self.has_free = true;
                    at
                }
            };
        }
        at
    }

    /// An address, perhaps with a zone: `fe80::1%eth0`. A point or a colon is in it,
    /// which tells it from a number.
    fn address(&mut self, from: usize, addr: Bytes, taken: Bytes, backwards: bool) -> usize {
        let zone = Bytes::of(|b| ADDRESS.has(b) && !matches!(b, b'%' | b':'));
        let percent = Bytes::of(|b| b == b'%');
        let next = self.node();
        let ends = match backwards {
            false => {
                let within = self.digits(from, addr);
                let behind = self.node();
                self.edge(within, behind, percent, Field::Address);
                [within, self.run(behind, zone, Field::Address)]
            }
            true => {
                let zone = self.run(from, zone, Field::Address);
                let before = self.node();
                self.edge(zone, before, percent, Field::Address);
                [self.digits(from, addr), self.digits(before, addr)]
            }
        };
        for end in ends {
            self.nodes[end].skips.push(next);
            self.nodes[end].taken = Some(taken);
        }
        next
    }

    fn digits(&mut self, from: usize, addr: Bytes) -> usize {
        let point = Bytes::of(|b| matches!(b, b':' | b'.'));
        let (before, behind) = (self.node(), self.node());
        for (one, other, bytes) in [
            (from, before, addr),
            (before, before, addr),
            (from, behind, point),
            (before, behind, point),
            (behind, behind, addr),
        ] {
            self.edge(one, other, bytes, Field::Address);
        }
        behind
    }
}

/// Where both stand in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    written: usize,
    read: usize,
    /// The reader's node whose field has taken all that it can; the next byte is
    /// not one of those.
    left: Option<usize>,
    /// Bytes of a client's have been read as the address.
    is_taken_in: bool,
}

/// Is there a message in which bytes of a client's are read as the address?
/// `backwards`: it is read from its end.
pub(super) fn is_possible(elements: &[Element], backwards: bool) -> bool {
    let automaton = match backwards {
        true => Automaton::new(elements.iter().rev(), true),
        false => Automaton::new(elements.iter(), false),
    };
    let nodes = &automaton.nodes;
    let start = State {
        written: 0,
        read: 0,
        left: None,
        is_taken_in: false,
    };
    let (mut seen, mut next) = (HashSet::from([start]), vec![start]);
    while let Some(state) = next.pop() {
        if seen.len() > MOST_STATES {
            return true;
        }
        // Behind the free text's start everything fits.
        let is_written = automaton.has_free || state.written == automaton.end;
        if state.is_taken_in && state.read == automaton.end && is_written {
            return true;
        }
        let mut go = |to: State| {
            if seen.insert(to) {
                next.push(to);
            }
        };
        let (written, read) = (&nodes[state.written], &nodes[state.read]);
        for to in &written.skips {
            go(State {
                written: *to,
                ..state
            });
        }
        for to in &read.skips {
            go(State {
                read: *to,
                left: read.taken.map_or(state.left, |_| Some(state.read)),
                ..state
            });
        }
        let taken = state.left.and_then(|node| nodes[node].taken);
        for (one, other) in written
            .edges
            .iter()
            .flat_map(|one| read.edges.iter().map(move |other| (one, other)))
        {
            let both = one.bytes.and(other.bytes);
            if !both.without(taken.unwrap_or(Bytes::NONE)).is_empty() {
                let steals = one.field == Field::Client && other.field == Field::Address;
                go(State {
                    written: one.to,
                    read: other.to,
                    left: None,
                    is_taken_in: state.is_taken_in || steals,
                });
            }
        }
    }
    false
}
