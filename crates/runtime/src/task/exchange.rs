//! The stages that send elements on: to other tasks through channels, or to several stages of this one.
//!
//! # Invariants
//!
//! - Every target gets every signal, in the order of the records around it.
//! - Targets are served independently: a full one holds back only what is its own, so a barrier reaches the
//!   others even while one of them waits for its alignment. Without this a diamond would deadlock.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::source::Record;
use aqueduct_connector::{Error, Result};

use super::TaskBuild;
use crate::channel::{Bounds, Receiver, Sender, channel};
use crate::stage::{Element, Notice, Scope, Stage, Wait, attach};

/// The channels between all subtasks of one chain and all of another (or only between equal ones).
pub(crate) struct Exchange<T> {
    /// By sending subtask.
    senders: Mutex<Vec<Vec<Sender<Element<T>>>>>,
    /// By receiving subtask.
    receivers: Mutex<Vec<Vec<Receiver<Element<T>>>>>,
}

impl<T: Send> Exchange<T> {
    /// Channels from each subtask to the one of the same index.
    pub(crate) fn forward(parallelism: u32, bounds: Bounds) -> Self {
        let (senders, receivers) = (0..parallelism)
            .map(|_| {
                let (sender, receiver) = channel(bounds);
                (vec![sender], vec![receiver])
            })
            .unzip();
        Self {
            senders: Mutex::new(senders),
            receivers: Mutex::new(receivers),
        }
    }

    /// Channels from each subtask to each.
    pub(crate) fn all_to_all(parallelism: u32, bounds: Bounds) -> Self {
        let mut receivers: Vec<Vec<_>> = (0..parallelism).map(|_| Vec::new()).collect();
        let senders = (0..parallelism)
            .map(|_| {
                let to_all = receivers.iter_mut().map(|of_one| {
                    let (sender, receiver) = channel(bounds);
                    of_one.push(receiver);
                    sender
                });
                to_all.collect()
            })
            .collect();
        Self {
            senders: Mutex::new(senders),
            receivers: Mutex::new(receivers),
        }
    }

    /// The sending ends of a subtask; empty when taken before.
    fn take_senders(&self, subtask: u32) -> Vec<Sender<Element<T>>> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut senders[subtask as usize])
    }

    /// The receiving ends of a subtask; empty when taken before.
    pub(crate) fn take_receivers(&self, subtask: u32) -> Vec<Receiver<Element<T>>> {
        let mut receivers = self
            .receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut receivers[subtask as usize])
    }
}

/// Decides which target each record of a batch goes to, and as what.
pub(crate) trait Route<I> {
    /// What travels.
    type Out;

    /// Learns how many targets there are.
    fn open(&mut self, parallelism: u32, max_parallelism: u32) {
        let _ = (parallelism, max_parallelism);
    }

    /// Appends each record to the batch of its target; there is one a target.
    fn route(
        &mut self,
        records: Vec<Record<I>>,
        targets: &mut [Vec<Record<Self::Out>>],
    ) -> Result<()>;
}

struct Target<T> {
    sender: Sender<Element<T>>,
    waiting: VecDeque<Element<T>>,
}

/// Sends elements to other tasks.
pub(crate) struct ExchangeStage<I, R: Route<I>> {
    number: u32,
    /// The operator whose output this is, for people.
    operator: u32,
    route: R,
    targets: Vec<Target<R::Out>>,
    batches: Vec<Vec<Record<R::Out>>>,
    scope: Option<Rc<Scope>>,
}

impl<I, R: Route<I>> ExchangeStage<I, R> {
    pub(crate) fn new(number: u32, operator: u32, route: R) -> Self {
        Self {
            number,
            operator,
            route,
            targets: Vec::new(),
            batches: Vec::new(),
            scope: None,
        }
    }
}

impl<I, R: Route<I>> Stage<I> for ExchangeStage<I, R>
where
    R::Out: Send + 'static,
{
    fn open(&mut self, build: &TaskBuild) -> Result<()> {
        self.route.open(build.parallelism, build.max_parallelism);
        let exchange = build.plan.exchange::<R::Out>(self.number);
        let senders = exchange.take_senders(build.subtask);
        self.batches = senders.iter().map(|_| Vec::new()).collect();
        self.targets = senders
            .into_iter()
            .map(|sender| Target {
                sender,
                waiting: VecDeque::new(),
            })
            .collect();
        self.scope = Some(build.scope.clone());
        Ok(())
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let mut ready = true;
        for target in &mut self.targets {
            while !target.waiting.is_empty() {
                match target.sender.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        if let Some(element) = target.waiting.pop_front() {
                            let weight = element.weight();
                            target.sender.send(element, weight);
                        }
                    }
                    // A closed channel means that the attempt is ending; its reason is told elsewhere.
                    Poll::Ready(Err(_)) | Poll::Pending => {
                        ready = false;
                        break;
                    }
                }
            }
        }
        if ready {
            return Poll::Ready(Ok(()));
        }
        if let Some(scope) = &self.scope {
            scope.waits(self.operator, Wait::Downstream);
        }
        Poll::Pending
    }

    fn push(&mut self, element: Element<I>) -> Result<()> {
        match element {
            Element::Batch(records) => {
                if let Some(scope) = &self.scope {
                    scope.enter(self.operator);
                }
                self.route.route(records, &mut self.batches)?;
                for (target, batch) in self.targets.iter_mut().zip(&mut self.batches) {
                    if !batch.is_empty() {
                        // The next batch is likely to be as long: one allocation instead of a growing one.
                        let next = Vec::with_capacity(batch.len());
                        let full = std::mem::replace(batch, next);
                        target.waiting.push_back(Element::Batch(full));
                    }
                }
            }
            signal => {
                for target in &mut self.targets {
                    target.waiting.extend(signal.signal());
                }
            }
        }
        Ok(())
    }

    fn notify(&mut self, _notice: Notice) -> Result<()> {
        Ok(())
    }

    fn poll_close(&mut self, _cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.targets.clear();
        Poll::Ready(Ok(()))
    }
}

/// Gives every element to two stages of the same task.
pub(crate) struct TeeStage<T> {
    branches: [Box<dyn Stage<T>>; 2],
    failure: Option<Error>,
}

impl<T> TeeStage<T> {
    pub(crate) fn new(branches: [Box<dyn Stage<T>>; 2]) -> Self {
        Self {
            branches,
            failure: None,
        }
    }
}

impl<T: Clone> Stage<T> for TeeStage<T> {
    fn open(&mut self, build: &TaskBuild) -> Result<()> {
        self.branches
            .iter_mut()
            .try_for_each(|branch| branch.open(build))
    }

    fn poll_ready(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let mut all = Poll::Ready(Ok(()));
        for branch in &mut self.branches {
            match branch.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    }

    fn push(&mut self, element: Element<T>) -> Result<()> {
        let [first, second] = &mut self.branches;
        let copy = match &element {
            Element::Batch(records) => Element::Batch(records.clone()),
            signal => match signal.signal() {
                Some(signal) => signal,
                None => return Err(Error::bug("a signal that cannot be copied")),
            },
        };
        first.push(copy)?;
        second.push(element)
    }

    fn notify(&mut self, notice: Notice) -> Result<()> {
        self.branches
            .iter_mut()
            .try_for_each(|branch| branch.notify(notice))
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let mut pending = false;
        for branch in &mut self.branches {
            match branch.poll_close(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => attach(&mut self.failure, error),
                Poll::Pending => pending = true,
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(self.failure.take().map_or(Ok(()), Err))
    }
}
