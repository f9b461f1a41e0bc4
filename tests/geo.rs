//! `weir geo` and the geofence's user-space side as users meet them: the real
//! program, real files, a real daemon with the dry-run backend. Needs no
//! privilege.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_testkit::mmdb::{self, Mmdb};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const DEADLINE: Duration = Duration::from_secs(60);

struct ConfigDir {
    dir: TempDir,
    daemon: Option<Child>,
}

impl Drop for ConfigDir {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl ConfigDir {
    fn new(geofence: &str) -> Self {
        let dir = Self {
            dir: TempDir::with_prefix("weir-geo-").unwrap(),
            daemon: None,
        };
        dir.configure(geofence);
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `DIR` stands for the directory.
    fn configure(&self, geofence: &str) {
        let text = "backend = \"dry-run\"\ninterfaces = [\"lo\"]\nstate_dir = \"DIR/state\"\n\
                    socket = \"DIR/weir.sock\"\n"
            .to_owned()
            + geofence;
        let text = text.replace("DIR", &self.dir.path().display().to_string());
        fs::write(self.path("weir.toml"), text).unwrap();
    }

    fn country(&self, code: &str) {
        let bytes = Mmdb::new("GeoLite2-Country")
            .with("192.0.2.0/24", mmdb::country(code, "EU"))
            .with("2001:db8::/32", mmdb::country("NA", "AF"))
            .build();
        fs::write(self.path("new"), bytes).unwrap();
        fs::rename(self.path("new"), self.path("c.mmdb")).unwrap();
    }

    fn weir(&self, args: &[&str]) -> Output {
        let mut weir = Command::new(WEIR);
        weir.arg("--config").arg(self.path("weir.toml")).args(args);
        weir.output().unwrap()
    }

    fn start(&mut self) {
        let mut weir = Command::new(WEIR);
        weir.arg("--config")
            .arg(self.path("weir.toml"))
            .arg("daemon");
        let log = fs::File::create(self.path("log")).unwrap();
        self.daemon = Some(weir.stderr(log).spawn().unwrap());
        self.until("the daemon answers", |dir| {
            dir.weir(&["status", "--json"]).status.success()
        });
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "never: {what}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn geo_answers_from_the_built_in_database() {
    let dir = ConfigDir::new("");
    let said = dir.weir(&["geo", "8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8"]);
    assert_eq!(said.status.code(), Some(0), "{}", err(&said));
    let text = out(&said);
    assert!(
        text.contains(
            "8.8.8.8: country:US (United States), continent:NA (North America), network "
        ),
        "{text}"
    );
    assert!(text.contains("2001:4860:4860::8888: country:US"), "{text}");
    assert!(text.contains("  from built-in: "), "{text}");
    assert_eq!(
        text.matches("\n8.8.8.8: ").count(),
        1,
        "mapped IPv4 is IPv4: {text}"
    );

    let json = dir.weir(&["geo", "--json", "8.8.8.8"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let place = &json["places"][0];
    assert_eq!(place["country"], "US");
    assert_eq!(place["country_name"], "United States");
    assert_eq!(place["continent"], "NA");
    assert_eq!(place["asn"], Value::Null);
    assert_eq!(json["databases"][0]["name"], "built-in");
    assert!(
        json["databases"][0]["built"]
            .as_str()
            .unwrap()
            .starts_with("20")
    );

    // Registries give these the country of their own office.
    let special = [
        "192.168.1.1",
        "172.16.0.1",
        "198.51.100.7",
        "203.0.113.7",
        "2001:db8::1",
        "fd00::1",
    ];
    for addr in special {
        let said = dir.weir(&["geo", addr]);
        assert_eq!(said.status.code(), Some(1), "{}", out(&said));
        assert!(
            out(&said).contains(&format!("{addr}: unknown")),
            "{}",
            out(&said)
        );
    }

    // The answer is no; and what is no address is an error.
    let none = dir.weir(&["geo", "8.8.8.8", "10.0.0.1"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(out(&none).contains("10.0.0.1: unknown"));
    assert_eq!(dir.weir(&["geo", "localhost"]).status.code(), Some(2));
    // Without a configuration, too.
    fs::remove_file(dir.path("weir.toml")).unwrap();
    assert_eq!(dir.weir(&["geo", "8.8.8.8"]).status.code(), Some(0));
}

#[test]
fn geo_reads_the_databases_of_the_configuration() {
    let geofence = "[geofence]\ndefault = \"drop\"\nallow = [\"country:NL\", \"asn:64496\"]\n\
                    database = \"DIR/c.mmdb\"\nasn_database = \"DIR/a.mmdb\"";
    let dir = ConfigDir::new(geofence);
    dir.country("NL");
    let record = mmdb::map([("autonomous_system_number", mmdb::Value::Number(64500))]);
    let bytes = Mmdb::v4("GeoLite2-ASN")
        .with("192.0.2.0/25", record)
        .build();
    fs::write(dir.path("a.mmdb"), bytes).unwrap();
    let said = dir.weir(&["geo", "192.0.2.7"]);
    let text = out(&said);
    assert!(
        text.starts_with(
            "192.0.2.7: country:NL (Netherlands), continent:EU (Europe), \
             asn:64500 (192.0.2.0/25), network 192.0.2.0/24\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("c.mmdb: GeoLite2-Country of 2023-11-14"),
        "{text}"
    );
    assert!(
        text.contains("a.mmdb: GeoLite2-ASN of 2023-11-14"),
        "{text}"
    );
    // Namibia is no part of North America.
    let text = out(&dir.weir(&["geo", "2001:db8::1"]));
    assert!(
        text.contains("country:NA (Namibia), continent:AF (Africa)"),
        "{text}"
    );
    // A broken file is told; the built-in one answers, as in the daemon.
    fs::write(dir.path("c.mmdb"), "x").unwrap();
    let said = dir.weir(&["geo", "8.8.8.8"]);
    assert!(
        err(&said).contains("not a whole database"),
        "{}",
        err(&said)
    );
    assert!(out(&said).contains("country:US"));
}

/// Whoever names a database asks it, and no other.
#[test]
fn a_database_that_is_named_answers_or_nothing_does() {
    let dir = ConfigDir::new("");
    dir.country("NL");
    let asks = |flag: &str, file: &str| {
        let file = dir.path(file);
        dir.weir(&["geo", flag, file.to_str().unwrap(), "192.0.2.7"])
    };
    let said = asks("--database", "c.mmdb");
    assert!(out(&said).contains("192.0.2.7: country:NL"), "{said:?}");
    fs::write(dir.path("damaged.mmdb"), "x").unwrap();
    for flag in ["--database", "--asn-database"] {
        for (file, why) in [
            ("missing.mmdb", "cannot read it"),
            ("damaged.mmdb", "not a whole database"),
        ] {
            let said = asks(flag, file);
            assert_eq!(said.status.code(), Some(2), "{flag} {file}: {said:?}");
            assert_eq!(out(&said), "", "{flag} {file}");
            let told = err(&said);
            assert!(told.contains(file) && told.contains(why), "{told}");
        }
    }
}

/// One broken record hides no other address's answer.
#[test]
fn a_broken_record_is_an_error_for_its_addresses_only() {
    let dir = ConfigDir::new("");
    let bytes = Mmdb::v4("GeoLite2-Country")
        .with("192.0.2.0/24", mmdb::country("NL", "EU"))
        .with("198.51.100.0/24", mmdb::broken())
        .build();
    fs::write(dir.path("c.mmdb"), bytes).unwrap();
    let file = dir.path("c.mmdb").display().to_string();
    let ask = ["geo", "--database", &file, "198.51.100.7", "192.0.2.7"];
    let said = dir.weir(&ask);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(out(&said).starts_with("192.0.2.7: country:NL"), "{said:?}");
    assert!(err(&said).contains("198.51.100.7: "), "{said:?}");
    assert!(err(&said).contains("1 of 2 addresses"), "{said:?}");
    let said = dir.weir(&[&ask[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(json["places"][0]["address"], "198.51.100.7", "{json}");
    assert!(json["places"][0]["error"].is_string(), "{json}");
    assert_eq!(json["places"][1]["country"], "NL", "{json}");
}

/// A geofence whose database is broken, or of another kind, is told of.
#[test]
fn check_reads_the_databases_of_the_geofence() {
    let dir = ConfigDir::new(
        "[geofence]\ndeny = [\"country:RU\", \"asn:64496\"]\n\
         database = \"DIR/c.mmdb\"\nasn_database = \"DIR/a.mmdb\"",
    );
    let check = || {
        let said = dir.weir(&["check", "--json"]);
        let json: Value = serde_json::from_slice(&said.stdout).unwrap();
        let problems = json["problems"].as_array().unwrap().iter();
        let problems: Vec<_> = problems
            .map(|problem| problem.as_str().unwrap().to_owned())
            .filter(|problem| problem.contains("[geofence]"))
            .collect();
        if !problems.is_empty() {
            assert_eq!(said.status.code(), Some(1), "{problems:?}");
        }
        problems
    };
    let record = mmdb::map([("autonomous_system_number", mmdb::Value::Number(64496))]);
    let systems = Mmdb::v4("GeoLite2-ASN").with("192.0.2.0/25", record);
    fs::write(dir.path("a.mmdb"), systems.build()).unwrap();
    dir.country("NL");
    assert_eq!(check(), [""; 0]);
    // Each in the other's place, then cut.
    fs::copy(dir.path("a.mmdb"), dir.path("c.mmdb")).unwrap();
    let said = check();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("names no countries"), "{said:?}");
    assert!(said[0].contains("the built-in one is used"), "{said:?}");
    dir.country("NL");
    fs::copy(dir.path("c.mmdb"), dir.path("a.mmdb")).unwrap();
    let said = check();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("names no autonomous systems"), "{said:?}");
    for file in ["c.mmdb", "a.mmdb"] {
        fs::write(dir.path(file), "x").unwrap();
    }
    let said = check();
    assert_eq!(said.len(), 2, "{said:?}");
    for warning in said {
        assert!(warning.contains("not a whole database"), "{warning}");
    }
}

#[test]
fn the_daemon_follows_its_database_and_names_countries_in_events() {
    let mut dir = ConfigDir::new("[geofence]\ndeny = [\"country:RU\"]\ndatabase = \"DIR/c.mmdb\"");
    dir.country("NL");
    dir.start();
    let mut events = Command::new(WEIR)
        .arg("--config")
        .arg(dir.path("weir.toml"))
        .args(["events", "--follow"])
        .stdout(fs::File::create(dir.path("events")).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let country_of = |dir: &ConfigDir, addr: &str| {
        let ban = dir.weir(&["ban", addr, "--for", "1h"]);
        assert!(ban.status.success(), "{}", err(&ban));
        let text = fs::read_to_string(dir.path("events")).unwrap();
        text.lines().find_map(|line| {
            let event: Value = serde_json::from_str(line).ok()?;
            let subject = event["subject"].as_str()?;
            (event["kind"] == "ban" && subject.contains(addr))
                .then(|| event["country"].as_str().unwrap_or_default().to_owned())
        })
    };
    dir.until("the ban event names the country", |dir| {
        country_of(dir, "192.0.2.71").as_deref() == Some("NL")
    });
    dir.country("DE");
    dir.until("the new database is in force", |dir| {
        let log = fs::read_to_string(dir.path("log")).unwrap();
        log.matches("geofence-database: ").count() == 2
    });
    dir.until("the ban event names the new country", |dir| {
        country_of(dir, "192.0.2.72").as_deref() == Some("DE")
    });
    // What breaks is an alert; nothing changes.
    fs::write(dir.path("c.mmdb"), "x").unwrap();
    dir.until("the alert is shown", |dir| {
        let status = out(&dir.weir(&["status", "--json"]));
        let status: Value = serde_json::from_str(&status).unwrap();
        let alerts = status["alerts"].as_array().unwrap().iter();
        alerts
            .into_iter()
            .any(|a| a["about"] == "geofence-database")
    });
    dir.until("the country is still known", |dir| {
        country_of(dir, "192.0.2.73").as_deref() == Some("DE")
    });
    let _ = events.kill();
    let _ = events.wait();
}
