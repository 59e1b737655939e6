//! The deny cache: what the store has denied is not asked again for as long as the wait lasts, and for no longer than the
//! denial is fresh. Time is the test's.

use std::time::Duration;

use tidegate::{
    Algorithm, Clock as _, Decision, Hit, Limiter, ManualClock, OnStoreError, Policy, Quota, Redis, Source, StoreError,
};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::limiters::{begin, connected, patient, sources};

const WINDOW: Duration = Duration::from_secs(10);
const FRESHNESS: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_micros(1);

fn policy(algorithm: Algorithm) -> Policy {
    let quota = Quota::new(5, WINDOW).unwrap();
    Policy::new("requests", quota).algorithm(algorithm).on_store_error(OnStoreError::Error)
}

/// A limiter with these policies and a deny cache, in which `id` has nothing left: its five came one second after the other,
/// the last one now.
async fn exhausted(server: &Server, policies: &[Policy], freshness: Duration) -> (Limiter<Redis>, ManualClock) {
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let clock = ManualClock::default();
    let limiter = beside(server, policies, freshness, &clock).await;
    for _ in 0..5 {
        clock.advance(Duration::from_secs(1));
        assert!(limiter.check("id").await.unwrap().is_allowed());
    }
    // A bucket has refilled by now; no more than that is left.
    while limiter.check("id").await.unwrap().is_allowed() {}
    // Forgets that denial.
    limiter.configure(policies.to_vec()).unwrap();
    (limiter, clock)
}

/// Another instance.
async fn beside(server: &Server, policies: &[Policy], freshness: Duration, clock: &ManualClock) -> Limiter<Redis> {
    let builder = Limiter::builder().policies(policies.to_vec()).clock(clock.clone());
    connected(builder.store(patient(&server.url()).deny_cache(freshness))).await
}

/// The only policy's answer: who gave it, and how long to wait.
fn told(decision: Result<Decision, StoreError>) -> (Source, Option<Duration>) {
    let decision = decision.unwrap();
    (sources(&decision)[0], decision.retry_after())
}

#[tokio::test]
async fn a_denial_is_remembered_while_it_is_fresh() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, clock) = exhausted(&server, &[policy(*algorithm)], FRESHNESS).await;
        let first = limiter.check("id").await.unwrap();
        let reset = first.strictest().unwrap().reset_after();
        let (source, Some(wait)) = told(Ok(first)) else { panic!("{algorithm}: denied") };
        assert_eq!(source, Source::Store, "{algorithm}");
        assert!(wait > FRESHNESS, "{algorithm}");
        let mut passed = Duration::ZERO;
        for pass in [Duration::ZERO, TICK, Duration::from_millis(200), FRESHNESS - Duration::from_millis(200) - 2 * TICK] {
            clock.advance(pass);
            passed += pass;
            let decision = limiter.check("id").await.unwrap();
            let outcome = decision.strictest().unwrap();
            assert_eq!((outcome.used(), outcome.remaining(), outcome.limit()), (5, 0, 5), "{algorithm}");
            assert_eq!(outcome.reset_after(), reset - passed, "{algorithm}");
            assert_eq!(told(Ok(decision)), (Source::DenyCache, Some(wait - passed)), "{algorithm}");
        }
        clock.advance(TICK);
        assert_eq!(told(limiter.check("id").await), (Source::Store, Some(wait - FRESHNESS)), "{algorithm}");
        assert_eq!(limiter.store().status().cached, 4, "{algorithm}");
        // Nobody else is denied by it.
        assert!(limiter.check("other").await.unwrap().is_allowed(), "{algorithm}");
    }
}

#[tokio::test]
async fn a_denial_is_forgotten_at_the_end_of_its_wait() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, clock) = exhausted(&server, &[policy(*algorithm)], Duration::from_secs(60)).await;
        let (Source::Store, Some(wait)) = told(limiter.check("id").await) else { panic!("{algorithm}: denied") };
        clock.advance(wait - TICK);
        assert_eq!(told(limiter.check("id").await), (Source::DenyCache, Some(TICK)), "{algorithm}");
        clock.advance(TICK);
        let decision = limiter.check("id").await.unwrap();
        assert!(decision.is_allowed() && sources(&decision) == [Source::Store], "{algorithm}: {decision:?}");
    }
}

