//! The processes of a cluster: a JobManager, TaskManagers, and the SQL gateway once a script asks for it.
//!
//! The mains of Flink's shell scripts are started directly, with the memory that the scripts would work out written down.
//! A cluster of one TaskManager takes about a gigabyte.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::footprint::Member;
use super::process::{LOG4J, Process, Start};
use super::{Distribution, Version, folder, http};

/// How long a wait of a test lasts unless it says otherwise. Generous: the machine may be compiling.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Between two looks at what nothing signals.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A free port may be taken before the JobManager binds it.
const TRIES: u32 = 5;

const JOB_MANAGER: &str = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint";
const TASK_MANAGER: &str = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner";
const GATEWAY: &str = "org.apache.flink.table.gateway.SqlGateway";

const JOB_MANAGER_HEAP_MIB: u32 = 384;
/// The sum of the framework's and the tasks' heap below.
const TASK_MANAGER_HEAP_MIB: u32 = 448;
const GATEWAY_HEAP_MIB: u32 = 512;

/// What every cluster is configured with; the builder's options win.
const DEFAULTS: [(&str, &str); 29] = [
    ("jobmanager.rpc.address", "127.0.0.1"),
    ("jobmanager.bind-host", "127.0.0.1"),
    ("taskmanager.host", "127.0.0.1"),
    ("taskmanager.bind-host", "127.0.0.1"),
    ("rest.address", "127.0.0.1"),
    ("rest.bind-address", "127.0.0.1"),
    ("execution.target", "remote"),
    // A TaskManager that was killed is missed within seconds, one on a slow machine is not.
    ("heartbeat.interval", "1s"),
    ("heartbeat.timeout", "30s"),
    ("heartbeat.rpc-failure-threshold", "2"),
    ("pekko.ask.timeout", "60s"),
    ("web.timeout", "60s"),
    ("slot.request.timeout", "60s"),
    ("restart-strategy.type", "fixed-delay"),
    ("restart-strategy.fixed-delay.attempts", "1000"),
    ("restart-strategy.fixed-delay.delay", "200ms"),
    ("metrics.fetcher.update-interval", "500ms"),
    ("state.backend.type", "hashmap"),
    ("parallelism.default", "1"),
    // What the shell scripts would derive from a process of about a gigabyte.
    ("taskmanager.cpu.cores", "1"),
    ("taskmanager.memory.framework.heap.size", "128m"),
    ("taskmanager.memory.framework.off-heap.size", "64m"),
    ("taskmanager.memory.task.heap.size", "320m"),
    ("taskmanager.memory.task.off-heap.size", "64m"),
    ("taskmanager.memory.network.min", "64m"),
    ("taskmanager.memory.network.max", "64m"),
    ("taskmanager.memory.managed.size", "64m"),
    ("taskmanager.memory.jvm-metaspace.size", "256m"),
    ("taskmanager.memory.jvm-overhead.min", "128m"),
];

/// What a cluster shall be like.
#[derive(Clone, Debug)]
pub struct Builder {
    version: Version,
    task_managers: usize,
    slots: usize,
    options: BTreeMap<String, String>,
    lib_jars: Vec<PathBuf>,
    environment_jvm: Vec<String>,
}

impl Builder {
    /// How many TaskManagers to start with. Default: 1.
    #[must_use]
    pub fn task_managers(mut self, count: usize) -> Self {
        self.task_managers = count;
        self
    }

    /// Slots of each TaskManager. Default: 2.
    #[must_use]
    pub fn slots(mut self, count: usize) -> Self {
        self.slots = count;
        self
    }

    /// An option of Flink's configuration, for every process.
    #[must_use]
    pub fn conf(mut self, key: &str, value: &str) -> Self {
        self.options.insert(key.to_owned(), value.to_owned());
        self
    }

    /// A jar on the class path of every process, as in Flink's `lib/`.
    #[must_use]
    pub fn lib_jar(mut self, jar: impl Into<PathBuf>) -> Self {
        self.lib_jars.push(jar.into());
        self
    }

    /// An argument of every JVM, such as `-Dname=value`.
    #[must_use]
    pub fn jvm(mut self, argument: &str) -> Self {
        self.environment_jvm.push(argument.to_owned());
        self
    }

    /// Starts the cluster and waits until every TaskManager is registered.
    ///
    /// `None` means: no distribution or no Java, reported, so return.
    ///
    /// # Panics
    ///
    /// In CI when the distribution is missing; everywhere when the cluster does not come up, with the end of every log.
    #[must_use = "None means that the test must return"]
    #[track_caller]
    pub fn start(self) -> Option<Cluster> {
        let distribution = Distribution::require(self.version)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match Cluster::launch(&distribution, &self) {
                Ok(cluster) => return Some(cluster),
                Err(NotUp::PortTaken) if tries < TRIES => {}
                Err(NotUp::PortTaken) => panic!("ports are taken as soon as they are found free"),
                Err(NotUp::Failed(error)) => {
                    panic!("cannot start a cluster of Flink {}: {error}", self.version)
                }
            }
        }
    }
}

