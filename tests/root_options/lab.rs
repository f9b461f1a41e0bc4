//! Two sites and a router between them, real servers, and what arrives on the wire.

use std::{
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    process::{ChildStderr, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use weir_core::checksum::checksum;
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};

use super::common::{Answer, WEIR, skipped, soon};

/// The addresses of the sites, IPv4 and IPv6.
pub const WEST: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];
pub const EAST: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];
/// The ports of the servers.
pub const HTTP: u16 = 8080;
pub const ECHO: u16 = 7007;

/// Serves a megabyte, says the digest of what is sent, and echoes datagrams.
const SERVER: &str = "
import hashlib, http.server, socket, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer(bytes(range(256)) * 4096)
    def do_PUT(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.answer(hashlib.sha256(body).hexdigest().encode())
    def log_message(self, *args): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
def echo():
    while True:
        data, peer = udp.recvfrom(4096)
        udp.sendto(data, peer)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.bind(('::', int(sys.argv[2])))
server = Server(('::', int(sys.argv[1])), Handler)
threading.Thread(target=echo, daemon=True).start()
print('ready', flush=True)
server.serve_forever()
";

/// Prints the frames that come in, in hexadecimal digits.
const CAPTURE: &str = "
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
wire.bind((sys.argv[1], 0))
print('ready', flush=True)
while True:
    frame, (_, _, kind, *_) = wire.recvfrom(70000)
    if kind != socket.PACKET_OUTGOING: print(frame.hex(), flush=True)
";

/// Has the kernel cut segments (0x1f, `ETHTOOL_STSO`) or compute checksums (0x17,
/// `ETHTOOL_STXCSUM`) before the driver: what is captured behind it is what a real wire would
/// carry.
const NO_OFFLOAD: &str = "
import array, fcntl, socket, struct, sys
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for command in sys.argv[2:]:
    value = array.array('B', struct.pack('II', int(command, 16), 0))
    request = struct.pack('16sP', sys.argv[1].encode(), value.buffer_info()[0])
    fcntl.ioctl(asked, 0x8946, request + bytes(32))
";

/// Sends one frame that is no IP packet: all that came before it are in the capture once it is.
const MARK: &str = "
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
wire.send(b'\\xff' * 6 + bytes(6) + bytes.fromhex('88b5') + bytes(46))
";
/// The type of that frame: for local experiments (IEEE 802).
const MARK_TYPE: [u8; 2] = [0x88, 0xb5];

/// Frames that came in at an interface, from when it was made.
pub struct Capture<'a> {
    frames: Receiver<Vec<u8>>,
    router: &'a Namespace,
    /// The router's end of that wire.
    device: &'static str,
    _child: Child,
}

impl Capture<'_> {
    /// All frames that have come by now, and were not given before.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let sent = self.router.run("python3", &["-c", MARK, self.device]);
        sent.expect("a frame can be sent");
        let mut frames = Vec::new();
        loop {
            let frame = self.frames.recv_timeout(Duration::from_secs(60));
            let frame = frame.expect("the mark arrives in the capture");
            if frame[12..14] == MARK_TYPE {
                return frames;
            }
            frames.push(frame);
        }
    }
}

pub struct Lab {
    pub west: Namespace,
    pub east: Namespace,
    pub router: Namespace,
    pub dir: tempfile::TempDir,
    _server: Child,
    _veths: [Veth; 2],
    _net: Net,
}

