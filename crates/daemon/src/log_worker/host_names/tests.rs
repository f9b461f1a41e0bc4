//! Names are answered by the tests themselves: no thread runs.

use std::path::Path;

use weir_core::detect::Clock;
use weir_enforce::DryRun;

use super::*;
use crate::{
    config::Config, host::Host, interfaces::ProtectedInterfaces, log_worker::group::running,
    run::handles, service::Service, store::Store,
};

struct Scene {
    names: HostNames,
    service: Service,
    daemon: Handles,
    jails: Vec<Running>,
    ledger: Arc<Ledger>,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// A jail that bans with the second failure, and one that looks nothing up.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            r#"
            backend = "dry-run"
            interfaces = []
            state_dir = "{}"
            [filter.mail]
            patterns = ["rejected <host>"]
            [jail.mail]
            paths = ["/dev/null"]
            max_retry = 2
            [jail.other]
            filter = "mail"
            paths = ["/dev/null"]
            use_dns = "no"
            "#,
            dir.path().display()
        );
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let alerts = Arc::new(Alerts::default());
        let (store, _) = Store::open(dir.path(), config.keep_history, alerts.clone());
        let backend = Arc::new(DryRun::new(1000, None));
        let ledger = Arc::new(Ledger::new(super::super::jails(&config)));
        let interfaces = ProtectedInterfaces::default();
        let service = Service::new(
            config.clone(),
            backend,
            store,
            interfaces,
            alerts,
            String::new(),
        );
        let groups = running(&service.metrics.jails, &config).unwrap();
        let mut jails: Vec<_> = groups.into_values().flatten().collect();
        jails.sort_by_key(|jail| jail.number);
        let names = HostNames::default();
        names.jails().replace(&ledger, &jails);
        Self {
            names,
            daemon: handles::of_logs(&service),
            service,
            jails,
            ledger,
            _dir: dir,
        }
    }

    fn asks(&self, jail: usize, text: &str) -> Option<Addresses> {
        let name = name(text);
        let finding = Finding {
            offender: Offender::Name(name.clone()),
            time: Timestamp::now(),
            user: None,
            attempts: 1,
            pattern: 0,
            clock: Clock::Now,
        };
        let line = format!("rejected {text} {}", "x".repeat(8000));
        let jail = &self.jails[jail];
        self.names
            .ask(&self.daemon, jail, &name, &finding, line.as_bytes())
    }

    /// The name that is asked about next has this answer.
    fn is_answered(&self, answer: Result<&[&str], &str>) {
        let name = lock(&self.names.table).next().expect("one is asked about");
        let answer = answer.map(|addresses| {
            let addresses = addresses.iter();
            addresses.map(|addr| addr.parse().unwrap()).collect()
        });
        let answer = answer.map_err(str::to_owned);
        self.names.answered(&self.daemon, name, answer);
    }

    fn tracked(&self) -> usize {
        self.ledger.stats(0).unwrap().tracked
    }

    fn bans(&self) -> Vec<(String, String)> {
        let entries = self.service.bans_in_force(None).unwrap();
        let bans = self.service.explain(entries).into_iter();
        let mut bans: Vec<_> = bans
            .map(|ban| (ban.subject.to_string(), ban.reason))
            .collect();
        bans.sort();
        bans
    }

    fn alerts(&self) -> Vec<(String, String)> {
        let alerts = self.service.alerts.list().into_iter();
        alerts.map(|alert| (alert.about, alert.message)).collect()
    }

    /// Resolved, failed and refused findings of the first jail.
    fn counters(&self) -> [u64; 3] {
        let counters = &self.jails[0].counters;
        [
            counters.names_resolved.get(),
            counters.names_failed.get(),
            counters.refused.get(),
        ]
    }
}

fn name(text: &str) -> HostName {
    HostName::new(text.as_bytes()).unwrap()
}

#[test]
fn each_address_of_a_name_is_counted() {
    let scene = Scene::new();
    for _ in 0..2 {
        assert_eq!(scene.asks(0, "mail.example.org"), None);
    }
    assert_eq!((scene.tracked(), scene.counters()), (0, [0, 0, 0]));
    scene.is_answered(Ok(&["198.51.100.7", "2001:db8:bad::7", "198.51.100.7"]));
    let bans = scene.bans();
    let subjects: Vec<_> = bans.iter().map(|(subject, _)| subject.as_str()).collect();
    assert_eq!(subjects, ["198.51.100.7", "2001:db8:bad::/64"]);
    for (_, reason) in &bans {
        assert!(
            reason.ends_with("by host name mail.example.org"),
            "{reason}"
        );
    }
    assert_eq!(scene.counters(), [2, 0, 0]);
    let known = scene.asks(0, "mail.example.org").expect("it is known");
    assert_eq!(known.len(), 2);
    assert_eq!(scene.service.metrics.resolver.cached.get(), 1);
    assert_eq!(scene.service.metrics.resolver.load.get(), [0, 0, 1]);
}

