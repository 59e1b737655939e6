//! The memory store: one typed table per policy, decided under the locks of the shards that a hit touches.

mod draft;
mod ledger;
mod places;
mod shards;
mod snapshot;

use std::{
    future::{Ready, ready},
    hash::{BuildHasher, Hasher},
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use smallvec::SmallVec;

pub(crate) use self::snapshot::Keeper;
pub use self::snapshot::{Saved, Snapshot, SnapshotStatus};
use self::{
    ledger::Ledger,
    shards::{Shards, Slot, Stale},
    snapshot::Snapshots,
};
use super::{Amendment, Answer, Ask, Asks, Intent, Question, Records, Store};
use crate::{
    Algorithm, Decision, Hit, Limiter, Ranked, Receipt, StoreError,
    algorithm::{Evaluation, Stored, Verdict, registry},
    error::ConfigError,
    key::{Key, Short},
    lease::Lease,
    limiter::Inner,
    packed::{Packer, Unpacker},
    receipt::Charged,
    set::{PolicySet, Prepared, Stance},
};

/// The store that a limiter has unless told otherwise: tables in this process, bounded, without a thread of their own.
#[derive(Default)]
pub struct Memory {
    seed: Seed,
    ledger: Ledger,
    snapshots: Snapshots,
}

#[expect(private_interfaces, reason = "nobody else is to call these")]
impl Store for Memory {
    type Reply<T: Send + 'static> = T;
    #[cfg(feature = "waiting")]
    type Awaited<T: Send + 'static> = T;
    type Told<T: Send + 'static> = Ready<Result<T, StoreError>>;

    #[inline]
    fn told<T: Send + 'static>(reply: T) -> Self::Told<T> {
        ready(Ok(reply))
    }

    #[inline]
    fn now<T: Send + 'static>(reply: &mut T) -> Option<&mut T> {
        Some(reply)
    }

    fn start(&mut self, max_keys: usize) -> Result<(), ConfigError> {
        self.ledger.bound(max_keys);
        Ok(())
    }

    fn shared_by(&self) -> Option<u64> {
        None
    }

    fn restore(&mut self, max_keys: usize, now: u64) -> Option<PolicySet> {
        self.restore_snapshot(max_keys, now)
    }

    fn keep(inner: &Arc<Inner<Self>>) -> Option<Arc<Keeper>> {
        Keeper::start(inner)
    }

    /// The path of every hit.
    #[inline]
    fn decide(limiter: &Limiter, hit: &Hit<'_>, intent: Intent) -> Decision {
        let now = limiter.now();
        if limiter.is_newest() {
            limiter.decide_by(&limiter.set, hit, intent, now)
        } else {
            limiter.decide_by_newest(hit, intent, now)
        }
    }

    #[inline]
    fn pass(limiter: &Limiter, attribute: Short, value: Short) -> bool {
        let Some(prepared) = limiter.only_by(attribute) else { return false };
        prepared.table.pass(&limiter.inner.store.seed, prepared, Key::of_short(value), limiter.now())
    }

    #[inline]
    fn allow(limiter: &Limiter, attribute: Short, value: Short) -> Option<Decision> {
        let prepared = limiter.only_by(attribute)?;
        prepared.table.allow(&limiter.inner.store.seed, prepared, Key::of_short(value), limiter.now())
    }

    fn reset(limiter: &Limiter, hit: &Hit<'_>) -> Decision {
        let (set, now) = (limiter.inner.set.load(), limiter.now());
        for stance in set.stances(hit, &limiter.inner.digester) {
            if let Stance::Decides(ask) = stance {
                limiter.inner.store.reset_one(&set, &ask, now);
            }
        }
        limiter.peek(hit.clone().cost(0))
    }

    fn amend(limiter: &Limiter, receipt: Receipt, actual: Option<u64>) -> Decision {
        let set = || limiter.inner.set.load_full();
        limiter.inner.store.amend(set, &receipt, actual, limiter.now())
    }

    fn lease(limiter: &Limiter, leases: Vec<Lease>, renews: bool) -> bool {
        let set = || limiter.inner.set.load_full();
        let one = |lease: &Lease| limiter.inner.store.lease_one(set, lease, renews, limiter.now());
        // All of them first.
        let held: Vec<bool> = leases.iter().filter_map(one).collect();
        if renews { !held.contains(&false) } else { held.contains(&true) }
    }

    fn let_go(limiter: &Limiter, leases: Vec<Lease>) {
        limiter.end(leases);
    }

    fn inspect(limiter: &Limiter, ask: Ask) -> (Stored, u64) {
        let now = limiter.now();
        loop {
            let set = limiter.inner.set.load();
            let slot = set.policies[usize::from(ask.policy)].lock(&limiter.inner.store.seed, &ask, now);
            if let Ok(slot) = slot {
                return slot.inspect();
            }
        }
    }

    fn top(limiter: &Limiter, policy: u16, n: usize) -> Vec<Ranked> {
        let set = limiter.inner.set.load();
        let prepared = &set.policies[usize::from(policy)];
        let rank = |(key, denied): (Key, u64)| Ranked { key: prepared.shown(key), denied };
        prepared.denials.top(n, limiter.now()).into_iter().map(rank).collect()
    }

    /// Everything is answered at once, so it has no need to wait.
    fn detach(_limiter: &Limiter, future: impl Future<Output = ()> + Send + 'static) {
        let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    }

    fn known<T: Send + 'static>(value: T) -> T {
        value
    }

    fn replaced(&self, old: &PolicySet, new: &PolicySet) {
        Self::clear_gone(old, new);
    }

    #[cfg(feature = "waiting")]
    fn awaited<T: Send + 'static>(told: Result<T, StoreError>) -> T {
        told.expect("memory always answers")
    }

    #[cfg(feature = "waiting")]
    fn ask(limiter: &Limiter, hit: &Hit<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        Self::told(limiter.check(hit))
    }

    #[cfg(feature = "waiting")]
    fn foresee(limiter: &Limiter, set: Arc<PolicySet>, asks: Asks) -> Records {
        limiter.inner.store.decide(&set, &asks, Intent::Peek, false, limiter.now()).unwrap_or_default()
    }

    fn map<T: Send + 'static, U: Send + 'static>(reply: T, change: impl FnOnce(T) -> U) -> U {
        change(reply)
    }
}

