//! Limiters on a real server, as the tests here need them: with time to answer, and with a look at who answered.

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, SystemTime},
};

use tidegate::{Builder, Decision, Limiter, Pending, Redis, Source, StoreError};

use crate::twins::up;

/// A store that is given all the time it needs and asked every time: for tests of exactness.
pub(crate) fn patient(url: &str) -> Redis {
    Redis::new(url).unwrap().deadline(Duration::from_secs(20)).deny_cache(Duration::ZERO)
}

/// The limiter, once it is connected.
pub(crate) async fn connected(builder: Builder<Redis>) -> Limiter<Redis> {
    let limiter = builder.build().unwrap();
    tokio::time::timeout(Duration::from_secs(10), up(&limiter)).await.expect("the server accepts the limiter");
    limiter
}

/// A decision that the store made, for every policy.
#[track_caller]
pub(crate) fn by_store(decision: Result<Decision, StoreError>) -> Decision {
    let decision = decision.unwrap();
    assert_eq!(sources(&decision), vec![Source::Store; decision.outcomes().count()], "{decision:?}");
    decision
}

pub(crate) fn sources(decision: &Decision) -> Vec<Source> {
    decision.outcomes().map(|outcome| outcome.source()).collect()
}

/// Waits if the day is about to end: what counts by the day since the epoch would begin anew in the middle of a test.
pub(crate) fn avoid_midnight() {
    const DAY: u64 = 86_400;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let left = Duration::from_secs(DAY - since.as_secs() % DAY);
    if left < Duration::from_secs(60) {
        std::thread::sleep(left);
    }
}

/// Begins to wait for an answer: what is asked has been handed in, and not been answered yet.
pub(crate) async fn begin<T>(pending: &mut Pending<T>) {
    poll_fn(|context| {
        assert!(pending.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// All keys of the server's first database.
pub(crate) fn keys(connection: &mut redis::Connection) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    keys.sort();
    keys
}
