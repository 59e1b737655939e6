//! Batches: what gathers while a call is under way goes together in the next one, each hit with its own answer.

use std::{future::poll_fn, task::Poll, time::Duration};

use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, Pending, Policy, Quota, Redis, StoreError};
use tidegate_testkit::Server;
use tokio::task::JoinSet;

use crate::limiters::{avoid_midnight, begin, by_store, connected, patient};

async fn limiter(server: &Server, algorithm: Algorithm, limit: u64) -> Limiter<Redis> {
    let policy = Policy::new("requests", Quota::per_day(limit)).algorithm(algorithm);
    connected(Limiter::builder().policy(policy).store(patient(&server.url()))).await
}

/// All of them at once. In one task, as thousands of tasks would keep each other, and the link, from running.
async fn join(hits: impl Iterator<Item = Pending<Decision>>) -> Vec<Result<Decision, StoreError>> {
    let mut hits: Vec<_> = hits.map(|hit| (hit, None)).collect();
    poll_fn(|context| {
        for (hit, answer) in hits.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(told) = hit.as_mut().poll(context) {
                *answer = Some(told);
            }
        }
        if hits.iter().all(|(_, answer)| answer.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    hits.into_iter().filter_map(|(_, answer)| answer).collect()
}

#[tokio::test]
async fn what_comes_together_goes_together_and_what_comes_alone_goes_alone() {
    let server = Server::start();
    let limiter = limiter(&server, Algorithm::Gcra, 1_000_000).await;
    let status = || limiter.store().status();
    for alone in 1..=10 {
        let _ = by_store(limiter.check("alone").await);
        assert_eq!((status().calls, status().hits), (alone, alone));
    }
    let before = status();
    for _ in 0..20 {
        let answers = join((0..64).map(|_| limiter.check("together"))).await;
        answers.into_iter().for_each(|answer| assert!(by_store(answer).is_allowed()));
    }
    let (calls, hits) = (status().calls - before.calls, status().hits - before.hits);
    assert_eq!(hits, 20 * 64);
    assert!(calls * 10 <= hits, "{calls} calls for {hits} hits");
}

/// Each key is charged another cost before: so an answer that reached somebody else would be seen.
#[tokio::test]
async fn a_dropped_future_shifts_nobodys_answer() {
    const KEYS: u64 = 60;
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let policy = Policy::new("requests", Quota::per_day(100_000)).algorithm(*algorithm);
        let builder = Limiter::builder().policy(policy).clock(ManualClock::default());
        let limiter = connected(builder.store(patient(&server.url()))).await;
        let names: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
        for (key, name) in (0..KEYS).zip(&names) {
            let _ = by_store(limiter.charge(Hit::from(name).cost(100 * (key + 1))).await);
        }
        for round in 0..10 {
            let mut asked: Vec<_> = (0..KEYS).zip(&names).map(|(key, name)| (key, limiter.check(name))).collect();
            for (key, pending) in &mut asked {
                begin(pending).await;
                // The first half is sent before the other comes.
                if *key == KEYS / 2 {
                    tokio::task::yield_now().await;
                }
            }
            // Two of three are given up: some sent, some waiting.
            asked.retain(|(key, _)| (key + round) % 3 == 0);
            for (key, pending) in asked {
                let used = by_store(pending.await).strictest().unwrap().used();
                // At most one more for each round.
                let more = used.checked_sub(100 * (key + 1)).expect("an answer of one's own");
                assert!((1..=round + 1).contains(&more), "{algorithm}: key {key} was told {used}");
            }
        }
    }
}

/// Far more keys than hits.
#[tokio::test]
async fn hits_under_many_policies_go_together() {
    const POLICIES: usize = 100;
    let server = Server::start();
    let algorithm = |index: usize| Algorithm::RATES[index % Algorithm::RATES.len()];
    let policy =
        |index: usize| Policy::new(format!("policy-{index}"), Quota::per_day(50 + index as u64)).algorithm(algorithm(index));
    let builder = Limiter::builder().policies((0..POLICIES).map(policy)).clock(ManualClock::default());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    let answers = join((0..64).map(|_| limiter.check("a"))).await;
    assert_eq!(answers.into_iter().map(by_store).filter(Decision::is_allowed).count(), 50);
    let stands = by_store(limiter.peek("a").await);
    assert_eq!(stands.outcomes().count(), POLICIES);
    assert!(stands.outcomes().all(|outcome| outcome.used() == 50));
    assert!(limiter.store().status().calls < 10);
}

/// Everything at once on one key: in one limiter as many as may wait, and in several more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_one_key_admits_exactly_the_limit() {
    const LIMITERS: usize = 2;
    const HITS: usize = 10_000;
    const LIMIT: u64 = 777;
    avoid_midnight();
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let mut tasks = JoinSet::new();
        for _ in 0..LIMITERS {
            let limiter = limiter(&server, *algorithm, LIMIT).await;
            tasks.spawn(async move { join((0..HITS / LIMITERS).map(|_| limiter.check("one key"))).await });
        }
        let answers = tasks.join_all().await.into_iter().flatten();
        let admitted = answers.map(by_store).filter(Decision::is_allowed).count();
        assert_eq!(admitted as u64, LIMIT, "{algorithm}");
    }
}

/// A healthy store that has the time decides all of them, however many wait.
#[tokio::test]
async fn ten_thousand_at_once_through_one_limiter_are_all_decided_by_the_store() {
    avoid_midnight();
    let server = Server::start();
    let limiter = limiter(&server, Algorithm::SlidingWindow, 777).await;
    let answers = join((0..10_000).map(|_| limiter.check("one key"))).await;
    let admitted = answers.into_iter().map(by_store).filter(Decision::is_allowed).count();
    assert_eq!(admitted, 777);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_comes_in_one_microsecond_counts() {
    const LIMIT: u64 = 3_000;
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let clock = ManualClock::default();
        let window = Duration::from_secs(10);
        let policy = Policy::new("requests", Quota::new(LIMIT, window).unwrap()).algorithm(*algorithm);
        let builder = Limiter::builder().policy(policy).clock(clock.clone());
        let limiter = connected(builder.store(patient(&server.url()))).await;
        for _ in 0..2 {
            let answers = join((0..2 * LIMIT).map(|_| limiter.check("one key"))).await;
            let admitted = answers.into_iter().map(by_store).filter(Decision::is_allowed).count();
            assert_eq!(admitted as u64, LIMIT, "{algorithm}");
            clock.advance(2 * window);
            assert_eq!(limiter.remaining("one key").await, Ok(Some(LIMIT)), "{algorithm}");
        }
    }
}

/// More than a script could hand to one command.
#[tokio::test]
async fn thousands_of_entries_expire_at_once() {
    const ENTRIES: u64 = 8_500;
    let server = Server::start();
    let window = Duration::from_secs(10);
    let policy = Policy::new("requests", Quota::new(ENTRIES, window).unwrap()).algorithm(Algorithm::SlidingLog);
    let clock = ManualClock::default();
    let builder = Limiter::builder().policy(policy).clock(clock.clone());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    for _ in 0..ENTRIES {
        clock.advance(Duration::from_micros(1));
        assert!(by_store(limiter.check("one key").await).is_allowed());
    }
    let denied = by_store(limiter.check_n("one key", ENTRIES).await);
    assert_eq!(denied.strictest().unwrap().used(), ENTRIES);
    clock.advance(denied.retry_after().unwrap());
    assert!(by_store(limiter.check_n("one key", ENTRIES).await).is_allowed());
    let stored = limiter.inspect("requests", "one key").unwrap().await.unwrap();
    assert_eq!(stored.entries.len(), 1);
}
