//! Dates of log lines: where one stands, and what time it says. Which of several forms
//! is tried, and which is believed where more than one fits, is learned from the lines
//! before, as Fail2ban does: a form that has fitted often and near the line's beginning
//! comes before the others.

mod fields;
mod shared;
mod template;
mod timestamp;
mod zones;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use jiff::Timestamp;

pub use fields::Clock;
pub use shared::LogDates;

use crate::regex::{RegexError, Scratch};
use fields::Found;
use template::Template;
use timestamp::Stamp;

/// A form that has not fitted for so many seconds gives its place to one that has.
const UNUSED_SECONDS: i64 = 300;
/// How much more a form that stands at the beginning of lines counts.
const LINE_BEGIN_WEIGHT: u32 = 100;
/// The most forms of one filter.
const MAX_TEMPLATES: usize = 200;

/// The forms that a filter's dates may have.
#[derive(Clone, Debug)]
pub struct Dates {
    templates: Vec<Arc<Template>>,
}

/// What was learned from the lines before.
#[derive(Clone, Debug)]
pub struct DateState {
    /// The forms, to tell states of the same ones.
    templates: Vec<Arc<Template>>,
    /// The forms' numbers, in the order in which they are tried.
    order: Vec<usize>,
    /// By those numbers.
    uses: Vec<Use>,
    /// The place in `order` of what fitted last.
    last: Option<usize>,
    first_unused: usize,
    last_begin: Edge,
    last_end: Edge,
    scratch: Scratch,
    /// The form whose groups are in `scratch`.
    searched: Option<usize>,
    known: Known,
}

/// The last date's time: a busy log repeats the second.
#[derive(Clone, Debug, Default)]
struct Known {
    text: String,
    seconds: Option<i64>,
    /// The hour of the `now` that it was read with.
    hour: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    hits: u32,
    /// Those of lines where another one was taken, too.
    fits: u32,
    last_used: i64,
    distance: usize,
}

/// An end of the last date, and what stood before and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge {
    at: usize,
    before: Option<char>,
    behind: Option<char>,
}

/// A date in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateMatch {
    /// The bytes to cut out.
    pub cut: (usize, usize),
    /// The time that the date says; `None` where there is no such time.
    pub time: Option<Timestamp>,
}

/// The forms that are tried where a filter says nothing.
fn usual() -> Vec<String> {
    let second = "%H:%M:%S";
    let late_second = "%k:%M:%S";
    let fraction = r"(?:\.%f)?";
    let any_fraction = "(?:[.,]%f)?";
    let zone = r"(?:\s*%z)?";
    let asctime = format!("(?:%a )?%b %d {late_second}{fraction}(?: %ExY)?");
    let same = |separators: &str, first: &str, second: &str| {
        format!("{first}(?P<_sep>[{separators}]){second}(?P=_sep)")
    };
    vec![
        // ISO 8601 and the like.
        format!(
            "{}%d(?:T|  ?){second}{any_fraction}{zone}",
            same("-/.", "%ExY", "%m")
        ),
        asctime.clone(),
        // The same with the year behind the day.
        format!("(?:%a )?%b %d %ExY {late_second}{fraction}"),
        // Day first.
        format!("{}(?:%ExY|%Exy) {late_second}", same("-/", "%d", "%m")),
        // Web servers, named.
        format!(
            "{}%ExY[ :]?{second}{fraction}(?: %z)?",
            same("-/", "%d", "%b")
        ),
        format!("%m/%d/%ExY:{second}"),
        format!("%m-%d-%ExY {late_second}{fraction}"),
        "Epoch".to_owned(),
        format!("{{^LN-BEG}}{second}"),
        format!("^<%m/%d/%Exy@{second}>"),
        format!("%Exy%Exm%Exd  ?{second}"),
        "%b %d, %ExY %I:%M:%S %p".to_owned(),
        format!("^%b-%d-%Exy {late_second}"),
        // ISO 8601 without separators.
        format!("%ExY%Exm%Exd(?:T|  ?)%ExH%ExM%ExS{any_fraction}{zone}"),
        // With a zone before it, by name and by number.
        format!("(?:%Z )?{asctime}"),
        format!("(?:%z )?{asctime}"),
        "TAI64N".to_owned(),
    ]
}

