//! Time stamps as an administrator writes their form, in strftime's words:
//! `%d/%b/%Y:%H:%M:%S %z`. What they name is read from the start, in one go.

use std::fmt;

/// What a stamp of this form says, not yet a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StampFields {
    /// Seconds since 1970; the others do not count then.
    pub epoch: Option<i64>,
    pub year: Option<i16>,
    pub month: i8,
    pub day: i8,
    pub hour: i8,
    pub minute: i8,
    pub second: i8,
    pub nanos: u32,
    /// Seconds east of UTC.
    pub offset: Option<i32>,
}

/// A form of time stamps, item by item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeFormat(Vec<Item>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Text(Box<[u8]>),
    Field(char),
}

/// Why a text is not a form.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeFormatError {
    /// `%` and something else than a known letter.
    Unknown(String),
    /// No time is named: this letter is missing, or is there twice.
    Incomplete(&'static str),
    /// A zone, and no year: the year is guessed by the jail's zone.
    ZoneWithoutYear,
    /// Longer than 200 bytes.
    TooLong,
}

/// The letters that are read.
const FIELDS: &str = "YymbdeHMSfzsa";

impl fmt::Display for TimeFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(part) => {
                let known: Vec<_> = FIELDS.chars().map(|c| format!("%{c}")).collect();
                write!(
                    f,
                    "{part:?} is no field of a time; allowed: {}, %F, %T, %%",
                    known.join(", ")
                )
            }
            Self::Incomplete(what) => write!(
                f,
                "it names no time, for want of one {what}; allowed: %s, or a month (%m or %b), a day (%d or %e), %H, %M and %S, each once"
            ),
            Self::ZoneWithoutYear => f.write_str("it has %z and no year; allowed: %z with %Y or %y, or no %z and the jail's time_zone"),
            Self::TooLong => f.write_str("it is longer than 200 bytes"),
        }
    }
}

impl std::error::Error for TimeFormatError {}

impl TimeFormat {
    /// Reads a form as it is written.
    pub fn parse(text: &str) -> Result<Self, TimeFormatError> {
        if text.len() > 200 {
            return Err(TimeFormatError::TooLong);
        }
        let text = text.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S");
        let mut items = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                literal.push(c);
                continue;
            }
            match chars.next() {
                Some('%') => literal.push('%'),
                Some(field) if FIELDS.contains(field) => {
                    if !literal.is_empty() {
                        items.push(Item::Text(literal.as_bytes().into()));
                        literal.clear();
                    }
                    items.push(Item::Field(field));
                }
                other => {
                    return Err(TimeFormatError::Unknown(
                        ['%'].into_iter().chain(other).collect(),
                    ));
                }
            }
        }
        if !literal.is_empty() {
            items.push(Item::Text(literal.as_bytes().into()));
        }
        let has = |letters: &str| {
            let is = |item: &&Item| matches!(item, Item::Field(c) if letters.contains(*c));
            items.iter().filter(is).count()
        };
        if has("s") != 1 {
            for (letters, what) in [
                ("mb", "month"),
                ("de", "day"),
                ("H", "hour (%H)"),
                ("M", "minute (%M)"),
                ("S", "second (%S)"),
            ] {
                if has(letters) != 1 {
                    return Err(TimeFormatError::Incomplete(what));
                }
            }
            if has("z") > 0 && has("Yy") == 0 {
                return Err(TimeFormatError::ZoneWithoutYear);
            }
        }
        Ok(Self(items))
    }

    /// What stands at the start of a text, and how many bytes that is. Values are
    /// numbers; whether they are a time is another question.
    pub fn read(&self, text: &[u8]) -> Option<(StampFields, usize)> {
        let mut fields = StampFields::default();
        let mut rest = text;
        for item in &self.0 {
            rest = match item {
                Item::Text(literal) => rest.strip_prefix(&**literal)?,
                Item::Field(letter) => field(*letter, rest, &mut fields)?,
            };
        }
        Some((fields, text.len() - rest.len()))
    }
}

