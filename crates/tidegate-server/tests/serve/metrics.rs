//! What Prometheus is told.

use std::{
    collections::BTreeSet,
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::json;

use super::Running;

const POLICIES: &str = "[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"1/hour\"\n\
                        [[policy]]\nname = \"watched\"\nkey = [\"ip\"]\nquota = \"1/hour\"\nmode = \"shadow\"\n";

async fn scraped(running: &Running) -> String {
    let reply = running.admin().await.admin("GET /metrics", &[], "").await;
    assert_eq!(reply.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(reply.body.ends_with("# EOF\n"));
    reply.body
}

fn value(metrics: &str, series: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[tokio::test]
async fn the_names_are_those_of_the_docs() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = folder.path().join("limits");
    let store = format!("[store]\nsnapshot = {snapshot:?}\nsnapshot_interval = \"10ms\"\n");
    let running = Running::start(&format!("{store}{POLICIES}")).await;
    let mut metrics = scraped(&running).await;
    // From the first on.
    while !metrics.contains("snapshot_timestamp") {
        metrics = scraped(&running).await;
    }
    let exported: BTreeSet<String> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect();
    let docs = include_str!("../../../../docs/metrics.md");
    let documented = docs.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()));
    assert_eq!(exported, documented.collect());
}

#[tokio::test]
async fn snapshots_that_are_not_written_are_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).expect("made");
    let snapshot = inner.join("limits");
    let store = format!("[store]\nsnapshot = {snapshot:?}\nsnapshot_interval = \"10ms\"\n");
    let running = Running::start(&format!("{store}{POLICIES}")).await;
    let mut admin = running.admin().await;
    let mut ready = async || admin.admin("GET /readyz", &[], "").await.json();
    assert_eq!(ready().await, json!({ "ready": true, "store": "up", "snapshot": "ok" }));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let made = loop {
        let metrics = scraped(&running).await;
        assert_eq!(value(&metrics, "tidegate_snapshot_failures_total"), Some(0));
        let made =
            metrics.lines().find_map(|line| line.strip_prefix("tidegate_snapshot_timestamp_seconds ")?.parse::<f64>().ok());
        if let Some(made) = made {
            break made;
        }
    };
    assert!((made - began).abs() < 60.0, "{made} {began}");
    fs::remove_dir_all(&inner).or_else(|_| fs::remove_dir_all(&inner)).expect("removed");
    while ready().await["snapshot"] != "failing" {}
    assert_eq!(ready().await["ready"], true);
    assert!(value(&scraped(&running).await, "tidegate_snapshot_failures_total") > Some(0));
    fs::create_dir(&inner).expect("made");
    while ready().await["snapshot"] != "ok" {}

    let foreign = folder.path().join("foreign");
    fs::write(&foreign, "no snapshot").expect("a file");
    let running = Running::start(&format!("[store]\nsnapshot = {foreign:?}\n{POLICIES}")).await;
    let ready = running.admin().await.admin("GET /readyz", &[], "").await.json();
    assert_eq!(ready, json!({ "ready": true, "store": "up", "snapshot": "refused" }));
}

#[tokio::test]
async fn decisions_are_counted_by_policy_verdict_source_and_front_end() {
    let running = Running::start(POLICIES).await;
    running.client().await.all(b"what is this\r\n\r\n").await;
    running.until_counted("tidegate_connections{listener=\"http\"} 0").await;
    let mut client = running.client().await;
    for query in ["user=a&ip=1", "user=a", "user=b&ip=1", "user=c&ip=2"] {
        client.get(&format!("/v1/check?{query}")).await;
    }
    // What charges nothing is no decision.
    client.get("/v1/peek?user=a").await;
    // The address of who asks is an attribute.
    client.get("/v1/auth").await;
    client.get("/v1/check?usr=a").await;
    client.get("/none").await;
    let metrics = scraped(&running).await;
    for (series, count) in [
        ("unmatched_total{front_end=\"http\"}", 1),
        ("unmatched_total{front_end=\"forward-auth\"}", 0),
        ("http_responses_total{listener=\"http\",status=\"200\"}", 6),
        ("http_responses_total{listener=\"http\",status=\"429\"}", 1),
        ("http_responses_total{listener=\"http\",status=\"404\"}", 1),
        ("http_responses_total{listener=\"http\",status=\"400\"}", 1),
        ("http_responses_total{listener=\"admin\",status=\"404\"}", 0),
        ("connections_refused_total{listener=\"http\"}", 0),
        ("keys{policy=\"per-user\"}", 3),
        ("keys{policy=\"watched\"}", 3),
        ("decisions_total{front_end=\"http\",verdict=\"allowed\"}", 4),
        ("decisions_total{front_end=\"http\",verdict=\"denied\"}", 1),
        ("decisions_total{front_end=\"http\",verdict=\"failed\"}", 0),
        ("decisions_total{front_end=\"forward-auth\",verdict=\"allowed\"}", 1),
        ("outcomes_total{policy=\"per-user\",verdict=\"allowed\",source=\"store\"}", 3),
        ("outcomes_total{policy=\"per-user\",verdict=\"denied\",source=\"store\"}", 1),
        ("outcomes_total{policy=\"per-user\",verdict=\"denied\",source=\"fallback\"}", 0),
        ("outcomes_total{policy=\"watched\",verdict=\"would-allow\",source=\"store\"}", 3),
        ("outcomes_total{policy=\"watched\",verdict=\"would-deny\",source=\"store\"}", 1),
        ("connections{listener=\"http\"}", 1),
        ("connections{listener=\"admin\"}", 1),
        ("config_reloads_total{result=\"ok\"}", 0),
        ("store_up", 1),
        ("store_fallbacks_total", 0),
        ("store_unanswered_total{error=\"down\"}", 0),
        ("decision_log_dropped_total", 0),
    ] {
        assert_eq!(value(&metrics, &format!("tidegate_{series}")), Some(count), "{series} in {metrics}");
    }
}

#[tokio::test]
async fn no_key_is_a_label_and_a_policy_that_is_gone_is_none_either() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    for _ in 0..2 {
        client.get("/v1/check?user=sesame%0a%22%3cscript%3e").await;
    }
    let metrics = scraped(&running).await;
    assert!(!metrics.contains("sesame") && !metrics.contains("script"), "{metrics}");
    let mut admin = running.admin().await;
    let put = r#"{"policies":[{"name":"other","key":["user"],"quota":"9/hour"}]}"#;
    assert_eq!(admin.admin("PUT /v1/policies", &[], put).await.status, 200);
    client.get("/v1/check?user=a").await;
    let metrics = scraped(&running).await;
    assert!(!metrics.contains("per-user"), "{metrics}");
    let series = "tidegate_outcomes_total{policy=\"other\",verdict=\"allowed\",source=\"store\"}";
    assert_eq!(value(&metrics, series), Some(1), "{metrics}");
}
