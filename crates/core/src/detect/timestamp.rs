//! Time stamps: BSD syslog's, ISO 8601's, and those of a declared form. Finding where
//! one ends is cheap and done for every line; turning it into a time is done only for
//! lines that match.

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset},
};

use super::{
    Context,
    fields::DIGIT,
    time_format::{MONTHS, StampFields},
};

/// A stamp's bytes and kind, not yet a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp<'a> {
    /// `Nov 21 04:33:07`, 15 bytes, or 14 where a day has no second digit and
    /// no blank in its place (`Feb 8 17:15:01`): no year, no zone.
    Bsd(&'a [u8], &'a [u8]),
    /// `2026-11-21T04:33:07`, 19 bytes; then fraction and zone, if any.
    Iso(&'a [u8], &'a [u8]),
    /// A stamp of a form that a filter declares.
    Declared(StampFields),
}

/// Splits a stamp (whose form is checked, not its values) off a line.
pub(crate) fn split(line: &[u8]) -> Option<(Stamp<'_>, &[u8])> {
    let (stamp, rest) = split_before(line, |rest| rest[0] == b' ')?;
    Some((stamp, &rest[1..]))
}

/// The same up to what ends it, which begins within 20 bytes behind the second.
/// `is_end` is asked of what is left, never of nothing.
#[inline]
pub(crate) fn split_before(
    line: &[u8],
    is_end: impl Fn(&[u8]) -> bool,
) -> Option<(Stamp<'_>, &[u8])> {
    let first = *line.first()?;
    let (whole, rest) = if first.is_ascii_alphabetic() {
        match line {
            // `fe80::abc:de:1:2 - -` has its colons in the right places, too.
            [_, _, _, _, _, _, _, _, _, b':', _, _, b':', _, _, _, ..]
                if line[3] == b' ' && line[6] == b' ' =>
            {
                (15, &line[15..])
            }
            [_, _, _, b' ', _, b' ', _, _, b':', _, _, b':', _, _, _, ..] => (14, &line[14..]),
            _ => return None,
        }
    } else if first.is_ascii_digit() {
        if line.len() < 20 || line[4] != b'-' || line[13] != b':' || line[16] != b':' {
            return None;
        }
        (19, &line[19..])
    } else {
        return None;
    };
    let tail = (0..rest.len().min(20)).find(|at| is_end(&rest[*at..]))?;
    let (stamp, tail) = (&line[..whole], &rest[..tail]);
    let rest = &rest[tail.len()..];
    Some(if whole == 19 {
        (Stamp::Iso(stamp, tail), rest)
    } else {
        (Stamp::Bsd(stamp, tail), rest)
    })
}

/// The last stamps' times: a busy log repeats the second. One of each form, since
/// logs of two forms may be read by turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct StampCache {
    bsd: Known,
    iso: Known,
}

/// A stamp and its time.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The stamp without its fraction of a second.
    bytes: Vec<u8>,
    seconds: Option<Timestamp>,
    /// The hour of the `now` that the year was guessed with.
    hour: i64,
}

impl StampCache {
    /// The time that a stamp names; `None` when its values are not a time.
    pub fn time(&mut self, stamp: Stamp<'_>, context: &Context<'_>) -> Option<Timestamp> {
        let (known, bytes, tail) = match stamp {
            Stamp::Bsd(bytes, tail) => (&mut self.bsd, bytes, tail),
            Stamp::Iso(bytes, tail) => (&mut self.iso, bytes, tail),
            Stamp::Declared(fields) => return declared(fields, context),
        };
        let digits = match tail {
            [b'.' | b',', fraction @ ..] => 1 + DIGIT.leading(fraction),
            _ => 0,
        };
        let (fraction, zone) = tail.split_at(digits);
        let hour = context.now.as_second() / 3600;
        let is_known = known.bytes.len() == bytes.len() + zone.len()
            && known.bytes.starts_with(bytes)
            && known.bytes.ends_with(zone)
            && known.hour == hour;
        if !is_known {
            known.seconds = match stamp {
                Stamp::Bsd(bytes, _) if zone.is_empty() => bsd(bytes, context),
                Stamp::Bsd(..) | Stamp::Declared(_) => None,
                Stamp::Iso(bytes, _) => iso(bytes, zone, context),
            };
            known.bytes.clear();
            known.bytes.extend_from_slice(bytes);
            known.bytes.extend_from_slice(zone);
            known.hour = hour;
        }
        let seconds = known.seconds?;
        if fraction.is_empty() {
            return Some(seconds);
        }
        let digits = &fraction[1..fraction.len().min(10)];
        let part = digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0'));
        let nanos = part * 10_i64.pow(9 - digits.len() as u32);
        seconds.checked_add(SignedDuration::from_nanos(nanos)).ok()
    }
}

