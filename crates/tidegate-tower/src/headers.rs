//! What a decision is in HTTP's headers: the dialects. Names and values, for whatever map they go into; numbers are rounded here, and
//! up: a wait that is cut short is a wait in vain.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderName, header::RETRY_AFTER};
use tidegate::{Algorithm, Decision, Outcome};

pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The limit, what remains, and when it is all there again. Constants, which are copied from where they lie: a clone is written in small
/// pieces, and then slow to copy.
pub(crate) const DRAFT_06: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
pub(crate) const X_RATELIMIT: [HeaderName; 3] = [
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
        match self {
            Self::Draft => {
                list(decision, |value, outcome| value.policy(outcome), |value| put(RATELIMIT_POLICY, value));
                list(decision, |value, outcome| value.state(outcome), |value| put(RATELIMIT, value));
            }
            Self::Draft06 | Self::XRateLimit(_) => {
                let names = if *self == Self::Draft06 { DRAFT_06 } else { X_RATELIMIT };
                for (name, number) in names.into_iter().zip(strictest(*self, decision).into_iter().flatten()) {
                    put(name, Value::new(&mut [0; DIGITS]).number(number).written());
                }
            }
            Self::None => {}
        }
        if let Some(wait) = retry_after(decision) {
            put(RETRY_AFTER, Value::new(&mut [0; DIGITS]).number(wait).written());
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

/// The most digits of a number in a header: an integer of Structured Fields has no more.
pub(crate) const DIGITS: usize = 15;
const CONCURRENT: &[u8] = br#";qu="concurrent-requests""#;
/// The longest member of a list: a comma, a name of 47 bytes in quotes, a number and what follows it.
pub(crate) const MEMBER: usize = 2 + (47 + 2) + (3 + DIGITS) + CONCURRENT.len();

/// A header's value in the making. Each request has a few: there is room for all of it, and formatting takes many times as long.
pub(crate) struct Value<'r> {
    room: &'r mut [u8],
    length: usize,
}

impl<'r> Value<'r> {
    pub(crate) fn new(room: &'r mut [u8]) -> Self {
        Self { room, length: 0 }
    }

    pub(crate) fn written(&self) -> &[u8] {
        &self.room[..self.length]
    }

    #[inline]
    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.room[self.length..][..text.len()].copy_from_slice(text);
        self.length += text.len();
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        let number = number.min(10_u64.pow(DIGITS as u32) - 1);
        self.text(itoa::Buffer::new().format(number).as_bytes())
    }

    /// The beginning of a list's member: a policy's name, which has nothing that would have to be escaped.
    fn member(&mut self, outcome: &Outcome<'_>) -> &mut Self {
        if self.length > 0 {
            self.text(b", ");
        }
        self.text(b"\"").text(outcome.policy_bytes()).text(b"\"")
    }

    pub(crate) fn policy(&mut self, outcome: &Outcome<'_>) {
        self.member(outcome).text(b";q=").number(outcome.limit());
        match outcome.algorithm() {
            Algorithm::Concurrency => self.text(CONCURRENT),
            _ => self.text(b";w=").number(seconds(window(outcome))),
        };
    }

    pub(crate) fn state(&mut self, outcome: &Outcome<'_>) {
        self.member(outcome).text(b";r=").number(outcome.remaining());
        if outcome.algorithm() != Algorithm::Concurrency {
            self.text(b";t=").number(seconds(until(outcome)));
        }
    }
}

/// The outcomes that are told of.
#[inline]
pub(crate) fn told(decision: &Decision) -> impl Iterator<Item = Outcome<'_>> {
    decision.outcomes().filter(|outcome| !outcome.is_shadow())
}

/// What is made of a list with a member for each outcome that is told of, if there are any.
#[inline]
pub(crate) fn list<T>(
    decision: &Decision,
    write: impl Fn(&mut Value<'_>, &Outcome<'_>),
    then: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    let (mut few, mut many) = ([0; 2 * MEMBER], Vec::new());
    let room = match told(decision).count() {
        0 => return None,
        1 | 2 => &mut few[..],
        members => {
            many.resize(MEMBER * members, 0);
            &mut many[..]
        }
    };
    let mut value = Value::new(room);
    told(decision).for_each(|outcome| write(&mut value, &outcome));
    Some(then(value.written()))
}

/// The numbers of a dialect that tells of the strictest policy alone, if there is one.
#[inline]
pub(crate) fn strictest(dialect: Dialect, decision: &Decision) -> Option<[u64; 3]> {
    let outcome = decision.strictest()?;
    let until = until(&outcome);
    let reset = match dialect {
        Dialect::XRateLimit(Reset::Epoch) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + until,
        _ => until,
    };
    Some([outcome.limit(), outcome.remaining(), seconds(reset)])
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
