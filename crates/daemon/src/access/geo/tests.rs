//! Which GeoTable is in force when files come, change, break and go.

use std::{
    fs,
    time::{Duration, Instant},
};

use weir_events::Kind;
use weir_testkit::{
    fuse::{FuseLog, missing},
    mmdb::{self, Mmdb},
};

use super::*;
use crate::config::Config;

struct Site {
    dir: tempfile::TempDir,
    geography: Arc<GeoService>,
}

fn patient(patience: u32) -> Arc<GeoService> {
    Arc::new(GeoService {
        patience,
        ..GeoService::new(Arc::default())
    })
}

const ADDR: &str = "192.0.2.7";

impl Site {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            geography: patient(u32::MAX),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that puts [`ADDR`] into this country, by rename.
    fn countries(&self, code: &str) {
        let bytes = Mmdb::new("GeoLite2-Country")
            .with("192.0.2.0/24", mmdb::country(code, "EU"))
            .build();
        fs::write(self.path("new"), bytes).unwrap();
        fs::rename(self.path("new"), self.path("countries.mmdb")).unwrap();
    }

    fn systems(&self, asn: u32) {
        let record = mmdb::map([("autonomous_system_number", mmdb::Value::Number(asn))]);
        let bytes = Mmdb::new("GeoLite2-ASN")
            .with("192.0.2.0/25", record)
            .build();
        fs::write(self.path("systems.mmdb"), bytes).unwrap();
    }

    /// Takes on the lines of [geofence]; `DIR` stands for the directory.
    fn configure(&self, lines: &str) {
        let dir = self.dir.path().display().to_string();
        let text = format!("backend = \"dry-run\"\n{}", lines.replace("DIR", &dir));
        let config = Config::check(Path::new("weir.toml"), &text, &crate::host::Host).unwrap();
        self.geography.configure(config.geofence.as_ref());
    }

    fn country(&self) -> String {
        let place = self
            .geography
            .geo_table()
            .unwrap()
            .place(ADDR.parse().unwrap());
        place.country.map(|c| c.to_string()).unwrap_or_default()
    }

    fn asn(&self) -> Option<u32> {
        self.geography
            .geo_table()
            .unwrap()
            .place(ADDR.parse().unwrap())
            .asn
    }

