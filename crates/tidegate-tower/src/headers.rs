//! What a decision is in HTTP's headers: the dialects. Names and values, for whatever map they go into; numbers are rounded here, and
//! up: a wait that is cut short is a wait in vain.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderName, header::RETRY_AFTER};
use smallvec::SmallVec;
use tidegate::{Algorithm, Decision, Outcome};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The limit, what remains, and when it is all there again.
const DRAFT_06: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// By which headers a response tells what is left.
///
/// ```
/// use tidegate::{Limiter, Quota};
/// use tidegate_tower::Dialect;
///
/// let decision = Limiter::in_memory(Quota::per_minute(100)).check("user:42");
/// let mut headers = Vec::new();
/// Dialect::Draft.each(&decision, |name, value| headers.push(format!("{name}: {}", value.escape_ascii())));
/// assert_eq!(headers, [r#"ratelimit-policy: \"default\";q=100;w=60"#, r#"ratelimit: \"default\";r=99;t=60"#]);
/// ```
///
/// Policies that only watch are never told of. `Retry-After`, in seconds, is on every denial that a wait can cure, whatever the dialect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit` of the current draft of the IETF, with one member for each policy.
    #[default]
    Draft,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` of the sixth draft: the strictest policy, seconds from now.
    Draft06,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`: the strictest policy.
    XRateLimit(Reset),
    /// Only `Retry-After`.
    None,
}

/// What `X-RateLimit-Reset` is: nobody has ever said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Seconds since the epoch, by this machine's clock.
    Epoch,
    /// Seconds from now.
    Delta,
}

impl Dialect {
    /// Each header that tells of a decision, [`Retry-After`](RETRY_AFTER) included.
    pub fn each(&self, decision: &Decision, mut put: impl FnMut(HeaderName, &[u8])) {
        let mut value = Value::new();
        match self {
            Self::Draft => {
                let told = || decision.outcomes().filter(|outcome| !outcome.is_shadow());
                told().for_each(|outcome| value.policy(&outcome));
                if !value.0.is_empty() {
                    put(RATELIMIT_POLICY, &value.0);
                    value.0.clear();
                    told().for_each(|outcome| value.state(&outcome));
                    put(RATELIMIT, &value.0);
                    value.0.clear();
                }
            }
            Self::Draft06 => value.strictest(decision, DRAFT_06, Reset::Delta, &mut put),
            Self::XRateLimit(reset) => value.strictest(decision, X_RATELIMIT, *reset, &mut put),
            Self::None => {}
        }
        if let Some(wait) = retry_after(decision) {
            value.number(wait);
            put(RETRY_AFTER, &value.0);
        }
    }
}

/// For how many whole seconds to wait: nothing where a decision allows, or where no wait helps.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::in_memory(Quota::new(1, Duration::from_millis(100))?);
/// assert_eq!(tidegate_tower::retry_after(&limiter.check("user:42")), None);
/// assert_eq!(tidegate_tower::retry_after(&limiter.check("user:42")), Some(1)); // never 0
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub fn retry_after(decision: &Decision) -> Option<u64> {
    if decision.is_allowed() { None } else { decision.retry_after().map(seconds) }
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Appends a number. Each request has a few of them, and formatting takes several times as long.
fn digits(text: &mut SmallVec<[u8; 128]>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return text.extend_from_slice(&digits[first..]);
        }
    }
}

/// A header's value in the making.
struct Value(SmallVec<[u8; 128]>);

impl Value {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    /// An integer of Structured Fields, which has 15 digits.
    fn number(&mut self, number: u64) {
        digits(&mut self.0, number.min(999_999_999_999_999));
    }

    fn parameter(&mut self, name: &[u8], number: u64) {
        self.0.extend_from_slice(name);
        self.number(number);
    }

    /// The beginning of a list's member: a policy's name, which has nothing that would have to be escaped.
    fn member(&mut self, outcome: &Outcome<'_>) {
        self.0.extend_from_slice(if self.0.is_empty() { b"\"" } else { b", \"" });
        self.0.extend_from_slice(outcome.policy().as_bytes());
        self.0.push(b'"');
    }

    fn policy(&mut self, outcome: &Outcome<'_>) {
        self.member(outcome);
        self.parameter(b";q=", outcome.limit());
        match outcome.algorithm() {
            Algorithm::Concurrency => self.0.extend_from_slice(br#";qu="concurrent-requests""#),
            _ => self.parameter(b";w=", seconds(window(outcome))),
        }
    }

    fn state(&mut self, outcome: &Outcome<'_>) {
        self.member(outcome);
        self.parameter(b";r=", outcome.remaining());
        if outcome.algorithm() != Algorithm::Concurrency {
            self.parameter(b";t=", seconds(until(outcome)));
        }
    }

    fn strictest(&mut self, decision: &Decision, names: [HeaderName; 3], reset: Reset, put: &mut impl FnMut(HeaderName, &[u8])) {
        let Some(outcome) = decision.strictest() else { return };
        let until = until(&outcome);
        let reset = match reset {
            Reset::Delta => until,
            Reset::Epoch => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + until,
        };
        for (name, number) in names.into_iter().zip([outcome.limit(), outcome.remaining(), seconds(reset)]) {
            self.number(number);
            put(name, &self.0);
            self.0.clear();
        }
    }
}

/// In what time all of the limit comes back: the window, or as long as a bucket takes to fill.
fn window(outcome: &Outcome<'_>) -> Duration {
    let (quota, limit) = (outcome.quota(), u128::from(outcome.limit()));
    if limit == 0 || limit == u128::from(quota.limit()) {
        return quota.window();
    }
    let micros = (quota.window().as_micros() * limit).div_ceil(u128::from(quota.limit()));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// How long until what is left is more: for who is denied, until it is enough.
fn until(outcome: &Outcome<'_>) -> Duration {
    outcome.retry_after().unwrap_or_else(|| outcome.reset_after())
}
