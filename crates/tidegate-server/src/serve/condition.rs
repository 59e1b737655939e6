//! How a store is, beside what it decides: what health and metrics tell of it.

use tidegate::{Redis, SnapshotStatus, Status};

/// What there is to tell; looking takes little time.
#[derive(Default)]
pub(crate) struct Condition {
    /// Of a store that is elsewhere.
    pub(crate) redis: Option<Status>,
    /// Of memory that is kept in a file.
    pub(crate) snapshots: Option<SnapshotStatus>,
}

impl Condition {
    pub(crate) fn of_redis(redis: &Redis) -> Self {
        Self { redis: Some(redis.status()), ..Self::default() }
    }
}
