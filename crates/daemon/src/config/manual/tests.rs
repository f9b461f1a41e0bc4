//! The manual says what the reader does.

use std::collections::BTreeSet;

use super::{Usual::By, *};
use crate::host::fake::FakeHost;

fn written(table: &Table, more: &str) -> String {
    written_without(table, &[], more)
}

/// The table with what it needs but for `without`, and with `more`.
fn written_without(table: &Table, without: &[&str], more: &str) -> String {
    let needs = table
        .needs
        .iter()
        .filter(|(key, _)| !without.contains(key))
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
        "tarpit.increment" => {
            format!("[tarpit]\nports = [\"25/tcp\"]\nmax_retry = 3\n[tarpit.increment]\n{more}")
        }
        "token.forward.require.NAME" => format!(
            "[token.forward]\ninterfaces = [\"eth0\"]\n{}\n{needs}{more}",
            table.head()
        ),
        "filter.NAME.json" => format!(
            "[filter.NAME]\npatterns = [\"<addr>\"]\n{}\n{needs}{more}",
            table.head()
        ),
        "decoy.increment" => {
            format!("[decoy]\nports = [\"23/tcp\"]\n[decoy.increment]\n{more}")
        }
        name if name.starts_with("pool.NAME") => {
            const REALS: &str = "reals = [{ address = \"192.0.2.11\" }]\n";
            let pool = "[pool.NAME]\nvip = [\"192.0.2.80\"]\nports = [\"80/tcp\"]\n";
            let around = match name {
                "pool.NAME" => String::new(),
                "pool.NAME.reals" => pool.to_owned(),
                _ => format!("{pool}{REALS}"),
            };
            let balance = "[balance]\ninterface = \"eth0\"\n";
            format!("{balance}{around}{}\n{needs}{more}", table.head())
        }
        _ => format!("{}\n{needs}{more}", table.head()),
    }
}

fn check(text: &str) -> Result<Config, String> {
    let checked = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
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

/// A table that a key stands for is described as well.
#[test]
fn every_table_below_a_table_is_in_the_manual() {
    for table in tables() {
        for key in table.keys {
            let allowed = allowed(table, key.name).unwrap();
            let Some(below) = allowed.strip_prefix("a table [") else {
                continue;
            };
            let below = below.trim_end_matches(']');
            let is_described = tables().any(|other| {
                other.name == below
                    || other.name.strip_suffix(".NAME") == Some(below)
                    || other.about.contains(&format!("[{below}]"))
            });
            assert!(is_described, "[{below}], {} in [{}]", key.name, table.name);
        }
    }
}

/// The reader takes values of the type that the reference names, and no others
/// where that type is a plain one.
#[test]
fn the_types_of_the_manual_are_those_of_the_reader() {
    let values = [
        ("boolean", "true"),
        ("integer", "4611686018427387904"),
        ("number", "1.5"),
        ("list", "[]"),
        ("table", "{}"),
        ("string", "\"\\u0001\""),
    ];
    for table in tables() {
        for key in table.keys {
            let allowed = allowed(table, key.name).unwrap();
            let told = type_of(&allowed);
            let needs = table.needs.iter().filter(|(name, _)| *name != key.name);
            let needs: String = needs
                .map(|(name, value)| format!("{name} = {value}\n"))
                .collect();
            for (kind, value) in values {
                let may_be = match told {
                    "duration" => ["integer", "string"].contains(&kind),
                    "string or list" => ["string", "list"].contains(&kind),
                    "number" => ["integer", "number"].contains(&kind),
                    told => told == kind,
                };
                if may_be {
                    continue;
                }
                let head = table.head();
                let text = format!("{head}\n{needs}{} = {value}\n", key.name);
                let refused = check(&text).unwrap_err();
                let is = format!("{} in [{}] is ", key.name, table.name);
                let top = format!("{} is ", key.name);
                let is = if table.name.is_empty() { top } else { is };
                assert!(refused.contains(&is), "{told}: {text}: {refused}");
            }
        }
    }
}

/// What can be written down is held against the reader below; words are for the rest.
#[test]
fn a_default_in_words_is_no_value() {
    for table in tables() {
        for key in table.keys {
            if let Means(words) = key.default {
                let is_prose = words.starts_with(|c: char| c.is_ascii_alphabetic());
                assert!(is_prose, "{} in [{}]: {words}", key.name, table.name);
            }
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
        for key in table.keys {
            let By(cases) = key.default else { continue };
            let (first, others) = cases.split_first().expect("a default");
            assert_eq!(first.when, "", "{} in [{}]", key.name, table.name);
            assert!(
                others.iter().all(|case| !case.when.is_empty()),
                "{} in [{}]",
                key.name,
                table.name
            );
            for case in cases {
                let with = case.with.iter();
                let with: String = with
                    .map(|(key, value)| format!("{key} = {value}\n"))
                    .collect();
                let alone = written_without(table, case.without, &with);
                let more = format!("{with}{} = {}\n", key.name, case.value);
                let text = written_without(table, case.without, &more);
                assert_eq!(without_warnings(&text), without_warnings(&alone), "{text}");
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
