//! The bytes that options make in a packet: in the headers of IPv4 and TCP, behind a UDP
//! datagram, and as IPv6 extension headers.

use weir_core::checksum::checksum;

use crate::{codepoint::Layer, option_spec::OptionSpec};

/// Bytes of options that go into a header of IPv4 or TCP.
pub const MAX_HEADER_OPTIONS: usize = 40;
/// Bytes behind a UDP datagram at most.
pub const MAX_SURPLUS: usize = 256;
/// Bytes of IPv6 extension headers at most, together.
pub const MAX_EXTENSION_BYTES: usize = 256;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// Why options do not go into one packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SectionError {
    /// Options of a layer are longer than it can have.
    #[error("the options of {layer} take {bytes} bytes; allowed: up to {max}")]
    TooLong {
        /// The word of the layer, or of IPv6's together.
        layer: &'static str,
        /// Bytes that they take, with padding.
        bytes: usize,
        /// Bytes that there may be.
        max: usize,
    },
    /// A hop-by-hop header that would not be the first.
    #[error(
        "hop-by-hop options stand in one header: name either options (hop:) or the header (ext:hop)"
    )]
    TwoHopByHop,
}

/// One option as it stands in its layer.
fn write(option: &OptionSpec, out: &mut Vec<u8>) {
    out.push(option.number);
    if !option.layer.is_single_byte(option.number) {
        let more = match option.layer {
            // The length of IPv6's is that of the data.
            Layer::HopByHop | Layer::Destination => 0,
            _ => 2,
        };
        out.push((option.data.len() + more) as u8);
        out.extend_from_slice(&option.data);
    }
}

/// One option for itself, without padding.
pub(crate) fn option_bytes(option: &OptionSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(option, &mut bytes);
    bytes
}

/// The options of an IPv4 or TCP header, of a multiple of four bytes: filled up with no
/// operation (1), because other options may follow them.
///
/// # Errors
/// They take more than 40 bytes.
pub fn header_options(options: &[&OptionSpec]) -> Result<Vec<u8>, SectionError> {
    let mut bytes = Vec::new();
    for option in options {
        write(option, &mut bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(4), 1);
    if bytes.len() > MAX_HEADER_OPTIONS {
        return Err(SectionError::TooLong {
            layer: options.first().map_or("ip", |option| option.layer.name()),
            bytes: bytes.len(),
            max: MAX_HEADER_OPTIONS,
        });
    }
    Ok(bytes)
}

/// The surplus area behind a UDP datagram: a zero where the datagram ends at an odd byte, the
/// option checksum, which makes the area and its length sum up to zero (RFC 9868), and the
/// options.
///
/// # Errors
/// They take more than [`MAX_SURPLUS`].
pub fn surplus_area(options: &[&OptionSpec], is_odd: bool) -> Result<Vec<u8>, SectionError> {
    let mut area = vec![0; usize::from(is_odd) + 2];
    let at = usize::from(is_odd);
    for option in options {
        write(option, &mut area);
    }
    if area.len() > MAX_SURPLUS {
        return Err(SectionError::TooLong {
            layer: Layer::Udp.name(),
            bytes: area.len(),
            max: MAX_SURPLUS,
        });
    }
    let length = (area.len() as u16).to_be_bytes();
    // Its first byte is the lower half of a word where the datagram's length is odd.
    let even = &area[at..];
    let sum = match checksum(&[even, &length]) {
        // Zero says that there is no checksum.
        0 => 0xffff,
        sum => sum,
    };
    area[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(area)
}

/// IPv6 extension headers one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtensionChain {
    /// The protocol number of the first header, for the IPv6 header.
    pub first: u8,
    /// The headers. In the last one, the number of what follows is to be written.
    pub bytes: Vec<u8>,
    /// The place of that number: the offset of the last header.
    pub last: usize,
}

impl ExtensionChain {
    /// Whether Linux cuts segments behind all of the headers (GSO): behind hop-by-hop and
    /// destination options and routing headers it does.
    pub fn may_be_segmented(&self) -> bool {
        let (mut number, mut at) = (self.first, 0);
        while let (Some(next), Some(units)) = (self.bytes.get(at), self.bytes.get(at + 1)) {
            if !matches!(number, HOP_BY_HOP | ROUTING | DESTINATION) {
                return false;
            }
            at += 8 * (usize::from(*units) + 1);
            number = *next;
        }
        true
    }

    /// The headers as they stand before what has this protocol number.
    pub fn before(&self, next: u8) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if let Some(place) = bytes.get_mut(self.last) {
            *place = next;
        }
        bytes
    }
}

