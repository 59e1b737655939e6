//! Tidegate for HTTP: a [tower](https://docs.rs/tower) layer for axum, tonic and hyper, and what any other front end needs of HTTP:
//! [headers](Dialect), [problem+json](Refusal) and [client addresses behind proxies](Proxies).
//!
//! # Three lines
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use axum::{Router, routing::get};
//! use tidegate::{Limiter, Quota};
//! use tidegate_tower::{RateLimitLayer, client_ip};
//!
//! # async fn example(listener: tokio::net::TcpListener) -> std::io::Result<()> {
//! let limiter = Limiter::in_memory(Quota::per_minute(100));
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::new(limiter).by(client_ip()));
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! Every response tells what is left (`RateLimit`, `RateLimit-Policy`). Who is denied gets a 429 with `Retry-After` and a body of
//! problem+json, and the service does not see the request. Handlers find the [`Decision`](tidegate::Decision) in the request's extensions,
//! unless it is [left out](RateLimit::without_extension).
//!
//! # Several policies
//!
//! A policy is keyed by attributes; each has a [`Fact`] that it comes from. All policies that apply admit a request, or none is charged.
//!
//! ```
//! use tidegate::{Limiter, Policy, Quota};
//! use tidegate_tower::{Proxies, RateLimitLayer, client_ip_behind, extension, route};
//!
//! #[derive(Clone)]
//! struct User(String); // put into the extensions by authentication
//!
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("per-user", Quota::per_minute(100)).key(["user"]))
//!     .policy(Policy::new("per-address", Quota::per_minute(1_000)).key(["ip", "route"]))
//!     .build()?; // `.store(Redis::new(url)?)` before it is all that changes for many machines
//! let layer = RateLimitLayer::new(limiter)
//!     .key("user", extension(|user: &User| Some(user.0.clone())))
//!     .key("ip", client_ip_behind(Proxies::networks(["10.0.0.0/8"])?))
//!     .key("route", route())
//!     .skip_if(|request| request.uri().path() == "/health");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A policy does not apply to requests that lack one of its attributes; [`require`](RateLimit::require) refuses them.
//!
//! # By the response
//!
//! [`charge_if`](RateLimit::charge_if) counts only what was answered so: failed logins, or all but a 5xx.
//! [`settle_with`](RateLimit::settle_with) corrects an estimate to what the response says, and
//! [`settle_by_handler`](RateLimit::settle_by_handler) to what the handler has said until the body's end. Requests are charged before
//! they run, so that none slips by while others are under way.
//!
//! ```
//! use tidegate::{Limiter, Quota};
//! use tidegate_tower::{RateLimitLayer, header};
//!
//! let tokens = Limiter::in_memory(Quota::per_minute(100_000));
//! let layer = RateLimitLayer::new(tokens)
//!     .by(header("x-tenant"))
//!     .cost(|_| 4_000) // the estimate
//!     .settle_with(|response| response.headers.get("x-tokens-used")?.to_str().ok()?.parse().ok());
//! ```
//!
//! # How many at once
//!
//! Leases of [`Policy::concurrency`](tidegate::Policy::concurrency) are held until the body of the response has ended or the client has
//! gone, and renewed until then, which takes tokio's timer.
//!
//! # What stays charged
//!
//! | | leases | `charge_if` | any other charge |
//! |---|---|---|---|
//! | denied | none | nothing | nothing |
//! | the client goes while the limiter is asked | released | given back | given back |
//! | the service fails or panics, or the client goes before there is a response | released | given back | stays, or is what the handler has said: the work was begun |
//! | there is a response | released when its body ends | as it says | stays, or is settled |
//!
//! On a store that is elsewhere, what is given back after a request has gone is done by a task, which tries again for some seconds.
//!
//! # When the store does not answer
//!
//! Each policy decides as its [`OnStoreError`](tidegate::OnStoreError) says. Where that is an error, the response is a 503.
//!
//! # gRPC
//!
//! With the feature `grpc`, requests of `application/grpc` are denied with `RESOURCE_EXHAUSTED`, and `google.rpc.RetryInfo` tells clients
//! when to come back.
//!
//! # Other services
//!
//! Services that answer with another body than axum's or tonic's take the layer that [`any_body`](RateLimit::any_body) makes of it.
//!
//! # Other frameworks
//!
//! [`RateLimit`] knows no service and no body: a middleware for a framework of other types implements [`Http`] and [`Request`], and calls
//! [`gather`](RateLimit::gather), [`ask`](RateLimit::ask), [`admit`](RateLimit::admit) and [`answered`](RateLimit::answered), in this order.
//! `tidegate-actix` is one, for actix-web.

mod address;
mod body;
mod fields;
#[cfg(feature = "grpc")]
mod grpc;
mod headers;
mod key;
mod problem;
mod service;
mod settings;
mod stake;
mod tower;

pub use address::{Proxies, subscriber};
pub use body::{Bodies, Body, HoldsAny, Same, Wrapped};
pub use headers::{Dialect, Reset, retry_after};
pub use key::{
    Fact, Head, HttpRequest, Peer, Request, client_ip, client_ip_behind, extension, from_async_fn, from_fn, header,
    path_parameter, route,
};
pub use problem::{PROBLEM_JSON, Refusal};
pub use service::{RateLimitService, ResponseFuture};
pub use settings::{Answer, Asked, Gathered, Gathering, Http, RateLimit};
pub use stake::{Correction, Settle, Stake};
pub use tower::{AnyBody, RateLimitLayer, Tower};

/// The examples of the README are tests too.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
