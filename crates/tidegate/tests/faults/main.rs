//! Faults: a real server that is killed, frozen, busy, full or read-only, connections that are cut or half-open, keys that hold
//! what is not ours, callers that go away. Decisions stay in time, say who made them, and are the store's again soon.
//!
//! Each test prints its figures. `TIDEGATE_CANCELLATIONS` sets how many hits the test of cancellations asks.

#![allow(clippy::unwrap_used)]

mod batches;
mod connections;
mod keys;
mod memory;
mod outages;
mod rig;
mod settings;
