//! What the scan tests share: a simulated table with rows in it, and sources upon it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_bigtable::TableDestination;
use aqueduct_bigtable::client::read::{
    Fill, ReadAccess, ReadClient, ReadPolicy, Remaining, RowRef, RowStream,
};
use aqueduct_bigtable::filter::Filter;
use aqueduct_bigtable::source::{BigtableSource, BigtableSourceBuilder};
use aqueduct_cloud::{CallSpec, ChannelPool, Endpoint, PoolOptions, TokenProvider};
use aqueduct_connector::options::ByteSize;
use aqueduct_connector::source::Collector;
use aqueduct_connector::{Context, Result};
use aqueduct_sim::{Sim, SimConfig, Table};
use aqueduct_testkit::within;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as wire;

/// A cell as tests write and compare it: family, qualifier, timestamp in microseconds, value.
pub(crate) type Cell = (String, Vec<u8>, i64, Vec<u8>);
/// Rows by key.
pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<Cell>>;

/// How long one read of a test may take in real time.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn destination() -> TableDestination {
    TableDestination::of("p", "i", "t").expect("valid")
}

/// One cell a row: `value` under `cf:q`.
pub(crate) fn plain_rows(keys: impl IntoIterator<Item = String>, value: &str) -> Rows {
    keys.into_iter()
        .map(|key| {
            let cell = (
                "cf".to_owned(),
                b"q".to_vec(),
                1_000,
                value.as_bytes().to_vec(),
            );
            (key.into_bytes(), vec![cell])
        })
        .collect()
}

/// Keys `r000`, `r001` and so on.
pub(crate) fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("r{at:03}")).collect()
}

/// A pool to a plaintext endpoint, for what tests do themselves.
pub(crate) fn pool(context: &Context, address: &str) -> ChannelPool {
    let endpoint = Endpoint::emulator("address", address).expect("host:port");
    ChannelPool::new(
        context,
        endpoint,
        TokenProvider::none(),
        PoolOptions::default(),
    )
    .expect("valid options")
}

/// Writes `rows`, a request for every hundred.
pub(crate) async fn write(context: &Context, address: &str, table: &TableDestination, rows: &Rows) {
    let pool = pool(context, address);
    let spec = CallSpec::new("/google.bigtable.v2.Bigtable/MutateRows", LIMIT);
    let entries: Vec<wire::mutate_rows_request::Entry> = rows
        .iter()
        .map(|(key, cells)| wire::mutate_rows_request::Entry {
            row_key: key.clone().into(),
            mutations: cells
                .iter()
                .map(|(family, qualifier, at, value)| wire::Mutation {
                    mutation: Some(wire::mutation::Mutation::SetCell(wire::mutation::SetCell {
                        family_name: family.clone(),
                        column_qualifier: qualifier.clone().into(),
                        timestamp_micros: *at,
                        value: value.clone().into(),
                    })),
                })
                .collect(),
            ..wire::mutate_rows_request::Entry::default()
        })
        .collect();
    for chunk in entries.chunks(100) {
        let request = wire::MutateRowsRequest {
            table_name: table.path(),
            entries: chunk.to_vec(),
            ..wire::MutateRowsRequest::default()
        };
        let mut answer = pool
            .call(&spec, aqueduct_cloud::frame(&request))
            .await
            .expect("the table takes rows");
        while let Some(message) = answer.message().await {
            let message = message.expect("an answer");
            let message = <wire::MutateRowsResponse as prost::Message>::decode(message);
            for entry in message.expect("a valid answer").entries {
                assert_eq!(
                    entry.status.map_or(0, |status| status.code),
                    0,
                    "the row is written"
                );
            }
        }
    }
}

/// A simulated service with one table in it.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) table: Table,
    pub(crate) rows: Rows,
}

impl World {
    /// A table of families `cf` and `other` that holds `rows`, cut into tablets at `splits`.
    pub(crate) async fn with(rows: Rows, splits: &[&str]) -> Self {
        let sim = Sim::start(SimConfig::default())
            .await
            .expect("a port on loopback");
        let splits: Vec<&[u8]> = splits.iter().map(|split| split.as_bytes()).collect();
        let table = sim
            .bigtable()
            .create_split_table("p", "i", "t", &["cf", "other"], &splits);
        let world = Self { sim, table, rows };
        let context = aqueduct_testkit::test_context(0);
        write(&context, &world.address(), &destination(), &world.rows).await;
        world.sim.bigtable().clear_requests();
        world
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        self.sim.endpoint().trim_start_matches("http://").to_owned()
    }

    pub(crate) fn client(&self, context: &Context) -> ReadClient {
        client(context, &self.address(), &destination())
    }

    /// A source that emits row keys.
    pub(crate) fn keys_source(&self) -> BigtableSourceBuilder<String> {
        keys_source(&self.address(), &destination())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.rows
            .keys()
            .map(|key| String::from_utf8(key.clone()).expect("test keys are text"))
            .collect()
    }
}

pub(crate) fn client(context: &Context, address: &str, table: &TableDestination) -> ReadClient {
    let access = ReadAccess::new(table.clone(), None, None, Some(address)).expect("valid");
    ReadClient::new(context, &access, ByteSize::mib(4), NonZeroUsize::MIN).expect("no key file")
}

pub(crate) fn keys_source(
    address: &str,
    table: &TableDestination,
) -> BigtableSourceBuilder<String> {
    BigtableSource::builder()
        .table(table.clone())
        .deserializer(|row: RowRef<'_>, out: &mut Collector<'_, String>| {
            out.emit(String::from_utf8_lossy(row.key()).into_owned());
            Ok(())
        })
        .emulator_endpoint(address)
}

pub(crate) fn scan(
    client: &ReadClient,
    remaining: Remaining,
    filter: Option<&Filter>,
    policy: ReadPolicy,
) -> RowStream {
    client.read(remaining, filter, policy, fastrand::Rng::with_seed(1))
}

/// Reads to the end, in order.
pub(crate) async fn collect(stream: &mut RowStream) -> Result<Vec<(Vec<u8>, Vec<Cell>)>> {
    let mut rows = Vec::new();
    let read = async {
        loop {
            let filled = std::future::poll_fn(|cx| stream.poll_fill(cx, 100, 1 << 20)).await?;
            if filled == Fill::End {
                return Ok::<(), aqueduct_connector::Error>(());
            }
            rows.extend(stream.batch().iter().map(owned));
            stream.clear();
        }
    };
    within(LIMIT, "a scan to end", read).await?;
    Ok(rows)
}

pub(crate) fn owned(row: RowRef<'_>) -> (Vec<u8>, Vec<Cell>) {
    let cells = row.cells().map(|cell| {
        (
            cell.family().to_owned(),
            cell.qualifier().to_vec(),
            cell.timestamp_micros(),
            cell.value().to_vec(),
        )
    });
    (row.key().to_vec(), cells.collect())
}

/// As a source for hosts.
pub(crate) fn arc<T: 'static>(
    builder: BigtableSourceBuilder<T>,
) -> Arc<dyn aqueduct_connector::source::Source<T>> {
    Arc::new(builder.build().expect("valid settings"))
}
