//! The dead-letter queue, on its own and behind the sinks of two connectors.

use std::error::Error as StdError;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};
use std::time::Duration;

use aqueduct_bigtable::{BigtableSink, RowMutationEntry, TableDestination};
use aqueduct_connector::Result;
use aqueduct_connector::failure::{DeadLetterQueue, FailedElement};
use aqueduct_connector::sink::{RecordInfo, Sink};
use aqueduct_pubsub::{
    DeadLetterBound, DeadLetterPublisher, PubSubDeadLetterQueue, PubSubDeadLetterQueueBuilder,
};
use aqueduct_sim::{Code, Gate, Method, Topic};
use aqueduct_testkit::SinkHost;
use aqueduct_testkit::log::capture;
use bytes::Bytes;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;

use super::sink_world::{How, LIMIT, Record, World, destination, patient, records};

fn queue(world: &World) -> PubSubDeadLetterQueueBuilder {
    PubSubDeadLetterQueue::builder()
        .topic(destination("rejected"))
        .emulator_endpoint(world.sim.endpoint())
}

fn rejected(world: &World) -> Topic {
    world.sim.pubsub().create_topic("p", "rejected")
}

#[derive(Debug)]
struct Element {
    payload: Option<Bytes>,
    message: String,
}

impl Element {
    fn new(payload: &'static str) -> Self {
        Self {
            payload: Some(Bytes::from_static(payload.as_bytes())),
            message: "no good".to_owned(),
        }
    }
}

impl FailedElement for Element {
    fn connector(&self) -> &'static str {
        "spanner"
    }
    fn destination(&self) -> String {
        "unresolved".to_owned()
    }
    fn payload(&self) -> Option<Bytes> {
        self.payload.clone()
    }
    fn message(&self) -> String {
        self.message.clone()
    }
    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        None
    }
}

/// A queue that a test polls by hand.
struct Hand(DeadLetterPublisher);

impl Hand {
    fn open(world: &World, builder: PubSubDeadLetterQueueBuilder) -> Self {
        let mut publisher = builder.build().expect("valid").publisher();
        publisher.open(&world.kit.subtask(3, 4)).expect("opens");
        Self(publisher)
    }

    fn offer(&mut self, element: &Element) {
        self.0.offer(element).expect("taken");
    }

    fn poll_ready(&mut self) -> Poll<Result<()>> {
        self.0
            .poll_ready(&mut PollContext::from_waker(Waker::noop()))
    }

    fn poll_flush(&mut self) -> Poll<Result<()>> {
        self.0
            .poll_flush(&mut PollContext::from_waker(Waker::noop()))
    }

    async fn flush(&mut self) -> Result<()> {
        tokio::time::timeout(LIMIT, std::future::poll_fn(|cx| self.0.poll_flush(cx)))
            .await
            .expect("in time")
    }

    async fn close(&mut self) {
        tokio::time::timeout(LIMIT, std::future::poll_fn(|cx| self.0.poll_close(cx)))
            .await
            .expect("in time")
            .expect("well");
    }

    /// Lets the runtime work, polling now and then, until `done`.
    async fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2_000 {
            if done(self) {
                return;
            }
            tokio::time::timeout(Duration::from_millis(5), std::future::pending::<()>())
                .await
                .expect_err("never ready");
        }
        panic!("never happened");
    }
}

