//! actix's types, as settings and facts are told of them, and what is answered in them. It knows no service.

use std::{borrow::Cow, net::IpAddr, ops::Deref};

use actix_web::{
    HttpMessage as _, HttpResponse,
    dev::{ResponseHead, ServiceRequest},
    http::{
        StatusCode,
        header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    },
};
use tidegate::Decision;
use tidegate_tower::{Dialect, Http, PROBLEM_JSON, Peer, Refusal};

/// The types of actix-web.
#[derive(Debug)]
pub enum Actix {}

impl Http for Actix {
    type Request = Request;
    type Response = ResponseHead;
    type Denial = HttpResponse;
}

/// What closures are told of a request: all of it but the body, as actix's own [`ServiceRequest`].
#[derive(Debug)]
pub struct Request(pub(crate) ServiceRequest);

impl Deref for Request {
    type Target = ServiceRequest;

    fn deref(&self) -> &ServiceRequest {
        &self.0
    }
}

impl tidegate_tower::Request for Request {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().get(name).map(HeaderValue::as_bytes)
    }

    fn header_lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers().get_all(name).map(HeaderValue::as_bytes)
    }

    fn peer(&self) -> Option<IpAddr> {
        let told = self.extensions().get().map(|Peer(address)| *address);
        told.or_else(|| self.peer_addr().map(|address| address.ip()))
    }

    fn route(&self) -> Option<Cow<'_, str>> {
        self.match_pattern().map(Cow::Owned)
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let at = self.match_info().iter().position(|(known, _)| known == name)?;
        // As extractors see it: what `get` tells is decoded only in part.
        self.match_info().load::<Vec<String>>().ok()?.into_iter().nth(at)
    }

    fn extension<T: Send + Sync + 'static, U>(&self, look: impl FnOnce(&T) -> U) -> Option<U> {
        self.extensions().get().map(look)
    }
}

/// What is answered unless something else was set.
pub(crate) fn denial(refusal: &Refusal) -> HttpResponse {
    let status = StatusCode::from_u16(refusal.status()).expect("one of HTTP's");
    HttpResponse::build(status).content_type(PROBLEM_JSON).body(refusal.body())
}

/// Lists go on where another limit has begun them; of what is told once, the innermost limit's is kept.
pub(crate) fn put(dialect: Dialect, decision: &Decision, headers: &mut HeaderMap) {
    dialect.each(decision, |name, value| {
        // actix has these types from an older `http`.
        let name = HeaderName::from_bytes(name.as_str().as_bytes()).expect("a name is one in each version");
        let value = HeaderValue::from_bytes(value).expect("names of policies and numbers");
        if dialect == Dialect::Draft && name != RETRY_AFTER {
            headers.append(name, value);
        } else if !headers.contains_key(&name) {
            headers.insert(name, value);
        }
    });
}
