//! Law 17: who waits is served first come first served, a dropped future holds nothing, and no wait is longer than its timeout.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use tidegate::{Algorithm, Clock, Decision, Hit, Limiter, ManualClock, Override, Policy};

use crate::{
    crowd::{CountingClock, Crowd, KEY, WINDOW, next, quota},
    traces::{for_every_algorithm, property},
    world::{Answer, START, limiter_at},
};

/// Hits of one policy, of the other, and of both.
const HITS: [&[(&str, &str)]; 6] = [
    &[("user", "a")],
    &[("user", "b")],
    &[("user", "a"), ("ip", "1")],
    &[("user", "b"), ("ip", "1")],
    &[("user", "a"), ("ip", "2")],
    &[("ip", "2")],
];

fn hit(index: usize) -> Hit<'static> {
    HITS[index].iter().fold(Hit::new(), |hit, (name, value)| hit.attribute(name, *value))
}

fn policies(algorithm: Algorithm, limits: (u64, u64)) -> [Policy; 2] {
    [
        Policy::new("per-user", quota(limits.0)).algorithm(algorithm).key(["user"]),
        Policy::new("per-ip", quota(limits.1)).algorithm(algorithm).key(["ip"]),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Arrive {
        hit: usize,
        cost: u64,
        timeout: Option<u64>,
    },
    /// Of those who wait, counted round.
    Cancel(usize),
    Check {
        hit: usize,
        cost: u64,
    },
    /// Of the receipts so far, counted round.
    Refund(usize),
    Settle(usize, u64),
    Reset(usize),
    Pass(u64),
    Limit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (hit, cost) = (|| 0..HITS.len(), || 1..=4u64);
    let timeout = prop_oneof![2 => Just(None), 1 => (0..3 * WINDOW).prop_map(Some)];
    prop_oneof![
        8 => (hit(), cost(), timeout).prop_map(|(hit, cost, timeout)| Step::Arrive { hit, cost, timeout }),
        2 => any::<usize>().prop_map(Step::Cancel),
        2 => (hit(), cost()).prop_map(|(hit, cost)| Step::Check { hit, cost }),
        2 => any::<usize>().prop_map(Step::Refund),
        1 => (any::<usize>(), 0..4u64).prop_map(|(receipt, actual)| Step::Settle(receipt, actual)),
        1 => hit().prop_map(Step::Reset),
        4 => prop_oneof![1..100u64, 1..WINDOW].prop_map(Step::Pass),
        1 => (2..8u64).prop_map(Step::Limit),
    ]
}

/// Who waits, as the law has it.
struct Waiter {
    number: usize,
    hit: usize,
    cost: u64,
    deadline: u64,
    /// When it asks next; it sleeps until then.
    due: u64,
}

impl Waiter {
    fn shares_a_key_with(&self, other: &Waiter) -> bool {
        HITS[self.hit].iter().any(|attribute| HITS[other.hit].contains(attribute))
    }
}

/// A limiter with waiters, and its twin, on which only `check` is called, when the law says that somebody is to be served.
struct Pair {
    limiter: Limiter,
    twin: Limiter,
    clock: ManualClock,
    counting: CountingClock,
    crowd: Crowd,
    waiters: Vec<Waiter>,
    receipts: Vec<(String, String)>,
}

impl Pair {
    fn take(&mut self, step: &Step) {
        let (limiter, twin) = (self.limiter.clone(), self.twin.clone());
        let now = self.clock.epoch_micros();
        match *step {
            Step::Arrive { hit, cost, timeout } => {
                let (number, decision) = self.crowd.wait(&limiter, HITS[hit], cost, timeout);
                let deadline = timeout.map_or(u64::MAX, |timeout| now + timeout);
                let waiter = Waiter { number, hit, cost, deadline, due: 0 };
                let queues = self.waiters.iter().any(|other| other.shares_a_key_with(&waiter));
                match decision {
                    // Foreseen; whether rightly is another test.
                    Some(decision) if queues && !decision.is_allowed() && decision.retry_after().is_some() => {
                        let wait = decision.retry_after().unwrap().as_micros() as u64;
                        assert!(now + wait > deadline, "refused for {wait}");
                        assert!(decision.outcomes().all(|outcome| outcome.charged() == 0));
                    }
                    decision => {
                        self.waiters.push(waiter);
                        return self.settle(decision.map(|decision| (number, decision)));
                    }
                }
            }
            Step::Cancel(index) => {
                if !self.waiters.is_empty() {
                    let waiter = self.waiters.remove(index % self.waiters.len());
                    self.crowd.cancel(waiter.number);
                }
            }
            Step::Check { hit: index, cost } => {
                let (decision, expected) = (limiter.check_n(hit(index), cost), twin.check_n(hit(index), cost));
                self.compare(decision, expected);
            }
            Step::Refund(index) | Step::Settle(index, _) => {
                if self.receipts.is_empty() {
                    return;
                }
                let (one, other) = &self.receipts[index % self.receipts.len()];
                let amend = |limiter: &Limiter, receipt: &str| match *step {
                    Step::Settle(_, actual) => limiter.settle(receipt.parse().unwrap(), actual),
                    _ => limiter.refund(receipt.parse().unwrap()),
                };
                let (decision, expected) = (amend(&limiter, one), amend(&twin, other));
                assert_eq!(answers(&decision), answers(&expected));
                self.nudge(&decision);
            }
            Step::Reset(index) => {
                let (decision, expected) = (limiter.reset(hit(index)), twin.reset(hit(index)));
                assert_eq!(answers(&decision), answers(&expected));
                self.nudge(&decision);
            }
            Step::Pass(micros) => self.clock.advance(Duration::from_micros(micros)),
            Step::Limit(limit) => {
                [&limiter, &twin].into_iter().for_each(|limiter| limiter.set_quota("per-user", quota(limit)).unwrap());
                self.waiters.iter_mut().for_each(|waiter| waiter.due = 0);
            }
        }
        self.settle(None);
    }

    /// Who waits for these keys asks again, if it is first.
    fn nudge(&mut self, decision: &Decision) {
        let keys: Vec<String> = decision.outcomes().map(|outcome| outcome.key().to_string()).collect();
        let touched = |waiter: &&mut Waiter| HITS[waiter.hit].iter().any(|(_, value)| keys.iter().any(|key| key == value));
        self.waiters.iter_mut().filter(touched).for_each(|waiter| waiter.due = 0);
    }

    /// Runs all who are woken, and compares with what the law has to say.
    fn settle(&mut self, already: Option<(usize, Decision)>) {
        let mut answered: Vec<(usize, Decision)> = already.into_iter().chain(self.crowd.run()).collect();
        let now = self.clock.epoch_micros();
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = &self.waiters[index];
            let first = !self.waiters[..index].iter().any(|ahead| ahead.shares_a_key_with(waiter));
            let late = now > waiter.deadline;
            let (number, hit, cost, deadline) = (waiter.number, hit(waiter.hit), waiter.cost, waiter.deadline);
            let known = |limiter: &Limiter| limiter.peek(hit.clone().cost(cost)).outcomes().any(|outcome| outcome.is_hopeless());
            let expected =
                if known(&self.twin) || first && !late && now >= waiter.due { Some(self.twin.check_n(&hit, cost)) } else { None };
            let wait = expected.as_ref().and_then(Decision::retry_after).map_or(0, |wait| wait.as_micros() as u64);
            if !late && (expected.is_none() || wait > 0 && now + wait <= deadline) {
                if expected.is_some() {
                    self.waiters[index].due = now + wait;
                }
                index += 1;
                continue;
            }
            let place = answered.iter().position(|(answered, _)| *answered == number);
            let (_, decision) = answered.remove(place.unwrap_or_else(|| panic!("{number} is not answered: {expected:?}")));
            self.waiters.remove(index);
            match expected {
                // When it is told so, before others are served or after, does not matter.
                Some(expected) if expected.outcomes().any(|outcome| outcome.is_hopeless()) => {
                    assert!(decision.outcomes().any(|outcome| outcome.is_hopeless()));
                    assert!(decision.outcomes().all(|outcome| outcome.charged() == 0));
                }
                Some(expected) => self.compare(decision, expected),
                None => assert!(!decision.is_allowed() && decision.retry_after().is_some(), "late: {decision:?}"),
            }
            // Somebody ahead may be first now.
            index = 0;
        }
        assert!(answered.is_empty(), "{answered:?}");
        // Who is first wants to be woken, and who has a timeout: by the timer of the first of its keys.
        let wakes = |(index, waiter): &(usize, &Waiter)| {
            waiter.deadline < u64::MAX || !self.waiters[..*index].iter().any(|ahead| ahead.shares_a_key_with(waiter))
        };
        let keys: BTreeSet<_> = self.waiters.iter().enumerate().filter(wakes).map(|(_, waiter)| HITS[waiter.hit][0]).collect();
        assert_eq!(self.counting.sleepers(), keys.len(), "one timer for each key");
    }

    fn compare(&mut self, mut decision: Decision, mut expected: Decision) {
        assert_eq!(answers(&decision), answers(&expected));
        let receipts = (decision.take_receipt(), expected.take_receipt());
        if let (Some(one), Some(other)) = receipts {
            self.receipts.push((one.to_string(), other.to_string()));
        }
    }
}

