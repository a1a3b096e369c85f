//! Tests of call errors: how trailers and transport failures become status chains.

use super::*;

fn trailers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).expect("visible text"),
            )
        })
        .collect()
}

fn failure(pairs: &[(&'static str, &str)]) -> CallError {
    CallError::from_trailers(&trailers(pairs))
        .expect("a status")
        .expect_err("not OK")
}

fn details(any: &[prost_types::Any]) -> String {
    BASE64.encode(
        RpcStatus {
            details: any.to_vec(),
        }
        .encode_to_vec(),
    )
}

fn any(name: &str, message: &impl prost::Message) -> prost_types::Any {
    prost_types::Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

#[test]
fn the_status_is_read_from_the_trailers() {
    assert!(CallError::from_trailers(&trailers(&[])).is_none());
    assert!(
        CallError::from_trailers(&trailers(&[("grpc-status", "0")]))
            .expect("a status")
            .is_ok()
    );
    let error = failure(&[
        ("grpc-status", "5"),
        ("grpc-message", "no%20table %C3%A4 100% %zz"),
    ]);
    assert_eq!(
        error.statuses().to_string(),
        "NOT_FOUND (no table ä 100% %zz)"
    );
    assert_eq!(
        (error.delivery(), error.origin()),
        (Delivery::Answered, Origin::Service)
    );
    assert_eq!(failure(&[("grpc-status", "seven")]).code(), Code::Unknown);
    assert_eq!(failure(&[("grpc-status", "77")]).code(), Code::Unknown);
}

#[test]
fn an_internal_that_reports_a_reset_is_an_outage_and_keeps_its_cause() {
    for text in [
        "stream terminated by RST_STREAM with error code: INTERNAL_ERROR",
        "HTTP/2 error code: INTERNAL_ERROR\nReceived Rst Stream",
        "Received unexpected EOS on DATA frame from server",
    ] {
        let error = failure(&[
            ("grpc-status", "13"),
            ("grpc-message", &text.replace('\n', "%0A")),
        ]);
        let codes: Vec<_> = error.statuses().iter().map(|status| status.code).collect();
        assert_eq!(codes, [Code::Unavailable, Code::Internal], "{text}");
    }
    assert_eq!(
        failure(&[("grpc-status", "13"), ("grpc-message", "disk on fire")]).code(),
        Code::Internal
    );
    assert_eq!(
        failure(&[("grpc-status", "3"), ("grpc-message", "RST_STREAM")]).code(),
        Code::InvalidArgument
    );
}

#[test]
fn retry_info_is_decoded_padded_or_not() {
    let info = RetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: 2,
            nanos: 500_000_000,
        }),
    };
    let bin = details(&[
        any("google.rpc.Help", &RetryInfo::default()),
        any("google.rpc.RetryInfo", &info),
    ]);
    for text in [bin.as_str(), bin.trim_end_matches('=')] {
        let error = failure(&[("grpc-status", "9"), ("grpc-status-details-bin", text)]);
        assert_eq!(error.retry_delay(), Some(Duration::from_millis(2_500)));
        assert!(error.error_info().is_none());
    }
}

#[test]
fn a_negative_delay_means_at_once() {
    let info = RetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: -2,
            nanos: 0,
        }),
    };
    let bin = details(&[any("google.rpc.RetryInfo", &info)]);
    let error = failure(&[("grpc-status", "14"), ("grpc-status-details-bin", &bin)]);
    assert_eq!(error.retry_delay(), Some(Duration::ZERO));
}

#[test]
fn broken_details_do_not_cost_the_status() {
    for text in ["!!!", "AAAA", "////"] {
        let error = failure(&[("grpc-status", "9"), ("grpc-status-details-bin", text)]);
        assert_eq!(
            (error.code(), error.retry_delay()),
            (Code::FailedPrecondition, None)
        );
    }
}

#[test]
fn error_info_is_decoded_and_its_metadata_not_printed() {
    let info = WireErrorInfo {
        reason: "LargeRowReadError".into(),
        domain: "bigtable.googleapis.com".into(),
        metadata: [("rowKeyBase64Encoded".to_owned(), "c2VjcmV0".to_owned())].into(),
    };
    let bin = details(&[any("google.rpc.ErrorInfo", &info)]);
    let error = failure(&[("grpc-status", "9"), ("grpc-status-details-bin", &bin)]);
    let info = error.error_info().expect("an ErrorInfo");
    assert_eq!(info.reason, "LargeRowReadError");
    assert_eq!(info.metadata["rowKeyBase64Encoded"], "c2VjcmV0");
    assert!(!format!("{info:?}{error:?}{error}").contains("c2VjcmV0"));
}

#[test]
fn cookies_are_kept_and_never_printed() {
    let error = failure(&[
        ("grpc-status", "14"),
        ("x-goog-cbt-cookie-a", "secret-1"),
        ("x-goog-cbt-cookie-b", "secret-2"),
        ("x-other", "no"),
    ]);
    assert_eq!(error.cookies().iter().count(), 2);
    assert!(!format!("{error:?}").contains("secret"));
    let mut cookies = error.cookies().clone();
    cookies.update(&Cookies::from_headers(&trailers(&[
        ("x-goog-cbt-cookie-b", "3"),
        ("x-goog-cbt-cookie-c", "4"),
    ])));
    let values: Vec<_> = cookies
        .iter()
        .map(|(_, value)| value.to_str().expect("text"))
        .collect();
    assert_eq!(values, ["secret-1", "3", "4"]);
}

#[test]
fn the_chain_is_found_behind_a_contract_error() {
    let error = failure(&[("grpc-status", "8"), ("grpc-message", "quota")]);
    let wrapped = aqueduct_connector::Error::io("writing failed").with_source(error);
    assert_eq!(
        wrapped.statuses().map(StatusChain::code),
        Some(Code::ResourceExhausted)
    );
}
