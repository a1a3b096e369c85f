//! The suite that every source passes: barriers, restores, failures and rescales at every point.

use std::sync::Arc;

use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::Source;
use aqueduct_files::file::{Csv, FileFormat, FileSourceBuilder};
use aqueduct_files::{FileSource, GeneratorSource};
use aqueduct_testkit::conformance::{self, Effort, SourceWorld};
use aqueduct_testkit::log::Marker;
use serde::Deserialize;
use tempfile::TempDir;

/// In every file; in no log and no error.
const CONTENT: &str = "content-of-a-file";

#[derive(Debug, Deserialize)]
struct Row {
    id: u32,
}

/// A few files and a source of their rows.
struct Files {
    dir: TempDir,
    rows: u32,
    source: fn(&TempDir) -> Arc<dyn Source<Row>>,
}

impl SourceWorld for Files {
    type Record = Row;

    fn source(&self) -> Arc<dyn Source<Row>> {
        (self.source)(&self.dir)
    }

    fn key(&self, row: &Row) -> String {
        row.id.to_string()
    }

    fn expected(&self) -> Vec<String> {
        (0..self.rows).map(|id| id.to_string()).collect()
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(CONTENT))
    }
}

/// `files` files of ten rows each, the last without a line end.
fn world(files: u32, row: fn(u32) -> String, head: &str, source: SourceOf) -> Files {
    let dir = TempDir::new().expect("a temporary directory");
    for file in 0..files {
        let rows: Vec<String> = (file * 10..file * 10 + 10).map(row).collect();
        let content = format!("{head}{}", rows.join("\n"));
        std::fs::write(dir.path().join(format!("{file}.txt")), content).expect("writable");
    }
    Files {
        dir,
        rows: files * 10,
        source,
    }
}

type SourceOf = fn(&TempDir) -> Arc<dyn Source<Row>>;

fn finish<F>(builder: FileSourceBuilder<F>, dir: &TempDir) -> Arc<dyn Source<Row>>
where
    F: FileFormat<Output = Row>,
{
    let path = dir.path().to_str().expect("UTF-8");
    Arc::new(
        builder
            .path(path)
            .max_batch_records(3)
            .build()
            .expect("valid"),
    )
}

fn csv() -> FileSourceBuilder<Csv<Row>> {
    FileSource::csv::<Row>()
}

#[tokio::test]
async fn json_lines_conform() {
    let row = |id| format!("{{\"id\": {id}, \"text\": \"{CONTENT}\"}}");
    let source: SourceOf = |dir| finish(FileSource::json::<Row>().split_size(ByteSize(100)), dir);
    let report = conformance::source(Effort::default(), async |_| world(3, row, "", source)).await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn csv_with_quoted_line_ends_conforms() {
    let row = |id| format!("\"{CONTENT}\n\",{id}");
    let source: SourceOf = |dir| finish(csv(), dir);
    let report = conformance::source(Effort::default(), async |_| {
        world(5, row, "text,id\n", source)
    })
    .await;
    report.assert_all_but(&[]);
}

#[tokio::test]
async fn csv_cut_into_splits_conforms() {
    let row = |id| format!("{CONTENT},{id}");
    let source: SourceOf = |dir| finish(csv().splittable(true).split_size(ByteSize(90)), dir);
    let report = conformance::source(Effort::default(), async |_| {
        world(3, row, "text,id\n", source)
    })
    .await;
    report.assert_all_but(&[]);
}

/// A generator, bounded or not.
struct Numbers {
    limit: Option<u64>,
}

/// How many numbers the suite waits for.
const NUMBERS: u64 = 700;

impl SourceWorld for Numbers {
    type Record = u64;

    fn source(&self) -> Arc<dyn Source<u64>> {
        let builder = GeneratorSource::builder(|index| index).stripes(5);
        let builder = match self.limit {
            Some(limit) => builder.limit(limit),
            None => builder,
        };
        Arc::new(builder.build().expect("valid"))
    }

    fn key(&self, record: &u64) -> String {
        record.to_string()
    }

    fn expected(&self) -> Vec<String> {
        (0..NUMBERS).map(|index| index.to_string()).collect()
    }
}

#[tokio::test]
async fn the_generator_conforms() {
    let make = async |_| Numbers {
        limit: Some(NUMBERS),
    };
    conformance::source(Effort::default(), make)
        .await
        .assert_all_but(&[]);
}
