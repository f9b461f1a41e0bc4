//! Which `failregex` fits a line, what its groups hold, and whether an `ignoreregex` takes it
//! away again.

use jiff::Timestamp;

use super::{
    Filter, FilterState, Standing,
    failure::{Failure, NoFailure},
    groups::{CONTENT, Value, Values},
    window::{Span, Window},
};
use crate::date::Clock;

/// A `failregex` that has fitted.
pub(super) struct Fit<'t> {
    pub regex: usize,
    pub values: Values<'t>,
    /// How many lines it is of.
    pub lines: u32,
    /// The lines of a window that the expression covers.
    matched: Option<String>,
}

impl Fit<'_> {
    /// What `ignoreregex` sees of it.
    pub fn text<'s>(&'s self, subject: &'s str) -> &'s str {
        self.matched.as_deref().unwrap_or(subject)
    }
}

impl Filter {
    /// `text`: the line, or the window's lines.
    pub(super) fn find(
        &self,
        state: &mut FilterState,
        text: &str,
        window: Option<&Window>,
        date: Option<Timestamp>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let ignores_early = self.ignoreregex.len() + 2 < self.failregex.len();
        if ignores_early && let Some(ignore) = self.ignored(state, text) {
            return Err(NoFailure::Ignored(ignore));
        }
        let mut before: Values<'_> = Vec::new();
        let mut content = std::mem::take(&mut state.content);
        content.clear();
        if let Some(prefregex) = self.prefregex.first() {
            let memory = &mut state.memories.prefregex;
            if (self.prefregex)
                .first_fitting(text, memory, &mut state.scratch)
                .is_none()
            {
                state.content = content;
                return Err(NoFailure::Prefregex);
            }
            before.resize(self.names.len(), None);
            prefregex.fill(text, &state.scratch, &mut before);
            let part = before[CONTENT].take();
            if let Some(part) = part
                .as_ref()
                .map(Value::as_str)
                .filter(|part| !part.is_empty())
            {
                content.push_str(part);
                content.push('\n');
                if window.is_some() {
                    let mut only = Window::default();
                    only.push(part.to_owned(), 1);
                    state.window = only;
                }
            }
        }
        let subject = match content.is_empty() {
            true => text,
            false => &content,
        };
        let found = self.fitting(state, subject, window, before, date, clock);
        state.content = content;
        found
    }

    fn fitting<'t>(
        &self,
        state: &mut FilterState,
        subject: &'t str,
        window: Option<&Window>,
        before: Values<'t>,
        date: Option<Timestamp>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let memory = &mut state.memories.failregex;
        let found = self
            .failregex
            .first_fitting(subject, memory, &mut state.scratch);
        let Some(regex) = found else {
            let text = subject.trim_end_matches('\n').to_owned();
            return Err(NoFailure::Failregex(text));
        };
        let fit = self.fit(state, regex, subject, window, before);
        if let Some(ignore) = self.ignored(state, fit.text(subject)) {
            return Err(NoFailure::Ignored(ignore));
        }
        let (failure, standing) = self.conclude(state, fit, (date, &[]), clock);
        match standing {
            Standing::Failed => Ok(failure),
            Standing::Pending => Err(NoFailure::Pending(regex)),
            Standing::NoFail => Err(NoFailure::NoFail(regex)),
        }
    }

    /// What the expression's groups hold which has fitted last; the lines of the window
    /// that it has used up leave.
    pub(super) fn fit<'t>(
        &self,
        state: &mut FilterState,
        regex: usize,
        subject: &'t str,
        window: Option<&Window>,
        before: Values<'t>,
    ) -> Fit<'t> {
        let mut fit = Fit {
            regex,
            values: match before.is_empty() {
                true => vec![None; self.names.len()],
                false => before,
            },
            lines: 1,
            matched: None,
        };
        self.failregex[regex].fill(subject, &state.scratch, &mut fit.values);
        if let Some(window) = window {
            let (begin, end) = state.scratch.span();
            let span = Span {
                text: subject,
                begin,
                end,
                skipped: self.skipped(&fit.values),
            };
            let (matched, rest) = window.split(&span);
            fit.lines = matched.len() as u32;
            fit.matched = Some(
                matched
                    .iter()
                    .fold(String::new(), |all, line| all + line + "\n"),
            );
            state.window = rest;
        }
        fit
    }

    pub(super) fn ignored(&self, state: &mut FilterState, text: &str) -> Option<usize> {
        let memory = &mut state.memories.ignoreregex;
        self.ignoreregex
            .first_fitting(text, memory, &mut state.scratch)
    }

    /// What `<SKIPLINES>` have passed over, in their order.
    fn skipped(&self, values: &Values<'_>) -> String {
        let mut all: Vec<_> = (self.names.iter().zip(values))
            .filter_map(|(name, value)| {
                let number: usize = name.strip_prefix("skiplines")?.parse().ok()?;
                Some((number, value.as_ref()?.as_str()))
            })
            .collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, text)| text).collect()
    }
}
