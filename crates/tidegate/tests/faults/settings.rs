//! What each policy says of the case that the store does not answer, one by one and together; and whose receipts are whose.

use std::time::{Duration, Instant};

use tidegate::{Algorithm, Hit, Limiter, OnStoreError, Policy, Quota, Receipt, Redis, Source, StoreError};
use tidegate_testkit::{Proxy, Server};
use tokio::runtime::Runtime;

use crate::rig::{back, is_by, limiter, patient, redis, source, together, unconnected, used};

/// A port at which nobody ever answers.
fn nowhere() -> Proxy {
    let proxy = Proxy::start(1);
    proxy.refuse(true);
    proxy
}

fn policy(name: &str, limit: u64, says: OnStoreError) -> Policy {
    Policy::new(name, Quota::per_hour(limit)).key([name]).on_store_error(says)
}

fn used_of(runtime: &Runtime, limiter: &Limiter<Redis>, attribute: &'static str) -> u64 {
    used(&runtime.block_on(limiter.peek(Hit::new().attribute(attribute, "1").cost(0))).unwrap())
}

#[test]
fn local_admits_this_instances_share() {
    let _turn = together();
    let (proxy, runtime) = (nowhere(), Runtime::new().unwrap());
    for algorithm in Algorithm::RATES {
        for (limit, instances, share) in [(10, 3, 4), (10, 1, 10), (2, 3, 1), (9, 3, 3)] {
            let policy = Policy::new("default", Quota::per_hour(limit)).algorithm(*algorithm);
            let limiter = unconnected(&runtime, redis(&proxy.url()).instances(instances), [policy]);
            let mut admitted = 0;
            for _ in 0..20 {
                let decision = runtime.block_on(limiter.check("key")).unwrap();
                assert_eq!(source(&decision), Source::Fallback);
                assert_eq!(decision.outcomes().next().unwrap().limit(), share);
                admitted += u64::from(decision.is_allowed());
            }
            assert_eq!(admitted, share, "{algorithm}, {limit} among {instances}");
        }
    }
    println!("local: of 10 among 3 instances each admits 4");
}

#[test]
fn allow_deny_and_error() {
    let _turn = together();
    let (proxy, runtime) = (nowhere(), Runtime::new().unwrap());
    let policies = [
        policy("allow", 1, OnStoreError::Allow),
        policy("deny", 10, OnStoreError::Deny),
        policy("error", 10, OnStoreError::Error),
        policy("watch", 10, OnStoreError::Error).shadow(),
    ];
    let limiter = unconnected(&runtime, redis(&proxy.url()), policies);
    let check = |attribute| runtime.block_on(limiter.check(Hit::new().attribute(attribute, "1")));
    for _ in 0..20 {
        let mut allowed = check("allow").unwrap();
        assert!(allowed.is_allowed() && is_by(&allowed, Source::Fallback));
        assert!(allowed.take_receipt().is_none());

        let denied = check("deny").unwrap();
        assert!(!denied.is_allowed() && is_by(&denied, Source::Fallback));
        assert!(denied.retry_after().is_some_and(|wait| wait > Duration::ZERO));

        assert_eq!(check("error").err(), Some(StoreError::Down));

        let watched = check("watch").unwrap();
        assert!(watched.is_allowed() && is_by(&watched, Source::Fallback));
        assert_eq!(watched.outcomes().count(), 1);

        // No policy, no store.
        assert!(check("other").unwrap().is_allowed());
    }
    println!("four settings: {} hits by the fallback", limiter.store().status().fallbacks);
}

#[test]
fn settings_together_are_all_or_nothing() {
    let _turn = together();
    let (proxy, runtime) = (nowhere(), Runtime::new().unwrap());
    let policies = [
        policy("local", 10, OnStoreError::Local),
        policy("tight", 2, OnStoreError::Local),
        policy("allow", 10, OnStoreError::Allow),
        policy("deny", 10, OnStoreError::Deny),
        policy("error", 10, OnStoreError::Error),
        policy("watch", 10, OnStoreError::Local).shadow(),
        policy("watch-deny", 10, OnStoreError::Deny).shadow(),
    ];
    let limiter = unconnected(&runtime, redis(&proxy.url()), policies);
    let check = |attributes: &[&'static str]| {
        let hit = attributes.iter().fold(Hit::new(), |hit, attribute| hit.attribute(attribute, "1"));
        runtime.block_on(limiter.check(hit))
    };
    let local = || (used_of(&runtime, &limiter, "local"), used_of(&runtime, &limiter, "watch"));

    let denied = check(&["local", "deny", "watch"]).unwrap();
    assert!(!denied.is_allowed() && denied.outcomes().all(|outcome| outcome.charged() == 0));
    assert_eq!(local(), (0, 0), "a policy denied");
    assert_eq!(check(&["local", "error", "watch"]).err(), Some(StoreError::Down));
    assert_eq!(local(), (0, 0), "a policy wanted the error");
    assert!(check(&["local", "allow", "watch", "watch-deny"]).unwrap().is_allowed());
    assert_eq!(local(), (1, 1), "all allowed, and who only watches does not count");
    let admitted = (0..5).filter(|_| check(&["local", "tight", "watch"]).unwrap().is_allowed()).count();
    assert_eq!((admitted, local()), (2, (3, 3)), "one was at its limit");
    println!("together: nothing was charged where one denied");
}

