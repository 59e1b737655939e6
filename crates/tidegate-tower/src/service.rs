//! The service that a layer makes, and the future of its response: ask, run, correct.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate::{Decision, Held, Memory, Store};
use tower_service::Service;

use crate::{
    Answer, Asked, Bodies, Correction, Gathered, Gathering, Head, RateLimitLayer, Refusal, Same, Stake,
    fields::{Fields, put},
};

/// A service behind a rate limit; [`RateLimitLayer`] makes it.
pub struct RateLimitService<I, S: Store = Memory, K = Same> {
    inner: I,
    settings: RateLimitLayer<S>,
    bodies: PhantomData<fn() -> K>,
}

impl<I, S: Store, K> RateLimitService<I, S, K> {
    pub(crate) fn new(inner: I, settings: RateLimitLayer<S>) -> Self {
        Self { inner, settings, bodies: PhantomData }
    }
}

impl<I: Clone, S: Store, K> Clone for RateLimitService<I, S, K> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.settings.clone())
    }
}

impl<I: fmt::Debug, S: Store, K> fmt::Debug for RateLimitService<I, S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).field("settings", &self.settings).finish()
    }
}

impl<I, S, K, Q, A> Service<Request<Q>> for RateLimitService<I, S, K>
where
    I: Service<Request<Q>, Response = Response<A>> + Clone,
    S: Store,
    K: Bodies<A, S>,
    Q: 'static,
{
    type Response = Response<K::Body>;
    type Error = I::Error;
    type Future = ResponseFuture<I, S, Q, K>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let mut after = After::Nothing;
        match begin(&self.settings, &mut request, &mut after) {
            // The request has not to be kept for later, and the service that is ready runs without a clone.
            Ok(()) => ResponseFuture { state: State::Running { future: self.inner.call(request), after }, bodies: PhantomData },
            Err(halt) => ResponseFuture { state: self.halt(halt, request), bodies: PhantomData },
        }
    }
}

impl<I: Clone, S: Store, K> RateLimitService<I, S, K> {
    /// Apart from the usual case, which is so spared some copies of what is large.
    #[cold]
    #[expect(clippy::boxed_local, reason = "opened here, and not in the usual case")]
    fn halt<Q>(&mut self, halt: Box<Halt<S>>, request: Request<Q>) -> State<I, S, Q>
    where
        I: Service<Request<Q>>,
    {
        match *halt {
            Halt::Refused(response) => State::Refused { response: Box::new(Some(response)) },
            Halt::Waits(facts, told) => {
                // A clone, which may not be ready, takes the place of the service that is.
                let clone = self.inner.clone();
                let kept = Some((request, mem::replace(&mut self.inner, clone)));
                let asking = Asking { settings: self.settings.clone(), told };
                State::Waiting { waiting: Box::new(Waiting { facts, asking, kept }) }
            }
        }
    }
}

/// Whether the service is to be called. What is to be done when it has answered is written where it is wanted: it is large to hand on.
type Begun<S> = Result<(), Box<Halt<S>>>;

/// Why the service is not called, or not yet.
enum Halt<S: Store> {
    Refused(Response<Bytes>),
    /// For facts, or for the limiter's answer.
    Waits(Option<Gathering>, Option<Box<S::Told<Answer<S>>>>),
}

fn begin<S: Store, Q: 'static>(settings: &RateLimitLayer<S>, request: &mut Request<Q>, after: &mut After<S>) -> Begun<S> {
    if settings.pass(request, |decision, request| passed(settings, decision, request, after)) {
        return Ok(());
    }
    match settings.gather(request) {
        Some(facts) => Err(Box::new(Halt::Waits(Some(facts), None))),
        None => ask(settings, request, Vec::new(), after),
    }
}

fn ask<S: Store, Q: 'static>(
    settings: &RateLimitLayer<S>,
    request: &mut Request<Q>,
    gathered: Gathered,
    after: &mut After<S>,
) -> Begun<S> {
    match settings.ask(request, gathered, |decision, held, request| admit(settings, decision, held, request, after)) {
        Asked::Skipped => Ok(()),
        Asked::Refused(refusal) => Err(refused(settings, &refusal, request)),
        Asked::Answered(begun) => begun,
        Asked::Asking(told) => Err(Box::new(Halt::Waits(None, Some(Box::new(told))))),
    }
}