fn answers(decision: &Decision) -> Vec<Answer> {
    decision.outcomes().map(Answer::from).collect()
}

#[test]
fn waiters_are_served_in_order_and_as_soon_as_the_limit_allows() {
    property(
        150,
        |algorithm| ((Just(algorithm), 2..8u64, 1..8u64, any::<u64>()), vec(step(), 1..60)),
        |((algorithm, users, ips, draw), steps)| {
            let clock = ManualClock::new(START);
            let counting = CountingClock::new(clock.clone());
            let builder = || Limiter::builder().policies(policies(algorithm, (users, ips)));
            let limiter = builder().clock(counting.clone()).build().unwrap();
            let twin = builder().clock(clock.clone()).build().unwrap();
            let mut crowd = Crowd::default();
            crowd.draw = draw;
            let mut pair = Pair { limiter, twin, clock, counting, crowd, waiters: Vec::new(), receipts: Vec::new() };
            steps.iter().for_each(|step| pair.take(step));
            // Nobody starves.
            for _ in 0..=4 * steps.len() {
                pair.take(&Step::Pass(WINDOW));
            }
            prop_assert!(pair.waiters.is_empty());
            for index in 0..HITS.len() {
                prop_assert_eq!(pair.limiter.remaining(hit(index)), pair.twin.remaining(hit(index)));
            }
            Ok(())
        },
    );
}

