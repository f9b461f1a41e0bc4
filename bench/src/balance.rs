//! Load balancing by direct server return: the shipped firewall and the program behind
//! it, against a program that writes new link-layer addresses and sends the frame back
//! out, at the same hook in the same round. What comes back is counted at the generator's
//! end. So is what leaves in an outer packet for a real beyond a router. Tarpit ports beside
//! it (`balance/tarpit.rs`), and real web pages (`balance/web.rs`). Then the same through user
//! space: a forwarder over AF_PACKET, and Pen where it is installed.

mod tarpit;
mod web;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::sys::{
    socket::{
        self, AddressFamily, MsgFlags, SockFlag, SockType, setsockopt, sockopt::ReceiveTimeout,
    },
    time::TimeVal,
};
use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    attachment::{Hook, Link},
    balance::{
        DEFAULT_FLOWS, MAX_SERVICES, PoolRules, Real, SLOTS, SlotBy, Tunnel, VirtualService,
        real_id,
    },
    decap::GUE_PORT,
    generator::Flood,
    prog_test_run,
};
use weir_core::{
    Protocol,
    balance::maglev::{self, Member},
};
use weir_netlab::{Child, Namespace, Side};
use weir_testkit::packet::Packet;

use crate::{
    cores, proxy,
    report::{Report, median},
    wire::Wire,
};

/// The port of the pool, and one that is nobody's.
const PORT: u16 = 12345;
const OTHER: u16 = 12346;
/// Flows of the target rows: all are remembered.
const FLOWS: u32 = 1 << 14;
/// Virtual addresses of a row with many.
const VIPS: u32 = 10_000;

/// Arguments of `weir-bench balance`.
#[derive(clap::Args)]
pub struct BalanceArgs {
    /// Write the rows to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Interleaved rounds a row; the median is shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Only rows whose name holds this text.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
}

/// One row of the packet path.
struct Case {
    name: &'static str,
    /// Sources, each a flow of its own.
    flows: u32,
    services: usize,
    /// Virtual addresses, each of them flooded; 0: one.
    vips: u32,
    /// Flows that find room.
    room: u32,
    /// Is the flood to the pool, or to a port beside it?
    pooled: bool,
    /// Whether the row's host has any pools.
    balances: bool,
    /// How packets reach reals beyond a router; `None`: they are on the segment.
    tunnel: Option<Outer>,
    /// How new flows find their real.
    slot_by: SlotBy,
}

/// The outer header of a row, of the family of its packets.
#[derive(Clone, Copy)]
struct Outer {
    is_ipv6: bool,
    gue_port: Option<u16>,
}

impl Outer {
    fn tunnel(self, number: u8) -> Tunnel {
        let [source, dest] = match self.is_ipv6 {
            false => [1, 2].map(|n| IpAddr::from([10, 9, n, number])),
            true => [1, 2].map(|n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, n, number.into()])),
        };
        Tunnel {
            source,
            dest,
            mtu: 1500,
            gue_port: self.gue_port,
        }
    }
}

impl Case {
    /// Encapsulation is measured on XDP, of packets in an outer header of their own family.
    fn is_of(&self, family: &str, hook: Hook) -> bool {
        self.tunnel
            .is_none_or(|outer| hook == Hook::Xdp && outer.is_ipv6 == (family == "ipv6"))
    }
}

