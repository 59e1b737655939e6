//! Decisions as answers: JSON, a status, headers. Times are rounded here, and up.
//!
//! A decision is written straight into the bytes of its answer, the names of its fields as they are: to have them looked at for what must
//! be escaped takes longer than the decision. A test compares them with the document that is made of the types.

use std::time::Duration;

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::{Decision, Outcome, Receipt};
use tidegate_tower::{Dialect, PROBLEM_JSON, Refusal};

use super::{problem::Problem, seal::Seal};
use crate::serve::{gate::Told, http1::Response};

/// A decision.
#[derive(JsonSchema)]
#[schemars(rename = "Decision")]
pub(crate) struct DecisionBody<'d> {
    /// Whether to go on.
    allowed: bool,
    /// The policy that matters most: of the denials the one with the longest wait, else the one with the least left. Null where none
    /// applies, as are `limit`, `remaining` and `source`.
    #[schemars(with = "Option<String>")]
    policy: Option<Name<'d>>,
    /// The most that it allows at once.
    limit: Option<u64>,
    /// What is left of that.
    remaining: Option<u64>,
    /// How long to wait until the same is allowed, if nobody else comes: 0 where it is allowed, null where no wait helps.
    retry_after_ms: Option<u64>,
    /// How long until all of the limit is there again.
    reset_after_ms: u64,
    /// Who answered.
    #[schemars(with = "Option<String>", extend("enum" = ["store", "overflow", "deny-cache", "fallback", null]))]
    source: Option<Word>,
    /// The proof of what was charged, for refunds and settlements; null where nothing was.
    #[schemars(with = "Option<String>")]
    receipt: Option<Sealed<'d>>,
    /// The lease that was taken, where one was asked for and a policy of concurrency applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'d str>,
    /// What each policy answered that applies, in the order of the policies.
    #[schemars(with = "Vec<OutcomeBody<'_>>")]
    outcomes: &'d Decision,
}

/// What a denial tells beside the problem that it is and the decision.
#[derive(JsonSchema)]
#[schemars(rename = "Denial", rename_all = "kebab-case")]
#[expect(dead_code, reason = "what is written is `Refusal::body`")]
pub(crate) struct DenialBody {
    /// The policies that deny.
    violated_policies: Vec<String>,
    /// When to come back, in seconds; not there where no wait helps.
    #[schemars(with = "u64")]
    #[serde(default)]
    retry_after: Option<u64>,
}

/// What one policy answered.
#[derive(JsonSchema)]
#[schemars(rename = "Outcome")]
pub(crate) struct OutcomeBody<'d> {
    /// The policy.
    #[schemars(with = "String")]
    policy: Name<'d>,
    /// The key, printable: a long one is a digest.
    #[schemars(with = "String")]
    key: Outcome<'d>,
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
    #[schemars(with = "String", extend("enum" = ["store", "overflow", "deny-cache", "fallback"]))]
    source: Word,
}

/// The decisions of several hits, in their order; a problem where the store did not answer.
#[derive(JsonSchema)]
#[schemars(rename = "Decisions")]
pub(crate) struct BatchAnswer<'d> {
    decisions: Vec<BatchItem<'d>>,
}

#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BatchItem<'d> {
    Decision(DecisionBody<'d>),
    Problem(Problem),
}

