//! What a gateway forwards, on tc and on XDP: against the reference, parts of packets, ICMP
//! errors, connections that were there before, and a table of connections that is full.

use std::thread;

use weir_bpf::token::{Forwarded, GatewayKind, GatewayProgram};

use super::*;

/// Networks that are protected.
const TO: [&str; 2] = ["198.51.100.0/24", "2001:db8:9::/48"];
const SHOT: u32 = 2;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

impl Known {
    /// The requirement of the others, about what is forwarded.
    fn forwards(&self, takes_up: u32) -> TokenPolicy {
        let mut policy = self.policy();
        policy.requirements[0].forwarded = Some(Forwarded {
            to: TO.map(|text| text.parse().unwrap()).to_vec(),
            takes_up,
        });
        policy
    }
}

/// A gateway that judges at one hook, with tables of its own.
struct Gateway {
    lab: Lab,
    tokens: Tokens,
    loaded: Loaded,
    program: GatewayProgram,
    kind: GatewayKind,
}

impl Gateway {
    fn both(name: &str) -> impl Iterator<Item = Self> {
        let kinds = [GatewayKind::Forward, GatewayKind::ForwardXdp];
        kinds.into_iter().map(move |kind| {
            let (lab, tokens, loaded) = Lab::load(&format!("{name}-{}", kind as u32));
            let program = loaded.gateway(kind).unwrap();
            Self {
                lab,
                tokens,
                loaded,
                program,
                kind,
            }
        })
    }

    /// Whether a frame passes; `None`: too short for the kernel to make a packet of it.
    fn ran(&self, frame: &[u8]) -> Option<bool> {
        let [program, _] = self.program.programs();
        let verdict = prog_test_run::packet(program, frame, 1).ok()?.verdict;
        let [pass, drop] = match self.kind {
            GatewayKind::ForwardXdp => [XDP_PASS, XDP_DROP],
            _ => [u32::MAX, SHOT],
        };
        assert!(verdict == pass || verdict == drop, "{verdict}");
        Some(verdict == pass)
    }

    fn passes(&self, frame: &[u8]) -> bool {
        self.ran(frame).expect("a packet")
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.tokens.outcomes(0).unwrap()[outcome as usize]
    }

    /// Checks that a frame passes, or not, and counts as this.
    fn says(&self, outcome: Outcome, frame: &[u8], what: &str) {
        let before = self.count(outcome);
        assert_eq!(self.passes(frame), outcome.passes(), "{what} {frame:02x?}");
        assert_eq!(self.count(outcome), before + 1, "{what}: {outcome:?}");
    }

    /// Checks that a frame passes, and that nothing counts.
    fn ignores(&self, frame: &[u8], what: &str) {
        let before = self.tokens.outcomes(0).unwrap();
        assert!(self.passes(frame), "{what} {frame:02x?}");
        assert_eq!(self.tokens.outcomes(0).unwrap(), before, "{what}");
    }
}

