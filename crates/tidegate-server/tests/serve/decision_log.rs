//! The decision log as a file, and hostile keys in it and among the denials.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::{Value, json};

use super::Running;

/// A newline, quotes, bytes that are no UTF-8, a tag, an escape of a terminal; short enough to be kept as it is.
const HOSTILE: &str = "a%0a%22%ff%3cscript%3e%1b%5b%27";
const SHOWN: &str = r#"a\n\"\xff<script>\x1b[\'"#;

fn file(record: &str, log: &Path, more: &str) -> String {
    format!(
        "[decision_log]\nrecord = \"{record}\"\ndestination = {log:?}\n{more}\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"1/hour\"\nblocked = [\"mallory\"]\n"
    )
}

fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("text");
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
    assert!(!text.contains('<'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn denials_are_written_with_their_reasons_and_nothing_hostile() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("decisions.log");
    let running = Running::start(&file("denials", &log, "")).await;
    let mut client = running.client().await;
    for (query, status) in [
        (format!("user={HOSTILE}"), 200),
        (format!("user={HOSTILE}"), 429),
        ("user=b&cost=2".to_owned(), 429),
        ("user=mallory".to_owned(), 429),
    ] {
        assert_eq!(client.get(&format!("/v1/check?{query}")).await.status, status, "{query}");
    }
    // A key that is long is stored as a digest, and told beside it to who may look; of what is very long, the beginning. None of it is in
    // the log.
    let (long, endless) = ("550e8400-e29b-41d4-a716-446655440000", "e".repeat(5000));
    for status in [200, 429] {
        assert_eq!(client.get(&format!("/v1/check?user={long}&%3c%0a={HOSTILE}&more={endless}")).await.status, status);
    }
    let latest = running.admin().await.admin("GET /v1/denials?n=1", &[], "").await.json();
    assert_eq!(latest["denials"][0]["attributes"], json!({ "user": long, "<\\n": SHOWN, "more": "e".repeat(128) }));
    let denials = running.admin().await.admin("GET /v1/denials", &[], "").await;
    assert!(!denials.body.contains('<') && denials.body.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{denials:?}");
    assert_eq!(denials.json()["denials"][3]["key"], SHOWN);
    running.server.stop().await;
    assert_eq!(fs::metadata(&log).expect("a file").permissions().mode() & 0o777, 0o600);
    let lines = lines(&log);
    assert!(lines.iter().all(|line| line.get("attributes").is_none() && !line.to_string().contains(long)), "{lines:?}");
    let told: Vec<[&Value; 3]> = lines[..3].iter().map(|line| [&line["key"], &line["reason"], &line["verdict"]]).collect();
    let denied = json!("denied");
    assert_eq!(
        told,
        [
            [&json!(SHOWN), &json!("over-limit"), &denied],
            [&json!("b"), &json!("cost-above-limit"), &denied],
            [&json!("mallory"), &json!("blocked"), &denied],
        ]
    );
    for (field, value) in [("policy", "per-user"), ("front_end", "http"), ("asked", "check"), ("source", "store")] {
        assert!(lines.iter().all(|line| line[field] == value), "{field}: {lines:?}");
    }
}

/// Who tries a policy before it is enforced looks for the keys that it would deny.
#[tokio::test]
async fn what_a_shadow_would_deny_is_told_with_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("decisions.log");
    let shadow = "[[policy]]\nname = \"tried\"\nkey = [\"ip\"]\nquota = \"1/hour\"\nmode = \"shadow\"\n";
    let running = Running::start(&format!("{}{shadow}", file("all", &log, "hash_keys = true"))).await;
    let mut client = running.client().await;
    for _ in 0..2 {
        assert_eq!(client.get("/v1/check?ip=192.0.2.1").await.status, 200);
    }
    running.server.stop().await;
    let lines = lines(&log);
    assert_eq!((&lines[0]["would_deny"], &lines[1]["verdict"]), (&Value::Null, &json!("allowed")));
    let told = &lines[1]["would_deny"][0];
    assert_eq!([&told["policy"], &told["used"], &told["limit"]], [&json!("tried"), &json!(1), &json!(1)]);
    let key = told["key"].as_str().expect("a text");
    assert!(key.starts_with('#') && key.len() == 33, "{key}");
}

#[tokio::test]
async fn what_is_denied_because_the_store_is_down_is_not_the_keys_fault() {
    let store = "[store]\nurl = \"redis://127.0.0.1:1/\"\non_error = \"deny\"\n";
    let running = Running::start(&format!("{store}[[policy]]\nname = \"all\"\nkey = []\nquota = \"5/s\"\n")).await;
    assert_eq!(running.client().await.get("/v1/check").await.status, 429);
    let denials = running.admin().await.admin("GET /v1/denials", &[], "").await.json();
    let denied = &denials["denials"][0];
    assert_eq!([&denied["reason"], &denied["used"], &denied["source"]], [&json!("no-store"), &Value::Null, &json!("fallback")]);
    // What is above the limit is that, whoever decides.
    let running =
        Running::start(&format!("{}[[policy]]\nname = \"all\"\nkey = []\nquota = \"5/s\"\n", store.replace("deny", "local")))
            .await;
    assert_eq!(running.client().await.get("/v1/check?cost=6").await.status, 429);
    let denials = running.admin().await.admin("GET /v1/denials", &[], "").await.json();
    let denied = &denials["denials"][0];
    let told = [&denied["reason"], &denied["used"], &denied["source"]];
    assert_eq!(told, [&json!("cost-above-limit"), &json!(0), &json!("fallback")]);
}

#[tokio::test]
async fn decisions_that_fail_are_written_where_denials_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("decisions.log");
    let store = "[store]\nurl = \"redis://127.0.0.1:1/\"\non_error = \"error\"\n";
    let running = Running::start(&format!("{store}{}", file("denials", &log, ""))).await;
    assert_eq!(running.client().await.get("/v1/check?user=a").await.status, 503);
    running.server.stop().await;
    let lines = lines(&log);
    let told: Vec<[&Value; 2]> = lines.iter().map(|line| [&line["verdict"], &line["reason"]]).collect();
    assert_eq!(told, [[&json!("failed"), &json!("down")]]);
}

