//! What requests are answered with, as it is written in JSON: the API's
//! documents. Fields here are an interface; how they are found out is
//! `service`'s.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{Action, BanSource, BanTarget, PortSet, Prefix, Reason, Until, geo::Place};
use weir_enforce::{Attachment, ClassCounter, Counter, Entry, Expiry, Limit, Usage};
use weir_events::alerts::Alert;
use weir_identity::{Unknown, Verdict};
use weir_metrics::Metric;
use weir_sinks::SinkStatus;

use crate::{
    access::classes::{ClassStatus, Listing},
    access::exemptions::Exemption,
    balance::{PoolAccess, PoolStatus},
    config::Config,
    decoy::{DecoyStatus, tarpit::TarpitStatus},
    identity::AppStatus,
    store::{Detail, Offence, SaveError, clock::Now},
    token::TokenStatus,
    vips::{SegmentStatus, VipStatus, VrrpStatus},
    watch::stats::WatchStatus,
};

/// A ban as listed: what is enforced, with its explanation.
#[derive(Debug, Clone, Serialize)]
pub struct ListedBan {
    /// The address or network that is banned.
    pub subject: BanTarget,
    /// The ports that the ban covers.
    pub scope: PortSet,
    /// The administrator, jail, watch, list or port that decided the ban.
    pub producer: BanSource,
    /// Whether packets of the ban are dropped or rejected, or the ban only notifies.
    pub action: Action,
    /// The reason of the ban, in words.
    pub reason: String,
    /// The time of the decision; unknown if the explanation was lost.
    pub since: Option<Timestamp>,
    /// When the ban expires.
    pub until: Until,
    /// Seconds until then.
    pub remaining_seconds: Option<u64>,
    /// The lines that led to it.
    pub evidence: Vec<String>,
}

impl ListedBan {
    pub(super) fn new(entry: Entry, detail: Option<Detail>, now: &Now) -> Self {
        let (since, reason, evidence) = match detail {
            Some(d) => (Some(d.since), d.reason, d.evidence),
            None => (None, "its explanation was lost".to_owned(), Vec::new()),
        };
        Self {
            subject: entry.subject,
            scope: entry.policy.scope.clone(),
            producer: entry.policy.producer.clone(),
            action: entry.policy.action,
            reason,
            since,
            until: now.until(entry.expiry),
            remaining_seconds: match entry.expiry {
                Expiry::Never => None,
                Expiry::At(end) => {
                    Some(end.0.saturating_sub(now.boottime.0).div_ceil(1_000_000_000))
                }
            },
            evidence,
        }
    }
}

/// The answer to a request that changes something.
#[derive(Debug, Clone, Serialize)]
pub struct Done<T: Serialize> {
    /// The result of the request.
    #[serde(flatten)]
    pub what: T,
    /// Whether the change is on disk.
    pub saved: bool,
    /// A warning for the administrator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl<T: Serialize> Done<T> {
    pub(super) fn new(what: T, saved: Result<(), SaveError>) -> Self {
        Self {
            what,
            saved: saved.is_ok(),
            warning: saved.err().map(|e| e.to_string()),
        }
    }
}

/// The result of lifting bans.
#[derive(Debug, Clone, Serialize)]
pub struct UnbanOutcome {
    /// The number of bans that were lifted.
    pub lifted: usize,
    /// Further bans, lists or rules that deny the subject still, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub still: Option<String>,
}

/// Which prefix was allowed, or no longer is.
#[derive(Debug, Clone, Serialize)]
pub struct Allowed {
    /// The prefix of the allow list.
    pub prefix: Prefix,
}

