//! `concurrency`: never more leases than the limit, each gone when it is released or over.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Algorithm, Hit, Limiter, ManualClock, Override, Policy, Quota};

use crate::lease_model::{Case, Model, POLICY, Step, Told, answer, case, policy};

pub(crate) const START: u64 = 1_700_000_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn take(limiter: &Limiter, clock: &ManualClock, step: Step, now: u64) -> Told {
    clock.set(now);
    let name = |lease: u8| lease.to_string();
    match step {
        Step::Check(Some(lease)) => Told::Stands(answer(&limiter.check(Hit::from("a").lease(&name(lease))))),
        Step::Check(None) => Told::Stands(answer(&limiter.check("a"))),
        Step::Peek(lease) => Told::Stands(answer(&limiter.peek(Hit::from("a").lease(&name(lease))))),
        Step::Renew(lease) => Told::Held(limiter.renew(Hit::from("a").lease(&name(lease)))),
        Step::Release(lease) => Told::Held(limiter.release(Hit::from("a").lease(&name(lease)))),
        Step::Reset => {
            let _ = limiter.reset("a");
            Told::Nothing
        }
        Step::Configure(limit, lives) => {
            limiter.configure([policy(limit, lives)]).unwrap();
            Told::Nothing
        }
        Step::Wait(_) | Step::Back(_) => Told::Nothing,
    }
}

fn agree((limit, lives, steps): Case) -> Result<(), TestCaseError> {
    let clock = ManualClock::default();
    clock.set(START);
    let limiter = Limiter::builder().policy(policy(limit, lives)).clock(clock.clone()).build().unwrap();
    let mut model = Model::new(START, limit, lives);
    for (index, step) in steps.iter().enumerate() {
        let expected = model.take(*step);
        prop_assert_eq!(take(&limiter, &clock, *step, model.now), expected, "step {} is {:?}", index, step);
    }
    Ok(())
}

#[test]
fn answers_equal_the_model() {
    // PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
    let config = Config { cases: 1_000, failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&case(), agree) {
        panic!("{failure}");
    }
}

fn places(limit: u64) -> Limiter {
    Limiter::builder().policy(Policy::concurrency(POLICY, limit, MINUTE)).clock(ManualClock::default()).build().unwrap()
}

#[test]
fn dropping_what_is_held_frees_its_place() {
    let limiter = places(2);
    let (first, second) = (limiter.hold("a"), limiter.hold("a"));
    assert!(first.is_allowed() && second.is_allowed());
    let third = limiter.hold("a");
    assert!(!third.is_allowed());
    // Who was denied has nothing to release.
    drop(third);
    assert_eq!(limiter.remaining("a"), Some(0));
    drop(first);
    assert_eq!(limiter.remaining("a"), Some(1));
    assert!(second.renew());
    assert!(second.release());
    assert_eq!(limiter.remaining("a"), Some(2));
    let _ = limiter.hold("a").into_decision();
    assert_eq!(limiter.remaining("a"), Some(1));
}

#[test]
fn a_lease_outlives_the_policies_it_was_given_under() {
    let limiter = places(1);
    let held = limiter.hold("a");
    let other = Policy::new("other", Quota::per_minute(1)).key(["other"]);
    limiter.configure([other, Policy::concurrency(POLICY, 1, MINUTE)]).unwrap();
    assert_eq!(limiter.remaining("a"), Some(0));
    drop(held);
    assert_eq!(limiter.remaining("a"), Some(1));
    let held = limiter.hold("a");
    limiter.configure([Policy::new(POLICY, Quota::per_minute(5))]).unwrap();
    // There is nothing of that name to release any more; the rate is not touched.
    drop(held);
    assert_eq!(limiter.remaining("a"), Some(5));
}

/// Rates and leases in one set: all or nothing, whichever of them denies.
#[test]
fn with_rates_it_is_all_or_nothing() {
    for algorithm in Algorithm::RATES {
        let clock = ManualClock::default();
        let rate = Policy::new("rate", Quota::per_day(3)).algorithm(*algorithm);
        let builder = Limiter::builder().policy(rate).policy(Policy::concurrency(POLICY, 2, MINUTE));
        let limiter = builder.clock(clock.clone()).build().unwrap();
        let used = || limiter.peek(Hit::from("a").cost(0)).outcomes().map(|outcome| outcome.used()).collect::<Vec<_>>();
        // Whatever a hit costs, it takes one place.
        let held = limiter.hold(Hit::from("a").cost(2));
        assert_eq!(used(), [2, 1], "{algorithm}");
        let second = limiter.hold("a");
        assert_eq!(used(), [3, 2], "{algorithm}");
        // Both deny.
        assert!(!limiter.hold("a").is_allowed());
        drop(second);
        // The rate denies: no place is taken.
        assert!(!limiter.hold("a").is_allowed());
        assert_eq!(used(), [3, 1], "{algorithm}");
        drop(held);
        // A cost that is recorded takes no place; a receipt gives back what the rate charged.
        let _ = limiter.reset("a");
        clock.advance(Duration::from_micros(1));
        let mut charged = limiter.charge("a");
        assert_eq!(used(), [1, 0], "{algorithm}");
        let _ = limiter.refund(charged.take_receipt().unwrap());
        let mut checked = limiter.check(Hit::from("a").lease("b"));
        assert_eq!(used(), [1, 1], "{algorithm}");
        let _ = limiter.refund(checked.take_receipt().unwrap());
        assert_eq!(used(), [0, 1], "{algorithm}");
        // The places deny: the rate is not charged.
        let _other = limiter.hold("a");
        assert!(!limiter.check("a").is_allowed());
        assert_eq!(used(), [1, 2], "{algorithm}");
    }
}

