//! What jails say of their logs, and which of it is refused or warned of.

use std::path::Path;

use super::*;
use crate::{
    config::{
        Config,
        tests::{check, errors},
    },
    host::{Host, fake::FakeHost},
};

#[test]
fn a_ring_is_named_with_who_writes_it_and_how_many_read_it() {
    let ring = |words: &str| {
        let text = format!("[jail.sshd]\nring = \"/run/weir-ring/shop\"\n{words}");
        let config = check(&text).unwrap();
        assert!(config.warnings[0].contains("does not exist yet"));
        config.jails[0].source.clone()
    };
    let choice = |owner, workers| {
        SourceChoice::Ring(RingChoice {
            directory: "/run/weir-ring/shop".into(),
            owner,
            workers,
            max_mib: 1024,
        })
    };
    // As many workers as processors, unless the file says otherwise.
    assert_eq!(ring("source = \"ring\""), choice(None, 4));
    let words = "ring_owner = \"www-data\"\nworkers = 2";
    assert_eq!(ring(words), choice(Some(33), 2));
    assert_eq!(ring("ring_owner = \"1000\""), choice(Some(1000), 4));
    let SourceChoice::Ring(choice) = ring("ring_max_mib = 7") else {
        panic!("no ring");
    };
    assert_eq!(choice.max_mib, 7);
}

/// Issue 13: a directory that others can exchange.
#[test]
fn a_ring_that_others_can_exchange_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let ring = home.path().join("open/ring");
    std::fs::create_dir_all(&ring).unwrap();
    let text = format!(
        "backend = \"dry-run\"\ninterfaces = []\n[jail.sshd]\nring = \"{}\"\n",
        ring.display()
    );
    let warned = |mode: u32| {
        let open = home.path().join("open");
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(mode)).unwrap();
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let about = |warning: &&String| warning.contains("nothing in it is read");
        config.warnings.iter().find(about).cloned()
    };
    assert_eq!(warned(0o755), None);
    let warning = warned(0o777).unwrap();
    assert!(
        warning.contains("open: can be written to by others"),
        "{warning}"
    );
}

#[test]
fn mistakes_about_rings_are_named() {
    for (words, message) in [
        ("source = \"ring\"", ":2: ring is missing in [jail.a]"),
        (
            "ring = \"shop\"",
            ":2: ring in [jail.a] is \"shop\"; allowed: the absolute",
        ),
        (
            "ring = 7",
            ":2: ring in [jail.a] is 7; allowed: the absolute path",
        ),
        (
            "ring = \"/r\"\nring_owner = \"nobody-here\"",
            ":3: ring_owner in [jail.a] is \"nobody-here\", no user of this host",
        ),
        (
            "ring = \"/r\"\nworkers = 0",
            ":3: workers in [jail.a] is 0; allowed: a whole number 1-64",
        ),
        ("workers = 2", ":2: workers in [jail.a] is about rings"),
        (
            "ring_max_mib = 2",
            ":2: ring_max_mib in [jail.a] is about rings",
        ),
        (
            "ring = \"/r\"\nring_max_mib = 0",
            ":3: ring_max_mib in [jail.a] is 0; allowed: a whole number 1-1048576",
        ),
        (
            "ring = \"/r\"\npaths = [\"/l\"]",
            ":3: [jail.a] has both ring and paths",
        ),
        (
            "ring = \"/r\"\nsource = \"journal\"",
            ":2: ring in [jail.a]: the source is another one",
        ),
        (
            "ring = \"/r\"\n[jail.b]\nfilter = \"sshd\"\nring = \"/r/\"\nworkers = 2",
            ":3: [jail.b] and [jail.a] read one ring with other words",
        ),
    ] {
        let filter = "[filter.a]\npatterns = [\"refused <addr>\"]";
        let text = format!("[jail.a]\n{words}\n{filter}\n");
        let told = errors(&text);
        assert!(told.contains(message), "{words}: {told}");
    }
}

#[test]
fn without_a_journal_sshd_is_read_from_auth_log() {
    let config = Config::check(
        Path::new("weir.toml"),
        "[jail.sshd]",
        &FakeHost {
            journal: false,
            ..FakeHost::default()
        },
    )
    .unwrap();
    assert_eq!(
        config.jails[0].source,
        SourceChoice::Files(vec!["/var/log/auth.log".into()])
    );
}

