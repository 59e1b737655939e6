//! The file changes while requests come: none fails, and what is right is in force soon.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::Running;

fn file(limit: u64, dialect: &str) -> String {
    format!("headers.dialect = \"{dialect}\"\n[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"{limit}/hour\"\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_file_changes() {
    let running = Running::start(&file(1_000_000, "draft")).await;
    let path = running.folder.path().join("tidegate.toml");
    let done = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (mut client, done) = (running.client().await, Arc::clone(&done));
        clients.spawn(async move {
            let mut answered = 0_u64;
            while !done.load(Relaxed) {
                let reply = client.post("/v1/check", r#"{"attributes":{"user":"42"}}"#).await;
                assert_eq!(reply.status, 200);
                let limit = reply.json()["limit"].as_u64().expect("told");
                assert!([1_000_000, 2_000_000, 3_000_000].contains(&limit), "{limit}");
                answered += 1;
            }
            answered
        });
    }
    let mut observer = running.client().await;
    for (limit, dialect, header) in [(2_000_000, "draft-06", "ratelimit-limit"), (3_000_000, "x-ratelimit", "x-ratelimit-limit")]
    {
        fs::write(&path, "[[policy]]\nname = \"per-user\"\nquota = \"some\"").expect("written");
        tokio::time::sleep(Duration::from_millis(300)).await;
        fs::write(&path, file(limit, dialect)).expect("written");
        let deadline = Instant::now() + Duration::from_secs(30);
        while observer.get("/v1/peek?user=42").await.header(header) != Some(limit.to_string().as_str()) {
            assert!(Instant::now() < deadline, "{limit} is not in force");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    done.store(true, Relaxed);
    let answered: u64 = clients.join_all().await.into_iter().sum();
    // What was counted under the first is counted under the last.
    assert_eq!(observer.get("/v1/peek?user=42").await.json()["remaining"], 3_000_000 - answered);
}
