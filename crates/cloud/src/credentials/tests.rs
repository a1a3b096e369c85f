//! Tests of credentials: sources, refusals, and that no secret is shown.

use super::*;

fn key_file(text: &str) -> (tempfile::TempDir, Credentials) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("very-secret-name.json");
    std::fs::write(&path, text).expect("a file");
    (folder, Credentials::ServiceAccountKeyFile(path))
}

const GOOD: &str = r#"{"type":"service_account","client_email":"a@b","private_key_id":"1","project_id":"p",
    "private_key":"-----BEGIN PRIVATE KEY-----\nhidden\n-----END PRIVATE KEY-----\n"}"#;

#[test]
fn an_unusable_key_file_gives_one_sentence_without_path_or_content() {
    for text in [
        "",
        "hidden",
        "{",
        "[]",
        r#"{"type":"authorized_user","client_id":"hidden","client_secret":"hidden","refresh_token":"hidden"}"#,
        r#"{"type":"external_account","audience":"hidden"}"#,
        r#"{"type":"service_account","client_email":"hidden"}"#,
        &GOOD
            .replace("BEGIN PRIVATE KEY", "")
            .replace("END PRIVATE KEY", ""),
        &GOOD.replace("a@b", ""),
        &GOOD.replace("project_id", "hidden"),
    ] {
        let (_folder, credentials) = key_file(text);
        let error = TokenProvider::new(&credentials).expect_err(text);
        assert_eq!(error.report(), KEY_FILE_UNUSABLE, "{text}");
        assert_eq!(error.kind(), aqueduct_connector::ErrorKind::Config);
    }
    let missing = Credentials::ServiceAccountKeyFile("/nowhere/very-secret-name.json".into());
    assert_eq!(
        TokenProvider::new(&missing).expect_err("missing").report(),
        KEY_FILE_UNUSABLE
    );
}

#[test]
fn nothing_prints_the_path_or_the_key() {
    let (_folder, credentials) = key_file(GOOD);
    let provider = TokenProvider::new(&credentials).expect("a key");
    let text = format!("{credentials:?} {provider:?}");
    assert!(
        !text.contains("secret") && !text.contains("hidden"),
        "{text}"
    );
}

/// The key looks right and is not: that shows when a token is made, still without a word of it.
#[tokio::test]
async fn a_key_that_cannot_sign_is_reported_without_its_text() {
    let (_folder, credentials) = key_file(GOOD);
    let provider = TokenProvider::new(&credentials).expect("a key");
    let Authorization::Wait(fetch) = provider.authorize(Moment::ORIGIN) else {
        panic!("nothing is cached");
    };
    let error = fetch.await.map(|_| ()).expect_err("no key");
    assert_eq!(
        (error.code(), error.delivery()),
        (Code::Unauthenticated, Delivery::NotSent)
    );
    let text = format!("{error:?} {error} {}", error.statuses());
    assert!(
        !text.contains("hidden") && !text.contains("secret"),
        "{text}"
    );
}

/// The whole way with a real key: tokens are signed here, no server is asked.
#[tokio::test]
async fn a_real_key_signs_a_token_of_its_own() {
    // Made for this test, known to nobody else.
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}-----END PRIVATE KEY-----\n",
        include_str!("testdata/throwaway-key.base64")
    );
    let json = serde_json::json!({
        "type": "service_account", "client_email": "a@b", "private_key_id": "1", "project_id": "p", "private_key": pem,
    });
    let (folder, credentials) = key_file(&json.to_string());
    let provider = TokenProvider::new(&credentials).expect("a key");
    // It was read once, at the start.
    drop(folder);
    let Authorization::Wait(fetch) = provider.authorize(Moment::ORIGIN) else {
        panic!("nothing is cached");
    };
    let granted = fetch.await.expect("a token");
    let header = granted.headers.get("authorization").expect("authorization");
    assert!(header.is_sensitive());
    assert!(header.to_str().expect("text").starts_with("Bearer ey"));
    assert!(matches!(
        provider.authorize(Moment::ORIGIN),
        Authorization::Ready(_)
    ));
}

#[tokio::test]
async fn no_credentials_mean_no_headers() {
    for provider in [
        TokenProvider::none(),
        TokenProvider::new(&Credentials::None).expect("none"),
    ] {
        assert!(provider.is_none());
        assert!(matches!(
            provider.authorize(Moment::ORIGIN),
            Authorization::None
        ));
        assert!(!provider.renew(0, Moment::ORIGIN));
    }
}
