//! Options on packets that leave an interface of a host without tcx: they wait in a queue of
//! netfilter's, where a thread puts the options on them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_bpf::{device, inject::InjectCounts};
use weir_enforce::queue_rules::{QueueRules, QueuedPackets};
use weir_netlink::RewriteQueue;
use weir_options::{FlowSelector, LeftAlone, Rewritten, Sections, rewrite};

use crate::threads;

/// How soon the thread sees that it is to end, and another MTU.
const TICK: Duration = Duration::from_millis(50);
/// How often it is looked whether the rules are there.
const LOOK: Duration = Duration::from_secs(1);

/// Why packets do not wait in a queue for their options.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue is another program's, or the kernel has none.
    #[error(
        "queue {number}: {error} (it takes a kernel with NFQUEUE, and a number that no other program has: --queue=NUMBER)"
    )]
    Queue {
        /// The number that was given.
        number: u16,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The rules that lead packets to the queue are refused.
    #[error(transparent)]
    Rules(#[from] weir_enforce::Error),
}

/// Counters in the order of [`InjectCounts`], as far as a queue has them.
#[derive(Debug, Default)]
struct Counters {
    changed: AtomicU64,
    too_big: AtomicU64,
    fragment: AtomicU64,
    no_room: AtomicU64,
    other: AtomicU64,
    malformed: AtomicU64,
}

impl Counters {
    fn note(&self, what: &Rewritten) {
        let counter = match what {
            Rewritten::NotMeant => return,
            Rewritten::Changed(_) => &self.changed,
            Rewritten::Left(LeftAlone::TooBig) => &self.too_big,
            Rewritten::Left(LeftAlone::Fragment) => &self.fragment,
            Rewritten::Left(LeftAlone::NoRoom) => &self.no_room,
            Rewritten::Left(LeftAlone::Other) => &self.other,
            Rewritten::Left(LeftAlone::Malformed) => &self.malformed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A queue whose packets get options, with the rules by which they wait in it.
pub(super) struct QueueInjection {
    /// Gone first: nothing waits any more when the thread ends.
    rules: Option<QueueRules>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<io::Result<()>>>,
    looked: std::cell::Cell<Option<(Instant, bool)>>,
}

impl QueueInjection {
    pub(super) fn begin(
        interface: &str,
        number: u16,
        sections: &Sections,
        flows: &FlowSelector,
    ) -> Result<Self, QueueError> {
        let error = |error| QueueError::Queue { number, error };
        // Before the rules: packets have whoever takes them.
        let queue = RewriteQueue::take(number).map_err(error)?;
        let counters = Arc::new(Counters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            queue,
            interface: interface.to_owned(),
            sections: sections.clone(),
            flows: flows.clone(),
            counters: counters.clone(),
            stop: stop.clone(),
        };
        let worker = threads::spawn("weir-queue", move || worker.run()).map_err(error)?;
        let mut injection = Self {
            rules: None,
            counters,
            stop,
            worker: Some(worker),
            looked: std::cell::Cell::new(None),
        };
        injection.rules = Some(QueueRules::put(&QueuedPackets {
            interface,
            queue: number,
            networks: &flows.networks,
            protocol: flows.protocol,
            source_port: flows.source_port,
            dest_port: flows.dest_port,
            syn_only: flows.syn_only,
        })?);
        Ok(injection)
    }

    pub(super) fn counts(&self) -> InjectCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        InjectCounts {
            changed: of(&counters.changed),
            too_big: of(&counters.too_big),
            fragment: of(&counters.fragment),
            no_room: of(&counters.no_room),
            other: of(&counters.other),
            malformed: of(&counters.malformed),
            ..InjectCounts::default()
        }
    }

    pub(super) fn is_there(&self, interface: &str) -> bool {
        if self.worker.as_ref().is_none_or(JoinHandle::is_finished) {
            return false;
        }
        match self.looked.get() {
            Some((at, was)) if at.elapsed() < LOOK => was,
            _ => {
                let rules = self.rules.as_ref();
                let is_there = device::index_of(interface).is_some()
                    && rules.is_some_and(QueueRules::are_there);
                self.looked.set(Some((Instant::now(), is_there)));
                is_there
            }
        }
    }
}

impl Drop for QueueInjection {
    fn drop(&mut self) {
        self.rules = None;
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.worker.take().map(JoinHandle::join) {
            tracing::warn!("the queue has ended: {error}");
        }
    }
}

struct Worker {
    queue: RewriteQueue,
    interface: String,
    sections: Sections,
    flows: FlowSelector,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Goes on until it is to end, and nothing waits.
    fn run(mut self) -> io::Result<()> {
        let mut mtu = 0;
        let mut looked = None::<Instant>;
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.as_nanos() as _,
        };
        loop {
            if looked.is_none_or(|at| at.elapsed() >= TICK) {
                // One that is gone sends nothing.
                mtu = device::mtu(&self.interface).map_or(0, |mtu| mtu as usize);
                looked = Some(Instant::now());
            }
            let (sections, flows, counters) = (&self.sections, &self.flows, &self.counters);
            let has_come = self.queue.change_next(|packet| {
                let rewritten = rewrite(packet, sections, flows, mtu);
                counters.note(&rewritten);
                match rewritten {
                    Rewritten::Changed(bytes) => Some(bytes),
                    Rewritten::Left(_) | Rewritten::NotMeant => None,
                }
            })?;
            if has_come {
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let mut wanted = [PollFd::new(&self.queue, PollFlags::IN)];
            match poll(&mut wanted, Some(&tick)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
