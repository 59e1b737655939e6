//! Leases: places that are taken for as long as something runs, by policies of the algorithm `concurrency`.

use std::hash::{BuildHasher as _, RandomState};

use crate::{
    Algorithm, Decision, Hit, Limiter, Memory, Store,
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

/// The number of a lease, which is what a hit costs a policy of the algorithm `concurrency`: of its id if it has one, else of one that
/// nobody knows. From 1 to 2^53 - 1.
pub(crate) fn number(hit: &Hit<'_>, digester: &Digester) -> u64 {
    let number = match hit.get(LEASE) {
        Some(id) => digester.number(id),
        None => RandomState::new().hash_one(0),
    };
    (number >> 11).max(1)
}

impl PolicySet {
    /// The leases that a hit is about.
    fn leases(&self, hit: &Hit<'_>, digester: &Digester) -> Vec<Lease> {
        let number = number(hit, digester);
        let lease = |stance| match stance {
            Stance::Decides(Ask { key, policy, .. }) => {
                let policy = &self.policies[usize::from(policy)].policy;
                (policy.algorithm == Algorithm::Concurrency).then(|| Lease::new(&policy.name, key, number))
            }
            Stance::Blocks(_) | Stance::Silent => None,
        };
        self.stances(hit, digester).filter_map(lease).collect()
    }

    /// The ask for a lease, if its policy is still there.
    pub(crate) fn lease(&self, lease: &Lease) -> Option<Ask> {
        let index = self.find(&lease.policy).ok()?;
        let prepared = &self.policies[usize::from(index)];
        match prepared.treat(index, lease.key, lease.number) {
            Stance::Decides(ask) if prepared.policy.algorithm == Algorithm::Concurrency => Some(ask),
            _ => None,
        }
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
    /// A lease ends by itself after its time to live, so that who dies frees it; [`Held::renew`] makes it last.
    pub fn hold<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<Held<S>> {
        let own = RandomState::new().hash_one(0).to_be_bytes();
        let hit = hit.into().leased(&own);
        // Made first: who gives up waiting for the answer gives up the lease that may have been given.
        let leases = self.inner.set.load().leases(&hit, &self.inner.digester);
        let mut grip = Grip { limiter: self.clone(), leases };
        S::map(S::decide(self, &hit, Intent::Check), move |decision: Decision| {
            if !decision.is_allowed() {
                grip.leases.clear();
            }
            Held { decision, grip }
        })
    }

    /// Makes the leases of a hit last for another time to live from now; the hit names them by its [`lease`](Hit::lease). False where one
    /// of them is not held: it has ended, and somebody else may have its place.
    pub fn renew<'h>(&self, hit: impl Into<Hit<'h>>) -> S::Reply<bool> {
        S::lease(self, self.inner.set.load().leases(&hit.into(), &self.inner.digester), true)
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
    grip: Grip<S>,
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

    /// As [`Limiter::renew`].
    pub fn renew(&self) -> S::Reply<bool> {
        S::lease(&self.grip.limiter, self.grip.leases.clone(), true)
    }

    /// As [`Limiter::release`], for who wants to know that it is done.
    pub fn release(mut self) -> S::Reply<bool> {
        self.grip.limiter.end(std::mem::take(&mut self.grip.leases))
    }

    /// The decision alone: its leases end by themselves.
    pub fn into_decision(mut self) -> Decision {
        self.grip.leases.clear();
        self.decision
    }
}

impl<S: Store> Drop for Grip<S> {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            S::see_to(&self.limiter, self.limiter.end(std::mem::take(&mut self.leases)));
        }
    }
}

impl<S: Store> std::fmt::Debug for Held<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("decision", &self.decision).finish_non_exhaustive()
    }
}
