//! OpenSnitch's rules (a JSON file each in /etc/opensnitchd/rules) as `[app]`.
//!
//! OpenSnitch asks all rules in the order of their names: the first that denies, or that
//! has precedence, decides, and else one that allows. So those are written first here,
//! where the first that holds decides. It judges connections that programs begin.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::Value;
use weir_core::Prefix;

use crate::{Error, app_rule::AppRule, toml_text::Toml};

/// The most rules that are read: weir has room for as many.
const MAX_RULES: usize = 1024;
/// The most conditions that one rule has.
const MAX_OPERATORS: usize = 64;

/// What the files of a directory of rules become: each with its name and its text.
///
/// # Errors
/// There are none, or more than weir has room for.
pub fn configuration(files: &[(String, String)]) -> Result<String, Error> {
    if files.is_empty() {
        return Err(Error("there is no rule: a file NAME.json each".to_owned()));
    }
    if files.len() > MAX_RULES {
        return Err(Error(format!(
            "{} rules; weir has room for {MAX_RULES}",
            files.len()
        )));
    }
    let mut rules = Vec::new();
    let mut remarks = Vec::new();
    for (file, text) in files {
        match read(file, text) {
            Ok(rule) => rules.push(rule),
            Err(why) => remarks.push(why),
        }
    }
    // By what OpenSnitch calls them, as it does.
    rules.sort_by(|a, b| a.called.cmp(&b.called));
    let mut toml = Toml::default();
    toml.note("Rules of OpenSnitch as weir's. A program is known by the digest of its executable here: path takes it when the configuration is read.");
    for remark in &remarks {
        toml.note(remark);
    }
    toml.section("app");
    toml.note("OpenSnitch's DefaultAction is in /etc/opensnitchd/default-config.json: \"drop\" here is its \"deny\".");
    toml.set("default", "allow");
    let mut names = BTreeSet::new();
    let (first, last): (Vec<Read>, Vec<Read>) = rules.into_iter().partition(|rule| rule.is_first);
    for mut read in first.into_iter().chain(last) {
        read.rule.named(&read.called, &mut names);
        read.rule.write(&mut toml);
    }
    Ok(toml.finish())
}

struct Read {
    called: String,
    /// Whether the rule decides before rules that only allow.
    is_first: bool,
    rule: AppRule,
}

/// A file, for messages about places in it.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    /// The file and line where this text stands first.
    fn place(&self, text: &str) -> String {
        let line = self.text.lines().position(|line| line.contains(text));
        match line {
            Some(line) if !text.is_empty() => format!("{}:{}", self.name, line + 1),
            _ => self.name.to_owned(),
        }
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn read(name: &str, content: &str) -> Result<Read, String> {
    let file = File {
        name,
        text: content,
    };
    let json: Value = serde_json::from_str(content)
        .map_err(|error| format!("{name}:{}: not read: it is no JSON: {error}", error.line()))?;
    if !json.is_object() {
        return Err(format!("{name}: not read: it is no rule"));
    }
    let stem = name.rsplit('/').next().unwrap_or(name);
    let called = match text(&json, "name") {
        "" => stem.strip_suffix(".json").unwrap_or(stem).to_owned(),
        called => called.chars().take(256).collect(),
    };
    let mut rule = AppRule {
        origin: format!("{name}: {called}"),
        ..AppRule::default()
    };
    let verdict = match text(&json, "action") {
        "allow" => "allow",
        "deny" => "drop",
        "reject" => "reject",
        other => {
            let place = file.place("\"action\"");
            return Err(format!(
                "{place}: not carried over: action {other:?} is none of allow, deny and reject"
            ));
        }
    };
    rule.set("verdict", verdict);
    if json["enabled"] == false {
        rule.missing
            .push(format!("{}: it is not enabled", file.place("\"enabled\"")));
    }
    match text(&json, "duration") {
        "always" | "" => (),
        other => rule.missing.push(format!(
            "{}: duration {other:?}: rules here hold until they are taken out",
            file.place("\"duration\"")
        )),
    }
    let mut conditions = Vec::new();
    flatten(&json["operator"], &mut conditions, &file, &mut rule);
    let mut made = Conditions::default();
    for operator in conditions {
        made.read(operator, &file, &mut rule);
    }
    made.write(&mut rule);
    Ok(Read {
        called,
        is_first: verdict != "allow" || json["precedence"] == true,
        rule,
    })
}

/// The operators that all have to hold.
fn flatten<'a>(
    operator: &'a Value,
    into: &mut Vec<&'a Value>,
    file: &File<'_>,
    rule: &mut AppRule,
) {
    if text(operator, "type") != "list" {
        into.push(operator);
        return;
    }
    let Some(list) = operator["list"].as_array() else {
        let place = file.place("\"list\"");
        rule.missing
            .push(format!("{place}: an operator of type list without a list"));
        return;
    };
    for operator in list {
        if into.len() >= MAX_OPERATORS {
            rule.missing.push(format!(
                "{}: more than {MAX_OPERATORS} operators",
                file.name
            ));
            return;
        }
        into.push(operator);
    }
}

