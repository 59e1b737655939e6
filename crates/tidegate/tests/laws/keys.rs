//! Law 8: keys are isolated, whatever bytes they are made of. Each key is allowed once, so a collision is a denial.

use std::collections::BTreeSet;

use proptest::{
    collection::{btree_set, vec},
    prelude::*,
    test_runner::TestCaseResult,
};
use tidegate::{Algorithm, Hit, Limiter, Policy, Quota};

use crate::{
    traces::{for_every_algorithm, property},
    world::{START, limiter_at},
};

const NAMES: [&str; 3] = ["user", "ip", "token"];

/// A limiter that allows each key once, keyed by the first `attributes` names.
fn once_each(algorithm: Algorithm, attributes: usize) -> Limiter {
    limiter_at(START, [once("once", algorithm, attributes)]).0
}

fn once(name: &str, algorithm: Algorithm, attributes: usize) -> Policy {
    Policy::new(name, Quota::per_hour(1)).algorithm(algorithm).key(NAMES[..attributes].iter().copied())
}

fn hit<'h>(values: &'h [Vec<u8>]) -> Hit<'h> {
    NAMES.iter().zip(values).fold(Hit::new(), |hit, (name, value)| hit.attribute(name, value))
}

/// Each of the keys is allowed once whatever came before it, and then no more.
fn isolated<'k>(algorithm: Algorithm, keys: impl IntoIterator<Item = &'k Vec<Vec<u8>>> + Clone) -> TestCaseResult {
    let limiter = once_each(algorithm, keys.clone().into_iter().next().map_or(1, Vec::len));
    for expected in [true, false] {
        for key in keys.clone() {
            let start = |value: &Vec<u8>| value[..value.len().min(80)].escape_ascii().to_string();
            let allowed = limiter.check(hit(key)).is_allowed();
            prop_assert_eq!(allowed, expected, "for {:?}", key.iter().map(start).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// Values that end, open, escape or repeat what an encoding might use.
fn hostile() -> Vec<Vec<u8>> {
    let texts = [
        "",
        ":",
        "::",
        "{}",
        "{",
        "}",
        "{a}",
        "a",
        "a:",
        ":a",
        "a:b",
        "\0",
        "\0\0",
        "a\0",
        "\0a",
        "\n",
        "a\n",
        "\r\n",
        " ",
        "%00",
        "%3A",
        "\\0",
        "\\",
        "\\\\",
        "/",
        ",",
        ";",
        "#",
        "rl:once:{a}",
        "*",
        "?",
        "A",
        "ä",
        "é",
        "e\u{301}",
        "🦀",
        "1",
        "01",
        "+1",
        "1.0",
        "0x1",
    ];
    let bytes: [&[u8]; 5] = [b"\xff", b"\xff\xfe", b"\xc3\x28", b"a\xff", b"\x80"];
    let long = |length: usize, last: u8| {
        let mut value = vec![b'x'; length];
        value[length - 1] = last;
        value
    };
    // Around every length at which an encoding might change form, and far beyond.
    let lengths = (2..=70).chain([127, 128, 129, 255, 256, 257, 1 << 16, 1 << 20]);
    let long = lengths.flat_map(|length| [long(length, b'y'), long(length, b'z'), long(length, b'\0')]);
    texts.iter().map(|text| text.as_bytes()).chain(bytes).map(<[u8]>::to_vec).chain(long).collect()
}

#[test]
fn hostile_values_are_isolated() {
    let keys: Vec<Vec<Vec<u8>>> = hostile().into_iter().map(|value| vec![value]).collect();
    for_every_algorithm(|algorithm| isolated(algorithm, &keys).unwrap());
}

#[test]
fn hostile_values_are_isolated_in_pairs() {
    let values: Vec<Vec<u8>> = hostile().into_iter().filter(|value| value.len() < 26).collect();
    let keys: Vec<Vec<Vec<u8>>> =
        values.iter().flat_map(|first| values.iter().map(|second| vec![first.clone(), second.clone()])).collect();
    for_every_algorithm(|algorithm| isolated(algorithm, &keys).unwrap());
}

/// Keys of few letters and many shapes, so that what they concatenate to is often the same.
fn shapes(attributes: usize) -> impl Strategy<Value = BTreeSet<Vec<Vec<u8>>>> {
    let letter = prop_oneof![Just(b'a'), Just(b':'), Just(0), Just(1), Just(2), Just(b','), Just(0xff)];
    btree_set(vec(vec(letter, 0..14), attributes), 2..40)
}

#[test]
fn values_that_concatenate_equally_are_isolated() {
    let strategy = |algorithm| (1..=3usize).prop_flat_map(move |count| (Just(algorithm), shapes(count)));
    property(24, strategy, |(algorithm, keys)| isolated(algorithm, &keys));
}

#[test]
fn any_bytes_are_isolated() {
    let strategy = |algorithm| (Just(algorithm), btree_set(vec(vec(any::<u8>(), 0..40), 2), 2..60));
    property(60, strategy, |(algorithm, keys)| isolated(algorithm, &keys));
}

#[test]
fn one_key_in_two_policies_is_two_keys() {
    for_every_algorithm(|algorithm| {
        let policies = [once("a", algorithm, 1), once("b", algorithm, 1).key(["ip"]), once("a.b", algorithm, 1).key(["token"])];
        let limiter = limiter_at(START, policies).0;
        for name in NAMES {
            let decision = limiter.check(Hit::new().attribute(name, "same"));
            assert!(decision.is_allowed(), "{name} is denied by another policy's key");
        }
    });
}

#[test]
fn without_key_attributes_all_hits_share_one_key() {
    for_every_algorithm(|algorithm| {
        let limiter = once_each(algorithm, 0);
        assert!(limiter.check("a").is_allowed());
        assert!(!limiter.check("b").is_allowed());
    });
}

#[test]
fn the_order_of_attributes_in_a_hit_does_not_matter() {
    for_every_algorithm(|algorithm| {
        let limiter = once_each(algorithm, 2);
        assert!(limiter.check(Hit::new().attribute("user", "a").attribute("ip", "b")).is_allowed());
        assert!(!limiter.check(Hit::new().attribute("ip", "b").attribute("user", "a")).is_allowed());
        assert!(limiter.check(Hit::new().attribute("ip", "a").attribute("user", "b")).is_allowed());
    });
}
