//! What operators ask: who is denied most, by all instances together, and what is stored for a key.

use std::time::Duration;

use tidegate::{
    Algorithm, Clock as _, ConfigError, Entry, Hit, Inspection, Limiter, ManualClock, OnStoreError, Policy, Quota, Ranked, Redis,
};
use tidegate_testkit::Server;

use crate::limiters::{by_store, connected, keys, patient};

const HOUR_US: u64 = 3_600_000_000;

/// Denies everything above one a day.
fn policy() -> Policy {
    Policy::new("requests", Quota::per_day(1)).algorithm(Algorithm::SlidingLog).on_store_error(OnStoreError::Error)
}

/// By a clock that stands still: no hour ends during a test.
async fn limiter(store: Redis) -> Limiter<Redis> {
    connected(Limiter::builder().policy(policy()).clock(ManualClock::default()).store(store)).await
}

/// Has a key denied so often.
async fn deny(limiter: &Limiter<Redis>, key: &str, times: usize) {
    let _ = limiter.charge(Hit::from(key)).await.unwrap();
    for _ in 0..times {
        assert!(!limiter.check(key).await.unwrap().is_allowed());
    }
}

async fn top(limiter: &Limiter<Redis>, n: usize) -> Vec<(String, u64)> {
    let ranked = limiter.top("requests", n).unwrap().await.unwrap();
    ranked.into_iter().map(|Ranked { key, denied, .. }| (key, denied)).collect()
}

fn named(ranks: &[(&str, u64)]) -> Vec<(String, u64)> {
    ranks.iter().map(|(key, denied)| ((*key).to_owned(), *denied)).collect()
}

/// The sorted sets of the ranking.
fn rankings(connection: &mut redis::Connection) -> Vec<String> {
    keys(connection).into_iter().filter(|name| name.starts_with("rl:{requests}:denied:")).collect()
}

