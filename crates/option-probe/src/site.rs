//! A site of `weir options probe`: where it is, and the agent that runs there.

use std::{
    fs::File,
    io::{self, BufReader, Write},
    net::IpAddr,
    path::Path,
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};

use crate::{
    agent_protocol::{
        HexBytes, ProtocolError, Request, Response, VERSION, read_message, write_message,
    },
    result_file::{MAX_LABEL, is_label},
    site_address::{check_told, source},
};

/// The time in which an agent answers; ssh asks for nothing, so it takes no longer.
const ANSWER: Duration = Duration::from_secs(30);
/// Characters of an agent's message that are shown.
const MESSAGE: usize = 300;

/// The way to a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// A network namespace of this host, by name.
    Namespace(String),
    /// A host that ssh reaches, as ssh is given it.
    Ssh(String),
}

/// A site as it is named on the command line: `[LABEL=]netns:NAME[/ADDRESS[,ADDRESS]]` or
/// `[LABEL=]ssh:HOST[/ADDRESS[,ADDRESS]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteSpec {
    /// The name in results.
    pub label: String,
    /// Where the site is.
    pub reach: Reach,
    /// The addresses by which the others reach it; those that it has itself, if none is given.
    pub addresses: Vec<IpAddr>,
}

impl FromStr for SiteSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (label, rest) = match text.split_once('=') {
            Some((label, rest)) => (Some(label), rest),
            None => (None, text),
        };
        let (place, addresses) = match rest.split_once('/') {
            Some((place, addresses)) => (place, Some(addresses)),
            None => (rest, None),
        };
        let (kind, name) = place.split_once(':').unwrap_or((place, ""));
        let is_plain =
            !name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace);
        let reach = match kind {
            "netns" if is_plain && name != "." && name != ".." => Reach::Namespace(name.to_owned()),
            "ssh" if is_plain => Reach::Ssh(name.to_owned()),
            _ => {
                return Err(
                    "allowed: [LABEL=]netns:NAME and [LABEL=]ssh:HOST, with /ADDRESS[,ADDRESS] behind"
                        .into(),
                );
            }
        };
        let label = label.unwrap_or(name).to_owned();
        if !is_label(&label) {
            return Err(format!(
                "{label:?} is no name for results: give it one by LABEL=, of up to {MAX_LABEL} letters, digits and . _ - @ :"
            ));
        }
        let addresses = addresses.map_or(Ok(Vec::new()), |list| {
            let read = |one: &str| {
                one.parse::<IpAddr>()
                    .map_err(|_| format!("{one:?} is no address"))
            };
            list.split(',').map(read).collect()
        })?;
        Ok(Self {
            label,
            reach,
            addresses,
        })
    }
}

/// How agents are started.
#[derive(Debug, Clone, Default)]
pub struct AgentOptions {
    /// The command that a remote shell runs.
    pub remote_command: String,
    /// Another configuration file of ssh.
    pub ssh_config: Option<std::path::PathBuf>,
}

/// Why a site is of no use.
#[derive(Debug, thiserror::Error)]
#[error("site {label}: {why}")]
pub struct SiteError {
    label: String,
    why: String,
}

impl SiteError {
    /// The name of the site in results.
    pub fn label(&self) -> &str {
        &self.label
    }
}

/// What arrived at a site in a run.
pub struct Arrived {
    /// Packets of the run, each with its time there, in nanoseconds since 1970.
    pub packets: Vec<(u64, Vec<u8>)>,
    /// Packets of this run or others that had no room in the agent's socket.
    pub lost: u64,
}

/// A site with its agent; the agent ends with it.
pub struct Site {
    /// The name in results.
    pub label: String,
    /// By which others reach it.
    addresses: Vec<IpAddr>,
    /// Addresses that its host has itself: behind a NAT, others.
    own: Vec<IpAddr>,
    /// Whether its agent told by which addresses others reach it, and nobody named any.
    is_told: bool,
    requests: SyncSender<Vec<u8>>,
    answers: Receiver<Result<Response, ProtocolError>>,
    _child: AgentProcess,
}

