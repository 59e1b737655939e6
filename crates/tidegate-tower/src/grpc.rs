//! Denials that gRPC clients understand: trailers alone, with details by which they know when to retry.

use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE};
use tidegate::Decision;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::{Head, Refusal};

pub(crate) fn is_grpc(request: &Head) -> bool {
    request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// `RESOURCE_EXHAUSTED` with `google.rpc.RetryInfo`, where a wait helps, and the violated policies as `google.rpc.QuotaFailure`.
pub(crate) fn denial(refusal: &Refusal) -> Response<Bytes> {
    let code = match refusal {
        Refusal::Denied(_) => Code::ResourceExhausted,
        Refusal::Missing(_) => Code::InvalidArgument,
        Refusal::NoAddress => Code::Internal,
        Refusal::Store(_) => Code::Unavailable,
    };
    let mut details = ErrorDetails::new();
    for policy in refusal.violated() {
        details.add_quota_failure_violation(policy, "the quota of this policy is exceeded");
    }
    if let Some(wait) = refusal.decision().and_then(Decision::retry_after) {
        details.set_retry_info(Some(wait));
    }
    Status::with_error_details(code, refusal.detail(), details).into_http()
}
