//! What proxies are told.

use super::{Running, client::Client};

const POLICIES: &str = r#"
[[policy]]
name = "per-ip"
key = ["ip"]
quota = "2/hour"

[[policy]]
name = "logins"
key = ["ip", "method", "path"]
match = { method = "POST", path = { prefix = "/login" } }
quota = "1/hour"
"#;

async fn statuses(client: &mut Client, asked: &[&[(&str, &str)]]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for headers in asked {
        statuses.push(client.ask("GET", "/v1/auth", headers).await.status);
    }
    statuses
}

#[tokio::test]
async fn a_client_is_who_the_trusted_proxy_says() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let [a, b] = [[("x-forwarded-for", "203.0.113.7")], [("x-forwarded-for", "6.6.6.6, 203.0.113.8")]];
    assert_eq!(statuses(&mut client, &[&a, &a, &a, &b, &[]]).await, [200, 200, 429, 200, 200]);
    // The same subscriber.
    let [c, d] = [[("x-forwarded-for", "2001:db8::1")], [("x-forwarded-for", "2001:db8::2")]];
    assert_eq!(statuses(&mut client, &[&c, &d, &c]).await, [200, 200, 429]);
}

#[tokio::test]
async fn who_is_not_trusted_is_not_believed() {
    let running = Running::start(&format!("[forward_auth]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{POLICIES}")).await;
    let mut client = running.client().await;
    let asked = ["203.0.113.7", "203.0.113.8", "203.0.113.9"].map(|address| [("x-forwarded-for", address)]);
    assert_eq!(statuses(&mut client, &asked.each_ref().map(|headers| &headers[..])).await, [200, 200, 429]);
}

#[tokio::test]
async fn method_path_host_and_headers_are_attributes() {
    let table = "[forward_auth]\nattributes = { ip = \"address\", method = \"method\", path = \"path\", host = \"host\", key = \"header:X-Api-Key\" }\n";
    let policies = "[[policy]]\nname = \"keys\"\nkey = [\"key\", \"host\"]\nquota = \"1/hour\"\n";
    let running = Running::start(&format!("{table}{POLICIES}{policies}")).await;
    let mut client = running.client().await;
    let login = |address| [("x-forwarded-for", address), ("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login?a=1")];
    assert_eq!(statuses(&mut client, &[&login("1.1.1.1"), &login("1.1.1.1"), &login("1.1.1.2")]).await, [200, 429, 200]);
    let keyed = |host| [("x-api-key", "k"), ("x-forwarded-host", host), ("x-forwarded-for", "1.1.1.3")];
    assert_eq!(statuses(&mut client, &[&keyed("a"), &keyed("a"), &keyed("b")]).await, [200, 429, 200]);
}

/// Once for each path that begins so; targets with the status that each is told.
async fn paths(prefix: &str, rows: &[(&str, u16)]) {
    let policy = "[[policy]]\nname = \"paths\"\nkey = [\"path\"]\nquota = \"1/hour\"\n";
    let running = Running::start(&format!("{policy}match.path.prefix = \"{prefix}\"\n")).await;
    let mut client = running.client().await;
    for (target, status) in rows {
        assert_eq!(client.ask("GET", "/v1/auth", &[("x-forwarded-uri", target)]).await.status, *status, "{target}");
    }
}

#[tokio::test]
async fn a_path_is_the_same_however_it_is_escaped() {
    let rows = [
        ("/login/a", 200),
        ("/%6cogin/a", 429),
        ("/%6C%6f%67in%2Fa?b=%", 429),
        ("/login/%61#c", 429),
        // What is no escape stands for itself.
        ("/login/%", 200),
        ("/login/%25", 429),
        ("/login/%4", 200),
        ("/login/%zz", 200),
        ("/login/%%61", 200),
        ("/login/%2561", 200),
    ];
    paths("/login", &rows).await;
}

#[tokio::test]
async fn a_path_is_the_same_however_its_target_is_written() {
    // nginx tells `?x` of who asks for `http://host?x`, and hands on `/?x`.
    let rows = [
        ("/", 200),
        ("", 429),
        ("?x", 429),
        ("#x", 429),
        ("http://host", 429),
        ("http://host?x=/a", 429),
        ("/login", 200),
        ("http://host:1/login", 429),
        ("HTTPS://u@[::1]:1/%6cogin?x#y", 429),
        ("/http://host/login", 200),
    ];
    paths("/", &rows).await;
}

