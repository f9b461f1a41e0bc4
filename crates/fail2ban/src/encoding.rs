//! What a log's bytes mean as text (`logencoding`): the encodings of Python by Python's
//! names, each byte that is none replaced as Python does.

use std::{
    borrow::Cow,
    io::{self, BufRead},
};

use encoding_rs::{UTF_16BE, UTF_16LE};

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogEncoding {
    /// UTF-8, which `auto` is as well.
    #[default]
    Utf8,
    /// Seven bits; others are replaced.
    Ascii,
    /// A byte a character, each as its number.
    Latin1,
    /// Two bytes a character, the low or the high one first; a mark at the beginning of a
    /// log says which.
    Utf16 {
        /// The high byte comes first.
        big_endian: bool,
    },
    /// Any other that is known by a name.
    Other(&'static encoding_rs::Encoding),
}

/// What stands for bytes that are no text.
const REPLACEMENT: char = '\u{fffd}';
/// The names that [`LogEncoding::of`] knows, for messages.
pub const ENCODINGS: &str = "auto, utf-8, ascii, latin-1, iso-8859-2 to -16, cp1250 to cp1258, cp866, koi8-r, koi8-u, utf-16, utf-16-le, utf-16-be, gbk, gb18030, big5, shift_jis, euc-jp or euc-kr";

impl LogEncoding {
    /// The one of this name; `None` if there is none.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        let label = match name.as_str() {
            "auto" | "utf-8" | "utf8" | "u8" | "utf-8-sig" => return Some(Self::Utf8),
            "ascii" | "us-ascii" | "646" => return Some(Self::Ascii),
            "latin-1" | "latin1" | "l1" | "iso-8859-1" | "iso8859-1" | "8859" | "cp819" => {
                return Some(Self::Latin1);
            }
            "utf-16" | "utf16" | "u16" | "utf-16-le" | "utf-16le" => {
                return Some(Self::Utf16 { big_endian: false });
            }
            "utf-16-be" | "utf-16be" => return Some(Self::Utf16 { big_endian: true }),
            "latin-2" => "iso-8859-2".to_owned(),
            "latin-9" | "latin9" | "l9" => "iso-8859-15".to_owned(),
            "shift-jis" | "sjis" => "shift_jis".to_owned(),
            name => match name.strip_prefix("cp125") {
                Some(digit) => format!("windows-125{digit}"),
                None => name.replace("iso8859", "iso-8859"),
            },
        };
        let found = encoding_rs::Encoding::for_label(label.as_bytes())?;
        let is_text = found != encoding_rs::REPLACEMENT && found != encoding_rs::X_USER_DEFINED;
        is_text.then_some(Self::Other(found))
    }

    /// What a line says. A mark of the byte order at its beginning is left out.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Cow<'a, str> {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes),
            // Most lines are ASCII in any of the others, UTF-16 apart.
            Self::Ascii | Self::Latin1 if bytes.is_ascii() => String::from_utf8_lossy(bytes),
            Self::Ascii => {
                let of = |byte: &u8| match byte.is_ascii() {
                    true => char::from(*byte),
                    false => REPLACEMENT,
                };
                Cow::Owned(bytes.iter().map(of).collect())
            }
            Self::Latin1 => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
            Self::Utf16 { big_endian } => {
                let (big_endian, bytes) = match bytes {
                    [0xff, 0xfe, rest @ ..] => (false, rest),
                    [0xfe, 0xff, rest @ ..] => (true, rest),
                    all => (*big_endian, all),
                };
                let encoding = if big_endian { UTF_16BE } else { UTF_16LE };
                encoding.decode_without_bom_handling(bytes).0
            }
            Self::Other(encoding) => {
                let (text, _) = encoding.decode_without_bom_handling(bytes);
                // Bytes that mean nothing are control characters for the web, and no
                // characters for Python.
                let is_nothing = |c: char| ('\u{80}'..='\u{9f}').contains(&c);
                match encoding.name().starts_with("windows-") && text.contains(is_nothing) {
                    true => Cow::Owned(text.replace(is_nothing, "\u{fffd}")),
                    false => text,
                }
            }
        }
    }

    /// Reads a line with its newline, in bounded memory: of a longer one the first `max`
    /// bytes. False at the end. `self` follows a mark of the byte order.
    ///
    /// # Errors
    /// As of the input.
    pub fn read_line(
        &mut self,
        input: &mut impl BufRead,
        line: &mut Vec<u8>,
        max: usize,
    ) -> io::Result<bool> {
        line.clear();
        let mut length = 0;
        let mut last = [0xff; 2];
        let mut had_mark = false;
        loop {
            let available = input.fill_buf()?;
            if available.is_empty() {
                return Ok(length > 0);
            }
            let end = available.iter().position(|b| *b == b'\n');
            let piece = &available[..end.map_or(available.len(), |at| at + 1)];
            line.extend(&piece[..piece.len().min(max.saturating_sub(line.len()))]);
            length += piece.len();
            for byte in &piece[piece.len().saturating_sub(2)..] {
                last = [last[1], *byte];
            }
            let used = piece.len();
            input.consume(used);
            let Self::Utf16 { big_endian } = self else {
                match end {
                    Some(_) => return Ok(true),
                    None => continue,
                }
            };
            if line.len() >= 2 && !std::mem::replace(&mut had_mark, true) {
                match [line[0], line[1]] {
                    [0xff, 0xfe] => *big_endian = false,
                    [0xfe, 0xff] => *big_endian = true,
                    _ => {}
                }
            }
            if end.is_none() {
                continue;
            }
            // A character is at an even place, and a newline's other byte is 0.
            match big_endian {
                true if length.is_multiple_of(2) && last[0] == 0 => return Ok(true),
                false if length % 2 == 1 => match input.fill_buf()?.first() {
                    None => return Ok(true),
                    Some(0) => {
                        input.consume(1);
                        if line.len() < max {
                            line.push(0);
                        }
                        return Ok(true);
                    }
                    Some(_) => {}
                },
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_known_by_pythons_names() {
        for (name, bytes, text) in [
            ("auto", &b"a\xc3\xa9\xff"[..], "aé\u{fffd}"),
            ("ASCII", b"a\xe9", "a\u{fffd}"),
            ("latin-1", b"a\xe9\x80", "aé\u{80}"),
            ("ISO8859-15", b"\xa4", "€"),
            ("cp1252", b"\x80\x81", "€\u{fffd}"),
            ("windows-1251", b"\xef", "п"),
            ("cp1251", b"\xef", "п"),
            ("koi8_r", b"\xd0", "п"),
            ("cp866", b"\xaf", "п"),
            ("utf-16-be", b"\0a\x20\xac", "a€"),
            ("utf_16_le", b"a\0\xac\x20", "a€"),
            ("utf-16", b"\xfe\xff\0a", "a"),
            ("utf-16", b"a\0\0\xd8b\0", "a\u{fffd}b"),
            ("gbk", b"\xc4\xe3", "你"),
        ] {
            let encoding = LogEncoding::of(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(encoding.decode(bytes), text, "{name}");
        }
        for name in ["", "utf-9", "cp1259", "x-user-defined", "iso-2022-kr"] {
            assert_eq!(LogEncoding::of(name), None, "{name}");
        }
    }

    /// A byte of a character that looks like a newline is none.
    #[test]
    fn lines_of_two_byte_characters_end_at_newlines_only() {
        let texts = ["a\u{10a}b", "\u{a00}\u{a0a}", "", "c\u{a0d}", "last"];
        for (name, big, mark) in [
            ("utf-16-le", false, false),
            ("utf-16-be", true, false),
            ("utf-16", true, true),
            ("utf-16", false, true),
        ] {
            let whole = texts.join("\n");
            let mut units: Vec<u16> = whole.encode_utf16().collect();
            if mark {
                units.insert(0, 0xfeff);
            }
            let bytes: Vec<u8> = (units.iter())
                .flat_map(|unit| match big {
                    true => unit.to_be_bytes(),
                    false => unit.to_le_bytes(),
                })
                .collect();
            for capacity in 1..7 {
                let mut input = io::BufReader::with_capacity(capacity, &bytes[..]);
                let mut encoding = LogEncoding::of(name).unwrap();
                let (mut line, mut read) = (Vec::new(), Vec::new());
                while encoding.read_line(&mut input, &mut line, 100).unwrap() {
                    read.push(encoding.decode(&line).trim_end_matches('\n').to_owned());
                }
                assert_eq!(read, texts, "{name}, {capacity} bytes at a time");
            }
        }
    }

    #[test]
    fn a_long_line_is_cut() {
        let mut input = &b"aaaaaaaa\nb\n"[..];
        let mut line = Vec::new();
        let mut encoding = LogEncoding::Utf8;
        assert!(encoding.read_line(&mut input, &mut line, 3).unwrap());
        assert_eq!(line, b"aaa");
        assert!(encoding.read_line(&mut input, &mut line, 3).unwrap());
        assert_eq!(line, b"b\n");
        assert!(!encoding.read_line(&mut input, &mut line, 3).unwrap());
    }
}
