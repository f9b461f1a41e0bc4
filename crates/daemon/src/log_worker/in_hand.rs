//! What one thread has read and not handed on yet. It is shared with whoever
//! ends the threads: one that waits for a file system cannot hand it on itself.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use weir_core::{Ban, BanTarget, detect::Finding, policy::Ledger};
use weir_events::Events;
use weir_sources::{FilePositions, Position};

use super::{Handles, findings::Findings, running::Running};
use crate::{
    access::exemptions::Exempt, bans::Bans, ignore_command::IgnoreChecks, positions::Positions,
    store::Store, threads::Pulse,
};

pub(super) struct InHand {
    pub pulse: Pulse,
    pub store: Arc<Store>,
    exempt: Arc<Exempt>,
    events: Arc<Events>,
    in_force: Arc<Bans>,
    ignore_checks: Arc<IgnoreChecks>,
    /// The name of its group in the database.
    pub key: String,
    /// The jails that the thread reads for.
    pub jails: Arc<[Running]>,
    /// The numbers of the jails whose counts it saves with its position; `None`: another
    /// thread of its group saves both.
    pub saves: Option<Vec<usize>>,
    pub ledger: Arc<Ledger>,
    pub positions: Positions,
    /// Found, and not judged yet.
    findings: Mutex<Findings>,
    /// Decided, and not in force yet.
    bans: Mutex<Vec<Ban>>,
    /// How far it has read, where it may have to wait for ever.
    reached: Mutex<Option<FilePositions>>,
    /// The positions that the thread had reached when it was given up.
    left: Mutex<Option<Vec<Position>>>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("no holder of this lock panics")
}