#[test]
fn a_journal_is_matched_by_what_nobody_can_forge() {
    let jail = |words: &str| format!("[jail.sshd]\n{words}");
    let words = "journal_match = [\"_SYSTEMD_UNIT=postfix@-.service\", \"_UID=www-data\"]";
    let config = check(&jail(words)).unwrap();
    assert_eq!(
        config.jails[0].journal_match.to_string(),
        "_SYSTEMD_UNIT=postfix@-.service _UID=33"
    );
    let words =
        "journal_match = [\"_UID=www-data\", \"+\", \"_SYSTEMD_UNIT=a.service\", \"_UID=0\"]";
    let config = check(&jail(words)).unwrap();
    assert_eq!(
        config.jails[0].journal_match.to_string(),
        "_UID=33 + _SYSTEMD_UNIT=a.service _UID=0"
    );
    for (words, message) in [
        (
            "journal_match = [\"SYSLOG_IDENTIFIER=sshd\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"SYSLOG_IDENTIFIER\" can be written by anybody",
        ),
        (
            "journal_match = [\"_COMM=sshd\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"_COMM=sshd\" does not say whose process it is, and anybody can name a program",
        ),
        ("journal_match = []", "allowed: with _SYSTEMD_UNIT"),
        (
            "journal_match = [\"_UID=0\", \"+\", \"_COMM=sshd\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"_UID=0 + _COMM=sshd\" does not say whose",
        ),
        (
            "journal_match = [\"_UID=www-data\", \"+\", \"_SYSTEMD_UNIT=a.service\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"_UID=33 + _SYSTEMD_UNIT=a.service\" names a user in some of its sets only; allowed: _UID=… in each",
        ),
        (
            "journal_match = [\"_SYSTEMD_UNIT=\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"_SYSTEMD_UNIT=\" has nothing behind",
        ),
        (
            "journal_match = [\"_UID=nobody-here\"]",
            "is no user of this host",
        ),
        ("journal_match = [\"_UID\"]", "allowed: FIELD=VALUE"),
        (
            "paths = [\"/var/log/auth.log\"]\njournal_match = [\"_UID=0\"]",
            "the source is /var/log/auth.log",
        ),
    ] {
        let told = errors(&jail(words));
        assert!(told.contains(message), "{words}: {told}");
    }
}

#[test]
fn a_bad_head_is_named_with_its_line() {
    let filter = |words: &str| format!("[filter.shop]\n{words}\npatterns = [\"<addr>\"]\n");
    let good = "head = '\\[<time>\\] <tag>: '\ntime_format = \"%d/%b/%Y:%T %z\"";
    let config = check(&filter(good)).unwrap();
    assert_eq!(
        config.filters["shop"].head.as_deref(),
        Some("\\[<time>\\] <tag>: ")
    );
    for (words, message) in [
        (
            "head = '<time> <who>: '",
            "weir.toml:2: [filter.shop]: head: <who> is not a field; allowed: <time>, <host>",
        ),
        (
            "identifiers = [\"a\"]\nhead = '<time> '",
            "weir.toml:3: [filter.shop]: head: no <tag> in it, and identifiers are tags",
        ),
        (
            "head = '<time> '\ntime_format = \"%Q\"",
            "weir.toml:3: [filter.shop]: time_format: \"%Q\" is no field of a time; allowed: %Y",
        ),
        (
            "time_format = \"%s\"",
            "weir.toml:2: [filter.shop]: time_format: it is for the <time> of head",
        ),
        ("head = 7", "weir.toml:2: head in [filter.shop]"),
    ] {
        let told = errors(&filter(words));
        assert!(told.contains(message), "{words}: {told}");
    }
}

#[test]
fn bad_json_is_named_with_its_line() {
    let filter = |words: &str| format!("[filter.shop]\n{words}\npatterns = [\"<addr>\"]\n");
    let good = "json = { time = \"ts\", message = \"<remote.ip>\" }";
    let config = check(&filter(good)).unwrap();
    let json = config.filters["shop"].json.as_ref().unwrap();
    assert_eq!(json.message, "<remote.ip>");
    for (words, message) in [
        (
            "json = { time = \"ts\" }",
            "weir.toml:2: message is missing in [filter.shop.json]; allowed: text with paths of fields",
        ),
        (
            "json = { message = \"<ip>\", field = \"a\" }",
            "weir.toml:2: unknown key \"field\" in [filter.shop.json]; allowed: time, time_format, message",
        ),
        (
            "head = '<time> '\njson = { message = \"login\" }",
            "weir.toml:3: [filter.shop]: json.message: no field of the object is in it",
        ),
        (
            "json = { time = \"\", message = \"<ip>\" }",
            "weir.toml:2: [filter.shop]: json: \"\" cannot be the path of a field",
        ),
        ("json = true", "weir.toml:2: json in [filter.shop]"),
    ] {
        let told = errors(&filter(words));
        assert!(told.contains(message), "{words}: {told}");
    }
    let table = "[filter.shop]\npatterns = [\"<addr>\"]\n[filter.shop.json]\nmessage = \"<ip>\"\ntime = \"t\"\ntime_format = \"%Q\"\n";
    let told = errors(table);
    assert!(
        told.contains("weir.toml:6: [filter.shop]: json.time_format: \"%Q\" is no field"),
        "{told}"
    );
}

