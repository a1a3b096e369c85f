//! Seeded simulation of ends: every status, clean ends, resets, `GOAWAY`, cut and half-open connections, silence, calls
//! that fail or whose answers are lost, in any order and at any moment. Reading goes on, no queued acknowledgement is
//! dropped, every copy received has one end, and every message is acknowledged in the end. What can never be repaired
//! fails the job by name.
//!
//! Time is virtual. Seeds run side by side, since most of their time is waiting for a socket. `AQUEDUCT_SEEDS=1000..5000` runs
//! others.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use aqueduct_pubsub::SubscriberOptions;
use aqueduct_pubsub::source::{OrderingMode, metrics};
use aqueduct_sim::{Code, Method};
use aqueduct_testkit::SourceHost;
use aqueduct_testkit::host::source::SourceCheckpoint;
use futures::{FutureExt, StreamExt};

use super::source_support::*;

const THREADS: usize = 2;
/// On each thread.
const SIDE_BY_SIDE: usize = 32;
const ROUNDS: usize = 8;

/// Statuses after which a stream is opened again.
const PASSING: [Code; 11] = [
    Code::Ok,
    Code::Cancelled,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::AlreadyExists,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::OutOfRange,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
];

/// Statuses with which the job fails.
const PERMANENT: [Code; 5] = [
    Code::NotFound,
    Code::PermissionDenied,
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::Unimplemented,
];

/// Statuses after which an acknowledgement is tried again.
const TRIED_AGAIN: [Code; 7] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Internal,
    Code::Unknown,
    Code::Cancelled,
];

