//! What sections of several kinds say in the same words: names, ports, what a
//! ban does and for how long.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use weir_core::{
    Action, PortSet, PortSetError,
    ban::MAX_NAME,
    policy::{BanTime, Increment, JailLimits, MAX_RETRY},
};

use crate::Section;

/// The unit of most durations.
pub const SECOND: Duration = Duration::from_secs(1);
/// 24 hours, whatever the calendar says.
pub const DAY: Duration = Duration::from_secs(86_400);
/// Ten years: longer than anything that is configured.
pub const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Whether the byte may be in the name of a section.
pub fn name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
}

/// Notes a mistake at the head of a section whose `name` is none; `kind` is what it names,
/// such as "jail".
pub fn check_name(section: &Section<'_, '_>, kind: &str, name: &str) {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(name_byte) {
        section.error(
            section.line(),
            format!("{kind} name {name:?}; allowed: 1-{MAX_NAME} letters, digits, - and _"),
        );
    }
}

/// A key that holds an absolute path.
pub fn path(root: &mut Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
    optional_path(root, key, default).unwrap_or_else(|| default.into())
}

/// A key that holds an absolute path and may be absent; `such_as` is an example.
pub fn optional_path(
    root: &mut Section<'_, '_>,
    key: &'static str,
    such_as: &str,
) -> Option<PathBuf> {
    let allowed = format!("an absolute path such as {such_as:?}");
    let at = root.string(key, &allowed)?;
    if Path::new(&at.value).is_absolute() {
        return Some(at.value.into());
    }
    root.error(
        at.line,
        format!("{key} is {:?}; allowed: {allowed}", at.value),
    );
    None
}

/// What a section says of counting, where it `counts`, and of how long a ban
/// lasts.
pub fn limits(section: &mut Section<'_, '_>, counts: bool) -> JailLimits {
    let mut limits = JailLimits::default();
    if counts && let Some(at) = section.integer("max_retry", 1..=u64::from(MAX_RETRY)) {
        limits.max_retry = at.value as u32;
    }
    if counts && let Some(at) = section.duration("find_time", SECOND..=365 * DAY) {
        limits.find_time = at.value;
    }
    if let Some(at) = section.duration_or_forever("ban_time", SECOND..=YEARS, true) {
        limits.ban_time = at.value.map_or(BanTime::Never, BanTime::For);
    }
    limits.increment = section.section("increment").map(|mut increment| {
        let factor = increment.number("factor", 1.0..=100.0).unwrap_or(2.0);
        let max = increment
            .duration("max", SECOND..=YEARS)
            .map_or(5 * 7 * DAY, |at| at.value);
        increment.finish();
        Increment { factor, max }
    });
    limits
}

/// What the bans that a section makes do to packets.
pub fn action(section: &mut Section<'_, '_>) -> Action {
    let choices = [Action::Drop, Action::Reject].map(|action| (action.name(), action));
    section
        .choice("action", &choices)
        .map_or_else(Action::default, |at| at.value)
}

/// Which ports the bans of a section are for.
pub fn scope(section: &mut Section<'_, '_>) -> PortSet {
    scope_of(section, |error| error.to_string())
}

/// The same where there are ports of TCP and UDP alone. Those of SCTP are read as well: the
/// section says what is to be written in their place.
pub fn tcp_udp_scope(section: &mut Section<'_, '_>) -> PortSet {
    scope_of(section, |error| match error {
        PortSetError::Malformed(text) => {
            let text: String = text.chars().take(64).collect();
            format!(
                "{text:?} is not a port; allowed: 22, 22/tcp or 6000-6010/udp (ports 1-65535; tcp or udp)"
            )
        }
        other => other.to_string(),
    })
}

