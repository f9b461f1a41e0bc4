//! The stored result of a calibration. Reading never fails the daemon: a file
//! that is missing, bad or of another machine is a message at most, and `auto`
//! then goes by the driver.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use rustix::{fs::OFlags, io::Errno, process::geteuid};
use serde::{Deserialize, Serialize};
use weir_enforce::{
    hook_selection::{Calibration, HookCost, KnownInterface},
    kernel::Hook,
};

use super::{confidence::Spread, host::Company};
use weir_core::text::escape;

/// The file in the state directory.
pub const FILE: &str = "calibration.json";
/// The format of the file; a reader of another format refuses it.
const FORMAT: u32 = 2;
/// A real one has some 3 KiB.
const MAX_SIZE: u64 = 256 << 10;
const MAX_HOOKS: usize = 32;
const MAX_INTERFACES: usize = 1024;
/// The longest drop that is believed, in ns: one millisecond a packet.
const MAX_NANOS: f64 = 1e6;
/// Nothing makes a packet as much dearer.
const MAX_RATIO: f64 = 1e3;

/// What of the machine the figures hold for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// The processor's model name.
    pub cpu: String,
    /// Layout of the packet path's tables.
    pub abi: u32,
}

impl Machine {
    /// The one that this program runs on.
    pub fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let uname = rustix::system::uname();
        Self {
            kernel: uname.release().to_string_lossy().into_owned(),
            // ARM tells a number for the core, and the board's name at the end.
            cpu: ["model name", "Model", "cpu model", "CPU part"]
                .into_iter()
                .find_map(|key| {
                    cpuinfo.lines().find_map(|line| {
                        let (name, value) = line.split_once(':')?;
                        (name.trim() == key).then(|| value.trim().to_owned())
                    })
                })
                .unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            abi: weir_bpf::tables::ABI,
        }
    }

    /// Why figures of this machine do not hold for `now`.
    fn differs(&self, now: &Self) -> Option<String> {
        let (what, then, now) = if self.kernel != now.kernel {
            ("under the kernel", &self.kernel, &now.kernel)
        } else if self.cpu != now.cpu {
            ("on the processor", &self.cpu, &now.cpu)
        } else if self.abi != now.abi {
            return Some(format!(
                "it was measured with the packet path's layout {} and this weir has {}",
                self.abi, now.abi
            ));
        } else {
            return None;
        };
        Some(format!(
            "it was measured {what} {:?} and this is {now:?}",
            short(then)
        ))
    }
}

/// A packet and TCP without any hook.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// A packet that nobody wants goes through the stack, ns of one core.
    pub unwanted_ns: Spread,
    /// Cost of an unwanted packet of IPv4 alone, ns of one core.
    pub unwanted_ns_ipv4: Spread,
    /// Cost of an unwanted packet of IPv6 alone, ns of one core.
    pub unwanted_ns_ipv6: Spread,
    /// A packet to an address that is not here, ns of one core.
    pub innocent_ns: Spread,
    /// TCP that a core carries when it is both ends, Gbit/s.
    pub tcp_gbit: Spread,
}

/// Costs of one hook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookFigures {
    /// The configuration's word for it.
    pub hook: String,
    /// The reason why the hook cannot be attached here; the figures are missing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// A packet of a banned source, ns of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_ns: Option<Spread>,
    /// Cost of a dropped packet of IPv4 alone, ns of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_ns_ipv4: Option<Spread>,
    /// Cost of a dropped packet of IPv6 alone, ns of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_ns_ipv6: Option<Spread>,
    /// Cost of a dropped packet as a share of its cost without a hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_ratio: Option<Spread>,
    /// What an innocent packet costs more than without a hook, ns of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub innocent_ns: Option<Spread>,
    /// TCP that a core carries through the hook when it is both ends, Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_gbit: Option<Spread>,
    /// Loss of TCP throughput against none of the hooks, percent; below zero by noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_loss: Option<Spread>,
}

