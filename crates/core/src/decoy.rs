//! Decoy (honeypot) ports: no service listens on them, so a client that connects is
//! scanning. The packet path answers; the daemon decides on the ban.

use std::{fmt, ops::RangeInclusive};

use crate::{PortRange, PortSet, Protocol};

/// 64-bit words of a bitmap of one protocol's ports.
const WORDS: usize = 65_536 / 64;

/// A part of what is typed: `23/tcp`, `1-1024/tcp`, `!22/tcp`. Without a
/// protocol it stands for TCP and UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `!`: not these.
    pub not: bool,
    /// The ports that it names.
    pub range: PortRange,
}

impl std::str::FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (not, ports) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let scope: PortSet = ports.parse().map_err(|_| malformed(text))?;
        let [range] = scope.ranges() else {
            return Err(malformed(text));
        };
        if range.protocol == Protocol::Sctp {
            return Err(malformed(text));
        }
        Ok(Self { not, range: *range })
    }
}

fn malformed(text: &str) -> String {
    let text: String = text.chars().take(64).collect();
    format!(
        "{text:?} is not a decoy port; allowed: 23/tcp, 6000-6010/udp, !22/tcp (ports 1-65535, tcp or udp, both without)"
    )
}

/// The decoy ports of TCP and UDP.
#[derive(Clone, PartialEq, Eq)]
pub struct DecoyPorts {
    /// TCP's words, then UDP's.
    words: Box<[u64; 2 * WORDS]>,
}

impl Default for DecoyPorts {
    fn default() -> Self {
        Self {
            words: Box::new([0; 2 * WORDS]),
        }
    }
}

impl DecoyPorts {
    /// What the entries say together, in any order: those without `!`, less
    /// those with. A protocol with none but `!` has all ports but these.
    pub fn new(entries: &[Entry]) -> Self {
        let mut ports = Self::default();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let of = |not: bool| {
                entries
                    .iter()
                    .filter(move |e| e.not == not && covers(e.range.protocol, protocol))
                    .map(|e| e.range.low..=e.range.high)
            };
            if of(false).next().is_none() && of(true).next().is_some() {
                ports.set(protocol, 1..=u16::MAX, true);
            }
            of(false).for_each(|range| ports.set(protocol, range, true));
            of(true).for_each(|range| ports.set(protocol, range, false));
        }
        ports
    }

    fn set(&mut self, protocol: Protocol, range: RangeInclusive<u16>, to: bool) {
        for port in range {
            let (word, bit) = place(protocol, port);
            if to {
                self.words[word] |= bit;
            } else {
                self.words[word] &= !bit;
            }
        }
    }

    /// Whether the set has this port. Of another protocol than TCP or UDP none is.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        let (word, bit) = place(protocol, port);
        matches!(protocol, Protocol::Tcp | Protocol::Udp) && self.words[word] & bit != 0
    }

    /// Takes one out.
    pub fn remove(&mut self, protocol: Protocol, port: u16) {
        self.set(protocol, port..=port, false);
    }

    /// Whether the set has no port.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The number of ports, of both protocols.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// A bit a port: 1024 words for TCP, then as many for UDP.
    pub fn words(&self) -> &[u64] {
        &*self.words
    }

    /// The ports as ranges, in order.
    pub fn ranges(&self) -> Vec<PortRange> {
        let mut ranges: Vec<PortRange> = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for port in (1..=u16::MAX).filter(|port| self.contains(protocol, *port)) {
                match ranges.last_mut() {
                    Some(last) if last.protocol == protocol && last.high == port - 1 => {
                        last.high = port;
                    }
                    _ => ranges.push(PortRange::one(protocol, port)),
                }
            }
        }
        ranges
    }
}

impl fmt::Debug for DecoyPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

fn covers(entry: Protocol, protocol: Protocol) -> bool {
    entry == Protocol::Any || entry == protocol
}

fn place(protocol: Protocol, port: u16) -> (usize, u64) {
    let first = if protocol == Protocol::Udp { WORDS } else { 0 };
    (first + usize::from(port) / 64, 1 << (port % 64))
}

