//! Where packets for virtual addresses went.

use weir_metrics::{Gauges, MAX_SAMPLES, Registry, Samples, Totals};

use crate::balance::{PoolStatus, ServiceStatus};

/// Pools, their services and reals.
#[derive(Debug)]
pub struct PoolMetrics {
    live: Gauges<1>,
    is_emergency: Gauges<1>,
    left_out: Gauges<0>,
    service_flows: Totals<3>,
    service_packets: Totals<3>,
    service_bytes: Totals<3>,
    unserved: Totals<3>,
    unremembered: Totals<3>,
    denied: Totals<3>,
    displaced: Totals<3>,
    quic: Totals<4>,
    up: Gauges<2>,
    weight: Gauges<2>,
    real_packets: Totals<2>,
    real_bytes: Totals<2>,
    flows: Totals<2>,
    active: Gauges<2>,
    failed: Totals<2>,
    refused: Totals<4>,
}

impl PoolMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        const SERVICE: &[&str; 3] = &["pool", "vip", "port"];
        const REAL: &[&str; 2] = &["pool", "real"];
        Self {
            live: registry.gauges(
                "weir_pool_live_reals",
                "Reals of the pool that take new flows; those for an emergency are not counted.",
                &["pool"],
            ),
            is_emergency: registry.gauges(
                "weir_pool_emergency",
                "1 while no real of the pool takes new flows: others do, or they are dropped.",
                &["pool"],
            ),
            left_out: registry.gauges(
                "weir_pool_services_left_out",
                "Virtual addresses times ports, of all pools, that have no metrics, because there are more than 1,024; weir pool show has them.",
                &[],
            ),
            service_flows: registry.totals(
                "weir_pool_service_flows_total",
                "Flows to a virtual address and port that began and are remembered; of the proxy, that a real was found for.",
                SERVICE,
            ),
            service_packets: registry.totals(
                "weir_pool_service_packets_total",
                "Packets for a virtual address and port that were sent to a real, since the pools changed.",
                SERVICE,
            ),
            service_bytes: registry.totals(
                "weir_pool_service_bytes_total",
                "Bytes of these packets, from the Ethernet header on.",
                SERVICE,
            ),
            unserved: registry.totals(
                "weir_pool_service_unserved_packets_total",
                "Packets for a virtual address and port that were dropped: no real was alive.",
                SERVICE,
            ),
            unremembered: registry.totals(
                "weir_pool_service_unremembered_packets_total",
                "Packets of flows that are not remembered, for more began at once than are.",
                SERVICE,
            ),
            denied: registry.totals(
                "weir_pool_service_denied_packets_total",
                "Packets for a virtual address and port that were dropped: the pool's access list denies their client.",
                SERVICE,
            ),
            displaced: registry.totals(
                "weir_pool_service_displaced_flows_total",
                "Flows with several packets, the last within 64 times 256 timer ticks, that were forgotten for new flows of this service.",
                SERVICE,
            ),
            quic: registry.totals(
                "weir_pool_service_quic_packets_total",
                "Packets with a server ID in their QUIC connection ID, by server: known (it names a real, to which they went) or unknown (it names none; they went by their flow).",
                &["pool", "vip", "port", "server"],
            ),
            up: registry.gauges(
                "weir_pool_real_up",
                "1 for a real that passes its checks and was found on the segment.",
                REAL,
            ),
            weight: registry.gauges(
                "weir_pool_real_weight",
                "The real's share of new flows as it is now: 0 for one that is drained or disabled.",
                REAL,
            ),
            real_packets: registry.totals(
                "weir_pool_real_packets_total",
                "Packets that were sent to the real.",
                REAL,
            ),
            real_bytes: registry.totals(
                "weir_pool_real_bytes_total",
                "Bytes of these packets, from the Ethernet header on.",
                REAL,
            ),
            flows: registry.totals(
                "weir_pool_real_flows_total",
                "Flows that began at the real and are remembered.",
                REAL,
            ),
            active: registry.gauges(
                "weir_pool_real_active_flows",
                "Connections and flows of datagrams that the proxy relays to the real now, or with method = least-connections those that it has.",
                REAL,
            ),
            failed: registry.totals(
                "weir_pool_real_failed_connections_total",
                "Connections of the proxy that the real refused, or did not answer in time.",
                REAL,
            ),
            refused: registry.totals(
                "weir_pool_service_refused_flows_total",
                "Connections and flows of datagrams that the proxy refused, by reason.",
                &["pool", "vip", "port", "reason"],
            ),
        }
    }

    /// The pools, as the status has them: their first virtual addresses with a port, and how
    /// many there are beyond.
    pub(crate) fn say(&self, samples: &mut Samples, pools: &[PoolStatus]) {
        let mut said = 0;
        for pool in pools {
            self.say_pool(samples, pool);
            for service in &pool.services {
                if said < MAX_SAMPLES {
                    self.say_service(samples, &pool.name, service);
                }
                said += 1;
            }
        }
        samples.gauge(self.left_out, [], said.saturating_sub(MAX_SAMPLES));
    }

    fn say_service(&self, samples: &mut Samples, pool: &str, service: &ServiceStatus) {
        let vip = service.vip.to_string();
        let of = [pool, &vip, &service.port];
        samples.total(self.service_flows, of, service.flows);
        if let Some(proxy) = &service.proxy {
            samples.total(self.service_bytes, of, service.bytes);
            for (reason, count) in [
                ("denied", proxy.denied),
                ("no-real", proxy.no_real),
                ("max-connections", proxy.refused),
                ("max-connections-per-client", proxy.refused_client),
                ("unreachable", proxy.unreachable),
            ] {
                let of = [pool, &vip, &service.port, reason];
                samples.total(self.refused, of, count);
            }
            return;
        }
        samples.total(self.service_packets, of, service.packets);
        samples.total(self.service_bytes, of, service.bytes);
        samples.total(self.unserved, of, service.unserved);
        samples.total(self.unremembered, of, service.unremembered);
        samples.total(self.denied, of, service.denied);
        samples.total(self.displaced, of, service.displaced);
        for (server, count) in [
            ("known", service.quic_placed),
            ("unknown", service.quic_unknown),
        ] {
            if let Some(count) = count {
                let of = [pool, &vip, &service.port, server];
                samples.total(self.quic, of, count);
            }
        }
    }

    fn say_pool(&self, samples: &mut Samples, pool: &PoolStatus) {
        let name = pool.name.as_str();
        samples.gauge(self.live, [name], pool.live);
        samples.gauge(self.is_emergency, [name], pool.served_by != "reals");
        for real in &pool.reals {
            let address = real.address.to_string();
            let of = [name, address.as_str()];
            samples.gauge(self.up, of, real.state == "up");
            samples.gauge(self.weight, of, u64::from(real.weight));
            match &real.proxy {
                Some(proxy) => {
                    samples.gauge(self.active, of, proxy.active);
                    samples.total(self.failed, of, proxy.failed);
                }
                None => samples.total(self.real_packets, of, real.packets),
            }
            if let Some(active) = real.active {
                samples.gauge(self.active, of, active);
            }
            samples.total(self.real_bytes, of, real.bytes);
            samples.total(self.flows, of, real.flows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_addresses_beyond_the_limit_of_metrics_are_counted() {
        let service = |number: usize| ServiceStatus {
            vip: [10, 0, (number >> 8) as u8, number as u8].into(),
            port: "443/udp".to_owned(),
            flows: 1,
            new_flows_per_second: None,
            packets: 2,
            bytes: 3,
            unserved: 0,
            unremembered: 0,
            denied: 0,
            displaced: 0,
            quic_placed: None,
            quic_unknown: None,
            proxy: None,
        };
        let pool = |name: &str, services: std::ops::Range<usize>| PoolStatus {
            name: name.to_owned(),
            origin: "added".to_owned(),
            method: "maglev",
            forward: "l2",
            live: 0,
            served_by: "nobody".to_owned(),
            acl: None,
            services: services.map(service).collect(),
            reals: Vec::new(),
        };
        let mut registry = Registry::default();
        let metrics = PoolMetrics::declare(&mut registry);
        let gathered = |last: usize| {
            let pools = [
                pool("a", 0..MAX_SAMPLES - 1),
                pool("b", MAX_SAMPLES - 1..last),
            ];
            let all = registry.gather(|samples| metrics.say(samples, &pools));
            let of = |name: &str| {
                let metric = all.iter().find(|metric| metric.name == name).unwrap();
                metric.samples.clone()
            };
            let left_out = of("weir_pool_services_left_out")[0].value;
            let live = of("weir_pool_live_reals").len();
            (of("weir_pool_service_flows_total").len(), left_out, live)
        };
        assert_eq!(gathered(MAX_SAMPLES), (MAX_SAMPLES, 0_u64.into(), 2));
        assert_eq!(gathered(MAX_SAMPLES + 7), (MAX_SAMPLES, 7_u64.into(), 2));
    }
}
