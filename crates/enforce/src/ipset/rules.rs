//! Our chains in iptables' table `raw`, as `iptables-restore --noflush` takes
//! them: one transaction a family, which makes ours anew and leaves everybody
//! else's. One jump in PREROUTING leads here. What we let pass returns there,
//! so that nobody's rules behind the jump are skipped.

use std::fmt::Write;

use weir_core::{PortSet, Reason, address_class::Cover};

use super::sets::Bans;
use crate::firewall::Counted;

/// What the chains ask, where there are several interfaces.
const IN: &str = ".in";
/// Where bans of all ports end that no allowed address is under: with as few
/// questions as can be.
const SURE: &str = ".sure";
/// Where packets end whose source nobody has.
const INVALID: &str = ".none";

/// The sets, scopes and settings that the chains are made from.
pub(super) struct Asked<'a> {
    pub(super) base: &'a str,
    pub(super) interfaces: &'a [String],
    /// The sets of bans of this family.
    pub(super) bans: &'a [Bans],
    /// Scopes by their numbers, from 1 on.
    pub(super) scopes: &'a [PortSet],
    pub(super) lists: &'a [Cover],
    /// The generation whose sets those lists are in; see [`list_set`].
    pub(super) list_generation: u8,
    /// Counted by the chains that were there before these.
    pub(super) counted: &'a Counted,
    pub(super) observe: bool,
    /// Table and chain that were not there before us.
    pub(super) made: [bool; 2],
}

/// Comments that say to a later daemon, or to `weir detach`, that the table
/// `raw`, or its chain PREROUTING, came with us.
const MADE: [&str; 2] = ["made-table", "made-chain"];
/// They are in a chain that no packet sees, with what earlier chains counted.
const MARKS: &str = ".made";

/// Whether the table `raw` and its chain PREROUTING came with us.
pub(super) fn made(saved: &str, base: &str) -> [bool; 2] {
    MADE.map(|mark| {
        let rule = format!("-A {base}{MARKS} -m comment --comment {mark} -j RETURN");
        saved.lines().any(|line| line == rule)
    })
}

/// The table and the chain that lead to ours.
pub(super) const PLACE: [&str; 2] = ["raw", "PREROUTING"];

/// Programs by family.
pub(super) const IPTABLES: [&str; 2] = ["iptables", "ip6tables"];
pub(super) const RESTORE: [&str; 2] = ["iptables-restore", "ip6tables-restore"];
pub(super) const SAVE: [&str; 2] = ["iptables-save", "ip6tables-save"];

pub(super) fn allow_set(base: &str, family: usize) -> String {
    format!("{base}.allow{}", [4, 6][family])
}

/// The set of a list. A list's place among the others changes with the
/// configuration, so new sets are filled under another generation's number, and
/// the rules change over to all of them at once.
pub(super) fn list_set(base: &str, generation: u8, bit: usize, family: usize) -> String {
    format!("{base}.list{generation}-{bit}-{}", [4, 6][family])
}

/// The counter of a list, in a rule's comment.
pub(super) fn list_counter(name: &str) -> String {
    format!("list:{name}")
}

pub(super) fn is_list_counter(name: &str) -> bool {
    name.starts_with("list:")
}

/// Our sets that the saved rules ask.
pub(super) fn asked_sets(saved: &str, base: &str) -> Vec<String> {
    let asked = saved.lines().flat_map(|rule| {
        let parts = rule.split(" --match-set ").skip(1);
        parts.filter_map(|part| part.split(' ').next())
    });
    let asked = asked.collect::<Vec<_>>().join("\n");
    let ours = super::sets::ours(&asked, base).into_iter();
    ours.map(str::to_owned).collect()
}