const TARGET: Case = Case {
    name: "target dsr",
    flows: FLOWS,
    services: 1,
    vips: 0,
    room: DEFAULT_FLOWS,
    pooled: true,
    balances: true,
    tunnel: None,
    slot_by: SlotBy::Flow,
};
/// What the packets of many flows to many addresses are compared with.
const ONE_FLOW: &str = "dsr one flow";
const MANY: &str = "dsr 10,000 VIPs and 1M flows";
const CASES: [Case; 11] = [
    TARGET,
    Case {
        name: ONE_FLOW,
        flows: 1,
        ..TARGET
    },
    // All are remembered.
    Case {
        name: MANY,
        flows: 1 << 20,
        vips: VIPS,
        room: 1 << 20,
        ..TARGET
    },
    // The table has room for 65,536: most are not remembered, and go where the ring says.
    Case {
        name: "dsr 1M flows",
        flows: 1 << 20,
        ..TARGET
    },
    Case {
        name: "dsr all services",
        services: MAX_SERVICES,
        ..TARGET
    },
    Case {
        name: "dsr least connections",
        slot_by: SlotBy::Least,
        ..TARGET
    },
    Case {
        name: "innocent beside pools",
        pooled: false,
        ..TARGET
    },
    Case {
        name: "innocent without pools",
        pooled: false,
        balances: false,
        ..TARGET
    },
    Case {
        name: "encap ipip",
        tunnel: Some(Outer {
            is_ipv6: false,
            gue_port: None,
        }),
        ..TARGET
    },
    Case {
        name: "encap gue",
        tunnel: Some(Outer {
            is_ipv6: false,
            gue_port: Some(GUE_PORT),
        }),
        ..TARGET
    },
    Case {
        name: "encap ip6ip6",
        tunnel: Some(Outer {
            is_ipv6: true,
            gue_port: None,
        }),
        ..TARGET
    },
];

/// Measures all rows.
pub fn run(args: &BalanceArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let wire = Wire::new()?;
    let sink = {
        let index = wire.ifindex(Side::A)?;
        let attach = || Link::attach(wire.generator.sink(), index, Hook::Xdp);
        wire.veth.namespace(Side::A).enter(attach)?
    };
    let sink = sink.context("attach what counts at the generator's end")?;
    let rounds = args.rounds.max(1);
    let mut best = None;
    for (family, dest) in [("ipv4", "10.9.0.2"), ("ipv6", "2001:db8::2")] {
        let flood = Flood {
            sources: FLOWS,
            salt: 0,
            dest: dest.parse()?,
            port: PORT,
            macs: [wire.veth.mac(Side::B), wire.veth.mac(Side::A)],
            ifindex: wire.ifindex(Side::A)?,
        };
        for hook in [Hook::Xdp, Hook::Tcx] {
            let wanted = |case: &&Case| {
                case.is_of(family, hook) && name(case, family, hook).contains(&args.only)
            };
            let cases: Vec<_> = CASES.iter().filter(wanted).collect();
            if cases.is_empty() {
                continue;
            }
            let rates = hook_rows(&mut report, &wire, &flood, &cases, family, hook, rounds)?;
            if family == "ipv4" && hook == Hook::Xdp {
                best = rates;
            }
        }
    }
    tarpit::rows(&mut report, &wire, rounds, &args.only)?;
    many_rows(&mut report, &wire, rounds, &args.only)?;
    ring_rows(&mut report, rounds, &args.only);
    proxy::rows(&mut report, rounds, &args.only)?;
    web::rows(&mut report, rounds, &args.only)?;
    if let Some(best) = best {
        user_space_rows(&mut report, &wire, &args.only, &best)?;
    }
    drop(sink);
    eprintln!("not to be had: netmap (Linux has no such driver)");
    match Path::new("/proc/net/ip_vs").exists() {
        true => eprintln!("not measured: IPVS, which this kernel has, for want of a row"),
        false => eprintln!("not to be had here: IPVS (probe: /proc/net/ip_vs)"),
    }
    report.finish(args.json.as_deref())
}

fn name(case: &Case, family: &str, hook: Hook) -> String {
    format!("{} {family} {}", case.name, hook.name())
}

