//! Leases outlive the process that counted them. A limiter that begins again from its newest file answers as one that lived on, and
//! from an older one as it would have then, had nothing happened since.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Limiter, ManualClock, Snapshot};

use crate::{
    lease_model::{Case, Model, POLICY, Step, Told, answer, case, policy},
    leases::{START, take},
    restarts::{folder, snapshot},
};

fn property<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    // PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&strategy, test) {
        panic!("{failure}");
    }
}

fn build(clock: &ManualClock, (limit, lives): (u64, u64), file: &Path) -> Limiter {
    Limiter::builder().policy(policy(limit, lives)).clock(clock.clone()).snapshot(Snapshot::new(file)).build().unwrap()
}

fn inspect(limiter: &Limiter) -> String {
    format!("{:?}", limiter.inspect(POLICY, "a").unwrap())
}

fn lives_on((limit, lives, steps): Case, restarts: &[bool], file: &Path) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(START);
    let _ = fs::remove_file(file);
    let mut quota = (limit, lives);
    let lived = Limiter::builder().policy(policy(limit, lives)).clock(clock.clone()).build().unwrap();
    let mut limiter = Some(build(&clock, quota, file));
    let swings = steps.iter().any(|step| matches!(step, Step::Back(_)));
    let mut now = START;
    for (index, (step, restart)) in steps.into_iter().zip(restarts).enumerate() {
        match step {
            Step::Wait(time) => now += time,
            Step::Back(time) => now -= time,
            // Of a limiter that is restarted now: to be given it again changes nothing.
            Step::Configure(limit, lives) => quota = (limit, lives),
            _ => {}
        }
        // What has expired is not saved, and may come back in a clock that does.
        if *restart && (!swings || answer(&lived.peek("a")).reset > 0) {
            drop(limiter.take());
            limiter = Some(build(&clock, quota, file));
        }
        let limiter = limiter.as_ref().unwrap();
        // A lease that nobody knows has another id in each.
        prop_assert_eq!(take(limiter, &clock, step, now), take(&lived, &clock, step, now), "step {} is {:?}", index, step);
        if answer(&lived.peek("a")).reset > 0 {
            prop_assert_eq!(inspect(limiter), inspect(&lived), "after step {}, {:?}", index, step);
        }
    }
    Ok(())
}

#[test]
fn restart_changes_nothing_for_those_who_hold_leases() {
    let folder = folder();
    let strategy = (case(), vec(prop::bool::weighted(0.3), 60));
    property(strategy, |(case, restarts)| lives_on(case, &restarts, &snapshot(&folder)));
}

/// What happens before a step.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    Save,
    /// With another limit, perhaps.
    Restart(Option<u64>),
    /// The same, without what came after it was last saved.
    Crash(Option<u64>),
}

fn event() -> impl Strategy<Value = Event> {
    let limit = || prop::option::of(1..5u64);
    prop_oneof![
        6 => Just(Event::Nothing),
        2 => Just(Event::Save),
        1 => limit().prop_map(Event::Restart),
        1 => limit().prop_map(Event::Crash),
    ]
}

/// What a process knows, and can lose.
#[derive(Clone)]
struct Known {
    model: Model,
    /// When each lease ends, as its holder has it; a holder that has crashed is one that never comes back.
    held: BTreeMap<u8, u64>,
}

fn crashes((mut limit, mut lives, steps): Case, events: &[Event], live: &Path) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(START);
    let file = live.with_extension("saved");
    [live, &file].into_iter().for_each(|file| drop(fs::remove_file(file)));
    let mut limiter = Some(build(&clock, (limit, lives), live));
    let mut known = Known { model: Model::new(START, limit, lives), held: BTreeMap::new() };
    let mut saved = known.clone();
    limiter.as_ref().unwrap().save(&file).unwrap();
    for (index, (step, event)) in steps.into_iter().zip(events).enumerate() {
        match event {
            Event::Nothing => {}
            Event::Save => {
                limiter.as_ref().unwrap().save(&file).unwrap();
                saved = known.clone();
            }
            Event::Restart(another) | Event::Crash(another) => {
                drop(limiter.take());
                if matches!(event, Event::Crash(_)) {
                    fs::copy(&file, live).unwrap();
                    let now = known.model.now;
                    known = saved.clone();
                    known.model.now = now;
                }
                limit = another.unwrap_or(limit);
                known.model.take(Step::Configure(limit, lives));
                limiter = Some(build(&clock, (limit, lives), live));
            }
        }
        let step = if let Step::Back(time) = step { Step::Wait(time) } else { step };
        if let Step::Configure(another, other) = step {
            (limit, lives) = (another, other);
        }
        let expected = known.model.take(step);
        let now = known.model.now;
        let told = take(limiter.as_ref().unwrap(), &clock, step, now);
        prop_assert_eq!(told, expected, "step {} is {:?} after {:?}", index, step, event);

        known.held.retain(|_, end| *end > now);
        match (step, told) {
            (Step::Check(Some(lease)), Told::Stands(stands)) if stands.allowed => {
                let end = known.held.entry(lease).or_default();
                let is_new = *end == 0;
                *end = (*end).max(now + lives);
                prop_assert!(!is_new || stands.used <= limit && known.held.len() as u64 <= limit, "step {}", index);
            }
            (Step::Renew(lease), Told::Held(held)) => {
                prop_assert_eq!(held, known.held.contains_key(&lease), "step {}", index);
                known.held.entry(lease).and_modify(|end| *end = (*end).max(now + lives));
            }
            (Step::Release(lease), _) => drop(known.held.remove(&lease)),
            (Step::Reset, _) => known.held.clear(),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn crash_loses_what_was_not_saved_and_gives_no_place_twice() {
    let folder = folder();
    let strategy = (case(), vec(event(), 60));
    property(strategy, |(case, events)| crashes(case, &events, &snapshot(&folder)));
}
