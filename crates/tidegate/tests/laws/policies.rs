//! Which policies apply to a hit, what they count, how one key is treated otherwise, and how a decision reads.

use std::time::Duration;

use tidegate::{Algorithm, Condition, Decision, Hit, Limiter, Network, Override, Policy, Quota};

use crate::{
    traces::for_every_algorithm,
    world::{START, limiter_at},
};

fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    limiter_at(START, policies).0
}

/// A policy on the user, of so many an hour.
fn per_user(limit: u64) -> Policy {
    Policy::new("per-user", Quota::per_hour(limit)).key(["user"])
}

fn user(user: &str) -> Hit<'_> {
    Hit::new().attribute("user", user)
}

/// The names of the policies that applied.
fn applied(decision: &Decision) -> Vec<&str> {
    decision.outcomes().map(|outcome| outcome.policy()).collect()
}

#[test]
fn policy_applies_where_all_its_key_attributes_are() {
    let limiter = limiter([
        Policy::new("both", Quota::per_hour(9)).key(["user", "ip"]),
        per_user(9),
        Policy::new("all", Quota::per_hour(9)).key([""; 0]),
    ]);
    assert_eq!(applied(&limiter.check(user("a").attribute("ip", "b"))), ["both", "per-user", "all"]);
    assert_eq!(applied(&limiter.check(user("a"))), ["per-user", "all"]);
    assert_eq!(applied(&limiter.check(Hit::new().attribute("ip", ""))), ["all"]);
    assert_eq!(applied(&limiter.check(Hit::new())), ["all"]);
}

#[test]
fn no_policy_applies() {
    for limiter in [limiter([]), limiter([per_user(1)])] {
        for mut decision in [limiter.check("key"), limiter.charge("key"), limiter.peek("key"), limiter.reset("key")] {
            assert!(decision.is_allowed() && decision.strictest().is_none() && decision.retry_after().is_none());
            assert_eq!((decision.outcomes().count(), decision.remaining()), (0, None));
            assert!(decision.take_receipt().is_none());
            assert_eq!(decision.explain().to_string(), "allowed: no policy applies");
        }
    }
}

