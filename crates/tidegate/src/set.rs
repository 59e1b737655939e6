//! A set of policies made ready to decide: checked, with a plan for every quota and a table for every policy's keys.
//! It is replaced whole; what a policy of the same meaning has counted goes over to the new set.

mod saved;

#[cfg(feature = "redis")]
use std::sync::OnceLock;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use crate::store::redis::Form;
use crate::{
    Algorithm, Hit, Mode, Override, Policy, Quota,
    algorithm::{Plan, Verdict},
    error::{ConfigError, QuotaError},
    key::{Digester, Key, Short},
    label::Label,
    lease,
    receipt::Charged,
    store::{Amendment, Answer, Ask, Intent, Record, memory::Table},
    top::Denials,
};

#[derive(Debug)]
pub(crate) struct PolicySet {
    /// Counts the sets of a limiter.
    pub(crate) version: u64,
    pub(crate) policies: Vec<Prepared>,
    /// Indices of policies in the order in which their tables are locked: that of the tables' making, whatever sets
    /// they have been in since, so that decisions under an old and a new set cannot wait for each other.
    order: Vec<u16>,
    /// Whether any of its policies does.
    pub(crate) gives_leases: bool,
    /// The same policies with this instance's share of their quotas, for when the store does not answer.
    pub(crate) local: Option<Arc<PolicySet>>,
}

/// What a set is made with, beside the policies.
pub(crate) struct Making<'a> {
    /// The set that it replaces.
    pub(crate) old: Option<&'a PolicySet>,
    pub(crate) digester: &'a Digester,
    pub(crate) max_keys: usize,
    /// When it comes into force.
    pub(crate) now: u64,
    /// How many instances share a quota when each decides by itself; nothing where none ever does.
    pub(crate) shared_by: Option<u64>,
}

/// A policy and what deciding by it needs.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) policy: Arc<Policy>,
    pub(crate) table: Table,
    /// Which keys it has denied.
    pub(crate) denials: Arc<Denials>,
    /// The quotas in force.
    pub(crate) current: Era,
    /// The number of the current era. States say by it which they were written in; it wraps.
    pub(crate) era: u16,
    /// The eras before it that states may be from, oldest first.
    past: Vec<Arc<Era>>,
    /// The attribute that alone makes the key, where there is nothing else to look at: no conditions, no overrides.
    simple: Option<Box<str>>,
    /// The same, if it is short.
    short: Option<Short>,
    pub(crate) enforced: bool,
    /// What Redis makes of it, once it has.
    #[cfg(feature = "redis")]
    pub(crate) form: OnceLock<Form>,
}

/// The quotas that a policy had for some time.
#[derive(Clone, Debug)]
pub(crate) struct Era {
    since: u64,
    /// The policy's resolution.
    grains: u32,
    /// The policy's own quota, then those of overrides.
    plans: Vec<Plan>,
    labels: Vec<Label>,
    overrides: HashMap<Key, Treatment, foldhash::fast::RandomState>,
}

/// Past eras that a policy keeps before all of its states are written anew under the current one.
const MAX_PAST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// The index of a quota.
    Plan(u16),
    Unlimited,
    Blocked,
}

/// What a policy has to say to a hit.
pub(crate) enum Stance {
    Decides(Ask),
    Blocks(Ask),
    /// It does not apply, or the key is unlimited.
    Silent,
}

impl PolicySet {
    /// Checks `policies` and makes them ready.
    pub(crate) fn new(policies: Vec<Policy>, making: &Making<'_>) -> Result<Self, ConfigError> {
        if policies.len() > usize::from(u16::MAX) {
            return Err(ConfigError::TooMany("policies"));
        }
        let mut names = HashSet::new();
        if let Some(twice) = policies.iter().find(|policy| !names.insert(policy.name.clone())) {
            return Err(ConfigError::Duplicate(twice.name.clone()));
        }
        let local = making.shared_by.map(|instances| {
            let share = policies.iter().map(|policy| policy.share(instances)).collect();
            Self::new(share, &Making { old: making.old.and_then(|old| old.local.as_deref()), shared_by: None, ..*making })
        });
        let local = local.transpose()?.map(Arc::new);
        let policies: Vec<Prepared> =
            policies.into_iter().map(|policy| Prepared::new(policy, making)).collect::<Result<_, _>>()?;
        let mut order: Vec<u16> = (0..policies.len() as u16).collect();
        order.sort_by_key(|index| policies[usize::from(*index)].table.made());
        let version = making.old.map_or(0, |old| old.version + 1);
        let gives_leases = policies.iter().any(|prepared| prepared.policy.algorithm == Algorithm::Concurrency);
        Ok(Self { version, policies, order, gives_leases, local })
    }

