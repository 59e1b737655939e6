//! The classic contract of a limiter in front of users (`allow_request`, `configure`, `remaining`, `reset`) on Redis, for every
//! algorithm; and what another process with other quotas makes of what the first has counted. Time is the test's.

use std::time::Duration;

use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, Policy, Quota, Redis};
use tidegate_testkit::Server;

use crate::limiters::{by_store, connected, patient};

const POLICY: &str = "requests";
const WINDOW: Duration = Duration::from_secs(10);

fn per_window(max_requests: u64) -> Quota {
    Quota::new(max_requests, WINDOW).unwrap()
}

/// At most so many requests per user in a window.
struct Users {
    limiter: Limiter<Redis>,
    clock: ManualClock,
}

impl Users {
    async fn new(server: &Server, algorithm: Algorithm, quota: Quota) -> Self {
        Self::at(server, algorithm, quota, &ManualClock::default()).await
    }

    /// Those of another process, at the same time.
    async fn at(server: &Server, algorithm: Algorithm, quota: Quota, clock: &ManualClock) -> Self {
        let policy = Policy::new(POLICY, quota).algorithm(algorithm);
        let builder = Limiter::builder().policy(policy).clock(clock.clone());
        Self { limiter: connected(builder.store(patient(&server.url()))).await, clock: clock.clone() }
    }

    async fn check(&self, user: &str) -> Decision {
        by_store(self.limiter.check(user).await)
    }

    async fn peek(&self, user: &str, cost: u64) -> Decision {
        by_store(self.limiter.peek(Hit::from(user).cost(cost)).await)
    }

    async fn admitted(&self, user: &str, requests: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += usize::from(self.check(user).await.is_allowed());
        }
        admitted
    }

    async fn remaining(&self, user: &str) -> u64 {
        self.limiter.remaining(user).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn allows_the_first_n_and_blocks_the_one_after() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 5).await, 5, "{algorithm}");
        let denied = users.check("a").await;
        assert!(!denied.is_allowed() && denied.retry_after().is_some(), "{algorithm}");
        assert_eq!(users.admitted("a", 5).await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn allows_again_after_the_window() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
        // The estimate of a counter fades for a second window.
        let windows = if *algorithm == Algorithm::SlidingCounter { 2 } else { 1 };
        users.clock.advance(windows * WINDOW);
        // What has expired does not count, when only reading either.
        assert_eq!(users.remaining("a").await, 5, "{algorithm}");
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
    }
}

#[tokio::test]
async fn allows_again_after_the_wait_that_was_told_and_not_before() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        for _ in 0..20 {
            users.clock.advance(Duration::from_millis(1300));
            let _ = users.check("a").await;
            let Some(wait) = users.check("a").await.retry_after() else { continue };
            users.clock.advance(wait - Duration::from_micros(1));
            assert!(!users.check("a").await.is_allowed(), "{algorithm}");
            users.clock.advance(Duration::from_micros(1));
            assert!(users.check("a").await.is_allowed(), "{algorithm}");
        }
    }
}

#[tokio::test]
async fn remaining_counts_down() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(3)).await;
        for left in [2, 1, 0, 0] {
            let told = users.check("a").await.remaining();
            assert_eq!((told, users.remaining("a").await), (Some(left), left), "{algorithm}");
        }
    }
}

#[tokio::test]
async fn reset_restores_the_full_quota() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
        assert_eq!(users.admitted("b", 3).await, 3, "{algorithm}");
        let reset = by_store(users.limiter.reset("a").await);
        assert_eq!(reset.remaining(), Some(5), "{algorithm}");
        assert_eq!(users.remaining("b").await, 2, "{algorithm}");
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
    }
}

