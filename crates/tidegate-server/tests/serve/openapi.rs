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

/// The schema of an answer, with all that it refers to.
fn schema(document: &Value, path: &str, status: &str, kind: &str) -> Value {
    let response = &document["paths"][path]["post"]["responses"][status];
    let response = match response["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("it is there"),
        None => response,
    };
    let schema = &response["content"][kind]["schema"];
    assert!(schema.is_object(), "{path} {status}");
    json!({ "allOf": [schema], "components": document["components"] })
}

#[tokio::test]
async fn every_path_and_method_is_answered_and_no_other() {
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let document = document(&mut client).await;
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().expect("paths") {
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
    let running = Running::start(POLICIES).await;
    let mut client = running.client().await;
    let document = document(&mut client).await;
    let hit = r#"{"attributes":{"user":"a"}}"#;
    let receipt = client.post("/v1/check", hit).await.json()["receipt"].clone();
    let receipt = json!({ "receipt": receipt, "cost": 1 }).to_string();
    let asked = [
        ("/v1/peek", hit, 200),
        ("/v1/check", hit, 200),
        ("/v1/check", hit, 429),
        ("/v1/check", "{}", 400),
        ("/v1/charge", hit, 200),
        ("/v1/settle", &receipt, 200),
        ("/v1/check/batch", r#"{"hits":[{"attributes":{"user":"a"}},{"attributes":{}}]}"#, 200),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
        ("/v1/acquire", r#"{"attributes":{"tenant":"t"},"lease":"b"}"#, 429),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
        ("/v1/renew", r#"{"attributes":{"tenant":"t"},"lease":"b"}"#, 409),
        ("/v1/release", r#"{"attributes":{"tenant":"t"},"lease":"a"}"#, 200),
    ];
    for (path, body, status) in asked {
        let reply = client.post(path, body).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
        let (named, kind) = match status {
            200 => ("200", "application/json"),
            429 => ("429", "application/problem+json"),
            _ => ("default", "application/problem+json"),
        };
        let schema = schema(&document, path, named, kind);
        let validator = jsonschema::draft202012::new(&schema).expect("a schema");
        let answer = reply.json();
        let errors: Vec<String> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{path} {status}: {errors:?} in {answer}");
    }
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
}