/// A real interface, as seen when the hooks were measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenInterface {
    /// The interface's name.
    pub name: String,
    /// The name of the driver; empty when the device tells none.
    pub driver: String,
    /// Whether the interface carries Ethernet frames.
    pub ethernet: bool,
    /// The interface's MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether the driver carries native XDP, if it could be told.
    pub native_xdp: Option<bool>,
    /// Whether the driver carries native XDP for jumbo frames as well.
    pub native_frags: Option<bool>,
    /// What of these puts packets together before the stack sees them, by the
    /// names that ethtool takes: gro, rx-gro-hw, lro.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// Receive queues in use, and how many the driver could have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<[u32; 2]>,
    /// BPF programs at weir's hooks.
    pub programs: Vec<String>,
    /// Hooks that were attached to it for a moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Trial>,
    /// What the administrator should know or change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
}

/// Did a hook attach?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The configuration's word for it.
    pub hook: String,
    /// The reason why the hook did not attach; `None` if it did.
    pub refused: Option<String>,
}

/// Rounds, time and conditions of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Rounds that counted.
    pub rounds: usize,
    /// Seconds that the measurement took, preparations included.
    pub seconds: u64,
    /// Whether the hooks' figures settled before the time was over.
    pub settled: bool,
    /// Processor time that others took meanwhile.
    #[serde(flatten)]
    pub company: Company,
}

/// The content of the result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The format of the file.
    pub format: u32,
    /// The version of the weir that measured.
    pub weir: String,
    /// The day of the measurement.
    pub date: String,
    /// The machine that was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// How the measurement was made.
    pub run: Run,
    /// The driver of the devices that the hooks were measured on.
    pub driver: String,
    /// Costs without a hook.
    pub baseline: Baseline,
    /// Costs of each hook.
    pub hooks: Vec<HookFigures>,
    /// Interfaces of this host.
    pub interfaces: Vec<SeenInterface>,
}

impl Figures {
    /// Figures of this machine, dated now.
    pub fn new(run: Run, baseline: Baseline, hooks: Vec<HookFigures>) -> Self {
        Self {
            format: FORMAT,
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            date: jiff::Timestamp::now()
                .round(jiff::Unit::Second)
                .unwrap_or_default()
                .to_string(),
            machine: Machine::this(),
            run,
            driver: "veth".to_owned(),
            baseline,
            hooks,
            interfaces: Vec::new(),
        }
    }

    /// What the choice of a hook needs of it.
    pub fn advice(&self) -> Calibration {
        let nanos = |ns: f64| Duration::from_nanos(ns.round().max(0.0) as u64);
        let percent = |loss: f64| loss.round().clamp(0.0, 100.0) as u8;
        // Of their own round's figure without a hook: steadier than the
        // figures themselves where the processor's speed changes.
        let without = self.baseline.unwanted_ns.median;
        let cost = |figures: &HookFigures| {
            if figures.refused.is_some() {
                return None;
            }
            Some(HookCost {
                // A hook of a later weir is none of this one's.
                hook: Hook::from_name(&figures.hook)?,
                drop: figures
                    .drop_ratio
                    .map(|ratio| ratio.map(|share| nanos(share * without))),
                traffic: figures.tcp_loss.map(|loss| loss.map(percent)),
            })
        };
        Calibration {
            day: self.date.chars().take(10).collect(),
            driver: self.driver.clone(),
            hooks: self.hooks.iter().filter_map(cost).collect(),
            interfaces: self
                .interfaces
                .iter()
                .map(|seen| KnownInterface {
                    name: seen.name.clone(),
                    driver: seen.driver.clone(),
                    native: seen.native_xdp,
                })
                .collect(),
        }
    }

