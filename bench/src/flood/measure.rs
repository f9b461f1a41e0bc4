//! One run: everything started, requests sent, counters looked at every
//! quarter of a second, everything ended.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

use super::{
    fail2ban::Fail2ban,
    ideal,
    scenario::{Filter, Scenario, Transport, Use, WANTED_CLIENTS},
    second::SecondReader,
    server::{LIMIT, Served},
    test_net::{PORT, Process, TestNet, interrupted},
    weir::{DropCounters, Instance, Weir, log},
};

const INTERVAL: Duration = Duration::from_millis(250);
/// Server and filter get so long to take what is on its way when sending ends.
const DRAIN: Duration = Duration::from_secs(2);

/// The counters at one moment, all since the start of the run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Sample {
    /// Seconds since the first request.
    pub at: f64,
    /// Unwanted requests sent.
    pub unwanted: u64,
    /// Wanted requests sent.
    pub wanted: u64,
    /// Packets that the filter dropped.
    pub dropped: u64,
    /// Unwanted requests that reached the server.
    pub received: u64,
    /// Requests of both kinds that found its socket's buffer full.
    pub overflowed: u64,
    /// Records that the server has logged.
    pub logged: u64,
    /// Answers that came back to wanted clients.
    pub answered: u64,
    /// What an ideal filter would have dropped ([`ideal::dropped`]).
    pub ideal: f64,
}

/// Counts and alerts of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The scenario's name.
    pub name: String,
    /// The thesis's experiment.
    pub experiment: Option<u8>,
    /// Clients that sent unwanted requests.
    pub clients: u32,
    /// Wanted requests a second, as ordered.
    pub wanted_rate: u32,
    /// Seconds that a ban lasted.
    pub ban_seconds: f64,
    /// The counters, sample by sample: the curves of the plot.
    pub samples: Vec<Sample>,
    /// Packets that reached the filter, where it counts them.
    pub arrived: Option<u64>,
    /// Bans made, where they are counted.
    pub bans: Option<u64>,
    /// Of the records logged, read by the filter [`DRAIN`] after the end.
    pub read: Option<u64>,
    /// Of the records logged, lost to the filter, as it counts them itself.
    pub lost: Option<u64>,
    /// Of the records logged, what the second reader has read, and counts as
    /// lost.
    pub second: Option<(u64, u64)>,
    /// Seconds of CPU: the filter's process.
    pub cpu_filter: Option<f64>,
    /// Seconds of CPU: the server's process.
    pub cpu_server: f64,
    /// Alerts that the daemon raised.
    pub alerts: Vec<String>,
}

impl Outcome {
    /// The last sample.
    pub fn end(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }

    /// How long the run took, in seconds.
    pub fn length(&self) -> f64 {
        self.end().at
    }

    /// Of the packets that an ideal filter would have dropped, in percent.
    pub fn of_ideal(&self) -> f64 {
        self.between(&Sample::default(), &self.end())
    }

    /// The share of the ideal from the end of the first bans on, in percent; `None` for a
    /// run that was too short for them. It may pass 100: who is banned late in one cycle is
    /// banned for longer into the next.
    pub fn of_ideal_later(&self) -> Option<f64> {
        let from = self.samples.iter().find(|s| s.at >= self.ban_seconds)?;
        (self.length() - from.at >= 1.0).then(|| self.between(from, &self.end()))
    }

    fn between(&self, from: &Sample, to: &Sample) -> f64 {
        100.0 * (to.dropped - from.dropped) as f64 / (to.ideal - from.ideal)
    }

    /// Unwanted requests that the filter dropped, in percent of those sent.
    pub fn of_sent(&self) -> f64 {
        100.0 * self.end().dropped as f64 / self.end().unwanted as f64
    }

    /// Wanted requests that were answered, in percent of those sent.
    pub fn wanted_answered(&self) -> f64 {
        100.0 * self.end().answered as f64 / self.end().wanted as f64
    }

    /// Records that the filter read, in percent of those logged.
    pub fn records_read(&self) -> Option<f64> {
        let read = self.read? as f64;
        Some(100.0 * read / self.end().logged.max(1) as f64)
    }
}