impl InHand {
    pub fn new(
        daemon: &Handles,
        pulse: Pulse,
        key: String,
        jails: Arc<[Running]>,
        saves: Option<Vec<usize>>,
        ledger: Arc<Ledger>,
        positions: Positions,
    ) -> Self {
        Self {
            pulse,
            store: daemon.store.clone(),
            exempt: daemon.exempt.clone(),
            events: daemon.events.clone(),
            in_force: daemon.bans.clone(),
            ignore_checks: daemon.ignore_checks.clone(),
            key,
            jails,
            saves,
            ledger,
            positions,
            findings: Mutex::default(),
            bans: Mutex::default(),
            reached: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Notes that the thread reads another source from now on.
    pub fn reads(&self, reached: Option<FilePositions>) {
        *lock(&self.reached) = reached;
    }

    /// What the filter of a jail, by its place, has captured of what it has found.
    pub fn captured(&self, jail: usize, finding: &Finding, values: &[(Arc<str>, String)]) {
        let jail = &self.jails[jail];
        self.in_force
            .captured(&jail.config, finding, values, &jail.captured);
    }

    /// A jail, by its place, has found something in a line.
    pub fn found(&self, jail: usize, finding: Finding, line: &[u8], now: Timestamp) {
        if self.jails[jail].config.ignore_command.is_some()
            && let Some(subject) = finding
                .offender
                .prefix()
                .and_then(|who| BanTarget::new(who).ok())
        {
            self.ignore_checks
                .found(&self.jails[jail].config.name, subject);
        }
        let are_many = lock(&self.findings).add(jail, finding, line, now);
        if are_many {
            self.judge();
        }
    }

    /// Judges what was found.
    pub fn judge(&self) {
        let mut findings = lock(&self.findings);
        let bans = findings.judge(&self.jails, &self.exempt, &self.events, &self.ledger);
        drop(findings);
        lock(&self.bans).extend(bans);
    }

    /// Adds what was decided elsewhere.
    pub fn decide(&self, bans: Vec<Ban>) {
        lock(&self.bans).extend(bans);
    }

    /// Puts what was decided into force.
    pub fn enforce(&self) {
        let bans = mem::take(&mut *lock(&self.bans));
        self.in_force.enforce(bans);
    }

    /// Remembers how far it has read and what it has counted on the way, if that
    /// is more than before: both or neither.
    pub fn save(&self, last: bool, position: impl FnOnce() -> Option<String>) {
        // The other threads of a ring, whose places are in its segments.
        let Some(saves) = &self.saves else {
            return;
        };
        self.store.progress(&self.key, last, |again| {
            let further =
                position().filter(|position| self.positions.set(&self.key, position) || again);
            (further, self.ledger.take_changes(saves, again))
        });
    }

    /// Gives the thread up if it waits for a file system. Where it stands then is
    /// kept: when it comes back it goes on, and nobody counts what it delivers.
    pub fn give_up(&self) -> bool {
        self.pulse.give_up(|| {
            let reached = lock(&self.reached).take();
            *lock(&self.left) = reached.map(|reached| reached.positions());
        })
    }

    /// The end of a thread that was given up: as it would have done it.
    pub fn finish(&self) {
        self.judge();
        self.enforce();
        let left = lock(&self.left).take();
        self.save(true, || serde_json::to_string(&left?).ok());
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, path::Path};

    use weir_core::detect::Clock;
    use weir_enforce::DryRun;
    use weir_events::alerts::Alerts;

    use super::*;
    use crate::{
        config::Config, host::Host, interfaces::ProtectedInterfaces, log_worker::group::running,
        run::handles, service::Service,
    };

    /// What a thread has in hand that reads for sshd, which bans with the second.
    fn in_hand(dir: &Path) -> (InHand, Service) {
        let text = format!(
            "backend = \"dry-run\"\ninterfaces = []\nstate_dir = {dir:?}\n\
             [jail.sshd]\npaths = [\"{}/auth.log\"]\nmax_retry = 2\n",
            dir.display()
        );
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let alerts = Arc::new(Alerts::default());
        let (store, _) = Store::open(dir, config.keep_history, alerts.clone());
        let backend = Arc::new(DryRun::new(1000, None));
        let ledger = Arc::new(Ledger::new(crate::log_worker::jails(&config)));
        let service = Service::new(
            config.clone(),
            backend,
            store,
            ProtectedInterfaces::default(),
            alerts,
            String::new(),
        );
        let groups = running(&service.metrics.jails, &config);
        let (group, jails) = groups.unwrap().pop_first().unwrap();
        let in_hand = InHand::new(
            &handles::of_logs(&service),
            service.pulses.of("weir-worker-0"),
            group.key(),
            jails.into(),
            Some(vec![0]),
            ledger,
            Positions::new(Default::default()),
        );
        (in_hand, service)
    }

    fn find(in_hand: &InHand, last_octet: u8) {
        let now = Timestamp::now();
        let finding = Finding {
            offender: IpAddr::from([192, 0, 2, last_octet]).into(),
            time: now,
            clock: Clock::Stamp,
            user: None,
            attempts: 1,
            pattern: 0,
        };
        in_hand.found(0, finding, b"the line", now);
    }

    fn banned(service: &Service) -> Vec<String> {
        let bans = service.bans_in_force(None).unwrap();
        let bans = service.explain(bans);
        bans.iter().map(|ban| ban.subject.to_string()).collect()
    }

    /// The position that is saved then lies behind their lines.
    #[test]
    fn what_a_thread_that_is_given_up_has_found_is_judged() {
        let dir = tempfile::tempdir().unwrap();
        let (in_hand, service) = in_hand(dir.path());
        for who in [7, 8, 7] {
            find(&in_hand, who);
        }
        assert_eq!(in_hand.ledger.stats(0).unwrap().failures, 0);
        assert_eq!(banned(&service), [""; 0]);
        in_hand.finish();
        assert_eq!(in_hand.ledger.stats(0).unwrap().failures, 3);
        assert_eq!(banned(&service), ["192.0.2.7"]);
        // Once.
        in_hand.finish();
        assert_eq!(in_hand.ledger.stats(0).unwrap().failures, 3);
    }

    /// A batch can be as long as the log: what waits is bounded.
    #[test]
    fn many_findings_are_judged_before_the_batch_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (in_hand, _service) = in_hand(dir.path());
        for n in 1..=10_000 {
            find(&in_hand, (n % 250) as u8);
            let judged = in_hand.ledger.stats(0).unwrap();
            assert!(n - judged.failures - judged.ignored < 512, "{judged:?}");
        }
        in_hand.judge();
        let judged = in_hand.ledger.stats(0).unwrap();
        assert_eq!(judged.failures + judged.ignored, 10_000);
    }
}