impl Limiter {
    /// The policy, if it is the only one and a simple one, keyed by this attribute and in force.
    #[inline(always)]
    fn only_by(&self, attribute: Short) -> Option<&Prepared> {
        self.set.only_by(attribute).filter(|_| self.is_newest())
    }

    /// One simple policy is the usual case and goes straight to its table.
    #[inline]
    fn decide_by(&self, set: &PolicySet, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        match set.only_ask(hit, &self.inner.digester) {
            Some((prepared, ask)) => {
                self.inner.store.decide_one(prepared, ask, intent, now, || self.decide_all(hit, intent, now))
            }
            None => self.decide_all(hit, intent, now),
        }
    }

    /// For a handle that was made before the policies were last replaced.
    #[inline(never)]
    fn decide_by_newest(&self, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        self.decide_by(&self.inner.set.load(), hit, intent, now)
    }

    /// The path of a hit in every case.
    #[inline(never)]
    fn decide_all(&self, hit: &Hit<'_>, intent: Intent, now: u64) -> Decision {
        loop {
            let set = self.inner.set.load();
            let question = Question::new(&set, hit, &self.inner.digester).asked_to(intent, hit, self.inner.leases, &set);
            if let Ok(records) = self.inner.store.decide(&set, &question.asks, intent, question.is_barred(), now) {
                return question.decision(&set, records);
            }
            // The set was replaced under us, and by now is there to be loaded.
        }
    }
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

impl Memory {
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
            let answer = slot.finish(evaluation, intent, admitted);
            prepared.count(ask, &answer, intent, now);
            prepared.record(ask, answer)
        };
        Ok(slots.iter_mut().zip(evaluations).zip(asks).map(record).collect())
    }

    /// Brings each charge of a receipt to what was `actual`, and says how the keys stand then. `set`: the newest.
    pub(crate) fn amend(&self, set: impl Fn() -> Arc<PolicySet>, receipt: &Receipt, actual: Option<u64>, now: u64) -> Decision {
        let until = receipt.charges.iter().map(|charged| set().forgotten_at(charged)).max().unwrap_or(now);
        if self.ledger.spend(receipt.id, until, now) {
            for charged in &receipt.charges {
                while self.amend_one(&set(), charged, actual, now).is_err() {}
            }
        }
        loop {
            let set = set();
            let mut asks: Asks = receipt.charges.iter().filter_map(|charged| set.ask(charged)).collect();
            asks.sort_by_key(|ask| set.policies[usize::from(ask.policy)].table.made());
            if let Ok(records) = self.decide(&set, &asks, Intent::Peek, false, now) {
                return Decision::new(records);
            }
        }
    }

    fn amend_one(&self, set: &PolicySet, charged: &Charged, actual: Option<u64>, now: u64) -> Result<(), Stale> {
        let Some((ask, amendment)) = set.amendment(charged, actual, now) else { return Ok(()) };
        let prepared = &set.policies[usize::from(ask.policy)];
        if self.ledger.is_void(prepared.table.made(), charged.key, charged.at) {
            return Ok(());
        }
        prepared.lock(&self.seed, &ask, now).map(|mut slot| slot.amend(&amendment))
    }

    /// Renews a lease or releases it; false if it is not held, nothing if that does not matter: its policy has gone, or decides
    /// nothing. `set`: the newest.
    pub(crate) fn lease_one(&self, set: impl Fn() -> Arc<PolicySet>, lease: &Lease, renews: bool, now: u64) -> Option<bool> {
        loop {
            let set = set();
            let ask = set.lease(lease)?;
            if let Ok(mut slot) = set.policies[usize::from(ask.policy)].lock(&self.seed, &ask, now) {
                let held = slot.lease(renews);
                return (held || ask.enforced).then_some(held);
            }
        }
    }

    /// Frees what policies of `old` hold that are not in `new`: handles of the limiter may keep the old set for long.
    pub(crate) fn clear_gone(old: &PolicySet, new: &PolicySet) {
        let stays = |table: &Table| new.policies.iter().any(|prepared| prepared.table.made() == table.made());
        old.policies.iter().map(|prepared| &prepared.table).filter(|table| !stays(table)).for_each(Table::clear);
    }

    /// Writes the states of policies with a long past anew, so that it can be forgotten.
    pub(crate) fn carry_over(set: &PolicySet) {
        let local = set.local.iter().flat_map(|local| &local.policies);
        for prepared in set.policies.iter().chain(local).filter(|prepared| prepared.has_long_past()) {
            prepared.table.carry_over(prepared);
        }
    }

    /// Forgets a key, and refuses the receipts it has given out.
    fn reset_one(&self, set: &PolicySet, ask: &Ask, now: u64) {
        let table = &set.policies[usize::from(ask.policy)].table;
        self.ledger.void(table.made(), ask.key, now);
        table.remove(&self.seed, ask.key);
    }
}

