//! Twins agree: the same trace through the memory store and through the scripts on a real server gives the same decisions in
//! every field, to the microsecond.

use std::{cell::RefCell, collections::BTreeSet, fs, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{
    Algorithm, Clock as _, Decision, Hit, Inspection, Limiter, ManualClock, OnStoreError, Override, Policy, Quota, Receipt,
    Redis, Source, StoreError,
};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::format::{self, Action};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Check(u64),
    Peek(u64),
    Charge(u64),
    /// Present the receipt at this index, modulo their number, and the cost that turned out.
    Settle(usize, Option<u64>),
    Reset,
    /// Give the first policy another quota, and its second key one of its own or not.
    Reconfigure(Quota, bool),
    /// The next of three keys, from now on.
    Turn,
    Advance(u64),
    Rewind(u64),
    Inspect,
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
        1 => prop_oneof![9 => 0..80u64, 1 => Quota::MAX - 80..=Quota::MAX].prop_map(Step::Charge),
        2 => any::<usize>().prop_map(|which| Step::Settle(which, None)),
        1 => (any::<usize>(), 0..9u64).prop_map(|(which, actual)| Step::Settle(which, Some(actual))),
        1 => Just(Step::Reset),
        1 => (quota(), any::<bool>()).prop_map(|(quota, own)| Step::Reconfigure(quota, own)),
        3 => Just(Step::Turn),
        4 => (0..3u64).prop_map(Step::Advance),
        4 => (0..window / 4).prop_map(Step::Advance),
        1 => (0..3 * window).prop_map(Step::Advance),
        1 => (0..window * 4).prop_map(Step::Rewind),
        1 => Just(Step::Inspect),
    ]
}

/// Policies, and what happens.
type Trace = (Vec<(Algorithm, Quota)>, Vec<Step>);

fn trace() -> impl Strategy<Value = Trace> {
    let policies = prop::collection::vec((prop::sample::select(Algorithm::RATES.to_vec()), quota()), 1..4);
    policies.prop_flat_map(|policies| {
        let window = policies[0].1.window().as_micros() as u64;
        (Just(policies), prop::collection::vec(step(window), 1..60))
    })
}

/// Traces through histories that come to be long, and are let go of again.
fn long_trace() -> impl Strategy<Value = Trace> {
    const WINDOW: u64 = 1_000_000;
    let quota = |limit| Quota::new(limit, Duration::from_micros(WINDOW)).unwrap();
    let step = prop_oneof![
        30 => (1..4u64).prop_map(Step::Check),
        30 => (0..WINDOW / 30).prop_map(Step::Advance),
        2 => (0..WINDOW).prop_map(Step::Advance),
        2 => (any::<usize>(), prop::option::of(0..6u64)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => (0..80u64).prop_map(Step::Charge),
        1 => (0..50u64).prop_map(Step::Peek),
    ];
    let algorithm = prop::sample::select(vec![Algorithm::SlidingWindow, Algorithm::SlidingLog]);
    let policy = (algorithm, 20..200u64).prop_map(move |(algorithm, limit)| (algorithm, quota(limit)));
    (prop::collection::vec(policy, 1..3), prop::collection::vec(step, 100..900))
}

const KEYS: [&str; 3] = ["id", "other", "third"];

/// Both twins, given the same things to do.
pub(crate) struct Twins<'s> {
    runtime: &'s Runtime,
    memory: Limiter,
    redis: Limiter<Redis>,
    clock: ManualClock,
    policies: Vec<Policy>,
    key: &'static str,
    /// Those that had expired when another was charged: memory may have dropped them then, and Redis does when it pleases.
    expired: BTreeSet<&'static str>,
    /// Whether the clock was set back.
    rewound: bool,
    /// As texts, because they may be presented again: the memory's and Redis's.
    receipts: Vec<(String, String)>,
}

/// The policies of a trace; the last of three only watches.
fn written(policies: &[(Algorithm, Quota)]) -> Vec<Policy> {
    let policy = |(index, (algorithm, quota)): (usize, &(Algorithm, Quota))| {
        let policy = Policy::new(format!("policy-{index}"), *quota).algorithm(*algorithm).on_store_error(OnStoreError::Error);
        if index == 2 { policy.shadow() } else { policy }
    };
    policies.iter().enumerate().map(policy).collect()
}

