//! From a power to energy: a thread asks a source for watts again and again
//! and adds up what lies between two answers. A source that falls silent, or
//! answers nonsense, leaves no figure for the windows in which it did.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{Meter, Window};

/// The time between two readings of a sensor.
const INTERVAL: Duration = Duration::from_millis(50);
/// The longest that an answer is good for.
const STALE: Duration = Duration::from_secs(3);
/// More than this is no reading of a machine.
const MOST_WATTS: f64 = 100_000.0;

#[derive(Default)]
struct Sum {
    /// Joules up to the last answer.
    joules: f64,
    last: Option<(Instant, f64)>,
    /// Failures so far, and what the last one was.
    failures: u64,
    failure: String,
}

impl Sum {
    fn add(&mut self, at: Instant, watts: f64) {
        if let Some((before, then)) = self.last {
            self.joules += (watts + then) / 2.0 * (at - before).as_secs_f64();
        }
        self.last = Some((at, watts));
    }

    fn fail(&mut self, why: String) {
        self.failures += 1;
        self.failure = why;
    }

    /// Joules up to now, the last answer holding on.
    fn now(&self, at: Instant) -> anyhow::Result<f64> {
        let (before, watts) = self
            .last
            .with_context(|| format!("it has not answered yet: {}", self.failure))?;
        let since = at.saturating_duration_since(before);
        if since > STALE {
            bail!("its last answer is {:.1} s old", since.as_secs_f64());
        }
        Ok(self.joules + watts * since.as_secs_f64())
    }
}

/// A power source as a meter.
pub struct Sampled {
    name: String,
    sum: Arc<Mutex<Sum>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    before: anyhow::Result<(f64, u64)>,
}

fn lock(sum: &Mutex<Sum>) -> MutexGuard<'_, Sum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sampled {
    /// Asks `watts` from now on, in a thread.
    ///
    /// # Errors
    /// The first answer is one.
    pub fn start(
        name: String,
        mut watts: impl FnMut() -> anyhow::Result<f64> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut asked = move || {
            let value = watts()?;
            if !(0.0..=MOST_WATTS).contains(&value) {
                bail!("{value} W is no reading");
            }
            Ok::<f64, anyhow::Error>(value)
        };
        let first = asked()?;
        let sum = Arc::new(Mutex::new(Sum::default()));
        lock(&sum).add(Instant::now(), first);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (sum, stop) = (sum.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let answer = asked();
                    let at = Instant::now();
                    match answer {
                        Ok(watts) => lock(&sum).add(at, watts),
                        Err(error) => lock(&sum).fail(format!("{error:#}")),
                    }
                    std::thread::park_timeout(INTERVAL);
                }
            })
        };
        Ok(Self {
            name,
            sum,
            stop,
            thread: Some(thread),
            before: Err(anyhow::anyhow!("the window has not begun")),
        })
    }
}

impl Meter for Sampled {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn begin(&mut self) {
        let sum = lock(&self.sum);
        self.before = sum.now(Instant::now()).map(|joules| (joules, sum.failures));
    }

    fn end(&mut self, _: &Window) -> anyhow::Result<f64> {
        let sum = lock(&self.sum);
        let (before, failures) = match &self.before {
            Ok(before) => *before,
            Err(error) => bail!("{error:#}"),
        };
        if sum.failures > failures {
            bail!("{}", sum.failure);
        }
        Ok(sum.now(Instant::now())? - before)
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_becomes_energy_between_answers() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut sum = Sum::default();
        sum.add(at(0), 2.0);
        sum.add(at(1000), 4.0);
        assert_eq!(sum.now(at(1000)).unwrap(), 3.0);
        assert_eq!(sum.now(at(1500)).unwrap(), 5.0);
        assert!(sum.now(at(5000)).is_err(), "an old answer is good for ever");
    }

    #[test]
    fn nonsense_is_no_reading() {
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e6] {
            assert!(
                Sampled::start("x".into(), move || Ok(wrong)).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_source_that_dies_leaves_no_figure() {
        let mut answers = 0;
        let mut meter = Sampled::start("x".into(), move || {
            answers += 1;
            if answers > 2 {
                bail!("gone");
            }
            Ok(1.0)
        })
        .unwrap();
        meter.begin();
        let window = Window {
            from: 0.0,
            to: 0.0,
            cpu_seconds: 0.0,
        };
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            match meter.end(&window) {
                Err(error) => break assert!(error.to_string().contains("gone")),
                Ok(_) => assert!(Instant::now() < until, "it still has a figure"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
