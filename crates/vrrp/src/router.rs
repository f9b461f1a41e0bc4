//! One virtual router as one host takes part in it (RFC 9568 6). Time is what has passed
//! since any moment of the caller's.

use std::{net::IpAddr, time::Duration};

use crate::Advertisement;

/// Priority, interval and preemption, as an administrator sets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// 1-254; the highest is active.
    pub priority: u8,
    /// How often the active one tells, in hundredths of a second.
    pub interval: u16,
    /// Whether it takes over from an active one of a lower priority.
    pub preempt: bool,
}

/// The state of this host in a virtual router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The host takes no part in the virtual router.
    Initialize,
    /// Another host has the addresses, or nobody yet.
    Backup,
    /// This host has the addresses, and advertises.
    Active,
}

/// An action for the caller to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Take the addresses, and announce them.
    Take,
    /// Give them up.
    Release,
    /// Send an advertisement with this priority.
    Advertise(u8),
    /// Announce the addresses anew: another one has.
    Announce,
}

/// An announcement that answers another host's follows none within so long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(10);

/// One host's part of a virtual router.
#[derive(Debug, Clone)]
pub struct Router {
    settings: Settings,
    state: State,
    /// How often the active one tells, as it says itself.
    active_interval: u16,
    /// The next advertisement, or when the active one is missed.
    timer: Duration,
    announced: Option<Duration>,
}

/// A duration of so many hundredths of a second.
fn centiseconds(count: u64) -> Duration {
    Duration::from_millis(count * 10)
}

