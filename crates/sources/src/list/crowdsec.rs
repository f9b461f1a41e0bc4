//! CrowdSec's decisions as a list: its local API sends all of them once
//! (`/v1/decisions/stream?startup=true`) and then what has changed. A decision
//! ends after its duration, whether CrowdSec still answers or not.
//!
//! Only bans of addresses and ranges are taken: a captcha is nothing that a
//! packet filter can show.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use weir_core::Prefix;

use super::{Admit, Fetched, Format, Limits, ListError, Patience, Request, get, parse, print};

/// The header that carries the key.
const KEY_HEADER: &str = "X-Api-Key";
/// No decision is believed for longer.
const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The bans that CrowdSec has decided on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Until when, in seconds of the wall clock.
    until: BTreeMap<Prefix, u64>,
    /// Decisions of other kinds in the last answer: captchas, users, countries.
    pub others: usize,
    /// Decisions about addresses that nobody can ban.
    pub refused: usize,
}

#[derive(Deserialize)]
struct Answer<'a> {
    /// May be null, but not missing: some other answer would lift all bans.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    new: Option<Vec<Decision<'a>>>,
    #[serde(borrow, default)]
    deleted: Option<Vec<Decision<'a>>>,
}

#[derive(Deserialize)]
struct Decision<'a> {
    #[serde(borrow, default)]
    value: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    scope: std::borrow::Cow<'a, str>,
    #[serde(borrow, default, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    duration: std::borrow::Cow<'a, str>,
    #[serde(default)]
    simulated: bool,
}

impl Decision<'_> {
    fn is_ban(&self) -> bool {
        let scope = self.scope.to_ascii_lowercase();
        matches!(scope.as_str(), "ip" | "range")
            && self.kind.eq_ignore_ascii_case("ban")
            && !self.simulated
    }

    /// With host bits cleared: CrowdSec keeps ranges as they were typed.
    fn prefix(&self) -> Option<Prefix> {
        let limits = Limits {
            max_bytes: 64,
            max_entries: 1,
        };
        let read = parse(
            self.value.as_bytes(),
            Format::Plain,
            Admit::Bannable,
            &limits,
        )
        .ok()?;
        read.prefixes.first().copied()
    }
}

/// Asks the local API at `url`, for all decisions or for what has changed since
/// it was asked last with this key.
pub fn ask(
    url: &str,
    key: &str,
    everything: bool,
    max_bytes: usize,
    ca_file: Option<&std::path::Path>,
    patience: Patience,
) -> Result<Vec<u8>, ListError> {
    let url = format!(
        "{}/v1/decisions/stream?startup={everything}&scopes=ip,range",
        url.trim_end_matches('/')
    );
    let request = Request {
        url: &url,
        ca_file,
        max_bytes,
        known: None,
        key: Some((KEY_HEADER, key)),
        patience,
    };
    match get(&request) {
        Ok(Fetched::Changed { bytes, .. }) => Ok(bytes),
        Ok(Fetched::Unchanged) => Err(ListError::Unasked),
        Err(ListError::Status(401 | 403)) => Err(ListError::Decisions(
            "the key is not accepted; make one with: cscli bouncers add weir".to_owned(),
        )),
        Err(error) => Err(error),
    }
}

