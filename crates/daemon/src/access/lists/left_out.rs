//! What of a list is not taken: lines and entries, counted with the first of
//! them, and an alert about those that an administrator would not expect. That
//! published lists name private networks is no news.

use serde::Serialize;
use weir_sources::list::{Decisions, SkippedLines, WIDEST, Wide};

use super::Shared;
use super::config::ListConfig;

/// Lines that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// How many lines were left out.
    pub count: usize,
    /// The first of them.
    pub first: Vec<LeftOutLine>,
}

/// A line that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOutLine {
    /// The line's number, from 1.
    pub line: usize,
    /// The text of that line.
    pub text: String,
}

impl From<SkippedLines> for LeftOut {
    fn from(skipped: SkippedLines) -> Self {
        let lines = skipped.first.into_iter();
        Self {
            count: skipped.count,
            first: lines
                .map(|(line, text)| LeftOutLine { line, text })
                .collect(),
        }
    }
}

/// What the alert about a list's entries is about.
pub(super) fn about(name: &str) -> String {
    format!("list-entries:{name}")
}

/// Raises an alert about entries that are not taken, while there are any.
pub(super) fn tell(shared: &Shared, config: &ListConfig, what: Option<String>) {
    let about = about(&config.name);
    match what {
        Some(what) => {
            let message = format!("list {} ({}): {what}", config.name, config.source);
            shared.alerts.raise(&about, message);
        }
        None => shared.alerts.clear(&about),
    }
}

/// Entries that no list may hold in one piece, in words.
pub(super) fn too_wide(wide: &Wide) -> Option<String> {
    if wide.entries == 0 {
        return None;
    }
    let shares: Vec<_> = ["IPv4", "IPv6"]
        .into_iter()
        .zip(wide.share)
        .filter(|(_, share)| *share > 0)
        .map(|(family, share)| format!("{}.{} % of its {family} addresses", share / 10, share % 10))
        .collect();
    Some(format!(
        "{} of its entries are left out, {}: {} is wider than a list may hold in one piece (/{} of IPv4, /{} of IPv6 from elsewhere); a list of your own (file = …) that denies may hold it",
        wide.entries,
        shares.join(" and "),
        wide.first.join(", "),
        WIDEST[0],
        WIDEST[1],
    ))
}

/// Decisions that are none, in words.
pub(super) fn malformed(decisions: &Decisions) -> Option<String> {
    let (_, first) = decisions.malformed.first.first()?;
    Some(format!(
        "{} of CrowdSec's decisions cannot be read and are left out, the first: {first}",
        decisions.malformed.count
    ))
}
