//! `sliding-window`: hits gathered into grains. A grain leaves when the last hit that joined it would, so the window is
//! never over its limit and capacity is late by less than one grain.

use std::{collections::VecDeque, mem};

use super::{Charge, Evaluation, INSPECTED, Packer, Plan, State, Stored, Terms, Unpacker};
use crate::Quota;

/// Grains in order of time, each with the time of its last hit and a cost of at least 1.
///
/// The fields that nearly every hit needs are here, in half a cache line; a hit that joins the newest grain of a window
/// of which nothing has expired reads nothing else.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grains {
    /// The cost of all grains, those included that have expired and not been purged. 0: there are none.
    used: u64,
    /// Times of the first and the last grain; one and the same if there is one.
    oldest: u64,
    newest: u64,
    older: Option<Box<Older>>,
}

/// All grains but the newest. Never empty.
#[derive(Clone, Debug, Default)]
struct Older {
    grains: VecDeque<Grain>,
    /// The cumulative cost before the first grain.
    base: u64,
}

#[derive(Clone, Copy, Debug)]
struct Grain {
    time: u64,
    /// The cumulative cost up to and with this grain, so that the cost of any range is one subtraction. It wraps.
    end: u64,
}

impl Plan {
    /// Whether two times, the second not before the first, fall in one grain.
    #[inline]
    fn one_grain(&self, first: u64, second: u64) -> bool {
        // Mostly the first comparison says it, without a division.
        first == second || (second - first < self.grain && first / self.grain == second / self.grain)
    }
}

impl Older {
    /// The cost of the first `n` grains.
    fn cost(&self, n: usize) -> u64 {
        n.checked_sub(1).map_or(0, |last| self.grains[last].end.wrapping_sub(self.base))
    }
}

impl Grains {
    /// The time to judge by, or nothing where no grain counts: all expired, or so far ahead that the clock was wrong.
    #[inline]
    fn effective(&self, plan: &Plan, now: u64) -> Option<u64> {
        let counts = self.used > 0 && self.newest + plan.window > now && self.newest <= now + plan.window;
        counts.then(|| now.max(self.newest))
    }

    /// Times and costs of all grains, oldest first.
    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let grains = self.older.iter().flat_map(|older| &older.grains).map(|grain| (grain.time, grain.end));
        let mut before = self.older.as_ref().map_or(0, |older| older.base);
        let newest = (self.newest, before.wrapping_add(self.used));
        let own = move |(time, end): (u64, u64)| (time, end.wrapping_sub(mem::replace(&mut before, end)));
        grains.chain((self.used > 0).then_some(newest)).map(own)
    }

    /// How many of the older grains have expired at `at`.
    #[inline]
    fn expired(&self, plan: &Plan, at: u64) -> usize {
        match &self.older {
            Some(older) if self.oldest + plan.window <= at => {
                older.grains.partition_point(|grain| grain.time + plan.window <= at)
            }
            _ => 0,
        }
    }

    /// The time of the first grain with which `need` of the cost has left.
    fn leaving(&self, need: u64) -> u64 {
        match &self.older {
            // Every grain holds at least 1.
            Some(_) if need <= 1 => self.oldest,
            Some(older) => {
                let index = older.grains.partition_point(|grain| grain.end.wrapping_sub(older.base) < need);
                older.grains.get(index).map_or(self.newest, |grain| grain.time)
            }
            None => self.newest,
        }
    }

    /// Drops what no longer counts and opens a grain, empty as yet, unless the newest is the one for `now` or nothing more can be counted.
    #[inline(never)]
    fn make_room(&mut self, plan: &Plan, now: u64, effective: Option<u64>) {
        let Some(at) = effective else {
            *self = Self { newest: now, ..Self::default() };
            return;
        };
        self.purge(self.expired(plan, at));
        if self.used < Quota::MAX && !plan.one_grain(self.newest, at) {
            let older = self.older.get_or_insert_default();
            older.grains.push_back(Grain { time: self.newest, end: older.base.wrapping_add(self.used) });
        }
    }

    /// Drops the first `n` of the older grains.
    fn purge(&mut self, n: usize) {
        let Some(older) = self.older.as_mut().filter(|_| n > 0) else { return };
        self.used -= older.cost(n);
        older.base = older.grains[n - 1].end;
        older.grains.drain(..n);
        self.settle_ends();
    }

    /// Makes `oldest` and `older` true again after grains have left either end of the latter.
    fn settle_ends(&mut self) {
        match self.older.as_ref().and_then(|older| older.grains.front()) {
            Some(first) => self.oldest = first.time,
            None => {
                self.oldest = self.newest;
                self.older = None;
            }
        }
    }
}

