//! Where addresses are said to be, as the daemon knows it now: one atlas, made
//! from the databases that the geofence names, and made again when their files
//! change. A file that cannot be used leaves the last good one in force, with
//! an alert. What is done about a place is not known here.

mod databases;

pub use databases::{Answer, DatabaseError, DatabaseFile, DatabaseInfo, Databases, named_in};

use std::{
    collections::BTreeSet,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use weir_core::geo::{Atlas, Country, Place, Selector};
use weir_sources::geo::unheard_of;

use crate::{alerts::Alerts, config::GeofenceConfig, events::Event, threads};
use databases::Opened;

/// What the daemon knows about places. No atlas is held while no geofence is
/// configured: it has some 15 MB.
pub struct Geography {
    current: RwLock<Option<Arc<Atlas>>>,
    changes: AtomicU64,
    state: Mutex<State>,
    alerts: Arc<Alerts>,
}

#[derive(Default)]
struct State {
    wanted: Option<Wanted>,
    countries: Part,
    systems: Part,
    /// A thread reads files.
    loading: bool,
}

/// What the configuration asks for.
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

/// One of the two databases.
#[derive(Default)]
struct Part {
    good: Option<Good>,
    /// The file when it was last looked at, and when it was last read.
    seen: Option<Stamp>,
    tried: Option<Stamp>,
}

#[derive(Clone)]
struct Good {
    atlas: Arc<Atlas>,
    about: DatabaseInfo,
}

/// What changes with a file's content; `None`: there is no file.
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

/// What a thread brings back; `None`: that file was not read.
type Read = Option<Result<Good, String>>;

impl Part {
    /// Has the file changed since it was read, and settled? Asked once per
    /// look; a file that is being written differs from look to look.
    fn is_due(&mut self, path: Option<&PathBuf>) -> bool {
        let Some(path) = path else { return false };
        let now = Stamp::of(path);
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
                    good.atlas.v4.len() + good.atlas.v6.len()
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
    atlas: impl FnOnce(&Opened) -> Result<Atlas, weir_sources::geo::GeoError>,
) -> Result<Good, String> {
    let told = |error| match path {
        Some(path) => format!("{}: {error}", path.display()),
        None => format!("the built-in database: {error}"),
    };
    let opened = Opened::open(path).map_err(told)?;
    Ok(Good {
        atlas: Arc::new(atlas(&opened).map_err(told)?),
        about: opened.about,
    })
}

fn read_countries(wanted: &Wanted) -> Result<Good, String> {
    let good = read(wanted.countries.as_deref(), Opened::countries)?;
    let missing = unheard_of(&good.atlas, wanted.named.iter().copied());
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

impl Geography {
    /// Knows nothing yet.
    pub fn new(alerts: Arc<Alerts>) -> Self {
        Self {
            current: RwLock::default(),
            changes: AtomicU64::new(0),
            state: Mutex::default(),
            alerts,
        }
    }

    /// What is known now; `None` while no geofence is configured.
    pub fn atlas(&self) -> Option<Arc<Atlas>> {
        self.current
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Another number than before: [`Self::atlas`] may have another answer.
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

    /// Where this address is said to be. Without an atlas the built-in database
    /// is opened for this one question, which takes some 0.1 s.
    pub fn place(&self, addr: IpAddr) -> Place {
        if let Some(atlas) = self.atlas() {
            return atlas.place(addr);
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

    /// The event with its subject's country, if an atlas is there to say.
    pub fn placed(&self, mut event: Event) -> Event {
        if let (Some(atlas), Some(subject)) = (self.atlas(), event.subject) {
            let country = atlas.place(subject.addr()).country;
            event.country = country.map(|country| country.to_string());
        }
        event
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
            let stamp = wanted.countries.as_deref().map(Stamp::of);
            let read = read_countries(&wanted);
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
            let stamp = wanted.systems.as_deref().map(Stamp::of);
            let read = read_systems(&wanted);
            let part = &mut state.systems;
            (part.seen, part.tried) = (stamp, stamp);
            part.take(read, SYSTEMS, &self.alerts);
        }
        self.publish(&state);
    }

    /// Looks whether files have changed; for once a second. Reading them is
    /// left to a thread of its own: a large one takes seconds.
    pub fn look(self: &Arc<Self>) {
        let mut state = self.state();
        let Some(wanted) = state.wanted.clone().filter(|_| !state.loading) else {
            return;
        };
        let due = (
            state.countries.is_due(wanted.countries.as_ref()),
            state.systems.is_due(wanted.systems.as_ref()),
        );
        if due == (false, false) {
            return;
        }
        let this = self.clone();
        let work = move || {
            let countries = due.0.then(|| read_countries(&wanted));
            let systems = due.1.then(|| read_systems(&wanted));
            this.take(&wanted, countries, systems);
        };
        match threads::spawn("weir-geo", work) {
            Ok(_) => state.loading = true,
            Err(error) => self.alerts.raise(
                COUNTRIES,
                format!("cannot start a thread to read it: {error}"),
            ),
        }
    }

    fn take(&self, wanted: &Wanted, countries: Read, systems: Read) {
        let mut state = self.state();
        state.loading = false;
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
        let countries = state.countries.good.as_ref().map(|good| &good.atlas);
        let systems = state.systems.good.as_ref().map(|good| &good.atlas);
        let atlas = match (countries, systems) {
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
        *self.current.write().expect("no holder of this lock panics") = atlas;
        self.changes.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
