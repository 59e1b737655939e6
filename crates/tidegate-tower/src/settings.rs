//! The settings of a rate limit over HTTP, and deciding by them: a request's facts become a hit, the answer a stake or a refusal. It knows no
//! service, no body and no framework, so that each of those can have its own middleware of these.

use std::{borrow::Cow, fmt, future::Future, net::IpAddr, pin::Pin, sync::Arc};

use smallvec::SmallVec;
use tidegate::{Decision, Held, Hit, Limiter, Memory, Short, Store};

use crate::{
    Correction, Dialect, Fact, Refusal, Request, Settle, Stake, Tower,
    key::{Kind, Room, short},
    stake::Claim,
};

/// A framework's types, which is what settings are told of its requests and responses.
pub trait Http: 'static {
    /// The head of a request.
    type Request: Request + ?Sized;
    /// The head of a response.
    type Response: 'static;
    /// What a [custom denial](RateLimit::denial) is.
    type Denial: 'static;
}

/// By what requests are limited, and what is told to who is. With tower it is a [layer](crate::RateLimitLayer).
///
/// ```
/// use tidegate::{Hit, Limiter, Policy, Quota};
/// use tidegate_tower::{RateLimitLayer, client_ip, header};
///
/// let limiter = Limiter::builder()
///     .policy(Policy::new("per-user", Quota::per_minute(100)).key(["user"]))
///     .policy(Policy::new("per-address", Quota::per_minute(1_000)).key(["ip"]))
///     .build()?;
/// let layer = RateLimitLayer::new(limiter).key("user", header("x-user")).key("ip", client_ip());
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
///
/// Clones, and services made of it, share one limiter. They cost next to nothing: axum makes some for each request.
pub struct RateLimit<S: Store = Memory, H: Http = Tower>(Arc<Settings<S, H>>);

struct Settings<S: Store, H: Http> {
    limiter: Limiter<S>,
    keys: Vec<Key<H::Request>>,
    skips: Vec<Arc<Skip<H>>>,
    cost: Option<Arc<Cost<H>>>,
    charge_if: Option<Arc<ChargeIf<H>>>,
    settle_with: Option<Arc<SettleWith<H>>>,
    settle_by_handler: bool,
    on_decision: Option<Arc<OnDecision<H>>>,
    on_refusal: Option<Arc<OnRefusal<H>>>,
    denial: Option<Arc<Deny<H>>>,
    dialect: Dialect,
    extends: bool,
    /// The attribute that is the peer's address and all that is asked by, where what is allowed has only to be told of.
    only: Option<Short>,
}

struct Key<Q: ?Sized> {
    name: Arc<str>,
    fact: Arc<Fact<Q>>,
    is_required: bool,
}

type Skip<H> = dyn Fn(&<H as Http>::Request) -> bool + Send + Sync;
type Cost<H> = dyn Fn(&<H as Http>::Request) -> u64 + Send + Sync;
type ChargeIf<H> = dyn Fn(&<H as Http>::Response) -> bool + Send + Sync;
type SettleWith<H> = dyn Fn(&<H as Http>::Response) -> Option<u64> + Send + Sync;
type OnDecision<H> = dyn Fn(&Decision, &<H as Http>::Request) + Send + Sync;
type OnRefusal<H> = dyn Fn(&Refusal, &<H as Http>::Request) + Send + Sync;
type Deny<H> = dyn Fn(&Refusal, &<H as Http>::Request) -> <H as Http>::Denial + Send + Sync;

