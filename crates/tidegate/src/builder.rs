//! Making a limiter: policies, a store, a clock, bounds.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::{
    Clock, Limiter, Memory, Policy, Store, SystemClock,
    error::ConfigError,
    key::Digester,
    lease::Leases,
    limiter::{Inner, Time},
    set::{Making, PolicySet},
};

/// Builds a [`Limiter`].
pub struct Builder<S: Store = Memory> {
    pub(crate) store: S,
    policies: Vec<Policy>,
    clock: Option<Box<dyn Clock>>,
    max_keys: usize,
    secret: Vec<u8>,
    leases: Leases,
}

impl<S: Store> Builder<S> {
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

    /// Keeps states in `store` and not in memory.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> Builder<T> {
        let Self { store: _, policies, clock, max_keys, secret, leases } = self;
        Builder { store, policies, clock, max_keys, secret, leases }
    }

    /// Takes time from `clock` and not from the machine, nor from a store that has a clock of its own: for tests and
    /// simulations.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Box::new(clock)), ..self }
    }

    /// Bounds the keys that each policy holds; 1 048 576 unless set. Beyond it expired keys go first, then keys that are
    /// not at their limit; where there are none, fresh keys share one state and decisions say so
    /// ([`Source::Overflow`](crate::Source::Overflow)). Threads that insert at one moment can pass the bound by one key each.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Mixes a secret into the digests of long keys, so that who sees a digest cannot try ids against it.
    #[must_use]
    pub fn key_secret(self, secret: impl Into<Vec<u8>>) -> Self {
        Self { secret: secret.into(), ..self }
    }

    /// Has policies of [`concurrency`](Policy::concurrency) not apply where a hit is checked that names no [lease](crate::Hit::lease). Unless
    /// set, such a hit takes a place until its time to live is over, and nobody can free it before: this is for who decides for others, who
    /// may not know that. [`hold`](Limiter::hold) names what it takes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Hit, Limiter, Policy};
    ///
    /// let jobs = Policy::concurrency("jobs", 1, Duration::from_secs(60));
    /// let limiter = Limiter::builder().policy(jobs).named_leases().build()?;
    /// assert_eq!(limiter.check("tenant-7").outcomes().count(), 0);
    /// assert!(limiter.check(Hit::from("tenant-7").lease("job-4711")).is_allowed());
    /// assert_eq!(limiter.remaining("tenant-7"), Some(0));
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn named_leases(self) -> Self {
        Self { leases: Leases::Named, ..self }
    }

    /// Makes the limiter.
    ///
    /// # Errors
    /// When a policy or the store's address is wrong; the error names it and says what is allowed.
    pub fn build(self) -> Result<Limiter<S>, ConfigError> {
        let Self { mut store, policies, clock, max_keys, secret, leases } = self;
        let digester = Digester::new(&secret);
        let clock = clock.map_or_else(|| Time::System(SystemClock::new()), Time::Other);
        let now = clock.now();
        let old = store.restore(max_keys, now);
        let making = Making { old: old.as_ref(), digester: &digester, max_keys, now, shared_by: store.shared_by() };
        let set = Arc::new(PolicySet::new(policies, &making)?);
        store.start(max_keys)?;
        let inner = Inner {
            version: AtomicU64::new(set.version),
            set: ArcSwap::new(Arc::clone(&set)),
            replacing: Mutex::new(()),
            store,
            clock,
            digester,
            max_keys,
            leases,
            #[cfg(feature = "waiting")]
            waiting: Default::default(),
        };
        let inner = Arc::new(inner);
        Ok(Limiter { keeper: S::keep(&inner), inner, set })
    }
}

impl Default for Builder {
    fn default() -> Self {
        let (policies, secret, leases) = (Vec::new(), Vec::new(), Leases::default());
        Self { store: Memory::default(), policies, clock: None, max_keys: 1 << 20, secret, leases }
    }
}

impl<S: Store> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret.
        f.debug_struct("Builder").field("policies", &self.policies).field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}
