//! Lists of addresses that others publish: how one is fetched (`fetch`,
//! `crowdsec`), read (`grammar`), joined (`join`) and kept for a day without a
//! server (`cache`). Everything in it is somebody else's text. When a list is
//! refreshed and what it is for is the daemon's to know.

pub mod cache;
pub mod crowdsec;
pub mod fetch;
pub mod grammar;
mod join;
mod json;

pub use cache::{Cache, Kept};
pub use crowdsec::Decisions;
pub use fetch::{FetchOutcome, Patience, Request, Validators, get};
pub use grammar::{Admit, Format, Limits, ParsedList, SkippedLines, WIDEST, Wide, parse, print};

/// Why a list is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The URL is none that can be asked.
    #[error("{0:?} is not a URL of a list: write http://… or https://…")]
    Url(String),
    /// The server answers something else than the list.
    #[error("the server answered {0}{hint}", hint = status_hint(*.0))]
    Status(u16),
    /// The server answers "unchanged" although nothing was there to compare with.
    #[error("the server says that nothing has changed, without having been asked")]
    Unasked,
    /// The server sends one redirect after the other.
    #[error("more than {0} redirects, or one from https to http")]
    Redirects(u32),
    /// The connection failed, or it broke.
    #[error("{0}")]
    Network(String),
    /// The server took too long.
    #[error("no answer in time: {0}")]
    Timeout(String),
    /// The server is not who it should be, as far as anybody can tell.
    #[error("{0}")]
    Certificate(String),
    /// More than the answer promised is missing.
    #[error("the download was cut off after {0} bytes")]
    Cut(usize),
    /// The list has more bytes than `max_bytes`.
    #[error("it has more than {0} bytes, unpacked; raise max_bytes if it should")]
    TooLarge(usize),
    /// The list has more prefixes than `max_entries`.
    #[error("it has more than {0} prefixes; raise max_entries if it should")]
    TooMany(usize),
    /// Compressed, and damaged.
    #[error("it cannot be unpacked: {0}")]
    Packed(String),
    /// A web page in place of a list.
    #[error("it is a web page (HTML or XML), not a list")]
    Html,
    /// The file is not a text.
    #[error("it is not a text: byte {0} is NUL")]
    Binary(usize),
    /// The file is empty.
    #[error("it is empty (one that is meant to be has a comment in it)")]
    Empty,
    /// A text without addresses.
    #[error("no line of it is an address; line {line} is {text:?}")]
    NoAddresses {
        /// The first line that is none.
        line: usize,
        /// The beginning of the text.
        text: String,
    },
    /// A text that seems to be something else, with an address here and there.
    #[error(
        "most of it is no address ({skipped} lines, {entries} are); line {line} is {text:?}; if it is a list, name its format"
    )]
    MostlyOther {
        /// Lines that are no address.
        skipped: usize,
        /// Lines that are.
        entries: usize,
        /// The first line that is none.
        line: usize,
        /// The beginning of the text.
        text: String,
    },
    /// JSON that ends early, or whose brackets do not fit.
    #[error("it is damaged JSON: line {line}: {what}")]
    Damaged {
        /// The line of the damage.
        line: usize,
        /// The damage, in words.
        what: &'static str,
    },
    /// A hosts file.
    #[error(
        "it is a hosts file: {0} names and no address; packets carry addresses, so names are for a resolver to refuse"
    )]
    OnlyNames(usize),
    /// Entries, none of which may be in a list.
    #[error("none of its {count} entries can be taken: line {line}: {text}")]
    AllRefused {
        /// The number of entries.
        count: usize,
        /// The line of the first entry.
        line: usize,
        /// The text of the entry, and why it is refused.
        text: String,
    },
    /// CrowdSec's answer is not one.
    #[error("CrowdSec's answer: {0}")]
    Decisions(String),
    /// A file cannot be read or written.
    #[error("{what}: {error}")]
    File {
        /// The action that failed, with the file's path.
        what: String,
        /// The system's answer.
        error: String,
    },
}

impl ListError {
    fn file(what: impl std::fmt::Display, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::File {
            what: format!("cannot {what} {}", path.display()),
            error: error.to_string(),
        }
    }
}

fn status_hint(status: u16) -> &'static str {
    match status {
        401 | 403 => ": it wants a key, or another one",
        404 | 410 => ": the list is not there (any more)",
        429 => ": it is asked too often; raise refresh",
        500..=599 => ": it has trouble of its own",
        _ => "",
    }
}
