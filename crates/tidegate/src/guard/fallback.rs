//! What is decided when the store does not answer: by each policy as it says, all or nothing as ever.

use std::sync::Arc;

use crate::{
    Decision, OnStoreError,
    algorithm::{Charge, Verdict},
    error::StoreError,
    set::{PolicySet, Stance},
    store::{Answer, Ask, Asks, Intent, Question, Record, Records, Source, memory::Memory},
};

/// A denial of a policy that denies when the store is away tells to come back after this many microseconds.
const COME_BACK: u64 = 1_000_000;

/// Decides without the store. `newest`: the set in force, should another have come meanwhile.
///
/// # Errors
/// `error`, if an enforced policy wants the caller to have it.
pub(crate) fn decide(
    memory: &Memory,
    set: &PolicySet,
    question: &Question,
    intent: Intent,
    now: u64,
    error: StoreError,
    newest: impl Fn() -> Arc<PolicySet>,
) -> Result<Decision, StoreError> {
    let says = |ask: &Ask| set.policies[usize::from(ask.policy)].policy.on_store_error;
    if question.asks.iter().any(|ask| ask.enforced && says(ask) == OnStoreError::Error) {
        return Err(error);
    }
    let mut records: Records =
        question.asks.iter().filter(|ask| says(ask) != OnStoreError::Local).map(|ask| fixed(set, ask, says(ask))).collect();
    let denied = records.iter().any(|record| record.ask.enforced && record.answer.verdict != Verdict::Allowed);
    let barred = denied || question.is_barred();
    let asks: Asks = question.asks.iter().filter(|ask| says(ask) == OnStoreError::Local).copied().collect();
    records.extend(local(memory, set, &asks, intent, barred, now, newest));
    Ok(question.decision(set, records))
}

/// The answer of a policy that needs no state for it.
fn fixed(set: &PolicySet, ask: &Ask, says: OnStoreError) -> Record {
    let prepared = &set.policies[usize::from(ask.policy)];
    let limit = prepared.plan(ask.plan).capacity;
    let (verdict, used) = match says {
        OnStoreError::Deny => (Verdict::Denied { retry_after: COME_BACK }, limit),
        _ => (Verdict::Allowed, 0),
    };
    let charged = Charge { at: 0, cost: 0 };
    prepared.record(ask, Answer { verdict, source: Source::Fallback, used, reset_after: 0, charged })
}

/// Asks this process's memory, by the shares of the quotas.
fn local(
    memory: &Memory,
    set: &PolicySet,
    asks: &[Ask],
    intent: Intent,
    barred: bool,
    now: u64,
    newest: impl Fn() -> Arc<PolicySet>,
) -> Records {
    let Some(shares) = set.local.as_deref() else { return Records::new() };
    let mut decided = memory.decide(shares, &restated(shares, asks, |ask| Some(ask.policy)), intent, barred, now);
    while decided.is_err() {
        // The set was replaced under us: by the newest, as far as it has these policies.
        let newest = newest();
        let Some(shares) = newest.local.as_deref() else { return Records::new() };
        let same = |ask: &Ask| newest.find(&set.policies[usize::from(ask.policy)].policy.name).ok();
        decided = memory.decide(shares, &restated(shares, asks, same), intent, barred, now);
    }
    let mut records = decided.unwrap_or_default();
    records.iter_mut().for_each(|record| record.answer.source = Source::Fallback);
    records
}

/// The same asks of another set, in the order in which to lock.
fn restated(set: &PolicySet, asks: &[Ask], policy: impl Fn(&Ask) -> Option<u16>) -> Asks {
    let restate = |ask: &Ask| {
        let index = policy(ask)?;
        match set.policies[usize::from(index)].treat(index, ask.key, ask.cost) {
            Stance::Decides(ask) => Some(ask),
            Stance::Blocks(_) | Stance::Silent => None,
        }
    };
    let mut asks: Asks = asks.iter().filter_map(restate).collect();
    asks.sort_by_key(|ask| set.policies[usize::from(ask.policy)].table.made());
    asks
}
