//! The table of what can be asked of the admin surface, and by whom.

use super::access::Role::{self, Anyone, Read, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Health,
    Readiness,
    Metrics,
    Policies,
    Replace,
    Change,
    Reset,
    Inspect,
    Top,
    Denials,
}

pub(crate) struct Route {
    method: &'static str,
    path: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) role: Role,
}

const ROUTES: &[Route] = &[
    route("GET", "/healthz", Endpoint::Health, Anyone),
    route("GET", "/readyz", Endpoint::Readiness, Anyone),
    route("GET", "/metrics", Endpoint::Metrics, Read),
    route("GET", "/v1/policies", Endpoint::Policies, Read),
    route("PUT", "/v1/policies", Endpoint::Replace, Write),
    route("PATCH", "/v1/policies/", Endpoint::Change, Write),
    route("POST", "/v1/reset", Endpoint::Reset, Write),
    route("GET", "/v1/inspect", Endpoint::Inspect, Read),
    route("GET", "/v1/top", Endpoint::Top, Read),
    route("GET", "/v1/denials", Endpoint::Denials, Read),
];

const fn route(method: &'static str, path: &'static str, endpoint: Endpoint, role: Role) -> Route {
    Route { method, path, endpoint, role }
}

/// Why there is no route.
pub(crate) enum Lost {
    Path,
    /// These can be used.
    Method(&'static str),
}

/// The route, and what follows its path: the name of a policy.
pub(crate) fn find<'p>(method: &str, path: &'p str) -> Result<(&'static Route, &'p str), Lost> {
    let matching = |route: &'static Route| match route.endpoint {
        Endpoint::Change => path.strip_prefix(route.path).filter(|name| !name.is_empty()).map(|name| (route, name)),
        _ => (path == route.path).then_some((route, "")),
    };
    let mut found = ROUTES.iter().filter_map(matching).peekable();
    let Some((first, _)) = found.peek() else { return Err(Lost::Path) };
    let allow = match first.endpoint {
        Endpoint::Policies => "GET, PUT",
        Endpoint::Change => "PATCH",
        Endpoint::Reset => "POST",
        Endpoint::Health | Endpoint::Readiness => "GET, HEAD",
        _ => "GET",
    };
    // Some who look after health want nothing but the status.
    let allows = |route: &Route| route.method == method || route.role == Anyone && method == "HEAD";
    found.find(|(route, _)| allows(route)).ok_or(Lost::Method(allow))
}