impl<S: Store, H: Http> RateLimit<S, H> {
    /// Limits by the policies of `limiter`, once [`by`](Self::by) or [`key`](Self::key) says whose attributes they are keyed by.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self(Arc::new(Settings {
            limiter,
            keys: Vec::new(),
            skips: Vec::new(),
            cost: None,
            charge_if: None,
            settle_with: None,
            settle_by_handler: false,
            on_decision: None,
            on_refusal: None,
            denial: None,
            dialect: Dialect::default(),
            extends: true,
            only: None,
        }))
    }

    /// Changes what is set here, and not in clones.
    fn set(mut self, change: impl FnOnce(&mut Settings<S, H>)) -> Self {
        let settings = Arc::make_mut(&mut self.0);
        change(settings);
        settings.only = settings.only();
        self
    }

    /// What a limiter of one simple quota ([`Limiter::in_memory`]) counts by: the attribute `key`.
    #[must_use]
    pub fn by(self, fact: Fact<H::Request>) -> Self {
        self.key("key", fact)
    }

    /// An attribute that policies are keyed by, or have conditions on. Policies whose attributes a request does not have do not apply
    /// to it.
    #[must_use]
    pub fn key(self, attribute: impl Into<Arc<str>>, fact: Fact<H::Request>) -> Self {
        self.with(Key { name: attribute.into(), fact: Arc::new(fact), is_required: false })
    }

    /// The same, and requests that do not have it are refused with 400.
    #[must_use]
    pub fn require(self, attribute: impl Into<Arc<str>>, fact: Fact<H::Request>) -> Self {
        self.with(Key { name: attribute.into(), fact: Arc::new(fact), is_required: true })
    }

    fn with(self, key: Key<H::Request>) -> Self {
        self.set(|settings| settings.keys.push(key))
    }

    /// Requests that are not limited, nor counted: health checks, preflights. Any of several such rules is enough.
    #[must_use]
    pub fn skip_if(self, skip: impl Fn(&H::Request) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.skips.push(Arc::new(skip)))
    }

    /// What a request costs; 1 unless set.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&H::Request) -> u64 + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Counts only requests whose response is such. They are charged before they run, so that requests in parallel cannot slip by, and
    /// given back if the response is not such, or if there is none: the service has failed or panicked, or the client has gone.
    ///
    /// ```
    /// # use tidegate::{Limiter, Quota};
    /// # use tidegate_tower::{RateLimitLayer, client_ip};
    /// # let limiter = Limiter::in_memory(Quota::per_minute(5));
    /// // Failed logins only.
    /// let layer = RateLimitLayer::new(limiter).by(client_ip()).charge_if(|response| response.status == 401);
    /// # let limiter = Limiter::in_memory(Quota::per_minute(5));
    /// // Not what has failed by our fault.
    /// let layer = RateLimitLayer::new(limiter).by(client_ip()).charge_if(|response| !response.status.is_server_error());
    /// ```
    #[must_use]
    pub fn charge_if(self, charge_if: impl Fn(&H::Response) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.charge_if = Some(Arc::new(charge_if)))
    }

    /// Corrects what was charged to what the response says, if it says so.
    #[must_use]
    pub fn settle_with(self, actual: impl Fn(&H::Response) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.settle_with = Some(Arc::new(actual)))
    }

    /// Corrects what was charged to what the handler says, by the [`Settle`] in the request's extensions, until the end of the body.
    #[must_use]
    pub fn settle_by_handler(self) -> Self {
        self.set(|settings| settings.settle_by_handler = true)
    }

    /// Is called with each decision, allowed or denied: for metrics. What is refused without one is seen by
    /// [`on_refusal`](Self::on_refusal). No label should be made of keys, which anybody can make up.
    #[must_use]
    pub fn on_decision(self, hook: impl Fn(&Decision, &H::Request) + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.on_decision = Some(Arc::new(hook)))
    }

    /// Is called with each refusal: denials, and what is refused without a decision, because the store does not answer, an attribute is missing
    /// or the client's address is not known. For metrics too: a status other than 429 is for who runs this to look at.
    ///
    /// ```
    /// # use tidegate::{Limiter, Quota};
    /// # use tidegate_tower::{RateLimitLayer, client_ip};
    /// # let limiter = Limiter::in_memory(Quota::per_minute(5));
    /// let layer = RateLimitLayer::new(limiter).by(client_ip()).on_refusal(|refusal, _| {
    ///     if refusal.decision().is_none() {
    ///         eprintln!("{}: {}", refusal.status(), refusal.detail());
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn on_refusal(self, hook: impl Fn(&Refusal, &H::Request) + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.on_refusal = Some(Arc::new(hook)))
    }

    /// What is answered to who is refused, in the place of problem+json. The headers of the dialect are added to it.
    #[must_use]
    pub fn denial(self, denial: impl Fn(&Refusal, &H::Request) -> H::Denial + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.denial = Some(Arc::new(denial)))
    }

    /// The headers of responses.
    #[must_use]
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.set(|settings| settings.dialect = dialect)
    }

    /// Leaves the [`Decision`] out of the request's extensions, which spares who does not read it an allocation for each request. A
    /// [`Settle`] is there where [`settle_by_handler`](Self::settle_by_handler) says so, and [`on_decision`](Self::on_decision) sees all.
    ///
    /// ```
    /// # use tidegate::{Limiter, Quota};
    /// # use tidegate_tower::{RateLimitLayer, client_ip};
    /// # let limiter = Limiter::in_memory(Quota::per_minute(100));
    /// let layer = RateLimitLayer::new(limiter).by(client_ip()).without_extension();
    /// ```
    #[must_use]
    pub fn without_extension(self) -> Self {
        self.set(|settings| settings.extends = false)
    }

    /// The limiter.
    pub fn limiter(&self) -> &Limiter<S> {
        &self.0.limiter
    }
}

