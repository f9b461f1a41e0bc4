//! An option as it is named on the command line and in results: `tcp:exp-254`, `ip:0x5e=0011`,
//! `ip:94/24`.

use std::{fmt, str::FromStr};

use crate::codepoint::{CODEPOINTS, Layer, by_name, by_number, filler};

/// Characters of a named option at most: a longer text is not read.
const MAX_TEXT: usize = 1024;

/// One option or extension header with its data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OptionSpec {
    /// The part of the packet in which it stands.
    pub layer: Layer,
    /// The number of the option: kind, type, or protocol number.
    pub number: u8,
    /// The data behind kind and length; empty, and without a length, if the kind is a single
    /// byte.
    pub data: Vec<u8>,
}

/// Why a text names no option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text has no layer, or another one.
    #[error("it begins with no layer; allowed: {}", layers())]
    Layer,
    /// The layer has no option of this name.
    #[error("{layer} has no option of this name; allowed: a number from 0 to 255, or one of {}", names(.layer))]
    Name {
        /// The word of the layer that was named.
        layer: &'static str,
    },
    /// The length is not one that the option can have.
    #[error(
        "its length is not a number from 2 to {max}: of the whole option, with kind and length"
    )]
    Length {
        /// The longest that an option can be in this layer.
        max: usize,
    },
    /// The data are not in hexadecimal digits.
    #[error("its data are not pairs of hexadecimal digits")]
    Data,
    /// The data do not go into one option.
    #[error("its data have {bytes} bytes; allowed: up to {max}")]
    TooLong {
        /// Bytes that were given.
        bytes: usize,
        /// Bytes that go into one option of the layer.
        max: usize,
    },
    /// A length or data of an option that is a single byte.
    #[error("it is a single byte, without length and data")]
    SingleByte,
    /// A header that has another form than extension headers have.
    #[error("this protocol number is of no extension header that can be put into a packet")]
    NotAHeader,
}

fn layers() -> String {
    let layers = Layer::ALL.map(|layer| format!("{}:", layer.name()));
    layers.join(", ")
}

fn names(layer: &str) -> String {
    let of_layer = CODEPOINTS.iter().filter(|c| c.layer.name() == layer);
    let names: Vec<_> = of_layer.map(|codepoint| codepoint.name).collect();
    names.join(", ")
}

fn number(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u8::from_str_radix(digits, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

impl FromStr for OptionSpec {
    type Err = SpecError;

    /// Reads `LAYER:NAME-OR-NUMBER`, and behind it `/LENGTH` of the whole option or `=HEX` of
    /// its data; without either the data are those of the table, or two bytes of filler.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.len() > MAX_TEXT {
            return Err(SpecError::Layer);
        }
        let (layer, rest) = text.split_once(':').ok_or(SpecError::Layer)?;
        let layer = Layer::from_name(layer).ok_or(SpecError::Layer)?;
        let end = rest.find(['/', '=']).unwrap_or(rest.len());
        let (name, more) = rest.split_at(end);
        let number = number(name)
            .or_else(|| by_name(layer, name).map(|codepoint| codepoint.number))
            .ok_or(SpecError::Name {
                layer: layer.name(),
            })?;
        // ESP and AH have forms, and a key, of their own; what is behind "no next header" is
        // not looked at.
        if layer == Layer::Extension && matches!(number, 50 | 51 | 59) {
            return Err(SpecError::NotAHeader);
        }
        let is_single = layer.is_single_byte(number);
        let max = layer.max_data();
        let data = match more.split_at_checked(1) {
            None => match by_number(layer, number) {
                Some(codepoint) => codepoint.data(),
                None if is_single => Vec::new(),
                None => filler(2),
            },
            Some(_) if is_single => return Err(SpecError::SingleByte),
            Some(("/", length)) => {
                let wanted = length.parse::<usize>().ok();
                let wanted = wanted.filter(|_| !length.starts_with('+'));
                let wanted = wanted.filter(|bytes| (2..=max + 2).contains(bytes));
                filler(wanted.ok_or(SpecError::Length { max: max + 2 })? - 2)
            }
            Some((_, digits)) => hex::decode(digits).map_err(|_| SpecError::Data)?,
        };
        if data.len() > max {
            return Err(SpecError::TooLong {
                bytes: data.len(),
                max,
            });
        }
        Ok(Self {
            layer,
            number,
            data,
        })
    }
}

