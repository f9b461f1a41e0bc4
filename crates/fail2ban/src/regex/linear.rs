//! Which of a filter's expressions can fit a text: one automaton of all of them, over
//! bytes, which reads the text once, in time linear in its length.
//!
//! What it accepts is at least what the expressions do. Where an expression has more than
//! a regular language (a back reference), or what automata do not have (lookarounds,
//! conditionals), or what depends on letters beyond ASCII, the automaton has less of it:
//! those fit more texts, and the exact matcher decides.

use regex_automata::{
    Input, MatchKind, PatternSet,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson,
};
use regex_syntax::hir::{self, Class, ClassBytes, ClassBytesRange, Hir, Repetition};

use super::{
    Regex,
    ast::{Anchor, Greed, Node},
    char_set::CharSet,
    specialize::Cases,
};

/// The largest automaton before its states are made, in bytes.
const MAX_NFA: usize = 16 << 20;
/// What the states that texts have led to may take, in bytes; beyond that they are made
/// anew. Each jail has three such caches, and whoever writes lines chooses what is in them.
const MAX_STATES: usize = 1 << 20;

/// The automaton of some expressions.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// `None`: it would be too large, and all of them may fit.
    dfa: Option<DFA>,
    /// The number of the expression and the case that each of the automaton's patterns is.
    patterns: Vec<(usize, Option<usize>)>,
}

/// The states of an automaton, as far as texts have asked for them; and the answer.
#[derive(Clone, Debug)]
pub struct CandidateCache {
    cache: Option<Cache>,
    set: PatternSet,
}

impl Candidates {
    pub(super) fn new<'r>(expressions: impl Iterator<Item = &'r Regex>) -> Self {
        let expressions: Vec<_> = expressions.collect();
        Self::of_trees(&expressions, Regex::trees)
            .or_else(|| Self::of_trees(&expressions, |regex| vec![regex.tree()]))
            .unwrap_or_else(|| Self {
                dfa: None,
                patterns: (0..expressions.len()).map(|n| (n, None)).collect(),
            })
    }

    /// The automaton of these trees; `None`: it would be too large.
    fn of_trees<'r>(
        expressions: &[&'r Regex],
        trees: impl Fn(&'r Regex) -> Vec<(Option<usize>, &'r Node)>,
    ) -> Option<Self> {
        let (mut all, mut patterns) = (Vec::new(), Vec::new());
        for (number, regex) in expressions.iter().enumerate() {
            for (case, tree) in trees(regex) {
                all.push(relaxed(tree, true));
                patterns.push((number, case));
            }
        }
        let dfa = match all.is_empty() {
            true => None,
            false => Some(build(&all)?),
        };
        Some(Self { dfa, patterns })
    }

    /// No text was read yet.
    pub fn cache(&self) -> CandidateCache {
        CandidateCache {
            cache: self.dfa.as_ref().map(DFA::create_cache),
            set: PatternSet::new(self.patterns.len()),
        }
    }

    /// What the states take by now, in bytes.
    #[cfg(test)]
    pub fn memory(&self, cache: &CandidateCache) -> usize {
        let of = |cache: &Cache| cache.memory_usage();
        cache.cache.as_ref().map_or(0, of)
    }

    /// The numbers of those that can fit, in order, and in which cases.
    pub fn of<'c>(
        &'c self,
        text: &str,
        cache: &'c mut CandidateCache,
    ) -> impl Iterator<Item = (usize, Cases)> + 'c {
        let set = &mut cache.set;
        set.clear();
        let known = match (&self.dfa, &mut cache.cache) {
            (Some(dfa), Some(cache)) => dfa
                .try_which_overlapping_matches(cache, &Input::new(text), set)
                .is_ok(),
            _ => false,
        };
        if !known {
            for number in 0..self.patterns.len() {
                set.insert(regex_automata::PatternID::must(number));
            }
        }
        let can_fit = set.iter().map(|pattern| self.patterns[pattern.as_usize()]);
        let mut can_fit = can_fit.peekable();
        std::iter::from_fn(move || {
            let (number, case) = can_fit.next()?;
            let Some(case) = case else {
                return Some((number, Cases::ALL));
            };
            let mut cases = Cases::NONE.with(case);
            while let Some((_, Some(case))) = can_fit.next_if(|(other, _)| *other == number) {
                cases = cases.with(case);
            }
            Some((number, cases))
        })
    }
}

fn build(all: &[Hir]) -> Option<DFA> {
    let nfa = thompson::Compiler::new()
        .configure(
            thompson::Config::new()
                .utf8(false)
                .which_captures(thompson::WhichCaptures::None)
                .nfa_size_limit(Some(MAX_NFA)),
        )
        .build_many_from_hir(all)
        .ok()?;
    DFA::builder()
        .configure(
            DFA::config()
                .match_kind(MatchKind::All)
                .cache_capacity(MAX_STATES)
                .skip_cache_capacity_check(true),
        )
        .build_from_nfa(nfa)
        .ok()
}

