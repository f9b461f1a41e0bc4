//! The log of an external meter: lines of a time stamp and readings, as data
//! loggers write them. Points know when they were, so that a log may come
//! after the run (`--join`). The two machines' clocks are the caller's concern.
//!
//! By hand, not by csv or csv-core: these want to know the one delimiter before
//! they read, and a logger's heading has as many lines and cells as it likes;
//! what is in cells here is numbers and names, never a quoted line break.

use std::{path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, bail, ensure};

use super::{Meter, Window, unix_now};

/// Readings further apart say nothing about what is between them.
const WIDEST_GAP: f64 = 5.0;

/// A log that is being written is waited for so many seconds.
const PATIENCE: f64 = 3.0;

/// Which log, and which of its columns has watts: by name, or the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    file: PathBuf,
    column: Option<String>,
}

impl FromStr for Log {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (file, column) = match text.split_once(':') {
            Some((file, column)) => (file, Some(column.to_owned())),
            None => (text, None),
        };
        ensure!(!file.is_empty(), "csv: without a file");
        Ok(Self {
            file: file.into(),
            column,
        })
    }
}

struct Csv {
    log: Log,
}

/// The log need not be there before the first window ends.
pub fn open(log: &Log) -> anyhow::Result<Box<dyn Meter>> {
    Ok(Box::new(Csv { log: log.clone() }))
}

impl Meter for Csv {
    fn name(&self) -> String {
        let column = self.log.column.as_deref().unwrap_or("last column");
        format!("log of an external meter ({column})")
    }

    fn begin(&mut self) {}

    fn end(&mut self, window: &Window) -> anyhow::Result<f64> {
        loop {
            let joules = self.joules(window);
            // A logger writes a little later than it measures.
            if joules.is_ok() || unix_now() - window.to > PATIENCE {
                return joules;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Csv {
    fn joules(&self, window: &Window) -> anyhow::Result<f64> {
        let file = &self.log.file;
        let text =
            std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let readings = readings(&text, self.log.column.as_deref())
            .with_context(|| format!("in {}", file.display()))?;
        between(&readings, window.from, window.to)
    }
}

/// Seconds since 1970: as such, by RFC 3339, or as a data logger writes local
/// time (2023/05/17 14:03:09.250).
fn time(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.as_microsecond() as f64 / 1e6);
    }
    let local = text.replace('/', "-").replacen(' ', "T", 1);
    let local: jiff::civil::DateTime = local.parse().ok()?;
    let at = local.to_zoned(jiff::tz::TimeZone::system()).ok()?;
    Some(at.timestamp().as_microsecond() as f64 / 1e6)
}

/// (time, watts) of each line behind the heading.
fn readings(text: &str, column: Option<&str>) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut at = None;
    let mut found: Vec<(f64, f64)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line
            .split([',', ';', '\t'])
            .map(|cell| cell.trim().trim_matches('"'))
            .collect();
        if cells == [""] {
            continue;
        }
        let Some(when) = time(cells[0]) else {
            ensure!(found.is_empty(), "line {}: no time stamp", number + 1);
            // The heading, in as many lines as the logger likes.
            at = cells.iter().position(|cell| Some(*cell) == column).or(at);
            continue;
        };
        let cell = match (column, at) {
            (None, _) => cells.last().copied(),
            (Some(_), Some(at)) => cells.get(at).copied(),
            (Some(column), None) => bail!("no column {column:?} in its heading"),
        };
        // What is being written has no end of line yet.
        let unfinished = number + 1 == text.lines().count() && !text.ends_with('\n');
        if unfinished {
            break;
        }
        let watts: f64 = cell
            .and_then(|cell| cell.parse().ok())
            .filter(|watts: &f64| watts.is_finite())
            .with_context(|| format!("line {}: no watts", number + 1))?;
        if let Some((before, _)) = found.last() {
            ensure!(when >= *before, "line {}: time goes back", number + 1);
        }
        found.push((when, watts));
    }
    Ok(found)
}