fn two(bytes: &[u8]) -> Option<i8> {
    match bytes {
        [b' ', d] if d.is_ascii_digit() => Some((d - b'0') as i8),
        [t, d] if t.is_ascii_digit() && d.is_ascii_digit() => {
            Some(((t - b'0') * 10 + (d - b'0')) as i8)
        }
        _ => None,
    }
}

fn bsd(bytes: &[u8], context: &Context<'_>) -> Option<Timestamp> {
    let month = 1 + MONTHS.iter().position(|m| bytes.starts_with(*m))? as i8;
    let (date, time) = bytes.split_at(bytes.len() - 9);
    if date[3] != b' ' || time[0] != b' ' || time[1] == b' ' {
        return None;
    }
    let day = match &date[4..] {
        [digit @ b'1'..=b'9'] => (digit - b'0') as i8,
        padded => two(padded)?,
    };
    let (hour, minute, second) = (two(&time[1..3])?, two(&time[4..6])?, two(&time[7..9])?);
    in_a_year_of_late((month, day), (hour, minute, second), context)
}

/// A time of day of the last years, where the stamp has no year.
fn in_a_year_of_late(
    (month, day): (i8, i8),
    (hour, minute, second): (i8, i8, i8),
    context: &Context<'_>,
) -> Option<Timestamp> {
    let year = context.zone.to_datetime(context.now).year();
    let latest = context
        .now
        .checked_add(SignedDuration::from_hours(24))
        .unwrap_or(Timestamp::MAX);
    // The next year first: a stamp of 1 January that arrives on 31 December.
    // Eight years back: 29 February, across a century without a leap day.
    (year - 8..=year.saturating_add(1)).rev().find_map(|year| {
        // 60 is a leap second, which no host's clock shows as such for long.
        let civil = DateTime::new(year, month, day, hour, minute, second.min(59), 0).ok()?;
        local(civil, context).filter(|time| *time <= latest)
    })
}

/// The time of a stamp of a declared form.
fn declared(stamp: StampFields, context: &Context<'_>) -> Option<Timestamp> {
    let whole = match (stamp.epoch, stamp.year) {
        (Some(seconds), _) => Timestamp::from_second(seconds).ok()?,
        (None, None) => {
            let time = (stamp.hour, stamp.minute, stamp.second);
            in_a_year_of_late((stamp.month, stamp.day), time, context)?
        }
        (None, Some(year)) => {
            let (hour, minute, second) = (stamp.hour, stamp.minute, stamp.second.min(59));
            let civil =
                DateTime::new(year, stamp.month, stamp.day, hour, minute, second, 0).ok()?;
            match stamp.offset {
                None => local(civil, context)?,
                Some(seconds) => Offset::from_seconds(seconds)
                    .ok()?
                    .to_timestamp(civil)
                    .ok()?,
            }
        }
    };
    let fraction = SignedDuration::from_nanos(stamp.nanos.into());
    whole.checked_add(fraction).ok()
}

/// A local time; where the clock was set back and the hour exists twice, the
/// one that is nearer to now.
fn local(civil: DateTime, context: &Context<'_>) -> Option<Timestamp> {
    let ambiguous = context.zone.to_ambiguous_timestamp(civil);
    match ambiguous.offset() {
        AmbiguousOffset::Fold { before, after } => {
            let distance = |time: &Timestamp| time.duration_since(context.now).abs();
            [before, after]
                .into_iter()
                .filter_map(|offset| offset.to_timestamp(civil).ok())
                .min_by_key(distance)
        }
        _ => ambiguous.compatible().ok(),
    }
}

