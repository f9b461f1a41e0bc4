//! What is read and what is found in it: sources of lines, jails, decoy ports,
//! watches and rings.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use weir_metrics::{Counter, Counters, Gauges, Registry, Totals};
use weir_sources::BatchInfo;

/// What a group of jails reads together: files, the journal or a ring.
#[derive(Debug)]
pub struct SourceMetrics {
    lines: Counters<1>,
    bytes: Counters<1>,
    cut: Counters<1>,
    truncated: Counters<1>,
    rotated: Counters<1>,
    rate_limited: Counters<1>,
}

/// Counters of one source, raised once a batch.
#[derive(Debug)]
pub struct SourceCounters {
    lines: Counter,
    bytes: Counter,
    cut: Counter,
    truncated: Counter,
    rotated: Counter,
    rate_limited: Counter,
}

impl SourceCounters {
    /// A batch was read.
    pub fn add(&self, batch: &BatchInfo) {
        for (counter, count) in [
            (&self.lines, batch.lines),
            (&self.bytes, batch.bytes),
            (&self.cut, batch.cut),
            (&self.truncated, batch.truncated),
            (&self.rotated, batch.rotated),
            (&self.rate_limited, batch.rate_limited),
        ] {
            if count > 0 {
                counter.add(count);
            }
        }
    }
}

impl SourceMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            lines: registry.counters(
                "weir_source_lines_total",
                "Lines that were read, each once, however many jails read them.",
                &["source"],
            ),
            bytes: registry.counters(
                "weir_source_bytes_total",
                "Bytes that were read.",
                &["source"],
            ),
            cut: registry.counters(
                "weir_source_cut_lines_total",
                "Lines too long, of which only the beginning was read.",
                &["source"],
            ),
            truncated: registry.counters(
                "weir_source_truncated_files_total",
                "Files found truncated or rewritten in place, and read again from the beginning.",
                &["source"],
            ),
            rotated: registry.counters(
                "weir_source_rotated_files_total",
                "Files that took the place of another one under the same name.",
                &["source"],
            ),
            rate_limited: registry.counters(
                "weir_source_rate_limited_entries_total",
                "Entries that journald says it has dropped by its rate limit.",
                &["source"],
            ),
        }
    }

    fn counters(&self) -> [&Counters<1>; 6] {
        [
            &self.lines,
            &self.bytes,
            &self.cut,
            &self.truncated,
            &self.rotated,
            &self.rate_limited,
        ]
    }

    /// The counters of one source.
    pub fn of(&self, source: &str) -> SourceCounters {
        let [lines, bytes, cut, truncated, rotated, rate_limited] =
            self.counters().map(|family| family.of([source]));
        SourceCounters {
            lines,
            bytes,
            cut,
            truncated,
            rotated,
            rate_limited,
        }
    }

    /// Forgets the counters of sources that are no longer read.
    pub fn keep_only(&self, is_kept: impl Fn(&str) -> bool) {
        for family in self.counters() {
            family.keep_only(&is_kept);
        }
    }
}

/// Counters of each jail.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct JailMetrics {
    pub lines: Counters<1>,
    pub findings: Counters<1>,
    pub bans: Counters<1>,
    pub ignored: Counters<1>,
    pub refused: Counters<1>,
    pub given_up: Counters<1>,
    pub names_resolved: Counters<1>,
    pub names_failed: Counters<1>,
    pub bans_in_force: Gauges<1>,
    pub tracked: Gauges<1>,
    pub forgotten: Totals<1>,
}

/// Counters of one jail, for the daemon's whole life.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct JailCounters {
    pub lines: Counter,
    pub findings: Counter,
    pub bans: Counter,
    pub ignored: Counter,
    pub refused: Counter,
    pub given_up: Counter,
    pub names_resolved: Counter,
    pub names_failed: Counter,
}

impl JailMetrics {
    /// The counters of one jail.
    pub fn of(&self, jail: &str) -> JailCounters {
        JailCounters {
            lines: self.lines.of([jail]),
            findings: self.findings.of([jail]),
            bans: self.bans.of([jail]),
            ignored: self.ignored.of([jail]),
            refused: self.refused.of([jail]),
            given_up: self.given_up.of([jail]),
            names_resolved: self.names_resolved.of([jail]),
            names_failed: self.names_failed.of([jail]),
        }
    }

