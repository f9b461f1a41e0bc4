//! Our sets as ipset writes them: names, the text that makes and fills them,
//! and reading back what an earlier daemon left.

use std::{fmt::Write, sync::Arc};

use weir_core::{BanTarget, Prefix};

use crate::{BootNanos, Entry, Expiry, Policy, ranges::prefixes_of};

/// The longest time that ipset takes, seconds: 24 days. A longer ban is
/// prolonged while the daemon runs.
pub(super) const LONGEST: u64 = 2_147_483;
/// Before the seconds that such a ban had when it was written.
const FOR: &str = " for ";
/// Only a limit, the sets grow as they are filled.
const MOST: usize = 16_777_216;
/// The longest comment of an element.
const MAX_COMMENT: usize = 255;
/// The longest instance name, in bytes: set names have 31 bytes at most, chains 28.
const MAX_INSTANCE: usize = 14;

/// The numbers that sets may have: one digit in their names.
pub(super) const GENERATIONS: std::ops::RangeInclusive<u8> = 0..=9;

/// What a set with a number holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SetUse {
    Bans,
    List,
}

/// What a set is for, as far as sets go into force and out of it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Role {
    pub(super) set_use: SetUse,
    pub(super) generation: u8,
    family: usize,
}

/// Reads it from a name; `None` of a set without a number, as the allow list's.
pub(super) fn role(set: &str, base: &str) -> Option<Role> {
    let rest = set.strip_prefix(base)?.strip_prefix('.')?;
    let (set_use, rest) = match rest.strip_prefix("list") {
        Some(rest) => (SetUse::List, rest),
        None => (SetUse::Bans, rest),
    };
    let generation = rest.get(..1)?.parse().ok()?;
    let family = match set_use {
        SetUse::Bans => rest.get(1..2)?,
        SetUse::List => rest.rsplit('-').next()?,
    };
    Some(Role {
        set_use,
        generation,
        family: ["4", "6"].iter().position(|digit| *digit == family)?,
    })
}

/// What the names of all sets and chains of an instance begin with.
pub(crate) fn base(instance: &str) -> String {
    if instance.len() <= MAX_INSTANCE {
        return format!("weir_{instance}");
    }
    // FNV-1a: names that begin alike stay different.
    let hash = instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let begin: String = instance.chars().take(MAX_INSTANCE - 9).collect();
    format!("weir_{begin}-{hash:08x}")
}

/// What a set of bans is for: addresses or prefixes of one family, and which
/// ports. Rank: a subject's ban by another producer is in another set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Bans {
    /// Sets are filled aside: those in force have another number.
    pub(super) generation: u8,
    pub(super) family: usize,
    pub(super) hosts: bool,
    /// 0: all of them.
    pub(super) scope: u32,
    /// For bans of all ports: whether the allow list has an address of theirs.
    pub(super) touched: bool,
    /// 0 of the set that packets ask; the others are for the next daemon.
    pub(super) rank: usize,
}

impl Bans {
    pub(super) fn name(self, base: &str) -> String {
        let (generation, family) = (self.generation, [4, 6][self.family]);
        let kind = if self.hosts { 'h' } else { 'n' };
        let scope = match self.touched {
            true => "t".to_owned(),
            false => self.scope.to_string(),
        };
        format!("{base}.{generation}{family}{kind}{scope}-{}", self.rank)
    }

    /// Do packets ask it for bans of the scope with this number?
    pub(super) fn is_asked(self, scope: u32) -> bool {
        self.scope == scope && self.rank == 0
    }

    /// The line that makes it, if it is not there, for so many elements: ipset
    /// itself lets six share a bucket before it takes more of them, and a packet
    /// reads them all.
    pub(super) fn create(self, to: &mut String, base: &str, elements: usize) {
        let (name, kind) = (self.name(base), if self.hosts { "ip" } else { "net" });
        let family = ["inet", "inet6"][self.family];
        let buckets = elements.next_power_of_two().clamp(1024, MOST);
        let _ = writeln!(
            to,
            "create {name} hash:{kind} family {family} hashsize {buckets} maxelem {MOST} timeout 0 comment"
        );
    }
}

/// The line that makes a set of prefixes without ends.
pub(super) fn create_prefixes(to: &mut String, name: &str, family: usize) {
    let family = ["inet", "inet6"][family];
    let _ = writeln!(to, "create {name} hash:net family {family} maxelem {MOST}");
}

/// The seconds until then; `None` when it is over.
pub(super) fn seconds(expiry: Expiry, now: BootNanos) -> Option<u64> {
    match expiry {
        Expiry::Never => Some(0),
        Expiry::At(end) => match end.0.saturating_sub(now.0).div_ceil(1_000_000_000) {
            0 => None,
            seconds => Some(seconds),
        },
    }
}

