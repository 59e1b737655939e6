//! Where every decision of every front end passes, once: what is counted, logged or kept of decisions hangs here.

use std::time::Instant;

use tidegate::{Decision, Hit, StoreError};

use super::{decision_log::DecisionLog, denials::Denials, metrics::Metrics, note::Note, traces::Traces};

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrontEnd {
    /// JSON over HTTP.
    Http,
    /// A proxy that asks before it passes a request on.
    ForwardAuth,
}

impl FrontEnd {
    /// All, in the order of their numbers: each is counted by itself.
    pub(crate) const ALL: [Self; 2] = [Self::Http, Self::ForwardAuth];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::ForwardAuth => "forward-auth",
        }
    }
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

impl Asked {
    /// The name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Settle => "settle",
            Self::Acquire => "acquire",
        }
    }
}

/// What has been decided so far.
pub struct Recorder {
    pub(crate) metrics: Metrics,
    pub(crate) denials: Denials,
    pub(crate) log: DecisionLog,
    pub(crate) traces: Traces,
    times: Times,
}

/// Whether it is worth knowing how long decisions take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// It takes longer to read a clock.
    Ignored,
    Measured,
}

/// How many hits were decided, and how: checks and acquisitions, whatever they cost, and no peeks, charges and corrections.
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
    pub(crate) fn new(metrics: Metrics, log: DecisionLog, traces: Traces, times: Times) -> Self {
        Self { metrics, denials: Denials::default(), log, traces, times }
    }

    /// When a decision began, where that matters.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Instant> {
        (self.times == Times::Measured).then(Instant::now)
    }

    /// Takes note of a decision. The hit is of no account where a receipt is what was asked with.
    #[inline]
    pub(crate) fn decided(
        &self,
        front_end: FrontEnd,
        asked: Asked,
        hit: &Hit<'_>,
        began: Option<Instant>,
        told: &Result<Decision, StoreError>,
    ) {
        self.traces.decided(front_end, asked, told);
        if !matches!(asked, Asked::Check | Asked::Acquire) {
            return;
        }
        self.metrics.decided(front_end, told);
        if let Some(began) = began {
            self.metrics.took(began.elapsed());
        }
        let note = || Note::new(front_end, asked, told);
        let is_denied = told.as_ref().is_ok_and(|decision| !decision.is_allowed());
        if is_denied {
            self.denials.push(|| note().of(hit));
        }
        self.log.decided(is_denied || told.is_err(), note);
    }

    /// How many so far.
    pub fn totals(&self) -> Totals {
        let [allowed, denied, failed] = self.metrics.totals();
        Totals { allowed, denied, failed }
    }
}