/// A compiled form; the filters that have it share it, for nearly all have the usual ones.
fn shared(pattern: &str, weight: u32, stamp: Option<Stamp>) -> Result<Arc<Template>, RegexError> {
    type Key = (String, u32, bool);
    static KNOWN: Mutex<Option<HashMap<Key, Weak<Template>>>> = Mutex::new(None);
    let key = (pattern.to_owned(), weight, stamp.is_some());
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = lock().get_or_insert_default().get(&key)
        && let Some(template) = there.upgrade()
    {
        return Ok(template);
    }
    let mut template = Template::new(pattern)?;
    template.weight = weight;
    template.stamp = stamp;
    let template = Arc::new(template);
    let mut known = lock();
    let known = known.get_or_insert_default();
    // Those that no filter has any more go.
    known.retain(|_, template| template.strong_count() > 0);
    known.insert(key, Arc::downgrade(&template));
    Ok(template)
}

/// `{DATE}` in a pattern, and where.
fn date_tag(pattern: &str) -> Option<usize> {
    let upper = pattern.to_ascii_uppercase();
    upper
        .match_indices("{DATE}")
        .map(|(at, _)| at)
        .find(|at| !pattern[..*at].ends_with('\\'))
}

impl Dates {
    /// The dates of a filter's `datepattern`: one a line.
    ///
    /// # Errors
    /// One of them is no expression, or holds a field that there is not.
    pub fn new(pattern: Option<&str>) -> Result<Self, RegexError> {
        let mut dates = Self {
            templates: Vec::new(),
        };
        let lines = pattern.unwrap_or_default().lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty()) {
            let key = match line.contains('%') {
                true => line.to_owned(),
                false => line.to_uppercase(),
            };
            match &*key {
                "{^LN-BEG}" => dates.add_usual(|template| template.line_begin)?,
                "{DEFAULT}" => dates.add_usual(|_| true)?,
                "{NONE}" => dates.add("{UNB}^", 1)?,
                key if key.contains("{DATE}") => {
                    for form in usual() {
                        let mut whole = line.to_owned();
                        while let Some(at) = date_tag(&whole) {
                            whole.replace_range(at..at + 6, template::unbound(&form));
                        }
                        dates.add(&whole, 1)?;
                    }
                }
                _ => dates.add(line, 1)?,
            }
            if dates.templates.len() > MAX_TEMPLATES {
                return Err(RegexError {
                    at: 0,
                    message: format!("more than {MAX_TEMPLATES} forms of dates"),
                });
            }
        }
        if dates.templates.is_empty() {
            dates.add_usual(|_| true)?;
        }
        Ok(dates)
    }

    fn add(&mut self, pattern: &str, weight: u32) -> Result<(), RegexError> {
        let template = shared(pattern, weight, None)?;
        self.push(template);
        Ok(())
    }

    fn push(&mut self, template: Arc<Template>) {
        let is_known = |known: &Arc<Template>| known.pattern == template.pattern;
        if !self.templates.iter().any(is_known) {
            self.templates.push(template);
        }
    }

    /// The usual ones, those at the beginning of lines first.
    fn add_usual(&mut self, wanted: impl Fn(&Template) -> bool) -> Result<(), RegexError> {
        let usual = usual();
        let at_begin = usual
            .iter()
            .filter(|form| !form.starts_with('^') && !form.starts_with("{^LN-BEG}"));
        for form in at_begin {
            let stamp = [Stamp::Iso, Stamp::Syslog]
                .into_iter()
                .zip(&usual)
                .find_map(|(stamp, known)| (known == form).then_some(stamp));
            let pattern = format!("{{^LN-BEG}}{form}");
            let template = shared(&pattern, LINE_BEGIN_WEIGHT, stamp)?;
            if wanted(&template) {
                self.push(template);
            }
        }
        for form in usual {
            let template = shared(&form, 1, None)?;
            if wanted(&template) {
                self.push(template);
            }
        }
        Ok(())
    }

    /// Each form as people are shown it, and how often it was taken, in the order in which
    /// they are tried by now.
    pub fn hits(&self, state: &DateState) -> Vec<(String, u32)> {
        let hits = |number: &usize| (self.templates[*number].name(), state.uses[*number].hits);
        state.order.iter().map(hits).collect()
    }

    /// The state before the first line.
    pub fn state(&self) -> DateState {
        let unused = Use {
            hits: 0,
            fits: 0,
            last_used: 0,
            distance: usize::MAX,
        };
        let edge = |at| Edge {
            at,
            before: None,
            behind: None,
        };
        DateState {
            templates: self.templates.clone(),
            order: (0..self.templates.len()).collect(),
            uses: vec![unused; self.templates.len()],
            last: None,
            first_unused: 0,
            last_begin: edge(1),
            last_end: edge(usize::MAX),
            scratch: Scratch::default(),
            searched: None,
            known: Known::default(),
        }
    }

    /// The date of a line; what it teaches is remembered.
    pub fn find(&self, state: &mut DateState, line: &str, clock: Clock<'_>) -> Option<DateMatch> {
        if let Some(dated) = self.find_again(state, line, clock) {
            return Some(dated);
        }
        let (place, found) = self.search(state, line)?;
        let number = state.order[place];
        state.learn(&self.templates, place, found, line, clock.now.as_second());
        let template = &self.templates[number];
        let time = match found.cut.0 == found.cut.1 {
            true => None,
            false => {
                if state.searched != Some(number) {
                    let (begin, end) = found.span;
                    template.find(&line[..end], begin, &mut state.scratch);
                }
                template.time(line, &state.scratch, clock)
            }
        };
        Some(DateMatch {
            cut: found.cut,
            time,
        })
    }

    /// The same where the form that has fitted last is one that is read quickly.
    fn find_again(&self, state: &mut DateState, line: &str, clock: Clock<'_>) -> Option<DateMatch> {
        let place = state.last?;
        let number = state.order[place];
        let (found, fields) = timestamp::read(self.templates[number].stamp?, line)?;
        state.uses[number].fits = state.uses[number].fits.saturating_add(1);
        state.learn(&self.templates, place, found, line, clock.now.as_second());
        let known = &mut state.known;
        let hour = clock.now.as_second() / 3600;
        let text = &line[..found.cut.1];
        if known.text != text || known.hour != hour {
            known.seconds = fields::time(fields.into_iter(), clock);
            known.hour = hour;
            known.text.clear();
            known.text.push_str(text);
        }
        Some(DateMatch {
            cut: found.cut,
            time: (known.seconds).and_then(|seconds| Timestamp::from_second(seconds).ok()),
        })
    }

    /// Which form fits, by its place in the order, and where.
    fn search(&self, state: &mut DateState, line: &str) -> Option<(usize, Found)> {
        let count = self.templates.len();
        let mut best: Option<(usize, Found)> = None;
        let mut tried = None;
        if let Some(last) = state.last.filter(|last| *last < count) {
            let template = &self.templates[state.order[last]];
            let found = if template.anchored {
                tried = Some(last);
                state.fits(template, last, line, 0)
            } else if state.has_same_edges(line) {
                let [begin, end] = [state.last_begin.at, state.last_end.at];
                let end = end.min(line.len());
                match line.is_char_boundary(begin.min(end)) && line.is_char_boundary(end) {
                    true if begin <= end => state.fits(template, last, &line[..end], begin),
                    _ => None,
                }
            } else {
                tried = Some(last);
                state.fits(template, last, line, 0)
            };
            if let Some(found) = found {
                let same = found.span == (state.last_begin.at, state.last_end.at);
                if count == 1 || template.anchored || same {
                    return Some((last, found));
                }
                best = Some((last, found));
            }
        }
        for place in 0..count {
            if tried == Some(place) {
                continue;
            }
            let number = state.order[place];
            let template = &self.templates[number];
            let Some(found) = state.fits(template, place, line, 0) else {
                continue;
            };
            let distance = found.span.0;
            let next = state.order.get(place + 1).map(|next| state.uses[*next]);
            let used = state.uses[number];
            let is_last = next.is_none();
            let is_settled =
                distance == 0 && used.hits > 0 && next.is_some_and(|next| next.fits == 0);
            let moved = distance > used.distance || distance > state.last_begin.at;
            if is_last || template.anchored || is_settled || !moved {
                return Some((place, found));
            }
            if best.is_none_or(|(_, best)| distance < best.span.0) {
                best = Some((place, found));
            }
        }
        best
    }
}

