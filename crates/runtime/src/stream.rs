//! The builder: a job, its streams and what is done to them.
//!
//! A [`Stream`] is a promise of output that someone must take: it is continued by an operator, given to a
//! sink, or the job refuses to start and names it. Building runs forwards, chains are assembled backwards:
//! each operator waits for the factory of what follows and gives its own to what precedes.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aqueduct_connector::sink::Sink;
use aqueduct_connector::source::{Collector, Record, Source};
use aqueduct_connector::{Error, Result};

use crate::config::JobConfig;
use crate::functions::{
    Filter, FlatMap, Map, Process, ProcessFunction, TryFilter, TryFlatMap, TryMap, UserError,
};
use crate::graph::{ChainDef, ExchangeFactory, Graph, OperatorInfo, SinkDef, SourceDef};
use crate::handle::{JobHandle, JobReport};
use crate::keyed::{Key, KeyedProcess, KeyedProcessFunction, key_group, subtask_of};
use crate::operator::{Operator, OperatorStage};
use crate::stage::{Stage, StageFactory};
use crate::task::{
    Exchange, ExchangeStage, Head, InputHead, Route, SinkStage, SourceHead, TeeStage,
};
use crate::watermark::WatermarkStrategy;

/// A job being built.
#[derive(Debug)]
pub struct Job {
    builder: Shared,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Builder>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Builder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Builder {
    graph: Graph,
    names: HashSet<Arc<str>>,
    problems: Vec<Error>,
    /// Outputs that nobody has taken yet, by token.
    open: BTreeMap<u64, Arc<str>>,
    next_token: u64,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("graph", &self.graph)
            .finish_non_exhaustive()
    }
}

impl Builder {
    fn operator(&mut self, name: &str, kind: String) -> u32 {
        let index = u32::try_from(self.graph.operators.len()).expect("a graph fits in memory");
        let name: Arc<str> = name.into();
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            self.problems.push(Error::config(format!(
                "operator name {name:?} is blank or has control characters: name it by what it does"
            )));
        } else if !self.names.insert(name.clone()) {
            self.problems.push(Error::config(format!(
                "two operators are called '{name}': names identify state in checkpoints and must be unique"
            )));
        }
        self.graph.operators.push(OperatorInfo { name, kind });
        index
    }

    fn name(&self, operator: u32) -> Arc<str> {
        self.graph.operator(operator).name.clone()
    }

    fn open_end(&mut self, operator: u32) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let name = self.name(operator);
        self.open.insert(token, name);
        token
    }

    fn exchange<T: Send + 'static>(&mut self, kind: ExchangeKind) -> u32 {
        let number = u32::try_from(self.graph.exchanges.len()).expect("a graph fits in memory");
        let factory: ExchangeFactory = Arc::new(move |parallelism, bounds| match kind {
            ExchangeKind::Forward => Box::new(Exchange::<T>::forward(parallelism, bounds)),
            ExchangeKind::AllToAll => Box::new(Exchange::<T>::all_to_all(parallelism, bounds)),
        });
        self.graph.exchanges.push(factory);
        number
    }

    fn chain(
        &mut self,
        operator: u32,
        source: Option<u32>,
        behind: &[u32],
        head: crate::graph::HeadFactory,
    ) {
        let names: Vec<_> = source
            .iter()
            .chain(behind)
            .map(|at| self.name(*at))
            .collect();
        let name = if names.is_empty() {
            format!("merge behind {}", self.name(operator))
        } else {
            names.join(" -> ")
        };
        self.graph.chains.push(ChainDef {
            name: name.into(),
            operator: source.or(behind.first().copied()).unwrap_or(operator),
            source,
            head,
        });
    }
}

#[derive(Clone, Copy)]
enum ExchangeKind {
    Forward,
    AllToAll,
}

/// Takes the factory of what follows, and the operators in it.
type Attach<T> = Box<dyn FnOnce(&mut Builder, StageFactory<T>, Vec<u32>) + Send>;

