//! `gcra`: the generic cell rate algorithm. One number says when the key will owe nothing: its theoretical arrival time.

use std::borrow::Cow;

use super::{Charge, Evaluation, Plan, State, mul_div_ceil};

/// The theoretical arrival time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    time: u64,
}

/// How long a full burst takes to pay back.
#[inline]
fn tolerance(plan: &Plan) -> u64 {
    plan.capacity * plan.interval
}

impl Arrival {
    /// How long until nothing is owed.
    ///
    /// One number cannot tell a debt from a clock that has stepped back, so a debt is cut to one window beyond the
    /// burst, and what lies more than another window beyond that was written under a wrong clock.
    #[inline]
    fn backlog(&self, plan: &Plan, now: u64) -> u64 {
        let backlog = self.time.saturating_sub(now);
        if backlog > tolerance(plan) + 2 * plan.window { 0 } else { backlog }
    }

    #[inline]
    fn owing(plan: &Plan, now: u64, backlog: u64) -> Self {
        Self { time: now + backlog.min(tolerance(plan) + plan.window) }
    }
}

impl State for Arrival {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let backlog = self.backlog(plan, now);
        let used = backlog.div_ceil(plan.interval);
        Evaluation::new(plan, used, cost, || backlog - (plan.capacity - cost) * plan.interval)
    }

    #[inline]
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge {
        let backlog = self.backlog(plan, now);
        let wanted = backlog.saturating_add(cost.saturating_mul(plan.interval));
        *self = Self::owing(plan, now, wanted);
        let owed = self.time - now;
        let cost = if owed == wanted { cost } else { owed.saturating_sub(backlog) / plan.interval };
        Charge { at: now, cost }
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        self.backlog(plan, now)
    }

    /// Gives back what would not have been paid since.
    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let paid = now.checked_sub(at).unwrap_or(u64::MAX);
        let back = amount.saturating_mul(plan.interval).saturating_sub(paid);
        *self = Self::owing(plan, now, self.backlog(plan, now).saturating_sub(back));
    }

    fn convert(&self, old: &Plan, new: &Plan, now: u64) -> Cow<'_, Self> {
        if (old.interval, old.capacity) == (new.interval, new.capacity) {
            return Cow::Borrowed(self);
        }
        let backlog = mul_div_ceil(self.backlog(old, now), new.interval, old.interval);
        Cow::Owned(Self::owing(new, now, backlog))
    }
}