/// What a middleware is made of, in the order in which it calls it.
impl<S: Store, H: Http> RateLimit<S, H> {
    /// The facts that have to be awaited, if there are any.
    pub fn gather(&self, request: &H::Request) -> Option<Gathering> {
        let late = |key: &Key<H::Request>| match &key.fact.0 {
            Kind::Late(fact) => Some(fact(request)),
            Kind::Address(_) | Kind::Now(_) => None,
        };
        if !self.0.keys.iter().any(|key| matches!(key.fact.0, Kind::Late(_))) || self.skips(request) {
            return None;
        }
        let facts: Vec<_> = self.0.keys.iter().filter_map(late).collect();
        Some(Box::pin(async move {
            let mut gathered = Vec::with_capacity(facts.len());
            for fact in facts {
                gathered.push(fact.await);
            }
            gathered
        }))
    }

    /// Whether a request was allowed by a short way, which there is where nothing but its address is asked about and its response corrects
    /// nothing. `then` is told the decision, if anybody is to be. Otherwise nothing has been done, and it takes all that follows: a denial too
    /// is decided there.
    #[inline(always)]
    pub fn pass(&self, request: &mut H::Request, then: impl FnOnce(Decision, &mut H::Request)) -> bool {
        let Some(attribute) = self.0.only else { return false };
        let Some(IpAddr::V4(peer)) = request.peer() else { return false };
        let (limiter, value) = (&self.0.limiter, short(peer));
        if !self.extends() && self.headers() == Dialect::None {
            return limiter.pass(attribute, value);
        }
        limiter.allow(attribute, value).map(|decision| then(decision, request)).is_some()
    }

    fn skips(&self, request: &H::Request) -> bool {
        self.0.skips.iter().any(|skip| skip(request))
    }

    /// Asks the limiter about a request. `gathered` is what [`gather`](Self::gather) has come to. `then` is told the answer if it is there at
    /// once, as it is in memory: where it is, because a request that is served in memory takes about as long as to copy it a few times.
    #[inline]
    pub fn ask<T>(
        &self,
        request: &mut H::Request,
        mut gathered: Gathered,
        then: impl FnOnce(&mut Decision, Option<Box<Held<S>>>, &mut H::Request) -> T,
    ) -> Asked<S, T> {
        if self.skips(request) {
            return Asked::Skipped;
        }
        let limiter = &self.0.limiter;
        // One key and no lease is the usual case.
        if let ([key], false) = (self.0.keys.as_slice(), limiter.gives_leases()) {
            let mut room = Room::default();
            let value = match key.value(request, &mut gathered, &mut room) {
                Ok(value) => value,
                Err(refusal) => return Asked::Refused(refusal),
            };
            let hit = Hit::from(value.map(|value| (&*key.name, value)));
            let mut reply = limiter.check(self.costing(hit, request));
            drop(room);
            return match S::now(&mut reply) {
                Some(decision) => Asked::Answered(then(decision, None, request)),
                None => Asked::Asking(S::told(S::map(reply, |decision| Answer { decision, held: None }))),
            };
        }
        let mut reply = match self.ask_all(request, gathered) {
            Ok(reply) => reply,
            Err(refusal) => return Asked::Refused(refusal),
        };
        match S::now(&mut reply) {
            Some(Answer { decision, held }) => Asked::Answered(then(decision, held.take(), request)),
            None => Asked::Asking(S::told(reply)),
        }
    }

