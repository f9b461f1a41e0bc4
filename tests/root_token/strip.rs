//! Uplinks of a gateway at which tokens of others are overwritten: of connections, datagrams and
//! superpackets, in both directions, with checksums that the receiver takes.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use weir_netlab::{Child, Namespace};
use weir_token::verify::Segment;

use super::{
    common::{skipped, soon},
    forward::{self, known},
    frames,
    gateway::{Lab, SERVER},
    lab::{CURL_AND_PYTHON, OPEN, PORT, SERVE_DIGESTS},
};

/// Sends a lot on a connection, or one datagram, each packet with an option in its IP header:
/// `token`, or `daf`. Says whether the right digest has come.
const SEND: &str = "
import hashlib, os, socket, sys
address, port, kind, option = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
family = socket.AF_INET6 if ':' in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
s.settimeout(5)
inside = bytes.fromhex('7765') + b'\\xab' * 16
if family == socket.AF_INET:
    value = bytes([30, 20]) + inside if option == 'token' else bytes([0x5e, 34]) + b'\\xab' * 32 + b'\\1\\0'
    s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, value)
else:
    s.setsockopt(41, socket.IPV6_DSTOPTS, bytes([0, 2, 1, 0, 0x1e, 18]) + inside)
s.connect((address, port))
data = os.urandom(3000000 if kind == 'tcp' else 600)
s.sendall(data)
if kind == 'tcp': s.shutdown(socket.SHUT_WR)
print('right' if s.recv(100).decode() == hashlib.sha256(data).hexdigest() else 'wrong')
";

const SEND_PORT: u16 = 9100;

/// What comes to the server, in a file.
struct Dump {
    file: PathBuf,
    _program: Child,
}

impl Dump {
    fn begin(lab: &Lab, name: &str) -> Self {
        let file = lab.client.weir.path(name);
        let mut command = Command::new("tcpdump");
        command
            .args(["-i", "eth0", "-U", "-Q", "in", "-w"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let program = lab.server.spawn(command).unwrap();
        // Its head is written when it listens.
        soon("tcpdump", || {
            fs::metadata(&file).ok().filter(|file| file.len() >= 24)
        });
        Self {
            file,
            _program: program,
        }
    }

    /// Has any packet so far one of these options?
    fn has_token(&self) -> bool {
        let bytes = fs::read(&self.file).unwrap();
        let daf = [&[0x5e, 34][..], &[0xab; 8]].concat();
        let heads = [
            vec![254, 20, 0x77, 0x65],
            vec![30, 20, 0x77, 0x65, 0xab],
            vec![0x1e, 18, 0x77, 0x65, 0xab],
            daf,
        ];
        let has = |head: &Vec<u8>| bytes.windows(head.len()).any(|part| part == head);
        heads.iter().any(has)
    }
}

/// Sums of all counters of this ending that a host has in a file of /proc/net.
fn counted(space: &Namespace, file: &str, ending: &str) -> u64 {
    let done = space
        .output("cat", &[&format!("/proc/net/{file}")])
        .unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let of_columns = lines.chunks(2).filter(|_| file != "snmp6").map(|pair| {
        let (names, values) = (pair[0].split(' '), pair[1].split(' '));
        let both = names.zip(values);
        both.filter(|(name, _)| name.ends_with(ending))
            .map(|(_, value)| value.parse::<u64>().unwrap())
            .sum::<u64>()
    });
    let of_lines = lines.iter().filter(|_| file == "snmp6").filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        let is_it = name.ends_with(ending);
        is_it.then(|| value.trim().parse::<u64>().unwrap())
    });
    of_columns.sum::<u64>() + of_lines.sum::<u64>()
}

fn checksum_errors(space: &Namespace) -> u64 {
    ["snmp", "snmp6", "netstat"]
        .iter()
        .map(|file| counted(space, file, "CsumErrors"))
        .sum::<u64>()
        + counted(space, "snmp", "InHdrErrors")
        + counted(space, "snmp6", "Ip6InHdrErrors")
}

fn stripped(lab: &Lab) -> [u64; 2] {
    let strip = &lab.gateway.token()["strip"];
    assert_eq!(strip["broken"], 0, "{strip}");
    let of = |ways: [&str; 2]| ways.iter().map(|way| strip[*way].as_u64().unwrap()).sum();
    [of(["in_tcp", "out_tcp"]), of(["in_ip", "out_ip"])]
}

fn send(lab: &Lab, address: &str, kind: &str, option: &str) {
    let words = [address, &SEND_PORT.to_string(), kind, option];
    let words = [&["-c", SEND][..], &words].concat();
    let done = lab.client.space.output("/usr/bin/python3", &words).unwrap();
    assert!(
        done.stdout.starts_with(b"right"),
        "{address} {kind} {option} {done:?}"
    );
}

/// The options of a SYN from curl, as the server gets it.
fn has_tcp_token(lab: &Lab, address: &str, port: u16) -> bool {
    let capture = frames::Capture::begin(&lab.server, port);
    assert_eq!(lab.client.curl(address, port), "200");
    let frame = capture.end();
    let segment = Segment::read(&frame[14..]).unwrap();
    weir_token::find(segment.options.unwrap())
        .unwrap()
        .is_some()
}

