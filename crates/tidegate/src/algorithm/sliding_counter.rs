//! `sliding-counter`: the current window's counter plus the previous one's, weighted by how much of it the sliding
//! window still overlaps. An estimate, below twice the limit in any window.

use super::{Charge, Evaluation, Packer, Plan, State, Stored, Terms, Unpacker, mul_div, mul_div_ceil};
use crate::Quota;

/// The cost counted in the window that began at `start`, and in the one before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buckets {
    start: u64,
    current: u64,
    previous: u64,
}

/// Weights are in steps of 2^-20, rounded up, so that Lua and Rust agree to the last unit.
const WHOLE: u64 = 1 << 20;

impl Buckets {
    /// The buckets as they stand at `now`.
    #[inline]
    fn rolled(&self, plan: &Plan, now: u64) -> Self {
        let ahead = self.start > now && self.start <= now + plan.window;
        let running = self.start <= now && now - self.start < plan.window;
        let empty = self.current == 0 && self.previous == 0;
        if !empty && (running || ahead) {
            return *self;
        }
        let start = now - now % plan.window;
        let next = self.start + plan.window == start;
        Self { start, current: 0, previous: if next { self.current } else { 0 } }
    }

    /// The estimate at `now`, for buckets that are rolled to it.
    #[inline]
    fn used(&self, plan: &Plan, now: u64) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        let overlap = self.start + plan.window - now.max(self.start);
        let weight = mul_div_ceil(overlap, WHOLE, plan.window);
        (self.current + mul_div_ceil(self.previous, weight, WHOLE)).min(Quota::MAX)
    }

    /// The first time at which no more than `room` of a bucket of `cost`, which weighs less and less until `end`, counts.
    fn faded(plan: &Plan, end: u64, cost: u64, room: u64) -> u64 {
        let (weight, _) = mul_div(room, WHOLE, cost);
        let (overlap, _) = mul_div(weight, plan.window, WHOLE);
        end - overlap
    }
}

impl State for Buckets {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let buckets = self.rolled(plan, now);
        Evaluation::new(plan, buckets.used(plan, now), cost, || {
            let end = buckets.start + plan.window;
            let until = match (plan.capacity - cost).checked_sub(buckets.current) {
                Some(room) => Self::faded(plan, end, buckets.previous, room),
                None => Self::faded(plan, end + plan.window, buckets.current, plan.capacity - cost),
            };
            until - now
        })
    }

    #[inline]
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge {
        *self = self.rolled(plan, now);
        let cost = cost.min(Quota::MAX - self.current);
        self.current += cost;
        Charge { at: now.max(self.start), cost }
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        let buckets = self.rolled(plan, now);
        let end = buckets.start + plan.window - now;
        match (buckets.current, buckets.previous) {
            (0, 0) => 0,
            (0, _) => end,
            _ => end + plan.window,
        }
    }

    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let mut buckets = self.rolled(plan, now);
        if at >= buckets.start && at < buckets.start + plan.window {
            buckets.current -= amount.min(buckets.current);
        } else if at < buckets.start && at + plan.window >= buckets.start {
            buckets.previous -= amount.min(buckets.previous);
        } else {
            return;
        }
        *self = buckets;
    }

    fn inspect(&self) -> Stored {
        Stored::fields([("start", self.start), ("current", self.current), ("previous", self.previous)])
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.time(self.start);
        to.number(self.current);
        to.number(self.previous);
    }

    fn load(from: &mut Unpacker<'_>, _plan: &Plan) -> Option<Self> {
        Some(Self { start: from.time()?, current: from.up_to(Quota::MAX)?, previous: from.up_to(Quota::MAX)? })
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.window, 0)
    }

    /// What was estimated, the new window has counted.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let buckets = self.rolled(old, since);
        let at = since.max(buckets.start);
        let current = buckets.used(old, since);
        Self { start: at - at % new.window, current, previous: 0 }
    }
}
