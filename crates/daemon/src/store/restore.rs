//! Restart truth: which bans are in force after a start. Pure; the clocks come in as an
//! argument.
//!
//! On the same boot, what the backend's tables hold decides and the database explains
//! it. On another boot, what they hold is what a program that saves and restores rules
//! (`netfilter-persistent`) has put there: the database decides, and what only the
//! tables hold is kept besides. A backend that holds nothing (first start, new boot,
//! dry-run) is filled from the database: by the boot clock if the boot is the same, by
//! the wall clock otherwise, and by the remaining time if the wall clock went back
//! behind the last write. So is one whose filling did not come to its end
//! ([`FillMarker`]): what it lacks was not lifted. Bans that only notify are in no table
//! on any boot: the database alone decides about them.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use weir_core::{BanTarget, Until};
use weir_enforce::{BootNanos, Entry, Expiry, Policy};

use super::clock::Now;

/// A ban as the database has it, without its explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The address or network that is banned.
    pub subject: BanTarget,
    /// The producer, ports and action of the ban.
    pub policy: Arc<Policy>,
    /// Which of the boots it was written in: an index into [`StoredState::boots`].
    pub boot: usize,
    /// The ban's end on that boot's clock.
    pub expiry: Expiry,
    /// The ban's end by the wall clock.
    pub until: Until,
}

/// A boot that wrote to the database, and its last sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The boot's id.
    pub id: String,
    /// The wall clock at the last write.
    pub last_wall: Timestamp,
    /// The boot clock at the last write.
    pub last_boottime: BootNanos,
}

/// All that the database says at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredState {
    /// Boots, by index.
    pub boots: Vec<Boot>,
    /// Bans, in no order.
    pub rows: Vec<Row>,
}

/// Bans to insert, to explain and to forget at start.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Entries to put into force.
    pub insert: Vec<Entry>,
    /// Entries in force without an explanation: the database gets one.
    pub unexplained: Vec<Entry>,
    /// In the database, not in force any more: to be forgotten.
    pub forget: Vec<(BanTarget, Arc<Policy>)>,
    /// Rows of an earlier boot that stay: to be written again with this boot's clock.
    pub rewrite: bool,
}

/// A mark in the state directory for as long as a backend is filled: a daemon
/// that dies meanwhile leaves it to the next one.
#[derive(Debug)]
pub struct FillMarker {
    mark: PathBuf,
}

