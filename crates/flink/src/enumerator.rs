//! A source's enumerator. Every call answers with the commands that Java carries out.

use std::task::{Context as PollContext, Poll};

use aqueduct_connector::source::{EnumeratorOutput, SplitEnumerator};
use aqueduct_connector::state::StateWriter;
use aqueduct_connector::table::TableSource;
use aqueduct_connector::{CheckpointId, Context, Error, Result, Versioned};
use bytes::Bytes;

use crate::wire;

/// One job's enumerator.
pub(crate) struct Enumerator {
    inner: Box<dyn SplitEnumerator>,
    out: EnumeratorOutput,
    /// Its own work is done; polling it again would be against the contract.
    done: bool,
}

/// What Java asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Progress,
    Registered,
    Lost,
    Requested,
    Event,
    Snapshot,
    Completed,
    Aborted,
}

impl Enumerator {
    pub(crate) fn new(
        source: &dyn TableSource,
        context: Context,
        restored: Option<Versioned>,
    ) -> Result<Self> {
        Ok(Self {
            inner: source.create_enumerator(context, restored)?,
            out: EnumeratorOutput::new(),
            done: false,
        })
    }

    /// The answer is commands, except that a snapshot's answer is the state.
    pub(crate) fn call(
        &mut self,
        cx: &mut PollContext<'_>,
        request: Request,
        argument: Bytes,
    ) -> Result<Bytes> {
        let value = wire::unversioned(argument);
        let mut argument = wire::message(&value)?;
        let out = &mut self.out;
        match request {
            Request::Progress => {
                if !self.done {
                    match self.inner.poll_progress(cx, out) {
                        Poll::Ready(ended) => {
                            ended?;
                            self.done = true;
                        }
                        Poll::Pending => {}
                    }
                }
            }
            Request::Registered => self.inner.reader_registered(argument.u32()?, out)?,
            Request::Lost => {
                self.inner.reader_lost(argument.u32()?)?;
                let splits = wire::splits(&mut argument)?;
                if !splits.is_empty() {
                    self.inner.splits_returned(splits, out)?;
                }
            }
            Request::Requested => self.inner.split_requested(argument.u32()?, out)?,
            Request::Event => {
                let reader = argument.u32()?;
                self.inner
                    .reader_event(reader, argument.versioned()?, out)?;
            }
            Request::Snapshot => {
                let state = self.inner.snapshot(CheckpointId(argument.u64()?))?;
                argument.finish()?;
                return Ok(StateWriter::new().versioned(&state).finish(0).bytes);
            }
            Request::Completed => {
                self.inner
                    .checkpoint_completed(CheckpointId(argument.u64()?))?;
            }
            Request::Aborted => self.inner.checkpoint_aborted(CheckpointId(argument.u64()?)),
        }
        argument.finish()?;
        Ok(self.commands())
    }

    fn commands(&mut self) -> Bytes {
        let commands = self.out.drain();
        if commands.as_slice().is_empty() {
            return Bytes::new();
        }
        let mut writer = StateWriter::new();
        writer.count(commands.len());
        for command in commands {
            wire::put_command(&mut writer, &command);
        }
        writer.finish(0).bytes
    }

    pub(crate) fn poll_close(&mut self, cx: &mut PollContext<'_>) -> Poll<Result<()>> {
        self.inner.poll_close(cx)
    }
}

impl Request {
    /// From Java's number of a call.
    pub(crate) fn from_number(number: i32) -> Result<Self> {
        Ok(match number {
            20 => Self::Progress,
            21 => Self::Registered,
            22 => Self::Lost,
            23 => Self::Requested,
            24 => Self::Event,
            25 => Self::Snapshot,
            26 => Self::Completed,
            27 => Self::Aborted,
            _ => return Err(Error::bug("no such call of an enumerator")),
        })
    }
}
