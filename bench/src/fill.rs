//! Filling the table: bare stores, through the backend, and at a start from
//! pins and from the database.

use std::{
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use weir_bpf::{BanCounts, Generation, Geometry, Key, Options, Placed, Slot, table::NEVER};
use weir_core::{Action, Ban, BanSource, BanTarget, PortSet, Prefix, Until};
use weir_daemon::store::{Change, KeepHistory, Store, clock::Now, restore};
use weir_enforce::{
    Backend, BackendChoice, BootNanos, Entry, Expiry, Policy, Settings,
    backend_swap::{self, BackendHome},
    kernel::{self, Hook, KernelConfig},
};
use weir_events::alerts::Alerts;

use weir_netlab::Net;

use crate::report::Report;

const ROUNDS: usize = 5;
const MILLION: u32 = 1_000_000;
const KEEP_HISTORY: KeepHistory = KeepHistory {
    time: Duration::from_secs(86_400),
    bytes: 1 << 40,
};
const EVIDENCE: &str = "Nov 21 10:00:00 host sshd[4711]: Failed password for invalid user admin \
                        from 192.0.2.7 port 4711 ssh2";

fn address(n: u32, ipv6: bool) -> IpAddr {
    if ipv6 {
        IpAddr::V6((0x2a00_u128 << 112 | u128::from(n) << 64 | 1).into())
    } else {
        IpAddr::V4((0x1000_0000 + n.wrapping_mul(97)).into())
    }
}

fn entries(count: u32, ipv6: bool) -> anyhow::Result<Vec<Entry>> {
    let policy = Arc::new(Policy {
        producer: BanSource::Jail("bench".into()),
        scope: PortSet::all(),
        action: Action::Drop,
    });
    let expiry = Expiry::At(BootNanos(BootNanos::now().0 + 3_600_000_000_000));
    (0..count)
        .map(|n| {
            let subject = BanTarget::new(Prefix::host(address(n, ipv6)))?;
            Ok(Entry {
                subject,
                policy: policy.clone(),
                expiry,
            })
        })
        .collect()
}

/// An instance that vanishes with its pins.
struct Instance(KernelConfig);

impl Instance {
    fn new() -> Self {
        Self(KernelConfig {
            instance: format!("bench-{}", std::process::id()),
            pin_root: kernel::DEFAULT_ROOT.into(),
            ipv4_length: None,
            room: Default::default(),
            balanced_flows: None,
            settings: Settings {
                interfaces: Vec::new(),
                backend: BackendChoice::Kernel(Hook::Tcx),
                advice: Default::default(),
                max_bans: 2_000_000,
                observe: false,
            },
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = kernel::detach(&self.0.pin_root, &self.0.instance);
    }
}

/// The rows about filling.
pub fn run(report: &mut Report, _weir: &Path) -> anyhow::Result<()> {
    for (name, count, ipv6) in [
        ("insert table alone ipv4 131k", 131_072, false),
        ("insert table alone ipv4 1M", MILLION, false),
        ("insert table alone ipv6 1M", MILLION, true),
    ] {
        let rates = (0..ROUNDS)
            .map(|_| alone(count, ipv6))
            .collect::<anyhow::Result<Vec<_>>>()?;
        report.add(name, "M/s", &rates);
    }
    for (family, ipv6) in [("ipv4", false), ("ipv6", true)] {
        let many = entries(MILLION, ipv6)?;
        let mut rates = Vec::new();
        let mut pins = Vec::new();
        for _ in 0..ROUNDS {
            let instance = Instance::new();
            let backend = kernel::open(&instance.0)?;
            let start = Instant::now();
            let done = backend.insert(&many)?;
            rates.push(f64::from(MILLION) / start.elapsed().as_secs_f64() / 1e6);
            ensure!(
                done.new == many.len(),
                "{} of {} inserted",
                done.new,
                many.len()
            );
            report_memory(report, backend.memory(), family, rates.len());
            drop(backend);
            let start = Instant::now();
            let backend = kernel::open(&instance.0)?;
            pins.push(start.elapsed().as_secs_f64());
            ensure!(
                backend.usage().bans == many.len(),
                "bans are missing after the take-over"
            );
        }
        report.add(
            &format!("insert decision to table {family} 1M"),
            "M/s",
            &rates,
        );
        report.add(&format!("restore 1M {family} from pins"), "s", &pins);
        let dir = tempfile::tempdir()?;
        let rates = to_database(dir.path(), &many)?;
        report.add(&format!("save 1M {family} by 50,000"), "M/s", &rates);
        let seconds = from_database(dir.path(), many.len())?;
        report.add(
            &format!("restore 1M {family} from the database"),
            "s",
            &seconds,
        );
    }
    through_others(report)
}

/// 100k bans at once and one more, through the backends that are programs of the
/// system; in a network of its own.
fn through_others(report: &mut Report) -> anyhow::Result<()> {
    let many = entries(100_000, false)?;
    let one = entries(100_001, false)?.split_off(100_000);
    for backend in [BackendChoice::Nft, BackendChoice::Ipset] {
        let (mut bulk, mut single) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let net = Net::new()?;
            let (all, another) = net.namespace("host")?.enter(|| -> anyhow::Result<_> {
                let mut place = BackendHome {
                    instance: format!("bench-{}", std::process::id()),
                    pin_root: kernel::DEFAULT_ROOT.into(),
                    ipv4_length: None,
                    balanced_flows: None,
                    room: Default::default(),
                    settings: Instance::new().0.settings.clone(),
                };
                place.settings.backend = backend;
                let backend = backend_swap::open(&place)?;
                backend.attach()?;
                let time = |entries: &[Entry]| -> anyhow::Result<f64> {
                    let start = Instant::now();
                    let done = backend.insert(entries)?;
                    let took = start.elapsed().as_secs_f64();
                    ensure!(done.new == entries.len(), "{} inserted", done.new);
                    Ok(took)
                };
                Ok((time(&many)?, time(&one)?))
            })??;
            bulk.push(all);
            single.push(another * 1e3);
        }
        let name = backend.name();
        report.add(
            &format!("insert 100k bans at once through {name}"),
            "s",
            &bulk,
        );
        report.add(&format!("insert one more through {name}"), "ms", &single);
    }
    Ok(())
}

fn report_memory(report: &mut Report, bytes: Option<u64>, family: &str, round: usize) {
    if let (1, Some(bytes)) = (round, bytes) {
        let mib = bytes as f64 / f64::from(1 << 20);
        report.add(&format!("memory of the tables {family} 1M"), "MiB", &[mib]);
    }
}

fn alone(count: u32, ipv6: bool) -> anyhow::Result<f64> {
    let (v4_hosts, v6_hosts) = if ipv6 { (0, count) } else { (count, 0) };
    let bans = BanCounts {
        v4_hosts: v4_hosts as usize,
        v6_hosts: v6_hosts as usize,
        ..BanCounts::default()
    };
    let options = Options::bans(Geometry::for_bans(bans));
    let generation = Generation::create(1, &options, None)?;
    let keys = (0..count)
        .map(|n| Key::of(Prefix::host(address(n, ipv6))).context("a key"))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    for keys in keys.chunks(16) {
        keys.iter().for_each(|key| generation.table.prefetch(*key));
        for &key in keys {
            let placed = generation.table.insert(Slot {
                key,
                policy: 1,
                expiry: NEVER,
            });
            ensure!(placed == Placed::New, "{placed:?}");
        }
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64() / 1e6)
}

/// Bans as a jail makes them, in an order that no tree likes, until each
/// portion is on disk.
fn to_database(dir: &Path, many: &[Entry]) -> anyhow::Result<Vec<f64>> {
    const STRIDE: usize = 611_953; // a prime: visits each entry once
    let (store, _) = Store::open(dir, KEEP_HISTORY, Arc::new(Alerts::default()));
    let now = Timestamp::now();
    let until = Until::At(now + jiff::SignedDuration::from_hours(1));
    let order: Vec<usize> = (0..many.len()).map(|n| n * STRIDE % many.len()).collect();
    let mut rates = Vec::new();
    for portion in order.chunks(50_000) {
        let changes = portion.iter().map(|&n| &many[n]).map(|entry| Change::Ban {
            ban: Ban {
                subject: entry.subject,
                scope: entry.policy.scope.clone(),
                producer: entry.policy.producer.clone(),
                action: entry.policy.action,
                reason: "5 failures in 10m".into(),
                since: now,
                until,
                evidence: vec![EVIDENCE.into(); 3],
            },
            expiry: entry.expiry,
        });
        let changes: Vec<_> = changes.collect();
        let start = Instant::now();
        store.remember_now(changes)?;
        rates.push(portion.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    store.close();
    Ok(rates)
}

/// Opens database and backend as the daemon starts, from nothing to the last ban in a new
/// table; returns the seconds of each round.
fn from_database(dir: &Path, bans: usize) -> anyhow::Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        let mut instance = Instance::new();
        let start = Instant::now();
        let ((store, loaded), backend) =
            Store::open_beside(dir, KEEP_HISTORY, Arc::new(Alerts::default()), |room| {
                instance.0.room = room;
                kernel::open(&instance.0)
            });
        let backend = backend?;
        let plan = restore::plan(loaded, Vec::new(), false, &Now::read());
        backend.insert(&plan.insert)?;
        seconds.push(start.elapsed().as_secs_f64());
        ensure!(
            backend.usage().bans == bans,
            "{} restored",
            backend.usage().bans
        );
        store.close();
    }
    Ok(seconds)
}
