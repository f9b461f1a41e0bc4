//! CrowdSec's decisions as a list: its local API sends all of them once
//! (`/v1/decisions/stream?startup=true`) and then what has changed. A decision
//! ends after its duration, whether CrowdSec still answers or not.
//!
//! Only bans of addresses and ranges are taken: a captcha is nothing that a
//! packet filter can show. A decision that cannot be read is left out and
//! counted; the others of its answer hold.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use weir_core::Prefix;

use super::{
    Admit, FetchOutcome, Format, Limits, ListError, Patience, Request, SkippedLines, WIDEST, get,
    parse, print,
};

/// The header that carries the key.
const KEY_HEADER: &str = "X-Api-Key";
/// A value or a duration is not longer.
const MAX_TEXT: usize = 100;
/// No decision is believed for longer.
const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The bans that CrowdSec has decided on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Until when, in seconds of the wall clock.
    until: BTreeMap<Prefix, u64>,
    /// Decisions of other kinds, captchas or of users, since everything was asked
    /// for.
    pub others: usize,
    /// Decisions about what nobody can ban, or no list from elsewhere may hold.
    pub refused: SkippedLines,
    /// Decisions that cannot be read.
    pub malformed: SkippedLines,
}

#[derive(Deserialize)]
struct DecisionStream<'a> {
    /// May be null, but not missing: some other answer would lift all bans.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    new: Option<Vec<Read<'a>>>,
    #[serde(borrow, default)]
    deleted: Option<Vec<Read<'a>>>,
}

/// A decision as it came.
#[derive(Deserialize)]
#[serde(untagged)]
enum Read<'a> {
    Whole(#[serde(borrow)] Decision<'a>),
    /// With a number for a text, or no object at all.
    Malformed(serde_json::Value),
}

/// The kind of a decision, with its prefix.
enum Asked {
    /// A ban of the prefix.
    Ban(Prefix),
    /// Something else than a ban.
    Other,
    /// A ban of what no list may hold: why.
    Refused(String),
    /// A decision that cannot be read, with its text.
    Malformed(String),
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

impl Read<'_> {
    fn asked(&self) -> Asked {
        match self {
            Self::Whole(decision) => decision.asked(),
            Self::Malformed(other) => {
                let text: String = other.to_string().chars().take(MAX_TEXT).collect();
                Asked::Malformed(format!("{text} is no decision"))
            }
        }
    }

    /// The length of the decision.
    fn length(&self) -> Result<Duration, String> {
        let text = match self {
            Self::Whole(decision) => &decision.duration,
            Self::Malformed(_) => "",
        };
        let clipped = || text.chars().take(MAX_TEXT).collect::<String>();
        let length = duration(text).ok_or_else(|| format!("{:?} is no duration", clipped()))?;
        Ok(length.min(YEARS))
    }
}

impl Decision<'_> {
    fn is_ban(&self) -> bool {
        let scope = self.scope.to_ascii_lowercase();
        matches!(scope.as_str(), "ip" | "range")
            && self.kind.eq_ignore_ascii_case("ban")
            && !self.simulated
    }

    fn asked(&self) -> Asked {
        let clipped = |text: &str| -> String { text.chars().take(MAX_TEXT).collect() };
        if self.kind.is_empty() || self.scope.is_empty() {
            return Asked::Malformed(format!("{}: no type or scope", clipped(&self.value)));
        }
        if !self.is_ban() {
            return Asked::Other;
        }
        // With host bits cleared: CrowdSec keeps ranges as they were typed.
        let limits = Limits {
            max_bytes: MAX_TEXT,
            max_entries: 1,
            widest: WIDEST,
        };
        let value = self.value.as_bytes();
        match parse(value, Format::Plain, Admit::Bannable, &limits) {
            Ok(read) if read.prefixes.len() == 1 => Asked::Ban(read.prefixes[0]),
            Err(ListError::AllRefused { text, .. }) => Asked::Refused(text),
            _ => Asked::Malformed(format!("{:?} is no address", clipped(&self.value))),
        }
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
        Ok(FetchOutcome::Changed { bytes, .. }) => Ok(bytes),
        Ok(FetchOutcome::Unchanged) => Err(ListError::Unasked),
        Err(ListError::Status(401 | 403)) => Err(ListError::Decisions(
            "the key is not accepted; make one with: cscli bouncers add weir".to_owned(),
        )),
        Err(error) => Err(error),
    }
}