/// What was allowed by the short way is told of.
#[inline(never)]
fn passed<S: Store>(settings: &RateLimitLayer<S>, decision: Decision, request: &mut Head, after: &mut After<S>) {
    tell(settings, &decision, after);
    if settings.extends() {
        request.extensions_mut().insert(decision);
    }
}

#[inline]
fn tell<S: Store>(settings: &RateLimitLayer<S>, decision: &Decision, after: &mut After<S>) {
    match Fields::of(settings.headers(), decision) {
        Fields::Nothing => {}
        fields => *after = After::Tells(fields),
    }
}

#[inline]
fn admit<S: Store>(
    settings: &RateLimitLayer<S>,
    decision: &mut Decision,
    held: Option<Box<Held<S>>>,
    request: &mut Head,
    after: &mut After<S>,
) -> Begun<S> {
    match settings.admit(decision, held, request) {
        Ok(stake) if stake.is_empty() => tell(settings, decision, after),
        Ok(stake) => *after = staked(settings, decision, stake, request),
        Err(refusal) => return Err(refused(settings, &refusal, request)),
    }
    if settings.extends() {
        request.extensions_mut().insert(decision.clone());
    }
    Ok(())
}

#[inline(never)]
fn staked<S: Store>(settings: &RateLimitLayer<S>, decision: &Decision, stake: Stake<S>, request: &mut Head) -> After<S> {
    if let Some(settle) = stake.settle() {
        request.extensions_mut().insert(settle.clone());
    }
    After::Staked(Box::new(Staked { decision: decision.clone(), settings: settings.clone(), stake }))
}

#[cold]
fn refused<S: Store>(settings: &RateLimitLayer<S>, refusal: &Refusal, request: &Head) -> Box<Halt<S>> {
    Box::new(Halt::Refused(settings.refuse(refusal, request)))
}

pin_project! {
    /// The future of a [`RateLimitService`]'s response.
    ///
    /// Dropped while the limiter is asked, it gives back what was charged. Dropped while the service runs, or when that fails or panics, it
    /// releases leases and gives back what [`charge_if`](crate::RateLimit::charge_if) has not judged yet; any other charge stays, for the
    /// work was begun.
    pub struct ResponseFuture<I, S, Q, K = Same>
    where
        I: Service<Request<Q>>,
        S: Store,
    {
        #[pin]
        state: State<I, S, Q>,
        bodies: PhantomData<fn() -> K>,
    }
}

pin_project! {
    // What is not always needed is boxed: a future is handed around before it is polled.
    #[project = Projected]
    enum State<I, S, Q>
    where
        I: Service<Request<Q>>,
        S: Store,
    {
        Waiting { waiting: Box<Waiting<I, S, Q>> },
        Running { #[pin] future: I::Future, after: After<S> },
        Correcting { correction: Box<Correction<S>>, answered: Box<Option<(I::Response, Box<Staked<S>>)>> },
        Refused { response: Box<Option<Response<Bytes>>> },
    }
}

/// A request that waits for facts, and then for the limiter's answer.
struct Waiting<I, S: Store, Q> {
    facts: Option<Gathering>,
    asking: Asking<S>,
    kept: Option<(Request<Q>, I)>,
}

/// What was asked of the limiter and is not answered yet.
struct Asking<S: Store> {
    settings: RateLimitLayer<S>,
    told: Option<Box<S::Told<Answer<S>>>>,
}

impl<S: Store> Drop for Asking<S> {
    fn drop(&mut self) {
        if let Some(told) = self.told.take() {
            self.settings.abandon(*told);
        }
    }
}

/// What is to be done when the service has answered.
enum After<S: Store> {
    Nothing,
    /// All that is usual, and in place.
    Tells(Fields),
    Staked(Box<Staked<S>>),
}

/// A request that has something at stake: what is told of it may yet be corrected.
struct Staked<S: Store> {
    decision: Decision,
    settings: RateLimitLayer<S>,
    stake: Stake<S>,
}

impl<S: Store> Staked<S> {
    /// The response as it goes on. `corrected`: how keys stand that were corrected.
    fn finish<A, K: Bodies<A, S>>(self: Box<Self>, mut response: Response<A>, corrected: Option<Decision>) -> Response<K::Body> {
        let corrected = corrected.map(|corrected| self.decision.updated(&corrected));
        put(self.settings.headers(), corrected.as_ref().unwrap_or(&self.decision), response.headers_mut());
        K::own(response, self.stake.lasts().then(|| Box::new(self.stake)))
    }
}

const ONCE: &str = "a future is not polled after it was ready";

impl<I, S, Q, K, A> Future for ResponseFuture<I, S, Q, K>
where
    I: Service<Request<Q>, Response = Response<A>>,
    S: Store,
    Q: 'static,
    K: Bodies<A, S>,
{
    type Output = Result<Response<K::Body>, I::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            Projected::Running { future, after: After::Nothing } => K::pass(future.poll(context)),
            _ => self.poll_all(context),
        }
    }
}

