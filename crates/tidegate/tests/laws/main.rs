//! The laws as properties: an exact model written from the laws judges the library through its public API, on a clock
//! that the tests move. Each property runs over every algorithm in the registry; a failure prints the seed that
//! repeats it.

#![allow(clippy::unwrap_used)]

mod bounds;
#[cfg(feature = "calendar")]
mod calendar_model;
#[cfg(feature = "calendar")]
mod calendars;
mod cases;
mod contract;
#[cfg(feature = "waiting")]
mod crowd;
mod exact;
mod keys;
mod lease_model;
mod lease_restarts;
mod leases;
mod memory;
mod model;
mod passing;
mod policies;
mod receipts;
mod reconfigure;
mod restarts;
mod several;
mod stepping;
mod threads;
#[cfg(feature = "waiting")]
mod timers;
mod traces;
#[cfg(feature = "waiting")]
mod waiting;
mod waits;
mod world;
