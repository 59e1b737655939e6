//! Two servers on one Redis.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use tidegate_testkit::Server as RedisServer;
use tokio::task::JoinSet;

use super::Running;

const LIMIT: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_admit_exactly_the_limit() {
    let redis = RedisServer::start();
    // Whoever has to wait for this machine waits: it is Redis that is to decide.
    let file = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"30s\"\non_error = \"error\"\ndeny_cache = \"0s\"\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"{LIMIT}/hour\"\n",
        redis.url()
    );
    let servers = [Running::start(&file).await, Running::start(&file).await];
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let mut client = servers[number % 2].client().await;
        clients.spawn(async move {
            let mut allowed = 0;
            for _ in 0..LIMIT / 4 {
                let reply = client.post("/v1/check", r#"{"attributes":{"user":"42"}}"#).await;
                assert!([200, 429].contains(&reply.status), "{reply:?}");
                assert_eq!(reply.json()["source"], "store");
                allowed += usize::from(reply.status == 200);
            }
            allowed
        });
    }
    assert_eq!(clients.join_all().await.into_iter().sum::<usize>(), LIMIT);
    let both = servers.each_ref().map(|running| running.server.recorder().totals());
    assert_eq!(both.iter().map(|totals| totals.allowed).sum::<u64>(), LIMIT as u64);
    assert!(both.iter().all(|totals| totals.allowed > 0 && totals.failed == 0), "{both:?}");
}

