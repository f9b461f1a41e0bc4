//! Can a client's text be read as the address of a pattern? An optional part that
//! a message has not may fit the address itself, and the next one is then looked
//! for in what the client wrote: `rejected [<word> ]<addr>: <text>` reads
//! `rejected 192.0.2.7: 203.0.113.9: x` so. Or the client's text touches the
//! address and makes it longer. Or another pattern of the filter comes first and
//! reads it: `rejected <word> <addr>: <text>`, before `rejected <addr>: <text>`.
//!
//! What the first one reads never comes to the others: what it may not read does
//! (`unread`).
//!
//! One pattern as its program writes messages and one as a matcher reads them go
//! through all messages side by side, byte by byte, each as a finite automaton.
//! Who has written a filter may be anybody: the steps of all its patterns together
//! are bounded.

mod automaton;
mod unread;

use std::collections::HashSet;

use automaton::{Automaton, Bytes, Field};

use super::template::{ClientField, Template};
use unread::{turned, unread};

/// Two patterns that both can stand in more ways than these in a message are not
/// judged further. Those of sshd have some hundreds.
const MOST_STATES: usize = 100_000;

/// All steps of a filter's judgement. Those of
/// sshd-aggressive take 25,000, a thousand patterns that begin with text of their
/// own a million; all of them, a second.
const MOST_STEPS: usize = 20_000_000;

/// The error that a pattern's messages can be read in more ways than are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyWays;

/// The patterns of a filter, judged together.
pub(super) struct Judge {
    steps_left: usize,
}

/// A pattern, and what tells most of its messages from those of most others.
pub(super) struct Suspect<'t> {
    template: &'t Template,
    first: Vec<Bytes>,
    last: Vec<Bytes>,
}

impl<'t> From<&'t Template> for Suspect<'t> {
    fn from(template: &'t Template) -> Self {
        Self {
            template,
            first: Automaton::new(template, false).first_bytes(),
            last: Automaton::new(template, true).first_bytes(),
        }
    }
}

impl Suspect<'_> {
    /// May both have a message in common?
    fn may_meet(&self, other: &Self) -> bool {
        let mut places =
            (self.first.iter().zip(&other.first)).chain(self.last.iter().zip(&other.last));
        places.all(|(one, other)| !one.and(*other).is_empty())
    }
}

/// The positions of writer and reader in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    written: usize,
    read: usize,
    /// The reader's node whose field has taken all that it can; the next byte is
    /// not one of those.
    left: Option<usize>,
    /// The client's field whose bytes have been read as the address.
    taken_in: Option<ClientField>,
}

impl Judge {
    pub fn new() -> Self {
        Self {
            steps_left: MOST_STEPS,
        }
    }

    /// The field of a client's that a pattern can read as the address of its own
    /// messages.
    pub fn alone(&mut self, template: &Template) -> Result<Option<ClientField>, TooManyWays> {
        if template.client_text().is_none() {
            return Ok(None);
        }
        let automaton = Automaton::new(template, template.is_read_backwards());
        self.taken_in(&automaton, &automaton)
    }

    /// The field of a client's in messages of `writer` that `reader` can read as its
    /// address.
    pub fn pair(
        &mut self,
        reader: &Suspect<'_>,
        writer: &Suspect<'_>,
    ) -> Result<Option<ClientField>, TooManyWays> {
        if writer.template.client_text().is_none() || !reader.may_meet(writer) {
            return Ok(None);
        }
        let backwards = reader.template.is_read_backwards();
        let reader = Automaton::new(reader.template, backwards);
        let writer = Automaton::new(writer.template, backwards);
        self.taken_in(&reader, &writer)
    }

    /// The same of those messages of another one that it may not read itself, although
    /// it stands before.
    pub fn pair_behind(
        &mut self,
        reader: &Suspect<'_>,
        writer: &Suspect<'_>,
    ) -> Result<Option<ClientField>, TooManyWays> {
        // Most patterns leave all of each other's messages alone.
        if self.pair(reader, writer)?.is_none() {
            return Ok(None);
        }
        let backwards = reader.template.is_read_backwards();
        let reader = Automaton::new(reader.template, backwards);
        for from_end in [false, true] {
            let written = Automaton::new(writer.template, from_end);
            let Some(mut written) = unread(&written, |steps| self.step(steps))? else {
                continue;
            };
            if from_end != backwards {
                written = turned(written);
            }
            if let Some(field) = self.taken_in(&reader, &written)? {
                return Ok(Some(field));
            }
        }
        Ok(None)
    }

    fn taken_in(
        &mut self,
        reader: &Automaton,
        writer: &Automaton,
    ) -> Result<Option<ClientField>, TooManyWays> {
        self.step(reader.nodes.len() + writer.nodes.len())?;
        let start = State {
            written: 0,
            read: 0,
            left: None,
            taken_in: None,
        };
        let (mut seen, mut next) = (HashSet::from([start]), vec![start]);
        while let Some(state) = next.pop() {
            if state.taken_in.is_some() && state.read == reader.end && state.written == writer.end {
                return Ok(state.taken_in);
            }
            let mut go = |to: State| {
                if seen.insert(to) {
                    next.push(to);
                }
            };
            let (written, read) = (&writer.nodes[state.written], &reader.nodes[state.read]);
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
            let taken = state.left.and_then(|node| reader.nodes[node].taken);
            let taken = taken.unwrap_or(Bytes::NONE);
            for one in &written.edges {
                for other in &read.edges {
                    if one.bytes.and(other.bytes).without(taken).is_empty() {
                        continue;
                    }
                    let stolen = match (one.field, other.field) {
                        (Field::Client(field), Field::Address) => Some(field),
                        _ => None,
                    };
                    go(State {
                        written: one.to,
                        read: other.to,
                        left: None,
                        taken_in: state.taken_in.or(stolen),
                    });
                }
            }
            let skips = written.skips.len() + read.skips.len();
            self.step(1 + skips + written.edges.len() * read.edges.len())?;
            if seen.len() > MOST_STATES {
                return Err(TooManyWays);
            }
        }
        Ok(None)
    }

    fn step(&mut self, steps: usize) -> Result<(), TooManyWays> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(TooManyWays)?;
        Ok(())
    }
}
