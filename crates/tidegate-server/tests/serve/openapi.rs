//! The document says what the server does: each path and method is there, and what is answered is what it says.

use serde_json::{Value, json};

use super::{Running, client::Client};

const POLICIES: &str = "
[[policy]]
name = \"per-user\"
key = [\"user\"]
quota = \"2/hour\"

[[policy]]
name = \"jobs\"
key = [\"tenant\"]
concurrency = { limit = 1, ttl = \"1h\" }
";

async fn document(client: &mut Client) -> Value {
    let reply = client.get("/openapi.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    reply.json()
}

/// What there is to say against what is sent or answered, by the document.
fn errors(document: &Value, content: &Value, kind: &str, value: &Value) -> Vec<String> {
    let content = match content["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("it is there"),
        None => content,
    };
    let schema = &content["content"][kind]["schema"];
    assert!(schema.is_object(), "{content}");
    let schema = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    validator.iter_errors(value).map(|error| error.to_string()).collect()
}

#[tokio::test]
async fn who_asks_for_its_head_is_told_its_length() {
    let running = Running::start(POLICIES).await;
    let length = running.client().await.get("/openapi.json").await.body.len();
    let told = running.client().await.all(b"HEAD /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(
        told.starts_with(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n")) && told.ends_with("\r\n\r\n"),
        "{told}"
    );
}

#[tokio::test]
async fn every_path_and_method_is_answered_and_no_other() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let document = document(&mut client).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut names = std::collections::BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for operation in methods.as_object().expect("methods").values() {
            assert!(names.insert(operation["operationId"].as_str().expect("a name")), "{operation}");
        }
        for method in ["get", "post"] {
            let status = client.ask(&method.to_uppercase(), path, &[("content-length", "0")]).await.status;
            assert!(status != 404, "{path}");
            let is_there = methods.get(method).is_some() || path == "/v1/auth";
            assert_eq!(status != 405, is_there, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn answers_are_what_the_document_says() {
    let running = Running::start(&format!("forward_auth.attributes = {{ user = \"header:x-user\" }}\n{POLICIES}")).await;
    let mut client = running.client().await;
    let document = document(&mut client).await;
    let hit = r#"{"attributes":{"user":"a"}}"#;
    let receipt = client.post("/v1/check", hit).await.json()["receipt"].clone();
    let settled = json!({ "receipt": receipt, "cost": 1 }).to_string();
    let refunded = json!({ "receipt": receipt }).to_string();
    let asked = [
        ("/v1/peek", hit, 200),
        ("/v1/check", hit, 200),
        ("/v1/check", hit, 429),
        // No wait helps.
        ("/v1/check", r#"{"attributes":{"user":"b"},"cost":3}"#, 429),
        ("/v1/check", "{}", 400),
        ("/v1/check", "[{},1]", 400),
        ("/v1/check", r#"{"attributes":{"user":7}}"#, 400),
        ("/v1/check", r#"{"attributes":{},"cost":9007199254740992}"#, 400),
        ("/v1/check", r#"{"attributes":{},"costs":1}"#, 400),
        ("/v1/charge", hit, 200),
        ("/v1/settle", &settled, 200),
        ("/v1/settle", &refunded, 400),
        ("/v1/refund", &refunded, 200),
        ("/v1/refund", &settled, 400),
        ("/v1/check/batch", r#"{"hits":[{"attributes":{"user":"a"}},{"attributes":{}}]}"#, 200),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"b"}"#, 429),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":""}"#, 400),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"b"}"#, 409),
        ("/v1/release", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
    ];
    for (path, body, status) in asked {
        let reply = client.post(path, body).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
        let (named, kind) = match status {
            200 => ("200", "application/json"),
            409 => ("409", "application/problem+json"),
            429 => ("429", "application/problem+json"),
            _ => ("default", "application/problem+json"),
        };
        let operation = &document["paths"][path]["post"];
        let wrong = errors(&document, &operation["responses"][named], kind, &reply.json());
        assert!(wrong.is_empty(), "{path} {status}: {wrong:?} in {reply:?}");
        let sent = serde_json::from_str(body).expect("JSON");
        let wrong = errors(&document, &operation["requestBody"], "application/json", &sent);
        assert_eq!(wrong.is_empty(), status != 400, "{path} {body}: {wrong:?}");
    }
    let reply = client.ask("GET", "/v1/auth", &[("x-user", "a")]).await;
    let denied = &document["paths"]["/v1/auth"]["get"]["responses"]["429"];
    assert_eq!((reply.status, errors(&document, denied, "application/problem+json", &reply.json())), (429, vec![]));
}

#[tokio::test]
async fn every_field_of_a_decision_is_in_the_document() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let document = document(&mut client).await;
    let answer = client.post("/v1/acquire", r#"{"attributes":{"tenant":"t","user":"a"}}"#).await.json();
    let names =
        |object: &Value| object.as_object().expect("an object").keys().cloned().collect::<std::collections::BTreeSet<_>>();
    let schemas = &document["components"]["schemas"];
    assert_eq!(names(&answer), names(&schemas["Decision"]["properties"]));
    assert_eq!(names(&answer["outcomes"][0]), names(&schemas["Outcome"]["properties"]));
    for (path, of, status) in [("/v1/acquire", "post", 429), ("/v1/check", "get", 200), ("/v1/check", "get", 429)] {
        let reply = match of {
            "post" => client.post(path, r#"{"attributes":{"tenant":"t"}}"#).await,
            _ => client.get(&format!("{path}?user=a")).await,
        };
        assert_eq!(reply.status, status);
        let response = &document["paths"][path][of]["responses"][status.to_string()];
        // What any answer has is not there.
        let common = ["content-type", "content-length", "date", "cache-control"];
        let sent = reply.headers.iter().map(|(name, _)| name.as_str()).filter(|name| !common.contains(name));
        let named: std::collections::BTreeSet<_> = names(&response["headers"]).iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(sent.map(str::to_owned).collect::<std::collections::BTreeSet<_>>(), named, "{reply:?}");
        if status == 429 {
            let [problem, denial, decision] = ["Problem", "Denial", "Decision"].map(|part| names(&schemas[part]["properties"]));
            let sent = names(&reply.json());
            assert!(denial.is_subset(&sent), "{reply:?}");
            assert!(sent.iter().all(|name| [&problem, &denial, &decision].iter().any(|part| part.contains(name))), "{reply:?}");
        }
    }
}
