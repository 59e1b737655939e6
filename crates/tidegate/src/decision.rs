//! What was decided, and why: the answer of each policy, the strictest of them, and sentences about them. Sentences are
//! made when asked for; a decision itself is numbers and the policies' labels.

use std::{cmp::Ordering, fmt, time::Duration};

use crate::{
    Algorithm, Quota, Receipt, Source,
    algorithm::Verdict,
    lease::Lease,
    receipt::{Charged, Origin},
    set::Prepared,
    store::{Answer, Ask, Record, Records},
};

/// The answer to a hit: allowed or not, with an [`Outcome`] for each policy that applied.
///
/// ```
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::in_memory(Quota::per_minute(1));
/// assert!(limiter.check("user:42").is_allowed());
/// let decision = limiter.check("user:42");
/// assert!(!decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(0));
/// assert!(decision.explain().to_string().starts_with("denied: policy `default` has 1 of 1 used for key `user:42`"));
/// ```
#[derive(Clone)]
#[must_use = "a decision says whether to go on"]
pub struct Decision {
    /// One policy is the usual case: it makes a decision small enough to hand around, and needs no allocation.
    first: Option<Record>,
    more: Option<Box<[Record]>>,
    allowed: bool,
    receipt_taken: bool,
}

impl Decision {
    /// The decision of the only policy that applied.
    #[inline(always)]
    pub(crate) fn one(prepared: &Prepared, ask: Ask, answer: Answer) -> Self {
        let allowed = !ask.enforced || answer.verdict == Verdict::Allowed;
        let record = Record { ask, limit: prepared.plan(ask.plan).capacity, answer, label: prepared.label(ask.plan) };
        Self { first: Some(record), more: None, allowed, receipt_taken: false }
    }

    /// The decision of any number of policies.
    pub(crate) fn new(mut records: Records) -> Self {
        records.sort_unstable_by_key(|record| record.ask.policy);
        let allowed = records.iter().all(|record| record.answer.verdict == Verdict::Allowed || !record.ask.enforced);
        let mut records = records.into_iter();
        Self { first: records.next(), more: (records.len() > 0).then(|| records.collect()), allowed, receipt_taken: false }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn set_source(&mut self, source: Source) {
        self.first.iter_mut().chain(self.more.iter_mut().flatten()).for_each(|record| record.answer.source = source);
    }

    /// Denies what was not charged: it has to wait this many microseconds at least, behind others.
    #[cfg(feature = "waiting")]
    pub(crate) fn deny(&mut self, wait: u64) {
        for record in self.first.iter_mut().chain(self.more.iter_mut().flatten()).filter(|record| record.ask.enforced) {
            match &mut record.answer.verdict {
                Verdict::Denied { retry_after } => *retry_after = wait.max(*retry_after),
                verdict @ Verdict::Allowed => *verdict = Verdict::Denied { retry_after: wait },
                Verdict::Never => {}
            }
        }
        self.allowed = false;
    }

    /// The leases that it gave.
    pub(crate) fn leases(&self) -> Vec<Lease> {
        let given = |Record { ask, answer, label, .. }: &Record| {
            let gave = label.algorithm == Algorithm::Concurrency && answer.charged.cost > 0;
            gave.then(|| Lease::new(label.name(), ask.key, ask.cost))
        };
        self.records().filter_map(given).collect()
    }

    /// How long a hit has to wait for rates alone, in microseconds.
    #[cfg(feature = "waiting")]
    pub(crate) fn rates_wait(&self) -> u64 {
        let wait = |record: &Record| match record.answer.verdict {
            Verdict::Denied { retry_after } if record.ask.enforced && record.label.algorithm != Algorithm::Concurrency => {
                retry_after
            }
            _ => 0,
        };
        self.records().map(wait).max().unwrap_or(0)
    }

    /// Whether a policy of leases denies it.
    #[cfg(feature = "waiting")]
    pub(crate) fn lacks_places(&self) -> bool {
        let lacks =
            |record: &Record| record.answer.verdict != Verdict::Allowed && record.label.algorithm == Algorithm::Concurrency;
        self.records().any(lacks)
    }

    #[cfg(feature = "waiting")]
    pub(crate) fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.records().map(|record| &record.ask)
    }

