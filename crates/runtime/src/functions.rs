//! Operators made of a function: map, filter, flat map and [`ProcessFunction`].
//!
//! The function is inlined into the loop over a batch; a batch costs one allocation, a record none.

use std::error::Error as StdError;
use std::marker::PhantomData;
use std::sync::Arc;

use aqueduct_connector::source::{Collector, Record};
use aqueduct_connector::{CheckpointId, Result, Timestamp, Versioned};

use crate::operator::{Operator, OperatorContext, OperatorState, Progress, user_error};

/// What a fallible function may fail with.
pub(crate) type UserError = Box<dyn StdError + Send + Sync>;

pub(crate) struct Map<F>(pub(crate) Arc<F>);

impl<I, O, F: Fn(I) -> O> Operator<I, O> for Map<F> {
    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()> {
        let map = &*self.0;
        *out = records
            .into_iter()
            .map(|record| Record {
                value: map(record.value),
                timestamp: record.timestamp,
            })
            .collect();
        Ok(())
    }
}

pub(crate) struct TryMap<F>(pub(crate) Arc<F>);

impl<I, O, E: Into<UserError>, F: Fn(I) -> Result<O, E>> Operator<I, O> for TryMap<F> {
    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()> {
        out.reserve(records.len());
        for record in records {
            let value = (self.0)(record.value).map_err(|error| user_error(error.into()))?;
            out.push(Record {
                value,
                timestamp: record.timestamp,
            });
        }
        Ok(())
    }
}

pub(crate) struct Filter<F>(pub(crate) Arc<F>);

impl<T, F: Fn(&T) -> bool> Operator<T, T> for Filter<F> {
    fn process(&mut self, mut records: Vec<Record<T>>, out: &mut Vec<Record<T>>) -> Result<()> {
        records.retain(|record| (self.0)(&record.value));
        *out = records;
        Ok(())
    }
}

pub(crate) struct TryFilter<F>(pub(crate) Arc<F>);

impl<T, E: Into<UserError>, F: Fn(&T) -> Result<bool, E>> Operator<T, T> for TryFilter<F> {
    fn process(&mut self, records: Vec<Record<T>>, out: &mut Vec<Record<T>>) -> Result<()> {
        out.reserve(records.len());
        for record in records {
            if (self.0)(&record.value).map_err(|error| user_error(error.into()))? {
                out.push(record);
            }
        }
        Ok(())
    }
}

pub(crate) struct FlatMap<F>(pub(crate) Arc<F>);

impl<I, O, F: Fn(I, &mut Collector<'_, O>)> Operator<I, O> for FlatMap<F> {
    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()> {
        for record in records {
            (self.0)(record.value, &mut Collector::new(out, record.timestamp));
        }
        Ok(())
    }
}

pub(crate) struct TryFlatMap<F>(pub(crate) Arc<F>);

impl<I, O, E: Into<UserError>, F> Operator<I, O> for TryFlatMap<F>
where
    F: Fn(I, &mut Collector<'_, O>) -> Result<(), E>,
{
    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()> {
        for record in records {
            (self.0)(record.value, &mut Collector::new(out, record.timestamp))
                .map_err(|error| user_error(error.into()))?;
        }
        Ok(())
    }
}

/// A function with state of its own: one value a subtask, made by a factory.
///
/// For state by key use [`KeyedProcessFunction`](crate::KeyedProcessFunction).
pub trait ProcessFunction<I, O> {
    /// Takes over restored state: items of the lists that [`snapshot`](Self::snapshot) gave, redistributed
    /// if the parallelism changed; empty on a fresh start.
    ///
    /// # Errors
    ///
    /// Fails the job; so for every method below. The error is named after the operator.
    fn open(&mut self, context: &OperatorContext, restored: Vec<Versioned>) -> Result<()> {
        let _ = (context, restored);
        Ok(())
    }

    /// Takes one record. What is emitted without a time of its own keeps the record's.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn process(&mut self, value: I, info: &RecordContext, out: &mut Collector<'_, O>)
    -> Result<()>;

    /// The event time has reached `watermark`.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn on_watermark(&mut self, watermark: Timestamp, out: &mut Collector<'_, O>) -> Result<()> {
        let _ = (watermark, out);
        Ok(())
    }

    /// The input has ended.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn on_end(&mut self, out: &mut Collector<'_, O>) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// The state for `checkpoint`, a list of items that can be redistributed.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Vec<Versioned>> {
        let _ = checkpoint;
        Ok(Vec::new())
    }

    /// Releases everything.
    #[expect(clippy::missing_errors_doc, reason = "as for `open`")]
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What is known of a record beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordContext {
    /// Its event time, if it has one.
    pub timestamp: Option<Timestamp>,
    /// The watermark when it arrived; [`Timestamp::MIN`] before the first. A record whose time is not
    /// above it is late.
    pub watermark: Timestamp,
}

pub(crate) struct Process<F, I, O> {
    function: F,
    watermark: Timestamp,
    types: PhantomData<fn(I) -> O>,
}

impl<F, I, O> Process<F, I, O> {
    pub(crate) fn new(function: F) -> Self {
        Self {
            function,
            watermark: Timestamp::MIN,
            types: PhantomData,
        }
    }
}

impl<I, O, F: ProcessFunction<I, O>> Operator<I, O> for Process<F, I, O> {
    fn open(&mut self, context: OperatorContext, restored: OperatorState) -> Result<()> {
        self.function.open(&context, restored.list)
    }

    fn process(&mut self, records: Vec<Record<I>>, out: &mut Vec<Record<O>>) -> Result<()> {
        for record in records {
            let info = RecordContext {
                timestamp: record.timestamp,
                watermark: self.watermark,
            };
            self.function.process(
                record.value,
                &info,
                &mut Collector::new(out, record.timestamp),
            )?;
        }
        Ok(())
    }

    fn watermark(&mut self, watermark: Timestamp, out: &mut Vec<Record<O>>) -> Result<Progress> {
        self.watermark = watermark;
        self.function
            .on_watermark(watermark, &mut Collector::new(out, None))?;
        Ok(Progress::Done)
    }

    fn end(&mut self, out: &mut Vec<Record<O>>) -> Result<()> {
        self.function.on_end(&mut Collector::new(out, None))
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<OperatorState> {
        Ok(OperatorState {
            list: self.function.snapshot(checkpoint)?,
            keyed: Vec::new(),
        })
    }

    fn close(&mut self) -> Result<()> {
        self.function.close()
    }
}
