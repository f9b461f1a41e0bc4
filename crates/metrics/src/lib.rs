//! The registry of metrics: a metric is declared once, with its name, kind, help
//! and labels, and from that declaration it is in `weir status --json`, in
//! `weir metrics` and in docs/metrics.md. What is counted is counted through a
//! [`Counter`], an atomic that the registry reads when asked; what others know
//! anyway (the kernel's counters, the size of a table) they say when asked, through
//! a [`Gauges`] or [`Totals`]. How the answer is written is in `text`.
//!
//! Nothing here is global: who counts is given its family by who declares it. Label
//! values are names of the configuration or of a fixed set, never an attacker's
//! text, and a family has at most [`MAX_SAMPLES`] of them: what finds no place is
//! counted in `weir_metrics_left_out_total`.
//!
//! By hand, not by a library: `prometheus-client` can only be read through what it
//! encodes (text, or protobuf and its crates), says nothing of a family without
//! samples, and has a collector declare a metric at each asking instead of once;
//! `prometheus` can be read, and wants six crates, among them locks of its own;
//! `metrics` wants a recorder that is global and is written by somebody else. None
//! has a limit for label values, and what is left are these two files.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod text;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::{Serialize, Serializer};

pub use text::{CONTENT_TYPE, text};

/// The most label values, or tuples of them, of one family.
pub const MAX_SAMPLES: usize = 1024;

/// Whether a value may only grow, or may change both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Only grow, from zero at the start of the daemon, or of what it is about.
    Counter,
    /// Go up and down.
    Gauge,
}

impl Kind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// A metric as declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDefinition {
    /// `weir_…`; ends in `_total` if it is a counter.
    pub name: &'static str,
    /// Whether its values only grow.
    pub kind: Kind,
    /// The quantity that it counts or measures, a sentence.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The value of a counter or gauge.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number of things: exact beyond 2^53.
    Whole(u64),
    /// A number of seconds, or a share.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// A cache line of its own: threads that count different things do not wait for
/// each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(AtomicU64);

/// Counts one thing. Adding is one atomic instruction; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<Cell>);

impl Counter {
    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `more` to the counter.
    pub fn add(&self, more: u64) {
        self.0.0.fetch_add(more, Relaxed);
    }

    /// The value of the counter.
    pub fn get(&self) -> u64 {
        self.0.0.load(Relaxed)
    }
}

/// A family of counters, by the values of its `N` labels.
#[derive(Debug, Clone)]
pub struct Counters<const N: usize>(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: &'static str,
    samples: Mutex<BTreeMap<Vec<String>, Counter>>,
    left_out: LeftOut,
}

impl Shared {
    fn samples(&self) -> MutexGuard<'_, BTreeMap<Vec<String>, Counter>> {
        self.samples.lock().expect("no holder of this lock panics")
    }
}

impl<const N: usize> Counters<N> {
    /// The counter of these label values, from zero when they are new. At the cap
    /// it counts for nobody, and that is counted.
    pub fn of(&self, labels: [&str; N]) -> Counter {
        let mut samples = self.0.samples();
        let key = labels.map(str::to_owned).to_vec();
        if let Some(counter) = samples.get(&key) {
            return counter.clone();
        }
        let counter = Counter::default();
        if samples.len() < MAX_SAMPLES {
            samples.insert(key, counter.clone());
        } else {
            self.0.left_out.count(self.0.name);
        }
        counter
    }

    /// The value of the counter with these labels; none is made for them.
    pub fn get(&self, labels: [&str; N]) -> u64 {
        let key = labels.map(str::to_owned).to_vec();
        self.0.samples().get(&key).map_or(0, Counter::get)
    }

    /// Forgets the counters of other values of the first label: what they are about
    /// is no more. Who counts with them still counts for nobody.
    pub fn keep_only(&self, is_kept: impl Fn(&str) -> bool) {
        let is_kept = |labels: &Vec<String>, _: &mut Counter| {
            labels.first().is_none_or(|value| is_kept(value))
        };
        self.0.samples().retain(is_kept);
    }
}

/// How often label values found no place, by family. (At most as many families as
/// are declared.)
#[derive(Debug, Clone, Default)]
struct LeftOut(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl LeftOut {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn count(&self, family: &'static str) {
        *self.lock().entry(family).or_default() += 1;
    }
}

/// A family whose values are said when they are asked for, by its `N` labels.
#[derive(Debug, Clone, Copy)]
struct FamilyIndex<const N: usize>(usize);

/// A family of gauges.
#[derive(Debug, Clone, Copy)]
pub struct Gauges<const N: usize>(FamilyIndex<N>);

/// A family of counters that somebody else keeps: the kernel, or a table.
#[derive(Debug, Clone, Copy)]
pub struct Totals<const N: usize>(FamilyIndex<N>);

/// All metrics, in the order in which they are declared.
#[derive(Debug)]
pub struct Registry {
    families: Vec<Family>,
    left_out: LeftOut,
    left_out_total: Totals<1>,
}

#[derive(Debug)]
struct Family {
    declared: MetricDefinition,
    /// The counters of a family that counts in this process.
    counted: Option<Arc<Shared>>,
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Self {
            families: Vec::new(),
            left_out: LeftOut::default(),
            left_out_total: Totals(FamilyIndex(0)),
        };
        registry.left_out_total = registry.totals(
            "weir_metrics_left_out_total",
            "Label values that found no place in a family at its cap, each time they were given.",
            &["metric"],
        );
        registry
    }
}

