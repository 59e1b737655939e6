//! An axum app that limits each user and each address, on Redis: one line more than in memory, and every machine counts together.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379/ \
//!   cargo run -p tidegate-tower --features redis --example axum_redis -- 127.0.0.1:3000
//! curl -i -H 'x-user: 42' http://127.0.0.1:3000/
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{Extension, Router, routing::get};
use tidegate::{Decision, Limiter, Policy, Quota, Redis};
use tidegate_tower::{RateLimitLayer, client_ip, header};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder()
        .policy(Policy::new("per-user", Quota::per_minute(3)).key(["user"]))
        .policy(Policy::new("per-address", Quota::per_minute(5)).key(["ip"]))
        .store(Redis::new(&std::env::var("REDIS_URL")?)?)
        .build()?;

    // In earnest the user comes from authentication, by `extension`, and not from a header that anybody can write.
    let layer = RateLimitLayer::new(limiter).key("user", header("x-user")).key("ip", client_ip());
    let app = Router::new().route("/", get(hello)).layer(layer);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn hello(Extension(decision): Extension<Decision>) -> String {
    format!("{}\n", decision.explain())
}
