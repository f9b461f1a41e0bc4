//! Messages that are JSON objects, one a line: a filter says which fields make the message
//! that its patterns read, and which one has the time:
//!
//! ```text
//! json = { time = "ts", message = "<status> from <request.remote_ip>: <request.uri>" }
//! patterns = ["401 from <addr>: <text>"]
//! ```
//!
//! The text between the fields is the filter's own, as if the program had written the message
//! so; patterns are judged by it like any others. Reading JSON is `crate::json`'s.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    time_format::{StampFields, TimeFormat, TimeFormatError},
    timestamp::{self, Stamp},
};
use crate::json::{Fields, JsonError, MAX_FIELDS, is_path};

/// The longest `message`, in bytes.
const MAX_MESSAGE: usize = 2000;

/// `json` of a filter as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonDefinition {
    /// The path of the field with the time stamp. Without it a line counts by its head's
    /// stamp, or as of now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The form of that field in strftime's words, where it is neither ISO 8601, nor
    /// syslog's, nor a number of seconds, milli-, micro- or nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_format: Option<String>,
    /// The message that patterns read: text with `<PATH>` where the value of a field goes.
    pub message: String,
}

/// Why `json` of a filter cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonMessageError {
    /// The message asks for no field.
    NoField,
    /// `<` without its `>`, or the other way round.
    Unbalanced(char),
    /// A path that no field can have.
    Path(String),
    /// More fields than one filter may ask for.
    TooManyFields,
    /// The message is longer than 2,000 bytes.
    TooLong,
    /// A form of time stamps, and no field that has one.
    NoTime,
    /// The form of the time stamps is wrong.
    TimeFormat(TimeFormatError),
}

impl fmt::Display for JsonMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoField => f.write_str(
                "json.message: no field of the object is in it; allowed: text with paths of fields, such as \"<status> from <request.remote_ip>\"",
            ),
            Self::Unbalanced(c) => write!(
                f,
                "json.message: {c:?} without its partner: write \\{c} for a literal one"
            ),
            Self::Path(path) => write!(
                f,
                "json: \"{}\" cannot be the path of a field; allowed: a path such as \"request.remote_ip\", of 200 bytes at most",
                path.escape_debug()
            ),
            Self::TooManyFields => write!(f, "json: more than {MAX_FIELDS} fields"),
            Self::TooLong => write!(f, "json.message: it is longer than {MAX_MESSAGE} bytes"),
            Self::NoTime => f.write_str(
                "json.time_format: it is for the field that json.time names; allowed: with json.time",
            ),
            Self::TimeFormat(error) => write!(f, "json.time_format: {error}"),
        }
    }
}

impl std::error::Error for JsonMessageError {}

/// Why a line has no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMessage<'j> {
    /// The text is no object of JSON with one meaning.
    Json(JsonError),
    /// The object has no value at this path.
    Field(&'j str),
}

/// `json` of a filter, compiled.
#[derive(Clone, Debug)]
pub(super) struct JsonMessage {
    fields: Fields,
    paths: Vec<String>,
    /// The number of the field with the time.
    time: Option<usize>,
    time_format: Option<TimeFormat>,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// The number of a field.
    Field(usize),
}

/// What one object says.
#[derive(Debug)]
pub(super) struct JsonLine {
    /// The message that patterns read.
    pub message: String,
    /// The value of the field with the time, and a blank.
    time: Option<String>,
}

