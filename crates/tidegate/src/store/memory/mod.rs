//! The memory store: one typed table per policy, decided under the locks of the shards that a hit touches.

mod ledger;
mod shards;

use std::{
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use smallvec::SmallVec;

pub(crate) use self::ledger::Ledger;
pub(crate) use self::shards::Stale;
use self::shards::{Shards, Slot};
use super::{Ask, Asks, Intent, Record, Records};
use crate::{
    Algorithm,
    algorithm::{Charge, Evaluation, State, Verdict, registry},
    key::Key,
    set::PolicySet,
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
    fn hash(&self, key: &Key) -> u64 {
        let mut hasher = self.0.build_hasher();
        key.words().into_iter().for_each(|word| hasher.write_u64(word));
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

    /// Answers `asks`, which are in the order of their tables' making. `barred`: the hit is denied already.
    ///
    /// # Errors
    /// When the set has been replaced and states are already under a newer one: ask again with that.
    #[inline]
    pub(crate) fn decide(&self, set: &PolicySet, asks: &[Ask], intent: Intent, barred: bool, now: u64) -> Result<Records, Stale> {
        let mut records = Records::new();
        match asks {
            [] => {}
            [ask] => records.push(set.policies[usize::from(ask.policy)].table.decide(self, set, ask, intent, barred, now)?),
            several => {
                let mut slots: SmallVec<[AnySlot<'_>; 4]> = SmallVec::new();
                let mut admitted = !barred;
                let mut evaluations: SmallVec<[Evaluation; 4]> = SmallVec::new();
                for ask in several {
                    let slot = set.policies[usize::from(ask.policy)].table.lock(self, set, ask, now)?;
                    let evaluation = slot.evaluate();
                    admitted &= !ask.enforced || evaluation.verdict == Verdict::Allowed;
                    evaluations.push(evaluation);
                    slots.push(slot);
                }
                for (slot, evaluation) in slots.iter_mut().zip(evaluations) {
                    records.push(slot.finish(evaluation, intent, admitted));
                }
            }
        }
        Ok(records)
    }

    /// Amends one key.
    pub(crate) fn amend(&self, set: &PolicySet, ask: &Ask, amendment: &Amendment, now: u64) -> Result<(), Stale> {
        set.policies[usize::from(ask.policy)].table.lock(self, set, ask, now).map(|mut slot| slot.amend(amendment))
    }

    /// Forgets a key, and refuses the receipts it has given out.
    pub(crate) fn reset(&self, set: &PolicySet, ask: &Ask, now: u64) {
        let table = &set.policies[usize::from(ask.policy)].table;
        self.ledger.void(table.made(), ask.key, set.forgotten_at(now), now);
        table.remove(self, ask);
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
                &self, memory: &Memory, set: &PolicySet, ask: &Ask, intent: Intent, barred: bool, now: u64,
            ) -> Result<Record, Stale> {
                match self {
                    $(Self::$variant(shards) => {
                        let mut slot = shards.lock(&memory.seed, set, ask, now)?;
                        let evaluation = slot.evaluate();
                        let admitted = !barred && (!ask.enforced || evaluation.verdict == Verdict::Allowed);
                        Ok(slot.finish(evaluation, intent, admitted))
                    })*
                }
            }

            fn lock<'a>(&'a self, memory: &'a Memory, set: &'a PolicySet, ask: &'a Ask, now: u64) -> Result<AnySlot<'a>, Stale> {
                match self {
                    $(Self::$variant(shards) => shards.lock(&memory.seed, set, ask, now).map(AnySlot::$variant),)*
                }
            }

            fn remove(&self, memory: &Memory, ask: &Ask) {
                match self {
                    $(Self::$variant(shards) => shards.remove(memory.seed.hash(&ask.key), &ask.key),)*
                }
            }
        }

        impl AnySlot<'_> {
            fn evaluate(&self) -> Evaluation {
                match self {
                    $(Self::$variant(slot) => slot.evaluate(),)*
                }
            }

            fn finish(&mut self, evaluation: Evaluation, intent: Intent, admitted: bool) -> Record {
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

impl<S: State> Slot<'_, S> {
    /// Charges if it is to be charged, and says how the key stands then.
    #[inline]
    fn finish(&mut self, Evaluation { used, verdict }: Evaluation, intent: Intent, admitted: bool) -> Record {
        let charge = match intent {
            Intent::Check => admitted && verdict == Verdict::Allowed,
            Intent::Peek => false,
            Intent::Charge => true,
        };
        if !charge || self.ask.cost == 0 {
            return self.record(used, verdict, Charge { at: 0, cost: 0 });
        }
        let charged = self.charge(self.ask.cost);
        match intent {
            Intent::Charge => self.record(self.used(), Verdict::Allowed, charged),
            _ => self.record(used + charged.cost, verdict, charged),
        }
    }

    fn amend(&mut self, amendment: &Amendment) {
        match *amendment {
            Amendment::Refund { at, amount } => self.refund(at, amount),
            Amendment::Charge { amount } => drop(self.charge(amount)),
        }
    }

    #[inline]
    fn record(&self, used: u64, verdict: Verdict, charged: Charge) -> Record {
        let Ask { key, policy, plan, cost, .. } = *self.ask;
        Record {
            key,
            policy,
            plan,
            source: self.source(),
            verdict,
            limit: self.capacity(),
            used,
            reset_after: self.reset_after(),
            cost,
            charged: charged.cost,
            at: charged.at,
        }
    }
}

// Asks are built on the caller's stack; a batch of hits will share one.
const _: () = assert!(size_of::<Asks>() <= 256);
