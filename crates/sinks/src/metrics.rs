//! What sinks count, for all of their life: a reload that changes a sink goes on
//! with its numbers, one that removes it forgets them.

use weir_metrics::{Counter, Counters, Gauges, Registry, Samples};

/// The metrics of all sinks.
#[derive(Debug, Clone)]
pub struct SinkMetrics {
    delivered: Counters<1>,
    lost: Counters<1>,
    held_back: Counters<1>,
    refused: Counters<1>,
    queued: Gauges<1>,
    failing: Gauges<1>,
}

/// Counters of one sink.
#[derive(Debug)]
pub(crate) struct SinkCounters {
    pub(crate) delivered: Counter,
    pub(crate) lost: Counter,
    pub(crate) held_back: Counter,
    pub(crate) refused: Counter,
}

impl SinkMetrics {
    /// Declares the counters of all sinks.
    pub fn declare(registry: &mut Registry) -> Self {
        Self {
            delivered: registry.counters(
                "weir_sink_delivered_events_total",
                "Events that the sink's receiver has taken.",
                &["sink"],
            ),
            lost: registry.counters(
                "weir_sink_lost_events_total",
                "Events that found the sink's queue full, or were in it at a stop.",
                &["sink"],
            ),
            held_back: registry.counters(
                "weir_sink_held_back_events_total",
                "Events that the sink's rate limit counted instead of sending them.",
                &["sink"],
            ),
            refused: registry.counters(
                "weir_sink_refused_events_total",
                "Events that the sink's receiver will not take.",
                &["sink"],
            ),
            queued: registry.gauges(
                "weir_sink_queued_events",
                "Events that wait in the sink's queue.",
                &["sink"],
            ),
            failing: registry.gauges(
                "weir_sink_failing",
                "1 while the last delivery to the sink's receiver has failed.",
                &["sink"],
            ),
        }
    }

    pub(crate) fn of(&self, sink: &str) -> SinkCounters {
        SinkCounters {
            delivered: self.delivered.of([sink]),
            lost: self.lost.of([sink]),
            held_back: self.held_back.of([sink]),
            refused: self.refused.of([sink]),
        }
    }

    /// Forgets the counters of all sinks but these.
    pub(crate) fn keep_only(&self, is_kept: impl Fn(&str) -> bool + Copy) {
        for family in [&self.delivered, &self.lost, &self.held_back, &self.refused] {
            family.keep_only(is_kept);
        }
    }

    /// Says of a sink what is not counted: how many events wait, and whether they
    /// do not get through.
    pub fn say(&self, samples: &mut Samples, sink: &str, queued: usize, is_failing: bool) {
        samples.gauge(self.queued, [sink], queued);
        samples.gauge(self.failing, [sink], is_failing);
    }
}
