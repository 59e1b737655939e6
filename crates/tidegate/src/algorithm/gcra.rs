//! `gcra`: the generic cell rate algorithm. One number says when the key will owe nothing: its theoretical arrival time.

use super::{Charge, Evaluation, MAX_REFILL, Packer, Plan, State, Stored, Terms, Unpacker, mul_div_ceil};

/// The theoretical arrival time in the low 53 bits.
///
/// In the others, how far beyond a full burst it lay when it was written, as the bits that number takes: 0, unless there is a
/// debt. One number alone could not tell a debt from a clock that has stepped back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival(u64);

const TIME_BITS: u32 = 53;

impl Arrival {
    #[inline]
    fn new(plan: &Plan, now: u64, backlog: u64) -> Self {
        let debt = backlog.saturating_sub(plan.tolerance);
        let bits = if debt == 0 { 0 } else { u64::from(debt.ilog2()) + 1 };
        Self((now + backlog) | (bits << TIME_BITS))
    }

    /// How long until nothing is owed. What was written more than a window ahead of `now` was written under a wrong clock.
    #[inline]
    fn backlog(self, plan: &Plan, now: u64) -> u64 {
        let (time, bits) = (self.0 & ((1 << TIME_BITS) - 1), self.0 >> TIME_BITS);
        let backlog = time.saturating_sub(now);
        if backlog >= plan.tolerance + plan.window + (1 << bits) { 0 } else { backlog }
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
        // A debt is kept in full, up to what the longest refill can pay.
        let owed = wanted.min(MAX_REFILL.max(backlog));
        *self = Self::new(plan, now, owed);
        let cost = if owed == wanted { cost } else { (owed - backlog) / plan.interval };
        Charge { at: now, cost }
    }

    /// Without a division, nor a look for a debt that what fits does not make.
    #[inline]
    fn take_one(&mut self, plan: &Plan, now: u64) -> bool {
        let backlog = self.backlog(plan, now);
        let wanted = backlog + plan.interval;
        let fits = wanted <= plan.tolerance;
        if fits {
            *self = Self(now + wanted.min(MAX_REFILL.max(backlog)));
        }
        fits
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        self.backlog(plan, now)
    }

    /// Gives back what would not have been paid since.
    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let paid = now.checked_sub(at).unwrap_or(u64::MAX);
        let back = amount.saturating_mul(plan.interval).saturating_sub(paid);
        match self.backlog(plan, now) {
            0 => {}
            backlog => *self = Self::new(plan, now, backlog.saturating_sub(back)),
        }
    }

    fn inspect(&self) -> Stored {
        Stored::fields([("arrival", self.0 & ((1 << TIME_BITS) - 1))])
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.time(self.0 & ((1 << TIME_BITS) - 1));
        to.number(self.0 >> TIME_BITS);
    }

    fn load(from: &mut Unpacker<'_>, _plan: &Plan) -> Option<Self> {
        Some(Self(from.time()? | from.up_to(TIME_BITS.into())? << TIME_BITS))
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.interval, plan.capacity)
    }

    /// The backlog, stretched or squeezed as the interval is.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let backlog = mul_div_ceil(self.backlog(old, since), new.interval, old.interval);
        Self::new(new, since, backlog.min(MAX_REFILL))
    }
}
