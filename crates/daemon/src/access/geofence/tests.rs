//! What `[geofence]` means, and what is refused.

use std::path::Path;

use crate::{config::Config, host::fake::FakeHost};

use super::*;

fn check(text: &str) -> Result<Config, String> {
    let host = FakeHost {
        has_file: |path| path.starts_with("/var/lib/GeoIP"),
        ..FakeHost::default()
    };
    Config::check(Path::new("weir.toml"), text, &host).map_err(|e| e.to_string())
}

fn geofence(text: &str) -> GeofenceConfig {
    check(text).expect(text).geofence.expect(text)
}

fn selectors(texts: &[&str]) -> Vec<Selector> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn everything_can_be_said() {
    let config = check(
        r#"
        [geofence]
        default = "pass"
        deny = ["country:RU", "continent:AF", "asn:64496"]
        allow = ["country:za"]
        unknown = "drop"
        ports = ["443/tcp"]
        direction = "both"
        except = ["192.0.2.0/24"]
        database = "/var/lib/GeoIP/GeoLite2-Country.mmdb"
        asn_database = "/var/lib/GeoIP/GeoLite2-ASN.mmdb"
        [geofence.rules.ssh]
        ports = ["22/tcp"]
        default = "drop"
        allow = ["country:NL"]
        [geofence.rules.dns]
        ports = ["53"]
        direction = "out"
        deny = ["continent:AS"]
        "#,
    )
    .unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let geofence = config.geofence.unwrap();
    let paths =
        ["Country", "ASN"].map(|n| Some(format!("/var/lib/GeoIP/GeoLite2-{n}.mmdb").into()));
    assert_eq!([geofence.database, geofence.asn_database], paths);
    let names: Vec<_> = geofence.fences.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["ssh", "dns", "geofence"]);
    let [ssh, dns, last] = geofence.fences.try_into().unwrap();
    assert_eq!(
        (ssh.default, ssh.unknown),
        (RuleAction::Drop, RuleAction::Pass)
    );
    assert_eq!(ssh.allow, selectors(&["country:NL"]));
    assert_eq!(ssh.scope.to_string(), "22/tcp");
    assert_eq!(dns.direction, Direction::Out);
    assert_eq!(
        (last.default, last.unknown),
        (RuleAction::Pass, RuleAction::Drop)
    );
    assert_eq!(
        last.deny,
        selectors(&["country:RU", "continent:AF", "asn:64496"])
    );
    assert_eq!(last.direction, Direction::Both);
    assert!(last.except.lookup("192.0.2.1".parse().unwrap()).is_some());
}

#[test]
fn what_is_not_said_has_its_default() {
    let last = |text: &str| geofence(text).fences.pop().unwrap();
    let plain = last("[geofence]\ndeny = [\"country:RU\"]");
    assert_eq!(
        (plain.default, plain.unknown),
        (RuleAction::Pass, RuleAction::Pass)
    );
    assert_eq!(plain.direction, Direction::In);
    assert!(plain.scope.is_all() && plain.except.is_empty());
    assert_eq!(
        geofence("[geofence]\ndeny = [\"country:RU\"]").database,
        None
    );
    assert!(check("").unwrap().geofence.is_none());
    // A last rule that lets everybody pass is none; one that comes earlier is:
    // it keeps the later ones from deciding.
    let rules = geofence(
        "[geofence.rules.web]\nports = [\"443/tcp\"]\n[geofence.rules.rest]\ndefault = \"drop\"",
    );
    let names: Vec<_> = rules.fences.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["web", "rest"]);
}

