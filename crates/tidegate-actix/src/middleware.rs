//! The middleware, and the service that it makes: ask, run, correct.

use std::{
    fmt,
    future::{Future, Ready, poll_fn, ready},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
};

use actix_web::{
    HttpMessage as _,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform, forward_ready},
};
use tidegate::{Memory, Store, StoreError};
use tidegate_tower::{Answer, Asked, Refusal};

use crate::{
    Body, RateLimit, Request,
    actix::{denial, put},
};

/// Limits what it is wrapped around, an app, a scope or a resource, by these settings.
///
/// ```
/// use actix_web::App;
/// use tidegate::{Limiter, Quota};
/// use tidegate_actix::{Middleware, RateLimit, client_ip};
///
/// let limit = RateLimit::new(Limiter::in_memory(Quota::per_minute(100))).by(client_ip());
/// let app = App::new().wrap(Middleware(limit));
/// ```
///
/// Each worker of a server has an app of its own: make the settings once, outside, and give each a clone. Clones share one limiter.
pub struct Middleware<S: Store = Memory>(pub RateLimit<S>);

impl<S: Store> Clone for Middleware<S> {
    /// The same settings and the same limiter.
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store> fmt::Debug for Middleware<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Middleware").field(&self.0).finish()
    }
}

impl<I, S, B> Transform<I, ServiceRequest> for Middleware<S>
where
    I: Service<ServiceRequest, Response = ServiceResponse<B>> + 'static,
    S: Store,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<Body<B, S>>>;
    type Error = I::Error;
    type Transform = RateLimitService<I, S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, inner: I) -> Self::Future {
        ready(Ok(RateLimitService { inner: Rc::new(inner), settings: self.0.clone() }))
    }
}

/// A service behind a rate limit; [`Middleware`] makes it.
pub struct RateLimitService<I, S: Store = Memory> {
    inner: Rc<I>,
    settings: RateLimit<S>,
}

impl<I: fmt::Debug, S: Store> fmt::Debug for RateLimitService<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).field("settings", &self.settings).finish()
    }
}

impl<I, S, B> Service<ServiceRequest> for RateLimitService<I, S>
where
    I: Service<ServiceRequest, Response = ServiceResponse<B>> + 'static,
    S: Store,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<Body<B, S>>>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, I::Error>>>>;

    forward_ready!(inner);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        Box::pin(answer(Rc::clone(&self.inner), self.settings.clone(), Request(request)))
    }
}

/// The response to a request. Dropped while the limiter is asked, it gives back what was charged; dropped later, it has a stake that knows
/// what to do.
async fn answer<I, S, B>(
    inner: Rc<I>,
    settings: RateLimit<S>,
    mut request: Request,
) -> Result<ServiceResponse<EitherBody<Body<B, S>>>, I::Error>
where
    I: Service<ServiceRequest, Response = ServiceResponse<B>>,
    S: Store,
    B: MessageBody,
{
    let gathered = match settings.gather(&request) {
        Some(facts) => facts.await,
        None => Vec::new(),
    };
    let Answer { mut decision, held } =
        match settings.ask(&mut request, gathered, |decision, held, _| Answer { decision: decision.clone(), held }) {
            Asked::Skipped => {
                let response = inner.call(request.0).await?;
                return Ok(response.map_body(|_, body| EitherBody::left(Body::skipped(body))));
            }
            Asked::Refused(refusal) => return Ok(refuse(&settings, &refusal, request)),
            Asked::Answered(answer) => answer,
            Asked::Asking(told) => match (Asking { settings: &settings, told: Some(told) }).await {
                Ok(answer) => answer,
                Err(error) => return Ok(refuse(&settings, &Refusal::Store(error), request)),
            },
        };
    let mut stake = match settings.admit(&mut decision, held, &request) {
        Ok(stake) => stake,
        Err(refusal) => return Ok(refuse(&settings, &refusal, request)),
    };
    if settings.extends() {
        request.extensions_mut().insert(decision.clone());
    }
    if let Some(settle) = stake.settle() {
        request.extensions_mut().insert(settle.clone());
    }
    let mut running = pin!(inner.call(request.0));
    let response = poll_fn(|context| {
        stake.poll_keep(context);
        running.as_mut().poll(context)
    });
    let mut response = response.await?;
    let corrected = match settings.answered(&mut stake, response.response().head()) {
        Some(correction) => correction.await,
        None => None,
    };
    let corrected = corrected.map(|corrected| decision.updated(&corrected));
    put(settings.headers(), corrected.as_ref().unwrap_or(&decision), response.headers_mut());
    Ok(response.map_body(|_, body| EitherBody::left(Body::staked(body, stake))))
}

/// The response to who is refused.
fn refuse<S: Store, B>(settings: &RateLimit<S>, refusal: &Refusal, request: Request) -> ServiceResponse<EitherBody<B>> {
    let mut response = settings.custom_denial(refusal, &request).unwrap_or_else(|| denial(refusal));
    if let Some(decision) = refusal.decision() {
        put(settings.headers(), decision, response.headers_mut());
    }
    request.0.into_response(response).map_into_right_body()
}

/// What was asked of the limiter and is not answered yet.
struct Asking<'s, S: Store> {
    settings: &'s RateLimit<S>,
    told: Option<S::Told<Answer<S>>>,
}

impl<S: Store> Future for Asking<'_, S> {
    type Output = Result<Answer<S>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = self.told.as_mut().expect("a future is not polled after it was ready");
        let answer = ready!(Pin::new(told).poll(context));
        self.told = None;
        Poll::Ready(answer)
    }
}

impl<S: Store> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        if let Some(told) = self.told.take() {
            self.settings.abandon(told);
        }
    }
}
