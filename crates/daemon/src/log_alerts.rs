//! Alerts about what a jail's filter notices of its log: failures that do not
//! count because a client may have written the line or because of whom it names, and
//! lines that a log daemon has dropped. They end by themselves.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use weir_core::{
    Prefix,
    detect::{BEHIND_NO_HEAD, HeadlessLine, MAX_LINE, Notices, Offender},
    policy::format_duration,
};
use weir_events::alerts::Alerts;

/// A number in an alert is told anew at most this often.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// An alert ends when nothing of its kind has come for so long; that of a head only
/// when a line has had it since: a log without lines is no better.
const ENDS_AFTER: Duration = Duration::from_secs(600);

const KINDS: [&str; 9] = [
    "stdout",
    "headless",
    HEAD,
    "rate-limit",
    REFUSED,
    HOLDS_EXEMPT,
    UNBANNABLE,
    LATE,
    GIVEN_UP,
];
const HEAD: &str = "head";
const REFUSED: &str = "refused";
const HOLDS_EXEMPT: &str = "holds-exempt";
const UNBANNABLE: &str = "unbannable";
const LATE: &str = "late";
const GIVEN_UP: &str = "given-up";

/// The alerts of one jail's log; shared by the threads that read for it.
#[derive(Debug)]
pub struct LogAlerts {
    jail: String,
    tallies: Mutex<[Tally; KINDS.len()]>,
    /// Failures that hold somebody exempt, that nobody may be banned for, and that are
    /// too old when they are read; lines that were given up.
    not_counted: Mutex<[NotCounted; 4]>,
}

/// So much of one kind since its alert was raised.
#[derive(Debug, Default, Clone)]
struct Tally {
    total: u64,
    /// The first line of its kind: a text that changed each minute would be an
    /// event each minute.
    line: Option<HeadlessLine>,
    last: Option<Instant>,
    /// Whether a line has had a head since, for alerts about heads.
    fits: bool,
    told: Option<(Instant, u64)>,
}

/// Failures that do not count for one reason, since somebody looked.
#[derive(Debug, Default)]
struct NotCounted {
    count: u64,
    /// The first, in words.
    text: String,
}

impl NotCounted {
    fn add(&mut self, count: u64, text: impl FnOnce() -> String) {
        if self.count == 0 {
            self.text = text();
        }
        self.count = self.count.saturating_add(count);
    }
}

/// What is to be done about an alert once no lock is held: whoever is told of it may
/// come back here.
enum AlertChange {
    Raised(String),
    Over,
}

fn about(jail: &str, kind: &str) -> String {
    format!("jail:{jail}:{kind}")
}

/// What to do about a line for which failures do not count.
fn headless(line: &HeadlessLine) -> String {
    let text = crate::escape(&String::from_utf8_lossy(&line.text));
    let (lacks, mend) = match line.has_stamp {
        true => (
            "no program's tag behind its time stamp",
            "Have whoever writes it write a tag, or, where only other programs leave it out, set allow_untagged = true in the filter. Lines of the filter's own program behind ts or svlogd are never counted: have it log to syslog",
        ),
        false => (
            "no time stamp and program's tag, as a syslog daemon writes them before each message",
            "Have the program log to syslog, and read the journal or syslog's file; sshd: start it without -E and -e",
        ),
    };
    format!(
        "failures do not count: a line of its log, \"{text}\", has {lacks}, so that a client may have written it, and the {BEHIND_NO_HEAD} lines behind it. {mend}"
    )
}

