//! Rules made of what programs have done (`learn`), as the text of a configuration file
//! that an administrator reads, changes and puts into conf.d. Programs name themselves:
//! their texts are escaped, and a rule is about a digest.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::IpAddr,
};

use weir_core::{ban::MAX_NAME, text::escape};

use crate::{
    Digest, MAX_PEERS, MAX_RULES, Protocols,
    learn::{FlowKey, LearnedProgram, ProgramKey},
    policy::MAX_PORTS,
};

/// How narrow rules are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// The ports and the peers that were seen.
    ToPeers,
    /// The ports that were seen, whoever the peer is.
    ToPorts,
}

/// What the rules are to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Whether they name peers, or ports alone.
    pub narrow: Narrow,
    /// They name the whole program, in each form that was seen, and not its executable
    /// alone: no other library may be mapped.
    pub is_whole: bool,
    /// Those of interpreters name the script, too.
    pub by_script: bool,
    /// What holds where no rule does, and for programs that are not known, is dropped; else
    /// that is left to another file.
    pub has_defaults: bool,
}

/// The rules as text, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesText {
    /// A file for conf.d.
    pub text: String,
    /// Rules in it; more than [`MAX_RULES`] are refused by the reader.
    pub rules: usize,
    /// Programs without a digest to be trusted, which have no rule.
    pub left_out: usize,
}

/// What the head of the file begins with, by which it is known again.
pub const MADE_BY: &str = "# Made by weir app enforce of what programs did while weir learned.";

impl RulesText {
    /// Are they more than a configuration may have?
    pub fn is_too_many(&self) -> bool {
        self.rules > MAX_RULES
    }
}

/// Peers, and the ports at which exactly these were seen.
type Group = (PeerSet, Vec<Option<u16>>);

/// `None`: anybody.
type PeerSet = Option<BTreeSet<IpAddr>>;

/// A rule for each program and each set of peers; everything else is dropped.
pub fn rules<'a>(
    programs: impl IntoIterator<Item = &'a LearnedProgram>,
    shape: Shape,
) -> RulesText {
    let mut made = RulesText {
        text: format!(
            "{MADE_BY} The next one\n\
             # replaces this file; rules of your own belong into another one. A program that was not\n\
             # seen, or does something else, is dropped.\n"
        ),
        rules: 0,
        left_out: 0,
    };
    if shape.has_defaults {
        made.text
            .push_str("[app]\ndefault = \"drop\"\nunknown = \"drop\"\n");
    }
    let mut names = BTreeSet::new();
    for program in by_executable(programs, shape.by_script).values() {
        let path = escape(&program.program.path);
        let who = match (program.program.digest, shape.is_whole) {
            (None, _) => {
                made.leave_out(&path, "its executable has no digest to be trusted");
                continue;
            }
            (Some(_), true) if program.aggregates.is_empty() => {
                made.leave_out(&path, "a file of it has no digest to be trusted");
                continue;
            }
            (Some(_), true) => {
                let forms: Vec<_> = program.aggregates.iter().map(Digest::to_string).collect();
                format!("aggregate = [\"{}\"]", forms.join("\", \""))
            }
            (Some(digest), false) => format!("exe = \"{digest}\""),
        };
        made.text.push('\n');
        let mut head = path;
        if let Some(script) = &program.program.script {
            let _ = write!(head, " {}", escape(script));
        }
        if let Some(package) = &program.package {
            let _ = write!(head, ", of package {}", escape(package));
        }
        made.note(&head);
        for chain in &program.parents {
            made.note(&format!("  started by {}", escape(chain)));
        }
        if shape.is_whole && program.has_other_forms {
            made.note("  it had more forms than are remembered: others are dropped");
        }
        for (is_outward, protocol, group) in groups(program, shape.narrow) {
            let name = name(&program.program.path, &mut names);
            let script = program.program.script.as_deref();
            made.rule((&name, &who, script), is_outward, protocol, &group);
        }
    }
    made
}