/// Reads one field; returns what follows.
fn field<'a>(letter: char, text: &'a [u8], fields: &mut StampFields) -> Option<&'a [u8]> {
    let two = |text: &'a [u8]| {
        let (number, rest) = digits(text, 2, 2)?;
        Some((number as i8, rest))
    };
    let rest = match letter {
        'Y' => {
            let (year, rest) = digits(text, 4, 4)?;
            fields.year = Some(year as i16);
            rest
        }
        'y' => {
            let (year, rest) = digits(text, 2, 2)?;
            fields.year = Some(2000 + year as i16);
            rest
        }
        'm' => {
            let rest;
            (fields.month, rest) = two(text)?;
            rest
        }
        'b' => {
            let (name, rest) = text.split_at_checked(3)?;
            let number = MONTHS.iter().position(|month| *month == name)?;
            fields.month = number as i8 + 1;
            rest
        }
        'd' => {
            let rest;
            (fields.day, rest) = two(text)?;
            rest
        }
        'e' => {
            let (day, rest) = digits(text.strip_prefix(b" ").unwrap_or(text), 1, 2)?;
            fields.day = day as i8;
            rest
        }
        'H' => {
            let rest;
            (fields.hour, rest) = two(text)?;
            rest
        }
        'M' => {
            let rest;
            (fields.minute, rest) = two(text)?;
            rest
        }
        'S' => {
            let rest;
            (fields.second, rest) = two(text)?;
            rest
        }
        'f' => {
            let (number, rest) = digits(text, 1, 9)?;
            let places = (text.len() - rest.len()) as u32;
            fields.nanos = number as u32 * 10_u32.pow(9 - places);
            rest
        }
        's' => {
            let (seconds, rest) = digits(text, 1, 11)?;
            fields.epoch = Some(seconds);
            rest
        }
        'z' => {
            let (offset, rest) = zone(text)?;
            fields.offset = Some(offset);
            rest
        }
        // The day of the week.
        _ => {
            let (name, rest) = text.split_at_checked(3)?;
            name.iter().all(u8::is_ascii_alphabetic).then_some(rest)?
        }
    };
    Some(rest)
}

pub(crate) const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// A number of so many digits, at most 11.
fn digits(text: &[u8], least: usize, most: usize) -> Option<(i64, &[u8])> {
    let count = text.iter().take(most).take_while(|b| b.is_ascii_digit());
    let count = count.count();
    let (number, rest) = text.split_at(count);
    let value = number
        .iter()
        .fold(0, |n, digit| n * 10 + i64::from(digit - b'0'));
    (count >= least).then_some((value, rest))
}

/// `Z`, `+0100` or `+01:00`: seconds east of UTC.
fn zone(text: &[u8]) -> Option<(i32, &[u8])> {
    let (sign, rest) = text.split_first()?;
    let sign = match sign {
        b'Z' => return Some((0, rest)),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = digits(rest, 2, 2)?;
    let (minutes, rest) = digits(rest.strip_prefix(b":").unwrap_or(rest), 2, 2)?;
    Some((sign * (hours * 3600 + minutes * 60) as i32, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_name_no_time_are_refused() {
        for (text, said) in [
            ("%Q", "\"%Q\" is no field of a time; allowed: %Y, "),
            ("%H:%M:%S %", "\"%\" is no field"),
            ("%H:%M:%S", "for want of one month"),
            ("%b %H:%M:%S", "for want of one day"),
            ("%F %T %T", "for want of one hour"),
            ("", "allowed: %s, or a month"),
            (
                "%d %b %T %z",
                "it has %z and no year; allowed: %z with %Y or %y, or no %z",
            ),
            (&"x".repeat(201), "longer than 200 bytes"),
        ] {
            let error = TimeFormat::parse(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_stamp_is_read_from_the_start_and_no_further() {
        for (format, text, read) in [
            ("%d/%b/%Y:%T %z", "22/Nov/2026:10:11:12 +0130] x", 26),
            ("%a %b %e %T.%f %Y", "Sun Nov  2 10:11:12.123456 2026", 31),
            ("%a %b %e %T.%f %Y", "Sun Nov 2 10:11:12.1 2026]", 25),
            ("%Y/%m/%d %T", "2026/11/22 10:11:12 [error]", 19),
            ("%s.%f", "1763806272.125 x", 14),
            ("%F %T%z", "2026-11-22 10:11:12+01:00,", 25),
            ("100%% %s", "100% 7", 6),
        ] {
            let format = TimeFormat::parse(format).expect(format);
            let end = format.read(text.as_bytes()).map(|(_, end)| end);
            assert_eq!(end, Some(read), "{text}");
            // Cut anywhere before its end it is none, or (where a number may be
            // shorter) one of the part that is there.
            for cut in 0..read {
                let end = format.read(&text.as_bytes()[..cut]).map(|(_, end)| end);
                assert!(end.is_none_or(|end| end == cut), "{text} cut at {cut}");
            }
        }
        let format = TimeFormat::parse("%y%m%d %T.%f %z").unwrap();
        let (fields, _) = format.read(b"261122 10:11:12.25 -0330").unwrap();
        let expected = StampFields {
            epoch: None,
            year: Some(2026),
            month: 11,
            day: 22,
            hour: 10,
            minute: 11,
            second: 12,
            nanos: 250_000_000,
            offset: Some(-12_600),
        };
        assert_eq!(fields, expected);
        for text in ["261122 10:1:12.25 -0330", "261122 10:11:12.x -0330", "26"] {
            assert_eq!(format.read(text.as_bytes()), None, "{text}");
        }
    }
}
