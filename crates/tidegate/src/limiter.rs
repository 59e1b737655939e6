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

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::{
    Algorithm, Clock, Decision, Hit, Policy, Quota, Receipt, SystemClock,
    algorithm::{Charge, Verdict},
    error::ConfigError,
    key::Digester,
    receipt::Charged,
    set::{Making, PolicySet, Prepared, Stance},
    store::{
        Answer, Ask, Asks, Intent, Record, Source,
        memory::{Amendment, Memory, Stale},
    },
};

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
pub struct Limiter {
    inner: Arc<Inner>,
    /// The set at the time that this handle was made. As long as it is the newest, a hit needs no other and pays nothing
    /// for the possibility that there might be one.
    set: Arc<PolicySet>,
}

struct Inner {
    set: ArcSwap<PolicySet>,
    /// The version of the newest set; written after the set.
    version: AtomicU64,
    /// Held while the set is replaced, so that no replacement is lost.
    replacing: Mutex<()>,
    memory: Memory,
    clock: Time,
    digester: Digester,
    max_keys: usize,
}

/// The usual clock is called directly, any other through a pointer.
enum Time {
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

    /// For several policies, another clock or another bound on memory.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides a hit, and charges it if it is allowed.
    #[inline]
    pub fn check<'h>(&self, hit: impl Into<Hit<'h>>) -> Decision {
        self.decide(&hit.into(), Intent::Check)
    }

    /// Decides a hit of the given cost.
    #[inline]
    pub fn check_n<'h>(&self, hit: impl Into<Hit<'h>>, cost: u64) -> Decision {
        self.decide(&hit.into().cost(cost), Intent::Check)
    }

    /// What [`check`](Self::check) would decide; changes nothing.
    pub fn peek<'h>(&self, hit: impl Into<Hit<'h>>) -> Decision {
        self.decide(&hit.into(), Intent::Peek)
    }

    /// What is left by the strictest policy; nothing where no policy applies.
    pub fn remaining<'h>(&self, hit: impl Into<Hit<'h>>) -> Option<u64> {
        self.peek(hit.into().cost(0)).remaining()
    }

    /// Records a cost that has already been incurred (bytes sent, tokens used), above the limit too. What is above it
    /// is paid back by waiting: later hits are denied until it has drained.
    ///
    /// No promise about how much is admitted covers what is charged this way.
    pub fn charge<'h>(&self, hit: impl Into<Hit<'h>>) -> Decision {
        self.decide(&hit.into(), Intent::Charge)
    }

    /// Forgets the hit's keys in every policy that applies to it, and says how they stand then.
    pub fn reset<'h>(&self, hit: impl Into<Hit<'h>>) -> Decision {
        let hit = hit.into();
        let set = self.inner.set.load();
        let now = self.now();
        for stance in set.stances(&hit, &self.inner.digester) {
            if let Stance::Decides(ask) = stance {
                self.inner.memory.reset(&set, &ask, now);
            }
        }
        self.peek(hit.cost(0))
    }

    /// Gives back what a decision charged, as far as it still counts, and says how the keys stand then.
    ///
    /// A log forgets the entry; windows and counters subtract it from the grain or window it was counted in while that
    /// lives; buckets give back what would not have refilled since. Never more than that.
    pub fn refund(&self, receipt: Receipt) -> Decision {
        self.amend(&receipt, |_, _| 0)
    }

    /// Corrects what a decision charged to the cost that turned out: the difference is refunded or charged.
    ///
    /// A policy that counts requests has nothing to correct.
    pub fn settle(&self, receipt: Receipt, actual: u64) -> Decision {
        self.amend(&receipt, |policy, charged| if policy.weigh(u64::MAX) == 1 { charged } else { actual })
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
        let _replacing = self.inner.replacing.lock();
        self.replace(policies.into_iter().collect())
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
        self.replace(policies)
    }

    fn replace(&self, policies: Vec<Policy>) -> Result<(), ConfigError> {
        let Inner { set, version, digester, max_keys, .. } = &*self.inner;
        let serve = |new: Arc<PolicySet>| {
            let newest = new.version;
            set.store(new);
            version.store(newest, Release);
        };
        let old = set.load();
        let making = Making { old: Some(&old), digester, max_keys: *max_keys, now: self.now() };
        let new = Arc::new(PolicySet::new(policies, &making)?);
        serve(Arc::clone(&new));
        Memory::clear_gone(&old, &new);
        if new.policies.iter().any(Prepared::has_long_past) {
            Memory::carry_over(&new);
            serve(Arc::new(new.without_long_pasts()));
        }
        Ok(())
    }

    /// The policies in force.
    pub fn policies(&self) -> Vec<Policy> {
        self.inner.set.load().policies.iter().map(|prepared| Policy::clone(&prepared.policy)).collect()
    }

    /// How much each policy holds in memory. Looks at every key: for now and then, not for every request.
    pub fn usage(&self) -> Vec<Usage> {
        let size = |prepared: &Prepared| {
            let (keys, bytes) = prepared.table.size();
            Usage { policy: prepared.policy.name.clone(), keys, bytes }
        };
        self.inner.set.load().policies.iter().map(size).collect()
    }

    /// The path of every hit.
    #[inline]
    fn decide(&self, hit: &Hit<'_>, intent: Intent) -> Decision {
        let now = self.now();
        if self.set.version == self.inner.version.load(Acquire) {
            self.decide_by(&self.set, hit, intent, now)
        } else {
            self.decide_by_newest(hit, intent, now)
        }
    }

    /// One simple policy is the usual case and goes straight to its table.
    #[inline]
    fn decide_by(&self, set: &PolicySet, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        let Inner { memory, digester, .. } = &*self.inner;
        match set.only_ask(hit, digester) {
            Some((prepared, ask)) => memory.decide_one(prepared, ask, intent, now, || self.decide_all(hit, intent, now)),
            None => self.decide_all(hit, intent, now),
        }
    }

    /// For a handle that was made before the policies were last replaced.
    #[inline(never)]
    fn decide_by_newest(&self, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        self.decide_by(&self.inner.set.load(), hit, intent, now)
    }

    /// The path of a hit in every case.
    #[inline(never)]
    fn decide_all(&self, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        let Inner { set, memory, digester, .. } = &*self.inner;
        loop {
            let set = set.load();
            let mut asks = Asks::new();
            let mut blocking = Asks::new();
            for stance in set.stances(hit, digester) {
                match stance {
                    Stance::Decides(ask) => asks.push(ask),
                    Stance::Blocks(ask) => blocking.push(ask),
                    Stance::Silent => {}
                }
            }
            let barred = blocking.iter().any(|ask| ask.enforced);
            if let Ok(mut records) = memory.decide(&set, &asks, intent, barred, now) {
                records.extend(blocking.iter().map(|ask| blocked(&set, *ask)));
                return Decision::new(records);
            }
            // The set was replaced under us, and by now is there to be loaded.
        }
    }

    /// Brings each charge of a receipt to what `target` says of its policy and cost, and says how the keys stand then.
    fn amend(&self, receipt: &Receipt, target: impl Fn(&Policy, u64) -> u64) -> Decision {
        let Inner { set, memory, .. } = &*self.inner;
        let now = self.now();
        let until = receipt.charges.iter().map(|charged| set.load().forgotten_at(charged)).max().unwrap_or(now);
        if memory.ledger.spend(receipt.id, until, now) {
            for charged in &receipt.charges {
                while self.amend_one(charged, now, &target).is_err() {}
            }
        }
        loop {
            let set = set.load();
            let mut asks: Asks = receipt.charges.iter().filter_map(|charged| set.ask(charged)).collect();
            asks.sort_by_key(|ask| set.policies[usize::from(ask.policy)].table.made());
            if let Ok(records) = memory.decide(&set, &asks, Intent::Peek, false, now) {
                return Decision::new(records);
            }
        }
    }

    fn amend_one(&self, charged: &Charged, now: u64, target: impl Fn(&Policy, u64) -> u64) -> Result<(), Stale> {
        let set = self.inner.set.load();
        let Some(ask) = set.ask(charged) else { return Ok(()) };
        let prepared = &set.policies[usize::from(ask.policy)];
        if self.inner.memory.ledger.is_void(prepared.table.made(), charged.key, charged.at) {
            return Ok(());
        }
        let target = target(&prepared.policy, charged.cost);
        let other_terms = prepared.policy.algorithm.terms(prepared.plan(ask.plan)) != charged.terms
            || charged.at < prepared.same_terms_since(&charged.key);
        let amendment = match charged.cost.checked_sub(target) {
            Some(0) => return Ok(()),
            // How much of it still counts is no longer known: nothing, to be safe.
            Some(_) if other_terms => return Ok(()),
            Some(amount) => Amendment::Refund { at: charged.at, amount },
            None => Amendment::Charge { amount: target - charged.cost },
        };
        self.inner.memory.amend(&set, &ask, &amendment, now)
    }

    #[inline]
    fn now(&self) -> u64 {
        self.inner.clock.now()
    }
}

