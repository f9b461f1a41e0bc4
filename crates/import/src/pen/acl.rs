//! Pen's access lists. The first entry that matches decides; an address that none matches
//! gets the opposite of what the last entry says, and with an empty list it is permitted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::{Prefix, PrefixSet, geo::Country};

use super::Place;

/// More entries in one list are not taken: their differences would take long.
const MAX_ENTRIES: usize = 256;

#[derive(Default, Clone)]
pub(super) struct Acl {
    entries: Vec<Entry>,
    /// Entries that were typed and are not among those: their number, and where the first
    /// one stands.
    lost: Option<(usize, Place)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    permits: bool,
    who: Who,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Prefix(Prefix),
    Country(Country),
}

impl Entry {
    /// Reads what follows `acl N`; an error says why it is no entry, and what to do.
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let permits = match words.first() {
            Some(&"permit") => true,
            Some(&"deny") => false,
            _ => return Err("not carried over: an entry permits or denies".to_owned()),
        };
        let who = match words[1..] {
            ["country", code] => {
                let letters = <[u8; 2]>::try_from(code.as_bytes()).ok();
                let country = letters.and_then(Country::from_letters);
                let country = country.filter(|country| country.name().is_some());
                let country = country.ok_or("asked: that is no country's code")?;
                if country.to_string() != *code {
                    return Err("asked: a country's code in small letters: in Pen that matches nobody. Is it meant?".to_owned());
                }
                Who::Country(country)
            }
            [addr] if addr.contains(':') => {
                let (addr, bits) = addr.split_once('/').unwrap_or((addr, "128"));
                let typed = addr.parse::<Ipv6Addr>().ok().zip(bits.parse().ok());
                let Some((addr, bits)) = typed.filter(|(_, bits)| *bits <= 128) else {
                    return Err("asked: that is no IPv6 prefix".to_owned());
                };
                if addr.to_ipv4_mapped().is_some() {
                    return Err("asked: in Pen an IPv4 client is matched by IPv4 entries alone. Which prefix is meant?".to_owned());
                }
                if bits < 128 && addr.to_bits() << bits != 0 {
                    return Err("asked: the address has bits behind its length: in Pen that matches nobody. Which prefix is meant?".to_owned());
                }
                let prefix = Prefix::new(addr.into(), bits);
                Who::Prefix(prefix.ok_or("asked: that is no IPv6 prefix")?)
            }
            [addr] => Who::Prefix(v4(addr, "255.255.255.255")?),
            [addr, mask] => Who::Prefix(v4(addr, mask)?),
            _ => return Err("not carried over: an entry names an address or a country".to_owned()),
        };
        Ok(Self { permits, who })
    }
}

fn v4(addr: &str, mask: &str) -> Result<Prefix, String> {
    let read = |text: &str| text.parse::<Ipv4Addr>().ok();
    let Some((addr, mask)) = read(addr).zip(read(mask)) else {
        return Err("asked: that is no IPv4 address with a mask such as 255.255.255.0".to_owned());
    };
    let bits = mask.to_bits().leading_ones();
    if mask.to_bits().count_ones() != bits {
        return Err("asked: the mask has gaps; which prefixes are meant?".to_owned());
    }
    if addr.to_bits() & !mask.to_bits() != 0 {
        return Err("asked: the address has bits that the mask has not: in Pen that matches nobody. Which prefix is meant?".to_owned());
    }
    Prefix::new(addr.into(), bits as u8).ok_or_else(|| "asked: that is no prefix".to_owned())
}

impl Acl {
    /// False: there are too many already, and it counts as lost.
    pub(super) fn push(&mut self, place: &str, entry: Entry) -> bool {
        let has_room = self.entries.len() < MAX_ENTRIES;
        match has_room {
            true => self.entries.push(entry),
            false => self.lose(place),
        }
        has_room
    }

    /// Counts an entry that cannot be taken over.
    pub(super) fn lose(&mut self, place: &str) {
        let (count, _) = self.lost.get_or_insert_with(|| (0, place.to_owned()));
        *count += 1;
    }