    /// Forgets the counters of all jails but these.
    pub fn keep_only(&self, is_kept: impl Fn(&str) -> bool) {
        for family in [
            &self.lines,
            &self.findings,
            &self.bans,
            &self.ignored,
            &self.refused,
            &self.given_up,
            &self.names_resolved,
            &self.names_failed,
        ] {
            family.keep_only(&is_kept);
        }
    }

    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            lines: registry.counters(
                "weir_jail_lines_total",
                "Lines that the jail's filter has read.",
                &["jail"],
            ),
            findings: registry.counters(
                "weir_jail_findings_total",
                "Failures that the jail's filter has found.",
                &["jail"],
            ),
            bans: registry.counters(
                "weir_jail_bans_total",
                "Bans that the jail has decided.",
                &["jail"],
            ),
            ignored: registry.counters(
                "weir_jail_ignored_findings_total",
                "Failures that do not count: exempt, on the jail's ignore list, or too old.",
                &["jail"],
            ),
            refused: registry.counters(
                "weir_jail_refused_findings_total",
                "Failures that do not count because of what the line names: a prefix that is too wide, has a length out of range, can never be banned, or holds somebody exempt; what is no host name, one with use_dns = \"no\", or one for which there is no room.",
                &["jail"],
            ),
            given_up: registry.counters(
                "weir_jail_given_up_lines_total",
                "Lines that a filter of Fail2ban's has not read because searching them would have taken too long.",
                &["jail"],
            ),
            names_resolved: registry.counters(
                "weir_jail_resolved_names_total",
                "Failures of a host by name, each counted for all addresses of the name.",
                &["jail"],
            ),
            names_failed: registry.counters(
                "weir_jail_failed_names_total",
                "Failures of a host by name that do not count: it has no address, or nobody has answered in time.",
                &["jail"],
            ),
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

/// The lookups of host names that logs have.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct ResolverMetrics {
    pub load: ResolverLoad,
    pub names: Gauges<0>,
    pub findings: Gauges<0>,
    pub answers: Gauges<0>,
    pub lookups: Counters<1>,
    pub cached: Counter,
    pub full: Counters<1>,
    pub evicted: Counter,
    pub left_out: Counter,
}

/// Names that are asked about, findings that wait for them, and answers that are
/// remembered, as they were last.
#[derive(Debug, Default)]
pub struct ResolverLoad([AtomicUsize; 3]);

impl ResolverLoad {
    /// Replaces the numbers by new ones.
    pub fn set(&self, load: [usize; 3]) {
        for (kept, now) in self.0.iter().zip(load) {
            kept.store(now, Relaxed);
        }
    }

    /// The numbers as they were set last.
    pub fn get(&self) -> [usize; 3] {
        self.0.each_ref().map(|kept| kept.load(Relaxed))
    }
}

/// The counters, with a zero for each of these labels: the first that happens is an
/// increase.
fn beginning_with(counters: Counters<1>, labels: &[&str]) -> Counters<1> {
    for label in labels {
        counters.of([label]);
    }
    counters
}

impl ResolverMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            load: ResolverLoad::default(),
            names: registry.gauges(
                "weir_resolver_waiting_names",
                "Host names that are being looked up, or wait for that.",
                &[],
            ),
            findings: registry.gauges(
                "weir_resolver_waiting_findings",
                "Failures that wait for the addresses of a host name.",
                &[],
            ),
            answers: registry.gauges(
                "weir_resolver_known_names",
                "Host names whose addresses, or that they have none, are remembered.",
                &[],
            ),
            lookups: beginning_with(
                registry.counters(
                    "weir_resolver_lookups_total",
                    "Host names that were looked up, by the result: addresses, none, failed, or late, which may have another result as well.",
                    &["result"],
                ),
                &["addresses", "none", "failed", "late"],
            ),
            cached: registry
                .counters(
                    "weir_resolver_cached_total",
                    "Failures of a host by name whose addresses were known already.",
                    &[],
                )
                .of([]),
            full: beginning_with(
                registry.counters(
                    "weir_resolver_full_total",
                    "Failures of a host by name that found no room to wait, for want of room for names or findings.",
                    &["cap"],
                ),
                &["names", "findings"],
            ),
            evicted: registry
                .counters(
                    "weir_resolver_evicted_names_total",
                    "Remembered host names that had to go for others before their time.",
                    &[],
                )
                .of([]),
            left_out: registry
                .counters(
                    "weir_resolver_left_out_addresses_total",
                    "Addresses of host names that do not count because a name has more than 16.",
                    &[],
                )
                .of([]),
        }
    }
}

/// The decoy and tarpit ports.
#[derive(Debug)]
#[allow(missing_docs)] // what each is stands in its help
pub struct DecoyMetrics {
    pub proofs: Counter,
    pub bans: Counter,
    pub strikes: Counter,
    pub open: Gauges<0>,
    pub served: Gauges<0>,
    pub answered: Totals<0>,
    pub unanswered: Totals<0>,
    pub wrong_cookies: Totals<0>,
    pub bans_in_force: Gauges<0>,
    pub tarpit_handshakes: Counter,
    pub tarpit_answered: Totals<0>,
    pub tarpit_held: Totals<0>,
    pub tarpit_unanswered: Totals<0>,
    pub tarpit_resolved: Totals<0>,
    pub tarpit_asked: Totals<0>,
    pub tarpit_crowded: Totals<0>,
}

