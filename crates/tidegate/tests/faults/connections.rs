//! Connections that are half-open, cut, refused or slow: they are replaced, and what went down with one is never sent again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate::{Hit, OnStoreError, Policy, Quota, Source, StoreError};
use tidegate_testkit::{Proxy, Server};
use tokio::runtime::Runtime;

use crate::rig::{
    Draw, Load, RETURN, Seen, alone, back, limiter, measured, outage, patient, redis, source, together, until, used, wide, within,
};

fn parts() -> (Server, Proxy, Runtime) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy, Runtime::new().unwrap())
}

#[test]
fn half_open_under_load() {
    let _turn = alone();
    let (_server, mut proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    let seen = outage("half-open", &limiter, &runtime, &mut proxy, |proxy| proxy.blackhole(true), Duration::ZERO, |_| {});
    assert_eq!(seen.connects, 1);
}

#[test]
fn half_open_and_new_ones_too_for_a_while() {
    let _turn = alone();
    let (_server, mut proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    let swallow = |proxy: &mut Proxy| {
        proxy.blackhole_new(true);
        proxy.blackhole(true);
    };
    let seen = outage("swallowed", &limiter, &runtime, &mut proxy, swallow, Duration::from_millis(1300), |proxy| {
        proxy.blackhole_new(false)
    });
    assert!(seen.median < Duration::from_millis(1));
}

#[test]
fn cut_under_load() {
    let _turn = alone();
    let (_server, mut proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    let seen = outage("cut", &limiter, &runtime, &mut proxy, |proxy| proxy.cut(), Duration::ZERO, |_| {});
    assert_eq!(seen.connects, 1);
}

#[test]
fn refused_for_a_while() {
    let _turn = alone();
    let (_server, mut proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    let refuse = |proxy: &mut Proxy| {
        proxy.refuse(true);
        proxy.cut();
        // What the server has answered before the cut is still on its way.
        thread::sleep(Duration::from_millis(20));
    };
    outage("refused", &limiter, &runtime, &mut proxy, refuse, Duration::from_millis(500), |proxy| proxy.refuse(false));
    println!("refused: {} connections tried", proxy.connections());
}

#[test]
fn half_open_while_idle() {
    let _turn = alone();
    let (_server, proxy, runtime) = parts();
    measured("half-open while idle", || {
        let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
        back(&runtime, &limiter, Instant::now());
        let connects = || limiter.store().status().connects;
        let before = connects();
        proxy.blackhole(true);
        let begun = Instant::now();
        until("it is replaced", || connects() > before);
        let replaced = begun.elapsed();
        println!("half-open while idle: replaced after {replaced:?}, before anybody needed it");
        within(2 * RETURN, "replaced", replaced)?;
        let first = source(&runtime.block_on(limiter.check("key")).unwrap());
        if first != Source::Store {
            return Err(format!("the first hit is by {first:?}"));
        }

        proxy.blackhole(true);
        let back = back(&runtime, &limiter, Instant::now());
        println!("half-open, then hits one after the other: the store's again after {back:?}");
        within(RETURN, "the store's again", back)
    });
}

/// Hits too rare for several to time out within a second, and too frequent for the connection to be idle.
#[test]
fn half_open_and_a_hit_now_and_then() {
    let _turn = alone();
    let (_server, proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    assert_eq!(source(&runtime.block_on(limiter.check("key")).unwrap()), Source::Store);
    proxy.blackhole(true);
    let begun = Instant::now();
    let mut asked = Duration::ZERO;
    while source(&runtime.block_on(limiter.check("key")).unwrap()) != Source::Store {
        assert!(asked <= RETURN, "not the store's {asked:?} after the fault");
        thread::sleep(Duration::from_millis(700));
        asked = begun.elapsed();
    }
    println!("half-open, a hit every 700 ms: the store's again after {asked:?}");
}

/// However long a hit may wait, a connection that says nothing is found out in a second.
#[test]
fn half_open_with_a_long_deadline() {
    let _turn = alone();
    let (_server, proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()).deadline(2 * RETURN), [wide()]);
    let load = Load::start(&runtime, &limiter);
    thread::sleep(Duration::from_millis(100));
    proxy.blackhole(true);
    let back = back(&runtime, &limiter, Instant::now());
    println!("half-open, with a deadline of {:?}: the store's again after {back:?}", 2 * RETURN);
    load.stop(&runtime);
    assert!(back <= RETURN, "after {back:?}");
}

/// Other questions than hits, which wait for an answer that does not come either.
#[test]
fn half_open_while_rankings_are_asked_for() {
    let _turn = alone();
    let (_server, proxy, runtime) = parts();
    let limiter = limiter(&runtime, redis(&proxy.url()), [wide()]);
    let load = Load::start(&runtime, &limiter);
    thread::sleep(Duration::from_millis(100));
    proxy.blackhole(true);
    let rankings: Vec<_> = (0..30).map(|_| runtime.spawn(limiter.top("wide", 10).unwrap())).collect();
    let back = back(&runtime, &limiter, Instant::now());
    println!("half-open, with 30 questions for the ranking: the store's again after {back:?}");
    rankings.into_iter().for_each(|ranking| drop(runtime.block_on(ranking)));
    load.stop(&runtime);
    assert!(back <= RETURN, "after {back:?}");
}

/// How far away the server is in the tests of that, there and back.
const ROUND_TRIP: Duration = Duration::from_millis(60);

/// A server that is far away: a hit waits for the call before its own, and for that no longer.
#[test]
fn far_away() {
    let _turn = alone();
    let (_server, proxy, runtime) = parts();
    let limiter = limiter(&runtime, patient(&proxy.url()), [wide()]);
    // The script is there already.
    back(&runtime, &limiter, Instant::now());
    proxy.delay(ROUND_TRIP / 2);
    measured("far away", || {
        let load = Load::start(&runtime, &limiter);
        thread::sleep(RETURN);
        let seen = load.stop(&runtime);
        let mut times: Vec<Duration> = seen.iter().map(Seen::took).collect();
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{ROUND_TRIP:?} away: {} hits, median {median:?}, worst {worst:?}", times.len());
        assert!(seen.iter().all(|seen| seen.answer == Ok(Source::Store)));
        within(ROUND_TRIP * 5 / 2, "in the median answered", median)
    });
}

/// Under cuts a hit that went down with its connection may be charged, once, and nobody is told that it was.
#[test]
fn nothing_is_charged_twice_nor_over_the_limit_under_cuts() {
    const SMALL: u64 = 40;
    let _turn = together();
    let (server, proxy, runtime) = parts();
    let policies = || {
        let strict = |name: &str, limit| Policy::new(name, Quota::per_day(limit)).key([name]).on_store_error(OnStoreError::Error);
        [strict("large", 1_000_000), strict("small", SMALL)]
    };
    let limiter = limiter(&runtime, redis(&proxy.url()).deny_cache(Duration::ZERO), policies());
    let seed = 20;
    println!("cuts: seed {seed}");
    let stop = Arc::new(AtomicBool::new(false));
    let counts = Arc::new([const { AtomicU64::new(0) }; 4]);
    let caller = |name: &'static str, at: usize| {
        let (limiter, stop, counts) = (limiter.clone(), Arc::clone(&stop), Arc::clone(&counts));
        runtime.spawn(async move {
            while !stop.load(Relaxed) {
                counts[at].fetch_add(1, Relaxed);
                match limiter.check(Hit::new().attribute(name, "one")).await {
                    Ok(decision) => {
                        assert_eq!(source(&decision), Source::Store);
                        counts[at + 1].fetch_add(u64::from(decision.is_allowed()), Relaxed);
                    }
                    Err(StoreError::Down) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(StoreError::Timeout) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        })
    };
    let callers: Vec<_> = (0..8).map(|number| if number < 6 { caller("large", 0) } else { caller("small", 2) }).collect();
    let mut draw = Draw(seed);
    let begun = Instant::now();
    let mut cuts = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        // Most are cut while they serve, some while they are made.
        if draw.below(4) > 0 {
            until("there is a connection", || limiter.store().status().is_up);
        }
        thread::sleep(Duration::from_micros(draw.below(20_000)));
        proxy.cut();
        cuts += 1;
    }
    stop.store(true, Relaxed);
    callers.into_iter().for_each(|caller| runtime.block_on(caller).unwrap());
    let [asked, seen, asked_small, seen_small] = [0, 1, 2, 3].map(|index| counts[index].load(Relaxed));

    let direct = crate::rig::limiter(&runtime, patient(&server.url()), policies());
    let stored = |name| {
        let decision = runtime.block_on(direct.peek(Hit::new().attribute(name, "one").cost(0))).unwrap();
        assert_eq!(source(&decision), Source::Store);
        used(&decision)
    };
    let (large, small, status) = (stored("large"), stored("small"), limiter.store().status());
    println!("cuts: {cuts}, {} connections; {asked} asked, {large} charged, {seen} seen to be", status.connects);
    println!("cuts, limit {SMALL}: {asked_small} asked, {small} charged, {seen_small} seen to be");
    assert!(status.connects > 10 && seen > 0);
    assert!(seen <= large && large <= status.hits && large <= asked);
    assert!(seen_small <= small && small <= SMALL);
}