impl Router {
    /// One that takes no part yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Initialize,
            active_interval: settings.interval,
            timer: Duration::ZERO,
            announced: None,
        }
    }

    /// The state of this host.
    pub fn state(&self) -> State {
        self.state
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Goes by these from the next advertisement on.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// The time at which [`Router::tick`] is due.
    pub fn next(&self) -> Option<Duration> {
        (self.state != State::Initialize).then_some(self.timer)
    }

    /// How much later than others it misses the active one: the higher its priority, the
    /// sooner.
    pub fn skew(&self) -> Duration {
        let part = 256 - u64::from(self.settings.priority);
        let interval = centiseconds(u64::from(self.active_interval));
        interval * part as u32 / 256
    }

    /// After so long without an advertisement the active one is gone.
    pub fn active_down(&self) -> Duration {
        centiseconds(3 * u64::from(self.active_interval)) + self.skew()
    }

    fn interval(&self) -> Duration {
        centiseconds(u64::from(self.settings.interval))
    }

    /// Takes part from now on.
    pub fn start(&mut self, now: Duration) {
        if self.state == State::Initialize {
            self.active_interval = self.settings.interval;
            self.become_backup(now);
        }
    }

    /// Takes no part any more.
    pub fn stop(&mut self) -> Vec<Action> {
        let before = std::mem::replace(&mut self.state, State::Initialize);
        match before {
            State::Active => vec![Action::Advertise(0), Action::Release],
            State::Initialize | State::Backup => vec![],
        }
    }

    fn become_backup(&mut self, now: Duration) {
        self.state = State::Backup;
        self.timer = now + self.active_down();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.next().is_none_or(|timer| now < timer) {
            return vec![];
        }
        self.timer = now + self.interval();
        match self.state {
            State::Initialize => vec![],
            State::Active => vec![Action::Advertise(self.settings.priority)],
            State::Backup => {
                self.state = State::Active;
                self.announced = Some(now);
                vec![Action::Advertise(self.settings.priority), Action::Take]
            }
        }
    }

    /// An advertisement of this virtual router has come from another host; `own` is the
    /// address that this one sends from.
    pub fn hear(
        &mut self,
        now: Duration,
        from: IpAddr,
        own: IpAddr,
        heard: &Advertisement,
    ) -> Vec<Action> {
        let priority = self.settings.priority;
        match self.state {
            State::Initialize => vec![],
            State::Backup if heard.priority == 0 => {
                self.timer = now + self.skew();
                vec![]
            }
            State::Backup if !self.settings.preempt || heard.priority >= priority => {
                self.active_interval = heard.interval;
                self.timer = now + self.active_down();
                vec![]
            }
            State::Backup => vec![],
            State::Active if heard.priority == 0 => {
                self.timer = now + self.interval();
                vec![Action::Advertise(priority)]
            }
            State::Active if (heard.priority, from) > (priority, own) => {
                self.active_interval = heard.interval;
                self.become_backup(now);
                vec![Action::Release]
            }
            State::Active => {
                // At once, so that the other one gives up.
                self.timer = now + self.interval();
                let mut actions = vec![Action::Advertise(priority)];
                let may_announce = self
                    .announced
                    .is_none_or(|last| now >= last + ANNOUNCE_AGAIN);
                if may_announce {
                    self.announced = Some(now);
                    actions.push(Action::Announce);
                }
                actions
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 4] = [192, 0, 2, 5];

    fn router(priority: u8, preempt: bool) -> Router {
        let mut router = Router::new(Settings {
            priority,
            interval: 100,
            preempt,
        });
        router.start(Duration::ZERO);
        router
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn advertisement(priority: u8, interval: u16) -> Advertisement {
        Advertisement {
            id: 1,
            priority,
            interval,
            addresses: vec![],
        }
    }

    fn hear(router: &mut Router, now: Duration, from: u8, priority: u8) -> Vec<Action> {
        let from = [192, 0, 2, from].into();
        router.hear(now, from, OWN.into(), &advertisement(priority, 100))
    }

    use Action::{Advertise, Announce, Release, Take};

    #[test]
    fn who_hears_nobody_takes_over_after_three_intervals_and_its_skew() {
        let mut alone = router(100, true);
        // (256 - 100) / 256 of a second
        assert_eq!(
            (alone.skew(), alone.active_down()),
            (ms(1000) * 156 / 256, ms(3000) + alone.skew())
        );
        assert_eq!(alone.tick(ms(3609)), []);
        assert_eq!(alone.tick(ms(3610)), [Advertise(100), Take]);
        assert_eq!(alone.state(), State::Active);
        assert_eq!(alone.tick(ms(4609)), []);
        assert_eq!(alone.tick(ms(4610)), [Advertise(100)]);
        assert_eq!(alone.stop(), [Advertise(0), Release]);
        assert_eq!(
            (alone.stop(), alone.tick(ms(9000)), alone.next()),
            (vec![], vec![], None)
        );
        // The higher the priority, the sooner.
        assert!(router(254, true).active_down() < router(1, true).active_down());
    }

    #[test]
    fn a_backup_waits_for_whom_it_does_not_outrank() {
        for (priority, preempt, waits) in [
            (101, true, true),
            (100, true, true),
            (99, true, false),
            (99, false, true),
        ] {
            let mut backup = router(100, preempt);
            assert_eq!(hear(&mut backup, ms(3000), 9, priority), []);
            let done = backup.tick(ms(3700));
            assert_eq!(done.is_empty(), waits, "{priority} {preempt}");
        }
        // It gives up by itself: only the skew is waited for.
        let mut backup = router(100, true);
        hear(&mut backup, ms(1000), 9, 0);
        assert_eq!(backup.tick(ms(1609)), []);
        assert_eq!(backup.tick(ms(1610)), [Advertise(100), Take]);
        // The interval is that of the active one.
        let mut backup = router(100, true);
        let from = [192, 0, 2, 9].into();
        backup.hear(ms(0), from, OWN.into(), &advertisement(200, 10));
        assert_eq!(backup.active_down(), ms(300) + ms(100) * 156 / 256);
        assert_eq!(backup.tick(ms(361)).len(), 2);
    }

    #[test]
    fn of_two_that_are_active_one_gives_up() {
        let active = || {
            let mut active = router(100, true);
            active.tick(ms(4000));
            active
        };
        for (from, priority, goes_on) in [
            (9, 99, true),
            (9, 100, false),
            (4, 100, true),
            (4, 101, false),
        ] {
            let mut active = active();
            let done = hear(&mut active, ms(4100), from, priority);
            match goes_on {
                true => assert_eq!(done, [Advertise(100)]),
                false => assert_eq!(done, [Release]),
            }
            assert_eq!(active.state() == State::Active, goes_on);
        }
        let mut active = active();
        assert_eq!(hear(&mut active, ms(4100), 9, 0), [Advertise(100)]);
        // Announcements answer the other's, and not each.
        let answers: Vec<_> = (5..40)
            .flat_map(|second| hear(&mut active, ms(second * 1000), 9, 50))
            .filter(|action| *action == Announce)
            .collect();
        assert_eq!(answers.len(), 3);
    }
}
