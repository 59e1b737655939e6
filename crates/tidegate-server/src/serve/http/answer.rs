//! Decisions as answers: JSON, a status, headers. Times are rounded here, and up.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{HeaderMap, Response, StatusCode, header, http::HeaderValue};
use schemars::JsonSchema;
use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use tidegate::{Decision, Outcome, Receipt};
use tidegate_tower::{Dialect, PROBLEM_JSON, Refusal};

use super::{Body, problem::Problem};
use crate::serve::gate::Told;

/// A decision.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(crate) struct DecisionBody<'d> {
    /// Whether to go on.
    allowed: bool,
    /// The policy that matters most: of the denials the one with the longest wait, else the one with the least left. Null where none
    /// applies, as are `limit`, `remaining` and `source`.
    policy: Option<&'d str>,
    /// The most that it allows at once.
    limit: Option<u64>,
    /// What is left of that.
    remaining: Option<u64>,
    /// How long to wait until the same is allowed, if nobody else comes: 0 where it is allowed, null where no wait helps.
    retry_after_ms: Option<u64>,
    /// How long until all of the limit is there again.
    reset_after_ms: u64,
    /// Who answered.
    #[schemars(extend("enum" = ["store", "overflow", "deny-cache", "fallback", null]))]
    source: Option<&'static str>,
    /// The proof of what was charged, for refunds and settlements; null where nothing was.
    #[schemars(with = "Option<String>")]
    receipt: Option<Shown<Receipt>>,
    /// The lease that was taken, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'d str>,
    /// What each policy answered that applies, in the order of the policies.
    #[schemars(with = "Vec<OutcomeBody<'_>>")]
    outcomes: Outcomes<'d>,
}

/// What one policy answered.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Outcome")]
pub(crate) struct OutcomeBody<'d> {
    /// The policy.
    policy: &'d str,
    /// The key, printable: a long one is a digest.
    #[schemars(with = "String")]
    key: Shown<KeyText<'d>>,
    /// Whether it allows the hit, or would.
    allowed: bool,
    /// Whether it only watches.
    shadow: bool,
    /// The most that it allows at once; 0 for a key that is blocked.
    limit: u64,
    /// What is left of that.
    remaining: u64,
    /// What it has charged.
    charged: u64,
    /// As of the decision.
    retry_after_ms: Option<u64>,
    /// As of the decision.
    reset_after_ms: u64,
    /// Who answered.
    #[schemars(extend("enum" = ["store", "overflow", "deny-cache", "fallback"]))]
    source: &'static str,
}

/// The decisions of several hits, in their order; a problem where the store did not answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Decisions")]
pub(crate) struct BatchAnswer<'d> {
    decisions: Vec<BatchItem<'d>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BatchItem<'d> {
    Decision(DecisionBody<'d>),
    Problem(Problem),
}

impl<'d> BatchItem<'d> {
    fn new(told: &'d Told, receipt: Option<Receipt>) -> Self {
        match told {
            Ok(decision) => Self::Decision(DecisionBody::new(decision, receipt, None)),
            Err(error) => Self::Problem(error.clone().into()),
        }
    }
}

/// Whether a lease is held.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Renewal")]
pub(crate) struct Renewed {
    /// True: it lasts for another time to live.
    pub(crate) held: bool,
}

/// Whether a lease was ended.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ending")]
pub(crate) struct Released {
    /// False where it was not held.
    pub(crate) released: bool,
}

impl<'d> DecisionBody<'d> {
    fn new(decision: &'d Decision, receipt: Option<Receipt>, lease: Option<&'d str>) -> Self {
        let strictest = decision.strictest();
        let strictest = strictest.as_ref();
        Self {
            allowed: decision.is_allowed(),
            policy: strictest.map(Outcome::policy),
            limit: strictest.map(Outcome::limit),
            remaining: strictest.map(Outcome::remaining),
            retry_after_ms: strictest.map_or(Some(0), wait),
            reset_after_ms: strictest.map_or(0, |outcome| millis(outcome.reset_after())),
            source: strictest.map(|outcome| outcome.source().name()),
            receipt: receipt.map(Shown),
            lease: lease.filter(|_| decision.is_allowed()),
            outcomes: Outcomes(decision),
        }
    }
}

fn wait(outcome: &Outcome<'_>) -> Option<u64> {
    if outcome.is_allowed() { Some(0) } else { outcome.retry_after().map(millis) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

struct Outcomes<'d>(&'d Decision);

impl Serialize for Outcomes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for outcome in self.0.outcomes() {
            list.serialize_element(&OutcomeBody {
                policy: outcome.policy(),
                key: Shown(KeyText(outcome)),
                allowed: outcome.is_allowed(),
                shadow: outcome.is_shadow(),
                limit: outcome.limit(),
                remaining: outcome.remaining(),
                charged: outcome.charged(),
                retry_after_ms: wait(&outcome),
                reset_after_ms: millis(outcome.reset_after()),
                source: outcome.source().name(),
            })?;
        }
        list.end()
    }
}

struct KeyText<'d>(Outcome<'d>);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.key().fmt(f)
    }
}

/// Written into the answer as it is shown, without a text in between.
struct Shown<T>(T);

impl<T: fmt::Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// What a decision means for the status.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// 429.
    Refuses,
    /// It was only asked what is, or what has been is recorded.
    Informs,
}

/// The answer to one hit.
pub(crate) fn decision(told: Told, denial: Denial, lease: Option<&str>, dialect: Dialect) -> Response<Body> {
    let mut decision = match told {
        Ok(decision) => decision,
        Err(error) => return Problem::from(error).response(),
    };
    if denial == Denial::Refuses && !decision.is_allowed() {
        return denied(decision, dialect);
    }
    let receipt = decision.take_receipt();
    let mut body = Vec::with_capacity(640);
    write(&mut body, &DecisionBody::new(&decision, receipt, lease));
    let mut response = json_response(body);
    tell(&decision, dialect, response.headers_mut());
    response
}

/// A denial: a problem, and the decision.
pub(crate) fn denied(decision: Decision, dialect: Dialect) -> Response<Body> {
    let refusal = Refusal::Denied(Box::new(decision));
    let mut body = refusal.body().into_bytes();
    // The members of one object and those of another.
    if let (Some(b'}'), Some(decision)) = (body.pop(), refusal.decision()) {
        let at = body.len();
        write(&mut body, &DecisionBody::new(decision, None, None));
        body[at] = b',';
    }
    let mut response = json_response(body);
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if let Some(decision) = refusal.decision() {
        tell(decision, dialect, headers);
    }
    response
}

/// The answers to several hits.
pub(crate) fn batch(mut told: Vec<Told>) -> Response<Body> {
    let receipts: Vec<_> = told.iter_mut().map(|told| told.as_mut().ok().and_then(Decision::take_receipt)).collect();
    json(&BatchAnswer { decisions: told.iter().zip(receipts).map(|(told, receipt)| BatchItem::new(told, receipt)).collect() })
}

/// Any other answer.
pub(crate) fn json(answer: &impl Serialize) -> Response<Body> {
    let mut body = Vec::new();
    write(&mut body, answer);
    json_response(body)
}

/// The headers that tell of a decision.
pub(crate) fn tell(decision: &Decision, dialect: Dialect, headers: &mut HeaderMap) {
    dialect.each(decision, |name, value| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    });
}

fn write(body: &mut Vec<u8>, answer: &impl Serialize) {
    serde_json::to_writer(body, answer).expect("texts and numbers, into memory");
}

fn json_response(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::from(Bytes::from(body)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