/// The server with its control pipe.
struct Server {
    process: Process,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    fn start(
        net: &TestNet,
        scenario: &Scenario,
        dir: &Path,
        ring: &Path,
        instance: &Instance,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["flood-server", "--port", &PORT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        match scenario.filter {
            Filter::Oracle => {
                let millis = scenario.ban.as_millis().to_string();
                command.args(["--oracle", &instance.0, "--ban-time", &millis]);
            }
            Filter::Weir(Transport::Ring(way)) => {
                command.arg("--ring").arg(ring);
                command.args((way == Use::Overwrite).then_some("--overwrite"));
                command.args((way == Use::Message).then_some("--message"));
            }
            Filter::Weir(Transport::File) | Filter::Fail2ban => {
                command.arg("--log").arg(log(dir));
            }
        }
        let mut process = Process::start(net, command, &dir.join("server.stderr"))?;
        let pipes = process.child().inner();
        let ask = pipes.stdin.take().context("the server's input")?;
        let mut answers = BufReader::new(pipes.stdout.take().context("the server's output")?);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        if line != "ready\n" {
            let said = std::fs::read_to_string(dir.join("server.stderr")).unwrap_or_default();
            anyhow::bail!("the server does not start: {said}");
        }
        Ok(Self {
            process,
            ask: Some(ask),
            answers,
        })
    }

    fn served(&mut self) -> anyhow::Result<Served> {
        let ask = self.ask.as_mut().context("the server was ended")?;
        ask.write_all(b"\n").context("ask the server")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Served::parse(&line)
    }

    /// Ends it: what a ring's writer dropped last of all becomes known then.
    fn end(&mut self) -> anyhow::Result<()> {
        self.ask = None;
        self.process
            .child()
            .wait(DRAIN)?
            .context("the server does not end")?;
        Ok(())
    }

    /// Requests that found its sockets' buffers full, both families.
    fn overflowed(&self) -> anyhow::Result<u64> {
        let net = format!("/proc/{}/net", self.process.pid());
        let snmp = std::fs::read_to_string(format!("{net}/snmp"))?;
        let mut udp = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = udp.next().zip(udp.next()).context("Udp in snmp")?;
        let ipv4 = names
            .split(' ')
            .zip(values.split(' '))
            .find(|(name, _)| *name == "RcvbufErrors");
        let snmp6 = std::fs::read_to_string(format!("{net}/snmp6"))?;
        let ipv6 = snmp6
            .lines()
            .find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
        let (_, ipv4) = ipv4.context("RcvbufErrors in snmp")?;
        let ipv6 = ipv6.context("Udp6RcvbufErrors in snmp6")?;
        Ok(ipv4.trim().parse::<u64>()? + ipv6.trim().parse::<u64>()?)
    }
}

/// The running filter and its drop counters.
enum Running {
    Weir(Weir, DropCounters),
    Oracle(DropCounters),
    Fail2ban(Fail2ban),
}

impl Running {
    fn dropped(&self, net: &TestNet) -> anyhow::Result<u64> {
        match self {
            Self::Weir(_, counters) | Self::Oracle(counters) => Ok(counters.read()?.0),
            Self::Fail2ban(_) => Fail2ban::dropped(net),
        }
    }

