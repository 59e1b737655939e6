//! Law 17 on a real server: who waits is served in order, who is gone holds nothing, and what makes room here is found at once.

use std::{future::Future, time::Duration};

use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, OnStoreError, Policy, Quota, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::limiters::{avoid_midnight, by_store, connected, patient, sources};

const KEYS: usize = 3;
const LIMIT: u64 = 4;

fn policy(algorithm: Algorithm, quota: Quota) -> Policy {
    Policy::new("waiting", quota).algorithm(algorithm)
}

/// Fails rather than to hang.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("it is answered")
}

async fn idle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Until whoever is first has been answered and sleeps: what was asked before is answered before. Who is answered after the clock has
/// moved would sleep from then on.
async fn settled(limiter: &Limiter<Redis>) {
    for _ in 0..3 {
        idle().await;
        let _ = by_store(limiter.peek("another key").await);
    }
    idle().await;
}

#[tokio::test]
async fn waiters_are_served_in_order_though_half_of_them_go() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let clock = ManualClock::default();
        let prefix = format!("rl-{algorithm}");
        let builder = Limiter::builder().policy(policy(*algorithm, Quota::per_second(LIMIT))).clock(clock.clone());
        let limiter = connected(builder.store(patient(&server.url()).prefix(prefix))).await;
        for key in 0..KEYS {
            let _ = by_store(limiter.check_n(&key.to_string(), LIMIT).await);
        }
        let (served, mut was_served) = mpsc::unbounded_channel();
        let wait = |turn: usize| {
            let (limiter, served) = (limiter.clone(), served.clone());
            tokio::spawn(async move {
                let decision = by_store(limiter.acquire(&(turn % KEYS).to_string()).await);
                assert!(decision.is_allowed());
                served.send(turn).unwrap();
            })
        };
        let tasks: Vec<JoinHandle<()>> = (0..20 * KEYS).map(wait).collect();
        settled(&limiter).await;
        // Some that are first among them.
        let mut left: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
        for (turn, task) in tasks.iter().enumerate() {
            if (turn * 7 / 3) % 2 == 0 { task.abort() } else { left[turn % KEYS].push(turn) }
        }
        let mut order: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
        settled(&limiter).await;
        while order != left {
            clock.advance(Duration::from_secs(2));
            let expected: usize = (0..KEYS).map(|key| (left[key].len() - order[key].len()).min(LIMIT as usize)).sum();
            for _ in 0..expected {
                let turn = soon(was_served.recv()).await.unwrap();
                order[turn % KEYS].push(turn);
            }
            settled(&limiter).await;
            assert!(was_served.try_recv().is_err(), "{algorithm}: over the limit");
            for key in 0..KEYS {
                assert_eq!(order[key], left[key][..order[key].len()], "{algorithm}");
            }
        }
    }
}

#[tokio::test]
async fn what_was_asked_for_by_a_future_that_is_gone_is_given_back() {
    avoid_midnight();
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let builder = Limiter::builder().policy(policy(*algorithm, Quota::per_day(LIMIT)));
        let limiter = connected(builder.store(patient(&server.url()).prefix(format!("rl-{algorithm}")))).await;
        let give_back = async |decision: Result<Decision, StoreError>| {
            let receipt = by_store(decision).take_receipt().expect("it was admitted");
            let _ = by_store(limiter.refund(receipt).await);
        };
        let mut gone = 0;
        for round in 0..40 {
            let patience = async {
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
            };
            // It is asked for before anybody runs out of patience, the first at once.
            tokio::select! {
                biased;
                decision = limiter.acquire("k") => give_back(decision).await,
                () = patience => gone += 1,
            }
            // Those after it get what it had asked for.
            give_back(soon(limiter.acquire("k")).await).await;
        }
        assert!(gone > 0);
        let all_is_back = async {
            while limiter.remaining("k").await.unwrap() != Some(LIMIT) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(all_is_back).await;
    }
}

#[tokio::test]
async fn what_makes_room_here_wakes_who_is_first() {
    avoid_midnight();
    let server = Server::start();
    // With the deny cache that it has unless told otherwise.
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_secs(20));
    let limiter = connected(Limiter::builder().policy(policy(Algorithm::SlidingLog, Quota::per_day(1))).store(store)).await;
    let waiter = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("k").await.unwrap() })
    };
    let receipt = by_store(limiter.check("k").await).take_receipt().unwrap();
    let (first, second) = (waiter(), waiter());
    idle().await;
    let _ = limiter.refund(receipt).await.unwrap();
    assert!(soon(first).await.unwrap().is_allowed());
    let _ = limiter.reset("k").await.unwrap();
    assert!(soon(second).await.unwrap().is_allowed());
    let third = waiter();
    idle().await;
    limiter.set_quota("waiting", Quota::per_day(2)).unwrap();
    assert!(soon(third).await.unwrap().is_allowed());
}

#[tokio::test]
async fn by_the_servers_time_nobody_waits_for_longer_than_told() {
    let server = Server::start();
    const WINDOW: Duration = Duration::from_millis(200);
    let quota = Quota::new(5, WINDOW).unwrap();
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_secs(20));
    let limiter = connected(Limiter::builder().policy(policy(Algorithm::SlidingLog, quota)).store(store)).await;
    let calls = limiter.store().status().calls;
    let began = Instant::now();
    let wait = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire("k").await.unwrap() })
    };
    for waiter in (0..20).map(wait).collect::<Vec<_>>() {
        assert!(soon(waiter).await.unwrap().is_allowed());
    }
    assert!(began.elapsed() >= 3 * WINDOW, "{:?}", began.elapsed());
    // Each was asked for once when it was served, and once or twice when it was first in line and was not.
    assert!(limiter.store().status().calls - calls <= 20 + 2 * 20);

    // All of a window, which is not free yet: in time, or refused with the wait that it would have been.
    let all = |timeout| limiter.acquire_timeout(Hit::from("k").cost(5), timeout);
    assert!(all(100 * WINDOW).await.unwrap().is_allowed());
    let refused = all(Duration::ZERO).await.unwrap();
    assert!(!refused.is_allowed() && refused.retry_after().is_some());
}

#[tokio::test]
async fn without_a_store_the_policy_decides() {
    let acquire = |says| async move {
        let policy = policy(Algorithm::Gcra, Quota::per_day(1)).on_store_error(says);
        // Nobody listens there.
        let limiter = Limiter::builder().policy(policy).store(Redis::new("redis://127.0.0.1:1/").unwrap()).build().unwrap();
        let answer: Result<Decision, _> = limiter.acquire_timeout("k", Duration::from_millis(1)).await;
        (answer, limiter)
    };
    assert!(acquire(OnStoreError::Error).await.0.is_err());
    assert!(acquire(OnStoreError::Allow).await.0.unwrap().is_allowed());
    let denied = acquire(OnStoreError::Deny).await.0.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(sources(&denied), [Source::Fallback]);
    let (allowed, limiter) = acquire(OnStoreError::Local).await;
    assert!(allowed.unwrap().is_allowed());
    assert!(!limiter.acquire_timeout("k", Duration::from_secs(60)).await.unwrap().is_allowed());
}
