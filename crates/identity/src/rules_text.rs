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
    learn::{FlowKey, LearnedProgram},
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

/// The rules as text, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesText {
    /// A file for conf.d.
    pub text: String,
    /// Rules in it; more than [`MAX_RULES`] are refused by the reader.
    pub rules: usize,
    /// Programs without a digest, which have no rule.
    pub left_out: usize,
}

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
    narrow: Narrow,
) -> RulesText {
    let mut made = RulesText {
        text: "# Made of what programs did while weir learned (weir app enforce). Read it before it is in\n\
               # force: a program that was not seen, or does something else, is dropped.\n\
               [app]\ndefault = \"drop\"\nunknown = \"drop\"\n"
            .to_owned(),
        rules: 0,
        left_out: 0,
    };
    let mut names = BTreeSet::new();
    for program in programs {
        let path = escape(&program.program.path);
        let Some(digest) = program.program.digest else {
            made.left_out += 1;
            made.note(&format!(
                "{path}: no rule, because its executable has no digest to be trusted"
            ));
            continue;
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
        for (is_outward, protocol, group) in groups(program, narrow) {
            let name = name(&program.program.path, &mut names);
            made.rule(
                &name,
                digest,
                program.program.script.as_deref(),
                is_outward,
                protocol,
                &group,
            );
        }
    }
    made
}

impl RulesText {
    fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "# {text}");
    }

    fn rule(
        &mut self,
        name: &str,
        digest: Digest,
        script: Option<&str>,
        is_outward: bool,
        protocol: Protocols,
        (peers, ports): &Group,
    ) {
        self.rules += 1;
        let _ = write!(
            self.text,
            "[app.rules.{name}]\nverdict = \"allow\"\nexe = \"{digest}\"\n"
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
        let has_ports = Protocols::TCP
            .and(Protocols::UDP)
            .has(Protocols(key.protocol));
        let port = key.port.filter(|port| has_ports && *port != 0);
        let of = FlowKey {
            peer: None,
            port,
            ..*key
        };
        let known = peers.entry(of).or_insert_with(|| Some(BTreeSet::new()));
        match (key.peer, narrow, &mut *known) {
            (Some(peer), Narrow::ToPeers, Some(known)) => {
                known.insert(peer);
            }
            _ => *known = None,
        }
    }
    let mut by_peers: BTreeMap<(bool, u8, bool, PeerSet), Vec<Option<u16>>> = BTreeMap::new();
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
                groups.push((
                    is_outward,
                    Protocols(protocol),
                    (set.clone(), ports.to_vec()),
                ));
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
        .take(MAX_NAME - 6)
        .collect();
    let base = if base.is_empty() {
        "program".to_owned()
    } else {
        base
    };
    let numbered = (1..).map(|number| format!("{base}-{number}"));
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
            package: None,
            parents: vec!["/bin/sh\n[app.rules.evil]".to_owned()],
            cgroup: "/".to_owned(),
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
        let made = rules(learned.programs(), Narrow::ToPeers);
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
        let wide = rules(learned.programs(), Narrow::ToPorts);
        let (config, _) = parsed(&wide.text).unwrap();
        assert_eq!(config.rules.len(), 3, "{}", wide.text);
        assert!(config.rules.iter().all(|rule| rule.place.to.is_none()));
    }

    #[test]
    fn names_of_rules_are_no_text_of_programs() {
        let mut names = BTreeSet::new();
        assert_eq!(name("/usr/bin/python3.11", &mut names), "python3_11-1");
        assert_eq!(name("/opt/python3.11", &mut names), "python3_11-2");
        assert_eq!(name("", &mut names), "program-1");
        let long = name(&"ü]\n".repeat(100), &mut names);
        assert!(long.len() <= MAX_NAME && long.bytes().all(weir_config::values::name_byte));
        assert_eq!(
            quoted("a\"b\\c\n\u{202e}"),
            "\"a\\\"b\\\\c\\U0000000A\\U0000202E\""
        );
    }
}
