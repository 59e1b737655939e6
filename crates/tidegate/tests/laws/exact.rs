//! Every field of every answer equals the model's.

use proptest::prelude::*;

use crate::{
    model::Model,
    traces::{Case, Mix, case, property},
    world::{Answer, Step, World},
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
