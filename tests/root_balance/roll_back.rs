//! Reloads that are refused late: tokens, decoy ports, the geofence and pools are afterwards
//! as before, and at no moment absent.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use weir_bpf::identity::{CgroupAt, missing};
use weir_testkit::mmdb::{Mmdb, country};

use super::*;

const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// A port of the host's that wants a token, and one of UDP.
const WITH_TOKEN: u16 = 8080;
const DATAGRAMS: u16 = 9999;

/// A host with all of it, and with what refuses the pools of a configuration.
struct Rules {
    weir: Weir,
    _server: Child,
    cgroup: PathBuf,
    segment: PoolNetwork,
}

/// Ends with what runs in it, which ends before.
impl Drop for Rules {
    fn drop(&mut self) {
        let _ = self._server.signal(9);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.cgroup).is_err() && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Rules {
    /// `None`: what it takes is not here, which was said.
    fn new(name: &str) -> Option<Self> {
        if skipped(&["nginx", "python3"]) {
            return None;
        }
        let missing = missing();
        let Some(cgroups) = CgroupAt::mount_point().filter(|_| missing.is_empty()) else {
            println!("skipped: tokens (probe: control groups of version 2, BTF) {missing:?}");
            return None;
        };
        let segment = PoolNetwork::new("tcx");
        let cgroup = cgroups.join(format!("weir-{name}-{}", std::process::id()));
        fs::create_dir(&cgroup).unwrap();
        let mut command = Command::new("sh");
        let serve = format!(
            "echo 0 > {}/cgroup.procs && exec python3 -m http.server {WITH_TOKEN} --bind ::",
            cgroup.display()
        );
        command.args(["-c", &serve]).current_dir(&segment.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        let server = segment.host.spawn(command).unwrap();
        soon("the server of the host", || {
            let at = SocketAddr::new(addr(HOST[1]), WITH_TOKEN);
            traffic::tcp_connect(&segment.client, None, at, SILENCE).ok()
        });
        let mut weir = Weir::new(&segment.host, "");
        let refusals = weir.path("refuse").display().to_string();
        weir.env.push(("WEIR_FAULT_REFUSE", refusals));
        let mut rules = Self {
            weir,
            _server: server,
            cgroup,
            segment,
        };
        rules.write_files("one", "RU");
        rules.weir.configure(&rules.config("one"));
        rules.weir.run();
        live_soon(&rules.weir, 2);
        Some(rules)
    }

    /// Keys and a database of this name, in which [`BANNED`] is in this country.
    fn write_files(&self, name: &str, of_banned: &str) {
        let keys = self.weir.path(name).display().to_string();
        let made = Command::new(WEIR)
            .args(["token", "key", "new", "--keys", &keys])
            .output();
        assert!(made.as_ref().unwrap().status.success(), "{made:?}");
        let places = BANNED.iter().fold(Mmdb::new("Test-Country"), |places, of| {
            let bits = if of.contains(':') { 128 } else { 32 };
            places.with(&format!("{of}/{bits}"), country(of_banned, "EU"))
        });
        fs::write(self.database(name), places.build()).unwrap();
    }

    fn database(&self, name: &str) -> PathBuf {
        self.weir.path(&format!("{name}.mmdb"))
    }

    /// Pools, and all that stands beside them, by the files of this name.
    fn config(&self, name: &str) -> String {
        let aggregate = "0b".repeat(32);
        format!(
            "{}[decoy]\nports = [\"23/tcp\"]\n[geofence]\ndatabase = {:?}\ndeny = [\"country:RU\"]\n\
             [token]\nkeys = {:?}\ncgroup = {:?}\n[token.require.web]\nports = [\"{WITH_TOKEN}/tcp\"]\n\
             aggregate = \"{aggregate}\"\n",
            config("tcx"),
            self.database(name).display().to_string(),
            self.weir.path(name).display().to_string(),
            self.cgroup.display().to_string(),
        )
    }

    /// Lets the kernel take no configuration with so many virtual addresses times ports.
    fn refuse_services(&self, count: usize) {
        fs::write(self.weir.path("refuse"), format!("services-{count}\n")).unwrap();
    }

    fn missing_tokens(&self) -> u64 {
        let status = self.weir.json(&["status"]);
        let missing = &status["token"]["requirements"][0]["outcomes"]["missing"];
        missing.as_u64().unwrap_or_else(|| panic!("{status}"))
    }

    /// Asserts that everything is in force as the first configuration says.
    #[track_caller]
    fn is_all_in_force(&self) {
        let status = self.weir.json(&["status"]);
        assert_eq!(status["decoy"]["ports"][0], "23/tcp", "{status}");
        assert_eq!(status["decoy"]["open"], 1, "{status}");
        assert_eq!(self.weir.attachment("eth0").0, "tcx");
        for family in 0..2 {
            assert!(self.segment.open(BANNED[family], family).is_none());
            let why = self.weir.why(BANNED[family]).to_string();
            assert!(why.contains("country RU"), "{why}");
            let before = self.missing_tokens();
            let at = SocketAddr::new(addr(HOST[family]), WITH_TOKEN);
            let client = Some(addr(CLIENT[family]));
            let asked = traffic::tcp_connect(&self.segment.client, client, at, SILENCE);
            assert!(asked.is_err(), "without a token");
            assert!(self.missing_tokens() > before);
        }
    }

    fn alerts(&self) -> String {
        self.weir.json(&["status"])["alerts"].to_string()
    }

    /// Has datagrams from whom the geofence denies come without a pause while `done` does
    /// something: how many arrived.
    fn arrived_while(&self, done: impl FnOnce()) -> u64 {
        let at = SocketAddr::new(addr(HOST[0]), DATAGRAMS);
        let server = UdpServer::start(&self.segment.host, at).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let from = Some(addr(BANNED[0]));
                while !stop.load(Ordering::Relaxed) {
                    traffic::udp_send(&self.segment.client, from, at, b"?", 1).unwrap();
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(done));
            stop.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        server.received()
    }
}

/// Pools refuse what goes without tokens, decoy ports and a geofence, on the same backend and
/// by way of another one: nothing of it is gone for a moment.
#[test]
fn root_a_refused_reload_takes_nothing_away() {
    let Some(rules) = Rules::new("gone") else {
        return;
    };
    let mut flows = rules.segment.flows();
    rules.is_all_in_force();
    // Who would arrive if he could.
    rules.weir.configure(&config("tcx"));
    rules.weir.ask(&["reload"]).done();
    assert!(rules.arrived_while(|| thread::sleep(Duration::from_millis(100))) > 0);
    rules.weir.configure(&rules.config("one"));
    rules.weir.ask(&["reload"]).done();
    rules.refuse_services(2);
    let arrived = rules.arrived_while(|| {
        for backend in ["tcx", "cls_bpf", "tcx"] {
            let gone = config(backend).replace(", \"5353/udp\"", "");
            rules.weir.configure(&gone);
            let refused = rules.weir.ask(&["reload"]);
            refused.refused(&["virtual addresses"]);
        }
    });
    assert_eq!(arrived, 0);
    rules.is_all_in_force();
    assert_eq!(rules.alerts(), "[]");
    for (family, number, flow) in &mut flows {
        assert_eq!(flow.ask(CLIENT[*family]), *number);
    }
    // The next one is not, and takes them away.
    fs::remove_file(rules.weir.path("refuse")).unwrap();
    rules.weir.ask(&["reload"]).done();
    let status = rules.weir.json(&["status"]);
    assert!(status["decoy"].is_null(), "{status}");
    assert!(rules.segment.open(BANNED[0], 0).is_some());
}

/// Each step is taken back, with what was read of files that are gone by then, and whatever
/// cannot be had is told.
#[test]
fn root_a_roll_back_runs_every_step_and_tells_each_failure() {
    let Some(rules) = Rules::new("back") else {
        return;
    };
    let mut flows = rules.segment.flows();
    rules.is_all_in_force();
    let mut is_as_before = |rules: &Rules| {
        rules.is_all_in_force();
        for (family, number, flow) in &mut flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
    };
    let changes_all = |name: &str| {
        let other = rules.config(name).replace("\"tcx\"", "\"cls_bpf\"");
        let other = other.replace("[\"23/tcp\"]", "[\"24/tcp\", \"25/tcp\"]");
        let other = other.replace("country:RU", "country:NL");
        other.replace(", \"5353/udp\"", "")
    };
    rules.write_files("other", "RU");
    // Other files, another hook, other rules, other pools, which are refused. The files of
    // before are gone by then.
    let [keys, database] = [rules.weir.path("one"), rules.database("one")];
    let [no_keys, no_database] = ["keys", "database"].map(|name| rules.weir.path(name));
    rules.refuse_services(2);
    rules.weir.configure(&changes_all("other"));
    rules.weir.ask(&["reload"]).refused(&["virtual addresses"]);
    is_as_before(&rules);
    let services = pool(&rules.weir)["services"].clone();
    assert_eq!(services.as_array().unwrap().len(), 4, "{services}");
    assert_eq!(rules.alerts(), "[]");
    fs::rename(&keys, &no_keys).unwrap();
    fs::rename(&database, &no_database).unwrap();
    rules.weir.ask(&["reload"]).refused(&["virtual addresses"]);
    is_as_before(&rules);
    let alerts = rules.alerts();
    let keys_are_told = "the keys that were read before stay in force";
    assert!(alerts.contains(keys_are_told), "{alerts}");
    assert!(alerts.contains(&keys.display().to_string()), "{alerts}");
    soon("an alert about the database", || {
        rules.alerts().contains("one.mmdb").then_some(())
    });
    is_as_before(&rules);

    // Without the keys a reload is refused, whatever else it changes, and so are pools on the
    // way back: the other steps are taken all the same, and both are told.
    fs::rename(&no_database, &database).unwrap();
    fs::write(rules.weir.path("refuse"), "services-2\nservices-4\n").unwrap();
    rules.weir.configure(&changes_all("one"));
    rules.weir.ask(&["reload"]).refused(&["[token]"]);
    is_as_before(&rules);
    assert!(rules.alerts().contains(keys_are_told));
    rules.weir.configure(&changes_all("other"));
    rules.weir.ask(&["reload"]).refused(&["virtual addresses"]);
    is_as_before(&rules);
    let alerts = rules.alerts();
    assert!(alerts.contains(keys_are_told), "{alerts}");
    assert!(alerts.contains("virtual addresses"), "{alerts}");

    // With all of it there again, nothing is left to tell.
    fs::remove_file(rules.weir.path("refuse")).unwrap();
    fs::rename(&no_keys, Path::new(&keys)).unwrap();
    rules.weir.configure(&rules.config("one"));
    rules.weir.ask(&["reload"]).done();
    is_as_before(&rules);
    soon("no alert", || (rules.alerts() == "[]").then_some(()));
}
