//! A server around any limiter on Redis: hyper as our server has it, the same request, an answer of the same fields and headers. What ours
//! does beside that (bounds, timeouts, metrics, reloading) is to the good of this one.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, runtime::Runtime};

use super::PER_MINUTE;
use crate::remote::Subject;

/// Serves in `runtime` for as long as that lives; where.
pub(crate) fn serve(runtime: &Runtime, subject: Arc<dyn Subject>) -> Result<SocketAddr, String> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let subject = Arc::clone(&subject);
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let answer = service_fn(|request| answer(&*subject, request));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    Ok(address)
}

/// What our server answers, field by field, of which nothing but the verdict is known here.
#[derive(Serialize)]
struct Answer<'a> {
    allowed: bool,
    policy: &'a str,
    limit: u32,
    remaining: u32,
    retry_after_ms: u64,
    reset_after_ms: u64,
    source: &'a str,
    receipt: &'a str,
    outcomes: [Outcome<'a>; 1],
}

#[derive(Serialize)]
struct Outcome<'a> {
    policy: &'a str,
    key: &'a str,
    allowed: bool,
    shadow: bool,
    limit: u32,
    remaining: u32,
    charged: u32,
    retry_after_ms: u64,
    reset_after_ms: u64,
    source: &'a str,
}

#[derive(Deserialize)]
struct Hit<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
}

#[derive(Deserialize)]
struct Attributes<'a> {
    user: &'a str,
}

async fn answer(subject: &dyn Subject, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(Hit { attributes: Attributes { user } }) = serde_json::from_slice(&body) else {
        return Ok(Response::builder().status(StatusCode::BAD_REQUEST).body(Full::default()).expect("a status"));
    };
    let allowed = subject.check(user).await;
    let (policy, source, limit, remaining) = ("per-user", "store", PER_MINUTE, PER_MINUTE - 1);
    let (retry_after_ms, reset_after_ms) = (0, 60_000);
    let outcome = Outcome {
        policy,
        key: user,
        allowed,
        shadow: false,
        limit,
        remaining,
        charged: 1,
        retry_after_ms,
        reset_after_ms,
        source,
    };
    let receipt =
        "tg1:0123456789abcdef:per-user,sliding-log,0123456789abcdef0123456789abcdef0123456789ab,0,0,1700000000000000,1;";
    let outcomes = [outcome];
    let answer = Answer { allowed, policy, limit, remaining, retry_after_ms, reset_after_ms, source, receipt, outcomes };
    let response = Response::builder()
        .status(if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS })
        .header(header::CONTENT_TYPE, "application/json")
        .header("ratelimit-policy", format!("\"{policy}\";q={limit};w=60"))
        .header("ratelimit", format!("\"{policy}\";r={remaining};t=60"));
    let text = serde_json::to_vec(&answer).expect("texts and numbers");
    Ok(response.body(Full::from(text)).expect("a status and headers"))
}
