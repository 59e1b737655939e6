//! The contenders: ours, one per algorithm of the registry, and the peers, each behind the same small trait and under
//! the same quota. It knows how each is built and called best, and nothing of how it is measured.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    hint::black_box,
    num::NonZeroU32,
    sync::Mutex,
    time::SystemTime,
};

use governor::{clock::DefaultClock, state::keyed::DashMapStateStore};
use limitador::limit::{Limit, Namespace};
use throttlecrab::PeriodicStore;
use tidegate::{Algorithm, Limiter, Policy, Quota};

/// What a key may take at once: more than a whole run takes from one key, so that a free key is never denied.
pub(crate) const BURST: u32 = 30_000_000;

/// What comes back per hour, to buckets: one in 90 s, so that hardly any exhausted key is allowed while a case lasts.
/// The burst refills in 86 years; we refuse what takes over 100.
const REFILL: u32 = 40;

/// Above every number of keys that is measured: nobody evicts.
const MAX_KEYS: u32 = 4_000_000;

const HOUR: u32 = 3_600;
const DAY: u32 = 24 * HOUR;

/// The peer that ratios are over: keyed by `String`, with its default hasher.
pub(crate) const GOVERNOR: &str = "governor";
/// GCRA behind a lock.
pub(crate) const THROTTLECRAB: &str = "throttlecrab";
/// Fixed windows in a cache.
pub(crate) const LIMITADOR: &str = "limitador";

/// A limiter under measurement.
#[expect(clippy::ptr_arg, reason = "governor borrows a `String`: nobody pays for a copy that another is spared")]
pub(crate) trait Subject: Sync {
    /// Decides a hit of cost 1. True: allowed. All of the limiter's answer is shown to [`black_box`], by reference: to
    /// move it is not the limiter's doing.
    fn check(&self, key: &String) -> bool;

    /// Takes the whole burst of a fresh key. True: it was there to be taken.
    fn exhaust(&self, key: &String) -> bool;

    /// Decides a hit of each key, and counts the allowed. The loop that is timed: compiled for each subject, so that one
    /// dynamic call covers all of it.
    fn check_all(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.check(key)).count()
    }
}

/// A limiter that can be built afresh.
pub(crate) struct Contender {
    /// As printed, and as a child process is told.
    pub(crate) name: String,
    /// Set for ours.
    pub(crate) algorithm: Option<Algorithm>,
    /// Builds one that has seen no key.
    pub(crate) build: Box<dyn Fn() -> Box<dyn Subject>>,
}

/// Ours in the order of the registry, then the peers.
pub(crate) fn contenders() -> Vec<Contender> {
    let ours = Algorithm::RATES.iter().map(|&algorithm| Contender {
        name: format!("tidegate {algorithm}"),
        algorithm: Some(algorithm),
        build: Box::new(move || Box::new(tidegate(algorithm))),
    });
    ours.chain([
        peer(GOVERNOR, governor::<RandomState>),
        peer("governor, ahash", governor::<ahash::RandomState>),
        // Of its stores the one that does least besides: a look for expired keys once a minute. The adaptive one looks
        // at all keys for every hit while its table is over three quarters full, the probabilistic one every 1000 hits.
        peer(THROTTLECRAB, || Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::new()))),
        peer(LIMITADOR, Limitador::new),
    ])
    .collect()
}

/// Where a peer is among them.
pub(crate) fn position(contenders: &[Contender], name: &str) -> usize {
    contenders.iter().position(|contender| contender.name == name).expect("a peer")
}

fn peer<S: Subject + 'static>(name: &str, build: impl Fn() -> S + 'static) -> Contender {
    Contender { name: name.to_owned(), algorithm: None, build: Box::new(move || Box::new(build())) }
}

/// A bucket if the algorithm takes a burst. A window otherwise, of a day: few runs cross midnight, many the hour.
fn tidegate(algorithm: Algorithm) -> Limiter {
    let build = |quota| {
        let policy = Policy::new("bench", quota).algorithm(algorithm);
        Limiter::builder().policy(policy).max_keys(MAX_KEYS as usize).build()
    };
    let burst = u64::from(BURST);
    build(Quota::per_hour(u64::from(REFILL)).burst(burst))
        .or_else(|_| build(Quota::per_day(burst)))
        .expect("every algorithm takes the one quota or the other")
}

impl Subject for Limiter {
    #[inline]
    fn check(&self, key: &String) -> bool {
        black_box(&Limiter::check(self, key.as_str())).is_allowed()
    }

    fn exhaust(&self, key: &String) -> bool {
        self.check_n(key.as_str(), u64::from(BURST)).is_allowed()
    }
}

type Governor<S> = governor::RateLimiter<String, DashMapStateStore<String, S>, DefaultClock>;

const BURST_NON_ZERO: NonZeroU32 = NonZeroU32::new(BURST).expect("above 0");

fn governor<S: BuildHasher + Clone + Default>() -> Governor<S> {
    const REFILL_NON_ZERO: NonZeroU32 = NonZeroU32::new(REFILL).expect("above 0");
    let quota = governor::Quota::per_hour(REFILL_NON_ZERO).allow_burst(BURST_NON_ZERO);
    Governor::dashmap_with_hasher(quota, S::default())
}

impl<S: BuildHasher + Clone + Sync + Send> Subject for Governor<S> {
    #[inline]
    fn check(&self, key: &String) -> bool {
        black_box(&self.check_key(key)).is_ok()
    }

    fn exhaust(&self, key: &String) -> bool {
        self.check_key_n(key, BURST_NON_ZERO).is_ok_and(|answer| answer.is_ok())
    }
}

type Throttlecrab = Mutex<throttlecrab::RateLimiter<PeriodicStore>>;

/// Decides a hit of `cost`.
#[inline]
fn throttle(limiter: &Throttlecrab, key: &str, cost: u32) -> bool {
    let [burst, refill, hour, cost] = [BURST, REFILL, HOUR, cost].map(i64::from);
    // The clock is read before the lock, which is held the shorter for it.
    let now = SystemTime::now();
    let mut limiter = limiter.lock().expect("no thread has panicked");
    let answer = limiter.rate_limit(key, burst, refill, hour, cost, now);
    black_box(&answer).as_ref().expect("the quota is valid").0
}

impl Subject for Throttlecrab {
    #[inline]
    fn check(&self, key: &String) -> bool {
        throttle(self, key, 1)
    }

    fn exhaust(&self, key: &String) -> bool {
        throttle(self, key, BURST)
    }
}

struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    fn new() -> Self {
        let limiter = limitador::RateLimiter::new(u64::from(MAX_KEYS));
        let key = "key".try_into().expect("a name is an expression");
        limiter.add_limit(Limit::new("bench", u64::from(BURST), u64::from(DAY), [], [key]));
        Self { limiter, namespace: "bench".into() }
    }

    #[inline]
    fn limit(&self, key: &str, cost: u32) -> bool {
        // Its callers make a context for each request; there is no cheaper way in.
        let context = HashMap::from([("key".to_owned(), key.to_owned())]).into();
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, u64::from(cost));
        !black_box(&answer).as_ref().expect("memory does not fail").limited
    }
}

impl Subject for Limitador {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.limit(key, 1)
    }

    fn exhaust(&self, key: &String) -> bool {
        self.limit(key, BURST)
    }
}
