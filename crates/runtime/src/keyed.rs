//! Keyed state: keys, key groups, event-time timers.
//!
//! A key's *group* is a hash of its encoded bytes modulo the job's `max-parallelism`; a subtask owns a
//! range of groups. State is stored by group, so a restore with another parallelism only changes who
//! reads which groups. The hash and the encodings are part of the checkpoint format and never change.
//!
//! # Invariants
//!
//! - All records of a key reach one subtask, in the order in which each upstream subtask sent them.
//! - A timer fires once, in the order of time and then of key, so a replay emits the same sequence.
//! - A key without state and timers takes no memory.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;

use aqueduct_connector::source::{Collector, Record};
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Error, Result, Timestamp, Versioned};
use bytes::Bytes;

use crate::functions::RecordContext;
use crate::operator::{Operator, OperatorContext, OperatorState, Progress};

/// A value that records can be partitioned by. The encoding is stored in checkpoints.
pub trait Key: Clone + Ord + Hash + Send + 'static {
    /// Appends the key's bytes: equal keys give equal bytes, different keys different ones.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`encode`](Self::encode) wrote; `None` if these bytes are no key.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

macro_rules! integer_key {
    ($($number:ty),*) => {$(
        impl Key for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_be_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

integer_key!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl Key for () {
    fn encode(&self, _out: &mut Vec<u8>) {}

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

impl Key for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Key for String {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::from_utf8(bytes.to_vec()).ok()
    }
}

impl Key for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl Key for Bytes {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self::copy_from_slice(bytes))
    }
}

impl<A: Key, B: Key> Key for (A, B) {
    /// The first key's length (four bytes, big-endian), its bytes, the second's bytes.
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.0.encode(out);
        let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.1.encode(out);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (first, second) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        Some((A::decode(first)?, B::decode(second)?))
    }
}

/// The hash behind key groups: eight bytes at a time, multiplied and folded. Stored formats depend on it.
#[must_use]
pub fn key_hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| {
        let wide = u128::from(hash ^ word).wrapping_mul(u128::from(FACTOR));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "both halves are folded together"
        )]
        let folded = (wide as u64) ^ ((wide >> 64) as u64);
        folded
    };
    let mut hash = fold(FACTOR, bytes.len() as u64 ^ 0xa076_1d64_78bd_642f);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = fold(hash.rotate_left(23), u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = fold(hash.rotate_left(23), u64::from_le_bytes(last));
    }
    fold(hash ^ (hash >> 32), FACTOR)
}

/// The group of a key with these bytes.
#[must_use]
pub fn key_group(bytes: &[u8], max_parallelism: u32) -> u32 {
    let group = key_hash(bytes) % u64::from(max_parallelism.max(1));
    u32::try_from(group).expect("a remainder is below its divisor")
}

/// The subtask that owns `group`.
#[must_use]
pub fn subtask_of(group: u32, parallelism: u32, max_parallelism: u32) -> u32 {
    let subtask = u64::from(group) * u64::from(parallelism) / u64::from(max_parallelism.max(1));
    u32::try_from(subtask).expect("below the parallelism")
}

/// The groups that `subtask` owns; the inverse of [`subtask_of`].
#[must_use]
pub fn groups_of(subtask: u32, parallelism: u32, max_parallelism: u32) -> Range<u32> {
    let edge = |subtask: u32| {
        let edge = (u64::from(subtask) * u64::from(max_parallelism))
            .div_ceil(u64::from(parallelism.max(1)));
        u32::try_from(edge).expect("at most the number of groups")
    };
    edge(subtask)..edge(subtask + 1)
}

/// Sets and deletes event-time timers of the key at hand.
pub struct Timers<'a, K> {
    key: &'a K,
    all: &'a mut BTreeSet<(Timestamp, K)>,
    own: &'a mut Vec<Timestamp>,
}

impl<K: Key> Timers<'_, K> {
    /// Calls [`on_timer`](KeyedProcessFunction::on_timer) for this key once the watermark reaches `at`;
    /// setting the same time twice is one timer. A time that has passed fires with the next watermark.
    pub fn set(&mut self, at: Timestamp) {
        if !self.own.contains(&at) {
            self.own.push(at);
            self.all.insert((at, self.key.clone()));
        }
    }

    /// Deletes this key's timer at `at`, if there is one.
    pub fn delete(&mut self, at: Timestamp) {
        if let Some(position) = self.own.iter().position(|own| *own == at) {
            self.own.swap_remove(position);
            self.all.remove(&(at, self.key.clone()));
        }
    }
}

impl<K> std::fmt::Debug for Timers<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Timers({} of this key)", self.own.len())
    }
}

/// A function with state by key and event-time timers: one value a subtask, made by a factory.
pub trait KeyedProcessFunction<K: Key, I, O> {
    /// The state of one key.
    type State;

    /// Name of the state's format, for error texts.
    const STATE_NAME: &'static str;

    /// Version of the state's format that [`encode`](Self::encode) writes, from 1.
    const STATE_VERSION: u32;