    /// The policy and its ask, if it is the only one and a simple one, and applies.
    #[inline(always)]
    pub(crate) fn only_ask(&self, hit: &Hit<'_>, digester: &Digester) -> Option<(&Prepared, Ask)> {
        let [only] = self.policies.as_slice() else { return None };
        let key = Key::of(digester, hit.get(only.simple.as_deref()?)?);
        Some((only, Ask { key, policy: 0, plan: 0, cost: only.policy.weigh(hit.total()), enforced: only.enforced }))
    }

    /// The policy, if it is the only one and a simple one, and keyed by this attribute.
    #[inline(always)]
    pub(crate) fn only_by(&self, attribute: Short) -> Option<&Prepared> {
        let [only] = self.policies.as_slice() else { return None };
        (only.short == Some(attribute)).then_some(only)
    }

    /// What each policy has to say to `hit`, in the order in which to lock.
    pub(crate) fn stances(&self, hit: &Hit<'_>, digester: &Digester) -> impl Iterator<Item = Stance> {
        self.order.iter().map(move |index| self.policies[usize::from(*index)].stance(*index, hit, digester))
    }

    /// The ask for a key that has been charged, if its policy still is what it was.
    pub(crate) fn ask(&self, charged: &Charged) -> Option<Ask> {
        let same = |prepared: &Prepared| prepared.policy.name == charged.policy && prepared.policy.algorithm == charged.algorithm;
        let index = self.policies.iter().position(same)?;
        match self.policies[index].treat(index as u16, charged.key, 0) {
            Stance::Decides(ask) => Some(ask),
            Stance::Blocks(_) | Stance::Silent => None,
        }
    }

    /// What is to be done about a charge for which the cost turned out to be `actual`, or nothing at all. A receipt of which it is no
    /// longer remembered whether it was used is worth nothing.
    pub(crate) fn amendment(&self, charged: &Charged, actual: Option<u64>, now: u64) -> Option<(Ask, Amendment)> {
        let ask = self.ask(charged).filter(|_| now < self.forgotten_at(charged))?;
        let prepared = &self.policies[usize::from(ask.policy)];
        let counts_requests = prepared.policy.weigh(u64::MAX) == 1;
        let target = match actual {
            Some(_) if counts_requests => charged.cost,
            actual => actual.unwrap_or(0),
        };
        let other_terms = prepared.policy.algorithm.terms(prepared.plan(ask.plan)) != charged.terms
            || charged.at < prepared.same_terms_since(&charged.key);
        match charged.cost.checked_sub(target) {
            Some(0) => None,
            // How much of it still counts is no longer known: nothing, to be safe.
            Some(_) if other_terms => None,
            Some(amount) => Some((ask, Amendment::Refund { at: charged.at, amount })),
            None => Some((ask, Amendment::Charge { amount: target - charged.cost })),
        }
    }

    /// The index of a policy.
    pub(crate) fn find(&self, name: &str) -> Result<u16, ConfigError> {
        let index = self.policies.iter().position(|prepared| prepared.policy.name == name);
        index.map(|index| index as u16).ok_or_else(|| ConfigError::Unknown(name.to_owned()))
    }

    /// Whether some states should be written anew, so that past eras can be forgotten.
    pub(crate) fn has_long_pasts(&self) -> bool {
        let local = self.local.as_ref().is_some_and(|local| local.has_long_pasts());
        local || self.policies.iter().any(Prepared::has_long_past)
    }

    /// The same set, to be served once all states of policies with a long past are written under the current era.
    pub(crate) fn without_long_pasts(&self) -> Self {
        let mut policies = self.policies.clone();
        policies.iter_mut().filter(|prepared| prepared.has_long_past()).for_each(|prepared| prepared.past.clear());
        let local = self.local.as_ref().map(|local| Arc::new(local.without_long_pasts()));
        Self { version: self.version + 1, policies, order: self.order.clone(), gives_leases: self.gives_leases, local }
    }

    /// When a charge can give nothing back any more. Under other terms than now it gives nothing anyway.
    pub(crate) fn forgotten_at(&self, charged: &Charged) -> u64 {
        let plan = self.ask(charged).map(|ask| self.policies[usize::from(ask.policy)].plan(ask.plan));
        plan.map_or(charged.at, |plan| plan.forgotten_at(charged.at, charged.cost))
    }
}

