//! Ownership of a directory, within a process and between processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use aqueduct_store::{LockError, Store};
use tempfile::TempDir;

/// Set for a child of these tests: the directory to lock and hold until killed.
const HOLD: &str = "AQUEDUCT_STORE_TEST_HOLD";

/// What the child prints once it holds the lock.
const READY: &str = "lock is held";

#[tokio::test]
async fn a_second_owner_in_the_process_is_refused_until_the_first_leaves() {
    let dir = TempDir::new().expect("a temporary directory");
    for location in [dir.path().to_str().expect("UTF-8"), "memory://locks/dir"] {
        let store = Store::open(location).expect("a location");
        let lease = store.lock("lock", "job one").await.expect("free");
        let other = Store::open(location).expect("a location");
        let error = other.lock("lock", "job two").await.expect_err("held");
        let text = error.to_string();
        assert!(matches!(error, LockError::Held { .. }), "{text}");
        assert!(text.contains("\"job one\""), "{text}");
        assert!(text.contains(&store.url_of("lock")), "{text}");
        other
            .lock("another", "job two")
            .await
            .expect("another name is another lock");

        lease.release().await.expect("given up");
        let lease = other.lock("lock", "job two").await.expect("free again");
        drop(lease);
        store
            .lock("lock", "job three")
            .await
            .expect("dropping gives up as well");
    }
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn holder_process() {
    let Ok(dir) = std::env::var(HOLD) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let store = Store::open(&dir).expect("a path");
        let _lease = store.lock("lock", "the child").await.expect("free");
        writeln!(std::io::stdout(), "{READY}").expect("the parent reads");
        // Until the parent kills us or goes away and closes our input.
        let _ = std::io::stdin().lines().next();
    });
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_killed_process_leaves_no_lock_behind() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().to_str().expect("UTF-8");
    let mut child = Command::new(std::env::current_exe().expect("a test binary"))
        .args(["--exact", "locks::holder_process", "--nocapture"])
        .env(HOLD, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Killed)
        .expect("starts");
    let pid = child.0.id();
    // A child that fails closes its output, so this ends.
    let output = BufReader::new(child.0.stdout.take().expect("piped"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains(READY)),
        "the child took the lock"
    );

    let store = Store::open(path).expect("a path");
    let error = store
        .lock("lock", "the parent")
        .await
        .expect_err("held")
        .to_string();
    assert!(
        error.contains("the child") && error.contains(&pid.to_string()),
        "{error}"
    );

    child.0.kill().expect("alive");
    child.0.wait().expect("ends");
    store
        .lock("lock", "the parent")
        .await
        .expect("the kernel gave it up");
}
