//! The first layer of interpolation: `%(name)s` inside of sections, `%(section/name)s`,
//! `%(known/name)s` and `%%`. Every depth and size is bounded.

use crate::{
    error::{Error, ErrorKind},
    ini::clip,
    layers::Layers,
    text::{Location, MAX_TEXT, Text},
};

/// How deep names may lead to names.
const MAX_DEPTH: usize = 10;

/// Values that come before those of the section.
pub(crate) trait Vars {
    /// A value by its key, which is lower case.
    fn var(&self, key: &str) -> Result<Option<Var>, Error>;
}

/// A value of [`Vars`].
pub(crate) enum Var {
    /// As written: names in it are looked up.
    Raw(Text),
    /// As it is to be, `%` included.
    Done(Text),
}

/// No values besides the section's.
pub(crate) struct NoVars;

impl Vars for NoVars {
    fn var(&self, _key: &str) -> Result<Option<Var>, Error> {
        Ok(None)
    }
}

/// A key of a section or of the defaults, interpolated; `None` if neither has it.
///
/// # Errors
/// A name that nobody has, `%` alone, and what never ends.
pub(crate) fn get(
    layers: &Layers,
    section: &str,
    key: &str,
    vars: &dyn Vars,
) -> Result<Option<Text>, Error> {
    let key = key.to_lowercase();
    let lookup = Lookup {
        layers,
        section,
        vars,
        key: &key,
    };
    match lookup.find(&key)? {
        None => Ok(None),
        Some(Var::Done(text)) => Ok(Some(text)),
        Some(Var::Raw(raw)) => {
            let mut out = Text::new("", raw.place().clone());
            let mut steps = 0;
            lookup.expand(&raw, 1, &mut out, &mut steps)?;
            Ok(Some(out))
        }
    }
}

struct Lookup<'a> {
    layers: &'a Layers,
    section: &'a str,
    vars: &'a dyn Vars,
    /// The key that was asked for, for messages.
    key: &'a str,
}

impl Lookup<'_> {
    fn find(&self, name: &str) -> Result<Option<Var>, Error> {
        if name == "__name__" {
            return Ok(Some(Var::Done(Text::parameter(self.section))));
        }
        if let Some(var) = self.vars.var(name)? {
            return Ok(Some(var));
        }
        let own = self.layers.sections.get(self.section);
        let found = own
            .and_then(|section| section.get(name))
            .or_else(|| self.layers.defaults.get(name));
        if let Some(text) = found {
            return Ok(Some(Var::Raw(text.clone())));
        }
        let Some((section, option)) = name.split_once('/') else {
            return Ok(None);
        };
        let there = match section {
            "default" => None,
            "known" => self
                .layers
                .known
                .get(self.section)
                .and_then(|known| known.get(option)),
            // Keys are lower case, sections are as they are written.
            _ => {
                let mut sections = self.layers.sections.iter();
                let Some((_, section)) = sections.find(|(name, _)| name.to_lowercase() == section)
                else {
                    return Ok(None);
                };
                section.get(option)
            }
        };
        let found = there.or_else(|| self.layers.defaults.get(option));
        Ok(found.map(|text| Var::Raw(text.clone())))
    }

    fn error(&self, place: &Location, message: String) -> Error {
        let message = format!("{} of [{}]: {message}", self.key, self.section);
        Error::new(place.origin(), ErrorKind::Interpolation, message)
    }

    /// Appends `raw` to `out`, names replaced.
    fn expand(
        &self,
        raw: &Text,
        depth: usize,
        out: &mut Text,
        steps: &mut usize,
    ) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            let message = format!("names lead to names more than {MAX_DEPTH} deep");
            return Err(self.error(raw.place(), message));
        }
        for (number, line) in raw.lines.iter().enumerate() {
            if number > 0 {
                out.begin_line(line.place.clone());
            }
            let mut rest = line.text.as_str();
            while let Some(at) = rest.find('%') {
                out.push_str(&rest[..at]);
                let after = &rest[at + 1..];
                if let Some(after) = after.strip_prefix('%') {
                    out.push_str("%");
                    rest = after;
                    continue;
                }
                let name = after
                    .strip_prefix('(')
                    .and_then(|inside| inside.split_once(')'))
                    .filter(|(name, end)| !name.is_empty() && end.starts_with('s'));
                let Some((name, end)) = name else {
                    let message =
                        format!("% must be followed by % or (name)s: {}", clip(&rest[at..]));
                    return Err(self.error(&line.place, message));
                };
                rest = &end[1..];
                // The line is this name alone.
                let is_all = line.text.len() == name.len() + "%()s".len();
                *steps += 1;
                let found = self.find(&name.to_lowercase())?;
                match found {
                    None => {
                        let message = format!("%({})s is not known", clip(name));
                        return Err(self.error(&line.place, message));
                    }
                    Some(Var::Raw(text)) if text.lines.iter().any(|l| l.text.contains('%')) => {
                        if let Some(last) = out.lines.last_mut()
                            && is_all
                            && last.text.is_empty()
                        {
                            last.place = text.place().clone();
                        }
                        self.expand(&text, depth + 1, out, steps)?;
                    }
                    Some(Var::Raw(text) | Var::Done(text)) => out.append(&text, is_all),
                }
                if *steps > 10_000 || out.len() > MAX_TEXT {
                    let message = "the value grows beyond all bounds".to_owned();
                    return Err(self.error(&line.place, message));
                }
            }
            out.push_str(rest);
        }
        Ok(())
    }
}
