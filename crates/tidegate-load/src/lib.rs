//! A load generator: connections that ask a [`Target`] about [`Keys`], flat out or by a schedule, and what became of it.
//!
//! ```no_run
//! use std::{future, time::Duration};
//! use tidegate_load::{Distribution, Http, Keys, Load};
//!
//! # async fn example() -> Result<(), String> {
//! let load = Load {
//!     connections: 50,
//!     rate: None,
//!     warmup: Duration::ZERO,
//!     duration: Duration::from_secs(10),
//!     keys: Keys { count: 100_000, distribution: Distribution::Uniform, seed: 1 },
//! };
//! let report = load.run(&Http::check("http://127.0.0.1:8080", "user")?, future::pending(), |_| {}).await?;
//! println!("{:.0} decisions/s", report.tally.decisions() as f64 / report.elapsed.as_secs_f64());
//! # Ok(())
//! # }
//! ```
//!
//! `run.rs` is the generator, `http.rs` a target, `keys.rs` which key is next, `tally.rs` what is counted. A new protocol is a new target:
//! how to connect, and how to ask once.

mod http;
mod keys;
mod run;
mod tally;

pub use self::{
    http::Http,
    keys::{Distribution, Keys},
    run::{Load, Report},
    tally::Tally,
};

/// What is asked.
pub trait Target {
    /// What asks it, one hit at a time.
    type Connection: Connection;

    /// Makes a connection, or says why there is none.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, String>> + Send;
}

/// One of those that ask.
pub trait Connection: Send + 'static {
    /// Has a hit of `key` decided. What fails is said in a sentence; the next may succeed again.
    fn ask(&mut self, key: &str) -> impl Future<Output = Result<Verdict, String>> + Send;
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may go on.
    Allowed,
    /// It may not.
    Denied,
}
