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

    /// How many took no longer than a time, and longer than the one before, in steps of 1, 2 and 5: from the first that any took to the
    /// last.
    pub fn histogram(&self) -> Vec<(Duration, u64)> {
        let steps = (3..).flat_map(|power| [1, 2, 5].map(|step| step * 10_u64.pow(power)));
        let mut recorded = self.waits.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).peekable();
        let mut buckets = Vec::new();
        for most in steps {
            let mut count = 0;
            while let Some((_, more)) = recorded.next_if(|(nanos, _)| *nanos <= most) {
                count += more;
            }
            if count > 0 || !buckets.is_empty() {
                buckets.push((Duration::from_nanos(most), count));
            }
            if recorded.peek().is_none() {
                return buckets;
            }
        }
        unreachable!("there are times without end")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_all_in_steps() {
        let mut tally = Tally::default();
        assert_eq!(tally.histogram(), []);
        for micros in [3, 4, 15, 15, 400, 3_600_000_000] {
            tally.answered(Ok(Verdict::Allowed), Duration::from_micros(micros));
        }
        let buckets = tally.histogram();
        let micros = |micros| Duration::from_micros(micros);
        let first = [(5, 2), (10, 0), (20, 2), (50, 0), (100, 0), (200, 0), (500, 1), (1000, 0)];
        assert_eq!(buckets[..8], first.map(|(most, count)| (micros(most), count)));
        assert_eq!(buckets.last(), Some(&(Duration::from_secs(5000), 1)));
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 6);
    }
}
