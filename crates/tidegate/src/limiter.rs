//! The limiter: policies and a store make decisions. Start reading here: `decide` is the whole path of a hit.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};
#[cfg(feature = "waiting")]
use std::{pin::Pin, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::{
    Algorithm, Builder, Clock, Decision, Hit, Inspection, Memory, Policy, Quota, Ranked, Receipt, Store, SystemClock,
    error::ConfigError,
    key::{Digester, Short},
    lease::Leases,
    set::{Making, PolicySet, Prepared, Stance},
    store::{Intent, memory::Keeper},
};
#[cfg(feature = "waiting")]
use crate::{clock::Sleep, waiting::Waiting};

/// Decides hits by a set of policies. Cheap to clone; clones share everything.
///
/// ```
/// use tidegate::{Limiter, Quota};
///
/// assert!(Limiter::in_memory(Quota::per_minute(100)).check("user:42").is_allowed());
/// ```
///
/// Several policies at once are all or nothing: each is charged if all allow, none if any denies.
///
/// ```
/// use tidegate::{Hit, Limiter, Policy, Quota};
///
/// let limiter = Limiter::builder()
///     .policy(Policy::new("per-user", Quota::per_minute(100)).key(["user"]))
///     .policy(Policy::new("per-ip", Quota::per_minute(1000)).key(["ip"]))
///     .build()?;
/// let decision = limiter.check(Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7"));
/// assert_eq!(decision.outcomes().count(), 2);
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
///
/// With the store that it has unless told otherwise, memory, its methods return what they say: `check` a [`Decision`]. On a store
/// that is elsewhere they return a future of that: `S::Reply<Decision>` is whatever the [`Store`] makes of it.
pub struct Limiter<S: Store = Memory> {
    pub(crate) inner: Arc<Inner<S>>,
    /// The set at the time that this handle was made. As long as it is the newest, a hit needs no other and pays nothing
    /// for the possibility that there might be one.
    pub(crate) set: Arc<PolicySet>,
    /// Dropped with the last handle.
    pub(crate) keeper: Option<Arc<Keeper>>,
}

pub(crate) struct Inner<S> {
    pub(crate) set: ArcSwap<PolicySet>,
    /// The version of the newest set; written after the set.
    pub(crate) version: AtomicU64,
    /// Held while the set is replaced, so that no replacement is lost.
    pub(crate) replacing: Mutex<()>,
    pub(crate) store: S,
    pub(crate) clock: Time,
    pub(crate) digester: Digester,
    pub(crate) max_keys: usize,
    pub(crate) leases: Leases,
    #[cfg(feature = "waiting")]
    pub(crate) waiting: Waiting,
}

/// The usual clock is called directly, any other through a pointer.
pub(crate) enum Time {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl Limiter {
    /// One policy named `default` on the whole key, in memory: `sliding-window`, or `token-bucket` if the quota has a
    /// burst.
    pub fn in_memory(quota: Quota) -> Self {
        let algorithm = if quota.burst_size().is_some() { Algorithm::TokenBucket } else { Algorithm::default() };
        let policy = Policy::new("default", quota).algorithm(algorithm);
        let built = Self::builder().policy(policy).build();
        // A burst that takes a century to refill is the one thing left that can be wrong.
        built.unwrap_or_else(|error| panic!("{error}"))
    }

    /// For several policies, another store, another clock or another bound on memory.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How many keys each policy holds in memory, by its name; those included that have expired and not yet been swept. Looks at none of
    /// them.
    pub fn keys(&self) -> Vec<(String, usize)> {
        self.inner.set.load().policies.iter().map(|prepared| (prepared.policy.name.clone(), prepared.table.keys())).collect()
    }

    /// How much each policy holds in memory. Looks at every key: for now and then, not for every request.
    pub fn usage(&self) -> Vec<Usage> {
        let size = |prepared: &Prepared| {
            let (keys, bytes) = prepared.table.size();
            Usage { policy: prepared.policy.name.clone(), keys, bytes }
        };
        self.inner.set.load().policies.iter().map(size).collect()
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a hit, and charges it if it is allowed.
    #[inline]
    pub fn check<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Decision> {
        S::decide(self, &hit.into(), Intent::Check)
    }

    /// Decides a hit of the given cost.
    #[inline]
    pub fn check_n<'h>(&self, hit: impl Into<Hit<'h>>, cost: u64) -> S::Reply<Decision> {
        S::decide(self, &hit.into().cost(cost), Intent::Check)
    }

    /// Charges a hit of this attribute alone that costs 1, if it is allowed, for middleware that reads no decision then and so needs none made.
    /// False means nothing, and nothing has changed: the hit may be denied, or there is no such short way to its answer, as where policies
    /// are several or in Redis. It is for [`check`](Self::check) then.
    #[doc(hidden)]
    #[inline]
    pub fn pass(&self, attribute: Short, value: Short) -> bool {
        S::pass(self, attribute, value)
    }

    /// The same for middleware that reads the decision: nothing where [`pass`](Self::pass) is false.
    #[doc(hidden)]
    #[inline]
    pub fn allow(&self, attribute: Short, value: Short) -> Option<Decision> {
        S::allow(self, attribute, value)
    }

    /// What [`check`](Self::check) would decide; changes nothing.
    pub fn peek<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Decision> {
        S::decide(self, &hit.into(), Intent::Peek)
    }

    /// What is left by all enforced policies; nothing where none applies.
    pub fn remaining<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Option<u64>> {
        S::map(self.peek(hit.into().cost(0)), |decision| decision.remaining())
    }

    /// Records a cost that has already been incurred (bytes sent, tokens used), above the limit too. What is above it
    /// is paid back by waiting: later hits are denied until it has drained.
    ///
    /// No promise about how much is admitted covers what is charged this way.
    pub fn charge<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Decision> {
        S::decide(self, &hit.into(), Intent::Charge)
    }

    /// Forgets the hit's keys in every policy that applies to it, and says how they stand then.
    pub fn reset<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Decision> {
        self.making_room(S::reset(self, &hit.into()))
    }

    /// Gives back what a decision charged, as far as it still counts, and says how the keys stand then.
    ///
    /// A log forgets the entry; windows and counters subtract it from the grain or window it was counted in while that
    /// lives; buckets give back what would not have refilled since. Never more than that.
    pub fn refund(&self, receipt: Receipt) -> S::Reply<Decision> {
        self.making_room(S::amend(self, receipt, None))
    }

    /// Decides a hit whose cost is an estimate, with the receipt to [`settle`](Self::settle) it by; none where nothing was charged. What
    /// is never settled has cost its estimate.
    ///
    /// ```
    /// use tidegate::{Hit, Limiter, Quota};
    ///
    /// let tokens = Limiter::in_memory(Quota::per_minute(100_000));
    /// let (decision, receipt) = tokens.reserve(Hit::from("tenant-7").cost(4_000));
    /// assert!(decision.is_allowed());
    /// let _ = tokens.settle(receipt.expect("it was charged"), 1_250);
    /// assert_eq!(tokens.remaining("tenant-7"), Some(98_750));
    /// ```
    pub fn reserve<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<(Decision, Option<Receipt>)> {
        S::map(self.check(hit), |mut decision| {
            let receipt = decision.take_receipt();
            (decision, receipt)
        })
    }

    /// Corrects what a decision charged to the cost that turned out: the difference is refunded or charged.
    ///
    /// A policy that counts requests has nothing to correct. A receipt is good for two windows, an hour at least, and what its cost
    /// takes to come back; after that what was charged stays as it is.
    pub fn settle(&self, receipt: Receipt, actual: u64) -> S::Reply<Decision> {
        self.making_room(S::amend(self, receipt, Some(actual)))
    }

    /// Sees a future to its end though nobody awaits it, as where something is dropped. On a store that is elsewhere that is a task of the
    /// runtime that the limiter was built in; in memory, where nothing has to be waited for, it is polled once, here.
    ///
    /// ```
    /// use tidegate::{Limiter, Receipt, Store};
    ///
    /// fn give_back<S: Store>(limiter: &Limiter<S>, receipt: Receipt) {
    ///     let refunded = S::told(limiter.refund(receipt));
    ///     limiter.detach(async move { drop(refunded.await) });
    /// }
    /// # let limiter = Limiter::in_memory(tidegate::Quota::per_minute(1));
    /// # give_back(&limiter, limiter.check("a").take_receipt().unwrap());
    /// # assert_eq!(limiter.remaining("a"), Some(1));
    /// ```
    pub fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        S::detach(self, future);
    }

    /// Is ready when this limiter's clock has moved on by `duration`.
    ///
    /// # Panics
    /// By the machine's clock, outside of a tokio runtime with a timer.
    #[cfg(feature = "waiting")]
    pub fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.inner.clock.sleep_until(self.now().saturating_add(micros))
    }

    /// What is stored for the hit's key under one policy.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::in_memory(Quota::per_minute(100));
    /// let _ = limiter.check_n("user:42", 3);
    /// let stored = limiter.inspect("default", "user:42")?;
    /// assert_eq!(stored.entries[0].cost, 3);
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such policy, or the hit has no key under it.
    pub fn inspect<'h>(&self, policy: &str, hit: impl Into<Hit<'h>>) -> Result<S::Reply<Inspection>, ConfigError> {
        let set = self.inner.set.load_full();
        let index = set.find(policy)?;
        let prepared = &set.policies[usize::from(index)];
        let ask = match prepared.stance(index, &hit.into(), &self.inner.digester) {
            Stance::Decides(ask) | Stance::Blocks(ask) => ask,
            Stance::Silent => {
                let problem = "it does not apply: name its key attributes, and a key that has a limit";
                return Err(ConfigError::Policy { policy: policy.to_owned(), problem });
            }
        };
        let label = prepared.label(ask.plan);
        Ok(S::map(S::inspect(self, ask), move |(stored, lasts)| Inspection::new(&label, ask.key, stored, lasts)))
    }

    /// The keys that a policy has denied most in this hour and the last, worst first. At most 100 are known; the counts of the
    /// lower ranks are estimates.
    ///
    /// # Errors
    /// When there is no such policy.
    pub fn top(&self, policy: &str, n: usize) -> Result<S::Reply<Vec<Ranked>>, ConfigError> {
        let index = self.inner.set.load().find(policy)?;
        Ok(S::top(self, index, n))
    }

    /// Replaces the whole set of policies while serving.
    ///
    /// A policy keeps its history if its name, key attributes and algorithm stay the same: a raised limit gives more
    /// at once, a lowered one denies until enough has drained, and a changed window judges what the old one still
    /// holds. No decision mixes two sets.
    ///
    /// # Errors
    /// When the policies are wrong; nothing has changed then.
    pub fn configure(&self, policies: impl IntoIterator<Item = Policy>) -> Result<(), ConfigError> {
        self.configure_under(policies, || ())
    }

    /// As [`configure`](Self::configure), for who has something else to change in the same moment: `lock` is called when the policies are
    /// known to be right, and what it returns is dropped as soon as they are in force.
    ///
    /// # Errors
    /// When the policies are wrong; `lock` has not been called then.
    pub fn configure_under<G>(
        &self,
        policies: impl IntoIterator<Item = Policy>,
        lock: impl FnOnce() -> G,
    ) -> Result<(), ConfigError> {
        let _replacing = self.inner.replacing.lock();
        self.replace(policies.into_iter().collect(), lock)
    }

    /// Replaces the quota of one policy while serving, as [`configure`](Self::configure) does.
    ///
    /// # Errors
    /// When there is no such policy or the quota does not fit its algorithm; nothing has changed then.
    pub fn set_quota(&self, policy: &str, quota: Quota) -> Result<(), ConfigError> {
        let _replacing = self.inner.replacing.lock();
        let mut policies = self.policies();
        let known =
            policies.iter_mut().find(|known| known.name == policy).ok_or_else(|| ConfigError::Unknown(policy.to_owned()))?;
        known.quota = quota;
        self.replace(policies, || ())
    }

    #[cfg(not(feature = "waiting"))]
    fn making_room(&self, reply: S::Reply<Decision>) -> S::Reply<Decision> {
        reply
    }

    fn replace<G>(&self, policies: Vec<Policy>, lock: impl FnOnce() -> G) -> Result<(), ConfigError> {
        let Inner { set, version, store, digester, max_keys, .. } = &*self.inner;
        let serve = |new: Arc<PolicySet>| {
            let newest = new.version;
            set.store(new);
            version.store(newest, Release);
        };
        let old = set.load();
        let now = self.inner.store_time();
        let making = Making { old: Some(&old), digester, max_keys: *max_keys, now, shared_by: store.shared_by() };
        let new = Arc::new(PolicySet::new(policies, &making)?);
        {
            let _locked = lock();
            serve(Arc::clone(&new));
        }
        store.replaced(&old, &new);
        if new.has_long_pasts() {
            Memory::carry_over(&new);
            serve(Arc::new(new.without_long_pasts()));
        }
        #[cfg(feature = "waiting")]
        self.inner.waiting.wake_all();
        Ok(())
    }

    /// The policies in force.
    pub fn policies(&self) -> Vec<Policy> {
        self.inner.set.load().policies.iter().map(|prepared| Policy::clone(&prepared.policy)).collect()
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Whether no other set has come in the place of the one that this handle was made with.
    #[inline]
    pub(crate) fn is_newest(&self) -> bool {
        self.set.version == self.inner.version.load(Acquire)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.inner.clock.now()
    }
}

