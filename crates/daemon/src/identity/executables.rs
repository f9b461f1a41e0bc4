//! Executable files of which weir knows what they are before it knows the program that runs
//! them: rules that ask for the executable alone hold from a program's first packet on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use weir_bpf::identity::{Executable, MAX_EXECUTABLES};
use weir_identity::{Digest, hash::FileKey};

use super::take_if;

/// An executable file.
#[derive(Debug)]
struct KnownFile {
    path: PathBuf,
    file: FileKey,
    digest: Digest,
    /// Counts up with each file that is noted.
    noted: u64,
}

/// Executable files by the kernel's keys: at most [`MAX_EXECUTABLES`], of more the one goes
/// that was noted longest ago.
#[derive(Debug, Default)]
pub(super) struct Executables {
    known: BTreeMap<Executable, KnownFile>,
    noted: u64,
    evicted: u64,
}

impl Executables {
    /// Notes what an executable file is; the answer has to be taken out of the kernel.
    pub fn note(
        &mut self,
        key: Executable,
        path: &Path,
        file: FileKey,
        digest: Digest,
    ) -> Option<Executable> {
        self.noted += 1;
        let known = KnownFile {
            path: path.to_owned(),
            file,
            digest,
            noted: self.noted,
        };
        self.known.insert(key, known);
        if self.known.len() <= MAX_EXECUTABLES {
            return None;
        }
        let oldest = self.known.iter().min_by_key(|(_, known)| known.noted);
        let oldest = oldest.map(|(key, _)| *key)?;
        self.known.remove(&oldest);
        self.evicted += 1;
        Some(oldest)
    }

    /// Is that noted of it already?
    pub fn has(&self, key: Executable, digest: Digest) -> bool {
        let known = self.known.get(&key);
        known.is_some_and(|known| known.digest == digest)
    }

    /// The keys of these files.
    pub fn of(&self, files: &BTreeSet<FileKey>) -> Vec<Executable> {
        let known = self.known.iter();
        let of = known.filter(|(_, known)| files.contains(&known.file));
        of.map(|(key, _)| *key).collect()
    }

    /// Takes out what is known of these files.
    pub fn take(&mut self, files: &BTreeSet<FileKey>) -> Vec<Executable> {
        let taken = take_if(&mut self.known, |known| files.contains(&known.file));
        taken.into_iter().map(|(key, _)| key).collect()
    }

    /// Every key with its digest.
    pub fn iter(&self) -> impl Iterator<Item = (Executable, Digest)> {
        self.known.iter().map(|(key, known)| (*key, known.digest))
    }

    /// Where the file was when it was noted.
    pub fn path(&self, key: Executable) -> Option<&Path> {
        self.known.get(&key).map(|known| known.path.as_path())
    }

    /// The files that were at these paths when they were noted.
    pub fn files_at<'a>(
        &'a self,
        paths: &'a BTreeSet<PathBuf>,
    ) -> impl Iterator<Item = &'a FileKey> {
        let known = self.known.values();
        let named = known.filter(|known| paths.contains(&known.path));
        named.map(|known| &known.file)
    }

    /// How many files are known, and how many had to go for others.
    pub fn counts(&self) -> (usize, u64) {
        (self.known.len(), self.evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> FileKey {
        FileKey {
            dev: 1,
            ino: number,
            generation: 0,
            ctime: (0, 0),
            size: 0,
        }
    }

    #[test]
    fn of_many_files_the_one_noted_longest_ago_goes() {
        let mut all = Executables::default();
        let key = |number: usize| Executable::for_test(number as u64 + 1);
        let note = |all: &mut Executables, number: usize| {
            let path = PathBuf::from(format!("/{number}"));
            all.note(key(number), &path, file(number as u64), Digest([0; 32]))
        };
        for number in 0..MAX_EXECUTABLES {
            assert_eq!(note(&mut all, number), None);
        }
        // Noted again: it stays.
        assert_eq!(note(&mut all, 0), None);
        assert_eq!(note(&mut all, MAX_EXECUTABLES), Some(key(1)));
        assert_eq!(all.counts(), (MAX_EXECUTABLES, 1));
        assert_eq!(all.path(key(0)), Some(Path::new("/0")));
        assert_eq!(all.path(key(1)), None);
        assert_eq!(all.of(&BTreeSet::from([file(2), file(1)])), [key(2)]);
        assert_eq!(all.take(&BTreeSet::from([file(2), file(1)])), [key(2)]);
        assert_eq!(all.iter().count(), MAX_EXECUTABLES - 1);
    }
}
