//! Web pages of a real nginx as `ab` fetches them, a connection each: a page of 1000 KB, as
//! in the paper on Pen's direct server return, and one of 1 KB. Client, balancer and real are
//! on one segment. The same page without a balancer is the limit; beside weir, which takes
//! tcx on this kind of device, stand Pen's direct server return and HAProxy as a proxy. The
//! share of a processor that the balancer uses is the time of weir's program, and that of the
//! other two processes; what the kernel spends on moving frames is in nobody's share,
//! but in the rates, for client, balancer and real have the same processors.

use std::{
    fs,
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    attachment::{Hook, Link},
    balance::{Real, SLOTS, VirtualService, real_id},
};
use weir_core::Protocol;
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts, wait_for};

use crate::{proxy, report::Report};

const PORT: u16 = 80;
/// Where HAProxy listens.
const PROXIED: u16 = 81;
const BALANCER: &str = "10.9.3.2";
const REAL: &str = "10.9.3.3";
/// weir's virtual address, and Pen's, which answers ARP for it itself.
const VIP: &str = "10.9.3.80";
const VIP_OF_PEN: &str = "10.9.3.81";
/// How long `ab` fetches in a round.
const SECONDS: &str = "2";
/// Connections at once.
const AT_ONCE: &str = "8";

struct Page {
    name: &'static str,
    path: &'static str,
    bytes: usize,
}

const PAGES: [Page; 2] = [
    Page {
        name: "1000 KB",
        path: "large",
        bytes: 1_000_000,
    },
    Page {
        name: "1 KB",
        path: "small",
        bytes: 1000,
    },
];

/// What carries pages while this lives, and how long it has run on a processor; `None`: nothing
/// stands between.
type Carrier<'a> = Option<Box<dyn Fn() -> anyhow::Result<Duration> + 'a>>;

/// One way from the client to the page.
struct Way<'a> {
    name: &'static str,
    /// Address and port that the client asks.
    at: String,
    /// What starts the balancer: one that does not run takes nothing from the others (Pen's
    /// AF_PACKET socket gets a copy of every frame).
    begin: Box<dyn Fn() -> anyhow::Result<Carrier<'a>> + 'a>,
}

/// Adds the rows whose names hold `only`.
pub fn rows(report: &mut Report, rounds: usize, only: &str) -> anyhow::Result<()> {
    const WAYS: [&str; 4] = ["direct", "weir dsr", "pen dsr", "haproxy"];
    let name = |page: &Page, way: &str| format!("web {} {way}", page.name);
    let wanted = |page: &&Page| WAYS.iter().any(|way| name(page, way).contains(only));
    let pages: Vec<_> = PAGES.iter().filter(wanted).collect();
    if pages.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/ab").exists() {
        eprintln!("web: left out: ab (apache2-utils) is not installed");
        return Ok(());
    }
    let segment = Segment::new()?;
    let _times = ProgramTimes::begin()?;
    let weir = segment.weir()?;
    let program = weir.path.program(Hook::Tcx)?;
    let of_child = |child: Child| -> Carrier<'_> {
        Some(Box::new(move || {
            proxy::on_processor(&format!("/proc/{0}/task/{0}", child.pid()))
        }))
    };
    let mut ways = vec![
        Way {
            name: WAYS[0],
            at: format!("{REAL}:{PORT}"),
            begin: Box::new(|| Ok(None)),
        },
        Way {
            name: WAYS[1],
            at: format!("{VIP}:{PORT}"),
            begin: Box::new(|| Ok(Some(Box::new(move || run_time(program))))),
        },
        Way {
            name: WAYS[2],
            at: format!("{VIP_OF_PEN}:{PORT}"),
            begin: Box::new(|| Ok(of_child(segment.pen()?))),
        },
        Way {
            name: WAYS[3],
            at: format!("{BALANCER}:{PROXIED}"),
            begin: Box::new(|| Ok(of_child(segment.haproxy()?))),
        },
    ];
    ways.retain(|way| match (way.begin)() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("web {}: left out: {why:#}", way.name);
            false
        }
    });
    for page in pages {
        let mut rates = vec![Vec::new(); ways.len()];
        let mut shares = rates.clone();
        for round in 0..rounds {
            for turn in 0..ways.len() {
                let which = (turn + round) % ways.len();
                let way = &ways[which];
                let carrier = (way.begin)().with_context(|| name(page, way.name))?;
                let used = || carrier.as_ref().map(|used| used()).transpose();
                let before = used()?;
                let fetched = segment.fetch(&way.at, page);
                let fetched = fetched.with_context(|| name(page, way.name))?;
                rates[which].push(fetched.rate);
                if let (Some(before), Some(after)) = (before, used()?) {
                    let used = (after - before).as_secs_f64();
                    shares[which].push(100.0 * used / fetched.seconds);
                }
            }
        }
        let limit = (name(page, ways[0].name), rates[0].clone());
        for ((way, rates), shares) in ways.iter().zip(&rates).zip(&shares) {
            let name = name(page, way.name);
            if shares.is_empty() {
                report.add(&name, "pages/s", rates);
                continue;
            }
            report.add_ratio(&name, "pages/s", rates, (&limit.0, &limit.1));
            report.add(&format!("{name}: the balancer"), "% of a core", shares);
        }
    }
    Ok(())
}

