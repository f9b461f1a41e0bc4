//! From the fields of a date (year, name of a month, `PM` …) to seconds since 1970: what
//! is missing is of now.

use jiff::{
    Timestamp, ToSpan,
    civil::{Date, DateTime, Time},
    tz::{Offset, TimeZone},
};

use super::zones;

/// Where a date was found, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// All of the match.
    pub span: (usize, usize),
    /// What is cut out of the line.
    pub cut: (usize, usize),
}

/// What time it is, and where.
#[derive(Clone, Copy, Debug)]
pub struct Clock<'a> {
    /// The time at which the line is read.
    pub now: Timestamp,
    /// The zone of dates that name none.
    pub zone: &'a TimeZone,
}

pub(super) const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
pub(super) const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// The time that fields say, by their letters as in `strptime`; `None` if there is no
/// such time.
pub fn time<'t>(fields: impl Iterator<Item = (char, &'t str)>, clock: Clock<'_>) -> Option<i64> {
    let mut read = Fields::default();
    let mut noon = None;
    for (field, value) in fields {
        if field == 'p' {
            noon = Some(value.eq_ignore_ascii_case("pm"));
        }
        read.take(field, value)?;
    }
    if read.of_twelve {
        match noon {
            Some(true) if read.hour != 12 => read.hour += 12,
            Some(true) => {}
            _ if read.hour == 12 => read.hour = 0,
            _ => {}
        }
    }
    read.time(clock)
}

#[derive(Default)]
struct Fields {
    year: Option<i16>,
    month: Option<i8>,
    day: Option<i8>,
    hour: i8,
    of_twelve: bool,
    minute: i8,
    second: i8,
    /// The day of the year, from 1.
    yearday: Option<i32>,
    weekday: Option<i32>,
    /// The week of the year, and whether weeks begin on Mondays.
    week: Option<(i32, bool)>,
    offset: Option<i32>,
}

fn position(names: &[&str], value: &str, length: usize) -> Option<i8> {
    let is = |name: &&str| name[..name.len().min(length)].eq_ignore_ascii_case(value);
    Some(names.iter().position(is)? as i8)
}

impl Fields {
    fn take(&mut self, field: char, value: &str) -> Option<()> {
        match field {
            'Y' => self.year = Some(value.parse().ok()?),
            'y' => self.year = Some(2000 + value.parse::<i16>().ok()?),
            'm' => self.month = Some(value.parse().ok()?),
            'B' => self.month = Some(1 + position(&MONTHS, value, 9)?),
            'b' => self.month = Some(1 + position(&MONTHS, value, 3)?),
            'd' => self.day = Some(value.trim_start().parse().ok()?),
            'H' => self.hour = value.trim_start().parse().ok()?,
            'I' => {
                self.hour = value.trim_start().parse().ok()?;
                self.of_twelve = true;
            }
            'M' => self.minute = value.parse().ok()?,
            'S' => self.second = value.parse().ok()?,
            'j' => self.yearday = Some(value.parse().ok()?),
            'A' => self.weekday = Some(i32::from(position(&WEEKDAYS, value, 9)?)),
            'a' => self.weekday = Some(i32::from(position(&WEEKDAYS, value, 3)?)),
            'w' => self.weekday = Some((value.parse::<i32>().ok()? + 6) % 7),
            'U' | 'W' => self.week = Some((value.parse().ok()?, field == 'W')),
            'z' | 'Z' => self.offset = Some(zones::offset(value)?),
            _ => {}
        }
        Some(())
    }

