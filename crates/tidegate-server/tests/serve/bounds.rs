//! Clients that are slow, large or many.

use std::time::{Duration, Instant};

use super::{Running, client::Client};

#[tokio::test]
async fn a_client_that_is_slow_is_not_waited_for() {
    let running = Running::start("[limits]\nheader_timeout = \"200ms\"").await;
    let started = Instant::now();
    let mut silent = running.client().await;
    let mut slow = running.client().await;
    slow.send(b"GET /v1/check HTTP/1.1\r\nhost: a\r\n").await.expect("sent");
    let mut bodiless = running.client().await;
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{";
    bodiless.send(head.as_bytes()).await.expect("sent");

    assert_eq!(bodiless.reply().await.expect("a reply").status, 408);
    for client in [&mut silent, &mut slow] {
        // Closed, with a reply or without.
        let _ = client.reply().await;
        assert!(client.reply().await.is_err());
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(running.client().await.get("/v1/check").await.status, 200);
}

#[tokio::test]
async fn between_requests_a_client_may_take_longer() {
    let running = Running::start("[limits]\nheader_timeout = \"100ms\"\nidle_timeout = \"2s\"").await;
    let mut client = running.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/v1/check").await.status, 200);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // What has begun has its own time.
    client.send(b"GET /v1/ch").await.expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 408);

    let running = Running::start("[limits]\nheader_timeout = \"1h\"\nidle_timeout = \"100ms\"").await;
    let mut client = running.client().await;
    assert_eq!(client.get("/v1/check").await.status, 200);
    assert!(client.reply().await.is_err(), "it is closed");
}

#[tokio::test]
async fn who_asks_and_never_reads_is_not_waited_for() {
    let running = Running::start("[limits]\nheader_timeout = \"200ms\"").await;
    let mut client = running.client().await;
    let many = "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100);
    // Until there is room for no more answers on the way, and then until the server has had enough.
    let closed = async { while client.send(many.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("it is closed");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let running = Running::start("[limits]\nmax_body_bytes = 100").await;
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    let mut client = running.client().await;
    client.send(format!("{head}content-length: 1000000000000\r\n\r\n").as_bytes()).await.expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 413);

    // One that does not say how large it is.
    let mut client = running.client().await;
    client
        .send(format!("{head}transfer-encoding: chunked\r\n\r\n40\r\n{:064}\r\n40\r\n{:064}\r\n", 0, 0).as_bytes())
        .await
        .expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 413);

    let padded = |length: usize| format!("{{\"attributes\":{{}}{}}}", " ".repeat(length - 17));
    assert_eq!(running.client().await.post("/v1/check", padded(100)).await.status, 200);
    assert_eq!(running.client().await.post("/v1/check", padded(101)).await.status, 413);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let running = Running::start("").await;
    let mut client = running.client().await;
    let head = format!("GET /v1/check HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n", "a".repeat(70_000));
    client.send(head.as_bytes()).await.expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 431);
    assert_eq!(running.server.recorder().totals().allowed, 0);
}

#[tokio::test]
async fn a_body_may_come_in_pieces() {
    let running = Running::start("").await;
    let mut client = running.client().await;
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    client.send(head.as_bytes()).await.expect("sent");
    for piece in ["{\"attri", "butes\":", "{}}"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.expect("sent");
        tokio::task::yield_now().await;
    }
    client.send(b"0\r\n\r\n").await.expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 200);
}

#[tokio::test]
async fn requests_may_be_sent_ahead() {
    let running = Running::start("").await;
    let mut client = running.client().await;
    let started = Instant::now();
    client.send("GET /v1/check?user=42 HTTP/1.1\r\nhost: a\r\n\r\n".repeat(50).as_bytes()).await.expect("sent");
    for _ in 0..50 {
        assert_eq!(client.reply().await.expect("a reply").status, 200);
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn who_comes_when_there_is_no_room_is_told_so() {
    let running = Running::start("[limits]\nmax_connections = 2").await;
    let mut held: Vec<Client> = vec![running.client().await, running.client().await];
    for client in &mut held {
        assert_eq!(client.get("/v1/check").await.status, 200);
    }
    let reply = running.client().await.reply().await.expect("a reply");
    assert_eq!((reply.status, reply.header("connection")), (503, Some("close")));
    assert_eq!((reply.header("content-type"), &reply.json()["status"]), (Some("application/problem+json"), &503.into()));
    assert!(reply.body.ends_with('}') && reply.header("retry-after").is_some(), "{reply:?}");
    running.until_counted("tidegate_connections_refused_total{listener=\"http\"} 1").await;
    assert_eq!(held[0].get("/v1/check").await.status, 200);
    drop(held.pop());
    // The place is free as soon as the server has noticed.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut client = running.client().await;
        let sent = client.send(b"GET /v1/check HTTP/1.1\r\nhost: a\r\n\r\n").await;
        if sent.is_ok() && client.reply().await.is_ok_and(|reply| reply.status == 200) {
            break;
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
