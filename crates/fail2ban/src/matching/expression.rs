//! One expression of a filter's, and where what its groups hold goes.

use super::groups::{self, Key, Layout, Names, Values};
use crate::{
    error::{Error, ErrorKind},
    filter_source::Pattern,
    regex::{self, CandidateCache, Candidates, Cases, Regex, Scratch, Search},
};

#[derive(Clone, Debug)]
pub struct Expression {
    regex: Regex,
    layout: Layout,
}

/// Expressions of which the first that fits counts.
#[derive(Clone, Debug)]
pub struct Expressions {
    all: Vec<Expression>,
    candidates: Candidates,
}

/// The expressions' memory of texts that came before.
#[derive(Clone, Debug)]
pub struct Memory {
    cache: CandidateCache,
    /// The last text fitted the only one, which is then tried without asking the
    /// automaton.
    lone_fitted: bool,
}

impl Expressions {
    pub fn new(mut all: Vec<Expression>) -> Self {
        let candidates = Regex::candidates(all.iter().map(|expression| &expression.regex));
        for expression in &mut all {
            expression.regex.forget_tree();
        }
        Self { all, candidates }
    }

    pub fn memory(&self) -> Memory {
        Memory {
            cache: self.candidates.cache(),
            lone_fitted: false,
        }
    }

    /// The numbers of those that can fit a text.
    pub fn candidates(&self, text: &str, memory: &mut Memory) -> Vec<usize> {
        let can_fit = self.candidates.of(text, &mut memory.cache);
        can_fit.map(|(number, _)| number).collect()
    }

    /// The number of the first that fits. What its groups hold is in `scratch` until the
    /// next search. None is asked behind a search that was given up: who can make an
    /// expression take too long must not choose which one reads the text.
    pub fn first_fitting(
        &self,
        text: &str,
        memory: &mut Memory,
        scratch: &mut Scratches,
    ) -> Option<usize> {
        match &*self.all {
            [] => return None,
            // What one line fits the next one is likely to.
            [lone] if memory.lone_fitted => {
                memory.lone_fitted = lone.search(text, scratch);
                return memory.lone_fitted.then_some(0);
            }
            _ => {}
        }
        let given_up = scratch.exhausted;
        let mut found = None;
        for (number, cases) in self.candidates.of(text, &mut memory.cache) {
            if self.all[number].search_as(text, cases, scratch) {
                found = Some(number);
            }
            if found.is_some() || scratch.exhausted > given_up {
                break;
            }
        }
        memory.lone_fitted = self.all.len() == 1 && found.is_some();
        found
    }
}

impl std::ops::Deref for Expressions {
    type Target = [Expression];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

/// What searches need of memory.
#[derive(Clone, Debug, Default)]
pub struct Scratches {
    backtrack: Scratch,
    /// Searches that were given up because they would have taken too long.
    pub exhausted: u64,
}

impl Scratches {
    /// Where the last match begins and ends.
    pub fn span(&self) -> (usize, usize) {
        (self.backtrack.slots[0], self.backtrack.slots[1])
    }
}

/// Why a pattern cannot be used.
pub fn error(pattern: &Pattern, why: &str) -> Error {
    const SHOWN: usize = 120;
    let text: String = pattern.text.chars().take(SHOWN).collect();
    let more = if text.len() < pattern.text.len() {
        "…"
    } else {
        ""
    };
    let message = format!("{why}: {text}{more}");
    Error::new(pattern.origin.clone(), ErrorKind::Pattern, message)
}

impl Expression {
    pub fn new(
        pattern: &Pattern,
        multi_line: bool,
        finds_names: bool,
        names: &mut Names,
    ) -> Result<Self, Error> {
        let text = regex::expand(&pattern.text, finds_names);
        let regex =
            Regex::new(&text, multi_line).map_err(|why| error(pattern, &why.to_string()))?;
        let layout = Layout::new(regex.names(), names);
        Ok(Self { regex, layout })
    }

    /// Does it have a group that a failure is counted by, or a session known by?
    pub fn names_somebody(&self) -> bool {
        !groups::names_nobody(&self.regex)
    }

    pub fn has(&self, keys: &[Key]) -> bool {
        self.layout.has(keys)
    }

    /// The names of its groups, in their order.
    pub fn group_names(&self) -> Vec<&str> {
        let mut groups: Vec<_> = self.regex.names().iter().collect();
        groups.sort_by_key(|(_, number)| **number);
        groups.into_iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Whether the expression fits. What its groups hold is in `scratch` until the next search.
    pub fn search(&self, text: &str, scratch: &mut Scratches) -> bool {
        self.search_as(text, Cases::ALL, scratch)
    }

    /// The same for a text that can be only these cases.
    fn search_as(&self, text: &str, cases: Cases, scratch: &mut Scratches) -> bool {
        match self.regex.search_as(text, cases, &mut scratch.backtrack) {
            Search::Found => true,
            Search::No => false,
            Search::Exhausted => {
                scratch.exhausted += 1;
                false
            }
        }
    }

    /// What its groups hold after it has fitted.
    pub fn fill<'t>(&self, text: &'t str, scratch: &Scratches, values: &mut Values<'t>) {
        self.layout.fill(text, &scratch.backtrack, values);
    }
}
