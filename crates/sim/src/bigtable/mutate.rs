//! The writing requests.
//!
//! A request is checked whole before anything of it is applied, all under one lock of the table:
//! that is what makes the service refuse a batch for one bad entry, and an entry atomic.

use std::{sync::atomic::Ordering, time::SystemTime};

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::{bigtable::v2 as pb, rpc};
use tonic::{Code, Status};

use super::{
    Reply,
    chunks::frame,
    details::duration,
    filter::{Filter, View},
    slot::{Answers, Directory, EntryOrder, Slot, instance_of, lock},
    store::{Kind, Refusal, check_key, check_qualifier},
    wire::{CheckAndMutateRowRequest, Entry, MutateRowRequest, MutateRowsRequest, Mutation},
};
use crate::{
    config::{Limits, RefusalForm, SimConfig},
    faults::Plan,
    method::Method,
};

/// Server time in microseconds, in whole milliseconds as every stamp of a table.
pub(crate) fn server_now() -> i64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX / 1_000) * 1_000
}

const POISONED: &str = "Request holds a poisoned entry";

fn check_poison(slot: &Slot, entries: &[Entry]) -> Result<(), Refusal> {
    let poison = lock(&slot.options).poison.clone();
    match poison {
        Some(poison) if entries.iter().any(|entry| poison(entry)) => {
            Err(Refusal::invalid(POISONED))
        }
        _ => Ok(()),
    }
}

fn check_count(mutations: usize, limits: &Limits) -> Result<(), Refusal> {
    if mutations > limits.mutations_per_request {
        return Err(Refusal::invalid(format!(
            "Too many mutations: {mutations}, the limit is {} a request",
            limits.mutations_per_request
        )));
    }
    Ok(())
}

/// Which way an answered or unanswered entry went.
enum Verdict {
    Status(Code, String),
    Unanswered,
}

pub(crate) fn mutate_rows(
    directory: &Directory,
    config: &SimConfig,
    request: &MutateRowsRequest,
    plan: &Plan,
) -> Result<Reply, Refusal> {
    let instance = instance_of(&request.table_name);
    directory
        .profiles
        .check(instance, &request.app_profile_id, Method::MutateRows)?;
    if request.entries.is_empty() {
        return Err(Refusal::invalid("No entries provided"));
    }
    let slot = directory.find(&request.table_name);
    let verdicts = match &slot {
        None => Err(directory
            .known(&request.table_name)
            .err()
            .unwrap_or_else(|| {
                Refusal::new(
                    Code::NotFound,
                    format!("Table not found: {}", request.table_name),
                )
            })),
        Some(slot) => apply_entries(slot, &config.limits, &request.entries, plan),
    };
    match verdicts {
        Ok((verdicts, order)) => {
            let slot = slot.expect("entries were applied to it");
            Ok(answer(&slot, &verdicts, &order, plan))
        }
        Err(refusal) => {
            if let Some(slot) = &slot {
                let refused = request.entries.len() as u64;
                slot.counters.refused.fetch_add(refused, Ordering::SeqCst);
            }
            match config.refusal_form {
                RefusalForm::WholeCall => Err(refusal),
                RefusalForm::EveryEntry => {
                    let mut answers = AnswerMessages::new(plan);
                    for index in 0..request.entries.len() {
                        answers.push(response_entry(index, refusal.code, &refusal.message));
                    }
                    Ok(Reply::Messages(answers.finish()))
                }
            }
        }
    }
}