fn patient(server: &Server) -> Redis {
    Redis::new(&server.url()).unwrap().deadline(Duration::from_secs(20)).deny_cache(Duration::ZERO)
}

impl<'s> Twins<'s> {
    pub(crate) fn new(server: &Server, runtime: &'s Runtime, policies: Vec<Policy>) -> Result<Self, TestCaseError> {
        redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
        let clock = ManualClock::default();
        let builder = || Limiter::builder().policies(policies.clone()).clock(clock.clone());
        // So few keys are in one shard, and each that is made has it look for those that have expired.
        // Not every quota can be kept by gcra within 1 %: draw another trace.
        let memory = builder().max_keys(64).build().map_err(|refused| TestCaseError::reject(refused.to_string()))?;
        let _context = runtime.enter();
        let redis = builder().store(patient(server)).build().unwrap();
        runtime.block_on(up(&redis));
        Ok(Self {
            runtime,
            memory,
            redis,
            clock,
            policies,
            key: KEYS[0],
            expired: BTreeSet::new(),
            rewound: false,
            receipts: Vec::new(),
        })
    }

    fn compare(&mut self, mut ours: Decision, theirs: Result<Decision, StoreError>) -> Result<(), TestCaseError> {
        let mut theirs = theirs.unwrap();
        prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "memory, Redis");
        prop_assert!(theirs.outcomes().all(|outcome| outcome.source() == Source::Store));
        let charged = |decision: &Decision| decision.outcomes().map(|outcome| outcome.charged()).collect::<Vec<_>>();
        prop_assert_eq!(charged(&ours), charged(&theirs));
        if let (Some(ours), Some(theirs)) = (ours.take_receipt(), theirs.take_receipt()) {
            let texts = (ours.to_string(), theirs.to_string());
            // All but the ids, which are random.
            prop_assert_eq!(&texts.0[20..], &texts.1[20..]);
            self.receipts.push(texts);
        }
        Ok(())
    }

    fn decide(&mut self, cost: u64, how: fn(&Limiter, Hit<'static>) -> Decision, same: How) -> Result<(), TestCaseError> {
        let hit = Hit::from(self.key).cost(cost);
        let ours = how(&self.memory, hit.clone());
        let theirs = self.runtime.block_on(same(&self.redis, hit));
        self.compare(ours, theirs)
    }

    fn peek(&mut self, cost: u64) -> Result<(), TestCaseError> {
        self.decide(cost, |limiter, hit| limiter.peek(hit), |limiter, hit| limiter.peek(hit))
    }

    pub(crate) fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.act(step)?;
        if matches!(step, Step::Check(_) | Step::Charge(_) | Step::Settle(..)) {
            let has_expired = |key: &&str| self.memory.peek(*key).outcomes().any(|outcome| outcome.reset_after().is_zero());
            self.expired.extend(KEYS.into_iter().filter(has_expired));
        }
        Ok(())
    }

    fn act(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Check(cost) => self.decide(*cost, |limiter, hit| limiter.check(hit), |limiter, hit| limiter.check(hit)),
            Step::Peek(cost) => self.peek(*cost),
            Step::Charge(cost) => self.decide(*cost, |limiter, hit| limiter.charge(hit), |limiter, hit| limiter.charge(hit)),
            Step::Settle(..) if self.receipts.is_empty() => Ok(()),
            Step::Settle(which, actual) => {
                let (ours, theirs) = &self.receipts[which % self.receipts.len()];
                let (ours, theirs): (Receipt, Receipt) = (ours.parse().unwrap(), theirs.parse().unwrap());
                let (ours, theirs) = match actual {
                    None => (self.memory.refund(ours), self.redis.refund(theirs)),
                    Some(actual) => (self.memory.settle(ours, *actual), self.redis.settle(theirs, *actual)),
                };
                let theirs = self.runtime.block_on(theirs);
                self.compare(ours, theirs)?;
                self.peek(1)
            }
            Step::Reset => {
                let theirs = self.runtime.block_on(self.redis.reset(self.key));
                self.compare(self.memory.reset(self.key), theirs)
            }
            Step::Reconfigure(quota, own) => {
                let mut policies = self.policies.clone();
                let first = policies[0].clone();
                policies[0] =
                    Policy::new(first.name(), *quota).algorithm(first.algorithm_in_use()).on_store_error(OnStoreError::Error);
                if *own {
                    let half = Quota::new(quota.limit().div_ceil(2), quota.window()).unwrap();
                    policies[0] = policies[0].clone().override_key(["other"], Override::Quota(half));
                }
                let done = self.memory.configure(policies.clone());
                prop_assert_eq!(&done, &self.redis.configure(policies.clone()));
                if done.is_ok() {
                    self.policies = policies;
                }
                // All keys are looked at: what was written before the clock stepped back, Redis could later take for something
                // that another process has written since.
                for key in KEYS {
                    let key = std::mem::replace(&mut self.key, key);
                    self.peek(1)?;
                    self.key = key;
                }
                Ok(())
            }
            Step::Turn => {
                let index = KEYS.iter().position(|key| *key == self.key).unwrap();
                self.key = KEYS[(index + 1) % KEYS.len()];
                Ok(())
            }
            Step::Advance(by) => self.move_to(self.clock.epoch_micros() + by),
            Step::Rewind(by) => {
                self.rewound = true;
                self.move_to(self.clock.epoch_micros() - by)
            }
            Step::Inspect => {
                let name = self.policies[0].name();
                let ours = self.memory.inspect(name, self.key).unwrap();
                let theirs = self.runtime.block_on(self.redis.inspect(name, self.key).unwrap()).unwrap();
                // What has expired may be gone from one and not yet from the other, and so may the TTL of what is left; what
                // a window or a bucket was is written as of other times after a change.
                let live = |inspection: Inspection| {
                    let newest = inspection.entries.last().copied();
                    (inspection.policy, inspection.key, inspection.algorithm, newest)
                };
                if self.memory.peek(Hit::from(self.key)).outcomes().next().is_some_and(|outcome| outcome.used() > 0) {
                    prop_assert_eq!(live(ours), live(theirs));
                }
                Ok(())
            }
        }
    }

    /// What had expired and is gone does not come back in a clock that does, nor does what was far ahead of a clock that comes to it: by
    /// law 6 it was nothing, and by law 7 a clock that was wrong gives one capacity at most. Where it is not gone it does. Neither is
    /// wrong, so both forget it.
    fn move_to(&mut self, now: u64) -> Result<(), TestCaseError> {
        if self.rewound {
            for key in std::mem::take(&mut self.expired) {
                let theirs = self.runtime.block_on(self.redis.reset(key));
                self.compare(self.memory.reset(key), theirs)?;
            }
        }
        self.clock.set(now);
        self.peek(1)
    }
}