/// The packet path with a pool of two reals, both at the generator's address.
fn packet_path(case: &Case, flood: &Flood, ifindex: u32) -> anyhow::Result<Generation> {
    let options = Options {
        // What is not forwarded is dropped, and not the stack's.
        drop_innocent: true,
        balanced_flows: case.room,
        ..Options::bans(Geometry::for_bans(BanCounts::each(1000)))
    };
    let generation = Generation::create(1, &options, None)?;
    if !case.balances {
        return Ok(generation);
    }
    if case.room > DEFAULT_FLOWS {
        // A million flows that begin in a second are no flood here.
        generation.shift_limits(8);
    }
    let balancer = &generation.balancer;
    for number in 0..2u32 {
        let real = Real {
            id: real_id("bench", IpAddr::from([10, 9, 1, number as u8])),
            dest: flood.macs[1],
            source: flood.macs[0],
            ifindex,
            vlan: 0,
            tunnel: case.tunnel.map(|outer| outer.tunnel(number as u8)),
            drains: false,
        };
        balancer.write_real(number, Some(real))?;
    }
    let ring: Vec<_> = (0..SLOTS).map(|slot| Some((slot % 2) as u16)).collect();
    balancer.write_ring(0, &ring)?;
    let service = |vip: u32, port: u16| VirtualService {
        addr: vip_of(flood, vip),
        protocol: Protocol::Udp,
        port: Some(PORT.wrapping_add(port.wrapping_mul(2))),
        pool: 0,
    };
    let services: Vec<_> = match case.vips {
        0 => (0..case.services as u16).map(|n| service(0, n)).collect(),
        vips => (0..vips).map(|n| service(n, 0)).collect(),
    };
    let rules = PoolRules {
        slot_by: case.slot_by,
        udp_silence: Some(Duration::from_secs(60)),
        weights: vec![(0, 1), (1, 1)],
        ..PoolRules::default()
    };
    balancer.write_services_for(&services, &[rules], 250)?;
    generation.answer(AnswerProgram::Balance)?;
    generation
        .table
        .set_port_features(generation.port_features());
    if let Some(outer) = case.tunnel {
        check_outer_packet(&generation, flood, outer)?;
    }
    Ok(generation)
}

/// The virtual address of this number: behind that of the flood.
fn vip_of(flood: &Flood, number: u32) -> IpAddr {
    match flood.dest {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + number).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(number)).into(),
    }
}

/// A packet of the flood's leaves in the outer one of its row, whole but for a hop.
fn check_outer_packet(path: &Generation, flood: &Flood, outer: Outer) -> anyhow::Result<()> {
    // BPF_PROG_RUN's frames come in by another device: they are redirected.
    const REDIRECT: u32 = 4;
    let frame = Packet::eth()
        .ip(flood.source(0), flood.dest)
        .udp(1024, PORT)
        .build();
    let sent = prog_test_run::packet(path.program(Hook::Xdp)?, &frame, 1)?;
    let head = 14 + outer.tunnel(0).overhead() as usize;
    let hops = if outer.is_ipv6 { 7 } else { 8 };
    ensure!(
        sent.verdict == REDIRECT
            && sent.packet.len() == head + frame.len() - 14
            && sent.packet[..6] == flood.macs[1]
            && sent.packet[head + hops] == frame[14 + hops] - 1
            && sent.packet[head + 12..] == frame[14 + 12..],
        "a packet does not leave in an outer one: verdict {}",
        sent.verdict
    );
    Ok(())
}

