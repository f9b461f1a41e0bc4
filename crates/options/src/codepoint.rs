//! The table of codepoints: options and extension headers that have a number at IANA, or are
//! known to be in use, each with the document that defines it.

/// The part of a packet in which an option stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Options of the IPv4 header.
    Ip,
    /// Options of the TCP header.
    Tcp,
    /// Options in the surplus area behind a UDP datagram (RFC 9868).
    Udp,
    /// Options of IPv6's hop-by-hop header.
    HopByHop,
    /// Options of IPv6's destination options header.
    Destination,
    /// Extension headers of IPv6, by protocol number.
    Extension,
}

impl Layer {
    /// All layers, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::Ip,
        Self::Tcp,
        Self::Udp,
        Self::HopByHop,
        Self::Destination,
        Self::Extension,
    ];

    /// The layer's word on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::HopByHop => "hop",
            Self::Destination => "dst",
            Self::Extension => "ext",
        }
    }

    /// The layer of this word.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layer| layer.name() == name)
    }

    /// Whether an option of this kind is a single byte, without length and data.
    pub fn is_single_byte(self, kind: u8) -> bool {
        match self {
            Self::Ip | Self::Tcp | Self::Udp => kind <= 1,
            Self::HopByHop | Self::Destination => kind == 0,
            Self::Extension => false,
        }
    }

    /// Bytes of data that one option can have here, behind its kind and length.
    pub fn max_data(self) -> usize {
        match self {
            Self::Ip | Self::Tcp => 38,
            // Longer ones of UDP have a length of two bytes more.
            Self::Udp => 200,
            // One header with it, and padding.
            Self::HopByHop | Self::Destination | Self::Extension => 244,
        }
    }
}

/// An option or extension header that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codepoint {
    /// The part of the packet to which the number belongs.
    pub layer: Layer,
    /// IANA's number: kind, type, or protocol number.
    pub number: u8,
    /// The name on the command line.
    pub name: &'static str,
    /// The document that defines the option.
    pub reference: &'static str,
    /// The option's purpose, and what its data are here.
    pub purpose: &'static str,
    body: Body,
}

impl Codepoint {
    /// The data that the option has unless others are given.
    pub fn data(&self) -> Vec<u8> {
        match self.body {
            Body::None => Vec::new(),
            Body::Filler(length) => filler(length),
            Body::Bytes(bytes) => bytes.to_vec(),
            Body::Zeros(first, zeros) => {
                let mut data = first.to_vec();
                data.resize(first.len() + zeros, 0);
                data
            }
        }
    }
}

/// The data of an option as the table has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// A single byte has no data.
    None,
    /// 0, 1, 2, ...: so many bytes.
    Filler(usize),
    /// The bytes themselves.
    Bytes(&'static [u8]),
    /// Bytes at the beginning, then so many zeros.
    Zeros(&'static [u8], usize),
}

/// Data that say nothing: 0, 1, 2, ...
pub fn filler(length: usize) -> Vec<u8> {
    (0..length).map(|n| n as u8).collect()
}

/// The codepoint of a layer with this number.
pub fn by_number(layer: Layer, number: u8) -> Option<&'static Codepoint> {
    let mut of_layer = CODEPOINTS.iter().filter(|c| c.layer == layer);
    of_layer.find(|codepoint| codepoint.number == number)
}

/// The codepoint of a layer with this name.
pub fn by_name(layer: Layer, name: &str) -> Option<&'static Codepoint> {
    let mut of_layer = CODEPOINTS.iter().filter(|c| c.layer == layer);
    of_layer.find(|codepoint| codepoint.name == name)
}

const fn row(
    layer: Layer,
    number: u8,
    name: &'static str,
    reference: &'static str,
    purpose: &'static str,
    body: Body,
) -> Codepoint {
    Codepoint {
        layer,
        number,
        name,
        reference,
        purpose,
        body,
    }
}

