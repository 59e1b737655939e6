//! One policy's keys: places in shards, bounded, which loses what has expired as it goes and what matters least
//! when it is full. It needs no thread of its own.

use std::{
    borrow::Cow,
    fmt, io,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    Seed,
    places::{Entry, Places},
};
use crate::{
    Decision,
    algorithm::{Charge, Evaluation, Plan, State, Stored, Verdict},
    key::Key,
    packed::{Packer, Unpacker},
    set::Prepared,
    store::{Amendment, Answer, Ask, Intent, Source},
};

/// The set that asked is older than the states it asks for.
#[derive(Debug)]
pub(crate) struct Stale;

pub(crate) struct Shards<S> {
    pub(super) made: u64,
    shards: Box<[Aligned<Mutex<Shard<S>>>]>,
    /// The shard for each value of ten bits of the hash.
    shares: [u8; SHARES],
    keys: AtomicUsize,
    max_keys: usize,
    /// Shared by fresh keys when there is no room. Locked after the shard, before the next table's.
    overflow: Mutex<Entry<S>>,
}

/// On a cache line of its own, so that neighbours do not disturb each other.
#[repr(align(64))]
struct Aligned<T>(T);

struct Shard<S> {
    places: Places<S>,
    /// The place that the next sweep looks at.
    cursor: usize,
}

/// Enough that two threads rarely meet; fewer in a small store, where a sample must see most of the keys.
const MAX_SHARDS: usize = 64;
const KEYS_PER_SHARD: usize = 1024;
const SHARES: usize = 1024;
/// Places looked at on each insert. A whole pass takes a quarter as many inserts as there are places, so what has
/// expired never outgrows what lives.
const SWEEP: usize = 4;
/// Keys weighed to find the one to evict, and places looked at to find them.
const SAMPLE: usize = 16;
const SAMPLE_PLACES: usize = 256;

impl<S: State> Shards<S> {
    pub(super) fn new(max_keys: usize) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let shards = (max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(1, MAX_SHARDS);
        let overflow = Entry::new(Key::NONE, 0, S::default());
        // The largest shard gets twice the share of the smallest. A hash table is between half full and full, and then
        // doubles; of equal shards all would be half full, and all would double, at the same time.
        let share = |slot: usize| ((1.0 + slot as f64 / SHARES as f64).log2() * shards as f64) as u8;
        Self {
            shares: std::array::from_fn(share),
            made: MADE.fetch_add(1, Relaxed),
            shards: (0..shards).map(|_| Aligned(Mutex::new(Shard { places: Places::new(), cursor: 0 }))).collect(),
            keys: AtomicUsize::new(0),
            max_keys: max_keys.max(1),
            overflow: Mutex::new(overflow),
        }
    }

    /// Decides one ask. The usual case, a key that is kept under the quota in force, is decided in place.
    ///
    /// Not inlined, so that each algorithm's has the registers to itself, and it writes the decision where the caller wants
    /// it: copies cost more here than what is done to the values.
    #[inline(never)]
    pub(super) fn decide(
        &self,
        seed: &Seed,
        prepared: &Prepared,
        ask: Ask,
        intent: Intent,
        now: u64,
        again: impl FnOnce() -> Decision,
    ) -> Decision {
        let hash = seed.hash(ask.key.words());
        let mut shard = self.shard(hash).lock();
        let entry = shard.places.find(hash, ask.key).map(|place| shard.places.at(place));
        match entry {
            Some(entry) if entry.era() == prepared.era => {
                let plan = prepared.plan(ask.plan);
                let evaluation = entry.state.evaluate(plan, now, ask.cost);
                let question = Question { cost: ask.cost, plan, now, source: Source::Store, evaluation };
                let charges = intent.charges(ask.cost, evaluation.verdict, true);
                let answer = if charges { question.charge(&mut entry.state, intent) } else { question.tell(&entry.state) };
                drop(shard);
                prepared.count(&ask, &answer, intent, now);
                Decision::one(prepared, ask, answer)
            }
            _ => {
                drop(shard);
                match self.decide_in_slot(seed, prepared, ask, intent, now) {
                    Ok(answer) => Decision::one(prepared, ask, answer),
                    Err(Stale) => again(),
                }
            }
        }
    }

