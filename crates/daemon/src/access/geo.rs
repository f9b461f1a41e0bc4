//! Where addresses are said to be, as the daemon knows it now: one GeoTable, made
//! from the databases that the geofence names, and made again when their files
//! change. A file that cannot be used leaves the last good one in force, with
//! an alert. What is done about a place is not known here.

mod databases;

pub use databases::{DatabaseError, DatabaseFile, DatabaseInfo, Databases, GeoAnswer, named_in};

use std::{
    collections::BTreeSet,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, SyncSender},
    },
    time::Duration,
};

use weir_core::geo::{Country, GeoTable, Place, Selector};
use weir_events::{Event, alerts::Alerts};
use weir_sources::geo::unheard_of;

use crate::{access::geofence::GeofenceConfig, threads};
use databases::Opened;

/// The country and system of addresses, as the databases have them. No GeoTable is held
/// while no geofence is configured: it has some 15 MB.
pub struct GeoService {
    current: RwLock<Option<Arc<GeoTable>>>,
    changes: AtomicU64,
    state: Mutex<State>,
    looker: Mutex<Looker>,
    /// So many looks a file system has time for.
    patience: u32,
    alerts: Arc<Alerts>,
}

#[derive(Default, Clone)]
struct State {
    wanted: Option<Wanted>,
    countries: Part,
    systems: Part,
}

/// The databases in force, kept while a configuration is exchanged that may be refused.
pub struct DatabasesInForce(State);

/// The thread that looks at files and reads them: their file system may not answer.
#[derive(Default)]
struct Looker {
    /// Asks for another look; absent before there is a thread.
    ask: Option<SyncSender<()>>,
    /// How often it has been asked for one since it began the last.
    unheard: u32,
}

/// Attempts, one a second, before a silent thread is reported.
const PATIENCE: u32 = 60;
/// A start or a reload waits so long for a database; a large one takes seconds.
const READ_WITHIN: Duration = Duration::from_secs(20);

/// The databases, systems and countries that the configuration needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    countries: Option<PathBuf>,
    /// Only when a rule names a system.
    systems: Option<PathBuf>,
    asns: BTreeSet<u32>,
    named: BTreeSet<Country>,
}

impl Wanted {
    fn new(config: &GeofenceConfig) -> Self {
        let mut asns = BTreeSet::new();
        let mut named = BTreeSet::new();
        for selector in config.selectors() {
            match selector {
                Selector::Asn(asn) => drop(asns.insert(asn)),
                Selector::Country(country) => drop(named.insert(country)),
                Selector::Continent(_) => {}
            }
        }
        let systems = config.asn_database.as_ref().or(config.database.as_ref());
        Self {
            countries: config.database.clone(),
            systems: systems.filter(|_| !asns.is_empty()).cloned(),
            asns,
            named,
        }
    }
}

/// One of the two databases, with the file's state when it was read.
#[derive(Default, Clone)]
struct Part {
    good: Option<Good>,
    /// The file when it was last looked at, and when it was last read.
    seen: Option<Stamp>,
    tried: Option<Stamp>,
}

#[derive(Clone)]
struct Good {
    geo_table: Arc<GeoTable>,
    about: DatabaseInfo,
}

/// Device, inode, size and time of a file, which change with its content; `None`: there is
/// no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(Option<(u64, u64, u64, i64, i64)>);

