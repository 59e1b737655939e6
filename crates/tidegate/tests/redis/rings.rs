//! A window keeps its grains in a ring: long traces with few grains, so that it fills, goes round, shrinks by refunds and is laid out
//! anew.

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use tidegate::{OnStoreError, Policy, Quota};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::twins::{Step, Twins};

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
    let trace = (prop::sample::select(vec![1u32, 2, 3, 4, 5, 6, 7, 9, 13]), 3..60u64).prop_flat_map(|(grains, limit)| {
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
