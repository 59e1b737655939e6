//! One policy's keys: a hash table in shards, bounded, which loses what has expired as it goes and what matters least
//! when it is full. It needs no thread of its own.

use std::{
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::Seed;
use crate::{
    algorithm::{Charge, Evaluation, Plan, State},
    key::Key,
    set::PolicySet,
    store::{Ask, Source},
};

/// The set that asked is older than the states it asks for.
#[derive(Debug)]
pub(crate) struct Stale;

pub(crate) struct Shards<S> {
    pub(super) made: u64,
    shards: Box<[Mutex<Shard<S>>]>,
    keys: AtomicUsize,
    max_keys: usize,
    /// Shared by fresh keys when there is no room. Locked after the shard, before the next table's.
    overflow: Mutex<Entry<S>>,
}

/// On a cache line of its own, so that neighbours do not disturb each other.
#[repr(align(64))]
struct Shard<S> {
    table: HashTable<Entry<S>>,
    /// The bucket that the next sweep looks at.
    cursor: usize,
}

struct Entry<S> {
    key: Key,
    /// Index of the quota that the state is under.
    plan: u16,
    state: S,
}

/// Enough that two threads rarely meet; fewer in a small store, where a sample must see most of the keys.
const MAX_SHARDS: usize = 64;
const KEYS_PER_SHARD: usize = 1024;
/// Buckets looked at on each insert. A whole pass takes a quarter as many inserts as there are buckets, so what has
/// expired never outgrows what lives.
const SWEEP: usize = 4;
/// Keys weighed to find the one to evict, and buckets looked at to find them.
const SAMPLE: usize = 16;
const SAMPLE_BUCKETS: usize = 256;

impl<S: State> Shards<S> {
    pub(super) fn new(max_keys: usize) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let shards = (max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(1, MAX_SHARDS);
        let overflow = Entry { key: Key::EMPTY, plan: 0, state: S::default() };
        Self {
            made: MADE.fetch_add(1, Relaxed),
            shards: (0..shards).map(|_| Mutex::new(Shard { table: HashTable::new(), cursor: 0 })).collect(),
            keys: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
            overflow: Mutex::new(overflow),
        }
    }

    /// Locks the place of the ask's key.
    #[inline]
    pub(super) fn lock<'a>(&'a self, seed: &'a Seed, set: &'a PolicySet, ask: &'a Ask, now: u64) -> Result<Slot<'a, S>, Stale> {
        let plans = set.policies[usize::from(ask.policy)].plans.as_slice();
        let hash = seed.hash(&ask.key);
        let shard = self.shard(hash).lock();
        let place = match shard.table.find_bucket_index(hash, |entry| entry.key == ask.key) {
            Some(index) => {
                let entry = shard.table.get_bucket(index).expect("just found");
                if entry.plan == ask.plan { Place::Kept(index) } else { Place::kept_under_other(index, entry, plans, ask, now)? }
            }
            None if self.keys.load(Relaxed) < self.max_keys => Place::Fresh { state: S::default(), victim: None },
            None => self.place_when_full(&shard, hash, plans, ask, now)?,
        };
        Ok(Slot { ask, now, plans, plan: &plans[usize::from(ask.plan)], hash, seed, shards: self, shard, place })
    }

    #[cold]
    fn place_when_full<'a>(
        &'a self,
        shard: &Shard<S>,
        hash: u64,
        plans: &[Plan],
        ask: &Ask,
        now: u64,
    ) -> Result<Place<'a, S>, Stale> {
        if let Some(victim) = shard.victim(hash, plans, now)? {
            return Ok(Place::Fresh { state: S::default(), victim: Some(victim) });
        }
        let mut overflow = self.overflow.lock();
        if overflow.plan != ask.plan {
            let old = plans.get(usize::from(overflow.plan)).ok_or(Stale)?;
            overflow.state = overflow.state.convert(old, &plans[usize::from(ask.plan)], now).into_owned();
            overflow.plan = ask.plan;
        }
        Ok(Place::Overflow(overflow))
    }

    pub(super) fn remove(&self, hash: u64, key: &Key) {
        let mut shard = self.shard(hash).lock();
        if let Ok(entry) = shard.table.find_entry(hash, |entry| entry.key == *key) {
            entry.remove();
            self.keys.fetch_sub(1, Relaxed);
        }
    }

    /// Keys held, and an estimate of their bytes. Looks at every key.
    pub(super) fn size(&self) -> (usize, usize) {
        let mut bytes = size_of_val(&*self.shards);
        for shard in &self.shards {
            let shard = shard.lock();
            bytes += shard.table.allocation_size() + shard.table.iter().map(|entry| entry.state.heap_bytes()).sum::<usize>();
        }
        (self.keys.load(Relaxed), bytes)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Shard<S>> {
        // Not the bits that the table itself goes by: the lowest and the highest.
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }
}