#[tokio::test]
async fn a_cost_that_never_fits_is_remembered_as_such() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, clock) = exhausted(&server, &[policy(*algorithm)], FRESHNESS).await;
        for source in [Source::Store, Source::DenyCache, Source::DenyCache] {
            let decision = limiter.check_n("id", 6).await.unwrap();
            assert!(decision.strictest().unwrap().is_hopeless(), "{algorithm}");
            assert_eq!(told(Ok(decision)), (source, None), "{algorithm}");
        }
        clock.advance(FRESHNESS);
        assert_eq!(told(limiter.check_n("id", 6).await), (Source::Store, None), "{algorithm}");
    }
}

#[tokio::test]
async fn a_peek_and_a_charge_ask_the_store() {
    let server = Server::start();
    let (limiter, _) = exhausted(&server, &[policy(Algorithm::SlidingLog)], FRESHNESS).await;
    let (_, wait) = told(limiter.check("id").await);
    assert_eq!(told(limiter.peek("id").await), (Source::Store, wait));
    assert_eq!(limiter.remaining("id").await, Ok(Some(0)));
    let charged = limiter.charge("id").await.unwrap();
    assert_eq!((sources(&charged)[0], charged.strictest().unwrap().used()), (Source::Store, 6));
    assert_eq!(limiter.store().status().cached, 0);
}

#[tokio::test]
async fn another_cost_has_another_wait() {
    let server = Server::start();
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let (limiter, clock) = exhausted(&server, &[policy(algorithm)], Duration::from_secs(60)).await;
        // One comes back each second from six seconds on.
        let wait = |cost: u64| Some(Duration::from_secs(5 + cost));
        for cost in [2, 3, 4] {
            assert_eq!(told(limiter.check_n("id", cost).await), (Source::Store, wait(cost)), "{algorithm}, {cost}");
            assert_eq!(told(limiter.check_n("id", cost).await), (Source::DenyCache, wait(cost)), "{algorithm}, {cost}");
        }
        assert_eq!(told(limiter.check_n("id", 2).await), (Source::DenyCache, wait(2)), "{algorithm}");
        // A smaller one is asked: there may be room for it.
        clock.advance(Duration::from_secs(6));
        assert_eq!(told(limiter.check_n("id", 3).await), (Source::DenyCache, Some(Duration::from_secs(2))), "{algorithm}");
        assert_eq!(told(limiter.check_n("id", 1).await), (Source::Store, None), "{algorithm}");
    }
}

/// How long a fifth cost is told to wait, when four others have been denied, and how long it has to.
async fn fifth(cost: u64) -> (Option<Duration>, Option<Duration>) {
    let server = Server::start();
    let clock = ManualClock::default();
    let policy = Policy::new("requests", Quota::new(10, WINDOW).unwrap()).algorithm(Algorithm::SlidingLog);
    let limiter = beside(&server, &[policy], FRESHNESS, &clock).await;
    for _ in 0..5 {
        clock.advance(Duration::from_secs(1));
        assert!(limiter.check_n("id", 2).await.unwrap().is_allowed());
    }
    for cost in 1..=4 {
        assert_eq!(told(limiter.check_n("id", cost).await).0, Source::Store);
    }
    let (_, wait) = told(limiter.check_n("id", cost).await);
    (wait, told(limiter.peek(Hit::from("id").cost(cost)).await).1)
}

#[tokio::test]
async fn a_cost_that_never_fits_has_no_wait_whatever_is_remembered() {
    let (told, exact) = fifth(11).await;
    assert_eq!(told, exact);
}

#[tokio::test]
async fn a_fifth_cost_has_its_own_wait() {
    let (told, exact) = fifth(5).await;
    assert_eq!(told, exact);
}

