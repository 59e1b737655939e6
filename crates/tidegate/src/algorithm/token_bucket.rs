//! `token-bucket`: what is missing from a full bucket, refilled at exactly the rate of the quota.

use super::{Charge, Evaluation, MAX_REFILL, Packer, Plan, State, Stored, Terms, Unpacker, mul_div, mul_div_ceil};
use crate::Quota;

/// `spent + fraction / per` tokens were missing at time `at`, `per` being the plan's. What is missing, and not what is
/// left: so a full bucket is no state, and a changed burst changes nothing here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    spent: u64,
    fraction: u64,
    at: u64,
}

impl Bucket {
    /// The bucket refilled up to `now`.
    #[inline]
    fn refilled(&self, plan: &Plan, now: u64) -> Self {
        if self.at > now {
            let absent = self.missing() == 0 || self.at - now > plan.window;
            return if absent { Self { at: now, ..Self::default() } } else { *self };
        }
        let back = mul_div(now - self.at, plan.tokens, plan.per);
        self.less(plan, back, now)
    }

    /// `back.0 + back.1 / per` tokens more, at time `at`.
    #[inline]
    fn less(&self, plan: &Plan, back: (u64, u64), at: u64) -> Self {
        if back >= (self.spent, self.fraction) {
            return Self { at, ..Self::default() };
        }
        match self.fraction.checked_sub(back.1) {
            Some(fraction) => Self { spent: self.spent - back.0, fraction, at },
            None => Self { spent: self.spent - back.0 - 1, fraction: self.fraction + plan.per - back.1, at },
        }
    }

    /// A debt is kept in full, up to what the longest refill can pay.
    fn payable(self, plan: &Plan) -> Self {
        let (most, _) = mul_div(MAX_REFILL, plan.tokens, plan.per);
        Self { spent: self.spent.min(most.min(Quota::MAX)), ..self }
    }

    #[inline]
    fn missing(&self) -> u64 {
        self.spent + u64::from(self.fraction > 0)
    }

    /// How long until no more than `allowed` whole tokens are missing.
    fn refill_time(&self, plan: &Plan, allowed: u64) -> u64 {
        let (whole, rest) = mul_div(self.spent - allowed, plan.per, plan.tokens);
        whole + mul_div_ceil(rest + self.fraction, 1, plan.tokens)
    }
}

impl State for Bucket {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let bucket = self.refilled(plan, now);
        Evaluation::new(plan, bucket.missing(), cost, || bucket.at + bucket.refill_time(plan, plan.capacity - cost) - now)
    }

    #[inline]
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge {
        let before = self.refilled(plan, now);
        *self = Self { spent: before.spent.saturating_add(cost), ..before };
        if self.spent > plan.capacity {
            *self = self.payable(plan);
        }
        Charge { at: self.at, cost: self.spent - before.spent }
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        let bucket = self.refilled(plan, now);
        if bucket.missing() == 0 { 0 } else { bucket.at + bucket.refill_time(plan, 0) - now }
    }

    /// Gives back what would not have been refilled since.
    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let bucket = self.refilled(plan, now);
        if at <= bucket.at {
            let back = Self { spent: amount, fraction: 0, at }.refilled(plan, bucket.at);
            *self = bucket.less(plan, (back.spent, back.fraction), bucket.at);
        }
    }

    fn inspect(&self) -> Stored {
        Stored::fields([("missing", self.spent), ("fraction", self.fraction), ("at", self.at)])
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.number(self.spent);
        to.number(self.fraction);
        to.time(self.at);
    }

    fn load(from: &mut Unpacker<'_>, plan: &Plan) -> Option<Self> {
        let bucket = Self { spent: from.up_to(Quota::MAX)?, fraction: from.up_to(plan.per - 1)?, at: from.time()? };
        Some(if bucket.spent > plan.capacity { bucket.payable(plan) } else { bucket })
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.tokens, plan.per)
    }

    /// What was missing still is.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let bucket = self.refilled(old, since);
        let fraction = mul_div_ceil(bucket.fraction, new.per, old.per);
        let bucket = if fraction < new.per {
            Self { fraction, ..bucket }
        } else {
            Self { spent: bucket.spent + 1, fraction: 0, ..bucket }
        };
        bucket.payable(new)
    }
}
