//! PS-ACC-03: hourly totals over a killed process.
//!
//! The test binary starts itself as the process that runs the job and is killed with SIGKILL; the test holds the simulated
//! service. The process takes one command: to stop with a last checkpoint when its source has emitted so many orders.

use std::io::{BufRead as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aqueduct::pubsub::PubSubSource;
use aqueduct::runtime::{Job, JobConfig};
use aqueduct_sim::{Method, Sim, Subscription, Topic};
use aqueduct_testkit::until;

use crate::party::{LIMIT, PROJECT, Party, message, subscription};
use crate::pipeline::{Order, hourly_totals};
use crate::totals::{ORDERS, expected, json, pairs, publish_time, sink};

/// Tells the test binary, started again, where the service is, where checkpoints are kept, and their interval in milliseconds.
const CHILD: &str = "AQUEDUCT_TEST_TOTALS";

/// The process that is killed: this test, with [`CHILD`] set. Without, it checks that such a process stops as it is told.
#[tokio::test]
async fn a_process_runs_the_totals_until_it_is_told_to_stop() {
    if let Ok(child) = std::env::var(CHILD) {
        run(&child).await;
        return;
    }
    let world = World::new().await;
    let mut process = world.spawn(Duration::from_millis(100));
    world.publish(0).await;
    process.stop_at(1);
    assert_eq!(world.orders_sub.backlog(), 0, "the last checkpoint acked");
}

async fn run(child: &str) {
    let fields: Vec<&str> = child.split('\n').collect();
    let [endpoint, checkpoints, interval] = fields[..] else {
        panic!("{CHILD} has another form");
    };
    let source = PubSubSource::builder()
        .subscription(subscription("orders-sub"))
        .deserializer(Order::read)
        .emulator_endpoint(endpoint)
        .build()
        .expect("valid");
    let job = Job::new("hourly-totals");
    hourly_totals(&job, source, sink(endpoint)).expect("valid windows");
    let interval = Duration::from_millis(interval.parse().expect("a number"));
    let config = JobConfig::builder()
        .checkpoint_dir(checkpoints)
        .checkpoint_interval(interval)
        .build()
        .expect("valid");
    let handle = job.start(config).expect("the job starts");
    let told = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut line)
            .expect("a pipe");
        line.trim().parse::<u64>().expect("a number of orders")
    });
    let orders = told.await.expect("a command");
    until(LIMIT, "the orders", || {
        let progress = handle.progress();
        progress
            .first()
            .is_some_and(|source| source.records_out >= orders)
    })
    .await;
    handle.stop(None).await.expect("a last checkpoint");
    handle.wait().await.expect("it ends well");
}

/// The service, and where the job keeps its checkpoints.
struct World {
    party: Party,
    orders: Topic,
    totals: Topic,
    orders_sub: Subscription,
    ids: std::cell::RefCell<Vec<String>>,
    checkpoints: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let party = Party::simulated();
        for name in ["incoming-orders", "customer-totals"] {
            party.create_topic(name).await;
        }
        party
            .create_subscription("orders-sub", "incoming-orders")
            .await;
        let pubsub = party.sim().expect("simulated").pubsub();
        pubsub.stop_clock(publish_time(13 * 3_600_000_000_000));
        Self {
            orders: pubsub.topic(PROJECT, "incoming-orders"),
            totals: pubsub.topic(PROJECT, "customer-totals"),
            orders_sub: pubsub.subscription(PROJECT, "orders-sub"),
            ids: std::cell::RefCell::default(),
            checkpoints: tempfile::tempdir().expect("a temporary directory"),
            party,
        }
    }

    fn sim(&self) -> &Sim {
        self.party.sim().expect("simulated")
    }

    fn spawn(&self, interval: Duration) -> Process {
        let fields = [
            self.party.endpoint(),
            self.checkpoints.path().display().to_string(),
            interval.as_millis().to_string(),
        ];
        let child = Command::new(std::env::current_exe().expect("this test binary"))
            .args([
                "--exact",
                "totals_crash::a_process_runs_the_totals_until_it_is_told_to_stop",
            ])
            .env(CHILD, fields.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test binary starts again");
        Process(child)
    }

    /// Publishes an order of the table and waits until it was delivered.
    async fn publish(&self, nth: usize) {
        let row = ORDERS[nth];
        let id = self
            .orders
            .publish_at(message(&json(row), &[]), publish_time(row.0));
        self.ids.borrow_mut().push(id);
        self.delivered(nth, 1).await;
    }

    async fn delivered(&self, nth: usize, times: u32) {
        let id = self.ids.borrow()[nth].clone();
        self.orders_sub
            .wait_until(LIMIT, |sub| sub.deliveries(&id) >= times)
            .await
            .unwrap_or_else(|late| panic!("order {nth} was not delivered {times} times: {late}"));
    }

    async fn totals(&self, count: u64) {
        self.totals
            .wait_until(LIMIT, |totals| totals.published() >= count)
            .await
            .unwrap_or_else(|late| panic!("{} totals: {late}", self.totals.published()));
    }

    fn unacked(&self) -> Vec<usize> {
        let ids = self.ids.borrow();
        (0..ids.len())
            .filter(|nth| !self.orders_sub.is_acked(&ids[*nth]))
            .collect()
    }

    /// The leases of a dead process end.
    async fn forget_the_dead(&self) {
        self.orders_sub
            .wait_until(LIMIT, |sub| sub.open_streams() == 0)
            .await
            .expect("the killed process's stream ends");
        self.sim().pubsub().advance(Duration::from_secs(601));
    }
}