/// Checks all entries, then applies those that nothing scripted concerns. Returns a verdict for
/// each, and the order in which to answer.
fn apply_entries(
    slot: &Slot,
    limits: &Limits,
    entries: &[Entry],
    plan: &Plan,
) -> Result<(Vec<Verdict>, Vec<usize>), Refusal> {
    check_poison(slot, entries)?;
    check_count(
        entries.iter().map(|entry| entry.mutations.len()).sum(),
        limits,
    )?;
    let (answer_order, apply_order) = {
        let mut options = lock(&slot.options);
        let mut answers: Vec<usize> = (0..entries.len()).collect();
        let mut apply = answers.clone();
        if let Answers::Seeded(_) = options.answers {
            options.answers_rng.shuffle(&mut answers);
        }
        match options.order {
            EntryOrder::AsSent => {}
            EntryOrder::Reversed => apply.reverse(),
            EntryOrder::Shuffled(_) => options.order_rng.shuffle(&mut apply),
        }
        (answers, apply)
    };
    let mut unanswered = vec![false; entries.len()];
    for index in &plan.missing {
        if let Some(unanswered) = unanswered.get_mut(*index) {
            *unanswered = true;
        }
    }
    if let Some(answers) = plan.break_after {
        for index in answer_order
            .iter()
            .filter(|index| !plan.missing.contains(index))
            .skip(answers)
        {
            unanswered[*index] = true;
        }
    }

    // Before the table is locked: the predicates are a test's, and may look at it.
    let mut statuses: Vec<Option<Code>> = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| plan.entry_status(index, entry))
        .collect();

    let mut open = slot.open()?;
    let table = open.table();
    let discards = slot.discards.load(Ordering::SeqCst);
    if !discards {
        for entry in entries {
            table
                .check_row(&entry.row_key, &entry.mutations, limits)
                .map_err(|refusal| {
                    // Clients look for a phrase within; the service puts words around it.
                    let message = format!("Error while mutating the row : {}", refusal.message);
                    Refusal::new(refusal.code, message)
                })?;
        }
    }
    let now = server_now();
    let mut verdicts: Vec<Option<Verdict>> = Vec::new();
    verdicts.resize_with(entries.len(), || None);
    let (mut applied, mut refused) = (0, 0);
    for index in apply_order {
        let entry = &entries[index];
        let status = statuses[index].take();
        let applies = status.is_none() && (!unanswered[index] || plan.apply_unanswered);
        if applies {
            applied += 1;
            if !discards {
                table.apply_row(&entry.row_key, &entry.mutations, now);
            }
        }
        verdicts[index] = Some(match status {
            _ if unanswered[index] => Verdict::Unanswered,
            Some(code) => {
                refused += 1;
                Verdict::Status(code, "scripted fault".to_owned())
            }
            None => Verdict::Status(Code::Ok, String::new()),
        });
    }
    drop(open);
    slot.counters.applied.fetch_add(applied, Ordering::SeqCst);
    slot.counters.refused.fetch_add(refused, Ordering::SeqCst);
    if discards {
        slot.counters
            .discarded_entries
            .fetch_add(applied, Ordering::SeqCst);
    }
    let verdicts = verdicts
        .into_iter()
        .map(|verdict| verdict.unwrap_or(Verdict::Unanswered))
        .collect();
    Ok((verdicts, answer_order))
}

fn response_entry(index: usize, code: Code, message: &str) -> pb::mutate_rows_response::Entry {
    pb::mutate_rows_response::Entry {
        index: i64::try_from(index).expect("fewer than 2^63 entries"),
        status: Some(rpc::Status {
            code: code.into(),
            message: message.to_owned(),
            details: Vec::new(),
        }),
    }
}

/// Entries a message holds at most, so that the texts of refusals do not add up to a message that
/// clients refuse to read.
const ENTRIES_PER_MESSAGE: usize = 1_000;

/// Gathers answers into messages.
struct AnswerMessages {
    messages: Vec<Bytes>,
    open: pb::MutateRowsResponse,
}

impl AnswerMessages {
    fn new(plan: &Plan) -> Self {
        let rate_limit_info = plan.rate_limit.map(|(factor, period)| pb::RateLimitInfo {
            period: Some(duration(period)),
            factor,
        });
        let open = pb::MutateRowsResponse {
            entries: Vec::new(),
            rate_limit_info,
        };
        Self {
            messages: Vec::new(),
            open,
        }
    }

    fn push(&mut self, entry: pb::mutate_rows_response::Entry) {
        self.open.entries.push(entry);
        if self.open.entries.len() == ENTRIES_PER_MESSAGE {
            self.end_message();
        }
    }

    fn end_message(&mut self) {
        self.messages.push(frame(&std::mem::take(&mut self.open)));
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.open.entries.is_empty() || self.messages.is_empty() {
            self.end_message();
        }
        self.messages
    }
}

