//! Files whose SHA-256 a rule names, and which are others by now: after an upgrade of
//! their package, or because somebody has put another one in their place. The new one
//! meets no rule, so an alert tells, with what is on record of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_identity::{
    Criterion, Digest, Program, Rule,
    hash::{FileKey, HashError, Limits, Reading},
    packages::{self, PackedDigest, Recorded, Records, Written},
};

use super::{
    facts::digest_of,
    objects::{NoDigest, Objects},
    share::{self, OWNERS, owner_of},
    way::reach,
};

/// How often it is looked whether the files are the same, and where rules follow upgrades or a
/// file was read in part.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_TO_FOLLOW: Duration = Duration::from_secs(2);
/// So many files are looked up in the records at once, which are read once for all of them.
const MAX_ASKED: usize = 32;
/// So long files are read in one look, for everybody waits meanwhile; of more the next look reads
/// on.
const LOOK_WITHIN: Duration = Duration::from_millis(500);
/// So many files are watched; those that come then are not. Paths at which one user can put files
/// have a share, but for those that the configuration names.
pub(super) const MAX_WATCHED: usize = 4096;
/// So long a file is compared with the record of it: one that takes longer differs.
const COMPARED_WITHIN: Duration = Duration::from_secs(10);

/// A file that is another one than a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replaced {
    /// The path of the file.
    pub path: PathBuf,
    /// The rule that names what was there.
    pub rule: Arc<str>,
    /// The SHA-256 of what was there.
    pub was: Digest,
    /// The SHA-256 of what is there; `None`: it has none that counts.
    pub is: Option<Digest>,
    /// What is on record of the path.
    pub record: PackageRecord,
    /// By which digest the record agrees.
    #[serde(skip)]
    pub(super) by: Option<&'static str>,
}

/// What dpkg or rpm says of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "state", content = "package")]
pub enum PackageRecord {
    /// It is this package's, as it was packed.
    Agrees(String),
    /// The package of this name has another file there.
    Differs(String),
    /// No package has a file there.
    None,
}

impl PackageRecord {
    /// Of the file that is at this path now.
    pub fn of(path: &Path) -> Self {
        let (mut found, _) = Records::default().of(&[path]);
        Self::compared(path, found.remove(path))
    }

    /// The same of several, for those whose file still has this SHA-256.
    pub fn of_all(files: &[(PathBuf, Digest)]) -> BTreeMap<PathBuf, Self> {
        let paths: Vec<_> = files.iter().map(|(path, _)| path.as_path()).collect();
        let (mut found, _) = Records::default().of(&paths);
        let same = files
            .iter()
            .filter(|(path, digest)| digest_of(path) == Ok(*digest));
        same.map(|(path, _)| (path.clone(), Self::compared(path, found.remove(path))))
            .collect()
    }

    fn compared(path: &Path, recorded: Option<Recorded>) -> Self {
        let Some(recorded) = recorded else {
            return Self::None;
        };
        let agrees = File::open(path)
            .and_then(|file| packages::is_as_recorded(&file, &recorded, COMPARED_WITHIN));
        match agrees {
            Ok(true) => Self::Agrees(recorded.package),
            Ok(false) | Err(_) => Self::Differs(recorded.package),
        }
    }

    /// For people, behind what has happened.
    pub fn words(&self) -> String {
        match self {
            Self::Agrees(package) => {
                format!("it is as it is on record of package {package}: an upgrade")
            }
            Self::Differs(package) => format!(
                "the record of package {package} does not agree with it: find out who has put it there"
            ),
            Self::None => "no package has it on record: find out who has put it there".to_owned(),
        }
    }
}

#[derive(Debug)]
struct Watched {
    rule: Arc<str>,
    digest: Digest,
    /// The user who can put other files there; root, where the configuration names the path.
    owner: u32,
    /// The file that was found there last.
    file: Option<FileKey>,
    replaced: Option<Replaced>,
    /// The file was compared with its record in part.
    compared: Option<Reading>,
}

/// The files that are watched.
#[derive(Debug)]
pub(super) struct NamedFiles {
    by_path: BTreeMap<PathBuf, Watched>,
    looked: Instant,
    /// The path that was looked at last, and whether there was no time for others.
    last: Option<PathBuf>,
    is_unfinished: bool,
    /// How often a file was not watched for want of room.
    unwatched: u64,
    /// Paths at which another file was found than the one that was looked at last.
    fresh: Vec<PathBuf>,
    records: Records,
    /// When the records were written, as far as they were asked.
    written: Option<Written>,
}

