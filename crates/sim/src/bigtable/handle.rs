//! What a test holds: the service and its tables, to prepare, disturb and inspect.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;

use super::{
    chunks::Chunking,
    mutate::server_now,
    profile::Profile,
    slot::{Answers, EntryOrder, Slot, lock},
    store::{Row, TableState, Visible},
    wire::Entry,
};
use crate::{
    core::{Core, TimedOut},
    faults::{Fault, Trigger},
    log::RequestRecord,
    method::Method,
};

/// What a column family aggregates; all over 64-bit integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The sum of what was added.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

fn aggregate_family(aggregate: Aggregate) -> admin::ColumnFamily {
    use admin::r#type::{self, Kind, aggregate::Aggregator};
    let aggregator = match aggregate {
        Aggregate::Sum => Aggregator::Sum(r#type::aggregate::Sum {}),
        Aggregate::Min => Aggregator::Min(r#type::aggregate::Min {}),
        Aggregate::Max => Aggregator::Max(r#type::aggregate::Max {}),
    };
    let int64 = || {
        Some(Box::new(admin::Type {
            kind: Some(Kind::Int64Type(Default::default())),
        }))
    };
    let kind = Kind::AggregateType(Box::new(r#type::Aggregate {
        input_type: int64(),
        state_type: int64(),
        aggregator: Some(aggregator),
    }));
    admin::ColumnFamily {
        value_type: Some(admin::Type { kind: Some(kind) }),
        gc_rule: None,
    }
}

/// One cell, as the service holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredCell {
    /// Column family.
    pub family: String,
    /// Column qualifier.
    pub qualifier: Vec<u8>,
    /// Microseconds since the epoch.
    pub timestamp_micros: i64,
    /// Value.
    pub value: Vec<u8>,
}

impl fmt::Debug for StoredCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredCell")
            .field("family", &self.family)
            .field("timestamp_micros", &self.timestamp_micros)
            .field("value_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// One row with its cells: by family in order of creation, by qualifier, newest first.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Row key.
    pub key: Vec<u8>,
    /// Cells.
    pub cells: Vec<StoredCell>,
}

impl fmt::Debug for StoredRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRow")
            .field("cells", &self.cells)
            .finish_non_exhaustive()
    }
}

/// What the discarding path acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discarded {
    /// Requests of the fast path; requests that met a fault are not among them.
    pub requests: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of the messages of the fast path.
    pub bytes: u64,
}

/// The simulated service. Cheap to clone; outlives the server.
#[derive(Clone)]
pub struct Bigtable {
    core: Arc<Core>,
}

impl fmt::Debug for Bigtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bigtable").finish_non_exhaustive()
    }
}

macro_rules! fault_triggers {
    () => {
        /// A fault for the `n`-th such request from now on, counted from 1.
        #[must_use = "a fault does nothing before it is given an effect"]
        pub fn nth(&self, n: u64, method: Method) -> Fault {
            self.fault(method, Trigger::Nth(n))
        }

        /// A fault for each `n`-th such request from now on.
        #[must_use = "a fault does nothing before it is given an effect"]
        pub fn every_nth(&self, n: u64, method: Method) -> Fault {
            self.fault(method, Trigger::EveryNth(n))
        }

        /// A fault for the next `n` such requests.
        #[must_use = "a fault does nothing before it is given an effect"]
        pub fn next(&self, n: u64, method: Method) -> Fault {
            self.fault(method, Trigger::Next(n))
        }

        /// A fault for every such request, until removed.
        #[must_use = "a fault does nothing before it is given an effect"]
        pub fn always(&self, method: Method) -> Fault {
            self.fault(method, Trigger::Always)
        }

        /// A fault for each such request with `probability` (0 to 1), drawn from `seed`.
        #[must_use = "a fault does nothing before it is given an effect"]
        pub fn randomly(&self, seed: u64, probability: f64, method: Method) -> Fault {
            let rng = fastrand::Rng::with_seed(seed);
            self.fault(method, Trigger::Random { rng, probability })
        }
    };
}

pub(crate) use fault_triggers;

impl Bigtable {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The handle of a table, whether it exists or not.
    #[must_use]
    pub fn table(&self, project: &str, instance: &str, table: &str) -> Table {
        let name = format!("projects/{project}/instances/{instance}/tables/{table}");
        Table {
            slot: self.core.directory.slot(&name),
            core: self.core.clone(),
        }
    }

    /// Creates a table with these families and no rule of garbage collection, visible at once.
    ///
    /// A table that exists is left as it is.
    pub fn create_table(
        &self,
        project: &str,
        instance: &str,
        table: &str,
        families: &[&str],
    ) -> Table {
        self.create_split_table(project, instance, table, families, &[])
    }

    /// As [`create_table`](Self::create_table), with a tablet boundary at each of these keys.
    pub fn create_split_table(
        &self,
        project: &str,
        instance: &str,
        table: &str,
        families: &[&str],
        splits: &[&[u8]],
    ) -> Table {
        let table = self.table(project, instance, table);
        let mut state = TableState::new(splits.iter().map(|key| (*key).into()));
        for family in families {
            state.add_family(family, admin::ColumnFamily::default(), Visible::Now);
        }
        table.slot.create(state);
        table
    }