fn answer(slot: &Slot, verdicts: &[Verdict], order: &[usize], plan: &Plan) -> Reply {
    let mut options = lock(&slot.options);
    let seeded = matches!(options.answers, Answers::Seeded(_));
    let mut answers = AnswerMessages::new(plan);
    for &index in order {
        let Verdict::Status(code, message) = &verdicts[index] else {
            continue;
        };
        let mut entry = response_entry(index, *code, message);
        if seeded && *code == Code::Ok && options.answers_rng.bool() {
            entry.status = None;
        }
        answers.push(entry);
        if seeded && options.answers_rng.u32(0..4) == 0 {
            answers.end_message();
        }
    }
    let messages = answers.finish();
    drop(options);
    match plan.break_after {
        // A scripted end that is not a status is carried out by the caller.
        Some(_) if plan.cut.is_none() && plan.reset.is_none() => {
            let end = plan
                .refusal()
                .unwrap_or_else(|| Status::unavailable("scripted break"));
            Reply::Broken(messages, end)
        }
        _ => Reply::Messages(messages),
    }
}

/// The one table and row of a single-row request, checked up to its mutations.
fn single_row(
    directory: &Directory,
    (table, profile): (&str, &str),
    method: Method,
    entry: &Entry,
) -> Result<std::sync::Arc<Slot>, Refusal> {
    directory
        .profiles
        .check(instance_of(table), profile, method)?;
    let slot = directory.known(table)?;
    check_poison(&slot, std::slice::from_ref(entry))?;
    Ok(slot)
}

pub(crate) fn mutate_row(
    directory: &Directory,
    limits: &Limits,
    request: MutateRowRequest,
) -> Result<Reply, Refusal> {
    let entry = Entry {
        row_key: request.row_key,
        mutations: request.mutations,
    };
    let names = (&*request.table_name, &*request.app_profile_id);
    let slot = single_row(directory, names, Method::MutateRow, &entry)?;
    check_count(entry.mutations.len(), limits)?;
    let mut open = slot.open()?;
    let table = open.table();
    table.check_row(&entry.row_key, &entry.mutations, limits)?;
    table.apply_row(&entry.row_key, &entry.mutations, server_now());
    slot.counters.applied.fetch_add(1, Ordering::SeqCst);
    Ok(Reply::Messages(vec![frame(&pb::MutateRowResponse {})]))
}

pub(crate) fn check_and_mutate_row(
    directory: &Directory,
    limits: &Limits,
    request: CheckAndMutateRowRequest,
) -> Result<Reply, Refusal> {
    let entry = Entry {
        row_key: request.row_key,
        mutations: request.true_mutations,
    };
    let names = (&*request.table_name, &*request.app_profile_id);
    let slot = single_row(directory, names, Method::CheckAndMutateRow, &entry)?;
    let (key, then, otherwise) = (&entry.row_key, &entry.mutations, &request.false_mutations);
    check_key(key, limits)?;
    if then.is_empty() && otherwise.is_empty() {
        return Err(Refusal::invalid("No mutations provided"));
    }
    check_count(then.len().max(otherwise.len()), limits)?;
    let mut open = slot.open()?;
    let table = open.table();
    for branch in [then, otherwise] {
        if !branch.is_empty() {
            table.check_row(key, branch, limits)?;
        }
    }
    let filter = request
        .predicate_filter
        .as_ref()
        .filter(|filter| filter.filter.is_some())
        .map(|filter| Filter::compile(filter, table, limits))
        .transpose()?;
    let predicate_matched = table.rows.get(&**key).is_some_and(|row| {
        let cells: Vec<View<'_>> = row
            .cells
            .iter()
            .map(|cell| View::new(cell, table.family_name(cell.family)))
            .collect();
        match &filter {
            None => !cells.is_empty(),
            Some(filter) => !filter.apply(key, cells).is_empty(),
        }
    });
    let branch: &[Mutation] = if predicate_matched { then } else { otherwise };
    if !branch.is_empty() {
        table.apply_row(key, branch, server_now());
        slot.counters.applied.fetch_add(1, Ordering::SeqCst);
    }
    Ok(Reply::Messages(vec![frame(
        &pb::CheckAndMutateRowResponse { predicate_matched },
    )]))
}

