//! The addresses of names in rules, as they are on disk: with the time at which each was in
//! an answer last. What is read is no more to be believed than an answer: whoever reads it
//! has to ask the same of it (`names.rs`), and it is bounded.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use jiff::Timestamp;
use weir_core::detect::HostName;
use weir_identity::{config::MAX_NAMES, policy::MAX_ADDRESSES};

use crate::store::Store;

/// An address holds for so long after it was in an answer last.
pub(super) const KEEP: Duration = Duration::from_secs(3600);
/// The same after a start, as long as nobody answers.
const HOLDS: Duration = Duration::from_secs(86_400);
/// So far ahead of this host's clock a time may be: the clock may have been set meanwhile.
const AHEAD: Duration = Duration::from_secs(300);
/// Bytes of one record: an IPv6 address with its time has up to 62.
const MAX_RECORD: usize = 64 * MAX_ADDRESSES;

/// An address that a name had for an earlier daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptAddress {
    pub(super) addr: IpAddr,
    /// When it was in an answer last.
    pub(super) seen: Timestamp,
}

impl KeptAddress {
    /// How long ago that was; one of the future is new.
    pub(super) fn age(&self, now: Timestamp) -> Duration {
        now.duration_since(self.seen).try_into().unwrap_or_default()
    }

    /// May the address still hold?
    pub(super) fn holds(&self, now: Timestamp) -> bool {
        let ahead: Duration = self.seen.duration_since(now).try_into().unwrap_or_default();
        self.age(now) < HOLDS && ahead <= AHEAD
    }
}

/// What the disk has of names.
#[derive(Debug, Default)]
pub(super) struct OnDisk {
    pub(super) kept: BTreeMap<String, Vec<KeptAddress>>,
    /// What is not to be used, with the reason.
    pub(super) untaken: Vec<String>,
    /// The names of these rows, as they are on disk.
    pub(super) wrong: Vec<Vec<u8>>,
    /// There are more names than weir ever writes.
    pub(super) is_foreign: bool,
}

/// Reads what the disk has of names.
pub(super) fn read(store: &Store, now: Timestamp) -> OnDisk {
    let mut found = OnDisk::default();
    let rows = store.resolved(MAX_NAMES + 1, MAX_RECORD);
    if rows.len() > MAX_NAMES {
        found.is_foreign = true;
        found.untaken.push(format!(
            "weir.db has addresses of more than {MAX_NAMES} names, which weir never writes: none of them is used"
        ));
        return found;
    }
    for (name, record) in rows {
        match parse(&name, record.as_deref()) {
            Ok((of, mut addresses)) => {
                leave_current(&mut addresses, now);
                found.kept.insert(of.to_owned(), addresses);
            }
            Err(why) => {
                found.untaken.push(format!(
                    "the addresses of name:{} in weir.db are not used: {why}",
                    String::from_utf8_lossy(&name).escape_debug()
                ));
                found.wrong.push(name);
            }
        }
    }
    found
}

/// Leaves those that held at the time of the last answer: a daemon that went on from there
/// without an answer would have no others.
fn leave_current(addresses: &mut Vec<KeptAddress>, now: Timestamp) {
    let held = addresses.iter().filter(|kept| kept.holds(now));
    if let Some(last) = held.map(|kept| kept.seen).max() {
        addresses.retain(|kept| kept.age(last) < KEEP);
    }
}

fn parse<'a>(name: &'a [u8], record: Option<&str>) -> Result<(&'a str, Vec<KeptAddress>), String> {
    let text = std::str::from_utf8(name).ok();
    let Some(name) = text.filter(|_| HostName::new(name).is_ok()) else {
        return Err("it is no host name".to_owned());
    };
    let Some(record) = record else {
        return Err(format!("they are no text of at most {MAX_RECORD} bytes"));
    };
    let rows: Vec<(IpAddr, i64)> = serde_json::from_str(record)
        .map_err(|error| format!("they are not as weir writes them ({error})"))?;
    if rows.len() > MAX_ADDRESSES {
        return Err(format!("there are more than {MAX_ADDRESSES}"));
    }
    let address = |(addr, seen): (IpAddr, i64)| {
        let seen =
            Timestamp::from_microsecond(seen).map_err(|_| format!("the time of {addr} is none"))?;
        let addr = addr.to_canonical();
        Ok(KeptAddress { addr, seen })
    };
    let addresses = rows
        .into_iter()
        .map(address)
        .collect::<Result<_, String>>()?;
    Ok((name, addresses))
}

