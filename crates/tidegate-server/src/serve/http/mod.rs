//! The front end of HTTP: a request is dispatched by the table of routes, read, asked and answered. It decides nothing.

mod answer;
mod forward_auth;
mod openapi;
pub(super) mod problem;
pub(super) mod request;
mod routes;
pub(super) mod seal;

use std::{
    borrow::Cow,
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::Arc,
};

use futures_util::future::join_all;
use http::StatusCode;
use tidegate::{Hit, Receipt, Store};

use self::{
    answer::{Denial, Released, Renewed},
    problem::Problem,
    request::{AcquireBody, BatchBody, HitBody, LeaseBody, RefundBody, SettleBody},
    routes::{Endpoint, Methods},
    seal::Seal,
};
use super::{
    gate::Gate,
    http1::{Head, Request, Response, Service},
    recorder::FrontEnd,
    settings::InForce,
};
use crate::{config::Limits, object::Object};

/// What answers the requests of one connection.
pub(crate) struct Http<S: Store> {
    gate: Gate<S>,
    settings: Arc<InForce>,
    max_body_bytes: usize,
    max_batch: usize,
    seal: Seal,
    peer: SocketAddr,
}

impl<S: Store> Http<S> {
    pub(crate) fn new(gate: Gate<S>, settings: Arc<InForce>, limits: &Limits, seal: Seal, peer: SocketAddr) -> Self {
        let (max_body_bytes, max_batch) = (limits.max_body_bytes.get(), limits.max_batch.get());
        Self { gate, settings, max_body_bytes, max_batch, seal, peer }
    }

    fn receipt(&self, text: &str) -> Result<Receipt, Problem> {
        self.seal.open(text).map_err(|error| Problem::of("receipt", error))
    }

