//! Why a request was refused, and what it is told: a status and a body of problem+json (RFC 9457). No key and no attribute's value
//! is in it.

use std::{fmt::Write as _, sync::Arc};

use tidegate::{Decision, Outcome, StoreError};

use crate::retry_after;

/// The content type of [`Refusal::body`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request does not reach the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A policy says no: 429.
    Denied(Arc<Decision>),
    /// A [required](crate::RateLimit::require) attribute, this one, is missing: 400.
    Missing(String),
    /// The client's address is asked for and the server does not tell it: 500. See [`client_ip`](crate::client_ip).
    NoAddress,
    /// The store does not answer, and a policy says [that this is an error](tidegate::OnStoreError::Error): 503.
    Store(StoreError),
}

/// Whether an outcome is why a request is denied.
fn is_violated(outcome: &Outcome<'_>) -> bool {
    !outcome.is_shadow() && !outcome.is_allowed()
}

impl Refusal {
    /// The status of the response.
    pub fn status(&self) -> u16 {
        match self {
            Self::Denied(_) => 429,
            Self::Missing(_) => 400,
            Self::NoAddress => 500,
            Self::Store(_) => 503,
        }
    }

    /// The decision, where there was one.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            _ => None,
        }
    }

    /// The names of the policies that deny.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        let outcomes = self.decision().into_iter().flat_map(Decision::outcomes);
        outcomes.filter(is_violated).map(|outcome| outcome.policy())
    }

    /// One sentence for who asked.
    pub fn detail(&self) -> String {
        match self {
            Self::Denied(decision) => match retry_after(decision) {
                Some(wait) => format!("Come back in {wait} s."),
                None if decision.outcomes().any(|outcome| is_violated(&outcome) && outcome.limit() == 0) => {
                    "No wait helps: this is blocked.".to_owned()
                }
                None => "No wait helps: this is more than is ever allowed.".to_owned(),
            },
            Self::Missing(_) => "What requests are counted by is missing.".to_owned(),
            Self::NoAddress => "The client's address is not known.".to_owned(),
            Self::Store(_) => "The rate limiter does not answer.".to_owned(),
        }
    }

    /// The body of the response: problem+json.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota};
    /// use tidegate_tower::Refusal;
    ///
    /// let denied = Limiter::in_memory(Quota::per_minute(10)).check_n("user:42", 11);
    /// let body = Refusal::Denied(denied.into()).body();
    /// assert!(body.contains(r#""violated-policies":["default"]"#));
    /// ```
    pub fn body(&self) -> String {
        let (kind, title) = match self {
            Self::Denied(_) => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            Self::Missing(_) => ("about:blank", "Bad Request"),
            Self::NoAddress => ("about:blank", "Internal Server Error"),
            Self::Store(_) => ("about:blank", "Service Unavailable"),
        };
        let (status, detail) = (self.status(), self.detail());
        let mut body = format!(r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}""#);
        if let Self::Denied(decision) = self {
            // The names of policies have nothing that would have to be escaped.
            let violated: Vec<String> = self.violated().map(|policy| format!("\"{policy}\"")).collect();
            let _ = write!(body, r#","violated-policies":[{}]"#, violated.join(","));
            if let Some(wait) = retry_after(decision) {
                let _ = write!(body, r#","retry-after":{wait}"#);
            }
        }
        body.push('}');
        body
    }
}
