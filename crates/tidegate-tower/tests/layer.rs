//! Every rule of the layer, over services that are made up and in a time that stands still.
#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full};
use tidegate::{Algorithm, Decision, Hit, Limiter, ManualClock, Memory, Override, Policy, Quota};
use tidegate_tower::{
    Dialect, Fact, Head, Peer, Proxies, RateLimitLayer, Refusal, Reset, Settle, client_ip, client_ip_behind, extension,
    from_async_fn, from_fn, header, path_parameter, route,
};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};

const MINUTE: Duration = Duration::from_secs(60);

fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    (Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap(), clock)
}

/// One policy, `api`, on the attribute `key`.
fn per_minute(limit: u64) -> (Limiter, ManualClock) {
    limiter([Policy::new("api", Quota::per_minute(limit))])
}

fn get_by(user: &str) -> Request<()> {
    Request::builder().header("x-user", user).body(()).unwrap()
}

async fn ok(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new("hello".into()))
}

/// Polls once.
fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn header_of<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

async fn body_of<B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>>(response: Response<B>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn allows_and_denies_and_says_so() {
    let (limiter, clock) = per_minute(2);
    let calls = AtomicU64::new(0);
    let service = RateLimitLayer::new(limiter).by(header("x-user")).layer(service_fn(|request: Request<()>| {
        calls.fetch_add(1, Relaxed);
        assert!(request.extensions().get::<Decision>().unwrap().is_allowed());
        ok(request)
    }));
    for left in [1, 0] {
        let response = service.clone().oneshot(get_by("a")).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(header_of(&response, "ratelimit-policy").unwrap(), r#""api";q=2;w=60"#);
        assert_eq!(header_of(&response, "ratelimit").unwrap(), format!(r#""api";r={left};t=60"#));
        assert_eq!(header_of(&response, "retry-after"), None);
        assert_eq!(body_of(response).await, "hello");
    }
    clock.advance(Duration::from_millis(100));
    let response = service.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""api";r=0;t=60"#);
    assert_eq!(header_of(&response, "retry-after").unwrap(), "60"); // 59.9
    assert_eq!(header_of(&response, "content-type").unwrap(), "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(&body_of(response).await).unwrap();
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Come back in 60 s.",
        "violated-policies": ["api"],
        "retry-after": 60,
    });
    assert_eq!(problem, expected);
    assert_eq!(calls.load(Relaxed), 2);
    assert_eq!(service.clone().oneshot(get_by("b")).await.unwrap().status(), 200);
    clock.advance(MINUTE);
    assert_eq!(service.oneshot(get_by("a")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn no_retry_where_no_wait_helps() {
    let (limiter, _) = per_minute(2);
    let service = RateLimitLayer::new(limiter).by(header("x-user")).cost(|_| 3).layer(service_fn(ok));
    let response = service.oneshot(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(header_of(&response, "retry-after"), None);
    let problem: serde_json::Value = serde_json::from_slice(&body_of(response).await).unwrap();
    assert_eq!(problem["retry-after"], serde_json::Value::Null);
}

/// Services of any type of body, which is wrapped then.
#[tokio::test]
async fn any_body() {
    let (limiter, _) = limiter([Policy::new("api", Quota::per_minute(1)), Policy::concurrency("at-once", 2, MINUTE)]);
    let full = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
    let service = RateLimitLayer::new(limiter.clone()).by(header("x-user")).any_body().layer(full);
    let first = service.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(first.body().size_hint().exact(), Some(5));
    let denied = service.oneshot(get_by("a")).await.unwrap();
    assert_eq!(denied.status(), 429);
    let length = denied.body().size_hint().exact().unwrap();
    assert_eq!(body_of(denied).await.len() as u64, length);
    let held = || limiter.peek("a").outcomes().map(|outcome| outcome.used()).collect::<Vec<_>>();
    assert_eq!(held(), [1, 1]);
    assert_eq!(body_of(first).await, "hello");
    assert_eq!(held(), [1, 0]);
}

#[tokio::test]
async fn clones_of_layers_and_services_share_one_limiter() {
    let (limiter, _) = per_minute(3);
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let (one, two) = (layer.layer(service_fn(ok)), layer.clone().layer(service_fn(ok)));
    for service in [one.clone(), one, two.clone()] {
        assert_eq!(service.oneshot(get_by("a")).await.unwrap().status(), 200);
    }
    assert_eq!(two.oneshot(get_by("a")).await.unwrap().status(), 429);
}

/// What each fact makes of a request: two that have the first, one that has another, and one that has none.
#[tokio::test]
async fn facts() {
    #[derive(Clone)]
    struct User(u32);
    let with = |user: u32| {
        let mut request = get_by("-");
        request.extensions_mut().insert(User(user));
        request
    };
    let sent = |value: &[u8]| Request::builder().header("x-user", value).body(()).unwrap();
    let host = |request: &Head| request.uri().host().map(str::to_owned);
    let late = move |request: &Head| {
        let host = host(request);
        async move {
            tokio::task::yield_now().await;
            host
        }
    };
    let uri = |uri: &str| Request::builder().uri(uri).body(()).unwrap();
    let long = vec![b'x'; 1 << 20];
    let longer = [&long[..], b"y"].concat();
    let cases: [(&str, Fact, [Request<()>; 4]); 6] = [
        ("header", header("X-User"), [sent(b"a"), sent(b"a"), sent(b"b"), uri("/")]),
        ("bytes", header("x-user"), [sent(b"\xff\xfe"), sent(b"\xff\xfe"), sent(b"\xff"), uri("/")]),
        ("long", header("x-user"), [sent(&long), sent(&long), sent(&longer), uri("/")]),
        ("extension", extension(|user: &User| Some(user.0.to_string())), [with(1), with(1), with(2), get_by("-")]),
        ("closure", from_fn(host), [uri("http://a/1"), uri("http://a/2"), uri("http://b/1"), uri("/1")]),
        ("async closure", from_async_fn(late), [uri("http://a/1"), uri("http://a/2"), uri("http://b/1"), uri("/1")]),
    ];
    for (name, fact, [first, again, other, none]) in cases {
        let (limiter, _) = per_minute(1);
        let service = RateLimitLayer::new(limiter).by(fact).layer(service_fn(ok));
        let mut statuses = Vec::new();
        for request in [first, again, other, none.clone(), none] {
            statuses.push(service.clone().oneshot(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 429, 200, 200, 200], "{name}");
    }
}

#[tokio::test]
async fn routes_and_path_parameters_of_axum() {
    let app = |fact: Fact| {
        let layer = RateLimitLayer::new(per_minute(1).0).by(fact);
        let inner = Router::new().route("/{id}", get(|| async { "user" }));
        Router::new().nest("/users", inner).route("/", get(|| async { "home" })).layer(layer)
    };
    let cases = [
        ("route", route as fn() -> Fact, [200, 429, 429, 200]),
        ("parameter", || path_parameter("id"), [200, 429, 200, 200]),
        ("no such parameter", || path_parameter("name"), [200, 200, 200, 200]),
    ];
    for (name, fact, expected) in cases {
        let app = app(fact());
        let mut statuses = Vec::new();
        for path in ["/users/4%32", "/users/42", "/users/43", "/"] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, expected, "{name}");
    }
}

#[tokio::test]
async fn addresses() {
    let from = |peer: &str, forwarded: &str| {
        let mut request = Request::builder().header("x-forwarded-for", forwarded).body(()).unwrap();
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        request
    };
    let proxied = || client_ip_behind(Proxies::networks(["10.0.0.0/8"]).unwrap());
    type Case = (fn() -> Fact, [Request<()>; 2], u16);
    let cases: [Case; 7] = [
        (client_ip, [from("203.0.113.7", "1.1.1.1"), from("203.0.113.7", "2.2.2.2")], 429),
        (client_ip, [from("203.0.113.7", "1.1.1.1"), from("203.0.113.8", "1.1.1.1")], 200),
        (client_ip, [from("203.0.113.7", ""), from("::ffff:203.0.113.7", "")], 429),
        (client_ip, [from("2001:db8:1:2::1", ""), from("2001:db8:1:2:ffff::2", "")], 429),
        (client_ip, [from("2001:db8:1:2::1", ""), from("2001:db8:1:3::1", "")], 200),
        (proxied, [from("10.0.0.1", "1.1.1.1"), from("10.0.0.2", "9.9.9.9, 1.1.1.1")], 429),
        (proxied, [from("10.0.0.1", "1.1.1.1"), from("203.0.113.7", "1.1.1.1")], 200),
    ];
    for (index, (fact, [first, second], expected)) in cases.into_iter().enumerate() {
        let service = RateLimitLayer::new(per_minute(1).0).by(fact()).layer(service_fn(ok));
        assert_eq!(service.clone().oneshot(first).await.unwrap().status(), 200, "{index}");
        assert_eq!(service.oneshot(second).await.unwrap().status(), expected, "{index}");
    }
}

#[tokio::test]
async fn who_has_no_address_is_not_let_through() {
    let service = RateLimitLayer::new(per_minute(1).0).by(client_ip()).layer(service_fn(ok));
    assert_eq!(service.oneshot(get_by("a")).await.unwrap().status(), 500);
}

#[tokio::test]
async fn a_condition_on_a_network_reads_the_address() {
    let office = tidegate::Condition::network("192.0.2.0/24").unwrap();
    let (limiter, _) = limiter([Policy::new("office", Quota::per_minute(1)).key(["ip"]).when("ip", office)]);
    let service = RateLimitLayer::new(limiter).key("ip", client_ip()).layer(service_fn(ok));
    for (peer, expected) in [("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.3.1", 200), ("192.0.3.1", 200)] {
        let mut request = get_by("-");
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), expected);
    }
}

#[tokio::test]
async fn an_address_at_its_limit_does_not_drain_the_user() {
    let (limiter, _) = limiter([
        Policy::new("per-user", Quota::per_minute(10)).key(["user"]),
        Policy::new("per-address", Quota::per_minute(2)).key(["ip"]),
        Policy::new("watching", Quota::per_minute(1)).key(["user"]).shadow(),
    ]);
    let layer = RateLimitLayer::new(limiter.clone()).key("user", header("x-user")).key("ip", from_fn(|_| Some("address")));
    let service = layer.layer(service_fn(ok));
    for status in [200, 200, 429, 429] {
        let response = service.clone().oneshot(get_by("a")).await.unwrap();
        assert_eq!(response.status(), status);
        let told = header_of(&response, "ratelimit").unwrap();
        assert!(told.contains("per-user") && told.contains("per-address") && !told.contains("watching"), "{told}");
        if status == 429 {
            let problem: serde_json::Value = serde_json::from_slice(&body_of(response).await).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!(["per-address"]));
        }
    }
    assert_eq!(limiter.remaining(Hit::new().attribute("user", "a")), Some(8));
}

#[tokio::test]
async fn what_is_required_and_missing_is_refused() {
    let service = RateLimitLayer::new(per_minute(1).0).require("key", header("x-user")).layer(service_fn(ok));
    let none = Request::new(());
    let response = service.clone().oneshot(none).await.unwrap();
    assert_eq!((response.status(), header_of(&response, "ratelimit")), (StatusCode::BAD_REQUEST, None));
    assert_eq!(service.oneshot(get_by("a")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn costs_and_skips() {
    let (limiter, _) = per_minute(10);
    let cost = |request: &Head| request.headers().get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap());
    let layer = RateLimitLayer::new(limiter.clone())
        .by(header("x-user"))
        .cost(cost)
        .skip_if(|request| request.uri().path() == "/health")
        .skip_if(|request| request.method() == "OPTIONS");
    let service = layer.layer(service_fn(ok));
    let request = |method: &str, path: &str, cost: &str| {
        Request::builder().method(method).uri(path).header("x-user", "a").header("x-cost", cost).body(()).unwrap()
    };
    let cases = [
        (request("GET", "/", "4"), 200, 6),
        (request("GET", "/", "7"), 429, 6),
        (request("GET", "/health", "7"), 200, 6),
        (request("OPTIONS", "/", "7"), 200, 6),
        (request("GET", "/", "6"), 200, 0),
    ];
    for (request, status, left) in cases {
        let response = service.clone().oneshot(request.clone()).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(header_of(&response, "ratelimit").is_some(), request.uri().path() == "/" && request.method() == "GET");
        assert_eq!(limiter.remaining("a"), Some(left), "{request:?}");
    }
}

/// Answers with the status that is asked for by header.
async fn echo(request: Request<()>) -> Result<Response<Body>, std::io::Error> {
    let status = request.headers()["x-status"].to_str().unwrap().parse().unwrap();
    match status {
        1 => Err(std::io::Error::other("the service has failed")),
        2 => panic!("the service has panicked"),
        3 => pending().await,
        _ => Ok(Response::builder().status(status).body(Body::default()).unwrap()),
    }
}

/// What is left of five, after a request that is answered so.
#[tokio::test]
async fn what_a_response_means_for_the_charge() {
    let plain = |layer: RateLimitLayer| layer;
    let failures = |layer: RateLimitLayer| layer.charge_if(|response| response.status == 401);
    let not_ours = |layer: RateLimitLayer| layer.charge_if(|response| !response.status.is_server_error());
    let settled = |layer: RateLimitLayer| layer.settle_with(|response| (response.status == 200).then_some(3));
    let both = |layer: RateLimitLayer| layer.charge_if(|r| r.status == 200).settle_with(|r| (r.status == 200).then_some(3));
    type Rule = fn(RateLimitLayer) -> RateLimitLayer;
    //          200 401 500, error, panic, dropped
    let rules: [(&str, Rule, [u64; 6]); 5] = [
        ("plain", plain, [4, 4, 4, 4, 4, 4]),
        ("failures", failures, [5, 4, 5, 5, 5, 5]),
        ("not ours", not_ours, [4, 4, 5, 5, 5, 5]),
        ("settled", settled, [2, 4, 4, 4, 4, 4]),
        ("both", both, [2, 5, 5, 5, 5, 5]),
    ];
    for (name, rule, expected) in rules {
        for (status, left) in ["200", "401", "500", "1", "2", "3"].into_iter().zip(expected) {
            let (limiter, _) = per_minute(5);
            let service = rule(RateLimitLayer::new(limiter.clone()).by(header("x-user"))).layer(service_fn(echo));
            let mut request = get_by("a");
            request.headers_mut().insert("x-status", status.parse().unwrap());
            match status {
                "2" => assert!(tokio::spawn(service.oneshot(request)).await.unwrap_err().is_panic()),
                "3" => {
                    let mut call = Box::pin(service.oneshot(request));
                    assert!(poll(call.as_mut()).is_pending());
                    assert_eq!(limiter.remaining("a"), Some(4), "charged first: {name}");
                }
                _ => {
                    let response = service.oneshot(request).await;
                    if let Ok(response) = response {
                        // Told as it stands.
                        assert_eq!(
                            header_of(&response, "ratelimit").unwrap().split([';', '=']).nth(2).unwrap(),
                            left.to_string()
                        );
                    }
                }
            }
            assert_eq!(limiter.remaining("a"), Some(left), "{name} {status}");
        }
    }
}

#[tokio::test]
async fn what_was_given_back_is_told_beside_leases() {
    let policies = || [Policy::concurrency("at-once", 3, MINUTE), Policy::new("api", Quota::per_minute(5))];
    let given_back = |layer: RateLimitLayer| layer.charge_if(|_| false);
    let settled = |layer: RateLimitLayer| layer.settle_with(|_| Some(3));
    for (rule, left) in [(given_back as fn(RateLimitLayer) -> RateLimitLayer, "r=5;t=0"), (settled, "r=2;t=60")] {
        let (limiter, _) = limiter(policies());
        let service = rule(RateLimitLayer::new(limiter).by(header("x-user"))).layer(service_fn(ok));
        let response = service.oneshot(get_by("a")).await.unwrap();
        assert_eq!(header_of(&response, "ratelimit").unwrap(), format!(r#""at-once";r=2, "api";{left}"#));
    }
}

#[tokio::test]
async fn requests_in_parallel_cannot_slip_by_charge_if() {
    let (limiter, _) = per_minute(2);
    let layer = RateLimitLayer::new(limiter).by(header("x-user")).charge_if(|response| response.status == 401);
    let service = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<Body>, Infallible>>()));
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(service.clone().oneshot(get_by("a")))).collect();
    let waiting = calls.iter_mut().map(|call| poll(call.as_mut())).filter(Poll::is_pending).count();
    assert_eq!(waiting, 2);
    calls.clear();
    let mut next = Box::pin(service.oneshot(get_by("a")));
    assert!(poll(next.as_mut()).is_pending());
}

#[tokio::test]
async fn a_call_that_was_never_polled_holds_no_capacity() {
    let (limiter, _) = limiter([Policy::new("api", Quota::per_minute(5)), Policy::concurrency("at-once", 1, MINUTE)]);
    let mut service = RateLimitLayer::new(limiter.clone()).by(header("x-user")).charge_if(|_| true).layer(service_fn(ok));
    drop(service.call(get_by("a")));
    let peek = limiter.peek("a");
    assert_eq!(peek.outcomes().map(|outcome| outcome.used()).collect::<Vec<_>>(), [0, 0]);
}

#[tokio::test]
async fn the_handler_settles_until_the_end_of_the_body() {
    let (limiter, _) = per_minute(100);
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user")).cost(|_| 40).settle_by_handler();
    let service = layer.any_body().layer(service_fn(|request: Request<()>| async move {
        let settle = request.extensions().get::<Settle>().unwrap().clone();
        if request.headers()["x-user"] != "silent" {
            settle.at(5);
        }
        Ok::<_, Infallible>(Response::new(Streaming { frames: 2, then: move || settle.at(7), told: false }))
    }));
    // Read to the end, dropped on the way, and one of which nothing was told.
    let response = service.clone().oneshot(get_by("told")).await.unwrap();
    assert_eq!(limiter.remaining("told"), Some(60));
    let _ = response.into_body().collect().await;
    assert_eq!(limiter.remaining("told"), Some(93));
    let mut response = service.clone().oneshot(get_by("told too")).await.unwrap();
    let _ = response.frame().await;
    drop(response);
    assert_eq!(limiter.remaining("told too"), Some(95));
    drop(service.oneshot(get_by("silent")).await.unwrap());
    assert_eq!(limiter.remaining("silent"), Some(60));
}

/// So many frames, and then a word.
struct Streaming<T> {
    frames: usize,
    then: T,
    told: bool,
}

impl<T: Fn() + Unpin> http_body::Body for Streaming<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.frames == 0 {
            if !std::mem::replace(&mut self.told, true) {
                (self.then)();
            }
            return Poll::Ready(None);
        }
        self.frames -= 1;
        Poll::Ready(Some(Ok(Frame::data("x".into()))))
    }
}

/// A body that has no end.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

fn at_once() -> (Limiter, ManualClock) {
    limiter([Policy::concurrency("at-once", 1, MINUTE)])
}

fn places(limiter: &Limiter) -> u64 {
    limiter.remaining("a").unwrap()
}

#[tokio::test]
async fn a_lease_is_held_until_the_body_has_ended_or_is_dropped() {
    let (limiter, _) = at_once();
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let service = layer.layer(service_fn(ok));
    let response = service.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(header_of(&response, "ratelimit-policy").unwrap(), r#""at-once";q=1;qu="concurrent-requests""#);
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""at-once";r=0"#);
    let denied = service.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(denied.status(), 429);
    let mut body = response.into_body();
    assert!(body.frame().await.is_some());
    assert_eq!(places(&limiter), 0);
    assert!(body.frame().await.is_none());
    assert_eq!(places(&limiter), 1);

    let response = service.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(places(&limiter), 0);
    drop(response);
    assert_eq!(places(&limiter), 1);
}

#[tokio::test]
async fn a_lease_is_released_by_who_fails_panics_or_goes() {
    for status in ["1", "2", "3"] {
        let (limiter, _) = at_once();
        let service = RateLimitLayer::new(limiter.clone()).by(header("x-user")).layer(service_fn(echo));
        let mut request = get_by("a");
        request.headers_mut().insert("x-status", status.parse().unwrap());
        let task = tokio::spawn(service.oneshot(request));
        while places(&limiter) == 1 && !task.is_finished() {
            tokio::task::yield_now().await;
        }
        task.abort();
        let _ = task.await;
        assert_eq!(places(&limiter), 1, "{status}");
    }
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_what_it_is_for() {
    let (limiter, clock) = at_once();
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let third = MINUTE / 3;

    let service = layer.clone().any_body().layer(service_fn(|_: Request<()>| pending::<Result<Response<Endless>, Infallible>>()));
    let mut call = Box::pin(service.oneshot(get_by("a")));
    for _ in 0..10 {
        assert!(poll(call.as_mut()).is_pending());
        assert_eq!(places(&limiter), 0);
        clock.advance(third);
    }
    drop(call);
    assert_eq!(places(&limiter), 1);

    let service = layer.any_body().layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Endless)) }));
    let mut body = pin!(service.oneshot(get_by("a")).await.unwrap().into_body());
    for _ in 0..10 {
        let frame = poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await;
        assert!(frame.is_pending());
        assert_eq!(places(&limiter), 0);
        clock.advance(third);
    }
    // Nobody looks any more: it ends by itself.
    clock.advance(MINUTE);
    assert_eq!(places(&limiter), 1);
}