impl Registry {
    /// Declares counters; each begins at the first [`Counters::of`].
    ///
    /// # Panics
    /// As all declarations: on a name that Prometheus or its conventions refuse, a
    /// name that is taken, and a help that is no sentence.
    pub fn counters<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
    ) -> Counters<N> {
        let shared = Arc::new(Shared {
            name,
            samples: Mutex::default(),
            left_out: self.left_out.clone(),
        });
        let declared = MetricDefinition {
            name,
            kind: Kind::Counter,
            help,
            labels,
        };
        self.declare(declared, Some(shared.clone()));
        Counters(shared)
    }

    /// Declares counters that somebody else keeps.
    pub fn totals<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
    ) -> Totals<N> {
        Totals(self.said(Kind::Counter, name, help, labels))
    }

    /// Declares gauges, a metric for each of these labels' sets.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
    ) -> Gauges<N> {
        Gauges(self.said(Kind::Gauge, name, help, labels))
    }

    fn said<const N: usize>(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
    ) -> FamilyIndex<N> {
        let declared = MetricDefinition {
            name,
            kind,
            help,
            labels,
        };
        self.declare(declared, None);
        FamilyIndex(self.families.len() - 1)
    }

    fn declare(&mut self, declared: MetricDefinition, counted: Option<Arc<Shared>>) {
        let MetricDefinition {
            name,
            kind,
            help,
            labels,
        } = declared;
        let is_word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_lowercase())
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        assert!(is_word(name) && name.starts_with("weir_"), "{name}: a name");
        let is_total = name.ends_with("_total");
        assert_eq!(is_total, kind == Kind::Counter, "{name}: only counters");
        assert!(labels.iter().all(|label| is_word(label)), "{name}: labels");
        assert!(help.ends_with('.') && !help.contains('\n'), "{name}: help");
        let is_new = self.declared().all(|other| other.name != name);
        assert!(is_new, "{name} is declared twice");
        self.families.push(Family { declared, counted });
    }

    /// The definitions of all declared metrics.
    pub fn declared(&self) -> impl Iterator<Item = &MetricDefinition> {
        self.families.iter().map(|family| &family.declared)
    }

    /// All metrics as they are now, in the order of their declaration, samples by
    /// label values. `say` says what is not counted here.
    pub fn gather(&self, say: impl FnOnce(&mut Samples)) -> Vec<Metric> {
        let mut samples = Samples {
            values: vec![BTreeMap::new(); self.families.len()],
            full: vec![0; self.families.len()],
        };
        say(&mut samples);
        for (family, left_out) in self.families.iter().zip(&samples.full) {
            if *left_out > 0 {
                *self
                    .left_out
                    .lock()
                    .entry(family.declared.name)
                    .or_default() += left_out;
            }
        }
        for (family, count) in &*self.left_out.lock() {
            samples.total(self.left_out_total, [family], *count);
        }
        let families = self.families.iter().zip(samples.values);
        let metrics = families.map(|(family, said)| {
            let MetricDefinition {
                name,
                kind,
                help,
                labels,
            } = family.declared;
            let sample = |(values, value): (Vec<String>, Value)| Sample {
                labels: labels.iter().copied().zip(values).collect(),
                value,
            };
            let samples = match &family.counted {
                None => said.into_iter().map(sample).collect(),
                Some(counted) => {
                    let counted = counted.samples();
                    let all = counted.iter();
                    all.map(|(labels, counter)| sample((labels.clone(), counter.get().into())))
                        .collect()
                }
            };
            Metric {
                name,
                kind,
                help,
                samples,
            }
        });
        metrics.collect()
    }
}

/// Values that are asked for when metrics are gathered.
#[derive(Debug)]
pub struct Samples {
    values: Vec<BTreeMap<Vec<String>, Value>>,
    /// How many found no place, by family.
    full: Vec<u64>,
}

impl Samples {
    /// A gauge stands here.
    pub fn gauge<const N: usize>(
        &mut self,
        family: Gauges<N>,
        labels: [&str; N],
        value: impl Into<Value>,
    ) {
        self.set(family.0, labels, value.into());
    }

    /// A counter of somebody else's has come so far.
    pub fn total<const N: usize>(
        &mut self,
        family: Totals<N>,
        labels: [&str; N],
        value: impl Into<Value>,
    ) {
        self.set(family.0, labels, value.into());
    }

    fn set<const N: usize>(&mut self, family: FamilyIndex<N>, labels: [&str; N], value: Value) {
        let samples = &mut self.values[family.0];
        let key = labels.map(str::to_owned).to_vec();
        if samples.len() < MAX_SAMPLES || samples.contains_key(&key) {
            samples.insert(key, value);
        } else {
            self.full[family.0] += 1;
        }
    }
}

/// A metric with its values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metric {
    /// The metric's name, with its prefix.
    pub name: &'static str,
    /// Whether the values only grow.
    pub kind: Kind,
    /// The quantity that it counts or measures.
    pub help: &'static str,
    /// The values; none if there is nothing that has one.
    pub samples: Vec<Sample>,
}

/// A value of a metric, with its labels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// The labels with their values, as declared.
    #[serde(serialize_with = "as_map")]
    pub labels: Vec<(&'static str, String)>,
    /// The number or amount.
    pub value: Value,
}

fn as_map<S: Serializer>(
    labels: &[(&'static str, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests;
