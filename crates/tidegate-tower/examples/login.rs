//! A login that counts failures only: who knows the password is never locked out by having used it, and guesses in parallel do not slip by.
//!
//! ```sh
//! cargo run -p tidegate-tower --example login -- 127.0.0.1:3000
//! curl -i -u alice:guess http://127.0.0.1:3000/login
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    routing::get,
};
use tidegate::{Limiter, Quota};
use tidegate_tower::{RateLimitLayer, client_ip};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let failures = Limiter::in_memory(Quota::per_hour(3));
    let layer = RateLimitLayer::new(failures).by(client_ip()).charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let app = Router::new().route("/login", get(login)).layer(layer);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn login(headers: HeaderMap) -> StatusCode {
    // `alice:secret`
    let known = headers.get(AUTHORIZATION).is_some_and(|sent| sent == "Basic YWxpY2U6c2VjcmV0");
    if known { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED }
}