    #[inline(never)]
    fn ask_all(&self, request: &H::Request, mut gathered: Gathered) -> Result<S::Reply<Answer<S>>, Refusal> {
        gathered.reverse();
        let mut rooms: SmallVec<[Room<'_>; 2]> = self.0.keys.iter().map(|_| Room::default()).collect();
        let mut hit = Hit::new();
        for (key, room) in self.0.keys.iter().zip(&mut rooms) {
            if let Some(value) = key.value(request, &mut gathered, room)? {
                hit = hit.attribute(&key.name, value);
            }
        }
        let hit = self.costing(hit, request);
        Ok(if self.0.limiter.gives_leases() {
            S::map(self.0.limiter.hold(hit), |held| Answer { decision: held.decision().clone(), held: Some(Box::new(held)) })
        } else {
            S::map(self.0.limiter.check(hit), |decision| Answer { decision, held: None })
        })
    }

    #[inline]
    fn costing<'h>(&self, hit: Hit<'h>, request: &H::Request) -> Hit<'h> {
        match &self.0.cost {
            Some(cost) => hit.cost(cost(request)),
            None => hit,
        }
    }

    /// What the answer means for a request. `held`: where there are policies that give leases.
    ///
    /// # Errors
    /// When it is not to reach the service.
    #[inline(always)]
    pub fn admit(&self, decision: &mut Decision, held: Option<Box<Held<S>>>, request: &H::Request) -> Result<Stake<S>, Refusal> {
        if let Some(hook) = &self.0.on_decision {
            hook(decision, request);
        }
        if !decision.is_allowed() {
            #[cfg(feature = "tracing")]
            trace(decision);
            return Err(Refusal::Denied(Arc::new(decision.clone())));
        }
        let claim = (self.judges() || self.0.settle_by_handler).then(|| {
            let receipt = decision.take_receipt();
            let settle = self.0.settle_by_handler.then(Settle::default);
            let limiter = self.0.limiter.clone();
            Box::new(Claim { limiter, receipt, settle, is_provisional: self.0.charge_if.is_some() })
        });
        Ok(Stake::new(&self.0.limiter, held.filter(|held| held.has_leases()), claim))
    }

    /// What a response means for what was charged; to be awaited before the response goes on, so that who has read it finds it done.
    pub fn answered(&self, stake: &mut Stake<S>, response: &H::Response) -> Option<Correction<S>> {
        let charged = self.0.charge_if.as_ref().is_none_or(|charge_if| charge_if(response));
        let actual = self.0.settle_with.as_ref().and_then(|settle_with| settle_with(response));
        stake.answered(charged, actual)
    }

    /// Whether a response can mean anything for what was charged.
    pub fn judges(&self) -> bool {
        self.0.charge_if.is_some() || self.0.settle_with.is_some()
    }

    /// Gives back what was charged for a request that has gone before it was answered.
    pub fn abandon(&self, told: S::Told<Answer<S>>) {
        let limiter = self.0.limiter.clone();
        self.0.limiter.detach(async move {
            if let Ok(mut answer) = told.await
                && let Some(receipt) = answer.decision.take_receipt()
            {
                drop(Correction::new(limiter, receipt, None)); // goes on by itself
            }
        });
    }

    /// Tells of a refusal, once for each, and makes the denial that was set in the place of problem+json.
    pub fn custom_denial(&self, refusal: &Refusal, request: &H::Request) -> Option<H::Denial> {
        if let Some(hook) = &self.0.on_refusal {
            hook(refusal, request);
        }
        #[cfg(feature = "tracing")]
        if refusal.decision().is_none() {
            tracing::debug!(status = refusal.status(), why = refusal.detail(), "request refused");
        }
        self.0.denial.as_ref().map(|denial| denial(refusal, request))
    }

    /// The dialect that was set.
    pub fn headers(&self) -> Dialect {
        self.0.dialect
    }

    /// Whether the decision goes into the request's extensions.
    pub fn extends(&self) -> bool {
        self.0.extends
    }
}

