//! A stripe of the sequence, and its bytes in a checkpoint.
//!
//! Stripe `k` of `n` holds the blocks `k`, `k + n`, `k + 2n`, ...; block `b` holds the [`BLOCK`]
//! indices from `b * BLOCK`.

use std::ops::Range;

use aqueduct_connector::source::{Split, SplitId};
use aqueduct_connector::state::{StateError, StateReader, StateWriter, Versioned};

use super::BLOCK;

const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stripe {
    pub(super) number: u32,
    /// How many there are, at least 1.
    pub(super) of: u32,
    /// The next index, or one that this stripe's turn has not reached; `u64::MAX`: used up.
    pub(super) next: u64,
}

impl Stripe {
    pub(super) fn new(number: u32, of: u32) -> Self {
        Self {
            number,
            of,
            next: u64::from(number) * BLOCK,
        }
    }

    pub(super) fn id(&self) -> SplitId {
        SplitId::new(format!("stripe {} of {}", self.number, self.of))
    }

    pub(super) fn to_split(self) -> Split {
        Split {
            id: self.id(),
            state: self.encode(),
        }
    }

    /// The consecutive indices that come next, below `limit` if there is one; empty at the end.
    pub(super) fn run(&self, limit: Option<u64>) -> Range<u64> {
        let block_end = (self.next / BLOCK + 1).saturating_mul(BLOCK);
        let end = block_end.min(limit.unwrap_or(u64::MAX));
        self.next..end.max(self.next)
    }

    /// Where the stripe stands after `records` of its run were emitted.
    pub(super) fn after(mut self, records: u64) -> Self {
        self.next = self.next.saturating_add(records);
        if self.next.is_multiple_of(BLOCK) && records > 0 {
            // The blocks in between are other stripes'.
            let others = u64::from(self.of - 1).saturating_mul(BLOCK);
            self.next = self.next.saturating_add(others);
        }
        self
    }

    fn encode(self) -> Versioned {
        StateWriter::new()
            .u32(self.number)
            .u32(self.of)
            .u64(self.next)
            .finish(VERSION)
    }

    pub(super) fn decode(state: &Versioned) -> Result<Self, StateError> {
        let mut from = StateReader::open("a generator stripe", state, 1..=VERSION)?;
        let stripe = Self {
            number: from.u32()?,
            of: from.u32()?,
            next: from.u64()?,
        };
        if stripe.number >= stripe.of {
            return Err(from.damaged("the stripe's number is not below their count"));
        }
        from.finish()?;
        Ok(stripe)
    }
}

/// The enumerator's state: stripes that no reader has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnumeratorState {
    pub(super) unassigned: Vec<Stripe>,
}

impl EnumeratorState {
    const VERSION: u32 = 1;

    pub(super) fn encode<'a>(unassigned: impl ExactSizeIterator<Item = &'a Stripe>) -> Versioned {
        let mut to = StateWriter::new();
        to.count(unassigned.len());
        for stripe in unassigned {
            to.versioned(&stripe.encode());
        }
        to.finish(Self::VERSION)
    }

    pub(super) fn decode(state: &Versioned) -> Result<Self, StateError> {
        let what = "the state of a generator enumerator";
        let mut from = StateReader::open(what, state, 1..=Self::VERSION)?;
        let count = from.count(24)?;
        let unassigned = (0..count)
            .map(|_| from.versioned().and_then(|stripe| Stripe::decode(&stripe)))
            .collect::<Result<_, _>>()?;
        from.finish()?;
        Ok(Self { unassigned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE_V1: &[u8] = include_bytes!("../../tests/it/golden/generator-stripe-v1.bin");
    const ENUMERATOR_V1: &[u8] =
        include_bytes!("../../tests/it/golden/generator-enumerator-v1.bin");

    fn sample() -> Stripe {
        Stripe {
            number: 3,
            of: 32,
            next: 1_000_000,
        }
    }

    #[test]
    fn the_current_version_keeps_its_bytes_and_reads_back() {
        assert_eq!(
            sample().encode().bytes,
            STRIPE_V1,
            "changed? that is version 2"
        );
        let stripes = [sample(), Stripe::new(0, 1)];
        let state = EnumeratorState::encode(stripes.iter());
        assert_eq!(state.bytes, ENUMERATOR_V1, "changed? that is version 2");
        assert_eq!(Stripe::decode(&Versioned::new(1, STRIPE_V1)), Ok(sample()));
        let read = EnumeratorState::decode(&Versioned::new(1, ENUMERATOR_V1));
        assert_eq!(
            read,
            Ok(EnumeratorState {
                unassigned: stripes.to_vec()
            })
        );
    }

    #[test]
    fn damage_and_newer_versions_are_refused() {
        assert!(Stripe::decode(&Versioned::new(2, STRIPE_V1)).is_err());
        assert!(EnumeratorState::decode(&Versioned::new(2, ENUMERATOR_V1)).is_err());
        for len in 0..STRIPE_V1.len() {
            assert!(Stripe::decode(&Versioned::new(1, &STRIPE_V1[..len])).is_err());
        }
        let impossible = Stripe {
            number: 5,
            of: 5,
            next: 0,
        }
        .encode();
        assert!(Stripe::decode(&impossible).is_err());
    }

    #[test]
    fn stripes_cover_the_sequence_once_whatever_their_number_and_the_limit() {
        for of in [1, 2, 7, 32] {
            for limit in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 5] {
                let mut seen = Vec::new();
                for number in 0..of {
                    let mut stripe = Stripe::new(number, of);
                    loop {
                        let run = stripe.run(Some(limit));
                        if run.is_empty() {
                            break;
                        }
                        // Emitted in two parts, as a rate or a barrier may cut it.
                        let first = (run.end - run.start).div_ceil(2);
                        seen.extend(run.start..run.start + first);
                        stripe = stripe.after(first);
                    }
                }
                seen.sort_unstable();
                assert!(
                    seen.into_iter().eq(0..limit),
                    "{of} stripes, {limit} records"
                );
            }
        }
    }

    #[test]
    fn the_end_of_the_numbers_is_an_end_and_not_a_wrap() {
        let last = Stripe {
            number: 0,
            of: 2,
            next: u64::MAX - 3,
        };
        let run = last.run(None);
        let after = last.after(run.end - run.start);
        assert_eq!(after.next, u64::MAX);
        assert!(after.run(None).is_empty());
    }
}
