//! A site of `weir options probe`: where it is, and the agent that runs there.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::IpAddr,
    path::Path,
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use weir_core::text::escape;

use crate::{
    agent_protocol::{
        HexBytes, ProtocolError, Request, Response, VERSION, read_message, write_message,
    },
    result_file::{MAX_LABEL, is_label},
    site_address::{Claim, check_told, refusals, source},
};

/// The time in which an agent answers; ssh asks for nothing, so it takes no longer.
const ANSWER: Duration = Duration::from_secs(30);
/// Characters of an agent's message that are shown.
const MESSAGE: usize = 300;
/// Lines of what a site's program, or ssh, says beside its answers that are shown.
const MAX_SAID: usize = 50;
/// Bytes of one of these lines; what is behind them is the next line.
const MAX_SAID_LINE: u64 = 2048;
/// So long the last of these lines are waited for when the program has ended: what it has started
/// may live on with its standard error.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The way to a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// A network namespace of this host, by name.
    Namespace(String),
    /// A host that ssh reaches, as ssh is given it.
    Ssh(String),
}

impl Reach {
    /// The address of a host that ssh is given by its address.
    fn address(&self) -> Option<IpAddr> {
        let Self::Ssh(host) = self else {
            return None;
        };
        let host = host.rsplit_once('@').map_or(&**host, |(_, host)| host);
        let host = host.strip_prefix('[').unwrap_or(host);
        host.strip_suffix(']').unwrap_or(host).parse().ok()
    }
}

/// A site as it is named on the command line: `[LABEL=]netns:NAME[/ADDRESS[,ADDRESS]]` or
/// `[LABEL=]ssh:HOST[/ADDRESS[,ADDRESS]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteSpec {
    /// The name in results.
    pub label: String,
    /// Where the site is.
    pub reach: Reach,
    /// The addresses by which the others reach it. If none is given, those that it has itself:
    /// that by which ssh reaches it before others.
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
    /// The addresses that the administrator named; others only its agent told.
    named: Vec<IpAddr>,
    requests: SyncSender<Vec<u8>>,
    answers: Receiver<Result<Response, ProtocolError>>,
    _child: AgentProcess,
}

/// An agent's process, or ssh's: it ends with this.
struct AgentProcess {
    child: Child,
    /// Ends when all is shown that it has said beside its answers.
    said: Option<Receiver<()>>,
}

impl AgentProcess {
    /// A process whose standard error is shown line by line, as this site's.
    fn new(mut child: Child, label: &str, program: &'static str) -> io::Result<Self> {
        let Some(said) = child.stderr.take() else {
            return Ok(Self { child, said: None });
        };
        let mut process = Self { child, said: None };
        let (is_open, ends) = sync_channel::<()>(0);
        let label = label.to_owned();
        thread::Builder::new()
            .name("weir-site-said".into())
            .spawn(move || {
                // Nobody is left to tell if it fails.
                let _ = show_said(&label, program, said, io::stderr());
                drop(is_open);
            })?;
        process.said = Some(ends);
        Ok(process)
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(said) = &self.said {
            let _ = said.recv_timeout(LAST_WORDS);
        }
    }
}

