//! Law 10: exactly the limit is admitted, however many threads ask at once, also while policies are replaced. The clock
//! stands still; rounds take fresh keys.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use tidegate::{Algorithm, Hit, Limiter, Policy, Quota, Source};

use crate::{
    traces::for_every_algorithm,
    world::{START, limiter_at},
};

const THREADS: [usize; 5] = [2, 3, 4, 8, 16];
const ROUNDS: usize = 300;
const USER_LIMIT: u64 = 10;
const IP_LIMIT: u64 = 7;

fn per_user(algorithm: Algorithm) -> Policy {
    Policy::new("per-user", Quota::per_hour(USER_LIMIT)).algorithm(algorithm).key(["user"])
}

fn per_ip(algorithm: Algorithm) -> Policy {
    Policy::new("per-ip", Quota::per_hour(IP_LIMIT)).algorithm(algorithm).key(["ip"])
}

/// Runs `work` in so many threads that begin together, for each round, and adds up what each round admitted.
fn race(threads: usize, work: impl Fn(usize, &str) -> u64 + Sync) -> Vec<(String, u64)> {
    let rounds: Vec<(String, AtomicU64)> = (0..ROUNDS).map(|round| (format!("{threads}-{round}"), AtomicU64::new(0))).collect();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (rounds, start, work) = (&rounds, &start, &work);
            scope.spawn(move || {
                start.wait();
                for (key, admitted) in rounds {
                    admitted.fetch_add(work(thread, key), Relaxed);
                }
            });
        }
    });
    rounds.into_iter().map(|(key, admitted)| (key, admitted.into_inner())).collect()
}

/// Asks until denied, and says how much was admitted.
fn take_all(limiter: &Limiter, hit: &Hit<'_>, cost: u64) -> u64 {
    let mut admitted = 0;
    loop {
        let decision = limiter.check_n(hit, cost);
        assert!(decision.outcomes().all(|outcome| outcome.source() == Source::Store));
        if !decision.is_allowed() {
            return admitted;
        }
        admitted += cost;
    }
}

fn used(limiter: &Limiter, hit: Hit<'_>) -> u64 {
    limiter.peek(hit.cost(0)).outcomes().map(|outcome| outcome.used()).max().unwrap()
}

fn user(user: &str) -> Hit<'_> {
    Hit::new().attribute("user", user)
}

#[test]
fn threads_on_one_key_admit_exactly_the_limit() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm)]).0;
        for threads in THREADS {
            for (key, admitted) in race(threads, |_, key| take_all(&limiter, &user(key), 1)) {
                assert_eq!(admitted, USER_LIMIT, "{threads} threads, {key}");
            }
        }
    });
}

#[test]
fn threads_with_several_costs_admit_exactly_the_limit() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm)]).0;
        for (key, admitted) in race(6, |thread, key| take_all(&limiter, &user(key), thread as u64 % 3 + 1)) {
            assert_eq!(admitted, USER_LIMIT, "{key}");
        }
    });
}

#[test]
fn threads_that_refund_leave_what_was_kept() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm)]).0;
        let keep_half = |thread: usize, key: &str| {
            let receipt = limiter.check(user(key)).take_receipt();
            match receipt {
                Some(receipt) if thread.is_multiple_of(2) => {
                    assert!(limiter.refund(receipt).is_allowed());
                    0
                }
                receipt => receipt.map_or(0, |_| 1),
            }
        };
        for (key, kept) in race(8, keep_half) {
            assert_eq!(used(&limiter, user(&key)), kept, "{key}");
        }
    });
}

#[test]
fn threads_against_two_policies_charge_both_or_none() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm), per_ip(algorithm)]).0;
        let addresses = |key: &str| [format!("{key}-even"), format!("{key}-odd")];
        let work = |thread: usize, key: &str| take_all(&limiter, &user(key).attribute("ip", &addresses(key)[thread % 2]), 1);
        for (key, admitted) in race(8, work) {
            let by_address: u64 = addresses(&key).iter().map(|ip| used(&limiter, Hit::new().attribute("ip", ip))).sum();
            let by_user = used(&limiter, user(&key));
            assert_eq!((admitted, by_user, by_address), (USER_LIMIT, USER_LIMIT, USER_LIMIT), "{key}");
        }
    });
}

#[test]
fn tighter_policy_decides_and_the_other_is_not_drained() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm), per_ip(algorithm)]).0;
        for (key, admitted) in race(4, |_, key| take_all(&limiter, &user(key).attribute("ip", key), 1)) {
            assert_eq!((admitted, used(&limiter, user(&key))), (IP_LIMIT, IP_LIMIT), "{key}");
        }
    });
}

/// Races while `replace` replaces the policies over and over, in another thread.
fn race_while(replace: impl Fn(usize) + Send + Sync, work: impl Fn(usize, &str) -> u64 + Sync) -> Vec<(String, u64)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                replace(turn);
                if done.load(Relaxed) {
                    break;
                }
                thread::yield_now();
            }
        });
        let rounds = race(4, work);
        done.store(true, Relaxed);
        rounds
    })
}

#[test]
fn policies_that_change_places_while_serving_admit_exactly_the_limit() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm), per_ip(algorithm)]).0;
        let other = Policy::new("other", Quota::per_hour(1000)).key(["ip"]);
        let orders = [
            vec![per_ip(algorithm), per_user(algorithm)],
            vec![other.clone(), per_user(algorithm), per_ip(algorithm)],
            vec![per_user(algorithm), other, per_ip(algorithm)],
        ];
        let replace = |turn: usize| limiter.configure(orders[turn % orders.len()].clone()).unwrap();
        let rounds = race_while(replace, |_, key| take_all(&limiter, &user(key).attribute("ip", key), 1));
        for (key, admitted) in rounds {
            assert_eq!((admitted, used(&limiter, user(&key))), (IP_LIMIT, IP_LIMIT), "{key}");
        }
    });
}

#[test]
fn quota_that_changes_while_serving_admits_no_more_than_the_larger() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter_at(START, [per_user(algorithm)]).0;
        let set = |limit| limiter.set_quota("per-user", Quota::per_hour(limit)).unwrap();
        let rounds = race_while(|turn| set([3, 2 * USER_LIMIT][turn % 2]), |_, key| take_all(&limiter, &user(key), 1));
        set(2 * USER_LIMIT);
        for (key, admitted) in rounds {
            let rest = take_all(&limiter, &user(&key), 1);
            assert_eq!(admitted + rest, 2 * USER_LIMIT, "{key}");
        }
    });
}
