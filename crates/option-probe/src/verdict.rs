//! What became of an option: the packet that arrived beside the one that was sent, and a
//! verdict over several tries.

use std::fmt;

use weir_options::{Layer, OptionSpec};

use crate::packet::PacketParts;

/// What one packet that arrived shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The option is as it was sent.
    Passed,
    /// The option is not there any more.
    Stripped,
    /// The option is there with other data, or the packet cannot be read any more.
    Altered,
}

/// Options that routers write into: their length has to stay, not their data.
fn is_written_on_the_way(layer: Layer, number: u8) -> bool {
    match layer {
        // Record route, timestamp, traceroute, quick-start.
        Layer::Ip => matches!(number, 7 | 68 | 82 | 25),
        // RFC 8200 4.2: the third bit says that the data may change.
        Layer::HopByHop | Layer::Destination => number & 0x20 != 0,
        _ => false,
    }
}

/// The data of the options of a kind, one behind the other in `bytes`. `Err`: they are cut.
fn find_data(bytes: &[u8], layer: Layer, number: u8) -> Result<Vec<&[u8]>, ()> {
    let head = match layer {
        Layer::HopByHop | Layer::Destination => 0,
        _ => 2,
    };
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((&kind, behind)) = rest.split_first() {
        if layer.is_single_byte(kind) {
            rest = behind;
            // The end of a list, but in a header of IPv6, where 0 is padding.
            if kind == 0 && head == 2 {
                break;
            }
            continue;
        }
        let length = usize::from(*behind.first().ok_or(())?);
        let data = length.checked_sub(head).ok_or(())?;
        let data = behind.get(1..=data).ok_or(())?;
        if kind == number {
            found.push(data);
        }
        rest = &behind[1 + data.len()..];
    }
    Ok(found)
}

/// Compares a packet that arrived with the one that was sent with this option.
pub fn compare(option: &OptionSpec, sent: &[u8], arrived: &[u8]) -> Change {
    let (Some(sent), Some(arrived)) = (PacketParts::read(sent), PacketParts::read(arrived)) else {
        return Change::Altered;
    };
    let header = |parts: &PacketParts<'_>, number: u8| -> Vec<u8> {
        let mut of_kind = parts.extensions.iter().filter(|(n, _)| *n == number);
        // Behind the number of what follows, and the length.
        let bytes = of_kind.next().and_then(|(_, bytes)| bytes.get(2..));
        bytes.map(<[u8]>::to_vec).unwrap_or_default()
    };
    let area = |parts: &PacketParts<'_>| match option.layer {
        Layer::Ip => parts.ip_options.to_vec(),
        Layer::Tcp => parts.tcp_options.to_vec(),
        Layer::Udp => parts.surplus.to_vec(),
        Layer::HopByHop => header(parts, 0),
        Layer::Destination => header(parts, 60),
        Layer::Extension => header(parts, option.number),
    };
    let (sent, arrived) = (area(&sent), area(&arrived));
    if sent == arrived {
        return Change::Passed;
    }
    let is_empty = arrived.iter().all(|byte| *byte == 0);
    if is_empty {
        return Change::Stripped;
    }
    if option.layer == Layer::Extension || option.layer.is_single_byte(option.number) {
        return Change::Altered;
    }
    // Of a surplus area the option checksum stands before the options.
    let from = if option.layer == Layer::Udp { 2 } else { 0 };
    let Some(options) = arrived.get(from..) else {
        return Change::Altered;
    };
    match find_data(options, option.layer, option.number) {
        Ok(found) if found.is_empty() => Change::Stripped,
        Ok(found) => {
            let is_same = |data: &&[u8]| match is_written_on_the_way(option.layer, option.number) {
                true => data.len() == option.data.len(),
                false => **data == option.data[..],
            };
            match found.iter().any(is_same) {
                true => Change::Passed,
                false => Change::Altered,
            }
        }
        Err(()) => Change::Altered,
    }
}

/// What a path makes of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Every packet arrived with it.
    Pass,
    /// Every packet arrived without it.
    Stripped,
    /// Every packet arrived with it changed.
    Altered,
    /// No packet with it arrived, and packets without it did.
    Dropped,
    /// Some packets fared otherwise than others: several paths, or loss.
    Mixed,
    /// Packets without it do not arrive either.
    NoPath,
}

impl Verdict {
    /// All verdicts, in the order of tables.
    pub const ALL: [Self; 6] = [
        Self::Pass,
        Self::Stripped,
        Self::Altered,
        Self::Dropped,
        Self::Mixed,
        Self::NoPath,
    ];

