//! The same promises on a local directory and on an object store in memory.

use std::path::Path;

use aqueduct_store::{Store, StoreError};
use bytes::Bytes;
use futures::TryStreamExt;
use tempfile::TempDir;

/// Each kind of store, with what keeps it alive.
fn stores() -> Vec<(Store, Option<TempDir>)> {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("deep/er");
    let local = Store::open(path.to_str().expect("UTF-8")).expect("a path");
    vec![
        (local, Some(dir)),
        (Store::open("memory:///dir").expect("a URL"), None),
    ]
}

async fn names(store: &Store, prefix: &str) -> Vec<String> {
    let listed = store.list(prefix).await.expect("listing works");
    listed.into_iter().map(|meta| meta.name).collect()
}

#[tokio::test]
async fn what_was_put_is_read_back_and_replaced() {
    for (store, _keep) in stores() {
        store.check_writable().await.expect("writable");
        for content in ["first", "", "third one"] {
            store
                .put_atomic("a/b", content.into())
                .await
                .expect("writable");
            assert_eq!(
                store.get("a/b", 100).await.expect("there"),
                content,
                "{store}"
            );
            let meta = store.head("a/b").await.expect("there");
            assert_eq!(meta.size_bytes, content.len() as u64);
        }
    }
}

#[tokio::test]
async fn large_objects_survive_the_way_through_parts() {
    let content: Bytes = (0..20_000_000_u32)
        .map(|i| (i * 7 % 251) as u8)
        .collect::<Vec<_>>()
        .into();
    for (store, _keep) in stores() {
        store
            .put_atomic("big", content.clone())
            .await
            .expect("writable");
        assert!(
            store.get("big", u64::MAX).await.expect("there") == content,
            "{store}"
        );
        for offset in [0, 1, 524_288, 19_999_999, 20_000_000_u64] {
            let reading = store.read("big", offset).await.expect("within");
            assert_eq!(reading.meta().size_bytes, 20_000_000);
            let pieces: Vec<Bytes> = reading.try_collect().await.expect("readable");
            assert!(
                pieces.concat() == content[offset as usize..],
                "{store} from {offset}"
            );
        }
    }
}

#[tokio::test]
async fn only_one_creator_wins_and_the_object_is_its() {
    for (store, _keep) in stores() {
        let puts = (0..16).map(|i| {
            let store = store.clone();
            async move { (i, store.put_if_absent("one", i.to_string().into()).await) }
        });
        let mut winner = None;
        for (i, put) in futures::future::join_all(puts).await {
            match put {
                Ok(()) => assert_eq!(winner.replace(i), None, "{store}: two winners"),
                Err(error) => assert!(error.is_already_exists(), "{store}: {error}"),
            }
        }
        let winner = winner.expect("one wins").to_string();
        assert_eq!(store.get("one", 10).await.expect("there"), winner);
        assert_eq!(
            names(&store, "").await,
            ["one"],
            "nothing temporary is left"
        );
    }
}

#[tokio::test]
async fn limits_and_ranges_are_exact() {
    for (store, _keep) in stores() {
        store
            .put_atomic("x", "0123456789".into())
            .await
            .expect("writable");
        assert_eq!(store.get("x", 10).await.expect("fits"), "0123456789");
        let error = store.get("x", 9).await.expect_err("too large");
        assert!(matches!(
            error,
            StoreError::TooLarge {
                size_bytes: 10,
                limit_bytes: 9,
                ..
            }
        ));

        assert_eq!(store.get_range("x", 3..7).await.expect("within"), "3456");
        assert_eq!(store.get_range("x", 7..7).await.expect("empty"), "");
        for range in [5..11, 10..12, 20..30] {
            let error = store
                .get_range("x", range.clone())
                .await
                .expect_err("beyond");
            let wanted = range.end;
            assert!(
                matches!(error, StoreError::OutOfRange { size_bytes: 10, wanted_bytes, .. }
                    if wanted_bytes == wanted),
                "{store} {range:?}: {error:?}"
            );
        }
        let error = store.read("x", 11).await.expect_err("beyond");
        assert!(
            matches!(error, StoreError::OutOfRange { .. }),
            "{store}: {error:?}"
        );
    }
}

#[tokio::test]
async fn listings_are_sorted_by_directory_and_whole() {
    for (store, _keep) in stores() {
        assert!(
            names(&store, "").await.is_empty(),
            "{store}: a missing directory is empty"
        );
        for name in ["chk-2/b", "chk-2/a", "chk-20/a", "chk-1/x/y", "top"] {
            store.put_atomic(name, name.into()).await.expect("writable");
        }
        let all = ["chk-1/x/y", "chk-2/a", "chk-2/b", "chk-20/a", "top"];
        assert_eq!(names(&store, "").await, all, "{store}");
        assert_eq!(
            names(&store, "chk-2").await,
            ["chk-2/a", "chk-2/b"],
            "{store}"
        );
        assert_eq!(names(&store, "chk-1/x/").await, ["chk-1/x/y"], "{store}");
        assert!(
            names(&store, "top").await.is_empty(),
            "{store}: an object is no directory"
        );
        assert!(names(&store, "nowhere").await.is_empty(), "{store}");
    }
}

