//! A window keeps its grains in a ring: long traces with few grains, so that it fills, goes round, shrinks by refunds and grows.

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use tidegate::{Algorithm, Clock as _, Limiter, ManualClock, OnStoreError, Policy, Quota, StoreError};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::{
    limiters::{connected, keys, patient},
    twins::{Step, Twins},
};

const WINDOW: u64 = 1_000_000;

fn step(grain: u64) -> impl Strategy<Value = Step> {
    let quota = |(limit, window)| Quota::new(limit, Duration::from_micros(window)).unwrap();
    prop_oneof![
        80 => (1..4u64).prop_map(Step::Check),
        80 => (0..2 * grain).prop_map(Step::Advance),
        20 => any::<usize>().prop_map(|which| Step::Settle(which, None)),
        4 => (1..9u64).prop_map(Step::Charge),
        4 => (0..WINDOW).prop_map(Step::Advance),
        1 => (3..60u64, WINDOW / 3..3 * WINDOW).prop_map(move |of| Step::Reconfigure(quota(of), false)),
    ]
}

#[test]
fn windows_agree_however_often_their_rings_go_round() {
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let trace =
        (prop::sample::select(vec![1u32, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 20, 40, 70]), prop_oneof![3..60u64, 100..300u64])
            .prop_flat_map(|(grains, limit)| {
                let steps = prop::collection::vec(step(WINDOW / u64::from(grains)), 100..300);
                (Just(grains), Just(limit), steps)
            });
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    config.cases = config.cases.div_ceil(4);
    let outcome = TestRunner::new(config).run(&trace, |(grains, limit, steps)| {
        let quota = Quota::new(limit, Duration::from_micros(WINDOW)).unwrap();
        let policy = Policy::new("policy-0", quota).resolution(grains).on_store_error(OnStoreError::Error);
        let mut twins = Twins::new(&server, &runtime, vec![policy])?;
        steps.iter().try_for_each(|step| twins.take(step))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// What comes before or after a refund moves, a few grains at a time: seen by letting them go one by one.
#[test]
fn refunds_reach_into_long_histories() {
    const HITS: u64 = 150;
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let quota = Quota::new(3 * HITS, Duration::from_micros(WINDOW)).unwrap();
    let policy = Policy::new("policy-0", quota).algorithm(Algorithm::SlidingLog).on_store_error(OnStoreError::Error);
    // So that the ring has gone round or not.
    for gone in [0, 100] {
        let mut twins = Twins::new(&server, &runtime, vec![policy.clone()]).unwrap();
        let hit = [Step::Check(3), Step::Advance(WINDOW / HITS)];
        let hits = hit.iter().cycle().take(2 * (HITS + gone) as usize).cloned();
        let refunds = [70, 71, 30, 100, 140].map(|which| Step::Settle(gone as usize + which, None));
        let parts = [60, 90].map(|which| Step::Settle(gone as usize + which, Some(1)));
        let passing = (0..=HITS).map(|_| Step::Advance(WINDOW / HITS));
        for (index, step) in hits.chain(refunds).chain(parts).chain(passing).enumerate() {
            twins.take(&step).unwrap_or_else(|problem| panic!("{gone}, step {index}: {problem}"));
        }
    }
}

/// A string that grows is given twice what it needs then, so it matters when a ring grows, and from where it goes on.
#[tokio::test]
async fn a_ring_is_given_no_more_room_for_having_gone_round() {
    let (server, clock) = (Server::start(), ManualClock::default());
    let policy = Policy::new("window", Quota::per_minute(1 << 20)).on_store_error(OnStoreError::Error);
    let builder = Limiter::builder().policy(policy).clock(clock.clone()).store(patient(&server.url()));
    let limiter = connected(builder).await;
    let mut connection = server.connection();
    for slow in [8, 15, 23, 27, 35] {
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        for (hits, apart) in [(slow, Duration::from_secs(5)), (300, Duration::from_millis(600))] {
            for _ in 0..hits {
                assert!(limiter.check("key").await.unwrap().is_allowed());
                clock.advance(apart);
            }
        }
        let key = &keys(&mut connection)[0];
        let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(key).query(&mut connection).unwrap();
        assert!(bytes <= 2_000, "{bytes} bytes after {slow} hits that were slow");
    }
}

/// What has gone round to the beginning of a ring moves behind its end when it grows, some thousands of grains at a time.
#[tokio::test]
async fn a_large_ring_that_has_gone_round_grows() {
    let (server, clock) = (Server::start(), ManualClock::default());
    let policy = Policy::new("log", Quota::per_day(1 << 20)).algorithm(Algorithm::SlidingLog).on_store_error(OnStoreError::Error);
    let day = policy.quota().window().as_micros() as u64;
    let builder = Limiter::builder().policy(policy).clock(clock.clone()).store(patient(&server.url()));
    let limiter = connected(builder).await;
    let mut times = Vec::new();
    let mut hit = async |count, apart| {
        for _ in 0..count {
            clock.advance(Duration::from_micros(apart));
            assert!(limiter.check("key").await.unwrap().is_allowed());
            times.push(clock.epoch_micros());
        }
    };
    // Of 8192 hits 5000 go, and what comes after the others is more than the ring has room for.
    hit(8192, 10).await;
    clock.advance(Duration::from_micros(day - 31_920));
    hit(6000, 1).await;
    let now = clock.epoch_micros();
    for index in (0..times.len()).filter(|index| times[*index] + day > now) {
        clock.set(times[index] + day);
        let used = limiter.peek("key").await.unwrap().outcomes().next().unwrap().used();
        assert_eq!(used as usize, times.len() - index - 1);
    }
}

/// A ring that cannot grow any more says so to whoever would need it to, and what it holds still stands.
#[tokio::test]
async fn a_ring_has_an_end() {
    const MOST: u64 = 1 << 25;
    let (server, clock) = (Server::start(), ManualClock::default());
    let policy =
        Policy::new("log", Quota::per_day(2 * MOST)).algorithm(Algorithm::SlidingLog).on_store_error(OnStoreError::Error);
    let builder = Limiter::builder().policy(policy).clock(clock.clone()).store(patient(&server.url()));
    let limiter = connected(builder).await;
    assert!(limiter.check("key").await.unwrap().is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check("key").await.unwrap().is_allowed());
    // The number of older grains, and of the slots.
    let full = MOST.to_be_bytes();
    let mut connection = server.connection();
    let key = &keys(&mut connection)[0];
    redis::cmd("SETRANGE").arg(key).arg(70).arg(&full[1..]).exec(&mut connection).unwrap();
    redis::cmd("SETRANGE").arg(key).arg(98).arg(&full[1..]).exec(&mut connection).unwrap();
    let value = || redis::cmd("GET").arg(key).query::<Vec<u8>>(&mut server.connection()).unwrap();
    let before = value();
    assert!(limiter.check("key").await.unwrap().is_allowed(), "the newest grain has room");
    assert_ne!(value(), before);
    let before = value();
    clock.advance(Duration::from_micros(1));
    assert!(matches!(limiter.check("key").await, Err(StoreError::Refused(_))));
    assert_eq!(value(), before);
}
