//! Publishing by hand: the ids in order, attempts, and what is told when it fails.

use std::time::Duration;

use aqueduct_connector::{Code, Result};
use aqueduct_pubsub::{Message, Publisher, TopicDestination};
use aqueduct_sim::{Code as SimCode, Method, Sim, SimConfig, Topic};
use aqueduct_testkit::TestContext;

fn topic(sim: &Sim) -> Topic {
    sim.pubsub().create_topic("p", "orders")
}

fn publisher(sim: &Sim) -> Publisher {
    let topic = TopicDestination::new("p", "orders").expect("valid");
    let context = TestContext::new("publisher").subtask(0, 1);
    Publisher::new(&context, topic, None, Some(&sim.endpoint())).expect("valid")
}

fn messages(count: usize) -> Vec<Message> {
    let message = |n: usize| {
        let mut message = Message::new();
        message
            .data(format!("SECRET{n}"))
            .attribute("n", n.to_string());
        message
    };
    (0..count).map(message).collect()
}

fn code(published: &Result<Vec<String>>) -> Option<Code> {
    let error = published.as_ref().err()?;
    let report = error.report();
    assert!(report.contains("projects/p/topics/orders"), "{report}");
    assert!(!report.contains("SECRET"), "{report}");
    error.statuses().map(aqueduct_connector::StatusChain::code)
}

#[tokio::test]
async fn ids_come_in_the_order_of_the_messages() {
    let sim = Sim::start(SimConfig::default()).await.expect("a free port");
    let topic = topic(&sim);
    let ids = publisher(&sim).publish(&messages(100)).await;
    let ids = ids.expect("published");
    let held: Vec<String> = topic
        .messages()
        .into_iter()
        .map(|message| message.message_id)
        .collect();
    assert_eq!(ids, held);
    assert_eq!(&topic.messages()[7].data[..], b"SECRET7");
    assert_eq!(topic.messages()[7].attributes["n"], "7");
}

#[tokio::test]
async fn a_condition_of_the_service_is_tried_again_and_a_refusal_is_not() {
    let sim = Sim::start(SimConfig::default()).await.expect("a free port");
    let topic = topic(&sim);
    topic.next(2, Method::Publish).status(SimCode::Unavailable);
    let publisher = publisher(&sim);
    let ids = publisher.publish(&messages(1)).await.expect("published");
    assert_eq!((ids.len(), topic.published()), (1, 1));
    assert_eq!(sim.pubsub().request_count(Method::Publish), 3);

    topic.poison(|_| true);
    let refused = publisher.publish(&messages(2)).await;
    assert_eq!(code(&refused), Some(Code::InvalidArgument));
    assert_eq!(sim.pubsub().request_count(Method::Publish), 4);

    topic.delete();
    let missing = publisher.publish(&messages(2)).await;
    assert_eq!(code(&missing), Some(Code::NotFound));
    assert!(!topic.exists(), "it is never created");
}

#[tokio::test]
async fn the_limit_ends_the_attempts_and_the_last_status_is_told() {
    let sim = Sim::start(SimConfig::default()).await.expect("a free port");
    topic(&sim)
        .always(Method::Publish)
        .status(SimCode::Unavailable);
    let publisher = publisher(&sim).with_limit(Duration::from_millis(500));
    let failed = publisher.publish(&messages(1)).await;
    assert_eq!(code(&failed), Some(Code::Unavailable));
    assert!(sim.pubsub().request_count(Method::Publish) > 1);
    // An answer that never comes ends with the limit too.
    sim.pubsub().clear_faults();
    topic(&sim).always(Method::Publish).silent();
    let silent = publisher.publish(&messages(1)).await;
    assert_eq!(code(&silent), Some(Code::DeadlineExceeded));
}
