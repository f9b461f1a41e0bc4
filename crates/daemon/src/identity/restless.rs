//! Processes that never stand still while they are looked at: each is looked at less and less
//! often, and those of one user in a tenth of the time at most, so that others are told meanwhile
//! who are waiting.

use std::{
    collections::BTreeMap,
    fmt, fs,
    time::{Duration, Instant},
};

use crate::host::cgroup_of;

/// So many are remembered; of more the one goes whose time is over first.
const MAX_RESTLESS: usize = 1024;
/// One is not looked at for so many times as long as it has taken, at first; twice as long each
/// time, up to this one. Programs that begin stand still soon, and are cheap.
const SHARE: u32 = 10;
const WAIT_LAST: Duration = Duration::from_secs(60);
/// What takes less keeps nobody waiting: as one without mappings, which ends or is the kernel's.
const CHEAP: Duration = Duration::from_millis(1);

/// So long processes of one user may be looked at in vain; from then on for one part in
/// [`SHARE`] of the time.
const ALLOWANCE: Duration = Duration::from_secs(1);
/// So many users are remembered; of more the one goes who has spent least.
const MAX_USERS: usize = 256;

/// An owner of processes: the user who has begun them, whatever they have become by setuid.
/// Root's are told apart by control group, for those in containers are not to hold up the host's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    User(u32),
    Root(String),
}

impl Whose {
    /// The owner of this process; `None`: it is gone.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mut lines = status.lines();
        let users = lines.find_map(|line| line.strip_prefix("Uid:"))?;
        match users.split_whitespace().next()?.parse().ok()? {
            0 => cgroup_of(pid).map(Self::Root),
            user => Some(Self::User(user)),
        }
    }
}

/// The words by which an owner is named in alerts.
impl fmt::Display for Whose {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(out, "of user {user}"),
            Self::Root(group) => write!(out, "of root in control group {group}"),
        }
    }
}

/// How long was looked at somebody's processes in vain, as of this time.
#[derive(Debug)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl Spent {
    /// What is left of it, for it is forgotten with time.
    fn by(&self, now: Instant) -> Duration {
        let forgotten = now.saturating_duration_since(self.at) / SHARE;
        self.time.saturating_sub(forgotten)
    }
}

#[derive(Debug)]
struct Known {
    /// The time at which the process was started: another one may have its number later.
    started: u64,
    /// Not only once: a program that has just begun may not stand still for a moment.
    is_again: bool,
    wait: Duration,
    until: Instant,
}

/// Those that did not stand still, by number.
#[derive(Debug, Default)]
pub(super) struct Restless {
    by_pid: BTreeMap<u32, Known>,
    by_user: BTreeMap<Whose, Spent>,
}

impl Restless {
    /// Is this one not to be looked at yet? `started`: when it was, which is asked only of one that
    /// is remembered; `whose`: whose it is, while somebody has spent all that he may.
    pub(super) fn is_put_off(
        &mut self,
        pid: u32,
        started: impl FnOnce() -> Option<u64>,
        whose: impl FnOnce() -> Option<Whose>,
        now: Instant,
    ) -> bool {
        if let Some(known) = self.by_pid.get(&pid) {
            if started() != Some(known.started) {
                self.by_pid.remove(&pid);
            } else if now < known.until {
                return true;
            }
        }
        let mut put_off = self.users_put_off(now).peekable();
        put_off.peek().is_some() && whose().is_some_and(|is| put_off.any(|one| *one == is))
    }

    /// Those whose processes are not looked at, for too many of them did not stand still.
    fn users_put_off(&self, now: Instant) -> impl Iterator<Item = &Whose> {
        let put_off = move |(_, spent): &(&Whose, &Spent)| spent.by(now) >= ALLOWANCE;
        let put_off = self.by_user.iter().filter(put_off);
        put_off.map(|(whose, _)| whose)
    }

