//! What the tags of a filter's expressions stand for: `<HOST>` and its relatives,
//! `<F-NAME>…</F-NAME>`, `<SKIPLINES>`, and global flags inside a group.

use std::collections::BTreeSet;

/// Four numbers with dots between them.
const IP4: &str = r"(?P<ip4>(?:\d{1,3}\.){3}\d{1,3})";
/// Groups with colons behind them, and a last group or colon. What Fail2ban says in
/// addition, that a colon stands before the last one, is always so.
const IP6: &str = r"(?P<ip6>(?:[0-9a-fA-F]{1,4}::?|:){1,7}(?:[0-9a-fA-F]{1,4}|:))";
const DNS: &str = r"(?P<dns>[\w\-.^_]*\w)";
const CIDR: &str = r"(?P<cidr>\d+)";

/// What an address is written as in place of the tag.
fn addr(with_length: bool) -> String {
    let length = match with_length {
        true => format!("(?:/{CIDR})?"),
        false => String::new(),
    };
    format!(r"\[?(?:{}|{IP6}){length}\]?", ip4())
}

fn ip4() -> String {
    // IPv4 in IPv6's clothes.
    format!("(?:::f{{4,6}}:)?{IP4}")
}

/// The expression with what its tags stand for. `names`: `<HOST>` may be a host name.
pub fn expand(text: &str, names: bool) -> String {
    let mut out = String::with_capacity(2 * text.len());
    let mut open = BTreeSet::new();
    let mut skips = 0;
    let mut rest = text;
    while let Some(begin) = rest.find('<') {
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let Some(tag) = tag(rest) else {
            out.push('<');
            rest = &rest[1..];
            continue;
        };
        rest = &rest[tag.len() + 2..];
        match tag {
            "HOST" if names => out.push_str(&format!("(?:{}|{DNS})", addr(false))),
            "HOST" | "ADDR" | "F-ADDR/" => out.push_str(&addr(false)),
            "SUBNET" | "F-SUBNET/" => out.push_str(&addr(true)),
            "IP4" | "F-IP4/" => out.push_str(&ip4()),
            "IP6" | "F-IP6/" => out.push_str(IP6),
            "DNS" | "F-DNS/" => out.push_str(DNS),
            "CIDR" | "F-CIDR/" => out.push_str(CIDR),
            "F-ID/" => out.push_str(r"(?P<fid>\S+)"),
            "F-PORT/" => out.push_str(r"(?P<fport>\w+)"),
            "SKIPLINES" => {
                out.push_str(&format!(r"\n(?P<skiplines{skips}>(?:(?:.*\n)*?))"));
                skips += 1;
            }
            tag => match custom(tag) {
                Some((name, false)) => {
                    open.insert(name);
                    out.push_str(&format!("(?P<{}>", group_name(name)));
                }
                Some((name, true)) if open.contains(name) => out.push(')'),
                _ => {
                    out.push('<');
                    out.push_str(tag);
                    out.push('>');
                }
            },
        }
    }
    out.push_str(rest);
    local_flags(&out)
}

/// The same as Fail2ban hands it to Python, and shows it: with what `IP6` leaves out.
pub fn expand_for_python(text: &str, names: bool) -> String {
    let as_there = IP6.replace("|:))", "|(?<=:):))");
    expand(text, names).replace(IP6, &as_there)
}

/// What is between `<` and `>` at the beginning of a text, if it is a tag's name.
fn tag(text: &str) -> Option<&str> {
    let inner = &text[1..];
    let end = inner.find('>')?;
    let tag = &inner[..end];
    let name = tag.strip_prefix('/').unwrap_or(tag);
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_name = |c: char| c == '_' || c == '-' || c.is_alphanumeric();
    (!name.is_empty() && name.chars().all(is_name)).then_some(tag)
}

/// The name in `F-NAME` or `/F-NAME`, and whether it ends there.
fn custom(tag: &str) -> Option<(&str, bool)> {
    let (tag, closes) = match tag.strip_prefix('/') {
        Some(tag) => (tag, true),
        None => (tag, false),
    };
    let name = tag.strip_prefix("F-")?;
    let is_name = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || b"_-".contains(&c);
    (!name.is_empty() && name.bytes().all(is_name)).then_some((name, closes))
}

/// The group that holds it.
pub fn group_name(name: &str) -> String {
    match name.to_lowercase() {
        name if name == "id" || name == "port" => format!("f{name}"),
        name => name,
    }
}

/// `((?i)…)` and `(?:(?i)…)` as `(?i:…)`: flags in a group are of that group.
fn local_flags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find('(') {
        let escaped = rest[..begin].ends_with('\\') || begin == 0 && out.ends_with('\\');
        let group = &rest[begin..];
        let flags = (!escaped).then(|| {
            let inner = group.strip_prefix("(?:").unwrap_or(&group[1..]);
            let letters = inner.strip_prefix("(?")?;
            let count = letters.bytes().take_while(u8::is_ascii_lowercase).count();
            (count > 0 && letters[count..].starts_with(')'))
                .then(|| (&letters[..count], &letters[count + 1..]))
        });
        match flags.flatten() {
            Some((letters, behind)) => {
                out.push_str(&rest[..begin]);
                out.push_str(&format!("(?{letters}:"));
                rest = behind;
            }
            None => {
                out.push_str(&rest[..=begin]);
                rest = &rest[begin + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_groups() {
        for (text, expanded) in [
            (
                "^a <F-USER>\\S+</F-USER> b</F-X>",
                "^a (?P<user>\\S+) b</F-X>",
            ),
            ("<F-ID>x</F-ID> <F-PORT/>", "(?P<fid>x) (?P<fport>\\w+)"),
            ("a < b <unknown> <F-low>", "a < b <unknown> <F-low>"),
            (
                "a<SKIPLINES>b<SKIPLINES>",
                r"a\n(?P<skiplines0>(?:(?:.*\n)*?))b\n(?P<skiplines1>(?:(?:.*\n)*?))",
            ),
            ("((?i)a) (?:(?is)b) \\((?i)", "(?i:a) (?is:b) \\((?i)"),
        ] {
            assert_eq!(expand(text, true), expanded, "{text}");
        }
        assert!(expand("<HOST>", true).contains("(?P<dns>"));
        assert!(!expand("<HOST>", false).contains("(?P<dns>"));
        assert!(expand("<SUBNET>", true).contains("(?P<cidr>"));
        assert_eq!(expand("<ADDR>", true), expand("<HOST>", false));
    }
}
