//! Ours over Redis: with every decision from the store, by its clock or by one that is moved by hand, or with the deny cache
//! as it is by default.

use std::{sync::Arc, time::Duration};

use tidegate::{Algorithm, Builder, Decision, Limiter, ManualClock, Policy, Quota, Redis, Source};
use tokio::time::sleep;

use super::{
    Site,
    contenders::{Answer, Subject},
};

/// A decision that is late is still wanted: what answers in the place of the store is not to be measured.
const DEADLINE: Duration = Duration::from_secs(5);

/// Panics if a decision does not come from the store.
struct Asking(Limiter<Redis>);

/// Takes every decision.
struct Caching(Limiter<Redis>);

/// Asks the store every time.
pub(crate) fn asking(site: &Site, algorithm: Algorithm, quota: Quota) -> Arc<dyn Subject> {
    let store = store(site).deny_cache(Duration::ZERO);
    Arc::new(Asking(start(site, policy(algorithm, quota).store(store))))
}

/// The same, by `clock`.
pub(crate) fn asking_by(clock: ManualClock, site: &Site, algorithm: Algorithm, quota: Quota) -> Arc<dyn Subject> {
    let store = store(site).deny_cache(Duration::ZERO);
    Arc::new(Asking(start(site, policy(algorithm, quota).clock(clock).store(store))))
}

/// Asks the store unless it remembers that a key is denied.
pub(crate) fn caching(site: &Site, algorithm: Algorithm, quota: Quota) -> Arc<dyn Subject> {
    Arc::new(Caching(start(site, policy(algorithm, quota).store(store(site)))))
}

fn policy(algorithm: Algorithm, quota: Quota) -> Builder {
    Limiter::builder().policy(Policy::new("bench", quota).algorithm(algorithm))
}

fn store(site: &Site) -> Redis {
    Redis::new(&site.url()).expect("the server knows its URL").deadline(DEADLINE)
}

/// Returns when there is a connection: hits before that would be decided without the store.
fn start(site: &Site, builder: Builder<Redis>) -> Limiter<Redis> {
    site.wait(async {
        let limiter = builder.build().expect("every algorithm takes the quota");
        while !limiter.store().status().is_up {
            sleep(Duration::from_millis(1)).await;
        }
        limiter
    })
}

async fn decide(limiter: &Limiter<Redis>, key: &str) -> Decision {
    limiter.check(key).await.expect("a policy decides")
}

impl Subject for Asking {
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a> {
        Box::pin(async {
            let decision = decide(&self.0, key).await;
            assert!(decision.outcomes().all(|outcome| outcome.source() == Source::Store), "{}", decision.explain());
            decision.is_allowed()
        })
    }
}

impl Subject for Caching {
    fn check<'a>(&'a self, key: &'a str) -> Answer<'a> {
        Box::pin(async { decide(&self.0, key).await.is_allowed() })
    }
}
