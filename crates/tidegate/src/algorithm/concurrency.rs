//! `concurrency`: leases that are held at once. A lease ends when it is released, or its time to live after it was last renewed.
//!
//! In the place of a cost comes the number of a lease, which stands for the id that its holder gave it; 0 is no lease.

use std::collections::{BTreeMap, BTreeSet};

use super::{Charge, Evaluation, Packer, Plan, State, Stored, Terms, Unpacker, Verdict};
use crate::Quota;

/// No lease, or all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Option<Box<Held>>);

#[derive(Clone, Debug, Default)]
struct Held {
    /// When each lease ends.
    ends: BTreeMap<u64, u64>,
    /// The same by their ends.
    order: BTreeSet<(u64, u64)>,
    /// The longest time to live that any was given.
    longest: u64,
}

impl Held {
    /// The ends that count: not those that are over, and not those so far ahead that the clock was wrong, which is more than a time to
    /// live before the lease was given.
    fn live(&self, now: u64) -> impl DoubleEndedIterator<Item = u64> {
        let last = now.saturating_add(2 * self.longest);
        self.order.range((now + 1, 0)..=(last, u64::MAX)).map(|(end, _)| *end)
    }

    fn count(&self, now: u64) -> usize {
        let last = now.saturating_add(2 * self.longest);
        let over = self.order.iter().take_while(|(end, _)| *end <= now).count();
        let ahead = self.order.iter().rev().take_while(|(end, _)| *end > last).count();
        // Nothing is both.
        self.order.len() - over - ahead
    }

    fn end(&self, lease: u64, now: u64) -> Option<u64> {
        let end = *self.ends.get(&lease)?;
        (end > now && end <= now.saturating_add(2 * self.longest)).then_some(end)
    }

    fn remove(&mut self, lease: u64) {
        if let Some(end) = self.ends.remove(&lease) {
            self.order.remove(&(end, lease));
        }
    }

    /// Drops what does not count.
    fn purge(&mut self, now: u64) {
        let last = now.saturating_add(2 * self.longest);
        while let Some((_, lease)) = self.order.first().filter(|(end, _)| *end <= now).copied() {
            self.remove(lease);
        }
        while let Some((_, lease)) = self.order.last().filter(|(end, _)| *end > last).copied() {
            self.remove(lease);
        }
        if self.order.is_empty() {
            self.longest = 0;
        }
    }
}

impl State for Leases {
    /// Its place would be given twice.
    const EVICTABLE: bool = false;

    fn evaluate(&self, plan: &Plan, now: u64, lease: u64) -> Evaluation {
        let Some(held) = &self.0 else { return Evaluation { used: 0, verdict: Verdict::Allowed } };
        let used = held.count(now) as u64;
        // Who holds it already takes no place more.
        let verdict = if lease == 0 || used < plan.capacity || held.end(lease, now).is_some() {
            Verdict::Allowed
        } else {
            let ends = held.live(now).nth((used - plan.capacity) as usize).expect("there are so many");
            Verdict::Denied { retry_after: ends - now }
        };
        Evaluation { used, verdict }
    }

    /// Gives the lease, or renews it.
    fn commit(&mut self, plan: &Plan, now: u64, lease: u64) -> Charge {
        let held = self.0.get_or_insert_default();
        held.purge(now);
        let had = held.end(lease, now);
        held.remove(lease);
        held.longest = held.longest.max(plan.window);
        // None is shortened.
        let end = had.unwrap_or(0).max(now + plan.window);
        held.ends.insert(lease, end);
        held.order.insert((end, lease));
        Charge { at: now, cost: u64::from(had.is_none()) }
    }

    fn reset_after(&self, _plan: &Plan, now: u64) -> u64 {
        self.0.as_ref().and_then(|held| held.live(now).next_back()).map_or(0, |end| end - now)
    }

    /// Releases the lease `amount`.
    fn refund(&mut self, _plan: &Plan, _now: u64, _at: u64, amount: u64) {
        if let Some(held) = &mut self.0 {
            held.remove(amount);
        }
        self.0.take_if(|held| held.order.is_empty());
    }

    fn holds(&self, now: u64, lease: u64) -> bool {
        self.0.as_ref().is_some_and(|held| held.end(lease, now).is_some())
    }

    fn inspect(&self) -> Stored {
        let order = self.0.iter().flat_map(|held| &held.order);
        Stored { fields: Vec::new(), entries: order.map(|(end, _)| (*end, 1)).collect() }
    }

    /// When a lease ends is the same under any plan.
    fn terms(_plan: &Plan) -> Terms {
        Terms(0, 0)
    }

    fn convert(&self, _old: &Plan, _new: &Plan, _since: u64) -> Self {
        self.clone()
    }

    fn save(&self, to: &mut Packer<'_>) {
        to.number(self.0.as_ref().map_or(0, |held| held.longest));
        for (end, lease) in self.0.iter().flat_map(|held| &held.order) {
            to.number(*lease);
            to.time(*end);
        }
        // No lease has this number.
        to.number(0);
    }

    fn load(from: &mut Unpacker<'_>, _plan: &Plan) -> Option<Self> {
        let mut held = Held { longest: from.up_to(Quota::MAX)?, ..Held::default() };
        loop {
            match from.up_to(Quota::MAX)? {
                0 if held.order.is_empty() => return Some(Self(None)),
                0 => return (held.longest > 0).then(|| Self(Some(Box::new(held)))),
                lease => {
                    held.remove(lease);
                    let end = from.time()?;
                    held.ends.insert(lease, end);
                    held.order.insert((end, lease));
                }
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        // A tree has room for about half as much again as it holds.
        self.0.as_ref().map_or(0, |held| size_of::<Held>() + held.order.len() * 48)
    }
}
