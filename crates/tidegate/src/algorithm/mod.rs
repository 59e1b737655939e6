//! The contract of an algorithm and the registry of all of them. An algorithm is a pure state: it is told the time and
//! the quota, and sees no clock, lock, log or socket. Each has a twin in Lua beside it, and each rate a table of vectors.
//!
//! All times are epoch microseconds, all spans microseconds, all costs below 2^53.

mod concurrency;
mod fixed_window;
mod gcra;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use std::{borrow::Cow, fmt, str::FromStr};

use crate::{
    Quota,
    calendar::Calendar,
    error::QuotaError,
    packed::{Packer, Unpacker},
};

/// The state of one key under one algorithm. `Default` is *no state*: what a key that was never seen has.
pub(crate) trait State: Default + Clone + Send + 'static {
    /// Whether a store that is full may forget it while it counts.
    const EVICTABLE: bool = true;

    /// What a hit of `cost` at `now` would get. Changes nothing; what has expired is skipped, not purged.
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation;

    /// Records a `cost` of at least 1, whether it fits or not.
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge;

    /// Records a cost of 1 if [`evaluate`](Self::evaluate) allows it, for who asks nothing else.
    #[inline]
    fn take_one(&mut self, plan: &Plan, now: u64) -> bool {
        let allows = self.evaluate(plan, now, 1).verdict == Verdict::Allowed;
        if allows {
            self.commit(plan, now, 1);
        }
        allows
    }

    /// How long until this equals no state, if nobody comes; 0 when it already does.
    fn reset_after(&self, plan: &Plan, now: u64) -> u64;

    /// Takes back up to `amount` of what was recorded at time `at`. Never more than still counts.
    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64);

    /// What the numbers in a state, and in a receipt, are in. Under equal terms they mean the same.
    fn terms(plan: &Plan) -> Terms;

    /// The same history in other terms, which came into force at `since`. Rounding never gives capacity away.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self;

    /// What is stored, for people to see.
    fn inspect(&self) -> Stored;

    /// `concurrency`: whether a lease is held.
    fn holds(&self, _now: u64, _lease: u64) -> bool {
        false
    }

    /// Packs the state.
    fn save(&self, to: &mut Packer<'_>);

    /// Reads what [`save`](Self::save) packed under the same plan; nothing where that could not have.
    fn load(from: &mut Unpacker<'_>, plan: &Plan) -> Option<Self>;

    /// Bytes held outside the state itself.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// What [`State::evaluate`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evaluation {
    /// How much of the capacity is taken, without the hit being evaluated; above it after a charge or a lowered limit.
    pub(crate) used: u64,
    pub(crate) verdict: Verdict,
}

/// What a state holds, in the words of its algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) fields: Vec<(Cow<'static, str>, u64)>,
    /// Times and costs of what is kept apart, oldest first.
    pub(crate) entries: Vec<(u64, u64)>,
}

/// Entries that an inspection shows, the latest ones.
const INSPECTED: usize = 1000;

impl Stored {
    fn fields<const N: usize>(fields: [(&'static str, u64); N]) -> Self {
        Self { fields: fields.map(|(name, number)| (name.into(), number)).into(), entries: Vec::new() }
    }
}

/// Two numbers of a plan; which ones is the algorithm's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms(pub(crate) u64, pub(crate) u64);

/// What [`State::commit`] has recorded, and [`State::refund`] can take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// `now`, or the newest stored time where the clock has stepped back.
    pub(crate) at: u64,
    /// Less than was asked for only where a debt reached its bound.
    pub(crate) cost: u64,
}

/// The answer of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Waiting exactly this long succeeds if nobody else comes; a microsecond less fails.
    Denied {
        retry_after: u64,
    },
    /// The cost is above the capacity: no wait cures that.
    Never,
}

impl Evaluation {
    /// `cost` against what is left; `wait` is asked only when a wait would cure the denial.
    #[inline]
    fn new(plan: &Plan, used: u64, cost: u64, wait: impl FnOnce() -> u64) -> Self {
        let verdict = if cost > plan.capacity {
            Verdict::Never
        } else if cost <= plan.capacity.saturating_sub(used) {
            Verdict::Allowed
        } else {
            Verdict::Denied { retry_after: wait() }
        };
        Self { used, verdict }
    }
}

/// A quota made ready for one algorithm: the only numbers that an algorithm sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The most that can be taken at once: the limit of a window, the burst of a bucket.
    pub(crate) capacity: u64,
    pub(crate) window: u64,
    /// `sliding-window`, `sliding-log`: hits whose times fall in one grain are counted as one.
    pub(crate) grain: u64,
    /// `gcra`: the time that a cost of 1 takes, rounded up, and that a full burst takes.
    pub(crate) interval: u64,
    tolerance: u64,
    /// `token-bucket`: `tokens` come back every `per` microseconds; limit and window in lowest terms.
    pub(crate) tokens: u64,
    pub(crate) per: u64,
    /// `fixed-window`: whose windows are counted, if not those since the epoch.
    pub(crate) calendar: Option<Calendar>,
}

/// The longest time to refill a bucket: 100 years. Added to any time of this century it stays below 2^53.
const MAX_REFILL: u64 = 100 * 366 * 86_400_000_000;

