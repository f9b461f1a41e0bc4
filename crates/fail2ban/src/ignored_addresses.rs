//! Whom a jail never bans: `ignoreip` and what `ignorecache` says of `ignorecommand`.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::Duration,
};

use weir_core::{Prefix, detect::HostName};

use crate::{
    error::{Error, ErrorKind},
    expression,
    files::Files,
    filter_files::wrong,
    ini, parameters,
    text::Text,
};

/// An answer of `ignorecommand` holds so long without `ignorecache`, from the first
/// failure to the ban …
const ANSWER_HOLDS: Duration = Duration::from_secs(60);
/// … and so long with one that says nothing of time.
const CACHE_HOLDS: Duration = Duration::from_secs(300);

/// How long an answer of `ignorecommand` holds, as `ignorecache` says. Answers are kept by
/// address, and how many is bounded for all jails.
pub(crate) fn cache_time(text: Option<&Text>) -> Result<Duration, Error> {
    let Some(text) = text else {
        return Ok(ANSWER_HOLDS);
    };
    let allowed = "key=\"<ip>\", max-count=1000, max-time=5m";
    let named = parameters::parse(&format!("x[{}]", text.joined()));
    let named = named.map_err(|_| wrong("ignorecache", text, allowed))?;
    let mut time = CACHE_HOLDS;
    for (key, value) in &named.options {
        match (key.as_str(), expression::duration(value)) {
            ("key", _) => {}
            ("max-count", _) if value.parse::<u32>().is_ok() => {}
            ("max-time", Ok(Some(given))) => time = given,
            _ => return Err(wrong("ignorecache", text, allowed)),
        }
    }
    Ok(time)
}

/// The most host names of one jail: each is looked up again and again.
const MAX_NAMES: usize = 100;

/// Whom an `ignoreip` names, in the files that it names as well.
#[derive(Default)]
pub(crate) struct Ignored {
    /// Addresses and networks.
    pub prefixes: Vec<Prefix>,
    /// Hosts, whose addresses are to be looked up.
    pub names: Vec<HostName>,
    /// Words that are neither, and names beyond the bound.
    pub left_out: Vec<Error>,
}

/// Reads an `ignoreip`.
///
/// # Errors
/// A network that is none, or a file that cannot be read.
pub(crate) fn read(files: &dyn Files, root: &Path, text: &Text) -> Result<Ignored, Error> {
    let mut ignored = Ignored::default();
    for line in &text.lines {
        let at = Text::new(line.text.clone(), line.place.clone());
        for word in words(&line.text) {
            let Some(path) = word.strip_prefix("file:") else {
                ignored.add(word, &at)?;
                continue;
            };
            let path = root.join(path.strip_prefix("//").unwrap_or(path));
            let bytes = files.read(&path).map_err(|e| {
                let message = format!("ignoreip: {}: {e}", path.display());
                Error::new(at.origin(), ErrorKind::Read, message)
            })?;
            for line in String::from_utf8_lossy(&bytes).lines() {
                let line = line.split(['#', ';']).next().unwrap_or_default();
                words(line).try_for_each(|word| ignored.add(word, &at))?;
            }
        }
    }
    Ok(ignored)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split([' ', ',', '\t']).map(str::trim);
    words.filter(|word| !word.is_empty())
}

impl Ignored {
    fn add(&mut self, word: &str, at: &Text) -> Result<(), Error> {
        let address = word.split('/').next().unwrap_or(word).parse::<IpAddr>();
        let wrong = |what: String| {
            let message = format!("ignoreip: {} is {what}", ini::clip(word));
            Error::new(at.origin(), ErrorKind::Value, message)
        };
        match (prefix(word), address) {
            (Some(prefix), _) => self.prefixes.push(prefix),
            // Who meant to spare a network may not find it banned.
            (None, Ok(address)) => {
                let lengths = if address.is_ipv4() {
                    "0 to 32, or a mask"
                } else {
                    "0 to 128"
                };
                return Err(wrong(format!("no network; allowed behind /: {lengths}")));
            }
            (None, Err(_)) => self.add_name(word, wrong),
        }
        Ok(())
    }

    fn add_name(&mut self, word: &str, wrong: impl Fn(String) -> Error) {
        let Ok(name) = HostName::new(word.as_bytes()) else {
            let error = wrong("no address, and no name of a host".to_owned());
            return self.left_out.push(error);
        };
        if self.names.contains(&name) {
            return;
        }
        if self.names.len() >= MAX_NAMES {
            let what = format!("one host name more than a jail may have; allowed: {MAX_NAMES}");
            return self.left_out.push(wrong(what));
        }
        self.names.push(name);
    }
}

/// An address, a network by length, or one by an IPv4 mask; host bits do not count.
fn prefix(word: &str) -> Option<Prefix> {
    let Some((address, mask)) = word.split_once('/') else {
        return word.parse().ok();
    };
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = match mask.parse::<Ipv4Addr>() {
        Ok(mask) => {
            let mask = u32::from(mask);
            let is_mask = mask.leading_ones() + mask.trailing_zeros() >= 32;
            u8::try_from(is_mask.then_some(mask.leading_ones())?).ok()?
        }
        Err(_) => mask.parse().ok()?,
    };
    Prefix::new(address, length)
}
