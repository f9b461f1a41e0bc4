//! Energy, from whatever the machine has: one trait, a file for each source.
//! A machine without any has no figure; who asks is told what was looked for.
//! Sources below /sys and /proc take the root they look under, so that
//! recorded trees are read as machines are.

mod csv;
mod perf;
mod rapl;
mod sampled;
mod scpi;
mod sensors;

use std::{
    path::Path,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// A stretch of time whose energy is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The begin of the window, in seconds since 1970.
    pub from: f64,
    /// The end of the window, in seconds since 1970.
    pub to: f64,
    /// CPU seconds that the measured work took in that time.
    pub cpu_seconds: f64,
}

/// Measures energy: of the whole machine, of its processor, or of what a
/// shunt sits before, as [`Meter::name`] says.
pub trait Meter: Send {
    /// The source, for tables; what is computed and not measured begins with
    /// "estimate".
    fn name(&self) -> String;

    /// The window begins.
    fn begin(&mut self);

    /// Joules since it began.
    ///
    /// # Errors
    /// The source failed meanwhile, or does not know this window.
    fn end(&mut self, window: &Window) -> anyhow::Result<f64>;
}

/// A source as `--energy` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The first that there is of the four that need nothing from outside.
    Auto,
    /// No energy is measured.
    None,
    /// Counters of the processor, by powercap.
    Rapl,
    /// Counters of the processor, those of powercap and others, by perf.
    Perf,
    /// A sensor, of this chip if it is named.
    Hwmon(Option<String>),
    /// The power that a discharging battery reports.
    Battery,
    /// The log of an external meter.
    Csv(csv::Log),
    /// A meter on the network.
    Scpi(scpi::Address),
}

impl FromStr for Source {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        Ok(match (kind, rest) {
            ("auto", None) => Self::Auto,
            ("none", None) => Self::None,
            ("rapl", None) => Self::Rapl,
            ("perf", None) => Self::Perf,
            ("hwmon", chip) => Self::Hwmon(chip.map(str::to_owned)),
            ("battery", None) => Self::Battery,
            ("csv", Some(log)) => Self::Csv(log.parse()?),
            ("scpi", Some(address)) => Self::Scpi(address.parse()?),
            _ => bail!(
                "{text:?}: auto, none, rapl, perf, hwmon[:CHIP], battery, csv:FILE[:COLUMN] or scpi:HOST:PORT[:QUERY]"
            ),
        })
    }
}

/// Opens a source below this root (`/` on a machine).
///
/// # Errors
/// There is none; the text says what was looked for, each with what was found.
pub fn open(source: &Source, root: &Path) -> anyhow::Result<Box<dyn Meter>> {
    match source {
        Source::None => bail!("not asked for (--energy none)"),
        Source::Rapl => rapl::open(root),
        Source::Perf => perf::open(root),
        Source::Hwmon(chip) => sensors::hwmon(root, chip.as_deref()),
        Source::Battery => sensors::battery(root),
        Source::Csv(log) => csv::open(log),
        Source::Scpi(address) => scpi::open(address),
        Source::Auto => {
            let mut missing = Vec::new();
            for open in [rapl::open, perf::open, sensors::auto, sensors::battery] {
                match open(root) {
                    Ok(meter) => return Ok(meter),
                    Err(why) => missing.push(why.to_string()),
                }
            }
            bail!("{}", missing.join(", "))
        }
    }
}

/// CPU time by a configured power: an estimate, and called that everywhere.
struct Estimate {
    watts_per_core: f64,
}

/// An estimate from CPU time: this much for each busy core.
pub fn estimate(watts_per_core: f64) -> Box<dyn Meter> {
    Box::new(Estimate { watts_per_core })
}

impl Meter for Estimate {
    fn name(&self) -> String {
        format!("estimate, {} W a busy core", self.watts_per_core)
    }

    fn begin(&mut self) {}

    fn end(&mut self, window: &Window) -> anyhow::Result<f64> {
        Ok(window.cpu_seconds * self.watts_per_core)
    }
}

/// The wall clock, seconds since 1970.
pub fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The number in a small file.
fn number<T: FromStr>(file: &Path) -> anyhow::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("a number in {}", file.display()))
}

/// The names in a directory, sorted; none where it is not.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded trees, one directory a machine.
    pub fn tree(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../testdata/energy")
            .join(name)
    }

    const NOTHING: Window = Window {
        from: 0.0,
        to: 1.0,
        cpu_seconds: 0.5,
    };

    #[test]
    fn a_machine_without_a_source_says_what_was_looked_for() {
        let why = open(&Source::Auto, &tree("nothing")).err().unwrap();
        assert_eq!(
            why.to_string(),
            "no powercap zone, no perf PMU \"power\", no hwmon power sensor, no battery"
        );
    }

    #[test]
    fn auto_takes_the_first_that_there_is() {
        let opened = |machine| open(&Source::Auto, &tree(machine)).unwrap().name();
        assert_eq!(opened("xeon"), "RAPL package-0, package-1, dram, dram");
        assert_eq!(opened("raspberry"), "hwmon ina219 power1");
        assert_eq!(opened("laptop"), "battery BAT0");
    }

    #[test]
    fn an_estimate_is_cpu_time_by_watts_and_says_so() {
        let mut meter = estimate(3.5);
        meter.begin();
        assert_eq!(meter.end(&NOTHING).unwrap(), 1.75);
        assert!(meter.name().starts_with("estimate"), "{}", meter.name());
    }

    #[test]
    fn sources_are_read_and_mistakes_are_told_what_there_is() {
        let read = |text: &str| text.parse::<Source>();
        assert_eq!(read("auto").unwrap(), Source::Auto);
        assert_eq!(
            read("hwmon:ina226").unwrap(),
            Source::Hwmon(Some("ina226".into()))
        );
        assert!(matches!(read("csv:log.csv:P1").unwrap(), Source::Csv(_)));
        assert!(matches!(
            read("scpi:10.0.0.9:5025").unwrap(),
            Source::Scpi(_)
        ));
        for wrong in ["", "watt", "csv", "rapl:0", "scpi:host", "scpi:host:x"] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(!said.is_empty(), "{wrong}");
        }
        assert!(
            read("watt")
                .unwrap_err()
                .to_string()
                .contains("hwmon[:CHIP]")
        );
    }
}
