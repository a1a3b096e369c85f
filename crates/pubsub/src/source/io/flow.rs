//! What bounds intake: flow control of a split, the reader's budget, and who is parked for it (PS-SRC-15, -25). Pure.
//!
//! The rule is the same everywhere: below both caps, and never "does this fit", so a message larger than a cap passes
//! alone, and the overshoot is one response a stream.

/// A cap on messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Caps {
    /// Whether more may come in.
    pub(crate) fn admit(self, (messages, bytes): (u64, u64)) -> bool {
        messages < self.messages && bytes < self.bytes
    }

    /// What each of `streams` announces, rounded up: announcing 0 would lift the limit.
    pub(crate) fn share(self, streams: u64) -> Self {
        Self {
            messages: self.messages.div_ceil(streams),
            bytes: self.bytes.div_ceil(streams),
        }
    }
}

/// A split as the budget sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) buffered: (u64, u64),
    /// Paused, with streams open.
    pub(crate) parkable: bool,
}

/// Whom to park so that the budget is kept: paused splits, largest first, until below it. A paused split over a bound of
/// its own is parked whatever the budget says.
pub(crate) fn to_park(budget: Caps, paused: Option<Caps>, splits: &[Load]) -> Vec<usize> {
    let mut parked: Vec<usize> = (0..splits.len())
        .filter(|at| {
            let split = &splits[*at];
            split.parkable && paused.is_some_and(|caps| !caps.admit(split.buffered))
        })
        .collect();
    let total = |parked: &[usize]| {
        splits
            .iter()
            .enumerate()
            .filter(|(at, _)| !parked.contains(at))
            .fold((0, 0), |(messages, bytes), (_, split)| {
                (messages + split.buffered.0, bytes + split.buffered.1)
            })
    };
    while !budget.admit(total(&parked)) {
        let largest = (0..splits.len())
            .filter(|at| splits[*at].parkable && !parked.contains(at))
            .max_by_key(|at| (splits[*at].buffered.1, splits[*at].buffered.0));
        match largest {
            Some(at) => parked.push(at),
            None => break,
        }
    }
    parked
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Caps = Caps {
        messages: 100,
        bytes: 1_000,
    };

    fn load(messages: u64, bytes: u64, parkable: bool) -> Load {
        Load {
            buffered: (messages, bytes),
            parkable,
        }
    }

    #[test]
    fn the_gate_is_below_both_caps_and_never_whether_it_fits() {
        assert!(BUDGET.admit((99, 999)));
        assert!(!BUDGET.admit((100, 0)) && !BUDGET.admit((0, 1_000)));
    }

    #[test]
    fn shares_are_rounded_up_and_never_nothing() {
        let share = Caps {
            messages: 10,
            bytes: 1,
        }
        .share(4);
        assert_eq!((share.messages, share.bytes), (3, 1));
    }

    #[test]
    fn paused_splits_go_largest_first_until_the_rest_is_below() {
        let splits = [
            load(50, 500, false),
            load(10, 100, true),
            load(40, 400, true),
        ];
        assert_eq!(to_park(BUDGET, None, &splits), [2]);
        assert_eq!(
            to_park(BUDGET, None, &[load(200, 10, false)]),
            [0usize; 0],
            "reading stops instead"
        );
    }

    #[test]
    fn a_bound_of_its_own_parks_a_paused_split_alone() {
        let caps = Caps {
            messages: 10,
            bytes: u64::MAX,
        };
        let splits = [load(10, 1, true), load(9, 1, true), load(20, 1, false)];
        assert_eq!(to_park(BUDGET, Some(caps), &splits), [0]);
    }
}