/// What each executable did, whichever script it ran unless that is asked for.
fn by_executable<'a>(
    programs: impl IntoIterator<Item = &'a LearnedProgram>,
    by_script: bool,
) -> BTreeMap<ProgramKey, LearnedProgram> {
    let mut all: BTreeMap<ProgramKey, LearnedProgram> = BTreeMap::new();
    for program in programs {
        let mut one = program.clone();
        if !by_script {
            one.program.script = None;
        }
        match all.get_mut(&one.program) {
            Some(known) => known.add_all(&one),
            None => {
                all.insert(one.program.clone(), one);
            }
        }
    }
    all
}

impl RulesText {
    fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "# {text}");
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.left_out += 1;
        self.note(&format!("{path}: no rule, because {why}"));
    }

    fn rule(
        &mut self,
        (name, who, script): (&str, &str, Option<&str>),
        is_outward: bool,
        protocol: Protocols,
        (peers, ports): &Group,
    ) {
        self.rules += 1;
        let _ = write!(
            self.text,
            "[app.rules.{name}]\nverdict = \"allow\"\n{who}\n"
        );
        if let Some(script) = script {
            let _ = writeln!(self.text, "script = {}", quoted(script));
        }
        let list = |all: &mut dyn Iterator<Item = String>| {
            let all: Vec<String> = all.map(|one| format!("\"{one}\"")).collect();
            all.join(", ")
        };
        match peers {
            Some(peers) => {
                let key = if is_outward { "to" } else { "from" };
                let peers = list(&mut peers.iter().map(ToString::to_string));
                let _ = writeln!(self.text, "{key} = [{peers}]");
            }
            None => {
                let direction = if is_outward { "out" } else { "in" };
                let _ = writeln!(self.text, "direction = \"{direction}\"");
            }
        }
        let words: Vec<&str> = protocol.names().collect();
        let word = words.join("");
        let ports: Vec<u16> = ports.iter().copied().flatten().collect();
        match ports.is_empty() {
            true => {
                let _ = writeln!(self.text, "protocols = \"{word}\"");
            }
            false => {
                let ports = list(&mut ports.iter().map(|port| format!("{port}/{word}")));
                let _ = writeln!(self.text, "ports = [{ports}]");
            }
        }
    }
}

/// The flows of a program as rules: ports with the same peers are one.
fn groups(program: &LearnedProgram, narrow: Narrow) -> Vec<(bool, Protocols, Group)> {
    let mut peers: BTreeMap<FlowKey, PeerSet> = BTreeMap::new();
    for key in program.flows.keys() {
        let has_ports = Protocols::TCP.and(Protocols::UDP).has(key.protocol);
        let port = key.port.filter(|port| has_ports && *port != 0);
        let of = FlowKey {
            peer: None,
            port,
            ..*key
        };
        let known = peers.entry(of).or_insert_with(|| Some(BTreeSet::new()));
        // Of these the kernel knows no peer yet when it decides.
        let has_peers = !Protocols::RAW.and(Protocols::OTHER).has(key.protocol);
        match (key.peer.filter(|_| has_peers), narrow, &mut *known) {
            (Some(peer), Narrow::ToPeers, Some(known)) => {
                known.insert(peer);
            }
            _ => *known = None,
        }
    }
    let mut by_peers: BTreeMap<(bool, Protocols, bool, PeerSet), Vec<Option<u16>>> =
        BTreeMap::new();
    for (key, peers) in peers {
        let of = (key.is_outward, key.protocol, key.port.is_some(), peers);
        by_peers.entry(of).or_default().push(key.port);
    }
    let mut groups = Vec::new();
    for ((is_outward, protocol, _, peers), ports) in by_peers {
        let sets: Vec<PeerSet> = match peers {
            None => vec![None],
            Some(peers) => {
                let peers: Vec<_> = peers.into_iter().collect();
                let parts = peers.chunks(MAX_PEERS);
                parts
                    .map(|part| Some(part.iter().copied().collect()))
                    .collect()
            }
        };
        for set in sets {
            for ports in ports.chunks(MAX_PORTS) {
                groups.push((is_outward, protocol, (set.clone(), ports.to_vec())));
            }
        }
    }
    groups
}

