//! A gRPC server behind a limit for each address; who is denied gets `RESOURCE_EXHAUSTED` and is told when to come back.
//!
//! ```sh
//! cargo run -p tidegate-tower --features grpc --example tonic -- 127.0.0.1:50051
//! ```

use std::error::Error;

use tidegate::{Limiter, Quota};
use tidegate_tower::{RateLimitLayer, client_ip};
use tonic::transport::{Server, server::TcpIncoming};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::in_memory(Quota::per_minute(2));
    let (_reporter, health) = tonic_health::server::health_reporter();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let incoming = TcpIncoming::bind(address.parse()?)?;
    println!("http://{}", incoming.local_addr()?);
    let layer = RateLimitLayer::new(limiter).by(client_ip());
    Server::builder().layer(layer).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
