//! A rate limiter to embed: seven algorithms behind one contract, several policies per request, decisions that explain
//! themselves. In memory it is synchronous, without a runtime or, unless asked for, a background thread; with the feature `redis`
//! the same policies decide for every machine, on Redis or Valkey.
//!
//! # From nothing
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let limiter = Limiter::in_memory(Quota::per_minute(3));
//! for _ in 0..3 {
//!     assert!(limiter.check("user:42").is_allowed());
//! }
//! let decision = limiter.check("user:42");
//! assert!(!decision.is_allowed());
//! assert!(decision.retry_after().is_some());
//! assert!(limiter.check("user:43").is_allowed()); // another key, another count
//! ```
//!
//! A [`Limiter`] is cheap to clone, and clones share everything: put one into your application's state.
//!
//! # Quotas
//!
//! A [`Quota`] is a limit per window, with an optional burst. One that exists is valid; texts from outside say what is
//! wrong with them.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::Quota;
//!
//! assert_eq!("10/s burst 20".parse(), Ok(Quota::per_second(10).burst(20)));
//! assert_eq!("5000 per day".parse(), Ok(Quota::per_day(5000)));
//! assert_eq!("20/10s".parse(), Quota::new(20, Duration::from_secs(10)));
//! let error = "20/fortnight".parse::<Quota>().unwrap_err();
//! assert_eq!(error.to_string(), "`fortnight` is not a unit of time; use ms, s, min, hour, day or week");
//! ```
//!
//! # Policies
//!
//! A [`Policy`] says what is counted together ([`key`](Policy::key)), when it applies ([`when`](Policy::when)), how it is
//! enforced ([`Algorithm`]), and what particular keys get instead ([`Override`]). A [`Hit`] has attributes and a cost. All
//! policies whose key attributes the hit has are asked; **all are charged or none is**.
//!
//! ```
//! use tidegate::{Algorithm, Condition, Hit, Limiter, Override, Policy, Quota};
//!
//! let limiter = Limiter::builder()
//!     .policy(
//!         Policy::new("per-user", Quota::per_minute(100))
//!             .key(["user"])
//!             .override_key(["batch-job"], Override::Quota(Quota::per_minute(10_000)))
//!             .override_key(["mallory"], Override::Blocked),
//!     )
//!     .policy(Policy::new("per-ip", Quota::per_minute(1_000)).key(["ip"]).algorithm(Algorithm::Gcra))
//!     .policy(
//!         Policy::new("logins", Quota::per_hour(5))
//!             .key(["ip"])
//!             .when("route", Condition::equals("/login"))
//!             .algorithm(Algorithm::SlidingLog),
//!     )
//!     .policy(Policy::new("maybe-stricter", Quota::per_minute(50)).key(["user"]).shadow())
//!     .build()?;
//!
//! let login = Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7").attribute("route", "/login");
//! for _ in 0..5 {
//!     assert!(limiter.check(&login).is_allowed());
//! }
//! let decision = limiter.check(&login);
//! assert_eq!(decision.strictest().unwrap().policy(), "logins");
//! // The user's own quota was charged for the five, not for the one that was denied.
//! assert_eq!(limiter.remaining(Hit::new().attribute("user", "42")), Some(95));
//! # Ok::<(), tidegate::ConfigError>(())
//! ```
//!
//! # Decisions
//!
//! Denial is a [`Decision`], never an `Err`. Each policy that applied has an [`Outcome`]: what is used and left, when to
//! come back ([`retry_after`](Outcome::retry_after) is exact to the microsecond), when all is free again, and who
//! answered. [`explain`](Decision::explain) is a sentence for a log or a person.
//!
//! ```
//! # use tidegate::{Limiter, ManualClock, Policy, Quota};
//! # let limiter = Limiter::builder().policy(Policy::new("api", Quota::per_second(2))).clock(ManualClock::default()).build()?;
//! let _ = limiter.check_n("user:42", 2);
//! let decision = limiter.check("user:42");
//! assert_eq!(
//!     decision.explain().to_string(),
//!     "denied: policy `api` has 2 of 2 used for key `user:42`, come back in 1s"
//! );
//! assert!(limiter.check_n("user:42", 3).strictest().unwrap().is_hopeless()); // no wait helps
//! # Ok::<(), tidegate::ConfigError>(())
//! ```
//!
//! # Costs known only afterwards
//!
//! [`reserve`](Limiter::reserve) an estimate and [`settle`](Limiter::settle) it with the receipt, [`refund`](Limiter::refund) what
//! was not used at all, or [`charge`](Limiter::charge) what has already been spent. The example `llm_tokens` limits tokens, requests
//! and calls at once by one set of policies.
//!
//! ```
//! use tidegate::{Hit, Limiter, Quota};
//!
//! let tokens = Limiter::in_memory(Quota::per_minute(100_000));
//! let (decision, receipt) = tokens.reserve(Hit::from("tenant-7").cost(4_000)); // the estimate
//! assert!(decision.is_allowed());
//! let _ = tokens.settle(receipt.expect("it was charged"), 1_250); // what the call used
//! assert_eq!(tokens.remaining("tenant-7"), Some(98_750));
//! ```
//!
//! # How many at once
//!
//! A policy of [`concurrency`](Policy::concurrency) counts what is under way, not what has come. It stands beside rates in one set,
//! all or nothing. [`hold`](Limiter::hold) gives a guard; whoever cannot keep one names the lease, and
//! [renews](Limiter::renew) or [releases](Limiter::release) it by that name, from anywhere.
//!
//! # Days, weeks and months
//!
//! With the feature `calendar`, a policy has windows that are days, weeks or months of a time zone:
//! `Policy::calendar("monthly", 10_000, Calendar::month("Europe/Berlin")?)`.
//!
//! # Waiting
//!
//! With the feature `waiting`, `acquire` waits until a hit is admitted and `acquire_timeout` no longer than it is told to, first come
//! first served for each key. A dropped future holds nothing.
//!
//! ```no_run
//! # #[cfg(feature = "waiting")]
//! # async fn example() {
//! # use tidegate::{Limiter, Quota};
//! let limiter = Limiter::in_memory(Quota::per_second(10));
//! let decision = limiter.acquire("api.example.com").await;
//! assert!(decision.is_allowed());
//! # }
//! ```
//!
//! # While serving
//!
//! [`configure`](Limiter::configure) replaces the policies and [`set_quota`](Limiter::set_quota) one quota; what was counted
//! goes on counting. [`Builder::max_keys`] bounds memory, [`Limiter::usage`] tells it. In tests a [`ManualClock`] takes the
//! place of time.
//!
//! ```
//! # use tidegate::{Limiter, Quota};
//! let limiter = Limiter::in_memory(Quota::per_minute(5));
//! let _ = limiter.check_n("user:42", 5);
//! limiter.set_quota("default", Quota::per_minute(8))?;
//! assert_eq!(limiter.remaining("user:42"), Some(3));
//! # Ok::<(), tidegate::ConfigError>(())
//! ```
//!
//! # Restarts
//!
//! [`Builder::snapshot`] keeps what was counted in a file: read when the limiter is built, written when its last handle is dropped
//! and, if wanted, at intervals; [`Limiter::save`] writes one at any time. A restored limiter answers as one that lived on.
//!
//! ```
//! # use tidegate::{Limiter, Policy, Quota, Snapshot};
//! # let path = std::env::temp_dir().join(format!("tidegate-guide-{}", std::process::id()));
//! let build = || {
//!     let policy = Policy::new("daily", Quota::per_day(5));
//!     Limiter::builder().policy(policy).snapshot(Snapshot::new(&path)).build()
//! };
//! assert!(build()?.check_n("user:42", 5).is_allowed());
//! assert!(!build()?.check("user:42").is_allowed());
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), tidegate::ConfigError>(())
//! ```
//!
//! # Which keys, and why
//!
//! [`inspect`](Limiter::inspect) says what is stored for a key, [`top`](Limiter::top) who is denied most.
//!
//! ```
//! # use tidegate::{Limiter, Quota};
//! let limiter = Limiter::in_memory(Quota::per_minute(1));
//! (0..3).for_each(|_| drop(limiter.check("mallory")));
//! let worst = &limiter.top("default", 10)?[0];
//! assert_eq!((worst.key.as_str(), worst.denied), ("mallory", 2));
//! # Ok::<(), tidegate::ConfigError>(())
//! ```
//!
//! # Many machines
//!
//! With the feature `redis`, `.store(Redis::new("redis://127.0.0.1/")?)` is the one line that changes: the methods then return
//! futures of what they return here, and the answers are the same, to the microsecond. Time is the server's. Hits that come
//! while a call is under way go together in the next one. Every decision is answered within its deadline (15 ms unless set):
//! when the store does not answer, each policy decides as its [`OnStoreError`] says, and
//! [`Outcome::source`] tells. A key that was denied a moment ago is denied without asking again.
//!
//! # Which algorithm
//!
//! | | promise, for any traffic |
//! |---|---|
//! | [`SlidingWindow`](Algorithm::SlidingWindow), the default | at most the limit in any window; capacity back late by less than a grain; bounded memory |
//! | [`SlidingLog`](Algorithm::SlidingLog) | the same, never late; memory grows with the requests in the window |
//! | [`SlidingCounter`](Algorithm::SlidingCounter) | an estimate: below twice the limit in any window |
//! | [`FixedWindow`](Algorithm::FixedWindow) | at most the limit per window since the epoch, or of a calendar; twice that across a boundary |
//! | [`TokenBucket`](Algorithm::TokenBucket) | a burst, then exactly the rate |
//! | [`Gcra`](Algorithm::Gcra) | a burst, then evenly spaced; the smallest state |
//! | [`Concurrency`](Algorithm::Concurrency) | never more than the limit at once; who dies frees its lease when that ends |
//!
//! A clock that steps back admits nothing extra; one that is far off locks nobody out and costs at most one capacity.