    #[inline]
    fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.first.as_slice().iter().chain(self.more.as_deref().unwrap_or_default())
    }

    /// Whether the hit may go on.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// One outcome for each policy that applied, shadow policies included, in the order of the policies.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome<'_>> {
        self.records().map(|record| Outcome { record })
    }

    /// The outcome that matters most: of the denials the one with the longest wait; where there are none, the one with the least left, of
    /// several the one of the lowest limit. Nothing where no enforced policy applied.
    pub fn strictest(&self) -> Option<Outcome<'_>> {
        self.outcomes().filter(|outcome| !outcome.is_shadow()).min_by(Outcome::by_strictness)
    }

    /// How long to wait: the longest of the denials. Nothing where the hit was allowed or where no wait helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.strictest().and_then(|outcome| outcome.retry_after())
    }

    /// What is left by all enforced policies: so much, asked for now and alone, is allowed. Nothing where none applied.
    pub fn remaining(&self) -> Option<u64> {
        self.outcomes().filter(|outcome| !outcome.is_shadow()).map(|outcome| outcome.remaining()).min()
    }

    /// The proof of what was charged, for [`crate::Limiter::refund`] and [`crate::Limiter::settle`]. There is one, once:
    /// nothing where nothing was charged or where it was taken before.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        // What several keys share is not one key's to give back.
        // A lease is released by its name.
        let charged = self.records().filter(|Record { answer, label, .. }| {
            answer.charged.cost > 0 && answer.source != Source::Overflow && label.algorithm != Algorithm::Concurrency
        });
        let proof = |Record { ask, answer, label, .. }: &Record| Charged {
            policy: label.name().to_owned(),
            algorithm: label.algorithm,
            key: ask.key,
            terms: label.terms,
            at: answer.charged.at,
            cost: answer.charged.cost,
        };
        let local = charged.clone().any(|record| record.answer.source == Source::Fallback);
        let origin = if local { Origin::Local } else { Origin::Store };
        let charges: Vec<Charged> = charged.map(proof).collect();
        let first = !std::mem::replace(&mut self.receipt_taken, true);
        (first && !charges.is_empty()).then(|| Receipt::new(origin, charges))
    }

    /// The same, with what `newer` says of the keys that both are about: how all of them stand after a refund or a settlement, which tells only
    /// of what it has corrected.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Policy, Quota};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("rate", Quota::per_minute(10)))
    ///     .policy(Policy::concurrency("at-once", 3, Duration::from_secs(60)))
    ///     .build()?;
    /// let mut decision = limiter.check("user:42");
    /// let refunded = limiter.refund(decision.take_receipt().expect("it was charged"));
    /// let left: Vec<u64> = decision.updated(&refunded).outcomes().map(|outcome| outcome.remaining()).collect();
    /// assert_eq!(left, [10, 2]);
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    pub fn updated(&self, newer: &Self) -> Self {
        let mut updated = self.clone();
        for record in updated.first.iter_mut().chain(updated.more.iter_mut().flatten()) {
            let same = |newer: &&Record| newer.ask.key == record.ask.key && newer.label.name() == record.label.name();
            if let Some(newer) = newer.records().find(same) {
                *record = *newer;
            }
        }
        updated
    }

    /// One sentence: which policy denied which key, how much was used, and when to come back.
    pub fn explain(&self) -> impl fmt::Display {
        struct Sentence<'d>(&'d Decision);
        impl fmt::Display for Sentence<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0.strictest() {
                    Some(outcome) => outcome.explain().fmt(f),
                    None => f.write_str("allowed: no policy applies"),
                }
            }
        }
        Sentence(self)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("allowed", &self.allowed)
            .field("outcomes", &self.outcomes().collect::<Vec<_>>())
            .finish()
    }
}

/// What one policy answered.
#[derive(Clone, Copy)]
pub struct Outcome<'d> {
    record: &'d Record,
}

impl<'d> Outcome<'d> {
    /// Whether this policy allowed the hit, or would have.
    pub fn is_allowed(&self) -> bool {
        self.record.answer.verdict == Verdict::Allowed
    }

    /// Whether the policy only watches.
    pub fn is_shadow(&self) -> bool {
        !self.record.ask.enforced
    }

