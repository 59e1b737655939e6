//! The admin surface: looking at a running server and changing it, on a listener of its own. It has a limiter, unlike front ends, and
//! decides no hits.

mod access;
mod policies;
mod refusals;
mod routes;

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{ConfigError, Limiter, Outcome, Store};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::info;

pub(crate) use self::{access::Refusal, refusals::Refusals};
use self::{
    access::{Access, Role},
    routes::{Endpoint, Lost, Route},
};
use super::{
    condition::Condition,
    denials,
    http::{
        problem::Problem,
        request::{self, HitBody},
    },
    http1::{Head, Request, Response, Service},
    metrics::Gathered,
    note::{Note, harmless},
    policies::Policies,
    recorder::Recorder,
    tls,
};
use crate::{
    config::{Config, Fault, PolicyTable, Problem as ConfigProblem, Problems},
    log::AUDIT,
    reload::Reloads,
};

/// Policies may be many.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Who comes in, and how.
pub(crate) struct Entry {
    pub(crate) access: Access,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Entry {
    pub(crate) fn new(config: &Config) -> Result<Self, Problems> {
        // Who has made a configuration without reading it is held to this too.
        if let Some(Fault { key, message }) = config.admin_fault() {
            return Err(ConfigProblem::new(format!("{key}: {message}")).into());
        }
        Ok(Self { access: Access::new(&config.admin)?, tls: tls::acceptor(&config.admin)? })
    }
}

/// What all connections share.
pub(crate) struct Administration<S: Store> {
    pub(crate) access: Access,
    pub(crate) refusals: Refusals,
    pub(crate) policies: Arc<Policies<S>>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) condition: fn(&Limiter<S>) -> Condition,
    /// How often the configuration was read again, and when the one in force was.
    pub(crate) reloads: Box<dyn Fn() -> (Reloads, SystemTime) + Send + Sync>,
    /// Changes when the server is told to stop.
    pub(crate) stopping: watch::Receiver<()>,
}

/// What answers the requests of one connection.
pub(crate) struct Admin<S: Store> {
    pub(crate) shared: Arc<Administration<S>>,
    pub(crate) peer: SocketAddr,
}

/// Why a request goes nowhere.
enum Stopped {
    Lost(Lost),
    Refused(Refusal),
}

impl From<Stopped> for Problem {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Lost(Lost::Path) => Self::new(StatusCode::NOT_FOUND, "There is nothing here; see docs/admin.md."),
            Stopped::Lost(Lost::Method(allow)) => Self::method(allow),
            Stopped::Refused(refusal) => refusal.into(),
        }
    }
}