impl State for Grains {
    #[inline]
    fn evaluate(&self, plan: &Plan, now: u64, cost: u64) -> Evaluation {
        let Some(at) = self.effective(plan, now) else { return Evaluation::new(plan, 0, cost, || 0) };
        let expired = self.expired(plan, at);
        let gone = if expired == 0 { 0 } else { self.older.as_ref().map_or(0, |older| older.cost(expired)) };
        let used = self.used - gone;
        Evaluation::new(plan, used, cost, || {
            let need = used - (plan.capacity - cost);
            self.leaving(gone + need) + plan.window - now
        })
    }

    #[inline]
    fn commit(&mut self, plan: &Plan, now: u64, cost: u64) -> Charge {
        match self.effective(plan, now) {
            Some(at) if self.expired(plan, at) == 0 && plan.one_grain(self.newest, at) => {}
            effective => self.make_room(plan, now, effective),
        }
        let at = now.max(self.newest);
        let cost = cost.min(Quota::MAX - self.used);
        if cost == 0 {
            return Charge { at, cost };
        }
        if self.older.is_none() {
            self.oldest = at;
        }
        self.newest = at;
        self.used += cost;
        Charge { at, cost }
    }

    #[inline]
    fn reset_after(&self, plan: &Plan, now: u64) -> u64 {
        self.effective(plan, now).map_or(0, |_| self.newest + plan.window - now)
    }

    fn refund(&mut self, plan: &Plan, now: u64, at: u64, amount: u64) {
        let Some(effective) = self.effective(plan, now) else { return };
        self.purge(self.expired(plan, effective));
        let older = self.older.as_deref_mut();
        let index = older.as_ref().map_or(0, |older| older.grains.partition_point(|grain| grain.time < at));
        let Some(older) = older.filter(|older| index < older.grains.len()) else {
            // Only the newest is left to have it.
            let own = self.used - self.older.as_ref().map_or(0, |older| older.cost(older.grains.len()));
            if at <= self.newest && plan.one_grain(at, self.newest) {
                self.used -= amount.min(own);
                if amount >= own {
                    self.drop_newest();
                }
            }
            return;
        };
        let found = older.grains[index].time;
        if !plan.one_grain(at, found) {
            return;
        }
        let own = older.cost(index + 1) - older.cost(index);
        let back = amount.min(own);
        older.grains.range_mut(index..).for_each(|grain| grain.end = grain.end.wrapping_sub(back));
        if back == own {
            older.grains.remove(index);
        }
        self.used -= back;
        self.settle_ends();
    }

    fn inspect(&self) -> Stored {
        let mut entries: Vec<(u64, u64)> = self.all().collect();
        entries.drain(..entries.len().saturating_sub(INSPECTED));
        Stored { fields: Vec::new(), entries }
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.time(self.oldest);
        let mut before = self.oldest;
        for (time, cost) in self.all() {
            to.number(cost);
            to.number(time - mem::replace(&mut before, time));
        }
        // No grain costs nothing.
        to.number(0);
    }

    fn load(from: &mut Unpacker<'_>, _plan: &Plan) -> Option<Self> {
        let oldest = from.time()?;
        let mut all = Self { oldest, newest: oldest, ..Self::default() };
        loop {
            match from.up_to(Quota::MAX - all.used)? {
                0 => return Some(all),
                cost => {
                    if all.used > 0 {
                        all.older.get_or_insert_default().grains.push_back(Grain { time: all.newest, end: all.used });
                    }
                    all.newest += from.up_to((1 << 53) - all.newest)?;
                    all.used += cost;
                }
            }
        }
    }

    fn terms(plan: &Plan) -> Terms {
        Terms(plan.window, plan.grain)
    }

    /// Keeps what the old window still held.
    fn convert(&self, old: &Plan, _new: &Plan, since: u64) -> Self {
        let Some(at) = self.effective(old, since) else { return Self::default() };
        let mut held = self.clone();
        held.purge(held.expired(old, at));
        held
    }

    fn heap_bytes(&self) -> usize {
        self.older.as_ref().map_or(0, |older| mem::size_of::<Older>() + older.grains.capacity() * mem::size_of::<Grain>())
    }
}

impl Grains {
    /// The newest grain is empty: the one before it is now the newest, or there is no state.
    fn drop_newest(&mut self) {
        match self.older.as_mut().and_then(|older| older.grains.pop_back()) {
            Some(last) => self.newest = last.time,
            None => *self = Self::default(),
        }
        self.settle_ends();
    }
}
