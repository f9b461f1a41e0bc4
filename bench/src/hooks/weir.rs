//! The rows of weir itself, through the trait that the daemon uses.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use weir_core::{Action, BanSource, BanTarget, PortSet, Prefix, PrefixSet, Reason};
use weir_enforce::{
    Backend, BackendChoice, BanCounts, BootNanos, Entry, Expiry, Policy, Settings, backend_swap,
    kernel::DEFAULT_ROOT,
};

use super::{
    flood_target::FloodTarget,
    task::{BANS, Running, Task},
};

/// The settings of a daemon with this backend.
fn settled(task: &Task, choice: BackendChoice, instance: &str) -> backend_swap::BackendHome {
    let bans = task.banned().len();
    backend_swap::BackendHome {
        instance: instance.to_owned(),
        pin_root: DEFAULT_ROOT.into(),
        ipv4_length: None,
        balanced_flows: None,
        room: if task.ipv4() {
            BanCounts {
                v4_hosts: bans,
                ..BanCounts::default()
            }
        } else {
            BanCounts {
                v6_hosts: bans,
                ..BanCounts::default()
            }
        },
        settings: Settings {
            interfaces: vec![task.place.dev.clone()],
            backend: choice,
            advice: Default::default(),
            max_bans: BANS as usize,
            observe: false,
        },
    }
}

struct Weir {
    backend: Option<Arc<dyn Backend>>,
    place: Arc<FloodTarget>,
    instance: String,
}

/// Bans whom the task names and attaches.
pub fn start(task: &Task, choice: BackendChoice) -> anyhow::Result<Box<dyn Running>> {
    static INSTANCES: AtomicU32 = AtomicU32::new(0);
    let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
    let mut weir = Weir {
        backend: None,
        place: task.place.clone(),
        instance: format!("bench-hooks-{}-{number}", std::process::id()),
    };
    let policy = Arc::new(Policy {
        producer: BanSource::Jail("bench".into()),
        scope: PortSet::all(),
        action: Action::Drop,
    });
    // Bans end.
    let end = BootNanos(BootNanos::now().0 + Duration::from_secs(86_400).as_nanos() as u64);
    let entries: Vec<Entry> = task
        .banned()
        .into_iter()
        .map(|addr| {
            Ok(Entry {
                subject: BanTarget::new(Prefix::host(addr))?,
                policy: policy.clone(),
                expiry: Expiry::At(end),
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let instance = weir.instance.clone();
    let backend = task.place.enter(|| -> anyhow::Result<_> {
        let backend = backend_swap::open(&settled(task, choice, &instance))?;
        backend.set_allow(&PrefixSet::default())?;
        backend.insert(&entries)?;
        backend.attach()?;
        // The bloom filter is made anew by housekeeping.
        backend.maintain()?;
        Ok(backend)
    })?;
    let backend = weir
        .backend
        .insert(backend.with_context(|| format!("weir's backend {}", choice.name()))?);
    let bans = backend.usage().bans;
    ensure!(bans == entries.len(), "{bans} bans of {}", entries.len());
    let attached = task.place.enter(|| backend.attachments())?;
    let there = attached.first().context("weir's attachment")?;
    ensure!(
        there.hook == choice.name(),
        "weir's backend {}: it took {}: {}",
        choice.name(),
        there.hook,
        there.note
    );
    Ok(Box::new(weir))
}

impl Running for Weir {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        let Some(backend) = &self.backend else {
            return Ok(0);
        };
        // Some backends run programs, which see the caller's namespace.
        let counters = self.place.enter(|| backend.counters())??;
        Ok(counters
            .iter()
            .filter(|c| matches!(c.reason, Reason::BannedAll | Reason::BannedScope))
            .map(|c| c.packets)
            .sum())
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let (backend, instance) = (self.backend.take(), &self.instance);
        let detached = self.place.enter(|| {
            drop(backend);
            backend_swap::detach(Path::new(DEFAULT_ROOT), instance)
        });
        if let Ok(Err(error)) = detached {
            eprintln!("cannot detach {instance}: {error}");
        }
    }
}
