//! The queue of one sink: bounded, never waited for by those who fill it. What
//! does not fit is counted, and told once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;
use weir_events::{
    Event, Listener,
    alerts::{Alerts, Voice},
};

use crate::{
    config::SinkConfig,
    metrics::{SinkCounters, SinkMetrics},
};

/// A sink as shown.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // the fields are those of SinkConfig
pub struct SinkStatus {
    pub name: String,
    pub kind: &'static str,
    pub target: String,
    /// Events that wait.
    pub queued: usize,
    pub delivered: u64,
    /// Events that found the queue full, or were in it at a stop.
    pub lost: u64,
    /// Events that the rate limit counted instead.
    pub held_back: u64,
    /// Events that the receiver will not take.
    pub refused: u64,
    /// The error while the sink does not get through.
    pub failing: Option<String>,
}

/// The end of a sink that events are put into.
pub struct SinkQueue {
    name: String,
    kind: &'static str,
    target: String,
    kinds: u32,
    cap: usize,
    /// The subject of the sink's alerts.
    pub(crate) about: String,
    pub(crate) alerts: Voice,
    queue: Mutex<Queue>,
    filled: Condvar,
    pub(crate) stop: AtomicBool,
    pub(crate) counters: SinkCounters,
    pub(crate) failing: Mutex<Option<String>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Event>>,
    /// Lost since the receiver was last told how many.
    lost: u64,
}

impl SinkQueue {
    pub(crate) fn new(config: &SinkConfig, alerts: Arc<Alerts>, metrics: &SinkMetrics) -> Self {
        Self {
            name: config.name.clone(),
            kind: config.kind_name(),
            target: config.target(),
            kinds: config.events,
            cap: config.queue,
            about: format!("sink:{}", config.name),
            alerts: Voice::new(alerts),
            queue: Mutex::default(),
            filled: Condvar::new(),
            stop: AtomicBool::new(false),
            counters: metrics.of(&config.name),
            failing: Mutex::default(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of this lock panics")
    }

    /// The next event, if one comes in time.
    pub(crate) fn take(&self, wait: Duration) -> Option<Arc<Event>> {
        let mut queue = self.queue();
        if queue.events.is_empty() && !self.stop.load(Relaxed) {
            let waited = self.filled.wait_timeout(queue, wait);
            queue = waited.expect("no holder of this lock panics").0;
        }
        queue.events.pop_front()
    }

    /// Events lost since this was asked last, once there is room again.
    pub(crate) fn take_lost(&self) -> u64 {
        let mut queue = self.queue();
        match queue.events.len() < self.cap {
            true => std::mem::take(&mut queue.lost),
            false => 0,
        }
    }

    /// Its thread is to end when it can, and speaks about nothing any more: a sink
    /// of the same name may be about to.
    pub(crate) fn end(&self) {
        self.alerts
            .silence(&[&self.about, &format!("{}:queue", self.about)]);
        self.stop.store(true, Relaxed);
        self.wake();
    }

    /// Gives up the events that still wait.
    pub(crate) fn give_up(&self) {
        let left = std::mem::take(&mut self.queue().events).len();
        self.counters.lost.add(left as u64);
    }

    pub(crate) fn wake(&self) {
        self.filled.notify_all();
    }

    /// The counts of the sink, and the error if it fails.
    pub fn status(&self) -> SinkStatus {
        let failing = self.failing.lock();
        SinkStatus {
            name: self.name.clone(),
            kind: self.kind,
            target: self.target.clone(),
            queued: self.queue().events.len(),
            delivered: self.counters.delivered.get(),
            lost: self.counters.lost.get(),
            held_back: self.counters.held_back.get(),
            refused: self.counters.refused.get(),
            failing: failing.expect("no holder of this lock panics").clone(),
        }
    }
}

impl Listener for SinkQueue {
    fn name(&self) -> &str {
        &self.name
    }

    fn kinds(&self) -> u32 {
        self.kinds
    }

    /// Puts an event in, if the sink wants its kind and there is room.
    fn offer(&self, event: &Arc<Event>) {
        if self.kinds & event.kind.bit() == 0 {
            return;
        }
        let first = {
            let mut queue = self.queue();
            if queue.events.len() < self.cap {
                queue.events.push_back(event.clone());
                self.filled.notify_one();
                return;
            }
            queue.lost += 1;
            queue.lost == 1
        };
        self.counters.lost.inc();
        if first {
            self.alerts.raise(
                &format!("{}:queue", self.about),
                format!(
                    "{} events wait for {}, as many as may: further ones are lost, `weir status` says how many",
                    self.cap, self.target
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use jiff::Timestamp;

    use super::*;
    use crate::config::tests::check;
    use weir_events::{Events, Kind};

    /// Two sinks of one place each; the alert about one goes to the other.
    fn queues(alerts: &Arc<Alerts>) -> Vec<Arc<SinkQueue>> {
        let sink = |name: &str| {
            format!(
                "[sink.{name}]\nkind = \"file\"\npath = \"/tmp/{name}\"\nqueue = 1\nevents = [\"ban\", \"error\"]\n"
            )
        };
        let config = check(&(sink("a") + &sink("b"))).unwrap();
        let metrics = SinkMetrics::declare(&mut weir_metrics::Registry::default());
        let queue = |config| Arc::new(SinkQueue::new(config, alerts.clone(), &metrics));
        config.sinks.iter().map(queue).collect()
    }

    /// A reload that mends a dead sink while its queue overflows: the alert
    /// about it is told by the thread that told the event.
    #[test]
    fn an_overflow_and_a_reload_do_not_wait_for_each_other() {
        let (alerts, events) = (Arc::new(Alerts::default()), Arc::new(Events::default()));
        alerts.tell(events.bus());
        let sinks = queues(&alerts);
        let listeners = || {
            sinks
                .iter()
                .map(|s| s.clone() as Arc<dyn Listener>)
                .collect()
        };
        events.set_listeners(listeners());
        let (done, all_done) = mpsc::channel();
        let (teller, told_by) = (events.clone(), sinks.clone());
        let overflowing = thread::spawn({
            let (alerts, done) = (alerts.clone(), done.clone());
            move || {
                for n in 0..20_000 {
                    teller.tell(&Event::new(Kind::Ban, Timestamp::now(), ""));
                    if n % 4 == 3 {
                        for sink in &told_by {
                            sink.take(Duration::ZERO);
                            sink.take_lost();
                            alerts.clear(&format!("{}:queue", sink.about));
                        }
                    }
                }
                done.send("told").unwrap();
            }
        });
        let reloading = thread::spawn({
            let listeners: Arc<[Arc<dyn Listener>]> = listeners();
            move || {
                for _ in 0..200_000 {
                    events.set_listeners(listeners.clone());
                }
                done.send("reloaded").unwrap();
            }
        });
        for _ in 0..2 {
            let done = all_done.recv_timeout(Duration::from_secs(60));
            done.expect("neither waits for the other");
        }
        overflowing.join().unwrap();
        reloading.join().unwrap();
        assert!(sinks[0].status().lost > 0);
    }
}