/// Why an address, or every address of a prefix, is dropped, or not.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    /// The address or prefix in question.
    pub address: Prefix,
    /// Whether the packets of the address are dropped.
    pub dropped: bool,
    /// Whether they would be dropped where weir is attached and drops. With `dry-run`, with
    /// `observe` and where it is attached to no interface nothing is.
    pub would_drop: bool,
    /// Is anything dropped on this host?
    pub protection: Protection,
    /// The exit by which they leave, as counted.
    pub verdict: Reason,
    /// The exemption that holds it.
    pub exempt: Option<Exemption>,
    /// Somebody exempt in it, whose packets pass whatever holds for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_exempt: Option<Prefix>,
    /// Is this said of bans alone? Lists and geofence are not asked about prefixes,
    /// and may deny any address of one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bans_only: bool,
    /// Bans in force that cover the address, or the whole prefix.
    pub bans: Vec<ListedBan>,
    /// How many bans there are of parts of the prefix.
    #[serde(skip_serializing_if = "is_none")]
    pub within: usize,
    /// The country, continent and system of the address, by the database.
    pub place: Place,
    /// The lists that hold it.
    pub lists: Vec<Listing>,
    /// What lists and geofence say about the first packet of its flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// What access lists of pools say of it: of those that serve the port in question,
    /// or of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolAccess>,
    /// The last bans of the address, newest first.
    pub history: Vec<Offence>,
    /// Findings that have not led to a ban yet.
    pub tracked: Vec<FailureCount>,
    /// Packets by exit, all sources together.
    pub counters: Vec<Counter>,
}

fn is_none(number: &usize) -> bool {
    *number == 0
}

/// Findings of one jail about one subject.
#[derive(Debug, Clone, Serialize)]
pub struct FailureCount {
    /// The name of the jail.
    pub jail: String,
    /// Findings in its window.
    pub findings: u32,
    /// The number of findings that make a ban.
    pub max_retry: u32,
}

/// A jail as shown.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // the fields are those of JailConfig and JailMetrics
pub struct JailStatus {
    pub name: String,
    pub filter: String,
    pub source: String,
    pub max_retry: u32,
    pub find_time: String,
    pub ban_time: String,
    pub scope: PortSet,
    pub action: Action,
    pub lines: u64,
    pub findings: u64,
    pub bans: u64,
    pub bans_in_force: u64,
    pub ignored: u64,
    pub refused: u64,
    pub names_resolved: u64,
    pub names_failed: u64,
    pub tracked: u64,
    pub forgotten: u64,
}

/// The host names that logs have.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct HostNameStatus {
    /// Names that are being looked up, or wait for that.
    pub waiting: usize,
    /// Findings that wait for them.
    pub findings_waiting: usize,
    /// Names that are remembered.
    pub known: usize,
    /// Names that have been looked up: with addresses, …
    pub resolved: u64,
    /// … without any, …
    pub without_address: u64,
    /// … and in vain.
    pub failed: u64,
    /// Names whose findings did not wait any longer.
    pub late: u64,
    /// Findings for which there was no room.
    pub refused: u64,
}

/// A ring as its workers see it, since the start or the last reload.
#[derive(Debug, Clone, Serialize)]
pub struct RingStatus {
    /// The ring's directory.
    pub ring: String,
    /// Threads that read it.
    pub workers: usize,
    /// Segments being read.
    pub segments: usize,
    /// Files that are refused: no segments, or of a user who is not trusted.
    pub unreadable: usize,
    /// Segments found bad while they were read.
    pub bad: u64,
    /// Records that were read.
    pub records: u64,
    /// Records lost, overwritten or dropped.
    pub lost: u64,
    /// Bytes of the lost records.
    pub lost_bytes: u64,
}

/// How full the table is, and what it takes.
#[derive(Debug, Clone, Serialize)]
pub struct TableUsage {
    /// Entries of each table.
    #[serde(flatten)]
    pub entries: Usage,
    /// Kernel memory, where the kernel tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_bytes: Option<u64>,
}

/// Whether this host is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Denied packets are dropped.
    Protected,
    /// What is denied is counted, or only listed, and passes: as configured.
    Observing,
    /// Nothing is dropped, or not what should be, which nobody asked for.
    NotProtected,
}

impl State {
    /// All states, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Protected, Self::Observing, Self::NotProtected];

    /// The state's word, as `weir status` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Protected => "protected",
            Self::Observing => "observing",
            Self::NotProtected => "not-protected",
        }
    }
}

/// The state with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Protection {
    /// The state in one word.
    pub state: State,
    /// Why the state is as it is.
    pub why: String,
}

