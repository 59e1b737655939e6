//! How a store is, beside what it decides: what health and metrics tell of it.

use tidegate::{Limiter, Redis, SnapshotStatus, Status};

/// What there is to tell; looking takes little time.
#[derive(Default)]
pub(crate) struct Condition {
    /// Of a store that is elsewhere.
    pub(crate) redis: Option<Status>,
    /// Of memory that is kept in a file.
    pub(crate) snapshots: Option<SnapshotStatus>,
    /// How many of each policy are in memory, where that is the store.
    pub(crate) keys: Vec<(String, usize)>,
}

impl Condition {
    pub(crate) fn of_memory(limiter: &Limiter) -> Self {
        Self { keys: limiter.keys(), ..Self::default() }
    }

    pub(crate) fn of_snapshots(limiter: &Limiter) -> Self {
        Self { snapshots: Some(limiter.store().snapshot_status()), ..Self::of_memory(limiter) }
    }

    pub(crate) fn of_redis(limiter: &Limiter<Redis>) -> Self {
        Self { redis: Some(limiter.store().status()), ..Self::default() }
    }
}
