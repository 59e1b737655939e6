//! Scenes and traces to try, and the runner that tries a property on every algorithm.

use std::{
    env,
    fmt::Debug,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    strategy::Union,
    test_runner::{Config, RngSeed, TestCaseResult, TestRunner},
};
use tidegate::{Algorithm, Quota};

use crate::world::{START, Scene, Step, has_burst, micros};

/// Runs `test` for each algorithm of the registry and names all that fail.
pub(crate) fn for_every_algorithm(test: impl Fn(Algorithm)) {
    let fails = |algorithm: &&Algorithm| {
        let fails = catch_unwind(AssertUnwindSafe(|| test(**algorithm))).is_err();
        if fails {
            eprintln!("that was {algorithm}\n");
        }
        fails
    };
    let failed: Vec<&Algorithm> = Algorithm::RATES.iter().filter(fails).collect();
    assert!(failed.is_empty(), "fails for {failed:?}, for each as told above");
}

/// Tries `test` on `cases` values of each algorithm's strategy, or as many as PROPTEST_CASES says.
pub(crate) fn property<S: Strategy>(cases: u32, strategy: impl Fn(Algorithm) -> S, test: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let from_outside = |name: &str| env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = from_outside("PROPTEST_CASES").map_or(cases, |cases| u32::try_from(cases).unwrap_or(u32::MAX));
    // One that is printed, so that what failed can be run again.
    let seed = from_outside("PROPTEST_RNG_SEED").unwrap_or_else(|| RandomState::new().hash_one(cases));
    for_every_algorithm(|algorithm| {
        let config = Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
        if let Err(failure) = TestRunner::new(config).run(&strategy(algorithm), &test) {
            panic!("{failure}\nPROPTEST_RNG_SEED={seed} runs it again");
        }
    });
}

/// How often each kind of step comes in a trace; a check comes 8 times.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mix {
    pub(crate) peek: u32,
    pub(crate) charge: u32,
    pub(crate) refund: u32,
    pub(crate) reset: u32,
    pub(crate) configure: u32,
    pub(crate) back: u32,
}

impl Mix {
    /// Hits and time.
    pub(crate) const PLAIN: Self = Self { peek: 0, charge: 0, refund: 0, reset: 0, configure: 0, back: 0 };
    /// All that can happen to a key under one quota.
    pub(crate) const FULL: Self = Self { peek: 2, charge: 1, refund: 3, reset: 1, ..Self::PLAIN };
}

/// A scene and what happens in it.
pub(crate) type Case = (Scene, Vec<Step>);

pub(crate) fn case(algorithm: Algorithm, mix: Mix) -> impl Strategy<Value = Case> {
    let quota = if mix.configure > 0 { modest_quota(algorithm).boxed() } else { quota(algorithm).boxed() };
    scene_of(algorithm, quota).prop_flat_map(move |scene| (Just(scene), steps(scene, mix)))
}

pub(crate) fn scene(algorithm: Algorithm) -> impl Strategy<Value = Scene> {
    scene_of(algorithm, quota(algorithm))
}

fn scene_of(algorithm: Algorithm, quota: impl Strategy<Value = Quota>) -> impl Strategy<Value = Scene> {
    quota.prop_flat_map(move |quota| {
        let window = Scene::new(algorithm, quota).window();
        let start = prop_oneof![5 => START..START + 3 * window, 1 => window..3 * window, 1 => 0..window];
        let grains = prop_oneof![1..=4u32, 5..=30u32, Just(100)];
        (start, grains).prop_map(move |(start, grains)| Scene { algorithm, quota, grains, start })
    })
}

const DAY: Duration = Duration::from_hours(24);

