//! One request: read, logged, met by faults, served, answered.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tonic::{Code, Status};

use super::{
    body::{SimBody, Step, trailers_of},
    connection::Connection,
    grpc::{EntryCounter, next_data, read_message, table_name},
};
use crate::{
    bigtable::{
        Reply, admin as tables,
        chunks::frame,
        mutate,
        read::{self, Scan},
        slot::{Slot, instance_of, lock},
        store::Refusal,
        wire::{CheckAndMutateRowRequest, MutateRowRequest, MutateRowsRequest},
    },
    config::RoutingHeader,
    core::Core,
    faults::{Loss, Plan},
    log::{Arrival, Headers},
    method::Method,
    pubsub,
};

/// A decoded request.
enum Call {
    MutateRows(MutateRowsRequest),
    MutateRow(MutateRowRequest),
    ReadRows(Box<pb::ReadRowsRequest>),
    SampleRowKeys(pb::SampleRowKeysRequest),
    CheckAndMutateRow(Box<CheckAndMutateRowRequest>),
    ReadModifyWriteRow(pb::ReadModifyWriteRowRequest),
    PingAndWarm(pb::PingAndWarmRequest),
    CreateTable(Box<admin::CreateTableRequest>),
    GetTable(admin::GetTableRequest),
    ListTables(admin::ListTablesRequest),
    DeleteTable(admin::DeleteTableRequest),
    ModifyColumnFamilies(admin::ModifyColumnFamiliesRequest),
    DropRowRange(admin::DropRowRangeRequest),
    GetAppProfile(admin::GetAppProfileRequest),
}

impl Call {
    fn decode(method: Method, message: &Bytes) -> Result<Self, Status> {
        fn decode<M: Message + Default>(message: &Bytes) -> Result<M, Status> {
            M::decode(message.clone())
                .map_err(|_| Status::internal("the request message cannot be decoded"))
        }
        Ok(match method {
            Method::MutateRows => Self::MutateRows(decode(message)?),
            Method::MutateRow => Self::MutateRow(decode(message)?),
            Method::ReadRows => Self::ReadRows(Box::new(decode(message)?)),
            Method::SampleRowKeys => Self::SampleRowKeys(decode(message)?),
            Method::CheckAndMutateRow => Self::CheckAndMutateRow(Box::new(decode(message)?)),
            Method::ReadModifyWriteRow => Self::ReadModifyWriteRow(decode(message)?),
            Method::PingAndWarm => Self::PingAndWarm(decode(message)?),
            Method::CreateTable => Self::CreateTable(Box::new(decode(message)?)),
            Method::GetTable => Self::GetTable(decode(message)?),
            Method::ListTables => Self::ListTables(decode(message)?),
            Method::DeleteTable => Self::DeleteTable(decode(message)?),
            Method::ModifyColumnFamilies => Self::ModifyColumnFamilies(decode(message)?),
            Method::DropRowRange => Self::DropRowRange(decode(message)?),
            Method::GetAppProfile => Self::GetAppProfile(decode(message)?),
            // Other services were sent their requests before.
            _ => return Err(Status::unimplemented("not a method of Bigtable")),
        })
    }

    /// The resource spoken of, the profile, and the number of entries.
    fn subject(&self) -> (String, &str, usize) {
        match self {
            Self::MutateRows(r) => (r.table_name.clone(), &r.app_profile_id, r.entries.len()),
            Self::MutateRow(r) => (r.table_name.clone(), &r.app_profile_id, 1),
            Self::ReadRows(r) => (r.table_name.clone(), &r.app_profile_id, 1),
            Self::SampleRowKeys(r) => (r.table_name.clone(), &r.app_profile_id, 1),
            Self::CheckAndMutateRow(r) => (r.table_name.clone(), &r.app_profile_id, 1),
            Self::ReadModifyWriteRow(r) => (r.table_name.clone(), &r.app_profile_id, 1),
            Self::PingAndWarm(r) => (r.name.clone(), &r.app_profile_id, 1),
            Self::CreateTable(r) => (format!("{}/tables/{}", r.parent, r.table_id), "", 1),
            Self::GetTable(r) => (r.name.clone(), "", 1),
            Self::ListTables(r) => (r.parent.clone(), "", 1),
            Self::DeleteTable(r) => (r.name.clone(), "", 1),
            Self::ModifyColumnFamilies(r) => (r.name.clone(), "", 1),
            Self::DropRowRange(r) => (r.name.clone(), "", 1),
            Self::GetAppProfile(r) => (r.name.clone(), "", 1),
        }
    }

