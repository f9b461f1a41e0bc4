//! The daemon's configuration: the sections that its features read, each beside
//! its feature, put together ([`Config`]), and the questions that involve several
//! of them. `weir check`, start and reload all come through [`Config::load`], so
//! they find the same mistakes. How files and keys are read is `weir_config`'s.

mod added;
mod backend_limits;
mod check;
mod host_warnings;
pub mod manual;
mod tarpit_overlap;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use weir_config::{ConfigErrors, Document, Part, files};
use weir_core::{PrefixSet, balance::acl::Acl, detect::Definition, geofence::Fence};
use weir_identity::config::AppConfig;
use weir_sinks::config::SinkConfig;
use weir_token::config::TokenConfig;

use crate::{
    access::{
        exemptions::config::Lockout,
        geofence::GeofenceConfig,
        lists::config::{ListAction, ListConfig},
    },
    balance::{
        added::Added,
        config::{BalanceConfig, CheckKind, PoolConfig},
    },
    ban_log,
    decoy::{config::DecoyConfig, tarpit::TarpitConfig},
    fail2ban::Fail2ban,
    host::{Host, HostFacts},
    interfaces::config::Enforcement,
    jails::JailConfig,
    store::KeepHistory,
    vips::config::{VipsConfig, VrrpConfig},
    watch::config::WatchConfig,
};

pub use added::{NotInForce, WithAdded};