/// Shows what a site's program says beside its answers, which is an attacker's if the site is:
/// escaped, and only the first lines. The rest is read too, for the program would wait.
fn show_said(label: &str, program: &str, said: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut said = BufReader::new(said);
    let mut lines = 0;
    loop {
        let mut line = Vec::new();
        if (&mut said)
            .take(MAX_SAID_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        let text: String = text.trim_end().chars().take(MESSAGE).collect();
        let shown = match lines {
            0..MAX_SAID => escape(&text),
            MAX_SAID => "what else it says is left out".to_owned(),
            _ => continue,
        };
        lines += 1;
        // In one piece: other sites say something, too.
        to.write_all(format!("weir: site {label}: {program}: {shown}\n").as_bytes())?;
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
        let child = start(spec, options).map_err(refused)?;
        let mut site = Self::of(label, spec.addresses.clone(), child)?;
        match site.ask(&Request::Hello { version: VERSION }, Duration::ZERO)? {
            Response::Hello { version, addresses } if version == VERSION => {
                site.own = check_told(addresses).map_err(refused)?;
                if site.addresses.is_empty() {
                    site.addresses = site.own.clone();
                    site.named = spec.reach.address().into_iter().collect();
                    site.addresses
                        .sort_by_key(|address| !site.named.contains(address));
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
        let pipes = (child.child.stdin.take(), child.child.stdout.take());
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
            named: addresses.clone(),
            addresses,
            own: Vec::new(),
            requests,
            answers,
            _child: child,
        })
    }

    /// Addresses to which others send because its agent said so, and nobody named them.
    pub fn told_addresses(&self) -> Vec<IpAddr> {
        let both = [true, false].into_iter().filter(|v4| self.is_told(*v4));
        both.filter_map(|is_v4| self.address(is_v4)).collect()
    }

    /// Whether only its agent says that others reach it by its address of this family.
    pub fn is_told(&self, is_v4: bool) -> bool {
        let address = self.address(is_v4);
        address.is_some_and(|address| !self.named.contains(&address))
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

    /// The addresses that it takes for its own, in these families.
    fn claims(&self, families: &[bool]) -> Vec<Claim> {
        let of = |is_v4: &bool| {
            let reached_by = self.address(*is_v4).map(|address| Claim {
                address,
                is_reached: true,
                is_told: self.is_told(*is_v4),
            });
            let source = self.source(*is_v4).map(|address| Claim {
                address,
                is_reached: false,
                is_told: !self.named.contains(&address),
            });
            reached_by.into_iter().chain(source)
        };
        families.iter().flat_map(of).collect()
    }

    /// The sites of which an address is another one's as well, by their places: what is measured
    /// to the one would count for the other. Where the administrator named the address for one,
    /// it is refused for those whose agents tell it; else for all.
    pub fn shared_addresses(sites: &[Option<Self>], families: &[bool]) -> Vec<(usize, SiteError)> {
        let all: Vec<_> = sites
            .iter()
            .map(|site| match site {
                Some(site) => (&*site.label, site.claims(families)),
                None => ("", Vec::new()),
            })
            .collect();
        let refused = refusals(&all).into_iter().map(|(at, why)| {
            let label = all[at].0.to_owned();
            (at, SiteError { label, why })
        });
        refused.collect()
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

fn start(spec: &SiteSpec, options: &AgentOptions) -> Result<AgentProcess, String> {
    // What it says reaches the administrator's terminal as text only.
    let piped = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
    };
    let shown = |child, program| {
        AgentProcess::new(child, &spec.label, program)
            .map_err(|error| format!("cannot start a thread: {error}"))
    };
    match &spec.reach {
        Reach::Namespace(name) => {
            let this = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
            let mut command = Command::new(this);
            command.args(["options", "agent"]);
            piped(&mut command);
            let spawned = spawn_in(name, command)
                .map_err(|error| format!("cannot start an agent in namespace {name}: {error}"));
            shown(spawned?, "agent")
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
            let spawned = command.spawn();
            let spawned = spawned.map_err(|error| format!("cannot start ssh: {error}"));
            shown(spawned?, "ssh")
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
    fn an_address_is_named_behind_the_slash_or_as_that_of_ssh() {
        for (text, wanted) in [
            ("ssh:root@192.0.2.1", Some("192.0.2.1")),
            ("ssh:2001:db8::1", Some("2001:db8::1")),
            ("east=ssh:root@[2001:db8::1]", Some("2001:db8::1")),
            ("east=ssh:root@east.example", None),
            ("east=netns:east", None),
        ] {
            let spec: SiteSpec = text.parse().unwrap();
            let wanted = wanted.map(|address| address.parse().unwrap());
            assert_eq!(spec.reach.address(), wanted, "{text}");
        }
    }

    #[test]
    fn what_a_site_says_is_shown_as_text_and_not_for_ever() {
        let shown = |said: &[u8]| {
            let mut to = Vec::new();
            show_said("east", "ssh", said, &mut to).unwrap();
            String::from_utf8(to).unwrap()
        };
        assert_eq!(
            shown(b"\x1b]0;owned\x07\x1b[2Jall pairs pass\r\n\xff\xe2\x80\xae"),
            "weir: site east: ssh: \\u{1b}]0;owned\\u{7}\\u{1b}[2Jall pairs pass\nweir: site east: ssh: \u{fffd}\\u{202e}\n"
        );
        let many = shown(&b"a line\n".repeat(1000));
        assert_eq!(many.lines().count(), MAX_SAID + 1);
        assert!(many.ends_with("ssh: what else it says is left out\n"));
        let long = shown(&[b'x'; 100_000]);
        assert!(long.lines().all(|line| line.len() < 350), "{long}");
    }

    #[test]
    fn the_last_words_of_a_program_are_shown_and_what_it_leaves_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut left = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut left)
            .unwrap();
        let process = AgentProcess::new(child, "east", "ssh").unwrap();
        // It holds the standard error open.
        drop(process);
        let killed = Command::new("kill").arg(left.trim()).status().unwrap();
        assert!(killed.success());
    }

    #[test]
    fn a_site_that_reads_nothing_holds_nobody_up() {
        let mut command = Command::new("sleep");
        command.arg("600");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let child = AgentProcess::new(child, "west", "agent").unwrap();
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
