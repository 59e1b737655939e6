//! The admin surface: looking at a running server and changing it, on a listener of its own. It has a limiter, unlike front ends, and
//! decides no hits.

mod access;
mod policies;
mod routes;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::Incoming,
    header,
    http::{HeaderValue, request::Parts},
};
use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{ConfigError, Outcome, Status, Store};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::info;

use self::{
    access::{Access, Role},
    routes::{Endpoint, Lost},
};
use super::{
    accept::Service,
    denials,
    http::{
        problem::Problem,
        request::{self, Bounds, HitBody},
    },
    metrics::Gathered,
    note::harmless,
    policies::Policies,
    recorder::Recorder,
    tls,
};
use crate::{
    config::{Config, Fault, Problem as ConfigProblem, Problems},
    log::AUDIT,
    reload::Reloads,
};

type Body = Full<Bytes>;

/// Policies may be many.
const MAX_BODY_BYTES: usize = 1 << 20;

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
    pub(crate) policies: Arc<Policies<S>>,
    pub(crate) recorder: Arc<Recorder>,
    /// How the store is; nothing where it is memory.
    pub(crate) store: fn(&S) -> Option<Status>,
    pub(crate) reloads: Box<dyn Fn() -> Reloads + Send + Sync>,
    /// Changes when the server is told to stop.
    pub(crate) stopping: watch::Receiver<()>,
    /// How long a client may take to send a body.
    pub(crate) patience: Duration,
}

/// What answers the requests of one connection.
pub(crate) struct Admin<S: Store> {
    pub(crate) shared: Arc<Administration<S>>,
    pub(crate) peer: SocketAddr,
}

