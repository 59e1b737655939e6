//! Connections: accepted up to a bound, each served by a task on one of the lanes, and seen to their end when the server stops. It knows
//! nothing of what is asked.

use std::{io, net::SocketAddr, time::Duration};

use prometheus_client::metrics::counter::Counter;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use super::{
    http1::{self, Patience, Service},
    lanes::Lanes,
};
use crate::config::Limits;

/// How long to wait when the system has no more connections to give.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What is said to who comes when there is no room; `http::problem` has the same shape. A constant, so that it takes nothing to say.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/problem+json\r\n\
    content-length: 125\r\nretry-after: 1\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"There are too many connections; try again later.\"}";

/// On what connections are served.
pub(crate) enum Ways {
    /// The runtime that accepts them, with TLS or without.
    Here(Option<TlsAcceptor>),
    Lanes(Lanes),
}

/// Serves until `stop` changes, and then for as long as requests are under way, up to the grace time. Who finds no room is counted in
/// `refused`.
pub(crate) async fn serve<V: Service>(
    listener: TcpListener,
    ways: Ways,
    limits: &Limits,
    mut stop: watch::Receiver<()>,
    refused: &Counter,
    service: impl Fn(SocketAddr) -> V,
) {
    let unseen = stop.clone();
    let patience = Patience { request: *limits.header_timeout, idle: *limits.idle_timeout };
    let mut connections = JoinSet::new();
    let admit = |connections: &mut JoinSet<()>, stream: TcpStream, peer| {
        // Those that have ended take no room.
        while connections.len() >= limits.max_connections.get() && connections.try_join_next().is_some() {}
        if connections.len() >= limits.max_connections.get() {
            // As much of it as goes; who does not read it is not waited for.
            let _ = stream.try_write(FULL);
            refused.inc();
            return;
        }
        // Small answers are not to wait for more of them.
        let _ = stream.set_nodelay(true);
        let (service, stop) = (service(peer), unseen.clone());
        match &ways {
            Ways::Lanes(lanes) => {
                let (lane, seat) = lanes.pick();
                // It is the lane's runtime that is to be told what comes on it.
                let Ok(stream) = stream.into_std() else { return };
                let serve = async move {
                    let _seat = seat;
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        http1::serve(stream, patience, service, stop).await;
                    }
                };
                connections.spawn_on(serve, lane)
            }
            Ways::Here(None) => connections.spawn(http1::serve(stream, patience, service, stop)),
            Ways::Here(Some(tls)) => {
                let greeted = timeout(patience.request, tls.accept(stream));
                connections.spawn(async move {
                    if let Ok(Ok(stream)) = greeted.await {
                        http1::serve(stream, patience, service, stop).await;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::num::NonZeroUsize;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::serve::http1::{Head, Request, Response};

    struct Nothing;

    impl Service for Nothing {
        fn max_body_bytes(&self, _: &Head<'_>) -> Option<usize> {
            None
        }

        async fn answer(&self, _: &Request<'_>, _: &mut Response) {}
    }

    #[tokio::test]
    async fn connections_that_have_ended_take_no_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { max_connections: NonZeroUsize::new(2).unwrap(), ..Limits::default() };
        let ((stop, stopped), refused) = (watch::channel(()), Counter::default());
        let counted = refused.clone();
        let serving =
            tokio::spawn(async move { serve(listener, Ways::Here(None), &limits, stopped, &counted, |_| Nothing).await });
        // Nobody else has a turn meanwhile.
        let connect = || {
            let stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nonblocking(true).unwrap();
            TcpStream::from_std(stream).unwrap()
        };
        let mut held = vec![connect(), connect()];
        for _ in 0..100 {
            for client in &mut held {
                client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
                let mut reply = [0; 12];
                client.read_exact(&mut reply).await.unwrap();
                assert_eq!(reply.escape_ascii().to_string(), "HTTP/1.1 200");
            }
            // The server hears of who goes before it hears of who comes.
            held.clear();
            held.extend([connect(), connect()]);
        }
        drop(held);
        stop.send(()).unwrap();
        serving.await.unwrap();
        assert_eq!(refused.get(), 0);
    }
}
