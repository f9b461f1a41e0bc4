//! Which files make up a configuration: `X.conf`, `X.d/*.conf`, `X.local`, `X.d/*.local`, each
//! with what it includes before and after. How they are put together is `layers`'.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::{Component, Path, PathBuf},
};

use crate::{
    error::{Error, ErrorKind, Origin},
    files::Files,
    ini::{self, Broken, Ini},
    interpolate,
    layers::Layers,
};

/// How deep files may include each other.
const MAX_DEPTH: usize = 16;
/// Files that one configuration may consist of, each time that one is read.
const MAX_FILES: usize = 512;
/// The section that names files to include.
const INCLUDES: &str = "INCLUDES";

/// Reads `base.conf` and what goes with it; `None` if there is no such file.
///
/// # Errors
/// The first mistake in any of the files.
pub(crate) fn read(files: &dyn Files, base: &Path) -> Result<Option<Layers>, Error> {
    strict(read_leniently(files, base)?)
}

/// The same, with the first mistake of each section beside what could be read.
///
/// # Errors
/// A file that cannot be read at all.
pub(crate) fn read_leniently(
    files: &dyn Files,
    base: &Path,
) -> Result<Option<(Layers, Vec<Broken>)>, Error> {
    let with = |ending: &str| {
        let mut name = base.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let drop_ins = with(".d");
    let mut inside = files
        .list(&drop_ins)
        .map_err(|e| unreadable(&drop_ins, &e))?;
    inside.sort();
    let of = |extension: &str| {
        let has = |path: &&PathBuf| {
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
            !hidden && path.extension().is_some_and(|e| e == extension)
        };
        inside.iter().filter(has).cloned().collect::<Vec<_>>()
    };
    let mut names = vec![with(".conf")];
    names.extend(of("conf"));
    names.push(with(".local"));
    names.extend(of("local"));

    read_files(files, &names)
}

/// The same of one file, whatever it is called, its `.local` and what it includes.
pub(crate) fn read_file(files: &dyn Files, path: &Path) -> Result<Option<Layers>, Error> {
    strict(read_files(files, &[normal(path)])?)
}

fn strict(read: Option<(Layers, Vec<Broken>)>) -> Result<Option<Layers>, Error> {
    match read {
        None => Ok(None),
        Some((layers, broken)) => match broken.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Some(layers)),
        },
    }
}

fn read_files(
    files: &dyn Files,
    names: &[PathBuf],
) -> Result<Option<(Layers, Vec<Broken>)>, Error> {
    let mut reader = Reader {
        files,
        read: HashMap::new(),
        order: Vec::new(),
        broken: Vec::new(),
    };
    reader.include_all(names, &mut Vec::new())?;
    if reader.order.is_empty() {
        return Ok(None);
    }
    let is_there = |name: &&PathBuf| reader.order.contains(name);
    let mut layers = Layers {
        own: names.iter().find(is_there).cloned().unwrap_or_default(),
        ..Layers::default()
    };
    for path in reader.order {
        if let Some(Some(ini)) = reader.read.get(&path) {
            layers.put_over(ini);
        }
    }
    Ok(Some((layers, reader.broken)))
}

struct Reader<'a> {
    files: &'a dyn Files,
    /// The files that were read; `None` for files that are not there.
    read: HashMap<PathBuf, Option<Ini>>,
    order: Vec<PathBuf>,
    broken: Vec<Broken>,
}

impl Reader<'_> {
    /// Files and, behind each `.conf`, its `.local` if the list does not have it anyway.
    fn include_all(&mut self, names: &[PathBuf], parents: &mut Vec<PathBuf>) -> Result<(), Error> {
        let listed: BTreeSet<_> = names.iter().collect();
        for name in names {
            self.include(name, parents)?;
            let local = name.with_extension("local");
            if !listed.contains(&local) {
                self.include(&local, parents)?;
            }
        }
        Ok(())
    }

    fn include(&mut self, path: &Path, parents: &mut Vec<PathBuf>) -> Result<(), Error> {
        if !self.is_there(path)? {
            return Ok(());
        }
        let too_many = |what: &str| {
            let origin = Origin {
                file: path.to_owned(),
                line: 0,
            };
            Err(Error::new(origin, ErrorKind::Value, what))
        };
        if parents.len() >= MAX_DEPTH {
            return too_many("files include each other more than 16 deep");
        }
        if self.order.len() >= MAX_FILES {
            return too_many("the configuration consists of more than 512 files");
        }
        parents.push(path.to_owned());
        let before = self.includes_of(path, "before", parents)?;
        self.include_all(&before, parents)?;
        self.order.push(path.to_owned());
        let after = self.includes_of(path, "after", parents)?;
        self.include_all(&after, parents)?;
        parents.pop();
        Ok(())
    }

    /// Reads a file, once.
    fn is_there(&mut self, path: &Path) -> Result<bool, Error> {
        if let Some(ini) = self.read.get(path) {
            return Ok(ini.is_some());
        }
        let ini = match self.files.read(path) {
            Ok(bytes) => {
                let (ini, broken) = ini::parse(&bytes, path)?;
                self.broken.extend(broken);
                Some(ini)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(unreadable(path, &e)),
        };
        let is_there = ini.is_some();
        self.read.insert(path.to_owned(), ini);
        Ok(is_there)
    }

    /// The files that `key` of `[INCLUDES]` names, but none that includes this one.
    fn includes_of(
        &self,
        path: &Path,
        key: &str,
        parents: &[PathBuf],
    ) -> Result<Vec<PathBuf>, Error> {
        let Some(Some(ini)) = self.read.get(path) else {
            return Ok(Vec::new());
        };
        let Some((_, section)) = ini.sections.iter().find(|(name, _)| name == INCLUDES) else {
            return Ok(Vec::new());
        };
        if !section.contains_key(key) && !ini.defaults.contains_key(key) {
            return Ok(Vec::new());
        }
        let mut alone = Layers::default();
        alone.put_over(ini);
        let Some(value) = interpolate::get(&alone, INCLUDES, key, &interpolate::NoVars)? else {
            return Ok(Vec::new());
        };
        let dir = path.parent().unwrap_or(Path::new(""));
        let mut included = Vec::new();
        for line in value.lines.iter().filter(|line| !line.text.is_empty()) {
            let file = normal(&dir.join(&line.text));
            // A loop ends here, without a word, as it does in Fail2ban.
            if !parents.contains(&file) {
                included.push(file);
            }
        }
        Ok(included)
    }
}

/// A path without `.` and, as far as it can be, without `..`; links are not asked.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if clean
                    .components()
                    .next_back()
                    .is_some_and(|last| matches!(last, Component::Normal(_))) =>
            {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    clean
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let origin = Origin {
        file: path.to_owned(),
        line: 0,
    };
    Error::new(origin, ErrorKind::Read, format!("cannot read it: {error}"))
}