#[tokio::test]
async fn a_rejected_message_becomes_a_dead_letter_that_says_what_it_was() {
    let world = World::new().await;
    let rejected = rejected(&world);
    let queue = queue(&world).build().expect("valid");
    let mut host = world.host(|builder| {
        builder
            .publisher_options(patient())
            .failed_message_handler(queue.handler())
    });
    let written = [
        Record::new("good"),
        Record::new("bad").how(How::Invalid),
        Record::new("worse").how(How::Refused),
    ];
    host.write_all(written).await.expect("well");
    host.checkpoint().await.expect("well");
    let letters = rejected.messages();
    assert_eq!(letters.len(), 2, "a checkpoint means they are stored");
    for letter in &letters {
        let attribute = |name: &str| letter.attributes[name].as_str();
        assert_eq!(attribute("dlq-connector"), "pubsub");
        assert_eq!(attribute("dlq-destination"), "projects/p/topics/t");
        assert_eq!(attribute("dlq-subtask"), "0");
        assert!(attribute("dlq-timestamp").ends_with('Z'));
        assert!(letter.ordering_key.is_empty());
        if letter.data.is_empty() {
            assert!(attribute("dlq-error").contains("serializer"));
        } else {
            assert!(attribute("dlq-error").contains("INVALID_ARGUMENT"));
            let inner = PubsubMessage::decode(letter.data.clone()).expect("the whole message");
            assert_eq!(inner.data.as_ref(), b"bad");
            assert_eq!(inner.attributes.len(), 1);
        }
    }
    assert_eq!(world.metric("deadLettersPublished"), 2);
    assert_eq!(world.metric("inFlightDeadLetters"), 0);
    assert_eq!(world.metric("numRecordsSendErrors"), 2);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn it_serves_the_sink_of_another_connector() {
    let world = World::new().await;
    let rejected = rejected(&world);
    let table = world.sim.bigtable().create_table("p", "i", "t", &["cf"]);
    let queue = queue(&world).build().expect("valid");
    let sink: Arc<dyn Sink<u32>> = Arc::new(
        BigtableSink::builder()
            .table(TableDestination::of("p", "i", "t").expect("valid"))
            .serializer(
                |number: &u32, _: RecordInfo, entry: &mut RowMutationEntry| {
                    // Cells are stamped in whole milliseconds; the service refuses any other.
                    let micros = if number.is_multiple_of(3) { 1 } else { 1_000 };
                    entry
                        .row_key(format!("row{number}"))
                        .set_cell("cf", "q", micros, "v");
                    Ok::<_, std::convert::Infallible>(aqueduct_bigtable::Disposition::Write)
                },
            )
            .emulator_endpoint(world.sim.endpoint())
            .failed_mutation_handler(queue.handler())
            .build()
            .expect("valid"),
    );
    let mut host = SinkHost::start(sink, &world.kit, 1).expect("a writer");
    host.write_all(0..9).await.expect("well");
    host.checkpoint().await.expect("well");
    assert_eq!(table.rows().len(), 6);
    let letters = rejected.messages();
    assert_eq!(letters.len(), 3);
    for letter in letters {
        assert_eq!(letter.attributes["dlq-connector"], "bigtable");
        assert!(!letter.data.is_empty(), "the serialized entry");
    }
    assert_eq!(world.metric("deadLettersPublished"), 3);
    host.finish().await.expect("well");
}

#[tokio::test]
async fn a_missing_topic_fails_the_job_and_is_not_created() {
    let world = World::new().await;
    let queue = queue(&world).build().expect("valid");
    let mut host = world.host(|builder| builder.failed_message_handler(queue.handler()));
    let refused = records(1)
        .into_iter()
        .map(|record| record.how(How::Refused));
    host.write_all(refused).await.expect("offered");
    let error = host.checkpoint().await.expect_err("nowhere to go");
    assert!(
        error.to_string().contains("projects/p/topics/rejected"),
        "{error}"
    );
    assert!(error.to_string().contains("never created"), "{error}");
    assert_eq!(world.sim.pubsub().request_count(Method::CreateTopic), 0);
    host.close().await.expect("well");
}

#[tokio::test]
async fn one_that_is_too_large_once_its_attributes_are_added_fails_the_job() {
    let world = World::new().await;
    let rejected = rejected(&world);
    rejected.poison(|message| message.data.len() > 100);
    let mut hand = Hand::open(&world, queue(&world));
    let large = Element {
        payload: Some(vec![7; 200].into()),
        message: "no good".to_owned(),
    };
    hand.offer(&large);
    let error = hand.flush().await.expect_err("refused");
    assert!(error.to_string().contains("too large"), "{error}");
    hand.close().await;
}

#[tokio::test]
async fn an_error_text_fits_its_attribute_and_no_payload_is_no_data() {
    let world = World::new().await;
    let rejected = rejected(&world);
    let mut hand = Hand::open(&world, queue(&world));
    hand.offer(&Element {
        payload: None,
        message: "\u{e9}".repeat(515),
    });
    hand.flush().await.expect("published");
    let letter = rejected.messages().remove(0);
    assert!(letter.data.is_empty());
    let error = &letter.attributes["dlq-error"];
    assert!(error.len() <= 1_024 && error.ends_with("..."));
    assert_eq!(letter.attributes["dlq-subtask"], "3");
    assert_eq!(letter.attributes["dlq-connector"], "spanner");
    hand.close().await;
}

#[tokio::test]
async fn at_its_bound_an_offer_waits_and_one_by_one_means_one() {
    for (bound, fits) in [
        (
            DeadLetterBound::AtMost(NonZeroU32::new(3).expect("three")),
            3,
        ),
        (DeadLetterBound::OneByOne, 1),
        (DeadLetterBound::UntilFlush, 100),
    ] {
        let world = World::new().await;
        let rejected = rejected(&world);
        let gate = Gate::new();
        let fault = rejected.always(Method::Publish).hold(&gate);
        let mut hand = Hand::open(&world, queue(&world).max_in_flight_messages(bound));
        let mut offered = 0;
        while offered < 100 && hand.poll_ready().is_ready() {
            hand.offer(&Element::new("x"));
            offered += 1;
        }
        assert_eq!(offered, fits, "{bound:?}");
        assert_eq!(world.metric("inFlightDeadLetters"), fits);
        fault.remove();
        gate.open();
        hand.flush().await.expect("well");
        assert_eq!(rejected.published(), u64::try_from(fits).expect("small"));
        hand.close().await;
    }
}

#[tokio::test]
async fn one_deadline_holds_for_all_publishes_of_a_wait() {
    let world = World::on_manual_clock().await;
    let rejected = rejected(&world);
    let gates: Vec<_> = (0..3).map(|_| Gate::new()).collect();
    for (n, gate) in (1..).zip(&gates) {
        rejected.nth(n, Method::Publish).hold(gate);
    }
    let builder = queue(&world)
        .max_in_flight_messages(DeadLetterBound::AtMost(NonZeroU32::MAX))
        .flush_timeout(Duration::from_secs(3));
    let mut hand = Hand::open(&world, builder);
    // Each in a request of its own: what is batched leaves with the next look.
    for gate in &gates {
        hand.offer(&Element::new("x"));
        world.advance(Duration::from_millis(10));
        assert!(hand.poll_ready().is_ready());
        hand.until(|hand| {
            assert!(hand.poll_ready().is_ready());
            gate.held() == 1
        })
        .await;
    }
    assert!(hand.poll_flush().is_pending());
    for gate in &gates[..2] {
        let before = world.metric("deadLettersPublished");
        gate.open();
        world.advance(Duration::from_millis(1_400));
        hand.until(|hand| {
            assert!(hand.poll_flush().is_pending(), "within the deadline");
            world.metric("deadLettersPublished") > before
        })
        .await;
    }
    world.advance(Duration::from_millis(300));
    let Poll::Ready(Err(error)) = hand.poll_flush() else {
        panic!("the deadline is for the wait, not for each publish");
    };
    assert!(error.to_string().contains("1 of 3 dead letters"), "{error}");
    assert!(world.metric("deadLetterFlushMillis") >= 3_000);
    assert_eq!(
        world.metric("longestDeadLetterFlushMillis"),
        world.metric("deadLetterFlushMillis")
    );
    gates[2].open();
    hand.close().await;
}

#[tokio::test]
async fn an_outage_is_retried_and_a_close_abandons_what_hangs() {
    let log = capture();
    let world = World::new().await;
    let rejected = rejected(&world);
    rejected.next(2, Method::Publish).status(Code::Unavailable);
    let builder = queue(&world).shutdown_timeout(Duration::from_millis(50));
    let mut hand = Hand::open(&world, builder);
    hand.offer(&Element::new("x"));
    hand.flush().await.expect("retried");
    assert_eq!(rejected.published(), 1);
    let gate = Gate::new();
    let _fault = rejected.always(Method::Publish).hold(&gate);
    hand.offer(&Element::new("y"));
    assert!(hand.poll_flush().is_pending());
    hand.until(|hand| {
        assert!(hand.poll_flush().is_pending());
        gate.held() == 1
    })
    .await;
    hand.close().await;
    let warning = log.one_warning("dead letters were unanswered");
    assert_eq!(warning.field("requests"), Some("1"));
    assert_eq!(world.metric("deadLetterPublisherShutdownsAbandoned"), 1);
    world.kit.spawner().assert_idle(LIMIT).await;
    gate.open();
}

#[tokio::test]
async fn an_open_queue_registers_exactly_the_metrics_it_lists() {
    let world = World::new().await;
    let mut hand = Hand::open(&world, queue(&world));
    let mut registered: Vec<_> = world
        .kit
        .registry()
        .samples()
        .into_iter()
        .map(|sample| sample.name)
        .collect();
    registered.sort();
    let mut listed: Vec<_> = aqueduct_pubsub::deadletter::metric_names()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    listed.sort();
    assert_eq!(registered, listed);
    hand.close().await;
}
