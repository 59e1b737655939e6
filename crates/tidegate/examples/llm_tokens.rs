//! Costs that are known only afterwards: a model's tokens per minute, requests per minute and calls at once, in one set of
//! policies. A call reserves an estimate and settles it by what it used.
//!
//! ```sh
//! cargo run --example llm_tokens
//! cargo test --example llm_tokens
//! ```

use std::time::Duration;

use tidegate::{Builder, ConfigError, Decision, Hit, Limiter, Policy, Quota};

/// What a tenant may use of a model.
#[derive(Clone, Debug)]
pub struct Budget {
    limiter: Limiter,
}

impl Budget {
    /// Tokens and requests per minute, and calls at once.
    ///
    /// # Errors
    /// When the numbers are none that a limiter takes.
    pub fn new(builder: Builder, tokens: u64, requests: u64, calls: u64) -> Result<Self, ConfigError> {
        let limiter = builder
            .policy(Policy::new("tokens", Quota::per_minute(tokens)))
            // Five thousand tokens are one request, and one call.
            .policy(Policy::new("requests", Quota::per_minute(requests)).counts_requests())
            .policy(Policy::concurrency("calls", calls, Duration::from_secs(600)))
            .build()?;
        Ok(Self { limiter })
    }

    /// Runs `model` if the estimate fits, and settles what it used, which is the second of what it returns. Nothing is charged to who
    /// is denied. Where the model fails (`None`), the estimate is given back whole.
    ///
    /// # Errors
    /// The denial, which says when to come back.
    pub fn call<T>(
        &self,
        tenant: &str,
        estimate: u64,
        model: impl FnOnce() -> Option<(T, u64)>,
    ) -> Result<Option<T>, Box<Decision>> {
        let call = RandomId::new();
        let hit = Hit::from(tenant).cost(estimate).lease(&call.0);
        let (decision, receipt) = self.limiter.reserve(&hit);
        if !decision.is_allowed() {
            return Err(Box::new(decision));
        }
        let answer = model();
        if let Some(receipt) = receipt {
            let _ = match &answer {
                Some((_, used)) => self.limiter.settle(receipt, *used),
                None => self.limiter.refund(receipt),
            };
        }
        self.limiter.release(&hit);
        Ok(answer.map(|(answer, _)| answer))
    }

    /// The tokens that a tenant has left.
    pub fn tokens_left(&self, tenant: &str) -> u64 {
        let decision = self.limiter.peek(Hit::from(tenant).cost(0));
        decision.outcomes().find(|outcome| outcome.policy() == "tokens").map_or(0, |outcome| outcome.remaining())
    }
}

/// A name that nobody else gives a call: in a program, the id of its trace or of its request.
struct RandomId([u8; 8]);

impl RandomId {
    fn new() -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        Self(RandomState::new().hash_one(0).to_be_bytes())
    }
}

fn main() -> Result<(), ConfigError> {
    let budget = Budget::new(Limiter::builder(), 10_000, 3, 2)?;
    for call in 1..=4 {
        match budget.call("tenant-7", 4_000, || Some(("an answer", 1_250))) {
            Ok(answer) => println!("call {call}: {answer:?}, {} tokens left", budget.tokens_left("tenant-7")),
            Err(denial) => println!("call {call}: {}", denial.explain()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegate::ManualClock;

    use super::*;

    fn budget() -> Budget {
        Budget::new(Limiter::builder().clock(ManualClock::default()), 10_000, 3, 2).expect("it is valid")
    }

    #[test]
    fn the_difference_is_given_back_or_charged() {
        let budget = budget();
        assert!(budget.call("a", 4_000, || Some(((), 1_000))).is_ok());
        assert_eq!(budget.tokens_left("a"), 9_000);
        assert!(budget.call("a", 4_000, || Some(((), 9_500))).is_ok());
        // More than there was: it is owed.
        assert_eq!(budget.tokens_left("a"), 0);
        assert!(budget.call("a", 1, || Some(((), 1))).is_err());
    }

    #[test]
    fn an_unsettled_reservation_is_its_estimate_while_it_runs() {
        let budget = budget();
        let inner = budget.clone();
        let seen = budget.call("a", 4_000, || Some((inner.tokens_left("a"), 4_000)));
        assert_eq!(seen.ok().flatten(), Some(6_000));
    }

    #[test]
    fn a_failed_call_costs_nothing_and_frees_its_place() {
        let budget = budget();
        for _ in 0..10 {
            assert!(budget.call("a", 4_000, || None::<((), u64)>).is_ok());
        }
        assert_eq!(budget.tokens_left("a"), 10_000);
    }

    #[test]
    fn a_denied_call_is_charged_nowhere() {
        let budget = budget();
        assert!(budget.call("a", 10_001, || Some(((), 0))).is_err());
        for _ in 0..3 {
            assert!(budget.call("a", 1, || Some(((), 1))).is_ok());
        }
        let denial = budget.call("a", 1, || Some(((), 1))).expect_err("three requests a minute");
        assert_eq!(denial.strictest().expect("it denies").policy(), "requests");
        assert_eq!(budget.tokens_left("a"), 9_997);
    }

    #[test]
    fn calls_at_once_are_bounded() {
        let budget = budget();
        let (second, third) = (budget.clone(), budget.clone());
        let inside = || Some((third.call("a", 1, || Some(((), 1))).is_err(), 1));
        let nested = || Some((second.call("a", 1, inside).ok().flatten(), 1));
        assert_eq!(budget.call("a", 1, nested).ok().flatten().flatten(), Some(true));
    }
}
