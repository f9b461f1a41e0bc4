//! How far each source was read, and which of it a worker goes on from when the
//! configuration has changed since: a log file is known by itself, not by the
//! list of paths that it was read with.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use serde::{Deserialize, Serialize};
use weir_core::detect::JournalMatch;
use weir_sources::{Position, Start, file};

const FILES: &str = "file:";
const JOURNAL: &str = "journal:";

/// The name under which the place in these files is stored.
pub fn key_of_files(patterns: &[String]) -> String {
    format!("{FILES}{}", patterns.join("\n"))
}

/// The same for the journal's entries of these programs, with these fields.
pub fn key_of_journal(programs: &[String], journal_match: &JournalMatch) -> String {
    let key = format!("{JOURNAL}{}", programs.join(","));
    match journal_match.is_empty() {
        true => key,
        false => format!("{key} {journal_match}"),
    }
}

/// The positions reached, by source; they outlive the threads of one plan.
#[derive(Clone, Default)]
pub struct Positions(Arc<Mutex<HashMap<String, String>>>);

impl Positions {
    /// Takes up the positions that the database holds.
    pub fn new(stored: HashMap<String, String>) -> Self {
        Self(Arc::new(Mutex::new(stored)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Remembers where a source stands; false if it stood there already.
    pub fn set(&self, key: &str, position: &str) -> bool {
        let mut all = self.lock();
        if all.get(key).is_some_and(|before| before == position) {
            return false;
        }
        all.insert(key.to_owned(), position.to_owned());
        true
    }

    /// Where to begin with these files.
    pub fn of_files(&self, patterns: &[String]) -> Start {
        let key = key_of_files(patterns);
        let all = self.lock();
        match all.get(&key).and_then(|text| Files::read(&key, text)) {
            Some(Files {
                patterns,
                positions,
            }) => Start::Saved {
                positions,
                patterns,
            },
            None => Start::End,
        }
    }

    /// The cursor to go on from in the journal.
    pub fn of_journal(&self, key: &str) -> Option<String> {
        self.lock().get(key).cloned()
    }

    /// Notes the sources that are read from now on, by name. One that is new goes on where
    /// others stood that read the same; what nobody reads any more is forgotten with that:
    /// a name that comes back is a new one. Returns what has changed, for the database:
    /// `None` where there is no place any more.
    pub fn change_over(&self, used: &BTreeSet<String>) -> Vec<(String, Option<String>)> {
        let mut all = self.lock();
        let before = std::mem::take(&mut *all);
        let mut changed = Vec::new();
        for key in used {
            if let Some(own) = before.get(key) {
                all.insert(key.clone(), own.clone());
            } else if let Some(from) = files_from(&before, key) {
                let text = serde_json::to_string(&from).expect("it was read from JSON");
                changed.push((key.clone(), Some(text.clone())));
                all.insert(key.clone(), text);
            } else if let Some(cursor) = journal_from(&before, key, used) {
                changed.push((key.clone(), Some(cursor.clone())));
                all.insert(key.clone(), cursor);
            }
        }
        let gone = before.into_keys().filter(|key| !used.contains(key));
        changed.extend(gone.map(|key| (key, None)));
        changed
    }
}

/// Where somebody stood in log files, and which paths he looked for. Stored like
/// this until the first save of a source that goes on where others stood; from
/// then on it has looked for its own paths, and its positions are stored alone.
#[derive(Serialize, Deserialize)]
struct Files {
    patterns: Vec<String>,
    positions: Vec<Position>,
}

impl Files {
    fn read(key: &str, text: &str) -> Option<Self> {
        let own = key.strip_prefix(FILES)?;
        let alone = serde_json::from_str(text).map(|positions| Self {
            patterns: own.split('\n').map(str::to_owned).collect(),
            positions,
        });
        alone.or_else(|_| serde_json::from_str(text)).ok()
    }
}

/// Other paths were read before: each file goes on where somebody stood in it; if
/// several did, where the hindmost stood.
fn files_from(all: &HashMap<String, String>, key: &str) -> Option<Files> {
    let wanted: Vec<&str> = key.strip_prefix(FILES)?.split('\n').collect();
    let mut known = BTreeSet::new();
    let mut reached: BTreeMap<(PathBuf, u64), Position> = BTreeMap::new();
    let mut order = Vec::new();
    let sorted: BTreeMap<_, _> = all.iter().collect();
    for before in sorted
        .into_iter()
        .filter_map(|(k, text)| Files::read(k, text))
    {
        let overlap = |k: &String| wanted.iter().any(|w| may_find_the_same(k, w));
        known.extend(before.patterns.into_iter().filter(overlap));
        // What stands before another one in a list was rotated, and is read
        // before it.
        let mut place = order.len();
        for position in before.positions.into_iter().rev() {
            if !wanted.iter().any(|p| file::finds(p, &position.path)) {
                continue;
            }
            let id = (position.path.clone(), position.inode);
            match reached.get_mut(&id) {
                Some(other) => {
                    place = order.iter().position(|o| *o == id).unwrap_or(place);
                    other.offset = other.offset.min(position.offset);
                }
                None => {
                    order.insert(place, id.clone());
                    reached.insert(id, position);
                }
            }
        }
    }
    (!known.is_empty()).then(|| Files {
        positions: order.iter().filter_map(|id| reached.remove(id)).collect(),
        patterns: known.into_iter().collect(),
    })
}

/// May both patterns find one file by one name? Sure only if one of them is a path;
/// of two with wildcards each part of the path must fit, up to a `**`.
pub fn may_find_the_same(one: &str, other: &str) -> bool {
    let is_path = |pattern: &str| !pattern.contains(['*', '?', '[']);
    match (is_path(one), is_path(other)) {
        (true, true) => one == other,
        (true, false) => file::finds(other, Path::new(one)),
        (false, true) => file::finds(one, Path::new(other)),
        (false, false) => {
            let (mut one, mut other) = (one.split('/'), other.split('/'));
            loop {
                match (one.next(), other.next()) {
                    (Some("**"), _) | (_, Some("**")) | (None, None) => return true,
                    (Some(a), Some(b)) if is_path(a) || is_path(b) => {
                        if !may_find_the_same(a, b) {
                            return false;
                        }
                    }
                    (Some(_), Some(_)) => {}
                    (None, Some(_)) | (Some(_), None) => return false,
                }
            }
        }
    }
}

/// A place in the journal is one for all entries: when other programs were asked
/// for before, and nobody asks for those now, theirs serves.
fn journal_from(
    all: &HashMap<String, String>,
    key: &str,
    used: &BTreeSet<String>,
) -> Option<String> {
    key.strip_prefix(JOURNAL)?;
    all.iter()
        .filter(|(key, _)| key.starts_with(JOURNAL) && !used.contains(*key))
        .map(|(_, cursor)| cursor)
        .max_by_key(|cursor| time_of(cursor))
        .cloned()
}

/// When the entry of a cursor was written: its field `t`, in microseconds.
fn time_of(cursor: &str) -> u64 {
    cursor
        .split(';')
        .find_map(|field| u64::from_str_radix(field.strip_prefix("t=")?, 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weir_sources::Fingerprint;

    use super::*;

    fn patterns(text: &[&str]) -> Vec<String> {
        text.iter().map(|text| (*text).to_owned()).collect()
    }

    fn at(path: &str, inode: u64, offset: u64) -> Position {
        Position {
            path: path.into(),
            device: 1,
            inode,
            offset,
            fingerprint: Fingerprint { len: 0, hash: 0 },
        }
    }

    fn saved(positions: &Positions, paths: &[&str], all: &[Position]) {
        let text = serde_json::to_string(all).unwrap();
        assert!(positions.set(&key_of_files(&patterns(paths)), &text));
        assert!(!positions.set(&key_of_files(&patterns(paths)), &text));
    }

    fn used(sources: &[&[&str]]) -> BTreeSet<String> {
        let key = |paths: &&[&str]| key_of_files(&patterns(paths));
        sources.iter().map(key).collect()
    }

    /// Where these paths begin once they are the only ones that are read, and
    /// how many paths the files before were looked for by.
    fn start(positions: &Positions, paths: &[&str]) -> (Vec<Position>, usize) {
        positions.change_over(&used(&[paths]));
        match positions.of_files(&patterns(paths)) {
            Start::Saved {
                positions,
                patterns,
            } => (positions, patterns.len()),
            _ => (Vec::new(), 0),
        }
    }

    #[test]
    fn a_file_is_known_whatever_it_is_read_with() {
        // Rotated: the older file first.
        let a = [at("/log/a", 7, 900), at("/log/a", 8, 50)];
        let before = || {
            let positions = Positions::default();
            saved(&positions, &["/log/a"], &a);
            saved(&positions, &["/log/b"], &[at("/log/b", 9, 10)]);
            saved(&positions, &["/log/*"], &[at("/log/a", 8, 40)]);
            positions
        };
        assert_eq!(start(&Positions::default(), &["/log/a"]), (vec![], 0));
        assert_eq!(start(&before(), &["/log/a"]), (a.to_vec(), 1), "its own");
        // Nothing is lost where two stood in one file.
        let (both, known) = start(&before(), &["/log/a", "/srv/c"]);
        assert_eq!(both, [at("/log/a", 7, 900), at("/log/a", 8, 40)]);
        assert_eq!(known, 2);
        let b = [at("/log/b", 9, 10)];
        assert_eq!(start(&before(), &["/log/b", "/srv/c"]).0, b);
        assert_eq!(start(&before(), &["/srv/c"]).0, []);
    }

    /// Whether or not anything was saved in between: a disk may be slow, and a
    /// source may not be opened yet.
    #[test]
    fn a_name_that_comes_back_is_a_new_one() {
        for saves in [true, false] {
            let positions = Positions::default();
            let (a, b) = (at("/log/a", 7, 100), at("/log/b", 8, 20));
            saved(&positions, &["/log/a"], std::slice::from_ref(&a));
            let both = ["/log/a", "/log/b"];
            assert_eq!(start(&positions, &both), (vec![a], 1));
            let (a, b) = (at("/log/a", 7, 300), b);
            saved(&positions, &both, &[a.clone(), b]);
            assert_eq!(start(&positions, &["/log/a"]), (vec![a.clone()], 1));
            let further = at("/log/a", 7, 400);
            let reached = if saves { further } else { a };
            if saves {
                saved(&positions, &["/log/a"], std::slice::from_ref(&reached));
            }
            // That b was ever looked for is forgotten.
            assert_eq!(start(&positions, &both), (vec![reached], 1), "{saves}");
        }
    }

    #[test]
    fn patterns_that_cannot_find_one_file_are_told_apart() {
        for (one, other, may) in [
            ("/log/a", "/log/a", true),
            ("/log/a", "/log/b", false),
            ("/log/*", "/log/b", true),
            ("/log/*", "/srv/b", false),
            ("/log/*", "/log/x/b", false),
            ("/log/*.log", "/log/a*", true),
            ("/log/*.log", "/srv/*.log", false),
            ("/log/*.log", "/log/*/x.log", false),
            ("/log/*/a.log", "/log/x/*", true),
            ("/log/*/a.log", "/log/x/b*", false),
            ("/log/**", "/log/x/y/*.log", true),
            ("/log/**/a", "/srv/*", false),
        ] {
            assert_eq!(may_find_the_same(one, other), may, "{one} {other}");
            assert_eq!(may_find_the_same(other, one), may, "{other} {one}");
        }
    }

    #[test]
    fn the_database_is_told_what_has_changed() {
        let positions = Positions::default();
        saved(&positions, &["/log/a"], &[at("/log/a", 7, 100)]);
        saved(&positions, &["/log/b"], &[at("/log/b", 8, 20)]);
        let changed = positions.change_over(&used(&[&["/log/a"], &["/log/b", "/log/c"]]));
        let [(new, Some(text)), (gone, None)] = &changed[..] else {
            panic!("{changed:?}");
        };
        assert_eq!(
            (new.as_str(), gone.as_str()),
            ("file:/log/b\n/log/c", "file:/log/b")
        );
        // A start reads it as it was.
        let stored = HashMap::from([(new.clone(), text.clone())]);
        let (positions, known) = start(&Positions::new(stored), &["/log/b", "/log/c"]);
        assert_eq!((positions, known), (vec![at("/log/b", 8, 20)], 1));
    }

    #[test]
    fn a_journal_is_gone_on_with_for_other_programs() {
        let (old, new) = ("journal:sshd", "journal:sshd,sshd-session");
        let cursor = |key: &str, all: &[&str]| {
            let positions = Positions::default();
            positions.set(old, "s=a;i=2;b=c;m=d;t=5f;x=1");
            positions.set("journal:older", "s=a;i=1;b=c;m=d;t=5e;x=1");
            positions.change_over(&all.iter().map(|key| (*key).to_owned()).collect());
            positions.of_journal(key)
        };
        let newest = cursor(new, &[new]).unwrap();
        assert!(newest.contains("t=5f"), "{newest}");
        assert_eq!(cursor(old, &[old]), Some(newest.clone()));
        // A jail that is added to others begins with what comes.
        assert_eq!(cursor(new, &[old, "journal:older", new]), None);
    }
}
