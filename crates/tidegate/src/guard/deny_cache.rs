//! Denials that the store has given a moment ago. A key that is at its limit stays there until its wait is over, if nobody gives
//! anything back: so it need not be asked again, and a flood costs the store almost nothing.

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    Algorithm,
    algorithm::Verdict,
    key::Key,
    set::PolicySet,
    store::{Answer, Ask, Record, Records, Source},
};

type Shard = HashMap<(u64, Key), SmallVec<[Denied; 1]>, foldhash::fast::RandomState>;

pub(crate) struct DenyCache {
    /// How long a denial is believed, in microseconds: so long at most is a reset or a refund made elsewhere not seen here.
    freshness: u64,
    shards: Box<[Mutex<Shard>]>,
    seed: foldhash::fast::RandomState,
    /// Counts what makes denials forgotten: an answer that was under way meanwhile is not learned.
    generation: AtomicU64,
    /// The latest time that was seen.
    latest: AtomicU64,
}

/// A denial that is known.
#[derive(Clone, Copy)]
struct Denied {
    cost: u64,
    answer: Answer,
    asked: u64,
    answered: u64,
    until: u64,
}

/// A policy and its key, for as long as the policy means the same.
fn id(set: &PolicySet, ask: &Ask) -> (u64, Key) {
    (set.policies[usize::from(ask.policy)].table.made(), ask.key)
}

const SHARDS: usize = 16;
/// Keys that a shard remembers. What finds no room is asked again, no more.
const MAX_KEYS: usize = 4096;
/// Costs that a key is remembered for. Each has a wait of its own.
const MAX_COSTS: usize = 4;

impl DenyCache {
    pub(crate) fn new(freshness: u64) -> Self {
        Self {
            freshness,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seed: Default::default(),
            generation: AtomicU64::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// The denials among the asks of a hit that need not be asked for; nothing if there is none.
    pub(crate) fn denials(&self, set: &PolicySet, asks: &[Ask], now: u64) -> Option<Records> {
        if self.freshness == 0 {
            return None;
        }
        // A clock that is set back makes all times come again.
        if self.latest.fetch_max(now, Relaxed) > now.saturating_add(self.freshness) {
            self.clear();
            self.latest.store(now, Relaxed);
        }
        let denials: Records = asks.iter().filter_map(|ask| self.denial(set, ask, now)).collect();
        (!denials.is_empty()).then_some(denials)
    }

    fn denial(&self, set: &PolicySet, ask: &Ask, now: u64) -> Option<Record> {
        if !ask.enforced || ask.cost == 0 {
            return None;
        }
        let prepared = &set.policies[usize::from(ask.policy)];
        let Denied { answer, answered, .. } = self.find(&id(set, ask), ask.cost, now)?;
        // Not from when it was asked: that could tell a wait that is too short by what the answer was under way.
        let passed = now.saturating_sub(answered);
        let verdict = match answer.verdict {
            Verdict::Denied { retry_after } => Verdict::Denied { retry_after: retry_after.saturating_sub(passed) },
            other => other,
        };
        let reset_after = answer.reset_after.saturating_sub(passed);
        Some(prepared.record(ask, Answer { verdict, reset_after, source: Source::DenyCache, ..answer }))
    }

    /// The denial of this cost, if it holds.
    fn find(&self, id: &(u64, Key), cost: u64, now: u64) -> Option<Denied> {
        let mut shard = self.shard(id).lock();
        let known = shard.get_mut(id)?;
        // What does not hold must not hold again, should the clock step back.
        known.retain(|denied| denied.holds(now));
        known.iter().find(|denied| denied.cost == cost).copied()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Remembers what the store has denied. `generation` is from when it was `asked`.
    pub(crate) fn learn(&self, set: &PolicySet, records: &[Record], asked: u64, answered: u64, generation: u64) {
        if self.freshness == 0 || generation != self.generation() {
            return;
        }
        for Record { ask, answer, label, .. } in records {
            let wait = match answer.verdict {
                Verdict::Denied { retry_after } => retry_after,
                Verdict::Never => u64::MAX,
                Verdict::Allowed => continue,
            };
            // A lease can be released at any time.
            let lasts = label.algorithm != Algorithm::Concurrency;
            if lasts && ask.enforced && ask.cost > 0 && answer.source == Source::Store {
                let until = asked.saturating_add(wait.min(self.freshness));
                self.remember(id(set, ask), Denied { cost: ask.cost, answer: *answer, asked, answered, until });
            }
        }
    }

    fn remember(&self, id: (u64, Key), denied: Denied) {
        let now = denied.asked;
        let mut shard = self.shard(&id).lock();
        if shard.len() >= MAX_KEYS && !shard.contains_key(&id) {
            shard.retain(|_, known| known.iter().any(|denied| denied.holds(now)));
            if shard.len() >= MAX_KEYS {
                return;
            }
        }
        let known = shard.entry(id).or_default();
        known.retain(|other| other.holds(now) && other.cost != denied.cost);
        if known.len() >= MAX_COSTS {
            known.remove(0);
        }
        known.push(denied);
    }

    /// Forgets keys: they have been reset, or got something back.
    pub(crate) fn forget(&self, set: &PolicySet, asks: &[Ask]) {
        self.generation.fetch_add(1, AcqRel);
        for ask in asks {
            let id = id(set, ask);
            self.shard(&id).lock().remove(&id);
        }
    }

    /// Forgets all: other quotas are in force.
    pub(crate) fn clear(&self) {
        self.generation.fetch_add(1, AcqRel);
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    fn shard(&self, id: &(u64, Key)) -> &Mutex<Shard> {
        &self.shards[self.seed.hash_one(id) as usize % SHARDS]
    }
}

impl Denied {
    /// Not one from the future either: the clock has stepped back.
    fn holds(&self, now: u64) -> bool {
        (self.asked..self.until).contains(&now)
    }
}
