//! One limiter with one policy on one key, on a clock that stands still, driven by steps. Two worlds of one scene that
//! take the same steps are twins. What the answers should be is not known here.

use std::{path::Path, time::Duration};

use tidegate::{Algorithm, Clock, Decision, Hit, Limiter, ManualClock, Outcome, Policy, Quota, Snapshot};

/// The name of the one policy and the value of the one key.
pub(crate) const POLICY: &str = "law";
pub(crate) const KEY: &str = "k";

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: Quota,
    /// Grains per window, where the algorithm has grains.
    pub(crate) grains: u32,
    /// What the clock shows first.
    pub(crate) start: u64,
}

impl Scene {
    pub(crate) fn new(algorithm: Algorithm, quota: Quota) -> Self {
        Self { algorithm, quota, grains: Policy::DEFAULT_RESOLUTION, start: START }
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy_named(POLICY)
    }

    pub(crate) fn policy_named(&self, name: &str) -> Policy {
        let policy = Policy::new(name, self.quota).algorithm(self.algorithm);
        if self.algorithm == Algorithm::SlidingWindow { policy.resolution(self.grains) } else { policy }
    }

    pub(crate) fn capacity(&self) -> u64 {
        capacity(self.quota)
    }

    pub(crate) fn window(&self) -> u64 {
        micros(self.quota.window())
    }

    /// The grain of a `sliding-window`.
    pub(crate) fn grain(&self) -> u64 {
        self.window().div_ceil(self.grains.into())
    }
}

/// Some time in 2026 that no window is aligned to.
pub(crate) const START: u64 = 1_767_225_612_345_678;

pub(crate) fn capacity(quota: Quota) -> u64 {
    quota.burst_size().unwrap_or(quota.limit())
}

pub(crate) fn has_burst(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra)
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

/// One thing that happens to a key, or to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait(u64),
    Back(u64),
    Check(u64),
    Peek(u64),
    Charge(u64),
    /// Of the charges so far, that many places from the first, counted round.
    Refund(usize),
    Settle(usize, u64),
    Reset,
    Configure(Quota),
}

/// What an outcome says, as numbers that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) hopeless: bool,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) remaining: u64,
    pub(crate) charged: u64,
    pub(crate) retry: Option<u64>,
    pub(crate) reset: u64,
}

impl Answer {
    /// The answer of a decision by one policy, which must agree with itself.
    pub(crate) fn of(decision: &Decision) -> Self {
        let outcome = decision.outcomes().next().expect("the policy applies");
        assert_eq!(decision.is_allowed(), outcome.is_allowed());
        assert_eq!(decision.retry_after(), outcome.retry_after());
        assert_eq!(decision.remaining(), Some(outcome.remaining()));
        outcome.into()
    }
}

impl From<Outcome<'_>> for Answer {
    fn from(outcome: Outcome<'_>) -> Self {
        Self {
            allowed: outcome.is_allowed(),
            hopeless: outcome.is_hopeless(),
            limit: outcome.limit(),
            used: outcome.used(),
            remaining: outcome.remaining(),
            charged: outcome.charged(),
            retry: outcome.retry_after().map(micros),
            reset: micros(outcome.reset_after()),
        }
    }
}

/// A limiter of these policies, and the clock that it reads.
pub(crate) fn limiter_at(start: u64, policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::new(start);
    (Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap(), clock)
}

/// A limiter and its clock. Receipts are kept as text, so that each refund has been through it.
pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) limiter: Limiter,
    scene: Scene,
    receipts: Vec<String>,
}

impl World {
    pub(crate) fn new(scene: Scene) -> Self {
        let (limiter, clock) = limiter_at(scene.start, [scene.policy()]);
        Self { clock, limiter, scene, receipts: Vec::new() }
    }

    /// A world whose limiter leaves what it has counted in a file.
    pub(crate) fn kept(scene: Scene, file: &Path) -> Self {
        let _ = std::fs::remove_file(file);
        // Long before: receipts from before the first limiter are void, also those of a clock that is set back to then.
        let mut world = Self::new(Scene { start: 0, ..scene });
        world.begin(file);
        world.clock.set(scene.start);
        world
    }

    /// Ends the limiter, and begins another with what the last one left. It may have another quota.
    pub(crate) fn restart(&mut self, quota: Quota, file: &Path) {
        self.scene.quota = quota;
        self.limiter = limiter_at(0, []).0;
        self.begin(file);
        assert!(self.limiter.store().snapshot_status().restored.unwrap().is_some());
    }

    fn begin(&mut self, file: &Path) {
        let builder = Limiter::builder().policy(self.scene.policy()).clock(self.clock.clone());
        self.limiter = builder.snapshot(Snapshot::new(file)).build().unwrap();
    }

    /// Loses all receipts for what counts at a later time than now.
    pub(crate) fn lose_future_receipts(&mut self) {
        let now = self.now();
        // The last but one of the numbers that a receipt is made of.
        let at = |receipt: &String| receipt.rsplit(',').nth(1).unwrap().parse::<u64>().unwrap();
        self.receipts.retain(|receipt| at(receipt) <= now);
    }

    /// A new world in which `steps` have been taken.
    pub(crate) fn after(scene: Scene, steps: &[Step]) -> Self {
        let mut world = Self::new(scene);
        world.run(steps);
        world
    }

    pub(crate) fn run(&mut self, steps: &[Step]) -> Vec<Option<Answer>> {
        steps.iter().map(|step| self.take(*step)).collect()
    }

    /// Takes a step; no answer where it asks for none.
    pub(crate) fn take(&mut self, step: Step) -> Option<Answer> {
        let hit = |cost| Hit::from(KEY).cost(cost);
        let decision = match step {
            Step::Wait(wait) => {
                self.wait(wait);
                return None;
            }
            Step::Back(by) => {
                self.clock.step_back(Duration::from_micros(by));
                return None;
            }
            Step::Configure(quota) => {
                self.scene.quota = quota;
                self.limiter.configure([self.scene.policy()]).unwrap();
                return None;
            }
            Step::Check(cost) => self.limiter.check_n(KEY, cost),
            Step::Peek(cost) => self.limiter.peek(hit(cost)),
            Step::Charge(cost) => self.limiter.charge(hit(cost)),
            Step::Refund(index) => self.limiter.refund(self.receipt(index)?.parse().unwrap()),
            Step::Settle(index, actual) => self.limiter.settle(self.receipt(index)?.parse().unwrap(), actual),
            Step::Reset => self.limiter.reset(KEY),
        };
        let answer = Answer::of(&decision);
        if let Some(receipt) = decision.clone().take_receipt() {
            self.receipts.push(receipt.to_string());
        }
        Some(answer)
    }

    pub(crate) fn wait(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    pub(crate) fn check(&mut self, cost: u64) -> Answer {
        self.take(Step::Check(cost)).unwrap()
    }

    pub(crate) fn peek(&mut self, cost: u64) -> Answer {
        self.take(Step::Peek(cost)).unwrap()
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.epoch_micros()
    }

    /// A world that begins now, with the quota in force, and has seen nothing.
    pub(crate) fn fresh(&self) -> Self {
        Self::new(Scene { start: self.now(), ..self.scene })
    }

    pub(crate) fn scene(&self) -> Scene {
        self.scene
    }

    fn receipt(&self, index: usize) -> Option<&String> {
        self.receipts.get(index % self.receipts.len().max(1))
    }
}
