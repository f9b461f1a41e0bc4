//! The executables that rules by `path` are about, while `packages` in `[app]` is "follow": the
//! SHA-256 that a file had when a rule named its path first, and from then on those of files that
//! the package manager has on record. Another file is none that the rule is about, also after a
//! reload or a restart, so that nobody slips a program in by waiting for one.
//!
//! Who runs the file of before an upgrade goes on to be the program that the rule names, until
//! nobody runs it any more: an upgrade of a server does not end its connections.
//!
//! What is kept is on disk, a row a path.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use weir_identity::{
    AppConfig, Criterion, Digest, Pinned, Upgrades,
    config::MAX_PINNED,
    hash::{self, Limits},
    packages::{self, Records},
};

use super::{
    mounts::RemoteMounts,
    objects::{NoDigest, Objects},
};
use crate::store::{Change, PinRow, Store};

/// Files of before upgrades that are kept of one path: of more the oldest goes.
const MAX_PREVIOUS: usize = 4;
/// Bytes of one record.
const MAX_RECORD: usize = 4096;
/// How often it is looked whether anybody runs a file of before an upgrade.
const LOOK: Duration = Duration::from_secs(10);
/// So long files are read to see who runs one of them; those that are left are read next time.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The file that one path stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The SHA-256 of the file that rules are about.
    pub digest: Digest,
    /// When rules began to be about that file.
    pub since: Timestamp,
    /// The package that has it on record; `None`: it was there when a rule named it first, or was
    /// accepted by hand.
    pub package: Option<String>,
    /// Files of before upgrades that somebody may still run, the last one first.
    pub previous: Vec<Digest>,
}

/// A path with what is kept of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinnedPath {
    /// The path that rules name.
    pub path: PathBuf,
    /// The file that the path stands for.
    #[serde(flatten)]
    pub pin: Pin,
}

/// A rule follows the upgrade of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) path: PathBuf,
    pub(super) was: Digest,
    pub(super) is: Digest,
    pub(super) package: String,
    /// By which digest the package manager has it on record.
    pub(super) by: &'static str,
}

impl Followed {
    /// The upgrade in words, for people.
    pub(super) fn words(&self) -> String {
        format!(
            "rules by path {} follow an upgrade of package {}: its SHA-256 is {}, as {} has it on record, and was {}",
            self.path.display(),
            self.package,
            self.is,
            self.by,
            self.was
        )
    }
}

/// What will be kept once the rules are in force.
#[derive(Debug, Default)]
pub(super) struct Plan {
    by_path: BTreeMap<PathBuf, Pin>,
    /// How often what is kept had changed when the plan was made.
    changes: u64,
    pub(super) followed: Vec<Followed>,
}

#[derive(Debug, Default)]
struct Table {
    by_path: BTreeMap<PathBuf, Pin>,
    /// Counts up whenever that changes.
    changes: u64,
    /// What on disk was not taken, and why.
    untaken: Vec<String>,
    looked: Option<Instant>,
}

/// The files that all paths in rules stand for.
pub(super) struct Pins {
    store: Arc<Store>,
    table: Mutex<Table>,
}

/// A file that a package has on record.
#[derive(Debug, Clone)]
pub(super) struct Vouched {
    pub(super) digest: Digest,
    pub(super) package: String,
    /// By which digest it has it.
    pub(super) by: &'static str,
}

/// These files, as far as a package has the very file that is there on record. One pass over all
/// records.
fn vouched<'a>(paths: impl Iterator<Item = &'a Path>) -> BTreeMap<PathBuf, Vouched> {
    let paths: Vec<_> = paths.collect();
    if paths.is_empty() {
        return BTreeMap::new();
    }
    let (recorded, error) = Records::default().of(&paths);
    if let Some(error) = error {
        tracing::warn!("[app.rules]: records of packages cannot be read: {error}");
    }
    let one = |(path, recorded): (PathBuf, packages::Recorded)| {
        // Both digests are of one pass over one file.
        let file = hash::open(&path).ok()?;
        let (hashed, md5) = hash::file_with_md5(&file, Limits::default()).ok()?;
        let digest = hashed.trusted()?;
        let by = recorded.kind();
        recorded.is_of(digest, md5).then_some((
            path,
            Vouched {
                digest,
                package: recorded.package,
                by,
            },
        ))
    };
    recorded.into_iter().filter_map(one).collect()
}

