//! `[decoy]`: which ports nobody serves, and what a visit costs.

use std::time::Duration;

use weir_core::{
    PortRange, Protocol,
    decoy::{DecoyPorts, Entry},
    policy::{BanTime, Increment, JailLimits},
};

use super::{HostFacts, JailConfig, reader::Section};

const MINUTE: Duration = Duration::from_secs(60);
const WEEK: Duration = Duration::from_secs(7 * 86_400);
const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A checked `[decoy]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoyConfig {
    /// Which ports.
    pub ports: DecoyPorts,
    /// As typed, to be shown.
    pub typed: Vec<String>,
    /// How long a visitor is banned.
    pub limits: JailLimits,
    /// What makes one.
    pub proof: Proof,
}

/// What a ban needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A completed handshake: the address is real.
    Handshake,
    /// One packet, which anybody can send in anybody's name.
    None,
}

impl Proof {
    const WORDS: [(&str, Self); 2] = [("handshake", Self::Handshake), ("none", Self::None)];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::None => "none",
        }
    }
}

pub(super) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    jails: &[JailConfig],
    warnings: &mut Vec<String>,
) -> Option<DecoyConfig> {
    const PORTS: &str = "a list of ports such as [\"23/tcp\", \"6000-6010/tcp\", \"!22/tcp\"]";
    let mut section = root.section("decoy")?;
    let line = section.line();
    let listed = section.list("ports", PORTS);
    let (line, typed) = listed.map_or((line, None), |at| (at.line, Some(at.value)));
    let mut entries = Vec::new();
    for entry in typed.iter().flatten() {
        match entry.value.parse::<Entry>() {
            Ok(parsed) => entries.push(parsed),
            Err(error) => section.error(entry.line, format!("ports in [decoy]: {error}")),
        }
    }
    let well_formed = typed.as_ref().is_some_and(|t| t.len() == entries.len());
    let ports = DecoyPorts::new(&entries);
    if ports.is_empty() && (well_formed || typed.is_none()) {
        section.error(
            line,
            format!("ports in [decoy] names none; allowed: {PORTS}"),
        );
    }
    refuse_used(&section, line, &ports, host, jails);

    let mut limits = JailLimits {
        max_retry: 1,
        find_time: Duration::from_secs(3600),
        ban_time: BanTime::For(15 * MINUTE),
        increment: Some(Increment {
            factor: 2.0,
            max: WEEK,
        }),
        ..JailLimits::default()
    };
    if let Some(at) = section.duration_or_forever("ban_time", MINUTE..=YEARS, true) {
        limits.ban_time = at.value.map_or(BanTime::Never, BanTime::For);
    }
    if let Some(mut increment) = section.section("increment") {
        limits.increment = Some(Increment {
            factor: increment.number("factor", 1.0..=100.0).unwrap_or(2.0),
            max: increment
                .duration("max", MINUTE..=YEARS)
                .map_or(WEEK, |at| at.value),
        });
        increment.finish();
    }
    let proof = section
        .choice("proof", &Proof::WORDS)
        .map_or(Proof::Handshake, |at| at.value);
    if proof == Proof::None {
        warnings.push(
            "[decoy]: proof = \"none\" bans on a single packet, which anybody can send in a customer's name".to_owned(),
        );
    }
    section.finish();
    Some(DecoyConfig {
        ports,
        typed: typed.into_iter().flatten().map(|at| at.value).collect(),
        limits,
        proof,
    })
}

/// Ports that are somebody's cannot be decoys.
fn refuse_used(
    section: &Section<'_, '_>,
    line: usize,
    ports: &DecoyPorts,
    host: &dyn HostFacts,
    jails: &[JailConfig],
) {
    let served: Vec<_> = host
        .listeners()
        .into_iter()
        .filter(|(protocol, port)| ports.contains(*protocol, *port))
        .map(|(protocol, port)| PortRange {
            protocol,
            low: port,
            high: port,
        })
        .collect();
    if !served.is_empty() {
        section.error(
            line,
            format!(
                "ports in [decoy]: {} served on this host; leave out with {}",
                if served.len() == 1 {
                    format!("{} is", served[0])
                } else {
                    format!("{} are", joined(&served, ""))
                },
                joined(&served, "!")
            ),
        );
    }
    for jail in jails {
        let guarded: Vec<_> = jail
            .scope
            .ranges()
            .iter()
            .filter(|range| {
                [Protocol::Tcp, Protocol::Udp].into_iter().any(|protocol| {
                    matches!(range.protocol, Protocol::Any) | (range.protocol == protocol)
                        && (range.low..=range.high).any(|port| ports.contains(protocol, port))
                })
            })
            .copied()
            .collect();
        if !guarded.is_empty() {
            section.error(
                line,
                format!(
                    "ports in [decoy]: {} belong to a service, by [jail.{}]; leave out with {}",
                    joined(&guarded, ""),
                    jail.name,
                    joined(&guarded, "!")
                ),
            );
        }
    }
    let ephemeral = host.ephemeral_ports();
    if ephemeral
        .clone()
        .any(|port| ports.contains(Protocol::Udp, port))
    {
        section.error(
            line,
            format!(
                "ports in [decoy]: this host's own UDP questions begin at ports {0}-{1}, so answers to them would be taken for visits; allowed for udp: other ports (leave out with \"!{0}-{1}/udp\")",
                ephemeral.start(),
                ephemeral.end()
            ),
        );
    }
}

fn joined(ranges: &[PortRange], before: &str) -> String {
    const SHOWN: usize = 8;
    let quote = if before.is_empty() { "" } else { "\"" };
    let mut text: Vec<_> = ranges
        .iter()
        .take(SHOWN)
        .map(|range| format!("{quote}{before}{range}{quote}"))
        .collect();
    if ranges.len() > SHOWN {
        text.push(format!("{} more", ranges.len() - SHOWN));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigErrors, tests::Lab};

    fn lab() -> Lab {
        Lab {
            has_file: |_| false,
            listeners: [
                (Protocol::Tcp, 22),
                (Protocol::Tcp, 443),
                (Protocol::Udp, 53),
            ]
            .into(),
            ephemeral: 40_000..=50_000,
            ..Lab::default()
        }
    }

    fn check(text: &str) -> Result<Config, ConfigErrors> {
        Config::check(Path::new("weir.toml"), text, &lab())
    }

    fn decoy(text: &str) -> DecoyConfig {
        let config = check(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        config.decoy.expect("there is a section")
    }

    #[test]
    fn defaults_and_words_are_read() {
        let short = decoy("[decoy]\nports = [\"23/tcp\"]");
        assert_eq!(short.limits.ban_time, BanTime::For(15 * MINUTE));
        let week = Some(Increment {
            factor: 2.0,
            max: WEEK,
        });
        assert_eq!(short.limits.increment, week);
        assert_eq!((short.limits.max_retry, short.proof), (1, Proof::Handshake));
        assert!(check("").unwrap().decoy.is_none());

        let text = "[decoy]\nports = [\"1-1024/tcp\", \"!22/tcp\", \"!443/tcp\", \"161/udp\"]\n\
                    ban_time = \"forever\"\nproof = \"none\"\nincrement = { factor = 3, max = \"2w\" }";
        let long = decoy(text);
        assert_eq!(long.ports.len(), 1023);
        assert_eq!(long.typed[1], "!22/tcp");
        assert_eq!(long.limits.ban_time, BanTime::Never);
        assert_eq!(long.limits.increment.unwrap().max, 2 * WEEK);
        assert_eq!(long.proof, Proof::None);
        let warnings = check(text).unwrap().warnings.join("\n");
        assert!(warnings.contains("in a customer's name"), "{warnings}");
        // Nothing but bans by hand? No: decoys ban as well.
        assert!(!warnings.contains("only bans made by hand"), "{warnings}");
    }

    #[test]
    fn mistakes_are_named() {
        for (words, told) in [
            ("", "weir.toml:1: ports in [decoy] names none; allowed: "),
            ("ports = []", ":2: ports in [decoy] names none; allowed: "),
            (
                "ports = [\"23/tcp\", \"!23/tcp\"]",
                ":2: ports in [decoy] names none",
            ),
            (
                "ports = [\"23/tcp\",\n\"telnet\"]",
                ":3: ports in [decoy]: \"telnet\" is not a decoy port; allowed: ",
            ),
            (
                "ports = [\"1-1024/tcp\"]",
                ":2: ports in [decoy]: 22/tcp, 443/tcp are served on this host; leave out with \"!22/tcp\", \"!443/tcp\"",
            ),
            (
                "ports = [\"53\"]",
                ":2: ports in [decoy]: 53/udp is served on this host; leave out with \"!53/udp\"",
            ),
            (
                "ports = [\"45000/udp\"]",
                ":2: ports in [decoy]: this host's own UDP questions begin at ports 40000-50000",
            ),
            (
                "ports = [\"!53/udp\"]",
                "leave out with \"!40000-50000/udp\"",
            ),
            (
                "ports = [\"25/tcp\"]\n[jail.sshd]\nports = [\"20-30\"]",
                ":2: ports in [decoy]: 20-30 belong to a service, by [jail.sshd]",
            ),
            (
                "ports = [\"23/tcp\"]\nban_time = \"1s\"",
                ":3: ban_time in [decoy] is ",
            ),
            (
                "ports = [\"23/tcp\"]\nproof = \"maybe\"",
                ":3: proof in [decoy] is \"maybe\"; allowed: ",
            ),
            (
                "ports = [\"23/tcp\"]\nincrement = { factor = 0.5 }",
                "factor in [decoy.increment]",
            ),
            ("port = [\"23/tcp\"]", "unknown key \"port\" in [decoy]"),
        ] {
            let error = check(&format!("[decoy]\n{words}")).expect_err(words);
            let error = error.to_string();
            assert!(error.contains(told), "{words}: {error}");
        }
        // TCP's own connections are told apart, and so may begin at decoys.
        assert_eq!(decoy("[decoy]\nports = [\"45000/tcp\"]").ports.len(), 1);
    }
}
