//! The driver on a scripted wire: what needs clients that close slowly, or an exact view of who is open.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context as PollContext, Waker};

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::failure::fail_job;
use aqueduct_connector::{Code, Status, StatusChain, Timestamp};
use aqueduct_testkit::TestContext;
use futures::channel::oneshot;
use prost::Message;

use super::*;
use crate::client::answers::Answers;
use crate::client::mutate::{CallFailure, DataClient, MutateCall};

/// What the scripted wire has seen.
#[derive(Default)]
struct Wire {
    open: Cell<usize>,
    most_open: Cell<usize>,
    /// Requests under way, per instance.
    pending: RefCell<Vec<(String, usize, oneshot::Sender<AttemptEnd>)>>,
    closes: RefCell<Vec<(String, oneshot::Sender<()>)>>,
    closed_with_pending: Cell<bool>,
}

impl Wire {
    /// Answers everything that is under way with OK.
    fn answer_all(&self) -> usize {
        let pending = self.pending.take();
        let count = pending.len();
        for (_, entries, answer) in pending {
            let _ = answer.send(AttemptEnd {
                answers: applied(entries),
                result: Ok(()),
            });
        }
        count
    }

    /// Breaks the way under everything that is under way, after so many entries of each request were applied.
    fn break_all(&self, told: usize) -> usize {
        let pending = self.pending.take();
        let count = pending.len();
        for (_, entries, answer) in pending {
            let _ = answer.send(AttemptEnd {
                answers: applied_of(told, entries),
                result: Err(CallFailure {
                    answered: false,
                    chain: StatusChain::new(Status::new(Code::Unavailable, "the way broke")),
                    retry_delay: None,
                    cookies: aqueduct_cloud::Cookies::default(),
                }),
            });
        }
        count
    }

    fn finish_close(&self) {
        let (_, done) = self.closes.borrow_mut().remove(0);
        let _ = done.send(());
    }
}

fn applied(entries: usize) -> Answers {
    applied_of(entries, entries)
}

/// The first `told` of `entries` are applied.
fn applied_of(told: usize, entries: usize) -> Answers {
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
    let told = (0..told).map(|at| v2::mutate_rows_response::Entry {
        index: at as i64,
        status: None,
    });
    let message = v2::MutateRowsResponse {
        entries: told.collect(),
        rate_limit_info: None,
    };
    let mut answers = Answers::new(entries);
    answers.read(&message.encode_to_vec()).expect("well-formed");
    answers
}

#[derive(Clone)]
struct FakeDial(Rc<Wire>);

struct FakeClient {
    wire: Rc<Wire>,
    instance: String,
}

impl Dial for FakeDial {
    fn open(&self, table: &TableDestination) -> Result<Rc<dyn DataClient>> {
        let wire = &self.0;
        wire.open.set(wire.open.get() + 1);
        wire.most_open
            .set(wire.most_open.get().max(wire.open.get()));
        Ok(Rc::new(FakeClient {
            wire: wire.clone(),
            instance: table.instance().to_owned(),
        }))
    }

    fn admin(&self) -> Result<Rc<dyn AdminClient>> {
        Err(Error::bug("nothing is missing here"))
    }
}

impl DataClient for FakeClient {
    fn mutate_rows(&self, call: MutateCall) -> LocalBoxFuture<'static, AttemptEnd> {
        let (answer, answered) = oneshot::channel();
        self.wire
            .pending
            .borrow_mut()
            .push((self.instance.clone(), call.entries, answer));
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| AttemptEnd {
                answers: Answers::new(call.entries),
                result: Err(CallFailure {
                    answered: true,
                    chain: StatusChain::new(Status::new(Code::Cancelled, "")),
                    retry_delay: None,
                    cookies: aqueduct_cloud::Cookies::default(),
                }),
            })
        })
    }

    fn close(&self) -> Option<LocalBoxFuture<'static, ()>> {
        let wire = self.wire.clone();
        if wire
            .pending
            .borrow()
            .iter()
            .any(|(instance, _, _)| *instance == self.instance)
        {
            wire.closed_with_pending.set(true);
        }
        let (done, closed) = oneshot::channel();
        wire.closes.borrow_mut().push((self.instance.clone(), done));
        Some(Box::pin(async move {
            let _ = closed.await;
            wire.open.set(wire.open.get() - 1);
        }))
    }
}

