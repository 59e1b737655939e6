//! One timer for each key that is waited for, not for each who waits; and nobody's timeout depends on whether others are polled,
//! or on whose runtime the timer is.

use std::{
    cmp::Reverse,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use proptest::{
    collection::{btree_set, vec},
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Decision, Limiter, ManualClock, Policy};
use tokio::runtime::Runtime;

use crate::{
    crowd::{CountingClock, Crowd, KEY, WINDOW, next, quota},
    traces::for_every_algorithm,
    world::START,
};

const KEYS: usize = 100;
const EACH: usize = 100;

type Attributes = &'static [(&'static str, &'static str)];

fn hits() -> Vec<Attributes> {
    (0..KEYS).map(|key| &*vec![("key", &*key.to_string().leak())].leak()).collect()
}

fn counting(policy: Policy) -> (Limiter, CountingClock) {
    let clock = CountingClock::new(ManualClock::new(START));
    (Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[test]
fn ten_thousand_waiters_on_a_hundred_keys() {
    let hits = hits();
    for_every_algorithm(|algorithm| {
        let (limiter, clock) = counting(Policy::new("p", quota(10)).algorithm(algorithm));
        let mut crowd = Crowd::default();
        hits.iter().for_each(|hit| drop(limiter.check_n(hit[0].1, 10)));
        let mut draw = 7u64;
        for turn in 0..KEYS * EACH {
            // More than they need: half of them have an alarm, and none rings.
            let timeout = next(&mut draw).is_multiple_of(2).then(|| 1_000 * WINDOW + next(&mut draw) % WINDOW);
            assert!(crowd.wait(&limiter, hits[turn % KEYS], 1, timeout).1.is_none());
        }
        assert_eq!(clock.sleepers(), KEYS);
        // Half of them, at random.
        let mut left: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
        for turn in 0..KEYS * EACH {
            if next(&mut draw).is_multiple_of(2) {
                crowd.cancel(turn);
            } else {
                left[turn % KEYS].push(turn);
            }
        }
        let mut served: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
        assert!(crowd.run().is_empty());
        // With two windows in between every algorithm has all of its limit again.
        while served != left {
            assert_eq!(clock.sleepers(), (0..KEYS).filter(|key| served[*key].len() < left[*key].len()).count());
            clock.clock.advance(micros(2 * WINDOW));
            crowd.polls = 0;
            let before: Vec<usize> = served.iter().map(Vec::len).collect();
            crowd.run().into_iter().for_each(|(turn, _)| served[turn % KEYS].push(turn));
            for key in 0..KEYS {
                assert_eq!(served[key].len(), left[key].len().min(before[key] + 10), "{algorithm}, key {key}");
            }
        }
        // One is gone before the next comes.
        assert_eq!((clock.sleepers(), clock.most_sleepers()), (0, KEYS));
    });
}

#[test]
fn ten_thousand_timeouts_on_a_hundred_keys() {
    let hits = hits();
    let (limiter, clock) = counting(Policy::concurrency("p", 1, Duration::from_secs(60)));
    let _held: Vec<_> = hits.iter().map(|hit| limiter.hold(hit[0].1)).collect();
    let mut crowd = Crowd::default();
    let mut draw = 7u64;
    let mut deadlines: Vec<(u64, usize)> = Vec::new();
    for turn in 0..KEYS * EACH {
        let timeout = 1 + next(&mut draw) % WINDOW;
        let (number, none) = crowd.wait(&limiter, hits[turn % KEYS], 1, Some(timeout));
        assert!(none.is_none());
        deadlines.push((timeout, number));
    }
    assert_eq!(clock.sleepers(), KEYS);
    crowd.polls = 0;
    // Late by a microsecond at most: who is first asks once more when its time is up, and others have that moment too.
    let mut now = 0;
    deadlines.sort_unstable_by_key(|deadline| Reverse(*deadline));
    while now <= WINDOW {
        now += 1;
        clock.clock.advance(micros(1));
        for (number, decision) in crowd.run() {
            assert!(!decision.is_allowed());
            let place = deadlines.iter().rposition(|(deadline, answered)| *answered == number && now >= *deadline);
            deadlines.remove(place.expect("not too early"));
        }
        assert!(deadlines.last().is_none_or(|(deadline, _)| now <= *deadline), "{now}: {:?}", deadlines.last());
    }
    assert_eq!((deadlines.len(), clock.sleepers(), clock.most_sleepers()), (0, 0, KEYS));
    // When one goes, its heirs look after the timer, and when the first goes, so does who is first then.
    assert!(crowd.polls < 20 * KEYS * EACH, "{} polls", crowd.polls);
}

#[test]
fn who_is_kept_and_not_polled_delays_no_timeout_of_others() {
    // As many as are woken to look after the timer, or fewer, of 40; and when the lease ends that is waited for.
    let strategy = (vec(proptest::option::weighted(0.8, 1..200u64), 40), btree_set(0..40usize, 0..=8), 1..200u64);
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |(timeouts, frozen, ends)| {
        let (limiter, clock) = counting(Policy::concurrency("p", 1, micros(1_000 + ends)));
        let _held = limiter.hold("k");
        clock.clock.advance(micros(1_000));
        let mut crowd = Crowd::default();
        for timeout in &timeouts {
            prop_assert!(crowd.wait(&limiter, KEY, 1, *timeout).1.is_none());
        }
        crowd.frozen = frozen;
        let mut left: Vec<usize> = (0..timeouts.len()).filter(|number| !crowd.frozen.contains(number)).collect();
        for now in 1..=201 {
            clock.clock.advance(micros(1));
            for (number, decision) in crowd.run() {
                left.retain(|other| *other != number);
                prop_assert!(decision.is_allowed() || timeouts[number].is_some_and(|timeout| now >= timeout), "too early");
            }
            let late = left.iter().find(|number| timeouts[**number].is_some_and(|timeout| now > timeout));
            prop_assert_eq!(late, None, "at {}", now);
        }
        prop_assert_eq!(clock.most_sleepers(), 1);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn no_timeout_is_lost_between_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    for tasks in [1, 2, 3, 16] {
        let (limiter, clock) = counting(Policy::concurrency("p", 1, Duration::from_hours(1)));
        let _held = limiter.hold("k");
        let work = |task: u64| {
            let limiter = limiter.clone();
            async move {
                let mut draw = task;
                for _ in 0..500 {
                    assert!(!limiter.acquire_timeout("k", micros(next(&mut draw) % 30)).await.is_allowed());
                }
            }
        };
        let all = async {
            let tasks: Vec<_> = (0..tasks).map(|task| tokio::spawn(work(task))).collect();
            while !tasks.iter().all(|task| task.is_finished()) {
                clock.clock.advance(micros(1));
                tokio::task::yield_now().await;
            }
            for task in tasks {
                task.await.unwrap();
            }
        };
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody is forgotten") });
        assert_eq!(clock.sleepers(), 0);
    }
}

/// Polls once, on its own runtime.
fn poll_on<F: Future<Output = Decision> + Unpin>(runtime: &Runtime, future: &mut F) {
    runtime.block_on(poll_fn(|context| {
        assert!(pin!(&mut *future).poll(context).is_pending());
        Poll::Ready(())
    }));
}

/// Somebody comes and waits there, or not, and then the runtime ends or stands still.
type End = fn(Runtime, &Limiter);

#[test]
fn a_runtime_that_ends_or_stands_still_takes_no_timer_of_others_with_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // By the machine's clock, which is the only one that has to do with runtimes.
    let patience = Duration::from_millis(30);
    let ends: [End; 4] = [
        // With all of its tasks.
        |theirs, limiter| {
            let limiter = limiter.clone();
            let task = theirs.spawn(async move { limiter.acquire_timeout("k", Duration::from_secs(10)).await });
            theirs.block_on(tokio::task::yield_now());
            assert!(!task.is_finished());
            drop(theirs);
        },
        // The future is kept.
        |theirs, limiter| {
            let limiter: &'static Limiter = Box::leak(Box::new(limiter.clone()));
            let future = Box::leak(Box::new(Box::pin(limiter.acquire_timeout("k", Duration::from_secs(10)))));
            poll_on(&theirs, future);
            drop(theirs);
        },
        // The future goes, and the runtime is kept.
        |theirs, limiter| {
            let mut future = Box::pin(limiter.acquire_timeout("k", Duration::from_secs(10)));
            poll_on(&theirs, &mut future);
            drop(future);
            std::mem::forget(theirs);
        },
        // Nobody comes from there.
        |theirs, _| drop(theirs),
    ];
    for (index, end) in ends.iter().enumerate() {
        for admitted in [false, true] {
            let (ours, theirs) = (runtime(), runtime());
            let lives = if admitted { patience } else { Duration::from_secs(60) };
            let limiter = Limiter::builder().policy(Policy::concurrency("p", 1, lives)).build().unwrap();
            let _held = limiter.hold("k");
            // First in line, or behind one who is not polled again.
            let mut first = Box::pin(limiter.acquire("k"));
            if !admitted {
                poll_on(&theirs, &mut first);
            }
            let timeout = if admitted { 10 * patience } else { patience };
            let mut future = Box::pin(limiter.acquire_timeout("k", timeout));
            poll_on(&ours, &mut future);
            end(theirs, &limiter);
            let answer = ours.block_on(async { tokio::time::timeout(Duration::from_secs(20), future).await });
            assert_eq!(answer.expect("it is woken").is_allowed(), admitted, "{index}");
        }
    }
}
