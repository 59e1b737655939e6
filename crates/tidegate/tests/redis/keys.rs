//! Keys on the server: whatever bytes users send, different keys never share a count, and all of one id share a slot.

use std::collections::{HashMap, HashSet};

use tidegate::{Algorithm, Hit, Limiter, ManualClock, Policy, Quota};
use tidegate_testkit::Server;

use crate::limiters::{by_store, connected, keys, patient};

/// Values that a careless encoding would confuse.
fn hostile() -> Vec<Vec<u8>> {
    #[rustfmt::skip]
    let texts = [
        "", " ", ":", "::", "{", "}", "{}", "{}{", "{a}", "a}", "{a", "a", "A", "%", "%41", "%2541", "%00", "%61", "~", "~a",
        ",", "a,b", "a,", ",a", "a:b", "a:", ":a", "*", "?", "[a]", "\\", "\\x00", "\\n", "\"", "'", "\r\n", "\n", "\t", "\0",
        "a\0", "\0a", "\0\0", "key", "user", "void", "used", "denied", "a:void", "a}:gcra:key", "{a}:gcra:key", "\u{e9}",
        "e\u{301}", "\u{1f600}", "\u{202e}", "null", "nil", "0", "00", "-0", "1", "1.0", "NaN", "$(id)", "'; DROP TABLE",
        "redis.call",
    ];
    let mut values: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).into();
    values.extend([
        vec![0xff],
        vec![0xfe],
        vec![0xff, 0xff],
        vec![0xc3],
        vec![0xc3, 0xa9, 0x80],
        vec![0x80],
        vec![0xed, 0xa0, 0x80],
    ]);
    // Around the length up to which a value stands for itself, and far beyond it.
    for length in [19, 20, 21, 22, 23, 40, 41, 64] {
        values.push(vec![b'x'; length]);
        values.push(vec![0; length]);
        values.push([vec![b'x'; length - 1], vec![b'y']].concat());
    }
    values.push(vec![b'x'; 1 << 20]);
    values.push([vec![b'x'; (1 << 20) - 1], vec![b'y']].concat());
    // What a digest, and a value in hexadecimal, look like.
    values.push([b"~".to_vec(), vec![b'0'; 40]].concat());
    values.push(b"%787878".to_vec());
    values.push(b"xxx".to_vec());
    let mut seen = HashSet::new();
    values.retain(|value| seen.insert(value.clone()));
    values
}

#[tokio::test]
async fn different_values_never_share_a_count() {
    let server = Server::start();
    let policy = |name: &str| Policy::new(name, Quota::per_day(1_000_000)).algorithm(Algorithm::Gcra);
    let policies =
        [policy("a").key(["one"]), policy("a.a").key(["other"]), policy("b").key(["one"]).algorithm(Algorithm::SlidingLog)];
    let builder = Limiter::builder().policies(policies).clock(ManualClock::default());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    let mut values = hostile();
    // The digest of a long value, as an id.
    let shown = by_store(limiter.peek(Hit::new().attribute("one", &vec![b'x'; 1 << 20])).await);
    values.push(shown.outcomes().next().unwrap().key().to_string().into_bytes());
    // Each value another cost, under each attribute: what is used says whose state it is.
    for (index, value) in values.iter().enumerate() {
        let cost = index as u64 + 1;
        let _ = by_store(limiter.charge(Hit::new().attribute("one", value).cost(cost)).await);
        let _ = by_store(limiter.charge(Hit::new().attribute("other", value).cost(1000 + cost)).await);
    }
    for (index, value) in values.iter().enumerate() {
        let cost = index as u64 + 1;
        let stands = by_store(limiter.peek(Hit::new().attribute("one", value).attribute("other", value)).await);
        let used: Vec<_> = stands.outcomes().map(|outcome| (outcome.policy().to_owned(), outcome.used())).collect();
        let expected = [("a".to_owned(), cost), ("a.a".to_owned(), 1000 + cost), ("b".to_owned(), cost)];
        assert_eq!(used, expected, "{}", value.escape_ascii());
    }
    let names = keys(&mut server.connection());
    assert_eq!(names.len(), 3 * values.len());
    assert!(names.iter().all(|name| name.starts_with("rl:") && name.is_ascii() && name.len() < 100), "{names:#?}");
}

