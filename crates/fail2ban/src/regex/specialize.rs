//! An expression specialized by which of the groups that its conditionals ask for match.
//! Where the automaton says which of these cases a text can be, the exact matcher tries no
//! way through the others: in `(?P<a>x)?.*(?(a)y|z)` the text's end tells whether `a` is to
//! match, which else is known only after every way was tried.
//!
//! A specialized expression finds what the whole one does on every text that no other case
//! fits: of the whole one's ways it has those of its case, in their order.

use super::{
    ast::{Greed, Node},
    compile::{self, Code},
    parse::Parsed,
};

/// The most groups that an expression is specialized by; each of them doubles its part of
/// the automaton.
const MAX_GROUPS: usize = 2;
/// The most instructions of an expression that is specialized, up to nine times.
const MAX_INSTRUCTIONS: usize = 2_000;

/// The cases that a text can be, a bit for each. The bits of a case's number say which
/// groups match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cases(u16);

impl Cases {
    /// All cases: nothing is known of the text.
    pub const ALL: Self = Self(u16::MAX);
    /// No case: no text fits.
    pub const NONE: Self = Self(0);

    /// Adds the case of that number.
    pub fn with(self, case: usize) -> Self {
        Self(self.0 | 1 << case)
    }
}

/// An expression in each of its cases.
#[derive(Clone, Debug)]
pub struct Specialized {
    /// The trees by the cases' numbers; `None`: no text is that.
    trees: Vec<Option<Node>>,
    codes: Vec<Code>,
    /// By the cases that a text can be: the place in `codes`, `None`: the whole expression.
    by_cases: Vec<Option<usize>>,
}

impl Specialized {
    /// `None`: it has no conditional, or none whose group is asked about behind its only
    /// place.
    pub fn new(parsed: &Parsed, whole: &Code) -> Option<Self> {
        let mut groups = Vec::new();
        parsed.node.visit(&mut |node| match node {
            Node::Conditional { group, .. } if !groups.contains(group) => groups.push(*group),
            _ => {}
        });
        groups.retain(|group| is_settled_by_place(&parsed.node, *group));
        groups.truncate(MAX_GROUPS);
        if groups.is_empty() || whole.insts.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let cases = 1 << groups.len();
        let settled = |values: &[Option<bool>]| {
            let known = groups.iter().zip(values);
            known
                .filter_map(|(group, matches)| Some((*group, (*matches)?)))
                .try_fold(parsed.node.clone(), |node, (group, matches)| {
                    // The groups before may leave this one no place.
                    let can_be = !matches || contains(&node, group);
                    can_be.then(|| settle(&node, group, matches)).flatten()
                })
        };
        let of_case = |case: usize, n: usize| case >> n & 1 == 1;
        let trees = (0..cases).map(|case| {
            let values: Vec<_> = (0..groups.len()).map(|n| Some(of_case(case, n))).collect();
            settled(&values)
        });
        let mut special = Self {
            trees: trees.collect(),
            codes: Vec::new(),
            by_cases: Vec::new(),
        };
        let mut known: Vec<Vec<Option<bool>>> = Vec::new();
        for bits in 0..1usize << cases {
            let can_be: Vec<usize> = (0..cases).filter(|case| bits >> case & 1 == 1).collect();
            // What all of them agree on.
            let values: Vec<Option<bool>> = (0..groups.len())
                .map(|n| {
                    let first = of_case(*can_be.first()?, n);
                    (can_be.iter().all(|case| of_case(*case, n) == first)).then_some(first)
                })
                .collect();
            let place = match known.iter().position(|known| *known == values) {
                _ if values.iter().all(Option::is_none) => None,
                Some(place) => Some(place),
                None => settled(&values).and_then(|node| {
                    let parsed = Parsed {
                        node,
                        groups: parsed.groups,
                        names: Default::default(),
                    };
                    special.codes.push(compile::compile(&parsed).ok()?);
                    known.push(values);
                    Some(special.codes.len() - 1)
                }),
            };
            special.by_cases.push(place);
        }
        Some(special)
    }

