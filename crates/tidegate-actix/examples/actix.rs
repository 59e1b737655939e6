//! An actix-web app that limits each user and each address, in memory.
//!
//! ```sh
//! cargo run -p tidegate-actix --example actix -- 127.0.0.1:3000
//! curl -i -H 'x-user: 42' http://127.0.0.1:3000/
//! ```

use std::error::Error;

use actix_web::{App, HttpServer, web};
use tidegate::{Decision, Limiter, Policy, Quota};
use tidegate_actix::{Middleware, RateLimit, client_ip, header};

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder()
        .policy(Policy::new("per-user", Quota::per_minute(3)).key(["user"]))
        .policy(Policy::new("per-address", Quota::per_minute(5)).key(["ip"]))
        .build()?;

    // In earnest the user comes from authentication, by `extension`, and not from a header that anybody can write.
    let limit = RateLimit::new(limiter).key("user", header("x-user")).key("ip", client_ip());
    let app = move || App::new().wrap(Middleware(limit.clone())).route("/", web::get().to(hello));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let server = HttpServer::new(app).workers(2).bind(address)?;
    println!("http://{}", server.addrs()[0]);
    server.run().await?;
    Ok(())
}

async fn hello(decision: web::ReqData<Decision>) -> String {
    format!("{}\n", decision.explain())
}
