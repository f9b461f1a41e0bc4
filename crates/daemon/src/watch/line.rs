//! What a watch prints: one address or prefix per line, and behind white space
//! whatever it wants to be remembered for. Everything else is refused and
//! counted; nothing of a line is ever run, resolved or taken for a format.

use std::fmt;

use weir_core::{AddrError, BanTarget, Prefix};

/// The longest line that is read, in bytes; the rest of a longer one is skipped.
pub const MAX_LINE: usize = 1024;

/// The widest prefixes that a watch may name: a mistake in a script, or a line
/// that somebody smuggled into its log, must not shut out half the internet.
const WIDEST: (u8, u8) = (16, 32);

/// The addresses that a line names, with the line as the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The addresses that the line names.
    pub prefix: Prefix,
    /// The line itself; the watched program's or its attacker's text.
    pub line: String,
}

/// The reason why a line names nobody.
#[derive(Debug, PartialEq, Eq)]
pub enum LineError {
    /// The line does not begin with an address.
    Address(AddrError),
    /// The prefix is wider than a watch may name.
    Wide(Prefix),
    /// The line has more than [`MAX_LINE`] bytes.
    Long,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::Wide(prefix) => write!(
                f,
                "{prefix} is too wide: a watch may name /{} and longer for IPv4, /{} for IPv6",
                WIDEST.0, WIDEST.1
            ),
            Self::Long => write!(f, "a line of more than {MAX_LINE} bytes"),
        }
    }
}

/// Reads one line without its newline; `None` for an empty one.
pub fn read(line: &[u8]) -> Result<Option<Sighting>, LineError> {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_matches([' ', '\t', '\r']);
    let Some(word) = line.split([' ', '\t']).next().filter(|w| !w.is_empty()) else {
        return Ok(None);
    };
    let prefix: Prefix = word.parse().map_err(LineError::Address)?;
    let widest = match prefix.addr().is_ipv4() {
        true => WIDEST.0,
        false => WIDEST.1,
    };
    if prefix.bits() < widest {
        return Err(LineError::Wide(prefix));
    }
    BanTarget::new(prefix).map_err(LineError::Address)?;
    Ok(Some(Sighting {
        prefix,
        line: line.to_owned(),
    }))
}

/// Who is handed each line, or `Err` for one that was too long.
pub type Each<'a> = dyn FnMut(Result<&[u8], LineError>) + 'a;

/// Cuts what comes from a pipe into lines, in bounded memory.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// The line that has begun is too long already.
    long: bool,
}

impl Lines {
    /// Takes the next bytes; hands over each line that ends in them, or `Err`
    /// for one that was too long.
    pub fn take(&mut self, mut bytes: &[u8], each: &mut Each<'_>) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (piece, rest) = (&bytes[..end], &bytes[end + 1..]);
            self.extend(piece);
            self.end(each);
            bytes = rest;
        }
        self.extend(bytes);
    }

    /// The pipe has ended: so has its last line.
    pub fn finish(&mut self, each: &mut Each<'_>) {
        if self.long || !self.begun.is_empty() {
            self.end(each);
        }
    }

    fn extend(&mut self, piece: &[u8]) {
        if self.begun.len() + piece.len() > MAX_LINE {
            self.long = true;
            self.begun.clear();
        }
        if !self.long {
            self.begun.extend_from_slice(piece);
        }
    }

    fn end(&mut self, each: &mut Each<'_>) {
        each(match std::mem::take(&mut self.long) {
            true => Err(LineError::Long),
            false => Ok(&self.begun),
        });
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_an_address_or_nobody() {
        for (line, named) in [
            ("192.0.2.7", "192.0.2.7"),
            ("  192.0.2.7\t", "192.0.2.7"),
            ("192.0.2.7\r", "192.0.2.7"),
            ("192.0.2.7 SASL LOGIN failed; rm -rf /", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2::/64 a whole site", "2001:db8:1:2::/64"),
            ("198.51.0.0/16", "198.51.0.0/16"),
        ] {
            let sighting = read(line.as_bytes()).expect(line).expect(line);
            assert_eq!(sighting.prefix.to_string(), named, "{line}");
            assert_eq!(sighting.line, line.trim());
        }
        for empty in ["", " ", "\t \r"] {
            assert_eq!(read(empty.as_bytes()), Ok(None));
        }
    }

    /// G11: ipt_geofence put such lines into a root shell's command.
    #[test]
    fn hostile_lines_name_nobody() {
        for line in [
            "192.0.2.7;reboot",
            ";192.0.2.7",
            "$(reboot)",
            "`reboot` 192.0.2.7",
            "192.0.2.7|sh",
            "192.0.2.7&&reboot",
            "'192.0.2.7'",
            "evil.example.org",
            "localhost",
            "invalid user from 192.0.2.7",
            "root 192.0.2.7",
            "from 192.0.2.7 port 22",
            "-192.0.2.7",
            "--help",
            "192.0.2",
            "192.0.2.7.1",
            "192.0.2.256",
            "0192.0.2.7",
            "0xc0000207",
            "3221225991",
            "192.0.2.7:22",
            "[2001:db8::7]",
            "fe80::1%eth0",
            "192.0.2.7/24",
            "192.0.2.7/33",
            "192.0.2.7/-1",
            "192.0.2.7/",
            "/24",
            "0.0.0.0/0",
            "::/0",
            "10.0.0.0/8",
            "2001::/16",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "fe80::/64",
            "192.0.2.7\u{a0}evidence",
            "192.0.2.7\u{0}",
            "１９２.0.2.7",
            "\u{1b}[2J192.0.2.7",
            "#192.0.2.7",
            "192.0.2.7,192.0.2.8",
        ] {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
        assert!(read(b"\xff\xfe192.0.2.7").is_err());
        assert!(read(b"192.0.2.7\xff").is_err());
    }

    #[test]
    fn lines_are_cut_wherever_the_pipe_cuts() {
        let long = "x".repeat(MAX_LINE + 1);
        let whole = "y".repeat(MAX_LINE);
        let text = format!("one\n\ntwo\n{long}\n{whole}\nlast");
        for size in [1, 2, 3, 7, 1000, text.len()] {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            let mut each = |line: Result<&[u8], LineError>| {
                seen.push(line.map(|l| String::from_utf8(l.to_vec()).unwrap()));
            };
            for piece in text.as_bytes().chunks(size) {
                lines.take(piece, &mut each);
            }
            lines.finish(&mut each);
            lines.finish(&mut each);
            let expected = [
                Ok("one".to_owned()),
                Ok(String::new()),
                Ok("two".to_owned()),
                Err(LineError::Long),
                Ok(whole.clone()),
                Ok("last".to_owned()),
            ];
            assert_eq!(seen, expected, "pieces of {size}");
        }
    }
}
