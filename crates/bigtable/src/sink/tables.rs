//! The tables and instances a writer has open: who is known, who was used last, who may go (BT-GEN-06).
//!
//! A pure core: it decides, the driver opens and closes.
//!
//! # Invariants
//!
//! - Clients, open and closing ones together, never exceed the bound.
//! - Nothing is given up that a batch or a request still belongs to: the driver drains first.

use std::collections::HashMap;
use std::rc::Rc;

use aqueduct_connector::Moment;
use aqueduct_connector::metrics::Counter;
use bytes::Bytes;

use super::batch::OpenBatch;
use crate::client::mutate::{DataClient, Target};
use crate::client::rate::RateLimit;
use crate::destination::TableDestination;

/// A known table of the writer; reused after the table was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TableId(pub(super) u32);

/// An open instance of the writer; reused likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceId(usize);

/// One table's batcher.
pub(super) struct Table {
    pub(super) destination: TableDestination,
    pub(super) instance: InstanceId,
    /// Start of each of its requests.
    pub(super) head: Bytes,
    pub(super) target: Target,
    pub(super) open: Option<OpenBatch>,
    /// When the last batch began: a record came within the second after it.
    pub(super) used: Moment,
    /// Order of use among the writer's tables.
    pub(super) turn: u64,
    /// `recordsSend` and `sendErrors`, if counted.
    pub(super) counters: Option<(Counter, Counter)>,
    /// Whether the service has applied anything to it.
    pub(super) written: bool,
}

/// One instance's client.
pub(super) struct Instance {
    project: Box<str>,
    name: Box<str>,
    pub(super) client: Rc<dyn DataClient>,
    pub(super) rate: RateLimit,
    /// Requests that wait for leave of `rate`.
    pub(super) queue: std::collections::VecDeque<usize>,
    tables: usize,
}

