//! The files that `weir options probe` writes: results, captures and the drawing. Each is
//! opened before anything is measured, so that a mistake in a name costs no measurement.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use weir_option_probe::{
    measure::MeasuredPair,
    own_file::{self, OwnDir},
    pcap,
    result_file::{self, LockedFile, MAX_SITES, PairResult, ResultFile},
};

use super::say;

/// The file of results, at its end.
pub struct Results {
    file: Option<(PathBuf, LockedFile)>,
    /// What was measured, and what the file had.
    pub kept: ResultFile,
}

impl Results {
    /// Reads the file, or makes it; nobody else can until this ends.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                file: None,
                kept: ResultFile::default(),
            });
        };
        let shown = path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file =
            own_file::open(path, &mut options).with_context(|| format!("cannot open {shown}"))?;
        // Before it is read: what another one adds would be overwritten.
        let locked = LockedFile::lock(file).with_context(|| format!("cannot lock {shown}"))?;
        let Some(locked) = locked else {
            bail!(
                "{shown}: another weir options probe writes to it: wait for its end, or name another file"
            );
        };
        let mut file = &*locked;
        let kept = ResultFile::read(file).with_context(|| shown.to_string())?;
        if kept.is_cut {
            say(&format!(
                "{shown}: the last line is not whole: its pair is measured again"
            ));
        }
        // What is behind the whole lines goes.
        file.set_len(kept.whole)
            .and_then(|()| file.seek(SeekFrom::Start(kept.whole)))
            .and_then(|_| match kept.whole {
                0 => result_file::write_head(&mut file),
                _ => Ok(()),
            })
            .with_context(|| format!("cannot write {shown}"))?;
        Ok(Self {
            file: Some((path.to_owned(), locked)),
            kept,
        })
    }

    /// Whether these sites and those of the file are not too many together: the file could not
    /// be read again.
    pub fn has_room_for<'s>(&'s self, sites: impl Iterator<Item = &'s str>) -> anyhow::Result<()> {
        let all: BTreeSet<_> = self.kept.sites().into_iter().chain(sites).collect();
        if let Some((path, _)) = &self.file {
            ensure!(
                all.len() <= MAX_SITES,
                "{}: it would have {} sites; allowed: up to {MAX_SITES}: name another file",
                path.display(),
                all.len()
            );
        }
        Ok(())
    }

    /// Writes what was measured of a pair, durably.
    pub fn add(&mut self, pair: PairResult) -> anyhow::Result<()> {
        if let Some((path, file)) = &self.file {
            let mut file: &File = file;
            let mut line = Vec::new();
            result_file::write_pair(&mut line, &pair)?;
            file.write_all(&line)
                .and_then(|()| file.sync_data())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.kept.add(pair);
        Ok(())
    }
}

/// The directory of captures.
pub struct Captures {
    path: PathBuf,
    dir: OwnDir,
}

impl Captures {
    /// Makes the directory, and sees that files can be made in it.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let shown = dir.display();
        let opened = OwnDir::open(dir).with_context(|| format!("cannot make {shown}"))?;
        let trial = format!(".weir-options-probe.{}", std::process::id());
        let tried = opened.try_out(&trial);
        tried.with_context(|| format!("cannot make files in {shown}"))?;
        Ok(Self {
            path: dir.to_owned(),
            dir: opened,
        })
    }

    /// Writes the captures of a pair; labels are fit for names of files.
    pub fn keep(&self, measured: &MeasuredPair) -> anyhow::Result<()> {
        let pair = &measured.result;
        let family = if pair.is_v4 { 4 } else { 6 };
        for (what, packets) in [("sent", &measured.sent), ("arrived", &measured.arrived)] {
            let name = format!("{}--{}.ipv{family}.{what}.pcap", pair.from, pair.to);
            let path = self.path.join(&name);
            let write = || -> io::Result<()> {
                let mut file = BufWriter::new(self.dir.create(&name)?);
                pcap::write_head(&mut file)?;
                for (time, packet) in packets {
                    pcap::write_packet(&mut file, *time, packet)?;
                }
                file.flush()
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// The file of the drawing. What it had stays until it is drawn.
pub struct Drawing {
    path: PathBuf,
    file: File,
}

impl Drawing {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = own_file::open(path, &mut options)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Refuses a drawing in the place of the results.
    pub fn is_another_file(&self, results: &Path) -> anyhow::Result<()> {
        let shown = results.display();
        let of = |at: fs::Metadata| (at.dev(), at.ino());
        let drawing = of(self.file.metadata()?);
        let results = of(fs::metadata(results).with_context(|| shown.to_string())?);
        ensure!(
            drawing != results,
            "{shown}: --svg and --resume name one file; allowed: two"
        );
        Ok(())
    }

    /// Writes the drawing in place of what the file had.
    pub fn write(mut self, svg: &str) -> anyhow::Result<()> {
        let is_file = self.file.metadata().is_ok_and(|at| at.is_file());
        let emptied = if is_file {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        emptied
            .and_then(|()| self.file.write_all(svg.as_bytes()))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
