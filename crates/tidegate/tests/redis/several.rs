//! Several policies on different attributes, under load from several limiters: nothing over either limit, and nothing charged
//! for a hit that any of them denies. What several instances do at once is done once.

use std::collections::HashMap;

use tidegate::{Algorithm, Hit, Limiter, ManualClock, Override, Policy, Quota, Receipt, Redis};
use tidegate_testkit::Server;
use tokio::task::JoinSet;

use crate::limiters::{avoid_midnight, by_store, connected, patient};

const LIMITERS: u64 = 4;
const TASKS: u64 = 32;
/// Of each task.
const CHECKS: u64 = 30;
const USERS: u64 = 7;
const ADDRESSES: u64 = 5;

const PER_USER: u64 = 110;
const PER_IP: u64 = 130;
const WATCHED: u64 = 60;

/// What was charged, by policy and key.
type Charged = HashMap<(String, String), u64>;

/// One policy for each attribute, and one that only watches users.
fn policies(user: Algorithm, ip: Algorithm) -> [Policy; 3] {
    // By the day: nothing comes back while a test runs.
    [
        Policy::new("per-user", Quota::per_day(PER_USER)).key(["user"]).algorithm(user),
        Policy::new("per-ip", Quota::per_day(PER_IP)).key(["ip"]).algorithm(ip),
        Policy::new("watched", Quota::per_day(WATCHED)).key(["user"]).algorithm(ip).shadow(),
    ]
}

/// Checks many pairs of users and addresses. What each decision says must fit together; what it charged is added up.
async fn work(limiter: Limiter<Redis>, task: u64) -> Charged {
    let mut charged = Charged::new();
    for index in 0..CHECKS {
        let (user, ip) = (format!("user-{}", (task + index) % USERS), format!("ip-{}", (3 * task + index) % ADDRESSES));
        let cost = 1 + (task + index) % 3;
        let hit = Hit::new().attribute("user", &user).attribute("ip", &ip).cost(cost);
        let decision = by_store(limiter.check(hit).await);
        assert_eq!(decision.outcomes().count(), 3);
        let denied = decision.outcomes().any(|outcome| !outcome.is_shadow() && !outcome.is_allowed());
        assert_eq!(decision.is_allowed(), !denied);
        for outcome in decision.outcomes() {
            let admits = decision.is_allowed() && outcome.is_allowed();
            assert_eq!(outcome.charged(), if admits { cost } else { 0 }, "{decision:?}");
            assert!(outcome.used() <= outcome.limit(), "{decision:?}");
            *charged.entry((outcome.policy().to_owned(), outcome.key().to_string())).or_default() += outcome.charged();
        }
    }
    charged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_over_a_limit_or_charged_for_a_denied_hit() {
    avoid_midnight();
    let server = Server::start();
    for (index, algorithm) in Algorithm::RATES.iter().enumerate() {
        let other = Algorithm::RATES[(index + 1) % Algorithm::RATES.len()];
        let mut limiters = Vec::new();
        for _ in 0..LIMITERS {
            let builder = Limiter::builder().policies(policies(*algorithm, other));
            limiters.push(connected(builder.store(patient(&server.url()).prefix(format!("rl-{index}")))).await);
        }
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(work(limiters[(task % LIMITERS) as usize].clone(), task));
        }
        let mut charged = Charged::new();
        for told in tasks.join_all().await {
            told.into_iter().for_each(|(key, cost)| *charged.entry(key).or_default() += cost);
        }

        let users = (0..USERS).map(|user| ("user", format!("user-{user}")));
        let addresses = (0..ADDRESSES).map(|ip| ("ip", format!("ip-{ip}")));
        let mut full = 0;
        for (attribute, value) in users.chain(addresses) {
            let stands = by_store(limiters[0].peek(Hit::new().attribute(attribute, &value)).await);
            for outcome in stands.outcomes() {
                let told = charged[&(outcome.policy().to_owned(), outcome.key().to_string())];
                assert_eq!(outcome.used(), told, "{algorithm}, {other}: told and counted, {outcome:?}");
                assert!(told <= outcome.limit(), "{outcome:?}");
                full += usize::from(outcome.remaining() < 3);
            }
        }
        // More was asked for than there was.
        assert!(full >= 5, "{algorithm}: {charged:?}");
    }
}