/// The rates of the target row, if it is among them.
fn hook_rows(
    report: &mut Report,
    wire: &Wire,
    flood: &Flood,
    cases: &[&Case],
    family: &str,
    hook: Hook,
    rounds: usize,
) -> anyhow::Result<Option<Vec<f64>>> {
    let packets: u32 = if hook == Hook::Xdp {
        3_000_000
    } else {
        1_000_000
    };
    let ifindex = wire.ifindex(Side::B)?;
    let paths = cases.iter().map(|case| packet_path(case, flood, ifindex));
    let paths: Vec<_> = paths.collect::<anyhow::Result<_>>()?;
    let limit_name = format!("bare rewrite and send {family} {}", hook.name());
    let (mut limit, mut rates) = (Vec::new(), vec![Vec::new(); cases.len()]);
    let known_name = format!(
        "bare rewrite and send, 1M sources known {family} {}",
        hook.name()
    );
    let with_known = hook == Hook::Xdp && cases.iter().any(|case| case.name == MANY);
    let mut known = Vec::new();
    for round in 0..=rounds {
        // The first round warms caches and page pools up, and makes flows known.
        let measure = |program, flood: &Flood, forwarded: bool| -> anyhow::Result<f64> {
            let link = wire.attach(program, hook)?;
            let before = wire.generator.sunk()?;
            let rate = wire.rate(flood, packets)?;
            let came = wire.generator.sunk()? - before;
            drop(link);
            let due = if forwarded { u64::from(packets) } else { 0 };
            ensure!(
                came.abs_diff(due) * 100 <= u64::from(packets),
                "{came} of {packets} packets came back on {}",
                hook.name()
            );
            Ok(rate)
        };
        let rate = measure(wire.generator.bare_forward(hook), flood, true)?;
        if round > 0 {
            limit.push(rate);
        }
        if with_known {
            let flood = Flood {
                sources: 1 << 20,
                ..*flood
            };
            let rate = measure(wire.generator.bare_forward_known(), &flood, true)?;
            if round > 0 {
                known.push(rate);
            }
        }
        for ((case, path), rates) in cases.iter().zip(&paths).zip(&mut rates) {
            let flood = Flood {
                sources: case.flows,
                port: if case.pooled { PORT } else { OTHER },
                ..*flood
            };
            wire.generator.spread(case.vips);
            let rate = measure(path.program(hook)?, &flood, case.pooled);
            wire.generator.spread(0);
            let rate = rate?;
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    report.add(&limit_name, "Mpps", &limit);
    if with_known {
        report.add_ratio(&known_name, "Mpps", &known, (&limit_name, &limit));
    }
    let of = |wanted: &str| {
        let found = cases.iter().position(|case| case.name == wanted);
        found.map(|at| (name(cases[at], family, hook), rates[at].clone()))
    };
    for (case, rates) in cases.iter().zip(&rates) {
        let base = match case.name {
            "target dsr" => None,
            _ if case.tunnel.is_some() => None,
            "innocent beside pools" => of("innocent without pools"),
            MANY => of(ONE_FLOW),
            "innocent without pools" => {
                report.add(&name(case, family, hook), "Mpps", rates);
                continue;
            }
            _ => of("target dsr"),
        };
        let base = base.unwrap_or_else(|| (limit_name.clone(), limit.clone()));
        report.add_ratio(&name(case, family, hook), "Mpps", rates, (&base.0, &base.1));
    }
    Ok(of("target dsr").map(|(_, rates)| rates))
}

/// The time of one packet by BPF_PROG_RUN, which runs the program once for each: packets of
/// as many flows, to as many virtual addresses, as the row has, beside those of one flow.
/// Without the generator's and the wire's time, of which rates have much.
fn many_rows(report: &mut Report, wire: &Wire, rounds: usize, only: &str) -> anyhow::Result<()> {
    for (family, dest) in [("ipv4", "10.9.0.2"), ("ipv6", "2001:db8::2")] {
        let of = |name: &str| format!("PROG_RUN {name} {family}");
        if !of(MANY).contains(only) && !of(ONE_FLOW).contains(only) {
            continue;
        }
        let flood = Flood {
            sources: 1 << 20,
            salt: 0,
            dest: dest.parse()?,
            port: PORT,
            macs: [wire.veth.mac(Side::B), wire.veth.mac(Side::A)],
            // BPF_PROG_RUN's frames come in by the loopback device.
            ifindex: 1,
        };
        let case = |name| CASES.iter().find(|case| case.name == name);
        let path = |name| packet_path(case(name).expect("a row"), &flood, flood.ifindex);
        let (one, many) = (path(ONE_FLOW)?, path(MANY)?);
        let (one, many) = (one.program(Hook::Xdp)?, many.program(Hook::Xdp)?);
        let frame = |n: u32| {
            let packet = Packet::eth_between(flood.macs[1], flood.macs[0]);
            let packet = packet.ip(flood.source(n), vip_of(&flood, n % VIPS));
            packet.udp(1024 + (n & 0x7fff) as u16, PORT).build()
        };
        let first = frame(0);
        let (mut of_one, mut of_many) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let (mut nanos, mut to_one) = (0u64, 0u64);
            for n in 0..flood.sources {
                // In turns, so that both have the same caches to share.
                let sent = prog_test_run::packet(many, &frame(n), 1)?;
                nanos += u64::from(sent.nanos);
                let beside = prog_test_run::packet(one, &first, 1)?;
                to_one += u64::from(beside.nanos);
                ensure!(
                    sent.verdict == beside.verdict && sent.verdict == XDP_TX,
                    "packet {n} is not forwarded: verdict {}",
                    sent.verdict
                );
            }
            // The first round makes flows known.
            if round > 0 {
                of_many.push(nanos as f64 / f64::from(flood.sources));
                of_one.push(to_one as f64 / f64::from(flood.sources));
            }
        }
        report.add(&of(ONE_FLOW), "ns", &of_one);
        report.add_ratio(&of(MANY), "ns", &of_many, (&of(ONE_FLOW), &of_one));
    }
    Ok(())
}

/// What XDP says of a frame that goes back out.
const XDP_TX: u32 = 3;

/// How long the ring of 1,000 reals takes, and what of it moves that need not when one of
/// them goes, comes, or has another weight; beside one of fewer slots.
fn ring_rows(report: &mut Report, rounds: usize, only: &str) {
    let names: Vec<_> = (0..1000)
        .map(|n| format!("10.0.{}.{}", n / 250, n % 250))
        .collect();
    let members = names.iter().map(|name| Member { name, weight: 1 });
    let members: Vec<_> = members.collect();
    for slots in [16_381, SLOTS] {
        let name = format!("ring of {slots} slots, 1000 reals");
        if name.contains(only) {
            let millis: Vec<f64> = (0..rounds)
                .map(|_| {
                    let begun = Instant::now();
                    let ring = maglev::ring(&members, slots);
                    let took = begun.elapsed();
                    assert_eq!(ring.len(), slots);
                    took.as_secs_f64() * 1000.0
                })
                .collect();
            report.add(&name, "ms", &millis);
        }
        let name = format!("slots of others that move, of {slots}");
        if name.contains(only) {
            report.add(&name, "%", &moved(&members, slots));
        }
    }
}

/// The share of slots, in percent, that move from one real to another though neither is the
/// one that goes, or has another weight: for a few that do.
fn moved(members: &[Member<'_>], slots: usize) -> Vec<f64> {
    let before = maglev::ring(members, slots);
    let changes = [0, 250, 500, 750, 999].into_iter();
    let changes = changes.flat_map(|changed| [(changed, 0), (changed, 2)]);
    let share = |(changed, weight): (usize, u32)| {
        let mut members = members.to_vec();
        members[changed].weight = weight;
        let after = maglev::ring(&members, slots);
        let both = before.iter().zip(&after);
        let of_others = both.filter(|(a, b)| a != b && **a != changed && **b != changed);
        100.0 * of_others.count() as f64 / slots as f64
    };
    changes.map(share).collect()
}

/// What is forwarded while a flood lasts: by packets that come back to the generator.
fn forwarded(wire: &Wire, flood: &Flood) -> anyhow::Result<f64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                wire.rate(flood, 100_000)?;
            }
            anyhow::Ok(())
        });
        let counted = (|| {
            // It is under way when packets come back.
            let begun = Instant::now();
            let first = wire.generator.sunk()?;
            while wire.generator.sunk()? < first + 1000 {
                ensure!(
                    begun.elapsed() < Duration::from_secs(10),
                    "nothing comes back"
                );
                thread::sleep(Duration::from_millis(1));
            }
            let (begun, before) = (Instant::now(), wire.generator.sunk()?);
            thread::sleep(Duration::from_secs(2));
            let came = wire.generator.sunk()? - before;
            Ok(came as f64 / begun.elapsed().as_secs_f64() / 1e6)
        })();
        stop.store(true, Ordering::Relaxed);
        flooding.join().expect("the flood does not panic")?;
        counted
    })
}

