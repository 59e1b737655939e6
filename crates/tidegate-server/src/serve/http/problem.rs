//! What is said to who asks for what cannot be: problem+json (RFC 9457) with the field that is wrong.

use std::borrow::Cow;

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::StoreError;
use tidegate_tower::PROBLEM_JSON;

use crate::serve::http1::Response;

/// A refusal.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Problem {
    /// What kind of problem.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// What is wrong, and what to send instead.
    detail: Cow<'static, str>,
    /// What of the request is wrong, as in `hits[2].cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip)]
    allow: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            allow: None,
        }
    }

    pub(crate) fn of(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), ..Self::new(StatusCode::BAD_REQUEST, detail) }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is nothing here; /openapi.json says what there is.")
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let detail = format!("Use {allow}.");
        Self { allow: Some(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }

    pub(crate) fn unauthorized(detail: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(crate) fn too_large(max_body_bytes: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("A body has {max_body_bytes} bytes at most."))
    }

    /// Makes it the answer.
    pub(crate) fn put(&self, response: &mut Response) {
        serde_json::to_writer(&mut response.body, self).expect("texts and numbers, into memory");
        response.status = StatusCode::from_u16(self.status).expect("made of one");
        response.kind(PROBLEM_JSON);
        if self.status == StatusCode::UNAUTHORIZED {
            response.header("www-authenticate", "Bearer");
        }
        if let Some(allow) = self.allow {
            response.header("allow", allow);
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = match error {
            StoreError::Timeout => "The store has not answered in time; whether it has done what was asked is not known.".into(),
            StoreError::Refused(code) => Cow::from(format!("The store has refused: {}.", code.escape_debug())),
            _ => "The store does not answer.".into(),
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}