/// The interfaces whose packets the saved rules hand to our chains.
pub(super) fn interfaces(saved: &str, base: &str) -> Vec<String> {
    let begin = format!("-A {base} ");
    let ours = saved.lines().filter_map(|line| line.strip_prefix(&begin));
    let named = ours.filter_map(|rule| {
        let mut words = rule.split(' ').skip_while(|word| *word != "-i");
        words.nth(1).map(str::to_owned)
    });
    named.collect()
}

/// The chains of one family.
pub(super) fn write(asked: &Asked<'_>, family: usize) -> String {
    let base = asked.base;
    let mut chains = ["", MARKS, IN, SURE, INVALID, ".all", ".port"]
        .map(str::to_owned)
        .to_vec();
    let mut rules = String::new();
    let mut rule = |chain: &str, what: &str| {
        let _ = writeln!(rules, "-A {base}{chain} {what}");
    };
    // Each chain on the way costs a packet more than each interface.
    let asks = match asked.interfaces {
        [only] => {
            rule("", &format!("! -i {only} -j RETURN"));
            ""
        }
        several => {
            for interface in several {
                rule("", &format!("-i {interface} -g {base}{IN}"));
            }
            IN
        }
    };
    for (made, mark) in asked.made.into_iter().zip(MADE) {
        if made {
            rule(MARKS, &format!("-m comment --comment {mark} -j RETURN"));
        }
    }
    let mut counted: Vec<_> = asked.counted.iter().collect();
    counted.sort_unstable();
    for (counter, (packets, bytes)) in counted {
        let comment = format!("-m comment --comment weir:{counter}");
        rule(MARKS, &format!("-c {packets} {bytes} {comment} -j RETURN"));
    }
    let match_set = |set: &str| format!("-m set --match-set {set} src");
    rule(asks, &format!("-s {} -g {base}{INVALID}", NOBODYS[family]));
    for bans in asked.bans.iter().filter(|bans| bans.is_asked(0)) {
        let (set, end) = (match_set(&bans.name(base)), [SURE, ".all"]);
        rule(
            asks,
            &format!("{set} -g {base}{}", end[usize::from(bans.touched)]),
        );
    }
    for (number, scope) in (1..).zip(asked.scopes) {
        let chain = format!(".s{number}");
        let sets: Vec<_> = asked.bans.iter().filter(|b| b.is_asked(number)).collect();
        if sets.is_empty() {
            continue;
        }
        for bans in sets {
            let set = match_set(&bans.name(base));
            rule(asks, &format!("{set} -j {base}{chain}"));
        }
        for ports in ports(scope) {
            rule(&chain, &format!("{ports} -g {base}.port"));
        }
        chains.push(chain);
    }
    for (bit, list) in asked.lists.iter().enumerate() {
        if !list.direction.inbound() {
            continue;
        }
        let (chain, set) = (
            format!(".l{bit}"),
            match_set(&list_set(base, asked.list_generation, bit, family)),
        );
        let ports = match list.scope.is_all() {
            true => vec![String::new()],
            false => ports(&list.scope),
        };
        for ports in ports {
            rule(asks, &format!("{set} {ports} -g {base}{chain}"));
        }
        chains.push(chain);
    }
    let mut ends = vec![
        (".all".to_owned(), Reason::BannedAll.name().to_owned()),
        (".port".to_owned(), Reason::BannedScope.name().to_owned()),
    ];
    for (bit, list) in asked.lists.iter().enumerate() {
        if list.direction.inbound() {
            ends.push((format!(".l{bit}"), list_counter(&list.name)));
        }
    }
    let count = |reason: &str| format!("-m comment --comment weir:{reason}");
    let end = |counter: &str| match asked.observe {
        true => format!("{} -j RETURN", count(Reason::Observed.name())),
        false => format!("{} -j DROP", count(counter)),
    };
    for (chain, counter) in &ends {
        let essential = count(Reason::Essential.name());
        for what in ESSENTIAL[family] {
            rule(chain, &format!("{what} {essential} -j RETURN"));
        }
        let allow = match_set(&allow_set(base, family));
        let allowed = count(Reason::Allowed.name());
        rule(chain, &format!("{allow} {allowed} -j RETURN"));
        rule(chain, &end(counter));
    }
    for what in WITHOUT_ADDRESS[family] {
        rule(INVALID, &format!("{what} -j RETURN"));
    }
    let allow = match_set(&allow_set(base, family));
    let allowed = count(Reason::Allowed.name());
    rule(INVALID, &format!("{allow} {allowed} -j RETURN"));
    rule(INVALID, &end(Reason::InvalidSource.name()));
    for what in PERHAPS_ESSENTIAL[family] {
        rule(SURE, &format!("{what} -g {base}.all"));
    }
    rule(SURE, &end(Reason::BannedAll.name()));
    let mut text = String::from("*raw\n");
    for chain in &chains {
        let _ = writeln!(text, ":{base}{chain} - [0:0]");
    }
    text + &rules + "COMMIT\n"
}