impl JsonMessage {
    /// Checks what is written.
    pub fn compile(definition: &JsonDefinition) -> Result<Self, JsonMessageError> {
        let mut paths: Vec<String> = Vec::new();
        let mut number = |path: String| {
            if !is_path(&path) {
                return Err(JsonMessageError::Path(path));
            }
            let known = paths.iter().position(|known| *known == path);
            Ok(known.unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            }))
        };
        if definition.message.len() > MAX_MESSAGE {
            return Err(JsonMessageError::TooLong);
        }
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut chars = definition.message.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => text.push(chars.next().ok_or(JsonMessageError::Unbalanced('\\'))?),
                '>' => return Err(JsonMessageError::Unbalanced('>')),
                '<' => {
                    let rest = chars.as_str();
                    let end = rest.find('>').ok_or(JsonMessageError::Unbalanced('<'))?;
                    if !text.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut text)));
                    }
                    parts.push(Part::Field(number(rest[..end].to_owned())?));
                    chars = rest[end + 1..].chars();
                }
                c => text.push(c),
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        if !parts.iter().any(|part| matches!(part, Part::Field(_))) {
            return Err(JsonMessageError::NoField);
        }
        let time = definition.time.clone().map(number).transpose()?;
        let time_format = match (&definition.time_format, time) {
            (None, _) => None,
            (Some(_), None) => return Err(JsonMessageError::NoTime),
            (Some(text), Some(_)) => {
                Some(TimeFormat::parse(text).map_err(JsonMessageError::TimeFormat)?)
            }
        };
        if paths.len() > MAX_FIELDS {
            return Err(JsonMessageError::TooManyFields);
        }
        Ok(Self {
            fields: Fields::new(&paths),
            paths,
            time,
            time_format,
            parts,
        })
    }

    /// Reads an object. A byte that is no UTF-8 is replaced.
    pub fn read(&self, text: &[u8]) -> Result<JsonLine, NoMessage<'_>> {
        let text = String::from_utf8_lossy(text);
        let mut values = self.fields.values(&text).map_err(NoMessage::Json)?;
        let mut message = String::with_capacity(text.len());
        for part in &self.parts {
            message.push_str(match part {
                Part::Text(text) => text,
                Part::Field(number) => match &values[*number] {
                    Some(value) => value,
                    None => return Err(NoMessage::Field(&self.paths[*number])),
                },
            });
        }
        let time = self.time.and_then(|number| values[number].take());
        Ok(JsonLine {
            message,
            time: time.map(|time| time + " "),
        })
    }

    /// The stamp of an object that was read; `None`: it has none of this form.
    pub fn stamp<'l>(&self, line: &'l JsonLine) -> Option<Stamp<'l>> {
        let time = line.time.as_deref()?;
        let text = time.trim_ascii();
        if let Some(format) = &self.time_format {
            let (fields, end) = format.read(text.as_bytes())?;
            return (end == text.len()).then_some(Stamp::Declared(fields));
        }
        if let Some(fields) = since_1970(text) {
            return Some(Stamp::Declared(fields));
        }
        let (stamp, rest) = timestamp::split(time.as_bytes())?;
        rest.is_empty().then_some(stamp)
    }
}

/// A number of seconds, or of smaller units: 12 digits of seconds are the year 5138, so that
/// more digits tell of milliseconds, 15 and more of microseconds, 18 and more of nanoseconds.
fn since_1970(text: &str) -> Option<StampFields> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let units = match whole.len() {
        ..12 => 0,
        12..15 => 3,
        15..18 => 6,
        _ => 9,
    };
    let (seconds, smaller) = whole.split_at(whole.len() - units);
    let digits = smaller.chars().chain(fraction.chars());
    let nanos: String = digits.chain(std::iter::repeat('0')).take(9).collect();
    Some(StampFields {
        epoch: Some(seconds.parse().ok()?),
        nanos: nanos.parse().ok()?,
        ..StampFields::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_seconds_or_smaller_units() {
        for (text, expected) in [
            ("1764000000", Some((1_764_000_000, 0))),
            ("1764000000.25", Some((1_764_000_000, 250_000_000))),
            ("1764000000.1234567891", Some((1_764_000_000, 123_456_789))),
            ("1764000000123", Some((1_764_000_000, 123_000_000))),
            ("1764000000123.5", Some((1_764_000_000, 123_500_000))),
            ("1764000000123456", Some((1_764_000_000, 123_456_000))),
            ("1764000000123456789", Some((1_764_000_000, 123_456_789))),
            ("0", Some((0, 0))),
            ("", None),
            ("-1", None),
            ("1.7e9", None),
            ("12345678901234567890", None),
            ("2026-11-26", None),
        ] {
            let read = since_1970(text).map(|fields| (fields.epoch.unwrap(), fields.nanos));
            assert_eq!(read, expected, "{text}");
        }
    }
}
