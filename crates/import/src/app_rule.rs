//! A rule of `[app.rules]` as it is written by importers: keys that are known, and what
//! could not be carried over. A rule that has lost a condition would hold for more than
//! it did, so it stands as a comment, for somebody to complete.

use std::collections::BTreeSet;

use toml::Value;
use weir_core::ban::MAX_NAME;

use crate::toml_text::Toml;

/// A rule that is being put together.
#[derive(Default)]
pub struct AppRule {
    /// Made of its old name; see [`AppRule::named`].
    pub name: String,
    /// The rule's file and its name there.
    pub origin: String,
    /// In the order in which they are written.
    pub keys: Vec<(&'static str, Value)>,
    /// Conditions that weir has not, each with its place.
    pub missing: Vec<String>,
    /// What else is to be known of it.
    pub notes: Vec<String>,
}

impl AppRule {
    /// Adds a key, which the rule has not yet.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.keys.push((key, value.into()));
    }

    /// A list of texts.
    pub fn list(&mut self, key: &'static str, texts: impl IntoIterator<Item = String>) {
        let texts: Vec<Value> = texts.into_iter().map(Value::String).collect();
        self.set(key, Value::Array(texts));
    }

    /// Gives it a name that no other has: letters, digits, - and _.
    pub fn named(&mut self, wish: &str, names: &mut BTreeSet<String>) {
        let fine = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let base: String = wish.chars().map(fine).take(MAX_NAME - 7).collect();
        let base = if base.is_empty() {
            "rule".to_owned()
        } else {
            base
        };
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut wishes = std::iter::once(base.clone()).chain(numbered);
        let name = wishes.find(|name| !names.contains(name));
        self.name = name.expect("numbers do not end");
        names.insert(self.name.clone());
    }

    /// Writes it, or the comment that it has become.
    pub fn write(&self, toml: &mut Toml) {
        toml.line("");
        toml.note(&self.origin);
        for note in &self.notes {
            toml.note(note);
        }
        for missing in &self.missing {
            toml.note(&format!("not honoured: {missing}"));
        }
        let head = format!("[app.rules.{}]", self.name);
        match self.missing.is_empty() {
            true => {
                toml.line(&head);
                for (key, value) in &self.keys {
                    toml.set(key, value.clone());
                }
            }
            false => {
                toml.line(&format!("#{head}"));
                for (key, value) in &self.keys {
                    toml.suggest(key, value.clone());
                }
            }
        }
    }
}