mod algorithm;
mod builder;
#[cfg_attr(not(feature = "calendar"), path = "no_calendar.rs")]
mod calendar;
mod clock;
mod decision;
mod error;
#[cfg(feature = "redis")]
mod guard;
mod hit;
mod inspection;
mod key;
mod label;
mod lease;
mod limiter;
mod packed;
mod policy;
mod quota;
mod receipt;
mod set;
mod store;
mod top;
#[cfg(feature = "waiting")]
mod waiting;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use builder::Builder;
#[cfg(feature = "calendar")]
pub use calendar::Calendar;
pub use clock::{Clock, ManualClock, SystemClock};
pub use decision::{Decision, Outcome};
pub use error::{ConfigError, QuotaError, ReceiptError, SnapshotError, StoreError};
pub use hit::Hit;
pub use inspection::{Entry, Inspection};
#[doc(hidden)]
pub use key::Short;
pub use lease::Held;
pub use limiter::{Limiter, Usage};
pub use policy::{Condition, Mode, Network, NetworkError, OnStoreError, Override, Policy};
pub use quota::Quota;
pub use receipt::Receipt;
#[cfg(feature = "redis")]
pub use store::redis::{Pending, Redis, Status, Unanswered};
pub use store::{
    Source, Store,
    memory::{Memory, Saved, Snapshot, SnapshotStatus},
};
pub use top::Ranked;

/// The examples of the repository's README are tests too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
