//! What a path does to tokens, and what devices and programs at its ends do: a router that
//! alters them, or strips them now and then; checksums computed by software; segments that are
//! joined where they arrive (GRO); options that are there already; keys that change meanwhile.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use weir_netlab::{Child, Namespace};

use super::{
    common::{skipped, soon},
    datagrams::{self, Lab, SERVER},
    frames,
    lab::{CURL_AND_PYTHON, OPEN, PORT, nginx_conf, url},
};

/// A client that signs TCP, and a server that wants tokens of `path`, with nginx.
fn start(name: &str, path: &str, more: &str, of_server: &str) -> Option<(Lab, Child)> {
    if skipped(&["nft", "tc", "ethtool", "/usr/sbin/nginx", "curl"]) {
        return None;
    }
    let mut lab = Lab::new(name)?;
    let conf = nginx_conf(&lab.server.weir.path(""));
    let words = ["/usr/sbin/nginx", "-c", conf.to_str().unwrap()];
    let nginx = lab.server.spawn(&words);
    configure(&lab, more);
    lab.client.weir.start();
    let run = || {
        lab.client.curl(SERVER[0], OPEN);
        lab.client.connects(SERVER[0], OPEN);
    };
    let aggregate = lab.client.known(path, run);
    lab.server.copy_keys(&lab.client);
    lab.server.require(&aggregate, of_server);
    lab.server.weir.start();
    Some((lab, nginx))
}

fn configure(lab: &Lab, more: &str) {
    lab.client.configure(&format!(
        "[app]\ncgroup = \"{{cgroup}}\"\n{CURL_AND_PYTHON}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n{more}"
    ));
}

fn gets_in(lab: &Lab) {
    for address in SERVER {
        soon("curl to get in", || {
            (lab.client.curl(address, PORT) == "200").then_some(())
        });
    }
}