impl DateState {
    /// Would the same lines teach both the same from now on? (The rest is memory that searches
    /// use again.)
    fn has_learned_as(&self, other: &Self) -> bool {
        let mut forms = self.templates.iter().zip(&other.templates);
        self.templates.len() == other.templates.len()
            && forms.all(|(one, other)| Arc::ptr_eq(one, other))
            && (&self.order, &self.uses, self.last, self.first_unused)
                == (&other.order, &other.uses, other.last, other.first_unused)
            && (self.last_begin, self.last_end) == (other.last_begin, other.last_end)
    }

    fn fits(
        &mut self,
        template: &Template,
        place: usize,
        line: &str,
        from: usize,
    ) -> Option<Found> {
        self.searched = None;
        let found = template.find(line, from, &mut self.scratch)?;
        self.searched = Some(self.order[place]);
        let used = &mut self.uses[self.order[place]];
        used.fits = used.fits.saturating_add(1);
        Some(found)
    }

    /// Stands the same around the place of the last date?
    fn has_same_edges(&self, line: &str) -> bool {
        let (begin, end) = (
            Edge::of(line, self.last_begin.at),
            Edge::of(line, self.last_end.at),
        );
        let no_letter = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        let (last_begin, last_end) = (self.last_begin, self.last_end);
        (begin.before == last_begin.before
            || begin.behind == last_begin.behind && no_letter(begin.behind))
            && (end.behind == last_end.behind
                || end.before == last_end.before && no_letter(end.before))
    }