/// Who bans, how and which ports, as the comment of an element; and how long,
/// when ipset cannot count so far.
fn comment(policy: &Policy, seconds: u64) -> String {
    let mut text = format!("{} {} {}", policy.producer, policy.action, policy.scope);
    if seconds > LONGEST {
        let _ = write!(text, "{FOR}{seconds}");
    }
    if text.len() > MAX_COMMENT {
        return String::new();
    }
    text
}

/// The line that puts a ban in, or gives it another end.
pub(super) fn add(to: &mut String, set: &str, subject: BanTarget, seconds: u64, policy: &Policy) {
    let (timeout, comment) = (seconds.min(LONGEST), comment(policy, seconds));
    let _ = writeln!(
        to,
        "add {set} {subject} timeout {timeout} comment \"{comment}\""
    );
}

/// The line that takes one out.
pub(super) fn delete(to: &mut String, set: &str, subject: BanTarget) {
    let _ = writeln!(to, "del {set} {subject}");
}

/// The names of our sets in what `ipset list -name` says.
pub(super) fn ours<'a>(listed: &'a str, base: &str) -> Vec<&'a str> {
    let begin = format!("{base}.");
    let names = listed.lines().filter(|name| name.starts_with(&begin));
    names.collect()
}

/// The memory of our sets in what `ipset list -terse` says.
pub(super) fn memory(listed: &str, base: &str) -> u64 {
    let begin = format!("{base}.");
    let (mut ours, mut bytes) = (false, 0);
    for line in listed.lines() {
        if let Some(name) = line.strip_prefix("Name: ") {
            ours = name.starts_with(&begin);
        } else if let (true, Some(size)) = (ours, line.strip_prefix("Size in memory: ")) {
            bytes += size.parse().unwrap_or(0);
        }
    }
    bytes
}

/// Reads a line of `ipset save`.
pub(super) fn read(line: &str, base: &str, now: BootNanos) -> Option<Entry> {
    let (set, rest) = line.strip_prefix("add ")?.split_once(' ')?;
    set.strip_prefix(base)?.strip_prefix('.')?;
    let (subject, rest) = rest.split_once(" timeout ")?;
    let (seconds, rest) = rest.split_once(" comment \"")?;
    let (producer, rest) = rest.trim_end().strip_suffix('"')?.split_once(' ')?;
    let (action, scope) = rest.split_once(' ')?;
    let mut seconds: u64 = seconds.parse().ok()?;
    let scope = match scope.split_once(FOR) {
        Some((scope, all)) => {
            let counted = LONGEST.checked_sub(seconds)?;
            seconds = all.parse::<u64>().ok()?.saturating_sub(counted);
            scope
        }
        None => scope,
    };
    Some(Entry {
        subject: BanTarget::new(subject.parse().ok()?).ok()?,
        policy: Arc::new(Policy {
            producer: producer.parse().ok()?,
            scope: scope.parse().ok()?,
            action: action.parse().ok()?,
        }),
        expiry: match seconds {
            0 => Expiry::Never,
            seconds => Expiry::At(BootNanos(now.0 + seconds * 1_000_000_000)),
        },
    })
}

