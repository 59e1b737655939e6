//! A server around any limiter on Redis: hyper as our server has it, the same request, and as little around a decision as can be. What
//! it does less than ours is to its good.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Runtime};

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

async fn answer(subject: &dyn Subject, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let user = serde_json::from_slice::<Value>(&body).ok().and_then(|body| Some(body["attributes"]["user"].as_str()?.to_owned()));
    let (status, text) = match user {
        None => (StatusCode::BAD_REQUEST, "{}"),
        Some(user) if subject.check(&user).await => (StatusCode::OK, r#"{"allowed":true}"#),
        Some(_) => (StatusCode::TOO_MANY_REQUESTS, r#"{"allowed":false}"#),
    };
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::from(text)).expect("a status and a header"))
}
