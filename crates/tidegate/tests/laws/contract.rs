//! What can be written as a quota and as a set of policies, and what is said to those who write something else.

use std::time::Duration;

use proptest::{option, prelude::*};
use tidegate::{Algorithm, ConfigError, Limiter, Override, Policy, Quota, QuotaError};

use crate::{
    traces::{for_every_algorithm, property},
    world::has_burst,
};

#[test]
fn quotas_that_can_be_written() {
    let of = |limit, micros| Quota::new(limit, Duration::from_micros(micros)).unwrap();
    let table = [
        ("100/min", Quota::per_minute(100)),
        ("10/s burst 20", Quota::per_second(10).burst(20)),
        ("5000 per day", Quota::per_day(5_000)),
        ("5000/day", Quota::per_day(5_000)),
        ("1/250ms", of(1, 250_000)),
        ("20/10s", of(20, 10_000_000)),
        ("  7 / 2 hours ", of(7, 7_200_000_000)),
        ("1_000/h burst 2_000", Quota::per_hour(1_000).burst(2_000)),
        ("3/week", of(3, 604_800_000_000)),
        ("3/7d", of(3, 604_800_000_000)),
        ("5/1500us", of(5, 1_500)),
        ("5/MIN", Quota::per_minute(5)),
        ("1/ms", of(1, 1_000)),
        ("1/366d", Quota::new(1, Quota::MAX_WINDOW).unwrap()),
        ("9007199254740991/s", Quota::per_second(Quota::MAX)),
        ("1/s burst 9007199254740991", Quota::per_second(1).burst(Quota::MAX)),
    ];
    for (text, quota) in table {
        assert_eq!(text.parse(), Ok(quota), "{text}");
    }
}

/// What is wrong with a text, in a word.
fn complaint(text: &str) -> &'static str {
    match text.parse::<Quota>().expect_err(text) {
        QuotaError::Syntax(_) => "syntax",
        QuotaError::Unit(_) => "unit",
        QuotaError::Amount { .. } => "amount",
        QuotaError::Window(_) => "window",
        other => panic!("{text}: {other}"),
    }
}

#[test]
fn quotas_that_are_refused() {
    let table = [
        ("syntax", vec!["", " ", "100", "/min", "/", "ten/min", "min/100", "per day", "10 per", "10/5", "10/"]),
        ("syntax", vec!["-1/s", "+1/s", "1.5/s", "1,5/s", "1e3/s", "0x10/s", "NaN/s", "inf/s", "1 0/s", "_1/s", "１/s", "\0/s"]),
        (
            "syntax",
            vec![
                "10/s burst",
                "10/s burst -1",
                "10/s burst 1.5",
                "10/s burst 0x1",
                "10/s burst NaN",
                "10/s burst 2 3",
                "10/s bursts",
            ],
        ),
        ("unit", vec!["10/fortnight", "10/1.5s", "10/-1s", "10/s/s", "10/s\0", "10/min 5", "10/1 0s"]),
        ("amount", vec!["0/s", "9007199254740992/s", "18446744073709551616/s", "99999999999999999999999999/s"]),
        ("amount", vec!["10/s burst 0", "10/s burst 9007199254740992", "10/s burst 99999999999999999999999999"]),
        ("window", vec!["10/0s", "10/999us", "10/367days", "10/53weeks", "10/99999999999999999999999999s"]),
    ];
    for (expected, texts) in table {
        for text in texts {
            assert_eq!(complaint(text), expected, "{text:?}");
        }
    }
}

#[test]
fn quotas_from_numbers_are_checked() {
    let second = Duration::from_secs(1);
    assert_eq!(Quota::new(0, second), Err(QuotaError::Amount { what: "limit", value: 0 }));
    assert_eq!(Quota::new(Quota::MAX + 1, second), Err(QuotaError::Amount { what: "limit", value: Quota::MAX + 1 }));
    assert_eq!(Quota::per_second(1).try_burst(0), Err(QuotaError::Amount { what: "burst", value: 0 }));
    let short = Quota::MIN_WINDOW - Duration::from_micros(1);
    assert_eq!(Quota::new(1, short), Err(QuotaError::Window(short)));
    let long = Quota::MAX_WINDOW + Duration::from_micros(1);
    assert_eq!(Quota::new(1, long), Err(QuotaError::Window(long)));
    let fine = second + Duration::from_nanos(1);
    assert_eq!(Quota::new(1, fine), Err(QuotaError::Precision(fine)));
}

#[test]
fn quota_reads_what_it_writes() {
    let strategy = |_| {
        (
            1..=Quota::MAX,
            prop_oneof![1_000..=366 * 86_400_000_000u64, (1..=366u64).prop_map(|days| days * 86_400_000_000)],
            option::of(1..=Quota::MAX),
        )
    };
    property(200, strategy, |(limit, micros, burst)| {
        let quota = Quota::new(limit, Duration::from_micros(micros)).unwrap();
        let quota = burst.map_or(quota, |burst| quota.burst(burst));
        prop_assert_eq!(quota.to_string().parse(), Ok(quota));
        Ok(())
    });
}

