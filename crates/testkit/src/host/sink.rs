//! The hand-driven host of one sink: some writers, a committer if the sink has one, checkpoints in the contract's order.
//!
//! A barrier is flush, `prepare_commit`, `snapshot` for each writer; completing it tells the writers and hands the
//! committer what they handed over. While the host waits for one writer it lets the others work.
//!
//! # Breaches that panic
//!
//! A progress that ends; a committer that answers for another number of committables than it was handed; committables
//! from a sink without a committer; a committer that asks for another try a hundred times.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};
use std::time::Instant;

use aqueduct_connector::sink::{
    CommitOutcome, CommitRequest, Committer, Flush, RecordInfo, Sink, SinkWriter,
};
use aqueduct_connector::{CheckpointId, Error, Result, Versioned};
use futures::task::AtomicWaker;

use super::{SETTLE, first_error, wait_for, wait_for_any};
use crate::context::TestContext;
use crate::wait::Signal;

/// A committer that has not applied a committable after so many attempts never will.
const MOST_ATTEMPTS: u32 = 100;

/// A sink's share of a checkpoint.
#[derive(Clone, Debug)]
pub struct SinkCheckpoint {
    /// Its identifier.
    pub id: CheckpointId,
    /// The states of each writer.
    pub writers: Vec<Vec<Versioned>>,
    /// What was handed over and not confirmed when the checkpoint was taken, this checkpoint's own included.
    pub committables: Vec<CommitRequest>,
    /// Records admitted before the barrier, over all writers of this host.
    pub admitted: u64,
}

/// Drives one sink by hand.
pub struct SinkHost<T> {
    sink: Arc<dyn Sink<T>>,
    kit: TestContext,
    waker: Arc<AtomicWaker>,
    writers: Vec<Slot<T>>,
    committer: Option<Box<dyn Committer>>,
    /// Handed over by writers, not confirmed by the committer.
    uncommitted: Vec<CommitRequest>,
    last_begun: u64,
    admitted: u64,
    next_writer: usize,
}

struct Slot<T> {
    writer: Box<dyn SinkWriter<T>>,
    signal: Arc<Signal>,
    failed: bool,
}

impl<T> SinkHost<T> {
    /// Starts the sink afresh with `parallelism` writers. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the sink refuses to make a component.
    pub fn start(sink: Arc<dyn Sink<T>>, kit: &TestContext, parallelism: u32) -> Result<Self> {
        Self::create(sink, kit, None, parallelism)
    }

    /// Starts the sink from `checkpoint`, committing first what it holds. At the same parallelism each writer gets its
    /// own states back, at another one they are dealt out anew.
    ///
    /// # Errors
    ///
    /// If the sink refuses the state or to make a component, or what the committer fails with.
    pub async fn restore(
        sink: Arc<dyn Sink<T>>,
        kit: &TestContext,
        checkpoint: &SinkCheckpoint,
        parallelism: u32,
    ) -> Result<Self> {
        let mut host = Self::create(sink, kit, Some(checkpoint), parallelism)?;
        host.commit(checkpoint.id).await?;
        Ok(host)
    }

