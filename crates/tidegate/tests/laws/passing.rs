//! The short way of middleware: what passes is what a check allows, and is charged as by a check; what does not pass has changed nothing.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Decision, Hit, Limiter, Override, Policy, Quota, Short};

use crate::{
    traces::{Mix, case, for_every_algorithm, property},
    world::{KEY, POLICY, Scene, Step, World, limiter_at},
};

fn passes(limiter: &Limiter) -> bool {
    limiter.pass(Short::of("key").unwrap(), Short::of(KEY).unwrap())
}

/// The same by the way that tells what was decided.
fn allows(limiter: &Limiter) -> Option<Decision> {
    limiter.allow(Short::of("key").unwrap(), Short::of(KEY).unwrap())
}

#[test]
fn passing_and_checking_decide_and_charge_alike() {
    // Not refunds: what passes leaves no receipt.
    let mix = Mix { refund: 0, configure: 2, back: 1, ..Mix::FULL };
    property(
        200,
        |algorithm| case(algorithm, mix),
        |(scene, steps)| {
            let [mut short, mut told, mut long] = [World::new(scene), World::new(scene), World::new(scene)];
            for step in steps {
                if !matches!(step, Step::Check(_)) {
                    let answer = long.take(step);
                    prop_assert_eq!([short.take(step), told.take(step)], [answer; 2]);
                } else {
                    // By a handle that may be older than the policies, then by one that is not.
                    let passed = passes(&short.limiter) || passes(&short.limiter.clone());
                    let allowed = allows(&told.limiter).or_else(|| allows(&told.limiter.clone()));
                    let decision = long.limiter.check(KEY);
                    prop_assert_eq!(passed, allowed.is_some());
                    let (short, told) = match allowed {
                        Some(allowed) => (decision.clone(), allowed),
                        None => (short.limiter.check(KEY), told.limiter.check(KEY)),
                    };
                    prop_assert!(decision.is_allowed() || !passed);
                    let said = |decision: &Decision| format!("{decision:?}");
                    prop_assert_eq!([said(&short), said(&told)], [said(&decision), said(&decision)]);
                }
                prop_assert_eq!([short.peek(1), told.peek(1)], [long.peek(1), long.peek(1)]);
                let stored = |world: &World| world.limiter.inspect(POLICY, KEY).unwrap();
                prop_assert_eq!([stored(&short), stored(&told)], [stored(&long), stored(&long)]);
            }
            Ok(())
        },
    );
}

#[test]
fn a_key_that_is_known_passes_up_to_its_limit() {
    for_every_algorithm(|algorithm| {
        let mut world = World::new(Scene::new(algorithm, Quota::per_day(3)));
        assert!(!passes(&world.limiter), "not known yet");
        assert!(world.check(1).allowed);
        assert_eq!([passes(&world.limiter), passes(&world.limiter), passes(&world.limiter)], [true, true, false]);
        assert!(!world.check(1).allowed);
        world.take(Step::Configure(Quota::per_day(6)));
        assert!(!passes(&world.limiter) && world.check(1).allowed);
        let newest = world.limiter.clone();
        assert_eq!([passes(&newest), passes(&newest), passes(&newest)], [true, true, false]);
        assert_eq!(world.peek(0).used, 6);
    });
}

#[test]
fn only_one_simple_policy_has_a_short_way() {
    let policy = || Policy::new("default", Quota::per_day(5));
    let no_way: [Vec<Policy>; 6] = [
        vec![],
        vec![policy(), Policy::new("other", Quota::per_day(5))],
        vec![policy().key(["key", "user"])],
        vec![policy().key(["user"])],
        vec![policy().override_key(["nobody"], Override::Unlimited)],
        vec![Policy::concurrency("default", 5, Duration::from_secs(60))],
    ];
    for policies in no_way {
        let (limiter, _clock) = limiter_at(0, policies);
        let _ = limiter.check(Hit::from(KEY).lease("a"));
        assert!(!passes(&limiter) && allows(&limiter).is_none(), "{limiter:?}");
    }
    let (limiter, _clock) = limiter_at(0, [policy().shadow()]);
    (0..7).for_each(|_| assert!(passes(&limiter) || limiter.check(KEY).is_allowed()));
    assert_eq!(limiter.peek(KEY).outcomes().next().unwrap().used(), 5);
}