#[test]
fn four_threads_never_exceed_the_maximum() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for algorithm in Algorithm::RATES {
        let users = runtime.block_on(Users::new(&server, *algorithm, per_window(100)));
        for round in 0..3 {
            let user = format!("user-{round}");
            let total: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| runtime.block_on(users.admitted(&user, 40)))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(total, 100, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn reconfiguring_applies_to_users_already_counted() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 5).await, 5, "{algorithm}");
        users.limiter.set_quota(POLICY, per_window(7)).unwrap();
        assert_eq!(users.remaining("a").await, 2, "{algorithm}");
        assert_eq!(users.admitted("a", 5).await, 2, "{algorithm}");
        users.limiter.set_quota(POLICY, per_window(3)).unwrap();
        assert_eq!(users.remaining("a").await, 0, "{algorithm}");
        // Denied until enough has drained, and so long exactly.
        let wait = users.check("a").await.retry_after().unwrap();
        users.clock.advance(wait - Duration::from_micros(1));
        assert!(!users.check("a").await.is_allowed(), "{algorithm}");
        users.clock.advance(Duration::from_micros(1));
        assert!(users.check("a").await.is_allowed(), "{algorithm}");
        assert!(users.limiter.set_quota("other", per_window(3)).is_err());
        assert_eq!(users.remaining("b").await, 3, "{algorithm}");
    }
}

#[tokio::test]
async fn users_are_isolated() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
        assert_eq!(users.remaining("b").await, 5, "{algorithm}");
        assert_eq!(users.admitted("b", 6).await, 5, "{algorithm}");
    }
}

/// A limiter in memory and one on Redis with the same policy and clock; nothing where the algorithm does not take the quota.
async fn twins(server: &Server, algorithm: Algorithm, quota: Quota) -> Option<(Limiter, Users)> {
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let clock = ManualClock::default();
    let policy = Policy::new(POLICY, quota).algorithm(algorithm);
    let memory = Limiter::builder().policy(policy).clock(clock.clone()).build().ok()?;
    Some((memory, Users::at(server, algorithm, quota, &clock).await))
}

/// Limits and windows at the edge of what is allowed.
fn extremes() -> impl Iterator<Item = (Algorithm, Quota)> {
    let windows = [Quota::MIN_WINDOW, Duration::from_secs(60), Quota::MAX_WINDOW];
    let limits = [1, 2, 1_000_000, Quota::MAX - 1, Quota::MAX];
    let quotas = windows.into_iter().flat_map(move |window| limits.map(|limit| Quota::new(limit, window).unwrap()));
    quotas.flat_map(|quota| Algorithm::RATES.iter().map(move |algorithm| (*algorithm, quota)))
}

/// Numbers at the edge of what Lua can count: as in memory.
async fn extreme_costs_are_decided_as_in_memory(which: impl Fn(&(Algorithm, Quota)) -> bool) {
    let server = Server::start();
    let costs = [1, 10_000, Quota::MAX / 2, Quota::MAX - 1, Quota::MAX];
    for (algorithm, quota) in extremes().filter(which) {
        let Some((memory, users)) = twins(&server, algorithm, quota).await else { continue };
        for (index, cost) in costs.into_iter().cycle().take(25).enumerate() {
            let hit = Hit::from("a").cost(cost);
            let (ours, theirs) = match index % 4 {
                0 | 1 => (memory.check(&hit), users.limiter.check(&hit).await),
                2 => (memory.peek(&hit), users.limiter.peek(&hit).await),
                _ => (memory.charge(&hit), users.limiter.charge(&hit).await),
            };
            assert_eq!(format!("{ours:?}"), format!("{:?}", by_store(theirs)), "{algorithm}, {quota}, {cost}");
            users.clock.advance(quota.window() / 7 + Duration::from_micros(index as u64));
        }
    }
}

/// Whether it adds two buckets of up to 2^53 - 1.
fn estimates((algorithm, _): &(Algorithm, Quota)) -> bool {
    *algorithm == Algorithm::SlidingCounter
}