impl Prepared {
    fn new(policy: Policy, making: &Making<'_>) -> Result<Self, ConfigError> {
        let &Making { old, digester, max_keys, now, .. } = making;
        check_shape(&policy)?;
        let policy = policy.kept_to_calendar();
        // A policy goes on where it left off only if its keys and its states mean the same.
        let old = old.and_then(|set| {
            let same = |old: &&Prepared| {
                old.policy.name == policy.name && old.policy.algorithm == policy.algorithm && old.policy.key == policy.key
            };
            set.policies.iter().find(same)
        });
        let Some(old) = old else {
            let table = Table::new(policy.algorithm, max_keys);
            // Receipts of an earlier policy of this name are from before it; in a limiter's first set there is none.
            let since = making.old.map_or(0, |_| now + 1);
            let first = Era::new(&policy, digester, since)?;
            return Ok(Self::with(policy, (table, Arc::default()), first, 0, Vec::new()));
        };
        let kept = (old.table.clone(), Arc::clone(&old.denials));
        let current = Era::new(&policy, digester, now)?;
        if current.rules_as(&old.current) {
            return Ok(Self::with(policy, kept, old.current.clone(), old.era, old.past.clone()));
        }
        let past = old.past.iter().cloned().chain([Arc::new(old.current.clone())]).collect();
        Ok(Self::with(policy, kept, current, old.era.wrapping_add(1), past))
    }

    fn with(policy: Policy, (table, denials): (Table, Arc<Denials>), current: Era, era: u16, past: Vec<Arc<Era>>) -> Self {
        let plain = policy.conditions.is_empty() && policy.overrides.is_empty();
        let simple = match policy.key.as_slice() {
            [attribute] if plain && policy.algorithm != Algorithm::Concurrency => Some(attribute.as_str()),
            _ => None,
        };
        Self {
            short: simple.and_then(Short::of),
            simple: simple.map(Into::into),
            enforced: policy.mode == Mode::Enforce,
            policy: Arc::new(policy),
            table,
            denials,
            current,
            era,
            past,
            #[cfg(feature = "redis")]
            form: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn plan(&self, index: u16) -> &Plan {
        &self.current.plans[usize::from(index)]
    }

    #[inline]
    pub(crate) fn label(&self, index: u16) -> Label {
        self.current.labels[usize::from(index)]
    }

    /// The plan that a key is under.
    pub(crate) fn plan_of(&self, key: &Key) -> &Plan {
        self.current.plan_of(key)
    }

    /// The changes of plan that a key has seen since era `era`, with their times, oldest first; nothing if that era is
    /// newer than this set.
    pub(crate) fn changes<'a>(&'a self, era: u16, key: &'a Key) -> Option<impl Iterator<Item = (&'a Plan, &'a Plan, u64)>> {
        let behind = self.era.wrapping_sub(era);
        // Past eras are few: what seems to be far behind is ahead. What is older than the oldest one known was written
        // by a decision that was under way while all others were written anew; it is taken to be from that one.
        let known = (behind < u16::MAX / 2).then(|| self.past.len().min(usize::from(behind)))?;
        let eras = self.past[self.past.len() - known..].iter().map(AsRef::as_ref).chain([&self.current]);
        let later = eras.clone().skip(1);
        Some(eras.zip(later).map(move |(old, new)| (old.plan_of(key), new.plan_of(key), new.since)))
    }

    /// The plans in force, and since when, where no key has been under others.
    #[cfg(feature = "redis")]
    pub(crate) fn only_plans(&self) -> (&[Plan], u64) {
        let plans = if self.past.is_empty() { self.current.plans.as_slice() } else { &[] };
        (plans, self.current.since)
    }

    /// The plans that a key has been under and since when, oldest first; the last is in force.
    #[cfg(feature = "redis")]
    pub(crate) fn eras(&self, key: &Key) -> SmallVec<[(&Plan, u64); 2]> {
        let eras = self.past.iter().map(AsRef::as_ref).chain([&self.current]);
        eras.map(|era| (era.plan_of(key), era.since)).collect()
    }

    /// The time since which a key has been under the same terms.
    pub(crate) fn same_terms_since(&self, key: &Key) -> u64 {
        let terms = |era: &Era| self.policy.algorithm.terms(era.plan_of(key));
        let now = terms(&self.current);
        let same = self.past.iter().rev().take_while(|era| terms(era) == now);
        same.last().map_or(self.current.since, |era| era.since)
    }

    /// An ask of this policy and its answer.
    pub(crate) fn record(&self, ask: &Ask, answer: Answer) -> Record {
        Record { ask: *ask, limit: self.plan(ask.plan).capacity, answer, label: self.label(ask.plan) }
    }

    /// A key in print.
    pub(crate) fn shown(&self, key: Key) -> String {
        key.display(self.policy.key.len()).to_string()
    }

    /// Counts an answer, if it is the denial of somebody who did not only look.
    #[inline]
    pub(crate) fn count(&self, ask: &Ask, answer: &Answer, intent: Intent, now: u64) {
        if answer.verdict != Verdict::Allowed && ask.enforced && ask.cost > 0 && intent == Intent::Check {
            self.denials.count(ask.key, now);
        }
    }

    /// Whether its states should be written anew, so that past eras can be forgotten.
    pub(crate) fn has_long_past(&self) -> bool {
        self.past.len() > MAX_PAST
    }

    pub(crate) fn stance(&self, index: u16, hit: &Hit<'_>, digester: &Digester) -> Stance {
        if !self.policy.matches(hit) {
            return Stance::Silent;
        }
        let key = match self.policy.key.as_slice() {
            [attribute] => match hit.get(attribute) {
                Some(value) => Key::of(digester, value),
                None => return Stance::Silent,
            },
            attributes => {
                let values: Option<SmallVec<[&[u8]; 8]>> = attributes.iter().map(|attribute| hit.get(attribute)).collect();
                match values {
                    Some(values) => Key::of_all(digester, values.iter().copied()),
                    None => return Stance::Silent,
                }
            }
        };
        let cost = match self.policy.weigh(hit.total()) {
            0 => 0,
            _ if self.policy.algorithm == Algorithm::Concurrency => lease::number(hit, &key, digester),
            cost => cost,
        };
        self.treat(index, key, cost)
    }

    pub(crate) fn treat(&self, index: u16, key: Key, cost: u64) -> Stance {
        let ask = |plan| Ask { key, policy: index, plan, cost, enforced: self.enforced };
        match self.current.overrides.get(&key) {
            None => Stance::Decides(ask(0)),
            Some(Treatment::Plan(plan)) => Stance::Decides(ask(*plan)),
            Some(Treatment::Unlimited) => Stance::Silent,
            Some(Treatment::Blocked) => Stance::Blocks(ask(0)),
        }
    }
}

impl Era {
    fn new(policy: &Policy, digester: &Digester, since: u64) -> Result<Self, ConfigError> {
        let grains = policy.grains();
        let mut era = Self { since, grains, plans: Vec::new(), labels: Vec::new(), overrides: HashMap::default() };
        era.add(policy, policy.quota)?;
        for (values, treatment) in &policy.overrides {
            let key = match values.as_slice() {
                [value] => Key::of(digester, value),
                values => Key::of_all(digester, values.iter().map(Vec::as_slice)),
            };
            let treatment = match treatment {
                Override::Quota(quota) => Treatment::Plan(era.add(policy, *quota)?),
                Override::Unlimited => Treatment::Unlimited,
                Override::Blocked => Treatment::Blocked,
            };
            era.overrides.insert(key, treatment);
        }
        Ok(era)
    }

