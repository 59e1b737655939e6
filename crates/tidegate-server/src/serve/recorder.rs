//! Where every decision of every front end passes, once: what is counted, logged or kept of decisions hangs here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate::{Decision, StoreError};

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrontEnd {
    /// JSON over HTTP.
    Http,
    /// A proxy that asks before it passes a request on.
    ForwardAuth,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asked {
    /// To decide, and to charge what is allowed.
    Check,
    /// To decide, and to charge nothing.
    Peek,
    /// To record a cost that has been incurred.
    Charge,
    /// To give back what a receipt proves.
    Refund,
    /// To correct what a receipt proves.
    Settle,
    /// To decide, and to give leases.
    Acquire,
}

/// What has been decided so far.
#[derive(Debug, Default)]
pub struct Recorder {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
}

/// How many hits were decided, and how. What charges nothing is not counted, nor is what corrects an earlier decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Allowed.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Not decided: the store did not answer, and a policy says that this is an error.
    pub failed: u64,
}

impl Recorder {
    /// Takes note of a decision.
    #[inline]
    pub(crate) fn decided(&self, _front_end: FrontEnd, asked: Asked, decision: &Result<Decision, StoreError>) {
        if !matches!(asked, Asked::Check | Asked::Acquire) {
            return;
        }
        let count = match decision {
            Ok(decision) if decision.is_allowed() => &self.allowed,
            Ok(_) => &self.denied,
            Err(_) => &self.failed,
        };
        count.fetch_add(1, Relaxed);
    }

    /// How many so far.
    pub fn totals(&self) -> Totals {
        Totals { allowed: self.allowed.load(Relaxed), denied: self.denied.load(Relaxed), failed: self.failed.load(Relaxed) }
    }
}