    /// What finds the matches of a text that can be only these; `None`: the whole expression.
    pub fn code(&self, cases: Cases) -> Option<&Code> {
        let place = self.by_cases.get(usize::from(cases.0)).copied().flatten()?;
        Some(&self.codes[place])
    }

    /// The cases' numbers and trees.
    pub fn trees(&self) -> impl Iterator<Item = (usize, &Node)> {
        let trees = self.trees.iter().enumerate();
        trees.filter_map(|(case, tree)| Some((case, tree.as_ref()?)))
    }

    /// Forgets the trees, which only an automaton is made of.
    pub fn forget_trees(&mut self) {
        self.trees.clear();
    }
}

fn contains(node: &Node, group: usize) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= matches!(node, Node::Group(number, _) if *number == group));
    found
}

fn asks(node: &Node, group: usize) -> bool {
    let mut found = false;
    node.visit(&mut |node| {
        found |= matches!(node, Node::Conditional { group: asked, .. } if *asked == group);
    });
    found
}

/// Is what conditionals find of this group settled by whether a way leads through its place?
/// That is once, before each that asks, and nothing that is tried but one way.
fn is_settled_by_place(node: &Node, group: usize) -> bool {
    let mut places = 0;
    node.visit(&mut |node| {
        places += usize::from(matches!(node, Node::Group(number, _) if *number == group));
    });
    places == 1 && is_before_its_conditionals(node, group)
}

fn is_before_its_conditionals(node: &Node, group: usize) -> bool {
    let holds = |node: &&Node| contains(node, group);
    match node {
        Node::Group(number, inner) if *number == group => !asks(inner, group),
        Node::Group(_, inner) => is_before_its_conditionals(inner, group),
        Node::Concat(nodes) => {
            let before = nodes.iter().take_while(|node| !contains(node, group));
            let asks_before = before.into_iter().any(|node| asks(node, group));
            let mut holding = nodes.iter().filter(holds);
            !asks_before
                && holding
                    .next()
                    .is_some_and(|node| is_before_its_conditionals(node, group))
        }
        Node::Alternatives(nodes) => {
            let mut holding = nodes.iter().filter(holds);
            holding
                .next()
                .is_some_and(|node| is_before_its_conditionals(node, group))
        }
        Node::Repeat {
            node,
            max: Some(1),
            kind: Greed::Greedy | Greed::Lazy,
            ..
        } => node.width().0 > 0 && is_before_its_conditionals(node, group),
        _ => false,
    }
}

