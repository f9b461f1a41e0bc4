//! Power sensors of the board (hwmon) and of a battery (power_supply).

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::{Meter, names, number, sampled::Sampled};

/// One power of a chip.
#[derive(Debug, Clone, PartialEq)]
enum Channel {
    /// Microwatts in a file.
    Power(PathBuf),
    /// Milliamperes and millivolts in two.
    Product(PathBuf, PathBuf),
}

impl Channel {
    fn watts(&self) -> anyhow::Result<f64> {
        Ok(match self {
            Self::Power(file) => number::<f64>(file)? / 1e6,
            Self::Product(current, voltage) => {
                number::<f64>(current)? / 1e3 * number::<f64>(voltage)? / 1e3
            }
        })
    }
}

/// A chip with what it measures.
#[derive(Debug)]
struct Chip {
    name: String,
    channels: Vec<(String, Channel)>,
}

/// The powers of a chip: its own, or of pairs of a current and a voltage that
/// belong together by label (`3V3_SYS_A`, `3V3_SYS_V`, as the PMIC of a
/// Raspberry Pi 5 has them) or by number (as INA2xx chips have).
fn channels(dir: &Path) -> Vec<(String, Channel)> {
    let files = names(dir);
    let mut found = Vec::new();
    for number in 1..=64 {
        for kind in ["input", "average"] {
            let name = format!("power{number}_{kind}");
            if files.contains(&name) {
                found.push((format!("power{number}"), Channel::Power(dir.join(name))));
                break;
            }
        }
    }
    if !found.is_empty() {
        return found;
    }
    let label = |name: &str| {
        let text = std::fs::read_to_string(dir.join(name.replace("_input", "_label")));
        text.ok().map(|label| label.trim().to_owned())
    };
    let voltages: Vec<(&String, Option<String>)> = files
        .iter()
        .filter(|name| name.starts_with("in") && name.ends_with("_input"))
        .map(|name| (name, label(name)))
        .collect();
    for current in files
        .iter()
        .filter(|name| name.starts_with("curr") && name.ends_with("_input"))
    {
        let own = label(current);
        let rail = own.as_deref().and_then(|own| own.strip_suffix("_A"));
        let voltage = voltages.iter().find(|(name, label)| match rail {
            Some(rail) => label.as_deref().and_then(|l| l.strip_suffix("_V")) == Some(rail),
            None => name[2..] == current[4..],
        });
        if let Some((voltage, _)) = voltage {
            let name = rail.map_or_else(|| current.replace("_input", ""), str::to_owned);
            let product = Channel::Product(dir.join(current), dir.join(voltage));
            found.push((name, product));
        }
    }
    found
}

fn chips(root: &Path) -> Vec<Chip> {
    let dir = root.join("sys/class/hwmon");
    names(&dir)
        .into_iter()
        .filter_map(|entry| {
            let dir = dir.join(entry);
            let name = std::fs::read_to_string(dir.join("name")).ok()?;
            let channels = channels(&dir);
            (!channels.is_empty()).then(|| Chip {
                name: name.trim().to_owned(),
                channels,
            })
        })
        .collect()
}

/// The chip of this name, or the only one.
pub fn hwmon(root: &Path, wanted: Option<&str>) -> anyhow::Result<Box<dyn Meter>> {
    let mut chips = chips(root);
    if let Some(wanted) = wanted {
        let found: Vec<String> = chips.iter().map(|chip| chip.name.clone()).collect();
        chips.retain(|chip| chip.name == wanted);
        if chips.is_empty() {
            bail!(
                "no hwmon power sensor {wanted:?} among [{}]",
                found.join(", ")
            );
        }
    }
    let chip = match chips.len() {
        0 => bail!("no hwmon power sensor"),
        1 => chips.remove(0),
        _ => {
            let found: Vec<&str> = chips.iter().map(|chip| chip.name.as_str()).collect();
            // What they measure may be parts of one another.
            bail!(
                "several hwmon power sensors ({}): name one, --energy hwmon:CHIP",
                found.join(", ")
            )
        }
    };
    let parts: Vec<&str> = chip
        .channels
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let name = format!("hwmon {} {}", chip.name, parts.join(", "));
    let channels = chip.channels;
    Ok(Box::new(Sampled::start(name, move || {
        channels.iter().map(|(_, channel)| channel.watts()).sum()
    })?))
}

