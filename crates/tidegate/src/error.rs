//! What can be wrong with a configuration or a receipt. A denial is a decision and never appears here.

use std::{error, fmt, io, time::Duration};

use crate::Quota;

/// Why a quota is refused; the message says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// A limit or burst of 0, or above [`Quota::MAX`].
    Amount {
        /// `limit` or `burst`.
        what: &'static str,
        /// The number that was given.
        value: u64,
    },
    /// A window outside [`Quota::MIN_WINDOW`] to [`Quota::MAX_WINDOW`].
    Window(Duration),
    /// A window that is not whole microseconds.
    Precision(Duration),
    /// A text that is no quota.
    Syntax(String),
    /// A unit nobody knows.
    Unit(String),
    /// A burst on an algorithm that has none.
    BurstOnWindow,
    /// The rate cannot be kept within 1 % by an interval of whole microseconds.
    Interval(Quota),
    /// The burst takes longer to refill than any limiter will run.
    Refill(Quota),
    /// A resolution outside 1 to [`crate::Policy::MAX_RESOLUTION`].
    Resolution(u32),
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount { what, value } => write!(f, "a {what} of {value} is not allowed; use 1 to {}", Quota::MAX),
            Self::Window(window) => write!(f, "a window of {window:?} is not allowed; use 1ms to 366 days"),
            Self::Precision(window) => write!(f, "a window of {window:?} is not allowed; use whole microseconds"),
            Self::Syntax(text) => {
                write!(
                    f,
                    "`{text}` is not a quota; write for example `100/min`, `10/s burst 20`, `5000 per day`, `20/10s` or `1/250ms`"
                )
            }
            Self::Unit(unit) => write!(f, "`{unit}` is not a unit of time; use ms, s, min, hour, day or week"),
            Self::BurstOnWindow => {
                f.write_str("a burst needs the algorithm token-bucket or gcra; a window allows its limit at once")
            }
            Self::Interval(quota) => write!(
                f,
                "gcra spaces requests by whole microseconds, which would keep `{quota}` more than 1 % too low; use token-bucket, which is exact"
            ),
            Self::Refill(quota) => write!(f, "the burst of `{quota}` would take over 100 years to refill; use a smaller burst"),
            Self::Resolution(n) => {
                write!(f, "a resolution of {n} is not allowed; use 1 to {} grains per window", crate::Policy::MAX_RESOLUTION)
            }
        }
    }
}

impl error::Error for QuotaError {}

/// Why a set of policies is refused. Nothing has changed when this is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A name that is empty, longer than 47 bytes, or has other bytes than `a-z A-Z 0-9 - _ .`.
    Name(String),
    /// Two policies of one name.
    Duplicate(String),
    /// No policy of this name.
    Unknown(String),
    /// A policy whose quota, or the quota of one of its overrides, does not fit its algorithm.
    Quota {
        /// The policy.
        policy: String,
        /// What is wrong.
        error: QuotaError,
    },
    /// Anything else about one policy.
    Policy {
        /// The policy.
        policy: String,
        /// What is wrong, and what to write instead.
        problem: &'static str,
    },
    /// More than 65 535 policies, or different quotas among one policy's overrides.
    TooMany(&'static str),
    /// A name that no time zone has.
    Zone(String),
    /// No address of a store, or certificates that are none. It is not shown: it may hold a password.
    Address,
    /// A limiter on a store that is elsewhere, built outside of a tokio runtime.
    Runtime,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                write!(f, "`{}` cannot name a policy; use 1 to 47 of a-z A-Z 0-9 - _ .", name.escape_default())
            }
            Self::Duplicate(name) => write!(f, "two policies are named `{name}`; give each its own name"),
            Self::Unknown(name) => write!(f, "no policy is named `{}`", name.escape_default()),
            Self::Quota { policy, error } => write!(f, "policy `{policy}`: {error}"),
            Self::Policy { policy, problem } => write!(f, "policy `{policy}`: {problem}"),
            Self::TooMany(what) => write!(f, "more than 65535 {what}"),
            Self::Zone(name) => {
                let name = name.escape_default();
                write!(f, "`{name}` is not a time zone; write an IANA name, such as UTC or Europe/Berlin")
            }
            Self::Address => f.write_str(
                "not the address of a store, or not its certificates; write redis://host:port/, rediss://host:port/ or unix:///path",
            ),
            Self::Runtime => f.write_str("a limiter on Redis connects in the background: build it inside a tokio runtime"),
        }
    }
}

impl error::Error for ConfigError {}

/// Why a store that is elsewhere has not answered. Decisions have it only where a policy says so
/// ([`OnStoreError::Error`](crate::OnStoreError::Error)); the other ways to ask a store always do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline. Whether the hit was charged is not known.
    Timeout,
    /// No connection.
    Down,
    /// More hits are waiting than can be decided in time.
    Full,
    /// The server has refused, and this is the word by which it says why: `OOM`, `WRONGTYPE`, `NOPERM`...
    Refused(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("the store has not answered within the deadline"),
            Self::Down => f.write_str("there is no connection to the store"),
            Self::Full => f.write_str("too many hits are waiting for the store"),
            Self::Refused(code) => write!(f, "the store has refused: {code}"),
        }
    }
}

impl error::Error for StoreError {}

#[cfg(feature = "redis")]
impl StoreError {
    /// An answer that is none of our script's.
    pub(crate) fn unreadable() -> Self {
        Self::Refused("unreadable".to_owned())
    }
}

/// Why a snapshot was not written or not read. A limiter that could not read one starts with nothing counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file system has refused.
    Io(io::ErrorKind),
    /// Not a snapshot.
    Foreign,
    /// A snapshot of a version that is not known here, written by a later release.
    Version(u32),
    /// A snapshot that was cut short or changed.
    Damaged,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(kind) => write!(f, "the snapshot cannot be read or written: {kind}"),
            Self::Foreign => f.write_str("the file is not a snapshot"),
            Self::Version(version) => write!(f, "the snapshot is of version {version}, which is not known here"),
            Self::Damaged => f.write_str("the snapshot was cut short or changed"),
        }
    }
}

impl error::Error for SnapshotError {}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

/// A text that is not a receipt of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptError;

impl fmt::Display for ReceiptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a receipt; send back the exact text that a decision gave")
    }
}

impl error::Error for ReceiptError {}