    /// Entries that could not be taken over: their number, and where the first one stands.
    pub(super) fn lost(&self) -> Option<(usize, &str)> {
        let (count, first) = self.lost.as_ref()?;
        Some((*count, first))
    }

    /// Entries that were typed, taken over or not.
    pub(super) fn typed(&self) -> usize {
        self.entries.len() + self.lost.as_ref().map_or(0, |(count, _)| *count)
    }

    /// What becomes of an address that no entry matches.
    pub(super) fn permits_others(&self) -> bool {
        self.entries.last().is_none_or(|entry| !entry.permits)
    }

    /// The entries as rules of a pool, in their order.
    pub(super) fn rules(&self) -> Vec<String> {
        let rule = |entry: &Entry| {
            let verdict = if entry.permits { "allow" } else { "deny" };
            match entry.who {
                Who::Prefix(prefix) => format!("{verdict} {prefix}"),
                Who::Country(country) => format!("{verdict} country:{country}"),
            }
        };
        self.entries.iter().map(rule).collect()
    }

    pub(super) fn has_country(&self) -> bool {
        let countries = self.entries.iter();
        countries
            .filter(|e| matches!(e.who, Who::Country(_)))
            .count()
            > 0
    }

    /// Of the destinations that it permits those that entries name, and of each of
    /// `others` what it permits, without these addresses; as few prefixes as that takes.
    /// No destination is matched by a country.
    pub(super) fn permitted(&self, others: &[Prefix], without: &[IpAddr]) -> PrefixSet {
        let deny = |addr: &IpAddr| (false, Prefix::host(*addr));
        let mut entries: Vec<(bool, Prefix)> = without.iter().map(deny).collect();
        entries.extend(self.entries.iter().filter_map(|entry| match entry.who {
            Who::Prefix(prefix) => Some((entry.permits, prefix)),
            Who::Country(_) => None,
        }));
        let named = entries.iter().filter(|(permits, _)| *permits);
        let mut whole: Vec<Prefix> = named.map(|(_, prefix)| *prefix).collect();
        whole.extend_from_slice(others);
        // The widest first: what is inside of one is looked at once.
        whole.sort_by_key(|prefix| prefix.bits());
        let mut looked_at = PrefixSet::default();
        let mut found = PrefixSet::default();
        for prefix in whole {
            if looked_at.covering(prefix).is_none() {
                looked_at.insert(prefix);
                permitted_in(prefix, &entries, self.permits_others(), &mut found);
            }
        }
        found
    }
}

/// Adds what is permitted of `prefix`: by the first entry that covers it, or, where an
/// entry is about a part of it before that, of each half.
fn permitted_in(
    prefix: Prefix,
    entries: &[(bool, Prefix)],
    permits_others: bool,
    found: &mut PrefixSet,
) {
    for (permits, entry) in entries {
        if entry.covers(prefix) {
            if *permits {
                found.insert(prefix);
            }
            return;
        }
        if prefix.covers(*entry) {
            for half in halves(prefix) {
                permitted_in(half, entries, permits_others, found);
            }
            return;
        }
    }
    if permits_others {
        found.insert(prefix);
    }
}

