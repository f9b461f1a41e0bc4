//! `weir import ipt_geofence`: what it prints goes through `weir check`, and
//! says what becomes of every key.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// The sample with every key.
const EVERYTHING: &str = include_str!("../testdata/ipt_geofence/everything.json");

struct ConfigDir(TempDir);

impl ConfigDir {
    fn new() -> Self {
        let dir = Self(TempDir::with_prefix("weir-import-").unwrap());
        // What the configuration will refer to.
        for (name, text) in [
            (
                "telegram.token",
                "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
            ),
            ("zmq.key", "rq7m7=Q$oE]-l^Z:CknMk8k-B7*nJ5CNhkX-4@<6"),
        ] {
            let path = dir.0.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        dir
    }

    fn import(&self, json: &str, more: &[&str]) -> Output {
        let file = self.0.path().join("config.json");
        fs::write(&file, json).unwrap();
        let mut weir = Command::new(WEIR);
        weir.args(["import", "ipt_geofence", "--secrets"])
            .arg(self.0.path())
            .args(more)
            .arg(file);
        weir.output().unwrap()
    }

    fn imported(&self, json: &str) -> String {
        let output = self.import(json, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The mistakes that `weir check` finds; empty if there are none. Which ports are
    /// served and which interfaces there are is this machine's affair.
    fn check(&self, toml: &str) -> String {
        let file = self.0.path().join("weir.toml");
        let toml = toml.replace("interfaces = \"auto\"", "interfaces = [\"lo\"]");
        fs::write(&file, &toml).unwrap();
        let output = check(&file);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => String::new(),
            _ => format!("{said}\n{toml}"),
        }
    }
}

fn check(file: &Path) -> Output {
    Command::new(WEIR)
        .arg("--config")
        .arg(file)
        .arg("check")
        .output()
        .unwrap()
}

/// Settings without comments.
fn settings(toml: &str) -> toml::Table {
    toml.parse().unwrap_or_else(|e| panic!("{e}\n{toml}"))
}

fn strings(value: &toml::Value) -> Vec<&str> {
    let list = value.as_array().unwrap();
    list.iter().map(|v| v.as_str().unwrap()).collect()
}

#[test]
fn every_key_becomes_a_setting_or_a_comment() {
    let dir = ConfigDir::new();
    let text = dir.imported(EVERYTHING);
    assert_eq!(dir.check(&text), "");
    let toml = settings(&text);

    let geofence = &toml["geofence"];
    assert_eq!(geofence["default"].as_str(), Some("drop"));
    assert_eq!(geofence["unknown"].as_str(), Some("pass"));
    let places = [
        "country:NL",
        "country:DE",
        "country:NA",
        "continent:OC",
        "continent:SA",
    ];
    assert_eq!(strings(&geofence["allow"]), places);
    assert!(geofence.get("deny").is_none());
    // Port 444 is ignored, so it is not monitored.
    assert_eq!(
        strings(&geofence["ports"]),
        ["22/tcp", "443/tcp", "5060/udp"]
    );

    let decoys = [
        "23/tcp",
        "3389/tcp",
        "5900-6010/tcp",
        "23/udp",
        "3389/udp",
        "5900-6010/udp",
    ];
    assert_eq!(strings(&toml["decoy"]["ports"]), decoys);

    let lists = &toml["list"];
    let drop = "https://lists.example.net/drop/drop.txt";
    assert_eq!(lists["lists-drop"]["url"].as_str(), Some(drop));
    assert_eq!(lists["lists-drop"]["direction"].as_str(), Some("both"));
    assert_eq!(lists["example-drop"]["format"].as_str(), Some("csv:2"));
    assert!(lists.get("lists-drop-2").is_some());
    assert_eq!(lists["bad"]["file"].as_str(), Some("/var/lib/own/bad.txt"));
    assert_eq!(lists["allow-good"]["action"].as_str(), Some("allow"));

    let watches = toml["watch"].as_table().unwrap();
    assert_eq!(watches.keys().collect::<Vec<_>>(), ["auth", "mail-log"]);
    let command = ["/usr/local/bin/mail-watch", "-f", "/var/log/mail log"];
    assert_eq!(strings(&watches["mail-log"]["command"]), command);
    assert_eq!(watches["mail-log"]["only_if"].as_str(), Some("denied"));
    assert!(watches["auth"].get("only_if").is_none());

    let sinks = &toml["sink"];
    assert_eq!(sinks["telegram"]["chat_id"].as_str(), Some("-100200"));
    assert_eq!(sinks["zmq"]["format"].as_str(), Some("ipt_geofence"));
    // No secret, and nothing that somebody wrote into a name, gets in.
    assert!(!text.contains("SECRET"), "{text}");
    assert!(toml.get("jail").is_none());

    for told in [
        "not carried over: queue_id 7",
        "not carried over: markers",
        "not carried over: blacklist_dump_path",
        "not carried over: policy.pass",
        "asked: NA in policy.drop.countries_whitelist: there it meant the country Namibia and the continent North America",
        "asked: SA in policy.drop.continents_whitelist: there it meant the continent South America and the country Saudi Arabia",
        "asked: \"UK\" in policy.drop.countries_whitelist is no country's code. Did you mean country:GB (United Kingdom)?",
        "asked: \"XX\" in policy.drop.continents_whitelist is no continent's code",
        "not carried over: 70000 in monitored_ports.tcp",
        "changed: ignored_ports",
        "changed: monitored_ports",
        "not carried over: \"no port\" in monitored_ports.honeypot_ports",
        "not carried over: \"ftp://example.net/x\"",
        "not carried over: \"nonsense\"",
        "has characters that a URL writes as %XX",
        "asked: \"good.txt\" in whitelists",
        "asked: the command of watch pipe",
        "not carried over: a watch without a cmd",
        "not carried over: cmd.ban \"/usr/local/bin/tell ban\"",
        "not carried over: cmd.unban",
        "not carried over: not_a_key",
    ] {
        // Comments are broken into lines.
        let flat: Vec<_> = text.split_whitespace().filter(|w| *w != "#").collect();
        assert!(flat.join(" ").contains(told), "{told}\n{text}");
    }
}

#[test]
fn each_policy_becomes_rules_that_check_accepts() {
    let dir = ConfigDir::new();
    let imported = |json: &str| {
        let text = dir.imported(json);
        assert_eq!(dir.check(&text), "", "{json}");
        settings(&text)
    };
    // Passing by default: the other half counts, and all ports.
    let toml = imported(
        r#"{"queue_id": 0, "default_policy": "PASS", "policy": {
            "pass": {"countries_blacklist": ["RU"], "continents_blacklist": ["AF"]},
            "drop": {"countries_whitelist": ["NL"]}}}"#,
    );
    let geofence = toml["geofence"].as_table().unwrap();
    assert_eq!(strings(&geofence["deny"]), ["country:RU", "continent:AF"]);
    assert_eq!(geofence["ports"].as_str(), Some("all"));
    assert!(geofence.get("allow").is_none() && geofence.get("rules").is_none());
    // Ignored ports before a rule for all ports.
    let toml = imported(
        r#"{"default_policy": "DROP", "policy": {"drop": {"countries_whitelist": ["NL"]}},
            "monitored_ports": {"ignored_ports": [123, 53]}}"#,
    );
    let ignored = &toml["geofence"]["rules"]["ignored"];
    assert_eq!(strings(&ignored["ports"]), ["53", "123"]);
    assert_eq!(ignored["default"].as_str(), Some("pass"));
    // One protocol's ports: all of the other.
    let toml = imported(
        r#"{"default_policy": "DROP", "monitored_ports": {"tcp": [22], "ignored_ports": [123]}}"#,
    );
    assert_eq!(
        strings(&toml["geofence"]["ports"]),
        ["22/tcp", "1-122/udp", "124-65535/udp"]
    );
    // More ports than one rule can name.
    let ports: Vec<u32> = (1..=20).map(|n| n * 10).collect();
    let toml = imported(&format!(
        r#"{{"default_policy": "DROP", "monitored_ports": {{"tcp": {ports:?}, "udp": [53]}}}}"#
    ));
    let all: usize = [&toml["geofence"], &toml["geofence"]["rules"]["monitored2"]]
        .iter()
        .map(|rule| strings(&rule["ports"]).len())
        .sum();
    assert_eq!(all, 21);
    // Nothing left to judge, and no policy at all.
    for json in [
        r#"{"default_policy": "DROP", "monitored_ports": {"tcp": [22], "udp": [22], "ignored_ports": [22]}}"#,
        "{}",
    ] {
        assert!(imported(json).get("geofence").is_none(), "{json}");
    }
}

