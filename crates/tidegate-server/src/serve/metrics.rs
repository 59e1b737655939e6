//! What is counted, and how Prometheus is told. Labels come from the configuration and from this program, never from a hit; their
//! handles are made once. Names are frozen: `docs/metrics.md` lists them, and a test compares.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use http::StatusCode;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use tidegate::{Decision, Outcome, SnapshotStatus, Source, Status, StoreError, Unanswered};

use super::{
    admin::Refusal,
    condition::Condition,
    http1::{Head, Request, Response, Service},
    recorder::FrontEnd,
};
use crate::{config::PolicyTable, reload::Reloads};

type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// What became of a hit.
const VERDICTS: [&str; 3] = ["allowed", "denied", "failed"];
/// What a policy answered, or would have.
const ANSWERS: [&str; 4] = ["allowed", "denied", "would-allow", "would-deny"];
const SOURCES: [Source; 4] = [Source::Store, Source::Overflow, Source::DenyCache, Source::Fallback];
const ERRORS: [&str; 4] = ["timeout", "down", "full", "refused"];

/// Which of them.
fn kind(error: &StoreError) -> usize {
    match error {
        StoreError::Timeout => 0,
        StoreError::Down => 1,
        StoreError::Full => 2,
        _ => 3,
    }
}

/// The name of an error, in logs too.
pub(crate) fn error(error: &StoreError) -> &'static str {
    ERRORS[kind(error)]
}

/// What is answered; those that are answered most are first.
const STATUSES: [u16; 13] = [200, 429, 403, 503, 400, 401, 404, 405, 408, 409, 413, 415, 431];
/// Seconds. Most answers take less than a millisecond, and a deadline is 15 unless set.
const LATENCIES: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 1.0];

pub(crate) struct Metrics {
    registry: Registry,
    /// By front end and verdict.
    decisions: Vec<[Counter; VERDICTS.len()]>,
    /// By policy.
    outcomes: ArcSwap<Known>,
    all_outcomes: Family<Labels<3>, Counter>,
    /// Hits that no policy had a word on, by front end.
    unmatched: [Counter; FrontEnd::ALL.len()],
    errors: [Counter; ERRORS.len()],
    pub(crate) http: Listening,
    pub(crate) admin: Listening,
    /// By reason.
    refused: [Counter; Refusal::ALL.len()],
    store_seconds: Histogram,
    pub(crate) log_dropped: Counter,
}

/// What is counted of a listener.
#[derive(Clone)]
pub(crate) struct Listening {
    open: Gauge,
    /// Connections for which there was no room.
    pub(crate) refused: Counter,
    /// By status.
    answers: Arc<[Counter; STATUSES.len()]>,
}

/// The counters of policies, by their names; sorted, which is a shorter way to one of a few than a hash that nobody can foresee.
type Known = Vec<(String, Arc<Answers>)>;

/// By answer and source.
type Answers = [[Counter; SOURCES.len()]; ANSWERS.len()];

