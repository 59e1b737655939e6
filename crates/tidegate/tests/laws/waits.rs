//! What an answer promises about later: laws 1 (denial is free), 3 (retry is sound and tight), 4 (more than all there
//! is), 5 (remaining is honest) and 6 (expired equals absent). Each promise is tried on a twin that took the same steps.

use proptest::prelude::*;
use tidegate::{Algorithm, Quota};

use crate::{
    traces::{Case, Mix, case, cost, property, steps},
    world::{Answer, Step, World},
};

/// All that one quota can see, with a clock that steps back too.
const ANY: Mix = Mix { back: 1, ..Mix::FULL };
/// The same while the quota changes.
const CHANGING: Mix = Mix { configure: 2, back: 0, ..Mix::FULL };

/// A case, and the cost that is asked for after it.
fn asking(mix: Mix) -> impl Fn(Algorithm) -> BoxedStrategy<(Case, u64)> {
    move |algorithm| case(algorithm, mix).prop_flat_map(|case| (Just(case.clone()), cost(case.0))).boxed()
}

fn promised_wait_is_kept(((scene, steps), cost): (Case, u64)) -> Result<(), TestCaseError> {
    let mut world = World::after(scene, &steps);
    let answer = world.check(cost);
    let Some(retry) = answer.retry else { return Ok(()) };
    let mut early = World::after(scene, &steps);
    early.wait(retry - 1);
    prop_assert!(!early.check(cost).allowed, "{:?} but one microsecond less is enough", answer);
    world.wait(retry);
    let after = world.check(cost);
    prop_assert!(after.allowed, "{:?} and having waited {:?}", answer, after);
    Ok(())
}

#[test]
fn waiting_exactly_retry_after_succeeds_and_a_microsecond_less_fails() {
    property(300, asking(ANY), promised_wait_is_kept);
}

#[test]
fn waits_are_exact_after_reconfiguring() {
    property(300, asking(CHANGING), promised_wait_is_kept);
}

fn remaining_is_what_is_admitted((scene, steps): Case) -> Result<(), TestCaseError> {
    let mut world = World::after(scene, &steps);
    let Answer { remaining, limit, .. } = world.peek(0);
    prop_assert!(remaining <= limit);
    prop_assert!(!world.check(remaining + 1).allowed, "one more than {}", remaining);
    let all = world.check(remaining);
    prop_assert!(all.allowed && all.charged == remaining && all.remaining == 0, "{} and then {:?}", remaining, all);
    Ok(())
}

#[test]
fn remaining_is_admitted_and_one_more_is_not() {
    property(120, |algorithm| case(algorithm, ANY), remaining_is_what_is_admitted);
    property(120, |algorithm| case(algorithm, CHANGING), remaining_is_what_is_admitted);
}

/// A case, and what comes when all of it has expired.
fn continued(mix: Mix) -> impl Fn(Algorithm) -> BoxedStrategy<(Case, Vec<Step>)> {
    let later = Mix { peek: 2, charge: 1, ..Mix::PLAIN };
    move |algorithm| case(algorithm, mix).prop_flat_map(move |case| (Just(case.clone()), steps(case.0, later))).boxed()
}

fn expired_is_absent(((scene, before), later): (Case, Vec<Step>)) -> Result<(), TestCaseError> {
    let mut world = World::after(scene, &before);
    let Answer { reset, used, .. } = world.peek(0);
    prop_assert_eq!(reset == 0, used == 0, "all is left exactly when there is nothing to forget");
    if reset > 0 {
        world.wait(reset - 1);
        let last = world.peek(0);
        prop_assert!(last.used > 0 && last.reset == 1, "of {} one microsecond is left: {:?}", reset, last);
        world.wait(1);
    }
    let mut fresh = world.fresh();
    prop_assert_eq!(world.peek(0), fresh.peek(0));
    prop_assert_eq!(world.run(&later), fresh.run(&later));
    Ok(())
}

#[test]
fn after_reset_after_a_key_is_as_if_never_seen() {
    // Without steps back: what is so far ahead that it counts as absent counts again when the clock comes near.
    property(200, continued(Mix::FULL), expired_is_absent);
}

#[test]
fn expired_is_absent_after_reconfiguring() {
    property(200, continued(CHANGING), expired_is_absent);
}

/// Whether a step left something behind.
fn counted(step: &Step, answer: &Option<Answer>) -> bool {
    match step {
        Step::Peek(_) => false,
        Step::Check(_) => answer.is_some_and(|answer| answer.charged > 0),
        _ => true,
    }
}

/// The steps, each followed by a peek and by requests that are denied.
fn disturbed(steps: &[Step]) -> Vec<Step> {
    let more = Quota::MAX;
    steps.iter().flat_map(|step| [*step, Step::Peek(1), Step::Check(more), Step::Peek(more), Step::Check(0)]).collect()
}

fn denial_is_free((scene, steps): Case) -> Result<(), TestCaseError> {
    let answers = World::after(scene, &[]).run(&steps);
    let counting = steps.iter().copied().zip(answers.iter().copied()).filter(|(step, answer)| counted(step, answer));
    let (counting, expected): (Vec<_>, Vec<_>) = counting.unzip();
    prop_assert_eq!(World::new(scene).run(&counting), expected, "without what was denied");
    let amid = World::new(scene).run(&disturbed(&steps));
    prop_assert_eq!(amid.into_iter().step_by(5).collect::<Vec<_>>(), answers, "amid peeks and denials");
    Ok(())
}

#[test]
fn denials_and_peeks_change_nothing() {
    property(100, |algorithm| case(algorithm, ANY), denial_is_free);
    property(100, |algorithm| case(algorithm, CHANGING), denial_is_free);
}

#[test]
fn cost_above_capacity_is_never_and_at_once() {
    property(
        100,
        |algorithm| case(algorithm, CHANGING),
        |(scene, steps)| {
            let mut world = World::after(scene, &steps);
            let before = world.peek(0);
            for excess in [1, 2, 1 << 40] {
                let answer = world.check(world.scene().capacity() + excess);
                prop_assert_eq!(answer, Answer { allowed: false, hopeless: true, ..before });
            }
            Ok(())
        },
    );
}

#[test]
fn cost_0_is_a_peek() {
    property(
        100,
        |algorithm| case(algorithm, ANY),
        |(scene, steps)| {
            let mut world = World::after(scene, &steps);
            let peek = world.peek(0);
            prop_assert!(peek.allowed && peek.charged == 0 && peek.retry.is_none());
            prop_assert_eq!(world.check(0), peek);
            prop_assert_eq!(world.take(Step::Charge(0)), Some(peek));
            prop_assert_eq!(world.peek(0), peek);
            Ok(())
        },
    );
}