/// Lets time pass until the last is answered, not further than it must, with `first` to be served next; when that is, and what.
fn until_answered(crowd: &mut Crowd, limiter: &Limiter, clock: &ManualClock, costs: &[u64], mut first: usize) -> (u64, Decision) {
    let began = clock.epoch_micros();
    let last = costs.len() - 1;
    loop {
        for (number, decision) in crowd.run() {
            if number == last {
                return (clock.epoch_micros() - began, decision);
            }
            assert_eq!(number, first, "in order");
            first += 1;
        }
        let wait = limiter.peek(Hit::from("k").cost(costs[first])).retry_after().expect("it waits");
        clock.advance(wait);
    }
}

#[test]
fn a_timeout_is_refused_at_once_when_those_ahead_take_too_long_and_never_otherwise() {
    let strategy = |algorithm| {
        let limits = (1..10u64, 1..10u64);
        let costs = prop_oneof![vec(Just(1), 2..30), vec(1..10u64, 2..12)];
        (Just(algorithm), limits, vec((1..10u64, 0..WINDOW), 0..8), costs)
    };
    property(300, strategy, |(algorithm, (limit, burst), before, costs)| {
        let costs: Vec<u64> = costs.into_iter().map(|cost| 1 + cost % limit.min(burst)).collect();
        let quota =
            if matches!(algorithm, Algorithm::TokenBucket | Algorithm::Gcra) { quota(limit).burst(burst) } else { quota(limit) };
        let world = || {
            let (limiter, clock) = limiter_at(START, [Policy::new("p", quota).algorithm(algorithm)]);
            for (cost, pause) in &before {
                let _ = limiter.check_n("k", *cost);
                clock.advance(Duration::from_micros(*pause));
            }
            let mut crowd = Crowd::default();
            let (_, ahead) = costs.split_last().unwrap();
            let served = ahead.iter().filter_map(|cost| crowd.wait(&limiter, KEY, *cost, None).1).count();
            (limiter, clock, crowd, served)
        };
        let last = *costs.last().unwrap();

        let (limiter, clock, mut crowd, served) = world();
        if served + 1 == costs.len() {
            return Ok(());
        }
        prop_assert!(crowd.wait(&limiter, KEY, last, None).1.is_none());
        let (time, decision) = until_answered(&mut crowd, &limiter, &clock, &costs, served);
        prop_assert!(decision.is_allowed());

        let (limiter, clock, mut crowd, _) = world();
        prop_assert!(crowd.wait(&limiter, KEY, last, Some(time)).1.is_none(), "refused, and is served after {}", time);
        let (again, decision) = until_answered(&mut crowd, &limiter, &clock, &costs, served);
        prop_assert!(decision.is_allowed() && again == time);

        // A window may have room left that is too small for the next, and a bucket that is full loses part of a microsecond.
        let line = &costs[served..];
        let fills = line.iter().sum::<u64>() <= limit || line.iter().all(|cost| *cost == 1);
        let slack = match algorithm {
            Algorithm::SlidingLog | Algorithm::FixedWindow if fills => Some(0),
            Algorithm::Gcra => Some(0),
            Algorithm::TokenBucket => Some(line.len() as u64),
            _ => None,
        };
        let (limiter, clock, mut crowd, _) = world();
        let Some(short) = time.checked_sub(1 + slack.unwrap_or(0)) else { return Ok(()) };
        let (number, refused) = crowd.wait(&limiter, KEY, last, Some(short));
        prop_assert!(refused.is_some() || slack.is_none(), "not refused at once, though it takes {}", time);
        let refused = refused.unwrap_or_else(|| {
            clock.advance(Duration::from_micros(time));
            crowd.run().into_iter().find(|(answered, _)| *answered == number).unwrap().1
        });
        prop_assert!(!refused.is_allowed() && refused.outcomes().all(|outcome| outcome.charged() == 0));
        if slack == Some(0) {
            prop_assert_eq!(refused.retry_after(), Some(Duration::from_micros(time)));
        }
        Ok(())
    });
}

