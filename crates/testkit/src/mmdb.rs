//! Builds small databases in MaxMind's format, so that a test says which
//! address is where. Written from the format's specification; shares no code
//! with what reads them.

use std::net::IpAddr;

/// A value of the format, as far as tests need them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text in UTF-8.
    Text(String),
    /// An unsigned number of 16 bits.
    U16(u16),
    /// An unsigned number of 32 bits.
    Number(u32),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// Keys and values.
    Map(Vec<(String, Value)>),
    /// A list of values.
    Array(Vec<Value>),
    /// Text that is not UTF-8, which the format forbids.
    NotUtf8,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A map of these keys and values.
pub fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

/// A record as MaxMind's country databases have them.
pub fn country(code: &str, continent: &str) -> Value {
    map([
        ("continent", map([("code", continent.into())])),
        ("country", map([("iso_code", code.into())])),
    ])
}

/// A country's record that no reader can decode.
pub fn broken() -> Value {
    map([("country", map([("iso_code", Value::NotUtf8)]))])
}

/// A database in the making.
#[derive(Clone, Debug)]
pub struct Mmdb {
    kind: String,
    ip_version: u8,
    record_size: u16,
    aliases: bool,
    networks: Vec<(u128, u8, Value)>,
}

enum Child {
    Empty,
    Node(usize),
    Data(usize),
}

impl Mmdb {
    /// An IPv6 database of this type, which holds IPv4 at `::/96`.
    pub fn new(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            ip_version: 6,
            record_size: 24,
            aliases: false,
            networks: Vec::new(),
        }
    }

    /// A database for IPv4 alone.
    pub fn v4(kind: &str) -> Self {
        Self {
            ip_version: 4,
            ..Self::new(kind)
        }
    }

    /// Bits per record: 24, 28 or 32.
    pub fn record_size(mut self, bits: u16) -> Self {
        self.record_size = bits;
        self
    }

    /// IPv4 is found at `::ffff:0:0/96` and `2002::/16` as well, as in
    /// MaxMind's own files.
    pub fn aliases(mut self) -> Self {
        self.aliases = true;
        self
    }

    /// States what holds for a network such as `192.0.2.0/24`; a longer one
    /// must come after a shorter one that holds it.
    ///
    /// # Panics
    /// `network` is none of this family.
    pub fn with(mut self, network: &str, value: Value) -> Self {
        let (addr, bits) = network.split_once('/').expect("a slash");
        let bits: u8 = bits.parse().expect("a length");
        let (addr, bits) = match (addr.parse().expect("an address"), self.ip_version) {
            (IpAddr::V4(addr), 4) => (u128::from(addr.to_bits()) << 96, bits),
            (IpAddr::V4(addr), _) => (u128::from(addr.to_bits()), bits + 96),
            (IpAddr::V6(addr), 6) => (addr.to_bits(), bits),
            _ => panic!("{network} in a database of IPv4"),
        };
        self.networks.push((addr, bits, value));
        self
    }

    /// The database file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let mut known: Vec<(&Value, usize)> = Vec::new();
        let mut nodes = vec![[Child::Empty, Child::Empty]];
        for (addr, bits, value) in &self.networks {
            let at = match known.iter().find(|(known, _)| *known == value) {
                Some((_, at)) => *at,
                None => {
                    known.push((value, data.len()));
                    encode(value, &mut data);
                    known[known.len() - 1].1
                }
            };
            let (node, bit) = descend(&mut nodes, *addr, bits - 1);
            nodes[node][bit] = Child::Data(at);
        }
        if self.aliases {
            let (parent, bit) = descend(&mut nodes, 0, 95);
            if let Child::Node(ipv4) = nodes[parent][bit] {
                for (alias, bits) in [(0xffff_u128 << 32, 96), (0x2002_u128 << 112, 16)] {
                    let (node, bit) = descend(&mut nodes, alias, bits - 1);
                    nodes[node][bit] = Child::Node(ipv4);
                }
            }
        }
        let mut file = Vec::new();
        for node in &nodes {
            let [left, right] = [0, 1].map(|side| match node[side] {
                Child::Empty => nodes.len() as u32,
                Child::Node(node) => node as u32,
                Child::Data(at) => (nodes.len() + 16 + at) as u32,
            });
            match self.record_size {
                24 => {
                    file.extend(&left.to_be_bytes()[1..]);
                    file.extend(&right.to_be_bytes()[1..]);
                }
                28 => {
                    file.extend(&left.to_be_bytes()[1..]);
                    file.push(((left >> 24) << 4) as u8 | (right >> 24) as u8);
                    file.extend(&right.to_be_bytes()[1..]);
                }
                _ => {
                    file.extend(left.to_be_bytes());
                    file.extend(right.to_be_bytes());
                }
            }
        }
        file.extend([0; 16]);
        file.extend(data);
        file.extend(b"\xab\xcd\xefMaxMind.com");
        encode(
            &map([
                ("binary_format_major_version", Value::U16(2)),
                ("binary_format_minor_version", Value::U16(0)),
                ("build_epoch", Value::U64(1_700_000_000)),
                ("database_type", self.kind.as_str().into()),
                ("description", map([("en", "made for a test".into())])),
                ("ip_version", Value::U16(self.ip_version.into())),
                ("languages", Value::Array(vec!["en".into()])),
                ("node_count", Value::Number(nodes.len() as u32)),
                ("record_size", Value::U16(self.record_size)),
            ]),
            &mut file,
        );
        file
    }
}

