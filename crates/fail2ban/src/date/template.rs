//! One way to write a date: a pattern in which `%Y`, `%ExH` … stand for fields, made an
//! expression and matched anywhere, or at the beginning of the line.

use jiff::Timestamp;

use super::{
    fields::{self, Clock, Found},
    timestamp::Stamp,
};
use crate::regex::{NONE, Regex, RegexError, Scratch, Search};

/// At the line's beginning, behind two characters that are no word's at most.
const LINE_BEGIN: &str = "{^LN-BEG}";
const UNBOUND: &str = "{UNB}";
/// What stands before a date in a line, and behind it.
const WORD_BEGIN: &str = r"(?=^|\b|\W)";
const WORD_END: &str = r"(?=\b|\W|$)";

/// What the fields of a date are called; the others go by their letters.
const FIELD_NAMES: [(&str, &str); 20] = [
    ("a", "DAY"),
    ("A", "DAYNAME"),
    ("b", "MON"),
    ("B", "MONTH"),
    ("d", "Day"),
    ("f", "Microseconds"),
    ("H", "24hour"),
    ("I", "12hour"),
    ("j", "Yearday"),
    ("m", "Month"),
    ("M", "Minute"),
    ("p", "AMPM"),
    ("S", "Second"),
    ("U", "Yearweek"),
    ("w", "Weekday"),
    ("W", "Yearweek"),
    ("y", "Year2"),
    ("Y", "Year"),
    ("z", "Zone offset"),
    ("Z", "Zone name"),
];

/// How to find dates of one form.
#[derive(Clone, Debug)]
pub struct Template {
    /// The form as it was written; no two of a detector are equal.
    pub pattern: String,
    /// How much more than others it counts where several fit.
    pub weight: u32,
    /// It fits at one end of a line.
    pub anchored: bool,
    /// It can be read without its expression.
    pub stamp: Option<Stamp>,
    /// It fits at the beginning of a line.
    pub line_begin: bool,
    regex: Regex,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Letters of `strptime`, by the groups that hold them.
    Fields(Vec<(char, usize)>),
    /// Seconds since 1970, of so many digits more with `long`.
    Epoch {
        long: bool,
        group: usize,
    },
    Tai64n,
}

/// Which ends of a word a pattern has to stand at.
#[derive(Clone, Copy, PartialEq)]
enum Begin {
    Anywhere,
    Word,
    Line,
}

impl Template {
    /// One of this pattern.
    ///
    /// # Errors
    /// It holds a field that there is not, or is no expression.
    pub fn new(pattern: &str) -> Result<Self, RegexError> {
        let key = match pattern.contains('%') {
            true => pattern.to_owned(),
            false => pattern.to_uppercase(),
        };
        let long = key.contains("LEPOCH");
        if let Some(text) = with_epoch(pattern, long) {
            let kind = Kind::Epoch { long, group: 2 };
            return Self::build(pattern, &text, Begin::Word, true, kind);
        }
        let bare = key.strip_prefix(LINE_BEGIN).or(key.strip_prefix('^'));
        let at_begin = bare.is_some();
        match bare.unwrap_or(&key) {
            word @ ("EPOCH" | "LEPOCH") => {
                let kind = Kind::Epoch { long, group: 1 };
                let number = epoch(word == "LEPOCH");
                match at_begin {
                    true => Self::build(pattern, &number, Begin::Line, true, kind),
                    false => {
                        let places = r"(?:^|(?<=^\[)|(?<=\baudit\())";
                        let text = format!("({places}{number})");
                        Self::build(pattern, &text, Begin::Anywhere, true, kind)
                    }
                }
            }
            "TAI64N" => {
                let begin = match at_begin {
                    true => Begin::Line,
                    false => Begin::Anywhere,
                };
                Self::build(pattern, "@[0-9a-f]{24}", begin, true, Kind::Tai64n)
            }
            _ => Self::of_fields(pattern),
        }
    }

    fn of_fields(pattern: &str) -> Result<Self, RegexError> {
        let (mut begin, mut at_end) = (Begin::Word, true);
        let mut text = pattern;
        if let Some(rest) = text.strip_prefix(UNBOUND) {
            (begin, at_end, text) = (Begin::Anywhere, false, rest);
        }
        if begin == Begin::Word
            && let Some(rest) = text.strip_prefix(LINE_BEGIN)
        {
            (begin, text) = (Begin::Line, rest);
        }
        let (regex, has_letters) = expand(text)?;
        let regex = match has_letters {
            true => format!("(?iu){regex}"),
            false => regex,
        };
        Self::build(pattern, &regex, begin, at_end, Kind::Fields(Vec::new()))
    }