fn one(algorithm: Algorithm, limit: u64) -> (Limiter, ManualClock, Crowd) {
    let (limiter, clock) = limiter_at(START, [Policy::new("p", quota(limit)).algorithm(algorithm)]);
    (limiter, clock, Crowd::default())
}

#[test]
fn what_makes_room_wakes_who_is_first() {
    for_every_algorithm(|algorithm| {
        let (limiter, clock, mut crowd) = one(algorithm, 2);
        let receipt = || limiter.check_n("k", 2).take_receipt().unwrap();
        let makes_room: [&dyn Fn(tidegate::Receipt); 4] = [
            &|receipt| drop(limiter.refund(receipt)),
            &|receipt| drop(limiter.settle(receipt, 1)),
            &|_| drop(limiter.reset("k")),
            &|_| limiter.set_quota("p", quota(3)).unwrap(),
        ];
        for make_room in makes_room {
            let _ = limiter.reset("k");
            // A reset voids the receipts of its own microsecond too.
            clock.advance(Duration::from_micros(1));
            let receipt = receipt();
            let (first, none) = crowd.wait(&limiter, KEY, 1, None);
            assert!(none.is_none() && crowd.wait(&limiter, KEY, 3, None).1.is_some_and(|decision| !decision.is_allowed()));
            let (second, _) = crowd.wait(&limiter, KEY, 2, None);
            make_room(receipt);
            let answered = crowd.run();
            assert_eq!(answered[0].0, first);
            assert!(answered[0].1.is_allowed());
            crowd.cancel(second);
        }
    });
}

#[test]
fn a_cancelled_waiter_holds_nothing_and_passes_the_turn_on() {
    for_every_algorithm(|algorithm| {
        let (limiter, clock, mut crowd) = one(algorithm, 2);
        let _ = limiter.check_n("k", 2);
        let numbers: Vec<usize> = (0..4).map(|_| crowd.wait(&limiter, KEY, 2, None).0).collect();
        let polls = crowd.polls;
        clock.advance(Duration::from_micros(2 * WINDOW));
        // Woken, and gone before it looks; and one in the middle.
        crowd.cancel(numbers[0]);
        crowd.cancel(numbers[2]);
        let answered = crowd.run();
        assert_eq!(answered.len(), 1);
        assert_eq!((answered[0].0, limiter.remaining("k")), (numbers[1], Some(0)));
        // It, and the one whose turn it is now.
        assert_eq!(crowd.polls - polls, 2);
    });
}

