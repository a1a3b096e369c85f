//! File sources over real files: coverage, restore, gzip, changed files, bad lines.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use aqueduct_connector::clock::ManualClock;
use aqueduct_connector::context::{TaskControl, TaskFuture};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::{Boundedness, Source};
use aqueduct_connector::{Context, ErrorKind, Spawn, Task, Timestamp};
use aqueduct_files::file::{Compression, Csv, FileFormat, FileSourceBuilder, JsonLines};
use aqueduct_files::{FileSource, MalformedPolicy, metrics};
use aqueduct_store::Store;
use aqueduct_testkit::TestContext;
use flate2::write::GzEncoder;
use serde::Deserialize;
use tempfile::TempDir;

use crate::host::{Checkpoint, Host};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Row {
    id: u32,
    text: Option<String>,
}

struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = PathBuf::from(self.path(name));
        std::fs::create_dir_all(path.parent().expect("below the directory")).expect("writable");
        std::fs::write(&path, content).expect("writable");
        self.path(name)
    }
}

fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content.as_ref()).expect("memory");
    encoder.finish().expect("memory")
}

fn json_lines(ids: std::ops::Range<u32>) -> String {
    ids.map(|id| format!("{{\"id\": {id}, \"text\": \"row {id}\"}}\n"))
        .collect()
}

fn csv_lines(ids: std::ops::Range<u32>) -> String {
    let rows = ids.map(|id| match id % 3 {
        0 => format!("NA,{id},x\r\n"),
        1 => format!("\"two\r\nlines, \"\"{id}\"\"\",{id},x\r\n"),
        _ => format!("row {id},{id},x\r\n"),
    });
    ["text,id,other\r\n".to_owned()]
        .into_iter()
        .chain(rows)
        .collect()
}

fn json() -> FileSourceBuilder<JsonLines<Row>> {
    FileSource::json::<Row>()
}

fn csv() -> FileSourceBuilder<Csv<Row>> {
    FileSource::csv::<Row>().null_literal("NA")
}

async fn read_all<F: FileFormat>(source: &FileSource<F>, readers: u32) -> Vec<F::Output> {
    let mut host = Host::start(source, readers).expect("starts");
    host.run().await.expect("reads");
    host.values()
}

fn ids(rows: impl IntoIterator<Item = Row>) -> Vec<u32> {
    let mut ids: Vec<u32> = rows.into_iter().map(|row| row.id).collect();
    ids.sort_unstable();
    ids
}

async fn failure<F: FileFormat>(source: &FileSource<F>) -> aqueduct_connector::Error {
    let mut host = Host::start(source, 1).expect("starts");
    host.run().await.expect_err("must fail")
}

#[tokio::test]
async fn many_readers_share_many_splits_and_read_each_row_once() {
    let dir = Dir::new();
    let path = dir.write("a.json", json_lines(0..1000));
    for readers in [1, 3] {
        for split_bytes in [1_000, 7_777, 1 << 20] {
            let source = json().path(&path).split_size(ByteSize(split_bytes));
            let rows = read_all(&source.build().expect("valid"), readers).await;
            assert_eq!(rows[0].text.as_deref(), Some("row 0"));
            assert!(
                ids(rows).into_iter().eq(0..1000),
                "{readers} readers, {split_bytes} bytes"
            );
        }
    }
}

#[tokio::test]
async fn directories_are_read_whole_and_in_order_without_notes_of_other_programs() {
    let dir = Dir::new();
    dir.write("in/b.json.gz", gzip(json_lines(10..20)));
    dir.write("in/a/x.json", json_lines(0..10));
    dir.write("in/_SUCCESS", "not JSON");
    dir.write("in/.hidden/x", "not JSON");
    dir.write("in/empty.json", "");
    let source = json().path(dir.path("in")).build().expect("valid");
    let rows = read_all(&source, 1).await;
    assert!(rows.iter().map(|row| row.id).eq(0..20));
}

