//! Virtual addresses that weir holds itself, and the virtual routers that some are of.

use weir_metrics::{Gauges, Registry, Samples, Totals};

use crate::vips::{SegmentStatus, VipStatus, VrrpStatus};

/// The addresses, and the segments that they are on.
#[derive(Debug)]
pub struct VipMetrics {
    held: Gauges<1>,
    conflicts: Totals<1>,
    malformed: Totals<1>,
    active: Gauges<2>,
    priority: Gauges<2>,
    transitions: Totals<2>,
    refused: Totals<2>,
}

impl VipMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        const ROUTER: &[&str; 2] = &["router", "family"];
        Self {
            held: registry.gauges(
                "weir_vip_held",
                "1 for a virtual address that weir has added to its interface.",
                &["vip"],
            ),
            conflicts: registry.totals(
                "weir_vip_conflicts_total",
                "ARP and neighbour discovery by which others say that they have the address.",
                &["vip"],
            ),
            malformed: registry.totals(
                "weir_vip_malformed_frames_total",
                "ARP and neighbour discovery on an interface with virtual addresses that was not as its RFC has it.",
                &["interface"],
            ),
            active: registry.gauges(
                "weir_vrrp_active",
                "1 while this host is the active one of the virtual router.",
                ROUTER,
            ),
            priority: registry.gauges(
                "weir_vrrp_priority",
                "This host's priority in the virtual router as it is now.",
                ROUTER,
            ),
            transitions: registry.totals(
                "weir_vrrp_transitions_total",
                "How often this host has become the active one of the virtual router, or ceased to be.",
                ROUTER,
            ),
            refused: registry.totals(
                "weir_vrrp_refused_total",
                "Advertisements of virtual routers that were not taken, by the reason.",
                &["interface", "reason"],
            ),
        }
    }

    pub(crate) fn say(
        &self,
        samples: &mut Samples,
        vips: &[VipStatus],
        segments: &[SegmentStatus],
        routers: &[VrrpStatus],
    ) {
        for vip in vips.iter().filter(|vip| vip.state != "unmanaged") {
            let address = vip.address.to_string();
            let is_held = ["held", "contested"].contains(&vip.state);
            samples.gauge(self.held, [&address], is_held);
            samples.total(self.conflicts, [&address], vip.conflicts);
        }
        for segment in segments {
            samples.total(self.malformed, [&segment.interface], segment.malformed);
            for (reason, count) in &segment.refused {
                samples.total(self.refused, [&segment.interface, *reason], *count);
            }
        }
        for router in routers {
            let of = [router.name.as_str(), router.family];
            samples.gauge(self.active, of, router.state == "active");
            samples.gauge(self.priority, of, u64::from(router.priority));
            samples.total(self.transitions, of, router.transitions);
        }
    }
}
