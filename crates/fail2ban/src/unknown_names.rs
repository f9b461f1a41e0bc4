//! Names that nobody asks for: a key of a jail or a filter, a parameter of a filter or an
//! action, a mode. Fail2ban passes over them in silence; mostly they are mistyped.

use std::collections::{BTreeMap, BTreeSet};

use strsim::osa_distance;

use crate::{filter_source::Pattern, ini::clip, layers::Layers, text::Text};

/// Sections whose keys are a filter's or an action's own.
const OWN_SECTIONS: [&str; 2] = ["Definition", "Init"];

/// The names that values of files ask for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// `%(name)s` and `<name>`, also behind a section (`%(known/name)s`).
    names: BTreeSet<String>,
    /// What begins a name that another one ends: `mdre-` of `<mdre-<mode>>`, with `mode`.
    prefixes: BTreeMap<String, String>,
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}

impl Asked {
    /// What the values of these files ask for, those that were replaced included.
    pub fn of(layers: &Layers) -> Self {
        let mut asked = Self::default();
        let sections = layers.sections.values().chain(layers.known.values());
        for section in sections.chain([&layers.defaults]) {
            for line in section.values().flat_map(|text| &text.lines) {
                asked.add(&line.text);
            }
        }
        asked
    }

    fn add(&mut self, line: &str) {
        for (at, _) in line.match_indices(['(', '<', '/']) {
            let rest = &line[at + 1..];
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (name, behind) = (&rest[..end], &rest[end..]);
            if name.is_empty() {
                continue;
            }
            if let Some(inner) = behind.strip_prefix('<') {
                let end = inner.find(|c| !is_name(c)).unwrap_or(inner.len());
                let inner = inner[..end].to_lowercase();
                self.prefixes.insert(name.to_lowercase(), inner);
            } else {
                let name = name.rsplit('/').next().unwrap_or(name);
                self.names.insert(name.to_lowercase());
            }
        }
    }

    /// Does a value ask for this key?
    pub fn has(&self, key: &str) -> bool {
        let key = key.split('?').next().unwrap_or(key);
        let mut prefixes = self.prefixes.keys();
        self.names.contains(key) || prefixes.any(|prefix| key.starts_with(&**prefix))
    }
}

/// The keys of a filter or an action that nobody asks for: neither Fail2ban by one of the
/// names `known`, nor another value. Files of packages have some that are only left over;
/// of these those count that are near a known name.
pub(crate) fn keys<'a>(
    layers: &'a Layers,
    asked: &Asked,
    known: &[&str],
) -> Vec<(&'a Text, String)> {
    let sections = OWN_SECTIONS
        .iter()
        .filter_map(|name| layers.sections.get(*name));
    let all = sections.flatten().filter(|(key, _)| {
        let name = key.split('?').next().unwrap_or(key);
        !(name.starts_with('_') || known.contains(&name) || asked.has(name))
    });
    all.filter_map(|(key, text)| {
        let meant = did_you_mean(key, known.iter().copied());
        let is_local = text.place().file.extension().is_some_and(|e| e == "local");
        let message = format!("{}: there is no such key{meant}", clip(key));
        (is_local || !meant.is_empty()).then_some((text, message))
    })
    .collect()
}

/// Is the parameter `key` one that the files have, or ask for, or a `known` one? What is
/// wrong with it otherwise.
pub(crate) fn parameter(
    layers: &Layers,
    asked: &Asked,
    known: &[&str],
    key: &str,
) -> Option<String> {
    let name = key.split('?').next().unwrap_or(key).to_lowercase();
    let sections = OWN_SECTIONS
        .iter()
        .filter_map(|name| layers.sections.get(*name));
    let own: Vec<_> = sections
        .chain([&layers.defaults])
        .flat_map(|section| section.keys())
        .map(|key| key.split('?').next().unwrap_or(key))
        .collect();
    let is_known = own.contains(&&*name) || known.contains(&&*name) || asked.has(&name);
    (!is_known).then(|| {
        let all = own.iter().chain(known).copied();
        let all = all.filter(|own| !own.starts_with('_'));
        let meant = did_you_mean(&name, all.chain(asked.names.iter().map(|name| &**name)));
        format!("there is no parameter {}{meant}", clip(key))
    })
}

/// A part of an expression that a parameter chooses, and that is not there.
pub(crate) struct NoChoice {
    /// The parameter, as `mode`.
    pub parameter: String,
    /// The value of the parameter, as `agressive`.
    pub value: String,
    /// The mistake in words, with the values that there are.
    pub message: String,
}

/// Takes expressions with `<mdre-agressive>` and the like out: nothing reads these tags, and
/// they fit no line. Says what was taken out.
pub(crate) fn take_out_choices(
    patterns: &mut Vec<Pattern>,
    layers: &Layers,
    asked: &Asked,
) -> Option<NoChoice> {
    let mut missing = None;
    patterns.retain(|pattern| match no_choice(&pattern.text, layers, asked) {
        None => true,
        found => {
            missing = found;
            false
        }
    });
    missing
}

/// The first tag of a text that two names make, and that is not there.
fn no_choice(text: &str, layers: &Layers, asked: &Asked) -> Option<NoChoice> {
    let tags = text.match_indices('<').filter_map(|(at, _)| {
        // `(?P<name>` is a group.
        let is_group = text[..at].ends_with("?P") || text[..at].ends_with('?');
        let (tag, _) = text[at + 1..].split_once('>')?;
        (!is_group && tag.chars().all(is_name)).then_some(tag)
    });
    for tag in tags {
        let mut prefixes = asked.prefixes.iter();
        let lower = tag.to_lowercase();
        let Some((prefix, parameter)) = prefixes.find(|(prefix, _)| lower.starts_with(&***prefix))
        else {
            continue;
        };
        let value = tag[prefix.len()..].split('/').next().unwrap_or_default();
        let sections = OWN_SECTIONS
            .iter()
            .filter_map(|name| layers.sections.get(*name));
        let keys = sections.flat_map(|section| section.keys());
        let keys = keys.chain(layers.sections.keys());
        let allowed: BTreeSet<_> = keys.filter_map(|key| key.strip_prefix(&**prefix)).collect();
        let meant = did_you_mean(value, allowed.iter().copied());
        let allowed = allowed.into_iter().collect::<Vec<_>>().join(", ");
        return Some(NoChoice {
            parameter: parameter.clone(),
            message: format!("{parameter} = {}{meant}; allowed: {allowed}", clip(value)),
            value: value.to_owned(),
        });
    }
    None
}

/// The known name that a mistyped one is nearest to, as ` (did you mean X?)`; empty if
/// none is near.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known
        .into_iter()
        .map(|known| (osa_distance(name, known), known))
        .filter(|(distance, known)| *distance <= 3.min(name.len().min(known.len()) / 3))
        .min();
    near.map_or(String::new(), |(_, known)| {
        format!(" (did you mean {known}?)")
    })
}