impl Protection {
    /// What follows from the backend, and from where it is attached.
    pub(super) fn of(backend: &str, observe: bool, attachments: &[Attachment]) -> Self {
        let said = |state, why: String| Self { state, why };
        if backend == "dry-run" {
            let why = "backend = \"dry-run\" decides, and drops nothing";
            return said(State::Observing, why.to_owned());
        }
        let away = |attachment: &&Attachment| attachment.hook == "none";
        let (away, on): (Vec<_>, Vec<_>) = attachments.iter().partition(away);
        let names = |some: &[&Attachment]| {
            let names: Vec<_> = some.iter().map(|at| at.interface.as_str()).collect();
            names.join(", ")
        };
        if on.is_empty() {
            let why = match away.as_slice() {
                [] => "attached to no interface".to_owned(),
                away => format!("attached to no interface: {} is not there", names(away)),
            };
            return said(State::NotProtected, why);
        }
        if observe {
            let why = "observe = true counts, and drops nothing";
            return said(State::Observing, why.to_owned());
        }
        let mut hooks: Vec<(&str, Vec<&Attachment>)> = Vec::new();
        for at in on {
            match hooks.iter_mut().find(|(hook, _)| *hook == at.hook) {
                Some((_, there)) => there.push(at),
                None => hooks.push((&at.hook, vec![at])),
            }
        }
        let hooks = hooks.iter();
        let hooks = hooks.map(|(hook, there)| format!("{hook} on {}", names(there)));
        let on = hooks.collect::<Vec<_>>().join("; ");
        let why = match away.as_slice() {
            [] => on,
            away => format!("{on}; not there: {}", names(away)),
        };
        said(State::Protected, why)
    }

    /// Says in the reason how many of the enabled jails run, if not all do.
    pub(super) fn with_jails(mut self, running: usize, broken: usize) -> Self {
        if broken > 0 {
            let all = running + broken;
            self.why = format!("{}; {running} of {all} enabled jails run", self.why);
        }
        self
    }

    /// Where weir is attached to no interface and none is configured: `[app]` and `[token]` need
    /// none, and are in force.
    pub(super) fn or_by_program(self, config: &Config) -> Self {
        let Some((state, judged)) = by_program(config) else {
            return self;
        };
        if self.state != State::NotProtected || !config.enforcement.interfaces.is_empty() {
            return self;
        }
        // Bans of addresses hold at interfaces alone.
        match config.denies_addresses() {
            true => Self {
                state: self.state,
                why: format!("{}; {judged}", self.why),
            },
            false => Self {
                state,
                why: format!("{judged}; attached to no interface, so no ban is enforced"),
            },
        }
    }

    /// The same, unless this is idle, or so much is allowed that little is dropped.
    pub(super) fn unless(self, is_idle: Option<String>, wide: &[Prefix]) -> Self {
        let why = match (self.state, wide, is_idle) {
            (State::Protected, [], Some(why)) => why,
            (State::Protected, [_, ..], _) => allowed_in_vain(wide),
            _ => return self,
        };
        Self {
            state: State::NotProtected,
            why,
        }
    }
}

/// What programs and tokens decide, and how far that protects; `None`: they decide nothing.
fn by_program(config: &Config) -> Option<(State, String)> {
    let mut parts = Vec::new();
    let mut denies = false;
    if let Some(app) = &config.app {
        let mut rules = app.rules.iter();
        let is_strict = rules.any(|rule| matches!(rule.verdict, Verdict::Drop | Verdict::Reject))
            || app.default != Verdict::Allow
            || app.unknown == Unknown::Drop;
        denies |= is_strict;
        parts.push(match is_strict {
            true => "programs are judged by [app]",
            false => "[app] lets every program pass",
        });
    }
    if let Some(token) = &config.token {
        let drops = token.requirements.iter().any(|one| one.drops);
        denies |= drops;
        parts.push(match drops {
            true => "ports want tokens by [token]",
            false if token.requirements.is_empty() => "[token] refuses nothing",
            false => "[token] only logs what has no token",
        });
    }
    if parts.is_empty() {
        return None;
    }
    let observes = config.enforcement.observe;
    if observes {
        parts.push("observe = true counts, and drops nothing");
    }
    let state = match denies && !observes {
        true => State::Protected,
        false => State::Observing,
    };
    Some((state, parts.join("; ")))
}

