//! The bench with one peer more: limitador over Redis, a fixed window in two scripts.

use std::{collections::HashMap, process::ExitCode, sync::Arc};

use limitador::{
    AsyncRateLimiter,
    limit::{Limit, Namespace},
    storage::redis::AsyncRedisStorage,
};
use tidegate_bench::remote::{Answer, Contender, Site, Subject};

fn main() -> ExitCode {
    tidegate_bench::run(vec![Contender::peer("limitador", |site, quota| {
        Arc::new(Limitador::connect(site, quota.limit(), quota.window().as_secs()))
    })])
}

struct Limitador {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
}

impl Limitador {
    /// Its async storage, which asks the server for every decision. The cached one answers out of its own memory, and
    /// tells the server later, while others are measured.
    fn connect(site: &Site, limit: u64, seconds: u64) -> Self {
        let storage = site.wait(AsyncRedisStorage::new(&site.url())).expect("the server is up");
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let key = "key".try_into().expect("a name is an expression");
        limiter.add_limit(Limit::new("bench", limit, seconds, [], [key]));
        Self { limiter, namespace: "bench".into() }
    }
}

impl Subject for Limitador {
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a> {
        Box::pin(async move {
            // Its callers make a context for each request; there is no cheaper way in.
            let context = HashMap::from([("key".to_owned(), key.to_owned())]).into();
            let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
            !answer.expect("the server answers").limited
        })
    }
}
