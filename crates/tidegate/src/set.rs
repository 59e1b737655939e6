//! A set of policies made ready to decide: checked, with a plan for every quota and a table for every policy's keys.
//! It is replaced whole; what a policy of the same meaning has counted goes over to the new set.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    Algorithm, Hit, Mode, Override, Policy, Quota,
    algorithm::Plan,
    error::{ConfigError, QuotaError},
    key::{Digester, Key},
    receipt::Charged,
    store::{Ask, memory::Table},
};

#[derive(Debug)]
pub(crate) struct PolicySet {
    pub(crate) policies: Vec<Prepared>,
    /// Indices of policies in the order in which their tables are locked: that of the tables' making, whatever sets
    /// they have been in since, so that decisions under an old and a new set cannot wait for each other.
    order: Vec<u16>,
}

/// What a set is made with, beside the policies.
pub(crate) struct Making<'a> {
    /// The set that it replaces.
    pub(crate) old: Option<&'a PolicySet>,
    pub(crate) digester: &'a Digester,
    pub(crate) max_keys: usize,
    /// When it comes into force.
    pub(crate) now: u64,
}

/// A policy and what deciding by it needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) policy: Arc<Policy>,
    pub(crate) table: Table,
    /// Every quota that states in the table may be under, past ones included. States say which by index, so this only grows.
    pub(crate) quotas: Vec<Quota>,
    pub(crate) plans: Vec<Plan>,
    /// When the quotas in force came into force.
    pub(crate) since: u64,
    /// The index of the policy's own quota.
    current: u16,
    overrides: HashMap<Key, Treatment, foldhash::fast::RandomState>,
}

#[derive(Clone, Copy, Debug)]
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
        let policies: Vec<Prepared> =
            policies.into_iter().map(|policy| Prepared::new(policy, making)).collect::<Result<_, _>>()?;
        let mut order: Vec<u16> = (0..policies.len() as u16).collect();
        order.sort_by_key(|index| policies[usize::from(*index)].table.made());
        Ok(Self { policies, order })
    }

    /// What the policy has to say to `hit`, if it is the only one.
    #[inline(always)]
    pub(crate) fn only_stance(&self, hit: &Hit<'_>, digester: &Digester) -> Option<(&Prepared, Stance)> {
        match self.policies.as_slice() {
            [only] => Some((only, only.stance(0, hit, digester))),
            _ => None,
        }
    }

    /// What each policy has to say to `hit`, in the order in which to lock.
    #[inline]
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

    /// When nothing that was charged at `at` can matter any more.
    pub(crate) fn forgotten_at(&self, at: u64) -> u64 {
        let plans = self.policies.iter().flat_map(|prepared| &prepared.plans);
        plans.map(|plan| plan.forgotten_at(at)).max().unwrap_or(at)
    }
}

impl Prepared {
    fn new(policy: Policy, making: &Making<'_>) -> Result<Self, ConfigError> {
        let &Making { old, digester, max_keys, now } = making;
        check_shape(&policy)?;
        // A policy goes on where it left off only if its keys and its states mean the same.
        let old = old.and_then(|set| {
            let same = |old: &&Prepared| {
                old.policy.name == policy.name && old.policy.algorithm == policy.algorithm && old.policy.key == policy.key
            };
            set.policies.iter().find(same)
        });
        let unchanged = |old: &&Prepared| {
            let quotas = |policy: &Policy| (policy.quota, policy.resolution, policy.overrides.clone());
            quotas(&old.policy) == quotas(&policy)
        };
        let mut this = Self {
            since: old.filter(unchanged).map_or(now, |old| old.since),
            table: old.map_or_else(|| Table::new(policy.algorithm, max_keys), |old| old.table.clone()),
            quotas: old.map_or_else(Vec::new, |old| old.quotas.clone()),
            plans: old.map_or_else(Vec::new, |old| old.plans.clone()),
            current: 0,
            overrides: HashMap::default(),
            policy: Arc::new(policy),
        };
        let policy = Arc::clone(&this.policy);
        this.current = this.add(policy.quota)?;
        for (values, treatment) in &policy.overrides {
            let key = match values.as_slice() {
                [value] => Key::of(digester, value),
                values => Key::of_all(digester, values.iter().map(Vec::as_slice)),
            };
            let treatment = match treatment {
                Override::Quota(quota) => Treatment::Plan(this.add(*quota)?),
                Override::Unlimited => Treatment::Unlimited,
                Override::Blocked => Treatment::Blocked,
            };
            this.overrides.insert(key, treatment);
        }
        Ok(this)
    }

    /// The index of `quota`, added if it is new.
    fn add(&mut self, quota: Quota) -> Result<u16, ConfigError> {
        let refused = |error| ConfigError::Quota { policy: self.policy.name.clone(), error };
        let grains = self.policy.grains();
        if !(1..=Policy::MAX_RESOLUTION).contains(&grains) {
            return Err(refused(QuotaError::Resolution(grains)));
        }
        let plan = Plan::new(self.policy.algorithm, &quota, grains).map_err(refused)?;
        let known = self.plans.iter().zip(&self.quotas).position(|known| known == (&plan, &quota));
        let index = known.unwrap_or(self.plans.len());
        if known.is_none() {
            self.plans.push(plan);
            self.quotas.push(quota);
        }
        u16::try_from(index).map_err(|_| ConfigError::TooMany("different quotas of one policy since it was made"))
    }

    #[inline]
    pub(crate) fn plan(&self, index: u16) -> &Plan {
        &self.plans[usize::from(index)]
    }

    /// The index of the quota that a key is under.
    pub(crate) fn plan_of(&self, key: &Key) -> u16 {
        match self.treatment(*key) {
            Some(Treatment::Plan(plan)) => plan,
            _ => self.current,
        }
    }

    #[inline(always)]
    fn stance(&self, index: u16, hit: &Hit<'_>, digester: &Digester) -> Stance {
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
        self.treat(index, key, self.policy.weigh(hit.total()))
    }

    /// By value: a key that is pointed to has to be put into memory.
    #[inline(never)]
    fn treatment(&self, key: Key) -> Option<Treatment> {
        self.overrides.get(&key).copied()
    }

    #[inline(always)]
    fn treat(&self, index: u16, key: Key, cost: u64) -> Stance {
        let treatment = if self.overrides.is_empty() { None } else { self.treatment(key) };
        let ask = |plan| Ask { key, policy: index, plan, cost, enforced: self.policy.mode == Mode::Enforce };
        match treatment {
            None => Stance::Decides(ask(self.current)),
            Some(Treatment::Plan(plan)) => Stance::Decides(ask(plan)),
            Some(Treatment::Unlimited) => Stance::Silent,
            Some(Treatment::Blocked) => Stance::Blocks(ask(self.current)),
        }
    }
}

fn check_shape(policy: &Policy) -> Result<(), ConfigError> {
    let name = &policy.name;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
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
    } else {
        return Ok(());
    };
    Err(ConfigError::Policy { policy: name.clone(), problem })
}
