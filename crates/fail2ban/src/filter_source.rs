//! A filter after both layers of interpolation: what the matching half begins with.

use std::path::PathBuf;

use crate::error::Origin;

/// A filter, ready to be translated. Texts are Python regular expressions in which the
/// tags of matching (`<HOST>`, `<F-USER>`, `<SKIPLINES>` …) still stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterSource {
    /// The filter's name, as `sshd`.
    pub name: String,
    /// What a failure looks like, in order: the first that matches wins.
    pub failregex: Vec<Pattern>,
    /// What is no failure although it looks like one.
    pub ignoreregex: Vec<Pattern>,
    /// What every line must match before; `<F-CONTENT>` in it is what the others see.
    pub prefregex: Option<Pattern>,
    /// Where the date stands and how it is written.
    pub datepattern: Option<Pattern>,
    /// Lines that a pattern may span; at least 1.
    pub maxlines: usize,
    /// The filter says that number itself.
    pub says_maxlines: bool,
    /// Fields of the journal: sets (`+` apart), in each `FIELD=value`.
    pub journalmatch: Vec<Vec<String>>,
    /// `auto`, or the name of an encoding.
    pub logencoding: Option<String>,
    /// What becomes of host names.
    pub usedns: Option<UseDns>,
    /// Where its lines come from, as its parameters say.
    pub logtype: Option<LogType>,
    /// The filter's own file.
    pub origin: PathBuf,
}

/// One regular expression or date pattern, and where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Never empty. One line, but of a date pattern several: any of them may fit.
    pub text: String,
    /// Of the line of the file that ends up here; of the key's, if it came by a tag.
    pub origin: Origin,
}

/// `usedns`: what becomes of a host name in place of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseDns {
    /// The addresses of a name are looked up.
    Yes,
    /// The same, and the log says so.
    Warn,
    /// Not counted; `<HOST>` matches addresses only.
    No,
    /// Kept as it is.
    Raw,
}

/// `logtype`: whether lines have a head of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogType {
    /// Lines of a file, with date and syslog head.
    File,
    /// Messages of the journal.
    Journal,
    /// Another word that the filter knows (`short`, `rfc5424`).
    Other(String),
}
