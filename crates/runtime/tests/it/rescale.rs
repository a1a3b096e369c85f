//! State survives a change of the parallelism.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_connector::source::Collector;
use aqueduct_connector::state::{StateReader, StateWriter};
use aqueduct_connector::{CheckpointId, Result, Versioned};
use aqueduct_runtime::{
    Job, JobEnd, KeyedProcessFunction, OperatorContext, ProcessFunction, RecordContext, Timers,
    WatermarkStrategy,
};

use crate::support::{Gate, MemorySink, Numbers, Service, config, finish, run, until};

/// Emits `key * 1,000,000 + how many records of the key came so far`.
pub(crate) struct Count;

impl KeyedProcessFunction<u64, u64, u64> for Count {
    type State = u64;
    const STATE_NAME: &'static str = "count";
    const STATE_VERSION: u32 = 1;

    fn process(
        &mut self,
        key: &u64,
        state: &mut Option<u64>,
        _value: u64,
        _info: &RecordContext,
        _timers: &mut Timers<'_, u64>,
        out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        let count = state.get_or_insert(0);
        *count += 1;
        out.emit(key * 1_000_000 + *count);
        Ok(())
    }

    fn encode(&self, state: &u64, out: &mut StateWriter) {
        out.u64(*state);
    }

    fn decode(&self, _version: u32, reader: &mut StateReader<'_>) -> Result<u64> {
        Ok(reader.u64()?)
    }
}

/// Counts records over all restores; its list state is redistributed and summed.
struct Total {
    seen: u64,
    service: Arc<std::sync::atomic::AtomicU64>,
}

impl ProcessFunction<u64, u64> for Total {
    fn open(&mut self, _context: &OperatorContext, restored: Vec<Versioned>) -> Result<()> {
        for item in &restored {
            let mut reader = StateReader::open("total", item, 1..=1)?;
            self.seen += reader.u64()?;
            reader.finish()?;
        }
        Ok(())
    }

    fn process(
        &mut self,
        value: u64,
        _info: &RecordContext,
        out: &mut Collector<'_, u64>,
    ) -> Result<()> {
        self.seen += 1;
        out.emit(value);
        Ok(())
    }

    fn on_end(&mut self, _out: &mut Collector<'_, u64>) -> Result<()> {
        self.service
            .fetch_add(self.seen, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn snapshot(&mut self, _checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        Ok(vec![StateWriter::new().u64(self.seen).finish(1)])
    }
}

#[test]
fn keyed_state_lists_and_splits_follow_from_one_to_three_to_two_subtasks() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let total = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (splits, per_split, keys) = (6, 120, 37);
    let mut gates: Vec<Arc<Gate>> = (0..2).map(|_| Arc::default()).collect();
    let mut source = Numbers::new(splits, per_split);
    source.pace = 30;
    for (run_number, parallelism) in [1, 3, 2].into_iter().enumerate() {
        // Each run but the last stops somewhere in the middle of every split.
        source.gate = gates.pop().map(|gate| (40 * (run_number as u64 + 1), gate));
        let job = Job::new("rescale");
        let total = total.clone();
        job.from_source("numbers", source.clone(), WatermarkStrategy::none())
            .process("total", move || Total {
                seen: 0,
                service: total.clone(),
            })
            .key_by(move |number| number % keys)
            .process("count", || Count)
            .sink_to("memory", MemorySink::staged(&service));
        let config = config(&dir)
            .parallelism(parallelism)
            .build()
            .expect("valid");
        let handle = job.start(config).expect("it starts");
        if source.gate.is_some() {
            // A reader holds as many splits as it asked for, so some progress is all that can be waited for.
            let before = service.count();
            until("some records to be committed", || {
                service.count() >= before + 40
            });
            let location = run(handle.stop(None)).expect("it stops");
            let report = finish(&handle).expect("it ends");
            assert_eq!(report.end, JobEnd::Stopped { location });
        } else {
            assert_eq!(finish(&handle).expect("it ends").end, JobEnd::Finished);
        }
    }
    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
    for number in source.all() {
        *expected.entry(number % keys).or_default() += 1;
    }
    let expected: Vec<u64> = expected
        .into_iter()
        .flat_map(|(key, count)| (1..=count).map(move |nth| key * 1_000_000 + nth))
        .collect();
    assert_eq!(
        service.values(),
        expected,
        "a count was lost, repeated or split"
    );
    assert_eq!(
        total.load(std::sync::atomic::Ordering::SeqCst),
        splits * per_split
    );
}

#[test]
fn the_number_of_key_groups_cannot_change_and_bounds_the_parallelism() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = |builder: aqueduct_runtime::JobConfigBuilder| {
        let job = Job::new("groups");
        job.from_source("numbers", Numbers::new(1, 10), WatermarkStrategy::none())
            .sink_to("memory", MemorySink::staged(&Service::default()));
        let handle = job
            .start(builder.build().expect("valid"))
            .expect("it starts");
        finish(&handle).map_err(|error| error.report())
    };
    start(config(&dir).max_parallelism(4)).expect("it ends");
    let report = start(config(&dir).max_parallelism(8)).expect_err("it is refused");
    assert!(
        report.contains("pipeline.max-parallelism") && report.contains('4'),
        "{report}"
    );
    let report = start(config(&dir).parallelism(5)).expect_err("it is refused");
    assert!(report.contains("parallelism.default"), "{report}");
    start(config(&dir).parallelism(4)).expect("it ends");
}
