//! Restored state, spread over the subtasks of this run.
//!
//! With the parallelism that wrote it, every subtask gets its own share back. With another one, splits
//! and list items are dealt round-robin in their stored order, and keyed state goes where its group goes.

use std::collections::HashMap;

use aqueduct_connector::Versioned;

use super::state::{OperatorFile, PendingCommit, SubtaskState};
use crate::keyed::groups_of;

/// The state that a run starts from, by operator name.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) operators: HashMap<String, OperatorFile>,
}

impl Restored {
    /// The enumerator's state of the source called `operator`.
    pub(crate) fn enumerator(&self, operator: &str) -> Option<Versioned> {
        self.operators.get(operator)?.enumerator.clone()
    }

    /// What the committer of the sink called `operator` has to confirm. A committable may have been handed
    /// over once more than the checkpoint knows.
    pub(crate) fn committables(&self, operator: &str) -> Vec<PendingCommit> {
        let pending = self.operators.get(operator).map(|file| &file.committables);
        pending
            .into_iter()
            .flatten()
            .map(|pending| PendingCommit {
                attempt: pending.attempt.saturating_add(1),
                ..pending.clone()
            })
            .collect()
    }

    /// The share of subtask `index` of `parallelism`.
    pub(crate) fn subtask(
        &self,
        operator: &str,
        index: u32,
        parallelism: u32,
        max_parallelism: u32,
    ) -> SubtaskState {
        let Some(file) = self.operators.get(operator) else {
            return SubtaskState::default();
        };
        let (index_at, count) = (index as usize, parallelism as usize);
        if file.subtasks.len() == count {
            return file.subtasks[index_at].clone();
        }
        let groups = groups_of(index, parallelism, max_parallelism);
        let mine = |at: usize| at % count == index_at;
        SubtaskState {
            splits: file
                .subtasks
                .iter()
                .flat_map(|subtask| &subtask.splits)
                .enumerate()
                .filter(|(at, _)| mine(*at))
                .map(|(_, split)| split.clone())
                .collect(),
            list: file
                .subtasks
                .iter()
                .flat_map(|subtask| &subtask.list)
                .enumerate()
                .filter(|(at, _)| mine(*at))
                .map(|(_, item)| item.clone())
                .collect(),
            keyed: file
                .subtasks
                .iter()
                .flat_map(|subtask| &subtask.keyed)
                .filter(|(group, _)| groups.contains(group))
                .cloned()
                .collect(),
            committables: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::source::{Split, SplitId};

    use super::*;

    fn restored(parallelism: usize) -> Restored {
        let mut subtasks = vec![SubtaskState::default(); parallelism];
        for number in 0..10_u32 {
            let subtask = &mut subtasks[number as usize % parallelism];
            subtask.splits.push(Split {
                id: SplitId::new(number.to_string()),
                state: Versioned::new(1, ""),
            });
            subtask
                .list
                .push(Versioned::new(1, number.to_string().into_bytes()));
        }
        for (index, subtask) in subtasks.iter_mut().enumerate() {
            let index = u32::try_from(index).expect("small");
            let parallelism = u32::try_from(parallelism).expect("small");
            for group in groups_of(index, parallelism, 128) {
                subtask.keyed.push((group, Versioned::new(1, "")));
            }
        }
        let file = OperatorFile {
            subtasks,
            ..OperatorFile::default()
        };
        Restored {
            operators: HashMap::from([("op".to_owned(), file)]),
        }
    }

    #[test]
    fn every_item_goes_to_exactly_one_subtask_at_any_parallelism() {
        for (from, to) in [(1, 3), (3, 2), (2, 2), (4, 1), (2, 16)] {
            let restored = restored(from);
            let shares: Vec<_> = (0..to)
                .map(|index| restored.subtask("op", index, to, 128))
                .collect();
            let mut ids: Vec<_> = shares
                .iter()
                .flat_map(|share| share.splits.iter().map(|split| split.id.to_string()))
                .collect();
            ids.sort();
            assert_eq!(ids.len(), 10);
            ids.dedup();
            assert_eq!(ids.len(), 10);
            assert_eq!(
                shares.iter().map(|share| share.list.len()).sum::<usize>(),
                10
            );
            let groups: usize = shares.iter().map(|share| share.keyed.len()).sum();
            assert_eq!(groups, 128);
            for (index, share) in (0..to).zip(&shares) {
                let range = groups_of(index, to, 128);
                assert!(share.keyed.iter().all(|(group, _)| range.contains(group)));
            }
        }
    }
}