/// The record of these addresses, each with the time since it was in an answer; `None`:
/// there are none.
pub(super) fn record(
    addresses: impl Iterator<Item = (IpAddr, Duration)>,
    now: Timestamp,
) -> Option<String> {
    let now = now.as_microsecond();
    let row = |(addr, age): (IpAddr, Duration)| {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        (addr, now.saturating_sub(age))
    };
    let rows: Vec<_> = addresses.map(row).collect();
    (!rows.is_empty()).then(|| serde_json::to_string(&rows).ok())?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{Change, KeepHistory, ResolvedRow};

    const HOUR: Duration = Duration::from_secs(3600);

    fn store(rows: impl IntoIterator<Item = (String, String)>) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), KeepHistory::default(), Arc::default());
        let rows = rows.into_iter().map(|(name, record)| {
            let record = Some(record);
            let name = name.into_bytes();
            Change::Resolved(ResolvedRow { name, record })
        });
        store.remember_now(rows.collect()).unwrap();
        (dir, store)
    }

    #[test]
    fn what_was_written_is_read_with_its_times() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let all = ["192.0.2.7", "2001:db8::7"].map(|text| text.parse().unwrap());
        let written = record(all.into_iter().map(|addr| (addr, HOUR)), now).unwrap();
        let (_dir, store) = store([("web.test".to_owned(), written)]);
        let OnDisk { kept, untaken, .. } = read(&store, now);
        assert!(untaken.is_empty(), "{untaken:?}");
        let web = &kept["web.test"];
        assert_eq!(web.iter().map(|kept| kept.addr).collect::<Vec<_>>(), all);
        for kept in web {
            assert_eq!(kept.age(now), HOUR);
            assert!(kept.holds(now));
            assert!(!kept.holds(now + HOLDS));
            // Of a clock that was far ahead: a row that would hold for years.
            assert!(kept.holds(kept.seen - AHEAD));
            assert!(!kept.holds(kept.seen - 2 * AHEAD));
        }
        assert_eq!(record(std::iter::empty(), now), None);
    }

    #[test]
    fn what_somebody_else_has_written_is_refused_and_told() {
        let many: Vec<_> = (0..=MAX_ADDRESSES as u32)
            .map(|n| (IpAddr::from((n + 1).to_be_bytes()), 1))
            .collect();
        let many = serde_json::to_string(&many).unwrap();
        let wrong = [
            ("a.test", "[[\"192.0.2.7\", 1", "not as weir writes"),
            ("b.test", "[[\"localhost\", 1]]", "not as weir writes"),
            (
                "c.test",
                "[[\"192.0.2.7\", 9223372036854775807]]",
                "the time of 192.0.2.7",
            ),
            ("d.test", &many, "more than"),
            ("e.test", &" ".repeat(MAX_RECORD + 1), "no text of at most"),
            ("f .test", "[]", "no host name"),
        ];
        let good = (
            "z.test".to_owned(),
            "[[\"::ffff:192.0.2.9\", 1]]".to_owned(),
        );
        let rows = wrong.iter();
        let rows = rows.map(|(name, record, _)| ((*name).to_owned(), (*record).to_owned()));
        let (_dir, store) = store(rows.chain([good]));
        let OnDisk {
            kept,
            untaken,
            wrong: names,
            is_foreign,
        } = read(&store, Timestamp::now());
        assert!(!is_foreign);
        assert_eq!(names, wrong.map(|(name, _, _)| name.as_bytes()));
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["z.test"]);
        assert_eq!(kept["z.test"][0].addr, IpAddr::from([192, 0, 2, 9]));
        assert_eq!(untaken.len(), wrong.len(), "{untaken:?}");
        for ((name, _, why), told) in wrong.iter().zip(&untaken) {
            assert!(told.contains(name) && told.contains(why), "{told}");
        }
    }

    #[test]
    fn more_names_than_rules_can_have_are_none_of_weirs() {
        let rows = (0..=MAX_NAMES).map(|n| (format!("n{n}.test"), "[]".to_owned()));
        let (_dir, store) = store(rows);
        let OnDisk {
            kept,
            untaken,
            is_foreign,
            ..
        } = read(&store, Timestamp::now());
        assert!(kept.is_empty() && is_foreign);
        assert!(untaken[0].contains("more than 256 names"), "{untaken:?}");
    }

    #[test]
    fn addresses_that_later_answers_had_replaced_are_not_taken() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let at = |last: u8, hours: u32| (IpAddr::from([192, 0, 2, last]), hours * HOUR);
        let written = |all: &[(IpAddr, Duration)]| record(all.iter().copied(), now).unwrap();
        let rows = [
            ("a.test", written(&[at(1, 0), at(2, 1)])),
            // Nobody has answered for long: what held then.
            ("b.test", written(&[at(1, 20), at(2, 22)])),
            // Of a clock that was far ahead: it says nothing of the others.
            ("c.test", written(&[at(1, 0)])),
        ];
        let ahead = (now + 2 * AHEAD).as_microsecond();
        let far = format!("[[\"192.0.2.9\", {ahead}], {}", &rows[2].1[1..]);
        let rows = rows.map(|(name, record)| (name.to_owned(), record));
        let (_dir, store) = store(rows.into_iter().take(2).chain([("c.test".to_owned(), far)]));
        let found = read(&store, now);
        for name in ["a.test", "b.test", "c.test"] {
            let held = found.kept[name].iter().filter(|kept| kept.holds(now));
            let held: Vec<_> = held.map(|kept| kept.addr).collect();
            assert_eq!(held, [IpAddr::from([192, 0, 2, 1])], "{name}");
        }
    }
}