#[tokio::test]
async fn instances_rank_together_worst_first() {
    let server = Server::start();
    let first = limiter(patient(&server.url())).await;
    let second = limiter(patient(&server.url())).await;
    assert_eq!(top(&first, 10).await, []);
    deny(&first, "a", 3).await;
    deny(&first, "b", 5).await;
    // What one has counted is there at once, what others have a second later.
    assert_eq!(top(&first, 10).await, named(&[("b", 5), ("a", 3)]));
    deny(&second, "b", 4).await;
    deny(&second, "c", 7).await;
    deny(&second, "d\0:{}", 1).await;
    let expected = named(&[("b", 9), ("c", 7), ("a", 3), ("d\\x00:{}", 1)]);
    let both = async {
        while top(&first, 10).await != expected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Longer than that only where the machine is busy.
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("it is written every second");
    for limiter in [&first, &second] {
        assert_eq!(top(limiter, 10).await, expected);
        assert_eq!(top(limiter, 2).await, expected[..2]);
        assert_eq!(top(limiter, 0).await, []);
    }
    // Neither what is allowed nor a peek counts, nor one policy's denials for another.
    let _ = by_store(first.check("new").await);
    assert!(!by_store(first.peek("a").await).is_allowed());
    assert_eq!(top(&first, 10).await, expected);
    let unknown = first.top("other", 10).map(drop);
    assert_eq!(unknown, Err(ConfigError::Unknown("other".to_owned())));
    assert_eq!(rankings(&mut server.connection()).len(), 1);
}

#[tokio::test]
async fn shadow_policies_rank_nobody() {
    let server = Server::start();
    let builder = Limiter::builder().policies([policy().shadow(), Policy::new("other", Quota::per_day(1)).key(["other"])]);
    let limiter = connected(builder.store(patient(&server.url()))).await;
    for _ in 0..5 {
        assert!(by_store(limiter.check("a").await).is_allowed());
    }
    assert_eq!(top(&limiter, 10).await, []);
    assert_eq!(limiter.top("other", 10).unwrap().await, Ok(Vec::new()));
}

#[tokio::test]
async fn cached_denials_count_too() {
    let server = Server::start();
    let limiter = limiter(patient(&server.url()).deny_cache(Duration::from_secs(60))).await;
    deny(&limiter, "a", 10).await;
    assert_eq!(limiter.store().status().cached, 9);
    assert_eq!(top(&limiter, 10).await, named(&[("a", 10)]));
}

/// The worst are found among many, and not all of the many are kept.
#[tokio::test]
async fn a_flood_of_keys_is_bounded() {
    let server = Server::start();
    let mut connection = server.connection();
    let limiter = limiter(patient(&server.url())).await;
    for wave in 0..10 {
        for index in 0..500 {
            // More than a day's: denied without a charge before.
            assert!(!by_store(limiter.check_n(&format!("key-{wave}-{index}"), 2).await).is_allowed());
            if index % 5 == 0 {
                assert!(!by_store(limiter.check_n("worst", 2).await).is_allowed());
            }
        }
        let worst = top(&limiter, 1000).await;
        assert!(worst.len() <= 100);
        assert_eq!(worst[0].0, "worst");
    }
    let names = rankings(&mut connection);
    for name in &names {
        let (members, ttl): (u64, i64) =
            redis::pipe().cmd("ZCARD").arg(name).cmd("PTTL").arg(name).query(&mut connection).unwrap();
        assert!(members <= 1000 + 128, "{members} members");
        assert!((1..=2 * HOUR_US as i64 / 1000).contains(&ttl), "{ttl} ms");
    }
    assert_eq!(names.len(), 1);
}

/// This hour's and the last one's, whichever it was counted in.
#[tokio::test]
async fn denials_around_the_end_of_an_hour_count() {
    let server = Server::start();
    let clock = ManualClock::default();
    clock.set(clock.epoch_micros() - 1);
    let limiter = connected(Limiter::builder().policy(policy()).clock(clock.clone()).store(patient(&server.url()))).await;
    deny(&limiter, "a", 3).await;
    clock.advance(Duration::from_micros(1));
    deny(&limiter, "a", 1).await;
    assert_eq!(top(&limiter, 10).await, named(&[("a", 4)]));
}

#[tokio::test]
async fn what_was_denied_hours_ago_is_forgotten() {
    let server = Server::start();
    let clock = ManualClock::default();
    let limiter = connected(Limiter::builder().policy(policy()).clock(clock.clone()).store(patient(&server.url()))).await;
    deny(&limiter, "a", 3).await;
    assert_eq!(top(&limiter, 10).await, named(&[("a", 3)]));
    clock.advance(Duration::from_secs(3600));
    deny(&limiter, "a", 2).await;
    deny(&limiter, "b", 1).await;
    assert_eq!(top(&limiter, 10).await, named(&[("a", 5), ("b", 1)]));
    clock.advance(Duration::from_secs(3600));
    assert_eq!(top(&limiter, 10).await, named(&[("a", 2), ("b", 1)]));
    clock.advance(Duration::from_secs(3600));
    assert_eq!(top(&limiter, 10).await, []);
}

/// A clock of a simulation may begin with the epoch.
#[tokio::test]
async fn the_first_hour_has_none_before_it() {
    let server = Server::start();
    let clock = ManualClock::new(1);
    let limiter = connected(Limiter::builder().policy(policy()).clock(clock).store(patient(&server.url()))).await;
    deny(&limiter, "a", 2).await;
    assert_eq!(top(&limiter, 10).await, named(&[("a", 2)]));
}

/// Keys of several attributes that look the same are not the same.
#[tokio::test]
async fn different_keys_have_different_ranks() {
    let server = Server::start();
    let policy = policy().key(["one", "other"]);
    let builder = Limiter::builder().policy(policy).clock(ManualClock::default());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    for (one, other, times) in [("a,b", "c", 4), ("a", "b,c", 2)] {
        let hit = Hit::new().attribute("one", one).attribute("other", other);
        for _ in 0..=times {
            let _ = by_store(limiter.check(&hit).await);
        }
    }
    let denied: Vec<u64> = top(&limiter, 10).await.into_iter().map(|(_, denied)| denied).collect();
    assert_eq!(denied, [4, 2]);
}

const START: u64 = 1_767_225_600_000_000;
const SECOND: u64 = 1_000_000;

/// What is stored after hits of 2, 3 and 1 at one second, two and three, of 10 in 100 seconds.
async fn inspected(server: &Server, algorithm: Algorithm) -> (Inspection, Inspection) {
    let clock = ManualClock::new(START);
    let policy = Policy::new("requests", Quota::new(10, Duration::from_secs(100)).unwrap()).algorithm(algorithm);
    let limiter = connected(Limiter::builder().policy(policy).clock(clock.clone()).store(patient(&server.url()))).await;
    let inspect = async || limiter.inspect("requests", "some one").unwrap().await.unwrap();
    let nothing = inspect().await;
    for cost in [2, 3, 1] {
        clock.advance(Duration::from_secs(1));
        assert!(by_store(limiter.check_n("some one", cost).await).is_allowed());
    }
    assert_eq!(limiter.inspect("other", "a").map(drop), Err(ConfigError::Unknown("other".to_owned())));
    assert!(matches!(limiter.inspect("requests", Hit::new()).map(drop), Err(ConfigError::Policy { .. })));
    (nothing, inspect().await)
}

#[tokio::test]
async fn an_inspection_shows_what_is_stored() {
    let server = Server::start();
    let log: &[(u64, u64)] = &[(START + SECOND, 2), (START + 2 * SECOND, 3), (START + 3 * SECOND, 1)];
    for algorithm in Algorithm::RATES {
        let (nothing, stored) = inspected(&server, *algorithm).await;
        assert_eq!((nothing.lasts, nothing.entries.len()), (Duration::ZERO, 0), "{algorithm}");
        assert!(nothing.fields.iter().all(|(_, number)| *number == 0), "{algorithm}: {nothing:?}");
        assert_eq!((stored.policy.as_str(), stored.key.as_str()), ("requests", "some one"));
        assert_eq!(stored.algorithm, *algorithm);
        assert!(stored.lasts > Duration::from_secs(60), "{algorithm}: {:?}", stored.lasts);
        let entries: Vec<_> = stored.entries.iter().map(|Entry { at, cost, .. }| (*at, *cost)).collect();
        let fields: Vec<_> = stored.fields.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        let (expected_entries, expected_fields) = match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow => (log, vec![]),
            Algorithm::SlidingCounter => (&[][..], vec![("start", START), ("current", 6), ("previous", 0)]),
            Algorithm::FixedWindow => (&[][..], vec![("start", START), ("used", 6)]),
            // A tenth of a token has come back each second: 2, 4.9, 5.8 are missing, in millionths of ten seconds.
            Algorithm::TokenBucket => (&[][..], vec![("missing", 5), ("fraction", 8_000_000), ("at", START + 3 * SECOND)]),
            Algorithm::Gcra => (&[][..], vec![("arrival", START + SECOND + 60 * SECOND)]),
            other => panic!("{other} is new: say what is stored"),
        };
        assert_eq!((entries.as_slice(), fields), (expected_entries, expected_fields), "{algorithm}");
    }
}

