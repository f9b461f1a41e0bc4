//! The proxy of pools (crates/proxy) with one worker against Debian's HAProxy (TCP, one
//! thread, splice) and nginx stream (one process), in turns: client, proxy and a real
//! nginx each in a namespace of its own. What is compared is work done for a second of a
//! processor that the proxy used (schedstat of its thread): bytes of large answers, and
//! small answers over a connection each. Work done for the proxy by the interrupts of
//! others is in nobody's figure.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts, wait_for};
use weir_proxy::{Chooser, Engine, Flow, Group, Limits, Protocol, ProxyHeader, ProxyService, Real};

use crate::report::Report;

const PROXY: &str = "10.9.1.2";
const REAL: &str = "10.9.2.2";
/// Where the nginx of the real is, and thus weir's virtual address; where the others are.
const PORT: u16 = 80;
const HAPROXY: u16 = 81;
const NGINX: u16 = 82;
/// How long each measures one thing in a round.
const TIME: Duration = Duration::from_secs(2);

/// One kind of load on the proxy.
struct Load {
    name: &'static str,
    /// The path that one client requests.
    path: &'static str,
    clients: usize,
    unit: &'static str,
    /// Bytes count, not answers.
    is_bytes: bool,
}

const LOADS: [Load; 2] = [
    Load {
        name: "",
        path: "/large",
        clients: 4,
        unit: "GB/CPU-s",
        is_bytes: true,
    },
    Load {
        name: " small",
        path: "/small",
        clients: 8,
        unit: "k/CPU-s",
        is_bytes: false,
    },
];

/// Adds the rows whose names hold `only`.
pub fn rows(report: &mut Report, rounds: usize, only: &str) -> anyhow::Result<()> {
    let wanted = |load: &&Load| {
        ["target proxy tcp", "haproxy tcp", "nginx stream tcp"]
            .iter()
            .any(|row| format!("{row}{}", load.name).contains(only))
    };
    let loads: Vec<_> = LOADS.iter().filter(wanted).collect();
    if loads.is_empty() {
        return Ok(());
    }
    let net = TestNet::new()?;
    let weir = Weir::start(&net.host)?;
    let mut measured = vec![("target proxy tcp", PORT, weir.thread.clone())];
    let haproxy = net.haproxy();
    let nginx = net.nginx_stream();
    for (name, port, started) in [
        ("haproxy tcp", HAPROXY, &haproxy),
        ("nginx stream tcp", NGINX, &nginx),
    ] {
        match started {
            Ok(child) => measured.push((name, port, format!("/proc/{0}/task/{0}", child.pid()))),
            Err(why) => eprintln!("{name}: left out: {why:#}"),
        }
    }
    for load in loads {
        let mut values = vec![Vec::new(); measured.len()];
        for round in 0..rounds {
            for turn in 0..measured.len() {
                let which = (turn + round) % measured.len();
                let (_, port, task) = &measured[which];
                values[which].push(net.measure(*port, task, load)?);
            }
        }
        for (which, (row, _, _)) in measured.iter().enumerate() {
            let name = format!("{row}{}", load.name);
            let haproxy = measured.iter().position(|(row, ..)| *row == "haproxy tcp");
            match haproxy.filter(|haproxy| *haproxy != which) {
                Some(haproxy) => {
                    let to = format!("haproxy tcp{}", load.name);
                    let to = (to.as_str(), values[haproxy].as_slice());
                    report.add_ratio(&name, load.unit, &values[which], to);
                }
                None => report.add(&name, load.unit, &values[which]),
            }
        }
    }
    Ok(())
}

struct TestNet {
    dir: tempfile::TempDir,
    host: Namespace,
    client: Namespace,
    _server: Child,
    _veths: [Veth; 2],
    _net: Net,
}