/// An address at its limit does not drain the quota of the users behind it, nor the other way round.
#[tokio::test]
async fn a_key_at_its_limit_drains_no_other() {
    avoid_midnight();
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let builder = Limiter::builder().policies(policies(*algorithm, *algorithm));
        let limiter = connected(builder.store(patient(&server.url()).prefix(algorithm.name()))).await;
        let hit = |user, ip| Hit::new().attribute("user", user).attribute("ip", ip);
        assert!(by_store(limiter.check(hit("greedy", "crowded").cost(PER_USER)).await).is_allowed());
        for _ in 0..3 {
            let decision = by_store(limiter.check(hit("greedy", "quiet")).await);
            assert_eq!(decision.strictest().unwrap().policy(), "per-user");
            let decision = by_store(limiter.check(hit("modest", "crowded").cost(PER_IP - PER_USER + 1)).await);
            assert_eq!(decision.strictest().unwrap().policy(), "per-ip");
        }
        let left = async |hit: Hit<'static>| by_store(limiter.peek(hit).await).remaining();
        assert_eq!(left(Hit::new().attribute("ip", "quiet")).await, Some(PER_IP), "{algorithm}");
        assert_eq!(left(Hit::new().attribute("user", "modest")).await, Some(PER_USER), "{algorithm}");
    }
}

/// A shadow policy that would deny takes nothing away from the hit, and is not charged for it.
#[tokio::test]
async fn a_shadow_policy_never_decides() {
    avoid_midnight();
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let builder = Limiter::builder().policies(policies(*algorithm, *algorithm));
        let limiter = connected(builder.store(patient(&server.url()).prefix(algorithm.name()))).await;
        let hit = Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7");
        for request in 1..=PER_USER {
            let decision = by_store(limiter.check(&hit).await);
            let watched = decision.outcomes().last().unwrap();
            assert!(decision.is_allowed() && watched.is_shadow());
            assert_eq!(watched.is_allowed(), request <= WATCHED, "{algorithm}, {request}");
            assert_eq!(watched.used(), request.min(WATCHED), "{algorithm}, {request}");
            assert_eq!(decision.strictest().unwrap().policy(), "per-user");
        }
        assert!(!by_store(limiter.check(&hit).await).is_allowed());
    }
}

/// Who is blocked costs nobody anything, who is unlimited is not asked about, and who counts requests counts one.
#[tokio::test]
async fn overrides_and_counts_of_requests_hold() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let policies = [
            Policy::new("per-user", Quota::per_day(10))
                .key(["user"])
                .override_key(["blocked"], Override::Blocked)
                .override_key(["unlimited"], Override::Unlimited)
                .override_key(["small"], Override::Quota(Quota::per_day(2))),
            Policy::new("per-ip", Quota::per_day(100)).key(["ip"]),
            Policy::new("requests", Quota::per_day(100)).key(["ip"]).counts_requests(),
        ];
        let policies = policies.map(|policy| policy.algorithm(*algorithm));
        let builder = Limiter::builder().policies(policies).clock(ManualClock::default());
        let limiter = connected(builder.store(patient(&server.url()).prefix(algorithm.name()))).await;
        let hit = |user| Hit::new().attribute("user", user).attribute("ip", "203.0.113.7").cost(3);
        let blocked = by_store(limiter.check(hit("blocked")).await);
        assert!(!blocked.is_allowed() && blocked.strictest().unwrap().is_hopeless(), "{algorithm}");
        assert!(blocked.outcomes().all(|outcome| outcome.charged() == 0 && outcome.used() == 0), "{algorithm}");
        let small = by_store(limiter.check(hit("small")).await);
        assert!(small.strictest().unwrap().is_hopeless(), "{algorithm}");
        let unlimited = by_store(limiter.check(hit("unlimited")).await);
        let used: Vec<_> = unlimited.outcomes().map(|outcome| (outcome.policy(), outcome.used())).collect();
        assert_eq!(used, [("per-ip", 3), ("requests", 1)], "{algorithm}");
        let usual = by_store(limiter.check(hit("usual")).await);
        let used: Vec<_> = usual.outcomes().map(|outcome| (outcome.policy(), outcome.used())).collect();
        assert_eq!(used, [("per-user", 3), ("per-ip", 6), ("requests", 2)], "{algorithm}");
        // Nothing costs nothing.
        let free = by_store(limiter.check(hit("usual").cost(0)).await);
        let used: Vec<u64> = free.outcomes().map(|outcome| outcome.used()).collect();
        assert_eq!((free.is_allowed(), used), (true, vec![3, 6, 2]), "{algorithm}");
    }
}