/// What a SYN to a decoy port tells of the program that sent it; the numbers
/// are `enum scanner` of `bpf/abi/event.h`; `abi.rs` of `weir-bpf` asserts each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Scanner {
    /// No TCP options, which no operating system leaves out.
    Bare = 1,
    /// No options, and a window of 1024.
    Masscan = 2,
    /// No options, and a window of 65535.
    Zmap = 3,
    /// A segment size as the only option, and a window of 1024: nmap's
    /// half-open scan, and masscan since 1.3.
    Nmap = 4,
}

impl Scanner {
    /// The one with this number, if the SYN has anything that stands out.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Bare, Self::Masscan, Self::Zmap, Self::Nmap]
            .into_iter()
            .find(|scanner| *scanner as u8 == number)
    }
}

impl fmt::Display for Scanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bare => "a SYN without options",
            Self::Masscan => "a SYN as masscan sends it",
            Self::Zmap => "a SYN as zmap sends it",
            Self::Nmap => "a SYN as nmap or masscan sends it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(typed: &[&str]) -> DecoyPorts {
        let entries: Vec<Entry> = typed.iter().map(|t| t.parse().unwrap()).collect();
        DecoyPorts::new(&entries)
    }

    fn shown(typed: &[&str]) -> String {
        let ranges = ports(typed).ranges();
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        ranges.join(" ")
    }

    #[test]
    fn scanners_are_told_in_words() {
        let told = |number| Scanner::from_number(number).map(|scanner| scanner.to_string());
        assert_eq!(told(0), None);
        let zmap = Scanner::Zmap as u8;
        assert_eq!(told(zmap).as_deref(), Some("a SYN as zmap sends it"));
        assert!(ports(&[]).is_empty() && !ports(&["23/tcp"]).is_empty());
    }

    #[test]
    fn entries_are_joined() {
        for (typed, expected) in [
            (&["23/tcp", "3389/tcp"][..], "23/tcp 3389/tcp"),
            (&["1-1024/tcp", "!22/tcp"], "1-21/tcp 23-1024/tcp"),
            (&["!22/tcp", "1-1024/tcp"], "1-21/tcp 23-1024/tcp"),
            (&["!22/tcp"], "1-21/tcp 23-65535/tcp"),
            (
                &["!22/tcp", "!80-443/tcp"],
                "1-21/tcp 23-79/tcp 444-65535/tcp",
            ),
            (&["161/udp", "!22/tcp"], "1-21/tcp 23-65535/tcp 161/udp"),
            (&["23"], "23/tcp 23/udp"),
            (&["23", "!23/udp"], "23/tcp"),
            (
                &["65535/udp", "1/tcp", "63-64/tcp"],
                "1/tcp 63-64/tcp 65535/udp",
            ),
            (&["5/tcp", "6/tcp", "6-9/tcp"], "5-9/tcp"),
            (&["5/tcp", "!5/tcp"], ""),
            (&[], ""),
        ] {
            assert_eq!(shown(typed), expected, "{typed:?}");
        }
    }

    #[test]
    fn malformed_entries_are_refused() {
        for typed in [
            "",
            "!",
            "!!22",
            "0/tcp",
            "65536",
            "22/sctp",
            "all",
            "!all",
            "22/tcp,23/tcp",
            "9-1",
            "22/icmp",
            "-5",
            "ssh",
        ] {
            let error = typed.parse::<Entry>().unwrap_err();
            assert!(error.contains("allowed:"), "{typed:?}: {error}");
        }
    }

    #[test]
    fn ports_are_found_and_removed() {
        let mut ports = ports(&["1-100/tcp", "53/udp"]);
        assert_eq!(ports.len(), 101);
        assert!(ports.contains(Protocol::Tcp, 53) && ports.contains(Protocol::Udp, 53));
        assert!(!ports.contains(Protocol::Sctp, 53) && !ports.contains(Protocol::Tcp, 101));
        ports.remove(Protocol::Tcp, 53);
        assert!(!ports.contains(Protocol::Tcp, 53) && ports.contains(Protocol::Udp, 53));
        assert!(!ports.is_empty());
        ports.remove(Protocol::Udp, 53);
        assert_eq!(ports.words()[WORDS..].iter().max(), Some(&0));
    }
}