#[tokio::test]
async fn a_denial_has_the_status_that_is_set_and_the_headers() {
    for status in [429, 403] {
        let running = Running::start(&format!("forward_auth.denial_status = {status}\n{POLICIES}")).await;
        let mut client = running.client().await;
        assert_eq!(statuses(&mut client, &[&[], &[]]).await, [200, 200]);
        // Whatever method the proxy asks by.
        let reply = client.ask("DELETE", "/v1/auth", &[("x-forwarded-method", "GET")]).await;
        assert_eq!((reply.status, reply.header("cache-control")), (status, Some("no-store")));
        assert!(reply.header("retry-after").is_some() && reply.header("ratelimit").is_some(), "{reply:?}");
        assert_eq!(reply.body.contains("\"status\":429"), status == 429, "{reply:?}");
        // The client reads it.
        assert!(!reply.body.contains("127.0.0.1"), "{reply:?}");
    }
}

#[tokio::test]
async fn a_header_that_comes_twice_is_refused() {
    let policy = "[[policy]]\nname = \"per-key\"\nkey = [\"key\"]\nquota = \"1/hour\"\n";
    let running = Running::start(&format!("[forward_auth]\nattributes = {{ key = \"header:x-api-key\" }}\n{policy}")).await;
    let mut client = running.client().await;
    let (junk, key) = (("x-api-key", "junk"), ("X-Api-Key", "k"));
    assert_eq!(statuses(&mut client, &[&[key], &[key], &[junk, key], &[key, junk], &[]]).await, [200, 429, 400, 400, 200]);
}

#[tokio::test]
async fn so_is_any_other_that_an_attribute_is_made_of() {
    let table = "[forward_auth]\nattributes = { method = \"method\", path = \"path\", host = \"host\" }\n";
    let policies = "[[policy]]\nname = \"hosts\"\nkey = [\"method\", \"path\", \"host\"]\nquota = \"1/hour\"\n";
    let running = Running::start(&format!("{table}{policies}")).await;
    let mut client = running.client().await;
    let all = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-host", "a")];
    assert_eq!(statuses(&mut client, &[&all, &all]).await, [200, 429]);
    for (name, value) in [("x-forwarded-method", "PUT"), ("x-forwarded-uri", "/b"), ("x-forwarded-host", "b")] {
        for twice in [[&all[..], &[(name, value)]].concat(), [&[(name, value)], &all[..]].concat()] {
            let reply = client.ask("GET", "/v1/auth", &twice).await;
            assert_eq!((reply.status, reply.json()["field"].as_str()), (400, Some(name)));
        }
    }
}

#[tokio::test]
async fn a_host_is_the_same_however_it_is_written() {
    let policy = "[[policy]]\nname = \"per-host\"\nkey = [\"host\"]\nquota = \"1/hour\"\n";
    let running = Running::start(&format!("[forward_auth]\nattributes = {{ host = \"host\" }}\n{policy}")).await;
    let mut client = running.client().await;
    for (host, status) in [
        ("a.example", 200),
        ("A.Example", 429),
        ("a.example.", 429),
        ("a.example:80", 429),
        ("a.example:", 429),
        ("A.example.:65535", 429),
        ("b.a.example", 200),
        ("[2001:DB8::1]", 200),
        ("[2001:db8::1]:443", 429),
        ("a.example/b", 400),
        ("a.example:80:80", 400),
        ("a.example, a.example", 400),
    ] {
        let reply = client.ask("GET", "/v1/auth", &[("x-forwarded-host", host)]).await;
        assert_eq!(reply.status, status, "{host}");
    }
    // The client's own, where the proxy does not say.
    for (host, status) in [("B.example:1", 200), ("b.example", 429)] {
        client.send(format!("GET /v1/auth HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await.expect("sent");
        assert_eq!(client.reply().await.expect("a reply").status, status, "{host}");
    }
}

#[tokio::test]
async fn a_body_that_a_proxy_sends_along_is_not_waited_for() {
    let running = Running::start(POLICIES).await;
    for framing in ["content-length: 1000000", "transfer-encoding: chunked"] {
        let mut client = running.client().await;
        let head = format!("POST /v1/auth HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n");
        client.send(head.as_bytes()).await.expect("sent");
        let reply = client.reply().await.expect("a reply");
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{framing}");
    }
    // One that is there is in nobody's way.
    let mut client = running.client().await;
    let request = "POST /v1/auth HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n1";
    client.send(request.repeat(2).as_bytes()).await.expect("sent");
    for _ in 0..2 {
        assert_eq!(client.reply().await.expect("a reply").status, 429);
    }
}
