//! UDP: datagrams with tokens over a router. python3 on one host proves to another that it
//! sends, which lets it to a port where perl, a third host and replays get no answer.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::IpAddr,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_netlab::{Child, Namespace, Net, Side, Veth, VethOpts};
use weir_testkit::packet::{Packet, proto};
use weir_token::{DatagramStatement, TokenOption, VERSION, epoch_at, key_file::Key};

use super::{
    common::soon,
    frames,
    lab::{Host, cannot_run},
};

const PROGRAMS: [&str; 3] = ["/usr/bin/python3", "/usr/bin/perl", "ip"];
pub const SERVER: [&str; 2] = ["198.51.100.2", "2001:db8:2::2"];
/// The port that wants tokens, and one that does not.
pub const PORT: u16 = 5300;
pub const OPEN: u16 = 5301;

pub const SENDERS: &str = "default = \"drop\"\nunknown = \"drop\"\n[app.rules.both]\nverdict = \"allow\"\npath = [\"/usr/bin/python3\", \"/usr/bin/perl\"]\n";

/// As the guide has it: nothing is denied, and perl has no rule.
const EVERYBODY: &str = "default = \"allow\"\nunknown = \"learn\"\n[app.rules.python]\nverdict = \"allow\"\npath = \"/usr/bin/python3\"\n";

/// Answers each datagram with its length and digest.
const SERVE: &str = "
import hashlib, selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in map(int, sys.argv[1:]):
    for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
        s = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        s.bind((address, port)); waiting.register(s, selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        data, peer = key.fileobj.recvfrom(65535)
        try: key.fileobj.sendto(b'%d %s' % (len(data), hashlib.sha256(data).hexdigest().encode()), peer)
        except OSError: pass
";

/// Sends datagrams of these sizes from one socket, and says which of them were answered as
/// they are. MODE: `plain`, `fragments` (path MTU discovery off) or `gso` (each size ten
/// times, as one superpacket).
const ASK: &str = "
import hashlib, os, socket, sys
address, port, mode, sizes = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
family = socket.AF_INET6 if ':' in address else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(1.5)
if mode == 'fragments': s.setsockopt(*((41, 23, 0) if family == socket.AF_INET6 else (0, 10, 0)))
said = []
for size in map(int, sizes):
    data = [os.urandom(size) for _ in range(10 if mode == 'gso' else 1)]
    if mode == 'gso': s.setsockopt(17, 103, size)
    left = {b'%d %s' % (size, hashlib.sha256(one).hexdigest().encode()) for one in data}
    # Who is just becoming known is dropped once.
    for n in range(2 if mode == 'gso' else 4):
        try:
            s.sendto(b''.join(data), (address, port))
            while left: left.discard(s.recv(4096))
        except (TimeoutError, OSError) as e: why = type(e).__name__
        if not left: break
    said.append('answer' if not left else '%s %d' % (why, len(left)))
print(','.join(said))
";

/// One datagram, by another program.
const PERL: &str = "
use IO::Socket::IP; my $s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Proto => 'udp');
$SIG{ALRM} = sub { print 'silence'; exit }; alarm 2;
$s->send('hello'); $s->recv(my $said, 100); print $said ? 'answer' : 'silence';
";

/// A client and a third host at one router, which leads to a server.
pub struct Lab {
    _serve: Child,
    pub client: Host,
    pub server: Host,
    pub other: Namespace,
    pub router: Namespace,
    veths: Vec<Veth>,
    net: Net,
}

