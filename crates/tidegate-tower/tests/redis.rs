//! The layer over a real Redis: what is under way when a request goes, and when the server does not answer.
#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response};
use tidegate::{Decision, Limiter, OnStoreError, Policy, Quota, Redis, Source};
use tidegate_testkit::Server;
use tidegate_tower::{RateLimitLayer, header};
use tower::{Layer, ServiceExt, service_fn};

const PATIENCE: Duration = Duration::from_secs(10);

fn get_by(user: &str) -> Request<()> {
    Request::builder().header("x-user", user).body(()).unwrap()
}

async fn ok(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new("hello".into()))
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

#[tokio::test]
async fn decides_as_in_memory() {
    let server = Server::start();
    let limiter = limiter(&server, [five(), Policy::concurrency("at-once", 1, Duration::from_secs(60))]);
    until_used(&limiter, [0, 0]).await;
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user"));
    let (one, two) = (layer.layer(service_fn(ok)), layer.layer(service_fn(ok)));
    let held = one.clone().oneshot(get_by("a")).await.unwrap();
    assert_eq!(held.headers()["ratelimit"], r#""api";r=4;t=3600, "at-once";r=0"#);
    assert_eq!(two.clone().oneshot(get_by("a")).await.unwrap().status(), 429);
    drop(held);
    for used in 1..5 {
        until_used(&limiter, [used, 0]).await;
        assert_eq!(two.clone().oneshot(get_by("a")).await.unwrap().status(), 200);
    }
    until_used(&limiter, [5, 0]).await;
    let response = one.oneshot(get_by("a")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn who_goes_while_the_store_is_asked_is_not_charged() {
    let server = Server::start();
    let limiter = limiter(&server, [five(), Policy::concurrency("at-once", 5, Duration::from_secs(60))]);
    until_used(&limiter, [0, 0]).await;
    let service = RateLimitLayer::new(limiter.clone()).by(header("x-user")).layer(service_fn(ok));
    server.freeze();
    let sent = limiter.store().status().hits;
    let mut call = Box::pin(service.clone().oneshot(get_by("a")));
    assert!(poll(call.as_mut()).is_pending());
    until(|| limiter.store().status().hits > sent).await;
    assert!(poll(call.as_mut()).is_pending());
    drop(call);
    server.thaw();
    until_used(&limiter, [0, 0]).await;
    // It was charged, and given back: what comes next is in order.
    assert_eq!(service.oneshot(get_by("a")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_charge_if_has_not_judged_is_given_back_by_a_task() {
    let server = Server::start();
    let limiter = limiter(&server, [five()]);
    until_used(&limiter, [0]).await;
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user")).charge_if(|response| response.status == 401);
    let service = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<Body>, Infallible>>()));
    let call = tokio::spawn(service.oneshot(get_by("a")));
    until_used(&limiter, [1]).await;
    call.abort();
    until_used(&limiter, [0]).await;

    // Judged, it is given back before the response goes on.
    let service = layer.layer(service_fn(ok));
    let response = service.oneshot(get_by("a")).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], r#""api";r=5;t=0"#);
    assert_eq!(limiter.remaining("a").await, Ok(Some(5)));
}

#[tokio::test]
async fn a_refund_is_tried_again() {
    let server = Server::start();
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_millis(100));
    let limiter = Limiter::builder().policy(five()).store(store).build().unwrap();
    until_used(&limiter, [0]).await;
    let layer = RateLimitLayer::new(limiter.clone()).by(header("x-user")).charge_if(|response| response.status == 401);
    let service = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<Body>, Infallible>>()));
    let call = tokio::spawn(service.oneshot(get_by("a")));
    until_used(&limiter, [1]).await;
    server.freeze();
    call.abort();
    // The first try has failed by then.
    until(|| !limiter.store().status().is_up).await;
    server.thaw();
    until_used(&limiter, [0]).await;
}

#[tokio::test]
async fn when_the_store_does_not_answer_the_policy_decides() {
    let mut server = Server::start();
    server.kill();
    for (fallback, status) in
        [(OnStoreError::Local, 200), (OnStoreError::Allow, 200), (OnStoreError::Deny, 429), (OnStoreError::Error, 503)]
    {
        let limiter = limiter(&server, [five().on_store_error(fallback)]);
        let service = RateLimitLayer::new(limiter).by(header("x-user")).layer(service_fn(ok));
        let response = service.oneshot(get_by("a")).await.unwrap();
        assert_eq!(response.status(), status, "{fallback:?}");
    }
}
