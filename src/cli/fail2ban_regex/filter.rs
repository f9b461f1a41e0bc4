//! What the words of the command line name: a filter of a directory, a file, or an
//! expression.

use std::{
    io,
    path::{Path, PathBuf},
};

use weir_daemon::{
    escape,
    host::{Host, HostFacts},
};
use weir_fail2ban::{
    FilterSource, LogType, Pattern, UseDns, date::Dates, load_filter_file, load_filter_of,
    matching::Filter, named,
};

use super::{Args, Sayer, format::quoted};

/// A filter to be tried.
pub struct Tried {
    pub source: FilterSource,
    pub filter: Filter,
    /// Fields of the journal that are wanted.
    pub journalmatch: Vec<Vec<String>>,
}

/// As much of a text as fits into a line.
pub fn short(text: &str) -> String {
    const LONGEST: usize = 53;
    match text.chars().count() > LONGEST {
        true => text
            .chars()
            .take(LONGEST - 3)
            .chain("...".chars())
            .collect(),
        false => text.to_owned(),
    }
}

/// Reads and compiles the filter that the command line names; the inner error is one of
/// the filter.
pub fn read(
    args: &Args,
    regex: &str,
    is_journal: bool,
    said: &mut Sayer,
) -> io::Result<Result<Tried, String>> {
    if let Some(maxlines) = args.maxlines {
        said.line(format!("Use         maxlines : {maxlines}"))?;
    }
    if let Some(pattern) = &args.datepattern {
        match date_name(pattern) {
            Ok(name) => said.line(format!("Use      datepattern : {pattern} : {name}"))?,
            Err(why) => return Ok(Err(why)),
        }
    }
    let log_type = match is_journal {
        true => LogType::Journal,
        false => LogType::File,
    };
    let mut source = match find(args, regex) {
        Err(why) => return Ok(Err(why)),
        Ok(None) => {
            said.line(format!("Use   failregex line : {}", escape(&short(regex))))?;
            line_filter(regex)
        }
        Ok(Some(found)) => {
            match &found.root {
                Some(root) => said.line(format!(
                    "Use   failregex filter file : {}, basedir: {}",
                    escape(&found.name),
                    root.display()
                ))?,
                None => said.line(format!("Use   failregex file : {}", escape(&found.name)))?,
            }
            if !found.options.is_empty() {
                let options = options(&found.options);
                said.line(format!("Use   filter options : {options}"))?;
            }
            let files = Host.fail2ban_files();
            let loaded = match &found.root {
                Some(root) => load_filter_of(files, root, &found.name, &found.options, &log_type),
                None => load_filter_file(files, &found.file, &found.options, &log_type),
            };
            match loaded {
                Ok(source) => {
                    if args.verbosity() > 1 {
                        real_options(&source, &found, said)?;
                    }
                    source
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
    };
    match args.maxlines {
        Some(maxlines) => source.maxlines = maxlines.into(),
        None if source.says_maxlines => {
            said.line(format!("Use         maxlines : {}", source.maxlines))?;
        }
        None => {}
    }
    match (&args.datepattern, &source.datepattern) {
        (Some(pattern), _) => source.datepattern = Some(pattern_of(pattern)),
        (None, Some(pattern)) => {
            let name = match date_name(&pattern.text) {
                Ok(name) => name,
                Err(why) => return Ok(Err(format!("{}: datepattern: {why}", pattern.origin))),
            };
            said.line(format!("Use      datepattern : {} : {name}", pattern.text))?;
        }
        (None, None) => {}
    }
    // As there, the filter's own `usedns` does not count.
    source.usedns = (args.usedns.as_deref() == Some("no")).then_some(UseDns::No);
    if let Some(ignore) = &args.ignoreregex {
        said.line(format!("Use ignoreregex line : {}", escape(&short(ignore))))?;
        source.ignoreregex.push(pattern_of(ignore));
    }
    let mut journalmatch = source.journalmatch.clone();
    if let Some(text) = &args.journalmatch {
        let Some(words) = text.split('+').map(shlex_split).collect::<Option<Vec<_>>>() else {
            return Ok(Err(format!("--journalmatch {text}: a quote is not closed")));
        };
        journalmatch = words.into_iter().filter(|set| !set.is_empty()).collect();
    }
    Ok(match Filter::new(&source) {
        Ok(filter) => Ok(Tried {
            source,
            filter,
            journalmatch,
        }),
        Err(error) => Err(error.to_string()),
    })
}

/// Words, quotes taken off; `None` if one is not closed.
fn shlex_split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// What Fail2ban calls the forms of a pattern.
fn date_name(pattern: &str) -> Result<String, String> {
    let dates = Dates::new(Some(pattern)).map_err(|why| why.to_string())?;
    let names = dates.hits(&dates.state());
    Ok(match &names[..] {
        [(name, _)] | [(name, _), _] => name.clone(),
        _ => "Default Detectors".to_owned(),
    })
}

fn pattern_of(text: &str) -> Pattern {
    Pattern {
        text: text.to_owned(),
        origin: Default::default(),
    }
}

/// A filter that is one expression.
fn line_filter(regex: &str) -> FilterSource {
    FilterSource {
        name: "fail2ban-regex".to_owned(),
        failregex: vec![pattern_of(regex)],
        ignoreregex: Vec::new(),
        prefregex: None,
        datepattern: None,
        maxlines: 1,
        says_maxlines: false,
        journalmatch: Vec::new(),
        logencoding: None,
        usedns: None,
        logtype: None,
        origin: PathBuf::new(),
    }
}

/// A filter's file.
struct Found {
    name: String,
    /// The directory that holds `filter.d`; `None`: the file stands somewhere else.
    root: Option<PathBuf>,
    file: PathBuf,
    options: Vec<(String, String)>,
}

/// The file that a word names; `None` if it is an expression.
fn find(args: &Args, word: &str) -> Result<Option<Found>, String> {
    let is_name = |c: char| c.is_alphanumeric() || "_/-.".contains(c);
    let end = word.find(|c| !is_name(c)).unwrap_or(word.len());
    let rest = &word[end..];
    if end == 0 || !(rest.is_empty() || rest.starts_with('[') && rest.ends_with(']')) {
        return Ok(None);
    }
    // `name[a=b]` that is no filter may be an expression.
    let (name, options) = match named(word) {
        Ok(named) => named,
        Err(why) if is_there(args, &word[..end]).is_some() => {
            return Err(format!("Wrong filter name or options: {why}"));
        }
        Err(_) => return Ok(None),
    };
    let Some(file) = is_there(args, &name) else {
        return Ok(None);
    };
    let dir = file.parent().unwrap_or(Path::new(""));
    let is_in_place = dir.file_name().is_some_and(|dir| dir == "filter.d");
    let root = is_in_place.then(|| match dir.parent() {
        Some(root) if !root.as_os_str().is_empty() => root.to_owned(),
        _ => PathBuf::from("."),
    });
    let name = match root {
        Some(_) => file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        None => name,
    };
    Ok(Some(Found {
        name,
        root,
        file,
        options,
    }))
}

/// The file of a name or path, if there is one.
fn is_there(args: &Args, name: &str) -> Option<PathBuf> {
    let has_ending = name
        .rsplit('/')
        .next()?
        .rfind('.')
        .is_some_and(|at| at + 6 >= name.len());
    let endings: &[&str] = match has_ending || name.contains('.') && name.len() < 6 {
        true => &[""],
        false => &["", ".conf", ".local"],
    };
    let dir = match (name.contains('/'), args.config.file_name()) {
        (true, _) => PathBuf::new(),
        (false, Some(last)) if last == "filter.d" => args.config.clone(),
        (false, _) => args.config.join("filter.d"),
    };
    endings
        .iter()
        .map(|ending| dir.join(format!("{name}{ending}")))
        .find(|file| file.is_file())
}

/// Options as Python prints a dictionary.
fn options(options: &[(String, String)]) -> String {
    let pairs = options.iter();
    let pairs: Vec<_> = pairs
        .map(|(key, value)| format!("{}: {}", quoted(key), quoted(value)))
        .collect();
    format!("{{{}}}", pairs.join(", "))
}

fn real_options(source: &FilterSource, found: &Found, said: &mut Sayer) -> io::Result<()> {
    let mut real = Vec::new();
    if let Some(log_type) = &source.logtype {
        let word = match log_type {
            LogType::File => "file",
            LogType::Journal => "journal",
            LogType::Other(word) => word,
        };
        real.push(("logtype".to_owned(), word.to_owned()));
    }
    let pattern = source.datepattern.as_ref();
    real.extend(pattern.map(|pattern| ("datepattern".to_owned(), pattern.text.clone())));
    let more = found
        .options
        .iter()
        .filter(|(key, _)| key != "logtype" && key != "datepattern");
    real.extend(more.cloned());
    said.line(format!("Real  filter options : {}", options(&real)))
}