/// What one run of `ab` told.
struct Fetched {
    rate: f64,
    seconds: f64,
}

struct Segment {
    dir: tempfile::TempDir,
    client: Namespace,
    balancer: Namespace,
    /// The balancer's and the real's ends, in this order.
    macs: [[u8; 6]; 2],
    _server: Child,
    _veths: [Veth; 3],
    _net: Net,
}

impl Segment {
    fn new() -> anyhow::Result<Self> {
        let net = Net::new()?;
        let switch = net.namespace("switch")?;
        switch.ip(&[
            "link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
            "link set br0 up".into(),
        ])?;
        let join = |name: &str, address: &str| {
            let namespace = net.namespace(name)?;
            let opts = VethOpts::new(&[address], &[])?;
            let veth = net.veth(&namespace, "eth0", &switch, name, opts)?;
            switch.ip(&[format!("link set {name} master br0")])?;
            anyhow::Ok((namespace, veth))
        };
        let (client, of_client) = join("client", "10.9.3.1/24")?;
        // What Pen takes from AF_PACKET and sends on has no checksum that is left to the card.
        client.run("ethtool", &["-K", "eth0", "tx", "off"])?;
        let (balancer, of_balancer) = join("balancer", &format!("{BALANCER}/24"))?;
        let (real, of_real) = join("real", &format!("{REAL}/24"))?;
        // As `weir real-side` sets it up: the real has the addresses, and tells nobody.
        for key in ["arp_ignore", "arp_announce"] {
            let value = if key == "arp_ignore" { "1" } else { "2" };
            real.sysctl(&format!("ipv4.conf.all.{key}"), value)?;
        }
        real.ip(&[VIP, VIP_OF_PEN].map(|vip| format!("addr add {vip}/32 dev lo")))?;
        balancer.ip(&[format!("addr add {VIP}/32 dev eth0")])?;
        let dir = tempfile::tempdir()?;
        for page in &PAGES {
            fs::write(dir.path().join(page.path), vec![b'x'; page.bytes])?;
        }
        let server = proxy::web_server(&real, dir.path(), PORT)?;
        proxy::listens(&client, format!("{REAL}:{PORT}").parse()?)?;
        use weir_netlab::Side::A;
        Ok(Self {
            macs: [of_balancer.mac(A), of_real.mac(A)],
            _veths: [of_client, of_balancer, of_real],
            dir,
            client,
            balancer,
            _server: server,
            _net: net,
        })
    }

    fn weir(&self) -> anyhow::Result<Weir> {
        let path = Generation::create(
            1,
            &Options::bans(Geometry::for_bans(BanCounts::each(1000))),
            None,
        )?;
        let ifindex = self.balancer.ifindex("eth0")?;
        let real = Real {
            id: real_id("bench", REAL.parse()?),
            dest: self.macs[1],
            source: self.macs[0],
            ifindex,
            vlan: 0,
            tunnel: None,
            drains: false,
        };
        path.balancer.write_real(0, Some(real))?;
        path.balancer.write_ring(0, &vec![Some(0); SLOTS])?;
        path.balancer.write_services(&[VirtualService {
            addr: VIP.parse::<IpAddr>()?,
            protocol: Protocol::Tcp,
            port: Some(PORT),
            pool: 0,
        }])?;
        path.answer(AnswerProgram::Balance)?;
        path.table.set_port_features(path.port_features());
        let program = path.program(Hook::Tcx)?;
        let attach = || Link::attach(program, ifindex, Hook::Tcx);
        let link = self.balancer.enter(attach)?.context("attach by tcx")?;
        Ok(Weir { path, _link: link })
    }

