//! Rules of iptables by which packets that leave an interface wait in a queue of netfilter's for
//! a program that changes them. They are in a chain of their own in the table `mangle`, with one
//! jump from POSTROUTING: before addresses are translated, and before fragments are made. Where
//! no program has the queue packets go on as they are (`--queue-bypass`).

use std::{fmt::Write, io, net::IpAddr};

use crate::{Error, command};

/// The programs that make rules, as iptables(8) is built: the host's choice first.
const VARIANTS: [&str; 3] = ["", "-nft", "-legacy"];
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];
const TABLE: &str = "mangle";
const HOOK: &str = "POSTROUTING";
const TCP: u8 = 6;
/// Protocols that begin with ports. iptables names those of the first two without more of its own.
const PROTOCOLS: [u8; 5] = [TCP, 17, 33, 132, 136];

/// The packets that wait.
#[derive(Debug, Clone, Copy)]
pub struct QueuedPackets<'a> {
    /// The interface that they leave by.
    pub interface: &'a str,
    /// The queue that they wait in.
    pub queue: u16,
    /// Destination networks, by address and prefix length; empty: all.
    pub networks: &'a [(IpAddr, u8)],
    /// The IP protocol that is meant; `None`: any.
    pub protocol: Option<u8>,
    /// The source port that is meant; `None`: any.
    pub source_port: Option<u16>,
    /// The destination port that is meant; `None`: any.
    pub dest_port: Option<u16>,
    /// Whether of TCP only SYN and SYN-ACK are meant.
    pub syn_only: bool,
}

/// Rules that are there; gone when they are dropped.
#[derive(Debug)]
pub struct QueueRules {
    /// The families, with the kind of iptables that made them.
    made: Vec<(usize, &'static str)>,
    queue: u16,
}

fn chain_name(queue: u16) -> String {
    format!("weir.options-{queue}")
}

fn save(family: usize, variant: &str) -> io::Result<String> {
    let program = format!("{}{variant}-save", FAMILIES[family]);
    command::run(&program, &["-t", TABLE], "")
}

fn restore(family: usize, variant: &str, text: &str) -> io::Result<()> {
    let program = format!("{}{variant}-restore", FAMILIES[family]);
    command::run(&program, &["--noflush", "-w", "5"], text).map(drop)
}

impl QueuedPackets<'_> {
    /// What rules say of ports and SYNs. Whoever has the queue looks again.
    fn conditions(&self) -> Vec<String> {
        let mut ports = String::new();
        for (word, port) in [("--sport", self.source_port), ("--dport", self.dest_port)] {
            if let Some(port) = port {
                let _ = write!(ports, " {word} {port}");
            }
        }
        let is_chosen = |protocol: &&u8| self.protocol.is_none_or(|one| one == **protocol);
        let of = |protocol: &u8| {
            let ports = if PROTOCOLS[..2].contains(protocol) {
                &ports
            } else {
                ""
            };
            let is_syn = *protocol == TCP && self.syn_only;
            let syn = if is_syn { " --tcp-flags SYN SYN" } else { "" };
            format!(" -p {protocol}{ports}{syn}")
        };
        if !ports.is_empty() {
            return PROTOCOLS.iter().filter(is_chosen).map(of).collect();
        }
        match self.protocol {
            Some(protocol) => vec![of(&protocol)],
            None if self.syn_only => vec![of(&TCP), format!(" ! -p {TCP}")],
            None => vec![String::new()],
        }
    }

    /// Is a packet of this family meant?
    fn has_family(&self, family: usize) -> bool {
        let is_of = |(addr, _): &(IpAddr, u8)| usize::from(addr.is_ipv6()) == family;
        self.networks.is_empty() || self.networks.iter().any(is_of)
    }

    /// All that is to be there of a family, as its `-restore --noflush` takes it.
    fn text(&self, family: usize, saved: &str) -> String {
        let of_family = |(addr, _): &&(IpAddr, u8)| usize::from(addr.is_ipv6()) == family;
        let to: Vec<_> = match self.networks {
            [] => vec![String::new()],
            networks => {
                let mine = networks.iter().filter(of_family);
                mine.map(|(addr, bits)| format!(" -d {addr}/{bits}"))
                    .collect()
            }
        };
        let chain = chain_name(self.queue);
        let mut text = format!("*{TABLE}\n:{chain} - [0:0]\n");
        // What a weir that was killed has left.
        for jump in jumps(saved, &chain) {
            let _ = writeln!(text, "-D {jump}");
        }
        for to in &to {
            for condition in self.conditions() {
                let _ = writeln!(
                    text,
                    "-A {chain}{to}{condition} -j NFQUEUE --queue-num {} --queue-bypass",
                    self.queue
                );
            }
        }
        let _ = writeln!(text, "-A {HOOK} -o {} -j {chain}", self.interface);
        text + "COMMIT\n"
    }
}

/// The rules that lead to a chain, without their verb.
fn jumps<'s>(saved: &'s str, chain: &str) -> impl Iterator<Item = &'s str> {
    let end = format!(" -j {chain}");
    let lines = saved.lines().filter_map(|line| line.strip_prefix("-A "));
    lines.filter(move |line| line.ends_with(&end))
}

/// The lines that take a chain away; `None`: it is not there.
fn removal(saved: &str, chain: &str) -> Option<String> {
    let begin = format!(":{chain} ");
    saved.lines().find(|line| line.starts_with(&begin))?;
    let mut text = format!("*{TABLE}\n");
    for jump in jumps(saved, chain) {
        let _ = writeln!(text, "-D {jump}");
    }
    let _ = write!(text, "-F {chain}\n-X {chain}\nCOMMIT\n");
    Some(text)
}

