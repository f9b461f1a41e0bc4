//! A jail as the threads run it that read for it: what it counts, and its alert
//! about time stamps that do not fit.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use weir_core::{
    Ban,
    detect::{Clock, Finding, JournalMatch, Offender},
    policy::{Ignored, Outcome, format_duration},
};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use super::line_filter::{LineFilter, LineState};
use crate::{
    fail2ban_filter::Fail2banFilter,
    jails::{JailConfig, SourceChoice},
    judge::Judgement,
    log_alerts::LogAlerts,
    metrics::JailCounters,
};

/// A jail as a worker runs it; the workers of one ring share its states.
#[derive(Clone)]
pub(super) struct Running {
    /// The jail's number in the ledger.
    pub number: usize,
    /// The jail's number among the subscriptions of its group.
    pub subscription: usize,
    pub config: JailConfig,
    /// What of its captures the jail's commands ask for.
    pub captured: Vec<String>,
    pub filter: LineFilter,
    pub states: Arc<[Mutex<LineState>]>,
    pub counters: Arc<JailCounters>,
    /// When a finding's stamp was last far off, in seconds; 0: never.
    pub stamps_off: Arc<AtomicI64>,
    pub log_alerts: Arc<LogAlerts>,
}

/// Once its stamps have been right for so long, a jail's alert ends.
const STAMPS_RIGHT: i64 = 600;

impl Running {
    /// The alert about the stamps of a jail's log.
    pub fn about_stamps(jail: &str) -> String {
        format!("jail:{jail}:time_zone")
    }

    /// Is the other one the same jail, of the same log and filter by name?
    pub fn reads_as(&self, other: &Self) -> bool {
        let (one, other) = (&self.config, &other.config);
        one.name == other.name
            && one.filter == other.filter
            && one.fail2ban == other.fail2ban
            && one.source == other.source
            && one.journal_match == other.journal_match
    }

    /// The same jail, as it counts the bans that weir writes into a file.
    pub fn of_own_bans(
        &self,
        filter: &Arc<Fail2banFilter>,
        file: &[String],
        subscription: usize,
    ) -> Self {
        let filter = LineFilter::Fail2ban(filter.clone());
        let mut own = self.clone();
        own.subscription = subscription;
        own.states = [Mutex::new(filter.state())].into();
        own.filter = filter;
        own.config.source = SourceChoice::Files(file.to_vec());
        own.config.journal_match = JournalMatch::default();
        own.config.fail2ban = own.config.own_bans.take();
        own
    }

    /// Are the jail's counts saved with the position in this log? Of a jail that reads two
    /// logs they are saved with that in weir's own bans.
    pub fn saves_counts(&self) -> bool {
        self.config.own_bans.is_none()
    }

    /// Has the jails of a group that read the same files find the dates of their lines
    /// together, where their filters have the same forms of dates and have learned the same: a
    /// line's date is looked for once for all of them.
    pub fn share_dates(jails: &[Self]) {
        // Those that have nothing in common with one before them.
        let mut leaders: Vec<&Self> = Vec::new();
        for jail in jails {
            if !leaders.iter().any(|leader| jail.shares_dates_with(leader)) {
                leaders.push(jail);
            }
        }
    }

    fn shares_dates_with(&self, leader: &Self) -> bool {
        let is_alike = self.subscription == leader.subscription
            && self.config.time_zone == leader.config.time_zone
            && self.states.len() == leader.states.len()
            && self.filter.decodes_as(&leader.filter);
        is_alike
            && self
                .states
                .iter()
                .zip(leader.states.iter())
                .all(|(own, leaders)| {
                    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
                    let leaders = leaders.lock().unwrap_or_else(PoisonError::into_inner);
                    own.share_dates(&leaders)
                })
    }

    /// What its lines have left behind, for whoever reads the log on.
    pub fn reopened_states(&self) -> Arc<[Mutex<LineState>]> {
        let reopened = |state: &Mutex<LineState>| {
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            Mutex::new(state.reopened())
        };
        self.states.iter().map(reopened).collect()
    }

    /// Says that failures count as of now because their stamps do not fit, and
    /// that this is over.
    pub fn judge_stamp(&self, alerts: &Alerts, clock: Clock, now: Timestamp, zone: &TimeZone) {
        match clock {
            Clock::Off(by) => {
                if self.stamps_off.swap(now.as_second(), Ordering::Relaxed) == 0 {
                    let name = &self.config.name;
                    let side = if by.is_positive() {
                        "ahead of"
                    } else {
                        "behind"
                    };
                    let minutes = (by.unsigned_abs().as_secs() + 30) / 60;
                    let zone = match (zone.iana_name(), &self.config.time_zone) {
                        (Some(name), _) => name,
                        (None, Some(_)) => "the jail's zone",
                        (None, None) => "this host's zone",
                    };
                    alerts.raise(
                        &Self::about_stamps(name),
                        format!(
                            "the time stamps of its log, read in {zone}, are {} {side} the clock: its failures count as of now. Is the log of another time zone? Set time_zone in [jail.{name}]",
                            format_duration(Duration::from_secs(60 * minutes)),
                        ),
                    );
                }
            }
            Clock::Stamp => {
                let last = self.stamps_off.load(Ordering::Relaxed);
                if last != 0 && now.as_second() - last > STAMPS_RIGHT {
                    self.stamps_off.store(0, Ordering::Relaxed);
                    alerts.clear(&Self::about_stamps(&self.config.name));
                }
            }
            Clock::Source | Clock::Now => {}
        }
    }