struct Run {
    random: fastrand::Rng,
    world: World,
    proxy: Option<Proxy>,
    per_key: bool,
    host: SourceHost<String>,
    published: usize,
    /// Taken and not yet complete.
    open: Vec<SourceCheckpoint>,
    /// How often each message was emitted, over all attempts of the job.
    emitted: HashMap<String, u32>,
    /// Emissions of the running attempt that were counted.
    counted: usize,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let per_key = random.u32(..4) == 0;
        let mut world = World::with(|settings| settings.enable_message_ordering = per_key).await;
        world.kit = world.kit.with_seed(seed);
        world.sub.set_messages_per_response(random.usize(1..10));
        if random.bool() {
            world.sub.set_shuffle(Some(seed));
        }
        let proxy = match random.u32(..4) {
            0 => Some(Proxy::start(&world.sim).await),
            _ => None,
        };
        script_faults(&world, &mut random, seed);
        let mut run = Self {
            host: start(&world, proxy.as_ref(), per_key, &mut random),
            random,
            world,
            proxy,
            per_key,
            published: 0,
            open: Vec::new(),
            emitted: HashMap::new(),
            counted: 0,
        };
        run.publish(5);
        // A start that meets an outage fails the job; what is to end here is a stream.
        run.drive_until_reading(0).await;
        run
    }

    /// Drives until a stream was opened that is not one of the first so many.
    async fn drive_until_reading(&mut self, opened: u64) {
        let mut steps = 0;
        while self.world.sub.counts().streams_opened == opened {
            steps += 1;
            assert!(steps < 20_000, "no stream: {}", self.describe());
            self.drive(1).await;
        }
    }

    fn publish(&mut self, most: usize) {
        for _ in 0..self.random.usize(..=most) {
            let text = format!("m{:04}", self.published);
            if self.random.bool() {
                let key = format!("k{}", self.random.u32(..3));
                self.world
                    .topic
                    .publish_keyed(&key, format!("{key}-{text}"));
            } else {
                self.world.topic.publish(text);
            }
            self.published += 1;
        }
    }

    /// Something ends streams, or all of them at once.
    fn end(&mut self) {
        let world = &self.world;
        match self.random.u32(..9) {
            0 => world.sub.reset_streams(),
            1 => world.sub.cut_streams(),
            2 => world.sim.recycle_connections(),
            3 => world.sim.cut_connections(),
            4 => world.sub.silence_streams(),
            5 => world.sub.swallow_streams(),
            6 if self.proxy.is_some() => self.proxy.as_ref().expect("looked").swallow(),
            _ => {
                let code = PASSING[self.random.usize(..PASSING.len())];
                world.sub.close_streams(code);
            }
        }
    }

    /// Lets the source do what it can, and time pass when it can do nothing, for `steps` of either.
    async fn drive(&mut self, steps: usize) {
        for _ in 0..steps {
            let step = self.host.try_step().await;
            if step
                .unwrap_or_else(|error| panic!("{}", error.report()))
                .is_none()
            {
                // Sockets first.
                tokio::time::sleep(Duration::from_millis(1)).await;
                if self.random.bool() {
                    self.world
                        .advance(Duration::from_millis(self.random.u64(1..1_500)));
                }
            }
            self.world.assert_accounting();
        }
        self.count();
    }

    fn count(&mut self) {
        for emitted in self.host.emitted().skip(self.counted) {
            *self
                .emitted
                .entry(emitted.record.value.clone())
                .or_default() += 1;
            self.counted += 1;
        }
        // Within a key, the first emissions are in publish order.
        if self.per_key {
            let mut newest: HashMap<String, String> = HashMap::new();
            let mut seen = std::collections::HashSet::new();
            for emitted in self.host.emitted() {
                let text = &emitted.record.value;
                let Some((key, _)) = text.split_once('-') else {
                    continue;
                };
                if !seen.insert(text) {
                    continue;
                }
                if let Some(before) = newest.insert(key.to_owned(), text.clone()) {
                    assert!(before < *text, "{text} after {before}");
                }
            }
        }
    }

    async fn checkpoint(&mut self) {
        let checkpoint = self.host.barrier().await.expect("snapshots");
        self.open.push(checkpoint);
        match self.random.u32(..4) {
            // It completes later, or is covered by a later one.
            0 => {}
            1 => {
                let aborted = self.open.pop().expect("just taken");
                self.host.abort(aborted.id);
            }
            _ => self.complete(),
        }
    }

    fn complete(&mut self) {
        if let Some(checkpoint) = self.open.pop() {
            self.host.complete(&checkpoint).expect("completes");
        }
        self.open.clear();
    }

    /// Drives until every message is acknowledged.
    async fn drain(&mut self) {
        self.complete();
        let mut rounds = 0;
        while self.world.sub.backlog() > 0 {
            rounds += 1;
            assert!(
                rounds < 2_000,
                "stuck: {} of {} unacknowledged, {} emitted; {}",
                self.world.sub.backlog(),
                self.published,
                self.host.emitted_count(),
                self.describe()
            );
            self.drive(10).await;
            if rounds % 5 == 0 {
                let checkpoint = self.host.barrier().await.expect("snapshots");
                self.host.complete(&checkpoint).expect("completes");
            }
        }
        self.count();
    }

    /// Where everything is: the reader's metrics and the service's totals.
    fn describe(&self) -> String {
        let metrics = [
            metrics::MESSAGES_RECEIVED,
            metrics::MESSAGES_ACKED,
            metrics::MESSAGES_NACKED,
            metrics::LEASES_LOST,
            metrics::ACKS_FAILED,
            metrics::PENDING_ACKS,
            metrics::PENDING_CHECKPOINTS,
            metrics::BUFFERED_MESSAGES,
            metrics::OPEN_STREAMS,
            metrics::STREAMS_REOPENED,
        ]
        .map(|name| (name, self.world.metric(name)));
        let sub = &self.world.sub;
        format!(
            "{metrics:?}; proxy {}; the service: {} streams, {} outstanding, {:?}; {:?}",
            self.proxy.is_some(),
            sub.open_streams(),
            sub.outstanding(),
            sub.counts(),
            self.host
        )
    }

    /// What cannot be repaired: the job fails by subscription and status, holds nothing afterwards, and can start anew.
    async fn fail(&mut self) {
        let code = PERMANENT[self.random.usize(..PERMANENT.len())];
        let mut steps = 0;
        let error = loop {
            // A stream that is not there cannot be told; the next one is.
            self.world.sub.close_streams(code);
            if let Err(error) = self.host.try_step().await {
                break error;
            }
            self.world.assert_accounting();
            steps += 1;
            assert!(steps < 20_000, "{code:?} does not fail the job");
            if steps % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.world.advance(Duration::from_millis(200));
            }
            // A stream that flow control keeps unread cannot tell.
            if steps % 100 == 0 {
                let checkpoint = self.host.barrier().await.expect("snapshots");
                self.host.complete(&checkpoint).expect("completes");
            }
        };
        let report = error.report();
        assert!(
            report.contains("projects/p/subscriptions/s") && report.contains(name(code)),
            "{code:?}: {report}"
        );
        self.count();
        let opened = self.world.sub.counts().streams_opened;
        self.world.kit = self.world.kit.next_attempt();
        let fresh = start(
            &self.world,
            self.proxy.as_ref(),
            self.per_key,
            &mut self.random,
        );
        self.close_with(fresh).await;
        self.drive_until_reading(opened).await;
    }

    /// Closes the running attempt; `next` takes its place.
    async fn close_with(&mut self, next: SourceHost<String>) {
        let host = std::mem::replace(&mut self.host, next);
        self.open.clear();
        self.counted = 0;
        close(&self.world, host).await;
    }
}

