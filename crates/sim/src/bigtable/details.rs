//! Statuses with the details of `google.rpc`.

use std::{collections::HashMap, time::Duration};

use googleapis_tonic_google_bigtable_v2::google::rpc;
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

/// A status whose details ride in `grpc-status-details-bin`.
pub(crate) fn status_with(code: Code, message: impl Into<String>, details: Vec<Any>) -> Status {
    let message = message.into();
    if details.is_empty() {
        return Status::new(code, message);
    }
    let details = rpc::Status {
        code: code.into(),
        message: message.clone(),
        details,
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// `google.rpc.RetryInfo`.
pub(crate) fn retry_info(delay: Duration) -> Any {
    let info = rpc::RetryInfo {
        retry_delay: Some(duration(delay)),
    };
    any("google.rpc.RetryInfo", &info)
}

/// `google.rpc.ErrorInfo` of the Bigtable domain.
pub(crate) fn error_info(
    reason: &str,
    metadata: impl IntoIterator<Item = (String, String)>,
) -> Any {
    let info = rpc::ErrorInfo {
        reason: reason.to_owned(),
        domain: "bigtable.googleapis.com".to_owned(),
        metadata: metadata.into_iter().collect::<HashMap<_, _>>(),
    };
    any("google.rpc.ErrorInfo", &info)
}

fn any(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

/// A protocol duration; above the largest one, the largest.
pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: duration.as_secs().try_into().unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().try_into().unwrap_or(0),
    }
}