enum NotUp {
    PortTaken,
    Failed(String),
}

impl From<io::Error> for NotUp {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A running cluster. Dropping it ends its processes and removes its files, unless the test is failing: then they stay
/// until the next run.
#[derive(Debug)]
pub struct Cluster {
    distribution: Distribution,
    builder: Builder,
    folder: PathBuf,
    rest: SocketAddr,
    gateway: OnceCell<(Process, SocketAddr)>,
    job_manager: Process,
    task_managers: RefCell<TaskManagers>,
}

#[derive(Debug, Default)]
struct TaskManagers {
    running: BTreeMap<usize, Process>,
    next: usize,
}

impl Cluster {
    /// A cluster of this version with one TaskManager of two slots, unless told otherwise.
    #[must_use]
    pub fn builder(version: Version) -> Builder {
        Builder {
            version,
            task_managers: 1,
            slots: 2,
            options: BTreeMap::new(),
            lib_jars: Vec::new(),
            environment_jvm: Vec::new(),
        }
    }

    fn launch(distribution: &Distribution, builder: &Builder) -> Result<Self, NotUp> {
        let [rpc, rest] = free_ports()?;
        let folder = own_folder()?;
        for name in ["conf", "log", "tmp", "sql"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("conf/log4j.properties"), LOG4J)?;
        let options = options(builder, &folder, rpc.port(), rest.port());
        fs::write(folder.join("conf/config.yaml"), options)?;
        let conf = folder.join("conf").display().to_string();
        let jvm: Vec<&str> = builder.environment_jvm.iter().map(String::as_str).collect();
        let job_manager = Process::start(&Start {
            distribution,
            folder: &folder,
            name: "jobmanager",
            class_path: distribution.class_path(&builder.lib_jars, false),
            heap_mib: JOB_MANAGER_HEAP_MIB,
            jvm: &jvm,
            main: JOB_MANAGER,
            args: &["--configDir", &conf],
            output: None,
        })?;
        let cluster = Self {
            distribution: distribution.clone(),
            builder: builder.clone(),
            folder,
            rest,
            gateway: OnceCell::new(),
            job_manager,
            task_managers: RefCell::default(),
        };
        for _ in 0..builder.task_managers {
            cluster.spawn_task_manager()?;
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            if cluster.registered().ok() == Some(builder.task_managers) {
                return Ok(cluster);
            }
            if cluster.job_manager.has_ended() {
                let logs = cluster.logs();
                return Err(if logs.contains("BindException") {
                    NotUp::PortTaken
                } else {
                    NotUp::Failed(format!("the JobManager ended\n{logs}"))
                });
            }
            if Instant::now() > deadline {
                return Err(NotUp::Failed(format!(
                    "not complete after {LIMIT:?}\n{}",
                    cluster.logs()
                )));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// How many TaskManagers the JobManager knows.
    fn registered(&self) -> io::Result<usize> {
        let (_, answer) = http::call(self.rest, "GET", "/taskmanagers", None)?;
        Ok(answer["taskmanagers"].as_array().map_or(0, Vec::len))
    }

    /// Which version it runs.
    #[must_use]
    pub fn version(&self) -> Version {
        self.distribution.version()
    }

    /// The folder of the cluster, for files of a test. Removed with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the JobManager answers to `GET path`, such as `/jobs/overview`.
    ///
    /// # Panics
    ///
    /// When it does not answer, or with a failure.
    #[must_use]
    #[track_caller]
    pub fn rest(&self, path: &str) -> Value {
        self.call("GET", path, None)
    }

    /// As [`rest`](Self::rest), with a method and a body.
    ///
    /// # Panics
    ///
    /// When it does not answer, or with a failure.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        match self.try_call(method, path, body) {
            Ok((status, answer)) if status < 400 => answer,
            Ok((status, answer)) => self.fail(&format!("{method} {path}: {status}: {answer}")),
            Err(error) => self.fail(&format!("{method} {path}: {error}")),
        }
    }

    /// As [`call`](Self::call), where a failure is an answer.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub fn try_call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, Value)> {
        http::call(self.rest, method, path, body)
    }

