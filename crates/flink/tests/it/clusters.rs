//! One cluster a version, shared by the tests of this process: a start takes longer than most tests.
//!
//! A test gets it without jobs and with all its TaskManagers, and may do with it what it likes. After a test that failed the
//! cluster is a new one. Only one test runs at a time, whatever its version: two cores carry no more.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard};

use aqueduct_testkit::flink::{Builder, Cluster, Version};

/// What the shared clusters have; a test that kills one TaskManager leaves another.
const TASK_MANAGERS: usize = 2;
const SLOTS: usize = 2;

/// Whoever holds them runs.
fn shared() -> MutexGuard<'static, BTreeMap<Version, Cluster>> {
    static CLUSTERS: Mutex<BTreeMap<Version, Cluster>> = Mutex::new(BTreeMap::new());
    CLUSTERS.lock().unwrap_or_else(|poisoned| {
        // Which cluster the failed test left in what state is not worth finding out.
        CLUSTERS.clear_poison();
        let mut clusters = poisoned.into_inner();
        clusters.clear();
        clusters
    })
}

/// Runs a test on a cluster of its own, for as long as the test, while no other test runs.
#[track_caller]
pub(crate) fn alone(builder: Builder, test: impl FnOnce(&Cluster)) {
    let _turn = shared();
    if let Some(cluster) = builder.start() {
        test(&cluster);
    }
}

/// Runs a test on the cluster of this version, or reports that it did not run.
#[track_caller]
pub(crate) fn on(version: Version, test: impl FnOnce(&Cluster)) {
    let mut clusters = shared();
    let cluster = match clusters.entry(version) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let builder = Cluster::builder(version);
            let Some(cluster) = builder.task_managers(TASK_MANAGERS).slots(SLOTS).start() else {
                return; // reported as not run
            };
            entry.insert(cluster)
        }
    };
    cluster.cancel_all();
    cluster.complete();
    test(cluster);
}
