//! Tokens of a language model: a request reserves an estimate and is settled by what it has used when its answer has been streamed. Beside
//! that, so many answers at once.
//!
//! ```sh
//! cargo run -p tidegate-tower --example llm -- 127.0.0.1:3000
//! curl -i -H 'x-tenant: 7' http://127.0.0.1:3000/one-two-three
//! ```

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::Path,
    routing::get,
};
use http_body::Frame;
use tidegate::{Limiter, Policy, Quota};
use tidegate_tower::{RateLimitLayer, Settle, header};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder()
        .policy(Policy::new("tokens", Quota::per_hour(100)).key(["tenant"]))
        .policy(Policy::concurrency("answers", 2, Duration::from_secs(30)).key(["tenant"]))
        .build()?;
    let layer = RateLimitLayer::new(limiter).require("tenant", header("x-tenant")).cost(|_| 40).settle_by_handler();
    let app = Router::new().route("/{prompt}", get(answer)).layer(layer);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn answer(Path(prompt): Path<String>, Extension(settle): Extension<Settle>) -> Body {
    let tokens = prompt.split('-').map(str::to_owned).collect::<Vec<_>>().into_iter();
    Body::new(Answer { tokens, used: 0, settle })
}

/// What a model says, token by token.
struct Answer {
    tokens: std::vec::IntoIter<String>,
    used: u64,
    settle: Settle,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let token = self.tokens.next();
        self.used += u64::from(token.is_some());
        self.settle.at(self.used); // so far; a client that goes away pays for what it was sent
        Poll::Ready(token.map(|token| Ok(Frame::data(Bytes::from(token + "\n")))))
    }
}
