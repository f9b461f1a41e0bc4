//! The configuration: what was typed (`reader`), and what it means once
//! checked (`Config`). `weir check`, start and reload all come through
//! [`Config::load`], so they find the same mistakes.

pub(crate) mod allow;
mod backend_limits;
mod check;
mod decoy;
mod files;
mod filter;
mod geofence;
mod heads;
mod hook_preference;
mod interfaces;
mod journal;
mod list;
mod listeners;
pub mod manual;
mod ring;
mod watch;

pub use decoy::{DecoyConfig, Proof};
pub(crate) use interfaces::{all as interfaces, default_gateways, with_default_route};
pub(crate) use listeners::all as listeners;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::tz::TimeZone;
use weir_config::Part;
use weir_core::{
    Action, PrefixSet, Protocol, Scope,
    detect::Definition,
    policy::{self, JailLimits},
};
use weir_enforce::{
    Choice,
    hook_selection::{Advice, Calibration},
};
use weir_sinks::config::SinkConfig;

use crate::store::KeepHistory;

pub use filter::filter_of;
pub use geofence::GeofenceConfig;
pub use list::{ListAction, ListConfig, ListSource};
pub use watch::{OnlyIf, WatchConfig};
pub use weir_config::{ConfigError, ConfigErrors};

/// Where the configuration is by default.
pub const DEFAULT_PATH: &str = "/etc/weir/weir.toml";
/// Where the control socket is by default.
pub const DEFAULT_SOCKET: &str = "/run/weir/weir.sock";

/// A configuration that has been checked as a whole.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// Where and how bans are enforced.
    pub enforcement: Enforcement,
    /// Where the database and the lock are; a change needs a restart.
    pub state_dir: PathBuf,
    /// The control socket; a change needs a restart.
    pub socket: PathBuf,
    /// Prefixes that nobody may ban.
    pub allow: PrefixSet,
    /// What keeps the administrator from being locked out.
    pub lockout: Lockout,
    /// How much of the history of ended bans is kept.
    pub keep_history: KeepHistory,
    /// The enabled jails, in the order of the file.
    pub jails: Vec<JailConfig>,
    /// The decoy ports, if there are any.
    pub decoy: Option<DecoyConfig>,
    /// From which places flows may begin.
    pub geofence: Option<GeofenceConfig>,
    /// The enabled lists, in the order of the file.
    pub lists: Vec<ListConfig>,
    /// The filters that the file itself defines, by name.
    pub filters: BTreeMap<String, Definition>,
    /// The enabled watches, in the order of the file.
    pub watches: Vec<WatchConfig>,
    /// The enabled sinks, in the order of the file.
    pub sinks: Vec<SinkConfig>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

/// Where and how bans are enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// Interface names, some of which may not be there yet; with `auto` those
    /// that had a default route when the file was read, possibly none.
    pub interfaces: Vec<String>,
    /// Interfaces that get a default route later are added.
    pub auto: bool,
    /// Which backend.
    pub backend: Choice,
    /// What `auto` goes by.
    pub advice: Advice,
    /// The name that this daemon's pins carry.
    pub instance: String,
    /// Count, do not drop.
    pub observe: bool,
    /// The cap of the ban table.
    pub max_bans: usize,
    /// One IPv4 prefix length besides /32 that may be banned.
    pub ipv4_length: Option<u8>,
    /// The bpffs directory that holds all instances.
    pub pin_root: PathBuf,
}

/// Who is exempt besides the allow list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lockout {
    /// How long the peers of root logins stay exempt after they log out.
    pub grace: Duration,
    /// Are root's remote logins exempt at all?
    pub logins: bool,
}