    /// Declares an application profile. From the first declaration on, the instance knows
    /// `default` and the declared profiles only.
    pub fn declare_app_profile(&self, project: &str, instance: &str, id: &str, profile: Profile) {
        let instance = format!("projects/{project}/instances/{instance}");
        self.core.directory.profiles.declare(&instance, id, profile);
    }

    fn fault(&self, method: Method, trigger: Trigger) -> Fault {
        self.core.script.add(None, method, trigger)
    }

    fault_triggers!();

    /// Removes every fault, those of tables included.
    pub fn clear_faults(&self) {
        self.core.script.clear();
    }

    /// The kept requests, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.core.log.records(|_| true)
    }

    /// How many requests of `method` arrived so far, kept or not.
    #[must_use]
    pub fn request_count(&self, method: Method) -> u64 {
        self.core.log.requests(method)
    }

    /// Forgets the kept requests; counts stay.
    pub fn clear_requests(&self) {
        self.core.log.clear();
    }

    /// Waits until `condition` holds, looked at after every request and answer.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] after `limit`.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is consumed.
    pub async fn wait_until(
        &self,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<(), TimedOut> {
        self.core.wait_until(limit, || condition(self)).await
    }
}

/// One table. Cheap to clone; valid before the table exists and after it is gone.
#[derive(Clone)]
pub struct Table {
    core: Arc<Core>,
    slot: Arc<Slot>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.slot.name).finish()
    }
}

