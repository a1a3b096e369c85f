//! Scripted faults: which request meets what.
//!
//! A fault is armed by its first effect and counts the requests of its method and table from then
//! on. Several may meet one request; their effects are merged, the later one winning where they
//! contradict. A fault that can never fire again leaves the script by itself.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use prost_types::Any;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::{
    bigtable::{
        details::{error_info, retry_info, status_with},
        wire::Entry,
    },
    method::Method,
};

type Action = Arc<dyn Fn() + Send + Sync>;
type EntryPredicate = Arc<dyn Fn(usize, &Entry) -> bool + Send + Sync>;

/// Holds requests or answers back until a test opens it. Clones are one gate.
#[derive(Clone)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("open", &*self.0.borrow())
            .finish()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everything held, and everything to come, pass.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// How many requests or answers it holds now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.receiver_count()
    }

    pub(crate) async fn pass(&self) {
        let mut state = self.0.subscribe();
        // The sender is `self`, so it is not gone before the wait is.
        let _ = state.wait_for(|open| *open).await;
    }
}

/// When the connection or answer goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Before the request takes effect.
    Before,
    /// After it took effect.
    After,
}

/// Everything that a request meets.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) delay: Option<Duration>,
    pub(crate) refusal: Option<(Code, String)>,
    pub(crate) refusal_after: Option<(Code, String)>,
    pub(crate) details: Vec<Any>,
    pub(crate) silent: Option<Loss>,
    pub(crate) cut: Option<Loss>,
    pub(crate) reset: Option<h2::Reason>,
    pub(crate) entry_statuses: Vec<(EntryPredicate, Code)>,
    pub(crate) missing: Vec<usize>,
    pub(crate) break_after: Option<usize>,
    pub(crate) apply_unanswered: bool,
    pub(crate) rate_limit: Option<(f64, Duration)>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) trailers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) goaway: bool,
    pub(crate) actions: Vec<Action>,
    pub(crate) hold: Option<Gate>,
    pub(crate) hold_answer: Option<Gate>,
}

impl Plan {
    fn merge(&mut self, other: &Self) {
        fn over<T: Clone>(mine: &mut Option<T>, other: &Option<T>) {
            if other.is_some() {
                mine.clone_from(other);
            }
        }
        over(&mut self.delay, &other.delay);
        over(&mut self.refusal, &other.refusal);
        over(&mut self.refusal_after, &other.refusal_after);
        over(&mut self.silent, &other.silent);
        over(&mut self.cut, &other.cut);
        over(&mut self.reset, &other.reset);
        over(&mut self.break_after, &other.break_after);
        over(&mut self.rate_limit, &other.rate_limit);
        over(&mut self.hold, &other.hold);
        over(&mut self.hold_answer, &other.hold_answer);
        self.actions.extend_from_slice(&other.actions);
        self.details.extend_from_slice(&other.details);
        self.entry_statuses.extend_from_slice(&other.entry_statuses);
        self.missing.extend_from_slice(&other.missing);
        self.headers.extend_from_slice(&other.headers);
        self.trailers.extend_from_slice(&other.trailers);
        self.apply_unanswered |= other.apply_unanswered;
        self.goaway |= other.goaway;
    }

    /// The status to answer instead of serving, if one is scripted.
    pub(crate) fn refusal(&self) -> Option<Status> {
        self.status(self.refusal.as_ref())
    }

    /// The status to answer after the effect, if one is scripted.
    pub(crate) fn refusal_after(&self) -> Option<Status> {
        self.status(self.refusal_after.as_ref())
    }

    fn status(&self, scripted: Option<&(Code, String)>) -> Option<Status> {
        scripted.map(|(code, message)| status_with(*code, message, self.details.clone()))
    }

    /// What entry number `index` is answered instead of being applied.
    pub(crate) fn entry_status(&self, index: usize, entry: &Entry) -> Option<Code> {
        self.entry_statuses
            .iter()
            .find(|(predicate, _)| predicate(index, entry))
            .map(|(_, code)| *code)
    }
}

#[derive(Debug)]
pub(crate) enum Trigger {
    Nth(u64),
    EveryNth(u64),
    Next(u64),
    Always,
    Random {
        rng: fastrand::Rng,
        probability: f64,
    },
}

struct RuleState {
    trigger: Trigger,
    seen: u64,
    fired: u64,
    armed: bool,
    plan: Plan,
}

impl RuleState {
    fn meets(&mut self) -> bool {
        if !self.armed {
            return false;
        }
        self.seen += 1;
        let meets = match &mut self.trigger {
            Trigger::Nth(n) => self.seen == *n,
            Trigger::EveryNth(n) => self.seen.is_multiple_of(*n),
            Trigger::Next(n) => self.seen <= *n,
            Trigger::Always => true,
            Trigger::Random { rng, probability } => rng.f64() < *probability,
        };
        self.fired += u64::from(meets);
        meets
    }

