//! `fixed-window`: one counter for each window since the epoch, or of a calendar.

use super::{Charge, Evaluation, Packer, Plan, State, Stored, Terms, Unpacker};
use crate::{Quota, calendar::Calendar};

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
        let counts = match plan.calendar {
            None => {
                let ahead = self.start > now && self.start <= now + plan.window;
                let running = self.start <= now && now - self.start < plan.window;
                running || ahead
            }
            Some(calendar) => {
                let (start, next) = calendar.window_of(now);
                self.start == start || self.start == next
            }
        };
        if self.used > 0 && counts { *self } else { Self { start: plan.start_of(now), used: 0 } }
    }

    #[inline]
    fn end(&self, plan: &Plan) -> u64 {
        plan.calendar.map_or(self.start + plan.window, |calendar| calendar.window_of(self.start).1)
    }
}

impl Plan {
    /// When the window that `at` is in began.
    #[inline]
    fn start_of(&self, at: u64) -> u64 {
        self.calendar.map_or_else(|| at - at % self.window, |calendar| calendar.window_of(at).0)
    }
}

impl State for Window {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let current = self.current(plan, now);
        Evaluation::new(plan, current.used, cost, || current.end(plan) - now)
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
        let current = self.current(plan, now);
        if current.used == 0 { 0 } else { current.end(plan) - now }
    }

    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let current = self.current(plan, now);
        // What is too far ahead of the clock to count stays as it is.
        if current.used > 0 && at >= current.start && at < current.end(plan) {
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
        Terms(plan.calendar.map_or(plan.window, Calendar::id), 0)
    }

    /// What the running window has counted, the new one has.
    fn convert(&self, old: &Plan, new: &Plan, since: u64) -> Self {
        let Self { start, used } = self.current(old, since);
        Self { start: new.start_of(since.max(start)), used }
    }
}