impl TestNet {
    fn new() -> anyhow::Result<Self> {
        let net = Net::new()?;
        let [client, host, real] = ["client", "host", "real"].map(|name| net.namespace(name));
        let (client, host, real) = (client?, host?, real?);
        let opts = |a, b| VethOpts::new(&[a], &[b]);
        let veths = [
            net.veth(
                &client,
                "c0",
                &host,
                "h0",
                opts("10.9.1.1/24", "10.9.1.2/24")?,
            )?,
            net.veth(
                &host,
                "h1",
                &real,
                "r0",
                opts("10.9.2.1/24", "10.9.2.2/24")?,
            )?,
        ];
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("large"), vec![b'x'; 64 << 20])?;
        fs::write(dir.path().join("small"), vec![b'x'; 100])?;
        let server = web_server(&real, dir.path(), PORT)?;
        listens(&real, SocketAddr::new(REAL.parse()?, PORT))?;
        Ok(Self {
            dir,
            host,
            client,
            _server: server,
            _veths: veths,
            _net: net,
        })
    }

    fn haproxy(&self) -> anyhow::Result<Child> {
        let program = Path::new("/usr/sbin/haproxy");
        ensure!(program.exists(), "{} is not installed", program.display());
        let config = haproxy_config(&format!("{PROXY}:{HAPROXY}"), &format!("{REAL}:{PORT}"));
        let file = self.dir.path().join("haproxy.cfg");
        fs::write(&file, config)?;
        let mut command = Command::new(program);
        command.args(["-db", "-f"]).arg(&file);
        let child = self.start(command)?;
        listens(&self.host, SocketAddr::new(PROXY.parse()?, HAPROXY))?;
        Ok(child)
    }

    fn nginx_stream(&self) -> anyhow::Result<Child> {
        const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
        ensure!(Path::new(MODULE).exists(), "{MODULE} is not installed");
        let stream = format!(
            "load_module {MODULE};
             stream {{ server {{ listen {PROXY}:{NGINX} backlog=4096; proxy_pass {REAL}:{PORT}; }} }}"
        );
        let child = nginx(&self.host, self.dir.path(), "stream", &stream)?;
        listens(&self.host, SocketAddr::new(PROXY.parse()?, NGINX))?;
        Ok(child)
    }

    fn start(&self, mut command: Command) -> anyhow::Result<Child> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(self.host.spawn(command.stderr_null())?)
    }

    /// Work done for a second of the processor that the task used.
    fn measure(&self, port: u16, task: &str, load: &Load) -> anyhow::Result<f64> {
        let to = SocketAddr::new(PROXY.parse()?, port);
        let (done, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let begin = Arc::new(Barrier::new(load.clients + 1));
        let clients: Vec<_> = (0..load.clients)
            .map(|_| {
                let (done, stop, begin) = (done.clone(), stop.clone(), begin.clone());
                let (client, request) = (
                    self.client.clone(),
                    format!("GET {} HTTP/1.0\r\n\r\n", load.path),
                );
                let is_bytes = load.is_bytes;
                thread::spawn(move || {
                    client.enter(move || {
                        let mut buffer = vec![0; 256 << 10];
                        begin.wait();
                        while !stop.load(Relaxed) {
                            let mut stream = std::net::TcpStream::connect(to)?;
                            stream.write_all(request.as_bytes())?;
                            let mut len = 0;
                            loop {
                                match stream.read(&mut buffer)? {
                                    0 => break,
                                    read => len += read as u64,
                                }
                                if is_bytes && stop.load(Relaxed) {
                                    break;
                                }
                            }
                            if len < 100 {
                                return Err(std::io::ErrorKind::UnexpectedEof.into());
                            }
                            done.fetch_add(if is_bytes { len } else { 1 }, Relaxed);
                        }
                        Ok::<_, std::io::Error>(())
                    })
                })
            })
            .collect();
        begin.wait();
        let before = on_processor(task)?;
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Relaxed);
        for client in clients {
            let ended = client
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))?;
            ended?.with_context(|| format!("a client of {to}"))?;
        }
        let used = on_processor(task)? - before;
        let unit = if load.is_bytes { 1e9 } else { 1e3 };
        Ok(done.load(Relaxed) as f64 / unit / used.as_secs_f64())
    }
}

/// An nginx of one process that serves the files of a directory.
pub fn web_server(namespace: &Namespace, dir: &Path, port: u16) -> anyhow::Result<Child> {
    let root = dir.display();
    let http = format!(
        "http {{ access_log off; sendfile on; keepalive_timeout 0;
         client_body_temp_path {root}/t; proxy_temp_path {root}/t; fastcgi_temp_path {root}/t;
         uwsgi_temp_path {root}/t; scgi_temp_path {root}/t;
         server {{ listen {port} backlog=4096; root {root}; }} }}"
    );
    nginx(namespace, dir, "real", &http)
}