/// At least what a node accepts; `last`: nothing that takes a character follows.
fn relaxed(node: &Node, last: bool) -> Hir {
    match node {
        Node::Empty | Node::Look { .. } => Hir::empty(),
        Node::Char(c) => {
            let mut bytes = [0; 4];
            Hir::literal(c.encode_utf8(&mut bytes).as_bytes())
        }
        Node::Set(set) => one_of(set),
        Node::Concat(nodes) => {
            let behind = |n: usize| nodes[n + 1..].iter().all(|node| node.width().1 == Some(0));
            Hir::concat(
                nodes
                    .iter()
                    .enumerate()
                    .map(|(n, node)| relaxed(node, last && behind(n)))
                    .collect(),
            )
        }
        Node::Alternatives(nodes) => {
            Hir::alternation(nodes.iter().map(|node| relaxed(node, last)).collect())
        }
        Node::Repeat {
            node,
            min,
            max,
            kind,
        } => {
            let sub = match &**node {
                // A character beyond ASCII is several bytes, which are as good as several
                // characters where any number may come.
                Node::Set(set) if *min <= 1 && max.is_none() => {
                    Hir::class(Class::Bytes(bytes_of(set, true)))
                }
                node => relaxed(node, false),
            };
            Hir::repetition(Repetition {
                min: *min,
                max: *max,
                greedy: *kind != Greed::Lazy,
                sub: Box::new(sub),
            })
        }
        Node::Group(_, node) | Node::Atomic(node) => relaxed(node, last),
        Node::At(place) => match place {
            Anchor::TextStart => Hir::look(hir::Look::Start),
            Anchor::LineStart => Hir::look(hir::Look::StartLF),
            Anchor::LineEnd => Hir::look(hir::Look::EndLF),
            Anchor::TextEnd => Hir::look(hir::Look::End),
            // Before a newline at the end: what follows might take that.
            Anchor::End if last => Hir::concat(vec![
                Hir::repetition(Repetition {
                    min: 0,
                    max: Some(1),
                    greedy: true,
                    sub: Box::new(Hir::literal(*b"\n")),
                }),
                Hir::look(hir::Look::End),
            ]),
            Anchor::End | Anchor::WordBoundary { .. } | Anchor::NotWordBoundary { .. } => {
                Hir::empty()
            }
        },
        Node::Backref { .. } => Hir::repetition(Repetition {
            min: 0,
            max: None,
            greedy: true,
            sub: Box::new(Hir::class(Class::Bytes(ClassBytes::new([
                ClassBytesRange::new(0, 255),
            ])))),
        }),
        Node::Conditional { yes, no, .. } => {
            Hir::alternation(vec![relaxed(yes, last), relaxed(no, last)])
        }
    }
}

/// One character of a set: a byte of ASCII, or up to four others.
fn one_of(set: &CharSet) -> Hir {
    let ascii = Hir::class(Class::Bytes(bytes_of(set, false)));
    if !set.has_wide() {
        return ascii;
    }
    let wide = ClassBytes::new([ClassBytesRange::new(0x80, 0xff)]);
    Hir::alternation(vec![
        ascii,
        Hir::repetition(Repetition {
            min: 2,
            max: Some(4),
            greedy: true,
            sub: Box::new(Hir::class(Class::Bytes(wide))),
        }),
    ])
}

fn bytes_of(set: &CharSet, with_wide: bool) -> ClassBytes {
    let mut class = ClassBytes::empty();
    for byte in (0..0x80).filter(|byte| set.has_ascii(*byte)) {
        class.push(ClassBytesRange::new(byte, byte));
    }
    if with_wide && set.has_wide() {
        class.push(ClassBytesRange::new(0x80, 0xff));
    }
    class
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attacker's lines fill the cache, and it begins anew; what can fit is found as
    /// before.
    #[test]
    fn states_are_bounded_whatever_texts_ask_for() {
        let patterns = [
            r"^(?:a|b)*a(?:a|b){11}c(?P<fid>x)$",
            r"(?P<dns>[\w.-]+) \S+ (?:x|y)*z(?:x|y){9}$",
        ];
        let all = patterns.map(|pattern| Regex::new(pattern, false).unwrap());
        let candidates = Regex::candidates(all.iter());
        let mut cache = candidates.cache();
        let mut seed = 1u64;
        for _ in 0..3_000 {
            let letters = (0..60).map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ['a', 'b', 'x', 'y'][(seed >> 61) as usize % 4]
            });
            let text: String = letters.collect();
            _ = candidates.of(&text, &mut cache).count();
        }
        let used = candidates.memory(&cache);
        assert!(used <= MAX_STATES + (64 << 10), "{used}");
        let text = format!("{}cx", "ab".repeat(6));
        let can_fit = candidates.of(&text, &mut cache);
        assert_eq!(can_fit.collect::<Vec<_>>(), [(0, Cases::ALL)]);
    }
}
