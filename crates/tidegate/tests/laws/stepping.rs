//! Law 7: a clock that steps hurts little. That answers are exact while it steps is compared with the model elsewhere;
//! here are the promises to those who are limited and to those who limit.

use proptest::prelude::*;
use tidegate::{Algorithm, Limiter, ManualClock, Policy, Quota};

use crate::{
    traces::{Case, Mix, case, for_every_algorithm, property, wait},
    world::{Answer, START, Step, World},
};

/// A case at the end of which all capacity is taken, and a step of the clock.
fn filled(algorithm: Algorithm) -> impl Strategy<Value = (Case, u64)> {
    let fill = |world: &mut World| Step::Check(world.peek(0).remaining);
    case(algorithm, Mix { charge: 1, refund: 1, ..Mix::PLAIN }).prop_flat_map(move |(scene, mut steps)| {
        steps.push(fill(&mut World::after(scene, &steps)));
        (Just((scene, steps)), wait(scene))
    })
}

/// Takes all that there is, and says how much it was.
fn drain(world: &mut World) -> u64 {
    let remaining = world.peek(0).remaining;
    assert!(world.check(remaining).allowed && !world.check(1).allowed);
    remaining
}

#[test]
fn small_step_back_admits_nothing_extra() {
    property(120, filled, |((scene, steps), back)| {
        let mut world = World::after(scene, &steps);
        let before = world.peek(1);
        let back = back.min(scene.window()).min(world.now());
        world.take(Step::Back(back));
        let Answer { allowed, remaining, retry, reset, .. } = world.check(1);
        prop_assert!(!allowed && remaining == 0);
        // The waits are told from the real now, to the same moment.
        prop_assert_eq!(retry, before.retry.map(|retry| retry + back));
        prop_assert_eq!(reset, before.reset + back);
        Ok(())
    });
}

#[test]
fn large_step_back_locks_nobody_out_and_gives_one_capacity() {
    property(120, filled, |((scene, steps), more)| {
        let mut world = World::after(scene, &steps);
        // Before all that happened, by more than any state reaches ahead: gcra remembers a debt by a power of two.
        let deepest = World::new(scene).run(&steps).into_iter().flatten().map(|answer| answer.reset).max().unwrap_or(0);
        let reach = world.now() - scene.start + 2 * deepest + 3 * scene.window();
        // The clock must have so far to fall; three times in four it has.
        if world.now() <= reach + more {
            return Ok(());
        }
        world.take(Step::Back(reach + more + 1));
        prop_assert_eq!(drain(&mut world), scene.capacity());
        Ok(())
    });
}

#[test]
fn step_forward_gives_at_most_one_capacity() {
    property(120, filled, |((scene, steps), forward)| {
        let mut world = World::after(scene, &steps);
        world.wait(forward);
        prop_assert!(drain(&mut world) <= scene.capacity());
        Ok(())
    });
}

#[test]
fn clock_that_swings_admits_no_more_than_one_that_stands() {
    property(100, filled, |((scene, steps), swing)| {
        let mut world = World::after(scene, &steps);
        let swing = swing.min(scene.window()).min(world.now());
        for _ in 0..20 {
            world.take(Step::Back(swing));
            prop_assert!(!world.check(1).allowed, "back");
            world.wait(swing);
            prop_assert!(!world.check(1).allowed, "and forth");
        }
        Ok(())
    });
}

/// What has expired is nothing (law 6), and may be gone for good when the clock that it expired by is set right.
#[test]
fn what_was_dropped_by_a_clock_that_was_ahead_gives_one_capacity() {
    for_every_algorithm(|algorithm| {
        let clock = ManualClock::new(START);
        let policy = Policy::new("p", Quota::per_minute(10)).algorithm(algorithm);
        // So few that all are in one shard.
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).max_keys(64).build().unwrap();
        assert!(limiter.check_n("a", 10).is_allowed());
        let ahead = limiter.peek("a").outcomes().next().unwrap().reset_after();
        clock.advance(ahead);
        (0..32).for_each(|other| assert!(limiter.check(&other.to_string()).is_allowed()));
        assert_eq!(limiter.usage()[0].keys, 32, "{algorithm}");
        clock.step_back(ahead);
        assert!(limiter.check_n("a", 10).is_allowed());
        assert!(!limiter.check("a").is_allowed());
    });
}