/// A filter says it for all its jails, and without knowing the host's users.
#[test]
fn a_filters_journal_match_is_checked_at_its_line() {
    let filter = |words: &str| {
        format!(
            "[jail.shop]\nsource = \"journal\"\n[filter.shop]\npatterns = [\"<addr>\"]\n{words}"
        )
    };
    let good = "journal_match = [\"_SYSTEMD_UNIT=shop.service\", \"+\", \"_SYSTEMD_UNIT=a\"]";
    let config = check(&filter(good)).unwrap();
    assert!(config.jails[0].journal_match.is_empty());
    assert_eq!(config.filters["shop"].journal_match.len(), 3);
    for (words, message) in [
        (
            "journal_match = [\n\"_UID=0\",\n\"MESSAGE=x\"]",
            "weir.toml:7: [filter.shop]: journal_match: \"MESSAGE\" can be written by anybody",
        ),
        (
            "journal_match = [\"_UID=www-data\"]",
            "weir.toml:5: [filter.shop]: journal_match: \"www-data\" is not a user's number; allowed: _UID=NUMBER",
        ),
        (
            "journal_match = [\"_COMM=shop\"]",
            "weir.toml:5: [filter.shop]: journal_match: \"_COMM=shop\" does not say whose process",
        ),
        (
            "journal_match = [\"_SYSTEMD_UNIT=shop.service\", \"+\", \"_UID=0\"]",
            "weir.toml:5: [filter.shop]: journal_match: \"_SYSTEMD_UNIT=shop.service + _UID=0\" names a user in some",
        ),
        (
            "root_only = true\njournal_match = [\"_UID=33\"]",
            "weir.toml:6: [filter.shop]: root_only: journal_match names only other users than root, so that no entry would count; allowed: _UID=0",
        ),
        ("", "its filter has no identifiers and no journal_match"),
    ] {
        let told = errors(&filter(words));
        assert!(told.contains(message), "{words}: {told}");
    }
}

/// Issue 13, 17: no line of them would ever count.
#[test]
fn a_filter_that_reads_none_of_its_lines_is_told() {
    const SYSLOG: &str = "Nov 21 04:33:07 host cron[1]: x\nNov 21 04:33:07 host shop[1]: y\n";
    const BARE: &str = "2026-11-21T04:33:07Z denied 192.0.2.7\n";
    let warnings = |filter: &str, log| {
        let text = format!(
            "[filter.own]\n{filter}patterns = [\"denied <addr>\"]\n[jail.own]\npaths = [\"/var/log/auth.log\"]\n"
        );
        let host = FakeHost {
            log,
            ..FakeHost::default()
        };
        let config = Config::check(Path::new("weir.toml"), &text, &host).unwrap();
        config.warnings.join("; ")
    };
    let named = "identifiers = [\"shop\"]\n";
    let told = warnings("", Some(SYSLOG));
    assert!(
        told.contains("[jail.own]: the lines of /var/log/auth.log have a host")
            && told.contains("add identifiers = [\"shop\"]"),
        "{told}"
    );
    let told = warnings(named, Some(BARE));
    assert!(
        told.contains("[jail.own]: no line of /var/log/auth.log has a time stamp")
            && told.contains("only those of shop"),
        "{told}"
    );
    for (filter, log) in [
        (named, Some(SYSLOG)),
        ("", Some(BARE)),
        ("", Some("")),
        (named, Some("")),
        (named, None),
        ("", None),
    ] {
        assert_eq!(warnings(filter, log), "", "{log:?}");
    }
    // One that crashed left zeros, or somebody wrote a line into it.
    let mixed = format!("{SYSLOG}somebody's\n{SYSLOG}");
    let told = warnings(named, Some(mixed.leak()));
    assert!(
        told.contains("1 of the last 5 lines of /var/log/auth.log have no time stamp"),
        "{told}"
    );
    // Who leaves the tag out may write a client's line breaks; a syslog daemon may.
    let mixed: &str = format!("{SYSLOG}Nov 21 04:33:07 host x\n{SYSLOG}").leak();
    let told = warnings(named, Some(mixed));
    for word in [
        "1 of the last 5 lines",
        "or no program's tag",
        "allow_untagged",
    ] {
        assert!(told.contains(word), "{word:?}: {told}");
    }
    assert_eq!(
        warnings(&format!("{named}allow_untagged = true\n"), Some(mixed)),
        ""
    );
    let own = format!("{SYSLOG}Nov 21 04:33:07 host -- MARK --\n");
    assert_eq!(warnings(named, Some(own.leak())), "");
    // A head of one's own.
    let head = "head = '\\[<time>\\] '\n";
    let told = warnings(head, Some(BARE));
    assert!(
        told.contains("none of the last lines of /var/log/auth.log has the head or the JSON that its filter declares, such as \"2026-11-21T04:33:07Z denied"),
        "{told}"
    );
    let fits = "at x\n[2026-11-21 04:33:07] denied 192.0.2.7\nat y\n";
    assert_eq!(warnings(head, Some(fits)), "");
    let journal = "[filter.own]\npatterns = [\"<addr>\"]\n[jail.own]\nsource = \"journal\"\n";
    let refused = errors(journal);
    assert!(
        refused.contains("[jail.own]: its filter has no identifiers"),
        "{refused}"
    );
    // One that is wrong is one mistake.
    let refused = errors(&format!("{journal}journal_match = [\"_UNIT=own\"]\n"));
    assert!(
        refused.contains("\"_UNIT\" can be written by anybody")
            && !refused.contains("no identifiers"),
        "{refused}"
    );
}