/// What others count, as of now.
pub(crate) struct Gathered {
    pub(crate) reloads: Reloads,
    /// When the configuration in force was read.
    pub(crate) since: SystemTime,
    pub(crate) store: Condition,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        registry.register("build", "The version that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let decisions = Family::<Labels<2>, Counter>::default();
        registry.register("decisions", "Hits that were decided, by front end and verdict", decisions.clone());
        let outcomes = Family::default();
        registry.register("outcomes", "What policies answered to hits, by policy, verdict and source", outcomes.clone());
        let errors = Family::<Labels<1>, Counter>::default();
        registry.register("store_errors", "Hits that were not decided because the store did not answer", errors.clone());
        let unmatched = Family::<Labels<1>, Counter>::default();
        registry.register("unmatched", "Hits that no policy applied to, by front end", unmatched.clone());
        let connections = Family::<Labels<1>, Gauge>::default();
        registry.register("connections", "Connections that are open, by listener", connections.clone());
        let full = Family::<Labels<1>, Counter>::default();
        registry.register("connections_refused", "Connections for which there was no room, by listener", full.clone());
        let answers = Family::<Labels<2>, Counter>::default();
        registry.register("http_responses", "Answers over HTTP, by listener and status", answers.clone());
        let listening = |name: &'static str| {
            let listener = || ("listener", Cow::Borrowed(name));
            let status = |status: u16| answers.get_or_create_owned(&[listener(), ("status", status.to_string().into())]);
            Listening {
                open: connections.get_or_create_owned(&[listener()]),
                refused: full.get_or_create_owned(&[listener()]),
                answers: Arc::new(STATUSES.map(status)),
            }
        };
        let refused = Family::<Labels<1>, Counter>::default();
        registry.register("admin_refused", "Requests to the admin surface that were refused, by reason", refused.clone());
        let store_seconds = Histogram::new(LATENCIES);
        registry.register("decision_duration_seconds", "How long decisions take on Redis", store_seconds.clone());
        let log_dropped = Counter::default();
        registry.register("decision_log_dropped", "Lines of the decision log that were not written", log_dropped.clone());
        let by_verdict = |front_end: FrontEnd| {
            VERDICTS.map(|verdict| {
                decisions.get_or_create_owned(&[("front_end", front_end.name().into()), ("verdict", verdict.into())])
            })
        };
        Self {
            decisions: FrontEnd::ALL.map(by_verdict).into(),
            outcomes: ArcSwap::default(),
            all_outcomes: outcomes,
            unmatched: FrontEnd::ALL.map(|front_end| unmatched.get_or_create_owned(&[("front_end", front_end.name().into())])),
            errors: ERRORS.map(|error| errors.get_or_create_owned(&[("error", error.into())])),
            http: listening("http"),
            admin: listening("admin"),
            refused: Refusal::ALL.map(|refusal| refused.get_or_create_owned(&[("reason", refusal.name().into())])),
            store_seconds,
            log_dropped,
            registry,
        }
    }

    /// Has counters ready for these policies, before they come into force.
    pub(crate) fn know(&self, policies: &[PolicyTable]) {
        let mut known = Known::clone(&self.outcomes.load());
        for PolicyTable { name, .. } in policies {
            if let Err(place) = place(&known, name.as_bytes()) {
                let answers = labels(name).map(|answer| answer.map(|labels| self.all_outcomes.get_or_create_owned(&labels)));
                known.insert(place, (name.clone(), Arc::new(answers)));
            }
        }
        self.outcomes.store(Arc::new(known));
    }

    /// Forgets all other policies, so that their labels are not kept for ever.
    pub(crate) fn forget_others(&self, policies: &[PolicyTable]) {
        let mut known = Known::clone(&self.outcomes.load());
        known.retain(|(name, _)| {
            let stays = policies.iter().any(|table| table.name == *name);
            if !stays {
                for labels in labels(name).iter().flatten() {
                    self.all_outcomes.remove(labels);
                }
            }
            stays
        });
        self.outcomes.store(Arc::new(known));
    }

    #[inline]
    pub(crate) fn decided(&self, front_end: FrontEnd, told: &Result<Decision, StoreError>) {
        let verdicts = &self.decisions[front_end as usize];
        match told {
            Ok(decision) => {
                verdicts[usize::from(!decision.is_allowed())].inc();
                let known = self.outcomes.load();
                let mut is_matched = false;
                for outcome in decision.outcomes() {
                    count(&known, &outcome);
                    is_matched = true;
                }
                if !is_matched {
                    self.unmatched[front_end as usize].inc();
                }
            }
            Err(error) => {
                verdicts[2].inc();
                self.errors[kind(error)].inc();
            }
        }
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refused[refusal as usize].inc();
    }

    pub(crate) fn took(&self, duration: Duration) {
        self.store_seconds.observe(duration.as_secs_f64());
    }

    /// How many hits were decided so far, by verdict.
    pub(crate) fn totals(&self) -> [u64; VERDICTS.len()] {
        std::array::from_fn(|verdict| self.decisions.iter().map(|verdicts| verdicts[verdict].get()).sum())
    }

    /// The text that Prometheus reads (OpenMetrics).
    pub(crate) fn text(&self, gathered: &Gathered) -> String {
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &gathered.registry()))
            .and_then(|()| encode_eof(&mut text));
        written.expect("into memory");
        text
    }
}

impl Listening {
    /// Counts the connection for as long as what answers it lives, and its answers.
    pub(crate) fn connected<V>(&self, service: V) -> Connected<V> {
        self.open.inc();
        Connected { service, listening: self.clone() }
    }
}

