//! The middleware over a real Redis: what is under way when a request goes, and when the server does not answer.
#![allow(clippy::unwrap_used)]

use std::{
    future::{Future, pending},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use actix_web::{
    Error, HttpResponse,
    dev::{Service, ServiceRequest, ServiceResponse, Transform, fn_service},
    rt,
    test::TestRequest,
};
use tidegate::{Decision, Limiter, OnStoreError, Policy, Quota, Redis, Source};
use tidegate_actix::{Middleware, RateLimit, header};
use tidegate_testkit::Server;

const PATIENCE: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

fn get_by(user: &str) -> ServiceRequest {
    TestRequest::get().insert_header(("x-user", user)).to_srv_request()
}

async fn ok(request: ServiceRequest) -> Result<ServiceResponse, Error> {
    Ok(request.into_response(HttpResponse::Ok().body("hello")))
}

async fn never(_: ServiceRequest) -> Result<ServiceResponse, Error> {
    pending().await
}

fn limiter(server: &Server, policies: impl IntoIterator<Item = Policy>) -> Limiter<Redis> {
    let store = Redis::new(&server.url()).unwrap().deadline(PATIENCE);
    Limiter::builder().policies(policies).store(store).build().unwrap()
}

fn five() -> Policy {
    Policy::new("api", Quota::per_hour(5))
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Until something is so: a look at the world, and not the logic.
async fn until(mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("it comes to be so");
}

/// Until the server says that so much is used for `a`, by each policy.
async fn until_used<const N: usize>(limiter: &Limiter<Redis>, used: [u64; N]) {
    let is_so = |decision: &Decision| {
        decision.outcomes().all(|outcome| outcome.source() == Source::Store)
            && decision.outcomes().map(|outcome| outcome.used()).eq(used)
    };
    let waited = tokio::time::timeout(PATIENCE, async {
        while !limiter.peek("a").await.is_ok_and(|decision| is_so(&decision)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never {used:?}"));
}

#[actix_web::test]
async fn decides_as_in_memory() {
    let server = Server::start();
    let limiter = limiter(&server, [five(), Policy::concurrency("at-once", 1, MINUTE)]);
    until_used(&limiter, [0, 0]).await;
    let middleware = Middleware(RateLimit::new(limiter.clone()).by(header("x-user")));
    let one = middleware.new_transform(fn_service(ok)).await.unwrap();
    let two = middleware.new_transform(fn_service(ok)).await.unwrap();
    let held = one.call(get_by("a")).await.unwrap();
    assert_eq!(held.headers().get("ratelimit").unwrap(), r#""api";r=4;t=3600, "at-once";r=0"#);
    assert_eq!(two.call(get_by("a")).await.unwrap().status(), 429);
    drop(held);
    for used in 1..5 {
        until_used(&limiter, [used, 0]).await;
        assert_eq!(two.call(get_by("a")).await.unwrap().status(), 200);
    }
    until_used(&limiter, [5, 0]).await;
    let response = one.call(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
}

#[actix_web::test]
async fn who_goes_while_the_store_is_asked_is_not_charged() {
    let server = Server::start();
    let limiter = limiter(&server, [five(), Policy::concurrency("at-once", 5, MINUTE)]);
    until_used(&limiter, [0, 0]).await;
    let middleware = Middleware(RateLimit::new(limiter.clone()).by(header("x-user")));
    let service = middleware.new_transform(fn_service(ok)).await.unwrap();
    server.freeze();
    let sent = limiter.store().status().hits;
    let mut call = service.call(get_by("a"));
    assert!(poll(call.as_mut()).is_pending());
    until(|| limiter.store().status().hits > sent).await;
    assert!(poll(call.as_mut()).is_pending());
    drop(call);
    server.thaw();
    until_used(&limiter, [0, 0]).await;
    // It was charged, and given back: what comes next is in order.
    assert_eq!(service.call(get_by("a")).await.unwrap().status(), 200);
}

#[actix_web::test]
async fn what_charge_if_has_not_judged_is_given_back_by_a_task() {
    let server = Server::start();
    let limiter = limiter(&server, [five()]);
    until_used(&limiter, [0]).await;
    let limit = RateLimit::new(limiter.clone()).by(header("x-user")).charge_if(|response| response.status == 401);
    let middleware = Middleware(limit);
    let call = rt::spawn(middleware.new_transform(fn_service(never)).await.unwrap().call(get_by("a")));
    until_used(&limiter, [1]).await;
    call.abort();
    until_used(&limiter, [0]).await;

    // Judged, it is given back before the response goes on.
    let response = middleware.new_transform(fn_service(ok)).await.unwrap().call(get_by("a")).await.unwrap();
    assert_eq!(response.headers().get("ratelimit").unwrap(), r#""api";r=5;t=0"#);
    assert_eq!(limiter.remaining("a").await, Ok(Some(5)));
}

#[actix_web::test]
async fn when_the_store_does_not_answer_the_policy_decides() {
    let mut server = Server::start();
    server.kill();
    for (fallback, status) in
        [(OnStoreError::Local, 200), (OnStoreError::Allow, 200), (OnStoreError::Deny, 429), (OnStoreError::Error, 503)]
    {
        let limiter = limiter(&server, [five().on_store_error(fallback)]);
        let middleware = Middleware(RateLimit::new(limiter).by(header("x-user")));
        let service = middleware.new_transform(fn_service(ok)).await.unwrap();
        assert_eq!(service.call(get_by("a")).await.unwrap().status(), status, "{fallback:?}");
    }
}