#[test]
fn no_wait_that_does_not_help_and_none_that_is_not_needed() {
    for_every_algorithm(|algorithm| {
        let named = |name: &str| Policy::new(name, quota(2)).algorithm(algorithm);
        let blocked = named("p").override_key(["blocked"], Override::Blocked).override_key(["free"], Override::Unlimited);
        let (limiter, _) = limiter_at(START, [blocked, named("shadow").key(["key"]).shadow()]);
        let mut crowd = Crowd::default();
        let mut wait = |hit, cost, timeout| crowd.wait(&limiter, hit, cost, timeout).1;
        assert!(wait(KEY, 2, None).is_some_and(|decision| decision.is_allowed()));
        assert!(wait(KEY, 1, None).is_none());
        let hopeless = wait(KEY, 3, None).expect("at once, whoever waits");
        assert!(hopeless.strictest().unwrap().is_hopeless());
        assert!(wait(&[("key", "blocked")], 1, None).is_some_and(|decision| !decision.is_allowed()));
        assert!(wait(&[("key", "free")], 9, None).is_some_and(|decision| decision.is_allowed()));
        assert!(wait(&[("other", "k")], 9, None).is_some_and(|decision| decision.is_allowed()));
        assert!(wait(KEY, 0, None).is_some_and(|decision| decision.is_allowed()));
        assert!(wait(KEY, 1, Some(0)).is_some_and(|decision| !decision.is_allowed()));
        assert!(wait(&[("key", "another")], 1, Some(0)).is_some_and(|decision| decision.is_allowed()));
    });
}

#[test]
fn a_policy_that_comes_or_goes_is_waited_for_or_not() {
    let policy = |name: &str| Policy::new(name, quota(1));
    let (limiter, clock) = limiter_at(START, [policy("a")]);
    let mut crowd = Crowd::default();
    let _ = limiter.check("k");
    let numbers: Vec<usize> = (0..3).map(|_| crowd.wait(&limiter, KEY, 1, None).0).collect();
    limiter.configure([policy("a"), policy("b")]).unwrap();
    assert!(crowd.run().is_empty());
    clock.advance(Duration::from_micros(WINDOW));
    let answered = crowd.run();
    assert_eq!(answered.iter().map(|(number, _)| *number).collect::<Vec<_>>(), numbers[..1]);
    assert_eq!(answered[0].1.outcomes().count(), 2);
    limiter.configure([]).unwrap();
    assert_eq!(crowd.run().len(), 2);
}

#[test]
fn threads_that_acquire_refund_and_cancel_leave_nobody_waiting() {
    const LIMIT: usize = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    for_every_algorithm(|algorithm| {
        // The clock stands still: all that anybody waits for is what others give back.
        let (limiter, _) = limiter_at(START, [Policy::new("p", quota(LIMIT as u64)).algorithm(algorithm)]);
        let live = Arc::new(AtomicUsize::new(0));
        let work = |task: u64| {
            let (limiter, live) = (limiter.clone(), Arc::clone(&live));
            async move {
                let mut draw = task;
                for _ in 0..50 {
                    let decision = if next(&mut draw).is_multiple_of(3) {
                        // Gone at some later poll, or when it is served.
                        let mut polls = next(&mut draw) % 4;
                        let mut acquire = Box::pin(limiter.acquire("k"));
                        let given_up = std::future::poll_fn(move |context| match acquire.as_mut().poll(context) {
                            Poll::Ready(decision) => Poll::Ready(Some(decision)),
                            Poll::Pending if polls == 0 => Poll::Ready(None),
                            Poll::Pending => {
                                polls -= 1;
                                context.waker().wake_by_ref();
                                Poll::Pending
                            }
                        });
                        given_up.await
                    } else {
                        Some(limiter.acquire("k").await)
                    };
                    if let Some(mut decision) = decision {
                        assert!(live.fetch_add(1, SeqCst) < LIMIT);
                        tokio::task::yield_now().await;
                        live.fetch_sub(1, SeqCst);
                        let _ = limiter.refund(decision.take_receipt().unwrap());
                    }
                }
            }
        };
        runtime.block_on(async {
            let tasks: Vec<_> = (0..64).map(|task| tokio::spawn(work(task))).collect();
            for task in tasks {
                tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody is forgotten").unwrap();
            }
        });
        assert_eq!(limiter.remaining("k"), Some(LIMIT as u64));
    });
}