impl Decisions {
    /// The number of decisions in force.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// Whether no decision is in force.
    pub fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    /// Applies an answer to the decisions; `everything`: it is about all there are. They
    /// stay as they are if it makes no sense.
    pub fn apply(
        &mut self,
        answer: &[u8],
        everything: bool,
        now: SystemTime,
        max_entries: usize,
    ) -> Result<(), ListError> {
        let answer: DecisionStream<'_> = serde_json::from_slice(answer)
            .map_err(|error| ListError::Decisions(error.to_string()))?;
        let mut next = if everything {
            Self::default()
        } else {
            self.clone()
        };
        // A decision that was lifted and made again is in both.
        for gone in answer.deleted.iter().flatten() {
            match gone.asked() {
                Asked::Ban(prefix) => {
                    next.until.remove(&prefix);
                }
                Asked::Other => next.others = next.others.saturating_sub(1),
                Asked::Refused(text) => next.refused.forget(&text),
                Asked::Malformed(text) => next.malformed.note(0, || text),
            }
        }
        let new = answer.new.unwrap_or_default();
        let before = next.malformed.count;
        for made in &new {
            match (made.asked(), made.length()) {
                (Asked::Ban(prefix), Ok(length)) => {
                    let end = seconds(now).saturating_add(length.as_secs());
                    // The longer of two decisions counts.
                    let until = next.until.entry(prefix).or_default();
                    *until = end.max(*until);
                }
                (Asked::Ban(prefix), Err(why)) => {
                    next.malformed.note(0, || format!("{prefix}: {why}"));
                }
                (Asked::Other, _) => next.others += 1,
                (Asked::Refused(text), _) => next.refused.note(0, || text),
                (Asked::Malformed(text), _) => next.malformed.note(0, || text),
            }
            if next.until.len() > max_entries {
                return Err(ListError::TooMany(max_entries));
            }
        }
        // One of another make would lift everything.
        let unreadable = next.malformed.count - before;
        if everything && !new.is_empty() && unreadable == new.len() {
            let first = next.malformed.first.first();
            return Err(ListError::Decisions(format!(
                "none of its {} decisions can be read: {}",
                new.len(),
                first.map_or("", |(_, text)| text)
            )));
        }
        *self = next;
        self.expire(now);
        Ok(())
    }

    /// Forgets those that have ended; true if there were any.
    pub fn expire(&mut self, now: SystemTime) -> bool {
        let (before, now) = (self.until.len(), seconds(now));
        self.until.retain(|_, until| *until > now);
        self.until.len() != before
    }

    /// The time when the next decision ends.
    pub fn next_end(&self) -> Option<SystemTime> {
        let end = self.until.values().min()?;
        Some(UNIX_EPOCH + Duration::from_secs(*end))
    }