#[test]
fn each_mistake_is_named_with_line_key_and_what_is_allowed() {
    // (lines after [geofence], what the message must contain)
    let cases: &[(&str, &[&str])] = &[
        (
            "deny = [\"country:UK\"]",
            &[
                "weir.toml:2: deny in [geofence]: no country has the code UK; did you mean country:GB (United Kingdom)?",
            ],
        ),
        (
            "deny = [\n\"country:RU\",\n\"country:XX\"]",
            &["weir.toml:4: deny in [geofence]: no country has the code XX"],
        ),
        (
            "default = \"drop\"\nallow = [\"country:Netherlands\"]",
            &[
                "weir.toml:3: allow in [geofence]: \"country:Netherlands\" is not a place",
                "did you mean country:NL (Netherlands)",
            ],
        ),
        (
            "deny = [\"country:EU\"]",
            &["no country has the code EU; did you mean continent:EU (Europe)"],
        ),
        (
            "deny = [\"continent:RU\"]",
            &[
                "\"continent:RU\" is not a place",
                "did you mean country:RU (Russia)",
            ],
        ),
        (
            "deny = [\"RU\"]",
            &[
                "\"RU\" is not a place; allowed: country:NL, continent:EU, asn:64496",
                "; did you mean country:RU (Russia)?",
            ],
        ),
        ("deny = [\"asn:x\"]", &["\"asn:x\" is not a place"]),
        ("deny = [\"asn:4294967296\"]", &["is not a place"]),
        (
            "deny = \"country:RU\"",
            &["weir.toml:2: deny in [geofence] is \"country:RU\"; allowed: a list of places"],
        ),
        (
            "deny = [\"country:RU\", \"country:ru\"]",
            &["weir.toml:2: deny in [geofence] has country:RU twice"],
        ),
        (
            "deny = [\"asn:64496\"]",
            &[
                "weir.toml:1: [geofence] names autonomous systems, of which the built-in database knows nothing",
                "asn_database",
            ],
        ),
        (
            "default = \"block\"",
            &["weir.toml:2: default in [geofence] is \"block\"; allowed: \"pass\", \"drop\""],
        ),
        (
            "unknown = true",
            &["weir.toml:2: unknown in [geofence] is true; allowed: \"pass\", \"drop\""],
        ),
        (
            "direction = \"inbound\"",
            &["direction in [geofence] is \"inbound\"; allowed: \"in\", \"out\", \"both\""],
        ),
        ("ports = [\"ssh\"]", &["\"ssh\" is not a port"]),
        (
            "except = [\"192.0.2.1/24\"]",
            &["weir.toml:2: except in [geofence]: ", "write 192.0.2.0/24"],
        ),
        (
            "database = \"GeoLite2.mmdb\"",
            &[
                "weir.toml:2: database in [geofence] is \"GeoLite2.mmdb\"; allowed: the absolute path",
            ],
        ),
        (
            "asn_database = 5",
            &["asn_database in [geofence] is 5; allowed: "],
        ),
        (
            "deney = []",
            &[
                "weir.toml:2: unknown key \"deney\" in [geofence] (did you mean deny?); allowed: ",
                "deny",
                "rules",
            ],
        ),
        // Contradictions.
        (
            "deny = [\"country:RU\"]\nallow = [\"country:RU\"]",
            &["weir.toml:3: [geofence]: country:RU is in both allow and deny"],
        ),
        (
            "allow = [\"country:NL\"]",
            &[
                "weir.toml:2: allow in [geofence]: country:NL passes anyway, and so does everybody else",
                "default = \"drop\"",
            ],
        ),
        (
            "deny = [\"continent:AF\"]\nallow = [\"country:NA\", \"country:NL\"]",
            &["weir.toml:3: allow in [geofence]: country:NL passes anyway"],
        ),
        (
            "deny = [\"continent:AF\"]\nallow = [\"continent:EU\"]",
            &["continent:EU passes anyway"],
        ),
        (
            "[geofence.rules.all]\ndefault = \"drop\"\n[geofence.rules.ssh]\nports = [\"22/tcp\"]",
            &[
                "weir.toml:4: [geofence.rules.ssh] never decides: [geofence.rules.all] in line 2 covers its ports",
            ],
        ),
        (
            "default = \"drop\"\n[geofence.rules.all]\ndeny = [\"country:RU\"]",
            &["weir.toml:1: [geofence] never decides: [geofence.rules.all] in line 3"],
        ),
        (
            "[geofence.rules.a]\nports = [\"20-30\"]\n[geofence.rules.b]\nports = [\"22/tcp\", \"25/tcp\"]",
            &["[geofence.rules.b] never decides"],
        ),
        (
            "[geofence.rules.a]\ndirection = \"both\"\n[geofence.rules.b]\ndirection = \"out\"",
            &["[geofence.rules.b] never decides"],
        ),
        (
            "[geofence.rules.\"a b\"]\ndefault = \"drop\"",
            &["weir.toml:2: rule name \"a b\"; allowed: "],
        ),
        (
            "[geofence.rules.ssh]\ndefualt = \"drop\"",
            &[
                "weir.toml:3: unknown key \"defualt\" in [geofence.rules.ssh] (did you mean default?); allowed: default",
            ],
        ),
        (
            "[geofence.rules.ssh]\ndatabase = \"/x\"",
            &["unknown key \"database\" in [geofence.rules.ssh]"],
        ),
        ("rules = 5", &["rules in [geofence] is 5; allowed: a table"]),
    ];
    for (lines, expected) in cases {
        let text = format!("[geofence]\n{lines}");
        let message = check(&text).expect_err(&text);
        for part in *expected {
            assert!(
                message.contains(part),
                "{text}\ngives {message}\nwithout {part}"
            );
        }
    }
    let many: String = (0..=MAX_FENCES)
        .map(|n| format!("[geofence.rules.r{n}]\nports = [\"{}\"]\n", n + 1))
        .collect();
    let message = check(&many).unwrap_err();
    assert!(
        message.contains(":1: [geofence] has 17 rules; allowed: at most 16"),
        "{message}"
    );
    let message = check("geofence = true").unwrap_err();
    assert!(message.contains("weir.toml:1: geofence is true; allowed: a table [geofence]"));
}