#[tokio::test]
async fn all_are_written_if_asked_for_and_keys_as_digests() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("decisions.log");
    let running = Running::start(&file("all", &log, "hash_keys = true")).await;
    let mut client = running.client().await;
    for query in ["user=alice", "user=alice", "user=bob", "nobody=1"] {
        client.get(&format!("/v1/check?{query}")).await;
    }
    running.server.stop().await;
    let text = fs::read_to_string(&log).expect("text");
    assert!(!text.contains("alice") && !text.contains("bob"), "{text}");
    let lines = lines(&log);
    let verdicts: Vec<&str> = lines.iter().filter_map(|line| line["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["allowed", "denied", "allowed", "allowed"]);
    assert_eq!(lines[0]["key"], lines[1]["key"]);
    assert_ne!(lines[0]["key"], lines[2]["key"]);
    assert_eq!((&lines[3]["policy"], &lines[3]["key"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn what_is_recorded_follows_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("decisions.log");
    let running = Running::start(&file("off", &log, "")).await;
    let mut client = running.client().await;
    client.get("/v1/check?user=a").await;
    assert!(!log.exists());
    let path = running.folder.path().join("tidegate.toml");
    let mut config = running.server.config();
    // A file that cannot be written refuses the whole configuration.
    fs::write(&path, file("all", &folder.path().join("none/decisions.log"), "")).expect("written");
    running.until_counted("tidegate_config_reloads_total{result=\"failed\"} 1").await;
    fs::write(&path, file("all", &log, "")).expect("written");
    config.changed().await.expect("it is served");
    client.get("/v1/check?user=b").await;
    running.server.stop().await;
    let keys: Vec<Value> = lines(&log).iter().map(|line| line["key"].clone()).collect();
    assert_eq!(keys, ["b"]);
}
