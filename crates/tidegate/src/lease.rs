//! Leases: places that are taken for as long as something runs, by policies of the algorithm `concurrency`.

use std::hash::{BuildHasher as _, RandomState};

use crate::{
    Algorithm, Decision, Hit, Limiter, Memory, Policy, Receipt, Source, Store,
    key::{Digester, Key},
    set::{PolicySet, Stance},
    store::{Ask, Intent},
};

/// A lease under one policy.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    policy: String,
    key: Key,
    /// What stands for its id.
    number: u64,
}

impl Lease {
    pub(crate) fn new(policy: &str, key: Key, number: u64) -> Self {
        Self { policy: policy.to_owned(), key, number }
    }
}

/// The attribute of a hit that is the id of its lease.
pub(crate) const LEASE: &str = "lease";

/// Which hits take leases when they are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leases {
    /// All; one that has no name ends by itself.
    #[default]
    Any,
    /// Those that name them.
    Named,
}

/// The number of a lease, which is what a hit costs a policy of the algorithm `concurrency`: of its key and its id if it has one, else
/// of one that nobody knows. From 1 to 2^53 - 1.
pub(crate) fn number(hit: &Hit<'_>, key: &Key, digester: &Digester) -> u64 {
    let number = match hit.get(LEASE) {
        Some(id) => digester.number(&[&key.to_bytes(), id].concat()),
        None => u64::from_be_bytes(anonymous()),
    };
    (number >> 11).max(1)
}

impl PolicySet {
    /// The leases that a hit is about.
    fn leases(&self, hit: &Hit<'_>, digester: &Digester) -> Vec<Lease> {
        let lease = |stance| match stance {
            Stance::Decides(Ask { key, policy, .. }) | Stance::Blocks(Ask { key, policy, .. }) => {
                let policy = &self.policies[usize::from(policy)].policy;
                let named = || Lease::new(&policy.name, key, number(hit, &key, digester));
                (policy.algorithm == Algorithm::Concurrency).then(named)
            }
            Stance::Silent => None,
        };
        self.stances(hit, digester).filter_map(lease).collect()
    }

    /// The ask for a lease, if its policy is still there.
    pub(crate) fn lease(&self, lease: &Lease) -> Option<Ask> {
        match self.stance(lease)? {
            Stance::Decides(ask) | Stance::Blocks(ask) => Some(ask),
            Stance::Silent => None,
        }
    }

    /// What the policy of a lease has to say to its key now.
    fn stance(&self, lease: &Lease) -> Option<Stance> {
        let index = self.find(&lease.policy).ok()?;
        let prepared = &self.policies[usize::from(index)];
        (prepared.policy.algorithm == Algorithm::Concurrency).then(|| prepared.treat(index, lease.key, lease.number))
    }

    /// Whether the key of a lease is blocked, which ends it.
    fn blocks(&self, lease: &Lease) -> bool {
        matches!(self.stance(lease), Some(Stance::Blocks(ask)) if ask.enforced)
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a hit as [`check`](Self::check) does, and releases its leases when what this returns is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Policy};
    ///
    /// let limiter = Limiter::builder().policy(Policy::concurrency("uploads", 1, Duration::from_secs(30))).build()?;
    /// let first = limiter.hold("user:42");
    /// assert!(first.is_allowed());
    /// assert!(!limiter.hold("user:42").is_allowed());
    /// drop(first);
    /// assert!(limiter.hold("user:42").is_allowed());
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    ///
    /// A lease ends by itself after its time to live, so that who dies frees it; [`Held::renew`] makes it last. Only what this hit was
    /// given is released: a [named](Hit::lease) lease that was held before stays.
    pub fn hold<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Held<S>> {
        let hit = hit.into();
        if !self.gives_leases() {
            // The usual case: a check. A lease that a policy gives which has come this very moment ends by itself.
            return S::map(self.check(hit), |decision| Held { decision, grip: None });
        }
        let own = anonymous();
        let leased = hit.leased(&own);
        // Made first: who gives up waiting for the answer gives up the lease that may have been given. One that has a name may be
        // somebody's already, and is given up by its name.
        let is_own = hit.get(LEASE).is_none();
        let asked = if is_own { self.inner.set.load().leases(&leased, &self.inner.digester) } else { Vec::new() };
        let mut grip = Grip { limiter: self.clone(), leases: asked };
        S::map(S::decide(self, &leased, Intent::Check), move |decision: Decision| {
            if decision.is_allowed() {
                grip.leases = decision.leases();
            } else if !decision.outcomes().any(|outcome| outcome.source() == Source::Fallback) {
                // Else the store may have given it, and its answer have been lost.
                grip.leases.clear();
            }
            Held { decision, grip: Some(grip) }
        })
    }

    /// Whether any policy in force is of [`concurrency`](crate::Policy::concurrency). Where none is, [`hold`](Self::hold) is a check.
    #[inline]
    pub fn gives_leases(&self) -> bool {
        if self.is_newest() { self.set.gives_leases } else { self.inner.set.load().gives_leases }
    }