impl Lab {
    pub fn new(name: &str) -> Option<Self> {
        if cannot_run(&PROGRAMS) {
            return None;
        }
        let net = Net::new().unwrap();
        let router = net.namespace("router").unwrap();
        router.forward().unwrap();
        let mut veths = Vec::new();
        // The server, the client, the third host.
        let spaces = ["server", "client", "other"].map(|name| {
            let space = net.namespace(name).unwrap();
            space.run("ip", &["link", "set", "lo", "up"]).unwrap();
            let (v4, v6, own) = match name {
                "server" => ("198.51.100", "2001:db8:2::", 2),
                "client" => ("192.0.2", "2001:db8:1::", 1),
                _ => ("203.0.113", "2001:db8:3::", 1),
            };
            let of = |last: u8| [format!("{v4}.{last}/24"), format!("{v6}{last:x}/64")];
            let (own, routers) = (of(own), of(254));
            let opts = VethOpts::new(
                &own.each_ref().map(String::as_str),
                &routers.each_ref().map(String::as_str),
            );
            let veth = net.veth(&space, "eth0", &router, name, opts.unwrap());
            veths.push(veth.unwrap());
            space
                .ip(&[
                    format!("route add default via {v4}.254"),
                    format!("route add default via {v6}fe"),
                ])
                .unwrap();
            space
        });
        let [server, client, other] = spaces;
        let server = Host::new(server, &format!("{name}-s"));
        let mut client = Host::new(client, &format!("{name}-c"));
        // Where its datagrams leave. A new mount namespace would not have bpffs.
        let inside = format!("--net={}", client.space.path().display());
        client.weir.deadline = Duration::from_secs(120);
        client.weir.under = ["nsenter", &inside, "--"].map(str::to_owned).to_vec();
        let (port, open) = (PORT.to_string(), OPEN.to_string());
        let serve = server.spawn(&["/usr/bin/python3", "-c", SERVE, &port, &open]);
        client.make_key();
        Some(Self {
            _serve: serve,
            client,
            server,
            other,
            router,
            veths,
            net,
        })
    }

    /// The client signs to the server, which wants tokens of python3.
    pub fn start(&mut self, more: &str) -> String {
        self.start_with(SENDERS, more)
    }

    fn start_with(&mut self, app: &str, more: &str) -> String {
        self.client.configure(&format!(
            "[app]\ncgroup = \"{{cgroup}}\"\n{app}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_udp_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n"
        ));
        self.client.weir.start();
        let python = soon("python3 to be known", || {
            self.ask(SERVER[0], OPEN, "plain", &[40]);
            self.client.aggregate("python3")
        });
        self.server.copy_keys(&self.client);
        self.require(&python, more);
        self.server.weir.start();
        for address in SERVER {
            soon("python3 to get in", || {
                (self.ask(address, PORT, "plain", &[40]) == "answer").then_some(())
            });
        }
        python
    }

    fn require(&self, aggregate: &str, more: &str) {
        self.server.configure(&format!(
            "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n[token.require.echo]\nports = [\"{PORT}/udp\"]\naggregate = \"{aggregate}\"\n{more}"
        ));
    }

    pub fn ask(&self, address: &str, port: u16, mode: &str, sizes: &[u32]) -> String {
        let (port, sizes) = (port.to_string(), sizes.iter().map(u32::to_string));
        let sizes: Vec<_> = sizes.collect();
        let head = [address, &port, mode];
        let args: Vec<_> = head.into_iter().chain(sizes.iter().map(|s| &**s)).collect();
        self.client.python(ASK, &args).trim().to_owned()
    }