/// Closes while time passes: a close may wait for its deadline.
async fn close(world: &World, host: SourceHost<String>) {
    let mut closing = std::pin::pin!(host.close());
    loop {
        tokio::select! {
            biased;
            closed = &mut closing => return closed.expect("closes"),
            () = tokio::time::sleep(Duration::from_millis(1)) => world.advance(Duration::from_millis(50)),
        }
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::NotFound => "NOT_FOUND",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        _ => "UNIMPLEMENTED",
    }
}

fn start(
    world: &World,
    proxy: Option<&Proxy>,
    per_key: bool,
    random: &mut fastrand::Rng,
) -> SourceHost<String> {
    let mut options = SubscriberOptions::new()
        .flow_control_max_outstanding_element_count(
            NonZeroU64::new(random.u64(10..60)).expect("not zero"),
        )
        .max_records_per_fetch(NonZeroU64::new(random.u64(1..20)).expect("not zero"))
        .first_checkpoint_timeout(Duration::ZERO);
    let mut builder = world.builder();
    if per_key {
        builder = builder.ordering_mode(OrderingMode::PerKey);
    } else {
        let streams = NonZeroU32::new(random.u32(1..4)).expect("not zero");
        options = options.parallel_pull_count(streams);
    }
    if let Some(proxy) = proxy {
        builder = builder.emulator_endpoint(&*proxy.address);
    }
    world.start(builder.subscriber_options(options))
}

fn script_faults(world: &World, random: &mut fastrand::Rng, seed: u64) {
    let mut kind = 0;
    for method in [
        Method::Acknowledge,
        Method::ModifyAckDeadline,
        Method::StreamingPull,
    ] {
        for fault in 0..6 {
            kind += 1;
            if random.u32(..3) > 0 {
                continue;
            }
            let probability = random.f64() * 0.15;
            let meets = world.sub.randomly(seed ^ (kind << 32), probability, method);
            let stream = method == Method::StreamingPull;
            let code = match stream {
                true => PASSING[random.usize(1..PASSING.len())],
                false => TRIED_AGAIN[random.usize(..TRIED_AGAIN.len())],
            };
            match fault {
                0 => meets.status(code),
                1 => meets.cut_connection(),
                2 => meets.reset_stream(),
                3 if !stream => meets.apply_then_lose_answer(),
                4 if !stream => meets.apply_then_status(code),
                3 => meets.refuse_stream(),
                4 => meets.goaway(),
                _ => meets.delay(Duration::from_millis(2)),
            };
        }
    }
}

async fn run(seed: u64) {
    let mut run = Run::new(seed).await;
    for _ in 0..ROUNDS {
        run.publish(6);
        let steps = run.random.usize(..40);
        run.drive(steps).await;
        match run.random.u32(..6) {
            0 | 1 => run.checkpoint().await,
            2 => run.complete(),
            _ => run.end(),
        }
    }
    let fails = run.random.u32(..4) == 0;
    if fails {
        run.fail().await;
    }
    run.drain().await;
    assert_eq!(run.emitted.len(), run.published, "emitted");
    if !fails && run.world.metric(metrics::ACKS_FAILED) == 0 {
        // An id that the service had replaced acknowledges nothing, and the copy that has the new one may come later.
        let idle = run.world.sub.counts().idle_acks;
        let again: u32 = run.emitted.values().map(|times| times - 1).sum();
        assert!(
            u64::from(again) <= idle,
            "{again} emitted twice in one attempt: {}",
            run.describe()
        );
    }
    let Run { world, host, .. } = run;
    close(&world, host).await;
    assert_eq!(world.metric(metrics::PENDING_ACKS), 0);
    world.assert_accounting();
    assert_eq!(world.kit.spawner().panicked(), 0);
}

/// Runs `seeds` side by side on this thread; what failed.
fn run_all(seeds: &[u64]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for some of the seeds");
    let runs = futures::stream::iter(seeds.iter().copied())
        .map(|seed| async move {
            let outcome = AssertUnwindSafe(run(seed)).catch_unwind().await;
            outcome.err().map(|panic| {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                format!("seed {seed}: {}", text.unwrap_or_default())
            })
        })
        .buffer_unordered(SIDE_BY_SIDE)
        .filter_map(async |failure| failure)
        .collect();
    runtime.block_on(runs)
}

#[test]
fn however_streams_end_reading_goes_on_and_every_message_is_acknowledged() {
    let seeds: Vec<u64> = aqueduct_testkit::seeds(0..1_000).collect();
    let share = seeds.len().div_ceil(THREADS).max(1);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .chunks(share)
            .map(|seeds| scope.spawn(move || run_all(seeds)))
            .collect();
        let failed = threads.into_iter();
        failed
            .flat_map(|thread| thread.join().expect("panics of the runs are caught"))
            .collect()
    });
    assert!(
        failed.is_empty(),
        "{} failed\n{}",
        failed.len(),
        failed.join("\n")
    );
}