fn halves(prefix: Prefix) -> [Prefix; 2] {
    let bits = prefix.bits() + 1;
    let upper: IpAddr = match prefix.addr() {
        IpAddr::V4(addr) => Ipv4Addr::from_bits(addr.to_bits() | 1 << (32 - bits)).into(),
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() | 1 << (128 - bits)).into(),
    };
    [prefix.addr(), upper].map(|addr| {
        Prefix::new(addr, bits).expect("a prefix that covers another one is not a host's")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(lines: &str) -> Acl {
        let mut acl = Acl::default();
        for line in lines.split(", ") {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(acl.push(line, Entry::parse(&words).unwrap()), "{line}");
        }
        acl
    }

    fn permitted(acl: &Acl, others: &[&str], without: &[&str]) -> Vec<String> {
        let others: Vec<Prefix> = others.iter().map(|p| p.parse().unwrap()).collect();
        let without: Vec<IpAddr> = without.iter().map(|a| a.parse().unwrap()).collect();
        let found = acl.permitted(&others, &without);
        found.iter().map(|prefix| prefix.to_string()).collect()
    }

    #[test]
    fn what_no_entry_matches_gets_the_opposite_of_the_last_one() {
        assert!(Acl::default().permits_others());
        assert!(acl("permit 192.0.2.0 255.255.255.0, deny 192.0.2.1").permits_others());
        assert!(!acl("deny 192.0.2.1, permit 192.0.2.0 255.255.255.0").permits_others());
        // Also by an entry of the other family.
        assert!(!acl("deny 192.0.2.1, permit 2001:db8::/32").permits_others());
    }

    #[test]
    fn the_first_entry_that_matches_decides() {
        let one = acl("deny 192.0.2.1, permit 192.0.2.0 255.255.255.252");
        assert_eq!(permitted(&one, &[], &[]), ["192.0.2.0", "192.0.2.2/31"]);
        let late = acl("permit 192.0.2.0 255.255.255.252, deny 192.0.2.1");
        assert_eq!(permitted(&late, &[], &[]), ["192.0.2.0/30"]);
        let six = acl("deny 2001:db8::/33, permit 2001:db8::/32");
        assert_eq!(permitted(&six, &[], &[]), ["2001:db8:8000::/33"]);
        assert_eq!(
            permitted(&late, &["192.0.2.0/29"], &["192.0.2.4"]),
            ["192.0.2.0/30", "192.0.2.5", "192.0.2.6/31"]
        );
    }

    /// Against asking of each address in turn.
    #[test]
    fn prefixes_hold_the_addresses_that_a_linear_search_permits() {
        let lines = "deny 192.0.2.9, permit 192.0.2.8 255.255.255.248, deny 192.0.2.64 255.255.255.192, \
                     permit 192.0.2.96 255.255.255.224, permit country DE, deny 192.0.2.200";
        let acl = acl(lines);
        let found = acl.permitted(&["192.0.2.0/24".parse().unwrap()], &[]);
        for last in 0..=255 {
            let addr = IpAddr::from([192, 0, 2, last]);
            let matching = acl.entries.iter().find(|entry| match entry.who {
                Who::Prefix(prefix) => prefix.contains(addr),
                Who::Country(_) => false,
            });
            let permits = matching.map_or(acl.permits_others(), |entry| entry.permits);
            assert_eq!(found.lookup(addr).is_some(), permits, "{addr}");
        }
    }

    #[test]
    fn entries_that_match_nobody_in_pen_are_asked_about() {
        for (line, told) in [
            ("permit 192.0.2.1 255.255.255.0", "matches nobody"),
            ("permit 192.0.2.0 255.0.255.0", "gaps"),
            ("permit country XX", "no country's code"),
            ("permit country de", "small letters"),
            ("permit 2001:db8::/129", "no IPv6 prefix"),
            ("permit 2001:db8::1/64", "bits behind its length"),
            ("permit 2001:db8::1/0", "bits behind its length"),
            ("permit ::ffff:192.0.2.1", "by IPv4 entries alone"),
            ("permit www", "no IPv4 address"),
            ("allow 192.0.2.1", "permits or denies"),
            ("permit", "names an address"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let why = Entry::parse(&words).err().unwrap();
            assert!(why.contains(told), "{line}: {why}");
        }
        let mut full = acl("deny 192.0.2.1");
        let entry = full.entries[0];
        while full.push("line 257", entry) {}
        full.lose("line 258");
        assert_eq!(full.entries.len(), MAX_ENTRIES);
        assert_eq!(full.lost(), Some((2, "line 257")));
        assert_eq!(full.typed(), MAX_ENTRIES + 2);
    }
}