impl Job {
    /// A job called `name`. The name is recorded in checkpoints, which no other job restores.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name: String = name.into();
        let mut problems = Vec::new();
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            problems.push(Error::config(format!(
                "job name {name:?} is blank or has control characters"
            )));
        }
        Self {
            builder: Shared(Arc::new(Mutex::new(Builder {
                graph: Graph {
                    name: name.into(),
                    operators: Vec::new(),
                    chains: Vec::new(),
                    exchanges: Vec::new(),
                    sources: Vec::new(),
                    sinks: Vec::new(),
                },
                names: HashSet::new(),
                problems,
                open: BTreeMap::new(),
                next_token: 0,
            }))),
        }
    }

    /// Begins a stream with a source. `name` identifies its state in checkpoints.
    pub fn from_source<T: Send + 'static>(
        &self,
        name: &str,
        source: impl Source<T> + 'static,
        strategy: WatermarkStrategy<T>,
    ) -> Stream<T> {
        self.from_shared_source(name, Arc::new(source), strategy)
    }

    /// As [`from_source`](Self::from_source), for a source behind a pointer.
    pub fn from_shared_source<T: Send + 'static>(
        &self,
        name: &str,
        source: Arc<dyn Source<T>>,
        strategy: WatermarkStrategy<T>,
    ) -> Stream<T> {
        let mut builder = self.builder.lock();
        let index = builder.operator(name, format!("source:{}", source.connector()));
        if strategy.alignment.is_some() && !strategy.has_watermarks() {
            builder.problems.push(Error::config(format!(
                "source '{name}' is aligned by watermarks and has none: choose bounded or from_source"
            )));
        }
        let for_enumerator = source.clone();
        builder.graph.sources.push(SourceDef {
            operator: index,
            boundedness: source.boundedness(),
            create: Arc::new(move |context, restored| {
                for_enumerator.create_enumerator(context, restored)
            }),
        });
        let attach: Attach<T> = Box::new(move |builder, down, behind| {
            let head = Arc::new(move |build: &_| {
                let chain = down(build);
                Box::new(SourceHead::new(
                    index,
                    source.clone(),
                    strategy.clone(),
                    chain,
                )) as Box<dyn Head>
            });
            builder.chain(index, Some(index), &behind, head);
        });
        Stream::new(&self.builder, &mut builder, index, attach)
    }

    /// Checks the graph and starts the job on threads of its own.
    ///
    /// # Errors
    ///
    /// If the graph is not complete (every problem found, the later ones attached to the first) or the threads
    /// cannot be started. What goes wrong later is told by the handle.
    pub fn start(self, config: JobConfig) -> Result<JobHandle> {
        crate::coordinator::start(Arc::new(self.finish()?), config)
    }

    /// Runs the job to its end on threads of its own; blocks this one. Not for use inside an async task: there,
    /// [`start`](Self::start) and await [`JobHandle::wait`].
    ///
    /// # Errors
    ///
    /// Why the job failed.
    pub fn run(self, config: JobConfig) -> Result<JobReport> {
        self.start(config)?.wait_blocking()
    }

    fn finish(self) -> Result<Graph> {
        let mut builder = self.builder.lock();
        let mut problems = std::mem::take(&mut builder.problems);
        for name in builder.open.values() {
            problems.push(Error::config(format!(
                "an output of operator '{name}' goes nowhere: continue it or end it with sink_to"
            )));
        }
        if builder.graph.sources.is_empty() {
            problems.push(Error::config("the job has no source"));
        }
        let mut problems = problems.into_iter();
        if let Some(mut first) = problems.next() {
            problems.for_each(|other| first.suppress(other));
            return Err(first);
        }
        let empty = Graph {
            name: builder.graph.name.clone(),
            operators: Vec::new(),
            chains: Vec::new(),
            exchanges: Vec::new(),
            sources: Vec::new(),
            sinks: Vec::new(),
        };
        Ok(std::mem::replace(&mut builder.graph, empty))
    }
}

