//! Range notation: whatever reads prints, and the print reads as the same range.
//!
//! `cargo +nightly fuzz run range_notation` in `crates/bigtable`.

#![no_main]

use aqueduct_bigtable::RowRange;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(range) = RowRange::parse(text) {
        assert_eq!(RowRange::parse(&range.to_string()), Ok(range));
    }
});
