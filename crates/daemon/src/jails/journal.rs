//! A jail's key about the systemd journal, `journal_match`, which goes before its
//! filter's.

use std::fmt::Display;

use weir_config::Section;
use weir_core::detect::JournalMatch;

use super::SourceChoice;
use crate::host::HostFacts;

const MATCH: &str = "a list of journal fields such as [\"_SYSTEMD_UNIT=postfix@-.service\"]";

/// The fields that the jail's entries have.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    jail: &str,
    source: &SourceChoice,
    host: &dyn HostFacts,
) -> JournalMatch {
    let Some(list) = section.list("journal_match", MATCH) else {
        return JournalMatch::default();
    };
    let wrong = |line, why: &dyn Display| {
        section.error(line, format!("journal_match in [jail.{jail}]: {why}"));
    };
    let mut words = Vec::new();
    for at in &list.value {
        let user = at.value.strip_prefix("_UID=");
        words.push(match user.filter(|user| user.parse::<u32>().is_err()) {
            None => at.value.clone(),
            Some(name) => match host.user(name) {
                Some(uid) => format!("_UID={uid}"),
                None => {
                    let why = "is no user of this host; allowed: a name or number";
                    wrong(at.line, &format_args!("{name:?} {why}"));
                    return JournalMatch::default();
                }
            },
        });
    }
    if *source != SourceChoice::Journal {
        let allowed = "allowed: source = \"journal\", or no journal_match";
        wrong(
            list.line,
            &format_args!("the source is {source}; {allowed}"),
        );
    }
    JournalMatch::parse(words.iter().map(String::as_str)).unwrap_or_else(|error| {
        let at = error.word.and_then(|word| list.value.get(word));
        wrong(at.map_or(list.line, |at| at.line), &error);
        JournalMatch::default()
    })
}
