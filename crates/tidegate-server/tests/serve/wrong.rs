//! What cannot be asked is refused, with the field that is wrong, and charges nothing.

use std::sync::LazyLock;

use proptest::prelude::*;
use tokio::{runtime::Runtime, sync::Mutex};

use super::{Running, client::Client};

/// Everything is counted by one key, so that what is charged is seen, whoever it is charged to.
const ALL: &str = "[limits]\nmax_batch = 3\n[[policy]]\nname = \"all\"\nkey = []\nquota = \"1000000000/day\"\n";
const LIMIT: u64 = 1_000_000_000;

/// A body, and the field of it that is wrong.
type Row = (&'static str, Option<&'static str>);

async fn left(client: &mut Client) -> u64 {
    client.get("/v1/peek").await.json()["remaining"].as_u64().expect("told")
}

#[tokio::test]
async fn wrong_bodies_are_refused_with_the_field() {
    let running = Running::start(ALL).await;
    let mut client = running.client().await;
    let hit = [
        ("", None),
        ("{", None),
        ("null", None),
        ("[{},5]", None),
        ("{}", Some("attributes")),
        ("{}x", Some("attributes")),
        (r#"{"attributes":{}}x"#, None),
        (r#"{"attributes":{},"attributes":{}}"#, Some("attributes")),
        (r#"{"attributes":[]}"#, Some("attributes")),
        (r#"{"attributes":{"user":7}}"#, Some("attributes.user")),
        (r#"{"attributes":{"user":null}}"#, Some("attributes.user")),
        (r#"{"attributes":{"user":"a","user":"b"}}"#, Some("attributes")),
        ("{\"attributes\":{\"user\":\"\u{1}\"}}", Some("attributes.user")),
        (r#"{"attributes":{},"cost":-1}"#, Some("cost")),
        (r#"{"attributes":{},"cost":1.5}"#, Some("cost")),
        (r#"{"attributes":{},"cost":1e3}"#, Some("cost")),
        (r#"{"attributes":{},"cost":"1"}"#, Some("cost")),
        (r#"{"attributes":{},"cost":null}"#, Some("cost")),
        (r#"{"attributes":{},"cost":NaN}"#, Some("cost")),
        (r#"{"attributes":{},"cost":9007199254740992}"#, Some("cost")),
        (r#"{"attributes":{},"cost":18446744073709551616}"#, Some("cost")),
        (r#"{"attributes":{},"costs":1}"#, Some("costs")),
    ];
    let batch = [
        (r#"{"hits":{}}"#, Some("hits")),
        (r#"[[{"attributes":{}}]]"#, None),
        (r#"{"hits":[{"attributes":{}},[{},2]]}"#, Some("hits[1]")),
        (r#"{"hits":[{"attributes":{}},{}]}"#, Some("hits[1].attributes")),
        (r#"{"hits":[{"attributes":{}},{"attributes":{},"cost":-1}]}"#, Some("hits[1].cost")),
        (r#"{"hits":[{"attributes":{}},{"attributes":{}},{"attributes":{}},{"attributes":{}}]}"#, Some("hits")),
    ];
    let receipt = [
        ("{}", Some("receipt")),
        (r#"{"receipt":"tg1:0;","cost":1}"#, Some("receipt")),
        (r#"{"receipt":7,"cost":1}"#, Some("receipt")),
    ];
    let lease = [
        (r#"{"attributes":{},"lease":7}"#, Some("lease")),
        (r#"{"attributes":{},"lease":""}"#, Some("lease")),
        (r#"{"attributes":{}}"#, Some("lease")),
    ];
    let tables: [(&str, &[Row]); 11] = [
        ("/v1/check", &hit),
        ("/v1/peek", &hit),
        ("/v1/charge", &hit),
        ("/v1/acquire", &hit),
        ("/v1/acquire", &lease[..2]),
        ("/v1/check/batch", &batch),
        ("/v1/refund", &receipt[..1]),
        ("/v1/settle", &receipt),
        ("/v1/settle", &[(r#"{"cost":-1}"#, Some("cost"))]),
        ("/v1/renew", &lease),
        ("/v1/release", &lease),
    ];
    for (path, table) in tables {
        for (body, field) in table {
            let reply = client.post(path, body).await;
            assert_eq!((reply.status, reply.header("content-type")), (400, Some("application/problem+json")), "{path} {body}");
            assert_eq!(reply.json()["field"].as_str(), *field, "{path} {body}: {reply:?}");
        }
    }
    for path in ["/v1/check", "/v1/peek", "/v1/charge", "/v1/acquire"] {
        let reply = client.post(&format!("{path}?cost=5"), r#"{"attributes":{}}"#).await;
        assert_eq!((reply.status, reply.json()["field"].as_str()), (400, Some("query")), "{path}");
    }
    assert_eq!(left(&mut client).await, LIMIT);
}

#[tokio::test]
async fn wrong_queries_are_refused_with_the_field() {
    let running = Running::start(ALL).await;
    let mut client = running.client().await;
    let many: Vec<String> = (0..65).map(|number| format!("a{number}=")).collect();
    for (query, field) in [
        ("cost=-1", "cost"),
        ("cost=+1", "cost"),
        ("cost=1.0", "cost"),
        ("cost=", "cost"),
        ("cost=0x1", "cost"),
        ("cost=9007199254740992", "cost"),
        ("cost=99999999999999999999", "cost"),
        ("cost=1&cost=1", "cost"),
        ("cost=%", "cost"),
        ("user=a&us%65r=b", "user"),
        ("ip=a&user=%", "user"),
        ("user=%4", "user"),
        ("us%65r=%+1", "user"),
        ("%=a", "query"),
        ("%ff=a", "query"),
        (&many.join("&"), "query"),
    ] {
        for path in ["/v1/check", "/v1/peek"] {
            let reply = client.get(&format!("{path}?{query}")).await;
            assert_eq!((reply.status, reply.json()["field"].as_str()), (400, Some(field)), "{query}");
        }
    }
    assert_eq!(left(&mut client).await, LIMIT);
}

#[tokio::test]
async fn wrong_paths_methods_and_kinds_are_refused() {
    let running = Running::start(ALL).await;
    let mut client = running.client().await;
    for path in ["/", "/v1", "/v1/check/", "/V1/check", "/v1/check/x", "//v1/check"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    for (method, path, allow) in [
        ("DELETE", "/v1/check", "GET, POST"),
        ("PUT", "/v1/peek", "GET, POST"),
        ("GET", "/v1/charge", "POST"),
        ("GET", "/v1/check/batch", "POST"),
        ("GET", "/v1/refund", "POST"),
        ("GET", "/v1/settle", "POST"),
        ("GET", "/v1/acquire", "POST"),
        ("GET", "/v1/renew", "POST"),
        ("GET", "/v1/release", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ] {
        let reply = client.ask(method, path, &[("content-length", "0")]).await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let reply = client.ask("POST", "/v1/check", &[("content-type", kind), ("content-length", "0")]).await;
        assert_eq!(reply.status, 415, "{kind}");
    }
    assert_eq!(client.ask("POST", "/v1/check", &[("content-length", "0")]).await.status, 415);
    let body = "{\"attributes\":{}}";
    let head = format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n", body.len());
    client.send(format!("{head}content-type: Application/JSON; charset=utf-8\r\n\r\n{body}").as_bytes()).await.expect("sent");
    assert_eq!(client.reply().await.expect("a reply").status, 200);
    assert_eq!(left(&mut client).await, LIMIT);
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let running = Running::start(ALL).await;
    let mut client = running.client().await;
    let foreign = [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "http://evil.example")];
    for header in foreign {
        for path in ["/v1/check?cost=5", "/v1/peek", "/v1/charge", "/v1/check/batch", "/v1/acquire", "/v1/release"] {
            for method in ["GET", "POST", "OPTIONS"] {
                let reply = client.ask(method, path, &[header, ("content-length", "0")]).await;
                let told = (reply.status, reply.header("content-type"));
                assert_eq!(told, (403, Some("application/problem+json")), "{header:?} {method} {path}");
            }
        }
        // What a proxy is told by its client is no page that asks here, and the document is for anybody.
        assert_eq!(client.ask("GET", "/openapi.json", &[header]).await.status, 200, "{header:?}");
        assert_eq!(client.ask("GET", "/v1/auth?cost=0", &[header]).await.status, 200, "{header:?}");
    }
    assert_eq!(left(&mut client).await, LIMIT - foreign.len() as u64);
    for header in [("sec-fetch-site", "none"), ("sec-fetch-site", "same-origin"), ("origin", "http://tidegate")] {
        assert_eq!(client.ask("GET", "/v1/peek", &[header]).await.status, 200, "{header:?}");
    }
}

/// One server, and one connection to it, for all cases.
struct Rig {
    runtime: Runtime,
    _running: Running,
    client: Mutex<Client>,
}

static RIG: LazyLock<Rig> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let (running, client) = runtime.block_on(async {
        let running = Running::start(ALL).await;
        let client = running.client().await;
        (running, client)
    });
    Rig { runtime, _running: running, client: Mutex::new(client) }
});

const VALID: [(&str, &str); 9] = [
    ("/v1/check", r#"{"attributes":{"user":"42","ip":"203.0.113.7"},"cost":1}"#),
    ("/v1/check/batch", r#"{"hits":[{"attributes":{"user":"42"},"cost":1},{"attributes":{}}]}"#),
    ("/v1/peek", r#"{"attributes":{"user":"42"},"cost":1}"#),
    ("/v1/charge", r#"{"attributes":{"user":"42"},"cost":1}"#),
    (
        "/v1/refund",
        r#"{"receipt":"tg1:c8c9ee1c1ecd6df3:all,sliding-window,34320000000000000000000000000000000000000002,6,6,1,1;"}"#,
    ),
    (
        "/v1/settle",
        r#"{"receipt":"tg1:c8c9ee1c1ecd6df3:all,sliding-window,34320000000000000000000000000000000000000002,6,6,1,1;","cost":3}"#,
    ),
    ("/v1/acquire", r#"{"attributes":{"user":"42"},"cost":1,"lease":"a"}"#),
    ("/v1/renew", r#"{"attributes":{"user":"42"},"lease":"a"}"#),
    ("/v1/release", r#"{"attributes":{"user":"42"},"lease":"a"}"#),
];

const ADMIN: [(&str, &str); 3] = [
    ("POST /v1/reset", r#"{"attributes":{"user":"42"},"policy":"all"}"#),
    ("PATCH /v1/policies/all", r#"{"quota":"1000000000/day"}"#),
    ("PUT /v1/policies", r#"{"policies":[{"name":"all","key":[],"quota":"1000000000/day"}]}"#),
];

/// A byte put in the place of another, put in between, or taken away.
type Change = (proptest::sample::Index, usize, u8);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let byte = prop_oneof![any::<u8>(), proptest::sample::select(&br#"{}[]",:0-.eE\"#[..])];
    proptest::collection::vec((any::<proptest::sample::Index>(), 0..3_usize, byte), 0..4)
}

fn changed(valid: &str, changes: &[Change]) -> Vec<u8> {
    let mut bytes = valid.as_bytes().to_vec();
    for (at, how, byte) in changes {
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

proptest! {
    #[test]
    fn no_bytes_make_an_endpoint_fail_or_charge_what_it_refuses(
        random in proptest::collection::vec(any::<u8>(), 0..80),
        changes in changes(),
    ) {
        RIG.runtime.block_on(async {
            let mut client = RIG.client.lock().await;
            for (path, valid) in VALID {
                for body in [random.clone(), changed(valid, &changes)] {
                    let before = left(&mut client).await;
                    let reply = client.post(path, &body).await;
                    prop_assert!([200, 400, 409, 429].contains(&reply.status), "{} {:?}", path, reply);
                    if reply.status != 200 {
                        prop_assert_eq!(before, left(&mut client).await, "{} {:?}", path, reply);
                    }
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_target_makes_a_query_fail(query in "[!-\"$-~]{0,60}|(cost|user|[%&=+]|[0-9a-f]{2}){0,20}") {
        RIG.runtime.block_on(async {
            let mut client = RIG.client.lock().await;
            let reply = client.get(&format!("/v1/peek?{query}")).await;
            let known = [200, 400].contains(&reply.status);
            if reply.header("connection") == Some("close") {
                // What is no target at all ends the connection.
                *client = RIG._running.client().await;
            }
            prop_assert!(known, "{:?}", reply);
            Ok(())
        })?;
    }

    #[test]
    fn no_headers_make_forward_auth_fail(
        method in "[A-Z]{1,9}",
        forwarded in "([0-9a-f:., \\[\\]\"=;]|for=|unknown){0,40}",
        uri in "[!-~]{0,40}",
        value in "[ -~]{0,40}",
    ) {
        RIG.runtime.block_on(async {
            let mut client = RIG.client.lock().await;
            let headers = [
                ("x-forwarded-for", forwarded.as_str()),
                ("forwarded", &forwarded),
                ("x-forwarded-method", &value),
                ("x-forwarded-uri", &uri),
                ("x-original-uri", &value),
                ("x-forwarded-host", &value),
                ("authorization", &value),
            ];
            // A proxy asks by the method of its client; to a HEAD it is told how long the body would be.
            let method = if method == "HEAD" { "GET" } else { &method };
            let reply = client.ask(method, "/v1/auth", &headers).await;
            prop_assert!([200, 400, 429].contains(&reply.status), "{:?}", reply);
            Ok(())
        })?;
    }

    #[test]
    fn no_bytes_make_the_admin_surface_fail_or_change_what_it_refuses(
        random in "\\PC{0,60}",
        changes in changes(),
        query in "[!-\"$-~]{0,60}|(policy|all|user|limit|[%&=+]|[0-9a-f]{2}){0,20}",
    ) {
        RIG.runtime.block_on(async {
            // Others would see the policies change.
            let _alone = RIG.client.lock().await;
            let mut client = RIG._running.admin().await;
            let policies = client.admin("GET /v1/policies", &[], "").await.body;
            for (request, valid) in ADMIN {
                let Ok(changed) = String::from_utf8(changed(valid, &changes)) else { continue };
                for body in [&random, &changed] {
                    let reply = client.admin(request, &[], body).await;
                    prop_assert!([200, 400, 404, 415].contains(&reply.status), "{} {} {:?}", request, body, reply);
                    let now = client.admin("GET /v1/policies", &[], "").await.body;
                    if reply.status == 200 {
                        // A change of it may be right: as it was, for the next one.
                        let (request, valid) = ADMIN[2];
                        prop_assert_eq!(client.admin(request, &[], valid).await.status, 200);
                    } else {
                        prop_assert_eq!(&policies, &now, "{} {}", request, body);
                    }
                }
            }
            for path in ["inspect", "top", "denials"] {
                let mut client = RIG._running.admin().await;
                let reply = client.admin(&format!("GET /v1/{path}?{query}"), &[], "").await;
                prop_assert!([200, 400, 404].contains(&reply.status), "{} {:?}", path, reply);
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_bytes_at_all_make_the_server_fail(
        random in proptest::collection::vec(any::<u8>(), 0..80),
        changes in changes(),
    ) {
        const VALID: &str = "POST /v1/peek HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
            transfer-encoding: chunked\r\n\r\n11\r\n{\"attributes\":{}}\r\n0\r\n\r\n";
        RIG.runtime.block_on(async {
            for bytes in [random, changed(VALID, &changes)] {
                let mut client = RIG._running.client().await;
                let replies = client.all(&bytes).await;
                for (at, _) in replies.match_indices("HTTP/1.1 ") {
                    prop_assert!(!replies[at..].starts_with("HTTP/1.1 5"), "{}", replies);
                }
            }
            let left = RIG._running.client().await.get("/v1/peek").await;
            prop_assert_eq!(left.status, 200);
            Ok(())
        })?;
    }
}
