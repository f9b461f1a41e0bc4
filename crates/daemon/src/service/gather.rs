//! Says the metrics that nobody counts: what the status knows, of the kernel, the
//! ledger, tables and lists. Once asked, nothing is asked twice.

use weir_metrics::{Metric, Samples, text};

use super::{Questions, Refusal, State, Status};
use crate::{access::lists::ListStatus, metrics::Metrics};

impl Questions {
    /// The metrics as Prometheus reads them.
    pub fn metrics_text(&self) -> Result<String, Refusal> {
        Ok(text(&self.status()?.metrics))
    }

    /// The metrics of this moment.
    pub(super) fn gather(&self, status: &Status) -> Vec<Metric> {
        let lists = self.lists();
        let start = self.started.0.as_second() as f64;
        self.metrics.gather(|samples| {
            let metrics = &self.metrics;
            samples.gauge(metrics.host.start, [], start);
            for (kind, count) in self.alerts.kinds() {
                samples.gauge(metrics.host.alerts, [&kind], count);
            }
            host(metrics, samples, status);
            packets(metrics, samples, status);
            table(metrics, samples, status);
            samples.gauge(metrics.table.refused, [], self.bans.waiting());
            if let Some(work) = self.backend.table_work() {
                let table = &metrics.table;
                samples.total(table.expiry_passes, [], work.expiry_passes);
                samples.total(table.growths, [], work.growths);
                samples.total(table.policy_scans, [], work.policy_scans);
            }
            classes(metrics, samples, status);
            for list in &lists {
                one_list(metrics, samples, list);
            }
            detection(metrics, samples, status);
            metrics.pools.say(samples, &status.pools);
            metrics
                .vips
                .say(samples, &status.vips, &status.segments, &status.vrrp);
            if let Some(app) = &status.app {
                metrics.apps.say(samples, app);
            }
            if let Some(token) = &status.token {
                metrics.tokens.say(samples, token);
            }
            for sink in &status.sinks {
                let is_failing = sink.failing.is_some();
                metrics
                    .sinks
                    .say(samples, &sink.name, sink.queued, is_failing);
            }
        })
    }
}

fn host(metrics: &Metrics, samples: &mut Samples, status: &Status) {
    let host = &metrics.host;
    let info = [status.version, status.backend, status.instance.as_str()];
    samples.gauge(host.info, info, 1_u64);
    for state in State::ALL {
        let is_now = status.protection.state == state;
        samples.gauge(host.protection, [state.name()], is_now);
    }
    samples.gauge(host.unsaved, [], status.unsaved);
    samples.total(host.unsaved_forgotten, [], status.unsaved_forgotten);
}

fn packets(metrics: &Metrics, samples: &mut Samples, status: &Status) {
    let packets = &metrics.packets;
    for counter in &status.counters {
        let reason = [counter.reason.name()];
        samples.total(packets.packets, reason, counter.packets);
        samples.total(packets.bytes, reason, counter.bytes);
    }
    for counter in &status.dropped {
        let country = counter.country.map(|country| country.to_string());
        let (list, country) = (counter.list.as_deref(), country.as_deref());
        let by = [list.unwrap_or_default(), country.unwrap_or_default()];
        samples.total(packets.denied_packets, by, counter.packets);
        samples.total(packets.denied_bytes, by, counter.bytes);
    }
    for at in &status.attachments {
        let is_attached = at.hook != "none";
        samples.gauge(packets.attached, [&at.interface, &at.hook], is_attached);
    }
}

fn table(metrics: &Metrics, samples: &mut Samples, status: &Status) {
    let (table, usage) = (&metrics.table, &status.usage.entries);
    samples.gauge(table.bans, [], usage.bans);
    for (producer, bans) in &status.by_producer {
        samples.gauge(table.by_producer, [&producer.to_string()], *bans);
    }
    samples.gauge(table.max_bans, [], usage.max_bans);
    samples.gauge(table.prefix_bans, [], usage.prefix_bans);
    samples.gauge(table.max_prefix_bans, [], usage.max_prefix_bans);
    samples.gauge(table.notified, [], usage.notified);
    samples.total(table.evicted, [], usage.evicted);
    samples.gauge(table.overflow, [], usage.overflow);
    samples.gauge(table.generation, [], usage.generation);
    if let Some(bytes) = status.usage.map_bytes {
        samples.gauge(table.memory, [], bytes);
    }
}

