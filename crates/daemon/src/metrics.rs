//! The metrics of the daemon: each is declared here, or by the crate that counts
//! (sinks), and nowhere else. Who counts takes its family from here; what others
//! know is said by `service::gather` when somebody asks. docs/metrics.md has the
//! list, and a test holds the two against each other.

mod actions;
mod apps;
mod detection;
mod enforcement;
mod pools;
mod tokens;
mod vips;

use weir_metrics::{Gauges, Metric, MetricDefinition, Registry, Samples, Totals};
use weir_sinks::SinkMetrics;

pub use actions::{ActionCounters, ActionMetrics};
pub use apps::AppMetrics;
pub use detection::{
    DecoyMetrics, JailCounters, JailMetrics, ResolverLoad, ResolverMetrics, RingMetrics,
    SourceCounters, SourceMetrics, WatchCounters, WatchMetrics,
};
pub use enforcement::{ClassMetrics, ListMetrics, PacketMetrics, TableMetrics};
pub use pools::PoolMetrics;
pub use tokens::TokenMetrics;
pub use vips::VipMetrics;

/// All metrics of the daemon.
#[derive(Debug)]
#[allow(missing_docs)] // the fields are named by what they are about
pub struct Metrics {
    registry: Registry,
    pub host: HostMetrics,
    pub packets: PacketMetrics,
    pub table: TableMetrics,
    pub classes: ClassMetrics,
    pub lists: ListMetrics,
    pub sources: SourceMetrics,
    pub jails: JailMetrics,
    pub resolver: ResolverMetrics,
    pub decoy: DecoyMetrics,
    pub pools: PoolMetrics,
    pub vips: VipMetrics,
    pub apps: AppMetrics,
    pub tokens: TokenMetrics,
    pub watches: WatchMetrics,
    pub rings: RingMetrics,
    pub actions: ActionMetrics,
    pub sinks: SinkMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        Self {
            host: HostMetrics::declare(&mut registry),
            packets: PacketMetrics::declare(&mut registry),
            table: TableMetrics::declare(&mut registry),
            classes: ClassMetrics::declare(&mut registry),
            lists: ListMetrics::declare(&mut registry),
            sources: SourceMetrics::declare(&mut registry),
            jails: JailMetrics::declare(&mut registry),
            resolver: ResolverMetrics::declare(&mut registry),
            decoy: DecoyMetrics::declare(&mut registry),
            pools: PoolMetrics::declare(&mut registry),
            vips: VipMetrics::declare(&mut registry),
            apps: AppMetrics::declare(&mut registry),
            tokens: TokenMetrics::declare(&mut registry),
            watches: WatchMetrics::declare(&mut registry),
            rings: RingMetrics::declare(&mut registry),
            actions: ActionMetrics::declare(&mut registry),
            sinks: SinkMetrics::declare(&mut registry),
            registry,
        }
    }
}

impl Metrics {
    /// What is declared, in the order in which it is shown.
    pub fn declared(&self) -> impl Iterator<Item = &MetricDefinition> {
        self.registry.declared()
    }

    /// All metrics as they are now; see [`Registry::gather`].
    pub fn gather(&self, say: impl FnOnce(&mut Samples)) -> Vec<Metric> {
        self.registry.gather(say)
    }
}

/// The daemon as a whole, and what it remembers.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct HostMetrics {
    pub info: Gauges<3>,
    pub start: Gauges<0>,
    pub protection: Gauges<1>,
    pub alerts: Gauges<1>,
    pub unsaved: Gauges<0>,
    pub unsaved_forgotten: Totals<0>,
}

impl HostMetrics {
    fn declare(registry: &mut Registry) -> Self {
        Self {
            info: registry.gauges(
                "weir_info",
                "1, with the version, the backend in force and the instance.",
                &["version", "backend", "instance"],
            ),
            start: registry.gauges(
                "weir_start_time_seconds",
                "When the daemon started, in seconds since 1970.",
                &[],
            ),
            protection: registry.gauges(
                "weir_protection",
                "1 for the state in which the host is: protected, observing or not-protected.",
                &["state"],
            ),
            alerts: registry.gauges(
                "weir_alerts",
                "Alerts that hold now, by what stands before the colon of their subject.",
                &["kind"],
            ),
            unsaved: registry.gauges(
                "weir_store_unsaved_changes",
                "Changes that wait to be written to the database.",
                &[],
            ),
            unsaved_forgotten: registry.totals(
                "weir_store_forgotten_changes_total",
                "Changes that found no room while the database could not be written.",
                &[],
            ),
        }
    }
}