#[tokio::test]
async fn objects_are_read_like_files() {
    let store = Store::open("memory://files-objects/in").expect("a URL");
    store
        .put_atomic("one.json", json_lines(0..100).into())
        .await
        .expect("writable");
    store
        .put_atomic("two.json.gz", gzip(json_lines(100..200)).into())
        .await
        .expect("writable");
    for paths in [
        vec!["memory://files-objects/in"],
        vec![
            "memory://files-objects/in/one.json",
            "memory://files-objects/in/two.json.gz",
        ],
    ] {
        let source = json()
            .paths(paths)
            .split_size(ByteSize(500))
            .build()
            .expect("valid");
        assert!(ids(read_all(&source, 2).await).into_iter().eq(0..200));
    }
}

/// Stops after every single emission, restores there, and reads the rest.
async fn restores_everywhere<F>(source: &FileSource<F>, expected: &[Row])
where
    F: FileFormat<Output = Row>,
{
    let mut host = Host::start(source, 1).expect("starts");
    let mut checkpoints: Vec<Checkpoint> = vec![host.checkpoint().expect("a snapshot")];
    while host.step(1).await.expect("reads") {
        checkpoints.push(host.checkpoint().expect("a snapshot"));
    }
    assert_eq!(ids(host.values()), ids(expected.iter().cloned()));
    for (nth, checkpoint) in checkpoints.iter().enumerate() {
        // Another parallelism each time.
        let readers = u32::try_from(nth % 3).expect("small") + 1;
        let mut host = Host::restore(source, readers, Some(checkpoint)).expect("restores");
        host.run().await.expect("reads");
        let rest = ids(host.values());
        assert_eq!(
            rest.len(),
            expected.len() - checkpoint.emitted,
            "checkpoint {nth}"
        );
        let all = ids(expected.iter().cloned());
        assert!(rest.iter().all(|id| all.binary_search(id).is_ok()));
        // One reader in order: the rest is exactly the tail.
        if checkpoint.splits.len() <= 1 {
            assert_eq!(rest, all[checkpoint.emitted..], "checkpoint {nth}");
        }
    }
}

#[tokio::test]
async fn json_restores_at_every_position() {
    let dir = Dir::new();
    let path = dir.write("a.json", json_lines(0..60));
    let source = json()
        .path(&path)
        .split_size(ByteSize(400))
        .max_batch_records(7);
    let rows = read_all(&json().path(path).build().expect("valid"), 1).await;
    restores_everywhere(&source.build().expect("valid"), &rows).await;
}

#[tokio::test]
async fn quoted_csv_restores_at_every_position_plain_and_packed() {
    let dir = Dir::new();
    let content = csv_lines(0..40);
    let two_members = [gzip(&content[..300]), gzip(&content[300..])].concat();
    let plain = csv()
        .path(dir.write("a.csv", &content))
        .max_batch_records(7);
    let plain = plain.build().expect("valid");
    let rows = read_all(&plain, 1).await;
    assert!(rows.iter().map(|row| row.id).eq(0..40));
    assert_eq!(rows[0].text, None);
    assert_eq!(rows[1].text.as_deref(), Some("two\r\nlines, \"1\""));
    restores_everywhere(&plain, &rows).await;
    let packed = csv()
        .path(dir.write("a.csv.gz", two_members))
        .max_batch_records(7);
    restores_everywhere(&packed.build().expect("valid"), &rows).await;
}

#[tokio::test]
async fn splittable_csv_finds_its_header_in_every_split_and_after_a_restore() {
    let dir = Dir::new();
    let rows: String = (0..60).map(|id| format!("row {id},{id},x\n")).collect();
    let path = dir.write("a.csv", format!("text,id,other\n{rows}"));
    let source = csv()
        .path(path)
        .splittable(true)
        .split_size(ByteSize(100))
        .build();
    let source = source.expect("valid");
    let rows = read_all(&source, 3).await;
    assert!(ids(rows.clone()).into_iter().eq(0..60));
    restores_everywhere(&source, &rows).await;
}

