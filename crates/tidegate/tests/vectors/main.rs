//! Holds the library, through its public face, to the tables of vectors that stand beside the algorithms: the same
//! tables that any other implementation can be held to.
#![allow(clippy::unwrap_used)]

mod format;

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use format::{Action, Case, Expected, START, Step, Table, Verdict};
use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, Policy, Quota, Receipt};

const POLICY: &str = "vectors";
const KEY: &str = "user:42";

#[test]
fn every_algorithm_satisfies_its_table() {
    let failures: Vec<String> = Algorithm::RATES.iter().flat_map(|algorithm| check(*algorithm)).collect();
    assert!(failures.is_empty(), "{} cases fail:\n\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn names_are_unique_within_a_table() {
    for algorithm in Algorithm::RATES {
        let mut seen = HashSet::new();
        for case in &table(*algorithm).cases {
            assert!(seen.insert(case.name.clone()), "{algorithm}: two cases are named `{}`", case.name);
        }
    }
}

/// Runs every case of one algorithm; the first step of each that differs, as text.
fn check(algorithm: Algorithm) -> Vec<String> {
    let mut failures = Vec::new();
    for case in &table(algorithm).cases {
        let mut run = Run::new(algorithm, case);
        for (index, step) in case.steps.iter().enumerate() {
            if let Err(problem) = run.step(index, step) {
                let Case { name, why, quota, .. } = case;
                let Step { t, action, .. } = step;
                failures.push(format!(
                    "{algorithm}, case `{name}` of {quota}: {why}\n  step {index}, t = {t}: {action:?}\n  {problem}"
                ));
                // What follows rests on this step.
                break;
            }
        }
    }
    failures
}

fn table(algorithm: Algorithm) -> Table {
    let path = path(algorithm);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let table = format::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(table.algorithm, algorithm.name(), "{} is another algorithm's table", path.display());
    assert!(!table.cases.is_empty(), "{} has no cases", path.display());
    table
}

fn path(algorithm: Algorithm) -> PathBuf {
    let stem = algorithm.name().replace('-', "_");
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/algorithm").join(stem).with_extension("toml")
}

/// A case under way: a limiter of its own, on a clock that the steps set.
struct Run {
    limiter: Limiter,
    clock: ManualClock,
    quota: Quota,
    /// As text, which unlike a receipt can be presented twice.
    receipts: HashMap<usize, String>,
}

impl Run {
    fn new(algorithm: Algorithm, case: &Case) -> Self {
        let quota: Quota = case.quota.parse().unwrap();
        let clock = ManualClock::new(START);
        let policy = Policy::new(POLICY, quota).algorithm(algorithm);
        let policy = match case.resolution {
            Some(grains) => policy.resolution(grains),
            None => policy,
        };
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build();
        let limiter = limiter.unwrap_or_else(|error| panic!("{algorithm}, case `{}`: {error}", case.name));
        Self { limiter, clock, quota, receipts: HashMap::new() }
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<(), String> {
        self.clock.set(step.epoch_micros());
        let hit = Hit::from(KEY);
        let mut decision = match &step.action {
            Action::Check { cost } => self.limiter.check_n(hit, *cost),
            Action::Peek { cost } => self.limiter.peek(hit.cost(*cost)),
            Action::Charge { cost } => self.limiter.charge(hit.cost(*cost)),
            Action::Refund { step } => self.limiter.refund(self.receipt(*step)?),
            Action::Settle { step, actual } => self.limiter.settle(self.receipt(*step)?, *actual),
            Action::Forget => self.limiter.reset(hit),
            Action::Reconfigure { quota } => {
                self.quota = quota.parse().map_err(|error| format!("{error}"))?;
                return self.limiter.set_quota(POLICY, self.quota).map_err(|error| error.to_string());
            }
        };
        if let Some(receipt) = decision.take_receipt() {
            self.receipts.insert(index, receipt.to_string());
        }
        step.expected.as_ref().map_or(Ok(()), |expected| self.compare(expected, &decision))
    }

    fn receipt(&self, step: usize) -> Result<Receipt, String> {
        let text = self.receipts.get(&step).ok_or_else(|| format!("step {step} gave no receipt"))?;
        text.parse().map_err(|error| format!("{error}: {text}"))
    }

    fn compare(&self, expected: &Expected, decision: &Decision) -> Result<(), String> {
        let outcome = decision.strictest().ok_or("the policy did not apply")?;
        let verdict = match (outcome.is_allowed(), outcome.is_hopeless(), outcome.retry_after()) {
            (true, false, None) => Verdict::Allowed,
            (false, false, Some(wait)) => Verdict::Denied { retry: micros(wait) },
            (false, true, None) => Verdict::Never,
            contradiction => return Err(format!("allowed, hopeless and wait contradict each other: {contradiction:?}")),
        };
        let got = Expected {
            verdict: expected.verdict.is_some().then_some(verdict),
            used: outcome.used(),
            reset: micros(outcome.reset_after()),
            limit: expected.limit.map(|_| outcome.limit()),
        };
        if got != *expected {
            return Err(format!("expected {expected:?}\n  got      {got:?}"));
        }
        let capacity = self.quota.burst_size().unwrap_or(self.quota.limit());
        if outcome.limit() != capacity {
            return Err(format!("the limit is {}, not the capacity {capacity}", outcome.limit()));
        }
        if outcome.remaining() != capacity.saturating_sub(outcome.used()) {
            return Err(format!("{} remain of {capacity} with {} used", outcome.remaining(), outcome.used()));
        }
        if expected.verdict.is_some() && decision.is_allowed() != outcome.is_allowed() {
            return Err("the decision and its only outcome disagree".to_owned());
        }
        Ok(())
    }
}

fn micros(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros()).unwrap()
}