    /// Serves the request. Everything that takes effect does so here, without an await.
    fn serve(self, core: &Core, plan: &Plan, tells_scanned: bool) -> Result<Reply, Refusal> {
        let (directory, config) = (&core.directory, &core.config);
        let limits = &config.limits;
        match self {
            Self::MutateRows(request) => mutate::mutate_rows(directory, config, &request, plan),
            Self::MutateRow(request) => mutate::mutate_row(directory, limits, request),
            Self::CheckAndMutateRow(request) => {
                mutate::check_and_mutate_row(directory, limits, *request)
            }
            Self::ReadModifyWriteRow(request) => {
                mutate::read_modify_write_row(directory, limits, &request)
            }
            Self::ReadRows(request) => {
                let instance = instance_of(&request.table_name);
                directory
                    .profiles
                    .check(instance, &request.app_profile_id, Method::ReadRows)?;
                let slot = directory.known(&request.table_name)?;
                let mut scan = Scan::open(slot, &request, tells_scanned, limits)?;
                if let Some(chunks) = plan.break_after {
                    scan.break_after(chunks);
                }
                Ok(Reply::Scan(Box::new(scan)))
            }
            Self::SampleRowKeys(request) => {
                let instance = instance_of(&request.table_name);
                directory.profiles.check(
                    instance,
                    &request.app_profile_id,
                    Method::SampleRowKeys,
                )?;
                let slot = directory.known(&request.table_name)?;
                let mut messages = read::samples(&slot)?;
                match plan.break_after {
                    Some(keys) => {
                        messages.truncate(keys);
                        Ok(Reply::Broken(messages, broken(plan)))
                    }
                    None => Ok(Reply::Messages(messages)),
                }
            }
            Self::PingAndWarm(request) => {
                directory.profiles.check(
                    &request.name,
                    &request.app_profile_id,
                    Method::PingAndWarm,
                )?;
                Ok(Reply::Messages(vec![frame(&pb::PingAndWarmResponse {})]))
            }
            Self::CreateTable(request) => tables::create_table(directory, config, *request),
            Self::GetTable(request) => tables::get_table(directory, &request),
            Self::ListTables(request) => tables::list_tables(directory, &request),
            Self::DeleteTable(request) => tables::delete_table(directory, &request),
            Self::ModifyColumnFamilies(request) => {
                tables::modify_column_families(directory, config, &request)
            }
            Self::DropRowRange(request) => tables::drop_row_range(directory, &request),
            Self::GetAppProfile(request) => directory
                .profiles
                .describe(&request.name)
                .map(|profile| Reply::Messages(vec![frame(&profile)])),
        }
    }
}

fn broken(plan: &Plan) -> Status {
    plan.refusal()
        .unwrap_or_else(|| Status::unavailable("scripted break"))
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

pub(crate) fn response(body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, GRPC);
    response
}

/// A status alone: it rides in the headers, and no trailers follow.
pub(crate) fn refused(status: &Status) -> Response<SimBody> {
    let mut response = response(SimBody::Empty);
    response.headers_mut().extend(trailers_of(status));
    response
}