impl Stamp {
    fn of(path: &Path) -> Self {
        let read = std::fs::metadata(path).ok();
        Self(read.map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}

/// The alerts' subjects.
const COUNTRIES: &str = "geofence-database";
const SYSTEMS: &str = "geofence-asn-database";
const FILE_SYSTEM: &str = "geofence-file-system";

/// The database that a thread has read; `None`: that file was not read.
type Read = Option<Result<Good, String>>;

impl Part {
    /// Has the file changed since it was read, and settled? Asked once per
    /// look; a file that is being written differs from look to look.
    fn is_due(&mut self, now: Option<Stamp>) -> bool {
        let Some(now) = now else { return false };
        let settled = self.seen.replace(now) == Some(now);
        if !settled || self.tried == Some(now) {
            return false;
        }
        self.tried = Some(now);
        true
    }

    fn take(&mut self, read: Result<Good, String>, about: &str, alerts: &Alerts) {
        match read {
            Ok(good) => {
                tracing::info!(
                    "{about}: {} of {}, {} networks",
                    good.about.name,
                    good.about.day(),
                    good.geo_table.v4.len() + good.geo_table.v6.len()
                );
                self.good = Some(good);
                alerts.clear(about);
            }
            Err(error) => {
                let stays = match &self.good {
                    Some(good) => format!("{} of {} stays", good.about.name, good.about.day()),
                    None => "no asn: selector matches".to_owned(),
                };
                alerts.raise(
                    about,
                    format!("{error}; {stays} in force until it can be used"),
                );
            }
        }
    }
}

fn read(
    path: Option<&Path>,
    geo_table: impl FnOnce(&Opened) -> Result<GeoTable, weir_sources::geo::GeoError>,
) -> Result<Good, String> {
    let told = |error| match path {
        Some(path) => format!("{}: {error}", path.display()),
        None => format!("the built-in database: {error}"),
    };
    let opened = Opened::open(path).map_err(told)?;
    Ok(Good {
        geo_table: Arc::new(geo_table(&opened).map_err(told)?),
        about: opened.about,
    })
}

fn read_countries(wanted: &Wanted) -> Result<Good, String> {
    let good = read(wanted.countries.as_deref(), Opened::countries)?;
    let missing = unheard_of(&good.geo_table, wanted.named.iter().copied());
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(Country::to_string).collect();
        tracing::warn!(
            "the geofence names {}, of which {} has no network",
            missing.join(", "),
            good.about.name
        );
    }
    Ok(good)
}

fn read_systems(wanted: &Wanted) -> Result<Good, String> {
    read(wanted.systems.as_deref(), |opened| {
        opened.systems(&wanted.asns)
    })
}

/// The state of the file at `path`, and what is read of it, by a thread that may
/// wait for ever. A file that does not answer is looked at again like one that
/// changes.
fn in_time(
    wanted: &Wanted,
    path: &Option<PathBuf>,
    read: fn(&Wanted) -> Result<Good, String>,
) -> (Option<Stamp>, Result<Good, String>) {
    let Some(path) = path.clone() else {
        return (None, read(wanted));
    };
    let (tell, told) = mpsc::channel();
    let (file, wanted) = (path.clone(), wanted.clone());
    let asked = threads::spawn("weir-geo-read", move || {
        let stamp = Stamp::of(&file);
        // Nobody may be waiting any more.
        let _ = tell.send((Some(stamp), read(&wanted)));
    });
    let answer = match asked {
        Ok(_) => told
            .recv_timeout(READ_WITHIN)
            .map_err(|_| "its file system does not answer".to_owned()),
        Err(error) => Err(format!("cannot start a thread to read it: {error}")),
    };
    answer.unwrap_or_else(|error| (None, Err(format!("{}: {error}", path.display()))))
}

/// What is wrong with the databases that a configuration names, and what the
/// daemon does meanwhile. They are read as it does it, which takes up to a
/// second for a large one. One that is not there yet is the configuration's to
/// warn of.
pub fn complaints(config: &GeofenceConfig) -> Vec<String> {
    let wanted = Wanted::new(config);
    let mut complaints = Vec::new();
    let is_there = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.exists());
    if is_there(&wanted.countries)
        && let Err(error) = read_countries(&wanted)
    {
        complaints.push(format!(
            "[geofence]: database = {error}; the built-in one is used until it can be"
        ));
    }
    if is_there(&wanted.systems)
        && let Err(error) = read_systems(&wanted)
    {
        complaints.push(format!(
            "[geofence]: asn_database = {error}; until it can be used no asn: selector matches"
        ));
    }
    complaints
}

impl GeoService {
    /// Knows nothing yet.
    pub fn new(alerts: Arc<Alerts>) -> Self {
        Self {
            current: RwLock::default(),
            changes: AtomicU64::new(0),
            state: Mutex::default(),
            looker: Mutex::default(),
            patience: PATIENCE,
            alerts,
        }
    }