#[tokio::test]
async fn deleting_takes_what_it_names_and_nothing_beside_it() {
    for (store, _keep) in stores() {
        for name in ["chk-2/b", "chk-2/x/a", "chk-20/a", "chk-3"] {
            store.put_atomic(name, name.into()).await.expect("writable");
        }
        store.delete("chk-3").await.expect("there");
        store.delete("chk-3").await.expect("missing is fine");
        store.delete_prefix("chk-2").await.expect("there");
        store.delete_prefix("chk-2").await.expect("missing is fine");
        assert_eq!(names(&store, "").await, ["chk-20/a"], "{store}");
        let error = store
            .delete_prefix("")
            .await
            .expect_err("the whole store is too much");
        assert!(matches!(error, StoreError::InvalidName { .. }), "{error}");
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    for (store, _keep) in stores() {
        for error in [
            store.get("no/such", 1).await.expect_err("missing"),
            store.head("no/such").await.expect_err("missing"),
            store.get_range("no/such", 0..1).await.expect_err("missing"),
            store.read("no/such", 0).await.expect_err("missing"),
        ] {
            assert!(error.is_not_found(), "{store}: {error:?}");
            let text = error.to_string();
            assert!(text.contains(&store.url_of("no/such")), "{text}");
        }
    }
}

#[tokio::test]
async fn names_cannot_leave_the_store() {
    for (store, _keep) in stores() {
        for name in ["../x", "/etc/passwd", "", "a//b", ".aqueduct-tmp-1"] {
            let error = store.put_atomic(name, Bytes::new()).await.expect_err(name);
            assert!(
                matches!(error, StoreError::InvalidName { .. }),
                "{name}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn etags_follow_the_content() {
    for (store, _keep) in stores() {
        store.put_atomic("x", "one".into()).await.expect("writable");
        let first = store.head("x").await.expect("there");
        assert_eq!(store.head("x").await.expect("there"), first);
        assert_eq!(store.list("").await.expect("lists")[0], first, "{store}");
        store
            .put_atomic("x", "three".into())
            .await
            .expect("writable");
        assert_ne!(store.head("x").await.expect("there").etag, first.etag);
    }
}

#[tokio::test]
async fn a_place_that_cannot_be_written_says_so_at_once() {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("file"), "x").expect("writable");
    let below_a_file = dir.path().join("file/chk");
    let store = Store::open(below_a_file.to_str().expect("UTF-8")).expect("a path");
    for error in [
        store
            .check_writable()
            .await
            .expect_err("a file is in the way"),
        store
            .put_atomic("x", Bytes::new())
            .await
            .expect_err("a file is in the way"),
    ] {
        assert!(matches!(error, StoreError::WrongKind { .. }), "{error:?}");
        assert!(
            error
                .to_string()
                .contains(below_a_file.to_str().expect("UTF-8")),
            "{error}"
        );
    }
    // The kernel's own tree lets nobody, not even root, make a directory.
    if Path::new("/proc/self").exists() {
        let error = Store::open("/proc/self/chk")
            .expect("a path")
            .check_writable()
            .await;
        let text = error.expect_err("not writable").to_string();
        assert!(text.contains("/proc/self/chk"), "{text}");
    }
}

#[tokio::test]
async fn what_a_killed_writer_left_is_invisible_and_goes_with_its_directory() {
    let dir = TempDir::new().expect("a temporary directory");
    let store = Store::open(dir.path().to_str().expect("UTF-8")).expect("a path");
    store
        .put_atomic("chk-1/part", "x".into())
        .await
        .expect("writable");
    let leftover = dir.path().join("chk-1/.aqueduct-tmp-0123");
    std::fs::write(&leftover, "half").expect("writable");
    assert_eq!(names(&store, "").await, ["chk-1/part"]);
    store.delete_prefix("chk-1").await.expect("deletable");
    assert!(!leftover.exists());
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_fails_and_does_not_end_early() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("x");
    std::fs::write(&path, vec![7; 4 << 20]).expect("writable");
    let (store, name) = Store::open_parent(path.to_str().expect("UTF-8")).expect("a path");
    let mut reading = store.read(&name, 0).await.expect("there");
    reading
        .try_next()
        .await
        .expect("readable")
        .expect("not empty");
    std::fs::write(&path, vec![7; 1 << 20]).expect("writable");
    let error = reading
        .try_collect::<Vec<_>>()
        .await
        .expect_err("shorter than it was");
    assert!(matches!(error, StoreError::OutOfRange { .. }), "{error:?}");
}

#[tokio::test]
async fn memory_stores_are_shared_by_name_and_private_without_one() {
    let one = Store::open("memory://shared-by-name/dir").expect("a URL");
    one.put_atomic("x", "1".into()).await.expect("writable");
    let same = Store::open("memory://shared-by-name").expect("a URL");
    assert_eq!(same.get("dir/x", 10).await.expect("shared"), "1");
    let private = Store::open("memory://").expect("a URL");
    private.put_atomic("x", "1".into()).await.expect("writable");
    assert_eq!(
        private.clone().get("x", 10).await.expect("clones share"),
        "1"
    );
    assert!(
        names(&Store::open("memory://").expect("a URL"), "")
            .await
            .is_empty()
    );
}

#[cfg(not(feature = "gcs"))]
#[test]
fn a_scheme_that_was_not_compiled_in_names_its_feature() {
    let error = Store::open("gs://bucket/dir")
        .expect_err("feature is off")
        .to_string();
    assert!(
        error.contains("gs://bucket") && error.contains("`gcs`"),
        "{error}"
    );
}

#[cfg(all(feature = "gcs", feature = "s3"))]
#[test]
fn clouds_open_without_touching_the_network() {
    Store::open("gs://bucket/dir").expect("no I/O");
    Store::open("s3://bucket/dir").expect("no I/O");
}