    fn spent(&self) -> bool {
        match self.trigger {
            Trigger::Nth(n) | Trigger::Next(n) => self.seen >= n,
            Trigger::EveryNth(_) | Trigger::Always | Trigger::Random { .. } => false,
        }
    }
}

struct Rule {
    /// Full table name, or any.
    table: Option<String>,
    method: Method,
    state: Mutex<RuleState>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The faults of a simulation.
#[derive(Clone, Default)]
pub(crate) struct Script {
    rules: Arc<Mutex<Vec<Arc<Rule>>>>,
    /// Their number, so that a simulation without faults pays one load a request.
    count: Arc<AtomicUsize>,
}

impl Script {
    pub(crate) fn add(&self, table: Option<String>, method: Method, trigger: Trigger) -> Fault {
        let state = RuleState {
            trigger,
            seen: 0,
            fired: 0,
            armed: false,
            plan: Plan::default(),
        };
        let rule = Arc::new(Rule {
            table,
            method,
            state: Mutex::new(state),
        });
        let mut rules = lock(&self.rules);
        rules.push(rule.clone());
        self.count.store(rules.len(), Ordering::SeqCst);
        Fault {
            rule,
            script: self.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// What a request of `method` on `table` meets. Counts the request.
    pub(crate) fn meet(&self, table: Option<&str>, method: Method) -> Plan {
        let mut plan = Plan::default();
        if self.is_empty() {
            return plan;
        }
        let mut rules = lock(&self.rules);
        rules.retain(|rule| {
            let concerned = rule.method == method
                && rule.table.as_deref().is_none_or(|name| table == Some(name));
            if !concerned {
                return true;
            }
            let mut state = lock(&rule.state);
            if state.meets() {
                plan.merge(&state.plan);
            }
            !(state.armed && state.spent())
        });
        self.count.store(rules.len(), Ordering::SeqCst);
        plan
    }

    pub(crate) fn clear(&self) {
        let mut rules = lock(&self.rules);
        rules.clear();
        self.count.store(0, Ordering::SeqCst);
    }

    fn remove(&self, rule: &Arc<Rule>) {
        let mut rules = lock(&self.rules);
        rules.retain(|other| !Arc::ptr_eq(other, rule));
        self.count.store(rules.len(), Ordering::SeqCst);
    }
}

/// A scripted fault. Each method adds an effect; dropping the handle leaves the fault in place.
///
/// Effects before the request is served (`status`, `silent`, `cut_connection`, `reset_stream`)
/// mean that nothing took effect. Everything that is counted in entries speaks of `MutateRows`.
#[derive(Clone)]
pub struct Fault {
    rule: Arc<Rule>,
    script: Script,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.rule.state);
        f.debug_struct("Fault")
            .field("method", &self.rule.method)
            .field("trigger", &state.trigger)
            .field("fired", &state.fired)
            .finish_non_exhaustive()
    }
}

impl Fault {
    fn with(self, change: impl FnOnce(&mut Plan)) -> Self {
        let mut state = lock(&self.rule.state);
        change(&mut state.plan);
        state.armed = true;
        drop(state);
        self
    }

    /// Takes the fault out of the script.
    pub fn remove(&self) {
        self.script.remove(&self.rule);
    }

    /// How many requests met the fault.
    #[must_use]
    pub fn fired(&self) -> u64 {
        lock(&self.rule.state).fired
    }

    /// Waits before anything else happens.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|plan| plan.delay = Some(delay))
    }

    /// Does something when the request arrives, before it is served: what another client does
    /// between a reading and a writing request, for example.
    ///
    /// The action must not wait for the simulation, which waits for it.
    pub fn run(self, action: impl Fn() + Send + Sync + 'static) -> Self {
        self.with(|plan| plan.actions.push(Arc::new(action)))
    }

    /// Holds the request back, before it takes effect, until the gate opens.
    pub fn hold(self, gate: &Gate) -> Self {
        self.with(|plan| plan.hold = Some(gate.clone()))
    }

    /// Lets the request take effect and holds its answer back until the gate opens.
    pub fn hold_answer(self, gate: &Gate) -> Self {
        self.with(|plan| plan.hold_answer = Some(gate.clone()))
    }

    /// Answers `code` and applies nothing.
    pub fn status(self, code: Code) -> Self {
        self.status_with_message(code, "scripted fault")
    }

    /// As [`status`](Self::status), with a text.
    pub fn status_with_message(self, code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        self.with(|plan| plan.refusal = Some((code, message)))
    }

    /// Applies the request, then answers `code`.
    pub fn apply_then_status(self, code: Code) -> Self {
        self.with(|plan| plan.refusal_after = Some((code, "scripted fault".to_owned())))
    }

