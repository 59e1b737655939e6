//! Law 14: memory is bounded, and the bound never helps those who are denied.

use std::{ops::Range, thread};

use tidegate::{Algorithm, Decision, Limiter, ManualClock, Policy, Quota, Source};

use crate::{
    traces::for_every_algorithm,
    world::{Scene, micros},
};

const MAX_KEYS: usize = 32;
const LIMIT: u64 = 4;

/// A limiter that holds few keys.
fn small(algorithm: Algorithm) -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    let policy = Scene::new(algorithm, Quota::per_minute(LIMIT)).policy();
    (Limiter::builder().policy(policy).clock(clock.clone()).max_keys(MAX_KEYS).build().unwrap(), clock)
}

fn keys(limiter: &Limiter) -> usize {
    limiter.usage()[0].keys
}

/// Asks once for each of the numbered keys.
fn ask_each(limiter: &Limiter, name: &str, numbers: Range<usize>, cost: u64) -> Vec<Decision> {
    numbers.map(|number| limiter.check_n(&format!("{name}-{number}"), cost)).collect()
}

fn sources(decisions: &[Decision]) -> Vec<Source> {
    decisions.iter().flat_map(|decision| decision.outcomes().map(|outcome| outcome.source()).collect::<Vec<_>>()).collect()
}

#[test]
fn keys_never_exceed_the_bound() {
    for_every_algorithm(|algorithm| {
        let (limiter, _) = small(algorithm);
        for number in 0..1_000 {
            assert_eq!(limiter.check(&format!("key-{number}")).outcomes().count(), 1);
            assert!(keys(&limiter) <= MAX_KEYS, "{} keys after {number}", keys(&limiter));
        }
        assert!(limiter.usage()[0].bytes > 0);
    });
}

#[test]
fn threads_pass_the_bound_by_at_most_one_key_each() {
    for_every_algorithm(|algorithm| {
        let (limiter, _) = small(algorithm);
        thread::scope(|scope| {
            for thread in 0..4 {
                let limiter = &limiter;
                scope.spawn(move || drop(ask_each(limiter, &format!("thread-{thread}"), 0..500, 1)));
            }
        });
        assert!(keys(&limiter) <= MAX_KEYS + 4, "{} keys", keys(&limiter));
    });
}

#[test]
fn expired_keys_go_first() {
    for_every_algorithm(|algorithm| {
        let (limiter, clock) = small(algorithm);
        let half = MAX_KEYS / 2;
        let old = ask_each(&limiter, "old", 0..half, 1);
        let longest =
            old.iter().flat_map(|decision| decision.outcomes().map(|outcome| micros(outcome.reset_after())).max()).max();
        clock.advance(std::time::Duration::from_micros(longest.unwrap()));
        let live = ask_each(&limiter, "live", 0..half, 1);
        let fresh = ask_each(&limiter, "fresh", 0..half, 1);
        assert!(sources(&live).iter().chain(&sources(&fresh)).all(|source| *source == Source::Store));
        for number in 0..half {
            assert_eq!(limiter.remaining(&format!("live-{number}")), Some(LIMIT - 1), "live-{number} gave way to a fresh one");
        }
    });
}

#[test]
fn key_that_is_being_denied_is_never_evicted() {
    for_every_algorithm(|algorithm| {
        let (limiter, _) = small(algorithm);
        let full = MAX_KEYS / 2;
        ask_each(&limiter, "full", 0..full, LIMIT);
        ask_each(&limiter, "fresh", 0..2_000, 1);
        for decision in ask_each(&limiter, "full", 0..full, 1) {
            assert!(!decision.is_allowed(), "{}", decision.explain());
        }
        assert!(keys(&limiter) <= MAX_KEYS);
    });
}

#[test]
fn fresh_keys_share_the_overflow_when_all_others_are_at_their_limit() {
    for_every_algorithm(|algorithm| {
        let (limiter, clock) = small(algorithm);
        let full = ask_each(&limiter, "full", 0..MAX_KEYS, LIMIT);
        assert!(sources(&full).iter().all(|source| *source == Source::Store));
        let fresh = ask_each(&limiter, "fresh", 0..100, 1);
        assert!(sources(&fresh).iter().all(|source| *source == Source::Overflow));
        assert_eq!(fresh.iter().filter(|decision| decision.is_allowed()).count() as u64, LIMIT);
        assert!(fresh.iter().all(|decision| decision.explain().to_string().contains("the store is full")));
        assert!(fresh.into_iter().all(|mut decision| decision.take_receipt().is_none()), "what is shared is not refunded");
        for decision in ask_each(&limiter, "full", 0..MAX_KEYS, 1) {
            assert!(!decision.is_allowed() && sources(&[decision]) == [Source::Store]);
        }
        clock.advance(2 * Quota::per_minute(LIMIT).window());
        assert_eq!(sources(&ask_each(&limiter, "later", 0..MAX_KEYS, 1)), [Source::Store; MAX_KEYS]);
    });
}

#[test]
fn each_policy_has_its_own_bound() {
    for_every_algorithm(|algorithm| {
        let clock = ManualClock::default();
        let policy = |name: &str| Policy::new(name, Quota::per_minute(LIMIT)).algorithm(algorithm);
        let limiter = Limiter::builder().policies([policy("a"), policy("b")]).clock(clock).max_keys(MAX_KEYS).build().unwrap();
        ask_each(&limiter, "key", 0..200, 1);
        for usage in limiter.usage() {
            assert!(usage.keys > MAX_KEYS / 2 && usage.keys <= MAX_KEYS, "{usage:?}");
        }
    });
}
