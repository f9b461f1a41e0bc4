//! What filters and actions have in common: sections `[Definition]` and `[Init]`, what a
//! jail says of them by parameters and by its own keys, and both layers of interpolation.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, ErrorKind, Origin},
    files::Files,
    includes,
    interpolate::{self, Var, Vars},
    layers::Layers,
    tags,
    text::Text,
};

/// The section with the keys that count.
const DEFINITION: &str = "Definition";
/// The section with parameters and their usual values.
const INIT: &str = "Init";

/// Values of a jail, by key.
pub(crate) type Values = BTreeMap<String, Text>;

/// A filter's or an action's files, with what a jail says of them.
pub(crate) struct Definition {
    layers: Layers,
    /// Parameters, `[Init]` behind them, and `[Init]` once more as `known/…`.
    parameters: Values,
    /// Parameters over the jail's keys, for `%(name)s`.
    vars: Values,
    /// The file of the definition itself.
    pub file: PathBuf,
    /// Keys under the condition `?family=…` of this one go before.
    pub family: Option<&'static str>,
}

impl Vars for Values {
    fn var(&self, key: &str) -> Result<Option<Var>, Error> {
        Ok(self.get(key).cloned().map(Var::Done))
    }
}

/// The files of `dir/name` below `root`.
///
/// # Errors
/// None of them is there, or one has a mistake.
pub(crate) fn read(files: &dyn Files, root: &Path, dir: &str, name: &str) -> Result<Layers, Error> {
    let base = includes::normal(&root.join(dir).join(name));
    includes::read(files, &base)?.ok_or_else(|| {
        let mut file = base.into_os_string();
        file.push(".conf");
        let origin = Origin {
            file: file.into(),
            line: 0,
        };
        Error::new(origin, ErrorKind::Read, "there is no such file")
    })
}

impl Definition {
    pub fn new(layers: Layers, given: &[(String, Text)], jail: &Values) -> Result<Self, Error> {
        let file = layers.own.clone();
        if !layers.sections.contains_key(DEFINITION) {
            let origin = Origin { file, line: 0 };
            let message = "there is no section [Definition]";
            return Err(Error::new(origin, ErrorKind::Syntax, message));
        }
        let given: Values = given.iter().cloned().collect();
        let mut vars = jail.clone();
        vars.extend(given.clone());
        let mut parameters = given;
        let keys: Vec<_> = layers
            .sections
            .get(INIT)
            .map(|init| init.keys().cloned().collect())
            .unwrap_or_default();
        for key in keys {
            let Some(value) = interpolate::get(&layers, INIT, &key, &interpolate::NoVars)? else {
                continue;
            };
            if !key.starts_with("known/") {
                parameters.insert(format!("known/{key}"), value.clone());
            }
            parameters.entry(key).or_insert(value);
        }
        Ok(Self {
            layers,
            parameters,
            vars,
            file,
            family: None,
        })
    }

    /// Whether the files themselves, defaults apart, have a key.
    pub fn has_own(layers: &Layers, key: &str) -> bool {
        let section = layers.sections.get(DEFINITION);
        section.is_some_and(|section| section.contains_key(key))
    }

    /// A key after both layers; `None` if nobody has it.
    ///
    /// # Errors
    /// Of interpolation.
    pub fn get(&self, key: &str) -> Result<Option<Text>, Error> {
        let Some(value) = self.first_layer(key)? else {
            return Ok(None);
        };
        tags::expand(key, &value, &mut |tag| self.first_layer(tag)).map(Some)
    }

    fn first_layer(&self, key: &str) -> Result<Option<Text>, Error> {
        if let Some(family) = self.family
            && !key.contains('?')
            && let Some(value) = self.first_layer(&format!("{key}?family={family}"))?
        {
            return Ok(Some(value));
        }
        if let Some(value) = self.parameters.get(key) {
            return Ok(Some(value.clone()));
        }
        if let Some((section, option)) = key.split_once('/') {
            let found = match section.to_lowercase().as_str() {
                "known" => self.known(option)?,
                "default" => interpolate::get(
                    &self.layers,
                    DEFINITION,
                    option,
                    &OnlyDefaults(&self.layers),
                )?,
                _ if self.layers.sections.contains_key(section) => {
                    interpolate::get(&self.layers, section, option, &interpolate::NoVars)?
                }
                _ => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        interpolate::get(&self.layers, DEFINITION, key, &self.vars)
    }

    /// What the files before had for a key; what it is now if none had it.
    fn known(&self, option: &str) -> Result<Option<Text>, Error> {
        let option = option.to_lowercase();
        let known = self.layers.known.get(DEFINITION);
        let Some(before) = known.and_then(|known| known.get(&option)) else {
            return interpolate::get(&self.layers, DEFINITION, &option, &interpolate::NoVars);
        };
        let only = One(&option, before);
        interpolate::get(&self.layers, DEFINITION, &option, &only)
    }
}

/// One value in place of the section's.
struct One<'a>(&'a str, &'a Text);

impl Vars for One<'_> {
    fn var(&self, key: &str) -> Result<Option<Var>, Error> {
        Ok((key == self.0).then(|| Var::Raw(self.1.clone())))
    }
}

/// The defaults before the section.
struct OnlyDefaults<'a>(&'a Layers);

impl Vars for OnlyDefaults<'_> {
    fn var(&self, key: &str) -> Result<Option<Var>, Error> {
        Ok(self.0.defaults.get(key).cloned().map(Var::Raw))
    }
}
