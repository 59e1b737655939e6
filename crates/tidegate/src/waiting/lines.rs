//! The lines: who waits for which key, in the order of their tickets, and who is first. It refuses to know of time.

use std::{
    collections::{BTreeMap, HashMap},
    task::Waker,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{
    Algorithm, Hit,
    key::Key,
    limiter::Inner,
    set::PolicySet,
    store::{Ask, Asks, Intent, Question},
};

/// Never while the lines are locked: who is woken may come here at once, and so may who is dropped with the last of its wakers.
pub(super) fn wake(wakers: Wakers) {
    wakers.into_iter().for_each(Waker::wake);
}

pub(super) type Wakers = SmallVec<[Waker; 4]>;

/// A key under a policy: the number of the policy's table, and the key.
pub(super) type Id = (u64, Key);
pub(super) type Ids = SmallVec<[Id; 2]>;

pub(super) fn id(set: &PolicySet, ask: &Ask) -> Id {
    (set.policies[usize::from(ask.policy)].table.made(), ask.key)
}

/// What an ask takes of the capacity: a lease takes one place.
fn weight(set: &PolicySet, ask: &Ask) -> u64 {
    match set.policies[usize::from(ask.policy)].policy.algorithm {
        Algorithm::Concurrency => 1,
        _ => ask.cost,
    }
}

/// What a hit has to satisfy, and so is in line for.
pub(super) fn lines_of<S>(set: &PolicySet, hit: &Hit<'_>, inner: &Inner<S>) -> (Asks, Ids) {
    let question = Question::new(set, hit, &inner.digester).asked_to(Intent::Check, hit, inner.leases, set);
    let asks: Asks = question.asks.iter().filter(|ask| ask.enforced && ask.cost > 0).copied().collect();
    let capacity = |ask: &Ask| set.policies[usize::from(ask.policy)].plan(ask.plan).capacity;
    if question.is_barred() || asks.iter().any(|ask| weight(set, ask) > capacity(ask)) {
        // Who cannot be admitted, ever, is told so and waits for nobody.
        return Default::default();
    }
    let ids = asks.iter().map(|ask| id(set, ask)).collect();
    (asks, ids)
}

/// Tickets are numbers that only grow, and every line is in their order. So the lowest of all is first wherever it waits:
/// somebody can always go on.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) next_ticket: u64,
    pub(super) lines: HashMap<Id, Line, RandomState>,
    pub(super) waiters: HashMap<u64, Waiter, RandomState>,
}

/// Those who wait for one key.
#[derive(Default)]
pub(super) struct Line {
    /// With what each asks for.
    costs: BTreeMap<u64, u64>,
    /// Wide enough for any number of them.
    total: u128,
}

#[derive(Default)]
pub(super) struct Waiter {
    waker: Option<Waker>,
    /// There may be room since it last began to ask.
    pub(super) nudged: bool,
}

impl Lines {
    /// Has those who are first in these lines look again.
    pub(super) fn nudge(&mut self, ids: &[Id]) -> Wakers {
        let Self { lines, waiters, .. } = self;
        let first = ids.iter().filter_map(|id| lines.get(id)?.costs.first_key_value());
        first.filter_map(|(ticket, _)| waiters.get_mut(ticket)?.nudge()).collect()
    }

    pub(super) fn enter(&mut self, ticket: u64, ids: &[Id], asks: &[Ask]) {
        for (id, ask) in ids.iter().zip(asks) {
            let line = self.lines.entry(*id).or_default();
            line.costs.insert(ticket, ask.cost);
            line.total += u128::from(ask.cost);
        }
    }

    /// Leaves these lines, and passes the turn on where it had come.
    pub(super) fn leave(&mut self, ticket: u64, ids: &[Id]) -> Wakers {
        let first = |lines: &Self, id: &Id| lines.is_first(ticket, std::slice::from_ref(id));
        let passed: Ids = ids.iter().filter(|id| first(self, id)).copied().collect();
        for id in ids {
            let Some(line) = self.lines.get_mut(id) else { continue };
            line.total -= line.costs.remove(&ticket).map_or(0, u128::from);
            if line.costs.is_empty() {
                self.lines.remove(id);
            }
        }
        self.nudge(&passed)
    }

    /// Notes how to wake a waiter, and gives back how that was before; not to be dropped while the lines are locked.
    pub(super) fn looks(&mut self, ticket: u64, waker: Waker) -> (&mut Waiter, Option<Waker>) {
        let waiter = self.waiters.entry(ticket).or_default();
        let old = waiter.waker.replace(waker);
        (waiter, old)
    }

    pub(super) fn is_first(&self, ticket: u64, ids: &[Id]) -> bool {
        let first = |id| self.lines.get(id).and_then(|line: &Line| line.costs.first_key_value());
        ids.iter().all(|id| first(id).is_some_and(|(first, _)| *first == ticket))
    }
}

impl Line {
    /// What those ask for who are ahead.
    pub(super) fn ahead(&self, ticket: u64) -> u64 {
        let ahead = match self.costs.last_key_value() {
            // Usually: it has just come.
            Some((last, cost)) if *last == ticket => self.total - u128::from(*cost),
            _ => self.costs.range(..ticket).map(|(_, cost)| u128::from(*cost)).sum(),
        };
        u64::try_from(ahead).unwrap_or(u64::MAX)
    }
}

impl Waiter {
    pub(super) fn nudge(&mut self) -> Option<Waker> {
        self.nudged = true;
        self.waker.take()
    }
}