    /// What of it cannot have been measured.
    fn flaw(&self) -> Option<&'static str> {
        let spreads = |max| {
            move |spread: &Option<Spread>| spread.as_ref().is_none_or(|spread| spread.is_sane(max))
        };
        let (nanos, percent, ratio) = (spreads(MAX_NANOS), spreads(1000.0), spreads(MAX_RATIO));
        if !self.baseline.unwanted_ns.is_sane(MAX_NANOS) {
            return Some("its figures are out of range");
        }
        if self.date.parse::<jiff::Timestamp>().is_err() {
            return Some("its date is none");
        }
        if self.hooks.len() > MAX_HOOKS || self.interfaces.len() > MAX_INTERFACES {
            return Some("it has more hooks or interfaces than there are");
        }
        let mut names: Vec<_> = self.hooks.iter().map(|h| &h.hook).collect();
        names.sort();
        names.dedup();
        if names.len() != self.hooks.len() {
            return Some("a hook is in it twice");
        }
        let sane = |hook: &HookFigures| {
            nanos(&hook.drop_ns)
                && hook.drop_ns.is_none_or(|ns| ns.median > 0.0)
                && ratio(&hook.drop_ratio)
                && percent(&hook.tcp_loss)
        };
        (!self.hooks.iter().all(sane)).then_some("its figures are out of range")
    }
}

/// The stored calibration, if there is one and it holds here.
///
/// # Errors
/// Why the one that is there is not used, fit for a log.
pub fn load(state_dir: &Path) -> Result<Option<Calibration>, String> {
    load_for(state_dir, &Machine::this())
}

fn load_for(state_dir: &Path, now: &Machine) -> Result<Option<Calibration>, String> {
    let path = state_dir.join(FILE);
    let ignored = |why: String| {
        format!(
            "the calibration in {} is ignored: {why}; `weir calibrate` measures anew",
            path.display()
        )
    };
    let Some(text) = read(&path).map_err(|e| ignored(e.to_string()))? else {
        return Ok(None);
    };
    // First its format and machine alone: a later weir's may have other figures.
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let broken =
        |e: serde_json::Error| ignored(format!("it is damaged ({})", short(&e.to_string())));
    let head: Head = serde_json::from_slice(&text).map_err(broken)?;
    if head.format != FORMAT {
        return Err(ignored(format!(
            "it has format {} and this weir reads {FORMAT}",
            head.format
        )));
    }
    let figures: Figures = serde_json::from_slice(&text).map_err(broken)?;
    if let Some(flaw) = figures.flaw() {
        return Err(ignored(format!("it is damaged ({flaw})")));
    }
    if let Some(why) = figures.machine.differs(now) {
        return Err(ignored(why));
    }
    Ok(Some(figures.advice()))
}

/// A regular file's content, if nobody but root and this process's user can have
/// written it; a pipe in its place must not hold the daemon up.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32)
        .open(path);
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(io::Error::other("it is a symbolic link"));
        }
        opened => opened?,
    };
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let owner = about.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to user {owner}")));
    }
    if about.mode() & 0o022 != 0 {
        return Err(io::Error::other("others than its owner may write to it"));
    }
    if about.len() > MAX_SIZE {
        return Err(io::Error::other(format!(
            "it has {} bytes, more than {MAX_SIZE}",
            about.len()
        )));
    }
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Somebody else's words in a message.
fn short(text: &str) -> String {
    escape(&text.chars().take(100).collect::<String>())
}

/// Writes the file: the old one stays until the new one is whole, and everybody
/// may read it.
pub fn save(state_dir: &Path, figures: &Figures) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)?;
    let new = state_dir.join(format!(".{FILE}.{}", std::process::id()));
    let written = write_new(&new, figures).and_then(|()| fs::rename(&new, state_dir.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(state_dir)?.sync_all()
}

fn write_new(path: &Path, figures: &Figures) -> io::Result<()> {
    // Of a run that was killed and had this process id.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    // Whatever the umask.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    let mut text = serde_json::to_vec_pretty(figures)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
