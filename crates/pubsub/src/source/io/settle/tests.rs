//! The queue, on a ledger and without a network.

use aqueduct_cloud::{ChannelPool, Endpoint, PoolOptions, TokenProvider};
use aqueduct_testkit::test_context;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use prost::Message as _;

use super::super::lease::Terms;
use super::*;
use crate::client::pull::decode::{Room, decode};
use crate::destination::SubscriptionDestination;

fn at(millis: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(millis))
}

struct Bench {
    ledger: Ledger,
    queue: Queue,
    client: AckClient,
    random: fastrand::Rng,
}

impl Bench {
    fn new(per_key: bool) -> Self {
        let pool = ChannelPool::new(
            &test_context(0),
            Endpoint::emulator("test", "localhost:1").expect("an address"),
            TokenProvider::none(),
            PoolOptions::default(),
        )
        .expect("valid");
        let subscription = SubscriptionDestination::new("p", "s").expect("valid");
        Self {
            ledger: Ledger::new(per_key),
            queue: Queue::new(per_key),
            client: AckClient::new(pool, &subscription),
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// Messages `from..to`, emitted, covered, and their checkpoint complete at `now`.
    fn covered(&mut self, ids: std::ops::Range<u64>, now: Moment) -> Vec<Claim> {
        let terms = Terms::new(
            Duration::from_secs(3_600),
            None,
            None,
            Duration::from_secs(10),
        );
        let messages = ids.map(|id| pb::ReceivedMessage {
            ack_id: id.to_string(),
            message: Some(pb::PubsubMessage {
                message_id: id.to_string(),
                ..Default::default()
            }),
            delivery_attempt: 0,
        });
        let response = pb::StreamingPullResponse {
            received_messages: messages.collect(),
            ..Default::default()
        };
        let response = decode(response.encode_to_vec().into(), Room::default()).expect("valid");
        self.ledger.receive(response, &terms, now, &mut Vec::new());
        let mut parts = Vec::new();
        self.ledger.take(usize::MAX, &mut parts);
        self.ledger.emitted(parts.iter().map(|part| part.run));
        let mut claims = Vec::new();
        for run in self.ledger.bind() {
            self.ledger.complete(run, now, false, &mut claims);
        }
        claims.into_iter().flat_map(Claim::singles).collect()
    }

    fn next(&mut self, now: Moment) -> Option<Batch> {
        self.queue.next(now, &mut self.ledger, &self.client)
    }

    fn answer(&mut self, batch: Batch, answer: Answer, now: Moment) -> Outcome {
        let Self {
            queue,
            ledger,
            random,
            ..
        } = self;
        queue.answered(batch, answer, now, ledger, random)
    }
}

fn ids(batch: &Batch) -> usize {
    batch.claims.iter().map(|claim| claim.run.len()).sum()
}

#[tokio::test]
async fn a_failed_request_is_tried_again_as_it_was_for_a_minute_and_then_given_up() {
    let mut bench = Bench::new(false);
    let claims = bench.covered(0..3, at(0));
    bench.queue.ack(claims);
    let first = bench.next(at(0)).expect("leaves at once");
    let body = first.body.clone();
    bench.answer(first, Answer::Failed(Code::Unavailable), at(0));
    let (mut attempts, mut outcome) = (1, Outcome::default());
    while !bench.queue.is_empty() {
        let again = bench.queue.deadline();
        assert!(again < at(60_000));
        let batch = bench.next(again).expect("it is due");
        assert_eq!(batch.body, body, "the same composition");
        attempts += 1;
        // Each attempt takes its 10 s.
        let ended = again.after(Duration::from_secs(10));
        outcome = bench.answer(batch, Answer::Failed(Code::DeadlineExceeded), ended);
    }
    assert!(
        attempts >= 2 && outcome.failed == 3,
        "{attempts} {outcome:?}"
    );
    let tally = bench.ledger.tally();
    assert_eq!((tally.failed, tally.lost, tally.acked), (3, 3, 0));
}

#[tokio::test]
async fn a_refusal_that_trying_again_cannot_change_is_final() {
    let mut bench = Bench::new(false);
    let claims = bench.covered(0..2, at(0));
    bench.queue.ack(claims);
    let batch = bench.next(at(0)).expect("leaves");
    let outcome = bench.answer(batch, Answer::Failed(Code::PermissionDenied), at(1));
    assert_eq!(outcome.failed, 2);
    assert!(bench.queue.is_empty());
}

#[tokio::test]
async fn per_key_one_request_is_unanswered_and_otherwise_eight() {
    for (per_key, most) in [(true, 1), (false, 8)] {
        let mut bench = Bench::new(per_key);
        let claims = bench.covered(0..10_000, at(0));
        bench.queue.ack(claims);
        let mut out: Vec<Batch> = std::iter::from_fn(|| bench.next(at(0))).collect();
        assert_eq!(out.len(), most);
        assert!(out.iter().all(|batch| ids(batch) == 1_000));
        let last = out.pop().expect("one");
        // One that waits to be tried again keeps its place.
        bench.answer(last, Answer::Failed(Code::Aborted), at(0));
        let again = bench.queue.deadline();
        if again > at(0) {
            assert!(bench.next(at(0)).is_none());
        }
        let last = bench.next(again).expect("it is due");
        bench.answer(last, Answer::Ok, again);
        assert!(bench.next(again).is_some());
    }
}

#[tokio::test]
async fn single_ones_gather_for_a_tenth_of_a_second_unless_the_reader_closes() {
    let mut bench = Bench::new(false);
    let claims = bench.covered(0..2, at(0));
    bench.queue.ack_one([claims[0]], at(0));
    bench.queue.ack_one([claims[1]], at(60));
    assert!(bench.next(at(99)).is_none());
    assert_eq!(bench.queue.deadline(), at(100));
    assert_eq!(ids(&bench.next(at(100)).expect("both")), 2);
    let claims = bench.covered(2..3, at(100));
    bench.queue.ack_one(claims, at(100));
    bench.queue.close();
    assert!(bench.next(at(100)).is_some());
}

#[tokio::test]
async fn an_id_that_is_void_waits_for_its_redelivery_and_not_for_ever() {
    let mut bench = Bench::new(false);
    bench.queue.set_exactly_once();
    // The ledger stays ordinary: a confirmed copy is like one of its.
    let claims = bench.covered(0..2, at(0));
    bench.queue.ack(claims);
    let batch = bench.next(at(0)).expect("leaves");
    let said = [("0".to_owned(), Said::Never)].into();
    let outcome = bench.answer(batch, Answer::Each(said), at(0));
    assert_eq!(outcome, Outcome::default(), "the unlisted one is done");
    assert_eq!(bench.ledger.tally().acked, 1);
    assert_eq!(bench.queue.expire(at(599_000), &mut bench.ledger).failed, 0);
    assert_eq!(bench.queue.expire(at(600_000), &mut bench.ledger).failed, 1);
    assert!(bench.queue.is_empty());
}
