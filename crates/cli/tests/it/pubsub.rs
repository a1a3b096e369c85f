//! `aqueduct pubsub` as a person runs it: against `aqueduct sim`, a simulation that can be looked into, and the official
//! emulator.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, RoutingHeader, TokenProvider};
use aqueduct_sim::{Sim, SimConfig, Subscription, Topic};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::emulator::require_pubsub;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use serde_json::{Value, json};

use crate::bad_input::refused;
use crate::program::{Said, command, end_within, interrupt, run, run_fed};

const LIMIT: Duration = Duration::from_secs(120);

/// The topic `orders` and the subscription `orders-sub` of a simulation in this process.
struct World {
    sim: Sim,
    orders: Topic,
    sub: Subscription,
}

impl World {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(settings: impl FnOnce(&mut pb::Subscription)) -> Self {
        let sim = Sim::start_on_thread(SimConfig::default()).expect("a free port");
        let orders = sim.pubsub().create_topic("my-project", "orders");
        let sub =
            sim.pubsub()
                .create_subscription_with("my-project", "orders-sub", &orders, settings);
        sub.set_shuffle(None);
        Self { sim, orders, sub }
    }

    fn publish(&self, options: &[&str], input: &[u8]) -> Said {
        publish(&self.sim.endpoint(), options, input)
    }

    fn pull(&self, options: &[&str]) -> Said {
        take("pull", &self.sim.endpoint(), options)
    }

    fn peek(&self, options: &[&str]) -> Said {
        take("peek", &self.sim.endpoint(), options)
    }
}

fn publish(address: &str, options: &[&str], input: &[u8]) -> Said {
    let mut arguments = vec!["pubsub", "publish", "--project", "my-project"];
    arguments.extend(["--pubsub", address, "--topic", "orders"]);
    arguments.extend(options);
    run_fed(&arguments, input)
}

fn taking<'a>(what: &'a str, address: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["pubsub", what, "--project", "my-project"];
    arguments.extend(["--pubsub", address, "--subscription", "orders-sub"]);
    arguments.extend(options);
    arguments
}

fn take(what: &str, address: &str, options: &[&str]) -> Said {
    run(&taking(what, address, options))
}

/// The messages of a run that ended well, in the order of their data.
#[track_caller]
fn shown(said: &Said) -> Vec<Value> {
    assert!(said.ok, "{said:?}");
    let message = |line| serde_json::from_str(line).expect("each line is JSON");
    let mut all: Vec<Value> = said.out.lines().map(message).collect();
    all.sort_by_key(|message| message["data"].to_string());
    all
}

#[track_caller]
fn data(said: &Said) -> String {
    let all = shown(said);
    let texts: Vec<&str> = all
        .iter()
        .map(|message| message["data"].as_str().expect("a text"))
        .collect();
    texts.join(" ")
}