impl Time {
    #[inline]
    fn now(&self) -> u64 {
        match self {
            Self::System(clock) => clock.epoch_micros(),
            Self::Other(clock) => clock.epoch_micros(),
        }
    }
}

/// The answer of a policy that blocks the key.
fn blocked(set: &PolicySet, ask: Ask) -> Record {
    let charged = Charge { at: 0, cost: 0 };
    let answer = Answer { verdict: Verdict::Never, source: Source::Store, used: 0, reset_after: 0, charged };
    Record { ask, limit: 0, answer, label: set.policies[usize::from(ask.policy)].label(ask.plan) }
}

impl Clone for Limiter {
    /// Another handle on the same limiter.
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), set: self.inner.set.load_full() }
    }
}

impl fmt::Debug for Limiter {
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

/// Builds a [`Limiter`].
pub struct Builder {
    policies: Vec<Policy>,
    clock: Option<Box<dyn Clock>>,
    max_keys: usize,
    secret: Vec<u8>,
}

impl Builder {
    /// Adds a policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Adds policies.
    #[must_use]
    pub fn policies(mut self, policies: impl IntoIterator<Item = Policy>) -> Self {
        self.policies.extend(policies);
        self
    }

    /// Takes time from `clock` and not from the machine.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Box::new(clock)), ..self }
    }

