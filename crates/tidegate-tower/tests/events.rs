//! What is written to logs, over a real Redis: policies and waits, and nothing that a user has sent. In a process of its own, because who
//! listens is set once for all threads.
#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    fmt::Debug,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response};
use tidegate::{Decision, Hit, Limiter, OnStoreError, Policy, Quota, Redis, Source};
use tidegate_testkit::Server;
use tidegate_tower::{Peer, Proxies, RateLimitLayer, client_ip_behind, header};
use tower::{Layer, ServiceExt, service_fn};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// What a user sends: with a break out of a line and out of JSON, and short enough for a key to hold it as it is.
const USER: &[u8] = b"mallory\t\"}]\xff";
const FORWARDED: &str = "trudy, 203.0.113.77";
const ADDRESS: &str = "203.0.113.77";

/// Writes every field of every event and span down.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl Listener {
    fn note(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Fields)) {
        let mut fields = Fields(format!("{} {}", metadata.target(), metadata.name()));
        record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn has_heard(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(what))
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        // As it is and not escaped.
        self.0 += &format!(" {field}={value}");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.note(span.metadata(), |fields| span.record(fields));
        span::Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.note(event.metadata(), |fields| event.record(fields));
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn request() -> Request<()> {
    let mut request = Request::builder().header("x-user", USER).header("x-forwarded-for", FORWARDED).body(()).unwrap();
    request.extensions_mut().insert(Peer("198.51.100.9".parse().unwrap()));
    request
}

async fn ok(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new("hello".into()))
}

fn limiter(server: &Server, fallback: OnStoreError) -> Limiter<Redis> {
    let store = Redis::new(&server.url()).unwrap().deadline(Duration::from_millis(200));
    let policy = |key| Policy::new(key, Quota::per_hour(2)).key([key]).on_store_error(fallback);
    Limiter::builder().policies(["user", "address"].map(policy)).store(store).build().unwrap()
}

fn layer(limiter: &Limiter<Redis>) -> RateLimitLayer<Redis> {
    let address = client_ip_behind(Proxies::hops(1));
    RateLimitLayer::new(limiter.clone()).key("user", header("x-user")).key("address", address)
}

async fn never(_: Request<()>) -> Result<Response<Body>, Infallible> {
    pending().await
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it comes to be so");
}

async fn until_used(limiter: &Limiter<Redis>, used: u64) {
    let is_so =
        |decision: &Decision| decision.outcomes().all(|outcome| outcome.source() == Source::Store && outcome.used() == used);
    let hit = Hit::new().attribute("user", USER).attribute("address", ADDRESS);
    until(async || limiter.peek(&hit).await.is_ok_and(|decision| is_so(&decision))).await;
}

#[tokio::test]
async fn events_tell_of_policies_and_never_of_who_was_asked_about() {
    let listener = Listener::default();
    tracing::subscriber::set_global_default(listener.clone()).unwrap();
    let mut server = Server::start();
    let limiter = limiter(&server, OnStoreError::Error);
    until_used(&limiter, 0).await;

    // Given back, by the response and by a task.
    let judged = layer(&limiter).charge_if(|response| response.status == 401);
    assert_eq!(judged.layer(service_fn(ok)).oneshot(request()).await.unwrap().status(), 200);
    let call = tokio::spawn(judged.layer(service_fn(never)).oneshot(request()));
    until_used(&limiter, 1).await;
    call.abort();
    until_used(&limiter, 0).await;

    // Denied, by the store and by what is remembered of it.
    let service = layer(&limiter).layer(service_fn(ok));
    for status in [200, 200, 429, 429] {
        assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), status);
    }
    assert!(listener.has_heard("policy=user"));

    // Not answered: neither what is to be given back nor a hit.
    let _ = limiter.reset(Hit::new().attribute("user", USER).attribute("address", ADDRESS)).await.unwrap();
    let call = tokio::spawn(judged.layer(service_fn(never)).oneshot(request()));
    until_used(&limiter, 1).await;
    server.kill();
    until(async || listener.has_heard("lost the store")).await;
    call.abort();
    for (fallback, status) in [(OnStoreError::Error, 503), (OnStoreError::Deny, 429), (OnStoreError::Local, 200)] {
        let service = layer(&self::limiter(&server, fallback)).charge_if(|_| false).layer(service_fn(ok));
        assert_eq!(service.oneshot(request()).await.unwrap().status(), status, "{fallback:?}");
    }
    until(async || listener.has_heard("the store cannot be reached")).await;
    assert!(listener.has_heard("status=503"));

    for line in listener.0.lock().unwrap().iter() {
        let told = ["mallory", "trudy", "203.0.113", "198.51.100"].into_iter().find(|sent| line.contains(sent));
        assert_eq!(told, None, "{line}");
    }
}