    fn alert(&self) -> String {
        let list = self.geography.alerts.list();
        list.into_iter().map(|alert| alert.message).collect()
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}; {}", self.alert());
            self.geography.look();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const FENCE: &str = "[geofence]\ndeny = [\"country:RU\"]\ndatabase = \"DIR/countries.mmdb\"";

#[test]
fn without_a_geofence_nothing_is_held() {
    let site = Site::new();
    site.configure("");
    assert!(site.geography.geo_table().is_none());
    // Who asks is told nevertheless.
    let place = site.geography.place("8.8.8.8".parse().unwrap());
    assert_eq!(place.country.unwrap().to_string(), "US");
    site.configure("[geofence]\ndeny = [\"country:RU\"]");
    let geo_table = site.geography.geo_table().unwrap();
    assert_eq!(geo_table.place("8.8.8.8".parse().unwrap()), place);
    assert_eq!(site.geography.databases()[0].name, "built-in");
    let before = site.geography.changes();
    site.configure("[geofence]\ndeny = [\"country:RU\"]\nports = [\"22/tcp\"]");
    assert_eq!(site.geography.changes(), before, "the same database");
    site.configure("");
    assert!(site.geography.geo_table().is_none());
    assert_ne!(site.geography.changes(), before);
}

#[test]
fn a_file_that_changes_is_read_again() {
    let site = Site::new();
    site.countries("NL");
    site.configure(FENCE);
    assert_eq!(site.country(), "NL");
    let before = site.geography.changes();
    site.countries("DE");
    site.until("the new file is in force", || site.country() == "DE");
    assert!(site.geography.changes() > before);
    assert_eq!(site.alert(), "");
}

#[test]
fn a_file_that_breaks_leaves_the_last_good_one_in_force() {
    let site = Site::new();
    site.countries("NL");
    site.configure(FENCE);
    let whole = fs::read(site.path("countries.mmdb")).unwrap();
    for (content, told) in [
        (&b"<html>"[..], "not a whole database"),
        (&whole[..whole.len() / 2], "not a whole database"),
        (b"", "not a whole database"),
        (&Mmdb::new("other").build(), "names no countries"),
    ] {
        let before = site.geography.changes();
        fs::write(site.path("countries.mmdb"), content).unwrap();
        site.until(told, || site.alert().contains(told));
        assert_eq!(site.country(), "NL");
        assert_eq!(site.geography.changes(), before);
        assert!(
            site.alert().contains("of 2023-11-14 stays in force"),
            "{}",
            site.alert()
        );
        site.countries("NL");
        // The alert ends a moment before the file is in force.
        site.until("the alert is over", || {
            site.alert().is_empty() && site.geography.changes() > before
        });
    }
    fs::remove_file(site.path("countries.mmdb")).unwrap();
    site.until("its absence is told", || {
        site.alert().contains("cannot read it")
    });
    assert_eq!(site.country(), "NL");
    site.countries("SE");
    site.until("it is back", || site.country() == "SE");
    assert_eq!(site.alert(), "");
}

#[test]
fn without_its_file_the_built_in_database_serves() {
    let site = Site::new();
    site.configure(FENCE);
    assert!(site.alert().contains("built-in of "), "{}", site.alert());
    let google = site.geography.place("8.8.8.8".parse().unwrap());
    assert_eq!(google.country.unwrap().to_string(), "US");
    site.countries("NL");
    site.until("the file is in force", || site.country() == "NL");
    assert_eq!(site.alert(), "");
}

#[test]
fn a_file_being_written_is_left_alone() {
    let site = Site::new();
    site.countries("NL");
    site.configure(FENCE);
    let mut part = Part::default();
    let path = site.path("growing");
    for size in 1..20 {
        fs::write(&path, vec![0; size]).unwrap();
        let now = Some(Stamp::of(&path));
        assert!(!part.is_due(now), "it has grown to {size}");
    }
    let now = Some(Stamp::of(&path));
    assert!(part.is_due(now));
    assert!(!part.is_due(now), "read once per change");
}

#[test]
fn systems_come_from_a_file_of_their_own() {
    let site = Site::new();
    site.countries("NL");
    site.systems(64496);
    let fence = |asn: u32| {
        format!(
            "[geofence]\ndeny = [\"asn:{asn}\"]\ndatabase = \"DIR/countries.mmdb\"\nasn_database = \"DIR/systems.mmdb\""
        )
    };
    site.configure(&fence(64496));
    assert_eq!((site.country().as_str(), site.asn()), ("NL", Some(64496)));
    // Those that no rule names are not kept.
    site.configure(&fence(64497));
    assert_eq!((site.country().as_str(), site.asn()), ("NL", None));
    site.systems(64497);
    site.until("the new file is in force", || site.asn() == Some(64497));
    fs::write(site.path("systems.mmdb"), "x").unwrap();
    site.until("it is told", || site.alert().contains("systems.mmdb"));
    assert_eq!((site.country().as_str(), site.asn()), ("NL", Some(64497)));
    site.configure(FENCE);
    assert_eq!((site.alert().as_str(), site.asn()), ("", None));
    // A file without systems cannot serve an asn: rule.
    site.configure("[geofence]\ndeny = [\"asn:1\"]\ndatabase = \"DIR/countries.mmdb\"");
    assert!(
        site.alert().contains("names no autonomous systems"),
        "{}",
        site.alert()
    );
    assert_eq!(site.country(), "NL");
}

#[test]
fn an_event_has_the_country_of_its_subject() {
    let site = Site::new();
    let event = || {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Event::new(Kind::Ban, now, "x").about("192.0.2.7".parse().unwrap())
    };
    assert_eq!(site.geography.placed(event()).country, None);
    site.countries("NL");
    site.configure(FENCE);
    assert_eq!(
        site.geography.placed(event()).country.as_deref(),
        Some("NL")
    );
}

/// A server of NFS that is gone: nobody else waits for it, and it is told.
#[test]
fn root_a_database_on_a_hung_file_system_stops_nothing_else() {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    let files = FuseLog::mount().unwrap();
    let site = Site {
        geography: patient(3),
        ..Site::new()
    };
    let fence = format!(
        "[geofence]\ndeny = [\"country:RU\"]\ndatabase = {:?}",
        files.path()
    );
    site.configure(&fence);
    assert!(site.alert().contains("built-in of "), "{}", site.alert());
    files.hang(true);
    // Each look returns.
    let is_told = || site.alert().contains("does not answer");
    site.until("it is told", is_told);
    let google = site.geography.place("8.8.8.8".parse().unwrap());
    assert_eq!(google.country.unwrap().to_string(), "US");
    // What is asked of another file is done, and that one is looked at.
    site.countries("NL");
    site.configure(FENCE);
    assert_eq!(site.country(), "NL");
    assert_eq!(site.alert(), "");
    site.countries("DE");
    site.until("the new file is in force", || site.country() == "DE");
    files.hang(false);
}
