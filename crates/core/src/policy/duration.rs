//! Durations as people write them: `10m`, `1h30m`, `1d 12h`, `600` (seconds).
//! As a module for `#[serde(with = "…")]` it reads both texts and numbers.

use std::{fmt, time::Duration};

use serde::{Deserializer, Serializer, de};

/// Seconds per unit, the units that a formatted duration uses first.
const UNITS: [(&str, u64); 6] = [
    ("y", 31_536_000),
    ("w", 604_800),
    ("d", 86_400),
    ("h", 3600),
    ("m", 60),
    ("s", 1),
];

/// A thousand years; more is a typing mistake.
const MAX: u64 = 1000 * 31_536_000;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurationError {
    /// A part is not a number with a unit.
    Malformed(String),
    /// Longer than a thousand years.
    TooLong(String),
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clip = |text: &str| text.chars().take(64).collect::<String>();
        match self {
            Self::Malformed(text) => write!(
                f,
                "{:?} is not a duration: write 10m, 1h30m, 1d 12h, 2w, 1y or seconds (units y w d h m s)",
                clip(text)
            ),
            Self::TooLong(text) => {
                write!(f, "{:?} is longer than 1000 years", clip(text))
            }
        }
    }
}

impl std::error::Error for DurationError {}

/// Reads a duration. Units are y (365 days), w, d, h, m (minutes), s; a bare
/// number is seconds; blanks between parts are fine.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let too_long = || DurationError::TooLong(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(malformed());
    }
    if rest.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = rest.parse().map_err(|_| too_long())?;
        return bounded(seconds).ok_or_else(too_long);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at(digits);
        if number.is_empty() {
            return Err(malformed());
        }
        let letters = unit.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = unit.split_at(letters);
        let (_, seconds) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(malformed)?;
        let number: u64 = number.parse().map_err(|_| too_long())?;
        total = number
            .checked_mul(*seconds)
            .and_then(|part| part.checked_add(total))
            .ok_or_else(too_long)?;
        rest = after.trim_start();
    }
    bounded(total).ok_or_else(too_long)
}

fn bounded(seconds: u64) -> Option<Duration> {
    (seconds <= MAX).then(|| Duration::from_secs(seconds))
}

/// `2h 5m`: the two largest units that are needed, whole seconds at least
/// (`0s`); what `parse_duration` reads, rounded down.
pub fn format_duration(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let mut parts: Vec<String> = vec![];
    for (name, unit) in UNITS {
        let n = seconds / unit;
        seconds %= unit;
        if n > 0 {
            parts.push(format!("{n}{name}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    if parts.is_empty() {
        parts.push("0s".into());
    }
    parts.join(" ")
}

/// As every unit that is needed, so that nothing is lost.
fn exact(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let parts: Vec<String> = UNITS
        .iter()
        .filter_map(|(name, unit)| {
            let n = seconds / unit;
            seconds %= unit;
            (n > 0).then(|| format!("{n}{name}"))
        })
        .collect();
    if parts.is_empty() {
        "0s".into()
    } else {
        parts.join(" ")
    }
}

/// Writes a duration as text, exactly to the second.
pub fn serialize<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&exact(*duration))
}

/// Reads a text or a whole number of seconds.
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    d.deserialize_any(Visitor { never: false })?
        .ok_or_else(|| de::Error::custom("a duration is needed"))
}

/// Reads as [`deserialize`], and `never` as `None`.
pub(super) fn deserialize_or_never<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Duration>, D::Error> {
    d.deserialize_any(Visitor { never: true })
}

struct Visitor {
    never: bool,
}

impl de::Visitor<'_> for Visitor {
    type Value = Option<Duration>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"10m\" or a number of seconds")?;
        if self.never {
            f.write_str(", or \"never\"")?;
        }
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if self.never && text == "never" {
            return Ok(None);
        }
        parse_duration(text).map(Some).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Self::Value, E> {
        match bounded(seconds) {
            Some(duration) => Ok(Some(duration)),
            None => Err(E::custom(DurationError::TooLong(seconds.to_string()))),
        }
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Self::Value, E> {
        match u64::try_from(seconds) {
            Ok(seconds) => self.visit_u64(seconds),
            Err(_) => Err(E::custom(DurationError::Malformed(seconds.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed() {
        for (text, seconds, printed) in [
            ("600", 600, "10m"),
            ("10m", 600, "10m"),
            ("1h30m", 5400, "1h 30m"),
            ("1d12h", 129_600, "1d 12h"),
            (" 1d 12h ", 129_600, "1d 12h"),
            ("1w", 604_800, "1w"),
            ("1y", 31_536_000, "1y"),
            ("1d 5s", 86_405, "1d"),
            ("2h 5m 9s", 7509, "2h 5m"),
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("1000y", MAX, "1000y"),
        ] {
            let duration = parse_duration(text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(duration.as_secs(), seconds, "{text}");
            assert_eq!(format_duration(duration), printed, "{text}");
            assert_eq!(parse_duration(&exact(duration)), Ok(duration), "{text}");
        }
        for text in [
            "", " ", "m", "10x", "10 m", "-5", "1.5h", "10mo", "5m3", "1h,2m", "+3", "٣m",
        ] {
            assert!(
                matches!(parse_duration(text), Err(DurationError::Malformed(_))),
                "{text}"
            );
        }
        for text in [
            "1001y",
            "99999999999999999999",
            "99999999999999999999s",
            "18446744073709551615w",
        ] {
            assert!(
                matches!(parse_duration(text), Err(DurationError::TooLong(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_written_duration_names_every_unit_it_needs_and_no_other() {
        for (seconds, written) in [
            (0, "0s"),
            (5, "5s"),
            (3600, "1h"),
            (86_405, "1d 5s"),
            (7509, "2h 5m 9s"),
        ] {
            assert_eq!(exact(Duration::from_secs(seconds)), written);
        }
    }

    #[test]
    fn config_may_hold_texts_numbers_and_never() {
        #[derive(serde::Deserialize)]
        struct Config {
            #[serde(with = "super")]
            find_time: Duration,
            ban_time: crate::policy::BanTime,
        }
        let read = |text: &str| toml::from_str::<Config>(text);
        let config = read("find_time = 600\nban_time = 'never'").unwrap();
        assert_eq!(config.find_time.as_secs(), 600);
        assert_eq!(config.ban_time, crate::policy::BanTime::Never);
        assert!(read("find_time = '1h'\nban_time = '2h'").is_ok());
        for text in [
            "find_time = 'never'\nban_time = 1",
            "find_time = -1\nban_time = 1",
            "find_time = 1.5\nban_time = 1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
