//! What is measured: the thesis's experiments, shortened to fit the time.

use std::{fmt, time::Duration};

use weir_bpf::clients::Families;

/// Unwanted requests a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// A fixed number of requests a second.
    PerSecond(u32),
    /// As many requests a second as the machine can send.
    Highest,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerSecond(n) if n % 1_000_000 == 0 => write!(f, "{}M", n / 1_000_000),
            Self::PerSecond(n) => write!(f, "{}k", n / 1000),
            Self::Highest => f.write_str("max"),
        }
    }
}

/// How refusals get from the server to the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A log file.
    File,
    /// A shared-memory ring, a segment for each of the server's threads.
    Ring(Use),
}

/// The ways to use a ring, each with one difference from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The lines that the file would get, read by one worker; a full segment
    /// drops what comes.
    Plain,
    /// A full segment overwrites its oldest records.
    Overwrite,
    /// Somebody else reads everything, too.
    SecondReader,
    /// A worker for each segment, which reads the other's when it has nothing
    /// of its own.
    Stealing,
    /// The message alone, matched as a whole: no stamp, host and tag to get
    /// past. The thesis's variant without regular expressions; weir has none.
    Message,
}

/// The filter in front of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// `weir daemon`.
    Weir(Transport),
    /// The server itself, without a log: what `weir` is compared with.
    Oracle,
    /// Fail2ban, with a log file.
    Fail2ban,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weir(Transport::File) => "file",
            Self::Weir(Transport::Ring(Use::Plain)) => "ring",
            Self::Weir(Transport::Ring(Use::Overwrite)) => "ring-overwrite",
            Self::Weir(Transport::Ring(Use::SecondReader)) => "ring-second-reader",
            Self::Weir(Transport::Ring(Use::Stealing)) => "ring-stealing",
            Self::Weir(Transport::Ring(Use::Message)) => "ring-message",
            Self::Oracle => "oracle",
            Self::Fail2ban => "fail2ban",
        })
    }
}

/// What one run sends, and through which filter.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The experiment of the thesis; `None`: an oracle run, which belongs to none.
    pub experiment: Option<u8>,
    /// Which program filters.
    pub filter: Filter,
    /// The clients' addresses.
    pub families: Families,
    /// How many unwanted requests are sent.
    pub rate: Rate,
    /// The number of clients that send unwanted requests.
    pub clients: u32,
    /// Wanted requests a second.
    pub wanted: u32,
    /// How long requests are sent.
    pub length: Duration,
    /// How long a ban lasts.
    pub ban: Duration,
}

impl Scenario {
    /// The scenario's name in tables, files and `--only`.
    pub fn name(&self) -> String {
        match self.filter {
            Filter::Fail2ban => format!("{} {} {} clients", self.filter, self.rate, self.clients),
            _ => format!("{} {} {}", self.filter, self.family(), self.rate),
        }
    }

    /// The oracle's run on the same requests.
    pub fn oracle(&self) -> String {
        Self {
            filter: Filter::Oracle,
            ..self.clone()
        }
        .name()
    }

    /// The word for its families.
    pub fn family(&self) -> &'static str {
        match self.families {
            Families::Ipv4 => "ipv4",
            Families::Ipv6 => "ipv6",
            Families::Both => "mixed",
        }
    }
}

const WANTED: u32 = 10_000;
/// Clients that send wanted requests.
pub const WANTED_CLIENTS: u32 = 254;
const CLIENTS: u32 = 65_534;

/// All runs, oracles first. Without other orders a run at 100 k pps has 6 s
/// bans, for each client's third request comes only after 2–4 s; the others
/// have 5 s: three cycles. Being late costs six times of what it costs with the
/// thesis's 30 s.
///
/// The ring's features are measured as in the thesis with clients of both
/// families only.
pub fn all(length: Option<Duration>, ban: Option<Duration>) -> Vec<Scenario> {
    let seconds = |given: Option<Duration>, n| given.unwrap_or(Duration::from_secs(n));
    let ring = |way| Filter::Weir(Transport::Ring(way));
    let families = [Families::Ipv4, Families::Ipv6, Families::Both];
    let rates = [
        Rate::PerSecond(100_000),
        Rate::PerSecond(1_000_000),
        Rate::Highest,
    ];
    let mut all = Vec::new();
    for (experiment, filter) in [
        (None, Filter::Oracle),
        (Some(2), Filter::Weir(Transport::File)),
        (Some(3), ring(Use::Plain)),
        (Some(4), ring(Use::Overwrite)),
        (Some(4), ring(Use::SecondReader)),
        (Some(4), ring(Use::Stealing)),
        (Some(4), ring(Use::Message)),
    ] {
        for rate in rates {
            let slow = rate == rates[0];
            for families in families {
                if experiment == Some(4) && families != Families::Both {
                    continue;
                }
                let double = if families == Families::Both { 2 } else { 1 };
                all.push(Scenario {
                    experiment,
                    filter,
                    families,
                    rate,
                    clients: CLIENTS * double,
                    wanted: WANTED,
                    length: seconds(length, if slow { 20 } else { 15 }),
                    ban: seconds(ban, if slow { 6 } else { 5 }),
                });
            }
        }
    }
    for (rate, clients, wanted) in [(1_000_000, 254, 50_000), (10_000, 1016, 10_000)] {
        all.push(Scenario {
            experiment: Some(1),
            filter: Filter::Fail2ban,
            families: Families::Ipv4,
            rate: Rate::PerSecond(rate),
            clients,
            wanted,
            length: seconds(length, 35),
            ban: seconds(ban, 10),
        });
    }
    all
}