impl<S: State> Shard<S> {
    /// The bucket of the key to lose: one that has expired, else of a sample the one with most of its limit left.
    /// Never one that is at its limit.
    fn victim(&self, hash: u64, plans: &[Plan], now: u64) -> Result<Option<usize>, Stale> {
        let buckets = self.table.num_buckets();
        let around = (0..buckets.min(SAMPLE_BUCKETS)).map(|step| (hash as usize).wrapping_add(step) % buckets);
        let keys = around.filter_map(|index| self.table.get_bucket(index).map(|entry| (index, entry)));
        let mut best: Option<(usize, u64, u64)> = None;
        for (index, entry) in keys.take(SAMPLE) {
            let plan = plans.get(usize::from(entry.plan)).ok_or(Stale)?;
            if entry.state.reset_after(plan, now) == 0 {
                return Ok(Some(index));
            }
            let left = plan.capacity.saturating_sub(entry.state.evaluate(plan, now, 0).used);
            let beats = |(_, best_left, best_capacity): &(usize, u64, u64)| {
                u128::from(left) * u128::from(*best_capacity) > u128::from(*best_left) * u128::from(plan.capacity)
            };
            if left > 0 && best.as_ref().is_none_or(beats) {
                best = Some((index, left, plan.capacity));
            }
        }
        Ok(best.map(|(index, ..)| index))
    }

    /// Drops what has expired of the next few buckets, and says how many that were.
    fn sweep(&mut self, seed: &Seed, plans: &[Plan], now: u64) -> usize {
        let mut dropped = 0;
        let buckets = self.table.num_buckets();
        for _ in 0..SWEEP.min(buckets) {
            self.cursor = (self.cursor + 1) % buckets;
            // A plan that is not known is newer, and so is the state.
            let expired = self
                .table
                .get_bucket(self.cursor)
                .and_then(|entry| Some(entry.state.reset_after(plans.get(usize::from(entry.plan))?, now) == 0));
            if expired == Some(true)
                && let Ok(entry) = self.table.get_bucket_entry(self.cursor)
            {
                entry.remove();
                dropped += 1;
            }
        }
        if self.cursor == 0 && self.table.len() < buckets / 8 {
            self.table.shrink_to(2 * self.table.len(), |entry| seed.hash(&entry.key));
        }
        dropped
    }
}

/// The place of one key, locked.
pub(super) struct Slot<'a, S> {
    pub(super) ask: &'a Ask,
    now: u64,
    plans: &'a [Plan],
    plan: &'a Plan,
    hash: u64,
    seed: &'a Seed,
    shards: &'a Shards<S>,
    shard: MutexGuard<'a, Shard<S>>,
    place: Place<'a, S>,
}

enum Place<'a, S> {
    /// A bucket whose state reads right under the ask's quota.
    Kept(usize),
    /// A bucket whose state has to be written anew under the ask's quota, as this.
    Converted(usize, S),
    /// No bucket yet; where there is no room, that of the victim.
    Fresh {
        state: S,
        victim: Option<usize>,
    },
    Overflow(MutexGuard<'a, Entry<S>>),
}