/// A log of sshd -E: a client's line break begins any line, with any head, and with any tag
/// behind what puts a stamp before each line.
#[test]
fn a_file_without_heads_is_told_for_a_filter_that_reads_them() {
    let log = |stamp: &str, forged: &str| {
        format!(
            "{stamp}Server listening on :: port 22.\r\n{stamp}Invalid user a\n{forged}\n{stamp} from 198.51.100.7 port 4711\r\n"
        )
    };
    const FORGED: &str = "Nov 21 04:33:07 h sshd: Invalid user x from 203.0.113.9";
    for stamp in ["", "Nov 21 04:33:07 "] {
        file_without_heads(log(stamp, FORGED).leak());
    }
}

fn file_without_heads(log: &'static str) {
    let host = FakeHost {
        log: Some(log),
        ..FakeHost::default()
    };
    for filter in ["sshd", "sshd-aggressive"] {
        let jail = |more: &str| format!("[jail.{filter}]\npaths = [\"/var/log/auth.log\"]\n{more}");
        let check = |text: &str| Config::check(Path::new("weir.toml"), text, &host);
        let told = check(&jail("")).unwrap().warnings.join("\n");
        for word in [
            &format!("[jail.{filter}]: 3 of the last 4 lines of /var/log/auth.log"),
            "no time stamp and program's tag",
            "lines of sshd, sshd-session",
            "start it without -E",
        ] {
            assert!(told.contains(word), "{word:?}: {told}");
        }
        let told = check(&jail("enabled = false\n")).unwrap().warnings;
        assert!(!told.iter().any(|t| t.contains("of the last")), "{told:?}");
    }
}

#[test]
fn a_jail_has_a_time_zone() {
    let jail =
        |zone: &str| format!("[jail.sshd]\npaths = [\"/var/log/auth.log\"]\ntime_zone = {zone}\n");
    for zone in ["\"UTC\"", "\"CET-1CEST,M3.5.0,M10.5.0/3\""] {
        let config = check(&jail(zone)).unwrap();
        assert!(config.jails[0].time_zone.is_some(), "{zone}");
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
    assert_eq!(check("[jail.sshd]\n").unwrap().jails[0].time_zone, None);
    for zone in ["\"Mars/Base\"", "2"] {
        let refused = errors(&jail(zone));
        assert!(
            refused.contains("weir.toml:3: time_zone in [jail.sshd] is")
                && refused.contains("a time zone such as"),
            "{refused}"
        );
    }
    let journal = "[jail.sshd]\nsource = \"journal\"\ntime_zone = \"UTC\"\n";
    let warnings = check(journal).unwrap().warnings;
    assert!(
        warnings.iter().any(|w| w.contains("no effect")),
        "{warnings:?}"
    );
}
