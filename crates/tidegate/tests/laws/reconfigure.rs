//! Law 12: reconfiguring keeps history. What was used stays used, and the new quota rules from the moment it is set,
//! not from the next hit that is admitted.

use std::time::Duration;

use proptest::{option, prelude::*};
use tidegate::{Algorithm, Quota};

use crate::{
    traces::{Mix, case, change, for_every_algorithm, property},
    world::{Answer, Scene, Step, World, has_burst},
};

const TEN_A_DAY: Quota = Quota::per_day(10);
const TEN_A_SECOND: Quota = Quota::per_second(10);

/// Whether each hit is kept with its own time, so that another window judges it anew.
fn keeps_times(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindow)
}

/// A world whose ten are all used, after its quota was replaced.
fn drained_then(algorithm: Algorithm, before: Quota, after: Quota) -> World {
    World::after(Scene::new(algorithm, before), &[Step::Check(10), Step::Configure(after)])
}

#[test]
fn what_was_used_stays_used() {
    let strategy = |algorithm| case(algorithm, Mix::PLAIN).prop_flat_map(|case| (Just(case.clone()), change(case.0)));
    property(200, strategy, |((scene, steps), new)| {
        let mut world = World::after(scene, &steps);
        let before = world.peek(0);
        world.take(Step::Configure(new));
        let after = world.peek(0);
        prop_assert_eq!(after.limit, world.scene().capacity());
        prop_assert_eq!(after.remaining, after.limit.saturating_sub(after.used));
        if scene.quota.window() != new.window() && keeps_times(scene.algorithm) {
            prop_assert!(after.used <= before.used || new.window() > scene.quota.window());
        } else if before.used <= after.limit {
            prop_assert_eq!(after.used, before.used);
        } else {
            prop_assert!(after.used >= after.limit);
        }
        Ok(())
    });
}

#[test]
fn raised_limit_gives_more_at_once() {
    for_every_algorithm(|algorithm| {
        let mut world = drained_then(algorithm, TEN_A_DAY, Quota::per_day(15));
        assert!(!world.check(6).allowed && world.check(5).allowed && !world.check(1).allowed);
    });
}

#[test]
fn lowered_limit_denies_until_enough_has_drained() {
    for_every_algorithm(|algorithm| {
        let mut world = drained_then(algorithm, TEN_A_DAY, Quota::per_day(4));
        let Answer { allowed, used, remaining, retry, .. } = world.check(1);
        assert_eq!((allowed, used, remaining), (false, 10, 0));
        world.wait(retry.unwrap() - 1);
        assert!(!world.check(1).allowed, "one microsecond before");
        world.wait(1);
        assert!(world.check(1).allowed);
    });
}

#[test]
fn faster_quota_rules_a_denied_key_from_when_it_is_set() {
    for_every_algorithm(|algorithm| {
        let mut world = drained_then(algorithm, TEN_A_DAY, TEN_A_SECOND);
        world.wait(2_000_000);
        let answer = world.check(10);
        assert!(answer.allowed, "two seconds at ten a second: {answer:?}");
    });
}

#[test]
fn slower_quota_rules_a_denied_key_from_when_it_is_set() {
    for_every_algorithm(|algorithm| {
        let mut world = drained_then(algorithm, TEN_A_SECOND, TEN_A_DAY);
        let told = world.check(10);
        world.wait(2_000_000);
        let later = world.peek(10);
        assert_eq!(later.retry, told.retry.map(|retry| retry - 2_000_000), "told {told:?}, two seconds later {later:?}");
    });
}

#[test]
fn quota_in_between_counts_though_nobody_came_under_it() {
    for_every_algorithm(|algorithm| {
        let mut world = drained_then(algorithm, TEN_A_SECOND, TEN_A_DAY);
        world.wait(3_000_000);
        let before = world.peek(0);
        assert_eq!(before.used, 10, "ten a day hold what was used three seconds ago");
        world.take(Step::Configure(TEN_A_SECOND));
        let expected = if keeps_times(algorithm) { 0 } else { before.used };
        assert_eq!(world.peek(0).used, expected, "of {before:?}");
    });
}

#[test]
fn what_has_expired_does_not_come_back_in_a_longer_window() {
    for_every_algorithm(|algorithm| {
        let scene = Scene::new(algorithm, TEN_A_SECOND);
        let mut world = World::after(scene, &[Step::Check(10), Step::Wait(3_000_000)]);
        assert_eq!(world.peek(0).reset, 0, "as if never seen");
        world.take(Step::Configure(TEN_A_DAY));
        assert_eq!(world.peek(0), world.fresh().peek(0));
    });
}

#[test]
fn another_algorithm_starts_afresh() {
    for_every_algorithm(|algorithm| {
        for other in Algorithm::RATES.iter().filter(|other| **other != algorithm) {
            let world = World::after(Scene::new(algorithm, TEN_A_DAY), &[Step::Check(10)]);
            world.limiter.configure([Scene::new(*other, TEN_A_DAY).policy()]).unwrap();
            assert_eq!(world.limiter.remaining(crate::world::KEY), Some(10), "to {other}");
        }
    });
}

#[test]
fn another_key_attribute_starts_afresh() {
    for_every_algorithm(|algorithm| {
        let scene = Scene::new(algorithm, TEN_A_DAY);
        let world = World::after(scene, &[Step::Check(10)]);
        world.limiter.configure([scene.policy().key(["user"])]).unwrap();
        let hit = tidegate::Hit::new().attribute("user", crate::world::KEY);
        assert_eq!(world.limiter.remaining(hit), Some(10));
    });
}

#[test]
fn refused_configuration_changes_nothing() {
    for_every_algorithm(|algorithm| {
        let scene = Scene::new(algorithm, TEN_A_DAY);
        let mut world = World::after(scene, &[Step::Check(4)]);
        let before = world.peek(0);
        assert!(world.limiter.configure([scene.policy(), scene.policy()]).is_err());
        assert!(world.limiter.configure([scene.policy_named("not a name")]).is_err());
        assert!(world.limiter.set_quota("unknown", TEN_A_SECOND).is_err());
        assert_eq!(world.peek(0), before);
        assert_eq!(world.limiter.policies(), [scene.policy()]);
    });
}

/// A quota that has room for all that a ping-pong takes.
fn roomy(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    (20..=60u64, 6_000..=100_000u64, option::of(20..=60u64)).prop_map(move |(limit, window, burst)| {
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap();
        burst.filter(|_| has_burst(algorithm)).map_or(quota, |burst| quota.burst(burst))
    })
}

#[test]
fn ping_pong_between_quotas_gives_nothing_away() {
    let strategy = |algorithm| (Just(algorithm), roomy(algorithm), roomy(algorithm), 1..=8u64, 0..=5_999u64);
    property(200, strategy, |(algorithm, one, other, cost, wait)| {
        let mut world = World::after(Scene::new(algorithm, one), &[Step::Check(cost), Step::Wait(wait)]);
        let mut used = world.peek(0).used;
        for turn in 0..20 {
            world.take(Step::Configure([other, one][turn % 2]));
            prop_assert_eq!(world.peek(0).used, used, "turn {}", turn);
            // Half of the turns leave the conversion to a later one.
            if turn % 4 == 1 {
                used = world.check(1).used.min(used + 1);
            }
        }
        prop_assert_eq!(world.peek(0).used, used);
        Ok(())
    });
}
