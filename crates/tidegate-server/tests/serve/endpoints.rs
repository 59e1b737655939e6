//! What each endpoint answers.

use serde_json::{Value, json};
use tidegate_server::{
    config::{Limits, STARTER},
    serve::Totals,
};

use super::Running;

const POLICIES: &str = r#"
[[policy]]
name = "per-user"
key = ["user"]
quota = "10/hour"
blocked = ["mallory"]

[[policy]]
name = "watched"
key = ["ip"]
quota = "1/hour"
mode = "shadow"

[[policy]]
name = "jobs"
key = ["tenant"]
concurrency = { limit = 1, ttl = "1h" }
"#;

#[tokio::test]
async fn the_starter_allows_a_hundred_and_then_says_when_to_come_back() {
    let running = Running::start(STARTER).await;
    let mut client = running.client().await;
    for left in (0..100).rev() {
        let reply = client.get("/v1/check?user=42").await;
        assert_eq!((reply.status, &reply.json()["remaining"]), (200, &json!(left)));
        assert_eq!(reply.header("ratelimit-policy"), Some("\"per-user\";q=100;w=60"));
        assert!(reply.header("ratelimit").is_some_and(|value| value.starts_with(&format!("\"per-user\";r={left};t="))));
        assert_eq!((reply.header("cache-control"), reply.header("retry-after")), (Some("no-store"), None));
    }
    let reply = client.get("/v1/check?user=42").await;
    assert_eq!((reply.status, reply.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(reply.header("ratelimit-policy"), Some("\"per-user\";q=100;w=60"));
    let wait: u64 = reply.header("retry-after").expect("told").parse().expect("seconds");
    assert!((50..=60).contains(&wait), "{wait}");
    assert_eq!(reply.header("ratelimit"), Some(format!("\"per-user\";r=0;t={wait}").as_str()));
    let body = reply.json();
    let named = [&body["allowed"], &body["policy"], &body["violated-policies"], &body["retry-after"], &body["status"]];
    assert_eq!(named, [&json!(false), &json!("per-user"), &json!(["per-user"]), &json!(wait), &json!(429)]);
    assert_eq!(body["retry_after_ms"].as_u64().expect("told").div_ceil(1000), wait);
    assert_eq!(running.server.recorder().totals(), Totals { allowed: 100, denied: 1, failed: 0 });
}

/// What is asked, the status, and some of the answer.
type Row = (&'static str, &'static str, u16, Value);

#[tokio::test]
async fn every_endpoint_answers() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let all = "\"per-user\"";
    let rows: [Row; 18] = [
        ("/v1/peek", r#"{"attributes":{"user":"a"}}"#, 200, json!({"allowed": true, "remaining": 10, "receipt": null})),
        ("/v1/peek", r#"{"attributes":{"user":"a"},"cost":11}"#, 200, json!({"allowed": false, "retry_after_ms": null})),
        ("/v1/check", r#"{"attributes":{"user":"a"},"cost":4}"#, 200, json!({"limit": 10, "remaining": 6, "source": "store"})),
        ("/v1/check", r#"{"attributes":{"user":"a"},"cost":0}"#, 200, json!({"remaining": 6, "receipt": null})),
        ("/v1/check", r#"{"attributes":{"user":"a"},"cost":11}"#, 429, json!({"retry_after_ms": null, "status": 429})),
        ("/v1/check", r#"{"attributes":{"user":"mallory"}}"#, 429, json!({"limit": 0, "retry_after_ms": null})),
        ("/v1/check", r#"{"attributes":{}}"#, 200, json!({"allowed": true, "policy": null, "limit": null, "outcomes": []})),
        ("/v1/check", r#"{"attributes":{"us\u0065r":"\u0061"}}"#, 200, json!({"remaining": 5})),
        ("/v1/charge", r#"{"attributes":{"user":"b"},"cost":12}"#, 200, json!({"remaining": 0})),
        ("/v1/check", r#"{"attributes":{"user":"b"}}"#, 429, json!({"policy": "per-user", "allowed": false})),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"one"}"#, 200, json!({"lease": "one", "policy": "jobs"})),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"two"}"#, 429, json!({"policy": "jobs", "remaining": 0})),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"one"}"#, 200, json!({"held": true})),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"two"}"#, 409, json!({"status": 409})),
        ("/v1/release", r#"{"attributes":{"tenant":"t"},"lease":"one"}"#, 200, json!({"released": true})),
        ("/v1/release", r#"{"attributes":{"tenant":"t"},"lease":"one"}"#, 200, json!({"released": false})),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"}}"#, 200, json!({"allowed": true, "receipt": null})),
        ("/v1/acquire", r#"{"attributes":{"tenent":"t"},"lease":"one"}"#, 200, json!({"allowed": true, "lease": null})),
    ];
    for (path, body, status, expected) in rows {
        let reply = client.post(path, body).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        assert_eq!(reply.header("content-type"), Some(kind), "{path} {body}");
        let json = reply.json();
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&json[name], value, "{path} {body}: {name}");
        }
        if json["policy"] == "per-user" {
            assert!(reply.header("ratelimit").is_some_and(|header| header.starts_with(all)), "{path} {body}");
        }
    }
}

#[tokio::test]
async fn a_lease_that_has_no_name_is_given_one() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let lease = client.post("/v1/acquire", r#"{"attributes":{"tenant":"t"}}"#).await.json()["lease"].clone();
    let body = json!({"attributes": {"tenant": "t"}, "lease": lease}).to_string();
    assert_eq!(client.post("/v1/release", body).await.json(), json!({"released": true}));
}

#[tokio::test]
async fn what_names_no_lease_takes_none_but_to_acquire_it() {
    let attributes = "forward_auth.attributes = { tenant = \"header:x-tenant\" }\n";
    let running = Running::start(&format!("{attributes}{POLICIES}")).await;
    let mut client = running.client().await;
    for _ in 0..2 {
        let hit = r#"{"attributes":{"tenant":"t"}}"#;
        let batch = client.post("/v1/check/batch", format!("{{\"hits\":[{hit}]}}")).await.json();
        for told in [client.post("/v1/check", hit).await.json(), batch["decisions"][0].clone()] {
            assert_eq!((&told["allowed"], &told["outcomes"]), (&json!(true), &json!([])));
        }
        assert_eq!(client.ask("GET", "/v1/auth", &[("x-tenant", "t")]).await.status, 200);
        // What takes nothing is told of it.
        assert_eq!(client.get("/v1/peek?tenant=t").await.json()["remaining"], 1);
    }
    for (lease, status) in [("a", 200), ("a", 200), ("b", 429)] {
        let reply = client.get(&format!("/v1/check?tenant=t&lease={lease}")).await;
        assert_eq!((reply.status, &reply.json()["policy"]), (status, &json!("jobs")), "{lease}");
    }
    assert!(running.server.greeting().contains("jobs: 1 leases at once for each tenant\n"), "{}", running.server.greeting());
    assert!(running.server.greeting().contains("asked by /v1/acquire, and where a hit names its lease: jobs\n"));
}

#[tokio::test]
async fn a_lease_is_renewed_where_a_policy_gives_it() {
    let running = Running::start(&format!("{POLICIES}unlimited = [\"free\"]\nblocked = [\"bad\"]\n")).await;
    let mut client = running.client().await;
    let none = client.post("/v1/renew", r#"{"attributes":{"user":"a"},"lease":"one"}"#).await;
    assert_eq!((none.status, &none.json()["field"]), (400, &json!("attributes")));
    // Who has no limit loses no place.
    for path in ["acquire", "renew"] {
        let reply = client.post(&format!("/v1/{path}"), r#"{"attributes":{"tenant":"free"},"lease":"one"}"#).await;
        let told = reply.json();
        assert_eq!((reply.status, told["lease"] == "one" || told["held"] == true), (200, true), "{path}: {reply:?}");
    }
    let blocked = client.post("/v1/renew", r#"{"attributes":{"tenant":"bad"},"lease":"one"}"#).await;
    assert_eq!(blocked.status, 409, "{blocked:?}");
    // What costs nothing would take no place.
    let free = client.post("/v1/acquire", r#"{"attributes":{"tenant":"t"},"cost":0,"lease":"one"}"#).await;
    assert_eq!((free.status, &free.json()["field"]), (400, &json!("cost")));
}

#[tokio::test]
async fn receipts_give_back_once() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let check = r#"{"attributes":{"user":"a"},"cost":4}"#;
    let left = |reply: &super::client::Reply| reply.json()["remaining"].clone();

    let first = client.post("/v1/check", check).await.json()["receipt"].clone();
    let refund = json!({ "receipt": first }).to_string();
    assert_eq!(left(&client.post("/v1/refund", &refund).await), 10);
    let _ = client.post("/v1/check", check).await;
    let _ = client.post("/v1/refund", &refund).await;
    assert_eq!(left(&client.get("/v1/peek?user=a").await), 6);

    let second = client.post("/v1/check", check).await.json()["receipt"].clone();
    let settle = json!({ "receipt": second, "cost": 1 }).to_string();
    assert_eq!(left(&client.post("/v1/settle", &settle).await), 5);
    let _ = client.post("/v1/settle", &settle).await;
    assert_eq!(left(&client.get("/v1/peek?user=a").await), 5);
}

#[tokio::test]
async fn with_a_secret_receipts_are_good_only_where_they_were_given_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "open sesame\n").expect("a file");
    let with = Running::start(&format!("store.key_secret_file = {secret:?}\n{POLICIES}")).await;
    let without = Running::start(POLICIES).await;
    let (mut sealed, mut plain) = (with.client().await, without.client().await);
    let check = r#"{"attributes":{"user":"a"},"cost":4}"#;
    let taken = |reply: super::client::Reply| reply.json()["receipt"].as_str().expect("a receipt").to_owned();
    let (forged, good) = (taken(plain.post("/v1/check", check).await), taken(sealed.post("/v1/check", check).await));
    let batch = sealed.post("/v1/check/batch", format!("{{\"hits\":[{check}]}}")).await.json();
    let second = batch["decisions"][0]["receipt"].as_str().expect("a receipt").to_owned();
    let tag = good.len() - 32;
    let wrong = [
        forged.clone(),
        format!("{forged}{}", &good[tag..]),
        good[..tag].to_owned(),
        good[..good.len() - 1].to_owned(),
        good.to_uppercase(),
        good.replace(",4;", ",5;"),
        good[tag..].to_owned(),
        format!("é{}", &good[tag + 1..]),
        String::new(),
    ];
    for receipt in &wrong {
        for path in ["/v1/refund", "/v1/settle"] {
            let mut body = json!({ "receipt": receipt });
            if path == "/v1/settle" {
                body["cost"] = json!(0);
            }
            let reply = sealed.post(path, body.to_string()).await;
            assert_eq!((reply.status, &reply.json()["field"]), (400, &json!("receipt")), "{receipt}");
        }
    }
    assert_eq!(sealed.get("/v1/peek?user=a").await.json()["remaining"], 2);
    for (receipt, left) in [(good, 6), (second, 10)] {
        let refund = json!({ "receipt": receipt }).to_string();
        assert_eq!(sealed.post("/v1/refund", refund).await.json()["remaining"], left);
    }
}

#[tokio::test]
async fn a_batch_is_decided_in_order_each_hit_by_itself() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let hit = |cost: u64| json!({"attributes": {"user": "a"}, "cost": cost});
    let reply = client.post("/v1/check/batch", json!({"hits": [hit(8), hit(3), hit(2), hit(1)]}).to_string()).await;
    assert_eq!(reply.status, 200);
    let body = reply.json();
    let decisions = body["decisions"].as_array().expect("a list");
    let told: Vec<_> = decisions.iter().map(|decision| (&decision["allowed"], &decision["remaining"])).collect();
    let [yes, no] = [json!(true), json!(false)];
    assert_eq!(told, [(&yes, &json!(2)), (&no, &json!(2)), (&yes, &json!(0)), (&no, &json!(0))]);
    assert_eq!(client.post("/v1/check/batch", r#"{"hits":[]}"#).await.json(), json!({"decisions": []}));
}

#[tokio::test]
async fn who_is_blocked_is_told_so() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    for (query, detail) in [
        ("user=mallory", "No wait helps: this is blocked."),
        ("user=a&cost=11", "No wait helps: this is more than is ever allowed."),
    ] {
        let reply = client.get(&format!("/v1/check?{query}")).await;
        assert_eq!((reply.status, &reply.json()["detail"]), (429, &json!(detail)));
    }
}

#[tokio::test]
async fn as_many_hits_as_may_come_at_once_fit_in_a_body() {
    let running = Running::start(POLICIES).await;
    let hit = json!({"attributes": {"user": "3f2b8c1e-5d4a-4e6b-9c0d-7a8b9c0d1e2f", "ip": "203.0.113.254"}, "cost": 1});
    let hits = vec![hit; Limits::default().max_batch.get()];
    let reply = running.client().await.post("/v1/check/batch", json!({ "hits": hits }).to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["decisions"].as_array().map(Vec::len), Some(hits.len()));
}

#[tokio::test]
async fn a_policy_that_watches_is_told_of_and_decides_nothing() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let _ = client.get("/v1/check?ip=1.2.3.4").await;
    let reply = client.get("/v1/check?ip=1.2.3.4").await;
    let body = reply.json();
    assert_eq!((reply.status, &body["allowed"], &body["policy"]), (200, &json!(true), &json!(null)));
    assert_eq!((&body["outcomes"][0]["allowed"], &body["outcomes"][0]["shadow"]), (&json!(false), &json!(true)));
    assert_eq!(reply.header("ratelimit"), None);
}

#[tokio::test]
async fn a_query_can_hold_any_bytes() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    for (query, same, shown) in [
        ("user=a+b", "user=a%20b", "a b"),
        ("user=%00%ff%25", "us%65r=%00%FF%25", r"\x00\xff%"),
        ("user=&cost=1", "cost=1&user", ""),
        ("user=x=y", "user=x%3Dy", "x=y"),
        ("user=%22%5c'", "user=%22%5C%27", r#"\"\\\'"#),
    ] {
        let _ = client.get(&format!("/v1/check?{query}")).await;
        let told = client.get(&format!("/v1/peek?{same}")).await.json();
        assert_eq!((&told["remaining"], &told["outcomes"][0]["key"]), (&json!(9), &json!(shown)), "{query}");
    }
}

#[tokio::test]
async fn headers_are_of_the_dialect_that_is_set() {
    for (dialect, name) in [("draft-06", "ratelimit-remaining"), ("x-ratelimit", "x-ratelimit-remaining")] {
        let running = Running::start(&format!("headers.dialect = \"{dialect}\"\n{POLICIES}")).await;
        let reply = running.client().await.get("/v1/check?user=a").await;
        assert_eq!((reply.header(name), reply.header("ratelimit")), (Some("9"), None));
    }
}
