//! The file changes while requests come: none fails, none is decided by two versions, and what is right is in force soon.

use std::{
    env, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use super::Running;

const DIALECTS: [(&str, &str); 3] =
    [("draft", "ratelimit-policy"), ("draft-06", "ratelimit-limit"), ("x-ratelimit", "x-ratelimit-limit")];

/// Two policies of one limit, so that a decision shows whether it mixes two versions.
fn file(limit: u64, dialect: &str) -> String {
    let policy = |name| format!("[[policy]]\nname = \"{name}\"\nkey = [\"user\"]\nquota = \"{limit}/day\"\n");
    format!("headers.dialect = \"{dialect}\"\n{}{}", policy("a"), policy("b"))
}

/// `TIDEGATE_RELOADS` of them, 200 unless set.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_file_changes() {
    const LEAST: u64 = 1_000_000_000;
    let reloads: u64 = env::var("TIDEGATE_RELOADS").map_or(200, |count| count.parse().expect("a number"));
    let running = Running::start(&file(LEAST, "draft")).await;
    let path = running.folder.path().join("tidegate.toml");
    let done = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (mut client, done) = (running.client().await, Arc::clone(&done));
        clients.spawn(async move {
            let (mut answered, mut last) = (0_u64, LEAST);
            while !done.load(Relaxed) {
                let reply = client.post("/v1/check", r#"{"attributes":{"user":"42"}}"#).await;
                assert_eq!(reply.status, 200);
                let told = reply.json();
                let limits = [0, 1].map(|policy| told["outcomes"][policy]["limit"].as_u64().expect("told"));
                assert!(limits[0] == limits[1] && limits[0] >= last, "{limits:?} after {last}");
                last = limits[0];
                answered += 1;
                // The rest of this machine is for who reloads.
                sleep(Duration::from_millis(1)).await;
            }
            answered
        });
    }
    let mut observer = running.client().await;
    for round in 1..=reloads {
        if round % 4 == 0 {
            fs::write(&path, "[[policy]]\nname = \"a\"\nquota = \"some\"").expect("written");
            running.until_counted(&format!("tidegate_config_reloads_total{{result=\"failed\"}} {}", round / 4)).await;
        }
        let (limit, (dialect, header)) = (LEAST + round, DIALECTS[round as usize % DIALECTS.len()]);
        fs::write(&path, file(limit, dialect)).expect("written");
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let reply = observer.get("/v1/peek?user=42").await;
            if reply.json()["limit"] == limit && reply.header(header).is_some() {
                break;
            }
            assert!(Instant::now() < deadline, "{limit} is not in force");
            sleep(Duration::from_millis(5)).await;
        }
    }
    done.store(true, Relaxed);
    let answered: u64 = clients.join_all().await.into_iter().sum();
    // What was counted under the first is counted under the last.
    assert_eq!(observer.get("/v1/peek?user=42").await.json()["remaining"], LEAST + reloads - answered);
}

/// A version whose attributes mean something under its own policies only: under those of the other one, `of` is missing and `header` is
/// blocked.
fn version(of: &str, other: &str, log: &Path) -> String {
    format!(
        "forward_auth.attributes = {{ {of} = \"header:x-{of}\", header = \"header:x-{of}\" }}\n\
         decision_log = {{ record = \"denials\", destination = {log:?} }}\n\
         [[policy]]\nname = \"{of}\"\nkey = [\"{of}\"]\nquota = \"1000000000/day\"\n\
         [[policy]]\nname = \"same\"\nkey = [\"header\"]\nquota = \"1000000000/day\"\nblocked = [\"{other}\"]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_asks_about_is_decided_by_the_version_that_it_was_read_by() {
    const RELOADS: usize = 30;
    const AHEAD: usize = 64;
    let folder = tempfile::tempdir().expect("a folder");
    let versions = [("a", "b"), ("b", "a")].map(|(of, other)| version(of, other, &folder.path().join("log")));
    let running = Running::start(&versions[0]).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        let (mut client, done) = (running.client().await, Arc::clone(&done));
        clients.spawn(async move {
            let request = "GET /v1/auth HTTP/1.1\r\nhost: tidegate\r\nx-a: a\r\nx-b: b\r\n\r\n";
            while !done.load(Relaxed) {
                client.send(request.repeat(AHEAD).as_bytes()).await.expect("sent");
                for _ in 0..AHEAD {
                    let reply = client.reply().await.expect("a reply");
                    let policies = reply.header("ratelimit-policy").map_or(0, |policies| policies.split(',').count());
                    assert_eq!((reply.status, policies), (200, 2), "{reply:?}");
                }
            }
        });
    }
    for reload in 1..=RELOADS {
        fs::write(running.folder.path().join("tidegate.toml"), &versions[reload % 2]).expect("written");
        running.until_counted(&format!("tidegate_config_reloads_total{{result=\"ok\"}} {reload}")).await;
    }
    done.store(true, Relaxed);
    clients.join_all().await;
}