/// The policy and the wait, and nothing that a user has sent.
#[cfg(feature = "tracing")]
fn trace(decision: &Decision) {
    if let Some(outcome) = decision.strictest() {
        let (policy, source) = (outcome.policy(), outcome.source());
        tracing::debug!(policy, retry_after = ?outcome.retry_after(), ?source, "request denied");
    }
}

/// What has been asked about a request.
pub enum Asked<S: Store, T> {
    /// A rule says that it is not limited.
    Skipped,
    /// It cannot be decided.
    Refused(Refusal),
    /// It was answered at once, and this was made of the answer.
    Answered(T),
    /// It is awaited: then it is for [`RateLimit::admit`], or for [`RateLimit::abandon`].
    Asking(S::Told<Answer<S>>),
}

/// What the limiter has answered.
pub struct Answer<S: Store> {
    /// What was decided.
    pub decision: Decision,
    /// Where there are policies that give leases.
    pub held: Option<Box<Held<S>>>,
}

/// Facts that are awaited, and what they have come to.
pub type Gathering = Pin<Box<dyn Future<Output = Gathered> + Send>>;
/// In the order of the keys that are awaited.
pub type Gathered = Vec<Option<Vec<u8>>>;

impl<Q: Request + ?Sized> Key<Q> {
    /// Its value, if the request has one. `gathered`: what is awaited has come to, the next one last.
    #[inline(always)]
    fn value<'r, 'q>(
        &self,
        request: &'q Q,
        gathered: &mut Gathered,
        room: &'r mut Room<'q>,
    ) -> Result<Option<&'r [u8]>, Refusal> {
        match &self.fact.0 {
            Kind::Address(proxies) => return room.text.of(proxies, request).map(Some).ok_or(Refusal::NoAddress),
            Kind::Now(fact) => room.value = fact(request),
            Kind::Late(_) => room.value = gathered.pop().flatten().map(Cow::Owned),
        }
        if room.value.is_none() && self.is_required {
            return Err(Refusal::Missing(self.name.to_string()));
        }
        Ok(room.value.as_deref())
    }
}

impl<Q: ?Sized> Clone for Key<Q> {
    fn clone(&self) -> Self {
        Self { name: Arc::clone(&self.name), fact: Arc::clone(&self.fact), is_required: self.is_required }
    }
}

impl<S: Store, H: Http> Clone for RateLimit<S, H> {
    /// The same settings and the same limiter.
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store, H: Http> Settings<S, H> {
    fn only(&self) -> Option<Short> {
        let [Key { name, fact, .. }] = self.keys.as_slice() else { return None };
        let is_peer = matches!(&fact.0, Kind::Address(proxies) if proxies.header().is_none());
        let charges_all = self.skips.is_empty() && self.cost.is_none();
        let corrects = self.charge_if.is_some() || self.settle_with.is_some() || self.settle_by_handler;
        let is_watched = self.on_decision.is_some();
        Short::of(name).filter(|_| is_peer && charges_all && !corrects && !is_watched)
    }
}

impl<S: Store, H: Http> Clone for Settings<S, H> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            keys: self.keys.clone(),
            skips: self.skips.clone(),
            cost: self.cost.clone(),
            charge_if: self.charge_if.clone(),
            settle_with: self.settle_with.clone(),
            settle_by_handler: self.settle_by_handler,
            on_decision: self.on_decision.clone(),
            on_refusal: self.on_refusal.clone(),
            denial: self.denial.clone(),
            dialect: self.dialect,
            extends: self.extends,
            only: self.only,
        }
    }
}

impl<S: Store, H: Http> fmt::Debug for RateLimit<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.0.keys.iter().map(|key| &key.name).collect();
        f.debug_struct("RateLimit")
            .field("limiter", &self.0.limiter)
            .field("keys", &keys)
            .field("dialect", &self.0.dialect)
            .finish_non_exhaustive()
    }
}