#[test]
fn what_has_its_reason_is_no_contradiction() {
    for lines in [
        // Exceptions of something wider.
        "deny = [\"continent:AF\"]\nallow = [\"country:NA\"]",
        "deny = [\"country:RU\"]\nallow = [\"asn:64496\"]\nasn_database = \"/var/lib/GeoIP/a\"",
        "unknown = \"drop\"\nallow = [\"asn:64496\"]\nasn_database = \"/var/lib/GeoIP/a\"",
        "default = \"drop\"\nallow = [\"continent:EU\"]\ndeny = [\"country:BY\"]",
        // Rules that leave something to the next one.
        "default = \"drop\"\n[geofence.rules.a]\nports = [\"22/tcp\"]",
        "default = \"drop\"\n[geofence.rules.a]\ndirection = \"out\"\ndeny = [\"country:RU\"]",
        "default = \"drop\"\n[geofence.rules.a]\nexcept = [\"192.0.2.0/24\"]\ndeny = [\"country:RU\"]",
        "[geofence.rules.a]\nports = [\"22/tcp\"]\n[geofence.rules.b]\nports = [\"22\"]\ndefault = \"drop\"",
        // Another file may have both.
        "deny = [\"asn:64496\"]\ndatabase = \"/var/lib/GeoIP/both.mmdb\"",
    ] {
        let config = check(&format!("[geofence]\n{lines}")).expect(lines);
        assert!(config.warnings.is_empty(), "{lines}: {:?}", config.warnings);
    }
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    for (lines, warning) in [
        (
            "default = \"pass\"",
            "line 1: [geofence] denies nothing: everybody passes",
        ),
        (
            "default = \"drop\"",
            "line 1: [geofence] denies every country",
        ),
        (
            "default = \"drop\"\ndeny = [\"country:RU\"]",
            "line 3: deny in [geofence]: country:RU is dropped anyway",
        ),
        (
            "deny = [\"country:RU\"]\nasn_database = \"/var/lib/GeoIP/a\"",
            "line 3: asn_database in [geofence] is not needed",
        ),
        (
            "deny = [\"country:RU\"]\ndatabase = \"/srv/none.mmdb\"",
            "/srv/none.mmdb does not exist yet; the built-in one is used until it does",
        ),
    ] {
        let config = check(&format!("[geofence]\n{lines}")).expect(lines);
        assert!(
            config.warnings.iter().any(|w| w.contains(warning)),
            "{lines}: {:?}",
            config.warnings
        );
    }
}