    pub fn perl(&self, from: Option<&Namespace>, address: &str, port: u16) -> String {
        let port = port.to_string();
        let words = ["/usr/bin/perl", "-e", PERL, address, &port];
        let done = match from {
            Some(space) => space.output(words[0], &words[1..]).unwrap(),
            None => self.client.run(&words),
        };
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn udp(&self, name: &str) -> u64 {
        let signing = &self.client.token()["signing"]["udp"];
        let count = signing[name].as_u64();
        count.unwrap_or_else(|| panic!("no {name} in {signing}"))
    }
}

#[test]
fn root_datagrams_prove_who_sends_and_nobody_else_gets_an_answer() {
    let Some(mut lab) = Lab::new("udp") else {
        return;
    };
    lab.start("");
    let server = &lab.server;
    for address in SERVER {
        let (valid, signed) = (server.outcome("valid"), lab.udp("signed"));
        assert_eq!(lab.ask(address, PORT, "plain", &[40]), "answer");
        assert!(server.outcome("valid") > valid, "{}", server.token());
        assert!(lab.udp("signed") > signed);
        soon("perl to be known", || {
            (lab.perl(None, address, OPEN) == "answer").then_some(())
        });
        // It signs as well, as what it is.
        let (not_named, missing) = (server.outcome("not-named"), server.outcome("missing"));
        // Who has become known a moment ago may send without a token still.
        soon("a token of perl", || {
            assert_eq!(lab.perl(None, address, PORT), "silence");
            (server.outcome("not-named") > not_named).then_some(())
        });
        // Who has no weir has no token: on another host, and on the server itself.
        for space in [&lab.other, &server.space] {
            assert_eq!(lab.perl(Some(space), address, PORT), "silence");
            assert_eq!(lab.perl(Some(space), address, OPEN), "answer");
        }
        assert!(server.outcome("missing") >= missing + 2);
    }
    let shown = lab.client.weir.done(&["status"]);
    assert!(shown.contains("signing UDP to 198.51.100.0/24"), "{shown}");
    assert!(shown.contains("at eth0"), "{shown}");
    let why = server.weir.json(&["token", "why", "--reason", "not-named"]);
    assert_eq!(why["packets"][0]["protocol"], "udp", "{why}");
    let metrics = lab.client.weir.done(&["metrics"]);
    assert!(
        metrics.contains("weir_token_datagrams_total{result=\"signed\"}"),
        "{metrics}"
    );

    // Without daemons.
    lab.client.weir.end("KILL");
    lab.server.weir.end("KILL");
    for address in SERVER {
        assert_eq!(lab.ask(address, PORT, "plain", &[40]), "answer");
        assert_eq!(lab.perl(None, address, PORT), "silence");
        assert_eq!(lab.perl(Some(&lab.other), address, PORT), "silence");
    }
    lab.client.weir.start();
    lab.server.weir.start();
    for address in SERVER {
        soon("python3 after the restart", || {
            (lab.ask(address, PORT, "plain", &[40]) == "answer").then_some(())
        });
        assert_eq!(lab.perl(None, address, PORT), "silence");
    }
    // Nothing of it stays behind.
    lab.client.weir.end("KILL");
    lab.client.weir.done(&["detach"]);
    for address in SERVER {
        assert_eq!(
            lab.ask(address, PORT, "plain", &[40]),
            "TimeoutError 1",
            "{address}"
        );
        assert_eq!(lab.ask(address, OPEN, "plain", &[40]), "answer");
    }
}

#[test]
fn root_datagrams_of_every_size_arrive_with_a_token_or_without() {
    let Some(mut lab) = Lab::new("udp-size") else {
        return;
    };
    lab.start("");
    let sizes = [1, 40, 512, 1280, 1400, 1428, 1452, 1453, 1472];
    for address in SERVER {
        let most = if address.contains(':') { 1452 } else { 1472 };
        let sizes: Vec<_> = sizes.into_iter().filter(|size| *size <= most).collect();
        let all = vec!["answer"; sizes.len()].join(",");
        // An IPv6 packet of 1280 bytes with its token, and one that would be longer.
        for (size, is_longer) in [(1208, 0), (1209, 1), (1232, 1), (1233, 0)] {
            let too_big = lab.udp("too_big");
            assert_eq!(
                lab.ask(address, PORT, "plain", &[40, size]),
                "answer,answer"
            );
            let longer = if address.contains(':') { is_longer } else { 0 };
            assert_eq!(lab.udp("too_big"), too_big + longer, "{address} {size}");
        }
        let (too_big, fragments) = (lab.udp("too_big"), lab.udp("fragments"));
        assert_eq!(lab.ask(address, PORT, "plain", &sizes), all, "{address}");
        assert!(lab.udp("too_big") > too_big);
        let large = [40, 2000, 9000];
        assert_eq!(
            lab.ask(address, PORT, "fragments", &large),
            "answer,answer,answer",
            "{address} {}",
            lab.server.token()
        );
        assert!(lab.udp("fragments") >= fragments + 2);
        // One call for many: each of them has the token.
        let (signed, too_big) = (lab.udp("signed"), lab.udp("too_big"));
        let valid = lab.server.outcome("valid");
        assert_eq!(
            lab.ask(address, PORT, "gso", &[40, 1200]),
            "answer,answer",
            "{address}"
        );
        assert!(lab.udp("signed") >= signed + 2);
        assert!(lab.server.outcome("valid") >= valid + 20);
        assert_eq!(lab.ask(address, PORT, "gso", &[40, most]), "answer,answer");
        assert!(lab.udp("too_big") > too_big, "{address}");
    }
    // Larger frames, by a device that comes later: the token is put in there.
    let opts = VethOpts::new(
        &["192.0.3.1/24", "2001:db8:7::1/64"],
        &["192.0.3.254/24", "2001:db8:7::fe/64"],
    );
    let (space, router) = (&lab.client.space, &lab.router);
    let veth = lab
        .net
        .veth(space, "eth1", router, "client1", opts.unwrap().mtu(9100));
    let _veth = veth.unwrap();
    for (space, dev) in [(router, "server"), (&lab.server.space, "eth0")] {
        space.ip(&[format!("link set {dev} mtu 9100")]).unwrap();
    }
    space
        .ip(&[
            "route replace 198.51.100.0/24 via 192.0.3.254".into(),
            "route replace 2001:db8:2::/64 via 2001:db8:7::fe".into(),
        ])
        .unwrap();
    soon("tokens at the new device", || {
        let token = lab.client.token();
        let names = token["signing"]["udp"]["interfaces"].as_array().cloned();
        names.unwrap().contains(&"eth1".into()).then_some(())
    });
    for address in SERVER {
        let signed = lab.udp("signed");
        assert_eq!(
            lab.ask(address, PORT, "plain", &[40, 1472, 4000, 9000]),
            "answer,answer,answer,answer",
            "{address} {}",
            lab.client.token()
        );
        assert!(lab.udp("signed") >= signed + 4);
    }
    assert_eq!((lab.udp("refused"), lab.udp("broken")), (0, 0));
}

#[test]
fn root_datagrams_are_signed_where_nothing_is_denied() {
    let Some(mut lab) = Lab::new("udp-all") else {
        return;
    };
    lab.start_with(EVERYBODY, "");
    for address in SERVER {
        assert_eq!(lab.perl(None, address, OPEN), "answer");
        let not_named = lab.server.outcome("not-named");
        soon("a token of perl", || {
            assert_eq!(lab.perl(None, address, PORT), "silence");
            (lab.server.outcome("not-named") > not_named).then_some(())
        });
    }
}

#[test]
fn root_a_path_that_takes_less_is_respected() {
    let Some(mut lab) = Lab::new("udp-path") else {
        return;
    };
    lab.start("");
    for (space, dev) in [(&lab.router, "server"), (&lab.server.space, "eth0")] {
        space.ip(&[format!("link set {dev} mtu 1300")]).unwrap();
    }
    for address in SERVER {
        // The router says what the path takes; what is sent then is as long as that.
        lab.ask(address, PORT, "plain", &[1400]);
        let most = 1300 - 28 - if address.contains(':') { 20 } else { 0 };
        let too_big = lab.udp("too_big");
        assert_eq!(
            lab.ask(address, PORT, "plain", &[40, most, 1000]),
            "answer,answer,answer",
            "{address} {}",
            lab.client.token()
        );
        assert!(lab.udp("too_big") > too_big);
    }
}

#[test]
fn root_hosts_without_weir_take_datagrams_with_tokens() {
    let Some(mut lab) = Lab::new("udp-plain") else {
        return;
    };
    lab.start("");
    lab.server.weir.end("KILL");
    lab.server.weir.done(&["detach"]);
    for address in SERVER {
        let signed = lab.udp("signed");
        assert_eq!(lab.ask(address, PORT, "plain", &[1, 1200]), "answer,answer");
        assert!(lab.udp("signed") >= signed + 2);
    }
}

/// A table of the server's tokens.
fn table(lab: &Lab, name: &str) -> MapHandle {
    let dir = format!("token-{}", weir_bpf::abi::TOKEN_ABI);
    let root = std::path::Path::new("/sys/fs/bpf/weir").join(&lab.server.instance);
    MapHandle::from_pinned_path(root.join(dir).join(name)).unwrap()
}

/// More than the time for which a flow goes on without tokens ago.
fn long_ago() -> [u8; 8] {
    let idle = u64::from(weir_bpf::abi::TOKEN_DATAGRAM_IDLE) + 10;
    weir_bpf::clock::boottime()
        .wrapping_sub(idle * 1_000_000_000)
        .to_ne_bytes()
}

/// Has the demand of the server's port for tokens be two minutes old, without a wait.
fn settle(lab: &Lab, port: u16) {
    let since = table(lab, "token_udp_since");
    let key = u32::from(port).to_ne_bytes();
    since.update(&key, &long_ago(), MapFlags::ANY).unwrap();
}

/// A frame from the third host to the server through the router.
fn frame(lab: &Lab, source: (&str, u16), dest: &str, token: Option<TokenOption>) -> Vec<u8> {
    let veth = &lab.veths[2];
    let (from, to) = (source.0.parse().unwrap(), dest.parse().unwrap());
    let packet = Packet::eth_between(veth.mac(Side::A), veth.mac(Side::B)).ip(from, to);
    let packet = match (token, from) {
        (None, _) => packet,
        (Some(token), IpAddr::V4(_)) => packet.options(&token.ipv4_bytes()),
        // Next header and length are the builder's.
        (Some(token), IpAddr::V6(_)) => {
            packet.extension(proto::DESTINATION, &token.ipv6_header()[2..])
        }
    };
    packet.udp(source.1, PORT).payload(b"hello").build()
}

#[test]
fn root_datagrams_of_others_are_refused_and_counted_by_reason() {
    let Some(mut lab) = Lab::new("udp-forged") else {
        return;
    };
    let python = lab.start("");
    let key = fs::read_to_string(lab.client.weir.path("keys/1.key")).unwrap();
    let key = Key::parse(&key).unwrap();
    let identity: weir_token::Digest = python.parse().unwrap();
    let identity_key = key.secret().unwrap().identity_key(key.id, &identity);
    let now = || {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        epoch_at(since.as_secs())
    };
    let server = &lab.server;
    for (n, dest) in SERVER.into_iter().enumerate() {
        let other = ["203.0.113.1", "2001:db8:3::1"][n];
        let client = ["192.0.2.1", "2001:db8:1::1"][n];
        let signed = |source: (&str, u16), epoch: u64| TokenOption {
            version: VERSION,
            key_id: key.id.number(),
            epoch: epoch as u16,
            tag: *identity.0.first_chunk().unwrap(),
            mac: DatagramStatement {
                key_id: key.id,
                epoch,
                source: (source.0.parse().unwrap(), source.1),
                dest: (dest.parse().unwrap(), PORT),
            }
            .mac(&identity_key),
        };
        let here = (other, 40_000);
        let good = signed(here, now());
        let counted = |name: &str, token: Option<TokenOption>| {
            let before = server.outcome(name);
            frames::send(&lab.other, &frame(&lab, here, dest, token));
            soon(name, || (server.outcome(name) > before).then_some(()));
        };
        let valid = server.outcome("valid");
        counted("missing", None);
        // What the client has sent, from another host.
        counted("wrong-mac", Some(signed((client, 40_000), now())));
        counted("wrong-mac", Some(signed((other, 40_001), now())));
        counted("other-epoch", Some(signed(here, now() - 3)));
        counted("other-epoch", Some(signed(here, now() + 3)));
        counted("unknown-key", Some(TokenOption { key_id: 9, ..good }));
        counted("other-version", Some(TokenOption { version: 2, ..good }));
        let tag = [9; 4];
        counted("not-named", Some(TokenOption { tag, ..good }));
        let mac = [9; 8];
        counted("wrong-mac", Some(TokenOption { mac, ..good }));
        assert_eq!(server.outcome("valid"), valid, "a wrong token was taken");
        counted("valid", Some(signed(here, now())));
        // From now on this flow goes on without; a wrong token is refused all the same.
        counted("proven", None);
        counted("wrong-mac", Some(TokenOption { mac, ..good }));
    }
}

/// Sends some datagrams from one socket, one after the other, and says how many were not answered.
const STEADY: &str = "
import hashlib, os, socket, sys, time
hashlib.sha256(b'') # to be the same program as the other script
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
lost, asked, end = 0, 0, time.time() + seconds
while time.time() < end:
    s.sendto(b'%d' % asked, (address, port)); asked += 1
    try: s.recv(100)
    except TimeoutError: lost += 1
    time.sleep(0.02)
print(lost, asked)
";

#[test]
fn root_keys_change_without_a_lost_datagram() {
    let Some(mut lab) = Lab::new("udp-keys") else {
        return;
    };
    lab.start("");
    let (client, server) = (&lab.client, &lab.server);
    let port = PORT.to_string();
    let mut steady: Vec<_> = SERVER
        .into_iter()
        .map(|address| {
            let words = ["/usr/bin/python3", "-c", STEADY, address, &port, "30"];
            let mut command = Command::new("sh");
            command
                .args(client.entered(&words))
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            client.space.spawn(command).unwrap()
        })
        .collect();
    let keys = client.keys();
    let far = ["--sign-from", "2100-01-01T00:00:00Z"];
    client
        .weir
        .done(&[&["token", "key", "new", "--keys", &keys][..], &far].concat());
    let second = fs::read_to_string(client.weir.path("keys/2.key")).unwrap();
    server.copy_keys(client);
    server.weir.done(&["reload"]);
    let line = "sign_from = \"2100-01-01T00:00:00Z\"\n";
    fs::write(client.weir.path("keys/2.key"), second.replace(line, "")).unwrap();
    client.weir.done(&["reload"]);
    soon("the second key to sign", || {
        (client.token()["keys"][1]["use"] == "signs").then_some(())
    });
    fs::copy(
        client.weir.path("keys/2.key"),
        std::path::Path::new(&server.keys()).join("2.key"),
    )
    .unwrap();
    server
        .weir
        .done(&["token", "key", "retire", "1", "--keys", &server.keys()]);
    server.weir.done(&["reload"]);
    for child in &mut steady {
        let ended = child.wait(Duration::from_secs(120)).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
        let mut said = String::new();
        let stdout = child.inner().stdout.take().unwrap();
        std::io::Read::read_to_string(&mut { stdout }, &mut said).unwrap();
        let (lost, asked) = said.trim().split_once(' ').unwrap();
        assert_eq!(lost, "0", "of {asked}: {}", server.token());
        assert!(asked.parse::<u32>().unwrap() > 50, "{said}");
    }
    assert_eq!(server.outcome("unknown-key"), 0);
}

/// Asks a host from the port that wants tokens, by a socket of its own.
const FROM_PORT: &str = "
import socket, sys
address, port, own = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
s.bind(('', own)); s.sendto(b'hello', (address, port))
try: print('answer' if s.recv(100) else '')
except TimeoutError: print('silence')
";

#[test]
fn root_answers_to_what_a_program_here_begins_need_no_token() {
    let Some(mut lab) = Lab::new("udp-own") else {
        return;
    };
    let python = lab.start("");
    // Another port that wants tokens, at which nobody listens yet.
    let own = "5302";
    let ports = format!("ports = [\"{own}/udp\"]\naggregate = \"{python}\"\n");
    for mode in ["require", "log"] {
        lab.require(
            &python,
            &format!("[token.require.own]\n{ports}mode = \"{mode}\"\n"),
        );
        lab.server.weir.done(&["reload"]);
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", SERVE, "5303"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let _serve = lab.other.spawn(command).unwrap();
        let count = |name: &str| {
            let outcomes = &lab.server.token()["requirements"][1]["outcomes"];
            outcomes[name].as_u64().unwrap()
        };
        if mode == "require" {
            // Not at once: who was there before gets no further by an answer.
            for other in ["203.0.113.1", "2001:db8:3::1"] {
                let missing = count("missing");
                soon("an answer that is refused", || {
                    let said = lab.server.python(FROM_PORT, &[other, "5303", own]);
                    assert_eq!(said.trim(), "silence", "{other}");
                    (count("missing") > missing).then_some(())
                });
            }
            settle(&lab, 5302);
        }
        let (missing, free) = (count("missing"), count("free"));
        for other in ["203.0.113.1", "2001:db8:3::1"] {
            soon("the other host to answer", || {
                let said = lab.server.python(FROM_PORT, &[other, "5303", own]);
                (said.trim() == "answer").then_some(())
            });
        }
        assert_eq!(count("missing"), missing);
        assert!(count("free") >= free + 2, "{}", lab.server.token());
    }
}

/// Says to all who have sent something how many datagrams they have sent, again and again.
const PUSH: &str = "
import selectors, socket, sys
waiting = selectors.DefaultSelector(); counts = {}
for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((address, int(sys.argv[1]))); waiting.register(s, selectors.EVENT_READ)
while True:
    for key, _ in waiting.select(0.05):
        _, peer = key.fileobj.recvfrom(65535)
        counts[peer] = key.fileobj, counts.get(peer, (0, 0))[1] + 1
    for peer, (s, count) in counts.items():
        try: s.sendto(b'%d' % count, peer)
        except OSError: pass
";

/// From one socket, a datagram of each size that it is told; says whether it was counted.
const TOLD: &str = "
import hashlib, os, socket, sys, time
hashlib.sha256(b'') # to be the same program as the other script
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.2)
count = 0
for line in sys.stdin:
    s.sendto(bytes(int(line)), (sys.argv[1], int(sys.argv[2])))
    before, end = count, time.time() + 5
    while count == before and time.time() < end:
        try: count = int(s.recv(100))
        except TimeoutError: pass
    print('answer' if count > before else 'silence', flush=True)
