//! The contenders over Redis: ours, the articles' scripts, and the peers, each behind the same small trait and under the same
//! quota. It knows how each is built and called best, and nothing of how it is measured.

use std::{future::Future, pin::Pin, sync::Arc};

use redis::aio::ConnectionManagerConfig;
use tidegate::{Algorithm, Quota};
use trypema::{
    BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

use super::{
    PIPELINE, Site, ours,
    plain::{Plain, SCRIPTS},
};

/// A sliding window of buckets, in one script.
const TRYPEMA: &str = "trypema";

/// A decision to come. True: allowed.
pub type Answer<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// A limiter under measurement.
pub trait Subject: Send + Sync {
    /// Decides a hit of cost 1.
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a>;
}

type Connect = Box<dyn Fn(&Site, Quota) -> Arc<dyn Subject>>;

/// A limiter that can be connected to a server.
pub struct Contender {
    /// As printed.
    pub(crate) name: String,
    /// Set for ours.
    pub(crate) algorithm: Option<Algorithm>,
    /// Neither ours nor a script.
    pub(crate) is_peer: bool,
    /// Connects one, with a connection of its own.
    pub(crate) connect: Connect,
}

impl Contender {
    /// A library like ours: each of ours is to be ahead of it.
    pub fn peer(name: &str, connect: impl Fn(&Site, Quota) -> Arc<dyn Subject> + 'static) -> Self {
        Self { is_peer: true, ..contender(name, None, connect) }
    }
}

/// Ours in the order of the registry, then the scripts, then the peer that is always there.
pub(crate) fn contenders() -> Vec<Contender> {
    let ours = Algorithm::RATES.iter().map(|&algorithm| {
        contender(format!("tidegate {algorithm}"), Some(algorithm), move |site, quota| ours::asking(site, algorithm, quota))
    });
    let scripts = SCRIPTS
        .into_iter()
        .map(|script| contender(script.name, None, move |site, quota| Arc::new(Plain::connect(site, script, quota))));
    let trypema = Contender::peer(TRYPEMA, |site, quota| Arc::new(Trypema::connect(site, quota)));
    ours.chain(scripts).chain([trypema]).collect()
}

fn contender(
    name: impl Into<String>,
    algorithm: Option<Algorithm>,
    connect: impl Fn(&Site, Quota) -> Arc<dyn Subject> + 'static,
) -> Contender {
    Contender { name: name.into(), algorithm, is_peer: false, connect: Box::new(connect) }
}

struct Trypema {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    /// Its strict kind with a hundred buckets per window, as ours has grains. It never looks for stale keys, which it does
    /// not let expire.
    fn connect(site: &Site, quota: Quota) -> Self {
        let config = ConnectionManagerConfig::new().set_response_timeout(None).set_pipeline_buffer_size(PIPELINE);
        let client = site.client();
        let window = quota.window();
        let provider = site.wait(async {
            let manager = client.get_connection_manager_with_config(config).await.expect("the server is up");
            RedisRateLimiterProvider::builder(manager)
                .prefix(RedisKey::new_or_panic(TRYPEMA.to_owned()))
                .window_size(WindowSize::seconds_or_panic(window.as_secs()))
                .bucket_size(BucketSize::milliseconds_or_panic(window.as_millis() as u64 / 100))
                .disable_cleanup()
                .build()
        });
        let rate = RateLimit::per_second_or_panic(quota.limit() as f64 / window.as_secs_f64());
        Self { provider: provider.expect("the settings are valid"), rate }
    }
}

impl Subject for Trypema {
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a> {
        Box::pin(async move {
            let key = RedisKey::try_from(key).expect("there is no colon in our keys");
            let decision = self.provider.absolute().inc(&key, &self.rate, 1).await.expect("the server answers");
            matches!(decision, RateLimitDecision::Allowed)
        })
    }
}