    /// Who is not looked at now, in words; `None`: everybody is.
    pub(super) fn words(&mut self, now: Instant) -> Option<String> {
        let processes = self.put_off(now).map(|(pid, count)| {
            format!(
                "{count} processes change their mappings all the time, process {pid} for one: nobody can say who they are, and they are looked at less and less often, each once a minute at last"
            )
        });
        let mut users = self.users_put_off(now);
        let users = users.next().map(|first| {
            let others = match users.count() {
                0 => String::new(),
                more => format!(", and those of {more} others"),
            };
            format!(
                "processes {first}{others} that are not known yet wait: so many of them do not stand still that these have a tenth of the time"
            )
        });
        let words: Vec<_> = processes.into_iter().chain(users).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Processes of somebody have taken so long, and are not known yet.
    pub(super) fn spend(&mut self, whose: Whose, took: Duration, now: Instant) {
        let before = self.by_user.get(&whose);
        let before = before.map_or(Duration::ZERO, |spent| spent.by(now));
        let spent = Spent {
            time: before + took,
            at: now,
        };
        self.by_user.insert(whose, spent);
        if self.by_user.len() > MAX_USERS {
            let least = self.by_user.iter().min_by_key(|(_, spent)| spent.by(now));
            if let Some(whose) = least.map(|(whose, _)| whose.clone()) {
                self.by_user.remove(&whose);
            }
        }
    }

    /// It was looked at for so long, and did not stand still: each time it is waited twice as long.
    /// `whose`: nobody's, if it is gone.
    pub(super) fn note(
        &mut self,
        (pid, started): (u32, u64),
        whose: Option<Whose>,
        took: Duration,
        now: Instant,
    ) {
        if took < CHEAP {
            return;
        }
        if let Some(whose) = whose {
            self.spend(whose, took, now);
        }
        let before = self.by_pid.get(&pid);
        let before = before.filter(|known| known.started == started);
        let wait = before.map_or(Duration::ZERO, |known| known.wait * 2);
        let wait = wait.max(took * SHARE).min(WAIT_LAST);
        let known = Known {
            started,
            is_again: before.is_some(),
            wait,
            until: now + wait,
        };
        self.by_pid.insert(pid, known);
        if self.by_pid.len() > MAX_RESTLESS {
            let first = self.by_pid.iter().min_by_key(|(_, known)| known.until);
            if let Some(pid) = first.map(|(pid, _)| *pid) {
                self.by_pid.remove(&pid);
            }
        }
    }

    /// Forgets a process that has stood still.
    pub(super) fn forget(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }

    /// Those that are not to be looked at yet, and did not stand still more than once: one of them,
    /// and how many there are. Who has not asked for a long time after that is forgotten.
    fn put_off(&mut self, now: Instant) -> Option<(u32, usize)> {
        self.by_pid.retain(|_, known| now < known.until + WAIT_LAST);
        self.by_user.retain(|_, spent| !spent.by(now).is_zero());
        let put_off = |(_, known): &(&u32, &Known)| known.is_again && now < known.until;
        let mut put_off = self.by_pid.iter().filter(put_off);
        let (first, _) = put_off.next()?;
        Some((*first, put_off.count() + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_stands_still_is_looked_at_less_and_less_often() {
        let (mut all, mut now) = (Restless::default(), Instant::now());
        assert!(!all.is_put_off(7, || unreachable!(), || unreachable!(), now));
        let took = Duration::from_millis(100);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            all.note((7, 100), None, took, now);
            let wait = Duration::from_secs(seconds);
            assert!(all.is_put_off(
                7,
                || Some(100),
                || unreachable!(),
                now + wait - Duration::from_millis(1)
            ));
            // Nobody is told of one that did not stand still once, as one that begins.
            let told = (seconds > 1).then_some((7, 1));
            assert_eq!(all.put_off(now), told, "{seconds}");
            assert!(
                !all.is_put_off(7, || Some(100), || unreachable!(), now + wait),
                "{seconds}"
            );
            now += wait;
        }
        assert_eq!(all.put_off(now), None);
        // Who takes no time is not put off.
        all.note((6, 1), None, CHEAP - Duration::from_nanos(1), now);
        assert!(!all.is_put_off(6, || unreachable!(), || unreachable!(), now));
        // Others are served meanwhile, also one that has its number.
        all.note((7, 100), None, took, now);
        assert!(!all.is_put_off(8, || unreachable!(), || unreachable!(), now));
        assert!(!all.is_put_off(7, || Some(101), || unreachable!(), now));
        all.note((7, 101), None, took, now);
        all.forget(7);
        assert!(!all.is_put_off(7, || unreachable!(), || unreachable!(), now));
        for pid in 0..MAX_RESTLESS as u32 + 10 {
            all.note(
                (pid, 1),
                None,
                took,
                now + Duration::from_millis(u64::from(pid)),
            );
        }
        assert_eq!(all.by_pid.len(), MAX_RESTLESS);
        assert!(!all.is_put_off(9, || unreachable!(), || unreachable!(), now));
        assert!(all.is_put_off(10, || Some(1), || unreachable!(), now));
        assert_eq!(all.put_off(now + Duration::from_secs(600)), None);
        assert!(all.by_pid.is_empty());
    }

    /// One user with many such processes, each of them new.
    #[test]
    fn processes_of_one_user_that_never_stand_still_hold_up_those_of_no_other() {
        let (mut all, mut now) = (Restless::default(), Instant::now());
        let (took, pause) = (Duration::from_millis(200), Duration::from_millis(1));
        let user = |number| move || Some(Whose::User(number));
        let begun = now;
        let mut spent = Duration::ZERO;
        for pid in 1.. {
            if now - begun >= Duration::from_secs(100) {
                break;
            }
            now += pause;
            // Not remembered: so nobody asks when it was started.
            if !all.is_put_off(pid, || unreachable!(), user(1000), now) {
                now += took;
                spent += took;
                all.note((pid, 1), user(1000)(), took, now);
            }
            assert!(!all.is_put_off(u32::MAX, || unreachable!(), user(1001), now));
        }
        // What he has at first, and a tenth of the time.
        let most = ALLOWANCE + Duration::from_secs(10) + took;
        assert!(
            spent > Duration::from_secs(10) && spent <= most,
            "{spent:?}"
        );
        let words = all.words(now).unwrap();
        assert!(
            words.starts_with("processes of user 1000 that are"),
            "{words}"
        );
        // Those of root are told apart.
        let root = |group: &str| Some(Whose::Root(group.to_owned()));
        all.note((1, 1), root("/a"), ALLOWANCE, now);
        assert!(all.is_put_off(2, || unreachable!(), || root("/a"), now));
        assert!(!all.is_put_off(2, || unreachable!(), || root("/b"), now));
        assert!(!all.is_put_off(2, || unreachable!(), || None, now));
        // At the cap who has spent least goes.
        for number in 0..MAX_USERS as u32 + 10 {
            let whose = Some(Whose::User(2000 + number));
            let took = Duration::from_millis(2000 + u64::from(number));
            all.note((1, 1), whose, took, now);
        }
        assert_eq!(all.by_user.len(), MAX_USERS);
        assert!(!all.is_put_off(2, || unreachable!(), user(2009), now));
        assert!(all.is_put_off(2, || unreachable!(), user(2010), now));
        // All is forgotten some time.
        assert_eq!(all.words(now + Duration::from_secs(600)), None);
        assert!(all.by_user.is_empty());
    }

    #[test]
    fn whose_a_process_is_is_read() {
        let own = Whose::of(std::process::id());
        let user = rustix::process::getuid().as_raw();
        match own.unwrap() {
            Whose::User(is) => assert_eq!(is, user),
            Whose::Root(group) => {
                assert_eq!(user, 0);
                assert!(group.starts_with('/'), "{group}");
            }
        }
        assert_eq!(Whose::of(u32::MAX), None);
    }
}