    /// Asks again and again until there is something, at most [`LIMIT`].
    ///
    /// # Panics
    ///
    /// At the limit, and when the JobManager is gone, naming `what` was waited for.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, ask: impl FnMut() -> Option<T>) -> T {
        self.wait_at_most(LIMIT, what, ask)
    }

    /// As [`wait_for`](Self::wait_for), with a limit.
    ///
    /// # Panics
    ///
    /// At the limit, and when the JobManager is gone, naming `what` was waited for.
    #[track_caller]
    pub fn wait_at_most<T>(
        &self,
        limit: Duration,
        what: &str,
        ask: impl FnMut() -> Option<T>,
    ) -> T {
        self.poll(limit, ask)
            .unwrap_or_else(|why| self.fail(&format!("{why}, waiting for {what}")))
    }

    /// As [`wait_at_most`](Self::wait_at_most), where the end of the wait is an answer.
    ///
    /// # Errors
    ///
    /// Why it ended.
    pub fn poll<T>(
        &self,
        limit: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = ask() {
                return Ok(answer);
            }
            if self.job_manager.has_ended() {
                return Err("the JobManager is gone".to_owned());
            }
            if Instant::now() > deadline {
                return Err(format!("hang: {limit:?} have passed"));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// The numbers of the running TaskManagers.
    #[must_use]
    pub fn task_managers(&self) -> Vec<usize> {
        let managers = self.task_managers.borrow();
        managers.running.keys().copied().collect()
    }

    /// Kills a TaskManager (`kill -9`). The JobManager notices it within a few seconds.
    ///
    /// # Panics
    ///
    /// When there is none of this number.
    #[track_caller]
    pub fn kill_task_manager(&self, number: usize) {
        let killed = self.task_managers.borrow_mut().running.remove(&number);
        if killed.is_none() {
            self.fail(&format!("there is no TaskManager {number}"));
        }
    }

    /// Starts one more TaskManager and returns its number. It registers within a few seconds, which a job that needs slots
    /// waits for by itself.
    ///
    /// # Panics
    ///
    /// When the process cannot be started.
    #[track_caller]
    pub fn start_task_manager(&self) -> usize {
        match self.spawn_task_manager() {
            Ok(number) => number,
            Err(error) => self.fail(&format!("cannot start a TaskManager: {error}")),
        }
    }

    /// Starts TaskManagers until there are as many as the cluster began with, and waits until exactly they are registered.
    ///
    /// # Panics
    ///
    /// When that does not come true in time.
    #[track_caller]
    pub fn complete(&self) {
        // One that ended by itself is no longer one.
        self.task_managers
            .borrow_mut()
            .running
            .retain(|_, process| !process.has_ended());
        while self.task_managers.borrow().running.len() < self.builder.task_managers {
            self.start_task_manager();
        }
        let count = self.task_managers.borrow().running.len();
        self.wait_for("TaskManagers", || {
            (self.registered().ok()? == count).then_some(())
        });
    }

    fn spawn_task_manager(&self) -> io::Result<usize> {
        let mut managers = self.task_managers.borrow_mut();
        let number = managers.next;
        let name = format!("taskmanager-{number}");
        let id = format!("taskmanager.resource-id={name}");
        let conf = self.folder.join("conf").display().to_string();
        let mut jvm: Vec<&str> = vec!["-XX:MaxDirectMemorySize=192m", "-XX:MaxMetaspaceSize=256m"];
        jvm.extend(self.builder.environment_jvm.iter().map(String::as_str));
        let process = Process::start(&Start {
            distribution: &self.distribution,
            folder: &self.folder,
            name: &name,
            class_path: self.distribution.class_path(&self.builder.lib_jars, false),
            heap_mib: TASK_MANAGER_HEAP_MIB,
            jvm: &jvm,
            main: TASK_MANAGER,
            args: &["--configDir", &conf, "-D", &id],
            output: None,
        })?;
        managers.next += 1;
        managers.running.insert(number, process);
        Ok(number)
    }

    /// Where the SQL gateway listens. It is started when it is first asked for: a JVM that stays, because one a script
    /// would take ten seconds each.
    #[track_caller]
    pub(super) fn gateway(&self) -> SocketAddr {
        if let Some((_, address)) = self.gateway.get() {
            return *address;
        }
        let mut tries = 0;
        let started = loop {
            tries += 1;
            match self.start_gateway() {
                Ok(started) => break started,
                Err(NotUp::PortTaken) if tries < TRIES => {}
                Err(NotUp::PortTaken) => self.fail("no port for the SQL gateway"),
                Err(NotUp::Failed(error)) => self.fail(&format!("the SQL gateway: {error}")),
            }
        };
        self.gateway.get_or_init(|| started).1
    }

    fn start_gateway(&self) -> Result<(Process, SocketAddr), NotUp> {
        let [address] = free_ports()?;
        let endpoint =
            |key: &str, value: &str| format!("-Dsql-gateway.endpoint.rest.{key}={value}");
        let args = [
            endpoint("address", "127.0.0.1"),
            endpoint("bind-address", "127.0.0.1"),
            endpoint("port", &address.port().to_string()),
        ];
        let process = self.client(
            "gateway",
            GATEWAY,
            &args.each_ref().map(String::as_str),
            None,
        )?;
        let deadline = Instant::now() + LIMIT;
        while !matches!(http::call(address, "GET", "/v2/info", None), Ok((200, _))) {
            if process.has_ended() {
                let log = process.tail();
                return Err(if log.contains("BindException") {
                    NotUp::PortTaken
                } else {
                    NotUp::Failed(log)
                });
            }
            if Instant::now() > deadline {
                return Err(NotUp::Failed(process.tail()));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok((process, address))
    }

    /// A JVM that plans and submits.
    pub(super) fn client(
        &self,
        name: &str,
        main: &str,
        args: &[&str],
        output: Option<&Path>,
    ) -> io::Result<Process> {
        let mut jvm: Vec<&str> = vec!["-XX:TieredStopAtLevel=1"];
        jvm.extend(self.builder.environment_jvm.iter().map(String::as_str));
        Process::start(&Start {
            distribution: &self.distribution,
            folder: &self.folder,
            name,
            class_path: self.distribution.class_path(&self.builder.lib_jars, true),
            heap_mib: GATEWAY_HEAP_MIB,
            jvm: &jvm,
            main,
            args,
            output,
        })
    }

    pub(super) fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Nothing if there is no such process.
    pub(super) fn with_process<T>(
        &self,
        member: Member,
        work: impl FnOnce(&Process) -> T,
    ) -> Option<T> {
        match member {
            Member::JobManager => Some(work(&self.job_manager)),
            Member::TaskManager(number) => {
                let managers = self.task_managers.borrow();
                managers.running.get(&number).map(work)
            }
            Member::Gateway => self.gateway.get().map(|(process, _)| work(process)),
        }
    }

    /// The end of every log.
    #[must_use]
    pub fn logs(&self) -> String {
        let managers = self.task_managers.borrow();
        let gateway = self.gateway.get().map(|(process, _)| process);
        gateway
            .into_iter()
            .chain(managers.running.values())
            .chain([&self.job_manager])
            .map(Process::tail)
            .collect()
    }

    /// Panics with the end of every log.
    ///
    /// # Panics
    ///
    /// Always.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        panic!("Flink {}: {what}\n{}", self.version(), self.logs());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !thread::panicking() {
            // The processes write on until they are dropped after this, so it may fail; the next run removes the rest.
            self.task_managers.borrow_mut().running.clear();
            self.gateway.take();
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The configuration as Flink reads it.
fn options(builder: &Builder, folder: &Path, rpc: u16, rest: u16) -> String {
    let mut options: BTreeMap<String, String> = DEFAULTS
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let url = |name: &str| format!("file://{}", folder.join(name).display());
    let own = [
        ("jobmanager.rpc.port", rpc.to_string()),
        ("rest.port", rest.to_string()),
        ("taskmanager.numberOfTaskSlots", builder.slots.to_string()),
        ("taskmanager.memory.jvm-overhead.max", "128m".to_owned()),
        ("io.tmp.dirs", folder.join("tmp").display().to_string()),
        ("execution.checkpointing.dir", url("checkpoints")),
        ("execution.checkpointing.savepoint-dir", url("savepoints")),
    ];
    options.extend(own.map(|(key, value)| (key.to_owned(), value)));
    options.extend(builder.options.clone());
    options
        .iter()
        .fold(String::new(), |mut text, (key, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            // Writing into a string cannot fail.
            let _ = writeln!(text, "\"{key}\": \"{value}\"");
            text
        })
}

/// Ports that are free at this moment, all of them at once.
fn free_ports<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for port in &mut ports {
        let listener = TcpListener::bind(*port)?;
        *port = listener.local_addr()?;
        held.push(listener);
    }
    Ok(ports)
}

/// A folder for one cluster of this process. Those of processes that are gone are removed.
fn own_folder() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let all = folder().join("clusters");
    fs::create_dir_all(&all)?;
    for entry in fs::read_dir(&all)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next());
        if owner.is_some_and(|owner| !is_alive(owner)) {
            // Another test process may be removing it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let own = all.join(format!("{}-{number}", process::id()));
    fs::create_dir_all(&own)?;
    Ok(own)
}

fn is_alive(process: &str) -> bool {
    Command::new("kill")
        .args(["-0", process])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