    async fn respond(&self, request: &Request<'_>, response: &mut Response) -> Result<(), Problem> {
        const BY: FrontEnd = FrontEnd::Http;
        let head = &request.head;
        let route = routes::find(head.path).ok_or_else(Problem::not_found)?;
        // Proxies hand on what browsers tell them, and the document is for anybody.
        if head.is_foreign && !matches!(route.endpoint, Endpoint::Auth | Endpoint::OpenApi) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "A page of another site asks, which is not for it to do."));
        }
        if !route.methods.allow(head.method) {
            return Err(Problem::method(route.methods.names()));
        }
        let is_get = head.method == "GET";
        if head.method == "POST" && !head.query.is_empty() && route.endpoint != Endpoint::Auth {
            return Err(Problem::of("query", "nobody reads this; send it in the body"));
        }
        let hit = || if is_get { request::query(head.query) } else { request::json::<HitBody<'_>>(request::body(request)?) };
        let (told, denial) = match route.endpoint {
            Endpoint::Check => {
                let HitBody { attributes, cost } = hit()?;
                (self.gate.check(BY, &attributes.hit(cost)).await, Denial::Refuses)
            }
            Endpoint::Peek => {
                let HitBody { attributes, cost } = hit()?;
                (self.gate.peek(BY, &attributes.hit(cost)).await, Denial::Informs)
            }
            Endpoint::Charge => {
                let HitBody { attributes, cost } = hit()?;
                (self.gate.charge(BY, &attributes.hit(cost)).await, Denial::Informs)
            }
            Endpoint::Refund => {
                let RefundBody { receipt } = request::json(request::body(request)?)?;
                (self.gate.refund(BY, self.receipt(&receipt)?).await, Denial::Informs)
            }
            Endpoint::Settle => {
                let SettleBody { receipt, cost } = request::json(request::body(request)?)?;
                (self.gate.settle(BY, self.receipt(&receipt)?, cost.0).await, Denial::Informs)
            }
            Endpoint::Acquire => return self.acquire(request, response).await,
            Endpoint::Renew => {
                let LeaseBody { attributes, lease } = request::json(request::body(request)?)?;
                let hit = attributes.hit(Default::default()).lease(lease.as_bytes());
                if !self.gate.gives_lease_to(&hit) {
                    return Err(Problem::of("attributes", "no policy of concurrency applies to these"));
                }
                let held = self.gate.renew(&hit).await?;
                if !held {
                    let detail =
                        "The lease is not held: it has ended, and somebody else may have its place, or its key is blocked.";
                    return Err(Problem::new(StatusCode::CONFLICT, detail));
                }
                answer::json(&Renewed { held }, response);
                return Ok(());
            }
            Endpoint::Release => {
                let LeaseBody { attributes, lease } = request::json(request::body(request)?)?;
                let released = self.gate.release(&attributes.hit(Default::default()).lease(lease.as_bytes())).await?;
                answer::json(&Released { released }, response);
                return Ok(());
            }
            Endpoint::Batch => return self.batch(request::body(request)?, response).await,
            Endpoint::Auth => {
                not_stored(response);
                return self.forward_auth(head, response).await;
            }
            Endpoint::OpenApi => {
                openapi::put(response);
                return Ok(());
            }
        };
        if is_get {
            not_stored(response);
        }
        answer::decision(told, denial, None, self.settings.load().dialect, &self.seal, response)
    }

    async fn batch(&self, bytes: &[u8], response: &mut Response) -> Result<(), Problem> {
        let BatchBody { hits } = request::json(bytes)?;
        if hits.len() > self.max_batch {
            return Err(Problem::of("hits", format!("too many hits; send {} at most", self.max_batch)));
        }
        let hits: Vec<Hit<'_>> = hits.iter().map(|Object(HitBody { attributes, cost })| attributes.hit(*cost)).collect();
        let asked = hits.iter().map(|hit| self.gate.check(FrontEnd::Http, hit));
        answer::batch(join_all(asked).await, &self.seal, response);
        Ok(())
    }

    async fn acquire(&self, request: &Request<'_>, response: &mut Response) -> Result<(), Problem> {
        let AcquireBody { attributes, cost, lease: named } = request::json(request::body(request)?)?;
        if cost.0 == 0 {
            return Err(Problem::of("cost", "what costs nothing takes no lease; send 1 at least"));
        }
        let lease = named.as_deref().map_or_else(|| Cow::from(unguessable()), Cow::from);
        let hit = attributes.hit(cost).lease(lease.as_bytes());
        let is_held = self.gate.gives_lease_to(&hit);
        let is_there = || !request.is_closed();
        let told = match named {
            Some(_) => self.gate.acquire(FrontEnd::Http, &hit).await,
            None => self.gate.acquire_unknown(FrontEnd::Http, &hit, is_there).await,
        };
        if named.is_none() && !is_there() && told.as_ref().is_ok_and(|decision| decision.is_allowed()) {
            return Err(Problem::new(StatusCode::CONFLICT, UNHEARD));
        }
        let lease = is_held.then_some(&*lease);
        answer::decision(told, Denial::Refuses, lease, self.settings.load().dialect, &self.seal, response)
    }
}

impl<S: Store> Service for Http<S> {
    /// A body that nobody reads is not waited for, nor is there one that is too large: a proxy may send along the one that it asks about.
    fn max_body_bytes(&self, head: &Head<'_>) -> Option<usize> {
        let takes_one = head.method == "POST" && routes::find(head.path).is_some_and(|route| route.methods != Methods::Any);
        takes_one.then_some(self.max_body_bytes)
    }

    async fn answer(&self, request: &Request<'_>, response: &mut Response) {
        let path = request.head.path;
        let span = self.gate.traces().begin(&request.head, || routes::find(path).map_or("unknown", |route| route.path));
        let respond = async {
            if let Err(problem) = self.respond(request, response).await {
                problem.put(response);
            }
            response
        };
        match span {
            None => drop(respond.await),
            Some(span) => span.around(respond).await,
        }
    }
}

/// Said to who has closed its side while it waited for a lease of which nobody else knows.
const UNHEARD: &str = "You have closed your side of the connection and may have gone, so the lease was given back; name the lease to have it \
    whether you hear of it or not.";

/// Nobody is to answer by it another time.
fn not_stored(response: &mut Response) {
    response.header("cache-control", "no-store");
}

/// A name that nobody else uses.
fn unguessable() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}