#[tokio::test]
async fn a_reset_and_a_refund_are_seen_at_once() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, clock) = exhausted(&server, &[policy(*algorithm)], FRESHNESS).await;
        let _ = told(limiter.check("id").await);
        assert_eq!(told(limiter.check("id").await).0, Source::DenyCache, "{algorithm}");
        let _ = limiter.reset("id").await.unwrap();
        // Receipts up to the time of a reset are worth nothing.
        clock.advance(TICK);
        let mut last = limiter.check_n("id", 5).await.unwrap();
        assert!(last.is_allowed(), "{algorithm}");
        let _ = told(limiter.check("id").await);
        assert_eq!(told(limiter.check("id").await).0, Source::DenyCache, "{algorithm}");
        let _ = limiter.settle(last.take_receipt().unwrap(), 3).await.unwrap();
        let mut last = limiter.check_n("id", 2).await.unwrap();
        assert!(last.is_allowed(), "{algorithm}");
        let _ = told(limiter.check("id").await);
        let _ = limiter.refund(last.take_receipt().unwrap()).await.unwrap();
        assert!(limiter.check_n("id", 2).await.unwrap().is_allowed(), "{algorithm}");
    }
}

#[tokio::test]
async fn a_reset_elsewhere_is_seen_when_the_denial_is_no_longer_fresh() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let policies = [policy(*algorithm)];
        let (limiter, clock) = exhausted(&server, &policies, FRESHNESS).await;
        let other = beside(&server, &policies, FRESHNESS, &clock).await;
        let _ = told(limiter.check("id").await);
        let _ = other.reset("id").await.unwrap();
        clock.advance(FRESHNESS - TICK);
        assert_eq!(told(limiter.check("id").await).0, Source::DenyCache, "{algorithm}");
        clock.advance(TICK);
        assert!(limiter.check("id").await.unwrap().is_allowed(), "{algorithm}");
    }
}

#[tokio::test]
async fn other_quotas_clear_it() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, _) = exhausted(&server, &[policy(*algorithm)], FRESHNESS).await;
        let _ = told(limiter.check("id").await);
        assert_eq!(told(limiter.check("id").await).0, Source::DenyCache, "{algorithm}");
        limiter.set_quota("requests", Quota::new(6, WINDOW).unwrap()).unwrap();
        let decision = limiter.check("id").await.unwrap();
        assert!(decision.is_allowed() && sources(&decision) == [Source::Store], "{algorithm}: {decision:?}");
    }
}

#[tokio::test]
async fn shadow_policies_are_asked_every_time() {
    let server = Server::start();
    let watched = policy(Algorithm::SlidingLog).shadow();
    let clock = ManualClock::default();
    let limiter = beside(&server, &[watched], FRESHNESS, &clock).await;
    for request in 0..10 {
        let decision = limiter.check("id").await.unwrap();
        assert!(decision.is_allowed());
        let outcome = decision.outcomes().next().unwrap();
        assert_eq!((outcome.is_allowed(), outcome.source()), (request < 5, Source::Store));
    }
    assert_eq!(limiter.store().status().cached, 0);
}

#[tokio::test]
async fn a_cached_denial_charges_nothing_elsewhere() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let wide = |name| Policy::new(name, Quota::new(100, WINDOW).unwrap()).algorithm(*algorithm);
        let policies =
            [wide("per-ip").key(["ip"]), policy(*algorithm), wide("watched").key(["ip"]).shadow(), wide("other").key(["other"])];
        let (limiter, _) = exhausted(&server, &policies, FRESHNESS).await;
        let hit = Hit::from("id").attribute("ip", "203.0.113.7");
        let first = limiter.check(&hit).await.unwrap();
        assert!(!first.is_allowed() && sources(&first) == [Source::Store; 3], "{algorithm}");
        for _ in 0..3 {
            let mut decision = limiter.check(&hit).await.unwrap();
            assert!(!decision.is_allowed() && decision.take_receipt().is_none(), "{algorithm}");
            let denying = decision.outcomes().find(|outcome| outcome.policy() == "requests").unwrap();
            assert_eq!((denying.source(), denying.is_allowed()), (Source::DenyCache, false), "{algorithm}");
            assert_eq!(decision.retry_after(), first.retry_after(), "{algorithm}");
            assert!(decision.outcomes().all(|outcome| outcome.charged() == 0), "{algorithm}");
        }
        let ip = limiter.peek(Hit::new().attribute("ip", "203.0.113.7")).await.unwrap();
        assert!(ip.outcomes().all(|outcome| outcome.used() == 0), "{algorithm}: {ip:?}");
        // The same address with another key goes on.
        assert!(limiter.check(Hit::from("new").attribute("ip", "203.0.113.7")).await.unwrap().is_allowed(), "{algorithm}");
    }
}

