//! The memory store: one typed table per policy, decided under the locks of the shards that a hit touches.

mod ledger;
mod places;
mod shards;

use std::{
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use smallvec::SmallVec;

pub(crate) use self::ledger::Ledger;
pub(crate) use self::shards::Stale;
use self::shards::{Shards, Slot};
use super::{Answer, Ask, Intent, Record, Records};
use crate::{
    Algorithm, Decision,
    algorithm::{Evaluation, Verdict, registry},
    key::Key,
    set::{PolicySet, Prepared},
};

/// Decides by the tables of a policy set.
pub(crate) struct Memory {
    seed: Seed,
    pub(crate) ledger: Ledger,
}

/// Hashes keys; random for each store, so that nobody can choose keys that collide.
#[derive(Clone, Default)]
struct Seed(foldhash::fast::RandomState);

impl Seed {
    #[inline]
    fn hash(&self, words: [u64; 3]) -> u64 {
        let mut hasher = self.0.build_hasher();
        words.into_iter().for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }
}

/// What an amendment does to one key: gives back of what was charged at a time, or charges more.
pub(crate) enum Amendment {
    Refund { at: u64, amount: u64 },
    Charge { amount: u64 },
}

impl Memory {
    pub(crate) fn new(max_keys: usize) -> Self {
        Self { seed: Seed::default(), ledger: Ledger::new(max_keys) }
    }

    /// Decides by the policy that is the only one to apply; `again` where the set has been replaced and states are already
    /// under a newer one.
    #[inline]
    pub(crate) fn decide_one(
        &self,
        prepared: &Prepared,
        ask: Ask,
        intent: Intent,
        now: u64,
        again: impl FnOnce() -> Decision,
    ) -> Decision {
        prepared.table.decide(&self.seed, prepared, ask, intent, now, again)
    }

    /// Answers `asks`, which are in the order of their tables' making: all are charged if all enforced policies allow,
    /// else none. `barred`: something else denies the hit already.
    ///
    /// # Errors
    /// When the set has been replaced and states are already under a newer one; nothing has been charged then.
    pub(crate) fn decide(&self, set: &PolicySet, asks: &[Ask], intent: Intent, barred: bool, now: u64) -> Result<Records, Stale> {
        let mut slots: SmallVec<[AnySlot<'_>; 4]> = SmallVec::new();
        let mut evaluations: SmallVec<[Evaluation; 4]> = SmallVec::new();
        let mut admitted = !barred;
        for ask in asks {
            let slot = set.policies[usize::from(ask.policy)].lock(&self.seed, ask, now)?;
            let evaluation = slot.evaluate();
            admitted &= !ask.enforced || evaluation.verdict == Verdict::Allowed;
            evaluations.push(evaluation);
            slots.push(slot);
        }
        let record = |((slot, evaluation), ask): ((&mut AnySlot<'_>, Evaluation), &Ask)| {
            let prepared = &set.policies[usize::from(ask.policy)];
            let (limit, label) = (prepared.plan(ask.plan).capacity, prepared.label(ask.plan));
            Record { ask: *ask, limit, answer: slot.finish(evaluation, intent, admitted), label }
        };
        Ok(slots.iter_mut().zip(evaluations).zip(asks).map(record).collect())
    }

    /// Amends one key.
    pub(crate) fn amend(&self, set: &PolicySet, ask: &Ask, amendment: &Amendment, now: u64) -> Result<(), Stale> {
        set.policies[usize::from(ask.policy)].lock(&self.seed, ask, now).map(|mut slot| slot.amend(amendment))
    }

    /// Frees what policies of `old` hold that are not in `new`: handles of the limiter may keep the old set for long.
    pub(crate) fn clear_gone(old: &PolicySet, new: &PolicySet) {
        let stays = |table: &Table| new.policies.iter().any(|prepared| prepared.table.made() == table.made());
        old.policies.iter().map(|prepared| &prepared.table).filter(|table| !stays(table)).for_each(Table::clear);
    }

    /// Writes the states of policies with a long past anew, so that it can be forgotten.
    pub(crate) fn carry_over(set: &PolicySet) {
        for prepared in set.policies.iter().filter(|prepared| prepared.has_long_past()) {
            prepared.table.carry_over(prepared);
        }
    }

    /// Forgets a key, and refuses the receipts it has given out.
    pub(crate) fn reset(&self, set: &PolicySet, ask: &Ask, now: u64) {
        let table = &set.policies[usize::from(ask.policy)].table;
        self.ledger.void(table.made(), ask.key, now);
        table.remove(&self.seed, ask.key);
    }
}

macro_rules! tables {
    ($($(#[$doc:meta])* $variant:ident $name:literal $state:ty,)*) => {
        /// The keys of one policy. Clones are the same table.
        #[derive(Clone, Debug)]
        pub(crate) enum Table {
            $($variant(Arc<Shards<$state>>),)*
        }

        /// The place of one key in any table, locked.
        enum AnySlot<'a> {
            $($variant(Slot<'a, $state>),)*
        }

        impl Table {
            pub(crate) fn new(algorithm: Algorithm, max_keys: usize) -> Self {
                match algorithm {
                    $(Algorithm::$variant => Self::$variant(Arc::new(Shards::new(max_keys))),)*
                }
            }

            /// The table's number in the order of all tables' making.
            pub(crate) fn made(&self) -> u64 {
                match self {
                    $(Self::$variant(shards) => shards.made,)*
                }
            }

            /// Keys held, and an estimate of their bytes.
            pub(crate) fn size(&self) -> (usize, usize) {
                match self {
                    $(Self::$variant(shards) => shards.size(),)*
                }
            }

            #[inline]
            fn decide(
                &self, seed: &Seed, prepared: &Prepared, ask: Ask, intent: Intent, now: u64, again: impl FnOnce() -> Decision,
            ) -> Decision {
                match self {
                    $(Self::$variant(shards) => shards.decide(seed, prepared, ask, intent, now, again),)*
                }
            }

            fn clear(&self) {
                match self {
                    $(Self::$variant(shards) => shards.clear(),)*
                }
            }

            fn carry_over(&self, prepared: &Prepared) {
                match self {
                    $(Self::$variant(shards) => shards.carry_over(prepared),)*
                }
            }

            fn remove(&self, seed: &Seed, key: Key) {
                match self {
                    $(Self::$variant(shards) => shards.remove(seed, key),)*
                }
            }
        }

        impl Prepared {
            /// Locks the place of the ask's key.
            fn lock<'a>(&'a self, seed: &'a Seed, ask: &'a Ask, now: u64) -> Result<AnySlot<'a>, Stale> {
                match &self.table {
                    $(Table::$variant(shards) => shards.lock(seed, self, ask, now).map(AnySlot::$variant),)*
                }
            }
        }

        impl AnySlot<'_> {
            fn evaluate(&self) -> Evaluation {
                match self {
                    $(Self::$variant(slot) => slot.evaluate(),)*
                }
            }

            fn finish(&mut self, evaluation: Evaluation, intent: Intent, admitted: bool) -> Answer {
                match self {
                    $(Self::$variant(slot) => slot.finish(evaluation, intent, admitted),)*
                }
            }

            fn amend(&mut self, amendment: &Amendment) {
                match self {
                    $(Self::$variant(slot) => slot.amend(amendment),)*
                }
            }
        }
    };
}
registry!(tables);