impl<I, S, Q, K, A> ResponseFuture<I, S, Q, K>
where
    I: Service<Request<Q>, Response = Response<A>>,
    S: Store,
    Q: 'static,
    K: Bodies<A, S>,
{
    /// Apart from the least that can be asked for, which so is spared copies of the response.
    #[inline(never)]
    fn poll_all(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Response<K::Body>, I::Error>> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                Projected::Waiting { waiting } => ready!(waiting.poll(context)),
                Projected::Running { future, after } => {
                    let After::Staked(staked) = after else {
                        // What it was answered stays where it is: a response is large to hand on.
                        let mut answer = K::pass(future.poll(context));
                        if let (Poll::Ready(Ok(response)), After::Tells(fields)) = (&mut answer, after) {
                            fields.put(response.headers_mut());
                        }
                        return answer;
                    };
                    staked.stake.poll_keep(context);
                    let mut response = ready!(future.poll(context))?;
                    let After::Staked(mut staked) = mem::replace(after, After::Nothing) else { unreachable!("{ONCE}") };
                    let correction = if staked.settings.judges() {
                        let (head, body) = response.into_parts();
                        let correction = staked.settings.answered(&mut staked.stake, &head);
                        response = Response::from_parts(head, body);
                        correction
                    } else {
                        None
                    };
                    match correction {
                        Some(correction) => {
                            State::Correcting { correction: Box::new(correction), answered: Box::new(Some((response, staked))) }
                        }
                        None => return Poll::Ready(Ok(staked.finish::<_, K>(response, None))),
                    }
                }
                Projected::Correcting { correction, answered } => {
                    let corrected = ready!(Pin::new(correction).poll(context));
                    let (response, staked) = answered.take().expect(ONCE);
                    return Poll::Ready(Ok(staked.finish::<_, K>(response, corrected)));
                }
                Projected::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect(ONCE).map(K::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<I, S, Q> Waiting<I, S, Q>
where
    I: Service<Request<Q>>,
    S: Store,
    Q: 'static,
{
    /// What comes next, once it is known.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<State<I, S, Q>> {
        let Self { facts, asking: Asking { settings, told }, kept } = self;
        let mut after = After::Nothing;
        loop {
            let (request, _) = kept.as_mut().expect(ONCE);
            let next = if let Some(gathering) = facts {
                let gathered = ready!(gathering.as_mut().poll(context));
                *facts = None;
                ask(settings, request, gathered, &mut after)
            } else {
                let answer = ready!(Pin::new(told.as_mut().expect(ONCE)).poll(context));
                *told = None;
                match answer {
                    Ok(Answer { mut decision, held }) => admit(settings, &mut decision, held, request, &mut after),
                    Err(error) => Err(refused(settings, &Refusal::Store(error), request)),
                }
            };
            match next.map_err(|halt| *halt) {
                Ok(()) => {
                    let (request, mut inner) = kept.take().expect(ONCE);
                    return Poll::Ready(State::Running { future: inner.call(request), after });
                }
                Err(Halt::Refused(response)) => return Poll::Ready(State::Refused { response: Box::new(Some(response)) }),
                Err(Halt::Waits(_, asked)) => *told = asked,
            }
        }
    }
}

impl<I, S, Q, K> fmt::Debug for ResponseFuture<I, S, Q, K>
where
    I: Service<Request<Q>>,
    S: Store,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