/// Has the rules be about what is kept. One that denies, or allows all but these files, is
/// also about what is there now, whoever has put it there.
fn rewrite(config: &mut AppConfig, by_path: &BTreeMap<PathBuf, Pin>) {
    for rule in &mut config.rules {
        let denies = rule.verdict.holds_for_any();
        for condition in &mut rule.who {
            let refuses = denies != condition.is_negated;
            let Criterion::Path(pinned) = &mut condition.criterion else {
                continue;
            };
            let before = std::mem::take(pinned);
            let paths: BTreeSet<&PathBuf> = before.iter().map(|pinned| &pinned.path).collect();
            for path in paths {
                let there = before.iter().filter(|one| one.path == *path);
                let there = there.map(|one| one.digest);
                let mut digests: Vec<Digest> = there.collect();
                if let Some(pin) = by_path.get(path) {
                    // The one that is at the path comes last.
                    let kept: Vec<_> = pin.previous.iter().rev().chain([&pin.digest]).collect();
                    digests.retain(|digest| refuses && !kept.contains(&digest));
                    digests.extend(kept);
                }
                pinned.extend(digests.into_iter().map(|digest| Pinned {
                    path: path.clone(),
                    digest,
                }));
            }
        }
    }
}

impl Plan {
    /// Has what is kept follow an upgrade.
    fn follow(&mut self, path: PathBuf, found: Vouched) {
        let Some(pin) = self.by_path.get_mut(&path) else {
            return;
        };
        if pin.digest == found.digest {
            return;
        }
        self.followed.push(Followed {
            path,
            was: pin.digest,
            is: found.digest,
            package: found.package.clone(),
            by: found.by,
        });
        *pin = pin.becomes(found.digest, Some(found.package));
    }
}

impl Pin {
    fn new(digest: Digest, package: Option<String>) -> Self {
        Self {
            digest,
            since: Timestamp::now(),
            package,
            previous: Vec::new(),
        }
    }

    /// The file there is another one from here on.
    fn becomes(&self, digest: Digest, package: Option<String>) -> Self {
        let mut next = Self::new(digest, package);
        let previous = std::iter::once(self.digest).chain(self.previous.iter().copied());
        next.previous = previous
            .filter(|before| *before != digest)
            .take(MAX_PREVIOUS)
            .collect();
        next
    }
}

fn parse(path: &[u8], record: Option<&str>) -> Result<(PathBuf, Pin), String> {
    let path = std::str::from_utf8(path).map(PathBuf::from);
    let path = path.ok().filter(|path| path.is_absolute());
    let path = path.ok_or("it is no absolute path")?;
    let record = record.ok_or_else(|| format!("it is no text of at most {MAX_RECORD} bytes"))?;
    let pin: Pin = serde_json::from_str(record)
        .map_err(|error| format!("it is not as weir writes it ({error})"))?;
    match pin.previous.len() > MAX_PREVIOUS {
        true => Err(format!("it has more than {MAX_PREVIOUS} files of before")),
        false => Ok((path, pin)),
    }
}