/// DHCP; neighbour discovery from this link (RFC 4861 7.1).
const ESSENTIAL: [&[&str]; 2] = [
    &[
        "-p udp -m udp --sport 67 --dport 68",
        "-p udp -m udp --sport 68 --dport 67",
    ],
    &[
        "-p udp -m udp --sport 547 --dport 546",
        "-p udp -m udp --sport 546 --dport 547",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 133/0 -m hl --hl-eq 255",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 134/0 -m hl --hl-eq 255",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 135/0 -m hl --hl-eq 255",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 136/0 -m hl --hl-eq 255",
        "-p ipv6-icmp -m icmp6 --icmpv6-type 137/0 -m hl --hl-eq 255",
    ],
];

/// Sources that no host has: [`weir_core::verdict::is_invalid_source`].
const NOBODYS: [&str; 2] = ["0.0.0.0/8", "::/24"];

/// Matches of packets that pass from there: those that a host sends before it has an
/// address (DHCP, IGMP, solicitations, MLD), and ::1, which the IP stack refuses from
/// elsewhere.
const WITHOUT_ADDRESS: [&[&str]; 2] = [
    &[
        "-s 0.0.0.0/32 -p udp -m udp --sport 68 --dport 67",
        "-s 0.0.0.0/32 -p 2",
    ],
    &[
        "-s ::1/128",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 133/0 -m hl --hl-eq 255",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 135/0 -m hl --hl-eq 255",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 130 -m hl --hl-eq 1",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 131 -m hl --hl-eq 1",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 132 -m hl --hl-eq 1",
        "-s ::/128 -p ipv6-icmp -m icmp6 --icmpv6-type 143 -m hl --hl-eq 1",
    ],
];

/// What may be one of those, in fewer questions.
const PERHAPS_ESSENTIAL: [&[&str]; 2] = [
    &["-p udp -m udp --dport 67:68"],
    &["-p udp -m udp --dport 546:547", "-p ipv6-icmp"],
];

/// Packets to these ports, a match each: `multiport` reads all protocols that
/// have some.
fn ports(scope: &PortSet) -> Vec<String> {
    let of = |protocol: u8| match protocol {
        0 => vec![6u8, 17, 33, 132, 136],
        protocol => vec![protocol],
    };
    scope
        .ranges()
        .iter()
        .flat_map(|range| {
            of(range.protocol.number()).into_iter().map(|protocol| {
                let ports = match (range.low, range.high) {
                    (low, high) if low == high => low.to_string(),
                    (low, high) => format!("{low}:{high}"),
                };
                format!("-p {protocol} -m multiport --dports {ports}")
            })
        })
        .collect()
}

/// The lines that take our chains away; `saved`: what the table is now.
pub(super) fn remove(saved: &str, base: &str) -> Option<String> {
    let chains: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
        .filter(|chain| is_ours(chain, base))
        .collect();
    if chains.is_empty() {
        return None;
    }
    let mut text = String::from("*raw\n");
    let jump = jump(base);
    for _ in saved.lines().filter(|line| *line == format!("-A {jump}")) {
        let _ = writeln!(text, "-D {jump}");
    }
    for verb in ["-F", "-X"] {
        for chain in &chains {
            let _ = writeln!(text, "{verb} {chain}");
        }
    }
    Some(text + "COMMIT\n")
}

