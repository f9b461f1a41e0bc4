//! The chains that packets end in: what saves a denied packet, the drops with
//! their counters, the answers, and which ports a scope means. None of them
//! changes while the table is there, but for scopes that come: some have counters
//! in their rules.

use std::collections::BTreeMap;

use weir_bpf::abi;
use weir_core::{PortSet, Reason};

use super::{
    names::{self, ABOUT_SCOPE, BackendHome},
    rule::{From, KEY, Meta, RejectReply, Rule, SCRATCH, Verdict},
    table::{ADDRESS, Table},
    wire::Batch,
};

/// NFPROTO_IPV4, NFPROTO_IPV6.
pub(super) const FAMILY: [u8; 2] = [2, 10];
/// TCP, UDP, DCCP, SCTP, UDPLITE: as bpf/lib/parse.h.
pub(super) const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// Where the addresses lie in the IP header: source, destination.
pub(super) const SOURCE: [u32; 2] = [12, 8];
pub(super) const DESTINATION: [u32; 2] = [16, 24];
/// Answers a second, and at once: what the packet path gives each CPU, for all.
const ANSWERS: u64 = abi::REJECT_RATE as u64;
const ANSWERS_AT_ONCE: u32 = abi::REJECT_BURST;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// ICMP and ICMPv6 with what asks for an echo there.
const ECHO: [(u8, u8); 2] = [(1, 8), (58, 128)];
const ICMPV6: u8 = 58;
const IGMP: u8 = 2;
/// Of ICMPv6, what a host sends before it has an address, by the hop limit that it
/// has: router and neighbour solicitations; MLD. As bpf/lib/parse.h.
const WITHOUT_ADDRESS: [(u8, &[u8]); 2] = [(255, &[133, 135]), (1, &[130, 131, 132, 143])];

/// Where bans of all ports end whose subject has no allowed address.
pub(super) const SURE: [&str; 2] = ["banned4", "banned6"];
/// The chain of packets that no ban covers.
pub(super) const PASS: &str = "pass";
/// Where packets go whose source nobody has, by family; those of others return.
pub(super) const INVALID: [&str; 2] = ["invalid4", "invalid6"];
/// The chain of bans that reject.
pub(super) const REJECTED: &str = "rejected";
const ESSENTIAL: &str = "essential-in";
const SILENT: &str = "rejected-silent";

/// The chains of a table that end in a verdict: who only observes drops nothing.
#[derive(Clone)]
pub(super) struct VerdictChains {
    pub(super) table: Table,
    pub(super) observe: bool,
    /// Does the kernel have the answers?
    pub(super) answers: bool,
    /// The sets of the allow list, by the family and length of their prefixes.
    pub(super) allow: BTreeMap<BackendHome, String>,
}

impl VerdictChains {
    /// Makes all but those of scopes and classes.
    pub(super) fn make(&self, to: &mut Batch) {
        let table = &self.table;
        table.chain(to, ESSENTIAL);
        self.essential(to, ESSENTIAL);
        table.chain(to, PASS);
        self.count_and(to, PASS, Reason::Pass, Verdict::Accept);
        for chain in ["saved-in", "saved-out"].into_iter().chain(INVALID) {
            table.chain(to, chain);
        }
        self.ask_allow(to);
        for (chain, family) in SURE.into_iter().zip([0, 1]) {
            table.chain(to, chain);
            self.sure(to, chain, family);
        }
        for reason in [Reason::BannedAll, Reason::BannedScope] {
            table.chain(to, reason.name());
            self.end(to, reason.name(), "saved-in", &[reason.name()]);
        }
        if self.answers {
            table.chain(to, SILENT);
            table.rule(to, SILENT, |rule| {
                rule.count(Reason::RejectedSilent.name())
                    .verdict(Verdict::Drop);
            });
            table.chain(to, REJECTED);
            self.rejected(to);
        }
    }

