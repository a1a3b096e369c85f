//! Options are read through their declarations; a batch larger than wanted comes in pieces.

use std::collections::VecDeque;
use std::task::{Context as PollContext, Poll, Waker};

use super::*;
use crate::options::{Declaration, Opt, TextOpt};
use crate::row::RowWriter;
use crate::source::{Batch, ReaderOutput, Record, SourceReader};

const COUNT: Opt<u64> = Opt::new("sink.count", "doc")
    .at_least(1)
    .deprecated(&["sink.number"]);
const TOPIC: TextOpt = TextOpt::new("topic", "doc");
const TOPICS: TextOpt = TextOpt::new("auto.topics", "doc");

fn declared() -> Vec<TableOption> {
    let option = |declaration: Declaration, map| TableOption {
        declaration,
        map,
        used_by: UsedBy::Both,
    };
    vec![
        option(COUNT.declaration(), false),
        option(TOPIC.declaration(), false),
        option(TOPICS.declaration(), true),
    ]
}

fn refusal(spec: &TableSpec) -> String {
    TableOptions::new(spec, &declared())
        .map(|_| ())
        .expect_err("refused")
        .to_string()
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let text = refusal(&TableSpec::new("t").option("sink.cuont", "1"));
    assert!(
        text.contains("'sink.cuont'") && text.contains("'sink.count'"),
        "{text}"
    );
    let text = refusal(&TableSpec::new("t").option("properties.bootstrap", "1"));
    assert!(
        text.contains("'properties.bootstrap'") && !text.contains("sink.count"),
        "{text}"
    );
}

#[test]
fn an_old_spelling_works_and_both_spellings_do_not() {
    let spec = TableSpec::new("t").option("sink.number", "7");
    let options = TableOptions::new(&spec, &declared()).expect("sorted");
    assert_eq!(options.get(&COUNT), Ok(Some(7)));
    let text = refusal(&spec.option("sink.count", "8"));
    assert!(
        text.contains("sink.count") && text.contains("sink.number"),
        "{text}"
    );
}

#[test]
fn a_map_comes_packed_or_in_keys_and_not_both() {
    let keys = TableSpec::new("t")
        .option("auto.topics.a", "x")
        .option("auto.topics.b.c", "y");
    let options = TableOptions::new(&keys, &declared()).expect("sorted");
    let map = options.map("auto.topics").expect("a map").expect("given");
    assert_eq!(
        map.into_iter().collect::<Vec<_>>(),
        [("a", "x"), ("b.c", "y")]
    );
    let packed = TableSpec::new("t").option("auto.topics", "a:x, b:y");
    let options = TableOptions::new(&packed, &declared()).expect("sorted");
    let map = options.map("auto.topics").expect("a map").expect("given");
    assert_eq!(
        map.into_iter().collect::<Vec<_>>(),
        [("a", "x"), ("b", "y")]
    );
    let both = keys.option("auto.topics", "a:x");
    let options = TableOptions::new(&both, &declared()).expect("sorted");
    assert!(options.map("auto.topics").is_err());
    for bad in ["a", "a:", ":x", "a:x,,b:y", "a:x,a:y"] {
        let spec = TableSpec::new("t").option("auto.topics", bad);
        let options = TableOptions::new(&spec, &declared()).expect("sorted");
        assert!(options.map("auto.topics").is_err(), "{bad}");
    }
}

#[test]
fn lists_and_choices_name_what_is_wrong() {
    let spec = TableSpec::new("t")
        .option("topic", "a; b;;c")
        .option("sink.count", "per-key");
    let options = TableOptions::new(&spec, &declared()).expect("sorted");
    let text = options.list("topic").expect_err("empty entry").to_string();
    assert!(text.contains("entry 3"), "{text}");
    assert_eq!(
        options.choice("sink.count", &[("none", 0), ("PER-KEY", 1)]),
        Ok(Some(1))
    );
    let text = options
        .choice("sink.count", &[("none", 0)])
        .expect_err("no such choice")
        .to_string();
    assert!(
        text.contains("'per-key'") && text.contains("'none'"),
        "{text}"
    );
}

#[test]
fn debug_shows_no_value_of_an_option_and_no_literal() {
    let spec = TableSpec::new("t").option("topic", "secret-value");
    assert!(!format!("{spec:?}").contains("secret-value"));
    assert!(!format!("{:?}", Literal::Text("secret".to_owned())).contains("secret"));
}

/// Gives batches that were prepared, then ends.
struct Prepared(VecDeque<Vec<u64>>);

impl SourceReader<u64> for Prepared {
    fn add_splits(&mut self, _: Vec<Split>) -> Result<()> {
        Ok(())
    }

    fn no_more_splits(&mut self) -> Result<()> {
        Ok(())
    }

    fn poll_next(&mut self, _: &mut PollContext<'_>) -> Poll<Result<ReaderOutput<u64>>> {
        Poll::Ready(Ok(match self.0.pop_front() {
            None => ReaderOutput::End,
            Some(values) => ReaderOutput::Batch(Batch {
                split: SplitId::new("s"),
                records: values
                    .into_iter()
                    .map(|value| Record {
                        value,
                        timestamp: None,
                    })
                    .collect(),
            }),
        }))
    }

    fn emitted(&mut self, _: usize) {}

    fn snapshot(&mut self, _: CheckpointId) -> Result<Vec<Split>> {
        Ok(Vec::new())
    }

    fn pause_splits(&mut self, _: &[SplitId], _: &[SplitId]) {}

    fn poll_close(&mut self, _: &mut PollContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Numbers;

impl RowEncoder<u64> for Numbers {
    fn arity(&self) -> usize {
        1
    }

    fn encode(&mut self, record: &u64, row: &mut RowWriter<'_>) -> Result<()> {
        row.i64(0, i64::try_from(*record).expect("small"));
        Ok(())
    }
}

#[test]
fn a_batch_larger_than_wanted_comes_in_pieces_and_in_order() {
    let mut reader = super::read::reader_for_tests(
        Box::new(Prepared(VecDeque::from([
            vec![],
            (0..10).collect(),
            vec![10],
        ]))),
        Numbers,
    );
    let mut cx = PollContext::from_waker(Waker::noop());
    let (mut batch, mut seen) = (RowBatch::new(), Vec::new());
    loop {
        batch.clear(1 << 10);
        match reader.poll_next(&mut cx, &mut batch, 100) {
            Poll::Ready(Ok(TableOutput::Rows(_))) => {
                assert!((1..=4).contains(&batch.len()), "{batch:?}");
                seen.extend(
                    batch
                        .iter()
                        .map(|row| RowRef::new(row.bytes, 1).expect("a row").i64(0)),
                );
                reader.emitted(batch.len());
            }
            Poll::Ready(Ok(TableOutput::End)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, (0..=10).collect::<Vec<_>>());
    assert!(reader.reject("not JSON").is_err(), "no policy, so it fails");
}