type How = fn(&Limiter<Redis>, Hit<'static>) -> tidegate::Pending<Decision>;

/// Waits for the connection.
pub(crate) async fn up(limiter: &Limiter<Redis>) {
    while !limiter.store().status().is_up {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
fn traces_agree(server: &Server, config: Config, traces: &impl Strategy<Value = Trace>) {
    let runtime = Runtime::new().unwrap();
    let runtime = RefCell::new(runtime);
    let config = Config { failure_persistence: None, ..config };
    let outcome = TestRunner::new(config).run(traces, |(policies, steps)| {
        let runtime = runtime.borrow();
        let mut twins = Twins::new(server, &runtime, written(&policies))?;
        steps.iter().try_for_each(|step| twins.take(step))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// What was written under a clock that was wrong, and then set right, is gone when the quota changes: also when the clock is where it
/// was again.
#[test]
fn what_a_change_of_quota_found_ahead_of_the_clock_stays_gone() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    let far = 86_858_943;
    for algorithm in Algorithm::RATES {
        let quota = |limit, window| Quota::new(limit, Duration::from_micros(window)).unwrap();
        let mut twins = Twins::new(&server, &runtime, written(&[(*algorithm, quota(3, 1_000))])).unwrap();
        let change = Step::Reconfigure(quota(1, 60_000_000), false);
        for step in [Step::Check(2), Step::Rewind(far), change, Step::Advance(far), Step::Check(1)] {
            twins.take(&step).unwrap_or_else(|problem| panic!("{algorithm}, {step:?}: {problem}"));
        }
    }
}

/// What has expired under a quota is gone, also when the one before it comes into force again in the same microsecond.
#[test]
fn what_a_quota_has_let_go_stays_gone_under_the_one_before() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    for algorithm in Algorithm::RATES {
        let quota = |limit, window| Quota::new(limit, Duration::from_micros(window)).unwrap();
        let mut twins = Twins::new(&server, &runtime, written(&[(*algorithm, quota(6, 60_000_000))])).unwrap();
        let change = |limit, window| Step::Reconfigure(quota(limit, window), false);
        let day = || change(1, 86_400_000_000);
        for step in [Step::Charge(1), Step::Advance(7_000), day(), change(1, 1_000), day(), Step::Check(1)] {
            twins.take(&step).unwrap_or_else(|problem| panic!("{algorithm}, {step:?}: {problem}"));
        }
    }
}

#[test]
fn random_traces_of_long_histories_agree_on_memory_and_redis() {
    let config = Config::default();
    traces_agree(&Server::start(), Config { cases: config.cases / 12, ..config }, &long_trace());
}

#[test]
fn random_traces_agree_on_memory_and_redis() {
    traces_agree(&Server::start(), Config::default(), &trace());
}

/// One that has to be sent scripts.
pub(crate) fn without_functions() -> Server {
    Server::start_with(&["--rename-command", "FCALL", ""])
}

#[test]
fn random_traces_agree_on_memory_and_valkey() {
    match Server::try_valkey() {
        Some(server) => traces_agree(&server, Config::default(), &trace()),
        None => println!("no valkey-server is installed: scripts/setup says how"),
    }
}

#[test]
fn random_traces_agree_on_memory_and_redis_without_functions() {
    traces_agree(&without_functions(), Config::default(), &trace());
}

#[test]
fn vectors_hold_on_redis() {
    vectors_hold(&Server::start());
}

#[test]
fn vectors_hold_on_redis_without_functions() {
    vectors_hold(&without_functions());
}

fn vectors_hold(server: &Server) {
    let runtime = Runtime::new().unwrap();
    for algorithm in Algorithm::RATES {
        let path = format!("{}/src/algorithm/{}.toml", env!("CARGO_MANIFEST_DIR"), algorithm.name().replace('-', "_"));
        for case in format::parse(&fs::read_to_string(path).unwrap()).unwrap().cases {
            let policy = |quota: &str| {
                let policy = Policy::new("policy-0", quota.parse().unwrap()).algorithm(*algorithm);
                case.resolution.iter().fold(policy, |policy, grains| policy.resolution(*grains))
            };
            let mut twins = Twins::new(server, &runtime, vec![policy(&case.quota)]).unwrap();
            // Receipts are in the order of the steps that gave them.
            let mut gave = Vec::new();
            for (index, vector) in case.steps.iter().enumerate() {
                let receipt = |step: &usize| gave.iter().position(|gave| gave == step).unwrap();
                let before = twins.receipts.len();
                let done = twins.move_to(vector.epoch_micros()).and_then(|()| match &vector.action {
                    Action::Check { cost } => twins.take(&Step::Check(*cost)),
                    Action::Peek { cost } => twins.take(&Step::Peek(*cost)),
                    Action::Charge { cost } => twins.take(&Step::Charge(*cost)),
                    Action::Refund { step } => twins.take(&Step::Settle(receipt(step), None)),
                    Action::Settle { step, actual } => twins.take(&Step::Settle(receipt(step), Some(*actual))),
                    Action::Reconfigure { quota } => {
                        twins.policies = vec![policy(quota)];
                        twins.memory.configure(twins.policies.clone()).unwrap();
                        twins.redis.configure(twins.policies.clone()).unwrap();
                        twins.peek(1)
                    }
                    Action::Forget => twins.take(&Step::Reset),
                });
                done.unwrap_or_else(|differ| panic!("{algorithm}, case `{}`, step {index}: {differ}", case.name));
                gave.extend((before..twins.receipts.len()).map(|_| index));
            }
        }
    }
}