/// A configuration of HAProxy that relays TCP with one thread, by splice.
pub fn haproxy_config(at: &str, to: &str) -> String {
    format!(
        "global\n nbthread 1\n maxconn 4096\n\
         defaults\n mode tcp\n timeout connect 3s\n timeout client 60s\n timeout server 60s\n\
         option splice-auto\n option splice-request\n option splice-response\n\
         listen bench\n bind {at} backlog 4096\n server one {to}\n"
    )
}

/// One process of nginx with this in its configuration.
fn nginx(namespace: &Namespace, dir: &Path, name: &str, config: &str) -> anyhow::Result<Child> {
    let (modules, rest) = match config.split_once(';') {
        Some((module, rest)) if module.starts_with("load_module") => (module, rest),
        _ => ("", config),
    };
    let modules = if modules.is_empty() {
        String::new()
    } else {
        format!("{modules};")
    };
    let dir = dir.display();
    let text = format!(
        "{modules}\ndaemon off; master_process off; user root; pid {dir}/{name}.pid;
         error_log {dir}/{name}.log; events {{ worker_connections 4096; }}\n{rest}"
    );
    let file = format!("{dir}/{name}.conf");
    fs::write(&file, text)?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-c", &file]).stdin(Stdio::null());
    Ok(namespace.spawn(command.stderr_null())?)
}

trait Quiet {
    fn stderr_null(self) -> Self;
}

impl Quiet for Command {
    fn stderr_null(mut self) -> Self {
        self.stderr(Stdio::null());
        self
    }
}

/// Waits until a connection to this address can be made.
pub fn listens(namespace: &Namespace, at: SocketAddr) -> anyhow::Result<()> {
    let connects = || namespace.enter(|| std::net::TcpStream::connect(at).ok());
    wait_for(
        &format!("a listener at {at}"),
        Duration::from_secs(20),
        connects,
    )?;
    Ok(())
}

/// How long a task has been on a processor.
pub fn on_processor(task: &str) -> anyhow::Result<Duration> {
    let path = format!("{task}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let first = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let Some(nanoseconds) = first else {
        bail!("{path} is {text:?}");
    };
    Ok(Duration::from_nanos(nanoseconds))
}

struct One(Arc<Real>);

impl Chooser for One {
    fn admits(&self, _: IpAddr) -> bool {
        true
    }

    fn choose(&self, _: &Flow, tried: &[Arc<Real>]) -> Option<Arc<Real>> {
        tried.is_empty().then(|| self.0.clone())
    }
}

/// The proxy, in a thread of this process.
struct Weir {
    engine: Engine,
    stopping: Arc<AtomicBool>,
    worker: Option<thread::JoinHandle<()>>,
    thread: String,
}

impl Weir {
    fn start(host: &Namespace) -> anyhow::Result<Self> {
        let limits = Limits {
            flows: 10_000,
            flows_of_client: None,
            tries: 3,
            connect_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(600),
            udp_timeout: Duration::from_secs(60),
            header: ProxyHeader::None,
            is_transparent: false,
        };
        let real = Arc::new(Real::new(REAL.parse::<IpAddr>()?));
        let group = Arc::new(Group::new(Box::new(One(real)), limits));
        let at = SocketAddr::new(PROXY.parse()?, PORT);
        let service = Arc::new(ProxyService::new(at, Protocol::Tcp, group));
        let (engine, workers) = Engine::new(1)?;
        let failed = host.enter(|| engine.serve(&[service]))?;
        if let Some((_, error)) = failed.into_iter().next() {
            return Err(error).context("listen");
        }
        let stopping = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (stop, host) = (stopping.clone(), host.clone());
        let worker = workers.into_iter().next().context("a worker")?;
        let worker = thread::spawn(move || {
            let _ = host.enter(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero();
                let _ = tell.send(format!("/proc/self/task/{tid}"));
                worker.run(&stop, || ());
            });
        });
        Ok(Self {
            engine,
            stopping,
            worker: Some(worker),
            thread: told.recv()?,
        })
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        self.stopping.store(true, Relaxed);
        self.engine.wake();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}
