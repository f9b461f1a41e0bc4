//! Rules about programs, and what the kernel has decided by them.

use weir_metrics::{Gauges, Registry, Samples, Totals};

use crate::identity::AppStatus;

/// Rules, programs, and how they are told apart.
#[derive(Debug)]
pub struct AppMetrics {
    decisions: Totals<1>,
    dropped: Totals<1>,
    programs: Gauges<0>,
    evicted: Totals<0>,
    files: Gauges<0>,
    leases: Gauges<0>,
    refused_leases: Totals<0>,
    packets: Totals<1>,
    queue_dropped: Totals<0>,
    refused: Totals<1>,
    walks: Totals<1>,
    unknown: Totals<0>,
    lost: Totals<0>,
    untold: Totals<0>,
    refused_flows: Totals<0>,
    overflow_flows: Totals<0>,
    crowded: Totals<0>,
    cut: Totals<0>,
    open_questions: Gauges<0>,
    questions: Totals<1>,
    learned: Gauges<0>,
    learned_forgotten: Totals<0>,
    learned_unidentified: Totals<0>,
    replaced: Gauges<0>,
}

impl AppMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            decisions: registry.totals(
                "weir_app_decisions_total",
                "Connections and flows that a rule of [app] has decided; default and unknown stand for no rule.",
                &["rule"],
            ),
            dropped: registry.totals(
                "weir_app_dropped_total",
                "Packets dropped, and calls refused, by a rule of [app].",
                &["rule"],
            ),
            programs: registry.gauges("weir_app_programs", "Programs that are known.", &[]),
            evicted: registry.totals(
                "weir_app_evicted_programs_total",
                "Programs that were forgotten because there was no room.",
                &[],
            ),
            files: registry.gauges(
                "weir_app_files",
                "Files of programs whose SHA-256 is known.",
                &[],
            ),
            leases: registry.gauges(
                "weir_app_leases",
                "How many of these nobody can write to before the SHA-256 is taken back.",
                &[],
            ),
            refused_leases: registry.totals(
                "weir_app_refused_leases_total",
                "How often a file had no SHA-256 because there was no room to be told of its writers.",
                &[],
            ),
            packets: registry.totals(
                "weir_app_packets_dropped_total",
                "Packets dropped because of the program, by direction.",
                &["direction"],
            ),
            queue_dropped: registry.totals(
                "weir_app_queue_dropped_total",
                "Packets dropped unjudged at level nfqueue, because too many waited.",
                &[],
            ),
            refused: registry.totals(
                "weir_app_refused_total",
                "Calls refused with EPERM because of the program: connect, or socket.",
                &["call"],
            ),
            walks: registry.totals(
                "weir_app_walks_total",
                "Walks over the mappings of a process: done, busy where others changed them all the time, or large where level push met more than it looks at.",
                &["result"],
            ),
            unknown: registry.totals(
                "weir_app_unknown_decisions_total",
                "Decisions about programs that were not known.",
                &[],
            ),
            lost: registry.totals(
                "weir_app_lost_events_total",
                "Events about programs that found the ring full.",
                &[],
            ),
            untold: registry.totals(
                "weir_app_untold_events_total",
                "Events about incoming connections that found their half of the ring full.",
                &[],
            ),
            refused_flows: registry.totals(
                "weir_app_refused_flows_total",
                "Flows of datagrams that were refused and noted as such, apart from those that pass.",
                &[],
            ),
            overflow_flows: registry.totals(
                "weir_app_overflow_flows_total",
                "New incoming flows of datagrams beyond 1,024 of one socket in ten seconds; they have a table of their own.",
                &[],
            ),
            crowded: registry.totals(
                "weir_app_crowded_sockets_total",
                "Sockets held by more different programs than are remembered.",
                &[],
            ),
            cut: registry.totals(
                "weir_app_cut_connections_total",
                "Connections ended because the rules no longer allow them.",
                &[],
            ),
            open_questions: registry.gauges(
                "weir_app_open_questions",
                "Questions about connections that no rule is about, which wait for an answer.",
                &[],
            ),
            questions: registry.totals(
                "weir_app_questions_total",
                "What became of connections that wait for an answer: answered, timed_out, or unasked because too many questions were open.",
                &["result"],
            ),
            learned: registry.gauges(
                "weir_app_learned_programs",
                "Programs of which it is recorded what they did.",
                &[],
            ),
            learned_forgotten: registry.totals(
                "weir_app_learned_forgotten_total",
                "Programs whose record made room for others.",
                &[],
            ),
            learned_unidentified: registry.totals(
                "weir_app_learned_unidentified_total",
                "Connections and flows of programs that were gone before it was known who they were, while weir learned.",
                &[],
            ),
            replaced: registry.gauges(
                "weir_app_replaced_files",
                "Files that are others than a rule names by SHA-256.",
                &[],
            ),
        }
    }

    pub(crate) fn say(&self, samples: &mut Samples, app: &AppStatus) {
        // Answers come and go, each with a number of its own: series without end.
        for rule in app.rules.iter().filter(|rule| !rule.is_answer()) {
            samples.total(self.decisions, [&rule.name], rule.judged);
            samples.total(self.dropped, [&rule.name], rule.dropped);
        }
        let counts = &app.counts;
        samples.gauge(self.programs, [], app.programs as u64);
        samples.total(self.evicted, [], app.evicted);
        samples.gauge(self.files, [], app.files as u64);
        samples.gauge(self.leases, [], app.leases as u64);
        samples.total(self.refused_leases, [], app.refused_leases);
        samples.total(self.packets, ["out"], counts.dropped_out);
        samples.total(self.packets, ["in"], counts.dropped_in);
        if let Some(dropped) = app.queue_dropped {
            samples.total(self.queue_dropped, [], dropped);
        }
        samples.total(self.refused, ["connect"], counts.refused);
        samples.total(self.refused, ["socket"], counts.refused_sockets);
        samples.total(
            self.walks,
            ["done"],
            counts.walks.saturating_sub(counts.busy + counts.large),
        );
        samples.total(self.walks, ["busy"], counts.busy);
        samples.total(self.walks, ["large"], counts.large);
        samples.total(self.unknown, [], counts.unknown);
        samples.total(self.lost, [], counts.lost);
        samples.total(self.untold, [], counts.untold);
        samples.total(self.refused_flows, [], counts.refused_flows);
        samples.total(self.overflow_flows, [], counts.overflow_flows);
        samples.total(self.crowded, [], counts.crowded);
        samples.total(self.cut, [], counts.cut);
        if let Some(prompt) = &app.prompt {
            samples.gauge(self.open_questions, [], prompt.open as u64);
            for (result, count) in [
                ("answered", prompt.answered),
                ("timed_out", prompt.timed_out),
                ("unasked", prompt.unasked),
            ] {
                samples.total(self.questions, [result], count);
            }
        }
        let learning = &app.learning;
        samples.gauge(self.learned, [], learning.programs as u64);
        samples.total(self.learned_forgotten, [], learning.forgotten);
        samples.total(self.learned_unidentified, [], learning.unidentified);
        samples.gauge(self.replaced, [], app.replaced.len() as u64);
    }
}
