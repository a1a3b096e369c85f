//! Seeds: a randomized test loops over some, names the one that failed, and runs a single one again on demand.
//!
//! ```
//! for seed in aqueduct_testkit::seeds(0..4) {
//!     let mut random = fastrand::Rng::with_seed(seed);
//!     assert!(random.u32(..10) < 10);
//! }
//! ```

use std::env;
use std::ops::Range;

/// Environment variable that replaces the default seeds: `7`, `1,5,9` or `0..100`.
pub const SEEDS: &str = "AQUEDUCT_SEEDS";

/// The seeds to run with: those of [`SEEDS`] if it is set, else `default`. A panic inside the loop prints the seed.
///
/// # Panics
///
/// If the variable is set to anything else.
#[must_use]
pub fn seeds(default: Range<u64>) -> Seeds {
    let seeds = match env::var(SEEDS) {
        Ok(text) => parse(&text)
            .unwrap_or_else(|| panic!("{SEEDS}={text}: expected `7`, `1,5,9` or `0..100`")),
        Err(_) => default.collect(),
    };
    Seeds {
        left: seeds.into_iter(),
        current: None,
    }
}

/// The seeds of one loop, see [`seeds`].
#[derive(Debug)]
pub struct Seeds {
    left: std::vec::IntoIter<u64>,
    current: Option<u64>,
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.left.next();
        self.current
    }
}

impl Drop for Seeds {
    #[expect(
        clippy::print_stderr,
        reason = "the harness shows it with the failure; a log may have no reader"
    )]
    fn drop(&mut self) {
        if let (Some(seed), true) = (self.current, std::thread::panicking()) {
            eprintln!("failed with seed {seed}; run again with {SEEDS}={seed}");
        }
    }
}

fn parse(text: &str) -> Option<Vec<u64>> {
    if let Some((from, to)) = text.split_once("..") {
        let range: Range<u64> = from.trim().parse().ok()?..to.trim().parse().ok()?;
        return Some(range.collect());
    }
    text.split(',')
        .map(|seed| seed.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_a_list_or_a_range_and_nothing_else() {
        assert_eq!(parse("7"), Some(vec![7]));
        assert_eq!(parse("1, 5,9"), Some(vec![1, 5, 9]));
        assert_eq!(parse("2..5"), Some(vec![2, 3, 4]));
        for bad in ["", "x", "1..", "1;2", "-1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
