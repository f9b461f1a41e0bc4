//! The messages of a pattern as a finite automaton, over which `impersonation`
//! judges: as a program writes them, or as a matcher reads them from one end. Up to
//! the free text the reader's is true to the matcher: a field takes all that it can.
//! An optional part may be left out although it fits, and each of a choice be taken,
//! which errs towards refusing a pattern.

use super::super::{
    fields::ADDRESS,
    template::{AddrForm, ClientField, Element, Neighbour, Template},
};

/// A set of bytes.
#[derive(Clone, Copy)]
pub(super) struct Bytes([u128; 2]);

impl Bytes {
    pub const NONE: Self = Self([0; 2]);
    pub const ALL: Self = Self([u128::MAX; 2]);

    fn of(holds: impl Fn(u8) -> bool) -> Self {
        let mut bytes = Self::NONE;
        for byte in (0..=u8::MAX).filter(|byte| holds(*byte)) {
            bytes.0[usize::from(byte >> 7)] |= 1 << (byte & 127);
        }
        bytes
    }

    pub fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    fn or(self, other: Self) -> Self {
        Self([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    pub fn without(self, other: Self) -> Self {
        Self([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }

    #[cfg(test)]
    pub fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 7)] & 1 << (byte & 127) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == [0; 2]
    }
}

/// The field of the pattern whose bytes an edge takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Address,
    Client(ClientField),
    Other,
}

#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub bytes: Bytes,
    pub field: Field,
    pub to: usize,
}

#[derive(Clone, Default)]
pub(super) struct Node {
    pub edges: Vec<Edge>,
    /// Nodes that are reached without a byte.
    pub skips: Vec<usize>,
    /// Where a reader leaves by `skips`, the next byte is none of these: the
    /// field would have taken it.
    pub taken: Option<Bytes>,
}

/// Where a program goes one way and a matcher, which takes all that fits and does not
/// try it without, may go another one.
#[derive(Clone)]
pub(super) struct Fork {
    /// The way of the program: from the one node to the other without a byte.
    pub way: (usize, usize),
    /// The matcher goes another one where what follows leads from here …
    pub start: usize,
    /// … to here.
    pub end: usize,
    /// The free text is next: what the matcher takes of it leaves the rest as it is.
    pub is_beside_free: bool,
}

/// An automaton that reads all messages of a pattern. Node 0 is the end from which they are
/// read.
#[derive(Clone, Default)]
pub(super) struct Automaton {
    pub nodes: Vec<Node>,
    /// The node at which a message has ended.
    pub end: usize,
    /// Where a matcher that reads from the same end may go another way.
    pub forks: Vec<Fork>,
    /// The nodes of free texts.
    pub free: Vec<usize>,
    /// A matcher reads these elements from this end, up to the free text.
    pub has_forks: bool,
    /// The free text has been added; what stands behind it is read from the other
    /// end, where a field takes as much as that end leaves it.
    pub is_behind_free: bool,
}

fn is_free(element: &Element) -> bool {
    matches!(element, Element::Free(_))
}

/// At how many places messages are compared before they are judged.
const PLACES: usize = 32;

impl Automaton {
    pub fn new(template: &Template, backwards: bool) -> Self {
        let mut automaton = Self {
            nodes: vec![Node::default()],
            ..Self::default()
        };
        let has_free = template.elements.iter().any(is_free);
        automaton.has_forks = has_free || !backwards;
        let mut ends = vec![automaton.branch(&template.elements, backwards)];
        if let Some(elements) = template.without_free_text() {
            automaton.has_forks = template.is_open_ended() != backwards;
            ends.push(automaton.branch(&elements, backwards));
        }
        automaton.end = automaton.node();
        for end in ends {
            automaton.nodes[end].skips.push(automaton.end);
        }
        automaton
    }

