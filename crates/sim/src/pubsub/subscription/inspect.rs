//! What a subscription shows of itself to tests.

use std::sync::Arc;

use super::{State, SubState};
use crate::pubsub::{
    clock::{Nanos, time_at},
    manners::Lease,
    message::Stored,
};

impl SubState {
    pub(crate) fn unacked(&self) -> usize {
        self.unacked
    }

    pub(crate) fn leased(&self) -> usize {
        self.leased
    }

    pub(crate) fn unacked_messages(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.entries
            .values()
            .filter(|entry| entry.state != State::Acked)
            .map(|entry| &entry.message)
    }

    pub(crate) fn leases(&self) -> Vec<Lease> {
        self.entries
            .values()
            .filter_map(|entry| match entry.state {
                State::Leased { until, stream } => Some(Lease {
                    message_id: entry.message.message.message_id.clone(),
                    expires: time_at(until),
                    stream_open: stream.is_some_and(|id| self.streams.contains_key(&id)),
                }),
                _ => None,
            })
            .collect()
    }

    /// Leases of open streams that end at `until` or before.
    pub(crate) fn open_leases_ending_by(&self, until: Nanos) -> usize {
        let due = self.timers.range(..=(until, u64::MAX));
        due.filter(|(_, sequence)| {
            let state = self.entries.get(sequence).map(|entry| entry.state);
            matches!(state, Some(State::Leased { stream: Some(id), .. }) if self.streams.contains_key(&id))
        })
        .count()
    }
}