/// One enabled jail.
#[derive(Debug, Clone, PartialEq)]
pub struct JailConfig {
    /// Its name.
    pub name: String,
    /// Which filter reads its lines.
    pub filter: String,
    /// Where its lines come from.
    pub source: SourceChoice,
    /// Trusted fields of its entries in the journal; none: those of the programs
    /// that its filter names.
    pub journal_match: Vec<(String, String)>,
    /// When it bans, and for how long.
    pub limits: JailLimits,
    /// What a ban covers.
    pub scope: Scope,
    /// What it does to packets.
    pub action: Action,
    /// Prefixes whose findings this jail ignores.
    pub ignore: PrefixSet,
    /// The zone of stamps that name none; the host's if `None`.
    pub time_zone: Option<TimeZone>,
}

/// Where a jail's lines come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceChoice {
    /// The systemd journal.
    Journal,
    /// The files that match these patterns.
    Files(Vec<String>),
    /// A shared-memory ring.
    Ring(RingChoice),
}

/// Which ring, and how it is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingChoice {
    /// The directory with its segments.
    pub directory: PathBuf,
    /// A user whose segments are read, besides root and the daemon's own.
    pub owner: Option<u32>,
    /// How many threads read it.
    pub workers: usize,
    /// MiB that its segments may take together.
    pub max_mib: u64,
}

impl fmt::Display for SourceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal => f.write_str("journal"),
            Self::Files(paths) => f.write_str(&paths.join(" ")),
            Self::Ring(ring) => write!(f, "ring {}", ring.directory.display()),
        }
    }
}

impl Config {
    /// Reads and checks `file` and the directories beside it (see [`files`]),
    /// asking this host about its interfaces and logs. A directory stands for
    /// its weir.toml.
    pub fn load(file: &Path) -> Result<Self, ConfigErrors> {
        let files = files::read(file)?;
        check::check(&Part::all(files), &Host)
    }

    /// Checks a text that stands for `file`, and nothing beside it.
    pub fn check(file: &Path, text: &str, host: &dyn HostFacts) -> Result<Self, ConfigErrors> {
        let files = vec![(file.to_owned(), text.to_owned(), None)];
        check::check(&Part::all(files), host)
    }

    /// Is nothing enabled that bans or denies?
    pub fn denies_nothing(&self) -> bool {
        self.jails.is_empty()
            && self.watches.is_empty()
            && self.decoy.is_none()
            && self.geofence.is_none()
            && !self.lists.iter().any(|l| l.action == ListAction::Deny)
    }

    /// The keys whose change only a restart can carry out.
    pub fn restart_needed(&self, new: &Self) -> Vec<&'static str> {
        let (a, b) = (&self.enforcement, &new.enforcement);
        [
            ("instance", a.instance != b.instance),
            ("ipv4_length", a.ipv4_length != b.ipv4_length),
            ("pin_root", a.pin_root != b.pin_root),
            ("state_dir", self.state_dir != new.state_dir),
            ("socket", self.socket != new.socket),
        ]
        .into_iter()
        .filter_map(|(key, changed)| changed.then_some(key))
        .collect()
    }
}

/// What the check has to ask this host; a test answers itself.
pub trait HostFacts {
    /// The names of its network interfaces.
    fn interfaces(&self) -> Vec<String>;
    /// Is one of them called so, or has this as an alternative name?
    fn has_interface(&self, name: &str) -> bool;
    /// Those with a default route, IPv4 or IPv6.
    fn default_route_interfaces(&self) -> Vec<String>;
    /// Is there a systemd journal, with something in it?
    fn has_journal(&self) -> bool;
    /// Is there such a file?
    fn has_file(&self, path: &str) -> bool;
    /// The last lines of a log, if it is there and can be read.
    fn log_end(&self, _path: &str) -> Option<Vec<u8>> {
        None
    }
    /// The number of the user of this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// Why nothing is read of this ring's directory, if it is there: others
    /// than root, the daemon's user and `owner` say what it is.
    fn ring_fault(&self, _directory: &Path, _owner: Option<u32>) -> Option<String> {
        None
    }
    /// How many processors it has.
    fn processors(&self) -> usize;
    /// The ports that somebody serves here, for others than this host itself.
    fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
        BTreeSet::new()
    }
    /// What `weir calibrate` measured here, or why that is not used.
    fn calibration(&self, _state_dir: &Path) -> Result<Option<Calibration>, String> {
        Ok(None)
    }
    /// The ports from which its own connections begin.
    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        32_768..=60_999
    }
}

