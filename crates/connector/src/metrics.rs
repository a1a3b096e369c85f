//! Metrics in blocks of atomics.
//!
//! A metric is one 64-bit slot (a histogram: a few) in a block whose address never changes, so a host can read it at any
//! moment, export it, or map the whole block and never call. Registering takes a lock; counting is one relaxed atomic
//! operation. Registering a name again gives the same slot, so totals resume when a destination or a restarted
//! component returns (BASE-43); nothing is ever unregistered.
//!
//! Names are lowerCamelCase noun phrases (BASE-42); a connector lists its own in one place.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Slots a block.
const BLOCK_SLOTS: usize = 512;

/// What a metric's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Counts events; only grows.
    Counter,
    /// Shows a state; goes up and down.
    Gauge,
    /// Distribution in buckets; see [`Histogram`].
    Histogram,
}

/// A block of slots at a fixed address.
struct Block {
    slots: Box<[AtomicU64; BLOCK_SLOTS]>,
}

impl Block {
    fn new() -> Self {
        Self {
            slots: Box::new([const { AtomicU64::new(0) }; BLOCK_SLOTS]),
        }
    }
}

/// All metrics of one job. Clones share them.
#[derive(Clone)]
pub struct MetricRegistry {
    inner: Arc<Mutex<Registry>>,
}

#[derive(Default)]
struct Registry {
    blocks: Vec<Arc<Block>>,
    used_in_last: usize,
    metrics: Vec<Registered>,
    known: HashMap<(Labels, String), usize>,
}

type Labels = Arc<[(String, String)]>;

struct Registered {
    labels: Labels,
    name: String,
    kind: MetricKind,
    slot: Slot,
    bounds: &'static [u64],
}

#[derive(Clone)]
struct Slot {
    block: Arc<Block>,
    index: usize,
}

impl Slot {
    fn cell(&self) -> &AtomicU64 {
        &self.block.slots[self.index]
    }
}

/// One metric as an exporter sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Labels of its group, such as `operator` and `subtask`.
    pub labels: Vec<(String, String)>,
    /// Its name.
    pub name: String,
    /// What it is.
    pub value: SampleValue,
}

/// A reading of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleValue {
    /// A counter.
    Counter(u64),
    /// A gauge.
    Gauge(i64),
    /// Counts per bucket (upper bound inclusive; the last bucket has none), and the sum of all values.
    Histogram {
        /// `(upper bound, count)`, not cumulative.
        buckets: Vec<(Option<u64>, u64)>,
        /// Sum of all recorded values.
        sum: u64,
    },
}

impl Default for MetricRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl MetricRegistry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Registry::default())),
        }
    }

    /// A group whose metrics all carry `labels`.
    #[must_use]
    pub fn group(&self, labels: &[(&str, &str)]) -> MetricGroup {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        MetricGroup {
            registry: self.clone(),
            labels,
        }
    }

    /// Reads every metric, in the order of registration.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.lock().metrics.iter().map(Registered::sample).collect()
    }

    /// Sum over all groups of the counters or gauges called `name`; 0 if there is none.
    #[must_use]
    pub fn total(&self, name: &str) -> i128 {
        self.samples()
            .iter()
            .filter(|sample| sample.name == name)
            .map(|sample| match sample.value {
                SampleValue::Counter(count) => i128::from(count),
                SampleValue::Gauge(level) => i128::from(level),
                SampleValue::Histogram { .. } => 0,
            })
            .sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        // Registering never leaves a half-made entry behind a panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(
        &self,
        labels: &Labels,
        name: &str,
        kind: MetricKind,
        bounds: &'static [u64],
    ) -> Slot {
        let mut registry = self.lock();
        if let Some(at) = registry.known.get(&(labels.clone(), name.to_owned())) {
            let known = &registry.metrics[*at];
            debug_assert_eq!(known.kind, kind, "metric {name} registered as two kinds");
            if known.kind == kind && known.bounds == bounds {
                return known.slot.clone();
            }
        }
        let slots = if kind == MetricKind::Histogram {
            bounds.len() + 2
        } else {
            1
        };
        let slot = registry.allocate(slots);
        let at = registry.metrics.len();
        registry.metrics.push(Registered {
            labels: labels.clone(),
            name: name.to_owned(),
            kind,
            slot: slot.clone(),
            bounds,
        });
        registry.known.insert((labels.clone(), name.to_owned()), at);
        slot
    }
}

impl fmt::Debug for MetricRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetricRegistry({} metrics)", self.lock().metrics.len())
    }
}

impl Registry {
    fn allocate(&mut self, slots: usize) -> Slot {
        if self.blocks.is_empty() || self.used_in_last + slots > BLOCK_SLOTS {
            self.blocks.push(Arc::new(Block::new()));
            self.used_in_last = 0;
        }
        let index = self.used_in_last;
        self.used_in_last += slots;
        let block = self.blocks.last().expect("pushed above when empty").clone();
        Slot { block, index }
    }
}

