//! Bans of Fail2ban's taken over, and given back. Each goes to the jail of its name, with
//! the ports and action that the jail has now; a ban that is over counts as a past one.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use weir_core::{
    Ban, BanSource, BanTarget, Until,
    policy::{Ledger, Offence},
};
use weir_enforce::Backend;
use weir_events::alerts::Alerts;

use super::Refusal;
use crate::{
    bans::Bans,
    config::Config,
    current::Current,
    fail2ban_state::{self, StateError, StoredBan, StoredState},
    positions,
    store::{Change, PORTION, Progress, Store, clock::Now},
};

/// The mark in the state directory: Fail2ban's bans have been taken over from the file that
/// its first line names, but for those of the jails in the further lines, which could not run
/// then.
const MARK: &str = "fail2ban-taken-over";
/// Past bans of an address that are remembered; of more, bans grow no further.
const MAX_COUNT: u32 = 64;
/// What the alert about it is about.
const ABOUT: &str = "fail2ban-state";

/// Counts of what was taken over from Fail2ban.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TakenOver {
    /// Bans that are in force by that.
    pub bans: usize,
    /// Bans that are over, and count as past ones.
    pub over: usize,
    /// Bans that were in force here already, for as long or longer.
    pub known: usize,
    /// Rows that name nobody who can be banned.
    pub unreadable: usize,
    /// Bans in force of jails that weir does not run, by jail.
    pub other_jails: BTreeMap<String, usize>,
}

/// Takes bans over, and gives them back.
pub struct Fail2banState {
    pub(super) config: Arc<Current<Config>>,
    pub(super) bans: Arc<Bans>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) store: Arc<Store>,
    pub(super) ledger: Arc<Current<Ledger>>,
    pub(super) alerts: Arc<Alerts>,
}

impl Fail2banState {
    /// At a start with `[fail2ban]`, once for each state directory, before logs are read.
    pub(crate) fn take_over_once(&self) {
        let config = self.config.get();
        let Some(fail2ban) = &config.fail2ban else {
            return;
        };
        let mark = config.state_dir.join(MARK);
        let Some(path) = &fail2ban.database else {
            return;
        };
        // Only of jails that could not run before, and can now.
        let waiting = match fs::read_to_string(&mark) {
            Err(_) => None,
            Ok(text) => {
                let waiting: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
                let runs = |name: &String| config.jails.iter().any(|jail| jail.name == *name);
                if !waiting.iter().any(runs) {
                    return;
                }
                Some(waiting)
            }
        };
        match fail2ban_state::read(path) {
            // It has never run here.
            Err(StateError::Missing) => {}
            Err(error) => {
                let message = format!(
                    "the bans of Fail2ban in {} are not taken over: {error}; mend that and restart weir, or remove the file",
                    path.display()
                );
                self.alerts.raise(ABOUT, message);
            }
            Ok(mut state) => {
                if let Some(waiting) = &waiting {
                    state.bans.retain(|ban| waiting.contains(&ban.jail));
                }
                self.go_on_in_logs(&state);
                let taken = self.take(state);
                tracing::info!("from {}: {}", path.display(), in_words(&taken));
                let is_broken = |name: &str| fail2ban.broken.iter().any(|(jail, _)| jail == name);
                let waits = taken.other_jails.iter().filter(|(jail, _)| is_broken(jail));
                let waits: Vec<_> = waits.map(|(jail, count)| (jail.as_str(), *count)).collect();
                self.note_that_taken_over(&mark, path, &waits);
            }
        }
    }

    /// Writes the mark that keeps later starts from doing it again: by then Fail2ban's
    /// database is of the past, and a ban in it may have been lifted here.
    ///
    /// `waits`: jails that cannot run, with the bans in force of each.
    fn note_that_taken_over(&self, mark: &Path, database: &Path, waits: &[(&str, usize)]) {
        let noted = self.store.flush().map_err(|error| error.to_string());
        let noted = noted.and_then(|()| {
            let names: String = waits.iter().map(|(jail, _)| format!("{jail}\n")).collect();
            fs::write(mark, format!("{}\n{names}", database.display())).map_err(|e| e.to_string())
        });
        match noted {
            Ok(()) if waits.is_empty() => self.alerts.clear(ABOUT),
            Ok(()) => {
                let jails: Vec<_> = waits
                    .iter()
                    .map(|(jail, count)| format!("{jail} ({count})"))
                    .collect();
                self.alerts.raise(
                    ABOUT,
                    format!(
                        "bans of Fail2ban are not taken over because their jails cannot run: {}; they are once that is mended",
                        jails.join(", ")
                    ),
                );
            }
            Err(error) => self.alerts.raise(
                ABOUT,
                format!(
                    "the bans of Fail2ban are taken over, and that cannot be noted in {}: {error}; the next start does it again",
                    mark.display()
                ),
            ),
        }
    }

    /// Logs that no earlier weir has read go on where Fail2ban stood.
    fn go_on_in_logs(&self, state: &StoredState) {
        let known = self.store.positions();
        for (path, rows) in &state.logs {
            let key = positions::key_of_files(&[path.display().to_string()]);
            if known.contains_key(&key) {
                continue;
            }
            let Some(position) = fail2ban_state::position(path, rows) else {
                continue;
            };
            let Ok(position) = serde_json::to_string(&[position]) else {
                continue;
            };
            self.store.remember([Change::Progress(Progress {
                source: key,
                position: Some(position),
                tracked: Vec::new(),
            })]);
        }
    }

