//! How long a hit takes behind others on one key, by each algorithm. It refuses to know who they are.

use crate::{Algorithm, algorithm::Plan};

/// How long a hit takes behind others on one key, once it is known how long it would wait for some cost now.
pub(super) struct Forecast {
    /// For which to ask.
    pub(super) cost: u64,
    /// What is added to the wait for that cost, if there is one and if there is none.
    more: (u64, u64),
}

impl Forecast {
    /// Never longer than it takes. Those ahead are admitted one after another, each as soon as it can be, and this one last; all of
    /// that is as much as one hit of the total cost, as long as that fits.
    pub(super) fn new(algorithm: Algorithm, plan: &Plan, ahead: u64, cost: u64) -> Self {
        let total = ahead.saturating_add(cost);
        let (rounds, rest) = ((total - 1) / plan.capacity, (total - 1) % plan.capacity + 1);
        let windows = rounds.saturating_mul(plan.window);
        let excess = total.saturating_sub(plan.capacity);
        let refill = |time| Self { cost: total.min(plan.capacity), more: (time, time) };
        match algorithm {
            // What a window admits the next one can admit again, and no more.
            Algorithm::SlidingLog | Algorithm::SlidingWindow => Self { cost: rest, more: (windows, windows) },
            // If the rest has room now, the first boundary may be near.
            Algorithm::FixedWindow => Self { cost: rest, more: (windows, windows.saturating_sub(plan.window)) },
            Algorithm::TokenBucket => {
                let micros = u128::from(excess) * u128::from(plan.per) / u128::from(plan.tokens);
                refill(u64::try_from(micros).unwrap_or(u64::MAX))
            }
            Algorithm::Gcra => refill(excess.saturating_mul(plan.interval)),
            // An estimate forgets those ahead while they are admitted; of others nothing is known.
            _ => Self { cost, more: (0, 0) },
        }
    }

    pub(super) fn after(&self, wait: u64) -> u64 {
        wait.saturating_add(if wait > 0 { self.more.0 } else { self.more.1 })
    }
}