    fn time(mut self, clock: Clock<'_>) -> Option<i64> {
        let now = clock.now.to_zoned(clock.zone.clone()).datetime();
        let assume_year = self.year.is_none();
        let year = self.year.unwrap_or(now.year());
        let mut date_year = year;
        if self.month.is_none() || self.day.is_none() {
            if let (None, Some(week), Some(weekday)) = (self.yearday, self.week, self.weekday) {
                self.yearday = Some(day_of_week(year, week, weekday)?);
            }
            if let Some(yearday) = self.yearday {
                let date = Date::new(year, 1, 1)
                    .ok()?
                    .checked_add((yearday - 1).days())
                    .ok()?;
                date_year = date.year();
                self.month = Some(date.month());
                self.day = Some(date.day());
            }
        }
        let assume_today = self.month.is_none() && self.day.is_none();
        if assume_today {
            self.month = Some(now.month());
            self.day = Some(now.day());
        }
        let date = Date::new(date_year, self.month?, self.day?).ok()?;
        // There are seconds 60 and 61 in a pattern, and none in Python's datetime.
        let time = Time::new(self.hour, self.minute, self.second, 0).ok()?;
        let mut result = date.to_datetime(time);
        if let Some(offset) = self.offset {
            result = result.checked_sub(i64::from(offset).minutes()).ok()?;
        }
        if assume_today && result > now {
            result = result.checked_sub(1.days()).ok()?;
        }
        if assume_year && result > now.checked_add(1.days()).ok()? {
            let before = Date::new(date_year - 1, date.month(), date.day()).ok()?;
            result = before.to_datetime(result.time());
        }
        seconds(result, self.offset.is_some(), clock.zone)
    }
}

/// In UTC, or local time as `mktime` means it.
fn seconds(time: DateTime, is_utc: bool, zone: &TimeZone) -> Option<i64> {
    let stamp = match is_utc {
        true => Offset::UTC.to_timestamp(time).ok()?,
        false => zone.to_ambiguous_timestamp(time).compatible().ok()?,
    };
    Some(stamp.as_second())
}

/// The day of a year, from 1, of a week and a day of it.
fn day_of_week(year: i16, (week, from_monday): (i32, bool), weekday: i32) -> Option<i32> {
    let first = i32::from(
        Date::new(year, 1, 1)
            .ok()?
            .weekday()
            .to_monday_zero_offset(),
    );
    let shift = |day: i32| match from_monday {
        true => day,
        false => (day + 1) % 7,
    };
    let (first, weekday) = (shift(first), shift(weekday));
    let days_of_week_0 = (7 - first) % 7;
    Some(match week {
        0 => 1 + weekday - first,
        week => 1 + days_of_week_0 + 7 * (week - 1) + weekday,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(fields: &[(char, &str)]) -> Option<String> {
        let zone = TimeZone::posix("CET-1CEST-2,M3.5.0,M10.5.0").unwrap();
        let now = "2005-08-14T12:00:00+02:00".parse().unwrap();
        let clock = Clock { now, zone: &zone };
        let seconds = time(fields.iter().copied(), clock)?;
        let stamp = Timestamp::from_second(seconds).unwrap();
        Some(stamp.to_zoned(zone).datetime().to_string())
    }

    #[test]
    fn fields_become_a_time() {
        let day = [
            ('b', "Aug"),
            ('d', " 9"),
            ('H', "5"),
            ('M', "07"),
            ('S', "9"),
        ];
        assert_eq!(at(&day).unwrap(), "2005-08-09T05:07:09");
        // Of last year, since it is more than a day ahead.
        let ahead = [('b', "Dec"), ('d', "31"), ('H', "5")];
        assert_eq!(at(&ahead).unwrap(), "2004-12-31T05:00:00");
        assert_eq!(at(&[('H', "13")]).unwrap(), "2005-08-13T13:00:00");
        let pm = |hour, half| at(&[('d', "1"), ('m', "2"), ('I', hour), ('p', half)]).unwrap();
        assert_eq!(pm("12", "AM"), "2005-02-01T00:00:00");
        assert_eq!(pm("12", "pm"), "2005-02-01T12:00:00");
        assert_eq!(pm("3", "PM"), "2005-02-01T15:00:00");
        let zoned = [('Y', "2005"), ('m', "1"), ('d', "2"), ('z', "-0130")];
        assert_eq!(at(&zoned).unwrap(), "2005-01-02T02:30:00");
        assert_eq!(
            at(&[('Y', "2005"), ('j', "60")]).unwrap(),
            "2005-03-01T00:00:00"
        );
        let week = [('Y', "2005"), ('W', "1"), ('a', "Mon")];
        assert_eq!(at(&week).unwrap(), "2005-01-03T00:00:00");
        assert_eq!(at(&[('m', "2"), ('d', "30")]), None);
        assert_eq!(at(&[('d', "3")]), None);
        assert_eq!(at(&[('Z', "error")]), None);
    }
}