    /// Takes over what the database at `path` holds; without one, where Fail2ban's
    /// configuration says.
    pub fn take_over(&self, path: Option<PathBuf>) -> Result<TakenOver, Refusal> {
        let config = self.config.get();
        let configured = config.fail2ban.as_ref().and_then(|f| f.database.clone());
        let path = path.or_else(|| configured.clone()).ok_or_else(|| {
            Refusal::Malformed("name the database: [fail2ban] names none".to_owned())
        })?;
        let state = fail2ban_state::read(&path)
            .map_err(|error| Refusal::Malformed(format!("{}: {error}", path.display())))?;
        let taken = self.take(state);
        if configured.as_ref() == Some(&path) {
            let broken = config.fail2ban.iter().flat_map(|f| &f.broken);
            let waits: Vec<_> = broken
                .filter_map(|(jail, _)| Some((jail.as_str(), *taken.other_jails.get(jail)?)))
                .collect();
            self.note_that_taken_over(&config.state_dir.join(MARK), &path, &waits);
        } else {
            let _ = self.store.flush();
        }
        Ok(taken)
    }

    fn take(&self, state: StoredState) -> TakenOver {
        let config = self.config.get();
        let now = Now::read();
        let mut taken = TakenOver {
            unreadable: state.unreadable,
            ..TakenOver::default()
        };
        let past = self.store.jail_history();
        let past: HashMap<(&str, BanTarget), u32> = past
            .iter()
            .map(|one| ((one.jail.as_str(), one.subject), one.offences))
            .collect();
        let (mut bans, mut history) = (Vec::new(), Vec::new());
        for stored in state.bans {
            let is_over = stored.until.is_over(now.wall);
            let Some(jail) = config.jails.iter().find(|jail| jail.name == stored.jail) else {
                if !is_over {
                    *taken.other_jails.entry(stored.jail).or_default() += 1;
                }
                continue;
            };
            let before = past.get(&(jail.name.as_str(), stored.subject)).copied();
            let count = stored.count.min(MAX_COUNT);
            let ban = Ban {
                subject: stored.subject,
                scope: jail.scope.clone(),
                producer: BanSource::Jail(jail.name.clone()),
                action: jail.action,
                reason: format!("ban {} by Fail2ban", stored.count),
                since: stored.since.min(now.wall),
                until: stored.until,
                evidence: stored.matches,
            };
            let is_known = !is_over && self.holds(&ban, &now);
            taken.known += usize::from(is_known);
            let comes = !is_over && !is_known;
            // One that comes into force is remembered as one itself.
            let more = count
                .saturating_sub(before.unwrap_or(0))
                .saturating_sub(u32::from(comes));
            if more > 0 {
                history.push(Change::PastBans {
                    ban: ban.clone(),
                    count: more,
                });
            }
            self.ledger.get().restore_history([Offence {
                jail: jail.name.clone(),
                subject: stored.subject,
                offences: count.max(before.unwrap_or(0)),
                last: ban.since,
            }]);
            if comes {
                bans.push(ban);
            }
            taken.over += usize::from(is_over);
        }
        taken.bans = bans.len();
        self.store.remember(history);
        while !bans.is_empty() {
            let rest = bans.split_off(bans.len().min(PORTION));
            self.bans.take_over(std::mem::replace(&mut bans, rest));
        }
        taken
    }

    /// Whether the ban is in force already, for as long.
    fn holds(&self, ban: &Ban, now: &Now) -> bool {
        let entries = self.backend.entries_for(ban.subject.prefix().addr());
        entries.unwrap_or_default().iter().any(|entry| {
            entry.subject == ban.subject
                && entry.policy.producer == ban.producer
                && entry.policy.scope == ban.scope
                // Ends are kept in whole seconds there.
                && match (now.until(entry.expiry), ban.until) {
                    (Until::At(here), Until::At(there)) => here.as_second() + 1 >= there.as_second(),
                    (Until::Never, _) => true,
                    (Until::At(_), Until::Never) => false,
                }
        })
    }

    /// The bans of jails that are in force, as Fail2ban remembers them.
    pub fn give_back(&self) -> Result<Vec<StoredBan>, Refusal> {
        let now = Now::read();
        let mut entries = self.backend.entries()?;
        entries.retain(|entry| matches!(entry.policy.producer, BanSource::Jail(_)));
        let details = self.store.details(&entries);
        let ledger = self.ledger.get();
        let stored = entries
            .into_iter()
            .zip(details)
            .filter_map(|(entry, detail)| {
                let BanSource::Jail(jail) = &entry.policy.producer else {
                    return None;
                };
                let (since, matches) = match detail {
                    Some(detail) => (detail.since, detail.evidence),
                    None => (now.wall, Vec::new()),
                };
                let count = ledger
                    .jail(jail)
                    .and_then(|number| ledger.offences(number, entry.subject));
                Some(StoredBan {
                    jail: jail.clone(),
                    subject: entry.subject,
                    since,
                    until: now.until(entry.expiry),
                    count: count.map_or(1, |(count, _)| count.max(1)),
                    matches,
                })
            });
        Ok(stored.collect())
    }
}

/// What was taken over, in a sentence.
pub fn in_words(taken: &TakenOver) -> String {
    let mut words = format!(
        "{} taken over from Fail2ban, {} over",
        crate::counted(taken.bans as u64, "ban", "bans"),
        crate::counted(taken.over as u64, "more is", "more are")
    );
    for (count, what) in [
        (taken.known, "were in force already"),
        (taken.unreadable, "name nobody who can be banned"),
    ] {
        if count > 0 {
            words.push_str(&format!(", {count} {what}"));
        }
    }
    for (jail, count) in &taken.other_jails {
        words.push_str(&format!(
            ", {count} are of the jail {jail}, which does not run here"
        ));
    }
    words
}