/// Packets that the host has thrown away for their checksums, of each protocol and family.
fn wrong_checksums(space: &Namespace) -> u64 {
    let read = |file: &str| {
        let said = space.output("cat", &[file]).unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    let mut sum = 0;
    // A line of names and one of values.
    let text = read("/proc/net/snmp");
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.chunks(2) {
        let names = pair[0].split(' ').zip(pair[1].split(' '));
        let wrong = names.filter(|(name, _)| *name == "InCsumErrors");
        sum += wrong.map(|(_, n)| n.parse::<u64>().unwrap()).sum::<u64>();
    }
    for line in read("/proc/net/snmp6").lines() {
        if let Some((name, count)) = line.split_once(char::is_whitespace)
            && name.ends_with("InCsumErrors")
        {
            sum += count.trim().parse::<u64>().unwrap();
        }
    }
    sum
}

fn set_device(space: &Namespace, features: &[&str]) {
    let words = [&["-K", "eth0"], features].concat();
    space.run("ethtool", &words).unwrap();
}

/// With checksums that the sender computes itself, and the receiver's stack looks at, and
/// with segments that the receiver's device joins and does not join.
#[test]
fn root_checksums_are_right_at_the_receivers_own_stack() {
    for (conduit, is_payload) in [
        ("tcp-option", false),
        ("ip-option", false),
        ("tcp-option", true),
    ] {
        let scope = if is_payload {
            "scope = \"payload\"\n"
        } else {
            ""
        };
        let more = format!(
            "conduits = [\"{conduit}\"]\nsign_udp_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n{scope}"
        );
        let Some((lab, _nginx)) = start("sums", "/curl", &more, scope) else {
            return;
        };
        gets_in(&lab);
        let port = datagrams::OPEN;
        soon("datagrams to be signed", || {
            for address in SERVER {
                lab.ask(address, port, "plain", &[40]);
            }
            (lab.client.token()["signing"]["udp"]["signed"].as_u64() > Some(3)).then_some(())
        });
        for tx in ["on", "off"] {
            for gro in ["on", "off"] {
                set_device(&lab.client.space, &["tx", tx]);
                set_device(&lab.server.space, &["gro", gro]);
                let valid = lab.server.outcome("valid");
                for address in SERVER {
                    assert_eq!(
                        lab.client.curl(address, PORT),
                        "200",
                        "{address} {tx} {gro}"
                    );
                    let sizes = [1, 2, 3, 40, 1000, 1399];
                    let said = lab.ask(address, port, "plain", &sizes);
                    assert_eq!(said, ["answer"; 6].join(","), "{address} {tx} {gro}");
                    // Superpackets take a device that computes checksums.
                    if tx == "on" {
                        let said = lab.ask(address, port, "gso", &[1000]);
                        assert_eq!(said, "answer", "{address} {gro}");
                    }
                }
                assert!(lab.server.outcome("valid") >= valid + 2);
            }
        }
        assert_eq!(wrong_checksums(&lab.server.space), 0, "{conduit}");
        assert_eq!(wrong_checksums(&lab.client.space), 0, "{conduit}");
        for reason in ["wrong-mac", "malformed"] {
            assert_eq!(lab.server.outcome(reason), 0, "{conduit} {reason}");
        }
    }
}

/// Where the token of a SYN stands behind the begin of its IP header, by family.
fn offset(lab: &Lab, address: &str) -> usize {
    let capture = frames::Capture::begin(&lab.server.space, OPEN);
    lab.client.curl(address, OPEN);
    let frame = capture.end();
    let token = [254, 20, 0x77, 0x65];
    let at = frame.windows(4).position(|four| four == token);
    at.expect("a token") - 14
}

/// A router that writes over parts of tokens, with right checksums.
#[test]
fn root_what_a_router_alters_is_refused_by_its_reason() {
    let Some((lab, _nginx)) = start("alter", "/curl", "", "") else {
        return;
    };
    gets_in(&lab);
    let tc = |words: &str| {
        let words: Vec<_> = words.split_whitespace().collect();
        lab.router.output("tc", &words).unwrap()
    };
    // Whole checksums, which the router and the receiver's stack look at.
    set_device(&lab.client.space, &["tx", "off"]);
    let made = tc("qdisc add dev client clsact");
    assert!(made.status.success(), "{made:?}");
    for address in SERVER {
        let (family, more) = match address.contains(':') {
            true => ("ipv6", "and tcp"),
            false => ("ip", "ip and tcp"),
        };
        let at = offset(&lab, address);
        for (part, value, reason) in [
            // The MAC; the aggregate; the epoch; the key; the version; the length; the kind; and
            // what tells a token from other experiments.
            (19, 0x55, "wrong-mac"),
            (12, 0x55, "wrong-mac"),
            (8, 0x55, "not-named"),
            (6, 0x55, "other-epoch"),
            (5, 0x55, "unknown-key"),
            (4, 0x55, "other-version"),
            (1, 19, "malformed"),
            (1, 0, "malformed"),
            (0, 253, "missing"),
            (2, 0x55, "missing"),
        ] {
            let rule = format!(
                "filter add dev client ingress pref 1 protocol {family} flower ip_proto tcp dst_port {PORT} tcp_flags 0x02/0x12 action pedit munge offset {} u8 set {value} pipe action csum {more}",
                at + part
            );
            let made = tc(&rule.replace("csum and", "csum"));
            if !made.status.success() {
                let said = String::from_utf8_lossy(&made.stderr);
                eprintln!("skipped: this kernel does not alter packets by tc (probe: {said})");
                return;
            }
            let before = lab.server.outcome(reason);
            let at = url(address, PORT);
            let words = ["curl", "-s", "-o", "/dev/null", "--max-time", "1.5", &at];
            let done = lab.client.run(&words);
            assert_eq!(done.status.code(), Some(28), "{address} {part}");
            assert!(
                lab.server.outcome(reason) > before,
                "{address} {part}: {}",
                lab.server.token()
            );
            assert_eq!(lab.client.curl(address, OPEN), "200", "{address} {part}");
            tc("filter del dev client ingress pref 1");
        }
        assert_eq!(lab.client.curl(address, PORT), "200", "{address}");
    }
    assert_eq!(wrong_checksums(&lab.server.space), 0);
    // A change without them is seen: so none of the above had a wrong one.
    let at = offset(&lab, SERVER[0]) + 19;
    tc(&format!(
        "filter add dev client ingress pref 1 protocol ip flower ip_proto tcp dst_port {PORT} tcp_flags 0x02/0x12 action pedit munge offset {at} u8 set 0x55"
    ));
    let wrong_mac = lab.server.outcome("wrong-mac");
    let at = url(SERVER[0], PORT);
    let words = ["curl", "-s", "-o", "/dev/null", "--max-time", "1.5", &at];
    lab.client.run(&words);
    assert!(wrong_checksums(&lab.server.space) > 0);
    assert_eq!(lab.server.outcome("wrong-mac"), wrong_mac);
}

/// A path that lets every other token pass is measured as such, and none is sent that way.
#[test]
fn root_a_path_that_strips_half_of_the_tokens_is_told() {
    let Some((lab, _nginx)) = start("half", "/curl", "", "") else {
        return;
    };
    gets_in(&lab);
    let file = lab.client.weir.path("rules.nft");
    let rule = "tcp option 254 exists numgen inc mod 2 == 0 reset tcp option 254";
    let text = format!(
        "table inet path {{\n chain forward {{\n type filter hook forward priority 0\n iifname != client accept\n {rule}\n }}\n}}\n"
    );
    fs::write(&file, text).unwrap();
    let words = ["-f", file.to_str().unwrap()];
    lab.router.run("nft", &words).unwrap();
    // Who serves sees it: SYNs that prove nothing, and the same connection a second later.
    for address in SERVER {
        let (missing, valid) = (lab.server.outcome("missing"), lab.server.outcome("valid"));
        for _ in 0..4 {
            assert_eq!(lab.client.curl(address, PORT), "200", "{address}");
        }
        assert!(lab.server.outcome("missing") > missing, "{address}");
        assert!(lab.server.outcome("valid") >= valid + 4, "{address}");
    }
    let [client, server] = [&lab.client.space, &lab.server.space].map(Namespace::name);
    let sites = [
        format!("west=netns:{client}"),
        format!("east=netns:{server}/{}", SERVER.join(",")),
    ];
    let result = lab.client.weir.path("half.jsonl");
    let mut words = vec!["options", "probe", &sites[0], &sites[1], "--tries", "20"];
    words.extend(["--resume", result.to_str().unwrap(), "--carrier", "tcp"]);
    for option in ["ip:30/20", "dst:0x1e/20", "tcp:254/20"] {
        words.extend(["--option", option]);
    }
    lab.client.weir.done(&words);
    let probed = "probe_result = \"{dir}/half.jsonl\"\n";
    configure(&lab, probed);
    lab.client.weir.done(&["reload"]);
    let alerts = lab.client.weir.alerts();
    for network in ["198.51.100.0/24", "2001:db8:2::/64"] {
        let told = format!("to {network} no token is sent by TCP");
        assert!(alerts.contains(&told), "{alerts}");
    }
    let (_, shown) = lab.client.weir.ask(&["status"]);
    assert!(
        shown.contains("no token by TCP to 198.51.100.0/24"),
        "{shown}"
    );
    // The other conduit is whole.
    configure(
        &lab,
        &format!("conduits = [\"tcp-option\", \"ip-option\"]\n{probed}"),
    );
    lab.client.weir.done(&["reload"]);
    gets_in(&lab);
    assert!(!lab.client.weir.alerts().contains("no token is sent"));
    for address in SERVER {
        let missing = lab.server.outcome("missing");
        for _ in 0..4 {
            assert_eq!(lab.client.curl(address, PORT), "200", "{address}");
        }
        assert_eq!(lab.server.outcome("missing"), missing, "{address}");
    }
}

/// Connects, or sends, with 40 bytes of options of IPv4, or a destination options header of
/// IPv6 of as many, that the program has set itself.
const FULL: &str = "
import socket, sys
address, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
v6 = ':' in address
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
s.settimeout(3)
if v6: s.setsockopt(41, 59, bytes([0, 4, 5, 36]) + bytes(36))
else: s.setsockopt(0, 4, b'\\1' * 39 + b'\\0')
try:
    s.connect((address, port))
    if kind == 'udp': s.send(b'hello'); s.recv(100)
    print('answer')
except OSError as e: print(type(e).__name__)
";

/// Options that are there already leave no room: the packet goes as it was, and is counted.
#[test]
fn root_packets_whose_options_are_full_go_as_they_were_and_are_counted() {
    let more =
        "conduits = [\"ip-option\"]\nsign_udp_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n";
    let Some((lab, _nginx)) = start("full", "python3", more, "") else {
        return;
    };
    for address in SERVER {
        soon("python3 to get in", || {
            (lab.client.connects(address, PORT) == "connected").then_some(())
        });
        let full = |port: u16, kind: &str| {
            let told = lab.client.python(FULL, &[address, &port.to_string(), kind]);
            told.trim().to_owned()
        };
        let room = || {
            let signing = &lab.client.token()["signing"];
            [&signing["without_room"], &signing["udp"]["without_room"]]
                .map(|count| count.as_u64().unwrap())
        };
        let (before, missing) = (room(), lab.server.outcome("missing"));
        assert_eq!(full(OPEN, "tcp"), "answer", "{address}");
        assert_eq!(full(PORT, "tcp"), "TimeoutError", "{address}");
        assert!(room()[0] > before[0], "{address}: {:?}", room());
        assert!(lab.server.outcome("missing") > missing, "{address}");
        let before = room();
        soon("a datagram without room", || {
            let said = full(datagrams::OPEN, "udp");
            (said == "answer" && room()[1] > before[1]).then_some(())
        });
    }
    assert_eq!(wrong_checksums(&lab.server.space), 0);
}

/// Connects all the time, from four threads, and says how many of how many did not.
const MANY: &str = "
import socket, sys, threading, time
addresses, port = sys.argv[2:], int(sys.argv[1])
lost, asked, over = [], [], threading.Event()
def connect(n):
    while not over.wait(0.01): # there are 28,000 ports, and each rests for a minute
        asked.append(1)
        try: socket.create_connection((addresses[n % len(addresses)], port), 5).close()
        except OSError as e: lost.append(repr(e))
threads = [threading.Thread(target=connect, args=[n]) for n in range(4)]
for t in threads: t.start()
sys.stdin.read()
over.set()
for t in threads: t.join()
print(len(lost), len(asked), *lost[:3])
";

/// While many connections begin, a key comes, signs, and the old one goes.
#[test]
fn root_keys_change_while_many_connections_begin() {
    let Some((lab, _nginx)) = start("many", "python3", "", "") else {
        return;
    };
    let (client, server) = (&lab.client, &lab.server);
    for address in SERVER {
        soon("python3 to get in", || {
            (client.connects(address, PORT) == "connected").then_some(())
        });
    }
    let port = PORT.to_string();
    let words = ["/usr/bin/python3", "-c", MANY, &port, SERVER[0], SERVER[1]];
    let mut command = Command::new("sh");
    command
        .args(client.entered(&words))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let valid = server.outcome("valid");
    let mut many = client.space.spawn(command).unwrap();
    let goes_on = |what: &str| {
        let before = server.outcome("valid");
        soon(what, || {
            (server.outcome("valid") > before + 50).then_some(())
        });
    };
    goes_on("many connections");
    let keys = client.keys();
    let far = ["--sign-from", "2100-01-01T00:00:00Z"];
    let words = [&["token", "key", "new", "--keys", &keys][..], &far].concat();
    client.weir.done(&words);
    let second = fs::read_to_string(client.weir.path("keys/2.key")).unwrap();
    server.copy_keys(client);
    server.weir.done(&["reload"]);
    goes_on("the new key to be accepted");
    let line = "sign_from = \"2100-01-01T00:00:00Z\"\n";
    fs::write(client.weir.path("keys/2.key"), second.replace(line, "")).unwrap();
    client.weir.done(&["reload"]);
    soon("the second key to sign", || {
        (client.token()["keys"][1]["use"] == "signs").then_some(())
    });
    goes_on("the new key to sign");
    let server_keys = server.keys();
    let to = Path::new(&server_keys).join("2.key");
    fs::copy(client.weir.path("keys/2.key"), to).unwrap();
    let words = ["token", "key", "retire", "1", "--keys", &server_keys];
    server.weir.done(&words);
    server.weir.done(&["reload"]);
    goes_on("the old key to be retired");
    drop(many.inner().stdin.take());
    let ended = many.wait(Duration::from_secs(120)).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let mut said = String::new();
    let stdout = many.inner().stdout.take().unwrap();
    std::io::Read::read_to_string(&mut { stdout }, &mut said).unwrap();
    let words: Vec<_> = said.trim().splitn(3, ' ').collect();
    let asked: u64 = words[1].parse().unwrap();
    assert_eq!(words[0], "0", "{said}: {}", server.token());
    assert!(asked > 200, "{said}");
    let counted = server.outcome("valid") - valid;
    assert!(counted >= asked, "{counted} of {asked}: {}", server.token());
    assert_eq!(server.outcome("unknown-key"), 0);
}
