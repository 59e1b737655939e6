//! What waits for the server, and who no longer does: callers go away at any moment, and more come than can be served.

use std::{
    collections::HashSet,
    env,
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, Instant},
};

use tidegate::{Hit, Limiter, OnStoreError, Pending, Policy, Quota, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::rig::{Draw, LONG, alone, is_by, limiter, patient, redis, source, together, used};

const KEYS: usize = 64;
/// Each key has been charged so much times its number, so that what is used says which key it is of.
const APART: u64 = 1_000_000;

/// Polls so often, in turn with others, and then drops it; the answer, if it was there by then.
async fn give_up_after<T>(polls: u64, mut pending: Pending<T>) -> Option<Result<T, StoreError>> {
    for _ in 0..polls {
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// What callers know of one key.
#[derive(Default)]
struct Known {
    asked: AtomicU64,
    /// What was used after each charge that was seen: no two can be equal.
    seen: Mutex<HashSet<u64>>,
}

async fn cancelling(limiter: Limiter<Redis>, known: Arc<Vec<Known>>, mut draw: Draw, hits: u64) -> u64 {
    let mut dropped = 0;
    for _ in 0..hits {
        let number = draw.below(KEYS as u64) as usize;
        let key = format!("key-{number}");
        // Not all answers are of one length: some hits have two policies.
        let hit = Hit::new().attribute("user", &key);
        let hit = if draw.below(3) == 0 { hit.attribute("ip", &key) } else { hit };
        let verb = draw.below(8);
        let pending = match verb {
            0 => limiter.peek(hit.cost(0)),
            _ => limiter.check(hit),
        };
        let charges = verb > 0;
        known[number].asked.fetch_add(u64::from(charges), Relaxed);
        let answer = if draw.below(2) == 0 { give_up_after(draw.below(30), pending).await } else { Some(pending.await) };
        let Some(decision) = answer.transpose().unwrap() else {
            dropped += 1;
            continue;
        };
        assert!(decision.is_allowed() && is_by(&decision, Source::Store));
        for outcome in decision.outcomes() {
            assert_eq!(outcome.key().to_string(), key);
            let base = APART * (number as u64 + 1);
            let most = base + known[number].asked.load(Relaxed);
            assert!((base..=most).contains(&outcome.used()), "{key} has {} used, of {base} to {most}", outcome.used());
        }
        if charges {
            assert!(known[number].seen.lock().unwrap().insert(used(&decision)), "{key}: two charges made it the same");
        }
    }
    dropped
}

#[test]
fn answers_never_shift_when_callers_go_away() {
    const CALLERS: u64 = 16;
    let _turn = together();
    let hits: u64 = env::var("TIDEGATE_CANCELLATIONS").map_or(10_000, |hits| hits.parse().unwrap());
    let seed = 7;
    println!("cancellations: seed {seed}, {hits} hits");
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let policy = |name: &str| Policy::new(name, Quota::per_day(1_000_000_000)).key([name]);
    let limiter = limiter(&runtime, patient(&server.url()), [policy("user"), policy("ip")]);
    for number in 0..KEYS {
        let key = format!("key-{number}");
        let charge = limiter.charge(Hit::new().attribute("user", &key).attribute("ip", &key).cost(APART * (number as u64 + 1)));
        assert!(is_by(&runtime.block_on(charge).unwrap(), Source::Store));
    }
    let known: Arc<Vec<Known>> = Arc::new((0..KEYS).map(|_| Known::default()).collect());
    let begun = Instant::now();
    let caller = |number| runtime.spawn(cancelling(limiter.clone(), Arc::clone(&known), Draw(seed + number), hits / CALLERS));
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    let dropped: u64 = callers.into_iter().map(|caller| runtime.block_on(caller).unwrap()).sum();

    let (mut asked, mut charged, mut seen) = (0, 0, 0);
    for (number, known) in known.iter().enumerate() {
        let decision = runtime.block_on(limiter.peek(Hit::new().attribute("user", &format!("key-{number}")).cost(0))).unwrap();
        assert_eq!(source(&decision), Source::Store);
        let stored = used(&decision) - APART * (number as u64 + 1);
        let (own_asked, own_seen) = (known.asked.load(Relaxed), known.seen.lock().unwrap().len() as u64);
        assert!(own_seen <= stored && stored <= own_asked, "key-{number}: {own_seen} seen, {stored} stored, {own_asked} asked");
        (asked, charged, seen) = (asked + own_asked, charged + stored, seen + own_seen);
    }
    let status = limiter.store().status();
    println!(
        "cancellations: {dropped} dropped; {asked} asked, {charged} charged, {seen} seen to be; {} calls, {:?}",
        status.calls,
        begun.elapsed()
    );
    assert!(dropped > hits / 10 && charged > seen);
    assert_eq!((status.connects, status.fallbacks), (1, 0));
}

/// A server that stands, callers that would wait for long, and more of them than there is room for.
#[test]
fn what_waits_is_bounded() {
    const HITS: usize = 100_000;
    let _turn = alone();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let policy = |name: &str, says| Policy::new(name, Quota::per_day(1_000_000_000)).key([name]).on_store_error(says);
    let policies = [policy("error", OnStoreError::Error), policy("local", OnStoreError::Local)];
    let limiter = limiter(&runtime, redis(&server.url()).deadline(LONG), policies);
    let hit = |number: usize| Hit::new().attribute(if number.is_multiple_of(2) { "error" } else { "local" }, "1");
    assert_eq!(source(&runtime.block_on(limiter.check(hit(0))).unwrap()), Source::Store);
    server.freeze();
    let begun = Instant::now();
    let ask = |number| {
        let pending = limiter.check(hit(number));
        runtime.spawn(async move {
            let asked = Instant::now();
            (pending.await, asked.elapsed())
        })
    };
    let pending: Vec<_> = (0..HITS).map(ask).collect();
    // Until who had to wait waits, and who could not was told.
    let mut done = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let finished = pending.iter().filter(|pending| pending.is_finished()).count();
        if finished == done && finished > 0 {
            break;
        }
        assert!(begun.elapsed() < LONG / 2, "{finished} of {HITS} were told that there is no room");
        done = finished;
    }
    let waiting = HITS - done;
    println!("bounded: of {HITS} hits {done} were told within {:?} that there is no room, {waiting} wait", begun.elapsed());
    assert!(waiting < 70_000);
    let refused: Vec<bool> = pending.iter().map(|pending| pending.is_finished()).collect();
    server.thaw();
    let mut at_once = Vec::new();
    for ((number, pending), refused) in pending.into_iter().enumerate().zip(refused) {
        let (answer, took) = runtime.block_on(pending).unwrap();
        if refused {
            at_once.push(took);
        }
        let answer = answer.map(|decision| source(&decision));
        let expected = match (refused, number.is_multiple_of(2)) {
            (true, true) => Err(StoreError::Full),
            (true, false) => Ok(Source::Fallback),
            (false, _) => Ok(Source::Store),
        };
        assert_eq!(answer, expected);
    }
    at_once.sort_unstable();
    let (median, worst) = (at_once[at_once.len() / 2], at_once[at_once.len() - 1]);
    println!("bounded: no room, after {median:?} in the median and {worst:?} at worst; all answered after {:?}", begun.elapsed());
    assert!(median < Duration::from_millis(1) && worst < LONG / 4);
}
