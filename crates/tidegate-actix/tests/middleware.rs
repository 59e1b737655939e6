//! Every rule of the middleware, over services that are made up and in a time that stands still.
#![allow(clippy::unwrap_used)]

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use actix_web::{
    App, Error, HttpMessage as _, HttpResponse,
    body::{BodySize, EitherBody, MessageBody, to_bytes},
    dev::{Service, ServiceRequest, ServiceResponse, Transform, fn_service},
    error::{ErrorInternalServerError, ErrorUnauthorized},
    http::{
        Method, StatusCode,
        header::{HeaderValue, RETRY_AFTER},
    },
    rt,
    test::{TestRequest, call_service, init_service, read_body},
    web::{self, Bytes, ReqData},
};
use tidegate::{Decision, Hit, Limiter, ManualClock, Policy, Quota};
use tidegate_actix::{
    Body, Dialect, Fact, Middleware, Peer, Proxies, RateLimit, Refusal, Request, Reset, Settle, client_ip, client_ip_behind,
    extension, from_async_fn, from_fn, header, path_parameter, route,
};

const MINUTE: Duration = Duration::from_secs(60);

fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    (Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap(), clock)
}

/// One policy, `api`, on the attribute `key`.
fn per_minute(limit: u64) -> (Limiter, ManualClock) {
    limiter([Policy::new("api", Quota::per_minute(limit))])
}

/// A service of that function behind a limit.
fn limited<F, R, B>(
    limit: RateLimit,
    service: F,
) -> impl Service<ServiceRequest, Response = ServiceResponse<EitherBody<Body<B>>>, Error = Error, Future: 'static>
where
    F: Fn(ServiceRequest) -> R + Clone + 'static,
    R: Future<Output = Result<ServiceResponse<B>, Error>> + 'static,
    B: MessageBody + 'static,
{
    Middleware(limit).new_transform(fn_service(service)).into_inner().unwrap()
}

fn request() -> TestRequest {
    TestRequest::default()
}

fn get_by(user: &str) -> ServiceRequest {
    request().insert_header(("x-user", user)).to_srv_request()
}

async fn ok(request: ServiceRequest) -> Result<ServiceResponse, Error> {
    Ok(request.into_response(HttpResponse::Ok().body("hello")))
}

async fn never(_: ServiceRequest) -> Result<ServiceResponse, Error> {
    pending().await
}