    /// Bounds the keys that each policy holds; 1 048 576 unless set. Beyond it expired keys go first, then keys that are
    /// not at their limit; where there are none, fresh keys share one state and decisions say so
    /// ([`Source::Overflow`]). Threads that insert at one moment can pass the bound by one key each.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Mixes a secret into the digests of long keys, so that who sees a digest cannot try ids against it.
    #[must_use]
    pub fn key_secret(self, secret: impl Into<Vec<u8>>) -> Self {
        Self { secret: secret.into(), ..self }
    }

    /// Makes the limiter.
    ///
    /// # Errors
    /// When a policy is wrong; the error names it and says what is allowed.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let Self { policies, clock, max_keys, secret } = self;
        let digester = Digester::new(&secret);
        let clock = clock.map_or_else(|| Time::System(SystemClock::new()), Time::Other);
        let set = Arc::new(PolicySet::new(policies, &Making { old: None, digester: &digester, max_keys, now: clock.now() })?);
        let inner = Inner {
            version: AtomicU64::new(set.version),
            set: ArcSwap::new(Arc::clone(&set)),
            replacing: Mutex::new(()),
            memory: Memory::new(max_keys),
            clock,
            digester,
            max_keys,
        };
        Ok(Limiter { inner: Arc::new(inner), set })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self { policies: Vec::new(), clock: None, max_keys: 1 << 20, secret: Vec::new() }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret.
        f.debug_struct("Builder").field("policies", &self.policies).field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
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
        limiter.configure([Policy::new("other", Quota::per_hour(5))]).expect("a policy");
        assert_eq!(table.size().0, 0);
        assert_eq!(limiter.check("1").strictest().expect("it applies").policy(), "other");
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
        for algorithm in Algorithm::ALL {
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
