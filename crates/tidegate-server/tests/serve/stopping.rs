//! Being told to stop loses no reply.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Running, client::Client};

const HIT: &[u8] = br#"{"attributes":{"user":"42"}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn no_reply_is_lost() {
    let running = Running::start("").await;
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let mut client = running.client().await;
        clients.spawn(async move {
            // Until the server says that this was the last: each is answered.
            let mut answered = 0_u64;
            loop {
                let reply = client.try_post("/v1/check", HIT).await.unwrap_or_else(|error| panic!("after {answered}: {error}"));
                assert_eq!(reply.status, 200);
                answered += 1;
                if reply.header("connection") == Some("close") {
                    return answered;
                }
            }
        });
    }
    let recorder = running.server.recorder();
    while recorder.totals().allowed < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let address = running.server.http();
    let started = Instant::now();
    running.server.stop().await;
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
    let answered: u64 = clients.join_all().await.into_iter().sum();
    assert_eq!(answered, recorder.totals().allowed);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn balancers_see_that_it_stops_before_it_does() {
    let running = Running::start("[limits]\nshutdown_delay = \"1s\"").await;
    let (mut admin, mut kept) = (running.admin().await, running.client().await);
    let address = running.server.http();
    let started = Instant::now();
    let stopping = tokio::spawn(running.server.stop());
    while admin.admin("GET /readyz", &[], "").await.status == 200 {}
    // Who has not seen it yet is served as ever.
    for mut client in [Client::connect(address).await, Client::connect(address).await] {
        let reply = client.get("/v1/check").await;
        assert_eq!((reply.status, reply.header("connection")), (200, None));
    }
    assert_eq!(kept.get("/v1/check").await.header("connection"), None);
    assert!(started.elapsed() < Duration::from_secs(1), "too slow to tell");
    stopping.await.expect("stopped");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_every_stage_up_holds_it_up_for_the_grace_time_and_a_second() {
    // A collector that says nothing.
    let collector = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", collector.local_addr().expect("one"));
    let file = format!("[limits]\nshutdown_grace = \"1s\"\n[telemetry]\notlp_endpoint = {endpoint:?}");
    let running = Running::start(&file).await;
    let (mut unfinished, mut admin) = (running.client().await, running.admin().await);
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n";
    unfinished.send(head.as_bytes()).await.expect("sent");
    admin
        .send(head.replace("POST /v1/check", "PUT /v1/policies").replace("host: a", "host: localhost").as_bytes())
        .await
        .expect("sent");
    assert_eq!(running.client().await.get("/v1/check").await.status, 200);
    let started = Instant::now();
    running.server.stop().await;
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(3500), "{took:?}");
}

#[tokio::test]
async fn who_says_nothing_holds_nobody_up_longer_than_the_grace_time() {
    let running = Running::start("[limits]\nshutdown_grace = \"1s\"").await;
    let idle = running.client().await;
    let mut unfinished = running.client().await;
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n";
    unfinished.send(head.as_bytes()).await.expect("sent");
    let mut late = running.client().await;
    assert_eq!(late.get("/v1/check").await.status, 200);

    let started = Instant::now();
    let address = running.server.http();
    let stopping = tokio::spawn(running.server.stop());
    while tokio::net::TcpStream::connect(address).await.is_ok() {}
    // What was on its way is answered.
    let reply = late.get("/v1/check").await;
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    stopping.await.expect("stopped");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
    assert!(unfinished.reply().await.is_err());
    drop(idle);
}
