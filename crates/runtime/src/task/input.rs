//! The head of a chain that reads from other tasks: merges inputs, aligns barriers, combines watermarks.
//!
//! # Invariants
//!
//! - From an input's barrier until every input has given the same barrier, nothing more of it is taken.
//! - The watermark is the least over the inputs that are neither idle nor ended, and never goes back.
//! - Inputs are taken in turn, so none starves.

use std::task::{Context as PollContext, Poll, ready};
use std::time::Duration;

use aqueduct_connector::{CheckpointId, Error, Moment, Result, Timestamp};

use super::{Control, Event, Head, TURNS, TaskBuild, TaskLink};
use crate::channel::Receiver;
use crate::stage::{Element, Notice, Stage, Wait};

struct Input<T> {
    receiver: Receiver<Element<T>>,
    watermark: Timestamp,
    idle: bool,
    ended: bool,
    /// Its sender is gone.
    gone: bool,
    /// It has given the barrier that the others still owe.
    blocked: bool,
}

/// Reads from every channel of some exchanges.
pub(crate) struct InputHead<T> {
    exchanges: Vec<u32>,
    inputs: Vec<Input<T>>,
    chain: Box<dyn Stage<T>>,
    /// The input to look at first.
    turn: usize,
    /// The barrier being aligned, and since when.
    aligning: Option<(CheckpointId, Moment)>,
    /// The barrier that is on its way through the chain, and how long its alignment took.
    passing: Option<(CheckpointId, Duration)>,
    watermark: Timestamp,
    idle: bool,
    /// An idle mark is to follow the watermark that is on its way.
    owes_idle: bool,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// The last watermark is on its way.
    Watermark,
    /// The end is on its way.
    Pushed,
    Told,
}

impl<T> InputHead<T> {
    pub(crate) fn new(exchanges: Vec<u32>, chain: Box<dyn Stage<T>>) -> Self {
        Self {
            exchanges,
            inputs: Vec::new(),
            chain,
            turn: 0,
            aligning: None,
            passing: None,
            watermark: Timestamp::MIN,
            idle: false,
            owes_idle: false,
            end: End::No,
        }
    }

    /// What an input's signal changes; pushes on what follows from it.
    fn take(&mut self, at: usize, element: Element<T>, now: Moment) -> Result<()> {
        let input = &mut self.inputs[at];
        match element {
            Element::Batch(records) => return self.chain.push(Element::Batch(records)),
            Element::Watermark(watermark) => {
                input.watermark = input.watermark.max(watermark);
                input.idle = false;
            }
            Element::Idle => input.idle = true,
            Element::End => {
                input.ended = true;
                if self.inputs.iter().all(|input| input.ended) {
                    self.end = End::Watermark;
                    return self.chain.push(Element::Watermark(Timestamp::MAX));
                }
            }
            Element::Barrier(checkpoint) => {
                input.blocked = true;
                let (aligned, since) = *self.aligning.get_or_insert((checkpoint, now));
                if aligned != checkpoint {
                    return Err(Error::bug("barriers of two checkpoints met"));
                }
                if self.inputs.iter().all(|input| input.blocked) {
                    self.aligning = None;
                    for input in &mut self.inputs {
                        input.blocked = false;
                    }
                    self.passing = Some((checkpoint, now.since(since)));
                    return self.chain.push(Element::Barrier(checkpoint));
                }
                return Ok(());
            }
        }
        self.combine()
    }

    fn combine(&mut self) -> Result<()> {
        let live = || self.inputs.iter().filter(|input| !input.ended);
        let Some(greatest) = live().map(|input| input.watermark).max() else {
            return Ok(());
        };
        let least = live()
            .filter(|input| !input.idle)
            .map(|input| input.watermark)
            .min();
        match least {
            None if self.idle => Ok(()),
            // What the idle inputs held back from each other goes first.
            None if greatest > self.watermark => {
                self.watermark = greatest;
                self.owes_idle = true;
                self.chain.push(Element::Watermark(greatest))
            }
            None => {
                self.idle = true;
                self.chain.push(Element::Idle)
            }
            Some(least) => {
                let was_idle = std::mem::replace(&mut self.idle, false);
                if least > self.watermark {
                    self.watermark = least;
                } else if !was_idle {
                    return Ok(());
                }
                self.chain.push(Element::Watermark(self.watermark))
            }
        }
    }

    /// The next element of an input that may be read.
    fn poll_input(&mut self, cx: &mut PollContext<'_>) -> Poll<(usize, Element<T>)> {
        let count = self.inputs.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let input = &mut self.inputs[at];
            if input.blocked || input.gone {
                continue;
            }
            match input.receiver.poll_recv(cx) {
                Poll::Ready(Some(element)) => {
                    self.turn = at + 1;
                    return Poll::Ready((at, element));
                }
                Poll::Ready(None) => input.gone = true,
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }
}

impl<T: Send + 'static> Head for InputHead<T> {
    fn open(&mut self, build: &TaskBuild, _link: &mut TaskLink) -> Result<()> {
        for number in &self.exchanges {
            let receivers = build
                .plan
                .exchange::<T>(*number)
                .take_receivers(build.subtask);
            self.inputs
                .extend(receivers.into_iter().map(|receiver| Input {
                    receiver,
                    watermark: Timestamp::MIN,
                    idle: false,
                    ended: false,
                    gone: false,
                    blocked: false,
                }));
        }
        self.chain.open(build)
    }

    fn poll_run(&mut self, cx: &mut PollContext<'_>, link: &mut TaskLink) -> Poll<Result<()>> {
        for _ in 0..TURNS {
            while let Poll::Ready(control) = link.poll_control(cx) {
                match control {
                    Control::Completed(id) => self.chain.notify(Notice::Completed(id))?,
                    Control::Aborted(id) => self.chain.notify(Notice::Aborted(id))?,
                    Control::Finish => return Poll::Ready(Ok(())),
                    Control::Trigger { .. }
                    | Control::Splits(_)
                    | Control::NoMoreSplits
                    | Control::EnumeratorEvent(_) => {
                        return Poll::Ready(Err(Error::bug("a source's message reached an input")));
                    }
                }
            }
            if self.chain.poll_ready(cx)?.is_pending() {
                link.waits(Wait::Downstream);
                return Poll::Pending;
            }
            if link.poll_outgoing(cx).is_pending() {
                link.waits(Wait::Coordinator);
                return Poll::Pending;
            }
            if let Some((checkpoint, alignment)) = self.passing.take() {
                let snapshot = link.scope.take_snapshot();
                link.tell(Event::Ack {
                    task: link.id,
                    checkpoint,
                    snapshot,
                    alignment,
                });
                continue;
            }
            if std::mem::take(&mut self.owes_idle) {
                self.idle = true;
                self.chain.push(Element::Idle)?;
                continue;
            }
            match self.end {
                End::Watermark => {
                    self.end = End::Pushed;
                    self.chain.push(Element::End)?;
                    continue;
                }
                End::Pushed => {
                    self.end = End::Told;
                    link.tell(Event::Ended(link.id));
                    continue;
                }
                End::No | End::Told => {}
            }
            match self.poll_input(cx) {
                Poll::Ready((at, element)) => {
                    link.moved();
                    let now = link.clock.now();
                    self.take(at, element, now)?;
                }
                Poll::Pending => {
                    link.waits(if self.aligning.is_some() {
                        Wait::Alignment
                    } else if self.end == End::Told {
                        Wait::Ended
                    } else {
                        Wait::Input
                    });
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        let closed = ready!(self.chain.poll_close(cx));
        self.inputs.clear();
        Poll::Ready(closed)
    }
}
