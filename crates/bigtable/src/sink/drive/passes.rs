//! The two passes over parked entries: the repair of what is missing, and the isolation of what is refused.
//!
//! Both begin by sending and draining everything outstanding, and run before the next record is admitted.

use std::task;

use aqueduct_connector::Moment;
use tracing::{info, warn};

use super::{
    Drive, FailedMutation, Failure, Kind, OpenBatch, Pass, Request, TableId, Unit, Verdict, error,
};
use crate::client::admin::Ensured;

impl Drive {
    /// A table or family is missing: repaired, or fatal.
    pub(super) fn on_missing(&mut self, unit: Unit) {
        for _ in 0..unit.load.records {
            self.metrics.on_error_class(unit.chain.code());
        }
        let table = unit.table;
        let destination = self.tables.get(table).destination.clone();
        if self.create.is_none() {
            self.fail(error::missing(&destination, unit.chain));
        } else if let Some(families) = self.repair.undeclared(&unit) {
            self.fail(error::undeclared(&destination, &families, unit.chain));
        } else {
            self.repair.park(&destination, unit);
        }
    }

    /// Moves the pass under way as far as it goes now.
    pub(super) fn advance_pass(&mut self, cx: &mut task::Context<'_>, now: Moment) {
        loop {
            if self.failure.is_some() {
                return;
            }
            match &mut self.pass {
                Pass::None if self.isolation.is_empty() && self.repair.is_empty() => return,
                Pass::None => self.pass = Pass::Draining,
                Pass::Draining => {
                    self.send_batches();
                    if self.outstanding() > 0 {
                        return;
                    }
                    if !self.repair.is_empty() {
                        self.begin_repair(now);
                    } else if !self.isolation.is_empty() {
                        self.pass = Pass::Isolating;
                    } else {
                        self.pass = Pass::None;
                    }
                }
                Pass::Ensuring { table, call } => {
                    let table = *table;
                    let task::Poll::Ready(result) = call.as_mut().poll(cx) else {
                        return;
                    };
                    self.stall.answered(now);
                    match result {
                        Ok(ensured) => {
                            self.on_ensured(table, ensured);
                            self.ensure_or_reapply();
                        }
                        Err(error) => {
                            let destination = self.tables.get(table).destination.clone();
                            self.repair.on_ensure_failed(destination, error);
                            self.end_repair_attempt(now);
                        }
                    }
                }
                Pass::Reapplying => {
                    if self.outstanding() > 0 {
                        return;
                    }
                    if self.repair.is_empty() {
                        self.repair.clear();
                        // Rows that waited, or entries refused on the way, may owe more.
                        self.pass = Pass::Draining;
                    } else {
                        self.end_repair_attempt(now);
                    }
                }
                Pass::Backoff { until } if now < *until => return,
                Pass::Backoff { .. } => self.begin_repair(now),
                Pass::Isolating => {
                    if !self.isolate() {
                        return;
                    }
                }
            }
        }
    }

    // --- Repair ---

    fn begin_repair(&mut self, now: Moment) {
        if self.admin.is_none() {
            match self.dial.admin() {
                Ok(admin) => self.admin = Some(admin),
                Err(error) => return self.fail(error),
            }
        }
        // An admin call without an answer is a stall like any other.
        self.stall.answered(now);
        self.repair.begin_attempt();
        self.ensure_or_reapply();
    }

    /// Ensures the next owed table, or applies the park again once none is owed.
    fn ensure_or_reapply(&mut self) {
        let Some(table) = self.repair.next_owed() else {
            return self.reapply();
        };
        let (Some(admin), Some(schema)) = (&self.admin, &self.create) else {
            return self.fail(aqueduct_connector::Error::bug("a repair without a schema"));
        };
        let call = admin.ensure(self.tables.get(table).destination.clone(), schema.clone());
        self.pass = Pass::Ensuring { table, call };
    }

    fn on_ensured(&mut self, table: TableId, ensured: Ensured) {
        let destination = self.tables.get(table).destination.clone();
        if ensured.created {
            self.metrics.tables_created.increment();
            if std::mem::take(&mut self.tables.get_mut(table).written) {
                warn!(
                    table = %destination,
                    "a table that this writer had written to was gone and was created again: what it held is lost; find \
                     out who deleted it, and replay the stream if its rows are needed",
                );
            } else {
                info!(table = %destination, "created the table");
            }
        }
        if !ensured.added.is_empty() {
            self.metrics.families_added.add(ensured.added.len() as u64);
            info!(table = %destination, families = %ensured.added.join(", "), "added column families");
        }
        self.repair.on_ensured(table, ensured.families);
    }

