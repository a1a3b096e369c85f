//! Handles are driven as Java drives them, without Java.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use aqueduct_connector::row::{RowBatch, RowKind};
use aqueduct_connector::sink::Flush;
use aqueduct_connector::state::StateWriter;
use aqueduct_connector::{ErrorKind, Subtask};
use bytes::Bytes;

use crate::errors::Failure;
use crate::host::{self, Part, Place};
use crate::logs::Verbosity;
use crate::reader::{Reader, Request};
use crate::writer::{Goal, Writer};
use crate::{enumerator, plan, wire};

/// The library's state is the process's: tests that start it take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` with the library started, and holds it to have left no handle.
fn started(test: impl FnOnce(u64)) {
    let _one_at_a_time = alone();
    let start = host::start(Verbosity::Off).expect("not running");
    test(start);
    assert_eq!(host::open_handles(), 0, "a handle was left");
    host::stop();
    assert_eq!(
        host::await_wakeups(start, Duration::ZERO, &mut [0; 4]),
        None
    );
}

fn place() -> Place {
    Place {
        job: "job".to_owned(),
        operator: "operator".to_owned(),
        subtask: Subtask {
            index: 0,
            parallelism: 1,
        },
        attempt: 0,
        seed: 7,
    }
}

/// A table of the probe with one `BIGINT`, as a sink or a scan.
fn table(kind: u8, options: &[(&str, &str)]) -> Vec<u8> {
    let mut body = StateWriter::new();
    body.text(crate::probe::CONNECTOR).text("t");
    body.count(1).text("id").text("BIGINT").count(0);
    body.count(options.len());
    for (key, value) in options {
        body.text(key).text(value);
    }
    body.u8(kind);
    match kind {
        1 => body.count(1).u8(0).count(0).u32(0),
        _ => body.u8(0).count(0).count(0).u8(0),
    };
    let body = body.finish(0);
    StateWriter::new()
        .u32(1)
        .bytes(&body.bytes)
        .finish(0)
        .bytes
        .to_vec()
}

fn ok<T>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(Failure::Connector(error)) => panic!("{error:?}"),
        Err(Failure::Java(error)) => panic!("{error}"),
    }
}

fn open_writer(options: &[(&str, &str)]) -> u64 {
    let sink = ok(plan::sink(table(1, options)));
    host::open(place(), |context| {
        Writer::new(sink.as_ref(), context, Vec::new()).map(Part::Writer)
    })
    .expect("opens")
}

fn rows(numbers: std::ops::Range<i64>) -> Bytes {
    let mut batch = RowBatch::new();
    for number in numbers {
        batch.push(None, RowKind::Insert, 1, |row| row.i64(0, number));
    }
    Bytes::copy_from_slice(batch.as_bytes())
}