impl fmt::Display for OptionSpec {
    /// The shortest text that reads as the same option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = by_number(self.layer, self.number);
        write!(f, "{}:", self.layer.name())?;
        match known {
            Some(codepoint) => f.write_str(codepoint.name)?,
            None => write!(f, "{}", self.number)?,
        }
        let usual = known.map_or_else(|| filler(2), |codepoint| codepoint.data());
        if self.layer.is_single_byte(self.number) || self.data == usual {
            return Ok(());
        }
        if self.data == filler(self.data.len()) {
            return write!(f, "/{}", self.data.len() + 2);
        }
        f.write_str("=")?;
        f.write_str(&hex::encode(&self.data))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> OptionSpec {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn options_are_named_in_each_way() {
        let spec = read("ip:0x5e=00Ff");
        assert_eq!((spec.number, &spec.data[..]), (0x5e, &[0, 0xff][..]));
        assert_eq!(read("ip:94=00ff"), spec);
        assert_eq!(read("ip:exp-94/4"), read("ip:94"));
        assert_eq!(read("tcp:exp-254").data, [0xde, 0xad, 0, 1]);
        assert_eq!(read("tcp:200/6").data, [0, 1, 2, 3]);
        assert_eq!(read("ip:rr").data.len(), 37);
        assert_eq!(read("ext:hop").layer, Layer::Extension);
        assert_eq!(read("tcp:sack-permitted").data, []);
        for (text, shown) in [
            ("ip:94=0001", "ip:exp-94"),
            ("ip:94/24", "ip:exp-94/24"),
            ("udp:0xc8=aa", "udp:200=aa"),
            ("tcp:1", "tcp:nop"),
            ("hop:0x1e", "hop:exp-1e"),
        ] {
            assert_eq!(read(text).to_string(), shown);
        }
    }

    #[test]
    fn mistakes_are_named_with_what_is_allowed() {
        for (text, word) in [
            ("rr", "allowed: ip:, tcp:, udp:, hop:, dst:, ext:"),
            ("IP:rr", "allowed: ip:"),
            ("ip:nothing", "one of eol, nop"),
            ("ip:256", "0 to 255"),
            ("ip:+7", "0 to 255"),
            ("ip:0x+7", "0 to 255"),
            ("ip:94/1", "from 2 to 40"),
            ("ip:94/41", "from 2 to 40"),
            ("ip:94/", "from 2 to 40"),
            ("ip:94=0", "hexadecimal"),
            ("ip:94=zz", "hexadecimal"),
            ("tcp:nop/3", "single byte"),
            ("tcp:nop=00", "single byte"),
            ("ext:51", "no extension header"),
            ("ext:50", "no extension header"),
        ] {
            let said = text.parse::<OptionSpec>().unwrap_err().to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
        let long = format!("ip:94={}", "00".repeat(39));
        let said = long.parse::<OptionSpec>().unwrap_err().to_string();
        assert_eq!(said, "its data have 39 bytes; allowed: up to 38");
        assert!("ip:".repeat(1000).parse::<OptionSpec>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_the_same(
            layer in prop::sample::select(&Layer::ALL[..]),
            number: u8,
            data in prop::collection::vec(any::<u8>(), 0..30),
        ) {
            prop_assume!(layer != Layer::Extension || !matches!(number, 50 | 51 | 59));
            let data = if layer.is_single_byte(number) { Vec::new() } else { data };
            let spec = OptionSpec { layer, number, data };
            prop_assert_eq!(read(&spec.to_string()), spec);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(ip|tcp|udp|hop|dst|ext)?:?[0-9a-fx/=é-]{0,12}") {
            if let Ok(spec) = text.parse::<OptionSpec>() {
                prop_assert!(spec.data.len() <= spec.layer.max_data());
                prop_assert_eq!(read(&spec.to_string()), spec);
            }
        }
    }
}
