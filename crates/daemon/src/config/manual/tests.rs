//! The manual says what the reader does.

use std::collections::BTreeSet;

use super::*;
use crate::host::lab::Lab;

fn written(table: &Table, more: &str) -> String {
    let needs = table
        .needs
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"));
    let needs: String = needs.collect();
    match table.name {
        "" => format!("{more}\n[jail.sshd]\n"),
        // Of a table in another one.
        name if name.starts_with("jail.NAME.") => {
            format!(
                "[jail.NAME]\nfilter = \"sshd\"\n{}\n{needs}{more}",
                table.head()
            )
        }
        "decoy.increment" => {
            format!("[decoy]\nports = [\"23/tcp\"]\n[decoy.increment]\n{more}")
        }
        _ => format!("{}\n{needs}{more}", table.head()),
    }
}

fn check(text: &str) -> Result<Config, String> {
    let checked = Config::check(Path::new("weir.toml"), text, &Lab::default());
    checked.map_err(|errors| errors.to_string())
}

/// None is missing, and none is there that the reader does not know.
#[test]
fn every_key_is_in_the_manual_with_what_is_allowed() {
    for table in tables() {
        let told = check(&written(table, "nonsense = 1")).unwrap_err();
        let line = told
            .lines()
            .find(|line| line.contains("\"nonsense\""))
            .unwrap();
        let (_, known) = line.split_once("; allowed: ").unwrap();
        let mut known: BTreeSet<_> = known.split(", ").collect();
        if table.name.is_empty() {
            // These have tables of their own.
            for other in tables().skip(1) {
                known.remove(other.name.split('.').next().unwrap());
            }
        }
        let listed: BTreeSet<_> = table.keys.iter().map(|key| key.name).collect();
        assert_eq!(listed, known, "[{}]: {}", table.name, table.about);
        assert_eq!(listed.len(), table.keys.len(), "[{}]", table.name);
        for key in table.keys {
            let allowed = allowed(table, key.name);
            assert!(
                allowed.is_some_and(|a| !a.is_empty()),
                "{} in [{}]",
                key.name,
                table.name
            );
        }
    }
}

/// A default, written down, changes nothing.
#[test]
fn the_defaults_of_the_manual_are_those_of_the_reader() {
    let without_warnings = |text: &str| {
        let mut config = check(text).unwrap_or_else(|errors| panic!("{text}: {errors}"));
        config.warnings.clear();
        format!("{config:?}")
    };
    for table in tables() {
        if table.name == "sink.NAME" && table.about.contains("telegram") {
            // It takes a token to be checked.
            continue;
        }
        let usual = without_warnings(&written(table, ""));
        for key in table.keys {
            if let Is(value) = key.default {
                let needed = table.needs.iter().any(|(name, _)| *name == key.name);
                if !needed {
                    let text = written(table, &format!("{} = {value}\n", key.name));
                    assert_eq!(without_warnings(&text), usual, "{text}");
                }
            }
        }
        for key in table
            .keys
            .iter()
            .filter(|key| matches!(key.default, Required))
        {
            let mut less: String = written(table, "");
            let start = less.find(&format!("\n{} = ", key.name)).unwrap() + 1;
            let end = less[start..].find('\n').unwrap() + start + 1;
            less.replace_range(start..end, "");
            assert!(check(&less).is_err(), "{} in [{}]", key.name, table.name);
        }
    }
}
