//! Which clients may use a pool: rules of which the first that fits decides, and what
//! holds where none does. The kernel is told the networks for which that is not so
//! (`Exceptions`): one look there is the same as asking the rules in their order.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::{
    Prefix,
    geo::{GeoTable, Number, Place, Selector, Span},
};

/// So many rules may an access list have.
pub const MAX_RULES: usize = 64;

/// A pool's answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The client is served by a real.
    Allow,
    /// The client's packets are dropped.
    Deny,
}

impl Access {
    /// The answers by the words of the configuration.
    pub const ALL: [(&str, Self); 2] = [("allow", Self::Allow), ("deny", Self::Deny)];

    /// The word that stands for it in rules and in `acl_default`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The clients that a rule covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// `203.0.113.0/24`
    Prefix(Prefix),
    /// `country:DE`, `continent:EU`
    Place(Selector),
    /// `list:NAME`
    List(String),
}

/// `deny 203.0.113.0/24`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether these clients are served or denied.
    pub access: Access,
    /// The clients that the rule is about.
    pub who: Who,
}

/// The text is not a rule of an access list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is no rule")]
pub struct NoRule;

impl FromStr for Rule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Self, NoRule> {
        let (access, who) = text.split_once(' ').ok_or(NoRule)?;
        let access = Access::ALL.into_iter().find(|(word, _)| *word == access);
        let (_, access) = access.ok_or(NoRule)?;
        let who = match who.split_once(':') {
            Some(("list", name)) if !name.is_empty() => Who::List(name.to_owned()),
            Some(("country" | "continent", _)) => Who::Place(who.parse().map_err(|_| NoRule)?),
            _ => Who::Prefix(who.parse().map_err(|_| NoRule)?),
        };
        Ok(Self { access, who })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.access.name())?;
        match &self.who {
            Who::Prefix(prefix) => write!(f, "{prefix}"),
            Who::Place(place) => write!(f, "{place}"),
            Who::List(name) => write!(f, "list:{name}"),
        }
    }
}

/// Rules in the order in which they are asked, at most [`MAX_RULES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// The first that fits decides.
    pub rules: Vec<Rule>,
    /// The answer to clients that no rule covers.
    pub default: Access,
}

/// The networks of each family, by first address and length, for which `default` does not
/// hold. None holds another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceptions {
    /// The answer to clients in none of the networks.
    pub default: Access,
    /// Networks of IPv4, as numbers in host order.
    pub v4: Vec<(u32, u8)>,
    /// Networks of IPv6, likewise.
    pub v6: Vec<(u128, u8)>,
}

impl Exceptions {
    /// The number of networks of both families.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// The answer to this client.
    pub fn access(&self, client: IpAddr) -> Access {
        // The networks are in the order of their first addresses.
        let is_other = match client {
            IpAddr::V4(addr) => {
                let addr = addr.to_bits();
                let place = self.v4.partition_point(|(first, _)| *first <= addr);
                let before = place.checked_sub(1).map(|before| self.v4[before]);
                before.is_some_and(|(first, len)| {
                    u128::from(addr ^ first) <= ones(32 - u32::from(len))
                })
            }
            IpAddr::V6(addr) => {
                let addr = addr.to_bits();
                let place = self.v6.partition_point(|(first, _)| *first <= addr);
                let before = place.checked_sub(1).map(|before| self.v6[before]);
                before.is_some_and(|(first, len)| addr ^ first <= ones(128 - u32::from(len)))
            }
        };
        match (is_other, self.default) {
            (false, default) => default,
            (true, Access::Allow) => Access::Deny,
            (true, Access::Deny) => Access::Allow,
        }
    }

    /// Does the default hold for everybody?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Acl {
    /// The rule that decides of this client, if one does. `is_on`: is it on the list of
    /// this name?
    pub fn deciding(
        &self,
        addr: IpAddr,
        place: &Place,
        is_on: impl Fn(&str) -> bool,
    ) -> Option<&Rule> {
        self.rules.iter().find(|rule| match &rule.who {
            Who::Prefix(prefix) => prefix.contains(addr),
            Who::Place(selector) => is_there(place, *selector),
            Who::List(name) => is_on(name),
        })
    }

