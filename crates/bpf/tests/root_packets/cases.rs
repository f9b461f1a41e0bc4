//! Packets by name, and what becomes of each.

use std::net::Ipv6Addr;

use weir_core::Reason;
use weir_testkit::packet::{Packet, proto};

use crate::path::{HOST4, HOST6};

pub(crate) fn from(source: &str) -> Packet {
    Packet::eth().ip(
        source.parse().unwrap(),
        if source.contains(':') {
            HOST6.into()
        } else {
            HOST4.into()
        },
    )
}

/// Priority tags, which name no VLAN.
pub(crate) fn tagged(count: usize) -> Packet {
    (0..count).fold(Packet::eth(), |p, _| p.vlan(0))
}

pub(crate) fn cases() -> Vec<(&'static str, Packet, Reason)> {
    use Reason::*;
    vec![
        ("innocent", from("192.0.2.1").tcp(1234, 22), Pass),
        ("innocent, IPv6", from("2001:db8::1").tcp(1234, 22), Pass),
        (
            "not IP",
            Packet::eth().ethertype(0x0806).payload_len(28),
            NotIp,
        ),
        ("banned", from("192.0.2.7").tcp(1234, 22), BannedAll),
        (
            "banned, any port",
            from("192.0.2.7").udp(1234, 9),
            BannedAll,
        ),
        ("banned, no ports", from("192.0.2.7").icmp(8, 0), BannedAll),
        ("banned net", from("198.51.100.200").tcp(1, 2), BannedAll),
        (
            "beside the banned net",
            from("198.51.102.200").tcp(1, 2),
            Pass,
        ),
        ("banned /64", from("2001:db8:1::ffff").tcp(1, 2), BannedAll),
        (
            "beside the banned /64",
            from("2001:db8:1:1::ffff").tcp(1, 2),
            Pass,
        ),
        ("banned /128", from("2001:db8:2::7").tcp(1, 2), BannedAll),
        (
            "beside the banned /128",
            from("2001:db8:2::6").tcp(1, 2),
            Pass,
        ),
        (
            "scope, port in it",
            from("192.0.2.8").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, port beside",
            from("192.0.2.8").tcp(1234, 80),
            OtherPort,
        ),
        (
            "scope, other protocol",
            from("192.0.2.8").udp(1234, 22),
            OtherPort,
        ),
        (
            "scope, range",
            from("192.0.2.8").udp(1234, 6010),
            BannedScope,
        ),
        (
            "scope, behind the range",
            from("192.0.2.8").udp(1234, 6011),
            OtherPort,
        ),
        (
            "scope, any protocol",
            from("192.0.2.8").sctp(1234, 53),
            BannedScope,
        ),
        (
            "scope, IPv6 /64",
            from("2001:db8:3::1").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, IPv6 /128",
            from("2001:db8:2::8").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, IPv6 port beside",
            from("2001:db8:2::8").tcp(1234, 23),
            OtherPort,
        ),
        ("scope, no ports", from("192.0.2.8").icmp(8, 0), OtherPort),
        (
            "scope, source port does not count",
            from("192.0.2.8").tcp(22, 1234),
            OtherPort,
        ),
        (
            "two jails, first port",
            from("192.0.2.9").tcp(1, 22),
            BannedScope,
        ),
        (
            "two jails, second port",
            from("192.0.2.9").tcp(1, 80),
            BannedScope,
        ),
        (
            "two jails, third port",
            from("192.0.2.9").tcp(1, 443),
            OtherPort,
        ),
        (
            "ban of net and host, net's port",
            from("2001:db8:3::9").tcp(1, 22),
            BannedScope,
        ),
        (
            "ban of net and host, host's port",
            from("2001:db8:3::9").tcp(1, 80),
            BannedScope,
        ),
        (
            "host all, net scoped",
            from("198.51.101.5").tcp(1, 81),
            BannedAll,
        ),
        ("allowed", from("192.0.2.10").tcp(1, 22), Allowed),
        (
            "allowed inside a banned net",
            from("198.51.100.65").tcp(1, 22),
            Allowed,
        ),
        (
            "allowed inside a banned /64",
            from("2001:db8:1:0:8::1").tcp(1, 22),
            Allowed,
        ),
        (
            "allowed, port beside the ban",
            from("2001:db8:2::a").tcp(1, 23),
            OtherPort,
        ),
        (
            "first fragment",
            from("192.0.2.8").fragment(0, true).tcp(1, 22),
            BannedScope,
        ),
        (
            "later fragment, all ports",
            from("192.0.2.7").fragment(8, false).payload_len(40),
            BannedAll,
        ),
        (
            "later fragment, scope",
            from("192.0.2.8")
                .fragment(8, true)
                .protocol(6)
                .payload_len(40),
            OtherPort,
        ),
        (
            "IPv6 later fragment, scope",
            from("2001:db8:2::8")
                .fragment(8, true)
                .protocol(6)
                .payload_len(40),
            OtherPort,
        ),
        (
            "IPv6 first fragment, scope",
            from("2001:db8:2::8").fragment(0, true).tcp(1, 22),
            BannedScope,
        ),
        (
            "first fragment without ports",
            from("192.0.2.8")
                .fragment(0, true)
                .protocol(6)
                .payload_len(2),
            BannedScope,
        ),
        (
            "options",
            from("192.0.2.8").options(&[1; 40]).tcp(1, 22),
            BannedScope,
        ),
        (
            "options, port beside",
            from("192.0.2.8").options(&[1; 40]).tcp(1, 23),
            OtherPort,
        ),
        (
            "ihl below 5",
            from("192.0.2.7").ihl(4).tcp(1, 22),
            Malformed,
        ),
        (
            "total length below the header",
            from("192.0.2.7").length(19).tcp(1, 22),
            Malformed,
        ),
        (
            "version 5",
            from("192.0.2.7").version(5).tcp(1, 22),
            Malformed,
        ),
        (
            "version 7",
            from("2001:db8:2::7").version(7).tcp(1, 22),
            Malformed,
        ),
        (
            "ports in the padding do not exist",
            from("192.0.2.8").length(20).tcp(1, 23),
            BannedScope,
        ),
        (
            "one tag",
            Packet::eth().vlan(5).ip4([192, 0, 2, 7], HOST4).tcp(1, 22),
            BannedAll,
        ),
        (
            "two tags",
            Packet::eth()
                .qinq(5)
                .vlan(6)
                .ip6("2001:db8:2::8".parse::<Ipv6Addr>().unwrap(), HOST6)
                .tcp(1, 22),
            BannedScope,
        ),
        (
            "three tags",
            Packet::eth()
                .qinq(5)
                .vlan(6)
                .vlan(7)
                .ip4([192, 0, 2, 7], HOST4)
                .tcp(1, 22),
            BannedAll,
        ),
        (
            "eight priority tags",
            tagged(8).ip4([192, 0, 2, 7], HOST4).tcp(1, 22),
            BannedAll,
        ),
        (
            "eight priority tags, innocent",
            tagged(8).ip4([192, 0, 2, 1], HOST4).tcp(1, 22),
            Pass,
        ),
        (
            "nine priority tags",
            tagged(9).ip4([192, 0, 2, 1], HOST4).tcp(1, 22),
            TooManyTags,
        ),
        (
            "from this network",
            from("0.1.2.3").udp(1, 22),
            InvalidSource,
        ),
        (
            "from this network, as DHCP",
            from("0.1.2.3").udp(68, 67),
            InvalidSource,
        ),
        (
            "without an address",
            from("0.0.0.0").udp(1, 22),
            InvalidSource,
        ),
        ("DHCP without an address", from("0.0.0.0").udp(68, 67), Pass),
        (
            "DHCP reply without an address",
            from("0.0.0.0").udp(67, 68),
            InvalidSource,
        ),
        (
            "IGMP without an address",
            from("0.0.0.0")
                .options(&[148, 4, 0, 0])
                .protocol(2)
                .payload_len(8),
            Pass,
        ),
        (
            "IPv4-mapped",
            from("::ffff:192.0.2.1").tcp(1, 22),
            InvalidSource,
        ),
        (
            "IPv4-compatible",
            from("::192.0.2.1").icmp6(128, 0),
            InvalidSource,
        ),
        ("from ::/24", from("::5").udp(1, 22), InvalidSource),
        (
            "from ::/24 as a neighbour",
            from("::5").solicitation(HOST6),
            InvalidSource,
        ),
        ("loopback", from("::1").tcp(1, 22), Pass),
        ("behind ::/24", from("64:ff9b::c000:201").tcp(1, 22), Pass),
        (
            "without an IPv6 address",
            from("::").udp(546, 547),
            InvalidSource,
        ),
        (
            "duplicate address detection",
            from("::").solicitation(HOST6),
            Pass,
        ),
        (
            "router solicitation",
            from("::").ttl(255).icmp6(133, 0),
            Pass,
        ),
        (
            "neighbour advertisement from nobody",
            from("::").advertisement(HOST6),
            InvalidSource,
        ),
        (
            "listener report",
            from("::").ttl(1).hop_by_hop().icmp6(143, 0),
            Pass,
        ),
        (
            "listener report from afar",
            from("::").ttl(2).hop_by_hop().icmp6(143, 0),
            InvalidSource,
        ),
        (
            "first fragment of a listener report",
            from("::").ttl(1).fragment(0, true).icmp6(143, 0),
            InvalidSource,
        ),
        (
            "allowed, of this network",
            from("0.1.2.10").tcp(1, 22),
            Allowed,
        ),
        ("allowed, of ::/24", from("::a").tcp(1, 22), Allowed),
        (
            "extension headers",
            from("2001:db8:2::8")
                .hop_by_hop()
                .destination()
                .routing()
                .auth()
                .tcp(1, 22),
            BannedScope,
        ),
        (
            "extension headers, port beside",
            from("2001:db8:2::8")
                .hop_by_hop()
                .destination()
                .routing()
                .auth()
                .tcp(1, 23),
            OtherPort,
        ),
        (
            "six extension headers",
            (0..6)
                .fold(from("2001:db8:2::8"), |p, _| p.destination())
                .tcp(1, 23),
            OtherPort,
        ),
        (
            "seven extension headers",
            (0..7)
                .fold(from("2001:db8:2::8"), |p, _| p.destination())
                .tcp(1, 23),
            BannedScope,
        ),
        (
            "ESP hides ports",
            from("2001:db8:2::8").extension(proto::ESP, &[0; 30]),
            OtherPort,
        ),
        (
            "neighbour solicitation",
            from("2001:db8:2::7").solicitation(HOST6),
            Essential,
        ),
        (
            "solicitation from afar",
            from("2001:db8:2::7").solicitation(HOST6).ttl(254),
            BannedAll,
        ),
        ("DHCP reply", from("192.0.2.7").udp(67, 68), Essential),
        (
            "DHCPv6 reply",
            from("2001:db8:2::7").udp(547, 546),
            Essential,
        ),
        ("looks like DHCP", from("192.0.2.7").udp(67, 69), BannedAll),
        (
            "jumbo frame",
            from("192.0.2.8").tcp(1, 22).payload_len(3000),
            BannedScope,
        ),
    ]
}