    /// Charges 1 to a key that is kept under the quota in force, if it is allowed; in any other case it has to be decided.
    #[inline(never)]
    pub(super) fn pass(&self, seed: &Seed, prepared: &Prepared, key: Key, now: u64) -> bool {
        let hash = seed.hash(key.words());
        let mut shard = self.shard(hash).lock();
        let Some(place) = shard.places.find(hash, key) else { return false };
        let (entry, plan) = (shard.places.at(place), prepared.plan(0));
        entry.era() == prepared.era && entry.state.take_one(plan, now)
    }

    /// The same, and what was decided. It is written from registers to where the caller wants it, as by [`decide`](Self::decide).
    #[inline(never)]
    pub(super) fn allow(&self, seed: &Seed, prepared: &Prepared, key: Key, now: u64) -> Option<Decision> {
        let hash = seed.hash(key.words());
        let mut shard = self.shard(hash).lock();
        let place = shard.places.find(hash, key)?;
        let (entry, plan) = (shard.places.at(place), prepared.plan(0));
        let evaluation = entry.state.evaluate(plan, now, 1);
        if entry.era() != prepared.era || evaluation.verdict != Verdict::Allowed {
            return None;
        }
        let question = Question { cost: 1, plan, now, source: Source::Store, evaluation };
        let answer = question.charge(&mut entry.state, Intent::Check);
        drop(shard);
        let ask = Ask { key, policy: 0, plan: 0, cost: 1, enforced: prepared.enforced };
        Some(Decision::one(prepared, ask, answer))
    }

    #[cold]
    #[inline(never)]
    fn decide_in_slot(&self, seed: &Seed, prepared: &Prepared, ask: Ask, intent: Intent, now: u64) -> Result<Answer, Stale> {
        let mut slot = self.lock(seed, prepared, &ask, now)?;
        let evaluation = slot.evaluate();
        let answer = slot.finish(evaluation, intent, true);
        prepared.count(&ask, &answer, intent, now);
        Ok(answer)
    }