/// The digests of executables that rules name.
fn named(rules: &[Rule]) -> BTreeSet<Digest> {
    let criteria = rules.iter().flat_map(|rule| &rule.who);
    let criteria = criteria.filter(|condition| !condition.is_negated);
    criteria
        .flat_map(|condition| match &condition.criterion {
            Criterion::Exe(digests) => digests.clone(),
            Criterion::Path(pinned) => pinned.iter().map(|pinned| pinned.digest).collect(),
            _ => Vec::new(),
        })
        .collect()
}

/// Does a condition of the rule name what is in a program's files?
fn names_content(rule: &Rule) -> bool {
    let mut who = rule.who.iter().filter(|condition| !condition.is_negated);
    who.any(|condition| {
        matches!(
            condition.criterion,
            Criterion::Exe(_) | Criterion::Path(_) | Criterion::Aggregate(_)
        )
    })
}

/// A file that was read, and its digests; no MD5: nothing was read, for it was known.
type Read = (FileKey, Digest, Option<[u8; 16]>);

/// Is this file the one on record? `None`: it is there no more, or there was no time to read it
/// until `end`, and it is read on next time.
fn agrees(
    path: &Path,
    recorded: &Recorded,
    (read, sha256, md5): Read,
    compared: &mut Option<Reading>,
    end: Instant,
) -> Option<bool> {
    if md5.is_some() || matches!(recorded.digest, PackedDigest::Sha256(_)) {
        return Some(recorded.is_of(sha256, md5.unwrap_or_default()));
    }
    let before = compared.take().filter(|reading| reading.file() == read);
    let file = reach(path)?.open().ok()?;
    if FileKey::of(&file.metadata().ok()?) != read {
        return None;
    }
    let begin = || Reading::begin(&file, Limits::default().bytes).map(Reading::with_md5);
    let Ok(mut reading) = before.map_or_else(begin, Ok) else {
        return Some(false);
    };
    match reading.go_on(&file, end.saturating_duration_since(Instant::now())) {
        Ok(Some(_)) => Some(recorded.is_of(sha256, reading.md5()?)),
        Ok(None) if reading.spent() < COMPARED_WITHIN => {
            *compared = Some(reading);
            None
        }
        Err(HashError::Changed) => None,
        Ok(None) | Err(_) => Some(false),
    }
}

impl NamedFiles {
    /// Watches nothing until rules name something.
    pub fn new(now: Instant) -> Self {
        Self {
            by_path: BTreeMap::new(),
            looked: now,
            last: None,
            is_unfinished: false,
            unwatched: 0,
            fresh: Vec::new(),
            records: Records::default(),
            written: None,
        }
    }

    /// `owner`: who can put other files there; it is asked of a path that is not watched yet.
    fn watch(&mut self, path: &Path, digest: Digest, rule: &Arc<str>, owner: impl FnOnce() -> u32) {
        if let Some(known) = self.by_path.get_mut(path) {
            if known.digest != digest {
                known.digest = digest;
                (known.file, known.replaced, known.compared) = (None, None, None);
            }
            known.rule.clone_from(rule);
            return;
        }
        let owner = owner();
        let owners = self.by_path.values().map(|watched| watched.owner);
        if !share::has_room(MAX_WATCHED, owners, owner) {
            self.unwatched += 1;
            return;
        }
        let watched = Watched {
            rule: rule.clone(),
            digest,
            owner,
            file: None,
            replaced: None,
            compared: None,
        };
        self.by_path.insert(path.to_owned(), watched);
    }

    /// Other rules are in force: what they name by path is watched, and what none of them
    /// names is not.
    pub fn follow(&mut self, rules: &[Rule]) {
        self.by_path
            .retain(|_, watched| rules.iter().any(|rule| rule.name == watched.rule));
        for watched in self.by_path.values_mut() {
            watched.file = None;
        }
        self.unwatched = 0;
        for rule in rules {
            for pinned in rule.pinned() {
                self.watch(&pinned.path, pinned.digest, &rule.name, || 0);
            }
        }
    }

    /// A program was seen whose executable is at its path on this host.
    pub fn note(&mut self, program: &Program, rules: &[Rule]) {
        let Some(exe) = &program.exe else { return };
        let Some(digest) = exe.digest else { return };
        let mut about = rules
            .iter()
            .filter(|rule| names_content(rule) && rule.is_about(program));
        if let Some(rule) = about.next() {
            self.watch(&exe.path, digest, &rule.name, || owner_of(&exe.path));
        }
    }

