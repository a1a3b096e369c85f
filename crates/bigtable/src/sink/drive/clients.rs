//! Clients of a writer: opened with the first record of an instance, given up for another one, for idleness, at the end.

use std::task::{self, Poll};

use aqueduct_connector::{Moment, Result};
use tracing::{debug, warn};

use super::{Drive, Failure, Held, Pass, RowOrder, TableDestination};
use crate::client::mutate::Target;
use crate::sink::batch;
use crate::sink::tables::{InstanceId, Table, TableId};

impl Drive {
    /// The table at `destination`, opened if need be; `None` if every client slot is taken.
    pub(super) fn find_or_open(
        &mut self,
        destination: &TableDestination,
    ) -> Result<Option<TableId>> {
        if let Some(table) = self.tables.find(destination) {
            return Ok(Some(table));
        }
        let instance = match self.tables.find_instance(destination) {
            Some(instance) => instance,
            None if self.has_free_slot() => {
                let client = self.dial.open(destination).map_err(|error| {
                    aqueduct_connector::Error::new(
                        error.kind(),
                        format!("no client for Bigtable table {destination} could be made"),
                    )
                    .with_source(error)
                })?;
                self.tables
                    .add_instance(destination, client, self.clock.now())
            }
            None => return Ok(None),
        };
        Ok(Some(self.open_table(destination, instance)))
    }

    fn open_table(&mut self, destination: &TableDestination, instance: InstanceId) -> TableId {
        let counters = self
            .options
            .per_destination_metrics
            .then(|| self.metrics.destination(&destination.to_string()));
        self.tables.add_table(Table {
            destination: destination.clone(),
            instance,
            head: batch::head(&destination.path(), self.app_profile.as_deref()),
            target: Target::new(destination, self.app_profile.as_deref()),
            open: None,
            used: self.clock.now(),
            turn: 0,
            counters,
            written: false,
        })
    }

    /// Finds a slot for the held entry's instance: drains, gives the longest unused instance up, waits for its close.
    pub(super) fn place_held(&mut self, now: Moment) {
        let Some(held) = self.held.take() else { return };
        if self.place(&held, now) {
            self.unpolled = true;
        } else {
            self.held = Some(held);
        }
    }

    fn place(&mut self, held: &Held, now: Moment) -> bool {
        if !self.has_free_slot() && self.tables.find_instance(&held.destination).is_none() {
            let drained = self.entries == 0
                && self.outstanding() == 0
                && matches!(self.pass, Pass::None)
                && self.parked() == 0;
            // A closing client keeps its slot; only an open one is given up for it.
            if drained
                && self.closing.is_empty()
                && let Some(instance) = self.tables.least_recently_used()
            {
                self.metrics.capacity_evictions.increment();
                let client = self.tables.drop_instance(instance);
                self.close_client(client);
                self.stall.answered(now);
            }
            if !self.has_free_slot() {
                return false;
            }
        }
        match self.find_or_open(&held.destination) {
            Ok(Some(table)) => self.hand_over(table, &held.entry),
            Ok(None) => return false,
            Err(error) => self.fail(error),
        }
        true
    }

    fn has_free_slot(&self) -> bool {
        let slots = self.tables.open_clients() + self.closing.len();
        (slots as u64) < self.options.max_active_instances
    }

    fn close_client(&mut self, client: Option<std::rc::Rc<dyn crate::client::mutate::DataClient>>) {
        if let Some(closing) = client.and_then(|client| client.close()) {
            self.closing.push(closing);
            self.unpolled = true;
        }
    }

    /// Drops the batchers without a record for longer than the idle timeout, and the clients left without one.
    pub(super) fn sweep_idle(&mut self, now: Moment) {
        let idle = self.options.destination_idle_timeout;
        self.tables
            .drop_idle_tables(|table| now.since(table.used) > idle);
        for client in self.tables.take_unused_instances() {
            self.metrics.idle_evictions.increment();
            self.close_client(Some(client));
        }
    }

    /// Releases everything and sends nothing (BT-SINK-15).
    pub(in crate::sink) fn poll_close(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<()>> {
        if !self.closed {
            self.closed = true;
            match &self.failure {
                Some(Failure::Fresh(error)) => {
                    warn!(error = %error.report(), "a failure that no call returned any more");
                }
                Some(Failure::Told { .. }) => debug!("closing after a failure"),
                None => {}
            }
            // No completed checkpoint covers what is dropped here.
            self.calls.clear();
            self.requests.clear();
            self.free.clear();
            self.retries.clear();
            self.due.clear();
            self.isolation.clear();
            self.repair.clear();
            self.routed.clear();
            self.held = None;
            self.pass = Pass::None;
            (self.entries, self.bytes) = (0, 0);
            if let Some(order) = &mut self.order {
                RowOrder::clear(order);
            }
            for instance in self.tables.instance_ids() {
                let client = self.tables.drop_instance(instance);
                self.close_client(client);
            }
            self.admin = None;
            self.metrics.publish(super::Levels::default());
        }
        // Bounded by the client's own close; nothing here waits for the owner.
        while let Poll::Ready(Some(())) = futures::StreamExt::poll_next_unpin(&mut self.closing, cx)
        {
        }
        if !self.closing.is_empty() {
            return Poll::Pending;
        }
        self.handler.poll_close(cx)
    }
}
