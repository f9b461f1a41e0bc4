//! What filters have captured of failures that may lead to a ban yet, for the commands that
//! ask for it (`<F-USER>`). As in Fail2ban it is what the first failure has, as long as the
//! next ones come within `findtime`.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use weir_core::BanTarget;

use crate::store::CapturedValues;

/// Addresses whose values are kept; of one more those of the oldest go.
pub(super) const MAX_KEPT: usize = 10_000;
/// Bytes of one value.
const MAX_VALUE: usize = 256;
/// Bytes of all values of an address.
const MAX_VALUES: usize = 512;

/// The failures of a jail's, by jail and address.
#[derive(Debug, Default)]
pub(super) struct Captures {
    first: HashMap<(String, BanTarget), First>,
    /// The failures in the order in which they began, with some that are over.
    order: VecDeque<(u64, (String, BanTarget))>,
    made: u64,
}

#[derive(Debug)]
struct First {
    number: u64,
    /// When the last failure was.
    last: Timestamp,
    values: CapturedValues,
}

impl Captures {
    /// Takes a failure in, with those of its values that are `wanted`. Says whether there
    /// was room without another one's going.
    pub fn add(
        &mut self,
        (jail, subject): (&str, BanTarget),
        (time, find_time): (Timestamp, Duration),
        values: &[(Arc<str>, String)],
        wanted: &[String],
    ) -> bool {
        let key = (jail.to_owned(), subject);
        if let Some(first) = self.first.get_mut(&key) {
            let since = Duration::try_from(time.duration_since(first.last));
            if since.is_ok_and(|since| since > find_time) {
                first.values = bounded(values, wanted);
            }
            first.last = first.last.max(time);
            return true;
        }
        self.made += 1;
        let first = First {
            number: self.made,
            last: time,
            values: bounded(values, wanted),
        };
        self.order.push_back((first.number, key.clone()));
        self.first.insert(key, first);
        if self.order.len() > 2 * MAX_KEPT {
            let first = &self.first;
            let is_there =
                |(number, key): &(u64, _)| first.get(key).is_some_and(|one| one.number == *number);
            self.order.retain(is_there);
        }
        let has_room = self.first.len() <= MAX_KEPT;
        while self.first.len() > MAX_KEPT
            && let Some((number, key)) = self.order.pop_front()
        {
            if self.first.get(&key).is_some_and(|one| one.number == number) {
                self.first.remove(&key);
            }
        }
        has_room
    }

    /// The values of a ban, which its failures end with: those of a network are of all its
    /// addresses.
    pub fn take(&mut self, jail: &str, subject: BanTarget) -> Option<CapturedValues> {
        let key = (jail.to_owned(), subject);
        let network = subject.prefix();
        if network.is_host() {
            return Some(self.first.remove(&key)?.values);
        }
        let is_of = |(of, failed): &(String, BanTarget)| {
            of == jail && network.contains(failed.prefix().addr())
        };
        let of_network: Vec<_> = self
            .first
            .keys()
            .filter(|key| is_of(key))
            .cloned()
            .collect();
        let failures = of_network
            .into_iter()
            .filter_map(|key| self.first.remove(&key));
        let first = failures.min_by_key(|failure| failure.number)?;
        Some(first.values)
    }

    /// Forgets jails that are no more.
    pub fn keep_only(&mut self, is_jail: impl Fn(&str) -> bool) {
        self.first.retain(|(jail, _), _| is_jail(jail));
    }
}

