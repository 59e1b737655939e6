//! Tidegate for [actix-web](https://docs.rs/actix-web): a middleware for apps, scopes and resources, with all the settings of the
//! layer for tower.
//!
//! # Three lines
//!
//! ```no_run
//! use actix_web::{App, HttpServer, web};
//! use tidegate::{Limiter, Quota};
//! use tidegate_actix::{Middleware, RateLimit, client_ip};
//!
//! # async fn example() -> std::io::Result<()> {
//! let limit = RateLimit::new(Limiter::in_memory(Quota::per_minute(100))).by(client_ip());
//! let app = move || App::new().wrap(Middleware(limit.clone())).route("/", web::get().to(async || "hello"));
//! HttpServer::new(app).bind("127.0.0.1:3000")?.run().await
//! # }
//! ```
//!
//! The limiter is made outside of the closure, which each worker calls: all of them count together. Every response tells what is left
//! (`RateLimit`, `RateLimit-Policy`). Who is denied gets a 429 with `Retry-After` and a body of problem+json, and the service does not see
//! the request. Handlers find the [`Decision`](tidegate::Decision) in the request's extensions, as `ReqData<Decision>`,
//! unless it is [left out](RateLimit::without_extension).
//!
//! # Several policies
//!
//! A policy is keyed by attributes; each has a [`Fact`] that it comes from. All policies that apply admit a request, or none is charged.
//!
//! ```
//! use tidegate::{Limiter, Policy, Quota};
//! use tidegate_actix::{Proxies, RateLimit, client_ip_behind, extension, route};
//!
//! struct User(String); // put into the extensions by authentication
//!
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("per-user", Quota::per_minute(100)).key(["user"]))
//!     .policy(Policy::new("per-address", Quota::per_minute(1_000)).key(["ip", "route"]))
//!     .build()?; // `.store(Redis::new(url)?)` before it is all that changes for many machines
//! let limit = RateLimit::new(limiter)
//!     .key("user", extension(|user: &User| Some(user.0.clone())))
//!     .key("ip", client_ip_behind(Proxies::networks(["10.0.0.0/8"])?))
//!     .key("route", route())
//!     .skip_if(|request| request.path() == "/health");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A policy does not apply to requests that lack one of its attributes; [`require`](RateLimit::require) refuses them.
//!
//! actix runs the middleware that was wrapped last first: wrap authentication after the limit that needs it. It fills in path parameters
//! on the way to a resource, so [`path_parameter`] finds them in middleware of that resource, and of a scope those of its prefix; around
//! the app there are none. [`route`] is known everywhere; around the app it is told by the path, and guards are not asked.
//!
//! # By the response
//!
//! [`charge_if`](RateLimit::charge_if) counts only what was answered so: failed logins, or all but a 5xx.
//! [`settle_with`](RateLimit::settle_with) corrects an estimate to what the response says, and
//! [`settle_by_handler`](RateLimit::settle_by_handler) to what the handler has said, by a [`Settle`] in the request's extensions, until the
//! body's end. Requests are charged before they run, so that none slips by while others are under way.
//!
//! ```
//! use tidegate::{Limiter, Quota};
//! use tidegate_actix::{RateLimit, client_ip, header};
//!
//! let logins = Limiter::in_memory(Quota::per_hour(5));
//! let limit = RateLimit::new(logins).by(client_ip()).charge_if(|response| response.status == 401);
//!
//! let tokens = Limiter::in_memory(Quota::per_minute(100_000));
//! let limit = RateLimit::new(tokens)
//!     .by(header("x-tenant"))
//!     .cost(|_| 4_000) // the estimate
//!     .settle_with(|response| response.headers.get("x-tokens-used")?.to_str().ok()?.parse().ok());
//! ```
//!
//! An error that a handler returns is a response. One that another middleware returns is none: the service has failed.
//!
//! # How many at once
//!
//! Leases of [`Policy::concurrency`](tidegate::Policy::concurrency) are held until the body of the response has ended or the client has
//! gone, and renewed until then. actix takes who has closed its side for one who still listens, until it writes to it:
//! `HttpServer::h1_allow_half_closed(false)` lets go of such requests at once.
//!
//! # What stays charged, and what if the store does not answer
//!
//! As it is with [tower](tidegate_tower#what-stays-charged). In short: a request that is denied costs nothing; one that fails, panics or
//! goes away holds no lease, and is charged if its work was begun, unless by `charge_if`; one that the store cannot decide is decided as
//! its policies say.
//!
//! A limiter on Redis (feature `redis`) lives on the runtime that it is built in: that of `main`, like the server.

mod actix;
mod body;
mod middleware;

pub use actix::{Actix, Request};
pub use body::Body;
pub use middleware::{Middleware, RateLimitService};
use tidegate::Memory;
pub use tidegate_tower::{
    Dialect, Peer, Proxies, Refusal, Reset, Settle, client_ip, client_ip_behind, extension, from_async_fn, from_fn, header,
    path_parameter, route,
};

/// By what requests are limited, and what is told to who is: the settings of a [`Middleware`].
///
/// ```
/// use actix_web::HttpResponse;
/// use tidegate::{Limiter, Quota};
/// use tidegate_actix::{Dialect, RateLimit, Request, from_fn};
///
/// let limit = RateLimit::new(Limiter::in_memory(Quota::per_minute(100)))
///     .by(from_fn(|request: &Request| request.uri().host().map(str::to_owned)))
///     .dialect(Dialect::Draft06)
///     .denial(|refusal, _| HttpResponse::TooManyRequests().body(refusal.detail()));
/// ```
pub type RateLimit<S = Memory> = tidegate_tower::RateLimit<S, Actix>;

/// Where the value of an attribute comes from; what [`RateLimit::key`] takes.
pub type Fact = tidegate_tower::Fact<Request>;

/// The examples of the README are tests too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
