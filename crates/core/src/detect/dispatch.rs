//! Which rules can fit a message, by its first byte: most messages of a program
//! are no failures, and most rules begin with fixed text.

use super::matcher::Matcher;

#[derive(Clone, Debug)]
pub(super) struct Dispatch {
    /// By the first byte of a message: the numbers of rules, in their order.
    by_first: Vec<Box<[u16]>>,
}

impl Dispatch {
    /// A rule's number is its place; there are at most 65,536.
    pub fn new<'a>(rules: impl Iterator<Item = &'a Matcher>) -> Self {
        let firsts: Vec<_> = rules.map(Matcher::first_bytes).collect();
        let candidates = |byte| {
            (0u16..)
                .zip(&firsts)
                .filter(|(_, first)| first.as_ref().is_none_or(|f| f.contains(&byte)))
                .map(|(rule, _)| rule)
                .collect()
        };
        Self {
            by_first: (0..=u8::MAX).map(candidates).collect(),
        }
    }

    /// The rules that can fit this message, in their order; none fits an empty one.
    pub fn candidates(&self, message: &[u8]) -> impl Iterator<Item = usize> {
        let rules = match message.first() {
            Some(byte) => &self.by_first[usize::from(*byte)][..],
            None => &[],
        };
        rules.iter().map(|rule| usize::from(*rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::template::Template;

    #[test]
    fn a_rule_is_a_candidate_wherever_it_can_fit() {
        let rules: Vec<Matcher> = [
            "failed <addr>",
            "<addr> failed",
            "[error: ](invalid|Invalid) <addr>",
            "[<word> ]x <addr>",
            "<text> from <addr>",
        ]
        .map(|text| Template::parse(text).unwrap().into())
        .into();
        let dispatch = Dispatch::new(rules.iter());
        for (message, candidates) in [
            ("failed", &[0, 1, 3, 4][..]),
            ("error", &[1, 2, 3, 4]),
            ("invalid", &[1, 2, 3, 4]),
            ("Invalid", &[1, 2, 3, 4]),
            ("other", &[1, 3, 4]),
            ("", &[]),
        ] {
            let found: Vec<_> = dispatch.candidates(message.as_bytes()).collect();
            assert_eq!(found, candidates, "{message}");
        }
    }
}