#[test]
fn conditions_hold_or_not() {
    let network = |text| Condition::network(text).unwrap();
    let table: [(Condition, &[&str], &[&str]); 9] = [
        (Condition::equals("/login"), &["/login"], &["/login/", "/LOGIN", "", "/logi"]),
        (Condition::one_of(["GET", "HEAD"]), &["GET", "HEAD"], &["POST", "", "get", "GETHEAD"]),
        (Condition::one_of([""; 0]), &[], &["", "a"]),
        (Condition::prefix("/api/"), &["/api/", "/api/v1"], &["/api", "", "x/api/"]),
        (Condition::prefix(""), &["", "a"], &[]),
        (
            network("10.0.0.0/8"),
            &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
            &["11.0.0.0", "9.255.255.255", "", "10", "::1", "10.0.0.0/8"],
        ),
        (network("2001:db8::/32"), &["2001:db8::1", "2001:DB8:ffff::"], &["2001:db9::", "10.0.0.1", "::ffff:10.0.0.1"]),
        (network("::ffff:192.0.2.0/120"), &["192.0.2.9", "::ffff:192.0.2.9"], &["192.0.3.9", "::192.0.2.9"]),
        (network("0.0.0.0/0"), &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"], &["::", "2001:db8::1", "x"]),
    ];
    for (condition, holds, fails) in table {
        let limiter = limiter([per_user(1_000).when("fact", condition.clone())]);
        for (values, expected) in [(holds, 1), (fails, 0)] {
            for value in values {
                let decision = limiter.check(user("a").attribute("fact", value));
                assert_eq!(decision.outcomes().count(), expected, "{condition:?} of {value:?}");
            }
        }
        assert_eq!(limiter.check(user("a")).outcomes().count(), 0, "{condition:?} of nothing");
    }
}

#[test]
fn several_conditions_must_all_hold() {
    let limiter = limiter([per_user(9).when("a", Condition::equals("1")).when("b", Condition::prefix("2"))]);
    let hit = |a, b| user("u").attribute("a", a).attribute("b", b);
    assert_eq!(limiter.check(hit("1", "22")).outcomes().count(), 1);
    assert_eq!(limiter.check(hit("1", "1")).outcomes().count(), 0);
    assert_eq!(limiter.check(hit("2", "2")).outcomes().count(), 0);
}

#[test]
fn texts_that_are_no_network_are_refused() {
    for text in [
        "",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/+",
        "10.0.0/8",
        "::/129",
        "a/8",
        "10.0.0.0/8/8",
        "10.0.0.0/256",
    ] {
        assert!(text.parse::<Network>().is_err() && Condition::network(text).is_err(), "{text:?}");
    }
    for text in ["10.0.0.1", "::1", "::/0", "10.1.2.3/8", "::/128"] {
        assert!(text.parse::<Network>().is_ok(), "{text}");
    }
}

#[test]
fn overrides_treat_one_key_otherwise() {
    for_every_algorithm(|algorithm| {
        let policy = per_user(3)
            .algorithm(algorithm)
            .override_key(["gold"], Override::Quota(Quota::per_hour(5)))
            .override_key(["root"], Override::Unlimited)
            .override_key(["evil"], Override::Unlimited)
            .override_key(["evil"], Override::Blocked)
            .override_key([b"\xff"], Override::Quota(Quota::per_hour(1)));
        let limiter = limiter([policy]);
        let admitted = |hit: Hit<'_>| (0..20).filter(|_| limiter.check(&hit).is_allowed()).count();
        assert_eq!(admitted(user("any")), 3);
        assert_eq!(admitted(user("gold")), 5);
        assert_eq!(admitted(user("root")), 20);
        assert_eq!(admitted(user("evil")), 0);
        assert_eq!(admitted(Hit::new().attribute("user", b"\xff")), 1);
        assert_eq!(limiter.check(user("root")).outcomes().count(), 0, "as if the policy did not apply");
        let blocked = limiter.check(user("evil"));
        let outcome = blocked.strictest().unwrap();
        assert!(outcome.is_hopeless() && outcome.limit() == 0 && blocked.retry_after().is_none());
        assert_eq!(blocked.explain().to_string(), "denied: policy `per-user` blocks key `evil`");
        assert_eq!(limiter.check(user("gold")).strictest().unwrap().quota(), Quota::per_hour(5));
    });
}

#[test]
fn blocked_key_charges_no_other_policy() {
    for_every_algorithm(|algorithm| {
        let blocks = Policy::new("blocks", Quota::per_hour(9)).key(["ip"]).override_key(["x"], Override::Blocked);
        for policies in [[per_user(9).algorithm(algorithm), blocks.clone()], [blocks, per_user(9).algorithm(algorithm)]] {
            let limiter = limiter(policies);
            assert!(!limiter.check(user("a").attribute("ip", "x")).is_allowed());
            assert_eq!(limiter.remaining(user("a")), Some(9));
        }
    });
}

#[test]
fn changed_override_keeps_history() {
    for_every_algorithm(|algorithm| {
        let gold = |limit| per_user(3).algorithm(algorithm).override_key(["gold"], Override::Quota(Quota::per_hour(limit)));
        let limiter = limiter([gold(5)]);
        assert!(limiter.check_n(user("gold"), 5).is_allowed());
        for (limit, remaining) in [(8, 3), (6, 1), (5, 0)] {
            limiter.configure([gold(limit)]).unwrap();
            assert_eq!(limiter.remaining(user("gold")), Some(remaining));
        }
    });
}

#[test]
fn counting_requests_weighs_every_hit_as_1() {
    for_every_algorithm(|algorithm| {
        let requests = Policy::new("requests", Quota::per_hour(3)).key(["user"]).algorithm(algorithm).counts_requests();
        let limiter = limiter([requests, per_user(10_000).algorithm(algorithm)]);
        let mut decision = limiter.check_n(user("a"), 5_000);
        assert_eq!(decision.outcomes().map(|outcome| outcome.charged()).collect::<Vec<_>>(), [1, 5_000]);
        let settled = limiter.settle(decision.take_receipt().unwrap(), 7_000);
        let used: Vec<u64> = settled.outcomes().map(|outcome| outcome.used()).collect();
        assert_eq!(used, [1, 7_000], "one request is one request, whatever it turned out to cost");
        assert_eq!(limiter.check_n(user("a"), 0).outcomes().map(|outcome| outcome.cost()).max(), Some(0));
    });
}

#[test]
fn strictest_is_the_longest_wait_then_the_least_left() {
    let policy = |name: &str, limit, hours| {
        Policy::new(name, Quota::new(limit, Duration::from_hours(hours)).unwrap()).algorithm(Algorithm::SlidingLog).key(["user"])
    };
    let strictest = |policies: Vec<Policy>, cost| {
        let limiter = limiter(policies);
        let _ = limiter.charge(user("a").cost(cost));
        limiter.check(user("a")).strictest().unwrap().policy().to_owned()
    };
    assert_eq!(strictest(vec![policy("long", 5, 9), policy("short", 5, 1)], 5), "long");
    assert_eq!(strictest(vec![policy("short", 5, 1), policy("long", 5, 9)], 5), "long");
    assert_eq!(strictest(vec![policy("open", 50, 9), policy("full", 5, 1)], 5), "full", "a denial before any that allows");
    assert_eq!(strictest(vec![policy("large", 100, 1), policy("small", 20, 1)], 10), "small", "9 of 20 are less than 89 of 100");
    assert_eq!(strictest(vec![policy("watched", 5, 9).shadow(), policy("small", 50, 1)], 5), "small", "a shadow never is");
    let blocked = policy("never", 9, 1).override_key(["a"], Override::Blocked);
    assert_eq!(strictest(vec![policy("long", 5, 9), blocked], 5), "never", "no wait is the longest");
}

#[test]
fn decisions_explain_themselves() {
    for_every_algorithm(|algorithm| {
        let limiter = limiter([per_user(4).algorithm(algorithm)]);
        let explain = |cost| limiter.check_n(user("42"), cost).explain().to_string();
        let begins = |sentence: String, start: &str| assert!(sentence.starts_with(start), "{sentence}");
        begins(explain(3), "allowed: policy `per-user` has 1 of 4 left for key `42`, all of it in ");
        begins(explain(2), "denied: policy `per-user` has 3 of 4 used for key `42`, come back in ");
        begins(explain(5), "denied: policy `per-user` never allows a cost of 5 for key `42`, its limit is 4");
    });
    let watched = limiter([per_user(1).shadow()]);
    let sentences: Vec<String> = (0..2)
        .flat_map(|_| watched.check(user("42")).outcomes().map(|outcome| outcome.explain().to_string()).collect::<Vec<_>>())
        .collect();
    assert!(sentences[0].starts_with("would be allowed: policy `per-user` has 0 of 1 left"), "{sentences:?}");
    assert!(sentences[1].starts_with("would be denied: policy `per-user` has 1 of 1 used"), "{sentences:?}");
}

#[test]
fn hostile_keys_are_printed_safely() {
    let limiter = limiter([per_user(9)]);
    for value in ["a\nb", "\0", "\u{1b}[31m", "`", "\u{202e}", &"x".repeat(1_000)] {
        let sentence = limiter.check(user(value)).explain().to_string();
        assert!(sentence.len() < 400 && sentence.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{sentence:?}");
    }
}

#[test]
fn lateness_is_told() {
    for_every_algorithm(|algorithm| {
        let late = per_user(9).algorithm(algorithm).lateness();
        let expected = if algorithm == Algorithm::SlidingWindow { Duration::from_secs(36) } else { Duration::ZERO };
        assert_eq!(late, expected);
    });
}