/// Where the configuration is by default.
pub const DEFAULT_PATH: &str = "/etc/weir/weir.toml";
/// Where database and lock are unless the configuration says otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/weir";
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
    /// Where programs that speak Fail2ban's protocol are answered; a change needs a
    /// restart.
    pub fail2ban_socket: Option<PathBuf>,
    /// Prefixes that nobody may ban.
    pub allow: PrefixSet,
    /// What keeps the administrator from being locked out.
    pub lockout: Lockout,
    /// How much of the history of ended bans is kept.
    pub keep_history: KeepHistory,
    /// The enabled jails, in the order of the file.
    pub jails: Vec<JailConfig>,
    /// The Fail2ban configuration whose jails are run as they are, if any.
    pub fail2ban: Option<Fail2ban>,
    /// The decoy ports, if there are any.
    pub decoy: Option<DecoyConfig>,
    /// The load balancer: interface, pools and virtual addresses.
    pub balance: Option<BalanceConfig>,
    /// How many threads the proxy has, if that is said, whether there is a pool for it yet or
    /// not; a change needs a restart while there is.
    pub proxy_threads: Option<usize>,
    /// Virtual addresses that one of several hosts has.
    pub routers: Vec<VrrpConfig>,
    /// The tarpit ports, if there are any.
    pub tarpit: Option<TarpitConfig>,
    /// The geofence: the places from which flows may begin.
    pub geofence: Option<GeofenceConfig>,
    /// The enabled lists, in the order of the file.
    pub lists: Vec<ListConfig>,
    /// The filters that the file itself defines, by name.
    pub filters: BTreeMap<String, Definition>,
    /// The enabled watches, in the order of the file.
    pub watches: Vec<WatchConfig>,
    /// Rules about programs, from `[app]`.
    pub app: Option<AppConfig>,
    /// Which connections are signed, and which ports want tokens.
    pub token: Option<TokenConfig>,
    /// The enabled sinks, in the order of the file.
    pub sinks: Vec<SinkConfig>,
    /// What commands have added to the pools.
    pub added: WithAdded,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads and checks `file` and the directories beside it (see [`files`]),
    /// asking this host about its interfaces and logs. A directory stands for
    /// its weir.toml.
    pub fn load(file: &Path) -> Result<Self, ConfigErrors> {
        let files = files::read(file)?;
        check::check(&Part::all(files), &Host)
    }

    /// Checks the configuration as it would be if a file of its conf.d had this text; `None`: if
    /// it were not there.
    ///
    /// # Errors
    /// There are mistakes in it.
    pub fn load_with_file(
        main: &Path,
        file: &Path,
        text: Option<&str>,
    ) -> Result<Self, ConfigErrors> {
        let mut files = files::read(main)?;
        files.retain(|(path, ..)| path != file);
        if let Some(text) = text {
            let is_before = |path: &Path| path.parent() == file.parent() && path < file;
            let others = files[1..].iter();
            let at = 1 + others.take_while(|(path, ..)| is_before(path)).count();
            files.insert(at, (file.to_owned(), text.to_owned(), None));
        }
        check::check(&Part::all(files), &Host)
    }

    /// The configuration with the pools and reals that commands have added, as far as they can be
    /// in force beside the files.
    ///
    /// # Errors
    /// There are mistakes in the files.
    pub fn load_with_added(file: &Path) -> Result<Self, ConfigErrors> {
        let config = Self::load(file)?;
        let added = Added::read(&config.state_dir);
        Ok(config.with_added(added, &Host))
    }

    /// Checks a text that stands for `file`, and nothing beside it.
    pub fn check(file: &Path, text: &str, host: &dyn HostFacts) -> Result<Self, ConfigErrors> {
        let files = vec![(file.to_owned(), text.to_owned(), None)];
        check::check(&Part::all(files), host)
    }

    /// Is nothing enabled that bans or denies? Jails that only notify do not.
    pub fn denies_nothing(&self) -> bool {
        let mut jails = self.jails.iter();
        jails.all(|jail| !jail.action.denies_packets()) && self.denies_by_jails_only()
    }

    /// Is anything enabled that bans or denies addresses, which takes an interface?
    pub fn denies_addresses(&self) -> bool {
        let mut jails = self.jails.iter();
        let mut lists = self.lists.iter();
        jails.any(|jail| jail.action.denies_packets())
            || !self.watches.is_empty()
            || self.decoy.is_some()
            || self.tarpit.is_some()
            || self.geofence.is_some()
            || lists.any(|list| list.action == ListAction::Deny)
    }

    /// Is there nobody to ban or deny but the jails?
    pub fn denies_by_jails_only(&self) -> bool {
        self.watches.is_empty()
            && self.decoy.is_none()
            && self.tarpit.is_none()
            && self.geofence.is_none()
            && self.app.is_none()
            && self.token.is_none()
            && !self.lists.iter().any(|l| l.action == ListAction::Deny)
    }

    /// Enabled jails of Fail2ban's that cannot run; each is an alert.
    pub fn jails_that_cannot_run(&self) -> usize {
        self.fail2ban.as_ref().map_or(0, |found| found.broken.len())
    }

    /// Does the proxy of a pool receive at a port that takes a capability?
    pub fn has_privileged_proxy_port(&self) -> bool {
        let mut pools = self.balance.iter().flat_map(|balance| &balance.pools);
        pools.any(PoolConfig::has_privileged_proxy_port)
    }

    fn proxies(&self) -> bool {
        let mut pools = self.balance.iter().flat_map(|balance| &balance.pools);
        pools.any(PoolConfig::is_proxied)
    }

    /// The rules of the geofence.
    pub fn fences(&self) -> Vec<Fence> {
        let geofence = self.geofence.as_ref();
        geofence.map_or_else(Vec::new, |geofence| geofence.fences.clone())
    }

    /// Whether reals are asked at virtual addresses, which takes packet sockets, or may be as
    /// soon as a command adds a pool: if there is a `[balance]`.
    pub fn may_ask_vips(&self) -> bool {
        let mut balance = self.balance.iter();
        balance.any(|balance| balance.interface.is_some())
    }

    /// The virtual addresses that weir holds itself.
    pub fn vips(&self) -> VipsConfig {
        let announced = self.balance.iter().filter(|balance| balance.announce);
        let vips = announced.flat_map(|balance| {
            let vips = balance.pools.iter().flat_map(|pool| &pool.vips);
            vips.filter_map(|vip| Some((*vip, balance.interface.clone()?)))
        });
        let routed = |vip: &IpAddr| self.routers.iter().any(|router| router.vips.contains(vip));
        VipsConfig {
            held: vips.filter(|(vip, _)| !routed(vip)).collect(),
            routers: self.routers.clone(),
        }
    }

    /// Which databases say where addresses are, if anything asks that: the geofence's, or
    /// for access lists of pools and rules about programs the built-in one.
    pub fn geography(&self) -> Option<Cow<'_, GeofenceConfig>> {
        let pools = self.balance.iter().flat_map(|balance| &balance.pools);
        let mut acls = pools.filter_map(|pool| pool.acl.as_ref());
        let names_places =
            acls.any(Acl::names_places) || self.app.as_ref().is_some_and(AppConfig::names_places);
        match &self.geofence {
            Some(geofence) => Some(Cow::Borrowed(geofence)),
            None => names_places.then(|| {
                Cow::Owned(GeofenceConfig {
                    database: None,
                    asn_database: None,
                    fences: Vec::new(),
                })
            }),
        }
    }

    /// Whether the configuration names commands that are run as another user.
    pub fn runs_commands(&self) -> bool {
        let pools = self.balance.iter().flat_map(|balance| &balance.pools);
        let mut kinds = pools.map(|pool| &pool.check.kind);
        !self.watches.is_empty() || kinds.any(|kind| matches!(kind, CheckKind::Command(_)))
    }

    /// Does a jail have commands to run beside its bans?
    pub fn has_actions(&self) -> bool {
        self.jails.iter().any(|jail| !jail.commands.is_empty())
    }

    /// Are they run, and not left out because nothing is dropped?
    pub fn runs_actions(&self) -> bool {
        self.enforcement.drops_nothing().is_none() && self.has_actions()
    }

    /// The file into which bans are written for jails that count them; `None` if there is no
    /// such jail, or while nothing is dropped: Fail2ban, which runs beside then, logs its own.
    pub(crate) fn ban_log(&self) -> Option<PathBuf> {
        let fail2ban = self.fail2ban.as_ref()?;
        let is_counted = !fail2ban.count_bans.is_empty();
        let drops = self.enforcement.drops_nothing().is_none();
        (is_counted && drops).then(|| ban_log::path_in(&self.state_dir))
    }

    /// The jails of Fail2ban's that run by this configuration and could not by the next
    /// one, each with the reason.
    pub(crate) fn jails_that_would_break<'a>(&self, next: &'a Self) -> Vec<&'a (String, String)> {
        let runs = |name: &String| {
            let jails = self.fail2ban.iter().flat_map(|fail2ban| &fail2ban.jails);
            { jails }.any(|jail| jail.name == *name)
        };
        let broken = next.fail2ban.iter().flat_map(|fail2ban| &fail2ban.broken);
        broken.filter(|(name, _)| runs(name)).collect()
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
            (
                "fail2ban_socket",
                self.fail2ban_socket != new.fail2ban_socket,
            ),
            (
                "threads in [proxy]",
                self.proxy_threads != new.proxy_threads && self.proxies() && new.proxies(),
            ),
        ]
        .into_iter()
        .filter_map(|(key, changed)| changed.then_some(key))
        .collect()
    }
}

