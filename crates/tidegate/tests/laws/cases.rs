//! Cases that broke other limiters, each by its name.

use std::time::Duration;

use tidegate::{Algorithm, ConfigError, Hit, Limiter, Policy, Quota, QuotaError};

use crate::{
    traces::for_every_algorithm,
    world::{Answer, KEY, START, Scene, Step, World, has_burst, limiter_at, micros},
};

fn world(algorithm: Algorithm, quota: Quota) -> World {
    World::new(Scene::new(algorithm, quota))
}

/// Takes all there is, and then the wait it was told for one and for all of it, to the microsecond.
fn drains_and_comes_back(scene: Scene) {
    let mut world = World::new(scene);
    let capacity = scene.capacity();
    assert!(world.check(capacity).allowed);
    for cost in [1, capacity] {
        let Answer { allowed, retry, remaining, .. } = world.check(cost);
        assert!(!allowed && remaining == 0);
        world.wait(retry.unwrap() - 1);
        assert!(!world.check(cost).allowed, "{cost} a microsecond too soon");
        world.wait(1);
        assert!(world.check(cost).allowed, "{cost} after {retry:?}");
        world.wait(world.fresh().check(capacity).reset);
        world.wait(2 * scene.window());
        assert!(world.check(capacity).allowed, "after all has come back");
    }
}

#[test]
fn ten_thousand_requests_in_one_microsecond() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(6_000));
        let admitted = (0..10_000).filter(|_| world.check(1).allowed).count();
        assert_eq!(admitted, 6_000);
    });
}

#[test]
fn limit_1() {
    for_every_algorithm(|algorithm| {
        for window in [Quota::MIN_WINDOW, Duration::from_secs(1), Quota::MAX_WINDOW] {
            drains_and_comes_back(Scene::new(algorithm, Quota::new(1, window).unwrap()));
        }
        if has_burst(algorithm) {
            drains_and_comes_back(Scene::new(algorithm, Quota::per_second(10).burst(1)));
        }
    });
}

#[test]
fn limit_of_2_to_the_53_minus_1() {
    for_every_algorithm(|algorithm| {
        let scene = Scene::new(algorithm, Quota::per_day(Quota::MAX));
        match Limiter::builder().policy(scene.policy()).build() {
            Ok(_) => drains_and_comes_back(scene),
            Err(error) => {
                assert_eq!(algorithm, Algorithm::Gcra);
                assert!(matches!(error, ConfigError::Quota { error: QuotaError::Interval(_), .. }), "{error}");
            }
        }
    });
}

#[test]
fn a_million_a_day() {
    for_every_algorithm(|algorithm| drains_and_comes_back(Scene::new(algorithm, Quota::per_day(1_000_000))));
}

#[test]
fn windows_of_a_millisecond_and_of_a_leap_year() {
    for_every_algorithm(|algorithm| {
        for window in [Quota::MIN_WINDOW, Quota::MAX_WINDOW] {
            for limit in [2, 7, 10] {
                drains_and_comes_back(Scene::new(algorithm, Quota::new(limit, window).unwrap()));
            }
        }
    });
}

#[test]
fn ten_thousand_entries_that_expire_at_once() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(10_000));
        for _ in 0..10_000 {
            assert!(world.check(1).allowed);
        }
        let reset = world.check(1).reset;
        world.wait(reset);
        let answer = world.check(10_000);
        assert!(answer.allowed && answer.remaining == 0, "{answer:?}");
    });
}

#[test]
fn cost_of_ten_thousand() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(25_000));
        assert!(world.check(10_000).allowed && world.check(10_000).allowed);
        assert!(!world.check(10_000).allowed);
        assert_eq!(world.check(5_000).remaining, 0);
    });
}