    fn learn(
        &mut self,
        templates: &[Arc<Template>],
        place: usize,
        found: Found,
        line: &str,
        now: i64,
    ) {
        let used = &mut self.uses[self.order[place]];
        used.hits = used.hits.saturating_add(1);
        used.last_used = now;
        used.distance = found.span.0;
        if self.first_unused == place {
            self.first_unused += 1;
        }
        self.last_begin = Edge::of(line, found.span.0);
        self.last_end = Edge::of(line, found.span.1);
        self.last = Some(match place == 0 || self.last == Some(place) {
            true => place,
            false => self.move_up(templates, place),
        });
    }

    /// Gives a form that has fitted a place nearer to the front; which.
    fn move_up(&mut self, templates: &[Arc<Template>], place: usize) -> usize {
        let weight = |number: usize| {
            let used = self.uses[number];
            f64::from(used.hits) * f64::from(templates[number].weight) / used.distance.max(1) as f64
        };
        let number = self.order[place];
        let long_unused = self.uses[number].last_used - UNUSED_SECONDS;
        let may_replace = |other: usize| {
            let other = self.order[other];
            weight(number) > weight(other) || long_unused > self.uses[other].last_used
        };
        let mut to = match self.first_unused < place {
            true => self.first_unused,
            false => place / 2,
        };
        if !may_replace(to) {
            if to == place - 1 || !may_replace(place - 1) {
                return place;
            }
            to = place - 1;
        }
        let number = self.order.remove(place);
        self.order.insert(to, number);
        while let Some(number) = self.order.get(self.first_unused)
            && self.uses[*number].hits > 0
        {
            self.first_unused += 1;
        }
        to
    }
}

