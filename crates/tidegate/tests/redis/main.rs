//! Twins agree: the same trace through the memory store and through the Lua scripts on a real Redis gives the same
//! decisions, used, waits and resets, to the microsecond.
#![allow(clippy::unwrap_used)]

mod server;

use std::{cell::RefCell, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Algorithm, Clock, Decision, Hit, Limiter, ManualClock, Outcome, Policy, Quota, Receipt};

use crate::server::Server;

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
    /// Of the receipts so far, the one at this index modulo their number.
    Refund(usize),
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
        2 => any::<usize>().prop_map(Step::Refund),
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
    receipts: Vec<(Receipt, Vec<Charged>)>,
    reset_at: u64,
    /// When each policy's quota came into force.
    since: [u64; 3],
}

/// What Redis says it charged: policy, time, cost.
type Charged = (usize, u64, u64);
/// wait, used, reset_after, charged, at.
type Reply = (i64, u64, u64, u64, u64);

fn name(index: usize) -> String {
    format!("policy-{index}")
}

impl<'s> Twins<'s> {
    fn new(server: &'s mut Server, policies: Vec<(Algorithm, Quota)>) -> Result<Self, TestCaseError> {
        redis::cmd("FLUSHALL").exec(&mut server.connection).unwrap();
        let clock = ManualClock::default();
        let limiter = Limiter::builder().clock(clock.clone()).build().unwrap();
        let twins = Self {
            server,
            script: script(),
            limiter,
            now: clock.epoch_micros(),
            clock,
            policies,
            receipts: Vec::new(),
            reset_at: 0,
            since: [0; 3],
        };
        // Not every quota can be kept by gcra within 1 %: draw another trace.
        twins.limiter.configure(twins.policies()).map_err(|refused| TestCaseError::reject(refused.to_string()))?;
        Ok(twins)
    }

    fn policies(&self) -> Vec<Policy> {
        // The last of three only watches.
        let shadowed = |index| index == 2;
        let policy = |(index, (algorithm, quota)): (usize, &(Algorithm, Quota))| {
            let policy = Policy::new(name(index), *quota).algorithm(*algorithm);
            if shadowed(index) { policy.shadow() } else { policy }
        };
        self.policies.iter().enumerate().map(policy).collect()
    }

    fn ask_redis(&mut self, indices: &[usize], intent: &str, cost: u64, at: u64) -> Vec<Reply> {
        let mut call = self.script.prepare_invoke();
        call.arg(self.now).arg(intent).arg(600_000);
        for index in indices {
            let (algorithm, quota) = self.policies[*index];
            let window = quota.window().as_micros() as u64;
            let mode = if *index == 2 { "shadow" } else { "enforce" };
            call.key(name(*index));
            call.arg(algorithm.name())
                .arg(mode)
                .arg(cost)
                .arg(quota.limit())
                .arg(window)
                .arg(window.div_ceil(quota.limit()))
                .arg(self.since[*index]);
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
            self.receipts.push((receipt, charged.map(|(index, reply)| (index, reply.4, reply.3)).collect()));
        }
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Check(cost) => self.decide("check", *cost),
            Step::Peek(cost) => self.decide("peek", *cost),
            Step::Charge(cost) => self.decide("charge", *cost),
            Step::Refund(which) if self.receipts.is_empty() => self.decide("peek", *which as u64 % 3),
            Step::Refund(which) => {
                let (receipt, charges) = self.receipts.swap_remove(which % self.receipts.len());
                let reset_at = self.reset_at;
                // What was charged up to a reset is void.
                for (index, at, cost) in charges.into_iter().filter(|(_, at, _)| *at > reset_at) {
                    self.ask_redis(&[index], "refund", cost, at);
                }
                let _ = self.limiter.refund(receipt);
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
                let old = std::mem::replace(&mut self.policies[0].1, *quota);
                match self.limiter.configure(self.policies()) {
                    Ok(()) if old == *quota => {}
                    Ok(()) => {
                        self.since[0] = self.now;
                        // Receipts in other terms give nothing back.
                        self.receipts.clear();
                    }
                    Err(_) => self.policies[0].1 = old,
                }
                self.decide("peek", 0)
            }
            Step::Advance(by) => self.move_to(self.now + by),
            Step::Rewind(by) => self.move_to(self.now - by),
        }
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
