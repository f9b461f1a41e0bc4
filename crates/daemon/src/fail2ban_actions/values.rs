//! What a command sees of a ban: variables of its environment. Nothing else of a ban
//! reaches a shell.

use std::{fmt::Write as _, net::IpAddr};

use jiff::SignedDuration;
use weir_core::{BanTarget, Prefix};
use weir_fail2ban::{CAPTURED_ID, Script, Tag, captured_variable};

use super::notice::BanNotice;

/// Bytes of lines that a command is told; the kernel takes twice as much.
const MAX_MATCHES: usize = 64 * 1024;

/// The variables that a script reads; `family` is 0 for IPv4 and 1 for IPv6.
pub(super) fn environment(
    script: &Script,
    told: Option<&BanNotice>,
    family: usize,
    jail: &str,
    max_matches: usize,
    ban_count: impl Fn() -> Option<u32>,
) -> Vec<(String, String)> {
    let mut environment = vec![
        // What mailers and curl look for their settings by.
        ("HOME".to_owned(), "/root".to_owned()),
        ("WEIR_JAIL".to_owned(), jail.to_owned()),
    ];
    environment.extend(script.tags.iter().map(|tag| {
        let value = match (tag, told) {
            (Tag::HostNameFull | Tag::HostName, _) => host_name(*tag == Tag::HostNameFull),
            (Tag::Family, _) => ["inet4", "inet6"][family].to_owned(),
            (_, None) => String::new(),
            (tag, Some(told)) => of_ban(*tag, told, max_matches, &ban_count),
        };
        (tag.variable().to_owned(), value)
    }));
    // What a filter does not capture is empty, as in Fail2ban.
    let captured = told
        .and_then(|told| told.captured.as_deref())
        .unwrap_or_default();
    environment.extend(script.captured.iter().map(|name| {
        let value = captured.iter().find(|(known, _)| **known == **name);
        let value = value.map_or_else(String::new, |(_, value)| value.clone());
        (captured_variable(name), value)
    }));
    environment
}

fn of_ban(
    tag: Tag,
    told: &BanNotice,
    max_matches: usize,
    ban_count: &impl Fn() -> Option<u32>,
) -> String {
    match tag {
        Tag::Ip => told.subject.to_string(),
        Tag::Id => captured_id(told).unwrap_or_else(|| told.subject.to_string()),
        Tag::IpRev => reverse(told.subject),
        Tag::Failures => told.failures.to_string(),
        Tag::Time => told.since.as_second().to_string(),
        Tag::BanTime => match told.until {
            None => "-1".to_owned(),
            Some(until) => {
                let left: SignedDuration = until.duration_since(told.since);
                // An end that the kernel's clock says is a little off.
                ((left.as_millis() + 500).div_euclid(1000))
                    .max(0)
                    .to_string()
            }
        },
        Tag::BanCount => ban_count().unwrap_or(1).max(1).to_string(),
        Tag::Restored => u8::from(told.is_restored).to_string(),
        Tag::Matches => {
            let first = told.matches.len().saturating_sub(max_matches);
            lines(&told.matches[first..])
        }
        _ => String::new(),
    }
}

/// What the filter has captured as `<F-ID>`, if that is what is banned: of another address of
/// the same ban, as of one network of IPv6, the end could not be told by the same text.
fn captured_id(told: &BanNotice) -> Option<String> {
    let captured = told.captured.as_deref()?;
    let (_, id) = captured.iter().find(|(name, _)| **name == *CAPTURED_ID)?;
    let prefix = id.parse::<Prefix>().ok();
    let prefix = prefix.or_else(|| id.parse::<IpAddr>().ok().map(Prefix::host));
    (prefix == Some(told.subject.prefix())).then(|| id.clone())
}

/// Lines without what steers terminals and mailers, the last ones as far as there is room.
fn lines(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    if text.len() > MAX_MATCHES {
        let mut from = text.len() - MAX_MATCHES;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
    let visible = |c: char| {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            '?'
        } else {
            c
        }
    };
    text.chars().map(visible).collect()
}

/// The labels of the address in in-addr.arpa or ip6.arpa, each with its dot.
fn reverse(subject: BanTarget) -> String {
    let mut name = String::new();
    match subject.prefix().addr() {
        IpAddr::V4(addr) => {
            for octet in addr.octets().iter().rev() {
                let _ = write!(name, "{octet}.");
            }
        }
        IpAddr::V6(addr) => {
            for octet in addr.octets().iter().rev() {
                let _ = write!(name, "{:x}.{:x}.", octet & 15, octet >> 4);
            }
        }
    }
    name
}

/// This host's name as the kernel has it: no resolver is asked.
fn host_name(is_full: bool) -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned());
    match is_full {
        true => name,
        false => name.split('.').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_command_sees_what_fail2ban_would_tell_it() {
        let told = |subject: &str, until: Option<i64>| BanNotice {
            subject: subject.parse().unwrap(),
            since: Timestamp::from_second(1_000).unwrap(),
            until: until.map(|end| Timestamp::from_second(end).unwrap()),
            failures: 3,
            matches: vec!["one".into(), "two\u{1b}[31m".into(), "three".into()],
            is_restored: false,
            captured: None,
        };
        let v4 = told("192.0.2.7", Some(1_600));
        let v6 = told("2001:db8::7", None);
        let is = |tag, told: &BanNotice| of_ban(tag, told, 2, &|| Some(3));
        for (tag, of_v4, of_v6) in [
            (Tag::Ip, "192.0.2.7", "2001:db8::7"),
            (
                Tag::IpRev,
                "7.2.0.192.",
                "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.",
            ),
            (Tag::BanTime, "600", "-1"),
            (Tag::Time, "1000", "1000"),
            (Tag::Failures, "3", "3"),
            (Tag::BanCount, "3", "3"),
            (Tag::Restored, "0", "0"),
            (Tag::Matches, "two?[31m\nthree", "two?[31m\nthree"),
        ] {
            assert_eq!(
                (is(tag, &v4).as_str(), is(tag, &v6).as_str()),
                (of_v4, of_v6)
            );
        }
        let long = vec!["é".repeat(20_000); 3];
        let text = lines(&long);
        assert!(text.len() <= MAX_MATCHES && text.ends_with('é'));
    }
}
