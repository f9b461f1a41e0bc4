//! When an address may be taken, and what is done about others that have it (RFC 5227;
//! the same for IPv6, where RFC 4862 asks for less). Time is what has passed since any
//! moment; packets are the caller's.

use std::time::Duration;

use super::{Mac, Says};

/// RFC 5227 1.1, in seconds: three questions, and how long is waited for an answer.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// How often it is announced, and between that.
const ANNOUNCEMENTS: u32 = 3;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// When is asked again for an address that somebody has; after some times less often
/// (MAX_CONFLICTS, RATE_LIMIT_INTERVAL).
const RETRY: Duration = Duration::from_secs(10);
const RETRIES: u32 = 10;
const SLOW_RETRY: Duration = Duration::from_secs(60);
/// Who has not said it for so long has it no more.
const QUIET: Duration = Duration::from_secs(60);
/// So long no announcement answers another one (DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The next step of a claim, for the caller to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask whether somebody has it.
    Probe,
    /// Take the address, for nobody has it. Announcements follow.
    Take,
    /// Announce the link-layer address of this host.
    Announce,
}

/// The state of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Probing: the network is asked whether somebody has the address.
    Probing,
    /// Refused: the host of this link-layer address has it.
    Refused(Mac),
    /// Held: this host has the address.
    Held,
    /// Contested: this host has the address, and the host of this link-layer address says
    /// that it has it.
    Contested(Mac),
}

/// An address that is to be taken, or is.
#[derive(Debug, Clone)]
pub struct Claim {
    standing: Standing,
    /// Questions or announcements that are still to be sent.
    left: u32,
    /// When the next thing is to be done.
    next: Option<Duration>,
    heard: Duration,
    defended: Option<Duration>,
    refusals: u32,
    conflicts: u64,
}

impl Claim {
    /// A claim that first asks whether somebody has the address.
    pub fn probing(now: Duration) -> Self {
        Self {
            standing: Standing::Probing,
            left: PROBES,
            next: Some(now),
            heard: now,
            defended: None,
            refusals: 0,
            conflicts: 0,
        }
    }

    /// A claim to an address that this host holds already; it is announced.
    pub fn held(now: Duration) -> Self {
        let mut claim = Self::probing(now);
        claim.hold(now);
        claim
    }

    fn hold(&mut self, now: Duration) {
        self.standing = Standing::Held;
        self.refusals = 0;
        self.announce(now);
    }

    /// Announces the address anew: others may have heard otherwise.
    pub fn announce(&mut self, now: Duration) {
        (self.left, self.next) = (ANNOUNCEMENTS, Some(now));
    }

    /// The state of the claim.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether this host holds the address, contested or not.
    pub fn is_held(&self) -> bool {
        matches!(self.standing, Standing::Held | Standing::Contested(_))
    }

    /// How often others said that they have it.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// The time at which the claim is to be looked at next; none: when something is heard.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// What is due, one thing at a time.
    pub fn due(&mut self, now: Duration) -> Option<Action> {
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        match self.standing {
            Standing::Probing if self.left > 0 => {
                self.left -= 1;
                let wait = if self.left > 0 {
                    PROBE_INTERVAL
                } else {
                    ANNOUNCE_WAIT
                };
                self.next = Some(now + wait);
                Some(Action::Probe)
            }
            Standing::Probing => {
                self.hold(now);
                Some(Action::Take)
            }
            Standing::Refused(_) => {
                self.standing = Standing::Probing;
                (self.left, self.next) = (PROBES, Some(now));
                self.due(now)
            }
            Standing::Held | Standing::Contested(_) if self.left > 0 => {
                self.left -= 1;
                self.next = match self.left {
                    0 => self.until_quiet(),
                    _ => Some(now + ANNOUNCE_INTERVAL),
                };
                Some(Action::Announce)
            }
            Standing::Held => {
                self.next = None;
                None
            }
            Standing::Contested(_) if now >= self.heard + QUIET => {
                self.standing = Standing::Held;
                self.next = None;
                None
            }
            Standing::Contested(_) => {
                self.next = self.until_quiet();
                None
            }
        }
    }

    fn until_quiet(&self) -> Option<Duration> {
        matches!(self.standing, Standing::Contested(_)).then_some(self.heard + QUIET)
    }