/// Forwarders in user space, on the other core: IPv4 only, as Pen is.
fn user_space_rows(
    report: &mut Report,
    wire: &Wire,
    only: &str,
    best: &[f64],
) -> anyhow::Result<()> {
    const ROUNDS: usize = 3;
    let host = wire.veth.namespace(Side::B);
    // Of addresses that the host does not have, as Pen wants it.
    let flood = |dest: &str| {
        anyhow::Ok(Flood {
            sources: FLOWS,
            salt: 0,
            dest: dest.parse()?,
            port: PORT,
            macs: [wire.veth.mac(Side::B), wire.veth.mac(Side::A)],
            ifindex: wire.ifindex(Side::A)?,
        })
    };
    let best = median(best);
    // Pen asks for the link-layer address of its server; it wants an interface without an
    // address of its own.
    let sender = wire.veth.namespace(Side::A);
    sender.ip(&["addr add 10.9.0.11/24 dev g0".into()])?;
    host.ip(&["addr flush dev d0".into()])?;
    let mut add = |name: &str, rates: Vec<f64>| {
        let base = vec![best; rates.len()];
        report.add_ratio(name, "Mpps", &rates, ("target dsr ipv4 xdp", &base));
    };
    let flood = flood("10.9.0.80")?;
    if "AF_PACKET forwarder".contains(only) {
        let stop = Arc::new(AtomicBool::new(false));
        let worker = af_packet(host, &flood, stop.clone())?;
        let rates = (0..ROUNDS).map(|_| forwarded(wire, &flood));
        let rates = rates.collect::<anyhow::Result<_>>();
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("the forwarder does not panic");
        add("AF_PACKET forwarder", rates?);
    }
    if "pen dsr".contains(only) {
        match pen(wire) {
            Err(why) => eprintln!("pen dsr: left out: {why:#}"),
            Ok(pen) => {
                let rates = (0..ROUNDS).map(|_| forwarded(wire, &flood));
                let rates = rates.collect::<anyhow::Result<_>>();
                drop(pen);
                match rates {
                    Ok(rates) => add("pen dsr", rates),
                    Err(why) => eprintln!("pen dsr: left out: {why:#}"),
                }
            }
        }
    }
    Ok(())
}