    /// The bytes that messages can have at each of their first places, up to where
    /// one can end.
    pub fn first_bytes(&self) -> Vec<Bytes> {
        let mut places = vec![];
        let mut nodes = self.with_skips(vec![0]);
        while places.len() < PLACES && !nodes.contains(&self.end) {
            let edges = nodes.iter().flat_map(|node| &self.nodes[*node].edges);
            let (mut bytes, mut next) = (Bytes::NONE, vec![]);
            for edge in edges {
                bytes = bytes.or(edge.bytes);
                next.push(edge.to);
            }
            places.push(bytes);
            nodes = self.with_skips(next);
        }
        places
    }

    /// These nodes and those that are reached from them without a byte, each once.
    fn with_skips(&self, mut next: Vec<usize>) -> Vec<usize> {
        let mut is_known = vec![false; self.nodes.len()];
        let mut nodes = vec![];
        while let Some(node) = next.pop() {
            if !std::mem::replace(&mut is_known[node], true) {
                nodes.push(node);
                next.extend(&self.nodes[node].skips);
            }
        }
        nodes
    }

    /// Messages of these elements; returns where they end.
    fn branch(&mut self, elements: &[Element], backwards: bool) -> usize {
        let start = self.node();
        self.nodes[0].skips.push(start);
        self.is_behind_free = false;
        match backwards {
            true => self.append(elements.iter().rev(), start, true),
            false => self.append(elements.iter(), start, false),
        }
    }

    fn node(&mut self) -> usize {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }

    fn edge(&mut self, from: usize, to: usize, bytes: Bytes, field: Field) {
        self.nodes[from].edges.push(Edge { bytes, field, to });
    }

    /// A run of one byte or more.
    fn run(&mut self, from: usize, bytes: Bytes, field: Field) -> usize {
        let within = self.node();
        self.edge(from, within, bytes, field);
        self.edge(within, within, bytes, field);
        within
    }

    fn leave(&mut self, from: usize, taken: Bytes, is_beside_free: bool) -> usize {
        let next = self.node();
        self.nodes[from].skips.push(next);
        self.set_taken(from, taken);
        if !taken.is_empty() {
            let start = self.node();
            let end = self.run(start, taken, Field::Other);
            self.fork((from, next), start, end, is_beside_free);
        }
        next
    }

    fn fork(&mut self, way: (usize, usize), start: usize, end: usize, is_beside_free: bool) {
        if self.has_forks && !self.is_behind_free {
            self.forks.push(Fork {
                way,
                start,
                end,
                is_beside_free,
            });
        }
    }

    /// A run of what an address may have ends at the last of its neighbour's bytes, or
    /// is an address as it stands.
    fn fork_of_address(&mut self, way: (usize, usize), form: AddrForm, touches: Option<Neighbour>) {
        let all = Bytes::of(|b| form.class().has(b));
        let (start, end) = (self.node(), self.node());
        let Some(Neighbour::Always(byte) | Neighbour::Perhaps(byte)) = touches else {
            self.edge(start, end, all, Field::Other);
            return self.fork(way, start, end, false);
        };
        let neighbour = Bytes::of(|b| b == byte);
        let within = self.node();
        self.edge(start, within, neighbour, Field::Other);
        self.edge(start, end, all.without(neighbour), Field::Other);
        match touches {
            Some(Neighbour::Always(_)) => {
                self.edge(within, within, all, Field::Other);
                self.edge(within, end, neighbour, Field::Other);
            }
            _ => self.edge(within, end, all, Field::Other),
        }
        // No address, and no name, ends with a colon, and only a name with a point.
        let ends_none = byte == b':' || byte == b'.' && form != AddrForm::Host;
        if !ends_none && !matches!(touches, Some(Neighbour::Always(_))) {
            self.edge(start, end, neighbour, Field::Other);
        }
        self.fork(way, start, end, false);
    }