#[test]
fn root_tokens_of_others_are_overwritten_at_an_uplink() {
    if skipped(&["tcpdump", "ethtool"]) {
        return;
    }
    let Some(mut lab) = forward::lab("strip") else {
        return;
    };
    let mut serve = Command::new("/usr/bin/python3");
    serve.args(["-c", SERVE_DIGESTS, &SEND_PORT.to_string()]);
    let _serve = lab.server.spawn(serve).unwrap();
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, _] = known(&lab);
    assert!(has_tcp_token(&lab, SERVER[0], OPEN), "it is signed");

    for (direction, interface) in [("out", "server"), ("in", "client"), ("both", "server")] {
        let strip =
            format!("[token.strip]\ninterfaces = [\"{interface}\"]\ndirection = \"{direction}\"\n");
        lab.gateway.configure(&strip);
        lab.gateway.weir.start();
        // With superpackets and sums that a device would compute, and without either.
        for offload in ["on", "off"] {
            let dump = Dump::begin(&lab, &format!("{direction}.{offload}"));
            for (space, device) in [
                (&lab.client.space, "eth0"),
                (&lab.gateway.space, "client"),
                (&lab.gateway.space, "server"),
            ] {
                let words = ["-K", device, "tx", offload, "gro", offload];
                space.run("ethtool", &words).unwrap();
            }
            for address in SERVER {
                let before = stripped(&lab);
                assert!(!has_tcp_token(&lab, address, OPEN), "{direction} {address}");
                for kind in ["tcp", "udp"] {
                    send(&lab, address, kind, "token");
                    send(&lab, address, kind, "daf");
                }
                let after = stripped(&lab);
                assert!(
                    after[0] > before[0] && after[1] > before[1] + 4,
                    "{after:?}"
                );
            }
            assert!(!dump.has_token(), "{direction} {offload}");
            assert_eq!(checksum_errors(&lab.server), 0, "{direction} {offload}");
        }

        // Without a daemon, and with the next.
        lab.gateway.weir.end("KILL");
        assert!(!has_tcp_token(&lab, SERVER[1], OPEN), "{direction}");
        lab.gateway.weir.start();
        assert!(!has_tcp_token(&lab, SERVER[0], OPEN), "{direction}");
        let shown = lab.gateway.weir.done(&["status"]);
        let words = format!("tokens of others overwritten at {interface} ({direction}): ");
        assert!(shown.contains(&words), "{shown}");
        let metrics = lab.gateway.weir.done(&["metrics"]);
        assert!(
            metrics.contains("weir_token_stripped_packets_total"),
            "{metrics}"
        );

        // Networks that are left alone.
        let except = match interface {
            "server" => "except = [\"198.51.100.0/24\", \"2001:db8:1::/64\"]\n",
            _ => "except = [\"192.0.2.0/24\", \"2001:db8::/64\"]\n",
        };
        lab.gateway.configure(&format!("{strip}{except}"));
        lab.gateway.weir.done(&["reload"]);
        for address in SERVER {
            assert!(has_tcp_token(&lab, address, OPEN), "{direction} {address}");
        }
        let dump = Dump::begin(&lab, &format!("{direction}.except"));
        send(&lab, SERVER[0], "udp", "token");
        soon("the token", || dump.has_token().then_some(()));
        lab.gateway.weir.end("KILL");
        lab.gateway.weir.done(&["detach"]);
    }

    // What comes in to a port that wants tokens keeps them, and is verified.
    lab.gateway.copy_keys(&lab.client);
    lab.gateway.configure(&format!(
        "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n\
         [token.strip]\ninterfaces = [\"client\"]\n\
         [token.forward]\ninterfaces = [\"client\", \"other\"]\n\
         [token.forward.require.web]\nto = [\"198.51.100.0/24\", \"2001:db8:1::/64\"]\n\
         ports = [\"{PORT}/tcp\"]\naggregate = \"{curl}\"\n"
    ));
    lab.gateway.weir.start();
    lab.lets_only_curl_through("with both");
    for address in SERVER {
        assert!(has_tcp_token(&lab, address, PORT), "{address}");
        assert!(!has_tcp_token(&lab, address, OPEN), "{address}");
    }

    // An interface that is not there is named, and covered when it comes.
    lab.gateway
        .configure("[token.strip]\ninterfaces = [\"later\"]\n");
    lab.gateway.weir.done(&["reload"]);
    soon("the alert", || {
        let alerts = lab.gateway.weir.alerts();
        alerts.contains("later: it is not there").then_some(())
    });
    lab.gateway
        .space
        .ip(&[
            "link set server down".into(),
            "link set server name later".into(),
        ])
        .unwrap();
    soon("the interface", || {
        (lab.gateway.token()["strip"]["interfaces"] == serde_json::json!(["later"])).then_some(())
    });
    soon("no alert", || {
        let alerts = lab.gateway.weir.alerts();
        (!alerts.contains("token:strip")).then_some(())
    });
}