#[tokio::test]
async fn packed_files_larger_than_the_read_ahead_restore_in_their_middle() {
    let dir = Dir::new();
    // Several mebibytes unpacked, so that pieces, batches and the channel's bound all matter.
    let path = dir.write("a.json.gz", gzip(json_lines(0..120_000)));
    let source = json()
        .path(path)
        .read_ahead(ByteSize(0))
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    while host.emitted.len() < 70_000 {
        host.step(500).await.expect("reads");
    }
    let checkpoint = host.checkpoint().expect("a snapshot");
    host.close().await.expect("closes in the middle");
    let mut host = Host::restore(&source, 1, Some(&checkpoint)).expect("restores");
    host.run().await.expect("reads");
    let rest = host.values();
    assert!(
        rest.iter()
            .map(|row| row.id as usize)
            .eq(checkpoint.emitted..120_000)
    );
}

#[tokio::test]
async fn a_restored_job_does_not_plan_again() {
    let dir = Dir::new();
    dir.write("in/a.json", json_lines(0..10));
    let source = json().path(dir.path("in")).build().expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    host.run().await.expect("reads");
    let checkpoint = host.checkpoint().expect("a snapshot");
    dir.write("in/late.json", json_lines(10..20));
    let mut host = Host::restore(&source, 1, Some(&checkpoint)).expect("restores");
    host.run().await.expect("ends");
    assert!(host.values().is_empty());
}

#[tokio::test]
async fn a_changed_file_is_named_with_both_sizes_and_not_read() {
    let dir = Dir::new();
    for name in ["a.json", "a.json.gz"] {
        let content = json_lines(0..2000);
        let stored = |content: &str| match name {
            "a.json" => content.as_bytes().to_vec(),
            _ => gzip(content),
        };
        let path = dir.write(name, stored(&content));
        let source = json()
            .path(&path)
            .max_batch_records(10)
            .build()
            .expect("valid");
        let mut host = Host::start(&source, 1).expect("starts");
        while host.emitted.len() < 50 {
            host.step(5).await.expect("reads");
        }
        let checkpoint = host.checkpoint().expect("a snapshot");
        host.close().await.expect("closes");
        let before = stored(&content).len();
        dir.write(name, stored(&content[..content.len() / 2]));
        let after = stored(&content[..content.len() / 2]).len();
        let mut host = Host::restore(&source, 1, Some(&checkpoint)).expect("restores");
        let error = host.run().await.expect_err("the file shrank");
        let text = error.to_string();
        assert_eq!(
            error.kind(),
            ErrorKind::State,
            "a restart does not help: {text}"
        );
        for part in [&path, &before.to_string(), &after.to_string()] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // Of the same size, but another file.
        let other = std::fs::File::options()
            .append(true)
            .open(&path)
            .expect("writable");
        std::fs::write(&path, stored(&content)).expect("writable");
        other.set_modified(std::time::UNIX_EPOCH).expect("settable");
        let mut host = Host::restore(&source, 1, Some(&checkpoint)).expect("restores");
        let text = host.run().await.expect_err("another file").to_string();
        assert!(
            text.contains("written again") && text.contains(&path),
            "{text}"
        );
    }
}

