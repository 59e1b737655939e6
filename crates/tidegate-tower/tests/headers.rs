//! Headers as a parser of Structured Fields reads them that is not ours, for policies and quotas of any kind.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tidegate::{Algorithm, Hit, Limiter, ManualClock, Policy, Quota};
use tidegate_tower::{Dialect, retry_after};

/// What an integer of Structured Fields can be.
const MAX: u64 = 999_999_999_999_999;

fn members(header: &[u8]) -> Vec<Item> {
    let list: List = Parser::new(header).parse().expect("a list");
    let item = |entry: ListEntry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(list) => panic!("{list:?}"),
    };
    list.into_iter().map(item).collect()
}

fn name(item: &Item) -> &str {
    match &item.bare_item {
        BareItem::String(name) => name.as_str(),
        other => panic!("{other:?}"),
    }
}

fn number(item: &Item, parameter: &str) -> Option<u64> {
    let value = item.params.iter().find(|(key, _)| key.as_str() == parameter)?.1;
    match value {
        BareItem::Integer(number) => Some(i64::from(*number).try_into().expect("not negative")),
        other => panic!("{other:?}"),
    }
}

fn ceil(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000_000) as u64
}

proptest! {
    #[test]
    fn are_read_back(
        policies in proptest::collection::btree_map("[a-zA-Z0-9._-]{1,47}", (1..=Quota::MAX, 1..=400_000_000_000_u64, any::<bool>(), 0..7_usize), 1..5),
        cost in prop_oneof![0..3_u64, any::<u64>().prop_map(|cost| cost % Quota::MAX)],
    ) {
        let algorithms = [Algorithm::RATES, &[Algorithm::Concurrency]].concat();
        let policies: Vec<Policy> = policies
            .into_iter()
            .map(|(name, (limit, window_us, shadow, algorithm))| {
                let quota = Quota::new(limit, Duration::from_micros(window_us.max(1_000))).expect("within bounds");
                let policy = Policy::new(name, quota).algorithm(algorithms[algorithm % algorithms.len()]);
                if shadow { policy.shadow() } else { policy }
            })
            .collect();
        let Ok(limiter) = Limiter::builder().policies(policies.clone()).clock(ManualClock::default()).build() else {
            return Ok(()); // a rate that gcra does not take
        };
        for _ in 0..3 {
            let decision = limiter.check(Hit::from("a").cost(cost));
            let mut headers = std::collections::HashMap::new();
            Dialect::Draft.each(&decision, |name, value| {
                let before = headers.insert(name.as_str().to_owned(), value.to_vec());
                assert!(before.is_none());
            });
            let told: Vec<_> = decision.outcomes().filter(|outcome| !outcome.is_shadow()).collect();
            let wait = headers.remove("retry-after").map(|wait| String::from_utf8(wait).unwrap().parse::<u64>().unwrap());
            prop_assert_eq!(wait, retry_after(&decision));
            if let Some(wait) = wait {
                prop_assert!(wait > 0 && Duration::from_secs(wait) >= decision.retry_after().unwrap());
            }
            if told.is_empty() {
                prop_assert!(headers.is_empty());
                continue;
            }
            let (policies, states) = (members(&headers["ratelimit-policy"]), members(&headers["ratelimit"]));
            prop_assert_eq!((policies.len(), states.len()), (told.len(), told.len()));
            for ((outcome, policy), state) in told.iter().zip(&policies).zip(&states) {
                prop_assert_eq!((name(policy), name(state)), (outcome.policy(), outcome.policy()));
                prop_assert_eq!(number(policy, "q"), Some(outcome.limit().min(MAX)));
                prop_assert_eq!(number(state, "r"), Some(outcome.remaining().min(MAX)));
                let is_rate = outcome.algorithm() != Algorithm::Concurrency;
                prop_assert_eq!(number(policy, "w"), is_rate.then(|| ceil(outcome.quota().window())));
                let until = outcome.retry_after().unwrap_or(outcome.reset_after());
                prop_assert_eq!(number(state, "t"), is_rate.then(|| ceil(until).min(MAX)));
            }
        }
    }
}

#[test]
fn the_window_of_a_bucket_is_what_it_takes_to_fill() {
    let policy = Policy::new("api", Quota::per_second(10).burst(25)).algorithm(Algorithm::TokenBucket);
    let limiter = Limiter::builder().policy(policy).build().unwrap();
    let mut headers = Vec::new();
    Dialect::Draft.each(&limiter.check("a"), |_, value| headers.push(String::from_utf8(value.to_vec()).unwrap()));
    assert_eq!(headers, [r#""api";q=25;w=3"#, r#""api";r=24;t=1"#]);
}

#[test]
fn there_is_room_for_the_longest() {
    let names = ["a", "b"].map(|name| name.repeat(47));
    let at_once = |name: &String| Policy::concurrency(name, Quota::MAX, Duration::from_secs(60));
    let limiter = Limiter::builder().policies(names.iter().map(at_once)).build().unwrap();
    let mut told = Vec::new();
    Dialect::Draft.each(&limiter.check("a"), |_, value| told.push(members(value)));
    assert!(
        told.iter().all(|members| members.len() == 2 && names.iter().zip(members).all(|(known, member)| known == name(member)))
    );
    assert_eq!(number(&told[0][1], "q"), Some(MAX));
}