    fn pen(&self) -> anyhow::Result<Child> {
        let mut command = program("/usr/bin/pen")?;
        command.args(["-f", "-O", "dsr_if eth0"]);
        command.args([format!("{VIP_OF_PEN}:{PORT}"), format!("{REAL}:{PORT}")]);
        let child = self.balancer.spawn(command)?;
        self.answers(&format!("{VIP_OF_PEN}:{PORT}"))?;
        Ok(child)
    }

    fn haproxy(&self) -> anyhow::Result<Child> {
        let mut command = program("/usr/sbin/haproxy")?;
        let at = format!("{BALANCER}:{PROXIED}");
        let file = self.dir.path().join("haproxy.cfg");
        fs::write(&file, proxy::haproxy_config(&at, &format!("{REAL}:{PORT}")))?;
        command.args(["-db", "-f"]).arg(&file);
        let child = self.balancer.spawn(command)?;
        self.answers(&at)?;
        Ok(child)
    }

    /// Waits until a small page comes that way.
    fn answers(&self, at: &str) -> anyhow::Result<()> {
        let url = format!("http://{at}/{}", PAGES[1].path);
        let args = ["-q", "-d", "-n", "1", "-s", "1", &url];
        let came = || {
            let done = self.client.output("ab", &args);
            Ok(done.is_ok_and(|done| done.status.success()).then_some(()))
        };
        Ok(wait_for(&url, Duration::from_secs(20), came)?)
    }

    fn fetch(&self, at: &str, page: &Page) -> anyhow::Result<Fetched> {
        let url = format!("http://{at}/{}", page.path);
        let args = [
            "-q", "-d", "-t", SECONDS, "-n", "10000000", "-c", AT_ONCE, &url,
        ];
        let told = self.client.output("ab", &args)?;
        let text = String::from_utf8_lossy(&told.stdout);
        ensure!(
            told.status.success(),
            "ab: {}",
            String::from_utf8_lossy(&told.stderr)
        );
        let figure = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            let figure = word.and_then(|word| word.parse::<f64>().ok());
            figure.with_context(|| format!("ab does not tell {key:?}: {text}"))
        };
        let (failed, complete) = (figure("Failed requests:")?, figure("Complete requests:")?);
        ensure!(failed == 0.0, "{failed} of {complete} requests failed");
        ensure!(
            text.contains(&format!("{} bytes", page.bytes)),
            "not the page that was asked for: {text}"
        );
        Ok(Fetched {
            rate: figure("Requests per second:")?,
            seconds: figure("Time taken for tests:")?,
        })
    }
}

/// weir's packet path at the balancer's end.
struct Weir {
    path: Generation,
    _link: Link,
}

fn program(path: &str) -> anyhow::Result<Command> {
    ensure!(Path::new(path).exists(), "{path} is not installed");
    let mut command = Command::new(path);
    let quiet = [Stdio::null(), Stdio::null()];
    let [out, err] = quiet;
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    Ok(command)
}

/// The kernel measures how long BPF programs run while this lives.
struct ProgramTimes {
    before: String,
}

impl ProgramTimes {
    const SETTING: &'static str = "/proc/sys/kernel/bpf_stats_enabled";

    fn begin() -> anyhow::Result<Self> {
        let before = fs::read_to_string(Self::SETTING).context(Self::SETTING)?;
        fs::write(Self::SETTING, "1").context(Self::SETTING)?;
        Ok(Self { before })
    }
}

impl Drop for ProgramTimes {
    fn drop(&mut self) {
        let _ = fs::write(Self::SETTING, self.before.trim());
    }
}

/// How long a program has run while the kernel measured it, what it calls included.
fn run_time(program: BorrowedFd<'_>) -> anyhow::Result<Duration> {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let nanos = text
        .lines()
        .find_map(|line| line.strip_prefix("run_time_ns:"));
    let Some(nanos) = nanos.and_then(|nanos| nanos.trim().parse().ok()) else {
        bail!("{path} has no run time");
    };
    Ok(Duration::from_nanos(nanos))
}