impl FillMarker {
    /// The marker of the daemon with this state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            mark: state_dir.join("restoring"),
        }
    }

    /// Whether a fill was begun and not ended.
    pub fn was_cut_short(&self) -> bool {
        self.mark.exists()
    }

    /// From now on the backend holds a part.
    ///
    /// # Errors
    /// The state directory cannot be written to.
    pub fn begin(&self) -> io::Result<()> {
        fs::write(&self.mark, "")
    }

    /// Removes the mark: all bans are in.
    ///
    /// # Errors
    /// As with [`FillMarker::begin`].
    pub fn end(&self) -> io::Result<()> {
        match fs::remove_file(&self.mark) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// The truth table. `partly`: filling was cut short ([`FillMarker`]).
pub fn plan(mut loaded: StoredState, in_force: Vec<Entry>, partly: bool, now: &Now) -> Plan {
    if in_force.is_empty() || partly {
        return from_database(loaded, now);
    }
    let only_notifies = |row: &Row| !row.policy.action.denies_packets();
    let (notified, denying) = loaded.rows.into_iter().partition(only_notifies);
    loaded.rows = denying;
    let told = from_database(
        StoredState {
            boots: loaded.boots.clone(),
            rows: notified,
        },
        now,
    );
    let mut plan = of_denying(loaded, in_force, now);
    plan.insert.extend(told.insert);
    plan.forget.extend(told.forget);
    plan.rewrite |= told.rewrite;
    plan
}

/// The plan for bans of which tables hold some.
fn of_denying(loaded: StoredState, in_force: Vec<Entry>, now: &Now) -> Plan {
    let explained: HashSet<(BanTarget, &Arc<Policy>)> = loaded
        .rows
        .iter()
        .map(|row| (row.subject, &row.policy))
        .collect();
    let unexplained = in_force
        .iter()
        .filter(|e| !explained.contains(&(e.subject, &e.policy)))
        .cloned()
        .collect();
    // A database that knows no boot is a new one.
    let boots = &loaded.boots;
    if !boots.is_empty() && boots.iter().all(|boot| boot.id != now.boot) {
        return Plan {
            unexplained,
            ..from_database(loaded, now)
        };
    }
    let mut plan = Plan {
        unexplained,
        ..Plan::default()
    };
    let enforced: HashSet<(BanTarget, &Arc<Policy>)> =
        in_force.iter().map(|e| (e.subject, &e.policy)).collect();
    plan.forget = loaded
        .rows
        .iter()
        .filter(|row| !enforced.contains(&(row.subject, &row.policy)))
        .map(|row| (row.subject, row.policy.clone()))
        .collect();
    plan
}

fn from_database(loaded: StoredState, now: &Now) -> Plan {
    // A clock that is behind any write of ours cannot be trusted with an end.
    let wall_went_back = loaded.boots.iter().any(|boot| now.wall < boot.last_wall);
    let mut plan = Plan {
        insert: Vec::with_capacity(loaded.rows.len()),
        ..Plan::default()
    };
    for row in loaded.rows {
        let boot = &loaded.boots[row.boot];
        let same_boot = boot.id == now.boot;
        let expiry = match (row.expiry, row.until) {
            (Expiry::Never, _) | (_, Until::Never) => Some(Expiry::Never),
            (Expiry::At(end), _) if same_boot => (end > now.boottime).then_some(Expiry::At(end)),
            (Expiry::At(end), _) if wall_went_back => {
                let left = end.0.saturating_sub(boot.last_boottime.0);
                (left > 0).then(|| Expiry::At(BootNanos(now.boottime.0.saturating_add(left))))
            }
            (Expiry::At(_), until) => (!until.is_over(now.wall)).then(|| now.expiry(until)),
        };
        match expiry {
            Some(expiry) => {
                plan.rewrite |= !same_boot;
                plan.insert.push(Entry {
                    subject: row.subject,
                    policy: row.policy,
                    expiry,
                });
            }
            None => plan.forget.push((row.subject, row.policy)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::{Action, BanSource, PortSet};

    const SECOND: u64 = 1_000_000_000;

    fn policy() -> Arc<Policy> {
        Arc::new(Policy {
            producer: BanSource::Jail("sshd".into()),
            scope: PortSet::all(),
            action: Action::Drop,
        })
    }

    fn now(boot: &str, boottime: u64, wall: i64) -> Now {
        Now {
            boot: boot.into(),
            boottime: BootNanos(boottime * SECOND),
            wall: Timestamp::from_second(wall).unwrap(),
        }
    }

    /// Boot "a" last wrote at its second 100, wall 1000; the ban ends 60 s later.
    fn loaded() -> StoredState {
        StoredState {
            boots: vec![Boot {
                id: "a".into(),
                last_wall: Timestamp::from_second(1000).unwrap(),
                last_boottime: BootNanos(100 * SECOND),
            }],
            rows: vec![Row {
                subject: "192.0.2.7".parse().unwrap(),
                policy: policy(),
                boot: 0,
                expiry: Expiry::At(BootNanos(160 * SECOND)),
                until: Until::At(Timestamp::from_second(1060).unwrap()),
            }],
        }
    }

    #[test]
    fn a_start_with_empty_tables() {
        struct Case {
            name: &'static str,
            now: Now,
            expiry: Option<u64>,
        }
        for case in [
            Case {
                name: "same boot, in time",
                now: now("a", 110, 1010),
                expiry: Some(160),
            },
            Case {
                name: "same boot, over",
                now: now("a", 160, 1060),
                expiry: None,
            },
            Case {
                name: "same boot, wall jumped ahead: the boot clock decides",
                now: now("a", 110, 9999),
                expiry: Some(160),
            },
            Case {
                name: "same boot, wall went back: the boot clock decides",
                now: now("a", 110, 5),
                expiry: Some(160),
            },
            Case {
                name: "new boot, in time",
                now: now("b", 7, 1020),
                expiry: Some(47),
            },
            Case {
                name: "new boot, over while it was down",
                now: now("b", 7, 1061),
                expiry: None,
            },
            Case {
                name: "new boot, wall behind the last write: remaining time",
                now: now("b", 7, 900),
                expiry: Some(67),
            },
            Case {
                name: "new boot without a clock battery",
                now: now("b", 7, 0),
                expiry: Some(67),
            },
        ] {
            let plan = plan(loaded(), vec![], false, &case.now);
            let expected: Vec<_> = case
                .expiry
                .iter()
                .map(|s| Expiry::At(BootNanos(s * SECOND)))
                .collect();
            let got: Vec<_> = plan.insert.iter().map(|e| e.expiry).collect();
            assert_eq!(got, expected, "{}", case.name);
            assert_eq!(plan.forget.len(), 1 - expected.len(), "{}", case.name);
            assert_eq!(
                plan.rewrite,
                case.now.boot == "b" && case.expiry.is_some(),
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn a_ban_without_end_survives_everything() {
        let mut loaded = loaded();
        loaded.rows[0].expiry = Expiry::Never;
        loaded.rows[0].until = Until::Never;
        for now in [now("a", 110, 1010), now("b", 1, 99_999), now("b", 1, 0)] {
            let plan = plan(loaded.clone(), vec![], false, &now);
            assert_eq!(plan.insert[0].expiry, Expiry::Never, "{now:?}");
        }
    }

    #[test]
    fn a_filling_that_was_cut_short_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let filling = FillMarker::new(dir.path());
        filling.begin().unwrap();
        let partly = FillMarker::new(dir.path()).was_cut_short();
        let in_force = Entry {
            subject: "192.0.2.8".parse().unwrap(),
            policy: policy(),
            expiry: Expiry::At(BootNanos(500 * SECOND)),
        };
        let plan = plan(loaded(), vec![in_force], partly, &now("a", 110, 1010));
        assert_eq!(plan.forget, []);
        assert_eq!(plan.insert[0].subject, "192.0.2.7".parse().unwrap());
        filling.end().unwrap();
        filling.end().unwrap();
        assert!(!filling.was_cut_short());
    }

    /// Found by a reader, 2026-11-23: `netfilter-persistent` had restored an old
    /// snapshot of the sets, and what it lacked was forgotten for good.
    #[test]
    fn tables_that_hold_something_on_another_boot_were_restored_by_somebody() {
        let only_in_tables = Entry {
            subject: "192.0.2.8".parse().unwrap(),
            policy: policy(),
            expiry: Expiry::At(BootNanos(500 * SECOND)),
        };
        let in_both = Entry {
            subject: "192.0.2.7".parse().unwrap(),
            ..only_in_tables.clone()
        };
        for in_force in [
            vec![only_in_tables.clone()],
            vec![only_in_tables.clone(), in_both],
        ] {
            let plan = plan(loaded(), in_force, false, &now("b", 7, 1020));
            let [inserted] = &*plan.insert else {
                panic!("{plan:?}");
            };
            assert_eq!(inserted.subject, "192.0.2.7".parse().unwrap());
            assert_eq!(inserted.expiry, Expiry::At(BootNanos(47 * SECOND)));
            assert_eq!(plan.unexplained, std::slice::from_ref(&only_in_tables));
            assert_eq!(plan.forget, []);
            assert!(plan.rewrite);
        }
        let new = StoredState::default();
        let plan = plan(new, vec![only_in_tables.clone()], false, &now("b", 7, 1020));
        assert_eq!(plan.unexplained, [only_in_tables]);
    }

    /// On this boot and on another one, beside tables that hold something.
    #[test]
    fn the_database_decides_about_bans_that_only_notify() {
        let only_in_tables = Entry {
            subject: "192.0.2.8".parse().unwrap(),
            policy: policy(),
            expiry: Expiry::At(BootNanos(500 * SECOND)),
        };
        for (now, expiry) in [(now("a", 110, 1010), 160), (now("b", 7, 1020), 47)] {
            let mut loaded = loaded();
            loaded.rows.push(loaded.rows[0].clone());
            let notified = &mut loaded.rows[1];
            Arc::make_mut(&mut notified.policy).action = Action::Notify;
            let row = notified.clone();
            let plan = plan(loaded, vec![only_in_tables.clone()], false, &now);
            let restored = plan.insert.last().unwrap();
            assert_eq!(
                (restored.subject, &restored.policy),
                (row.subject, &row.policy)
            );
            assert_eq!(restored.expiry, Expiry::At(BootNanos(expiry * SECOND)));
            assert_eq!(plan.rewrite, now.boot == "b");
            // The other one as ever.
            let is_lifted = plan.forget == [(row.subject, policy())];
            assert_eq!(is_lifted, now.boot == "a", "{plan:?}");
        }
        let over = plan(
            StoredState {
                rows: vec![Row {
                    policy: Arc::new(Policy {
                        action: Action::Notify,
                        ..(*policy()).clone()
                    }),
                    ..loaded().rows[0].clone()
                }],
                ..loaded()
            },
            vec![only_in_tables],
            false,
            &now("a", 160, 1060),
        );
        assert_eq!((over.insert.len(), over.forget.len()), (0, 1));
    }

    #[test]
    fn the_tables_decide_when_they_hold_something() {
        let only_in_tables = Entry {
            subject: "192.0.2.8".parse().unwrap(),
            policy: policy(),
            expiry: Expiry::At(BootNanos(500 * SECOND)),
        };
        let plan = plan(
            loaded(),
            vec![only_in_tables.clone()],
            false,
            &now("a", 110, 1010),
        );
        assert_eq!(plan.insert, []);
        assert_eq!(plan.unexplained, [only_in_tables]);
        assert_eq!(plan.forget, [("192.0.2.7".parse().unwrap(), policy())]);
    }
}