/// The table, by layer. Numbers and names are IANA's registries' (IP Option Numbers, TCP Option
/// Kind Numbers, UDP Option Kind Numbers, IPv6 Destination Options and Hop-by-Hop Options, IPv6
/// Extension Header Types).
#[rustfmt::skip]
pub const CODEPOINTS: &[Codepoint] = &[
    row(Layer::Ip, 0, "eol", "RFC 791", "end of options list", Body::None),
    row(Layer::Ip, 1, "nop", "RFC 791", "no operation", Body::None),
    row(Layer::Ip, 130, "sec", "RFC 1108", "security", Body::Zeros(&[0xab], 8)),
    row(Layer::Ip, 131, "lsrr", "RFC 791", "loose source route, no address left", Body::Zeros(&[0x08], 4)),
    row(Layer::Ip, 68, "ts", "RFC 791", "timestamp: addresses and times, 4 places", Body::Zeros(&[0x05, 0x01], 32)),
    row(Layer::Ip, 133, "esec", "RFC 1108", "extended security", Body::Zeros(&[], 1)),
    row(Layer::Ip, 134, "cipso", "draft-ietf-cipso-ipsecurity-01", "commercial security", Body::Zeros(&[0x00, 0x00, 0x00, 0x01, 0x01, 0x04, 0x00], 1)),
    row(Layer::Ip, 7, "rr", "RFC 791", "record route, 9 places", Body::Zeros(&[0x04], 36)),
    row(Layer::Ip, 136, "sid", "RFC 791, obsoleted by RFC 6814", "stream id", Body::Filler(2)),
    row(Layer::Ip, 137, "ssrr", "RFC 791", "strict source route, no address left", Body::Zeros(&[0x08], 4)),
    row(Layer::Ip, 10, "zsu", "RFC 6814", "experimental measurement, deprecated", Body::Filler(2)),
    row(Layer::Ip, 11, "mtup", "RFC 1063, obsoleted by RFC 1191", "MTU probe", Body::Bytes(&[0x05, 0xdc])),
    row(Layer::Ip, 12, "mtur", "RFC 1063, obsoleted by RFC 1191", "MTU reply", Body::Bytes(&[0x05, 0xdc])),
    row(Layer::Ip, 205, "finn", "RFC 6814", "experimental flow control", Body::Filler(2)),
    row(Layer::Ip, 142, "visa", "RFC 6814", "experimental access control, deprecated", Body::Filler(2)),
    row(Layer::Ip, 15, "encode", "RFC 6814", "encode, deprecated", Body::Filler(2)),
    row(Layer::Ip, 144, "imitd", "RFC 6814", "IMI traffic descriptor", Body::Filler(2)),
    row(Layer::Ip, 145, "eip", "RFC 1385, obsoleted by RFC 6814", "extended Internet protocol", Body::Filler(2)),
    row(Layer::Ip, 82, "tr", "RFC 1393, obsoleted by RFC 6814", "traceroute", Body::Filler(10)),
    row(Layer::Ip, 147, "addext", "RFC 6814", "address extension, deprecated", Body::Filler(8)),
    row(Layer::Ip, 148, "rtralt", "RFC 2113", "router alert", Body::Bytes(&[0x00, 0x00])),
    row(Layer::Ip, 149, "sdb", "RFC 6814", "selective directed broadcast, deprecated", Body::Filler(4)),
    row(Layer::Ip, 151, "dps", "RFC 6814", "dynamic packet state, deprecated", Body::Filler(2)),
    row(Layer::Ip, 152, "ump", "RFC 6814", "upstream multicast packet, deprecated", Body::Filler(2)),
    row(Layer::Ip, 25, "qs", "RFC 4782", "quick-start, request", Body::Zeros(&[0x00, 0xff], 4)),
    row(Layer::Ip, 93, "unassigned-93", "IANA: not assigned", "copied into no fragment", Body::Filler(2)),
    row(Layer::Ip, 30, "exp-30", "RFC 4727", "experiment", Body::Filler(2)),
    row(Layer::Ip, 94, "exp-94", "RFC 4727", "experiment", Body::Filler(2)),
    row(Layer::Ip, 158, "exp-158", "RFC 4727", "experiment", Body::Filler(2)),
    row(Layer::Ip, 222, "exp-222", "RFC 4727", "experiment", Body::Filler(2)),
    row(Layer::Tcp, 0, "eol", "RFC 9293", "end of option list", Body::None),
    row(Layer::Tcp, 1, "nop", "RFC 9293", "no operation", Body::None),
    row(Layer::Tcp, 2, "mss", "RFC 9293", "maximum segment size 1220", Body::Bytes(&[0x04, 0xc4])),
    row(Layer::Tcp, 3, "wscale", "RFC 7323", "window scale 7", Body::Bytes(&[0x07])),
    row(Layer::Tcp, 4, "sack-permitted", "RFC 2018", "selective acknowledgement permitted", Body::Bytes(&[])),
    row(Layer::Tcp, 5, "sack", "RFC 2018", "selective acknowledgement, one block", Body::Zeros(&[], 8)),
    row(Layer::Tcp, 6, "echo", "RFC 1072, obsoleted by RFC 6247", "echo", Body::Filler(4)),
    row(Layer::Tcp, 7, "echo-reply", "RFC 1072, obsoleted by RFC 6247", "echo reply", Body::Filler(4)),
    row(Layer::Tcp, 8, "ts", "RFC 7323", "timestamps", Body::Bytes(&[0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00])),
    row(Layer::Tcp, 9, "pocp", "RFC 1693, obsoleted by RFC 6247", "partial order connection permitted", Body::Bytes(&[])),
    row(Layer::Tcp, 10, "posp", "RFC 1693, obsoleted by RFC 6247", "partial order service profile", Body::Filler(1)),
    row(Layer::Tcp, 11, "cc", "RFC 1644, obsoleted by RFC 6247", "connection count", Body::Filler(4)),
    row(Layer::Tcp, 12, "cc-new", "RFC 1644, obsoleted by RFC 6247", "new connection count", Body::Filler(4)),
    row(Layer::Tcp, 13, "cc-echo", "RFC 1644, obsoleted by RFC 6247", "connection count echo", Body::Filler(4)),
    row(Layer::Tcp, 14, "altcsum-request", "RFC 1146, obsoleted by RFC 6247", "alternate checksum request", Body::Bytes(&[0x00])),
    row(Layer::Tcp, 15, "altcsum-data", "RFC 1146, obsoleted by RFC 6247", "alternate checksum data", Body::Filler(2)),
    row(Layer::Tcp, 16, "skeeter", "IANA: S. Knowles", "Skeeter", Body::Filler(2)),
    row(Layer::Tcp, 17, "bubba", "IANA: S. Knowles", "Bubba", Body::Filler(2)),
    row(Layer::Tcp, 18, "trailer-csum", "IANA: S. Subbu, M. Rose", "trailer checksum", Body::Filler(1)),
    row(Layer::Tcp, 19, "md5", "RFC 2385, obsoleted by RFC 5925", "MD5 signature; no key made this one", Body::Filler(16)),
    row(Layer::Tcp, 20, "scps", "IANA: K. Scott", "SCPS capabilities", Body::Filler(2)),
    row(Layer::Tcp, 21, "snack", "IANA: K. Scott", "selective negative acknowledgement", Body::Filler(4)),
    row(Layer::Tcp, 22, "record-boundaries", "IANA: K. Scott", "record boundaries", Body::Filler(2)),
    row(Layer::Tcp, 23, "corruption", "IANA: K. Scott", "corruption experienced", Body::Filler(2)),
    row(Layer::Tcp, 24, "snap", "IANA: V. Sukonnik", "SNAP", Body::Filler(2)),
    row(Layer::Tcp, 26, "compression", "IANA: S. Bellovin", "compression filter", Body::Filler(2)),
    row(Layer::Tcp, 27, "qs", "RFC 4782", "quick-start response", Body::Filler(6)),
    row(Layer::Tcp, 28, "uto", "RFC 5482", "user timeout of 60 seconds", Body::Bytes(&[0x00, 0x3c])),
    row(Layer::Tcp, 29, "ao", "RFC 5925", "authentication option; no key made this one", Body::Filler(14)),
    row(Layer::Tcp, 30, "mptcp", "RFC 8684", "multipath TCP, MP_CAPABLE of a SYN", Body::Bytes(&[0x01, 0x01])),
    row(Layer::Tcp, 34, "tfo", "RFC 7413", "fast open, cookie request", Body::Bytes(&[])),
    row(Layer::Tcp, 69, "eno", "RFC 8547", "encryption negotiation, no suite", Body::Bytes(&[])),
    row(Layer::Tcp, 71, "reserved-71", "IANA: reserved", "known to have been used without assignment", Body::Filler(2)),
    row(Layer::Tcp, 172, "accecn0", "RFC 9768", "accurate ECN, order 0", Body::Filler(9)),
    row(Layer::Tcp, 174, "accecn1", "RFC 9768", "accurate ECN, order 1", Body::Filler(9)),
    row(Layer::Tcp, 253, "exp-253", "RFC 6994", "experiment 0xdead, which nobody has", Body::Bytes(&[0xde, 0xad, 0x00, 0x01])),
    row(Layer::Tcp, 254, "exp-254", "RFC 6994", "experiment 0xdead, which nobody has", Body::Bytes(&[0xde, 0xad, 0x00, 0x01])),
    row(Layer::Udp, 0, "eol", "RFC 9868", "end of options list", Body::None),
    row(Layer::Udp, 1, "nop", "RFC 9868", "no operation", Body::None),
    row(Layer::Udp, 2, "apc", "RFC 9868", "additional payload checksum; a placeholder that no payload has", Body::Filler(4)),
    row(Layer::Udp, 3, "frag", "RFC 9868", "fragment; what has it must be a fragment", Body::Filler(8)),
    row(Layer::Udp, 4, "mds", "RFC 9868", "maximum datagram size 1400", Body::Bytes(&[0x05, 0x78])),
    row(Layer::Udp, 5, "mrds", "RFC 9868", "maximum reassembled datagram size 2926, 2 segments", Body::Bytes(&[0x0b, 0x6e, 0x02])),
    row(Layer::Udp, 6, "req", "RFC 9868", "echo request", Body::Filler(4)),
    row(Layer::Udp, 7, "res", "RFC 9868", "echo response", Body::Filler(4)),
    row(Layer::Udp, 8, "time", "RFC 9868", "timestamps", Body::Bytes(&[0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00])),
    row(Layer::Udp, 9, "auth", "RFC 9868", "authentication, reserved; no key made this one", Body::Filler(8)),
    row(Layer::Udp, 125, "unassigned-125", "IANA: not assigned", "safe to ignore", Body::Filler(6)),
    row(Layer::Udp, 127, "exp", "RFC 9868", "experiment 0xdead, which nobody has", Body::Bytes(&[0xde, 0xad, 0x00, 0x01, 0x02, 0x03])),
    row(Layer::Udp, 192, "ucmp", "RFC 9868", "compression; unsafe to ignore", Body::Filler(2)),
    row(Layer::Udp, 193, "uenc", "RFC 9868", "encryption; unsafe to ignore", Body::Filler(2)),
    row(Layer::Udp, 254, "uexp", "RFC 9868", "experiment 0xdead; unsafe to ignore", Body::Bytes(&[0xde, 0xad, 0x00, 0x01])),
    row(Layer::HopByHop, 0x00, "pad1", "RFC 8200", "padding of one byte", Body::None),
    row(Layer::HopByHop, 0x01, "padn", "RFC 8200", "padding of four bytes", Body::Zeros(&[], 2)),
    row(Layer::HopByHop, 0x05, "rtralt", "RFC 2711", "router alert, reserved value", Body::Bytes(&[0xff, 0xff])),
    row(Layer::HopByHop, 0x07, "calipso", "RFC 5570", "security label", Body::Zeros(&[0x00, 0x00, 0x00, 0x01], 4)),
    row(Layer::HopByHop, 0x08, "smf-dpd", "RFC 6621", "duplicate packet detection", Body::Filler(2)),
    row(Layer::HopByHop, 0x11, "ioam", "RFC 9486", "in-situ OAM, to be skipped where unknown", Body::Filler(2)),
    row(Layer::HopByHop, 0x12, "altmark", "RFC 9343", "alternate marking", Body::Filler(4)),
    row(Layer::HopByHop, 0x31, "ioam-mutable", "RFC 9486", "in-situ OAM, changes on its way", Body::Filler(2)),
    row(Layer::HopByHop, 0x23, "rpl", "RFC 9008", "routing in low-power networks", Body::Filler(4)),
    row(Layer::HopByHop, 0x26, "qs", "RFC 4782", "quick-start, request", Body::Zeros(&[0x00, 0xff], 4)),
    row(Layer::HopByHop, 0x30, "pmtu", "RFC 9268", "minimum path MTU", Body::Bytes(&[0x05, 0xdc, 0x00, 0x00])),
    row(Layer::HopByHop, 0x6d, "mpl", "RFC 7731", "multicast for low-power networks", Body::Filler(2)),
    row(Layer::HopByHop, 0xc2, "jumbo", "RFC 2675", "jumbo payload; wrong in a packet of this length", Body::Bytes(&[0x00, 0x01, 0x00, 0x00])),
    row(Layer::HopByHop, 0x1e, "exp-1e", "RFC 4727", "experiment; unknown: skipped", Body::Filler(4)),
    row(Layer::HopByHop, 0x3e, "exp-3e", "RFC 4727", "experiment; unknown: skipped; changes on its way", Body::Filler(4)),
    row(Layer::HopByHop, 0x5e, "exp-5e", "RFC 4727", "experiment; unknown: dropped", Body::Filler(4)),
    row(Layer::HopByHop, 0x9e, "exp-9e", "RFC 4727", "experiment; unknown: dropped with an ICMP error", Body::Filler(4)),
    row(Layer::HopByHop, 0xde, "exp-de", "RFC 4727", "experiment; unknown: dropped with an ICMP error unless multicast", Body::Filler(4)),
    row(Layer::Destination, 0x00, "pad1", "RFC 8200", "padding of one byte", Body::None),
    row(Layer::Destination, 0x01, "padn", "RFC 8200", "padding of four bytes", Body::Zeros(&[], 2)),
    row(Layer::Destination, 0x04, "tunnel-limit", "RFC 2473", "tunnel encapsulation limit 4", Body::Bytes(&[0x04])),
    row(Layer::Destination, 0x07, "calipso", "RFC 5570", "security label", Body::Zeros(&[0x00, 0x00, 0x00, 0x01], 4)),
    row(Layer::Destination, 0x0f, "pdm", "RFC 8250", "performance and diagnostic metrics", Body::Filler(10)),
    row(Layer::Destination, 0x11, "ioam", "RFC 9486", "in-situ OAM, to be skipped where unknown", Body::Filler(2)),
    row(Layer::Destination, 0x12, "altmark", "RFC 9343", "alternate marking", Body::Filler(4)),
    row(Layer::Destination, 0x31, "ioam-mutable", "RFC 9486", "in-situ OAM, changes on its way", Body::Filler(2)),
    row(Layer::Destination, 0x8b, "ilnp-nonce", "RFC 6744", "ILNP nonce; unknown: dropped with an ICMP error", Body::Filler(4)),
    row(Layer::Destination, 0xc9, "home-address", "RFC 6275", "home address", Body::Zeros(&[], 16)),
    row(Layer::Destination, 0x1e, "exp-1e", "RFC 4727", "experiment; unknown: skipped", Body::Filler(4)),
    row(Layer::Destination, 0x3e, "exp-3e", "RFC 4727", "experiment; unknown: skipped; changes on its way", Body::Filler(4)),
    row(Layer::Destination, 0x5e, "exp-5e", "RFC 4727", "experiment; unknown: dropped", Body::Filler(4)),
    row(Layer::Destination, 0x9e, "exp-9e", "RFC 4727", "experiment; unknown: dropped with an ICMP error", Body::Filler(4)),
    row(Layer::Destination, 0xde, "exp-de", "RFC 4727", "experiment; unknown: dropped with an ICMP error unless multicast", Body::Filler(4)),
    row(Layer::Extension, 0, "hop", "RFC 8200", "hop-by-hop options, padding only", Body::Zeros(&[0x01, 0x04], 4)),
    row(Layer::Extension, 43, "routing", "RFC 8200", "routing header of experimental type 253, no segment left", Body::Zeros(&[0xfd, 0x00], 4)),
    row(Layer::Extension, 44, "fragment", "RFC 8200, RFC 6946", "fragment header of a whole packet (atomic fragment)", Body::Zeros(&[], 6)),
    row(Layer::Extension, 60, "dst", "RFC 8200", "destination options, padding only", Body::Zeros(&[0x01, 0x04], 4)),
    row(Layer::Extension, 135, "mobility", "RFC 6275", "mobility; nothing may follow it", Body::Zeros(&[], 6)),
    row(Layer::Extension, 139, "hip", "RFC 7401", "host identity; nothing may follow it", Body::Zeros(&[], 6)),
    row(Layer::Extension, 140, "shim6", "RFC 5533", "shim6", Body::Zeros(&[], 6)),
    row(Layer::Extension, 253, "exp-253", "RFC 4727", "experiment", Body::Zeros(&[], 6)),
    row(Layer::Extension, 254, "exp-254", "RFC 4727", "experiment", Body::Zeros(&[], 6)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_each_of_one_option() {
        for (at, one) in CODEPOINTS.iter().enumerate() {
            for other in &CODEPOINTS[at + 1..] {
                let is_same = one.number == other.number || one.name == other.name;
                assert!(one.layer != other.layer || !is_same, "{one:?} {other:?}");
            }
            assert!(one.data().len() <= one.layer.max_data(), "{one:?}");
            assert!(one.name.parse::<u16>().is_err(), "{one:?}");
            let is_single = one.layer.is_single_byte(one.number);
            assert_eq!(is_single, one.body == Body::None, "{one:?}");
            assert_eq!(by_name(one.layer, one.name), Some(one));
            assert_eq!(by_number(one.layer, one.number), Some(one));
        }
    }

    #[test]
    fn lengths_are_those_of_the_documents() {
        let length = |layer, name| by_name(layer, name).unwrap().data().len() + 2;
        for (name, bytes) in [("rr", 39), ("ts", 36), ("rtralt", 4), ("qs", 8), ("tr", 12)] {
            assert_eq!(length(Layer::Ip, name), bytes, "{name}");
        }
        for (name, bytes) in [
            ("mss", 4),
            ("wscale", 3),
            ("sack-permitted", 2),
            ("sack", 10),
            ("ts", 10),
            ("md5", 18),
            ("uto", 4),
            ("qs", 8),
            ("echo", 6),
        ] {
            assert_eq!(length(Layer::Tcp, name), bytes, "{name}");
        }
        for (name, bytes) in [
            ("apc", 6),
            ("mds", 4),
            ("mrds", 5),
            ("req", 6),
            ("time", 10),
        ] {
            assert_eq!(length(Layer::Udp, name), bytes, "{name}");
        }
    }
}