    /// `at_end`: a word ends behind it.
    fn build(
        pattern: &str,
        text: &str,
        begin: Begin,
        at_end: bool,
        kind: Kind,
    ) -> Result<Self, RegexError> {
        let mut text = text.trim().to_owned();
        let flags = take_flags(&mut text);
        let inner = text.trim_start_matches('(');
        let opened = inner.len() < text.len();
        let has_begin =
            inner.starts_with('^') || inner.starts_with("**") || opened && inner.starts_with("?:^");
        let bounds_begin = begin != Begin::Anywhere && !has_begin;
        let bounds_end = at_end && !ends_itself(&text);
        if !has_group(&text) {
            let head = usize::from(text.starts_with('^'));
            let tail = usize::from(text[head..].ends_with('$'));
            let end = text.len() - tail;
            text = format!("{}({}){}", &text[..head], &text[head..end], &text[end..]);
        }
        let mut line_begin = false;
        if bounds_begin {
            line_begin = begin == Begin::Line;
            let before = match begin {
                Begin::Line => r"^(?:\W{0,2})?",
                _ => WORD_BEGIN,
            };
            text.insert_str(0, before);
        }
        if bounds_end {
            text.push_str(WORD_END);
        }
        let begins_line = |text: &str| {
            text.starts_with('^')
                || ["(^", "(?:^"].iter().any(|begin| {
                    text.strip_prefix(begin)
                        .is_some_and(|rest| !rest.starts_with('|'))
                })
        };
        line_begin |= begins_line(&text);
        let before_end = text.strip_suffix("$)").or(text.strip_suffix('$'));
        let line_end = before_end.is_some_and(|text| !text.ends_with(['\\', '|']));
        remove_stars(&mut text);
        let mut regex = Regex::new(&(flags + &text), false)?;
        regex.forget_tree();
        // A bracket in a character class looks like a group; Fail2ban fails at each line then.
        let last_asked = match kind {
            Kind::Epoch { group, .. } => group,
            Kind::Fields(_) | Kind::Tai64n => 1,
        };
        if regex.groups() <= last_asked {
            return Err(RegexError {
                at: 0,
                message: "no group holds the date: none begins with '(' outside of [...]".into(),
            });
        }
        let kind = match kind {
            Kind::Fields(_) => Kind::Fields(
                (regex.names().iter())
                    .filter_map(|(name, group)| {
                        let mut letters = name.chars();
                        let letter = letters.next().filter(|_| letters.next().is_none())?;
                        Some((letter, *group))
                    })
                    .collect(),
            ),
            kind => kind,
        };
        Ok(Self {
            pattern: pattern.to_owned(),
            weight: 1,
            anchored: line_begin || line_end,
            line_begin,
            stamp: None,
            regex,
            kind,
        })
    }

    /// The pattern as Fail2ban shows it to people: with words in place of fields.
    pub fn name(&self) -> String {
        let key = match self.pattern.contains('%') {
            true => self.pattern.clone(),
            false => self.pattern.to_uppercase(),
        };
        let (bare, at_begin) = match key.strip_prefix(LINE_BEGIN).or(key.strip_prefix('^')) {
            Some(bare) => (bare, LINE_BEGIN),
            None => (key.as_str(), ""),
        };
        match bare {
            "EPOCH" => return format!("{at_begin}Epoch"),
            "LEPOCH" => return format!("{at_begin}LongEpoch"),
            "TAI64N" => return format!("{at_begin}TAI64N"),
            _ => {}
        }
        let text = self.pattern.strip_prefix(UNBOUND).unwrap_or(&self.pattern);
        let mut name = String::with_capacity(2 * text.len());
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            name.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let length = match rest.starts_with("Ex") {
                true => 3,
                false => rest.chars().next().map_or(0, char::len_utf8),
            };
            let code = rest.get(..length).unwrap_or(rest);
            let (extra, letter) = match code.strip_prefix("Ex") {
                Some(letter) => ("Ex", letter),
                None => ("", code),
            };
            name.push_str(extra);
            match FIELD_NAMES.iter().find(|(field, _)| *field == letter) {
                Some((_, word)) => name.push_str(word),
                None if letter == "%" => name.push('%'),
                None => {
                    name.push('%');
                    name.push_str(letter);
                }
            }
            rest = &rest[code.len()..];
        }
        name.push_str(rest);
        name
    }

    /// Where such a date stands, from `from` on.
    pub fn find(&self, line: &str, from: usize, scratch: &mut Scratch) -> Option<Found> {
        let Search::Found = self.regex.search(line, from, scratch) else {
            return None;
        };
        let slots = &scratch.slots;
        let cut = match slots[3] {
            NONE => (0, 0),
            end => (slots[2], end),
        };
        Some(Found {
            span: (slots[0], slots[1]),
            cut,
        })
    }

    /// The time that the date says which was found last.
    pub fn time(&self, line: &str, scratch: &Scratch, clock: Clock<'_>) -> Option<Timestamp> {
        let group = |group: usize| {
            let [begin, end] = [0, 1].map(|n| scratch.slots[2 * group + n]);
            (end != NONE).then(|| &line[begin..end])
        };
        match &self.kind {
            Kind::Fields(groups) => {
                let fields = groups
                    .iter()
                    .filter_map(|(letter, number)| Some((*letter, group(*number)?)));
                Timestamp::from_second(fields::time(fields, clock)?).ok()
            }
            Kind::Epoch {
                long,
                group: number,
            } => since_1970(group(*number)?, *long),
            Kind::Tai64n => {
                let seconds = i64::from_str_radix(group(1)?.get(2..17)?, 16).ok()?;
                Timestamp::from_second(seconds).ok()
            }
        }
    }
}

