//! The messages of a pattern that its own matcher may not read. A program leaves an
//! optional part out, or ends a field, where it likes; a matcher takes what fits and
//! does not try it without: `refused [by <word> ]<user> from <addr>` does not read
//! `refused by 203.0.113.9 from 192.0.2.7`, where the user is `by 203.0.113.9`.
//!
//! Where the two part for the first time is one of the automaton's forks. A matcher
//! that has gone another way there is taken to read nothing, which errs towards
//! refusing a filter, unless it stays within the free text. Numbers are taken to be as
//! small as their fields want them.

use std::collections::HashMap;

use super::{
    MOST_STATES, TooManyWays,
    automaton::{Automaton, Edge, Fork, Node},
};

/// How a matcher goes beside a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Beside {
    /// The matcher goes the same way as the program.
    Along,
    /// The matcher perhaps goes another way: that of a fork, up to this node.
    Apart { fork: usize, node: usize },
    /// The matcher goes another way than the program from here on.
    Lost,
}

/// Where a program is in its message, and the matcher.
type State = (usize, Beside);

/// The automaton of such messages, read from the same end; `None`: there are none.
/// `step` is told what it costs.
pub(super) fn unread(
    automaton: &Automaton,
    mut step: impl FnMut(usize) -> Result<(), TooManyWays>,
) -> Result<Option<Automaton>, TooManyWays> {
    let mut found = Found::default();
    found.number((0, Beside::Along));
    while let Some(state) = found.next.pop() {
        let (at, beside) = state;
        let from = found.number(state);
        let node = &automaton.nodes[at];
        let mut steps = 1;
        for to in &node.skips {
            found.skip(from, (*to, beside));
            if beside == Beside::Along {
                for (fork, Fork { way, start, .. }) in automaton.forks.iter().enumerate() {
                    if *way == (at, *to) {
                        let node = *start;
                        found.skip(from, (*to, Beside::Apart { fork, node }));
                    }
                }
                steps += automaton.forks.len();
            }
        }
        if let Beside::Apart { fork, node: other } = beside {
            let Fork {
                end,
                is_beside_free,
                ..
            } = automaton.forks[fork];
            for other in up_to(end, automaton, other) {
                for (edge, other) in pairs(node, &automaton.nodes[other]) {
                    let node = other.to;
                    found.edge(from, edge, Beside::Apart { fork, node });
                    let stays = is_beside_free && automaton.free.contains(&edge.to);
                    let ends = up_to(end, automaton, node);
                    if ends.contains(&end) && !stays {
                        found.edge(from, edge, Beside::Lost);
                    }
                    steps += ends.len();
                }
                steps += 1 + node.edges.len();
            }
        } else {
            for edge in &node.edges {
                found.edge(from, *edge, beside);
            }
            steps += node.edges.len();
        }
        step(steps)?;
        if found.nodes.len() > MOST_STATES {
            return Err(TooManyWays);
        }
    }
    let end = found.numbers.get(&(automaton.end, Beside::Lost));
    Ok(end.map(|end| Automaton {
        end: *end,
        nodes: found.nodes,
        ..Automaton::default()
    }))
}

/// The automaton of the same messages, read from the other end.
pub(super) fn turned(automaton: Automaton) -> Automaton {
    let Automaton { nodes, end, .. } = automaton;
    // The first node and the one at the end change their places.
    let place = |node: usize| match node {
        0 => end,
        _ if node == end => 0,
        _ => node,
    };
    let mut turned: Vec<Node> = nodes.iter().map(|_| Node::default()).collect();
    for (from, node) in nodes.iter().enumerate() {
        let to = place(from);
        for next in &node.skips {
            turned[place(*next)].skips.push(to);
        }
        for edge in &node.edges {
            turned[place(edge.to)].edges.push(Edge { to, ..*edge });
        }
    }
    Automaton {
        nodes: turned,
        end,
        ..Automaton::default()
    }
}

/// The nodes that are reached from one without a byte, and not through `end`.
fn up_to(end: usize, automaton: &Automaton, node: usize) -> Vec<usize> {
    let mut nodes = vec![node];
    let mut n = 0;
    while let Some(node) = nodes.get(n).copied() {
        n += 1;
        if node != end {
            for to in &automaton.nodes[node].skips {
                if !nodes.contains(to) {
                    nodes.push(*to);
                }
            }
        }
    }
    nodes
}

/// Edges that both nodes take at once: the one's edge with the bytes in common, and the
/// other's.
fn pairs<'n>(one: &'n Node, other: &'n Node) -> impl Iterator<Item = (Edge, &'n Edge)> {
    let pairs =
        (one.edges.iter()).flat_map(|one| other.edges.iter().map(move |other| (one, other)));
    let both = pairs.map(|(one, other)| {
        let bytes = one.bytes.and(other.bytes);
        (Edge { bytes, ..*one }, other)
    });
    both.filter(|(edge, _)| !edge.bytes.is_empty())
}

