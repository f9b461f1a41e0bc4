//! SYNs as they are on the wire: captured, changed, made, and sent by another host.

use std::{
    io::{BufRead, BufReader},
    net::IpAddr,
    process::{Command, Stdio},
};

use weir_netlab::{Child, Namespace};
use weir_token::{KeyId, Statement, verify::Segment};

const SYN: u8 = 0x02;
/// The flag of a segment that acknowledges something.
pub const ACK: u8 = 0x10;

/// What begins a connection.
#[derive(Debug, Clone)]
pub struct Syn {
    pub source: (IpAddr, u16),
    pub dest: (IpAddr, u16),
    pub isn: u32,
    pub options: Vec<u8>,
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from))
        .sum()
}

fn checksum(sum: u32) -> [u8; 2] {
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!folded as u16).to_be_bytes()
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

impl Syn {
    /// Reads a SYN out of a frame without VLAN tags.
    pub fn read(frame: &[u8]) -> Self {
        let segment = Segment::read(&frame[14..]).expect("a TCP segment");
        assert!(segment.is_syn());
        Self {
            source: segment.source,
            dest: segment.dest,
            isn: segment.sequence,
            options: segment.options.expect("it is whole").to_vec(),
        }
    }

    /// What a token of it says.
    pub fn statement(&self, key_id: KeyId, epoch: u64) -> Statement {
        Statement {
            key_id,
            epoch,
            source: self.source,
            dest: self.dest,
            isn: self.isn,
        }
    }

    /// A frame between these link-layer addresses: from, to.
    pub fn frame(&self, macs: ([u8; 6], [u8; 6])) -> Vec<u8> {
        self.segment(macs, SYN)
    }

    /// A frame of this connection with other flags.
    pub fn segment(&self, macs: ([u8; 6], [u8; 6]), flags: u8) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let length = 20 + options.len();
        let mut tcp = Vec::new();
        tcp.extend(self.source.1.to_be_bytes());
        tcp.extend(self.dest.1.to_be_bytes());
        tcp.extend(self.isn.to_be_bytes());
        tcp.extend([
            0,
            0,
            0,
            1,
            (length as u8 / 4) << 4,
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        tcp.extend(options);
        let (source, dest) = (octets(self.source.0), octets(self.dest.0));
        let pseudo = sum(&source) + sum(&dest) + 6 + length as u32;
        let check = checksum(pseudo + sum(&tcp));
        tcp[16..18].copy_from_slice(&check);
        let mut frame = [macs.1, macs.0].concat();
        match self.source.0 {
            IpAddr::V4(_) => {
                frame.extend([8, 0]);
                let mut ip = vec![0x45, 0];
                ip.extend((20 + length as u16).to_be_bytes());
                ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                ip.extend([source, dest].concat());
                let check = checksum(sum(&ip));
                ip[10..12].copy_from_slice(&check);
                frame.extend(ip);
            }
            IpAddr::V6(_) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((length as u16).to_be_bytes());
                frame.extend([6, 64]);
                frame.extend([source, dest].concat());
            }
        }
        frame.extend(tcp);
        frame
    }
}

/// Sends a frame from a host.
pub fn send(from: &Namespace, frame: &[u8]) {
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth0', 0))\n\
        s.send(bytes.fromhex(sys.argv[1]))";
    from.run("/usr/bin/python3", &["-c", script, &hex::encode(frame)])
        .unwrap();
}

/// Waits for the first SYN to a port.
pub struct Capture {
    lines: BufReader<std::process::ChildStdout>,
    _program: Child,
}

const CAPTURE: &str = "
import socket, sys
port = int(sys.argv[1]).to_bytes(2, 'big')
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind(('eth0', 3))
print('ready', flush=True)
while True:
    f = s.recv(4096)
    tcp = 0
    if f[12:14] == b'\\x08\\x00' and f[23] == 6: tcp = 14 + (f[14] & 15) * 4
    if f[12:14] == b'\\x86\\xdd' and f[20] == 6: tcp = 54
    # Behind destination options.
    if f[12:14] == b'\\x86\\xdd' and f[20] == 60 and f[54] == 6: tcp = 54 + (f[55] + 1) * 8
    if tcp and f[tcp + 2:tcp + 4] == port and f[tcp + 13] & 0x12 == 2:
        print(f.hex(), flush=True); break
";

impl Capture {
    /// On the `eth0` of a host.
    pub fn begin(on: &Namespace, port: u16) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", CAPTURE, &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut program = on.spawn(command).unwrap();
        let stdout = program.inner().stdout.take().expect("it is a pipe");
        let mut lines = BufReader::new(stdout);
        let mut ready = String::new();
        lines.read_line(&mut ready).unwrap();
        assert_eq!(ready.trim(), "ready");
        Self {
            lines,
            _program: program,
        }
    }

    /// Waits for the SYN and returns its frame.
    pub fn end(mut self) -> Vec<u8> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        hex::decode(line.trim()).expect("digits")
    }
}
