//! The policies of a set as far as their states need them: name, algorithm, key attributes and the eras of quotas. That is not
//! enough to decide by, and enough for a set of newer policies to go on from.

use std::{sync::Arc, time::Duration};

use super::{Era, MAX_PAST, PolicySet, Prepared, Treatment, check_shape};
use crate::{
    Algorithm, Policy, Quota,
    algorithm::Plan,
    calendar::Calendar,
    key::Key,
    label::Label,
    packed::{Packer, Unpacker},
    store::memory::Table,
};

impl PolicySet {
    /// A set to be replaced at once.
    pub(crate) fn saved(policies: Vec<Prepared>) -> Self {
        Self { version: 0, policies, order: Vec::new(), gives_leases: false, local: None }
    }
}

impl Prepared {
    /// Packs everything but the states. Those that are packed with it are under the current era; past ones only tell which
    /// receipts are good, and without the oldest of them fewer are.
    pub(crate) fn save(&self, to: &mut Packer<'_>) {
        to.text(&self.policy.name);
        to.text(self.policy.algorithm.name());
        to.number(self.policy.key.len() as u64);
        self.policy.key.iter().for_each(|attribute| to.text(attribute));
        let past = &self.past[self.past.len().saturating_sub(MAX_PAST)..];
        to.number(past.len() as u64);
        past.iter().for_each(|era| era.save(to));
        self.current.save(to);
    }

    /// Reads what [`save`](Self::save) packed; its table is empty as yet.
    pub(crate) fn load(from: &mut Unpacker<'_>, max_keys: usize) -> Option<Self> {
        let name = from.text()?;
        let algorithm: Algorithm = from.text()?.parse().ok()?;
        // Which quota is in the eras.
        let policy = Policy::new(name, Quota::per_second(1)).algorithm(algorithm).key(from.list(Unpacker::text)?);
        check_shape(&policy).ok()?;
        let past = from.list(|from| Era::load(from, &policy).map(Arc::new))?;
        if past.len() > MAX_PAST {
            return None;
        }
        let current = Era::load(from, &policy)?;
        let table = Table::new(algorithm, max_keys);
        Some(Self::with(policy, (table, Arc::default()), current, u16::try_from(past.len()).ok()?, past))
    }
}

impl Era {
    fn save(&self, to: &mut Packer<'_>) {
        to.number(self.since);
        to.number(self.grains.into());
        to.text(self.plans[0].calendar.map_or("", Calendar::name));
        to.number(self.labels.len() as u64);
        for Label { quota, .. } in &self.labels {
            to.number(quota.limit());
            to.number(quota.window_us());
            to.number(quota.burst_size().unwrap_or(0));
        }
        to.number(self.overrides.len() as u64);
        for (key, treatment) in &self.overrides {
            key.save(to);
            to.number(match treatment {
                Treatment::Unlimited => 0,
                Treatment::Blocked => 1,
                Treatment::Plan(plan) => 2 + u64::from(*plan),
            });
        }
    }

    fn load(from: &mut Unpacker<'_>, policy: &Policy) -> Option<Self> {
        let since = from.up_to(Quota::MAX)?;
        let grains = u32::try_from(from.up_to(Policy::MAX_RESOLUTION.into())?).ok().filter(|grains| *grains > 0)?;
        let calendar = match from.text()?.as_str() {
            "" => None,
            name => Some(Calendar::named(name)?),
        };
        let policy = Policy { calendar, ..policy.clone().resolution(grains) };
        let quotas = from.list(load_quota)?;
        let plans: Vec<Plan> = quotas
            .iter()
            .map(|quota| Some(Plan::new(policy.algorithm, quota, grains).ok()?.following(calendar)))
            .collect::<Option<_>>()?;
        let labels = quotas.iter().zip(&plans).map(|(quota, plan)| Label::new(&policy, *quota, plan)).collect();
        let last = u16::try_from(plans.len()).ok()?.checked_sub(1)?;
        let overrides = from.list(|from| {
            let key = Key::load(from)?;
            let treatment = match from.up_to(2 + u64::from(last))? {
                0 => Treatment::Unlimited,
                1 => Treatment::Blocked,
                plan => Treatment::Plan((plan - 2) as u16),
            };
            Some((key, treatment))
        })?;
        Some(Self { since, grains, plans, labels, overrides: overrides.into_iter().collect() })
    }
}

fn load_quota(from: &mut Unpacker<'_>) -> Option<Quota> {
    let quota = Quota::new(from.number()?, Duration::from_micros(from.number()?)).ok()?;
    match from.number()? {
        0 => Some(quota),
        burst => quota.try_burst(burst).ok(),
    }
}
