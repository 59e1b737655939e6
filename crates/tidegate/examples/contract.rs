//! The classic contract of a limiter in front of users (`allow_request`, `configure`, `remaining`, `reset`), on top of
//! this crate: a few lines, and the eight behaviours that everybody checks as tests.
//!
//! ```sh
//! cargo run --example contract
//! cargo test --example contract
//! ```

use std::time::Duration;

use tidegate::{Algorithm, Builder, Limiter, Policy, Quota};

/// At most so many requests per user in any window of so long.
#[derive(Clone, Debug)]
pub struct UserLimiter {
    limiter: Limiter,
}

const POLICY: &str = "requests";

impl UserLimiter {
    /// Exact: a log of requests for each user.
    ///
    /// # Errors
    /// When the numbers are no quota.
    pub fn new(builder: Builder, max_requests: u64, window: Duration) -> Result<Self, Box<dyn std::error::Error>> {
        let policy = Policy::new(POLICY, Quota::new(max_requests, window)?).algorithm(Algorithm::SlidingLog);
        Ok(Self { limiter: builder.policy(policy).build()? })
    }

    /// Whether the user may go on; counted if so.
    pub fn allow_request(&self, user: &str) -> bool {
        self.limiter.check(user).is_allowed()
    }

    /// Another limit from now on, for users already counted too.
    ///
    /// # Errors
    /// When the numbers are no quota; the old one stays.
    pub fn configure(&self, max_requests: u64, window: Duration) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.limiter.set_quota(POLICY, Quota::new(max_requests, window)?)?)
    }

    /// What the user has left.
    pub fn remaining(&self, user: &str) -> u64 {
        self.limiter.remaining(user).expect("the policy applies to every user")
    }

    /// Gives the user the full quota again.
    pub fn reset(&self, user: &str) {
        let _ = self.limiter.reset(user);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let users = UserLimiter::new(Limiter::builder(), 3, Duration::from_secs(60))?;
    for request in 1..=4 {
        println!("alice, request {request}: allowed {}, {} left", users.allow_request("alice"), users.remaining("alice"));
    }
    users.configure(5, Duration::from_secs(60))?;
    println!("after a raise to 5: {} left", users.remaining("alice"));
    users.reset("alice");
    println!("after a reset: {} left", users.remaining("alice"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::ManualClock;

    const WINDOW: Duration = Duration::from_secs(10);

    fn users(max_requests: u64) -> (UserLimiter, ManualClock) {
        let clock = ManualClock::default();
        let users = UserLimiter::new(Limiter::builder().clock(clock.clone()), max_requests, WINDOW).expect("a quota");
        (users, clock)
    }

    fn admitted(users: &UserLimiter, user: &str, requests: usize) -> usize {
        (0..requests).filter(|_| users.allow_request(user)).count()
    }

    #[test]
    fn allows_the_first_n() {
        let (users, _) = users(5);
        assert_eq!(admitted(&users, "a", 5), 5);
    }

    #[test]
    fn blocks_the_one_after() {
        let (users, _) = users(5);
        assert_eq!(admitted(&users, "a", 6), 5);
    }

    #[test]
    fn allows_again_after_the_window() {
        let (users, clock) = users(5);
        assert_eq!(admitted(&users, "a", 6), 5);
        clock.advance(WINDOW);
        assert_eq!(admitted(&users, "a", 6), 5);
    }

    #[test]
    fn remaining_counts_down() {
        let (users, _) = users(3);
        let left: Vec<u64> = (0..4)
            .map(|_| {
                users.allow_request("a");
                users.remaining("a")
            })
            .collect();
        assert_eq!(left, [2, 1, 0, 0]);
    }

    #[test]
    fn reset_restores_the_full_quota() {
        let (users, _) = users(5);
        admitted(&users, "a", 6);
        users.reset("a");
        assert_eq!(users.remaining("a"), 5);
        assert_eq!(admitted(&users, "a", 6), 5);
    }

    #[test]
    fn four_threads_never_exceed_the_maximum() {
        let (users, _) = users(100);
        for round in 0..500 {
            let user = format!("user-{round}");
            let total: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| admitted(&users, &user, 40))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert_eq!(total, 100);
        }
    }

    #[test]
    fn reconfiguring_applies_to_users_already_counted() {
        let (users, _) = users(5);
        assert_eq!(admitted(&users, "a", 5), 5);
        users.configure(7, WINDOW).expect("a quota");
        assert_eq!(admitted(&users, "a", 5), 2);
        users.configure(3, WINDOW).expect("a quota");
        assert_eq!(users.remaining("a"), 0);
        assert!(users.configure(0, WINDOW).is_err());
        assert_eq!(users.remaining("b"), 3);
    }

    #[test]
    fn users_are_isolated() {
        let (users, _) = users(5);
        assert_eq!(admitted(&users, "a", 6), 5);
        assert_eq!(users.remaining("b"), 5);
    }
}