#[tokio::test]
async fn missing_and_empty_places_are_named_at_the_start() {
    let dir = Dir::new();
    let missing = dir.path("no/such.json");
    let error = failure(&json().path(&missing).build().expect("valid")).await;
    assert!(error.to_string().contains(&missing), "{error}");
    assert!(error.to_string().contains("does not exist"), "{error}");
    std::fs::create_dir(dir.path("empty")).expect("writable");
    let error = failure(&json().path(dir.path("empty")).build().expect("valid")).await;
    assert!(error.to_string().contains("holds no file"), "{error}");
    let empty = dir.write("empty.json", "");
    assert!(
        read_all(&json().path(empty).build().expect("valid"), 2)
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn broken_gzip_names_the_file_and_the_place() {
    let dir = Dir::new();
    let whole = gzip(json_lines(0..100_000));
    let cut = dir.write("cut.json.gz", &whole[..whole.len() - 100]);
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 50].fill(0xff);
    let damaged = dir.write("damaged.json.gz", damaged);
    let not_gzip = dir.write("plain.json.gz", json_lines(0..10));
    for (path, part) in [
        (cut, "cut short"),
        (damaged, "not valid"),
        (not_gzip.clone(), "not valid"),
    ] {
        let text = failure(&json().path(&path).build().expect("valid"))
            .await
            .to_string();
        assert!(
            text.contains(part) && text.contains(&path) && text.contains("byte"),
            "{text}"
        );
    }
    let plain = json()
        .path(not_gzip)
        .compression(Compression::None)
        .build()
        .expect("valid");
    assert_eq!(read_all(&plain, 1).await.len(), 10);
}

#[tokio::test]
async fn a_malformed_line_fails_by_number_or_is_dropped_and_counted() {
    let dir = Dir::new();
    let content = format!(
        "{}{{\"id\": \"SECRET\"}}\nSECRET\n{}",
        json_lines(0..5),
        json_lines(5..9)
    );
    let path = dir.write("a.json", content);
    let error = failure(&json().path(&path).build().expect("valid")).await;
    let text = error.report();
    assert!(
        text.contains(&format!("line 6 of {path}")) && !text.contains("SECRET"),
        "{text}"
    );

    let source = json()
        .path(&path)
        .malformed(MalformedPolicy::Drop)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    host.run().await.expect("reads");
    assert_eq!(host.metrics.total(metrics::MALFORMED_LINES), 2);
    assert!(host.values().iter().map(|row| row.id).eq(0..9));
}

#[tokio::test]
async fn the_counts_add_up() {
    let dir = Dir::new();
    let content = json_lines(0..1000);
    let path = dir.write("a.json", &content);
    let source = json()
        .path(&path)
        .split_size(ByteSize(1000))
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 3).expect("starts");
    host.run().await.expect("reads");
    let total = |name| host.metrics.total(name);
    // Each byte belongs to one split.
    assert_eq!(total(metrics::BYTES_IN), content.len() as i128);
    assert_eq!(
        total(metrics::SPLITS_PLANNED),
        total(metrics::SPLITS_ASSIGNED)
    );
    assert_eq!(
        total(metrics::SPLITS_PLANNED),
        (content.len() as i128 + 999) / 1000
    );
    assert_eq!(total(metrics::UNASSIGNED_SPLITS), 0);
    let names: Vec<String> = host
        .metrics
        .samples()
        .into_iter()
        .map(|sample| sample.name)
        .collect();
    for name in metrics::ALL {
        assert!(
            names.iter().any(|known| known == name),
            "{name} is registered"
        );
    }
    assert!(
        names
            .iter()
            .all(|name| metrics::ALL.contains(&name.as_str())),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_line_gives_as_many_records_as_it_likes_with_event_times() {
    let dir = Dir::new();
    let path = dir.write("a.txt", "1 2\n\n3\n");
    let source = FileSource::lines(|line: &[u8], out| {
        for word in line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
        {
            out.emit(i64::from(word[0] - b'0'));
        }
        Ok(())
    });
    let source = source
        .path(path)
        .timestamps(|value| Some(Timestamp::from_millis(*value)));
    let source = source.build().expect("valid");
    assert_eq!(source.boundedness(), Boundedness::Bounded);
    let mut host = Host::start(&source, 1).expect("starts");
    host.run().await.expect("reads");
    assert_eq!(host.metrics.total(metrics::RECORDS_SKIPPED), 1);
    let seen: Vec<_> = host
        .emitted
        .iter()
        .map(|(_, r)| (r.value, r.timestamp))
        .collect();
    assert_eq!(
        seen,
        [1, 2, 3].map(|n| (n, Some(Timestamp::from_millis(n))))
    );
}

#[tokio::test]
async fn a_paused_split_rests_and_goes_on_where_it_was() {
    let dir = Dir::new();
    let path = dir.write("a.json", json_lines(0..100));
    let source = json()
        .path(path)
        .max_batch_records(10)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    while host.emitted.len() < 30 {
        host.step(10).await.expect("reads");
    }
    let split = host.checkpoint().expect("a snapshot").splits.remove(0).id;
    host.pause(&split);
    assert!(
        !host.step_now(10).expect("works"),
        "nothing comes of a paused split"
    );
    host.resume(&split);
    host.run().await.expect("reads");
    assert!(host.values().iter().map(|row| row.id).eq(0..100));
}

/// Keeps what it is given and runs none of it.
#[derive(Default)]
struct Standstill(std::sync::Mutex<Vec<TaskFuture>>);

struct Nothing;

impl Spawn for Standstill {
    fn spawn(&self, _name: &'static str, future: TaskFuture) -> Task {
        self.0.lock().expect("no panic while held").push(future);
        Task::new(Box::new(Nothing))
    }
}

impl TaskControl for Nothing {
    fn abort(&self) {}

    fn poll_ended(&mut self, _cx: &mut task::Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_file_that_gives_no_bytes_is_named_after_a_minute_and_once_a_minute() {
    let dir = Dir::new();
    let path = dir.write("slow.json", json_lines(0..10));
    let source = json()
        .path(&path)
        .max_batch_records(1)
        .build()
        .expect("valid");
    let mut host = Host::start(&source, 1).expect("starts");
    while host.emitted.is_empty() {
        host.step(1).await.expect("reads");
    }
    let splits = host.checkpoint().expect("a snapshot").splits;

    let clock = ManualClock::new(Timestamp::from_millis(0));
    let kit = TestContext::new("source").with_clock(Arc::new(clock.clone()));
    let context = Context {
        spawn: Arc::new(Standstill::default()),
        ..kit.subtask(0, 1)
    };
    let mut reader = source.create_reader(context).expect("makes");
    reader.add_splits(splits).expect("takes");
    let log = aqueduct_testkit::log::capture();
    let mut cx = task::Context::from_waker(task::Waker::noop());
    for second in 0..=130 {
        assert!(reader.poll_next(&mut cx).is_pending());
        assert_eq!(log.warnings().len(), second / 60, "after {second} seconds");
        assert!(clock.next_timer().is_some(), "it would be woken to warn");
        clock.advance(Duration::from_secs(1));
    }
    let warning = log.warnings().remove(0).to_string();
    assert!(
        warning.contains("no bytes") && warning.contains(&path),
        "{warning}"
    );
}

#[test]
fn bad_settings_are_refused_by_name_before_any_io() {
    let refused = |builder: FileSourceBuilder<Csv<Row>>, part: &str| {
        let error = builder.build().expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(csv(), "'path' is required");
    refused(
        csv().path("https://user:SECRET@host/x"),
        "'path' is invalid",
    );
    refused(
        csv().path("x").split_size(ByteSize(0)),
        "scan.files.split-size",
    );
    refused(
        csv().path("x").max_line_length(ByteSize(0)),
        "scan.files.max-line-length",
    );
    refused(
        csv().path("x").max_batch_records(0),
        "scan.batch.max-records",
    );
    refused(
        csv().path("x").max_batch_bytes(ByteSize(0)),
        "scan.batch.max-bytes",
    );
    refused(
        csv().path("x").read_ahead(ByteSize(u64::MAX)),
        "scan.files.read-ahead",
    );
    for delimiter in [b'"', b'\n', 0x80] {
        refused(csv().path("x").delimiter(delimiter), "csv.field-delimiter");
    }
    #[cfg(not(feature = "gcs"))]
    refused(csv().path("gs://bucket/x"), "`gcs`");
}

/// A guard against a setter that the reference page does not know, or the other way round.
#[test]
fn every_option_names_a_setter() {
    let source = include_str!("../../src/file/builder.rs");
    let generator = include_str!("../../src/generator/source.rs");
    for (declared, text) in [
        (aqueduct_files::options::files(), source),
        (aqueduct_files::options::generator(), generator),
    ] {
        for option in declared {
            let setter = format!("pub fn {}(", option.builder);
            assert!(
                text.contains(&setter),
                "{} has no setter {}",
                option.key,
                option.builder
            );
            assert!(
                text.contains(&format!("`{}`", option.key)),
                "{} is not documented",
                option.key
            );
        }
    }
}