    /// Called once before anything else.
    ///
    /// # Errors
    ///
    /// Fails the job; so for every method below. The error is named after the operator.
    fn open(&mut self, context: &OperatorContext) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Takes one record. `state` starts as `None`; setting it to `None` forgets the key.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn process(
        &mut self,
        key: &K,
        state: &mut Option<Self::State>,
        value: I,
        info: &RecordContext,
        timers: &mut Timers<'_, K>,
        out: &mut Collector<'_, O>,
    ) -> Result<()>;

    /// The watermark has reached a timer of `key`. What is emitted without a time of its own gets `at`.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn on_timer(
        &mut self,
        key: &K,
        state: &mut Option<Self::State>,
        at: Timestamp,
        timers: &mut Timers<'_, K>,
        out: &mut Collector<'_, O>,
    ) -> Result<()> {
        let _ = (key, state, at, timers, out);
        Ok(())
    }

    /// Writes one key's state.
    fn encode(&self, state: &Self::State, out: &mut StateWriter);

    /// Reads one key's state written as any version up to [`STATE_VERSION`](Self::STATE_VERSION).
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn decode(&self, version: u32, reader: &mut StateReader<'_>) -> Result<Self::State>;

    /// Releases everything.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Timers fired before downstream is asked whether it can take more.
const TIMERS_A_TURN: usize = 1_024;

/// Layout of one key group: the state's version, then keys with state and timers.
const GROUP_VERSION: u32 = 1;

/// The hasher of the in-memory map. Not stored; a fixed seed makes replays alike.
#[derive(Default)]
pub(crate) struct MapHasher(u64);

impl Hasher for MapHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = key_hash(bytes) ^ self.0.rotate_left(29);
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(29) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

struct Slot<S> {
    state: Option<S>,
    timers: Vec<Timestamp>,
}

pub(crate) struct KeyedProcess<F: KeyedProcessFunction<K, I, O>, K: Key, I, O> {
    function: F,
    slots: HashMap<K, Slot<F::State>, BuildHasherDefault<MapHasher>>,
    timers: BTreeSet<(Timestamp, K)>,
    watermark: Timestamp,
    max_parallelism: u32,
    types: PhantomData<fn(I) -> O>,
}

impl<F: KeyedProcessFunction<K, I, O>, K: Key, I, O> KeyedProcess<F, K, I, O> {
    pub(crate) fn new(function: F) -> Self {
        Self {
            function,
            slots: HashMap::default(),
            timers: BTreeSet::new(),
            watermark: Timestamp::MIN,
            max_parallelism: 1,
            types: PhantomData,
        }
    }

    fn restore_group(&mut self, group: &Versioned) -> Result<()> {
        let mut reader = StateReader::open("keyed state", group, 1..=GROUP_VERSION)?;
        let version = reader.u32()?;
        if version == 0 || version > F::STATE_VERSION {
            return Err(Error::state(format!(
                "{} was written as version {version}, this program reads versions 1 to {}; run the \
                 version that wrote it, or a newer one",
                F::STATE_NAME,
                F::STATE_VERSION
            )));
        }
        let keys = reader.count(9)?;
        for _ in 0..keys {
            let key = K::decode(&reader.bytes()?).ok_or_else(|| {
                Error::state(
                    "a stored key cannot be read as this operator's key type: was the key changed? \
                     Restore into the old type, or drop the operator's state",
                )
            })?;
            let state = match reader.u8()? {
                0 => None,
                _ => {
                    let bytes = Versioned::new(version, reader.bytes()?);
                    let mut nested =
                        StateReader::open(F::STATE_NAME, &bytes, 1..=F::STATE_VERSION)?;
                    let state = self.function.decode(version, &mut nested)?;
                    nested.finish()?;
                    Some(state)
                }
            };
            let timers = (0..reader.count(8)?)
                .map(|_| Ok(Timestamp::from_millis(reader.i64()?)))
                .collect::<Result<Vec<_>>>()?;
            for at in &timers {
                self.timers.insert((*at, key.clone()));
            }
            self.slots.insert(key, Slot { state, timers });
        }
        reader.finish()?;
        Ok(())
    }
}

impl<F: KeyedProcessFunction<K, I, O>, K: Key, I, O> Operator<(K, I), O>
    for KeyedProcess<F, K, I, O>
{
    fn open(&mut self, context: OperatorContext, restored: OperatorState) -> Result<()> {
        self.max_parallelism = context.max_parallelism;
        for (_, group) in &restored.keyed {
            self.restore_group(group)?;
        }
        self.function.open(&context)
    }

    fn process(&mut self, records: Vec<Record<(K, I)>>, out: &mut Vec<Record<O>>) -> Result<()> {
        for record in records {
            let (key, value) = record.value;
            let info = RecordContext {
                timestamp: record.timestamp,
                watermark: self.watermark,
            };
            let mut out = Collector::new(out, record.timestamp);
            // The common case finds the key and clones nothing.
            if let Some(slot) = self.slots.get_mut(&key) {
                let mut timers = Timers {
                    key: &key,
                    all: &mut self.timers,
                    own: &mut slot.timers,
                };
                self.function.process(
                    &key,
                    &mut slot.state,
                    value,
                    &info,
                    &mut timers,
                    &mut out,
                )?;
                if slot.state.is_none() && slot.timers.is_empty() {
                    self.slots.remove(&key);
                }
            } else {
                let (mut state, mut own) = (None, Vec::new());
                let mut timers = Timers {
                    key: &key,
                    all: &mut self.timers,
                    own: &mut own,
                };
                self.function
                    .process(&key, &mut state, value, &info, &mut timers, &mut out)?;
                if state.is_some() || !own.is_empty() {
                    self.slots.insert(key, Slot { state, timers: own });
                }
            }
        }
        Ok(())
    }

    fn watermark(&mut self, watermark: Timestamp, out: &mut Vec<Record<O>>) -> Result<Progress> {
        self.watermark = watermark;
        for _ in 0..TIMERS_A_TURN {
            match self.timers.first() {
                Some((at, _)) if *at <= watermark => {}
                _ => return Ok(Progress::Done),
            }
            let (at, key) = self.timers.pop_first().expect("looked at above");
            let slot = self
                .slots
                .get_mut(&key)
                .ok_or_else(|| Error::bug("a timer without its key"))?;
            slot.timers.retain(|own| *own != at);
            let mut timers = Timers {
                key: &key,
                all: &mut self.timers,
                own: &mut slot.timers,
            };
            let mut out = Collector::new(out, Some(at));
            self.function
                .on_timer(&key, &mut slot.state, at, &mut timers, &mut out)?;
            if slot.state.is_none() && slot.timers.is_empty() {
                self.slots.remove(&key);
            }
        }
        Ok(Progress::More)
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<OperatorState> {
        let mut groups = HashMap::<u32, Vec<_>>::new();
        for (key, slot) in &self.slots {
            let mut bytes = Vec::new();
            key.encode(&mut bytes);
            let group = key_group(&bytes, self.max_parallelism);
            groups.entry(group).or_default().push((bytes, slot));
        }
        let mut keyed = Vec::with_capacity(groups.len());
        for (group, mut keys) in groups {
            // Sorted, so that equal state gives equal bytes.
            keys.sort_unstable_by(|a: &(Vec<u8>, &Slot<F::State>), b| a.0.cmp(&b.0));
            let mut writer = StateWriter::new();
            writer.u32(F::STATE_VERSION).count(keys.len());
            for (key, slot) in keys {
                writer.bytes(&key);
                match &slot.state {
                    None => writer.u8(0),
                    Some(state) => {
                        let mut nested = StateWriter::new();
                        self.function.encode(state, &mut nested);
                        writer.u8(1).bytes(&nested.finish(F::STATE_VERSION).bytes)
                    }
                };
                writer.count(slot.timers.len());
                for at in &slot.timers {
                    writer.i64(at.millis());
                }
            }
            keyed.push((group, writer.finish(GROUP_VERSION)));
        }
        keyed.sort_unstable_by_key(|(group, _)| *group);
        Ok(OperatorState {
            list: Vec::new(),
            keyed,
        })
    }

    fn close(&mut self) -> Result<()> {
        self.function.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_belongs_to_exactly_the_subtask_that_owns_its_range() {
        for max in [1, 2, 7, 128, 1_000] {
            for parallelism in 1..=max.min(40) {
                let mut next = 0;
                for subtask in 0..parallelism {
                    let range = groups_of(subtask, parallelism, max);
                    assert_eq!(range.start, next);
                    next = range.end;
                    for group in range {
                        assert_eq!(subtask_of(group, parallelism, max), subtask);
                    }
                }
                assert_eq!(next, max);
            }
        }
    }

    /// Stored checkpoints depend on these numbers.
    #[test]
    fn key_groups_never_change() {
        let groups: Vec<u32> = [
            &b""[..],
            b"a",
            b"b",
            b"order-17",
            b"a longer key than one word",
        ]
        .into_iter()
        .map(|key| key_group(key, 128))
        .collect();
        assert_eq!(groups, GOLDEN_GROUPS);
    }

    const GOLDEN_GROUPS: [u32; 5] = [62, 53, 11, 75, 42];

    #[test]
    fn keys_spread_over_the_groups() {
        let mut used = BTreeSet::new();
        for number in 0_u64..2_000 {
            let mut bytes = Vec::new();
            number.encode(&mut bytes);
            used.insert(key_group(&bytes, 128));
        }
        assert_eq!(used.len(), 128);
    }

    #[test]
    fn pairs_that_concatenate_alike_encode_apart() {
        let encode = |pair: (String, String)| {
            let mut bytes = Vec::new();
            pair.encode(&mut bytes);
            assert_eq!(<(String, String)>::decode(&bytes), Some(pair));
            bytes
        };
        assert_ne!(
            encode(("ab".into(), "c".into())),
            encode(("a".into(), "bc".into()))
        );
    }
}