#[test]
fn root_a_gateway_judges_as_the_reference_does() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-same") {
        gateway.tokens.put_policy(&known.forwards(0)).unwrap();
        let mut expected = Expected {
            verifier: Verifier {
                keys: vec![(known.id, &known.secret)],
                identities: vec![known.identity],
            },
            identity: known.identity,
            flows: HashMap::new(),
            counts: HashMap::new(),
        };
        let to = TO.map(|text| text.parse::<weir_core::Prefix>().unwrap());
        let mut random = Random(0xf0d);
        let mut unsure = 0;
        for number in 0..PACKETS {
            let is_v6 = random.below(2) == 1;
            let kind = random.below(10);
            let of = (epoch() + random.below(6) as u64).saturating_sub(3);
            let mut frame = known.syn(&mut random, is_v6, if kind < 4 { of } else { epoch() });
            if random.below(4) == 0 {
                frame = Known::with_token_in_ip(frame, random.below(3) == 0);
            }
            for _ in 0..random.below(4) {
                let at = 14 + random.below(frame.len() - 14);
                frame[at] ^= 1 << random.below(8);
            }
            if random.below(8) == 0 {
                frame.truncate(14 + random.below(frame.len() - 14));
            }
            if frame.len() > 14 + 27 && random.below(6) == 0 {
                let at = frame.len() - 27;
                frame[at] ^= 0x12;
            }
            let version = if frame[12] == 8 { 4 } else { 6 };
            let read = Segment::read(packet_of(&frame)).filter(|_| frame[14] >> 4 == version);
            let Some(segment) = read else {
                // Whatever it is, there is an answer. A part of a packet may be of a flow.
                if version == 6 || frame.len() < 22 || frame[20] & 0x3f == 0 && frame[21] == 0 {
                    let _ = gateway.ran(&frame);
                }
                continue;
            };
            let is_protected = to.iter().any(|prefix| prefix.contains(segment.dest.0));
            let before = epoch();
            let Some(passes) = gateway.ran(&frame) else {
                continue;
            };
            let outcome = match is_protected {
                true => expected.judge(&frame, before),
                false => None,
            };
            if let Some(outcome) = outcome {
                *expected.counts.entry(outcome).or_default() += 1;
            }
            if before != epoch() {
                unsure += 1;
                continue;
            }
            let may_pass = matches!(outcome, None | Some("valid" | "proven"));
            assert_eq!(
                passes, may_pass,
                "packet {number}: {outcome:?} {frame:02x?}"
            );
        }
        for (outcome, count) in Outcome::ALL
            .into_iter()
            .zip(gateway.tokens.outcomes(0).unwrap())
        {
            let name = outcome.name();
            let wanted = expected.counts.get(name).copied().unwrap_or(0);
            println!("{:?} {name} {count}", gateway.kind);
            // What the reference does not read is malformed here, or no packet of TCP.
            if !matches!(outcome, Outcome::Malformed | Outcome::Missing) {
                assert!(count.abs_diff(wanted) <= unsure, "{name} {count} {wanted}");
            }
            assert!(count > 0 || outcome == Outcome::Free, "{name}");
        }
    }
}

/// A frame of IPv4 with other words of the fragment offset, or one of IPv6 with a fragment
/// header in front of what is behind its own header.
fn fragment(frame: &[u8], offset: u16, more: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    match frame[12] == 8 {
        true => {
            let word = offset | u16::from(more) << 13;
            frame[20..22].copy_from_slice(&word.to_be_bytes());
            frame
        }
        false => {
            let word = (offset << 3 | u16::from(more)).to_be_bytes();
            let header = [frame[20], 0, word[0], word[1], 0, 0, 0, 9];
            frame[20] = 44;
            frame[19] += 8;
            [&frame[..54], &header, &frame[54..]].concat()
        }
    }
}

/// An ICMP error from a router about what the protected host has sent on this flow.
fn error_about(flow: Flow, protocol: u8) -> Vec<u8> {
    let ((client, client_port), (server, server_port)) = flow;
    let ports = [server_port.to_be_bytes(), client_port.to_be_bytes()].concat();
    let mut frame = vec![0; 12];
    match (client, server) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            frame.extend([8, 0, 0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0, 0]);
            frame.extend([203, 0, 113, 9]);
            frame.extend(server.octets());
            frame.extend([3, 4, 0, 0, 0, 0, 5, 0]);
            frame.extend([0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 63, protocol, 0, 0]);
            frame.extend([server.octets(), client.octets()].concat());
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 56, 58, 64]);
            frame.extend([0x20, 1, 0xd, 0xb8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
            frame.extend(server.octets());
            frame.extend([2, 0, 0, 0, 0, 0, 5, 0]);
            frame.extend([0x60, 0, 0, 0, 5, 0xb4, protocol, 63]);
            frame.extend([server.octets(), client.octets()].concat());
        }
        _ => unreachable!("both are of one family"),
    }
    frame.extend(ports);
    frame.extend([0; 4]);
    frame
}

