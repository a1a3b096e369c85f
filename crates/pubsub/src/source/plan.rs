//! Subscriptions to splits to subtasks (PS-SRC-02). Pure: recomputed on every start, at whatever parallelism.

use super::OrderingMode;

/// One split of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Its uid.
    pub(super) uid: u32,
    /// Index of its subscription in the list.
    pub(super) subscription: usize,
    /// The subtask that reads it.
    pub(super) owner: u32,
}

/// Every subscription is read; without order, by as many splits as it takes to keep every subtask busy.
pub(super) fn plan(subscriptions: usize, mode: OrderingMode, parallelism: u32) -> Vec<Planned> {
    let lists = u32::try_from(subscriptions).unwrap_or(u32::MAX);
    let splits = match mode {
        OrderingMode::PerKey => lists,
        OrderingMode::None => lists.max(parallelism),
    };
    (0..splits)
        .map(|uid| Planned {
            uid,
            subscription: uid as usize % subscriptions,
            owner: uid % parallelism,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subscription_is_covered_at_every_parallelism_and_per_key_has_one_owner() {
        for subscriptions in 1..6usize {
            for parallelism in 1..8u32 {
                for mode in [OrderingMode::None, OrderingMode::PerKey] {
                    let plan = plan(subscriptions, mode, parallelism);
                    for wanted in 0..subscriptions {
                        let splits = plan.iter().filter(|split| split.subscription == wanted);
                        let splits = splits.count();
                        assert!(splits >= 1);
                        assert!(mode == OrderingMode::None || splits == 1);
                    }
                    if mode == OrderingMode::None {
                        for subtask in 0..parallelism {
                            assert!(plan.iter().any(|split| split.owner == subtask));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn splits_go_round_robin_over_subscriptions_and_subtasks() {
        let split = |uid, subscription, owner| Planned {
            uid,
            subscription,
            owner,
        };
        assert_eq!(
            plan(2, OrderingMode::None, 3),
            [split(0, 0, 0), split(1, 1, 1), split(2, 0, 2)]
        );
    }
}
