//! A filter as it is written in TOML, weir's own form: what it says, what is wrong
//! with it, and the program that it becomes. The language of its patterns is
//! `template`'s.

use std::fmt;

use serde::{Deserialize, Serialize, de};

use super::{
    MAX_LINE,
    declared_head::{DeclaredHead, HeadError},
    dispatch::Dispatch,
    impersonation::{Judge, Suspect, TooManyWays},
    journal_match::{JournalMatch, JournalMatchError},
    json_message::{JsonDefinition, JsonMessage, JsonMessageError},
    matcher::Matcher,
    memory::Bond,
    program::{HeadRule, LONGEST_JOINED, Program, Rule, Trust},
    template::{Template, TemplateError},
};

/// The most patterns of a filter, and of its `ignore`.
pub(super) const MAX_PATTERNS: usize = 1000;

/// A filter as it is written.
///
/// ```toml
/// identifiers = ["sshd", "sshd-session"]
/// patterns = [
///     'Failed password for [invalid user ]<user> from <addr> port <port>[ ssh2]',
///     { text = 'Invalid user <user> from <addr>', announces = "invalid" },
/// ]
/// ignore = []
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The syslog tags of the program. Empty: lines have no host and tag, the
    /// message follows the stamp; such a filter never reads a syslog daemon's
    /// lines.
    #[serde(default)]
    pub identifiers: Vec<String>,
    /// What stands before each message in a file or a ring, for programs that do
    /// not write it as a syslog daemon does: text, `<time>`, `<host>`, `<tag>`,
    /// `<pid>`, `<word>`, `<number>` and `[optional]` parts. A line without it is
    /// not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The form of `<time>` in `head`, in strftime's words, where it is neither
    /// syslog's nor ISO 8601's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_format: Option<String>,
    /// The messages are objects of JSON: which fields make the message that patterns read.
    /// What stands before each object is said by `identifiers` or `head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<JsonDefinition>,
    /// Patterns of failures; the first that fits a message is taken.
    pub patterns: Vec<PatternDefinition>,
    /// Messages that do not count although a pattern fits. They need one
    /// of `<addr>`, `<prefix>` and `<host>` as well.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// Which entries of the journal are its program's, where the jail does not say
    /// so itself; see [`JournalMatch`]. Empty: those of the identifiers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub journal_match: Vec<String>,
    /// Of the journal, only entries that came by syslog or journald's own
    /// protocol count, none that a program wrote to its standard output: for
    /// programs that leave a client's line breaks as they are there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub syslog_only: bool,
    /// In the journal, only entries of root's processes count. (A jail's `journal_match`
    /// that names a user goes before.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub root_only: bool,
    /// Of a file, lines that have a time stamp and no tag do not count, and say
    /// nothing about the lines behind them: for logs in which others than the
    /// filter's programs leave the tag out. Without it such a line is taken for a
    /// program's that lets a client's line breaks through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_untagged: bool,
}

/// One pattern: a plain string, or a table where several messages can tell of
/// one and the same attempt on a connection (address and port).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PatternDefinition {
    /// The pattern: fixed text with `<addr>`, `<prefix>` or `<host>`, `<port>`, `<user>`,
    /// `<user:word>`, `<text>`, `<word>`, `<number>`, `[optional]`, `(a|b)`.
    pub text: String,
    /// A label: the message counts, and the next message of this connection that
    /// `completes` the same label tells of the same attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announces: Option<String>,
    /// A label: the message does not count when it completes an attempt announced by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<String>,
    /// The message counts only where nothing of its connection has counted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unless_counted: bool,
    /// The longest message that the pattern reads, in bytes: where the program cuts long
    /// ones, a client's text can be made to end one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
}

