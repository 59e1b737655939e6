//! Law 16: a refund needs a receipt, is used once, and never mints. The twin never saw the charge that is refunded:
//! whatever comes later, there is never more left than the twin has.

use proptest::prelude::*;
use tidegate::{Algorithm, Limiter, Quota, Receipt};

use crate::{
    traces::{Case, Mix, case, for_every_algorithm, property, wait},
    world::{KEY, Scene, Step, World},
};

/// A case, which of its charges is undone, and how long the twins are then watched.
fn undone(mix: Mix) -> impl Fn(Algorithm) -> BoxedStrategy<(Case, usize, [u64; 3])> {
    move |algorithm| {
        case(algorithm, mix)
            .prop_flat_map(|case| {
                let waits = || wait(case.0);
                (Just(case.clone()), 0..64usize, [waits(), waits(), waits()])
            })
            .boxed()
    }
}

/// The steps that changed something, and where among them the charges are. Nothing where a debt grew beyond a hundred years
/// and was cut: what is cut is forgiven, with the refund or without.
fn effective(scene: Scene, steps: &[Step]) -> Option<(Vec<Step>, Vec<usize>)> {
    let (mut kept, mut charges) = (Vec::new(), Vec::new());
    for (step, answer) in steps.iter().zip(World::new(scene).run(steps)) {
        match (step, answer) {
            (Step::Charge(cost), Some(answer)) if answer.charged < *cost => return None,
            (_, Some(answer)) if answer.charged == 0 => continue,
            (_, Some(_)) => charges.push(kept.len()),
            (_, None) => {}
        }
        kept.push(*step);
    }
    (!charges.is_empty()).then_some((kept, charges))
}

fn never_mints(((scene, steps), which, waits): (Case, usize, [u64; 3])) -> Result<(), TestCaseError> {
    let Some((kept, charges)) = effective(scene, &steps) else { return Ok(()) };
    let which = which % charges.len();
    let mut world = World::after(scene, &kept);
    let mut without = kept.clone();
    without.remove(charges[which]);
    // Other grains can make the twin of a window later than it is; the log is exact, and never has less left.
    let reconfigured = kept.iter().any(|step| matches!(step, Step::Configure(_)));
    let coarse = reconfigured && scene.algorithm == Algorithm::SlidingWindow;
    let mut twin = World::after(if coarse { Scene { algorithm: Algorithm::SlidingLog, ..scene } } else { scene }, &without);
    let refunded = world.take(Step::Refund(which)).unwrap();
    prop_assert!(refunded.remaining <= twin.peek(0).remaining, "{:?}, the twin {:?}", refunded, twin.peek(0));
    for wait in waits {
        world.wait(wait);
        twin.wait(wait);
        let (left, twins) = (world.peek(0), twin.peek(0));
        prop_assert!(left.remaining <= twins.remaining && left.reset >= twins.reset, "{:?}, the twin {:?}", left, twins);
        // After another quota it may return less.
        if scene.algorithm == Algorithm::SlidingLog && !reconfigured {
            prop_assert_eq!(left, twins, "the log forgets the entry");
        }
    }
    Ok(())
}

#[test]
fn refund_never_leaves_more_than_without_the_charge() {
    property(200, undone(Mix { charge: 1, ..Mix::PLAIN }), never_mints);
}

#[test]
fn refund_after_reconfiguring_never_leaves_more_than_without_the_charge() {
    property(200, undone(Mix { configure: 1, ..Mix::PLAIN }), never_mints);
}

/// After `steps`, of which the first is charged 5 that then expire, 5 more are taken under ten an hour: these stay.
fn refund_leaves_the_last_five(algorithm: Algorithm, first: Quota, steps: &[Step]) {
    let mut world = World::after(Scene::new(algorithm, first), &[Step::Check(5)]);
    world.run(steps);
    world.take(Step::Configure(Quota::per_hour(10)));
    let used = world.check(5).used;
    let refunded = world.take(Step::Refund(0)).unwrap();
    assert!(refunded.used >= 5, "of the {used} used only the last five count; after the refund {refunded:?}");
}

#[test]
fn refund_of_what_expired_before_the_window_grew_gives_nothing() {
    for_every_algorithm(|algorithm| {
        refund_leaves_the_last_five(algorithm, Quota::per_second(10), &[Step::Wait(3_000_000)]);
    });
}

#[test]
fn refund_of_what_expired_under_a_quota_in_between_gives_nothing() {
    let between = [Step::Configure(Quota::per_second(10)), Step::Wait(3_000_000), Step::Check(1), Step::Wait(3_000_000)];
    for_every_algorithm(|algorithm| refund_leaves_the_last_five(algorithm, Quota::per_hour(10), &between));
}

#[test]
fn refund_while_the_clock_steps_leaves_no_more_than_all() {
    property(
        200,
        |algorithm| case(algorithm, Mix { back: 2, configure: 1, ..Mix::FULL }),
        |(scene, steps)| {
            for answer in World::new(scene).run(&steps).into_iter().flatten() {
                prop_assert!(answer.remaining <= answer.limit && answer.used < 1 << 62, "{:?}", answer);
            }
            Ok(())
        },
    );
}