#[test]
fn root_no_form_of_a_packet_gets_by_a_gateway() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-forms") {
        gateway.tokens.put_policy(&known.forwards(0)).unwrap();
        for v6 in [false, true] {
            let of = |port| flow(v6, port);
            let later = |flow: Flow| {
                let mut frame = known.frame(flow.0, flow.1, 7, epoch(), &[], 0);
                let flags = if v6 { 40 } else { 20 } + 14 + 13;
                frame[flags] = 0x10;
                frame
            };
            let syn = |flow: Flow| known.frame(flow.0, flow.1, 7, epoch(), &[], 0);
            let good = of(40_000);
            gateway.says(Outcome::NoFlow, &later(good), "before its SYN");
            let about = |flow| error_about(flow, 6);
            gateway.says(Outcome::NoFlow, &about(good), "an error about no flow");
            gateway.says(Outcome::Valid, &syn(good), "a SYN");
            gateway.says(Outcome::Proven, &later(good), "a later segment");
            gateway.says(Outcome::Proven, &about(good), "an error about the flow");
            gateway.says(Outcome::Replayed, &syn(good), "the SYN again");

            // Of a flow of another port nothing is wanted.
            let mut open = good;
            open.1.1 = 22;
            gateway.ignores(&later(open), "another port");
            gateway.ignores(&about(open), "an error about another port");
            let mut far = good;
            far.1.0 = if v6 { far.0.0 } else { [192, 0, 2, 7].into() };
            gateway.ignores(&later(far), "another network");
            let mut free = good;
            free.0.0 = match v6 {
                true => "2001:db9::1".parse().unwrap(),
                false => [203, 0, 113, 1].into(),
            };
            gateway.ignores(&later(free), "a source that needs none");

            // Parts of packets.
            let other = of(40_001);
            gateway.says(
                Outcome::NoFlow,
                &fragment(&later(other), 0, true),
                "the first part of a segment of no flow",
            );
            gateway.says(
                Outcome::Valid,
                &fragment(&syn(other), 0, true),
                "the first part of a SYN",
            );
            gateway.says(
                Outcome::Proven,
                &fragment(&later(other), 0, true),
                "the first part of a segment",
            );
            gateway.ignores(&fragment(&later(of(40_002)), 9, true), "a later part");
            let mut cut = fragment(&later(of(40_002)), 0, true);
            cut.truncate(cut.len() - 21);
            gateway.says(Outcome::Malformed, &cut, "a part with half a header");
            gateway.says(
                Outcome::Malformed,
                &fragment(&later(of(40_002)), 1, false),
                "a part that overwrites the flags",
            );
            // More headers than are looked at.
            if v6 {
                let many = of(40_009);
                let many = known.frame(many.0, many.1, 7, epoch(), &[], 6);
                gateway.says(Outcome::Valid, &many, "six headers");
                let many = known.frame(good.0, good.1, 7, epoch(), &[], 7);
                gateway.says(Outcome::Malformed, &many, "seven headers");
            }

            // Behind tags the frame is the same one.
            for tags in 1..=4 {
                for tag in [[0x81, 0, 0, 0], [0x81, 0, 0, 7], [0x88, 0xa8, 0, 0]] {
                    let tagged = |frame: &[u8]| tagged(frame, &tag.repeat(tags));
                    gateway.says(Outcome::NoFlow, &tagged(&later(of(40_003))), "tags");
                    gateway.says(Outcome::Proven, &tagged(&later(good)), "tags");
                    gateway.ignores(&tagged(&later(open)), "another port behind tags");
                }
            }
            let many = tagged(&later(good), &[0x81, 0, 0, 0].repeat(5));
            gateway.says(Outcome::Malformed, &many, "too many tags");
            let cut = tagged(&later(good)[..14], &[0x81, 0, 0, 0]);
            assert!(!gateway.passes(&cut[..16]), "half a tag");

            // Datagrams.
            let with = datagrams::frame(&known, good, Some(epoch()), 0);
            let without = datagrams::frame(&known, good, None, 0);
            gateway.says(Outcome::Missing, &without, "a datagram without");
            gateway.says(
                Outcome::Missing,
                &fragment(&without, 0, true),
                "the first part of one",
            );
            let error = error_about(good, 17);
            gateway.says(Outcome::NoFlow, &error, "an error about it");
            gateway.says(Outcome::Valid, &with, "a datagram");
            gateway.says(Outcome::Proven, &without, "one without on its flow");
            gateway.says(Outcome::Proven, &error, "an error about it");
            gateway.says(
                Outcome::Proven,
                &fragment(&without, 0, true),
                "the first part of one",
            );

            // Errors that do not say, or say elsewhere, whom they are about.
            let about = error_about(good, 17);
            let part = |frame: &[u8]| [fragment(frame, 0, true), fragment(frame, 3, false)];
            let [first, rest] = part(&about);
            gateway.says(Outcome::Malformed, &first, "an error in parts");
            gateway.ignores(&rest, "the rest of it");
            let quote = 14 + if v6 { 48 } else { 28 };
            let mut later = about.clone();
            match v6 {
                true => {
                    later[quote + 6] = 44;
                    later.splice(quote + 40..quote + 40, [17, 0, 0, 8, 0, 0, 0, 1]);
                }
                false => later[quote + 7] = 1,
            }
            set_length(&mut later);
            gateway.says(Outcome::Malformed, &later, "an error about a later part");
            let mut short = about.clone();
            short.truncate(quote + if v6 { 41 } else { 21 });
            set_length(&mut short);
            gateway.says(Outcome::Malformed, &short, "an error without the ports");
            if v6 {
                for (header, count) in [(&[60, 0, 1, 4, 0, 0, 0, 0][..], 7), (&[17, 1], 1)] {
                    let mut headers = header.repeat(count);
                    headers.resize(headers.len().next_multiple_of(8), 0);
                    let end = headers.len();
                    let kind = if count > 1 { 60 } else { 51 };
                    if count > 1 {
                        headers[end - 8] = 17;
                    } else {
                        headers.extend([0; 4]);
                    }
                    let mut behind = about.clone();
                    behind[quote + 6] = kind;
                    behind.splice(quote + 40..quote + 40, headers);
                    set_length(&mut behind);
                    gateway.says(Outcome::Malformed, &behind, "an error about headers");
                }
            }

            // Neither TCP nor UDP.
            let mut echo = error_about(good, 6);
            echo[if v6 { 54 } else { 34 }] = if v6 { 128 } else { 8 };
            gateway.ignores(&echo, "a ping");
            gateway.ignores(&fragment(&echo, 0, true), "the first part of a long one");
        }
        // Rules of iptables and sockets have nothing of it.
        let flow = flow(false, 40_000);
        let syn = known.frame(flow.0, flow.1, 7, epoch(), &[], 0);
        let ran = prog_test_run::packet(gateway.loaded.matcher(), &syn, 1);
        assert_eq!(ran.unwrap().verdict, 0);
        let _ = &gateway.lab;
    }
}