fn scope_of(section: &mut Section<'_, '_>, told: impl Fn(PortSetError) -> String) -> PortSet {
    const PORTS: &str = "\"all\" or a list of ports such as [\"22/tcp\", \"6000-6010/udp\"]";
    match section.word_or_list("ports", PORTS) {
        None => PortSet::all(),
        Some(Ok(word)) if word.value == "all" => PortSet::all(),
        Some(Ok(word)) => {
            section.error(
                word.line,
                format!("ports is {:?}; allowed: {PORTS}", word.value),
            );
            PortSet::all()
        }
        Some(Err(list)) => {
            if list.value.is_empty() {
                section.error(list.line, format!("ports is empty; allowed: {PORTS}"));
            }
            let mut ranges = Vec::new();
            for port in &list.value {
                match port.value.parse::<PortSet>() {
                    Ok(scope) if !scope.is_all() => ranges.extend(scope.ranges()),
                    Ok(_) => section.error(
                        port.line,
                        "ports: write ports = \"all\", not as part of a list",
                    ),
                    Err(error) => section.error(port.line, format!("ports: {}", told(error))),
                }
            }
            PortSet::ports(ranges).unwrap_or_else(|error| {
                section.error(list.line, format!("ports: {}", told(error)));
                PortSet::all()
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Part};

    /// What `read` makes of a document, or what is wrong with it.
    fn read<T>(text: &str, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> Result<T, String> {
        let files = Part::all(vec![("weir.toml".into(), text.to_owned(), None)]);
        let document = Document::new(&files);
        let mut root = document.root();
        let value = read(&mut root);
        root.finish();
        document.finish(value).map_err(|errors| errors.to_string())
    }

    #[test]
    fn names_of_sections_are_letters_digits_and_two_signs() {
        for byte in 0..=u8::MAX {
            let fine = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
            assert_eq!(name_byte(byte), fine.as_bytes().contains(&byte), "{byte}");
        }
    }

    #[test]
    fn a_section_whose_name_is_none_is_told_at_its_head() {
        let named = |name: &str| {
            read(&format!("\n[jail.{name:?}]\n"), |root| {
                for (name, section) in root.named_sections("jail") {
                    check_name(&section, "jail", &name);
                }
            })
        };
        let longest = "x".repeat(MAX_NAME);
        for good in ["a", "web-1_b", &longest] {
            assert_eq!(named(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "\u{e9}", &format!("{longest}x")] {
            let said =
                format!("weir.toml:2: jail name {bad:?}; allowed: 1-48 letters, digits, - and _");
            assert_eq!(named(bad), Err(said), "{bad}");
        }
    }

    #[test]
    fn a_path_is_absolute_or_the_usual_one() {
        let read = |text| read(text, |section| path(section, "dir", "/var/lib/weir"));
        assert_eq!(read("dir = '/srv/weir'"), Ok("/srv/weir".into()));
        assert_eq!(read(""), Ok("/var/lib/weir".into()));
        let error = read("\ndir = 'srv/weir'").unwrap_err();
        assert!(
            error.contains("weir.toml:2") && error.contains("allowed"),
            "{error}"
        );
    }

    #[test]
    fn limits_are_those_that_are_written_or_usual() {
        let counted = |text| read(text, |section| limits(section, true));
        assert_eq!(counted(""), Ok(JailLimits::default()));
        let text = "max_retry = 3\nfind_time = '1d'\nban_time = '2h'\n[increment]\nfactor = 4\n";
        let all = counted(text).unwrap();
        assert_eq!((all.max_retry, all.find_time), (3, DAY));
        assert_eq!(all.ban_time, BanTime::For(7200 * SECOND));
        let increment = all.increment.unwrap();
        assert_eq!((increment.factor, increment.max), (4.0, 35 * DAY));
        let usual = counted("ban_time = 'forever'\n[increment]\nmax = '9d'\n").unwrap();
        assert_eq!(usual.ban_time, BanTime::Never);
        let increment = usual.increment.unwrap();
        assert_eq!((increment.factor, increment.max), (2.0, 9 * DAY));
        assert!(counted("find_time = '365d'\nban_time = '3650d'\n").is_ok());
        for (text, key) in [
            ("max_retry = 0", "max_retry"),
            ("find_time = '366d'", "find_time"),
            ("ban_time = '3651d'", "ban_time"),
            ("[increment]\nfactor = 0.9", "factor"),
            ("[increment]\nmax = '3651d'", "max"),
            ("[increment]\nmost = '1d'", "most"),
        ] {
            let error = counted(text).unwrap_err();
            assert!(error.contains(key), "{text}: {error}");
        }
        // Who does not count has no such keys.
        for text in ["max_retry = 3", "find_time = '1d'"] {
            let error = read(text, |section| limits(section, false)).unwrap_err();
            assert!(error.contains("unknown key"), "{error}");
        }
    }

    #[test]
    fn an_action_is_a_drop_unless_it_rejects() {
        assert_eq!(read("", action), Ok(Action::Drop));
        assert_eq!(read("action = 'drop'", action), Ok(Action::Drop));
        assert_eq!(read("action = 'reject'", action), Ok(Action::Reject));
        assert!(read("action = 'pass'", action).is_err());
    }

    #[test]
    fn ports_of_tcp_and_udp_are_told_without_sctp() {
        let ports = |text: &str| read(text, tcp_udp_scope).map(|scope| scope.to_string());
        let fine = "ports = ['22/tcp', '53/udp', '80', '7/sctp']";
        assert_eq!(
            ports(fine),
            read(fine, scope).map(|scope| scope.to_string())
        );
        for text in ["443/tpc", "0", "x", "", "9/icmp"] {
            assert_eq!(
                ports(&format!("ports = [\n'{text}']")),
                Err(format!(
                    "weir.toml:2: ports: {text:?} is not a port; allowed: 22, 22/tcp or 6000-6010/udp (ports 1-65535; tcp or udp)"
                ))
            );
        }
    }

    #[test]
    fn ports_are_all_or_a_list() {
        let ports = |text: &str| read(text, scope).map(|scope| scope.to_string());
        let all = Ok(PortSet::all().to_string());
        assert_eq!(ports(""), all);
        assert_eq!(ports("ports = 'all'"), all);
        let some: PortSet = "22/tcp,6000-6010/udp".parse().unwrap();
        assert_eq!(read("ports = ['22/tcp', '6000-6010/udp']", scope), Ok(some));
        for (text, message) in [
            (
                "ports = '22'",
                "weir.toml:1: ports is \"22\"; allowed: \"all\" or",
            ),
            ("ports = []", "weir.toml:1: ports is empty"),
            (
                "ports = [\n'all']",
                "weir.toml:2: ports: write ports = \"all\"",
            ),
            ("ports = [\n'x']", "weir.toml:2: ports: "),
        ] {
            let error = ports(text).unwrap_err();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