    /// Somebody else said this of it.
    pub fn hear(&mut self, now: Duration, from: Mac, says: Says) {
        match (self.standing, says) {
            (Standing::Probing | Standing::Refused(_), _) => {
                if self.standing == Standing::Probing {
                    self.refusals = self.refusals.saturating_add(1);
                }
                self.conflicts += 1;
                self.standing = Standing::Refused(from);
                let wait = if self.refusals > RETRIES {
                    SLOW_RETRY
                } else {
                    RETRY
                };
                self.next = Some(now + wait);
            }
            // The kernel answers that.
            (Standing::Held | Standing::Contested(_), Says::Probes) => (),
            (Standing::Held | Standing::Contested(_), Says::Has) => {
                self.conflicts += 1;
                let was_quiet = self.standing == Standing::Held;
                self.standing = Standing::Contested(from);
                self.heard = now;
                let may_defend = self
                    .defended
                    .is_none_or(|last| now >= last + DEFEND_INTERVAL);
                if was_quiet && may_defend {
                    // Once: two that answer each other would never end.
                    self.defended = Some(now);
                    self.left = self.left.max(1);
                    self.next = Some(now);
                } else if self.left == 0 {
                    self.next = self.until_quiet();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// All that is done until then, with the second of each.
    fn run(claim: &mut Claim, from: u64, to: u64) -> Vec<(u64, Action)> {
        let mut done = Vec::new();
        for second in from..=to {
            while let Some(action) = claim.due(at(second)) {
                done.push((second, action));
            }
        }
        done
    }

    #[test]
    fn an_address_that_nobody_has_is_taken_and_announced() {
        use Action::{Announce, Probe, Take};
        let mut claim = Claim::probing(at(0));
        let expected = [
            (0, Probe),
            (1, Probe),
            (2, Probe),
            (4, Take),
            (4, Announce),
            (6, Announce),
            (8, Announce),
        ];
        assert_eq!(run(&mut claim, 0, 100), expected);
        assert_eq!((claim.standing(), claim.next()), (Standing::Held, None));
        let mut claim = Claim::held(at(0));
        assert!(claim.is_held());
        assert_eq!(
            run(&mut claim, 0, 100),
            [(0, Announce), (2, Announce), (4, Announce)]
        );
    }

    #[test]
    fn one_that_somebody_has_is_refused_until_he_is_gone() {
        for says in [Says::Has, Says::Probes] {
            let mut claim = Claim::probing(at(0));
            run(&mut claim, 0, 1);
            claim.hear(at(1), OTHER, says);
            assert_eq!(claim.standing(), Standing::Refused(OTHER));
            // He answers each question.
            for second in [11, 21, 31] {
                assert_eq!(
                    run(&mut claim, second - 9, second),
                    [(second, Action::Probe)]
                );
                assert!(!claim.is_held());
                claim.hear(at(second), OTHER, Says::Has);
            }
            let done = run(&mut claim, 32, 60);
            assert_eq!(done[..4].last(), Some(&(45, Action::Take)));
            assert_eq!(claim.conflicts(), 4);
        }
        // After some times it is asked for less often.
        let mut claim = Claim::probing(at(0));
        for _ in 0..=RETRIES {
            let now = claim.next().unwrap();
            assert_eq!(claim.due(now), Some(Action::Probe));
            claim.hear(now, OTHER, Says::Has);
        }
        let now = claim.next().unwrap();
        assert_eq!(claim.due(now), Some(Action::Probe));
        claim.hear(now, OTHER, Says::Has);
        assert_eq!(claim.next(), Some(now + SLOW_RETRY));
    }

    #[test]
    fn a_conflict_is_answered_once_and_told_until_it_is_quiet() {
        let mut claim = Claim::held(at(0));
        run(&mut claim, 0, 10);
        claim.hear(at(20), OTHER, Says::Probes);
        assert_eq!(claim.standing(), Standing::Held);
        let mut answers = Vec::new();
        for second in 20..200 {
            claim.hear(at(second), OTHER, Says::Has);
            answers.extend(run(&mut claim, second, second));
            assert_eq!(claim.standing(), Standing::Contested(OTHER));
        }
        assert_eq!(answers, [(20, Action::Announce)]);
        assert_eq!(run(&mut claim, 200, 258), []);
        assert_eq!(claim.standing(), Standing::Contested(OTHER));
        assert_eq!(run(&mut claim, 259, 260), []);
        assert_eq!((claim.standing(), claim.next()), (Standing::Held, None));
        claim.hear(at(300), OTHER, Says::Has);
        assert_eq!(run(&mut claim, 300, 300), [(300, Action::Announce)]);
        assert_eq!(claim.conflicts(), 181);
    }
}