#[test]
fn a_name_has_no_more_than_so_many_addresses() {
    let scene = Scene::new();
    let all: Vec<_> = (1..=20).map(|n| format!("198.51.100.{n}")).collect();
    assert_eq!(scene.asks(0, "many.example.org"), None);
    scene.is_answered(Ok(&all.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(scene.tracked(), MAX_ADDRESSES);
    let left_out = scene.service.metrics.resolver.left_out.get();
    assert_eq!(left_out, (20 - MAX_ADDRESSES) as u64);
}

#[test]
fn a_name_without_an_answer_is_counted_as_failed_and_is_an_alert() {
    let scene = Scene::new();
    scene.asks(0, "gone.example.org");
    scene.is_answered(Ok(&[]));
    for n in 0..FAILURES {
        assert_eq!(scene.alerts(), []);
        scene.asks(0, &format!("x{n}.example.org"));
        scene.is_answered(Err("try\u{1b}again"));
    }
    assert_eq!(scene.counters(), [0, 4, 0]);
    let [(about, message)] = &scene.alerts()[..] else {
        panic!("{:?}", scene.alerts());
    };
    assert_eq!(about, "resolver");
    assert!(
        message.contains("last for x2.example.org: try\\u{1b}again"),
        "{message}"
    );
    // That there is no such name is an answer.
    scene.asks(0, "y.example.org");
    scene.is_answered(Ok(&[]));
    assert_eq!(scene.alerts(), []);
    assert_eq!(scene.tracked(), 0);
    let lookups = &scene.service.metrics.resolver.lookups;
    let counts = ["addresses", "none", "failed"].map(|result| lookups.get([result]));
    assert_eq!(counts, [0, 2, 3]);
}

#[test]
fn who_waits_too_long_is_let_go() {
    let scene = Scene::new();
    for n in 0..FAILURES {
        scene.asks(0, &format!("slow{n}.example.org"));
    }
    let begun = Instant::now();
    scene.names.tend(&scene.daemon, begun);
    assert_eq!(scene.counters(), [0, 0, 0]);
    scene
        .names
        .tend(&scene.daemon, begun + table::ANSWER_WITHIN);
    assert_eq!(scene.counters(), [0, 3, 0]);
    assert_eq!(scene.service.metrics.resolver.load.get(), [0, 0, 0]);
    assert!(scene.alerts()[0].1.contains("no answer in time"));
    scene.names.tend(&scene.daemon, Instant::now() + ENDS_AFTER);
    assert_eq!(scene.alerts(), []);
}

#[test]
fn a_name_for_which_there_is_no_room_is_refused() {
    let scene = Scene::new();
    for n in 0..MAX_NAMES {
        scene.asks(0, &format!("h{n}.example.org"));
    }
    assert_eq!((scene.counters(), scene.alerts()), ([0, 0, 0], vec![]));
    scene.asks(0, "one-more.example.org");
    assert_eq!(scene.counters(), [0, 0, 1]);
    assert_eq!(scene.alerts()[0].0, "resolver:full");
    for _ in MAX_NAMES..=MAX_FINDINGS {
        scene.asks(0, "h0.example.org");
    }
    assert_eq!(scene.counters(), [0, 0, 2]);
    let full = &scene.service.metrics.resolver.full;
    assert_eq!((full.get(["names"]), full.get(["findings"])), (1, 1));
    // What a finding keeps of its line is bounded.
    let longest = lock(&scene.names.table)
        .all()
        .into_iter()
        .flat_map(|(_, waiting)| waiting)
        .map(|waiting| waiting.line.len())
        .max();
    assert_eq!(longest, Some(MAX_EVIDENCE));
    scene.names.tend(&scene.daemon, Instant::now() + ENDS_AFTER);
    assert_eq!(scene.alerts(), []);
}

#[test]
fn a_jail_that_looks_nothing_up_counts_no_name() {
    let scene = Scene::new();
    assert_eq!(scene.asks(1, "mail.example.org"), None);
    assert_eq!(lock(&scene.names.table).load(), [0, 0, 0]);
    assert_eq!(scene.jails[1].counters.refused.get(), 1);
}

/// A reload may have made other numbers, and other ledgers.
#[test]
fn a_finding_is_counted_by_the_jails_of_the_moment_of_its_answer() {
    let scene = Scene::new();
    scene.asks(0, "mail.example.org");
    let other = Arc::new(Ledger::new(scene.ledger.jails().to_vec()));
    scene.names.jails().replace(&other, &scene.jails);
    scene.is_answered(Ok(&["198.51.100.7"]));
    let tracked = other.stats(0).unwrap().tracked;
    assert_eq!((tracked, scene.tracked()), (1, 0));
    scene.asks(0, "gone.example.org");
    scene.names.jails().replace(&other, &scene.jails[1..]);
    scene.is_answered(Ok(&["198.51.100.8"]));
    assert_eq!(other.stats(0).unwrap().tracked, 1);
}

#[test]
fn the_end_says_what_has_no_answer() {
    let scene = Scene::new();
    scene.asks(0, "mail.example.org");
    scene.asks(0, "mail.example.org");
    scene.names.finish(&scene.daemon);
    assert_eq!(scene.counters(), [0, 2, 0]);
    assert_eq!(lock(&scene.names.table).load(), [0, 0, 0]);
}