    /// Looks at the files now and then; true: it did. `follows`: somebody waits for that.
    pub fn look(
        &mut self,
        now: Instant,
        follows: bool,
        rules: &[Rule],
        objects: &mut Objects,
    ) -> bool {
        let every = match follows || self.is_unfinished {
            true => LOOK_TO_FOLLOW,
            false => LOOK,
        };
        if now.duration_since(self.looked) < every {
            return false;
        }
        self.looked = now;
        self.look_now(rules, objects);
        true
    }

    fn look_now(&mut self, rules: &[Rule], objects: &mut Objects) {
        let named = named(rules);
        // Of files that were not on record it is asked again when the records are others: a
        // package manager puts files in their places first.
        let written = Some(self.records.written());
        let is_news = self.written.is_some() && self.written != written;
        self.written = written;
        let mut changed: Vec<(PathBuf, FileKey)> = Vec::new();
        for (path, watched) in &mut self.by_path {
            let is_off_record =
                |replaced: &Replaced| !matches!(replaced.record, PackageRecord::Agrees(_));
            if is_news && watched.replaced.as_ref().is_some_and(is_off_record) {
                watched.file = None;
            }
            // Of a file that others hold no digest counts, and they may not answer.
            let about = reach(path).and_then(|found| found.about().ok());
            let Some(about) = about else {
                // Or nobody can start it.
                (watched.file, watched.replaced) = (None, None);
                continue;
            };
            let file = FileKey::of(&about);
            if watched.file != Some(file) {
                changed.push((path.clone(), file));
            }
        }
        let end = Instant::now() + LOOK_WITHIN;
        let asked = self.read(changed, &named, objects, end);
        objects.bound(None);
        if asked.is_empty() {
            return;
        }
        let files = asked.iter().filter(|(_, _, is)| is.is_some());
        let files: Vec<_> = files.map(|(path, ..)| path.as_path()).collect();
        let (mut records, _) = self.records.of(&files);
        // Behind the records, which take a while of their own.
        let end = Instant::now() + LOOK_WITHIN;
        for (path, mut file, is) in asked {
            let Some(watched) = self.by_path.get_mut(&path) else {
                continue;
            };
            let (mut digest, mut record, mut by) = (None, PackageRecord::None, None);
            if let Some((read, sha256, md5)) = is {
                // If it is another one than was there a moment ago, that one is looked at again.
                (digest, file) = (Some(sha256), read);
                if let Some(recorded) = records.remove(&path) {
                    let read = (read, sha256, md5);
                    record = match agrees(&path, &recorded, read, &mut watched.compared, end) {
                        // It was exchanged meanwhile, or is read on: it is looked at again.
                        None => {
                            self.is_unfinished = true;
                            continue;
                        }
                        Some(true) => {
                            by = Some(recorded.kind());
                            PackageRecord::Agrees(recorded.package)
                        }
                        Some(false) => PackageRecord::Differs(recorded.package),
                    };
                }
            }
            watched.file = Some(file);
            watched.replaced = Some(Replaced {
                path: path.clone(),
                rule: watched.rule.clone(),
                was: watched.digest,
                is: digest,
                record,
                by,
            });
            self.fresh.push(path);
        }
    }

