//! The last lines of a log, for expressions that reach over several (`maxlines`), and
//! which of them a match has used up.

use std::collections::VecDeque;

/// Lines without their dates and newlines.
#[derive(Clone, Debug, Default)]
pub struct Window {
    lines: VecDeque<String>,
}

/// A match in the text of a window.
pub struct Span<'t> {
    pub text: &'t str,
    pub begin: usize,
    pub end: usize,
    /// What `<SKIPLINES>` have passed over.
    pub skipped: String,
}

impl Window {
    /// Adds the newest of at most `max` lines.
    pub fn push(&mut self, line: String, max: usize) {
        self.lines.push_back(line);
        while self.lines.len() > max {
            self.lines.pop_front();
        }
    }

    /// The oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter()
    }

    /// All of it.
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .fold(String::new(), |text, line| text + line + "\n")
    }

    /// The lines that a match is of, and those that stay.
    pub fn split(&self, span: &Span<'_>) -> (Vec<String>, Window) {
        let Span {
            text, begin, end, ..
        } = *span;
        // From the line in which it begins to the one in which it ends; a newline at
        // its beginning is the end of the line before.
        let first = text.as_bytes()[..text.len().min(begin + 1)]
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        let from = end.saturating_sub(1);
        let last = text.as_bytes()[from..]
            .iter()
            .position(|b| *b == b'\n')
            .map_or(text.len(), |at| from + at + 1);
        let count = |text: &str| text.bytes().filter(|b| *b == b'\n').count();
        let before = count(&text[..first.min(last)]).min(self.lines.len());
        let through = count(&text[..last]).clamp(before, self.lines.len());
        let mut matched: Vec<String> = self.lines.range(before..through).cloned().collect();
        let mut rest: VecDeque<String> = self.lines.range(..before).cloned().collect();
        let mut from = 0;
        for skipped in span.skipped.lines() {
            let at = matched[from.min(matched.len())..]
                .iter()
                .position(|line| line == skipped);
            if let Some(at) = at {
                rest.push_back(matched.remove(from + at));
                from += at;
            }
        }
        rest.extend(self.lines.range(through..).cloned());
        (matched, Window { lines: rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_uses_its_lines_up() {
        let mut window = Window::default();
        for line in ["zero", "one", "two", "three", "four", "five"] {
            window.push(line.to_owned(), 5);
        }
        let text = window.text();
        assert_eq!(text, "one\ntwo\nthree\nfour\nfive\n");
        let span = Span {
            text: &text,
            begin: 4,
            end: 18,
            skipped: "three\n".to_owned(),
        };
        assert_eq!(&text[4..18], "two\nthree\nfour");
        let (matched, rest) = window.split(&span);
        assert_eq!(matched, ["two", "four"]);
        assert_eq!(rest.text(), "one\nthree\nfive\n");
    }
}
