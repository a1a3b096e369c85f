//! The library as a host: its runtime, the queue of wake-ups, and the handles that Java holds.
//!
//! Java opens a handle for every writer, reader, enumerator and lookup, drives it by number and frees it. While at least
//! one is open, the library runs a small Tokio runtime ([`start`], [`stop`]; Java counts). Nothing here calls Java: a
//! waker puts the number of its handle into a queue, and one thread of Java's sits in [`await_wakeups`] and passes them
//! on (a mail to a task, a future that completes).
//!
//! # Invariants
//!
//! - A handle is driven by one thread at a time. Two at once is an error, never a wait.
//! - A handle whose call panicked is poisoned: what it held is gone, and every later call says why.
//! - The queue of wake-ups holds each handle at most once, so it is as long as there are handles.
//! - A number that names no handle is an error. There is no pointer that Java could get wrong.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context as PollContext, Wake, Waker};
use std::time::Duration;

use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::{Context, Error, Result, Subtask};
use aqueduct_tokio::{RuntimeSpawn, SystemClock, panic_text};
use tokio::runtime::{Builder, Handle as RuntimeHandle, Runtime};

use crate::enumerator::Enumerator;
use crate::errors::panicked;
use crate::logs;
use crate::lookup::Lookup;
use crate::reader::Reader;
use crate::writer::Writer;

/// Threads of the runtime. They do the I/O of every handle; each task thread polls its own state machine, so two are
/// enough for more than a network card gives.
const WORKERS: usize = 2;
/// How long a stop waits for I/O tasks that do not end: less than Flink waits for a task to cancel.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// The number in the queue that says there are lines in the log.
pub(crate) const LOGS: u64 = 0;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static HANDLES: Mutex<Option<HashMap<u64, Arc<Handle>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(LOGS + 1);
static WAKEUPS: Wakeups = Wakeups {
    state: Mutex::new(WakeupState {
        queue: VecDeque::new(),
        generation: 0,
        running: false,
    }),
    some: Condvar::new(),
};

struct Wakeups {
    state: Mutex<WakeupState>,
    some: Condvar,
}

struct WakeupState {
    queue: VecDeque<u64>,
    /// Counts the starts, so that a thread of an earlier one ends although the library runs again.
    generation: u64,
    running: bool,
}

/// What is behind the mutexes here is valid at every point, also where a panic left it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the runtime. Gives the number of this start, for [`await_wakeups`].
pub(crate) fn start(verbosity: logs::Verbosity) -> Result<u64> {
    let mut runtime = lock(&RUNTIME);
    if runtime.is_some() {
        return Err(Error::bug("the library runs already"));
    }
    logs::start(verbosity);
    *runtime = Some(
        Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("aqueduct-io")
            .enable_all()
            .build()
            .map_err(|error| {
                Error::io("the threads for network I/O cannot be started").with_source(error)
            })?,
    );
    let mut wakeups = lock(&WAKEUPS.state);
    wakeups.generation += 1;
    wakeups.running = true;
    Ok(wakeups.generation)
}

/// Stops the runtime and sends the thread in [`await_wakeups`] home. To be called on a thread that ends soon: what the
/// shutdown leaves in thread-locals would keep the library mapped for as long as its thread lives.
pub(crate) fn stop() {
    let runtime = lock(&RUNTIME).take();
    if let Some(runtime) = runtime {
        runtime.shutdown_timeout(STOP_LIMIT);
    }
    let mut wakeups = lock(&WAKEUPS.state);
    wakeups.running = false;
    drop(wakeups);
    WAKEUPS.some.notify_all();
}

/// Waits until a waker fires, for at most `limit`. Puts numbers of handles into `out` and gives how many; `None` once
/// the start that `generation` counts was stopped.
pub(crate) fn await_wakeups(generation: u64, limit: Duration, out: &mut [i64]) -> Option<usize> {
    let idle = |state: &mut WakeupState| {
        state.running && state.generation == generation && state.queue.is_empty()
    };
    let mut state = WAKEUPS
        .some
        .wait_timeout_while(lock(&WAKEUPS.state), limit, idle)
        .unwrap_or_else(PoisonError::into_inner)
        .0;
    if state.generation != generation || (!state.running && state.queue.is_empty()) {
        return None;
    }
    let taken = out.len().min(state.queue.len());
    for (slot, id) in out.iter_mut().zip(state.queue.drain(..taken)) {
        *slot = id.cast_signed();
    }
    drop(state);
    // From here on a waker queues its handle again: what Java does now comes after everything that woke before.
    for id in &out[..taken] {
        match id.cast_unsigned() {
            LOGS => logs::taken(),
            id => {
                if let Some(handle) = find(id) {
                    handle.signal.queued.store(false, Ordering::SeqCst);
                }
            }
        }
    }
    Some(taken)
}

/// Queues a number; the caller sees to it that it is queued once.
pub(crate) fn wake(id: u64) {
    lock(&WAKEUPS.state).queue.push_back(id);
    WAKEUPS.some.notify_one();
}

/// The waker of one handle.
struct Signal {
    id: u64,
    queued: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            wake(self.id);
        }
    }
}

