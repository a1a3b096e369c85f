//! Random shapes, faults, stops and rescales: whatever the seed, every record takes effect once.

use aqueduct_connector::CheckpointId;
use aqueduct_connector::source::Record;
use aqueduct_runtime::{Job, JobEnd, Operator, OperatorState, WatermarkStrategy};

use crate::support::{Fault, MemorySink, Numbers, Point, Service, config, finish, run, when};

struct Through(Fault);

impl Operator<u64, u64> for Through {
    fn process(
        &mut self,
        records: Vec<Record<u64>>,
        out: &mut Vec<Record<u64>>,
    ) -> aqueduct_connector::Result<()> {
        self.0.pass(Point::Function)?;
        *out = records;
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> aqueduct_connector::Result<OperatorState> {
        self.0.pass(Point::OperatorSnapshot)?;
        Ok(OperatorState::default())
    }
}

/// One job over several starts, each with another parallelism, some stopped half-way and most struck by a fault.
fn history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::default();
    let mut source = Numbers::new(random.u64(1..6), random.u64(1..200));
    source.batch = random.u64(1..30);
    source.pace = random.u64(10..80);
    for start in 0.. {
        assert!(start < 50, "seed {seed}: it never ends");
        let point = Point::ALL[random.usize(..Point::ALL.len())];
        let fault = Fault::at(point, random.u64(..12));
        source.fault = fault.clone();
        let mut sink = MemorySink::staged(&service);
        sink.fault = fault.clone();
        sink.try_again = random.u32(..2);
        let through = fault.clone();
        let job = Job::new("history");
        let (left, right) = job
            .from_source("numbers", source.clone(), WatermarkStrategy::none())
            .tee();
        let even = left.filter("even", |number| number % 2 == 0).rebalance();
        let odd = right.filter("odd", |number| number % 2 == 1);
        even.union([odd])
            .key_by(|number| number % 11)
            .into_stream()
            .map("value", |(_, number)| number)
            .operator("through", move || Through(through.clone()))
            .sink_to("memory", sink);
        let builder = config(&dir)
            .parallelism(random.u32(1..4))
            .channel_elements(random.u32(1..6))
            .channel_records(random.u32(1..40))
            .seed(seed);
        let handle = job
            .start(builder.build().expect("valid"))
            .expect("it starts");
        if random.bool() {
            let wanted = random.u64(1..6);
            when(&handle, |status| status.completed_checkpoints >= wanted);
            // A fault may strike while it stops, or the end may come first; then it goes on or is over.
            let _ = run(handle.stop(None));
            handle.cancel();
        }
        let end = finish(&handle)
            .unwrap_or_else(|error| panic!("seed {seed}: {}", error.report()))
            .end;
        assert_eq!(service.left_open(), 0, "seed {seed}");
        if end == JobEnd::Finished {
            break;
        }
    }
    assert_eq!(service.values(), source.all(), "seed {seed}");
}

#[test]
fn any_history_of_starts_leaves_one_effect_a_record() {
    for seed in 0..15 {
        history(seed);
    }
}