/// The prefixes of ranges of IPv4 and of IPv6 addresses, as text.
pub(super) fn prefixes(
    v4: impl Iterator<Item = (u32, u32)>,
    v6: impl Iterator<Item = (u128, u128)>,
) -> [Vec<String>; 2] {
    // ipset takes no length of zero.
    let halves = |prefix: Prefix| match (prefix.bits(), prefix.addr().is_ipv6()) {
        (0, false) => vec!["0.0.0.0/1".to_owned(), "128.0.0.0/1".to_owned()],
        (0, true) => vec!["::/1".to_owned(), "8000::/1".to_owned()],
        _ => vec![prefix.to_string()],
    };
    let text = |prefixes: Vec<Prefix>| prefixes.into_iter().flat_map(halves);
    [
        v4.flat_map(|(first, last)| text(prefixes_of(first.into(), last.into(), 32)))
            .collect(),
        v6.flat_map(|(first, last)| text(prefixes_of(first, last, 128)))
            .collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let longest = Bans {
            generation: 9,
            family: 1,
            hosts: false,
            scope: 4096,
            touched: false,
            rank: 63,
        };
        let long = "abcdefghijklmnopqrstuvwxyz-01234";
        for instance in ["default", "a", long] {
            let base = base(instance);
            assert!(longest.name(&base).len() <= 31, "{base}");
            assert!(base.len() + ".s4096".len() <= 28, "{base}");
        }
        assert_ne!(base(long), base(&long.replace('4', "5")));
    }

    #[test]
    fn names_say_which_sets_are_in_force_together() {
        let base = base("default");
        let bans = Bans {
            generation: 3,
            family: 1,
            hosts: false,
            scope: 12,
            touched: false,
            rank: 2,
        };
        let of = |set: &str| role(set, &base).map(|r| (r.set_use, r.generation, r.family));
        assert_eq!(of(&bans.name(&base)), Some((SetUse::Bans, 3, 1)));
        let touched = Bans {
            family: 0,
            touched: true,
            ..bans
        };
        assert_eq!(of(&touched.name(&base)), Some((SetUse::Bans, 3, 0)));
        let list = super::super::rules::list_set(&base, 7, 46, 0);
        assert_eq!(of(&list), Some((SetUse::List, 7, 0)));
        for other in [
            "weir_default.allow4",
            "weir_default.new",
            "weir_other.34h0-0",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn everybody_is_two_halves() {
        let all = prefixes([(0, u32::MAX)].into_iter(), [(0, u128::MAX)].into_iter());
        assert_eq!(all[0], ["0.0.0.0/1", "128.0.0.0/1"]);
        assert_eq!(all[1], ["::/1", "8000::/1"]);
    }

    #[test]
    fn what_is_saved_is_read() {
        let base = base("default");
        let now = BootNanos(1_000_000_000);
        let subject: BanTarget = "2001:db8::/48".parse().unwrap();
        let policy = Policy {
            producer: "jail:sshd".parse().unwrap(),
            scope: "22/tcp,80-90".parse().unwrap(),
            action: "reject".parse().unwrap(),
        };
        let mut line = String::new();
        let set = Bans {
            generation: 9,
            family: 1,
            hosts: false,
            scope: 3,
            touched: false,
            rank: 0,
        };
        add(&mut line, &set.name(&base), subject, 60, &policy);
        let entry = read(&line, &base, now).unwrap();
        assert_eq!(entry.subject, subject);
        assert_eq!(*entry.policy, policy);
        assert_eq!(entry.expiry, Expiry::At(BootNanos(61_000_000_000)));
        // Longer than ipset counts; then a minute later.
        line.clear();
        add(&mut line, &set.name(&base), subject, 40 * 86_400, &policy);
        assert!(line.contains(" timeout 2147483 "), "{line}");
        let line = line.replace("2147483", "2147423");
        let entry = read(&line, &base, now).unwrap();
        assert_eq!(*entry.policy, policy);
        let left = 40 * 86_400 - 60;
        assert_eq!(
            entry.expiry,
            Expiry::At(BootNanos((left + 1) * 1_000_000_000))
        );
        for other in [
            "add weir_other.04h0-0 192.0.2.7 timeout 3 comment \"manual drop all ports\"",
            "add weir_default.04h0-0 192.0.2.7 timeout 3",
            "create weir_default.04h0-0 hash:ip",
            "add weir_default.allow4 192.0.2.7",
            "",
        ] {
            assert!(read(other, &base, now).is_none(), "{other}");
        }
    }

    #[test]
    fn only_our_sets_take_memory() {
        let set = |name, size| format!("Name: {name}\nType: hash:ip\nSize in memory: {size}\n");
        let listed = [
            set("weir_a.04h0-0", 216),
            set("weir_ab.04h0-0", 5),
            set("weir_a.allow4", 8),
        ];
        assert_eq!(memory(&listed.join("\n"), "weir_a"), 224);
        assert_eq!(
            memory("Name: weir_a.x\nSize in memory: much\n", "weir_a"),
            0
        );
    }

    #[test]
    fn ends_are_rounded_up() {
        let now = BootNanos(0);
        let at = |nanos| seconds(Expiry::At(BootNanos(nanos)), now);
        assert_eq!(at(0), None);
        assert_eq!(at(1), Some(1));
        assert_eq!(at(1_000_000_001), Some(2));
        assert_eq!(at(40 * 86_400_000_000_000), Some(40 * 86_400));
        assert_eq!(seconds(Expiry::Never, now), Some(0));
    }

    #[test]
    fn a_range_is_its_prefixes() {
        let v4 = |text: &str| u128::from(text.parse::<std::net::Ipv4Addr>().unwrap().to_bits());
        for (first, last, prefixes) in [
            ("10.0.0.0", "10.255.255.255", vec!["10.0.0.0/8"]),
            ("10.0.0.1", "10.0.0.1", vec!["10.0.0.1"]),
            (
                "10.0.0.1",
                "10.0.0.4",
                vec!["10.0.0.1", "10.0.0.2/31", "10.0.0.4"],
            ),
            (
                "255.255.255.254",
                "255.255.255.255",
                vec!["255.255.255.254/31"],
            ),
        ] {
            let found: Vec<_> = prefixes_of(v4(first), v4(last), 32)
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found, prefixes);
        }
        let whole = prefixes_of(1 << 127, u128::MAX, 128);
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].to_string(), "8000::/1");
    }
}