/// The node and side that the first `bits` bits lead to, made on the way.
fn descend(nodes: &mut Vec<[Child; 2]>, addr: u128, bits: u8) -> (usize, usize) {
    let side = |depth: u8| usize::from(addr >> (127 - depth) & 1 == 1);
    let mut node = 0;
    for depth in 0..bits {
        node = match nodes[node][side(depth)] {
            Child::Node(next) => next,
            // What held for all of it goes on to hold for both halves.
            Child::Data(at) => add(nodes, node, side(depth), [Child::Data(at), Child::Data(at)]),
            Child::Empty => add(nodes, node, side(depth), [Child::Empty, Child::Empty]),
        };
    }
    (node, side(bits))
}

fn add(nodes: &mut Vec<[Child; 2]>, parent: usize, side: usize, node: [Child; 2]) -> usize {
    nodes.push(node);
    nodes[parent][side] = Child::Node(nodes.len() - 1);
    nodes.len() - 1
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) => {
            control(2, text.len(), out);
            out.extend(text.as_bytes());
        }
        Value::NotUtf8 => {
            control(2, 2, out);
            out.extend([0xff, 0xfe]);
        }
        Value::U16(number) => unsigned(5, &number.to_be_bytes(), out),
        Value::Number(number) => unsigned(6, &number.to_be_bytes(), out),
        Value::U64(number) => unsigned(9, &number.to_be_bytes(), out),
        Value::Map(entries) => {
            control(7, entries.len(), out);
            for (key, value) in entries {
                encode(&Value::Text(key.clone()), out);
                encode(value, out);
            }
        }
        Value::Array(values) => {
            control(11, values.len(), out);
            for value in values {
                encode(value, out);
            }
        }
    }
}

/// A number without its leading zeros.
fn unsigned(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    let skip = bytes.iter().take_while(|b| **b == 0).count();
    control(kind, bytes.len() - skip, out);
    out.extend(&bytes[skip..]);
}

fn control(kind: u8, size: usize, out: &mut Vec<u8>) {
    let (short, long): (u8, Vec<u8>) = match size {
        0..29 => (size as u8, vec![]),
        29..285 => (29, vec![(size - 29) as u8]),
        _ => (30, ((size - 285) as u16).to_be_bytes().into()),
    };
    if kind > 7 {
        out.extend([short, kind - 7]);
    } else {
        out.push(kind << 5 | short);
    }
    out.extend(long);
}
