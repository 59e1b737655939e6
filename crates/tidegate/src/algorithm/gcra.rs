//! `gcra`: the generic cell rate algorithm. One number says when the key will owe nothing: its theoretical arrival time.

use super::{Charge, Evaluation, Plan, State, Terms, mul_div_ceil};

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

    /// The longest backlog that a debt can make.
    #[inline]
    fn bound(plan: &Plan) -> u64 {
        tolerance(plan) + plan.window
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
        // Where the clock has stepped back it may be longer already.
        let owed = wanted.min(Self::bound(plan).max(backlog));
        self.time = now + owed;
        let cost = if owed == wanted { cost } else { (owed - backlog) / plan.interval };
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
        self.time -= back.min(self.backlog(plan, now));
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.interval, plan.capacity)
    }

    /// The backlog, stretched or squeezed as the interval is.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let backlog = mul_div_ceil(self.backlog(old, since), new.interval, old.interval);
        Self { time: since + backlog.min(Self::bound(new)) }
    }
}