/// What is signed is a whole segment: a first part whose own bytes are as they were signed, as of
/// an acknowledgement that somebody has seen, lets nothing in behind it.
#[test]
fn root_a_part_proves_nothing_where_each_segment_does() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-part") {
        let mut policy = known.forwards(0);
        policy.requirements[0].scope = Scope::Payload;
        policy.requirements[0].udp_ports = Vec::new();
        gateway.tokens.put_policy(&policy).unwrap();
        for v6 in [false, true] {
            let flow = flow(v6, 40_000);
            let syn = known.frame(flow.0, flow.1, segments::ISN, epoch(), &[], 0);
            gateway.says(Outcome::Valid, &syn, "the SYN");
            for payload in [&b""[..], b"12345678"] {
                let whole = known.segment_with(flow, payload, epoch());
                gateway.says(Outcome::Proven, &whole, "a segment");
                let first = fragment(&whole, 0, true);
                gateway.says(Outcome::Malformed, &first, "the first part of one");
                if v6 {
                    let around = fragment(&fragment(&whole, 0, false), 0, true);
                    gateway.says(Outcome::Malformed, &around, "around a whole one");
                    let within = fragment(&fragment(&whole, 0, true), 0, false);
                    gateway.says(Outcome::Malformed, &within, "within a whole one");
                }
                gateway.says(Outcome::Proven, &whole, "the segment");
            }
        }
    }
}

/// A frame with these tags of VLANs.
fn tagged(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    [&frame[..12], tags, &frame[12..]].concat()
}