/// An agent's process, or ssh's: it ends with this.
struct AgentProcess(Child);

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    /// Starts the agent there.
    ///
    /// # Errors
    /// It does not start, is another version, or has no address.
    pub fn open(spec: &SiteSpec, options: &AgentOptions) -> Result<Self, SiteError> {
        let label = spec.label.clone();
        let refused = |why: String| SiteError {
            label: spec.label.clone(),
            why,
        };
        let child = start(&spec.reach, options).map_err(refused)?;
        let mut site = Self::of(label, spec.addresses.clone(), child)?;
        match site.ask(&Request::Hello { version: VERSION }, Duration::ZERO)? {
            Response::Hello { version, addresses } if version == VERSION => {
                site.own = check_told(addresses).map_err(refused)?;
                if site.addresses.is_empty() {
                    site.addresses = site.own.clone();
                    site.is_told = true;
                }
            }
            other => return Err(site.unexpected(&other)),
        }
        if site.addresses.is_empty() {
            return Err(refused("it has no address: give it one behind /".into()));
        }
        Ok(site)
    }

    /// A site whose agent was started. What it is asked is written by a thread, and its answers
    /// are read by another: an agent that hangs, and reads nothing, holds nobody up.
    fn of(
        label: String,
        addresses: Vec<IpAddr>,
        mut child: AgentProcess,
    ) -> Result<Self, SiteError> {
        let refused = |why: String| SiteError {
            label: label.clone(),
            why,
        };
        let pipes = (child.0.stdin.take(), child.0.stdout.take());
        let (Some(mut input), Some(output)) = pipes else {
            return Err(refused("its agent has no pipes".into()));
        };
        let no_thread = |error| refused(format!("cannot start a thread: {error}"));
        // One answer at a time: an agent that says more waits.
        let (send, answers) = sync_channel(1);
        thread::Builder::new()
            .name("weir-site".into())
            .spawn(move || {
                let mut output = BufReader::new(output);
                loop {
                    let answer = read_message::<Response>(&mut output);
                    let is_last = answer.is_err();
                    if send.send(answer).is_err() || is_last {
                        return;
                    }
                }
            })
            .map_err(no_thread)?;
        let (requests, to_write) = sync_channel::<Vec<u8>>(1);
        thread::Builder::new()
            .name("weir-site-ask".into())
            .spawn(move || {
                // An agent that has ended is noticed by its answers.
                for request in to_write {
                    if input.write_all(&request).is_err() {
                        return;
                    }
                }
            })
            .map_err(no_thread)?;
        Ok(Self {
            label,
            addresses,
            own: Vec::new(),
            is_told: false,
            requests,
            answers,
            _child: child,
        })
    }

    /// Addresses to which others send because its agent said so: the first of each family;
    /// none, if the site was named with addresses.
    pub fn told_addresses(&self) -> Vec<IpAddr> {
        let both = [true, false].into_iter().filter(|_| self.is_told);
        both.filter_map(|is_v4| self.address(is_v4)).collect()
    }

    /// The address of a family by which others reach it.
    pub fn address(&self, is_v4: bool) -> Option<IpAddr> {
        let mut all = self.addresses.iter().copied();
        all.find(|address| address.is_ipv4() == is_v4)
    }

    /// The address of a family from which it sends: that by which others reach it, if its host
    /// has it; else one that its host has. Behind a NAT, packets from the outer address would
    /// be spoofed ones.
    pub fn source(&self, is_v4: bool) -> Option<IpAddr> {
        source(&self.addresses, &self.own, is_v4)
    }

    fn error(&self, why: impl Into<String>) -> SiteError {
        SiteError {
            label: self.label.clone(),
            why: why.into(),
        }
    }

    fn unexpected(&self, answer: &Response) -> SiteError {
        self.error(match answer {
            // Shown escaped, as all errors.
            Response::Error { message } => message.chars().take(MESSAGE).collect(),
            _ => "its agent answers another question".to_owned(),
        })
    }

    /// Asks the agent, which may take so much longer.
    fn ask(&mut self, request: &Request, longer: Duration) -> Result<Response, SiteError> {
        self.ask_for(request, ANSWER + longer)
    }

    /// Asks the agent, which may take so long, to read as well as to answer.
    fn ask_for(&mut self, request: &Request, most: Duration) -> Result<Response, SiteError> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, request)
            .map_err(|error| self.error(format!("a request: {error}")))?;
        match self.requests.try_send(bytes) {
            // That it has ended is its last answer.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => return Err(self.error("its agent reads no requests")),
        }
        match self.answers.recv_timeout(most) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.error(format!("its agent: {error}"))),
            Err(RecvTimeoutError::Timeout) => Err(self.error("its agent does not answer")),
            Err(RecvTimeoutError::Disconnected) => Err(self.error("its agent: it has ended")),
        }
    }

    /// Has the agent keep the packets of a run that arrive.
    ///
    /// # Errors
    /// The agent fails.
    pub fn listen(&mut self, run: u32) -> Result<(), SiteError> {
        match self.ask(&Request::Listen { run }, Duration::ZERO)? {
            Response::Listening {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the agent send packets; those that its kernel refused, and the first
    /// error.
    ///
    /// # Errors
    /// The agent fails.
    pub fn send(
        &mut self,
        packets: Vec<HexBytes>,
        gap: Duration,
    ) -> Result<(Vec<usize>, Option<String>), SiteError> {
        let longer = gap * packets.len() as u32;
        let gap_us = gap.as_micros() as u32;
        match self.ask(&Request::Send { packets, gap_us }, longer)? {
            Response::Sent { refused, error } => {
                Ok((refused, error.map(|e| e.chars().take(MESSAGE).collect())))
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// What arrived since the agent began to keep packets.
    ///
    /// # Errors
    /// The agent fails.
    pub fn collect(&mut self) -> Result<Arrived, SiteError> {
        match self.ask(&Request::Collect {}, Duration::ZERO)? {
            Response::Arrived {
                packets,
                beyond: 0,
                lost,
            } => {
                let packets = packets.into_iter();
                let packets = packets.map(|captured| (captured.time_ns, captured.packet.0));
                Ok(Arrived {
                    packets: packets.collect(),
                    lost,
                })
            }
            Response::Arrived { beyond, .. } => Err(self.error(format!(
                "{beyond} more packets arrived than can be kept: something repeats them"
            ))),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// Starts a program in a network namespace, by a thread that has entered it.
fn spawn_in(name: &str, mut command: Command) -> io::Result<Child> {
    let namespace = File::open(Path::new("/run/netns").join(name))?;
    let entered = thread::spawn(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        command.spawn()
    });
    match entered.join() {
        Ok(child) => child,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn start(reach: &Reach, options: &AgentOptions) -> Result<AgentProcess, String> {
    let piped = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    };
    match reach {
        Reach::Namespace(name) => {
            let this = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
            let mut command = Command::new(this);
            command.args(["options", "agent"]);
            piped(&mut command);
            let spawned = spawn_in(name, command);
            spawned
                .map(AgentProcess)
                .map_err(|error| format!("cannot start an agent in namespace {name}: {error}"))
        }
        Reach::Ssh(host) => {
            let mut command = Command::new("ssh");
            if let Some(file) = &options.ssh_config {
                command.arg("-F").arg(file);
            }
            // Nobody is there to be asked, and a pipe is wanted, no terminal.
            command.args(["-T", "-oBatchMode=yes", "-oConnectTimeout=10", "--"]);
            command.args([host, &options.remote_command]);
            piped(&mut command);
            match command.spawn() {
                Ok(child) => Ok(AgentProcess(child)),
                Err(error) => Err(format!("cannot start ssh: {error}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_named_by_how_they_are_reached() {
        let read = |text: &str| text.parse::<SiteSpec>();
        let west = read("netns:west").unwrap();
        assert_eq!((&*west.label, west.addresses.len()), ("west", 0));
        let east = read("frankfurt=ssh:root@192.0.2.1/192.0.2.7,2001:db8::7").unwrap();
        assert_eq!(east.label, "frankfurt");
        assert_eq!(east.reach, Reach::Ssh("root@192.0.2.1".into()));
        assert_eq!(east.addresses.len(), 2);
        for (text, said) in [
            ("west", "allowed: [LABEL=]netns:NAME"),
            ("ssh:", "allowed: "),
            ("ssh:-oProxyCommand=x", "allowed: "),
            ("a=ssh:-x", "allowed: "),
            ("netns:..", "allowed: "),
            ("netns:a b", "allowed: "),
            ("netns:west/192.0.2", "\"192.0.2\" is no address"),
            ("a b=netns:west", "\"a b\" is no name for results"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_site_that_reads_nothing_holds_nobody_up() {
        let mut command = Command::new("sleep");
        command.arg("600");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = AgentProcess(command.spawn().unwrap());
        let mut site = Site::of("west".into(), Vec::new(), child).unwrap();
        // More than a pipe holds.
        let packets = vec![HexBytes(vec![0x45; 600]); 4096];
        let request = Request::Send { packets, gap_us: 0 };
        let mut error = || {
            let asked = site.ask_for(&request, Duration::from_millis(20));
            asked.unwrap_err().to_string()
        };
        assert_eq!(error(), "site west: its agent does not answer");
        error();
        assert_eq!(error(), "site west: its agent reads no requests");
    }
}
