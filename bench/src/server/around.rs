//! A server around any limiter on Redis: HTTP by our server's own code, the same request, an answer of the same fields and headers. What ours
//! does beside that (metrics, settings that can change) is to the good of this one.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate_server::serve::http1::{self, Head, Request, Response, Service};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};

use super::PER_MINUTE;
use crate::remote::Subject;

/// Serves in `runtime` for as long as that lives; where.
pub(crate) fn serve(runtime: &Runtime, subject: Arc<dyn Subject>) -> Result<SocketAddr, String> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    runtime.spawn(async move {
        let (_stop, stopped) = watch::channel(());
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(http1::serve(stream, Duration::from_secs(10), Around(Arc::clone(&subject)), stopped.clone()));
        }
    });
    Ok(address)
}

struct Around(Arc<dyn Subject>);

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

impl Service for Around {
    fn max_body_bytes(&self, _head: &Head<'_>) -> Option<usize> {
        Some(65_536)
    }

    async fn answer(&self, request: &Request<'_>, response: &mut Response) {
        let Ok(Hit { attributes: Attributes { user } }) = serde_json::from_slice(request.body) else {
            response.status = StatusCode::BAD_REQUEST;
            return;
        };
        let allowed = self.0.check(user).await;
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
        response.status = if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        response.kind("application/json");
        response.header("ratelimit-policy", format!("\"{policy}\";q={limit};w=60"));
        response.header("ratelimit", format!("\"{policy}\";r={remaining};t=60"));
        serde_json::to_writer(&mut response.body, &answer).expect("texts and numbers, into memory");
    }
}
