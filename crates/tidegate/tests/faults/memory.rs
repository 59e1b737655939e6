//! A server whose memory is full, or that might evict what it counts.

use std::time::{Duration, Instant};

use tidegate::{OnStoreError, Override, Quota, Source, StoreError};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::rig::{RETURN, alone, back, limiter, patient, redis, source, together, wide};

#[test]
fn full_memory_refuses_admissions_and_answers_denials() {
    let _turn = alone();
    let server = Server::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let runtime = Runtime::new().unwrap();
    let policy = wide().override_key(["spent"], Override::Quota(Quota::per_day(2)));
    let local = limiter(&runtime, patient(&server.url()), [policy.clone()]);
    let strict = limiter(&runtime, patient(&server.url()), [policy.on_store_error(OnStoreError::Error)]);
    for _ in 0..2 {
        assert_eq!(source(&runtime.block_on(local.check("spent")).unwrap()), Source::Store);
    }

    let mut connection = server.connection();
    let filler = vec![b'x'; 64 * 1024];
    let mut fillers = 0;
    let refused = loop {
        match redis::cmd("SET").arg(format!("filler{fillers}")).arg(&filler).exec(&mut connection) {
            Ok(()) => fillers += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Some("OOM"));
    // Well above the limit, so that no connection that goes makes room.
    let limit = server.used_memory() - 500_000;
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(limit).exec(&mut connection).unwrap();
    for number in 0..50 {
        let key = format!("fresh-{number}");
        let admitted = runtime.block_on(local.check(&key)).unwrap();
        assert_eq!((source(&admitted), admitted.is_allowed()), (Source::Fallback, true));
        assert_eq!(runtime.block_on(strict.check(&key)).err(), Some(StoreError::Refused("OOM".to_owned())));
        for limiter in [&local, &strict] {
            let denied = runtime.block_on(limiter.check("spent")).unwrap();
            assert_eq!((source(&denied), denied.is_allowed()), (Source::Store, false));
        }
    }
    // Hits that came together are answered each for itself.
    let before = local.store().status().calls;
    let pending: Vec<_> =
        (0..100).map(|number| runtime.spawn(local.check(if number % 2 == 0 { "spent" } else { "fresh" }))).collect();
    for (number, pending) in pending.into_iter().enumerate() {
        let decision = runtime.block_on(pending).unwrap().unwrap();
        assert_eq!(source(&decision), if number % 2 == 0 { Source::Store } else { Source::Fallback });
    }
    let calls = local.store().status().calls - before;

    for number in 0..fillers {
        redis::cmd("DEL").arg(format!("filler{number}")).exec(&mut connection).unwrap();
    }
    let back = back(&runtime, &local, Instant::now());
    println!("full memory: {fillers} fillers; 100 hits in {calls} calls; the store's again after {back:?}");
    assert!(back <= RETURN);
    assert_eq!(source(&runtime.block_on(strict.check("fresh-0")).unwrap()), Source::Store);
    assert_eq!((local.store().status().connects, strict.store().status().connects), (1, 1));
}

#[test]
fn a_server_that_evicts_is_told_of() {
    let _turn = together();
    let runtime = Runtime::new().unwrap();
    let cases = [
        (["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], Some("allkeys-lru")),
        (["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"], Some("volatile-ttl")),
        (["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"], None),
        (["--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"], None),
    ];
    for (arguments, evicts) in cases {
        let server = Server::start_with(&arguments);
        let limiter = limiter(&runtime, redis(&server.url()).deadline(Duration::from_secs(1)), [wide()]);
        println!("{arguments:?}: evicts by {evicts:?}");
        assert_eq!(limiter.store().status().evicts.as_deref(), evicts);
    }
}
