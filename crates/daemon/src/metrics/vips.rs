//! Virtual addresses that weir holds itself.

use weir_metrics::{Gauges, Registry, Samples, Totals};

use crate::vips::{SegmentStatus, VipStatus};

/// The addresses, and the segments that they are on.
#[derive(Debug)]
pub struct VipMetrics {
    held: Gauges<1>,
    conflicts: Totals<1>,
    malformed: Totals<1>,
}

impl VipMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
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
        }
    }

    pub(crate) fn say(
        &self,
        samples: &mut Samples,
        vips: &[VipStatus],
        segments: &[SegmentStatus],
    ) {
        for vip in vips.iter().filter(|vip| vip.state != "unmanaged") {
            let address = vip.address.to_string();
            let is_held = ["held", "contested"].contains(&vip.state);
            samples.gauge(self.held, [&address], is_held);
            samples.total(self.conflicts, [&address], vip.conflicts);
        }
        for segment in segments {
            samples.total(self.malformed, [&segment.interface], segment.malformed);
        }
    }
}