/// Polls once.
fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn header_of<B>(response: &ServiceResponse<B>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

async fn problem_of<B: MessageBody>(response: ServiceResponse<B>) -> serde_json::Value {
    serde_json::from_slice(&read_body(response).await).unwrap()
}

#[actix_web::test]
async fn allows_and_denies_and_says_so() {
    let (limiter, clock) = per_minute(2);
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    let service = limited(RateLimit::new(limiter).by(header("x-user")), move |request| {
        counted.set(counted.get() + 1);
        assert!(request.extensions().get::<Decision>().unwrap().is_allowed());
        assert!(request.extensions().get::<Settle>().is_none());
        ok(request)
    });
    for left in [1, 0] {
        let response = service.call(get_by("a")).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(header_of(&response, "ratelimit-policy").unwrap(), r#""api";q=2;w=60"#);
        assert_eq!(header_of(&response, "ratelimit").unwrap(), format!(r#""api";r={left};t=60"#));
        assert_eq!(header_of(&response, "retry-after"), None);
        assert_eq!(read_body(response).await, "hello");
    }
    clock.advance(Duration::from_millis(100));
    let response = service.call(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""api";r=0;t=60"#);
    assert_eq!(header_of(&response, "retry-after").unwrap(), "60"); // 59.9
    assert_eq!(header_of(&response, "content-type").unwrap(), "application/problem+json");
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Come back in 60 s.",
        "violated-policies": ["api"],
        "retry-after": 60,
    });
    assert_eq!(problem_of(response).await, expected);
    assert_eq!(calls.get(), 2);
    assert_eq!(service.call(get_by("b")).await.unwrap().status(), 200);
    clock.advance(MINUTE);
    assert_eq!(service.call(get_by("a")).await.unwrap().status(), 200);
}

#[actix_web::test]
async fn a_handler_sees_the_decision_unless_it_is_left_out() {
    let limit = || RateLimit::new(per_minute(5).0).by(header("x-user"));
    for (limit, expected) in [
        (limit(), (true, false)),
        (limit().without_extension(), (false, false)),
        (limit().settle_by_handler().without_extension(), (false, true)),
    ] {
        let service = limited(limit, move |request: ServiceRequest| async move {
            let seen = (request.extensions().contains::<Decision>(), request.extensions().contains::<Settle>());
            assert_eq!(seen, expected);
            ok(request).await
        });
        let response = service.call(get_by("a")).await.unwrap();
        assert!(response.headers().contains_key("ratelimit"));
    }
}

#[actix_web::test]
async fn clones_share_one_limiter() {
    let middleware = Middleware(RateLimit::new(per_minute(2).0).by(header("x-user")));
    let one = limited(middleware.0.clone(), ok);
    let two = limited(middleware.clone().0, ok);
    assert_eq!(one.call(get_by("a")).await.unwrap().status(), 200);
    assert_eq!(two.call(get_by("a")).await.unwrap().status(), 200);
    assert_eq!(one.call(get_by("a")).await.unwrap().status(), 429);
}

/// What each fact makes of a request: two that have the first, one that has another, and two that have none.
#[actix_web::test]
async fn facts() {
    struct User(u32);
    let with = |user: u32| {
        let request = get_by("-");
        request.extensions_mut().insert(User(user));
        request
    };
    let sent = |value: &[u8]| request().insert_header(("x-user", HeaderValue::from_bytes(value).unwrap())).to_srv_request();
    let none = || request().to_srv_request();
    let uri = |uri: &str| request().uri(uri).to_srv_request();
    let uris = || [uri("http://a/1"), uri("http://a/2"), uri("http://b/1"), uri("/1"), uri("/1")];
    let host = |request: &Request| request.uri().host().map(str::to_owned);
    let late = move |request: &Request| {
        let host = host(request);
        async move {
            tokio::task::yield_now().await;
            host
        }
    };
    let long = vec![b'x'; 1 << 20];
    let longer = [&long[..], b"y"].concat();
    let cases: [(&str, Fact, [ServiceRequest; 5]); 6] = [
        ("header", header("X-User"), [sent(b"a"), sent(b"a"), sent(b"b"), none(), none()]),
        ("bytes", header("x-user"), [sent(b"\xff\xfe"), sent(b"\xff\xfe"), sent(b"\xff"), none(), none()]),
        ("long", header("x-user"), [sent(&long), sent(&long), sent(&longer), none(), none()]),
        ("extension", extension(|user: &User| Some(user.0.to_string())), [with(1), with(1), with(2), none(), none()]),
        ("closure", from_fn(host), uris()),
        ("async closure", from_async_fn(late), uris()),
    ];
    for (name, fact, requests) in cases {
        let service = limited(RateLimit::new(per_minute(1).0).by(fact), ok);
        let mut statuses = Vec::new();
        for request in requests {
            statuses.push(service.call(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 429, 200, 200, 200], "{name}");
    }
}

/// Around the app, and around a resource.
#[actix_web::test]
async fn routes_and_path_parameters() {
    let nothing = || header("x-nothing");
    type Make = fn() -> Fact;
    let cases: [(&str, Make, Make, [u16; 6]); 5] = [
        ("route, app", route, nothing, [200, 429, 429, 429, 429, 200]),
        ("route, resource", nothing, route, [200, 429, 429, 429, 429, 200]),
        ("parameter, app", || path_parameter("id"), nothing, [200; 6]),
        ("parameter, resource", nothing, || path_parameter("id"), [200, 429, 200, 200, 429, 200]),
        ("no such parameter", nothing, || path_parameter("name"), [200; 6]),
    ];
    for (name, outer, inner, expected) in cases {
        let limit = |fact: Fact| Middleware(RateLimit::new(per_minute(1).0).by(fact));
        let user = web::resource("/{id}").wrap(limit(inner())).to(async || "user");
        let app =
            App::new().wrap(limit(outer())).service(web::scope("/users").service(user)).route("/", web::to(async || "home"));
        let app = init_service(app).await;
        let mut statuses = Vec::new();
        for path in ["/users/4%32", "/users/42", "/users/43", "/users/a%2Fb", "/users/%61%2fb", "/"] {
            statuses.push(call_service(&app, request().uri(path).to_request()).await.status().as_u16());
        }
        assert_eq!(statuses, expected, "{name}");
    }
}

#[actix_web::test]
async fn addresses() {
    let from = |peer: &str, forwarded: &str| {
        let peer = (peer.parse::<std::net::IpAddr>().unwrap(), 4711).into();
        request().peer_addr(peer).insert_header(("x-forwarded-for", forwarded)).to_srv_request()
    };
    let told = |peer: &str| {
        let request = from("10.0.0.1", "");
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        request
    };
    let proxied = || client_ip_behind(Proxies::networks(["10.0.0.0/8"]).unwrap());
    type Case = (fn() -> Fact, [ServiceRequest; 2], u16);
    let cases: [Case; 9] = [
        (client_ip, [from("203.0.113.7", "1.1.1.1"), from("203.0.113.7", "2.2.2.2")], 429),
        (client_ip, [from("203.0.113.7", "1.1.1.1"), from("203.0.113.8", "1.1.1.1")], 200),
        (client_ip, [from("203.0.113.7", ""), from("::ffff:203.0.113.7", "")], 429),
        (client_ip, [from("2001:db8:1:2::1", ""), from("2001:db8:1:2:ffff::2", "")], 429),
        (client_ip, [from("2001:db8:1:2::1", ""), from("2001:db8:1:3::1", "")], 200),
        (client_ip, [told("203.0.113.7"), from("203.0.113.7", "")], 429),
        (client_ip, [told("203.0.113.7"), told("203.0.113.8")], 200),
        (proxied, [from("10.0.0.1", "1.1.1.1"), from("10.0.0.2", "9.9.9.9, 1.1.1.1")], 429),
        (proxied, [from("10.0.0.1", "1.1.1.1"), from("203.0.113.7", "1.1.1.1")], 200),
    ];
    for (index, (fact, [first, second], expected)) in cases.into_iter().enumerate() {
        let service = limited(RateLimit::new(per_minute(1).0).by(fact()), ok);
        assert_eq!(service.call(first).await.unwrap().status(), 200, "{index}");
        assert_eq!(service.call(second).await.unwrap().status(), expected, "{index}");
    }
    // Several lines are one list.
    let lines = |first: &'static str| {
        let request = request().peer_addr("10.0.0.1:1".parse().unwrap());
        let forwarded =
            ["1.1.1.1", "10.0.0.2"].into_iter().fold(request.append_header(("x-forwarded-for", first)), |request, line| {
                request.append_header(("x-forwarded-for", line))
            });
        forwarded.to_srv_request()
    };
    let service = limited(RateLimit::new(per_minute(1).0).by(proxied()), ok);
    assert_eq!(service.call(lines("6.6.6.6")).await.unwrap().status(), 200);
    assert_eq!(service.call(lines("7.7.7.7")).await.unwrap().status(), 429);
}

#[actix_web::test]
async fn who_cannot_be_told_apart_is_refused() {
    let keyed = |fact: Fact| RateLimit::new(per_minute(1).0).by(fact);
    let required = RateLimit::new(per_minute(1).0).require("key", header("x-user"));
    for (limit, status) in [(keyed(client_ip()), 500), (required.clone(), 400)] {
        let response = limited(limit, ok).call(request().to_srv_request()).await.unwrap();
        assert_eq!((response.status().as_u16(), header_of(&response, "ratelimit")), (status, None));
        assert_eq!(problem_of(response).await["status"], status);
    }
    assert_eq!(limited(required, ok).call(get_by("a")).await.unwrap().status(), 200);
}

#[actix_web::test]
async fn an_address_at_its_limit_does_not_drain_the_user() {
    let (limiter, _) = limiter([
        Policy::new("per-user", Quota::per_minute(10)).key(["user"]),
        Policy::new("per-address", Quota::per_minute(2)).key(["ip"]),
        Policy::new("watching", Quota::per_minute(1)).key(["user"]).shadow(),
    ]);
    let limit = RateLimit::new(limiter.clone()).key("user", header("x-user")).key("ip", from_fn(|_: &Request| Some("address")));
    let service = limited(limit, ok);
    for status in [200, 200, 429, 429] {
        let response = service.call(get_by("a")).await.unwrap();
        assert_eq!(response.status(), status);
        let told = header_of(&response, "ratelimit").unwrap();
        assert!(told.contains("per-user") && told.contains("per-address") && !told.contains("watching"), "{told}");
        if status == 429 {
            assert_eq!(problem_of(response).await["violated-policies"], serde_json::json!(["per-address"]));
        }
    }
    assert_eq!(limiter.remaining(Hit::new().attribute("user", "a")), Some(8));
}

#[actix_web::test]
async fn costs_and_skips() {
    let (limiter, _) = per_minute(10);
    let limit = RateLimit::new(limiter.clone())
        .by(header("x-user"))
        .cost(|request| request.headers().get("x-cost").unwrap().to_str().unwrap().parse().unwrap())
        .skip_if(|request| request.path() == "/health")
        .skip_if(|request| request.method() == Method::OPTIONS);
    let service = limited(limit, ok);
    //                method, path, cost; status, left, told
    let cases = [
        (Method::GET, "/", 4, 200, 6, true),
        (Method::GET, "/", 7, 429, 6, true),
        (Method::GET, "/", 11, 429, 6, true),
        (Method::GET, "/health", 7, 200, 6, false),
        (Method::OPTIONS, "/", 7, 200, 6, false),
        (Method::GET, "/", 6, 200, 0, true),
    ];
    for (method, path, cost, status, left, told) in cases {
        let request = request().method(method).uri(path).insert_header(("x-user", "a")).insert_header(("x-cost", cost));
        let response = service.call(request.to_srv_request()).await.unwrap();
        assert_eq!(response.status(), status, "{cost}");
        assert_eq!(header_of(&response, "ratelimit").is_some(), told, "{cost}");
        assert_eq!(response.headers().contains_key(RETRY_AFTER), status == 429 && cost <= 10, "{cost}");
        assert_eq!(limiter.remaining("a"), Some(left), "{cost}");
        assert!(!read_body(response).await.is_empty());
    }
}

/// Answers with the status that is asked for by header.
async fn echo(request: ServiceRequest) -> Result<ServiceResponse, Error> {
    let status = request.headers().get("x-status").unwrap().to_str().unwrap().parse().unwrap();
    match status {
        1 => Err(ErrorInternalServerError("the service has failed")),
        2 => panic!("the service has panicked"),
        3 => pending().await,
        _ => Ok(request.into_response(HttpResponse::build(StatusCode::from_u16(status).unwrap()))),
    }
}

fn asking_for(status: &str) -> ServiceRequest {
    request().insert_header(("x-user", "a")).insert_header(("x-status", status)).to_srv_request()
}

/// What is left of five, after a request that is answered so.
#[actix_web::test]
async fn what_a_response_means_for_the_charge() {
    let plain = |limit: RateLimit| limit;
    let failures = |limit: RateLimit| limit.charge_if(|response| response.status == 401);
    let not_ours = |limit: RateLimit| limit.charge_if(|response| !response.status.is_server_error());
    let settled = |limit: RateLimit| limit.settle_with(|response| (response.status == 200).then_some(3));
    let both = |limit: RateLimit| limit.charge_if(|r| r.status == 200).settle_with(|r| (r.status == 200).then_some(3));
    type Rule = fn(RateLimit) -> RateLimit;
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
            let service = limited(rule(RateLimit::new(limiter.clone()).by(header("x-user"))), echo);
            let mut call = Box::pin(service.call(asking_for(status)));
            match status {
                "1" => assert!(call.await.is_err()),
                "2" => assert!(rt::spawn(call).await.unwrap_err().is_panic()),
                "3" => {
                    assert!(poll(call.as_mut()).is_pending());
                    assert_eq!(limiter.remaining("a"), Some(4), "charged first: {name}");
                    drop(call);
                }
                _ => {
                    let told = header_of(&call.await.unwrap(), "ratelimit").unwrap();
                    assert!(told.starts_with(&format!(r#""api";r={left};"#)), "as it stands: {told}");
                }
            }
            assert_eq!(limiter.remaining("a"), Some(left), "{name} {status}");
        }
    }
}

#[actix_web::test]
async fn requests_in_parallel_cannot_slip_by_charge_if() {
    let (limiter, _) = per_minute(2);
    let service = limited(RateLimit::new(limiter).by(header("x-user")).charge_if(|response| response.status == 401), never);
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(service.call(get_by("a")))).collect();
    let waiting = calls.iter_mut().map(|call| poll(call.as_mut())).filter(Poll::is_pending).count();
    assert_eq!(waiting, 2);
    calls.clear();
    assert!(poll(pin!(service.call(get_by("a"))).as_mut()).is_pending());
}

/// What handlers are told, what they tell, and that their errors are responses.
#[actix_web::test]
async fn handlers() {
    async fn export(decision: ReqData<Decision>, settle: ReqData<Settle>) -> String {
        settle.at(3);
        decision.remaining().unwrap().to_string()
    }
    async fn login() -> Result<&'static str, Error> {
        Err(ErrorUnauthorized("who?"))
    }
    let (exports, _) = per_minute(10);
    let (logins, _) = per_minute(1);
    let exporting = RateLimit::new(exports.clone()).by(header("x-user")).cost(|_| 5).settle_by_handler();
    let failing = RateLimit::new(logins).by(header("x-user")).charge_if(|response| response.status == 401);
    let app = App::new()
        .service(web::resource("/export").wrap(Middleware(exporting)).to(export))
        .service(web::resource("/login").wrap(Middleware(failing)).to(login));
    let app = init_service(app).await;
    let get = |path: &str| call_service(&app, request().uri(path).insert_header(("x-user", "a")).to_request());
    assert_eq!(read_body(get("/export").await).await, "5");
    assert_eq!(exports.remaining("a"), Some(7));
    assert_eq!(get("/login").await.status(), 401);
    assert_eq!(get("/login").await.status(), 429);
}

/// So many chunks, and then a word, or no end.
struct Streaming {
    chunks: usize,
    then: Option<Box<dyn FnOnce()>>,
}

impl MessageBody for Streaming {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        if self.chunks > 0 {
            self.chunks -= 1;
            return Poll::Ready(Some(Ok("x".into())));
        }
        match self.then.take() {
            Some(then) => {
                then();
                Poll::Ready(None)
            }
            None => Poll::Pending,
        }
    }
}

async fn endless(request: ServiceRequest) -> Result<ServiceResponse<Streaming>, Error> {
    Ok(request.into_response(HttpResponse::Ok().message_body(Streaming { chunks: 0, then: None })?))
}

async fn chunk<B: MessageBody>(mut body: Pin<&mut B>) -> Option<Result<Bytes, B::Error>> {
    poll_fn(|context| body.as_mut().poll_next(context)).await
}

#[actix_web::test]
async fn the_handler_settles_until_the_end_of_the_body() {
    let (limiter, _) = per_minute(100);
    let limit = RateLimit::new(limiter.clone()).by(header("x-user")).cost(|_| 40).settle_by_handler();
    let service = limited(limit, async |request: ServiceRequest| {
        let settle = request.extensions().get::<Settle>().unwrap().clone();
        if request.headers().get("x-user").unwrap() != "silent" {
            settle.at(5);
        }
        let body = Streaming { chunks: 2, then: Some(Box::new(move || settle.at(7))) };
        Ok(request.into_response(HttpResponse::Ok().message_body(body)?))
    });
    // Read to the end, dropped on the way, and one of which nothing was told.
    let response = service.call(get_by("told")).await.unwrap();
    assert_eq!(limiter.remaining("told"), Some(60));
    assert_eq!(read_body(response).await, "xx");
    assert_eq!(limiter.remaining("told"), Some(93));
    let mut body = Box::pin(service.call(get_by("told too")).await.unwrap().into_body());
    assert!(chunk(body.as_mut()).await.is_some());
    drop(body);
    assert_eq!(limiter.remaining("told too"), Some(95));
    drop(service.call(get_by("silent")).await.unwrap());
    assert_eq!(limiter.remaining("silent"), Some(60));
}

fn at_once() -> (Limiter, ManualClock) {
    limiter([Policy::concurrency("at-once", 1, MINUTE)])
}

fn places(limiter: &Limiter) -> u64 {
    limiter.remaining("a").unwrap()
}

#[actix_web::test]
async fn a_lease_is_held_until_the_body_has_ended_or_is_dropped() {
    let (limiter, _) = at_once();
    let service = limited(RateLimit::new(limiter.clone()).by(header("x-user")), ok);
    let response = service.call(get_by("a")).await.unwrap();
    assert_eq!(header_of(&response, "ratelimit-policy").unwrap(), r#""at-once";q=1;qu="concurrent-requests""#);
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""at-once";r=0"#);
    assert_eq!(service.call(get_by("a")).await.unwrap().status(), 429);
    let mut body = Box::pin(response.into_body());
    assert_eq!(body.size(), BodySize::Sized(5));
    assert_eq!(chunk(body.as_mut()).await.unwrap().unwrap(), "hello");
    assert_eq!(places(&limiter), 0);
    assert!(chunk(body.as_mut()).await.is_none());
    assert_eq!(places(&limiter), 1);

    let response = service.call(get_by("a")).await.unwrap();
    assert_eq!(places(&limiter), 0);
    drop(response);
    assert_eq!(places(&limiter), 1);
}

#[actix_web::test]
async fn a_correction_is_told_beside_a_lease() {
    let (limiter, _) = limiter([Policy::new("api", Quota::per_minute(5)), Policy::concurrency("at-once", 1, MINUTE)]);
    let service = limited(RateLimit::new(limiter).by(header("x-user")).charge_if(|response| response.status == 401), ok);
    let response = service.call(get_by("a")).await.unwrap();
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""api";r=5;t=0, "at-once";r=0"#);
}

/// Other middleware asks for all of a body at once.
#[actix_web::test]
async fn a_body_is_had_whole_unless_it_holds_a_lease() {
    let (limiter, _) = per_minute(5);
    let service = limited(RateLimit::new(limiter).by(header("x-user")), ok);
    let body = service.call(get_by("a")).await.unwrap().into_body();
    assert_eq!(body.try_into_bytes().ok().unwrap(), "hello");

    let (limiter, _) = at_once();
    let service = limited(RateLimit::new(limiter.clone()).by(header("x-user")), ok);
    let body = service.call(get_by("a")).await.unwrap().into_body().try_into_bytes().err().unwrap();
    assert_eq!(places(&limiter), 0);
    assert_eq!(to_bytes(body).await.ok().unwrap(), "hello");
    assert_eq!(places(&limiter), 1);
}

#[actix_web::test]
async fn a_lease_is_released_by_who_fails_panics_or_goes() {
    for status in ["1", "2", "3"] {
        let (limiter, _) = at_once();
        let service = limited(RateLimit::new(limiter.clone()).by(header("x-user")), echo);
        let task = rt::spawn(service.call(asking_for(status)));
        while places(&limiter) == 1 && !task.is_finished() {
            tokio::task::yield_now().await;
        }
        task.abort();
        let _ = task.await;
        assert_eq!(places(&limiter), 1, "{status}");
    }
}

#[actix_web::test]
async fn a_lease_lasts_as_long_as_what_it_is_for() {
    let (limiter, clock) = at_once();
    let limit = RateLimit::new(limiter.clone()).by(header("x-user"));

    let service = limited(limit.clone(), never);
    let mut call = Box::pin(service.call(get_by("a")));
    for _ in 0..10 {
        assert!(poll(call.as_mut()).is_pending());
        assert_eq!(places(&limiter), 0);
        clock.advance(MINUTE / 3);
    }
    drop(call);
    assert_eq!(places(&limiter), 1);

    let service = limited(limit, endless);
    let mut body = Box::pin(service.call(get_by("a")).await.unwrap().into_body());
    for _ in 0..10 {
        assert!(poll(pin!(chunk(body.as_mut())).as_mut()).is_pending());
        assert_eq!(places(&limiter), 0);
        clock.advance(MINUTE / 3);
    }
    // Nobody looks any more: it ends by itself.
    clock.advance(MINUTE);
    assert_eq!(places(&limiter), 1);
}

#[actix_web::test]
async fn a_sleeping_body_is_woken_to_renew() {
    let (limiter, clock) = at_once();
    let service = limited(RateLimit::new(limiter.clone()).by(header("x-user")), endless);
    let reader = rt::spawn(read_body(service.call(get_by("a")).await.unwrap()));
    for _ in 0..6 {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(places(&limiter), 0);
        clock.advance(MINUTE / 3);
    }
    reader.abort();
}

#[actix_web::test]
async fn a_denial_of_ones_own() {
    let denial = |refusal: &Refusal, request: &Request| {
        let text = format!("{:?} {}", refusal.violated().collect::<Vec<_>>(), request.path());
        HttpResponse::build(StatusCode::IM_A_TEAPOT).insert_header((RETRY_AFTER, "7")).body(text)
    };
    let service = limited(RateLimit::new(per_minute(1).0).by(header("x-user")).denial(denial), ok);
    let _ = service.call(get_by("a")).await;
    let response = service.call(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 418);
    assert_eq!(response.headers().get_all(RETRY_AFTER).collect::<Vec<_>>(), ["7"]);
    assert_eq!(header_of(&response, "ratelimit").unwrap(), r#""api";r=0;t=60"#);
    assert_eq!(read_body(response).await, r#"["api"] /"#);
}

#[actix_web::test]
async fn a_hook_sees_each_decision() {
    let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counters = Arc::clone(&seen);
    let count = move |decision: &Decision, _: &Request| {
        counters[usize::from(decision.is_allowed())].fetch_add(1, Relaxed);
    };
    let service = limited(RateLimit::new(per_minute(1).0).by(header("x-user")).on_decision(count), ok);
    for _ in 0..3 {
        let _ = service.call(get_by("a")).await;
    }
    assert_eq!(seen.each_ref().map(|counter| counter.load(Relaxed)), [2, 1]);
}

#[actix_web::test]
async fn a_hook_sees_each_refusal_though_nothing_was_decided() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = || {
        let seen = Arc::clone(&seen);
        move |refusal: &Refusal, request: &Request| seen.lock().unwrap().push((refusal.status(), request.path().to_owned()))
    };
    let required = limited(RateLimit::new(per_minute(1).0).require("key", header("x-user")).on_refusal(note()), ok);
    for request in [get_by("a"), get_by("a"), request().to_srv_request()] {
        let _ = required.call(request).await;
    }
    let addresses = limited(RateLimit::new(per_minute(1).0).by(client_ip()).on_refusal(note()), ok);
    let _ = addresses.call(request().to_srv_request()).await;
    let statuses = [429, 400, 500].map(|status| (status, "/".to_owned()));
    assert_eq!(*seen.lock().unwrap(), statuses);
}

#[actix_web::test]
async fn dialects() {
    for (dialect, name, told) in [
        (Dialect::Draft, "ratelimit", Some(r#""loose";r=99;t=3600, "strict";r=1;t=60"#)),
        (Dialect::Draft06, "ratelimit-reset", Some("60")),
        (Dialect::XRateLimit(Reset::Delta), "x-ratelimit-remaining", Some("1")),
        (Dialect::None, "ratelimit", None),
    ] {
        let (limiter, _) = limiter([Policy::new("loose", Quota::per_hour(100)), Policy::new("strict", Quota::per_minute(2))]);
        let service = limited(RateLimit::new(limiter).by(header("x-user")).dialect(dialect), ok);
        let first = service.call(get_by("a")).await.unwrap();
        assert_eq!(header_of(&first, name).as_deref(), told, "{dialect:?}");
        let _ = service.call(get_by("a")).await.unwrap();
        let denied = service.call(get_by("a")).await.unwrap();
        assert_eq!(header_of(&denied, "retry-after").unwrap(), "60", "{dialect:?}");
    }
}

/// Lists go on; what is told once is the inner limit's.
#[actix_web::test]
async fn limits_within_limits_tell_of_both() {
    for (dialect, name, expected) in
        [(Dialect::Draft, "ratelimit", &["\"inner\"", "\"outer\""][..]), (Dialect::Draft06, "ratelimit-limit", &["1"])]
    {
        let limit = |name, limit| {
            let (limiter, _) = limiter([Policy::new(name, Quota::per_minute(limit))]);
            Middleware(RateLimit::new(limiter).by(header("x-user")).dialect(dialect))
        };
        let app = App::new().wrap(limit("inner", 1)).wrap(limit("outer", 9)).default_service(web::to(async || "hello"));
        let app = init_service(app).await;
        for status in [200, 429] {
            let response = call_service(&app, request().insert_header(("x-user", "a")).to_request()).await;
            assert_eq!(response.status(), status);
            let told = response.headers().get_all(name).map(|value| value.to_str().unwrap().split(';').next().unwrap());
            assert_eq!(told.collect::<Vec<_>>(), expected);
        }
    }
}

/// Workers are threads.
#[test]
fn settings_cross_threads() {
    fn crosses<T: Send + Sync + Clone + 'static>(_: T) {}
    crosses(Middleware(RateLimit::new(per_minute(1).0).by(header("x-user"))));
}