    fn cpu_seconds(&self) -> Option<f64> {
        match self {
            Self::Weir(weir, _) => Some(weir.process.cpu_seconds()),
            Self::Oracle(_) => None,
            Self::Fail2ban(fail2ban) => Some(fail2ban.process.cpu_seconds()),
        }
    }
}

/// Tells the sender to stop, whatever happens.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a scenario; `weir` is the program.
pub fn run(scenario: &Scenario, weir: &Path) -> anyhow::Result<Outcome> {
    let dir = tempfile::Builder::new()
        .prefix("weir-bench-flood-")
        .tempdir()?;
    let dir = dir.path();
    std::fs::write(log(dir), "")?;
    let shared = tempfile::Builder::new()
        .prefix(&format!("weir-bench-flood-{}-", std::process::id()))
        .tempdir_in("/dev/shm")
        .context("a directory in /dev/shm")?;
    let ring = shared.path();
    let net = TestNet::new(scenario.families, scenario.clients, WANTED_CLIENTS)?;
    let instance = Instance::new();
    let counters = |instance: &Instance| instance.counters().context("the pinned counters");
    let mut server;
    let running = match scenario.filter {
        Filter::Weir(transport) => {
            let weir = Weir::start(&net, weir, dir, ring, &instance, transport, scenario.ban)?;
            server = Server::start(&net, scenario, dir, ring, &instance)?;
            Running::Weir(weir, counters(&instance)?)
        }
        Filter::Oracle => {
            server = Server::start(&net, scenario, dir, ring, &instance)?;
            Running::Oracle(counters(&instance)?)
        }
        Filter::Fail2ban => {
            let fail2ban = Fail2ban::start(&net, dir, scenario.ban)?;
            server = Server::start(&net, scenario, dir, ring, &instance)?;
            Running::Fail2ban(fail2ban)
        }
    };
    let second = (scenario.filter == Filter::Weir(Transport::Ring(Use::SecondReader)))
        .then(|| SecondReader::start(ring))
        .transpose()?;
    let cpu_filter = running.cpu_seconds();
    let cpu_server = server.process.cpu_seconds();
    let stop = AtomicBool::new(false);
    let mut samples = std::thread::scope(|scope| {
        let guard = Stop(&stop);
        let start = Instant::now();
        let sender = scope.spawn(|| net.send(scenario.rate, scenario.wanted, &stop));
        let mut samples = vec![Sample::default()];
        let mut due = INTERVAL;
        while start.elapsed() < scenario.length && !sender.is_finished() {
            interrupted()?;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            samples.push(look(&net, &mut server, &running, start)?);
            due = (due + INTERVAL).max(start.elapsed());
        }
        drop(guard);
        sender.join().expect("the sender does not panic")?;
        // What was sent since the last look is part of the run.
        samples.push(look(&net, &mut server, &running, start)?);
        anyhow::Ok(samples)
    })?;
    let cpu_filter = running.cpu_seconds().zip(cpu_filter).map(|(a, b)| a - b);
    let cpu_server = server.process.cpu_seconds() - cpu_server;

    let served = drain(&mut server)?;
    let overflowed = server.overflowed()?;
    server.end()?;
    let (mut bans, mut read, mut lost, mut alerts) = (None, None, None, Vec::new());
    match &running {
        Running::Weir(weir, _) => {
            let until = Instant::now() + DRAIN;
            let (mut jail, mut said) = weir.jail()?;
            while jail.lines + jail.lost < served.logged && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
                (jail, said) = weir.jail()?;
            }
            (bans, read, alerts) = (Some(jail.bans), Some(jail.lines), said);
            lost = matches!(scenario.filter, Filter::Weir(Transport::Ring(_))).then_some(jail.lost);
        }
        Running::Oracle(_) => bans = Some(served.bans),
        Running::Fail2ban(_) => {}
    }
    let second = second
        .map(|reader| reader.finish(served.logged, DRAIN))
        .transpose()?;
    let arrived = match &running {
        Running::Weir(_, counters) | Running::Oracle(counters) => {
            let (dropped, passed) = counters.read()?;
            Some(dropped + passed)
        }
        Running::Fail2ban(_) => None,
    };
    if let Some(last) = samples.last_mut() {
        // What the drain has brought in.
        last.received = served.unwanted;
        last.logged = served.logged;
        last.answered = net.clients().answered()?;
        last.overflowed = overflowed;
    }
    let sent: Vec<_> = samples.iter().map(|s| (s.at, s.unwanted)).collect();
    let ideal = ideal::dropped(&sent, scenario.clients, LIMIT, scenario.ban.as_secs_f64());
    for (sample, ideal) in samples.iter_mut().zip(ideal) {
        sample.ideal = ideal;
    }
    Ok(Outcome {
        name: scenario.name(),
        experiment: scenario.experiment,
        clients: scenario.clients,
        wanted_rate: scenario.wanted,
        ban_seconds: scenario.ban.as_secs_f64(),
        samples,
        arrived,
        bans,
        read,
        lost,
        second,
        cpu_filter,
        cpu_server,
        alerts,
    })
}

fn look(
    net: &TestNet,
    server: &mut Server,
    running: &Running,
    start: Instant,
) -> anyhow::Result<Sample> {
    let sent = net.clients().sent()?;
    let at = start.elapsed().as_secs_f64();
    let dropped = running.dropped(net)?;
    let served = server.served()?;
    Ok(Sample {
        at,
        unwanted: sent.unwanted,
        wanted: sent.wanted,
        dropped,
        received: served.unwanted,
        overflowed: server.overflowed()?,
        logged: served.logged,
        answered: net.clients().answered()?,
        ideal: 0.0,
    })
}

/// Waits until the server has taken what its sockets hold.
fn drain(server: &mut Server) -> anyhow::Result<Served> {
    let until = Instant::now() + DRAIN;
    let mut before = server.served()?;
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let now = server.served()?;
        if now == before || Instant::now() > until {
            return Ok(now);
        }
        before = now;
    }
}
