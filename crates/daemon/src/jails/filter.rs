//! `[filter.NAME]`, and filter.d/NAME.toml: patterns of one's own.

use std::{collections::BTreeMap, path::Path};

use weir_config::{At, ConfigErrors, Document, Part, Section, files};
use weir_core::detect::{
    Definition, DefinitionError, HeadError, JsonDefinition, JsonMessageError, MAX_LINE,
    PatternDefinition,
};

const PATTERNS: &str =
    "a list of patterns such as [\"login of <user> from <addr> failed\"], or of tables with text";
const PATTERN: &str = "a pattern such as \"login of <user> from <addr> failed\"";
const HEAD: &str = "what stands before each message, such as '\\[<time>\\] <tag>: '";
const TIME_FORMAT: &str = "the form of <time>, such as \"%d/%b/%Y:%H:%M:%S %z\"";
const JSON_TIME: &str = "the path of the field with the time, such as \"ts\"";
const JSON_TIME_FORMAT: &str = "the form of that field, such as \"%d/%b/%Y:%H:%M:%S %z\"";
const JSON_MESSAGE: &str =
    "text with paths of fields, such as \"<status> from <request.remote_ip>\"";
const JOURNAL_MATCH: &str = "a list of journal fields such as [\"_SYSTEMD_UNIT=shop.service\"]";
const LABEL: &str = "a label such as \"password\"";

/// The filters of the configuration; `None` for one that is there but broken, so
/// that a jail that names it is not reported as well.
pub(crate) fn read(root: &mut Section<'_, '_>) -> BTreeMap<String, Option<Definition>> {
    let named = root.named_sections("filter").into_iter();
    named
        .map(|(name, section)| {
            let definition = definition(&name, section);
            (name, definition)
        })
        .collect()
}

/// The filter that a file of filter.d defines, whatever else is wrong with the
/// configuration.
///
/// # Errors
/// All mistakes in the file.
pub fn filter_of(file: &Path) -> Result<Definition, ConfigErrors> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let table = Some(("filter", name.into_owned()));
    let parts = Part::all(vec![(file.to_owned(), files::text(file)?, table)]);
    let document = Document::new(&parts);
    let mut root = document.root();
    let read = read(&mut root).into_values().next().flatten();
    root.finish();
    document.finish(read.unwrap_or_default())
}

fn definition(name: &str, mut section: Section<'_, '_>) -> Option<Definition> {
    let before = section.mistakes();
    let line = section.line();
    let texts = |section: &mut Section<'_, '_>, key, allowed| {
        let list = section.list(key, allowed);
        list.map(|list| list.value).unwrap_or_default()
    };
    let identifiers = texts(&mut section, "identifiers", "a list of syslog tags");
    let head = section.string("head", HEAD);
    let time_format = section.string("time_format", TIME_FORMAT);
    let json = (section.section("json")).map(|section| json(name, section));
    let journal_match = texts(&mut section, "journal_match", JOURNAL_MATCH);
    let syslog_only = section.boolean("syslog_only").unwrap_or(false);
    let root_only = section.boolean("root_only").unwrap_or(false);
    let allow_untagged = section.boolean("allow_untagged").unwrap_or(false);
    if !section.has("patterns") {
        section.error(
            line,
            format!("patterns is missing in [filter.{name}]; allowed: {PATTERNS}"),
        );
    }
    let patterns = section.texts_or_sections("patterns", PATTERNS);
    let patterns: Vec<_> = patterns
        .into_iter()
        .flatten()
        .map(|item| pattern(name, item))
        .collect();
    let ignore = texts(&mut section, "ignore", "a list of patterns");
    let definition = Definition {
        identifiers: identifiers.into_iter().map(|at| at.value).collect(),
        head: head.as_ref().map(|at| at.value.clone()),
        time_format: time_format.as_ref().map(|at| at.value.clone()),
        json: json.as_ref().map(|json| json.definition.clone()),
        patterns: patterns.iter().map(|at| at.value.clone()).collect(),
        ignore: ignore.iter().map(|at| at.value.clone()).collect(),
        journal_match: journal_match.iter().map(|at| at.value.clone()).collect(),
        syslog_only,
        root_only,
        allow_untagged,
    };
    // What was left out would be missed as well.
    if section.mistakes() == before
        && let Err(error) = definition.compile()
    {
        let at = match &error {
            DefinitionError::Head(HeadError::TimeFormat(_) | HeadError::NoTime) => {
                time_format.map(|at| at.line)
            }
            DefinitionError::Head(_) => head.map(|at| at.line),
            DefinitionError::Json(error) => json.map(|json| json.line_of(error)),
            DefinitionError::JournalMatch(error) => {
                let word = error.word.and_then(|word| journal_match.get(word));
                word.or(journal_match.first()).map(|at| at.line)
            }
            DefinitionError::RootOnly => journal_match.first().map(|at| at.line),
            DefinitionError::Pattern { list, pattern, .. } if *list == "ignore" => {
                ignore.get(*pattern).map(|at| at.line)
            }
            DefinitionError::Impersonation(error) => patterns.get(error.reader.0).map(|at| at.line),
            DefinitionError::Pattern { pattern, .. }
            | DefinitionError::TooManyWays { pattern }
            | DefinitionError::Label { pattern, .. }
            | DefinitionError::Unconnected { pattern } => patterns.get(*pattern).map(|at| at.line),
            _ => None,
        };
        section.error(at.unwrap_or(line), format!("[filter.{name}]: {error}"));
    }
    let is_good = section.mistakes() == before;
    section.finish();
    is_good.then_some(definition)
}