#[test]
fn any_cost_can_be_charged() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(10));
        for cost in [u64::MAX, Quota::MAX, Quota::MAX + 1, u64::MAX, 1] {
            let answer = world.take(Step::Charge(cost)).unwrap();
            assert!(answer.used > 10 && answer.remaining == 0, "{cost}: {answer:?}");
            assert!(!world.check(1).allowed && world.check(u64::MAX).hopeless);
        }
        world.take(Step::Settle(0, u64::MAX));
        world.take(Step::Settle(1, 0));
        assert!(world.peek(0).remaining <= 10);
        assert_eq!(world.take(Step::Reset).unwrap().remaining, 10);
    });
}

#[test]
fn denied_cost_10_does_not_block_a_later_cost_1() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(10));
        assert!(world.check(4).allowed);
        for _ in 0..100 {
            assert!(!world.check(10).allowed);
        }
        assert!((0..6).all(|_| world.check(1).allowed));
        assert!(!world.check(1).allowed);
    });
}

#[test]
fn limit_changed_on_a_live_key() {
    for_every_algorithm(|algorithm| {
        let mut world = world(algorithm, Quota::per_minute(10));
        assert!(world.check(8).allowed);
        for (limit, remaining) in [(20, 12), (9, 1), (8, 0), (10, 2)] {
            world.limiter.set_quota(crate::world::POLICY, Quota::per_minute(limit)).unwrap();
            assert_eq!(world.peek(0).remaining, remaining, "limit {limit}");
        }
        assert!(!world.check(3).allowed && world.check(2).allowed);
    });
}

#[test]
fn clones_share_one_limiter() {
    for_every_algorithm(|algorithm| {
        let limiter = world(algorithm, Quota::per_minute(10)).limiter;
        let clones: Vec<Limiter> = (0..30).map(|_| limiter.clone()).collect();
        assert_eq!(clones.iter().filter(|clone| clone.check(KEY).is_allowed()).count(), 10);
        clones[0].set_quota(crate::world::POLICY, Quota::per_minute(11)).unwrap();
        assert_eq!(limiter.remaining(KEY), Some(1));
    });
}

#[test]
fn first_request_then_long_idle_then_a_burst() {
    for_every_algorithm(|algorithm| {
        for idle in [1, 59, 60, 61, 3_600, 86_400, 400 * 86_400] {
            let mut world = world(algorithm, Quota::per_minute(10));
            assert!(world.check(1).allowed);
            world.wait(idle * 1_000_000);
            let admitted = (0..40).filter(|_| world.check(1).allowed).count();
            assert!(admitted <= 10 && (admitted == 10 || idle <= 120), "{admitted} after {idle} s");
        }
    });
}

#[test]
fn address_at_its_limit_does_not_drain_the_users_quota() {
    for_every_algorithm(|algorithm| {
        let policy = |name: &str, limit| Policy::new(name, Quota::per_hour(limit)).algorithm(algorithm).key([name]);
        for policies in [[policy("user", 100), policy("ip", 3)], [policy("ip", 3), policy("user", 100)]] {
            let limiter = limiter_at(START, policies).0;
            let hit = Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7");
            let admitted = (0..500).filter(|_| limiter.check(&hit).is_allowed()).count();
            assert_eq!((admitted, limiter.remaining(Hit::new().attribute("user", "42"))), (3, Some(97)));
        }
    });
}

#[test]
fn map_that_grows_past_a_fill_level_loses_nothing() {
    for_every_algorithm(|algorithm| {
        let limiter = world(algorithm, Quota::per_hour(2)).limiter;
        for expected in [Some(1), Some(0)] {
            for key in 0..10_000u32 {
                assert_eq!(limiter.check(&key.to_le_bytes()[..]).remaining(), expected, "{key}");
            }
        }
        assert_eq!(limiter.usage()[0].keys, 10_000);
    });
}

#[test]
fn greedy_traffic_reaches_just_below_twice_the_limit_of_a_counter() {
    let scene = Scene { start: START - START % 60_000_000, ..Scene::new(Algorithm::SlidingCounter, Quota::per_minute(100)) };
    let window = micros(scene.quota.window());
    let mut world = World::new(scene);
    world.wait(window - 1);
    assert!(world.check(100).allowed);
    world.wait(window - 1);
    assert!(world.check(99).allowed && !world.check(1).allowed, "199 within one window, and no more");
}
