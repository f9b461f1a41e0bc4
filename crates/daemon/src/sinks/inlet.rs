//! The queue of one sink: bounded, never waited for by those who fill it. What
//! does not fit is counted, and told once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;

use crate::{alerts::Alerts, config::SinkConfig, events::Event};

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
    /// What is wrong with it now.
    pub failing: Option<String>,
}

/// The end of a sink that events are put into.
pub struct Inlet {
    name: String,
    kind: &'static str,
    target: String,
    kinds: u32,
    cap: usize,
    /// Its alerts are about this.
    pub(super) about: String,
    pub(super) alerts: Arc<Alerts>,
    queue: Mutex<Queue>,
    filled: Condvar,
    pub(super) stop: AtomicBool,
    pub(super) delivered: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) held_back: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failing: Mutex<Option<String>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Event>>,
    /// Lost since the receiver was last told how many.
    lost: u64,
}

impl Inlet {
    pub(super) fn new(config: &SinkConfig, alerts: Arc<Alerts>) -> Self {
        Self {
            name: config.name.clone(),
            kind: config.kind_name(),
            target: config.target(),
            kinds: config.events,
            cap: config.queue,
            about: format!("sink:{}", config.name),
            alerts,
            queue: Mutex::default(),
            filled: Condvar::new(),
            stop: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failing: Mutex::default(),
        }
    }

    /// The configuration's name for the sink.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kinds of events it wants, as bits.
    pub(crate) fn kinds(&self) -> u32 {
        self.kinds
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of this lock panics")
    }

    /// Puts an event in, if the sink wants its kind and there is room.
    pub(crate) fn offer(&self, event: &Arc<Event>) {
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
        self.lost.fetch_add(1, Relaxed);
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

    /// The next event, if one comes in time.
    pub(super) fn take(&self, wait: Duration) -> Option<Arc<Event>> {
        let mut queue = self.queue();
        if queue.events.is_empty() && !self.stop.load(Relaxed) {
            let waited = self.filled.wait_timeout(queue, wait);
            queue = waited.expect("no holder of this lock panics").0;
        }
        queue.events.pop_front()
    }

    /// Events lost since this was asked last, once there is room again.
    pub(super) fn take_lost(&self) -> u64 {
        let mut queue = self.queue();
        match queue.events.len() < self.cap {
            true => std::mem::take(&mut queue.lost),
            false => 0,
        }
    }

    /// What still waits is given up.
    pub(super) fn give_up(&self) {
        let left = std::mem::take(&mut self.queue().events).len();
        self.lost.fetch_add(left as u64, Relaxed);
    }

    pub(super) fn wake(&self) {
        self.filled.notify_all();
    }

    /// What it has done, and what is wrong.
    pub fn status(&self) -> SinkStatus {
        let failing = self.failing.lock();
        SinkStatus {
            name: self.name.clone(),
            kind: self.kind,
            target: self.target.clone(),
            queued: self.queue().events.len(),
            delivered: self.delivered.load(Relaxed),
            lost: self.lost.load(Relaxed),
            held_back: self.held_back.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failing: failing.expect("no holder of this lock panics").clone(),
        }
    }
}