    /// The index of `quota`, added if it is new.
    fn add(&mut self, policy: &Policy, quota: Quota) -> Result<u16, ConfigError> {
        if let Some(known) = self.labels.iter().position(|known| known.quota == quota) {
            return Ok(known as u16);
        }
        let refused = |error| ConfigError::Quota { policy: policy.name.clone(), error };
        let grains = self.grains;
        if !(1..=Policy::MAX_RESOLUTION).contains(&grains) {
            return Err(refused(QuotaError::Resolution(grains)));
        }
        let plan = Plan::new(policy.algorithm, &quota, grains).map_err(refused)?;
        let plan = plan.following(policy.calendar);
        self.labels.push(Label::new(policy, quota, &plan));
        self.plans.push(plan);
        u16::try_from(self.labels.len() - 1).map_err(|_| ConfigError::TooMany("different quotas in one policy's overrides"))
    }

    /// Whether every key gets the same in both.
    fn rules_as(&self, other: &Self) -> bool {
        let quotas = |era: &Self| era.labels.iter().map(|label| label.quota).collect::<Vec<_>>();
        self.plans == other.plans && quotas(self) == quotas(other) && self.overrides == other.overrides
    }

    fn plan_of(&self, key: &Key) -> &Plan {
        match self.overrides.get(key) {
            Some(Treatment::Plan(plan)) => &self.plans[usize::from(*plan)],
            _ => &self.plans[0],
        }
    }
}

fn check_shape(policy: &Policy) -> Result<(), ConfigError> {
    let name = &policy.name;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=Label::MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(ConfigError::Name(name.clone()));
    }
    let mut attributes = HashSet::new();
    let problem = if !policy.key.iter().all(|attribute| attributes.insert(attribute)) {
        "a key attribute is named twice; name each once"
    } else if policy.key.iter().chain(policy.conditions.iter().map(|(attribute, _)| attribute)).any(String::is_empty) {
        "an attribute has no name"
    } else if policy.overrides.iter().any(|(values, _)| values.len() != policy.key.len()) {
        "an override needs one value for each key attribute, in their order"
    } else if policy.resolution.is_some() && policy.algorithm != Algorithm::SlidingWindow {
        "only sliding-window has a resolution"
    } else if policy.calendar.is_some() && policy.algorithm != Algorithm::FixedWindow {
        "only fixed-window follows a calendar"
    } else {
        return Ok(());
    };
    Err(ConfigError::Policy { policy: name.clone(), problem })
}