    /// Does any rule name a place?
    pub fn names_places(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| matches!(rule.who, Who::Place(_)))
    }

    /// The names of the lists that rules are about.
    pub fn lists(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter_map(|rule| match &rule.who {
            Who::List(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// For whom the default does not hold; `list` has the prefixes of a name.
    pub fn exceptions<'a>(
        &self,
        table: &GeoTable,
        list: impl Fn(&str) -> &'a [Prefix],
    ) -> Exceptions {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (number, rule) in self.rules.iter().take(MAX_RULES).enumerate() {
            let mut add = |prefix: &Prefix| {
                let (first, width) = match prefix.addr() {
                    IpAddr::V4(addr) => (u128::from(addr.to_bits()), 32),
                    IpAddr::V6(addr) => (addr.to_bits(), 128),
                };
                let hosts = ones(width - u32::from(prefix.bits()));
                let of_family = if width == 32 { &mut v4 } else { &mut v6 };
                of_family.push((first, first | hosts, number));
            };
            match &rule.who {
                Who::Prefix(prefix) => add(prefix),
                Who::List(name) => list(name).iter().for_each(add),
                Who::Place(selector) => {
                    let there = table.places.iter();
                    let there: Vec<bool> = there.map(|p| is_there(p, *selector)).collect();
                    let ranges = |first, last| (first, last, number);
                    v4.extend(
                        spans(&table.v4, &there).map(|s| ranges(s.first.into(), s.last.into())),
                    );
                    v6.extend(spans(&table.v6, &there).map(|s| ranges(s.first, s.last)));
                }
            }
        }
        let narrow = |(first, len)| (first as u32, len);
        Exceptions {
            default: self.default,
            v4: self.networks(v4, 32).into_iter().map(narrow).collect(),
            v6: self.networks(v6, 128),
        }
    }

    /// Networks of addresses so wide, by the ranges (first, last) of each rule's number.
    fn networks(&self, ranges: Vec<(u128, u128, usize)>, width: u32) -> Vec<(u128, u8)> {
        let last_of_all = ones(width);
        let mut edges = Vec::with_capacity(2 * ranges.len());
        for (first, last, rule) in ranges {
            edges.push((first, rule, true));
            if last < last_of_all {
                edges.push((last + 1, rule, false));
            }
        }
        edges.sort_unstable();
        let mut within = [0u32; MAX_RULES];
        let mut networks = Vec::new();
        let mut open = None;
        for same in edges.chunk_by(|a, b| a.0 == b.0) {
            for &(_, rule, begins) in same {
                match begins {
                    true => within[rule] += 1,
                    false => within[rule] -= 1,
                }
            }
            let decides = within.iter().position(|ranges| *ranges > 0);
            let is_other = decides.is_some_and(|rule| self.rules[rule].access != self.default);
            let here = same[0].0;
            match (open, is_other) {
                (None, true) => open = Some(here),
                (Some(first), false) => {
                    split(first, here - 1, width, &mut networks);
                    open = None;
                }
                _ => (),
            }
        }
        if let Some(first) = open {
            split(first, last_of_all, width, &mut networks);
        }
        networks
    }
}

fn is_there(place: &Place, selector: Selector) -> bool {
    match selector {
        Selector::Country(country) => place.country == Some(country),
        Selector::Continent(continent) => place.continent == Some(continent),
        Selector::Asn(asn) => place.asn == Some(asn),
    }
}

/// Spans whose place is one of `there`.
fn spans<'a, A: Number>(
    all: &'a [Span<A, u16>],
    there: &'a [bool],
) -> impl Iterator<Item = &'a Span<A, u16>> {
    let is_there = |span: &&Span<A, u16>| there.get(usize::from(span.value)).copied();
    all.iter()
        .filter(move |span| is_there(span).unwrap_or(false))
}

/// The highest number of so many bits.
fn ones(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits).unwrap_or(0)
}