impl From<&str> for PatternDefinition {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for PatternDefinition {
    fn deserialize<D: de::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            text: String,
            announces: Option<String>,
            completes: Option<String>,
            #[serde(default)]
            unless_counted: bool,
            max_length: Option<usize>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = PatternDefinition;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern: a string, or a table with text, announces, completes, unless_counted, max_length")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(text.into())
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(PatternDefinition {
                    text: table.text,
                    announces: table.announces,
                    completes: table.completes,
                    unless_counted: table.unless_counted,
                    max_length: table.max_length,
                })
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// Why a definition is not a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The filter has no pattern.
    NoPatterns,
    /// More than [`MAX_PATTERNS`] of one list.
    TooMany(usize),
    /// An identifier that cannot be a syslog tag.
    Identifier(String),
    /// More than eight labels in `announces`.
    TooManyLabels,
    /// A label is completed that nothing announces.
    Label {
        /// Number of the pattern, from 0.
        pattern: usize,
        /// The label that no other pattern has.
        label: String,
    },
    /// A pattern that names a prefix or a host is bound to others of its connection.
    Unconnected {
        /// Number of the pattern, from 0.
        pattern: usize,
    },
    /// `head` or `time_format` is wrong, or does not go with the other keys.
    Head(HeadError),
    /// `json` is wrong.
    Json(JsonMessageError),
    /// `journal_match` is wrong.
    JournalMatch(JournalMatchError),
    /// `root_only`, and a `journal_match` of others' entries only.
    RootOnly,
    /// A pattern is malformed.
    Pattern {
        /// `patterns` or `ignore`.
        list: &'static str,
        /// Number of the pattern, from 0.
        pattern: usize,
        /// The text of the pattern.
        text: String,
        /// The error in the pattern's text.
        error: TemplateError,
    },
    /// A pattern reads messages of another one with an address that a client wrote.
    Impersonation(Box<Impersonation>),
    /// The patterns can be read in more ways than are judged against each other.
    TooManyWays {
        /// Number of the pattern at which the judge gave up, from 0.
        pattern: usize,
    },
}

/// A pattern of a filter that reads messages of another one with an address that
/// a client wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation {
    /// The number of the pattern that reads them, from 0, and its text.
    pub reader: (usize, String),
    /// The number and text of the pattern whose messages they are.
    pub writer: (usize, String),
    /// The field of the latter in which the client writes, such as `<text>`.
    pub field: &'static str,
    /// The change to the filter that prevents it.
    pub cure: Cure,
}

/// What makes a pattern leave another one's messages alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// The other pattern stands before this one.
    Order,
    /// The pattern reads no longer message than this either.
    MaxLength(usize),
    /// The other pattern stands before this one, which reads no longer message than this.
    OrderAndMaxLength(usize),
    /// The other one is written as several patterns without optional parts and choices,
    /// which read all of their messages, and these stand before it.
    Split,
    /// No change of order or length helps: fixed text has to tell their messages apart.
    FixedText,
}

impl fmt::Display for Impersonation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reader, writer) = (self.reader.0, self.writer.0);
        let texts = [&self.reader.1, &self.writer.1];
        let [reader_text, writer_text] =
            texts.map(|text| text.chars().take(120).collect::<String>());
        let (relation, cure) = match self.cure {
            Cure::Order => (
                "stands before",
                format!("move patterns[{writer}] before patterns[{reader}]"),
            ),
            Cure::MaxLength(length) => (
                "reads longer messages, or cut ones, than",
                format!("give patterns[{reader}] max_length = {length}"),
            ),
            Cure::OrderAndMaxLength(length) => (
                "stands before",
                format!(
                    "move patterns[{writer}] before patterns[{reader}], and give the latter, which reads longer messages, or cut ones, max_length = {length}"
                ),
            ),
            Cure::Split => (
                "may read messages that are left to it by",
                format!(
                    "an optional part, or the longest of a choice, is taken wherever it fits, and a field takes all bytes that it can have, so that patterns[{writer}] does not read all of its own messages; write it as patterns without them, the one without the optional part first, and all before patterns[{reader}]"
                ),
            ),
            Cure::FixedText => (
                "has no text of its own that tells its messages from those of",
                "no order of the two helps, so write out what the program itself says where they differ, as fixed text or (one|another), or leave one out".to_owned(),
            ),
        };
        write!(
            f,
            "patterns[{reader}] {reader_text:?} {relation} patterns[{writer}] {writer_text:?}, so that a client could write an address of its choice as {} of the latter, which the former would read: {cure}",
            self.field
        )
    }
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPatterns => f.write_str("a filter needs at least one pattern"),
            Self::TooMany(n) => {
                write!(f, "{n} patterns in one filter: at most {MAX_PATTERNS}")
            }
            Self::Identifier(tag) => write!(
                f,
                "identifier {tag:?} cannot be a syslog tag: 1 to 64 characters without blank, colon and bracket"
            ),
            Self::TooManyLabels => f.write_str("more than 8 different labels in announces"),
            Self::Label { pattern, label } => write!(
                f,
                "patterns[{pattern}] completes {label:?}, which no pattern announces"
            ),
            Self::Unconnected { pattern } => write!(
                f,
                "patterns[{pattern}] has <prefix> or <host> with announces, completes or unless_counted, which know a connection by its address: write <addr>, or leave them out"
            ),
            Self::Head(error) => error.fmt(f),
            Self::Json(error) => error.fmt(f),
            Self::JournalMatch(error) => write!(f, "journal_match: {error}"),
            Self::RootOnly => f.write_str(
                "root_only: journal_match names only other users than root, so that no entry would count; allowed: _UID=0 in journal_match, or no root_only",
            ),
            Self::Impersonation(error) => error.fmt(f),
            Self::TooManyWays { pattern } => write!(
                f,
                "patterns[{pattern}]: with this one, the messages of the filter's patterns can be read in too many ways to judge whether a client could write an address of its choice; make two filters of it, or begin patterns with fixed text"
            ),
            Self::Pattern {
                list,
                pattern,
                text,
                error,
            } => {
                let text: String = text.chars().take(120).collect();
                write!(f, "{list}[{pattern}] {text:?}: {error}")
            }
        }
    }
}