    fn reapply(&mut self) {
        let absent = self.repair.parked().iter().find_map(|unit| {
            Some((
                unit.table,
                self.repair.undeclared(unit)?,
                unit.chain.clone(),
            ))
        });
        if let Some((table, families, chain)) = absent {
            let destination = self.tables.get(table).destination.clone();
            return self.fail(error::undeclared(&destination, &families, chain));
        }
        self.pass = Pass::Reapplying;
        let mut units = self.repair.take_parked();
        // Requests hold entries of one table, in the order of the park.
        units.sort_by_key(|unit| unit.table);
        let mut batch: Option<(TableId, OpenBatch)> = None;
        for unit in units {
            let full = batch.as_ref().is_some_and(|(table, open)| {
                *table != unit.table
                    || open.is_full(self.limits)
                    || open.would_overflow(self.limits, unit.load.mutations, unit.load.size)
            });
            if full && let Some((table, open)) = batch.take() {
                self.submit(Request::new(table, Kind::Reapply, open.seal()));
            }
            let (_, open) = batch.get_or_insert_with(|| (unit.table, self.new_batch(unit.table)));
            open.push_encoded(&unit.entry, unit.load);
        }
        if let Some((table, open)) = batch {
            self.submit(Request::new(table, Kind::Reapply, open.seal()));
        }
    }

    /// An attempt did not empty the park: wait, or give up.
    fn end_repair_attempt(&mut self, now: Moment) {
        match self
            .schedule
            .delay_after(self.repair.attempts(), &mut self.random)
        {
            Some(delay) => {
                self.pass = Pass::Backoff {
                    until: now.after(delay),
                }
            }
            None => {
                let error = self.repair.exhausted();
                self.fail(error);
            }
        }
    }

    // --- Isolation ---

    /// Sends parked records in ever smaller groups and takes verdicts in; false if only answers can help.
    fn isolate(&mut self) -> bool {
        let mut moved = false;
        while self.failure.is_none()
            && self.guardrail.is_none()
            && let Some((unit, verdict)) = self.isolation.take_verdict()
        {
            moved = true;
            self.on_solo(unit, verdict);
        }
        while self.failure.is_none()
            && self.guardrail.is_none()
            && let Some((turn, group)) = self.isolation.next(self.max_entries, self.max_bytes)
        {
            let table = group[0].table;
            let mut batch =
                OpenBatch::new(0, &self.tables.get(table).head, super::Buffers::default());
            for unit in group {
                batch.push_encoded(&unit.entry, unit.load.clone());
            }
            self.submit(Request::new(table, Kind::Parked(turn), batch.seal()));
        }
        if self.isolation.is_empty() {
            self.pass = Pass::Draining;
            return true;
        }
        moved
    }

    fn on_solo(&mut self, mut unit: Unit, verdict: Option<aqueduct_connector::StatusChain>) {
        let row = unit.load.row;
        let Some(chain) = verdict else {
            self.rejections = 0;
            return self.after_solo(row);
        };
        unit.chain = chain;
        match error::classify(&unit.chain) {
            Verdict::RowLevel => {
                self.confirm(unit);
                self.after_solo(row);
            }
            Verdict::Missing => {
                let unit = self.isolation.join_rest_of(unit);
                self.on_missing(unit);
            }
            Verdict::Fatal => self.fail_with_status(unit.table, 1, unit.load.records, unit.chain),
        }
    }

    /// The row is free once the last of its records has its verdict.
    fn after_solo(&mut self, row: u64) {
        if !self.isolation.more_of(row) {
            self.resolve_row(row);
        }
    }

    /// The service refused this record alone: it is counted, routed, and counted against the guardrail (BT-SINK-10).
    pub(super) fn confirm(&mut self, unit: Unit) {
        let table = self.tables.get(unit.table).destination.clone();
        let key = unit.key();
        self.metrics.on_error_class(unit.chain.code());
        self.rejections += 1;
        let bound = u64::try_from(self.options.max_consecutive_rejections).ok();
        if bound.is_some_and(|bound| self.rejections >= bound) {
            self.guardrail = Some(error::guardrail(
                &table,
                self.rejections,
                unit.chain.clone(),
            ));
        }
        self.routed
            .push_back(FailedMutation::service(table, unit.entry, key, unit.chain));
        self.poll_route(&mut task::Context::from_waker(task::Waker::noop()));
        self.unpolled |= !self.routed.is_empty();
    }

    /// Offers rejected records to the handler as far as it is ready, in order.
    pub(super) fn poll_route(&mut self, cx: &mut task::Context<'_>) {
        while let Some(failed) = self.routed.front() {
            match self.handler.poll_ready(cx) {
                task::Poll::Pending => return,
                task::Poll::Ready(Err(error)) => return self.fail(error),
                task::Poll::Ready(Ok(())) => {}
            }
            self.metrics.errors.increment();
            if let Some(table) = self.tables.known(failed.table())
                && let Some((_, errors)) = &self.tables.get(table).counters
            {
                errors.increment();
            }
            let verdict = self.handler.handle(failed);
            self.routed.pop_front();
            if let Err(error) = verdict {
                self.fail(error);
                // Nothing is routed past one that fails the job.
                self.routed.clear();
                return;
            }
        }
        if let Some(error) = self.guardrail.take()
            && self.failure.is_none()
        {
            self.failure = Some(Failure::Fresh(error));
        }
    }

    fn new_batch(&mut self, table: TableId) -> OpenBatch {
        self.batches = self.batches.wrapping_add(1);
        OpenBatch::new(
            self.batches,
            &self.tables.get(table).head,
            super::Buffers::default(),
        )
    }
}