/// The automaton of the states that were found.
#[derive(Default)]
struct Found {
    numbers: HashMap<State, usize>,
    nodes: Vec<Node>,
    next: Vec<State>,
}

impl Found {
    fn number(&mut self, state: State) -> usize {
        *self.numbers.entry(state).or_insert_with(|| {
            self.nodes.push(Node::default());
            self.next.push(state);
            self.nodes.len() - 1
        })
    }

    fn skip(&mut self, from: usize, state: State) {
        let to = self.number(state);
        self.nodes[from].skips.push(to);
    }

    fn edge(&mut self, from: usize, edge: Edge, beside: Beside) {
        let to = self.number((edge.to, beside));
        self.nodes[from].edges.push(Edge { to, ..edge });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::detect::{matcher::Matcher, template::Template};

    fn with_skips(automaton: &Automaton, mut next: Vec<usize>) -> HashSet<usize> {
        let mut nodes = HashSet::new();
        while let Some(node) = next.pop() {
            if nodes.insert(node) {
                next.extend(&automaton.nodes[node].skips);
            }
        }
        nodes
    }

    fn has(automaton: &Automaton, message: impl Iterator<Item = u8>) -> bool {
        let mut nodes = with_skips(automaton, vec![0]);
        for byte in message {
            let edges = nodes.iter().flat_map(|node| &automaton.nodes[*node].edges);
            let fitting = edges.filter(|edge| edge.bytes.has(byte));
            nodes = with_skips(automaton, fitting.map(|edge| edge.to).collect());
        }
        nodes.contains(&automaton.end)
    }

    /// Whether the pattern may leave the message unread. Judged from either end.
    fn may_be_unread(pattern: &str, message: &str) -> [bool; 2] {
        let template = Template::parse(pattern).expect(pattern);
        let messages = [false, true].map(|from_end| {
            let written = Automaton::new(&template, from_end);
            (from_end, unread(&written, |_| Ok(())).unwrap())
        });
        let mut found = [false; 2];
        for (from_end, unread) in messages {
            let Some(unread) = unread else { continue };
            for (is_turned, unread) in [(false, unread.clone()), (true, turned(unread))] {
                let has = match from_end != is_turned {
                    true => has(&unread, message.bytes().rev()),
                    false => has(&unread, message.bytes()),
                };
                found[usize::from(is_turned)] |= has;
            }
        }
        found
    }

    #[test]
    fn what_stays_within_the_free_text_is_read() {
        let pattern = "no [x <word> ]<user> from <addr>";
        for (message, expected) in [
            ("no x y z from 192.0.2.7", false),
            ("no x y from from 192.0.2.7", false),
            ("no a from 192.0.2.7", false),
            ("no x a", false),
            ("no x from 192.0.2.7", true),
            ("no x y from 192.0.2.7", true),
        ] {
            assert_eq!(may_be_unread(pattern, message), [expected; 2], "{message}");
        }
        for pattern in ["no <user> from <addr>", "no <addr>: <text>", "x[ y] <addr>"] {
            let template = Template::parse(pattern).unwrap();
            for from_end in [false, true] {
                let written = Automaton::new(&template, from_end);
                assert!(unread(&written, |_| Ok(())).unwrap().is_none(), "{pattern}");
            }
        }
    }

    /// What tells messages that are read from those that may not be, beside addresses
    /// and choices: a filter is refused for the latter only.
    #[test]
    fn what_ends_where_it_must_is_read() {
        for (pattern, message, expected) in [
            ("x <addr>:<word> <text>", "x 192.0.2.7:ab y", false),
            ("x <addr>:<word> <text>", "x 192.0.2.7:a:b y", true),
            ("x <addr>[ z]:<word> <text>", "x 192.0.2.7:,b y", false),
            ("x <addr>[ z]:<word> <text>", "x 2001:db8::7:5 y", true),
            ("x <addr>[ z]a <text>", "x 192.0.2.7a y", true),
            ("x <addr>[ z]. <text>", "x 192.0.2.7. y", false),
            ("x <host>[ z]. <text>", "x mail.example. y", true),
            ("x <host>[ z]: <text>", "x mail.example: y", false),
            ("<text> a <word>:<addr>", "y a b:192.0.2.7", false),
            ("<text> a <word>:<addr>", "y a b:b:192.0.2.7", true),
            (
                "no (x|x y)<user> from <addr>",
                "no x y from 192.0.2.7",
                false,
            ),
            ("no (x|x y) z <addr>", "no x z 192.0.2.7", false),
            ("no (x|y) <addr>", "no x 192.0.2.7", false),
            ("no <number><word> <addr>", "no 77 192.0.2.7", true),
            ("no <number><word> <addr>", "no 7x 192.0.2.7", false),
        ] {
            let found = may_be_unread(pattern, message);
            assert_eq!(found, [expected; 2], "{pattern}: {message}");
        }
        // Of a text twice in a choice none is another one.
        let template = Template::parse("(a|a) <addr>").unwrap();
        assert!(Automaton::new(&template, false).forks.len() < 3);
    }

    /// One part of a pattern, and what a program may write there.
    fn part() -> impl Strategy<Value = (String, Vec<String>)> {
        let values = |field: &'static str| -> &'static [&'static str] {
            match field {
                "<word>" => &["x", "b", "1.2.3.4", "y:", "a:b", "7"],
                "<user:word>" => &["z", "b", "7", "x:", "9.9.9.9", "from"],
                "<number>" => &["7", "12"],
                "<user>" => &["", "z", "x ", "b x 9.9.9.9", "x b from 9.9.9.9", " "],
                "(x|x b|b)" => &["x", "x b", "b"],
                "[x ]" => &["", "x "],
                "[<word> ]" => &["", "b ", "7 "],
                "[b <word>]" => &["", "b x"],
                "[ b]" => &["", " b"],
                "[x[ b] ]" => &["", "x ", "x b "],
                "[<number>]" => &["", "7"],
                "[ (a|a b)]" => &["", " a", " a b"],
                "<addr>" => &["192.0.2.7", "2001:db8::7", "fe80::7%eth0"],
                "<host>" => &["192.0.2.7", "mail.example", "mail."],
                _ => &[],
            }
        };
        let all = [
            "<word>",
            "<user:word>",
            "<number>",
            "<user>",
            "(x|x b|b)",
            "[x ]",
            "[<word> ]",
            "[b <word>]",
            "[ b]",
            "[x[ b] ]",
            "[<number>]",
            "[ (a|a b)]",
            " ",
            " ",
            " ",
            " ",
            ":",
            ": ",
            "b",
            " from ",
        ];
        prop::sample::select(all.to_vec()).prop_map(move |field| {
            let values = match values(field) {
                [] => vec![field.to_owned()],
                values => values.iter().map(|value| (*value).to_owned()).collect(),
            };
            (field.to_owned(), values)
        })
    }

    /// How many of the blanks at an end of a message, which are cut off there, are of
    /// its free text and of the fixed text beside that. Messages that lose others are
    /// not modelled.
    fn of_free_text(parts: &[(String, Vec<String>)], values: &[&str], at_start: bool) -> usize {
        let ends: Vec<_> = parts.iter().zip(values).collect();
        let (last, beside) = match at_start {
            true => (ends.first(), ends.get(1)),
            false => (ends.last(), ends.iter().rev().nth(1)),
        };
        let blanks = |text: &str| match at_start {
            true => text.len() - text.trim_start().len(),
            false => text.len() - text.trim_end().len(),
        };
        match (last, beside) {
            (Some(((field, _), text)), Some(((_, written), beside))) if field == "<user>" => {
                let is_fixed = text.trim().is_empty() && written.len() == 1;
                blanks(text) + if is_fixed { blanks(beside) } else { 0 }
            }
            _ => 0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30_000))]

