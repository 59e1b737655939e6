//! Leases on a real server: as in memory, and let go wherever they were given.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Hit, Limiter, ManualClock, OnStoreError, Override, Policy, Quota, Redis, Source};
use tidegate_testkit::Server;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    lease_model::{Case, Model, POLICY, Step, Told, answer, case, policy},
    limiters::{by_store, connected, keys, patient},
};

const START: u64 = 1_700_000_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

async fn take(limiter: &Limiter<Redis>, step: Step) -> Told {
    let name = |lease: u8| lease.to_string();
    match step {
        Step::Check(Some(lease)) => Told::Stands(answer(&by_store(limiter.check(Hit::from("a").lease(&name(lease))).await))),
        Step::Check(None) => Told::Stands(answer(&by_store(limiter.check("a").await))),
        Step::Peek(lease) => Told::Stands(answer(&by_store(limiter.peek(Hit::from("a").lease(&name(lease))).await))),
        Step::Renew(lease) => Told::Held(limiter.renew(Hit::from("a").lease(&name(lease))).await.unwrap()),
        Step::Release(lease) => Told::Held(limiter.release(Hit::from("a").lease(&name(lease))).await.unwrap()),
        Step::Reset => {
            let _ = by_store(limiter.reset("a").await);
            Told::Nothing
        }
        Step::Configure(limit, lives) => {
            limiter.configure([policy(limit, lives)]).unwrap();
            Told::Nothing
        }
        Step::Wait(_) | Step::Back(_) => Told::Nothing,
    }
}

fn traces_agree(server: &Server) {
    let runtime = RefCell::new(Runtime::new().unwrap());
    let config = Config { failure_persistence: None, ..Config::default() };
    let agree = |(limit, lives, steps): Case| {
        redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
        runtime.borrow().block_on(async {
            let clock = ManualClock::default();
            let builder = Limiter::builder().policy(policy(limit, lives)).clock(clock.clone());
            let limiter = connected(builder.store(patient(&server.url()))).await;
            let mut model = Model::new(START, limit, lives);
            for (index, step) in steps.iter().enumerate() {
                let expected = model.take(*step);
                clock.set(model.now);
                prop_assert_eq!(take(&limiter, *step).await, expected, "step {} is {:?}", index, step);
            }
            Ok(())
        })
    };
    if let Err(failure) = TestRunner::new(config).run(&case(), agree) {
        panic!("{failure}");
    }
}

#[test]
fn random_leases_agree_with_the_model_on_redis() {
    traces_agree(&Server::start());
}

#[test]
fn random_leases_agree_with_the_model_on_valkey() {
    match Server::try_valkey() {
        Some(server) => traces_agree(&server),
        None => println!("no valkey-server is installed: scripts/setup says how"),
    }
}

fn places(limit: u64) -> Policy {
    Policy::concurrency(POLICY, limit, MINUTE)
}

async fn limiter(server: &Server, limit: u64) -> Limiter<Redis> {
    connected(Limiter::builder().policy(places(limit)).store(patient(&server.url()))).await
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(10), async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it comes to that");
}

#[tokio::test]
async fn a_lease_of_a_key_that_is_blocked_has_ended() {
    let server = Server::start();
    let limiter = limiter(&server, 2).await;
    let job = Hit::from("a").lease("job");
    assert!(limiter.check(&job).await.unwrap().is_allowed());
    let held = limiter.hold("a").await.unwrap();
    limiter.configure([places(2).override_key(["a"], Override::Blocked)]).unwrap();
    assert_eq!((limiter.renew(&job).await, held.renew().await), (Ok(false), Ok(false)));
    assert_eq!((limiter.release(&job).await, held.release().await, limiter.release(&job).await), (Ok(true), Ok(true), Ok(false)));
    limiter.configure([places(2)]).unwrap();
    assert_eq!(limiter.remaining("a").await, Ok(Some(2)));
}

#[tokio::test]
async fn a_lease_is_seen_and_released_by_every_instance() {
    let server = Server::start();
    let (here, there) = (limiter(&server, 1).await, limiter(&server, 1).await);
    let held = here.hold("a").await.unwrap();
    assert!(held.is_allowed());
    assert!(!there.hold("a").await.unwrap().is_allowed());
    drop(held);
    until(async || there.remaining("a").await.unwrap() == Some(1)).await;
    let job = Hit::from("a").lease("job-1");
    assert!(by_store(here.check(&job).await).is_allowed());
    assert!(there.renew(&job).await.unwrap() && there.release(&job).await.unwrap() && !here.renew(&job).await.unwrap());
    // Nothing is left, not even the key.
    assert!(keys(&mut server.connection()).is_empty());
}