impl Pins {
    /// What the disk has.
    pub(super) fn over(store: Arc<Store>) -> Self {
        let mut table = Table::default();
        let mut wrong = Vec::new();
        let rows = store.pins(MAX_PINNED + 1, MAX_RECORD);
        for (number, (path, record)) in rows.into_iter().enumerate() {
            let parsed = match number == MAX_PINNED {
                true => Err(format!(
                    "there are more than {MAX_PINNED}, which weir never writes"
                )),
                false => parse(&path, record.as_deref()),
            };
            match parsed {
                Ok((path, pin)) => {
                    table.by_path.insert(path, pin);
                }
                Err(why) => {
                    table.untaken.push(format!(
                        "what weir.db has of the executable {} is not used, and the file is taken as it is now: {why}",
                        String::from_utf8_lossy(&path).escape_debug()
                    ));
                    wrong.push(Change::Pin(PinRow { path, record: None }));
                }
            }
        }
        for why in &table.untaken {
            tracing::warn!("[app.rules]: {why}");
        }
        store.remember(wrong);
        Self {
            store,
            table: Mutex::new(table),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of the disk was not to be used, told once.
    pub(super) fn take_untaken(&self) -> Vec<String> {
        std::mem::take(&mut self.table().untaken)
    }

    /// Has the rules of a configuration be about what is kept, or about what a package has put in
    /// its place since. Nothing is kept before [`Self::keep`].
    pub(super) fn plan(&self, config: &mut AppConfig) -> Plan {
        let table = self.table();
        let known = table.by_path.clone();
        let mut plan = Plan {
            changes: table.changes,
            ..Plan::default()
        };
        drop(table);
        if config.upgrades == Upgrades::Tell {
            return plan;
        }
        let mut others = BTreeMap::new();
        for (path, digest) in config.pinned() {
            match known.get(path) {
                // What is not there is not kept.
                None if digest == Digest::NONE => (),
                None => {
                    plan.by_path.insert(path.to_owned(), Pin::new(digest, None));
                }
                Some(pin) => {
                    if pin.digest != digest && digest != Digest::NONE {
                        others.insert(path.to_owned(), digest);
                    }
                    plan.by_path.insert(path.to_owned(), pin.clone());
                }
            }
        }
        follow(&mut plan, &others);
        rewrite(config, &plan.by_path);
        plan
    }

    /// The same while the rules are in force: these files are others by now, as packages have them
    /// on record.
    pub(super) fn plan_for(
        &self,
        config: &mut AppConfig,
        others: BTreeMap<PathBuf, Vouched>,
    ) -> Plan {
        let mut plan = self.plan_of_kept();
        for (path, found) in others {
            plan.follow(path, found);
        }
        rewrite(config, &plan.by_path);
        plan
    }

    /// The same for one file that somebody accepts as it is; `None`: no rule names it.
    pub(super) fn plan_to_accept(
        &self,
        config: &mut AppConfig,
        path: &Path,
        digest: Digest,
    ) -> Option<Plan> {
        let mut plan = self.plan_of_kept();
        let pin = plan.by_path.get_mut(path)?;
        if pin.digest != digest {
            *pin = pin.becomes(digest, None);
        }
        rewrite(config, &plan.by_path);
        Some(plan)
    }

    /// A plan by which what is kept stays.
    fn plan_of_kept(&self) -> Plan {
        let table = self.table();
        Plan {
            by_path: table.by_path.clone(),
            changes: table.changes,
            followed: Vec::new(),
        }
    }

    /// Is what is kept the same as when this plan was made? Else somebody has accepted a file
    /// meanwhile, or an upgrade was followed.
    pub(super) fn is_current(&self, plan: &Plan) -> bool {
        self.table().changes == plan.changes
    }

    /// Files of before upgrades that nobody runs any more are none that rules are about; `None`:
    /// there are none, or it was looked a short while ago. `runs`: of these paths, which files
    /// somebody runs.
    ///
    /// # Errors
    /// It cannot be told who runs what: then everything stays as it is.
    pub(super) fn plan_without_previous(
        &self,
        config: &mut AppConfig,
        runs: impl FnOnce(&BTreeSet<PathBuf>) -> io::Result<BTreeSet<Digest>>,
    ) -> io::Result<Option<Plan>> {
        let mut table = self.table();
        let with_previous = table.by_path.iter();
        let with_previous = with_previous.filter(|(_, pin)| !pin.previous.is_empty());
        let paths: BTreeSet<_> = with_previous.map(|(path, _)| path.clone()).collect();
        if paths.is_empty() || table.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return Ok(None);
        }
        table.looked = Some(Instant::now());
        drop(table);
        let run = runs(&paths)?;
        let mut plan = self.plan_of_kept();
        let mut is_other = false;
        for pin in plan.by_path.values_mut() {
            let before = pin.previous.len();
            pin.previous.retain(|digest| run.contains(digest));
            is_other |= pin.previous.len() != before;
        }
        if !is_other {
            return Ok(None);
        }
        rewrite(config, &plan.by_path);
        Ok(Some(plan))
    }

    /// Files of before upgrades that rules are about.
    pub(super) fn previous(&self) -> BTreeSet<Digest> {
        let table = self.table();
        let all = table.by_path.values().flat_map(|pin| &pin.previous);
        all.copied().collect()
    }

    /// It is known who runs no more: it is looked at once whether that is of a file of before an
    /// upgrade.
    pub(super) fn look_soon(&self) {
        self.table().looked = None;
    }

    /// The rules of a plan are in force: this is what is kept from here on.
    pub(super) fn keep(&self, plan: Plan) {
        let mut table = self.table();
        debug_assert_eq!(table.changes, plan.changes, "a plan of before");
        table.changes += 1;
        let mut rows = Vec::new();
        let mut row = |path: &Path, pin: Option<&Pin>| {
            let record = pin.map(|pin| serde_json::to_string(pin).expect("a pin is plain data"));
            rows.push(Change::Pin(PinRow {
                path: path.as_os_str().as_encoded_bytes().to_vec(),
                record,
            }));
        };
        for path in table.by_path.keys() {
            if !plan.by_path.contains_key(path) {
                row(path, None);
            }
        }
        for (path, pin) in &plan.by_path {
            if table.by_path.get(path) != Some(pin) {
                row(path, Some(pin));
            }
        }
        table.by_path = plan.by_path;
        drop(table);
        self.store.remember(rows);
    }

    /// The file that each path stands for.
    pub(super) fn all(&self) -> Vec<PinnedPath> {
        let table = self.table();
        let all = table.by_path.iter().map(|(path, pin)| PinnedPath {
            path: path.clone(),
            pin: pin.clone(),
        });
        all.collect()
    }

    /// Is this path kept?
    pub(super) fn has(&self, path: &Path) -> bool {
        self.table().by_path.contains_key(path)
    }
}

/// Follows those of these files that a package has on record as they are.
fn follow(plan: &mut Plan, others: &BTreeMap<PathBuf, Digest>) {
    for (path, found) in vouched(others.keys().map(PathBuf::as_path)) {
        // It may have been exchanged since it was seen: then it is looked at again.
        if others.get(&path) == Some(&found.digest) {
            plan.follow(path, found);
        }
    }
}

/// The executables that somebody runs who was started from one of these paths, or says so: by what
/// is in them, for the kernel gives the path of another root, and of another mount, just so.
///
/// # Errors
/// Processes cannot be listed, or there is no time for a file: it is read next time.
pub(super) fn executables_run(
    paths: &BTreeSet<PathBuf>,
    objects: &mut Objects,
) -> io::Result<BTreeSet<Digest>> {
    objects.bound(Some(Instant::now() + READ_WITHIN));
    let run = executables_of(fs::read_dir("/proc")?, paths, objects);
    objects.bound(None);
    run
}

fn executables_of(
    processes: fs::ReadDir,
    paths: &BTreeSet<PathBuf>,
    objects: &mut Objects,
) -> io::Result<BTreeSet<Digest>> {
    let mut digests = BTreeSet::new();
    for entry in processes {
        let process = entry?.path();
        let exe = process.join("exe");
        // Who is gone by now runs nothing, and threads of the kernel have no executable.
        let Ok(link) = fs::read_link(&exe) else {
            continue;
        };
        let text = link.as_os_str().as_bytes();
        let text = text.strip_suffix(b" (deleted)").unwrap_or(text);
        if !paths.contains(Path::new(OsStr::from_bytes(text))) {
            continue;
        }
        let name = process.file_name().and_then(OsStr::to_str);
        let Some(pid) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Whoever holds a file elsewhere is not waited for: what is read of it does not count.
        let mounts = RemoteMounts::of(pid);
        if mounts.hold_path(&link) {
            continue;
        }
        let Ok(found) = mounts.find(&exe) else {
            continue;
        };
        let Ok(file) = found.open() else {
            continue;
        };
        match objects.digest_of(file) {
            Ok((_, digest)) => {
                digests.insert(digest);
            }
            Err(NoDigest::Later) => {
                let what = format!("there is no time yet to read {}", exe.display());
                return Err(io::Error::other(what));
            }
            // Rules by path are not about a file without a digest.
            Err(_) => (),
        }
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use weir_identity::Condition;

    use super::*;
    use crate::store::KeepHistory;

    fn digest(number: u8) -> Digest {
        Digest([number; 32])
    }

    fn config(upgrades: Upgrades, pinned: &[(&str, u8)]) -> AppConfig {
        let pinned = pinned.iter().map(|(path, number)| Pinned {
            path: (*path).into(),
            digest: digest(*number),
        });
        AppConfig {
            default: weir_identity::Verdict::Drop,
            unknown: weir_identity::Unknown::Drop,
            prompt_timeout: None,
            level: weir_identity::Level::Auto,
            cgroup: None,
            private_names: Vec::new(),
            container_sockets: Vec::new(),
            container_bundles: Vec::new(),
            upgrades,
            rules: vec![weir_identity::Rule {
                name: "tool".into(),
                verdict: weir_identity::Verdict::Allow,
                who: vec![Condition {
                    is_negated: false,
                    criterion: Criterion::Path(pinned.collect()),
                }],
                place: weir_identity::Where {
                    direction: weir_core::geofence::Direction::Both,
                    protocols: weir_identity::Protocols::default(),
                    ports: Vec::new(),
                    to: None,
                    from: None,
                    netns: None,
                },
                peer: Vec::new(),
            }],
            rule_lines: Vec::new(),
        }
    }

    fn store(dir: &Path) -> Arc<Store> {
        let (store, _) = Store::open(dir, KeepHistory::default(), Arc::default());
        Arc::new(store)
    }

    fn digests(config: &AppConfig) -> Vec<Digest> {
        let pinned = config.rules[0].pinned();
        pinned.map(|pinned| pinned.digest).collect()
    }

    #[test]
    fn a_file_that_no_package_has_stays_what_it_was_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let pins = Pins::over(store.clone());
        let path = "/opt/no package has this";
        let mut first = config(Upgrades::Follow, &[(path, 1)]);
        let plan = pins.plan(&mut first);
        assert_eq!(digests(&first), [digest(1)]);
        // Not kept yet: a configuration that is refused leaves nothing.
        assert!(pins.all().is_empty());
        pins.keep(plan);
        let mut second = config(Upgrades::Follow, &[(path, 2)]);
        let plan = pins.plan(&mut second);
        assert!(plan.followed.is_empty());
        assert_eq!(digests(&second), [digest(1)]);
        pins.keep(plan);
        let accepted = pins
            .plan_to_accept(&mut second, Path::new(path), digest(2))
            .unwrap();
        pins.keep(accepted);
        assert_eq!(digests(&second), [digest(1), digest(2)]);
        assert!(
            pins.plan_to_accept(&mut second, Path::new("/opt/other"), digest(2))
                .is_none()
        );
        let soon = || pins.look_soon();
        assert_eq!(pins.previous(), BTreeSet::from([digest(1)]));
        // Nobody can say who runs what: nothing is concluded from that.
        let error = pins.plan_without_previous(&mut second, |_| Err(io::Error::other("no")));
        assert_eq!(error.unwrap_err().to_string(), "no");
        assert_eq!(digests(&second), [digest(1), digest(2)]);
        // It is looked now and then.
        let none = pins.plan_without_previous(&mut second, |_| unreachable!());
        assert!(none.unwrap().is_none());
        soon();
        // Somebody runs the one of before, and then another one that says that it was there.
        let runs = |number: u8| {
            move |paths: &BTreeSet<PathBuf>| {
                assert_eq!(*paths, BTreeSet::from([PathBuf::from(path)]));
                Ok(BTreeSet::from([digest(number)]))
            }
        };
        let none = pins.plan_without_previous(&mut second, runs(1)).unwrap();
        assert!(none.is_none());
        soon();
        let plan = pins.plan_without_previous(&mut second, runs(3)).unwrap();
        assert_eq!(digests(&second), [digest(2)]);
        pins.keep(plan.unwrap());
        soon();
        let none = pins.plan_without_previous(&mut second, |_| unreachable!());
        assert!(none.unwrap().is_none());
        // The next daemon knows.
        store.remember_now(Vec::new()).unwrap();
        let next = Pins::over(store.clone());
        assert_eq!(next.all(), pins.all());
        assert!(next.take_untaken().is_empty());
        // Without the setting, and without a rule, nothing is kept.
        let mut none = config(Upgrades::Tell, &[(path, 3)]);
        let plan = next.plan(&mut none);
        assert_eq!(digests(&none), [digest(3)]);
        next.keep(plan);
        assert!(next.all().is_empty());
        store.remember_now(Vec::new()).unwrap();
        assert!(Pins::over(store).all().is_empty());
    }

    /// A configuration is read for a while, before its rules come into force.
    #[test]
    fn what_is_accepted_while_a_configuration_is_read_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins::over(store(dir.path()));
        let path = "/opt/no package has this";
        pins.keep(pins.plan(&mut config(Upgrades::Follow, &[(path, 1)])));
        let mut read = config(Upgrades::Follow, &[(path, 2)]);
        let plan = pins.plan(&mut read);
        assert!(pins.is_current(&plan));
        let mut accepted = config(Upgrades::Follow, &[(path, 2)]);
        let accepts = pins.plan_to_accept(&mut accepted, Path::new(path), digest(2));
        pins.keep(accepts.unwrap());
        assert!(!pins.is_current(&plan));
        let again = pins.plan(&mut read);
        assert!(pins.is_current(&again));
        assert_eq!(digests(&read), [digest(1), digest(2)]);
        pins.keep(again);
        assert_eq!(pins.all()[0].pin.digest, digest(2));
    }