/// Grains gather what comes in one of them; an inspection shows the latest thousand.
#[tokio::test]
async fn an_inspection_shows_grains_and_not_more_than_a_thousand_entries() {
    let server = Server::start();
    let quota = Quota::new(10_000, Duration::from_secs(100)).unwrap();
    let policies = [
        Policy::new("log", quota).algorithm(Algorithm::SlidingLog),
        Policy::new("grains", quota),
        Policy::new("fine", quota).resolution(Policy::MAX_RESOLUTION),
    ];
    let clock = ManualClock::new(START);
    let limiter = connected(Limiter::builder().policies(policies).clock(clock.clone()).store(patient(&server.url()))).await;
    for _ in 0..1100 {
        clock.advance(Duration::from_millis(10));
        let _ = by_store(limiter.check("a").await);
    }
    let entries = async |policy| limiter.inspect(policy, "a").unwrap().await.unwrap().entries;
    let newest = clock.epoch_micros();
    for policy in ["log", "fine"] {
        let shown = entries(policy).await;
        assert_eq!(shown.len(), 1000, "{policy}");
        let exact = |(index, entry): (usize, &Entry)| entry.at == newest - (999 - index as u64) * 10_000 && entry.cost == 1;
        assert!(shown.iter().enumerate().all(exact), "{policy}");
    }
    let grains = entries("grains").await;
    assert_eq!(grains.iter().map(|grain| grain.cost).sum::<u64>(), 1100);
    assert_eq!(grains.len(), 12);
}

/// An inspection is not a decision: nothing else is asked in its place.
#[tokio::test]
async fn what_the_store_does_not_answer_is_an_error() {
    let mut server = Server::start();
    let limiter = limiter(patient(&server.url())).await;
    deny(&limiter, "a", 1).await;
    server.kill();
    while limiter.store().status().is_up {
        let _ = limiter.peek("a").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(limiter.inspect("requests", "a").unwrap().await.is_err());
    assert!(limiter.top("requests", 1).unwrap().await.is_err());
}
