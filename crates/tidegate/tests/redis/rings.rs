//! A window keeps its grains in a ring: long traces with few grains, so that it fills, goes round, shrinks by refunds and grows.

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use tidegate::{Algorithm, Limiter, ManualClock, OnStoreError, Policy, Quota, StoreError};
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
    let trace = (prop::sample::select(vec![1u32, 2, 4, 7, 13, 16, 17, 20, 40, 70]), prop_oneof![3..60u64, 100..300u64])
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