#[tokio::test]
async fn different_pairs_of_values_never_share_a_count() {
    let server = Server::start();
    let policies = [
        Policy::new("pairs", Quota::per_day(10_000_000)).key(["one", "other"]),
        Policy::new("turned", Quota::per_day(10_000_000)).key(["other", "one"]),
    ];
    let builder = Limiter::builder().policies(policies).clock(ManualClock::default());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    #[rustfmt::skip]
    let texts = [
        "", "a", "b", "ab", "abc", "bc", "c", ",", "a,", ",b", "a,b", "b,c", "a,b,c", "\0", "\u{1}", "\u{1}a", "a\u{1}b", "{",
        "}", "%", "0123456789", "01234567890", "0123456789a", "0123456789ab", "0123456789abcdefgh", "0123456789abcdefghi",
        "0123456789abcdefghij",
    ];
    let values: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).into();
    let pairs: Vec<_> = values.iter().flat_map(|one| values.iter().map(move |other| (one, other))).collect();
    for (index, (one, other)) in pairs.iter().enumerate() {
        let hit = Hit::new().attribute("one", one).attribute("other", other);
        let _ = by_store(limiter.charge(hit.cost(index as u64 + 1)).await);
    }
    for (index, (one, other)) in pairs.iter().enumerate() {
        let stands = by_store(limiter.peek(Hit::new().attribute("one", one).attribute("other", other)).await);
        let used: Vec<u64> = stands.outcomes().map(|outcome| outcome.used()).collect();
        assert_eq!(used, [index as u64 + 1; 2], "{}, {}", one.escape_ascii(), other.escape_ascii());
    }
    assert_eq!(keys(&mut server.connection()).len(), 2 * pairs.len());
}

#[tokio::test]
async fn a_policy_of_other_attributes_or_another_algorithm_starts_anew() {
    let server = Server::start();
    let builder = Limiter::builder().clock(ManualClock::default());
    let limiter = connected(builder.store(patient(&server.url()))).await;
    let hit = Hit::new().attribute("one", "a").attribute("other", "a").attribute("one,other", "a");
    let attributes = [vec!["one"], vec!["other"], vec!["one", "other"], vec!["other", "one"], vec!["one,other"], vec![]];
    for algorithm in Algorithm::RATES {
        for names in &attributes {
            let policy = Policy::new("requests", Quota::per_day(10)).algorithm(*algorithm).key(names.clone());
            limiter.configure([policy]).unwrap();
            let decision = by_store(limiter.check(&hit).await);
            assert_eq!(decision.strictest().unwrap().used(), 1, "{algorithm}, {names:?}");
            // Another quota is not another policy.
            limiter.set_quota("requests", Quota::per_day(20)).unwrap();
            let decision = by_store(limiter.check(&hit).await);
            assert_eq!(decision.strictest().unwrap().used(), 2, "{algorithm}, {names:?}");
        }
    }
    assert_eq!(keys(&mut server.connection()).len(), Algorithm::RATES.len() * attributes.len());
}

#[tokio::test]
async fn limiters_with_different_prefixes_share_nothing() {
    let server = Server::start();
    for prefix in ["rl", "r", "rl:", "rl:requests", "", "{rl}", "*"] {
        let builder = Limiter::builder().policy(Policy::new("requests", Quota::per_day(1))).clock(ManualClock::default());
        let limiter = connected(builder.store(patient(&server.url()).prefix(prefix))).await;
        assert!(by_store(limiter.check("requests").await).is_allowed(), "{prefix}");
        assert!(!by_store(limiter.check("requests").await).is_allowed(), "{prefix}");
    }
}

/// The part of a key that decides its slot in a cluster.
fn tag(name: &str) -> &str {
    let (_, rest) = name.split_once('{').unwrap();
    rest.split_once('}').unwrap().0
}

#[tokio::test]
async fn all_that_belongs_to_one_id_shares_a_slot() {
    let server = Server::start();
    let policies =
        || Algorithm::RATES.iter().map(|algorithm| Policy::new(algorithm.name(), Quota::per_day(10)).algorithm(*algorithm));
    let limiter = connected(Limiter::builder().policies(policies()).store(patient(&server.url()))).await;
    let values = hostile();
    for value in &values {
        let hit = Hit::from(value.as_slice());
        let receipt = by_store(limiter.check(&hit).await).take_receipt().unwrap();
        let _ = by_store(limiter.reset(&hit).await);
        let _ = by_store(limiter.refund(receipt).await);
        let _ = by_store(limiter.check(&hit).await);
    }
    let mut tags: HashMap<String, usize> = HashMap::new();
    keys(&mut server.connection()).iter().for_each(|name| *tags.entry(tag(name).to_owned()).or_default() += 1);
    assert_eq!(tags.len(), values.len());
    // For each policy the state, the mark of the reset and that of the receipt.
    assert!(tags.iter().all(|(tag, keys)| !tag.is_empty() && *keys == 3 * Algorithm::RATES.len()), "{tags:?}");
}