/// The extension headers of IPv6: one of hop-by-hop options, which is the first, then one of
/// destination options, then those that are named by number, in their order.
///
/// # Errors
/// They take more than [`MAX_EXTENSION_BYTES`], or hop-by-hop headers would be two.
pub fn extension_chain(options: &[&OptionSpec]) -> Result<ExtensionChain, SectionError> {
    let mut headers: Vec<(u8, Vec<u8>)> = Vec::new();
    for (number, layer) in [
        (HOP_BY_HOP, Layer::HopByHop),
        (DESTINATION, Layer::Destination),
    ] {
        let of_layer = options.iter().filter(|option| option.layer == layer);
        let mut bytes = vec![0, 0];
        of_layer.for_each(|option| write(option, &mut bytes));
        if bytes.len() > 2 {
            pad(&mut bytes);
            headers.push((number, bytes));
        }
    }
    let is_extension = |option: &&&OptionSpec| option.layer == Layer::Extension;
    for option in options.iter().filter(is_extension) {
        let mut bytes = vec![0, 0];
        bytes.extend_from_slice(&option.data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        match option.number {
            HOP_BY_HOP if headers.iter().any(|(number, _)| *number == HOP_BY_HOP) => {
                return Err(SectionError::TwoHopByHop);
            }
            HOP_BY_HOP => headers.insert(0, (HOP_BY_HOP, bytes)),
            number => headers.push((number, bytes)),
        }
    }
    let total = headers.iter().map(|(_, bytes)| bytes.len()).sum();
    if total > MAX_EXTENSION_BYTES {
        return Err(SectionError::TooLong {
            layer: "IPv6 extension headers",
            bytes: total,
            max: MAX_EXTENSION_BYTES,
        });
    }
    let mut chain = ExtensionChain::default();
    for (number, mut bytes) in headers {
        match chain.bytes.is_empty() {
            true => chain.first = number,
            false => chain.bytes[chain.last] = number,
        }
        chain.last = chain.bytes.len();
        // A fragment header has no length: its second byte is reserved.
        if number != 44 {
            bytes[1] = (bytes.len() / 8 - 1) as u8;
        }
        chain.bytes.append(&mut bytes);
    }
    Ok(chain)
}

/// Fills a header of options up to a multiple of eight bytes.
fn pad(bytes: &mut Vec<u8>) {
    match bytes.len().next_multiple_of(8) - bytes.len() {
        0 => {}
        1 => bytes.push(0),
        missing => {
            bytes.extend([1, missing as u8 - 2]);
            bytes.resize(bytes.len() + missing - 2, 0);
        }
    }
}

/// All that options make, for packets of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sections {
    /// Options of the IPv4 header.
    pub ip: Vec<u8>,
    /// Options of the TCP header.
    pub tcp: Vec<u8>,
    /// What is behind a UDP datagram of an even length.
    pub udp_even: Vec<u8>,
    /// What is behind a UDP datagram of an odd length.
    pub udp_odd: Vec<u8>,
    /// Extension headers of IPv6.
    pub extensions: ExtensionChain,
}