    /// Says that a live line came too late to count: its stamp may be behind by
    /// [`weir_core::detect::STAMP_TOLERANCE`], and find_time may be shorter.
    pub fn judge_delay(&self, finding: &Finding, now: Timestamp) {
        let find_time = self.config.limits.find_time;
        let by = now.duration_since(finding.time);
        if let Ok(by) = Duration::try_from(by)
            && by > find_time
        {
            self.log_alerts.late(by, find_time);
        }
    }

    /// Says and counts what has come of a finding; the ban, if it is one.
    pub fn conclude(
        &self,
        events: &Events,
        finding: &Finding,
        judgement: Judgement,
    ) -> Option<Ban> {
        match judgement {
            Judgement::Exempt(exemption) => {
                self.counters.ignored.inc();
                tell_finding(events, self, finding, &exemption.reason);
                None
            }
            Judgement::HoldsExempt(inside) => {
                self.counters.refused.inc();
                self.log_alerts.holds_exempt(&finding.offender, inside);
                tell_finding(events, self, finding, &format!("it holds {inside}, exempt"));
                None
            }
            // What a line names is wrong, and not only whom it accuses.
            Judgement::Judged(Outcome::Ignored(Ignored::Unbannable(why)))
                if matches!(finding.offender, Offender::Prefix(_)) =>
            {
                self.counters.refused.inc();
                self.log_alerts.unbannable(&why);
                tell_finding(events, self, finding, &why);
                None
            }
            Judgement::Judged(Outcome::Ban(ban)) => {
                self.counters.bans.inc();
                tell_finding(events, self, finding, &ban.reason);
                Some(ban)
            }
            Judgement::Judged(Outcome::Counted { failures, of }) => {
                if events.has_readers() {
                    let count = format!("failure {failures} of {of}");
                    tell_finding(events, self, finding, &count);
                }
                None
            }
            Judgement::Judged(Outcome::Ignored(_) | Outcome::TooOld) => {
                self.counters.ignored.inc();
                None
            }
        }
    }
}

fn tell_finding(events: &Events, jail: &Running, finding: &Finding, count: &str) {
    let mut reason = match &finding.user {
        Some(user) => format!("user {user:?}; {count}"),
        None => count.to_owned(),
    };
    if let Some((end, _)) = reason.char_indices().nth(256) {
        reason.truncate(end);
    }
    let mut event = Event::new(Kind::Found, finding.time, reason);
    if let Some(prefix) = finding.offender.prefix() {
        event = event.about(prefix);
    }
    event.jail = Some(jail.config.name.clone());
    events.tell(&event);
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, path::Path};

    use weir_core::{Prefix, policy::Ledger};

    use super::*;
    use crate::{
        access::exemptions::Exempt,
        config::Config,
        host::Host,
        judge::{Judge, Offence, Suspect},
        log_worker::{self, group::running},
        metrics::Metrics,
    };

    /// Neither log bans anybody; the program's log names only the prefix.
    #[test]
    fn a_prefix_that_nobody_may_ban_is_refused_with_an_alert() {
        let text = "backend = \"dry-run\"\ninterfaces = []\nstate_dir = \"/nonexistent\"\n\
                    [filter.quota]\npatterns = [\"network <prefix>\"]\n\
                    [jail.quota]\npaths = [\"/dev/null\"]\n";
        let config = Config::check(Path::new("weir.toml"), text, &Host).unwrap();
        let metrics = Metrics::default();
        let groups = running(&metrics.jails, &config).unwrap();
        let jail = groups.into_values().flatten().next().unwrap();
        let ledger = Ledger::new(log_worker::jails(&config));
        let (events, alerts) = (Events::default(), Alerts::default());
        let conclude = |offender: Offender| {
            let now = Timestamp::now();
            let finding = Finding {
                offender,
                time: now,
                clock: Clock::Stamp,
                user: None,
                attempts: 1,
                pattern: 0,
            };
            let offence = Offence {
                jail: jail.number,
                suspect: Suspect::Found(&finding),
                line: b"the line",
            };
            let judgement = Judge::new(&Exempt::default()).judge(&ledger, offence, now);
            assert_eq!(jail.conclude(&events, &finding, judgement), None);
            let now = std::time::Instant::now();
            jail.log_alerts.add(&alerts, Default::default(), now);
            let alerts = alerts.list().into_iter();
            let told: Vec<_> = alerts.map(|alert| (alert.about, alert.message)).collect();
            let counters = &jail.counters;
            (counters.ignored.get(), counters.refused.get(), told)
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(conclude(loopback.into()), (1, 0, vec![]));
        let wide: Prefix = "127.0.0.0/16".parse().unwrap();
        let (ignored, refused, told) = conclude(Offender::Prefix(wide));
        assert_eq!((ignored, refused), (1, 1));
        let [(about, message)] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(about, "jail:quota:unbannable");
        assert!(message.contains("such as 127.0.0.0/16"), "{message}");
    }
}
