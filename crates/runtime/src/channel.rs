//! The channel between two tasks: one sender, one receiver, bounded by items and by weight.
//!
//! # Invariants
//!
//! - Items leave in the order they came.
//! - A sender is ready while both usages are *below* their bounds, so an item heavier than the bound
//!   enters an empty channel instead of hanging it, and the bound is exceeded by one item at most.
//! - Either end learns that the other is gone.
//!
//! The weight of a batch is its number of records; the lock is taken once an item, never a record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The bounds of one channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Items of any kind: batches, watermarks, barriers.
    pub(crate) items: usize,
    /// Records in all batches.
    pub(crate) weight: usize,
}

/// The other end is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

pub(crate) fn channel<T>(bounds: Bounds) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(State {
        queue: VecDeque::new(),
        weight: 0,
        bounds,
        closed: false,
        receiver: None,
        sender: None,
    }));
    (Sender(shared.clone()), Receiver(shared))
}

struct State<T> {
    queue: VecDeque<(T, usize)>,
    weight: usize,
    bounds: Bounds,
    closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

impl<T> State<T> {
    fn has_room(&self) -> bool {
        self.queue.len() < self.bounds.items && self.weight < self.bounds.weight
    }
}

fn lock<T>(shared: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // No code of a user runs under the lock; a panic elsewhere leaves valid data.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

pub(crate) struct Sender<T>(Arc<Mutex<State<T>>>);

impl<T> Sender<T> {
    /// Ready while there is room.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = lock(&self.0);
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        if state.has_room() {
            return Poll::Ready(Ok(()));
        }
        store(&mut state.sender, cx);
        Poll::Pending
    }

    /// Sends after `poll_ready` was ready; beyond that the bound is only advisory.
    pub(crate) fn send(&mut self, item: T, weight: usize) {
        let waker = {
            let mut state = lock(&self.0);
            state.weight += weight;
            state.queue.push_back((item, weight));
            state.receiver.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.closed = true;
            state.receiver.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(crate) struct Receiver<T>(Arc<Mutex<State<T>>>);

impl<T> Receiver<T> {
    /// The next item; `None` once the sender is gone and everything was received.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let (item, waker) = {
            let mut state = lock(&self.0);
            match state.queue.pop_front() {
                Some((item, weight)) => {
                    state.weight -= weight;
                    let waker = if state.has_room() {
                        state.sender.take()
                    } else {
                        None
                    };
                    (item, waker)
                }
                None if state.closed => return Poll::Ready(None),
                None => {
                    store(&mut state.receiver, cx);
                    return Poll::Pending;
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Poll::Ready(Some(item))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let (waker, dropped) = {
            let mut state = lock(&self.0);
            state.closed = true;
            state.weight = 0;
            (state.sender.take(), std::mem::take(&mut state.queue))
        };
        drop(dropped);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn an_oversized_item_enters_an_empty_channel_and_nothing_joins_it() {
        let (mut sender, mut receiver) = channel(Bounds {
            items: 8,
            weight: 10,
        });
        assert!(sender.poll_ready(&mut cx()).is_ready());
        sender.send("huge", 1_000);
        assert!(sender.poll_ready(&mut cx()).is_pending());
        assert_eq!(receiver.poll_recv(&mut cx()), Poll::Ready(Some("huge")));
        assert!(sender.poll_ready(&mut cx()).is_ready());
    }

    #[test]
    fn weightless_items_are_bounded_by_count() {
        let (mut sender, _receiver) = channel(Bounds {
            items: 2,
            weight: 10,
        });
        sender.send(1, 0);
        sender.send(2, 0);
        assert!(sender.poll_ready(&mut cx()).is_pending());
    }

    #[test]
    fn what_was_sent_before_the_sender_went_is_received() {
        let (mut sender, mut receiver) = channel(Bounds {
            items: 2,
            weight: 10,
        });
        sender.send(1, 1);
        drop(sender);
        assert_eq!(receiver.poll_recv(&mut cx()), Poll::Ready(Some(1)));
        assert_eq!(receiver.poll_recv(&mut cx()), Poll::Ready(None));
        let (mut sender, receiver) = channel::<u8>(Bounds {
            items: 2,
            weight: 10,
        });
        drop(receiver);
        assert_eq!(sender.poll_ready(&mut cx()), Poll::Ready(Err(Closed)));
    }
}