impl std::error::Error for DefinitionError {}

impl Definition {
    /// Checks it and makes it a program.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn compile(&self) -> Result<Program, DefinitionError> {
        if self.patterns.is_empty() {
            return Err(DefinitionError::NoPatterns);
        }
        for n in [self.patterns.len(), self.ignore.len()] {
            if n > MAX_PATTERNS {
                return Err(DefinitionError::TooMany(n));
            }
        }
        for tag in &self.identifiers {
            let bad = |b: u8| b <= b' ' || b == b':' || b == b'[';
            if tag.is_empty() || tag.len() > 64 || tag.bytes().any(bad) {
                return Err(DefinitionError::Identifier(tag.clone()));
            }
        }
        let words = self.journal_match.iter().map(String::as_str);
        let journal_match = match self.journal_match.is_empty() {
            true => JournalMatch::default(),
            false => JournalMatch::parse(words).map_err(DefinitionError::JournalMatch)?,
        };
        let users: Vec<_> = journal_match.users().collect();
        if self.root_only && !users.is_empty() && !users.contains(&0) {
            return Err(DefinitionError::RootOnly);
        }
        let labels = self.labels()?;
        let mut judge = Judge::new();
        let templates = self.patterns.iter().map(|pattern| pattern.text.as_str());
        let templates = templates_of("patterns", templates, &mut judge)?;
        self.judge_pairs(&templates, &mut judge)?;
        let rules = self.patterns.iter().zip(templates).enumerate();
        let rules: Vec<Rule> = rules
            .map(|(number, (pattern, template))| {
                let completes = pattern.completes.as_deref();
                let matcher = Matcher::from(template);
                let bond = Bond {
                    announces: labels.bit(number, pattern.announces.as_deref())?,
                    completes: labels.bit(number, completes)?,
                    unless_counted: pattern.unless_counted,
                };
                if bond != Bond::default() && !matcher.names_an_address() {
                    return Err(DefinitionError::Unconnected { pattern: number });
                }
                Ok(Rule {
                    matcher,
                    bond,
                    max_length: pattern.max_length.unwrap_or(usize::MAX),
                })
            })
            .collect::<Result<_, _>>()?;
        let ignore = self.ignore.iter().map(String::as_str);
        let ignore = templates_of("ignore", ignore, &mut judge)?;
        let ignore: Vec<Matcher> = ignore.into_iter().map(Matcher::from).collect();
        let json = self.json.as_ref().map(JsonMessage::compile).transpose();
        Ok(Program {
            head: self.head_rule().map_err(DefinitionError::Head)?,
            json: json.map_err(DefinitionError::Json)?,
            trust: Trust {
                syslog_only: self.syslog_only,
                root_only: self.root_only,
            },
            journal_match,
            dispatch: Dispatch::new(rules.iter().map(|rule| &rule.matcher)),
            has_bonds: rules.iter().any(|rule| rule.bond.is_for_others()),
            rules,
            ignore_dispatch: Dispatch::new(ignore.iter()),
            ignore,
        })
    }

    /// Refuses patterns of which one reads messages of another one with an address
    /// that a client wrote: of one that stands behind it, or one that leaves them to it.
    fn judge_pairs(
        &self,
        templates: &[Template],
        judge: &mut Judge,
    ) -> Result<(), DefinitionError> {
        let suspects: Vec<Suspect<'_>> = templates.iter().map(Suspect::from).collect();
        for (reader, suspect) in suspects.iter().enumerate() {
            for (writer, other) in suspects.iter().enumerate() {
                if reader == writer {
                    continue;
                }
                let left = self.left_to(reader, writer, templates);
                let is_behind = reader > writer && left.is_none();
                let stolen = match is_behind {
                    true => judge.pair_behind(suspect, other),
                    false => judge.pair(suspect, other),
                };
                let Some(field) = stolen.map_err(|TooManyWays| DefinitionError::TooManyWays {
                    pattern: reader.max(writer),
                })?
                else {
                    continue;
                };
                // What helps where the writer stands before, and reads what is its own.
                let reads_its_own = judge.pair_behind(suspect, other) == Ok(None);
                let is_left_alone = judge.pair(other, suspect) == Ok(None);
                let cure = match left {
                    _ if !reads_its_own && (reader > writer || is_left_alone) => Cure::Split,
                    Some(length) if reader > writer => Cure::MaxLength(length),
                    _ if !is_left_alone => Cure::FixedText,
                    Some(length) => Cure::OrderAndMaxLength(length),
                    None => Cure::Order,
                };
                let text = |number: usize| (number, self.patterns[number].text.clone());
                return Err(DefinitionError::Impersonation(Box::new(Impersonation {
                    reader: text(reader),
                    writer: text(writer),
                    field: field.name(),
                    cure,
                })));
            }
        }
        Ok(())
    }

    /// Are there messages of a pattern, `writer`, that it does not read and another one,
    /// `reader`, does, as they are long? Up to this length there are none. Of a line
    /// that was cut, only patterns with free text at their end are read.
    fn left_to(&self, reader: usize, writer: usize, templates: &[Template]) -> Option<usize> {
        let longest = |number: usize| self.patterns[number].max_length.unwrap_or(MAX_LINE);
        let is_open = |number: usize| templates[number].is_open_ended();
        let length = match is_open(reader) && !is_open(writer) {
            // Shorter than a line without its head.
            true => longest(writer).min(LONGEST_JOINED),
            false => longest(writer),
        };
        (longest(reader) > length).then_some(length)
    }

    fn head_rule(&self) -> Result<HeadRule, HeadError> {
        let tags = self.identifiers.iter().map(|tag| tag.as_str().into());
        let tags: Vec<Box<str>> = tags.collect();
        let Some(text) = &self.head else {
            return match &self.time_format {
                Some(_) => Err(HeadError::NoTime),
                None if tags.is_empty() => Ok(HeadRule::Stamp),
                None => Ok(HeadRule::Syslog {
                    tags,
                    allow_untagged: self.allow_untagged,
                }),
            };
        };
        let head = DeclaredHead::parse(text, self.time_format.as_deref())?;
        if self.allow_untagged {
            return Err(HeadError::NotWith("allow_untagged"));
        }
        match !tags.is_empty() && !head.has_tag() {
            true => Err(HeadError::NoTag),
            false => Ok(HeadRule::Declared { head, tags }),
        }
    }

    /// The labels that patterns announce, each once.
    fn labels(&self) -> Result<Labels<'_>, DefinitionError> {
        let mut labels = Vec::new();
        for pattern in &self.patterns {
            if let Some(label) = pattern.announces.as_deref()
                && !labels.contains(&label)
            {
                labels.push(label);
            }
        }
        match labels.len() > 8 {
            true => Err(DefinitionError::TooManyLabels),
            false => Ok(Labels(labels)),
        }
    }
}

