//! Messages that were emitted and whose acknowledgement was given up, so that a later delivery is acknowledged and not
//! emitted again. Only exactly-once subscriptions promise that (PS-SRC-35); what they refuse for good, they may have
//! acknowledged before, so such a message cannot be held until it comes.

use std::collections::{HashSet, VecDeque};

use crate::client::pull::decode::MessageId;

/// Ids remembered at most, a few megabytes of them; the oldest go first.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct GivenUp {
    ids: HashSet<MessageId>,
    /// Oldest first; ids that came again stay here until their turn.
    order: VecDeque<MessageId>,
}

impl GivenUp {
    pub(super) fn note(&mut self, id: &MessageId) {
        if self.order.len() == MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.ids.insert(id.clone());
    }

    /// Whether `id` is one of them; it is none any more.
    pub(super) fn take(&mut self, id: &MessageId) -> bool {
        !self.ids.is_empty() && self.ids.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_once_and_the_oldest_are_forgotten() {
        let mut given_up = GivenUp::default();
        for number in 0..=MOST as u64 {
            given_up.note(&MessageId::Number(number));
        }
        assert!(!given_up.take(&MessageId::Number(0)), "the oldest");
        assert!(given_up.take(&MessageId::Number(1)));
        assert!(!given_up.take(&MessageId::Number(1)), "once");
        assert_eq!(given_up.order.len(), MOST);
    }
}
