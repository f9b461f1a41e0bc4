//! Routers on a segment that loses packets: whatever is lost, somebody is active again
//! within the time of the RFC, and once nothing is lost only one is.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use proptest::prelude::*;
use weir_vrrp::{Action, Advertisement, Router, Settings, State};

/// Time goes on by this.
const STEP: Duration = Duration::from_millis(10);

struct Host {
    router: Router,
    address: IpAddr,
    has_addresses: bool,
    is_dead: bool,
}

struct Segment {
    hosts: Vec<Host>,
    now: Duration,
    /// Advertisements under way: from which host, when they arrive.
    under_way: Vec<(usize, Duration, Advertisement)>,
    /// The time for which no host has been active.
    missing: Duration,
}

impl Segment {
    fn new(settings: &[Settings]) -> Self {
        let hosts = settings.iter().zip(1..).map(|(settings, number)| {
            let mut router = Router::new(*settings);
            router.start(Duration::ZERO);
            Host {
                router,
                address: Ipv4Addr::new(192, 0, 2, number).into(),
                has_addresses: false,
                is_dead: false,
            }
        });
        Self {
            hosts: hosts.collect(),
            now: Duration::ZERO,
            under_way: Vec::new(),
            missing: Duration::ZERO,
        }
    }

    fn do_all(&mut self, number: usize, actions: Vec<Action>) {
        for action in actions {
            let host = &mut self.hosts[number];
            match action {
                Action::Take => host.has_addresses = true,
                Action::Release => host.has_addresses = false,
                Action::Announce => assert!(host.has_addresses),
                Action::Advertise(priority) => {
                    let sent = Advertisement {
                        id: 1,
                        priority,
                        interval: host.router.settings().interval,
                        addresses: vec![],
                    };
                    self.under_way.push((number, self.now + STEP, sent));
                }
            }
        }
    }

    /// Time goes on; `arrives` says of each copy of a packet whether it does.
    fn step(&mut self, mut arrives: impl FnMut() -> bool) {
        self.now += STEP;
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(_, at, _)| *at <= now);
        self.under_way = later;
        let due: Vec<_> = due;
        for (from, _, packet) in due {
            for number in 0..self.hosts.len() {
                if number == from || self.hosts[number].is_dead || !arrives() {
                    continue;
                }
                let source = self.hosts[from].address;
                let host = &mut self.hosts[number];
                let actions = host.router.hear(now, source, host.address, &packet);
                self.do_all(number, actions);
            }
        }
        for number in 0..self.hosts.len() {
            if !self.hosts[number].is_dead {
                let actions = self.hosts[number].router.tick(now);
                self.do_all(number, actions);
            }
        }
        for host in &self.hosts {
            let is_active = host.router.state() == State::Active;
            assert_eq!(host.has_addresses, is_active);
        }
        if !self.active().is_empty() {
            self.missing = now;
        }
    }

    fn active(&self) -> BTreeSet<usize> {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .filter(|(_, host)| !host.is_dead && host.router.state() == State::Active)
            .map(|(number, _)| number)
            .collect()
    }

    /// The longest that nobody may be active.
    fn bound(&self) -> Duration {
        let alive = self.hosts.iter().filter(|host| !host.is_dead);
        let slowest = alive.map(|host| host.router.active_down()).max();
        slowest.unwrap_or_default() + 3 * STEP
    }
}

fn settings() -> impl Strategy<Value = Vec<Settings>> {
    let one = (1..=254u8, 10..=200u16, any::<bool>()).prop_map(|(priority, interval, preempt)| {
        Settings {
            priority,
            interval,
            preempt,
        }
    });
    proptest::collection::vec(one, 2..=3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn somebody_is_active_in_time_and_soon_nobody_else(
        mut settings in settings(),
        loss in 0..=100u32,
        fate in proptest::collection::vec(0..100u32, 997),
        dies in any::<bool>(),
    ) {
        // An interval is configured alike on all (RFC 9568 5.2.7).
        let interval = settings[0].interval;
        settings.iter_mut().for_each(|one| one.interval = interval);
        let mut segment = Segment::new(&settings);
        let mut fates = fate.iter().cycle();
        for _ in 0..2000 {
            segment.step(|| *fates.next().unwrap() >= loss);
            prop_assert!(segment.now - segment.missing <= segment.bound());
        }
        let dead = segment.active().first().copied().filter(|_| dies);
        if let Some(dead) = dead {
            segment.hosts[dead].is_dead = true;
            segment.missing = segment.now;
        }
        // Nothing is lost any more.
        let calm = segment.bound() + Duration::from_millis(20 * u64::from(interval));
        let until = segment.now + calm;
        while segment.now < until {
            segment.step(|| true);
            prop_assert!(segment.now - segment.missing <= segment.bound());
        }
        for _ in 0..1000 {
            let before = segment.active();
            segment.step(|| true);
            prop_assert_eq!(segment.active().len(), 1);
            prop_assert_eq!(segment.active(), before);
        }
        // Where all preempt it is the first by priority.
        if settings.iter().all(|one| one.preempt) {
            let alive = (0..settings.len()).filter(|number| Some(*number) != dead);
            let highest = alive.map(|number| settings[number].priority).max();
            let active = *segment.active().first().unwrap();
            prop_assert_eq!(Some(settings[active].priority), highest);
        }
    }

    #[test]
    fn who_stops_is_followed_within_the_skew(settings in settings()) {
        let mut segment = Segment::new(&settings);
        for _ in 0..2000 {
            segment.step(|| true);
        }
        let active = *segment.active().first().unwrap();
        let actions = segment.hosts[active].router.stop();
        segment.do_all(active, actions);
        segment.hosts[active].is_dead = true;
        let alive = segment.hosts.iter().filter(|host| !host.is_dead);
        let skew = alive.map(|host| host.router.skew()).min().unwrap();
        let until = segment.now + skew + 3 * STEP;
        while segment.now < until {
            segment.step(|| true);
        }
        prop_assert!(!segment.active().is_empty());
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        v6 in any::<bool>(),
    ) {
        let [source, destination]: [IpAddr; 2] = match v6 {
            true => ["fe80::1", "ff02::12"].map(|text| text.parse().unwrap()),
            false => ["192.0.2.1", "224.0.0.18"].map(|text| text.parse().unwrap()),
        };
        let _ = Advertisement::read(&bytes, source, destination);
    }
}
