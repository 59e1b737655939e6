//! Connections: accepted up to a bound, each served by a task, and seen to their end when the server stops. It knows nothing of what
//! is asked.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, header, http::HeaderValue, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::config::Limits;

/// Answers the requests of one connection.
pub(crate) trait Service: Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// How long connections that are told to end are still listened to: a request may be on its way.
const LINGER: Duration = Duration::from_millis(500);

/// The longest head of a request, and what is read of one connection at a time.
const HEAD_BYTES: usize = 65_536;

/// How long to wait when the system has no more connections to give.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What is said to who comes when there is no room.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n";

/// Serves until `stop` changes, and then for as long as requests are under way, up to the grace time.
pub(crate) async fn serve<V: Service>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: &Limits,
    mut stop: watch::Receiver<()>,
    service: impl Fn(SocketAddr) -> V,
) {
    let unseen = stop.clone();
    let http = http(limits);
    let mut connections = JoinSet::new();
    let admit = |connections: &mut JoinSet<()>, stream: TcpStream, peer| {
        if connections.len() >= limits.max_connections.get() {
            // As much of it as goes; who does not read it is not waited for.
            let _ = stream.try_write(FULL);
            return;
        }
        // Small answers are not to wait for more of them.
        let _ = stream.set_nodelay(true);
        let stream = Patient { stream, patience: *limits.header_timeout, waiting: None };
        let (http, service, stop) = (http.clone(), service(peer), unseen.clone());
        match &tls {
            None => connections.spawn(connection(http, stream, service, stop)),
            Some(tls) => {
                let greeted = timeout(*limits.header_timeout, tls.accept(stream));
                connections.spawn(async move {
                    if let Ok(Ok(stream)) = greeted.await {
                        connection(http, stream, service, stop).await;
                    }
                })
            }
        };
    };
    let mut is_exhausted = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    is_exhausted = false;
                    admit(&mut connections, stream, peer);
                }
                Err(error) if is_of_one(&error) => {}
                Err(error) => {
                    // Said once.
                    if !std::mem::replace(&mut is_exhausted, true) {
                        warn!("no connection can be accepted: {error}");
                    }
                    sleep(EXHAUSTED).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    // Who has connected before is heard.
    while let Some(Ok((stream, peer))) = now(listener.accept()).await {
        admit(&mut connections, stream, peer);
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(*limits.shutdown_grace, ended).await.is_err() {
        warn!(connections = connections.len(), "the grace time is over: connections are cut");
        connections.shutdown().await;
    }
}

/// How HTTP is spoken.
pub(crate) fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(*limits.header_timeout)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(HEAD_BYTES)
        // Head and body in one piece: answers are so short that to send two takes longer than to copy one.
        .writev(false);
    http
}

/// What is ready at once.
async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = async {} => None,
    }
}

/// Whether it was the connection that failed, and not the listener.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Serves one connection until its end, or until `stop` changes and what is under way is answered.
pub(crate) async fn connection<V: Service>(
    http: http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: V,
    mut stop: watch::Receiver<()>,
) {
    let (service, unseen) = (&service, stop.clone());
    let unseen = &unseen;
    let answer = |request| async move {
        let mut response = service.answer(request).await;
        if unseen.has_changed().unwrap_or(true) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    };
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service_fn(answer)));
    let stopped = async {
        let _ = stop.changed().await;
        // From now on each answer closes its connection; the ones that nobody asks anything on are closed later.
        sleep(LINGER).await;
    };
    tokio::select! {
        // Clients that break off or speak something else are their own business.
        _ = &mut serving => return,
        () = stopped => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

/// A stream to who takes what is written to it: a write that has waited for so long fails, and with it the connection. Else clients that
/// ask and never read would hold theirs for ever.
struct Patient<T> {
    stream: T,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T: AsyncWrite + Unpin> Patient<T> {
    fn in_time<O>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<O>>) -> Poll<io::Result<O>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