    /// Reads these files as far as there is time; the answer: those that are others than rules
    /// name. At first each user but root has a part of the time for his, for he can put in their
    /// places what is long to read; and what no look has come to is the first of the next one.
    fn read(
        &mut self,
        mut changed: Vec<(PathBuf, FileKey)>,
        named: &BTreeSet<Digest>,
        objects: &mut Objects,
        end: Instant,
    ) -> Vec<(PathBuf, FileKey, Option<Read>)> {
        let last = self.last.take();
        let is_before = |path: &Path| last.as_deref().is_some_and(|last| path <= last);
        let next = changed.partition_point(|(path, _)| is_before(path));
        changed.rotate_left(next);
        self.last = last.filter(|_| !changed.is_empty());
        self.is_unfinished = false;
        let mut asked = Vec::new();
        let mut by_owner: BTreeMap<u32, (usize, Duration)> = BTreeMap::new();
        for has_shares in [true, false] {
            let mut left = Vec::new();
            for (path, file) in std::mem::take(&mut changed) {
                let now = Instant::now();
                if asked.len() == MAX_ASKED || now >= end {
                    self.is_unfinished = true;
                    return asked;
                }
                let owner = owner_of(&path);
                let (count, spent) = by_owner.entry(owner).or_default();
                let mut until = end;
                if has_shares && owner != 0 {
                    let rest = (LOOK_WITHIN / OWNERS as u32).saturating_sub(*spent);
                    if rest.is_zero() || *count == MAX_ASKED / OWNERS {
                        left.push((path, file));
                        continue;
                    }
                    until = end.min(now + rest);
                }
                if has_shares {
                    self.last = Some(path.clone());
                }
                objects.bound(Some(until));
                let before = objects.spent();
                let found = match reach(&path) {
                    Some(found) => objects.digest_and_md5(&found.path()),
                    None => Err(NoDigest::Unreadable),
                };
                *spent += objects.spent() - before;
                let watched = self.by_path.get_mut(&path);
                let is = match found {
                    Ok((_, digest, _))
                        if named.contains(&digest)
                            || watched.as_ref().is_some_and(|is| is.digest == digest) =>
                    {
                        if let Some(watched) = watched {
                            (watched.file, watched.replaced) = (Some(file), None);
                        }
                        self.fresh.push(path);
                        continue;
                    }
                    Ok(read) => Some(read),
                    Err(NoDigest::Later) => {
                        left.push((path, file));
                        continue;
                    }
                    Err(why) if why.is_for_now() => continue,
                    Err(_) => None,
                };
                *count += 1;
                asked.push((path, file, is));
            }
            changed = left;
        }
        self.is_unfinished = !changed.is_empty();
        asked
    }

