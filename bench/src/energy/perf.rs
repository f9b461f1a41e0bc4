//! The processor's energy counters as perf events. sysfs names the events,
//! says in which unit each counts, and on which CPU a package is asked.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use weir_bpf::power::PerfCounter;

use super::{Meter, Window, names, number};

/// An event by its number in one PMU, and joules for each of its counts.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    name: String,
    config: u64,
    joules: f64,
}

/// The `power` event source of perf, as sysfs describes it.
#[derive(Debug, PartialEq)]
struct Pmu {
    number: u32,
    /// One CPU number of each package.
    cpus: Vec<u32>,
    events: Vec<Event>,
}

fn pmu(root: &Path) -> anyhow::Result<Pmu> {
    let dir = root.join("sys/bus/event_source/devices/power");
    if !dir.exists() {
        bail!("no perf PMU \"power\"");
    }
    let cpus = std::fs::read_to_string(dir.join("cpumask")).context("the PMU's cpumask")?;
    let cpus = cpus
        .trim()
        .split(',')
        .map(|range| {
            // A range of CPUs is of one package each, as a list is.
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Ok(first.parse::<u32>()?..=last.parse::<u32>()?)
        })
        .collect::<anyhow::Result<Vec<_>>>()
        .context("the PMU's cpumask")?;
    let mut events = Vec::new();
    // Cores and graphics are parts of a package.
    for name in ["energy-pkg", "energy-ram"] {
        let file = dir.join("events").join(name);
        if !file.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        let config = text
            .trim()
            .strip_prefix("event=0x")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .with_context(|| format!("{name}: an event's number in {:?}", text.trim()))?;
        let of = |what: &str| dir.join("events").join(format!("{name}.{what}"));
        let unit = std::fs::read_to_string(of("unit"))?;
        ensure!(unit.trim() == "Joules", "{name} is in {:?}", unit.trim());
        events.push(Event {
            name: name.to_owned(),
            config,
            joules: number(&of("scale"))?,
        });
    }
    if events.is_empty() {
        let found = names(&dir.join("events")).join(" ");
        bail!("no perf event energy-pkg among {found:?}");
    }
    Ok(Pmu {
        number: number(&dir.join("type"))?,
        cpus: cpus.into_iter().flatten().collect(),
        events,
    })
}

struct Counter {
    counter: PerfCounter,
    joules: f64,
    before: u64,
}

struct Perf {
    names: Vec<String>,
    counters: Vec<Counter>,
}

/// Opens the counters of all packages.
pub fn open(root: &Path) -> anyhow::Result<Box<dyn Meter>> {
    let pmu = pmu(root)?;
    let mut counters = Vec::new();
    for event in &pmu.events {
        for cpu in &pmu.cpus {
            counters.push(Counter {
                counter: PerfCounter::open(pmu.number, event.config, *cpu)
                    .with_context(|| format!("perf event {} on CPU {cpu}", event.name))?,
                joules: event.joules,
                before: 0,
            });
        }
    }
    Ok(Box::new(Perf {
        names: pmu.events.into_iter().map(|event| event.name).collect(),
        counters,
    }))
}

impl Meter for Perf {
    fn name(&self) -> String {
        format!("perf {}", self.names.join(", "))
    }

    fn begin(&mut self) {
        for counter in &mut self.counters {
            // A descriptor that cannot be read fails at the end, too.
            counter.before = counter.counter.read().unwrap_or(u64::MAX);
        }
    }

    fn end(&mut self, _: &Window) -> anyhow::Result<f64> {
        let mut joules = 0.0;
        for counter in &mut self.counters {
            let now = counter.counter.read().context("read a perf event")?;
            let counted = now
                .checked_sub(counter.before)
                .context("a perf event went backwards")?;
            joules += counted as f64 * counter.joules;
        }
        Ok(joules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::tests::tree;

    #[test]
    fn sysfs_says_what_to_open_and_in_which_unit() {
        let found = pmu(&tree("perf")).unwrap();
        assert_eq!(found.number, 10);
        assert_eq!(found.cpus, [0, 16]);
        let names: Vec<_> = found
            .events
            .iter()
            .map(|e| (e.name.as_str(), e.config))
            .collect();
        assert_eq!(names, [("energy-pkg", 2), ("energy-ram", 3)]);
        assert!((found.events[0].joules - 2.328_306_436_538_696_3e-10).abs() < 1e-20);
        assert_eq!(
            pmu(&tree("nothing")).unwrap_err().to_string(),
            "no perf PMU \"power\""
        );
    }

    /// A clock instead of joules: what is opened is read and scaled.
    #[test]
    fn root_counts_are_scaled() {
        let Ok(counter) = PerfCounter::open(1, 0, 0) else {
            return eprintln!("skipped: perf_event_open");
        };
        let mut meter = Perf {
            names: vec!["cpu-clock".into()],
            counters: vec![Counter {
                counter,
                joules: 1e-9,
                before: 0,
            }],
        };
        meter.begin();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {}
        let window = Window {
            from: 0.0,
            to: 0.0,
            cpu_seconds: 0.0,
        };
        let counted = meter.end(&window).unwrap();
        assert!((0.015..5.0).contains(&counted), "{counted}");
    }
}
