//! Files whose SHA-256 a rule names, and which are others by now: after an upgrade of
//! their package, or because somebody has put another one in their place. The new one
//! meets no rule, so an alert tells, with what is on record of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_identity::{
    Criterion, Digest, Program, Rule,
    hash::{self, FileKey},
    packages::{self, PackedDigest, Recorded, Records, Written},
};

use super::{facts::digest_of, objects::Objects};

/// How often it is looked whether the files are the same, and where rules follow upgrades.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_TO_FOLLOW: Duration = Duration::from_secs(2);
/// So many files are looked up in the records at once, which are read once for all of them.
const MAX_ASKED: usize = 32;
/// So many files are watched; those that come then are not.
const MAX_WATCHED: usize = 4096;
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
    /// The file that was found there last.
    file: Option<FileKey>,
    replaced: Option<Replaced>,
}

/// The files that are watched.
#[derive(Debug)]
pub(super) struct NamedFiles {
    by_path: BTreeMap<PathBuf, Watched>,
    looked: Instant,
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

/// Is this file the one on record? `None`: it is there no more.
fn agrees(path: &Path, recorded: &Recorded, (read, sha256, md5): Read) -> Option<bool> {
    if md5.is_some() || matches!(recorded.digest, PackedDigest::Sha256(_)) {
        return Some(recorded.is_of(sha256, md5.unwrap_or_default()));
    }
    let file = hash::open(path).ok()?;
    let agrees = packages::is_as_recorded(&file, recorded, COMPARED_WITHIN).unwrap_or(false);
    let is_same = FileKey::of(&file.metadata().ok()?) == read;
    is_same.then_some(agrees)
}

impl NamedFiles {
    /// Watches nothing until rules name something.
    pub fn new(now: Instant) -> Self {
        Self {
            by_path: BTreeMap::new(),
            looked: now,
            fresh: Vec::new(),
            records: Records::default(),
            written: None,
        }
    }

    fn watch(&mut self, path: &Path, digest: Digest, rule: &Arc<str>) {
        if let Some(known) = self.by_path.get_mut(path) {
            if known.digest != digest {
                (known.digest, known.file, known.replaced) = (digest, None, None);
            }
            known.rule.clone_from(rule);
        } else if self.by_path.len() < MAX_WATCHED {
            let watched = Watched {
                rule: rule.clone(),
                digest,
                file: None,
                replaced: None,
            };
            self.by_path.insert(path.to_owned(), watched);
        }
    }

    /// Other rules are in force: what they name by path is watched, and what none of them
    /// names is not.
    pub fn follow(&mut self, rules: &[Rule]) {
        self.by_path
            .retain(|_, watched| rules.iter().any(|rule| rule.name == watched.rule));
        for watched in self.by_path.values_mut() {
            watched.file = None;
        }
        for rule in rules {
            for pinned in rule.pinned() {
                self.watch(&pinned.path, pinned.digest, &rule.name);
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
            self.watch(&exe.path, digest, &rule.name);
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
        let every = match follows {
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
        let mut asked: Vec<(PathBuf, FileKey, Option<Read>)> = Vec::new();
        for (path, watched) in &mut self.by_path {
            let is_off_record =
                |replaced: &Replaced| !matches!(replaced.record, PackageRecord::Agrees(_));
            if is_news && watched.replaced.as_ref().is_some_and(is_off_record) {
                watched.file = None;
            }
            let Ok(about) = fs::metadata(path) else {
                // Nobody can start it.
                (watched.file, watched.replaced) = (None, None);
                continue;
            };
            let file = FileKey::of(&about);
            if watched.file == Some(file) || asked.len() == MAX_ASKED {
                continue;
            }
            let is = match objects.digest_and_md5(path) {
                Ok((_, digest, _)) if digest == watched.digest || named.contains(&digest) => {
                    self.fresh.push(path.clone());
                    (watched.file, watched.replaced) = (Some(file), None);
                    continue;
                }
                Ok((read, digest, md5)) => Some((read, digest, md5)),
                // Later.
                Err(why) if why.is_for_now() => continue,
                Err(_) => None,
            };
            asked.push((path.clone(), file, is));
        }
        if asked.is_empty() {
            return;
        }
        let files = asked.iter().filter(|(_, _, is)| is.is_some());
        let files: Vec<_> = files.map(|(path, ..)| path.as_path()).collect();
        let (mut records, _) = self.records.of(&files);
        for (path, mut file, is) in asked {
            let (mut digest, mut record, mut by) = (None, PackageRecord::None, None);
            if let Some((read, sha256, md5)) = is {
                // If it is another one than was there a moment ago, that one is looked at again.
                (digest, file) = (Some(sha256), read);
                if let Some(recorded) = records.remove(&path) {
                    record = match agrees(&path, &recorded, (read, sha256, md5)) {
                        // It was exchanged meanwhile, and is looked at again.
                        None => continue,
                        Some(true) => {
                            by = Some(recorded.kind());
                            PackageRecord::Agrees(recorded.package)
                        }
                        Some(false) => PackageRecord::Differs(recorded.package),
                    };
                }
            }
            if let Some(watched) = self.by_path.get_mut(&path) {
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
        files.look_now(&rules, &mut objects);
        let replaced = files.replaced().next().unwrap();
        assert_eq!(replaced.record, PackageRecord::Agrees("tool".to_owned()));
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