    /// How often a file was not watched because its owner, or all of them, have too many.
    pub fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// The paths that are watched.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.by_path.keys().cloned().collect()
    }

    /// What is at this path is looked at with what is found next.
    pub fn put_off(&mut self, path: &Path) {
        let is_watched = self.by_path.contains_key(path);
        if is_watched && !self.fresh.iter().any(|fresh| fresh == path) {
            self.fresh.push(path.to_owned());
        }
    }

    /// Paths at which another file was found since this was asked last.
    pub fn take_fresh(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.fresh)
    }

    /// The files that are others now than rules name.
    pub fn replaced(&self) -> impl Iterator<Item = &Replaced> {
        self.by_path
            .values()
            .filter_map(|watched| watched.replaced.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use weir_core::geofence::Direction;
    use weir_identity::{Condition, Object, Protocols, Verdict, Where};

    use super::*;

    fn rule(name: &str, criterion: Criterion) -> Rule {
        Rule {
            name: name.into(),
            verdict: Verdict::Allow,
            who: vec![Condition {
                is_negated: false,
                criterion,
            }],
            place: Where {
                direction: Direction::Both,
                protocols: Protocols::default(),
                ports: Vec::new(),
                to: None,
                from: None,
                netns: None,
            },
            peer: Vec::new(),
        }
    }

    #[test]
    fn a_file_that_is_another_one_than_its_rule_names_is_told() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        fs::write(&path, "one").unwrap();
        let one = digest_of(&path).unwrap();
        let exe = Object {
            path: path.clone(),
            digest: Some(one),
        };
        let program = Program {
            objects: vec![exe.clone()],
            exe: Some(exe),
            ..Program::default()
        };
        let rules = [rule("tool", Criterion::Exe(vec![one]))];
        let mut files = NamedFiles::new(Instant::now());
        let mut objects = Objects::default();
        files.note(&program, &rules);
        files.look_now(&rules, &mut objects);
        assert_eq!(files.replaced().count(), 0);
        // Put in its place by rename, as an upgrade does.
        let put = |text: &str| {
            let next = dir.path().join("next");
            fs::write(&next, text).unwrap();
            fs::rename(&next, &path).unwrap();
        };
        put("two");
        files.look_now(&rules, &mut objects);
        let [replaced] = &files.replaced().collect::<Vec<_>>()[..] else {
            panic!("{files:?}")
        };
        assert_eq!((&*replaced.rule, replaced.was), ("tool", one));
        assert_eq!(replaced.is, Some(digest_of(&path).unwrap()));
        assert_eq!(replaced.record, PackageRecord::None);
        // A rule that names the new one as well ends it, and so does the old file.
        let both = [rule(
            "tool",
            Criterion::Exe(vec![one, replaced.is.unwrap()]),
        )];
        files.follow(&both);
        files.look_now(&both, &mut objects);
        assert_eq!(files.replaced().count(), 0);
        put("three");
        files.look_now(&both, &mut objects);
        assert_eq!(files.replaced().count(), 1);
        files.follow(&[]);
        assert_eq!(files.replaced().count(), 0);
    }

    /// Whoever holds a file system that has come over a watched path need not answer.
    #[test]
    fn root_a_file_that_others_hold_is_not_asked_for() {
        if let Some(missing) = weir_testkit::fuse::missing() {
            eprintln!("skipped: {missing}");
            return;
        }
        let remote = weir_testkit::fuse::FuseLog::mount().unwrap();
        let rules = [rule("tool", Criterion::Exe(vec![Digest([7; 32])]))];
        let exe = Object {
            path: remote.path(),
            digest: Some(Digest([7; 32])),
        };
        let program = Program {
            objects: vec![exe.clone()],
            exe: Some(exe),
            ..Program::default()
        };
        let mut files = NamedFiles::new(Instant::now());
        files.note(&program, &rules);
        assert!(files.by_path.contains_key(&remote.path()));
        let before = remote.requests();
        files.look_now(&rules, &mut Objects::default());
        assert_eq!(remote.requests(), before);
        assert_eq!(files.replaced().count(), 0);
    }

    /// Everybody else waits while it is read.
    #[test]
    fn an_upgraded_file_is_read_once() {
        const LENGTH: u64 = 64 << 20;
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        fs::write(&path, "one").unwrap();
        let pinned = weir_identity::Pinned {
            path: path.clone(),
            digest: digest_of(&path).unwrap(),
        };
        let rules = [rule("tool", Criterion::Path(vec![pinned.clone()]))];
        let mut files = NamedFiles::new(Instant::now());
        files.records = Records::of_dpkg(dir.path());
        let mut objects = Objects::default();
        files.follow(&rules);
        let next = dir.path().join("next");
        File::create(&next).unwrap().set_len(LENGTH).unwrap();
        fs::rename(&next, &path).unwrap();
        // md5sum of so many zeros.
        let name = path.to_str().unwrap().trim_start_matches('/');
        let record = format!("7f614da9329cd3aebf59b91aadc30bf0  {name}\n");
        fs::write(dir.path().join("tool.md5sums"), record).unwrap();
        let read_by_now = || -> u64 {
            let io = fs::read_to_string("/proc/thread-self/io").unwrap();
            let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
            read.unwrap().parse().unwrap()
        };
        let before = read_by_now();
        // A child that another test starts has each descriptor until it calls exec.
        while files.replaced().count() == 0 {
            files.look_now(&rules, &mut objects);
        }
        let replaced = files.replaced().next().unwrap();
        assert_eq!(replaced.record, PackageRecord::Agrees("tool".to_owned()));
        assert_eq!(replaced.by, Some("MD5"));
        assert_eq!(objects.digest(&path).map(|(_, is)| is).ok(), replaced.is);
        let read = read_by_now() - before;
        assert!((LENGTH..LENGTH + (1 << 20)).contains(&read), "{read}");
        // What is known is compared with a record that comes later.
        files.records = Records::of_dpkg(&dir.path().join("none"));
        files.written = Some(files.records.written());
        files.by_path.get_mut(&path).unwrap().file = None;
        files.look_now(&rules, &mut objects);
        let replaced = files.replaced().next().unwrap();
        assert_eq!(
            (&replaced.record, replaced.by),
            (&PackageRecord::None, None)
        );
        files.records = Records::of_dpkg(dir.path());
        let recorded = PackageRecord::Agrees("tool".to_owned());
        while files.replaced().next().unwrap().record != recorded {
            files.look_now(&rules, &mut objects);
        }
    }

    /// Everybody waits while a file is read: a long one, which takes no room on a disk, is read a
    /// while at a time, and so is what its record is compared with.
    #[test]
    fn a_long_file_in_the_place_of_a_named_one_is_read_a_while_at_a_time() {
        const LENGTH: u64 = 512 << 20;
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        File::create(&path).unwrap().set_len(LENGTH).unwrap();
        let pinned = weir_identity::Pinned {
            path: path.clone(),
            digest: Digest([1; 32]),
        };
        let rules = [rule("tool", Criterion::Path(vec![pinned]))];
        let name = path.to_str().unwrap().trim_start_matches('/');
        let record = format!("{}  {name}\n", "0".repeat(32));
        fs::write(dir.path().join("tool.md5sums"), record).unwrap();
        let mut files = NamedFiles::new(Instant::now());
        files.records = Records::of_dpkg(dir.path());
        let mut objects = Objects::default();
        files.follow(&rules);
        // Some of it was read for a program, without the MD5. A child that another test starts has
        // each descriptor until it calls exec.
        loop {
            objects.bound(Some(Instant::now() + Duration::from_millis(20)));
            if objects.digest(&path) == Err(NoDigest::Later) {
                break;
            }
        }
        let mut looks = 0;
        while files.replaced().count() == 0 {
            let before = objects.spent();
            files.look_now(&rules, &mut objects);
            // No more than a portion above it, on a machine that is busy.
            let spent = objects.spent() - before;
            assert!(spent < LOOK_WITHIN * 6, "{spent:?}");
            looks += 1;
            assert!(looks < 200, "it is begun anew each time");
            let now = files.looked + LOOK_TO_FOLLOW;
            let is_there = files.replaced().count() == 1;
            assert_eq!(files.look(now, false, &rules, &mut objects), !is_there);
        }
        assert!(looks > 1, "{looks}");
        let differs = PackageRecord::Differs("tool".to_owned());
        assert_eq!(files.replaced().next().unwrap().record, differs);
        // Its digest is known, and the record has its MD5 alone.
        files.by_path.get_mut(&path).unwrap().file = None;
        files.look_now(&rules, &mut objects);
        let watched = &files.by_path[&path];
        assert!(watched.compared.is_some() && watched.file.is_none());
        assert!(files.is_unfinished);
    }

    /// Who has many paths watched, or long files put there, keeps nobody else waiting.
    #[test]
    fn root_each_user_has_a_part_of_the_paths_and_of_the_time() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, owner: u32| {
            let home = dir.path().join(name);
            fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(owner), None).map(|()| home)
        };
        let (Ok(his), Ok(other)) = (made("a", 1000), made("b", 1001)) else {
            eprintln!("skipped: files cannot be given away without root");
            return;
        };
        let one = Digest([1; 32]);
        let rules = [rule("tool", Criterion::Exe(vec![one]))];
        let mut files = NamedFiles::new(Instant::now());
        let note = |files: &mut NamedFiles, path: PathBuf| {
            let exe = Object {
                path: path.clone(),
                digest: Some(one),
            };
            let program = Program {
                exe: Some(exe),
                ..Program::default()
            };
            files.note(&program, &rules);
            files.by_path.contains_key(&path)
        };
        for number in 0..MAX_WATCHED / OWNERS {
            assert!(note(&mut files, his.join(number.to_string())));
        }
        assert!(!note(&mut files, his.join("more")));
        assert_eq!(files.unwatched(), 1);
        let theirs = other.join("tool");
        assert!(note(&mut files, theirs.clone()));
        assert_eq!(files.unwatched(), 1);
        // What the configuration names is watched whosever it is.
        let pinned = weir_identity::Pinned {
            path: his.join("more"),
            digest: one,
        };
        let both = [
            rule("tool", Criterion::Exe(vec![one])),
            rule("more", Criterion::Path(vec![pinned])),
        ];
        files.follow(&both);
        assert!(files.by_path.contains_key(&his.join("more")));
        assert_eq!(files.unwatched(), 0);
        for number in 0..MAX_ASKED * 2 {
            let file = File::create(his.join(number.to_string())).unwrap();
            file.set_len(1 << 30).unwrap();
        }
        fs::write(&theirs, "two").unwrap();
        let mut objects = Objects::default();
        let is_told = |files: &NamedFiles| files.replaced().any(|one| one.path == theirs);
        // A child that another test starts has each descriptor until it calls exec.
        let told = (0..5).any(|_| {
            files.look_now(&both, &mut objects);
            is_told(&files)
        });
        assert!(told && files.is_unfinished);
    }

    #[test]
    fn what_dpkg_has_on_record_is_told() {
        let md5sum = Path::new("/usr/bin/md5sum");
        if !Path::new(packages::DPKG_INFO)
            .join("coreutils.md5sums")
            .exists()
        {
            eprintln!("skipped: no dpkg record of coreutils");
            return;
        }
        let record = PackageRecord::of(md5sum);
        assert_eq!(record, PackageRecord::Agrees("coreutils".to_owned()));
        assert!(record.words().contains("an upgrade"));
        let none = PackageRecord::of(Path::new("/usr/bin/no such file"));
        assert_eq!(none, PackageRecord::None);
    }
}