    /// Adds `google.rpc.RetryInfo` to the scripted status.
    pub fn retry_info(self, delay: Duration) -> Self {
        self.with(|plan| plan.details.push(retry_info(delay)))
    }

    /// Adds `google.rpc.ErrorInfo` to the scripted status.
    pub fn error_info(
        self,
        reason: &str,
        metadata: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let info = error_info(reason, metadata);
        self.with(|plan| plan.details.push(info))
    }

    /// Never answers; the stream stays open until the client leaves. Nothing is applied.
    pub fn silent(self) -> Self {
        self.with(|plan| plan.silent = Some(Loss::Before))
    }

    /// Applies the request and never answers.
    pub fn apply_then_stay_silent(self) -> Self {
        self.with(|plan| plan.silent = Some(Loss::After))
    }

    /// Closes the TCP connection, and with it every other stream on it. Nothing is applied.
    pub fn cut_connection(self) -> Self {
        self.with(|plan| plan.cut = Some(Loss::Before))
    }

    /// Applies the request, then closes the TCP connection instead of answering.
    pub fn apply_then_lose_answer(self) -> Self {
        self.with(|plan| plan.cut = Some(Loss::After))
    }

    /// Resets the stream with `INTERNAL_ERROR`. Nothing is applied.
    pub fn reset_stream(self) -> Self {
        self.with(|plan| plan.reset = Some(h2::Reason::INTERNAL_ERROR))
    }

    /// Resets the stream with `REFUSED_STREAM`: the server says that it processed nothing.
    pub fn refuse_stream(self) -> Self {
        self.with(|plan| plan.reset = Some(h2::Reason::REFUSED_STREAM))
    }

    /// Answers `code` for the entries at these positions, which are not applied; serves the rest.
    pub fn entry_status(self, entries: impl IntoIterator<Item = usize>, code: Code) -> Self {
        let entries: Vec<usize> = entries.into_iter().collect();
        self.entry_status_where(move |index, _| entries.contains(&index), code)
    }

    /// Answers `code` for the entries that `predicate` picks by position and content, which are
    /// not applied; serves the rest.
    pub fn entry_status_where(
        self,
        predicate: impl Fn(usize, &Entry) -> bool + Send + Sync + 'static,
        code: Code,
    ) -> Self {
        self.with(|plan| plan.entry_statuses.push((Arc::new(predicate), code)))
    }

    /// Leaves the entries at these positions out of an otherwise successful answer, unapplied.
    pub fn missing_entries(self, entries: impl IntoIterator<Item = usize>) -> Self {
        self.with(|plan| plan.missing.extend(entries))
    }

    /// Ends the stream after that many answers: entries of `MutateRows`, chunks of `ReadRows`
    /// (possibly inside a row), keys of `SampleRowKeys`. What follows is not applied.
    ///
    /// The end is `UNAVAILABLE`, or the scripted status, reset or cut connection.
    pub fn break_after(self, answers: usize) -> Self {
        self.with(|plan| plan.break_after = Some(answers))
    }

    /// Applies also what [`missing_entries`](Self::missing_entries) and
    /// [`break_after`](Self::break_after) leave unanswered.
    pub fn apply_unanswered(self) -> Self {
        self.with(|plan| plan.apply_unanswered = true)
    }

    /// Adds `RateLimitInfo` to the first message of a `MutateRows` answer.
    pub fn rate_limit(self, factor: f64, period: Duration) -> Self {
        self.with(|plan| plan.rate_limit = Some((factor, period)))
    }

    /// Sends a routing cookie with the status: trailer `x-goog-cbt-cookie-` + `name`.
    ///
    /// # Panics
    ///
    /// If name or value cannot stand in a header.
    pub fn cookie(self, name: &str, value: &str) -> Self {
        let cookie = cookie(name, value);
        self.with(|plan| plan.trailers.push(cookie))
    }

    /// Sends a routing cookie ahead of the answer, as a header instead of a trailer.
    ///
    /// # Panics
    ///
    /// If name or value cannot stand in a header.
    pub fn header_cookie(self, name: &str, value: &str) -> Self {
        let cookie = cookie(name, value);
        self.with(|plan| plan.headers.push(cookie))
    }

    /// Recycles the connection gracefully (`GOAWAY`) when the request arrives, and serves it.
    pub fn goaway(self) -> Self {
        self.with(|plan| plan.goaway = true)
    }
}

pub(crate) const COOKIE_PREFIX: &str = "x-goog-cbt-cookie-";

fn cookie(name: &str, value: &str) -> (HeaderName, HeaderValue) {
    let name = format!("{COOKIE_PREFIX}{name}").to_ascii_lowercase();
    (
        name.parse()
            .expect("a cookie name that can stand in a header"),
        value
            .parse()
            .expect("a cookie value that can stand in a header"),
    )
}

#[cfg(test)]
mod tests;
