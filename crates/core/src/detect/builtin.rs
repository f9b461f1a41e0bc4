//! The built-in filters: files as in a filter.d directory, compiled in, each parsed
//! once by the reader of [`Definition`]. A test holds that the configuration's own
//! reader reads them alike; `weir filter show` prints them as they are.

use std::sync::LazyLock;

use super::{definition::Definition, program::Program};

const FILES: [(&str, &str); 2] = [
    ("sshd", include_str!("builtin/sshd.toml")),
    (
        "sshd-aggressive",
        include_str!("builtin/sshd-aggressive.toml"),
    ),
];

static DEFINITIONS: LazyLock<[Definition; FILES.len()]> = LazyLock::new(|| {
    FILES.map(|(name, text)| {
        toml::from_str(text).unwrap_or_else(|error| panic!("built-in filter {name}: {error}"))
    })
});

impl Definition {
    /// The names of the built-in filters: `sshd` counts failed logins;
    /// `sshd-aggressive` also connections that end before a login and failed
    /// negotiations.
    pub fn builtin_names() -> [&'static str; FILES.len()] {
        FILES.map(|(name, _)| name)
    }

    /// The definition of a built-in filter, to read or to extend.
    pub fn builtin(name: &str) -> Option<&'static Self> {
        let number = FILES.iter().position(|(known, _)| *known == name)?;
        Some(&DEFINITIONS[number])
    }

    /// The same as its file has it, with what is said of it there.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        let file = FILES.iter().find(|(known, _)| *known == name)?;
        Some(file.1)
    }
}

impl Program {
    /// A filter that weir brings, compiled.
    pub fn builtin(name: &str) -> Option<Self> {
        let definition = Definition::builtin(name)?;
        Some(definition.compile().expect("a test compiles them all"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest message that nobody has cut: sshd.toml says why.
    const UNCUT: usize = 210;

    #[test]
    fn built_in_files_are_filters() {
        for name in Definition::builtin_names() {
            let program = Program::builtin(name).expect(name);
            assert!(program.identifiers().any(|tag| tag == "sshd"), "{name}");
            assert_eq!(
                toml::from_str::<Definition>(Definition::builtin_text(name).unwrap()).as_ref(),
                Ok(Definition::builtin(name).unwrap())
            );
        }
        assert_eq!(Definition::builtin("sshdx"), None);
        assert_eq!(Definition::builtin_text("sshdx"), None);
    }

    #[test]
    fn the_aggressive_filter_is_the_other_one_and_more() {
        let [sshd, aggressive] =
            ["sshd", "sshd-aggressive"].map(|n| Definition::builtin(n).unwrap());
        let more = &aggressive.patterns[sshd.patterns.len()..];
        assert!(!more.is_empty());
        let without = Definition {
            patterns: aggressive.patterns[..sshd.patterns.len()].to_vec(),
            ..aggressive.clone()
        };
        assert_eq!(without, *sshd);
    }

    /// Where a message is cut, a client's text can be made to end it.
    #[test]
    fn no_cut_message_is_read_where_a_clients_text_stands_before_the_address() {
        for name in Definition::builtin_names() {
            for pattern in &Definition::builtin(name).unwrap().patterns {
                let text = &pattern.text;
                let client = ["<user>", "<text>"]
                    .iter()
                    .find_map(|field| text.find(field));
                let is_before = client.is_some() && client < text.find("<addr>");
                assert_eq!(
                    pattern.max_length,
                    is_before.then_some(UNCUT),
                    "{name}: {text}"
                );
            }
        }
    }
}
