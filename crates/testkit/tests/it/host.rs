//! The source host's treatment of events, with a reader that asks and an enumerator that answers.

use std::sync::{Arc, Mutex};
use std::task::{Context as PollContext, Poll};

use aqueduct_connector::source::{
    Boundedness, EnumeratorOutput, ReaderOutput, Source, SourceReader, Split, SplitEnumerator,
    SplitId,
};
use aqueduct_connector::{CheckpointId, Context, Result, Versioned};
use aqueduct_testkit::{SourceHost, TestContext};

const QUESTIONS: u32 = 8;

/// What readers were answered, in order.
type Answers = Arc<Mutex<Vec<u32>>>;

struct Asking(Answers);

struct Answering;

struct Asker {
    asked: u32,
    answers: Answers,
}

impl Source<()> for Asking {
    fn connector(&self) -> &'static str {
        "asking"
    }

    fn boundedness(&self) -> Boundedness {
        Boundedness::Unbounded
    }

    fn create_enumerator(
        &self,
        _: Context,
        _: Option<Versioned>,
    ) -> Result<Box<dyn SplitEnumerator>> {
        Ok(Box::new(Answering))
    }

    fn create_reader(&self, _: Context) -> Result<Box<dyn SourceReader<()>>> {
        Ok(Box::new(Asker {
            asked: 0,
            answers: Arc::clone(&self.0),
        }))
    }
}

impl SplitEnumerator for Answering {
    fn poll_progress(
        &mut self,
        _: &mut PollContext<'_>,
        _: &mut EnumeratorOutput,
    ) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn reader_registered(&mut self, _: u32, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn reader_lost(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn split_requested(&mut self, _: u32, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn splits_returned(&mut self, _: Vec<Split>, _: &mut EnumeratorOutput) -> Result<()> {
        Ok(())
    }

    fn reader_event(
        &mut self,
        reader: u32,
        event: Versioned,
        out: &mut EnumeratorOutput,
    ) -> Result<()> {
        out.event(reader, event);
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Versioned> {
        Ok(Versioned::new(1, Vec::new()))
    }

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl SourceReader<()> for Asker {
    fn add_splits(&mut self, _: Vec<Split>) -> Result<()> {
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        Ok(())
    }

    fn enumerator_event(&mut self, event: Versioned) -> Result<()> {
        self.answers
            .lock()
            .expect("no panic before")
            .push(event.version);
        Ok(())
    }

    fn poll_next(&mut self, _: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<()>>> {
        if self.asked == QUESTIONS {
            return Poll::Pending;
        }
        self.asked += 1;
        Poll::Ready(Ok(ReaderOutput::Event(Versioned::new(
            self.asked,
            Vec::new(),
        ))))
    }

    fn emitted(&mut self, _: usize) {}

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        Ok(Vec::new())
    }

    fn pause_splits(&mut self, _: &[SplitId], _: &[SplitId]) {}

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn step_until_quiet(host: &mut SourceHost<()>) {
    while host.try_step().await.expect("a step").is_some() {}
}

#[tokio::test]
async fn events_keep_their_order_and_wait_for_the_readers_snapshot() {
    for seed in aqueduct_testkit::seeds(0..20) {
        let answers = Answers::default();
        let kit = TestContext::new("asking").with_seed(seed);
        let source = Arc::new(Asking(Arc::clone(&answers)));
        let mut host = SourceHost::start(source, &kit, 1).expect("a source");
        for _ in 0..10 {
            host.try_step().await.expect("a step");
        }
        host.begin_checkpoint().expect("a snapshot");
        let arrived = answers.lock().expect("no panic before").len();
        step_until_quiet(&mut host).await;
        let before = answers.lock().expect("no panic before").clone();
        // What was on its way before the enumerator's snapshot may have arrived; nothing newer.
        assert!(
            before.len() < QUESTIONS as usize,
            "no answer waited ({arrived} had arrived)"
        );
        host.snapshot_reader(0).expect("a snapshot");
        host.end_barrier();
        step_until_quiet(&mut host).await;
        let all: Vec<u32> = (1..=QUESTIONS).collect();
        assert_eq!(*answers.lock().expect("no panic before"), all);
        host.close().await.expect("a close");
    }
}
