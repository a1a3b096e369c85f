//! A mutation that was rejected for its own sake, as a failure handler sees it.

use std::error::Error as StdError;
use std::fmt;

use aqueduct_connector::StatusChain;
use aqueduct_connector::failure::FailedElement;
use bytes::Bytes;

use super::serializer::BoxError;
use crate::destination::TableDestination;
use crate::entry::{DecodeError, DecodedEntry, EntryFault, RowMutationEntry};

/// A record that its serializer refused, or whose entry the service refused when it was sent alone.
///
/// Of a serialization failure there is no entry, row key or payload. `Debug` shows sizes only; printing a key is the
/// user's choice.
pub struct FailedMutation {
    table: TableDestination,
    /// Encoded entry and row key.
    entry: Option<(Bytes, Bytes)>,
    cause: Cause,
}

enum Cause {
    Serializer(BoxError),
    Fault(EntryFault),
    Service(StatusChain),
}

impl FailedMutation {
    pub(super) fn serializer(table: TableDestination, error: BoxError) -> Self {
        Self {
            table,
            entry: None,
            cause: Cause::Serializer(error),
        }
    }

    pub(super) fn fault(table: TableDestination, fault: EntryFault) -> Self {
        Self {
            table,
            entry: None,
            cause: Cause::Fault(fault),
        }
    }

    pub(super) fn service(
        table: TableDestination,
        entry: Bytes,
        key: Bytes,
        chain: StatusChain,
    ) -> Self {
        Self {
            table,
            entry: Some((entry, key)),
            cause: Cause::Service(chain),
        }
    }

    /// The table that the record was headed for.
    #[must_use]
    pub fn table(&self) -> &TableDestination {
        &self.table
    }

    /// The row's key; `None` of a serialization failure.
    #[must_use]
    pub fn row_key(&self) -> Option<&Bytes> {
        self.entry.as_ref().map(|(_, key)| key)
    }

    /// The whole change, taken apart; `None` of a serialization failure.
    #[must_use]
    pub fn entry(&self) -> Option<Result<DecodedEntry, DecodeError>> {
        self.entry
            .as_ref()
            .map(|(entry, _)| RowMutationEntry::decode(entry))
    }

    /// The service's statuses; `None` of a serialization failure.
    #[must_use]
    pub fn statuses(&self) -> Option<&StatusChain> {
        match &self.cause {
            Cause::Service(chain) => Some(chain),
            Cause::Serializer(_) | Cause::Fault(_) => None,
        }
    }
}

impl FailedElement for FailedMutation {
    fn connector(&self) -> &'static str {
        super::CONNECTOR
    }

    fn destination(&self) -> String {
        self.table.to_string()
    }

    /// The serialized `MutateRowsRequest.Entry`.
    fn payload(&self) -> Option<Bytes> {
        self.entry.as_ref().map(|(entry, _)| entry.clone())
    }

    fn message(&self) -> String {
        match &self.cause {
            Cause::Serializer(_) => "the serializer refused the record".to_owned(),
            Cause::Fault(_) => "the serialized entry cannot be written".to_owned(),
            Cause::Service(chain) => {
                format!("the service refused the mutation with {}", chain.code())
            }
        }
    }

    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        Some(match &self.cause {
            Cause::Serializer(error) => &**error,
            Cause::Fault(fault) => fault,
            Cause::Service(chain) => chain,
        })
    }
}

impl fmt::Debug for FailedMutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedMutation")
            .field("table", &self.table)
            .field(
                "payload_bytes",
                &self.entry.as_ref().map(|(entry, _)| entry.len()),
            )
            .finish_non_exhaustive()
    }
}