    /// Locks the place of the ask's key.
    #[inline]
    pub(super) fn lock<'a>(
        &'a self,
        seed: &'a Seed,
        prepared: &'a Prepared,
        ask: &'a Ask,
        now: u64,
    ) -> Result<Slot<'a, S>, Stale> {
        let hash = seed.hash(ask.key.words());
        let shard = self.shard(hash).lock();
        let place = match shard.places.find(hash, ask.key) {
            Some(place) => match shard.places.get(place).expect("just found").read(prepared)? {
                Cow::Borrowed(_) => Place::Kept(place),
                Cow::Owned(state) => Place::Converted(place, state),
            },
            None if self.keys.load(Relaxed) < self.max_keys => Place::Fresh { state: S::default(), victim: None },
            None => self.place_when_full(&shard, hash, prepared, now)?,
        };
        Ok(Slot { ask, now, prepared, plan: prepared.plan(ask.plan), seed, shards: self, shard, place })
    }

    #[cold]
    fn place_when_full<'a>(&'a self, shard: &Shard<S>, hash: u64, prepared: &Prepared, now: u64) -> Result<Place<'a, S>, Stale> {
        if let Some(victim) = shard.victim(hash, prepared, now)? {
            return Ok(Place::Fresh { state: S::default(), victim: Some(victim) });
        }
        let mut overflow = self.overflow.lock();
        overflow.state = overflow.read(prepared)?.into_owned();
        overflow.set_era(prepared.era);
        Ok(Place::Overflow(overflow))
    }

    pub(super) fn remove(&self, seed: &Seed, key: Key) {
        let hash = seed.hash(key.words());
        let mut shard = self.shard(hash).lock();
        if let Some(place) = shard.places.find(hash, key) {
            shard.places.remove(seed, place);
            self.keys.fetch_sub(1, Relaxed);
        }
    }

    /// Forgets every key.
    pub(super) fn clear(&self) {
        for Aligned(shard) in &self.shards {
            let mut shard = shard.lock();
            self.keys.fetch_sub(shard.places.entries().count(), Relaxed);
            shard.places = Places::new();
            shard.cursor = 0;
        }
    }

    /// Writes every state anew as of the current era.
    pub(super) fn carry_over(&self, prepared: &Prepared) {
        let write = |entry: &mut Entry<S>| {
            // A state of a later era needs nothing.
            if let Ok(Cow::Owned(state)) = entry.read(prepared) {
                entry.state = state;
            }
            if prepared.changes(entry.era(), &Key::NONE).is_some() {
                entry.set_era(prepared.era);
            }
        };
        for Aligned(shard) in &self.shards {
            shard.lock().places.entries_mut().for_each(write);
        }
        write(&mut self.overflow.lock());
    }

    /// Packs what has not expired, one shard after the other, and says how many keys that were. `prepared` is of the newest set, and
    /// that is not replaced meanwhile.
    pub(super) fn save(&self, prepared: &Prepared, now: u64, to: &mut Packer<'_>) -> io::Result<usize> {
        const NEWEST: &str = "no state is newer than the newest set";
        let mut keys = 0;
        let mut entries = Vec::new();
        for Aligned(shard) in &self.shards {
            // Who decides waits for the copy, and not until all is packed and written.
            entries.extend(shard.lock().places.entries().cloned());
            for entry in entries.drain(..) {
                let (state, plan) = entry.read_with_plan(prepared).expect(NEWEST);
                if state.reset_after(plan, now) > 0 {
                    entry.key().save(to);
                    state.save(to);
                    keys += 1;
                }
            }
            to.flush()?;
        }
        // The last entry has no key: it is the one that keys share.
        Key::NONE.save(to);
        self.overflow.lock().read(prepared).expect(NEWEST).save(to);
        Ok(keys)
    }

    /// Reads what [`save`](Self::save) packed, as far as it has not expired since and there is room, and says how many keys
    /// that were.
    pub(super) fn load(&self, seed: &Seed, prepared: &Prepared, now: u64, from: &mut Unpacker<'_>) -> Option<usize> {
        loop {
            let key = Key::load(from)?;
            let plan = prepared.plan_of(&key);
            let state = S::load(from, plan)?;
            if key == Key::NONE {
                let mut overflow = self.overflow.lock();
                overflow.state = state;
                overflow.set_era(prepared.era);
                return Some(self.keys.load(Relaxed));
            }
            if state.reset_after(plan, now) > 0 {
                self.put(seed, prepared, now, key, state)?;
            }
        }
    }

    /// Adds a key that is not there. When there is no room it takes the place of one that is not at its limit, if it is itself.
    fn put(&self, seed: &Seed, prepared: &Prepared, now: u64, key: Key, state: S) -> Option<()> {
        let hash = seed.hash(key.words());
        let mut shard = self.shard(hash).lock();
        if shard.places.find(hash, key).is_some() {
            return None;
        }
        if self.keys.load(Relaxed) >= self.max_keys {
            let plan = prepared.plan_of(&key);
            let at_limit = state.evaluate(plan, now, 0).used >= plan.capacity;
            let victim = if at_limit { shard.victim(hash, prepared, now).ok()? } else { None };
            let Some(victim) = victim else { return Some(()) };
            shard.places.remove(seed, victim);
            self.keys.fetch_sub(1, Relaxed);
        }
        shard.places.insert(seed, Entry::new(key, prepared.era, state));
        self.keys.fetch_add(1, Relaxed);
        Some(())
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Relaxed)
    }

    /// Keys held, and an estimate of their bytes. Looks at every key.
    pub(super) fn size(&self) -> (usize, usize) {
        let mut bytes = size_of::<Self>() + size_of_val(&*self.shards);
        for Aligned(shard) in &self.shards {
            let shard = shard.lock();
            bytes += shard.places.bytes() + shard.places.entries().map(|entry| entry.state.heap_bytes()).sum::<usize>();
        }
        (self.keys(), bytes)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Shard<S>> {
        // Not the lowest bits, by which a place is found.
        let share = self.shares[(hash >> 32) as usize % SHARES];
        &self.shards[usize::from(share)].0
    }
}

