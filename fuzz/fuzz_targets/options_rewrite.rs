//! Packets of any program that get options: what a queue makes of them is what the kernel's
//! program makes, by BPF_PROG_RUN. Without root only the former reads them.
#![no_main]

use std::net::IpAddr;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_bpf::{
    inject::{InjectConfig, InjectCounts, Injector},
    prog_test_run,
};
use weir_options::{FlowSelector, LeftAlone, OptionSpec, Rewritten, Sections, rewrite};

/// The MTU of loopback, by which BPF_PROG_RUN sends.
const MTU: usize = 65_536;
/// What the kernel makes no packet of.
const SHORTEST: usize = 14 + 40;
const LONGEST: usize = 1500;
/// Options of every layer, together or alone.
const OPTIONS: [&[&str]; 6] = [
    &["ip:94/8", "tcp:253/8", "udp:time", "dst:exp-1e"],
    &["ip:rr"],
    &["tcp:254/20"],
    &["udp:exp"],
    &["hop:padn", "dst:30/20", "ext:43"],
    &["ip:94/6", "udp:time", "ext:253"],
];

#[derive(Debug, Arbitrary)]
struct Input {
    options: u8,
    flows: u8,
    is_v6: bool,
    protocol: u8,
    header: Vec<u8>,
    transport: Vec<u8>,
    /// The lengths that are said are those that are there.
    is_whole: bool,
    changes: Vec<(u16, u8)>,
}

fn sections(number: usize) -> Sections {
    let specs = OPTIONS[number]
        .iter()
        .map(|text| text.parse::<OptionSpec>());
    let specs: Vec<_> = specs.map(|spec| spec.expect("it is an option")).collect();
    Sections::of(&specs).expect("they fit")
}

fn flows(number: usize) -> FlowSelector {
    let to = |addr: [u8; 4], bits| vec![(IpAddr::from(addr), bits)];
    match number {
        0 => FlowSelector::default(),
        1 => FlowSelector {
            networks: to([198, 51, 100, 0], 24),
            protocol: Some(6),
            syn_only: true,
            ..FlowSelector::default()
        },
        _ => FlowSelector {
            networks: vec![(
                [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].into(),
                48,
            )],
            source_port: Some(40_000),
            dest_port: Some(8080),
            ..FlowSelector::default()
        },
    }
}

impl Input {
    fn packet(&self) -> Vec<u8> {
        let known = [6, 6, 17, 17, 1, 58, 0, 43, 44, 60, 33, 132, 136];
        let number = usize::from(self.protocol);
        let protocol = *known.get(number % 16).unwrap_or(&self.protocol);
        let mut transport = [40_000_u16.to_be_bytes(), 8080_u16.to_be_bytes()].concat();
        transport.extend(&self.transport);
        transport.truncate(LONGEST - 100);
        if self.is_whole && protocol == 17 && transport.len() >= 8 {
            let length = (transport.len() as u16).to_be_bytes();
            transport[4..6].copy_from_slice(&length);
        }
        let mut packet = Vec::new();
        if self.is_v6 {
            packet.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
            packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            packet.extend([0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
            let length = (transport.len() as u16).to_be_bytes();
            packet[4..6].copy_from_slice(&length);
        } else {
            let mut options = self.header.clone();
            options.resize(options.len().next_multiple_of(4).min(40), 0);
            let length = ((20 + options.len() + transport.len()) as u16).to_be_bytes();
            packet.extend([0x45 + options.len() as u8 / 4, 0, length[0], length[1]]);
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0x12, 0x34]);
            packet.extend([192, 0, 2, 1, 198, 51, 100, 9]);
            packet.extend(options);
        }
        packet.extend(transport);
        for (at, value) in &self.changes {
            let at = usize::from(*at) % packet.len();
            packet[at] ^= value;
        }
        packet
    }
}

/// What the program of the kernel has counted since.
fn reason(before: InjectCounts, after: InjectCounts) -> Option<LeftAlone> {
    [
        (after.too_big - before.too_big, LeftAlone::TooBig),
        (after.fragment - before.fragment, LeftAlone::Fragment),
        (after.no_room - before.no_room, LeftAlone::NoRoom),
        (after.other - before.other, LeftAlone::Other),
        (after.malformed - before.malformed, LeftAlone::Malformed),
    ]
    .into_iter()
    .find_map(|(count, why)| (count > 0).then_some(why))
}

fn load(options: usize, flows: &FlowSelector) -> Option<Injector> {
    let made = sections(options);
    let loaded = Injector::load(&InjectConfig {
        is_ethernet: true,
        networks: flows.networks.clone(),
        protocol: flows.protocol,
        source_port: flows.source_port,
        dest_port: flows.dest_port,
        syn_only: flows.syn_only,
        may_be_segmented: made.extensions.may_be_segmented(),
        first_extension: made.extensions.first,
        last_extension: made.extensions.last as u32,
        ip: made.ip,
        tcp: made.tcp,
        udp_even: made.udp_even,
        udp_odd: made.udp_odd,
        extensions: made.extensions.bytes,
    });
    loaded
        .inspect_err(|error| eprintln!("without the kernel's part: {error}"))
        .ok()
}

/// Runs the kernel's program on the packet.
fn compare(injector: &Injector, packet: &[u8], made: &Rewritten) {
    let kind: [u8; 2] = match packet[0] >> 4 {
        6 => [0x86, 0xdd],
        _ => [8, 0],
    };
    let frame = [&[0; 12][..], &kind, packet].concat();
    let before = injector.counts().expect("its counters");
    let Ok(ran) = prog_test_run::packet(injector.program(), &frame, 1) else {
        assert!(frame.len() < SHORTEST, "not run: {packet:02x?}");
        return;
    };
    let after = injector.counts().expect("its counters");
    assert_eq!(after.broken, before.broken, "{packet:02x?}");
    if after.refused > before.refused {
        return;
    }
    match made {
        Rewritten::Changed(bytes) => {
            assert_eq!(after.changed, before.changed + 1, "{packet:02x?}");
            assert!(ran.packet[14..] == bytes[..], "{packet:02x?}: {bytes:02x?}");
        }
        Rewritten::Left(why) => {
            assert_eq!(reason(before, after), Some(*why), "{packet:02x?}");
            assert!(ran.packet == frame, "{packet:02x?}");
        }
        Rewritten::NotMeant => {
            assert_eq!(after, before, "{packet:02x?}");
            assert!(ran.packet == frame, "{packet:02x?}");
        }
    }
}

fuzz_target!(|input: Input| {
    thread_local! {
        static INJECTORS: Vec<Option<Injector>> = (0..3 * OPTIONS.len())
            .map(|number| load(number / 3, &flows(number % 3)))
            .collect();
    }
    let (options, chosen) = (
        usize::from(input.options) % OPTIONS.len(),
        usize::from(input.flows) % 3,
    );
    let packet = input.packet();
    let made = rewrite(&packet, &sections(options), &flows(chosen), MTU);
    if let Rewritten::Changed(bytes) = &made {
        assert!(bytes.len() > packet.len());
    }
    INJECTORS.with(|injectors| {
        if let Some(injector) = &injectors[options * 3 + chosen] {
            compare(injector, &packet, &made);
        }
    });
});
