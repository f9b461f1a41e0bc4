//! A real interface: the load comes from another machine, which is told what
//! to run, or this is that machine. Rows take turns on the one interface, each
//! set up and taken away again; nothing but UDP to port 12345 and packets from
//! the generator's sources is dropped there.

use std::{
    net::IpAddr,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use weir_bpf::generator::{Flood, Payload};

use super::{
    HooksArgs, Run, begin,
    flood_target::{FloodTarget, PORT},
    measure::{self, Plan, Sender},
    missing, summary,
    table::Hook,
    task::{BANS, Sources, Task},
};

/// The load machine gets so long to begin, with each size anew.
const PATIENCE: Duration = Duration::from_secs(120);
/// Packets in one look at the interface that are a load.
const SOME: u64 = 500;
/// How often it is looked at while nothing comes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Ethernet pads shorter frames.
const SHORTEST_FRAME: u64 = 60;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac([u8; 6]);

impl FromStr for Mac {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2);
            *byte = part
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .with_context(|| format!("{text:?} is no MAC address"))?;
        }
        if parts.next().is_some() {
            bail!("{text:?} is no MAC address");
        }
        Ok(Self(bytes))
    }
}

/// The interface's address on the wire.
fn mac_of(interface: &str) -> anyhow::Result<String> {
    // sysfs shows the namespace in which it was mounted; rtnetlink this one.
    let out = here(interface, IpAddr::from([0; 4])).run(
        "ip",
        &words(&["-o", "link", "show", "dev", interface]),
        &[],
    )?;
    let mut fields = out.split_whitespace();
    fields
        .find(|field| *field == "link/ether")
        .and_then(|_| fields.next())
        .map(str::to_owned)
        .with_context(|| format!("{interface} has no Ethernet address"))
}

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn here(interface: &str, host: IpAddr) -> FloodTarget {
    FloodTarget::here(interface, host)
}

/// The interface's first address.
fn address_of(interface: &str) -> anyhow::Result<IpAddr> {
    let show = words(&["-o", "addr", "show", "dev", interface, "scope", "global"]);
    let out = here(interface, IpAddr::from([0; 4])).run("ip", &show, &[])?;
    let mut fields = out.split_whitespace();
    fields
        .find(|field| field.starts_with("inet"))
        .and_then(|_| fields.next()?.split('/').next()?.parse().ok())
        .with_context(|| format!("{interface} has no address: name one, --to"))
}

/// What the load machine may run, for packets of this size.
fn commands(host: IpAddr, mac: &str, payload: Payload) -> String {
    let size = payload.bytes();
    let frame = payload.frame(host);
    let v6 = if host.is_ipv4() {
        format!("  hping3 -I IF --udp --rand-source --destport {PORT} -d {size} --flood {host}\n")
    } else {
        // xdp-trafficgen has IPv6 alone, and one source; hping3 has no IPv6.
        format!(
            "  xdp-trafficgen udp -m {mac} -A SOURCE -a {host} -p {PORT} -s {frame} IF   (rows without bans)\n"
        )
    };
    format!(
        "On the load machine, IF being its interface towards this one, one of:\n{v6}  \
         weir-bench hooks --interface IF --sender here --to {host} --to-mac {mac} --sizes {size} --seconds 3600\n\
         Rows with bans drop what the last one sends.\n"
    )
}

/// Measures on this interface whatever comes.
pub fn measure(args: &HooksArgs, interface: &str) -> anyhow::Result<Run> {
    let host = match args.to {
        Some(host) => host,
        None => address_of(interface)?,
    };
    let mac = mac_of(interface)?;
    let place = Arc::new(here(interface, host));
    let rows = args.rows()?;
    let (mut meters, mut run) = begin(args)?;
    run.remote = true;
    let flood = Flood {
        sources: BANS,
        salt: 0,
        dest: host,
        port: PORT,
        macs: [[0; 6]; 2],
        ifindex: 0,
    };
    for payload in args.payloads(host)? {
        eprint!("{}", commands(host, &mac, payload));
        wait_for(&place, payload)?;
        for round in 0..args.rounds.max(1) {
            for &hook in &rows {
                crate::flood::interrupted()?;
                if run.missing.iter().any(|missing| missing.hook == hook.name) {
                    continue;
                }
                let task = Task {
                    place: place.clone(),
                    flood,
                    sources: hook.sources,
                };
                let mut running = match start(hook, &task) {
                    Ok(running) => running,
                    Err(why) => {
                        run.missing.push(missing(hook, &flood, &why));
                        continue;
                    }
                };
                let plan = Plan {
                    hook: hook.name,
                    flood,
                    payload,
                    round,
                    time: args.time()?,
                };
                let point = measure::arriving(&place, &mut *running, &mut meters, plan)
                    .with_context(|| hook.name)?;
                eprintln!("{}", summary::line(&point));
                run.points.push(point);
            }
        }
    }
    Ok(run)
}