impl<S: State> Entry<S> {
    /// The state as of the current era.
    fn read(&self, prepared: &Prepared) -> Result<Cow<'_, S>, Stale> {
        let key = self.key();
        let mut state = Cow::Borrowed(&self.state);
        for (old, new, since) in prepared.changes(self.era(), &key).ok_or(Stale)? {
            if S::terms(old) != S::terms(new) {
                state = Cow::Owned(state.convert(old, new, since));
            }
        }
        Ok(state)
    }

    /// The state as of the current era, and the plan that it is under.
    fn read_with_plan<'a>(&'a self, prepared: &'a Prepared) -> Result<(Cow<'a, S>, &'a Plan), Stale> {
        Ok((self.read(prepared)?, prepared.plan_of(&self.key())))
    }
}

impl<S: State> Shard<S> {
    /// The place of the key to lose: one that has expired, else of a sample the one with most of its limit left.
    /// Never one that is at its limit.
    fn victim(&self, hash: u64, prepared: &Prepared, now: u64) -> Result<Option<usize>, Stale> {
        let places = self.places.count();
        let around = (0..places.min(SAMPLE_PLACES)).map(|step| (hash as usize).wrapping_add(step) % places);
        let keys = around.filter_map(|index| self.places.get(index).map(|entry| (index, entry)));
        let mut best: Option<(usize, u64, u64)> = None;
        for (index, entry) in keys.take(SAMPLE) {
            let (state, plan) = entry.read_with_plan(prepared)?;
            if state.reset_after(plan, now) == 0 {
                return Ok(Some(index));
            }
            if !S::EVICTABLE {
                continue;
            }
            let left = plan.capacity.saturating_sub(state.evaluate(plan, now, 0).used);
            let beats = |(_, best_left, best_capacity): &(usize, u64, u64)| {
                u128::from(left) * u128::from(*best_capacity) > u128::from(*best_left) * u128::from(plan.capacity)
            };
            if left > 0 && best.as_ref().is_none_or(beats) {
                best = Some((index, left, plan.capacity));
            }
        }
        Ok(best.map(|(index, ..)| index))
    }

    /// Drops what has expired at the next few places, and says how many that were.
    fn sweep(&mut self, seed: &Seed, prepared: &Prepared, now: u64) -> usize {
        let mut dropped = 0;
        for _ in 0..SWEEP.min(self.places.count()) {
            let expired = self.places.get(self.cursor).is_some_and(|entry| {
                // What is from an era not known here is newer than that.
                entry.read_with_plan(prepared).is_ok_and(|(state, plan)| state.reset_after(plan, now) == 0)
            });
            if expired {
                // Another may have moved here: look again.
                self.places.remove(seed, self.cursor);
                dropped += 1;
            } else {
                self.cursor += 1;
            }
            if self.cursor >= self.places.count() {
                self.cursor = 0;
                self.places.shrink(seed);
            }
        }
        dropped
    }
}

/// The place of one key, locked.
pub(super) struct Slot<'a, S> {
    ask: &'a Ask,
    now: u64,
    prepared: &'a Prepared,
    plan: &'a Plan,
    seed: &'a Seed,
    shards: &'a Shards<S>,
    shard: MutexGuard<'a, Shard<S>>,
    place: Place<'a, S>,
}

enum Place<'a, S> {
    /// A place whose state reads right under the ask's quota.
    Kept(usize),
    /// A place whose state has to be written anew under the ask's quota, as this.
    Converted(usize, S),
    /// No place yet; where there is no room, that of the victim.
    Fresh {
        state: S,
        victim: Option<usize>,
    },
    Overflow(MutexGuard<'a, Entry<S>>),
}