fn table(instance: &str, table: &str) -> TableDestination {
    TableDestination::of("p", instance, table).expect("valid")
}

fn entry(key: &str) -> RowMutationEntry {
    let mut entry = RowMutationEntry::stamped(Timestamp::from_millis(0));
    entry.row_key(key).set_cell("cf", "q", 0, "v");
    entry
}

struct Fixture {
    drive: Drive,
    wire: Rc<Wire>,
    clock: ManualClock,
    kit: TestContext,
}

fn fixture(options: WriterOptions) -> Fixture {
    let clock = ManualClock::new(Timestamp::from_millis(0));
    let kit = TestContext::new("sink").with_clock(Arc::new(clock.clone()));
    let wire = Rc::new(Wire::default());
    let drive = Drive::new(Parts {
        context: kit.subtask(0, 1),
        options,
        app_profile: None,
        per_row: false,
        create: None,
        dial: Box::new(FakeDial(wire.clone())),
        handler: Box::new(fail_job()),
    })
    .expect("valid");
    Fixture {
        drive,
        wire,
        clock,
        kit,
    }
}

impl Fixture {
    fn has_room(&mut self) -> bool {
        let polled = self
            .drive
            .poll_room(&mut PollContext::from_waker(Waker::noop()));
        matches!(polled, Poll::Ready(Ok(())))
    }

    fn write(&mut self, instance: &str, name: &str) {
        assert!(self.has_room());
        self.drive
            .admit(&table(instance, name), &entry("k"))
            .expect("well");
    }

    fn flushed(&mut self) -> bool {
        let polled = self.drive.poll_flush(
            &mut PollContext::from_waker(Waker::noop()),
            Flush::Checkpoint,
        );
        matches!(polled, Poll::Ready(Ok(())))
    }

    fn flush(&mut self) {
        for _ in 0..10 {
            if self.flushed() {
                return;
            }
            self.wire.answer_all();
        }
        panic!("the flush does not end");
    }
}

#[tokio::test]
async fn a_third_instance_waits_for_the_drain_and_for_a_client_that_closes_slowly() {
    let mut f = fixture(WriterOptions::new().max_active_instances(2));
    f.write("one", "t");
    f.write("two", "t");
    f.write("one", "u");
    f.write("three", "t");
    assert!(!f.has_room(), "no slot");
    assert!(
        f.wire.closes.borrow().is_empty(),
        "not before everything is answered"
    );
    assert_eq!(f.wire.answer_all(), 3, "everything outstanding was sent");
    assert!(!f.has_room(), "the slot is still closing");
    let closing: Vec<_> = f
        .wire
        .closes
        .borrow()
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(closing, ["two"], "its tables were longest without a record");
    assert!(!f.wire.closed_with_pending.get());
    f.wire.finish_close();
    assert!(f.has_room());
    assert_eq!(f.wire.most_open.get(), 2, "never a third client");
    // The given-up instance comes back.
    f.write("two", "t");
    assert!(!f.has_room());
    f.wire.answer_all();
    assert!(!f.has_room());
    f.wire.finish_close();
    f.flush();
    assert_eq!(f.wire.most_open.get(), 2);
    assert_eq!(f.kit.registry().total("capacityEvictions"), 2);
    assert_eq!(f.kit.registry().total("numRecordsSend"), 5);
}

#[tokio::test]
async fn a_flush_includes_the_record_that_waits_for_a_slot() {
    let mut f = fixture(WriterOptions::new().max_active_instances(1));
    f.write("one", "t");
    f.write("two", "t");
    assert!(!f.flushed());
    assert_eq!(f.wire.answer_all(), 1);
    assert!(!f.flushed());
    f.wire.finish_close();
    assert!(!f.flushed(), "the held record is under way");
    assert_eq!(f.wire.answer_all(), 1);
    assert!(f.flushed());
}

