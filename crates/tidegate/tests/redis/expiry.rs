//! Every key has a TTL: long enough that nothing is lost that still counts, and not much longer. Once by the server's time, and
//! once by the test's, in which keys go when the server would have them go.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant, SystemTime},
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Algorithm, Clock as _, Hit, Limiter, ManualClock, Policy, Quota, Receipt, Redis};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::limiters::{by_store, connected, keys, patient};

#[derive(Clone, Debug)]
enum Step {
    Check(u64),
    Charge(u64),
    Peek(u64),
    /// Present the receipt at this index, modulo their number, and the cost that turned out.
    Settle(usize, Option<u64>),
    Reset,
    /// For so many milliseconds of the server's time, or hours of the test's.
    Sleep(u64),
}

fn steps(longest_sleep: u64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..6u64).prop_map(Step::Check),
        1 => (1..20u64).prop_map(Step::Charge),
        1 => (0..9u64).prop_map(Step::Peek),
        2 => (any::<usize>(), prop::option::of(0..9u64)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => Just(Step::Reset),
        4 => (0..=longest_sleep).prop_map(Step::Sleep),
    ];
    prop::collection::vec(step, 1..40)
}

/// Quotas of each algorithm, sub-second windows included.
fn policies() -> Vec<Policy> {
    let quotas = ["5/5ms", "20/300ms", "1/2s", "7/min", "100/day"].map(|quota| quota.parse::<Quota>().unwrap());
    let mut policies = Vec::new();
    for algorithm in Algorithm::RATES {
        let bursts = matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra);
        let with_burst = quotas.iter().filter(|_| bursts).map(|quota| quota.burst(3 * quota.limit()));
        for quota in quotas.into_iter().chain(with_burst) {
            policies.push(Policy::new(format!("policy-{}", policies.len()), quota).algorithm(*algorithm));
        }
    }
    policies
}

/// The longest that a state that is not in debt may be kept, the second to spare not counted. States that are written often
/// have a TTL for two stretches of time, so that it need not be set each time.
fn longest(policy: &Policy) -> Duration {
    let (quota, window) = (policy.quota(), policy.quota().window());
    let one = window.div_f64(quota.limit() as f64);
    let refill = one.mul_f64(quota.burst_size().unwrap_or(quota.limit()) as f64);
    match policy.algorithm_in_use() {
        // Gcra rounds the time that one takes up, by a hundredth at most.
        Algorithm::TokenBucket | Algorithm::Gcra => 2 * (refill + one).mul_f64(1.01),
        Algorithm::FixedWindow => window,
        _ => 2 * window,
    }
}

/// The longest that the mark of a reset or of a receipt of so much may be kept.
fn longest_mark(policy: &Policy, cost: u64) -> Duration {
    let quota = policy.quota();
    let cost = cost.max(quota.burst_size().unwrap_or(quota.limit()));
    (2 * quota.window()).max(Duration::from_hours(1)) + quota.window().div_f64(quota.limit() as f64).mul_f64(cost as f64)
}