impl DecoyMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            proofs: registry
                .counters(
                    "weir_decoy_handshakes_total",
                    "Handshakes that were completed with decoy ports.",
                    &[],
                )
                .of([]),
            bans: registry
                .counters(
                    "weir_decoy_bans_total",
                    "Bans that visits to decoy ports have led to.",
                    &[],
                )
                .of([]),
            strikes: registry
                .counters(
                    "weir_decoy_strikes_total",
                    "Visits to decoy ports without proof of their address, as far as the kernel tells of them.",
                    &[],
                )
                .of([]),
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
            tarpit_handshakes: registry
                .counters(
                    "weir_tarpit_handshakes_total",
                    "Handshakes that were completed with tarpit ports, as far as the kernel tells of them.",
                    &[],
                )
                .of([]),
            tarpit_answered: registry.totals(
                "weir_tarpit_answered_syns_total",
                "SYNs to tarpit ports that were answered with a cookie, since the tables were made.",
                &[],
            ),
            tarpit_held: registry.totals(
                "weir_tarpit_held_packets_total",
                "Packets of held clients that tarpit ports answered with a window of zero.",
                &[],
            ),
            tarpit_unanswered: registry.totals(
                "weir_tarpit_unanswered_packets_total",
                "Packets to tarpit ports above a limit, dropped without an answer.",
                &[],
            ),
            tarpit_resolved: registry.totals(
                "weir_tarpit_resolved_total",
                "ARP requests and neighbour solicitations that were answered for addresses of tarpits, since the tables were made.",
                &[],
            ),
            tarpit_asked: registry.totals(
                "weir_tarpit_asked_total",
                "ARP requests and neighbour solicitations that this host asked itself, to find out whether anybody answers.",
                &[],
            ),
            tarpit_crowded: registry.totals(
                "weir_tarpit_crowded_total",
                "ARP requests and neighbour solicitations for addresses that found no place to be learned, or took another's.",
                &[],
            ),
        }
    }
}

/// Counters of each watch.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // what each is stands in its help
pub struct WatchMetrics {
    lines: Counters<1>,
    bans: Counters<1>,
    known: Counters<1>,
    not_denied: Counters<1>,
    ignored: Counters<1>,
    rejected: Counters<1>,
    starts: Counters<1>,
    pub running: Gauges<1>,
}

/// Counters of one watch, for the daemon's whole life.
#[derive(Debug, Default)]
#[allow(missing_docs)] // what each is stands in its help
pub struct WatchCounters {
    pub lines: Counter,
    pub bans: Counter,
    pub known: Counter,
    pub not_denied: Counter,
    pub ignored: Counter,
    pub rejected: Counter,
    pub starts: Counter,
}

impl WatchMetrics {
    fn counters(&self) -> [&Counters<1>; 7] {
        [
            &self.lines,
            &self.bans,
            &self.known,
            &self.not_denied,
            &self.ignored,
            &self.rejected,
            &self.starts,
        ]
    }

    /// The counters of one watch.
    pub fn of(&self, watch: &str) -> WatchCounters {
        let [lines, bans, known, not_denied, ignored, rejected, starts] =
            self.counters().map(|family| family.of([watch]));
        WatchCounters {
            lines,
            bans,
            known,
            not_denied,
            ignored,
            rejected,
            starts,
        }
    }

    /// Forgets the counters of all watches but these.
    pub fn keep_only(&self, is_kept: impl Fn(&str) -> bool) {
        for family in self.counters() {
            family.keep_only(&is_kept);
        }
    }

    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            lines: registry.counters(
                "weir_watch_lines_total",
                "Lines that the command of the watch has printed.",
                &["watch"],
            ),
            bans: registry.counters(
                "weir_watch_bans_total",
                "Bans that the watch has decided.",
                &["watch"],
            ),
            known: registry.counters(
                "weir_watch_known_total",
                "Lines about somebody whom the watch had banned already.",
                &["watch"],
            ),
            not_denied: registry.counters(
                "weir_watch_not_denied_total",
                "Lines about somebody whom neither the geofence nor a list denies, with only_if.",
                &["watch"],
            ),
            ignored: registry.counters(
                "weir_watch_ignored_total",
                "Lines about somebody exempt, or on the watch's ignore list.",
                &["watch"],
            ),
            rejected: registry.counters(
                "weir_watch_rejected_lines_total",
                "Lines that name nobody.",
                &["watch"],
            ),
            starts: registry.counters(
                "weir_watch_starts_total",
                "How often the command of the watch was started.",
                &["watch"],
            ),
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
