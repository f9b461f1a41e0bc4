//! Scope "payload": each segment of a connection proves itself. Two hosts with a router
//! between them, of any MTU, or with a box that copies frames, and changes them: bytes of the
//! payload with a right checksum, tokens, their order, and whether they arrive at all.

use std::{
    io::Write,
    process::{ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_netlab::{Child, Namespace, Net, VethOpts};

use super::{
    captures::tcpdump,
    common::{skipped, soon},
    lab::{CURL_AND_PYTHON, Host, OPEN, PORT, cannot_run},
};

const PROGRAMS: [&str; 2] = ["/usr/bin/python3", "ip"];

/// Of each connection reads a line `N M`, and N bytes; answers their digest and M bytes.
pub(super) const SERVE: &str = "
import hashlib, os, socket, sys, threading
def serve(c):
    try:
        f = c.makefile('rb'); n, m = map(int, f.readline().split())
        digest = hashlib.sha256()
        while n:
            data = f.read(min(n, 65536))
            if not data: return
            digest.update(data); n -= len(data)
        c.sendall(digest.hexdigest().encode() + bytes(m)); c.close()
    except (OSError, ValueError): pass
def listen(s):
    while True: threading.Thread(target=serve, args=[s.accept()[0]], daemon=True).start()
for port in map(int, sys.argv[1:]):
    s = socket.create_server(('::', port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    threading.Thread(target=listen, args=[s]).start()
";

/// Sends N bytes, waits for M, and says whether the digest is theirs. PIECES: in so many
/// parts, a moment between them, until there is the file behind PATIENCE.
pub(super) const ASK: &str = "
import hashlib, os, socket, sys, time
address, port, n, m, pieces, patience = sys.argv[1], *map(int, sys.argv[2:7])
hurry = sys.argv[7:]
data = os.urandom(min(n, 1 << 20)) * (n // (1 << 20) + 1); data = data[:n]
for _ in range(4):
    try: c = socket.create_connection((address, port), 4); break
    except OSError as e: why = e
else: print('never connected', type(why).__name__); sys.exit()
c.settimeout(patience)
try:
    c.sendall(b'%d %d\\n' % (n, m))
    step = n // pieces + 1
    for at in range(0, n, step):
        c.sendall(data[at:at + step])
        if pieces > 1 and not any(map(os.path.exists, hurry)): time.sleep(0.05)
    said = b''
    while len(said) < 64 + m:
        more = c.recv(1 << 16)
        if not more: break
        said += more
    want = hashlib.sha256(data).hexdigest().encode()
    print('right' if said[:64] == want and len(said) == 64 + m else 'wrong' if len(said) >= 64 else 'cut')
except OSError as e: print(type(e).__name__)
";

/// Copies frames between its two devices. A line of its input says what else it does from
/// then on; what it changes has a right checksum. Segments to the server with much in them:
/// `change` flips a bit in every eighth one; `strip` makes no-operations of the tokens;
/// `transplant` gives the tokens of another connection's segments; `twice` sends each again,
/// late and in another order; `again` sends those that it has seen before once more, and
/// then passes. To the client: `lose` drops every twentieth.
const BOX: &str = "
import random, selectors, socket, sys
PORTS = [int(p).to_bytes(2, 'big') for p in sys.argv[1:]]
def sum16(b):
    if len(b) % 2: b += b'\\0'
    n = sum(int.from_bytes(b[i:i + 2], 'big') for i in range(0, len(b), 2))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return n
def tcp_at(f):
    if f[12:14] == b'\\x08\\x00' and f[23] == 6: return 14 + (f[14] & 15) * 4
    if f[12:14] == b'\\x86\\xdd' and f[20] == 6: return 54
def mended(f, at):
    f = bytearray(f); f[at + 16:at + 18] = b'\\0\\0'
    ends = f[26:34] if at < 54 or f[12] == 8 else f[22:54]
    tcp = bytes(f[at:])
    f[at + 16:at + 18] = (0xffff ^ sum16(bytes(ends) + b'\\0\\x06' + len(tcp).to_bytes(2, 'big') + tcp)).to_bytes(2, 'big')
    return bytes(f)
socks = {}
for dev in ('client', 'server'):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind((dev, 3)); socks[dev] = s
waiting = selectors.DefaultSelector()
for s in [*socks.values(), sys.stdin]: waiting.register(s, selectors.EVENT_READ)
mode, count, seen, held = 'pass', 0, [], []
print('ready', flush=True)
def to_server(f):
    global count, mode
    at = tcp_at(f)
    if not at or f[at + 2:at + 4] not in PORTS or f[at + 13] & 2: return [f]
    data = at + (f[at + 12] >> 4) * 4
    if len(f) - data < 100: return [f]
    count += 1
    if mode == 'pass' and sum(o[12:14] == f[12:14] for o in seen) < 50: seen.append(f)
    if mode == 'change' and count % 8 == 0:
        f = bytearray(f); f[data + 50] ^= 1; return [mended(f, at)]
    if mode == 'strip':
        f = bytearray(f); f[data - 16:data] = b'\\1' * 16; return [mended(f, at)]
    if mode == 'transplant':
        other = next(o for o in seen if o[12:14] == f[12:14] and o[at:at + 2] != f[at:at + 2])
        f = bytearray(f); end = at + (other[at + 12] >> 4) * 4
        f[data - 16:data] = other[end - 16:end]; return [mended(f, at)]
    if mode == 'twice':
        held.append(f)
        if len(held) < 6: return [f]
        again = held[:]; held.clear(); random.shuffle(again); return [f, *again]
    if mode == 'again':
        mode = 'pass'; return [f, *seen]
    return [f]
def to_client(f):
    global count
    at = tcp_at(f)
    if mode == 'lose' and at and f[at:at + 2] in PORTS and len(f) > 500:
        count += 1
        if count % 20 == 0: return []
    return [f]
while True:
    for key, _ in waiting.select():
        if key.fileobj is sys.stdin:
            line = sys.stdin.readline()
            if not line: sys.exit()
            mode, count = line.strip(), 0; print(mode, flush=True); continue
        f, (dev, _, kind, *_) = key.fileobj.recvfrom(65535)
        if kind == 4: continue
        if dev == 'client':
            for one in to_server(f): socks['server'].send(one)
        else:
            for one in to_client(f): socks['client'].send(one)
";

/// Has checksums computed before frames leave a device (ETHTOOL_STXCSUM): others read them.
const CHECKSUMS: &str = "
import array, fcntl, socket, struct
value = array.array('B', struct.pack('II', 0x17, 0))
request = struct.pack('16sQ', b'eth0', value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
";

/// What stands between the two hosts.
enum Middle {
    Router,
    Box {
        says: std::io::BufReader<std::process::ChildStdout>,
        told: ChildStdin,
        _program: Child,
    },
}

struct Lab {
    _serve: Child,
    client: Host,
    server: Host,
    space: Namespace,
    middle: Middle,
    addresses: [&'static str; 2],
    _net: Net,
}

impl Lab {
    fn new(name: &str, with_box: bool) -> Option<Self> {
        if cannot_run(&PROGRAMS) {
            return None;
        }
        let net = Net::new().unwrap();
        let middle = net.namespace("middle").unwrap();
        let ends = match with_box {
            true => [
                ["192.0.2.1/24", "2001:db8:1::1/64"],
                ["192.0.2.2/24", "2001:db8:1::2/64"],
            ],
            false => [
                ["192.0.2.1/24", "2001:db8:1::1/64"],
                ["198.51.100.2/24", "2001:db8:2::2/64"],
            ],
        };
        let routers = match with_box {
            true => [&[][..], &[]],
            false => [
                &["192.0.2.254/24", "2001:db8:1::fe/64"][..],
                &["198.51.100.254/24", "2001:db8:2::fe/64"],
            ],
        };
        let mut number = 0;
        let spaces = ["client", "server"].map(|name| {
            let space = net.namespace(name).unwrap();
            space.run("ip", &["link", "set", "lo", "up"]).unwrap();
            let opts = VethOpts::new(&ends[number], routers[number]).unwrap();
            net.veth(&space, "eth0", &middle, name, opts).unwrap();
            if !with_box {
                let ways = routers[number].iter();
                let ways = ways.map(|way| way.split('/').next().unwrap());
                let ways: Vec<_> = ways
                    .map(|way| format!("route add default via {way}"))
                    .collect();
                space.ip(&ways).unwrap();
            }
            number += 1;
            space
        });
        let [client, server] = spaces;
        let kind = match with_box {
            false => {
                middle.forward().unwrap();
                Middle::Router
            }
            true => {
                for space in [&client, &server] {
                    space.run("/usr/bin/python3", &["-c", CHECKSUMS]).unwrap();
                }
                let mut command = Command::new("/usr/bin/python3");
                let ports = [PORT.to_string(), OPEN.to_string()];
                command.args(["-c", BOX]).args(&ports);
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut program = middle.spawn(command).unwrap();
                let inner = program.inner();
                let says = std::io::BufReader::new(inner.stdout.take().unwrap());
                let told = inner.stdin.take().unwrap();
                Middle::Box {
                    says,
                    told,
                    _program: program,
                }
            }
        };
        let server = Host::new(server, &format!("{name}-s"));
        let mut client = Host::new(client, &format!("{name}-c"));
        // Where its segments leave. A new mount namespace would not have bpffs.
        let inside = format!("--net={}", client.space.path().display());
        client.weir.under = ["nsenter", &inside, "--"].map(str::to_owned).to_vec();
        let (port, open) = (PORT.to_string(), OPEN.to_string());
        let serve = server.spawn(&["/usr/bin/python3", "-c", SERVE, &port, &open]);
        client.make_key();
        let addresses = ends[1].map(|end| end.split('/').next().unwrap());
        let mut lab = Self {
            _serve: serve,
            client,
            server,
            space: middle,
            middle: kind,
            addresses,
            _net: net,
        };
        if with_box {
            lab.hear("ready");
        }
        Some(lab)
    }

    fn hear(&mut self, wanted: &str) {
        let Middle::Box { says, .. } = &mut self.middle else {
            panic!("there is no box");
        };
        let mut line = String::new();
        std::io::BufRead::read_line(says, &mut line).unwrap();
        assert_eq!(line.trim(), wanted);
    }

    /// Has the box do this from now on.
    fn tell(&mut self, mode: &str) {
        let Middle::Box { told, .. } = &mut self.middle else {
            panic!("there is no box");
        };
        writeln!(told, "{mode}").unwrap();
        self.hear(mode);
    }

    fn sign(&self, more: &str) {
        self.client.configure(&format!(
            "[app]\ncgroup = \"{{cgroup}}\"\n{CURL_AND_PYTHON}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = [\"{}\", \"{}\"]\n{more}",
            self.addresses[0], self.addresses[1]
        ));
    }

    /// Both daemons, and python3 known.
    fn start(&mut self) {
        self.sign("scope = \"payload\"\n");
        self.client.weir.start();
        let address = self.addresses[0];
        let python = self.client.known("python3", || {
            self.client.python("pass", &[]);
            self.ask(address, OPEN, 10, 0);
        });
        self.server.copy_keys(&self.client);
        self.server.require(&python, "scope = \"payload\"\n");
        self.server.weir.start();
        soon("python to get in", || {
            (self.ask(address, PORT, 10, 10) == "right").then_some(())
        });
    }

    fn ask(&self, address: &str, port: u16, bytes: usize, answer: usize) -> String {
        self.ask_in(address, port, bytes, answer, 1, 20)
    }

    fn ask_in(
        &self,
        address: &str,
        port: u16,
        bytes: usize,
        answer: usize,
        pieces: u32,
        patience: u32,
    ) -> String {
        let words = [
            port.to_string(),
            bytes.to_string(),
            answer.to_string(),
            pieces.to_string(),
            patience.to_string(),
        ];
        let words: Vec<_> = [address]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .collect();
        self.client.python(ASK, &words).trim().to_owned()
    }

    fn segments(&self) -> Value {
        self.client.token()["signing"]["segments"].clone()
    }

    /// Segments that were dropped because they could not be signed.
    fn dropped(&self) -> u64 {
        let segments = self.segments();
        let reasons = [
            "without_signer",
            "superpacket",
            "without_interface",
            "without_room",
            "broken",
        ];
        let counts = reasons
            .iter()
            .map(|reason| segments[*reason].as_u64().unwrap());
        counts.sum()
    }

    /// Packets that the server has refused, by reason; but for those without a token, as the
    /// kernel's answers are for which it has no socket any more.
    fn refused(&self) -> Vec<(String, u64)> {
        let token = self.server.token();
        let outcomes = token["requirements"][0]["outcomes"].as_object().unwrap();
        let passes = ["valid", "proven", "free", "missing"];
        let refused = outcomes
            .iter()
            .filter(|(name, count)| !passes.contains(&name.as_str()) && count.as_u64() != Some(0));
        refused
            .map(|(name, count)| (name.clone(), count.as_u64().unwrap()))
            .collect()
    }

    /// How often the server has sent again what was missing among parts (SACK).
    fn recovered(&self) -> u64 {
        let said = self
            .server
            .space
            .output("cat", &["/proc/net/netstat"])
            .unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut lines = said.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let mut all = names.split(' ').zip(values.split(' '));
        let found = all.find(|(name, _)| *name == "TCPSackRecovery");
        found.unwrap().1.parse().unwrap()
    }

    fn gso(&self, device: &str) -> u64 {
        let said = self
            .client
            .space
            .output("ip", &["-d", "-j", "link", "show", device])
            .unwrap();
        let links: Value = serde_json::from_slice(&said.stdout).unwrap();
        links[0]["gso_max_segs"].as_u64().unwrap()
    }
}

#[test]
fn root_each_segment_proves_itself_at_every_mtu() {
    let Some(mut lab) = Lab::new("mtu", false) else {
        return;
    };
    let before = lab.gso("eth0");
    assert!(before > 1);
    lab.start();
    assert_eq!(lab.gso("eth0"), 1);
    for mtu in [1500, 9000, 1280, 576] {
        // Beyond the router, so that the path says it; jumbo frames everywhere.
        let near = mtu.max(1500).to_string();
        let far = mtu.to_string();
        for (space, device) in [(&lab.client.space, "eth0"), (&lab.space, "client")] {
            space
                .run("ip", &["link", "set", device, "mtu", &near])
                .unwrap();
        }
        for (space, device) in [(&lab.space, "server"), (&lab.server.space, "eth0")] {
            space
                .run("ip", &["link", "set", device, "mtu", &far])
                .unwrap();
        }
        for address in lab.addresses {
            if mtu < 1280 && address.contains(':') {
                continue;
            }
            let (signed, proven) = (
                lab.segments()["signed"].as_u64().unwrap(),
                lab.server.outcome("proven"),
            );
            for (bytes, answer) in [(3_000_000, 0), (10, 3_000_000), (700_000, 700_000)] {
                let said = lab.ask(address, PORT, bytes, answer);
                assert_eq!(
                    said,
                    "right",
                    "{address} {mtu}: {bytes} {answer}: {} {:?}",
                    lab.segments(),
                    lab.refused()
                );
            }
            let least = 3_700_000 / mtu as u64;
            assert!(lab.segments()["signed"].as_u64().unwrap() >= signed + least);
            assert!(lab.server.outcome("proven") >= proven + least);
            // Of all sizes around those of blocks.
            for bytes in (0..140).step_by(7).chain([500, 1375, 1400]) {
                assert_eq!(lab.ask(address, PORT, bytes, 1), "right", "{bytes}");
            }
        }
    }
    assert_eq!(lab.dropped(), 0, "{}", lab.segments());
    assert!(lab.refused().is_empty(), "{:?}", lab.refused());
    let shown = lab.client.weir.done(&["status"]);
    assert!(shown.contains("signing each segment at eth0: "), "{shown}");
    let metrics = lab.client.weir.done(&["metrics"]);
    assert!(
        metrics.contains("weir_token_segments_total{result=\"signed\"}"),
        "{metrics}"
    );
}

/// What a capture on the server's host says of each segment is what its kernel said.
#[test]
fn root_a_capture_says_which_segments_are_as_they_were_sent() {
    if skipped(&["tcpdump"]) {
        return;
    }
    let Some(mut lab) = Lab::new("segments", true) else {
        return;
    };
    lab.start();
    let python = lab.client.aggregate("python3").unwrap();
    for (mode, reason) in [("pass", ""), ("change", "wrong-mac"), ("strip", "missing")] {
        for address in lab.addresses {
            lab.tell("pass");
            let before = ["wrong-mac", "missing"].map(|reason| lab.server.outcome(reason));
            let name = format!("{mode}-{}.pcap", address.len());
            let filter = format!("tcp port {PORT}");
            let (mut dump, file) = tcpdump(&lab.server, &name, &["-i", "eth0"], &filter);
            lab.tell(mode);
            // What is stripped never arrives.
            let (said, patience) = match mode {
                "strip" => ("TimeoutError", 3),
                _ => ("right", 20),
            };
            assert_eq!(lab.ask_in(address, PORT, 200_000, 0, 1, patience), said);
            lab.tell("pass");
            dump.signal(2).unwrap();
            dump.wait(Duration::from_secs(20)).unwrap().unwrap();
            let (code, answer) = lab.server.verify(&file, PORT, &python);
            // The one before may have sent something more.
            let mut flows = answer["flows"].as_array().unwrap().iter();
            let flow = flows
                .find(|flow| flow["verdict"] == "valid")
                .unwrap_or_else(|| panic!("{answer}"));
            let count = |reason: &str| flow["segments"]["verdicts"][reason].as_u64();
            assert!(count("valid") > Some(1), "{answer}");
            if mode == "pass" {
                assert_eq!(flow["segments"]["refused"].as_array().unwrap().len(), 0);
                continue;
            }
            assert_eq!(code, Some(1), "{answer}");
            let refused = flow["segments"]["refused"].as_array().unwrap();
            assert!(
                refused.iter().any(|one| one["verdict"] == reason),
                "{answer}"
            );
            let after = ["wrong-mac", "missing"].map(|reason| lab.server.outcome(reason));
            let of_kernel = [0, 1].map(|n| after[n] - before[n]);
            let of_capture = ["wrong-mac", "missing"].map(|reason| count(reason).unwrap_or(0));
            // What tcpdump had not yet read when it ended is not in its file.
            for (capture, kernel) in of_capture.iter().zip(of_kernel) {
                assert!(*capture <= kernel, "{of_kernel:?} {answer}");
            }
        }
    }
}

/// A box on the way that changes what is sent, with a right checksum.
#[test]
fn root_a_box_on_the_way_changes_nothing_that_arrives() {
    let Some(mut lab) = Lab::new("box", true) else {
        return;
    };
    lab.start();
    let refused = |lab: &Lab, name: &str| lab.server.outcome(name);
    for address in lab.addresses {
        // Without the scope at the port: the box is as good as its word.
        lab.tell("pass");
        assert_eq!(lab.ask(address, OPEN, 200_000, 0), "right");
        lab.tell("change");
        assert_eq!(lab.ask(address, OPEN, 200_000, 0), "wrong", "{address}");

        lab.tell("pass");
        let before = refused(&lab, "wrong-mac");
        assert_eq!(lab.ask(address, PORT, 200_000, 50_000), "right");
        assert_eq!(refused(&lab, "wrong-mac"), before);
        // TCP sends again what did not arrive.
        lab.tell("change");
        assert_eq!(
            lab.ask(address, PORT, 200_000, 50_000),
            "right",
            "{address}"
        );
        assert!(refused(&lab, "wrong-mac") > before);

        // Each segment twice, late and in any order: TCP takes it once.
        lab.tell("twice");
        let before = lab.refused();
        assert_eq!(lab.ask(address, PORT, 300_000, 50_000), "right");
        assert_eq!(lab.refused(), before);
        // Segments of connections that are over, once more.
        lab.tell("again");
        assert_eq!(lab.ask(address, PORT, 50_000, 0), "right");

        // The token of another connection's segment, of the same program.
        lab.tell("transplant");
        let before = refused(&lab, "wrong-mac");
        assert_ne!(lab.ask_in(address, PORT, 50_000, 0, 1, 3), "right");
        assert!(refused(&lab, "wrong-mac") > before);
        lab.tell("strip");
        let before = refused(&lab, "missing");
        assert_ne!(lab.ask_in(address, PORT, 50_000, 0, 1, 3), "right");
        assert!(refused(&lab, "missing") > before);
        lab.tell("pass");
        assert_eq!(lab.ask(address, PORT, 50_000, 0), "right");

        let said = lab
            .server
            .weir
            .done(&["token", "why", "--reason", "wrong-mac"]);
        assert!(
            said.contains("192.0.2.1") || said.contains("2001:db8:1::1"),
            "{said}"
        );
    }
    assert_eq!(lab.dropped(), 0, "{}", lab.segments());
}

/// What the server sends gets lost: the client says what it has received in parts (SACK), and
/// its token has room beside that.
#[test]
fn root_a_segment_that_acknowledges_parts_has_room_for_its_token() {
    let Some(mut lab) = Lab::new("sack", true) else {
        return;
    };
    lab.start();
    for stamps in ["1", "0"] {
        lab.client
            .space
            .sysctl("ipv4.tcp_timestamps", stamps)
            .unwrap();
        for address in lab.addresses {
            lab.tell("pass");
            assert_eq!(lab.ask(address, PORT, 20_000, 20_000), "right");
            lab.tell("lose");
            let before = lab.refused();
            let recovered = lab.recovered();
            assert_eq!(
                lab.ask_in(address, PORT, 1_000, 3_000_000, 1, 30),
                "right",
                "{address} {stamps}: {} {:?}",
                lab.segments(),
                lab.refused()
            );
            assert!(
                lab.recovered() > recovered,
                "nothing was acknowledged in parts"
            );
            // While both send.
            assert_eq!(lab.ask_in(address, PORT, 300_000, 300_000, 1, 30), "right");
            assert_eq!(lab.refused(), before);
        }
    }
    assert_eq!(lab.dropped(), 0, "{}", lab.segments());
}

/// A connection that goes on while the keys change, while daemons are killed, and while the
/// scope becomes another one.
#[test]
fn root_segments_go_on_while_keys_change_and_daemons_die() {
    let Some(mut lab) = Lab::new("keys", false) else {
        return;
    };
    let before = lab.gso("eth0");
    lab.start();
    let keys = lab.client.keys();
    for (number, address) in lab.addresses.into_iter().enumerate() {
        let refused = lab.refused();
        thread::scope(|scope| {
            let lab = &lab;
            // 80 pieces, a moment between them.
            let asked = scope.spawn(move || lab.ask_in(address, PORT, 4_000_000, 1000, 80, 30));
            let proven = lab.server.outcome("proven");
            soon("the connection", || {
                (lab.server.outcome("proven") > proven).then_some(())
            });
            // The server has the new key first; the client signs with it at once.
            lab.client
                .weir
                .done(&["token", "key", "new", "--keys", &keys]);
            lab.server.copy_keys(&lab.client);
            lab.server.weir.done(&["reload"]);
            lab.client.weir.done(&["reload"]);
            let new = number + 2;
            soon("the new key to sign", || {
                let all = lab.client.token()["keys"].as_array().unwrap().clone();
                all.iter()
                    .any(|key| key["id"] == new && key["use"] == "signs")
                    .then_some(())
            });
            // The old one is retired: of segments with it none is accepted any more.
            let old = (number + 1).to_string();
            lab.server
                .weir
                .done(&["token", "key", "retire", &old, "--keys", &lab.server.keys()]);
            lab.server.weir.done(&["reload"]);
            assert!(!asked.is_finished(), "it was to last longer");
            assert_eq!(
                asked.join().unwrap(),
                "right",
                "{} {:?}",
                lab.segments(),
                lab.refused()
            );
        });
        // What the changed key delayed was sent again.
        assert!(lab.segments()["superpacket"] == 0 && lab.segments()["without_interface"] == 0);
        let told = lab.refused();
        assert!(
            told.iter()
                .all(|(name, _)| refused.iter().any(|(other, _)| other == name)
                    || name == "unknown-key"),
            "{told:?}"
        );
    }

    // Without daemons.
    lab.client.weir.end("KILL");
    lab.server.weir.end("KILL");
    for address in lab.addresses {
        assert_eq!(lab.ask(address, PORT, 500_000, 500_000), "right");
    }
    assert_eq!(lab.gso("eth0"), 1);
    lab.client.weir.start();
    lab.server.weir.start();
    for address in lab.addresses {
        assert_eq!(lab.ask(address, PORT, 500_000, 500_000), "right");
    }

    // With the scope of the connection the device has what it had, and the server refuses.
    lab.sign("");
    lab.client.weir.done(&["reload"]);
    assert_eq!(lab.gso("eth0"), before);
    assert_ne!(lab.ask_in(lab.addresses[0], PORT, 10, 0, 1, 2), "right");
    assert!(lab.server.outcome("missing") > 0);
    assert_eq!(lab.ask(lab.addresses[0], OPEN, 100_000, 0), "right");
    lab.sign("scope = \"payload\"\n");
    lab.client.weir.done(&["reload"]);
    assert_eq!(lab.gso("eth0"), 1);
    assert_eq!(lab.ask(lab.addresses[1], PORT, 10, 0), "right");

    // Detached after a crash, the device has what it had.
    lab.client.weir.end("KILL");
    lab.client.weir.done(&["detach"]);
    assert_eq!(lab.gso("eth0"), before);
}

/// A superpacket has one header for many segments: it is counted, and never leaves.
#[test]
fn root_superpackets_and_other_interfaces_are_counted_and_leave_nothing_unsigned() {
    let Some(mut lab) = Lab::new("gso", false) else {
        return;
    };
    lab.start();
    let address = lab.addresses[0];
    // Somebody sets it back: until weir looks again, connections begin with it.
    let set = ["link", "set", "eth0", "gso_max_segs", "65535"];
    lab.client.space.run("ip", &set).unwrap();
    let missing = |lab: &Lab| lab.server.outcome("missing");
    let before = missing(&lab);
    assert_ne!(lab.ask_in(address, PORT, 2_000_000, 0, 1, 3), "right");
    assert!(
        lab.segments()["superpacket"].as_u64() > Some(0),
        "{}",
        lab.segments()
    );
    assert_eq!(missing(&lab), before, "nothing left without a token");
    soon("the alert", || {
        let status = lab.client.weir.json(&["status"]);
        status["alerts"]
            .to_string()
            .contains("token:segments")
            .then_some(())
    });
    let until = Instant::now() + Duration::from_secs(30);
    while lab.gso("eth0") != 1 {
        assert!(Instant::now() < until, "weir does not look again");
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(lab.ask(address, PORT, 500_000, 0), "right");

    // An interface that is none of those of the configuration.
    lab.sign("scope = \"payload\"\ninterfaces = [\"lo\"]\n");
    lab.client.weir.done(&["reload"]);
    let before = lab.segments()["without_interface"].as_u64().unwrap();
    assert_ne!(lab.ask_in(address, PORT, 10, 0, 1, 2), "right");
    assert!(lab.segments()["without_interface"].as_u64().unwrap() > before);
    assert_eq!(lab.gso("lo"), 1);
    lab.sign("scope = \"payload\"\n");
    lab.client.weir.done(&["reload"]);
    assert_eq!(lab.ask(address, PORT, 500_000, 0), "right");
    assert!(lab.gso("lo") > 1);
}