";

const PUSHING: u16 = 5304;

/// A program with [`TOLD`].
struct Told {
    _child: Child,
    ask: std::process::ChildStdin,
    said: BufReader<std::process::ChildStdout>,
}

impl Told {
    fn new(space: &Namespace, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = space.spawn(command).unwrap();
        let inner = child.inner();
        let ask = inner.stdin.take().expect("it is a pipe");
        let said = BufReader::new(inner.stdout.take().expect("it is a pipe"));
        Self {
            _child: child,
            ask,
            said,
        }
    }

    fn of_client(lab: &Lab, address: &str) -> Self {
        let port = PUSHING.to_string();
        let words = ["/usr/bin/python3", "-c", TOLD, address, &port];
        let mut command = Command::new("sh");
        command.args(lab.client.entered(&words));
        Self::new(&lab.client.space, command)
    }

    fn of_other(lab: &Lab, address: &str) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", TOLD, address, &PUSHING.to_string()]);
        Self::new(&lab.other, command)
    }

    fn ask(&mut self, size: u32) -> String {
        writeln!(self.ask, "{size}").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Lab {
    /// Another port wants tokens, or only logs.
    fn require_pushing(&self, python: &str, mode: &str) {
        self.require(
            python,
            &format!(
                "[token.require.push]\nports = [\"{PUSHING}/udp\"]\naggregate = \"{python}\"\nmode = \"{mode}\"\n"
            ),
        );
        self.server.weir.done(&["reload"]);
    }

    fn push(&self) -> Child {
        self.server
            .spawn(&["/usr/bin/python3", "-c", PUSH, &PUSHING.to_string()])
    }

    fn pushing(&self, outcome: &str) -> u64 {
        let count = &self.server.token()["requirements"][1]["outcomes"][outcome];
        count.as_u64().unwrap()
    }
}

#[test]
fn root_an_answer_does_not_take_the_place_of_a_token() {
    let Some(mut lab) = Lab::new("udp-answer") else {
        return;
    };
    let python = lab.start("");
    let _push = lab.push();
    lab.require_pushing(&python, "require");
    settle(&lab, PUSHING);
    for (address, full) in SERVER.into_iter().zip([1472, 1452]) {
        let mut client = Told::of_client(&lab, address);
        soon("a token", || (client.ask(10) == "answer").then_some(()));
        // It has no room for one.
        let proven = lab.pushing("proven");
        assert_eq!(client.ask(full), "answer", "{address}");
        assert_eq!(lab.pushing("proven"), proven + 1);
        // Two minutes later the server goes on.
        let table = table(&lab, "token_udp_proven");
        for key in table.keys() {
            let mut row = table.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            row[16..24].copy_from_slice(&long_ago());
            table.update(&key, &row, MapFlags::ANY).unwrap();
        }
        let no_flow = lab.pushing("no-flow");
        for _ in 0..3 {
            assert_eq!(client.ask(full), "silence", "{address}");
        }
        assert_eq!(lab.pushing("no-flow"), no_flow + 3);
        assert_eq!(client.ask(10), "answer");
        assert_eq!(client.ask(full), "answer");
    }
    assert_eq!(lab.pushing("free"), 0);
}

#[test]
fn root_who_was_there_before_a_port_wants_tokens_falls_silent() {
    let Some(mut lab) = Lab::new("udp-before") else {
        return;
    };
    let python = lab.start("");
    let _push = lab.push();
    for mode in ["", "log"] {
        if !mode.is_empty() {
            lab.require_pushing(&python, mode);
            settle(&lab, PUSHING);
        }
        let mut clients = SERVER.map(|address| Told::of_other(&lab, address));
        for client in &mut clients {
            soon("the server", || (client.ask(10) == "answer").then_some(()));
        }
        // The server does not cease to answer meanwhile.
        lab.require_pushing(&python, "require");
        for client in &mut clients {
            let missing = lab.pushing("missing");
            client.ask(10);
            for _ in 0..3 {
                assert_eq!(client.ask(10), "silence", "{mode}");
            }
            assert!(lab.pushing("missing") >= missing + 3);
        }
        assert_eq!(lab.pushing("free"), 0);
        lab.require(&python, "");
        lab.server.weir.done(&["reload"]);
    }
}

/// Sends a frame, and says whether the port in it gets an answer.
const FRAME: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(3); s.bind(('::', int(sys.argv[1])))
p = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); p.bind(('eth0', 0)); p.send(bytes.fromhex(sys.argv[2]))
try: print('answer' if s.recv(100) else '')
except TimeoutError: print('silence')
";