impl Lab {
    /// `None`: this machine lacks something, which was said.
    pub fn new(programs: &[&str]) -> Option<Self> {
        if skipped(&[&["python3", "curl"], programs].concat()) {
            return None;
        }
        let net = Net::new().unwrap();
        let spaces = ["west", "east", "router"].map(|name| net.namespace(name).unwrap());
        let [west, east, router] = spaces;
        router.forward().unwrap();
        let wire = |site: &Namespace, dev: &str, v4: &str, v6: &str| {
            let near = [format!("{v4}.1/24"), format!("{v6}::1/64")];
            let far = [format!("{v4}.2/24"), format!("{v6}::2/64")];
            let texts = |list: &[String; 2]| list.clone();
            let (near, far) = (texts(&near), texts(&far));
            let opts = VethOpts::new(&[&near[0], &near[1]], &[&far[0], &far[1]]).unwrap();
            let veth = net.veth(site, "eth0", &router, dev, opts).unwrap();
            site.ip(&[
                format!("route add default via {v4}.2"),
                format!("route add default via {v6}::2"),
            ])
            .unwrap();
            veth
        };
        let veths = [
            wire(&west, "west0", "192.0.2", "2001:db8:1"),
            wire(&east, "east0", "198.51.100", "2001:db8:2"),
        ];
        // Sites leave checksums to whoever is behind them: the router. Segments they cut
        // themselves, behind the hook where options get in. Linux, as a router, reads the length
        // of the TCP header of an IPv6 superpacket right behind the IPv6 header and a hop-by-hop
        // header (ip6_rcv_core, skb_gso_transport_seglen): out of any other extension header,
        // or out of the sequence number behind it, and may find the segments too big.
        let turn_off = |space: &Namespace, device: &str, offloads: &[&str]| {
            let words = [&["-c", NO_OFFLOAD, device], offloads].concat();
            let turned = space.run("python3", &words);
            turned.expect("offloads can be turned off");
        };
        for site in [&west, &east] {
            turn_off(site, "eth0", &["0x1f"]);
        }
        for device in ["west0", "east0"] {
            turn_off(&router, device, &["0x17", "0x1f"]);
        }
        let (http, echo) = (HTTP.to_string(), ECHO.to_string());
        let mut server = python(&east, &["-c", SERVER, &http, &echo]);
        ready(&mut server);
        Some(Self {
            west,
            east,
            router,
            dir: tempfile::tempdir().unwrap(),
            _server: server,
            _veths: veths,
            _net: net,
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What comes in at the interface of this site from now on.
    pub fn capture(&self, site: &Namespace) -> Capture<'_> {
        let mut child = python(site, &["-c", CAPTURE, "eth0"]);
        let mut lines = ready(&mut child);
        let (send, frames) = channel();
        thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                if send.send(bytes_of(line.trim())).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let device = match site.name() == self.west.name() {
            true => "west0",
            false => "east0",
        };
        Capture {
            frames,
            router: &self.router,
            device,
            _child: child,
        }
    }

    /// Runs weir at a site to its end.
    pub fn weir(&self, site: &Namespace, words: &[&str]) -> Answer {
        let mut command = Command::new(WEIR);
        command.args(words).stdin(Stdio::null());
        Answer::of(site.enter(move || command.output()).unwrap().unwrap())
    }

    /// Begins `weir options inject` at a site; it is there when this returns.
    pub fn inject(&self, site: &Namespace, words: &[&str]) -> Injecting {
        let place = ["--interface", "eth0"];
        self.inject_on(site, &place, words, "on what leaves eth0")
    }

    /// The same at a place that these words name, of which weir says this.
    pub fn inject_on(
        &self,
        site: &Namespace,
        place: &[&str],
        words: &[&str],
        told: &str,
    ) -> Injecting {
        let mut command = Command::new(WEIR);
        command
            .args(["options", "inject", "--json"])
            .args(place)
            .args(words);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = site.spawn(command).unwrap();
        let mut said = String::new();
        let stderr = child.inner().stderr.take().unwrap();
        let mut stderr = BufReader::new(stderr);
        stderr.read_line(&mut said).unwrap();
        assert!(said.contains(told), "{said}");
        Injecting(child, stderr)
    }

    /// A datagram of this many bytes there and back.
    pub fn echoes(&self, address: &str, bytes: usize) -> bool {
        let script = "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
udp = socket.socket(family, socket.SOCK_DGRAM)
udp.settimeout(20)
data = bytes(n % 251 for n in range(int(sys.argv[3])))
udp.sendto(data, (sys.argv[1], int(sys.argv[2])))
try: sys.exit(udp.recv(65536) != data)
except TimeoutError: sys.exit(2)
";
        let (port, bytes) = (ECHO.to_string(), bytes.to_string());
        let words = ["-c", script, address, &port, &bytes];
        self.west
            .output("python3", &words)
            .unwrap()
            .status
            .success()
    }

    /// Downloads a megabyte and uploads a file, by curl, and waits for the last packet of both
    /// connections.
    pub fn serves(&self, address: &str) -> bool {
        let at = match address.contains(':') {
            true => format!("http://[{address}]:{HTTP}/"),
            false => format!("http://{address}:{HTTP}/"),
        };
        let body: Vec<u8> = (0..700_000u32).map(|n| (n * 7 % 253) as u8).collect();
        let file = self.path("upload");
        std::fs::write(&file, &body).unwrap();
        let file = file.to_str().unwrap();
        let digest = self.west.run("sha256sum", &[file]).unwrap().stdout;
        let limit = ["-sS", "--max-time", "60"];
        let get = [&limit[..], &[&at]].concat();
        let put = [&limit[..], &["-T", file, &at]].concat();
        let down = self.west.output("curl", &get).unwrap();
        let up = self.west.output("curl", &put).unwrap();
        let pattern: Vec<u8> = (0..=255).collect();
        let is_served = down.stdout == pattern.repeat(4096)
            && up.stdout.len() == 64
            && digest.starts_with(&up.stdout);
        if is_served {
            // The client is gone before the server has read the end, on a busy machine long.
            soon("the server's connections to end", || {
                (!self.has_connections()).then_some(())
            });
        }
        is_served
    }

    /// Whether a connection of the server has not ended on both sides.
    fn has_connections(&self) -> bool {
        const TIME_WAIT: &str = "06";
        const LISTEN: &str = "0A";
        let read = || std::fs::read_to_string("/proc/thread-self/net/tcp6");
        let sockets = self.east.enter(read).unwrap().unwrap();
        let port = format!(":{HTTP:04X}");
        sockets.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (local, _, state) = (words.next(), words.next(), words.next());
            local.unwrap().ends_with(&port) && ![Some(TIME_WAIT), Some(LISTEN)].contains(&state)
        })
    }

