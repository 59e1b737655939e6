//! The promises of the algorithms, judged from nothing but the list of what was admitted and what was denied: every
//! interval between two admitted hits is looked at.

use proptest::{collection::vec, prelude::*};
use tidegate::Algorithm;

use crate::{
    traces::{Mix, case, property, scene, wait},
    world::{Scene, Step, World},
};

/// A hit that was decided.
#[derive(Clone, Copy, Debug)]
struct Decided {
    at: i128,
    cost: i128,
    allowed: bool,
}

/// Takes the steps, of which only time and checks count here.
fn decided(scene: Scene, steps: &[Step]) -> Vec<Decided> {
    let mut world = World::new(scene);
    let mut decided = Vec::new();
    for step in steps {
        let at = world.now().into();
        if let (Step::Check(cost), Some(answer)) = (step, world.take(*step)) {
            decided.push(Decided { at, cost: i128::from(*cost), allowed: answer.allowed });
        }
    }
    decided
}

/// What was admitted in `from < time <= to` among the first `of`.
fn admitted(of: &[Decided], from: i128, to: i128) -> i128 {
    of.iter().filter(|hit| hit.allowed && from < hit.at && hit.at <= to).map(|hit| hit.cost).sum()
}

fn promise_is_kept(scene: Scene, hits: &[Decided]) -> Result<(), TestCaseError> {
    let (limit, window) = (i128::from(scene.quota.limit()), i128::from(scene.window()));
    let capacity = i128::from(scene.capacity());
    for (index, hit) in hits.iter().enumerate() {
        let trailing = admitted(hits, hit.at - window, hit.at);
        let before = &hits[..index];
        match scene.algorithm {
            Algorithm::SlidingLog => {
                prop_assert!(trailing <= limit, "{} at {:?}", trailing, hit);
                let fits = admitted(before, hit.at - window, hit.at) + hit.cost <= limit;
                prop_assert_eq!(hit.allowed, fits || hit.cost == 0, "exact at {:?}", hit);
            }
            Algorithm::SlidingWindow => {
                prop_assert!(trailing <= limit, "{} at {:?}", trailing, hit);
                let late = i128::from(scene.grain()) - 1;
                let fits = admitted(before, hit.at - window - late, hit.at) + hit.cost <= limit;
                prop_assert!(hit.allowed || !fits, "late by a grain or more at {:?}", hit);
            }
            Algorithm::SlidingCounter => prop_assert!(trailing < 2 * limit, "{} at {:?}", trailing, hit),
            Algorithm::FixedWindow => {
                let start = hit.at - hit.at % window;
                let inside = admitted(hits, start - 1, start + window - 1);
                prop_assert!(inside <= limit, "{} in the window of {:?}", inside, hit);
            }
            _ => {
                for first in before {
                    let between = admitted(hits, first.at - 1, hit.at);
                    let bound = capacity * window + (hit.at - first.at) * limit;
                    prop_assert!(between * window <= bound, "{} from {:?} to {:?}", between, first, hit);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn any_trace_stays_within_the_promise() {
    property(200, |algorithm| case(algorithm, Mix::PLAIN), |(scene, steps)| promise_is_kept(scene, &decided(scene, &steps)));
}

#[test]
fn greedy_traffic_stays_within_the_promise() {
    let greedy = |algorithm| scene(algorithm).prop_flat_map(|scene| (Just(scene), vec(wait(scene), 1..40)));
    property(200, greedy, |(scene, waits)| {
        let mut world = World::new(scene);
        let mut hits = Vec::new();
        for wait in waits {
            world.wait(wait);
            let cost = world.peek(0).remaining;
            for cost in [cost, 1] {
                let allowed = world.check(cost).allowed;
                hits.push(Decided { at: world.now().into(), cost: cost.into(), allowed });
            }
        }
        promise_is_kept(scene, &hits)
    });
}

#[test]
fn window_equals_the_log_when_each_grain_holds_one_request() {
    let spaced = |_| {
        scene(Algorithm::SlidingWindow).prop_flat_map(|scene| {
            let grain = scene.grain();
            (Just(scene), vec((grain..=2 * grain, 1..=3u64), 1..60))
        })
    };
    property(50, spaced, |(scene, hits)| {
        let steps: Vec<Step> = hits.iter().flat_map(|(wait, cost)| [Step::Wait(*wait), Step::Check(*cost)]).collect();
        let log = Scene { algorithm: Algorithm::SlidingLog, ..scene };
        prop_assert_eq!(World::new(scene).run(&steps), World::new(log).run(&steps));
        Ok(())
    });
}
