//! RAPL by powercap: microjoules that the processor counts since boot, each
//! zone modulo its range. A window must be shorter than one turn, some twenty
//! minutes at 200 W.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::{Meter, Window, names, number};

struct Zone {
    name: String,
    counter: PathBuf,
    range: u64,
    before: anyhow::Result<u64>,
}

struct Rapl {
    zones: Vec<Zone>,
}

/// Packages and their memory; cores and graphics are parts of a package, and
/// the zones of `intel-rapl-mmio` the same once more.
pub fn open(root: &Path) -> anyhow::Result<Box<dyn Meter>> {
    let dir = root.join("sys/class/powercap");
    let mut zones = Vec::new();
    for name in names(&dir) {
        if !name.starts_with("intel-rapl:") {
            continue;
        }
        let zone = dir.join(&name);
        let label = std::fs::read_to_string(zone.join("name")).unwrap_or_default();
        let label = label.trim();
        if !(label.starts_with("package") || label == "dram") {
            continue;
        }
        let range = number(&zone.join("max_energy_range_uj"))?;
        let counter = zone.join("energy_uj");
        number::<u64>(&counter).context("RAPL is read by root alone")?;
        zones.push(Zone {
            name: label.to_owned(),
            counter,
            range,
            before: Ok(0),
        });
    }
    if zones.is_empty() {
        bail!("no powercap zone");
    }
    // Packages first.
    zones.sort_by(|a, b| b.name.cmp(&a.name).then(a.counter.cmp(&b.counter)));
    zones.sort_by_key(|zone| (zone.name == "dram", zone.name.clone()));
    Ok(Box::new(Rapl { zones }))
}

/// From one reading to the next, once around at most.
fn counted(before: u64, now: u64, range: u64) -> u64 {
    if now >= before {
        now - before
    } else {
        (range - before.min(range)) + now
    }
}

impl Meter for Rapl {
    fn name(&self) -> String {
        let names: Vec<&str> = self.zones.iter().map(|zone| zone.name.as_str()).collect();
        format!("RAPL {}", names.join(", "))
    }

    fn begin(&mut self) {
        for zone in &mut self.zones {
            zone.before = number(&zone.counter);
        }
    }

    fn end(&mut self, _: &Window) -> anyhow::Result<f64> {
        let mut micro = 0;
        for zone in &self.zones {
            let before = match &zone.before {
                Ok(before) => *before,
                Err(error) => bail!("{error:#}"),
            };
            micro += counted(before, number(&zone.counter)?, zone.range);
        }
        Ok(micro as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::tests::tree;

    const WINDOW: Window = Window {
        from: 0.0,
        to: 0.0,
        cpu_seconds: 0.0,
    };

    /// A copy of a recorded tree, whose counters go on.
    fn copy(name: &str) -> tempfile::TempDir {
        fn all(from: &Path, to: &Path) {
            std::fs::create_dir_all(to).unwrap();
            for entry in std::fs::read_dir(from).unwrap().flatten() {
                let to = to.join(entry.file_name());
                if entry.path().is_dir() {
                    all(&entry.path(), &to);
                } else {
                    std::fs::copy(entry.path(), to).unwrap();
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        all(&tree(name), dir.path());
        dir
    }

    #[test]
    fn packages_and_memory_are_added_and_parts_are_not() {
        let dir = copy("xeon");
        let mut meter = open(dir.path()).unwrap();
        meter.begin();
        let powercap = dir.path().join("sys/class/powercap");
        let add = |zone: &str, micro: u64| {
            let file = powercap.join(zone).join("energy_uj");
            let now: u64 = number(&file).unwrap();
            std::fs::write(file, format!("{}\n", now + micro)).unwrap();
        };
        add("intel-rapl:0", 2_000_000);
        add("intel-rapl:1", 1_000_000);
        add("intel-rapl:0:0", 500_000);
        // Cores: within the package.
        add("intel-rapl:0:1", 1_900_000);
        assert_eq!(meter.end(&WINDOW).unwrap(), 3.5);
    }

    #[test]
    fn a_counter_that_wraps_is_counted_on() {
        let dir = copy("xeon");
        let zone = dir.path().join("sys/class/powercap/intel-rapl:1");
        let range: u64 = number(&zone.join("max_energy_range_uj")).unwrap();
        std::fs::write(zone.join("energy_uj"), (range - 300_000).to_string()).unwrap();
        let mut meter = open(dir.path()).unwrap();
        meter.begin();
        std::fs::write(zone.join("energy_uj"), "700000\n").unwrap();
        assert_eq!(meter.end(&WINDOW).unwrap(), 1.0);
    }

    #[test]
    fn a_counter_that_goes_away_is_an_error_not_a_figure() {
        let dir = copy("xeon");
        let mut meter = open(dir.path()).unwrap();
        meter.begin();
        std::fs::remove_file(dir.path().join("sys/class/powercap/intel-rapl:0/energy_uj")).unwrap();
        assert!(meter.end(&WINDOW).is_err());
        std::fs::write(
            dir.path().join("sys/class/powercap/intel-rapl:1/energy_uj"),
            "none\n",
        )
        .unwrap();
        meter.begin();
        assert!(meter.end(&WINDOW).is_err());
    }
}
