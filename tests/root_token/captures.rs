//! `weir token verify` reads what a real tcpdump has captured: datagrams with tokens that the
//! kernel has made, and those without.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use weir_netlab::Child;

use super::{
    common::{skipped, soon},
    datagrams::{Lab, PORT, SERVER},
    lab::Host,
};

/// A tcpdump on this host that writes to this file.
pub(super) fn tcpdump(host: &Host, name: &str, more: &[&str], filter: &str) -> (Child, PathBuf) {
    let (file, log) = (host.weir.path(name), host.weir.path("tcpdump"));
    let mut command = Command::new("tcpdump");
    // As root it would give its rights up, and could not write there.
    command
        .args(["-Z", "root", "-U", "--immediate-mode", "-w"])
        .arg(&file)
        .args(more)
        .arg(filter)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap());
    let child = host.space.spawn(command).unwrap();
    soon("tcpdump to listen", || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("listening on").then_some(())
    });
    (child, file)
}

#[test]
fn root_a_capture_of_tcpdump_is_verified() {
    if skipped(&["tcpdump"]) {
        return;
    }
    let Some(mut lab) = Lab::new("capture") else {
        return;
    };
    let python = lab.start("");
    for (name, more) in [
        ("ethernet.pcap", &["-i", "eth0"][..]),
        (
            "cooked.pcap",
            &["-i", "any", "--time-stamp-precision", "nano"],
        ),
    ] {
        let (mut child, file) = tcpdump(&lab.server, name, more, "udp or ip6");
        for (address, full) in [(SERVER[0], 1472), (SERVER[1], 1452)] {
            // The second one has no room for a token.
            assert_eq!(
                lab.ask(address, PORT, "plain", &[40, full]),
                "answer,answer"
            );
            assert_eq!(lab.perl(Some(&lab.other), address, PORT), "silence");
        }
        // All four have come: SIGINT has tcpdump write what it has.
        child.signal(2).unwrap();
        child.wait(Duration::from_secs(20)).unwrap().unwrap();
        let (code, answer) = lab.server.verify(&file, PORT, &python);
        assert_eq!(code, Some(1), "{answer}");
        for (address, is_signed) in [
            ("192.0.2.1", true),
            ("2001:db8:1::1", true),
            ("203.0.113.1", false),
            ("2001:db8:3::1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let flows = answer["flows"].as_array().unwrap().iter();
            let of = flows.filter(|flow| {
                let client = flow["client"].as_str().unwrap();
                client.parse::<SocketAddr>().unwrap().ip() == address
            });
            let verdicts: Vec<_> = of.map(|flow| flow["verdict"].as_str().unwrap()).collect();
            match is_signed {
                true => assert_eq!(verdicts, ["valid", "proven"], "{name}: {answer}"),
                false => assert_eq!(verdicts, ["missing"], "{name}: {answer}"),
            }
        }
    }
}