#[tokio::test]
async fn extreme_costs_are_decided_as_in_memory_by_all_but_counters() {
    extreme_costs_are_decided_as_in_memory(|case| !estimates(case)).await;
}

#[tokio::test]
async fn extreme_costs_are_decided_as_in_memory_by_counters() {
    extreme_costs_are_decided_as_in_memory(estimates).await;
}

/// A cost and a wait after which the rest of a token's time and the fraction of a token are 2^53 together.
#[tokio::test]
async fn a_bucket_of_the_highest_limit_tells_the_wait_that_it_does_in_memory() {
    let server = Server::start();
    let quota = Quota::new(Quota::MAX, Quota::MIN_WINDOW).unwrap();
    let (memory, users) = twins(&server, Algorithm::TokenBucket, quota).await.unwrap();
    let hit = Hit::from("a").cost(999_799_117_276_250 + 9_007_199_254_741);
    assert!(memory.check(&hit).is_allowed() && by_store(users.limiter.check(&hit).await).is_allowed());
    users.clock.advance(Duration::from_micros(1));
    assert_eq!(format!("{:?}", memory.peek("a")), format!("{:?}", users.peek("a", 1).await));
}

/// A cost that no quota can have is never allowed.
#[tokio::test]
async fn the_highest_cost_is_decided_as_in_memory() {
    let server = Server::start();
    for (algorithm, quota) in extremes() {
        let Some((memory, users)) = twins(&server, algorithm, quota).await else { continue };
        for cost in [Quota::MAX + 1, u64::MAX / 2, 1 << 63, u64::MAX] {
            let hit = Hit::from("a").cost(cost);
            let (ours, theirs) = (memory.check(&hit), by_store(users.limiter.check(&hit).await));
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{algorithm}, {quota}, check {cost}");
            let (ours, theirs) = (memory.charge(&hit), by_store(users.limiter.charge(&hit).await));
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{algorithm}, {quota}, charge {cost}");
        }
    }
}

/// However great a charge was, its receipt gives it back, once. By the server's time: the mark that a receipt is used has a TTL.
#[tokio::test]
async fn the_highest_charge_is_refunded() {
    let server = Server::start();
    let mut broken = Vec::new();
    for (algorithm, quota) in extremes() {
        redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
        let policy = Policy::new(POLICY, quota).algorithm(algorithm);
        let Ok(limiter) = Limiter::builder().policy(policy).store(patient(&server.url())).build() else { continue };
        crate::twins::up(&limiter).await;
        let receipt = by_store(limiter.charge(Hit::from("a").cost(Quota::MAX)).await).take_receipt().unwrap();
        if let Err(error) = limiter.refund(receipt).await {
            broken.push(format!("{algorithm}, {quota}: {error}"));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A process that starts with another limit goes on from what was counted.
#[tokio::test]
async fn another_process_with_another_limit_sees_what_was_counted() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let users = Users::new(&server, *algorithm, per_window(5)).await;
        assert_eq!(users.admitted("a", 6).await, 5, "{algorithm}");
        let raised = Users::at(&server, *algorithm, per_window(8), &users.clock).await;
        assert_eq!(raised.remaining("a").await, 3, "{algorithm}: more at once");
        assert_eq!(raised.admitted("a", 6).await, 3, "{algorithm}");
        // The first is still there, and sees it too.
        assert_eq!(users.remaining("a").await, 0, "{algorithm}");
        assert!(!users.check("a").await.is_allowed(), "{algorithm}");
        let lowered = Users::at(&server, *algorithm, per_window(3), &users.clock).await;
        assert_eq!(lowered.remaining("a").await, 0, "{algorithm}");
        let denied = lowered.check("a").await;
        assert!(!denied.is_allowed() && denied.retry_after().is_some(), "{algorithm}: until it has drained");
        lowered.clock.advance(denied.strictest().unwrap().reset_after());
        assert_eq!(lowered.admitted("a", 6).await, 3, "{algorithm}");
    }
}

/// Quotas that come after `per_window(6)`: another limit, another window, both.
fn others() -> Vec<Quota> {
    let quota = |limit, seconds| Quota::new(limit, Duration::from_secs(seconds)).unwrap();
    vec![quota(3, 10), quota(12, 10), quota(6, 5), quota(6, 60), quota(2, 1), quota(60, 60)]
}

/// What a process with another quota makes of a state at first sight is what a limiter does that is given that quota then.
#[tokio::test]
async fn another_process_converts_what_was_counted() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        for quota in others() {
            for late in [0, 1, 3_700, 9_999, 10_000, 17_000, 21_000] {
                redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
                let users = Users::new(&server, *algorithm, per_window(6)).await;
                let policy = Policy::new(POLICY, per_window(6)).algorithm(*algorithm);
                let memory = Limiter::builder().policy(policy).clock(users.clock.clone()).build().unwrap();
                for _ in 0..6 {
                    users.clock.advance(Duration::from_millis(700));
                    assert_eq!(users.check("a").await.is_allowed(), memory.check("a").is_allowed());
                }
                users.clock.advance(Duration::from_millis(late));
                let other = Users::at(&server, *algorithm, quota, &users.clock).await;
                memory.set_quota(POLICY, quota).unwrap();
                for cost in 0..=quota.limit() + 1 {
                    let (ours, theirs) = (memory.peek(Hit::from("a").cost(cost)), other.peek("a", cost).await);
                    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{algorithm}, {quota} after {late} ms, {cost}");
                }
            }
        }
    }
}