    /// The chains that ask the allow list, in place of what they were.
    pub(super) fn ask_allow(&self, to: &mut Batch) {
        for chain in ["saved-in", "saved-out"].into_iter().chain(INVALID) {
            self.table.empty_chain(to, chain);
        }
        self.saved(to, "saved-in", SOURCE);
        self.saved(to, "saved-out", DESTINATION);
        self.invalid4(to);
        self.invalid6(to);
    }

    /// What the host would lose its network without.
    fn essential(&self, to: &mut Batch, chain: &str) {
        let table = &self.table;
        let udp = |rule: Rule<'_>, from: u16, to: u16| {
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            rule.meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[UDP])
                .load(From::Transport, 0, 4, SCRATCH)
                .equals(SCRATCH, &ports)
                .count(Reason::Essential.name())
                .verdict(Verdict::Accept);
        };
        for (from, there) in [(67, 68), (68, 67)] {
            table.rule(to, chain, |rule| {
                let whole = rule
                    .meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &FAMILY[..1])
                    .load(From::Network, 6, 2, SCRATCH)
                    .mask(SCRATCH, &[0x3f, 0xff])
                    .equals(SCRATCH, &[0, 0]);
                udp(whole, from, there);
            });
        }
        for (from, there) in [(547, 546), (546, 547)] {
            table.rule(to, chain, |rule| udp(whole6(rule), from, there));
        }
        table.rule(to, chain, |rule| {
            neighbour_discovery(rule)
                .count(Reason::Essential.name())
                .verdict(Verdict::Accept);
        });
    }

    /// What saves a packet that somebody denies: that, and the allow list.
    fn saved(&self, to: &mut Batch, chain: &str, at: [u32; 2]) {
        let table = &self.table;
        table.rule(to, chain, |rule| rule.verdict(Verdict::Jump(ESSENTIAL)));
        for (place, set) in &self.allow {
            table.rule(to, chain, |rule| {
                let rule = rule
                    .meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &[FAMILY[place.0]]);
                masked_address(rule, *place, at)
                    .in_set(set, KEY)
                    .count(Reason::Allowed.name())
                    .verdict(Verdict::Accept);
            });
        }
    }

    /// A drop with as few questions as can be, and only such as the kernel
    /// answers without a call: two bytes at a time where the ports would be, 64
    /// to 71 for DHCP, 546 and 547 for DHCPv6, and the hop limit that neighbour
    /// discovery has.
    fn sure(&self, to: &mut Batch, chain: &str, family: usize) {
        let table = &self.table;
        let (mask, ports) = [
            ([0xff, 0xf8, 0xff, 0xf8], [0, 64, 0, 64]),
            ([0xff, 0xfe, 0xff, 0xfe], [2, 34, 2, 34]),
        ][family];
        table.rule(to, chain, |rule| {
            rule.load(From::Transport, 0, 4, SCRATCH)
                .mask(SCRATCH, &mask)
                .equals(SCRATCH, &ports)
                .verdict(Verdict::Jump(ESSENTIAL));
        });
        if family == 1 {
            table.rule(to, chain, |rule| {
                rule.load(From::Network, 7, 1, SCRATCH)
                    .equals(SCRATCH, &[255])
                    .verdict(Verdict::Jump(ESSENTIAL));
            });
        }
        let (reason, verdict) = match self.observe {
            true => (Reason::Observed, Verdict::Accept),
            false => (Reason::BannedAll, Verdict::Drop),
        };
        self.count_and(to, chain, reason, verdict);
    }

    /// Sources in 0.0.0.0/8 ([`weir_core::verdict::is_invalid_source`]), but for
    /// DHCP and IGMP of a host that has no address yet.
    fn invalid4(&self, to: &mut Batch) {
        let (table, chain) = (&self.table, INVALID[0]);
        fn without_address(rule: Rule<'_>) -> Rule<'_> {
            rule.load(From::Network, SOURCE[0], 4, SCRATCH)
                .equals(SCRATCH, &[0; 4])
        }
        table.rule(to, chain, |rule| {
            let ports = [68u16.to_be_bytes(), 67u16.to_be_bytes()].concat();
            without_address(rule)
                .load(From::Network, 6, 2, SCRATCH)
                .mask(SCRATCH, &[0x3f, 0xff])
                .equals(SCRATCH, &[0, 0])
                .meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[UDP])
                .load(From::Transport, 0, 4, SCRATCH)
                .equals(SCRATCH, &ports)
                .verdict(Verdict::Goto(PASS));
        });
        table.rule(to, chain, |rule| {
            without_address(rule)
                .meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[IGMP])
                .verdict(Verdict::Goto(PASS));
        });
        self.invalid(to, 0);
    }

    /// Sources in ::/24, but for solicitations and MLD of a host that has no
    /// address yet, and ::1, which the IP stack refuses from elsewhere.
    fn invalid6(&self, to: &mut Batch) {
        let (table, chain) = (&self.table, INVALID[1]);
        table.rule(to, chain, |rule| {
            rule.load(From::Network, SOURCE[1] + 2, 1, SCRATCH)
                .differs(SCRATCH, &[0])
                .verdict(Verdict::Return);
        });
        let loopback = std::net::Ipv6Addr::LOCALHOST.octets();
        table.rule(to, chain, |rule| {
            rule.load(From::Network, SOURCE[1], 16, KEY)
                .equals(KEY, &loopback)
                .verdict(Verdict::Goto(PASS));
        });
        for (hop_limit, types) in WITHOUT_ADDRESS {
            for kind in types {
                table.rule(to, chain, |rule| {
                    let rule = rule
                        .load(From::Network, SOURCE[1], 16, KEY)
                        .equals(KEY, &[0; 16])
                        .load(From::Network, 7, 1, SCRATCH)
                        .equals(SCRATCH, &[hop_limit])
                        .has_fragment_header(SCRATCH)
                        .equals(SCRATCH, &[0])
                        .meta(Meta::Protocol, SCRATCH)
                        .equals(SCRATCH, &[ICMPV6])
                        .load(From::Transport, 0, 1, SCRATCH)
                        .equals(SCRATCH, &[*kind]);
                    match hop_limit {
                        255 => rule
                            .load(From::Transport, 1, 1, SCRATCH)
                            .equals(SCRATCH, &[0]),
                        _ => rule,
                    }
                    .verdict(Verdict::Goto(PASS));
                });
            }
        }
        self.invalid(to, 1);
    }

    /// The end of those: only the allow list saves them.
    fn invalid(&self, to: &mut Batch, family: usize) {
        let of_family = self.allow.iter().filter(|(place, _)| place.0 == family);
        for (place, set) in of_family {
            self.table.rule(to, INVALID[family], |rule| {
                masked_address(rule, *place, SOURCE)
                    .in_set(set, KEY)
                    .count(Reason::Allowed.name())
                    .verdict(Verdict::Accept);
            });
        }
        self.drop(to, INVALID[family], &[Reason::InvalidSource.name()]);
    }

    /// For what most packets leave by.
    fn count_and(&self, to: &mut Batch, chain: &str, reason: Reason, verdict: Verdict<'_>) {
        let comment = names::counts(reason);
        self.table.rule_about(to, chain, &comment, |rule| {
            rule.count_here().verdict(verdict);
        });
    }

    /// The end of a packet that is denied, unless something saves it. The first
    /// of `counters` is the reason's, which nobody counts who only observes.
    pub(super) fn end(&self, to: &mut Batch, chain: &str, saved: &str, counters: &[&str]) {
        self.table
            .rule(to, chain, |rule| rule.verdict(Verdict::Jump(saved)));
        self.drop(to, chain, counters);
    }

    fn drop(&self, to: &mut Batch, chain: &str, counters: &[&str]) {
        self.table.rule(to, chain, |mut rule| {
            for counter in &counters[1..] {
                rule = rule.count(counter);
            }
            if self.observe {
                rule.count(Reason::Observed.name()).verdict(Verdict::Accept);
            } else {
                rule.count(counters[0]).verdict(Verdict::Drop);
            }
        });
    }

    /// Says no aloud. Never to a reset, of ICMP only to echo requests, not to
    /// fragments nor to what was sent to many; the kernel's own answers keep
    /// silent about wrong checksums as well.
    fn rejected(&self, to: &mut Batch) {
        let table = &self.table;
        let mut rule = |fill: &dyn Fn(Rule<'_>)| table.rule(to, REJECTED, fill);
        rule(&|rule| rule.verdict(Verdict::Jump("saved-in")));
        if self.observe {
            return rule(&|rule| {
                rule.count(Reason::Observed.name()).verdict(Verdict::Accept);
            });
        }
        let silent = Verdict::Goto(SILENT);
        rule(&|rule| {
            rule.meta(Meta::PacketType, SCRATCH)
                .differs(SCRATCH, &[0])
                .verdict(silent);
        });
        for (family, many) in [[0xe0, 0xff], [0xff, 0xff]].into_iter().enumerate() {
            rule(&|rule| {
                rule.meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &[FAMILY[family]])
                    .load(From::Network, DESTINATION[family], 1, SCRATCH)
                    .within(SCRATCH, &many[..1], &many[1..])
                    .verdict(silent);
            });
        }
        rule(&|rule| {
            rule.meta(Meta::Family, SCRATCH)
                .equals(SCRATCH, &FAMILY[..1])
                .load(From::Network, 6, 2, SCRATCH)
                .mask(SCRATCH, &[0x3f, 0xff])
                .differs(SCRATCH, &[0, 0])
                .verdict(silent);
        });
        rule(&|rule| {
            rule.meta(Meta::Family, SCRATCH)
                .equals(SCRATCH, &FAMILY[1..])
                .has_fragment_header(SCRATCH)
                .equals(SCRATCH, &[1])
                .verdict(silent);
        });
        rule(&|rule| {
            rule.meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[TCP])
                .load(From::Transport, 13, 1, SCRATCH)
                .mask(SCRATCH, &[0x04])
                .differs(SCRATCH, &[0])
                .verdict(silent);
        });
        for (protocol, echo) in ECHO {
            rule(&|rule| {
                rule.meta(Meta::Protocol, SCRATCH)
                    .equals(SCRATCH, &[protocol])
                    .load(From::Transport, 0, 1, SCRATCH)
                    .differs(SCRATCH, &[echo])
                    .verdict(silent);
            });
        }
        rule(&|rule| rule.above(ANSWERS, ANSWERS_AT_ONCE).verdict(silent));
        rule(&|rule| {
            rule.meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[TCP])
                .count(Reason::Rejected.name())
                .reject(RejectReply::Reset);
        });
        rule(&|rule| {
            rule.count(Reason::Rejected.name())
                .reject(RejectReply::Prohibited)
        });
    }

    /// The chain of a scope, for bans that drop; its comments tell the scope.
    pub(super) fn scope(&self, to: &mut Batch, scope: &PortSet, number: u32) {
        let chain = names::scope_chain(number);
        self.table.chain(to, &chain);
        let end = Reason::BannedScope.name();
        self.ports(to, &chain, scope, end, ABOUT_SCOPE);
    }

    /// The chain of a scope, for bans that reject.
    pub(super) fn refused(&self, to: &mut Batch, scope: &PortSet, number: u32) {
        let chain = names::refused_chain(number);
        self.table.chain(to, &chain);
        self.ports(to, &chain, scope, REJECTED, "");
    }

    /// Sends packets to these ports on to `target`, and those whose ports cannot
    /// be known; returns with the others. `about` is in front of each comment.
    pub(super) fn ports(
        &self,
        to: &mut Batch,
        chain: &str,
        scope: &PortSet,
        target: &str,
        about: &str,
    ) {
        let table = &self.table;
        for range in scope.ranges() {
            let comment = match about {
                "" => String::new(),
                about => format!("{about} {range}"),
            };
            table.rule_about(to, chain, &comment, |rule| {
                let rule = rule.meta(Meta::Protocol, KEY);
                let rule = match range.protocol.number() {
                    0 => rule.in_set("with-ports", KEY),
                    number => rule.equals(KEY, &[number]),
                };
                let (low, high) = (range.low.to_be_bytes(), range.high.to_be_bytes());
                let rule = rule.load(From::Transport, 2, 2, SCRATCH);
                match low == high {
                    true => rule.equals(SCRATCH, &low),
                    false => rule.within(SCRATCH, &low, &high),
                }
                .verdict(Verdict::Goto(target));
            });
        }
        table.rule(to, chain, |rule| {
            rule.meta(Meta::Protocol, KEY)
                .in_set("with-ports", KEY)
                .load(From::Transport, 0, 2, SCRATCH)
                .verdict(Verdict::Return);
        });
        table.rule(to, chain, |rule| {
            rule.meta(Meta::Protocol, KEY)
                .outside("with-ports", KEY)
                .verdict(Verdict::Return);
        });
        for family in [0, 1] {
            table.rule(to, chain, |rule| {
                is_later_fragment(rule, family).verdict(Verdict::Return);
            });
        }
        table.rule(to, chain, |rule| rule.verdict(Verdict::Goto(target)));
    }
}

