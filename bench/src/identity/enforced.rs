//! weir's level on this kernel, attached for one turn: the programs and tables that are
//! shipped, a policy, and somebody who says who programs are, as the daemon does.

use std::{
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use weir_bpf::identity::{
    CgroupAt, Handle, Identity, IdentityEventKind, Key, Level, Loaded, Policy, Rule, RuleBits,
    Unknown, Verdict, detach,
};

/// Where pins of instances are.
pub const ROOT: &str = "/sys/fs/bpf/weir";

/// How much there is beside the program that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Programs that the kernel knows.
    pub programs: u16,
    /// Rules about programs, of which the last one is the client's.
    pub rules: usize,
}

/// A control group with rules in force; both go with this.
pub struct Enforced {
    instance: String,
    /// The kernel's tables, to change what is known while it measures.
    pub identity: Arc<Identity>,
    loaded: Loaded,
    pins: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    teller: Option<JoinHandle<()>>,
}

fn rule(verdict: Verdict, port: Option<u16>) -> Rule {
    Rule {
        verdict,
        has_who: true,
        is_out: true,
        is_in: true,
        protocols: 0,
        ports: port.map(|port| (port, port)).into_iter().collect(),
        outward: None,
        inward: None,
        netns: 0,
    }
}

/// Every rule but the last one is about all programs that are not measured; each of them is
/// asked of the client's as well, and does not hold.
fn policy(size: Size) -> Policy {
    let others = (1..size.rules).map(|number| rule(Verdict::Allow, Some(number as u16)));
    let mut rules: Vec<_> = others.collect();
    rules.push(rule(Verdict::Allow, None));
    Policy {
        rules,
        default: Verdict::Drop,
        unknown: Unknown::Learn,
        by_uid: false,
        by_cgroup: false,
        by_process: false,
        observe: false,
        asks: false,
        tell_all: false,
    }
}

impl Enforced {
    /// The name of its pins.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Fills, then attaches. `knows`: it is said of the client who it is. `level`: by name;
    /// `None`: the best that the kernel has.
    pub fn start(
        cgroup: &Path,
        size: Size,
        knows: bool,
        level: Option<Level>,
    ) -> anyhow::Result<Self> {
        let name = cgroup
            .file_name()
            .context("a control group below the root")?;
        let instance = name.to_string_lossy().into_owned();
        let at = CgroupAt::open(Some(cgroup))?;
        let (identity, loaded) = Identity::load_at(Path::new(ROOT), &instance, &at, level)?;
        let identity = Arc::new(identity);
        let all: RuleBits = (0..size.rules).collect();
        let mut known = vec![(Handle::new(1, 1), all)];
        for number in 2..=size.programs {
            let others: RuleBits = (0..size.rules.saturating_sub(1)).collect();
            known.push((Handle::new(number, 1), others));
        }
        identity.put_policy(&policy(size), &known, &[])?;
        for (handle, _) in &known[1..] {
            let key = Key {
                set: [u64::from(handle.number()), 1],
                cgroup: 0,
                uid: 0,
                space: 0,
                anonymous: false,
                altered: false,
            };
            identity.name(&key, *handle)?;
        }
        loaded.attach_noting()?;
        loaded.attach_judging()?;
        let stop = Arc::new(AtomicBool::new(false));
        let teller = thread::spawn({
            let (identity, stop) = (identity.clone(), stop.clone());
            let events = identity.events()?;
            move || {
                while !stop.load(Relaxed) {
                    for event in events.read(Duration::from_millis(5)).unwrap_or_default() {
                        if !knows || event.kind != IdentityEventKind::Unknown {
                            continue;
                        }
                        // Who is gone needs no name.
                        if let Ok(Some(seen)) = identity.look_at(event.pid) {
                            let _ = identity.name(&seen.key, Handle::new(1, 1));
                        }
                    }
                }
            }
        });
        Ok(Self {
            pins: pins(&instance)?,
            instance,
            identity,
            loaded,
            stop,
            teller: Some(teller),
        })
    }
}

/// The directories with pins of an instance.
pub fn pins(instance: &str) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(instance))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Makes directories of pins anew that have gone with them.
pub fn make(pins: &[PathBuf]) -> std::io::Result<()> {
    let mut dirs = std::fs::DirBuilder::new();
    pins.iter()
        .try_for_each(|pin| dirs.recursive(true).mode(0o700).create(pin))
}

impl Enforced {
    /// Takes the programs out of the way of the traffic; what is loaded stays, and who is
    /// known.
    pub fn pause(&self) -> anyhow::Result<()> {
        Ok(detach(Path::new(ROOT), &self.instance)?)
    }

    /// Puts them back.
    pub fn resume(&self) -> anyhow::Result<()> {
        make(&self.pins)?;
        self.loaded.attach_noting()?;
        Ok(self.loaded.attach_judging()?)
    }
}

impl Drop for Enforced {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
        if let Err(error) = detach(Path::new(ROOT), &self.instance) {
            eprintln!("cannot detach {}: {error}", self.instance);
        }
        let _ = std::fs::remove_dir(PathBuf::from(ROOT).join(&self.instance));
    }
}
