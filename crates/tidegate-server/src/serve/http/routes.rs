//! The table of what can be asked over HTTP: by it requests are dispatched and the OpenAPI document is made.

use Endpoint::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Check,
    Batch,
    Peek,
    Charge,
    Refund,
    Settle,
    Acquire,
    Renew,
    Release,
    Auth,
    OpenApi,
}

pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) methods: Methods,
    pub(crate) endpoint: Endpoint,
    /// What it is for.
    pub(crate) summary: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    Get,
    Post,
    /// A hit in the query, or in the body.
    GetOrPost,
    /// Any: proxies ask by the method of the request that they ask about.
    Any,
}

/// Those that are asked most are first.
pub(crate) const ROUTES: &[Route] = &[
    route("/v1/check", Methods::GetOrPost, Check, "Decides a hit, and charges it if it is allowed"),
    route("/v1/auth", Methods::Any, Auth, "Decides a request that a proxy asks about"),
    route("/v1/check/batch", Methods::Post, Batch, "Decides several hits, one after another, each by itself"),
    route("/v1/peek", Methods::GetOrPost, Peek, "Says what a check would decide, and charges nothing"),
    route("/v1/charge", Methods::Post, Charge, "Records a cost that has been incurred, above the limit too"),
    route("/v1/refund", Methods::Post, Refund, "Gives back what a decision charged, once"),
    route("/v1/settle", Methods::Post, Settle, "Corrects what a decision charged to the cost that turned out, once"),
    route("/v1/acquire", Methods::Post, Acquire, "Decides a hit, and takes a lease by policies of concurrency"),
    route("/v1/renew", Methods::Post, Renew, "Makes a lease last for another time to live"),
    route("/v1/release", Methods::Post, Release, "Ends a lease"),
    route("/openapi.json", Methods::Get, OpenApi, "This document"),
];

const fn route(path: &'static str, methods: Methods, endpoint: Endpoint, summary: &'static str) -> Route {
    Route { path, methods, endpoint, summary }
}

pub(crate) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

impl Methods {
    pub(crate) fn allow(self, method: &str) -> bool {
        match self {
            Self::Get => method == "GET" || method == "HEAD",
            Self::Post => method == "POST",
            Self::GetOrPost => method == "POST" || method == "GET",
            Self::Any => true,
        }
    }

    /// The value of `Allow`.
    pub(crate) fn names(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::Post => "POST",
            Self::GetOrPost | Self::Any => "GET, POST",
        }
    }
}
