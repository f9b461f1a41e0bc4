//! One network segment with hosts on it: balancers, their clients, and reals with a real
//! nginx each.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use tempfile::TempDir;
use weir_netlab::{Child, Namespace, Net, Side, Veth, VethOpts};
use weir_testkit::traffic;

use super::{SILENCE, SOON, soon};

/// The device of hosts of VLAN 10, on their eth0.
pub const VLAN_DEVICE: &str = "eth0.10";

/// The virtual addresses of reals.
pub const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];

/// The segment, with whoever has joined it.
pub struct Lan {
    dir: TempDir,
    servers: Vec<Child>,
    switch: Namespace,
    veths: Vec<(String, Veth)>,
    is_tagged: bool,
    net: Net,
}

impl Lan {
    /// One whose hosts have their addresses in VLAN 10, on a device of it, and none on eth0;
    /// `None`: this kernel has no such devices, and says so.
    pub fn of_vlan() -> Option<Self> {
        let lan = Self {
            is_tagged: true,
            ..Self::new()
        };
        let words = "link add link br0 name br0.10 type vlan id 10";
        let words: Vec<_> = words.split(' ').collect();
        let made = lan.switch.output("ip", &words).unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            println!(
                "skipped: no VLAN devices: {why} (probe: ip {})",
                words.join(" ")
            );
            return None;
        }
        Some(lan)
    }

    pub fn new() -> Self {
        let net = Net::new().unwrap();
        let switch = net.namespace("switch").unwrap();
        switch
            .ip(&[
                "link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
                "link set br0 up".into(),
            ])
            .unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            servers: Vec::new(),
            switch,
            veths: Vec::new(),
            is_tagged: false,
            net,
        }
    }

    /// A host of this name with 192.0.2.NUMBER, 2001:db8::NUMBER and a link-local address
    /// on its eth0, or on [`VLAN_DEVICE`].
    pub fn join(&mut self, name: &str, number: u8) -> Namespace {
        let namespace = self.net.namespace(name).unwrap();
        let addresses = [
            format!("192.0.2.{number}/24"),
            format!("2001:db8::{number}/64"),
        ];
        let of_eth0 = match self.is_tagged {
            true => Vec::new(),
            false => addresses.iter().map(String::as_str).collect(),
        };
        let opts = VethOpts::new(&of_eth0, &[]).unwrap();
        let veth = self.net.veth(&namespace, "eth0", &self.switch, name, opts);
        self.veths.push((name.to_owned(), veth.unwrap()));
        self.switch
            .ip(&[format!("link set {name} master br0")])
            .unwrap();
        let mut device = "eth0";
        if self.is_tagged {
            device = VLAN_DEVICE;
            namespace
                .ip(&[
                    format!("link add link eth0 name {device} type vlan id 10"),
                    format!("link set {device} up"),
                    format!("addr add {} dev {device}", addresses[0]),
                    format!("addr add {} dev {device} nodad", addresses[1]),
                ])
                .unwrap();
        }
        namespace
            .ip(&[format!("addr add fe80::{number}/64 dev {device} nodad")])
            .unwrap();
        namespace
    }

    /// The link-layer address of a host.
    pub fn mac(&self, name: &str) -> String {
        let (_, veth) = self.veths.iter().find(|(known, _)| known == name).unwrap();
        veth.mac(Side::A)
            .map(|byte| format!("{byte:02x}"))
            .join(":")
    }

    /// Keeps two hosts from hearing each other, or lets them again; others hear both.
    pub fn part(&self, names: [&str; 2], is_parted: bool) {
        let state = if is_parted { "on" } else { "off" };
        for name in names {
            let words = ["link", "set", "dev", name, "isolated", state];
            self.switch.run("bridge", &words).unwrap();
        }
    }

    /// Joins two hosts by a wire of their own, as eth1 on both.
    pub fn wire(&mut self, one: &Namespace, other: &Namespace) {
        let opts = VethOpts::new(&["198.51.100.1/24"], &["198.51.100.2/24"]).unwrap();
        let veth = self.net.veth(one, "eth1", other, "eth1", opts).unwrap();
        self.veths.push(("wire".to_owned(), veth));
    }

    /// A host that has the virtual addresses on its loopback interface.
    pub fn real_without_server(&mut self, number: u8) -> Namespace {
        let namespace = self.join(&format!("real{number}"), number);
        namespace.sysctl("ipv4.conf.all.arp_ignore", "1").unwrap();
        namespace.sysctl("ipv4.conf.all.arp_announce", "2").unwrap();
        let add = VIP.map(|vip| format!("addr add {vip} dev lo"));
        namespace.ip(&add).unwrap();
        namespace
    }

    /// A host that has the virtual addresses on its loopback interface, with an nginx that
    /// says NUMBER.
    pub fn real(&mut self, number: u8) -> Namespace {
        let namespace = self.real_without_server(number);
        let dir = self.dir.path().join(number.to_string());
        fs::create_dir_all(&dir).unwrap();
        let dir = dir.display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; user root;
             pid {dir}/pid; error_log {dir}/error.log;
             events {{ worker_connections 8192; }}
             http {{
                 access_log off; keepalive_timeout 600s; keepalive_requests 100000000;
                 client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
                 fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
                 server {{ listen 80; listen [::]:80; location / {{ return 200 \"{number}\"; }} }}
             }}"
        );
        let conf = format!("{dir}/conf");
        fs::write(&conf, config).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-c", &conf]).stdin(Stdio::null());
        self.servers.push(namespace.spawn(command).unwrap());
        soon("nginx to listen", || {
            let at = SocketAddr::new([127, 0, 0, 1].into(), 80);
            traffic::tcp_connect(&namespace, None, at, SILENCE).ok()
        });
        namespace
    }
}

/// The answer of a real to a new connection from this address, or from any, if there is
/// one.
pub fn served_by(client: &Namespace, from: Option<IpAddr>, vip: IpAddr) -> Option<u8> {
    let to = SocketAddr::new(vip, 80);
    let (mut stream, _) = traffic::tcp_open(client, from, to, SILENCE).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: vip\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.rsplit_once("\r\n\r\n")?.1.parse().ok()
}

/// A connection to a virtual address that stays open.
pub struct Flow(TcpStream);

impl Flow {
    /// Opens one, if somebody answers.
    pub fn open(client: &Namespace, vip: IpAddr) -> Option<Self> {
        let opened = traffic::tcp_open(client, None, SocketAddr::new(vip, 80), SILENCE);
        let (stream, _) = opened.ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        Some(Self(stream))
    }

    /// The number of the real behind this connection.
    #[track_caller]
    pub fn ask(&mut self) -> u8 {
        self.0
            .write_all(b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        loop {
            let mut buffer = [0; 1024];
            let len = self.0.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "closed: {answer}");
            answer.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
            // Each real has a number of two digits.
            match answer.split_once("\r\n\r\n") {
                Some((_, body)) if body.len() == 2 => return body.parse().unwrap(),
                _ => continue,
            }
        }
    }
}

/// Does the interface eth0 of this host have the address?
pub fn has(host: &Namespace, address: &str) -> bool {
    device_has(host, "eth0", address)
}

/// Does this interface of a host have the address?
pub fn device_has(host: &Namespace, device: &str, address: &str) -> bool {
    let shown = host
        .run("ip", &["-o", "addr", "show", "dev", device])
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.contains(&format!(" {address}/"))
}
