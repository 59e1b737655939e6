//! A decision that is kept for people to read: in the ring of denials, or on its way into the decision log. What came from a hit is
//! printable here, and harmless in a terminal, a log and a page.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tidegate::{Decision, Hit, Outcome, Source, StoreError};

use super::{
    metrics,
    recorder::{Asked, FrontEnd},
};

#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) time: SystemTime,
    pub(crate) front_end: FrontEnd,
    pub(crate) asked: Asked,
    /// For who looks at denials.
    attributes: Vec<(Box<str>, Box<[u8]>)>,
    told: Result<Decision, StoreError>,
}

/// Attributes that are kept of a hit.
const MAX_ATTRIBUTES: usize = 16;
/// Bytes that are kept of a name or a value.
const MAX_BYTES: usize = 128;

/// What is told of a decision: the outcome that matters most, and who would have denied it.
#[derive(Serialize)]
pub(crate) struct Told<'n> {
    time: String,
    front_end: &'static str,
    asked: &'static str,
    verdict: &'static str,
    policy: Option<&'n str>,
    /// Why a policy denied it, or the store did not answer.
    reason: Option<&'static str>,
    key: Option<String>,
    /// What was asked with.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<BTreeMap<String, String>>,
    cost: Option<u64>,
    used: Option<u64>,
    limit: Option<u64>,
    retry_after_ms: Option<u64>,
    source: Option<&'static str>,
    /// Policies that only watch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<Watcher<'n>>,
}

#[derive(Serialize)]
struct Watcher<'n> {
    policy: &'n str,
    key: String,
    used: Option<u64>,
    limit: u64,
}

impl Note {
    pub(crate) fn new(front_end: FrontEnd, asked: Asked, told: &Result<Decision, StoreError>) -> Self {
        Self { time: SystemTime::now(), front_end, asked, attributes: Vec::new(), told: told.clone() }
    }

    /// With what was asked.
    pub(crate) fn of(self, hit: &Hit<'_>) -> Self {
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(MAX_BYTES)].into();
        // Who knows the name of a lease can end it.
        let kept = hit.attributes().filter(|(name, _)| *name != "lease").take(MAX_ATTRIBUTES);
        let attributes = kept.map(|(name, value)| (name[..name.floor_char_boundary(MAX_BYTES)].into(), cut(value)));
        Self { attributes: attributes.collect(), ..self }
    }

    /// All that is known, attributes and their values among it: for who may look, and for no log, as some may be secrets.
    pub(crate) fn whole(&self) -> Told<'_> {
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let attributes = self.attributes.iter().map(|(name, value)| (shown(name.as_bytes()), shown(value)));
        Told { attributes: Some(attributes.collect()), ..self.told(|key| key) }
    }

    /// Without attributes, and with keys as `shown` has them.
    pub(crate) fn told(&self, shown: impl Fn(String) -> String) -> Told<'_> {
        let decision = self.told.as_ref().ok();
        let strictest = decision.and_then(Decision::strictest);
        let outcome = strictest.as_ref();
        let millis = |wait: Duration| u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let key = |outcome: &Outcome<'_>| shown(outcome.key().to_string());
        let used = |outcome: &Outcome<'_>| (!is_unknown(outcome)).then(|| outcome.used());
        let would_deny = |outcome: &Outcome<'_>| outcome.is_shadow() && !outcome.is_allowed();
        Told {
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            front_end: self.front_end.name(),
            asked: self.asked.name(),
            verdict: match decision {
                Some(decision) if decision.is_allowed() => "allowed",
                Some(_) => "denied",
                None => "failed",
            },
            policy: outcome.map(Outcome::policy),
            reason: match &self.told {
                Ok(_) => outcome.and_then(reason),
                Err(error) => Some(metrics::error(error)),
            },
            key: outcome.map(key),
            attributes: None,
            cost: outcome.map(Outcome::cost),
            used: outcome.and_then(used),
            limit: outcome.map(Outcome::limit),
            retry_after_ms: outcome.and_then(Outcome::retry_after).map(millis),
            source: outcome.map(|outcome| outcome.source().name()),
            would_deny: decision.map_or_else(Vec::new, |decision| {
                let watching = decision.outcomes().filter(would_deny);
                let told = watching.map(|outcome| Watcher {
                    policy: outcome.policy(),
                    key: key(&outcome),
                    used: used(&outcome),
                    limit: outcome.limit(),
                });
                told.collect()
            }),
        }
    }
}

/// Whether nobody knows what is used: a policy denies because the store does not answer, and there is nothing to wait for but that.
fn is_unknown(outcome: &Outcome<'_>) -> bool {
    let is_denied = !outcome.is_allowed() && !outcome.is_hopeless();
    is_denied && outcome.source() == Source::Fallback && outcome.reset_after().is_zero()
}

fn reason(outcome: &Outcome<'_>) -> Option<&'static str> {
    match outcome {
        _ if outcome.is_allowed() => None,
        _ if outcome.limit() == 0 => Some("blocked"),
        _ if outcome.is_hopeless() => Some("cost-above-limit"),
        _ if is_unknown(outcome) => Some("no-store"),
        _ => Some("over-limit"),
    }
}

/// As JSON that cannot be taken for HTML.
pub(crate) fn harmless(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(value).expect("texts and numbers, into memory");
    let mut harmless = Vec::with_capacity(json.len());
    for byte in json {
        match byte {
            // They are nowhere in JSON but in texts.
            b'<' => harmless.extend_from_slice(b"\\u003c"),
            b'>' => harmless.extend_from_slice(b"\\u003e"),
            b'&' => harmless.extend_from_slice(b"\\u0026"),
            byte => harmless.push(byte),
        }
    }
    harmless
}