struct Process(Child);

impl Process {
    /// Stops it with a last checkpoint when it has emitted so many orders.
    #[track_caller]
    fn stop_at(&mut self, orders: u64) {
        let mut stdin = self.0.stdin.take().expect("it was not stopped before");
        writeln!(stdin, "{orders}").expect("it reads");
        drop(stdin);
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// SIGKILL: nothing of it runs any more.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that fails must not leave it behind; one that has ended is not killed again.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const BY_ITSELF_NEVER: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn orders_that_no_checkpoint_covers_come_again_after_a_kill_and_the_totals_are_exact() {
    let world = World::new().await;
    let mut first = world.spawn(BY_ITSELF_NEVER);
    for nth in 0..4 {
        world.publish(nth).await;
    }
    first.stop_at(4);
    assert_eq!(world.unacked(), [0; 0], "1 to 4 are covered");
    let second = world.spawn(BY_ITSELF_NEVER);
    for nth in 4..6 {
        world.publish(nth).await;
    }
    second.kill();
    world.forget_the_dead().await;
    assert_eq!(world.unacked(), [4, 5]);

    let mut third = world.spawn(BY_ITSELF_NEVER);
    for nth in 4..6 {
        world.delivered(nth, 2).await;
    }
    world.publish(6).await;
    world.totals(3).await;
    world.publish(7).await;
    world.publish(8).await;
    world.totals(5).await;
    third.stop_at(5);
    assert_eq!(world.unacked(), [0; 0]);
    for nth in 0..4 {
        let id = &world.ids.borrow()[nth];
        assert_eq!(
            world.orders_sub.deliveries(id),
            1,
            "order {nth} was covered"
        );
    }
    let mut found = pairs(&world.totals.messages());
    found.dedup();
    assert_eq!(found, expected(), "each at least once, and no other");
}

#[tokio::test]
async fn a_kill_between_completion_and_acknowledgement_may_count_twice_and_misses_nothing() {
    let world = World::new().await;
    let unheard = world.orders_sub.always(Method::Acknowledge);
    let unheard = unheard.silent();
    let first = world.spawn(Duration::from_millis(100));
    for nth in 0..4 {
        world.publish(nth).await;
    }
    // They are sent when the checkpoint is complete, and heard by nobody.
    world
        .orders_sub
        .wait_until(LIMIT, |sub| {
            let asked = sub.requests_of(Method::Acknowledge);
            asked.iter().map(|request| request.entries).sum::<usize>() >= 4
        })
        .await
        .expect("acknowledgements of all four");
    first.kill();
    unheard.remove();
    world.forget_the_dead().await;
    assert_eq!(world.unacked(), [0, 1, 2, 3]);

    let mut second = world.spawn(Duration::from_millis(100));
    for nth in 0..4 {
        world.delivered(nth, 2).await;
    }
    for nth in 4..7 {
        world.publish(nth).await;
    }
    world.totals(3).await;
    // Those of the hour of 10:00, whose late order is next.
    world
        .totals
        .wait_until(LIMIT, |totals| {
            let totals = pairs(&totals.messages());
            let ten = |(_, start): &&(String, String)| start.contains(" 10:");
            totals.iter().filter(ten).count() >= 2
        })
        .await
        .expect("the totals of 10:00");
    world.publish(7).await;
    world.publish(8).await;
    world
        .totals
        .wait_until(LIMIT, |totals| {
            let totals = pairs(&totals.messages());
            let eleven = |(_, start): &&(String, String)| start.contains(" 11:");
            totals.iter().filter(eleven).count() >= 2
        })
        .await
        .expect("the totals of 11:00");
    second.stop_at(9);
    assert_eq!(world.unacked(), [0; 0]);
    // Excess comes from 1 to 4 alone: 5 at 09:00; 20, 30 and 7 at 10:00.
    let total =
        |customer: &str, total: i64| format!(r#"{{"customer_id":"{customer}","total":{total}}}"#);
    let allowed = [
        (" 09:", "c1", &[5, 10][..]),
        (" 10:", "c1", &[54, 104]),
        (" 10:", "c2", &[7, 14]),
        (" 11:", "c2", &[11]),
        (" 11:", "c3", &[9]),
    ];
    let found = pairs(&world.totals.messages());
    let is = |(payload, start): &(String, String), at: usize| {
        let (hour, customer, totals) = allowed[at];
        start.contains(hour) && totals.iter().any(|one| *payload == total(customer, *one))
    };
    for at in 0..allowed.len() {
        assert!(found.iter().any(|pair| is(pair, at)), "{at}: {found:?}");
    }
    for pair in &found {
        assert!((0..allowed.len()).any(|at| is(pair, at)), "{pair:?}");
    }
}