impl<S: Store> Admin<S> {
    async fn respond(&self, head: &Parts, body: Incoming) -> Result<Response<Body>, Problem> {
        let Administration { access, policies, recorder, .. } = &*self.shared;
        access.admit(&head.headers)?;
        let (route, name) = routes::find(&head.method, head.uri.path()).map_err(|lost| match lost {
            Lost::Path => Problem::new(StatusCode::NOT_FOUND, "There is nothing here; see docs/admin.md."),
            Lost::Method(allow) => Problem::method(allow),
        })?;
        let role = access.grant(&head.headers, route.role)?;
        let query = head.uri.query().unwrap_or_default();
        match route.endpoint {
            Endpoint::Health => Ok(text("ok\n", "text/plain")),
            Endpoint::Readiness => Ok(self.readiness()),
            Endpoint::Metrics => {
                let gathered = Gathered { reloads: (self.shared.reloads)(), store: self.store() };
                Ok(text(recorder.metrics.text(&gathered), "application/openmetrics-text; version=1.0.0; charset=utf-8"))
            }
            Endpoint::Policies => Ok(json(&policies::told(&policies.tables()))),
            Endpoint::Replace => {
                let tables = policies::read(&self.body(&head.headers, body).await?)?;
                let count = tables.len();
                policies.replace(tables).map_err(policies::wrong)?;
                self.audit(role, "the policies were replaced", &format!("{count} policies"));
                Ok(json(&policies::told(&policies.tables())))
            }
            Endpoint::Change => {
                let bytes = self.body(&head.headers, body).await?;
                let changed = policies::change(policies, name, &bytes)?;
                self.audit(role, "a policy was changed", &changed.name);
                Ok(json(&policies::shown(&changed)))
            }
            Endpoint::Reset => {
                let bytes = self.body(&head.headers, body).await?;
                let HitBody { attributes, cost } = request::json(&bytes)?;
                let decision = S::told(policies.limiter().reset(attributes.hit(cost))).await?;
                let names: Vec<&str> = decision.outcomes().map(|outcome| outcome.policy()).collect();
                self.audit(role, "a key was reset", &names.join(", "));
                let key = |outcome: Outcome<'_>| {
                    let (key, remaining) = (outcome.key().to_string(), outcome.remaining());
                    json!({ "policy": outcome.policy(), "key": key, "limit": outcome.limit(), "remaining": remaining })
                };
                Ok(json(&json!({ "keys": decision.outcomes().map(key).collect::<Vec<_>>() })))
            }
            Endpoint::Inspect => self.inspect(query).await,
            Endpoint::Top => self.top(query).await,
            Endpoint::Denials => Ok(self.denials(parameter(query, "n").map_or(Ok(100), |n| number(n, denials::KEPT))?)),
        }
    }

    async fn body(&self, headers: &HeaderMap, body: Incoming) -> Result<Bytes, Problem> {
        request::body(headers, body, Bounds { max_body_bytes: MAX_BODY_BYTES, time: self.shared.patience }).await
    }

    fn store(&self) -> Option<Status> {
        (self.shared.store)(self.shared.policies.limiter().store())
    }

    /// A store that does not answer does not make a server unready: its policies say what is decided then.
    fn readiness(&self) -> Response<Body> {
        let is_stopping = self.shared.stopping.has_changed().unwrap_or(true);
        let store = if self.store().is_none_or(|status| status.is_up) { "up" } else { "degraded" };
        let mut response = json(&json!({ "ready": !is_stopping, "store": store }));
        if is_stopping {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    async fn inspect(&self, query: &str) -> Result<Response<Body>, Problem> {
        let policy =
            parameter(query, "policy").ok_or_else(|| Problem::of("policy", "name a policy: ?policy=NAME&ATTRIBUTE=VALUE"))?;
        let rest = without(query, "policy");
        let HitBody { attributes, cost } = request::query(&rest)?;
        let reply = self.shared.policies.limiter().inspect(policy, attributes.hit(cost)).map_err(unknown)?;
        let stored = S::told(reply).await?;
        let fields: serde_json::Map<String, Value> =
            stored.fields.into_iter().map(|(name, number)| (name, number.into())).collect();
        let entries: Vec<Value> = stored.entries.iter().map(|entry| json!({ "at_us": entry.at, "cost": entry.cost })).collect();
        Ok(json(&json!({
            "policy": stored.policy,
            "key": stored.key,
            "algorithm": stored.algorithm.name(),
            "fields": fields,
            "entries": entries,
            "lasts_ms": stored.lasts.as_micros().div_ceil(1000) as u64,
        })))
    }

    async fn top(&self, query: &str) -> Result<Response<Body>, Problem> {
        const MOST: usize = 100;
        let n = parameter(query, "n").map_or(Ok(10), |n| number(n, MOST))?;
        let names = match parameter(query, "policy") {
            Some(name) => vec![name.to_owned()],
            None => self.shared.policies.tables().into_iter().map(|table| table.name).collect(),
        };
        let mut told = Vec::new();
        for name in names {
            let ranked = S::told(self.shared.policies.limiter().top(&name, n).map_err(unknown)?).await?;
            let keys: Vec<Value> = ranked.iter().map(|one| json!({ "key": one.key, "denied": one.denied })).collect();
            told.push(json!({ "policy": name, "keys": keys }));
        }
        Ok(json(&json!({ "policies": told })))
    }

    fn denials(&self, n: usize) -> Response<Body> {
        let tables = self.shared.policies.tables();
        let notes = self.shared.recorder.denials.latest(n);
        let attributes = |name| tables.iter().find(|table| Some(table.name.as_str()) == name).map(|table| table.key.clone());
        let denials: Vec<_> = notes.iter().map(|note| note.told(|key| key, attributes(note.policy()))).collect();
        #[derive(Serialize)]
        struct Latest<T> {
            denials: T,
        }
        json(&Latest { denials })
    }

    /// Says who has changed what. Nothing of a hit is in it.
    fn audit(&self, role: Role, what: &str, which: &str) {
        info!(target: AUDIT, peer = %self.peer, ?role, which, "{what}");
    }
}

impl<S: Store> Service for Admin<S> {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let mut response = self.respond(&head, body).await.unwrap_or_else(|problem| problem.response());
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

fn json(value: &impl Serialize) -> Response<Body> {
    text(harmless(value), "application/json")
}

fn text(body: impl Into<Bytes>, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(Full::from(body.into()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn unknown(error: ConfigError) -> Problem {
    match error {
        ConfigError::Unknown(_) => Problem::new(StatusCode::NOT_FOUND, "There is no such policy; GET /v1/policies lists them."),
        // What is left says what is missing.
        ConfigError::Policy { problem, .. } => Problem::of("query", problem),
        _ => Problem::of("policy", "not a policy"),
    }
}

/// What a query says of `name`. Names of policies and numbers need no escapes.
fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(known, _)| *known == name).map(|(_, value)| value))
}

fn without(query: &str, name: &str) -> String {
    let others: Vec<&str> = query.split('&').filter(|pair| pair.split('=').next() != Some(name)).collect();
    others.join("&")
}

fn number(text: &str, most: usize) -> Result<usize, Problem> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| Problem::of("n", format!("write a number from 1 to {most}")))
}