/// A receiver takes off what a frame has behind its packet: tokens there are none, and where
/// all that a segment carries is signed, it is signed without that.
#[test]
fn root_what_stands_behind_a_packet_is_no_part_of_it() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-behind") {
        for v6 in [false, true] {
            gateway.tokens.put_policy(&known.forwards(0)).unwrap();
            let of = |port| flow(v6, port);
            let syn = |flow: Flow| known.frame(flow.0, flow.1, segments::ISN, epoch(), &[], 0);
            let length = if v6 { 19 } else { 17 };
            let padded = |frame: &[u8]| [frame, &[0; 9]].concat();
            // The header says that it has options, but the packet ends before them, or in them.
            for cut in [1, 20, 21] {
                let mut behind = syn(of(41_000));
                behind[length] -= cut;
                gateway.says(Outcome::Malformed, &behind, "a token behind the packet");
                gateway.says(
                    Outcome::Malformed,
                    &padded(&behind),
                    "and more of the frame",
                );
            }
            let mut behind = datagrams::frame(&known, of(41_000), None, 0);
            behind[length] -= 9;
            gateway.says(Outcome::Malformed, &behind, "ports behind the packet");
            // Padding, as small frames have it.
            gateway.says(Outcome::Valid, &padded(&syn(of(41_000))), "a padded SYN");
            let with = datagrams::frame(&known, of(41_001), Some(epoch()), 0);
            gateway.says(Outcome::Valid, &padded(&with), "a padded datagram");

            let mut policy = known.forwards(0);
            policy.requirements[0].scope = Scope::Payload;
            policy.requirements[0].udp_ports = Vec::new();
            gateway.tokens.put_policy(&policy).unwrap();
            let segment = known.segment_with(of(41_000), b"GET / HTTP/1.0\r\n\r\n", epoch());
            gateway.says(Outcome::Proven, &segment, "a segment");
            gateway.says(Outcome::Proven, &padded(&segment), "a padded segment");
            let mut shorter = segment.clone();
            shorter[length] -= 2;
            gateway.says(Outcome::WrongMac, &shorter, "its last bytes are cut off");
            let mut fast = syn(of(41_002));
            fast.extend(b"GET /");
            set_length(&mut fast);
            gateway.says(Outcome::Missing, &fast, "a SYN with data");
            gateway.says(Outcome::Valid, &padded(&syn(of(41_002))), "a padded SYN");
        }
    }
}

/// The first part of a packet ends in the middle of a chain of headers, which the next part
/// goes on with to TCP: what stands behind the part in its frame does not end the chain.
#[test]
fn root_no_chain_of_headers_ends_behind_its_packet() {
    let known = Known::new();
    let header = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    for gateway in Gateway::both("fwd-chain") {
        gateway.tokens.put_policy(&known.forwards(0)).unwrap();
        let (source, dest) = flow(true, 42_000);
        let mut first = known.frame(source, dest, 7, epoch(), &[], 0);
        first.truncate(54);
        first[20] = 44;
        first.extend([60, 0, 0, 1, 0, 0, 0, 9]);
        first.extend([header(60), header(60)].concat());
        set_length(&mut first);
        gateway.says(Outcome::Malformed, &first, "an open chain");
        for (next, what) in [(59, "nothing"), (58, "ICMP"), (17, "UDP"), (99, "another")] {
            let closed = [&first[..], &header(next), &[0; 24]].concat();
            gateway.says(Outcome::Malformed, &closed, what);
        }
        // Half a header is none.
        let mut half = [&first[..], &header(59)].concat();
        half.truncate(half.len() - 4);
        set_length(&mut half);
        half.extend([0; 24]);
        gateway.says(Outcome::Malformed, &half, "half a header");
    }
}