    /// Whoever has a root of his own has any path there.
    #[test]
    fn who_runs_a_file_is_told_by_what_is_in_it() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        let paths = BTreeSet::from([path.clone()]);
        let put = |from: &str| {
            let next = dir.path().join("next");
            fs::copy(from, &next).unwrap();
            fs::rename(&next, &path).unwrap();
            super::super::digest_of(&path).unwrap()
        };
        let mut objects = Objects::default();
        let mut run = || {
            for _ in 0..1000 {
                if let Ok(run) = executables_run(&paths, &mut objects)
                    && !run.is_empty()
                {
                    return run;
                }
                // A child that another test starts has each descriptor until it calls exec.
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("nobody runs it");
        };
        let start = |arguments: &[&str]| loop {
            let mut command = std::process::Command::new(&path);
            let started = command.args(arguments).stdin(std::process::Stdio::piped());
            match started.stdout(std::process::Stdio::null()).spawn() {
                Ok(child) => break child,
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => (),
                Err(error) => panic!("{error}"),
            }
        };
        let first = put("/usr/bin/sleep");
        let mut sleeps = start(&["100"]);
        let second = put("/usr/bin/cat");
        assert_eq!(run(), BTreeSet::from([first]));
        let mut cats = start(&[]);
        put("/usr/bin/true");
        while run().len() != 2 {}
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert_eq!(run(), BTreeSet::from([second]));
        cats.kill().unwrap();
        cats.wait().unwrap();
        assert_eq!(
            executables_run(&paths, &mut objects).unwrap(),
            BTreeSet::new()
        );
    }

