//! A jail's key about the systemd journal: `journal_match`, in Fail2ban's words.
//! Only fields that journald itself sets choose entries, and one of them must
//! say whose process it was: anybody can give a program any name.

use std::{fs, path::Path};

use weir_sources::journal::TRUSTED;

use super::{HostFacts, SourceChoice, reader::Section};

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
        wrong(
            list.line,
            "",
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

/// Is there a journal with something in it? An empty directory is what a host
/// has whose log is written by somebody else.
pub(super) fn is_there() -> bool {
    ["/var/log/journal", "/run/log/journal"]
        .iter()
        .any(|directory| has_journal_files(Path::new(directory)))
}

fn has_journal_files(directory: &Path) -> bool {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let is_journal = |path: &Path| path.extension().is_some_and(|e| e == "journal");
    entries(directory).take(1000).any(|entry| {
        let path = entry.path();
        is_journal(&path) || entries(&path).take(10_000).any(|e| is_journal(&e.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_journal_files(dir.path()));
        assert!(!has_journal_files(&dir.path().join("none")));
        let machine = dir.path().join("0f1e2d3c4b5a69788796a5b4c3d2e1f0");
        fs::create_dir(&machine).unwrap();
        assert!(!has_journal_files(dir.path()));
        fs::write(machine.join("system.journal"), "").unwrap();
        assert!(has_journal_files(dir.path()));
    }
}
