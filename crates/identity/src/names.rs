//! Names of hosts in rules, and patterns of them.

use weir_config::values::name_byte;

/// Letters, digits, `-` and `_` in labels of at most 63, in all at most 253 characters;
/// no address.
pub(crate) fn is_host_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(name_byte);
    name.len() <= 253 && name.split('.').all(label) && name.parse::<std::net::IpAddr>().is_err()
}

/// One name, or with `*.` before it all names below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    name: String,
    is_below: bool,
}

impl NamePattern {
    /// `None`: it is no host name.
    pub fn new(text: &str) -> Option<Self> {
        let below = text.strip_prefix("*.");
        let name = below.unwrap_or(text);
        is_host_name(name).then(|| Self {
            name: name.trim_end_matches('.').to_ascii_lowercase(),
            is_below: below.is_some(),
        })
    }

    /// Is this name, in lower case and without a dot at its end, one of them?
    pub fn matches(&self, name: &str) -> bool {
        match (name.strip_suffix(self.name.as_str()), self.is_below) {
            (Some(rest), true) => rest.ends_with('.') && rest.len() > 1,
            (Some(rest), false) => rest.is_empty(),
            (None, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_all_below_it() {
        let of = |text: &str| NamePattern::new(text).unwrap();
        assert!(of("NAS.home.arpa.").matches("nas.home.arpa"));
        assert!(!of("home.arpa").matches("nas.home.arpa"));
        assert!(of("*.home.arpa").matches("nas.home.arpa"));
        assert!(of("*.home.arpa").matches("a.b.home.arpa"));
        for not in [
            "home.arpa",
            ".home.arpa",
            "evilhome.arpa",
            "nas.home.arpa.evil.org",
        ] {
            assert!(!of("*.home.arpa").matches(not), "{not}");
        }
        for wrong in ["", "*", "*.", "a b", "192.0.2.1", "*.*.org", "a..b"] {
            assert_eq!(NamePattern::new(wrong), None, "{wrong}");
        }
    }
}
