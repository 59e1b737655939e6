//! Twins agree: the same trace through the memory store and through the Lua scripts on a real Redis gives the same
//! decisions, used, waits and resets, to the microsecond.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "shared with the test of the vectors themselves, which reads more of it")]
#[path = "../vectors/format.rs"]
mod format;
mod server;

use std::{cell::RefCell, fs, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Algorithm, Clock, Decision, Hit, Limiter, ManualClock, Outcome, Policy, Quota, Receipt};

use crate::{format::Action, server::Server};

/// The algorithms that have a twin.
const TWINS: [Algorithm; 2] = [Algorithm::SlidingLog, Algorithm::Gcra];

fn script() -> redis::Script {
    let parts = [
        include_str!("../../src/algorithm/arithmetic.lua"),
        include_str!("../../src/store/redis/prelude.lua"),
        include_str!("../../src/algorithm/sliding_log.lua"),
        include_str!("../../src/algorithm/gcra.lua"),
        include_str!("../../src/store/redis/decide.lua"),
    ];
    redis::Script::new(&parts.join("\n"))
}

#[derive(Clone, Debug)]
enum Step {
    Check(u64),
    Peek(u64),
    Charge(u64),
    /// Present the receipt at this index, modulo their number, and the cost that turned out.
    Settle(usize, u64),
    Reset,
    Reconfigure(Quota),
    Advance(u64),
    Rewind(u64),
}

fn quota() -> impl Strategy<Value = Quota> {
    let windows = prop::sample::select(vec![1_000u64, 7_000, 1_000_000, 60_000_000, 86_400_000_000]);
    (1..40u64, windows).prop_map(|(limit, window)| Quota::new(limit, Duration::from_micros(window)).unwrap())
}

fn step(window: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u64).prop_map(Step::Check),
        2 => (0..50u64).prop_map(Step::Check),
        2 => (0..50u64).prop_map(Step::Peek),
        1 => (0..80u64).prop_map(Step::Charge),
        2 => (any::<usize>(), Just(0)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => (any::<usize>(), 0..9u64).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => Just(Step::Reset),
        1 => quota().prop_map(Step::Reconfigure),
        4 => (0..3u64).prop_map(Step::Advance),
        4 => (0..window / 4).prop_map(Step::Advance),
        1 => (0..3 * window).prop_map(Step::Advance),
        1 => (0..window * 4).prop_map(Step::Rewind),
    ]
}

fn trace() -> impl Strategy<Value = (Vec<(Algorithm, Quota)>, Vec<Step>)> {
    let policies = prop::collection::vec((prop::sample::select(TWINS.to_vec()), quota()), 1..4);
    policies.prop_flat_map(|policies| {
        let window = policies[0].1.window().as_micros() as u64;
        (Just(policies), prop::collection::vec(step(window), 1..60))
    })
}

/// Both twins, given the same things to do.
struct Twins<'s> {
    server: &'s mut Server,
    script: redis::Script,
    limiter: Limiter,
    clock: ManualClock,
    now: u64,
    policies: Vec<(Algorithm, Quota)>,
    proofs: Vec<Proof>,
    reset_at: u64,
    /// When each policy's quota, and its terms, came into force.
    since: [u64; 3],
    terms_since: [u64; 3],
}

/// A receipt, as text because it may be presented again, and what Redis says it has charged.
struct Proof {
    receipt: String,
    charges: Vec<Charged>,
    used: bool,
}

struct Charged {
    index: usize,
    terms: (u64, u64),
    at: u64,
    cost: u64,
}

/// wait, used, reset_after, charged, at.
type Reply = (i64, u64, u64, u64, u64);

fn name(index: usize) -> String {
    format!("policy-{index}")
}

/// The policies as the library takes them; the last of three only watches.
fn written(policies: &[(Algorithm, Quota)]) -> Vec<Policy> {
    let policy = |(index, (algorithm, quota)): (usize, &(Algorithm, Quota))| {
        let policy = Policy::new(name(index), *quota).algorithm(*algorithm);
        if index == 2 { policy.shadow() } else { policy }
    };
    policies.iter().enumerate().map(policy).collect()
}

impl<'s> Twins<'s> {
    fn new(server: &'s mut Server, policies: Vec<(Algorithm, Quota)>) -> Result<Self, TestCaseError> {
        redis::cmd("FLUSHALL").exec(&mut server.connection).unwrap();
        let clock = ManualClock::default();
        // Not every quota can be kept by gcra within 1 %: draw another trace.
        let built = Limiter::builder().policies(written(&policies)).clock(clock.clone()).build();
        let limiter = built.map_err(|refused| TestCaseError::reject(refused.to_string()))?;
        let now = clock.epoch_micros();
        let (script, proofs) = (script(), Vec::new());
        Ok(Self { server, script, limiter, now, clock, policies, proofs, reset_at: 0, since: [0; 3], terms_since: [0; 3] })
    }