/// Who waits for a place gets it when it is released, in the order of coming, and gives up when its time is over and not before.
#[cfg(feature = "waiting")]
#[test]
fn who_waits_for_a_place_gets_the_one_that_is_released() {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };
    let clock = ManualClock::default();
    let limiter = Limiter::builder().policy(Policy::concurrency(POLICY, 1, MINUTE)).clock(clock.clone()).build().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let held = limiter.hold("a");
    let (second, third) = (Hit::from("a").lease("second"), Hit::from("a").lease("third"));
    let mut first_in_line = pin!(limiter.acquire(&second));
    let mut next = pin!(limiter.acquire_timeout(&third, Duration::from_secs(10)));
    assert!(first_in_line.as_mut().poll(&mut context).is_pending() && next.as_mut().poll(&mut context).is_pending());
    drop(held);
    assert!(next.as_mut().poll(&mut context).is_pending());
    assert!(matches!(first_in_line.as_mut().poll(&mut context), Poll::Ready(decision) if decision.is_allowed()));
    // The lease ends in a minute, and may be released at any time before.
    clock.advance(Duration::from_secs(9));
    assert!(next.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_secs(1));
    assert!(matches!(next.as_mut().poll(&mut context), Poll::Ready(decision) if !decision.is_allowed()));
    // Who comes last waits for the end of the lease itself.
    let mut last = pin!(limiter.acquire_timeout("a", MINUTE));
    assert!(last.as_mut().poll(&mut context).is_pending());
    clock.advance(MINUTE);
    assert!(matches!(last.as_mut().poll(&mut context), Poll::Ready(decision) if decision.is_allowed()));
}

/// Leases outlive the process that counted them, in a file.
#[test]
fn leases_are_held_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases");
    let clock = ManualClock::default();
    let build = || {
        let builder = Limiter::builder().policy(Policy::concurrency(POLICY, 2, MINUTE)).clock(clock.clone());
        builder.snapshot(tidegate::Snapshot::new(&path)).build().unwrap()
    };
    let limiter = build();
    let jobs = ["job-1", "job-2"].map(|job| Hit::from("a").lease(job));
    for job in &jobs {
        assert!(limiter.check(job).is_allowed());
        clock.advance(Duration::from_secs(10));
    }
    drop(limiter);
    let limiter = build();
    assert!(!limiter.check("a").is_allowed());
    assert_eq!(limiter.check("a").retry_after(), Some(Duration::from_secs(40)));
    assert!(limiter.renew(&jobs[0]) && limiter.release(&jobs[1]) && !limiter.release(&jobs[1]));
    assert_eq!(limiter.remaining("a"), Some(1));
}

/// A policy that only watches gives what it has, and what it does not have is nobody's loss.
#[test]
fn a_shadow_that_is_full_renews_and_releases_as_if_it_were_not_there() {
    for shadow_first in [true, false] {
        let mut policies = vec![Policy::concurrency("watching", 1, MINUTE).shadow(), Policy::concurrency(POLICY, 3, MINUTE)];
        if !shadow_first {
            policies.reverse();
        }
        let clock = ManualClock::default();
        let limiter = Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap();
        let held: Vec<_> = (0..3).map(|_| limiter.hold("a")).collect();
        for _ in 0..3 {
            clock.advance(Duration::from_secs(59));
            assert!(held.iter().all(tidegate::Held::renew));
        }
        let used = || limiter.peek(Hit::from("a").cost(0)).outcomes().map(|outcome| outcome.used()).sum::<u64>();
        assert_eq!(used(), 4);
        assert!(!limiter.hold("a").renew());
        drop(held);
        assert_eq!(used(), 0);
    }
}

/// Who was blocked meanwhile does not go on, and frees its place all the same. A policy that only watches blocks nobody.
#[test]
fn a_lease_of_a_key_that_is_blocked_has_ended() {
    let policy = |is_shadow: bool| {
        let policy = Policy::concurrency(POLICY, 2, MINUTE);
        if is_shadow { policy.shadow() } else { policy }
    };
    for is_shadow in [false, true] {
        let limiter = Limiter::builder().policy(policy(is_shadow)).clock(ManualClock::default()).build().unwrap();
        let job = Hit::from("a").lease("job");
        assert!(limiter.check(&job).is_allowed());
        let held = limiter.hold("a");
        limiter.configure([policy(is_shadow).override_key(["a"], Override::Blocked)]).unwrap();
        assert_eq!((limiter.renew(&job), held.renew()), (is_shadow, is_shadow));
        assert_eq!(limiter.renew(Hit::from("a").lease("never given")), is_shadow);
        assert!(limiter.release(&job) && held.release() && !limiter.release(&job));
        limiter.configure([policy(is_shadow)]).unwrap();
        assert!(limiter.peek("a").outcomes().all(|outcome| outcome.used() == 0));
    }
}