    /// The decisions in force as a list: sorted, overlaps joined.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let all: Vec<Prefix> = self.until.keys().copied().collect();
        let limits = Limits {
            max_bytes: usize::MAX,
            max_entries: usize::MAX,
            widest: [0; 2],
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

    /// The text to keep: `PREFIX SECONDS` a line, seconds of the wall clock.
    pub fn print(&self) -> String {
        use std::fmt::Write;
        let mut text = "# decisions of CrowdSec: prefix, end\n".to_owned();
        for (prefix, until) in &self.until {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{prefix} {until}");
        }
        text
    }

    /// Reads the text that `print` wrote; lines that it did not write are left out.
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
        let left_out = |d: &Decisions| (d.others, d.refused.count, d.malformed.count);
        assert_eq!(left_out(&decisions), (3, 1, 0));

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
        // What is left out stays so, until it is lifted.
        assert_eq!(left_out(&decisions), (3, 1, 0));
        let lifted = br#"{"new":[{"type":"ban","scope":"Ip","value":"::1","duration":"3h"}],
            "deleted":[{"type":"captcha","scope":"Ip","value":"198.51.100.8","duration":"-1s"},
                       {"type":"ban","scope":"Ip","value":"127.0.0.1","duration":"-1s"}]}"#;
        decisions.apply(lifted, false, at(61), 100).unwrap();
        assert_eq!(left_out(&decisions), (2, 1, 0));
        assert!(decisions.refused.first[0].1.starts_with("::1: "));
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
            r#"{"new":[{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"1h"}]}"#,
        ] {
            let taken = decisions.apply(answer.as_bytes(), false, at(0), 1);
            assert!(taken.is_err(), "{answer}");
            assert_eq!(decisions, before, "{answer}");
        }
        // Decisions of another make are all there are: they lift nothing.
        let strange = br#"{"new":[{"Type":"ban","target":"198.51.100.9"},7]}"#;
        let error = decisions.apply(strange, true, at(0), 1).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("none of its 2 decisions can be read")
        );
        assert_eq!(decisions, before);
    }

    /// The others of the same answer hold, in both directions.
    #[test]
    fn a_malformed_decision_is_left_out_and_counted() {
        const MALFORMED: [&str; 9] = [
            r#"{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"soon"}"#,
            r#"{"type":"ban","scope":"Ip","value":"198.51.100.9"}"#,
            r#"{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":null}"#,
            r#"{"type":"ban","scope":"Ip","value":"198.51.100.9","duration":3600}"#,
            r#"{"type":"ban","scope":"Ip","value":"nobody","duration":"1h"}"#,
            r#"{"type":"ban","scope":"Ip","value":["198.51.100.9"],"duration":"1h"}"#,
            r#"{"value":"198.51.100.9","duration":"1h"}"#,
            "null",
            "[[]]",
        ];
        const HELD: &str = r#"{"type":"ban","scope":"Ip","value":"198.51.100.7","duration":"1h"}"#;
        const NEXT: &str = r#"{"type":"ban","scope":"Ip","value":"2001:db8::7","duration":"1h"}"#;
        for malformed in MALFORMED {
            let mut decisions = Decisions::default();
            let all = format!(r#"{{"new":[{malformed},{HELD}],"deleted":null}}"#);
            decisions.apply(all.as_bytes(), true, at(0), 10).unwrap();
            assert_eq!(shown(&decisions), ["198.51.100.7"], "{malformed}");
            assert_eq!(decisions.malformed.count, 1, "{malformed}");
            assert_eq!(decisions.malformed.first.len(), 1, "{malformed}");
            let change = format!(r#"{{"new":[{malformed},{NEXT}],"deleted":[{HELD},7]}}"#);
            decisions
                .apply(change.as_bytes(), false, at(1), 10)
                .unwrap();
            assert_eq!(shown(&decisions), ["2001:db8::7"], "{malformed}");
            assert_eq!(decisions.malformed.count, 3, "{malformed}");
            let alone = format!(r#"{{"new":[{malformed}],"deleted":[{NEXT}]}}"#);
            decisions.apply(alone.as_bytes(), false, at(1), 10).unwrap();
            assert!(decisions.is_empty(), "{malformed}");
            let well = format!(r#"{{"new":[{HELD}]}}"#);
            decisions.apply(well.as_bytes(), true, at(1), 10).unwrap();
            assert_eq!(decisions.malformed.count, 0, "{malformed}");
        }
        // One whose length cannot be read is lifted all the same.
        let mut decisions = Decisions::default();
        let all = format!(r#"{{"new":[{HELD}]}}"#);
        decisions.apply(all.as_bytes(), true, at(0), 10).unwrap();
        let gone =
            br#"{"new":null,"deleted":[{"type":"ban","scope":"Ip","value":"198.51.100.7"}]}"#;
        decisions.apply(gone, false, at(1), 10).unwrap();
        assert!(decisions.is_empty());
        // Too wide for a list from elsewhere: neither malformed nor silent.
        let wide =
            br#"{"new":[{"type":"ban","scope":"Range","value":"128.0.0.0/3","duration":"1h"}]}"#;
        decisions.apply(wide, false, at(1), 10).unwrap();
        assert_eq!((decisions.len(), decisions.refused.count), (0, 1));
    }
}
