//! One call in front of something that must not be flooded, such as sending a code by SMS: `try_access(key, permits, window, timeout)`
//! grants at most so many permits for a key in any window, and waits for one up to the timeout.
//!
//! ```sh
//! cargo run --features waiting --example try_access
//! cargo test --features waiting --example try_access
//! ```

use std::{
    collections::HashMap,
    error::Error,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tidegate::{Algorithm, Builder, Limiter, Policy, Quota};

/// Guards accesses to anything. For many machines, let `builder` have a `.store(Redis::new(url)?)`.
pub struct Gate {
    builder: fn() -> Builder,
    /// One for each quota that has been asked for; they count apart.
    limiters: Mutex<HashMap<(i64, Duration), Limiter>>,
}

impl Gate {
    /// A gate whose limiters are made by `builder`.
    pub fn new(builder: fn() -> Builder) -> Self {
        Self { builder, limiters: Mutex::default() }
    }

    /// Whether there is access to `key`, of which there are `permits` in any `window`, within `timeout`. Refused at once if the wait
    /// would be longer. A key may be of any length and of any bytes.
    ///
    /// # Errors
    /// When `permits` is not positive, or the window is none.
    pub async fn try_access(&self, key: &str, permits: i64, window: Duration, timeout: Duration) -> Result<bool, Box<dyn Error>> {
        let limiter = self.limiter(permits, window)?;
        Ok(limiter.acquire_timeout(key, timeout).await.is_allowed())
    }

    fn limiter(&self, permits: i64, window: Duration) -> Result<Limiter, Box<dyn Error>> {
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = limiters.get(&(permits, window)) {
            return Ok(limiter.clone());
        }
        let quota = Quota::new(u64::try_from(permits)?, window)?;
        // The log is exact. The name is in the keys that a store has.
        let name = format!("access-{permits}-in-{}us", window.as_micros());
        let limiter = (self.builder)().policy(Policy::new(name, quota).algorithm(Algorithm::SlidingLog)).build()?;
        Ok(limiters.entry((permits, window)).or_insert(limiter).clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new(Limiter::builder);
    let (window, patience) = (Duration::from_millis(500), Duration::from_millis(600));
    for request in 1..=4 {
        let granted = gate.try_access("+1 555 0100", 2, window, patience).await?;
        println!("request {request}: {}", if granted { "code sent" } else { "refused" });
    }
    let granted = gate.try_access("+1 555 0100", 2, window, Duration::ZERO).await?;
    println!("request 5, which does not wait: {}", if granted { "code sent" } else { "refused" });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::ManualClock;
    use tokio::join;

    const MINUTE: Duration = Duration::from_secs(60);

    /// On a clock that stands still.
    fn gate() -> Gate {
        Gate::new(|| Limiter::builder().clock(ManualClock::default()))
    }

    #[tokio::test]
    async fn grants_so_many_in_a_window() {
        let gate = gate();
        for request in 0..5 {
            let granted = gate.try_access("a", 3, MINUTE, Duration::ZERO).await.expect("a quota");
            assert_eq!(granted, request < 3);
        }
        assert!(gate.try_access("b", 3, MINUTE, Duration::ZERO).await.expect("a quota"));
    }

    #[tokio::test]
    async fn refuses_what_is_no_quota() {
        for permits in [0, -1, i64::MIN] {
            assert!(gate().try_access("a", permits, MINUTE, MINUTE).await.is_err());
        }
        assert!(gate().try_access("a", 1, Duration::ZERO, MINUTE).await.is_err());
    }

    #[tokio::test]
    async fn keys_of_any_length_are_told_apart() {
        let (gate, long) = (gate(), "x".repeat(1_000_000));
        assert!(gate.try_access(&long, 1, MINUTE, Duration::ZERO).await.expect("a quota"));
        assert!(!gate.try_access(&long, 1, MINUTE, Duration::ZERO).await.expect("a quota"));
        assert!(gate.try_access(&long[1..], 1, MINUTE, Duration::ZERO).await.expect("a quota"));
    }

    #[tokio::test]
    async fn waits_up_to_the_timeout() {
        let gate = Gate::new(|| Limiter::builder().clock(CLOCK.clone()));
        static CLOCK: std::sync::LazyLock<ManualClock> = std::sync::LazyLock::new(ManualClock::default);
        assert!(gate.try_access("a", 1, MINUTE, MINUTE).await.expect("a quota"));
        // It would be a minute, and no longer; the one behind it would have to wait for two.
        let (granted, refused, ()) =
            join!(gate.try_access("a", 1, MINUTE, MINUTE), gate.try_access("a", 1, MINUTE, MINUTE), async {
                CLOCK.advance(MINUTE)
            });
        assert!(granted.expect("a quota"));
        assert!(!refused.expect("a quota"));
    }
}