/// What must hold against any service that has the topic and the subscription.
fn round_trip(address: &str) {
    // Without shuffling nothing is promised about order, so only sets are compared.
    let options = ["--stdin", "--attribute", "channel=web=1", "--ids"];
    let said = publish(address, &options, b"one\ntwo\r\nthree");
    assert!(said.ok, "{said:?}");
    let mut ids: Vec<&str> = said.out.lines().collect();
    assert_eq!(ids.len(), 3, "{said:?}");
    let account = "3 messages published to projects/my-project/topics/orders\n";
    assert_eq!(said.err, account);

    let peeked = take("peek", address, &["--limit", "3", "--idle", "20 s"]);
    assert_eq!(data(&peeked), "one three two");
    assert!(
        peeked.err.contains("3 messages shown, 3 given back"),
        "{peeked:?}"
    );
    assert!(peeked.err.contains("dead-letter policy"), "{peeked:?}");

    // They come at once, although nothing waited for the leases of 60 s.
    let begun = Instant::now();
    let some = take("pull", address, &["--limit", "2", "--idle", "20 s"]);
    let rest = take("pull", address, &["--all", "--idle", "2 s"]);
    assert!(
        begun.elapsed() < Duration::from_secs(50),
        "{:?}",
        begun.elapsed()
    );
    // The emulator knows no flow control, so it may hand out more.
    assert!(
        some.err.starts_with("2 messages printed, 2 acknowledged"),
        "{some:?}"
    );
    assert_eq!(rest.err, "1 message printed, 1 acknowledged\n");
    let mut pulled = shown(&some);
    pulled.extend(shown(&rest));
    let mut found: Vec<&str> = pulled
        .iter()
        .map(|message| message["message_id"].as_str().expect("a text"))
        .collect();
    ids.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, ids);
    for message in &pulled {
        assert_eq!(message["attributes"], json!({"channel": "web=1"}));
        assert!(message.get("ordering_key").is_none() && message.get("delivery_attempt").is_none());
        let time = message["publish_time"].as_str().expect("a text");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    let none = take("pull", address, &["--idle", "1 s"]);
    assert_eq!(none.err, "0 messages printed, 0 acknowledged\n");
    assert!(none.ok && none.out.is_empty(), "{none:?}");

    // What is pulled can be published as it is.
    let lines = "{\"data\":{\"base64\":\"/wA=\"},\"attributes\":{\"a\":\"1\"}}\n\
                 {\"data\":\"text\",\"ordering_key\":\"k\"}\n";
    let said = publish(address, &["--stdin", "--as", "json"], lines.as_bytes());
    assert_eq!(
        said.out,
        "2 messages published to projects/my-project/topics/orders\n"
    );
    let once = take("pull", address, &["--limit", "2", "--idle", "20 s"]);
    let said = publish(address, &["--stdin", "--as", "json"], once.out.as_bytes());
    assert!(said.ok, "{said:?}");
    let twice = take("pull", address, &["--limit", "2", "--idle", "20 s"]);
    let contents = |said: &Said| -> Vec<Value> {
        let mut all = shown(said);
        for message in &mut all {
            let fields = message.as_object_mut().expect("an object");
            assert!(fields.remove("message_id").is_some());
            assert!(fields.remove("publish_time").is_some());
        }
        all
    };
    assert_eq!(contents(&once), contents(&twice));
    assert_eq!(
        contents(&once),
        [
            json!({"data": "text", "ordering_key": "k"}),
            json!({"data": {"base64": "/wA="}, "attributes": {"a": "1"}}),
        ]
    );

    let text = publish(address, &["--message", "a\u{1b}[31mb"], b"");
    assert!(text.ok, "{text:?}");
    let said = take(
        "pull",
        address,
        &["--limit", "1", "--idle", "20 s", "--format", "text"],
    );
    assert!(said.out.ends_with("  | a\\x1b[31mb\n"), "{said:?}");
}