#[test]
fn receipts_go_back_to_who_gave_them() {
    let _turn = together();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    for algorithm in Algorithm::RATES {
        let proxy = Proxy::start(server.port());
        proxy.refuse(true);
        let policy = Policy::new("default", Quota::per_hour(10)).algorithm(*algorithm);
        let store = patient(&proxy.url()).prefix(algorithm.name());
        let limiter = unconnected(&runtime, store, [policy]);
        let refund = |text: &str| runtime.block_on(limiter.refund(text.parse::<Receipt>().unwrap()));
        let take = |cost| {
            let mut decision = runtime.block_on(limiter.check_n("key", cost)).unwrap();
            (source(&decision), decision.take_receipt().unwrap().to_string())
        };

        let (by, local) = take(3);
        assert_eq!(by, Source::Fallback);
        let refunded = refund(&local).unwrap();
        assert_eq!((source(&refunded), used(&refunded)), (Source::Fallback, 0), "{algorithm}");
        let (_, later) = take(4);
        assert_eq!(used(&refund(&local).unwrap()), 4, "{algorithm}: a receipt is used once");

        proxy.refuse(false);
        back(&runtime, &limiter, Instant::now());
        let (by, text) = take(5);
        assert_eq!(by, Source::Store);
        let refunded = refund(&later).unwrap();
        assert_eq!((source(&refunded), used(&refunded)), (Source::Fallback, 0), "{algorithm}");
        let stored = || used(&runtime.block_on(limiter.peek("key")).unwrap());
        assert_eq!(stored(), 5, "{algorithm}: the fallback's receipt is nothing to the store");

        proxy.refuse(true);
        proxy.cut();
        for _ in 0..3 {
            assert_eq!(refund(&text).err(), Some(StoreError::Down), "{algorithm}");
        }
        proxy.refuse(false);
        back(&runtime, &limiter, Instant::now());
        let refunded = refund(&text).unwrap();
        assert_eq!((source(&refunded), used(&refunded)), (Source::Store, 0), "{algorithm}");
        take(2);
        assert_eq!(used(&refund(&text).unwrap()), 2, "{algorithm}: a receipt is used once");
    }
    println!("receipts: each given back once, where it was taken");
}

/// A hit whose answer is known at once needs no runtime around the call that asks.
#[test]
fn a_denial_that_is_remembered_is_told_outside_of_the_runtime() {
    let _turn = together();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let store = redis(&server.url()).deadline(Duration::from_secs(5)).deny_cache(Duration::from_secs(10));
    let limiter = limiter(&runtime, store, [Policy::new("default", Quota::per_hour(1))]);
    let ask = || {
        let pending = limiter.check("key");
        runtime.block_on(pending).unwrap()
    };
    assert!(ask().is_allowed());
    assert_eq!(source(&ask()), Source::Store);
    // Until what was denied has been written to the ranking, and the next denial has to see to it again.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(source(&ask()), Source::DenyCache);
}

/// The connection goes with the runtime that the limiter was built in; the limiter may live on.
#[test]
fn a_runtime_that_is_gone_is_no_connection() {
    let _turn = together();
    let (server, runtime, other) = (Server::start(), Runtime::new().unwrap(), Runtime::new().unwrap());
    let policies = [policy("error", 10, OnStoreError::Error), policy("local", 10, OnStoreError::Local)];
    let limiter = limiter(&runtime, patient(&server.url()), policies);
    let check = |attribute| other.block_on(limiter.check(Hit::new().attribute(attribute, "1")));
    assert_eq!(source(&check("error").unwrap()), Source::Store);
    drop(runtime);
    assert_eq!(source(&check("local").unwrap()), Source::Fallback);
    assert_eq!(check("error").err(), Some(StoreError::Down));
    assert!(!limiter.store().status().is_up);
}
