//! The front end of HTTP: a request is dispatched by the table of routes, read, asked and answered. It decides nothing.

mod answer;
mod forward_auth;
mod openapi;
pub(super) mod problem;
pub(super) mod request;
mod routes;

use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::Arc,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, http::HeaderValue, http::request::Parts};
use tidegate::Store;

use self::{
    answer::{Denial, Released, Renewed},
    problem::Problem,
    request::{AcquireBody, BatchBody, Bounds, HitBody, LeaseBody, RefundBody, SettleBody},
    routes::{Endpoint, Methods},
};
use super::{
    accept::Service,
    gate::{Gate, Named},
    recorder::FrontEnd,
    settings::Settings,
};
use crate::config::Limits;

type Body = Full<Bytes>;

/// What answers the requests of one connection.
pub(crate) struct Http<S: Store> {
    gate: Gate<S>,
    settings: Arc<ArcSwap<Settings>>,
    bounds: Bounds,
    max_batch: usize,
    peer: SocketAddr,
}

impl<S: Store> Http<S> {
    pub(crate) fn new(gate: Gate<S>, settings: Arc<ArcSwap<Settings>>, limits: &Limits, peer: SocketAddr) -> Self {
        let bounds = Bounds { max_body_bytes: limits.max_body_bytes.get(), time: *limits.header_timeout };
        Self { gate, settings, bounds, max_batch: limits.max_batch.get(), peer }
    }

    async fn respond(&self, head: Parts, body: Incoming) -> Result<Response<Body>, Problem> {
        const BY: FrontEnd = FrontEnd::Http;
        let route = routes::find(head.uri.path()).ok_or_else(Problem::not_found)?;
        if !route.methods.allow(&head.method) {
            return Err(Problem::method(route.methods.names()));
        }
        let bytes = match route.methods {
            Methods::Post | Methods::GetOrPost if head.method == Method::POST => {
                request::body(&head.headers, body, self.bounds).await?
            }
            _ => Bytes::new(),
        };
        let hit = || match head.method {
            Method::GET => request::query(head.uri.query().unwrap_or_default()),
            _ => request::json::<HitBody<'_>>(&bytes),
        };
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
                let RefundBody { receipt } = request::json(&bytes)?;
                (self.gate.refund(BY, receipt).await, Denial::Informs)
            }
            Endpoint::Settle => {
                let SettleBody { receipt, cost } = request::json(&bytes)?;
                (self.gate.settle(BY, receipt, cost.0).await, Denial::Informs)
            }
            Endpoint::Acquire => return self.acquire(&bytes).await,
            Endpoint::Renew => {
                let LeaseBody { attributes, lease } = request::json(&bytes)?;
                let held = self.gate.renew(&attributes.hit(Default::default()).lease(lease.as_bytes())).await?;
                return if held {
                    Ok(answer::json(&Renewed { held }))
                } else {
                    let detail = "The lease is not held: it has ended, and somebody else may have its place.";
                    Err(Problem::new(StatusCode::CONFLICT, detail))
                };
            }
            Endpoint::Release => {
                let LeaseBody { attributes, lease } = request::json(&bytes)?;
                let released = self.gate.release(&attributes.hit(Default::default()).lease(lease.as_bytes())).await?;
                return Ok(answer::json(&Released { released }));
            }
            Endpoint::Batch => return self.batch(&bytes).await,
            Endpoint::Auth => return Ok(not_stored(self.forward_auth(&head).await)),
            Endpoint::OpenApi => return Ok(openapi::response()),
        };
        let response = answer::decision(told, denial, None, self.settings.load().dialect);
        Ok(if head.method == Method::GET { not_stored(response) } else { response })
    }

    async fn batch(&self, bytes: &[u8]) -> Result<Response<Body>, Problem> {
        let BatchBody { hits } = request::json(bytes)?;
        if hits.len() > self.max_batch {
            return Err(Problem::of("hits", format!("too many hits; send {} at most", self.max_batch)));
        }
        let asked = hits.iter().map(|HitBody { attributes, cost }| self.gate.check(FrontEnd::Http, &attributes.hit(*cost)));
        Ok(answer::batch(join_all(asked).await))
    }

    async fn acquire(&self, bytes: &[u8]) -> Result<Response<Body>, Problem> {
        let AcquireBody { attributes, cost, lease } = request::json(bytes)?;
        let named = if lease.is_some() { Named::ByClient } else { Named::Here };
        let lease = lease.unwrap_or_else(|| unguessable().into());
        let told = self.gate.acquire(FrontEnd::Http, &attributes.hit(cost).lease(lease.as_bytes()), named).await;
        Ok(answer::decision(told, Denial::Refuses, Some(&lease), self.settings.load().dialect))
    }
}

impl<S: Store> Service for Http<S> {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let span = self.gate.traces().begin(&head, || routes::find(head.uri.path()).map_or("unknown", |route| route.path));
        let respond = async { self.respond(head, body).await.unwrap_or_else(|problem| problem.response()) };
        match span {
            None => respond.await,
            Some(span) => span.around(respond).await,
        }
    }
}

/// The same, for nobody to answer by another time.
fn not_stored(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A name that nobody else uses.
fn unguessable() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}
