//! How far each source was read, and which of it a worker goes on from when the
//! configuration has changed since: a log file is known by itself, not by the
//! list of paths that it was read with.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use weir_sources::{Position, Start, file};

const FILES: &str = "file:";
const JOURNAL: &str = "journal:";

/// The name under which the place in these files is stored.
pub fn key_of_files(patterns: &[String]) -> String {
    format!("{FILES}{}", patterns.join("\n"))
}

/// The same for the journal's entries of these programs, with these fields.
pub fn key_of_journal(programs: &[String], fields: &[(String, String)]) -> String {
    let mut key = format!("{JOURNAL}{}", programs.join(","));
    for (field, value) in fields {
        key += &format!(" {field}={value}");
    }
    key
}

/// The positions reached, by source; they outlive the threads of one plan.
#[derive(Clone, Default)]
pub struct Positions(Arc<Mutex<HashMap<String, String>>>);

impl Positions {
    /// As stored.
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
        let all = self.lock();
        let own = key_of_files(patterns);
        let read = |key: &String, text: &String| -> Option<(Vec<String>, Vec<Position>)> {
            let patterns = key.strip_prefix(FILES)?.split('\n').map(str::to_owned);
            Some((patterns.collect(), serde_json::from_str(text).ok()?))
        };
        if let Some((patterns, positions)) = all.get(&own).and_then(|text| read(&own, text)) {
            return Start::Saved {
                positions,
                patterns,
            };
        }
        // Other paths were read before: each file goes on where somebody stood
        // in it; if several did, where the hindmost stood.
        let mut known = BTreeSet::new();
        let mut reached: BTreeMap<(PathBuf, u64), Position> = BTreeMap::new();
        let mut order = Vec::new();
        let sorted: BTreeMap<_, _> = all.iter().collect();
        for (before, positions) in sorted.into_iter().filter_map(|(k, text)| read(k, text)) {
            known.extend(before);
            // What stands before another one in a list was rotated, and is read
            // before it.
            let mut place = order.len();
            for position in positions.into_iter().rev() {
                if !patterns.iter().any(|p| file::finds(p, &position.path)) {
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
        Start::Saved {
            positions: order.iter().filter_map(|id| reached.remove(id)).collect(),
            patterns: known.into_iter().collect(),
        }
    }

    /// The cursor to go on from in the journal. A place in it is one for all
    /// entries: when other programs were asked for before, and nobody asks for
    /// those now, theirs serves. `used`: the names of all sources that are read.
    pub fn of_journal(&self, key: &str, used: &BTreeSet<String>) -> Option<String> {
        let all = self.lock();
        if let Some(cursor) = all.get(key) {
            return Some(cursor.clone());
        }
        all.iter()
            .filter(|(key, _)| key.starts_with(JOURNAL) && !used.contains(*key))
            .map(|(_, cursor)| cursor)
            .max_by_key(|cursor| time_of(cursor))
            .cloned()
    }

    /// Forgets sources that are no longer read, once nobody needs to learn from
    /// them; returns which.
    pub fn forget_all_but(&self, used: &BTreeSet<String>) -> Vec<String> {
        let mut all = self.lock();
        let remembered = |key: &String| key.starts_with("ring:") || all.contains_key(key);
        if !used.iter().all(remembered) {
            return Vec::new();
        }
        let gone: Vec<String> = all
            .keys()
            .filter(|key| !used.contains(*key))
            .cloned()
            .collect();
        for key in &gone {
            all.remove(key);
        }
        gone
    }
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

    #[test]
    fn a_file_is_known_whatever_it_is_read_with() {
        let positions = Positions::default();
        let fresh = positions.of_files(&patterns(&["/log/a"]));
        let nothing = Start::Saved {
            positions: vec![],
            patterns: vec![],
        };
        assert_eq!(fresh, nothing);
        // Rotated: the older file first.
        let a = [at("/log/a", 7, 900), at("/log/a", 8, 50)];
        saved(&positions, &["/log/a"], &a);
        saved(&positions, &["/log/b"], &[at("/log/b", 9, 10)]);
        saved(&positions, &["/log/*"], &[at("/log/a", 8, 40)]);
        let start = |paths: &[&str]| match positions.of_files(&patterns(paths)) {
            Start::Saved {
                positions,
                patterns,
            } => (positions, patterns.len()),
            other => panic!("{other:?}"),
        };
        assert_eq!(start(&["/log/a"]), (a.to_vec(), 1), "its own");
        // Nothing is lost where two stood in one file.
        let (both, known) = start(&["/log/a", "/srv/c"]);
        assert_eq!(both, [at("/log/a", 7, 900), at("/log/a", 8, 40)]);
        assert_eq!(known, 3);
        assert_eq!(start(&["/log/b", "/srv/c"]).0, [at("/log/b", 9, 10)]);
        assert_eq!(start(&["/srv/c"]).0, []);

        let used = [key_of_files(&patterns(&["/log/b", "/srv/c"]))].into();
        assert_eq!(positions.forget_all_but(&used), Vec::<String>::new());
        saved(&positions, &["/log/b", "/srv/c"], &[at("/log/b", 9, 11)]);
        assert_eq!(positions.forget_all_but(&used).len(), 3);
        assert_eq!(start(&["/log/a"]).0, []);
    }

    #[test]
    fn a_journal_is_gone_on_with_for_other_programs() {
        let positions = Positions::default();
        let (old, new) = ("journal:sshd", "journal:sshd,sshd-session");
        positions.set(old, "s=a;i=2;b=c;m=d;t=5f;x=1");
        positions.set("journal:older", "s=a;i=1;b=c;m=d;t=5e;x=1");
        let used = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        let cursor = |key, all: &[&str]| positions.of_journal(key, &used(all));
        let newest = cursor(new, &[new]).unwrap();
        assert!(newest.contains("t=5f"), "{newest}");
        assert_eq!(cursor(old, &[old]), Some(newest.clone()));
        // A jail that is added to others begins with what comes.
        assert_eq!(cursor(new, &[old, "journal:older", new]), None);
    }
}