impl<S: Store> Admin<S> {
    /// Where a request goes, what follows the path, and who asks; before anything of its body is read.
    fn enter<'h>(&self, head: &Head<'h>) -> Result<(&'static Route, &'h str, Role), Stopped> {
        let access = &self.shared.access;
        let found = routes::find(head.method, head.path);
        // What there is not is told to those who may look.
        let needed = found.as_ref().map_or(Role::Read, |(route, _)| route.role);
        access.admit(head, needed).map_err(Stopped::Refused)?;
        let role = access.grant(head, needed).map_err(Stopped::Refused)?;
        let (route, name) = found.map_err(Stopped::Lost)?;
        Ok((route, name, role))
    }

    /// Takes note of who was refused.
    #[cold]
    fn note(&self, stopped: &Stopped) {
        if let Stopped::Refused(refusal) = *stopped {
            self.shared.recorder.metrics.refused(refusal);
            self.shared.refusals.tell(refusal, self.peer);
        }
    }

    async fn respond(&self, request: &Request<'_>, response: &mut Response) -> Result<(), Problem> {
        let Administration { policies, recorder, .. } = &*self.shared;
        let (route, name, role) = self.enter(&request.head).inspect_err(|stopped| self.note(stopped))?;
        let query = request.head.query;
        match route.endpoint {
            Endpoint::Health => text("ok\n", "text/plain", response),
            Endpoint::Readiness => self.readiness(response),
            Endpoint::Metrics => {
                let (reloads, since) = (self.shared.reloads)();
                let gathered = Gathered { reloads, since, store: self.condition() };
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                text(recorder.metrics.text(&gathered), kind, response);
            }
            Endpoint::Policies => json(&policies::told(&policies.tables()), response),
            Endpoint::Replace => {
                let tables = policies::read(request::body(request)?)?;
                let after = tables.clone();
                let before = policies.replace(tables).map_err(policies::wrong)?;
                self.audit_change(role, "the policies were replaced", &format!("{} policies", after.len()), [&before, &after]);
                json(&policies::told(&policies.tables()), response);
            }
            Endpoint::Change => {
                let [before, changed] = policies::change(policies, name, request::patch(request)?)?;
                self.audit_change(role, "a policy was changed", &changed.name, [&[before], std::slice::from_ref(&changed)]);
                json(&policies::shown(&changed), response);
            }
            Endpoint::Reset => {
                let HitBody { attributes, cost } = request::json(request::body(request)?)?;
                let told = S::told(policies.limiter().reset(attributes.hit(cost))).await;
                let decision =
                    told.inspect_err(|_| self.audit(role, "a key was to be reset, and the store has not said if it is", ""))?;
                let names: Vec<&str> = decision.outcomes().map(|outcome| outcome.policy()).collect();
                let what = if names.is_empty() { "no key was reset, as no policy applies" } else { "a key was reset" };
                self.audit(role, what, &names.join(", "));
                let key = |outcome: Outcome<'_>| {
                    let (key, remaining) = (outcome.key().to_string(), outcome.remaining());
                    json!({ "policy": outcome.policy(), "key": key, "limit": outcome.limit(), "remaining": remaining })
                };
                json(&json!({ "keys": decision.outcomes().map(key).collect::<Vec<_>>() }), response);
            }
            Endpoint::Inspect => json(&self.inspect(query).await?, response),
            Endpoint::Top => json(&self.top(query).await?, response),
            Endpoint::Denials => {
                let [n] = parameters(query, ["n"])?;
                let n = n.map_or(Ok(100), |n| number(n, denials::KEPT))?;
                self.denials(n, response);
            }
        }
        Ok(())
    }

    fn condition(&self) -> Condition {
        (self.shared.condition)(self.shared.policies.limiter())
    }

    /// A store that does not answer does not make a server unready: its policies say what is decided then. Nor does a snapshot that is
    /// not written.
    fn readiness(&self, response: &mut Response) {
        let is_stopping = self.shared.stopping.has_changed().unwrap_or(true);
        let Condition { redis, snapshots, .. } = self.condition();
        let mut told = json!({ "ready": !is_stopping, "store": "up" });
        if let Some(status) = redis.filter(|status| !status.is_up) {
            told["store"] = "degraded".into();
            told["trouble"] = status.trouble.as_deref().unwrap_or("no answer").into();
        }
        if let Some(snapshots) = snapshots {
            told["snapshot"] = match (snapshots.saved, snapshots.restored) {
                (Some(Err(_)), _) => "failing",
                (_, Err(_)) => "refused",
                _ => "ok",
            }
            .into();
        }
        json(&told, response);
        if is_stopping {
            response.status = StatusCode::SERVICE_UNAVAILABLE;
        }
    }

    async fn inspect(&self, query: &str) -> Result<Value, Problem> {
        let (named, rest): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.starts_with("policy="));
        // Names of policies need no escapes.
        let policy = match *named {
            [named] => &named["policy=".len()..],
            [] => return Err(Problem::of("policy", "name a policy: ?policy=NAME&ATTRIBUTE=VALUE")),
            _ => return Err(Problem::of("policy", TWICE)),
        };
        let rest = rest.join("&");
        let HitBody { attributes, cost } = request::query(&rest)?;
        let reply = self.shared.policies.limiter().inspect(policy, attributes.hit(cost)).map_err(unknown)?;
        let stored = S::told(reply).await?;
        let fields: serde_json::Map<String, Value> =
            stored.fields.into_iter().map(|(name, number)| (name, number.into())).collect();
        let entries: Vec<Value> = stored.entries.iter().map(|entry| json!({ "at_us": entry.at, "cost": entry.cost })).collect();
        Ok(json!({
            "policy": stored.policy,
            "key": stored.key,
            "algorithm": stored.algorithm.name(),
            "fields": fields,
            "entries": entries,
            "lasts_ms": stored.lasts.as_micros().div_ceil(1000) as u64,
        }))
    }

    async fn top(&self, query: &str) -> Result<Value, Problem> {
        const MOST: usize = 100;
        let [n, policy] = parameters(query, ["n", "policy"])?;
        let n = n.map_or(Ok(10), |n| number(n, MOST))?;
        let names = match policy {
            Some(name) => vec![name.to_owned()],
            None => self.shared.policies.tables().into_iter().map(|table| table.name).collect(),
        };
        let mut told = Vec::new();
        for name in names {
            let ranked = S::told(self.shared.policies.limiter().top(&name, n).map_err(unknown)?).await?;
            let keys: Vec<Value> = ranked.iter().map(|one| json!({ "key": one.key, "denied": one.denied })).collect();
            told.push(json!({ "policy": name, "keys": keys }));
        }
        Ok(json!({ "policies": told }))
    }

    fn denials(&self, n: usize, response: &mut Response) {
        let notes = self.shared.recorder.denials.latest(n);
        let denials: Vec<_> = notes.iter().map(Note::whole).collect();
        #[derive(Serialize)]
        struct Latest<T> {
            denials: T,
        }
        json(&Latest { denials }, response);
    }

    /// Says who has changed what. Nothing of a hit is in it.
    fn audit(&self, role: Role, what: &str, which: &str) {
        info!(target: AUDIT, peer = %self.peer, ?role, which, "{what}");
    }

    /// As [`audit`](Self::audit), and from what to what policies have changed.
    fn audit_change(&self, role: Role, what: &str, which: &str, [before, after]: [&[PolicyTable]; 2]) {
        let (from, to) = (policies::differences(before, after), policies::differences(after, before));
        info!(target: AUDIT, peer = %self.peer, ?role, which, from, to, "{what}");
    }
}