/// A number of seconds; with `long` of 13 digits milliseconds, of 16 microseconds.
fn since_1970(text: &str, long: bool) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let number: i128 = whole.parse().ok()?;
    let unit: i128 = match (long, text.len()) {
        (true, 16..) if !text.contains('.') => 1_000,
        (true, 13..) => 1_000_000,
        _ => 1_000_000_000,
    };
    let mut nanos = number * unit;
    let mut digit_of = unit;
    for digit in fraction.bytes() {
        digit_of /= 10;
        nanos += i128::from(digit - b'0') * digit_of;
    }
    Timestamp::from_nanosecond(nanos).ok()
}

fn epoch(long: bool) -> String {
    match long {
        true => r"\d{10,11}(?:\d{3}(?:\.\d{1,6}|\d{3})?)?".to_owned(),
        false => r"\d{10,11}\b(?:\.\d{3,6})?".to_owned(),
    }
}

/// A pattern with `{EPOCH}` or `{LEPOCH}` in it.
fn with_epoch(pattern: &str, long: bool) -> Option<String> {
    let upper = pattern.to_ascii_uppercase();
    let mut out = String::from("(");
    let mut from = 0;
    let mut any = false;
    for (at, _) in upper.match_indices('{') {
        let escaped = upper[..at].ends_with('\\');
        let word = ["{EPOCH}", "{LEPOCH}"]
            .into_iter()
            .find(|word| !escaped && upper[at..].starts_with(word));
        if let Some(word) = word {
            out.push_str(&pattern[from..at]);
            out.push_str(&format!("({})", epoch(long)));
            from = at + word.len();
            any = true;
        }
    }
    out.push_str(&pattern[from..]);
    out.push(')');
    any.then_some(out)
}

/// Cuts the first `(?letters)` out.
fn take_flags(text: &mut String) -> String {
    for (at, _) in text.match_indices("(?") {
        let letters = text[at + 2..].bytes();
        let count = letters.take_while(u8::is_ascii_lowercase).count();
        let end = at + 2 + count;
        if count > 0 && text[end..].starts_with(')') {
            return text.drain(at..=end).collect();
        }
    }
    String::new()
}

/// Has it a group without a name?
fn has_group(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        !text[..at].ends_with('\\')
            && !text[..at].ends_with("(?")
            && !text[at + 1..].starts_with('?')
    })
}

/// Does it say itself what stands behind it?
fn ends_itself(text: &str) -> bool {
    let before = ["$)", "$", r"\b", r"\s"]
        .iter()
        .find_map(|end| text.strip_suffix(end))
        .or_else(|| text.trim_end_matches(')').strip_suffix("**"));
    before.is_some_and(|text| !text.ends_with('\\'))
}

/// `**` at an end: no word needs to begin or end there.
fn remove_stars(text: &mut String) {
    let opened = text.len() - text.trim_start_matches('(').len();
    if text[opened..].starts_with("**") {
        text.drain(opened..opened + 2);
    }
    let closed = text.trim_end_matches(')').len();
    if text[..closed].ends_with("**") && !text[..closed - 2].ends_with('\\') {
        text.drain(closed - 2..closed);
    }
}