/// A place may be free again at any time: that there was none is not remembered.
#[tokio::test]
async fn no_denial_of_a_lease_is_cached() {
    let server = Server::start();
    let store = || Redis::new(&server.url()).unwrap().deadline(Duration::from_secs(20));
    let (here, there) = (
        connected(Limiter::builder().policy(places(1)).store(store())).await,
        connected(Limiter::builder().policy(places(1)).store(store())).await,
    );
    for _ in 0..10 {
        let held = here.hold("a").await.unwrap();
        assert!(held.is_allowed() && !there.hold("a").await.unwrap().is_allowed());
        assert!(held.release().await.unwrap());
        let held = there.hold("a").await.unwrap();
        assert!(held.is_allowed() && held.release().await.unwrap());
    }
    assert_eq!(there.store().status().cached, 0);
}

/// The answer to who gave up waiting is a lease that nobody has: it is let go.
#[tokio::test]
async fn giving_up_before_the_answer_gives_up_the_lease() {
    let server = Server::start();
    let limiter = limiter(&server, 1).await;
    for _ in 0..200 {
        let pending = limiter.hold("a");
        tokio::select! {
            biased;
            _ = pending => {}
            () = tokio::task::yield_now() => {}
        }
    }
    until(async || limiter.remaining("a").await.unwrap() == Some(1)).await;
}

#[tokio::test]
async fn tasks_never_hold_more_than_the_limit() {
    const LIMIT: u64 = 5;
    let server = Server::start();
    let limiters = [limiter(&server, LIMIT).await, limiter(&server, LIMIT).await];
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..40 {
        let (limiter, inside) = (limiters[task % 2].clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut entered = 0;
            for _ in 0..20 {
                let held = limiter.hold("a").await.unwrap();
                assert!(held.decision().outcomes().all(|outcome| outcome.source() == Source::Store));
                if held.is_allowed() {
                    assert!(inside.fetch_add(1, SeqCst) < LIMIT);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                    entered += 1;
                    assert!(held.release().await.unwrap());
                }
            }
            entered
        });
    }
    let entered: u64 = tasks.join_all().await.into_iter().sum();
    assert!(entered >= LIMIT, "{entered}");
    assert_eq!(limiters[0].remaining("a").await.unwrap(), Some(LIMIT));
}

/// What the store gave though its answer was lost is let go, also by who was denied meanwhile.
#[tokio::test]
async fn a_lease_whose_answer_was_lost_is_let_go() {
    let server = Server::start();
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_millis(50));
    let strict = places(3).on_store_error(OnStoreError::Deny);
    let limiter = connected(Limiter::builder().policy(strict).store(store)).await;
    server.freeze();
    for _ in 0..3 {
        assert!(!limiter.hold("a").await.unwrap().is_allowed());
    }
    server.thaw();
    until(async || {
        limiter.peek("a").await.is_ok_and(|stands| stands.outcomes().all(|outcome| outcome.source() == Source::Store))
    })
    .await;
    until(async || limiter.remaining("a").await.unwrap() == Some(3)).await;
}

/// Who waits finds what another process has released long before the lease would have ended.
#[tokio::test]
async fn who_waits_gets_a_place_that_another_process_releases() {
    let server = Server::start();
    let (here, there) = (limiter(&server, 1).await, limiter(&server, 1).await);
    let held = here.hold("a").await.unwrap();
    let job = Hit::from("a").lease("job");
    let mut waiting = std::pin::pin!(there.acquire(&job));
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("there is no place"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    assert!(held.release().await.unwrap());
    let decision = tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("it looks");
    assert!(decision.unwrap().is_allowed() && here.release(&job).await.unwrap());
}

/// A fallback's lease is in the fallback.
#[tokio::test]
async fn a_lease_is_released_where_it_was_given() {
    let mut server = Server::start();
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_secs(5));
    let rate = Policy::new("rate", Quota::per_minute(100));
    let limiter = connected(Limiter::builder().policy(places(2)).policy(rate).store(store)).await;
    let stored = limiter.hold("a").await.unwrap();
    server.kill();
    until(async || !limiter.store().status().is_up).await;
    let local = limiter.hold("a").await.unwrap();
    assert!(local.is_allowed());
    assert!(local.decision().outcomes().all(|outcome| outcome.source() == Source::Fallback));
    assert!(local.renew().await.unwrap());
    let job = Hit::from("a").lease("job-1");
    assert!(limiter.check(&job).await.unwrap().is_allowed());
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    // Here it is known, though the store is away; of the other only the store could tell.
    assert!(local.release().await.unwrap() && limiter.release(&job).await.unwrap());
    assert!(stored.renew().await.is_err());
    assert!(limiter.check("a").await.unwrap().is_allowed());
}