impl<S: Store> Service for Admin<S> {
    /// Who may not come in is told so, and what it sends is not kept; nor is what nobody reads, as only changes have a body.
    fn max_body_bytes(&self, head: &Head<'_>) -> Option<usize> {
        self.enter(head).is_ok_and(|(route, ..)| route.role == Role::Write).then_some(MAX_BODY_BYTES)
    }

    async fn answer(&self, request: &Request<'_>, response: &mut Response) {
        response.header("cache-control", "no-store");
        response.header("x-content-type-options", "nosniff");
        if let Err(problem) = self.respond(request, response).await {
            problem.put(response);
        }
    }
}

fn json(value: &impl Serialize, response: &mut Response) {
    text(harmless(value), "application/json", response);
}

fn text(body: impl AsRef<[u8]>, kind: &str, response: &mut Response) {
    response.kind(kind);
    response.body.extend_from_slice(body.as_ref());
}

fn unknown(error: ConfigError) -> Problem {
    match error {
        ConfigError::Unknown(_) => policies::unknown(),
        // What is left says what is missing.
        ConfigError::Policy { problem, .. } => Problem::of("query", problem),
        _ => Problem::of("policy", "not a policy"),
    }
}

/// What a query says of these names, each once. It says nothing else.
fn parameters<'q, const N: usize>(query: &'q str, names: [&str; N]) -> Result<[Option<&'q str>; N], Problem> {
    let mut said = [None; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let known = names.iter().position(|known| *known == name);
        let place = known.ok_or_else(|| Problem::of(name, format!("unknown; write {}", names.join(" or "))))?;
        if said[place].replace(value).is_some() {
            return Err(Problem::of(name, TWICE));
        }
    }
    Ok(said)
}

const TWICE: &str = "this is given twice; send it once";

fn number(text: &str, most: usize) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| Problem::of("n", format!("write a number from 1 to {most}")))
}
