use super::*;
use crate::{DatagramStatement, KeyId, OptionError, Secret, Statement, VERSION};

const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const TIME: Option<Duration> = Some(Duration::from_secs(1_780_000_000));

fn end(addr: &str, port: u16) -> Endpoint {
    (addr.parse().unwrap(), port)
}

struct Maker {
    secret: Secret,
    id: KeyId,
    identity: Digest,
}

impl Maker {
    fn new() -> Self {
        Self {
            secret: Secret::new([3; 32]),
            id: KeyId::MIN,
            identity: Digest([7; 32]),
        }
    }

    fn table(&self) -> FlowTable<'_> {
        FlowTable::new(Verifier {
            keys: vec![(self.id, &self.secret)],
            identities: vec![self.identity],
        })
    }

    /// The options of a SYN with a token.
    fn options(&self, source: Endpoint, dest: Endpoint, isn: u32) -> [u8; 20] {
        let epoch = epoch_at(TIME.unwrap().as_secs());
        let statement = Statement {
            key_id: self.id,
            epoch,
            source,
            dest,
            isn,
        };
        TokenOption {
            version: VERSION,
            key_id: self.id.number(),
            epoch: epoch as u16,
            tag: [7; 4],
            mac: statement.mac(&self.secret.identity_key(self.id, &self.identity)),
        }
        .bytes()
    }
}

fn segment(
    source: Endpoint,
    dest: Endpoint,
    sequence: u32,
    flags: u8,
    options: &[u8],
) -> Segment<'_> {
    Segment {
        source,
        dest,
        sequence,
        flags,
        options: Some(options),
        ip_token: Ok(None),
        bytes: &[],
    }
}