    /// Whether a policy of [`concurrency`](crate::Policy::concurrency) applies to the hit: it has all key attributes of one and meets its
    /// conditions. To [`renew`](Self::renew) a lease where none does, or where the key is unlimited, is true and means nothing.
    pub fn gives_lease_to<'h>(&self, hit: impl Into<Hit<'h>>) -> bool {
        let hit = hit.into();
        let applies = |policy: &Policy| {
            let has_key = || policy.key.iter().all(|attribute| hit.get(attribute).is_some());
            policy.algorithm == Algorithm::Concurrency && policy.matches(&hit) && has_key()
        };
        self.inner.set.load().policies.iter().any(|prepared| applies(&prepared.policy))
    }

    /// Makes the leases of a hit last for another time to live from now; the hit names them by its [`lease`](Hit::lease). False where an
    /// enforced policy's is not held: it has ended, and somebody else may have its place, or its key has been blocked. What the hit holds
    /// under other policies is renewed all the same.
    pub fn renew<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<bool> {
        self.prolong(self.inner.set.load().leases(&hit.into(), &self.inner.digester))
    }

    fn prolong(&self, leases: Vec<Lease>) -> S::Reply<bool> {
        let set = self.inner.set.load();
        let (blocked, others): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(|lease| set.blocks(lease));
        S::map(S::lease(self, others, true), move |held| held && blocked.is_empty())
    }

    /// Ends the leases of a hit; the hit names them by its [`lease`](Hit::lease). False where none was held.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Hit, Limiter, Policy};
    ///
    /// let limiter = Limiter::builder().policy(Policy::concurrency("jobs", 10, Duration::from_secs(60))).build()?;
    /// let job = Hit::from("tenant-7").lease("job-4711");
    /// assert!(limiter.check(&job).is_allowed());
    /// assert!(limiter.renew(&job));
    /// assert!(limiter.release(&job));
    /// assert!(!limiter.renew(&job));
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    pub fn release<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<bool> {
        self.end(self.inner.set.load().leases(&hit.into(), &self.inner.digester))
    }

    /// As [`release`](Self::release), for who does not wait for it: a store that does not answer is asked again for some seconds.
    pub fn let_go<'h>(&self, hit: impl Into<Hit<'h>>) {
        S::let_go(self, self.inner.set.load().leases(&hit.into(), &self.inner.digester));
    }

    pub(crate) fn end(&self, leases: Vec<Lease>) -> S::Reply<bool> {
        self.making_places(leases.clone(), S::lease(self, leases, false))
    }

    #[cfg(not(feature = "waiting"))]
    fn making_places(&self, _leases: Vec<Lease>, reply: S::Reply<bool>) -> S::Reply<bool> {
        reply
    }
}

/// A decision, and the leases that it gave: dropping it releases them.
#[must_use = "the leases are released when this is dropped"]
pub struct Held<S: Store = Memory> {
    decision: Decision,
    /// Nothing where no policy gives leases.
    grip: Option<Grip<S>>,
}

/// The id of a lease that has no name.
pub(crate) fn anonymous() -> [u8; 8] {
    RandomState::new().hash_one(0).to_be_bytes()
}

/// What is released when it is dropped.
struct Grip<S: Store> {
    limiter: Limiter<S>,
    leases: Vec<Lease>,
}

impl<S: Store> Held<S> {
    /// Whether the hit may go on.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The proof of what was charged beside the leases, as [`Decision::take_receipt`].
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        self.decision.take_receipt()
    }

    /// Whether there are leases to renew or to release.
    pub fn has_leases(&self) -> bool {
        self.is_allowed() && self.grip.as_ref().is_some_and(|grip| !grip.leases.is_empty())
    }

    /// As [`Limiter::renew`].
    pub fn renew(&self) -> S::Reply<bool> {
        let allowed = self.is_allowed();
        match &self.grip {
            Some(grip) => S::map(grip.limiter.prolong(grip.leases.clone()), move |held| held && allowed),
            None => S::known(allowed),
        }
    }

    /// As [`Limiter::release`], for who wants to know that it is done.
    pub fn release(mut self) -> S::Reply<bool> {
        match &mut self.grip {
            Some(grip) => grip.limiter.end(std::mem::take(&mut grip.leases)),
            None => S::known(false),
        }
    }

    /// The decision alone: its leases end by themselves.
    pub fn into_decision(mut self) -> Decision {
        if let Some(grip) = &mut self.grip {
            grip.leases.clear();
        }
        self.decision
    }
}

impl<S: Store> Drop for Grip<S> {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            S::let_go(&self.limiter, std::mem::take(&mut self.leases));
        }
    }
}

impl<S: Store> std::fmt::Debug for Held<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("decision", &self.decision).finish_non_exhaustive()
    }
}