/// The output of an operator, in as many parts as the job has subtasks.
#[must_use = "a stream that nobody takes keeps the job from starting"]
pub struct Stream<T> {
    builder: Shared,
    /// Whose output this is.
    operator: u32,
    token: u64,
    attach: Attach<T>,
}

impl<T> std::fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream(of operator {})", self.operator)
    }
}

impl<T: Send + 'static> Stream<T> {
    fn new(shared: &Shared, builder: &mut Builder, operator: u32, attach: Attach<T>) -> Self {
        Self {
            builder: shared.clone(),
            operator,
            token: builder.open_end(operator),
            attach,
        }
    }

    /// Continues with a stage made by `stage` from what follows it.
    fn then<O: Send + 'static>(
        self,
        name: &str,
        kind: &str,
        stage: impl Fn(u32, Box<dyn Stage<O>>) -> Box<dyn Stage<T>> + Send + Sync + 'static,
    ) -> Stream<O> {
        let shared = self.builder.clone();
        let mut builder = shared.lock();
        let index = builder.operator(name, kind.to_owned());
        builder.open.remove(&self.token);
        let upstream = self.attach;
        let attach: Attach<O> = Box::new(move |builder, down, mut behind| {
            behind.insert(0, index);
            let factory: StageFactory<T> = Arc::new(move |build| stage(index, down(build)));
            upstream(builder, factory, behind);
        });
        Stream::new(&shared, &mut builder, index, attach)
    }

    /// Continues with an operator that works on batches; `factory` is called once a subtask, on its thread.
    pub fn operator<O: Send + 'static, P: Operator<T, O> + 'static>(
        self,
        name: &str,
        factory: impl Fn() -> P + Send + Sync + 'static,
    ) -> Stream<O>
    where
        T: 'static,
    {
        self.then(name, "operator", move |index, down| {
            Box::new(OperatorStage::new(index, factory(), down))
        })
    }

    /// Applies `map` to every record; event times stay.
    pub fn map<O: Send + 'static>(
        self,
        name: &str,
        map: impl Fn(T) -> O + Send + Sync + 'static,
    ) -> Stream<O> {
        let map = Arc::new(map);
        self.operator(name, move || Map(map.clone()))
    }

    /// As [`map`](Self::map); an error fails the job.
    pub fn try_map<O: Send + 'static, E: Into<UserError> + 'static>(
        self,
        name: &str,
        map: impl Fn(T) -> Result<O, E> + Send + Sync + 'static,
    ) -> Stream<O> {
        let map = Arc::new(map);
        self.operator(name, move || TryMap(map.clone()))
    }

    /// Keeps the records for which `keep` says so.
    pub fn filter(self, name: &str, keep: impl Fn(&T) -> bool + Send + Sync + 'static) -> Self {
        let keep = Arc::new(keep);
        self.operator(name, move || Filter(keep.clone()))
    }

    /// As [`filter`](Self::filter); an error fails the job.
    pub fn try_filter<E: Into<UserError> + 'static>(
        self,
        name: &str,
        keep: impl Fn(&T) -> Result<bool, E> + Send + Sync + 'static,
    ) -> Self {
        let keep = Arc::new(keep);
        self.operator(name, move || TryFilter(keep.clone()))
    }

    /// Makes zero or more records of each.
    pub fn flat_map<O: Send + 'static>(
        self,
        name: &str,
        map: impl Fn(T, &mut Collector<'_, O>) + Send + Sync + 'static,
    ) -> Stream<O> {
        let map = Arc::new(map);
        self.operator(name, move || FlatMap(map.clone()))
    }

    /// As [`flat_map`](Self::flat_map); an error fails the job.
    pub fn try_flat_map<O: Send + 'static, E: Into<UserError> + 'static>(
        self,
        name: &str,
        map: impl Fn(T, &mut Collector<'_, O>) -> Result<(), E> + Send + Sync + 'static,
    ) -> Stream<O> {
        let map = Arc::new(map);
        self.operator(name, move || TryFlatMap(map.clone()))
    }

    /// Applies a function with state of its own; `factory` is called once a subtask, on its thread.
    pub fn process<O: Send + 'static, F: ProcessFunction<T, O> + 'static>(
        self,
        name: &str,
        factory: impl Fn() -> F + Send + Sync + 'static,
    ) -> Stream<O> {
        self.operator(name, move || Process::new(factory()))
    }

    /// Sends the records through channels, routed by `route`, and continues in new tasks.
    fn route<R>(self, route: impl Fn() -> R + Send + Sync + 'static) -> Stream<R::Out>
    where
        R: Route<T> + 'static,
        R::Out: Send + 'static,
    {
        let shared = self.builder.clone();
        let mut builder = shared.lock();
        builder.open.remove(&self.token);
        let (operator, upstream) = (self.operator, self.attach);
        let attach: Attach<R::Out> = Box::new(move |builder, down, behind| {
            let number = builder.exchange::<R::Out>(ExchangeKind::AllToAll);
            let factory: StageFactory<T> =
                Arc::new(move |_| Box::new(ExchangeStage::new(number, operator, route())));
            upstream(builder, factory, Vec::new());
            let head = Arc::new(move |build: &_| {
                Box::new(InputHead::new(vec![number], down(build))) as Box<dyn Head>
            });
            builder.chain(operator, None, &behind, head);
        });
        Stream::new(&shared, &mut builder, operator, attach)
    }

    /// Deals the records round-robin over all subtasks. Order across subtasks is not kept.
    pub fn rebalance(self) -> Self {
        self.route(|| RoundRobin { next: 0 })
    }

    /// Sends each record to the subtasks that `route` chooses, perhaps cut in pieces: for values that hold many
    /// rows. Use [`Targets::send_to_group`] with [`key_group`] where keyed state follows.
    pub fn exchange<U: Send + 'static>(
        self,
        route: impl Fn(Record<T>, &mut Targets<'_, U>) -> Result<()> + Send + Sync + 'static,
    ) -> Stream<U> {
        let route = Arc::new(route);
        self.route(move || Custom {
            route: route.clone(),
            max_parallelism: 1,
            out: std::marker::PhantomData,
        })
    }

    /// Brings all records of a key to one subtask. `key` is called once a record.
    pub fn key_by<K: Key>(
        self,
        key: impl Fn(&T) -> K + Send + Sync + 'static,
    ) -> KeyedStream<K, T> {
        let key = Arc::new(key);
        KeyedStream {
            stream: self.route(move || ByKey {
                key: key.clone(),
                bytes: Vec::new(),
                max_parallelism: 1,
            }),
        }
    }

    /// This stream and others of the same type as one. Order is kept within each.
    pub fn union(self, others: impl IntoIterator<Item = Self>) -> Self {
        let shared = self.builder.clone();
        let all: Vec<Self> = std::iter::once(self).chain(others).collect();
        let mut builder = shared.lock();
        let operator = all[0].operator;
        let mut inputs = Vec::with_capacity(all.len());
        for stream in all {
            if !Arc::ptr_eq(&stream.builder.0, &shared.0) {
                builder
                    .problems
                    .push(Error::config("streams of two jobs cannot be united"));
                continue;
            }
            builder.open.remove(&stream.token);
            inputs.push((stream.operator, stream.attach));
        }
        let attach: Attach<T> = Box::new(move |builder, down, behind| {
            let mut numbers = Vec::with_capacity(inputs.len());
            for (operator, upstream) in inputs {
                let number = builder.exchange::<T>(ExchangeKind::Forward);
                numbers.push(number);
                let factory: StageFactory<T> =
                    Arc::new(move |_| Box::new(ExchangeStage::new(number, operator, Straight)));
                upstream(builder, factory, Vec::new());
            }
            let head = Arc::new(move |build: &_| {
                Box::new(InputHead::new(numbers.clone(), down(build))) as Box<dyn Head>
            });
            builder.chain(operator, None, &behind, head);
        });
        Stream::new(&shared, &mut builder, operator, attach)
    }

    /// The same records twice, for two continuations in the same tasks.
    pub fn tee(self) -> (Self, Self)
    where
        T: Clone,
    {
        let shared = self.builder.clone();
        let mut builder = shared.lock();
        builder.open.remove(&self.token);
        let operator = self.operator;
        let tee = Arc::new(Mutex::new(Tee {
            upstream: Some(self.attach),
            first: None,
        }));
        let branch = |builder: &mut Builder| {
            let tee = tee.clone();
            let attach: Attach<T> = Box::new(move |builder, down, behind| {
                let ready = {
                    let mut tee = tee.lock().unwrap_or_else(PoisonError::into_inner);
                    match tee.first.take() {
                        None => {
                            tee.first = Some((down, behind));
                            None
                        }
                        Some(first) => tee
                            .upstream
                            .take()
                            .map(|upstream| (upstream, first, down, behind)),
                    }
                };
                if let Some((upstream, (first, mut all), second, behind)) = ready {
                    all.extend(behind);
                    let factory: StageFactory<T> = Arc::new(move |build| {
                        Box::new(TeeStage::new([first(build), second(build)]))
                    });
                    upstream(builder, factory, all);
                }
            });
            Self::new(&shared, builder, operator, attach)
        };
        (branch(&mut builder), branch(&mut builder))
    }

    /// Ends the stream in a sink. `name` identifies its state in checkpoints.
    pub fn sink_to(self, name: &str, sink: impl Sink<T> + 'static) {
        self.sink_to_shared(name, Arc::new(sink));
    }

    /// As [`sink_to`](Self::sink_to), for a sink behind a pointer.
    pub fn sink_to_shared(self, name: &str, sink: Arc<dyn Sink<T>>) {
        let shared = self.builder.clone();
        let mut builder = shared.lock();
        builder.open.remove(&self.token);
        let index = builder.operator(name, format!("sink:{}", sink.connector()));
        let for_committer = sink.clone();
        builder.graph.sinks.push(SinkDef {
            operator: index,
            create: Arc::new(move |context| for_committer.create_committer(context)),
        });
        let factory: StageFactory<T> =
            Arc::new(move |_| Box::new(SinkStage::new(index, sink.clone())));
        (self.attach)(&mut builder, factory, vec![index]);
    }
}

struct Tee<T> {
    upstream: Option<Attach<T>>,
    first: Option<(StageFactory<T>, Vec<u32>)>,
}

/// A stream whose records of one key are all in one subtask.
#[must_use = "a stream that nobody takes keeps the job from starting"]
pub struct KeyedStream<K, T> {
    stream: Stream<(K, T)>,
}

impl<K, T> std::fmt::Debug for KeyedStream<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyed{:?}", self.stream)
    }
}

