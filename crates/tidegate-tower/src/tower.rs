//! The layer for tower: services of `http`'s requests and responses.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, Response, header, response};
use tidegate::{Memory, Store};
use tower_layer::Layer;

use crate::{Head, Http, PROBLEM_JSON, RateLimit, Refusal, Wrapped, fields::put, service::RateLimitService};

/// A rate limit for any service of `http` requests: axum, tonic, hyper. All that can be set is in [`RateLimit`].
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate::{Limiter, Quota};
/// use tidegate_tower::{RateLimitLayer, client_ip};
///
/// let limiter = Limiter::in_memory(Quota::per_minute(100));
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(RateLimitLayer::new(limiter).by(client_ip()));
/// ```
pub type RateLimitLayer<S = Memory> = RateLimit<S, Tower>;

/// The types of `http`, which tower's services speak.
#[derive(Debug)]
pub enum Tower {}

impl Http for Tower {
    type Request = Head;
    type Response = response::Parts;
    type Denial = Response<Bytes>;
}

/// A [`RateLimitLayer`] for services that answer with any type of body.
pub struct AnyBody<S: Store = Memory>(RateLimitLayer<S>);

impl<S: Store, I> Layer<I> for AnyBody<S> {
    type Service = RateLimitService<I, S, Wrapped>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimitService::new(inner, self.0.clone())
    }
}

impl<S: Store> Clone for AnyBody<S> {
    /// The same settings and the same limiter.
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store> fmt::Debug for AnyBody<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyBody").field(&self.0).finish()
    }
}

impl<S: Store, I> Layer<I> for RateLimit<S, Tower> {
    type Service = RateLimitService<I, S>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimitService::new(inner, self.clone())
    }
}

impl<S: Store> RateLimit<S, Tower> {
    /// The layer for services that answer with any type of body, and not with axum's or tonic's. Responses have a [`Body`](crate::Body) of it
    /// then.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tidegate::{Limiter, Quota};
    /// use tidegate_tower::{RateLimitLayer, header};
    /// use tower::{Layer, service_fn};
    ///
    /// let hello = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
    /// let limiter = Limiter::in_memory(Quota::per_minute(100));
    /// let service = RateLimitLayer::new(limiter).by(header("x-user")).any_body().layer(hello);
    /// # fn is_a_service<Q, S: tower::Service<Q>>(_: S) {}
    /// # is_a_service::<Request<()>, _>(service);
    /// ```
    pub fn any_body(self) -> AnyBody<S> {
        AnyBody(self)
    }

    /// The response to who is refused.
    pub(crate) fn refuse(&self, refusal: &Refusal, request: &Head) -> Response<Bytes> {
        let mut response = self.custom_denial(refusal, request).unwrap_or_else(|| denial(refusal, request));
        if let Some(decision) = refusal.decision() {
            put(self.headers(), decision, response.headers_mut());
        }
        response
    }
}

/// What is answered unless something else was set.
fn denial(refusal: &Refusal, request: &Head) -> Response<Bytes> {
    #[cfg(feature = "grpc")]
    if crate::grpc::is_grpc(request) {
        return crate::grpc::denial(refusal);
    }
    #[cfg(not(feature = "grpc"))]
    let _ = request;
    let mut response = Response::new(Bytes::from(refusal.body()));
    *response.status_mut() = http::StatusCode::from_u16(refusal.status()).expect("one of HTTP's");
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}
