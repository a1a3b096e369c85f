//! The generator: the whole sequence once, across restores and rescales, at its rate.

use std::time::Duration;

use aqueduct_connector::Timestamp;
use aqueduct_connector::source::{Boundedness, Source};
use aqueduct_files::{GeneratorSource, metrics};

use crate::host::Host;

fn sorted(host: Host<u64>) -> Vec<u64> {
    let mut values = host.values();
    values.sort_unstable();
    values
}

#[tokio::test]
async fn one_reader_makes_the_sequence_in_order_and_many_make_it_once() {
    let source = GeneratorSource::builder(|index| index)
        .limit(10_000)
        .build()
        .expect("valid");
    assert_eq!(source.boundedness(), Boundedness::Bounded);
    let mut host = Host::start(&source, 1).expect("starts");
    host.run().await.expect("ends");
    assert!(host.values().into_iter().eq(0..10_000));
    let mut host = Host::start(&source, 5).expect("starts");
    host.run().await.expect("ends");
    assert_eq!(host.metrics.total(metrics::SPLITS_ASSIGNED), 32);
    assert!(sorted(host).into_iter().eq(0..10_000));
}

#[tokio::test]
async fn any_checkpoint_restores_exactly_with_any_parallelism() {
    let source = GeneratorSource::builder(|index| index)
        .limit(1_000)
        .stripes(5)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 2).expect("starts");
    let mut checkpoints = vec![host.checkpoint().expect("a snapshot")];
    while host.step(17).await.expect("works") {
        checkpoints.push(host.checkpoint().expect("a snapshot"));
    }
    let emitted: Vec<u64> = host.values();
    for (nth, checkpoint) in checkpoints.iter().enumerate() {
        let readers = u32::try_from(nth % 4).expect("small") + 1;
        let mut host = Host::restore(&source, readers, Some(checkpoint)).expect("restores");
        host.run().await.expect("ends");
        let mut all = host.values();
        all.extend(&emitted[..checkpoint.emitted]);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1_000), "checkpoint {nth}");
    }
}

#[tokio::test]
async fn readers_share_the_rate_by_the_hosts_clock() {
    let source = GeneratorSource::builder(|index| index)
        .records_per_second(1_000)
        .build()
        .expect("valid");
    assert_eq!(source.boundedness(), Boundedness::Unbounded);
    for readers in [1, 3] {
        let mut host = Host::start(&source, readers).expect("starts");
        for _ in 0..400 {
            while host.step_now(1_000).expect("works") {}
            host.clock.advance(Duration::from_millis(5));
        }
        let count = host.emitted.len();
        assert!(
            (1_980..=2_000).contains(&count),
            "{count} records in two seconds"
        );
        let mut by_reader = vec![0; readers as usize];
        host.emitted
            .iter()
            .for_each(|(reader, _)| by_reader[*reader] += 1);
        assert!(
            by_reader.iter().all(|n| n * readers as usize > 1_600),
            "{by_reader:?}"
        );
    }
}

#[tokio::test]
async fn a_waiting_reader_is_woken_by_the_clock() {
    let source = GeneratorSource::builder(|index| index)
        .records_per_second(2)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    assert!(!host.step_now(10).expect("works"));
    let clock = host.clock.clone();
    let due = clock.next_timer().expect("it waits").since_origin();
    assert_eq!(due, Duration::from_millis(500));
    let advance = async { clock.advance(due) };
    let (happened, ()) = futures::join!(host.step(10), advance);
    assert!(happened.expect("works"));
}

#[tokio::test]
async fn records_carry_the_times_they_are_given() {
    let source = GeneratorSource::builder(|index| index * 2)
        .timestamps(|index, _| i64::try_from(index).ok().map(Timestamp::from_millis))
        .limit(3)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    host.run().await.expect("ends");
    let seen: Vec<_> = host
        .emitted
        .iter()
        .map(|(_, r)| (r.value, r.timestamp))
        .collect();
    assert_eq!(
        seen,
        [0, 1, 2].map(|i| (i as u64 * 2, Some(Timestamp::from_millis(i))))
    );
}

#[test]
fn bad_settings_are_refused_by_name() {
    let builder = || GeneratorSource::builder(|index| index);
    for (builder, part) in [
        (builder().records_per_second(0), "rows-per-second"),
        (builder().stripes(0), "scan.generator.stripes"),
        (builder().stripes(1 << 20), "scan.generator.stripes"),
    ] {
        let error = builder.build().expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_bounded_run_keeps_its_rate_to_the_last_record() {
    use aqueduct_connector::Clock;
    use aqueduct_testkit::context::TestContext;
    use aqueduct_testkit::host::SourceHost;

    let source = GeneratorSource::builder(|n| n)
        .records_per_second(1_000)
        .limit(3_000)
        .build()
        .expect("valid options");
    let clock =
        aqueduct_connector::clock::ManualClock::new(aqueduct_connector::Timestamp::from_millis(0));
    let kit = TestContext::new("generator").with_driven_clock(clock.clone());
    let mut host =
        SourceHost::start(std::sync::Arc::new(source), &kit, 1).expect("the source starts");
    host.run_to_end().await.expect("nothing fails");
    let took = clock.now().since_origin().as_secs_f64();
    assert!(
        (2.8..3.3).contains(&took),
        "3,000 records at 1,000 a second took {took} s"
    );
}