#[test]
fn any_text_is_a_quota_or_is_refused_without_panic() {
    let strategy = |_| (".*", "[0-9]{0,25}[ /]?(per )?[0-9]{0,25}[a-z]{0,4}( burst )?[0-9]{0,25}");
    property(200, strategy, |(any, alike)| {
        for text in [any, alike] {
            if let Ok(quota) = text.parse::<Quota>() {
                prop_assert!((1..=Quota::MAX).contains(&quota.limit()));
                prop_assert!((Quota::MIN_WINDOW..=Quota::MAX_WINDOW).contains(&quota.window()));
            }
        }
        Ok(())
    });
}

fn refusal(policies: impl IntoIterator<Item = Policy>) -> ConfigError {
    Limiter::builder().policies(policies).build().expect_err("refused")
}

fn named(name: &str) -> Policy {
    Policy::new(name, Quota::per_second(1))
}

#[test]
fn policy_names_are_checked() {
    for name in ["", " ", "a b", "ä", "a:b", "a{b", "a\0", "a\n", &"x".repeat(48)] {
        assert_eq!(refusal([named(name)]), ConfigError::Name(name.to_owned()));
    }
    for name in ["a", "A-z_0.9", &"x".repeat(47)] {
        assert!(Limiter::builder().policy(named(name)).build().is_ok(), "{name}");
    }
    assert_eq!(refusal([named("a"), named("b"), named("a")]), ConfigError::Duplicate("a".to_owned()));
    let limiter = Limiter::builder().policy(named("a")).build().unwrap();
    assert_eq!(limiter.set_quota("b", Quota::per_second(1)), Err(ConfigError::Unknown("b".to_owned())));
}

/// What is wrong with the quota of a policy.
fn quota_refusal(policy: Policy) -> QuotaError {
    match refusal([policy]) {
        ConfigError::Quota { policy, error } if policy == "a" => error,
        other => panic!("{other}"),
    }
}

#[test]
fn burst_needs_a_bucket() {
    for_every_algorithm(|algorithm| {
        let policy = Policy::new("a", Quota::per_second(10).burst(20)).algorithm(algorithm);
        if has_burst(algorithm) {
            assert!(Limiter::builder().policy(policy).build().is_ok());
        } else {
            assert_eq!(quota_refusal(policy), QuotaError::BurstOnWindow);
        }
    });
}

#[test]
fn rate_that_whole_microseconds_cannot_keep_names_the_bucket_that_can() {
    let quota = Quota::per_second(700_000);
    let policy = Policy::new("a", quota).algorithm(Algorithm::Gcra);
    let error = quota_refusal(policy.clone());
    assert_eq!(error, QuotaError::Interval(quota));
    assert!(error.to_string().contains("token-bucket"), "{error}");
    assert!(Limiter::builder().policy(policy.algorithm(Algorithm::TokenBucket)).build().is_ok());
    // 1 % is where it ends: 101 intervals of 100 in a window of 10 000 are kept to 1 %.
    for (limit, kept) in [(100, true), (10_000, true), (9_901, false), (5_000, true), (4_950, false), (99, true)] {
        let quota = Quota::new(limit, Duration::from_millis(10)).unwrap();
        let built = Limiter::builder().policy(Policy::new("a", quota).algorithm(Algorithm::Gcra)).build();
        assert_eq!(built.is_ok(), kept, "{quota}");
    }
}

#[test]
fn burst_that_takes_a_century_is_refused() {
    for_every_algorithm(|algorithm| {
        if has_burst(algorithm) {
            let quota = Quota::per_day(1).burst(36_601);
            assert_eq!(quota_refusal(Policy::new("a", quota).algorithm(algorithm)), QuotaError::Refill(quota));
        }
    });
}

#[test]
fn resolution_is_checked() {
    for grains in [0, Policy::MAX_RESOLUTION + 1, u32::MAX] {
        assert_eq!(quota_refusal(named("a").resolution(grains)), QuotaError::Resolution(grains));
    }
    for grains in [1, Policy::DEFAULT_RESOLUTION, Policy::MAX_RESOLUTION] {
        assert!(Limiter::builder().policy(named("a").resolution(grains)).build().is_ok(), "{grains}");
    }
    for_every_algorithm(|algorithm| {
        let built = Limiter::builder().policy(named("a").algorithm(algorithm).resolution(10)).build();
        assert_eq!(built.is_ok(), algorithm == Algorithm::SlidingWindow, "grains are of the sliding window");
    });
}

#[test]
fn overrides_are_checked() {
    let quota = Quota::per_second(10).burst(20);
    assert_eq!(quota_refusal(named("a").override_key(["x"], Override::Quota(quota))), QuotaError::BurstOnWindow);
    for values in [vec![], vec!["x", "y"]] {
        let error = refusal([named("a").override_key(values, Override::Blocked)]);
        assert!(matches!(&error, ConfigError::Policy { policy, .. } if policy == "a"), "{error}");
    }
}
