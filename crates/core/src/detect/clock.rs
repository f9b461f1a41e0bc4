//! The time that a record counts at: its stamp's, its source's or the clock's. A
//! stamp that cannot be (of another zone, or by a clock that is off) does not
//! count in a live log. Reading stamps is `timestamp`'s.

use jiff::{SignedDuration, Timestamp};

use super::Record;

/// How far a live line's stamp may be from the clock: lines are written late,
/// clocks differ. Zones differ by a quarter of an hour at least.
pub const STAMP_TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// When a line was written, as far as its source knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// Just now: without a stamp, or with one that is further off than
    /// [`STAMP_TOLERANCE`], it counts as now.
    Live,
    /// The line was written before reading began: it has the time of its stamp, and does
    /// not count without one, or with one of the future.
    Backlog,
    /// The source cannot tell the age: the line has the time of its stamp; without one it
    /// is now.
    #[default]
    Unknown,
}

/// Where a finding's time is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The line's own stamp.
    #[default]
    Stamp,
    /// The source; the line has no stamp that is a time.
    Source,
    /// The clock: the line has no stamp that is a time, and the source none.
    Now,
    /// The source, or the clock: the line's stamp is off by so much, ahead where
    /// it is positive.
    Off(SignedDuration),
}

/// The time that a record counts at, given what its stamp says; `None` when it
/// must not count.
pub fn when(
    stamp: Option<Timestamp>,
    record: &Record<'_>,
    now: Timestamp,
) -> Option<(Timestamp, Clock)> {
    let known = record.time.unwrap_or(now);
    let off = stamp.map(|stamp| stamp.duration_since(known));
    let is_far = off.is_some_and(|off| off.abs() > STAMP_TOLERANCE);
    let judged = record.time.is_some() || record.age == Age::Live;
    match (stamp, off) {
        (Some(_), Some(off)) if is_far && judged => Some((known, Clock::Off(off))),
        // In a zone that does not fit: it was written before now.
        (Some(_), Some(off)) if record.age == Age::Backlog && off > STAMP_TOLERANCE => None,
        (Some(stamp), _) => Some((stamp, Clock::Stamp)),
        (None, _) if record.time.is_some() => Some((known, Clock::Source)),
        (None, _) if record.age == Age::Backlog => None,
        (None, _) => Some((now, Clock::Now)),
    }
}
