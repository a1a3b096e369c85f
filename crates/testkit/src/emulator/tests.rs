//! Tests of the emulator harness, most of them with shell scripts in the emulator's place.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::panic;

use super::*;

const PHRASE: &str = "running on ";
const SOON: Duration = Duration::from_secs(20);

/// An executable script, and the folder that keeps it alive.
fn script(body: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("emulator");
    fs::write(&path, body).expect("the folder is writable");
    (folder, path)
}

/// Scripts are handed to the shell rather than executed: a file that was just written may still be
/// open for writing in a child that another test forks at this moment ("text file busy").
fn launch(path: &Path, limit: Duration) -> Result<Emulator, EmulatorError> {
    Emulator::launch(PathBuf::from("/bin/sh"), &[path.as_os_str()], PHRASE, limit)
}

#[test]
fn two_emulators_accept_on_ports_of_their_own_and_stop_with_their_owner() {
    let Some(first) = require_bigtable() else {
        return;
    };
    let Some(second) = require_bigtable() else {
        return;
    };
    assert_ne!(first.address(), second.address());
    assert_eq!(first.endpoint(), format!("http://{}", first.address()));
    TcpStream::connect(first.address()).expect("the first accepts");
    TcpStream::connect(second.address()).expect("the second accepts");

    let gone = first.address();
    drop(first);
    TcpStream::connect(gone).expect_err("the first is gone once it is dropped");
    TcpStream::connect(second.address()).expect("the second still runs");
}