/// Of several requirements that what cannot be judged may be about the one that drops counts, and
/// not the first one of the file.
#[test]
fn root_what_cannot_be_judged_passes_only_where_every_requirement_logs() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-strict") {
        let mut logs = known.forwards(0);
        logs.requirements[0].drops = false;
        logs.requirements[0].ports = vec![(7000, 7000)];
        let mut both = logs.clone();
        both.requirements.extend(known.forwards(0).requirements);
        for v6 in [false, true] {
            let about = flow(v6, 40_000);
            let mut segment = known.frame(about.0, about.1, 7, epoch(), &[], 0);
            let mut forms = vec![(
                "a part that overwrites the flags",
                fragment(&segment, 1, false),
            )];
            let mut cut = fragment(&segment, 0, true);
            cut.truncate(cut.len() - segment.len() + if v6 { 14 + 40 + 8 } else { 14 + 20 + 8 });
            set_length(&mut cut);
            forms.push(("a first part of eight bytes", cut));
            if v6 {
                segment = known.frame(about.0, about.1, 7, epoch(), &[], 7);
                forms.push(("seven headers", segment));
            }
            let error = error_about(about, 17);
            forms.push(("an error in parts", fragment(&error, 0, true)));
            let tags = [0x81, 0, 0, 0].repeat(5);
            forms.push(("too many tags", tagged(&error, &tags)));
            for (what, frame) in &forms {
                gateway.tokens.put_policy(&logs).unwrap();
                assert!(gateway.passes(frame), "it logs: {what}");
                assert_eq!(gateway.count(Outcome::Malformed), 1, "{what}");
                gateway.tokens.put_policy(&both).unwrap();
                assert!(
                    !gateway.passes(frame),
                    "another one drops: {what} {frame:02x?}"
                );
                let counts = [0, 1].map(|of| gateway.tokens.outcomes(of).unwrap());
                let malformed = counts.map(|of| of[Outcome::Malformed as usize]);
                assert_eq!(malformed, [0, 1], "{what}");
            }
            // What is about other sources, or other networks, has no part in it.
            let mut elsewhere = both.clone();
            elsewhere.requirements[1].networks = Some(vec!["203.0.113.0/24".parse().unwrap()]);
            gateway.tokens.put_policy(&elsewhere).unwrap();
            let cut = &forms[1].1;
            assert!(gateway.passes(cut), "of another source {cut:02x?}");
            let mut elsewhere = both.clone();
            let forwarded = elsewhere.requirements[1].forwarded.as_mut().unwrap();
            forwarded.to = vec!["203.0.113.0/24".parse().unwrap()];
            gateway.tokens.put_policy(&elsewhere).unwrap();
            // Nobody knows to whom a frame goes that has too many tags.
            for (what, frame) in &forms {
                let passes = *what != "too many tags";
                assert_eq!(gateway.passes(frame), passes, "to another network: {what}");
            }
        }
    }
}

#[test]
fn root_a_gateway_takes_up_connections_for_its_time_only() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-before") {
        for v6 in [false, true] {
            let later = |port| {
                let flow = flow(v6, port);
                let mut frame = known.frame(flow.0, flow.1, 7, epoch(), &[], 0);
                frame[if v6 { 40 } else { 20 } + 14 + 13] = 0x10;
                frame
            };
            let none = [Outcome::NoFlow, Outcome::Missing];
            let unsigned = |port| {
                let mut frame = later(port);
                frame[if v6 { 40 } else { 20 } + 14 + 13] = 2;
                let end = frame.len() - 20;
                // Another experiment's option.
                frame[end + 2] = 0;
                frame
            };
            gateway.tokens.put_policy(&known.forwards(0)).unwrap();
            gateway.says(none[0], &later(1), "none is taken up");
            gateway.tokens.put_policy(&known.forwards(2)).unwrap();
            for _ in 0..3 {
                gateway.says(Outcome::Free, &later(1), "it was there before");
            }
            gateway.says(none[1], &unsigned(2), "a SYN begins anew");
            thread::sleep(Duration::from_millis(2_100));
            // Also over the next policies and daemons.
            for _ in 0..2 {
                gateway.says(Outcome::Free, &later(1), "it has been taken up");
                gateway.says(none[0], &later(3), "its time is over");
                gateway.tokens.put_policy(&known.forwards(2)).unwrap();
            }
            gateway.tokens.put_policy(&known.forwards(0)).unwrap();
            gateway.says(none[0], &later(1), "none is any more");
        }
    }
}