#[test]
fn messages_go_round_by_way_of_aqueduct_sim() {
    let mut sim = command(&["sim", "--port", "0", "--topic", "my-project/unused"])
        .args(["--subscription", "my-project/orders-sub:orders"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    BufReader::new(sim.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("it says where it listens");
    let address = line
        .split_whitespace()
        .find(|word| word.starts_with("127.0.0.1:"));
    round_trip(address.expect("an address"));
    interrupt(&sim);
    let said = end_within(LIMIT, sim);
    assert!(said.ok && said.err.is_empty(), "{said:?}");
}

#[test]
fn messages_go_round_by_way_of_the_official_emulator() {
    let Some(emulator) = require_pubsub() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let pool = ChannelPool::new(
            &TestContext::new("admin").subtask(0, 1),
            Endpoint::emulator("test", &emulator.endpoint()).expect("an address"),
            TokenProvider::none(),
            PoolOptions::default(),
        )
        .expect("valid options");
        let spec = |path| CallSpec::new(path, LIMIT).routing(&RoutingHeader::new());
        let topic = pb::Topic {
            name: "projects/my-project/topics/orders".to_owned(),
            ..pb::Topic::default()
        };
        let subscription = pb::Subscription {
            name: "projects/my-project/subscriptions/orders-sub".to_owned(),
            topic: topic.name.clone(),
            ..pb::Subscription::default()
        };
        let created: Result<pb::Topic, _> = pool
            .unary(&spec("/google.pubsub.v1.Publisher/CreateTopic"), &topic)
            .await;
        created.expect("a topic");
        let path = "/google.pubsub.v1.Subscriber/CreateSubscription";
        let created: Result<pb::Subscription, _> = pool.unary(&spec(path), &subscription).await;
        created.expect("a subscription");
    });
    round_trip(&emulator.endpoint());
}

#[test]
fn a_pull_acknowledges_what_it_printed_and_nothing_else() {
    let world = World::new();
    let ids: Vec<String> = (0..5)
        .map(|n| world.orders.publish(format!("m{n}")))
        .collect();
    assert_eq!(data(&world.pull(&["--limit", "3"])), "m0 m1 m2");
    let acked: Vec<bool> = ids.iter().map(|id| world.sub.is_acked(id)).collect();
    assert_eq!(acked, [true, true, true, false, false]);
    assert_eq!(world.sub.outstanding(), 0, "nothing is left leased");
}

#[test]
fn a_peek_leaves_everything_where_it_was() {
    let world = World::new();
    for n in 0..5 {
        world.orders.publish(format!("m{n}"));
    }
    for _ in 0..2 {
        assert_eq!(shown(&world.peek(&["--limit", "4"])).len(), 4);
        assert_eq!((world.sub.backlog(), world.sub.outstanding()), (5, 0));
    }
    assert_eq!(world.sub.counts().acked, 0);
}

#[test]
fn delivery_attempts_are_shown_and_a_peek_says_that_it_counts() {
    let world = World::with(|config| {
        config.dead_letter_policy = Some(pb::DeadLetterPolicy {
            dead_letter_topic: "projects/my-project/topics/dead".to_owned(),
            max_delivery_attempts: 5,
        });
    });
    world.orders.publish("m");
    for attempt in 1..=3 {
        let said = world.peek(&["--limit", "1"]);
        let message = &shown(&said)[0];
        assert_eq!(message["delivery_attempt"], attempt);
        assert!(message.get("attributes").is_none(), "{message}");
        assert!(said.err.contains("counts as an attempt"), "{said:?}");
    }
    let said = world.pull(&["--limit", "1", "--format", "text"]);
    assert!(said.out.contains("  attempt 4  | m"), "{said:?}");
}

#[test]
fn an_exactly_once_subscription_is_pulled_too() {
    let world = World::with(|config| config.enable_exactly_once_delivery = true);
    for n in 0..3 {
        world.orders.publish(format!("m{n}"));
    }
    assert_eq!(data(&world.pull(&["--limit", "3"])), "m0 m1 m2");
    assert_eq!(world.sub.backlog(), 0);
}

#[test]
fn messages_of_a_key_keep_the_order_of_the_input_over_many_requests() {
    let world = World::with(|config| config.enable_message_ordering = true);
    let mut input = String::new();
    for n in 0..2_500 {
        input.push_str(&format!("{n}\n"));
    }
    let said = world.publish(&["--stdin", "--ordering-key", "k"], input.as_bytes());
    assert!(said.out.starts_with("2500 messages published"), "{said:?}");
    let published = world.orders.messages();
    let lines: Vec<String> = published
        .iter()
        .map(|message| {
            assert_eq!(message.ordering_key, "k");
            String::from_utf8(message.data.to_vec()).expect("text")
        })
        .collect();
    let expected: Vec<String> = (0..2_500).map(|n| n.to_string()).collect();
    assert_eq!(lines, expected);
    let pulled = world.pull(&["--all", "--idle", "1 s"]);
    let numbers: Vec<String> = pulled
        .out
        .lines()
        .map(|line| {
            let message: Value = serde_json::from_str(line).expect("JSON");
            message["data"].as_str().expect("a text").to_owned()
        })
        .collect();
    assert_eq!(numbers, expected, "in order of the key");
}

#[test]
fn a_line_leaves_while_the_input_stays_open_and_a_stop_says_how_many_did() {
    let world = World::new();
    let address = world.sim.endpoint();
    let mut child = command(&["pubsub", "publish", "--project", "my-project", "--stdin"])
        .args(["--topic", "orders", "--pubsub", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    for count in 1..=2 {
        stdin.write_all(b"a line\nhalf").expect("it reads");
        stdin.flush().expect("it reads");
        let orders = &world.orders;
        let published = orders.wait_until(LIMIT, |orders| orders.published() == count);
        world.sim.block_on(published).expect("the line arrives");
    }
    interrupt(&child);
    let said = end_within(LIMIT, child);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.out.starts_with("2 messages published"), "{said:?}");
    drop(stdin);
}

#[test]
fn a_refused_message_is_named_by_its_line_and_those_before_it_are_counted() {
    let world = World::new();
    world
        .orders
        .poison(|message| message.data.starts_with(b"bad"));
    let said = world.publish(&["--stdin"], b"one\ntwo\nbad SECRET\nfour\n");
    refused(
        &said,
        &["line 3", "INVALID_ARGUMENT", "2 messages published"],
    );
    assert!(!said.err.contains("SECRET"), "{}", said.err);
    assert_eq!(said.code, Some(1));
    assert_eq!(world.orders.published(), 2);
    // Alone in its request it is named as well.
    let said = world.publish(&["--message", "bad SECRET"], b"");
    refused(&said, &["the input", "INVALID_ARGUMENT"]);
}

#[test]
fn a_wrong_option_is_refused_by_its_flag_before_the_service_is_asked() {
    let nowhere = "127.0.0.1:1";
    for (options, words) in [
        (
            &["--message", "m", "--attribute", "a"][..],
            &["--attribute", "NAME=VALUE"][..],
        ),
        (
            &["--message", "m", "--attribute", "=a"],
            &["--attribute", "name"],
        ),
        (
            &["--message", "m", "--attribute", "goog-a=b"],
            &["--attribute", "goog"],
        ),
        (
            &["--message", "m", "--attribute", "a=1", "--attribute", "a=2"],
            &["--attribute", "'a' twice"],
        ),
        (
            &["--message", "m", "--ordering-key", ""],
            &["--ordering-key"],
        ),
        (
            &["--file", "/nowhere/messages"],
            &["--file", "/nowhere/messages"],
        ),
        (
            &["--file", "/nowhere/messages", "--stdin"],
            &["--file", "--stdin"],
        ),
        (&["--message", "m", "--stdin"], &["--message", "--stdin"]),
        (&["--message", "m", "--as", "json"], &["--message", "--as"]),
        (&[], &["--file", "--stdin", "--message"]),
    ] {
        refused(&publish(nowhere, options, b""), words);
    }
    for (options, words) in [
        (&["--limit", "0"][..], "--limit"),
        (&["--idle", "soon"], "--idle"),
        (&["--format", "csv"], "--format"),
    ] {
        for what in ["pull", "peek"] {
            refused(&take(what, nowhere, options), &[words]);
        }
    }
    refused(
        &take("pull", nowhere, &["--all", "--limit", "1"]),
        &["--all", "--limit"],
    );
    refused(
        &take("peek", nowhere, &["--limit", "1001"]),
        &["--limit", "1..=1000"],
    );
    let no_subscription = run(&["pubsub", "pull", "--project", "my-project"]);
    refused(&no_subscription, &["--subscription"]);
    assert_eq!(no_subscription.code, Some(2));
    let path = ["pubsub", "pull", "--project", "p", "--subscription", "a/b"];
    refused(&run(&path), &["--subscription", "a/b"]);
    let path = [
        "pubsub",
        "publish",
        "--project",
        "p",
        "--topic",
        " ",
        "--message",
        "m",
    ];
    refused(&run(&path), &["--topic"]);
    let mut both = taking("pull", nowhere, &["--key-file", "key.json"]);
    refused(&run(&both), &["--key-file", "--pubsub"]);
    both.truncate(4);
    both.extend(["--subscription", "s", "--pubsub", "nowhere"]);
    refused(&run(&both), &["--pubsub must be", "host:port"]);
    let unreachable = take("pull", nowhere, &[]);
    refused(&unreachable, &["127.0.0.1:1", "--pubsub", "aqueduct sim"]);
}

#[test]
fn a_resource_that_is_not_there_is_one_clear_error() {
    let world = World::new();
    let address = world.sim.endpoint();
    world.sub.delete();
    for what in ["pull", "peek"] {
        let said = take(what, &address, &[]);
        refused(
            &said,
            &[&address, "subscriptions/orders-sub", "--subscription"],
        );
        assert_eq!(
            (said.code, said.err.lines().count()),
            (Some(1), 1),
            "{said:?}"
        );
    }
    world.orders.delete();
    let said = world.publish(&["--message", "m"], b"");
    refused(&said, &[&address, "topics/orders", "--topic"]);
    assert_eq!(
        (said.code, said.err.lines().count()),
        (Some(1), 1),
        "{said:?}"
    );
    assert!(!world.orders.exists(), "it is not created");
}

#[test]
fn names_that_the_service_would_refuse_are_refused_by_the_simulation_too() {
    for (flag, bad) in [
        ("--topic", "p/or ders"),
        ("--topic", "orders"),
        ("--topic", "p/goog-orders"),
        ("--subscription", "p/orders-sub"),
        ("--subscription", "p/orders-sub:or ders"),
        ("--create-table", "p/i/or ders:cf"),
        ("--create-table", "p/i/orders:c f"),
    ] {
        let said = run(&["sim", "--port", "0", flag, bad]);
        refused(&said, &[flag, bad]);
        assert_eq!(said.code, Some(2), "{said:?}");
    }
}

/// A pull of far more than a pipe holds, of which one line was read.
fn first_line_of_many(world: &World) -> (Child, BufReader<ChildStdout>, String) {
    for n in 0..3_000 {
        world.orders.publish(format!("{n:04} {}", "x".repeat(500)));
    }
    let address = world.sim.endpoint();
    let mut child = command(&taking("pull", &address, &["--all", "--idle", "0"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut out = BufReader::with_capacity(1 << 10, child.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("a message");
    assert!(first.contains("0000 x"), "{first}");
    (child, out, first)
}

#[test]
fn whoever_reads_may_leave_and_what_was_not_printed_is_given_back() {
    let world = World::new();
    let (child, out, _) = first_line_of_many(&world);
    drop(out);
    let said = end_within(LIMIT, child);
    assert!(said.ok, "{said:?}");
    let acked = 3_000 - world.sub.backlog();
    assert!(
        said.err.contains(&format!("{acked} acknowledged")),
        "{said:?}"
    );
    assert!(said.err.contains("given back") && acked < 2_000, "{said:?}");
    assert_eq!(world.sub.outstanding(), 0, "nothing is left leased");
}

#[test]
fn interrupted_in_the_middle_it_gives_back_what_it_did_not_print() {
    let world = World::new();
    let (child, mut out, first) = first_line_of_many(&world);
    // It waits for the pipe by now or will soon; either way it is in the middle.
    interrupt(&child);
    let mut printed = first;
    let reading = std::thread::spawn(move || {
        out.read_to_string(&mut printed).expect("text");
        printed
    });
    let said = end_within(LIMIT, child);
    assert_eq!(said.code, Some(3), "{said:?}");
    let printed = reading.join().expect("it was read");
    let (lines, acked) = (printed.lines().count(), 3_000 - world.sub.backlog());
    assert!(acked <= lines, "{acked} acknowledged, {lines} printed");
    assert!(lines < 3_000, "it was interrupted on its way");
    let account = format!("{acked} acknowledged");
    assert!(said.err.contains(&account), "{said:?}");
    assert_eq!(world.sub.outstanding(), 0, "nothing is left leased");
    for id in world.sub.unacked() {
        assert!(world.sub.deliveries(&id) <= 1);
    }
}

#[test]
fn interrupted_while_it_waits_it_says_what_it_did() {
    let world = World::new();
    world.orders.publish("m");
    for (what, account) in [
        ("peek", "1 message shown, 1 given back"),
        ("pull", "1 message printed, 1 acknowledged"),
    ] {
        let address = world.sim.endpoint();
        let mut child = command(&taking(what, &address, &["--idle", "0"]))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a message");
        interrupt(&child);
        let said = end_within(LIMIT, child);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(said.err.contains(account), "{said:?}");
        assert_eq!(world.sub.outstanding(), 0);
    }
}