#[tokio::test]
async fn a_sleeping_body_is_woken_to_renew() {
    let (limiter, clock) = at_once();
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let service = layer.any_body().layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Endless)) }));
    let response = service.oneshot(get_by("a")).await.unwrap();
    let reader = tokio::spawn(response.into_body().collect());
    for _ in 0..6 {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(places(&limiter), 0);
        clock.advance(MINUTE / 3);
    }
    reader.abort();
}

#[tokio::test]
async fn a_denial_of_ones_own() {
    let (limiter, _) = per_minute(1);
    let denial = |refusal: &Refusal, request: &Head| {
        let text = format!("{:?} {}", refusal.violated().collect::<Vec<_>>(), request.uri().path());
        Response::builder().status(420).header("retry-after", "7").body(text.into()).unwrap()
    };
    let service = RateLimitLayer::new(limiter).by(header("x-user")).denial(denial).layer(service_fn(ok));
    let _ = service.clone().oneshot(get_by("a")).await;
    let response = service.oneshot(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 420);
    assert_eq!(header_of(&response, "retry-after").unwrap(), "7");
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""api";r=0;t=60"#);
    assert_eq!(body_of(response).await, r#"["api"] /"#);
}

#[tokio::test]
async fn a_hook_sees_each_decision() {
    let (limiter, _) = per_minute(1);
    let (allowed, denied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counters = (Arc::clone(&allowed), Arc::clone(&denied));
    let count = move |decision: &Decision, _: &Head| {
        let counter = if decision.is_allowed() { &counters.0 } else { &counters.1 };
        counter.fetch_add(1, Relaxed);
    };
    let service = RateLimitLayer::new(limiter).by(header("x-user")).on_decision(count).layer(service_fn(ok));
    for _ in 0..3 {
        let _ = service.clone().oneshot(get_by("a")).await;
    }
    assert_eq!((allowed.load(Relaxed), denied.load(Relaxed)), (1, 2));
}

#[tokio::test]
async fn a_hook_sees_each_refusal_though_nothing_was_decided() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = || {
        let seen = Arc::clone(&seen);
        move |refusal: &Refusal, request: &Head| seen.lock().unwrap().push((refusal.status(), request.uri().path().to_owned()))
    };
    let required = RateLimitLayer::new(per_minute(1).0).require("key", header("x-user")).on_refusal(note()).layer(service_fn(ok));
    for request in [get_by("a"), get_by("a"), Request::new(())] {
        let _ = required.clone().oneshot(request).await;
    }
    let addresses = RateLimitLayer::new(per_minute(1).0).by(client_ip()).on_refusal(note()).layer(service_fn(ok));
    let _ = addresses.oneshot(Request::new(())).await;
    let statuses = [429, 400, 500].map(|status| (status, "/".to_owned()));
    assert_eq!(*seen.lock().unwrap(), statuses);
}

#[tokio::test]
async fn dialects() {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (dialect, prefix) in [
        (Dialect::Draft06, "ratelimit"),
        (Dialect::XRateLimit(Reset::Delta), "x-ratelimit"),
        (Dialect::XRateLimit(Reset::Epoch), "x-ratelimit"),
        (Dialect::None, "ratelimit"),
    ] {
        let (limiter, clock) = limiter([Policy::new("loose", Quota::per_hour(100)), Policy::new("strict", Quota::per_minute(2))]);
        let service = RateLimitLayer::new(limiter).by(header("x-user")).dialect(dialect).layer(service_fn(ok));
        for (left, retry) in [(1, None), (0, None), (0, Some("60".to_owned()))] {
            let response = service.clone().oneshot(get_by("a")).await.unwrap();
            assert_eq!(header_of(&response, "retry-after"), retry);
            assert_eq!(header_of(&response, "ratelimit"), None);
            let told = |name: &str| header_of(&response, &format!("{prefix}-{name}")).map(|told| told.parse::<u64>().unwrap());
            if dialect == Dialect::None {
                assert_eq!(told("limit"), None);
                continue;
            }
            assert_eq!((told("limit"), told("remaining")), (Some(2), Some(left)));
            let reset = told("reset").unwrap();
            match dialect {
                Dialect::XRateLimit(Reset::Epoch) => assert!((now() + 58..=now() + 61).contains(&reset)),
                _ => assert_eq!(reset, 60),
            }
            clock.advance(Duration::from_nanos(1_000));
        }
    }
}

#[tokio::test]
async fn limits_within_limits_tell_of_both() {
    let (outer, _) = limiter([Policy::new("outer", Quota::per_minute(9))]);
    let (inner, _) = limiter([Policy::new("inner", Quota::per_minute(1))]);
    let inner = RateLimitLayer::new(inner).by(header("x-user")).layer(service_fn(ok));
    let service = RateLimitLayer::new(outer).by(header("x-user")).layer(inner);
    for status in [200, 429] {
        let response = service.clone().oneshot(get_by("a")).await.unwrap();
        assert_eq!(response.status(), status);
        let told: Vec<_> = response.headers().get_all("ratelimit").iter().map(|value| value.to_str().unwrap()).collect();
        assert!(told.len() == 2 && told[0].starts_with("\"inner\"") && told[1].starts_with("\"outer\""), "{told:?}");
    }
}

#[tokio::test]
async fn of_what_is_told_once_the_innermost_is_kept() {
    let tells = |name: &'static str, values: &'static [&'static str]| {
        service_fn(move |request: Request<()>| async move {
            let mut response = ok(request).await?;
            for value in values {
                response.headers_mut().append(name, value.parse().unwrap());
            }
            Ok::<_, Infallible>(response)
        })
    };
    for (dialect, prefix) in [(Dialect::Draft06, ""), (Dialect::XRateLimit(Reset::Delta), "x-")] {
        let names = ["limit", "remaining", "reset"].map(|name| format!("{prefix}ratelimit-{name}"));
        for values in [&[][..], &["7"], &["7", "8"]] {
            let (outer, inner) = (per_minute(9).0, per_minute(3).0);
            let name: &'static str = names[0].clone().leak();
            let limited = |limiter| RateLimitLayer::new(limiter).by(header("x-user")).dialect(dialect);
            let service = limited(outer).layer(limited(inner).layer(tells(name, values)));
            let response = service.oneshot(get_by("a")).await.unwrap();
            let told =
                |name: &String| response.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
            assert_eq!(
                names.each_ref().map(told),
                [if values.is_empty() { vec!["3"] } else { values.to_vec() }, vec!["2"], vec!["60"]]
            );
        }
    }
}

#[tokio::test]
async fn policies_are_told_as_they_are_now() {
    let (limiter, _) = per_minute(10);
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let told = async |user: &str| {
        let response = layer.layer(service_fn(ok)).oneshot(get_by(user)).await.unwrap();
        header_of(&response, "ratelimit-policy").unwrap()
    };
    let policy = |name: &str, quota| Policy::new(name, quota);
    for (policies, expected) in [
        (vec![policy("api", Quota::per_minute(10))], r#""api";q=10;w=60"#),
        (vec![policy("api", Quota::per_hour(10))], r#""api";q=10;w=3600"#),
        (vec![policy("ipa", Quota::per_hour(10))], r#""ipa";q=10;w=3600"#),
        (vec![policy("ipa", Quota::per_hour(10_000))], r#""ipa";q=10000;w=3600"#),
        (vec![policy("ipa", Quota::per_hour(10).burst(20)).algorithm(Algorithm::Gcra)], r#""ipa";q=20;w=7200"#),
        (vec![policy("ipa", Quota::per_hour(10)), policy("api", Quota::per_day(9))], r#""ipa";q=10;w=3600, "api";q=9;w=86400"#),
        (vec![policy("ipa", Quota::per_hour(10)).shadow(), policy("api", Quota::per_hour(10))], r#""api";q=10;w=3600"#),
        (vec![Policy::concurrency("api", 10, Duration::from_hours(1))], r#""api";q=10;qu="concurrent-requests""#),
        (
            vec![policy("api", Quota::per_hour(10)).override_key(["b"], Override::Quota(Quota::per_hour(11)))],
            r#""api";q=10;w=3600"#,
        ),
    ] {
        limiter.configure(policies).unwrap();
        assert_eq!([told("a").await, told("a").await], [expected, expected]);
    }
    assert_eq!([told("b").await, told("a").await], [r#""api";q=11;w=3600"#, r#""api";q=10;w=3600"#]);
}

#[tokio::test]
async fn a_handler_sees_the_decision_unless_it_is_left_out() {
    let sees = async |request: Request<()>| {
        let seen = (request.extensions().get::<Decision>().is_some(), request.extensions().get::<Settle>().is_some());
        ok(request).await.map(|response| response.map(|_| Body::from(format!("{seen:?}"))))
    };
    let layer = || RateLimitLayer::new(per_minute(5).0).by(header("x-user"));
    for (layer, expected) in [
        (layer(), "(true, false)"),
        (layer().without_extension(), "(false, false)"),
        (layer().settle_by_handler(), "(true, true)"),
        (layer().settle_by_handler().without_extension(), "(false, true)"),
        (layer().dialect(Dialect::None).without_extension(), "(false, false)"),
    ] {
        let is_told = layer.headers() != Dialect::None;
        let response = layer.layer(service_fn(sees)).oneshot(get_by("a")).await.unwrap();
        assert_eq!(header_of(&response, "ratelimit").is_some(), is_told);
        assert_eq!(body_of(response).await, expected);
    }
}

/// A service that must be called on the very clone that was ready, also when a fact has to be awaited.
/// Where nobody reads what allows, addresses go a short way. It tells by nothing but its speed.
#[tokio::test]
async fn the_short_way_answers_and_charges_as_the_long_one() {
    let policy = |limit| Policy::new("api", Quota::per_minute(limit)).algorithm(Algorithm::Gcra);
    let worlds = [limiter([policy(3)]), limiter([policy(3)])];
    let (decided, refused) = (Arc::new(AtomicU64::new(0)), [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))]);
    let services = || {
        let layer = |world: usize| {
            let refused = Arc::clone(&refused[world]);
            let hook = move |_: &Refusal, _: &Head| {
                refused.fetch_add(1, Relaxed);
            };
            let layer = RateLimitLayer::new(worlds[world].0.clone()).by(client_ip()).dialect(Dialect::None);
            layer.without_extension().on_refusal(hook)
        };
        let decided = Arc::clone(&decided);
        // Who looks at decisions has them made.
        let long = layer(1).on_decision(move |_, _| {
            decided.fetch_add(1, Relaxed);
        });
        [layer(0), long].map(|layer| BoxCloneService::new(layer.layer(service_fn(ok))))
    };
    let asked = AtomicU64::new(0);
    let ask = async |services: &[BoxCloneService<Request<()>, Response<Body>, Infallible>; 2], address: &str| {
        let mut answers = Vec::new();
        for service in services {
            let mut request = Request::new(());
            request.extensions_mut().insert(Peer(address.parse().unwrap()));
            let response = service.clone().oneshot(request).await.unwrap();
            let (status, headers) = (response.status(), response.headers().clone());
            answers.push((status, headers, body_of(response).await));
        }
        asked.fetch_add(1, Relaxed);
        assert_eq!(answers[0], answers[1], "{address}");
        let key = if address.contains(':') { "2001:db8::" } else { address };
        let stored = |world: usize| worlds[world].0.inspect("api", key).unwrap();
        assert_eq!(stored(0), stored(1), "{address}");
        answers[0].0
    };
    let mut serving = services();
    // Layers that know the policies in force, that are older, and that know them again.
    for (limit, are_older) in [(3, false), (5, true), (4, false)] {
        for (limiter, clock) in &worlds {
            limiter.configure([policy(limit)]).unwrap();
            clock.advance(10 * MINUTE);
        }
        if !are_older {
            serving = services();
        }
        for address in ["0.0.0.0", "10.20.3.4", "192.168.100.200", "255.255.255.255", "2001:db8::7"] {
            for n in 0..limit + 2 {
                assert_eq!(ask(&serving, address).await == 200, n < limit, "{address}, {n} of {limit}");
            }
        }
    }
    // Other policies that come while it serves are asked too.
    for (limiter, _) in &worlds {
        limiter.configure([policy(9), Policy::new("other", Quota::per_minute(1))]).unwrap();
    }
    assert_eq!([ask(&serving, "10.0.0.9").await, ask(&serving, "10.0.0.9").await], [200, 429]);
    assert_eq!(decided.load(Relaxed), asked.load(Relaxed));
    assert_eq!(refused[0].load(Relaxed), refused[1].load(Relaxed));
}

#[tokio::test]
async fn the_service_that_was_ready_is_called() {
    #[derive(Debug)]
    struct Careful {
        is_ready: bool,
    }
    impl Clone for Careful {
        fn clone(&self) -> Self {
            Self { is_ready: false }
        }
    }
    impl Service<Request<()>> for Careful {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.is_ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            assert!(std::mem::take(&mut self.is_ready));
            std::future::ready(Ok(Response::new(Body::default())))
        }
    }
    for fact in [header("x-user"), from_async_fn(|_: &Head| async { Some("a") })] {
        let mut service = RateLimitLayer::new(per_minute(5).0).by(fact).layer(Careful { is_ready: false });
        for _ in 0..3 {
            let response = service.ready().await.unwrap().call(get_by("a")).await.unwrap();
            assert_eq!(response.status(), 200);
        }
    }
}

#[test]
fn crosses_threads() {
    fn crosses<T: Send + Sync + 'static>(_: T) {}
    let layer = RateLimitLayer::<Memory>::new(per_minute(1).0).by(header("x-user"));
    crosses(layer.clone());
    crosses(layer.layer(service_fn(ok)));
    fn sent<T: Send + 'static>(_: T) {}
    sent(layer.layer(service_fn(ok)).call(get_by("a")));
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_is_denied_in_its_own_words() {
    use tonic_types::StatusExt as _;

    let (limiter, clock) = per_minute(1);
    let service = RateLimitLayer::new(limiter).by(header("x-user")).layer(service_fn(ok));
    let call = || {
        let mut request = get_by("a");
        request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        service.clone().oneshot(request)
    };
    let _ = call().await;
    clock.advance(Duration::from_millis(500));
    let response = call().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(header_of(&response, "content-type").unwrap(), "application/grpc");
    assert_eq!(header_of(&response, "retry-after").unwrap(), "60");
    let status = tonic::Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let details = status.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_millis(59_500)));
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "api");
    assert!(body_of(response).await.is_empty());
}