impl Decisions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    /// What an answer makes of them; `everything`: it is about all there are.
    /// They stay as they are if it makes no sense.
    pub fn apply(
        &mut self,
        answer: &[u8],
        everything: bool,
        now: SystemTime,
        max_entries: usize,
    ) -> Result<(), ListError> {
        let answer: Answer<'_> = serde_json::from_slice(answer)
            .map_err(|error| ListError::Decisions(error.to_string()))?;
        let mut next = if everything {
            BTreeMap::new()
        } else {
            self.until.clone()
        };
        let (mut others, mut refused) = (0, 0);
        // A decision that was lifted and made again is in both.
        for gone in answer.deleted.iter().flatten().filter(|d| d.is_ban()) {
            if let Some(prefix) = gone.prefix() {
                next.remove(&prefix);
            }
        }
        for made in answer.new.iter().flatten() {
            if !made.is_ban() {
                others += 1;
                continue;
            }
            let Some(prefix) = made.prefix() else {
                refused += 1;
                continue;
            };
            let length = duration(&made.duration).ok_or_else(|| {
                let text: String = made.duration.chars().take(32).collect();
                ListError::Decisions(format!("{text:?} is not a duration"))
            })?;
            let end = seconds(now).saturating_add(length.min(YEARS).as_secs());
            // The longer of two decisions counts.
            let until = next.entry(prefix).or_default();
            *until = end.max(*until);
            if next.len() > max_entries {
                return Err(ListError::TooMany(max_entries));
            }
        }
        (self.until, self.others, self.refused) = (next, others, refused);
        self.expire(now);
        Ok(())
    }

    /// Forgets those that have ended; true if there were any.
    pub fn expire(&mut self, now: SystemTime) -> bool {
        let (before, now) = (self.until.len(), seconds(now));
        self.until.retain(|_, until| *until > now);
        self.until.len() != before
    }

    /// When the next one ends.
    pub fn next_end(&self) -> Option<SystemTime> {
        let end = self.until.values().min()?;
        Some(UNIX_EPOCH + Duration::from_secs(*end))
    }

    /// Those in force as a list: sorted, overlaps joined.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let all: Vec<Prefix> = self.until.keys().copied().collect();
        let limits = Limits {
            max_bytes: usize::MAX,
            max_entries: usize::MAX,
        };
        // Each has been admitted before, so joining them cannot fail.
        parse(
            print(&all).as_bytes(),
            Format::Plain,
            Admit::Bannable,
            &limits,
        )
        .map_or_else(|_| all, |parsed| parsed.prefixes)
    }

    /// To be kept: `PREFIX SECONDS` a line, seconds of the wall clock.
    pub fn print(&self) -> String {
        use std::fmt::Write;
        let mut text = "# decisions of CrowdSec: prefix, end\n".to_owned();
        for (prefix, until) in &self.until {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{prefix} {until}");
        }
        text
    }

    /// What `print` wrote; lines that it did not write are left out.
    pub fn read(kept: &[u8], now: SystemTime) -> Self {
        let text = String::from_utf8_lossy(kept);
        let until = text.lines().filter_map(|line| {
            let (prefix, until) = line.split_once(' ')?;
            Some((prefix.parse().ok()?, until.parse().ok()?))
        });
        let mut decisions = Self {
            until: until.collect(),
            ..Self::default()
        };
        decisions.expire(now);
        decisions
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// A duration as Go writes it: `3h59m55.75s`, `-1m`, `500ms`. What is past is 0.
fn duration(text: &str) -> Option<Duration> {
    let (past, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    let mut total = 0.0f64;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..]
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .map_or(rest.len(), |end| digits + end);
        total += number
            * match &rest[digits..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    if past {
        return Some(Duration::ZERO);
    }
    Duration::try_from_secs_f64(total.min(YEARS.as_secs_f64())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(START + seconds)
    }

    fn shown(decisions: &Decisions) -> Vec<String> {
        decisions.prefixes().iter().map(Prefix::to_string).collect()
    }

    #[test]
    fn go_durations_are_read() {
        for (text, seconds) in [
            ("3h59m55.5s", 14395.5),
            ("1m", 60.0),
            ("-1h2m", 0.0),
            ("500ms", 0.5),
            ("1.5h", 5400.0),
            ("0", 0.0),
            ("0s", 0.0),
            ("1m0.25s", 60.25),
            ("250µs", 0.00025),
        ] {
            let read = duration(text).unwrap().as_secs_f64();
            assert!((read - seconds).abs() < 1e-9, "{text}: {read}");
        }
        for text in ["", "1", "h", "1x", "1h-2m", "1..2s", "-", "1e3s", "é"] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert!(duration("999999999999999h").unwrap() <= YEARS);
    }

    #[test]
    fn a_stream_is_followed() {
        let mut decisions = Decisions::default();
        let all = br#"{"deleted": null, "new": [
            {"id":1,"origin":"CAPI","type":"ban","scope":"Ip","value":"198.51.100.7","duration":"1h0m0s","scenario":"ssh"},
            {"id":2,"type":"ban","scope":"Range","value":"203.0.113.9/24","duration":"2h"},
            {"id":3,"type":"captcha","scope":"Ip","value":"198.51.100.8","duration":"1h"},
            {"id":4,"type":"ban","scope":"Country","value":"XX","duration":"1h"},
            {"id":5,"type":"ban","scope":"Ip","value":"127.0.0.1","duration":"1h"},
            {"id":6,"type":"ban","scope":"ip","value":"2001:db8::7","duration":"30m","simulated":false},
            {"id":7,"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"1h","simulated":true}
        ]}"#;
        decisions.apply(all, true, at(0), 100).unwrap();
        assert_eq!(
            shown(&decisions),
            ["198.51.100.7", "203.0.113.0/24", "2001:db8::7"]
        );
        assert_eq!((decisions.others, decisions.refused), (3, 1));

        // What is kept reads as the same, less what has ended meanwhile.
        let kept = decisions.print();
        let again = Decisions::read(kept.as_bytes(), at(0));
        assert_eq!(again.until, decisions.until);
        assert_eq!(
            shown(&Decisions::read(kept.as_bytes(), at(1800))),
            ["198.51.100.7", "203.0.113.0/24"]
        );

        let change =
            br#"{"new":[{"type":"ban","scope":"Ip","value":"198.51.100.7","duration":"3h"}],
            "deleted":[{"type":"ban","scope":"Ip","value":"198.51.100.7","duration":"-1s"},
                       {"type":"ban","scope":"Range","value":"203.0.113.0/24","duration":"-1s"}]}"#;
        decisions.apply(change, false, at(60), 100).unwrap();
        assert_eq!(shown(&decisions), ["198.51.100.7", "2001:db8::7"]);
        assert_eq!(decisions.next_end(), Some(at(1800)));
        assert!(!decisions.expire(at(1799)));
        assert!(decisions.expire(at(1800)));
        assert_eq!(shown(&decisions), ["198.51.100.7"]);
        // An hour was asked for first, three hours then.
        assert!(!decisions.expire(at(3 * 3600)));

        // "Nothing new" is null, and leaves everything as it is.
        let nothing = br#"{"new":null,"deleted":null}"#;
        decisions.apply(nothing, false, at(61), 100).unwrap();
        assert_eq!(shown(&decisions), ["198.51.100.7"]);
        decisions.apply(nothing, true, at(62), 100).unwrap();
        assert!(decisions.is_empty());
    }

    #[test]
    fn an_answer_that_makes_no_sense_changes_nothing() {
        let mut decisions = Decisions::default();
        let one =
            br#"{"new":[{"type":"ban","scope":"Ip","value":"198.51.100.7","duration":"1h"}]}"#;
        decisions.apply(one, true, at(0), 1).unwrap();
        let before = decisions.clone();
        for answer in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"message":"not today"}"#,
            r#"{"new":7}"#,
            r#"{"new":[{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"soon"}]}"#,
            r#"{"new":[{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"1h"}]}"#,
        ] {
            let taken = decisions.apply(answer.as_bytes(), false, at(0), 1);
            assert!(taken.is_err(), "{answer}");
            assert_eq!(decisions, before, "{answer}");
        }
    }
}