/// Joules between two moments, the power going straight from reading to reading.
fn between(readings: &[(f64, f64)], from: f64, to: f64) -> anyhow::Result<f64> {
    let covered = readings
        .first()
        .zip(readings.last())
        .is_some_and(|(first, last)| first.0 <= from && to <= last.0);
    ensure!(covered, "the log does not cover the point");
    let mut joules = 0.0;
    for pair in readings.windows(2) {
        let ((t0, p0), (t1, p1)) = (pair[0], pair[1]);
        let (begin, end) = (t0.max(from), t1.min(to));
        if begin >= end {
            continue;
        }
        ensure!(
            t1 - t0 <= WIDEST_GAP,
            "the log has a gap of {:.1} s in the point",
            t1 - t0
        );
        let power = |t: f64| p0 + (p1 - p0) * (t - t0) / (t1 - t0);
        joules += (power(begin) + power(end)) / 2.0 * (end - begin);
    }
    Ok(joules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_loggers_file_is_read() {
        let text = std::fs::read_to_string(crate::energy::tests::tree("logs/mw100.csv")).unwrap();
        let found = readings(&text, Some("P_dut")).unwrap();
        assert_eq!(found.len(), 5);
        assert_eq!(found[0].1, 2.5);
        assert!((found[1].0 - found[0].0 - 0.5).abs() < 1e-6, "{found:?}");
        assert!(readings(&text, Some("P_other")).is_err());
        assert!(readings(&text, None).is_ok());
    }

    #[test]
    fn energy_is_what_lies_between() {
        let log = [(100.0, 2.0), (101.0, 2.0), (102.0, 4.0), (103.0, 4.0)];
        assert_eq!(between(&log, 100.0, 103.0).unwrap(), 9.0);
        assert_eq!(between(&log, 100.25, 100.75).unwrap(), 1.0);
        assert_eq!(between(&log, 101.5, 102.5).unwrap(), 1.75 + 2.0);
        for (from, to) in [(99.0, 101.0), (102.0, 104.0), (200.0, 201.0)] {
            assert!(between(&log, from, to).is_err(), "{from} {to}");
        }
        assert!(between(&[], 1.0, 2.0).is_err());
    }

    #[test]
    fn a_log_that_is_being_written_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log.csv");
        let now = unix_now();
        let line = |at: f64| format!("{at:.3},2.0\n");
        std::fs::write(&file, line(now - 2.0)).unwrap();
        let mut meter = open(&file.to_string_lossy().parse().unwrap()).unwrap();
        let writer = {
            let file = file.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(250));
                std::fs::write(file, line(now - 2.0) + &line(now + 1.0)).unwrap();
            })
        };
        let window = |from, to| Window {
            from,
            to,
            cpu_seconds: 0.0,
        };
        let joules = meter.end(&window(now - 1.0, now)).unwrap();
        assert!((joules - 2.0).abs() < 1e-6, "{joules}");
        writer.join().unwrap();
        // Of a point long ago there is nothing to wait for.
        let start = std::time::Instant::now();
        assert!(meter.end(&window(now - 60.0, now - 50.0)).is_err());
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn a_gap_is_not_filled() {
        let log = [(0.0, 2.0), (60.0, 2.0), (61.0, 2.0), (62.0, 2.0)];
        assert!(between(&log, 30.0, 60.5).is_err());
        assert!(between(&log, 60.2, 61.2).is_ok());
    }

    #[test]
    fn broken_logs_are_errors_with_their_line() {
        let said = |text: &str| readings(text, None).unwrap_err().to_string();
        assert!(said("t,w\n1,2\nx,3\n").contains("line 3"), "time");
        assert!(said("1,2\n2,-\n").contains("line 2"), "watts");
        assert!(said("2,2\n1,2\n").contains("time goes back"));
        assert_eq!(readings("1,2\n2,3\n3,", None).unwrap().len(), 2);
    }
}
