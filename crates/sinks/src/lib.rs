//! Sinks: where events go besides the log and the API. Each has a bounded
//! queue (`sink_queue`) and a thread of its own, so that a receiver that is slow,
//! dead or hostile costs nobody else anything: a failed delivery is tried
//! again, later each time, and what the queue cannot hold meanwhile is counted.
//! How an event is written is in `format`, what a configuration says in `config`;
//! each kind has a file.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod config;
mod file;
mod format;
mod http;
mod key;
mod metrics;
mod rate_limit;
mod sink_queue;
mod telegram;
mod webhook;
mod zmq;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

pub use metrics::SinkMetrics;
pub use sink_queue::{SinkQueue, SinkStatus};
use weir_events::{Event, Events, Kind, Listener, alerts::Alerts};

use config::{SinkConfig, SinkKind};
use format::Records;
use rate_limit::Rate;

/// A thread looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// The first wait before a delivery is tried again; each further one is twice
/// as long …
const RETRY: Duration = Duration::from_secs(1);
/// … up to this.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// At a stop the sinks have this long for what waits.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// Why an event has not been delivered.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The event may be delivered later.
    Later {
        /// The error text.
        why: String,
        /// The receiver asks for this much time.
        after: Option<Duration>,
    },
    /// The event will never be taken, for this reason.
    Refused(String),
}

impl Failure {
    fn later(why: impl Into<String>) -> Self {
        Self::Later {
            why: why.into(),
            after: None,
        }
    }
}

/// A sink of one kind, which delivers events.
trait Deliver: Send {
    /// Delivers one event, or says why not, in bounded time.
    fn deliver(&mut self, event: &Event) -> Result<(), Failure>;

    /// Looks after its connection while there is nothing to deliver.
    fn idle(&mut self) {}
}

fn open(config: &SinkConfig) -> Result<Box<dyn Deliver>, Failure> {
    let records = Records::new(config.format);
    Ok(match &config.kind {
        SinkKind::Webhook { url, token, ca } => Box::new(webhook::Webhook::new(
            url.clone(),
            token.clone(),
            ca.as_deref(),
            records,
        )),
        SinkKind::Telegram {
            api,
            token,
            chat_id,
        } => Box::new(telegram::Telegram::new(
            api,
            token,
            chat_id.clone(),
            records,
        )),
        SinkKind::Zmq { url, server_key } => {
            let opened = zmq::Publisher::new(url.clone(), server_key.as_ref(), records);
            Box::new(opened.map_err(Failure::later)?)
        }
        SinkKind::File { path } => Box::new(file::JsonLines::new(path.clone(), records)),
    })
}

/// The result of a test event.
#[derive(Debug, Clone, Serialize)]
pub struct TestOutcome {
    /// The name of the sink.
    pub sink: String,
    /// The destination of the sink.
    pub target: String,
    /// Did the receiver take it?
    pub delivered: bool,
    /// The error, if the event did not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Milliseconds until the receiver's answer, or until the error.
    pub milliseconds: u64,
}

