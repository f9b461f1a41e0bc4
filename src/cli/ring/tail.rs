//! `weir ring tail`

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::json;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use weir_daemon::escape_json;
use weir_ring::{Owner, ReaderOptions, Record, Set};

use super::segment::parse_bytes;
use crate::cli::ExitAnswer;

/// How soon a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Rotated files that are kept at most.
const KEPT: u32 = 1000;

/// Print the records of a ring, or write them to files
///
/// One more reader of all segments beside any other, until SIGTERM or SIGINT.
/// If it is too slow, a ring that drops new records drops them for everybody.
/// Records come in order within a segment.
#[derive(clap::Args)]
pub struct Args {
    /// The ring's directory, such as /run/weir-ring/shop; may come later
    dir: PathBuf,
    /// Print the records as they are, one per line, instead of as JSON
    #[arg(long)]
    raw: bool,
    /// Begin with the "oldest" records that are there, or the "newest" that come
    #[arg(
        long,
        value_enum,
        default_value = "newest",
        hide_possible_values = true
    )]
    from: Start,
    /// Read the segments of everybody, not only our own and root's
    #[arg(long)]
    any_owner: bool,
    /// End when there is nothing to read
    #[arg(long)]
    once: bool,
    /// Append to this file; SIGHUP opens it again, as logrotate wants
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rename the file to FILE.1 and so on when it would grow beyond this, such as 100M
    #[arg(long, value_name = "BYTES", requires = "output", value_parser = parse_bytes)]
    rotate: Option<u64>,
    /// How many renamed files are kept
    #[arg(long, value_name = "NUMBER", default_value = "5", requires = "rotate",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(KEPT)))]
    keep: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Start {
    Oldest,
    Newest,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let (stop, reopen) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, stop.clone()).context("cannot watch for signals")?;
    }
    let mut out: Box<dyn Sink> = match &args.output {
        Some(path) => {
            flag::register(SIGHUP, reopen.clone()).context("cannot watch for signals")?;
            Box::new(Rotated::open(path, args.rotate, args.keep)?)
        }
        None => Box::new(BufWriter::new(io::stdout().lock())),
    };
    let options = ReaderOptions::new()
        .start(match args.from {
            Start::Oldest => weir_ring::Start::Oldest,
            Start::Newest => weir_ring::Start::Newest,
        })
        .owner(if args.any_owner {
            Owner::Anyone
        } else {
            Owner::Trusted
        });
    let set = Set::open(&args.dir, &options)?;
    let mut worker = set.worker(0, 1);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut failed = Ok(());
        let turn = worker.turn(|segment, batch| {
            let name = (!args.raw).then(|| name_of(&set, segment));
            for record in batch {
                line.clear();
                match &name {
                    Some(name) => as_json(&mut line, name, &record),
                    None => as_is(&mut line, record.payload),
                }
                if failed.is_ok() {
                    failed = out.put(&line);
                }
            }
        });
        failed.context("cannot write the records")?;
        if reopen.swap(false, Ordering::Relaxed) {
            out.reopen()?;
        }
        if turn.is_none() {
            out.flush().context("cannot write the records")?;
            if args.once {
                break;
            }
            worker.sleep(POLL_INTERVAL);
        }
    }
    out.flush().context("cannot write the records")?;
    let lost = set.statistics().lost;
    if lost > 0 {
        // Nobody is left to tell if this fails.
        let _ = writeln!(
            io::stderr(),
            "weir: {} lost",
            weir_daemon::counted(lost, "record was", "records were")
        );
    }
    Ok(ExitAnswer::Done)
}

fn name_of(set: &Set, segment: usize) -> String {
    let names = set.names();
    let found = names.into_iter().find(|(number, _)| *number == segment);
    found.map_or_else(|| segment.to_string(), |(_, name)| name)
}

/// `lost` only where records are missing before this one.
fn as_json(line: &mut Vec<u8>, segment: &str, record: &Record<'_>) {
    let text = record.payload.strip_suffix(b"\n").unwrap_or(record.payload);
    let mut object = json!({
        "time": Timestamp::from_nanosecond(record.time.into()).ok(),
        "segment": segment,
        "number": record.seq,
        "record": String::from_utf8_lossy(text),
    });
    if record.lost > 0 {
        object["lost"] = record.lost.into();
    }
    line.extend(escape_json(object.to_string()).as_bytes());
    line.push(b'\n');
}

fn as_is(line: &mut Vec<u8>, payload: &[u8]) {
    line.extend_from_slice(payload);
    if !payload.ends_with(b"\n") {
        line.push(b'\n');
    }
}

/// The destination of records.
trait Sink: Write {
    /// Writes one record, whole.
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        self.write_all(line)
    }

    /// Somebody has renamed the file.
    fn reopen(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Sink for BufWriter<io::StdoutLock<'_>> {}

/// A file that makes room for itself.
struct Rotated<'a> {
    path: &'a Path,
    limit: Option<u64>,
    keep: u32,
    file: BufWriter<File>,
    size: u64,
}

impl<'a> Rotated<'a> {
    fn open(path: &'a Path, limit: Option<u64>, keep: u32) -> anyhow::Result<Self> {
        let (file, size) =
            append(path).with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(Self {
            path,
            limit,
            keep,
            file,
            size,
        })
    }

    fn number(&self, number: u32) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        name.into()
    }

    /// FILE becomes FILE.1, that FILE.2, and the last goes.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for number in (1..self.keep).rev() {
            match fs::rename(self.number(number), self.number(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(self.path, self.number(1))?;
        (self.file, self.size) = append(self.path)?;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<(BufWriter<File>, u64)> {
    let file = File::options().create(true).append(true).open(path)?;
    let size = file.metadata()?.len();
    Ok((BufWriter::new(file), size))
}

impl Write for Rotated<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Sink for Rotated<'_> {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let full = self.size + line.len() as u64;
        if self.size > 0 && self.limit.is_some_and(|limit| full > limit) {
            self.rotate()?;
        }
        self.write_all(line)
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        self.flush().context("cannot write the records")?;
        *self = Self::open(self.path, self.limit, self.keep)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_full_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut out = Rotated::open(&path, Some(10), 2).unwrap();
        for line in [
            "1aaa\n",
            "2aaa\n",
            "3aaa\n",
            "4aaaaaaaaaaaaaaa\n",
            "5\n",
            "6\n",
        ] {
            out.put(line.as_bytes()).unwrap();
        }
        out.flush().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("log"), "5\n6\n");
        assert_eq!(read("log.1"), "4aaaaaaaaaaaaaaa\n");
        assert_eq!(read("log.2"), "3aaa\n");
        assert!(!dir.path().join("log.3").exists());
        // What is there already counts.
        drop(out);
        let mut out = Rotated::open(&path, Some(10), 2).unwrap();
        out.put(b"7aaaaaa\n").unwrap();
        out.flush().unwrap();
        assert_eq!(
            (read("log"), read("log.1")),
            ("7aaaaaa\n".into(), "5\n6\n".into())
        );
        // Renamed by logrotate.
        fs::rename(&path, dir.path().join("old")).unwrap();
        out.put(b"8\n").unwrap();
        out.reopen().unwrap();
        out.put(b"9\n").unwrap();
        out.flush().unwrap();
        assert_eq!(
            (read("old"), read("log")),
            ("7aaaaaa\n8\n".into(), "9\n".into())
        );
    }
}
