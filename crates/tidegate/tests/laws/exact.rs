//! Every field of every answer equals the model's.

use proptest::prelude::*;
use tidegate::Quota;

use crate::{
    model::Model,
    traces::{Case, Mix, case, for_every_algorithm, property},
    world::{Answer, Scene, Step, World, has_burst},
};

/// Takes each step in the library and in the model, and compares all that they answer.
fn agree((scene, steps): Case) -> Result<(), TestCaseError> {
    let (mut world, mut model) = (World::new(scene), Model::new(scene));
    for (index, step) in steps.iter().enumerate() {
        let (got, expected) = (world.take(*step), model.take(*step));
        let got = if let Step::Charge(_) = step { got.map(settled) } else { got };
        prop_assert_eq!(got, expected, "step {} is {:?}", index, step);
    }
    Ok(())
}

/// What has been incurred is not asked for, so nothing is said here of whether it would have been allowed.
fn settled(answer: Answer) -> Answer {
    Answer { allowed: true, hopeless: false, retry: None, ..answer }
}

#[test]
fn answers_equal_the_model() {
    property(200, |algorithm| case(algorithm, Mix::PLAIN), agree);
}

#[test]
fn answers_equal_the_model_with_charges_refunds_and_resets() {
    property(300, |algorithm| case(algorithm, Mix::FULL), agree);
}

#[test]
fn answers_equal_the_model_after_reconfiguring() {
    property(300, |algorithm| case(algorithm, Mix { configure: 1, peek: 2, charge: 1, ..Mix::PLAIN }), agree);
}

#[test]
fn answers_equal_the_model_when_the_clock_steps() {
    property(300, |algorithm| case(algorithm, Mix { back: 2, peek: 2, ..Mix::PLAIN }), agree);
}

#[test]
fn debts_grow_to_a_century_and_no_further() {
    for_every_algorithm(|algorithm| {
        let quota = Quota::new(1, Quota::MAX_WINDOW).unwrap();
        let scene = Scene::new(algorithm, if has_burst(algorithm) { quota.burst(18) } else { quota });
        let year = scene.window();
        let steps =
            [Step::Charge(31), Step::Charge(42), Step::Charge(31), Step::Wait(year + 1), Step::Charge(5), Step::Refund(2)];
        agree((scene, steps.to_vec())).unwrap();
    });
}
