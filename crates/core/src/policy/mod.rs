//! Turns findings into decisions: what a jail allows (`JailLimits`), the
//! ledger that counts per subject, and durations as people write them. Pure:
//! the time comes in with each call, storing and enforcing is the daemon's.

pub mod duration;
mod ledger;
mod lru;
mod offences;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize, de};

use crate::{Action, PortSet, PrefixSet};

pub use duration::{DurationError, format_duration, parse_duration};
pub use ledger::{Accusation, Failure, Ignored, JailStats, Ledger, Outcome, Tracked};
pub use offences::Offence;

/// The longest line that evidence keeps, in bytes.
pub const MAX_EVIDENCE: usize = 512;

/// The most failures that a jail may wait for: the ledger keeps the time of each.
pub const MAX_RETRY: u32 = 1000;

/// The length of a ban.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BanTime {
    /// A fixed time from the decision on.
    For(Duration),
    /// No end until somebody lifts the ban; written `never`.
    Never,
}

impl fmt::Display for BanTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(time) => f.write_str(&format_duration(*time)),
            Self::Never => f.write_str("never"),
        }
    }
}

impl Serialize for BanTime {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BanTime {
    fn deserialize<D: de::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        duration::deserialize_or_never(d).map(|time| time.map_or(Self::Never, Self::For))
    }
}

/// Each further ban of a subject lasts `factor` times as long as the one
/// before, up to `max`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Increment {
    /// The factor between the lengths of two bans, at least 1.
    #[serde(default = "two")]
    pub factor: f64,
    /// The longest ban.
    #[serde(with = "duration", default = "five_weeks")]
    pub max: Duration,
}

fn two() -> f64 {
    2.0
}

fn five_weeks() -> Duration {
    Duration::from_secs(5 * 7 * 86_400)
}

/// When a jail bans, and for how long.
#[derive(Clone, PartialEq, Debug)]
pub struct JailLimits {
    /// The ban comes with this many failures, 1 to [`MAX_RETRY`] …
    pub max_retry: u32,
    /// … within this time.
    pub find_time: Duration,
    /// How long a ban lasts.
    pub ban_time: BanTime,
    /// Longer bans for those who return.
    pub increment: Option<Increment>,
    /// The lengths of bans as a table, by the number of bans before; the last one holds for
    /// all further bans. Where it is not empty, it goes before `ban_time` and `increment`.
    pub ban_times: Vec<BanTime>,
    /// A ban by `ban_times` of somebody who was banned before lasts up to so much longer, by
    /// chance: nobody can tell when it ends.
    pub random_time: Duration,
    /// Bans of all jails count for `ban_times`, not only this one's.
    pub counts_all_jails: bool,
    /// IPv6 counts and bans by prefixes of this length: 64, since one customer
    /// holds at least that much, wider down to 32, or 128.
    pub ipv6_prefix: u8,
    /// How many subjects are counted at once, and how many past offenders are
    /// remembered; above it the one seen longest ago is forgotten.
    pub max_tracked: usize,
}

impl Default for JailLimits {
    fn default() -> Self {
        Self {
            max_retry: 5,
            find_time: Duration::from_secs(600),
            ban_time: BanTime::For(Duration::from_secs(3600)),
            increment: None,
            ban_times: Vec::new(),
            random_time: Duration::ZERO,
            counts_all_jails: false,
            ipv6_prefix: 64,
            max_tracked: 131_072,
        }
    }
}

impl JailLimits {
    /// The first limit that is out of range, as (key, what it may be).
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=MAX_RETRY).contains(&self.max_retry) {
            return Err(("max_retry", format!("is 1 to {MAX_RETRY}")));
        }
        if self.find_time.is_zero() {
            return Err(("find_time", "is longer than 0".into()));
        }
        if self.ban_time == BanTime::For(Duration::ZERO) {
            return Err(("ban_time", "is longer than 0, or \"never\"".into()));
        }
        if let Some(increment) = self.increment
            && !(increment.factor.is_finite() && increment.factor >= 1.0)
        {
            return Err(("increment.factor", "is a number of at least 1".into()));
        }
        if !matches!(self.ipv6_prefix, 32..=64 | 128) {
            return Err(("ipv6_prefix", "is 32 to 64, or 128".into()));
        }
        if self.max_tracked == 0 {
            return Err(("max_tracked", "is at least 1".into()));
        }
        Ok(())
    }
}

/// A jail as the ledger needs it: which filter and sources feed it is not
/// known here.
#[derive(Clone, Debug)]
pub struct Jail {
    /// The jail's name, which says the ban's producer
    /// ([`crate::BanSource::of_ledger_name`]).
    pub name: String,
    /// The limits at which the jail bans, and the length of its bans.
    pub limits: JailLimits,
    /// The ports that its bans cover.
    pub scope: PortSet,
    /// Whether packets of its bans are dropped or rejected, or its bans only notify.
    pub action: Action,
    /// Addresses whose failures it does not count.
    pub ignore: PrefixSet,
    /// Findings can name prefixes: those that it counts are kept whatever their
    /// length.
    pub names_prefixes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_ban_lasts_is_told_in_words() {
        let hour = BanTime::For(Duration::from_secs(3600));
        assert_eq!(
            [hour, BanTime::Never].map(|t| t.to_string()),
            ["1h", "never"]
        );
    }

    #[test]
    fn limits_out_of_range_are_named() {
        let usual = JailLimits::default;
        let increment = |factor| {
            Some(Increment {
                factor,
                max: Duration::from_secs(1),
            })
        };
        let factor = |factor| JailLimits {
            increment: increment(factor),
            ..usual()
        };
        let retry = |max_retry| JailLimits {
            max_retry,
            ..usual()
        };
        let prefix = |ipv6_prefix| JailLimits {
            ipv6_prefix,
            ..usual()
        };
        for fine in [
            usual(),
            factor(1.0),
            factor(1.5),
            retry(1),
            retry(MAX_RETRY),
            prefix(32),
            prefix(128),
            JailLimits {
                ban_time: BanTime::Never,
                max_tracked: 1,
                ..usual()
            },
        ] {
            assert_eq!(fine.check(), Ok(()), "{fine:?}");
        }
        for (wrong, key) in [
            (retry(0), "max_retry"),
            (retry(MAX_RETRY + 1), "max_retry"),
            (factor(0.99), "increment.factor"),
            (factor(f64::NAN), "increment.factor"),
            (factor(f64::INFINITY), "increment.factor"),
            (prefix(31), "ipv6_prefix"),
            (prefix(65), "ipv6_prefix"),
            (
                JailLimits {
                    find_time: Duration::ZERO,
                    ..usual()
                },
                "find_time",
            ),
            (
                JailLimits {
                    ban_time: BanTime::For(Duration::ZERO),
                    ..usual()
                },
                "ban_time",
            ),
            (
                JailLimits {
                    max_tracked: 0,
                    ..usual()
                },
                "max_tracked",
            ),
        ] {
            assert_eq!(wrong.check().unwrap_err().0, key, "{wrong:?}");
        }
    }

    #[test]
    fn bans_of_returners_double_up_to_five_weeks() {
        let read: Increment = toml::from_str("").unwrap();
        assert_eq!(read.factor, 2.0);
        assert_eq!(read.max, Duration::from_secs(35 * 24 * 3600));
    }
}