/// Takes the steps by the server's time, then looks at every key.
async fn every_key_has_a_ttl(server: &Server, steps: &[Step]) -> Result<(), TestCaseError> {
    const SPARE: Duration = Duration::from_secs(2);
    let mut connection = server.connection();
    redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    let limiter = connected(Limiter::builder().policies(policies()).store(patient(&server.url()))).await;
    let mut receipts: Vec<String> = Vec::new();
    // Policies that have had a debt, which takes longer.
    let mut indebted = HashSet::new();
    for step in steps {
        let mut decision = match step {
            Step::Check(cost) => by_store(limiter.check_n("id", *cost).await),
            Step::Charge(cost) => by_store(limiter.charge(Hit::from("id").cost(*cost)).await),
            Step::Peek(cost) => by_store(limiter.peek(Hit::from("id").cost(*cost)).await),
            Step::Settle(..) if receipts.is_empty() => continue,
            Step::Settle(which, actual) => {
                let receipt: Receipt = receipts[which % receipts.len()].parse().unwrap();
                by_store(match actual {
                    None => limiter.refund(receipt).await,
                    Some(actual) => limiter.settle(receipt, *actual).await,
                })
            }
            Step::Reset => by_store(limiter.reset("id").await),
            Step::Sleep(ms) => {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                continue;
            }
        };
        receipts.extend(decision.take_receipt().map(|receipt| receipt.to_string()));
        let debts = decision.outcomes().filter(|outcome| outcome.used() > outcome.limit());
        indebted.extend(debts.map(|outcome| outcome.policy().to_owned()));
    }
    let mut ttls: HashMap<String, Duration> = HashMap::new();
    for name in keys(&mut connection) {
        let ttl: i64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
        // -1 is a key that stays for ever, -2 one that has just gone.
        prop_assert!(ttl != -1 && name.starts_with("rl:"), "{name}");
        ttls.insert(name, Duration::from_millis(ttl.max(0) as u64));
    }
    let stands = by_store(limiter.peek(Hit::from("id").cost(0)).await);
    for (policy, outcome) in policies().iter().zip(stands.outcomes()) {
        let state = format!("rl:{}:{{id}}:{}:key", policy.name(), policy.algorithm_in_use());
        let kept = ttls.get(&state).copied().unwrap_or_default();
        let what = format!("{} {}", policy.algorithm_in_use(), policy.quota());
        prop_assert!(kept >= outcome.reset_after(), "{what}: kept {kept:?}, {outcome:?}");
        prop_assert!(indebted.contains(policy.name()) || kept <= longest(policy) + SPARE, "{what}: kept {kept:?}");
        for (name, kept) in ttls.iter().filter(|(name, _)| name.starts_with(&format!("{state}:"))) {
            let void = name.ends_with(":void");
            let bound = longest_mark(policy, if void && !indebted.contains(policy.name()) { 0 } else { 25 * 20 }) + SPARE;
            prop_assert!(*kept <= bound, "{what}: {name} kept {kept:?}, at most {bound:?}");
        }
    }
    Ok(())
}

#[test]
fn every_key_has_a_ttl_that_is_long_enough_and_not_longer() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    let config = Config { cases: Config::default().cases / 8, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&steps(12), |steps| runtime.block_on(every_key_has_a_ttl(&server, &steps)));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[tokio::test]
async fn keys_of_sub_second_windows_outlive_them_and_go() {
    let server = Server::start();
    let mut connection = server.connection();
    let short: Vec<Policy> = policies().into_iter().filter(|policy| policy.quota().window() < Duration::from_secs(1)).collect();
    let limiter = connected(Limiter::builder().policies(short.clone()).store(patient(&server.url()))).await;
    let begun = Instant::now();
    let receipt = by_store(limiter.check_n("id", 2).await).take_receipt().unwrap();
    let _ = by_store(limiter.settle(receipt, 1).await);
    let names = keys(&mut connection);
    for name in &names {
        let ttl: i64 = redis::cmd("PTTL").arg(name).query(&mut connection).unwrap();
        let kept = begun.elapsed() + Duration::from_millis(ttl.max(0) as u64);
        assert!(kept >= Duration::from_secs(1), "{name} is kept for {kept:?}");
    }
    // On a machine this slow the first have gone.
    assert!(names.len() == 2 * short.len() || begun.elapsed() > Duration::from_secs(1));
    let longest = short.iter().map(longest).max().unwrap();
    tokio::time::sleep(longest + Duration::from_millis(1100)).await;
    // The marks of receipts stay for an hour.
    let states = keys(&mut connection).into_iter().filter(|name| !name.contains(":used:"));
    assert_eq!(states.collect::<Vec<_>>(), [""; 0]);
}