/// Several instances present one receipt at once: it gives back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_is_used_once_by_whoever_comes_first() {
    let server = Server::start();
    for algorithm in Algorithm::RATES {
        let clock = ManualClock::default();
        let mut limiters = Vec::new();
        for _ in 0..LIMITERS {
            let policy = Policy::new("requests", Quota::per_day(50)).algorithm(*algorithm);
            let builder = Limiter::builder().policy(policy).clock(clock.clone());
            limiters.push(connected(builder.store(patient(&server.url()))).await);
        }
        let charge = async |cost| by_store(limiters[0].check_n("a", cost).await).take_receipt().unwrap().to_string();
        let (refunded, settled) = (charge(10).await, charge(20).await);
        let mut tasks = JoinSet::new();
        for task in 0..TASKS as usize {
            let limiter = limiters[task % limiters.len()].clone();
            let (refunded, settled): (Receipt, Receipt) = (refunded.parse().unwrap(), settled.parse().unwrap());
            tasks.spawn(async move {
                let _ = by_store(limiter.refund(refunded).await);
                let _ = by_store(limiter.settle(settled, 13).await);
            });
        }
        tasks.join_all().await;
        assert_eq!(by_store(limiters[0].peek("a").await).strictest().unwrap().used(), 13, "{algorithm}");
    }
}

/// Quotas that change to and fro on one instance, while all of them are busy, lose no charge and admit nothing over the higher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_quotas_under_load_loses_nothing() {
    let server = Server::start();
    let quotas = [Quota::per_day(200), Quota::per_day(300)];
    for algorithm in Algorithm::RATES {
        let clock = ManualClock::default();
        let mut limiters = Vec::new();
        for _ in 0..LIMITERS {
            let policy = Policy::new("requests", quotas[0]).algorithm(*algorithm);
            let builder = Limiter::builder().policy(policy).clock(clock.clone());
            limiters.push(connected(builder.store(patient(&server.url()))).await);
        }
        let mut tasks = JoinSet::new();
        for task in 0..TASKS as usize {
            let limiter = limiters[task % limiters.len()].clone();
            tasks.spawn(async move {
                let mut admitted = 0;
                for index in 0..CHECKS as usize {
                    if task == 0 {
                        limiter.set_quota("requests", quotas[index % 2]).unwrap();
                    }
                    admitted += u64::from(by_store(limiter.check("a").await).is_allowed());
                }
                admitted
            });
        }
        let admitted: u64 = tasks.join_all().await.into_iter().sum();
        limiters[0].set_quota("requests", quotas[1]).unwrap();
        let used = by_store(limiters[0].peek("a").await).strictest().unwrap().used();
        assert!((200..=300).contains(&admitted), "{algorithm}: {admitted}");
        assert_eq!(admitted, used, "{algorithm}");
    }
}

/// A server keeps what it knows of plans, not of more than a thousand: those that it has dropped count on as well.
#[tokio::test]
async fn more_plans_than_a_server_keeps() {
    const POLICIES: u64 = 1100;
    let server = Server::start();
    let policy = |number: u64| Policy::new(format!("p{number}"), Quota::per_day(number)).key([format!("a{number}")]);
    let limiter = connected(Limiter::builder().policies((1..=POLICIES).map(policy)).store(patient(&server.url()))).await;
    for round in 1..=2 {
        for number in 1..=POLICIES {
            let decision = by_store(limiter.check(Hit::new().attribute(&format!("a{number}"), "x")).await);
            let expected = (number >= round, Some(number.saturating_sub(round)));
            assert_eq!((decision.is_allowed(), decision.remaining()), expected, "{number} a day");
        }
    }
}