/// The test runs itself a second time as the owner that is killed.
#[test]
fn an_emulator_dies_with_a_killed_process() {
    const ROLE: &str = "AQUEDUCT_TEST_ROLE";
    if env::var_os(ROLE).is_some() {
        // Prints that it is up, and sleeps for ever in `read`, as nobody writes.
        let (_folder, path) = script("echo running on $ADDRESS\nexec cat \"$FIFO\"\n");
        let _emulator = launch(&path, SOON).expect("the script says where it listens");
        fs::write(env::var_os("READY").expect("set by the parent"), b"").expect("writable");
        let _ = io::stdin().read(&mut [0]);
        unreachable!("the parent kills this process before it writes anything");
    }

    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .expect("mkfifo exists on every Unix");
    assert!(made.success());
    let ready = folder.path().join("ready");
    let made = Command::new("mkfifo")
        .arg(&ready)
        .status()
        .expect("mkfifo exists on every Unix");
    assert!(made.success());
    // The script connects to nothing; the address only has to accept.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let mut owner = Command::new(env::current_exe().expect("this test has a binary"))
        .args([
            "--exact",
            "emulator::tests::an_emulator_dies_with_a_killed_process",
        ])
        .envs([(ROLE, "owner"), ("ADDRESS", &address)])
        .envs([("FIFO", &fifo), ("READY", &ready)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the test can run itself");
    // Opening a fifo waits for the other side: first the owner says that its emulator runs, then the
    // emulator itself, which reads from here.
    let (sent, opened) = std::sync::mpsc::sync_channel(1);
    let opener = thread::spawn(move || {
        fs::read(&ready).expect("the owner opens and closes it");
        let writer = OpenOptions::new()
            .write(true)
            .open(&fifo)
            .expect("the emulator reads it");
        sent.send(writer).expect("the test waits");
    });
    let mut writer = opened.recv_timeout(SOON).expect("the emulator runs");
    opener.join().expect("it has sent");
    writer.write_all(b".").expect("its reader lives");

    owner.kill().expect("the owner runs");
    owner.wait().expect("the owner is ours");

    // A fifo whose reader is gone refuses the writer: that is how the emulator's death is seen.
    let deadline = Instant::now() + SOON;
    while writer.write_all(b".").is_ok() {
        assert!(Instant::now() < deadline, "the emulator outlived its owner");
        thread::yield_now();
    }
}

#[test]
fn an_emulator_that_ends_at_once_is_an_error_with_its_words() {
    let (_folder, path) = script("echo cannot bind >&2\nexit 3\n");
    match launch(&path, SOON) {
        Err(EmulatorError::Ended { output, .. }) => assert_eq!(output, "cannot bind\n"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_emulator_that_does_not_exist_is_an_error() {
    let path = PathBuf::from("/nowhere/cbtemulator");
    match Emulator::launch(path, &[], PHRASE, SOON) {
        Err(EmulatorError::Ended { output, .. }) => {
            assert!(output.contains("not found"), "{output}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_emulator_that_keeps_silent_is_given_up_and_killed() {
    let (_folder, path) = script("echo still thinking\nexec cat /dev/zero >/dev/null\n");
    let limit = Duration::from_millis(300);
    match launch(&path, limit) {
        Err(EmulatorError::NotListening {
            limit: told,
            output,
            ..
        }) => {
            assert_eq!(told, limit);
            assert!(
                output.is_empty() || output == "still thinking\n",
                "{output}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_emulator_that_lies_about_its_port_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let free = listener.local_addr().expect("it is bound");
    drop(listener);
    let (_folder, path) = script(&format!(
        "echo running on {free}\nexec cat /dev/zero >/dev/null\n"
    ));
    match launch(&path, SOON) {
        Err(EmulatorError::NotAccepting { address, .. }) => assert_eq!(address, free),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_talkative_emulator_neither_blocks_nor_fills_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    // A megabyte first, many times what a pipe holds.
    let (_folder, path) = script(&format!(
        "head -c 1048576 /dev/zero | tr '\\0' x\necho\necho running on {address}\n\
         exec cat /dev/zero >/dev/null\n"
    ));
    let emulator = launch(&path, SOON).expect("it gets to its last line");
    assert!(emulator.process.output().len() <= 16 * 1024);
}

#[test]
fn an_address_counts_only_in_a_complete_line() {
    let address = "127.0.0.1:80".parse().ok();
    assert_eq!(
        address_after(PHRASE, "Emulator running on 127.0.0.1:80"),
        None
    );
    assert_eq!(
        address_after(PHRASE, "Emulator running on 127.0.0.1:80\nx"),
        address
    );
    assert_eq!(
        address_after(PHRASE, "running on empty\nrunning on 127.0.0.1:80 now\n"),
        address
    );
    assert_eq!(address_after(PHRASE, ""), None);
}

#[test]
fn a_wrongly_named_binary_is_an_error_and_not_a_reason_to_look_elsewhere() {
    assert!(matches!(named_binary(BIGTABLE_BINARY, None), Ok(None)));
    assert!(matches!(
        named_binary(BIGTABLE_BINARY, Some(OsString::new())),
        Ok(None)
    ));
    let error = named_binary(BIGTABLE_BINARY, Some("/nowhere/cbtemulator".into()))
        .expect_err("there is no such file");
    let text = error.to_string();
    assert!(
        text.contains(BIGTABLE_BINARY) && text.contains("/nowhere/cbtemulator"),
        "{text}"
    );
}

#[test]
fn the_sdk_is_found_behind_links_in_home_and_by_asking() {
    const FILE: &str = "platform/bigtable-emulator/cbtemulator-of-this-test";
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path().canonicalize().expect("it exists");
    let sdk = folder.join("google-cloud-sdk");
    fs::create_dir_all(sdk.join("platform/bigtable-emulator")).expect("writable");
    fs::create_dir_all(sdk.join("bin")).expect("writable");
    fs::write(sdk.join(FILE), "").expect("writable");
    let nothing = OsStr::new("");

    assert_eq!(in_sdk(FILE, nothing, None), None);
    assert_eq!(
        in_sdk(FILE, nothing, Some(&folder)),
        Some(sdk.join(FILE)),
        "in the home folder"
    );

    fs::write(sdk.join("bin/gcloud"), "").expect("writable");
    let links = folder.join("links");
    fs::create_dir(&links).expect("writable");
    std::os::unix::fs::symlink(sdk.join("bin/gcloud"), links.join("gcloud")).expect("writable");
    assert_eq!(
        in_sdk(FILE, links.as_os_str(), None),
        Some(sdk.join(FILE)),
        "behind a link"
    );
}

#[test]
fn gcloud_is_asked_for_its_root_and_may_not_know() {
    let (folder, path) = script("#!/bin/sh\necho /some/root\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    // Retried while another test's fork holds the new file open for writing.
    let deadline = Instant::now() + SOON;
    let root = loop {
        match asked_root(&path) {
            None if Instant::now() < deadline => thread::yield_now(),
            root => break root,
        }
    };
    assert_eq!(root, Some(PathBuf::from("/some/root")));
    assert_eq!(asked_root(&folder.path().join("absent")), None);
    assert_eq!(asked_root(Path::new("/bin/false")), None);
}

#[test]
fn a_test_that_does_not_run_is_reported_with_its_name_and_the_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("not-run");
    report_not_run("the\temulator", "install\nit", false, Some(&file));
    report_not_run("Java", "apt-get install jdk", false, Some(&file));
    let open = fs::File::open(&file).expect("the report created it");
    let lines: Vec<String> = BufReader::new(open)
        .lines()
        .collect::<Result<_, _>>()
        .expect("it is text");
    let test = "emulator::tests::a_test_that_does_not_run_is_reported_with_its_name_and_the_remedy";
    assert_eq!(
        lines,
        [
            format!("the emulator\t{test}\tinstall it"),
            format!("Java\t{test}\tapt-get install jdk"),
        ]
    );
}

#[test]
fn in_ci_a_test_that_cannot_run_fails() {
    let failure = panic::catch_unwind(|| report_not_run("Java", "apt-get install jdk", true, None))
        .expect_err("CI has what tests need");
    let text = failure
        .downcast_ref::<String>()
        .expect("a formatted message");
    assert!(text.contains("apt-get install jdk"), "{text}");
}