/// What a pattern holds of its own, to be put into another one.
pub fn unbound(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix(UNBOUND).unwrap_or(pattern);
    let pattern = pattern.strip_prefix(LINE_BEGIN).unwrap_or(pattern);
    let pattern = [r"(^|\b|\W)", r"(?:^|\b|\W)"]
        .iter()
        .find_map(|begin| pattern.strip_prefix(begin))
        .unwrap_or(pattern);
    pattern.strip_suffix(WORD_END).unwrap_or(pattern)
}

/// A pattern with expressions in place of fields; do they hold letters?
fn expand(pattern: &str) -> Result<(String, bool), RegexError> {
    let mut out = String::with_capacity(4 * pattern.len());
    let mut has_letters = false;
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        let before_escaped = at == 0 && out.ends_with('%');
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let length = match rest.starts_with("Ex") {
            true => 3,
            false => rest.chars().next().map_or(0, char::len_utf8),
        };
        let code = rest.get(..length).unwrap_or(rest);
        let Some(expression) = field(code) else {
            return Err(RegexError {
                at: pattern.chars().count() - rest.chars().count(),
                message: format!("there is no field %{code} in a date pattern"),
            });
        };
        has_letters |= !before_escaped && "aAbBpc".contains(code);
        out.push_str(&expression);
        rest = &rest[code.len()..];
    }
    out.push_str(rest);
    Ok((out, has_letters))
}

/// The expression of a field; `Ex` before a letter wants all its digits.
fn field(code: &str) -> Option<String> {
    let group = |name: &str, digits: &str| format!("(?P<{name}>{digits})");
    let zone = "[A-Z](?:[A-Z]{2,4})?";
    let shift = r"[+-][01]\d(?::?\d{2})?";
    Some(match code {
        "Y" => group("Y", r"\d{4}"),
        // Of this century.
        "ExY" => group("Y", r"20\d\d"),
        "y" | "Exy" => group("y", r"\d\d"),
        "m" => group("m", "0?[1-9]|1[0-2]"),
        "Exm" => group("m", "0[1-9]|1[0-2]"),
        "d" => group("d", r"[1-2]\d|[0 ]?[1-9]|3[0-1]"),
        "Exd" => group("d", r"[1-2]\d|0[1-9]|3[0-1]"),
        "H" => group("H", r"[0-1]?\d|2[0-3]"),
        "ExH" => group("H", r"[0-1]\d|2[0-3]"),
        "k" => format!(" ?{}", group("H", r"[0-2]?\d")),
        "Exk" => format!(" ?{}", group("H", r"[0-1]?\d|2[0-3]")),
        "I" => group("I", "1[0-2]|0[1-9]|[1-9]"),
        "l" => format!(" ?{}", group("I", r"1?\d")),
        "Exl" => format!(" ?{}", group("I", r"1[0-2]|\d")),
        "M" => group("M", r"[0-5]?\d"),
        "ExM" => group("M", r"[0-5]\d"),
        "S" => group("S", r"[0-5]?\d|6[0-1]"),
        "ExS" => group("S", r"[0-5]\d|6[0-1]"),
        "f" => group("f", "[0-9]{1,6}"),
        "p" => group("p", "am|pm"),
        "j" => group(
            "j",
            r"36[0-6]|3[0-5]\d|[1-2]\d\d|0[1-9]\d|00[1-9]|[1-9]\d|0[1-9]|[1-9]",
        ),
        "w" => group("w", "[0-6]"),
        "U" | "W" => group(code, r"5[0-3]|[0-4]\d|\d"),
        "a" => group("a", &names(&fields::WEEKDAYS, 3)),
        "A" => group("A", &names(&fields::WEEKDAYS, 9)),
        "b" => group("b", &names(&fields::MONTHS, 3)),
        "B" => group("B", &names(&fields::MONTHS, 9)),
        "Z" => group("Z", "Z|[A-Z]{3,5}"),
        "z" => group("z", &format!("Z|UTC|GMT|{shift}")),
        "ExZ" => group("Z", zone),
        "Exz" => group("z", &format!("(?:{zone})?{shift}|{zone}")),
        "x" => ["m", "/", "d", "/", "y"].map(part).concat(),
        "X" => ["H", ":", "M", ":", "S"].map(part).concat(),
        "c" => ["a", r"\s+", "b", r"\s+", "d", r"\s+", "X", r"\s+", "Y"]
            .map(part)
            .concat(),
        _ => return None,
    })
}

/// A field, or what stands between two.
fn part(code: &str) -> String {
    field(code).unwrap_or_else(|| code.to_owned())
}

/// The longest first, of as many letters at most.
fn names(names: &[&str], letters: usize) -> String {
    let mut names: Vec<&str> = names
        .iter()
        .map(|name| &name[..name.len().min(letters)])
        .collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.join("|")
}
