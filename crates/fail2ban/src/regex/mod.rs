//! Regular expressions as Python's `re` means them.
//!
//! `tags` makes an expression of what stands in a filter, `parse` a tree of that. The
//! tree is matched twice: `linear` makes an automaton of all trees of a filter that says
//! in one pass over a text which of them can fit it, and `backtrack` finds for those
//! what each group holds, with the very semantics of Python's, in bounded time.

mod ast;
mod backtrack;
mod char_set;
mod compile;
mod linear;
mod parse;
mod tags;

use std::collections::BTreeMap;

pub use backtrack::{NONE, Scratch, Search};
pub use linear::{CandidateCache, Candidates};
pub use parse::{MAX_PATTERN, NO_BACKREF_BEHIND, RegexError};
pub use tags::expand;

use compile::Code;
use parse::Parsed;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Regex {
    parsed: Parsed,
    code: Code,
}

impl Regex {
    /// Compiles an expression without tags; `multi_line`: `^` and `$` are of lines.
    ///
    /// # Errors
    /// Of what Python refuses, of what is not supported, and of what is too large.
    pub fn new(pattern: &str, multi_line: bool) -> Result<Self, RegexError> {
        let parsed = parse::parse(pattern, multi_line)?;
        let code = compile::compile(&parsed).map_err(|message| RegexError { at: 0, message })?;
        Ok(Self { parsed, code })
    }

    /// The leftmost match, as `re.search` finds it; its groups are in `scratch`.
    pub fn search(&self, text: &str, from: usize, scratch: &mut Scratch) -> Search {
        self.code.search(text, from, scratch)
    }

    /// The automaton of all these expressions.
    pub fn candidates<'r>(all: impl Iterator<Item = &'r Self>) -> Candidates {
        Candidates::new(all.map(|regex| &regex.parsed))
    }

    /// Forgets what [`candidates`](Self::candidates) need, which is not asked again.
    pub fn forget_tree(&mut self) {
        self.parsed.node = ast::Node::Empty;
    }

    /// The names of its groups, and their numbers.
    pub fn names(&self) -> &BTreeMap<String, usize> {
        &self.parsed.names
    }

    /// How many groups it has, the whole match included.
    pub fn groups(&self) -> usize {
        self.parsed.groups
    }
}