/// A clock that is set back before the denial does not make it new.
#[tokio::test]
async fn a_denial_from_the_future_is_not_believed() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let (limiter, clock) = exhausted(&server, &[policy(*algorithm)], FRESHNESS).await;
        let _ = told(limiter.check("id").await);
        clock.step_back(TICK);
        assert_eq!(told(limiter.check("id").await).0, Source::Store, "{algorithm}");
    }
}

/// The clock is set back and comes to the time of the denial again: all that while is longer than the denial is fresh.
#[tokio::test]
async fn a_denial_does_not_outlive_a_clock_that_steps_back() {
    let server = Server::start();
    let policies = [policy(Algorithm::SlidingLog)];
    let (limiter, clock) = exhausted(&server, &policies, FRESHNESS).await;
    let other = beside(&server, &policies, FRESHNESS, &clock).await;
    let _ = told(limiter.check("id").await);
    clock.step_back(3 * FRESHNESS);
    // Other keys see the clock where it is.
    let _ = limiter.check("other").await.unwrap();
    let _ = other.reset("id").await.unwrap();
    clock.advance(3 * FRESHNESS);
    assert!(limiter.check("id").await.unwrap().is_allowed());
}

/// The wait is from when the store was asked. An answer that was long under way does not make it longer.
#[tokio::test]
async fn a_late_answer_is_not_remembered_beyond_its_wait() {
    let server = Server::start();
    let (limiter, clock) = exhausted(&server, &[policy(Algorithm::SlidingLog)], Duration::from_secs(60)).await;
    let asked = clock.epoch_micros();
    let mut pending = limiter.check("id");
    begin(&mut pending).await;
    clock.advance(Duration::from_millis(10));
    let wait = pending.await.unwrap().retry_after().unwrap();
    clock.set(asked);
    clock.advance(wait);
    assert!(limiter.peek("id").await.unwrap().is_allowed(), "the store would allow it");
    let decision = limiter.check("id").await.unwrap();
    assert!(decision.is_allowed(), "{decision:?}");
}

/// What was denied before a reset and answered after it is not remembered.
#[tokio::test]
async fn a_denial_from_before_a_reset_is_not_remembered() {
    let server = Server::start();
    let (limiter, _) = exhausted(&server, &[policy(Algorithm::SlidingLog)], FRESHNESS).await;
    let mut pending = limiter.check("id");
    begin(&mut pending).await;
    let _ = limiter.reset("id").await.unwrap();
    let _ = pending.await.unwrap();
    let decision = limiter.check("id").await.unwrap();
    assert!(decision.is_allowed(), "{decision:?}");
}

/// What was denied under an old quota and answered under the new one is not remembered.
#[tokio::test]
async fn a_denial_from_before_other_quotas_is_not_remembered() {
    let server = Server::start();
    let (limiter, _) = exhausted(&server, &[policy(Algorithm::SlidingLog)], FRESHNESS).await;
    let mut pending = limiter.check("id");
    begin(&mut pending).await;
    limiter.set_quota("requests", Quota::new(6, WINDOW).unwrap()).unwrap();
    let _ = pending.await.unwrap();
    let decision = limiter.check("id").await.unwrap();
    assert!(decision.is_allowed(), "{decision:?}");
}

/// `check` is an ordinary function: it may be called where no runtime is entered, and its future awaited later.
#[test]
fn a_cached_denial_needs_no_runtime_around_the_call() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    let policies = [policy(Algorithm::SlidingLog)];
    let (limiter, _) = runtime.block_on(exhausted(&server, &policies, Duration::from_secs(60)));
    let _ = runtime.block_on(limiter.check("id")).unwrap();
    // The ranking has been written.
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(told(runtime.block_on(limiter.check("id"))).0, Source::DenyCache);
}
