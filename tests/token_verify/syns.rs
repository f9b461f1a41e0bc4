//! SYNs for each verdict that one of them can have, in every conduit, IPv4 and IPv6: a capture
//! by which other verifiers are held against `weir token verify`.

use std::net::IpAddr;

use weir_token::{Digest, KeyId, Statement, TokenOption, VERSION, epoch_at, key_file::Key};

use super::{IDENTITY, Lab, PORT, SECONDS, packet};

/// Where a token stands.
#[derive(Clone, Copy, PartialEq)]
enum Conduit {
    Tcp,
    /// Behind the options of Linux's SYN.
    TcpBehindOthers,
    Ip,
}

/// As Linux has them: MSS, SACK, time stamps, padding, window scale.
const LINUX: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
];
const ISN: u32 = 0x8007_0605;

/// A SYN, its verdict, and whether its packet or options contradict themselves, so that a decoder
/// may keep it from who looks at tokens.
pub struct Syn {
    pub packet: Vec<u8>,
    pub verdict: &'static str,
    pub is_broken: bool,
}

fn syn(packet: Vec<u8>, verdict: &'static str) -> Syn {
    Syn {
        packet,
        verdict,
        is_broken: false,
    }
}

/// A SYN of these ends with these TCP options, and a token in its IP header.
fn with(ends: [IpAddr; 2], port: u16, tcp: &[u8], ip: Option<&[u8]>) -> Vec<u8> {
    let plain = packet(ends[0], ends[1], port, ISN, 2, tcp);
    let Some(ip) = ip else { return plain };
    let mut whole;
    if ends[0].is_ipv4() {
        whole = [&plain[..20], ip, &plain[20..]].concat();
        whole[0] = 0x45 + ip.len() as u8 / 4;
        whole[3] = whole.len() as u8;
    } else {
        whole = [&plain[..40], ip, &plain[40..]].concat();
        (whole[5], whole[6]) = (whole.len() as u8 - 40, 60);
    }
    whole
}

fn set_length(packet: &mut [u8]) {
    match packet[0] >> 4 {
        4 => packet[3] = packet.len() as u8,
        _ => packet[5] = packet.len() as u8 - 40,
    }
}

/// The first part of a packet, of several where `more` is 1.
fn part(mut packet: Vec<u8>, more: u8) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[6] = 0x20;
        return packet;
    }
    let next = std::mem::replace(&mut packet[6], 44);
    packet.splice(40..40, [next, 0, 0, more, 0, 0, 0, 9]);
    set_length(&mut packet);
    packet
}

/// An IPv6 destination options header before TCP with this option.
fn destination(option: &[u8]) -> Vec<u8> {
    let length = (4 + option.len()).next_multiple_of(8);
    let mut header = vec![6, length as u8 / 8 - 1, 1, 0];
    header.extend(option);
    header.resize(length, 0);
    header
}

pub fn token(
    key: &Key,
    identity: &Digest,
    epoch: u64,
    ends: [IpAddr; 2],
    ports: (u16, u16),
) -> TokenOption {
    let statement = Statement {
        key_id: key.id,
        epoch,
        source: (ends[0], ports.0),
        dest: (ends[1], ports.1),
        isn: ISN,
    };
    let secret = key.secret().unwrap();
    TokenOption {
        version: VERSION,
        key_id: key.id.number(),
        epoch: epoch as u16,
        tag: *identity.0.first_chunk().unwrap(),
        mac: statement.mac(&secret.identity_key(key.id, identity)),
    }
}

/// Packets of connections, one behind the other, with what a verifier that sees all of them says
/// of each (`-`: nothing): a SYN that is sent again, the same behind more of its client, and its
/// token from a second host and on other flows.
pub fn of_replays(lab: &Lab) -> Vec<(Vec<u8>, &'static str)> {
    let now = epoch_at(SECONDS.into());
    let mut packets = Vec::new();
    for is_v6 in [false, true] {
        let addr = |n: u8| -> IpAddr {
            match is_v6 {
                true => format!("2001:db8::{n:x}").parse().unwrap(),
                false => format!("192.0.2.{n}").parse().unwrap(),
            }
        };
        let ends = [addr(1), addr(9)];
        for (port, in_ip) in [(50_000, false), (50_100, true)] {
            let token = token(&lab.key, &IDENTITY, now, ends, (port, PORT));
            let syn = |ends: [IpAddr; 2], port: u16| match in_ip {
                false => with(ends, port, &token.bytes(), None),
                true if is_v6 => {
                    let mut header = token.ipv6_header();
                    header[0] = 6;
                    with(ends, port, &LINUX, Some(&header))
                }
                true => with(ends, port, &LINUX, Some(&token.ipv4_bytes())),
            };
            let good = syn(ends, port);
            let ack = packet(ends[0], ends[1], port, ISN + 1, 0x10, &[]);
            let mut answer = packet(ends[1], ends[0], PORT, 9, 0x12, &[]);
            let to = answer.len() - 20 + 2;
            answer[to..to + 2].copy_from_slice(&port.to_be_bytes());
            packets.extend([
                (good.clone(), "valid"),
                (answer, "-"),
                (ack.clone(), "-"),
                (good.clone(), "replayed"),
                (ack, "-"),
                (good.clone(), "replayed"),
                (syn([addr(2), ends[1]], port), "wrong-mac"),
                (syn([ends[0], addr(8)], port), "wrong-mac"),
                (syn(ends, port + 1), "wrong-mac"),
                (syn([addr(2), addr(8)], port + 1), "wrong-mac"),
            ]);
            // The same ends begin anew, with the token of before, which hides no replay.
            let mut other = good.clone();
            // Of a TCP header with 20 bytes of options, at the packet's end.
            let number = other.len() - 40 + 4;
            other[number] ^= 1;
            packets.extend([(other, "wrong-mac"), (good, "replayed")]);
        }
    }
    packets
}