/// Who goes on in spite of it is counted by the others for as long as it does.
#[test]
fn a_key_that_one_policy_blocks_keeps_its_place_under_another() {
    let clock = ManualClock::default();
    let all = Policy::concurrency("all", 1, MINUTE).key(["site"]);
    let each = Policy::concurrency("each", 1, MINUTE).key(["user"]);
    let limiter = Limiter::builder().policies([all.clone(), each.clone()]).clock(clock.clone()).build().unwrap();
    let hit = |user| Hit::new().attribute("site", "s").attribute("user", user);
    let held = limiter.hold(hit("a"));
    limiter.configure([all, each.override_key(["a"], Override::Blocked)]).unwrap();
    for _ in 0..4 {
        clock.advance(MINUTE / 3);
        assert!(!held.renew());
    }
    assert!(!limiter.hold(hit("b")).is_allowed());
    drop(held);
    assert!(limiter.hold(hit("b")).is_allowed());
}

/// Who asks for a lease that is held has not got it: it is not theirs to release.
#[test]
fn a_name_that_is_held_stays_held_when_another_lets_go() {
    let limiter = places(2);
    let job = Hit::from("a").lease("job");
    let first = limiter.hold(&job);
    let again = limiter.hold(&job);
    assert!(first.is_allowed() && again.is_allowed());
    drop(again);
    assert!(limiter.renew(&job));
    drop(limiter.hold(job.clone().cost(0)));
    assert!(limiter.renew(&job));
    drop(first);
    assert!(!limiter.renew(&job));
}

/// What was given when there was no room is found, and one name is two leases under two keys.
#[test]
fn a_lease_that_keys_share_is_released() {
    let builder = Limiter::builder().policy(Policy::concurrency(POLICY, 2, MINUTE)).max_keys(1);
    let limiter = builder.clock(ManualClock::default()).build().unwrap();
    let held = limiter.hold("in the way");
    let jobs = ["a", "b"].map(|key| Hit::from(key).lease("job"));
    assert!(jobs.iter().all(|job| limiter.check(job).is_allowed()));
    assert!(!limiter.check("c").is_allowed());
    drop(held);
    // There is room now.
    assert!(limiter.check("d").is_allowed());
    assert!(limiter.renew(&jobs[0]) && limiter.release(&jobs[0]) && limiter.release(&jobs[1]) && !limiter.release(&jobs[1]));
}

/// A table that is full gives no place twice.
#[test]
fn no_key_with_leases_is_evicted() {
    let builder = Limiter::builder().policy(Policy::concurrency(POLICY, 2, MINUTE)).max_keys(4);
    let limiter = builder.clock(ManualClock::default()).build().unwrap();
    let keys: Vec<String> = (0..4).map(|key| format!("key-{key}")).collect();
    let _held: Vec<_> = keys.iter().map(|key| limiter.hold(key)).collect();
    (0..100).for_each(|other| drop(limiter.check(&format!("other-{other}"))));
    for key in &keys {
        assert_eq!(limiter.remaining(key), Some(1), "{key}");
    }
}

#[test]
fn threads_never_hold_more_than_the_limit() {
    const THREADS: usize = 4;
    const LIMIT: u64 = 3;
    let limiter = Limiter::builder().policy(Policy::concurrency(POLICY, LIMIT, MINUTE)).build().unwrap();
    let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let barrier = Arc::new(Barrier::new(THREADS));
    let work = |_| {
        let (limiter, inside, most, barrier) = (limiter.clone(), Arc::clone(&inside), Arc::clone(&most), Arc::clone(&barrier));
        thread::spawn(move || {
            barrier.wait();
            let mut entered = 0;
            for _ in 0..5_000 {
                let held = limiter.hold("a");
                if held.is_allowed() {
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    entered += 1;
                    thread::yield_now();
                    inside.fetch_sub(1, SeqCst);
                }
            }
            entered
        })
    };
    let threads: Vec<_> = (0..THREADS).map(work).collect();
    let entered: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(entered >= LIMIT && most.load(SeqCst) <= LIMIT, "{entered} entered, {most:?} at once");
    assert_eq!(limiter.remaining("a"), Some(LIMIT));
}

#[test]
fn leases_are_shown_by_when_they_end() {
    let limiter = places(3);
    let _held = limiter.hold("a");
    let shown = limiter.inspect(POLICY, "a").unwrap();
    assert_eq!((shown.entries.len(), shown.entries[0].cost), (1, 1));
}