impl Registered {
    fn sample(&self) -> Sample {
        let read =
            |offset: usize| self.slot.block.slots[self.slot.index + offset].load(Ordering::Relaxed);
        let value = match self.kind {
            MetricKind::Counter => SampleValue::Counter(read(0)),
            MetricKind::Gauge => SampleValue::Gauge(read(0).cast_signed()),
            MetricKind::Histogram => {
                let bounds = self.bounds.iter().map(|bound| Some(*bound)).chain([None]);
                SampleValue::Histogram {
                    buckets: bounds
                        .enumerate()
                        .map(|(i, bound)| (bound, read(i + 1)))
                        .collect(),
                    sum: read(0),
                }
            }
        };
        Sample {
            labels: self.labels.to_vec(),
            name: self.name.clone(),
            value,
        }
    }
}

/// Where one component registers its metrics.
#[derive(Clone)]
pub struct MetricGroup {
    registry: MetricRegistry,
    labels: Labels,
}

impl MetricGroup {
    /// A counter of events, at 0 unless it was registered before.
    #[must_use]
    pub fn counter(&self, name: &str) -> Counter {
        Counter(
            self.registry
                .register(&self.labels, name, MetricKind::Counter, &[]),
        )
    }

    /// A gauge of a state.
    #[must_use]
    pub fn gauge(&self, name: &str) -> Gauge {
        Gauge(
            self.registry
                .register(&self.labels, name, MetricKind::Gauge, &[]),
        )
    }

    /// A histogram with buckets up to each of `bounds` (ascending, inclusive) and one above.
    ///
    /// # Panics
    ///
    /// With more than 500 bounds, a programming error.
    #[must_use]
    pub fn histogram(&self, name: &str, bounds: &'static [u64]) -> Histogram {
        assert!(
            bounds.len() <= 500,
            "a histogram of {} buckets",
            bounds.len()
        );
        Histogram {
            slot: self
                .registry
                .register(&self.labels, name, MetricKind::Histogram, bounds),
            bounds,
        }
    }

    /// A group with one more label.
    #[must_use]
    pub fn with_label(&self, key: &str, value: &str) -> Self {
        let labels = self
            .labels
            .iter()
            .cloned()
            .chain([(key.to_owned(), value.to_owned())])
            .collect();
        Self {
            registry: self.registry.clone(),
            labels,
        }
    }
}

impl fmt::Debug for MetricGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricGroup")
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// Counts events.
#[derive(Clone)]
pub struct Counter(Slot);

impl Counter {
    /// Counts `events` more.
    pub fn add(&self, events: u64) {
        self.0.cell().fetch_add(events, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// The count so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.cell().load(Ordering::Relaxed)
    }
}

/// Shows a state.
#[derive(Clone)]
pub struct Gauge(Slot);

impl Gauge {
    /// Shows `level` from now on.
    pub fn set(&self, level: i64) {
        self.0
            .cell()
            .store(level.cast_unsigned(), Ordering::Relaxed);
    }

    /// Shows `level`, a count or size of something held in memory.
    pub fn set_size(&self, level: usize) {
        self.set(i64::try_from(level).unwrap_or(i64::MAX));
    }

    /// The level shown.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.cell().load(Ordering::Relaxed).cast_signed()
    }
}

/// Shows a distribution.
#[derive(Clone)]
pub struct Histogram {
    slot: Slot,
    bounds: &'static [u64],
}

impl Histogram {
    /// Records one value.
    pub fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let slots = &self.slot.block.slots[self.slot.index..];
        slots[0].fetch_add(value, Ordering::Relaxed);
        slots[bucket + 1].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.value())
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gauge({})", self.value())
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({} buckets)", self.bounds.len() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_registered_again_resumes_its_total() {
        let registry = MetricRegistry::new();
        let group = registry.group(&[("operator", "sink")]);
        group.counter("recordsSkipped").add(3);
        group.counter("recordsSkipped").add(4);
        registry
            .group(&[("operator", "other")])
            .counter("recordsSkipped")
            .add(10);
        assert_eq!(group.counter("recordsSkipped").value(), 7);
        assert_eq!(registry.samples().len(), 2);
        assert_eq!(registry.total("recordsSkipped"), 17);
    }

    #[test]
    fn gauges_go_below_zero_and_histograms_bucket_by_inclusive_bounds() {
        let registry = MetricRegistry::new();
        let group = registry.group(&[]);
        group.gauge("lag").set(-5);
        let histogram = group.histogram("latency", &[10, 100]);
        for value in [1, 10, 11, 100, 101] {
            histogram.record(value);
        }
        let samples = registry.samples();
        assert_eq!(samples[0].value, SampleValue::Gauge(-5));
        assert_eq!(
            samples[1].value,
            SampleValue::Histogram {
                buckets: vec![(Some(10), 2), (Some(100), 2), (None, 1)],
                sum: 223
            }
        );
    }

    #[test]
    fn more_metrics_than_a_block_holds_keep_their_values() {
        let registry = MetricRegistry::new();
        let group = registry.group(&[]);
        let counters: Vec<_> = (0..2_000)
            .map(|i| group.counter(&format!("c{i}")))
            .collect();
        for (i, counter) in counters.iter().enumerate() {
            counter.add(i as u64);
        }
        for (i, sample) in registry.samples().iter().enumerate() {
            assert_eq!(sample.value, SampleValue::Counter(i as u64));
        }
    }
}