/// A name that no rule has yet, by that of the executable.
fn name(path: &str, names: &mut BTreeSet<String>) -> String {
    let base = path.rsplit('/').next().unwrap_or_default();
    let base: String = base
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(MAX_NAME - "learned--000000".len())
        .collect();
    let base = if base.is_empty() {
        "program".to_owned()
    } else {
        base
    };
    let numbered = (1..).map(|number| format!("learned-{base}-{number}"));
    let name = numbered.into_iter().find(|name| !names.contains(name));
    let name = name.expect("numbers do not end");
    names.insert(name.clone());
    name
}

/// A text as TOML's basic string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            // Control characters, and what reorders what is shown.
            c if escape(c.encode_utf8(&mut [0; 4])).chars().ne([c]) => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Object, Program, Verdict,
        config::tests::parsed,
        learn::{Learned, Observation, ProgramKey},
    };

    fn seen(path: &str, number: u8, is_outward: bool, peer: &str, port: u16) -> Observation {
        Observation {
            at: 1,
            program: ProgramKey {
                path: path.to_owned(),
                digest: (number > 0).then_some(Digest([number; 32])),
                script: None,
            },
            is_at_path: true,
            aggregate: Some(Digest([number + 100; 32])),
            package: None,
            parents: vec!["/bin/sh\n[app.rules.evil]".to_owned()],
            cgroup: "/".to_owned(),
            uid: 0,
            is_denied: false,
            is_outward,
            protocol: if port == 53 {
                Protocols::UDP
            } else {
                Protocols::TCP
            },
            peer: peer.parse().unwrap(),
            port,
        }
    }

    const NARROW: Shape = Shape {
        narrow: Narrow::ToPeers,
        is_whole: false,
        by_script: false,
        has_defaults: true,
    };
    const WIDE: Shape = Shape {
        narrow: Narrow::ToPorts,
        ..NARROW
    };

    /// What was seen is allowed by the rules that were made of it, and nothing else.
    #[test]
    fn rules_allow_what_was_seen_and_nothing_else() {
        let mut learned = Learned::default();
        for seen in [
            seen("/usr/bin/curl", 1, true, "192.0.2.1", 443),
            seen("/usr/bin/curl", 1, true, "2001:db8::1", 443),
            seen("/usr/bin/curl", 1, true, "192.0.2.1", 80),
            seen("/usr/bin/curl", 1, true, "192.0.2.53", 53),
            seen(
                "/usr/sbin/nginx \"\n[app.rules.x]\"",
                2,
                false,
                "198.51.100.7",
                8080,
            ),
            seen("/fuse/tool", 0, true, "192.0.2.1", 443),
        ] {
            learned.add(seen);
        }
        let made = rules(learned.programs(), NARROW);
        assert_eq!((made.rules, made.left_out), (4, 1), "{}", made.text);
        let (config, warnings) =
            parsed(&made.text).unwrap_or_else(|e| panic!("{e}\n{}", made.text));
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((config.rules.len(), config.default), (4, Verdict::Drop));
        let policy = crate::decision::tests::compiled(&config);
        let allows = |number: u8, is_outward: bool, peer: &str, port: u16| {
            let digest = Some(Digest([number; 32]));
            let exe = Object {
                path: "/x".into(),
                digest,
            };
            let program = Program {
                exe: Some(exe.clone()),
                objects: vec![exe],
                ..Program::default()
            };
            let holder = crate::decision::Holder::Known(policy.met_by(&program));
            let flow = crate::decision::Flow {
                is_outward,
                protocol: if port == 53 {
                    Protocols::UDP
                } else {
                    Protocols::TCP
                },
                peer: peer.parse().unwrap(),
                port: Some(port),
                netns: 1,
            };
            policy.decide(&[holder], &flow).verdict == Verdict::Allow
        };
        for (number, is_outward, peer, port, is) in [
            (1, true, "192.0.2.1", 443, true),
            (1, true, "2001:db8::1", 443, true),
            (1, true, "192.0.2.1", 80, true),
            (1, true, "192.0.2.53", 53, true),
            (1, true, "2001:db8::1", 80, false),
            (1, true, "192.0.2.2", 443, false),
            (1, false, "192.0.2.1", 443, false),
            (2, false, "198.51.100.7", 8080, true),
            (2, true, "198.51.100.7", 8080, false),
            (3, true, "192.0.2.1", 443, false),
        ] {
            assert_eq!(
                allows(number, is_outward, peer, port),
                is,
                "{number} {peer} {port}"
            );
        }
        let wide = rules(learned.programs(), WIDE);
        let (config, _) = parsed(&wide.text).unwrap();
        assert_eq!(config.rules.len(), 3, "{}", wide.text);
        assert!(config.rules.iter().all(|rule| rule.place.to.is_none()));
    }

    /// An interpreter is one program unless scripts are asked for.
    #[test]
    fn rules_name_the_executable_the_whole_or_the_script() {
        let mut learned = Learned::default();
        for (script, port) in [(None, 80), (Some("/opt/a.py"), 80), (Some("/opt/b.py"), 81)] {
            let mut seen = seen("/usr/bin/python3", 1, true, "192.0.2.1", port);
            seen.program.script = script.map(str::to_owned);
            seen.aggregate = Some(Digest([port as u8; 32]));
            learned.add(seen);
        }
        let mut unread = seen("/usr/bin/perl", 2, true, "192.0.2.1", 80);
        unread.aggregate = None;
        learned.add(unread);
        let of = |shape| {
            let made = rules(learned.programs(), shape);
            let (config, _) = parsed(&made.text).unwrap_or_else(|e| panic!("{e}\n{}", made.text));
            (made, config)
        };
        let (made, config) = of(WIDE);
        assert_eq!((made.rules, made.left_out), (2, 0), "{}", made.text);
        assert_eq!(config.rules[1].place.ports.len(), 2, "{}", made.text);
        let (made, config) = of(Shape {
            is_whole: true,
            has_defaults: false,
            ..WIDE
        });
        assert_eq!((made.rules, made.left_out), (1, 1), "{}", made.text);
        assert_eq!(config.default, Verdict::Allow);
        let forms = [Digest([80; 32]), Digest([81; 32])];
        let asks = &config.rules[0].who[0].criterion;
        assert_eq!(*asks, crate::Criterion::Aggregate(forms.into()));
        let (made, config) = of(Shape {
            by_script: true,
            ..WIDE
        });
        assert_eq!(made.rules, 4, "{}", made.text);
        assert_eq!(config.rules.iter().filter(|r| r.asks_script()).count(), 2);
    }

    /// Nobody knows the peer of a raw socket when it is made.
    #[test]
    fn rules_about_raw_sockets_name_no_peer() {
        let mut learned = Learned::default();
        let mut raw = seen("/usr/bin/ping", 1, true, "::", 0);
        raw.protocol = Protocols::RAW;
        learned.add(raw);
        let made = rules(learned.programs(), NARROW);
        let (config, _) = parsed(&made.text).unwrap();
        assert_eq!(config.rules[0].place.to, None, "{}", made.text);
        assert_eq!(config.rules[0].place.protocols, Protocols::RAW);
    }

    #[test]
    fn names_of_rules_are_no_text_of_programs() {
        let mut names = BTreeSet::new();
        assert_eq!(
            name("/usr/bin/python3.11", &mut names),
            "learned-python3_11-1"
        );
        assert_eq!(name("/opt/python3.11", &mut names), "learned-python3_11-2");
        assert_eq!(name("", &mut names), "learned-program-1");
        let long = name(&"ü]\n".repeat(100), &mut names);
        assert!(long.len() <= MAX_NAME && long.bytes().all(weir_config::values::name_byte));
        assert_eq!(
            quoted("a\"b\\c\n\u{202e}"),
            "\"a\\\"b\\\\c\\U0000000A\\U0000202E\""
        );
    }
}
