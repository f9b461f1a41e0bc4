//! Does a jail's filter read the lines of its source at all? A filter with
//! identifiers reads what a syslog daemon or the journal says is its program's;
//! one without reads lines that have no such head. Where the two do not fit, no
//! line ever counts, and nothing else would say so.
//!
//! And is that head a syslog daemon's? Who writes a file of his own (`sshd -E`)
//! may leave a client's line breaks in it, and a client can then write lines
//! with any head, or with any tag where something puts a time stamp before each
//! line (`ts`, `svlogd`): of a file whose lines have none `weir check` warns, and
//! what comes behind such a line does not count.

use weir_config::Section;
use weir_core::detect::{BEHIND_NO_HEAD, LineHead, Program, line_heads};

use super::SourceChoice;
use crate::host::HostFacts;

pub(super) fn check(
    section: &Section<'_, '_>,
    jail: &str,
    filter: &Program,
    source: &SourceChoice,
    entries_are_named: bool,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) {
    let has_identifiers = filter.identifiers().next().is_some();
    let paths = match source {
        SourceChoice::Journal
            if !has_identifiers && !entries_are_named && filter.journal_match().is_empty() =>
        {
            section.error(
                section.line(),
                format!(
                    "[jail.{jail}]: its filter has no identifiers and no journal_match, and the journal's entries are chosen by them; allowed: identifiers = [\"PROGRAM\"] or journal_match in the filter, or paths"
                ),
            );
            return;
        }
        SourceChoice::Files(paths) => paths,
        SourceChoice::Journal | SourceChoice::Ring(_) => return,
    };
    for path in paths {
        let Some(end) = host.log_end(path) else {
            continue;
        };
        let lines = end.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let fits = |line| filter.fits_declared_head(line);
        if let Some(last) = lines.clone().next_back()
            && fits(last).is_some()
        {
            if !lines.clone().any(|line| fits(line) == Some(true)) {
                let last = String::from_utf8_lossy(&last[..last.len().min(100)]).into_owned();
                warnings.push(format!(
                    "[jail.{jail}]: none of the last lines of {path} has the head or the JSON that its filter declares, such as \"{}\": it reads none of them; weir filter test --missed says why",
                    crate::escape(&last)
                ));
            }
            continue;
        }
        let heads = line_heads(lines);
        let tag = |head: &LineHead| match head {
            LineHead::Syslog(tag) => Some(tag.clone()),
            _ => None,
        };
        let tags: Vec<_> = heads.iter().filter_map(tag).collect();
        if !has_identifiers {
            if let Some(tag) = tags.last()
                && 2 * tags.len() > heads.len()
            {
                warnings.push(format!(
                    "[jail.{jail}]: the lines of {path} have a host and a program's tag, and its filter has no identifiers: it reads none of them; add identifiers = [\"{tag}\"], or whichever program it is, to the filter"
                ));
            }
            continue;
        }
        let names: Vec<_> = filter.identifiers().collect();
        let names = names.join(", ");
        let bare = |head: &&LineHead| match head {
            LineHead::None => true,
            LineHead::Stamp => !filter.allows_untagged(),
            LineHead::Syslog(_) | LineHead::SyslogDaemon | LineHead::OddTag => false,
        };
        let bare = heads.iter().filter(bare).count();
        let of = heads.len();
        let has = |head| heads.contains(&head);
        if tags.is_empty() && has(LineHead::Stamp) && !has(LineHead::None) {
            warnings.push(format!(
                "[jail.{jail}]: no line of {path} has a time stamp and a program's tag, and its filter reads only those of {names}, and none behind a line that has no tag: use a file that a syslog daemon writes or source = \"journal\", or leave identifiers out of the filter where the program has no tags and lets no client's line break through",
            ));
        } else if bare > 2 && 10 * bare > of {
            // A crash leaves one such line; of some others a client's text has heads.
            // No error: a log's content must not keep the daemon from starting.
            warnings.push(format!(
                "[jail.{jail}]: {bare} of the last {of} lines of {path} have no time stamp and program's tag, as a syslog daemon writes them, so a client's line break may have begun some of the others, and the {BEHIND_NO_HEAD} lines behind each do not count; its filter reads only lines of {names}: use a file that a syslog daemon writes, source = \"journal\" (sshd: start it without -E and -e), or a filter without identifiers"
            ));
        } else if bare > 0 {
            warnings.push(format!(
                "[jail.{jail}]: {bare} of the last {of} lines of {path} have no time stamp, or no program's tag behind it: who writes them may let a client's line break begin a line, so the {BEHIND_NO_HEAD} lines behind each do not count (allow_untagged = true in the filter counts those behind lines that lack the tag)"
            ));
        }
    }
}