    /// Segments and datagrams that the stack of a site refused for their checksum.
    pub fn checksum_errors(&self, site: &Namespace) -> u64 {
        let read = |path: &str| {
            site.enter(|| std::fs::read_to_string(path))
                .unwrap()
                .unwrap()
        };
        let (v4, v6) = (
            read("/proc/thread-self/net/snmp"),
            read("/proc/thread-self/net/snmp6"),
        );
        let mut sum = 0;
        let lines: Vec<_> = v4.lines().collect();
        for pair in lines.chunks(2) {
            let names = pair[0].split_whitespace();
            for (name, value) in names.zip(pair[1].split_whitespace()) {
                if name == "InCsumErrors" || name == "InHdrErrors" {
                    sum += value.parse::<u64>().unwrap();
                }
            }
        }
        for line in v6.lines() {
            let (name, value) = line.split_once(char::is_whitespace).unwrap();
            if name.ends_with("InCsumErrors") || name == "Ip6InHdrErrors" {
                sum += value.trim().parse::<u64>().unwrap();
            }
        }
        sum
    }
}

/// A running `weir options inject`.
pub struct Injecting(Child, BufReader<ChildStderr>);

impl Injecting {
    /// Ends it by this signal; what it said.
    pub fn end(mut self, signal: i32) -> serde_json::Value {
        self.0.signal(signal).unwrap();
        soon("it to end", || self.0.wait(Duration::from_secs(1)).unwrap());
        let out = self.0.inner().stdout.take().unwrap();
        serde_json::from_reader(out).unwrap_or_default()
    }

    /// Its exit code when it ends by itself, and what else it said on standard error.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let status = soon("it to end", || self.0.wait(Duration::from_secs(1)).unwrap());
        let mut said = String::new();
        self.1.read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

fn python(site: &Namespace, words: &[&str]) -> Child {
    let mut command = Command::new(weir_netlab::namespace::find("python3"));
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    site.spawn(command).unwrap()
}

fn ready(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut lines = BufReader::new(child.inner().stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    lines
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// An IP packet as it came over the wire, read in the plainest way.
#[derive(Debug)]
pub struct Arrived {
    pub source: IpAddr,
    pub ip_options: Vec<u8>,
    /// Protocol number and bytes of each extension header.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub protocol: u8,
    pub tcp_options: Vec<u8>,
    pub is_syn: bool,
    pub payload: usize,
    pub surplus: Vec<u8>,
    pub has_right_checksums: bool,
}

impl Arrived {
    /// TCP and UDP only.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let packet = &frame[14..];
        let (source, dest, mut protocol, ip_options, rest, is_right);
        let mut extensions = Vec::new();
        match frame[12..14] {
            [8, 0] => {
                let header = usize::from(packet[0] & 15) * 4;
                let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
                source = IpAddr::from(<[u8; 4]>::try_from(&packet[12..16]).unwrap());
                dest = packet[16..20].to_vec();
                ip_options = packet[20..header].to_vec();
                protocol = packet[9];
                rest = &packet[header..length];
                is_right = checksum(&[&packet[..header]]) == 0;
            }
            [0x86, 0xdd] => {
                let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
                let mut at = 40;
                source = IpAddr::from(<[u8; 16]>::try_from(&packet[8..24]).unwrap());
                dest = packet[24..40].to_vec();
                ip_options = Vec::new();
                protocol = packet[6];
                while [0, 43, 44, 60, 253].contains(&protocol) {
                    let bytes = (usize::from(packet[at + 1]) + 1) * 8;
                    extensions.push((protocol, packet[at..at + bytes].to_vec()));
                    protocol = packet[at];
                    at += bytes;
                }
                rest = &packet[at..40 + length];
                is_right = true;
            }
            _ => return None,
        }
        let octets = match source {
            IpAddr::V4(addr) => Ipv4Addr::octets(&addr).to_vec(),
            IpAddr::V6(addr) => Ipv6Addr::octets(&addr).to_vec(),
        };
        let (is_syn, tcp_options, covered, payload) = match protocol {
            6 => {
                let header = usize::from(rest[12] >> 4) * 4;
                let payload = rest.len() - header;
                (
                    rest[13] & 2 != 0,
                    rest[20..header].to_vec(),
                    rest.len(),
                    payload,
                )
            }
            17 => {
                let length = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
                (false, Vec::new(), length, length - 8)
            }
            _ => return None,
        };
        let pseudo = [
            &octets[..],
            &dest,
            &(covered as u32).to_be_bytes(),
            &[0, 0, 0, protocol],
        ]
        .concat();
        Some(Self {
            source,
            ip_options,
            extensions,
            protocol,
            tcp_options,
            is_syn,
            payload,
            surplus: rest[covered..].to_vec(),
            has_right_checksums: is_right && checksum(&[&pseudo, &rest[..covered]]) == 0,
        })
    }
}
