//! What stores speak: asks in, records out. A store looks states up, locks them and applies an algorithm; it knows
//! nothing of matching or sentences.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    Algorithm, Decision, Hit, Limiter, Ranked, Receipt, StoreError,
    algorithm::{Charge, Stored, Verdict},
    error::ConfigError,
    key::{Digester, Key, Short},
    label::Label,
    lease::{LEASE, Lease, Leases},
    limiter::Inner,
    set::{PolicySet, Stance},
};
use memory::Keeper;

/// Where states live, and with that how a limiter answers: at once ([`Memory`](crate::Memory)), or to who awaits it
#[cfg_attr(feature = "redis", doc = "([`Redis`](crate::Redis)).")]
#[cfg_attr(not(feature = "redis"), doc = "(`Redis`, with the feature of that name).")]
///
/// Only the stores of this crate implement it: its methods, which are not shown, are what [`Limiter`] is made of.
#[expect(private_interfaces, reason = "nobody else is to call or to implement these")]
pub trait Store: Sized + Send + Sync + 'static {
    /// What the methods of a limiter on this store return where others return a `T`.
    type Reply<T: Send + 'static>: Send;

    /// What awaiting gives where others return a `T`: that, or on a store that is elsewhere a `Result` of it.
    #[cfg(feature = "waiting")]
    type Awaited<T: Send + 'static>: Send;

    /// A future of what a reply comes to.
    type Told<T: Send + 'static>: Future<Output = Result<T, StoreError>> + Send + Unpin + 'static;

    /// What a reply comes to, for code that is for any store: memory always answers, and at once.
    ///
    /// ```
    /// use tidegate::{Limiter, Store, StoreError};
    ///
    /// async fn is_allowed<S: Store>(limiter: &Limiter<S>, key: &str) -> Result<bool, StoreError> {
    ///     let decision = S::told(limiter.check(key)).await?;
    ///     Ok(decision.is_allowed())
    /// }
    /// ```
    fn told<T: Send + 'static>(reply: Self::Reply<T>) -> Self::Told<T>;

    /// What a reply comes to if that is known already, as it is in memory. Where it is: a decision is large to hand on.
    fn now<T: Send + 'static>(_reply: &mut Self::Reply<T>) -> Option<&mut T> {
        None
    }

    /// Begins to serve.
    #[doc(hidden)]
    fn start(&mut self, max_keys: usize) -> Result<(), ConfigError>;

    /// What it has from an earlier life, as the set of policies that it had then.
    #[doc(hidden)]
    fn restore(&mut self, _max_keys: usize, _now: u64) -> Option<PolicySet> {
        None
    }

    /// What is to be dropped with the last handle of a limiter.
    #[doc(hidden)]
    fn keep(_inner: &Arc<Inner<Self>>) -> Option<Arc<Keeper>> {
        None
    }

    /// How many instances share a quota when each decides by itself; nothing where none ever does.
    #[doc(hidden)]
    fn shared_by(&self) -> Option<u64>;

    /// How far this store's clock is ahead of the machine's, in microseconds.
    #[doc(hidden)]
    fn ahead(&self) -> i64 {
        0
    }

    #[doc(hidden)]
    fn decide(limiter: &Limiter<Self>, hit: &Hit<'_>, intent: Intent) -> Self::Reply<Decision>;

    /// Charges a hit of one attribute that costs 1, if that is soon done and it is allowed; else does nothing.
    #[doc(hidden)]
    #[inline]
    fn pass(_limiter: &Limiter<Self>, _attribute: Short, _value: Short) -> bool {
        false
    }

    /// The same, and what was decided.
    #[doc(hidden)]
    #[inline]
    fn allow(_limiter: &Limiter<Self>, _attribute: Short, _value: Short) -> Option<Decision> {
        None
    }

    /// Forgets the keys of a hit.
    #[doc(hidden)]
    fn reset(limiter: &Limiter<Self>, hit: &Hit<'_>) -> Self::Reply<Decision>;

    /// Corrects what a receipt proves to `actual`; nothing: takes it back whole.
    #[doc(hidden)]
    fn amend(limiter: &Limiter<Self>, receipt: Receipt, actual: Option<u64>) -> Self::Reply<Decision>;

    /// Renews leases, or releases them. Answers whether all of enforced policies are held that were to be renewed, or any that was to be
    /// released.
    #[doc(hidden)]
    fn lease(limiter: &Limiter<Self>, leases: Vec<Lease>, renews: bool) -> Self::Reply<bool>;

    /// Releases leases, and tells nobody.
    #[doc(hidden)]
    fn let_go(limiter: &Limiter<Self>, leases: Vec<Lease>);

    /// What is stored for a key, and for how long yet, in microseconds.
    #[doc(hidden)]
    fn inspect(limiter: &Limiter<Self>, ask: Ask) -> Self::Reply<(Stored, u64)>;

    /// The keys that a policy denied most, worst first.
    #[doc(hidden)]
    fn top(limiter: &Limiter<Self>, policy: u16, n: usize) -> Self::Reply<Vec<Ranked>>;

    /// Sees to it that a future comes to its end.
    #[doc(hidden)]
    fn detach(limiter: &Limiter<Self>, future: impl Future<Output = ()> + Send + 'static);

    /// A reply that is known already.
    #[doc(hidden)]
    fn known<T: Send + 'static>(value: T) -> Self::Reply<T>;

    /// One set of policies has come in the place of another.
    #[doc(hidden)]
    fn replaced(&self, old: &PolicySet, new: &PolicySet);

    #[doc(hidden)]
    #[cfg(feature = "waiting")]
    fn awaited<T: Send + 'static>(told: Result<T, StoreError>) -> Self::Awaited<T>;

    /// Checks a hit. Dropped before it has answered, it gives back what was charged.
    #[doc(hidden)]
    #[cfg(feature = "waiting")]
    fn ask(limiter: &Limiter<Self>, hit: &Hit<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// How keys stand; no records where that cannot be told. The asks are in the order in which to lock.
    #[doc(hidden)]
    #[cfg(feature = "waiting")]
    fn foresee(limiter: &Limiter<Self>, set: Arc<PolicySet>, asks: Asks) -> Self::Reply<Records>;

    #[doc(hidden)]
    fn map<T: Send + 'static, U: Send + 'static>(
        reply: Self::Reply<T>,
        change: impl FnOnce(T) -> U + Send + 'static,
    ) -> Self::Reply<U>;
}

/// What one policy is asked about one hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    /// Index of the policy in its set, and of the quota in the policy.
    pub(crate) policy: u16,
    pub(crate) plan: u16,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// What to do with the asks of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Charge all if all enforced policies allow, else none.
    Check,
    /// Charge nothing.
    Peek,
    /// Charge all, above the limit too.
    Charge,
}

impl Intent {
    /// Whether a policy is charged. `admitted`: all enforced policies allow.
    #[inline]
    pub(crate) fn charges(self, cost: u64, verdict: Verdict, admitted: bool) -> bool {
        let charges = match self {
            Self::Check => admitted && verdict == Verdict::Allowed,
            Self::Peek => false,
            Self::Charge => true,
        };
        charges && cost > 0
    }
}

/// What is to be done about a charge: give back of it, or charge more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amendment {
    Refund { at: u64, amount: u64 },
    Charge { amount: u64 },
}

/// Who answered for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store, from the key's own state.
    Store,
    /// The store, from a state that fresh keys share while it is full of keys that are at their limits.
    Overflow,
    /// This process remembers that the store has denied the key, and for how long.
    DenyCache,
    /// This process, because the store did not answer: what the policy says of that case.
    Fallback,
}