/// SYNs to [`PORT`], each of a connection of its own.
pub fn of_each_verdict(lab: &Lab) -> Vec<Syn> {
    let now = epoch_at(SECONDS.into());
    let mut syns = Vec::new();
    let mut port = 40_000;
    for is_v6 in [false, true] {
        let addr = |n: u8| -> IpAddr {
            match is_v6 {
                true => format!("2001:db8::{n:x}").parse().unwrap(),
                false => format!("192.0.2.{n}").parse().unwrap(),
            }
        };
        let ends = [addr(1), addr(9)];
        for conduit in [Conduit::Tcp, Conduit::TcpBehindOthers, Conduit::Ip] {
            let place = |port: u16, token: &TokenOption| match conduit {
                Conduit::Tcp => with(ends, port, &token.bytes(), None),
                Conduit::TcpBehindOthers => {
                    with(ends, port, &[LINUX, token.bytes()].concat(), None)
                }
                Conduit::Ip if is_v6 => {
                    let mut header = token.ipv6_header();
                    header[0] = 6;
                    with(ends, port, &LINUX, Some(&header))
                }
                Conduit::Ip => with(ends, port, &LINUX, Some(&token.ipv4_bytes())),
            };
            let make = |port, epoch, ends, to| token(&lab.key, &IDENTITY, epoch, ends, (port, to));
            let mut add = |verdict, change: &dyn Fn(u16) -> TokenOption| {
                port += 1;
                syns.push(syn(place(port, &change(port)), verdict));
            };
            for epoch in [now - 1, now, now + 1] {
                add("valid", &|port| make(port, epoch, ends, PORT));
            }
            for epoch in [now - 2, now + 2, now - 56, now + 0x7fff, now + 0x8000] {
                add("other-epoch", &|port| make(port, epoch, ends, PORT));
            }
            // The lower half of the number comes again.
            add("wrong-mac", &|port| make(port, now + 65536, ends, PORT));
            // Of other flows: from another host or port, to another, and begun at another number.
            add("wrong-mac", &|port| {
                make(port, now, [addr(2), ends[1]], PORT)
            });
            add("wrong-mac", &|port| {
                make(port, now, [ends[0], addr(8)], PORT)
            });
            add("wrong-mac", &|port| make(port - 1, now, ends, PORT));
            add("wrong-mac", &|port| make(port, now, ends, PORT + 1));
            let good = |port| make(port, now, ends, PORT);
            for byte in 0..8 {
                add("wrong-mac", &|port| {
                    let mut token = good(port);
                    token.mac[byte] ^= 0x80 >> byte;
                    token
                });
            }
            // Another program that has the same first bytes.
            let mut alike = IDENTITY;
            alike.0[31] ^= 1;
            add("wrong-mac", &|port| {
                token(&lab.key, &alike, now, ends, (port, PORT))
            });
            let other = Digest([0xcd; 32]);
            add("not-named", &|port| {
                token(&lab.key, &other, now, ends, (port, PORT))
            });
            for key_id in [0, KeyId::new(9).unwrap().number(), 255] {
                add("unknown-key", &|port| TokenOption {
                    key_id,
                    ..good(port)
                });
            }
            for version in [0, 2, 0x81] {
                add("other-version", &|port| TokenOption {
                    version,
                    ..good(port)
                });
            }
        }
        let mut add = |verdict, is_broken, make: &dyn Fn(u16) -> Vec<u8>| {
            port += 1;
            syns.push(Syn {
                is_broken,
                ..syn(make(port), verdict)
            });
        };
        let good = |port| token(&lab.key, &IDENTITY, now, ends, (port, PORT));
        let tcp = |port, options: &[u8]| with(ends, port, options, None);
        let in_ip = |port, option: &[u8]| match is_v6 {
            true => with(ends, port, &LINUX, Some(&destination(option))),
            false => with(ends, port, &LINUX, Some(option)),
        };
        add("missing", false, &|port| tcp(port, &[]));
        add("missing", false, &|port| tcp(port, &LINUX));
        // Behind the end of options there is nothing; nor is another experiment's option a token.
        add("missing", false, &|port| {
            tcp(port, &[&[0; 4], &good(port).bytes()[..]].concat())
        });
        add("missing", false, &|port| {
            let mut other = good(port).bytes();
            other[3] ^= 1;
            tcp(port, &other)
        });
        add("malformed", false, &|port| {
            tcp(port, &good(port).bytes().repeat(2))
        });
        // A token is of TCP's options if one is there, whatever the IP header has.
        add("wrong-mac", false, &|port| {
            let mut wrong = good(port).bytes();
            wrong[19] ^= 1;
            let mut header = good(port).ipv6_header();
            header[0] = 6;
            match is_v6 {
                true => with(ends, port, &wrong, Some(&header)),
                false => with(ends, port, &wrong, Some(&good(port).ipv4_bytes())),
            }
        });
        for length in [4, 12, 19] {
            add("malformed", true, &|port| {
                let mut shorter = good(port).bytes().to_vec();
                shorter[1] = length;
                shorter.truncate(length.into());
                shorter.resize(20, 1);
                tcp(port, &shorter)
            });
            add("malformed", true, &|port| {
                let mut shorter = good(port).ipv4_bytes().to_vec();
                shorter[1] = length;
                shorter.truncate(length.into());
                if is_v6 {
                    shorter[1] -= 2;
                } else {
                    shorter.resize(20, 1);
                }
                in_ip(port, &shorter)
            });
        }
        for options in [
            [254, 40, 0x77, 0x65],
            [2, 0, 1, 1],
            [2, 1, 1, 1],
            [1, 1, 1, 5],
        ] {
            add("malformed", true, &|port| {
                tcp(port, &[&options[..], &good(port).bytes()].concat())
            });
        }
        add("malformed", true, &|port| {
            let token = if is_v6 {
                let mut token = good(port).ipv4_bytes();
                token[1] = 200;
                token
            } else {
                let mut token = good(port).ipv4_bytes();
                token[1] = 24;
                token
            };
            in_ip(port, &token)
        });
        // Behind the packet there is what the link has filled up.
        add("missing", false, &|port| {
            [tcp(port, &[]), good(port).bytes().to_vec()].concat()
        });
        add("valid", false, &|port| {
            [tcp(port, &good(port).bytes()), vec![0; 6]].concat()
        });
        add("malformed", true, &|port| {
            let mut packet = tcp(port, &[]);
            let head = packet.len() - 20;
            packet[head + 12] = 10 << 4;
            packet.extend(good(port).bytes());
            packet
        });
        // The first part of several, with all of the header, or some of it.
        add("malformed", true, &|port| {
            part(tcp(port, &good(port).bytes()), 1)
        });
        add("malformed", true, &|port| {
            let mut first = part(tcp(port, &[]), 1);
            first.truncate(first.len() - 12);
            set_length(&mut first);
            first
        });
        if is_v6 {
            // A fragment that is the whole packet is none (RFC 6946).
            add("valid", false, &|port| {
                part(tcp(port, &good(port).bytes()), 0)
            });
            add("missing", false, &|port| part(tcp(port, &LINUX), 0));
            add("valid", false, &|port| {
                let mut header = good(port).ipv6_header();
                header[0] = 6;
                part(with(ends, port, &LINUX, Some(&header)), 0)
            });
            // More headers than are gone through, or that do not end in the packet.
            let chain = |port, count: usize| {
                let mut packet = tcp(port, &good(port).bytes());
                for _ in 0..count {
                    let next = std::mem::replace(&mut packet[6], 60);
                    packet.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
                }
                set_length(&mut packet);
                packet
            };
            add("valid", true, &|port| chain(port, 6));
            add("malformed", true, &|port| chain(port, 7));
            add("malformed", true, &|port| {
                let mut packet = chain(port, 2);
                packet.truncate(50);
                set_length(&mut packet);
                packet
            });
        }
        // A TCP header that is longer than the packet, or shorter than itself.
        for words in [4, 15] {
            add("malformed", true, &|port| {
                let mut packet = tcp(port, &good(port).bytes());
                let head = packet.len() - 40;
                packet[head + 12] = words << 4;
                packet
            });
        }
    }
    syns
}