#[test]
fn root_no_form_of_a_datagram_that_is_only_logged_lets_its_sender_in_later() {
    let Some(mut lab) = Lab::new("udp-form") else {
        return;
    };
    let python = lab.start("mode = \"log\"\n");
    settle(&lab, PORT);
    let (here, dest) = ("2001:db8:3::1", SERVER[1]);
    let ask = |port: u16, headers: &[u8]| {
        let mut packet = frame(&lab, (here, port), dest, None);
        if let [first, rest @ ..] = headers {
            packet[14 + 6] = *first;
            packet.splice(14 + 40..14 + 40, rest.iter().copied());
            packet[14 + 5] += rest.len() as u8;
        }
        let said = lab.other.run(
            "/usr/bin/python3",
            &["-c", FRAME, &port.to_string(), &hex::encode(&packet)],
        );
        String::from_utf8_lossy(&said.unwrap().stdout)
            .trim()
            .to_owned()
    };
    let atomic = [44, 17, 0, 0, 0, 1, 2, 3, 4];
    // Destination options, more of them than are gone through.
    let many = [
        vec![60],
        [60, 0, 1, 4, 0, 0, 0, 0].repeat(7),
        vec![17, 0, 1, 4, 0, 0, 0, 0],
    ]
    .concat();
    let (missing, malformed) = (
        lab.server.outcome("missing"),
        lab.server.outcome("malformed"),
    );
    assert_eq!(ask(40_000, &atomic), "answer");
    assert_eq!(lab.server.outcome("missing"), missing + 1);
    assert_eq!(ask(40_001, &many), "answer");
    assert_eq!(lab.server.outcome("malformed"), malformed + 1);
    lab.require(&python, "");
    lab.server.weir.done(&["reload"]);
    for port in [40_000, 40_001] {
        for headers in [&[][..], &atomic, &many] {
            assert_eq!(ask(port, headers), "silence", "{port}");
        }
    }
    assert_eq!(lab.server.outcome("free"), 0);
}
