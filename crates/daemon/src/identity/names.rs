//! The addresses of names in rules (`name:example.org`), looked up beside the packets' way
//! by threads of their own, and refreshed while the rules are in force.
//!
//! An answer is somebody else's word: one that leads to this host, to its network or to
//! private addresses is refused unless `private_names` expects it (DNS rebinding). Servers
//! that answer with some of many addresses each time are met by keeping each address for a
//! while after it was seen last.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use weir_core::detect::HostName;
use weir_identity::{NamePattern, policy::MAX_ADDRESSES};

use crate::{resolver, threads};

/// A name is looked up again this often …
const REFRESH: Duration = Duration::from_secs(60);
/// … and this often as long as it has no answer.
const RETRY: Duration = Duration::from_secs(10);
/// An address holds for so long after it was in an answer last.
const KEEP: Duration = Duration::from_secs(3600);
/// What is known of a name is kept for so long after rules have asked for it last: a reload
/// that is refused brings the rules before back.
const KEEP_LEFT: Duration = Duration::from_secs(60);
/// Names that are kept so; for another one the oldest goes.
const MAX_LEFT: usize = 256;
/// How often it is looked whether there is an answer.
const LOOK: Duration = Duration::from_millis(20);
/// So many names are looked up at once: one that nobody answers keeps the others waiting
/// less.
const LOOKUPS: usize = 2;

/// How a name is looked up: its addresses, or why nobody knows.
type Lookup = dyn Fn(&HostName) -> Result<Vec<IpAddr>, String> + Send + Sync;

/// Addresses of one name, and when they were asked for.
#[derive(Debug, Default)]
struct Known {
    /// When each was in an answer last.
    addresses: BTreeMap<IpAddr, Instant>,
    /// There was an answer, be it that there are none.
    is_answered: bool,
    /// Why the last lookup has failed.
    failed: Option<String>,
    /// What was refused of the last answer, and why.
    refused: Option<(IpAddr, &'static str)>,
    /// Addresses of the last answer that found no room.
    left_out: usize,
    due: Option<Instant>,
    is_asked: bool,
    /// When rules stopped to ask for it.
    left: Option<Instant>,
}

impl Known {
    fn is_wanted(&self) -> bool {
        self.left.is_none()
    }
}

#[derive(Default)]
struct Table {
    names: BTreeMap<String, Known>,
    private: Vec<NamePattern>,
    /// Counts changes of addresses.
    changes: u64,
    is_started: bool,
    is_over: bool,
}

/// All names of the rules in force.
pub(super) struct Names {
    table: Mutex<Table>,
    work: Condvar,
    lookup: Box<Lookup>,
    own: Box<dyn Fn() -> Vec<IpAddr> + Send + Sync>,
}

/// The addresses of names at one moment.
pub(super) type Addresses = HashMap<String, Vec<IpAddr>>;

/// The addresses that this host has on any of its interfaces.
fn own_addresses() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
    });
    addresses.collect()
}

