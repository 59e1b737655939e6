//! Law 2, all or nothing, and law 5 of all together: several policies on several attributes, some of them shadows, against one model for each
//! policy and key.

use std::collections::HashMap;

use proptest::{collection::vec, option, prelude::*, sample::select};
use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, Policy, Quota};

use crate::{
    model::Model,
    traces::property,
    world::{Answer, START, Scene, Step, has_burst, limiter_at},
};

const ATTRIBUTES: [&str; 3] = ["user", "ip", "token"];
const VALUES: [&str; 2] = ["a", "b"];

/// A policy on one attribute.
#[derive(Clone, Copy, Debug)]
struct Rule {
    scene: Scene,
    attribute: usize,
    shadow: bool,
    counts_requests: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Wait(u64),
    /// A hit with a value, or none, for each attribute.
    Hit([Option<usize>; 3], u64),
    Refund(usize),
}

fn rule(algorithm: Algorithm) -> impl Strategy<Value = Rule> {
    let amounts = (1..=6u64, 2_000..=6_000u64, option::of(1..=8u64));
    (amounts, 0..3usize, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        move |((limit, window, burst), attribute, shadow, counts_requests)| {
            let quota = Quota::new(limit, std::time::Duration::from_micros(window)).unwrap();
            let quota = burst.filter(|_| has_burst(algorithm)).map_or(quota, |burst| quota.burst(burst));
            Rule { scene: Scene::new(algorithm, quota), attribute, shadow, counts_requests }
        },
    )
}

/// One enforced policy of the algorithm and one to three others of any.
fn rules(algorithm: Algorithm) -> impl Strategy<Value = Vec<Rule>> {
    let others = vec(select(Algorithm::RATES).prop_flat_map(rule), 1..4);
    (rule(algorithm), others).prop_map(|(first, mut rules)| {
        rules.push(Rule { shadow: false, ..first });
        rules
    })
}

fn event() -> impl Strategy<Value = Event> {
    let value = || option::weighted(0.85, 0..VALUES.len());
    prop_oneof![
        3 => (0..=2_500u64).prop_map(Event::Wait),
        8 => ([value(), value(), value()], 0..=4u64).prop_map(|(values, cost)| Event::Hit(values, cost)),
        1 => (0..20usize).prop_map(Event::Refund),
    ]
}

impl Rule {
    fn policy(&self, index: usize) -> Policy {
        let policy = self.scene.policy_named(&format!("p{index}")).key([ATTRIBUTES[self.attribute]]);
        let policy = if self.shadow { policy.shadow() } else { policy };
        if self.counts_requests { policy.counts_requests() } else { policy }
    }

    fn weigh(&self, cost: u64) -> u64 {
        if self.counts_requests { cost.min(1) } else { cost }
    }
}

/// Which rule and which value of its attribute.
type Place = (usize, usize);

/// The limiter, and a model for each policy and key.
struct Stage {
    rules: Vec<Rule>,
    limiter: Limiter,
    clock: ManualClock,
    models: HashMap<Place, Model>,
    /// Each receipt, and which charge of which model it covers.
    receipts: Vec<(String, Vec<(Place, usize)>)>,
}

impl Stage {
    fn new(rules: Vec<Rule>) -> Self {
        let policies = rules.iter().enumerate().map(|(index, rule)| rule.policy(index));
        let (limiter, clock) = limiter_at(START, policies);
        let places = (0..rules.len()).flat_map(|rule| (0..VALUES.len()).map(move |value| (rule, value)));
        let models = places.map(|place| (place, Model::new(rules[place.0].scene))).collect();
        Self { rules, limiter, clock, models, receipts: Vec::new() }
    }

    fn ask(&mut self, place: Place, step: Step) -> Answer {
        self.models.get_mut(&place).unwrap().take(step).unwrap()
    }

    fn wait(&mut self, micros: u64) {
        self.clock.advance(std::time::Duration::from_micros(micros));
        self.models.values_mut().for_each(|model| assert!(model.take(Step::Wait(micros)).is_none()));
    }

