//! Regular expressions as Python's `re` means them.
//!
//! `tags` makes an expression of what stands in a filter, `parse` a tree of that. The
//! tree is matched twice: `linear` makes an automaton of all trees of a filter that says
//! in one pass over a text which of them can fit it, and `backtrack` finds for those
//! what each group holds, with the very semantics of Python's, in bounded time. Where
//! conditionals ask for groups, the automaton has a tree for each case (`specialize`), and
//! only those that the text can be are tried.

mod ast;
mod backtrack;
mod char_set;
mod compile;
mod linear;
mod parse;
mod specialize;
mod tags;

use std::collections::BTreeMap;

pub use backtrack::{NONE, Scratch, Search};
pub use linear::{CandidateCache, Candidates};
pub use parse::{MAX_PATTERN, NO_BACKREF_BEHIND, RegexError};
pub use specialize::Cases;
pub use tags::{expand, expand_for_python};

use compile::Code;
use parse::Parsed;
use specialize::Specialized;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Regex {
    parsed: Parsed,
    code: Code,
    /// By what its conditionals find, where it has any.
    special: Option<Specialized>,
}

impl Regex {
    /// Compiles an expression without tags; `multi_line`: `^` and `$` are of lines.
    ///
    /// # Errors
    /// Of what Python refuses, of what is not supported, and of what is too large.
    pub fn new(pattern: &str, multi_line: bool) -> Result<Self, RegexError> {
        let parsed = parse::parse(pattern, multi_line)?;
        let code = compile::compile(&parsed).map_err(|message| RegexError { at: 0, message })?;
        let special = Specialized::new(&parsed, &code);
        Ok(Self {
            parsed,
            code,
            special,
        })
    }

    /// The leftmost match, as `re.search` finds it; its groups are in `scratch`.
    pub fn search(&self, text: &str, from: usize, scratch: &mut Scratch) -> Search {
        self.code.search(text, from, scratch)
    }

    /// The same as [`search`](Self::search) from the beginning, in less time where the automaton
    /// has said that the text can be only some `cases`.
    pub fn search_as(&self, text: &str, cases: Cases, scratch: &mut Scratch) -> Search {
        let special = self.special.as_ref().and_then(|all| all.code(cases));
        special.unwrap_or(&self.code).search(text, 0, scratch)
    }

    /// The automaton of all these expressions.
    pub fn candidates<'r>(all: impl Iterator<Item = &'r Self>) -> Candidates {
        Candidates::new(all)
    }

    /// The trees that the automaton is made of, each with the number of its case; `None`: it has
    /// no cases.
    fn trees(&self) -> Vec<(Option<usize>, &ast::Node)> {
        match &self.special {
            Some(special) => special.trees().map(|(n, tree)| (Some(n), tree)).collect(),
            None => vec![self.tree()],
        }
    }

    /// The tree of all cases.
    fn tree(&self) -> (Option<usize>, &ast::Node) {
        (None, &self.parsed.node)
    }

    /// Forgets what [`candidates`](Self::candidates) need, which is not asked again.
    pub fn forget_tree(&mut self) {
        self.parsed.node = ast::Node::Empty;
        if let Some(special) = &mut self.special {
            special.forget_trees();
        }
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