fn message(kind: &str, total: u64, line: &HeadlessLine) -> String {
    match kind {
        "stdout" => "failures do not count: their entries in the journal came from the program's standard output (_TRANSPORT), where a client's line break begins another entry, so that a client can write whole entries. Have the program log to syslog; sshd: start it without -e".to_owned(),
        "headless" => headless(line),
        HEAD => format!(
            "no line of one of its logs counts: none of the last has the head or the JSON that its filter declares, such as \"{}\". Mend head, time_format or json in the filter (weir filter test FILTER --missed <LOG says why), or the jail's paths",
            crate::escape(&String::from_utf8_lossy(&line.text))
        ),
        REFUSED => format!(
            "failures do not count: some lines of its log name somebody who cannot be counted, such as \"{}\". weir filter test FILTER --missed says why of each",
            crate::escape(&String::from_utf8_lossy(&line.text))
        ),
        HOLDS_EXEMPT => format!(
            "failures do not count: its log names prefixes that hold somebody who must not be banned, such as {}. Have the program log addresses, or narrower prefixes",
            String::from_utf8_lossy(&line.text)
        ),
        UNBANNABLE => format!(
            "failures do not count: its log names prefixes that can never be banned, such as {}. Have the program log addresses, or narrower prefixes",
            String::from_utf8_lossy(&line.text)
        ),
        LATE => format!(
            "failures do not count: its log comes so late that they are older than find_time when they are read, {}. Raise find_time, or mend what holds the lines back",
            String::from_utf8_lossy(&line.text)
        ),
        GIVEN_UP => format!(
            "{total} lines of its log were not read, because they have {MAX_LINE} bytes or more, or its filter's expressions would take too long on them, such as \"{}\": failures among them are not counted. A client may have written them so; have the program log less of what clients send, make the failregex narrower, or begin it with ^",
            String::from_utf8_lossy(&line.text)
        ),
        _ => format!(
            "{total} log messages were dropped by the rate limit of the log daemon: failures among them are not counted. Raise the limit (journald: LogRateLimitBurst= in the unit of the service, or RateLimitBurst= in journald.conf; rsyslog: ratelimit.burst of its input)"
        ),
    }
}

impl LogAlerts {
    /// The alerts of a jail without any yet.
    pub fn new(jail: &str) -> Self {
        Self {
            jail: jail.to_owned(),
            tallies: Mutex::default(),
            not_counted: Mutex::default(),
        }
    }

    /// A prefix is not banned because of what is inside it.
    pub fn holds_exempt(&self, prefix: &Offender, inside: Prefix) {
        let [held, ..] = &mut *self.not_counted();
        held.add(1, || format!("{prefix}, which holds {inside}"));
    }

    /// A prefix is not banned because no jail may ever ban it.
    pub fn unbannable(&self, why: &str) {
        let [_, unbannable, ..] = &mut *self.not_counted();
        unbannable.add(1, || why.to_owned());
    }

    /// A line that was written while its log was followed came so long after it was
    /// written.
    pub fn late(&self, by: Duration, find_time: Duration) {
        let [_, _, late, _] = &mut *self.not_counted();
        late.add(1, || {
            let (by, find_time) = (format_duration(by), format_duration(find_time));
            format!("such as one of {by} before, where find_time is {find_time}")
        });
    }

    /// So many lines were not read because searching them would have taken too long;
    /// `line`: the beginning of the first.
    pub fn given_up(&self, lines: u64, line: &[u8]) {
        let [.., given_up] = &mut *self.not_counted();
        given_up.add(lines, || crate::escape(&String::from_utf8_lossy(line)));
    }

    fn not_counted(&self) -> MutexGuard<'_, [NotCounted; 4]> {
        self.not_counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was noticed; raises alerts, and clears those that are over.
    pub fn add(&self, alerts: &Alerts, notices: Notices, now: Instant) {
        for (kind, told) in self.tally(notices, now) {
            let about = about(&self.jail, kind);
            match told {
                AlertChange::Raised(message) => alerts.raise(&about, message),
                AlertChange::Over => alerts.clear(&about),
            }
        }
    }

    /// Counts what was noticed; what there is to tell of it.
    fn tally(&self, notices: Notices, now: Instant) -> Vec<(&'static str, AlertChange)> {
        let [held, unbannable, late, given_up] = mem::take(&mut *self.not_counted());
        let mut all = Vec::new();
        let shown = |count: u64, text: Vec<u8>| {
            let has_stamp = false;
            (count > 0).then_some(HeadlessLine { has_stamp, text })
        };
        let refused = shown(notices.refused, notices.refused_line);
        let counts = [
            (notices.stdout, notices.line.clone()),
            (notices.headless, notices.line.clone()),
            (notices.unfit, notices.line),
            (notices.rate_limited, None),
            (notices.refused, refused),
            (held.count, shown(held.count, held.text.into_bytes())),
            (
                unbannable.count,
                shown(unbannable.count, unbannable.text.into_bytes()),
            ),
            (late.count, shown(late.count, late.text.into_bytes())),
            (
                given_up.count,
                shown(given_up.count, given_up.text.into_bytes()),
            ),
        ];
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        for ((tally, kind), (count, line)) in tallies.iter_mut().zip(KINDS).zip(counts) {
            if count > 0 {
                tally.line = tally.line.take().or(line);
                tally.total = tally.total.saturating_add(count);
                tally.last = Some(now);
                tally.fits = false;
            }
            tally.fits |= notices.fits;
            let Some(last) = tally.last else { continue };
            let may_end = kind != HEAD || tally.fits;
            if may_end && now.duration_since(last) >= ENDS_AFTER {
                *tally = Tally::default();
                all.push((kind, AlertChange::Over));
                continue;
            }
            let is_due = tally.told.is_none_or(|(at, total)| {
                total != tally.total && now.duration_since(at) >= TOLD_EVERY
            });
            if is_due {
                tally.told = Some((now, tally.total));
                let line = tally.line.clone().unwrap_or_default();
                all.push((kind, AlertChange::Raised(message(kind, tally.total, &line))));
            }
        }
        all
    }

