//! Requests of a driver: sent, answered, settled entry by entry.

use std::cmp::Reverse;

use aqueduct_connector::{Moment, StatusChain};

use super::super::batch::{Load, Slot, Unit};
use super::super::request::{Kind, Outcome, Request};
use super::super::tables::TableId;
use super::{Drive, KEPT_BUFFERS};
use crate::client::mutate::{AttemptEnd, MutateCall};
use crate::error::{self, Verdict};

impl Drive {
    pub(super) fn submit(&mut self, request: Request) {
        let id = match self.free.pop() {
            Some(id) => {
                self.requests[id] = Some(request);
                id
            }
            None => {
                self.requests.push(Some(request));
                self.requests.len() - 1
            }
        };
        self.dispatch(id, self.clock.now());
    }

    /// Starts an attempt, or lines it up for the rate that the service asked for.
    pub(super) fn dispatch(&mut self, id: usize, now: Moment) {
        self.unpolled = true;
        let Some(request) = &mut self.requests[id] else {
            return;
        };
        let table = request.table;
        let instance = self.tables.instance_of(table);
        if instance.queue.is_empty() && instance.rate.take(now).is_ok() {
            self.start(id, now);
        } else {
            instance.queue.push_back(id);
            self.metrics.rate_limited.increment();
            self.rate_wait = Some(self.rate_wait.unwrap_or(Moment::NEVER).min(now));
        }
    }

    pub(super) fn start(&mut self, id: usize, now: Moment) {
        let Some(request) = &mut self.requests[id] else {
            return;
        };
        let table = self.tables.get(request.table);
        let (body, entries, timeout) = request.begin(&table.head, now);
        let call = MutateCall {
            target: table.target.clone(),
            body,
            entries,
            timeout,
            cookies: request.cookies().clone(),
        };
        let instance = table.instance;
        let attempt = self.tables.instance_mut(instance).client.mutate_rows(call);
        self.metrics.attempts.increment();
        self.calls
            .push(Box::pin(async move { (id, now, attempt.await) }));
    }

    pub(super) fn outstanding(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    pub(super) fn on_attempt(&mut self, id: usize, started: Moment, end: AttemptEnd, now: Moment) {
        // A refusal is an answer as well, and so is what was said of some entries before the way broke.
        let silent = matches!(&end.result, Err(failure) if !failure.answered);
        if !silent || end.answers.any() {
            self.stall.answered(now);
            self.last_failure = None;
        }
        if silent && let Err(failure) = &end.result {
            self.last_failure = Some(failure.chain.clone());
        }
        self.metrics.on_attempt_end(now.since(started));
        let Some(mut request) = self.requests[id].take() else {
            return;
        };
        let codes = end
            .answers
            .failure_codes()
            .chain(end.result.as_ref().err().map(|f| f.chain.code()));
        self.tables
            .instance_of(request.table)
            .rate
            .on_answer(now, end.answers.rate, codes);
        match request.end(end, now, &mut self.random) {
            Outcome::Applied => {
                self.free.push(id);
                self.on_applied(request);
            }
            Outcome::Settled {
                verdicts,
                alone,
                retry,
            } => {
                let settled: Vec<_> = verdicts
                    .into_iter()
                    .map(|(position, verdict)| {
                        let load = request.slots()[position as usize].load.clone();
                        let failed = verdict.map(|chain| request.unit(position, chain));
                        (position as usize, load, failed)
                    })
                    .collect();
                let (kind, table, attempts) = (request.kind, request.table, request.attempts());
                match retry {
                    Some(retry) => {
                        self.metrics.on_retry(retry.code, retry.entries);
                        self.retries.push(Reverse((retry.at, id)));
                        self.requests[id] = Some(request);
                    }
                    None => self.free.push(id),
                }
                self.on_settled(kind, table, alone, attempts, settled);
            }
        }
    }

    /// Everything that was pending in `request` is applied.
    pub(super) fn on_applied(&mut self, request: Request) {
        if !matches!(request.kind, Kind::Parked(_)) {
            self.rejections = 0;
        }
        self.tables.get_mut(request.table).written = true;
        match request.kind {
            Kind::Parked(turn) => {
                for position in request.pending() {
                    self.isolation.answer(turn, position, None);
                }
            }
            Kind::Reapply => {
                let records = pending(&request).map(|slot| slot.load.records).sum();
                self.repair.settle(records);
                self.resolve_rows(&request);
            }
            Kind::Bulk => {
                for slot in pending(&request) {
                    self.entries -= slot.load.records;
                    self.bytes -= slot.load.size;
                }
                self.resolve_rows(&request);
            }
        }
        if self.buffers.len() < KEPT_BUFFERS {
            self.buffers.extend(request.into_sealed().recycle());
        }
    }

    pub(super) fn resolve_rows(&mut self, request: &Request) {
        if self.order.is_some() {
            for slot in pending(request) {
                self.resolve_row(slot.load.row);
            }
        }
    }

    /// The row's entry has its verdict; what waits next is put into its table's batch.
    pub(super) fn resolve_row(&mut self, row: u64) {
        let Some(next) = self.order.as_mut().and_then(|order| order.resolve(row)) else {
            return;
        };
        let load = Load {
            records: next.parts.len(),
            mutations: next.mutation_count(),
            size: next.size(),
            row,
            parts: (next.parts.len() > 1).then(|| next.parts.clone().into()),
        };
        self.put(next.table, &next.key, &next.mutations, load);
    }

    /// Verdicts of a request that was not applied as a whole: where each entry stood, what it counted for, and the entry if it failed.
    pub(super) fn on_settled(
        &mut self,
        kind: Kind,
        table: TableId,
        alone: bool,
        attempts: u32,
        settled: Vec<(usize, Load, Option<Unit>)>,
    ) {
        // A parked record counts when its verdict is taken, in the order of the park.
        let parked = matches!(kind, Kind::Parked(_));
        if settled.iter().any(|(_, _, failed)| failed.is_none()) {
            self.tables.get_mut(table).written = true;
            if !parked {
                self.rejections = 0;
            }
        }
        for (position, load, failed) in settled {
            if let Kind::Parked(turn) = kind {
                self.isolation
                    .answer(turn, position, failed.map(|unit| unit.chain));
                continue;
            }
            if kind == Kind::Reapply {
                self.repair.settle(load.records);
            } else {
                self.entries -= load.records;
                self.bytes -= load.size;
            }
            match failed {
                None => self.resolve_row(load.row),
                Some(unit) => self.on_refused(table, alone, attempts, unit),
            }
        }
    }

    pub(super) fn on_refused(&mut self, table: TableId, alone: bool, attempts: u32, unit: Unit) {
        match error::classify(&unit.chain) {
            Verdict::RowLevel if alone => {
                let row = unit.load.row;
                self.confirm(unit);
                self.resolve_row(row);
            }
            Verdict::RowLevel => self.isolation.park(unit),
            Verdict::Missing => self.on_missing(unit),
            Verdict::Fatal => self.fail_with_status(table, attempts, unit.load.records, unit.chain),
        }
    }

    pub(super) fn fail_with_status(
        &mut self,
        table: TableId,
        attempts: u32,
        records: usize,
        chain: StatusChain,
    ) {
        for _ in 0..records {
            self.metrics.on_error_class(chain.code());
        }
        let destination = &self.tables.get(table).destination;
        let error = error::service(destination, attempts, chain);
        self.fail(error);
    }
}

fn pending(request: &Request) -> impl Iterator<Item = &Slot> {
    request.pending().map(|position| &request.slots()[position])
}