impl Plan {
    pub(crate) fn new(algorithm: Algorithm, quota: &Quota, resolution: u32) -> Result<Self, QuotaError> {
        let (limit, window) = (quota.limit(), quota.window_us());
        let capacity = quota.burst_size().unwrap_or(limit);
        let interval = window.div_ceil(limit); // ceil: never above the quota
        let refill = u128::from(capacity) * u128::from(window) / u128::from(limit);
        match algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra if refill > u128::from(MAX_REFILL) => {
                return Err(QuotaError::Refill(*quota));
            }
            Algorithm::Gcra if u128::from(interval) * u128::from(limit) * 100 > u128::from(window) * 101 => {
                return Err(QuotaError::Interval(*quota));
            }
            Algorithm::TokenBucket | Algorithm::Gcra => {}
            _ if quota.burst_size().is_some() => return Err(QuotaError::BurstOnWindow),
            _ => {}
        }
        let grain = if algorithm == Algorithm::SlidingLog { 1 } else { window.div_ceil(u64::from(resolution)) };
        let divisor = greatest_common_divisor(limit, window);
        // Only gcra asks for it, and there it is in bounds.
        let tolerance = capacity.saturating_mul(interval);
        let (tokens, per) = (limit / divisor, window / divisor);
        Ok(Self { capacity, window, grain, interval, tolerance, tokens, per, calendar: None })
    }

    /// The same in the windows of a calendar.
    pub(crate) fn following(self, calendar: Option<Calendar>) -> Self {
        Self { calendar, ..self }
    }

    /// Until when a receipt for a `cost` recorded at `at` is good: it could give nothing back any more, whatever the algorithm, and who
    /// settles for more has had an hour.
    pub(crate) fn forgotten_at(&self, at: u64, cost: u64) -> u64 {
        at.saturating_add((2 * self.window).max(3_600_000_000)).saturating_add(mul_div_ceil(cost, self.per, self.tokens))
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Quotient and remainder of `a * b / m`, exact; the quotient saturates.
#[inline]
fn mul_div(a: u64, b: u64, m: u64) -> (u64, u64) {
    let product = u128::from(a) * u128::from(b);
    match u64::try_from(product) {
        // Mostly there is nothing to divide: short times, rates of one token.
        Ok(small) if small < m => (0, small),
        Ok(small) if m == 1 => (small, 0),
        Ok(small) => (small / m, small % m),
        Err(_) => {
            let (quotient, rest) = (product / u128::from(m), product % u128::from(m));
            (u64::try_from(quotient).unwrap_or(u64::MAX), rest as u64)
        }
    }
}

#[inline]
fn mul_div_ceil(a: u64, b: u64, m: u64) -> u64 {
    let (quotient, rest) = mul_div(a, b, m);
    quotient.saturating_add(u64::from(rest > 0))
}

/// Calls a macro with every algorithm: variant, name, script, state. **This list is the registry**: stores, configuration,
/// vectors, laws and benches all read it.
macro_rules! registry {
    ($macro:ident) => {
        $macro! {
            /// Every request with its time: exact, and the most memory.
            SlidingLog "sliding-log" "sliding_log.lua" $crate::algorithm::Log,
            /// Requests in grains of a hundredth of the window: never over the limit, capacity back late by less
            /// than one grain, bounded memory. The default.
            #[default]
            SlidingWindow "sliding-window" "sliding_window.lua" $crate::algorithm::Grains,
            /// Two counters and their overlap: an estimate, below twice the limit in any window.
            SlidingCounter "sliding-counter" "sliding_counter.lua" $crate::algorithm::Buckets,
            /// One counter per window since the epoch, or of a calendar: up to twice the limit across a boundary.
            FixedWindow "fixed-window" "fixed_window.lua" $crate::algorithm::Window,
            /// A bucket of tokens that refills at the rate of the quota: a burst, then the rate, exactly.
            TokenBucket "token-bucket" "token_bucket.lua" $crate::algorithm::Bucket,
            /// One number per key: a burst, then requests spaced evenly.
            Gcra "gcra" "gcra.lua" $crate::algorithm::Arrival,
            /// How many at once: leases that are released, or end by themselves after the window of the quota.
            Concurrency "concurrency" "concurrency.lua" $crate::algorithm::Leases,
        }
    };
}
pub(crate) use registry;

pub(crate) use concurrency::Leases;
pub(crate) use fixed_window::Window;
pub(crate) use gcra::Arrival;
pub(crate) use sliding_counter::Buckets;
pub(crate) use sliding_log::Log;
pub(crate) use sliding_window::Grains;
pub(crate) use token_bucket::Bucket;

macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident $name:literal $script:literal $state:ty,)*) => {
        /// How a quota is enforced; the [guide](crate#which-algorithm) compares them.
        ///
        /// ```
        /// use tidegate::Algorithm;
        ///
        /// assert_eq!("gcra".parse(), Ok(Algorithm::Gcra));
        /// assert_eq!(Algorithm::default().name(), "sliding-window");
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])* $variant,)*
        }

        impl Algorithm {
            pub(crate) fn terms(self, plan: &Plan) -> Terms {
                match self {
                    $(Self::$variant => <$state>::terms(plan),)*
                }
            }

            /// Its twin for Redis.
            #[cfg(feature = "redis")]
            pub(crate) fn script(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!($script),)*
                }
            }

            /// Every algorithm.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Those that limit how much comes in a time: all but the last, which limits how much is there at once.
            pub const RATES: &[Self] = Self::ALL.split_last().expect("there are some").1;

            /// The name in configuration, metrics and docs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
registry!(algorithms);

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name).ok_or(UnknownAlgorithm)
    }
}

/// A name that no algorithm has; the message lists those that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such algorithm; use one of")?;
        Algorithm::ALL.iter().try_for_each(|algorithm| write!(f, " {algorithm}"))
    }
}

impl std::error::Error for UnknownAlgorithm {}