    /// Forgets the alerts of a jail whose log may be another one now.
    pub fn forget(alerts: &Alerts, jail: &str) {
        for kind in KINDS {
            alerts.forget(&about(jail, kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use weir_events::{Event, Events, Kind, Listener};

    use super::*;

    #[test]
    fn the_line_for_which_failures_do_not_count_is_shown() {
        let alerts = Alerts::default();
        let log = LogAlerts::new("sshd");
        let begun = Instant::now();
        let told = |seconds, text: &str, has_stamp| {
            let notices = Notices {
                headless: 1,
                line: Some(HeadlessLine {
                    has_stamp,
                    text: text.into(),
                }),
                ..Notices::default()
            };
            log.add(&alerts, notices, begun + Duration::from_secs(seconds));
            let [alert] = &alerts.list()[..] else {
                panic!("{:?}", alerts.list());
            };
            alert.message.clone()
        };
        let first = told(0, "Nov 21 04:33:07 x\u{1b}[2J", true);
        assert!(first.contains("\"Nov 21 04:33:07 x\\u{1b}[2J\""), "{first}");
        assert!(first.contains("allow_untagged") && !first.contains("-E"));
        assert_eq!(told(61, "another", false), first);
    }

    #[test]
    fn whom_a_line_names_in_vain_is_shown() {
        let alerts = Alerts::default();
        let log = LogAlerts::new("quota");
        let begun = Instant::now();
        for inside in ["192.0.2.7", "192.0.2.8"] {
            let named = Offender::Prefix("192.0.2.0/24".parse().unwrap());
            log.holds_exempt(&named, inside.parse().unwrap());
        }
        let notices = Notices {
            refused: 2,
            refused_line: b"network ::/0\x1b[2J".to_vec(),
            ..Notices::default()
        };
        log.add(&alerts, notices, begun);
        let [held, refused] = &alerts.list()[..] else {
            panic!("{:?}", alerts.list());
        };
        assert_eq!(held.about, "jail:quota:holds-exempt");
        let said = "such as 192.0.2.0/24, which holds 192.0.2.7.";
        assert!(held.message.contains(said), "{held:?}");
        assert_eq!(refused.about, "jail:quota:refused");
        let said = "\"network ::/0\\u{1b}[2J\"";
        assert!(refused.message.contains(said), "{refused:?}");
        log.add(&alerts, Notices::default(), begun + ENDS_AFTER);
        assert_eq!(alerts.list(), []);
    }

    #[test]
    fn lines_that_are_given_up_are_an_alert() {
        let alerts = Alerts::default();
        let log = LogAlerts::new("shop");
        log.given_up(3, b"a a a\x1b[2J");
        log.given_up(4, b"another");
        let begun = Instant::now();
        log.add(&alerts, Notices::default(), begun);
        let [given_up] = &alerts.list()[..] else {
            panic!("{:?}", alerts.list());
        };
        assert_eq!(given_up.about, "jail:shop:given-up");
        let said = "7 lines of its log were not read";
        assert!(given_up.message.starts_with(said), "{given_up:?}");
        let said = "such as \"a a a\\u{1b}[2J\"";
        assert!(given_up.message.contains(said), "{given_up:?}");
        log.add(&alerts, Notices::default(), begun + ENDS_AFTER);
        assert_eq!(alerts.list(), []);
    }

    /// Whoever is told of an alert may look at what is noticed.
    #[test]
    fn no_lock_is_held_while_an_alert_is_told() {
        struct Looks(Arc<LogAlerts>, AtomicUsize);
        impl Listener for Looks {
            fn name(&self) -> &str {
                "looks"
            }
            fn kinds(&self) -> u32 {
                Kind::Error.bit()
            }
            fn offer(&self, _: &Arc<Event>) {
                assert!(self.0.tallies.try_lock().is_ok());
                assert!(self.0.not_counted.try_lock().is_ok());
                self.1.fetch_add(1, Relaxed);
            }
        }
        let (alerts, events) = (Alerts::default(), Events::default());
        alerts.tell(events.bus());
        let log = Arc::new(LogAlerts::new("sshd"));
        let looks = Arc::new(Looks(log.clone(), AtomicUsize::new(0)));
        events.set_listeners([looks.clone() as Arc<dyn Listener>].into());
        log.unbannable("127.0.0.0/8 cannot be banned: loopback");
        let notices = Notices {
            stdout: 1,
            ..Notices::default()
        };
        log.add(&alerts, notices, Instant::now());
        assert_eq!(looks.1.load(Relaxed), 2);
    }

    #[test]
    fn a_head_that_never_fits_is_an_alert() {
        let alerts = Alerts::default();
        let log = LogAlerts::new("shop");
        let begun = Instant::now();
        let told = |seconds, unfit, fits| {
            let line = HeadlessLine {
                has_stamp: false,
                text: "22.11.2026 x\u{1b}".into(),
            };
            let notices = Notices {
                unfit,
                fits,
                line: (unfit > 0).then_some(line),
                ..Notices::default()
            };
            log.add(&alerts, notices, begun + Duration::from_secs(seconds));
            let list = alerts.list().into_iter();
            list.map(|alert| (alert.about, alert.message))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(0, 0, true), []);
        let [(about, message)] = &told(1, 7, false)[..] else {
            panic!("it is told");
        };
        assert_eq!(about, "jail:shop:head");
        assert!(
            message.contains("such as \"22.11.2026 x\\u{1b}\""),
            "{message}"
        );
        // No line at all mends nothing; nor does one that fits, while others do not.
        assert_eq!(told(100_000, 0, false).len(), 1);
        assert_eq!(told(100_001, 1, true).len(), 1);
        assert_eq!(told(100_002, 1, false).len(), 1);
        assert_eq!(told(100_700, 0, false).len(), 1);
        assert_eq!(told(100_701, 0, true), []);
    }

    #[test]
    fn alerts_about_a_log_are_few_and_end_by_themselves() {
        let alerts = Alerts::default();
        let log = LogAlerts::new("sshd");
        let begun = Instant::now();
        let shown = || {
            let list = alerts.list().into_iter();
            list.map(|alert| (alert.about, alert.message))
                .collect::<Vec<_>>()
        };
        let add = |seconds, stdout, rate_limited| {
            let notices = Notices {
                stdout,
                rate_limited,
                ..Notices::default()
            };
            log.add(&alerts, notices, begun + Duration::from_secs(seconds));
            shown()
        };
        assert_eq!(add(0, 0, 0), []);
        let first = add(1, 3, 842);
        assert_eq!(first.len(), 2);
        assert_eq!(first[0].0, "jail:sshd:rate-limit");
        assert!(first[0].1.starts_with("842 log messages"), "{first:?}");
        assert_eq!(first[1].0, "jail:sshd:stdout");
        assert!(
            first[1].1.contains("sshd: start it without -e"),
            "{first:?}"
        );
        // Within the minute nothing is told anew, then the sum.
        assert_eq!(add(30, 1, 8), first);
        assert_eq!(add(60, 0, 0), first);
        let second = add(61, 0, 0);
        assert!(second[0].1.starts_with("850 log messages"), "{second:?}");
        assert_eq!(second[1], first[1]);
        // Each ends ten minutes behind its last line.
        assert_eq!(add(629, 0, 0), second);
        assert_eq!(add(629, 5, 0).len(), 2);
        assert_eq!(add(631, 0, 0), second[1..]);
        assert_eq!(add(1229, 0, 0), []);
        assert!(add(1230, 0, 1)[0].1.starts_with("1 log messages"));
        LogAlerts::forget(&alerts, "sshd");
        assert_eq!(shown(), []);
    }
}
