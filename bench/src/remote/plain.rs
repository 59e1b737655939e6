//! The scripts that articles recommend, one `EVALSHA` per decision over the client that we use, set up as we set it up.

use redis::{AsyncConnectionConfig, Cmd, aio::MultiplexedConnection};
use tidegate::{Algorithm, Quota};

use super::{
    PIPELINE, Site,
    contenders::{Answer, Subject},
};

/// What stands for an algorithm in articles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Script {
    /// As printed.
    pub(crate) name: &'static str,
    source: &'static str,
}

/// A sorted set with a member for each request.
pub(crate) const LOG: Script = Script { name: "plain log", source: include_str!("plain/log.lua") };
const TOKEN_BUCKET: Script = Script { name: "plain token bucket", source: include_str!("plain/token_bucket.lua") };
const GCRA: Script = Script { name: "plain gcra", source: include_str!("plain/gcra.lua") };
const COUNTER: Script = Script { name: "plain counter", source: include_str!("plain/counter.lua") };
const FIXED_WINDOW: Script = Script { name: "plain fixed window", source: include_str!("plain/fixed_window.lua") };

/// All of them.
pub(crate) const SCRIPTS: [Script; 5] = [LOG, TOKEN_BUCKET, GCRA, COUNTER, FIXED_WINDOW];

/// The script that people would use instead of ours.
pub(crate) fn instead_of(algorithm: Algorithm) -> Option<Script> {
    match algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow => Some(LOG),
        Algorithm::SlidingCounter => Some(COUNTER),
        Algorithm::FixedWindow => Some(FIXED_WINDOW),
        Algorithm::TokenBucket => Some(TOKEN_BUCKET),
        Algorithm::Gcra => Some(GCRA),
        _ => None,
    }
}

/// A script that the server knows.
pub(crate) struct Plain {
    connection: MultiplexedConnection,
    name: &'static str,
    sha: String,
    limit: u64,
    window_ms: u64,
}

impl Plain {
    pub(crate) fn connect(site: &Site, script: Script, quota: Quota) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(PIPELINE);
        let client = site.client();
        let (connection, sha) = site.wait(async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.expect("the server is up");
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(script.source).query_async(&mut connection).await;
            (connection, load.expect("the script is valid"))
        });
        let window_ms = quota.window().as_millis() as u64;
        Self { connection, name: script.name, sha, limit: quota.limit(), window_ms }
    }
}

impl Subject for Plain {
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a> {
        // A handle of its own for each request, as the client wants it.
        let mut connection = self.connection.clone();
        Box::pin(async move {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(&self.sha).arg(1).arg(format!("{}:{key}", self.name));
            command.arg(self.limit).arg(self.window_ms);
            if self.name == LOG.name {
                command.arg(format!("{:08x}", fastrand::u32(..)));
            }
            let (allowed, _current, _wait_ms): (bool, u64, i64) =
                command.query_async(&mut connection).await.expect("the server answers");
            allowed
        })
    }
}
