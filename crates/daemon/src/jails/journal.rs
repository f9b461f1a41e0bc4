//! A jail's key about the systemd journal: `journal_match`, in Fail2ban's words.
//! Only fields that journald itself sets choose entries, and one of them must
//! say whose process it was: anybody can give a program any name.

use weir_config::Section;
use weir_sources::journal::TRUSTED;

use super::SourceChoice;
use crate::host::HostFacts;

const MATCH: &str = "a list of journal fields such as [\"_SYSTEMD_UNIT=postfix@-.service\"]";

/// The fields and values that the jail's entries have.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    jail: &str,
    source: &SourceChoice,
    host: &dyn HostFacts,
) -> Vec<(String, String)> {
    let Some(list) = section.list("journal_match", MATCH) else {
        return Vec::new();
    };
    let mut fields = Vec::new();
    let wrong = |line, text: &str, why: &str| {
        section.error(
            line,
            format!("journal_match in [jail.{jail}]: {text:?} {why}"),
        );
    };
    for at in &list.value {
        let Some((field, value)) = at.value.split_once('=') else {
            wrong(at.line, &at.value, "has no \"=\"; allowed: FIELD=VALUE");
            continue;
        };
        if !TRUSTED.contains(&field) {
            let allowed = format!(
                "can be written by anybody, or says nothing of who wrote; allowed: {}",
                TRUSTED.join(", ")
            );
            wrong(at.line, field, &allowed);
            continue;
        }
        let value = match field {
            "_UID" => match value.parse().ok().or_else(|| host.user(value)) {
                Some::<u32>(uid) => uid.to_string(),
                None => {
                    wrong(
                        at.line,
                        value,
                        "is no user of this host; allowed: a name or number",
                    );
                    continue;
                }
            },
            _ => value.to_owned(),
        };
        fields.push((field.to_owned(), value));
    }
    let says_who =
        |(field, _): &(String, String)| matches!(field.as_str(), "_SYSTEMD_UNIT" | "_UID");
    if fields.len() == list.value.len() && !fields.iter().any(says_who) {
        let all: Vec<_> = list.value.iter().map(|at| at.value.as_str()).collect();
        wrong(
            list.line,
            &all.join(" "),
            "does not say whose process it is, and anybody can name a program; allowed: with _SYSTEMD_UNIT=… or _UID=…",
        );
    }
    if *source != SourceChoice::Journal {
        section.error(
            list.line,
            format!("journal_match in [jail.{jail}]: the source is {source}; allowed: source = \"journal\", or no journal_match"),
        );
    }
    fields
}