pub(crate) fn quota(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![6 => 1..=9u64, 2 => 10..=60u64, 1 => 61..=100_000u64];
    let window = prop_oneof![
        4 => 1_000..=9_000u64,
        1 => Just(1_000),
        1 => Just(1_000_000),
        2 => 1_000_000..=90_000_000u64,
        1 => Just(micros(DAY)),
        1 => Just(micros(Quota::MAX_WINDOW)),
    ];
    let burst = option::weighted(0.6, 1..=20u64);
    (limit, window, burst).prop_filter_map("gcra keeps a rate to 1 %", move |(limit, window, burst)| {
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap();
        let burst = burst.filter(|_| has_burst(algorithm));
        fits(algorithm, quota).then(|| burst.map_or(quota, |burst| quota.burst(burst)))
    })
}

pub(crate) fn steps(scene: Scene, mix: Mix) -> impl Strategy<Value = Vec<Step>> {
    let which = 0..64usize;
    let weighted = [
        (6, wait(scene).prop_map(Step::Wait).boxed()),
        (8, cost(scene).prop_map(Step::Check).boxed()),
        (mix.peek, cost(scene).prop_map(Step::Peek).boxed()),
        (mix.charge, cost(scene).prop_map(Step::Charge).boxed()),
        (mix.charge, (0..=3 * scene.capacity()).prop_map(Step::Charge).boxed()),
        (mix.refund, which.clone().prop_map(Step::Refund).boxed()),
        (mix.refund, (which, cost(scene)).prop_map(|(which, actual)| Step::Settle(which, actual)).boxed()),
        (mix.reset, Just(Step::Reset).boxed()),
        (mix.configure, change(scene).prop_map(Step::Configure).boxed()),
        (mix.back, wait(scene).prop_map(move |back| Step::Back(back.min(scene.start / 64))).boxed()),
    ];
    vec(Union::new_weighted(weighted.into_iter().filter(|(weight, _)| *weight > 0).collect()), 1..40)
}

/// Waits around everything that can matter: nothing, one microsecond, a grain, an interval, a window.
pub(crate) fn wait(scene: Scene) -> impl Strategy<Value = u64> {
    let (window, grain) = (scene.window(), scene.grain());
    let interval = window.div_ceil(scene.quota.limit());
    prop_oneof![
        2 => 0..=2u64,
        3 => 0..=window / 8,
        2 => 0..=window,
        2 => near(window),
        1 => near(grain),
        1 => near(interval),
        1 => near(window - scene.start % window),
        1 => 0..=3 * window,
    ]
}

fn near(instant: u64) -> impl Strategy<Value = u64> {
    (0..=2u64).prop_map(move |nudge| (instant + nudge).saturating_sub(1))
}

pub(crate) fn cost(scene: Scene) -> impl Strategy<Value = u64> {
    let capacity = scene.capacity();
    prop_oneof![
        8 => Just(1),
        4 => 1..=4u64,
        2 => 1..=capacity,
        1 => Just(capacity),
        1 => Just(capacity + 1),
        1 => Just(0),
    ]
}

/// Another quota for a live key: another limit, another window, or both.
pub(crate) fn change(scene: Scene) -> impl Strategy<Value = Quota> {
    let old = scene.quota;
    prop_oneof![
        modest_quota(scene.algorithm),
        modest_quota(scene.algorithm).prop_filter_map("gcra keeps a rate to 1 %", move |new| {
            let mixed = Quota::new(new.limit(), old.window()).unwrap();
            let mixed = new.burst_size().map_or(mixed, |burst| mixed.burst(burst));
            fits(scene.algorithm, mixed).then_some(mixed)
        }),
    ]
}

/// Quotas between which no change makes a debt of a century, which is more than a limiter keeps.
fn modest_quota(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    quota(algorithm).prop_filter("limit and window are modest", |quota| quota.limit() <= 60 && quota.window() <= DAY)
}

/// Gcra takes only rates that whole microseconds keep to 1 %.
fn fits(algorithm: Algorithm, quota: Quota) -> bool {
    let window = micros(quota.window());
    algorithm != Algorithm::Gcra || window.div_ceil(quota.limit()) * quota.limit() * 100 <= window * 101
}
