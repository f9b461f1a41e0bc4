//! The rules of DAF, the application firewall `app-fw`, as `[app]`: commands of its
//! controller `ctl-fw`, one a line as in the script that sets them up (DAF itself keeps
//! no file of rules), and the policies of `app-fw` if its command line is among them.
//!
//! DAF's chains are directions here: what OUTPUT judges begins at the program, what INPUT
//! judges at its peer. Rules are asked in order, and deny if any holder of the socket
//! meets them, as in weir.

use std::{collections::BTreeSet, net::IpAddr};

use weir_core::Prefix;

use crate::{Error, app_rule::AppRule, toml_text::Toml};

/// The most commands that are read: weir has room for as many rules.
const MAX_RULES: usize = 1024;
const MAX_LINES: usize = 65_536;

/// What a script of `ctl-fw` commands becomes.
///
/// # Errors
/// It has more lines or rules than anybody writes, or none of its lines is a command.
pub fn configuration(name: &str, text: &str) -> Result<String, Error> {
    let mut daf = Daf::default();
    for (number, line) in text.lines().enumerate() {
        if number >= MAX_LINES {
            return Err(Error(format!("more than {MAX_LINES} lines")));
        }
        daf.line(&format!("{name}:{}", number + 1), line);
        if daf.rules.len() > MAX_RULES {
            return Err(Error(format!(
                "more than {MAX_RULES} rules; weir has room for as many"
            )));
        }
    }
    if daf.commands == 0 {
        return Err(Error(
            "none of its lines is a command of ctl-fw or app-fw".to_owned(),
        ));
    }
    Ok(daf.write())
}

#[derive(Default)]
struct Daf {
    rules: Vec<AppRule>,
    remarks: Vec<String>,
    commands: usize,
    /// Policies of OUTPUT and INPUT: is it DROP?
    drops: [bool; 2],
}

