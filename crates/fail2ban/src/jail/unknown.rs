//! What a jail, or its filter, says and nobody asks for: mostly it is mistyped.

use super::{KEYS, OTHER_KEYS, Reader};
use crate::{
    error::{Error, ErrorKind},
    filter_files, ini,
    layers::Layers,
    parameters::Named,
    text::Text,
    unknown_names::{self, Asked},
};

impl Reader<'_> {
    /// A section of no jail, whose name is near that of one for all jails: what it says is
    /// said to nobody.
    pub(super) fn mistyped_section(&self, name: &str) -> Option<Error> {
        let meant = unknown_names::did_you_mean(&name.to_uppercase(), [ini::DEFAULT, "INCLUDES"]);
        let text = self.layers.sections[name].values().next()?;
        let message = format!("[{}] is no jail that is enabled{meant}", ini::clip(name));
        (!meant.is_empty()).then(|| Error::new(text.origin(), ErrorKind::Value, message))
    }

    /// What the jail `name` says of itself, and its filter of itself, that nobody asks for.
    pub(super) fn unknown_names(
        &self,
        name: &str,
        (filter_text, named): (&Text, &Named),
        filter: &Layers,
        asked: &Asked,
    ) -> Vec<Error> {
        let wrong =
            |text: &Text, message: String| Error::new(text.origin(), ErrorKind::Value, message);
        let known = || {
            let all = KEYS.iter().chain(&filter_files::KEYS);
            all.chain(&OTHER_KEYS).copied()
        };
        let own = &self.layers.sections[name];
        let mut all = Vec::new();
        for (section, may_have_more) in [(own, false), (&self.layers.defaults, true)] {
            for (key, text) in section {
                if known().any(|known| known == key) || self.asked.has(key) {
                    continue;
                }
                let meant = unknown_names::did_you_mean(key, known());
                // Files of paths have names there that other files may ask for.
                if !may_have_more || !meant.is_empty() {
                    let key = ini::clip(key);
                    all.push(wrong(text, format!("{key}: there is no such key{meant}")));
                }
            }
        }
        let parameters = filter_files::parameters();
        for (key, value) in &named.options {
            // All jails hand on the one of [DEFAULT], whatever filter they have.
            let says = |key: &str| own.contains_key(key);
            if key == "mode" && !says("mode") && !says("filter") {
                continue;
            }
            if let Some(message) = unknown_names::parameter(filter, asked, &parameters, key) {
                let place = self.place_of(name, key, value);
                let origin = place.unwrap_or_else(|| filter_text.origin());
                let message = format!("filter {}: {message}", named.name);
                all.push(Error::new(origin, ErrorKind::Value, message));
            }
        }
        let keys = unknown_names::keys(filter, asked, &parameters);
        let of_filter = |message| format!("filter {}: {message}", named.name);
        all.extend(
            keys.into_iter()
                .map(|(text, message)| wrong(text, of_filter(message))),
        );
        all
    }
}