impl Source {
    /// The name in answers, metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Overflow => "overflow",
            Self::DenyCache => "deny-cache",
            Self::Fallback => "fallback",
        }
    }
}

/// What a store answers to an ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) source: Source,
    /// After this hit, if it was charged.
    pub(crate) used: u64,
    pub(crate) reset_after: u64,
    /// A cost of 0 if nothing was charged.
    pub(crate) charged: Charge,
}

/// What one policy was asked and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) ask: Ask,
    /// 0: the key is blocked.
    pub(crate) limit: u64,
    pub(crate) answer: Answer,
    pub(crate) label: Label,
}

/// What a hit asks of a set of policies.
pub(crate) struct Question {
    /// In the order in which to lock.
    pub(crate) asks: Asks,
    /// Of policies that block the key: mostly none.
    blocking: Vec<Ask>,
}

impl Question {
    pub(crate) fn new(set: &PolicySet, hit: &Hit<'_>, digester: &Digester) -> Self {
        let mut question = Self { asks: Asks::new(), blocking: Vec::new() };
        for stance in set.stances(hit, digester) {
            match stance {
                Stance::Decides(ask) => question.asks.push(ask),
                Stance::Blocks(ask) => question.blocking.push(ask),
                Stance::Silent => {}
            }
        }
        question
    }

    /// What is left of it where it is to be decided so: to record a cost takes no lease, nor does a check where it could not be released.
    pub(crate) fn asked_to(mut self, intent: Intent, hit: &Hit<'_>, leases: Leases, set: &PolicySet) -> Self {
        let takes_none = match intent {
            Intent::Check => leases == Leases::Named && hit.get(LEASE).is_none(),
            Intent::Peek => false,
            Intent::Charge => true,
        };
        if takes_none {
            self.asks.retain(|ask| set.policies[usize::from(ask.policy)].policy.algorithm != Algorithm::Concurrency);
        }
        self
    }

    /// Whether the hit is denied whatever the asks are answered.
    pub(crate) fn is_barred(&self) -> bool {
        self.blocking.iter().any(|ask| ask.enforced)
    }

    /// The decision, once the asks are answered.
    pub(crate) fn decision(&self, set: &PolicySet, mut records: Records) -> Decision {
        records.extend(self.blocking.iter().map(|ask| blocked(set, *ask)));
        Decision::new(records)
    }
}

/// The answer of a policy that blocks the key.
fn blocked(set: &PolicySet, ask: Ask) -> Record {
    let answer =
        Answer { verdict: Verdict::Never, source: Source::Store, used: 0, reset_after: 0, charged: Charge { at: 0, cost: 0 } };
    Record { ask, limit: 0, answer, label: set.policies[usize::from(ask.policy)].label(ask.plan) }
}

/// The asks of one hit, and what was answered to them. Not more of them in place than most hits have: on their way to Redis and back they
/// are copied many times.
pub(crate) type Asks = SmallVec<[Ask; 2]>;
pub(crate) type Records = SmallVec<[Record; 2]>;