/// A quota with a longer window reads what was written under the old one for longer.
#[tokio::test]
async fn a_ttl_is_long_enough_for_a_quota_that_came_later() {
    let server = Server::start();
    let mut broken = Vec::new();
    for algorithm in Algorithm::RATES {
        let policy = Policy::new("requests", Quota::per_hour(10)).algorithm(*algorithm);
        let limiter = connected(Limiter::builder().policy(policy).store(patient(&server.url()))).await;
        assert!(by_store(limiter.check_n("id", 10).await).is_allowed());
        limiter.set_quota("requests", Quota::per_day(10)).unwrap();
        let denied = by_store(limiter.check("id").await);
        assert!(!denied.is_allowed(), "{algorithm}");
        let state = format!("rl:requests:{{id}}:{algorithm}:key");
        let ttl: i64 = redis::cmd("PTTL").arg(state).query(&mut server.connection()).unwrap();
        let (kept, needed) = (Duration::from_millis(ttl as u64), denied.strictest().unwrap().reset_after());
        if kept < needed {
            broken.push(format!("{algorithm}: kept for {kept:?}, counts for {needed:?}"));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A limiter on Redis and one in memory, given the same things to do. Time is the test's, and long: by the day and more. The keys
/// on the server go when that time comes.
struct Days {
    memory: Limiter,
    redis: Limiter<Redis>,
    clock: ManualClock,
    connection: redis::Connection,
    /// For each key when the server would have it gone, by its own clock in milliseconds and by the test's in microseconds.
    expiry: HashMap<String, (i64, u64)>,
    /// As texts, because they may be presented again: the memory's and Redis's; and since when.
    receipts: Vec<(String, String, u64)>,
    /// When the key was last reset.
    reset: u64,
}

const DAY_US: u64 = 86_400_000_000;

fn daily(limit: u64) -> Vec<Policy> {
    let quotas = [Quota::per_day(limit), Quota::new(limit, Duration::from_hours(50)).unwrap()];
    let mut policies = Vec::new();
    for algorithm in Algorithm::RATES {
        for quota in quotas {
            policies.push(Policy::new(format!("policy-{}", policies.len()), quota).algorithm(*algorithm));
        }
    }
    let burst = Quota::per_day(limit).burst(2 * limit);
    policies.push(Policy::new("bucket-burst", burst).algorithm(Algorithm::TokenBucket));
    policies.push(Policy::new("gcra-burst", burst).algorithm(Algorithm::Gcra));
    policies
}

impl Days {
    async fn new(server: &Server, policies: Vec<Policy>) -> Self {
        let mut connection = server.connection();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        let clock = ManualClock::default();
        let builder = || Limiter::builder().policies(policies.clone()).clock(clock.clone());
        let (memory, redis) = (builder().build().unwrap(), connected(builder().store(patient(&server.url()))).await);
        Self { memory, redis, clock, connection, expiry: HashMap::new(), receipts: Vec::new(), reset: 0 }
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
        let hit = |cost: &u64| Hit::from("id").cost(*cost);
        let (mut ours, theirs) = match step {
            Step::Check(cost) => (self.memory.check(hit(cost)), self.redis.check(hit(cost)).await),
            Step::Charge(cost) => (self.memory.charge(hit(cost)), self.redis.charge(hit(cost)).await),
            Step::Peek(cost) => (self.memory.peek(hit(cost)), self.redis.peek(hit(cost)).await),
            Step::Settle(..) if self.receipts.is_empty() => return Ok(()),
            Step::Settle(which, actual) => {
                let (ours, theirs, since) = &self.receipts[which % self.receipts.len()];
                let (ours, theirs): (Receipt, Receipt) = (ours.parse().unwrap(), theirs.parse().unwrap());
                // Whether it was used is forgotten when it can give nothing back any more, and what more to charge is not asked.
                match actual.filter(|_| self.clock.epoch_micros() < since + 2 * DAY_US) {
                    None => (self.memory.refund(ours), self.redis.refund(theirs).await),
                    Some(actual) => (self.memory.settle(ours, actual), self.redis.settle(theirs, actual).await),
                }
            }
            Step::Reset => {
                // One from before the last reset is another test's.
                self.receipts.retain(|(_, _, since)| *since > self.reset);
                self.reset = self.clock.epoch_micros();
                let reset = (self.memory.reset("id"), self.redis.reset("id").await);
                // Whether a charge in the same microsecond came before it or after it is not known.
                self.clock.advance(Duration::from_micros(1));
                reset
            }
            Step::Sleep(hours) => {
                self.clock.advance(Duration::from_secs(hours * 3600 + 61));
                self.expire();
                // The server's clock moves on too: a TTL that is set anew is seen to be.
                tokio::time::sleep(Duration::from_millis(2)).await;
                (self.memory.peek("id"), self.redis.peek("id").await)
            }
        };
        let mut theirs = by_store(theirs);
        for (ours, theirs) in ours.outcomes().zip(theirs.outcomes()) {
            let what = format!("{} {}", ours.algorithm(), ours.quota());
            prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{}, memory and Redis", what);
        }
        if let (Some(ours), Some(theirs)) = (ours.take_receipt(), theirs.take_receipt()) {
            self.receipts.push((ours.to_string(), theirs.to_string(), self.clock.epoch_micros()));
        }
        self.look(before);
        Ok(())
    }

    /// Notes the TTLs that have been set since `before`, by the server's clock.
    fn look(&mut self, before: i64) {
        let now = self.clock.epoch_micros();
        for name in keys(&mut self.connection) {
            let at: i64 = redis::cmd("PEXPIRETIME").arg(&name).query(&mut self.connection).unwrap();
            if self.expiry.get(&name).is_none_or(|(known, _)| *known != at) {
                self.expiry.insert(name, (at, now + 1000 * (at - before) as u64));
            }
        }
    }

    /// Has those go whose time has come.
    fn expire(&mut self) {
        let now = self.clock.epoch_micros();
        for (name, _) in self.expiry.extract_if(|_, (_, until)| *until <= now) {
            redis::cmd("DEL").arg(name).exec(&mut self.connection).unwrap();
        }
    }
}

#[test]
fn what_expires_is_not_missed() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    let config = Config { cases: Config::default().cases / 4, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&(1..12u64, steps(20)), |(limit, steps)| {
        runtime.block_on(async {
            let mut days = Days::new(&server, daily(limit)).await;
            for step in &steps {
                days.take(step).await?;
            }
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A receipt from before a reset gives nothing back, for as long as it could; the next reset does not make that shorter.
#[tokio::test]
async fn a_second_reset_does_not_revive_a_receipt() -> Result<(), TestCaseError> {
    let server = Server::start();
    let policy = Policy::new("requests", Quota::per_day(2)).algorithm(Algorithm::TokenBucket);
    let mut days = Days::new(&server, vec![policy]).await;
    // The debt takes three and a half days to pay.
    days.take(&Step::Charge(7)).await?;
    for step in [Step::Reset, Step::Reset, Step::Sleep(73), Step::Charge(2)] {
        let receipts = days.receipts.clone();
        days.take(&step).await?;
        days.receipts = receipts;
    }
    days.take(&Step::Settle(0, None)).await
}

/// A receipt is used once, whatever it is presented for.
#[tokio::test]
async fn a_used_receipt_is_not_charged_again() -> Result<(), TestCaseError> {
    let server = Server::start();
    let mut days = Days::new(&server, vec![Policy::new("requests", Quota::per_day(5))]).await;
    days.take(&Step::Check(1)).await?;
    days.receipts[0].2 = u64::MAX / 2;
    for step in [Step::Settle(0, Some(2)), Step::Sleep(70), Step::Settle(0, Some(2))] {
        days.take(&step).await?;
    }
    Ok(())
}

/// A key that is in use has something to let go of with nearly every hit: that is no reason to pay twice for it.
#[tokio::test]
async fn what_goes_costs_a_key_in_use_little() {
    const PER_WINDOW: u64 = 20;
    let server = Server::start();
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let clock = ManualClock::default();
        let policy = Policy::new(algorithm.to_string(), Quota::per_minute(1000)).algorithm(algorithm);
        let builder = Limiter::builder().policy(policy).clock(clock.clone()).store(patient(&server.url()));
        let limiter = connected(builder).await;
        let hit = async |times: u64| {
            for _ in 0..times {
                clock.advance(Duration::from_secs(60) / PER_WINDOW as u32);
                let used = by_store(limiter.check("busy").await).outcomes().next().unwrap().used();
                assert!(used <= PER_WINDOW, "{algorithm}: {used}");
            }
        };
        hit(3 * PER_WINDOW).await;
        let before = server.commands();
        hit(100).await;
        let commands = server.commands() - before;
        // The script, two reads, a write; one more for every fourth, a few where the ring goes round, and now and then a TTL.
        assert!(commands <= 460, "{algorithm}: {commands} commands for 100 hits");
        let stored = limiter.inspect(&algorithm.to_string(), "busy").unwrap().await.unwrap().entries.len() as u64;
        assert_eq!(stored, PER_WINDOW, "{algorithm}");
    }
}