/// The networks that are the addresses from `first` to `last`.
fn split(mut first: u128, last: u128, width: u32, networks: &mut Vec<(u128, u8)>) {
    loop {
        let mut hosts = first.trailing_zeros().min(width);
        while first | ones(hosts) > last {
            hosts -= 1;
        }
        networks.push((first, (width - hosts) as u8));
        let end = first | ones(hosts);
        if end == last {
            return;
        }
        first = end + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geo::{Continent, Country, GeoTableBuilder};

    fn table() -> GeoTable {
        let mut builder = GeoTableBuilder::default();
        let place = |letters: &[u8; 2], continent| Place {
            country: Country::from_letters(*letters),
            continent: Some(continent),
            asn: None,
        };
        for (networks, letters, continent) in [
            (["203.0.112.0/22", "2001:db8:1::/48"], b"DE", Continent::Eu),
            (["198.51.100.0/25", "2001:db8:2::/47"], b"NL", Continent::Eu),
            (["0.0.0.0/6", "::/3"], b"US", Continent::Na),
            (["252.0.0.0/6", "e000::/3"], b"BR", Continent::Sa),
        ] {
            let number = builder.number(place(letters, continent)).unwrap();
            for network in networks {
                builder.add(network.parse().unwrap(), number);
            }
        }
        builder.finish()
    }

    fn list(name: &str) -> Vec<Prefix> {
        let all: &[&str] = match name {
            "one" => &["203.0.113.64/26", "203.0.113.64/28", "2001:db8:1:8000::/49"],
            _ => &["0.0.0.0/1", "8000::/1"],
        };
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    const WHO: [&str; 14] = [
        "203.0.113.0/24",
        "203.0.113.7",
        "0.0.0.0/0",
        "128.0.0.0/1",
        "2001:db8::/32",
        "2001:db8:1::7",
        "::/0",
        "::fffe:0:0/95",
        "country:DE",
        "country:US",
        "continent:EU",
        "continent:SA",
        "list:one",
        "list:other",
    ];

    /// Whether the kernel finds the address in the networks of its own family.
    fn has(exceptions: &Exceptions, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(addr) => exceptions.v4.iter().any(|(first, len)| {
                let hosts = ones(32 - u32::from(*len)) as u32;
                addr.to_bits() & !hosts == *first
            }),
            IpAddr::V6(addr) => exceptions.v6.iter().any(|(first, len)| {
                let hosts = ones(128 - u32::from(*len));
                addr.to_bits() & !hosts == *first
            }),
        }
    }

    #[test]
    fn the_networks_say_what_the_first_rule_that_fits_says() {
        let table = table();
        let lists = ["one", "other"].map(list);
        let of = |name: &str| &lists[usize::from(name == "other")][..];
        // On both sides of every edge there is.
        let mut clients: Vec<IpAddr> = Vec::new();
        for text in WHO
            .iter()
            .filter(|text| !text.contains("y:") && !text.contains("t:"))
        {
            edges(text.parse().unwrap(), &mut clients);
        }
        lists.iter().flatten().for_each(|p| edges(*p, &mut clients));
        clients.extend(
            table
                .v4
                .iter()
                .flat_map(|s| [s.first.addr(), s.last.addr()]),
        );
        clients.extend(
            table
                .v6
                .iter()
                .flat_map(|s| [s.first.addr(), s.last.addr()]),
        );
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % below
        };
        for round in 0..400 {
            let rules = (0..next(6)).map(|_| {
                let text = format!("{} {}", ["allow", "deny"][next(2)], WHO[next(WHO.len())]);
                let rule: Rule = text.parse().unwrap();
                assert_eq!(rule.to_string(), text);
                rule
            });
            let acl = Acl {
                rules: rules.collect(),
                default: [Access::Allow, Access::Deny][round % 2],
            };
            let exceptions = acl.exceptions(&table, of);
            for client in &clients {
                let is_on = |name: &str| of(name).iter().any(|p| p.contains(*client));
                let rule = acl.deciding(*client, &table.place(*client), is_on);
                let said = rule.map_or(acl.default, |rule| rule.access);
                let is_exception = said != acl.default;
                assert_eq!(has(&exceptions, *client), is_exception, "{client} {acl:?}");
                assert_eq!(exceptions.access(*client), said, "{client} {acl:?}");
            }
        }
    }

    /// The first and the last address of a prefix, and those beside it.
    fn edges(prefix: Prefix, clients: &mut Vec<IpAddr>) {
        let (first, width) = match prefix.addr() {
            IpAddr::V4(addr) => (u128::from(addr.to_bits()), 32),
            IpAddr::V6(addr) => (addr.to_bits(), 128),
        };
        let last = first | ones(width - u32::from(prefix.bits()));
        for number in [first.saturating_sub(1), first, last, last.saturating_add(1)] {
            clients.push(match width {
                32 => IpAddr::from((number.min(ones(32)) as u32).to_be_bytes()),
                _ => IpAddr::from(number.to_be_bytes()),
            });
        }
        // IPv6 that looks like IPv4 is no client that the kernel lets in.
        clients.retain(|client| client.to_canonical() == *client);
    }

    #[test]
    fn what_is_no_rule_is_none() {
        for text in [
            "",
            "deny",
            "permit 192.0.2.0/24",
            "deny  192.0.2.0/24",
            "deny 192.0.2.1/24",
            "deny country:DEU",
            "deny continent:XX",
            "deny asn:64496",
            "deny list:",
            "Deny 192.0.2.0/24",
        ] {
            assert_eq!(text.parse::<Rule>(), Err(NoRule), "{text}");
        }
    }

    #[test]
    fn neighbours_are_joined() {
        let acl = Acl {
            rules: [
                "deny 192.0.2.0/25",
                "deny 192.0.2.128/25",
                "allow ::/0",
                "deny 0.0.0.0/0",
            ]
            .map(|text| text.parse().unwrap())
            .to_vec(),
            default: Access::Allow,
        };
        let exceptions = acl.exceptions(&GeoTable::default(), |_| &[]);
        assert_eq!(exceptions.v4, [(0, 0)]);
        assert!(exceptions.v6.is_empty());
    }
}