fn classes(metrics: &Metrics, samples: &mut Samples, status: &Status) {
    let Some(shown) = &status.classes else {
        return;
    };
    let classes = &metrics.classes;
    for (family, ranges) in ["ipv4", "ipv6"].into_iter().zip(shown.ranges) {
        samples.gauge(classes.ranges, [family], ranges);
    }
    samples.gauge(classes.classes, [], shown.count);
    let took = shown.rebuilt_in_ms as f64 / 1000.0;
    samples.gauge(classes.rebuild, [], took);
    for database in &shown.databases {
        if let Some(built) = database.built {
            let built = built.as_second() as f64;
            samples.gauge(classes.database_built, [&database.name], built);
        }
    }
}

fn one_list(metrics: &Metrics, samples: &mut Samples, list: &ListStatus) {
    let (lists, name) = (&metrics.lists, list.name.as_str());
    samples.gauge(lists.prefixes, [name, "ipv4"], list.ipv4);
    samples.gauge(lists.prefixes, [name, "ipv6"], list.ipv6);
    samples.gauge(lists.entries, [name], list.entries);
    samples.gauge(lists.skipped, [name], list.skipped.count);
    samples.gauge(lists.refused, [name], list.refused.count);
    samples.gauge(lists.malformed, [name], list.malformed.count);
    samples.gauge(lists.exempt, [name], list.exempt);
    samples.gauge(lists.bytes, [name], list.bytes);
    if let Some(at) = list.last_success {
        samples.gauge(lists.refreshed, [name], at.as_second() as f64);
    }
    samples.gauge(lists.failing, [name], list.last_failure.is_some());
}

fn detection(metrics: &Metrics, samples: &mut Samples, status: &Status) {
    for jail in &status.jails {
        let (jails, name) = (&metrics.jails, jail.name.as_str());
        samples.gauge(jails.bans_in_force, [name], jail.bans_in_force);
        samples.gauge(jails.tracked, [name], jail.tracked);
        samples.total(jails.forgotten, [name], jail.forgotten);
    }
    let resolver = &metrics.resolver;
    let [names, findings, answers] = resolver.load.get();
    samples.gauge(resolver.names, [], names);
    samples.gauge(resolver.findings, [], findings);
    samples.gauge(resolver.answers, [], answers);
    if let Some(now) = &status.decoy {
        let decoy = &metrics.decoy;
        samples.gauge(decoy.open, [], now.open);
        samples.gauge(decoy.served, [], now.served.len());
        samples.total(decoy.answered, [], now.answered);
        samples.total(decoy.unanswered, [], now.unanswered);
        samples.total(decoy.wrong_cookies, [], now.wrong_cookies);
        samples.gauge(decoy.bans_in_force, [], now.bans_in_force);
    }
    if let Some(now) = &status.tarpit {
        let ports = &metrics.decoy;
        samples.total(ports.tarpit_answered, [], now.answered);
        samples.total(ports.tarpit_held, [], now.held);
        samples.total(ports.tarpit_unanswered, [], now.unanswered);
        samples.total(ports.tarpit_resolved, [], now.resolved);
        samples.total(ports.tarpit_asked, [], now.asked);
        samples.total(ports.tarpit_crowded, [], now.crowded);
    }
    for watch in &status.watches {
        samples.gauge(metrics.watches.running, [&watch.name], watch.pid.is_some());
    }
    for ring in &status.rings {
        let (rings, name) = (&metrics.rings, ring.ring.as_str());
        samples.gauge(rings.workers, [name], ring.workers);
        samples.gauge(rings.segments, [name], ring.segments);
        samples.gauge(rings.unreadable, [name], ring.unreadable);
        samples.total(rings.bad, [name], ring.bad);
        samples.total(rings.records, [name], ring.records);
        samples.total(rings.lost, [name], ring.lost);
        samples.total(rings.lost_bytes, [name], ring.lost_bytes);
    }
}