/// What Java holds by number.
struct Handle {
    signal: Arc<Signal>,
    waker: Waker,
    runtime: RuntimeHandle,
    metrics: MetricRegistry,
    slot: Mutex<Slot>,
}

enum Slot {
    Live(Owned),
    /// The panic that ended it.
    Poisoned(String),
}

/// What a handle drives.
pub(crate) enum Part {
    Writer(Writer),
    Reader(Reader),
    Enumerator(Enumerator),
    Lookup(Lookup),
}

/// A part that may change its thread between calls.
struct Owned(Part);

// SAFETY: the contract asks for one thread at a time, not for one thread (`aqueduct_connector`, "One owner"): Flink makes
// and closes an enumerator on other threads than the one that drives it. A part is behind the mutex of its handle from
// its making to its drop, moves as a whole with everything that it alone refers to, and what it shares with I/O tasks is
// `Send` because those tasks are. It keeps nothing in thread-locals between calls.
unsafe impl Send for Owned {}

/// What Java says about the place of a part in its job.
pub(crate) struct Place {
    pub(crate) job: String,
    pub(crate) operator: String,
    pub(crate) subtask: Subtask,
    pub(crate) attempt: u32,
    pub(crate) seed: u64,
}

/// Opens a part; `make` gets its context. Gives the number of its handle.
pub(crate) fn open(place: Place, make: impl FnOnce(Context) -> Result<Part>) -> Result<u64> {
    let runtime = match &*lock(&RUNTIME) {
        Some(runtime) => runtime.handle().clone(),
        None => return Err(Error::bug("the library does not run")),
    };
    let metrics = MetricRegistry::new();
    let context = Context {
        job: place.job.into(),
        operator: place.operator.into(),
        subtask: place.subtask,
        parallelism: place.subtask.parallelism,
        attempt: place.attempt,
        metrics: metrics.group(&[]),
        clock: Arc::new(SystemClock::new()),
        spawn: RuntimeSpawn::on(runtime.clone()),
        seed: place.seed,
    };
    let part = {
        let _inside = runtime.enter();
        catch_unwind(AssertUnwindSafe(|| make(context)))
            .unwrap_or_else(|payload| Err(panicked(payload.as_ref())))?
    };
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let signal = Arc::new(Signal {
        id,
        queued: AtomicBool::new(false),
    });
    let handle = Handle {
        waker: Waker::from(signal.clone()),
        signal,
        runtime,
        metrics,
        slot: Mutex::new(Slot::Live(Owned(part))),
    };
    lock(&HANDLES)
        .get_or_insert_default()
        .insert(id, Arc::new(handle));
    Ok(id)
}

fn find(id: u64) -> Option<Arc<Handle>> {
    lock(&HANDLES).as_ref()?.get(&id).cloned()
}

fn known(id: u64) -> Result<Arc<Handle>> {
    find(id).ok_or_else(|| Error::bug("a call to a native object that was closed"))
}

/// Calls `f` with the part of a handle, inside the runtime. A panic poisons the handle.
pub(crate) fn with<R>(
    id: u64,
    f: impl FnOnce(&mut Part, &mut PollContext<'_>) -> Result<R>,
) -> Result<R> {
    let handle = known(id)?;
    let mut slot = match handle.slot.try_lock() {
        Ok(slot) => slot,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(Error::bug("two threads called one native object at once"));
        }
    };
    let part = match &mut *slot {
        Slot::Live(Owned(part)) => part,
        Slot::Poisoned(text) => {
            return Err(Error::bug(format!(
                "a call to a native object that panicked before: {text}"
            )));
        }
    };
    let _inside = handle.runtime.enter();
    let mut cx = PollContext::from_waker(&handle.waker);
    catch_unwind(AssertUnwindSafe(|| f(part, &mut cx))).unwrap_or_else(|payload| {
        let text = panic_text(payload.as_ref());
        let broken = std::mem::replace(&mut *slot, Slot::Poisoned(text));
        drop_quietly(broken);
        Err(panicked(payload.as_ref()))
    })
}

/// Frees a handle, if it is still there. What its part has not finished is abandoned.
pub(crate) fn free(id: u64) {
    let handle = lock(&HANDLES)
        .as_mut()
        .and_then(|handles| handles.remove(&id));
    if let Some(handle) = handle {
        let _inside = handle.runtime.enter();
        // Nobody else has it but a call that another thread is just making, against the rules; then that call's end
        // drops the part, on its thread.
        if let Ok(mut slot) = handle.slot.try_lock() {
            drop_quietly(std::mem::replace(
                &mut *slot,
                Slot::Poisoned("it was closed".to_owned()),
            ));
        }
    }
}

/// A part that panics while it is dropped has said enough by its log line.
fn drop_quietly(slot: Slot) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(slot))) {
        tracing::error!(
            panic = panic_text(payload.as_ref()),
            "a native object panicked while it was closed"
        );
    }
}

/// The metrics of a handle.
pub(crate) fn metrics(id: u64) -> Result<MetricRegistry> {
    known(id).map(|handle| handle.metrics.clone())
}

#[cfg(test)]
pub(crate) fn open_handles() -> usize {
    lock(&HANDLES).as_ref().map_or(0, HashMap::len)
}
