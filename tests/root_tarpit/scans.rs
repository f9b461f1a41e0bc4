//! Scanners at a prefix that nobody has: what they report, and how long it takes them,
//! beside the same scan of a prefix of the same segment that is left empty. And a client
//! that is held for four minutes.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::*;

/// Sixteen addresses of a tarpit; below, as many of nobody.
const HELD: &str = "192.0.2.80/28";
const EMPTY: &str = "192.0.2.160/28";
const PORTS: u16 = 500;

impl Pit {
    /// What nmap finds there, and how long it takes.
    fn nmap(&self, kind: &str, prefix: &str) -> (String, Duration) {
        let ports = format!("1-{PORTS}");
        let args = [
            kind,
            "-n",
            "-p",
            &ports,
            "-S",
            ATTACKER[0],
            "-e",
            "eth0",
            prefix,
        ];
        let begun = Instant::now();
        let scan = self.net.internet.output("nmap", &args).unwrap();
        let found = String::from_utf8_lossy(&scan.stdout).into_owned();
        (found, begun.elapsed())
    }
}

/// Of an empty prefix nmap knows after its ARP requests that nobody is there. Here it has
/// to look at each port of each address, and finds all of them open.
#[test]
fn root_tarpit_nmap_finds_every_port_open_and_takes_longer() {
    if skipped(&["nmap"]) {
        return;
    }
    let pit = Pit::with("tcx", ADDRESSES);
    let (all, last) = (16 * usize::from(PORTS), format!("{PORTS}/tcp"));
    for kind in ["-sS", "-sT"] {
        let (none, shortly) = pit.nmap(kind, EMPTY);
        assert!(none.contains("(0 hosts up)"), "{kind}: {none}");
        // On a busy machine nmap gives up on ports whose answers come late, but of none does it
        // hear that it is closed.
        let mut scans = (0..3).map(|_| pit.nmap(kind, HELD));
        let of_all = scans.find(|(found, long)| {
            println!("{kind}: {shortly:?} where nobody is, {long:?} in the tarpit");
            assert!(found.contains("(16 hosts up)"), "{kind}: {found}");
            assert!(!found.contains("closed"), "{kind}: {found}");
            let count = |text: &str| found.matches(text).count();
            let counts = [count("/tcp"), count(" open "), count(&last)];
            println!("ports, open ones, and the last of a host: {counts:?}");
            counts == [all, all, 16]
        });
        let (_, long) = of_all.unwrap_or_else(|| panic!("{kind}: not all are open"));
        assert!(long > shortly * 2, "{kind}: {long:?} beside {shortly:?}");
    }
    assert_eq!(pit.weir.banned(), [""; 0]);
}

/// masscan keeps to the rate that it was given, whatever answers: it is not slower, but
/// it reports ports of every address.
#[test]
fn root_tarpit_masscan_finds_ports_open() {
    if skipped(&["masscan"]) {
        return;
    }
    let pit = Pit::with("tcx", ADDRESSES);
    let mac = pit.net.veth.mac(Side::A).map(|byte| format!("{byte:02x}"));
    let mac = mac.join("-");
    let scan = |prefix: &str, name: &str| {
        let output = pit.weir.path(name);
        let mut masscan = Command::new("masscan");
        masscan
            .args([
                prefix, "-p1-50", "--rate", "500", "-e", "eth0", "--wait", "3",
            ])
            .args(["--adapter-ip", ATTACKER[0], "--router-mac", &mac])
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(Stdio::null());
        (pit.net.internet.spawn(masscan).unwrap(), output)
    };
    let read = |output: &std::path::Path| {
        let text = std::fs::read_to_string(output).unwrap();
        text.matches("Discovered open port").count()
    };
    // It does not end before another packet comes: ended with its guard.
    let (tarpit, found) = scan(HELD, "masscan.held");
    // It asks for each once, so what is lost on the way it does not find.
    soon("most ports to be found", || {
        (read(&found) >= 16 * 50 / 2).then_some(())
    });
    drop(tarpit);
}

/// A client of this kernel, held for four minutes. It probes at intervals that double up to
/// two minutes, and each packet of ours answers one of its own: from the second minute on
/// there is at most one in any minute, so for as long as it lasts. (The other tests of this
/// program run meanwhile.)
#[test]
fn root_tarpit_holds_a_client_for_four_minutes() {
    if skipped(&["ss"]) {
        return;
    }
    let pit = Pit::new("tcx", "");
    let mut held: Vec<TcpStream> = (0..2)
        .map(|family| pit.connect(ATTACKER[family], Pit::at(family, 25)))
        .collect();
    let begun = Instant::now();
    for stream in &mut held {
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[b'x'; 4096]).is_ok() {}
    }
    const MINUTE: Duration = Duration::from_secs(60);
    // When a packet of ours was seen, and how many there were by then.
    let mut packets = vec![Vec::new(); 2];
    while begun.elapsed() < 4 * MINUTE {
        for (stream, packets) in held.iter().zip(&mut packets) {
            let client = pit.socket(stream);
            assert_eq!(client.state, "ESTAB", "{client:?}");
            let (_, before) = packets.last().copied().unwrap_or_default();
            if before < client.segments_in {
                packets.push((begun.elapsed(), client.segments_in));
            }
        }
        let is_first = begun.elapsed() < MINUTE;
        std::thread::sleep(Duration::from_millis(if is_first { 100 } else { 500 }));
    }
    for (stream, packets) in held.iter().zip(packets) {
        let client = pit.socket(stream);
        println!("{client:?}, packets of ours {packets:?}");
        assert!(client.is_persisting && client.send_queue > 0, "{client:?}");
        // 0.2 s, 0.4 s and so on: the ninth interval is of 51 s, the tenth of 102 s.
        assert!(client.backoff >= 9, "{client:?}");
        assert!(client.next_probe >= MINUTE / 2, "{client:?}");
        let by = |time: Duration| {
            let until = packets.iter().take_while(|(at, _)| *at <= time);
            until.last().map_or(0, |(_, count)| *count)
        };
        let of_first = by(MINUTE);
        assert!((3..=12).contains(&of_first), "{packets:?}");
        // Of the second half of the first minute, and of any minute after it.
        assert!(of_first - by(MINUTE / 2) <= 1, "{packets:?}");
        for seconds in 60..=180 {
            let from = Duration::from_secs(seconds);
            let of_minute = by(from + MINUTE) - by(from);
            assert!(of_minute <= 1, "{of_minute} from {from:?} on: {packets:?}");
        }
    }
}