impl Sections {
    /// The sections of these options, which may be of several layers.
    ///
    /// # Errors
    /// Those of a layer take more room than it has.
    pub fn of(options: &[OptionSpec]) -> Result<Self, SectionError> {
        let of = |layers: &[Layer]| -> Vec<&OptionSpec> {
            let wanted = options.iter().filter(|o| layers.contains(&o.layer));
            wanted.collect()
        };
        let udp = of(&[Layer::Udp]);
        let surplus = |is_odd| match udp.is_empty() {
            true => Ok(Vec::new()),
            false => surplus_area(&udp, is_odd),
        };
        Ok(Self {
            ip: header_options(&of(&[Layer::Ip]))?,
            tcp: header_options(&of(&[Layer::Tcp]))?,
            udp_even: surplus(false)?,
            udp_odd: surplus(true)?,
            extensions: extension_chain(&of(&[
                Layer::HopByHop,
                Layer::Destination,
                Layer::Extension,
            ]))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn specs(texts: &[&str]) -> Vec<OptionSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn sections(texts: &[&str]) -> Sections {
        Sections::of(&specs(texts)).unwrap()
    }

    #[test]
    fn headers_are_filled_up_with_no_operation() {
        let made = sections(&["ip:94=aa", "tcp:nop", "tcp:mss"]);
        assert_eq!(made.ip, [94, 3, 0xaa, 1]);
        assert_eq!(made.tcp, [1, 2, 4, 4, 0xc4, 1, 1, 1]);
        assert_eq!(sections(&["ip:rr"]).ip.len(), 40);
        assert!(made.udp_even.is_empty() && made.extensions.bytes.is_empty());
        let long = Sections::of(&specs(&["tcp:254/40", "tcp:nop"])).unwrap_err();
        assert_eq!(
            long.to_string(),
            "the options of tcp take 44 bytes; allowed: up to 40"
        );
    }

    #[test]
    fn extension_headers_are_chained_hop_by_hop_first() {
        let made = sections(&["ext:253", "dst:exp-1e", "hop:padn"]).extensions;
        assert_eq!((made.first, made.last), (0, 16));
        assert_eq!(
            made.before(17),
            [
                [60, 0, 1, 2, 0, 0, 1, 0],
                [253, 0, 0x1e, 4, 0, 1, 2, 3],
                [17, 0, 0, 0, 0, 0, 0, 0],
            ]
            .concat()
        );
        let fragment = sections(&["ext:fragment"]).extensions;
        assert_eq!(fragment.before(6), [6, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!fragment.may_be_segmented() && !made.may_be_segmented());
        let options = sections(&["dst:exp-1e", "hop:padn", "ext:43"]).extensions;
        assert!(options.may_be_segmented());
        assert_eq!(sections(&["ext:60=010c"]).extensions.bytes.len(), 8);
        assert_eq!(sections(&["ext:253/20"]).extensions.bytes[1], 2);
        let two = Sections::of(&specs(&["hop:padn", "ext:hop"]));
        assert_eq!(two, Err(SectionError::TwoHopByHop));
        let long = specs(&["ext:253/200", "ext:254/200"]);
        assert!(Sections::of(&long).is_err());
        assert!(Sections::of(&specs(&["udp:200/202", "udp:201/60"])).is_err());
    }

    #[test]
    fn the_option_checksum_stands_at_an_even_place() {
        let made = sections(&["udp:exp"]);
        assert_eq!(made.udp_even.len(), 10);
        assert_eq!(made.udp_odd.len(), 11);
        assert_eq!(made.udp_odd[0], 0);
        assert_eq!(made.udp_even[2..], made.udp_odd[3..]);
        // The shortest: 0xfffd is the complement of its own length.
        assert_eq!(sections(&["udp:eol"]).udp_even, [0xff, 0xfc, 0]);
    }

    proptest! {
        /// Who takes the checksum over all of the IP payload, with its length, finds it right.
        #[test]
        fn a_surplus_area_and_its_length_sum_up_to_zero(
            kind in 2u8.., data in prop::collection::vec(any::<u8>(), 0..120), is_odd: bool,
        ) {
            let option = OptionSpec { layer: Layer::Udp, number: kind, data };
            let area = surplus_area(&[&option], is_odd).unwrap();
            let length = (area.len() as u16).to_be_bytes();
            prop_assert_eq!(checksum(&[&area[usize::from(is_odd)..], &length]), 0);
        }

        #[test]
        fn chains_are_whole(
            kinds in prop::collection::vec((0u8..3, any::<u8>(), 0usize..30), 1..5),
        ) {
            let layers = [Layer::HopByHop, Layer::Destination, Layer::Extension];
            let options: Vec<_> = kinds
                .into_iter()
                .map(|(layer, number, length)| {
                    let layer = layers[usize::from(layer)];
                    let number = match (layer, number) {
                        (Layer::Extension, _) => 253,
                        (_, number) => number.max(2),
                    };
                    OptionSpec { layer, number, data: vec![7; length] }
                })
                .collect();
            let chain = Sections::of(&options).unwrap().extensions;
            let bytes = chain.before(6);
            let (mut at, mut next) = (0, chain.first);
            while at < bytes.len() {
                prop_assert!([0, 60, 253].contains(&next));
                prop_assert!(next != 0 || at == 0);
                next = bytes[at];
                at += 8 * (usize::from(bytes[at + 1]) + 1);
            }
            prop_assert_eq!((at, next), (bytes.len(), 6));
        }
    }
}
