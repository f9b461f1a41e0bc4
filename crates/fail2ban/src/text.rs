//! A value of a configuration file: lines, each with the place where it was written, so
//! that what is put together of many files can still be told by file and line.

use std::{path::Path, sync::Arc};

use crate::error::Origin;

/// Bytes that a value may grow to by interpolation.
pub(crate) const MAX_TEXT: usize = 1 << 20;

/// A file and a line in it, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub file: Arc<Path>,
    pub line: u32,
}

impl Location {
    pub fn origin(&self) -> Origin {
        Origin {
            file: self.file.to_path_buf(),
            line: self.line,
        }
    }

    /// Of what the caller says and no file does.
    pub fn none() -> Self {
        Self {
            file: Arc::from(Path::new("")),
            line: 0,
        }
    }
}

/// One line of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub text: String,
    pub place: Location,
}

/// A value; it has at least one line, which may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub lines: Vec<Line>,
}

impl Text {
    pub fn new(text: impl Into<String>, place: Location) -> Self {
        let text = text.into();
        let line = |text: &str| Line {
            text: text.to_owned(),
            place: place.clone(),
        };
        Self {
            lines: text.split('\n').map(line).collect(),
        }
    }

    /// A value that no file holds.
    pub fn parameter(text: impl Into<String>) -> Self {
        Self::new(text, Location::none())
    }

    pub fn place(&self) -> &Location {
        &self.lines[0].place
    }

    pub fn origin(&self) -> Origin {
        self.place().origin()
    }

    /// The value as Fail2ban has it, its lines joined.
    pub fn joined(&self) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }

    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.text.is_empty())
    }

    pub fn len(&self) -> usize {
        self.lines.iter().map(|line| line.text.len() + 1).sum()
    }

    /// Goes on with `text` in the last line.
    pub fn push_str(&mut self, text: &str) {
        if let Some(line) = self.lines.last_mut() {
            line.text.push_str(text);
        }
    }

    /// Goes on with `other`: its first line continues the last one here. If `is_all`, the
    /// line consists of nothing else and counts as written where `other` is.
    pub fn append(&mut self, other: &Text, is_all: bool) {
        let mut lines = other.lines.iter();
        if let (Some(last), Some(first)) = (self.lines.last_mut(), lines.next()) {
            if is_all && last.text.is_empty() && first.place.line > 0 {
                last.place = first.place.clone();
            }
            last.text.push_str(&first.text);
        }
        self.lines.extend(lines.cloned());
    }

    /// Begins another line, written at `place`.
    pub fn begin_line(&mut self, place: Location) {
        self.lines.push(Line {
            text: String::new(),
            place,
        });
    }
}