    fn set_taken(&mut self, node: usize, taken: Bytes) {
        if !self.is_behind_free {
            self.nodes[node].taken = Some(taken);
        }
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
        let mut elements = elements.peekable();
        while let Some(element) = elements.next() {
            let beside_free = elements.peek().is_some_and(|next| is_free(next));
            at = match element {
                Element::Literal(text) => self.text(at, text, backwards),
                Element::Choice(texts) => {
                    let end = self.node();
                    let mut ways: Vec<(usize, usize)> = vec![];
                    for (n, text) in texts.iter().enumerate() {
                        let start = self.node();
                        self.nodes[at].skips.push(start);
                        let last = self.text(start, text, backwards);
                        self.nodes[last].skips.push(end);
                        // Of those before it, which are longer, one that begins with it.
                        for (longer, (start_of_longer, last)) in texts.iter().zip(&ways) {
                            let begins = match backwards {
                                true => longer.ends_with(text),
                                false => longer.starts_with(text),
                            };
                            if begins && longer != &texts[n] {
                                self.fork((at, start), *start_of_longer, *last, beside_free);
                            }
                        }
                        ways.push((start, last));
                    }
                    end
                }
                Element::Optional(part) => {
                    // A part may begin with a field, whose start is its own node.
                    let (start, within, end) = (self.node(), self.node(), self.node());
                    self.nodes[at].skips.push(start);
                    self.nodes[start].skips.push(within);
                    let last = match backwards {
                        true => self.append(
                            &mut part.iter().rev() as &mut dyn Iterator<Item = _>,
                            within,
                            true,
                        ),
                        false => self.append(
                            &mut part.iter() as &mut dyn Iterator<Item = _>,
                            within,
                            false,
                        ),
                    };
                    self.nodes[last].skips.push(end);
                    self.nodes[start].skips.push(end);
                    self.fork((start, end), within, last, beside_free);
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
                            let next = self.node();
                            self.nodes[within].skips.push(next);
                            self.set_taken(within, taken);
                            self.fork_of_address((within, next), *form, *touches);
                            next
                        }
                        _ => {
                            let (ends, next) = self.address(at, addr, taken, backwards);
                            for end in ends {
                                self.fork_of_address((end, next), *form, *touches);
                            }
                            next
                        }
                    }
                }
                Element::Port | Element::Number => {
                    let within = self.run(at, digit, Field::Other);
                    self.leave(within, digit, beside_free)
                }
                Element::Word => {
                    let within = self.run(at, not_blank, Field::Other);
                    self.leave(within, not_blank, beside_free)
                }
                Element::UserWord => {
                    let client = Field::Client(ClientField::UserWord);
                    let within = self.run(at, not_blank, client);
                    self.leave(within, not_blank, beside_free)
                }
                Element::Free(free) => {
                    let within = self.node();
                    self.nodes[at].skips.push(within);
                    let client = Field::Client((*free).into());
                    self.edge(within, within, Bytes::ALL, client);
                    self.free.push(within);
                    self.is_behind_free = true;
                    within
                }
            };
        }
        at
    }

    /// An address, perhaps with a zone: `fe80::1%eth0`. A point or a colon is in it,
    /// which tells it from a number.
    fn address(
        &mut self,
        from: usize,
        addr: Bytes,
        taken: Bytes,
        backwards: bool,
    ) -> ([usize; 2], usize) {
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
            self.set_taken(end, taken);
        }
        (ends, next)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that two edges share are of both: without them filters that read each other's
    /// messages would be taken for disjoint.
    #[test]
    fn sets_of_bytes_are_joined_and_cut() {
        let digits = Bytes::of(|b| b.is_ascii_digit() || b == 0xff);
        let hexadecimal = Bytes::of(|b| b.is_ascii_hexdigit());
        for byte in 0..=u8::MAX {
            let (one, other) = (digits.has(byte), hexadecimal.has(byte));
            assert_eq!(digits.or(hexadecimal).has(byte), one || other, "{byte}");
            assert_eq!(digits.and(hexadecimal).has(byte), one && other, "{byte}");
            assert_eq!(digits.without(hexadecimal).has(byte), one && !other);
            assert!(Bytes::ALL.has(byte) && !Bytes::NONE.has(byte));
        }
        assert!(digits.without(digits).is_empty() && !digits.is_empty());
    }
}