fn iso(bytes: &[u8], zone: &[u8], context: &Context<'_>) -> Option<Timestamp> {
    if bytes[7] != b'-'
        || !matches!(bytes[10], b'T' | b't' | b' ')
        || bytes.contains(&b' ') && bytes[10] != b' '
    {
        return None;
    }
    let year = i16::from(two(&bytes[..2])?) * 100 + i16::from(two(&bytes[2..4])?);
    let civil = DateTime::new(
        year,
        two(&bytes[5..7])?,
        two(&bytes[8..10])?,
        two(&bytes[11..13])?,
        two(&bytes[14..16])?,
        two(&bytes[17..19])?.min(59),
        0,
    )
    .ok()?;
    match zone {
        b"" => local(civil, context),
        b"Z" | b"z" => Offset::UTC.to_timestamp(civil).ok(),
        [sign @ (b'+' | b'-'), hours_minutes @ ..] => {
            let (hours, minutes) = match hours_minutes {
                [h, m] => (two(&[*h, *m])?, 0),
                [h, m, b':', rest @ ..] | [h, m, rest @ ..] => (two(&[*h, *m])?, two(rest)?),
                _ => return None,
            };
            let seconds = i32::from(hours) * 3600 + i32::from(minutes) * 60;
            let seconds = if *sign == b'-' { -seconds } else { seconds };
            Offset::from_seconds(seconds).ok()?.to_timestamp(civil).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;

    fn time(line: &str, now: &str, zone: &TimeZone) -> Option<String> {
        let now = now.parse().unwrap();
        let (stamp, _) = split(line.as_bytes())?;
        let time = StampCache::default().time(stamp, &Context { now, zone })?;
        Some(time.to_string())
    }

    /// Central Europe without a zone database: pure core has none.
    fn europe() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    #[test]
    fn an_address_is_no_stamp() {
        for line in [
            "fe80::abc:de:1:2 - - [x] \"GET /\" 404",
            "fd00:abcd:12:3::7 - - [x] \"GET /\" 404",
        ] {
            assert!(split(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn stamps_are_times() {
        let utc = TimeZone::UTC;
        for (line, zone, expected) in [
            ("Nov 21 04:33:07 h", &utc, "2026-11-21T04:33:07Z"),
            ("Nov  1 04:33:07 h", &utc, "2026-11-01T04:33:07Z"),
            ("Nov 1 04:33:07 h", &utc, "2026-11-01T04:33:07Z"),
            ("Nov 1 04:33:07.5 h", &utc, "2026-11-01T04:33:07.5Z"),
            ("Nov 21 04:33:07.25 h", &utc, "2026-11-21T04:33:07.25Z"),
            ("Nov 21 04:33:07 h", &europe(), "2026-11-21T03:33:07Z"),
            ("Jul 21 04:33:07 h", &europe(), "2026-07-21T02:33:07Z"),
            ("Nov 22 04:59:59 h", &utc, "2026-11-22T04:59:59Z"),
            ("Nov 22 05:00:01 h", &utc, "2025-11-22T05:00:01Z"),
            ("Dec 31 23:59:59 h", &utc, "2025-12-31T23:59:59Z"),
            ("Feb 29 01:00:00 h", &utc, "2024-02-29T01:00:00Z"),
            (
                "2026-11-21T04:33:07.123456+00:00 h",
                &utc,
                "2026-11-21T04:33:07.123456Z",
            ),
            ("2026-11-21T04:33:07Z h", &europe(), "2026-11-21T04:33:07Z"),
            (
                "2026-11-21T04:33:07,5-0330 h",
                &utc,
                "2026-11-21T08:03:07.5Z",
            ),
            ("2026-11-21 04:33:07 h", &europe(), "2026-11-21T03:33:07Z"),
        ] {
            assert_eq!(
                time(line, "2026-11-21T05:00:00Z", zone).as_deref(),
                Some(expected),
                "{line}"
            );
        }
    }

    #[test]
    fn a_stamp_of_next_year_at_new_years_eve() {
        assert_eq!(
            time("Jan  1 00:00:01 h", "2026-12-31T23:59:58Z", &TimeZone::UTC).as_deref(),
            Some("2027-01-01T00:00:01Z")
        );
    }

    #[test]
    fn the_hour_that_exists_twice_is_the_nearer_one() {
        for now in ["2026-10-25T00:30:05Z", "2026-10-25T01:30:05Z"] {
            let expected = now.replace("05Z", "00Z");
            assert_eq!(time("Oct 25 02:30:00 h", now, &europe()), Some(expected));
        }
    }

    #[test]
    fn stamps_of_a_declared_form_are_times() {
        let utc = TimeZone::UTC;
        for (format, stamp, zone, expected) in [
            (
                "%d/%b/%Y:%T %z",
                "21/Nov/2026:04:33:07 +0100",
                &utc,
                Some("2026-11-21T03:33:07Z"),
            ),
            (
                "%Y/%m/%d %T",
                "2026/11/21 04:33:07",
                &europe(),
                Some("2026-11-21T03:33:07Z"),
            ),
            (
                "%a %b %e %T.%f %Y",
                "Sat Nov  7 04:33:07.25 2026",
                &utc,
                Some("2026-11-07T04:33:07.25Z"),
            ),
            (
                "%s.%f",
                "1795235587.5",
                &europe(),
                Some("2026-11-21T04:33:07.5Z"),
            ),
            (
                "%y%m%d %T",
                "261121 04:33:60",
                &utc,
                Some("2026-11-21T04:33:59Z"),
            ),
            // Without a year: the last one that there was, as with syslog's.
            (
                "%d %b %T",
                "21 Nov 04:33:07",
                &utc,
                Some("2026-11-21T04:33:07Z"),
            ),
            (
                "%d %b %T",
                "22 Nov 05:00:01",
                &utc,
                Some("2025-11-22T05:00:01Z"),
            ),
            ("%Y/%m/%d %T", "2026/13/21 04:33:07", &utc, None),
            ("%Y/%m/%d %T", "2026/11/31 04:33:07", &utc, None),
            ("%Y/%m/%d %T%z", "2026/11/21 04:33:07+9900", &utc, None),
            ("%s", "99999999999", &utc, Some("5138-11-16T09:46:39Z")),
        ] {
            let format = super::super::time_format::TimeFormat::parse(format).expect(format);
            let (fields, _) = format.read(stamp.as_bytes()).expect(stamp);
            let now = "2026-11-21T05:00:00Z".parse().unwrap();
            let context = Context { now, zone };
            let time = StampCache::default().time(Stamp::Declared(fields), &context);
            let time = time.map(|time| time.to_string());
            assert_eq!(time.as_deref(), expected, "{stamp}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_not_a_time() {
        for line in [
            "",
            "Nov",
            "Nov 21 04:33:07",
            "Nov 31 04:33:07 h",
            "Nov 0 04:33:07 h",
            "Nov 1 4:33:07 h",
            "Nov 1  4:33:07 h",
            "Nov 21 24:33:07 h",
            "Nov 21 04:6x:07 h",
            "Nov 21  4:33:07 h",
            "Nix 21 04:33:07 h",
            "2026-13-21T04:33:07Z h",
            "2026-11-21T04:33:07+99:00 h",
            "2026-11-21T04:33:07+0x:00 h",
            "2026-11-21X04:33:07 h",
            "9999-12-31T23:59:59-23:59 h",
            "----------------------",
        ] {
            assert_eq!(
                time(line, "2026-11-21T05:00:00Z", &TimeZone::UTC),
                None,
                "{line}"
            );
        }
    }

    #[test]
    fn two_octets_are_digits_or_no_number() {
        for (text, number) in [
            (&b"07"[..], Some(7)),
            (b"42", Some(42)),
            (b" 7", Some(7)),
            (b"x7", None),
            (b"7x", None),
            (b"7 ", None),
            (b" x", None),
            (b"7", None),
            (b"007", None),
        ] {
            assert_eq!(two(text), number, "{text:?}");
        }
    }

    /// The same stamp a year later, in the same second of its hour.
    #[test]
    fn the_cache_guesses_the_year_anew() {
        let zone = TimeZone::UTC;
        let mut cache = StampCache::default();
        for year in [2026, 2027] {
            let now = format!("{year}-06-01T05:00:00Z").parse().unwrap();
            let (stamp, _) = split(b"May 21 04:33:07 h").unwrap();
            let time = cache.time(stamp, &Context { now, zone: &zone }).unwrap();
            assert_eq!(time.to_string(), format!("{year}-05-21T04:33:07Z"));
        }
    }

    #[test]
    fn the_cache_knows_another_stamp() {
        let zone = TimeZone::UTC;
        let mut cache = StampCache::default();
        let context = Context {
            now: "2026-11-21T05:00:00Z".parse().unwrap(),
            zone: &zone,
        };
        for (line, expected) in [
            ("2026-11-21T04:33:07.1+00:00 h", "2026-11-21T04:33:07.1Z"),
            ("2026-11-21T04:33:07.2+00:00 h", "2026-11-21T04:33:07.2Z"),
            ("2026-11-21T04:33:07.2+01:00 h", "2026-11-21T03:33:07.2Z"),
            ("2026-11-21T04:33:08+01:00 h", "2026-11-21T03:33:08Z"),
            ("Nov 21 04:33:07 h", "2026-11-21T04:33:07Z"),
            ("Nov 21 04:33:07.5 h", "2026-11-21T04:33:07.5Z"),
            ("Nov 21 04:33:08 h", "2026-11-21T04:33:08Z"),
            ("2026-11-21T04:33:08+01:00 h", "2026-11-21T03:33:08Z"),
        ] {
            let (stamp, _) = split(line.as_bytes()).unwrap();
            assert_eq!(cache.time(stamp, &context).unwrap().to_string(), expected);
        }
    }
}
