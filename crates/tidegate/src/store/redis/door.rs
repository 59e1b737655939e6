//! How to get to the server, and whether it can serve.

use std::{sync::Arc, time::Duration};

use redis::{RedisError, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::link::Health;

/// How long a try may take.
pub(super) const CONNECT: Duration = Duration::from_millis(500);

/// How to get to the server.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) client: redis::Client,
    pub(super) health: Arc<Health>,
}

impl Door {
    /// Connects, and asks the server whether it can serve.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            // Deadlines are ours: an answer that comes late must still find its place.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let connect = async {
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            ping(&mut connection).await?;
            // Who may not ask these may still limit.
            if let Ok((seconds, micros)) = redis::cmd("TIME").query_async::<(i64, i64)>(&mut connection).await {
                self.health.set_clock(seconds * 1_000_000 + micros);
            }
            let memory = redis::cmd("INFO").arg("memory").query_async::<String>(&mut connection).await;
            Ok((connection, memory.unwrap_or_default()))
        };
        let connected = timeout(CONNECT, connect).await.map_err(|_| "no answer".to_owned())?;
        let (connection, memory) = connected.map_err(|error: RedisError| why(&error))?;
        let evicts = evicting(&memory);
        if let Some(policy) = &evicts {
            tracing::warn!(
                policy,
                "maxmemory-policy can evict the limiter's keys, which forgets what they count; use noeviction"
            );
        }
        *self.health.evicts.lock() = evicts;
        Ok(connection)
    }
}

/// Asks the server whether it can serve. One that says that we may not ask can.
pub(super) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let answer = redis::cmd("PING").exec_async(connection).await;
    answer.or_else(|error| if error.code() == Some("NOPERM") { Ok(()) } else { Err(error) })
}

/// The word by which the server says what is wrong; never more of its message, which may quote what users sent.
pub(super) fn code(error: &RedisError) -> &str {
    match error.code() {
        Some(code) => code,
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => "WRONGPASS",
        None if error.is_timeout() => "no answer",
        None => "no connection",
    }
}

/// As [`code`], with what this machine says of it: whether nobody listens, or the name is not known, or the certificate not believed.
fn why(error: &RedisError) -> String {
    let code = code(error);
    if error.is_io_error() && !error.is_timeout() { format!("{code}: {error}") } else { code.to_owned() }
}

/// The `maxmemory-policy` in what INFO says of memory, if under it keys of ours could be evicted.
fn evicting(info: &str) -> Option<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    (field("maxmemory") != Some("0")).then(|| policy.to_owned())
}