impl<S: State> Place<'_, S> {
    #[cold]
    fn kept_under_other(index: usize, entry: &Entry<S>, plans: &[Plan], ask: &Ask, now: u64) -> Result<Self, Stale> {
        let old = plans.get(usize::from(entry.plan)).ok_or(Stale)?;
        Ok(match entry.state.convert(old, &plans[usize::from(ask.plan)], now) {
            std::borrow::Cow::Borrowed(_) => Self::Kept(index),
            std::borrow::Cow::Owned(state) => Self::Converted(index, state),
        })
    }
}

impl<S: State> Slot<'_, S> {
    #[inline]
    fn state(&self) -> &S {
        match &self.place {
            Place::Kept(index) => &self.shard.table.get_bucket(*index).expect("found under this lock").state,
            Place::Converted(_, state) | Place::Fresh { state, .. } => state,
            Place::Overflow(entry) => &entry.state,
        }
    }

    #[inline]
    pub(super) fn evaluate(&self) -> Evaluation {
        self.state().evaluate(self.plan, self.now, self.ask.cost)
    }

    #[inline]
    pub(super) fn reset_after(&self) -> u64 {
        self.state().reset_after(self.plan, self.now)
    }

    pub(super) fn used(&self) -> u64 {
        self.state().evaluate(self.plan, self.now, 0).used
    }

    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        self.plan.capacity
    }

    #[inline]
    pub(super) fn source(&self) -> Source {
        if matches!(self.place, Place::Overflow(_)) { Source::Overflow } else { Source::Store }
    }

    #[inline]
    pub(super) fn charge(&mut self, cost: u64) -> Charge {
        let (plan, now) = (self.plan, self.now);
        self.update(|state| state.commit(plan, now, cost))
    }

    pub(super) fn refund(&mut self, at: u64, amount: u64) {
        // What is not there has nothing to give back; what others share is not this key's to take from.
        if matches!(self.place, Place::Kept(_) | Place::Converted(..)) {
            let (plan, now) = (self.plan, self.now);
            self.update(|state| state.refund(plan, now, at, amount));
        }
    }

    /// Changes the state where it lives.
    #[inline]
    fn update<T>(&mut self, change: impl FnOnce(&mut S) -> T) -> T {
        match &mut self.place {
            Place::Kept(index) => {
                let entry = self.shard.table.get_bucket_mut(*index).expect("found under this lock");
                entry.plan = self.ask.plan;
                change(&mut entry.state)
            }
            Place::Converted(index, state) => {
                let index = *index;
                let done = change(state);
                let entry = self.shard.table.get_bucket_mut(index).expect("found under this lock");
                entry.plan = self.ask.plan;
                entry.state = std::mem::take(state);
                self.place = Place::Kept(index);
                done
            }
            Place::Fresh { state, victim } => {
                let done = change(state);
                let (state, victim) = (std::mem::take(state), *victim);
                let index = self.insert(state, victim);
                self.place = Place::Kept(index);
                done
            }
            Place::Overflow(entry) => change(&mut entry.state),
        }
    }

    fn insert(&mut self, state: S, victim: Option<usize>) -> usize {
        let shard = &mut *self.shard;
        if let Some(entry) = victim.and_then(|index| shard.table.get_bucket_entry(index).ok()) {
            entry.remove();
            self.shards.keys.fetch_sub(1, Relaxed);
        }
        let dropped = shard.sweep(self.seed, self.plans, self.now);
        self.shards.keys.fetch_sub(dropped, Relaxed);
        self.shards.keys.fetch_add(1, Relaxed);
        let entry = Entry { key: self.ask.key, plan: self.ask.plan, state };
        shard.table.insert_unique(self.hash, entry, |entry| self.seed.hash(&entry.key)).bucket_index()
    }
}

impl<S> fmt::Debug for Shards<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({} keys)", self.keys.load(Relaxed))
    }
}