/// The wanted ones, without what steers terminals and mailers, as far as there is room.
fn bounded(values: &[(Arc<str>, String)], wanted: &[String]) -> CapturedValues {
    let mut room = MAX_VALUES;
    let wanted = values
        .iter()
        .filter(|(name, _)| wanted.iter().any(|wanted| **wanted == **name));
    let bounded = wanted.map(|(name, value)| {
        let mut end = value.len().min(MAX_VALUE).min(room);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        room -= end;
        // A backslash begins what `printf %b` makes of it: a line of a mail's head.
        let visible = |c: char| match c {
            '\\' => '/',
            c if c.is_control() => '?',
            c => c,
        };
        (name.clone(), value[..end].chars().map(visible).collect())
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn add(captures: &mut Captures, who: &str, second: i64, user: &str) -> bool {
        let values = ["user", "content"].map(|name| (Arc::from(name), user.to_owned()));
        let key = ("shop", who.parse().unwrap());
        let findtime = Duration::from_secs(600);
        captures.add(key, (at(second), findtime), &values, &["user".to_owned()])
    }

    fn taken(captures: &mut Captures, who: &str) -> Vec<(String, String)> {
        let values = captures.take("shop", who.parse().unwrap());
        let values = values.iter().flat_map(|values| values.iter());
        values
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect()
    }

    /// (Measured: Fail2ban 1.1 tells the user of the first failure.)
    #[test]
    fn a_ban_has_the_values_of_its_first_failure() {
        let mut captures = Captures::default();
        for who in ["192.0.2.7", "2001:db8::7"] {
            for (second, user) in [(0, "anna"), (600, "berta"), (1_200, "carla")] {
                assert!(add(&mut captures, who, second, user));
            }
            assert_eq!(
                taken(&mut captures, who),
                [("user".to_owned(), "anna".to_owned())]
            );
            assert_eq!(taken(&mut captures, who), []);
            // What is older than findtime leads to nothing.
            add(&mut captures, who, 2_000, "dora");
            add(&mut captures, who, 2_601, "emma");
            assert_eq!(
                taken(&mut captures, who),
                [("user".to_owned(), "emma".to_owned())]
            );
        }
        add(&mut captures, "192.0.2.7", 0, "x");
        captures.keep_only(|jail| jail != "shop");
        assert_eq!(taken(&mut captures, "192.0.2.7"), []);
    }

    /// With `ipv6_prefix` a ban is of a network, whose addresses have failed.
    #[test]
    fn a_ban_of_a_network_has_the_values_of_its_first_address() {
        let mut captures = Captures::default();
        for (who, user) in [
            ("2001:db8:1::9", "other"),
            ("2001:db8::2", "anna"),
            ("2001:db8::1", "berta"),
        ] {
            add(&mut captures, who, 0, user);
        }
        let anna = [("user".to_owned(), "anna".to_owned())];
        assert_eq!(taken(&mut captures, "2001:db8::/64"), anna);
        assert_eq!(captures.first.len(), 1, "none is left behind");
        assert_eq!(taken(&mut captures, "2001:db8::/64"), []);
        // A backslash is a line to `printf %b`.
        add(&mut captures, "192.0.2.7", 0, "x\\nBcc: y");
        let told = [("user".to_owned(), "x/nBcc: y".to_owned())];
        assert_eq!(taken(&mut captures, "192.0.2.7"), told);
    }

    #[test]
    fn captured_values_are_bounded() {
        let long = format!("a\u{1b}[31m\n{}", "é".repeat(1_000));
        let values = ["user", "rcpt", "from"].map(|name| (Arc::from(name), long.clone()));
        let wanted = ["user", "rcpt", "from"].map(str::to_owned);
        let kept = bounded(&values, &wanted);
        let length: usize = kept.iter().map(|(_, value)| value.len()).sum();
        assert!(length <= MAX_VALUES && kept[0].1.len() <= MAX_VALUE);
        assert!(kept[0].1.starts_with("a?[31m?é"), "{kept:?}");

        let who = |n: usize| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
        let mut captures = Captures::default();
        // Bans take theirs, and leave nothing behind.
        for n in 0..3 * MAX_KEPT {
            assert!(add(&mut captures, &who(n), 0, "x"));
            assert_eq!(taken(&mut captures, &who(n)).len(), 1);
        }
        assert!(captures.order.len() <= 2 * MAX_KEPT);
        for n in 0..MAX_KEPT {
            assert!(add(&mut captures, &who(n), 0, "x"));
        }
        assert!(!add(&mut captures, &who(MAX_KEPT), 0, "x"));
        assert_eq!(captures.first.len(), MAX_KEPT);
        assert_eq!(taken(&mut captures, &who(0)), []);
        assert_eq!(taken(&mut captures, &who(MAX_KEPT)).len(), 1);
    }
}