impl<S: Store> Inner<S> {
    /// What time it is where the store is, as far as it is known here.
    pub(crate) fn store_time(&self) -> u64 {
        match &self.clock {
            Time::System(clock) => clock.epoch_micros().saturating_add_signed(self.store.ahead()),
            Time::Other(clock) => clock.epoch_micros(),
        }
    }
}

impl Time {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::System(clock) => clock.epoch_micros(),
            Self::Other(clock) => clock.epoch_micros(),
        }
    }

    #[cfg(feature = "waiting")]
    pub(crate) fn sleep_until(&self, epoch_micros: u64) -> Sleep {
        match self {
            Self::System(clock) => clock.sleep_until(epoch_micros),
            Self::Other(clock) => clock.sleep_until(epoch_micros),
        }
    }
}

impl<S: Store> Clone for Limiter<S> {
    /// Another handle on the same limiter.
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), set: self.inner.set.load_full(), keeper: self.keeper.clone() }
    }
}

impl<S: Store> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("policies", &self.policies()).finish_non_exhaustive()
    }
}

/// What one policy holds in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The policy's name.
    pub policy: String,
    /// Keys held, those included that have expired and not yet been swept.
    pub keys: usize,
    /// An estimate of their bytes.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_gone_holds_nothing_though_handles_still_know_it() {
        let limiter = Limiter::in_memory(Quota::per_hour(5));
        (0..1000).for_each(|user| drop(limiter.check(&user.to_string())));
        let table = limiter.set.policies[0].table.clone();
        assert_eq!(table.size().0, 1000);
        assert_eq!(limiter.keys(), [("default".to_owned(), 1000)]);
        limiter.configure([Policy::new("other", Quota::per_hour(5))]).expect("a policy");
        assert_eq!(table.size().0, 0);
        assert_eq!(limiter.check("1").strictest().expect("it applies").policy(), "other");
    }

    #[test]
    fn who_only_looks_is_not_among_those_denied_most() {
        let clock = crate::ManualClock::default();
        let policies = ["one", "two"].map(|name| Policy::new(name, Quota::per_hour(1)));
        for count in [1, 2] {
            let limiter = Limiter::builder().policies(policies[..count].to_vec()).clock(clock.clone()).build().expect("policies");
            let denied = || limiter.top("one", 9).expect("a policy").iter().map(|ranked| ranked.denied).collect::<Vec<_>>();
            assert!(limiter.check("a").is_allowed());
            // Of a key that is there, and of one that is not.
            for hit in [Hit::from("a"), Hit::from("b").cost(2)] {
                assert!(!limiter.peek(&hit).is_allowed());
                let _ = limiter.charge(&hit);
            }
            assert_eq!(denied(), []);
            assert!(!limiter.check("a").is_allowed());
            assert_eq!(denied(), [1]);
        }
    }

    #[test]
    fn states_are_written_anew_before_a_policy_has_too_long_a_past() {
        let limiter = Limiter::in_memory(Quota::per_hour(1000));
        let _ = limiter.check_n("a", 7);
        for limit in 1..500 {
            limiter.set_quota("default", Quota::per_hour(1000 + limit)).expect("a quota");
            assert!(!limiter.clone().set.policies[0].has_long_past());
            assert_eq!(limiter.remaining("a"), Some(993 + limit));
        }
    }

    #[test]
    fn a_receipt_for_a_great_debt_stays_used_until_the_debt_is_paid() {
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
            let clock = crate::ManualClock::default();
            let policy = Policy::new("default", Quota::per_second(10)).algorithm(algorithm);
            let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().expect("a policy");
            let receipt = |cost| limiter.charge(Hit::from("a").cost(cost)).take_receipt().expect("charged");
            let text = receipt(1000).to_string();
            let _ = limiter.refund(text.parse().expect("a receipt"));
            let _ = limiter.charge(Hit::from("a").cost(1000));
            clock.advance(std::time::Duration::from_secs(10));
            // Enough of them that the ledger looks what it can forget.
            (0..200).for_each(|_| drop(limiter.refund(receipt(1))));
            let again = limiter.refund(text.parse().expect("a receipt"));
            let used = again.strictest().expect("it applies").used();
            assert_eq!(used, 900, "{algorithm}");
        }
    }

    #[test]
    fn a_receipt_gives_nothing_back_from_a_policy_that_was_away() {
        for algorithm in Algorithm::RATES {
            let policy = Policy::new("default", Quota::per_day(10)).algorithm(*algorithm);
            let limiter = Limiter::builder().clock(crate::ManualClock::default()).build().expect("no policy");
            let configure = |policies: &[Policy]| limiter.configure(policies.iter().cloned()).expect("policies");
            configure(std::slice::from_ref(&policy));
            let receipt = limiter.check_n("a", 5).take_receipt().expect("allowed");
            configure(&[]);
            configure(&[policy]);
            let _ = limiter.check_n("a", 5);
            let refunded = limiter.refund(receipt);
            assert_eq!(refunded.strictest().expect("it applies").used(), 5, "{algorithm}");
        }
    }

    #[test]
    fn decisions_and_limiters_cross_threads() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<Limiter>();
        crosses::<Decision>();
        crosses::<Receipt>();
    }
}