/// The same, and that it stays so: what was told is kept while nobody charges.
#[tokio::test]
async fn another_process_keeps_what_it_told() {
    let server = Server::start();
    let mut broken = Vec::new();
    for algorithm in Algorithm::RATES {
        for quota in others() {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            let users = Users::new(&server, *algorithm, per_window(6)).await;
            assert_eq!(users.admitted("a", 6).await, 6);
            users.clock.advance(Duration::from_secs(2));
            let other = Users::at(&server, *algorithm, quota, &users.clock).await;
            let cost = quota.limit();
            let Some(wait) = other.peek("a", cost).await.retry_after() else { continue };
            users.clock.advance(wait - Duration::from_micros(1));
            let before = other.peek("a", cost).await;
            users.clock.advance(Duration::from_micros(1));
            let after = other.peek("a", cost).await;
            if before.is_allowed() || !after.is_allowed() {
                broken.push(format!(
                    "{algorithm}, 6/10s then {quota}: told to wait {wait:?}; a microsecond before: {}, then: {}",
                    before.is_allowed(),
                    after.is_allowed()
                ));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// An instance that lags behind a reconfiguration goes on charging under the old quota; the others see it.
#[tokio::test]
async fn what_a_lagging_instance_charges_is_seen_by_the_others() {
    let server = Server::start();
    let mut broken = Vec::new();
    for algorithm in Algorithm::RATES {
        for quota in others() {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            let lagging = Users::new(&server, *algorithm, per_window(6)).await;
            let ahead = Users::at(&server, *algorithm, per_window(6), &lagging.clock).await;
            ahead.limiter.set_quota(POLICY, quota).unwrap();
            lagging.clock.advance(Duration::from_secs(600));
            assert_eq!(lagging.admitted("a", 7).await, 6, "{algorithm}");
            // A third that starts now converts as of now, which is when the charges were made.
            let fresh = Users::at(&server, *algorithm, quota, &lagging.clock).await;
            let (ours, theirs) = (fresh.peek("a", 1).await, ahead.peek("a", 1).await);
            if format!("{ours:?}") != format!("{theirs:?}") {
                let used = |decision: &Decision| decision.strictest().unwrap().used();
                broken.push(format!("{algorithm}, 6/10s then {quota}: {} and not {} used", used(&theirs), used(&ours)));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
