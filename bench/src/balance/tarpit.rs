//! A flood of SYNs to a tarpit port, each answered with a SYN-ACK: the shipped firewall
//! and the program behind it, with limits that no flood reaches, against a program that
//! sends every frame back as it is. A sample of the answers is checked beforehand.

use std::net::IpAddr;

use anyhow::ensure;
use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options, attachment::Hook, generator::Flood,
    prog_test_run,
};
use weir_core::decoy::DecoyPorts;
use weir_netlab::Side;
use weir_testkit::packet::{Packet, checksum};

use crate::{report::Report, wire::Wire};

const PORT: u16 = 2323;
const PACKETS: u32 = 2_000_000;
const SOURCES: u32 = 1 << 17;
/// Answers that are checked, of as many sources.
const SAMPLE: u32 = 1024;
/// XDP_TX.
const TX: u32 = 3;
/// The factor of raised limits, as a power of two: a second's answers are then more than a
/// flood asks for.
const RAISED: u32 = 16;

/// Measures the rows of IPv4 and IPv6, on XDP.
pub fn rows(report: &mut Report, wire: &Wire, rounds: usize, only: &str) -> anyhow::Result<()> {
    for (family, dest) in [("ipv4", "10.9.0.2"), ("ipv6", "2001:db8::2")] {
        let name = format!("target tarpit {family} xdp");
        if !name.contains(only) {
            continue;
        }
        let flood = Flood {
            sources: SOURCES,
            salt: 0,
            dest: dest.parse()?,
            port: PORT,
            macs: [wire.veth.mac(Side::B), wire.veth.mac(Side::A)],
            ifindex: wire.ifindex(Side::A)?,
        };
        let path = packet_path(flood.dest)?;
        check_answers(&path, &flood)?;
        let tarpit = path.program(Hook::Xdp)?;
        let bare = wire.generator.bare_forward(Hook::Xdp);
        let (mut limit, mut rates) = (Vec::new(), Vec::new());
        // The first round warms caches and page pools up.
        for round in 0..=rounds {
            for (program, rates) in [(bare, &mut limit), (tarpit, &mut rates)] {
                let link = wire.attach(program, Hook::Xdp)?;
                let before = wire.generator.sunk()?;
                let rate = wire.syn_rate(&flood, PACKETS)?;
                let came = wire.generator.sunk()? - before;
                drop(link);
                ensure!(
                    came.abs_diff(PACKETS.into()) * 100 <= PACKETS.into(),
                    "{came} answers to {PACKETS} SYNs"
                );
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        let base = format!("unconditional XDP_TX {family}");
        report.add(&base, "Mpps", &limit);
        report.add_ratio(&name, "Mpps", &rates, (&base, &limit));
    }
    Ok(())
}

fn packet_path(own: IpAddr) -> anyhow::Result<Generation> {
    let options = Options::bans(Geometry::for_bans(BanCounts::each(1000)));
    let generation = Generation::create(1, &options, None)?;
    let port = format!("{PORT}/tcp").parse();
    let port = port.map_err(anyhow::Error::msg)?;
    generation.decoys.write_tarpits(&DecoyPorts::new(&[port]));
    generation.decoys.write_own(&[own])?;
    generation.shift_limits(RAISED);
    generation.answer(AnswerProgram::Tarpit)?;
    generation
        .table
        .set_port_features(generation.port_features());
    Ok(generation)
}

/// SYN-ACKs to whom they are for, with the checksums that they are to have.
fn check_answers(path: &Generation, flood: &Flood) -> anyhow::Result<()> {
    let program = path.program(Hook::Xdp)?;
    for n in 0..SAMPLE {
        let source = flood.source(n);
        let port = 1024 + n as u16;
        let syn = Packet::eth().ip(source, flood.dest).tcp(port, PORT);
        let answer = prog_test_run::packet(program, &syn.tcp_flags(2).build(), 1)?;
        ensure!(answer.verdict == TX, "{source} gets {}", answer.verdict);
        let (header, addresses) = match source {
            IpAddr::V4(_) => (20, 12..20),
            IpAddr::V6(_) => (40, 8..40),
        };
        let packet = &answer.packet[14..14 + header + 20];
        let (ip, tcp) = packet.split_at(header);
        ensure!(
            source.is_ipv6() || checksum(ip) == 0,
            "the IP header's checksum of the answer to {source}"
        );
        let pseudo = [&ip[addresses], &[0, 6, 0, 20], tcp].concat();
        ensure!(
            checksum(&pseudo) == 0,
            "the checksum of the answer to {source}"
        );
        ensure!(
            tcp[13] == 0x12 && tcp[..2] == PORT.to_be_bytes() && tcp[2..4] == port.to_be_bytes(),
            "the answer to {source} is no SYN-ACK of its port"
        );
    }
    Ok(())
}