/// The only chip with a power.
pub fn auto(root: &Path) -> anyhow::Result<Box<dyn Meter>> {
    hwmon(root, None)
}

/// What a battery gives, while nothing else does.
pub fn battery(root: &Path) -> anyhow::Result<Box<dyn Meter>> {
    let dir = root.join("sys/class/power_supply");
    let mut others = Vec::new();
    for name in names(&dir) {
        let dir = dir.join(&name);
        let text =
            |file: &str| std::fs::read_to_string(dir.join(file)).map(|text| text.trim().to_owned());
        if text("type").ok().as_deref() != Some("Battery") {
            continue;
        }
        let status = text("status").unwrap_or_default();
        if status != "Discharging" {
            others.push(format!("{name} is {}", status.to_lowercase()));
            continue;
        }
        let file = dir.clone();
        let watts = move || -> anyhow::Result<f64> {
            let status = std::fs::read_to_string(file.join("status"))?;
            if status.trim() != "Discharging" {
                bail!("the battery is {}", status.trim().to_lowercase());
            }
            // Some drivers say what flows out as a negative number.
            let micro = |name: &str| number::<f64>(&file.join(name)).map(f64::abs);
            match micro("power_now") {
                Ok(power) => Ok(power / 1e6),
                Err(_) => Ok(micro("current_now")? / 1e6 * micro("voltage_now")? / 1e6),
            }
        };
        return Ok(Box::new(
            Sampled::start(format!("battery {name}"), watts).context("read the battery")?,
        ));
    }
    if others.is_empty() {
        bail!("no battery");
    }
    bail!("{}", others.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::tests::tree;

    fn watts(machine: &str) -> Vec<(String, f64)> {
        chips(&tree(machine))
            .iter()
            .flat_map(|chip| &chip.channels)
            .map(|(name, channel)| (name.clone(), channel.watts().unwrap()))
            .collect()
    }

    #[test]
    fn a_power_is_read_and_its_parts_are_not_added() {
        assert_eq!(watts("raspberry"), [("power1".to_owned(), 3.12)]);
    }

    #[test]
    fn currents_meet_their_voltages_by_label_or_number() {
        let found = watts("pmic");
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["3V3_SYS", "VDD_CORE", "curr1"]);
        let close = |n: usize, watts: f64| assert!((found[n].1 - watts).abs() < 1e-9, "{found:?}");
        close(0, 0.1 * 3.3);
        close(1, 2.0 * 0.8);
        close(2, 0.5 * 5.1);
    }

    #[test]
    fn several_chips_are_not_added_unasked() {
        let said = hwmon(&tree("pmic"), None).err().unwrap().to_string();
        assert!(said.contains("rp1_adc, ina226"), "{said}");
        assert!(hwmon(&tree("pmic"), Some("ina226")).is_ok());
        let said = hwmon(&tree("pmic"), Some("ina9"))
            .err()
            .unwrap()
            .to_string();
        assert!(said.contains("\"ina9\""), "{said}");
    }

    #[test]
    fn a_battery_counts_while_it_discharges() {
        let mut meter = battery(&tree("laptop")).unwrap();
        let start = std::time::Instant::now();
        meter.begin();
        std::thread::sleep(std::time::Duration::from_millis(120));
        let window = crate::energy::Window {
            from: 0.0,
            to: 0.0,
            cpu_seconds: 0.0,
        };
        let joules = meter.end(&window).unwrap();
        let most = 12.5 * start.elapsed().as_secs_f64();
        assert!((12.5 * 0.1..=most).contains(&joules), "{joules} of {most}");
        let said = battery(&tree("charging")).err().unwrap().to_string();
        assert_eq!(said, "BAT0 is charging");
    }
}
