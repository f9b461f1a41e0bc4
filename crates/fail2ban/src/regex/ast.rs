//! A regular expression of Python's as a tree.

use super::char_set::CharSet;

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// The empty expression, which always fits.
    Empty,
    /// One character, this one.
    Char(char),
    /// One of these.
    Set(Box<CharSet>),
    /// One after the other.
    Concat(Vec<Node>),
    /// The first of them that leads to a match.
    Alternatives(Vec<Node>),
    /// So many times.
    Repeat {
        /// The expression that is repeated.
        node: Box<Node>,
        /// How often at least.
        min: u32,
        /// At most; `None`: any number.
        max: Option<u32>,
        /// As many, as few, or all that fit.
        kind: Greed,
    },
    /// A group whose match is kept, by its number.
    Group(usize, Box<Node>),
    /// What stands before or behind, without taking it.
    Look {
        /// What must, or must not, fit.
        node: Box<Node>,
        /// Ahead, or so many characters behind.
        behind: Option<u32>,
        /// Whether the expression must not fit.
        negate: bool,
    },
    /// A place between two characters.
    At(Anchor),
    /// What that group has matched, once more.
    Backref {
        /// The number of the group that is repeated.
        group: usize,
        /// In either case.
        ignore_case: bool,
    },
    /// By whether a group has matched.
    Conditional {
        /// The number of the group that is asked about.
        group: usize,
        /// If it has.
        yes: Box<Node>,
        /// What must follow if it has not matched.
        no: Box<Node>,
    },
    /// Once it fits, it is not tried otherwise.
    Atomic(Box<Node>),
}

/// What a repetition prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greed {
    /// `*`
    Greedy,
    /// `*?`
    Lazy,
    /// `*+`
    Possessive,
}

/// A place between characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// `\A`, and `^` in one line.
    TextStart,
    /// `^` in several lines.
    LineStart,
    /// `\Z`
    TextEnd,
    /// `$` in one line: at the end, or before a newline there.
    End,
    /// `$` in several lines.
    LineEnd,
    /// `\b`
    WordBoundary {
        /// Whether only letters, digits and `_` of ASCII make words.
        ascii: bool,
    },
    /// `\B`
    NotWordBoundary {
        /// Whether only letters, digits and `_` of ASCII make words.
        ascii: bool,
    },
}

impl Node {
    /// How many characters it takes, at least and at most.
    pub fn width(&self) -> (u64, Option<u64>) {
        match self {
            Self::Empty | Self::Look { .. } | Self::At(_) => (0, Some(0)),
            Self::Char(_) | Self::Set(_) => (1, Some(1)),
            Self::Concat(nodes) => nodes.iter().map(Self::width).fold((0, Some(0)), |a, b| {
                (
                    a.0.saturating_add(b.0),
                    a.1.zip(b.1).map(|(a, b)| a.saturating_add(b)),
                )
            }),
            Self::Alternatives(nodes) => {
                let mut widths = nodes.iter().map(Self::width);
                let first = widths.next().unwrap_or((0, Some(0)));
                widths.fold(first, |a, b| {
                    (a.0.min(b.0), a.1.zip(b.1).map(|(a, b)| a.max(b)))
                })
            }
            Self::Repeat { node, min, max, .. } => {
                let (low, high) = node.width();
                let high = match (high, max) {
                    (Some(0), _) => Some(0),
                    (Some(high), Some(max)) => Some(high.saturating_mul(u64::from(*max))),
                    _ => None,
                };
                (low.saturating_mul(u64::from(*min)), high)
            }
            Self::Group(_, node) | Self::Atomic(node) => node.width(),
            // What the group holds is not known here.
            Self::Backref { .. } => (0, None),
            Self::Conditional { yes, no, .. } => {
                let (a, b) = (yes.width(), no.width());
                (a.0.min(b.0), a.1.zip(b.1).map(|(a, b)| a.max(b)))
            }
        }
    }

    /// Visits it and all in it, from the outside.
    pub fn visit(&self, see: &mut impl FnMut(&Self)) {
        see(self);
        match self {
            Self::Concat(nodes) | Self::Alternatives(nodes) => {
                nodes.iter().for_each(|node| node.visit(see));
            }
            Self::Repeat { node, .. }
            | Self::Group(_, node)
            | Self::Look { node, .. }
            | Self::Atomic(node) => node.visit(see),
            Self::Conditional { yes, no, .. } => {
                yes.visit(see);
                no.visit(see);
            }
            Self::Empty | Self::Char(_) | Self::Set(_) | Self::At(_) | Self::Backref { .. } => {}
        }
    }
}