impl Edge {
    fn of(line: &str, at: usize) -> Self {
        Self {
            at,
            before: line.get(..at).and_then(|before| before.chars().next_back()),
            behind: line.get(at..).and_then(|behind| behind.chars().next()),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    /// What a detector cuts out of lines, and the seconds.
    fn found(pattern: Option<&str>, lines: &[&str]) -> Vec<Option<(String, Option<i64>)>> {
        let zone = TimeZone::posix("CET-1CEST-2,M3.5.0,M10.5.0").unwrap();
        let clock = Clock {
            now: Timestamp::from_second(1_124_013_600).unwrap(),
            zone: &zone,
        };
        let dates = Dates::new(pattern).unwrap();
        let mut state = dates.state();
        let one = |line: &&str| {
            let dated = dates.find(&mut state, line, clock)?;
            let cut = line[dated.cut.0..dated.cut.1].to_owned();
            Some((cut, dated.time.map(Timestamp::as_second)))
        };
        lines.iter().map(one).collect()
    }

    const JANUARY: i64 = 1_106_513_999;

    #[test]
    fn each_usual_form_is_found() {
        for date in [
            "Sun Jan 23 21:59:59 2005",
            "Jan 23 21:59:59",
            "2005/01/23 21:59:59",
            "2005-01-23T20:59:59.123456Z",
            "2005-01-23 21:59:59,123",
            "23/01/2005 21:59:59",
            "23/Jan/2005:21:59:59 +0100",
            "23-Jan-2005 21:59:59.25",
            "01/23/2005:21:59:59",
            "01-23-2005 21:59:59.252",
            "1106513999",
            "<01/23/05@21:59:59>",
            "050123 21:59:59",
            "Jan 23, 2005 9:59:59 PM",
            "Jan-23-05 21:59:59",
            "20050123T215959",
            "CET Jan 23 21:59:59",
            "@4000000041f4104f00000000",
        ] {
            let line = format!("{date} host: said");
            let found = found(None, &[&line]).remove(0);
            let (cut, time) = found.unwrap_or_else(|| panic!("{date}: nothing found"));
            assert!(date.contains(&cut), "{date}: {cut}");
            let expected = match date.starts_with('@') {
                true => 0x41f4104f,
                false => JANUARY,
            };
            assert_eq!(time, Some(expected), "{date}: {cut}");
        }
        assert_eq!(found(None, &["no date at all 12"]), [None]);
    }

    #[test]
    fn patterns_say_where_and_how() {
        let one = |pattern, line| found(Some(pattern), &[line]).remove(0);
        let jan = |cut: &str| Some((cut.to_owned(), Some(JANUARY)));
        assert_eq!(
            one("^t=%Y-%m-%dT%H:%M:%S%z", "t=2005-01-23T21:59:59+0100 x"),
            jan("t=2005-01-23T21:59:59+0100")
        );
        assert_eq!(
            one(r"^[^\[]*\[({DATE})", "a b [23/Jan/2005:21:59:59 +0100] c"),
            jan("23/Jan/2005:21:59:59 +0100")
        );
        assert_eq!(
            one("EPOCH", "audit(1106513999.000:1)"),
            jan("1106513999.000")
        );
        assert_eq!(one("{^LN-BEG}Epoch", "[1106513999] x"), jan("1106513999"));
        assert_eq!(
            one("t {LEPOCH} x", "a t 1106513999000 x"),
            jan("t 1106513999000 x")
        );
        assert_eq!(one("{^LN-BEG}", "x y 2005-01-23 21:59:59"), None);
        assert_eq!(
            one("{NONE}", "2005-01-23 21:59:59"),
            Some((String::new(), None))
        );
        assert_eq!(
            one("**%Y%m%d %ExH%ExM%ExS**", "x20050123 215959y"),
            jan("20050123 215959")
        );
        assert_eq!(one("^%ExY-%m-%d %H:%M:%S", "1999-01-23 21:59:59"), None);
        let dates = Dates::new(Some("^%ExY-%m-%d %H:%M:%S")).unwrap();
        let clock = Clock {
            now: Timestamp::UNIX_EPOCH,
            zone: &TimeZone::UTC,
        };
        let mut state = dates.state();
        assert!(
            dates
                .find(&mut state, "2005-01-23 21:59:59 x", clock)
                .is_some()
        );
        let hits = dates.hits(&state);
        assert_eq!(
            hits,
            [("^ExYear-Month-Day 24hour:Minute:Second".to_owned(), 1)]
        );
        assert!(Dates::new(Some("%Q")).is_err());
    }

    /// Fail2ban takes their bracket for a group, and fails at each line ("no such group").
    #[test]
    fn patterns_whose_groups_stand_in_a_class_are_refused() {
        for pattern in ["[(]at[)]", "[({DAT]*", "[{EPOCH}]", "^[{LEPOCH}]"] {
            let Err(error) = Dates::new(Some(pattern)) else {
                panic!("{pattern} is accepted");
            };
            assert!(error.to_string().contains("no group"), "{error}");
        }
        for pattern in [
            "at",
            "[(]%Y-%m-%d[)]",
            "x[(](at)",
            "<{EPOCH}>",
            "[x]{EPOCH}",
        ] {
            assert!(Dates::new(Some(pattern)).is_ok(), "{pattern}");
        }
    }

    /// What is read without an expression is what the expression finds.
    #[test]
    fn stamps_are_read_as_by_their_expressions() {
        let zone = TimeZone::posix("CET-1CEST-2,M3.5.0,M10.5.0").unwrap();
        let now = Timestamp::from_second(1_124_013_600).unwrap();
        let clock = Clock { now, zone: &zone };
        let dates = Dates::new(None).unwrap();
        let mut scratch = Scratch::default();
        let mut read = 0;
        for template in dates.templates.iter().filter(|t| t.stamp.is_some()) {
            let days = [
                "Jan 23", "Feb  8", "Feb 08", "Mar 30", "feb 8", "Apr 31", "Xyz 12",
            ];
            let iso = [
                "2005-01-23T",
                "2005/01/23 ",
                "2005-01/23 ",
                "2005-00-23T",
                "1999-01-23 ",
            ];
            let days = days.map(|day| format!("{day} ")).into_iter();
            for day in days.chain(iso.map(str::to_owned)) {
                for hour in ["21:59:59", "24:00:00", "01:60:00", "01:02:60", "1:02:03"] {
                    for behind in [
                        "",
                        " host",
                        " 2005 x",
                        " 2019",
                        ".5 x",
                        ".1234567 x",
                        ",123Z x",
                        "Z",
                        "ZZ",
                        "+0100 x",
                        "-01:30 x",
                        "+01 x",
                        " +0100 x",
                        " UTC x",
                        "x",
                        "_",
                        ":",
                        "\u{e4}",
                        " \u{a0}Z",
                        " - x",
                        ". x",
                        "\u{1c}Z x",
                    ] {
                        let line = format!("{day}{hour}{behind}");
                        let Some((found, fields)) = timestamp::read(template.stamp.unwrap(), &line)
                        else {
                            continue;
                        };
                        read += 1;
                        let expected = template.find(&line, 0, &mut scratch);
                        assert_eq!(Some(found), expected, "{line}");
                        let time = fields::time(fields.into_iter(), clock);
                        let expected = template.time(&line, &scratch, clock);
                        assert_eq!(time, expected.map(Timestamp::as_second), "{line}");
                    }
                }
            }
        }
        assert!(read > 50, "{read}");
    }

    /// A date in the text of a line counts less than the one before it.
    #[test]
    fn the_form_of_the_log_is_learned() {
        let lines = [
            "Jan 23 21:59:59 host a 2005-03-04 01:02:03",
            "Jan 23 21:59:59 host a",
            "host [2005-03-04 01:02:03] Jan 23 21:59:59",
        ];
        let cut: Vec<_> = found(None, &lines)
            .into_iter()
            .map(|f| f.unwrap().0)
            .collect();
        assert_eq!(
            cut,
            ["Jan 23 21:59:59", "Jan 23 21:59:59", "2005-03-04 01:02:03"]
        );
    }
}