/// A limiter of ten an hour, and the receipt for four of them.
fn four_of_ten(algorithm: Algorithm) -> (World, Receipt) {
    let world = World::new(Scene::new(algorithm, Quota::per_hour(10)));
    let receipt = world.limiter.check_n(KEY, 4).take_receipt().unwrap();
    (world, receipt)
}

fn left(limiter: &Limiter) -> u64 {
    limiter.remaining(KEY).unwrap()
}

fn parsed(text: &str) -> Receipt {
    text.parse().unwrap()
}

#[test]
fn receipt_is_used_once() {
    for_every_algorithm(|algorithm| {
        let (world, receipt) = four_of_ten(algorithm);
        let limiter = world.limiter;
        let text = receipt.to_string();
        assert_eq!(parsed(&text), receipt);
        assert!(limiter.check_n(KEY, 5).is_allowed());
        assert_eq!(limiter.refund(receipt).remaining(), Some(5));
        assert_eq!(limiter.refund(parsed(&text)).remaining(), Some(5), "its text is no second one");
        assert_eq!(limiter.settle(parsed(&text), 0).remaining(), Some(5));
        assert_eq!(limiter.settle(parsed(&text), 9).remaining(), Some(5), "nor is it charged twice");
    });
}

#[test]
fn decision_gives_one_receipt_and_none_where_nothing_was_charged() {
    for_every_algorithm(|algorithm| {
        let limiter = four_of_ten(algorithm).0.limiter;
        let mut decision = limiter.check(KEY);
        assert!(decision.take_receipt().is_some() && decision.take_receipt().is_none());
        assert!(limiter.peek(KEY).take_receipt().is_none());
        assert!(limiter.check_n(KEY, 0).take_receipt().is_none());
        assert!(limiter.check_n(KEY, 10).take_receipt().is_none(), "denied");
        assert!(limiter.check_n(KEY, 11).take_receipt().is_none(), "never");
    });
}

#[test]
fn settling_refunds_or_charges_the_difference() {
    for_every_algorithm(|algorithm| {
        for (actual, expected) in [(0, 10), (1, 9), (4, 6), (7, 3), (10, 0), (15, 0)] {
            let (world, receipt) = four_of_ten(algorithm);
            assert_eq!(world.limiter.settle(receipt, actual).remaining(), Some(expected), "settled at {actual}");
        }
    });
}

#[test]
fn refund_after_a_reset_gives_nothing() {
    for_every_algorithm(|algorithm| {
        for wait in [0, 1, 1_000_000] {
            let (mut world, receipt) = four_of_ten(algorithm);
            world.wait(wait);
            world.take(Step::Reset);
            world.wait(wait);
            assert_eq!(world.check(7).remaining, 3);
            assert_eq!(world.limiter.refund(receipt).remaining(), Some(3), "reset after {wait}");
        }
    });
}

#[test]
fn refund_after_all_has_come_back_gives_nothing() {
    for_every_algorithm(|algorithm| {
        let (mut world, receipt) = four_of_ten(algorithm);
        world.wait(world.fresh().check(4).reset);
        assert_eq!(world.check(7).remaining, 3);
        assert_eq!(world.limiter.refund(receipt).remaining(), Some(3));
    });
}

#[test]
fn receipt_of_a_policy_that_is_gone_gives_nothing() {
    for_every_algorithm(|algorithm| {
        let (world, receipt) = four_of_ten(algorithm);
        world.limiter.configure([Scene::new(algorithm, Quota::per_hour(10)).policy_named("another")]).unwrap();
        assert!(world.limiter.check_n(KEY, 4).is_allowed());
        assert_eq!(world.limiter.refund(receipt).outcomes().count(), 0);
        assert_eq!(left(&world.limiter), 6);
    });
}

#[test]
fn text_that_is_no_receipt_is_refused() {
    let (_, receipt) = four_of_ten(Algorithm::default());
    let text = receipt.to_string();
    for end in 0..text.len() {
        assert!(text[..end].parse::<Receipt>().is_err(), "cut after {end}");
        assert!(text[end + 1..].parse::<Receipt>().is_err(), "begun at {}", end + 1);
    }
    for other in [format!(" {text}"), format!("{text} "), format!("{text}{text}"), format!("{text};"), text.to_uppercase()] {
        assert!(other.parse::<Receipt>().is_err(), "{other}");
    }
}

#[test]
fn any_text_is_parsed_without_panic() {
    let near = |algorithm| {
        let text = four_of_ten(algorithm).1.to_string();
        (Just(text), any::<prop::sample::Index>(), ".{0,3}", ".*", "tg1:[0-9a-f]{16}:[a-z,0-9:;-]*")
    };
    property(300, near, |(text, place, insert, any, alike)| {
        let place = place.index(text.len());
        for text in [
            format!("{}{insert}{}", &text[..place], &text[place..]),
            format!("{}{insert}{}", &text[..place], &text[place + 1..]),
            any,
            alike,
        ] {
            // Whatever was understood can be spent, and gives no more than was charged.
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(parsed(&receipt.to_string()), parsed(&text));
                let limiter = World::new(Scene::new(Algorithm::default(), Quota::per_hour(10))).limiter;
                prop_assert!(limiter.refund(receipt).remaining().unwrap_or(0) <= 10);
            }
        }
        Ok(())
    });
}