fn remove(family: usize, variant: &str, queue: u16) -> io::Result<()> {
    match removal(&save(family, variant)?, &chain_name(queue)) {
        Some(text) => restore(family, variant, &text),
        None => Ok(()),
    }
}

impl QueueRules {
    /// Has these packets wait from now on, in this network namespace.
    ///
    /// # Errors
    /// iptables is not there, or cannot say so to this kernel; then packets go on as before.
    pub fn put(packets: &QueuedPackets<'_>) -> Result<Self, Error> {
        let interface = packets.interface;
        // iptables would read another name, or several.
        if interface.ends_with('+') || interface.contains(['"', '\'', '\\']) {
            return Err(Error::Unsupported(format!(
                "iptables cannot name the interface {interface}"
            )));
        }
        let mut rules = Self {
            made: Vec::new(),
            queue: packets.queue,
        };
        for (family, name) in FAMILIES.into_iter().enumerate() {
            if !packets.has_family(family) {
                // It is not even asked: asking has the kernel make tables of iptables. What a weir
                // that was killed has left of it leads to the queue and passes there as it is.
                continue;
            }
            let mut tried = Vec::new();
            let made = VARIANTS.into_iter().find(|variant| {
                let put = || -> io::Result<()> {
                    let saved = save(family, variant)?;
                    restore(family, variant, &packets.text(family, &saved))
                };
                let put = put();
                tried.extend(put.as_ref().err().map(ToString::to_string));
                put.is_ok()
            });
            match made {
                Some(variant) => rules.made.push((family, variant)),
                None => {
                    return Err(Error::Unsupported(format!(
                        "packets cannot be had wait in a queue (it takes {name} with NFQUEUE): {}",
                        tried.join("; ")
                    )));
                }
            }
        }
        Ok(rules)
    }

    /// Whether a packet still comes by the rules.
    pub fn are_there(&self) -> bool {
        let chain = chain_name(self.queue);
        self.made.iter().any(|(family, variant)| {
            save(*family, variant).is_ok_and(|saved| jumps(&saved, &chain).next().is_some())
        })
    }
}

impl Drop for QueueRules {
    fn drop(&mut self) {
        for (family, variant) in &self.made {
            if let Err(error) = remove(*family, variant, self.queue) {
                tracing::warn!(
                    "the chain {} of {} stays, and lets packets through: {error}",
                    chain_name(self.queue),
                    FAMILIES[*family]
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: QueuedPackets<'_> = QueuedPackets {
        interface: "eth0",
        queue: 7,
        networks: &[],
        protocol: None,
        source_port: None,
        dest_port: None,
        syn_only: false,
    };

    #[test]
    fn rules_name_the_packets() {
        let text = ALL.text(0, "");
        assert_eq!(
            text,
            "*mangle\n:weir.options-7 - [0:0]\n\
             -A weir.options-7 -j NFQUEUE --queue-num 7 --queue-bypass\n\
             -A POSTROUTING -o eth0 -j weir.options-7\nCOMMIT\n"
        );
        let networks = [
            ([192, 0, 2, 0].into(), 24),
            ("2001:db8::".parse().unwrap(), 32),
        ];
        let packets = QueuedPackets {
            networks: &networks,
            dest_port: Some(443),
            syn_only: true,
            ..ALL
        };
        let of = |packets: &QueuedPackets<'_>, family| -> Vec<String> {
            let text = packets.text(family, "");
            let rules = text.lines().filter(|line| line.starts_with("-A weir"));
            let end = " -j NFQUEUE --queue-num 7 --queue-bypass";
            let begin = "-A weir.options-7";
            rules
                .map(|rule| {
                    let rule = rule.strip_prefix(begin).unwrap();
                    rule.strip_suffix(end).unwrap().to_owned()
                })
                .collect()
        };
        assert_eq!(
            of(&packets, 1),
            [
                " -d 2001:db8::/32 -p 6 --dport 443 --tcp-flags SYN SYN",
                " -d 2001:db8::/32 -p 17 --dport 443",
                " -d 2001:db8::/32 -p 33",
                " -d 2001:db8::/32 -p 132",
                " -d 2001:db8::/32 -p 136"
            ]
        );
        let syns = QueuedPackets {
            syn_only: true,
            ..ALL
        };
        assert_eq!(of(&syns, 0), [" -p 6 --tcp-flags SYN SYN", " ! -p 6"]);
        let icmp = QueuedPackets {
            protocol: Some(1),
            ..ALL
        };
        assert_eq!(of(&icmp, 0), [" -p 1"]);
        let one = QueuedPackets {
            networks: &networks[..1],
            ..ALL
        };
        assert_eq!(of(&one, 0), [" -d 192.0.2.0/24"]);
        assert!(one.has_family(0) && !one.has_family(1) && ALL.has_family(1));
    }

    #[test]
    fn what_was_left_goes() {
        let saved = "*mangle\n:POSTROUTING ACCEPT [0:0]\n:weir.options-7 - [0:0]\n\
             -A POSTROUTING -o eth1 -j weir.options-7\n-A POSTROUTING -j weir.options-77\n\
             -A weir.options-7 -j NFQUEUE --queue-num 7 --queue-bypass\nCOMMIT\n";
        let text = ALL.text(0, saved);
        assert!(
            text.contains("-D POSTROUTING -o eth1 -j weir.options-7\n"),
            "{text}"
        );
        assert!(!text.contains("-77"), "{text}");
        assert_eq!(
            removal(saved, "weir.options-7").unwrap(),
            "*mangle\n-D POSTROUTING -o eth1 -j weir.options-7\n\
             -F weir.options-7\n-X weir.options-7\nCOMMIT\n"
        );
        assert_eq!(removal(saved, "weir.options-8"), None);
    }
}