impl<K: Key, T: Send + 'static> KeyedStream<K, T> {
    /// Applies a function with state by key; `factory` is called once a subtask, on its thread.
    pub fn process<O: Send + 'static, F: KeyedProcessFunction<K, T, O> + 'static>(
        self,
        name: &str,
        factory: impl Fn() -> F + Send + Sync + 'static,
    ) -> Stream<O> {
        self.operator(name, move || KeyedProcess::new(factory()))
    }

    /// Continues with an operator that works on batches of keys and values and keeps its state by key group.
    pub fn operator<O: Send + 'static, P: Operator<(K, T), O> + 'static>(
        self,
        name: &str,
        factory: impl Fn() -> P + Send + Sync + 'static,
    ) -> Stream<O> {
        self.stream.then(name, "keyed", move |index, down| {
            Box::new(OperatorStage::new(index, factory(), down))
        })
    }

    /// Keys and values as a plain stream, still partitioned.
    pub fn into_stream(self) -> Stream<(K, T)> {
        self.stream
    }
}

struct Straight;

impl<T> Route<T> for Straight {
    type Out = T;

    fn route(&mut self, records: Vec<Record<T>>, targets: &mut [Vec<Record<T>>]) -> Result<()> {
        targets[0] = records;
        Ok(())
    }
}