    /// The policy's name.
    pub fn policy(&self) -> &'d str {
        self.record.label.name()
    }

    /// The same as bytes, which takes no look at each of them: for who writes many.
    #[inline]
    pub fn policy_bytes(&self) -> &'d [u8] {
        self.record.label.name_bytes()
    }

    /// The policy's algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.record.label.algorithm
    }

    /// The key, printable: unusual bytes are escaped, long ids are a digest.
    pub fn key(&self) -> impl fmt::Display + use<'d> {
        self.record.ask.key.display(usize::from(self.record.label.attributes))
    }

    /// Appends the key as it is printed, which takes no formats: for who writes many.
    pub fn append_key_to(&self, text: &mut Vec<u8>) {
        self.record.ask.key.append_shown(usize::from(self.record.label.attributes), text);
    }

    /// The quota in force for this key.
    pub fn quota(&self) -> Quota {
        self.record.label.quota
    }

    /// The most that can be taken at once: the limit of a window, the burst of a bucket. 0 for a blocked key.
    pub fn limit(&self) -> u64 {
        self.record.limit
    }

    /// How much of the limit is taken, this hit included if it was charged. Above the limit after a charge or after
    /// the limit was lowered.
    pub fn used(&self) -> u64 {
        self.record.answer.used
    }

    /// What is left: so much, asked for now and alone, is allowed, and no more.
    pub fn remaining(&self) -> u64 {
        self.record.limit.saturating_sub(self.record.answer.used)
    }

    /// The cost that this policy weighed.
    pub fn cost(&self) -> u64 {
        match self.record.label.algorithm {
            // It is the number of a lease.
            Algorithm::Concurrency => self.record.ask.cost.min(1),
            _ => self.record.ask.cost,
        }
    }

    /// The cost that was charged: 0 where the hit was denied, by this policy or another.
    pub fn charged(&self) -> u64 {
        self.record.answer.charged.cost
    }

    /// Waiting exactly this long succeeds if nobody else comes. Nothing where the hit was allowed, or where no wait
    /// helps because the cost is above the limit or the key is blocked.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.record.answer.verdict {
            Verdict::Denied { retry_after } => Some(Duration::from_micros(retry_after)),
            Verdict::Allowed | Verdict::Never => None,
        }
    }

    /// Whether no wait would help.
    pub fn is_hopeless(&self) -> bool {
        self.record.answer.verdict == Verdict::Never
    }

    /// How long until the key is as if it had never been seen, if nobody comes.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.record.answer.reset_after)
    }

    /// Who answered.
    pub fn source(&self) -> Source {
        self.record.answer.source
    }

    fn by_strictness(&self, other: &Self) -> Ordering {
        let wait = |outcome: &Self| match outcome.record.answer.verdict {
            Verdict::Allowed => 0,
            Verdict::Denied { retry_after } => retry_after,
            Verdict::Never => u64::MAX,
        };
        let left = |outcome: &Self| (outcome.remaining(), outcome.limit());
        wait(other).cmp(&wait(self)).then_with(|| left(self).cmp(&left(other)))
    }

    /// One sentence about this outcome.
    pub fn explain(&self) -> impl fmt::Display + use<'d> {
        struct Sentence<'d>(Outcome<'d>);
        impl fmt::Display for Sentence<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let outcome = &self.0;
                let (policy, key, limit, used) = (outcome.policy(), outcome.key(), outcome.limit(), outcome.used());
                let reset = outcome.reset_after();
                let verb = match (outcome.is_shadow(), outcome.is_allowed()) {
                    (false, true) => "allowed",
                    (false, false) => "denied",
                    (true, true) => "would be allowed",
                    (true, false) => "would be denied",
                };
                match outcome.record.answer.verdict {
                    _ if limit == 0 => write!(f, "{verb}: policy `{policy}` blocks key `{key}`"),
                    Verdict::Allowed => {
                        let left = outcome.remaining();
                        write!(f, "{verb}: policy `{policy}` has {left} of {limit} left for key `{key}`, all of it in {reset:?}")
                    }
                    Verdict::Denied { retry_after } => {
                        let wait = Duration::from_micros(retry_after);
                        write!(f, "{verb}: policy `{policy}` has {used} of {limit} used for key `{key}`, come back in {wait:?}")
                    }
                    Verdict::Never => {
                        let cost = outcome.cost();
                        write!(f, "{verb}: policy `{policy}` never allows a cost of {cost} for key `{key}`, its limit is {limit}")
                    }
                }?;
                match outcome.source() {
                    Source::Store => Ok(()),
                    Source::Overflow => f.write_str(" (shared with other new keys: the store is full)"),
                    Source::DenyCache => f.write_str(" (the store said so before)"),
                    Source::Fallback => f.write_str(" (decided here: the store does not answer)"),
                }
            }
        }
        Sentence(*self)
    }
}

impl fmt::Debug for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("policy", &self.policy())
            .field("key", &format_args!("{}", self.key()))
            .field("limit", &self.limit())
            .field("used", &self.used())
            .field("allowed", &self.is_allowed())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("source", &self.source())
            .finish()
    }
}