        #[test]
        fn what_a_matcher_does_not_read_is_found(
            before in prop::collection::vec(part(), 0..6),
            behind in prop::collection::vec(part(), 0..6),
            form in prop::sample::select(vec!["<addr>", "<host>"]),
            chosen in prop::collection::vec(prop::collection::vec(0..6_usize, 13), 12),
        ) {
            let addrs: &[&str] = match form {
                "<addr>" => &["192.0.2.7", "2001:db8::7", "fe80::7%eth0"],
                _ => &["192.0.2.7", "mail.example", "mail."],
            };
            let addrs = addrs.iter().map(|addr| (*addr).to_owned()).collect();
            let parts = [before, vec![(form.to_owned(), addrs)], behind].concat();
            let pattern: String = parts.iter().map(|(field, _)| field.as_str()).collect();
            let Ok(template) = Template::parse(&pattern) else {
                return Ok(());
            };
            let written = Automaton::new(&template, false);
            let matcher = Matcher::from(template);
            for chosen in chosen {
                let values = parts.iter().zip(chosen);
                let values: Vec<&str> =
                    values.map(|((_, values), n)| values[n % values.len()].as_str()).collect();
                let message = values.concat();
                if message.len() - message.trim_end().len() > of_free_text(&parts, &values, false)
                    || message.len() - message.trim_start().len() > of_free_text(&parts, &values, true)
                {
                    continue;
                }
                let message = message.trim_ascii();
                prop_assert!(has(&written, message.bytes()), "{}: {:?}", pattern, message);
                if matcher.read(message.as_bytes()).is_none() {
                    let found = may_be_unread(&pattern, message);
                    prop_assert_eq!(found, [true; 2], "{}: {:?}", pattern, message);
                }
            }
        }
    }
}
