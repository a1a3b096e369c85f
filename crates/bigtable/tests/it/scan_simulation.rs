//! Random faults, random tablets, random restarts: every row once, whatever breaks.

use std::num::NonZeroU64;

use aqueduct_connector::options::ByteSize;
use aqueduct_sim::{Chunking, Code, Method};
use aqueduct_testkit::{SourceHost, TestContext, seeds};

use super::scan_support::*;

/// What a seed decides.
struct Plan {
    random: fastrand::Rng,
    limit: Option<u64>,
    reversed: bool,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            limit: (seed % 3 == 2).then(|| random.u64(1..70)),
            reversed: seed % 4 == 1,
            random,
        }
    }

    fn boundary(&mut self) -> String {
        format!("r{:03}", self.random.u32(1..60))
    }
}

/// Breaks what can break, again and again.
fn script_faults(world: &World, seed: u64, plan: &mut Plan) {
    let table = &world.table;
    for (at, method) in [Method::ReadRows, Method::SampleRowKeys]
        .into_iter()
        .enumerate()
    {
        let seed = seed.wrapping_mul(31).wrapping_add(at as u64);
        let cut = plan.random.usize(0..12);
        table.randomly(seed, 0.3, method).break_after(cut);
        table
            .randomly(seed + 1, 0.1, method)
            .status(Code::Unavailable);
    }
    let seed = seed.wrapping_mul(37);
    table
        .randomly(seed, 0.1, Method::ReadRows)
        .break_after(3)
        .cut_connection();
    table.randomly(seed + 1, 0.1, Method::ReadRows).goaway();
    table
        .randomly(seed + 2, 0.1, Method::ReadRows)
        .refuse_stream();
}

#[tokio::test]
async fn whatever_breaks_every_row_comes_once_across_restarts() {
    for seed in seeds(0..12) {
        let mut plan = Plan::new(seed);
        let boundaries: Vec<String> = (0..plan.random.usize(0..5))
            .map(|_| plan.boundary())
            .collect();
        let mut boundaries: Vec<&str> = boundaries.iter().map(String::as_str).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        let world = World::with(plain_rows(numbered(60), "value"), &boundaries).await;
        world.table.set_chunking(Chunking::Seeded(seed));
        script_faults(&world, seed, &mut plan);

        let mut builder = world
            .keys_source()
            .max_rows_per_fetch(NonZeroU64::new(plan.random.u64(1..20)).expect("from 1"))
            .max_bytes_per_fetch(ByteSize(plan.random.u64(1..2_000)));
        let mut expected = world.keys();
        if plan.reversed {
            builder = builder.reversed();
            expected.reverse();
        }
        if let Some(limit) = plan.limit {
            builder = builder.row_limit(NonZeroU64::new(limit).expect("from 1"));
            expected.truncate(usize::try_from(limit).expect("small"));
        }
        expected.sort();
        let source = arc(builder);

        let mut kit = TestContext::new("scan").with_seed(seed);
        let parallelism = plan.random.u32(1..4);
        let mut host = SourceHost::start(source.clone(), &kit, parallelism).expect("starts");
        let mut arrived = Vec::new();
        for _ in 0..plan.random.usize(0..5) {
            host.run_until_emitted(plan.random.usize(1..20))
                .await
                .expect("reads");
            let checkpoint = host.checkpoint().await.expect("snapshots");
            if plan.random.bool() {
                // What is emitted behind the checkpoint comes again after a restore.
                host.run_until_emitted(plan.random.usize(1..5))
                    .await
                    .expect("reads");
            }
            if host.parallelism() > 1 && plan.random.bool() {
                host.fail_reader(0).expect("recovers");
                host.run_until_emitted(1).await.expect("reads");
                continue;
            }
            let before = host.emitted_before(&checkpoint);
            arrived.extend(before.map(|emitted| emitted.record.value.clone()));
            host.kill();
            let boundary = plan.boundary();
            if !world.table.split_tablet(boundary.as_bytes()) {
                world.table.merge_tablets(boundary.as_bytes());
            }
            kit = kit.next_attempt();
            let parallelism = plan.random.u32(1..4);
            host = SourceHost::restore(source.clone(), &kit, &checkpoint, parallelism)
                .expect("restores");
        }
        host.run_to_end().await.expect("reads");
        arrived.extend(host.emitted().map(|emitted| emitted.record.value.clone()));
        arrived.sort();
        assert_eq!(arrived, expected, "seed {seed}");
        host.close().await.expect("closes");
    }
}
