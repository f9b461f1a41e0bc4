//! Several files of one configuration, later ones over earlier ones. What a later file
//! replaces stays as the known value, which `%(known/key)s` asks for.

use std::{collections::BTreeMap, path::PathBuf};

use crate::ini::{Ini, Section};

/// Files joined, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layers {
    pub defaults: Section,
    pub sections: BTreeMap<String, Section>,
    /// What files before had for keys that a later one replaced, by section.
    pub known: BTreeMap<String, Section>,
    /// The sections as they first came.
    pub order: Vec<String>,
    /// The configuration's own file, the first of them if there are several.
    pub own: PathBuf,
}

impl Layers {
    /// Puts a file over those before it.
    pub fn put_over(&mut self, ini: &Ini) {
        self.defaults
            .extend(ini.defaults.iter().map(|(k, v)| (k.clone(), v.clone())));
        for (name, section) in &ini.sections {
            // `[Init?family=inet6]` is section Init, each key under this condition.
            let (name, condition) = match name.find('?') {
                Some(at) => (&name[..at], &name[at..]),
                None => (name.as_str(), ""),
            };
            let is_new = !self.sections.contains_key(name);
            if is_new {
                self.order.push(name.to_owned());
            }
            let whole = self.sections.entry(name.to_owned()).or_default();
            for (key, value) in section {
                let key = format!("{key}{condition}");
                if let Some(before) = whole.insert(key.clone(), value.clone()) {
                    let known = self.known.entry(name.to_owned()).or_default();
                    known.insert(key, before);
                }
            }
        }
    }
}
