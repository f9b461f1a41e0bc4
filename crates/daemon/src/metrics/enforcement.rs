//! What the kernel does, and what it does it by: packets, the ban table, geofence
//! and lists.

use weir_metrics::{Counter, Gauges, Registry, Totals};

/// Packets and bytes by the exit that they take.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct PacketMetrics {
    pub packets: Totals<1>,
    pub bytes: Totals<1>,
    pub denied_packets: Totals<2>,
    pub denied_bytes: Totals<2>,
    pub attached: Gauges<2>,
}

impl PacketMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            packets: registry.totals(
                "weir_packets_total",
                "Packets by the reason of their verdict, over all interfaces, since the tables were made.",
                &["reason"],
            ),
            bytes: registry.totals(
                "weir_packet_bytes_total",
                "Bytes of these packets, from the Ethernet header on.",
                &["reason"],
            ),
            denied_packets: registry.totals(
                "weir_denied_packets_total",
                "Packets that a list dropped, or the geofence because of a country (list is empty), or of none (both are).",
                &["list", "country"],
            ),
            denied_bytes: registry.totals(
                "weir_denied_bytes_total",
                "Bytes of these packets, from the Ethernet header on.",
                &["list", "country"],
            ),
            attached: registry.gauges(
                "weir_interface_attached",
                "1 for an interface at which the packet path is attached, with its hook; 0 for one that is not there.",
                &["interface", "hook"],
            ),
        }
    }
}

/// The table of bans.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct TableMetrics {
    pub bans: Gauges<0>,
    pub by_producer: Gauges<1>,
    pub max_bans: Gauges<0>,
    pub prefix_bans: Gauges<0>,
    pub max_prefix_bans: Gauges<0>,
    pub notified: Gauges<0>,
    pub evicted: Totals<0>,
    pub overflow: Gauges<0>,
    pub generation: Gauges<0>,
    pub memory: Gauges<0>,
    pub expiry_passes: Totals<0>,
    pub growths: Totals<0>,
    pub policy_scans: Totals<0>,
    pub refused: Gauges<0>,
    pub refused_given_up: Counter,
}

impl TableMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            bans: registry.gauges(
                "weir_bans_in_force",
                "Bans in force, without those of weir_prefix_bans_in_force.",
                &[],
            ),
            by_producer: registry.gauges(
                "weir_producer_bans_in_force",
                "Bans in force by who made them: manual, decoy, tarpit, jail:NAME, watch:NAME. Those that only notify are counted too.",
                &["producer"],
            ),
            max_bans: registry.gauges(
                "weir_bans_max",
                "How many bans may be in force: max_bans of the configuration.",
                &[],
            ),
            prefix_bans: registry.gauges(
                "weir_prefix_bans_in_force",
                "Bans in force of prefixes other than addresses, IPv6 /64 and the configured IPv4 length.",
                &[],
            ),
            max_prefix_bans: registry.gauges(
                "weir_prefix_bans_max",
                "How many bans of such prefixes may be in force.",
                &[],
            ),
            notified: registry.gauges(
                "weir_notified_bans",
                "Bans of jails that only notify: they are in no table, and no packet is dropped for them.",
                &[],
            ),
            evicted: registry.totals(
                "weir_evicted_bans_total",
                "Bans that had to go for others because the table was at its cap.",
                &[],
            ),
            overflow: registry.gauges(
                "weir_overflow_bans",
                "Bans in the overflow area of the table.",
                &[],
            ),
            generation: registry.gauges(
                "weir_table_generation",
                "The number of the tables in force: one more each time they are made anew.",
                &[],
            ),
            memory: registry.gauges(
                "weir_table_memory_bytes",
                "Kernel memory of the tables, where the kernel tells it.",
                &[],
            ),
            expiry_passes: registry.totals(
                "weir_table_expiry_passes_total",
                "Passes over the table for bans that are over, so that a new one has room.",
                &[],
            ),
            growths: registry.totals(
                "weir_table_growths_total",
                "Attempts to make larger tables, for want of room.",
                &[],
            ),
            policy_scans: registry.totals(
                "weir_table_policy_scans_total",
                "Passes over the table for policies that no ban has any more.",
                &[],
            ),
            refused: registry.gauges(
                "weir_refused_bans",
                "Bans that the backend refused, and that are tried again.",
                &[],
            ),
            refused_given_up: registry
                .counters(
                    "weir_refused_bans_given_up_total",
                    "Refused bans that were given up because too many waited.",
                    &[],
                )
                .of([]),
        }
    }
}

/// Geofence and lists as they are enforced.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct ClassMetrics {
    pub ranges: Gauges<1>,
    pub classes: Gauges<0>,
    pub rebuild: Gauges<0>,
    pub database_built: Gauges<1>,
}

impl ClassMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            ranges: registry.gauges(
                "weir_class_ranges",
                "Ranges of addresses that the geofence or a list says something about.",
                &["family"],
            ),
            classes: registry.gauges(
                "weir_classes",
                "Different things that the geofence and the lists say about a range.",
                &[],
            ),
            rebuild: registry.gauges(
                "weir_class_rebuild_seconds",
                "What the last rebuild and swap of these ranges took.",
                &[],
            ),
            database_built: registry.gauges(
                "weir_geo_database_built_timestamp_seconds",
                "When a GeoIP database was made, in seconds since 1970.",
                &["database"],
            ),
        }
    }
}

/// Gauges of each list.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct ListMetrics {
    pub prefixes: Gauges<2>,
    pub entries: Gauges<1>,
    pub skipped: Gauges<1>,
    pub refused: Gauges<1>,
    pub malformed: Gauges<1>,
    pub exempt: Gauges<1>,
    pub bytes: Gauges<1>,
    pub refreshed: Gauges<1>,
    pub failing: Gauges<1>,
}

impl ListMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            prefixes: registry.gauges(
                "weir_list_prefixes",
                "Prefixes of the list in force, after joining.",
                &["list", "family"],
            ),
            entries: registry.gauges(
                "weir_list_entries",
                "Entries of the list as they were written.",
                &["list"],
            ),
            skipped: registry.gauges(
                "weir_list_skipped_lines",
                "Lines of the list that are neither entry nor comment.",
                &["list"],
            ),
            refused: registry.gauges(
                "weir_list_refused_entries",
                "Entries of the list that no list may hold: too wide, private, reserved.",
                &["list"],
            ),
            malformed: registry.gauges(
                "weir_list_malformed_decisions",
                "Decisions of CrowdSec's that cannot be read.",
                &["list"],
            ),
            exempt: registry.gauges(
                "weir_list_exempt_prefixes",
                "Exempt addresses and prefixes that are on the list, and pass all the same.",
                &["list"],
            ),
            bytes: registry.gauges(
                "weir_list_bytes",
                "The size of the list, unpacked.",
                &["list"],
            ),
            refreshed: registry.gauges(
                "weir_list_last_success_timestamp_seconds",
                "When the list was last known to be the newest, in seconds since 1970.",
                &["list"],
            ),
            failing: registry.gauges(
                "weir_list_failing",
                "1 while the last refresh of the list has failed.",
                &["list"],
            ),
        }
    }
}