impl Table {
    fn forget_left(&mut self, now: Instant) {
        let is_kept = |left: Instant| now.duration_since(left) < KEEP_LEFT;
        self.names.retain(|_, known| known.left.is_none_or(is_kept));
        let left = |(name, known): (&String, &Known)| Some((known.left?, name.clone()));
        let mut left: Vec<_> = self.names.iter().filter_map(left).collect();
        left.sort();
        for (_, name) in left.iter().rev().skip(MAX_LEFT) {
            self.names.remove(name);
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::with(Box::new(resolver::addresses), Box::new(own_addresses))
    }
}

/// Why an address is no answer to a public name.
fn refusal(addr: IpAddr, own: &[IpAddr]) -> Option<&'static str> {
    let is_private = match addr {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // 100.64.0.0/10 is a provider's own network.
            v4.is_private() || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    let is_link_local = match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_nobody = match addr {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.octets()[0] >= 240,
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    [
        (addr.is_loopback(), "it is this host's loopback"),
        (own.contains(&addr), "it is an address of this host"),
        (is_private, "it is private"),
        (is_link_local, "it is of the link"),
        (addr.is_multicast() || is_nobody, "it is nobody's"),
    ]
    .into_iter()
    .find_map(|(is_so, why)| is_so.then_some(why))
}

impl Names {
    fn with(lookup: Box<Lookup>, own: Box<dyn Fn() -> Vec<IpAddr> + Send + Sync>) -> Self {
        Self {
            table: Mutex::default(),
            work: Condvar::new(),
            lookup,
            own,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the names of the rules in force: others are forgotten after a while, and new
    /// ones looked up at once. Makes the threads when there is the first one.
    pub fn follow<'a>(
        self: &Arc<Self>,
        names: impl Iterator<Item = &'a str>,
        private: &[NamePattern],
    ) {
        let names: BTreeSet<_> = names.collect();
        let mut table = self.table();
        table.private = private.to_vec();
        let now = Instant::now();
        for (name, known) in &mut table.names {
            known.left = match names.contains(name.as_str()) {
                true => None,
                false => known.left.or(Some(now)),
            };
        }
        table.forget_left(now);
        for name in &names {
            table.names.entry((*name).to_owned()).or_default();
        }
        // What is refused may be another by now.
        table.names.values_mut().for_each(|known| known.due = None);
        let starts = !table.names.is_empty() && !table.is_started;
        table.is_started |= starts;
        drop(table);
        self.work.notify_all();
        if starts {
            for number in 0..LOOKUPS {
                let weak = Arc::downgrade(self);
                let work = move || look_up(&weak);
                if let Err(error) = threads::spawn(format!("weir-app-names-{number}"), work) {
                    tracing::error!("names in [app.rules] are not looked up: {error}");
                }
            }
        }
    }

    /// Waits until each name was answered, or has failed, but no longer than this.
    pub fn wait(&self, at_most: Duration) {
        let waits = || {
            let table = self.table();
            let mut wanted = table.names.values().filter(|known| known.is_wanted());
            wanted.any(|known| !known.is_answered && known.failed.is_none())
        };
        let until = Instant::now() + at_most;
        while waits() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    /// Is there a name that was never answered?
    pub fn has_unanswered(&self) -> bool {
        let table = self.table();
        let mut wanted = table.names.values().filter(|known| known.is_wanted());
        wanted.any(|known| !known.is_answered)
    }

    /// The addresses of all names that were answered, and the number of this state.
    pub fn addresses(&self) -> (Addresses, u64) {
        let table = self.table();
        let known = table
            .names
            .iter()
            .filter(|(_, known)| known.is_answered && known.is_wanted());
        let addresses = known.map(|(name, known)| {
            let addresses = known.addresses.keys().copied().collect();
            (name.clone(), addresses)
        });
        (addresses.collect(), table.changes)
    }

    /// Counts up with each change of an address.
    pub fn changes(&self) -> u64 {
        self.table().changes
    }

    /// What an administrator has to know of names; empty: nothing.
    pub fn troubles(&self) -> Vec<String> {
        let table = self.table();
        let wanted = table.names.iter().filter(|(_, known)| known.is_wanted());
        let troubles = wanted.flat_map(|(name, known)| {
            let failed = known.failed.as_ref().map(|why| match known.is_answered {
                true => format!("name:{name} is not answered any more ({why}): the addresses before hold for an hour"),
                false => format!("name:{name} has no answer: {why}"),
            });
            let none = (known.is_answered && known.failed.is_none() && known.addresses.is_empty() && known.refused.is_none())
                .then(|| format!("name:{name} has no address"));
            let refused = known.refused.map(|(addr, why)| {
                format!("name:{name} leads to {addr}, which is refused because {why}; if that is right, add it to private_names in [app]")
            });
            let left_out = (known.left_out > 0).then(|| {
                format!("name:{name} has more than {MAX_ADDRESSES} addresses: {} are left out", known.left_out)
            });
            [failed, none, refused, left_out].into_iter().flatten()
        });
        troubles.collect()
    }

    /// The next name whose time has come, or how long that takes.
    fn next(table: &mut Table, now: Instant) -> Result<String, Duration> {
        let waiting = table
            .names
            .iter_mut()
            .filter(|(_, known)| !known.is_asked && known.is_wanted());
        let Some((name, known)) = waiting.min_by_key(|(_, known)| known.due) else {
            return Err(REFRESH);
        };
        match known.due.filter(|due| *due > now) {
            Some(due) => Err(due - now),
            None => {
                known.is_asked = true;
                Ok(name.clone())
            }
        }
    }

    fn answered(&self, name: &str, answer: Result<Vec<IpAddr>, String>, now: Instant) {
        let own = (self.own)();
        let mut table = self.table();
        let is_private = table.private.iter().any(|pattern| pattern.matches(name));
        // The rules do not ask for it any more.
        let Some(known) = table.names.get_mut(name) else {
            return;
        };
        known.is_asked = false;
        if !known.is_wanted() {
            return;
        }
        let before: Vec<_> = known.addresses.keys().copied().collect();
        let was_answered = known.is_answered;
        known
            .addresses
            .retain(|_, seen| now.duration_since(*seen) < KEEP);
        match answer {
            Err(why) => {
                known.failed = Some(why);
                known.due = Some(now + RETRY);
            }
            Ok(found) => {
                (known.failed, known.refused, known.left_out) = (None, None, 0);
                known.is_answered = true;
                known.due = Some(now + if found.is_empty() { RETRY } else { REFRESH });
                for addr in found.iter().map(IpAddr::to_canonical) {
                    let why = refusal(addr, &own).filter(|_| !is_private);
                    if let Some(why) = why {
                        known.refused = Some((addr, why));
                        known.addresses.remove(&addr);
                    } else if known.addresses.contains_key(&addr)
                        || known.addresses.len() < MAX_ADDRESSES
                    {
                        known.addresses.insert(addr, now);
                    } else {
                        known.left_out += 1;
                    }
                }
            }
        }
        let is_same = known.is_answered == was_answered && known.addresses.keys().eq(&before);
        table.changes += u64::from(!is_same);
    }

    /// The daemon ends: threads that wait for an answer are not waited for.
    pub fn finish(&self) {
        self.table().is_over = true;
        self.work.notify_all();
    }
}

/// One thread's work.
fn look_up(names: &Weak<Names>) {
    while let Some(names) = names.upgrade() {
        let mut table = names.table();
        if table.is_over {
            return;
        }
        let name = match Names::next(&mut table, Instant::now()) {
            Ok(name) => name,
            Err(wait) => {
                let wait = wait.min(Duration::from_secs(1));
                let waited = names.work.wait_timeout(table, wait);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
        };
        drop(table);
        let answer = match HostName::new(name.as_bytes()) {
            Ok(host) => (names.lookup)(&host),
            Err(_) => Err("it is no host name".to_owned()),
        };
        names.answered(&name, answer, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(private: &[&str]) -> Arc<Names> {
        let names = Arc::new(Names::with(
            Box::new(|_| Err("nobody is asked".to_owned())),
            Box::new(|| {
                vec![
                    "198.51.100.1".parse().unwrap(),
                    "2001:db8::1".parse().unwrap(),
                ]
            }),
        ));
        // No thread: the answers are given here.
        names.table().is_started = true;
        let private: Vec<_> = private
            .iter()
            .map(|text| NamePattern::new(text).unwrap())
            .collect();
        names.follow(["example.org", "nas.home.arpa"].into_iter(), &private);
        names
    }

    fn answer(texts: &[&str]) -> Result<Vec<IpAddr>, String> {
        Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn of(names: &Names, name: &str) -> Option<Vec<String>> {
        let (all, _) = names.addresses();
        let addresses = all.get(name)?;
        Some(addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn answers_that_lead_inside_are_refused() {
        let names = names(&["*.home.arpa"]);
        let now = Instant::now();
        assert_eq!(of(&names, "example.org"), None);
        for inside in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.1.1",
            "fd00::1",
            "fe80::1",
            "169.254.169.254",
            "198.51.100.1",
            "2001:db8::1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            names.answered("example.org", answer(&[inside, "192.0.2.7"]), now);
            assert_eq!(
                of(&names, "example.org").unwrap(),
                ["192.0.2.7"],
                "{inside}"
            );
            let troubles = names.troubles();
            assert!(
                troubles[0].contains("refused because"),
                "{inside}: {troubles:?}"
            );
        }
        names.answered("nas.home.arpa", answer(&["192.168.1.9", "::1"]), now);
        assert_eq!(of(&names, "nas.home.arpa").unwrap(), ["192.168.1.9", "::1"]);
        names.answered("example.org", answer(&["192.0.2.7"]), now);
        assert_eq!(names.troubles(), [""; 0]);
    }

    #[test]
    fn an_address_holds_for_a_while_after_it_was_seen() {
        let names = names(&[]);
        let begun = Instant::now();
        names.answered("example.org", answer(&["192.0.2.1"]), begun);
        let changes = names.changes();
        names.answered(
            "example.org",
            answer(&["192.0.2.2", "2001:db8:1::2"]),
            begun + REFRESH,
        );
        assert_eq!(of(&names, "example.org").unwrap().len(), 3);
        assert_eq!(names.changes(), changes + 1);
        names.answered("example.org", answer(&["192.0.2.2"]), begun + 2 * REFRESH);
        assert_eq!(names.changes(), changes + 1);
        names.answered("example.org", answer(&["192.0.2.2"]), begun + KEEP);
        assert_eq!(
            of(&names, "example.org").unwrap(),
            ["192.0.2.2", "2001:db8:1::2"]
        );
        // One that fails keeps them, and is told.
        names.answered("example.org", Err("timed out".to_owned()), begun + KEEP);
        assert_eq!(of(&names, "example.org").unwrap().len(), 2);
        assert!(names.troubles()[0].contains("not answered any more (timed out)"));
        names.answered("example.org", Err("timed out".to_owned()), begun + 3 * KEEP);
        assert_eq!(of(&names, "example.org").unwrap().len(), 0);
    }

    #[test]
    fn a_name_with_very_many_addresses_has_a_bound() {
        let names = names(&[]);
        let many: Vec<IpAddr> = (0..MAX_ADDRESSES as u32 + 5)
            .map(|n| (0xc000_0200 + n).into())
            .map(|v4: std::net::Ipv4Addr| v4.into())
            .collect();
        names.answered("example.org", Ok(many), Instant::now());
        assert_eq!(of(&names, "example.org").unwrap().len(), MAX_ADDRESSES);
        assert!(names.troubles()[0].contains("5 are left out"));
        // The rules ask for it no more.
        names.follow(["nas.home.arpa"].into_iter(), &[]);
        assert_eq!(of(&names, "example.org"), None);
        names.answered("example.org", answer(&["192.0.2.1"]), Instant::now());
        assert_eq!(of(&names, "example.org"), None);
    }

    /// A reload that is refused brings back what the rules before had.
    #[test]
    fn a_name_that_comes_back_soon_has_its_addresses() {
        let names = names(&[]);
        names.answered("example.org", answer(&["192.0.2.1"]), Instant::now());
        assert!(names.has_unanswered());
        names.follow(["nas.home.arpa"].into_iter(), &[]);
        assert_eq!(of(&names, "example.org"), None);
        names.follow(["example.org"].into_iter(), &[]);
        assert_eq!(of(&names, "example.org").unwrap(), ["192.0.2.1"]);
        assert!(!names.has_unanswered());
        names.wait(Duration::from_secs(60));
        // Not for ever, and not very many.
        names.follow([].into_iter(), &[]);
        let later = Instant::now() + KEEP_LEFT;
        names.table().forget_left(later);
        names.follow(["example.org"].into_iter(), &[]);
        assert_eq!(of(&names, "example.org"), None);
        for number in 0..2 * MAX_LEFT {
            names.follow([format!("n{number}.test").as_str()].into_iter(), &[]);
        }
        assert_eq!(names.table().names.len(), MAX_LEFT + 1);
        assert!(!names.table().names.contains_key("n0.test"));
    }

    #[test]
    fn names_come_in_turn_and_those_that_fail_sooner() {
        let names = names(&[]);
        let now = Instant::now();
        let next = |at: Instant| Names::next(&mut names.table(), at);
        let (first, second) = (next(now).unwrap(), next(now).unwrap());
        assert_ne!(first, second);
        assert_eq!(next(now), Err(REFRESH));
        names.answered(&first, Err("no".to_owned()), now);
        names.answered(&second, answer(&["192.0.2.1"]), now);
        assert_eq!(next(now), Err(RETRY));
        assert_eq!(next(now + RETRY), Ok(first));
        assert_eq!(next(now + REFRESH), Ok(second));
    }
}
