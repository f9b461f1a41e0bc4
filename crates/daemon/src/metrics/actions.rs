//! What the actions of Fail2ban's jails have run.

use weir_metrics::{Counter, Counters, Registry};

/// The metrics of all actions that run commands.
#[derive(Debug, Clone)]
pub struct ActionMetrics {
    runs: Counters<2>,
    failures: Counters<2>,
    lost: Counters<2>,
    leftovers_ended: Counters<2>,
    captures_lost: Counters<1>,
}

/// Counters of one action of a jail.
#[derive(Debug, Clone)]
pub struct ActionCounters {
    /// Commands that were run.
    pub(crate) runs: Counter,
    /// Commands that failed or took too long.
    pub(crate) failures: Counter,
    /// Commands that found no room, or waited at a stop.
    pub(crate) lost: Counter,
    /// Commands that have left something behind which had to be ended.
    pub(crate) leftovers_ended: Counter,
}

impl ActionMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        const LABELS: &[&str; 2] = &["jail", "action"];
        Self {
            runs: registry.counters(
                "weir_action_runs_total",
                "Commands of an action of Fail2ban's that were run.",
                LABELS,
            ),
            failures: registry.counters(
                "weir_action_failures_total",
                "Commands of an action that failed, or took longer than its timeout.",
                LABELS,
            ),
            lost: registry.counters(
                "weir_action_lost_total",
                "Commands of an action that were not run: too many waited, or the daemon ended.",
                LABELS,
            ),
            leftovers_ended: registry.counters(
                "weir_action_leftovers_ended_total",
                "Commands of an action that left processes behind which had to be ended.",
                LABELS,
            ),
            captures_lost: registry.counters(
                "weir_action_captures_lost_total",
                "Addresses whose values for commands, as of <F-USER>, were forgotten before a ban: too many fail.",
                &["jail"],
            ),
        }
    }

    pub(crate) fn of(&self, jail: &str, action: &str) -> ActionCounters {
        let labels = [jail, action];
        ActionCounters {
            runs: self.runs.of(labels),
            failures: self.failures.of(labels),
            lost: self.lost.of(labels),
            leftovers_ended: self.leftovers_ended.of(labels),
        }
    }

    pub(crate) fn captures_lost(&self, jail: &str) -> Counter {
        self.captures_lost.of([jail])
    }

    pub(crate) fn keep_only(&self, is_jail: impl Fn(&str) -> bool) {
        let families = [
            &self.runs,
            &self.failures,
            &self.lost,
            &self.leftovers_ended,
        ];
        for family in families {
            family.keep_only(&is_jail);
        }
        self.captures_lost.keep_only(&is_jail);
    }
}
