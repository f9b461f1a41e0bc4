//! What the groups of a filter's expressions hold, by the meaning of their names.

use std::{collections::BTreeMap, sync::Arc};

use crate::regex::{NONE, Regex, Scratch};

/// Names with a meaning; their place is their key.
const KNOWN: [&str; 12] = [
    "fid",
    "ip4",
    "ip6",
    "dns",
    "cidr",
    "user",
    "mlfid",
    "nofail",
    "mlfforget",
    "mlfgained",
    "content",
    "fport",
];

/// The number of a value that groups fill.
pub type Key = usize;
pub const FID: Key = 0;
pub const IP4: Key = 1;
pub const IP6: Key = 2;
pub const DNS: Key = 3;
pub const CIDR: Key = 4;
pub const USER: Key = 5;
pub const MLFID: Key = 6;
pub const NOFAIL: Key = 7;
pub const MLFFORGET: Key = 8;
pub const MLFGAINED: Key = 9;
pub const CONTENT: Key = 10;

/// The names of a filter's groups.
#[derive(Clone, Debug)]
pub struct Names(Vec<Arc<str>>);

impl Default for Names {
    fn default() -> Self {
        Self(KNOWN.map(Arc::from).to_vec())
    }
}

impl Names {
    /// The key of a name, which it has from now on.
    pub fn key(&mut self, name: &str) -> Key {
        if let Some(key) = self.0.iter().position(|known| **known == *name) {
            return key;
        }
        self.0.push(name.into());
        self.0.len() - 1
    }

    /// All names, by their keys.
    pub fn into_shared(self) -> Arc<[Arc<str>]> {
        self.0.into()
    }
}

/// Where the groups of one expression go.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Keys and the numbers of groups.
    groups: Vec<(Key, usize)>,
    /// What else may name something, in order: the key of the first that is not empty
    /// goes to the second where that is.
    alternatives: Vec<(Key, Key)>,
    /// Parts of a value, and the value.
    parts: Vec<(Key, Key)>,
}

impl Layout {
    pub fn new(names: &BTreeMap<String, usize>, all: &mut Names) -> Self {
        let mut layout = Self::default();
        for (name, group) in names {
            let key = all.key(name);
            layout.groups.push((key, *group));
            if let Some(target) = target(name, "alt_") {
                layout.alternatives.push((key, all.key(&target)));
            } else if let Some(target) = target(name, "tuple_") {
                layout.parts.push((key, all.key(&target)));
            }
        }
        layout
    }

    /// Is any of these keys its own?
    pub fn has(&self, keys: &[Key]) -> bool {
        self.groups.iter().any(|(key, _)| keys.contains(key))
    }

    /// Puts what the groups hold into `values`; what they do not hold stays.
    pub fn fill<'t>(&self, text: &'t str, scratch: &Scratch, values: &mut Values<'t>) {
        if self.alternatives.is_empty() && self.parts.is_empty() {
            return self.take(text, scratch, values);
        }
        let mut own = vec![None; values.len()];
        self.take(text, scratch, &mut own);
        for (from, to) in &self.alternatives {
            if !is_empty(&own[*from]) && is_empty(&own[*to]) {
                own[*to] = own[*from].clone();
            }
        }
        for (from, to) in &self.parts {
            let of = |value: &Option<Value<'_>>| {
                let text = value.as_ref().map(Value::as_str);
                text.unwrap_or_default().to_owned()
            };
            own[*to] = Some(Value::Whole(format!(
                "{} {}",
                of(&own[*to]),
                of(&own[*from])
            )));
        }
        for (value, own) in values.iter_mut().zip(own) {
            if own.is_some() {
                *value = own;
            }
        }
    }

    fn take<'t>(&self, text: &'t str, scratch: &Scratch, values: &mut Values<'t>) {
        for (key, group) in &self.groups {
            let [begin, end] = [0, 1].map(|n| scratch.slots[2 * group + n]);
            if end != NONE && begin <= end {
                values[*key] = Some(Value::Part(&text[begin..end]));
            }
        }
    }
}

/// What a group named `alt_user_2` is for: `user`.
fn target(name: &str, prefix: &str) -> Option<String> {
    let rest = name.strip_prefix(prefix)?;
    let base = match rest.rsplit_once('_') {
        Some((base, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            base
        }
        _ => rest,
    };
    Some(match base {
        "id" | "port" => format!("f{base}"),
        base => base.to_owned(),
    })
}

/// A part of the line, or what was put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'t> {
    Part(&'t str),
    Whole(String),
}

impl Value<'_> {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Part(text) => text,
            Self::Whole(text) => text,
        }
    }
}

/// What the groups of a match hold, by their keys.
pub type Values<'t> = Vec<Option<Value<'t>>>;

/// The expression's groups are none that a failure is counted by.
pub fn names_nobody(regex: &Regex) -> bool {
    ["fid", "ip4", "ip6", "dns", "mlfid"]
        .iter()
        .all(|name| !regex.names().contains_key(*name))
}

fn is_empty(value: &Option<Value<'_>>) -> bool {
    value.as_ref().is_none_or(|value| value.as_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_and_parts_fill_the_name_they_are_for() {
        let regex = Regex::new(
            "(?P<user>u*)(?P<alt_user>a*)(?P<alt_user_1>b*) (?P<fid>x)(?P<tuple_id>y)",
            false,
        );
        let regex = regex.unwrap();
        let mut names = Names::default();
        let layout = Layout::new(regex.names(), &mut names);
        let keys = names.into_shared().len();
        let mut scratch = Scratch::default();
        for (text, user) in [("ua xy", "u"), ("ab xy", "a"), ("b xy", "b"), (" xy", "")] {
            regex.search(text, 0, &mut scratch);
            let mut values = vec![None; keys];
            layout.fill(text, &scratch, &mut values);
            assert_eq!(values[USER].as_ref().unwrap().as_str(), user, "{text}");
            assert_eq!(values[FID].as_ref().unwrap().as_str(), "x y", "{text}");
        }
    }
}