/// The expression where that group matches, or does not; `None`: no text fits it then.
fn settle(node: &Node, group: usize, matches: bool) -> Option<Node> {
    let settled = |node: &Node| settle(node, group, matches);
    let boxed = |node: &Node| Some(Box::new(settled(node)?));
    Some(match node {
        Node::Conditional {
            group: asked,
            yes,
            no,
        } => match (*asked == group, matches) {
            (true, true) => settled(yes)?,
            (true, false) => settled(no)?,
            (false, _) => Node::Conditional {
                group: *asked,
                yes: boxed(yes)?,
                no: boxed(no)?,
            },
        },
        Node::Group(number, _) if *number == group && !matches => return None,
        Node::Group(number, inner) => Node::Group(*number, boxed(inner)?),
        Node::Alternatives(nodes) => {
            let must_hold = matches && contains(node, group);
            let left: Vec<_> = (nodes.iter())
                .filter(|node| !must_hold || contains(node, group))
                .filter_map(settled)
                .collect();
            if left.is_empty() {
                return None;
            }
            Node::Alternatives(left)
        }
        Node::Repeat {
            node: inner,
            min,
            max,
            kind,
        } => match (settled(inner), contains(inner, group)) {
            (Some(once), true) if matches => once,
            (Some(inner), _) => Node::Repeat {
                node: Box::new(inner),
                min: *min,
                max: *max,
                kind: *kind,
            },
            (None, _) if *min == 0 => Node::Empty,
            (None, _) => return None,
        },
        Node::Concat(nodes) => Node::Concat(nodes.iter().map(settled).collect::<Option<_>>()?),
        Node::Look {
            node,
            behind,
            negate,
        } => Node::Look {
            node: boxed(node)?,
            behind: *behind,
            negate: *negate,
        },
        Node::Atomic(inner) => Node::Atomic(boxed(inner)?),
        Node::Empty | Node::Char(_) | Node::Set(_) | Node::At(_) | Node::Backref { .. } => {
            node.clone()
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::regex::{Regex, Scratch, Search};

    /// What the expressions of the test find in texts of these letters, whole and specialized.
    #[test]
    fn a_specialized_expression_finds_what_the_whole_one_does() {
        let patterns = [
            r"^(?P<a>x)?(?P<b>\S+|[^:]+) ?(?(a)y|z)$",
            r"(?P<a>x )?(?:(?P<b>\S+)|(?(a)(?:(?! y ).)*?|[^:]+)) y (?P<h>[xz]+)(?: z)?(?(b): |(?:(?:(?! y ).)*)$)",
            r"(?:(?P<a>x+)|y)(z|(?P<c>:)|)(?(a)(?(c)x|y)|[xz]) *",
            r"(?P<a>x)??.*?(?(a)y|:)",
            r"(?:(?P<a>x)(?P<b>y)?)?(?(a)z|:)(?(b)x|y)",
            r"(?:(?P<a>x)|(?P<b>y))(?(a)x|z)(?(b)z|y)",
            r"(?P<a>x(?P<b>y)?)?(?(b)z|:)(?(a)x|y)",
            r"(?:x(?P<a>y)|(?(a)x|z)y)+(?(a)x|z)",
            r"(?P<a>x*)?(?(a)y|z)",
            r"(?>(?P<a>x)|xy)(?(a)z|:)",
            r"(?=(?P<a>x)|y)[xy](?(a)z|:)",
        ];
        let specialized = [
            true, true, true, true, true, true, true, false, false, false, false,
        ];
        let mut seed = 1u64;
        let mut texts = vec![String::new()];
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let length = (seed >> 32) % 14;
            let letters = (0..length).map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ['x', 'y', 'z', ':', ' ', 'x', ' '][(seed >> 33) as usize % 7]
            });
            texts.push(letters.collect());
        }
        for (pattern, is_specialized) in patterns.into_iter().zip(specialized) {
            let regex = Regex::new(pattern, false).unwrap();
            assert_eq!(regex.special.is_some(), is_specialized, "{pattern}");
            let candidates = Regex::candidates([&regex].into_iter());
            let mut cache = candidates.cache();
            let (mut whole, mut special) = (Scratch::default(), Scratch::default());
            let (mut found, mut by_special) = (0, 0);
            for text in &texts {
                let cases = candidates.of(text, &mut cache).next();
                let has = regex.search(text, 0, &mut whole);
                let Some((_, cases)) = cases else {
                    assert_eq!(has, Search::No, "{pattern} in {text:?}");
                    continue;
                };
                by_special += usize::from(
                    (regex.special.as_ref()).is_some_and(|special| special.code(cases).is_some()),
                );
                found += usize::from(has == Search::Found);
                assert_eq!(
                    regex.search_as(text, cases, &mut special),
                    has,
                    "{pattern} in {text:?}"
                );
                if has == Search::Found {
                    assert_eq!(whole.slots, special.slots, "{pattern} in {text:?}");
                }
            }
            assert!(found > 50, "{pattern}: {found}");
            assert_eq!(by_special > 50, is_specialized, "{pattern}: {by_special}");
        }
    }
}
