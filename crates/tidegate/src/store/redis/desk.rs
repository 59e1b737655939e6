//! What hits become for the script: keys, plans and fields in, records out. It asks nobody.

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::{
    Redis,
    call::{Job, Line},
    wire::{self, Told},
};
use crate::{
    Receipt,
    limiter::{Inner, Time},
    set::{PolicySet, Prepared},
    store::{Amendment, Answer, Ask, Asks, Intent, Records, Source},
};

/// What a policy is in Redis, and does not change while it is in force.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// Of its keys, what is before and after the id: `rl:<policy>:{<id>}:<algorithm>:<attributes>`. What is in braces decides the slot in a
    /// cluster: all policies on one id share it. What comes after says what the id and the state mean.
    before: Box<[u8]>,
    after: Box<[u8]>,
    /// Its plans as a script takes them, by their index; none where they depend on the key or on the time.
    plans: Vec<Box<[u8]>>,
}

impl Form {
    fn new(prefix: &str, prepared: &Prepared) -> Self {
        let policy = &prepared.policy;
        let mut after = format!("}}:{}:", policy.algorithm.name());
        for (index, attribute) in policy.key.iter().enumerate() {
            after.push_str(if index > 0 { "," } else { "" });
            push_escaped(&mut after, attribute);
        }
        let (plans, since) = prepared.only_plans();
        let packed = |plan| wire::plans(policy.algorithm.name(), &[(plan, since)], 0).0.into();
        let is_fixed = plans.iter().all(|plan| plan.calendar.is_none());
        let plans = if is_fixed { plans.iter().map(packed).collect() } else { Vec::new() };
        Self { before: format!("{prefix}:{}:{{", policy.name).into_bytes().into(), after: after.into_bytes().into(), plans }
    }
}

/// Writes a name into a key: what is not plain is escaped.
fn push_escaped(text: &mut String, name: &str) {
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02x}");
            }
        }
    }
}

/// What a job asks for; the numbers are those of decide.lua.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Decide(Intent),
    Amend,
    Reset,
    Inspect,
    Lease,
}

impl Verb {
    fn number(self) -> u8 {
        match self {
            Self::Decide(Intent::Check) => 0,
            Self::Decide(Intent::Peek) => 1,
            Self::Decide(Intent::Charge) => 2,
            Self::Amend => 3,
            Self::Reset => 4,
            Self::Inspect => 5,
            Self::Lease => 6,
        }
    }
}

/// A set of policies and a store, to write jobs with.
pub(super) struct Desk<'a> {
    store: &'a Redis,
    set: &'a PolicySet,
    /// In epoch microseconds; 0 for the server's.
    time: u64,
    /// The server's, as far as it is known here.
    now: u64,
}

impl<'a> Desk<'a> {
    pub(super) fn new(inner: &'a Inner<Redis>, set: &'a PolicySet) -> Self {
        let now = inner.store_time();
        let time = match &inner.clock {
            Time::System(_) => 0,
            Time::Other(_) => now,
        };
        Self { store: &inner.store, set, time, now }
    }

    pub(super) fn job(&self, verb: Verb, lines: SmallVec<[Line; 1]>) -> Job {
        Job { time: self.time, intent: verb.number(), lines, is_inspection: verb == Verb::Inspect }
    }

    /// `suffixes`: of other keys that belong to the state's; a flag and numbers, of which every ask has one at least.
    pub(super) fn line(&self, ask: &Ask, suffixes: &[&str], flag: bool, numbers: &[u64]) -> Line {
        let prepared = &self.set.policies[usize::from(ask.policy)];
        let policy = &prepared.policy;
        let form = prepared.form.get_or_init(|| Form::new(&self.store.prefix, prepared));
        let mut packed = match form.plans.get(usize::from(ask.plan)) {
            Some(plan) => wire::Writer::copying(plan),
            None => wire::plans(policy.algorithm.name(), &prepared.eras(&ask.key), self.now),
        };
        let fields = packed.0.len();
        packed.byte(u8::from(flag));
        numbers.iter().for_each(|number| packed.number(*number));
        let key = packed.0.len();
        packed.0.extend_from_slice(&form.before);
        ask.key.append_id(policy.key.len(), &mut packed.0);
        packed.0.extend_from_slice(&form.after);
        let other = |suffix: &&str| [&packed.0[key..], b":", suffix.as_bytes()].concat();
        let others = suffixes.iter().map(other).collect();
        Line { fields, key, others, packed: packed.0 }
    }

    pub(super) fn decide(&self, asks: &[Ask], intent: Intent) -> Job {
        let line = |ask: &Ask| self.line(ask, &[], ask.enforced, &[ask.cost]);
        self.job(Verb::Decide(intent), asks.iter().map(line).collect())
    }

    pub(super) fn reset(&self, asks: &[Ask]) -> Job {
        let line = |ask: &Ask| {
            let plan = self.set.policies[usize::from(ask.policy)].plan(ask.plan);
            self.line(ask, &["void"], false, &[plan.forgotten_at(0, plan.capacity)])
        };
        self.job(Verb::Reset, asks.iter().map(line).collect())
    }

    pub(super) fn lease(&self, asks: &[Ask], renews: bool) -> Job {
        self.job(Verb::Lease, asks.iter().map(|ask| self.line(ask, &[], renews, &[ask.cost])).collect())
    }

    /// The asks for what a receipt proves, and the job that corrects it.
    pub(super) fn amend(&self, receipt: &Receipt, actual: Option<u64>, now: u64) -> (Asks, Job) {
        let charges = || receipt.charges.iter().filter_map(|charged| Some((charged, self.set.ask(charged)?)));
        let mark = format!("used:{:016x}", receipt.id);
        let lines = charges().map(|(charged, ask)| {
            let (back, more) = match self.set.amendment(charged, actual, now) {
                Some((_, Amendment::Refund { amount, .. })) => (amount, 0),
                Some((_, Amendment::Charge { amount })) => (0, amount),
                None => (0, 0),
            };
            let remember = self.set.forgotten_at(charged).saturating_sub(now);
            self.line(&ask, &[&mark, "void"], false, &[back, more, charged.at, remember])
        });
        let job = self.job(Verb::Amend, lines.collect());
        (charges().map(|(_, ask)| ask).collect(), job)
    }
}

/// What the script answered to asks.
pub(super) fn records(set: &PolicySet, asks: &[Ask], told: &[Told]) -> Records {
    let record = |(ask, told): (&Ask, &Told)| {
        let prepared = &set.policies[usize::from(ask.policy)];
        let Told { verdict, used, reset_after, charged } = *told;
        prepared.record(ask, Answer { verdict, source: Source::Store, used, reset_after, charged })
    };
    asks.iter().zip(told).map(record).collect()
}