macro_rules! tables {
    ($($(#[$doc:meta])* $variant:ident $name:literal $script:literal $state:ty,)*) => {
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

            pub(crate) fn keys(&self) -> usize {
                match self {
                    $(Self::$variant(shards) => shards.keys(),)*
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

            #[inline]
            fn pass(&self, seed: &Seed, prepared: &Prepared, key: Key, now: u64) -> bool {
                match self {
                    $(Self::$variant(shards) => shards.pass(seed, prepared, key, now),)*
                }
            }

            #[inline]
            fn allow(&self, seed: &Seed, prepared: &Prepared, key: Key, now: u64) -> Option<Decision> {
                match self {
                    $(Self::$variant(shards) => shards.allow(seed, prepared, key, now),)*
                }
            }

            fn save(&self, prepared: &Prepared, now: u64, to: &mut Packer<'_>) -> io::Result<usize> {
                match self {
                    $(Self::$variant(shards) => shards.save(prepared, now, to),)*
                }
            }

            fn load(&self, seed: &Seed, prepared: &Prepared, now: u64, from: &mut Unpacker<'_>) -> Option<usize> {
                match self {
                    $(Self::$variant(shards) => shards.load(seed, prepared, now, from),)*
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

            fn inspect(&self) -> (Stored, u64) {
                match self {
                    $(Self::$variant(slot) => slot.inspect(),)*
                }
            }

            fn amend(&mut self, amendment: &Amendment) {
                match self {
                    $(Self::$variant(slot) => slot.amend(amendment),)*
                }
            }

            fn lease(&mut self, renews: bool) -> bool {
                match self {
                    $(Self::$variant(slot) => slot.lease(renews),)*
                }
            }
        }
    };
}
registry!(tables);
