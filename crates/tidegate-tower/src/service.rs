//! The service that a layer makes, and the future of its response: ask, run, correct.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request};
use pin_project_lite::pin_project;
use tidegate::{Held, Memory, Store, StoreError};
use tower_service::Service;

use crate::{Answer, Asked, Body, Correction, Gathering, RateLimitLayer, Stake, tower::put};

/// A service behind a rate limit; [`RateLimitLayer`] makes it.
pub struct RateLimitService<I, S: Store = Memory> {
    inner: I,
    settings: RateLimitLayer<S>,
}

impl<I, S: Store> RateLimitService<I, S> {
    pub(crate) fn new(inner: I, settings: RateLimitLayer<S>) -> Self {
        Self { inner, settings }
    }
}

impl<I: Clone, S: Store> Clone for RateLimitService<I, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone() }
    }
}

impl<I: fmt::Debug, S: Store> fmt::Debug for RateLimitService<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).field("settings", &self.settings).finish()
    }
}

impl<I, S, Q, A> Service<Request<Q>> for RateLimitService<I, S>
where
    I: Service<Request<Q>, Response = Response<A>> + Clone,
    S: Store,
    A: http_body::Body,
    A::Data: From<Bytes>,
{
    type Response = Response<Body<A, S>>;
    type Error = I::Error;
    type Future = ResponseFuture<I, S, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (head, body) = request.into_parts();
        let settings = self.settings.clone();
        let asking = match settings.gather(&head) {
            Some(facts) => Err(facts),
            None => Ok(settings.ask(&head, Vec::new())),
        };
        let mut told = None;
        let state = match asking {
            Err(facts) => State::Gathering { facts, waiting: Box::new(Some((head, body, self.take()))) },
            Ok(Asked::Skipped) => State::Skipped { future: self.inner.call(Request::from_parts(head, body)) },
            Ok(Asked::Refused(refusal)) => State::refused(settings.refuse(&refusal, &head)),
            // Nothing has to be kept for later, and the service that is ready runs without a clone.
            Ok(Asked::Answered(answer)) => admit(&settings, Ok(answer), head, body, &mut self.inner),
            Ok(Asked::Asking(asked)) => {
                told = Some(Box::new(asked));
                State::Asking { waiting: Box::new(Some((head, body, self.take()))) }
            }
        };
        ResponseFuture { state, asking: Asking { settings, told } }
    }
}