/// All of them.
pub(super) struct Tables {
    tables: Vec<Option<Table>>,
    instances: Vec<Option<Instance>>,
    known: HashMap<TableDestination, TableId>,
    last: Option<TableId>,
    turn: u64,
}

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            tables: Vec::new(),
            instances: Vec::new(),
            known: HashMap::new(),
            last: None,
            turn: 0,
        }
    }

    /// The table at `destination`, if it is open; notes its use.
    pub(super) fn find(&mut self, destination: &TableDestination) -> Option<TableId> {
        let id = match self.last {
            // The usual case costs a pointer comparison.
            Some(id) if self.get(id).destination == *destination => id,
            _ => *self.known.get(destination)?,
        };
        self.last = Some(id);
        self.turn += 1;
        let turn = self.turn;
        self.get_mut(id).turn = turn;
        Some(id)
    }

    /// The open instance of `destination`.
    pub(super) fn find_instance(&self, destination: &TableDestination) -> Option<InstanceId> {
        self.instances
            .iter()
            .position(|instance| {
                instance.as_ref().is_some_and(|instance| {
                    *instance.name == *destination.instance()
                        && *instance.project == *destination.project()
                })
            })
            .map(InstanceId)
    }

    /// Adds an instance with its client.
    pub(super) fn add_instance(
        &mut self,
        destination: &TableDestination,
        client: Rc<dyn DataClient>,
        now: Moment,
    ) -> InstanceId {
        let instance = Instance {
            project: destination.project().into(),
            name: destination.instance().into(),
            client,
            rate: RateLimit::new(now),
            queue: std::collections::VecDeque::new(),
            tables: 0,
        };
        InstanceId(insert(&mut self.instances, instance))
    }

    /// Adds a table of an open instance.
    pub(super) fn add_table(&mut self, table: Table) -> TableId {
        let destination = table.destination.clone();
        self.instance_mut(table.instance).tables += 1;
        let at = insert(&mut self.tables, table);
        let id = TableId(u32::try_from(at).expect("fewer tables than 2^32"));
        self.known.insert(destination.clone(), id);
        self.find(&destination);
        id
    }

    /// An open table.
    pub(super) fn get(&self, id: TableId) -> &Table {
        self.tables[id.0 as usize]
            .as_ref()
            .expect("ids of given-up tables are not kept")
    }

    /// A table that may have been given up meanwhile.
    pub(super) fn try_get(&self, id: TableId) -> Option<&Table> {
        self.tables.get(id.0 as usize)?.as_ref()
    }

    /// The open table at `destination`, without noting a use.
    pub(super) fn known(&self, destination: &TableDestination) -> Option<TableId> {
        self.known.get(destination).copied()
    }

    pub(super) fn get_mut(&mut self, id: TableId) -> &mut Table {
        self.tables[id.0 as usize]
            .as_mut()
            .expect("ids of given-up tables are not kept")
    }

    pub(super) fn instance_mut(&mut self, id: InstanceId) -> &mut Instance {
        self.instances[id.0]
            .as_mut()
            .expect("ids of given-up instances are not kept")
    }

    /// The instance of an open table.
    pub(super) fn instance_of(&mut self, table: TableId) -> &mut Instance {
        let instance = self.get(table).instance;
        self.instance_mut(instance)
    }

    /// All open instances.
    pub(super) fn instance_ids(&self) -> impl Iterator<Item = InstanceId> + use<> {
        let ids: Vec<_> = self
            .instances
            .iter()
            .enumerate()
            .filter(|(_, instance)| instance.is_some())
            .map(|(at, _)| InstanceId(at))
            .collect();
        ids.into_iter()
    }

    pub(super) fn instances(&mut self) -> impl Iterator<Item = (InstanceId, &mut Instance)> {
        self.instances
            .iter_mut()
            .enumerate()
            .filter_map(|(at, instance)| Some((InstanceId(at), instance.as_mut()?)))
    }

    pub(super) fn table_count(&self) -> usize {
        self.known.len()
    }

    pub(super) fn open_clients(&self) -> usize {
        self.instances.iter().flatten().count()
    }

    /// The instance whose tables were longest without a record.
    pub(super) fn least_recently_used(&self) -> Option<InstanceId> {
        self.instance_ids().min_by_key(|id| {
            self.tables
                .iter()
                .flatten()
                .filter(|table| table.instance == *id)
                .map(|table| table.turn)
                .max()
        })
    }

    /// Gives up the tables without a record since before `since` and without a batch.
    pub(super) fn drop_idle_tables(&mut self, idle: impl Fn(&Table) -> bool) {
        for at in 0..self.tables.len() {
            if self.tables[at]
                .as_ref()
                .is_some_and(|table| table.open.is_none() && idle(table))
            {
                self.drop_table(at);
            }
        }
    }

    /// Takes out the clients of the instances that have no table left.
    pub(super) fn take_unused_instances(&mut self) -> Vec<Rc<dyn DataClient>> {
        self.instances
            .iter_mut()
            .filter_map(|slot| {
                slot.take_if(|instance| instance.tables == 0)
                    .map(|instance| instance.client)
            })
            .collect()
    }

    /// Gives up an instance with its tables.
    pub(super) fn drop_instance(&mut self, id: InstanceId) -> Option<Rc<dyn DataClient>> {
        for at in 0..self.tables.len() {
            if self.tables[at]
                .as_ref()
                .is_some_and(|table| table.instance == id)
            {
                self.drop_table(at);
            }
        }
        self.instances[id.0].take().map(|instance| instance.client)
    }

    fn drop_table(&mut self, at: usize) {
        if let Some(table) = self.tables[at].take() {
            self.known.remove(&table.destination);
            self.instance_mut(table.instance).tables -= 1;
            self.last = None;
        }
    }
}

fn insert<T>(slots: &mut Vec<Option<T>>, value: T) -> usize {
    match slots.iter().position(Option::is_none) {
        Some(at) => {
            slots[at] = Some(value);
            at
        }
        None => {
            slots.push(Some(value));
            slots.len() - 1
        }
    }
}