struct RoundRobin {
    next: usize,
}

impl<T> Route<T> for RoundRobin {
    type Out = T;

    fn route(&mut self, records: Vec<Record<T>>, targets: &mut [Vec<Record<T>>]) -> Result<()> {
        for record in records {
            targets[self.next].push(record);
            self.next = (self.next + 1) % targets.len();
        }
        Ok(())
    }
}

struct ByKey<F> {
    key: Arc<F>,
    bytes: Vec<u8>,
    max_parallelism: u32,
}

impl<K: Key, T, F: Fn(&T) -> K> Route<T> for ByKey<F> {
    type Out = (K, T);

    fn open(&mut self, _parallelism: u32, max_parallelism: u32) {
        self.max_parallelism = max_parallelism;
    }

    fn route(
        &mut self,
        records: Vec<Record<T>>,
        targets: &mut [Vec<Record<(K, T)>>],
    ) -> Result<()> {
        let parallelism = u32::try_from(targets.len()).expect("parallelism is a u32");
        for record in records {
            let key = (self.key)(&record.value);
            self.bytes.clear();
            key.encode(&mut self.bytes);
            let group = key_group(&self.bytes, self.max_parallelism);
            let target = subtask_of(group, parallelism, self.max_parallelism);
            targets[target as usize].push(Record {
                value: (key, record.value),
                timestamp: record.timestamp,
            });
        }
        Ok(())
    }
}