    #[test]
    fn a_rule_that_denies_is_also_about_what_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins::over(store(dir.path()));
        let path = "/opt/no package has this";
        let plan = pins.plan(&mut config(Upgrades::Follow, &[(path, 1)]));
        pins.keep(plan);
        for (verdict, is_negated, about) in [
            (weir_identity::Verdict::Allow, false, vec![digest(1)]),
            (
                weir_identity::Verdict::Drop,
                false,
                vec![digest(2), digest(1)],
            ),
            (
                weir_identity::Verdict::Allow,
                true,
                vec![digest(2), digest(1)],
            ),
            (weir_identity::Verdict::Reject, true, vec![digest(1)]),
        ] {
            let mut other = config(Upgrades::Follow, &[(path, 2)]);
            other.rules[0].verdict = verdict;
            other.rules[0].who[0].is_negated = is_negated;
            pins.plan(&mut other);
            assert_eq!(digests(&other), about, "{verdict:?} {is_negated}");
        }
    }

    #[test]
    fn of_files_of_before_the_oldest_goes() {
        let mut pin = Pin::new(digest(0), None);
        for number in 1..=10 {
            pin = pin.becomes(digest(number), Some("tool".to_owned()));
        }
        assert_eq!(pin.previous, [9, 8, 7, 6].map(digest));
        // Back to one of them.
        let back = pin.becomes(digest(8), None);
        assert_eq!(back.previous, [10, 9, 7, 6].map(digest));
    }

    #[test]
    fn what_somebody_else_has_written_is_not_used_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let good = serde_json::to_string(&Pin::new(digest(1), None)).unwrap();
        let many = Pin {
            previous: vec![digest(1); MAX_PREVIOUS + 1],
            ..Pin::new(digest(1), None)
        };
        let rows = [
            ("/a", "[]".to_owned()),
            ("relative", good.clone()),
            ("/b", serde_json::to_string(&many).unwrap()),
            ("/c", format!("{good}{}", " ".repeat(MAX_RECORD))),
            ("/good", good),
        ];
        let rows = rows.map(|(path, record)| {
            Change::Pin(PinRow {
                path: path.into(),
                record: Some(record),
            })
        });
        store.remember_now(rows.to_vec()).unwrap();
        let pins = Pins::over(store.clone());
        assert_eq!(pins.all().len(), 1);
        assert_eq!(pins.take_untaken().len(), 4);
        store.remember_now(Vec::new()).unwrap();
        let again = Pins::over(store);
        assert!(again.take_untaken().is_empty());
        assert_eq!(again.all().len(), 1);
    }

    /// At the cap: more rows than weir writes are not read.
    #[test]
    fn more_paths_than_rules_can_have_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let good = serde_json::to_string(&Pin::new(digest(1), None)).unwrap();
        let rows = (0..MAX_PINNED + 10).map(|number| {
            Change::Pin(PinRow {
                path: format!("/p/{number}").into_bytes(),
                record: Some(good.clone()),
            })
        });
        store.remember_now(rows.collect()).unwrap();
        let pins = Pins::over(store);
        assert_eq!(pins.all().len(), MAX_PINNED);
        assert_eq!(pins.take_untaken().len(), 1);
    }

    #[test]
    fn a_file_of_a_package_is_vouched_for() {
        let path = Path::new("/usr/bin/md5sum");
        let info = Path::new(packages::DPKG_INFO);
        if !info.join("coreutils.md5sums").exists() {
            eprintln!("skipped: no dpkg record of coreutils");
            return;
        }
        let found = vouched([path, Path::new("/etc/passwd")].into_iter());
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[path].package, found[path].by),
            ("coreutils", "MD5")
        );
        let is = super::super::digest_of(path).unwrap();
        assert_eq!(found[path].digest, is);
        let mut plan = Plan::default();
        plan.by_path
            .insert(path.to_owned(), Pin::new(digest(1), None));
        // Exchanged meanwhile: not this one.
        follow(&mut plan, &BTreeMap::from([(path.to_owned(), digest(2))]));
        assert!(plan.followed.is_empty());
        follow(&mut plan, &BTreeMap::from([(path.to_owned(), is)]));
        assert_eq!(plan.by_path[path].previous, [digest(1)]);
        let words = plan.followed[0].words();
        assert!(words.contains("an upgrade of package coreutils"), "{words}");
    }
}
