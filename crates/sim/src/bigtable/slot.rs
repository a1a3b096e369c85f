//! Names and locks: which tables there are, and what can be set on one while the server runs.
//!
//! A slot is the place of a table name. It outlives the table: options, counters and handles stay
//! valid when the table is deleted and created again. The one lock of a table is held for the
//! length of one request or one step of a scan, never across an await.

use std::{
    collections::HashMap,
    ops::DerefMut,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use tonic::Code;

use super::{
    chunks::Chunking,
    profile::Profiles,
    store::{Refusal, TableState},
    wire::Entry,
};

/// The order in which entries for the same row take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOrder {
    /// As sent. The default.
    AsSent,
    /// The last first: legal, and what a client must not rely against.
    Reversed,
    /// Any, by seed.
    Shuffled(u64),
}

/// How the answers of `MutateRows` are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// In order, in one message. The default.
    InOrder,
    /// In any order, in any number of messages, an absent status meaning success, by seed.
    Seeded(u64),
}

pub(crate) type Poison = Arc<dyn Fn(&Entry) -> bool + Send + Sync>;

pub(crate) struct Options {
    pub(crate) chunking: Chunking,
    pub(crate) order: EntryOrder,
    pub(crate) answers: Answers,
    pub(crate) poison: Option<Poison>,
    /// Draws for `order` and `answers`, so that requests differ and a run repeats.
    pub(crate) order_rng: fastrand::Rng,
    pub(crate) answers_rng: fastrand::Rng,
}

/// What was done on one table, since its slot exists.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) applied: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) lost_answers: AtomicU64,
    pub(crate) discarded_requests: AtomicU64,
    pub(crate) discarded_entries: AtomicU64,
    pub(crate) discarded_bytes: AtomicU64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock is a bug of a predicate in a test; the data stays usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Slot {
    pub(crate) name: String,
    table: Mutex<Option<TableState>>,
    /// Tables of the instance, for the text of a refusal.
    siblings: Arc<AtomicUsize>,
    pub(crate) options: Mutex<Options>,
    pub(crate) discards: AtomicBool,
    pub(crate) counters: Counters,
    /// The last answer of the discarding path, by its number of entries.
    pub(crate) acknowledgement: Mutex<(usize, Bytes)>,
}

/// The slot's table, which may be missing.
pub(crate) struct Locked<'a>(MutexGuard<'a, Option<TableState>>);

impl Locked<'_> {
    pub(crate) fn existing(&mut self) -> Option<&mut TableState> {
        self.0.as_mut()
    }
}

/// The slot's table, known to exist.
pub(crate) struct Open<'a>(MutexGuard<'a, Option<TableState>>);

impl Open<'_> {
    pub(crate) fn table(&mut self) -> &mut TableState {
        self.0
            .deref_mut()
            .as_mut()
            .expect("opened, and locked since")
    }
}

impl Slot {
    fn new(name: String, siblings: Arc<AtomicUsize>) -> Self {
        Self {
            name,
            table: Mutex::new(None),
            siblings,
            options: Mutex::new(Options {
                chunking: Chunking::Service,
                order: EntryOrder::AsSent,
                answers: Answers::InOrder,
                poison: None,
                order_rng: fastrand::Rng::with_seed(0),
                answers_rng: fastrand::Rng::with_seed(0),
            }),
            discards: AtomicBool::new(false),
            counters: Counters::default(),
            acknowledgement: Mutex::new((0, Bytes::new())),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(lock(&self.table))
    }

    /// The table as a data request meets it.
    pub(crate) fn open(&self) -> Result<Open<'_>, Refusal> {
        let mut table = lock(&self.table);
        if table.as_mut().is_some_and(|state| state.visible.ask()) {
            Ok(Open(table))
        } else {
            Err(self.missing())
        }
    }

    pub(crate) fn missing(&self) -> Refusal {
        missing(&self.name, self.siblings.load(Ordering::SeqCst) == 0)
    }

    /// Puts a table in place; false if there is one.
    pub(crate) fn create(&self, state: TableState) -> bool {
        let mut table = lock(&self.table);
        if table.is_some() {
            return false;
        }
        *table = Some(state);
        self.siblings.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Removes the table; false if there is none.
    pub(crate) fn delete(&self) -> bool {
        let deleted = lock(&self.table).take().is_some();
        if deleted {
            self.siblings.fetch_sub(1, Ordering::SeqCst);
        }
        deleted
    }

    pub(crate) fn exists(&self) -> bool {
        lock(&self.table).is_some()
    }

    pub(crate) fn siblings(&self) -> usize {
        self.siblings.load(Ordering::SeqCst)
    }

    pub(crate) fn chunking(&self) -> Chunking {
        let mut options = lock(&self.options);
        let chunking = options.chunking;
        if let Chunking::Seeded(seed) = chunking {
            // The next request differs, and the sequence repeats.
            options.chunking = Chunking::Seeded(seed.wrapping_add(1));
        }
        chunking
    }
}

/// Measured 2026-08-09: `NOT_FOUND`, with another text on an instance without tables. Which texts
/// was not recorded; these are ours.
fn missing(name: &str, empty_instance: bool) -> Refusal {
    let text = if empty_instance {
        format!("Instance holds no tables, so there is no {name}")
    } else {
        format!("Table not found: {name}")
    };
    Refusal::new(Code::NotFound, text)
}

/// All slots, and what belongs to instances.
#[derive(Default)]
pub(crate) struct Directory {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    instances: Mutex<HashMap<String, Arc<AtomicUsize>>>,
    pub(crate) profiles: Profiles,
    /// Tables in discard mode; zero spares every request the look at the fast path.
    pub(crate) discarding: AtomicUsize,
}

impl Directory {
    /// The slot of a full table name, made on demand.
    pub(crate) fn slot(&self, name: &str) -> Arc<Slot> {
        let siblings = {
            let mut instances = lock(&self.instances);
            instances
                .entry(instance_of(name).to_owned())
                .or_default()
                .clone()
        };
        lock(&self.slots)
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Slot::new(name.to_owned(), siblings)))
            .clone()
    }

    /// The slot of a full table name, if there is one. Requests use this, so that foreign names
    /// cost no memory.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Slot>> {
        lock(&self.slots).get(name).cloned()
    }

    /// As [`find`](Self::find), refusing what does not exist.
    pub(crate) fn known(&self, name: &str) -> Result<Arc<Slot>, Refusal> {
        self.find(name).ok_or_else(|| {
            let instances = lock(&self.instances);
            let tables = instances
                .get(instance_of(name))
                .map_or(0, |tables| tables.load(Ordering::SeqCst));
            missing(name, tables == 0)
        })
    }

    /// Existing tables of an instance, sorted by name.
    pub(crate) fn tables_of(&self, instance: &str) -> Vec<Arc<Slot>> {
        let mut slots: Vec<Arc<Slot>> = lock(&self.slots)
            .values()
            .filter(|slot| instance_of(&slot.name) == instance && slot.exists())
            .cloned()
            .collect();
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        slots
    }
}

/// `projects/p/instances/i` of a table name, or of itself.
pub(crate) fn instance_of(name: &str) -> &str {
    name.find("/tables/").map_or(name, |at| &name[..at])
}
