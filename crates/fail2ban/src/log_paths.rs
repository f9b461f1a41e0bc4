//! Where a jail's lines are, as its `backend` and `logpath` say.

use crate::{
    error::{Error, ErrorKind},
    filter_files::wrong,
    text::{Line, Text},
};

/// What a jail reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Log files if there are any, else the journal.
    Auto,
    Files,
    Journal,
}

impl Backend {
    /// That of the jail `name`, whose `backend` is `text`.
    pub fn of(name: &str, text: Option<&Text>) -> Result<Self, Error> {
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(Self::Auto);
        };
        let joined = text.joined();
        let word = joined.split('[').next().unwrap_or_default().trim();
        match word.to_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "polling" | "pyinotify" | "gamin" => Ok(Self::Files),
            "systemd" if joined.contains('[') => Err(wrong(
                "backend",
                text,
                &format!("systemd without parameters in [{name}]: this host's journal is read"),
            )),
            "systemd" => Ok(Self::Journal),
            _ => Err(wrong(
                "backend",
                text,
                "auto, polling, pyinotify or systemd",
            )),
        }
    }
}

/// The paths and patterns of a `logpath`, without what stands behind them.
pub(crate) fn patterns(text: Option<&Text>) -> Vec<String> {
    let lines = text.into_iter().flat_map(|text| &text.lines);
    let path = |text: &str| match text.rsplit_once(' ') {
        Some((path, "head" | "tail")) => path.trim().to_owned(),
        _ => text.to_owned(),
    };
    lines
        .filter(|line| !line.text.is_empty())
        .map(|line| path(&line.text))
        .collect()
}

/// Of a log that is to be read from its end only (`tail`), that its end may be read back, too.
pub(crate) fn tail_limits(text: Option<&Text>) -> Vec<Error> {
    let lines = text.into_iter().flat_map(|text| &text.lines);
    let tail = lines.filter(|line| matches!(line.text.rsplit_once(' '), Some((_, "tail"))));
    let limit = |line: &Line| {
        let message = "logpath … tail: failures within findtime before weir reads this log for the first time count as well";
        Error::new(line.place.origin(), ErrorKind::Value, message)
    };
    tail.map(limit).collect()
}

/// The same, of which each has to begin at the root.
pub(crate) fn absolute_patterns(text: &Text) -> Result<Vec<String>, Error> {
    let patterns = patterns(Some(text));
    match patterns.iter().find(|pattern| !pattern.starts_with('/')) {
        Some(_) => Err(wrong("logpath", text, "absolute paths")),
        None => Ok(patterns),
    }
}
