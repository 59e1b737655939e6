//! `fixed-window`: one counter for each window since the epoch.

use super::{Charge, Evaluation, Packer, Plan, State, Stored, Terms, Unpacker};
use crate::Quota;

/// The cost counted in the window that began at `start`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    start: u64,
    used: u64,
}

impl Window {
    /// The window to judge by: the stored one while it runs, and while the clock is behind it by at most a window.
    #[inline]
    fn current(&self, plan: &Plan, now: u64) -> Self {
        let ahead = self.start > now && self.start <= now + plan.window;
        let running = self.start <= now && now - self.start < plan.window;
        if self.used > 0 && (running || ahead) { *self } else { Self { start: now - now % plan.window, used: 0 } }
    }
}

impl State for Window {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let Self { start, used } = self.current(plan, now);
        Evaluation::new(plan, used, cost, || start + plan.window - now)
    }

    #[inline]
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge {
        *self = self.current(plan, now);
        let cost = cost.min(Quota::MAX - self.used);
        self.used += cost;
        Charge { at: now.max(self.start), cost }
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        let Self { start, used } = self.current(plan, now);
        if used == 0 { 0 } else { start + plan.window - now }
    }

    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let current = self.current(plan, now);
        if at >= current.start && at < current.start + plan.window {
            *self = Self { used: current.used - amount.min(current.used), ..current };
        }
    }

    fn inspect(&self) -> Stored {
        Stored::fields([("start", self.start), ("used", self.used)])
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.time(self.start);
        to.number(self.used);
    }

    fn load(from: &mut Unpacker<'_>, _plan: &Plan) -> Option<Self> {
        Some(Self { start: from.time()?, used: from.up_to(Quota::MAX)? })
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.window, 0)
    }

    /// What the running window has counted, the new one has.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let Self { start, used } = self.current(old, since);
        let at = since.max(start);
        Self { start: at - at % new.window, used }
    }
}
