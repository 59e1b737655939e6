//! What stands between a limiter and a store that is elsewhere: what it has denied a moment ago is not asked again, and when
//! it does not answer, somebody else does.

pub(crate) mod deny_cache;
pub(crate) mod fallback;
