//! Bounds, conflicts and defaults of the sink's options.

use super::*;

#[test]
fn each_bound_is_inclusive_and_a_value_beyond_names_its_option() {
    let ok = PublisherOptions::new;
    let nano = Duration::from_nanos(1);
    let micros = Duration::from_micros(999);
    let century = Duration::from_secs(293 * 366 * 86_400);
    for good in [
        ok(),
        ok().batch_element_count_threshold(u64::MAX),
        ok().batch_delay_threshold(nano),
        ok().retry_total_timeout(Duration::ZERO),
        ok().retry_max_delay(Duration::ZERO),
        ok().retry_initial_rpc_timeout(Duration::ZERO),
        ok().retry_delay_multiplier(1.0),
        ok().max_consecutive_rejections(None),
        ok().publish_progress_timeout(MAX_DURATION),
        ok().enable_message_ordering(true),
    ] {
        assert_eq!(good.check(), Ok(()));
    }
    for (bad, option) in [
        (ok().batch_element_count_threshold(0), "element-count"),
        (
            ok().batch_request_byte_threshold(ByteSize(0)),
            "request-byte",
        ),
        (
            ok().batch_delay_threshold(Duration::ZERO),
            "delay-threshold",
        ),
        (ok().retry_total_timeout(micros), "retry.total-timeout"),
        (ok().retry_initial_delay(nano), "retry.initial-delay"),
        (ok().retry_max_delay(nano), "retry.max-delay"),
        (ok().retry_initial_rpc_timeout(nano), "initial-rpc-timeout"),
        (ok().retry_max_rpc_timeout(century), "max-rpc-timeout"),
        (ok().retry_delay_multiplier(0.99), "delay-multiplier"),
        (ok().retry_delay_multiplier(f64::NAN), "delay-multiplier"),
        (
            ok().retry_rpc_timeout_multiplier(f64::INFINITY),
            "rpc-timeout-multiplier",
        ),
        (ok().max_in_flight_messages(0), "in-flight.max-messages"),
        (ok().max_in_flight_bytes(ByteSize(0)), "in-flight.max-bytes"),
        (
            ok().publish_progress_timeout(Duration::ZERO),
            "publish-progress-timeout",
        ),
        (ok().recovery_initial_backoff(micros), "initial-backoff"),
        (ok().recovery_max_attempts(0), "recovery.max-attempts"),
        (ok().max_active_publishers(0), "max-active-publishers"),
        (
            ok().destination_idle_timeout(Duration::ZERO),
            "destination-idle-timeout",
        ),
        (ok().shutdown_timeout(Duration::ZERO), "shutdown-timeout"),
        (ok().channels(65), "sink.channels"),
    ] {
        let error = bad.check().expect_err(option).to_string();
        assert!(error.contains(option), "{option}: {error}");
    }
}

#[test]
fn ordering_refuses_the_retry_limits_that_it_lifts() {
    let ordered = PublisherOptions::new().enable_message_ordering(true);
    for (bad, option) in [
        (
            ordered.clone().retry_total_timeout(Duration::from_secs(1)),
            "retry.total-timeout",
        ),
        (
            ordered.clone().retry_max_attempts(None),
            "retry.max-attempts",
        ),
    ] {
        let error = bad.check().expect_err(option).to_string();
        assert!(
            error.contains(option) && error.contains("message-ordering"),
            "{error}"
        );
    }
}

#[test]
fn a_pair_out_of_order_names_only_what_was_set() {
    let ok = PublisherOptions::new;
    let refused = |options: PublisherOptions| options.check().expect_err("refused").to_string();
    let error = refused(ok().recovery_max_backoff(Duration::from_millis(499)));
    assert!(error.contains("recovery.max-backoff") && !error.contains("initial-backoff"));
    let error = refused(ok().recovery_initial_backoff(Duration::from_secs(11)));
    assert!(error.contains("initial-backoff") && !error.contains("recovery.max-backoff"));
    let error = refused(
        ok().recovery_initial_backoff(Duration::from_secs(3))
            .recovery_max_backoff(Duration::from_secs(2)),
    );
    assert!(error.contains("initial-backoff") && error.contains("recovery.max-backoff"));
}

#[test]
fn batches_keep_to_the_limits_of_the_service_and_of_the_writer() {
    let options = PublisherOptions::new()
        .batch_element_count_threshold(5_000)
        .batch_request_byte_threshold(ByteSize::mib(64));
    assert_eq!(options.batch_messages(), 1_000);
    assert_eq!(options.batch_bytes(), 10_000_000);
    assert_eq!(options.max_in_flight_messages(7).batch_messages(), 7);
}

#[test]
fn creation_settings_that_cannot_work_are_refused_by_name() {
    let ok = TopicCreateOptions::new;
    assert_eq!(ok().check(), Ok(()));
    for (bad, option) in [
        (ok().message_retention(Duration::ZERO), "message-retention"),
        (ok().kms_key_name(" "), "kms-key-name"),
        (
            ok().allowed_persistence_regions(Vec::<String>::new()),
            "allowed-regions",
        ),
        (
            ok().allowed_persistence_regions(["a", " "]),
            "allowed-regions",
        ),
        (ok().enforce_in_transit(true), "enforce-in-transit"),
    ] {
        let error = bad.check().expect_err(option).to_string();
        assert!(error.contains(option), "{error}");
    }
}

#[test]
fn a_byte_threshold_above_the_byte_bound_is_warned_about_and_works() {
    let log = aqueduct_testkit::log::capture();
    let options = PublisherOptions::new().max_in_flight_bytes(ByteSize(999_999));
    assert_eq!(options.check(), Ok(()));
    let warning = log.one_warning("batches leave at that bound");
    assert_eq!(
        warning.field("bound").map(|field| field.trim_matches('"')),
        Some(MAX_IN_FLIGHT_BYTES.key())
    );
}
