//! The middleware in a real server: clients that go, handlers that panic, a limiter on Redis that workers share.
#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    App, HttpResponse, HttpServer,
    body::{BodySize, MessageBody},
    dev::ServerHandle,
    rt,
    web::{self, Bytes},
};
use tidegate::{Decision, Limiter, Policy, Source, Store};
use tidegate_actix::{Middleware, RateLimit, client_ip};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// What requests from here are counted by.
const HERE: &str = "127.0.0.1";

/// A body of chunks that has no end.
struct Endless;

impl MessageBody for Endless {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        context.waker().wake_by_ref();
        Poll::Ready(Some(Ok(Bytes::from_static(&[b'x'; 1024]))))
    }
}

async fn panics() -> &'static str {
    panic!("the handler has panicked")
}

/// What actix makes of a client that has closed its side.
#[derive(PartialEq)]
enum Closed {
    IsGone,
    MayListen,
}

/// A server of two workers.
async fn serve<S: Store>(limiter: Limiter<S>, closed: Closed) -> (SocketAddr, ServerHandle) {
    let limit = RateLimit::new(limiter).by(client_ip());
    let app = move || {
        App::new()
            .wrap(Middleware(limit.clone()))
            .route("/", web::to(async || "hello"))
            .route("/never", web::to(async || pending::<HttpResponse>().await))
            .route("/endless", web::to(async || HttpResponse::Ok().message_body(Endless)))
            .route("/panic", web::to(panics))
    };
    let server = HttpServer::new(app)
        .workers(2)
        .disable_signals()
        .h1_allow_half_closed(closed == Closed::MayListen)
        .bind((HERE, 0))
        .unwrap();
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    rt::spawn(server);
    (address, handle)
}

async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

async fn status(address: SocketAddr, path: &str) -> String {
    let mut response = String::new();
    ask(address, path).await.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap_or("none").to_owned()
}

/// Until the store says that so many places are free.
async fn until_free<S: Store>(limiter: &Limiter<S>, places: u64) {
    let is_so = |decision: Decision| {
        decision.outcomes().all(|outcome| outcome.source() == Source::Store && outcome.remaining() == places)
    };
    let waited = tokio::time::timeout(PATIENCE, async {
        while !S::told(limiter.peek(HERE)).await.is_ok_and(is_so) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never {places} free"));
}

fn two_at_once() -> Policy {
    Policy::concurrency("at-once", 2, Duration::from_secs(600))
}

#[actix_web::test]
async fn who_goes_or_panics_holds_no_lease() {
    let limiter = Limiter::builder().policy(two_at_once()).build().unwrap();
    let (address, server) = serve(limiter.clone(), Closed::IsGone).await;
    for path in ["/endless", "/never"] {
        let clients = [ask(address, path).await, ask(address, path).await];
        until_free(&limiter, 0).await;
        assert_eq!(status(address, "/").await, "429", "{path}");
        drop(clients);
        until_free(&limiter, 2).await;
        assert_eq!(status(address, "/").await, "200", "{path}");
    }
    assert_eq!(status(address, "/panic").await, "none");
    until_free(&limiter, 2).await;
    server.stop(false).await;
}

/// As actix has it unless told otherwise.
#[actix_web::test]
async fn a_client_that_only_listens_is_answered() {
    let limiter = Limiter::builder().policy(two_at_once()).build().unwrap();
    let (address, server) = serve(limiter.clone(), Closed::MayListen).await;
    let client = ask(address, "/never").await;
    until_free(&limiter, 1).await;
    drop(client);
    let mut streaming = ask(address, "/endless").await;
    until_free(&limiter, 0).await;
    streaming.shutdown().await.unwrap();
    assert_eq!(streaming.read_u8().await.unwrap(), b'H');
    drop(streaming); // to whom is written
    until_free(&limiter, 1).await;
    server.stop(false).await;
}

#[cfg(feature = "redis")]
#[actix_web::test]
async fn workers_share_a_limiter_on_redis() {
    let server = tidegate_testkit::Server::start();
    let store = tidegate::Redis::new(&server.url()).unwrap().deadline(PATIENCE);
    let limiter = Limiter::builder().policy(two_at_once()).store(store).build().unwrap();
    until_free(&limiter, 2).await;
    let (address, server) = serve(limiter.clone(), Closed::IsGone).await;
    let clients = [ask(address, "/endless").await, ask(address, "/endless").await];
    until_free(&limiter, 0).await;
    assert_eq!(status(address, "/").await, "429");
    drop(clients);
    until_free(&limiter, 2).await;
    assert_eq!(status(address, "/").await, "200");
    server.stop(false).await;
}
