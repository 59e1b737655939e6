//! What is counted of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Verdict;

/// What became of the hits of a run.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Allowed.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Not decided: the target refused to, or the connection broke.
    pub failed: u64,
    /// Not answered when the run was over. By a schedule, those that nobody was free to send are among them.
    pub unanswered: u64,
    /// Sent more than a millisecond late though a connection was free: the generator's own fault.
    pub late: u64,
    /// What was said of the first that failed.
    pub first_error: Option<String>,
    /// How long decisions took, and how long what was not answered had waited.
    waits: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        // Nanoseconds up to an hour, by 1 %.
        let waits = Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("bounds are right");
        Self { allowed: 0, denied: 0, failed: 0, unanswered: 0, late: 0, first_error: None, waits }
    }
}

impl Tally {
    /// How many decisions there were.
    pub fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Within what time this share of the decisions was there: 0.5 for the median, 1.0 for all.
    pub fn latency(&self, share: f64) -> Duration {
        Duration::from_nanos(self.waits.value_at_quantile(share))
    }

    /// What has been added to an earlier state of this.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut waits = self.waits.clone();
        waits.subtract(&earlier.waits).expect("it was the same before");
        Self {
            allowed: self.allowed - earlier.allowed,
            denied: self.denied - earlier.denied,
            failed: self.failed - earlier.failed,
            unanswered: self.unanswered - earlier.unanswered,
            late: self.late - earlier.late,
            first_error: self.first_error.clone(),
            waits,
        }
    }

    pub(crate) fn answered(&mut self, told: Result<Verdict, String>, waited: Duration) {
        match told {
            Ok(Verdict::Allowed) => self.allowed += 1,
            Ok(Verdict::Denied) => self.denied += 1,
            Err(error) => {
                self.failed += 1;
                self.first_error.get_or_insert(error);
                return;
            }
        }
        self.waited(waited);
    }

    pub(crate) fn unanswered(&mut self, waited: Duration) {
        self.unanswered += 1;
        self.waited(waited);
    }

    fn waited(&mut self, waited: Duration) {
        self.waits.saturating_record(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.failed += other.failed;
        self.unanswered += other.unanswered;
        self.late += other.late;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.waits.add(&other.waits).expect("all have the same bounds");
    }
}
