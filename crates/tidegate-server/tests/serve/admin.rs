//! The admin surface: who may do what, and what it does.

use std::{fs, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tidegate_server::{
    config::{Admin, Config, Sources, parse},
    serve::{Server, StartError},
};
use tidegate_testkit::Server as RedisServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring},
};

use super::{
    Running,
    client::{Client, Reply},
};

const PER_USER: &str = "[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"3/hour\"\n";

/// Each endpoint, and the least role that may use it.
const ENDPOINTS: [(&str, &str, &str); 10] = [
    ("GET /healthz", "", "anyone"),
    ("GET /readyz", "", "anyone"),
    ("GET /metrics", "", "read"),
    ("GET /v1/policies", "", "read"),
    ("GET /v1/inspect?policy=per-user&user=42", "", "read"),
    ("GET /v1/top", "", "read"),
    ("GET /v1/denials", "", "read"),
    ("POST /v1/reset", r#"{"attributes":{"user":"42"}}"#, "write"),
    ("PATCH /v1/policies/per-user", r#"{"quota":"4/hour"}"#, "write"),
    ("PUT /v1/policies", r#"{"policies":[{"name":"per-user","key":["user"],"quota":"5/hour"}]}"#, "write"),
];

async fn look(client: &mut Client, target: &str) -> Value {
    let reply = client.admin(&format!("GET {target}"), &[], "").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn is_problem(reply: &Reply, status: u16) -> bool {
    (reply.status, reply.header("content-type")) == (status, Some("application/problem+json"))
        && reply.json()["status"] == status
        && reply.header("cache-control") == Some("no-store")
}

#[tokio::test]
async fn each_endpoint_is_for_who_has_the_role() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = |name: &str| {
        let path = folder.path().join(name);
        // As an editor leaves it, and as somebody does who has copied it.
        let around = if name == "read" { ["", "\n"] } else { [" ", " \t\r\n"] };
        fs::write(&path, around.join(&format!("{name}-secret"))).expect("a file");
        path
    };
    let (read, write) = (token("read"), token("write"));
    let both = format!("[admin]\nread_token_file = {read:?}\nwrite_token_file = {write:?}\n");
    let tables = [
        ("".to_owned(), [("", "write"), ("Bearer wrong", "write")].as_slice()),
        (
            both,
            &[
                ("", "anyone"),
                ("Bearer read-secret", "read"),
                ("bearer write-secret", "write"),
                ("Bearer wrong", "anyone"),
                ("Bearer ", "anyone"),
                ("Bearer read-secret\t1", "anyone"),
                ("Basic read-secret", "anyone"),
                ("read-secret", "anyone"),
            ],
        ),
        (format!("[admin]\nread_token_file = {read:?}\n"), &[("Bearer read-secret", "read"), ("", "anyone")]),
        (format!("[admin]\nwrite_token_file = {write:?}\n"), &[("Bearer write-secret", "write"), ("", "anyone")]),
    ];
    let rank = |role: &str| ["anyone", "read", "write"].iter().position(|known| *known == role);
    for (settings, bearers) in tables {
        let running = Running::start(&format!("{settings}{PER_USER}")).await;
        let mut client = running.admin().await;
        for (bearer, role) in bearers {
            // What there is not is told to those who may look.
            for request in ["GET /nope", "DELETE /v1/policies"] {
                let headers = if bearer.is_empty() { vec![] } else { vec![("authorization", *bearer)] };
                let reply = client.admin(request, &headers, "").await;
                assert_eq!(reply.status == 401, *role == "anyone", "{settings} {bearer} {request}: {reply:?}");
            }
            for (request, body, needed) in ENDPOINTS {
                let headers = if bearer.is_empty() { vec![] } else { vec![("authorization", *bearer)] };
                let reply = client.admin(request, &headers, body).await;
                let shown = format!("{settings} {bearer} {request}: {reply:?}");
                if rank(role) >= rank(needed) {
                    assert_eq!(reply.status, 200, "{shown}");
                } else if *role == "read" {
                    assert!(is_problem(&reply, 403), "{shown}");
                } else {
                    assert!(is_problem(&reply, 401) && reply.header("www-authenticate") == Some("Bearer"), "{shown}");
                }
                assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
                assert!(!reply.body.contains("secret"), "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let running = Running::start(&format!("[admin]\nallowed_hosts = [\"limits.example\"]\n{PER_USER}")).await;
    let mut client = running.admin().await;
    for (host, origin, status, health) in [
        ("127.0.0.1:9090", "", 200, 200),
        ("127.0.0.1", "http://127.0.0.1", 200, 200),
        ("[::1]:9090", "http://[::1]:9090", 200, 200),
        ("[::1]", "", 200, 200),
        ("localhost:9090", "http://localhost:9090", 200, 200),
        ("LocalHost", "", 200, 200),
        ("limits.example", "https://limits.example", 200, 200),
        ("evil.example", "", 403, 200),
        ("evil.example:9090", "http://evil.example:9090", 403, 200),
        ("limits.example.evil.example", "", 403, 200),
        ("localhost.evil.example", "", 403, 200),
        ("127.0.0.1.evil.example", "", 403, 200),
        ("", "", 403, 200),
        ("localhost:9090", "http://localhost:3000", 403, 403),
        ("localhost:9090", "http://evil.example", 403, 403),
        ("localhost:9090", "null", 403, 403),
        ("localhost:9090", "file://localhost:9090", 403, 403),
    ] {
        for (request, body, role) in ENDPOINTS {
            let status = if role == "anyone" { health } else { status };
            let headers = [("host", host), ("origin", origin)];
            let reply = client.admin(request, &headers[..1 + usize::from(!origin.is_empty())], body).await;
            assert_eq!(reply.status, status, "{host} {origin} {request}: {reply:?}");
            assert!(status == 200 || is_problem(&reply, 403));
        }
    }
    // What is no host is refused before anybody looks at it.
    assert_eq!(client.admin("GET /v1/policies", &[("host", "localhost:evil.example")], "").await.status, 400);
    client = running.admin().await;
    for twice in [("host", "evil.example"), ("origin", "http://evil.example")] {
        let reply = client.admin("GET /v1/policies", &[("host", "localhost"), ("origin", "http://localhost"), twice], "").await;
        assert!(reply.status >= 400, "{reply:?}");
        client = running.admin().await;
    }
}

#[tokio::test]
async fn health_is_told_to_who_asks_in_an_old_or_short_way() {
    let running = Running::start(PER_USER).await;
    for path in ["/healthz", "/readyz"] {
        let old = running.admin().await.all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await;
        assert!(old.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {old}");
        let head = format!("HEAD {path} HTTP/1.1\r\nhost: balancer.example\r\nconnection: close\r\n\r\n");
        let short = running.admin().await.all(head.as_bytes()).await;
        assert!(short.starts_with("HTTP/1.1 200 OK\r\n") && short.ends_with("\r\n\r\n"), "{path}: {short}");
        let reply = running.admin().await.admin(&format!("POST {path}"), &[], "").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, HEAD")));
    }
    let other = running.admin().await.all(b"GET /v1/policies HTTP/1.0\r\n\r\n").await;
    assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
}

#[tokio::test]
async fn a_quota_that_is_changed_holds_at_once_and_keeps_what_was_counted() {
    let running = Running::start(PER_USER).await;
    let (mut client, mut admin) = (running.client().await, running.admin().await);
    for status in [200, 200, 200, 429] {
        assert_eq!(client.get("/v1/check?user=42").await.status, status);
    }
    let raised = admin.admin("PATCH /v1/policies/per-user", &[], r#"{"quota":"5/hour"}"#).await;
    assert_eq!((raised.status, &raised.json()["quota"]), (200, &json!("5/hour")), "{raised:?}");
    for status in [200, 200, 429] {
        assert_eq!(client.get("/v1/check?user=42").await.status, status);
    }
    assert_eq!(admin.admin("PATCH /v1/policies/per-user", &[], r#"{"quota":"4/hour"}"#).await.status, 200);
    assert_eq!(client.get("/v1/peek?user=42").await.json()["remaining"], 0);

    let all = look(&mut admin, "/v1/policies").await;
    assert_eq!(all["policies"][0]["quota"], "4/hour");
    // What was told can be sent back.
    let put = admin.admin("PUT /v1/policies", &[], &all.to_string()).await;
    assert_eq!((put.status, put.json()), (200, all));
    let tables = json!({ "policies": [
        { "name": "per-user", "key": ["user"], "quota": "6/hour", "override": [{ "key": "big", "quota": "9/hour" }] },
        { "name": "jobs", "key": ["tenant"], "concurrency": { "limit": 1, "ttl": "1h" } },
    ] });
    assert_eq!(admin.admin("PUT /v1/policies", &[], &tables.to_string()).await.status, 200);
    assert_eq!(client.get("/v1/peek?user=42").await.json()["remaining"], 1);
    assert_eq!(client.get("/v1/peek?user=big").await.json()["remaining"], 9);
    let kind = ("content-type", "application/merge-patch+json");
    let more = admin.admin("PATCH /v1/policies/jobs", &[kind], r#"{"concurrency":{"limit":2}}"#).await;
    assert_eq!(more.json()["concurrency"], json!({ "limit": 2, "ttl": "1h" }));
    // Nothing else is a patch.
    assert_eq!(admin.admin("PUT /v1/policies", &[kind], &tables.to_string()).await.status, 415);
    assert_eq!(admin.admin("POST /v1/reset", &[kind], r#"{"attributes":{"user":"42"}}"#).await.status, 415);
}

#[tokio::test]
async fn whatever_a_file_can_say_of_policies_is_told_and_taken_back() {
    let more = r#"
        [[policy]]
        name = "logins"
        key = ["ip"]
        match = { path = { prefix = "/login" }, method = ["POST", "PUT"], net = { network = "10.0.0.0/8" }, host = "a" }
        quota = "5/min burst 10"
        algorithm = "gcra"
        mode = "shadow"
        counts = "requests"
        on_store_error = "deny"
        [[policy]]
        name = "monthly"
        key = ["tenant", "region"]
        calendar = { limit = 10, per = "month", zone = "Europe/Berlin" }
        override = [{ key = ["trial", "eu"], limit = 1 }]
        unlimited = [["acme", "eu"]]
        blocked = [["evil", "eu"]]
        [[policy]]
        name = "fine"
        quota = "10/min"
        resolution = 60
    "#;
    let running = Running::start(&format!("{PER_USER}{more}")).await;
    let mut admin = running.admin().await;
    let all = look(&mut admin, "/v1/policies").await;
    assert_eq!(all["policies"].as_array().map(Vec::len), Some(4));
    let put = admin.admin("PUT /v1/policies", &[], &all.to_string()).await;
    assert_eq!((put.status, put.json()), (200, all));
    for (name, patch) in [
        ("logins", r#"{"quota":"6/min burst 9"}"#),
        ("monthly", r#"{"calendar":{"limit":11}}"#),
        ("fine", "{}"),
        // Null is nothing in what is new, too.
        ("fine", r#"{"quota":null,"resolution":null,"algorithm":null,"calendar":{"limit":5,"per":"day","zone":null}}"#),
    ] {
        let changed = admin.admin(&format!("PATCH /v1/policies/{name}"), &[], patch).await;
        assert_eq!(changed.status, 200, "{changed:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_changes_nothing_and_is_explained() {
    let running = Running::start(PER_USER).await;
    let mut admin = running.admin().await;
    let before = look(&mut admin, "/v1/policies").await;
    for (request, body, status, field) in [
        ("PATCH /v1/policies/per-user", r#"{"quota":"some"}"#, 400, Some("quota")),
        ("PATCH /v1/policies/per-user", r#"{"quota":null}"#, 400, Some("name")),
        ("PATCH /v1/policies/per-user", r#"{"quota":"3/hour burst 9"}"#, 400, Some("quota")),
        ("PATCH /v1/policies/per-user", r#"{"quotta":"3/hour"}"#, 400, Some("quotta")),
        ("PATCH /v1/policies/per-user", r#"{"name":"other"}"#, 400, Some("name")),
        ("PATCH /v1/policies/per-user", "[]", 400, None),
        ("PATCH /v1/policies/per-user", "{", 400, None),
        ("PATCH /v1/policies/nobody", r#"{"quota":"1/s"}"#, 404, None),
        ("PUT /v1/policies", "{}", 400, Some("policies")),
        ("PUT /v1/policies", r#"{"policies":[{"name":"a","quota":7}]}"#, 400, Some("policies[0].quota")),
        (
            "PUT /v1/policies",
            r#"{"policies":[{"name":"a","quota":"1/s"},{"name":"a","quota":"1/s"}]}"#,
            400,
            Some("policies[1].name"),
        ),
        ("POST /v1/reset", "{}", 400, Some("attributes")),
        ("PUT /v1/policies", r#"{"policies":[["a",[],{},"1/s"]]}"#, 400, Some("policies[0]")),
        ("PATCH /v1/policies/per-user", r#"{"quota":null,"concurrency":[7,"1m"]}"#, 400, Some("concurrency")),
        ("GET /v1/inspect", "", 400, Some("policy")),
        ("GET /v1/inspect?policy=per-user", "", 400, Some("query")),
        ("GET /v1/inspect?policy=per-user&policy=other&user=1", "", 400, Some("policy")),
        ("GET /v1/inspect?policy=nobody&user=1", "", 404, None),
        ("GET /v1/top?policy=nobody", "", 404, None),
        ("GET /v1/top?n=0", "", 400, Some("n")),
        ("GET /v1/top?polcy=per-user", "", 400, Some("polcy")),
        ("GET /v1/top?n=1&n=2", "", 400, Some("n")),
        ("GET /v1/denials?policy=per-user", "", 400, Some("policy")),
        ("GET /v1/denials?n=1001", "", 400, Some("n")),
        ("GET /", "", 404, None),
        ("GET /v1/check?user=1", "", 404, None),
        ("DELETE /v1/policies", "", 405, None),
        ("GET /v1/policies/per-user", "", 405, None),
        ("OPTIONS /v1/policies", "", 405, None),
        ("GET /v1/reset", "", 405, None),
    ] {
        let reply = admin.admin(request, &[], body).await;
        assert!(is_problem(&reply, status), "{request} {body}: {reply:?}");
        assert_eq!(reply.json()["field"].as_str(), field, "{request} {body}: {reply:?}");
    }
    let unsaid = admin.admin("POST /v1/reset", &[("content-length", "0")], "").await;
    assert!(is_problem(&unsaid, 415), "{unsaid:?}");
    assert_eq!(look(&mut admin, "/v1/policies").await, before);
}

/// What can be looked at, in memory and on Redis.
async fn looked_at(running: &Running) {
    let (mut client, mut admin) = (running.client().await, running.admin().await);
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(client.get("/v1/check?user=42").await.status, status);
    }
    assert_eq!(look(&mut admin, "/readyz").await, json!({ "ready": true, "store": "up" }));
    let stored = look(&mut admin, "/v1/inspect?policy=per-user&user=42").await;
    assert_eq!(
        (&stored["policy"], &stored["key"], &stored["algorithm"]),
        (&json!("per-user"), &json!("42"), &json!("sliding-window"))
    );
    assert!(stored["lasts_ms"].as_u64().is_some_and(|lasts| lasts > 0), "{stored}");

    let denials = look(&mut admin, "/v1/denials").await;
    let latest = &denials["denials"][0];
    assert_eq!(denials["denials"].as_array().map(Vec::len), Some(2), "{denials}");
    for (field, value) in [
        ("policy", json!("per-user")),
        ("key", json!("42")),
        ("attributes", json!({ "user": "42" })),
        ("front_end", json!("http")),
        ("reason", json!("over-limit")),
        ("used", json!(3)),
        ("limit", json!(3)),
    ] {
        assert_eq!(latest[field], value, "{field}: {latest}");
    }
    assert!(latest["retry_after_ms"].as_u64().is_some_and(|wait| wait > 3_500_000), "{latest}");
    assert_eq!(look(&mut admin, "/v1/denials?n=1").await["denials"].as_array().map(Vec::len), Some(1));

    let reset = admin.admin("POST /v1/reset", &[], r#"{"attributes":{"user":"42"}}"#).await;
    let key = json!({ "policy": "per-user", "key": "42", "limit": 3, "remaining": 3 });
    assert_eq!((reset.status, reset.json()), (200, json!({ "keys": [key] })));
    assert_eq!(client.get("/v1/check?user=42").await.json()["remaining"], 2);
}

#[tokio::test]
async fn what_is_stored_and_denied_can_be_looked_at_and_reset() {
    let running = Running::start(PER_USER).await;
    looked_at(&running).await;
    let mut admin = running.admin().await;
    let worst = json!({ "policies": [{ "policy": "per-user", "keys": [{ "key": "42", "denied": 2 }] }] });
    assert_eq!(look(&mut admin, "/v1/top").await, worst);
    assert_eq!(look(&mut admin, "/v1/top?policy=per-user&n=5").await, worst);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_said() {
    let mut redis = RedisServer::start();
    let file = format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\n{PER_USER}", redis.url());
    let running = Running::start(&file).await;
    looked_at(&running).await;
    redis.kill();
    let (mut client, mut admin) = (running.client().await, running.admin().await);
    assert_eq!(look(&mut admin, "/readyz").await.get("trouble"), None);
    for _ in 0..1000 {
        let _ = client.get("/v1/check?user=7").await;
        let readiness = admin.admin("GET /readyz", &[], "").await;
        assert_eq!(readiness.status, 200);
        if readiness.json()["store"] == "degraded" {
            assert!(readiness.json()["trouble"].is_string(), "{readiness:?}");
        }
        // What was lost is told before that there is nothing to be had.
        if readiness.json()["trouble"] == "no connection: Connection refused (os error 111)" {
            let _ = client.get("/v1/check?user=7").await;
            let metrics = admin.admin("GET /metrics", &[], "").await.body;
            assert!(metrics.contains("tidegate_store_up 0\n"), "{metrics}");
            assert!(!metrics.contains("tidegate_store_unanswered_total{error=\"down\"} 0\n"), "{metrics}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody says that the store is gone");
}

#[tokio::test]
async fn a_server_that_stops_is_not_ready() {
    let running = Running::start("[limits]\nshutdown_grace = \"5s\"").await;
    let mut admin = running.admin().await;
    assert_eq!(look(&mut admin, "/readyz").await["ready"], true);
    // Somebody has not finished asking.
    let mut slow = running.client().await;
    slow.send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{")
        .await
        .expect("sent");
    // By the time that another is answered, this one is under way.
    assert_eq!(running.client().await.get("/v1/check").await.status, 200);
    let stopping = tokio::spawn(running.server.stop());
    let mut readiness = admin.admin("GET /readyz", &[], "").await;
    while readiness.status == 200 {
        readiness = admin.admin("GET /readyz", &[], "").await;
    }
    assert_eq!((readiness.status, &readiness.json()["ready"]), (503, &json!(false)));
    assert_eq!(admin.admin("GET /healthz", &[], "").await.status, 200);
    slow.send(b"\"attributes\":{}}").await.expect("sent");
    assert_eq!(slow.reply().await.expect("a reply").status, 200);
    drop(admin);
    stopping.await.expect("stopped");
}

#[tokio::test]
async fn who_could_be_reached_from_elsewhere_needs_a_token_and_tls() {
    let (token, pair) = ("write_token_file = \"none\"\n", "cert_file = \"none\"\nkey_file = \"none\"\n");
    let said = "who can reach this can change the server";
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9090"] {
        let read = |admin: &str| parse(&format!("[listen]\nadmin = \"{listen}\"\n[admin]\n{admin}\n"));
        for admin in ["", token, pair, "read_token_file = \"none\"\ncert_file = \"none\"\nkey_file = \"none\"\n"] {
            let problems = read(admin).expect_err("it is refused").to_string();
            assert!(problems.contains(said), "{problems}");
        }
        read(&format!("{token}{pair}")).expect("right");
    }
    // Though nobody has read it.
    let mut config = parse("[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"").expect("right");
    config.listen.admin = parse("[listen]\nhttp = \"0.0.0.0:0\"").expect("right").listen.http;
    assert!(refused(&config).await.contains(said));
}

async fn refused(config: &Config) -> String {
    match Server::start(Sources::file("none"), config.clone()).await {
        Err(error @ StartError::Config(_)) => error.to_string(),
        _ => panic!("it is served"),
    }
}

#[tokio::test]
async fn by_tls_it_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let cert = write("admin.pem", made.cert.pem());
    let key = write("admin.key", made.signing_key.serialize_pem());
    let token = write("token", "sesame".to_owned());
    let admin = format!("[admin]\ncert_file = {cert:?}\nkey_file = {key:?}\nwrite_token_file = {token:?}\n");
    let running = Running::start(&format!("{admin}{PER_USER}")).await;
    assert!(running.server.greeting().contains("admin   https://127.0.0.1:"), "{}", running.server.greeting());

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_safe_default_protocol_versions().expect("some").with_root_certificates(roots).with_no_client_auth();
    let address = running.server.admin().expect("it listens");
    for (bearer, status, more) in [("sesame", "200", "connection: close\r\n"), ("wrong", "401", "")] {
        let stream = TcpStream::connect(address).await.expect("connected");
        let name = "localhost".try_into().expect("a name");
        let mut stream = TlsConnector::from(Arc::new(client.clone())).connect(name, stream).await.expect("TLS");
        let request = format!("GET /v1/policies HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {bearer}\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        if more.is_empty() {
            stream.shutdown().await.expect("ended");
        }
        // Whoever ends it, the client is told that this was all.
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.expect("a reply");
        assert!(reply.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", reply.escape_ascii());
    }
    // Who speaks without it is not answered.
    let mut plain = running.admin().await;
    plain.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    assert!(plain.reply().await.is_err());
}

#[tokio::test]
async fn a_body_that_nobody_reads_is_not_taken() {
    let running = Running::start(PER_USER).await;
    for (request, status) in [("GET /healthz", 200), ("GET /v1/policies", 200), ("POST /none", 404)] {
        let mut client = running.admin().await;
        let head = format!("{request} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{{");
        client.send(head.as_bytes()).await.expect("sent");
        let reply = client.reply().await.expect("a reply");
        assert_eq!((reply.status, reply.header("connection")), (status, Some("close")), "{request}");
    }
}

#[tokio::test]
async fn files_that_hold_something_else_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text");
    fs::write(&path, "open sesame").expect("a file");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let cert = folder.path().join("cert");
    fs::write(&cert, made.cert.pem()).expect("a file");
    let config = parse("[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"").expect("right");
    for (admin, said) in [
        (Admin { read_token_file: Some("none".into()), ..Admin::default() }, "admin.read_token_file: none cannot be read"),
        (Admin { write_token_file: Some(path.clone()), ..Admin::default() }, "text is no token: no header can carry it"),
        (
            Admin { cert_file: Some(path.clone()), key_file: Some(path.clone()), ..Admin::default() },
            "text holds no certificate (PEM)",
        ),
        (
            Admin { cert_file: Some(cert.clone()), key_file: Some(path.clone()), ..Admin::default() },
            "text holds no private key (PEM)",
        ),
        (Admin { cert_file: Some(cert.clone()), ..Admin::default() }, "a certificate and its key go together"),
    ] {
        let told = refused(&Config { admin, ..config.clone() }).await;
        assert!(told.contains(said) && !told.contains("sesame"), "{told}");
    }
}