#[test]
fn the_honeypot_grammar_survives() {
    let dir = ConfigDir::new();
    for (ports, words) in [
        (
            r#"["!22", "!443"]"#,
            &["1-65535/tcp", "!22/tcp", "!443/tcp"][..],
        ),
        (r#"["9-7", 11, "8-10"]"#, &["7-11/tcp"]),
    ] {
        let json = format!(r#"{{"monitored_ports": {{"honeypot_ports": {ports}}}}}"#);
        let toml = settings(&dir.imported(&json));
        let tcp: Vec<_> = strings(&toml["decoy"]["ports"])
            .into_iter()
            .filter(|word| word.ends_with("/tcp"))
            .collect();
        assert_eq!(tcp, words, "{ports}");
    }
    // From UDP's ephemeral ports this host asks others itself.
    let toml =
        settings(&dir.imported(r#"{"monitored_ports": {"honeypot_ports": ["30000-61000"]}}"#));
    let words = ["30000-61000/tcp", "30000-32767/udp", "61000/udp"];
    assert_eq!(strings(&toml["decoy"]["ports"]), words);
}

#[test]
fn a_key_for_zmq_is_never_lost() {
    let dir = ConfigDir::new();
    let zmq = |key: &str| {
        let json = format!(r#"{{"zmq": {{"url": "tcp://192.0.2.7:5556"{key}}}}}"#);
        settings(&dir.imported(&json))["sink"]["zmq"].clone()
    };
    // G13: what is malformed asks for a key; clear text must have been meant.
    let malformed = zmq(r#", "encryption_key": "abc""#);
    assert!(malformed.get("server_key_file").is_some() && malformed.get("plain").is_none());
    let plain = zmq("");
    assert_eq!(plain["plain"].as_bool(), Some(true));
    assert!(plain.get("server_key_file").is_none());
}

#[test]
fn what_is_no_configuration_is_an_error() {
    let dir = ConfigDir::new();
    for (json, told) in [
        ("", "it is not JSON"),
        ("{\n\"queue_id\": x}", "line 2 column 13"),
        ("[1]", "not an object"),
    ] {
        let output = dir.import(json, &[]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{json}");
        assert!(
            err.contains("config.json") && err.contains(told),
            "{json}: {err}"
        );
    }
    // Wrong types are told, key by key.
    let text = dir.imported(
        r#"{"policy": 5, "default_policy": true, "monitored_ports": [], "blacklists": "x",
            "watches": {}, "telegram": null, "cmd": [], "zmq": 1}"#,
    );
    for key in [
        "policy",
        "monitored_ports",
        "blacklists",
        "watches",
        "telegram",
        "cmd",
        "zmq",
    ] {
        assert!(
            text.contains(&format!("not carried over: {key} is ")),
            "{key}\n{text}"
        );
    }
    assert_eq!(dir.check(&text), "");
}

#[test]
fn a_dump_of_bans_becomes_commands() {
    let dir = ConfigDir::new();
    let dump = "192.0.2.7\t1\n2001:db8::7\t3\n198.51.100.1\t2000000\n\n\
                203.0.113.9; rm -rf /\t1\nhost\t1\n203.0.113.10\tx\n";
    let output = dir.import(dump, &["--bans"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "weir ban 192.0.2.7 --for 600s --reason 'ipt_geofence: 1 offences'",
            "weir ban 2001:db8::7 --for 2700s --reason 'ipt_geofence: 3 offences'",
            "weir ban 198.51.100.1 --for 2940300s --reason 'ipt_geofence: 2000000 offences'",
        ]
    );
    assert_eq!(lines.len(), 6);
    assert!(
        lines[3..].iter().all(|line| line.starts_with("# line ")),
        "{text}"
    );
}
