//! A record, of which what stands before the message is read once, however many
//! programs read it.

use std::cell::OnceCell;

use super::{
    MAX_LINE, Record,
    head::{self, Head, NoHead},
    timestamp::{self, Stamp},
};

/// A record for any number of programs.
#[derive(Debug)]
pub struct Line<'a> {
    pub(super) record: Record<'a>,
    syslog: OnceCell<Result<Head<'a>, NoHead>>,
    stamped: OnceCell<(Option<Stamp<'a>>, &'a [u8])>,
}

impl<'a> From<Record<'a>> for Line<'a> {
    fn from(record: Record<'a>) -> Self {
        Self {
            record,
            syslog: OnceCell::new(),
            stamped: OnceCell::new(),
        }
    }
}

impl<'a> Line<'a> {
    /// The record as its source delivered it.
    pub fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// As much of it as is read.
    pub fn text(&self) -> &'a [u8] {
        &self.record.line[..self.record.line.len().min(MAX_LINE)]
    }

    /// The end of a line that was cut is wherever its writer wanted it to be.
    pub fn is_cut(&self) -> bool {
        self.record.line.len() >= MAX_LINE
    }

    /// The head that a syslog daemon wrote.
    pub(super) fn syslog_head(&self) -> &Result<Head<'a>, NoHead> {
        self.syslog.get_or_init(|| head::split(self.text()))
    }

    /// The time stamp at its beginning, if there is one, and what follows.
    pub(super) fn stamped(&self) -> (Option<Stamp<'a>>, &'a [u8]) {
        *self
            .stamped
            .get_or_init(|| match timestamp::split(self.text()) {
                Some((stamp, rest)) => (Some(stamp), rest),
                None => (None, self.text()),
            })
    }
}
