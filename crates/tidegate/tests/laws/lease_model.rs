//! Traces of leases, and the exact model that judges them: it keeps every lease that was given and looks at all of them.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Decision, Policy};

pub(crate) const POLICY: &str = "places";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// With the lease of this number, or one that nobody knows.
    Check(Option<u8>),
    Peek(u8),
    Renew(u8),
    Release(u8),
    Reset,
    Wait(u64),
    Back(u64),
    Configure(u64, u64),
}

/// A limit and a time to live in microseconds, and what happens under them.
pub(crate) type Case = (u64, u64, Vec<Step>);

pub(crate) fn case() -> impl Strategy<Value = Case> {
    (1..5u64, time_to_live())
        .prop_flat_map(|(limit, lives)| (Just(limit), Just(lives), prop::collection::vec(step(lives), 1..60)))
}

fn time_to_live() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1_000u64, 7_777, 1_000_000, 60_000_000])
}

fn step(lives: u64) -> impl Strategy<Value = Step> {
    let lease = || 0..7u8;
    prop_oneof![
        8 => lease().prop_map(|lease| Step::Check(Some(lease))),
        1 => Just(Step::Check(None)),
        2 => lease().prop_map(Step::Peek),
        4 => lease().prop_map(Step::Renew),
        3 => lease().prop_map(Step::Release),
        1 => Just(Step::Reset),
        2 => (0..3u64).prop_map(Step::Wait),
        4 => (0..=lives / 3).prop_map(Step::Wait),
        // To the edge, and one over.
        3 => (lives - 1..=lives + 1).prop_map(Step::Wait),
        1 => (0..=3 * lives).prop_map(Step::Wait),
        1 => (0..=lives + 1).prop_map(Step::Back),
        1 => (0..=3 * lives).prop_map(Step::Back),
        1 => (1..5u64, time_to_live()).prop_map(|(limit, lives)| Step::Configure(limit, lives)),
    ]
}

pub(crate) fn policy(limit: u64, lives: u64) -> Policy {
    Policy::concurrency(POLICY, limit, Duration::from_micros(lives))
}

/// What is said of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) retry: Option<u64>,
    pub(crate) reset: u64,
}

pub(crate) fn answer(decision: &Decision) -> Answer {
    let outcome = decision.outcomes().find(|outcome| outcome.policy() == POLICY).expect("it applies");
    let micros = |time: Duration| u64::try_from(time.as_micros()).expect("not for ever");
    Answer {
        allowed: outcome.is_allowed(),
        limit: outcome.limit(),
        used: outcome.used(),
        retry: outcome.retry_after().map(micros),
        reset: micros(outcome.reset_after()),
    }
}

/// What a step gives: how the key stands, or whether a lease was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Stands(Answer),
    Held(bool),
    Nothing,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) now: u64,
    limit: u64,
    lives: u64,
    /// Number and end of those that have not been seen to be over.
    leases: Vec<(u32, u64)>,
    /// The longest time to live under which one of them was given.
    longest: u64,
    nobodys: u32,
}

impl Model {
    pub(crate) fn new(now: u64, limit: u64, lives: u64) -> Self {
        Self { now, limit, lives, leases: Vec::new(), longest: 0, nobodys: 1_000 }
    }

    pub(crate) fn take(&mut self, step: Step) -> Told {
        match step {
            Step::Check(lease) => {
                let lease = lease.map_or_else(|| self.nobody(), u32::from);
                let before = self.stands(lease);
                if !before.allowed {
                    return Told::Stands(before);
                }
                self.give(lease);
                Told::Stands(Answer { retry: None, ..self.stands(lease) })
            }
            Step::Peek(lease) => Told::Stands(self.stands(lease.into())),
            Step::Renew(lease) => {
                let held = self.holds(lease.into());
                if held {
                    self.give(lease.into());
                }
                Told::Held(held)
            }
            Step::Release(lease) => {
                let held = self.holds(lease.into());
                if held {
                    self.leases.retain(|(other, _)| *other != u32::from(lease));
                }
                Told::Held(held)
            }
            Step::Reset => {
                self.leases.clear();
                Told::Nothing
            }
            Step::Wait(time) => {
                self.now += time;
                Told::Nothing
            }
            Step::Back(time) => {
                self.now -= time;
                Told::Nothing
            }
            Step::Configure(limit, lives) => {
                (self.limit, self.lives) = (limit, lives);
                Told::Nothing
            }
        }
    }

    fn nobody(&mut self) -> u32 {
        self.nobodys += 1;
        self.nobodys
    }

    /// Not what is over, and not what was given more than a time to live after now: the clock was wrong.
    fn counts(&self, end: u64) -> bool {
        end > self.now && end <= self.now + 2 * self.longest
    }

    fn live(&self) -> Vec<u64> {
        let mut ends: Vec<u64> = self.leases.iter().map(|(_, end)| *end).filter(|end| self.counts(*end)).collect();
        ends.sort_unstable();
        ends
    }

    fn holds(&self, lease: u32) -> bool {
        self.leases.iter().any(|(other, end)| *other == lease && self.counts(*end))
    }

    fn give(&mut self, lease: u32) {
        let kept: Vec<(u32, u64)> = self.leases.iter().copied().filter(|(_, end)| self.counts(*end)).collect();
        let had = kept.iter().find(|(other, _)| *other == lease).map_or(0, |(_, end)| *end);
        self.longest = if kept.is_empty() { self.lives } else { self.longest.max(self.lives) };
        self.leases = kept.into_iter().filter(|(other, _)| *other != lease).collect();
        self.leases.push((lease, had.max(self.now + self.lives)));
    }

    fn stands(&self, lease: u32) -> Answer {
        let live = self.live();
        let used = live.len() as u64;
        let allowed = used < self.limit || self.holds(lease);
        // So many have to end that one place is free.
        let retry = (!allowed).then(|| live[(used - self.limit) as usize] - self.now);
        Answer { allowed, limit: self.limit, used, retry, reset: live.last().map_or(0, |end| end - self.now) }
    }
}