fn labels(policy: &str) -> [[Labels<3>; SOURCES.len()]; ANSWERS.len()] {
    ANSWERS.map(|verdict| {
        SOURCES
            .map(|source| [("policy", policy.to_owned().into()), ("verdict", verdict.into()), ("source", source.name().into())])
    })
}

/// Where a policy's counters are, or would be.
fn place(known: &Known, name: &[u8]) -> Result<usize, usize> {
    known.binary_search_by(|(other, _)| other.as_bytes().cmp(name))
}

/// One of a policy that has just been removed is not counted.
fn count(known: &Known, outcome: &Outcome<'_>) {
    let answer = usize::from(outcome.is_shadow()) * 2 + usize::from(!outcome.is_allowed());
    let source = SOURCES.iter().position(|source| *source == outcome.source());
    if let (Ok(place), Some(source)) = (place(known, outcome.policy_bytes()), source) {
        known[place].1[answer][source].inc();
    }
}

impl Gathered {
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("tidegate");
        let counter = |count: u64| {
            let counter: Counter = Counter::default();
            counter.inc_by(count);
            counter
        };
        let reloads = Family::<Labels<1>, Counter>::default();
        for (result, count) in [("ok", self.reloads.ok), ("failed", self.reloads.failed)] {
            reloads.get_or_create(&[("result", result.into())]).inc_by(count);
        }
        registry.register("config_reloads", "How often the configuration was read again", reloads);
        registry.register("config_timestamp_seconds", "When the configuration in force was read", epoch(self.since));
        let up: Gauge = Gauge::default();
        let Condition { redis, snapshots, keys } = &self.store;
        up.set(i64::from(redis.as_ref().is_none_or(|status| status.is_up)));
        registry.register("store_up", "Whether the store answers", up);
        let of = |field: fn(&Status) -> u64| counter(redis.as_ref().map_or(0, field));
        registry.register("store_connects", "Connections made to Redis", of(|status| status.connects));
        registry.register("store_calls", "Calls of Redis", of(|status| status.calls));
        registry.register("store_hits", "Hits in these calls", of(|status| status.hits));
        registry.register("store_cached", "Hits that the deny cache answered", of(|status| status.cached));
        registry.register(
            "store_fallbacks",
            "Hits that Redis did not answer and policies decided here",
            of(|status| status.fallbacks),
        );
        let unanswered = Family::<Labels<1>, Counter>::default();
        let Unanswered { timeout, down, full, refused, .. } = redis.as_ref().map(|status| status.unanswered).unwrap_or_default();
        for (error, count) in ERRORS.into_iter().zip([timeout, down, full, refused]) {
            unanswered.get_or_create(&[("error", error.into())]).inc_by(count);
        }
        registry.register("store_unanswered", "Hits that Redis did not answer, whoever decided them, by why", unanswered);
        let held = Family::<Labels<1>, Gauge>::default();
        for (policy, count) in keys {
            held.get_or_create(&[("policy", policy.clone().into())]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        registry.register("keys", "Keys that are held in memory, by policy", held);
        if let Some(SnapshotStatus { failures, newest, .. }) = snapshots {
            registry.register("snapshot_failures", "Snapshots that were not written", counter(*failures));
            if let Some(newest) = newest {
                registry.register("snapshot_timestamp_seconds", "When the newest snapshot was made", epoch(newest.at));
            }
        }
        registry
    }
}

/// A time as Prometheus has it: in seconds since 1970.
fn epoch(time: SystemTime) -> Gauge<f64, AtomicU64> {
    let gauge = Gauge::default();
    gauge.set(time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    gauge
}

/// What answers the requests of a connection that is counted.
pub(crate) struct Connected<V> {
    service: V,
    listening: Listening,
}

impl<V> Drop for Connected<V> {
    fn drop(&mut self) {
        self.listening.open.dec();
    }
}

impl<V: Service> Service for Connected<V> {
    fn max_body_bytes(&self, head: &Head<'_>) -> Option<usize> {
        self.service.max_body_bytes(head)
    }

    fn answer(&self, request: &Request<'_>, response: &mut Response) -> impl Future<Output = ()> + Send {
        self.service.answer(request, response)
    }

    fn answered(&self, status: StatusCode) {
        let place = STATUSES.iter().position(|known| *known == status.as_u16());
        debug_assert!(place.is_some(), "{status} is not among STATUSES");
        if let Some(place) = place {
            self.listening.answers[place].inc();
        }
    }
}
