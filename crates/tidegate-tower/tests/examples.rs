//! Each example is run as it is, and is asked over a socket.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidegate_testkit::{Example, Server};
use tonic_types::StatusExt as _;

fn per_user_and_per_address(example: &Example) {
    let (a, b): (&[_], &[_]) = (&[("x-user", "a")], &[("x-user", "b")]);
    let (status, head, body) = example.get("/", a);
    assert_eq!(status, 200, "{head}");
    assert!(head.contains(r#"ratelimit: "per-user";r=2;t="#), "{head}");
    assert!(body.contains("allowed: policy `per-user` has 2 of 3 left"), "{body}");
    assert_eq!(example.statuses("/", [a, a, a]), [200, 200, 429]);
    // The address has two left: what was denied has cost it nothing.
    assert_eq!(example.statuses("/", [b, b, b]), [200, 200, 429]);
    let (_, head, body) = example.get("/", b);
    assert!(head.contains("retry-after: ") && head.contains("application/problem+json"), "{head}");
    assert!(body.contains(r#""violated-policies":["per-address"]"#), "{body}");
}

#[test]
fn axum() {
    per_user_and_per_address(&Example::start("axum"));
}

#[test]
fn axum_redis() {
    let server = Server::start();
    let environment = [("REDIS_URL", &*server.url())];
    let (one, two) = (Example::start_with("axum_redis", &environment), Example::start_with("axum_redis", &environment));
    let mut connection = server.connection();
    let mut forget = || redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    let knows = || redis::cmd("DBSIZE").query::<usize>(&mut server.connection()).unwrap() > 0;
    for example in [&one, &two] {
        // Until it is connected it decides by itself.
        let connected = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            forget();
            example.get("/", &[("x-user", "warm")]);
            knows()
        });
        assert!(connected);
    }
    forget();
    per_user_and_per_address(&one);
    assert_eq!(two.statuses("/", [&[("x-user", "a")], &[("x-user", "c")]]), [429, 429]);
}

#[test]
fn login_counts_failures_only() {
    let example = Example::start("login");
    let (known, guessed): (&[_], &[_]) =
        (&[("authorization", "Basic YWxpY2U6c2VjcmV0")], &[("authorization", "Basic YWxpY2U6Z3Vlc3M=")]);
    assert_eq!(example.statuses("/login", [known; 5]), [204; 5]);
    assert_eq!(example.statuses("/login", [guessed, guessed, known, guessed, guessed]), [401, 401, 204, 401, 429]);
}

#[test]
fn llm_tokens_are_settled_by_what_was_used() {
    let example = Example::start("llm");
    let tenant: &[_] = &[("x-tenant", "7")];
    assert_eq!(example.get("/one", &[]).0, 400);
    // An estimate of 40 each would be two of 100; what is used is 3 each.
    for used in 0..20 {
        let (status, head, body) = example.get("/one-two-three", tenant);
        assert_eq!(status, 200);
        assert!(head.contains(&format!(r#""tokens";r={};"#, 60 - 3 * used)), "{head}");
        assert!(body.contains("three"), "{body}");
    }
    assert_eq!(example.get("/one", tenant).0, 200); // 40 are left
    assert_eq!(example.get("/one", tenant).0, 429); // 39
}

#[tokio::test]
async fn tonic() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let example = Example::start("tonic");
    let channel = tonic::transport::Endpoint::new(format!("http://{}", example.address())).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    for _ in 0..2 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let wait = status.get_error_details().retry_info().unwrap().retry_delay.unwrap();
    assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(60), "{wait:?}");
}