/// Where a requirement only logs, a SYN that proves nothing passes, and begins a connection: who
/// had its ports before says nothing about it, also when the requirement drops.
#[test]
fn root_a_connection_that_was_only_logged_is_not_that_of_who_was_there_before() {
    let known = Known::new();
    for gateway in Gateway::both("fwd-logged") {
        let mut logs = known.forwards(0);
        logs.requirements[0].drops = false;
        for v6 in [false, true] {
            let flow = flow(v6, 40_100);
            let flags = if v6 { 40 } else { 20 } + 14 + 13;
            let syn = known.frame(flow.0, flow.1, 7, epoch(), &[], 0);
            let mut later = syn.clone();
            later[flags] = 0x10;
            // Another experiment's option. The sequence number is that of another connection.
            let mut unsigned = known.frame(flow.0, flow.1, 9, epoch(), &[], 0);
            let end = unsigned.len() - 20;
            unsigned[end + 2] = 0;
            gateway.tokens.put_policy(&known.forwards(0)).unwrap();
            let before = gateway.tokens.forward_flows().unwrap();
            gateway.says(Outcome::Valid, &syn, "it is signed");
            gateway.says(Outcome::Proven, &later, "it follows");
            gateway.says(
                Outcome::Missing,
                &unsigned,
                "it is dropped, and changes nothing",
            );
            gateway.says(Outcome::Proven, &later, "it goes on");
            gateway.tokens.put_policy(&logs).unwrap();
            assert!(gateway.passes(&unsigned), "it logs");
            gateway.tokens.put_policy(&known.forwards(0)).unwrap();
            gateway.says(Outcome::NoFlow, &later, "nobody has proven this one");
            // None has had to go for others.
            assert_eq!(gateway.tokens.forward_flows().unwrap(), before);
        }
    }
}

#[test]
fn root_of_too_many_forwarded_connections_the_least_used_go() {
    let known = Known::new();
    let most = weir_bpf::token::MAX_FORWARD_FLOWS as u32;
    for gateway in Gateway::both("fwd-full") {
        gateway.tokens.put_policy(&known.forwards(0)).unwrap();
        let client = |number: u32| -> Flow {
            let source = IpAddr::from([192, 0, 2, (number / 50_000) as u8]);
            let port = 1024 + (number % 50_000) as u16;
            ((source, port), ([198, 51, 100, 9].into(), PORTS.0))
        };
        let frame = |number, flags| {
            let (source, dest) = client(number);
            let mut frame = known.frame(source, dest, 7, epoch(), &[], 0);
            frame[14 + 20 + 13] = flags;
            frame
        };
        for number in 0..most + 10_000 {
            assert!(gateway.passes(&frame(number, 2)), "{number}");
        }
        let counts = gateway.tokens.forward_flows().unwrap();
        assert!(counts.present <= most.into(), "{counts:?}");
        assert_eq!(
            counts.evicted,
            u64::from(most) + 10_000 - counts.present,
            "{counts:?}"
        );
        gateway.says(Outcome::NoFlow, &frame(0, 0x10), "the first one");
        gateway.says(Outcome::Proven, &frame(most + 9_999, 0x10), "the last one");
    }
}

/// Instructions that the verifier may look at, by kind of program; on Linux 6.1, which goes through
/// what calls back for each of its calls, three times as many.
const MOST_OF_GATEWAY: [(GatewayKind, u64); 4] = [
    (GatewayKind::Forward, 250_000),
    (GatewayKind::ForwardXdp, 250_000),
    (GatewayKind::StripIn, 29_000),
    (GatewayKind::StripOut, 13_500),
];

#[test]
fn root_programs_of_a_gateway_pass_the_verifier_with_room() {
    let (_lab, _tokens, loaded) = Lab::load("fwd-loads");
    let uname = rustix::system::uname();
    let is_older = uname.release().to_bytes().starts_with(b"6.1.");
    for (kind, most) in MOST_OF_GATEWAY {
        let most = if is_older { most * 3 } else { most };
        let gateway = loaded.gateway(kind).unwrap();
        for program in gateway.programs() {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            let line = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
            let insns: u64 = line.unwrap().trim().parse().unwrap();
            println!("{kind:?} {insns}");
            assert!(insns > 0 && insns <= most, "{kind:?} {insns} of {most}");
        }
    }
}