/// The keys of [`Places`], in its order, and what each may be.
const PLACES: [(&str, &str); 3] = [
    ("pin_root", "an absolute path such as \"/sys/fs/bpf/weir\""),
    ("instance", "a name of letters, digits, - and _"),
    ("state_dir", "an absolute path such as \"/var/lib/weir\""),
];

/// Where a configuration has the daemon keep what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The bpffs directory of all instances.
    pub pin_root: PathBuf,
    /// The name of its own.
    pub instance: String,
    /// Database and lock.
    pub state_dir: PathBuf,
}

/// The places of a configuration, mistakes elsewhere in it or not. Without a file
/// at the usual place they are the usual ones.
///
/// # Errors
/// It cannot be read, or is no TOML, or one of the places is no text.
pub fn places_of(file: &Path) -> Result<Places, ConfigErrors> {
    let main = files::main_file(file);
    let mut places = PLACES.map(|_| None);
    for file in std::iter::once(main.clone()).chain(files::fragments(&main)) {
        let is_usual = file == Path::new(DEFAULT_PATH);
        let is_there = std::fs::metadata(&file);
        if is_usual && is_there.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            continue;
        }
        let text = files::text(&file)?;
        // Each by itself: what two of them say twice is a mistake elsewhere.
        let parts = Part::all(vec![(file, text, None)]);
        let document = Document::new(&parts);
        let mut root = document.root();
        for (place, (key, allowed)) in places.iter_mut().zip(PLACES) {
            if place.is_none() {
                *place = root.string(key, allowed).map(|at| at.value);
            }
        }
        drop(root);
        document.finish(())?;
    }
    let [pin_root, instance, state_dir] = places;
    Ok(Places {
        pin_root: pin_root.map_or(weir_enforce::kernel::DEFAULT_ROOT.into(), PathBuf::from),
        instance: instance.unwrap_or_else(|| "default".to_owned()),
        state_dir: state_dir.map_or(DEFAULT_STATE_DIR.into(), PathBuf::from),
    })
}

/// The files of a configuration's own that define a filter each, by its name.
///
/// # Errors
/// One of the configuration's files cannot be read.
pub fn filter_files(file: &Path) -> Result<BTreeMap<String, PathBuf>, ConfigErrors> {
    let named = files::read(file)?
        .into_iter()
        .filter_map(|(path, _, table)| {
            let (_, name) = table.filter(|(table, _)| *table == "filter")?;
            Some((name, path))
        });
    Ok(named.collect())
}

/// The socket that a configuration names, as far as it can be read.
pub fn socket_of(file: &Path) -> Option<PathBuf> {
    path_of(file, "socket")
}

/// The same of the one that speaks Fail2ban's protocol.
pub fn fail2ban_socket_of(file: &Path) -> Option<PathBuf> {
    path_of(file, "fail2ban_socket")
}

fn path_of(file: &Path, key: &str) -> Option<PathBuf> {
    let file = files::main_file(file);
    let files = std::iter::once(file.clone()).chain(files::fragments(&file));
    files.filter_map(|file| path_in(&file, key)).next()
}

fn path_in(file: &Path, key: &str) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(&files::bytes(file).ok()?).into_owned();
    let named = |text: &str| {
        let table: toml::Table = text.parse().ok()?;
        Some(PathBuf::from(table.get(key)?.as_str()?))
    };
    named(&text).or_else(|| {
        // A mistake elsewhere in the file must not hide the daemon.
        text.lines()
            .take_while(|line| !line.trim_start().starts_with('['))
            .find_map(named)
    })
}

#[cfg(test)]
pub(crate) mod tests;