#[tokio::test]
async fn an_idle_sweep_keeps_the_client_while_a_sibling_table_is_in_use() {
    let mut f = fixture(WriterOptions::new().destination_idle_timeout(Duration::from_secs(60)));
    f.write("one", "idle");
    f.write("one", "busy");
    f.flush();
    f.clock.advance(Duration::from_secs(45));
    f.write("one", "busy");
    f.flush();
    f.clock.advance(Duration::from_secs(45));
    f.flush();
    assert_eq!(f.drive.tables.table_count(), 1, "the idle one is gone");
    assert!(f.wire.closes.borrow().is_empty());
    f.clock.advance(Duration::from_secs(45));
    f.flush();
    assert_eq!(f.drive.tables.table_count(), 0);
    assert_eq!(f.wire.closes.borrow().len(), 1);
    assert_eq!(f.kit.registry().total("idleEvictions"), 1);
}

#[tokio::test]
async fn a_close_sends_nothing_cancels_what_is_open_and_waits_for_the_clients() {
    let mut f = fixture(WriterOptions::new().batch_element_count_threshold(2));
    for _ in 0..3 {
        f.write("one", "t");
    }
    let sent = f.wire.pending.borrow().len();
    assert_eq!(sent, 1, "the third still fills a batch");
    let mut cx = PollContext::from_waker(Waker::noop());
    assert!(f.drive.poll_close(&mut cx).is_pending());
    assert_eq!(f.wire.pending.borrow().len(), 1);
    assert!(
        f.wire.pending.borrow()[0].2.is_canceled(),
        "the open request is cancelled"
    );
    assert_eq!(f.kit.registry().total("inFlightEntries"), 0);
    f.wire.finish_close();
    poll_fn(|cx| f.drive.poll_close(cx)).await.expect("well");
    poll_fn(|cx| f.drive.poll_close(cx)).await.expect("again");
}

#[tokio::test]
async fn a_failure_that_no_call_returned_is_logged_by_the_close_and_nothing_is_sent() {
    let logs = aqueduct_testkit::log::capture();
    let mut f = fixture(WriterOptions::new());
    f.write("one", "t");
    f.drive.fail(Error::io("it broke late"));
    let _ = f
        .drive
        .poll_close(&mut PollContext::from_waker(Waker::noop()));
    assert!(f.wire.pending.borrow().is_empty());
    let line = logs.one_warning("a failure that no call returned");
    assert!(
        line.field("error")
            .is_some_and(|text| text.contains("it broke late"))
    );
}

const SILENCE: &str = "no answer from Bigtable";

#[tokio::test]
async fn a_warning_about_silence_names_what_the_way_failed_with_since_the_last_answer() {
    let logs = aqueduct_testkit::log::capture();
    let mut f = fixture(WriterOptions::new());
    f.write("one", "t");
    assert!(!f.flushed());
    assert_eq!(f.wire.break_all(0), 1);
    assert!(!f.flushed());
    f.clock.advance(Duration::from_secs(61));
    assert!(!f.flushed(), "sent again, and silent");
    let line = logs.one_warning(SILENCE);
    let failure = line.field("last_failure").expect("there was one");
    assert!(failure.contains("UNAVAILABLE"), "{failure}");
    // The service answers; then it is silent without a failure.
    f.flush();
    logs.clear();
    f.write("one", "t");
    assert!(!f.flushed());
    f.clock.advance(Duration::from_secs(61));
    assert!(!f.flushed());
    assert_eq!(logs.one_warning(SILENCE).field("last_failure"), None);
}

#[tokio::test]
async fn entries_that_were_answered_before_a_break_restart_the_minute_of_silence() {
    let logs = aqueduct_testkit::log::capture();
    let mut f = fixture(WriterOptions::new());
    f.write("one", "t");
    f.write("one", "t");
    assert!(!f.flushed());
    f.clock.advance(Duration::from_secs(50));
    assert!(!f.flushed());
    assert_eq!(f.wire.break_all(1), 1);
    assert!(!f.flushed());
    f.clock.advance(Duration::from_secs(50));
    assert!(!f.flushed());
    assert_eq!(logs.matching(tracing::Level::WARN, SILENCE).len(), 0);
    f.clock.advance(Duration::from_secs(11));
    assert!(!f.flushed());
    let line = logs.one_warning(SILENCE);
    assert_eq!(line.field("in_flight_entries"), Some("1"));
    assert!(line.field("last_failure").is_some());
    f.flush();
}
