//! `blacklists` and `whitelists`.

use super::{Keys, Toml, brief};

pub(super) fn deny(root: &mut Keys, names: &mut Vec<String>, toml: &mut Toml) {
    let list = root.list("blacklists", toml);
    if list.is_empty() {
        return;
    }
    toml.line("");
    toml.note(
        "changed: blacklists: every packet from or to a listed prefix is dropped, and nobody is banned \
         for it; a list that cannot be fetched stays as it was. Lines with commas: the address is in the \
         second column there; format = \"csv:2\" says so where the format is not recognised.",
    );
    for value in list {
        let url = value.as_str().unwrap_or_default();
        let Some((scheme, rest)) = url.split_once("://") else {
            toml.note(&format!(
                "not carried over: {} in blacklists: no URL",
                brief(&value)
            ));
            continue;
        };
        let (key, place) = match scheme {
            "http" | "https" if url.bytes().all(is_url_byte) => ("url", url),
            "http" | "https" => {
                toml.note(&format!(
                    "asked: {url:?} in blacklists has characters that a URL writes as %XX"
                ));
                continue;
            }
            "file" => ("file", rest),
            _ => {
                toml.note(&format!(
                    "not carried over: {url:?} in blacklists: weir fetches http and https"
                ));
                continue;
            }
        };
        if scheme == "file" {
            toml.line("");
            toml.note("changed: a list in a file could not work there.");
        }
        section(&name("", rest, names), key, place, "deny", toml);
        toml.set("direction", "both");
        if scheme != "file" {
            toml.set("refresh", "1d");
        }
        if without_query(rest).ends_with(".csv") {
            toml.set("format", "csv:2");
        }
    }
}

pub(super) fn allow(root: &mut Keys, names: &mut Vec<String>, toml: &mut Toml) {
    let list = root.list("whitelists", toml);
    if list.is_empty() {
        return;
    }
    toml.line("");
    toml.note(
        "changed: whitelists: IPv6 entries count as well, and an allowed address cannot be banned by \
         anything.",
    );
    for value in list {
        match value.as_str() {
            Some(path) if path.starts_with('/') => {
                let name = name("allow-", path, names);
                section(&name, "file", path, "allow", toml);
            }
            Some(path) if path.starts_with("http://") || path.starts_with("https://") => {
                toml.note(&format!(
                    "changed: {path:?} in whitelists: a URL could not work there."
                ));
                let name = name("allow-", path, names);
                section(&name, "url", path, "allow", toml);
            }
            Some(path) => {
                toml.note(&format!(
                    "asked: {path:?} in whitelists: weir wants the whole path, which depends on where \
                     ipt_geofence was started."
                ));
                toml.line("#[list.allow-…]");
                toml.suggest("file", format!("/…/{path}"));
                toml.suggest("action", "allow");
            }
            None => toml.note(&format!(
                "not carried over: {} in whitelists: no path",
                brief(&value)
            )),
        }
    }
}

fn section(name: &str, key: &str, place: &str, action: &str, toml: &mut Toml) {
    toml.section(&format!("list.{name}"));
    toml.set(key, place);
    toml.set("action", action);
}

/// RFC 3986, section 2.
fn is_url_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte)
}

fn without_query(place: &str) -> &str {
    place.split(['?', '#']).next().unwrap_or(place)
}

/// A name that says where the list is from; distinct.
fn name(prefix: &str, place: &str, names: &mut Vec<String>) -> String {
    const LONGEST: usize = 28;
    let place = place.split("://").last().unwrap_or(place);
    let place = without_query(place);
    let mut words: Vec<_> = place.split('/').filter(|part| !part.is_empty()).collect();
    let last = words.pop().unwrap_or("list");
    let host = words.first().copied().unwrap_or_default();
    let stem = last.rsplit_once('.').map_or(last, |(stem, _)| stem);
    let host = host.strip_prefix("www.").unwrap_or(host);
    let host = host.split('.').next().unwrap_or_default();
    let joined = match host.is_empty() || place.starts_with('/') {
        true => stem.to_owned(),
        false => format!("{host}-{stem}"),
    };
    let mut name: String = joined
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .take(LONGEST)
        .collect();
    name = name.trim_matches('-').to_owned();
    if name.is_empty() {
        name = "list".to_owned();
    }
    let plain = format!("{prefix}{name}");
    name.clone_from(&plain);
    let mut n = 2;
    while names.contains(&name) {
        name = format!("{plain}-{n}");
        n += 1;
    }
    names.push(name.clone());
    name
}