fn verdicts(table: &FlowTable<'_>) -> Vec<&'static str> {
    let flows = table.flows().iter();
    flows.map(|flow| flow.verdict.name()).collect()
}

#[test]
fn each_connection_has_one_verdict() {
    let maker = Maker::new();
    let mut table = maker.table();
    let server = end("2001:db8::9", 80);
    let client = |port| end("2001:db8::1", port);
    let good = maker.options(client(1), server, 5);
    // Both directions of one that is right; a SYN that was lost comes again.
    table.add(1, TIME, &segment(client(1), server, 5, SYN, &good), false);
    table.add(2, TIME, &segment(client(1), server, 5, SYN, &good), false);
    table.add(3, TIME, &segment(server, client(1), 9, SYN_ACK, &[]), false);
    table.add(4, TIME, &segment(client(1), server, 6, ACK, &[]), false);
    assert_eq!(verdicts(&table), ["valid"]);
    let flow = &table.flows()[0];
    assert_eq!((flow.packet, flow.packets, flow.server), (2, 4, server));
    // The same once more is a replay, another number on the same ports a new connection.
    table.add(5, TIME, &segment(client(1), server, 5, SYN, &good), false);
    table.add(6, TIME, &segment(client(1), server, 6, SYN, &good), false);
    // One without a token, until its program is known.
    let later = maker.options(client(2), server, 5);
    table.add(7, TIME, &segment(client(2), server, 5, SYN, &[]), false);
    assert_eq!(
        verdicts(&table),
        ["valid", "replayed", "wrong-mac", "missing"]
    );
    table.add(8, TIME, &segment(client(2), server, 5, SYN, &later), false);
    assert_eq!(table.flows()[3].verdict, FlowVerdict::Valid(maker.identity));
    // Without a SYN, from either side; without a time; and cut by the capture.
    table.add(9, TIME, &segment(client(3), server, 5, ACK, &[]), false);
    table.add(
        10,
        TIME,
        &segment(server, client(4), 5, SYN_ACK, &[]),
        false,
    );
    assert_eq!(table.flows()[5].client, client(4));
    let timeless = maker.options(client(5), server, 5);
    table.add(
        11,
        None,
        &segment(client(5), server, 5, SYN, &timeless),
        false,
    );
    let cut = Segment {
        options: None,
        ..segment(client(6), server, 5, SYN, &[])
    };
    table.add(12, TIME, &cut, true);
    table.add(13, TIME, &Segment { sequence: 8, ..cut }, false);
    assert_eq!(
        verdicts(&table)[4..],
        ["no-flow", "no-flow", "no-time", "shortened", "malformed"]
    );
}

impl Maker {
    /// A datagram with a token, by the time of [`TIME`].
    fn datagram(&self, source: Endpoint, dest: Endpoint) -> Datagram {
        let epoch = epoch_at(TIME.unwrap().as_secs());
        let statement = DatagramStatement {
            key_id: self.id,
            epoch,
            source,
            dest,
        };
        let token = TokenOption {
            version: VERSION,
            key_id: self.id.number(),
            epoch: epoch as u16,
            tag: [7; 4],
            mac: statement.mac(&self.secret.identity_key(self.id, &self.identity)),
        };
        Datagram {
            source,
            dest,
            token: Ok(Some(token)),
        }
    }
}

#[test]
fn datagrams_have_a_verdict_each() {
    for addresses in [["192.0.2.1", "192.0.2.9"], ["2001:db8::1", "2001:db8::9"]] {
        let maker = Maker::new();
        let mut table = maker.table();
        let [client, server] = [end(addresses[0], 5000), end(addresses[1], 53)];
        let good = maker.datagram(client, server);
        let bare = Datagram {
            token: Ok(None),
            ..good
        };
        let after = |seconds| Some(TIME.unwrap() + Duration::from_secs(seconds));
        // One without before the first token, answers, and without until two minutes after.
        for (time, datagram) in [
            (TIME, bare),
            (TIME, good),
            (
                TIME,
                Datagram {
                    source: server,
                    dest: client,
                    ..bare
                },
            ),
            (after(1), bare),
            (after(119), bare),
            (after(120), bare),
            (after(2), good),
            // What is wrong is refused, whatever came before.
            (
                after(3),
                Datagram {
                    source: (client.0, 5001),
                    ..good
                },
            ),
            (
                after(3),
                Datagram {
                    token: Err(OptionError::Several),
                    ..good
                },
            ),
            (after(300), good),
            (None, good),
        ] {
            table.add_datagram(1, time, &datagram);
        }
        let rows = table.flows().iter();
        let rows: Vec<_> = rows
            .map(|flow| (flow.client.1, flow.verdict.name(), flow.packets))
            .collect();
        assert_eq!(
            rows,
            [
                (5000, "missing", 1),
                (5000, "valid", 2),
                (5000, "proven", 2),
                (5000, "no-flow", 1),
                (5001, "wrong-mac", 1),
                (5000, "malformed", 1),
                (5000, "other-epoch", 1),
                (5000, "no-time", 1),
            ]
        );
        assert!(table.flows().iter().all(|flow| flow.is_udp));
        let proven = table.flows().iter().filter(|flow| flow.verdict.passes());
        assert_eq!(proven.count(), 2);
        // A token of a SYN between the same ends is none of a datagram.
        let of_syn = maker.options(client, server, 0);
        let stolen = Datagram {
            token: crate::find(&of_syn).map_err(|_| OptionError::Several),
            ..good
        };
        table.add_datagram(9, TIME, &stolen);
        assert_eq!(table.flows()[8].verdict.name(), "wrong-mac");
    }
}

/// A capture that begins with an answer, or a datagram that somebody has forged to look like
/// the first one, hides nothing of the other direction.
#[test]
fn no_datagram_hides_those_of_the_other_direction() {
    for addresses in [["192.0.2.1", "192.0.2.9"], ["2001:db8::1", "2001:db8::9"]] {
        let maker = Maker::new();
        let [client, server] = [end(addresses[0], 5000), end(addresses[1], 53)];
        let forth = maker.datagram(client, server);
        let back = Datagram {
            token: Ok(None),
            ..maker.datagram(server, client)
        };
        let rows = |datagrams: &[(u64, Datagram)]| -> Vec<_> {
            let mut table = maker.table();
            for (seconds, datagram) in datagrams {
                let time = TIME.unwrap() + Duration::from_secs(*seconds);
                table.add_datagram(1, Some(time), datagram);
            }
            let rows = table.flows().iter();
            rows.map(|flow| (flow.client, flow.verdict.name()))
                .collect()
        };
        assert_eq!(
            rows(&[(0, back), (1, forth)]),
            [(server, "missing"), (client, "valid")]
        );
        assert_eq!(rows(&[(0, forth), (120, back)]), [(client, "valid")]);
        assert_eq!(
            rows(&[(0, forth), (121, back)]),
            [(client, "valid"), (server, "missing")]
        );
    }
}

#[test]
fn flows_of_datagrams_beyond_the_limit_are_counted() {
    let maker = Maker::new();
    let mut table = maker.table();
    let server = end("192.0.2.9", 53);
    let datagram = |number: u32| Datagram {
        source: (IpAddr::from(std::net::Ipv4Addr::from_bits(number)), 1),
        dest: server,
        token: Ok(None),
    };
    for number in 0..MAX_FLOWS as u32 + 3 {
        table.add_datagram(1, TIME, &datagram(number));
    }
    // Another verdict of one that is known has no room either.
    table.add_datagram(1, None, &datagram(0));
    table.add_datagram(1, TIME, &datagram(0));
    assert_eq!((table.flows().len(), table.beyond()), (MAX_FLOWS, 4));
    assert_eq!(table.flows()[0].packets, 2);
    assert_eq!(table.datagrams.len(), MAX_FLOWS);
}

#[test]
fn connections_beyond_the_limit_are_counted() {
    let maker = Maker::new();
    let mut table = maker.table();
    let server = end("192.0.2.9", 80);
    for number in 0..MAX_FLOWS as u32 + 3 {
        let client = (IpAddr::from(std::net::Ipv4Addr::from_bits(number)), 1);
        table.add(1, TIME, &segment(client, server, 5, ACK, &[]), false);
    }
    assert_eq!((table.flows().len(), table.beyond()), (MAX_FLOWS, 3));
    // Those that are known go on.
    let first = (IpAddr::from([0, 0, 0, 0]), 1);
    table.add(2, TIME, &segment(first, server, 6, ACK, &[]), false);
    assert_eq!((table.flows()[0].packets, table.beyond()), (2, 3));
}

#[test]
fn of_many_refused_segments_the_first_are_named() {
    let maker = Maker::new();
    let mut table = maker.table();
    let (client, server) = (end("192.0.2.1", 1), end("192.0.2.9", 80));
    let good = maker.options(client, server, 5);
    table.add(1, TIME, &segment(client, server, 5, SYN, &good), false);
    let mut token = [0; 16];
    token[..6].copy_from_slice(&[254, 16, 0x77, 0x65, 0x81, 9]);
    let refused = segment(client, server, 6, ACK, &token);
    let most = MAX_NAMED as u64;
    for number in 2..most + 12 {
        table.add(number, TIME, &refused, false);
    }
    let segments = table.flows()[0].segments().unwrap();
    assert_eq!(segments.refused(), most + 10);
    assert_eq!(segments.named().len(), MAX_NAMED);
    let last = segments.named().last().unwrap();
    assert_eq!(
        last,
        &(most + 1, SegmentVerdict::Refused(Refusal::UnknownKey))
    );
}