/// `json` of a filter, with the lines of its keys.
struct Json {
    definition: JsonDefinition,
    line: usize,
    time: Option<usize>,
    time_format: Option<usize>,
    message: Option<usize>,
}

impl Json {
    /// The line of the key that a mistake is in.
    fn line_of(&self, error: &JsonMessageError) -> usize {
        let key = match error {
            JsonMessageError::NoTime | JsonMessageError::TimeFormat(_) => self.time_format,
            JsonMessageError::Path(path) if self.definition.time.as_ref() == Some(path) => {
                self.time
            }
            _ => self.message,
        };
        key.unwrap_or(self.line)
    }
}

fn json(filter: &str, mut section: Section<'_, '_>) -> Json {
    let line = section.line();
    if !section.has("message") {
        section.error(
            line,
            format!("message is missing in [filter.{filter}.json]; allowed: {JSON_MESSAGE}"),
        );
    }
    let time = section.string("time", JSON_TIME);
    let time_format = section.string("time_format", JSON_TIME_FORMAT);
    let message = section.string("message", JSON_MESSAGE);
    section.finish();
    let line_of = |at: &Option<At<String>>| at.as_ref().map(|at| at.line);
    Json {
        line,
        time: line_of(&time),
        time_format: line_of(&time_format),
        message: line_of(&message),
        definition: JsonDefinition {
            time: time.map(|at| at.value),
            time_format: time_format.map(|at| at.value),
            message: message.map_or_else(String::new, |at| at.value),
        },
    }
}

/// A text alone, or a table where several messages tell of one attempt.
fn pattern(filter: &str, item: Result<At<String>, Section<'_, '_>>) -> At<PatternDefinition> {
    let mut section = match item {
        Ok(At { value, line }) => {
            let value = value.as_str().into();
            return At { value, line };
        }
        Err(section) => section,
    };
    let line = section.line();
    if !section.has("text") {
        section.error(
            line,
            format!("text is missing in [filter.{filter}.patterns]; allowed: {PATTERN}"),
        );
    }
    let text = section.string("text", PATTERN);
    let value = PatternDefinition {
        text: text.map_or_else(String::new, |at| at.value),
        announces: section.string("announces", LABEL).map(|at| at.value),
        completes: section.string("completes", LABEL).map(|at| at.value),
        unless_counted: section.boolean("unless_counted").unwrap_or(false),
        max_length: section
            .integer("max_length", 1..=MAX_LINE as u64)
            .map(|at| at.value as usize),
    };
    section.finish();
    At { value, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user's own filter and one that weir brings have one form: what is wrong in
    /// one is wrong in the other.
    #[test]
    fn a_built_in_file_is_read_as_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        for name in Definition::builtin_names() {
            let file = dir.path().join(format!("{name}.toml"));
            std::fs::write(&file, Definition::builtin_text(name).unwrap()).unwrap();
            let read = filter_of(&file).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(Some(&read), Definition::builtin(name), "{name}");
        }
    }
}
