//! The two forms of dates that nearly all logs have, at the beginning of a line, read
//! without an expression: `Nov 21 04:33:07` and `2026-11-21T04:33:07.5+01:00`. What is
//! read here is what the form's expression finds; what is doubtful is left to that.

use super::fields::Found;

/// Which of them a form is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    Syslog,
    Iso,
}

/// The fields of a date, by their letters.
pub type Fields<'t> = [(char, &'t str); 7];

/// Where a date of this form stands, and what it says. `None`: nobody knows.
pub fn read(stamp: Stamp, line: &str) -> Option<(Found, Fields<'_>)> {
    let bytes = line.as_bytes();
    let (end, fields) = match stamp {
        Stamp::Syslog => syslog(line, bytes)?,
        Stamp::Iso => iso(line, bytes)?,
    };
    let found = Found {
        span: (0, end),
        cut: (0, end),
    };
    Some((found, fields))
}

/// Two digits there, and no more than that.
fn number(bytes: &[u8], at: usize, max: u8) -> bool {
    let [tens, ones] = [bytes[at], bytes[at + 1]];
    tens.is_ascii_digit() && ones.is_ascii_digit() && (tens - b'0') * 10 + ones - b'0' <= max
}

fn clock(bytes: &[u8], at: usize) -> bool {
    bytes[at + 2] == b':'
        && bytes[at + 5] == b':'
        && number(bytes, at, 23)
        && number(bytes, at + 3, 59)
        && number(bytes, at + 6, 59)
}

/// Does a word end before this?
fn ends(byte: Option<&u8>) -> bool {
    byte.is_none_or(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric() && *byte != b'_')
}

fn syslog<'t>(line: &'t str, bytes: &[u8]) -> Option<(usize, Fields<'t>)> {
    let months: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let has_form = bytes.len() > 15
        && bytes[3] == b' '
        && bytes[6] == b' '
        && months.chunks(3).any(|month| month == &bytes[..3])
        && matches!(bytes[4], b' ' | b'0'..=b'3')
        && bytes[5].is_ascii_digit()
        && clock(bytes, 7);
    let day = (bytes.get(4)? & 0xf) * 10 + (bytes.get(5)? & 0xf);
    // A fraction, or a year.
    let goes_on = match bytes.get(15)? {
        b'.' => true,
        b' ' => bytes.get(16) == Some(&b'2'),
        byte => !ends(Some(byte)),
    };
    if !has_form || !(1..=31).contains(&day) || goes_on {
        return None;
    }
    let fields = [
        ('b', &line[..3]),
        ('d', &line[4..6]),
        ('H', &line[7..9]),
        ('M', &line[10..12]),
        ('S', &line[13..15]),
        ('f', ""),
        ('f', ""),
    ];
    Some((15, fields))
}

fn iso<'t>(line: &'t str, bytes: &[u8]) -> Option<(usize, Fields<'t>)> {
    let has_form = bytes.len() > 19
        && bytes.starts_with(b"20")
        && bytes[2].is_ascii_digit()
        && bytes[3].is_ascii_digit()
        && matches!(bytes[4], b'-' | b'/' | b'.')
        && bytes[7] == bytes[4]
        && number(bytes, 5, 12)
        && number(bytes, 8, 31)
        && matches!(bytes[10], b'T' | b' ')
        && clock(bytes, 11);
    if !has_form || &bytes[5..7] == b"00" || &bytes[8..10] == b"00" {
        return None;
    }
    let mut end = 19;
    if matches!(bytes[end], b'.' | b',') {
        let digits = bytes[end + 1..].iter().take_while(|b| b.is_ascii_digit());
        match digits.count() {
            0 => {}
            digits @ 1..=6 => end += 1 + digits,
            _ => return None,
        }
    }
    let mut zone = ('f', "");
    let rest = &bytes[end..];
    let length = match rest {
        [b'Z', ..] => 1,
        [b'+' | b'-', b'0' | b'1', b, b':', c, d, ..]
            if [b, c, d].iter().all(|b| b.is_ascii_digit()) =>
        {
            6
        }
        [b'+' | b'-', b'0' | b'1', b, c, d, ..] if [b, c, d].iter().all(|b| b.is_ascii_digit()) => {
            5
        }
        // A zone may be behind blanks.
        [b'+' | b'-' | b'U' | b'G', ..] => return None,
        _ => {
            let behind = rest.iter().find(|b| !b.is_ascii_whitespace());
            if matches!(
                behind,
                Some(b'+' | b'-' | b'Z' | b'U' | b'G' | 0x1c..=0x1f | 0x80..)
            ) {
                return None;
            }
            0
        }
    };
    if length > 0 {
        zone = ('z', &line[end..end + length]);
        end += length;
    }
    if !ends(bytes.get(end)) {
        return None;
    }
    let fields = [
        ('Y', &line[..4]),
        ('m', &line[5..7]),
        ('d', &line[8..10]),
        ('H', &line[11..13]),
        ('M', &line[14..16]),
        ('S', &line[17..19]),
        zone,
    ];
    Some((end, fields))
}