/// Where all that bans or denies are jails, and none has a log; so many bans are in
/// force.
pub(super) fn no_log(bans: usize) -> String {
    let none = "no log of any jail can be read: see the alerts";
    let are = match bans {
        0 => return none.to_owned(),
        1 => "ban in force is",
        _ => "bans in force are",
    };
    format!("{none}; nobody else is banned, and the {bans} {are} enforced")
}

/// The warning about allowed prefixes that are too wide.
pub(super) fn allowed_in_vain(wide: &[Prefix]) -> String {
    let names: Vec<_> = wide.iter().map(Prefix::to_string).collect();
    let (are, them) = match wide {
        [_] => ("is", "it"),
        _ => ("are", "them"),
    };
    format!(
        "{} {are} allowed: no ban, list or geofence holds for {them}; take {them} back with weir allow del",
        names.join(", ")
    )
}

/// The whole picture.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Whether this host is protected, and why.
    pub protection: Protection,
    /// The version of this program.
    pub version: &'static str,
    /// The daemon's process number.
    pub pid: u32,
    /// The time when the daemon started.
    pub since: Timestamp,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// The configuration in force.
    pub config: String,
    /// The name of its pins.
    pub instance: String,
    /// The backend in force.
    pub backend: &'static str,
    /// Features that the backend lacks.
    pub limits: Vec<Limit>,
    /// Whether packets are only counted, and none is dropped.
    pub observe: bool,
    /// The decoy ports, if there are any.
    pub decoy: Option<DecoyStatus>,
    /// Pools, and the reals behind them.
    pub pools: Vec<PoolStatus>,
    /// Virtual addresses that weir holds itself.
    pub vips: Vec<VipStatus>,
    /// Rules about programs, if there is `[app]`.
    pub app: Option<AppStatus>,
    /// Tokens, if there is `[token]`.
    pub token: Option<TokenStatus>,
    /// Virtual routers that this host takes part in.
    pub vrrp: Vec<VrrpStatus>,
    /// The interfaces with virtual addresses.
    pub segments: Vec<SegmentStatus>,
    /// The tarpit ports, if there are any.
    pub tarpit: Option<TarpitStatus>,
    /// Interfaces and hooks.
    pub attachments: Vec<Attachment>,
    /// The use of the ban table.
    pub usage: TableUsage,
    /// Bans in force by who made them: a metric.
    #[serde(skip)]
    pub by_producer: BTreeMap<BanSource, u64>,
    /// Packets by exit.
    pub counters: Vec<Counter>,
    /// Geofence and lists, if there are any.
    pub classes: Option<ClassStatus>,
    /// Packets that lists and geofence dropped, by list and country.
    pub dropped: Vec<ClassCounter>,
    /// The state of each jail.
    pub jails: Vec<JailStatus>,
    /// Host names that are looked up.
    pub host_names: HostNameStatus,
    /// Rings being read.
    pub rings: Vec<RingStatus>,
    /// The state of each watch.
    pub watches: Vec<WatchStatus>,
    /// The state of each sink.
    pub sinks: Vec<SinkStatus>,
    /// Alerts that hold now.
    pub alerts: Vec<Alert>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
    /// Changes that wait for the disk.
    pub unsaved: usize,
    /// Changes that found no room while the disk could not be written.
    pub unsaved_forgotten: u64,
    /// How many bans were in force at the start, and where they came from.
    pub restored: String,
    /// All that is counted or measured, as `weir metrics` prints it.
    pub metrics: Vec<Metric>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_protected_where_something_is_attached_that_drops() {
        let at = |interface: &str, hook: &str| Attachment {
            interface: interface.to_owned(),
            hook: hook.to_owned(),
            note: String::new(),
            present: hook != "none",
            renamed: None,
        };
        let (eth0, wwan0) = (at("eth0", "xdp"), at("wwan0", "none"));
        for (backend, observe, attachments, state, why) in [
            (
                "xdp",
                false,
                vec![eth0.clone()],
                State::Protected,
                "xdp on eth0",
            ),
            (
                "xdp",
                false,
                vec![eth0.clone(), wwan0.clone()],
                State::Protected,
                "xdp on eth0; not there: wwan0",
            ),
            (
                "tcx",
                false,
                vec![
                    at("eth1", "tcx"),
                    at("tun0", "netfilter"),
                    at("eth2", "tcx"),
                ],
                State::Protected,
                "tcx on eth1, eth2; netfilter on tun0",
            ),
            ("xdp", true, vec![eth0], State::Observing, "observe = true"),
            ("xdp", false, vec![], State::NotProtected, "no interface"),
            (
                "xdp",
                true,
                vec![wwan0],
                State::NotProtected,
                "wwan0 is not there",
            ),
            ("dry-run", false, vec![], State::Observing, "dry-run"),
        ] {
            let said = Protection::of(backend, observe, &attachments);
            assert_eq!(said.state, state, "{}", said.why);
            assert!(said.why.contains(why), "{}", said.why);

            let all_run = said.clone().with_jails(3, 0);
            assert_eq!(all_run, said);
            let some_run = said.clone().with_jails(3, 6);
            assert!(
                some_run.why.ends_with("; 3 of 9 enabled jails run"),
                "{}",
                some_run.why
            );
            assert_eq!(some_run.state, state);

            // Where nothing is denied, or everybody is allowed, it is not.
            assert_eq!(said.clone().unless(None, &[]), said);
            let wide: Vec<Prefix> = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
            for (is_idle, wide, words) in [
                (
                    Some(no_log(0)),
                    &[][..],
                    "no log of any jail can be read: see the alerts",
                ),
                (None, &wide[..1], "0.0.0.0/0 is allowed: no ban"),
                (None, &wide[..], "0.0.0.0/0, ::/0 are allowed: no ban"),
            ] {
                let but = said.clone().unless(is_idle, wide);
                match state {
                    State::Protected => {
                        assert_eq!(but.state, State::NotProtected);
                        assert!(but.why.starts_with(words), "{}", but.why);
                    }
                    _ => assert_eq!(but, said),
                }
            }
        }
    }

    /// `[app]` and `[token]` need no interface: where nothing else is configured it is said what is
    /// in force.
    #[test]
    fn without_an_interface_it_is_said_what_programs_and_tokens_decide() {
        let says = |text: &str, state: State, words: &str| {
            let host = crate::host::fake::FakeHost {
                routed: &[],
                ..Default::default()
            };
            let config = Config::check(std::path::Path::new("weir.toml"), text, &host).unwrap();
            assert!(config.enforcement.interfaces.is_empty());
            let none = Protection::of("xdp", config.enforcement.observe, &[]);
            let said = none.or_by_program(&config);
            assert_eq!(said.state, state, "{text}: {}", said.why);
            assert!(said.why.contains(words), "{text}: {}", said.why);
        };
        let rule = "[app.rules.a]\nverdict = \"drop\"\nuser = \"7\"\n";
        let wants = "[token]\n[token.require.a]\nports = [\"80/tcp\"]\naggregate = \"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"\n";
        for (text, state, words) in [
            (
                rule,
                State::Protected,
                "programs are judged by [app]; attached to no interface, so",
            ),
            (
                "[app]\ndefault = \"drop\"\n",
                State::Protected,
                "programs are judged",
            ),
            ("[app]\n", State::Observing, "[app] lets every program pass"),
            (
                wants,
                State::Protected,
                "ports want tokens by [token]; attached to no interface",
            ),
            (
                &format!("{wants}mode = \"log\"\n"),
                State::Observing,
                "only logs",
            ),
            (
                &format!("observe = true\n{rule}"),
                State::Observing,
                "observe = true",
            ),
            (
                &format!("[geofence]\ndeny = [\"country:RU\"]\n{rule}"),
                State::NotProtected,
                "attached to no interface; programs are judged",
            ),
            ("", State::NotProtected, "attached to no interface"),
        ] {
            says(text, state, words);
        }
    }

    /// Bans end without a log, and nobody takes their place; until then they hold.
    #[test]
    fn without_a_log_it_is_said_what_is_enforced() {
        let says = |bans: usize, words: &str| {
            let why = no_log(bans);
            assert!(why.starts_with("no log of any jail can be read"), "{why}");
            assert!(why.ends_with(words), "{why}");
        };
        says(0, "see the alerts");
        says(
            1,
            "; nobody else is banned, and the 1 ban in force is enforced",
        );
        says(
            7,
            "; nobody else is banned, and the 7 bans in force are enforced",
        );
    }
}
