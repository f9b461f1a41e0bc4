//! Where tokens stand in packets, and what is made of measurements of the path
//! (`weir options probe`).

use std::{fmt, path::PathBuf, time::Duration};

use weir_config::{At, Section, values::optional_path};

const CONDUITS: &str = "a list of \"tcp-option\" and \"ip-option\", each at most once";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How old a measurement may be unless the configuration says it.
const MAX_AGE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// So many of a hundred packets have to keep the option, unless the configuration says it.
const PASS_PERCENT: u16 = 90;
/// Characters of a site's name at most, as `weir options probe` has it.
const MAX_LABEL: usize = 64;

/// The part of a packet in which a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Conduit {
    /// An option of the TCP header of a SYN.
    TcpOption,
    /// An option of the IPv4 header, or one of an IPv6 destination options header.
    IpOption,
}

impl Conduit {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::TcpOption, Self::IpOption];

    /// Its word in the configuration and in status.
    pub fn name(self) -> &'static str {
        match self {
            Self::TcpOption => "tcp-option",
            Self::IpOption => "ip-option",
        }
    }
}

impl fmt::Display for Conduit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is made of a file of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeUse {
    /// Where the file of `weir options probe` is.
    pub result: PathBuf,
    /// The name of this host in it; `None`: the site that sent from an address of this host.
    pub site: Option<String>,
    /// A measurement that is older is told of.
    pub max_age: Duration,
    /// So many of a hundred packets have to arrive with an option.
    pub pass_percent: u16,
}

/// Reads `conduits`, in the order of preference. `signs`: connections are signed.
pub(super) fn read(section: &mut Section<'_, '_>, signs: bool) -> Vec<Conduit> {
    let usual = vec![Conduit::TcpOption];
    let Some(list) = section.list("conduits", CONDUITS) else {
        return usual;
    };
    let mut conduits = Vec::new();
    for At { value, line } in &list.value {
        let found = Conduit::ALL.into_iter().find(|c| c.name() == value);
        match found {
            Some(conduit) if !conduits.contains(&conduit) => conduits.push(conduit),
            _ => {
                let value: String = value.chars().take(64).collect();
                section.error(
                    *line,
                    format!("conduits in [token] has {value:?}; allowed: {CONDUITS}"),
                );
            }
        }
    }
    if list.value.is_empty() {
        section.error(
            list.line,
            format!("conduits in [token] is empty; allowed: {CONDUITS}"),
        );
    }
    if !signs && conduits != usual {
        section.error(
            list.line,
            "conduits in [token] without sign_to: it is about the tokens of TCP connections; allowed: a sign_to beside it, or no conduits",
        );
    }
    match conduits.is_empty() {
        true => usual,
        false => conduits,
    }
}

/// Reads `probe_result` and what belongs to it.
pub(super) fn read_probe(section: &mut Section<'_, '_>, signs: bool) -> Option<ProbeUse> {
    let line = section.line_of("probe_result");
    let result = optional_path(section, "probe_result", "/var/lib/weir/result.jsonl");
    for key in ["probe_site", "probe_max_age", "probe_pass_percent"] {
        if let (None, Some(line)) = (line, section.line_of(key)) {
            section.error(
                line,
                format!("{key} in [token] without probe_result, which it is about; allowed: a probe_result beside it, or no {key}"),
            );
        }
    }
    if let (Some(line), false) = (line, signs) {
        section.error(
            line,
            "probe_result in [token] without sign_to and sign_udp_to: nothing is sent that it could be about; allowed: one of these beside it, or no probe_result",
        );
    }
    let allowed = "the name of a site in the file, of up to 64 letters, digits and . _ - @ :";
    let site = section.string("probe_site", allowed);
    if let Some(At { value, line }) = &site {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
        if value.is_empty() || value.len() > MAX_LABEL || !value.chars().all(is_fit) {
            let value: String = value.chars().take(64).collect();
            section.error(
                *line,
                format!("probe_site in [token] is {value:?}; allowed: {allowed}"),
            );
        }
    }
    let max_age = section.duration("probe_max_age", DAY..=DAY * 3650);
    let percent = section.integer("probe_pass_percent", 1..=100);
    Some(ProbeUse {
        result: result?,
        site: site.map(|at| at.value),
        max_age: max_age.map_or(MAX_AGE, |at| at.value),
        pass_percent: percent.map_or(PASS_PERCENT, |at| at.value as u16),
    })
}
