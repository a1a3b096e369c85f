//! Answers of `ReadRows`, cut into messages: whatever comes, rows are whole and their keys ascend.
//!
//! `cargo +nightly fuzz run read_rows_decode` in `crates/bigtable`.

#![no_main]

use aqueduct_bigtable::client::read::{RowBatch, RowDecoder, ScanOrder};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|messages: Vec<Vec<u8>>| {
    let mut decoder = RowDecoder::new(ScanOrder::Forward);
    let mut batch = RowBatch::new();
    for message in messages {
        if decoder.decode(Bytes::from(message), &mut batch).is_err() {
            break;
        }
    }
    let mut last: Option<&[u8]> = None;
    for row in batch.iter() {
        assert!(last.is_none_or(|last| last < row.key()), "keys ascend");
        assert!(row.cells().len() > 0, "a row has a cell");
        for cell in row.cells() {
            let _ = (cell.family(), cell.qualifier(), cell.value(), cell.labels().count());
        }
        let copy = row.to_row();
        assert_eq!(copy.key(), row.key());
        last = Some(row.key());
    }
});