#[derive(Default)]
struct Conditions {
    peers: Option<Vec<String>>,
    ports: Option<Vec<String>>,
    kind: Option<&'static str>,
    keys: BTreeSet<&'static str>,
}

impl Conditions {
    fn read(&mut self, operator: &Value, file: &File<'_>, rule: &mut AppRule) {
        let (kind, operand, data) = (
            text(operator, "type"),
            text(operator, "operand"),
            text(operator, "data"),
        );
        let shown: String = data.chars().take(128).collect();
        let place = file.place(&format!("{operand:?}"));
        let mut missing = |why: &str| {
            rule.missing
                .push(format!("{place}: {operand} {kind} {shown:?}: {why}"));
        };
        match (operand, kind) {
            ("true", _) => (),
            ("process.path", "simple") if data.starts_with('/') => {
                self.once("path", data.to_owned(), rule, &place);
            }
            ("user.id" | "user.name", "simple") if !data.is_empty() => {
                self.once("user", data.to_owned(), rule, &place);
            }
            ("dest.ip", "simple") => match data.parse::<IpAddr>() {
                Ok(addr) => self.peer(vec![Prefix::host(addr).to_string()], rule, &place),
                Err(_) => missing("it is no address"),
            },
            ("dest.host", "simple") if is_host_name(data) => {
                self.peer(vec![format!("name:{data}")], rule, &place);
            }
            ("dest.network", _) => match networks(data) {
                Some(networks) => self.peer(networks, rule, &place),
                None => missing("it is no network in CIDR form, and no alias that is known"),
            },
            ("dest.port", "simple" | "range") => match ports(data) {
                Some(range) if self.ports.is_none() => self.ports = Some(vec![range]),
                Some(_) => missing("a second condition on the port"),
                None => missing("it is no port, and no range of ports"),
            },
            ("protocol", "simple") => {
                let word = data.trim_end_matches('6').to_ascii_lowercase();
                let known = ["tcp", "udp", "icmp"]
                    .into_iter()
                    .find(|known| *known == word);
                match known {
                    Some(word) if self.kind.is_none_or(|kind| kind == word) => {
                        self.kind = Some(word)
                    }
                    _ => missing("it is none of tcp, udp and icmp"),
                }
            }
            ("process.hash.md5" | "process.hash.sha1", _) => {
                missing(
                    "weir knows programs by SHA-256: weir app hash PATH prints it, for exe or object",
                );
            }
            ("process.command", _) => {
                missing("arguments are a program's own word; script names that of an interpreter")
            }
            ("lists.ips" | "lists.nets", _) => {
                missing("a [list.NAME] with file = has such lists, and to = [\"list:NAME\"]")
            }
            (_, "regexp") => missing("weir has no regular expressions in rules about programs"),
            _ => missing("weir has no such condition"),
        }
    }

    fn once(&mut self, key: &'static str, value: String, rule: &mut AppRule, place: &str) {
        match self.keys.insert(key) {
            true => rule.set(key, value),
            false => rule
                .missing
                .push(format!("{place}: a second condition on {key}")),
        }
    }

    fn peer(&mut self, peers: Vec<String>, rule: &mut AppRule, place: &str) {
        match self.peers {
            None => self.peers = Some(peers),
            Some(_) => rule
                .missing
                .push(format!("{place}: a second condition on the peer")),
        }
    }

    fn write(self, rule: &mut AppRule) {
        match self.peers {
            Some(peers) => rule.list("to", peers),
            None => rule.set("direction", "out"),
        }
        match (self.ports, self.kind) {
            (Some(_), Some("icmp")) => rule.missing.push("a port of ICMP".to_owned()),
            (Some(ports), Some(kind)) => {
                rule.list(
                    "ports",
                    ports.into_iter().map(|range| format!("{range}/{kind}")),
                );
            }
            (Some(ports), None) => rule.list("ports", ports),
            (None, Some(kind)) => rule.set("protocols", kind),
            (None, None) => (),
        }
    }
}

fn networks(data: &str) -> Option<Vec<String>> {
    let alias: &[&str] = match data {
        "LAN" => &[
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "127.0.0.0/8",
            "::1",
            "fc00::/7",
        ],
        "MULTICAST" => &["224.0.0.0/4", "ff00::/8"],
        _ => {
            let (addr, len) = data.split_once('/')?;
            let prefix = Prefix::new(addr.parse().ok()?, len.parse().ok()?)?;
            return Some(vec![prefix.to_string()]);
        }
    };
    Some(alias.iter().map(|network| (*network).to_owned()).collect())
}

fn ports(data: &str) -> Option<String> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match data.split_once('-') {
        None => port(data).map(|port| port.to_string()),
        Some((low, high)) => {
            let (low, high) = (port(low)?, port(high)?);
            (low <= high).then(|| format!("{low}-{high}"))
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(fine);
    name.len() <= 253 && name.split('.').all(label) && name.parse::<IpAddr>().is_err()
}

#[cfg(test)]
mod tests;