/// Loads an address, by family at these offsets, without what is behind the prefix
/// length.
pub(super) fn masked_address(
    rule: Rule<'_>,
    (family, length): BackendHome,
    at: [u32; 2],
) -> Rule<'_> {
    let address = ADDRESS[family];
    let rule = rule.load(From::Network, at[family], address, KEY);
    if u32::from(length) == address * 8 {
        return rule;
    }
    let mask = u128::MAX
        .checked_shl(128 - u32::from(length))
        .unwrap_or(0)
        .to_be_bytes();
    rule.mask(KEY, &mask[..address as usize])
}

/// Goes on with fragments that are not the first of their packet.
pub(super) fn is_later_fragment(rule: Rule<'_>, family: usize) -> Rule<'_> {
    let rule = rule
        .meta(Meta::Family, SCRATCH)
        .equals(SCRATCH, &[FAMILY[family]]);
    let (rule, mask) = match family {
        0 => (rule.load(From::Network, 6, 2, SCRATCH), [0x1f, 0xff]),
        _ => (rule.fragment(2, 2, SCRATCH), [0xff, 0xf8]),
    };
    rule.mask(SCRATCH, &mask).differs(SCRATCH, &[0, 0])
}

/// An IPv6 packet that is no fragment.
fn whole6(rule: Rule<'_>) -> Rule<'_> {
    rule.meta(Meta::Family, SCRATCH)
        .equals(SCRATCH, &FAMILY[1..])
        .has_fragment_header(SCRATCH)
        .equals(SCRATCH, &[0])
}

/// Neighbour discovery (RFC 4861 7.1: hop limit 255, code 0), whole (RFC 6980).
pub(super) fn neighbour_discovery(rule: Rule<'_>) -> Rule<'_> {
    whole6(rule)
        .meta(Meta::Protocol, SCRATCH)
        .equals(SCRATCH, &[ICMPV6])
        .load(From::Network, 7, 1, SCRATCH)
        .equals(SCRATCH, &[255])
        .load(From::Transport, 0, 1, SCRATCH)
        .within(SCRATCH, &[133], &[137])
        .load(From::Transport, 1, 1, SCRATCH)
        .equals(SCRATCH, &[0])
}
