//! Leases on virtual time: the store is in memory, so the paused clock only jumps while everyone
//! waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::*;

/// A memory store whose writes can be made to fail, or to land and lose their answer.
#[derive(Debug, Default)]
struct Flaky {
    inner: InMemory,
    refuse_writes: AtomicBool,
    lose_next_answer: AtomicBool,
}

impl std::fmt::Display for Flaky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("flaky")
    }
}

fn unavailable() -> object_store::Error {
    object_store::Error::Generic {
        store: "flaky",
        source: "unavailable".into(),
    }
}

type Answer<T> = Result<T, object_store::Error>;

#[async_trait::async_trait]
impl ObjectStore for Flaky {
    async fn put_opts(&self, at: &Path, put: PutPayload, how: PutOptions) -> Answer<PutResult> {
        if self.refuse_writes.load(Relaxed) {
            return Err(unavailable());
        }
        let written = self.inner.put_opts(at, put.clone(), how.clone()).await?;
        if self.lose_next_answer.swap(false, Relaxed) {
            // What the client below us does: it repeats the request.
            return self.inner.put_opts(at, put, how).await;
        }
        Ok(written)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Answer<GetResult> {
        self.inner.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Answer<Path>>,
    ) -> BoxStream<'static, Answer<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Answer<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Answer<()> {
        self.inner.copy_opts(from, to, how).await
    }
}

fn flaky() -> (Arc<Flaky>, ObjectDir) {
    let store = Arc::new(Flaky::default());
    let dir = ObjectDir::over(
        Arc::clone(&store) as _,
        "gs://bucket",
        "job".to_owned(),
        None,
    );
    (store, dir)
}

#[tokio::test(start_paused = true)]
async fn a_live_holder_keeps_others_out_and_is_named() {
    let (_, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    for _ in 0..3 {
        let error = acquire(&dir, "lock", "second")
            .await
            .expect_err("held")
            .to_string();
        assert!(
            error.contains("gs://bucket/job/lock is in use by \"first\""),
            "{error}"
        );
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }
    sleep(LEASE_TERM * 10).await;
    assert!(!lease.is_lost(), "renewed all the time");
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_free_at_once() {
    let (_, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    sleep(LEASE_TERM).await;
    lease.release().await.expect("store works");
    let before = Instant::now();
    acquire(&dir, "lock", "second").await.expect("released");
    assert_eq!(Instant::now(), before, "no wait");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_lease_is_taken_over_after_its_term_and_not_before() {
    let (_, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    sleep(LEASE_TERM / 2).await;
    drop(lease);
    let before = Instant::now();
    let next = acquire(&dir, "lock", "second").await.expect("ends");
    let waited = Instant::now() - before;
    assert!(
        waited >= LEASE_TERM && waited < LEASE_TERM * 2,
        "{waited:?}"
    );
    assert!(!next.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_knows_it_before_a_successor_owns() {
    let (store, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    store.refuse_writes.store(true, Relaxed);
    let before = Instant::now();
    lease.lost().await;
    assert!(lease.is_lost());
    assert_eq!(Instant::now() - before, LEASE_TERM);
    // Renewals come back, too late.
    store.refuse_writes.store(false, Relaxed);
    acquire(&dir, "lock", "second")
        .await
        .expect("the first stopped renewing");
    assert!(lease.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_term_is_survived() {
    let (store, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    for _ in 0..5 {
        store.refuse_writes.store(true, Relaxed);
        sleep(LEASE_TERM / 2).await;
        store.refuse_writes.store(false, Relaxed);
        sleep(LEASE_TERM / 2).await;
    }
    assert!(!lease.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_stolen_lease_is_reported_and_left_alone() {
    let (store, dir) = flaky();
    let lease = acquire(&dir, "lock", "first").await.expect("free");
    let thief = Record {
        id: "thief".to_owned(),
        holder: Holder::this_process("thief"),
        term: LEASE_TERM,
    };
    let content = thief.encode(Claim::held(LEASE_TERM));
    dir.put("lock", content.clone()).await.expect("store works");
    let before = Instant::now();
    lease.lost().await;
    assert!(
        Instant::now() - before <= LEASE_TERM / 3,
        "the next renewal tells"
    );
    lease.release().await.expect("nothing to give up");
    assert_eq!(dir.get("lock", LIMIT_BYTES).await.expect("there"), content);
    drop(store);
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_after_the_write_landed_costs_nothing() {
    let (store, dir) = flaky();
    store.lose_next_answer.store(true, Relaxed);
    let lease = acquire(&dir, "lock", "first")
        .await
        .expect("our own claim is no one else's");
    store.lose_next_answer.store(true, Relaxed);
    sleep(LEASE_TERM * 2).await;
    assert!(
        !store.lose_next_answer.load(Relaxed),
        "a renewal met the fault"
    );
    assert!(!lease.is_lost());
    lease.release().await.expect("store works");
    acquire(&dir, "lock", "second").await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn of_many_claimants_one_wins() {
    let (_, dir) = flaky();
    drop(acquire(&dir, "lock", "dead").await.expect("free"));
    let claims = (0..8).map(|_| acquire(&dir, "lock", "claimant"));
    let won = futures::future::join_all(claims).await;
    assert_eq!(won.iter().filter(|claim| claim.is_ok()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_object_is_not_overwritten() {
    let (_, dir) = flaky();
    dir.put("lock", Bytes::from_static(b"precious"))
        .await
        .expect("store works");
    let error = acquire(&dir, "lock", "first")
        .await
        .expect_err("not a lease");
    assert!(matches!(error, LockError::NotALease { .. }), "{error}");
    assert_eq!(
        dir.get("lock", LIMIT_BYTES).await.expect("there"),
        "precious"
    );
}

#[test]
fn a_lease_of_long_ago_needs_no_waiting() {
    let record = Record {
        id: "a".to_owned(),
        holder: Holder::this_process("x"),
        term: LEASE_TERM,
    };
    let seen =
        |until| Seen::decode(&record.encode(Claim::Held { until })).expect("our own encoding");
    let now = SystemTime::now();
    assert!(seen(now - SKEW - Duration::from_secs(1)).has_ended(now));
    assert!(
        !seen(now - LEASE_TERM).has_ended(now),
        "clocks may differ by minutes"
    );
    assert!(
        Seen::decode(&record.encode(Claim::Released))
            .expect("ours")
            .has_ended(now)
    );
}
