//! The Redis store on a real server.
#![allow(clippy::unwrap_used)]

mod batches;
#[cfg(feature = "calendar")]
#[path = "../laws/calendar_model.rs"]
mod calendar_model;
#[cfg(feature = "calendar")]
mod calendars;
mod connections;
mod contract;
mod deny_cache;
mod expiry;
#[allow(dead_code, reason = "shared with the test of the vectors themselves, which reads more of it")]
#[path = "../vectors/format.rs"]
mod format;
mod keys;
#[path = "../laws/lease_model.rs"]
mod lease_model;
mod leases;
mod limiters;
mod processes;
mod ranking;
mod rings;
mod several;
mod twins;
mod waiting;