    fn create(
        sink: Arc<dyn Sink<T>>,
        kit: &TestContext,
        checkpoint: Option<&SinkCheckpoint>,
        parallelism: u32,
    ) -> Result<Self> {
        let waker = Arc::new(AtomicWaker::new());
        let mut shares = checkpoint
            .map_or_else(Vec::new, |checkpoint| {
                deal(&checkpoint.writers, parallelism)
            })
            .into_iter();
        let writers = (0..parallelism)
            .map(|index| {
                let context = kit.subtask(index, parallelism);
                let writer = sink.create_writer(context, shares.next().unwrap_or_default())?;
                Ok(Slot {
                    writer,
                    signal: Signal::new(&waker),
                    failed: false,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            committer: sink.create_committer(kit.coordinator(parallelism))?,
            uncommitted: checkpoint.map_or_else(Vec::new, |from| from.committables.clone()),
            // Identifiers grow over restarts too; those behind the restored one may have been used.
            last_begun: checkpoint.map_or(0, |checkpoint| checkpoint.id.0 + 10),
            admitted: 0,
            next_writer: 0,
            kit: kit.clone(),
            sink,
            waker,
            writers,
        })
    }

    /// How many writers there are.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        u32::try_from(self.writers.len()).expect("made from a u32")
    }

    /// Records admitted so far, over all writers of this host.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// What was handed over by writers and not confirmed by the committer.
    #[must_use]
    pub fn uncommitted(&self) -> &[CommitRequest] {
        &self.uncommitted
    }

    /// Polls `writer` once for room.
    pub async fn poll_ready(&mut self, writer: u32) -> Poll<Result<()>> {
        self.poll_once(writer, |writer, cx| writer.poll_ready(cx))
            .await
    }

    /// Polls `writer` once for progress.
    pub async fn poll_progress(&mut self, writer: u32) -> Poll<Result<()>> {
        self.poll_once(writer, |writer, cx| writer.poll_progress(cx))
            .await
    }

    /// Polls `writer` once for a flush. Poll it to its end before anything else.
    pub async fn poll_flush(&mut self, writer: u32, flush: Flush) -> Poll<Result<()>> {
        self.poll_once(writer, |writer, cx| writer.poll_flush(cx, flush))
            .await
    }

    /// Waits until `writer` has room.
    ///
    /// # Errors
    ///
    /// What a writer failed with.
    ///
    /// # Panics
    ///
    /// When nothing happens for the context's limit; so for every wait below.
    pub async fn ready(&mut self, writer: u32) -> Result<()> {
        self.drive(writer, "room", |writer, cx| writer.poll_ready(cx))
            .await
    }

    /// Writes one record. Only after [`ready`](Self::ready).
    ///
    /// # Errors
    ///
    /// What the writer failed with.
    pub fn write(&mut self, writer: u32, record: T, info: RecordInfo) -> Result<()> {
        let slot = &mut self.writers[writer as usize];
        let written = slot.writer.write(record, info);
        slot.failed |= written.is_err();
        slot.signal.set();
        self.admitted += u64::from(written.is_ok());
        written
    }

    /// Writes `records`, dealing them out to the writers in turn, each as soon as its writer has room.
    ///
    /// # Errors
    ///
    /// What a writer failed with.
    pub async fn write_all(&mut self, records: impl IntoIterator<Item = T>) -> Result<()> {
        for record in records {
            let writer =
                u32::try_from(self.next_writer % self.writers.len()).expect("made from a u32");
            self.next_writer += 1;
            self.ready(writer).await?;
            self.write(writer, record, RecordInfo::default())?;
        }
        Ok(())
    }

    /// Lets every writer work until none has anything to do for a moment. An answer that is under way may still come.
    ///
    /// # Errors
    ///
    /// What a writer failed with.
    pub async fn settle(&mut self) -> Result<()> {
        let quiet = async {
            poll_fn(|cx| match self.poll_woken(cx, None) {
                Some(error) => Poll::Ready(error),
                None => Poll::Pending,
            })
            .await
        };
        match tokio::time::timeout(SETTLE, quiet).await {
            Ok(error) => Err(error),
            Err(_) => Ok(()),
        }
    }

    /// Flushes every writer.
    ///
    /// # Errors
    ///
    /// What a writer failed with.
    pub async fn flush(&mut self, flush: Flush) -> Result<()> {
        for writer in 0..self.parallelism() {
            let what = match flush {
                Flush::Checkpoint => "a flush at a barrier",
                Flush::EndOfInput => "the flush at the end of input",
            };
            self.drive(writer, what, |writer, cx| writer.poll_flush(cx, flush))
                .await?;
        }
        Ok(())
    }

    /// Takes a checkpoint and completes it.
    ///
    /// # Errors
    ///
    /// What a writer or the committer failed with.
    pub async fn checkpoint(&mut self) -> Result<SinkCheckpoint> {
        let checkpoint = self.barrier().await?;
        self.complete(&checkpoint).await?;
        Ok(checkpoint)
    }

    /// Takes a checkpoint (flush, `prepare_commit`, `snapshot` of each writer) and leaves it open: to be completed,
    /// aborted, subsumed, or restored from as if its completion had not been heard of.
    ///
    /// # Errors
    ///
    /// What a writer failed with.
    ///
    /// # Panics
    ///
    /// If a sink without a committer hands over committables.
    pub async fn barrier(&mut self) -> Result<SinkCheckpoint> {
        self.take(Flush::Checkpoint).await
    }

    async fn take(&mut self, flush: Flush) -> Result<SinkCheckpoint> {
        self.last_begun += 1;
        let id = CheckpointId(self.last_begun);
        self.flush(flush).await?;
        let mut writers = Vec::new();
        for slot in &mut self.writers {
            let committables = slot.writer.prepare_commit(id)?;
            let (staged, connector) = (self.committer.is_some(), self.sink.connector());
            assert!(
                staged || committables.is_empty(),
                "breach: sink `{connector}` hands over committables and has no committer"
            );
            self.uncommitted
                .extend(committables.into_iter().map(|committable| CommitRequest {
                    committable,
                    checkpoint: id,
                    attempt: 0,
                }));
            writers.push(slot.writer.snapshot(id)?);
            slot.signal.set();
        }
        Ok(SinkCheckpoint {
            id,
            writers,
            committables: self.uncommitted.clone(),
            admitted: self.admitted,
        })
    }

    /// Completes `checkpoint` and with it every earlier one: tells the writers, commits what they handed over.
    ///
    /// # Errors
    ///
    /// What a writer or the committer failed with. The checkpoint stays complete.
    pub async fn complete(&mut self, checkpoint: &SinkCheckpoint) -> Result<()> {
        for slot in &mut self.writers {
            slot.writer.checkpoint_completed(checkpoint.id)?;
            slot.signal.set();
        }
        self.commit(checkpoint.id).await
    }

    /// Commits what belongs to checkpoints up to `id`, without telling the writers: notifications may be lost.
    ///
    /// # Errors
    ///
    /// What the committer failed with, or the error of a refused committable.
    ///
    /// # Panics
    ///
    /// If the committer breaks the contract, see the module.
    pub async fn commit(&mut self, id: CheckpointId) -> Result<()> {
        let Some(committer) = &mut self.committer else {
            return Ok(());
        };
        loop {
            let due: Vec<CommitRequest> = self
                .uncommitted
                .iter()
                .filter(|request| request.checkpoint <= id)
                .cloned()
                .collect();
            if due.is_empty() {
                return Ok(());
            }
            committer.start_commit(due.clone())?;
            let answered = poll_fn(|cx| committer.poll_commit(cx));
            let outcomes = wait_for(&self.kit, "the committer's answers", answered).await?;
            assert_eq!(
                outcomes.len(),
                due.len(),
                "breach: answers of the committer"
            );
            self.uncommitted.retain(|request| request.checkpoint > id);
            for (mut request, outcome) in due.into_iter().zip(outcomes) {
                match outcome {
                    CommitOutcome::Done | CommitOutcome::AlreadyDone => {}
                    CommitOutcome::TryAgain => {
                        request.attempt += 1;
                        assert!(
                            request.attempt < MOST_ATTEMPTS,
                            "breach: the committer wants another try after {MOST_ATTEMPTS}"
                        );
                        self.uncommitted.push(request);
                    }
                    CommitOutcome::Refused(error) => return Err(error),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Aborts `checkpoint`. What it handed over stays with the host and belongs to the next one, as it does in Flink.
    pub fn abort(&mut self, checkpoint: CheckpointId) {
        for slot in &mut self.writers {
            slot.writer.checkpoint_aborted(checkpoint);
            slot.signal.set();
        }
    }

    /// The input has ended: the last flush, a last checkpoint, its commit, and a close.
    ///
    /// # Errors
    ///
    /// What a component failed with; everything was closed nevertheless.
    pub async fn finish(mut self) -> Result<()> {
        let ended = match self.take(Flush::EndOfInput).await {
            Ok(checkpoint) => self.complete(&checkpoint).await,
            Err(error) => Err(error),
        };
        let closed = self.close().await;
        first_error(ended.err().into_iter().chain(closed.err()).collect())
    }

    /// Closes everything, whatever fails, and waits until no I/O task is left.
    ///
    /// # Errors
    ///
    /// The first failure to close, the others attached.
    ///
    /// # Panics
    ///
    /// If a component does not close, or leaves a task, within the context's limit.
    pub async fn close(mut self) -> Result<()> {
        let mut errors = Vec::new();
        for (index, slot) in self.writers.iter_mut().enumerate() {
            let what = format!("writer {index} to close");
            let closed = poll_fn(|cx| slot.writer.poll_close(cx));
            errors.extend(wait_for(&self.kit, &what, closed).await.err());
        }
        if let Some(committer) = &mut self.committer {
            let closed = poll_fn(|cx| committer.poll_close(cx));
            errors.extend(
                wait_for(&self.kit, "the committer to close", closed)
                    .await
                    .err(),
            );
        }
        let kit = self.kit.clone();
        drop(self);
        kit.spawner().assert_idle(kit.limit()).await;
        first_error(errors)
    }

    /// Drops everything where it stands, as a killed process would.
    pub fn kill(self) {
        drop(self);
    }

    async fn poll_once(
        &mut self,
        writer: u32,
        mut poll: impl FnMut(&mut dyn SinkWriter<T>, &mut PollContext<'_>) -> Poll<Result<()>>,
    ) -> Poll<Result<()>> {
        // I/O tasks run now, on the same thread.
        tokio::task::yield_now().await;
        let slot = &mut self.writers[writer as usize];
        poll_fn(|_| Poll::Ready(slot.poll(&mut poll))).await
    }

    /// Polls one writer with `poll` until it is ready, the others for progress, each when woken.
    async fn drive(
        &mut self,
        writer: u32,
        what: &'static str,
        mut poll: impl FnMut(&mut dyn SinkWriter<T>, &mut PollContext<'_>) -> Poll<Result<()>>,
    ) -> Result<()> {
        let at = writer as usize;
        // A call of another kind is polled at once, woken or not.
        self.writers[at].signal.set();
        let (kit, since) = (self.kit.clone(), Instant::now());
        loop {
            assert!(
                since.elapsed() < kit.limit(),
                "hang: writer {writer} of sink `{}` is busy without giving {what} ({} admitted)",
                self.sink.connector(),
                self.admitted
            );
            let slot = &mut self.writers[at];
            if slot.signal.is_set()
                && let Poll::Ready(done) = slot.poll(&mut poll)
            {
                slot.signal.set();
                return done;
            }
            let others = poll_fn(|cx| Poll::Ready(self.poll_woken(cx, Some(at)))).await;
            if let Some(error) = others {
                return Err(error);
            }
            let signals: Vec<&Arc<Signal>> = self
                .writers
                .iter()
                .filter(|slot| !slot.failed)
                .map(|slot| &slot.signal)
                .collect();
            let connector = self.sink.connector();
            wait_for_any(&kit, &self.waker, &signals, || {
                format!(
                    "a wake-up of writer {writer} of sink `{connector}`, asked for {what} ({} admitted)",
                    self.admitted
                )
            })
            .await;
            // A writer that wakes itself must not keep the I/O tasks from running.
            tokio::task::yield_now().await;
        }
    }

    /// Polls for progress what was woken, except the writer at `except`. The first failure.
    fn poll_woken(&mut self, cx: &mut PollContext<'_>, except: Option<usize>) -> Option<Error> {
        self.waker.register(cx.waker());
        for (at, slot) in self.writers.iter_mut().enumerate() {
            if Some(at) == except || slot.failed || !slot.signal.is_set() {
                continue;
            }
            match slot.poll(&mut |writer, cx| writer.poll_progress(cx)) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    panic!("breach: the progress of writer {at} ended, it stays pending while well")
                }
                Poll::Ready(Err(error)) => return Some(error),
            }
        }
        None
    }
}

impl<T> Slot<T> {
    fn poll(
        &mut self,
        poll: &mut impl FnMut(&mut dyn SinkWriter<T>, &mut PollContext<'_>) -> Poll<Result<()>>,
    ) -> Poll<Result<()>> {
        self.signal.take();
        let waker = self.signal.waker();
        let polled = poll(&mut *self.writer, &mut PollContext::from_waker(&waker));
        self.failed |= matches!(polled, Poll::Ready(Err(_)));
        polled
    }
}

impl<T> fmt::Debug for SinkHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkHost")
            .field("connector", &self.sink.connector())
            .field("writers", &self.writers.len())
            .field("admitted", &self.admitted)
            .field("uncommitted", &self.uncommitted.len())
            .finish_non_exhaustive()
    }
}

/// The restored states of each of `parallelism` writers.
fn deal(writers: &[Vec<Versioned>], parallelism: u32) -> Vec<Vec<Versioned>> {
    if writers.len() == parallelism as usize {
        return writers.to_vec();
    }
    let mut shares = vec![Vec::new(); parallelism as usize];
    for (at, state) in writers.iter().flatten().enumerate() {
        shares[at % parallelism as usize].push(state.clone());
    }
    shares
}