fn writer<R>(
    id: u64,
    f: impl FnOnce(&mut Writer, &mut std::task::Context<'_>) -> aqueduct_connector::Result<R>,
) -> aqueduct_connector::Result<R> {
    host::with(id, |part, cx| match part {
        Part::Writer(writer) => f(writer, cx),
        _ => unreachable!("a writer was opened"),
    })
}

fn poll(id: u64, goal: Goal) -> aqueduct_connector::Result<Poll<()>> {
    writer(id, |writer, cx| match writer.poll(cx, goal) {
        Poll::Ready(result) => result.map(Poll::Ready),
        Poll::Pending => Ok(Poll::Pending),
    })
}

/// Waits for wake-ups until `goal` is reached.
fn reach(start: u64, id: u64, goal: Goal) {
    for _ in 0..100_000 {
        if poll(id, goal).expect("well").is_ready() {
            return;
        }
        let woken = host::await_wakeups(start, Duration::from_secs(30), &mut [0; 4]);
        assert!(woken.expect("running") > 0, "nothing woke the handle");
    }
    panic!("it wakes and does not get on");
}

#[test]
fn a_batch_larger_than_the_bound_goes_in_as_room_comes_and_loses_nothing() {
    started(|start| {
        let options = [
            ("store", "bound"),
            ("sink.capacity", "3"),
            ("sink.delay", "1 ms"),
        ];
        let id = open_writer(&options);
        writer(id, |writer, _| writer.push(rows(0..20))).expect("taken over");
        assert!(
            poll(id, Goal::Taken).expect("well").is_pending(),
            "20 rows exceed the bound"
        );
        let twice = writer(id, |writer, _| writer.push(rows(0..1)));
        assert_eq!(twice.map_err(|error| error.kind()), Err(ErrorKind::Bug));
        reach(start, id, Goal::Taken);
        reach(start, id, Goal::Flushed(Flush::EndOfInput));
        reach(start, id, Goal::Closed);
        host::free(id);
        assert_eq!(
            read_all(&[("store", "bound"), ("scan.splits", "3")]),
            (0..20).collect::<Vec<_>>()
        );
    });
}

/// Drives an enumerator and one reader to the end; gives the rows in order of their number.
fn read_all(options: &[(&str, &str)]) -> Vec<i64> {
    let source = ok(plan::source(table(2, options)));
    let hosts = [
        host::open(place(), |context| {
            crate::enumerator::Enumerator::new(source.as_ref(), context, None).map(Part::Enumerator)
        })
        .expect("opens"),
        host::open(place(), |context| {
            Reader::new(source.as_ref(), context).map(Part::Reader)
        })
        .expect("opens"),
    ];
    let ask = |request, argument: &mut StateWriter| -> Bytes {
        host::with(hosts[0], |part, cx| match part {
            Part::Enumerator(enumerator) => enumerator.call(cx, request, argument.finish(0).bytes),
            _ => unreachable!("an enumerator was opened"),
        })
        .expect("well")
    };
    let tell = |request, argument: Bytes| {
        host::with(hosts[1], |part, _| match part {
            Part::Reader(reader) => reader.call(request, argument),
            _ => unreachable!("a reader was opened"),
        })
        .expect("well");
    };
    assert!(ask(enumerator::Request::Progress, &mut StateWriter::new()).is_empty());
    ask(enumerator::Request::Registered, StateWriter::new().u32(0));
    let mut read = Vec::new();
    loop {
        let (kind, found) = host::with(hosts[1], |part, cx| {
            let Part::Reader(reader) = part else {
                unreachable!("a reader was opened")
            };
            let Poll::Ready(output) = reader.poll_next(cx) else {
                panic!("nothing to wait for")
            };
            let (header, rows) = output?;
            let found: Vec<i64> = rows
                .chunks(32)
                .map(|row| i64::from_ne_bytes(row[24..32].try_into().expect("8 bytes")))
                .collect();
            let kind = header[0];
            reader.emitted(found.len());
            Ok((kind, found))
        })
        .expect("well");
        read.extend(found);
        match kind {
            4 => {
                let commands = ask(enumerator::Request::Requested, StateWriter::new().u32(0));
                let value = wire::unversioned(commands);
                let mut reader = wire::message(&value).expect("no version");
                assert_eq!((reader.u32(), reader.u8()).0, Ok(1));
                if reader.u32() == Ok(0) && value.bytes.len() > 9 {
                    tell(Request::AddSplits, value.bytes.slice(9..));
                } else {
                    tell(Request::NoMoreSplits, Bytes::new());
                }
            }
            6 => break,
            _ => {}
        }
    }
    for id in hosts {
        host::free(id);
    }
    read.sort_unstable();
    read
}

#[test]
fn a_panic_becomes_an_error_with_its_text_and_poisons_the_handle() {
    started(|_| {
        let id = open_writer(&[("store", "panics"), ("panic-at", "2")]);
        writer(id, |writer, _| writer.push(rows(0..3))).expect("taken over");
        let error = poll(id, Goal::Taken).expect_err("panics");
        assert_eq!(error.kind(), ErrorKind::Bug);
        assert!(
            error.report().contains("row 2 panics as it was told"),
            "{error}"
        );
        let error = poll(id, Goal::Closed).expect_err("poisoned");
        assert!(
            error.report().contains("row 2 panics as it was told"),
            "{error}"
        );
        host::free(id);
        let error = poll(id, Goal::Closed).expect_err("freed");
        assert!(error.report().contains("closed"), "{error}");
    });
}

#[test]
fn an_error_keeps_its_kind_and_its_causes() {
    started(|_| {
        let id = open_writer(&[("store", "fails"), ("fail-at", "1")]);
        writer(id, |writer, _| writer.push(rows(0..3))).expect("taken over");
        let error = poll(id, Goal::Taken).expect_err("fails");
        assert_eq!(error.kind(), ErrorKind::Data);
        assert_eq!(error.report(), "row 1 fails: as it was told");
        host::free(id);
    });
}

#[test]
fn a_damaged_batch_is_refused() {
    started(|_| {
        let whole = rows(0..1);
        for length in 1..whole.len() {
            let id = open_writer(&[("store", "damaged")]);
            writer(id, |writer, _| writer.push(whole.slice(..length))).expect("taken over");
            assert!(poll(id, Goal::Taken).is_err(), "cut at {length}");
            host::free(id);
        }
    });
}

#[test]
fn a_start_again_is_another_start() {
    started(|first| {
        assert!(host::start(Verbosity::Off).is_err(), "it runs");
        host::stop();
        let second = host::start(Verbosity::Off).expect("stopped");
        assert_eq!(
            host::await_wakeups(first, Duration::from_secs(30), &mut [0; 4]),
            None
        );
        assert_eq!(
            host::await_wakeups(second, Duration::ZERO, &mut [0; 4]),
            Some(0)
        );
    });
}
