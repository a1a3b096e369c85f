//! The pure parts: what a dead letter says. The rest meets the simulated service in `tests/it`.

use std::cell::RefCell;
use std::task::Waker;

use aqueduct_connector::clock::ManualClock;
use aqueduct_testkit::TestContext;
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::client::publish::Attempt;
use crate::client::topic_admin::TopicAdmin;

type Answer = oneshot::Sender<Result<(), StatusChain>>;

/// A service whose answers a test gives.
#[derive(Clone, Default)]
struct Scripted(Rc<RefCell<Vec<Answer>>>);

impl PublishClient for Scripted {
    fn publish(&self, _: PublishCall) -> Attempt {
        let (answer, answered) = oneshot::channel();
        self.0.borrow_mut().push(answer);
        Box::pin(async move { answered.await.expect("the test answers") })
    }
}

impl Dial for Scripted {
    fn client(&self) -> Result<Rc<dyn PublishClient>> {
        Ok(Rc::new(self.clone()))
    }

    fn admin(&self) -> Result<Rc<dyn TopicAdmin>> {
        unreachable!("its topic is never created")
    }
}

#[derive(Debug)]
struct Element;

impl FailedElement for Element {
    fn connector(&self) -> &'static str {
        "spanner"
    }
    fn destination(&self) -> String {
        "unresolved".to_owned()
    }
    fn payload(&self) -> Option<Bytes> {
        None
    }
    fn message(&self) -> String {
        "no good".to_owned()
    }
    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        None
    }
}

/// A result that is there counts although the deadline has passed; without it, the wait is over.
#[test]
fn a_result_that_is_there_counts_when_the_deadline_has_passed() {
    for answered in [true, false] {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let kit = TestContext::new("sink").with_clock(Arc::new(clock.clone()));
        let queue = PubSubDeadLetterQueue::builder()
            .topic(TopicDestination::new("p", "t").expect("valid"))
            .build()
            .expect("valid");
        let service = Scripted::default();
        let mut live = Live::new(queue.0.clone(), &kit.subtask(0, 1), &service).expect("opens");
        let mut cx = PollContext::from_waker(Waker::noop());
        live.offer(&Element).expect("taken");
        assert!(live.poll_flush(&mut cx).is_pending());
        if answered {
            let answer = service.0.borrow_mut().pop().expect("sent");
            answer.send(Ok(())).expect("awaited");
        }
        clock.advance(Duration::from_secs(61));
        match live.poll_flush(&mut cx) {
            Poll::Ready(Ok(())) => assert!(answered),
            Poll::Ready(Err(error)) => {
                assert!(!answered && error.to_string().contains("1 of 1"), "{error}");
            }
            Poll::Pending => panic!("the deadline has passed"),
        }
    }
}

#[test]
fn an_error_is_cut_between_characters_and_marked() {
    let exact = "x".repeat(1_024);
    assert_eq!(cut(&exact, MAX_ATTRIBUTE), exact);
    // 515 characters of two bytes: 1,030 bytes.
    let long = "\u{e9}".repeat(515);
    let told = cut(&long, MAX_ATTRIBUTE);
    assert!(told.len() <= 1_024 && told.ends_with("..."));
    assert_eq!(told.len(), 1_020 + 3);
}

proptest! {
    #[test]
    fn what_is_cut_is_a_marked_beginning_within_the_limit(text in "\\PC{0,60}", most in 3_usize..80) {
        let told = cut(&text, most);
        prop_assert!(told.len() <= most || told == text && text.len() <= most);
        if text.len() > most {
            prop_assert!(text.starts_with(told.strip_suffix("...").expect("marked")));
            prop_assert!(told.len() + 4 > most, "no more is cut than one character needs");
        } else {
            prop_assert_eq!(told, text);
        }
    }
}

#[test]
fn times_read_as_the_calendar_has_them() {
    for (millis, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (1_709_164_800_123, "2024-02-29T00:00:00.123Z"),
        (1_787_306_399_999, "2026-08-21T09:59:59.999Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(iso_8601(Timestamp::from_millis(millis)), text);
    }
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let topic = || TopicDestination::new("p", "t").expect("valid");
    let good = || PubSubDeadLetterQueue::builder().topic(topic());
    assert!(good().build().is_ok());
    for (bad, name) in [
        (PubSubDeadLetterQueue::builder(), "topic"),
        (good().flush_timeout(Duration::ZERO), "flush_timeout"),
        (good().shutdown_timeout(Duration::MAX), "shutdown_timeout"),
        (
            good().service_account_key_file(" "),
            "service-account-key-file",
        ),
        (good().emulator_endpoint("localhost"), "emulator-endpoint"),
        (
            good()
                .service_account_key_file("/key")
                .emulator_endpoint("localhost:1"),
            "emulator-endpoint",
        ),
    ] {
        let error = bad.build().expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}
