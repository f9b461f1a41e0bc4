//! The servers behind a virtual address: two real nginx, each in a namespace of its own on
//! the host's network segment, and the customers who ask them.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use weir_netlab::{Child, Namespace, wait_for};
use weir_testkit::traffic;

use crate::participant::{Participant, SOON, VIP};

/// Addresses of the servers on the segment: those of a family differ in the last digit.
const REAL: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
pub const SERVERS: usize = 2;
/// What they serve beside their names, as `ab` fetched it from Pen's Raspberry Pi.
pub const FILE_BYTES: usize = 1_024_000;

/// A server's own address of this family: 0 for IPv4, 1 for IPv6.
pub fn own_address(number: usize, family: usize) -> String {
    format!("{}{}", REAL[family], number + 1)
}

/// The configuration of weir with the farm's servers.
pub fn configuration() -> String {
    let reals =
        (0..SERVERS).map(|number| format!("{{ address = \"{}\" }}", own_address(number, 0)));
    format!(
        "\n[balance]\ninterface = \"eth0\"\n\n[pool.web]\nvip = {VIP:?}\nports = [\"80/tcp\"]\n\
         reals = [{}]\ncheck = {{ http = \"/healthz\", interval = \"1s\", fall = 2 }}\n",
        reals.collect::<Vec<_>>().join(", ")
    )
}

/// The servers; they end with this value.
pub struct PoolServers {
    servers: [Server; SERVERS],
}

struct Server {
    namespace: Namespace,
    dir: PathBuf,
    nginx: Option<Child>,
}

impl PoolServers {
    /// Gives these namespaces the virtual addresses, which they tell nobody, and starts a
    /// server in each.
    pub fn start(namespaces: [Namespace; SERVERS], dir: &Path) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        for (number, namespace) in namespaces.into_iter().enumerate() {
            namespace.sysctl("ipv4.conf.all.arp_ignore", "1")?;
            namespace.sysctl("ipv4.conf.all.arp_announce", "2")?;
            namespace.ip(&[
                format!("addr add {}/32 dev lo", VIP[0]),
                format!("addr add {}/128 dev lo", VIP[1]),
            ])?;
            let dir = dir.join(format!("nginx-{number}"));
            fs::create_dir(&dir)?;
            fs::write(dir.join("1000k"), vec![b'0'; FILE_BYTES])?;
            let nginx = start(&namespace, number, &dir)?;
            servers.push(Server {
                namespace,
                dir,
                nginx: Some(nginx),
            });
        }
        let servers = servers.try_into().ok().context("a server a namespace")?;
        Ok(Self { servers })
    }

    /// SIGKILL, to the whole server.
    pub fn kill(&mut self, number: usize) {
        self.servers[number].nginx = None;
    }

    /// Starts it again.
    pub fn revive(&mut self, number: usize) -> anyhow::Result<()> {
        let server = &mut self.servers[number];
        server.nginx = Some(start(&server.namespace, number, &server.dir)?);
        Ok(())
    }

    /// Which servers this address asked for anything, by their own logs.
    pub fn asked_by(&self, from: IpAddr) -> anyhow::Result<Vec<usize>> {
        let mut asked = Vec::new();
        for (number, server) in self.servers.iter().enumerate() {
            let log = fs::read_to_string(server.dir.join("access.log"))?;
            let is_theirs = |line: &str| line.split(' ').next() == Some(&from.to_string());
            if log.lines().any(is_theirs) {
                asked.push(number);
            }
        }
        Ok(asked)
    }
}

/// An nginx that says who it is and whom it sees.
fn start(namespace: &Namespace, number: usize, dir: &Path) -> anyhow::Result<Child> {
    let at = dir.display();
    let config = format!(
        "daemon off; master_process off; worker_processes 1; user root;
         pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 256; }}
         http {{
             access_log {at}/access.log;
             client_body_temp_path {at}/tmp; proxy_temp_path {at}/tmp;
             fastcgi_temp_path {at}/tmp; uwsgi_temp_path {at}/tmp; scgi_temp_path {at}/tmp;
             keepalive_timeout 600s;
             server {{
                 listen 80; listen [::]:80;
                 location = /healthz {{ access_log off; return 204; }}
                 location = / {{ return 200 \"{number} $remote_addr\"; }}
                 location / {{ root {at}; }}
             }}
         }}"
    );
    let conf = dir.join("conf");
    fs::write(&conf, config)?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-c").arg(&conf).stdin(Stdio::null());
    let child = namespace.spawn(command)?;
    let local = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 80);
    wait_for("nginx to listen", SOON, || {
        Ok(traffic::tcp_connect(namespace, None, local, SOON).ok())
    })?;
    Ok(child)
}

/// Customers with a connection to the virtual address.
pub struct Visit(TcpStream);

impl Visit {
    /// A new connection of this participant.
    pub fn open(
        internet: &Namespace,
        participant: &Participant,
        within: Duration,
    ) -> anyhow::Result<Self> {
        let (stream, _) =
            traffic::tcp_open(internet, Some(participant.from), participant.to, within)?;
        stream.set_read_timeout(Some(SOON))?;
        Ok(Self(stream))
    }

    /// The body of this path.
    pub fn get(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: demo\r\n\r\n")?;
        let mut answer = Vec::new();
        loop {
            let mut buffer = [0; 65536];
            let len = self.0.read(&mut buffer)?;
            ensure!(len > 0, "closed by the server");
            answer.extend(&buffer[..len]);
            let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let text = String::from_utf8_lossy(&answer[..head]);
            ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
            let lines = text.lines();
            let length = lines
                .filter_map(|line| line.strip_prefix("Content-Length: "))
                .next();
            let length: usize = length.context("a length")?.parse()?;
            if answer.len() >= head + 4 + length {
                return Ok(answer.split_off(head + 4));
            }
        }
    }

    /// The number of the server behind this connection; it must see the client's own
    /// address.
    pub fn who(&mut self, participant: &Participant) -> anyhow::Result<usize> {
        let said = String::from_utf8(self.get("/")?)?;
        let (number, seen) = said.split_once(' ').context("a name and an address")?;
        ensure!(
            seen.parse() == Ok(participant.from),
            "the server sees {seen}, not {}",
            participant.from
        );
        Ok(number.parse()?)
    }
}

/// One new connection of a customer.
pub struct Served {
    /// The time at which the connection was begun.
    pub at: Instant,
    /// The number of the server, or the error.
    pub by: anyhow::Result<usize>,
}

/// Customers who come one after the other, for as long as this is there.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Served>>,
}

impl Traffic {
    /// Starts customers from these participants in turn, each with a new connection.
    pub fn start(internet: &Namespace, participants: &[&Participant]) -> Self {
        const PAUSE: Duration = Duration::from_millis(10);
        let stop = Arc::new(AtomicBool::new(false));
        let (internet, told) = (internet.clone(), Arc::clone(&stop));
        let participants: Vec<Participant> = participants
            .iter()
            .map(|participant| (*participant).clone())
            .collect();
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            for participant in participants.iter().cycle() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let at = Instant::now();
                let by = Visit::open(&internet, participant, SOON)
                    .and_then(|mut visit| visit.who(participant));
                all.push(Served { at, by });
                std::thread::sleep(PAUSE);
            }
            all
        });
        Self { stop, thread }
    }

    /// Ends it: all that came.
    pub fn end(self) -> anyhow::Result<Vec<Served>> {
        self.stop.store(true, Ordering::Relaxed);
        let all = self.thread.join();
        all.map_err(|_| anyhow::anyhow!("the customers' thread panicked"))
    }
}
