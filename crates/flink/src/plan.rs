//! Planning: a table with a plan becomes an answer for Flink's planner, or something to drive.

use aqueduct_connector::row::Row;
use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::Boundedness;
use aqueduct_connector::state::StateWriter;
use aqueduct_connector::table::{
    FilterUse, LookupPlanned, ScanPlanned, SinkPlanned, TableFactory, TableLookup, TableSource,
};
use aqueduct_connector::{Error, Result};
use bytes::Bytes;

use crate::errors::Failure;
use crate::probe;
use crate::wire::{Plan, Request, put_kinds};

/// The connectors of this library, by the value of `connector`.
pub(crate) fn factory(connector: &str) -> Result<&'static dyn TableFactory> {
    Ok(match connector {
        "bigtable" => aqueduct_bigtable::table::factory(),
        "pubsub" => aqueduct_pubsub::table::factory(),
        probe::CONNECTOR => probe::factory(),
        other => {
            return Err(Error::config(format!(
                "this library has no connector '{other}'"
            )));
        }
    })
}

/// Checks a table and its plan, and says what Flink must do for it.
pub(crate) fn plan(request: Vec<u8>) -> Result<Bytes, Failure> {
    let Request {
        connector,
        table,
        plan,
    } = Request::decode(request)?;
    let factory = factory(&connector)?;
    let mut answer = StateWriter::new();
    match plan {
        Plan::Sink(plan) => {
            let SinkPlanned {
                accepts,
                parallelism,
                partition_by,
            } = factory.plan_sink(&table, &plan)?;
            put_kinds(&mut answer, &accepts);
            answer
                .u32(parallelism.unwrap_or(0))
                .count(partition_by.len());
            for field in partition_by {
                answer.count(field);
            }
        }
        Plan::Scan(plan) => {
            let ScanPlanned {
                boundedness,
                kinds,
                parallelism,
            } = factory.plan_scan(&table, &plan)?;
            answer.u8(u8::from(boundedness == Boundedness::Bounded));
            put_kinds(&mut answer, &kinds);
            answer.u32(parallelism.unwrap_or(0));
        }
        Plan::Filters(filters) => {
            let uses = factory.plan_filters(&table, &filters)?;
            answer.count(uses.len());
            for one in uses {
                answer.u8(match one {
                    FilterUse::Exact => 0,
                    FilterUse::Partial => 1,
                    FilterUse::Ignored => 2,
                });
            }
        }
        Plan::Lookup(plan) => {
            let LookupPlanned { asynchronous } = factory.plan_lookup(&table, &plan)?;
            answer.u8(u8::from(asynchronous));
        }
    }
    Ok(answer.finish(0).bytes)
}

/// The sink of a request.
pub(crate) fn sink(request: Vec<u8>) -> Result<Box<dyn Sink<Row>>, Failure> {
    let request = Request::decode(request)?;
    let factory = factory(&request.connector)?;
    match request.plan {
        Plan::Sink(plan) => Ok(factory.sink(&request.table, &plan)?),
        _ => Err(other_plan()),
    }
}

/// The source of a request.
pub(crate) fn source(request: Vec<u8>) -> Result<Box<dyn TableSource>, Failure> {
    let request = Request::decode(request)?;
    let factory = factory(&request.connector)?;
    match request.plan {
        Plan::Scan(plan) => Ok(factory.source(&request.table, &plan)?),
        _ => Err(other_plan()),
    }
}

/// The lookup of a request, and the number of its key fields.
pub(crate) fn lookup(request: Vec<u8>) -> Result<(Box<dyn TableLookup>, usize), Failure> {
    let request = Request::decode(request)?;
    let factory = factory(&request.connector)?;
    match request.plan {
        Plan::Lookup(plan) => {
            let lookup = factory.lookup(&request.table, &plan)?;
            Ok((lookup, plan.keys.len()))
        }
        _ => Err(other_plan()),
    }
}

fn other_plan() -> Failure {
    Error::bug("a table was opened with the plan of another use").into()
}