/// Sends one test event, beside the sink's queue.
pub fn attempt(config: &SinkConfig) -> TestOutcome {
    let event = Event::new(
        Kind::Test,
        Timestamp::now(),
        format!("a manual test of the sink {}", config.name),
    );
    let begun = Instant::now();
    let done = open(config).and_then(|mut receiver| receiver.deliver(&event));
    TestOutcome {
        sink: config.name.clone(),
        target: config.target(),
        delivered: done.is_ok(),
        error: done.err().map(|failure| match failure {
            Failure::Later { why, .. } | Failure::Refused(why) => why,
        }),
        milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

/// The sinks that run.
pub struct Sinks {
    running: Vec<Running>,
    metrics: SinkMetrics,
}

struct Running {
    config: SinkConfig,
    queue: Arc<SinkQueue>,
    thread: JoinHandle<()>,
}

impl Sinks {
    /// No sink runs yet.
    pub fn new(metrics: SinkMetrics) -> Self {
        Self {
            running: Vec::new(),
            metrics,
        }
    }

    /// Runs the sinks of this configuration: one that is as before goes on; any
    /// other is ended, and nobody waits for it, or started.
    pub fn run(&mut self, events: &Events, alerts: &Arc<Alerts>, configs: &[SinkConfig]) {
        let before = std::mem::take(&mut self.running);
        for running in before {
            if configs.contains(&running.config) {
                self.running.push(running);
            } else {
                running.queue.end();
            }
        }
        for sink in configs {
            if self.running.iter().any(|running| running.config == *sink) {
                continue;
            }
            let queue = Arc::new(SinkQueue::new(sink, alerts.clone(), &self.metrics));
            let worker = SinkThread {
                queue: queue.clone(),
                receiver: None,
                rate: sink.rate.map(Rate::new),
                config: sink.clone(),
            };
            let started = thread::Builder::new()
                .name("weir-sink".to_owned())
                .spawn(move || worker.run());
            match started {
                Ok(thread) => self.running.push(Running {
                    config: sink.clone(),
                    queue,
                    thread,
                }),
                Err(error) => {
                    alerts.raise(&queue.about, format!("cannot start its thread: {error}"));
                }
            }
        }
        self.metrics
            .keep_only(|name| configs.iter().any(|sink| sink.name == name));
        let position = |running: &Running| configs.iter().position(|s| *s == running.config);
        self.running.sort_by_key(position);
        events.set_listeners(
            self.queues()
                .map(|queue| queue as Arc<dyn Listener>)
                .collect(),
        );
    }

    /// The queues of the sinks, in the order of the configuration.
    pub fn queues(&self) -> impl Iterator<Item = Arc<SinkQueue>> {
        self.running.iter().map(|running| running.queue.clone())
    }

    /// Ends all of them. What waits has some seconds to be delivered in.
    pub fn stop(&mut self) {
        let deadline = Instant::now() + STOP_WITHIN;
        for running in &self.running {
            running.queue.stop.store(true, Relaxed);
            running.queue.wake();
        }
        for running in self.running.drain(..) {
            while !running.thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            if !running.thread.is_finished() {
                let waiting = running.queue.status().queued;
                tracing::warn!(
                    "sink {}: {waiting} events were not delivered",
                    running.config.name
                );
            }
        }
    }
}

/// The thread of one sink.
struct SinkThread {
    queue: Arc<SinkQueue>,
    receiver: Option<Box<dyn Deliver>>,
    rate: Option<Rate>,
    config: SinkConfig,
}

impl SinkThread {
    fn stopping(&self) -> bool {
        self.queue.stop.load(Relaxed)
    }

    fn run(mut self) {
        loop {
            let event = self.queue.take(WAIT);
            if let Some(summary) = self.rate.as_mut().and_then(|r| r.settle(Instant::now())) {
                self.deliver(&Event::new(Kind::Summary, Timestamp::now(), summary));
            }
            let Some(event) = event else {
                if self.stopping() {
                    break;
                }
                if let Some(receiver) = &mut self.receiver {
                    receiver.idle();
                }
                continue;
            };
            let now = Instant::now();
            if self.rate.as_mut().is_none_or(|r| r.admit(event.kind, now)) {
                self.deliver(&event);
            } else {
                self.queue.counters.held_back.inc();
            }
            self.tell_lost();
        }
        if let Some(summary) = self.rate.as_mut().and_then(Rate::held) {
            self.deliver(&Event::new(Kind::Summary, Timestamp::now(), summary));
        }
        self.queue.give_up();
    }

    /// Delivers it, however often that must be tried, unless the sink ends.
    fn deliver(&mut self, event: &Event) {
        let mut wait = RETRY;
        loop {
            let done = match &mut self.receiver {
                Some(receiver) => receiver.deliver(event),
                none => match open(&self.config) {
                    Ok(receiver) => none.insert(receiver).deliver(event),
                    Err(failure) => Err(failure),
                },
            };
            match done {
                Ok(()) => {
                    self.queue.counters.delivered.inc();
                    self.state(None);
                    return;
                }
                Err(Failure::Refused(why)) => {
                    self.queue.counters.refused.inc();
                    self.state(Some(format!("{why}: the event is given up")));
                    return;
                }
                Err(Failure::Later { why, after }) => {
                    self.state(Some(why));
                    let again = Instant::now() + after.unwrap_or(wait);
                    while !self.stopping() && Instant::now() < again {
                        thread::sleep(WAIT.min(again.saturating_duration_since(Instant::now())));
                    }
                    if self.stopping() {
                        self.queue.counters.lost.inc();
                        self.queue.give_up();
                        return;
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
        }
    }

    fn state(&self, failing: Option<String>) {
        match &failing {
            Some(why) => self.queue.alerts.raise(
                &self.queue.about,
                format!("events do not reach {}: {why}", self.config.target()),
            ),
            None => self.queue.alerts.clear(&self.queue.about),
        }
        let mut state = self.queue.failing.lock();
        **state.as_mut().expect("no holder of this lock panics") = failing;
    }

    /// Tells how many events were lost, once events get through again.
    fn tell_lost(&mut self) {
        let works = self.queue.status().failing.is_none();
        let lost = match works {
            true => self.queue.take_lost(),
            false => 0,
        };
        if lost > 0 {
            let about = format!("{}:queue", self.queue.about);
            self.queue.alerts.clear(&about);
            let told = format!("{lost} events were lost here: more than could wait");
            self.deliver(&Event::new(Kind::Error, Timestamp::now(), told));
        }
    }
}