    /// The table in force; `None` while no geofence is configured.
    pub fn geo_table(&self) -> Option<Arc<GeoTable>> {
        self.current
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// A counter of changes: with another number than before, [`Self::geo_table`] may have
    /// another answer.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The databases in force.
    pub fn databases(&self) -> Vec<DatabaseInfo> {
        let state = self.state();
        [&state.countries, &state.systems]
            .into_iter()
            .filter_map(|part| Some(part.good.as_ref()?.about.clone()))
            .collect()
    }

    /// Where this address is said to be. Without a GeoTable the built-in database
    /// is opened for this one question, which takes some 0.1 s.
    pub fn place(&self, addr: IpAddr) -> Place {
        if let Some(geo_table) = self.geo_table() {
            return geo_table.place(addr);
        }
        let asked = Databases::open(None, None).and_then(|databases| databases.ask(addr));
        asked.map_or_else(
            |error| {
                tracing::error!("the built-in database: {error}");
                Place::default()
            },
            |answer| Place {
                country: answer.country,
                continent: answer.continent,
                asn: answer.asn,
            },
        )
    }

    /// The event with its subject's country, if a GeoTable is there to say.
    pub fn placed(&self, mut event: Event) -> Event {
        if let (Some(geo_table), Some(subject)) = (self.geo_table(), event.subject) {
            let country = geo_table.place(subject.addr()).country;
            event.country = country.map(|country| country.to_string());
        }
        event
    }

    fn looker(&self) -> MutexGuard<'_, Looker> {
        self.looker.lock().expect("no holder of this lock panics")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Takes on what the configuration asks for; returns when it is loaded.
    /// A file that cannot be used has the built-in database in its place.
    pub fn configure(&self, config: Option<&GeofenceConfig>) {
        let wanted = config.map(Wanted::new);
        let mut state = self.state();
        if state.wanted == wanted {
            return;
        }
        let before = std::mem::replace(&mut state.wanted, wanted.clone());
        // It may wait for a file that nobody wants any more, and ends then.
        *self.looker() = Looker::default();
        self.alerts.clear(FILE_SYSTEM);
        let Some(wanted) = wanted else {
            // A thread that still reads finds its files no longer wanted.
            state.countries = Part::default();
            state.systems = Part::default();
            self.alerts.clear(COUNTRIES);
            self.alerts.clear(SYSTEMS);
            self.publish(&state);
            return;
        };
        let same = |path: fn(&Wanted) -> &Option<PathBuf>| {
            before
                .as_ref()
                .is_some_and(|old| path(old) == path(&wanted))
        };
        if !same(|w| &w.countries) || state.countries.good.is_none() {
            let (stamp, read) = in_time(&wanted, &wanted.countries, read_countries);
            let part = &mut state.countries;
            (part.seen, part.tried) = (stamp, stamp);
            if read.is_err() && part.good.is_none() {
                part.good = self::read(None, Opened::countries).ok();
            }
            part.take(read, COUNTRIES, &self.alerts);
        }
        if wanted.systems.is_none() {
            state.systems = Part::default();
            self.alerts.clear(SYSTEMS);
        } else if !same(|w| &w.systems) || before.is_none_or(|old| old.asns != wanted.asns) {
            let (stamp, read) = in_time(&wanted, &wanted.systems, read_systems);
            let part = &mut state.systems;
            (part.seen, part.tried) = (stamp, stamp);
            part.take(read, SYSTEMS, &self.alerts);
        }
        self.publish(&state);
    }

    /// What is in force now, for [`Self::put_back`].
    pub fn in_force(&self) -> DatabasesInForce {
        DatabasesInForce(self.state().clone())
    }

    /// Has databases in force again as they were read, whatever their files have become,
    /// which is seen with the next look. Does nothing where the same are wanted.
    pub fn put_back(&self, before: DatabasesInForce) {
        let DatabasesInForce(mut before) = before;
        let mut state = self.state();
        if state.wanted == before.wanted {
            return;
        }
        *self.looker() = Looker::default();
        for about in [FILE_SYSTEM, COUNTRIES, SYSTEMS] {
            self.alerts.clear(about);
        }
        for part in [&mut before.countries, &mut before.systems] {
            part.tried = None;
        }
        *state = before;
        self.publish(&state);
    }

    /// Has a thread of its own look whether files have changed, and read them; for
    /// once a second. It waits for no file system.
    pub fn look(self: &Arc<Self>) {
        let names_files = |wanted: &Wanted| wanted.countries.is_some() || wanted.systems.is_some();
        // Who changes the configuration may wait for a file.
        let Ok(state) = self.state.try_lock() else {
            return;
        };
        if !state.wanted.as_ref().is_some_and(names_files) {
            return;
        }
        drop(state);
        let mut looker = self.looker();
        let asked = match &looker.ask {
            Some(ask) => ask.try_send(()).is_ok(),
            None => match self.start_looking() {
                Ok(ask) => {
                    looker.ask = Some(ask);
                    true
                }
                Err(error) => {
                    let message = format!("cannot start a thread to read it: {error}");
                    return self.alerts.raise(COUNTRIES, message);
                }
            },
        };
        looker.unheard = if asked { 0 } else { looker.unheard + 1 };
        if looker.unheard >= self.patience {
            self.alerts.raise(
                FILE_SYSTEM,
                "the file system of a database of the geofence does not answer: what was read of it before stays in force. Mend the file system, or name another file and reload".to_owned(),
            );
        }
    }

    /// Starts the thread that looks once, and again whenever it is asked to.
    fn start_looking(self: &Arc<Self>) -> std::io::Result<SyncSender<()>> {
        let (ask, asked) = mpsc::sync_channel(1);
        let this = Arc::downgrade(self);
        ask.try_send(()).expect("it is empty");
        threads::spawn("weir-geo", move || {
            while let (Ok(()), Some(this)) = (asked.recv(), this.upgrade()) {
                this.look_now();
                this.alerts.clear(FILE_SYSTEM);
            }
        })?;
        Ok(ask)
    }

    fn look_now(&self) {
        let Some(wanted) = self.state().wanted.clone() else {
            return;
        };
        let stamps =
            [&wanted.countries, &wanted.systems].map(|path| path.as_deref().map(Stamp::of));
        let due = {
            let mut state = self.state();
            if state.wanted.as_ref() != Some(&wanted) {
                return;
            }
            (
                state.countries.is_due(stamps[0]),
                state.systems.is_due(stamps[1]),
            )
        };
        if due == (false, false) {
            return;
        }
        let countries = due.0.then(|| read_countries(&wanted));
        let systems = due.1.then(|| read_systems(&wanted));
        self.take(&wanted, countries, systems);
    }

    fn take(&self, wanted: &Wanted, countries: Read, systems: Read) {
        let mut state = self.state();
        if state.wanted.as_ref() != Some(wanted) {
            return; // Configured otherwise meanwhile, and read then.
        }
        let good = [&countries, &systems]
            .iter()
            .any(|r| matches!(r, Some(Ok(_))));
        if let Some(read) = countries {
            state.countries.take(read, COUNTRIES, &self.alerts);
        }
        if let Some(read) = systems {
            state.systems.take(read, SYSTEMS, &self.alerts);
        }
        if good {
            self.publish(&state);
        }
    }

    fn publish(&self, state: &State) {
        let countries = state.countries.good.as_ref().map(|good| &good.geo_table);
        let systems = state.systems.good.as_ref().map(|good| &good.geo_table);
        let geo_table = match (countries, systems) {
            (Some(countries), Some(systems)) => match countries.with_systems(systems) {
                Ok(both) => Some(Arc::new(both)),
                Err(error) => {
                    let message = format!(
                        "together with the countries it has {error}; no asn: selector matches"
                    );
                    self.alerts.raise(SYSTEMS, message);
                    Some(countries.clone())
                }
            },
            (one, other) => one.or(other).cloned(),
        };
        *self.current.write().expect("no holder of this lock panics") = geo_table;
        self.changes.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