/// Serves one request. An error resets its stream.
pub(crate) async fn serve(
    core: Arc<Core>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, h2::Error> {
    let (parts, mut body) = request.into_parts();
    let Some(method) = Method::from_path(parts.uri.path()) else {
        return Ok(refused(&Status::unimplemented(
            "the simulation does not serve this method",
        )));
    };
    let first = match next_data(&mut body).await {
        Ok(first) => first,
        Err(status) => return Ok(refused(&status)),
    };
    if method.is_pubsub() {
        let headers = parts.headers;
        return pubsub::serve::serve(core, connection, method, headers, first, body).await;
    }
    if method == Method::MutateRows
        && core.any_discards()
        && let Some(slot) = first.as_deref().and_then(|first| discarding(&core, first))
    {
        return Ok(discard(&core, &slot, first, &mut body).await);
    }
    let message = match read_message(&mut body, first, core.config.limits.message_bytes).await {
        Ok(message) => message,
        Err(status) => return Ok(refused(&status)),
    };
    let answer = meet(&core, &connection, method, &parts.headers, message).await;
    core.notify();
    answer
}

async fn meet(
    core: &Core,
    connection: &Arc<Connection>,
    method: Method,
    headers: &HeaderMap,
    message: Bytes,
) -> Result<Response<SimBody>, h2::Error> {
    let call = match Call::decode(method, &message) {
        Ok(call) => call,
        Err(status) => return Ok(refused(&status)),
    };
    let headers = Headers::of(headers);
    let unrouted = headers.routing.is_none();
    let tells_scanned = read::reads_scanned_keys(headers.features.as_deref());
    let (resource, app_profile, entries) = call.subject();
    core.log.record(Arrival {
        method,
        resource: resource.clone(),
        app_profile: app_profile.to_owned(),
        entries,
        message,
        headers,
        connection: connection.id,
    });
    core.notify();

    let plan = core.script.meet(Some(&resource), method);
    if plan.goaway {
        connection.recycle();
    }
    if let Some(delay) = plan.delay {
        tokio::time::sleep(delay).await;
    }
    for action in &plan.actions {
        action();
    }
    if let Some(gate) = &plan.hold {
        gate.pass().await;
    }
    if plan.silent == Some(Loss::Before) {
        return pending().await;
    }
    // With a scripted break these are how it ends, after some of the answer.
    if plan.break_after.is_none() {
        if plan.cut == Some(Loss::Before) {
            connection.cut();
            return pending().await;
        }
        if let Some(reason) = plan.reset {
            return Err(reason.into());
        }
        if let Some(status) = plan.refusal() {
            return Ok(finish(connection, &plan, Vec::new(), Some(&status)));
        }
    }
    if unrouted && method.is_data() && core.config.routing_header == RoutingHeader::Required {
        let status = Status::invalid_argument("x-goog-request-params is missing");
        return Ok(refused(&status));
    }

    let reply = call.serve(core, &plan, tells_scanned);
    core.notify();
    if let Some(gate) = &plan.hold_answer {
        gate.pass().await;
    }
    let lost = plan.cut == Some(Loss::After);
    if lost || plan.silent == Some(Loss::After) {
        if let Some(slot) = core.directory.find(&resource) {
            slot.counters.lost_answers.fetch_add(1, Ordering::SeqCst);
        }
        core.notify();
        if lost {
            connection.cut();
        }
        return pending().await;
    }
    if let Some(status) = plan.refusal_after() {
        return Ok(finish(connection, &plan, Vec::new(), Some(&status)));
    }
    Ok(match reply {
        Err(Refusal { code, message }) => finish(
            connection,
            &plan,
            Vec::new(),
            Some(&Status::new(code, message)),
        ),
        Ok(Reply::Messages(messages)) => {
            let steps = messages.into_iter().map(Step::Message).collect();
            finish(connection, &plan, steps, Some(&Status::new(Code::Ok, "")))
        }
        Ok(Reply::Broken(messages, status)) => {
            let steps = messages.into_iter().map(Step::Message).collect();
            finish(connection, &plan, steps, Some(&status))
        }
        Ok(Reply::Scan(scan)) => {
            let end = plan.break_after.map(|_| broken(&plan));
            finish(connection, &plan, vec![Step::Scan(scan)], end.as_ref())
        }
    })
}

/// The answer of these steps, ending as the plan says or with `status`. No status: the last step
/// brings its own.
pub(crate) fn finish(
    connection: &Arc<Connection>,
    plan: &Plan,
    mut steps: Vec<Step>,
    status: Option<&Status>,
) -> Response<SimBody> {
    let mut trailers: HeaderMap = plan.trailers.iter().cloned().collect();
    let breaks = plan.break_after.is_some();
    if steps.is_empty() && plan.headers.is_empty() && !(breaks && plan.cut.is_some()) {
        let mut response = refused(status.unwrap_or(&Status::new(Code::Ok, "")));
        response.headers_mut().extend(trailers);
        return response;
    }
    match (plan.cut, plan.reset) {
        (Some(_), _) if breaks => steps.push(Step::Cut),
        (_, Some(reason)) if breaks => steps.push(Step::Reset(reason)),
        _ => {
            if let Some(status) = status {
                let mut own = trailers_of(status);
                own.extend(trailers.clone());
                steps.push(Step::Trailers(own));
                if !breaks {
                    trailers = HeaderMap::new();
                }
            }
        }
    }
    let mut response = response(SimBody::scripted(steps, connection.clone(), trailers));
    response.headers_mut().extend(plan.headers.iter().cloned());
    response
}

/// The discarding table that a request is for, if nothing else is scripted.
fn discarding(core: &Core, first: &[u8]) -> Option<Arc<Slot>> {
    if !core.script.is_empty() {
        return None;
    }
    let slot = core.directory.find(table_name(first)?)?;
    slot.discards.load(Ordering::SeqCst).then_some(slot)
}

/// Counts the entries as they arrive and acknowledges them all.
async fn discard(
    core: &Core,
    slot: &Slot,
    first: Option<Bytes>,
    body: &mut Incoming,
) -> Response<SimBody> {
    let mut counter = EntryCounter::new();
    let mut next = first;
    while let Some(data) = next {
        if counter.feed(&data).is_err() {
            return refused(&Status::internal("the request message cannot be decoded"));
        }
        next = match next_data(body).await {
            Ok(next) => next,
            Err(status) => return refused(&status),
        };
    }
    let Ok((entries, bytes)) = counter.finish() else {
        return refused(&Status::internal("the request message cannot be decoded"));
    };
    core.log.count(Method::MutateRows);
    let counters = &slot.counters;
    counters.discarded_requests.fetch_add(1, Ordering::SeqCst);
    counters
        .discarded_entries
        .fetch_add(entries as u64, Ordering::SeqCst);
    counters.discarded_bytes.fetch_add(bytes, Ordering::SeqCst);
    counters.applied.fetch_add(entries as u64, Ordering::SeqCst);
    core.notify();
    let message = {
        // Clients send batches of one size, so the last answer usually fits.
        let mut last = lock(&slot.acknowledgement);
        if last.0 != entries || last.1.is_empty() {
            *last = (entries, acknowledgement(entries));
        }
        last.1.clone()
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    response(SimBody::Once(Some(message), Some(trailers)))
}

/// A framed `MutateRowsResponse` that reports success for each of so many entries.
pub(crate) fn acknowledgement(entries: usize) -> Bytes {
    let mut buffer = BytesMut::with_capacity(5 + entries * 8);
    buffer.put_slice(&[0; 5]);
    for index in 0..entries as u64 {
        // Field 1 of the response: an entry of field 1, its index (absent for 0), and field 2, an
        // empty status, which is success.
        let index_bytes = if index == 0 {
            0
        } else {
            1 + prost::encoding::encoded_len_varint(index)
        };
        buffer.put_u8(0x0a);
        buffer.put_u8(u8::try_from(index_bytes + 2).expect("a varint has at most ten bytes"));
        if index > 0 {
            buffer.put_u8(0x08);
            prost::encoding::encode_varint(index, &mut buffer);
        }
        buffer.put_slice(&[0x12, 0x00]);
    }
    let length = u32::try_from(buffer.len() - 5).expect("answers are far below 4 GiB");
    buffer[1..5].copy_from_slice(&length.to_be_bytes());
    buffer.freeze()
}

#[cfg(test)]
mod tests {
    //! What is written by hand is what the generated type reads.

    use super::*;

    #[test]
    fn an_acknowledgement_reports_success_for_each_entry() {
        for entries in [0, 1, 2, 128, 129, 20_000] {
            let framed = acknowledgement(entries);
            let message = pb::MutateRowsResponse::decode(&framed[5..]).expect("well-formed");
            let indices: Vec<i64> = message.entries.iter().map(|entry| entry.index).collect();
            assert_eq!(indices, (0..entries as i64).collect::<Vec<_>>());
            let success =
                |entry: &pb::mutate_rows_response::Entry| entry.status.as_ref().map(|s| s.code);
            assert!(
                message
                    .entries
                    .iter()
                    .all(|entry| success(entry) == Some(0))
            );
        }
    }
}