impl Table {
    /// `projects/…/instances/…/tables/…`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    fn with<R>(&self, f: impl FnOnce(&mut TableState) -> R) -> Option<R> {
        self.slot.lock().existing().map(f)
    }

    // Schema and layout.

    /// Whether the table exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.slot.exists()
    }

    /// Deletes the table; false if there is none.
    pub fn delete(&self) -> bool {
        self.slot.delete()
    }

    /// Adds a family without rule, visible at once; false if it, or no table, exists.
    pub fn add_family(&self, family: &str) -> bool {
        self.define(family, admin::ColumnFamily::default())
    }

    /// Adds a family that aggregates; false if it, or no table, exists.
    pub fn add_aggregate_family(&self, family: &str, aggregate: Aggregate) -> bool {
        self.define(family, aggregate_family(aggregate))
    }

    fn define(&self, family: &str, definition: admin::ColumnFamily) -> bool {
        self.with(|table| table.add_family(family, definition, Visible::Now))
            .unwrap_or(false)
    }

    /// Drops a family and its cells; false if there is none.
    pub fn remove_family(&self, family: &str) -> bool {
        self.with(|table| table.drop_family(family))
            .unwrap_or(false)
    }

    /// Names of the families, in order of creation.
    #[must_use]
    pub fn families(&self) -> Vec<String> {
        self.with(|table| {
            table
                .families()
                .map(|family| family.name.to_string())
                .collect()
        })
        .unwrap_or_default()
    }

    /// Whether the table has the family.
    #[must_use]
    pub fn has_family(&self, family: &str) -> bool {
        self.with(|table| table.has_family(family)).unwrap_or(false)
    }

    /// Keys at which a tablet ends and the next begins.
    #[must_use]
    pub fn tablet_boundaries(&self) -> Vec<Vec<u8>> {
        self.with(|table| table.splits.iter().map(|key| key.to_vec()).collect())
            .unwrap_or_default()
    }

    /// Splits the tablet that holds `key` there; false if it is a boundary already, or empty.
    pub fn split_tablet(&self, key: &[u8]) -> bool {
        !key.is_empty()
            && self
                .with(|table| table.splits.insert(key.into()))
                .unwrap_or(false)
    }

    /// Merges the tablets that meet at `key`; false if none do.
    pub fn merge_tablets(&self, key: &[u8]) -> bool {
        self.with(|table| table.splits.remove(key)).unwrap_or(false)
    }

    // Manners.

    /// How rows are chunked. A seed advances by one a request, so requests differ and a run
    /// repeats.
    pub fn set_chunking(&self, chunking: Chunking) {
        lock(&self.slot.options).chunking = chunking;
    }

    /// In which order entries for the same row take effect.
    pub fn set_entry_order(&self, order: EntryOrder) {
        let mut options = lock(&self.slot.options);
        options.order = order;
        if let EntryOrder::Shuffled(seed) = order {
            options.order_rng = fastrand::Rng::with_seed(seed);
        }
    }

    /// How the answers of `MutateRows` are arranged.
    pub fn set_answers(&self, answers: Answers) {
        let mut options = lock(&self.slot.options);
        options.answers = answers;
        if let Answers::Seeded(seed) = answers {
            options.answers_rng = fastrand::Rng::with_seed(seed);
        }
    }

    /// Refuses whole, with `INVALID_ARGUMENT`, every write that holds an entry for which
    /// `poisoned` holds.
    ///
    /// `CheckAndMutateRow` is shown as an entry of its true, then its false mutations,
    /// `ReadModifyWriteRow` as one without mutations.
    pub fn poison(&self, poisoned: impl Fn(&Entry) -> bool + Send + Sync + 'static) {
        lock(&self.slot.options).poison = Some(Arc::new(poisoned));
    }

    /// Ends what [`poison`](Self::poison) began.
    pub fn clear_poison(&self) {
        lock(&self.slot.options).poison = None;
    }

    /// Acknowledges `MutateRows` from here on without reading what is in the entries, checking or
    /// storing it: what a benchmark of a client writes to.
    ///
    /// Such requests are counted, not logged. Faults still work, on the slower ordinary path.
    pub fn start_discarding(&self) {
        if !self.slot.discards.swap(true, Ordering::SeqCst) {
            self.core
                .directory
                .discarding
                .fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Stores again.
    pub fn stop_discarding(&self) {
        if self.slot.discards.swap(false, Ordering::SeqCst) {
            self.core
                .directory
                .discarding
                .fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Collects garbage by the families' rules. It happens at no other time, where the service
    /// does it at leisure.
    pub fn collect_garbage(&self) {
        self.with(|table| table.collect_garbage(server_now()));
    }

    // Faults.

    fn fault(&self, method: Method, trigger: Trigger) -> Fault {
        self.core
            .script
            .add(Some(self.slot.name.clone()), method, trigger)
    }

    fault_triggers!();

    // What it holds.

    /// Rows with at least one cell.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.with(|table| table.live_rows()).unwrap_or_default()
    }

    /// All rows with cells, in key order.
    #[must_use]
    pub fn rows(&self) -> Vec<StoredRow> {
        self.with(|table| {
            table
                .live_between(&[], None)
                .map(|(key, row)| stored(table, key, row))
                .collect()
        })
        .unwrap_or_default()
    }

    /// One row, if it has cells.
    #[must_use]
    pub fn row(&self, key: &[u8]) -> Option<StoredRow> {
        self.with(|table| {
            let row = table.rows.get(key).filter(|row| !row.cells.is_empty())?;
            Some(stored(table, key, row))
        })
        .flatten()
    }

    /// How often an entry took effect on each row, in key order; deleted rows included.
    ///
    /// `MutateRow`, `CheckAndMutateRow` with a non-empty branch and `ReadModifyWriteRow` count as
    /// one entry. Dropping a row range forgets its effects.
    #[must_use]
    pub fn effects_per_row(&self) -> Vec<u32> {
        self.with(|table| table.rows.values().map(|row| row.effects).collect())
            .unwrap_or_default()
    }

    /// How often an entry took effect on this row.
    #[must_use]
    pub fn effects(&self, key: &[u8]) -> u32 {
        self.with(|table| table.rows.get(key).map_or(0, |row| row.effects))
            .unwrap_or_default()
    }

    /// Entries applied so far.
    #[must_use]
    pub fn applied_entries(&self) -> u64 {
        self.slot.counters.applied.load(Ordering::SeqCst)
    }

    /// Entries of `MutateRows` refused so far, by a whole-request refusal or a scripted status.
    #[must_use]
    pub fn refused_entries(&self) -> u64 {
        self.slot.counters.refused.load(Ordering::SeqCst)
    }

    /// Requests that took effect and whose answer was lost by script.
    #[must_use]
    pub fn lost_answers(&self) -> u64 {
        self.slot.counters.lost_answers.load(Ordering::SeqCst)
    }

    /// What was acknowledged without being stored.
    #[must_use]
    pub fn discarded(&self) -> Discarded {
        let counters = &self.slot.counters;
        Discarded {
            requests: counters.discarded_requests.load(Ordering::SeqCst),
            entries: counters.discarded_entries.load(Ordering::SeqCst),
            bytes: counters.discarded_bytes.load(Ordering::SeqCst),
        }
    }

    /// The kept requests for this table, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.core
            .log
            .records(|record| record.resource == self.slot.name)
    }

    /// The kept requests of one method for this table, oldest first.
    #[must_use]
    pub fn requests_of(&self, method: Method) -> Vec<RequestRecord> {
        self.core
            .log
            .records(|record| record.method == method && record.resource == self.slot.name)
    }

    /// Waits until `condition` holds, looked at after every request and answer.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] after `limit`.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is consumed.
    pub async fn wait_until(
        &self,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<(), TimedOut> {
        self.core.wait_until(limit, || condition(self)).await
    }
}

fn stored(table: &TableState, key: &[u8], row: &Row) -> StoredRow {
    let cells = row
        .cells
        .iter()
        .map(|cell| StoredCell {
            family: table.family_name(cell.family).to_string(),
            qualifier: cell.qualifier.to_vec(),
            timestamp_micros: cell.timestamp,
            value: cell.value.to_vec(),
        })
        .collect();
    StoredRow {
        key: key.to_vec(),
        cells,
    }
}
