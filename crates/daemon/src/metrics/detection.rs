//! What is found, and of what: jails, decoy ports, watches and rings.

use weir_metrics::{Gauges, Registry, Totals};

/// Each jail.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct JailMetrics {
    pub bans_in_force: Gauges<1>,
    pub tracked: Gauges<1>,
    pub forgotten: Totals<1>,
}

impl JailMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            bans_in_force: registry.gauges(
                "weir_jail_bans_in_force",
                "Bans of the jail that are in force.",
                &["jail"],
            ),
            tracked: registry.gauges(
                "weir_jail_tracked_subjects",
                "Addresses and prefixes with findings that count for the jail.",
                &["jail"],
            ),
            forgotten: registry.totals(
                "weir_jail_forgotten_subjects_total",
                "Addresses and prefixes whose findings had to go for others at the jail's cap.",
                &["jail"],
            ),
        }
    }
}

/// The decoy ports.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct DecoyMetrics {
    pub open: Gauges<0>,
    pub served: Gauges<0>,
    pub answered: Totals<0>,
    pub unanswered: Totals<0>,
    pub wrong_cookies: Totals<0>,
    pub bans_in_force: Gauges<0>,
}

impl DecoyMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            open: registry.gauges(
                "weir_decoy_open_ports",
                "Decoy ports, without those that somebody serves.",
                &[],
            ),
            served: registry.gauges(
                "weir_decoy_served_ports",
                "Decoy ports that somebody serves by now: they are not judged.",
                &[],
            ),
            answered: registry.totals(
                "weir_decoy_answered_syns_total",
                "SYNs to decoy ports that were answered with a cookie, since the tables were made.",
                &[],
            ),
            unanswered: registry.totals(
                "weir_decoy_unanswered_syns_total",
                "SYNs to decoy ports above the limit, dropped without an answer.",
                &[],
            ),
            wrong_cookies: registry.totals(
                "weir_decoy_wrong_cookies_total",
                "Cookies that came back to decoy ports wrong: guesses, most likely.",
                &[],
            ),
            bans_in_force: registry.gauges(
                "weir_decoy_bans_in_force",
                "Bans of the decoy ports that are in force.",
                &[],
            ),
        }
    }
}

/// Each watch.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct WatchMetrics {
    pub running: Gauges<1>,
}

impl WatchMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            running: registry.gauges(
                "weir_watch_running",
                "1 while the command of the watch runs.",
                &["watch"],
            ),
        }
    }
}

/// Each ring; what is counted begins anew with a reload.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct RingMetrics {
    pub workers: Gauges<1>,
    pub segments: Gauges<1>,
    pub unreadable: Gauges<1>,
    pub bad: Totals<1>,
    pub records: Totals<1>,
    pub lost: Totals<1>,
    pub lost_bytes: Totals<1>,
}

impl RingMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            workers: registry.gauges(
                "weir_ring_workers",
                "Threads that read the ring.",
                &["ring"],
            ),
            segments: registry.gauges(
                "weir_ring_segments",
                "Segments of the ring that are read.",
                &["ring"],
            ),
            unreadable: registry.gauges(
                "weir_ring_unreadable_files",
                "Files in the ring's directory that are refused: no segments, or of a user who is not trusted.",
                &["ring"],
            ),
            bad: registry.totals(
                "weir_ring_bad_segments_total",
                "Segments of the ring that were found bad while they were read.",
                &["ring"],
            ),
            records: registry.totals(
                "weir_ring_records_total",
                "Records of the ring that were read.",
                &["ring"],
            ),
            lost: registry.totals(
                "weir_ring_lost_records_total",
                "Records of the ring that were overwritten before they were read, or dropped by their writer.",
                &["ring"],
            ),
            lost_bytes: registry.totals(
                "weir_ring_lost_bytes_total",
                "Bytes of the lost records, headers included.",
                &["ring"],
            ),
        }
    }
}
