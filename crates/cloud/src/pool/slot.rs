//! One channel of a pool: idle, connecting or ready, and the older connections that drain behind it.
//!
//! # Invariants
//!
//! - At most one connection is being made, and at most one takes new calls.
//! - Whatever ends a connection task, an abort or a panic included, the slot hears of it (`connect` holds a guard), so no
//!   call waits for a task that is gone.
//! - A lease is counted under the slot's lock, so a draining connection without leases gets none later.
//!
//! The lock is held for a few assignments, never over a poll, an await or a drop of a task.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_connector::{Spawn, Task};
use bytes::Bytes;
use futures::task::AtomicWaker;
use h2::client::SendRequest;

use super::connect::{self, Target};
use super::fail;
use super::watch::Watch;
use crate::error::CallError;
use crate::retry::Backoff;

/// Between failed attempts to connect. Calls that come meanwhile wait for the next one, within their deadlines.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A connection.
pub(super) struct Conn {
    send: SendRequest<Bytes>,
    watch: Arc<Watch>,
    leases: AtomicUsize,
    /// Takes no more calls.
    worn: AtomicBool,
    /// Its task has ended.
    over: AtomicBool,
    cause: OnceLock<&'static str>,
    /// Of its task, which ends when it takes no more calls and has none left.
    drained: AtomicWaker,
}

impl Conn {
    pub(super) fn new(send: SendRequest<Bytes>, watch: Arc<Watch>) -> Self {
        Self {
            send,
            watch,
            leases: AtomicUsize::new(0),
            worn: AtomicBool::new(false),
            over: AtomicBool::new(false),
            cause: OnceLock::new(),
            drained: AtomicWaker::new(),
        }
    }

    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.send.clone()
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Calls on it.
    pub(super) fn load(&self) -> usize {
        self.leases.load(Ordering::Relaxed)
    }

    /// Takes no new calls from now on.
    pub(super) fn wear_out(&self) {
        self.worn.store(true, Ordering::SeqCst);
        self.drained.wake();
    }

    /// Ready when it takes no more calls and the last one has ended.
    pub(super) fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.drained.register(cx.waker());
        if self.worn.load(Ordering::SeqCst) && self.leases.load(Ordering::SeqCst) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Says why it ends, for the errors of its calls; to be called before its streams fail.
    pub(super) fn dies_of(&self, cause: &'static str) {
        self.wear_out();
        // The first cause is the true one.
        let _ = self.cause.set(cause);
    }

    pub(super) fn cause_of_death(&self) -> Option<&'static str> {
        self.cause.get().copied()
    }

    fn is_usable(&self) -> bool {
        !self.worn.load(Ordering::Acquire)
            && !self.over.load(Ordering::Acquire)
            && !self.watch.going_away()
    }
}

/// A call's share of a connection.
pub(super) struct Lease(Arc<Conn>);

impl Lease {
    fn new(conn: &Arc<Conn>) -> Self {
        conn.leases.fetch_add(1, Ordering::Relaxed);
        Self(conn.clone())
    }

    pub(super) fn conn(&self) -> &Conn {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.0.leases.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.worn.load(Ordering::SeqCst) {
            self.0.drained.wake();
        }
    }
}

pub(super) struct Slot {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Counts attempts to connect; names the current or the last one.
    attempt: u64,
    /// The last attempt that failed, and why.
    failed: Option<(u64, Arc<str>)>,
    /// Failures in a row.
    failures: u32,
    random: fastrand::Rng,
    waiting: Vec<Waker>,
    task: Option<Task>,
    draining: Vec<(Arc<Conn>, Task)>,
    closed: bool,
}

enum Phase {
    Idle,
    Connecting,
    Ready(Arc<Conn>),
}

/// A glance at a slot.
pub(super) enum Look {
    Idle,
    Connecting,
    Ready(Lease),
}

/// What waiting for a slot came to.
pub(super) enum Waiting {
    /// The waker is registered.
    Registered(Ticket),
    /// Nothing to wait for: nobody connects it.
    Idle,
    /// It has become ready.
    Ready,
}

/// Which attempt of which slot a call waits for.
pub(super) struct Ticket {
    slot: Arc<Slot>,
    attempt: u64,
}

impl Ticket {
    /// The failure of that attempt or a later one.
    pub(super) fn failure(&self) -> Option<CallError> {
        match &self.slot.lock().failed {
            Some((attempt, why)) if *attempt >= self.attempt => Some(fail::not_connected(&**why)),
            _ => None,
        }
    }
}