#[tokio::test]
async fn there_are_as_many_threads_as_is_said_each_with_a_connection() {
    for threads in [1, 3] {
        let redis = RedisServer::start();
        let file = format!(
            "[listen]\nthreads = {threads}\n[store]\nurl = \"{}\"\ndeadline = \"30s\"\n\
             [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"10/hour\"\n",
            redis.url()
        );
        let running = Running::start(&file).await;
        // And one that belongs to none of them.
        running.until_counted(&format!("tidegate_store_connects_total {}", threads + 1)).await;
        for number in 0..4 {
            let reply = running.client().await.post("/v1/check", format!(r#"{{"attributes":{{"user":"{number}"}}}}"#)).await;
            assert_eq!((reply.status, &reply.json()["source"]), (200, &"store".into()));
        }
    }
}

#[tokio::test]
async fn every_kind_of_question_can_be_asked_on_redis() {
    let redis = RedisServer::start();
    let file = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"30s\"\non_error = \"error\"\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"10/hour\"\n\
         [[policy]]\nname = \"jobs\"\nkey = [\"tenant\"]\nconcurrency = {{ limit = 1, ttl = \"1h\" }}\n",
        redis.url()
    );
    let running = Running::start(&file).await;
    let mut client = running.client().await;
    let hits = r#"{"hits":[{"attributes":{"user":"a"},"cost":8},{"attributes":{"user":"a"},"cost":3},{"attributes":{"user":"a"},"cost":2}]}"#;
    let decisions = client.post("/v1/check/batch", hits).await.json();
    let allowed = decisions["decisions"].as_array().expect("a list").iter().map(|decision| decision["allowed"].clone());
    assert_eq!(allowed.collect::<Vec<_>>(), [true, false, true]);
    let refund = serde_json::json!({ "receipt": decisions["decisions"][0]["receipt"] }).to_string();
    assert_eq!(client.post("/v1/refund", refund).await.json()["remaining"], 8);
    assert_eq!(client.post("/v1/charge", r#"{"attributes":{"user":"a"},"cost":9}"#).await.json()["remaining"], 0);
    let lease = r#"{"attributes":{"tenant":"t"},"lease":"a"}"#;
    for _ in 0..2 {
        assert_eq!(client.get("/v1/check?tenant=t").await.json()["outcomes"], serde_json::json!([]));
    }
    for (path, status) in [("acquire", 200), ("renew", 200), ("release", 200), ("renew", 409)] {
        assert_eq!(client.post(&format!("/v1/{path}"), lease).await.status, status, "{path}");
    }
    // What somebody else has put in the place of a key is no silence.
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("it listens");
    stream.write_all(b"RPUSH rl:per-user:{f}:sliding-window:user x\r\n").expect("sent");
    assert_eq!(stream.read(&mut [0; 9]).expect("answered"), 4);
    let refused = client.get("/v1/check?user=f").await;
    assert_eq!(refused.status, 503);
    assert!(refused.json()["detail"].as_str().is_some_and(|detail| detail.contains("WRONGTYPE")), "{refused:?}");
}

#[tokio::test]
async fn who_has_closed_its_side_is_answered_and_what_is_asked_is_counted_whoever_goes() {
    let redis = RedisServer::start();
    let file = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"30s\"\non_error = \"error\"\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"10/hour\"\n\
         [[policy]]\nname = \"jobs\"\nkey = [\"tenant\"]\nconcurrency = {{ limit = 1, ttl = \"1h\" }}\n",
        redis.url()
    );
    let running = Running::start(&file).await;
    let mut other = running.client().await;
    assert_eq!(other.get("/v1/peek?user=a").await.json()["remaining"], 10);
    let acquire = |body: &str| {
        let head = "POST /v1/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length";
        format!("{head}: {}\r\n\r\n{body}", body.len())
    };
    let requests = [
        ("GET /v1/check?user=a HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "200 "),
        (acquire(r#"{"attributes":{"tenant":"t"},"lease":"mine"}"#), "200 "),
        // Nobody would know of this one if its client has gone.
        (acquire(r#"{"attributes":{"tenant":"u"}}"#), "409 "),
    ];
    // It answers later than they close.
    redis.freeze();
    let asked: Vec<_> = requests
        .into_iter()
        .map(|(request, status)| {
            let connecting = running.client();
            async move {
                let reply = connecting.await.all(request.as_bytes()).await;
                assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {reply}");
            }
        })
        .collect();
    let gone = async {
        let mut gone = running.client().await;
        gone.send(b"GET /v1/check?user=a HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        tokio::time::sleep(Duration::from_millis(100)).await;
        gone.reset();
        tokio::time::sleep(Duration::from_millis(100)).await;
        redis.thaw();
    };
    tokio::join!(futures_util::future::join_all(asked), gone);
    running.until_counted("tidegate_decisions_total{front_end=\"http\",verdict=\"allowed\"} 4").await;
    assert_eq!(other.get("/v1/peek?user=a").await.json()["remaining"], 8);
    assert_eq!(other.get("/v1/peek?tenant=t").await.json()["remaining"], 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    while other.get("/v1/peek?tenant=u").await.json()["remaining"] != 1 {
        assert!(Instant::now() < deadline, "the lease is held by nobody");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_goes_before_there_is_an_answer_holds_no_lease() {
    let redis = RedisServer::start();
    let file = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"30s\"\non_error = \"error\"\n\
         [[policy]]\nname = \"jobs\"\nkey = [\"tenant\"]\nconcurrency = {{ limit = 1, ttl = \"1h\" }}\n",
        redis.url()
    );
    let running = Running::start(&file).await;
    let body = r#"{"attributes":{"tenant":"t"}}"#;
    let mut other = running.client().await;
    assert_eq!(other.get("/v1/peek?tenant=t").await.json()["remaining"], 1);
    redis.freeze();
    let mut gone = running.client().await;
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    gone.send(format!("{head}{body}").as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(gone);
    tokio::time::sleep(Duration::from_millis(100)).await;
    redis.thaw();
    let deadline = Instant::now() + Duration::from_secs(20);
    while other.post("/v1/acquire", body).await.status != 200 {
        assert!(Instant::now() < deadline, "the lease is held by nobody");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_is_told_no_while_the_store_says_yes_holds_no_lease() {
    for (on_error, status) in [("error", 503), ("deny", 429)] {
        let redis = RedisServer::start();
        let file = format!(
            "[store]\nurl = \"{}\"\ndeadline = \"300ms\"\non_error = \"{on_error}\"\n\
             [[policy]]\nname = \"jobs\"\nkey = [\"tenant\"]\nconcurrency = {{ limit = 1, ttl = \"1h\" }}\n",
            redis.url()
        );
        let running = Running::start(&file).await;
        let mut client = running.client().await;
        assert_eq!(client.get("/v1/peek?tenant=t").await.json()["remaining"], 1);
        let body = r#"{"attributes":{"tenant":"t"}}"#;
        // It is asked, and its answer is late.
        redis.freeze();
        assert_eq!(client.post("/v1/acquire", body).await.status, status);
        redis.thaw();
        let deadline = Instant::now() + Duration::from_secs(20);
        while client.post("/v1/acquire", body).await.status != 200 {
            assert!(Instant::now() < deadline, "{on_error}: the lease is held by nobody");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_503_where_a_policy_says_so() {
    let mut redis = RedisServer::start();
    let file = format!(
        "[store]\nurl = \"{}\"\non_error = \"error\"\n[[policy]]\nname = \"all\"\nkey = []\nquota = \"9/s\"\n",
        redis.url()
    );
    redis.kill();
    let running = Running::start(&file).await;
    let mut client = running.client().await;
    let reply = client.post("/v1/check", r#"{"attributes":{}}"#).await;
    assert_eq!((reply.status, reply.header("content-type")), (503, Some("application/problem+json")));
    let batch = client.post("/v1/check/batch", r#"{"hits":[{"attributes":{}}]}"#).await;
    assert_eq!((batch.status, &batch.json()["decisions"][0]["status"]), (200, &serde_json::json!(503)));
    assert_eq!(client.ask("GET", "/v1/auth", &[]).await.status, 503);
}