pub(crate) fn read_modify_write_row(
    directory: &Directory,
    limits: &Limits,
    request: &pb::ReadModifyWriteRowRequest,
) -> Result<Reply, Refusal> {
    use pb::read_modify_write_rule::Rule;
    let entry = Entry {
        row_key: request.row_key.clone(),
        mutations: Vec::new(),
    };
    let names = (&*request.table_name, &*request.app_profile_id);
    let slot = single_row(directory, names, Method::ReadModifyWriteRow, &entry)?;
    let key = &*request.row_key;
    check_key(key, limits)?;
    if request.rules.is_empty() {
        return Err(Refusal::invalid("No rules provided"));
    }
    check_count(request.rules.len(), limits)?;
    let mut open = slot.open()?;
    let table = open.table();
    let now = server_now();
    // Computed aside first: a rule that fails must leave the row as it was.
    let mut changed: Vec<(u16, &[u8], i64, Vec<u8>)> = Vec::new();
    for rule in &request.rules {
        let Some((family, kind)) = table.ask_family(&rule.family_name) else {
            return Err(Refusal::new(Code::NotFound, super::store::FAMILY_NOT_FOUND));
        };
        if kind != Kind::Raw {
            return Err(Refusal::invalid(
                "ReadModifyWriteRow is not allowed on an aggregate family",
            ));
        }
        check_qualifier(&rule.column_qualifier, limits)?;
        let qualifier = &*rule.column_qualifier;
        let known = changed
            .iter()
            .position(|(f, q, ..)| (*f, *q) == (family, qualifier));
        let (stamp, old) = match known {
            Some(at) => (changed[at].2, Some(changed[at].3.clone())),
            None => match table
                .rows
                .get(key)
                .and_then(|row| row.newest(family, qualifier))
            {
                Some(cell) => (cell.timestamp.max(now), Some(cell.value.to_vec())),
                None => (now, None),
            },
        };
        let value = match &rule.rule {
            None => return Err(Refusal::invalid("Rule is not set")),
            Some(Rule::AppendValue(tail)) => [&*old.unwrap_or_default(), &**tail].concat(),
            Some(Rule::IncrementAmount(amount)) => {
                let old = match old.map(<[u8; 8]>::try_from) {
                    None => 0,
                    Some(Ok(bytes)) => i64::from_be_bytes(bytes),
                    Some(Err(_)) => {
                        return Err(Refusal::new(
                            Code::FailedPrecondition,
                            "Increment of a value that is not 8 bytes long",
                        ));
                    }
                };
                old.wrapping_add(*amount).to_be_bytes().to_vec()
            }
        };
        match known {
            Some(at) => changed[at].3 = value,
            None => changed.push((family, qualifier, stamp, value)),
        }
    }
    let mut row = table.take(key);
    for (family, qualifier, stamp, value) in &changed {
        table.set_cell(&mut row, *family, qualifier, *stamp, value);
    }
    row.effects += 1;
    table.put(key, row);
    slot.counters.applied.fetch_add(1, Ordering::SeqCst);

    changed.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    let mut families: Vec<pb::Family> = Vec::new();
    for (family, qualifier, timestamp_micros, value) in changed {
        let name = table.family_name(family);
        if families.last().is_none_or(|last| last.name != **name) {
            families.push(pb::Family {
                name: name.to_string(),
                columns: Vec::new(),
            });
        }
        let cell = pb::Cell {
            timestamp_micros,
            value: value.into(),
            labels: Vec::new(),
        };
        let column = pb::Column {
            qualifier: Bytes::copy_from_slice(qualifier),
            cells: vec![cell],
        };
        families
            .last_mut()
            .expect("pushed above")
            .columns
            .push(column);
    }
    let row = pb::Row {
        key: request.row_key.clone(),
        families,
    };
    Ok(Reply::Messages(vec![frame(
        &pb::ReadModifyWriteRowResponse { row: Some(row) },
    )]))
}