impl Slot {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self {
            state: Mutex::new(State {
                phase: Phase::Idle,
                attempt: 0,
                failed: None,
                failures: 0,
                random,
                waiting: Vec::new(),
                task: None,
                draining: Vec::new(),
                closed: false,
            }),
        }
    }

    /// Its state now; a connection that takes no more calls is set aside first.
    pub(super) fn look(&self) -> Look {
        let mut gone = Vec::new();
        let mut state = self.lock();
        let look = match &state.phase {
            Phase::Idle => Look::Idle,
            Phase::Connecting => Look::Connecting,
            Phase::Ready(conn) if conn.is_usable() => Look::Ready(Lease::new(conn)),
            Phase::Ready(_) => {
                gone = state.retire();
                Look::Idle
            }
        };
        drop(state);
        drop(gone);
        look
    }

    /// Starts connecting if it is idle. Answers which attempt is current.
    pub(super) fn start(self: &Arc<Self>, target: &Arc<Target>, spawn: &dyn Spawn) -> Ticket {
        let mut state = self.lock();
        let start = matches!(state.phase, Phase::Idle) && !state.closed;
        let mut delay = Duration::ZERO;
        if start {
            state.attempt += 1;
            state.phase = Phase::Connecting;
            if state.failures > 0 {
                let failures = state.failures;
                delay = RECONNECT.delay_after(failures, &mut state.random);
            }
        }
        let attempt = state.attempt;
        // A host that is shutting down may drop the future at once, which reports to this slot.
        drop(state);
        if start {
            let run = connect::run(self.clone(), target.clone(), attempt, delay);
            let task = spawn.spawn("channel", Box::pin(run));
            let mut state = self.lock();
            let old = if state.attempt == attempt && !state.closed {
                state.task.replace(task)
            } else {
                Some(task)
            };
            drop(state);
            drop(old);
        }
        Ticket {
            slot: self.clone(),
            attempt,
        }
    }

    /// Registers `waker` for the end of the current attempt.
    pub(super) fn wait(self: &Arc<Self>, waker: &Waker) -> Waiting {
        let mut state = self.lock();
        match state.phase {
            Phase::Idle => Waiting::Idle,
            Phase::Ready(_) => Waiting::Ready,
            Phase::Connecting => {
                if !state.waiting.iter().any(|known| known.will_wake(waker)) {
                    state.waiting.push(waker.clone());
                }
                Waiting::Registered(Ticket {
                    slot: self.clone(),
                    attempt: state.attempt,
                })
            }
        }
    }

    /// Attempt `attempt` made `conn`.
    pub(super) fn ready(&self, attempt: u64, conn: Arc<Conn>) {
        let mut state = self.lock();
        if state.attempt == attempt {
            state.failures = 0;
            state.phase = Phase::Ready(conn);
            wake(state);
        }
    }

    /// Attempt `attempt` failed.
    pub(super) fn failed(&self, attempt: u64, why: &str) {
        let mut state = self.lock();
        if state.attempt == attempt {
            state.failures = state.failures.saturating_add(1);
            state.failed = Some((attempt, why.into()));
            state.phase = Phase::Idle;
            wake(state);
        }
    }

    /// The task of `conn` has ended.
    pub(super) fn ended(&self, attempt: u64, conn: &Conn) {
        conn.over.store(true, Ordering::Release);
        let mut state = self.lock();
        if state.attempt == attempt && matches!(state.phase, Phase::Ready(_)) {
            state.phase = Phase::Idle;
        }
    }

    /// Ends all of its tasks, for good.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.phase = Phase::Idle;
        let tasks = (state.task.take(), mem::take(&mut state.draining));
        drop(state);
        drop(tasks);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves a valid state at each point where it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sets the ready connection aside until its calls have ended. Answers what can be dropped, outside the lock.
    fn retire(&mut self) -> Vec<(Arc<Conn>, Task)> {
        if let (Phase::Ready(conn), Some(task)) =
            (mem::replace(&mut self.phase, Phase::Idle), self.task.take())
        {
            self.draining.push((conn, task));
        }
        let (gone, draining) = mem::take(&mut self.draining)
            .into_iter()
            .partition(|(conn, _)| conn.over.load(Ordering::Acquire) || conn.load() == 0);
        self.draining = draining;
        gone
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waiting = mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}
