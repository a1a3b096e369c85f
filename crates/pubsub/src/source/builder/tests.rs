//! Refused settings.

use aqueduct_connector::source::Collector;

use super::*;
use crate::destination::TopicDestination;
use crate::source::ReceivedMessage;

fn sub(name: &str) -> SubscriptionDestination {
    SubscriptionDestination::new("p", name).expect("valid")
}

fn create() -> SubscriptionCreateOptions {
    SubscriptionCreateOptions::new(TopicDestination::new("p", "t").expect("valid"))
}

fn bare() -> PubSubSourceBuilder<()> {
    PubSubSource::builder().deserializer(
        |_: &ReceivedMessage, _: &SubscriptionDestination, _: &mut Collector<'_, ()>| Ok(()),
    )
}

fn with(options: SubscriberOptions) -> PubSubSourceBuilder<()> {
    bare().subscription(sub("s")).subscriber_options(options)
}

#[test]
fn what_can_never_work_is_refused_by_its_option_before_any_io() {
    let options = SubscriberOptions::new;
    let two = NonZeroU32::new(2).expect("two");
    let one = NonZeroU64::MIN;
    let ordered = |builder: PubSubSourceBuilder<()>| builder.ordering_mode(OrderingMode::PerKey);
    let short = Duration::from_micros(999);
    let valid = || bare().subscription(sub("s"));
    for (wrong, named) in [
        (
            PubSubSource::<()>::builder().subscription(sub("s")),
            "'deserializer'",
        ),
        (bare(), "'subscription'"),
        (valid().subscription(sub("s")), "named twice"),
        (
            with(options().flow_control_max_outstanding_request_bytes(ByteSize(0))),
            "'scan.flow-control.max-outstanding-request-bytes'",
        ),
        (
            with(options().subscriber_buffer_max_bytes(ByteSize(0))),
            "'scan.subscriber-buffer.max-bytes'",
        ),
        (
            with(options().paused_split_buffer_max_bytes(ByteSize(0))),
            "'scan.paused-split-buffer.max-bytes'",
        ),
        (
            with(
                options()
                    .parallel_pull_count(two)
                    .flow_control_max_outstanding_element_count(one),
            ),
            "'scan.parallel-pull-count'",
        ),
        (
            ordered(with(options().parallel_pull_count(two))),
            "'scan.ordering-mode'",
        ),
        (
            with(options().max_ack_extension_period(Duration::MAX)),
            "'scan.ack.max-extension-period'",
        ),
        (
            with(options().min_duration_per_ack_extension(Duration::ZERO)),
            "'scan.ack.min-duration-per-extension'",
        ),
        (
            with(
                options()
                    .min_duration_per_ack_extension(Duration::from_secs(30))
                    .max_duration_per_ack_extension(Duration::from_secs(20)),
            ),
            "'scan.ack.max-duration-per-extension'",
        ),
        (
            with(options().await_ack_confirmation(short)),
            "'scan.ack.await-confirmation'",
        ),
        (
            with(options().shutdown_timeout(short)),
            "'scan.shutdown-timeout'",
        ),
        (
            with(options().first_checkpoint_timeout(short)),
            "'scan.first-checkpoint-timeout'",
        ),
        (
            ordered(bare().subscription_with(sub("s"), create())),
            "without message ordering",
        ),
        (
            bare()
                .subscription_with(sub("s"), create())
                .deserialization_failure_policy(DeserializationFailurePolicy::Nack),
            "without a dead-letter policy",
        ),
        (
            bare().subscription_with(
                sub("s"),
                create().ack_deadline(Duration::from_millis(1_500)),
            ),
            "whole seconds",
        ),
        (
            bare().subscription_with(sub("s"), create().filter(" ")),
            "blank",
        ),
        (valid().emulator_endpoint("nowhere"), "emulator-endpoint"),
        (
            valid()
                .emulator_endpoint("h:1")
                .service_account_key_file("/key"),
            "'service-account-key-file'",
        ),
    ] {
        let error = wrong.build().expect_err(named).to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
    assert!(valid().service_account_key_file("/nowhere").build().is_ok());
    let zero = options()
        .max_ack_extension_period(Duration::ZERO)
        .first_checkpoint_timeout(Duration::ZERO);
    assert!(with(zero).build().is_ok(), "zero switches off");
}