impl<'d> BatchItem<'d> {
    fn new(told: &'d Told, receipt: Option<Sealed<'d>>) -> Self {
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
    fn new(decision: &'d Decision, receipt: Option<Sealed<'d>>, lease: Option<&'d str>) -> Self {
        let strictest = decision.strictest();
        let strictest = strictest.as_ref();
        Self {
            allowed: decision.is_allowed(),
            policy: strictest.map(Name::new),
            limit: strictest.map(Outcome::limit),
            remaining: strictest.map(Outcome::remaining),
            retry_after_ms: strictest.map_or(Some(0), wait),
            reset_after_ms: strictest.map_or(0, |outcome| millis(outcome.reset_after())),
            source: strictest.map(|outcome| Word(outcome.source().name())),
            receipt,
            lease: lease.filter(|_| decision.is_allowed()),
            outcomes: decision,
        }
    }

    fn write(&self, body: &mut Vec<u8>) {
        let Self { allowed, policy, limit, remaining, retry_after_ms, reset_after_ms, source, receipt, lease, outcomes } = self;
        member(body, r#"{"allowed":"#, *allowed);
        member(body, r#","policy":"#, *policy);
        member(body, r#","limit":"#, *limit);
        member(body, r#","remaining":"#, *remaining);
        member(body, r#","retry_after_ms":"#, *retry_after_ms);
        member(body, r#","reset_after_ms":"#, *reset_after_ms);
        member(body, r#","source":"#, *source);
        member(body, r#","receipt":"#, receipt.as_ref());
        if let Some(lease) = lease {
            member(body, r#","lease":"#, *lease);
        }
        body.extend_from_slice(br#","outcomes":["#);
        for (index, outcome) in outcomes.outcomes().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            OutcomeBody::new(outcome).write(body);
        }
        body.extend_from_slice(b"]}");
    }
}

impl<'d> OutcomeBody<'d> {
    fn new(outcome: Outcome<'d>) -> Self {
        Self {
            policy: Name::new(&outcome),
            allowed: outcome.is_allowed(),
            shadow: outcome.is_shadow(),
            limit: outcome.limit(),
            remaining: outcome.remaining(),
            charged: outcome.charged(),
            retry_after_ms: wait(&outcome),
            reset_after_ms: millis(outcome.reset_after()),
            source: Word(outcome.source().name()),
            key: outcome,
        }
    }

    fn write(&self, body: &mut Vec<u8>) {
        let Self { policy, key, allowed, shadow, limit, remaining, charged, retry_after_ms, reset_after_ms, source } = self;
        member(body, r#"{"policy":"#, *policy);
        member(body, r#","key":"#, key);
        member(body, r#","allowed":"#, *allowed);
        member(body, r#","shadow":"#, *shadow);
        member(body, r#","limit":"#, *limit);
        member(body, r#","remaining":"#, *remaining);
        member(body, r#","charged":"#, *charged);
        member(body, r#","retry_after_ms":"#, *retry_after_ms);
        member(body, r#","reset_after_ms":"#, *reset_after_ms);
        member(body, r#","source":"#, *source);
        body.push(b'}');
    }
}

impl BatchAnswer<'_> {
    fn write(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(br#"{"decisions":["#);
        for (index, item) in self.decisions.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            match item {
                BatchItem::Decision(decision) => decision.write(body),
                BatchItem::Problem(problem) => write(body, problem),
            }
        }
        body.extend_from_slice(b"]}");
    }
}

fn wait(outcome: &Outcome<'_>) -> Option<u64> {
    if outcome.is_allowed() { Some(0) } else { outcome.retry_after().map(millis) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
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
pub(crate) fn decision(
    told: Told,
    denial: Denial,
    lease: Option<&str>,
    dialect: Dialect,
    seal: &Seal,
    response: &mut Response,
) -> Result<(), Problem> {
    let mut decision = told?;
    if denial == Denial::Refuses && !decision.is_allowed() {
        denied(decision, dialect, response);
        return Ok(());
    }
    response.kind(JSON);
    tell(&decision, dialect, response);
    let receipt = decision.take_receipt().map(|receipt| Sealed { receipt, seal });
    DecisionBody::new(&decision, receipt, lease).write(&mut response.body);
    Ok(())
}

/// A denial for who is denied: a problem.
pub(crate) fn refused(decision: Decision, dialect: Dialect, response: &mut Response) -> Refusal {
    response.status = StatusCode::TOO_MANY_REQUESTS;
    response.kind(PROBLEM_JSON);
    tell(&decision, dialect, response);
    let refusal = Refusal::Denied(decision.into());
    response.body.extend_from_slice(refusal.body().as_bytes());
    refusal
}

/// A denial for who asks on behalf of somebody: a problem, and the decision.
fn denied(decision: Decision, dialect: Dialect, response: &mut Response) {
    let refusal = refused(decision, dialect, response);
    let body = &mut response.body;
    // The members of one object and those of another.
    if let (Some(b'}'), Some(decision)) = (body.pop(), refusal.decision()) {
        let at = body.len();
        DecisionBody::new(decision, None, None).write(body);
        body[at] = b',';
    }
}

/// The answers to several hits.
pub(crate) fn batch(mut told: Vec<Told>, seal: &Seal, response: &mut Response) {
    let receipts: Vec<_> = told.iter_mut().map(|told| told.as_mut().ok().and_then(Decision::take_receipt)).collect();
    let sealed = |receipt: Option<Receipt>| receipt.map(|receipt| Sealed { receipt, seal });
    let items = told.iter().zip(receipts).map(|(told, receipt)| BatchItem::new(told, sealed(receipt)));
    response.kind(JSON);
    BatchAnswer { decisions: items.collect() }.write(&mut response.body);
}

/// Any other answer.
pub(crate) fn json(answer: &impl Serialize, response: &mut Response) {
    response.kind(JSON);
    write(&mut response.body, answer);
}

/// The headers that tell of a decision.
pub(crate) fn tell(decision: &Decision, dialect: Dialect, response: &mut Response) {
    dialect.each(decision, |name, value| response.known_header(name.as_str(), value));
}

const JSON: &str = "application/json";

/// What is before a value, and the value. Written out where it stands: so what is known beforehand is copied without a call.
#[inline(always)]
fn member(body: &mut Vec<u8>, before: &str, value: impl Json) {
    body.extend_from_slice(before.as_bytes());
    value.write(body);
}

fn write(body: &mut Vec<u8>, answer: &impl Serialize) {
    serde_json::to_writer(body, answer).expect("texts and numbers, into memory");
}

/// A value in JSON.
trait Json {
    fn write(self, body: &mut Vec<u8>);
}

impl Json for bool {
    #[inline(always)]
    fn write(self, body: &mut Vec<u8>) {
        body.extend_from_slice(if self { b"true" } else { b"false" });
    }
}

impl Json for u64 {
    fn write(self, body: &mut Vec<u8>) {
        body.extend_from_slice(itoa::Buffer::new().format(self).as_bytes());
    }
}

impl Json for &str {
    fn write(self, body: &mut Vec<u8>) {
        if self.bytes().fold(true, |is_plain, byte| is_plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\')) {
            quoted(body, |body| body.extend_from_slice(self.as_bytes()));
        } else {
            write(body, &self);
        }
    }
}

/// The name of a policy, which has nothing that would have to be escaped.
#[derive(Clone, Copy)]
struct Name<'d>(&'d [u8]);

impl<'d> Name<'d> {
    fn new(outcome: &Outcome<'d>) -> Self {
        Self(outcome.policy_bytes())
    }
}

impl Json for Name<'_> {
    fn write(self, body: &mut Vec<u8>) {
        quoted(body, |body| body.extend_from_slice(self.0));
    }
}

/// A word of ours.
#[derive(Clone, Copy)]
struct Word(&'static str);

impl Json for Word {
    fn write(self, body: &mut Vec<u8>) {
        quoted(body, |body| body.extend_from_slice(self.0.as_bytes()));
    }
}

/// A receipt as it leaves the server.
struct Sealed<'d> {
    receipt: Receipt,
    seal: &'d Seal,
}

impl Json for &Sealed<'_> {
    fn write(self, body: &mut Vec<u8>) {
        quoted(body, |body| self.seal.append(&self.receipt, body));
    }
}

/// Its key.
impl Json for &Outcome<'_> {
    fn write(self, body: &mut Vec<u8>) {
        let start = body.len();
        quoted(body, |body| self.append_key_to(body));
        // It is printable ASCII: most has nothing to escape.
        if body[start + 1..body.len() - 1].iter().any(|byte| matches!(byte, b'"' | b'\\')) {
            body.truncate(start);
            write(body, &self.key().to_string());
        }
    }
}

fn quoted(body: &mut Vec<u8>, text: impl FnOnce(&mut Vec<u8>)) {
    body.push(b'"');
    text(body);
    body.push(b'"');
}

impl<T: Json> Json for Option<T> {
    #[inline(always)]
    fn write(self, body: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(body),
            None => body.extend_from_slice(b"null"),
        }
    }
}