/// One `recvfrom` and one `sendto` a frame, as Pen does it, and nothing else.
fn af_packet(
    host: &Namespace,
    flood: &Flood,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<thread::JoinHandle<()>> {
    let [here, there] = flood.macs;
    let socket = host.enter(packet_socket)?.context("open AF_PACKET")?;
    Ok(thread::spawn(move || {
        cores::pin(1);
        let (socket, mut frame) = (socket.as_raw_fd(), [0u8; 2048]);
        while !stop.load(Ordering::Relaxed) {
            // It waits a moment only.
            let Ok(len) = socket::recv(socket, &mut frame, MsgFlags::empty()) else {
                continue;
            };
            // Its own frames come by as well.
            if len < 14 || frame[..6] != here {
                continue;
            }
            frame[..6].copy_from_slice(&there);
            frame[6..12].copy_from_slice(&here);
            let _ = socket::send(socket, &frame[..len], MsgFlags::empty());
        }
    }))
}

/// On the measured end of the wire, of the calling thread's namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    // IPv4 frames and IPv6, as Pen asks for all.
    let all = Some(socket::SockProtocol::EthAll);
    let (family, kind) = (AddressFamily::Packet, SockType::Raw);
    let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, all)?;
    let device = nix::ifaddrs::getifaddrs()?
        .filter(|i| i.interface_name == "d0")
        .find_map(|i| i.address?.as_link_addr().copied());
    socket::bind(socket.as_raw_fd(), &device.ok_or(io::ErrorKind::NotFound)?)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(0, 100_000))?;
    Ok(socket)
}

/// Debian's Pen, forwarding UDP by direct server return on core 1.
fn pen(wire: &Wire) -> anyhow::Result<Child> {
    let program = PathBuf::from("/usr/bin/pen");
    ensure!(program.exists(), "{} is not installed", program.display());
    let mut command = Command::new("taskset");
    command
        .args(["-c", "1"])
        .arg(program)
        .args(["-f", "-U", "-O", "dsr_if d0"])
        .args([format!("10.9.0.80:{PORT}"), format!("10.9.0.11:{PORT}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(wire.veth.namespace(Side::B).spawn(command)?)
}