    /// The word of results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Stripped => "stripped",
            Self::Altered => "altered",
            Self::Dropped => "dropped",
            Self::Mixed => "mixed",
            Self::NoPath => "no-path",
        }
    }

    /// One letter, for a matrix.
    pub fn letter(self) -> char {
        match self {
            Self::Pass => 'P',
            Self::Stripped => 'S',
            Self::Altered => 'A',
            Self::Dropped => 'D',
            Self::Mixed => 'M',
            Self::NoPath => '-',
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Tries by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets that were sent.
    pub sent: u16,
    /// Arrived with the option as it was.
    pub passed: u16,
    /// Arrived without the option.
    pub stripped: u16,
    /// Arrived with another one.
    pub altered: u16,
}

impl Tally {
    /// Counts one packet that arrived.
    pub fn add(&mut self, change: Change) {
        match change {
            Change::Passed => self.passed += 1,
            Change::Stripped => self.stripped += 1,
            Change::Altered => self.altered += 1,
        }
    }

    /// Packets that arrived.
    pub fn arrived(&self) -> u16 {
        self.passed
            .saturating_add(self.stripped)
            .saturating_add(self.altered)
    }

    /// The verdict, beside packets without an option on the same path (all of them `passed`).
    pub fn verdict(&self, plain: &Tally) -> Verdict {
        match (self.sent, self.arrived()) {
            (_, 0) if plain.arrived() == 0 => Verdict::NoPath,
            (_, 0) => Verdict::Dropped,
            (sent, _) if self.passed == sent => Verdict::Pass,
            (sent, _) if self.stripped == sent => Verdict::Stripped,
            (sent, _) if self.altered == sent => Verdict::Altered,
            _ => Verdict::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use weir_options::CODEPOINTS;

    use super::*;
    use crate::probe_packet::{Carrier, MAX_PROBE, Marker, Path, craft};

    const MARKER: Marker = Marker {
        run: 0xdead_beef,
        index: 77,
    };

    fn path(is_v4: bool) -> Path {
        let addresses: [IpAddr; 2] = match is_v4 {
            true => [
                "192.0.2.1".parse().unwrap(),
                "198.51.100.1".parse().unwrap(),
            ],
            false => [
                "2001:db8::1".parse().unwrap(),
                "2001:db8::2".parse().unwrap(),
            ],
        };
        Path {
            source: addresses[0],
            dest: addresses[1],
            port: 443,
        }
    }

    /// Every option of the table on every packet that can have it.
    fn all_probes() -> Vec<(OptionSpec, Carrier, bool)> {
        let mut probes = Vec::new();
        for codepoint in CODEPOINTS {
            let option: OptionSpec = format!("{}:{}", codepoint.layer.name(), codepoint.name)
                .parse()
                .unwrap();
            for (carrier, is_v4) in Carrier::ALL.iter().flat_map(|c| [(*c, true), (*c, false)]) {
                if carrier.can_carry(option.layer, is_v4) {
                    probes.push((option.clone(), carrier, is_v4));
                }
            }
        }
        probes
    }

    #[test]
    fn every_option_goes_into_a_packet_and_is_found_again() {
        let probes = all_probes();
        assert!(probes.len() > 200);
        for (option, carrier, is_v4) in probes {
            let sent = craft(&path(is_v4), carrier, Some(&option), MARKER).unwrap();
            assert!(sent.len() <= MAX_PROBE);
            let parts = PacketParts::read(&sent).unwrap();
            assert_eq!(
                (parts.source, parts.dest),
                (path(is_v4).source, path(is_v4).dest)
            );
            assert_eq!(
                Marker::find(&sent, MARKER.run),
                Some(MARKER),
                "{option} {carrier}"
            );
            assert_eq!(Marker::find(&sent, 7), None);
            assert_eq!(compare(&option, &sent, &sent), Change::Passed);
            let plain = craft(&path(is_v4), carrier, None, MARKER).unwrap();
            assert_eq!(
                compare(&option, &sent, &plain),
                Change::Stripped,
                "{option} {carrier}"
            );
        }
    }

    /// Packets of IP-in-IP, GRE and VXLAN with a packet in them.
    fn tunnels(inner: &[u8]) -> Vec<Vec<u8>> {
        let is_v4 = inner[0] >> 4 == 4;
        let ethertype: [u8; 2] = if is_v4 { [8, 0] } else { [0x86, 0xdd] };
        let vxlan = |length: usize| {
            let mut udp = vec![0xc0, 0, 0x12, 0xb5];
            udp.extend((length as u16 + 30).to_be_bytes());
            udp.extend([0, 0, 8, 0, 0, 0, 0, 0, 7, 0]);
            udp.extend([2; 12]);
            udp.extend(ethertype);
            udp
        };
        let heads = [
            (if is_v4 { 4 } else { 41 }, Vec::new()),
            (47, [[0, 0], ethertype].concat()),
            (17, vxlan(inner.len())),
        ];
        let outer = heads.into_iter().map(|(protocol, head)| {
            let mut outer = vec![0x45, 0];
            outer.extend((20 + head.len() as u16 + inner.len() as u16).to_be_bytes());
            outer.extend([0, 0, 0, 0, 63, protocol, 0, 0]);
            outer.extend([198, 51, 100, 1, 198, 51, 100, 2]);
            [&outer, &head, inner].concat()
        });
        outer.collect()
    }

    #[test]
    fn the_packet_of_a_tunnel_is_not_the_probe_in_it() {
        for (option, carrier, is_v4) in all_probes() {
            let sent = craft(&path(is_v4), carrier, Some(&option), MARKER).unwrap();
            for outer in tunnels(&sent) {
                assert!(PacketParts::read(&outer).is_some());
                assert_eq!(Marker::find(&outer, MARKER.run), None, "{option} {carrier}");
            }
        }
        // One that is changed so that it cannot be read any more still is a probe.
        let mut sent = craft(&path(true), Carrier::Udp, None, MARKER).unwrap();
        sent[24..26].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(PacketParts::read(&sent), None);
        assert_eq!(Marker::find(&sent, MARKER.run), Some(MARKER));
    }

    #[test]
    fn a_nat_that_writes_other_addresses_changes_no_option() {
        for (option, carrier, is_v4) in all_probes() {
            let mut outer = path(is_v4);
            // What the receiver sees: both ends have other addresses.
            std::mem::swap(&mut outer.source, &mut outer.dest);
            let sent = craft(&path(is_v4), carrier, Some(&option), MARKER).unwrap();
            let arrived = craft(&outer, carrier, Some(&option), MARKER).unwrap();
            assert_ne!(sent, arrived);
            assert_eq!(Marker::find(&arrived, MARKER.run), Some(MARKER));
            assert_eq!(compare(&option, &sent, &arrived), Change::Passed);
        }
    }

    #[test]
    fn padding_in_place_of_an_option_strips_it_and_other_data_alter_it() {
        let option: OptionSpec = "ip:94=00112233".parse().unwrap();
        let sent = craft(&path(true), Carrier::Udp, Some(&option), MARKER).unwrap();
        let with = |bytes: &[u8]| {
            let mut packet = sent.clone();
            packet[20..20 + bytes.len()].copy_from_slice(bytes);
            compare(&option, &sent, &packet)
        };
        assert_eq!(with(&[1; 8]), Change::Stripped);
        assert_eq!(with(&[0; 8]), Change::Stripped);
        assert_eq!(with(&[94, 6, 0, 0x11, 0x22, 0x34]), Change::Altered);
        assert_eq!(with(&[94, 4, 0, 0x11, 1, 1]), Change::Altered);
        assert_eq!(with(&[94, 40]), Change::Altered);
        assert_eq!(with(&[94, 0]), Change::Altered);
        // Moved.
        assert_eq!(with(&[1, 1, 94, 6, 0, 0x11, 0x22, 0x33]), Change::Passed);
        let route: OptionSpec = "ip:rr".parse().unwrap();
        let sent = craft(&path(true), Carrier::Icmp, Some(&route), MARKER).unwrap();
        let mut recorded = sent.clone();
        recorded[22..27].copy_from_slice(&[8, 10, 0, 0, 1]);
        assert_eq!(compare(&route, &sent, &recorded), Change::Passed);
    }

    #[test]
    fn a_verdict_is_of_all_tries() {
        let plain = Tally {
            sent: 3,
            passed: 3,
            ..Tally::default()
        };
        let tally = |passed, stripped, altered| Tally {
            sent: 3,
            passed,
            stripped,
            altered,
        };
        for (tally, verdict) in [
            (tally(3, 0, 0), Verdict::Pass),
            (tally(0, 3, 0), Verdict::Stripped),
            (tally(0, 0, 3), Verdict::Altered),
            (tally(0, 0, 0), Verdict::Dropped),
            (tally(2, 0, 0), Verdict::Mixed),
            (tally(1, 2, 0), Verdict::Mixed),
        ] {
            assert_eq!(tally.verdict(&plain), verdict);
        }
        let nothing = Tally {
            sent: 3,
            ..Tally::default()
        };
        assert_eq!(tally(0, 0, 0).verdict(&nothing), Verdict::NoPath);
        assert_eq!(tally(3, 0, 0).verdict(&nothing), Verdict::Pass);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..120), version in 0u8..3,
            number: u8, run: u32,
        ) {
            let mut packet = bytes;
            if let (Some(first), 1..) = (packet.first_mut(), version) {
                *first = (version * 2 + 2) << 4 | *first & 15;
            }
            let _ = PacketParts::read(&packet);
            let _ = Marker::find(&packet, run);
            for layer in Layer::ALL {
                let option = OptionSpec { layer, number, data: vec![1, 2] };
                prop_assert_eq!(compare(&option, &packet, &packet) == Change::Passed,
                    PacketParts::read(&packet).is_some());
            }
        }

        #[test]
        fn a_probe_that_is_cut_or_changed_anywhere_is_still_read(
            at in 0usize..120, bit in 0u32..8, probe in 0usize..200,
        ) {
            let probes = all_probes();
            let (option, carrier, is_v4) = &probes[probe % probes.len()];
            let sent = craft(&path(*is_v4), *carrier, Some(option), MARKER).unwrap();
            let _ = compare(option, &sent, &sent[..at.min(sent.len())]);
            let mut changed = sent.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 1 << bit;
            }
            let _ = compare(option, &sent, &changed);
            let _ = Marker::find(&changed, MARKER.run);
        }
    }
}