    /// Window, capacity and interval.
    fn plan(&self, index: usize) -> [u64; 3] {
        let (_, quota) = self.policies[index];
        let window = quota.window().as_micros() as u64;
        [window, quota.burst_size().unwrap_or(quota.limit()), window.div_ceil(quota.limit())]
    }

    /// What the numbers of a charge are in.
    fn terms(&self, index: usize) -> (u64, u64) {
        let [window, capacity, interval] = self.plan(index);
        if self.policies[index].0 == Algorithm::Gcra { (interval, capacity) } else { (window, 0) }
    }

    fn ask_redis(&mut self, indices: &[usize], intent: &str, cost: u64, at: u64) -> Vec<Reply> {
        let mut call = self.script.prepare_invoke();
        call.arg(self.now).arg(intent).arg(600_000);
        for index in indices {
            let [window, capacity, interval] = self.plan(*index);
            let mode = if *index == 2 { "shadow" } else { "enforce" };
            call.key(name(*index)).arg(self.policies[*index].0.name()).arg(mode).arg(cost);
            call.arg(capacity).arg(window).arg(interval).arg(self.since[*index]);
        }
        call.arg(at).invoke(&mut self.server.connection).unwrap()
    }

    fn all(&self) -> Vec<usize> {
        (0..self.policies.len()).collect()
    }

    fn decide(&mut self, intent: &str, cost: u64) -> Result<(), TestCaseError> {
        let replies = self.ask_redis(&self.all(), intent, cost, 0);
        let hit = Hit::from("id").cost(cost);
        let mut decision = match intent {
            "check" => self.limiter.check(hit),
            "peek" => self.limiter.peek(hit),
            _ => self.limiter.charge(hit),
        };
        compare(&decision, &replies)?;
        if let Some(receipt) = decision.take_receipt() {
            let charged = replies.iter().enumerate().filter(|(_, reply)| reply.3 > 0);
            let charged = charged.map(|(index, reply)| Charged { index, terms: self.terms(index), at: reply.4, cost: reply.3 });
            self.proofs.push(Proof { receipt: receipt.to_string(), charges: charged.collect(), used: false });
        }
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Check(cost) => self.decide("check", *cost),
            Step::Peek(cost) => self.decide("peek", *cost),
            Step::Charge(cost) => self.decide("charge", *cost),
            Step::Settle(..) if self.proofs.is_empty() => self.decide("peek", 0),
            Step::Settle(which, actual) => {
                self.settle(which % self.proofs.len(), *actual);
                self.decide("peek", 0)
            }
            Step::Reset => {
                self.reset_at = self.reset_at.max(self.now);
                for index in self.all() {
                    let key = name(index);
                    redis::cmd("DEL").arg(key).exec(&mut self.server.connection).unwrap();
                }
                let _ = self.limiter.reset("id");
                self.decide("peek", 0)
            }
            Step::Reconfigure(quota) => {
                let terms = self.terms(0);
                let old = std::mem::replace(&mut self.policies[0].1, *quota);
                match self.limiter.configure(written(&self.policies)) {
                    Ok(()) if old == *quota => {}
                    Ok(()) => {
                        self.since[0] = self.now;
                        // In memory a state passes through every quota there was; here the next one would be all.
                        self.ask_redis(&[0], "carry", 0, 0);
                        if self.terms(0) != terms {
                            self.terms_since[0] = self.now;
                        }
                    }
                    Err(_) => self.policies[0].1 = old,
                }
                self.decide("peek", 0)
            }
            Step::Advance(by) => self.move_to(self.now + by),
            Step::Rewind(by) => self.move_to(self.now - by),
        }
    }

    /// Presents a receipt: on Redis by what the laws say of it, in memory by its text.
    fn settle(&mut self, which: usize, actual: u64) {
        let Proof { receipt, charges, used } = &mut self.proofs[which];
        let receipt: Receipt = receipt.parse().unwrap();
        // A receipt works once.
        let charges = if std::mem::replace(used, true) { Vec::new() } else { std::mem::take(charges) };
        for Charged { index, terms, at, cost } in charges {
            if at <= self.reset_at {
                // Void.
            } else if actual > cost {
                self.ask_redis(&[index], "charge", actual - cost, 0);
            } else if terms == self.terms(index) && at >= self.terms_since[index] {
                self.ask_redis(&[index], "refund", cost - actual, at);
            }
        }
        let _ = if actual == 0 { self.limiter.refund(receipt) } else { self.limiter.settle(receipt, actual) };
    }

    fn move_to(&mut self, now: u64) -> Result<(), TestCaseError> {
        self.now = now;
        self.clock.set(now);
        self.decide("peek", 1)
    }
}