/// The arguments of one `ctl-fw -A`.
#[derive(Default)]
struct Typed<'a> {
    source: Option<(bool, &'a str)>,
    destination: Option<(bool, &'a str)>,
    protocol: Option<(bool, &'a str)>,
    source_port: Option<(bool, &'a str)>,
    destination_port: Option<(bool, &'a str)>,
    single: Option<(bool, &'a str)>,
    aggregate: Option<(bool, &'a str)>,
    verdict: Option<&'a str>,
    chain: Option<&'a str>,
    namespace: Option<&'a str>,
    level: bool,
    /// The options that are not known.
    others: Vec<&'a str>,
}

impl Daf {
    fn remark(&mut self, place: &str, text: &str) {
        self.remarks.push(format!("{place}: {text}"));
    }

    fn line(&mut self, place: &str, line: &str) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        let Some(words) = shlex::split(line) else {
            self.remark(place, "not read: a quotation mark in it has no second one");
            return;
        };
        // Behind `sudo`, or a path.
        let is_program = |word: &String, name: &str| word.rsplit('/').next() == Some(name);
        for (name, is_controller) in [("ctl-fw", true), ("app-fw", false)] {
            let Some(at) = words.iter().position(|word| is_program(word, name)) else {
                continue;
            };
            self.commands += 1;
            let words: Vec<&str> = words[at + 1..].iter().map(String::as_str).collect();
            match is_controller {
                true => self.command(place, &words),
                false => self.firewall(place, &words),
            }
            return;
        }
        self.remark(place, "not read: it is no command of ctl-fw or app-fw");
    }

    fn firewall(&mut self, place: &str, words: &[&str]) {
        let mut words = split_equals(words).into_iter();
        while let Some(word) = words.next() {
            let direction = match word {
                "--pol-out" => 0,
                "--pol-in" => 1,
                "--pol-fwd" => {
                    words.next();
                    self.remark(place, "--pol-fwd is not carried over: weir judges sockets of this host, containers included, and forwards nothing by program");
                    continue;
                }
                "-t" | "-s" | "-f" | "-i" => {
                    self.remark(
                        place,
                        &format!("{word} is not carried over: it is about signed packets"),
                    );
                    continue;
                }
                // Queues, batches and buffers: there is no queue here.
                _ => continue,
            };
            match words.next() {
                Some("DROP") => self.drops[direction] = true,
                Some("ACCEPT") => self.drops[direction] = false,
                other => {
                    let other = other.unwrap_or_default();
                    self.remark(place, &format!("{word} {other}: not read; ACCEPT or DROP"));
                }
            }
        }
    }

    fn command(&mut self, place: &str, words: &[&str]) {
        let mut typed = Typed::default();
        let mut words = split_equals(words).into_iter();
        let (mut position, mut is_inverted) = (None, false);
        while let Some(word) = words.next() {
            match word {
                "-!" => {
                    is_inverted = !is_inverted;
                    continue;
                }
                "-A" => position = Some(self.rules.len()),
                "-L" => return,
                "-H" => return,
                "-I" | "-D" => {
                    let number = words.next().and_then(|word| word.parse::<usize>().ok());
                    let Some(number) = number else {
                        self.remark(place, &format!("not read: {word} without a number"));
                        return;
                    };
                    if word == "-I" {
                        position = Some(number.min(self.rules.len()));
                    } else if number < self.rules.len() {
                        let gone = self.rules.remove(number);
                        self.remark(place, &format!("deletes the rule of {}", gone.origin));
                        return;
                    } else {
                        self.remark(place, &format!("deletes rule {number}, which there is not"));
                        return;
                    }
                }
                _ => {
                    let mut value = || words.next().unwrap_or_default();
                    match word {
                        "-s" => typed.source = Some((is_inverted, value())),
                        "-d" => typed.destination = Some((is_inverted, value())),
                        "-p" => typed.protocol = Some((is_inverted, value())),
                        "--sport" => typed.source_port = Some((is_inverted, value())),
                        "--dport" => typed.destination_port = Some((is_inverted, value())),
                        "--sng-hash" => typed.single = Some((is_inverted, value())),
                        "--agg-hash" => typed.aggregate = Some((is_inverted, value())),
                        "-v" => typed.verdict = Some(value()),
                        "-c" => typed.chain = Some(value()),
                        "-n" => typed.namespace = Some(value()),
                        "-l" => {
                            value();
                            typed.level = true;
                        }
                        other => typed.others.push(other),
                    }
                }
            }
            is_inverted = false;
        }
        let Some(position) = position else {
            self.remark(place, "not read: neither -A nor -I nor -D");
            return;
        };
        match rule(place, &typed) {
            Ok(rule) => self.rules.insert(position, rule),
            Err(why) => self.remark(place, &format!("not carried over: {why}")),
        }
    }

    fn write(mut self) -> String {
        let mut toml = Toml::default();
        toml.note("Rules of DAF (ctl-fw) as weir's. Hashes stay what they are: SHA-256 of a mapped file, and over those of all files in the order of their paths.");
        for remark in &self.remarks {
            toml.note(remark);
        }
        toml.section("app");
        let [out, into] = self.drops;
        toml.set("default", if out || into { "drop" } else { "allow" });
        toml.set("unknown", if out || into { "drop" } else { "allow" });
        let mut names = BTreeSet::new();
        for rule in &mut self.rules {
            rule.named("daf", &mut names);
        }
        for rule in &self.rules {
            rule.write(&mut toml);
        }
        // One policy here, two there.
        if out != into {
            let mut rest = AppRule {
                origin: "the chain whose policy is ACCEPT".to_owned(),
                ..AppRule::default()
            };
            rest.named("daf-policy", &mut names);
            rest.set("verdict", "allow");
            rest.set("direction", if out { "in" } else { "out" });
            rest.write(&mut toml);
        }
        toml.finish()
    }
}

/// `--sport=80` as two words.
fn split_equals<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut split = Vec::new();
    for word in words {
        match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => split.extend([option, value]),
            _ => split.push(word),
        }
    }
    split
}

fn rule(place: &str, typed: &Typed<'_>) -> Result<AppRule, String> {
    let mut rule = AppRule {
        origin: place.to_owned(),
        ..AppRule::default()
    };
    rule.set(
        "verdict",
        match typed.verdict {
            Some("ACCEPT") => "allow",
            Some("DROP") => "drop",
            other => {
                return Err(format!(
                    "-v {}: ACCEPT or DROP is needed",
                    other.unwrap_or("is missing")
                ));
            }
        },
    );
    let is_outward = match typed.chain {
        Some("OUTPUT") => true,
        Some("INPUT") => false,
        other => {
            return Err(format!(
                "-c {}: INPUT or OUTPUT is needed",
                other.unwrap_or("is missing")
            ));
        }
    };
    let mut negated = Vec::new();
    for (key, typed) in [("object", typed.single), ("aggregate", typed.aggregate)] {
        let Some((is_not, digest)) = typed else {
            continue;
        };
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("{digest:?} is no SHA-256 of 64 hexadecimal digits"));
        }
        rule.set(key, digest.to_ascii_lowercase());
        if is_not {
            negated.push(key.to_owned());
            if key == "object" {
                rule.notes.push("-! --sng-hash: no mapped file has this hash. In DAF it held for every program with any other file.".to_owned());
            }
        }
    }
    let (peer, own) = match is_outward {
        true => (("to", typed.destination), ("-s", typed.source)),
        false => (("from", typed.source), ("-d", typed.destination)),
    };
    if let (key, Some((is_not, text))) = peer {
        let prefix = prefix(text).ok_or_else(|| format!("{text:?} is no network"))?;
        rule.list(key, [prefix.to_string()]);
        if is_not {
            negated.push(key.to_owned());
        }
    } else {
        rule.set("direction", if is_outward { "out" } else { "in" });
    }
    if let (option, Some((_, text))) = own {
        rule.missing
            .push(format!("{option} {text}, the address of this host"));
    }
    if let Some((_, text)) = typed.source_port {
        let option = "--sport";
        let whose = if is_outward {
            "the program"
        } else {
            "the peer"
        };
        rule.missing.push(format!(
            "{option} {text}, a port of {whose}, which is another one for each connection"
        ));
    }
    ports(&mut rule, typed.protocol, typed.destination_port)?;
    if let Some(file) = typed.namespace {
        if !file.starts_with('/') {
            return Err(format!("-n {file:?} is no file of a network namespace"));
        }
        rule.set("netns", file);
        if file.starts_with("/proc/") && file != "/proc/1/ns/net" {
            rule.notes.push("netns is that of one process and holds while it runs: unit or cgroup (\"docker-*.scope\") cover containers that start later".to_owned());
        }
    }
    if typed.level {
        rule.notes.push("-l has no effect, as in DAF".to_owned());
    }
    for other in &typed.others {
        rule.missing
            .push(format!("{other}, which is no option of ctl-fw"));
    }
    if !negated.is_empty() {
        rule.list("not", negated);
    }
    Ok(rule)
}

fn prefix(text: &str) -> Option<Prefix> {
    let (addr, mask) = text.split_once('/').unwrap_or((text, "32"));
    let addr: IpAddr = addr.parse().ok()?;
    let len = match mask.parse::<IpAddr>() {
        Ok(IpAddr::V4(mask)) => {
            let bits = mask.to_bits();
            (bits.leading_ones() == bits.count_ones()).then_some(bits.leading_ones() as u8)?
        }
        _ => mask.parse().ok()?,
    };
    Prefix::new(addr, len)
}

/// `-p` and the port of the rule as ports or kinds of sockets.
fn ports(
    rule: &mut AppRule,
    protocol: Option<(bool, &str)>,
    port: Option<(bool, &str)>,
) -> Result<(), String> {
    const KINDS: [&str; 5] = ["tcp", "udp", "icmp", "raw", "other"];
    let kinds: Vec<&str> = match protocol {
        None => Vec::new(),
        Some((is_not, text)) => {
            let kind = match text {
                "tcp" | "6" => "tcp",
                "udp" | "17" => "udp",
                "icmp" | "1" | "58" => "icmp",
                number if number.parse::<u8>().is_ok() => {
                    rule.missing.push(format!(
                        "-p {number}: \"other\" is every protocol but TCP, UDP and ICMP"
                    ));
                    "other"
                }
                other => return Err(format!("-p {other:?} is no protocol")),
            };
            KINDS
                .into_iter()
                .filter(|one| (*one == kind) != is_not)
                .collect()
        }
    };
    let Some((is_not, text)) = port else {
        if !kinds.is_empty() {
            rule.list("protocols", kinds.into_iter().map(str::to_owned));
        }
        return Ok(());
    };
    let number = text.parse::<u16>().ok().filter(|port| *port > 0);
    let number = number.ok_or_else(|| format!("{text:?} is no port"))?;
    let ranges: Vec<String> = match is_not {
        false => vec![number.to_string()],
        true => [(1, number - 1), (number.saturating_add(1), u16::MAX)]
            .into_iter()
            .filter(|(low, high)| low <= high && !(number == u16::MAX && *low == u16::MAX))
            .map(|(low, high)| {
                if low == high {
                    low.to_string()
                } else {
                    format!("{low}-{high}")
                }
            })
            .collect(),
    };
    let with_ports: Vec<&str> = kinds
        .iter()
        .copied()
        .filter(|k| ["tcp", "udp"].contains(k))
        .collect();
    if !kinds.is_empty() && with_ports.is_empty() {
        return Err(format!(
            "a port of a protocol without ports: {}",
            kinds.join(", ")
        ));
    }
    let both = with_ports.len() != 1;
    let typed = ranges.into_iter().map(|range| match both {
        true => range,
        false => format!("{range}/{}", with_ports[0]),
    });
    rule.list("ports", typed.collect::<Vec<_>>());
    Ok(())
}

#[cfg(test)]
mod tests;
