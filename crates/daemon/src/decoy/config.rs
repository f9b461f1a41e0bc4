//! `[decoy]`: which ports nobody serves, and what a visit costs.

use std::time::Duration;

use weir_config::manual::{
    FACTOR, Table,
    Usual::{Is, Required},
    key,
};
use weir_config::{Section, values::YEARS};
use weir_core::{
    PortRange, Protocol,
    decoy::{DecoyPorts, Entry},
    policy::{BanTime, Increment, JailLimits},
};

use crate::{host::HostFacts, jails::JailConfig};

/// `[decoy]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    Table {
        name: "decoy",
        about: "Decoy (honeypot) ports, which nobody serves: an address that completes a connection to one is banned on all ports.",
        needs: &[("ports", "[\"23/tcp\"]")],
        keys: &[
            key(
                "ports",
                Required,
                "The decoy ports; \"!22/tcp\" takes one out of a range.",
            ),
            key("ban_time", Is("\"15m\""), "How long the first ban lasts."),
            key(
                "increment",
                Is("{ factor = 2, max = \"1w\" }"),
                "Each further ban lasts longer; a table, see below.",
            ),
            key(
                "proof",
                Is("\"handshake\""),
                "What a ban needs. With \"none\" one packet bans, which anybody can forge.",
            ),
        ],
    },
    Table {
        name: "decoy.increment",
        about: "How the bans of an address that comes back grow longer.",
        needs: &[],
        keys: &[
            FACTOR,
            key("max", Is("\"1w\""), "The longest that a ban may last."),
        ],
    },
];

const MINUTE: Duration = Duration::from_secs(60);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// TCP ports to which browsers make no connection, whatever page asks for it: the
/// bad ports of the Fetch standard (fetch.spec.whatwg.org/#port-blocking).
const BROWSERS_REFUSE: [u16; 82] = [
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102,
    103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465,
    512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993,
    995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668,
    6669, 6679, 6697, 10080,
];

/// A checked `[decoy]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoyConfig {
    /// The ports that are decoys.
    pub ports: DecoyPorts,
    /// The ports as typed, to be shown.
    pub typed: Vec<String>,
    /// How long a visitor is banned.
    pub limits: JailLimits,
    /// The proof that a visitor needs to give before a ban.
    pub proof: Proof,
}

/// The proof that an address needs to give before a ban.
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

pub(crate) fn read(
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
    refuse_used(&section, "decoy", line, &ports, host, jails);

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
    let typed_proof = section.choice("proof", &Proof::WORDS).map(|at| at.value);
    let proof = typed_proof.unwrap_or(Proof::Handshake);
    // Who names the proof has read what it is worth.
    if typed_proof.is_none() {
        warnings.extend(framed_by_pages(&ports));
    }
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

/// A page may have its readers' browsers complete a handshake with nearly any TCP
/// port: says with which of these.
fn framed_by_pages(ports: &DecoyPorts) -> Option<String> {
    let mut reached = ports.clone();
    for port in BROWSERS_REFUSE {
        reached.remove(Protocol::Tcp, port);
    }
    let mut reached = reached.ranges();
    reached.retain(|range| range.protocol == Protocol::Tcp);
    (!reached.is_empty()).then(|| {
        format!(
            "[decoy]: a web page can make its readers' browsers connect to {}, which bans them: prefer ports that browsers refuse (23/tcp, 25/tcp, 110/tcp, 143/tcp, 1723/tcp, 5060/tcp, 6667/tcp), or write proof = \"handshake\" to accept it",
            joined(&reached, "")
        )
    })
}

/// Ports that are somebody's cannot be decoys, nor tarpits; `name`: of the section.
pub(crate) fn refuse_used(
    section: &Section<'_, '_>,
    name: &str,
    line: usize,
    ports: &DecoyPorts,
    host: &dyn HostFacts,
    jails: &[JailConfig],
) {
    let served: Vec<_> = host
        .listeners()
        .into_iter()
        .filter(|(protocol, port)| ports.contains(*protocol, *port))
        .map(|(protocol, port)| PortRange::one(protocol, port))
        .collect();
    if !served.is_empty() {
        section.error(
            line,
            format!(
                "ports in [{name}]: {} served on this host; leave out with {}",
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
                    "ports in [{name}]: {} belong to a service, by [jail.{}]; leave out with {}",
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
                "ports in [{name}]: this host's own UDP questions begin at ports {0}-{1}, so answers to them would be taken for visits; allowed for udp: other ports (leave out with \"!{0}-{1}/udp\")",
                ephemeral.start(),
                ephemeral.end()
            ),
        );
    }
}

/// The ranges as a list; of many the first ones, and how many more.
pub(crate) fn joined(ranges: &[PortRange], before: &str) -> String {
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
    use weir_config::ConfigErrors;

    use crate::{config::Config, host::fake::FakeHost};

    fn lab() -> FakeHost {
        FakeHost {
            has_file: |_| false,
            listeners: [
                (Protocol::Tcp, 22),
                (Protocol::Tcp, 443),
                (Protocol::Udp, 53),
            ]
            .into(),
            ephemeral: 40_000..=50_000,
            ..FakeHost::default()
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
        // Nothing but manual bans? No: decoys ban as well.
        assert!(!warnings.contains("only manual bans"), "{warnings}");
    }

    /// `<img src="http://host:3389/">` has everybody who reads the page complete a
    /// handshake there.
    #[test]
    fn ports_that_a_page_can_make_its_readers_visit_are_warned_of() {
        let about = |words: &str| {
            let config = check(&format!("[decoy]\n{words}")).unwrap();
            let told = config.warnings.into_iter();
            told.filter(|w| w.contains("browsers")).collect::<String>()
        };
        let told = about("ports = [\"22-25/tcp\", \"!22/tcp\", \"3389/tcp\", \"5900-5910/tcp\"]");
        let words = "connect to 24/tcp, 3389/tcp, 5900-5910/tcp, which bans them";
        assert!(told.contains(words), "{told}");
        for quiet in [
            "ports = [\"23/tcp\", \"5060-5061/tcp\", \"6665-6669/tcp\", \"161/udp\", \"3389/udp\"]",
            "ports = [\"3389/tcp\"]\nproof = \"handshake\"",
        ] {
            assert_eq!(about(quiet), "");
        }
        let refused = BROWSERS_REFUSE;
        assert!(refused.is_sorted() && refused.contains(&25) && !refused.contains(&80));
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
