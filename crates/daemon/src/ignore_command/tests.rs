use weir_core::{Action, Until};

use super::*;
use crate::config::tests::check;

/// Subjects of bans that were put into force.
#[derive(Default)]
struct Puts(Mutex<Vec<String>>);

impl Waited for Puts {
    fn put(&self, bans: Vec<Ban>) {
        let subjects = bans.iter().map(|ban| ban.subject.to_string());
        lock(&self.0).extend(subjects);
    }

    fn lift(&self, _: BanTarget, _: &BanSource, _: Option<&PortSet>, _: &str) {}
}

fn ban(subject: &str) -> Ban {
    Ban {
        subject: subject.parse().unwrap(),
        scope: PortSet::all(),
        producer: BanSource::Jail("one".to_owned()),
        action: Action::Drop,
        reason: "1 failure".to_owned(),
        since: jiff::Timestamp::now(),
        until: Until::Never,
        evidence: Vec::new(),
    }
}

/// A name may get an address while the ban of that address waits for the command.
#[test]
fn a_ban_that_has_waited_is_held_against_names_once_more() {
    let (puts, alerts) = (Arc::<Puts>::default(), Arc::new(Alerts::default()));
    let mut checks = IgnoreChecks::new(
        Arc::default(),
        alerts.clone(),
        Arc::new(Current::new(Ledger::new(Vec::new()))),
        puts.clone(),
    );
    let names = IgnoredNames::without_resolver(alerts, Box::new(|_, _, _| {}));
    checks.names = Arc::new(names);
    let mut jails = check("[jail.one]\nfilter = \"sshd\"\n").unwrap().jails;
    jails[0].ignore_names = vec![HostName::new(b"home.example").unwrap()];
    checks.names.run(&jails);

    let now = Instant::now();
    let wait = |subject: &str| {
        let (ban, until) = (ban(subject), now + GRACE);
        let key = ("one".to_owned(), ban.subject);
        let mut table = lock(&checks.table);
        table.due.push_back((until, key.clone()));
        let asked = Known::Asked {
            waits: Some((Box::new(ban), until)),
            in_force: None,
        };
        table.known.insert(key.clone(), asked);
        key
    };
    let put = || std::mem::take(&mut *lock(&puts.0));
    wait("192.0.2.7");
    wait("192.0.2.8");
    checks.names.answer("home.example", &["192.0.2.7"]);
    checks.put_due(now + GRACE);
    assert_eq!(put(), ["192.0.2.8"]);
    for subject in ["192.0.2.7", "192.0.2.8"] {
        let key = wait(subject);
        checks.answered(key, false, GRACE);
    }
    assert_eq!(put(), ["192.0.2.8"]);
    wait("192.0.2.7");
    wait("192.0.2.8");
    checks.stop();
    assert_eq!(put(), ["192.0.2.8"]);
}