/// The subtasks that [`Stream::exchange`] can send to.
pub struct Targets<'a, U> {
    batches: &'a mut [Vec<Record<U>>],
    max_parallelism: u32,
}

impl<U> std::fmt::Debug for Targets<'_, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Targets({})", self.batches.len())
    }
}

impl<U> Targets<'_, U> {
    /// The number of subtasks.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        u32::try_from(self.batches.len()).expect("parallelism is a u32")
    }

    /// The number of key groups.
    #[must_use]
    pub fn max_parallelism(&self) -> u32 {
        self.max_parallelism
    }

    /// Sends to the subtask that owns `group`.
    pub fn send_to_group(&mut self, group: u32, record: Record<U>) {
        self.send_to_subtask(
            subtask_of(group, self.parallelism(), self.max_parallelism),
            record,
        );
    }

    /// Sends to `subtask`.
    ///
    /// # Panics
    ///
    /// If there is no such subtask.
    pub fn send_to_subtask(&mut self, subtask: u32, record: Record<U>) {
        self.batches[subtask as usize].push(record);
    }
}

struct Custom<F, U> {
    route: Arc<F>,
    max_parallelism: u32,
    out: std::marker::PhantomData<fn() -> U>,
}

impl<T, U, F: Fn(Record<T>, &mut Targets<'_, U>) -> Result<()>> Route<T> for Custom<F, U> {
    type Out = U;

    fn open(&mut self, _parallelism: u32, max_parallelism: u32) {
        self.max_parallelism = max_parallelism;
    }

    fn route(&mut self, records: Vec<Record<T>>, targets: &mut [Vec<Record<U>>]) -> Result<()> {
        let mut targets = Targets {
            batches: targets,
            max_parallelism: self.max_parallelism,
        };
        records
            .into_iter()
            .try_for_each(|record| (self.route)(record, &mut targets))
    }
}