impl<I: Clone, S: Store> RateLimitService<I, S> {
    /// The service that is ready, for later; a clone, which may not be, takes its place.
    fn take(&mut self) -> I {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

/// Runs the service if the request is admitted.
fn admit<I, S, Q>(
    settings: &RateLimitLayer<S>,
    told: Result<Answer<S>, StoreError>,
    mut head: request::Parts,
    body: Q,
    inner: &mut I,
) -> State<I, S, Q>
where
    I: Service<Request<Q>>,
    S: Store,
{
    match settings.admit(told, &head) {
        Ok(stake) => {
            head.extensions.insert(Arc::clone(stake.decision()));
            if let Some(settle) = stake.settle() {
                head.extensions.insert(settle.clone());
            }
            State::Running { future: inner.call(Request::from_parts(head, body)), stake: Some(stake) }
        }
        Err(refusal) => State::refused(settings.refuse(&refusal, &head)),
    }
}

pin_project! {
    /// The future of a [`RateLimitService`]'s response.
    ///
    /// Dropped while the limiter is asked, it gives back what was charged. Dropped while the service runs, or when that fails or panics, it
    /// releases leases and gives back what [`charge_if`](crate::RateLimit::charge_if) has not judged yet; any other charge stays, for the
    /// work was begun.
    pub struct ResponseFuture<I, S, Q>
    where
        I: Service<Request<Q>>,
        S: Store,
    {
        #[pin]
        state: State<I, S, Q>,
        asking: Asking<S>,
    }
}

pin_project! {
    // What is seldom needed is boxed: a future is handed around before it is polled.
    #[project = Projected]
    enum State<I, S, Q>
    where
        I: Service<Request<Q>>,
        S: Store,
    {
        Gathering { facts: Gathering, waiting: Box<Option<(request::Parts, Q, I)>> },
        Asking { waiting: Box<Option<(request::Parts, Q, I)>> },
        Skipped { #[pin] future: I::Future },
        Running { #[pin] future: I::Future, stake: Option<Stake<S>> },
        Correcting { correction: Box<Correction<S>>, answered: Box<Option<(I::Response, Stake<S>)>> },
        Refused { response: Box<Option<Response<Bytes>>> },
    }
}

impl<I, S, Q> State<I, S, Q>
where
    I: Service<Request<Q>>,
    S: Store,
{
    fn refused(response: Response<Bytes>) -> Self {
        Self::Refused { response: Box::new(Some(response)) }
    }
}

/// What was asked of the limiter and is not answered yet.
struct Asking<S: Store> {
    settings: RateLimitLayer<S>,
    told: Option<Box<S::Told<Held<S>>>>,
}

impl<S: Store> Drop for Asking<S> {
    fn drop(&mut self) {
        if let Some(told) = self.told.take() {
            self.settings.abandon(*told);
        }
    }
}

const ONCE: &str = "a future is not polled after it was ready";

impl<I, S, Q, A> Future for ResponseFuture<I, S, Q>
where
    I: Service<Request<Q>, Response = Response<A>>,
    S: Store,
    A: http_body::Body,
    A::Data: From<Bytes>,
{
    type Output = Result<Response<Body<A, S>>, I::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Asking { settings, told } = this.asking;
        loop {
            let next = match this.state.as_mut().project() {
                Projected::Gathering { facts, waiting } => {
                    let gathered = ready!(facts.as_mut().poll(context));
                    let (head, body, mut inner) = waiting.take().expect(ONCE);
                    match settings.ask(&head, gathered) {
                        Asked::Skipped => State::Skipped { future: inner.call(Request::from_parts(head, body)) },
                        Asked::Refused(refusal) => State::refused(settings.refuse(&refusal, &head)),
                        Asked::Answered(answer) => admit(settings, Ok(answer), head, body, &mut inner),
                        Asked::Asking(asked) => {
                            *told = Some(Box::new(asked));
                            State::Asking { waiting: Box::new(Some((head, body, inner))) }
                        }
                    }
                }
                Projected::Asking { waiting } => {
                    let held = ready!(Pin::new(told.as_mut().expect(ONCE)).poll(context));
                    *told = None;
                    let (head, body, mut inner) = waiting.take().expect(ONCE);
                    admit(settings, held.map(Answer::new), head, body, &mut inner)
                }
                Projected::Skipped { future } => {
                    return future.poll(context).map_ok(|response| response.map(Body::skipped));
                }
                Projected::Running { future, stake: kept } => {
                    let stake = kept.as_mut().expect(ONCE);
                    stake.poll_keep(context);
                    let mut response = ready!(future.poll(context))?;
                    let correction = if settings.judges() {
                        let (head, body) = response.into_parts();
                        let correction = settings.answered(stake, &head);
                        response = Response::from_parts(head, body);
                        correction
                    } else {
                        None
                    };
                    let stake = kept.take().expect(ONCE);
                    match correction {
                        Some(correction) => {
                            State::Correcting { correction: Box::new(correction), answered: Box::new(Some((response, stake))) }
                        }
                        None => {
                            put(settings.headers(), stake.decision(), response.headers_mut());
                            return Poll::Ready(Ok(response.map(|body| Body::staked(body, stake))));
                        }
                    }
                }
                Projected::Correcting { correction, answered } => {
                    let corrected = ready!(Pin::new(correction).poll(context));
                    let (mut response, stake) = answered.take().expect(ONCE);
                    let corrected = corrected.map(|corrected| stake.decision().updated(&corrected));
                    put(settings.headers(), corrected.as_ref().unwrap_or(stake.decision()), response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| Body::staked(body, stake))));
                }
                Projected::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect(ONCE).map(Body::refused)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<I, S, Q> fmt::Debug for ResponseFuture<I, S, Q>
where
    I: Service<Request<Q>>,
    S: Store,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