/// The rule that leads to our chains.
pub(super) fn jump(base: &str) -> String {
    format!("PREROUTING -j {base}")
}

fn is_ours(chain: &str, base: &str) -> bool {
    let known = |rest: &str| {
        matches!(rest, "" | MARKS | IN | SURE | INVALID | ".all" | ".port")
            || [".s", ".l"].iter().any(|begin| {
                let number = rest.strip_prefix(begin).unwrap_or("x");
                number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty()
            })
    };
    chain.strip_prefix(base).is_some_and(known)
}

/// Our rules and our jump in what a family's table has: is all there?
pub(super) fn is_whole(saved: &str, base: &str, written: &str) -> bool {
    let rules = |text: &str| {
        let ours = |line: &&str| {
            let chain = line.strip_prefix("-A ").and_then(|l| l.split(' ').next());
            chain.is_some_and(|chain| is_ours(chain, base))
        };
        text.lines().filter(ours).count()
    };
    let jump = format!("-A {}", jump(base));
    rules(saved) == rules(written) && saved.lines().any(|line| line == jump)
}

/// Reads `iptables-save -c`: counter, packets, bytes.
pub(super) fn counts<'a>(
    saved: &'a str,
    base: &'a str,
) -> impl Iterator<Item = (&'a str, u64, u64)> {
    saved.lines().filter_map(move |line| {
        let (numbers, rule) = line.strip_prefix('[')?.split_once("] -A ")?;
        let (chain, rest) = rule.split_once(' ')?;
        if !is_ours(chain, base) {
            return None;
        }
        let (_, comment) = rest.split_once("--comment ")?;
        let comment = comment.split(' ').next()?.trim_matches('"');
        let (packets, bytes) = numbers.split_once(':')?;
        Some((
            comment.strip_prefix("weir:")?,
            packets.parse().ok()?,
            bytes.parse().ok()?,
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_chains_are_ours() {
        let base = "weir_a";
        for ours in ["weir_a", "weir_a.in", "weir_a.s12", "weir_a.l0"] {
            assert!(is_ours(ours, base), "{ours}");
        }
        for other in [
            "weir_ab",
            "weir_a-b",
            "weir_a-b.in",
            "PREROUTING",
            "weir_a.s",
        ] {
            assert!(!is_ours(other, base), "{other}");
        }
    }

    #[test]
    fn rules_say_which_sets_they_ask() {
        let saved = ":weir_a - [0:0]\n\
                     -A weir_a -m set --match-set weir_a.04h0-0 src -g weir_a.sure\n\
                     -A weir_b -m set --match-set weir_b.04h0-0 src -g weir_b.sure\n\
                     -A OUTPUT -m set ! --match-set weir_a.list1-0-4 dst -m set --match-set theirs src\n";
        assert_eq!(
            asked_sets(saved, "weir_a"),
            ["weir_a.04h0-0", "weir_a.list1-0-4"]
        );
        assert!(asked_sets("", "weir_a").is_empty());
    }

    #[test]
    fn counters_are_read_from_our_chains() {
        let saved = "[7:70] -A weir_a.all -m comment --comment \"weir:banned-all\" -j DROP\n\
                     [1:2] -A weir_b.all -m comment --comment weir:banned-all -j DROP\n\
                     [3:4] -A weir_a.l0 -m comment --comment weir:list:drop -j DROP\n\
                     [3:4] -A PREROUTING -j weir_a\n:weir_a - [0:0]\n";
        let counts: Vec<_> = counts(saved, "weir_a").collect();
        assert_eq!(counts, [("banned-all", 7, 70), ("list:drop", 3, 4)]);
    }
}