/// The host that this program runs on.
pub struct Host;

impl HostFacts for Host {
    fn interfaces(&self) -> Vec<String> {
        interfaces::all()
    }
    fn has_interface(&self, name: &str) -> bool {
        interfaces::is_there(name)
    }
    fn default_route_interfaces(&self) -> Vec<String> {
        interfaces::with_default_route()
    }
    fn has_journal(&self) -> bool {
        journal::is_there()
    }
    fn has_file(&self, path: &str) -> bool {
        files::exists(Path::new(path))
    }
    fn log_end(&self, path: &str) -> Option<Vec<u8>> {
        files::log_end(Path::new(path)).ok()
    }
    fn user(&self, name: &str) -> Option<u32> {
        let user = nix::unistd::User::from_name(name).ok()??;
        Some(user.uid.as_raw())
    }
    fn ring_fault(&self, directory: &Path, owner: Option<u32>) -> Option<String> {
        weir_sources::ring_fault(directory, owner)
    }
    fn processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
    fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
        listeners::all()
    }
    fn calibration(&self, state_dir: &Path) -> Result<Option<Calibration>, String> {
        weir_calibrate::load(state_dir)
    }
    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        listeners::ephemeral()
    }
}

/// The pin directory and instance of a configuration, mistakes elsewhere in it
/// or not. Without a file at the usual place they are the usual ones.
///
/// # Errors
/// It cannot be read, or is no TOML, or does not say.
pub fn place_of(file: &Path) -> Result<(PathBuf, String), ConfigErrors> {
    let main = files::main_file(file);
    let mut tables = Vec::new();
    for file in std::iter::once(main.clone()).chain(files::fragments(&main)) {
        let text = match files::bytes(&file) {
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && file == Path::new(DEFAULT_PATH) =>
            {
                Vec::new()
            }
            text => text.map_err(|e| files::whole(&file, format!("cannot read: {e}")))?,
        };
        let text = String::from_utf8(text).map_err(|e| files::whole(&file, e.to_string()))?;
        let table = text.parse::<toml::Table>();
        tables.push(table.map_err(|e| files::whole(&file, e.message().to_owned()))?);
    }
    let text = |key: &str, usual: &str| match tables.iter().find_map(|table| table.get(key)) {
        None => Ok(usual.to_owned()),
        Some(toml::Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(files::whole(&main, format!("{key} is no text"))),
    };
    Ok((
        text("pin_root", weir_enforce::kernel::DEFAULT_ROOT)?.into(),
        text("instance", "default")?,
    ))
}

/// The socket that a configuration names, as far as it can be read.
pub fn socket_of(file: &Path) -> Option<PathBuf> {
    let file = files::main_file(file);
    let files = std::iter::once(file.clone()).chain(files::fragments(&file));
    files.filter_map(|file| socket_in(&file)).next()
}

fn socket_in(file: &Path) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(&files::bytes(file).ok()?).into_owned();
    let named = |text: &str| {
        let table: toml::Table = text.parse().ok()?;
        Some(PathBuf::from(table.get("socket")?.as_str()?))
    };
    named(&text).or_else(|| {
        // A mistake elsewhere in the file must not hide the daemon.
        text.lines()
            .take_while(|line| !line.trim_start().starts_with('['))
            .find_map(named)
    })
}

/// Reads `90`, `90s`, `10m`, `1h`, `7d`, `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    policy::parse_duration(text).ok()
}

/// One of those forms, rounded down to two units.
pub fn duration_text(time: Duration) -> String {
    policy::format_duration(time)
}

#[cfg(test)]
mod tests;