fn start(hook: &Hook, task: &Task) -> anyhow::Result<Box<dyn super::Running>> {
    ensure!(
        hook.sources != Sources::One,
        "--sender remote: its packets come from many sources, and one is banned"
    );
    (hook.start)(task)
}

/// Waits until packets of this size come.
fn wait_for(place: &FloodTarget, payload: Payload) -> anyhow::Result<()> {
    let wanted = (payload.frame(place.host) as u64).max(SHORTEST_FRAME);
    let until = Instant::now() + PATIENCE;
    let mut before = place.arrived()?;
    let mut seen = String::from("nothing came");
    loop {
        crate::flood::interrupted()?;
        std::thread::sleep(POLL_INTERVAL);
        let now = place.arrived()?;
        let packets = now.packets - before.packets;
        if packets >= SOME {
            let mean = (now.bytes - before.bytes) / packets;
            // Some drivers count the checksum's four bytes; others pad nothing.
            if mean.abs_diff(wanted) <= 6 {
                return Ok(());
            }
            seen = format!("frames of {mean} bytes came");
        }
        ensure!(
            Instant::now() < until,
            "waited {} s for frames of {wanted} bytes on {}: {seen}",
            PATIENCE.as_secs(),
            place.dev
        );
        before = now;
    }
}

/// Is the load machine: sends each size through this interface in turn.
pub fn send(args: &HooksArgs, interface: &str) -> anyhow::Result<()> {
    let dest = args
        .to
        .context("--sender here needs --to, the flooded address")?;
    let to = args.to_mac.context("--sender here needs --to-mac")?;
    let from: Mac = mac_of(interface)?.parse()?;
    let place = here(interface, dest);
    let flood = Flood {
        // All that rows with bans have banned, whoever receives this.
        sources: BANS,
        salt: 0,
        dest,
        port: PORT,
        macs: [to.0, from.0],
        ifindex: place.ifindex()?,
    };
    let sender = Sender::new()?;
    for payload in args.payloads(dest)? {
        let before = place.left()?;
        let (packets, seconds) = sender.rush(&flood, payload, args.time()?)?;
        let left = place.left()? - before;
        println!(
            "{} bytes of payload: {packets} packets in {seconds:.1} s, {left} left {interface}",
            payload.bytes()
        );
        ensure!(
            left > 0,
            "none left {interface}: its driver must be a target of XDP redirects (ndo_xdp_xmit)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read() {
        assert_eq!(
            "02:77:6c:00:01:ff".parse::<Mac>().unwrap(),
            Mac([2, 0x77, 0x6c, 0, 1, 255])
        );
        for wrong in [
            "",
            "02:77",
            "02:77:6c:00:01:zz",
            "02:77:6c:00:01:ff:00",
            "2:7:6:0:1:f",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_load_machine_is_told_size_and_address() {
        let told = |host: &str, size| {
            let host: IpAddr = host.parse().unwrap();
            commands(host, "02:00:00:00:00:01", Payload::new(size, host).unwrap())
        };
        let four = told("192.0.2.7", 32);
        assert!(
            four.contains("--destport 12345 -d 32 --flood 192.0.2.7"),
            "{four}"
        );
        assert!(
            four.contains("--to 192.0.2.7 --to-mac 02:00:00:00:00:01 --sizes 32"),
            "{four}"
        );
        let six = told("2001:db8::7", 32);
        assert!(six.contains("-a 2001:db8::7 -p 12345 -s 94 IF"), "{six}");
        assert!(!six.contains("hping3"), "{six}");
    }
}