    fn hit(&mut self, values: [Option<usize>; 3], cost: u64) -> Result<(), TestCaseError> {
        let named = ATTRIBUTES.iter().zip(values).filter_map(|(name, value)| Some((*name, VALUES[value?])));
        let hit = named.fold(Hit::new().cost(cost), |hit, (name, value)| hit.attribute(name, value));
        let rules = self.rules.clone();
        let places = (0..rules.len()).filter_map(|rule| Some((rule, values[rules[rule].attribute]?)));
        let places: Vec<Place> = places.collect();
        let mut expected: Vec<Answer> =
            places.iter().map(|place| self.ask(*place, Step::Peek(rules[place.0].weigh(cost)))).collect();
        let enforced = |place: &Place| !rules[place.0].shadow;
        let admitted = places.iter().zip(&expected).all(|(place, answer)| answer.allowed || !enforced(place));
        let denials: Vec<Answer> = places
            .iter()
            .zip(&expected)
            .filter(|(place, answer)| enforced(place) && !answer.allowed)
            .map(|pair| *pair.1)
            .collect();
        let mut covered = Vec::new();
        for (place, answer) in places.iter().zip(&mut expected).filter(|(_, answer)| admitted && cost > 0 && answer.allowed) {
            covered.push((*place, self.models[place].charges()));
            *answer = self.ask(*place, Step::Check(rules[place.0].weigh(cost)));
        }

        let mut decision = self.limiter.check(&hit);
        let answers: Vec<Answer> = decision.outcomes().map(Answer::from).collect();
        prop_assert_eq!(answers, expected);
        prop_assert_eq!(decision.is_allowed(), admitted);
        self.judge_whole(&decision, &denials, places.iter().any(enforced))?;
        if let Some(left) = decision.remaining() {
            prop_assert!(self.limiter.peek(hit.clone().cost(left)).is_allowed());
            let counts_requests = places.iter().any(|place| enforced(place) && rules[place.0].counts_requests);
            prop_assert!(counts_requests || !self.limiter.peek(hit.cost(left + 1)).is_allowed());
        }
        let receipt = decision.take_receipt();
        prop_assert_eq!(receipt.is_some(), !covered.is_empty());
        self.receipts.extend(receipt.map(|receipt| (receipt.to_string(), covered)));
        Ok(())
    }

    /// The wait is the longest of the denials and none where one is hopeless; a shadow is never the strictest.
    fn judge_whole(&self, decision: &Decision, denials: &[Answer], any_enforced: bool) -> Result<(), TestCaseError> {
        let hopeless = denials.iter().any(|denial| denial.hopeless);
        let longest = denials.iter().filter_map(|denial| denial.retry).max().filter(|_| !hopeless);
        prop_assert_eq!(decision.retry_after().map(crate::world::micros), longest);
        prop_assert_eq!(decision.strictest().is_some(), any_enforced);
        if let Some(strictest) = decision.strictest() {
            prop_assert!(!strictest.is_shadow());
            prop_assert_eq!(strictest.is_allowed(), decision.is_allowed());
            prop_assert!(!strictest.is_allowed() || Some(strictest.remaining()) == decision.remaining());
        }
        Ok(())
    }

    /// Refunds all that one hit was charged, a second time too.
    fn refund(&mut self, index: usize) -> Result<(), TestCaseError> {
        let Some((receipt, covered)) = self.receipts.get(index % self.receipts.len().max(1)).cloned() else { return Ok(()) };
        let expected: Vec<Answer> = covered.iter().map(|(place, charge)| self.ask(*place, Step::Refund(*charge))).collect();
        let decision = self.limiter.refund(receipt.parse().unwrap());
        prop_assert_eq!(decision.outcomes().map(Answer::from).collect::<Vec<_>>(), expected);
        Ok(())
    }
}

#[test]
fn all_are_charged_or_none_and_shadows_never_decide() {
    let strategy = |algorithm| (rules(algorithm), vec(event(), 1..60));
    property(200, strategy, |(rules, events)| {
        let mut stage = Stage::new(rules);
        for event in events {
            match event {
                Event::Wait(micros) => stage.wait(micros),
                Event::Hit(values, cost) => stage.hit(values, cost)?,
                Event::Refund(index) => stage.refund(index)?,
            }
        }
        Ok(())
    });
}