/// Labels of `announces`, each a bit.
struct Labels<'a>(Vec<&'a str>);

impl Labels<'_> {
    /// The bit of a label that a pattern names; 0 for none.
    fn bit(&self, pattern: usize, label: Option<&str>) -> Result<u8, DefinitionError> {
        let Some(label) = label else { return Ok(0) };
        match self.0.iter().position(|known| *known == label) {
            Some(at) => Ok(1 << at),
            None => Err(DefinitionError::Label {
                pattern,
                label: label.to_owned(),
            }),
        }
    }
}

/// The patterns of a list, each judged by itself.
fn templates_of<'t>(
    list: &'static str,
    texts: impl Iterator<Item = &'t str>,
    judge: &mut Judge,
) -> Result<Vec<Template>, DefinitionError> {
    let mut judged = |text| {
        let template = Template::parse(text)?;
        match judge.alone(&template) {
            Ok(None) => Ok(template),
            Ok(Some(_)) => Err(TemplateError::ClientTextAsAddress),
            Err(TooManyWays) => Err(TemplateError::TooManyWays),
        }
    };
    let all = texts.enumerate().map(|(pattern, text)| {
        judged(text).map_err(|error| DefinitionError::Pattern {
            list,
            pattern,
            text: text.to_owned(),
            error,
        })
    });
    all.collect()
}