impl<S: State> Slot<'_, S> {
    #[inline]
    fn state(&self) -> &S {
        match &self.place {
            Place::Kept(index) => &self.shard.places.get(*index).expect("found under this lock").state,
            Place::Converted(_, state) | Place::Fresh { state, .. } => state,
            Place::Overflow(entry) => &entry.state,
        }
    }

    pub(super) fn evaluate(&self) -> Evaluation {
        self.state().evaluate(self.plan, self.now, self.ask.cost)
    }

    /// Charges if it is to be charged, and says how the key stands then. `admitted`: all enforced policies allow.
    pub(super) fn finish(&mut self, evaluation: Evaluation, intent: Intent, admitted: bool) -> Answer {
        let source = if matches!(self.place, Place::Overflow(_)) { Source::Overflow } else { Source::Store };
        let question = Question { cost: self.ask.cost, plan: self.plan, now: self.now, source, evaluation };
        if intent.charges(self.ask.cost, evaluation.verdict, admitted) {
            self.update(|state| question.charge(state, intent))
        } else {
            question.tell(self.state())
        }
    }

    /// What is stored, and for how long yet.
    pub(super) fn inspect(&self) -> (Stored, u64) {
        (self.state().inspect(), self.state().reset_after(self.plan, self.now))
    }

    pub(super) fn amend(&mut self, amendment: &Amendment) {
        let (plan, now) = (self.plan, self.now);
        match *amendment {
            // What is not there has nothing to give back; what others share is not this key's to take from.
            Amendment::Refund { .. } if matches!(self.place, Place::Fresh { .. } | Place::Overflow(_)) => {}
            Amendment::Refund { at, amount } => self.update(|state| state.refund(plan, now, at, amount)),
            Amendment::Charge { amount } => drop(self.update(|state| state.commit(plan, now, amount))),
        }
    }

    /// Renews the lease that is asked for, or releases it; false if it is not held.
    pub(super) fn lease(&mut self, renews: bool) -> bool {
        let (plan, now, lease) = (self.plan, self.now, self.ask.cost);
        let holds = self.state().holds(now, lease);
        if holds && renews {
            self.update(|state| state.commit(plan, now, lease));
        } else if holds {
            self.update(|state| state.refund(plan, now, now, lease));
        }
        holds || self.lease_in_overflow(renews)
    }

    /// It may have been given when there was no room.
    fn lease_in_overflow(&self, renews: bool) -> bool {
        let (plan, now, lease) = (self.plan, self.now, self.ask.cost);
        if S::EVICTABLE || matches!(self.place, Place::Overflow(_)) {
            return false;
        }
        let mut overflow = self.shards.overflow.lock();
        let holds = overflow.state.holds(now, lease);
        if holds && renews {
            overflow.state.commit(plan, now, lease);
        } else if holds {
            overflow.state.refund(plan, now, now, lease);
        }
        holds
    }

    /// Changes the state where it lives.
    #[inline]
    fn update<T>(&mut self, change: impl FnOnce(&mut S) -> T) -> T {
        match &mut self.place {
            Place::Kept(index) => {
                let entry = self.shard.places.at(*index);
                entry.set_era(self.prepared.era);
                change(&mut entry.state)
            }
            Place::Converted(index, state) => {
                let index = *index;
                let done = change(state);
                let entry = self.shard.places.at(index);
                entry.set_era(self.prepared.era);
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
        let Self { seed, prepared, shards, now, .. } = *self;
        let shard = &mut *self.shard;
        if let Some(victim) = victim {
            shard.places.remove(seed, victim);
            shards.keys.fetch_sub(1, Relaxed);
        }
        let dropped = shard.sweep(seed, prepared, now);
        shards.keys.fetch_sub(dropped, Relaxed);
        shards.keys.fetch_add(1, Relaxed);
        shard.places.insert(seed, Entry::new(self.ask.key, prepared.era, state))
    }
}

/// An ask at its time and under its quota.
struct Question<'a> {
    cost: u64,
    plan: &'a Plan,
    now: u64,
    source: Source,
    evaluation: Evaluation,
}

impl Question<'_> {
    /// Charges the hit, and says how the key stands then.
    #[inline(always)]
    fn charge<S: State>(mut self, state: &mut S, intent: Intent) -> Answer {
        let charged = state.commit(self.plan, self.now, self.cost);
        self.evaluation = match intent {
            Intent::Charge => state.evaluate(self.plan, self.now, 0),
            _ => Evaluation { used: self.evaluation.used + charged.cost, ..self.evaluation },
        };
        Answer { charged, ..self.tell(state) }
    }

    /// Says how the key stands.
    #[inline(always)]
    fn tell<S: State>(&self, state: &S) -> Answer {
        let Evaluation { used, verdict } = self.evaluation;
        let reset_after = state.reset_after(self.plan, self.now);
        Answer { verdict, source: self.source, used, reset_after, charged: Charge { at: 0, cost: 0 } }
    }
}

impl<S> fmt::Debug for Shards<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({} keys)", self.keys.load(Relaxed))
    }
}