fn compare(decision: &Decision, replies: &[Reply]) -> Result<(), TestCaseError> {
    let wait = |outcome: &Outcome<'_>| match outcome.retry_after() {
        _ if outcome.is_allowed() => -1,
        Some(wait) => wait.as_micros() as i64,
        None => -2,
    };
    let ours: Vec<(i64, u64, u64, u64)> = decision
        .outcomes()
        .map(|outcome| (wait(&outcome), outcome.used(), outcome.reset_after().as_micros() as u64, outcome.charged()))
        .collect();
    let theirs: Vec<_> = replies.iter().map(|(wait, used, reset, charged, _)| (*wait, *used, *reset, *charged)).collect();
    // A charge answers that it was made; what it would have been told is for a peek to say.
    let told = |mut all: Vec<(i64, u64, u64, u64)>| {
        all.iter_mut().filter(|one| one.3 > 0).for_each(|one| one.0 = -1);
        all
    };
    prop_assert_eq!(told(ours), told(theirs), "ours, Redis: (wait, used, reset_after, charged)");
    Ok(())
}

#[test]
fn random_traces_agree_on_memory_and_redis() {
    let server = RefCell::new(Server::start());
    // PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
    let config = Config { failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&trace(), |(policies, steps)| {
        let mut server = server.borrow_mut();
        let mut twins = Twins::new(&mut server, policies)?;
        steps.iter().try_for_each(|step| twins.take(step))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn vectors_hold_on_redis() {
    let mut server = Server::start();
    for algorithm in TWINS {
        let path = format!("{}/src/algorithm/{}.toml", env!("CARGO_MANIFEST_DIR"), algorithm.name().replace('-', "_"));
        for case in format::parse(&fs::read_to_string(path).unwrap()).unwrap().cases {
            let mut twins = Twins::new(&mut server, vec![(algorithm, case.quota.parse().unwrap())]).unwrap();
            // Proofs are in the order of the steps that gave them.
            let mut gave = Vec::new();
            for (index, vector) in case.steps.iter().enumerate() {
                let proof = |step: &usize| gave.iter().position(|gave| gave == step).unwrap();
                let step = match &vector.action {
                    Action::Check { cost } => Step::Check(*cost),
                    Action::Peek { cost } => Step::Peek(*cost),
                    Action::Charge { cost } => Step::Charge(*cost),
                    Action::Refund { step } => Step::Settle(proof(step), 0),
                    Action::Settle { step, actual } => Step::Settle(proof(step), *actual),
                    Action::Reconfigure { quota } => Step::Reconfigure(quota.parse().unwrap()),
                    Action::Forget => Step::Reset,
                };
                let before = twins.proofs.len();
                let done = twins.move_to(vector.epoch_micros()).and_then(|()| twins.take(&step));
                done.unwrap_or_else(|differ| panic!("{algorithm}, case `{}`, step {index}: {differ}", case.name));
                gave.extend((before..twins.proofs.len()).map(|_| index));
            }
        }
    }
}

#[test]
fn ten_thousand_entries_expire_at_once() {
    let mut server = Server::start();
    let connection = &mut server.connection;
    let script = script();
    let mut ask = |now: u64, intent: &str, cost: u64| -> Vec<Reply> {
        let mut call = script.prepare_invoke();
        call.arg(now).arg(intent).arg(600_000).key("many").arg("sliding-log").arg("enforce").arg(cost);
        call.arg(10_000).arg(60_000_000).arg(6_000).arg(0).arg(0).invoke(connection).unwrap()
    };
    let start = 1_767_225_600_000_000;
    for hit in 0..10_000 {
        assert_eq!(ask(start + hit, "check", 1)[0].0, -1);
    }
    assert_eq!(ask(start + 10_000, "check", 1)[0], (60_000_000 - 10_000, 10_000, 60_000_000 - 1, 0, 0));
    // A retry that needs nearly all of them to leave.
    assert_eq!(ask(start + 10_000, "check", 9_000)[0].0, 60_000_000 - 10_000 + 8_999);
    assert_eq!(ask(start + 60_009_999, "check", 10_000)[0], (-1, 10_000, 60_000_000, 10_000, start + 60_009_999));
}
