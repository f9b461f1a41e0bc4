//! `filter.d/NAME.conf` and what goes with it, made a [`FilterSource`].

use std::path::Path;

use crate::{
    definition::{self, Definition, Values},
    error::{Error, ErrorKind, Origin},
    files::Files,
    filter_source::{FilterSource, LogType, Pattern, UseDns},
    includes,
    ini::clip,
    layers::Layers,
    parameters,
    text::Text,
};

/// Keys of a filter that a jail may have as well; the jail's go before.
pub(crate) const KEYS: [&str; 7] = [
    "usedns",
    "prefregex",
    "ignoreregex",
    "failregex",
    "maxlines",
    "datepattern",
    "journalmatch",
];

/// What Fail2ban itself asks of a filter besides, by parameters.
const MORE_PARAMETERS: [&str; 3] = ["logencoding", "logtype", "backend"];

/// What Fail2ban itself asks of a filter, by keys or parameters.
pub(crate) fn parameters() -> Vec<&'static str> {
    KEYS.into_iter().chain(MORE_PARAMETERS).collect()
}

/// Lines that a pattern may span at most.
const MAX_LINES: usize = 1000;

/// Reads the filter `name` below `root`, the directory that holds `filter.d/`. `options`
/// are its parameters, as `mode` and `aggressive`.
///
/// # Errors
/// The filter is not there, or one of its files has a mistake: the first, with its place.
pub fn load_filter(
    files: &dyn Files,
    root: &Path,
    name: &str,
    options: &[(String, String)],
) -> Result<FilterSource, Error> {
    let given = |(key, value): &(String, String)| (key.clone(), Text::parameter(value));
    let options: Vec<_> = options.iter().map(given).collect();
    let layers = definition::read(files, root, "filter.d", name)?;
    source(
        name,
        &Definition::new(layers, &options, &Values::new())?,
        &Values::new(),
    )
}

/// The same for lines of this type, which counts where neither the filter nor its
/// parameters say one, as Fail2ban's `backend` sets it.
///
/// # Errors
/// As of [`load_filter`].
pub fn load_filter_of(
    files: &dyn Files,
    root: &Path,
    name: &str,
    options: &[(String, String)],
    log_type: &LogType,
) -> Result<FilterSource, Error> {
    let layers = definition::read(files, root, "filter.d", name)?;
    with_log_type(name, layers, options, log_type)
}

/// The same of a file that need not stand in `filter.d`.
///
/// # Errors
/// As of [`load_filter`].
pub fn load_filter_file(
    files: &dyn Files,
    path: &Path,
    options: &[(String, String)],
    log_type: &LogType,
) -> Result<FilterSource, Error> {
    let layers = includes::read_file(files, path)?.ok_or_else(|| {
        let origin = Origin {
            file: path.to_owned(),
            line: 0,
        };
        Error::new(origin, ErrorKind::Read, "there is no such file")
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    with_log_type(&name, layers, options, log_type)
}

fn with_log_type(
    name: &str,
    layers: Layers,
    options: &[(String, String)],
    log_type: &LogType,
) -> Result<FilterSource, Error> {
    let given = |(key, value): &(String, String)| (key.clone(), Text::parameter(value));
    let mut options: Vec<_> = options.iter().map(given).collect();
    let says_type = options.iter().any(|(key, _)| key == "logtype");
    if !says_type && !Definition::has_own(&layers, "logtype") {
        let word = match log_type {
            LogType::File => "file",
            LogType::Journal => "journal",
            LogType::Other(word) => word,
        };
        options.push(("logtype".to_owned(), Text::parameter(word)));
    }
    let definition = Definition::new(layers, &options, &Values::new())?;
    source(name, &definition, &Values::new())
}

/// `name[key=value, …]` as jails name filters: the name and its parameters.
///
/// # Errors
/// What stands where a parameter should.
pub fn named(text: &str) -> Result<(String, Vec<(String, String)>), String> {
    let named = parameters::parse(text)?;
    Ok((named.name, named.options))
}

/// A filter as the jail that has the keys `jail` uses it.
pub(crate) fn source(
    name: &str,
    definition: &Definition,
    jail: &Values,
) -> Result<FilterSource, Error> {
    let get = |key: &str| -> Result<Option<Text>, Error> {
        match jail.get(key) {
            Some(value) => Ok(Some(value.clone())),
            None => definition.get(key),
        }
    };
    let said = word(get("maxlines")?);
    let says_maxlines = said.is_some();
    let maxlines = match said {
        None => 1,
        Some(text) => {
            let lines = text.joined().parse().ok();
            let allowed = lines.filter(|lines| (1..=MAX_LINES).contains(lines));
            allowed.ok_or_else(|| wrong("maxlines", &text, "a number from 1 to 1000"))?
        }
    };
    let mut journalmatch = Vec::new();
    for line in get("journalmatch")?.iter().flat_map(|text| &text.lines) {
        let words = shlex::split(&line.text).ok_or_else(|| {
            let text = Text::new(line.text.clone(), line.place.clone());
            wrong("journalmatch", &text, "FIELD=value, quotes closed")
        })?;
        let sets = words
            .split(|word| word == "+")
            .filter(|set| !set.is_empty());
        journalmatch.extend(sets.map(<[String]>::to_vec));
    }
    let usedns = match word(get("usedns")?) {
        None => None,
        Some(text) => Some(use_dns(&text)?),
    };
    let logtype = word(definition.get("logtype")?).map(|text| match text.joined().as_str() {
        "file" => LogType::File,
        "journal" => LogType::Journal,
        other => LogType::Other(other.to_owned()),
    });
    Ok(FilterSource {
        name: name.to_owned(),
        failregex: patterns(get("failregex")?),
        ignoreregex: patterns(get("ignoreregex")?),
        prefregex: whole(get("prefregex")?),
        datepattern: whole(get("datepattern")?),
        maxlines,
        says_maxlines,
        journalmatch,
        logencoding: word(get("logencoding")?).map(|text| text.joined()),
        usedns,
        logtype,
        origin: definition.file.clone(),
    })
}

fn word(text: Option<Text>) -> Option<Text> {
    text.filter(|text| !text.is_empty())
}

/// A pattern a line.
fn patterns(text: Option<Text>) -> Vec<Pattern> {
    let lines = text.into_iter().flat_map(|text| text.lines);
    let pattern = |line: crate::text::Line| Pattern {
        origin: line.place.origin(),
        text: line.text,
    };
    lines
        .filter(|line| !line.text.is_empty())
        .map(pattern)
        .collect()
}

/// One pattern; several lines stay several.
fn whole(text: Option<Text>) -> Option<Pattern> {
    word(text).map(|text| Pattern {
        text: text.joined(),
        origin: text.origin(),
    })
}

fn use_dns(text: &Text) -> Result<UseDns, Error> {
    match text.joined().to_lowercase().as_str() {
        "yes" | "true" | "1" => Ok(UseDns::Yes),
        "warn" => Ok(UseDns::Warn),
        "no" | "false" | "0" => Ok(UseDns::No),
        "raw" => Ok(UseDns::Raw),
        _ => Err(wrong("usedns", text, "yes, warn, no or raw")),
    }
}

/// A value that its key does not allow.
pub(crate) fn wrong(key: &str, text: &Text, allowed: &str) -> Error {
    let message = format!("{key} = {}: expected {allowed}", clip(&text.joined()));
    Error::new(text.origin(), ErrorKind::Value, message)
}
